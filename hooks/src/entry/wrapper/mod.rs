//! `onload-container-runtime`: edits `config.json` on `create` and `run`, then executes the OCI
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
use crate::host::{HostFilesError, HostView, Settings, ThisHost};
use crate::run::made_by;
use crate::run::made_by::{ContainerKey, Record, StateOwner, StoredRecord};
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
    Host(#[from] HostFilesError),
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
        "recording in {RUN_DIR} that later processes of the container must not have CAP_SETUID: {0}; root-with-onload = \"refuse\" needs that record"
    )]
    Unguarded(std::io::Error),
    #[error("executing {path:?}")]
    Exec {
        path: PathBuf,
        source: std::io::Error,
    },
}

impl onload_core::error::Typed for RuntimeError {}

impl RuntimeError {
    fn of_entry(id: Option<&ContainerId>, error: EntryError) -> RuntimeError {
        RuntimeError::Entry {
            id: id.map_or_else(|| "without a name".to_owned(), ToString::to_string),
            source: Box::new(error),
        }
    }

    /// Whether the configuration itself could not be used, rather than what it names.
    fn is_of_settings(&self) -> bool {
        matches!(self, RuntimeError::Host(_) | RuntimeError::Config { .. })
    }
}

/// The one section that every call needs. A mistake elsewhere in the file is reported only to
/// containers that request something.
#[derive(Default, Deserialize)]
struct RuntimeOnly {
    #[serde(default)]
    runtime: onload_core::config::Runtime,
}

/// Runs the program. Returns only if it could not execute the runtime.
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
                // crun decides what it is from the name under which it is called.
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
    let log = log_file::settings(Path::new(CONFIG_PATH));
    log_lines(&invocation, &log, [line]);
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
    remembered: Option<StoredRecord>,
}

impl Prepared {
    /// Removes what was prepared: nobody will start the container.
    fn undo(&self) {
        self.edited.undo();
        if let Some(remembered) = &self.remembered {
            remembered.undo();
        }
    }
}

/// Edits the configuration if the verb calls for it, and finds the runtime to execute.
fn prepare(invocation: &Invocation) -> Result<Prepared, RuntimeError> {
    let host = ThisHost::new()?;
    let named = |id: &OsString| id.to_str()?.parse::<ContainerId>().ok();
    let id = invocation.container.as_ref().and_then(named);
    let container = id.as_ref().map(|id| ContainerKey {
        id,
        root: invocation.root.as_deref(),
    });
    if !invocation.makes_container {
        return Ok(Prepared {
            runtime: runtime_of_existing(invocation, container, &host)?,
            edited: Edited::default(),
            remembered: None,
        });
    }
    let (runtime, configured) = match configured(&host) {
        Ok((runtime, is_named)) => (runtime, Some(is_named)),
        Err(error) => {
            let runtime = runtime_without_settings(invocation, id.as_ref(), error, &host)?;
            (runtime, None)
        }
    };
    let mut edited = Edited::default();
    match &invocation.create {
        Some(create) if configured.is_some() => {
            let id = id.as_ref();
            let entry_point = EntryPoint {
                stage: Stage::Runtime,
                bundle: &create.bundle,
                root: invocation.root.as_deref().map(Path::new),
            };
            edited = edit(create, id, entry_point, &host)
                .map_err(|error| RuntimeError::of_entry(id, error))?;
            tell(invocation, id, &edited.report);
        }
        Some(_) => {}
        None => edited.guards_exec = was_guarded(container, &host),
    }
    let remembered = remember(container, &runtime, &edited, &host)?;
    if let (Some(stored), Some(is_named)) = (&remembered, configured) {
        stored.remember_configured(is_named);
    }
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
    log_lines(invocation, &report.log, Line::of(report, &subject));
}

fn warn(invocation: &Invocation, host: &ThisHost, warning: &dyn std::fmt::Display) {
    let warnings = vec![warning.to_string()];
    tell(invocation, None, &Report::of_warnings(warnings, host.log()));
}

/// Writes lines to the operator's log; the container starts without them too.
fn log_lines(invocation: &Invocation, log: &Log, lines: impl IntoIterator<Item = Line>) {
    if let Err(error) = log_file::write(log, PROGRAM, lines) {
        let message = prefixed(&Chain(&error).to_string());
        log::write(&invocation.log, Level::Warning, &message);
    }
}

