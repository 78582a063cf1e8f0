//! Decides what one container gets, once, from the container's configuration, the operator's policy
//! and the host's specifications. The appliers only carry the decision out.

mod addresses;
pub(crate) mod cpu_placement;
pub(crate) mod cpuset;
pub(crate) mod existing;
mod gpus;
pub mod host_view;
mod interface_choice;
mod library_dirs;
pub(crate) mod nodes;
pub mod pools;
pub(crate) mod preload_choice;
pub mod report;
pub(crate) mod root_access;
pub mod specs;
pub mod subject;
pub mod sysfs;
pub mod variable;
pub mod verified_node;
mod vlans;

use std::sync::Arc;

use onload_cdi::{ContainerEdits, deduplicate};
use onload_core::class::Class;
use onload_core::config::Memlock;
use onload_core::hook_arguments::HookArguments;
use onload_core::onload::TCPDIRECT_ATTRIBUTES;
use onload_core::policy::{self, Policy};
use onload_core::request::{Origin, Origins, Request};
use onload_sys::error::{Context, Error, Result, error};
use onload_sys::text::{Quoted, ShortList};

use cpu_placement::CpuPlacement;
use host_view::{HookSettings, HostView};
use pools::{PoolChoice, Pools};
use preload_choice::PreloadChoice;
use specs::OnloadSpecs;
use subject::{CONFIG_JSON, DecisionSubject};
use verified_node::VerifiedNode;

/// The devices and settings that one container gets.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    /// The place of the request for devices, for messages.
    pub keys: String,
    /// The edits that the configuration does not contain yet, except device nodes and the preload.
    pub edits: ContainerEdits,
    /// All edits, class by class, whether the configuration contains them or not.
    pub by_class: Vec<(Class, ContainerEdits)>,
    pub devices: Vec<VerifiedNode>,
    /// The kernel's names of its RDMA devices.
    pub rdma: Vec<String>,
    /// The devices' qualified names, if an engine that resolves them would add exactly `by_class`: the
    /// request names no pool, and the configuration contains none of the edits.
    pub names: Option<Vec<String>>,
    pub granted: String,
    pub preload: PreloadChoice,
    /// The minimum RLIMIT_MEMLOCK, for classes that lock memory.
    pub memlock: Option<Memlock>,
    pub placements: Vec<CpuPlacement>,
    /// Members that are chosen from pools and not yet reserved.
    pub choice: Option<PoolChoice>,
    pub warnings: Vec<String>,
}

