//! `onload-container-runtime`: edits `config.json` on `create` and `run`, then executes the OCI
//! runtime.

pub mod args;
pub(crate) mod exec;
pub(crate) mod log;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use memchr::memmem;
use onload_cdi::HookName;
use onload_cdi::oci::OciConfig;
use onload_core::config::{self, CONFIG_PATH, LogConfig, LogLevel, RootWithOnload};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::{HookArguments, PROGRAM as HOOK};
use onload_core::onload::RUNTIMES;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::error::{Context, Error, Result, bail};
use onload_sys::fs::trust::TrustError;
use rustix::fs::stat;
use serde::Deserialize;

use crate::config::config_file::OciConfigFile;
use crate::config::decision_input;
use crate::config::filter::FilterOutcome;
use crate::config::scan::ScanScope;
use crate::decide::host_view::{HostView, LocalHost};
use crate::decide::report::ContainerReport;
use crate::decide::subject::{CONFIG_JSON, ContainerRef};
use crate::entry::config_edit;
use crate::entry::log_file::{self, LogLine};
use crate::entry::program::FAILURE;
use crate::entry::wrapper::args::{CreateArguments, Invocation};
use crate::record::runtime_record::{ContainerKey, RuntimeRecord, StateOwner, StoredRecord};
use crate::record::{runtime_record, sweep};

const PROGRAM: &str = "onload-container-runtime";

/// The only section that every call needs. An error elsewhere in the file is reported only to
/// containers that request something.
#[derive(Default, Deserialize)]
struct RuntimeOnly {
    #[serde(default)]
    runtime: config::RuntimeConfig,
}

/// Runs the wrapper. Returns only if it could not execute the runtime.
#[must_use]
pub fn main(mut argv: Vec<OsString>) -> i32 {
    let invocation = args::parse(argv.get(1..).unwrap_or_default());
    let message = match prepare(&invocation) {
        Ok(prepared) => {
            let path = prepared.runtime.clone();
            match argv.first_mut() {
                // crun's behavior depends on the name under which it is called.
                Some(name) => *name = path.clone().into_os_string(),
                None => argv.push(path.clone().into_os_string()),
            }
            let error = exec::exec_program(&path, &argv);
            prepared.undo();
            format!("executing {path:?}: {error}")
        }
        Err(error) => format!("{error:#}"),
    };
    let line = (LogLevel::Error, message.clone());
    let log = log_file::read_log_config(Path::new(CONFIG_PATH));
    log_lines(&invocation, &log, [line]);
    log::write(&invocation.log, LogLevel::Error, &with_prefix(&message));
    FAILURE
}

fn with_prefix(message: &str) -> String {
    format!("{PROGRAM}: {message}")
}

struct PreparedContainer {
    runtime: PathBuf,
    edited: FilterOutcome,
    remembered: Option<StoredRecord>,
}

impl PreparedContainer {
    /// Removes what was prepared, since the container will not start.
    fn undo(&self) {
        config_edit::undo(&self.edited);
        if let Some(remembered) = &self.remembered {
            remembered.undo();
        }
    }
}

fn prepare(invocation: &Invocation) -> Result<PreparedContainer> {
    let host = LocalHost::new()?;
    let parsed_id: Option<ContainerId> =
        invocation.container.as_ref().and_then(|id| id.to_str()?.parse().ok());
    let id = parsed_id.as_ref();
    let container = id.map(|id| ContainerKey { id, root: invocation.root.as_deref() });
    if !invocation.makes_container {
        return Ok(PreparedContainer {
            runtime: find_runtime(invocation, container, &host)?,
            edited: FilterOutcome::default(),
            remembered: None,
        });
    }
    let (runtime, named) = match read_named_runtime(&host) {
        Ok(named) => (resolve_runtime(&host, &named)?, Some(named)),
        Err(error) => {
            let runtime = runtime_without_settings(invocation, id, error, &host)?;
            (runtime, None)
        }
    };
    let mut edited = FilterOutcome::default();
    match &invocation.create {
        Some(create) if named.is_some() => {
            edited = edit(create, id, invocation, &host).with_context(|| describe_container(id))?;
            report_all(invocation, id, &edited.report);
        }
        Some(_) => {}
        None => {
            check_restore(invocation, &runtime, &host).with_context(|| describe_container(id))?;
            edited.guards_exec = was_exec_guarded(container, &host);
        }
    }
    let remembered = record_runtime(container, &runtime, &edited, &host)?;
    if let (Some(stored), Some(named)) = (&remembered, named) {
        stored.remember_configured(!named.as_os_str().is_empty());
    }
    Ok(PreparedContainer { runtime, edited, remembered })
}

