//! `onload-container-runtime`: edits `config.json` on `create` and `run`, then becomes the OCI
//! runtime behind it.

pub mod args;
pub mod exec;
pub mod log;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::stat;
use serde::Deserialize;

use crate::bundle::ConfigFile;
use crate::door::{self, DoorError, Edited};
use crate::filter::Container;
use crate::host::{HostError, ThisHost};
use crate::maker::{Door, Stage};
use crate::poststop::{self, RUN_DIR};
use crate::process::FAILURE;
use crate::runtime::args::{Create, Invocation};
use crate::runtime::log::Level;
use crate::state::ContainerId;
use crate::trusted::TrustError;

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
    #[error("the OCI runtime: {0}")]
    Trust(#[from] TrustError),
    #[error("{path:?}: {message}")]
    Config { path: PathBuf, message: String },
    #[error("none of {} exists; install runc or crun, or name one under [runtime] in {config}", RUNTIMES.join(", "))]
    NoRuntime { config: String },
    #[error("the OCI runtime {0:?} is this program itself; name runc or crun under [runtime]")]
    Itself(PathBuf),
    #[error("container {id}: {error}")]
    Door { id: String, error: Box<DoorError> },
    #[error("executing {path:?}: {error}")]
    Exec {
        path: PathBuf,
        error: std::io::Error,
    },
}

/// The one section that every call needs; a mistake elsewhere in the file is told to those who ask
/// for something.
#[derive(Default, Deserialize)]
struct RuntimeOnly {
    #[serde(default)]
    runtime: crate::config::Runtime,
}

/// Runs the program; returns only where it did not become the runtime.
#[must_use]
pub fn main() -> i32 {
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    let invocation = args::parse(argv.get(1..).unwrap_or_default());
    let error = match prepare(&invocation) {
        Ok((path, edited)) => {
            match argv.first_mut() {
                // crun chooses what it is by the name that it is called by.
                Some(name) => *name = path.clone().into_os_string(),
                None => argv.push(path.clone().into_os_string()),
            }
            let error = exec::become_program(&path, &argv);
            edited.undo();
            RuntimeError::Exec { path, error }
        }
        Err(error) => error,
    };
    let message = format!("onload-container-runtime: {error}");
    log::write(&invocation.log, Level::Error, &message);
    FAILURE
}

/// Edits the configuration where the verb asks for it; the result is the runtime to become.
fn prepare(invocation: &Invocation) -> Result<(PathBuf, Edited), RuntimeError> {
    let host = ThisHost::new()?;
    let path = find(&host, invocation.makes_container)?;
    let named = |id: &OsString| id.to_str()?.parse::<ContainerId>().ok();
    if let Some(id) = invocation.delete.as_ref().and_then(named) {
        let run = Path::new(RUN_DIR);
        if poststop::forget_list(run, &id) {
            poststop::sweep(run, Some(&id));
        }
    }
    let mut edited = Edited::default();
    if let Some(create) = &invocation.create {
        let id = create.id.as_ref().and_then(named);
        let door = Door {
            stage: Stage::Runtime,
            bundle: &create.bundle,
            root: invocation.root.as_deref().map(Path::new),
        };
        edited = edit(create, id.as_ref(), door, &host).map_err(|error| RuntimeError::Door {
            id: id
                .as_ref()
                .map_or_else(|| "without a name".to_owned(), ToString::to_string),
            error: Box::new(error),
        })?;
        for warning in &edited.warnings {
            let message = format!("onload-container-runtime: {warning}");
            log::write(&invocation.log, Level::Warning, &message);
        }
    }
    Ok((path, edited))
}

fn edit(
    create: &Create,
    id: Option<&ContainerId>,
    door: Door<'_>,
    host: &ThisHost,
) -> Result<Edited, DoorError> {
    let file = match ConfigFile::open(&create.bundle, create.config.as_deref()) {
        Ok(file) => file,
        // The runtime tells its own story of a bundle without a configuration. What it could still
        // open itself must not start without what it asks for.
        Err(crate::bundle::BundleError::Read { error, .. })
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Edited::default());
        }
        Err(error) => return Err(error.into()),
    };
    door::edit(
        &file,
        Container {
            bundle: &create.bundle,
            id,
        },
        door,
        host,
    )
}

fn find(host: &ThisHost, makes_container: bool) -> Result<PathBuf, RuntimeError> {
    let named =
        match host.config_text()? {
            None => PathBuf::new(),
            Some(text) => match toml::from_str::<RuntimeOnly>(&text) {
                Ok(parsed) => parsed.runtime.path,
                Err(error) => salvage(&text).filter(|_| !makes_container).ok_or_else(|| {
                    RuntimeError::Config {
                        path: host.config_path().to_owned(),
                        message: error.message().to_owned(),
                    }
                })?,
            },
        };
    if !named.as_os_str().is_empty() {
        return judge(host, &named);
    }
    for path in RUNTIMES {
        match judge(host, Path::new(path)) {
            Err(RuntimeError::Trust(error)) if error.is_absent() => {}
            found => return found,
        }
    }
    Err(RuntimeError::NoRuntime {
        config: host.config_path().display().to_string(),
    })
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
    let found: crate::config::Runtime = toml::from_str(&section.join("\n")).ok()?;
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
            "[runtime]\npaht = \"/x\"\n",
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
