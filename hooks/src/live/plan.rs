//! Plans the changes to a running container from its configuration and the host's specifications, and rejects changes
//! that are no longer possible. Nothing is changed here.

use std::fmt::Display;
use std::path::PathBuf;

use onload_cdi::oci::{CapabilitySet, DeviceRule, OciConfig, OciConfigError};
use onload_cdi::{ContainerEdits, Hook, Mount, variable_name};
use onload_core::class::Class;
use onload_core::config::{Memlock, Preload};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::{HookArguments, TakeArgument};
use onload_core::onload::{LIBRARY, PRELOAD_FILE};
use onload_core::request::{self, DeviceRef, Origin, Request, RequestEntry};
use onload_lease::run_dir::RUN_DIR;
use onload_sys::error::{Context, Error, Result, bail, error};
use onload_sys::mount_api::attr;
use onload_sys::netlink::nldev::RdmaChardev;

use crate::decide::host_view::{HookSettings, HostView, Privilege};
use crate::decide::pools::{PoolChoice, Pools};
use crate::decide::preload_choice::{LD_SO_PRELOAD, PreloadChoice, split};
use crate::decide::subject::{CONFIG_JSON, DecisionSubject};
use crate::decide::sysfs::DeviceNumber;
use crate::decide::verified_node::{CgroupRule, DeviceAccess, VerifiedNode};
use crate::decide::{self, Decision, cpuset};
use crate::image::preload::own_mount_error;
use crate::moves;
use crate::record::container_record::LiveInjection;

/// The file that tells a container's programs which members of pools it got: a hook cannot change an
/// environment.
pub(crate) const VARIABLES: &str = "/dev/onload-ctk.env";

/// RDMA devices that move into the container's network namespace, as a record names what was done.
pub(super) fn moved_rdma_names(arguments: &HookArguments) -> Vec<String> {
    arguments.rdma_netns.iter().map(|rdma| format!("rdma-netns {rdma}")).collect()
}

/// Whether all of it was done before.
pub(super) fn is_already_given(takes: &[String], before: Option<&LiveInjection>) -> bool {
    before.is_some_and(|before| takes.iter().all(|argument| before.takes.contains(argument)))
}

/// Whether a request was served before: that of annotations, or these requests of devices of a specification.
pub(super) fn is_served_before(takes: &[TakeArgument], before: Option<&LiveInjection>) -> bool {
    match takes {
        [] => before.is_some_and(|before| before.by_annotation),
        takes => is_already_given(&take_names(takes), before),
    }
}

fn take_names(takes: &[TakeArgument]) -> Vec<String> {
    takes.iter().map(ToString::to_string).collect()
}

/// Returns the request of devices of a specification.
pub(super) fn take_request(takes: &[TakeArgument]) -> Request {
    let mut request = Request::default();
    for argument in takes {
        let origin = Origin::Device(format!("{}={}", argument.class.cdi_kind(), argument.pool));
        let value = Vec::new();
        let entry = request.devices.entry(argument.class);
        entry
            .or_insert(RequestEntry { origin, value })
            .value
            .push(DeviceRef { name: argument.pool.to_string(), count: Some(argument.count) });
    }
    request
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BindMount {
    /// The file, directory or device node on the host.
    pub source: PathBuf,
    /// The path in the container.
    pub target: PathBuf,
    /// `MOUNT_ATTR_…`.
    pub attributes: u64,
    /// Whether the mounts below it are included.
    pub is_recursive: bool,
    /// The numbers that the device node must have, and the access that the container gets.
    pub rule: Option<CgroupRule>,
}

impl BindMount {
    /// Mounts a single file that is not a device node.
    pub(super) fn new(
        source: impl Into<PathBuf>,
        target: impl Into<PathBuf>,
        attributes: u64,
    ) -> Self {
        let (source, target) = (source.into(), target.into());
        BindMount { source, target, attributes, is_recursive: false, rule: None }
    }
}

/// How the library gets into the container's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PreloadPlan {
    pub choice: PreloadChoice,
    /// The maximum RLIMIT_NOFILE, in descriptors.
    pub nofile: u64,
}

