//! Names of pools and devices at the API server.
//!
//! An allocation stores driver, pool and device names, so a name must not change while its device exists, even if other
//! devices come and go: it is derived only from the device's own name. Names must be DNS labels (`validateDeviceName`
//! in pkg/apis/resource/validation of Kubernetes), which `mlx5_0` and `0000:81:00.0` are not.

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

/// Returns the name of an offer, or of one slot of it. It is a DNS label.
pub fn device_label(name: &DeviceName, slot: Option<u32>) -> String {
    let base = base_label(name.as_str());
    match slot {
        None => base,
        Some(slot) => format!("{base}{SLOT}{slot}"),
    }
}

/// Finds the device with this label, or with a slot that has it, in a pool of these offers.
pub fn find_device<'o>(
    devices: &'o [HostDevice],
    node: &NodeName,
    pool: &str,
    label: &str,
) -> Option<&'o HostDevice> {
    let class = node.parse_pool(pool)?;
    let find = |label: &str| {
        let mut devices = devices.iter().filter(|device| device.class == class);
        devices.find(|device| is_allocatable(device) && has_label(device.name.as_str(), label))
    };
    find(label).or_else(|| find(split_slot(label)?.0))
}

/// Returns whether a device has this label. Only few names need [`base_label`], which is slow for thousands of devices.
fn has_label(name: &str, label: &str) -> bool {
    let is_like = name.bytes().map(replace_separator).eq(label.bytes());
    (is_like || is_hashed(label)) && base_label(name) == label
}

fn replace_separator(byte: u8) -> u8 {
    if matches!(byte, b'_' | b':' | b'.') { b'-' } else { byte }
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
        hash_name(name)
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'
}

/// Returns whether a label could be that of a PCI address, or have a hash or a slot.
fn is_ambiguous(label: &str) -> bool {
    let parts: Vec<&str> = label.split('-').collect();
    let is_pci = parts.len() == 4 && parts.into_iter().all(is_hex);
    is_hashed(label) || is_pci || split_slot(label).is_some()
}

fn is_hashed(label: &str) -> bool {
    let end = label.rsplit_once('-').map(|(_, end)| end);
    end.is_some_and(|end| end.len() % DIGITS == 0 && is_hex(end))
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hash_name(name: &str) -> String {
    let mut label = String::new();
    for char in name.chars() {
        match char.to_ascii_lowercase() {
            char if char.is_ascii_alphanumeric() => label.push(char),
            _ if label.is_empty() || label.ends_with('-') => {}
            _ => label.push('-'),
        }
    }
    label.truncate(MAX_BASE - DIGITS - 1);
    let label = label.trim_end_matches('-');
    format!("{label}-{}", hash(name, DIGITS))
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

    fn devices(class: Class, names: &[&str]) -> Vec<HostDevice> {
        names.iter().map(|name| HostDevice::new(class, name).unwrap()).collect()
    }

    #[test]
    fn usual_names_keep_their_look() {
        for (device, label) in [
            ("ens1f0np0", "ens1f0np0"),
            ("mlx5_0", "mlx5-0"),
            ("mlx5_bond_0", "mlx5-bond-0"),
            ("0000:81:10.7", "0000-81-10-7"),
            ("10000:81:10.7", "10000-81-10-7"),
        ] {
            assert_eq!(device_label(&name(device), None), label);
        }
        assert_eq!(device_label(&name("ens1"), Some(9)), "ens1-slot-9");
        assert_eq!(node("n1").pool_name(Class::NicPlain), "n1/nic-plain");
    }

    #[test]
    fn names_that_would_meet_have_a_hash() {
        assert_eq!(device_label(&name("mlx5-0"), None), "mlx5-0-a5648384");
        let devices = devices(Class::Rdma, &["mlx5_0", "mlx5-0"]);
        for (label, device) in [("mlx5-0", "mlx5_0"), ("mlx5-0-a5648384", "mlx5-0")] {
            let found = find_device(&devices, &node("n1"), "n1/rdma", label).unwrap();
            assert_eq!(found.name.as_str(), device);
        }
    }

    #[test]
    fn what_the_node_does_not_offer_is_not_found() {
        let devices = [(Class::Nic, "ens1"), (Class::Hugepages, "2Mi")]
            .map(|(class, name)| HostDevice::new(class, name).unwrap());
        let node = node("n1");
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
            let found = find_device(&devices, &node, pool, device);
            assert!(found.is_none(), "{pool} {device}");
        }
        let found = find_device(&devices, &node, "n1/nic", "ens1-slot-4294967295");
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
            let names: Vec<&str> = devices.iter().map(String::as_str).collect();
            let devices = self::devices(Class::Nic, &names);
            let mut labels = BTreeSet::new();
            for device in &devices {
                for slot in [None, Some(0), Some(7), Some(u32::MAX)] {
                    let label = device_label(&device.name, slot);
                    prop_assert!(is_dns_label(&label), "{label}");
                    prop_assert!(labels.insert(label.clone()), "{label} of {}", device.name);
                    let found = find_device(&devices, &node("n1"), "n1/nic", &label).unwrap();
                    prop_assert_eq!(&found.name, &device.name);
                }
            }
        }
    }
}