fn describe_container(id: Option<&ContainerId>) -> String {
    match id {
        Some(id) => format!("container {id}"),
        None => "container without a name".to_owned(),
    }
}

/// Prints the warnings of a report, and logs all of it.
fn report_all(invocation: &Invocation, id: Option<&ContainerId>, report: &ContainerReport) {
    for warning in &report.warnings {
        log::write(&invocation.log, LogLevel::Warning, &with_prefix(warning));
    }
    let subject = id.map_or_else(String::new, |id| format!("container {id}: "));
    log_lines(invocation, &report.log, log_file::report_lines(report, &subject));
}

fn warn(invocation: &Invocation, host: &LocalHost, warning: String) {
    let report = ContainerReport::from_warnings(vec![warning], host.log());
    report_all(invocation, None, &report);
}

/// Writes lines to the operator's log. If this fails, the container starts all the same.
fn log_lines(invocation: &Invocation, log: &LogConfig, lines: impl IntoIterator<Item = LogLine>) {
    if let Err(error) = log_file::write(log, PROGRAM, lines) {
        let message = with_prefix(&format!("{error:#}"));
        log::write(&invocation.log, LogLevel::Warning, &message);
    }
}

/// Rejects restoring a container with a runtime that does not call createRuntime hooks on restore,
/// if these hooks check devices or lease them. runc calls them (`criuNotifications`), crun does not
/// (`libcrun_container_restore`).
fn check_restore(invocation: &Invocation, runtime: &Path, host: &LocalHost) -> Result<()> {
    let resolved = host.trusted().resolve(runtime);
    if let Some(name) = resolved.as_deref().unwrap_or(runtime).file_name()
        && name.to_string_lossy().contains("runc")
    {
        return Ok(());
    }
    let bundle = invocation.restored.as_deref().unwrap_or(Path::new(""));
    let Some(file) = OciConfigFile::find(bundle, None)? else {
        return Ok(());
    };
    let kept = file.scan(ScanScope::Annotations)?.kept;
    if memmem::find(&kept, HOOK.as_bytes()).is_none() {
        return Ok(());
    }
    let config = OciConfig::parse_text(decision_input::into_text(kept)?).context(CONFIG_JSON)?;
    let hooks = config.hooks(HookName::CreateRuntime).context(CONFIG_JSON)?;
    if hooks.iter().filter_map(|hook| hook.args.as_ref()).any(|args| {
        // Arguments that this version does not understand may be checks.
        args.first().is_some_and(|program| program == HOOK)
            && HookArguments::from_command(args)
                .is_none_or(|(_, arguments)| arguments.affects_devices())
    }) {
        bail!(
            "restoring it: {runtime:?} does not call the hooks that check and lease its devices; \
             start the container again, or use runc"
        );
    }
    Ok(())
}

/// Returns whether later processes of a restored container are checked: as before its checkpoint if
/// there is a record, else according to the policy.
fn was_exec_guarded(container: Option<ContainerKey<'_>>, host: &LocalHost) -> bool {
    if let Some(Ok(Some(stored))) = container.map(|key| runtime_record::read(host.trusted(), key)) {
        return stored.record.is_guarded;
    }
    host.is_initial_namespace()
        && host.settings().is_ok_and(|settings| {
            settings.config.annotations.root_with_onload == RootWithOnload::Refuse
        })
}

/// Records the runtime. Writes no record without root, since there is no directory for records, or
/// if writing fails and the container does not depend on it.
fn record_runtime(
    container: Option<ContainerKey<'_>>,
    runtime: &Path,
    edited: &FilterOutcome,
    host: &LocalHost,
) -> Result<Option<StoredRecord>> {
    let record = RuntimeRecord { runtime: runtime.to_owned(), is_guarded: edited.guards_exec };
    let written = match container {
        Some(container) if host.is_initial_namespace() => {
            runtime_record::write(host.trusted(), container, record)
        }
        _ => Err(Error::new("the engine is not rootful on the host")),
    };
    match written {
        Err(error) if edited.guards_exec => {
            config_edit::undo(edited);
            bail!(
                "recording in {RUN_DIR} that later processes of the container must not have CAP_SETUID: {error:#}; root-with-onload = \"refuse\" needs that record"
            )
        }
        written => Ok(written.ok().flatten()),
    }
}

