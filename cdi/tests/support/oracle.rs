//! Programs that read CDI specifications with other people's code, and the comparison of what they
//! inject with what this crate injects.
//!
//! A tool that cannot be built here is reported on stderr and `None` is returned, unless
//! `CDI_REQUIRE_ORACLES=1` demands it.

// Each test file that includes this module uses a part of it, and fails by panicking.
#![allow(dead_code, unreachable_pub, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use onload_cdi::oci::{HostNodes, OciConfig, apply, map_ids, mount_depth};
use onload_cdi::{ContainerEdits, QualifiedName, Registry, Spec, to_json};
use serde_json::Value;

const GOPATH: &str = "/usr/share/gocode";
/// Import paths of the Go library: since it moved to the CNCF (Debian 13), and before (Debian 12).
const GO_LIBRARIES: [&str; 2] = [
    "tags.cncf.io/container-device-interface",
    "github.com/container-orchestrated-devices/container-device-interface",
];
const REQUIRE: &str = "CDI_REQUIRE_ORACLES";

/// A way in which another reader differs from this one. Each is shown by its own test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// `K=V` is added after an existing `K=W` instead of replacing it; the last one counts.
    EnvironmentKeyRepeated,
    /// `fileMode` is not taken from the host's node if the edits leave it open.
    FileModeNotFilled,
    /// Mounts of one depth are sorted by destination instead of keeping their order.
    MountsSortedByDestination,
    /// Bind mounts get no `idmap` and no `ridmap` in a container with a user namespace.
    BindMountsNotMapped,
    /// Mounts stay in the order in which they were added.
    MountsNotSorted,
}

/// One of the programs.
pub struct Tool {
    program: PathBuf,
    deviations: &'static [Deviation],
}

/// What a tool finds in directories.
#[derive(Debug, serde::Deserialize)]
pub struct Listing {
    /// The file of each device.
    pub devices: BTreeMap<String, PathBuf>,
    /// What it reports as wrong, if it reports by file.
    #[serde(default)]
    pub errors: Value,
    /// The error that stopped the scan.
    #[serde(default)]
    pub scan: Option<String>,
}

/// The engines' own library, in Go, as Debian packages it.
pub fn go() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    let deviations = &[
        Deviation::EnvironmentKeyRepeated,
        Deviation::FileModeNotFilled,
        Deviation::MountsSortedByDestination,
        Deviation::BindMountsNotMapped,
    ];
    TOOL.get_or_init(|| available("the Go library", build_go(), deviations)).as_ref()
}

/// The crate `container-device-interface`.
pub fn second_crate() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    let deviations = &[
        Deviation::EnvironmentKeyRepeated,
        Deviation::FileModeNotFilled,
        Deviation::MountsNotSorted,
        Deviation::BindMountsNotMapped,
    ];
    TOOL.get_or_init(|| available("the second crate", build_crate(), deviations)).as_ref()
}

fn available(
    what: &str,
    built: Result<PathBuf, String>,
    deviations: &'static [Deviation],
) -> Option<Tool> {
    match built {
        Ok(program) => Some(Tool { program, deviations }),
        Err(reason) => {
            assert!(!required(), "{what} is required by {REQUIRE}: {reason}");
            // Not `eprintln`, whose output a passing test does not show.
            let _ = writeln!(std::io::stderr(), "skipped: {what} does not exist: {reason}");
            None
        }
    }
}

fn required() -> bool {
    std::env::var_os(REQUIRE).is_some_and(|value| value == "1")
}

