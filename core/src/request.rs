//! The request of a container, in annotations `onload.dev/…` of its configuration or in an
//! environment variable.
//!
//! The author of a request has no rights on this host. Therefore the length of a request is limited,
//! its values are parsed, and its names are only looked up, never used as a path on the host.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use onload_cdi::oci::HugepageLimit;

use crate::bundle::Bundle;
use crate::class::{self, Class};
use crate::config::Preload;
use crate::device_ref::parse_numbered;
pub use crate::device_ref::{DeviceRef, MAX_NAMES};
use crate::host_settings::{PageSize, Vlan};
use crate::netdev::address::InterfaceAddress;
use crate::pod;
use crate::pool::Numa;
use onload_sys::error::{Context as _, Error, Result, bail, error};
use onload_sys::text::{Quoted, ShortList, parse_decimal, parse_kib};

/// The words after [`PREFIX`] that are settings, not classes of devices.
const SETTINGS: [&str; 7] =
    ["preload", "ipc-lock", "hugepages-limit", "numa", "near", "address", "vlan"];
/// The prefix of every onload.dev annotation.
pub const PREFIX: &str = "onload.dev/";
/// The prefix without its slash. An annotation with this key is rejected, since it names no class.
pub const DOMAIN: &str = class::VENDOR;
/// The environment variable that holds a request or names a ticket. A variable with this name
/// followed by `_` and more characters names a further ticket.
pub const VARIABLE: &str = "ONLOAD_CTK_REQUEST";

/// Maximum number of onload.dev annotations of one container, including those for other containers
/// of its pod.
pub(crate) const MAX_KEYS: usize = 64;
/// Maximum length of one value in bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 4096;

/// Maximum number of characters of an unknown word in a message. Every class and setting is shorter.
const MAX_WORD: usize = 32;

/// Settings that only annotations may request, each with the advice for a variable or ticket that
/// requests it.
const ANNOTATION_ONLY: [(&str, &str); 4] = [
    (
        "ipc-lock",
        "give the container the capability IPC_LOCK with its engine (`cap_add` in a compose file)",
    ),
    ("hugepages-limit", "only the annotation onload.dev/hugepages-limit sets these limits"),
    ("address", "only the annotation onload.dev/address sets addresses"),
    ("vlan", "only the annotation onload.dev/vlan chooses the VLAN of a virtual function"),
];

/// The annotations that hold a container's name in its pod: the one of containerd, then the one of
/// CRI-O and cri-dockerd.
const NAME_KEYS: [&str; 2] = [pod::CONTAINERD.container, pod::CRIO.container];
/// The annotations that mark a container that only holds a pod's namespaces (a sandbox): the one of
/// containerd, then the one of CRI-O.
const SANDBOX_KEYS: [&str; 2] =
    ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"];

/// The annotations of a container, by key.
pub trait AnnotationSource {
    /// Returns the first `max` annotations whose keys start with `prefix`. Does not copy the others,
    /// since there may be millions.
    fn with_prefix(&self, prefix: &str, max: usize) -> Vec<OnloadAnnotation>;
    /// Returns the value of a key if it exists and is a string.
    fn value(&self, key: &str) -> Option<String>;
    /// Returns whether a key exists, even if its value is not a string.
    fn has_key(&self, key: &str) -> bool;
}

impl AnnotationSource for BTreeMap<String, String> {
    fn with_prefix(&self, prefix: &str, max: usize) -> Vec<OnloadAnnotation> {
        self.iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .take(max)
            .map(|(key, value)| (key.clone(), Some(value.clone())))
            .collect()
    }

    fn value(&self, key: &str) -> Option<String> {
        self.get(key).cloned()
    }

    fn has_key(&self, key: &str) -> bool {
        self.contains_key(key)
    }
}

impl AnnotationSource for onload_cdi::oci::OciConfig {
    fn with_prefix(&self, prefix: &str, max: usize) -> Vec<OnloadAnnotation> {
        self.annotations_with_prefix(prefix)
            .take(max)
            .map(|(key, value)| (key.into_owned(), value.map(Cow::into_owned)))
            .collect()
    }

    fn value(&self, key: &str) -> Option<String> {
        self.annotation(key).ok().flatten()
    }

    fn has_key(&self, key: &str) -> bool {
        !matches!(self.annotation(key), Ok(None))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The devices by class, each name once and in the order of the request.
    pub devices: BTreeMap<Class, RequestEntry<Vec<DeviceRef>>>,
    /// How libonload.so is loaded into the container's processes.
    pub preload: Option<RequestEntry<Preload>>,
    pub ipc_lock: Option<RequestEntry<()>>,
    pub hugepages_limit: Option<RequestEntry<Vec<HugepageLimit>>>,
    /// The NUMA node of members that are chosen from pools.
    pub numa: Option<RequestEntry<Numa>>,
    /// Set if the container requests the pool members that are nearest to its GPUs.
    pub near: Option<RequestEntry<()>>,
    /// The addresses of interfaces of class netdev. No address occurs twice.
    pub addresses: Option<RequestEntry<Vec<DeviceValue<InterfaceAddress>>>>,
    /// The VLANs of virtual functions of classes netdev and vfio, at most one for each function.
    pub vlans: Option<RequestEntry<Vec<DeviceValue<Vlan>>>>,
    /// The bundles whose devices are included in `devices` ([`Request::expand_bundles`]).
    pub bundles: Option<RequestEntry<Vec<ExpandedBundle>>>,
}

/// A requested bundle whose devices were added to the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandedBundle {
    pub name: String,
    pub bundle: Bundle,
}

/// A setting for one device, as in an annotation: `WORD=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceValue<T> {
    /// The requested device or pool.
    pub name: String,
    /// Which member of the pool, counted from 1.
    pub member: u32,
    pub value: T,
}

impl<T> DeviceValue<T> {
    /// Returns the name of the device as written in the annotation.
    fn target_name(&self) -> String {
        match self.member {
            1 => self.name.clone(),
            member => format!("{}#{member}", self.name),
        }
    }

