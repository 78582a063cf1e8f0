//! The adjustment of a container that an engine is about to create: the third applier, for engines that ask before
//! there is a bundle (NRI). The decision is that of the others.
//!
//! The image is not there yet. So its libc is not checked against libonload.so, its own /etc/ld.so.preload is not
//! merged, and mounts are compared by path: the runtime resolves links of the image, as with `--device`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use onload_cdi::oci::{HugepageLimit, InjectError, OciConfig, OciConfigError, Rlimit};
use onload_cdi::{ContainerEdits, Hook, HookName, Mount, validate_edits, variable_name};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::HookArguments;
use onload_core::request;
use onload_sys::error::{Context, Result};

use super::decision_input::DecisionInput;
use super::filter::{APPLYING, Filter, FilterOutcome};
use super::scan::ScanScope;
use crate::decide::host_view::{HostView, Privilege};
use crate::decide::pools::{PoolChoice, Pools};
use crate::decide::report::ContainerReport;
use crate::decide::subject::{CONFIG_JSON, ContainerRef};
use crate::decide::verified_node::VerifiedNode;
use crate::decide::{self, Decision, cpuset};

/// The variable by which the dynamic loader preloads libraries (ld.so(8)).
pub const LD_PRELOAD: &str = "LD_PRELOAD";

const LIMITS: [&str; 2] = ["RLIMIT_MEMLOCK", "RLIMIT_NOFILE"];

/// The changes to a container's configuration beyond those of its engine.
#[derive(Clone, Debug, Default)]
pub struct Adjustment {
    /// The place of the request, for messages.
    pub keys: String,
    /// The devices' qualified names, if they say all edits; an engine that resolves such names needs only them and
    /// the limits.
    pub names: Option<Vec<String>>,
    pub env: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub nodes: Vec<ContainerNode>,
    pub hooks: Vec<(HookName, Hook)>,
    /// The kinds of edits that a specification has beyond these, as CDI calls them.
    pub others: Vec<&'static str>,
    /// The limits that change.
    pub limits: Vec<Rlimit>,
    pub hugepage_limits: Vec<HugepageLimit>,
    pub report: ContainerReport,
    /// The devices that were chosen of pools, and are not reserved yet.
    pub choice: Option<PoolChoice>,
}

/// A device node in the container: always a character device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerNode {
    /// In the container.
    pub path: String,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    /// `None` for user 0.
    pub uid: Option<u32>,
    /// `None` for group 0.
    pub gid: Option<u32>,
    /// Letters of `rwm`.
    pub access: String,
}

