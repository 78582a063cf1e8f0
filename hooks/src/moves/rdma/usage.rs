//! Checks whether the host uses an RDMA device. A move disconnects programs and kernel users from the device and
//! deletes its interfaces (drivers/infiniband/core/device.c, `rdma_dev_change_netns`).

use onload_sys::error::{Context as _, Result, bail};

use super::access;
use super::ops::NetnsRdmaDevice;
use crate::moves::interface::{check_unused, find_opener};
use crate::moves::netns::{Netns, SearchDepth};

/// Fails if the host uses an interface of the device. Returns a warning if that could not be fully determined.
pub(super) fn check_interfaces(
    host_netns: &Netns,
    device: &NetnsRdmaDevice,
) -> Result<Option<String>> {
    let mut warnings = Vec::new();
    for link in access::interfaces(host_netns, device)? {
        let checked = check_unused(host_netns, &link, None, SearchDepth::Processes);
        let warning = checked.with_context(|| {
            let (name, interface) = (&device.name, link.display_name());
            format!("rdma {name} cannot move, which would delete interface {interface}")
        })?;
        warnings.extend(warning);
    }
    Ok((!warnings.is_empty()).then(|| warnings.join("; ")))
}

/// Fails if the kernel uses the device or a program on the host has it open. Succeeds if the search timed out or the
/// kernel does not answer.
pub(super) fn check_users(host_netns: &Netns, device: &NetnsRdmaDevice) -> Result<()> {
    let name = &device.name;
    let kernel = access::kernel_users(host_netns, device.index).unwrap_or_default();
    if !kernel.is_empty() {
        let modules: Vec<&str> = kernel.iter().map(String::as_str).collect();
        bail!(
            "rdma {name} is in use on this host: the kernel has connections over it ({}), as for NVMe, NFS, iSCSI or SRP over RDMA; end these, `rdma resource show qp link {name}` shows them",
            modules.join(", ")
        );
    }
    match find_opener(host_netns, &access::host_nodes(name)) {
        Some(opener) => bail!(
            "rdma {name} is in use on this host: {opener}, and would lose it; stop that process"
        ),
        None => Ok(()),
    }
}
