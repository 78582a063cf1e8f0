//! Applies a decision to the container: prepares mounts as descriptors, opens devices in its
//! cgroup, and moves the mounts into its mount namespace.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use onload_sys::error::{Context, Result, bail};
use onload_sys::mount_api::{self, attr};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, mknodat};
use rustix::io::Errno;
use rustix::process::umask;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::devices::CgroupChanges;
use super::fs_user::FileSystemUser;
use super::inspect::Inspection;
use super::plan::{BindMount, VARIABLES};
use super::systemd::SOCKET;
use super::target::{CreatedTarget, TargetChecker};
use super::{devices, limits};
use crate::decide::host_view::LocalHost;
use crate::decide::preload_choice::LD_SO_PRELOAD;
use crate::decide::sysfs::{DeviceNumber, device_number};
use crate::record::container_dir::ContainerDir;
use crate::record::container_record::{self, LiveInjection};
use crate::record::creator::CreatorStage;
use crate::record::sweep;

#[derive(Default)]
struct AppliedChanges {
    changes: CgroupChanges,
    created_targets: Vec<CreatedTarget>,
}

/// A node of the container's own, for the mount at this place in the plan.
struct PrivateNode {
    index: usize,
    host: Stat,
    uid: u32,
    gid: u32,
}

impl Inspection<'_> {
    /// Applies all of it, or nothing.
    pub(super) fn apply(mut self, host: &LocalHost) -> Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let own_namespace = rustix::fs::open("/proc/self/ns/mnt", flags, Mode::empty())
            .context("opening this process's own mount namespace")?;
        // With the engine's umask, the container's users might have no access to what is created in
        // its root.
        let _ = umask(Mode::empty());
        let mut container_dir =
            ContainerDir::open(self.id, CreatorStage::Hook, self.bundle, None, host)?;
        self.warnings.extend(container_dir.warning.take());
        let mut applied = AppliedChanges::default();
        let result = self.apply_all(&mut container_dir, &mut applied);
        // A hook that succeeds exits in the container's mount namespace, so only an undo needs the
        // way back.
        match result {
            Ok(()) => {
                self.warnings.append(&mut applied.changes.warnings);
                Ok(self.warnings)
            }
            Err(error) => {
                self.undo(applied, &own_namespace, container_dir);
                Err(error)
            }
        }
    }

    /// Undoes a start that failed half-way. The original error is the one to report, so failures here are not. If
    /// others hold the lock, the targets stay for a later sweep.
    fn undo(
        &self,
        applied: AppliedChanges,
        own_namespace: &OwnedFd,
        mut container_dir: ContainerDir,
    ) {
        let _ = move_into_link_name_space(own_namespace.as_fd(), Some(LinkNameSpaceType::Mount));
        applied.changes.undo();
        let lock = container_dir.lock_alone();
        let run = &container_dir.run;
        // Targets that another container with the same root uses are handed over by `clear`.
        if lock.is_some() && sweep::find_same_root(run, self.id, &self.root_path).is_none() {
            applied.created_targets.iter().rev().for_each(CreatedTarget::remove);
        }
        let _ = sweep::clear(run, self.id, lock.as_ref());
    }

    fn apply_all(
        &mut self,
        container_dir: &mut ContainerDir,
        applied: &mut AppliedChanges,
    ) -> Result<()> {
        let injection = LiveInjection {
            pid: self.init.pid(),
            start_time: self.start_time,
            variables: self.plan.variables.clone().unwrap_or_default(),
            ..self.plan.record.clone()
        }
        .merge_earlier(self.before.clone());
        container_dir.record_planned(&self.root_path, &self.missing)?;
        let trees = self.prepare(container_dir, &injection)?;
        self.set_limits()?;
        if let Some(device_cgroup) = &self.device_cgroup {
            applied.changes = devices::allow_devices(
                device_cgroup,
                self.id,
                &injection.rules,
                Path::new(SOCKET),
            )?;
        }
        self.enter(&trees, applied)?;
        let created_paths = applied
            .created_targets
            .iter()
            .map(|created_target| created_target.created_path.clone());
        container_dir.record_created(&self.missing, created_paths, injection)
    }

    /// The mounts as copies that are not attached anywhere yet, in the order of the targets.
    fn prepare(
        &self,
        container_dir: &ContainerDir,
        injection: &LiveInjection,
    ) -> Result<Vec<OwnedFd>> {
        let mut trees = Vec::new();
        let mut own_nodes = Vec::new();
        for (index, bind) in self.plan.binds.iter().enumerate() {
            let tree = self.copy(CWD, bind)?;
            if let Some(rule) = bind.rule {
                own_nodes.extend(self.check_own_node(&tree, index, rule.numbers())?);
            }
            trees.push(tree);
        }
        if !own_nodes.is_empty() {
            self.make_own_nodes(&own_nodes, &mut trees)
                .map_err(self.step_error(|| "making the container's own device nodes".into()))?;
        }
        if let Some(list) = &self.list {
            trees.push(self.create_own_file(
                container_dir,
                "ld.so.preload",
                LD_SO_PRELOAD,
                list,
            )?);
        }
        if self.needs_variables_file() {
            trees.push(self.create_own_file(
                container_dir,
                container_record::VARIABLES,
                VARIABLES,
                &injection.variables,
            )?);
        } else if let Some(more) = &self.plan.variables {
            container_dir.append(container_record::VARIABLES, more.as_bytes())?;
        }
        Ok(trees)
    }

    /// A file of the container's directory on the host, to be mounted read-only.
    fn create_own_file(
        &self,
        container_dir: &ContainerDir,
        name: &str,
        target: &str,
        text: &str,
    ) -> Result<OwnedFd> {
        container_dir.write(name, text.as_bytes(), self.label.as_deref())?;
        let attributes = attr::RDONLY | attr::NOSUID | attr::NODEV | attr::NOEXEC;
        self.copy(container_dir.dir.as_fd(), &BindMount::new(name, target, attributes))
    }

    fn copy(&self, dir: impl AsFd, bind: &BindMount) -> Result<OwnedFd> {
        let path = &bind.source;
        let tree = mount_api::clone_tree(dir.as_fd(), path, bind.is_recursive)
            .map_err(self.step_error(|| format!("copying the mount of {path:?} of the host")))?;
        mount_api::set_private(&tree, bind.attributes, bind.is_recursive).map_err(
            self.step_error(|| format!("setting the attributes of {path:?} of the host")),
        )?;
        Ok(tree)
    }

    /// Checks that the node about to be mounted is the one that was checked before. The host's node keeps
    /// its mode, owner and SELinux label. If the container could not open it with these, returns a node of
    /// its own to mount instead.
    fn check_own_node(
        &self,
        tree: &OwnedFd,
        index: usize,
        number: DeviceNumber,
    ) -> Result<Option<PrivateNode>> {
        let bind = &self.plan.binds[index];
        let path = &bind.source;
        let host =
            fstat(tree).map_err(self.step_error(|| format!("looking at {path:?} of the host")))?;
        if device_number(&host) != Some(number) {
            bail!(
                "{}: device node {path:?} is no longer character device {number}",
                self.plan.keys
            );
        }
        let (uid, gid) = if self.needs_own_node(bind, host.st_mode) {
            (self.own_user.uid, self.own_user.gid)
        } else if self.label.is_some() {
            (host.st_uid, host.st_gid)
        } else {
            return Ok(None);
        };
        Ok(Some(PrivateNode { index, host, uid, gid }))
    }

    /// Makes nodes with the container's label, all on one tmpfs that holds nothing else: each copy of a file of a
    /// detached mount takes a copy of the host's whole mount namespace.
    fn make_own_nodes(&self, nodes: &[PrivateNode], trees: &mut [OwnedFd]) -> Result<(), Errno> {
        let tmpfs = mount_api::create_tmpfs(self.label.as_deref())?;
        let mut names = Vec::new();
        for node in nodes {
            let name = format!("node{}", node.index);
            let mode = Mode::from_raw_mode(node.host.st_mode & 0o777);
            let kind = FileType::CharacterDevice;
            mknodat(&tmpfs, &name, kind, mode, node.host.st_rdev)?;
            let uid = Uid::from_raw_unchecked(node.uid);
            let gid = Gid::from_raw_unchecked(node.gid);
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(&tmpfs, &name, Some(uid), Some(gid), flags)?;
            names.push(name);
        }
        let copies = mount_api::clone_detached_files(&tmpfs, &names)?;
        for (node, copy) in nodes.iter().zip(copies) {
            mount_api::set_private(&copy, self.plan.binds[node.index].attributes, false)?;
            trees[node.index] = copy;
        }
        Ok(())
    }

    fn set_limits(&mut self) -> Result<()> {
        if let Some(memlock) = self.plan.memlock {
            self.warnings.extend(limits::raise_memlock_of(&self.init, memlock)?);
        }
        if let Some(preload) = &self.plan.preload {
            limits::lower_nofile(&self.init, preload.nofile)?;
        }
        Ok(())
    }

    /// Moves the mounts into the container.
    fn enter(&self, trees: &[OwnedFd], applied: &mut AppliedChanges) -> Result<()> {
        if self.targets.is_empty() {
            return Ok(());
        }
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(self.namespace.as_fd(), kind).with_context(|| {
            format!("entering the mount namespace of process {}", self.init.pid())
        })?;
        let root = self.open_root()?;
        let keys = &self.plan.keys;
        let targets = TargetChecker::new(&root, &self.mounts).context(keys)?;
        // The library is in place before the list that names it.
        for (target, tree) in self.targets.iter().zip(trees) {
            let target_fd = {
                let _user = self.become_container_root()?;
                targets.open(target, &mut applied.created_targets).context(keys)?
            };
            let path = &target.path;
            mount_api::attach(tree, target_fd)
                .map_err(self.step_error(|| format!("mounting onto {path:?} in the container")))?;
        }
        Ok(())
    }

    fn become_container_root(&self) -> Result<Option<FileSystemUser>> {
        let Some(user) = self.user else {
            return Ok(None);
        };
        let guard = FileSystemUser::become_user(user.uid, user.gid);
        if guard.is_none() {
            bail!(
                "becoming the container's user {} to make mount targets: the kernel refuses",
                user.uid
            );
        }
        Ok(guard)
    }
}