fn sources(tool: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = package.join("tests/tools").join(tool);
    if here.is_dir() { here } else { package.join("../tests/tools").join(tool) }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("starting {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn build_go() -> Result<PathBuf, String> {
    let packages = Path::new(GOPATH).join("src");
    let Some(library) =
        GO_LIBRARIES.into_iter().find(|library| packages.join(library).join("pkg/cdi").is_dir())
    else {
        return Err(format!(
            "{} is not in {}: install golang-go and \
             golang-github-container-orchestrated-devices-container-device-interface-dev",
            GO_LIBRARIES.join(" or "),
            packages.display()
        ));
    };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = scratch.join(format!("cdi-oracle-{}", std::process::id()));
    let main = program.with_extension("go");
    // The source imports the library by its first path.
    fs::read_to_string(sources("cdi-oracle").join("main.go"))
        .and_then(|source| fs::write(&main, source.replace(GO_LIBRARIES[0], library)))
        .map_err(|error| format!("writing {}: {error}", main.display()))?;
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg(&main);
    go.env("GO111MODULE", "off").env("GOPATH", GOPATH).env("GOFLAGS", "");
    let built = run(go.env("GOCACHE", scratch.join("go-cache")));
    let _ = fs::remove_file(&main);
    built?;
    install_oracle(&program, &scratch.join("cdi-oracle"))
}

/// Test programs run side by side, so each builds under its own name.
fn install_oracle(built: &Path, name: &Path) -> Result<PathBuf, String> {
    fs::rename(built, name).map_err(|error| format!("renaming {}: {error}", built.display()))?;
    Ok(name.to_owned())
}

/// Building two hundred crates takes minutes, so they are built only on request.
fn build_crate() -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cdi-crate-oracle");
    let manifest = sources("cdi-crate-oracle").join("Cargo.toml");
    if required() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--manifest-path"]).arg(&manifest);
        cargo.arg("--target-dir").arg(&target).env_remove("RUSTFLAGS");
        run(&mut cargo)?;
    }
    built_below(&target).ok_or_else(|| format!("it is built where {REQUIRE}=1"))
}

/// Cargo's configuration decides whether there is a directory named after the target in the path.
fn built_below(target: &Path) -> Option<PathBuf> {
    let direct = target.join("debug/cdi-crate-oracle");
    let mut found = fs::read_dir(target)
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("debug/cdi-crate-oracle"));
    found.find(|path| path.is_file()).or_else(|| direct.is_file().then_some(direct))
}

impl Tool {
    fn ask(&self, arguments: &[String], input: &[u8]) -> Result<Vec<u8>, String> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env("GOTRACEBACK", "none")
            .spawn()
            .expect("a built tool starts");
        // A tool that fails early does not read its input.
        let _ = child.stdin.take().expect("a pipe").write_all(input);
        let output = child.wait_with_output().expect("a tool ends");
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// The newest CDI version that it knows.
    pub fn version(&self) -> String {
        let version = self.ask(&["--version".to_owned()], b"").expect("a version");
        String::from_utf8(version).expect("text").trim().to_owned()
    }

    /// What it finds in `dirs`.
    pub fn list(&self, dirs: &[PathBuf]) -> Listing {
        let mut arguments = directories(dirs);
        arguments.push("--list".to_owned());
        let listing = self.ask(&arguments, b"").expect("a listing");
        serde_json::from_slice(&listing).expect("a listing")
    }

    /// `config` with the devices injected.
    pub fn inject(&self, dirs: &[PathBuf], names: &[&str], config: &[u8]) -> Result<Value, String> {
        let mut arguments = directories(dirs);
        for name in names {
            arguments.extend(["--device".to_owned(), (*name).to_owned()]);
        }
        let config = self.ask(&arguments, config)?;
        Ok(serde_json::from_slice(&config).expect("a configuration"))
    }

    /// `config` as its reader interprets it.
    pub fn normalise(&self, config: &[u8]) -> Value {
        self.inject(&[], &[], config).expect("a configuration")
    }

    /// Asserts that it injects what this crate injects, except for its known deviations, or that
    /// both refuse.
    #[track_caller]
    pub fn assert_same(&self, dirs: &[PathBuf], names: &[&str], config: &[u8]) {
        self.assert_same_as(dirs, names, config, inject(dirs, names, config));
    }

    /// As before, with what this crate has already injected.
    #[track_caller]
    pub fn assert_same_as(
        &self,
        dirs: &[PathBuf],
        names: &[&str],
        config: &[u8],
        ours: Result<Vec<u8>, String>,
    ) {
        let theirs = self.inject(dirs, names, config);
        let (mut theirs, ours) = match (theirs, ours) {
            (Ok(theirs), Ok(ours)) => (theirs, ours),
            (Err(_), Err(_)) => return,
            (theirs, ours) => panic!("{names:?} of {dirs:?}: theirs {theirs:?}, ours {ours:?}"),
        };
        let mut ours = self.normalise(&ours);
        let sorts = edits(dirs, names).is_ok_and(|edits| !edits.mounts.is_empty());
        for deviation in self.deviations {
            if *deviation != Deviation::MountsSortedByDestination || sorts {
                even_out(*deviation, &mut ours, &mut theirs);
            }
        }
        assert_eq!(ours, theirs, "{names:?} of {dirs:?} into {}", String::from_utf8_lossy(config));
    }
}

