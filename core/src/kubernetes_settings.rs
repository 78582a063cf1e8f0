//! Section `[kubernetes]`: the resources that a node offers to Kubernetes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::class::Class;
use crate::netdev::address::Network;
use crate::netdev::settings::Mtu;
use onload_sys::error::{Error, Result, bail, bounded_number, error, read_as_text, shown_as_text};
use onload_sys::text::Quoted;

/// The prefix of the resources that the operator did not name.
pub const OWN_PREFIX: &str = "onload.dev";
/// Maximum number of devices and slots that one resource lists. Each takes at most 128 bytes in a
/// message, and kubelet accepts messages of 4 MiB (`defaultClientMaxReceiveMessageSize` of
/// grpc-go).
pub const MAX_IDS: u32 = 32_768;
/// Maximum length of a DNS label in bytes.
pub const MAX_DNS_LABEL: usize = 63;

/// Section `[kubernetes]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct KubernetesSettings {
    /// The interface of Kubernetes that offers devices: "device-plugin", or "dra" (dynamic resource allocation); also by
    /// class, as { vfio = "dra" }, with the device plugin for the others. A class changes when no container of the node
    /// holds a device of it.
    #[cfg_attr(feature = "schema", schemars(extend("default" = "device-plugin")))]
    pub offer: OfferSetting,
    /// The classes that are offered as a resource each, onload.dev/nic and so on: "all", or some of
    /// nic, nic-plain, nic-nodes, zf, rdma, vfio, netdev, ptp, pps, gdrcopy. Every pod can request
    /// a resource; a ResourceQuota restricts that by namespace. Each pool is a resource too, and a
    /// pool's devices are left out of the resource of their class if only one container at a time
    /// may hold them.
    #[cfg_attr(feature = "schema", schemars(extend("default" = ["all"])))]
    pub classes: ResourceClasses,
    /// How many containers may hold one device at once, if neither \[leases] nor a pool sets a
    /// number.
    pub slots: SlotCount,
    /// Resources with names of your own, for a class or for the devices of a pool: {
    /// "amd.com/onload" = { class = "nic", slots = 10 } } or { "example.com/roce" = { pool =
    /// "roce", slots = 500 } }.
    pub resources: BTreeMap<ResourceName, ResourceSettings>,
    /// The networks from which a claim may set the address of an interface that moves into its pod,
    /// for example \["192.0.2.0/24"]. A DeviceClass may set any address.
    pub addresses: Vec<Network>,
    /// The networks to which a claim may set routes of such an interface. A DeviceClass may set any
    /// route.
    pub routes: Vec<Network>,
    /// The largest MTU that a claim may set for such an interface, from 68 to 65535. A DeviceClass
    /// may set any.
    pub mtu: Mtu,
    /// The address and port, or "unix:/PATH", that serves /metrics, /healthz and /readyz. An empty
    /// string disables them.
    pub listen: ListenAddress,
}

/// An interface of Kubernetes for devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum OfferMethod {
    #[default]
    DevicePlugin,
    Dra,
}

impl TryFrom<String> for OfferMethod {
    type Error = Error;

