//! The function behind every entry point that changes a configuration before the runtime reads it:
//! config.json in, config.json out.
//!
//! It does not add what is already there. Several entry points therefore have the effect of one,
//! and applying twice has the effect of applying once.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use onload_cdi::oci::{
    self, CapabilitySet, Cpuset, HostNode, HugepageLimit, NodeLookup, OciConfig, OciConfigError,
    Rlimit,
};
use onload_cdi::{ContainerEdits, variable_name};
use onload_core::class::Class;
use onload_core::config::{Memlock, Preload, RootWithOnload};
use onload_core::device_id::DeviceId;
use onload_core::policy::HostRootAccess;
use onload_core::request::{self, Origin, Request};
use onload_core::token::Token;
use onload_sys::error::{Context, Result, bail};

use super::decision_input::DecisionInput;
use super::net_devices;
use super::scan::{self, ScanScope};
use crate::decide::cpu_placement::CpuPlacement;
use crate::decide::host_view::{HookSettings, HostView, Privilege};
use crate::decide::pools::{PoolChoice, Pools, Reservation};
use crate::decide::preload_choice::{LD_SO_PRELOAD, PreloadChoice};
use crate::decide::report::ContainerReport;
use crate::decide::root_access::{self, CAP_SETUID};
use crate::decide::subject::{CONFIG_JSON, ContainerRef, DecisionSubject};
use crate::decide::verified_node::VerifiedNode;
use crate::decide::{self, Decision, cpuset, variable};
use crate::image::overmount::{Overmount, Overmounts};
use crate::image::preload::{self, HostFile, PreloadContext};
use crate::image::{self, rdma_libraries};
use onload_sys::fs::container_root::ContainerRoot;

const CAP_IPC_LOCK: &str = "CAP_IPC_LOCK";

/// Context of failures to apply CDI edits.
pub(crate) const APPLYING: &str = "applying the specifications";

#[derive(Clone, Debug, Default)]
pub struct FilterOutcome {
    /// The new configuration; `None` if it is unchanged.
    pub config: Option<Vec<u8>>,
    /// A file to write on this host first.
    pub file: Option<HostFile>,
    pub report: ContainerReport,
    /// The devices that were chosen of pools; [`crate::record::lease::Reserver`] reserves them.
    pub choice: Option<PoolChoice>,
    pub reservation: Option<Reservation>,
    /// The container was judged by what its process may do, so CAP_SETUID must not come with a process
    /// that is started in it later either.
    pub guards_exec: bool,
}

/// Gives a container what its annotations request, and the variable of its environment. Nothing is written in any
/// case.
pub fn apply(
    json: &[u8],
    container: ContainerRef<'_>,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<FilterOutcome> {
    let scan_result = scan::read(json, json.len(), ScanScope::VariableToo, &mut |_, _| Ok(()));
    match DecisionInput::read(scan_result.context(CONFIG_JSON)?)? {
        Some(input) => apply_request(&input, container, host, pools),
        None => Ok(FilterOutcome::default()),
    }
}

/// As [`apply`], for a configuration that was already parsed and has a request.
pub(crate) fn apply_request(
    input: &DecisionInput,
    container: ContainerRef<'_>,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<FilterOutcome> {
    let settings = host.settings()?;
    let task = variable::task_dir(&input.config);
    let variable_request = variable::read(&input.variables, &settings, &|id| {
        pools.ticket(id, container, task.as_deref())
    })?;
    let mut request = input.request.clone();
    request.add_missing(variable_request.request)?;
    let outcome = FilterOutcome {
        report: ContainerReport::from_warnings(
            variable_request.warnings,
            settings.config.log.clone(),
        ),
        ..FilterOutcome::default()
    };
    if request == Request::default() && !input.moves_interfaces {
        return Ok(outcome);
    }
    request.expand_bundles(&settings.config.bundles)?;
    let mut filter = Filter {
        container,
        host,
        pools,
        settings,
        privilege: host.privilege(),
        request,
        tickets: variable_request.tickets,
        outcome,
    };
    filter.run(input.config.clone(), input.text.as_bytes())?;
    Ok(filter.outcome)
}

