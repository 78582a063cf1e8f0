//! A virtual function of class vfio that is set up for its container. It stays on the host, where only its settings
//! change.

mod access;
mod iommu_group;
pub(super) mod kernel;
mod settings;

use std::io;

use onload_core::device_id::DeviceId;
use onload_lease::{Leases, SavedFunction};
use onload_sys::error::{Context as _, Result, error};

use iommu_group::check_alone;
pub(super) use iommu_group::wait_until_unused;
pub(super) use settings::{examine, restore_settings, set_up};

use super::lifecycle::{MoveRequest, RestoreError, end_lease, open_host_netns};
use super::netns::Netns;

/// See [`super::lifecycle::MoveOps`].
pub(super) const WORD: &str = "vfio";
pub(super) const NEEDS: &str =
    "the settings of a virtual function need a rootful engine on the host";

/// Checks everything that may fail before changing anything. Returns the function's state.
pub(super) fn examine_function(
    request: &MoveRequest<'_>,
    host_netns: &Netns,
) -> Result<SavedFunction> {
    let pci = request.pci;
    let vf_config = request.vf.clone().unwrap_or_default();
    let vf = check_alone(pci)
        .and_then(|()| examine(host_netns, pci, &vf_config))
        .with_context(|| format!("{WORD} {}", request.name))?;
    Ok(SavedFunction { pci, vf })
}

/// Sets up a leased function for a container.
pub(super) fn set_up_function(
    request: &MoveRequest<'_>,
    host_netns: &Netns,
    saved: &SavedFunction,
) -> Result<()> {
    let set = set_up(host_netns, saved.pci, &saved.vf);
    set.with_context(|| format!("{WORD} {}", request.name))
}

/// Restores the settings of a function and ends its lease. `user` is the process that [`wait_until_unused`] found.
pub(super) fn put_back(
    leases: &Leases,
    device: &DeviceId,
    saved: &SavedFunction,
    user: io::Result<Option<String>>,
) -> Result<()> {
    let host_netns = open_host_netns(WORD, device.name.as_str())?;
    end_lease(leases, device, restore(&host_netns, saved, user))
}

fn restore(
    host_netns: &Netns,
    saved: &SavedFunction,
    user: io::Result<Option<String>>,
) -> Result<(), RestoreError> {
    let SavedFunction { pci, vf } = saved;
    let context = format!("putting back virtual function {pci}");
    let failed = match user {
        Ok(None) => return restore_settings(host_netns, *pci, vf),
        // The process still uses the function with these settings, so they stay.
        Ok(Some(user)) => error!(
            "{context}: it is still in use by {user}; stop that, then run \"onload-ctk lease restore\""
        ),
        // Any user can make the search time out, which must not leave the container's VLAN on the function. The
        // lease reserves the function until a longer search has ended.
        Err(failed) => {
            restore_settings(host_netns, *pci, vf)?;
            error!(
                "{context}: its settings are restored, but could not determine whether a process \
                 still has it open: {failed}; run \"onload-ctk lease restore\", which searches \
                 for longer"
            )
        }
    };
    Err(failed.into())
}
