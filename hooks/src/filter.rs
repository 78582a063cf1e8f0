//! The function behind every entry point that changes a configuration before the runtime reads it:
//! config.json in, config.json out.
//!
//! It does not add what is already there. Several entry points therefore have the effect of one,
//! and applying twice has the effect of applying once.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use onload_cdi::ContainerEdits;
use onload_cdi::json::RawError;
use onload_cdi::oci::{self, InjectError, Node, NodeInfo};
use onload_cdi::oci::{
    CapabilitySet, Cpuset, HugepageLimit, MountEntry, OciConfig, OciConfigError, Rlimit,
};
use onload_core::class::Class;
use onload_core::config::{Memlock, RootWithOnload};
use onload_core::container_id::ContainerId;
use onload_core::lease::Token;
use onload_core::policy::{HostRoot, MEMLOCK, ONLOAD};
use onload_core::request::{self, Origin, Request};

use crate::config_json::scan::{self, Places, Scanned};
use crate::cpuset::{self, CpusetError};
use crate::decision::error::DecisionError;
use crate::decision::host_root::{self, CAP_SETUID};
use crate::decision::input::DecisionInput;
use crate::decision::placement::Placement;
use crate::decision::pools::{Pools, Reserved, or_give_back};
use crate::decision::preload_choice::PreloadChoice;
use crate::decision::subject::{Identity, Subject, TicketUse};
use crate::decision::variable;
use crate::decision::{self, Decision};
use crate::device::Device;
use crate::host::{HostView, Privilege, Settings};
use crate::preload::{self, HostFile, PreloadContext, PreloadError};
use crate::rootfs::container_root::{ContainerRoot, RootError};
use crate::rootfs::overmount::{Overmount, OvermountError, Overmounts};

/// The variable by which the dynamic loader preloads libraries (ld.so(8)).
const LD_PRELOAD: &str = "LD_PRELOAD";

/// The capability behind `ipc-lock`.
const CAP_IPC_LOCK: &str = "CAP_IPC_LOCK";

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It does not get what it requests.
    #[error(transparent)]
    Decision(#[from] DecisionError),
    /// The container's root cannot be used.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A mount target would be created on the host.
    #[error("{key}")]
    Overmount {
        /// Where it is requested, for people.
        key: String,
        /// Where, and why.
        source: OvermountError,
    },
    /// The CPUs or the memory of a bundle.
    #[error(transparent)]
    Cpuset(#[from] CpusetError),
    /// The preload is not possible.
    #[error("{key}")]
    Preload {
        /// Where it is requested, for people.
        key: String,
        source: PreloadError,
    },
    /// The edits cannot be applied.
    #[error("applying the specifications")]
    Inject(#[from] InjectError),
    /// There is no process to receive it, and half a process is not a valid configuration.
    #[error(
        "reading the configuration: it has no \"process\" to which its onload.dev annotations could apply; add one, or remove the annotations"
    )]
    NoProcess,
    /// Something that only root can provide.
    #[error(
        "{key}: a hugetlbfs cannot be mounted in a container with its own user namespace; run the container as root, or use anonymous huge pages"
    )]
    Rootless {
        /// Where it is requested, for people.
        key: String,
    },
}

impl onload_core::error::Typed for FilterError {}

impl From<OciConfigError> for FilterError {
    fn from(error: OciConfigError) -> Self {
        FilterError::Decision(error.into())
    }
}

/// The result of filtering a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The new configuration; `None` if it is unchanged.
    pub config: Option<Vec<u8>>,
    /// A file to write on this host first.
    pub file: Option<HostFile>,
    pub warnings: Vec<String>,
    /// What the container gets, and why.
    pub reasons: Vec<String>,
    /// What was given, on one line; empty: nothing.
    pub given: String,
    /// Members of pools that are kept for the container; if it is not created, they are given back.
    pub reserved: Option<Reserved>,
    /// The container was judged by what its process may do, so CAP_SETUID must not come with a process
    /// that is started in it later either.
    pub guards_exec: bool,
}

/// The container that a configuration is for.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// The directory that `root.path` is relative to.
    pub bundle: &'a Path,
    /// Its id, if the entry point knows it.
    pub id: Option<&'a ContainerId>,
    /// Whether the caller also sees the processes that are started in the container later.
    /// Otherwise a capability that is removed from the first process would return with the next
    /// one.
    pub sees_exec: bool,
}

