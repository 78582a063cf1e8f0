# redis-server under Onload. The image needs no Onload: libraries and preload come from the client.
#   nomad job run packaging/nomad/examples/redis.nomad.hcl
#   nomad alloc exec -job redis grep -m1 libonload /proc/1/maps
job "redis" {
  datacenters = ["dc1"]

  group "redis" {
    network {
      # Onload accelerates the interfaces that a task sees: those of the client.
      mode = "host"
    }

    task "redis" {
      driver = "docker"

      # As user 0 the holder of /dev/onload could map the stacks of every program on the client.
      user = "999"

      config {
        image        = "docker.io/library/redis:7"
        network_mode = "host"

        # Where the plugin's configuration says runtime = "onload": all devices come by that runtime then.
        # runtime = "onload"

        # Whoever reaches the port gets in: for this test alone.
        args = ["redis-server", "--save", "", "--protected-mode", "no"]
      }

      env {
        # What the profile "latency" sets first: spin instead of waiting for an interrupt.
        EF_POLL_USEC = "100000"
      }

      resources {
        cores  = 2
        memory = 512

        device "onload" {
          # An interface of 25 Gbit/s or more: Nomad knows no unit of bits.
          constraint {
            attribute = "${device.attr.speed}"
            operator  = ">="
            value     = "3125 MB/s"
          }

          affinity {
            attribute = "${device.attr.link_state}"
            value     = "up"
          }
        }
      }
    }
  }
}
