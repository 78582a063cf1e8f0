//! The program, run on small hosts that are made in temporary directories. No test looks at the
//! host that it runs on.

// Each test file that includes this module uses a part of it, and fails by panicking.
#![allow(
    dead_code,
    unused_imports,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used
)]

pub(crate) mod fuse;
pub(crate) mod hosts;
pub(crate) mod strace;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use onload_test_tree::copy_program;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

pub(crate) use onload_test_needs as needs;
pub(crate) use onload_test_tree::sample::{CAPTURED, NAMES as COMMITTED, captured};
pub(crate) use onload_test_tree::{CHECKSUM, MULTIARCH, Pci, Tree, names_in, scratch};

/// The directory of this package.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Fails if a golden file differs from what came out. With `UPDATE_GOLDEN=1`, rewrites the file.
#[track_caller]
pub(crate) fn compare(golden: &Path, found: &str) {
    let mut differences = Differences::default();
    differences.compare(golden, found);
    differences.fail_if_any();
}

/// Golden files that differ from what came out, each with its diff. A test compares all its files before it fails.
#[derive(Default)]
pub(crate) struct Differences(pub(crate) Vec<(PathBuf, String)>);

impl Differences {
    /// Notes a difference. With `UPDATE_GOLDEN=1`, rewrites the file instead.
    pub(crate) fn compare(&mut self, golden: &Path, found: &str) {
        let diff = onload_test_tree::golden::compare(golden, found);
        self.0.extend(diff.map(|diff| (golden.to_owned(), diff)));
    }

    /// Notes each file of a directory that is not in `names`. With `UPDATE_GOLDEN=1`, removes it instead.
    pub(crate) fn expect_only(&mut self, directory: &Path, names: &[String]) {
        for name in names_in(directory).into_iter().filter(|name| !names.contains(name)) {
            let path = directory.join(name);
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                fs::remove_file(path).unwrap();
            } else {
                self.0.push((path, "no test writes this file\n".to_owned()));
            }
        }
    }

    #[track_caller]
    pub(crate) fn fail_if_any(self) {
        assert!(self.0.is_empty(), "{self}");
    }
}

impl std::fmt::Display for Differences {
    /// Writes the diffs, then the paths again, since the diffs may be long.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = |path: &Path| path.strip_prefix(package()).unwrap_or(path).display().to_string();
        for (golden, diff) in &self.0 {
            write!(f, "{}:\n{diff}\n", path(golden))?;
        }
        writeln!(f, "{} golden files differ:", self.0.len())?;
        for (golden, _) in &self.0 {
            writeln!(f, "  {}", path(golden))?;
        }
        // The harness names a test's thread after it, but runs a single one in the main thread.
        let thread = std::thread::current();
        let test = thread.name().filter(|name| *name != "main").unwrap_or_default();
        let command = format!("UPDATE_GOLDEN=1 cargo test --test it {test}");
        write!(f, "to accept all of them, run: {}", command.trim_end())
    }
}

/// Every host that comes with the sources, and every small one, by name.
pub(crate) fn every_host() -> Vec<(&'static str, Tree)> {
    COMMITTED.map(|name| (name, Tree::sample(name))).into_iter().chain(hosts::all()).collect()
}

/// What a run of the program gave.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn new(output: Output) -> Run {
        // Shown where a test fails.
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text on stdout"),
            stderr: String::from_utf8(output.stderr).expect("text on stderr"),
        }
    }

    #[track_caller]
    fn ended_with(self, code: i32) -> Run {
        let (stdout, stderr) = (&self.stdout, &self.stderr);
        assert_eq!(self.code, Some(code), "stdout: {stdout}\nstderr: {stderr}");
        self
    }

    /// Asserts that it was done.
    #[track_caller]
    pub(crate) fn done(self) -> Run {
        self.ended_with(0)
    }

    /// Asserts that the answer is no.
    #[track_caller]
    pub(crate) fn answered_no(self) -> Run {
        self.ended_with(1)
    }

    /// Asserts that it was not done, and gives the one line that says why.
    #[track_caller]
    pub(crate) fn refused(self) -> String {
        let run = self.ended_with(2);
        let errors: Vec<&str> =
            run.stderr.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
        assert_eq!(errors.len(), 1, "{}", run.stderr);
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
        errors[0].to_owned()
    }

    /// Stdout as the JSON that it is.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("JSON on stdout")
    }

    /// The warnings, without the word itself.
    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.stderr.lines().filter_map(|line| line.strip_prefix("warning: ")).collect()
    }
}

