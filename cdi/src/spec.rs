//! The data model of a CDI specification, version 1.1.0, with all its fields.
//!
//! The structs define the form of a specification; [`crate::validate()`] checks whether it is valid.
//! Names may be invalid, so that `validate` can report all problems at once. Empty values are not written, unknown fields are rejected, and `null` counts
//! as absent, as does a YAML key without a value.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// Defines the structs of the model. serde's derived code also reads a struct from a list of its
/// fields. No other reader of CDI does, so [`MapOnly`] rejects lists.
macro_rules! model {
    ($($(#[$doc:meta])* pub struct $name:ident $fields:tt)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(remote = "Self", default, deny_unknown_fields, rename_all = "camelCase")]
        pub struct $name $fields

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::deserialize(MapOnly(deserializer))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }
    )*};
}

model! {
    /// A CDI specification: the content of one file of a specification directory.
    pub struct Spec {
        /// Version of the CDI specification that a reader must support, such as `0.5.0`.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub cdi_version: String,
        /// `vendor/class` of all devices in this file ([`Kind`](crate::Kind)).
        #[serde(deserialize_with = "deserialize_nullable")]
        pub kind: String,
        /// Metadata of the file, which containers do not see. Since 0.6.0.
        #[serde(
            deserialize_with = "deserialize_unique_map",
            skip_serializing_if = "BTreeMap::is_empty"
        )]
        pub annotations: BTreeMap<String, String>,
        /// Edits applied once when any device of this file is requested.
        #[serde(
            deserialize_with = "deserialize_nullable",
            skip_serializing_if = "ContainerEdits::is_empty"
        )]
        pub container_edits: ContainerEdits,
        /// The devices. A valid specification has at least one.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub devices: Vec<Device>,
    }

    /// A device that can be requested by name.
    pub struct Device {
        /// Name, unique in its file ([`DeviceName`](crate::DeviceName)).
        #[serde(deserialize_with = "deserialize_nullable")]
        pub name: String,
        /// Metadata of the device, which containers do not see. Since 0.6.0.
        #[serde(
            deserialize_with = "deserialize_unique_map",
            skip_serializing_if = "BTreeMap::is_empty"
        )]
        pub annotations: BTreeMap<String, String>,
        /// Edits applied when this device is requested. Never empty in a valid specification, so
        /// always written.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub container_edits: ContainerEdits,
    }

    /// Changes to an OCI configuration.
    pub struct ContainerEdits {
        /// Environment of the process, each `NAME=value`.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub env: Vec<String>,
        /// Device nodes, with their cgroup rules.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub device_nodes: Vec<DeviceNode>,
        /// Network interfaces moved into the container. Since 1.1.0.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub net_devices: Vec<NetDevice>,
        /// Mounts.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub mounts: Vec<Mount>,
        /// OCI hooks.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub hooks: Vec<Hook>,
        /// Cache and memory bandwidth class. Since 0.7.0.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub intel_rdt: Option<IntelRdt>,
        /// Supplementary groups of the process; 0 is ignored. Since 0.7.0.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub additional_gids: Vec<u32>,
    }

    /// A device node to create in the container.
    pub struct DeviceNode {
        /// Path in the container.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub path: String,
        /// Path on the host if it differs from `path`. Since 0.5.0.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub host_path: Option<String>,
        /// `b`, `c`, `u` or `p`. If absent, the type of the host's node.
        #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
        pub type_: Option<String>,
        /// Major number. If absent or 0, both numbers are those of the host's node.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub major: Option<i64>,
        /// Minor number, used only with a major number.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub minor: Option<i64>,
        /// Permission bits of the node in the container.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub file_mode: Option<u32>,
        /// Cgroup access, a subset of `rwm`. If absent, full access.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub permissions: Option<String>,
        /// Owner in the container. If absent, the process's user.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub uid: Option<u32>,
        /// Group in the container. If absent, the process's group.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub gid: Option<u32>,
    }

    /// A network interface to move into the container.
    pub struct NetDevice {
        /// Name on the host.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub host_interface_name: String,
        /// Name in the container.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub name: String,
    }

    /// A mount to make in the container.
    pub struct Mount {
        /// Source on the host.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub host_path: String,
        /// Destination in the container.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub container_path: String,
        /// File system type, optional for a bind mount. Since 0.4.0.
        #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
        pub type_: Option<String>,
        /// Options, passed on unchanged. A bind mount requires `bind` or `rbind`.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub options: Vec<String>,
    }

    /// An OCI hook to add.
    pub struct Hook {
        /// The stage at which the hook runs ([`HookName`](crate::HookName)).
        #[serde(deserialize_with = "deserialize_nullable")]
        pub hook_name: String,
        /// Program.
        #[serde(deserialize_with = "deserialize_nullable")]
        pub path: String,
        /// Arguments, starting with the program's own name.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub args: Vec<String>,
        /// Environment, each `NAME=value`. Never leave it empty: a runtime may then pass on the
        /// container's own (CVE-2025-23266).
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub env: Vec<String>,
        /// Seconds after which the runtime kills the hook.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timeout: Option<i64>,
    }

    /// Intel Resource Director Technology class of a container.
    pub struct IntelRdt {
        /// Class of service; a file name, or `/` for the root class.
        #[serde(rename = "closID", skip_serializing_if = "Option::is_none")]
        pub clos_id: Option<String>,
        /// Schema of the L3 cache.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub l3_cache_schema: Option<String>,
        /// Schema of the memory bandwidth.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub mem_bw_schema: Option<String>,
        /// Lines for the class' `schemata` file. Since 1.1.0.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "Vec::is_empty")]
        pub schemata: Vec<String>,
        /// Whether the container gets a monitoring group. Since 1.1.0.
        #[serde(deserialize_with = "deserialize_nullable", skip_serializing_if = "is_false")]
        pub enable_monitoring: bool,
    }
}