pub(super) struct Filter<'a> {
    pub(super) container: ContainerRef<'a>,
    pub(super) host: &'a dyn HostView,
    pub(super) pools: &'a dyn Pools,
    pub(super) settings: HookSettings,
    pub(super) privilege: Privilege,
    pub(super) request: Request,
    pub(super) tickets: Vec<(DeviceId, Token)>,
    pub(super) outcome: FilterOutcome,
}

impl Filter<'_> {
    fn run(&mut self, mut config: OciConfig, json: &[u8]) -> Result<()> {
        let has_process = config.process().is_some();
        self.guard_exec(&mut config).context(CONFIG_JSON)?;
        let gives_devices = !self.request.devices.is_empty();
        let root = gives_devices.then(|| image::open_root(self.container.bundle, &config));
        let lacks = |dir: &Path| matches!(&root, Some(Ok(Some(root))) if root.is_missing(dir));
        let mut decision = self.decide(&config, &lacks)?;
        let granted = std::mem::take(&mut decision.granted);
        let memlock = decision.memlock;
        let placements = std::mem::take(&mut decision.placements);
        if let Some(root) = root {
            let root = root?;
            if root.is_none() && decision.preload.mode == Preload::File {
                bail!(
                    "{}: preloading by file: the container's root is empty, as podman has it in a \
                     user namespace before it mounts the image, so its {LD_SO_PRELOAD} cannot be \
                     read; set onload.dev/preload: env",
                    self.request_keys(&[Class::Nic])
                );
            }
            let (edits, devices) = self.build_edits(&mut config, decision, root.as_ref())?;
            oci::apply(&mut config, &edits, &VerifiedNodes(&devices)).context(APPLYING)?;
        }
        let moved_reasons = net_devices::move_to_hook(&mut config, self.host, self.privilege)?;
        self.outcome.report.reasons.extend(moved_reasons);
        self.raise_memlock(&mut config, memlock).context(CONFIG_JSON)?;
        self.add_ipc_lock(&mut config).context(CONFIG_JSON)?;
        self.set_hugepage_limits(&mut config).context(CONFIG_JSON)?;
        self.apply_cpuset(&mut config, &placements)?;
        // Half a process is not a valid configuration.
        if !has_process && config.process().is_some() {
            bail!(
                "reading the configuration: it has no \"process\", which onload.dev annotations \
                 need; add one, or remove the annotations"
            );
        }
        let bytes = config.into_bytes();
        // Parsing drops only the white space around the document.
        self.outcome.config = (bytes != json.trim_ascii()).then_some(bytes);
        if self.outcome.config.is_some() {
            self.outcome.report.granted = granted;
        }
        Ok(())
    }

    pub(super) fn decide(
        &mut self,
        config: &OciConfig,
        lacks: &dyn Fn(&Path) -> bool,
    ) -> Result<Decision> {
        let subject = DecisionSubject {
            config,
            request: &self.request,
            tickets: &self.tickets,
            container: self.container,
            lacks,
        };
        let mut decision = decide::decide(subject, &self.settings, self.host, self.pools)?;
        self.outcome.choice = decision.choice.take();
        self.outcome.report.warnings.append(&mut decision.warnings);
        Ok(decision)
    }

    fn guard_exec(&mut self, config: &mut OciConfig) -> Result<(), OciConfigError> {
        let policy = &self.settings.config.annotations;
        self.outcome.guards_exec = policy.root_with_onload == RootWithOnload::Refuse
            && self.container.sees_exec
            && self.privilege.is_initial_namespace
            && self.request.requests_any(&Class::ONLOAD);
        if !self.outcome.guards_exec
            || root_access::assess(config, self.host)? != HostRootAccess::ByCapability(CAP_SETUID)
        {
            return Ok(());
        }
        let dropped = root_access::drop_setuid(config.process_mut());
        if dropped.map_err(|error| OciConfigError::Change(error.with_key("process")))? {
            self.outcome.report.warnings.push(format!(
                "{}: {CAP_SETUID} is removed from the container, because root-with-onload = \
                 \"refuse\" and a program of the image could use it to become the host's user 0",
                self.request_keys(&Class::ONLOAD)
            ));
        }
        Ok(())
    }

    /// Returns the edits to apply and the nodes that were found. Changes limits directly in the configuration.
    pub(super) fn build_edits(
        &mut self,
        config: &mut OciConfig,
        decision: Decision,
        root: Option<&ContainerRoot>,
    ) -> Result<(ContainerEdits, Vec<VerifiedNode>)> {
        self.refuse_hugetlbfs(config, &decision)?;
        let mut edits = decision.edits;
        self.add_rdma_libraries(&mut edits, config, &decision.rdma, root)?;
        self.apply_preload(&mut edits, config, decision.preload, root)?;
        leave_own_settings(&mut edits, config).context(CONFIG_JSON)?;
        edits.device_nodes = decision.devices.iter().map(|device| device.node.clone()).collect();
        check_targets(&edits, config, root).with_context(|| decision.keys)?;
        self.explain(&edits);
        Ok((edits, decision.devices))
    }

    /// hugetlbfs has no FS_USERNS_MOUNT (fs/hugetlbfs/inode.c), and runtimes mount it from within the container's namespaces.
    fn refuse_hugetlbfs(&self, config: &OciConfig, decision: &Decision) -> Result<()> {
        let has_hugetlbfs = decision
            .by_class
            .iter()
            .flat_map(|(_, edits)| &edits.mounts)
            .any(|mount| mount.type_.as_deref() == Some("hugetlbfs"));
        if !has_hugetlbfs {
            return Ok(());
        }
        let is_own = !config.namespace_paths("user").context(CONFIG_JSON)?.is_empty();
        if is_own || !self.privilege.is_initial_namespace {
            bail!(
                "{}: a hugetlbfs cannot be mounted in a container with its own user namespace; run the container as root without one, or use anonymous huge pages",
                self.request_keys(&[Class::Hugepages])
            );
        }
        Ok(())
    }

    fn apply_preload(
        &mut self,
        edits: &mut ContainerEdits,
        config: &mut OciConfig,
        choice: PreloadChoice,
        root: Option<&ContainerRoot>,
    ) -> Result<()> {
        let context = PreloadContext {
            settings: &self.settings,
            root,
            id: self.container.id,
            privilege: self.privilege,
            host: self.host,
        };
        let preload = preload::apply(choice, edits, config, &context)
            .with_context(|| self.request_keys(&[Class::Nic]))?;
        self.outcome.file = preload.file;
        self.outcome.report.warnings.extend(preload.report.warnings);
        self.outcome.report.reasons.extend(preload.report.reasons);
        Ok(())
    }

    /// Before the image is there, the hooks of the specification do it later.
    fn add_rdma_libraries(
        &mut self,
        edits: &mut ContainerEdits,
        config: &OciConfig,
        devices: &[String],
        root: Option<&ContainerRoot>,
    ) -> Result<()> {
        let Some(root) = root.filter(|_| !devices.is_empty()) else {
            return Ok(());
        };
        rdma_libraries::remove_from_hooks(&mut edits.hooks);
        let setting = self.settings.config.cdi.rdma_libraries;
        let library_choice = rdma_libraries::choose(devices, setting, config, root, self.host)
            .context(CONFIG_JSON)?;
        let mut misfit = library_choice.misfit;
        let libraries = ContainerEdits {
            mounts: library_choice
                .files
                .iter()
                .map(|(target, source)| rdma_libraries::mount(target, source))
                .collect(),
            ..ContainerEdits::default()
        };
        match check_targets(&libraries, config, Some(root)) {
            Ok(()) => edits.append(&libraries),
            Err(error) => {
                misfit =
                    Some(format!("the host's provider libraries cannot be mounted: {error:#}"));
            }
        }
        if let Some(why) = misfit {
            let what = format!("{} may not work", devices.join(", "));
            let warning = self.settings.refuse_or_warn(&what, &why, rdma_libraries::REMEDY);
            let warning = warning.with_context(|| self.request_keys(&[Class::Rdma]))?;
            self.outcome.report.warnings.push(warning);
        }
        self.outcome.report.reasons.extend(library_choice.reasons);
        Ok(())
    }

    fn explain(&mut self, edits: &ContainerEdits) {
        let class_reasons = self.request.devices.iter().map(|(class, entry)| {
            let names: Vec<String> = entry.value.iter().map(ToString::to_string).collect();
            let source = match entry.origin {
                Origin::Bundle(_) => format!("the bundle has {class}"),
                _ => format!("class {class} is allowed and provides"),
            };
            format!("{}: {source} {}", describe_origin(&entry.origin), names.join(", "))
        });
        self.outcome.report.reasons.splice(0..0, class_reasons);
        let reasons = &mut self.outcome.report.reasons;
        for node in &edits.device_nodes {
            let access = node.permissions.as_deref().unwrap_or("rwm");
            reasons.push(format!(
                "device node {} ({access}) exists and is the one its specification means",
                node.path
            ));
        }
        for mount in &edits.mounts {
            reasons.push(format!("mount {} from {}", mount.container_path, mount.host_path));
        }
        for hook in &edits.hooks {
            reasons.push(format!("hook {}: {}", hook.hook_name, hook.args.join(" ")));
        }
    }

    /// Never lowers it.
    pub(super) fn raise_memlock(
        &mut self,
        config: &mut OciConfig,
        memlock: Option<Memlock>,
    ) -> Result<(), OciConfigError> {
        const NAME: &str = "RLIMIT_MEMLOCK";
        let Some(memlock) = memlock else {
            return Ok(());
        };
        let memlock_bytes = memlock.bytes().unwrap_or(u64::MAX);
        let hard_limit = self.privilege.memlock_hard.unwrap_or(u64::MAX);
        let reachable = if self.privilege.may_raise_limits {
            memlock_bytes
        } else {
            memlock_bytes.min(hard_limit)
        };
        if reachable < memlock_bytes {
            self.outcome.report.warnings.push(format!(
                "{NAME} is raised only to {reachable} bytes: CAP_SYS_RESOURCE is missing"
            ));
        }
        let present_limit = config.rlimit(NAME)?;
        let (soft, hard) = present_limit.as_ref().map_or((0, 0), |limit| (limit.soft, limit.hard));
        let limit =
            Rlimit { type_: NAME.to_owned(), soft: soft.max(reachable), hard: hard.max(reachable) };
        if present_limit.as_ref() != Some(&limit) {
            config.set_rlimit(&limit)?;
            let set = match limit.soft {
                u64::MAX => "unlimited".to_owned(),
                bytes => format!("{bytes} bytes"),
            };
            let origin = Class::PINNING
                .iter()
                .find_map(|class| self.request.devices.get(class))
                .map(|entry| format!("{}: ", describe_origin(&entry.origin)))
                .unwrap_or_default();
            self.outcome.report.reasons.push(format!("{origin}{NAME} is {set}"));
        }
        Ok(())
    }

    /// A program of user 0 keeps what the bounding set allows. A program of another user keeps only
    /// ambient capabilities, which must be inheritable and permitted too (capabilities(7)).
    fn add_ipc_lock(&mut self, config: &mut OciConfig) -> Result<(), OciConfigError> {
        use CapabilitySet::{Ambient, Bounding, Effective, Inheritable, Permitted};
        let Some(entry) = &self.request.ipc_lock else {
            return Ok(());
        };
        let sets: &[CapabilitySet] = if config.user()?.uid == 0 {
            &[Bounding, Effective, Permitted]
        } else {
            &[Bounding, Effective, Permitted, Inheritable, Ambient]
        };
        config.add_capability(sets, CAP_IPC_LOCK)?;
        let reason = format!("{}: {CAP_IPC_LOCK}", describe_origin(&entry.origin));
        self.outcome.report.reasons.push(reason);
        Ok(())
    }

    pub(super) fn set_hugepage_limits(
        &mut self,
        config: &mut OciConfig,
    ) -> Result<(), OciConfigError> {
        let Some(entry) = &self.request.hugepages_limit else {
            return Ok(());
        };
        let mut limits = entry.value.clone();
        for HugepageLimit { page_size, limit } in &limits {
            self.outcome.report.reasons.push(format!(
                "{}: at most {limit} bytes in huge pages of {page_size}",
                describe_origin(&entry.origin)
            ));
        }
        let held = config.hugepage_limits()?;
        limits.retain(|limit| !held.contains(limit));
        if !limits.is_empty() {
            config.set_hugepage_limits(&limits)?;
        }
        Ok(())
    }

    fn apply_cpuset(&mut self, config: &mut OciConfig, placements: &[CpuPlacement]) -> Result<()> {
        let Some(first) = placements.first() else {
            return Ok(());
        };
        let is_of_pod = request::is_pod_container(config);
        if is_of_pod || !self.privilege.is_initial_namespace {
            let why = if is_of_pod { cpuset::POD_REASON } else { cpuset::ROOTLESS };
            self.outcome.report.warnings.extend(cpuset::not_set_warning(placements, why));
            return Ok(());
        }
        let path = config.cgroups_path().context(CONFIG_JSON)?;
        let present_cpuset = config.cpuset().context(CONFIG_JSON)?;
        let sysfs = self.host.sysfs();
        let chosen = cpuset::choose(placements, &present_cpuset, path.as_deref(), &sysfs)?;
        self.outcome.report.warnings.extend(chosen.warnings);
        for (what, list) in [("CPUs", &chosen.cpus), ("NUMA nodes", &chosen.mems)] {
            if let Some(list) = list {
                let reason = format!("{}: {what} {list}", describe_origin(&first.origin));
                self.outcome.report.reasons.push(reason);
            }
        }
        if chosen.cpus.is_some() || chosen.mems.is_some() {
            let (cpus, mems) = (chosen.cpus, chosen.mems);
            config.set_cpuset(&Cpuset { cpus, mems }).context(CONFIG_JSON)?;
        }
        Ok(())
    }

    fn request_keys(&self, classes: &[Class]) -> String {
        match classes.iter().find_map(|class| self.request.devices.get(class)) {
            Some(entry) => entry.origin.to_string(),
            None => decide::format_keys(&self.request),
        }
    }
}