/// The program without anything of the developer's environment.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onload-ctk"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// Runs a command of the program.
pub(crate) fn run(command: &mut Command) -> Run {
    let output = command.output().expect("the program starts");
    Run::new(output)
}

/// Runs a command of the program with something to read on stdin.
pub(crate) fn run_with_stdin(command: &mut Command, input: &[u8]) -> Run {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A run that fails early does not read.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("the program ends");
    Run::new(output)
}

/// The program on the host below that directory.
pub(crate) fn on(root: &Path, args: &[&str]) -> Command {
    let mut command = program();
    command.arg("--host-root").arg(root).args(args);
    command
}

/// What the program does on a host.
pub(crate) trait Commands {
    /// The host's configuration.
    fn config(&self, text: &str) -> &Tree;
    /// Runs the program on this host.
    fn run(&self, args: &[&str]) -> Run;
    /// What `discover --format json` gives.
    #[track_caller]
    fn discover(&self) -> Value;
    /// Generates into the host's own directory.
    #[track_caller]
    fn generate(&self) -> Run;
    /// Where the host has its specifications.
    fn specs(&self) -> PathBuf;
    /// Generates and gives the specification of a class.
    #[track_caller]
    fn spec(&self, class: &str) -> Value;
    /// The specification of a class as it stands there.
    #[track_caller]
    fn written(&self, class: &str) -> Value;
    /// The specification of a class's pools as it stands there.
    #[track_caller]
    fn written_pools(&self, class: &str) -> Value;
}

impl Commands for Tree {
    fn config(&self, text: &str) -> &Tree {
        self.file("/etc/onload-ctk/config.toml", text)
    }

    fn run(&self, args: &[&str]) -> Run {
        run(&mut on(self.root(), args))
    }

    #[track_caller]
    fn discover(&self) -> Value {
        self.run(&["discover", "--format", "json"]).done().json()
    }

    #[track_caller]
    fn generate(&self) -> Run {
        self.run(&["cdi", "generate"]).done()
    }

    fn specs(&self) -> PathBuf {
        self.path("/var/run/cdi")
    }

    #[track_caller]
    fn spec(&self, class: &str) -> Value {
        self.generate();
        self.written(class)
    }

    #[track_caller]
    fn written(&self, class: &str) -> Value {
        json_file(self.specs().join(format!("onload.dev-{class}.json")))
    }

    #[track_caller]
    fn written_pools(&self, class: &str) -> Value {
        self.written(&format!("{class}-pools"))
    }
}

/// A configuration, read by types of the OCI specification that are not ours.
#[track_caller]
pub(crate) fn oci(config: &str) -> oci_spec::runtime::Spec {
    serde_json::from_str(config).expect("a configuration of the OCI specification")
}

/// The specification files in a directory, sorted.
pub(crate) fn specs_in(dir: &Path) -> Vec<String> {
    let mut names = names_in(dir);
    names.retain(|name| name.ends_with(".json") || name.ends_with(".yaml"));
    names
}

#[track_caller]
pub(crate) fn json_file(path: impl AsRef<Path>) -> Value {
    let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()));
    serde_json::from_slice(&text).expect("JSON")
}

