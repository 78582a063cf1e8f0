//! The messages of NRI that a plugin for containers that are created needs, with the fields that it reads
//! or writes. The numbers are those of api.proto (package nri.pkg.api.v1alpha1).

use std::collections::BTreeMap;

/// The service that the runtime calls.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The service that we call.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// The events that we want, one bit each: CREATE_CONTAINER, the fourth. A reservation that no container
/// comes to claim expires by itself, and the hook's poststop ends a lease, so nothing else is needed.
pub const EVENTS: i32 = 1 << 3;

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegisterPluginRequest {
    /// Letters, digits, `_.+-`.
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    /// Two digits, by which plugins are ordered.
    #[prost(string, tag = "2")]
    pub plugin_idx: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ConfigureRequest {
    /// `containerd`, `cri-o`, `docker`.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    /// With or without a `v` before it.
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// How long it waits for an answer, in milliseconds; 0 in older runtimes.
    #[prost(int64, tag = "5")]
    pub request_timeout: i64,
    /// Of the NRI that it has; empty in older runtimes.
    #[prost(string, tag = "6")]
    pub nri_version: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ConfigureResponse {
    #[prost(int32, tag = "2")]
    pub events: i32,
}

/// Tells of the containers that there are. They are passed over: nothing can be added to them.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SynchronizeRequest {
    /// Whether another of these messages follows.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SynchronizeResponse {
    #[prost(bool, tag = "2")]
    pub more: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateContainerRequest {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodSandbox {
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub namespace: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// What its OCI runtime will call it.
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "3")]
    pub name: String,
    /// Those that its configuration will have.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
    #[prost(string, repeated, tag = "7")]
    pub args: Vec<String>,
    #[prost(string, repeated, tag = "8")]
    pub env: Vec<String>,
    #[prost(message, repeated, tag = "9")]
    pub mounts: Vec<Mount>,
    #[prost(message, optional, tag = "10")]
    pub hooks: Option<Hooks>,
    #[prost(message, optional, tag = "11")]
    pub linux: Option<LinuxContainer>,
    #[prost(message, repeated, tag = "13")]
    pub rlimits: Vec<PosixRlimit>,
    #[prost(message, repeated, tag = "20")]
    pub cdi_devices: Vec<CdiDevice>,
    /// The user of its process; absent in older runtimes.
    #[prost(message, optional, tag = "21")]
    pub user: Option<User>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub destination: String,
    /// Of which file system; `bind` for what the host has.
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub source: String,
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Hooks {
    #[prost(message, repeated, tag = "1")]
    pub prestart: Vec<Hook>,
    #[prost(message, repeated, tag = "2")]
    pub create_runtime: Vec<Hook>,
    #[prost(message, repeated, tag = "3")]
    pub create_container: Vec<Hook>,
    #[prost(message, repeated, tag = "4")]
    pub start_container: Vec<Hook>,
    #[prost(message, repeated, tag = "5")]
    pub poststart: Vec<Hook>,
    #[prost(message, repeated, tag = "6")]
    pub poststop: Vec<Hook>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Hook {
    #[prost(string, tag = "1")]
    pub path: String,
    /// Its command line, its name first.
    #[prost(string, repeated, tag = "2")]
    pub args: Vec<String>,
    /// Its whole environment.
    #[prost(string, repeated, tag = "3")]
    pub env: Vec<String>,
    /// In seconds.
    #[prost(message, optional, tag = "4")]
    pub timeout: Option<OptionalInt>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LinuxContainer {
    #[prost(message, repeated, tag = "1")]
    pub namespaces: Vec<LinuxNamespace>,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<LinuxDevice>,
    #[prost(message, optional, tag = "3")]
    pub resources: Option<LinuxResources>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LinuxNamespace {
    /// As config.json calls it.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// That of the namespace to join; empty for a new one.
    #[prost(string, tag = "2")]
    pub path: String,
}

/// A device node. The runtime lets the container read and write it, whatever its mode says
/// (pkg/api/device.go, `AccessString`).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LinuxDevice {
    #[prost(string, tag = "1")]
    pub path: String,
    /// `c` or `b`.
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(int64, tag = "3")]
    pub major: i64,
    #[prost(int64, tag = "4")]
    pub minor: i64,
    #[prost(message, optional, tag = "5")]
    pub file_mode: Option<OptionalU32>,
    #[prost(message, optional, tag = "6")]
    pub uid: Option<OptionalU32>,
    #[prost(message, optional, tag = "7")]
    pub gid: Option<OptionalU32>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LinuxResources {
    #[prost(message, repeated, tag = "3")]
    pub hugepage_limits: Vec<HugepageLimit>,
    #[prost(message, repeated, tag = "7")]
    pub devices: Vec<LinuxDeviceCgroup>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LinuxDeviceCgroup {
    #[prost(bool, tag = "1")]
    pub allow: bool,
    /// `c`, `b` or `a`.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// Absent: every one.
    #[prost(message, optional, tag = "3")]
    pub major: Option<OptionalInt>,
    /// Absent: every one.
    #[prost(message, optional, tag = "4")]
    pub minor: Option<OptionalInt>,
    /// Letters of `rwm`.
    #[prost(string, tag = "5")]
    pub access: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HugepageLimit {
    /// `2MB`.
    #[prost(string, tag = "1")]
    pub page_size: String,
    /// In bytes.
    #[prost(uint64, tag = "2")]
    pub limit: u64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PosixRlimit {
    /// `RLIMIT_MEMLOCK`.
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(uint64, tag = "2")]
    pub hard: u64,
    #[prost(uint64, tag = "3")]
    pub soft: u64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct User {
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    #[prost(uint32, tag = "2")]
    pub gid: u32,
    #[prost(uint32, repeated, tag = "3")]
    pub additional_gids: Vec<u32>,
}

/// A number that may be absent (OptionalInt, OptionalInt64).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OptionalInt {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

/// A number that may be absent (OptionalUInt32, OptionalFileMode).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OptionalU32 {
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateContainerResponse {
    /// Absent: nothing.
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<ContainerAdjustment>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAdjustment {
    /// Each takes the place of one with its destination.
    #[prost(message, repeated, tag = "3")]
    pub mounts: Vec<Mount>,
    /// Each takes the place of one with its name.
    #[prost(message, repeated, tag = "4")]
    pub env: Vec<KeyValue>,
    #[prost(message, optional, tag = "5")]
    pub hooks: Option<Hooks>,
    #[prost(message, optional, tag = "6")]
    pub linux: Option<LinuxContainerAdjustment>,
    /// They are added; the last one of a kind counts.
    #[prost(message, repeated, tag = "7")]
    pub rlimits: Vec<PosixRlimit>,
    /// The runtime looks them up and applies their edits, after all variables of this message.
    #[prost(message, repeated, tag = "8")]
    pub cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxContainerAdjustment {
    /// Each takes the place of one with its path.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<LinuxDevice>,
    #[prost(message, optional, tag = "2")]
    pub resources: Option<LinuxResources>,
}
