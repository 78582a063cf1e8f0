//! Kubelet's own side of the plugin API, in Go, as a process: `tests/go-kubelet`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;
use std::{env, fs, process};

use serde_json::Value;

use super::{PATIENCE, sources};

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

/// The program; None, with the reason printed, where it cannot be built.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| newest_go().map(|go| build(&go)))
        .as_deref()
}

fn build(newest: &Path) -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = scratch.join(format!("go-kubelet-{}", process::id()));
    let mut go = Command::new(newest.join("goroot/bin/go"));
    go.arg("build").arg("-o").arg(&program);
    go.arg(sources().join("cluster/kubernetes/tests/go-kubelet/main.go"));
    go.env("GOROOT", newest.join("goroot"));
    go.env("GOPATH", newest.join("usr/share/gocode"));
    go.env("GOCACHE", scratch.join("newest-go-cache"));
    go.env("GO111MODULE", "off").env("GOFLAGS", "");
    go.env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
    let done = go.output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    // Test programs run side by side, so each builds under a name of its own.
    let name = scratch.join("go-kubelet");
    fs::rename(program, &name).unwrap();
    name
}

pub(crate) struct GoKubelet {
    child: Child,
    commands: ChildStdin,
    events: Receiver<Value>,
    /// What was told and not yet asked for.
    seen: Vec<Value>,
}

impl GoKubelet {
    /// A kubelet that does not listen yet; None, with the reason printed, where there is no newest Go.
    pub(crate) fn of(directory: &Path) -> Option<GoKubelet> {
        let Some(program) = program() else {
            let missing = "there is no newest Go: run .ci/install-newest-go";
            let _ = onload_test_needs::that(false, missing);
            return None;
        };
        fs::create_dir_all(directory).unwrap();
        let mut command = Command::new(program);
        command.arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, events) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        Some(GoKubelet {
            child,
            commands,
            events,
            seen: Vec::new(),
        })
    }

    #[track_caller]
    pub(crate) fn does(&mut self, command: &str, answer: &str) -> Value {
        writeln!(self.commands, "{command}").unwrap();
        self.tells(answer, |_| true)
    }

    /// Starts it; what was told before is forgotten.
    #[track_caller]
    pub(crate) fn start(&mut self) {
        self.seen.clear();
        let started = self.does("start", "started");
        assert_eq!(started["error"], Value::Null);
    }

    #[track_caller]
    pub(crate) fn tells(&mut self, event: &str, is: impl Fn(&Value) -> bool) -> Value {
        let wanted = |told: &Value| told["event"] == event && is(told);
        if let Some(place) = self.seen.iter().position(wanted) {
            return self.seen.remove(place);
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(told) = self.events.recv_timeout(left) else {
                panic!("no {event} among {:#?}", self.seen);
            };
            if wanted(&told) {
                return told;
            }
            self.seen.push(told);
        }
    }

    /// Waits until a resource is registered.
    #[track_caller]
    pub(crate) fn registers(&mut self, resource: &str) -> Value {
        self.tells("registered", |told| told["resource"] == resource)
    }

    #[track_caller]
    pub(crate) fn lists(&mut self, resource: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.tells("devices", |told| told["resource"] == resource && is(told))
    }
}

impl Drop for GoKubelet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
