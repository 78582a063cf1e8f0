//! Finds the container's cgroup, and which of its directories belong to the container. It changes
//! nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use onload_core::container_id::ContainerId;
use onload_sys::error::{Result, bail};
use onload_sys::mountinfo::{self, MountinfoLine};

/// A process's cgroup in the hierarchy that controls devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupDir {
    /// Whether programs control devices, as in cgroup v2, instead of the list `devices.allow` of v1.
    pub is_v2: bool,
    /// The mount point of the hierarchy.
    pub mount: PathBuf,
    /// The cgroup in it, no leading slash.
    pub path: PathBuf,
}

impl CgroupDir {
    pub(crate) fn full_path(&self) -> PathBuf {
        self.mount.join(&self.path)
    }

    /// The innermost cgroup named after the container. crun creates another one below it, and a
    /// container that may write to its cgroups any it likes, as systemd in a container does.
    fn named_after(&self, id: &ContainerId) -> Option<&Path> {
        self.path.ancestors().find(|path| is_named_after(path, id))
    }

    /// The cgroups that belong to the container, innermost first, up to the one named after it.
    pub(crate) fn own_cgroups(&self, id: &ContainerId) -> Vec<PathBuf> {
        let outermost = self.named_after(id).unwrap_or(&self.path);
        self.path
            .ancestors()
            .take_while(|path| path.starts_with(outermost))
            .map(|path| self.mount.join(path))
            .collect()
    }

    /// The cgroups above those of the container, up to the root.
    pub(crate) fn outer_cgroups(&self, id: &ContainerId) -> Vec<PathBuf> {
        let own = self.own_cgroups(id);
        self.path
            .ancestors()
            .map(|path| self.mount.join(path))
            .filter(|path| !own.contains(path))
            .collect()
    }

    /// Returns the systemd scope that is named after the container. Other scopes are ignored: a container can give one of
    /// its own cgroups the name of any scope.
    pub(crate) fn systemd_scope(&self, id: &ContainerId) -> Option<&str> {
        let path = self.named_after(id)?;
        let is_scope = path.extension() == Some(OsStr::new("scope"));
        is_scope.then(|| path.file_name()?.to_str()).flatten()
    }
}

/// Engines name a container's cgroup or scope `ID` or `PREFIX-ID`, with or without `.scope`.
fn is_named_after(path: &Path, id: &ContainerId) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_suffix(".scope")
        .unwrap_or(name)
        .strip_suffix(id.as_str())
        .is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
}

/// Finds the cgroup of a process from its /proc/PID/cgroup and this process's mounts and cgroups;
/// `None` if no hierarchy controls devices.
pub(crate) fn find(theirs: &[u8], own: &[u8], mounts: &[u8]) -> Result<Option<CgroupDir>> {
    for controller in ["devices", ""] {
        if let Some(path) = parse_path(theirs, controller) {
            return resolve_dir(path, parse_path(own, controller), mounts, controller).map(Some);
        }
    }
    Ok(None)
}

/// The path in a line `NUMBER:CONTROLLERS:PATH` (cgroups(7)); no controllers means cgroup v2. A
/// path may contain any byte except a newline.
fn parse_path<'a>(table: &'a [u8], controller: &str) -> Option<&'a Path> {
    table.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = if controller.is_empty() {
            number == b"0" && controllers.is_empty()
        } else {
            let mut names = controllers.split(|byte| *byte == b',');
            names.any(|name| name == controller.as_bytes())
        };
        found.then(|| Path::new(OsStr::from_bytes(path)))
    })
}

