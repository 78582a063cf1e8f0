//! What a lease keeps of a device that moved into a container's network namespace, or that is set up for the container
//! where it is.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};

use onload_core::versioned::LenientValue;
use onload_sys::netlink::vf::VfSettings;
use onload_sys::pci::PciAddress;

/// The network namespace of what stays where it is: the kernel's numbers begin at 1.
pub const NOT_MOVED: u64 = 0;

/// The entry of [`MoveRecord::left`] for an interface that another XDP program took from Onload.
pub const ONLOAD_REGISTRATION: &str = "its registration with Onload for AF_XDP";

/// A device that is with a container, or on its way back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveRecord {
    /// What it was on the host.
    #[serde(flatten)]
    pub saved: SavedState,
    /// The network namespace that it moved to (SO_NETNS_COOKIE, Linux 5.14). All containers of it are one holder.
    pub namespace: u64,
    /// The addresses that it has there. No other container gets one of them meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The last container of that namespace has ended, and the device is to come back.
    #[serde(default)]
    pub returning: bool,
    /// What of it is not as it was, for people, as whoever tried last to restore it found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
    /// The number of the interface when its driver was last unbound to make it anew: with another number it was, and
    /// nothing of a container is on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebound: Option<u32>,
}

/// What a device was, by its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SavedState {
    Interface(SavedInterface),
    Rdma(SavedRdma),
    Function(SavedFunction),
}

/// What an interface was on the host before it moved, and is to be again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedInterface {
    pub name: String,
    #[serde(default)]
    pub alternative_names: Vec<String>,
    /// Its hardware address, as `02:00:00:00:10:01`.
    pub mac: String,
    /// The one that its driver found, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<String>,
    /// Bytes.
    pub mtu: u32,
    pub queue_length: u32,
    /// What people wrote of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// `IFF_*` (netdevice(7)).
    pub flags: u32,
    /// Its broadcast address, as the hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<String>,
    /// `IF_LINK_MODE_*` (include/uapi/linux/if.h).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_mode: Option<u8>,
    /// Its group and the limits of offloads, by the numbers of their attributes (`IFLA_*`,
    /// include/uapi/linux/if_link.h).
    #[serde(default, with = "pairs", skip_serializing_if = "BTreeMap::is_empty")]
    pub words: BTreeMap<u16, u32>,
    /// What of it is set below `net.ipv4.conf` and `net.ipv6.conf`, as `ipv6/accept_ra` and a value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// How packets come to its queues; none in leases of before.
    #[serde(
        default,
        deserialize_with = "deserialize_known",
        skip_serializing_if = "Option::is_none"
    )]
    pub queues: Option<Box<SavedQueues>>,
    /// Its registration with Onload, which reached it by AF_XDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onload: Option<OnloadRegistration>,
    /// Its virtual function, where that is set up for the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<Box<SavedVf>>,
    /// The PCI function that it belongs to: it is found by that again, whatever it is called.
    pub pci: PciAddress,
}

/// How a virtual function is set up for a container through its physical function, and what it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedVf {
    pub given: VfSettings,
    pub before: VfSettings,
}

/// A virtual function that is set up for a container, which opens it by nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFunction {
    pub pci: PciAddress,
    pub vf: SavedVf,
}

/// How packets come to the queues of an interface, as far as that is known: what is not is not restored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SavedQueues {
    /// Attributes of sysfs, by their paths below the interface's directory. Those of a queue whose value is nothing but
    /// zeros are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, String>>,
    /// How many channels it has: for receiving, sending, other ends and both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<[u32; 4]>,
    /// How packets are spread over them (RSS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<SavedRss>,
    /// The rules that give packets to queues (ntuple), in hexadecimal digits (`struct ethtool_rx_flow_spec`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<String>>,
    /// What there is too much of to be kept, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unkept: Vec<String>,
}

/// The registration of an interface with Onload, for AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnloadRegistration {
    /// When it was made, in nanoseconds since 1970: one after the modules were loaded anew is another.
    pub since: u64,
    /// The number of Onload's BPF program there, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<u32>,
}

