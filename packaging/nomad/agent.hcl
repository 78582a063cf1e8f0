# Nomad's agent offers the devices of this client to jobs: copy it to /etc/nomad.d, and put onload-nomad-device into
# the agent's plugin_dir. docs/nomad.md says more about each setting.

plugin "onload-nomad-device" {
  config {
    # Give the tools and profiles of Onload and TCPDirect, too.
    mount_onload = true

    # Say this if the docker driver runs every task that asks for a device with the runtime "onload", which gives all
    # of them then. vfio functions and huge pages can be had, RDMA tasks may lock memory, variables of a task
    # take precedence, and leases say which task has a device.
    # runtime = "onload"
  }
}

# The docker driver lets tasks name that runtime: `onload-ctk runtime configure --runtime nomad` writes this.
# plugin "docker" {
#   config {
#     allow_runtimes = ["runc", "onload"]
#   }
# }