impl PreloadPlan {
    /// How the list names the library: by its path, if the edits provide it. The loader accepts only a path for a
    /// set-user-ID program (elf/rtld.c, `do_preload`, `__RTLD_SECURE`).
    pub(super) fn library(&self) -> &str {
        self.choice.targets.first().map_or(LIBRARY, String::as_str)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct InjectionPlan {
    /// The place of the request, for messages.
    pub keys: String,
    pub binds: Vec<BindMount>,
    pub preload: Option<PreloadPlan>,
    pub memlock: Option<Memlock>,
    /// The devices to lease, as the specification's hooks would lease them.
    pub lease_arguments: Vec<HookArguments>,
    /// The RDMA devices that it gets, by the kernel's names.
    pub rdma: Vec<String>,
    /// RDMA devices for its network namespace, as its hooks would move them.
    pub moves: Vec<HookArguments>,
    /// The record of the injection: opened devices, leases, and the source of the request, by which a second call
    /// recognises that it is done. Process and variables are added when it is applied.
    pub record: LiveInjection,
    /// The members chosen from pools.
    pub choice: Option<PoolChoice>,
    /// The content of [`VARIABLES`]: variables that can no longer be added to the environment.
    pub variables: Option<String>,
    /// The granted devices, on one line.
    pub granted: String,
    pub warnings: Vec<String>,
}

/// This entry point cannot set the variable instead.
pub(super) fn list_in_the_way(key: &str, problem: &Error) -> Error {
    error!("{key}: {problem:#}; remove that, or set onload.dev/preload: off")
}

impl InjectionPlan {
    /// Describes the planned steps.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for bind in &self.binds {
            let (target, source) = (bind.target.display(), bind.source.display());
            reasons.push(format!("mount {target} from {source}"));
        }
        for rule in &self.record.rules {
            reasons.push(format!("device {} is opened", rule.numbers()));
        }
        if let Some(preload) = &self.preload {
            reasons.push(format!("{LD_SO_PRELOAD} names {}", preload.library()));
        }
        if let Some(limit) = &self.memlock {
            reasons.push(format!("RLIMIT_MEMLOCK is at least {limit}"));
        }
        reasons
    }

    /// Returns whether the configuration already contains everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.binds.is_empty()
            && self.record.rules.is_empty()
            && self.preload.is_none()
            && self.memlock.is_none()
            && self.lease_arguments.is_empty()
            && self.moves.is_empty()
    }

    /// Adds nodes that belong to the container already.
    pub(super) fn add_nodes(&mut self, nodes: &[RdmaChardev], config: &OciConfig) -> Result<()> {
        let rules = config.device_rules().context(CONFIG_JSON)?;
        for node in nodes {
            let DeviceNumber { major, minor } = node.number;
            let rule = CgroupRule { major, minor, access: DeviceAccess::READ_WRITE };
            let path = node.path();
            self.add_node(bind_node(&path, &path, rule), rule, &rules);
        }
        self.binds.sort_by_cached_key(mount_order);
        Ok(())
    }

    fn add_node(&mut self, bind: BindMount, rule: CgroupRule, rules: &[DeviceRule]) {
        let record = &mut self.record;
        if !rule.is_granted_by(rules) && !record.rules.contains(&rule) {
            record.rules.push(rule);
            record.nodes.push(bind.source.clone());
        }
        self.binds.push(bind);
    }
}

/// A mount comes before those below it.
fn mount_order(bind: &BindMount) -> (usize, PathBuf) {
    (bind.target.components().count(), bind.target.clone())
}