    fn applies_to(&self, device_ref: &DeviceRef) -> bool {
        device_ref.name == self.name && self.member <= device_ref.count.unwrap_or(1)
    }
}

impl<T: fmt::Display> fmt::Display for DeviceValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.target_name(), self.value)
    }
}

/// The place where a request was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Annotation(String),
    /// The engine's `--device`, which the hook handles.
    Device(String),
    /// A word in the text of [`VARIABLE`].
    Variable(String),
    /// A word in the text of a ticket that [`VARIABLE`] names.
    Ticket(String),
    /// A bundle, with the origin of its request.
    Bundle(Box<Origin>),
}

impl Origin {
    /// Returns the annotation's key, the device, or the word in a variable or ticket.
    pub fn key(&self) -> &str {
        self.message_parts().1
    }

    /// Returns where the user wrote the request. For devices of a bundle this is where the bundle
    /// was requested.
    pub fn outermost(&self) -> &Origin {
        match self {
            Origin::Bundle(origin) => origin.outermost(),
            origin => origin,
        }
    }

    fn entry<T>(&self, value: T) -> RequestEntry<T> {
        RequestEntry { origin: self.clone(), value }
    }

    /// Returns the text before the key, the key, and the text after it, for messages.
    fn message_parts(&self) -> (&'static str, &str, &'static str) {
        match self {
            Origin::Annotation(key) => ("annotation ", key, ""),
            Origin::Device(key) => ("device ", key, ""),
            Origin::Variable(key) => ("", key, " of ONLOAD_CTK_REQUEST"),
            Origin::Ticket(key) => ("", key, " of the ticket in ONLOAD_CTK_REQUEST"),
            Origin::Bundle(origin) => origin.message_parts(),
        }
    }
}

impl fmt::Display for Origin {
    /// Formats the origin for messages. Text written by users is quoted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, key, suffix) = self.message_parts();
        write!(f, "{prefix}{}{suffix}", Quoted(key))
    }
}

