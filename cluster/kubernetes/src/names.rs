//! Names of pools and devices at the API server.
//!
//! An allocation stores driver, pool and device names, so a name must not change while its device exists, even if other
//! devices come and go: it is derived only from the device's own name. Names must be DNS labels (`validateDeviceName`
//! in pkg/apis/resource/validation of Kubernetes), which `mlx5_0` and `0000:81:00.0` are not.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::bail;
use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::kubernetes_settings::{MAX_DNS_LABEL, is_dns_label};
use onload_host::offers::HostDevice;
use onload_host::specdir::sha256;
use onload_sys::pci::PciAddress;
use onload_sys::text::Quoted;

/// Limit for the name of a pool (`ResourcePoolNameMaxLength`) or node, in bytes.
const MAX_NAME: usize = 253;
const SLOT: &str = "-slot-";
/// Limit for a device name without its slot, which has at most ten digits, in bytes.
const MAX_BASE: usize = MAX_DNS_LABEL - SLOT.len() - 10;
/// Number of hexadecimal digits of a hash.
const DIGITS: usize = 8;

/// The name of a node: a DNS subdomain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeName(String);

impl NodeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the pool of a class: one per class and node, so that a busy class does not delay others.
    pub fn pool_name(&self, class: Class) -> String {
        append_to_node(&self.0, &format!("/{class}"))
    }

    /// Returns the class of a pool, or `None` if it is not a pool of this node.
    pub fn parse_pool(&self, pool: &str) -> Option<Class> {
        let class = pool.rsplit_once('/')?.1.parse().ok()?;
        (self.pool_name(class) == pool).then_some(class)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let is_legal = name.len() <= MAX_NAME && name.split('.').all(is_dns_label);
        if !is_legal {
            let name = Quoted(name);
            bail!(
                "{name} is not a node name: it may have at most {MAX_NAME} lower case letters, \
                 digits, \"-\" and \".\"; use the metadata.name of the Node"
            );
        }
        Ok(NodeName(name.to_owned()))
    }
}

/// Returns whether an offer can be allocated: not a profile, not huge pages, which kubelet counts itself, and not
/// Onload without an interface.
pub fn is_allocatable(device: &HostDevice) -> bool {
    !device.class.is_uncountable() && !device.is_loopback()
}

/// Maps a node's devices to their names and back.
#[derive(Debug, Default)]
pub struct DeviceNames {
    devices: BTreeMap<(Class, String), DeviceName>,
    /// Names of the few devices whose derived name would be another one's.
    other_labels: BTreeMap<(Class, DeviceName), String>,
}

impl DeviceNames {
    pub fn new(devices: &[HostDevice]) -> DeviceNames {
        let mut names = DeviceNames::default();
        for device in devices.iter().filter(|device| is_allocatable(device)) {
            names.add(device.class, &device.name);
        }
        names
    }

    fn add(&mut self, class: Class, name: &DeviceName) {
        let usual = base_label(name.as_str());
        let mut key = (class, usual.clone());
        // Only if two 32-bit hashes are equal does the name depend on another device: the second gets a longer hash.
        let mut digits = DIGITS;
        while self.devices.get(&key).is_some_and(|other| other != name) && digits < DIGITS * 4 {
            digits += DIGITS;
            key.1 = hash_name(name.as_str(), digits);
        }
        if key.1 != usual {
            self.other_labels.insert((class, name.clone()), key.1.clone());
        }
        self.devices.insert(key, name.clone());
    }

    /// Returns the name of an offer, or of one slot of it. It is a DNS label.
    pub fn device_name(&self, class: Class, name: &DeviceName, slot: Option<u32>) -> String {
        let other = self.other_labels.get(&(class, name.clone()));
        let base = other.cloned().unwrap_or_else(|| base_label(name.as_str()));
        match slot {
            None => base,
            Some(slot) => format!("{base}{SLOT}{slot}"),
        }
    }

    /// Returns the device with this name or slot name, or `None` if the node does not offer it.
    fn find(&self, class: Class, device: &str) -> Option<&DeviceName> {
        let find = |base: &str| self.devices.get(&(class, base.to_owned()));
        find(device).or_else(|| find(split_slot(device)?.0))
    }

    /// Finds a device of a pool among these offers, which are sorted by class and name.
    pub fn find_device<'o>(
        &self,
        devices: &'o [HostDevice],
        node: &NodeName,
        pool: &str,
        device: &str,
    ) -> Option<&'o HostDevice> {
        let class = node.parse_pool(pool)?;
        let key = (class, self.find(class, device)?);
        let index = devices
            .binary_search_by(|host_device| (host_device.class, &host_device.name).cmp(&key));
        devices.get(index.ok()?)
    }
}

