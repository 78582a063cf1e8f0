//! Names from Onload and from this package that more than one layer uses.

/// The library that a process has to load to be accelerated. The loader finds it by this bare name
/// in either of its default directories.
pub const LIBRARY: &str = "libonload.so";

/// Whether Onload has the card steer the packets of each socket to the queue of its stack on interfaces that it reaches by AF_XDP:
/// "0" if not. A parameter of its module, 1 by default.
pub const AF_XDP_FLOW_FILTERS: &str =
    "/sys/module/sfc_resource/parameters/enable_af_xdp_flow_filters";

/// The OCI runtimes that the wrapper looks for when the configuration names none. Those of
/// CRI-O's packages bring no others (cri-o/packaging, `10-crio.conf`; before 1.29 `cri-o-runc`), and kubespray installs
/// runc in /usr/local/bin.
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

/// The one-line file that is mounted at /etc/ld.so.preload; the package installs it.
pub const PRELOAD_FILE: &str = "/usr/share/onload-ctk/ld.so.preload";

/// The script that stands in a container in the place of a tool that is started with the host's own
/// libraries, as the package installs it.
pub const TOOL_STARTER: &str = "/usr/share/onload-ctk/start-tool";
/// The directory of a container below which such tools, their loader and their libraries appear, one
/// directory a product.
pub const TOOL_DIR: &str = "/usr/lib/onload-ctk";

/// The interfaces that Onload accelerates in a process, separated by white space; unset or empty: all of
/// them (Onload, `src/include/ci/internal/opts_netif_def.h`).
pub const ONLOAD_INTERFACES: &str = "EF_INTERFACE_WHITELIST";
/// The attributes of TCPDirect's stacks, `NAME=VALUE` separated by `;`, where the program sets none
/// (TCPDirect, `src/lib/zf/attr.c`).
pub const TCPDIRECT_ATTRIBUTES: &str = "ZF_ATTR";