fn directories(dirs: &[PathBuf]) -> Vec<String> {
    let pair = |dir: &PathBuf| ["--spec-dir".to_owned(), dir.display().to_string()];
    dirs.iter().flat_map(pair).collect()
}

fn edits(dirs: &[PathBuf], names: &[&str]) -> Result<ContainerEdits, String> {
    let names: Result<Vec<QualifiedName>, _> = names.iter().map(|name| name.parse()).collect();
    let names = names.map_err(|error| error.to_string())?;
    Registry::scan(dirs).edits_for(&names).map_err(|error| error.to_string())
}

/// `config` with the devices injected by this crate.
pub fn inject(dirs: &[PathBuf], names: &[&str], config: &[u8]) -> Result<Vec<u8>, String> {
    let mut edits = edits(dirs, names)?;
    let mut config = OciConfig::parse(config).map_err(|error| error_chain(&error))?;
    if !config.namespace_paths("user").map_err(|error| error_chain(&error))?.is_empty() {
        map_ids(&mut edits);
    }
    apply(&mut config, &edits, &HostNodes).map_err(|error| error_chain(&error))?;
    Ok(config.to_bytes())
}

/// An error with its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

/// Removes from both configurations what the deviation may change in them, and nothing else.
fn even_out(deviation: Deviation, ours: &mut Value, theirs: &mut Value) {
    match deviation {
        Deviation::EnvironmentKeyRepeated => {
            for env in [ours, theirs].into_iter().filter_map(|one| one.pointer_mut("/process/env"))
            {
                *env = serde_json::to_value(effective(env)).expect("a map of texts");
            }
        }
        Deviation::FileModeNotFilled => {
            for config in [ours, theirs] {
                for device in
                    list(config.pointer_mut("/linux/devices")).filter_map(Value::as_object_mut)
                {
                    device.remove("fileMode");
                }
            }
        }
        // Sorting theirs too would hide a depth that this crate counts differently.
        Deviation::MountsSortedByDestination => {
            if let Some(mounts) = ours.get_mut("mounts").and_then(Value::as_array_mut) {
                mounts.sort_by_key(|mount| {
                    let destination = mount["destination"].as_str().unwrap_or_default().to_owned();
                    (mount_depth(&destination), destination)
                });
            }
        }
        Deviation::BindMountsNotMapped => {
            for mount in list(ours.pointer_mut("/mounts")).filter_map(Value::as_object_mut) {
                let Some(options) = mount.get_mut("options").and_then(Value::as_array_mut) else {
                    continue;
                };
                options.retain(|option| option != "idmap" && option != "ridmap");
                if options.is_empty() {
                    mount.remove("options");
                }
            }
        }
        Deviation::MountsNotSorted => {
            for config in [ours, theirs] {
                if let Some(mounts) = config.get_mut("mounts").and_then(Value::as_array_mut) {
                    mounts.sort_by_key(ToString::to_string);
                }
            }
        }
    }
}

fn list(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_array_mut).into_iter().flatten()
}

/// What a process sees of a list of variables.
pub fn effective(env: &Value) -> BTreeMap<String, String> {
    env.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|entry| entry.split_once('=').unwrap_or((entry, "")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Writes `specs` to a new directory for the tools to read. A device node that takes its numbers
/// from the host gets some, so that the node need not exist here.
pub fn stage(specs: &[Spec]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (index, spec) in specs.iter().enumerate() {
        let mut spec = spec.clone();
        number(&mut spec.container_edits);
        for device in &mut spec.devices {
            number(&mut device.container_edits);
        }
        fs::write(dir.path().join(format!("{index}.json")), to_json(&spec)).expect("a file");
    }
    dir
}

fn number(edits: &mut ContainerEdits) {
    for (node, minor) in edits.device_nodes.iter_mut().zip(0..) {
        if node.type_.is_none() && node.major.is_none() {
            node.type_ = Some("c".to_owned());
            node.major = Some(240);
            node.minor = Some(minor);
        }
    }
}
