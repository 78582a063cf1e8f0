//! The record in a lease of a device that moved into a container's network namespace, or that was set up for the
//! container and stays on the host.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use onload_sys::ethtool::RssConfig;
use onload_sys::netlink::vf::VfSettings;
use onload_sys::pci::PciAddress;

/// The network namespace in the record of a device that stays on the host. The kernel counts namespaces from 1.
pub const NOT_MOVED: u64 = 0;

/// The value of [`MoveRecord::left`] for an interface on which another XDP program replaced Onload's.
pub const ONLOAD_REGISTRATION: &str = "its registration with Onload for AF_XDP";

/// A device that a container has, or that must return to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveRecord {
    /// The state of the device on the host before it moved.
    #[serde(flatten)]
    pub saved: SavedState,
    /// The network namespace that it moved to (SO_NETNS_COOKIE, Linux 5.14). All containers in it count as one holder.
    pub namespace: u64,
    /// The addresses of the device there, which no other container gets until the device returns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Whether the last container in that namespace has exited, so that the device must return.
    #[serde(default)]
    pub returning: bool,
    /// The settings that the last attempt to restore the device left changed, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
    /// The index of the interface when its driver was last unbound. An interface with another index was created by the
    /// driver since, so no container has left anything on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebound: Option<u32>,
}

impl MoveRecord {
    /// Returns the record of a device without addresses that moves to a namespace.
    pub fn new(saved: SavedState, namespace: u64) -> Self {
        MoveRecord {
            saved,
            namespace,
            addresses: Vec::new(),
            returning: false,
            left: None,
            rebound: None,
        }
    }
}

/// The state of a device before it moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SavedState {
    Interface(SavedInterface),
    Rdma(SavedRdma),
    Function(SavedFunction),
}

/// The state of an interface on the host before it moved, to be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedInterface {
    pub name: String,
    #[serde(default)]
    pub alternative_names: Vec<String>,
    /// Its hardware address, as `02:00:00:00:10:01`.
    pub mac: String,
    /// The hardware address that the driver found, if it reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<String>,
    /// Bytes.
    pub mtu: u32,
    /// `IFF_*` (netdevice(7)).
    pub flags: u32,
    /// Further settings, such as its queue length, alias, group and the limits of offloads: types of attributes (`IFLA_*`,
    /// include/uapi/linux/if_link.h) and the kernel's bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<(u16, Vec<u8>)>,
    /// Its settings in `net.ipv4.conf` and `net.ipv6.conf`, by names such as `ipv6/accept_ra`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// The settings of its queues. `None` in leases of versions that did not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Box<SavedQueues>>,
    /// Its registration with Onload for AF_XDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onload: Option<OnloadRegistration>,
    /// The settings of its virtual function, if they were changed for the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<Box<SavedVf>>,
    /// The PCI function that it belongs to, by which it is found under any name.
    pub pci: PciAddress,
}

/// The settings of a virtual function for a container, and those before, both set through the physical function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedVf {
    pub given: VfSettings,
    pub before: VfSettings,
}

/// A virtual function that is set up for a container and stays on the host: the container opens its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFunction {
    pub pci: PciAddress,
    pub vf: SavedVf,
}

/// The settings of an interface's queues. Those that could not be read are `None` and not restored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SavedQueues {
    /// Attributes of sysfs, by their paths below the interface's directory, without all-zero attributes of queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, String>>,
    /// The number of channels: for receiving, sending, other purposes, and both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<[u32; 4]>,
    /// The distribution of packets to channels (RSS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss: Option<RssConfig>,
    /// The ntuple rules, which direct packets to queues (`struct ethtool_rx_flow_spec`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntuple_rules: Option<Vec<Vec<u8>>>,
    /// The settings that are too large for a lease, for messages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unkept: Vec<String>,
}

/// The registration of an interface with Onload, for AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnloadRegistration {
    /// The time of the registration, in nanoseconds since 1970. Reloading Onload's modules ends it.
    pub since: u64,
    /// The ID of Onload's BPF program on the interface, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<u32>,
}

/// The state of an RDMA device on the host before it moved, to be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedRdma {
    pub name: String,
    /// The PCI function that it belongs to.
    pub pci: PciAddress,
    /// Its index, by which it is found under any name. The index is the same for as long as the driver is bound.
    pub index: u32,
    /// Whether another program, such as a CNI plugin, moved it to the container's network namespace and moves it back.
    #[serde(default)]
    pub moved_by_other: bool,
}

impl SavedState {
    /// Returns the PCI function of the device.
    pub fn pci(&self) -> PciAddress {
        match self {
            SavedState::Interface(saved) => saved.pci,
            SavedState::Rdma(saved) => saved.pci,
            SavedState::Function(saved) => saved.pci,
        }
    }

    /// Returns the name of the device for messages. A virtual function has none but its PCI address.
    pub fn name(&self) -> &str {
        match self {
            SavedState::Interface(saved) => &saved.name,
            SavedState::Rdma(saved) => &saved.name,
            SavedState::Function(_) => "",
        }
    }

    /// Returns the settings of its virtual function, if they were changed for the container.
    pub fn vf(&self) -> Option<&SavedVf> {
        match self {
            SavedState::Interface(saved) => saved.vf.as_deref(),
            SavedState::Rdma(_) => None,
            SavedState::Function(saved) => Some(&saved.vf),
        }
    }

