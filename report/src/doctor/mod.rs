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

use onload_sys::text::Chain;

use engines::Engine;
use onload_host::host::HostError;

pub use check::{Check, Family, Finding, Remedy, Verdict};
pub use examined::Examined;
use examined::Findings;

/// The check that names engines which nobody uses, too.
const ENGINE: &str = "engine";

type Entry = (Family, &'static str, Look);

#[derive(Clone, Copy)]
enum Look {
    Host(fn(&Examined<'_>) -> Findings),
    /// At its engines, which are looked for once.
    Engines(fn(&Examined<'_>, &[Engine]) -> Findings),
}

const CHECKS: &[Entry] = &[
    (Family::Host, "config", Look::Host(unread::configuration)),
    (Family::Host, "discovery", Look::Host(unread::discovery)),
    (Family::Host, "onload-modules", Look::Host(onload::modules)),
    (Family::Host, "onload-library", Look::Host(onload::library)),
    (
        Family::Host,
        "onload-interface",
        Look::Host(onload::interface),
    ),
    (Family::Host, "interface-up", Look::Host(onload::link)),
    (Family::Host, "af-xdp", Look::Host(onload::af_xdp)),
    (Family::Host, "iommu", Look::Host(iommu::on)),
    (Family::Host, "iommu-groups", Look::Host(iommu::groups)),
    (
        Family::Host,
        "physical-functions",
        Look::Host(iommu::parents),
    ),
    (Family::Host, "hugepages", Look::Host(hugepages::near)),
    (Family::Host, "pcie-link", Look::Host(pcie::links)),
    (Family::Host, "cpu-governor", Look::Host(cpu::governor)),
    (Family::Host, "isolated-cpus", Look::Host(cpu::isolated)),
    (Family::Host, "hook", Look::Host(memlock::hook)),
    (Family::Host, "memlock", Look::Host(memlock::limit)),
    (Family::Rdma, "rdma-netns", Look::Host(rdma::netns_mode)),
    (
        Family::Rdma,
        "rdma-cm",
        Look::Host(rdma::connection_manager),
    ),
    (Family::Rdma, "rdma-libraries", Look::Host(rdma::libraries)),
    (
        Family::Rdma,
        "peer-memory",
        Look::Host(gpudirect::peer_memory),
    ),
    (Family::Rdma, "gpu-acs", Look::Host(acs::ports)),
    (Family::Rdma, "gpu-iommu", Look::Host(gpudirect::iommu)),
    (Family::Rdma, "gpu-node", Look::Host(gpudirect::node)),
    (
        Family::Rdma,
        "data-direct",
        Look::Host(gpudirect::data_direct),
    ),
    (Family::Specs, "drained", Look::Host(specs::drained)),
    (Family::Specs, "specs-fresh", Look::Host(specs::fresh)),
    (Family::Specs, "specs-valid", Look::Host(specs::valid)),
    (
        Family::Specs,
        "specs-conflict",
        Look::Host(specs::conflicts),
    ),
    (Family::Specs, "specs-readable", Look::Host(specs::readable)),
    (Family::Trust, "trust", Look::Host(trust::files)),
    (Family::Units, "units", Look::Host(units::enabled)),
    (Family::Units, "udev-rules", Look::Host(units::rules)),
    (Family::Security, "selinux", Look::Host(security::selinux)),
    (Family::Security, "apparmor", Look::Host(security::apparmor)),
    (Family::Engines, ENGINE, Look::Engines(engines::installed)),
    (
        Family::Engines,
        "engine-version",
        Look::Engines(engines::versions),
    ),
    (Family::Engines, "engine-cdi", Look::Engines(engines::cdi)),
    (
        Family::Engines,
        "engine-spec-dirs",
        Look::Engines(engines::spec_dirs),
    ),
    (
        Family::Engines,
        "engine-cdi-version",
        Look::Engines(engines::readers),
    ),
    (
        Family::Engines,
        "engine-runtime",
        Look::Engines(engines::runtime),
    ),
    (
        Family::Engines,
        "engine-default-runtime",
        Look::Engines(engines::default_runtime),
    ),
    (
        Family::Engines,
        "engine-hooks",
        Look::Engines(engines::hooks),
    ),
    (
        Family::Engines,
        "engine-restarted",
        Look::Engines(engines::restarted),
    ),
    (
        Family::Engines,
        "engine-restarts",
        Look::Engines(engines::restarts),
    ),
    (
        Family::Engines,
        "nri-plugin",
        Look::Engines(engines::plugin),
    ),
];

pub fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(_, name, _)| *name)
}

pub fn examine(examined: &Examined<'_>, mut begin: impl FnMut(&'static str)) -> Vec<Check> {
    let (mut engines, mut used) = (None, Vec::new());
    let checks = CHECKS.iter().flat_map(|(family, name, look)| {
        begin(name);
        let found = match look {
            Look::Host(look) => look(examined),
            Look::Engines(look) => {
                let engines = engines.get_or_insert_with(|| {
                    let engines = engines::engines(examined);
                    let all = engines.as_deref().unwrap_or_default().iter();
                    used = all.filter(|engine| engine.is_used).cloned().collect();
                    engines
                });
                match engines {
                    Ok(engines) if *name == ENGINE => look(examined, engines),
                    Ok(_) => look(examined, &used),
                    Err(error) => Ok(vec![not_read(error)]),
                }
            }
        };
        let findings = found.unwrap_or_else(|error| vec![not_read(&error)]);
        let check = |finding| Check {
            family: *family,
            name,
            finding,
        };
        findings.into_iter().map(check).collect::<Vec<_>>()
    });
    checks.collect()
}

fn not_read(error: &HostError) -> Finding {
    let again = Remedy::run("sudo onload-ctk doctor");
    let finding = Finding::unknown(Chain(error).to_string(), again);
    error.unread().iter().fold(finding, Finding::at)
}