/// The device of that name in a specification.
#[track_caller]
pub(crate) fn device<'s>(spec: &'s Value, name: &str) -> &'s Value {
    let devices = spec["devices"].as_array().expect("devices");
    devices
        .iter()
        .find(|device| device["name"] == name)
        .unwrap_or_else(|| panic!("no device {name} in {:?}", device_names(spec)))
}

/// The names of the devices of a specification, in their order.
pub(crate) fn device_names(spec: &Value) -> Vec<String> {
    let devices = spec["devices"].as_array().expect("devices");
    devices.iter().map(|device| text(&device["name"])).collect()
}

/// A value that is text.
#[track_caller]
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// A value that is a list of texts; an absent one is an empty list.
#[track_caller]
pub(crate) fn texts(value: &Value) -> Vec<String> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(text).collect()
}

/// `field` of each member of a list.
#[track_caller]
pub(crate) fn each(list: &Value, field: &str) -> Vec<String> {
    list.as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|member| text(&member[field]))
        .collect()
}

/// The reason why something is not offered.
#[track_caller]
pub(crate) fn reason(inventory: &Value, kind: &str, name: &str) -> String {
    let list = inventory["not_offered"].as_array().expect("a list");
    let found = list
        .iter()
        .find(|entry| entry["kind"] == kind && entry["name"] == name)
        .unwrap_or_else(|| panic!("no reason for {kind} {name} in {list:#?}"));
    text(&found["reason"])
}

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    needs::is_root()
}

/// Somebody who is not root; root may read and write everything.
pub(crate) const NOBODY: u32 = 65534;

/// Runs as somebody without rights.
pub(crate) fn run_unprivileged(tree: &Tree, args: &[&str]) -> Run {
    if !is_root() {
        return tree.run(args);
    }
    // The program may stand in a directory that only root may search.
    let program = tree.path("/onload-ctk-under-test");
    copy_program(env!("CARGO_BIN_EXE_onload-ctk"), &program);
    let mut command = Command::new(&program);
    command.env_clear().uid(NOBODY).gid(NOBODY).arg("--host-root").arg(tree.root()).args(args);
    let run = run(&mut command);
    fs::remove_file(program).expect("a copy of ours");
    run
}

/// Says why a test does not test anything; it fails where everything is required.
#[track_caller]
pub(crate) fn skipped(reason: &str) {
    let _ = needs::that(false, reason);
}

/// Whether a program is on this machine that may not know `--version`.
pub(crate) fn has_program(program: &str) -> bool {
    ["/usr/bin", "/bin", "/usr/local/bin"]
        .map(Path::new)
        .iter()
        .any(|dir| dir.join(program).exists())
}

/// A terminal of that width: the side of who watches it, and the side of a program.
pub(crate) fn terminal(columns: u16) -> (OwnedFd, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).expect("a terminal of ours");
    unlockpt(&master).expect("a terminal of ours");
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let terminal = ioctl_tiocgptpeer(&master, flags).expect("its other side");
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).expect("a terminal has a size");
    (master, terminal)
}

/// Whether a program is on this machine.
pub(crate) fn has(program: impl AsRef<OsStr>) -> bool {
    needs::runs(program)
}

/// `host apply` as root with the tree's /sys in place of the machine's, in a mount namespace of its own. Nobody
/// reacts to what is written there.
pub(crate) fn apply_below(tree: &Tree) -> Command {
    let mut apply = Command::new("unshare");
    apply.args(["--mount", "--propagation", "private", "sh", "-c"]);
    apply.arg(r#"mount --bind "$1/sys" /sys && exec "$2" --config "$1/etc/onload-ctk/config.toml" host apply"#);
    apply
        .arg("sh")
        .arg(tree.root())
        .arg(env!("CARGO_BIN_EXE_onload-ctk"))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    apply
}

/// Whether [`apply_below`] can be tried here.
#[track_caller]
pub(crate) fn can_have_namespaces() -> bool {
    needs::mount_namespace("host apply below a directory")
}
