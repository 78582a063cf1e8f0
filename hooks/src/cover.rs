//! Where a mount target would be created. A runtime creates missing targets, and what it creates
//! under somebody's bind mount appears on the host: there nothing of ours is mounted.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::container_root::{ContainerRoot, RootError};

/// A mount that the configuration asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Where.
    pub destination: String,
    /// Whether it is a tmpfs of this container's own that begins empty.
    pub is_fresh_tmpfs: bool,
}

impl Cover {
    /// Reads an entry of `mounts`. The file system is new if the type says tmpfs and no option
    /// makes a bind mount of it; it is empty if nothing copies the image's files up (runc's and
    /// crun's `tmpcopyup`), whose links would lead on.
    #[must_use]
    pub fn new(destination: &str, kind: &str, options: &[String]) -> Self {
        let otherwise = ["bind", "rbind", "tmpcopyup"];
        let is_plain = !options
            .iter()
            .any(|option| otherwise.contains(&option.as_str()));
        Cover {
            destination: destination.to_owned(),
            is_fresh_tmpfs: kind == "tmpfs" && is_plain,
        }
    }
}

/// On what a target lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// The root file system's own mount.
    Root,
    /// A fresh tmpfs.
    FreshTmpfs,
}

/// Why nothing is mounted somewhere.
#[derive(Debug, thiserror::Error)]
pub enum CoverError {
    /// The place, or one on the way to it, cannot be looked at.
    #[error(transparent)]
    Root(#[from] RootError),
    /// Somebody's mount is there.
    #[error("{target}{} lies under the mount at {mount:?}, whose files are not the container's own; leave that mount out or use an image without it", resolved(.target, .real))]
    Covered {
        /// What was to be created.
        target: String,
        /// Where that leads.
        real: PathBuf,
        /// The mount.
        mount: String,
    },
}

fn resolved(target: &str, real: &Path) -> String {
    if Path::new(target) == real {
        String::new()
    } else {
        format!(" (in truth {})", real.display())
    }
}

/// The mounts of a configuration with the places where they will be.
pub struct Covers<'a> {
    root: &'a ContainerRoot,
    places: Vec<Place>,
}

struct Place {
    at: Vec<OsString>,
    cover: Cover,
}

impl<'a> Covers<'a> {
    /// Looks where each mount will be, in the order in which they are made.
    ///
    /// # Errors
    /// [`CoverError::Root`].
    pub fn new(root: &'a ContainerRoot, mounts: Vec<Cover>) -> Result<Self, CoverError> {
        let mut covers = Covers {
            root,
            places: Vec::new(),
        };
        for cover in mounts {
            let at = covers.resolve(&cover.destination)?;
            covers.places.push(Place { at, cover });
        }
        Ok(covers)
    }

    fn resolve(&self, path: &str) -> Result<Vec<OsString>, RootError> {
        let mounted = |at: &[OsString]| self.places.iter().any(|place| place.at == at);
        self.root.resolve(Path::new(path), &mounted)
    }