/// Decides for one container. Its annotations ask, for which the operator's policy holds, or the engine, by naming
/// devices of a specification, which are `takes` then. Users who may name them may have them.
pub(crate) fn decide(
    subject: DecisionSubject<'_>,
    takes: &[TakeArgument],
    id: &ContainerId,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<InjectionPlan> {
    let settings = host.settings()?;
    let mut request = subject.request.clone();
    request.expand_bundles(&settings.config.bundles)?;
    let subject = DecisionSubject { request: &request, ..subject };
    let decision = match takes {
        [] => decide::decide(subject, &settings, host, pools)?,
        _ => decide::decide_without_policy(subject, &settings, host, pools)?,
    };
    let planner = Planner {
        config: subject.config,
        request: subject.request,
        id,
        settings: &settings,
        decision: &decision,
    };
    let mut plan = planner.build(takes, host.privilege())?;
    plan.choice = decision.choice;
    plan.warnings.splice(0..0, decision.warnings);
    Ok(plan)
}

/// The plan for RDMA devices that move. Their nodes are known after that, and what would be refused then is refused now.
pub(crate) fn plan_moves(moves: &HookArguments, settings: &HookSettings) -> Result<InjectionPlan> {
    let names: Vec<&str> = moves.rdma_netns.iter().map(|rdma| &*rdma.ibdev).collect();
    let keys = format!("{}={}", Class::Rdma.cdi_kind(), names.join(","));
    refuse_closed(&keys, settings, "RDMA's mode shared")?;
    Ok(InjectionPlan { keys, moves: vec![moves.clone()], ..InjectionPlan::default() })
}

/// The node is the host's own where the container's user may open that and its files have no label of SELinux. Read-only
/// means that its mode and owner cannot be changed through the mount (EROFS); the device can still be opened for writing
/// (fs/open.c, `do_dentry_open`, `special_file`).
fn bind_node(
    source: impl Into<PathBuf>,
    target: impl Into<PathBuf>,
    rule: CgroupRule,
) -> BindMount {
    let attributes = attr::RDONLY | attr::NOSUID | attr::NOEXEC;
    BindMount { rule: Some(rule), ..BindMount::new(source, target, attributes) }
}

fn refuse_closed(key: &str, settings: &HookSettings, alternatives: &str) -> Result<()> {
    if settings.config.annotations.live_devices {
        return Ok(());
    }
    bail!(
        "{key}: live-devices = false in {}, so no device node is given to a container that its runtime has already created; use {alternatives}",
        settings.file.display()
    )
}

struct Planner<'a> {
    config: &'a OciConfig,
    request: &'a Request,
    id: &'a ContainerId,
    settings: &'a HookSettings,
    decision: &'a Decision,
}

