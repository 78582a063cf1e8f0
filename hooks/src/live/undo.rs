//! Undoes a start that failed half-way.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use onload_core::container_id::ContainerId;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::devices::CgroupChanges;
use super::target::CreatedTarget;
use crate::record::container_dir::ContainerDir;
use crate::record::sweep;

#[derive(Default)]
pub(super) struct AppliedChanges {
    pub(super) changes: CgroupChanges,
    pub(super) created_targets: Vec<CreatedTarget>,
}

impl AppliedChanges {
    /// Undoes it. The original error is the one to report, so failures here are not. If others hold
    /// the lock, the targets stay for a later sweep.
    pub(super) fn undo(
        self,
        own_namespace: &OwnedFd,
        mut container_dir: ContainerDir,
        id: &ContainerId,
        root: &Path,
    ) {
        let _ = move_into_link_name_space(own_namespace.as_fd(), Some(LinkNameSpaceType::Mount));
        self.changes.undo();
        let lock = container_dir.lock_alone();
        // Targets that another container with the same root uses are handed over by `clear`.
        if lock.is_some() && sweep::find_same_root(&container_dir.run, id, root).is_none() {
            self.created_targets.iter().rev().for_each(CreatedTarget::remove);
        }
        let _ = sweep::clear(&container_dir.run, id, lock.as_ref());
    }
}
