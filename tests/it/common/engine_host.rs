//! A small host for `runtime configure`: nothing but the files that a test writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{names_in, on};

/// Where the programs are that are the engines.
const PROGRAMS: [&str; 5] = [
    "usr/bin/dockerd",
    "usr/bin/containerd",
    "usr/bin/crio",
    "usr/bin/podman",
    "usr/local/bin/nomad",
];

pub(crate) struct EngineHost {
    dir: TempDir,
    has_engines: bool,
}

impl EngineHost {
    /// A host with nothing but those files.
    pub(crate) fn with(files: &[(&str, &str)]) -> EngineHost {
        let host = EngineHost {
            dir: TempDir::new().expect("a directory for a test"),
            has_engines: false,
        };
        for (path, text) in files {
            host.write(path, text);
        }
        host
    }

    /// A host with those files, and every engine installed.
    pub(crate) fn with_engines(files: &[(&str, &str)]) -> EngineHost {
        let host = EngineHost {
            has_engines: true,
            ..EngineHost::with(files)
        };
        for program in PROGRAMS {
            host.write(program, "");
        }
        host
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        let written = fs::create_dir_all(path.parent().unwrap_or(self.root()))
            .and_then(|()| fs::write(&path, text));
        written.expect("a file of ours");
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).expect("a file of this host")
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