/// Gives a container what its annotations request, and the variable of its environment.
///
/// # Errors
/// [`FilterError`] names the annotation, the cause and the remedy. Nothing is written in any case.
pub fn apply(
    json: &[u8],
    container: Container<'_>,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Outcome, FilterError> {
    let scanned = Scanned {
        kept: json.to_vec(),
        more: false,
        may_ask: scan::may_ask(json, Places::VariableToo),
        places: Places::VariableToo,
    };
    apply_scanned(scanned, container, host, pools)
}

/// As [`apply`], for a configuration that was already scanned.
///
/// # Errors
/// As for [`apply`].
pub(crate) fn apply_scanned(
    scanned: Scanned,
    container: Container<'_>,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Outcome, FilterError> {
    match DecisionInput::read(scanned)? {
        Some(input) => give(input, container, host, pools),
        None => Ok(Outcome::default()),
    }
}

/// As [`apply`], for a configuration that was already parsed and has a request.
///
/// # Errors
/// As for [`apply`].
pub(crate) fn give(
    input: DecisionInput,
    container: Container<'_>,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Outcome, FilterError> {
    let settings = host.settings().map_err(DecisionError::from)?;
    let identity = Identity {
        id: container.id,
        bundle: container.bundle,
    };
    let task = variable::task(&input.config);
    let take = |id: &Token| pools.ticket(id, identity, task.as_deref());
    let asked = variable::read(&input.variables, &settings, &take).map_err(DecisionError::from)?;
    let mut request = input.request;
    request
        .add_missing(asked.request)
        .map_err(DecisionError::from)?;
    let outcome = Outcome {
        warnings: asked.warnings,
        ..Outcome::default()
    };
    if request == Request::default() {
        return Ok(outcome);
    }
    request
        .open_bundles(&settings.config.bundles)
        .map_err(DecisionError::from)?;
    let mut filter = Filter {
        container,
        host,
        pools,
        settings,
        privilege: host.privilege(),
        request,
        tickets: asked.tickets,
        outcome,
    };
    let result = filter.run(input.config, input.text.as_bytes());
    let result = or_give_back(result, filter.outcome.reserved.as_ref(), pools);
    result.map(|()| filter.outcome)
}

/// As [`give`], but for an engine that has made neither the container's root nor its bundle, and that
/// puts what is decided into the configuration itself. Its runtime has every right, whatever this
/// process has.
///
/// # Errors
/// As for [`apply`].
pub(crate) fn describe(
    input: DecisionInput,
    id: &ContainerId,
    host: &dyn HostView,
    pools: &dyn Pools,
) -> Result<Described, FilterError> {
    let container = Container {
        bundle: Path::new(""),
        id: Some(id),
        sees_exec: false,
    };
    let settings = host.settings().map_err(DecisionError::from)?;
    let mut request = input.request;
    request
        .open_bundles(&settings.config.bundles)
        .map_err(DecisionError::from)?;
    let mut filter = Filter {
        container,
        host,
        pools,
        settings,
        privilege: Privilege {
            is_initial_namespace: true,
            may_raise_limits: true,
            memlock_hard: None,
            nofile_soft: None,
            nofile_hard: None,
        },
        request,
        tickets: Vec::new(),
        outcome: Outcome::default(),
    };
    let result = filter.describe(input.config);
    or_give_back(result, filter.outcome.reserved.as_ref(), pools)
}

/// What is decided for a container whose configuration somebody else changes.
pub(crate) struct Described {
    /// Where devices are requested, for people.
    pub keys: String,
    /// The names of the devices, if they say all of the edits.
    pub names: Option<Vec<String>>,
    /// The edits, with the device nodes.
    pub edits: ContainerEdits,
    /// The nodes as they were found.
    pub devices: Vec<Device>,
    pub before: OciConfig,
    /// The same with the limits that the container gets.
    pub limited: OciConfig,
    pub outcome: Outcome,
}

struct Filter<'a> {
    container: Container<'a>,
    host: &'a dyn HostView,
    pools: &'a dyn Pools,
    settings: Settings,
    privilege: Privilege,
    request: Request,
    tickets: Vec<TicketUse>,
    outcome: Outcome,
}

