//! Why an engine's file is not changed.

use std::path::{Path, PathBuf};

use super::file::Other;
use super::json::JsonError;
use super::ours::{RUNTIME_NAME, RUNTIME_PATH};

/// containerd's key for its default runtime.
const DEFAULT: &str = "default_runtime_name";

/// Why a file is left as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    /// The JSON is not understood.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The TOML is not understood.
    #[error("{0}")]
    Toml(String),
    /// An edit would change more than it should.
    #[error("its line ends or marks would not stay as they are; use plain line feeds in it")]
    NotKept,
    /// A setting has another form than the engine gives it.
    #[error("{key} is no {expected}; mend it, or write it as a section of its own")]
    Form { key: String, expected: &'static str },
    /// A key differs from one that we set in nothing but case.
    #[error("it has a key {0:?}, which the engine does not know in that spelling; mend it")]
    Spelling(String),
    /// There is no NRI to turn on.
    #[error(
        "it has no setting of NRI; leave --nri out (k3s and RKE2 have NRI on, and dockerd's daemon.json is yours to edit)"
    )]
    NoNri,
    /// containerd does not load its plugin for NRI, whatever that is told.
    #[error("disabled_plugins turns NRI off; take {0:?} out of it")]
    NriDisabled(&'static str),
    /// Our name is in use.
    #[error(
        "a runtime {RUNTIME_NAME} is registered already, and not as {RUNTIME_PATH} but as {found}; rename or remove it"
    )]
    Taken { found: String },
    /// containerd's CRI plugin is off, as in the file that Docker packages.
    #[error(
        "disabled_plugins turns the CRI plugin off, so no runtime of it can be used; take {0:?} out of it for Kubernetes; for ctr alone only write allow = [\"CLASS\"] under [annotations] in /etc/onload-ctk/config.toml"
    )]
    Disabled(String),
    /// The file is of containerd's first format.
    #[error(
        "it is of format version 1, whose sections have other names; write it in version 2 (containerd 2 prints it with \"containerd config migrate\")"
    )]
    OldFormat,
    /// The file is of a format that we do not know.
    #[error("it is of format version {0}, which is not known here")]
    NewFormat(i64),
    /// Another file decides over the same settings.
    #[error("{} decides over the same settings, and one of the two would replace the other; {advice}", .path.display())]
    Decided { path: PathBuf, advice: String },
    /// Another file is not understood.
    #[error("{} beside it", .path.display())]
    Other {
        path: PathBuf,
        source: Box<EngineError>,
    },
    /// The engine has no such setting, or not in this file.
    #[error("--set-default: {0}")]
    NoDefault(&'static str),
    /// containerd's plugin would not load.
    #[error(
        "{DEFAULT} is {0:?}, and no runtime of that name is registered, so the CRI plugin would not load; register it, or take {DEFAULT} out"
    )]
    NoDefaultRuntime(String),
    /// Somebody set another default runtime in a file of ours.
    #[error(
        "it sets another default runtime, {found}; take that out of it, or leave --set-default out"
    )]
    DefaultTaken { found: String },
    /// The engine writes the file anew at each start.
    #[error("it is written anew whenever the engine starts; name {instead} beside it")]
    Generated { instead: &'static str },
    /// The file that would import a drop-in is not there.
    #[error("{} is not there, so nothing reads a drop-in; start containerd (or k3s) once, or name another file", .main.display())]
    NoMain {
        /// The file that is missing.
        main: PathBuf,
    },
    /// The file beside a drop-in does not import it.
    #[error("its \"imports\" does not name the drop-in, so nothing would read that; add it there, or name {} with --file", .instead.display())]
    NotImported { instead: PathBuf },
    /// Who reads the file beside a drop-in may not merge the two.
    #[error("it is of format version 2, so containerd 1 may read it, to which a drop-in replaces the whole CRI plugin; name {} with --file", .instead.display())]
    NoMerge { instead: PathBuf },
    /// A file of Nomad is there already, and is none that we made.
    #[error(
        "it is not a file of ours, and Nomad takes the config of a plugin from one file; add allow_runtimes = [\"runc\", \"{RUNTIME_NAME}\"] to the docker plugin's config yourself, or name a file that is not there"
    )]
    Foreign,
    /// A drop-in of ours was changed so that our part cannot be told from the rest.
    #[error("somebody changed it so that our part cannot be told from the rest; edit it by hand")]
    Changed,
}

impl EngineError {
    /// Another file has a runtime of our name.
    pub(super) fn registered_in(other: &Other) -> EngineError {
        EngineError::Decided {
            path: other.path.clone(),
            advice: format!("take the runtime {RUNTIME_NAME} out of it"),
        }
    }

    /// A warning: another file is read after ours and decides.
    pub(super) fn later_default(path: &Path, key: &str) -> String {
        format!(
            "{} is read later and sets {key} to another runtime; take it out there",
            path.display()
        )
    }
}
