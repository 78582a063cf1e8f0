//! The one function behind every door that changes a configuration before the runtime reads it:
//! config.json in, config.json out.
//!
//! What is there already is not added again, so that several doors give what one gives, and
//! applying twice gives what applying once gives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use onload_cdi::json::RawError;
use onload_cdi::oci::{
    self, CapabilitySet, ConfigError, DeviceRule, HugepageLimit, InjectError, MountEntry, NodeInfo,
    OciConfig, OciHook, Rlimit,
};
use onload_cdi::{ContainerEdits, DeviceNode, Hook, HookName};
use onload_core::class::Class;
use onload_core::config::{Memlock, RootWithOnload};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::HookArguments;
use onload_core::policy::{self, MEMLOCK, ONLOAD, PolicyError};
use onload_core::request::{Request, RequestError};
use onload_core::text::{Chain, Quoted};

use crate::container_root::{ContainerRoot, RootError};
use crate::cover::{Cover, CoverError, Covers};
use crate::host::{Host, HostError, Privilege, Settings};
use crate::host_root::{self, CAP_SETUID};
use crate::nodes::{self, NodeError, Nodes};
use crate::preload::{self, Circumstances, HostFile, PreloadError};
use crate::scan;
use crate::specs::SpecsError;
use onload_core::policy::HostRoot;

/// The capability behind `ipc-lock`.
const CAP_IPC_LOCK: &str = "CAP_IPC_LOCK";

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// config.json cannot be read or changed.
    #[error("config.json: {}", Chain(.0))]
    Config(ConfigError),
    /// config.json asks, and is larger than any real one.
    #[error(
        "config.json has annotations of onload.dev and is larger than {} bytes",
        scan::MAX_BYTES
    )]
    TooLarge,
    /// The annotations make no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The operator does not allow it.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The host's files cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The specifications cannot be used, or do not offer a name.
    #[error(transparent)]
    Specs(#[from] SpecsError),
    /// A device node is not what it should be.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The container's root cannot be used.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A mount target would be created on the host.
    #[error("annotation {key}: {error}")]
    Cover {
        /// The annotations, quoted.
        key: String,
        /// Where.
        error: CoverError,
    },
    /// The preload is not possible.
    #[error("annotation {key}: {}", Chain(.error))]
    Preload {
        /// The annotation, quoted.
        key: String,
        /// Why.
        error: PreloadError,
    },
    /// The edits cannot be applied.
    #[error("applying the specifications: {}", Chain(.0))]
    Inject(InjectError),
    /// Something that only root can give.
    #[error(
        "annotation {key}: a hugetlbfs cannot be mounted in a user namespace of one's own; run the container as root, or use anonymous huge pages"
    )]
    Rootless {
        /// The annotation, quoted.
        key: String,
    },
}

impl From<ConfigError> for FilterError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<InjectError> for FilterError {
    fn from(error: InjectError) -> Self {
        Self::Inject(error)
    }
}

/// What became of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The new configuration; none where it stays as it is.
    pub config: Option<Vec<u8>>,
    /// A file to write on this host first.
    pub file: Option<HostFile>,
    /// Lines for people.
    pub warnings: Vec<String>,
    /// What was given, and why.
    pub reasons: Vec<String>,
    /// The container was judged by what its process may do, so CAP_SETUID must not come with a process
    /// that is started in it later either.
    pub guards_exec: bool,
}

/// The container that a configuration is for.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// The directory that `root.path` is relative to.
    pub bundle: &'a Path,
    /// Its name, where the door knows it.
    pub id: Option<&'a ContainerId>,
    /// Whether whoever asks also sees the processes that are started in the container later: without
    /// that, a capability that is taken from the first one would come back with the next.
    pub sees_exec: bool,
}

/// Gives a container what its annotations ask for.
///
/// # Errors
/// [`FilterError`] names the annotation, the cause and the remedy; nothing is written in any case.
pub fn apply(
    json: &[u8],
    container: Container<'_>,
    host: &dyn Host,
) -> Result<Outcome, FilterError> {
    if !scan::asks(json) {
        return Ok(Outcome::default());
    }
    apply_text(&text(json.to_vec())?, container, host)
}

