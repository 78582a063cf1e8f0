//! The file system user of this process: setfsuid(2) and setfsgid(2).

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// Reads and writes files as another user until it is dropped. All other privileges stay.
///
/// On a file system that was mounted in a user namespace, only users that the namespace maps can
/// create files (fs/namei.c, `may_o_create`, EOVERFLOW), and the host's root is not one of them.
#[derive(Debug)]
pub(crate) struct FileSystemUser(());

impl FileSystemUser {
    /// Becomes `uid` and `gid`, as the initial user namespace counts them; `None` if the kernel
    /// refuses.
    pub(crate) fn become_user(uid: u32, gid: u32) -> Option<Self> {
        let guard = FileSystemUser(());
        (set_group(gid) && set_user(uid)).then_some(guard)
    }
}

impl Drop for FileSystemUser {
    fn drop(&mut self) {
        // Returning to root always succeeds for a process whose real user is root.
        set_user(0);
        set_group(0);
    }
}

/// setfsuid(2) reports no error: it returns the previous id, and -1 changes nothing. It affects only
/// this thread.
fn set_user(uid: u32) -> bool {
    setfsuid(Uid::from_raw(uid));
    setfsuid(Uid::from_raw(u32::MAX)).as_raw() == uid
}

fn set_group(gid: u32) -> bool {
    setfsgid(Gid::from_raw(gid));
    setfsgid(Gid::from_raw(u32::MAX)).as_raw() == gid
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn files_belong_to_that_user_until_the_guard_is_dropped() {
        if !onload_test_needs::root("being another user") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let guard = FileSystemUser::become_user(4242, 4343).unwrap();
        fs::write(dir.path().join("theirs"), "").unwrap();
        drop(guard);
        fs::write(dir.path().join("ours"), "").unwrap();
        let owner = |name: &str| {
            let stat = fs::metadata(dir.path().join(name)).unwrap();
            (stat.uid(), stat.gid())
        };
        assert_eq!(owner("theirs"), (4242, 4343));
        assert_eq!(owner("ours"), (0, 0));
    }
}