/// Decides for one container by the operator's policy.
pub(crate) fn decide(
    subject: DecisionSubject<'_>,
    settings: &HookSettings,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Decision> {
    let root = root_access::assess(subject.config, host).context(CONFIG_JSON)?;
    let policy = Policy {
        annotations: &settings.config.annotations,
        environment: &settings.config.environment,
        file: &settings.file,
    };
    let warnings = policy::check(subject.request, policy, &root)?;
    let mut decision = decide_without_policy(subject, settings, host, pools)?;
    decision.warnings = warnings;
    Ok(decision)
}

/// Like [`decide`], without checking who allowed it.
pub(crate) fn decide_without_policy(
    subject: DecisionSubject<'_>,
    settings: &HookSettings,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Decision> {
    let classes: Vec<Class> = subject.request.devices.keys().copied().collect();
    let specs =
        Arc::new(if classes.is_empty() { OnloadSpecs::default() } else { host.specs(&classes)? });
    let sysfs = host.sysfs();
    let chosen = pools::choose(subject, &specs, host, pools)?;
    let request = chosen.request.as_ref().unwrap_or(subject.request);
    let entries =
        specs.resolve(request).map_err(|error| explain_drained(error, request, &specs, host))?;
    let nodes = nodes::check(&entries, host, &sysfs)?;
    // Whether nothing is left out of what the specifications say.
    let mut is_as_written = true;
    let mut by_class = Vec::new();
    let mut edits = ContainerEdits::default();
    // The entries are ordered by class, as the request is, and each file is of one class.
    for entries in entries.chunk_by(|one, other| one.class == other.class) {
        let mut class_edits = specs.merge_edits(entries);
        is_as_written &= !interface_choice::drop_ambiguous(&mut class_edits, entries, request);
        edits.append(&class_edits);
        by_class.push((entries[0].class, class_edits));
    }
    // `nodes` has an entry for every node: all of them were checked.
    let device = |node: onload_cdi::DeviceNode| {
        let host_node = *nodes.get(node.source())?;
        Some(VerifiedNode { node, host_node })
    };
    let unique_nodes = deduplicate(std::mem::take(&mut edits.device_nodes));
    let mut devices = unique_nodes.into_iter().filter_map(device).collect();
    let keys = format_keys(request);
    chosen.name_tokens(&mut edits, settings);
    addresses::set(&mut edits, request)?;
    vlans::set(&mut edits, request, &settings.file)?;
    library_dirs::leave_absent(&mut edits.mounts, subject.lacks);
    let preload = PreloadChoice::take_from(&mut edits, request, &keys);
    let is_held = existing::drop_existing_edits(&mut edits, &mut devices, subject.config)
        .context(CONFIG_JSON)?;
    // A device's specification does not reflect what an option chooses.
    let is_chosen = request.addresses.is_some() || request.vlans.is_some();
    let is_whole = is_as_written && chosen.request.is_none() && !is_held && !is_chosen;
    let names = entries.iter().map(|entry| entry.resolved.name.to_string());
    let memlock = settings.config.cdi.memlock;
    Ok(Decision {
        keys,
        edits,
        rdma: find_rdma_devices(&by_class),
        by_class,
        devices,
        names: is_whole.then(|| names.collect()),
        preload,
        memlock: request.requests_any(&Class::PINNING).then_some(memlock),
        placements: cpu_placement::read_placements(request, &chosen.given, &specs, &sysfs),
        granted: report::describe_request(request),
        choice: chosen.choice,
        warnings: Vec::new(),
    })
}

/// The RDMA devices whose nodes the edits give, or that they move, by the arguments of their hooks.
fn find_rdma_devices(by_class: &[(Class, ContainerEdits)]) -> Vec<String> {
    let mut names = Vec::new();
    for (_, edits) in by_class.iter().filter(|(class, _)| *class == Class::Rdma) {
        for hook in &edits.hooks {
            if let Some((_, arguments)) = HookArguments::from_command(&hook.args) {
                names.extend(cpu_placement::rdma_in_arguments(&arguments));
            }
        }
    }
    deduplicate(names)
}

/// Whether a variable is a setting of Onload or TCPDirect. The container's own take precedence.
pub(crate) fn is_onload_setting(name: &str) -> bool {
    name.starts_with("EF_") || name == TCPDIRECT_ATTRIBUTES
}

/// Returns the place of a request for devices, for messages.
pub(crate) fn format_keys(request: &Request) -> String {
    let mut origins: Vec<&Origin> = Vec::new();
    for origin in request.devices.values().map(|entry| entry.origin.outermost()) {
        // A bundle requests all classes in one place.
        if !origins.contains(&origin) {
            origins.push(origin);
        }
    }
    Origins(&origins).to_string()
}

/// Why a device is in no specification, where that is because it is drained.
fn explain_drained(
    error: Error,
    request: &Request,
    specs: &OnloadSpecs,
    host: &dyn HostView,
) -> Error {
    let drain = match host.drain() {
        Ok(drain) if drain.is_empty() => return error,
        Ok(drain) => drain,
        Err(drain_error) => {
            return error!("{error:#}; could not determine what is drained: {drain_error:#}");
        }
    };
    for (class, entry) in &request.devices {
        let missing = entry
            .value
            .iter()
            .map(|device_ref| device_ref.name.as_str())
            .filter(|name| specs.find(*class, name).is_none());
        for name in missing {
            if let Some(drained) = drain.find(*class, name) {
                return error!("{}: {class} {} is {drained}", entry.origin, Quoted(name));
            }
            // It may be a pool, or `all`, of which nothing is left.
            let of_class: Vec<String> =
                drain.for_class(*class).map(|drained| drained.target.to_string()).collect();
            if !of_class.is_empty() {
                return error!(
                    "{error:#}; drained: {}, as \"onload-ctk drain\" shows",
                    ShortList(&of_class)
                );
            }
        }
    }
    error
}
