//! `onload-kubernetes run`, as a process.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Instant;

use onload_test_tree::Log;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{AgentHost, PATIENCE};

const PROGRAM: &str = env!("CARGO_BIN_EXE_onload-kubernetes");

pub(crate) struct Daemon {
    child: Child,
    log: Log,
    pub(crate) http: PathBuf,
    pub(crate) health: PathBuf,
}

impl Daemon {
    pub(crate) fn start(host: &AgentHost) -> Daemon {
        Daemon::with(host, |_| {})
    }

    pub(crate) fn with(host: &AgentHost, change: impl FnOnce(&mut Command)) -> Daemon {
        let spec_dir = host.spec_dir();
        Daemon::made(host, Command::new(PROGRAM), |command| {
            command.arg("--spec-dir").arg(spec_dir);
            change(command);
        })
    }

    pub(crate) fn that_writes(host: &AgentHost, change: impl FnOnce(&mut Command)) -> Daemon {
        Daemon::made(host, Command::new(PROGRAM), change)
    }

    /// As the argument of another program, which executes it.
    pub(crate) fn wrapped(host: &AgentHost, wrap: impl FnOnce(&str) -> Command) -> Daemon {
        let spec_dir = host.spec_dir();
        Daemon::made(host, wrap(PROGRAM), |command| {
            command.arg("--spec-dir").arg(spec_dir);
        })
    }

    fn made(host: &AgentHost, mut command: Command, change: impl FnOnce(&mut Command)) -> Daemon {
        if !host.config_path().exists() {
            host.config("");
        }
        let http = host.plugin_dir().with_file_name("http.sock");
        let health = host.plugin_dir().with_file_name("health.sock");
        command.env_clear();
        command.arg("run").arg("--host-root").arg(host.root());
        command.arg("--config").arg(host.config_path());
        command.arg("--device-plugin-dir").arg(host.plugin_dir());
        command.arg("--health-socket").arg(&health);
        command.env("ONLOAD_KUBERNETES_LISTEN", format!("unix:{}", http.display()));
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        // A test may have put it elsewhere.
        let log = Log::from_stream(child.stderr.take());
        Daemon { child, log, http, health }
    }

    pub(crate) fn health(&self, more: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(PROGRAM);
        command.env_clear().arg("health").args(more);
        command.arg("--health-socket").arg(&self.health);
        let output = command.output().unwrap();
        let message = [output.stdout, output.stderr].concat();
        let message = String::from_utf8_lossy(&message).into_owned();
        (output.status.code(), message)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    pub(crate) fn logged(&mut self, words: &[&str]) -> Value {
        self.log.line(words)
    }

    pub(crate) fn count(&mut self, words: &[&str]) -> usize {
        self.log.count(words)
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal_term();
        self.child.wait().unwrap()
    }

    pub(crate) fn signal_term(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        (status, self.log.whole())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The head and body of a page that is served at a socket.
pub(crate) fn get(socket: &Path, page: &str) -> (String, String) {
    get_as(socket, page, "*/*")
}

/// The same for who accepts that.
pub(crate) fn get_as(socket: &Path, page: &str, accept: &str) -> (String, String) {
    let end = Instant::now() + PATIENCE;
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < end, "{}: {error}", socket.display()),
        }
        thread::yield_now();
    };
    let request = format!(
        "GET {page} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}