/// Returns the runtime for a verb that creates no container: the one that created the container, if
/// there is a trusted record. This does not depend on the configuration.
fn find_runtime(
    invocation: &Invocation,
    container: Option<ContainerKey<'_>>,
    host: &LocalHost,
) -> Result<PathBuf> {
    if let Some(container) = container.filter(|_| invocation.is_delete) {
        let run = Path::new(RUN_DIR);
        if sweep::remove_preload_list(run, container.id) {
            sweep::remove_stale(run, Some(container.id));
        }
    }
    let stored = match container.map_or(Ok(None), |key| runtime_record::read(host.trusted(), key)) {
        Ok(Some(stored)) => stored,
        unknown => return runtime_without_record(invocation, container, host, unknown.err()),
    };
    let record = &stored.record;
    if record.is_guarded
        && let Some(process) = &invocation.process
    {
        config_edit::drop_setuid(process)
            .with_context(|| describe_container(container.map(|key| key.id)))?;
    }
    if invocation.is_delete {
        stored.forget();
    }
    check_runtime(host, &record.runtime).or_else(|error| {
        let warning = format!("{error:#}, although it created the container");
        warn(invocation, host, warning);
        runtime_without_record(invocation, container, host, None)
    })
}

/// Returns the runtime if there is no record: the one that the configuration names, even if the
/// file is broken, or else the one whose kind of state the container has. If the record is
/// unreadable, a default is not used: another runtime may have created the container.
fn runtime_without_record(
    invocation: &Invocation,
    container: Option<ContainerKey<'_>>,
    host: &LocalHost,
    unreadable: Option<Error>,
) -> Result<PathBuf> {
    let may_default = unreadable.is_none();
    let configured = read_named_runtime(host).and_then(|named| match unreadable {
        Some(error) if named.as_os_str().is_empty() => Err(error),
        _ => resolve_runtime(host, &named),
    });
    let Err(error) = configured else {
        return configured;
    };
    if let Some(named) = salvage_configured(host)
        && (may_default || !named.as_os_str().is_empty())
        && let Ok(runtime) = resolve_runtime(host, &named)
    {
        return Ok(runtime);
    }
    let installed = match container.map_or(StateOwner::None, ContainerKey::state_owner) {
        StateOwner::Runc => find_installed(host, Some("runc")),
        StateOwner::Crun => find_installed(host, Some("crun")),
        StateOwner::None => find_installed(host, None),
        // A runtime other than the container's would not find it, and `delete --force` would report success.
        StateOwner::Other | StateOwner::Unknown => return Err(error),
    };
    let Ok(runtime) = installed else {
        return Err(error);
    };
    let warning = format!("{error:#}; continuing with {}", runtime.display());
    warn(invocation, host, warning);
    Ok(runtime)
}

/// Returns the runtime for a new container while the configuration is invalid: the one that the
/// broken file still names, or if it names none, the last valid one that was recorded. Never uses
/// the first of [`RUNTIMES`], since the operator may have chosen a runtime that confines containers
/// more. Rejects a container that requests something, since the policy is unknown.
fn runtime_without_settings(
    invocation: &Invocation,
    id: Option<&ContainerId>,
    error: Error,
    host: &LocalHost,
) -> Result<PathBuf> {
    let Some(create) = &invocation.create else {
        return Err(error);
    };
    if has_request(create).with_context(|| describe_container(id))? {
        return Err(error);
    }
    let Some(runtime) = salvage_configured(host)
        .filter(|named| !named.as_os_str().is_empty())
        .or_else(|| runtime_record::read_configured(host.trusted()))
        .and_then(|named| check_runtime(host, &named).ok())
    else {
        return Err(error);
    };
    let warning = format!(
        "{error:#}; the container requests nothing, so it starts with {}",
        runtime.display()
    );
    warn(invocation, host, warning);
    Ok(runtime)
}

fn has_request(create: &CreateArguments) -> Result<bool> {
    match open(create)? {
        None => Ok(false),
        Some(file) => Ok(config_edit::read_request(&file)?.is_some()),
    }
}

fn salvage_configured(host: &LocalHost) -> Option<PathBuf> {
    let text = host.config_bytes().ok()??;
    configured_runtime(&String::from_utf8_lossy(&text))
}

