//! Opens files inside a root by openat2(2) with retries, and provides helpers for walking a path component by
//! component.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, openat2, statat, statx,
};
use rustix::io::Errno;

/// Limit for symbolic links in one path, as in the kernel (path_resolution(7)).
pub const MAX_LINKS: usize = 40;

/// Limit for a path in bytes (PATH_MAX); no system call accepts a longer one.
pub const PATH_MAX: usize = 4096;

/// Limit for attempts to open a path. Renames and mounts anywhere on the machine disturb an attempt, so that many may
/// fail in a row on a busy machine. An attempt takes a few microseconds.
const ATTEMPTS: usize = 1000;

/// Opens a path below a directory that is treated as `/`: no link and no `..` leads out of it, and magic links of /proc
/// are not followed. `more` adds restrictions.
///
/// If a file is renamed or a file system mounted at the same time, anywhere on the machine, the kernel cannot tell
/// whether `..` stayed inside and fails with EAGAIN (openat2(2)). This retries up to [`ATTEMPTS`] times.
pub fn open_in_root(
    root: impl AsFd,
    path: &Path,
    flags: OFlags,
    more: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | more;
    open_resolved(root, path, flags, resolve)
}

/// Opens a path relative to a directory, with the caller's own restrictions, and retries as
/// [`open_in_root`] does.
pub fn open_resolved(
    dir: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let (path, flags) = (path.as_ref(), flags | OFlags::CLOEXEC);
    retry_on_eagain(|| openat2(&dir, path, flags, Mode::empty(), resolve))
}

fn retry_on_eagain(mut open: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    for _ in 1..ATTEMPTS {
        match open() {
            Err(Errno::AGAIN) => {}
            opened => return opened,
        }
    }
    open()
}

/// Returns whether a path exists, possibly as a dangling link. A path that cannot be examined counts as existing.
pub fn may_exist(path: &Path) -> bool {
    !matches!(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT | Errno::NOTDIR))
}

/// Returns whether a descriptor refers to the root of a mount.
pub fn is_mount_root(fd: impl AsFd) -> Result<bool, Errno> {
    let stat = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Returns the components of a path without `.`, the last one first, so that a walk pops them from the end.
pub fn reversed_components(path: &OsStr) -> Vec<OsString> {
    path.as_bytes()
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(|part| OsStr::from_bytes(part).to_owned())
        .rev()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_lookup_is_tried_again_and_no_other_failure_is() {
        let mut calls = 0;
        let mut disturbed = |times: usize, then: Errno| {
            calls = 0;
            let result = retry_on_eagain(|| {
                calls += 1;
                Err(if calls <= times { Errno::AGAIN } else { then })
            });
            (result.unwrap_err(), calls)
        };
        assert_eq!(disturbed(17, Errno::NOENT), (Errno::NOENT, 18));
        assert_eq!(disturbed(0, Errno::ACCESS), (Errno::ACCESS, 1));
        assert_eq!(disturbed(usize::MAX, Errno::NOENT), (Errno::AGAIN, ATTEMPTS));
    }

    #[test]
    fn nothing_outside_the_root_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "").unwrap();
        let inside = dir.path().join("root");
        std::fs::create_dir(&inside).unwrap();
        std::os::unix::fs::symlink("../secret", inside.join("up")).unwrap();
        let root = std::fs::File::open(&inside).unwrap();
        let open = |path: &str| {
            open_in_root(&root, Path::new(path), OFlags::PATH, ResolveFlags::empty()).map(drop)
        };
        for path in ["up", "../secret", "/../secret"] {
            assert_eq!(open(path), Err(Errno::NOENT), "{path}");
        }
        assert_eq!(open("/"), Ok(()));
    }

    #[test]
    fn only_what_is_known_to_be_absent_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(may_exist(dir.path()) && may_exist(&link));
        assert!(!may_exist(&dir.path().join("nowhere")));
        assert!(!may_exist(&link.join("below")));
        let long = "x".repeat(300);
        assert!(may_exist(&dir.path().join(long)), "ENAMETOOLONG says nothing");
    }

    #[test]
    fn components_are_what_stands_between_the_strokes() {
        assert_eq!(reversed_components(OsStr::new("/a//./b/../c/")), ["c", "..", "b", "a"]);
        assert!(reversed_components(OsStr::new("/")).is_empty());
    }
}
