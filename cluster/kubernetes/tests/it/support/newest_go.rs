//! Programs in Go beside the tests, built with the Go that `.ci/install-newest-go` unpacks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, process};

use super::sources;

/// Where `.ci/install-newest-go` puts Go.
const DIRECTORY: &str = "ONLOAD_CTK_NEWEST_GO";

fn newest_go() -> Option<PathBuf> {
    let under =
        |variable: &str, path: &str| env::var_os(variable).map(|dir| Path::new(&dir).join(path));
    let directory = under(DIRECTORY, "")
        .or_else(|| under("XDG_CACHE_HOME", "onload-ctk/newest-go"))
        .or_else(|| under("HOME", ".cache/onload-ctk/newest-go"))?;
    directory.join("complete").exists().then_some(directory)
}

/// The program of `tests/NAME`; None, with the reason printed, where it cannot be built.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    static BUILT: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());
    let Some(newest) = newest_go() else {
        let missing = "there is no newest Go: run .ci/install-newest-go";
        let _ = onload_test_needs::that(false, missing);
        return None;
    };
    let mut built = BUILT.lock().unwrap();
    if let Some((_, program)) = built.iter().find(|(program_name, _)| program_name == name) {
        return Some(program.clone());
    }
    let program = build(&newest, name);
    built.push((name.to_owned(), program.clone()));
    Some(program)
}

fn build(newest: &Path, name: &str) -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = scratch.join(format!("{name}-{}", process::id()));
    let mut go = Command::new(newest.join("goroot/bin/go"));
    go.arg("build").arg("-o").arg(&program);
    let tests = sources().join("cluster/kubernetes/tests");
    go.arg(tests.join(name).join("main.go"));
    go.env("GOROOT", newest.join("goroot"));
    go.env("GOPATH", newest.join("usr/share/gocode"));
    go.env("GOCACHE", scratch.join("newest-go-cache"));
    go.env("GO111MODULE", "off").env("GOFLAGS", "");
    go.env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
    let done = go.output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    // Test programs run side by side, so each builds under a name of its own.
    let name = scratch.join(name);
    fs::rename(program, &name).unwrap();
    name
}