/// Settings that the container brings take precedence over those of a specification.
fn leave_own_settings(
    edits: &mut ContainerEdits,
    config: &OciConfig,
) -> Result<(), OciConfigError> {
    let settings: BTreeSet<String> = edits
        .env
        .iter()
        .map(|entry| variable_name(entry))
        .filter(|name| decide::is_onload_setting(name))
        .map(str::to_owned)
        .collect();
    let mut present = BTreeSet::new();
    config.each_env(|entry| present.extend(settings.get(variable_name(entry))))?;
    edits.env.retain(|entry| !present.iter().any(|present| *present == variable_name(entry)));
    Ok(())
}

/// Refuses a mount target that would be created on the host.
fn check_targets(
    edits: &ContainerEdits,
    config: &OciConfig,
    root: Option<&ContainerRoot>,
) -> Result<()> {
    if edits.mounts.is_empty() && edits.device_nodes.is_empty() {
        return Ok(());
    }
    let mut overmounts = Vec::new();
    for mount in config.mounts() {
        let overmount = Overmount::new(&mount.destination(), &mount.type_(), &mount.options());
        overmounts.push(overmount.with_source(&mount.source()));
    }
    // In the order in which the runtime makes them, since a link may lie in an earlier one.
    if !edits.mounts.is_empty() {
        overmounts.sort_by_cached_key(|mount| oci::mount_depth(&mount.destination));
    }
    let overmounts = Overmounts::new(root, overmounts)?;
    overmounts.check_destinations()?;
    for mount in &edits.mounts {
        overmounts.check_creatable(&mount.container_path)?;
    }
    for node in &edits.device_nodes {
        overmounts.check_creatable(&node.path)?;
    }
    Ok(())
}

fn describe_origin(origin: &Origin) -> String {
    match origin.outermost() {
        Origin::Annotation(key) => key.clone(),
        _ => origin.to_string(),
    }
}

struct VerifiedNodes<'a>(&'a [VerifiedNode]);

impl NodeLookup for VerifiedNodes<'_> {
    fn node(&self, host_path: &str) -> io::Result<HostNode> {
        let device = self.0.iter().find(|device| device.source() == host_path);
        device.map(|device| device.host_node).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