impl Planner<'_> {
    fn build(&self, takes: &[TakeArgument], privilege: Privilege) -> Result<InjectionPlan> {
        self.refuse_requests()?;
        let not_set = self.check_cpuset()?;
        if let Some(what) = self.find_late_edit().context(CONFIG_JSON)? {
            return Err(too_late_error(&self.decision.keys, &what, self.alternatives()));
        }
        let mut plan = self.plan()?;
        plan.record.by_annotation = takes.is_empty();
        plan.record.takes = take_names(takes);
        plan.warnings.extend(not_set);
        if !plan.is_empty() && !privilege.is_initial_namespace {
            bail!(
                "{}: changing a container that its runtime has already created needs root; use {}",
                self.decision.keys,
                self.alternatives()
            );
        }
        if !takes.is_empty() {
            let edits = &self.decision.edits;
            plan.variables = Some(edits.env.iter().map(|entry| format!("{entry}\n")).collect());
        }
        Ok(plan)
    }

    /// Refuses what annotations other than those for devices request, unless the configuration has
    /// it.
    fn refuse_requests(&self) -> Result<()> {
        if let Some(entry) = &self.request.ipc_lock
            && !self.has_ipc_lock().context(CONFIG_JSON)?
        {
            return Err(too_late_error(&entry.origin, "CAP_IPC_LOCK", EARLY));
        }
        if let Some(entry) = &self.request.hugepages_limit {
            let limits = self.config.hugepage_limits().context(CONFIG_JSON)?;
            if !entry.value.iter().all(|limit| limits.contains(limit)) {
                return Err(too_late_error(&entry.origin, "limits on huge pages", EARLY));
            }
        }
        Ok(())
    }

    /// Refuses the CPUs and NUMA nodes of bundles, unless the configuration has some: the container's control
    /// group exists already. A container of a pod gets none in any case, which is a warning.
    fn check_cpuset(&self) -> Result<Option<String>> {
        let placements = &self.decision.placements;
        if request::is_pod_container(self.config) {
            return Ok(cpuset::not_set_warning(placements, cpuset::POD_REASON));
        }
        let cpuset = self.config.cpuset().context(CONFIG_JSON)?;
        for placement in placements {
            if placement.cpus.is_some() && cpuset.cpus.is_none()
                || placement.mems.is_some() && cpuset.mems.is_none()
            {
                let what = format!("cpus and mems of bundle {}", placement.bundle);
                return Err(too_late_error(&placement.origin, &what, EARLY));
            }
        }
        Ok(None)
    }

    fn has_ipc_lock(&self) -> Result<bool, OciConfigError> {
        use CapabilitySet::{Bounding, Effective, Permitted};
        let mut with = self.config.clone();
        with.add_capability(&[Bounding, Effective, Permitted], "CAP_IPC_LOCK")?;
        Ok(with.to_bytes() == self.config.to_bytes())
    }

    /// The first edit that can no longer be made.
    fn find_late_edit(&self) -> Result<Option<String>, OciConfigError> {
        let edits = &self.decision.edits;
        if let Some(entry) = self.missing_variable(edits)? {
            return Ok(Some(format!("the environment variable {}", variable_name(entry))));
        }
        if let Some(mount) = edits.mounts.iter().find(|mount| bind(mount).is_none()) {
            let kind = mount.type_.as_deref().unwrap_or("a special mount");
            return Ok(Some(format!("{kind} at {}", mount.container_path)));
        }
        for VerifiedNode { node, .. } in &self.decision.devices {
            if node.file_mode.is_some() || node.uid.is_some() || node.gid.is_some() {
                let what = format!("the device node {} with its own owner or mode", node.path);
                return Ok(Some(what));
            }
        }
        if let Some(hook) = edits.hooks.iter().find(|hook| !is_own_hook(hook)) {
            return Ok(Some(format!("the hook {}", hook.path)));
        }
        let has_more = !edits.net_devices.is_empty()
            || edits.intel_rdt.is_some()
            || !edits.additional_gids.is_empty();
        Ok(has_more.then(|| "network devices, cache classes or groups".to_owned()))
    }

    fn missing_variable<'e>(
        &self,
        edits: &'e ContainerEdits,
    ) -> Result<Option<&'e str>, OciConfigError> {
        let mut missing: Vec<&str> =
            edits.env.iter().map(String::as_str).filter(|entry| is_needed(entry)).collect();
        if !missing.is_empty() {
            self.config.each_env(|held| missing.retain(|entry| !replaces(held, entry)))?;
        }
        Ok(missing.first().copied())
    }

    fn plan(&self) -> Result<InjectionPlan> {
        let mut plan = InjectionPlan {
            keys: self.decision.keys.clone(),
            binds: self.decision.edits.mounts.iter().filter_map(bind).collect(),
            preload: self.plan_preload(&self.decision.preload)?,
            rdma: self.decision.rdma.clone(),
            granted: self.decision.granted.clone(),
            ..InjectionPlan::default()
        };
        self.add_nodes(&mut plan)?;
        plan.binds.sort_by_cached_key(mount_order);
        (plan.memlock, plan.warnings) = self.plan_memlock().context(CONFIG_JSON)?;
        for hook in &self.decision.edits.hooks {
            if let Some(("createRuntime" | "prestart", arguments)) =
                HookArguments::from_command(&hook.args)
                && !arguments.lease.is_empty()
            {
                let (rest, moving) = moves::split(&arguments);
                plan.lease_arguments.push(rest);
                plan.moves.push(moving);
            }
        }
        plan.lease_arguments.retain(|arguments| !arguments.lease.is_empty());
        plan.moves.retain(|moving| !moving.rdma_netns.is_empty());
        for moving in &plan.moves {
            plan_moves(moving, self.settings)?;
        }
        Ok(plan)
    }

    fn add_nodes(&self, plan: &mut InjectionPlan) -> Result<()> {
        let devices = &self.decision.devices;
        if !devices.is_empty() {
            refuse_closed(&self.decision.keys, self.settings, self.alternatives())?;
        }
        let rules = self.config.device_rules().context(CONFIG_JSON)?;
        for device in devices {
            let rule = device.rule().with_context(|| format!("device node {}", device.path()))?;
            plan.add_node(bind_node(device.source(), device.path(), rule), rule, &rules);
        }
        Ok(())
    }

    fn plan_preload(&self, choice: &PreloadChoice) -> Result<Option<PreloadPlan>> {
        let by_env = self.has_variable(&choice.libraries).context(CONFIG_JSON)?;
        let key = &choice.key;
        let is_env = choice.mode == Preload::Env;
        if choice.mode == Preload::Off || by_env && (is_env || !choice.is_asked) {
            return Ok(None);
        }
        // A specification's variable comes too late; the list has the same effect.
        if is_env && choice.is_asked {
            let alternatives = format!("{}, or set onload.dev/preload: file", self.alternatives());
            let what = "LD_PRELOAD in its environment";
            return Err(too_late_error(key, what, &alternatives));
        }
        if self.has_list(choice.mount.as_ref(), key)? {
            return Ok(None);
        }
        Ok(Some(PreloadPlan { choice: choice.clone(), nofile: self.plan_nofile(key)? }))
    }

    fn has_variable(&self, libraries: &[String]) -> Result<bool, OciConfigError> {
        let own = self.config.env_value("LD_PRELOAD")?.unwrap_or_default();
        let is_held = |library: &str| split(&own).any(|held| held == library);
        Ok(match libraries {
            [] => is_held(LIBRARY),
            libraries => libraries.iter().all(|library| is_held(library)),
        })
    }

    /// Whether the configuration mounts this package's list.
    fn has_list(&self, from_spec: Option<&Mount>, key: &str) -> Result<bool> {
        let mut mounts = self.config.mounts().iter().rev();
        let Some(present) = mounts.find(|mount| mount.destination() == LD_SO_PRELOAD) else {
            return Ok(false);
        };
        let standard = from_spec.map_or(PRELOAD_FILE, |mount| mount.host_path.as_str());
        let source = present.source();
        if source == standard || source == format!("{RUN_DIR}/{}/ld.so.preload", self.id) {
            return Ok(true);
        }
        Err(list_in_the_way(key, &own_mount_error()))
    }

    /// A process that is executed in the container later has the limits of the configuration, not
    /// those that its init was given.
    fn plan_nofile(&self, key: &str) -> Result<u64> {
        let size = u64::from(self.settings.config.cdi.fdtable_size);
        let max = size.max(OF_PODMAN);
        let variables = match self.config.rlimit("RLIMIT_NOFILE").context(CONFIG_JSON)? {
            Some(limit) if limit.hard <= max && limit.soft <= max => return Ok(max),
            Some(limit) => format!("an RLIMIT_NOFILE of {}", limit.hard.max(limit.soft)),
            None => "no own RLIMIT_NOFILE".to_owned(),
        };
        bail!(
            "{key}: the container has {variables}, by which {LIBRARY} sizes a table in every \
             process; start it with --ulimit nofile={size}:{size} (CRI-O: default_ulimits = \
             [\"nofile={size}:{size}\"] in crio.conf), or set onload.dev/preload: off"
        )
    }

    fn plan_memlock(&self) -> Result<(Option<Memlock>, Vec<String>), OciConfigError> {
        let Some(memlock) = self.decision.memlock else {
            return Ok((None, Vec::new()));
        };
        let bytes = memlock.bytes().unwrap_or(u64::MAX);
        let mut warnings = Vec::new();
        if let Some(limit) = self.config.rlimit("RLIMIT_MEMLOCK")? {
            if limit.soft >= bytes && limit.hard >= bytes {
                return Ok((None, warnings));
            }
            warnings.push(format!(
                "config.json sets RLIMIT_MEMLOCK to {} bytes, which runc applies after this hook; \
                 remove that limit to get {memlock}",
                limit.soft
            ));
        }
        Ok((Some(memlock), warnings))
    }

    /// Entry points that can still give all of it.
    fn alternatives(&self) -> &'static str {
        if self.request.ipc_lock.is_some() || self.request.hugepages_limit.is_some() {
            return EARLY;
        }
        "the engine's --device, the runtime onload or `onload-hook precreate`"
    }
}

