//! Who else has what a claim is to have.

use std::path::{Path, PathBuf};

use onload_core::lease::{ClaimUid, Device, Leases};
use onload_core::processes::Processes;
use onload_core::run_dir::{RUN_DIR, RunDir};
use onload_core::text::Chain;

use super::error::DeviceError;
use super::own_spec::Leased;

/// The leases of a host.
#[derive(Clone, Debug)]
pub(crate) struct HostLeases {
    root: PathBuf,
    run: PathBuf,
}

impl HostLeases {
    /// Of the host below a directory.
    pub(crate) fn below(root: &Path) -> Self {
        let run = RUN_DIR.trim_start_matches('/');
        HostLeases {
            root: root.to_owned(),
            run: root.join(run),
        }
    }

    /// Refuses what others than a claim have: its containers would not start. They lease it when they do.
    ///
    /// # Errors
    /// [`DeviceError::Held`] with the holder, and [`DeviceError::Leases`].
    pub(crate) fn refuse_held(&self, leased: &Leased, uid: &ClaimUid) -> Result<(), DeviceError> {
        let failed = |error: &dyn std::error::Error| {
            DeviceError::Leases(format!(
                "reading who has {}: {}",
                leased.device,
                Chain(error)
            ))
        };
        let run = RunDir::find(&self.run).map_err(|error| failed(&error))?;
        // Without it there has been no lease since the boot.
        let Some(run) = run else {
            return Ok(());
        };
        let leases = Leases::find(&run, Processes::at(&self.root));
        let Some(leases) = leases.map_err(|error| failed(&error))? else {
            return Ok(());
        };
        let names: [Device; 1] = [leased.device.clone()];
        let held = leases.held_beside(&names, leased.most, uid);
        match held.map_err(|error| failed(&error))? {
            None => Ok(()),
            Some(source) => Err(DeviceError::Held {
                device: leased.device.to_string(),
                source,
            }),
        }
    }
}