impl Filter<'_> {
    fn run(&mut self, mut config: OciConfig, json: &[u8]) -> Result<(), FilterError> {
        let has_process = config.process().is_some();
        self.guard_exec(&mut config)?;
        let gives_devices = !self.request.devices.is_empty();
        let root = gives_devices.then(|| self.open_root(&config));
        let lacks = |dir: &Path| matches!(&root, Some(Ok(root)) if root.lacks(dir));
        let mut decision = self.decide(&config, &lacks)?;
        let given = std::mem::take(&mut decision.given);
        let memlock = decision.memlock;
        let placements = std::mem::take(&mut decision.placements);
        if let Some(root) = root {
            let (edits, devices) = self.edits(&mut config, decision, Some(&root?))?;
            oci::apply(&mut config, &edits, &CheckedNodes(&devices))?;
        }
        if let Some(memlock) = memlock {
            self.memlock(&mut config, memlock)?;
        }
        self.ipc_lock(&mut config)?;
        self.hugepages_limit(&mut config)?;
        self.cpuset(&mut config, &placements)?;
        if !has_process && config.process().is_some() {
            return Err(FilterError::NoProcess);
        }
        let bytes = config.to_bytes();
        // Parsing drops only the white space around the document.
        self.outcome.config = (bytes != json.trim_ascii()).then_some(bytes);
        if self.outcome.config.is_some() {
            self.outcome.given = given;
        }
        Ok(())
    }

    /// As [`Filter::run`], for an engine that changes the configuration itself and has not made the
    /// container's root yet.
    fn describe(&mut self, config: OciConfig) -> Result<Described, FilterError> {
        let mut limited = config.clone();
        let mut decision = self.decide(&config, &|_| false)?;
        self.outcome.given = std::mem::take(&mut decision.given);
        let keys = decision.keys.clone();
        let memlock = decision.memlock;
        let why = match request::is_of_pod(&config) {
            true => cpuset::OF_POD,
            false => cpuset::BY_NRI,
        };
        let not_set = cpuset::not_set(&decision.placements, why);
        self.outcome.warnings.extend(not_set);
        let names = self.names(&mut decision, &config)?;
        let (edits, devices) = self.edits(&mut limited, decision, None)?;
        if let Some(memlock) = memlock {
            self.memlock(&mut limited, memlock)?;
        }
        self.hugepages_limit(&mut limited)?;
        Ok(Described {
            keys,
            names,
            edits,
            devices,
            before: config,
            limited,
            outcome: std::mem::take(&mut self.outcome),
        })
    }

    /// The names of the devices, if they give what the edits would: nothing that the container sets
    /// itself takes precedence, and libonload.so is preloaded as the specifications say, if at all.
    fn names(
        &self,
        decision: &mut Decision,
        config: &OciConfig,
    ) -> Result<Option<Vec<String>>, OciConfigError> {
        let names = decision.names.take();
        let is_by_file = decision.preload.mount.is_some();
        if names.is_none() || decision.preload.is_asked || is_by_file {
            return Ok(None);
        }
        let mut given = BTreeSet::new();
        for (_, edits) in &decision.by_class {
            let names = edits.env.iter().map(|entry| variable(entry));
            given.extend(names.filter(|name| *name == LD_PRELOAD || decision::is_setting(name)));
        }
        let mut is_free = true;
        config.each_env(|entry| is_free &= !given.contains(variable(entry)))?;
        Ok(names.filter(|_| is_free))
    }

    fn decide(
        &mut self,
        config: &OciConfig,
        lacks: &dyn Fn(&Path) -> bool,
    ) -> Result<Decision, FilterError> {
        let subject = Subject {
            config,
            request: &self.request,
            tickets: &self.tickets,
            identity: Identity {
                id: self.container.id,
                bundle: self.container.bundle,
            },
            lacks,
        };
        let mut decision = decision::decide(subject, &self.settings, self.host, self.pools)?;
        self.outcome.reserved = decision.reserved.take();
        self.outcome.warnings.append(&mut decision.warnings);
        Ok(decision)
    }

    /// Removes CAP_SETUID if that is what makes the container the host's user 0.
    fn guard_exec(&mut self, config: &mut OciConfig) -> Result<(), FilterError> {
        let policy = &self.settings.config.annotations;
        self.outcome.guards_exec = policy.root_with_onload == RootWithOnload::Refuse
            && self.container.sees_exec
            && self.privilege.is_initial_namespace
            && self.request.wants(&ONLOAD);
        if !self.outcome.guards_exec
            || host_root::look(config, self.host)? != HostRoot::ByCapability(CAP_SETUID)
        {
            return Ok(());
        }
        let in_process = |error: RawError| OciConfigError::Change(error.at("process"));
        if host_root::take_setuid(config.process_mut()).map_err(in_process)? {
            self.outcome.warnings.push(format!(
                "{}: {CAP_SETUID} is removed from the container, since root-with-onload = \"refuse\" and a program of the image could use it to become the host's user 0",
                self.key(&ONLOAD)
            ));
        }
        Ok(())
    }

    fn open_root(&self, config: &OciConfig) -> Result<ContainerRoot, FilterError> {
        let path = config.root_path()?.unwrap_or_default();
        Ok(ContainerRoot::open(&self.container.bundle.join(path))?)
    }

    /// What is to be applied, and the nodes as they were found; limits are changed in the configuration.
    fn edits(
        &mut self,
        config: &mut OciConfig,
        decision: Decision,
        root: Option<&ContainerRoot>,
    ) -> Result<(ContainerEdits, Vec<Device>), FilterError> {
        self.refuse_hugetlbfs(&decision)?;
        let mut edits = decision.edits;
        self.preload(&mut edits, config, decision.preload, root)?;
        self.leave_own_settings(&mut edits, config)?;
        let nodes = decision.devices.iter();
        edits.device_nodes = nodes.map(|device| device.node.clone()).collect();
        self.check_targets(&edits, config, root, &decision.keys)?;
        self.explain(&edits);
        Ok((edits, decision.devices))
    }

    fn refuse_hugetlbfs(&self, decision: &Decision) -> Result<(), FilterError> {
        let mut edits = decision.by_class.iter().map(|(_, edits)| edits);
        let has_hugetlbfs = |edits: &ContainerEdits| {
            let mut types = edits.mounts.iter().map(|mount| mount.type_.as_deref());
            types.any(|type_| type_ == Some("hugetlbfs"))
        };
        if !self.privilege.is_initial_namespace && edits.any(has_hugetlbfs) {
            return Err(FilterError::Rootless {
                key: self.key(&[Class::Hugepages]),
            });
        }
        Ok(())
    }

    fn preload(
        &mut self,
        edits: &mut ContainerEdits,
        config: &mut OciConfig,
        choice: PreloadChoice,
        root: Option<&ContainerRoot>,
    ) -> Result<(), FilterError> {
        let now = PreloadContext {
            settings: &self.settings,
            root,
            id: self.container.id,
            privilege: self.privilege,
        };
        let applied = preload::apply(edits, config, choice, &now, self.host);
        let applied = applied.map_err(|error| FilterError::Preload {
            key: self.key(&[Class::Nic]),
            source: error,
        })?;
        self.outcome.warnings.extend(applied.warnings);
        self.outcome.reasons.extend(applied.reasons);
        self.outcome.file = applied.file;
        Ok(())
    }

    /// Settings of Onload and TCPDirect that the container brings take precedence over those of a
    /// specification.
    fn leave_own_settings(
        &mut self,
        edits: &mut ContainerEdits,
        config: &OciConfig,
    ) -> Result<(), FilterError> {
        let settings = edits.env.iter().map(|entry| variable(entry));
        let settings: BTreeSet<String> = settings
            .filter(|name| decision::is_setting(name))
            .map(str::to_owned)
            .collect();
        let mut held = BTreeSet::new();
        config.each_env(|entry| {
            held.extend(settings.get(variable(entry)));
        })?;
        edits
            .env
            .retain(|entry| !held.contains(&variable(entry).to_owned()));
        Ok(())
    }

    fn check_targets(
        &self,
        edits: &ContainerEdits,
        config: &OciConfig,
        root: Option<&ContainerRoot>,
        keys: &str,
    ) -> Result<(), FilterError> {
        let mounts = edits.mounts.iter();
        let mounts = mounts.map(|mount| mount.container_path.as_str());
        let nodes = edits.device_nodes.iter().map(|node| node.path.as_str());
        let targets: Vec<&str> = mounts.chain(nodes).collect();
        if targets.is_empty() {
            return Ok(());
        }
        let failed = |error: OvermountError| FilterError::Overmount {
            key: keys.to_owned(),
            source: error,
        };
        let read = |mount: &MountEntry| {
            Overmount::new(&mount.destination(), &mount.type_(), &mount.options())
                .with_source(&mount.source())
        };
        let mut overmounts: Vec<Overmount> = config.mounts().iter().map(read).collect();
        // In the order in which the runtime makes them, since a link may lie in an earlier one.
        if !edits.mounts.is_empty() {
            overmounts.sort_by_cached_key(|mount| oci::depth(&mount.destination));
        }
        let overmounts = Overmounts::new(root, overmounts).map_err(failed)?;
        overmounts.none_astray().map_err(failed)?;
        for target in targets {
            overmounts.may_create(target).map_err(failed)?;
        }
        Ok(())
    }

    fn explain(&mut self, edits: &ContainerEdits) {
        let asked = self.request.devices.iter().map(|(class, asked)| {
            let names: Vec<String> = asked.value.iter().map(ToString::to_string).collect();
            let names = names.join(", ");
            let key = reason(&asked.origin);
            match asked.origin {
                Origin::Bundle(_) => format!("{key}: the bundle has {class} {names}"),
                _ => format!("{key}: class {class} is allowed and gives {names}"),
            }
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

    /// Raises RLIMIT_MEMLOCK for classes that lock memory. Never lowers it.
    fn memlock(&mut self, config: &mut OciConfig, memlock: Memlock) -> Result<(), FilterError> {
        const NAME: &str = "RLIMIT_MEMLOCK";
        let wanted = match memlock {
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
                "{NAME} is raised only to {reachable} bytes: CAP_SYS_RESOURCE is missing"
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
            let set = match limit.soft {
                u64::MAX => "unlimited".to_owned(),
                bytes => format!("{bytes} bytes"),
            };
            let mut asked = MEMLOCK
                .iter()
                .filter_map(|class| self.request.devices.get(class));
            let of = asked
                .next()
                .map(|asked| format!("{}: ", reason(&asked.origin)));
            let of = of.unwrap_or_default();
            self.outcome.reasons.push(format!("{of}{NAME} is {set}"));
        }
        Ok(())
    }

    /// A program of user 0 keeps what the bounding set allows. A program of another user keeps only
    /// ambient capabilities, which must be inheritable and permitted too (capabilities(7)).
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
            .push(format!("{}: {CAP_IPC_LOCK}", reason(&asked.origin)));
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
                reason(&asked.origin),
                limit.limit,
                limit.page_size
            )
        });
        self.outcome.reasons.extend(reasons);
        config.each_hugepage_limit(|held| limits.retain(|limit| *limit != held))?;
        if !limits.is_empty() {
            config.hugepage_limits_set(&limits)?;
        }
        Ok(())
    }

    /// Sets the CPUs and NUMA nodes of bundles where the engine has set none.
    fn cpuset(
        &mut self,
        config: &mut OciConfig,
        placements: &[Placement],
    ) -> Result<(), FilterError> {
        let Some(first) = placements.first() else {
            return Ok(());
        };
        let why = match (request::is_of_pod(config), self.privilege) {
            (true, _) => Some(cpuset::OF_POD),
            (false, privilege) if !privilege.is_initial_namespace => Some(cpuset::ROOTLESS),
            (false, _) => None,
        };
        if let Some(why) = why {
            let warnings = &mut self.outcome.warnings;
            warnings.extend(cpuset::not_set(placements, why));
            return Ok(());
        }
        let path = config.cgroups_path()?;
        let own = config.cpuset()?;
        let sysfs = self.host.sysfs();
        let chosen = cpuset::choose(placements, &own, path.as_deref(), &sysfs)?;
        self.outcome.warnings.extend(chosen.warnings);
        let lists = [("CPUs", &chosen.cpus), ("NUMA nodes", &chosen.mems)];
        let set = lists.iter().filter_map(|(what, list)| {
            let list = list.as_ref()?;
            Some(format!("{}: {what} {list}", reason(&first.origin)))
        });
        self.outcome.reasons.extend(set);
        if chosen.cpus.is_some() || chosen.mems.is_some() {
            let (cpus, mems) = (chosen.cpus, chosen.mems);
            config.cpuset_set(&Cpuset { cpus, mems })?;
        }
        Ok(())
    }

    /// Where the first of some classes is requested, for people.
    fn key(&self, classes: &[Class]) -> String {
        classes
            .iter()
            .find_map(|class| self.request.devices.get(class))
            .map_or_else(
                || decision::keys(&self.request),
                |asked| asked.origin.to_string(),
            )
    }
}

/// Where something is requested, at the beginning of a reason.
fn reason(origin: &Origin) -> String {
    match origin.asked() {
        Origin::Annotation(key) => key.clone(),
        Origin::Variable(_) | Origin::Ticket(_) | Origin::Bundle(_) => origin.to_string(),
    }
}

/// The name of a variable.
fn variable(entry: &str) -> &str {
    entry.split('=').next().unwrap_or_default()
}

/// The nodes as found when they were checked.
struct CheckedNodes<'a>(&'a [Device]);

impl NodeInfo for CheckedNodes<'_> {
    fn node(&self, host_path: &str) -> io::Result<Node> {
        let device = self.0.iter().find(|device| device.source() == host_path);
        device
            .map(|device| device.found)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