impl ContainerEdits {
    /// Returns whether these edits change nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Appends the edits of `other`, whose `intelRdt` takes precedence.
    pub fn append(&mut self, other: &Self) {
        self.env.extend_from_slice(&other.env);
        self.device_nodes.extend_from_slice(&other.device_nodes);
        self.net_devices.extend_from_slice(&other.net_devices);
        self.mounts.extend_from_slice(&other.mounts);
        self.hooks.extend_from_slice(&other.hooks);
        if other.intel_rdt.is_some() {
            self.intel_rdt.clone_from(&other.intel_rdt);
        }
        self.additional_gids.extend_from_slice(&other.additional_gids);
    }
}

/// Removes repeated elements, and keeps the first of each in order.
#[must_use]
pub fn deduplicate<T: PartialEq>(list: Vec<T>) -> Vec<T> {
    let mut unique: Vec<T> = Vec::with_capacity(list.len());
    for item in list {
        if !unique.contains(&item) {
            unique.push(item);
        }
    }
    unique
}

/// Returns the name of the variable in an entry of [`ContainerEdits::env`].
#[must_use]
pub fn variable_name(entry: &str) -> &str {
    entry.split('=').next().unwrap_or_default()
}

impl DeviceNode {
    /// Returns the path on the host.
    #[must_use]
    pub fn source(&self) -> &str {
        match self.host_path.as_deref() {
            None | Some("") => &self.path,
            Some(path) => path,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

struct MapOnly<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for MapOnly<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

fn deserialize_nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Rejects duplicate keys, of which serde's maps keep the last: another reader may keep the first.
fn deserialize_unique_map<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    struct UniqueMap;
    impl<'de> Visitor<'de> for UniqueMap {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a map of strings")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
            inner.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = access.next_entry::<String, String>()? {
                match map.entry(key) {
                    Entry::Occupied(occupied) => {
                        return Err(A::Error::custom(format_args!(
                            "duplicate key `{}`",
                            occupied.key()
                        )));
                    }
                    Entry::Vacant(vacant) => vacant.insert(value),
                };
            }
            Ok(map)
        }
    }
    deserializer.deserialize_option(UniqueMap)
}
