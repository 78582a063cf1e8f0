//! What is wrong with a host, and what to do about it. A check changes nothing, says what it looked at, and says
//! nothing where there is nothing to look at.

mod acs;
mod check;
mod cpu;
mod distribution;
mod engines;
mod examined;
mod gpudirect;
mod hugepages;
mod iommu;
mod kernel_line;
mod memlock;
mod onload;
mod pcie;
mod rdma;
mod security;
mod specs;
mod trust;
mod units;
mod unread;

use onload_sys::text::ErrorChain;

use engines::Engine;
use onload_host::host::HostError;

pub use check::{Check, Family, Finding, Remedy, Verdict};
pub use examined::Examined;
use examined::Findings;

/// The check that engines are looked for in, which names those that nobody uses, too.
const ENGINE: &str = "engine";

type OfHost = fn(&Examined<'_>) -> Findings;

const OF_HOST: &[(Family, &str, OfHost)] = &[
    (Family::Host, "config", unread::configuration),
    (Family::Host, "discovery", unread::discovery),
    (Family::Host, "onload-modules", onload::modules),
    (Family::Host, "onload-library", onload::library),
    (Family::Host, "onload-interface", onload::interface),
    (Family::Host, "interface-up", onload::link),
    (Family::Host, "af-xdp", onload::af_xdp),
    (Family::Host, "iommu", iommu::on),
    (Family::Host, "iommu-groups", iommu::groups),
    (Family::Host, "physical-functions", iommu::parents),
    (Family::Host, "hugepages", hugepages::near),
    (Family::Host, "pcie-link", pcie::links),
    (Family::Host, "cpu-governor", cpu::governor),
    (Family::Host, "isolated-cpus", cpu::isolated),
    (Family::Host, "hook", memlock::hook),
    (Family::Host, "memlock", memlock::limit),
    (Family::Rdma, "rdma-netns", rdma::netns_mode),
    (Family::Rdma, "rdma-cm", rdma::connection_manager),
    (Family::Rdma, "rdma-libraries", rdma::libraries),
    (Family::Rdma, "peer-memory", gpudirect::peer_memory),
    (Family::Rdma, "gpu-acs", acs::ports),
    (Family::Rdma, "gpu-iommu", gpudirect::iommu),
    (Family::Rdma, "gpu-node", gpudirect::node),
    (Family::Rdma, "data-direct", gpudirect::data_direct),
    (Family::Specs, "drained", specs::drained),
    (Family::Specs, "specs-fresh", specs::fresh),
    (Family::Specs, "specs-valid", specs::valid),
    (Family::Specs, "specs-conflict", specs::conflicts),
    (Family::Specs, "specs-readable", specs::readable),
    (Family::Trust, "trust", trust::files),
    (Family::Units, "units", units::enabled),
    (Family::Units, "udev-rules", units::rules),
    (Family::Security, "selinux", security::selinux),
    (Family::Security, "apparmor", security::apparmor),
];

type OfEngines = fn(&Examined<'_>, &[Engine]) -> Findings;

/// The others of [`Family::Engines`].
const OF_ENGINES: &[(&str, OfEngines)] = &[
    ("engine-version", engines::versions),
    ("engine-cdi", engines::cdi),
    ("engine-spec-dirs", engines::spec_dirs),
    ("engine-cdi-version", engines::readers),
    ("engine-runtime", engines::runtime),
    ("engine-default-runtime", engines::default_runtime),
    ("engine-hooks", engines::hooks),
    ("engine-restarted", engines::restarted),
    ("engine-restarts", engines::restarts),
    ("nri-plugin", engines::plugin),
];

pub fn names() -> impl Iterator<Item = &'static str> {
    let of_host = OF_HOST.iter().map(|(_, name, _)| *name);
    let of_engines = OF_ENGINES.iter().map(|(name, _)| *name);
    of_host.chain([ENGINE]).chain(of_engines)
}

pub fn examine(examined: &Examined<'_>, mut begin: impl FnMut(&'static str)) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |family, name, found: Findings| {
        let findings = found.unwrap_or_else(|error| vec![not_read(&error)]);
        checks.extend(findings.into_iter().map(|finding| Check { family, name, finding }));
    };
    for (family, name, look) in OF_HOST {
        begin(name);
        add(*family, name, look(examined));
    }
    // Programs are asked for their versions, which takes its time.
    begin(ENGINE);
    let mut engines = engines::engines(examined);
    let of_engines = |look: OfEngines, engines: &Result<Vec<Engine>, HostError>| match engines {
        Ok(engines) => look(examined, engines),
        Err(error) => Ok(vec![not_read(error)]),
    };
    add(Family::Engines, ENGINE, of_engines(engines::installed, &engines));
    if let Ok(engines) = &mut engines {
        engines.retain(|engine| engine.is_used);
    }
    for (name, look) in OF_ENGINES {
        begin(name);
        add(Family::Engines, name, of_engines(*look, &engines));
    }
    checks
}

fn not_read(error: &HostError) -> Finding {
    let again = Remedy::run("sudo onload-ctk doctor");
    let finding = Finding::unknown(ErrorChain(error).to_string(), again);
    error.unread_path().iter().fold(finding, Finding::at)
}
