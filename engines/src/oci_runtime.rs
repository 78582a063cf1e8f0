//! The OCI runtime behind ours, and the default runtime of an engine that ours takes the place of.

use std::path::{Path, PathBuf};

use onload_core::onload::RUNTIMES;
use onload_host::host::{Host, HostError};

/// Runtimes that have runc's command line and that the wrapper was tried with.
pub const KNOWN: [&str; 4] = ["runc", "crun", "youki", "nvidia-container-runtime"];

/// A default runtime that an engine's files name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultRuntime {
    pub name: String,
    /// The program, by its path or its bare name; `None` if the engine does not start it as it starts runc.
    pub program: Option<PathBuf>,
}

impl DefaultRuntime {
    pub fn is_known(&self) -> bool {
        let name = self.program.as_deref().and_then(Path::file_name);
        name.is_some_and(|name| KNOWN.iter().any(|known| name == *known))
    }

    /// Whether a runtime is this one. A bare name is searched for in the engine's own `PATH`.
    pub fn is_at(&self, host: &Host, runtime: &Path) -> Result<bool, HostError> {
        let Some(program) = &self.program else { return Ok(false) };
        if !program.is_absolute() {
            return Ok(program.file_name() == runtime.file_name());
        }
        let resolved = host.resolve(program)?;
        Ok(program == runtime || resolved.is_some() && resolved == host.resolve(runtime)?)
    }
}

/// Finds the OCI runtime that the wrapper starts: the one that `[runtime]` names, or the first of [`RUNTIMES`] that exists
/// if that is empty.
pub fn find_runtime_behind(host: &Host, named: &Path) -> Result<Option<PathBuf>, HostError> {
    let candidates =
        if named.as_os_str().is_empty() { RUNTIMES.map(Path::new).to_vec() } else { vec![named] };
    for path in candidates {
        if host.entry(path)?.is_some() {
            return Ok(Some(path.to_owned()));
        }
    }
    Ok(None)
}
