//! The control group below which a container's will be, and the CPUs and NUMA nodes that it has.
//!
//! Sources: Documentation/admin-guide/cgroup-v2.rst ("cpuset.cpus.effective"), cgroup-v1/cpusets.rst, and for
//! `cgroupsPath` the OCI specification (config-linux.md) and docs/systemd.md of runc.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use onload_sys::cpu_list;
use onload_sys::fs::open::PATH_MAX;

use crate::decide::sysfs::Sysfs;

/// Below /sys.
const V2: &str = "fs/cgroup";
const V1: &str = "fs/cgroup/cpuset";
/// A file that only the hierarchy of version 2 has.
const IS_V2: &str = "fs/cgroup/cgroup.controllers";

/// Version 2 has the first, version 1 the second; before Linux 3.17 that has no effective ones.
const CPUS: [&str; 3] = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"];
const MEMS: [&str; 3] = ["cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"];

/// The slice of a `cgroupsPath` that names none.
const DEFAULT_SLICE: &str = "system.slice";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AncestorCgroup {
    /// Its path in the hierarchy.
    pub(super) path: PathBuf,
    pub(super) cpus: BTreeSet<u32>,
    pub(super) mems: BTreeSet<u32>,
}

/// The nearest control group above a container's that says what it has; `None` where the kernel has no cpusets.
pub(super) fn find_nearest(cgroups_path: &str, sysfs: &Sysfs) -> Option<AncestorCgroup> {
    let is_v2 = sysfs.text(Path::new(IS_V2)).is_some();
    let hierarchy = Path::new(if is_v2 { V2 } else { V1 });
    let mut above = ancestor_paths(cgroups_path).into_iter();
    above.find_map(|path| read(sysfs, hierarchy, path))
}

/// `None` where the group is not there, has no such controller, or nothing was given to it yet.
fn read(sysfs: &Sysfs, hierarchy: &Path, path: PathBuf) -> Option<AncestorCgroup> {
    let dir = hierarchy.join(&path);
    let list = |files: [&str; 3]| {
        let text = files.iter().find_map(|file| sysfs.text(&dir.join(file)));
        let list = cpu_list::parse_kernel_list(&text?).ok();
        list.filter(|list| !list.is_empty())
    };
    Some(AncestorCgroup { cpus: list(CPUS)?, mems: list(MEMS)?, path: Path::new("/").join(path) })
}

/// The groups above that of a container, the nearest first, without a slash in front.
fn ancestor_paths(cgroups_path: &str) -> Vec<PathBuf> {
    // No control group has a longer one.
    if cgroups_path.len() > PATH_MAX {
        return vec![PathBuf::new()];
    }
    let parent = match systemd_slice(cgroups_path) {
        Some(slice) => slice_path(slice),
        None => {
            clean_path(Path::new(cgroups_path)).parent().map(Path::to_owned).unwrap_or_default()
        }
    };
    parent.ancestors().map(Path::to_owned).collect()
}

/// The slice of systemd's form, `SLICE:PREFIX:NAME`.
fn systemd_slice(cgroups_path: &str) -> Option<&str> {
    let mut parts = cgroups_path.split(':');
    let slice = parts.next()?;
    let is_it = parts.count() == 2 && !slice.contains('/');
    is_it.then_some(match slice {
        "" => DEFAULT_SLICE,
        slice => slice,
    })
}

/// The path of a systemd slice: `a-b.slice` is in `a.slice` (systemd.slice(5)).
fn slice_path(slice: &str) -> PathBuf {
    let mut path = PathBuf::new();
    let Some(name) = slice.strip_suffix(".slice").filter(|name| *name != "-") else {
        return path;
    };
    let mut begin = 0;
    for part in name.split('-') {
        begin += part.len();
        // An empty part is no name of a slice.
        let whole = name.get(..begin).filter(|_| !part.is_empty());
        let Some(whole) = whole else {
            return PathBuf::new();
        };
        path.push(format!("{whole}.slice"));
        begin += 1;
    }
    path
}