    /// Merges the states before two starts of the same container, of which the later one may change more settings of a
    /// virtual function.
    pub(crate) fn merge_later(&self, later: &SavedState) -> SavedState {
        let vf = match (self.vf(), later.vf()) {
            (Some(first), Some(later)) => Some(SavedVf {
                given: later.given,
                before: first.before.merge_missing(&later.before),
            }),
            (first, later) => later.or(first).copied(),
        };
        match (self.clone(), vf) {
            (SavedState::Interface(saved), vf) => {
                SavedState::Interface(SavedInterface { vf: vf.map(Box::new), ..saved })
            }
            (SavedState::Function(saved), Some(vf)) => {
                SavedState::Function(SavedFunction { vf, ..saved })
            }
            (saved, _) => saved,
        }
    }

    /// Returns whether the process that ends the lease must return the device to the host first.
    pub(crate) fn must_return(&self) -> bool {
        match self {
            SavedState::Interface(_) | SavedState::Function(_) => true,
            SavedState::Rdma(saved) => !saved.moved_by_other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(moved: &MoveRecord) -> Option<&SavedInterface> {
        match &moved.saved {
            SavedState::Interface(facts) => Some(facts),
            _ => None,
        }
    }

    #[test]
    fn numbers_of_attributes_are_read_as_they_were_written() {
        let json = r#"{"interface":{"name":"ens1f0v3","mac":"02:00:00:00:10:01","mtu":1500,
            "flags":3,"settings":[[20,[]],[27,[0,0,0,0]]],"pci":"0000:3b:02.3"},"namespace":7}"#;
        let moved: MoveRecord = serde_json::from_str(json).unwrap();
        let again = serde_json::to_string(&moved).unwrap();
        assert_eq!(serde_json::from_str::<MoveRecord>(&again).unwrap(), moved);
        let interface = interface(&moved).unwrap();
        assert_eq!(interface.settings, [(20, vec![]), (27, vec![0; 4])]);
    }

    #[test]
    fn what_a_newer_or_older_version_says_of_queues_is_read_as_far_as_it_goes() {
        let queues = |more: &str| {
            let json = format!(
                r#"{{"interface":{{"name":"a","mac":"","mtu":1500,"queueLength":1000,"flags":3{more},"pci":"0000:3b:02.3"}},
                "namespace":7}}"#
            );
            let moved: MoveRecord = serde_json::from_str(&json).unwrap();
            let again = serde_json::to_string(&moved).unwrap();
            assert_eq!(serde_json::from_str::<MoveRecord>(&again).unwrap(), moved);
            interface(&moved).unwrap().queues.clone()
        };
        assert_eq!(queues(""), None);
        assert_eq!(queues(r#","queues":{}"#), Some(Box::default()));
        let known = queues(
            r#","queues":{"attributes":{"threaded":"0"},"channels":[0,0,1,4],"later":{"x":1},
            "rss":{"table":[0,1],"key":[0,255],"hash":[1,0]},"ntupleRules":[]}"#,
        )
        .unwrap();
        assert_eq!(known.attributes.unwrap()["threaded"], "0");
        assert_eq!(known.channels, Some([0, 0, 1, 4]));
        assert_eq!(known.rss.unwrap().table, [0, 1]);
        assert_eq!(known.ntuple_rules, Some(Vec::new()));
    }

    #[test]
    fn a_lease_keeps_what_a_virtual_function_was_as_it_was_told() {
        let json = r#"{"function":{"pci":"0000:81:10.0","vf":{
            "given":{"vlan":{"id":100},"maxRate":1000},
            "before":{"vlan":{"id":7,"priority":3,"protocol":"802.1ad"},"mac":"00:00:00:00:00:00","minRate":0,"maxRate":0}}},
            "namespace":0,"returning":true}"#;
        let moved: MoveRecord = serde_json::from_str(json).unwrap();
        let vf = moved.saved.vf().unwrap();
        assert_eq!(vf.before.mac, Some([0; 6]));
        assert_eq!(vf.before.vlan.unwrap().priority, 3);
        assert_eq!(vf.given.max_rate, Some(1000));
        assert!(moved.saved.must_return());
        let again = serde_json::to_string(&moved).unwrap();
        assert_eq!(serde_json::from_str::<MoveRecord>(&again).unwrap(), moved);
    }

    #[test]
    fn a_lease_says_of_what_kind_the_device_is() {
        let json = r#"{"rdma":{"name":"mlx5_3","pci":"0000:3b:00.3","index":3},"namespace":7}"#;
        let moved: MoveRecord = serde_json::from_str(json).unwrap();
        let SavedState::Rdma(rdma) = &moved.saved else {
            panic!("{moved:?}");
        };
        assert_eq!((rdma.name.as_str(), rdma.index), ("mlx5_3", 3));
        assert!(moved.saved.must_return());
        let again = serde_json::to_value(&moved).unwrap();
        assert_eq!(again["rdma"]["pci"], "0000:3b:00.3");
        // A kind that this version does not know is no lease that it could end.
        for other in [r#"{"gpu":{"name":"x"},"namespace":7}"#, r#"{"namespace":7}"#] {
            assert!(serde_json::from_str::<MoveRecord>(other).is_err());
        }
    }
}
