//! Names of Onload and of this package that several layers use.

/// The library that a process loads to be accelerated. The loader finds this bare name in its
/// default directories.
pub const LIBRARY: &str = "libonload.so";

/// The stacks of all programs, with the process that created each; 0 if it has exited (Onload, `efab_stacks_seq_show`).
pub const STACKS: &str = "/proc/driver/onload/stacks";

/// The module parameter that disables flow filters on AF_XDP interfaces if it is "0". With flow
/// filters, the NIC steers the packets of each socket to the queue of the socket's stack. Default:
/// 1.
pub const AF_XDP_FLOW_FILTERS: &str =
    "/sys/module/sfc_resource/parameters/enable_af_xdp_flow_filters";

/// The OCI runtimes that the wrapper searches for if the configuration names none. The packages of
/// CRI-O have no others (cri-o/packaging, `10-crio.conf`; `cri-o-runc` before 1.29), and kubespray
/// installs runc in /usr/local/bin.
pub const RUNTIMES: [&str; 9] = [
    "/usr/bin/runc",
    "/usr/sbin/runc",
    "/usr/local/sbin/runc",
    "/usr/bin/crun",
    "/usr/local/bin/crun",
    "/usr/libexec/crio/crun",
    "/usr/libexec/crio/runc",
    "/usr/local/bin/runc",
    "/usr/lib/cri-o-runc/sbin/runc",
];

/// The one-line file that is mounted at /etc/ld.so.preload. The package installs it.
pub const PRELOAD_FILE: &str = "/usr/share/onload-ctk/ld.so.preload";

/// The script, installed by the package, that is mounted in place of a tool. It starts the tool
/// with the host's own libraries.
pub const TOOL_STARTER: &str = "/usr/share/onload-ctk/start-tool";
/// The directory in a container for such tools with their loader and libraries, with a subdirectory
/// for each product.
pub const TOOL_DIR: &str = "/usr/lib/onload-ctk";

/// The variable with the interfaces that Onload accelerates in a process, separated by white space.
/// If unset or empty, Onload accelerates all (Onload, `src/include/ci/internal/opts_netif_def.h`).
pub const ONLOAD_INTERFACES: &str = "EF_INTERFACE_WHITELIST";
/// The variable with default attributes of TCPDirect's stacks, as `NAME=VALUE` separated by `;`
/// (TCPDirect, `src/lib/zf/attr.c`).
pub const TCPDIRECT_ATTRIBUTES: &str = "ZF_ATTR";
