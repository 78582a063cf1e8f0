//! `onload-container-runtime`: edits `config.json` on `create` and `run`, then becomes the OCI
//! runtime behind it.

pub mod args;
pub(crate) mod exec;
pub(crate) mod log;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use onload_core::config::{CONFIG_PATH, ConfigError, Log, LogLevel, RootWithOnload};
use onload_core::container_id::ContainerId;
use onload_core::fs::trust::TrustError;
use onload_core::run_dir::RUN_DIR;
use onload_core::text::Chain;
use rustix::fs::stat;
use rustix::io::Errno;
use serde::Deserialize;

use crate::config_json::bundle::ConfigFile;
use crate::decision::report::Report;
use crate::entry::edit::{self, Edited, EntryError};
use crate::entry::log_file::{self, Line};
use crate::entry::program::FAILURE;
use crate::entry::wrapper::args::{Create, Invocation};
use crate::entry::wrapper::log::Level;
use crate::filter::Container;
use crate::host::{Host, HostError, Settings, ThisHost};
use crate::run::made_by;
use crate::run::made_by::{Named, Record, Remembered, StateOf};
use crate::run::maker::{EntryPoint, Stage};
use crate::run::sweep;

/// The name in front of what this program says.
const PROGRAM: &str = "onload-container-runtime";

/// The runtimes that are looked for when the configuration names none.
pub const RUNTIMES: [&str; 5] = [
    "/usr/bin/runc",
    "/usr/sbin/runc",
    "/usr/local/sbin/runc",
    "/usr/bin/crun",
    "/usr/local/bin/crun",
];

