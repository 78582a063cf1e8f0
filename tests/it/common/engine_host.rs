//! A small host for `runtime configure`: nothing but the files that a test writes.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Tree, names_in, on};

/// Where the programs are that are the engines.
const PROGRAMS: [&str; 5] = [
    "usr/bin/dockerd",
    "usr/bin/containerd",
    "usr/bin/crio",
    "usr/bin/podman",
    "usr/local/bin/nomad",
];

pub(crate) struct EngineHost {
    tree: Tree,
    has_engines: bool,
}

impl Deref for EngineHost {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl EngineHost {
    /// A host with nothing but those files.
    pub(crate) fn with(files: &[(&str, &str)]) -> EngineHost {
        EngineHost {
            tree: Tree::with(files),
            has_engines: false,
        }
    }

    /// A host with those files, and every engine installed.
    pub(crate) fn with_engines(files: &[(&str, &str)]) -> EngineHost {
        let host = EngineHost {
            has_engines: true,
            ..EngineHost::with(files)
        };
        for program in PROGRAMS {
            host.file(program, "");
        }
        host
    }

    pub(crate) fn configure(&self, engine: &str, more: &[&str]) -> Command {
        let words = ["runtime", "configure", "--runtime", engine];
        let mut command = on(self.root(), &words);
        command.args(more);
        command
    }

    /// Every file with its content, but for the lock and the engines that were installed.
    pub(crate) fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        collect(self.root(), &mut found);
        found.retain(|(path, _)| !path.ends_with("run/onload-ctk/@locks/configure"));
        if self.has_engines {
            found.retain(|(path, _)| !PROGRAMS.iter().any(|program| path.ends_with(program)));
        }
        found.sort();
        found
    }
}

fn collect(dir: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for name in names_in(dir) {
        let path = dir.join(name);
        match path.is_dir() {
            true => collect(&path, found),
            false => found.push((path.clone(), fs::read(&path).unwrap_or_default())),
        }
    }
}