/// Whether the later processes of a restored container are checked: as before its checkpoint if
/// there is a record, and otherwise as the policy says.
fn was_guarded(container: Option<ContainerKey<'_>>, host: &ThisHost) -> bool {
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

/// Records the runtime. Without root there is no directory for records, and none is written; nor is
/// one written if that fails and the container does not depend on it.
fn remember(
    container: Option<ContainerKey<'_>>,
    runtime: &Path,
    edited: &Edited,
    host: &ThisHost,
) -> Result<Option<StoredRecord>, RuntimeError> {
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

/// The runtime for a verb that creates no container: the one that created the container, if there
/// is a record and it is trusted. This does not depend on the configuration.
fn runtime_of_existing(
    invocation: &Invocation,
    container: Option<ContainerKey<'_>>,
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
        return runtime_without_record(invocation, container, host);
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
    match check_runtime(host, &record.runtime) {
        Ok(runtime) => Ok(runtime),
        Err(error) => {
            warn(
                invocation,
                host,
                &format_args!("{}, although it created the container", Chain(&error)),
            );
            runtime_without_record(invocation, container, host)
        }
    }
}

/// The runtime if there is no record: the one that the configuration names, even a broken one, or
/// else the one whose kind of state the container has.
fn runtime_without_record(
    invocation: &Invocation,
    container: Option<ContainerKey<'_>>,
    host: &ThisHost,
) -> Result<PathBuf, RuntimeError> {
    let error = match configured(host) {
        Ok((runtime, _)) => return Ok(runtime),
        Err(error) => error,
    };
    if matches!(error, RuntimeError::NoRuntime { .. }) {
        return Err(error);
    }
    let named = named_by_broken(host);
    if let Some(runtime) = named.and_then(|named| named_or_installed(host, &named).ok()) {
        return Ok(runtime);
    }
    let kind = container.map_or(StateOwner::None, ContainerKey::state_owner);
    let usual = match kind {
        StateOwner::Runc => first_installed(host, Some("runc")),
        StateOwner::Crun => first_installed(host, Some("crun")),
        StateOwner::None => first_installed(host, None),
        // Another runtime would not find the container, and `delete --force` would report that it
        // is gone.
        StateOwner::Other | StateOwner::Unknown => return Err(error),
    };
    let Ok(runtime) = usual else {
        return Err(error);
    };
    warn(
        invocation,
        host,
        &format_args!("{}; continuing with {}", Chain(&error), runtime.display()),
    );
    Ok(runtime)
}

/// The runtime for a new container while the configuration cannot be used: the one that the broken file still
/// names, and no other then, or else the one that is remembered. Never the first of the fixed list, since the
/// operator may have named one that confines containers more. A container that requests something is refused:
/// what it may have is unknown.
fn runtime_without_settings(
    invocation: &Invocation,
    id: Option<&ContainerId>,
    error: RuntimeError,
    host: &ThisHost,
) -> Result<PathBuf, RuntimeError> {
    let Some(create) = invocation
        .create
        .as_ref()
        .filter(|_| error.is_of_settings())
    else {
        return Err(error);
    };
    if requests(create).map_err(|error| RuntimeError::of_entry(id, error))? {
        return Err(error);
    }
    let named = named_by_broken(host).filter(|named| !named.as_os_str().is_empty());
    let found = named.or_else(|| made_by::configured(host.trusted()));
    let Some(runtime) = found.and_then(|found| check_runtime(host, &found).ok()) else {
        return Err(error);
    };
    warn(
        invocation,
        host,
        &format_args!(
            "{}; the container requests nothing, so it starts with {}",
            Chain(&error),
            runtime.display()
        ),
    );
    Ok(runtime)
}

/// Whether a container requests something.
fn requests(create: &Create) -> Result<bool, EntryError> {
    let Some(file) = open(create)? else {
        return Ok(false);
    };
    Ok(edit::request(&file)?.is_some())
}

/// The runtime that a trusted but broken configuration names, as [`configured_runtime`] says.
fn named_by_broken(host: &ThisHost) -> Option<PathBuf> {
    let text = host.config_bytes().ok()??;
    configured_runtime(&String::from_utf8_lossy(&text))
}

/// Opens the configuration of a bundle; `None` if there is none, which the runtime itself reports. If it
/// could open the configuration after all, the container must not start without what it requests.
fn open(create: &Create) -> Result<Option<ConfigFile>, EntryError> {
    match ConfigFile::open(&create.bundle, create.config.as_deref()) {
        Err(crate::config_json::bundle::BundleError::Read { source: error, .. })
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        opened => Ok(Some(opened?)),
    }
}

fn edit(
    create: &Create,
    id: Option<&ContainerId>,
    entry_point: EntryPoint<'_>,
    host: &ThisHost,
) -> Result<Edited, EntryError> {
    let Some(file) = open(create)? else {
        return Ok(Edited::default());
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

/// The runtime of the configuration, and whether that names it.
fn configured(host: &ThisHost) -> Result<(PathBuf, bool), RuntimeError> {
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
    let is_named = !named.as_os_str().is_empty();
    Ok((named_or_installed(host, &named)?, is_named))
}

fn named_or_installed(host: &ThisHost, named: &Path) -> Result<PathBuf, RuntimeError> {
    if named.as_os_str().is_empty() {
        return first_installed(host, None);
    }
    check_runtime(host, named)
}

/// The first existing runtime of the fixed list, with that name if one is given.
fn first_installed(host: &ThisHost, name: Option<&str>) -> Result<PathBuf, RuntimeError> {
    let is_wanted = |path: &&&str| name.is_none_or(|name| path.rsplit('/').next() == Some(name));
    for path in RUNTIMES.iter().filter(is_wanted) {
        match check_runtime(host, Path::new(path)) {
            Err(RuntimeError::Trust(error)) if error.is_absent() => {}
            found => return found,
        }
    }
    Err(RuntimeError::NoRuntime {
        config: host.config_path().display().to_string(),
    })
}

/// The runtime named by a configuration that may be invalid elsewhere: an empty path if it names
/// none, `None` if that is unclear.
#[must_use]
pub fn configured_runtime(text: &str) -> Option<PathBuf> {
    match toml::from_str::<RuntimeOnly>(text) {
        Ok(parsed) => Some(parsed.runtime.path),
        Err(_) => salvage(text),
    }
}

/// The runtime that a broken configuration still names, for verbs that act on existing containers:
/// it must be possible to stop and delete them whatever somebody did to the file. `None` if that is
/// unclear, since a runtime other than the container's would not find it, and `delete --force`
/// would report that it is gone.
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

fn check_runtime(host: &ThisHost, path: &Path) -> Result<PathBuf, RuntimeError> {
    let identity = host.trusted().check(path)?;
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
