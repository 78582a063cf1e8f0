//! Every setting, with its type, its default and what it means.

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub kind: &'static str,
    /// What it is where it is left out, as an expression of HCL; none where it is null then.
    pub default: Option<&'static str>,
}

/// Types of HCL.
pub const BOOL: &str = "bool";
pub const NUMBER: &str = "number";
pub const TEXT: &str = "string";
pub const TEXTS: &str = "list(string)";

const fn yes(name: &'static str) -> Setting {
    with(name, BOOL, "true")
}

const fn ten(name: &'static str) -> Setting {
    with(name, NUMBER, "10")
}

/// A directory. Left out, it is where the host's specifications have it, which differs between
/// distributions.
const fn place(name: &'static str) -> Setting {
    Setting {
        name,
        kind: TEXT,
        default: None,
    }
}

const fn with(name: &'static str, kind: &'static str, default: &'static str) -> Setting {
    Setting {
        name,
        kind,
        default: Some(default),
    }
}

/// All of them. Those up to `fingerprint_period` are nomad-onload's.
pub const TABLE: &[Setting] = &[
    yes("set_preload"),
    yes("mount_onload"),
    yes("probe_nic"),
    yes("probe_xdp"),
    yes("probe_pps"),
    yes("probe_ptp"),
    with("ignored_interfaces", TEXTS, "[]"),
    ten("num_nic"),
    ten("num_pps"),
    ten("num_ptp"),
    place("task_device_path"),
    place("host_device_path"),
    place("task_onload_lib_path"),
    place("host_onload_lib_path"),
    place("task_onload_bin_path"),
    place("host_onload_bin_path"),
    place("task_profile_dir_path"),
    place("host_profile_dir_path"),
    place("task_zf_bin_path"),
    place("host_zf_bin_path"),
    place("task_zf_lib_path"),
    place("host_zf_lib_path"),
    with("fingerprint_period", TEXT, "\"1m\""),
    with("need_nic", BOOL, "false"),
    yes("probe_rdma"),
    yes("probe_vfio"),
    yes("probe_netdev"),
    yes("probe_hugepages"),
    yes("probe_profile"),
    ten("num_rdma"),
    ten("num_hugepages"),
    ten("num_profile"),
    with("runtime", TEXT, "\"\""),
    with("reserve_wait", TEXT, "\"15s\""),
];