    fn try_from(word: String) -> Result<Self> {
        match word.as_str() {
            "device-plugin" => Ok(OfferMethod::DevicePlugin),
            "dra" => Ok(OfferMethod::Dra),
            _ => bail!("expected \"device-plugin\" or \"dra\", found {}", Quoted(&word)),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferSetting {
    default_method: OfferMethod,
    by_class: BTreeMap<Class, OfferMethod>,
}

impl OfferSetting {
    pub fn method(&self, class: Class) -> OfferMethod {
        self.by_class.get(&class).copied().unwrap_or(self.default_method)
    }
}

impl<'de> Deserialize<'de> for OfferSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfferVisitor;
        impl<'de> Visitor<'de> for OfferVisitor {
            type Value = OfferSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"device-plugin\", \"dra\", or a table of these by class")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<OfferSetting, E> {
                let word = serde::de::value::StrDeserializer::new(word);
                Ok(OfferSetting {
                    default_method: OfferMethod::deserialize(word)?,
                    by_class: BTreeMap::new(),
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OfferSetting, A::Error> {
                let by_class = BTreeMap::deserialize(MapAccessDeserializer::new(map))?;
                Ok(OfferSetting { by_class, ..OfferSetting::default() })
            }
        }
        deserializer.deserialize_any(OfferVisitor)
    }
}

/// The classes that are offered as a resource each: `all`, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(serde::Serialize))]
#[serde(try_from = "Vec<String>")]
pub struct ResourceClasses(Vec<Class>);

/// The classes whose devices can be a resource.
static COUNTABLE: LazyLock<Vec<Class>> =
    LazyLock::new(|| Class::ALL.into_iter().filter(|class| !class.is_uncountable()).collect());

impl ResourceClasses {
    pub fn as_slice(&self) -> &[Class] {
        &self.0
    }
}

impl Default for ResourceClasses {
    fn default() -> Self {
        ResourceClasses(COUNTABLE.clone())
    }
}

fn check_countable(class: Class) -> Result<Class> {
    match class {
        Class::Hugepages => bail!(
            "hugepages is not a resource of onload-ctk; kubelet offers hugepages-2Mi and \
             hugepages-1Gi"
        ),
        Class::Profile => bail!(
            "profile is not a resource, because it has no device; set the EF_ variables of a \
             profile in the pod"
        ),
        Class::Bundle => bail!(
            "bundle is not a resource, because it has devices of several classes; list their \
             classes"
        ),
        class => Ok(class),
    }
}

impl TryFrom<Vec<String>> for ResourceClasses {
    type Error = Error;

    fn try_from(words: Vec<String>) -> Result<Self> {
        Class::parse_list(&words, &COUNTABLE, check_countable).map(ResourceClasses)
    }
}

/// The number of containers that may hold one device, from 1 to [`MAX_IDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(feature = "schema", derive(serde::Serialize))]
#[serde(try_from = "i64")]
pub struct SlotCount(u32);

bounded_number!(SlotCount, 1..=MAX_IDS, "slots");

impl Default for SlotCount {
    fn default() -> Self {
        SlotCount(10)
    }
}

/// The name of an extended resource, such as `onload.dev/nic` (`IsExtendedResourceName`,
/// pkg/apis/core/v1/helper of Kubernetes).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct ResourceName(String);

impl ResourceName {
    /// Returns the resource `onload.dev/WORD`.
    pub fn onload_dev(word: &str) -> Result<ResourceName> {
        format!("{OWN_PREFIX}/{word}").parse()
    }
}

impl FromStr for ResourceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if let Some(problem) = find_problem(name) {
            bail!("{} is not an extended resource name: {problem}", Quoted(name));
        }
        Ok(ResourceName(name.to_owned()))
    }
}

read_as_text!(ResourceName ListenAddress);
shown_as_text!(ResourceName);

/// Returns whether a text is a DNS label (RFC 1123).
pub fn is_dns_label(text: &str) -> bool {
    is_label_of(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Returns whether a text has the length and the ends of a DNS label, and only these bytes.
fn is_label_of(text: &str, is_legal: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= MAX_DNS_LABEL
        && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| is_legal(*byte))
}

fn find_problem(name: &str) -> Option<&'static str> {
    // A ResourceQuota adds this prefix, and the result has to be a valid name too.
    const QUOTA: &str = "requests.";
    const MAX_PREFIX: usize = 253 - QUOTA.len();
    let Some((prefix, rest)) = name.split_once('/') else {
        return Some("it has the form DOMAIN/NAME");
    };
    if prefix.len() > MAX_PREFIX || !prefix.split('.').all(is_dns_label) {
        return Some("the part before the slash is not a lower-case domain name");
    }
    if !is_label_of(rest, |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Some(
            "the part after the slash has at most 63 letters, digits, \"-\", \"_\" and \".\", a letter or digit first and last",
        );
    }
    if prefix.ends_with("kubernetes.io") {
        return Some("kubernetes.io is reserved for Kubernetes");
    }
    if prefix.starts_with(QUOTA) {
        return Some("names that begin with \"requests.\" are quotas");
    }
    None
}

/// A resource that the operator named.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub struct ResourceSettings {
    /// The class whose devices the resource has.
    pub class: Option<Class>,
    /// The pool whose devices the resource has.
    pub pool: Option<String>,
    /// How many containers may hold one of its devices. Default: as for other resources.
    pub slots: Option<SlotCount>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceSource<'a> {
    Class(Class),
    Pool(&'a str),
}

impl ResourceSettings {
    /// Returns where the devices come from. Returns `None` if the configuration was not checked.
    pub fn source(&self) -> Option<ResourceSource<'_>> {
        match (self.class, &self.pool) {
            (Some(class), None) => Some(ResourceSource::Class(class)),
            (None, Some(pool)) => Some(ResourceSource::Pool(pool)),
            _ => None,
        }
    }
}

/// The address that serves metrics and health.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ListenAddress {
    Nowhere,
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Default for ListenAddress {
    fn default() -> Self {
        ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 9478)))
    }
}

