//! Injection into a container that its runtime has already made: device nodes that can be opened,
//! bind mounts, the preload, resource limits.
//!
//! Everything is looked at and decided first. Then mounts are prepared as descriptors, devices are
//! opened in the container's cgroup, and the mounts are moved into the container's mount namespace;
//! whatever fails, what was done is undone.

pub mod bpf;
pub mod cgroup;
pub mod devices;
pub mod identity;
pub mod init;
pub mod mount_api;
pub mod plan;
pub mod program;
pub mod reapply;
pub mod record;
pub mod rule;
pub mod systemd;
pub mod target;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use onload_cdi::oci::OciConfig;
use onload_core::fs::lock::START_PATIENCE;
use onload_core::request::{Request, RequestError};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use rustix::process::umask;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::bundle::{BundleError, ConfigFile};
use crate::container_root::{ContainerRoot, RootError};
use crate::cover::{Cover, CoverError, Covers};
use crate::door::{DoorError, OwnDir};
use crate::filter::{self, FilterError};
use crate::host::{Host, HostError, ThisHost};
use crate::limits::{self, LimitError};
use crate::maker::{Door, Stage};
use crate::poststop;
use crate::preload::{self, Circumstances, LD_SO_PRELOAD, PreloadError};
use crate::state::State;
use crate::sysfs::Numbers;
use cgroup::{Place, PlaceError};
use devices::{Changes, DevicesError};
use identity::FileSystemUser;
use init::{Init, InitError, RootUser, read_whole};
use onload_core::container_id::ContainerId;
use onload_core::mountinfo::{self, Table};
use onload_core::run_dir::RUN_DIR;
use plan::{Bind, Plan, PlanError, PreloadPlan};
use record::{Created, Kind, Live, Made, RecordError};
use target::{Fresh, Target, TargetError, Targets};

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// config.json cannot be read.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The host's own files cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The annotations make no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It is refused.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The container's init cannot be used.
    #[error(transparent)]
    Init(#[from] InitError),
    /// The container's root cannot be used.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A place in it cannot be used.
    #[error("annotation {keys}: {error}")]
    Target {
        /// The annotations, quoted.
        keys: String,
        /// Why.
        error: TargetError,
    },
    /// A place in it is not the container's own.
    #[error("annotation {keys}: {error}")]
    Cover {
        /// The annotations, quoted.
        keys: String,
        /// Why.
        error: CoverError,
    },
    /// A mount could not be made.
    #[error("annotation {keys}: {action} {path:?} {where_}: {error}{hint}", where_ = .side, hint = hint(.error))]
    Mount {
        /// The annotations, quoted.
        keys: String,
        /// What was done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Of the host, or in the container.
        side: &'static str,
        /// Why.
        error: Errno,
    },
    /// A device node became another one.
    #[error("annotation {keys}: device node {path:?} is no character device {wanted} any more")]
    Node {
        /// The annotations, quoted.
        keys: String,
        /// The node on the host.
        path: PathBuf,
        /// What it was.
        wanted: Numbers,
    },
    /// The container's cgroup cannot be used.
    #[error(transparent)]
    Cgroup(#[from] OwnCgroupError),
    /// The devices were not opened.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// A limit could not be set.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A record could not be kept.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The container's directory on the host could not be used.
    #[error(transparent)]
    Door(#[from] DoorError),
    /// There would be no way back.
    #[error("opening this process's own mount namespace: {0}")]
    Home(Errno),
    /// The user namespace maps nobody who could make files.
    #[error("becoming the container's user {0} to make mount targets: the kernel refuses")]
    User(u32),
}

/// Why a container's cgroup cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnCgroupError {
    /// The process cannot be looked at.
    #[error(transparent)]
    Init(#[from] InitError),
    /// A file of this process's own cannot be read.
    #[error("reading {path:?}: {error}")]
    Own {
        /// The file.
        path: &'static str,
        /// Why.
        error: io::Error,
    },
    /// It is not found, or not the container's alone.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// The container's own cgroup; none where nothing judges devices.
fn own_place(init: &Init) -> Result<Option<Place>, OwnCgroupError> {
    let own_file = |path: &'static str, read: &dyn Fn(File) -> io::Result<Vec<u8>>| {
        let bytes = File::open(path).and_then(read);
        bytes.map_err(|error| OwnCgroupError::Own { path, error })
    };
    let theirs = init.read("cgroup")?;
    let own = own_file("/proc/self/cgroup", &read_whole)?;
    let mounts = own_file("/proc/self/mountinfo", &|file| {
        mountinfo::keep(file, &cgroup::is_hierarchy)
    })?;
    Ok(cgroup::find(&theirs, &own, &mounts)?)
}

fn hint(error: &Errno) -> &'static str {
    if *error == Errno::NOSYS {
        " (Linux 5.12 or newer is needed)"
    } else {
        ""
    }
}

/// Gives a container what its annotations ask for and its configuration does not hold. The result
/// are warnings.
///
/// # Errors
/// [`LiveError`]; what was done by then is undone.
pub fn inject(state: &State, config_path: &Path) -> Result<Vec<String>, LiveError> {
    let file = ConfigFile::open(&state.bundle, None)?;
    let scanned = file.scan()?;
    if !scanned.asks {
        return Ok(Vec::new());
    }
    if scanned.more {
        return Err(PlanError::from(FilterError::TooLarge).into());
    }
    let text = filter::text(scanned.kept).map_err(PlanError::from)?;
    let config = OciConfig::parse_text(text).map_err(PlanError::from)?;
    let Some(request) = Request::parse(&config)? else {
        return Ok(Vec::new());
    };
    let host = ThisHost::with_config(config_path)?;
    let mut plan = plan::decide(&config, &request, &state.id, &host)?;
    let mut warnings = std::mem::take(&mut plan.warnings);
    if plan.is_empty() {
        return Ok(warnings);
    }
    let init = Init::open(state.pid)?;
    if is_done(&state.id, &init, &host, &mut warnings)? {
        return Ok(warnings);
    }
    poststop::sweep(Path::new(RUN_DIR), Some(&state.id));
    let look = Look::new(state, init, &config, &request, &host, plan)?;
    warnings.extend(look.go(&host)?);
    Ok(warnings)
}

/// Whether an earlier run for the same process did all this: engines may call the hook as prestart
/// and as createRuntime.
fn is_done(
    id: &ContainerId,
    init: &Init,
    host: &ThisHost,
    warnings: &mut Vec<String>,
) -> Result<bool, LiveError> {
    let run = match host.trusted().open_dir(Path::new(RUN_DIR)) {
        Ok(run) => run,
        Err(error) if error.is_absent() => return Ok(false),
        Err(error) => return Err(HostError::from(error).into()),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = match rustix::fs::openat(&run, id.as_str(), flags, Mode::empty()) {
        Ok(own) => own,
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => {
            let path = Path::new(RUN_DIR).join(id.as_str());
            let error = error.into();
            return Err(DoorError::HostFile { path, error }.into());
        }
    };
    let state: Option<Live> = record::read_known(&own, record::STATE, warnings)?;
    let now = (init.pid(), init.start_time()?);
    Ok(state.is_some_and(|live| (live.pid, live.start_time) == now))
}

/// The container as it was looked at, and what is to be done to it.
struct Look<'a> {
    id: &'a ContainerId,
    plan: Plan,
    init: Init,
    start_time: u64,
    namespace: OwnedFd,
    mounts: Table,
    bundle: &'a Path,
    /// The container's root as the host knows it.
    root_path: PathBuf,
    targets: Vec<Target>,
    /// What will be made in the root.
    missing: Vec<Made>,
    place: Option<Place>,
    user: Option<RootUser>,
    /// What /etc/ld.so.preload will hold.
    list: Option<String>,
    warnings: Vec<String>,
}

impl<'a> Look<'a> {
    fn new(
        state: &'a State,
        init: Init,
        config: &OciConfig,
        request: &Request,
        host: &ThisHost,
        plan: Plan,
    ) -> Result<Self, LiveError> {
        let namespace = init.mount_namespace()?;
        let root_path = config.root_path().map_err(PlanError::from)?;
        let root_path = state.bundle.join(root_path.unwrap_or_default());
        let mut look = Look {
            id: &state.id,
            start_time: init.start_time()?,
            mounts: init.mounts()?,
            bundle: &state.bundle,
            user: init.root_user()?,
            place: None,
            namespace,
            root_path,
            targets: Vec::new(),
            missing: Vec::new(),
            list: None,
            warnings: Vec::new(),
            init,
            plan,
        };
        let root = look.open_root()?;
        if let Some(preload) = look.plan.preload.take() {
            look.look_at_preload(&preload, config, request, host, &root)?;
        }
        look.look_at_targets(config, &root)?;
        look.look_at_list(&root)?;
        if !look.plan.rules.is_empty() {
            look.place = own_place(&look.init)?;
        }
        Ok(look)
    }

    /// The root as the container's init sees it: with all its mounts, and the last one on top.
    fn open_root(&self) -> Result<ContainerRoot, LiveError> {
        Ok(ContainerRoot::open_below(
            &self.init.root()?,
            &self.root_path,
        )?)
    }

    fn look_at_preload(
        &mut self,
        preload: &PreloadPlan,
        config: &OciConfig,
        request: &Request,
        host: &ThisHost,
        root: &ContainerRoot,
    ) -> Result<(), LiveError> {
        let failed = |error: PreloadError| PlanError::preload(&preload.key, error);
        let settings = host.settings()?;
        let now = Circumstances {
            request,
            settings: &settings,
            root,
            id: Some(self.id),
            privilege: host.privilege(),
        };
        let mut applied = preload::Applied::default();
        let may = preload::may_preload(&preload.edits, config, &now, host, &mut applied);
        let may = may.map_err(failed)?;
        self.warnings.append(&mut applied.warnings);
        self.plan.preload = may.then(|| preload.clone());
        Ok(())
    }

    /// What the image has at the place of our list, which is known to be the container's own by now.
    fn look_at_list(&mut self, root: &ContainerRoot) -> Result<(), LiveError> {
        let Some(preload) = &self.plan.preload else {
            return Ok(());
        };
        let own = preload::own_list(root);
        let own = own.map_err(|error| PlanError::preload(&preload.key, error))?;
        self.list = Some(preload::list(&preload.library, &own));
        Ok(())
    }

    fn look_at_targets(
        &mut self,
        config: &OciConfig,
        root: &ContainerRoot,
    ) -> Result<(), LiveError> {
        let keys = || self.plan.keys.clone();
        let covered = |error: CoverError| LiveError::Cover {
            keys: keys(),
            error,
        };
        let misplaced = |error: TargetError| LiveError::Target {
            keys: keys(),
            error,
        };
        let mounts = config.mounts().iter();
        let covers = mounts
            .map(|mount| Cover::new(&mount.destination(), &mount.type_(), &mount.options()))
            .collect();
        let covers = Covers::new(root, covers).map_err(covered)?;
        let looked = Targets::new(root, &self.mounts).map_err(misplaced)?;
        let mut targets = Vec::new();
        let mut missing = Vec::new();
        let list = self.plan.preload.as_ref();
        let list = list.map(|_| Path::new(LD_SO_PRELOAD));
        let binds = self.plan.binds.iter();
        let paths = binds.map(|bind| (bind.target.as_path(), Some(bind)));
        for (path, bind) in paths.chain(list.map(|path| (path, None))) {
            let kind = match bind {
                Some(bind) => self.kind_of(bind)?,
                None => Kind::File,
            };
            let ground = covers.may_create(&path.to_string_lossy());
            let target = Target {
                path: path.to_owned(),
                kind,
                ground: ground.map_err(covered)?,
            };
            for made in looked.look(&target).map_err(misplaced)? {
                if !missing.contains(&made) {
                    missing.push(made);
                }
            }
            targets.push(target);
        }
        self.targets = targets;
        self.missing = missing;
        Ok(())
    }

    fn kind_of(&self, bind: &Bind) -> Result<Kind, LiveError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let stat = rustix::fs::open(&bind.source, flags, Mode::empty())
            .and_then(fstat)
            .map_err(|error| self.mount_error("opening", &bind.source, "of the host", error))?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Directory,
            _ => Kind::File,
        })
    }

    /// Does it, or nothing.
    fn go(mut self, host: &ThisHost) -> Result<Vec<String>, LiveError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let home = rustix::fs::open("/proc/self/ns/mnt", flags, Mode::empty());
        let home = home.map_err(LiveError::Home)?;
        // The engine's would close to the container's users what is made in its root.
        let _ = umask(Mode::empty());
        let door = Door {
            stage: Stage::Hook,
            bundle: self.bundle,
            root: None,
        };
        let mut own = OwnDir::open(self.id, door, host)?;
        self.warnings.extend(own.warning.take());
        let mut done = Done::default();
        let result = self.all(&own, &mut done);
        // What a hook leaves behind it is its process, so only an undoing needs the way back.
        match result {
            Ok(()) => {
                self.warnings.append(&mut done.changes.warnings);
                Ok(self.warnings)
            }
            Err(error) => {
                done.undo(&home, own, self.id, &self.root_path);
                Err(error)
            }
        }
    }

    fn all(&mut self, own: &OwnDir, done: &mut Done) -> Result<(), LiveError> {
        let mut created = self.record_plan(own)?;
        let trees = self.prepare(own)?;
        self.limits()?;
        if let Some(place) = &self.place {
            done.changes = devices::allow(place, self.id, &self.plan.rules)?;
        }
        self.enter(&trees, done)?;
        created.made.retain(|made| made.inode.is_some());
        let fresh = done.made.iter().map(|fresh| fresh.made.clone());
        created.made.extend(fresh);
        record::write(&own.dir, record::CREATED, &created)?;
        let live = Live {
            pid: self.init.pid(),
            start_time: self.start_time,
            rules: self.plan.rules.clone(),
            nodes: self.plan.rule_nodes(),
        };
        Ok(record::write(&own.dir, record::STATE, &live)?)
    }

    /// Writes down what will be made, behind what an earlier start of the container made.
    fn record_plan(&mut self, own: &OwnDir) -> Result<Created, LiveError> {
        let warnings = &mut self.warnings;
        let before: Option<Created> = record::read_known(&own.dir, record::CREATED, warnings)?;
        let mut created = before.unwrap_or_default();
        if created.root != self.root_path {
            created.made.clear();
        }
        created.root.clone_from(&self.root_path);
        created.made.retain(|made| made.inode.is_some());
        let mut planned = created.clone();
        planned.made.extend(self.missing.iter().cloned());
        record::write(&own.dir, record::CREATED, &planned)?;
        Ok(created)
    }

    /// The mounts as copies that are attached nowhere yet, in the order of the targets.
    fn prepare(&self, own: &OwnDir) -> Result<Vec<OwnedFd>, LiveError> {
        let mut trees = Vec::new();
        for bind in &self.plan.binds {
            let tree = self.copy(CWD, bind)?;
            if let Some(wanted) = bind.numbers {
                self.check_node(&tree, bind, wanted)?;
            }
            trees.push(tree);
        }
        if let Some(list) = &self.list {
            own.write("ld.so.preload", list.as_bytes())?;
            let bind = Bind {
                source: "ld.so.preload".into(),
                target: LD_SO_PRELOAD.into(),
                attributes: mount_api::attr::RDONLY
                    | mount_api::attr::NOSUID
                    | mount_api::attr::NODEV
                    | mount_api::attr::NOEXEC,
                is_recursive: false,
                numbers: None,
            };
            trees.push(self.copy(own.dir.as_fd(), &bind)?);
        }
        Ok(trees)
    }

    fn copy(&self, dir: impl AsFd, bind: &Bind) -> Result<OwnedFd, LiveError> {
        let failed =
            |action| move |error| self.mount_error(action, &bind.source, "of the host", error);
        let tree = mount_api::clone_tree(dir.as_fd(), &bind.source, bind.is_recursive)
            .map_err(failed("copying the mount of"))?;
        mount_api::set_private(&tree, bind.attributes, bind.is_recursive)
            .map_err(failed("setting the attributes of"))?;
        Ok(tree)
    }

    /// The node that will be mounted is the one that was judged.
    fn check_node(&self, tree: &OwnedFd, bind: &Bind, wanted: Numbers) -> Result<(), LiveError> {
        let stat = fstat(tree)
            .map_err(|error| self.mount_error("looking at", &bind.source, "of the host", error))?;
        let found = Numbers {
            major: major(stat.st_rdev),
            minor: minor(stat.st_rdev),
        };
        let is_character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if is_character && found == wanted {
            return Ok(());
        }
        Err(LiveError::Node {
            keys: self.plan.keys.clone(),
            path: bind.source.clone(),
            wanted,
        })
    }

    fn limits(&mut self) -> Result<(), LiveError> {
        if self.plan.memlock.is_none() && self.plan.preload.is_none() {
            return Ok(());
        }
        let process = limits::Process::new(&self.init, self.start_time)?;
        if let Some(memlock) = self.plan.memlock {
            let raised = process.raise_memlock(memlock)?;
            self.warnings.extend(raised.warning(memlock));
        }
        if let Some(preload) = &self.plan.preload {
            process.lower_nofile(preload.nofile)?;
        }
        Ok(())
    }

    /// Moves the mounts into the container.
    fn enter(&self, trees: &[OwnedFd], done: &mut Done) -> Result<(), LiveError> {
        if self.targets.is_empty() {
            return Ok(());
        }
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(self.namespace.as_fd(), kind).map_err(|error| {
            InitError::Enter {
                pid: self.init.pid(),
                error,
            }
        })?;
        let root = self.open_root()?;
        let failed = |error: TargetError| LiveError::Target {
            keys: self.plan.keys.clone(),
            error,
        };
        let targets = Targets::new(&root, &self.mounts).map_err(failed)?;
        // The library stands before the list that names it.
        for (target, tree) in self.targets.iter().zip(trees) {
            let at = {
                let _user = self.become_container_root()?;
                targets.open(target, &mut done.made).map_err(failed)?
            };
            mount_api::attach(tree, at).map_err(|error| {
                self.mount_error("mounting onto", &target.path, "in the container", error)
            })?;
        }
        Ok(())
    }

    fn become_container_root(&self) -> Result<Option<FileSystemUser>, LiveError> {
        let Some(user) = self.user else {
            return Ok(None);
        };
        FileSystemUser::become_user(user.uid, user.gid)
            .map(Some)
            .ok_or(LiveError::User(user.uid))
    }

    fn mount_error(
        &self,
        action: &'static str,
        path: &Path,
        side: &'static str,
        error: Errno,
    ) -> LiveError {
        LiveError::Mount {
            keys: self.plan.keys.clone(),
            action,
            path: path.to_owned(),
            side,
            error,
        }
    }
}

/// What has been done so far.
#[derive(Default)]
struct Done {
    changes: Changes,
    made: Vec<Fresh>,
}

impl Done {
    /// Undoes it. The error that led here is the one to tell, so nothing of this is. Where others
    /// hold the lock, the targets stay for a sweep.
    fn undo(self, home: &OwnedFd, own: OwnDir, id: &ContainerId, root: &Path) {
        let _ = move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Mount));
        self.changes.undo();
        let lock = own.lock;
        let lock = lock.and_then(|lock| lock.make_exclusive(START_PATIENCE).ok());
        // What another container in the same root has found is handed over to it below.
        if lock.is_some() && !poststop::has_neighbour(&own.run, id, root) {
            self.made.iter().rev().for_each(Fresh::remove);
        }
        let _ = poststop::clear(&own.run, id, lock.as_ref());
    }
}