/// Several origins for a message. Origins of the same kind share the words around their keys.
pub struct Origins<'a>(pub &'a [&'a Origin]);

impl fmt::Display for Origins<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let affixes = |origin: &Origin| {
            let (prefix, _, suffix) = origin.message_parts();
            (prefix, suffix)
        };
        let mut groups = Vec::new();
        for group in self.0.chunk_by(|origin, next| affixes(origin) == affixes(next)) {
            let keys: Vec<String> =
                group.iter().map(|origin| Quoted(origin.key()).to_string()).collect();
            let (prefix, suffix) = group.first().map_or(("", ""), |origin| affixes(origin));
            groups.push(format!("{prefix}{}{suffix}", keys.join(", ")));
        }
        f.write_str(&groups.join(", "))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestEntry<T> {
    /// The place where the value was requested.
    pub origin: Origin,
    pub value: T,
}

impl Request {
    /// Parses a container's annotations. Returns `None` if they request nothing, or if the
    /// container only holds the namespaces of a pod.
    pub fn parse(annotations: &dyn AnnotationSource) -> Result<Option<Request>> {
        if is_sandbox(annotations) {
            return Ok(None);
        }
        if annotations.has_key(DOMAIN) {
            return Err(no_class_error(&Origin::Annotation(DOMAIN.to_owned())));
        }
        let onload_annotations = annotations.with_prefix(PREFIX, MAX_KEYS + 1);
        if onload_annotations.len() > MAX_KEYS {
            bail!("more than {MAX_KEYS} annotations of onload.dev");
        }
        let mut request = Request::default();
        for (word, (key, value)) in select_for_container(&onload_annotations, annotations)? {
            let origin = Origin::Annotation(key.clone());
            let Some(value) = value else {
                bail!("{origin} has a value that is not a string");
            };
            request.add(word, &origin, value)?;
        }
        request.count_names()?;
        // If there are bundles, `expand_bundles` makes this check, when their devices are known.
        if !request.requests_any(&[Class::Bundle]) {
            request.check_device_values()?;
        }
        Ok((request != Request::default()).then_some(request))
    }

    /// Parses the text of [`VARIABLE`] or of a ticket: `WORD=VALUE` with the words that follow
    /// [`PREFIX`] in annotations, separated by `;`. Rejects capabilities and limits, which engines
    /// can set themselves, and other settings that only annotations may request.
    pub fn parse_text(text: &str, origin: fn(String) -> Origin) -> Result<Request> {
        if text.len() > MAX_VALUE_BYTES {
            bail!("{VARIABLE} has more than {MAX_VALUE_BYTES} bytes");
        }
        let mut request = Request::default();
        let mut words: Vec<&str> = Vec::new();
        for part in text.split(';') {
            let (word, value) = match part.split_once('=') {
                Some((word, value)) => (word.trim_matches(' '), Some(value)),
                None => (part.trim_matches(' '), None),
            };
            let origin = origin(word.to_owned());
            let Some(value) = value.filter(|_| !word.is_empty()) else {
                bail!(
                    "{origin} is not CLASS=NAME; expected several separated by ';', such as \
                     nic=all;rdma=mlx5_0"
                );
            };
            if words.contains(&word) {
                bail!(
                    "{origin} appears twice; write the names of a class as one list, separated by \
                     ','"
                );
            }
            words.push(word);
            if let Some((_, remedy)) = ANNOTATION_ONLY.iter().find(|(only, _)| *only == word) {
                bail!("{origin} cannot be requested there; {remedy}");
            }
            request.add(word, &origin, value)?;
        }
        request.count_names()?;
        Ok(request)
    }

    fn add(&mut self, word: &str, origin: &Origin, value: &str) -> Result<()> {
        if value.len() > MAX_VALUE_BYTES {
            bail!("{origin} has more than {MAX_VALUE_BYTES} bytes");
        }
        let value_error = |expected| error!("{origin} is {}; expected {expected}", Quoted(value));
        match word {
            "" => return Err(no_class_error(origin)),
            "preload" => {
                let value = match value.trim_matches(' ') {
                    "env" => Preload::Env,
                    "file" => Preload::File,
                    "off" => Preload::Off,
                    _ => return Err(value_error("env, file or off")),
                };
                self.preload = Some(origin.entry(value));
            }
            "ipc-lock" => match value.trim_matches(' ') {
                "true" => self.ipc_lock = Some(origin.entry(())),
                "false" => {}
                _ => return Err(value_error("true or false")),
            },
            "hugepages-limit" => {
                let value = parse_hugepage_limits(value).ok_or_else(|| {
                    value_error("SIZE=LIMIT, such as 2Mi=128Mi, several separated by ','")
                })?;
                self.hugepages_limit = Some(origin.entry(value));
            }
            "numa" => {
                let numa = match value.trim_matches(' ') {
                    "same" => Numa::Same,
                    node => Numa::Node(
                        parse_decimal(node)
                            .ok_or_else(|| value_error("same, or the number of a NUMA node"))?,
                    ),
                };
                self.numa = Some(origin.entry(numa));
            }
            "near" => match value.trim_matches(' ') {
                "gpu" => self.near = Some(origin.entry(())),
                _ => return Err(value_error("gpu")),
            },
            "address" => self.addresses = Some(origin.entry(parse_addresses(origin, value)?)),
            "vlan" => self.vlans = Some(origin.entry(parse_vlans(origin, value)?)),
            word => {
                // Shortened for the message. A longer word is not a class.
                let short_word: String = word.chars().take(MAX_WORD).collect();
                let class: Class = match short_word.parse() {
                    Ok(class) => class,
                    Err(unknown) => match class::nearest_word(word, SETTINGS) {
                        Some((_, setting)) => {
                            bail!("{origin}: unknown setting {word:?}; did you mean {setting}?")
                        }
                        None => bail!("{origin}: {unknown}; settings are {}", SETTINGS.join(", ")),
                    },
                };
                self.devices.insert(class, origin.entry(parse_names(origin, value)?));
            }
        }
        Ok(())
    }

    /// Adds the request of another ticket of the same container. If both request a class, combines
    /// their devices.
    pub fn add_ticket(&mut self, other: Request) -> Result<()> {
        for (class, entry) in &other.devices {
            if let Some(known) = self.devices.get_mut(class) {
                merge(&mut known.value, &entry.value, &entry.origin)?;
            }
        }
        self.add_missing(other)
    }

    /// Replaces the requested bundles with their devices, so that the policy can check every class
    /// that the container receives. Bundles come only from the operator's configuration.
    pub fn expand_bundles(&mut self, bundles: &BTreeMap<String, Option<Bundle>>) -> Result<()> {
        let Some(RequestEntry { origin, value }) = self.devices.remove(&Class::Bundle) else {
            return Ok(());
        };
        let mut expanded = Vec::new();
        for device_ref in value {
            let bundle = find_bundle(&device_ref, bundles, &origin)?;
            self.add_devices(&bundle.devices, &origin)?;
            expanded.push(ExpandedBundle { name: device_ref.name, bundle: bundle.clone() });
        }
        self.bundles = Some(origin.entry(expanded));
        self.count_names()?;
        self.check_device_values()
    }

    /// Adds the devices of a bundle. Classes that were also requested explicitly keep their origin,
    /// which the policy checks.
    fn add_devices(
        &mut self,
        devices: &BTreeMap<Class, Vec<DeviceRef>>,
        origin: &Origin,
    ) -> Result<()> {
        for (class, device_refs) in devices {
            let entry = self
                .devices
                .entry(*class)
                .or_insert_with(|| Origin::Bundle(Box::new(origin.clone())).entry(Vec::new()));
            merge(&mut entry.value, device_refs, origin)?;
        }
        Ok(())
    }

    fn count_names(&self) -> Result<()> {
        let mut total = 0;
        for entry in self.devices.values() {
            // No overflow: each count is at most MAX_NAMES, and a value has at most MAX_VALUE_BYTES.
            total +=
                entry.value.iter().map(|device_ref| device_ref.count.unwrap_or(1)).sum::<u32>();
            if total > MAX_NAMES {
                return Err(too_many_names_error(&entry.origin));
            }
        }
        Ok(())
    }

    /// Checks that each address and each VLAN is for a requested device.
    fn check_device_values(&self) -> Result<()> {
        if let Some(entry) = &self.addresses {
            self.check_targets(entry, "an address", &[Class::Netdev])?;
        }
        if let Some(entry) = &self.vlans {
            self.check_targets(entry, "a VLAN", &Class::FUNCTION_CLASSES)?;
        }
        Ok(())
    }

    /// Checks that exactly one of the classes requests the device of each value.
    fn check_targets<T>(
        &self,
        entry: &RequestEntry<Vec<DeviceValue<T>>>,
        description: &str,
        classes: &[Class],
    ) -> Result<()> {
        let origin = &entry.origin;
        let keys: Vec<String> = classes.iter().map(|class| format!("{PREFIX}{class}")).collect();
        for value in &entry.value {
            let requests = classes
                .iter()
                .filter_map(|class| self.devices.get(class))
                .filter(|devices| devices.value.iter().any(|device| value.applies_to(device)))
                .count();
            let name = value.target_name();
            match requests {
                1 => {}
                0 => bail!(
                    "{origin} has {description} for {}, which {} does not request; use the name of the device or pool as requested there, followed by #N for a pool's Nth device",
                    Quoted(&name),
                    keys.join(" or ")
                ),
                _ => bail!(
                    "{origin} has {description} for {}, which {} both request; request one of them \
                     by the name of another pool",
                    Quoted(&name),
                    keys.join(" and ")
                ),
            }
        }
        Ok(())
    }

    /// Adds the request of another origin. Classes and settings that this request already has are
    /// unchanged.
    pub fn add_missing(&mut self, other: Request) -> Result<()> {
        for (class, entry) in other.devices {
            self.devices.entry(class).or_insert(entry);
        }
        self.preload = self.preload.take().or(other.preload);
        self.ipc_lock = self.ipc_lock.take().or(other.ipc_lock);
        self.hugepages_limit = self.hugepages_limit.take().or(other.hugepages_limit);
        self.numa = self.numa.take().or(other.numa);
        self.near = self.near.take().or(other.near);
        self.addresses = self.addresses.take().or(other.addresses);
        self.vlans = self.vlans.take().or(other.vlans);
        self.bundles = self.bundles.take().or(other.bundles);
        self.count_names()
    }

    pub fn requests_any(&self, classes: &[Class]) -> bool {
        classes.iter().any(|class| self.devices.contains_key(class))
    }
}

fn find_bundle<'b>(
    device_ref: &DeviceRef,
    bundles: &'b BTreeMap<String, Option<Bundle>>,
    origin: &Origin,
) -> Result<&'b Bundle> {
    let name = &device_ref.name;
    match (bundles.get(name), device_ref.count) {
        (None, _) => {
            if bundles.is_empty() {
                bail!("{origin}: bundle {name} not found; no bundles are configured");
            }
            let names: Vec<String> = bundles.keys().cloned().collect();
            bail!("{origin}: bundle {name} not found; the configuration has {}", ShortList(&names))
        }
        (Some(_), Some(count)) => {
            bail!("{origin}: {name} is a bundle, not a pool; remove \"*{count}\"")
        }
        (Some(None), None) => bail!(
            "{origin}: [bundles.{name}] of the configuration cannot be parsed; \"onload-ctk \
             discover\" says what is wrong with it"
        ),
        (Some(Some(bundle)), None) => Ok(bundle),
    }
}