/// How an interface spreads packets (`struct ethtool_rxfh`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRss {
    /// A queue for each value of the hash.
    pub table: Vec<u32>,
    /// The key of the hash, in hexadecimal digits.
    pub key: String,
    /// The hash function, and what is done with the addresses before.
    pub hash: [u8; 2],
}

/// What an RDMA device was on the host before it moved, and is to be again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedRdma {
    pub name: String,
    /// The PCI function that it belongs to.
    pub pci: PciAddress,
    /// Its number, by which it is found again, whatever it is called: it stays while its driver is bound.
    pub index: u32,
    /// Somebody else put it into the container's network namespace, such as a CNI plugin, and takes it out again.
    #[serde(default)]
    pub moved_by_other: bool,
}

impl SavedState {
    /// The PCI function of the device.
    pub fn pci(&self) -> PciAddress {
        match self {
            SavedState::Interface(saved) => saved.pci,
            SavedState::Rdma(saved) => saved.pci,
            SavedState::Function(saved) => saved.pci,
        }
    }

    /// How its virtual function is set up.
    pub fn vf(&self) -> Option<&SavedVf> {
        match self {
            SavedState::Interface(saved) => saved.vf.as_deref(),
            SavedState::Rdma(_) => None,
            SavedState::Function(saved) => Some(&saved.vf),
        }
    }

    /// What the device was before both of two starts of its container. Its virtual function is set up as the later one
    /// asks, which may set more of it.
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

    /// Whether whoever ends the lease brings the device back.
    pub(crate) fn must_return(&self) -> bool {
        match self {
            SavedState::Interface(_) | SavedState::Function(_) => true,
            SavedState::Rdma(saved) => !saved.moved_by_other,
        }
    }
}

impl From<SavedInterface> for SavedState {
    fn from(saved: SavedInterface) -> Self {
        SavedState::Interface(saved)
    }
}

impl From<SavedRdma> for SavedState {
    fn from(saved: SavedRdma) -> Self {
        SavedState::Rdma(saved)
    }
}

impl From<SavedFunction> for SavedState {
    fn from(saved: SavedFunction) -> Self {
        SavedState::Function(saved)
    }
}

/// None where another version says it in another way: what is not restored for that must not keep a lease from being
/// understood.
fn deserialize_known<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<SavedQueues>>, D::Error> {
    Ok(LenientValue::deserialize(deserializer)?.value())
}

/// A map as a list of pairs: the keys of an object are texts, of which no number is read behind a flattened field.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<u16, u32>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<u16, u32>, D::Error> {
        let pairs = Vec::<(u16, u32)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
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
        let json = r#"{"interface":{"name":"ens1f0v3","mac":"02:00:00:00:10:01","mtu":1500,"queueLength":1000,
            "flags":3,"words":[[27,0],[41,65535]],"pci":"0000:3b:02.3"},"namespace":7}"#;
        let moved: MoveRecord = serde_json::from_str(json).unwrap();
        let again = serde_json::to_string(&moved).unwrap();
        assert_eq!(serde_json::from_str::<MoveRecord>(&again).unwrap(), moved);
        let interface = interface(&moved).unwrap();
        assert_eq!(interface.words, BTreeMap::from([(27, 0), (41, 65535)]));
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
        assert_eq!(queues(r#","queues":{"channels":4}"#), None);
        assert_eq!(queues(r#","queues":{}"#), Some(Box::default()));
        let known = queues(
            r#","queues":{"attributes":{"threaded":"0"},"channels":[0,0,1,4],"later":{"x":1},
            "spread":{"table":[0,1],"key":"00ff","hash":[1,0]},"rules":[]}"#,
        )
        .unwrap();
        assert_eq!(known.attributes.unwrap()["threaded"], "0");
        assert_eq!(known.channels, Some([0, 0, 1, 4]));
        assert_eq!(known.spread.unwrap().table, [0, 1]);
        assert_eq!(known.rules, Some(Vec::new()));
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
