//! `poststop`: removes what was made for a container under /run/onload-ctk, and nothing else.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use onload_cdi::write::is_temporary_name;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, openat, statat, unlinkat};
use rustix::io::Errno;

use crate::container_root::ContainerRoot;
use crate::live::init::Init;
use crate::live::record::{self, Created, Live};
use crate::live::target;
use crate::state::ContainerId;

/// Where a container's files are kept while it lives, one directory each.
pub const RUN_DIR: &str = "/run/onload-ctk";

/// The files that are made for a container.
pub const FILES: [&str; 3] = ["ld.so.preload", "created", "state.json"];

/// Why something stayed.
#[derive(Debug, thiserror::Error)]
pub enum PoststopError {
    /// It could not be opened or removed.
    #[error("removing {path:?}: {error}")]
    Remove {
        /// What stayed.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file that nobody of us made.
    #[error("{0:?} was not made by onload-ctk and stays; remove it by hand")]
    Foreign(PathBuf),
}

/// Removes the files of one container. What is not there was removed before.
///
/// # Errors
/// [`PoststopError`] names what stayed.
pub fn run(run_dir: &Path, id: &ContainerId) -> Result<(), PoststopError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = match rustix::fs::open(run_dir, flags, Mode::empty()) {
        Ok(parent) => parent,
        // Whom it does not let in made nothing there: a user without root.
        Err(Errno::NOENT | Errno::ACCESS) => return Ok(()),
        Err(error) => return Err(failed(run_dir.to_owned())(error)),
    };
    clear(&parent, run_dir, id)
}

/// Removes what is left of containers whose init is gone. A runtime may give a container up behind
/// our hook without calling a poststop (crun, `libcrun_container_create`), and whoever starts such
/// containers would fill the directory. While others start or end nothing is done; the next one does it.
pub fn sweep(run_dir: &Path, own: &ContainerId) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(run) = rustix::fs::open(run_dir, flags, Mode::empty()) else {
        return;
    };
    if flock(&run, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let ids = names(&run).into_iter().filter_map(|name| name.parse().ok());
    for id in ids.filter(|id: &ContainerId| id != own) {
        if is_left(&run, &id) {
            // What stays is tried again by the next one.
            let _ = clear(&run, run_dir, &id);
        }
    }
}

/// Whether a hook made something for a container and its init is gone, or the hook was killed: one
/// that works holds the lock.
fn is_left(run: &OwnedFd, id: &ContainerId) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = openat(run, id.as_str(), flags, Mode::empty()) else {
        return false;
    };
    let created = statat(&dir, record::CREATED, AtFlags::SYMLINK_NOFOLLOW);
    match record::read::<Live>(&dir, record::STATE) {
        Ok(Some(live)) => {
            let now = Init::open(Some(live.pid)).and_then(|init| init.start_time());
            now.ok() != Some(live.start_time)
        }
        Ok(None) => created.is_ok(),
        Err(_) => false,
    }
}

/// Removes the preload list of a container that is deleted: a runtime that gives a container up
/// before it calls any hook calls no poststop either. One that lives keeps the mount of it. What the
/// hook of a living container keeps stays for its poststop.
pub fn forget_list(run_dir: &Path, id: &ContainerId) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(own) = rustix::fs::open(run_dir.join(id.as_str()), flags, Mode::empty()) else {
        return;
    };
    let created = statat(&own, record::CREATED, AtFlags::SYMLINK_NOFOLLOW);
    if matches!(created, Err(Errno::NOENT)) {
        // The runtime that follows has the word; what stays is small.
        let _ = unlinkat(&own, "ld.so.preload", AtFlags::empty());
        let _ = rustix::fs::rmdir(run_dir.join(id.as_str()));
    }
}

/// As [`run`], in an open directory.
///
/// # Errors
/// [`PoststopError`] names what stayed.
pub fn clear(parent: &OwnedFd, run_dir: &Path, id: &ContainerId) -> Result<(), PoststopError> {
    let path = run_dir.join(id.as_str());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = match openat(parent, id.as_str(), flags, Mode::empty()) {
        Ok(own) => own,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed(path)(error)),
    };
    // Two that end at once must not hand over to each other, and none that starts may find a target
    // that is about to go. Without the lock that could happen, so its failure is no reason to stop.
    let _ = flock(parent, FlockOperation::LockExclusive);
    remove_created(parent, &own, id);
    for name in FILES {
        match unlinkat(&own, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(path.join(name))(error)),
        }
    }
    for name in temporary(&own) {
        let _ = unlinkat(&own, name, AtFlags::empty());
    }
    match unlinkat(parent, id.as_str(), AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(PoststopError::Foreign(
            names(&own)
                .first()
                .map_or_else(|| path.clone(), |name| path.join(name)),
        )),
        Err(error) => Err(failed(path)(error)),
    }
}

fn failed(path: PathBuf) -> impl FnOnce(Errno) -> PoststopError {
    move |error| PoststopError::Remove {
        path,
        error: error.into(),
    }
}

