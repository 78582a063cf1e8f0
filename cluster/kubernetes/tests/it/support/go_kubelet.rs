//! Kubelet's own side of the plugin API, in Go, as a process: `tests/go-kubelet`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use super::{PATIENCE, newest_go};

pub(crate) struct GoKubelet {
    child: Child,
    commands: ChildStdin,
    events: Receiver<Value>,
    /// What was told and not yet asked for.
    seen: Vec<Value>,
}

impl GoKubelet {
    /// A kubelet that does not listen yet; None, with the reason printed, where there is no newest Go.
    pub(crate) fn find(directory: &Path) -> Option<GoKubelet> {
        let program = newest_go::program("go-kubelet")?;
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
        Some(GoKubelet { child, commands, events, seen: Vec::new() })
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
        let wanted = |received: &Value| received["event"] == event && is(received);
        if let Some(place) = self.seen.iter().position(wanted) {
            return self.seen.remove(place);
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(received) = self.events.recv_timeout(left) else {
                panic!("no {event} among {:#?}", self.seen);
            };
            if wanted(&received) {
                return received;
            }
            self.seen.push(received);
        }
    }

    /// Waits until a resource is registered.
    #[track_caller]
    pub(crate) fn registers(&mut self, resource: &str) -> Value {
        self.tells("registered", |event| event["resource"] == resource)
    }

    #[track_caller]
    pub(crate) fn lists(&mut self, resource: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.tells("devices", |event| event["resource"] == resource && is(event))
    }
}

impl Drop for GoKubelet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
