# A server with the settings of Onload's profile "latency", on one interface by name.
#   nomad job run packaging/nomad/examples/profile.nomad.hcl
job "latency" {
  datacenters = ["dc1"]

  group "latency" {
    task "server" {
      driver = "docker"

      config {
        image        = "docker.io/library/debian:13"
        network_mode = "host"
        command      = "sh"
        args         = ["-c", "env | grep -E '^(EF_|LD_PRELOAD|ONLOAD_CTK_)'; sleep infinity"]

        # Where the plugin's configuration says runtime = "onload": all devices come by that runtime then.
        # runtime = "onload"
      }

      resources {
        # Its name is of your client: `nomad node status -self -verbose` shows those that there are.
        device "amd/onload/enp101s0f0np0" {}
        device "onload.dev/profile/latency" {}
      }
    }
  }
}
