//! Bonds with a member that Onload has attached to, and whether Onload accelerates them.

use std::path::Path;

use crate::discover::netdev::{NetworkInterface, SYS_CLASS_NET};
use crate::discover::probe::Probe;

/// The modes that Onload supports (Onload, `tools/cplane/bond.c`).
const MODES: [&str; 2] = ["active-backup", "802.3ad"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnloadBond {
    pub name: String,
    pub members: Vec<String>,
    /// Why Onload does not accelerate the bond; `None` if it does.
    pub fault: Option<BondFault>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BondFault {
    Mode(String),
    /// Onload is not attached to this member. It accelerates a bond only if it has all members
    /// (Onload, `cp_bond_slave_set_hwports`).
    Member(String),
}

impl OnloadBond {
    pub fn fault_reason(&self) -> Option<String> {
        let reason = match self.fault.as_ref()? {
            BondFault::Mode(mode) => {
                format!("its mode is {mode}, and Onload supports {}", MODES.join(" and "))
            }
            BondFault::Member(member) => format!("Onload does not accelerate its member {member}"),
        };
        Some(format!("bond {} is not accelerated: {reason}", self.name))
    }
}

/// Reads the bonds of which Onload has a member, and warns about each fault. `attached` are the interfaces that Onload has.
pub(crate) fn read(
    probe: &Probe<'_>,
    interfaces: &[NetworkInterface],
    attached: &[String],
) -> Vec<OnloadBond> {
    if attached.is_empty() {
        return Vec::new();
    }
    let stacked = interfaces.iter().filter(|interface| interface.lower_devices().is_some());
    let bonds: Vec<OnloadBond> =
        stacked.filter_map(|interface| inspect(probe, &interface.name, attached)).collect();
    bonds.iter().filter_map(OnloadBond::fault_reason).for_each(|reason| probe.warn(reason));
    bonds
}

fn inspect(probe: &Probe<'_>, name: &str, attached: &[String]) -> Option<OnloadBond> {
    let directory = Path::new(SYS_CLASS_NET).join(name).join("bonding");
    let slaves = probe.attribute(directory.join("slaves"))?;
    let members: Vec<String> = slaves.split_ascii_whitespace().map(str::to_owned).collect();
    if !members.iter().any(|member| attached.contains(member)) {
        return None;
    }
    // The attribute has the name and number: `802.3ad 4`.
    let name_and_number = probe.attribute(directory.join("mode"))?;
    let mode = name_and_number.split_ascii_whitespace().next()?;
    let fault = if MODES.contains(&mode) {
        let other = members.iter().find(|member| !attached.contains(member));
        other.map(|member| BondFault::Member(member.clone()))
    } else {
        Some(BondFault::Mode(mode.to_owned()))
    };
    Some(OnloadBond { name: name.to_owned(), members, fault })
}