/// A configuration that was read as text; it is not copied from here on.
///
/// # Errors
/// [`FilterError::Config`] where it is none.
pub fn text(json: Vec<u8>) -> Result<Arc<String>, FilterError> {
    let text = String::from_utf8(json).map(Arc::new);
    text.map_err(|error| {
        let error = RawError::Utf8(error.utf8_error().valid_up_to());
        ConfigError::Read(error).into()
    })
}

/// The same as [`apply`] for a configuration that asks, as [`scan::asks`] says it.
///
/// # Errors
/// As for [`apply`].
pub fn apply_text(
    json: &Arc<String>,
    container: Container<'_>,
    host: &dyn Host,
) -> Result<Outcome, FilterError> {
    let config = OciConfig::parse_text(Arc::clone(json))?;
    let Some(request) = Request::parse(&config)? else {
        return Ok(Outcome::default());
    };
    let filter = Filter {
        container,
        host,
        settings: host.settings()?,
        privilege: host.privilege(),
        request,
        outcome: Outcome::default(),
    };
    filter.run(config, json.as_bytes())
}

struct Filter<'a> {
    container: Container<'a>,
    host: &'a dyn Host,
    settings: Settings,
    privilege: Privilege,
    request: Request,
    outcome: Outcome,
}

impl Filter<'_> {
    fn run(mut self, mut config: OciConfig, json: &[u8]) -> Result<Outcome, FilterError> {
        self.judge(&mut config)?;
        let (mut edits, nodes) = self.look_up()?;
        if !self.request.devices.is_empty() {
            let path = self
                .container
                .bundle
                .join(config.root_path()?.unwrap_or_default());
            let root = ContainerRoot::open(&path)?;
            self.preload(&mut edits, &mut config, &root)?;
            self.leave_own_settings(&mut edits, &config)?;
            leave_present(&mut edits, &config, &nodes)?;
            self.check_targets(&edits, &config, &root)?;
            self.explain(&edits);
            oci::apply(&mut config, &edits, &nodes)?;
        }
        self.memlock(&mut config)?;
        self.ipc_lock(&mut config)?;
        self.hugepages_limit(&mut config)?;
        let bytes = config.to_bytes();
        // White space around the document is all that reading drops.
        self.outcome.config = (bytes != json.trim_ascii()).then_some(bytes);
        Ok(self.outcome)
    }

    fn judge(&mut self, config: &mut OciConfig) -> Result<(), FilterError> {
        let policy = &self.settings.config.annotations;
        let mut root = host_root::look(config, self.host)?;
        let is_refused = policy.root_with_onload == RootWithOnload::Refuse;
        self.outcome.guards_exec = is_refused
            && self.container.sees_exec
            && self.privilege.is_initial_namespace
            && self.request.wants(&ONLOAD);
        if self.outcome.guards_exec && root == HostRoot::ByCapability(CAP_SETUID) {
            let in_process = |error: RawError| ConfigError::Change(error.at("process"));
            if host_root::take_setuid(config.process_mut()).map_err(in_process)? {
                self.outcome.warnings.push(format!(
                    "annotation {}: {CAP_SETUID} is taken from the container, since root-with-onload = \"refuse\" and a program of the image could become the host's user 0 by it",
                    self.key(&ONLOAD)
                ));
            }
            root = host_root::look(config, self.host)?;
        }
        let warnings = policy::judge(&self.request, policy, &self.settings.file, &root)?;
        self.outcome.warnings.extend(warnings);
        Ok(())
    }

    fn look_up(&self) -> Result<(ContainerEdits, Nodes), FilterError> {
        let found = look_up(&self.request, self.host)?;
        let is_hugetlbfs = |mount: &onload_cdi::Mount| mount.type_.as_deref() == Some("hugetlbfs");
        if !self.privilege.is_initial_namespace && found.edits.mounts.iter().any(is_hugetlbfs) {
            return Err(FilterError::Rootless {
                key: self.key(&[Class::Hugepages]),
            });
        }
        Ok((found.edits, found.nodes))
    }

    fn preload(
        &mut self,
        edits: &mut ContainerEdits,
        config: &mut OciConfig,
        root: &ContainerRoot,
    ) -> Result<(), FilterError> {
        let now = Circumstances {
            request: &self.request,
            settings: &self.settings,
            root,
            id: self.container.id,
            privilege: self.privilege,
        };
        let applied = preload::apply(edits, config, &now, self.host).map_err(|error| {
            FilterError::Preload {
                key: self.key(&[Class::Nic]),
                error,
            }
        })?;
        self.outcome.warnings.extend(applied.warnings);
        self.outcome.reasons.extend(applied.reasons);
        self.outcome.file = applied.file;
        Ok(())
    }

    /// Settings of Onload that the container brings win over those of a profile.
    fn leave_own_settings(
        &mut self,
        edits: &mut ContainerEdits,
        config: &OciConfig,
    ) -> Result<(), FilterError> {
        fn name(entry: &str) -> &str {
            entry.split('=').next().unwrap_or_default()
        }
        let settings = edits.env.iter().map(|entry| name(entry));
        let settings: BTreeSet<String> = settings
            .filter(|name| name.starts_with("EF_"))
            .map(str::to_owned)
            .collect();
        let mut held = BTreeSet::new();
        config.each_env(|entry| {
            held.extend(settings.get(name(entry)));
        })?;
        edits
            .env
            .retain(|entry| !held.contains(&name(entry).to_owned()));
        Ok(())
    }

    fn check_targets(
        &self,
        edits: &ContainerEdits,
        config: &OciConfig,
        root: &ContainerRoot,
    ) -> Result<(), FilterError> {
        let targets: Vec<&str> = edits
            .mounts
            .iter()
            .map(|mount| mount.container_path.as_str())
            .chain(nodes::paths(edits))
            .collect();
        if targets.is_empty() {
            return Ok(());
        }
        let failed = |error: CoverError| FilterError::Cover {
            key: self.keys(),
            error,
        };
        let read = |mount: &MountEntry| {
            Cover::new(&mount.destination(), &mount.type_(), &mount.options())
                .from_source(&mount.source())
        };
        let mut covers: Vec<Cover> = config.mounts().iter().map(read).collect();
        // In the order in which they will be made, since a link may lie in an earlier one.
        if !edits.mounts.is_empty() {
            covers.sort_by_cached_key(|cover| oci::depth(&cover.destination));
        }
        let covers = Covers::new(root, covers).map_err(failed)?;
        covers.none_astray().map_err(failed)?;
        for target in targets {
            covers.may_create(target).map_err(failed)?;
        }
        Ok(())
    }

    fn explain(&mut self, edits: &ContainerEdits) {
        let asked = self.request.devices.iter().map(|(class, asked)| {
            let names = asked.value.join(", ");
            format!("{}: class {class} is allowed and gives {names}", asked.key)
        });
        self.outcome.reasons.splice(0..0, asked);
        let reasons = &mut self.outcome.reasons;
        for node in &edits.device_nodes {
            let access = node.permissions.as_deref().unwrap_or("rwm");
            reasons.push(format!(
                "device node {} ({access}) exists and is the one its specification means",
                node.path
            ));
        }
        for mount in &edits.mounts {
            reasons.push(format!(
                "mount {} from {}",
                mount.container_path, mount.host_path
            ));
        }
        for hook in &edits.hooks {
            reasons.push(format!("hook {}: {}", hook.hook_name, hook.args.join(" ")));
        }
    }

    /// RLIMIT_MEMLOCK for those who lock memory; never lowered.
    fn memlock(&mut self, config: &mut OciConfig) -> Result<(), FilterError> {
        const NAME: &str = "RLIMIT_MEMLOCK";
        if !self.request.wants(&MEMLOCK) {
            return Ok(());
        }
        let wanted = match self.settings.config.cdi.memlock {
            Memlock::Unlimited => u64::MAX,
            Memlock::Bytes(bytes) => bytes,
        };
        let own = self.privilege.memlock_hard.unwrap_or(u64::MAX);
        let reachable = if self.privilege.may_raise_limits {
            wanted
        } else {
            wanted.min(own)
        };
        if reachable < wanted {
            self.outcome.warnings.push(format!(
                "{NAME} is raised to {reachable} bytes only: CAP_SYS_RESOURCE is missing"
            ));
        }
        let held = config.rlimit(NAME)?;
        let (soft, hard) = held
            .as_ref()
            .map_or((0, 0), |limit| (limit.soft, limit.hard));
        let limit = Rlimit {
            type_: NAME.to_owned(),
            soft: soft.max(reachable),
            hard: hard.max(reachable),
        };
        if held.as_ref() != Some(&limit) {
            config.rlimit_set(&limit)?;
            self.outcome.reasons.push(format!(
                "{}: {NAME} is at least {}",
                self.key(&MEMLOCK),
                self.settings.config.cdi.memlock
            ));
        }
        Ok(())
    }

    /// A program of user 0 keeps what the bounding set allows; one of another user only what is
    /// ambient, which has to be inheritable and permitted too (capabilities(7)).
    fn ipc_lock(&mut self, config: &mut OciConfig) -> Result<(), FilterError> {
        use CapabilitySet::{Ambient, Bounding, Effective, Inheritable, Permitted};
        let Some(asked) = &self.request.ipc_lock else {
            return Ok(());
        };
        let sets: &[CapabilitySet] = if config.user()?.uid == 0 {
            &[Bounding, Effective, Permitted]
        } else {
            &[Bounding, Effective, Permitted, Inheritable, Ambient]
        };
        config.capability_add(sets, CAP_IPC_LOCK)?;
        self.outcome
            .reasons
            .push(format!("{}: {CAP_IPC_LOCK}", asked.key));
        Ok(())
    }

    fn hugepages_limit(&mut self, config: &mut OciConfig) -> Result<(), FilterError> {
        let Some(asked) = &self.request.hugepages_limit else {
            return Ok(());
        };
        let limits = asked.value.iter().map(|wanted| HugepageLimit {
            page_size: wanted.page_size(),
            limit: wanted.limit_bytes,
        });
        let mut limits: Vec<HugepageLimit> = limits.collect();
        let reasons = limits.iter().map(|limit| {
            format!(
                "{}: at most {} bytes in huge pages of {}",
                asked.key, limit.limit, limit.page_size
            )
        });
        self.outcome.reasons.extend(reasons);
        config.each_hugepage_limit(|held| limits.retain(|limit| *limit != held))?;
        if !limits.is_empty() {
            config.hugepage_limits_set(&limits)?;
        }
        Ok(())
    }

    /// The annotation that asks for the first of some classes, quoted.
    fn key(&self, classes: &[Class]) -> String {
        classes
            .iter()
            .find_map(|class| self.request.devices.get(class))
            .map_or_else(|| self.keys(), |asked| Quoted(&asked.key).to_string())
    }

    /// All annotations that ask for devices, quoted.
    fn keys(&self) -> String {
        let keys: Vec<String> = self
            .request
            .devices
            .values()
            .map(|asked| Quoted(&asked.key).to_string())
            .collect();
        keys.join(", ")
    }
}