/// Why the container does not start.
#[derive(Debug, thiserror::Error)]
enum RuntimeError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("the OCI runtime")]
    Trust(#[from] TrustError),
    #[error("{path:?}")]
    Config { path: PathBuf, source: ConfigError },
    #[error("none of {} exists; install runc or crun, or name one under [runtime] in {config}", RUNTIMES.join(", "))]
    NoRuntime { config: String },
    #[error("the OCI runtime {0:?} is this program itself; name runc or crun under [runtime]")]
    Itself(PathBuf),
    #[error("container {id}")]
    Entry { id: String, source: Box<EntryError> },
    #[error(
        "remembering in {RUN_DIR} that CAP_SETUID must not come with a later process of the container: {0}; root-with-onload = \"refuse\" needs that"
    )]
    Unguarded(std::io::Error),
    #[error("executing {path:?}")]
    Exec {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// The one section that every call needs; a mistake elsewhere in the file is told to those who ask
/// for something.
#[derive(Default, Deserialize)]
struct RuntimeOnly {
    #[serde(default)]
    runtime: onload_core::config::Runtime,
}

/// Runs the program; returns only where it did not become the runtime.
#[must_use]
pub fn main(mut argv: Vec<OsString>) -> i32 {
    let invocation = args::parse(argv.get(1..).unwrap_or_default());
    if invocation.is_version {
        say_version();
    }
    let error = match prepare(&invocation) {
        Ok(prepared) => {
            let path = prepared.runtime.clone();
            match argv.first_mut() {
                // crun chooses what it is by the name that it is called by.
                Some(name) => *name = path.clone().into_os_string(),
                None => argv.push(path.clone().into_os_string()),
            }
            let source = exec::become_program(&path, &argv);
            prepared.undo();
            RuntimeError::Exec { path, source }
        }
        Err(error) => error,
    };
    let message = Chain(&error).to_string();
    let line = Line::new(LogLevel::Error, message.as_str());
    log_lines(
        &invocation,
        &log_file::settings(Path::new(CONFIG_PATH)),
        &[line],
    );
    log::write(&invocation.log, Level::Error, &prefixed(&message));
    FAILURE
}

/// Says the own version before the runtime says its own. Readers of `runc --version` go by the last line
/// with that word (moby, `parseRuntimeVersion`), which stays the runtime's.
fn say_version() {
    let line = format!("{PROGRAM} version {}\n", env!("CARGO_PKG_VERSION"));
    // Where nobody takes it the runtime will find out.
    let mut output = std::io::stdout();
    let _ = output.write_all(line.as_bytes());
    let _ = output.flush();
}

fn prefixed(message: &str) -> String {
    format!("{PROGRAM}: {message}")
}

/// What is known before the runtime takes over.
struct Prepared {
    runtime: PathBuf,
    edited: Edited,
    remembered: Option<Remembered>,
}

impl Prepared {
    /// Nobody will start the container.
    fn undo(&self) {
        self.edited.undo();
        if let Some(remembered) = &self.remembered {
            remembered.undo();
        }
    }
}

/// Edits the configuration where the verb asks for it, and finds the runtime to become.
fn prepare(invocation: &Invocation) -> Result<Prepared, RuntimeError> {
    let host = ThisHost::new()?;
    let named = |id: &OsString| id.to_str()?.parse::<ContainerId>().ok();
    let id = invocation.container.as_ref().and_then(named);
    let container = id.as_ref().map(|id| Named {
        id,
        root: invocation.root.as_deref(),
    });
    if !invocation.makes_container {
        return Ok(Prepared {
            runtime: look_after(invocation, container, &host)?,
            edited: Edited::default(),
            remembered: None,
        });
    }
    let runtime = configured(&host)?;
    let mut edited = Edited::default();
    if let Some(create) = &invocation.create {
        let id = id.as_ref();
        let entry_point = EntryPoint {
            stage: Stage::Runtime,
            bundle: &create.bundle,
            root: invocation.root.as_deref().map(Path::new),
        };
        edited = edit(create, id, entry_point, &host).map_err(|error| RuntimeError::Entry {
            id: id.map_or_else(|| "without a name".to_owned(), ToString::to_string),
            source: Box::new(error),
        })?;
        tell(invocation, id, &edited.report);
    }
    if invocation.create.is_none() {
        edited.guards_exec = was_guarded(container, &host);
    }
    let remembered = remember(container, &runtime, &edited, &host)?;
    Ok(Prepared {
        runtime,
        edited,
        remembered,
    })
}

/// Says the warnings of a report, and logs all of it.
fn tell(invocation: &Invocation, id: Option<&ContainerId>, report: &Report) {
    for warning in &report.warnings {
        log::write(&invocation.log, Level::Warning, &prefixed(warning));
    }
    let subject = id.map_or_else(String::new, |id| format!("container {id}: "));
    log_lines(invocation, &report.log, &Line::of(report, &subject));
}

fn warn(invocation: &Invocation, host: &ThisHost, warning: &dyn std::fmt::Display) {
    let warnings = vec![warning.to_string()];
    tell(invocation, None, &Report::of_warnings(warnings, host.log()));
}

/// Writes lines to the operator's log; the container starts without them too.
fn log_lines(invocation: &Invocation, log: &Log, lines: &[Line]) {
    if let Err(error) = log_file::write(log, PROGRAM, lines) {
        let message = prefixed(&Chain(&error).to_string());
        log::write(&invocation.log, Level::Warning, &message);
    }
}

/// Whether the later processes of a container that is restored are looked at as they were before its
/// checkpoint. Where nobody remembers, the policy decides.
fn was_guarded(container: Option<Named<'_>>, host: &ThisHost) -> bool {
    match container.and_then(|named| made_by::read(host.trusted(), named)) {
        Some(found) => found.record.is_guarded,
        None => {
            let refuses = |settings: Settings| {
                settings.config.annotations.root_with_onload == RootWithOnload::Refuse
            };
            host.is_initial_namespace() && host.settings().is_ok_and(refuses)
        }
    }
}

/// Who is not root has no such directory, and goes on without: so does a container that needs no
/// record where none can be written.
fn remember(
    container: Option<Named<'_>>,
    runtime: &Path,
    edited: &Edited,
    host: &ThisHost,
) -> Result<Option<Remembered>, RuntimeError> {
    let record = Record {
        runtime: runtime.to_owned(),
        is_guarded: edited.guards_exec,
    };
    let written = match container {
        Some(container) if host.is_initial_namespace() => {
            made_by::write(host.trusted(), container, record)
        }
        _ => Err(Errno::PERM),
    };
    match written {
        Err(error) if edited.guards_exec => {
            edited.undo();
            Err(RuntimeError::Unguarded(error.into()))
        }
        written => Ok(written.ok().flatten()),
    }
}

/// The runtime for a verb that makes no container: the one that made the container, where that is
/// remembered and to be believed. Nothing of it depends on the configuration.
fn look_after(
    invocation: &Invocation,
    container: Option<Named<'_>>,
    host: &ThisHost,
) -> Result<PathBuf, RuntimeError> {
    if let Some(container) = container.filter(|_| invocation.is_delete) {
        let run = Path::new(RUN_DIR);
        if sweep::forget_list(run, container.id) {
            sweep::sweep(run, Some(container.id));
        }
    }
    let found = container.and_then(|named| made_by::read(host.trusted(), named));
    let Some(found) = found else {
        return guess(invocation, container, host);
    };
    let record = &found.record;
    if let Some(process) = invocation.process.as_deref().filter(|_| record.is_guarded) {
        edit::take_setuid(process).map_err(|error| RuntimeError::Entry {
            id: container.map_or_else(String::new, |named| named.id.to_string()),
            source: Box::new(error),
        })?;
    }
    if invocation.is_delete {
        found.forget();
    }
    match judge(host, &record.runtime) {
        Ok(runtime) => Ok(runtime),
        Err(error) => {
            warn(
                invocation,
                host,
                &format_args!("{}, though it made the container", Chain(&error)),
            );
            guess(invocation, container, host)
        }
    }
}

/// The runtime where none is remembered: what the configuration says, even a broken one, else the one
/// that keeps its containers as this one is kept.
fn guess(
    invocation: &Invocation,
    container: Option<Named<'_>>,
    host: &ThisHost,
) -> Result<PathBuf, RuntimeError> {
    let error = match configured(host) {
        Ok(runtime) => return Ok(runtime),
        Err(error) => error,
    };
    if matches!(error, RuntimeError::NoRuntime { .. }) {
        return Err(error);
    }
    let text = host.config_bytes().ok().flatten();
    let named = text.and_then(|bytes| told(&String::from_utf8_lossy(&bytes)));
    if let Some(runtime) = named.and_then(|named| named_or_usual(host, &named).ok()) {
        return Ok(runtime);
    }
    let kind = container.map_or(StateOf::None, Named::state_of);
    let usual = match kind {
        StateOf::Runc => usual(host, Some("runc")),
        StateOf::Crun => usual(host, Some("crun")),
        StateOf::None => usual(host, None),
        // Another runtime would find no such container, and `delete --force` would say that it is gone.
        StateOf::Other | StateOf::Unknown => return Err(error),
    };
    let Ok(runtime) = usual else {
        return Err(error);
    };
    warn(
        invocation,
        host,
        &format_args!("{}; going on with {}", Chain(&error), runtime.display()),
    );
    Ok(runtime)
}

fn edit(
    create: &Create,
    id: Option<&ContainerId>,
    entry_point: EntryPoint<'_>,
    host: &ThisHost,
) -> Result<Edited, EntryError> {
    let file = match ConfigFile::open(&create.bundle, create.config.as_deref()) {
        Ok(file) => file,
        // The runtime tells its own story of a bundle without a configuration. What it could still
        // open itself must not start without what it asks for.
        Err(crate::config_json::bundle::BundleError::Read { source: error, .. })
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Edited::default());
        }
        Err(error) => return Err(error.into()),
    };
    edit::edit(
        &file,
        Container {
            bundle: &create.bundle,
            id,
            sees_exec: true,
        },
        entry_point,
        host,
    )
}