impl FromStr for ListenAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Ok(ListenAddress::Nowhere);
        }
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Ok(ListenAddress::Unix(PathBuf::from(path)));
        }
        match text.parse() {
            Ok(address) => Ok(ListenAddress::Tcp(address)),
            Err(_) => bail!(
                "expected ADDRESS:PORT as \"127.0.0.1:9478\", unix:/PATH, or nothing for none, found {text}"
            ),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Nowhere => Ok(()),
            ListenAddress::Tcp(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl KubernetesSettings {
    /// Checks the resources that the operator named.
    ///
    /// `pool` returns the class of a pool and how many containers may hold one of its devices.
    /// `share` returns that number for a class.
    pub(crate) fn check(
        &self,
        pool: impl Fn(&str) -> Option<(Class, Option<u32>)>,
        share: impl Fn(Class) -> Option<u32>,
    ) -> Result<()> {
        for (name, resource) in &self.resources {
            let key = format!("kubernetes.resources.\"{name}\"");
            let (class, device_share) = match resource.source() {
                None => bail!("{key} needs a class or a pool, not both"),
                Some(ResourceSource::Class(class)) => (class, share(class)),
                Some(ResourceSource::Pool(name)) => match pool(name) {
                    None => bail!("{key}: section [pools.{name}] does not exist"),
                    Some((class, pool_share)) => (class, pool_share.or_else(|| share(class))),
                },
            };
            check_countable(class).map_err(|error| error!("{key}: {error}"))?;
            if resource.slots.is_some() && device_share == Some(1) {
                bail!(
                    "{key}: slots is for shared devices, but a {class} device is exclusive; remove \
                     slots, or set a number in [leases] share or the pool's share"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Result<ResourceName> {
        text.to_owned().try_into()
    }

    #[test]
    fn names_of_other_device_plugins_are_valid() {
        for text in [
            "onload.dev/nic",
            "amd.com/onload",
            "rdma/hca_shared_devices",
            "intel.com/intel_sriov_netdevice",
            "openshift.io/Mixed.Case-1",
            "a.b-c.d/x",
        ] {
            assert_eq!(name(text).unwrap().as_str(), text);
        }
        let longest = format!("{}/{}", ["a"; 122].join("."), "b".repeat(63));
        assert!(name(&longest).is_ok());
    }

    #[test]
    fn names_that_kubelet_rejects_are_invalid() {
        let too_long = format!("{}/x", ["a"; 123].join("."));
        let label = format!("{}.io/x", "a".repeat(64));
        let rest = format!("a.io/{}", "x".repeat(64));
        for (text, why) in [
            ("nic", "DOMAIN/NAME"),
            ("Onload.dev/nic", "lower-case domain name"),
            ("onload..dev/nic", "domain name"),
            ("-a.io/nic", "domain name"),
            ("a_b.io/nic", "domain name"),
            ("/nic", "domain name"),
            (too_long.as_str(), "domain name"),
            (label.as_str(), "domain name"),
            ("onload.dev/", "the part after the slash"),
            ("onload.dev/a/b", "the part after the slash"),
            ("onload.dev/_a", "the part after the slash"),
            ("onload.dev/a-", "the part after the slash"),
            ("onload.dev/a:b", "the part after the slash"),
            (rest.as_str(), "the part after the slash"),
            ("kubernetes.io/nic", "reserved for Kubernetes"),
            ("x.kubernetes.io/nic", "reserved for Kubernetes"),
            ("requests.onload.dev/nic", "quota"),
        ] {
            let error = name(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_listen_address_survives_a_round_trip() {
        for text in ["127.0.0.1:9478", "[::]:80", "unix:/run/x.sock", ""] {
            let listen: ListenAddress = text.parse().unwrap();
            assert_eq!(listen.to_string(), text);
        }
        for text in ["9478", "localhost:9478", "unix:x", "/run/x.sock", "1.2.3.4"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn all_means_every_countable_class() {
        let classes = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            ResourceClasses::try_from(words)
        };
        assert_eq!(classes(&["all", "nic"]), Ok(ResourceClasses::default()));
        assert_eq!(
            classes(&["vfio", "nic", "vfio"]).unwrap().as_slice(),
            [Class::Nic, Class::Vfio]
        );
        assert!(classes(&[]).unwrap().as_slice().is_empty());
        for (word, why) in
            [("hugepages", "kubelet offers"), ("profile", "no device"), ("gpu", "unknown class")]
        {
            let error = classes(&[word]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