/// Returns a name that begins with the node's name, or with its hash if it is very long.
pub(crate) fn append_to_node(node: &str, end: &str) -> String {
    if node.len() + end.len() <= MAX_NAME {
        return format!("{node}{end}");
    }
    let max = MAX_NAME - end.len() - DIGITS - 1;
    let short = node.get(..max).unwrap_or(node).trim_end_matches(['.', '-']);
    format!("{short}-{}{end}", hash(node, DIGITS))
}

/// Returns the label of a device. Names of lower case letters, digits and single underscores, and PCI addresses, are
/// converted readably and without collisions. Other names, and those that end like a hash or a slot, get a hash at the
/// end.
fn base_label(name: &str) -> String {
    let label = name.replace(['_', ':', '.'], "-");
    let is_own = match name.parse::<PciAddress>() {
        Ok(address) => address.to_string() == name,
        Err(_) => name.bytes().all(is_plain) && !is_ambiguous(&label),
    };
    if is_own && is_dns_label(&label) && label.len() <= MAX_BASE && !label.contains("--") {
        label
    } else {
        hash_name(name, DIGITS)
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'
}

/// Returns whether a label could be that of a PCI address, or have a hash or a slot.
fn is_ambiguous(label: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash = label.rsplit_once('-').map(|(_, last)| last);
    let is_hashed = hash.is_some_and(|hash| hash.len() % DIGITS == 0 && is_hex(hash));
    let parts: Vec<&str> = label.split('-').collect();
    let is_pci = parts.len() == 4 && parts.into_iter().all(is_hex);
    is_hashed || is_pci || split_slot(label).is_some()
}

fn hash_name(name: &str, digits: usize) -> String {
    let mut label = String::new();
    for char in name.chars() {
        match char.to_ascii_lowercase() {
            char if char.is_ascii_alphanumeric() => label.push(char),
            _ if label.is_empty() || label.ends_with('-') => {}
            _ => label.push('-'),
        }
    }
    label.truncate(MAX_BASE - digits - 1);
    let label = label.trim_end_matches('-');
    format!("{label}-{}", hash(name, digits))
}

pub(crate) fn hash(text: &str, digits: usize) -> String {
    let mut hex = sha256(text.as_bytes());
    hex.truncate(digits);
    hex
}

/// Parses the slot of a label.
pub(crate) fn parse_slot(label: &str) -> Option<u32> {
    split_slot(label).map(|(_, slot)| slot)
}

/// Splits a label into device and slot, if it has one in this program's format.
fn split_slot(label: &str) -> Option<(&str, u32)> {
    let (base, slot) = label.rsplit_once(SLOT)?;
    let number: u32 = slot.parse().ok()?;
    (number.to_string() == slot).then_some((base, number))
}

/// Truncates a text at a character boundary.
pub(crate) fn truncate(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn node(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn name(text: &str) -> DeviceName {
        DeviceName::try_from(text).unwrap()
    }

    fn names(devices: &[(Class, &str)]) -> DeviceNames {
        let host_devices: Vec<HostDevice> =
            devices.iter().map(|(class, name)| HostDevice::new(*class, name).unwrap()).collect();
        DeviceNames::new(&host_devices)
    }

    #[test]
    fn usual_names_keep_their_look() {
        let names = names(&[]);
        for (class, device, label) in [
            (Class::Nic, "ens1f0np0", "ens1f0np0"),
            (Class::Rdma, "mlx5_0", "mlx5-0"),
            (Class::Rdma, "mlx5_bond_0", "mlx5-bond-0"),
            (Class::Vfio, "0000:81:10.7", "0000-81-10-7"),
            (Class::Vfio, "10000:81:10.7", "10000-81-10-7"),
            (Class::Ptp, "ptp0", "ptp0"),
        ] {
            assert_eq!(names.device_name(class, &name(device), None), label);
        }
        let slot = names.device_name(Class::Nic, &name("ens1"), Some(9));
        assert_eq!(slot, "ens1-slot-9");
        assert_eq!(node("n1").pool_name(Class::NicPlain), "n1/nic-plain");
    }

    #[test]
    fn names_that_would_meet_have_a_hash() {
        let rdma = names(&[(Class::Rdma, "mlx5_0"), (Class::Rdma, "mlx5-0")]);
        let other = rdma.device_name(Class::Rdma, &name("mlx5-0"), None);
        assert_eq!(other, "mlx5-0-a5648384");
        for (label, device) in [("mlx5-0", "mlx5_0"), (other.as_str(), "mlx5-0")] {
            assert_eq!(rdma.find(Class::Rdma, label), Some(&name(device)));
        }
    }

    #[test]
    fn what_the_node_does_not_offer_is_not_found() {
        let devices = [(Class::Nic, "ens1"), (Class::Hugepages, "2Mi")]
            .map(|(class, name)| HostDevice::new(class, name).unwrap());
        let (names, node) = (DeviceNames::new(&devices), node("n1"));
        for (pool, device) in [
            ("n1/nic", "ens2"),
            ("n2/nic", "ens1"),
            ("n1/zf", "ens1"),
            ("nic", "ens1"),
            ("", ""),
            ("n1/nic", "ens1-slot-"),
            ("n1/nic", "ens1-slot-01"),
            ("n1/nic", "ens1-slot-+1"),
            ("n1/nic", "ens1-slot-4294967296"),
            ("n1/nic", "ens1-slot-1-slot-1"),
            ("n1/hugepages", "2Mi"),
        ] {
            let found = names.find_device(&devices, &node, pool, device);
            assert!(found.is_none(), "{pool} {device}");
        }
        let found = names.find_device(&devices, &node, "n1/nic", "ens1-slot-4294967295");
        assert_eq!(found.unwrap().name, devices[0].name);
    }

    #[test]
    fn a_long_node_has_pools_of_its_own() {
        let long = |end: &str| node(&format!("{}.{end}", vec!["a".repeat(49); 5].join(".")));
        let (one, two) = (long("b"), long("c"));
        assert_eq!(one.as_str().len(), 251);
        let pools = |node: &NodeName| Class::ALL.map(|class| node.pool_name(class));
        let all: BTreeSet<String> = pools(&one).into_iter().chain(pools(&two)).collect();
        assert_eq!(all.len(), 2 * Class::ALL.len());
        for pool in all {
            let (node, class) = pool.split_once('/').unwrap();
            assert!(pool.len() <= MAX_NAME && is_dns_label(class), "{pool}");
            assert!(node.parse::<NodeName>().is_ok(), "{pool}");
        }
    }

    #[test]
    fn a_node_is_called_as_kubernetes_allows() {
        for good in ["n1", "1", "ip-10-0-0-1.eu.internal"] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        let long = "a.".repeat(126) + "aa";
        for bad in ["", ".", "a..b", "-a", "a-", "N1", "a/b", "a_b", "a b", long.as_str()] {
            let error = bad.parse::<NodeName>().unwrap_err().to_string();
            assert!(error.contains("is not a node name"), "{error}");
        }
    }

    fn device_name() -> impl Strategy<Value = String> {
        prop_oneof![
            "[ab1][a1_.:-]{0,6}[a1]",
            "(mlx5|ens1)[-_.:]{0,2}(slot)?[-_]{0,2}[0-9a-f]{1,8}",
            "[0-9a-f]{4,5}[:._-][0-9a-f]{2}[:._-][01][0-9a-f][:._-][0-7]",
            "[A-Za-z][A-Za-z0-9_.:-]{0,90}[a-z0-9]",
        ]
    }

    proptest! {
        #[test]
        fn no_two_names_meet_and_each_leads_back(
            devices in prop::collection::btree_set(device_name(), 1..40)
        ) {
            let devices: Vec<(Class, &str)> =
                devices.iter().map(|name| (Class::Nic, name.as_str())).collect();
            let names = names(&devices);
            let mut labels = BTreeSet::new();
            for (class, device) in &devices {
                for slot in [None, Some(0), Some(7), Some(u32::MAX)] {
                    let label = names.device_name(*class, &name(device), slot);
                    prop_assert!(is_dns_label(&label), "{label}");
                    prop_assert!(labels.insert(label.clone()), "{label} of {device}");
                    let found = names.find(Class::Nic, &label).unwrap();
                    prop_assert_eq!(found.as_str(), *device);
                }
            }
        }

        #[test]
        fn a_name_does_not_depend_on_the_other_devices(
            device in device_name(), others in prop::collection::btree_set(device_name(), 0..40)
        ) {
            let alone = names(&[(Class::Rdma, &device)]);
            let all: Vec<(Class, &str)> = others.iter().map(|name| (Class::Rdma, name.as_str())).chain([(Class::Rdma, device.as_str())]).collect();
            let (class, device) = (Class::Rdma, name(&device));
            prop_assert_eq!(
                names(&all).device_name(class, &device, Some(3)),
                alone.device_name(class, &device, Some(3))
            );
        }
    }
}