/// Decides what a container gets. `config` is as much of its config.json as the engine tells of it;
/// `None` if it asks for nothing.
pub fn adjust(
    config: String,
    id: &ContainerId,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Option<Adjustment>> {
    let Some(input) = DecisionInput::parse(Arc::new(config), ScanScope::Annotations)? else {
        return Ok(None);
    };
    let settings = host.settings()?;
    let mut request = input.request;
    request.expand_bundles(&settings.config.bundles)?;
    let mut filter = Filter {
        container: ContainerRef { bundle: Path::new(""), id: Some(id), sees_exec: false },
        host,
        pools,
        settings,
        // The engine's runtime has every right, whatever this process has.
        privilege: Privilege {
            is_initial_namespace: true,
            may_raise_limits: true,
            memlock_hard: None,
            nofile_soft: None,
            nofile_hard: None,
        },
        request,
        tickets: Vec::new(),
        outcome: FilterOutcome::default(),
    };
    build_adjustment(&mut filter, &input.config).map(Some)
}

fn build_adjustment(filter: &mut Filter<'_>, config: &OciConfig) -> Result<Adjustment> {
    let mut decision = filter.decide(config, &|_| false)?;
    let (keys, memlock) = (decision.keys.clone(), decision.memlock);
    filter.outcome.report.granted = std::mem::take(&mut decision.granted);
    let reason =
        if request::is_pod_container(config) { cpuset::POD_REASON } else { cpuset::NRI_REASON };
    let not_set = cpuset::not_set_warning(&decision.placements, reason);
    filter.outcome.report.warnings.extend(not_set);
    let names = qualified_names(&mut decision, config).context(CONFIG_JSON)?;
    let mut limited = config.clone();
    let (edits, devices) = filter.build_edits(&mut limited, decision, None)?;
    filter.raise_memlock(&mut limited, memlock).context(CONFIG_JSON)?;
    filter.set_hugepage_limits(&mut limited).context(CONFIG_JSON)?;
    let limits = changed_limits(config, &limited).context(CONFIG_JSON)?;
    let hugepage_limits = changed_hugepage_limits(config, &limited).context(CONFIG_JSON)?;
    let nodes = to_container_nodes(&devices, config).context(CONFIG_JSON)?;
    let split = split_edits(edits)?;
    Ok(Adjustment {
        keys,
        names: names.filter(|names| !names.is_empty()),
        nodes,
        limits,
        hugepage_limits,
        report: std::mem::take(&mut filter.outcome.report),
        choice: filter.outcome.choice.take(),
        ..split
    })
}

/// The names of the devices, if they give what the edits would: nothing that the container sets itself takes
/// precedence, and libonload.so is preloaded as the specifications say, if at all.
fn qualified_names(
    decision: &mut Decision,
    config: &OciConfig,
) -> Result<Option<Vec<String>>, OciConfigError> {
    let names = decision.names.take();
    let is_by_file = decision.preload.mount.is_some();
    if names.is_none() || decision.preload.is_asked || is_by_file {
        return Ok(None);
    }
    let mut settings = BTreeSet::new();
    for (_, edits) in &decision.by_class {
        let names = edits.env.iter().map(|entry| variable_name(entry));
        settings
            .extend(names.filter(|name| *name == LD_PRELOAD || decide::is_onload_setting(name)));
    }
    let mut is_free = true;
    config.each_env(|entry| is_free &= !settings.contains(variable_name(entry)))?;
    Ok(names.filter(|_| is_free))
}

/// Returns the edits, except nodes, in parts that an engine can be told.
fn split_edits(edits: ContainerEdits) -> Result<Adjustment> {
    validate_edits(&edits).map_err(InjectError::from).context(APPLYING)?;
    let mut others = Vec::new();
    for (kind, is_there) in [
        ("netDevices", !edits.net_devices.is_empty()),
        ("intelRdt", edits.intel_rdt.is_some()),
        ("additionalGids", !edits.additional_gids.is_empty()),
    ] {
        others.extend(is_there.then_some(kind));
    }
    let mut env: Vec<(String, String)> = Vec::new();
    for (name, value) in edits.env.iter().filter_map(|entry| entry.split_once('=')) {
        // The last one counts.
        env.retain(|(held, _)| held != name);
        env.push((name.to_owned(), value.to_owned()));
    }
    let hooks = edits
        .hooks
        .into_iter()
        .filter(|hook| !is_limit_hook(hook))
        .filter_map(|hook| Some((hook.hook_name.parse::<HookName>().ok()?, hook)))
        .collect();
    let mounts = edits.mounts;
    Ok(Adjustment { env, mounts, hooks, others, ..Adjustment::default() })
}

/// Returns whether a hook is redundant: the limit is part of the adjustment, and the nodes were just checked. An engine
/// may refuse hooks altogether, so none is sent in vain.
fn is_limit_hook(hook: &Hook) -> bool {
    let Some(("createRuntime", mut arguments)) = HookArguments::from_command(&hook.args) else {
        return false;
    };
    arguments.expect.clear();
    arguments.memlock.take().is_some() && arguments == HookArguments::default()
}

fn to_container_nodes(
    devices: &[VerifiedNode],
    config: &OciConfig,
) -> Result<Vec<ContainerNode>, OciConfigError> {
    let user = config.user()?;
    // As CDI's libraries do: the user of the container's process, if it is not root.
    let own_id =
        |written: Option<u32>, process_id: u32| written.or((process_id > 0).then_some(process_id));
    let node = |device: &VerifiedNode| {
        let access = device.node.permissions.as_deref();
        ContainerNode {
            path: device.node.path.clone(),
            major: device.host_node.major,
            minor: device.host_node.minor,
            mode: device.node.file_mode.unwrap_or(device.host_node.mode),
            uid: own_id(device.node.uid, user.uid),
            gid: own_id(device.node.gid, user.gid),
            access: access.filter(|access| !access.is_empty()).unwrap_or("rwm").to_owned(),
        }
    };
    Ok(devices.iter().map(node).collect())
}

fn changed_limits(before: &OciConfig, after: &OciConfig) -> Result<Vec<Rlimit>, OciConfigError> {
    let mut changed = Vec::new();
    for name in LIMITS {
        let limit = after.rlimit(name)?;
        if limit != before.rlimit(name)? {
            changed.extend(limit);
        }
    }
    Ok(changed)
}

fn changed_hugepage_limits(
    before: &OciConfig,
    after: &OciConfig,
) -> Result<Vec<HugepageLimit>, OciConfigError> {
    let limits_before = before.hugepage_limits()?;
    let mut limits = after.hugepage_limits()?;
    limits.retain(|limit| !limits_before.contains(limit));
    Ok(limits)
}