/// The mount targets that were made in the container's root go, where they are still ours. A root
/// that is gone, or whose engine has unmounted it, holds none.
fn remove_created(run: &OwnedFd, own: &OwnedFd, id: &ContainerId) {
    let Ok(Some(created)) = record::read::<Created>(own, record::CREATED) else {
        return;
    };
    if hand_over(run, id, &created) {
        return;
    }
    if let Ok(root) = ContainerRoot::open(&created.root) {
        target::remove(&root, &created.made);
    }
}

/// Where another container lives in the same root, the targets are its own now: to unlink one would
/// take the mount on it away. Whether there is such a container.
fn hand_over(run: &OwnedFd, id: &ContainerId, created: &Created) -> bool {
    let Some((dir, mut theirs)) = neighbour(run, id, &created.root) else {
        return false;
    };
    let made = created.made.iter().cloned();
    theirs.made.splice(0..0, made);
    record::write(&dir, record::CREATED, &theirs).is_ok()
}

/// Another container in the same root: its directory, and what was made for it.
fn neighbour(run: &OwnedFd, id: &ContainerId, root: &Path) -> Option<(OwnedFd, Created)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let others = names(run).into_iter().filter(|name| name != id.as_str());
    let mut records = others.filter_map(|name| {
        let dir = openat(run, name.as_str(), flags, Mode::empty()).ok()?;
        let theirs = record::read::<Created>(&dir, record::CREATED).ok()??;
        Some((dir, theirs))
    });
    records.find(|(_, theirs)| theirs.root == root)
}

/// Waits until no container starts, and says whether there is another one in the same root.
#[must_use]
pub fn has_neighbour(run: &OwnedFd, id: &ContainerId, root: &Path) -> bool {
    let _ = flock(run, FlockOperation::LockExclusive);
    neighbour(run, id, root).is_some()
}

/// What a killed process left of a file that it was writing.
fn temporary(own: &OwnedFd) -> Vec<String> {
    let mut names = names(own);
    names.retain(|name| is_temporary_name(name.as_ref()));
    names
}

fn names(own: &OwnedFd) -> Vec<String> {
    let Ok(dir) = Dir::read_from(own) else {
        return Vec::new();
    };
    let mut names: Vec<String> = dir
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "." && name != "..")
        .filter(|name| statat(own, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn remove(run_dir: &Path, id: &str) -> Result<(), PoststopError> {
        run(run_dir, &id.parse().unwrap())
    }

    #[test]
    fn nothing_to_do_is_done() {
        let dir = tempfile::tempdir().unwrap();
        remove(dir.path(), "c1").unwrap();
        remove(&dir.path().join("absent"), "c1").unwrap();
    }

    #[test]
    fn the_files_of_one_container_go_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        for id in ["c1", "c2"] {
            fs::create_dir(dir.path().join(id)).unwrap();
            for name in FILES {
                fs::write(dir.path().join(id).join(name), "x").unwrap();
            }
        }
        remove(dir.path(), "c1").unwrap();
        assert!(!dir.path().join("c1").exists());
        assert_eq!(
            fs::read_dir(dir.path().join("c2")).unwrap().count(),
            FILES.len()
        );
        remove(dir.path(), "c1").unwrap();
    }

    #[test]
    fn a_list_is_forgotten_where_no_container_was_made_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let id = "c1".parse().unwrap();
        forget_list(dir.path(), &id);
        fs::create_dir(dir.path().join("c1")).unwrap();
        for name in ["ld.so.preload", "created"] {
            fs::write(dir.path().join("c1").join(name), "x").unwrap();
        }
        forget_list(dir.path(), &id);
        assert_eq!(fs::read_dir(dir.path().join("c1")).unwrap().count(), 2);
        fs::remove_file(dir.path().join("c1/created")).unwrap();
        forget_list(dir.path(), &id);
        assert!(!dir.path().join("c1").exists());
    }

    #[test]
    fn a_foreign_file_stays_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("c1")).unwrap();
        fs::write(dir.path().join("c1/theirs"), "x").unwrap();
        let message = remove(dir.path(), "c1").unwrap_err().to_string();
        assert!(
            message.contains("c1/theirs") && message.contains("not made by"),
            "{message}"
        );
        assert!(dir.path().join("c1/theirs").exists());
    }

    #[test]
    fn a_symlink_in_the_place_of_the_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("state.json"), "x").unwrap();
        std::os::unix::fs::symlink(other.path(), dir.path().join("c1")).unwrap();
        assert!(remove(dir.path(), "c1").is_err());
        assert!(other.path().join("state.json").exists());
    }

    #[test]
    fn a_symlink_in_the_place_of_a_file_goes_without_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("victim"), "x").unwrap();
        fs::create_dir(dir.path().join("c1")).unwrap();
        std::os::unix::fs::symlink(
            other.path().join("victim"),
            dir.path().join("c1/state.json"),
        )
        .unwrap();
        remove(dir.path(), "c1").unwrap();
        assert!(other.path().join("victim").exists());
    }
}