/// The runtime that the configuration says.
fn configured(host: &ThisHost) -> Result<PathBuf, RuntimeError> {
    let named = match host.config_text()? {
        None => PathBuf::new(),
        Some(text) => {
            let parsed: RuntimeOnly =
                toml::from_str(&text).map_err(|error| RuntimeError::Config {
                    path: host.config_path().to_owned(),
                    source: ConfigError::of_toml(&text, &error),
                })?;
            parsed.runtime.path
        }
    };
    named_or_usual(host, &named)
}

fn named_or_usual(host: &ThisHost, named: &Path) -> Result<PathBuf, RuntimeError> {
    if named.as_os_str().is_empty() {
        return usual(host, None);
    }
    judge(host, named)
}

/// The first of the fixed list that exists, of that name where one is wanted.
fn usual(host: &ThisHost, name: Option<&str>) -> Result<PathBuf, RuntimeError> {
    let is_wanted = |path: &&&str| name.is_none_or(|name| path.rsplit('/').next() == Some(name));
    for path in RUNTIMES.iter().filter(is_wanted) {
        match judge(host, Path::new(path)) {
            Err(RuntimeError::Trust(error)) if error.is_absent() => {}
            found => return found,
        }
    }
    Err(RuntimeError::NoRuntime {
        config: host.config_path().display().to_string(),
    })
}

