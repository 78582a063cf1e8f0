//! Copies the owner, mode and security label of a file to the file that will replace it.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{Gid, Mode, Stat, Uid, XattrFlags, fchmod, fchown, fgetxattr, fsetxattr, fstat};
use rustix::io::Errno;

/// The extended attribute with SELinux's label. Other security modules do not label files.
const LABEL: &str = "security.selinux";
/// Limit for a label in bytes; the kernel accepts one page at most.
const MAX_LABEL_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyError {
    /// `owner` or `label`.
    pub what: &'static str,
    pub error: Errno,
}

/// Copies the owner, mode and label of `old`, whose status is `stat`, to `new`. The label is copied if the file system
/// supports labels.
pub fn copy(old: impl AsFd, stat: &Stat, new: &File) -> Result<(), CopyError> {
    let failed = |what| move |error| CopyError { what, error };
    copy_owner(stat, new).map_err(failed("owner"))?;
    copy_label(old, new).map_err(failed("label"))
}

fn copy_owner(stat: &Stat, new: &File) -> Result<(), Errno> {
    let current = fstat(new)?;
    if (current.st_uid, current.st_gid) == (stat.st_uid, stat.st_gid) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    fchown(new, Some(uid), Some(gid))?;
    // Changing the owner clears set-user-ID bits (chown(2)).
    fchmod(new, Mode::from_raw_mode(stat.st_mode & 0o7777))
}

/// Copies the label of `old` to `new`, if the file system supports labels.
pub fn copy_label(old: impl AsFd, new: &File) -> Result<(), Errno> {
    let mut label = vec![0; MAX_LABEL_BYTES];
    let length = match fgetxattr(old, LABEL, &mut label[..]) {
        Ok(length) => length,
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        Err(error) => return Err(error),
    };
    label.truncate(length);
    fsetxattr(new, LABEL, &label, XattrFlags::empty())
}

/// Sets the SELinux label of a file, if the file system supports labels.
pub fn set_label(file: &File, label: &str) -> Result<(), Errno> {
    match fsetxattr(file, LABEL, label.as_bytes(), XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        set => set,
    }
}