fn no_class_error(origin: &Origin) -> Error {
    error!("{origin} names no class; write onload.dev/nic or another class of {}", class::list())
}

fn too_many_names_error(origin: &Origin) -> Error {
    error!("{origin}: more than {MAX_NAMES} names are requested")
}

fn two_counts_error(origin: &Origin, name: &str) -> Error {
    error!("{origin} requests pool {} twice, with different numbers of members", Quoted(name))
}

/// Adds devices to those of the same class, each once. Fails if a pool has a different count in both.
fn merge(known: &mut Vec<DeviceRef>, more: &[DeviceRef], origin: &Origin) -> Result<()> {
    for device_ref in more {
        match known.iter().find(|other| other.name == device_ref.name) {
            None => known.push(device_ref.clone()),
            Some(other) if other.count == device_ref.count => {}
            Some(_) => return Err(two_counts_error(origin, &device_ref.name)),
        }
    }
    Ok(())
}

/// Returns whether the container belongs to a pod, according to its engine.
pub fn is_pod_container(annotations: &dyn AnnotationSource) -> bool {
    NAME_KEYS.iter().chain(&SANDBOX_KEYS).any(|key| annotations.has_key(key))
}

/// Returns whether the container only holds the namespaces of a pod.
pub fn is_sandbox(annotations: &dyn AnnotationSource) -> bool {
    SANDBOX_KEYS.iter().any(|key| annotations.value(key).as_deref() == Some("sandbox"))
}

/// An onload.dev annotation: its key, and its value if that is a string.
type OnloadAnnotation = (String, Option<String>);

/// Selects the effective annotation for each onload.dev word: the one with the container's name, or
/// else the one without a name.
fn select_for_container<'a>(
    onload_annotations: &'a [OnloadAnnotation],
    annotations: &dyn AnnotationSource,
) -> Result<BTreeMap<&'a str, &'a OnloadAnnotation>> {
    let name =
        NAME_KEYS.iter().find_map(|key| annotations.value(key)).filter(|name| !name.is_empty());
    let mut selected: BTreeMap<&str, &OnloadAnnotation> = BTreeMap::new();
    for annotation in onload_annotations {
        let key = &annotation.0;
        let rest = key.strip_prefix(PREFIX).unwrap_or_default();
        match (rest.split_once('.'), &name) {
            (None, _) => {
                selected.entry(rest).or_insert(annotation);
            }
            (Some((word, container_name)), Some(name)) if container_name == name => {
                selected.insert(word, annotation);
            }
            (Some(_), Some(_)) => {}
            (Some((_, container_name)), None) => bail!(
                "{} is for one container of a pod, but this container is not named in a pod; \
                 remove {}",
                Origin::Annotation(key.clone()),
                Quoted(&format!(".{container_name}"))
            ),
        }
    }
    Ok(selected)
}

fn parse_names(origin: &Origin, value: &str) -> Result<Vec<DeviceRef>> {
    let mut names: Vec<DeviceRef> = Vec::new();
    for text in value.split(',').map(|text| text.trim_matches(' ')) {
        let quoted = Quoted(text);
        if text.is_empty() {
            bail!("{origin} requests an empty name; expected names separated by ','");
        }
        let Ok(device_ref) = text.parse::<DeviceRef>() else {
            match separator_hint(origin, text) {
                Some(remedy) => bail!("{origin}: {quoted} is a separate request; {remedy}"),
                None => bail!(
                    "{origin}: {quoted} cannot be the name of a device or pool, nor POOL*N with N from 1 to {MAX_NAMES}; separate several by ','"
                ),
            }
        };
        match names.iter().find(|known| known.name == device_ref.name) {
            Some(known) if *known == device_ref => {}
            Some(_) => return Err(two_counts_error(origin, text)),
            None => names.push(device_ref),
        }
    }
    Ok(names)
}

/// Returns how to separate a text that is not a name, but the request of another class. Returns
/// `None` for other texts.
fn separator_hint(origin: &Origin, text: &str) -> Option<&'static str> {
    let (word, _) = text.split_once('=')?;
    Class::from_name(word.trim_end_matches(' '))?;
    Some(match origin {
        Origin::Annotation(_) => "use a separate annotation for it",
        Origin::Variable(_) | Origin::Ticket(_) => "put \";\" before it instead of \",\"",
        Origin::Device(_) | Origin::Bundle(_) => return None,
    })
}

/// Parses a list of `WORD=ADDRESS/PREFIX`.
fn parse_addresses(origin: &Origin, value: &str) -> Result<Vec<DeviceValue<InterfaceAddress>>> {
    let values: Vec<DeviceValue<InterfaceAddress>> =
        parse_device_values(origin, value, "ADDRESS/PREFIX", "onload.dev/netdev")?;
    if let Some(repeated) = find_repeated(&values, |value| value.value.address()) {
        bail!("{origin} has the address {repeated} twice; only one interface can have it");
    }
    Ok(values)
}

