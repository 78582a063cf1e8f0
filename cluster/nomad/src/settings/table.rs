//! Every setting, with its type, its default and where it stands in [`Settings`].

use super::values::{Place, Settings};

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub kind: &'static str,
    /// What it is where it is left out, as an expression of HCL; none where it is null then.
    pub default: Option<&'static str>,
    pub(super) field: Field,
}

/// How its value is read, and where that stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    Bool(fn(&mut Settings) -> &mut bool),
    /// A number of tasks.
    Slots(fn(&mut Settings) -> &mut u32),
    Place(fn(&mut Settings) -> &mut Place),
    Texts(fn(&mut Settings) -> &mut Vec<String>),
    Period,
    Wait,
    Runtime,
}

/// Types of HCL.
pub const BOOL: &str = "bool";
pub const NUMBER: &str = "number";
pub const TEXT: &str = "string";
pub const TEXTS: &str = "list(string)";

const fn yes(name: &'static str, field: fn(&mut Settings) -> &mut bool) -> Setting {
    with(name, BOOL, "true", Field::Bool(field))
}

const fn ten(name: &'static str, field: fn(&mut Settings) -> &mut u32) -> Setting {
    with(name, NUMBER, "10", Field::Slots(field))
}

/// A directory. Left out, it is where the host's specifications have it, which differs between
/// distributions.
const fn place(name: &'static str, field: fn(&mut Settings) -> &mut Place) -> Setting {
    Setting { name, kind: TEXT, default: None, field: Field::Place(field) }
}

const fn with(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    field: Field,
) -> Setting {
    Setting { name, kind, default: Some(default), field }
}

/// All of them. Those up to `fingerprint_period` are nomad-onload's.
pub const TABLE: &[Setting] = &[
    yes("set_preload", |s| &mut s.set_preload),
    yes("mount_onload", |s| &mut s.mount_onload),
    yes("probe_nic", |s| &mut s.probe.nic),
    yes("probe_xdp", |s| &mut s.probe.xdp),
    yes("probe_pps", |s| &mut s.probe.pps),
    yes("probe_ptp", |s| &mut s.probe.ptp),
    with("ignored_interfaces", TEXTS, "[]", Field::Texts(|s| &mut s.ignored_interfaces)),
    ten("num_nic", |s| &mut s.slots.nic),
    ten("num_pps", |s| &mut s.slots.pps),
    ten("num_ptp", |s| &mut s.slots.ptp),
    place("task_device_path", |s| &mut s.paths.device.task),
    place("host_device_path", |s| &mut s.paths.device.host),
    place("task_onload_lib_path", |s| &mut s.paths.onload_lib.task),
    place("host_onload_lib_path", |s| &mut s.paths.onload_lib.host),
    place("task_onload_bin_path", |s| &mut s.paths.onload_bin.task),
    place("host_onload_bin_path", |s| &mut s.paths.onload_bin.host),
    place("task_profile_dir_path", |s| &mut s.paths.profile_dir.task),
    place("host_profile_dir_path", |s| &mut s.paths.profile_dir.host),
    place("task_zf_bin_path", |s| &mut s.paths.zf_bin.task),
    place("host_zf_bin_path", |s| &mut s.paths.zf_bin.host),
    place("task_zf_lib_path", |s| &mut s.paths.zf_lib.task),
    place("host_zf_lib_path", |s| &mut s.paths.zf_lib.host),
    with("fingerprint_period", TEXT, "\"1m\"", Field::Period),
    with("need_nic", BOOL, "false", Field::Bool(|s| &mut s.need_nic)),
    yes("probe_rdma", |s| &mut s.probe.rdma),
    yes("probe_vfio", |s| &mut s.probe.vfio),
    yes("probe_netdev", |s| &mut s.probe.netdev),
    yes("probe_hugepages", |s| &mut s.probe.hugepages),
    yes("probe_profile", |s| &mut s.probe.profile),
    ten("num_rdma", |s| &mut s.slots.rdma),
    ten("num_hugepages", |s| &mut s.slots.hugepages),
    ten("num_profile", |s| &mut s.slots.profile),
    with("runtime", TEXT, "\"\"", Field::Runtime),
    with("reserve_wait", TEXT, "\"15s\"", Field::Wait),
];
