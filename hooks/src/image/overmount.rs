//! Determines the file system on which a mount target would be created. Runtimes create missing targets, and a target
//! created under a bind mount of the user appears on the host. Nothing is mounted at such a path.

use std::collections::BTreeMap;
use std::path::Path;

use onload_sys::error::{Result, bail};

use onload_sys::fs::container_root::{ContainerPath, ContainerRoot};

/// Bytes of all mount points together; a real container's have a few hundred.
const MAX_PATH_BYTES: usize = 4 * 1024 * 1024;

/// Mounts that are treated as copies of the image's files; further ones are files of others.
const MAX_COPIES: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overmount {
    pub destination: String,
    contents: LinkSource,
}

/// The origin of the links in a mount. They decide where a mount inside it ends up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkSource {
    /// It is a tmpfs that belongs to this container and starts empty.
    Nothing,
    /// The image's files at that path.
    Image,
    /// The kernel's own links, which stay inside the file system.
    Kernel,
    /// Processes, whose `root` and `cwd` lead anywhere.
    Proc,
    /// Files that another user can change at any time.
    Others,
}

impl Overmount {
    /// Interprets an entry of `mounts`. The file system is new if the type is tmpfs and no option
    /// makes it a bind mount or changes an existing mount. It is empty if nothing copies the
    /// image's files into it (runc's and crun's `tmpcopyup`), since their links would lead on.
    pub(crate) fn new(destination: &str, kind: &str, options: &[String]) -> Self {
        let has = |wanted: &[&str]| options.iter().any(|o| wanted.contains(&o.as_str()));
        let contents = match kind {
            _ if has(&["bind", "rbind", "remount", "move"]) => LinkSource::Others,
            "tmpfs" if has(&["tmpcopyup"]) => LinkSource::Image,
            "tmpfs" => LinkSource::Nothing,
            "proc" => LinkSource::Proc,
            "sysfs" | "cgroup" | "cgroup2" | "mqueue" | "devpts" => LinkSource::Kernel,
            _ => LinkSource::Others,
        };
        Overmount { destination: destination.to_owned(), contents }
    }

    /// Recognises a bind mount of the host's own /sys or /proc, which rootless engines create: no user can place links
    /// there.
    pub(crate) fn with_source(mut self, source: &str) -> Self {
        if self.contents == LinkSource::Others {
            self.contents = match source.trim_end_matches('/') {
                "/sys" | "/sys/fs/cgroup" => LinkSource::Kernel,
                "/proc" => LinkSource::Proc,
                _ => LinkSource::Others,
            };
        }
        self
    }
}

/// The file system on which a target lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetFileSystem {
    /// The root file system's own mount.
    Root,
    FreshTmpfs,
}

/// The mounts of a configuration and the paths where they will be.
///
/// An untrusted configuration may have a hundred thousand mounts. Everything is therefore looked up
/// by path, and no mount is compared with all others.
pub(crate) struct Overmounts<'a> {
    /// `None` where the image is not there yet: its links are not known then.
    root: Option<&'a ContainerRoot>,
    /// In the order in which they are made, each with its index in `points`.
    mounts: Vec<(usize, Overmount)>,
    points: Vec<MountPoint>,
    by_path: BTreeMap<ContainerPath, usize>,
}

/// A path where mounts lie, by their indexes.
#[derive(Default)]
struct MountPoint {
    /// The first one that is not a fresh tmpfs, after the last fresh tmpfs.
    foreign: Option<usize>,
    /// The last one whose files may lead elsewhere.
    redirects: Option<usize>,
    /// Whether nothing is looked up there, since a mount hides the root's files.
    is_hidden: bool,
}

impl<'a> Overmounts<'a> {
    /// Determines where each mount will be; `mounts` are in the order in which they are made.
    pub(crate) fn new(
        root: impl Into<Option<&'a ContainerRoot>>,
        mounts: Vec<Overmount>,
    ) -> Result<Self> {
        let mut overmounts = Overmounts {
            root: root.into(),
            mounts: Vec::with_capacity(mounts.len()),
            points: Vec::new(),
            by_path: BTreeMap::new(),
        };
        let (mut bytes, mut copies) = (0, 0);
        for mut mount in mounts {
            let path = overmounts.resolve(&mount.destination)?;
            bytes += path.as_bytes().len();
            if bytes > MAX_PATH_BYTES {
                bail!(
                    "the paths of the container's mounts have more than {MAX_PATH_BYTES} bytes together"
                );
            }
            if mount.contents == LinkSource::Image {
                copies += 1;
                // A copy of what another mount has there does not come from the image.
                if copies > MAX_COPIES || overmounts.mount_points_above(&path).next().is_some() {
                    mount.contents = LinkSource::Others;
                }
            }
            overmounts.add(path, mount);
        }
        Ok(overmounts)
    }

