//! What a lease keeps of a device that moved into a container's network namespace.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::pci::PciAddress;

/// A device that is with a container, or on its way back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved<F = InterfaceFacts> {
    /// What it was on the host.
    #[serde(flatten)]
    pub facts: F,
    /// The network namespace that it moved to (SO_NETNS_COOKIE, Linux 5.14). All containers of it are one holder.
    pub namespace: u64,
    /// The addresses that it has there. No other container gets one of them meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The last container of that namespace has ended, and the device is to come back.
    #[serde(default)]
    pub returning: bool,
}

/// What a device was, by its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Facts {
    /// A network interface.
    Interface(InterfaceFacts),
    /// An RDMA device.
    Rdma(RdmaFacts),
}

/// What an interface was on the host before it moved, and is to be again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceFacts {
    /// Its name.
    pub name: String,
    /// Its other names.
    #[serde(default)]
    pub alternative_names: Vec<String>,
    /// Its hardware address, as `02:00:00:00:10:01`.
    pub mac: String,
    /// The one that its driver found, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permanent_mac: Option<String>,
    /// Bytes.
    pub mtu: u32,
    /// Packets.
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
    /// The PCI function that it belongs to: it is found by that again, whatever it is called.
    pub pci: PciAddress,
}

/// What an RDMA device was on the host before it moved, and is to be again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RdmaFacts {
    /// Its name.
    pub name: String,
    /// The PCI function that it belongs to.
    pub pci: PciAddress,
    /// Its number, by which it is found again, whatever it is called: it stays while its driver is bound.
    pub index: u32,
    /// Somebody else put it into the container's network namespace, such as a CNI plugin, and takes it out again.
    #[serde(default)]
    pub moved_by_other: bool,
}

impl Facts {
    /// The PCI function of the device.
    #[must_use]
    pub fn pci(&self) -> PciAddress {
        match self {
            Facts::Interface(facts) => facts.pci,
            Facts::Rdma(facts) => facts.pci,
        }
    }

    /// Whether whoever ends the lease brings the device back.
    pub(crate) fn comes_back(&self) -> bool {
        match self {
            Facts::Interface(_) => true,
            Facts::Rdma(facts) => !facts.moved_by_other,
        }
    }
}

impl From<InterfaceFacts> for Facts {
    fn from(facts: InterfaceFacts) -> Self {
        Facts::Interface(facts)
    }
}

impl From<RdmaFacts> for Facts {
    fn from(facts: RdmaFacts) -> Self {
        Facts::Rdma(facts)
    }
}

/// The facts are of a device of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherKind;

impl TryFrom<Facts> for InterfaceFacts {
    type Error = OtherKind;

    fn try_from(facts: Facts) -> Result<Self, OtherKind> {
        match facts {
            Facts::Interface(facts) => Ok(facts),
            Facts::Rdma(_) => Err(OtherKind),
        }
    }
}

impl TryFrom<Facts> for RdmaFacts {
    type Error = OtherKind;

    fn try_from(facts: Facts) -> Result<Self, OtherKind> {
        match facts {
            Facts::Interface(_) => Err(OtherKind),
            Facts::Rdma(facts) => Ok(facts),
        }
    }
}

impl Moved<Facts> {
    /// The same of a device of one kind; none where it is of another.
    pub(crate) fn of<F: TryFrom<Facts>>(&self) -> Option<Moved<F>> {
        Some(Moved {
            facts: self.facts.clone().try_into().ok()?,
            namespace: self.namespace,
            addresses: self.addresses.clone(),
            returning: self.returning,
        })
    }
}

impl<F: Into<Facts>> Moved<F> {
    /// As a lease keeps it.
    #[must_use]
    pub fn kept(self) -> Moved<Facts> {
        Moved {
            facts: self.facts.into(),
            namespace: self.namespace,
            addresses: self.addresses,
            returning: self.returning,
        }
    }
}

/// A map as a list of pairs: the keys of an object are texts, of which no number is read behind a flattened field.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<u16, u32>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<u16, u32>, D::Error> {
        let pairs = Vec::<(u16, u32)>::deserialize(from)?;
        Ok(pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_attributes_are_read_as_they_were_written() {
        let json = r#"{"interface":{"name":"ens1f0v3","mac":"02:00:00:00:10:01","mtu":1500,"queueLength":1000,
            "flags":3,"words":[[27,0],[41,65535]],"pci":"0000:3b:02.3"},"namespace":7}"#;
        let moved: Moved<Facts> = serde_json::from_str(json).unwrap();
        let again = serde_json::to_string(&moved).unwrap();
        assert_eq!(serde_json::from_str::<Moved<Facts>>(&again).unwrap(), moved);
        let interface: Moved<InterfaceFacts> = moved.of().unwrap();
        assert_eq!(
            interface.facts.words,
            BTreeMap::from([(27, 0), (41, 65535)])
        );
    }

    #[test]
    fn a_lease_says_of_what_kind_the_device_is() {
        let json = r#"{"rdma":{"name":"mlx5_3","pci":"0000:3b:00.3","index":3},"namespace":7}"#;
        let moved: Moved<Facts> = serde_json::from_str(json).unwrap();
        let rdma: Moved<RdmaFacts> = moved.of().unwrap();
        assert_eq!((rdma.facts.name.as_str(), rdma.facts.index), ("mlx5_3", 3));
        assert_eq!(moved.of::<InterfaceFacts>(), None);
        assert!(moved.facts.comes_back());
        let again = serde_json::to_value(&moved).unwrap();
        assert_eq!(again["rdma"]["pci"], "0000:3b:00.3");
        assert_eq!(rdma.kept(), moved);
        // A kind that this version does not know is no lease that it could end.
        for other in [
            r#"{"gpu":{"name":"x"},"namespace":7}"#,
            r#"{"namespace":7}"#,
        ] {
            assert!(serde_json::from_str::<Moved<Facts>>(other).is_err());
        }
    }
}