/// What the specifications give to a request.
#[derive(Debug, Default)]
pub(crate) struct LookedUp {
    /// Everything together.
    pub(crate) edits: ContainerEdits,
    /// The same class by class.
    pub(crate) by_class: Vec<(Class, ContainerEdits)>,
    /// The device nodes as they were found.
    pub(crate) nodes: Nodes,
}

/// Looks a request up in the specifications, and looks at its device nodes.
pub(crate) fn look_up(request: &Request, host: &dyn Host) -> Result<LookedUp, FilterError> {
    let wanted: Vec<Class> = request.devices.keys().copied().collect();
    if wanted.is_empty() {
        return Ok(LookedUp::default());
    }
    let specs = host.specs(&wanted)?;
    let entries = specs.resolve(request)?;
    let nodes = nodes::check(&entries, &specs, host, &host.sysfs())?;
    // Entries stand class by class, since the request does.
    let by_class = entries.chunk_by(|one, other| one.class == other.class);
    Ok(LookedUp {
        edits: specs.edits(&entries),
        by_class: by_class
            .map(|entries| (entries[0].class, specs.edits(entries)))
            .collect(),
        nodes,
    })
}

/// Drops from the edits what the configuration has already, from the same source.
pub(crate) fn leave_present(
    edits: &mut ContainerEdits,
    config: &OciConfig,
    nodes: &Nodes,
) -> Result<(), ConfigError> {
    edits.device_nodes = unique(std::mem::take(&mut edits.device_nodes));
    edits.mounts = unique(std::mem::take(&mut edits.mounts));
    edits.hooks = unique(std::mem::take(&mut edits.hooks));
    // What such a hook would look at was looked at just now.
    edits.hooks.retain(|hook| !only_checks(hook));
    let held = held_devices(&edits.device_nodes, config, nodes)?;
    let mut held = held.into_iter();
    edits.device_nodes.retain(|_| held.next() != Some(true));
    edits.mounts.retain(|mount| {
        let is_it =
            |held: &MountEntry| held.is_at(&mount.container_path) && held.is_from(&mount.host_path);
        !config.mounts().iter().any(is_it)
    });
    let stages = edits.hooks.iter().filter_map(|hook| hook.hook_name.valid());
    let stages: BTreeSet<HookName> = stages.copied().collect();
    for stage in stages {
        config.each_hook(stage, |held| {
            edits
                .hooks
                .retain(|hook| hook.hook_name.valid() != Some(&stage) || held != oci_hook(hook));
        })?;
    }
    Ok(())
}

