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
use crate::door::{self, DoorError};
use crate::filter::Container;
use crate::host::{HostError, ThisHost};
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
        Ok(path) => {
            match argv.first_mut() {
                // crun chooses what it is by the name that it is called by.
                Some(name) => *name = path.clone().into_os_string(),
                None => argv.push(path.clone().into_os_string()),
            }
            let error = exec::become_program(&path, &argv);
            RuntimeError::Exec { path, error }
        }
        Err(error) => error,
    };
    let message = format!("onload-container-runtime: {error}");
    log::write(&invocation.log, Level::Error, &message);
    FAILURE
}

/// Edits the configuration where the verb asks for it; the result is the runtime to become.
fn prepare(invocation: &Invocation) -> Result<PathBuf, RuntimeError> {
    let host = ThisHost::new()?;
    let path = find(&host)?;
    if let Some(create) = &invocation.create {
        let id = create
            .id
            .as_ref()
            .and_then(|id| id.to_str()?.parse::<ContainerId>().ok());
        let warnings = edit(create, id.as_ref(), &host).map_err(|error| RuntimeError::Door {
            id: id
                .as_ref()
                .map_or_else(|| "without a name".to_owned(), ToString::to_string),
            error: Box::new(error),
        })?;
        for warning in warnings {
            let message = format!("onload-container-runtime: {warning}");
            log::write(&invocation.log, Level::Warning, &message);
        }
    }
    Ok(path)
}

fn edit(
    create: &Create,
    id: Option<&ContainerId>,
    host: &ThisHost,
) -> Result<Vec<String>, DoorError> {
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
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    door::edit(
        &file,
        Container {
            bundle: &create.bundle,
            id,
        },
        host,
    )
}

fn find(host: &ThisHost) -> Result<PathBuf, RuntimeError> {
    let named = match host.config_text()? {
        None => PathBuf::new(),
        Some(text) => {
            let parsed: RuntimeOnly =
                toml::from_str(&text).map_err(|error| RuntimeError::Config {
                    path: host.config_path().to_owned(),
                    message: error.message().to_owned(),
                })?;
            parsed.runtime.path
        }
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
