//! A host made of the go-plugin library that Nomad is built with, as Debian packages it
//! (`tests/tools/nomad-host`).

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use onload_test_needs as needs;
use prost::Message;

use super::{AgentHost, sources, start};

const GOPATH: &str = "/usr/share/gocode";
const LIBRARIES: [&str; 2] = ["github.com/hashicorp/go-plugin", "google.golang.org/grpc"];

pub(crate) fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let library = |name: &str| Path::new(GOPATH).join("src").join(name).is_dir();
    // `go` has no `--version`.
    let has_go = Command::new("go").arg("version").stdout(Stdio::null()).status().is_ok();
    let is_there = has_go && LIBRARIES.iter().all(|name| library(name));
    let missing = "golang-go, golang-github-hashicorp-go-plugin-dev or golang-google-grpc-dev is not installed";
    if !needs::that(is_there, missing) {
        return None;
    }
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let built = scratch.join(format!("nomad-host-{}", std::process::id()));
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&built);
    go.arg(sources().join("tests/tools/nomad-host/main.go"));
    go.env("GO111MODULE", "off").env("GOPATH", GOPATH).env("GOFLAGS", "");
    go.env("GOCACHE", scratch.join("go-cache"));
    let output = go.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let program = scratch.join("nomad-host");
    fs::rename(built, &program).unwrap();
    Some(program)
}

pub(crate) struct GoHost {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    log: Option<JoinHandle<String>>,
}

impl GoHost {
    /// Starts the plugin for a host; why it could not.
    pub(crate) fn start(program: &Path, host: &AgentHost) -> Result<GoHost, String> {
        GoHost::with(program, host, |_| {})
    }

    pub(crate) fn with(
        program: &Path,
        host: &AgentHost,
        change: impl FnOnce(&mut Command),
    ) -> Result<GoHost, String> {
        let plugin = start(host);
        let mut command = Command::new(program);
        command.arg(plugin.get_program()).args(plugin.get_args());
        command.env_clear();
        // The library itself adds the cookie and what goes with it.
        let variables = plugin.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let is_hosts = |name: &str| name.starts_with("PLUGIN_") || name.starts_with("NOMAD_");
        command.envs(variables.filter(|(name, _)| !is_hosts(name.to_str().unwrap())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let log = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let mut host = GoHost {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
            log: Some(log),
        };
        host.answer().map(|_| host)
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let line = line.trim_end();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ok", answer) => Ok(answer.to_owned()),
            (_, why) => Err(why.to_owned()),
        }
    }

    pub(crate) fn command(&mut self, line: &str) -> Result<String, String> {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        self.answer()
    }

    pub(crate) fn call<A: Message + Default>(
        &mut self,
        verb: &str,
        method: &str,
        message: &impl Message,
    ) -> Result<A, String> {
        let line = format!("{verb} {method} {}", hex(&message.encode_to_vec()));
        self.command(&line).map(|answer| decode(&answer))
    }

    pub(crate) fn next<A: Message + Default>(&mut self) -> Result<A, String> {
        self.command("next").map(|answer| decode(&answer))
    }

    pub(crate) fn ended(mut self) -> String {
        self.stdin.take();
        self.child.wait().unwrap();
        self.log.take().unwrap().join().unwrap()
    }
}

impl Drop for GoHost {
    fn drop(&mut self) {
        // It ends its plugin when its input ends.
        self.stdin.take();
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn decode<A: Message + Default>(text: &str) -> A {
    let digits = text.as_bytes().chunks(2);
    let bytes: Vec<u8> = digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    A::decode(bytes.as_slice()).unwrap()
}