/// Whether a hook is ours and does nothing but check nodes.
fn only_checks(hook: &Hook) -> bool {
    match hook.args.as_slice() {
        [name, stage, rest @ ..] if name == "onload-hook" && stage == "createRuntime" => {
            let words: Vec<_> = rest.iter().map(Into::into).collect();
            HookArguments::parse(&words)
                .is_ok_and(|orders| !orders.expect.is_empty() && orders.memlock.is_none())
        }
        _ => false,
    }
}

fn unique<T: PartialEq>(list: Vec<T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::with_capacity(list.len());
    for item in list {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

/// Which of the nodes the configuration has already, with a rule that opens them as far as is wanted.
fn held_devices(
    wanted: &[DeviceNode],
    config: &OciConfig,
    nodes: &Nodes,
) -> Result<Vec<bool>, ConfigError> {
    let mut places: BTreeMap<(i64, i64), Vec<usize>> = BTreeMap::new();
    for (index, node) in wanted.iter().enumerate() {
        if let Ok(found) = nodes.node(node.source()) {
            let numbers = (found.major.into(), found.minor.into());
            places.entry(numbers).or_default().push(index);
        }
    }
    let of = |major, minor| places.get(&(major, minor)).into_iter().flatten();
    let mut has_node = vec![false; wanted.len()];
    config.each_device(|device| {
        if device.type_ == "c" {
            for index in of(device.major, device.minor) {
                has_node[*index] |= device.path == wanted[*index].path;
            }
        }
    })?;
    let mut has_rule = vec![false; wanted.len()];
    config.each_device_rule(|rule| {
        if let (true, Some("c"), Some(major), Some(minor)) =
            (rule.allow, rule.type_.as_deref(), rule.major, rule.minor)
        {
            for index in of(major, minor) {
                has_rule[*index] |= opens(&rule, &wanted[*index]);
            }
        }
    })?;
    let both = has_node.iter().zip(has_rule);
    Ok(both.map(|(node, rule)| *node && rule).collect())
}

/// Whether a rule gives all access that a node wants.
fn opens(rule: &DeviceRule, node: &DeviceNode) -> bool {
    let wanted = node.permissions.as_deref();
    let wanted = wanted.filter(|access| !access.is_empty()).unwrap_or("rwm");
    let given = rule.access.as_deref().unwrap_or_default();
    wanted.chars().all(|letter| given.contains(letter))
}

pub(crate) fn oci_hook(hook: &Hook) -> OciHook {
    let list = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
    OciHook {
        path: hook.path.clone(),
        args: list(&hook.args),
        env: list(&hook.env),
        timeout: hook.timeout,
    }
}