/// The limit of open files that podman gives containers. A descriptor table of that size takes 8 MiB for its pointers.
const OF_PODMAN: u64 = 1_048_576;

/// The entry points that act before the runtime reads the configuration.
const EARLY: &str = "the runtime onload or `onload-hook precreate`";

fn too_late_error(key: impl Display, what: &str, alternatives: &str) -> Error {
    error!(
        "{key}: a container that its runtime has already created cannot be given {what}; use {alternatives}"
    )
}

/// Not a variable that only states what was given, or belongs to a preload that is done in another way.
fn is_needed(entry: &str) -> bool {
    let name = variable_name(entry);
    !matches!(name, "LD_PRELOAD" | "EF_FDTABLE_SIZE") && !name.starts_with("ONLOAD_CTK_")
}

/// Whether a variable of the container makes a wanted one unnecessary. The container's own settings of
/// Onload and TCPDirect take precedence.
fn replaces(held: &str, wanted: &str) -> bool {
    held == wanted
        || decide::is_onload_setting(variable_name(wanted))
            && variable_name(held) == variable_name(wanted)
}

/// Whether this entry point itself does what a hook would do.
fn is_own_hook(hook: &Hook) -> bool {
    match HookArguments::from_command(&hook.args) {
        Some(("createRuntime" | "prestart", _)) => true,
        // Without arguments it cleans up, with those of a lease it releases that.
        Some(("poststop", arguments)) => arguments.is_empty() || arguments.needs_poststop(),
        _ => false,
    }
}

/// Converts a specification's mount to a bind mount; `None` if it is another kind of mount, or has
/// an option that is more than an attribute.
fn bind(mount: &Mount) -> Option<BindMount> {
    let kind = mount.type_.as_deref().unwrap_or_default();
    let mut is_bind = kind == "bind";
    let mut is_recursive = false;
    let mut attributes = 0;
    for option in &mount.options {
        match option.as_str() {
            "bind" => is_bind = true,
            "rbind" => (is_bind, is_recursive) = (true, true),
            "ro" => attributes |= attr::RDONLY,
            "nosuid" => attributes |= attr::NOSUID,
            "nodev" => attributes |= attr::NODEV,
            "noexec" => attributes |= attr::NOEXEC,
            "rw" | "suid" | "dev" | "exec" | "private" | "rprivate" => {}
            _ => return None,
        }
    }
    (is_bind && matches!(kind, "" | "bind" | "none")).then(|| BindMount {
        is_recursive,
        ..BindMount::new(&mount.host_path, &mount.container_path, attributes)
    })
}
