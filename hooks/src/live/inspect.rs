//! Examines a living container, and makes every refusal before anything is changed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use onload_cdi::oci::{OciConfig, OciUser};
use onload_core::config::Preload;
use onload_core::container_id::ContainerId;
use onload_sys::error::{Context, Error, Result, bail, error};
use onload_sys::mountinfo::{self, MountTable};
use onload_sys::netlink::nldev::RdmaChardev;
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;

use super::cgroup::{self, CgroupDir};
use super::plan::{BindMount, InjectionPlan, PreloadPlan, VARIABLES, list_in_the_way};
use super::target::{MountTarget, TargetChecker};
use crate::config::state::OciState;
use crate::decide::host_view::{HostView, LocalHost};
use crate::decide::preload_choice::LD_SO_PRELOAD;
use crate::decide::report::ContainerReport;
use crate::decide::subject::CONFIG_JSON;
use crate::image::overmount::{Overmount, Overmounts};
use crate::image::preload::{self, PreloadContext, PreloadedLibrary};
use crate::record::container_record::{CreatedPath, LiveInjection, TargetType};
use crate::record::init::{InitProcess, RootUser, read_whole};
use onload_sys::fs::container_root::ContainerRoot;

/// The container's device cgroup; `None` if nothing controls devices.
pub(super) fn own_device_cgroup(init: &InitProcess) -> Result<Option<CgroupDir>> {
    let theirs = init.read("cgroup")?;
    let path = "/proc/self/cgroup";
    let own = File::open(path).and_then(read_whole).with_context(|| format!("reading {path:?}"))?;
    let path = "/proc/self/mountinfo";
    let mounts = File::open(path)
        .and_then(|file| {
            mountinfo::filter_lines(file, &|mount| matches!(mount.fs_type, b"cgroup" | b"cgroup2"))
        })
        .with_context(|| format!("reading {path:?}"))?;
    cgroup::find(&theirs, &own, &mounts)
}

