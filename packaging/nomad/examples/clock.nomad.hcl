# A task that reads a PTP clock, and learns from a variable which one it got.
#   nomad job run packaging/nomad/examples/clock.nomad.hcl
#   nomad alloc logs -job clock
job "clock" {
  datacenters = ["dc1"]
  type        = "batch"

  group "clock" {
    task "clock" {
      driver = "docker"

      config {
        image   = "docker.io/library/debian:13"
        command = "sh"
        args    = ["-c", "env | grep '^ONLOAD_CTK_PTP_' && ls -l /dev/ptp*"]

        # Where the plugin's configuration says runtime = "onload": all devices come by that runtime then.
        # runtime = "onload"
      }

      resources {
        device "ptp" {}
      }
    }
  }
}