fn resolve_dir(
    path: &Path,
    own: Option<&Path>,
    mounts: &[u8],
    controller: &str,
) -> Result<CgroupDir> {
    let is_v2 = controller.is_empty();
    let is_hierarchy = |mount: &MountinfoLine<'_>| match mount.fs_type {
        b"cgroup2" => is_v2,
        b"cgroup" => {
            mount.options.split(|byte| *byte == b',').any(|one| one == controller.as_bytes())
        }
        _ => false,
    };
    // A mount may show only a part of the hierarchy, as in a container.
    let within = mountinfo::parse(mounts).filter(is_hierarchy).filter_map(|mount| {
        let root = mountinfo::unescape(mount.root);
        let root = Path::new(OsStr::from_bytes(&root));
        let below = |path: &Path| path.strip_prefix(root).ok().map(Path::to_owned);
        let mounted = mountinfo::unescape(mount.point);
        let mount = PathBuf::from(OsStr::from_bytes(&mounted));
        Some((CgroupDir { is_v2, mount, path: below(path)? }, own.and_then(below)))
    });
    let Some((found, own)) = within.last() else {
        bail!(
            "the container is in cgroup {path:?}, and no mount of that hierarchy shows it; mount it below /sys/fs/cgroup"
        );
    };
    let holds_own = own.is_some_and(|own| own.starts_with(&found.path));
    if holds_own || found.path.as_os_str().is_empty() {
        bail!(
            "the container is in cgroup {path:?} together with its runtime, so other containers \
             would get the device too; let the engine create a cgroup for it, or use the engine's \
             --device"
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 22 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "\
30 22 0:26 / /sys/fs/cgroup ro shared:4 - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
";
    const ID: &str = "c0ffee";
    const SHELL: &str = "0::/user.slice/session-1.scope\n";

    fn id() -> ContainerId {
        ID.parse().unwrap()
    }

    /// As [`super::find`], with texts.
    fn find(theirs: &str, own: &str, mounts: &str) -> Result<Option<CgroupDir>> {
        super::find(theirs.as_bytes(), own.as_bytes(), mounts.as_bytes())
    }

    const NOT_MOUNTED: &str =
        ", and no mount of that hierarchy shows it; mount it below /sys/fs/cgroup";
    const SHARED: &str = " together with its runtime, so other containers would get the device \
        too; let the engine create a cgroup for it, or use the engine's --device";

    fn refusal(theirs: &str, own: &str, mounts: &str) -> String {
        find(theirs, own, mounts).unwrap_err().to_string()
    }

    #[test]
    fn names_that_are_no_text_are_passed_over_or_kept_as_they_are() {
        let mounts = [b"36 22 0:31 / /home/\xe9 rw - fuse.sshfs u@h:\xff rw\n", V2.as_bytes()];
        let theirs = b"0::/machine.slice/a\xff/c0ffee\n";
        let found = super::find(theirs, b"0::/user.slice/\xe9\n", &mounts.concat());
        let Ok(Some(dir @ CgroupDir { is_v2: true, .. })) = found else {
            panic!("{found:?}");
        };
        let path = OsStr::from_bytes(b"machine.slice/a\xff/c0ffee");
        assert_eq!(dir.path, Path::new(path));
        assert_eq!(dir.own_cgroups(&id()), [dir.full_path()]);
    }

    fn v2(path: &str) -> CgroupDir {
        match find(&format!("0::{path}\n"), SHELL, V2) {
            Ok(Some(dir)) if dir.is_v2 => dir,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_unified_hierarchy_is_found() {
        let dir = v2("/machine.slice/libpod-c0ffee.scope");
        assert_eq!(dir.full_path(), Path::new("/sys/fs/cgroup/machine.slice/libpod-c0ffee.scope"));
        assert_eq!(dir.own_cgroups(&id()), [dir.full_path()]);
        assert_eq!(dir.systemd_scope(&id()), Some("libpod-c0ffee.scope"));
        assert_eq!(
            dir.outer_cgroups(&id()),
            [Path::new("/sys/fs/cgroup/machine.slice"), Path::new("/sys/fs/cgroup/")]
        );
    }

    #[test]
    fn crun_s_cgroup_and_the_scope_around_it_are_the_container_s() {
        let dir = v2("/machine.slice/libpod-c0ffee.scope/container");
        let scope = Path::new("/sys/fs/cgroup/machine.slice/libpod-c0ffee.scope");
        assert_eq!(dir.own_cgroups(&id()), [dir.full_path(), scope.to_owned()]);
        assert_eq!(dir.systemd_scope(&id()), Some("libpod-c0ffee.scope"));
        let cgroupfs = v2("/libpod_parent/libpod-c0ffee/container");
        assert_eq!(cgroupfs.own_cgroups(&id()).len(), 2);
        assert_eq!(cgroupfs.systemd_scope(&id()), None);
    }

    #[test]
    fn what_others_share_is_never_the_container_s() {
        for path in ["/machine.slice/container", "/pod/xc0ffee/container", "/c0ffee.slice/other"] {
            assert_eq!(v2(path).own_cgroups(&id()).len(), 1, "{path}");
        }
        assert_eq!(v2("/kubepods.slice/x.scope/inner").systemd_scope(&id()), None);
        assert_eq!(v2("/c0ffee/c0ffee").own_cgroups(&id()).len(), 1, "a namespace of that name");
    }

    #[test]
    fn a_container_that_moved_into_a_cgroup_of_its_own_making_is_found() {
        for inside in ["init.scope", "container/init.scope", "a/b/c"] {
            let dir = v2(&format!("/machine.slice/libpod-c0ffee.scope/{inside}"));
            let depth = Path::new(inside).components().count();
            assert_eq!(dir.own_cgroups(&id()).len(), depth + 1, "{inside}");
            assert_eq!(dir.systemd_scope(&id()), Some("libpod-c0ffee.scope"), "{inside}");
        }
    }

    #[test]
    fn the_name_of_somebody_else_s_scope_is_not_taken_for_the_container_s() {
        for path in [
            "/machine.slice/init.scope",
            "/docker/c0ffee/docker-beef.scope",
            "/machine.slice/libpod-c0ffee.scope.d/sshd.scope/container",
        ] {
            assert_eq!(v2(path).systemd_scope(&id()), None, "{path}");
        }
    }

    #[test]
    fn the_devices_controller_comes_before_the_unified_hierarchy() {
        let theirs = "5:devices:/docker/c0ffee\n0::/\n";
        let found = find(theirs, "5:devices:/\n0::/\n", V1).unwrap();
        let Some(dir @ CgroupDir { is_v2: false, .. }) = found else {
            panic!("{found:?}");
        };
        assert_eq!(dir.full_path(), Path::new("/sys/fs/cgroup/devices/docker/c0ffee"));
    }

    #[test]
    fn a_mount_of_a_part_of_the_hierarchy_is_looked_through() {
        let part = "30 22 0:26 /outer /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = find("0::/outer/c0ffee\n", "0::/outer/shell\n", part).unwrap();
        assert!(found.is_some_and(|dir| dir.is_v2 && dir.path == Path::new("c0ffee")));
        for (path, mounts) in [("/other/c0ffee", part), ("/a", "")] {
            assert_eq!(
                refusal(&format!("0::{path}\n"), SHELL, mounts),
                format!("the container is in cgroup {path:?}{NOT_MOUNTED}")
            );
        }
    }

    #[test]
    fn a_cgroup_that_the_runtime_is_in_is_never_touched() {
        for (theirs, own) in [
            ("/user.slice/session-1.scope", "/user.slice/session-1.scope"),
            ("/user.slice", "/user.slice/session-1.scope"),
            ("/", "/user.slice/session-1.scope"),
            ("/", "/"),
        ] {
            assert_eq!(
                refusal(&format!("0::{theirs}\n"), &format!("0::{own}\n"), V2),
                format!("the container is in cgroup {theirs:?}{SHARED}"),
                "{theirs} {own}"
            );
        }
        assert!(find("0::/user.slice/a\n", "0::/user.slice/ab\n", V2).is_ok());
    }

    #[test]
    fn without_a_hierarchy_nothing_judges_devices() {
        assert_eq!(find("3:cpu:/x\n", "", V1).unwrap(), None);
        assert_eq!(find("", "", V2).unwrap(), None);
    }
}
