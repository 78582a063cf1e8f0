//! Every setting with its type, default and field in [`PluginSettings`].

use super::values::{DirSetting, PluginSettings};

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    /// The HCL type: [`BOOL`], [`NUMBER`], [`TEXT`] or [`TEXTS`].
    pub kind: &'static str,
    /// The default as an HCL expression; `None` for null.
    pub default: Option<&'static str>,
    pub(super) field: SettingField,
}

/// The type of a setting's value, with access to its field in [`PluginSettings`] if several settings have this type.
#[derive(Clone, Copy, Debug)]
pub(super) enum SettingField {
    Bool(fn(&mut PluginSettings) -> &mut bool),
    /// A number of tasks.
    Slots(fn(&mut PluginSettings) -> &mut u32),
    Place(fn(&mut PluginSettings) -> &mut DirSetting),
    Texts(fn(&mut PluginSettings) -> &mut Vec<String>),
    Period,
    Wait,
    Runtime,
}

/// HCL types, as Nomad's schema names them.
pub const BOOL: &str = "bool";
pub const NUMBER: &str = "number";
pub const TEXT: &str = "string";
pub const TEXTS: &str = "list(string)";

const fn bool_setting(name: &'static str, field: fn(&mut PluginSettings) -> &mut bool) -> Setting {
    with_field(name, BOOL, "true", SettingField::Bool(field))
}

const fn slots_setting(name: &'static str, field: fn(&mut PluginSettings) -> &mut u32) -> Setting {
    with_field(name, NUMBER, "10", SettingField::Slots(field))
}

/// Defines a directory setting. It has no fixed default: if it is not set, the plugin uses the directory in the host's
/// specifications, which differs between distributions.
const fn dir_setting(
    name: &'static str,
    field: fn(&mut PluginSettings) -> &mut DirSetting,
) -> Setting {
    Setting { name, kind: TEXT, default: None, field: SettingField::Place(field) }
}

const fn with_field(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    field: SettingField,
) -> Setting {
    Setting { name, kind, default: Some(default), field }
}

/// All settings. Those up to `fingerprint_period` are also settings of nomad-onload.
pub const TABLE: &[Setting] = &[
    bool_setting("set_preload", |s| &mut s.set_preload),
    bool_setting("mount_onload", |s| &mut s.mount_onload),
    bool_setting("probe_nic", |s| &mut s.probe.nic),
    bool_setting("probe_xdp", |s| &mut s.probe.xdp),
    bool_setting("probe_pps", |s| &mut s.probe.pps),
    bool_setting("probe_ptp", |s| &mut s.probe.ptp),
    with_field(
        "ignored_interfaces",
        TEXTS,
        "[]",
        SettingField::Texts(|s| &mut s.ignored_interfaces),
    ),
    slots_setting("num_nic", |s| &mut s.slots.nic),
    slots_setting("num_pps", |s| &mut s.slots.pps),
    slots_setting("num_ptp", |s| &mut s.slots.ptp),
    dir_setting("task_device_path", |s| &mut s.paths.device.task),
    dir_setting("host_device_path", |s| &mut s.paths.device.host),
    dir_setting("task_onload_lib_path", |s| &mut s.paths.onload_lib.task),
    dir_setting("host_onload_lib_path", |s| &mut s.paths.onload_lib.host),
    dir_setting("task_onload_bin_path", |s| &mut s.paths.onload_bin.task),
    dir_setting("host_onload_bin_path", |s| &mut s.paths.onload_bin.host),
    dir_setting("task_profile_dir_path", |s| &mut s.paths.profile_dir.task),
    dir_setting("host_profile_dir_path", |s| &mut s.paths.profile_dir.host),
    dir_setting("task_zf_bin_path", |s| &mut s.paths.zf_bin.task),
    dir_setting("host_zf_bin_path", |s| &mut s.paths.zf_bin.host),
    dir_setting("task_zf_lib_path", |s| &mut s.paths.zf_lib.task),
    dir_setting("host_zf_lib_path", |s| &mut s.paths.zf_lib.host),
    with_field("fingerprint_period", TEXT, "\"1m\"", SettingField::Period),
    with_field("need_nic", BOOL, "false", SettingField::Bool(|s| &mut s.need_nic)),
    bool_setting("probe_rdma", |s| &mut s.probe.rdma),
    bool_setting("probe_vfio", |s| &mut s.probe.vfio),
    bool_setting("probe_netdev", |s| &mut s.probe.netdev),
    bool_setting("probe_hugepages", |s| &mut s.probe.hugepages),
    bool_setting("probe_profile", |s| &mut s.probe.profile),
    slots_setting("num_rdma", |s| &mut s.slots.rdma),
    slots_setting("num_hugepages", |s| &mut s.slots.hugepages),
    slots_setting("num_profile", |s| &mut s.slots.profile),
    with_field("runtime", TEXT, "\"\"", SettingField::Runtime),
    with_field("reserve_wait", TEXT, "\"15s\"", SettingField::Wait),
];