/// The runtime that a configuration names whose other bytes may be wrong: an empty path where it names
/// none, nothing where it cannot be told.
#[must_use]
pub fn told(text: &str) -> Option<PathBuf> {
    match toml::from_str::<RuntimeOnly>(text) {
        Ok(parsed) => Some(parsed.runtime.path),
        Err(_) => salvage(text),
    }
}

/// The runtime that a broken configuration names all the same, for verbs that only look after
/// containers which exist: those must be stopped and deleted whatever somebody did to the file. None
/// where it cannot be told, since another runtime than the container's would find no such container,
/// and `delete --force` would say that it is gone.
fn salvage(text: &str) -> Option<PathBuf> {
    let code = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
    let names = |line: &&str| {
        let code = code(line);
        let key = code.trim_start_matches(['[', '"', '\'', ' ']);
        key.starts_with("runtime")
    };
    let mut named = text.lines().filter(names);
    match (named.next(), named.next()) {
        (None, _) => return Some(PathBuf::new()),
        (Some(header), None) if code(header) == "[runtime]" => {}
        _ => return None,
    }
    let behind = text.lines().skip_while(|line| !names(line)).skip(1);
    let section: Vec<&str> = behind
        .take_while(|line| !code(line).starts_with('['))
        .collect();
    let found: onload_core::config::Runtime = toml::from_str(&section.join("\n")).ok()?;
    Some(found.path)
}

fn judge(host: &ThisHost, path: &Path) -> Result<PathBuf, RuntimeError> {
    let identity = host.trusted().judge(path)?;
    let own = stat("/proc/self/exe")
        .ok()
        .map(|stat| (stat.st_dev, stat.st_ino));
    if own == Some(identity) {
        return Err(RuntimeError::Itself(path.to_owned()));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_told_from_a_broken_configuration_where_it_stands_clearly() {
        for (text, path) in [
            ("[annotations\n", ""),
            ("# [runtime]\n[annotations]\nallow = [\n", ""),
            ("[runtime]\npath = \"/x\" # ours\n[cdi\n", "/x"),
            ("[cdi\n[runtime]\n", ""),
            ("allow = \n\n [runtime] # ours\npath = '/x'", "/x"),
        ] {
            assert!(toml::from_str::<RuntimeOnly>(text).is_err(), "{text}");
            assert_eq!(salvage(text), Some(path.into()), "{text}");
        }
    }

    #[test]
    fn a_runtime_that_is_not_clear_is_not_guessed() {
        for text in [
            "[runtime]\npath = \"/x\n",
            "[runtime]\npath = 1\n",
            "[runtime]\npath = \"/x\"\n[runtime]\npath = \"/y\"\n",
            "runtime.path = \"/x\"\n[cdi\n",
            "runtime = { path = \"/x\" }\n[cdi\n",
            "[\"runtime\"]\npath = \"/x\"\n[cdi\n",
            "[runtime\npath = \"/x\"\n",
        ] {
            assert!(toml::from_str::<RuntimeOnly>(text).is_err(), "{text}");
            assert_eq!(salvage(text), None, "{text}");
        }
    }
}
