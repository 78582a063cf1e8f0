//! Files that stand in for virtual functions, one each. A file has what the driver of the physical function tells, and
//! which settings that refuses; what it does otherwise is what drivers in the kernel do. What it was told is in a file `told`
//! beside them, a line each.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use onload_hooks::moves::stand_ins::VfStandIns;
use onload_sys::bail;
use onload_sys::error::{Context as _, Result};
use onload_sys::netlink::vf::{VfChange, VfSettings};
use onload_sys::pci::PciAddress;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The directory that has them.
#[derive(Debug)]
pub(crate) struct Files(pub(crate) PathBuf);

#[derive(Serialize, Deserialize)]
struct StandIn {
    /// The interface of its physical function; none where that has none on the host.
    pf: Option<String>,
    settings: VfSettings,
    /// The names of settings that the driver does not take.
    #[serde(default)]
    refuses: Vec<String>,
}

impl StandIn {
    fn read(file: &Path) -> io::Result<Option<Self>> {
        match fs::read(file) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl VfStandIns for Files {
    fn root(&self) -> &Path {
        &self.0
    }

    fn find(&self, pci: PciAddress) -> Result<Option<(String, VfSettings)>> {
        let file = &self.0.join(pci.to_string());
        let found = StandIn::read(file).with_context(|| format!("reading {file:?}"))?;
        let Some(StandIn { pf, settings, .. }) = found else {
            return Ok(None);
        };
        match pf {
            Some(pf) => Ok(Some((pf, settings))),
            None => {
                bail!("its physical function has no interface in this host's network namespace")
            }
        }
    }

    /// As a driver does it: at once or not at all.
    fn apply_change(&self, pci: PciAddress, change: VfChange) -> io::Result<()> {
        let file = &self.0.join(pci.to_string());
        let mut found = StandIn::read(file)?.ok_or_else(|| io::Error::from(Errno::NODEV))?;
        if found.refuses.iter().any(|name| name == change.name()) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let mut changes =
            fs::OpenOptions::new().append(true).create(true).open(self.0.join("told"))?;
        writeln!(changes, "{change}")?;
        let settings = &mut found.settings;
        match change {
            VfChange::Vlan(tag) => settings.vlan = Some(tag),
            VfChange::Mac(mac) => settings.mac = Some(mac),
            VfChange::SpoofCheck(on) => settings.spoof_check = Some(on),
            VfChange::Trust(on) => settings.trust = Some(on),
            VfChange::Rate { min, max } => {
                (settings.min_rate, settings.max_rate) = (Some(min), Some(max));
            }
            VfChange::LinkState(state) => settings.link_state = Some(state),
        }
        let written = file.with_extension("new");
        fs::write(&written, serde_json::to_vec(&found)?)?;
        fs::rename(&written, file)
    }
}