/// The examined container, and what is to be done to it.
pub(super) struct Inspection<'a> {
    pub(super) id: &'a ContainerId,
    pub(super) plan: InjectionPlan,
    pub(super) init: InitProcess,
    pub(super) start_time: u64,
    pub(super) namespace: OwnedFd,
    pub(super) mounts: MountTable,
    pub(super) bundle: &'a Path,
    /// The path of the container's root on the host.
    pub(super) root_path: PathBuf,
    pub(super) targets: Vec<MountTarget>,
    /// The targets that will be created in the root.
    pub(super) missing: Vec<CreatedPath>,
    pub(super) device_cgroup: Option<CgroupDir>,
    pub(super) user: Option<RootUser>,
    /// The user of the container's process.
    pub(super) own_user: OciUser,
    /// The SELinux label of the container's files.
    pub(super) label: Option<String>,
    /// The content that /etc/ld.so.preload gets.
    pub(super) list: Option<String>,
    /// The injection of an earlier hook for the same process.
    pub(super) before: Option<LiveInjection>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Inspection<'a> {
    pub(super) fn new(
        state: &'a OciState,
        init: InitProcess,
        config: &OciConfig,
        host: &LocalHost,
        plan: InjectionPlan,
        before: Option<LiveInjection>,
    ) -> Result<Self> {
        let namespace = init.mount_namespace()?;
        let root_path = config.root_path().context(CONFIG_JSON)?;
        let root_path = state.bundle.join(root_path.unwrap_or_default());
        let mut inspection = Inspection {
            id: &state.id,
            start_time: init.start_time()?,
            mounts: init.read_mounts()?,
            bundle: &state.bundle,
            user: init.root_user()?,
            own_user: config.user().context(CONFIG_JSON)?,
            label: config.mount_label().context(CONFIG_JSON)?,
            device_cgroup: None,
            namespace,
            root_path,
            targets: Vec::new(),
            missing: Vec::new(),
            list: None,
            before,
            warnings: Vec::new(),
            init,
            plan,
        };
        let root = inspection.open_root()?;
        if let Some(preload) = inspection.plan.preload.take() {
            inspection.inspect_preload(&preload, config, host, &root)?;
        }
        inspection.inspect_targets(config, &root)?;
        inspection.inspect_list(&root)?;
        inspection.inspect_cgroup()?;
        Ok(inspection)
    }

    /// Adds nodes of devices that have since moved to the container.
    pub(super) fn with_nodes(mut self, nodes: &[RdmaChardev], config: &OciConfig) -> Result<Self> {
        if nodes.is_empty() {
            return Ok(self);
        }
        self.plan.add_nodes(nodes, config)?;
        let root = self.open_root()?;
        self.inspect_targets(config, &root)?;
        self.inspect_cgroup()?;
        Ok(self)
    }

    fn inspect_cgroup(&mut self) -> Result<()> {
        if !self.plan.record.rules.is_empty() {
            self.device_cgroup = own_device_cgroup(&self.init)?;
        }
        Ok(())
    }

    /// The root as the container's init sees it: with all its mounts, the last one on top.
    pub(super) fn open_root(&self) -> Result<ContainerRoot> {
        ContainerRoot::open_below(&self.init.open_root()?, &self.root_path)
    }

    fn inspect_preload(
        &mut self,
        preload: &PreloadPlan,
        config: &OciConfig,
        host: &LocalHost,
        root: &ContainerRoot,
    ) -> Result<()> {
        let settings = host.settings()?;
        let context = PreloadContext {
            settings: &settings,
            root: Some(root),
            id: Some(self.id),
            privilege: host.privilege(),
            host,
        };
        let library = PreloadedLibrary {
            source: preload.choice.source.as_deref(),
            targets: preload.choice.targets.get(..1).unwrap_or_default(),
            mode: Preload::File,
            is_path_required: true,
        };
        let mut report = ContainerReport::default();
        let name = preload::check_library(&library, config, &context, &mut report)
            .context(&preload.choice.key)?;
        self.warnings.extend(report.warnings);
        self.plan.preload = name.is_some().then(|| preload.clone());
        Ok(())
    }

    /// Reads the image's own /etc/ld.so.preload, which is on the container's own file system by then.
    fn inspect_list(&mut self, root: &ContainerRoot) -> Result<()> {
        let Some(preload) = &self.plan.preload else {
            return Ok(());
        };
        let image_list = preload::read_image_list(root)
            .map_err(|problem| list_in_the_way(&preload.choice.key, &problem))?;
        self.list = Some(preload::list(preload.library(), &image_list));
        Ok(())
    }

    fn inspect_targets(&mut self, config: &OciConfig, root: &ContainerRoot) -> Result<()> {
        let keys = &self.plan.keys;
        let mut mounts = Vec::new();
        for mount in config.mounts() {
            mounts.push(Overmount::new(&mount.destination(), &mount.type_(), &mount.options()));
        }
        let overmounts = Overmounts::new(root, mounts).context(keys)?;
        let checker = TargetChecker::new(root, &self.mounts).context(keys)?;
        let mut paths: Vec<_> =
            self.plan.binds.iter().map(|bind| (&*bind.target, Some(bind))).collect();
        if self.plan.preload.is_some() {
            paths.push((Path::new(LD_SO_PRELOAD), None));
        }
        if self.needs_variables_file() {
            paths.push((Path::new(VARIABLES), None));
        }
        let mut targets = Vec::new();
        let mut missing = Vec::new();
        for (path, bind) in paths {
            let kind = bind.map_or(Ok(TargetType::File), |bind| self.target_type(bind))?;
            let file_system = overmounts.check_creatable(&path.to_string_lossy());
            let target = MountTarget {
                path: path.to_owned(),
                kind,
                file_system: file_system.context(keys)?,
            };
            for created_path in checker.plan_creation(&target).context(keys)? {
                if !missing.contains(&created_path) {
                    missing.push(created_path);
                }
            }
            targets.push(target);
        }
        self.targets = targets;
        self.missing = missing;
        Ok(())
    }

    /// Returns whether the container lacks the file of variables.
    pub(super) fn needs_variables_file(&self) -> bool {
        let before = self.before.as_ref();
        let is_there = before.is_some_and(|before| !before.variables.is_empty());
        self.plan.variables.is_some() && !is_there
    }

    fn target_type(&self, bind: &BindMount) -> Result<TargetType> {
        let path = &bind.source;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let stat = rustix::fs::open(path, flags, Mode::empty())
            .and_then(fstat)
            .map_err(self.step_error(|| format!("opening {path:?} of the host")))?;
        if self.needs_own_node(bind, stat.st_mode) && self.init.has_own_users()? {
            bail!(
                "{}: in the container's user namespace {path:?} of the host (mode {:04o}) cannot be opened, and the container cannot get its own node there; run it without a user namespace, or give the host's node a mode for others by a udev rule",
                self.plan.keys,
                stat.st_mode & 0o777
            );
        }
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => TargetType::Directory,
            _ => TargetType::File,
        })
    }

    /// Returns whether the mode of the host's node prevents the container's process from opening it.
    pub(super) fn needs_own_node(&self, bind: &BindMount, mode: u32) -> bool {
        let is_root = self.own_user.uid == 0 && self.user.is_none_or(|user| user.uid == 0);
        bind.rule.is_some_and(|rule| {
            let mode_bits = rule.access.mode_bits();
            mode & mode_bits != mode_bits && !is_root
        })
    }

    /// Returns a function that adds the failed step of a mount to an error.
    pub(super) fn step_error(&self, what: impl FnOnce() -> String) -> impl FnOnce(Errno) -> Error {
        move |errno| {
            let hint = if errno == Errno::NOSYS { " (Linux 5.12 or newer is needed)" } else { "" };
            error!("{}: {}: {errno}{hint}", self.plan.keys, what())
        }
    }
}