/// Parses a list of `WORD=NUMBER`.
fn parse_vlans(origin: &Origin, value: &str) -> Result<Vec<DeviceValue<Vlan>>> {
    let classes = "onload.dev/netdev or onload.dev/vfio";
    let values = parse_device_values(origin, value, "NUMBER", classes)?;
    if let Some(repeated) = find_repeated(&values, DeviceValue::target_name) {
        bail!("{origin} has two VLANs for {}; a virtual function has one", Quoted(&repeated));
    }
    Ok(values)
}

/// Returns the first key that an earlier item has too.
fn find_repeated<T, K: PartialEq>(items: &[T], key: impl Fn(&T) -> K) -> Option<K> {
    for (index, item) in items.iter().enumerate() {
        let item_key = key(item);
        if items[..index].iter().any(|other| key(other) == item_key) {
            return Some(item_key);
        }
    }
    None
}

/// Parses a list of `WORD=VALUE`. In messages, `form` is the form of a value, and `keys` are the
/// annotations that request the devices.
fn parse_device_values<T: FromStr<Err = Error>>(
    origin: &Origin,
    value: &str,
    form: &str,
    keys: &str,
) -> Result<Vec<DeviceValue<T>>> {
    let mut values = Vec::new();
    for text in value.split(',') {
        if values.len() >= MAX_NAMES as usize {
            return Err(too_many_names_error(origin));
        }
        let text = text.trim_matches(' ');
        let Some(((name, member), value)) = text
            .split_once('=')
            .and_then(|(word, value)| Some((parse_numbered(word, '#')?, value)))
        else {
            bail!(
                "{origin}: {} is not WORD={form}, nor WORD#N={form} with N from 1 to {MAX_NAMES}, where WORD is what {keys} asks for",
                Quoted(text)
            );
        };
        values.push(DeviceValue {
            name: name.to_string(),
            member: member.unwrap_or(1),
            value: value.parse().with_context(|| origin.to_string())?,
        });
    }
    Ok(values)
}

fn parse_hugepage_limits(value: &str) -> Option<Vec<HugepageLimit>> {
    let mut limits = BTreeMap::new();
    for entry in value.split(',') {
        let (page, limit) = entry.split_once('=')?;
        let page_bytes = parse_size(page.trim_matches(' '))?;
        let limit_bytes = parse_size(limit.trim_matches(' '))?;
        if page_bytes < 4096
            || !page_bytes.is_power_of_two()
            || !limit_bytes.is_multiple_of(page_bytes)
            || limits.insert(page_bytes, limit_bytes).is_some()
        {
            return None;
        }
    }
    Some(
        limits
            .into_iter()
            .map(|(page_bytes, limit)| HugepageLimit {
                // The hugetlb controller writes `2Mi` as `2MB` (Documentation/admin-guide/cgroup-v1/hugetlb.rst).
                page_size: PageSize::from_kib(page_bytes / 1024).to_string().replace('i', "B"),
                limit,
            })
            .collect(),
    )
}

