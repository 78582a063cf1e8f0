//! Device ids in Nomad: type, name and slot. Ids are unique and do not change between starts.

use std::fmt;

/// The type of a device in jobs, with nomad-onload's names where it has the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceType {
    Onload,
    Zf,
    OnloadZf,
    Ptp,
    Pps,
    Rdma,
    Vfio,
    /// An interface that moves into the task's network namespace.
    Netdev,
    Hugepages,
    /// The settings of an Onload profile.
    Profile,
}

impl DeviceType {
    /// All types, in the order in which they are published.
    pub const ALL: [DeviceType; 10] = [
        DeviceType::Onload,
        DeviceType::Zf,
        DeviceType::OnloadZf,
        DeviceType::Ptp,
        DeviceType::Pps,
        DeviceType::Rdma,
        DeviceType::Vfio,
        DeviceType::Netdev,
        DeviceType::Hugepages,
        DeviceType::Profile,
    ];

    /// Returns its name. Names contain no `-`, which ends the type in an id.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeviceType::Onload => "onload",
            DeviceType::Zf => "zf",
            DeviceType::OnloadZf => "onloadzf",
            DeviceType::Ptp => "ptp",
            DeviceType::Pps => "pps",
            DeviceType::Rdma => "rdma",
            DeviceType::Vfio => "vfio",
            DeviceType::Netdev => "netdev",
            DeviceType::Hugepages => "hugepages",
            DeviceType::Profile => "profile",
        }
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

pub fn slot_id(r#type: DeviceType, name: &str, slot: u32) -> String {
    format!("{type}-{name}-{slot}")
}

/// Parses the type, name and slot of an id. Returns `None` for text that [`slot_id`] does not produce.
pub fn parse(text: &str) -> Option<(DeviceType, &str, u32)> {
    let (word, rest) = text.split_once('-')?;
    let (name, slot) = rest.rsplit_once('-')?;
    let r#type = DeviceType::ALL.into_iter().find(|known| known.as_str() == word)?;
    let number: u32 = slot.parse().ok()?;
    (number.to_string() == slot && !name.is_empty()).then_some((r#type, name, number))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_never_collide_whatever_devices_are_called() {
        let names = ["ens1", "ens1-0", "0", "zf-ens1", "0000:81:10.0", "a-1-2"];
        let mut seen = BTreeSet::new();
        for r#type in DeviceType::ALL {
            for name in names {
                for slot in [0, 1, 10] {
                    let id = slot_id(r#type, name, slot);
                    assert_eq!(parse(&id), Some((r#type, name, slot)));
                    assert!(seen.insert(id));
                }
            }
        }
    }

    #[test]
    fn what_is_no_id_is_not_read_as_one() {
        for bad in [
            "",
            "onload",
            "onload-ens1",
            "ens1-0",
            "onload--0",
            "onload-ens1-01",
            "onload-ens1-x",
            "none-ens1-0",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn no_type_has_what_ends_it_in_an_id() {
        assert!(DeviceType::ALL.iter().all(|r#type| !r#type.as_str().contains('-')));
    }
}
