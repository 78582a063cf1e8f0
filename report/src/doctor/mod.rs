//! Finds problems of a host, with remedies. A check changes nothing and reports what it read. It is skipped if there is
//! nothing to examine.

mod acs;
mod check;
mod context;
mod device_links;
mod distribution;
mod engines;
mod gpudirect;
mod hardware;
mod iommu;
mod kernel_line;
mod onload;
mod rdma;
mod reload;
mod security;
mod specs;
mod units;
mod unread;

use onload_sys::text::ErrorChain;

use CheckFamily::{Host, Rdma, Security, Specs, Trust, Units};
use engines::InstalledEngine;
use onload_host::host::HostError;

pub use check::{Check, CheckFamily, CheckVerdict, Finding, Remedy};
pub use context::CheckContext;
use context::{Findings, HostResult};
pub use engines::is_cdi_on_in_docker;

/// The check that finds engines, including unused ones.
const ENGINE: &str = "engine";

type HostCheck = fn(&CheckContext<'_>) -> Findings;

/// All checks, with the reason shown if a check returns no findings and is skipped.
const HOST_CHECKS: &[(CheckFamily, &str, HostCheck, &str)] = &[
    (Host, "config", unread::check_configuration, "nothing to check"),
    (Host, "discovery", unread::check_discovery, "nothing to check"),
    (Host, "onload-modules", onload::check_modules, "Onload is not installed"),
    (Host, "onload-library", onload::check_library, "no Onload driver is loaded"),
    (Host, "onload-control-plane", onload::check_control_plane, "no driver starts a control plane"),
    (Host, "onload-bond", onload::check_bonds, "no bond with an accelerated member"),
    (Host, "onload-interface", onload::check_interfaces, "Onload is not offered"),
    (Host, "interface-up", onload::link, "no accelerated interface on the host"),
    (Host, "returning", reload::check_returning, "no device was moved into a container"),
    (Host, "af-xdp", onload::check_af_xdp, "Onload uses no interface of the host by AF_XDP"),
    (Host, "iommu", iommu::check_enabled, "no virtual functions, and no function is bound to vfio"),
    (Host, "iommu-groups", iommu::check_groups, "no function is bound to vfio"),
    (Host, "physical-functions", iommu::check_vf_parents, "no virtual functions"),
    (Host, "hugepages", hardware::check_hugepages, "no device on a NUMA node needs huge pages"),
    (Host, "pcie-link", hardware::check_pcie_links, "no offered card reports its PCIe link"),
    (Host, "cpu-governor", hardware::check_governor, "no device on a NUMA node, or no governor"),
    (Host, "isolated-cpus", hardware::check_isolation, "no isolated CPUs, or no device on a node"),
    (Host, "device-links", device_links::check_links, "no device node needs a link in /dev/char"),
    (Host, "hook", hardware::check_hook, "no device needs the hook"),
    (Host, "memlock", hardware::check_limit, "no RDMA or vfio device"),
    (Rdma, "rdma-netns", rdma::check_netns_mode, "the kernel has no RDMA subsystem"),
    (Rdma, "rdma-cm", rdma::check_connection_manager, "no RDMA device with a connection manager"),
    (Rdma, "rdma-guid", rdma::check_guids, "no RDMA device with a node GUID"),
    (Rdma, "rdma-port", rdma::check_ports, "no RDMA device with ports"),
    (Rdma, "rdma-libraries", rdma::check_libraries, "no RDMA device gets libraries of the host"),
    (Rdma, "peer-memory", gpudirect::check_peer_memory, "no RDMA device, or no GPU with a driver"),
    (Rdma, "gpu-acs", acs::check_ports, "no GPU with an RDMA device"),
    (Rdma, "gpu-iommu", gpudirect::check_iommu, "no GPU with an RDMA device behind the IOMMU"),
    (Rdma, "gpu-node", gpudirect::check_numa_node, "no GPU with an RDMA device"),
    (Rdma, "data-direct", gpudirect::check_data_direct, "no GPU, or no NIC with Data Direct"),
    (Specs, "drained", specs::check_drained, "nothing to check"),
    (Specs, "specs-fresh", specs::check_up_to_date, "nothing to check"),
    (Specs, "specs-valid", specs::check_valid, "no specification files"),
    (Specs, "specs-conflict", specs::check_conflicts, "no specification files"),
    (Specs, "specs-readable", specs::check_readable, "no specification files"),
    (Trust, "trust", security::check_files, "neither this package nor an OCI runtime is installed"),
    (Units, "units", units::check_enabled, "this package's units are not installed"),
    (Units, "udev-rules", units::check_udev_rules, "this package's units are not installed"),
    (Security, "selinux", security::check_selinux, "SELinux does not confine containers"),
    (Security, "apparmor", security::check_apparmor, "no podman, or user namespaces are allowed"),
];

type EnginesCheck = fn(&CheckContext<'_>, &[InstalledEngine]) -> Findings;

/// The others of [`CheckFamily::Engines`].
const ENGINE_CHECKS: &[(&str, EnginesCheck, &str)] = &[
    ("engine-version", engines::check_versions, "no engine with a minimum version"),
    ("engine-cdi", engines::check_cdi, "CDI cannot be off in these engines"),
    ("engine-spec-dirs", engines::check_spec_dirs, "these engines have fixed directories"),
    ("engine-cdi-version", engines::check_readers, "no specifications, or no known CDI limit"),
    ("engine-runtime", engines::check_runtime, "no engine has or needs the runtime \"onload\""),
    ("engine-default-runtime", engines::default_runtime, "no containerd with its CRI plugin"),
    ("engine-hooks", engines::check_hook_dirs, "no engine reads hook directories"),
    ("engine-restarted", engines::check_restarted, "no engine runs"),
    ("engine-restarts", engines::check_restarts, "no docker release that moby issue 49989 affects"),
    ("nri-plugin", engines::check_plugin, "NRI is not used"),
];

pub fn list_check_names() -> impl Iterator<Item = &'static str> {
    let host_names = HOST_CHECKS.iter().map(|(_, name, ..)| *name);
    let engine_names = ENGINE_CHECKS.iter().map(|(name, ..)| *name);
    host_names.chain([ENGINE]).chain(engine_names)
}

pub fn run_checks(context: &CheckContext<'_>, mut begin: impl FnMut(&'static str)) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |family, name, result: Findings, skip_reason: &str| {
        let mut findings = result.unwrap_or_else(|error| vec![unread_finding(&error)]);
        if findings.is_empty() {
            findings.push(Finding::skipped(skip_reason));
        }
        checks.extend(findings.into_iter().map(|finding| Check { family, name, finding }));
    };
    for (family, name, check, skip_reason) in HOST_CHECKS {
        begin(name);
        add(*family, name, check(context), skip_reason);
    }
    // Programs are asked for their versions, which takes its time.
    begin(ENGINE);
    let mut engines = engines::find_engines(context);
    let check_engines =
        |check: EnginesCheck, engines: &HostResult<Vec<InstalledEngine>>| match engines {
            Ok(engines) => check(context, engines),
            Err(error) => Ok(vec![unread_finding(error)]),
        };
    add(CheckFamily::Engines, ENGINE, check_engines(engines::check_installed, &engines), "");
    if let Ok(engines) = &mut engines {
        engines.retain(|engine| engine.is_used);
    }
    let has_none = engines.as_ref().is_ok_and(Vec::is_empty);
    for (name, check, skip_reason) in ENGINE_CHECKS {
        begin(name);
        let skip_reason = if has_none { "no container engine is in use" } else { *skip_reason };
        add(CheckFamily::Engines, name, check_engines(*check, &engines), skip_reason);
    }
    checks
}

fn unread_finding(error: &HostError) -> Finding {
    let retry = Remedy::run("sudo onload-ctk doctor");
    let finding = Finding::unknown(ErrorChain(error).to_string(), retry);
    error.unread_path().iter().fold(finding, Finding::with_path)
}
