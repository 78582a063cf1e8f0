//! Sets up a virtual function for a container and restores it.

use onload_core::vf_config::VfConfig;
use onload_lease::SavedVf;
use onload_sys::error::{Context as _, Result, bail, error};
use onload_sys::netlink::vf::{VfChange, VfSettings};
use onload_sys::pci::PciAddress;

use super::access::{VirtualFunction, apply_change, find};
use crate::moves::lifecycle::RestoreError;
use crate::moves::netns::Netns;

/// Checks everything that may fail before changing anything.
pub(in crate::moves) fn examine(
    host_netns: &Netns,
    pci: PciAddress,
    vf_config: &VfConfig,
) -> Result<SavedVf> {
    let given = vf_config.to_settings()?;
    let Some(VirtualFunction { pf_name, settings, .. }) = find(host_netns, pci)? else {
        bail!(
            "PCI function {pci} is not a virtual function and cannot be set up for a container; remove the table vf from its pool or section, or the device from the pool"
        );
    };
    let mut changes = given.changes(&settings);
    if let Some(change) = changes.find(|change| change.current_setting(&settings).is_none()) {
        let name = change.name();
        bail!(
            "the driver of {}, its physical function, does not report the {name} of {pci}, so \
             it could not be restored; remove {name} from the table vf of its pool or section",
            pf_name
        );
    }
    let before = settings.restricted_to(&given);
    Ok(SavedVf { given, before })
}

/// Sets up a function for a container. A failure may leave some settings changed.
pub(in crate::moves) fn set_up(host_netns: &Netns, pci: PciAddress, saved: &SavedVf) -> Result<()> {
    let Some(vf) = find(host_netns, pci)? else {
        bail!("virtual function {pci} no longer exists; start a new container");
    };
    let address = saved.before.mac.filter(|_| saved.given.mac.is_some());
    // Setting the all-zero address first reveals a driver that rejects it, before the address changes.
    let first = address.filter(|mac| *mac == [0; 6]).map(VfChange::Mac);
    let changes = saved.given.required_changes(&vf.settings);
    for change in first.into_iter().chain(changes) {
        apply_change(host_netns, pci, &vf, change).map_err(|error| {
            error!(
                "{}, the physical function of {pci}, refuses {change}: {error}; remove {} from the table vf of its pool or section, or see what dmesg says",
                vf.pf_name,
                change.name()
            )
        })?;
    }
    let remaining = differences(host_netns, pci, &saved.given)?;
    if !remaining.is_empty() {
        bail!(
            "{}, the physical function of {pci}, accepted {} but does not keep it; remove it \
             from the table vf of its pool or section",
            vf.pf_name,
            list(&remaining)
        );
    }
    Ok(())
}

/// Restores the settings of a function. A function that is gone needs no restoring.
pub(in crate::moves) fn restore_settings(
    host_netns: &Netns,
    pci: PciAddress,
    saved: &SavedVf,
) -> Result<(), RestoreError> {
    let begin = || format!("putting back virtual function {pci}");
    let Some(vf) = find(host_netns, pci).with_context(begin)? else {
        return Ok(());
    };
    let mut failed = None;
    for change in saved.before.required_changes(&vf.settings) {
        failed = failed.or(apply_change(host_netns, pci, &vf, change).err());
    }
    let remaining = differences(host_netns, pci, &saved.before).with_context(begin)?;
    if remaining.is_empty() {
        return Ok(());
    }
    let cause = failed.map_or_else(String::new, |error| format!(" ({error})"));
    Err(RestoreError {
        error: error!(
            "{}: {} rejects {}{cause}; set it manually (ip link set {} vf), then run \
             \"onload-ctk lease restore\"",
            begin(),
            vf.pf_name,
            list(&remaining),
            vf.pf_name
        ),
        differs: Some(format!("what {} sets: {}", vf.pf_name, list(&remaining))),
    })
}

/// Returns the settings that differ from `expected`. A function that is gone has none.
fn differences(
    host_netns: &Netns,
    pci: PciAddress,
    expected: &VfSettings,
) -> Result<Vec<VfChange>> {
    let vf = find(host_netns, pci)?;
    Ok(vf.map_or_else(Vec::new, |vf| expected.differences(&vf.settings)))
}

fn list(changes: &[VfChange]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
