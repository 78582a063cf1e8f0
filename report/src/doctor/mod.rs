//! What is wrong with a host, and what to do about it. A check changes nothing, says what it looked at, and says
//! nothing where there is nothing to look at.

mod acs;
mod check;
mod context;
mod cpu;
mod device_links;
mod distribution;
mod engines;
mod gpudirect;
mod hugepages;
mod iommu;
mod kernel_line;
mod memlock;
mod onload;
mod pcie;
mod rdma;
mod returning;
mod security;
mod specs;
mod trust;
mod units;
mod unread;

use onload_sys::text::ErrorChain;

use engines::InstalledEngine;
use onload_host::host::HostError;

pub use check::{Check, CheckFamily, CheckVerdict, Finding, Remedy};
pub use context::CheckContext;
use context::Findings;

/// The check that engines are looked for in, which names those that nobody uses, too.
const ENGINE: &str = "engine";

type HostCheck = fn(&CheckContext<'_>) -> Findings;

const HOST_CHECKS: &[(CheckFamily, &str, HostCheck)] = &[
    (CheckFamily::Host, "config", unread::check_configuration),
    (CheckFamily::Host, "discovery", unread::check_discovery),
    (CheckFamily::Host, "onload-modules", onload::check_modules),
    (CheckFamily::Host, "onload-library", onload::check_library),
    (CheckFamily::Host, "onload-control-plane", onload::check_control_plane),
    (CheckFamily::Host, "onload-bond", onload::check_bonds),
    (CheckFamily::Host, "onload-interface", onload::check_interfaces),
    (CheckFamily::Host, "interface-up", onload::link),
    (CheckFamily::Host, "returning", returning::check_returning),
    (CheckFamily::Host, "af-xdp", onload::check_af_xdp),
    (CheckFamily::Host, "iommu", iommu::check_enabled),
    (CheckFamily::Host, "iommu-groups", iommu::check_groups),
    (CheckFamily::Host, "physical-functions", iommu::check_vf_parents),
    (CheckFamily::Host, "hugepages", hugepages::check_hugepages),
    (CheckFamily::Host, "pcie-link", pcie::check_links),
    (CheckFamily::Host, "cpu-governor", cpu::check_governor),
    (CheckFamily::Host, "isolated-cpus", cpu::check_isolated_cpus),
    (CheckFamily::Host, "device-links", device_links::check_links),
    (CheckFamily::Host, "hook", memlock::check_hook),
    (CheckFamily::Host, "memlock", memlock::check_limit),
    (CheckFamily::Rdma, "rdma-netns", rdma::check_netns_mode),
    (CheckFamily::Rdma, "rdma-cm", rdma::check_connection_manager),
    (CheckFamily::Rdma, "rdma-guid", rdma::check_guids),
    (CheckFamily::Rdma, "rdma-libraries", rdma::check_libraries),
    (CheckFamily::Rdma, "peer-memory", gpudirect::check_peer_memory),
    (CheckFamily::Rdma, "gpu-acs", acs::check_ports),
    (CheckFamily::Rdma, "gpu-iommu", gpudirect::check_iommu),
    (CheckFamily::Rdma, "gpu-node", gpudirect::check_numa_node),
    (CheckFamily::Rdma, "data-direct", gpudirect::check_data_direct),
    (CheckFamily::Specs, "drained", specs::check_drained),
    (CheckFamily::Specs, "specs-fresh", specs::check_up_to_date),
    (CheckFamily::Specs, "specs-valid", specs::check_valid),
    (CheckFamily::Specs, "specs-conflict", specs::check_conflicts),
    (CheckFamily::Specs, "specs-readable", specs::check_readable),
    (CheckFamily::Trust, "trust", trust::check_files),
    (CheckFamily::Units, "units", units::check_enabled),
    (CheckFamily::Units, "udev-rules", units::check_udev_rules),
    (CheckFamily::Security, "selinux", security::check_selinux),
    (CheckFamily::Security, "apparmor", security::check_apparmor),
];

type EnginesCheck = fn(&CheckContext<'_>, &[InstalledEngine]) -> Findings;

/// The others of [`CheckFamily::Engines`].
const ENGINE_CHECKS: &[(&str, EnginesCheck)] = &[
    ("engine-version", engines::check_versions),
    ("engine-cdi", engines::check_cdi),
    ("engine-spec-dirs", engines::check_spec_dirs),
    ("engine-cdi-version", engines::check_readers),
    ("engine-runtime", engines::check_runtime),
    ("engine-default-runtime", engines::default_runtime),
    ("engine-hooks", engines::check_hook_dirs),
    ("engine-restarted", engines::check_restarted),
    ("engine-restarts", engines::check_restarts),
    ("nri-plugin", engines::check_plugin),
];

pub fn list_check_names() -> impl Iterator<Item = &'static str> {
    let host_names = HOST_CHECKS.iter().map(|(_, name, _)| *name);
    let engine_names = ENGINE_CHECKS.iter().map(|(name, _)| *name);
    host_names.chain([ENGINE]).chain(engine_names)
}

pub fn run_checks(context: &CheckContext<'_>, mut begin: impl FnMut(&'static str)) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |family, name, result: Findings| {
        let findings = result.unwrap_or_else(|error| vec![unread_finding(&error)]);
        checks.extend(findings.into_iter().map(|finding| Check { family, name, finding }));
    };
    for (family, name, check) in HOST_CHECKS {
        begin(name);
        add(*family, name, check(context));
    }
    // Programs are asked for their versions, which takes its time.
    begin(ENGINE);
    let mut engines = engines::find_engines(context);
    let check_engines =
        |check: EnginesCheck, engines: &Result<Vec<InstalledEngine>, HostError>| match engines {
            Ok(engines) => check(context, engines),
            Err(error) => Ok(vec![unread_finding(error)]),
        };
    add(CheckFamily::Engines, ENGINE, check_engines(engines::check_installed, &engines));
    if let Ok(engines) = &mut engines {
        engines.retain(|engine| engine.is_used);
    }
    for (name, check) in ENGINE_CHECKS {
        begin(name);
        add(CheckFamily::Engines, name, check_engines(*check, &engines));
    }
    checks
}

fn unread_finding(error: &HostError) -> Finding {
    let retry = Remedy::run("sudo onload-ctk doctor");
    let finding = Finding::unknown(ErrorChain(error).to_string(), retry);
    error.unread_path().iter().fold(finding, Finding::with_path)
}