/// Opens the configuration of a bundle. Returns `None` only if there is none, which the runtime
/// itself reports: if the runtime could open it after all, the container would start without what
/// it requests.
fn open(create: &CreateArguments) -> Result<Option<OciConfigFile>> {
    OciConfigFile::find(&create.bundle, create.config.as_deref())
}

fn edit(
    create: &CreateArguments,
    id: Option<&ContainerId>,
    invocation: &Invocation,
    host: &LocalHost,
) -> Result<FilterOutcome> {
    let Some(file) = open(create)? else {
        return Ok(FilterOutcome::default());
    };
    let container = ContainerRef { bundle: &create.bundle, id, sees_exec: true };
    let root = invocation.root.as_deref().map(Path::new);
    config_edit::edit(&file, container, root, host)
}

/// Returns the runtime that the configuration names, or an empty path if it names none. Fails if
/// the configuration is invalid, not if the runtime is.
fn read_named_runtime(host: &LocalHost) -> Result<PathBuf> {
    let Some(text) = host.config_text()? else {
        return Ok(PathBuf::new());
    };
    let parsed = toml::from_str::<RuntimeOnly>(&text)
        .map_err(|error| config::describe_toml_error(&text, &error))
        .with_context(|| format!("{:?}", host.config_path()))?;
    Ok(parsed.runtime.path)
}

fn resolve_runtime(host: &LocalHost, named: &Path) -> Result<PathBuf> {
    if named.as_os_str().is_empty() {
        return find_installed(host, None);
    }
    check_runtime(host, named)
}

/// Finds the first of [`RUNTIMES`] that exists, optionally only those with this file name.
fn find_installed(host: &LocalHost, name: Option<&str>) -> Result<PathBuf> {
    for path in RUNTIMES {
        if name.is_some_and(|name| path.rsplit('/').next() != Some(name)) {
            continue;
        }
        match host.trusted().check(Path::new(path)) {
            Err(error) if error.is_absent() => {}
            checked => return check_not_self(Path::new(path), checked),
        }
    }
    bail!(
        "none of {} exists; install runc or crun, or name one under [runtime] in {}",
        RUNTIMES.join(", "),
        host.config_path().display()
    )
}

/// Returns the runtime that a configuration names, even if the rest of it is invalid. Returns an
/// empty path if it names none, and `None` if that is unclear.
#[must_use]
pub fn configured_runtime(text: &str) -> Option<PathBuf> {
    match toml::from_str::<RuntimeOnly>(text) {
        Ok(parsed) => Some(parsed.runtime.path),
        Err(_) => salvage_runtime(text),
    }
}

/// Returns the runtime that a broken configuration still names, so that existing containers can
/// always be stopped and deleted. Returns `None` if that is unclear, since another runtime than the
/// container's would not find it, and `delete --force` would report that it is gone.
fn salvage_runtime(text: &str) -> Option<PathBuf> {
    // The lines without comments, which neither keys nor headers contain.
    let lines: Vec<&str> =
        text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).collect();
    let mut named = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.trim_start_matches(['[', '"', '\'', ' ']).starts_with("runtime"));
    let header = match (named.next(), named.next()) {
        (None, _) => return Some(PathBuf::new()),
        (Some((index, &"[runtime]")), None) => index,
        _ => return None,
    };
    let section: Vec<&str> = text
        .lines()
        .zip(lines)
        .skip(header + 1)
        .take_while(|(_, line)| !line.starts_with('['))
        .map(|(whole_line, _)| whole_line)
        .collect();
    let config: config::RuntimeConfig = toml::from_str(&section.join("\n")).ok()?;
    Some(config.path)
}

fn check_runtime(host: &LocalHost, path: &Path) -> Result<PathBuf> {
    check_not_self(path, host.trusted().check(path))
}

/// Rejects this program itself as the runtime, by device and inode.
fn check_not_self(path: &Path, checked: Result<(u64, u64), TrustError>) -> Result<PathBuf> {
    let identity = checked.context("the OCI runtime")?;
    let own = stat("/proc/self/exe").map(|stat| (stat.st_dev, stat.st_ino));
    if own == Ok(identity) {
        bail!("the OCI runtime {path:?} is this program itself; name runc or crun under [runtime]");
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
            assert_eq!(salvage_runtime(text), Some(path.into()), "{text}");
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
            assert_eq!(salvage_runtime(text), None, "{text}");
        }
    }
}