    /// Whether something may be created at `target`: its parent lies on the root file system's own
    /// mount or on a fresh tmpfs.
    ///
    /// # Errors
    /// [`CoverError`].
    pub fn may_create(&self, target: &str) -> Result<Ground, CoverError> {
        let at = self.resolve(target)?;
        let parent = &at[..at.len().saturating_sub(1)];
        let above = || {
            self.places
                .iter()
                .filter(|place| parent.starts_with(&place.at))
        };
        // The innermost; and the last, since a mount made later hides what lies under it. Which
        // comes last may still change, as runtimes and the CDI library sort in their own ways.
        let innermost = above().max_by_key(|place| place.at.len());
        let stranger = innermost
            .into_iter()
            .chain(above().next_back())
            .find(|place| !place.cover.is_fresh_tmpfs);
        let Some(place) = stranger else {
            return Ok(match innermost {
                Some(_) => Ground::FreshTmpfs,
                None => Ground::Root,
            });
        };
        let root = OsString::from("/");
        Err(CoverError::Covered {
            target: target.to_owned(),
            real: std::iter::once(root).chain(at.iter().cloned()).collect(),
            mount: place.cover.destination.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Root(tempfile::TempDir);

    impl Root {
        fn new() -> Self {
            let root = Root(tempfile::tempdir().unwrap());
            for dir in ["usr/lib64", "etc", "dev", "data"] {
                fs::create_dir_all(root.0.path().join(dir)).unwrap();
            }
            root
        }

        fn may(&self, target: &str, mounts: &[(&str, &str, &[&str])]) -> Result<(), String> {
            let root = ContainerRoot::open(self.0.path()).unwrap();
            let covers = mounts
                .iter()
                .map(|(destination, kind, options)| {
                    let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
                    Cover::new(destination, kind, &options)
                })
                .collect();
            Covers::new(&root, covers)
                .and_then(|covers| covers.may_create(target).map(drop))
                .map_err(|error| error.to_string())
        }
    }

    const DEV: (&str, &str, &[&str]) = ("/dev", "tmpfs", &["nosuid", "mode=755"]);

    #[test]
    fn the_root_and_a_fresh_tmpfs_take_targets() {
        let root = Root::new();
        root.may("/usr/lib64/libonload.so", &[]).unwrap();
        root.may("/etc/ld.so.preload", &[("/proc", "proc", &[]), DEV])
            .unwrap();
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
            let message = root
                .may(target, &[(mount, "bind", &["rbind", "rw"])])
                .unwrap_err();
            assert!(
                message.contains(&format!("the mount at \"{mount}\"")),
                "{message}"
            );
        }
    }

    #[test]
    fn a_tmpfs_that_is_a_bind_mount_or_is_filled_takes_none() {
        let root = Root::new();
        for option in ["bind", "rbind", "tmpcopyup"] {
            assert!(
                root.may("/dev/onload", &[("/dev", "tmpfs", &[option])])
                    .is_err(),
                "{option}"
            );
        }
        assert!(
            root.may("/dev/onload", &[("/dev", "devtmpfs", &[])])
                .is_err()
        );
    }

    #[test]
    fn a_mount_at_the_target_itself_does_not_matter() {
        let root = Root::new();
        root.may(
            "/etc/ld.so.preload",
            &[("/etc/ld.so.preload", "bind", &["bind"])],
        )
        .unwrap();
        root.may("/etc/ld.so.preload", &[("/etc/hosts", "bind", &["bind"])])
            .unwrap();
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
        root.may(
            "/usr/lib64/a",
            &[("/usr", "bind", &["bind"]), ("/usr/lib64", "tmpfs", &[])],
        )
        .unwrap();
    }

    #[test]
    fn a_mount_that_hides_a_fresh_tmpfs_is_seen() {
        let root = Root::new();
        let over: (&str, &str, &[&str]) = ("/", "bind", &["rbind"]);
        assert!(root.may("/dev/onload", &[DEV, over]).is_err());
        root.may("/dev/onload", &[over, DEV]).unwrap();
    }

    #[test]
    fn a_link_of_the_image_into_a_bind_mount_is_seen() {
        let root = Root::new();
        fs::remove_dir(root.0.path().join("usr/lib64")).unwrap();
        symlink("/data", root.0.path().join("usr/lib64")).unwrap();
        let data: (&str, &str, &[&str]) = ("/data", "bind", &["bind"]);
        let message = root.may("/usr/lib64/libonload.so", &[data]).unwrap_err();
        assert!(
            message.contains("(in truth /data/libonload.so)"),
            "{message}"
        );
        root.may("/usr/lib64/libonload.so", &[]).unwrap();
        symlink("../data/x", root.0.path().join("etc/ld.so.preload")).unwrap();
        assert!(root.may("/etc/ld.so.preload", &[data]).is_err());
    }

    #[test]
    fn a_mount_that_stands_behind_a_link_is_seen() {
        let root = Root::new();
        symlink("usr/lib64", root.0.path().join("lib64")).unwrap();
        let bind: (&str, &str, &[&str]) = ("/lib64", "bind", &["bind"]);
        assert!(root.may("/usr/lib64/libonload.so", &[bind]).is_err());
        symlink("/proc/self/root", root.0.path().join("link")).unwrap();
        let proc: (&str, &str, &[&str]) = ("/proc", "proc", &[]);
        assert!(root.may("/link/etc/ld.so.preload", &[proc]).is_err());
    }
}