/// A path without what leads out of the hierarchy.
fn clean_path(path: &Path) -> PathBuf {
    let mut inside = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => inside.push(name),
            Component::ParentDir => {
                inside.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;

    fn above_of(cgroups_path: &str) -> Vec<String> {
        ancestor_paths(cgroups_path)
            .into_iter()
            .map(|path| format!("/{}", path.display()))
            .collect()
    }

    #[test]
    fn a_path_and_a_slice_lead_to_the_groups_above() {
        for (path, above) in [
            ("/docker/c0ffee", &["/docker", "/"][..]),
            ("/a/b/c", &["/a/b", "/a", "/"]),
            ("c0ffee", &["/"]),
            ("", &["/"]),
            ("/../../etc/../x/y", &["/x", "/"]),
            ("system.slice:docker:c0ffee", &["/system.slice", "/"]),
            (
                "user-1000-a.slice:libpod:c0ffee",
                &[
                    "/user.slice/user-1000.slice/user-1000-a.slice",
                    "/user.slice/user-1000.slice",
                    "/user.slice",
                    "/",
                ],
            ),
            (":cri:c0ffee", &["/system.slice", "/"]),
            ("-.slice:docker:c0ffee", &["/"]),
            // None of these is a slice.
            ("a--b.slice:x:y", &["/"]),
            ("../../etc:x:y", &["/"]),
            ("machine:x:y", &["/"]),
        ] {
            assert_eq!(above_of(path), above, "{path}");
        }
    }

    #[test]
    fn a_path_that_no_group_can_have_leads_to_the_top_at_once() {
        assert_eq!(above_of(&"/a".repeat(1 << 20)), ["/"]);
    }

    fn nearest_of(tree: &Tree, cgroups_path: &str) -> Option<(String, String, String)> {
        let found = find_nearest(cgroups_path, &Sysfs::at_root(tree.root()))?;
        let path = found.path.display().to_string();
        Some((path, cpu_list::format_list(&found.cpus), cpu_list::format_list(&found.mems)))
    }

    fn found(path: &str, cpus: &str, mems: &str) -> Option<(String, String, String)> {
        Some((path.to_owned(), cpus.to_owned(), mems.to_owned()))
    }

    #[test]
    fn in_version_2_the_nearest_group_with_the_controller_counts() {
        let tree = Tree::with(&[
            ("fs/cgroup/cgroup.controllers", "cpuset cpu memory\n"),
            ("fs/cgroup/cpuset.cpus.effective", "0-7\n"),
            ("fs/cgroup/cpuset.mems.effective", "0-1\n"),
            ("fs/cgroup/system.slice/cpuset.cpus.effective", "0-5\n"),
            ("fs/cgroup/system.slice/cpuset.mems.effective", "0-1\n"),
            // Its parent does not hand the controller down.
            ("fs/cgroup/docker/cgroup.procs", ""),
        ]);
        let found_in = |path| nearest_of(&tree, path);
        let system = found("/system.slice", "0-5", "0-1");
        assert_eq!(found_in("system.slice:docker:c0ffee"), system);
        assert_eq!(found_in("system-later.slice:docker:c0ffee"), system);
        assert_eq!(found_in("user.slice:docker:c0ffee"), found("/", "0-7", "0-1"));
        assert_eq!(found_in("/system.slice/x/y"), system);
        assert_eq!(found_in("/docker/c0ffee"), found("/", "0-7", "0-1"));
    }

    #[test]
    fn in_version_1_the_nearest_group_that_was_given_something_counts() {
        let tree = Tree::with(&[
            ("fs/cgroup/cpuset/cpuset.effective_cpus", "0-7\n"),
            ("fs/cgroup/cpuset/cpuset.effective_mems", "0-1\n"),
            ("fs/cgroup/cpuset/docker/cpuset.effective_cpus", "0-3\n"),
            ("fs/cgroup/cpuset/docker/cpuset.effective_mems", "0\n"),
            ("fs/cgroup/cpuset/new/cpuset.effective_cpus", "\n"),
            ("fs/cgroup/cpuset/new/cpuset.effective_mems", "\n"),
            ("fs/cgroup/cpuset/old/cpuset.cpus", "2\n"),
            ("fs/cgroup/cpuset/old/cpuset.mems", "1\n"),
        ]);
        assert_eq!(nearest_of(&tree, "/docker/c0ffee"), found("/docker", "0-3", "0"));
        assert_eq!(nearest_of(&tree, "/new/c0ffee"), found("/", "0-7", "0-1"));
        assert_eq!(nearest_of(&tree, "/old/c0ffee"), found("/old", "2", "1"));
        assert_eq!(nearest_of(&Tree::new(), "/docker/c0ffee"), None);
    }
}