    fn add(&mut self, path: ContainerPath, mount: Overmount) {
        let index = self.mounts.len();
        let point = *self.by_path.entry(path).or_insert_with(|| {
            self.points.push(MountPoint::default());
            self.points.len() - 1
        });
        let known = &mut self.points[point];
        if mount.contents == LinkSource::Nothing {
            known.foreign = None;
        } else {
            known.foreign.get_or_insert(index);
        }
        if matches!(mount.contents, LinkSource::Others | LinkSource::Proc) {
            known.redirects = Some(index);
        }
        known.is_hidden |= mount.contents != LinkSource::Image;
        self.mounts.push((point, mount));
    }

    /// The mount points at or above a path, starting at the root.
    fn mount_points_above<'b>(
        &'b self,
        path: &'b ContainerPath,
    ) -> impl Iterator<Item = &'b MountPoint> {
        let points = path.prefixes().filter_map(|above| self.by_path.get(above));
        points.map(|point| &self.points[*point])
    }

    fn resolve(&self, path: &str) -> Result<ContainerPath> {
        ContainerPath::resolve(self.root, Path::new(path), &|path| {
            self.by_path.get(path).is_some_and(|point| self.points[*point].is_hidden)
        })
    }

    /// Checks that every mount will be where its destination says. A link in a volume is followed
    /// when the mount is made, and can be exchanged until then (CVE-2021-30465). Mounts of the
    /// container's own file systems do no harm elsewhere.
    pub(crate) fn check_destinations(&self) -> Result<()> {
        let outer = self.outermost_mounts();
        for (point, mount) in &self.mounts {
            let path = &mount.destination;
            if path.split('/').any(|part| part == "..") {
                bail!("the mount at {path:?} contains \"..\"; use a path without it");
            }
            if !matches!(mount.contents, LinkSource::Others | LinkSource::Image) {
                continue;
            }
            if let Some(outer) = outer[*point] {
                let outer = &self.mounts[outer].1.destination;
                bail!(
                    "the mount at {path:?} is inside the mount at {outer:?}, whose links can \
                     redirect it anywhere, even onto the host, and including the new mounts; \
                     remove one of the two"
                );
            }
        }
        Ok(())
    }

    /// Returns for each mount point the outermost mount around it whose files can redirect it. A single pass over the
    /// sorted paths suffices, since descendants of a path follow it directly.
    fn outermost_mounts(&self) -> Vec<Option<usize>> {
        let mut outer = vec![None; self.points.len()];
        let mut around: Vec<(&[u8], usize)> = Vec::new();
        for (at, point) in &self.by_path {
            let at = at.as_bytes();
            while let Some((above, _)) = around.last()
                && strip_parent(at, above).is_none()
            {
                around.pop();
            }
            for (above, index) in &around {
                let below = strip_parent(at, above).unwrap_or_default();
                if self.mounts[*index].1.contents == LinkSource::Others || is_in_process(below) {
                    outer[*point] = Some(*index);
                    break;
                }
            }
            if let Some(index) = self.points[*point].redirects {
                around.push((at, index));
            }
        }
        outer
    }

    /// Checks that something may be created at `target`: its parent must lie on the root file
    /// system's own mount or on a fresh tmpfs.
    pub(crate) fn check_creatable(&self, target: &str) -> Result<TargetFileSystem> {
        let path = self.resolve(target)?;
        let parent = path.parent();
        // Links in a user's files above a mount decide where it is. The innermost mount is therefore not enough, unless
        // a later one has exactly the same path.
        let foreign = self.mount_points_above(&parent).filter_map(|point| point.foreign).min();
        let Some(foreign) = foreign else {
            return Ok(match self.mount_points_above(&parent).next() {
                Some(_) => TargetFileSystem::FreshTmpfs,
                None => TargetFileSystem::Root,
            });
        };
        let (real, mount) = (path.to_path(), &self.mounts[foreign].1.destination);
        let resolved = if Path::new(target) == real {
            String::new()
        } else {
            format!(" (resolves to {})", real.display())
        };
        bail!(
            "{target}{resolved} is below the mount at {mount:?}, whose files do not belong to the container; remove that mount or use an image without it"
        )
    }
}

/// The part of the path `at` below the path `above`.
fn strip_parent<'a>(at: &'a [u8], above: &[u8]) -> Option<&'a [u8]> {
    at.strip_prefix(above)?.strip_prefix(&[0])
}