/// Parses a size with a binary unit into bytes. 0 needs no unit.
fn parse_size(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    parse_kib(text)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::Cpus;

    const NAME: &str = "io.kubernetes.cri.container-name";

    /// Parses `KEY: VALUE | KEY: VALUE`. A key that is only a word gets [`PREFIX`].
    fn annotations(text: &str) -> BTreeMap<String, String> {
        let mut annotations = BTreeMap::new();
        for (key, value) in text.split(" | ").filter_map(|pair| pair.split_once(": ")) {
            let is_whole = key == DOMAIN || key.contains('/') || key.starts_with("io.");
            let prefix = if is_whole { "" } else { PREFIX };
            annotations.insert(format!("{prefix}{key}"), value.to_owned());
        }
        annotations
    }

    fn parse(text: &str) -> Request {
        Request::parse(&annotations(text)).unwrap().unwrap()
    }

    fn parse_variable(text: &str) -> Result<Request, String> {
        Request::parse_text(text, Origin::Variable).map_err(|error| error.to_string())
    }

    fn rejection(text: &str) -> String {
        format!("{:#}", Request::parse(&annotations(text)).unwrap_err())
    }

    #[track_caller]
    fn check_rejected(text: &str, expected: &str) {
        let message = rejection(text);
        assert!(message.contains(expected), "{text:?}: {message}");
    }

    /// Returns the devices of a class, separated by spaces.
    fn names(request: &Request, class: Class) -> String {
        join(&request.devices[&class].value)
    }

    fn join(values: &[impl fmt::Display]) -> String {
        values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    fn origins(request: &Request) -> String {
        let origins: Vec<&Origin> = request.devices.values().map(|entry| &entry.origin).collect();
        Origins(&origins).to_string()
    }

    #[test]
    fn addresses_are_for_requested_interfaces() {
        for (text, expected) in [
            (
                "netdev: ens1f0v3, fast*2 | address: ens1f0v3=192.0.2.10/24, fast=192.0.2.11/24,fast#2=2001:db8::12/64",
                "ens1f0v3=192.0.2.10/24 fast=192.0.2.11/24 fast#2=2001:db8::12/64",
            ),
            (
                "netdev: 0000:3b:02.1 | address: 0000:3b:02.1=192.0.2.10/24,0000:3b:02.1#1=2001:db8::1/64",
                "0000:3b:02.1=192.0.2.10/24 0000:3b:02.1=2001:db8::1/64",
            ),
        ] {
            assert_eq!(join(&parse(text).addresses.unwrap().value), expected);
        }
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for (value, expected) in [
            ("", "\"\" is not WORD=ADDRESS/PREFIX"),
            ("fast", "\"fast\" is not WORD=ADDRESS/PREFIX"),
            ("=192.0.2.1/24", "is not WORD=ADDRESS/PREFIX"),
            ("../a=192.0.2.1/24", "is not WORD=ADDRESS/PREFIX"),
            ("fast#0=192.0.2.1/24", "is not WORD=ADDRESS/PREFIX"),
            ("fast#02=192.0.2.1/24", "is not WORD=ADDRESS/PREFIX"),
            ("fast#129=192.0.2.1/24", "is not WORD=ADDRESS/PREFIX"),
            ("fast#=192.0.2.1/24", "is not WORD=ADDRESS/PREFIX"),
            ("fast=192.0.2.1/24,", "\"\" is not WORD=ADDRESS/PREFIX"),
            ("fast=$(reboot)", "\"$(reboot)\" is not ADDRESS/PREFIX"),
            ("fast=192.0.2.0/24", "the address of its network"),
            ("fast=192.0.2.1/24,fast#2=192.0.2.1/25", "has the address 192.0.2.1 twice"),
            (
                "slow=192.0.2.1/24",
                "an address for \"slow\", which onload.dev/netdev does not request",
            ),
            ("fast#3=192.0.2.1/24", "an address for \"fast#3\", which onload.dev/netdev does"),
        ] {
            let message = rejection(&format!("netdev: fast*2 | address: {value}"));
            assert!(message.starts_with("annotation \"onload.dev/address\""), "{message}");
            assert!(message.contains(expected), "{value:?}: {message}");
        }
        check_rejected("address: fast=192.0.2.1/24", "onload.dev/netdev does not request");
        let addresses: Vec<String> =
            (0..=MAX_NAMES).map(|number| format!("a=192.0.2.{}/24", number + 1)).collect();
        let too_many = format!("netdev: a | address: {}", addresses.join(","));
        check_rejected(&too_many, "more than 128 names");
    }

    #[test]
    fn other_annotations_request_nothing() {
        for text in [
            "",
            "example.com/nic: all",
            "xonload.dev/nic: all",
            "onload.development/nic: all",
            "www.onload.dev/: all",
            "ipc-lock: false",
            ".web: all | io.kubernetes.cri.container-name: redis",
            "onload.dev: all | io.kubernetes.cri.container-type: sandbox",
        ] {
            assert_eq!(Request::parse(&annotations(text)), Ok(None), "{text}");
        }
        for key in ["onload.device", "www.onload.dev"] {
            let annotations = BTreeMap::from([(key.to_owned(), "all".to_owned())]);
            assert_eq!(Request::parse(&annotations), Ok(None), "{key}");
        }
    }

    #[test]
    fn an_annotation_without_a_class_is_rejected() {
        for (text, key) in [
            ("onload.dev: all", "onload.dev"),
            ("onload.dev: ", "onload.dev"),
            ("onload.dev: all | nic: all", "onload.dev"),
            ("onload.dev/: all", "onload.dev/"),
            ("onload.dev/: ", "onload.dev/"),
            ("onload.dev/: all | nic: all", "onload.dev/"),
            (".redis: all | io.kubernetes.cri.container-name: redis", "onload.dev/.redis"),
        ] {
            assert_eq!(
                rejection(text),
                format!(
                    "annotation \"{key}\" names no class; write onload.dev/nic or another class of nic, nic-plain, nic-nodes, zf, profile, rdma, vfio, hugepages, netdev, ptp, pps, gdrcopy, bundle"
                )
            );
        }
    }

    #[test]
    fn names_are_trimmed_and_count_once() {
        let request = parse("rdma:  mlx5_1 ,mlx5_0,mlx5_1 | vfio: fast*2, any,fast*2,slow*120");
        assert_eq!(names(&request, Class::Rdma), "mlx5_1 mlx5_0");
        assert_eq!(names(&request, Class::Vfio), "fast*2 any slow*120");
        assert_eq!(request.devices[&Class::Rdma].origin.key(), "onload.dev/rdma");
    }

    #[test]
    fn settings_are_parsed() {
        let request = parse(
            "preload: file | ipc-lock: true | hugepages-limit: 2Mi=128Mi, 1Gi=2Gi | near:  gpu | numa:  1 ",
        );
        assert_eq!(request.preload.unwrap().value, Preload::File);
        assert!(request.ipc_lock.is_some());
        assert_eq!(request.numa.unwrap().value, Numa::Node(1));
        assert_eq!(request.near.unwrap().origin, Origin::Annotation("onload.dev/near".to_owned()));
        let limits = request.hugepages_limit.unwrap().value;
        let limits: Vec<(&str, u64)> =
            limits.iter().map(|limit| (&*limit.page_size, limit.limit)).collect();
        assert_eq!(limits, [("2MB", 128 << 20), ("1GB", 2 << 30)]);
        assert_eq!(parse("hugepages-limit: 2Mi=0").hugepages_limit.unwrap().value[0].limit, 0);
        let small = parse("hugepages-limit: 64Ki=64Ki").hugepages_limit.unwrap();
        assert_eq!(small.value[0].page_size, "64KB");
        assert_eq!(parse("numa: same").numa.unwrap().value, Numa::Same);
        let near =
            |value, name| parse(&format!("rdma: any | near.train: {value} | {NAME}: {name}")).near;
        assert_eq!(near("gpu", "train").unwrap().origin.key(), "onload.dev/near.train");
        assert_eq!(near("nic", "web"), None);
    }

    #[test]
    fn invalid_values_are_rejected() {
        for (word, values, expected) in [
            ("preload", &["always"][..], "expected env, file or off"),
            ("ipc-lock", &["yes"], "expected true or false"),
            (
                "hugepages-limit",
                &[
                    "",
                    "2Mi",
                    "2Mi=",
                    "2M=4M",
                    "2Mi=3Mi",
                    "3Mi=3Mi",
                    "2Mi=2Mi,2Mi=4Mi",
                    "1Ki=1Ki",
                    "2Mi=99999999999Gi",
                ],
                "expected SIZE=LIMIT",
            ),
            (
                "numa",
                &["", "-1", "01", "any", "0,1", "4294967296"],
                "expected same, or the number of",
            ),
            (
                "near",
                &["", "GPU", "gpus", "gpu0", "gpu,gpu", "nic", "true", "../gpu"],
                "expected gpu",
            ),
            (
                "vfio",
                &["fast*0", "fast*", "*2", "fast*02", "fast*+2", "fast*129", "fast*2*2"],
                "nor POOL*N with N from 1 to 128",
            ),
            ("vfio", &["fast*2,fast"], "requests pool \"fast\" twice"),
            ("nic", &["", " ", ",", "a,", ",a", "a,,b"], "empty name"),
            (
                "nic",
                &[
                    "a\0",
                    "a\nb",
                    "../x",
                    "a=b",
                    "/dev/x",
                    "a b",
                    "-a",
                    "a-",
                    "ä",
                    "a/b",
                    "\u{202e}a",
                ],
                "cannot be the name",
            ),
            ("NIC", &["all"], "unknown class"),
            (
                "gpu",
                &["all"],
                "annotation \"onload.dev/gpu\": unknown class \"gpu\"; known are nic, nic-plain",
            ),
            ("nic.redis", &["all"], "remove \".redis\""),
        ] {
            for value in values {
                let message = rejection(&format!("{word}: {value}"));
                assert!(message.contains(expected), "{word}: {value:?}: {message}");
                assert!(!message.contains(['\n', '\0']), "{message:?}");
            }
        }
    }

    #[test]
    fn messages_are_short_even_for_long_keys_and_names() {
        for text in [
            format!("{}: all", "\u{14}".repeat(1_000_000)),
            format!("nic.{}: all", "\u{10fffe}".repeat(1_000_000)),
            format!("nic: {}", "\u{10fffe}".repeat(1000)),
        ] {
            assert!(rejection(&text).len() < 2048);
        }
    }

    #[test]
    fn a_key_with_the_container_s_name_takes_precedence() {
        let parse_for = |name: &str| {
            parse(&format!(
                "nic: all | nic.redis: ens1 | rdma.other: mlx5_0 | gpu.other: x | preload.a.b: off | {NAME}: {name}"
            ))
        };
        assert_eq!(names(&parse_for("redis"), Class::Nic), "ens1");
        assert_eq!(parse_for("redis").devices.len(), 1);
        assert_eq!(names(&parse_for("web"), Class::Nic), "all");
        assert_eq!(parse_for("a.b").preload.unwrap().value, Preload::Off);
        let crio = parse("nic.web: all | io.kubernetes.container.name: web");
        assert_eq!(names(&crio, Class::Nic), "all");
    }

    #[test]
    fn a_sandbox_requests_nothing_whatever_its_annotations() {
        for key in SANDBOX_KEYS {
            let sandbox = annotations(&format!("{key}: sandbox | gpu:  | nic.x: all"));
            assert!(Request::parse(&sandbox).unwrap().is_none());
            assert_eq!(names(&parse(&format!("{key}: container | nic: all")), Class::Nic), "all");
        }
    }

    #[test]
    fn keys_values_and_names_are_bounded() {
        let parse_many = |count: usize, prefix: &str| {
            let mut annotations: BTreeMap<String, String> =
                (0..count).map(|n| (format!("{prefix}nic.c{n}"), "all".to_owned())).collect();
            annotations.insert(NAME.to_owned(), "c0".to_owned());
            Request::parse(&annotations).map_err(|error| error.to_string())
        };
        assert!(parse_many(MAX_KEYS, PREFIX).unwrap().is_some());
        for count in [MAX_KEYS + 1, 10_000] {
            let message = parse_many(count, PREFIX).unwrap_err();
            assert_eq!(message, "more than 64 annotations of onload.dev");
        }
        assert!(parse_many(10_000, "example.com/").unwrap().is_none());
        let long = "x".repeat(MAX_VALUE_BYTES + 1);
        check_rejected(&format!("nic: {long}"), "more than 4096 bytes");
        let list = |count: u32| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>().join(",");
        let longest = parse(&format!("nic: {}", list(MAX_NAMES)));
        assert_eq!(longest.devices[&Class::Nic].value.len(), 128);
        for text in [
            format!("nic: {}", list(MAX_NAMES + 1)),
            format!("nic: {} | rdma: {}", list(100), list(29)),
            "vfio: fast*100 | rdma: a*29".to_owned(),
        ] {
            check_rejected(&text, "more than 128 names");
        }
    }

    #[test]
    fn one_variable_requests_what_several_annotations_request() {
        let request = parse_variable(
            "nic=all; rdma = mlx5_0,mlx5_1 ;vfio=fast*2;preload=file;numa=same; near = gpu",
        )
        .unwrap();
        assert_eq!(names(&request, Class::Nic), "all");
        assert_eq!(names(&request, Class::Rdma), "mlx5_0 mlx5_1");
        assert_eq!(names(&request, Class::Vfio), "fast*2");
        assert_eq!(request.preload.unwrap().value, Preload::File);
        assert_eq!(request.numa.unwrap().value, Numa::Same);
        assert_eq!(request.near.unwrap().origin, Origin::Variable("near".to_owned()));
        let classes: Vec<String> = Class::ALL.iter().map(|class| format!("{class}=a")).collect();
        assert_eq!(parse_variable(&classes.join(";")).unwrap().devices.len(), Class::ALL.len());
    }

    #[test]
    fn an_invalid_variable_is_rejected_with_its_word() {
        for (text, word, expected) in [
            ("nic", "nic", " is not CLASS=NAME"),
            ("nic=a;", "", " is not CLASS=NAME"),
            ("=a", "", " is not CLASS=NAME"),
            ("ticket:0f", "ticket:0f", " is not CLASS=NAME"),
            ("nic=", "nic", " requests an empty name"),
            ("nic=a,,b", "nic", " requests an empty name"),
            (
                "nic=all,hugepages=2Mi",
                "nic",
                ": \"hugepages=2Mi\" is a separate request; put \";\" before it instead of \",\"",
            ),
            ("nic=all,gpu=0", "nic", ": \"gpu=0\" cannot be the name"),
            ("nic=a;nic=b", "nic", " appears twice"),
            ("near=gpu;near=gpu", "near", " appears twice"),
            (&"nic=a;".repeat(600), "nic", " appears twice"),
            ("nic=../a", "nic", ": \"../a\" cannot be the name"),
            ("nic=a\nb", "nic", ": \"a\\nb\" cannot be the name"),
            ("vfio=a*0", "vfio", ": \"a*0\" cannot be the name"),
            ("gpu=a", "gpu", ": unknown class \"gpu\""),
            ("nic.redis=a", "nic.redis", ": unknown class"),
            ("onload.dev/nic=a", "onload.dev/nic", ": unknown class"),
            ("numa=x", "numa", " is \"x\"; expected same"),
            ("ipc-lock=true", "ipc-lock", " cannot be requested there"),
            ("hugepages-limit=0=0", "hugepages-limit", " cannot be requested"),
            (
                "netdev=a;address=a=192.0.2.1/24",
                "address",
                " cannot be requested there; only the annotation onload.dev/address sets addresses",
            ),
            ("vfio=a*100;rdma=b*29", "vfio", ": more than 128 names"),
        ] {
            let message = parse_variable(text).unwrap_err();
            let expected = format!("{word:?} of ONLOAD_CTK_REQUEST{expected}");
            assert!(message.starts_with(&expected), "{text:?}: {message}");
            assert!(!message.contains('\n'));
        }
        let long = format!("nic={}", "a".repeat(MAX_VALUE_BYTES));
        let message = parse_variable(&long).unwrap_err();
        assert_eq!(message, "ONLOAD_CTK_REQUEST has more than 4096 bytes");
    }

    #[test]
    fn annotations_take_precedence_over_a_variable() {
        let mut request = parse("nic: ens1 | preload: off");
        request.add_missing(parse_variable("nic=all;rdma=a;preload=file;numa=1").unwrap()).unwrap();
        assert_eq!(names(&request, Class::Nic), "ens1");
        assert_eq!(names(&request, Class::Rdma), "a");
        assert_eq!(request.preload.as_ref().unwrap().value, Preload::Off);
        assert_eq!(request.numa.as_ref().unwrap().value, Numa::Node(1));
        assert_eq!(
            origins(&request),
            "annotation \"onload.dev/nic\", \"rdma\" of ONLOAD_CTK_REQUEST"
        );
    }

    #[test]
    fn origins_of_one_kind_share_their_words() {
        assert_eq!(
            origins(&parse("nic: a | rdma: b")),
            "annotation \"onload.dev/nic\", \"onload.dev/rdma\""
        );
        assert_eq!(
            origins(&Request::parse_text("nic=a;rdma=b", Origin::Ticket).unwrap()),
            "\"nic\", \"rdma\" of the ticket in ONLOAD_CTK_REQUEST"
        );
    }

    const HFT: (&str, &str) =
        ("hft", "devices = [\"nic=ens1\", \"vfio=fast*2\", \"netdev=ens3\"]\ncpus = \"numa\"");

    /// Parses bundles of a configuration. Those that are not understood become `None`.
    fn bundles(sections: &[(&str, &str)]) -> BTreeMap<String, Option<Bundle>> {
        sections
            .iter()
            .map(|(name, text)| ((*name).to_owned(), toml::from_str::<Bundle>(text).ok()))
            .collect()
    }

    fn expand(text: &str, sections: &[(&str, &str)]) -> Result<Request, String> {
        let mut request = parse(text);
        request.expand_bundles(&bundles(sections)).map_err(|error| error.to_string())?;
        Ok(request)
    }

    #[test]
    fn a_bundle_is_replaced_by_its_devices() {
        let request = expand("bundle: hft | nic: ens2,ens1 | rdma: mlx5_0", &[HFT]).unwrap();
        assert!(!request.requests_any(&[Class::Bundle]));
        assert_eq!(names(&request, Class::Nic), "ens2 ens1");
        assert_eq!(names(&request, Class::Vfio), "fast*2");
        let origin = &request.devices[&Class::Vfio].origin;
        let bundle_origin = Origin::Annotation("onload.dev/bundle".to_owned());
        assert_eq!(origin, &Origin::Bundle(Box::new(bundle_origin)));
        assert_eq!(origin.to_string(), "annotation \"onload.dev/bundle\"");
        // The policy still checks the class that was requested explicitly.
        assert_eq!(request.devices[&Class::Nic].origin.key(), "onload.dev/nic");
        let ExpandedBundle { name, bundle } = &request.bundles.as_ref().unwrap().value[0];
        assert_eq!((name.as_str(), &bundle.cpus), ("hft", &Some(Cpus::Numa)));
        let mut again = request.clone();
        again.expand_bundles(&bundles(&[HFT])).unwrap();
        assert_eq!(again, request);
    }

    #[test]
    fn two_bundles_provide_the_devices_of_both() {
        let wide = ("wide", "devices = [\"nic=ens1\", \"nic=ens4\", \"vfio=fast*2\"]");
        let request = expand("bundle: hft, wide", &[HFT, wide]).unwrap();
        assert_eq!(names(&request, Class::Nic), "ens1 ens4");
        assert_eq!(names(&request, Class::Vfio), "fast*2");
        assert_eq!(request.bundles.unwrap().value.len(), 2);
    }

    #[test]
    fn an_address_may_be_for_an_interface_of_a_bundle() {
        expand("bundle: hft | address: ens3=192.0.2.3/24", &[HFT]).unwrap();
        let message = expand("bundle: hft | address: ens4=192.0.2.3/24", &[HFT]).unwrap_err();
        assert!(message.contains("an address for \"ens4\""), "{message}");
    }

    #[test]
    fn unknown_and_invalid_bundles_are_rejected() {
        let next = ("next", "devices = [\"gpu=0\"]");
        for (text, expected) in [
            (
                "bundle: other",
                "annotation \"onload.dev/bundle\": bundle other not found; the configuration has hft, next",
            ),
            ("bundle: all", "bundle all not found"),
            ("bundle: hft*2", "hft is a bundle, not a pool; remove \"*2\""),
            ("bundle: next", "[bundles.next] of the configuration cannot be parsed"),
            ("bundle: hft | vfio: fast", "twice, with different numbers"),
        ] {
            let message = expand(text, &[HFT, next]).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        let message = expand("bundle: hft", &[]).unwrap_err();
        assert!(message.ends_with("no bundles are configured"), "{message}");
    }
}
