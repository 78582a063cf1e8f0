# A task with a PCI function of its own, bound to vfio. The agent's configuration has runtime = "onload" in the block
# of the plugin, and allow_runtimes of the docker driver has it too (packaging/nomad/agent.hcl).
#   nomad job run packaging/nomad/examples/vfio.nomad.hcl
#   nomad alloc logs -job vfio
job "vfio" {
  datacenters = ["dc1"]
  type        = "batch"

  group "vfio" {
    task "vfio" {
      driver = "docker"

      config {
        image = "docker.io/library/debian:13"

        # Without it the task starts without its device.
        runtime = "onload"
        command = "sh"
        args    = ["-c", "env | grep '^ONLOAD_CTK_VFIO_' && ls -l /dev/vfio && ulimit -l"]
      }

      resources {
        device "vfio" {
          constraint {
            attribute = "${device.attr.pci_vendor}"
            value     = "0x1924"
          }
        }
      }
    }
  }
}