/// Returns whether a path below /proc, with 0 between its names, is in the directory of a process.
fn is_in_process(path: &[u8]) -> bool {
    let name = path.split(|byte| *byte == 0).next().unwrap_or_default();
    matches!(name, b"self" | b"thread-self") || name.first().is_some_and(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;

    struct Root(Tree);

    impl Root {
        fn new() -> Self {
            let root = Root(Tree::new());
            for dir in ["usr/lib64", "etc", "dev", "data"] {
                root.0.directory(dir);
            }
            root
        }

        fn may(&self, target: &str, mounts: &[(&str, &str, &[&str])]) -> Result<(), String> {
            let root = ContainerRoot::open(self.0.root()).unwrap();
            let overmounts = mounts
                .iter()
                .map(|(destination, kind, options)| {
                    let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
                    Overmount::new(destination, kind, &options)
                })
                .collect();
            Overmounts::new(&root, overmounts)
                .and_then(|overmounts| {
                    overmounts.check_creatable(target)?;
                    overmounts.check_destinations()
                })
                .map_err(|error| error.to_string())
        }
    }

    const DEV: (&str, &str, &[&str]) = ("/dev", "tmpfs", &["nosuid", "mode=755"]);

    #[test]
    fn the_root_and_a_fresh_tmpfs_take_targets() {
        let root = Root::new();
        root.may("/usr/lib64/libonload.so", &[]).unwrap();
        root.may("/etc/ld.so.preload", &[("/proc", "proc", &[]), DEV]).unwrap();
        root.may("/dev/onload", &[DEV]).unwrap();
        root.may("/dev/infiniband/uverbs0", &[DEV]).unwrap();
        root.may("/none/yet/file", &[DEV]).unwrap();
    }

    #[test]
    fn a_user_s_bind_mount_takes_none() {
        let root = Root::new();
        for (target, mount) in [
            ("/etc/ld.so.preload", "/etc"),
            ("/usr/lib64/libonload.so", "/usr"),
            ("/usr/lib64/libonload.so", "/usr/lib64"),
            ("/usr/lib64/libonload.so", "/"),
            ("/dev/onload", "/dev"),
        ] {
            let message = root.may(target, &[(mount, "bind", &["rbind", "rw"])]).unwrap_err();
            assert!(message.contains(&format!("the mount at \"{mount}\"")), "{message}");
        }
    }

    #[test]
    fn a_tmpfs_that_is_a_bind_mount_or_is_filled_takes_none() {
        let root = Root::new();
        for option in ["bind", "rbind", "tmpcopyup"] {
            assert!(root.may("/dev/onload", &[("/dev", "tmpfs", &[option])]).is_err(), "{option}");
        }
        assert!(root.may("/dev/onload", &[("/dev", "devtmpfs", &[])]).is_err());
    }

    #[test]
    fn a_mount_at_the_target_itself_does_not_matter() {
        let root = Root::new();
        root.may("/etc/ld.so.preload", &[("/etc/ld.so.preload", "bind", &["bind"])]).unwrap();
        root.may("/etc/ld.so.preload", &[("/etc/hosts", "bind", &["bind"])]).unwrap();
    }

    #[test]
    fn the_innermost_and_last_mount_counts() {
        let root = Root::new();
        let bind: (&str, &str, &[&str]) = ("/dev", "bind", &["rbind"]);
        root.may("/dev/onload", &[bind, DEV]).unwrap();
        assert!(root.may("/dev/onload", &[DEV, bind]).is_err());
        let inner: (&str, &str, &[&str]) = ("/dev/infiniband", "bind", &["bind"]);
        assert!(root.may("/dev/infiniband/uverbs0", &[DEV, inner]).is_err());
        root.may("/dev/onload", &[DEV, inner]).unwrap();
        let under: [(&str, &str, &[&str]); 2] =
            [("/usr", "bind", &["bind"]), ("/usr/lib64", "tmpfs", &[])];
        assert!(
            root.may("/usr/lib64/a", &under).is_err(),
            "a link in /usr says where the tmpfs is"
        );
    }

    #[test]
    fn a_mount_that_hides_a_fresh_tmpfs_or_lies_around_it_is_seen() {
        let root = Root::new();
        let over: (&str, &str, &[&str]) = ("/", "bind", &["rbind"]);
        assert!(root.may("/dev/onload", &[DEV, over]).is_err());
        assert!(root.may("/dev/onload", &[over, DEV]).is_err());
    }

    #[test]
    fn a_link_of_the_image_into_a_bind_mount_is_seen() {
        let root = Root::new();
        root.0.remove("usr/lib64");
        root.0.link("usr/lib64", "/data");
        let data: (&str, &str, &[&str]) = ("/data", "bind", &["bind"]);
        let message = root.may("/usr/lib64/libonload.so", &[data]).unwrap_err();
        assert!(message.contains("(resolves to /data/libonload.so)"), "{message}");
        root.may("/usr/lib64/libonload.so", &[]).unwrap();
        root.0.link("etc/ld.so.preload", "../data/x");
        assert!(root.may("/etc/ld.so.preload", &[data]).is_err());
    }

    #[test]
    fn a_mount_that_stands_behind_a_link_is_seen() {
        let root = Root::new();
        root.0.link("lib64", "usr/lib64");
        let bind: (&str, &str, &[&str]) = ("/lib64", "bind", &["bind"]);
        assert!(root.may("/usr/lib64/libonload.so", &[bind]).is_err());
        root.0.link("link", "/proc/self/root");
        let proc: (&str, &str, &[&str]) = ("/proc", "proc", &[]);
        assert!(root.may("/link/etc/ld.so.preload", &[proc]).is_err());
    }

    #[test]
    fn a_mount_inside_somebody_s_mount_may_be_led_anywhere_by_its_links() {
        let root = Root::new();
        let outer: (&str, &str, &[&str]) = ("/data", "bind", &["rbind"]);
        let inner: (&str, &str, &[&str]) = ("/data/link", "bind", &["rbind"]);
        let deeper: (&str, &str, &[&str]) = ("/data/link/lib64", "bind", &["bind"]);
        for mounts in [[outer, inner], [inner, outer], [outer, deeper]] {
            let message = root.may("/usr/lib64/libonload.so", &mounts).unwrap_err();
            assert!(message.contains("inside the mount at \"/data\""), "{message}");
        }
        let tmpfs: (&str, &str, &[&str]) = ("/data/link", "tmpfs", &[]);
        root.may("/usr/lib64/libonload.so", &[outer, tmpfs]).unwrap();
        assert!(root.may("/data/link/x", &[outer, tmpfs]).is_err());
    }

    #[test]
    fn a_mount_behind_a_link_of_proc_may_be_anywhere() {
        let root = Root::new();
        let proc: (&str, &str, &[&str]) = ("/proc", "proc", &[]);
        for at in ["/proc/self/root/dev", "/proc/1/cwd/dev", "/proc/thread-self/root"] {
            let message =
                root.may("/dev/onload", &[proc, DEV, (at, "bind", &["bind"])]).unwrap_err();
            assert!(message.contains("inside the mount at \"/proc\""), "{message}");
        }
        let inside: (&str, &str, &[&str]) = ("/proc/cpuinfo", "bind", &["bind"]);
        root.may("/dev/onload", &[proc, DEV, inside]).unwrap();
        let cgroup: (&str, &str, &[&str]) = ("/sys/fs/cgroup", "bind", &["rbind"]);
        root.may("/dev/onload", &[("/sys", "sysfs", &[]), cgroup, DEV]).unwrap();
    }

    #[test]
    fn a_tmpfs_that_only_changes_the_mount_under_it_takes_none() {
        let root = Root::new();
        root.0.link("other", "data");
        for option in ["remount", "move"] {
            let mounts: [(&str, &str, &[&str]); 2] =
                [("/data", "bind", &["bind"]), ("/other", "tmpfs", &[option])];
            assert!(root.may("/data/x", &mounts).is_err(), "{option}");
        }
    }

    #[test]
    fn a_destination_that_goes_up_is_read_in_two_ways_and_refused() {
        let root = Root::new();
        root.0.directory("y/z");
        root.0.link("x", "/y/z");
        let mounts: [(&str, &str, &[&str]); 2] = [DEV, ("/x/../dev", "bind", &["rbind"])];
        let message = root.may("/dev/onload", &mounts).unwrap_err();
        assert!(message.contains("\"/x/../dev\""), "{message}");
    }

    #[test]
    fn a_copy_of_the_image_s_files_leads_where_the_image_leads() {
        let root = Root::new();
        root.0.directory("run");
        root.0.link("run/link", "/usr/lib64");
        let run: (&str, &str, &[&str]) = ("/run", "tmpfs", &["tmpcopyup"]);
        let target = "/usr/lib64/libonload.so";
        root.may(target, &[run, ("/run/.containerenv", "bind", &["bind"])]).unwrap();
        let message = root.may(target, &[run, ("/run/link", "bind", &["bind"])]).unwrap_err();
        assert!(message.contains("is below the mount at \"/run/link\""), "{message}");
        let below: (&str, &str, &[&str]) = ("/run", "bind", &["bind"]);
        assert!(root.may(target, &[below, run, ("/run/a", "bind", &["bind"])]).is_err());
    }

    #[test]
    fn links_of_the_image_cannot_make_the_look_long() {
        let root = Root::new();
        root.0.directory("d");
        for link in 0..39 {
            let target = format!("{}l{}", "d/../".repeat(800), link + 1);
            root.0.link(&format!("l{link}"), &target);
        }
        let mounts = vec![Overmount::new("/l0/x", "bind", &[]); 20];
        let opened = ContainerRoot::open(root.0.root()).unwrap();
        assert!(Overmounts::new(&opened, mounts).is_err());
    }
}
