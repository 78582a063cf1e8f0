//! The hosts that come with the sources. One that has an `overlay.table` is another one but for what the table and
//! the files beside it say.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::tree::{Tree, scratch};

/// Every one of them, captured or made by hand.
pub const NAMES: [&str; 11] = [
    "debian12-stand-ins",
    CAPTURED,
    "debian13-2numa-stand-ins",
    "debian13-4numa-21vfs",
    "debian13-arm64-stand-ins",
    "debian13-no-hardware",
    "el10-2numa-onload-rxe-vfio",
    "iommu-groups",
    "rdma-hcas",
    "vmd-numa-gaps",
    "x2-2port-sriov",
];

/// The one with the most of what discovery finds.
pub const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";

pub const TABLE: &str = "overlay.table";

/// The directory of the sources.
pub fn sources() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap()
}

fn committed(name: &str) -> PathBuf {
    sources().join("tests/hosts").join(name)
}

/// The directory of a host that is no overlay, to be read alone.
pub fn whole(name: &str) -> PathBuf {
    let root = committed(name);
    assert!(!root.join(TABLE).exists(), "{name} is an overlay");
    root
}

/// The root of [`CAPTURED`].
pub fn captured() -> PathBuf {
    whole(CAPTURED)
}

impl Tree {
    /// A copy of one of the hosts.
    pub fn sample(name: &str) -> Tree {
        let tree = Tree::below(scratch(), &format!("sample/{name}"));
        tree.take_sample(name);
        tree
    }

    pub(crate) fn take_sample(&self, name: &str) {
        compose(&committed(name), self);
        *self.nodes.lock().unwrap() = self.read("/dev.table");
    }

    /// Copies what stands below a directory of this machine.
    pub fn copy(&self, from: &Path, to: &str) -> &Tree {
        for entry in WalkDir::new(from) {
            let entry = entry.unwrap();
            let below = entry.path().strip_prefix(from).unwrap();
            let place = self.path(to).join(below);
            let kind = entry.file_type();
            if kind.is_dir() {
                self.directories(&place);
                continue;
            }
            let _ = fs::remove_file(&place);
            if kind.is_symlink() {
                symlink(fs::read_link(entry.path()).unwrap(), place).unwrap();
            } else {
                fs::copy(entry.path(), place).unwrap();
            }
        }
        self
    }
}

/// Copies a host; of an overlay first the one that it is laid over.
fn compose<'t>(host: &Path, tree: &'t Tree) -> &'t Tree {
    if let Ok(table) = fs::read_to_string(host.join(TABLE)) {
        for line in table.lines() {
            let (word, rest) = line.split_once(' ').unwrap();
            let (path, value) = rest.split_once(' ').unwrap_or((rest, ""));
            let _ = match word {
                "base" => compose(&committed(path), tree),
                "remove" => tree.remove(path),
                "link" => tree.link(path, value),
                "attribute" => tree.attribute(path, value),
                "empty" => tree.file(path, ""),
                _ => panic!("{}: {line}", host.display()),
            };
        }
    }
    tree.copy(host, "/");
    let _ = fs::remove_file(tree.path(TABLE));
    tree
}
