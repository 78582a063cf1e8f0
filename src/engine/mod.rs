//! How container engines are configured: the old text of a file gives the new one. Nothing here reads
//! or writes a file; `commands::configure` does.
//!
//! Each engine is told the same: CDI is on, and `onload-container-runtime` is the OCI runtime
//! `onload`. What stands in a file beside that stays as it is, byte for byte.

mod containerd;
mod crio;
mod docker;
mod error;
mod file;
mod hcl;
pub(crate) mod holders;
mod json;
mod nomad;
mod ours;
mod podman;
pub(crate) mod policy;
mod toml;

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use file::{Before, Wanted};

pub(crate) use error::EngineError;
pub(crate) use file::{Action, Beside, Decision, Files, Keep, Other};
pub(crate) use ours::{RUNTIME_NAME, RUNTIME_PATH};

/// The backup of a file that was not there. With no backup at all, a file is somebody else's, and what
/// another engine's user may have set, such as CDI itself, is not ours to take away.
const NO_FILE: &str = "onload-ctk: there was no such file\n";
/// A container engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Docker.
    Docker,
    /// containerd, for Kubernetes and other users of its CRI plugin.
    Containerd,
    /// CRI-O.
    Crio,
    /// Podman.
    Podman,
    /// Nomad, with its docker driver.
    Nomad,
}

impl Engine {
    /// The engine's name as it is typed.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Docker => "docker",
            Engine::Containerd => "containerd",
            Engine::Crio => "crio",
            Engine::Podman => "podman",
            Engine::Nomad => "nomad",
        }
    }

    /// The file that is edited, or is ours.
    #[must_use]
    pub(crate) fn file(self) -> &'static Path {
        Path::new(match self {
            Engine::Docker => docker::FILE,
            Engine::Containerd => containerd::FILE,
            Engine::Crio => crio::FILE,
            Engine::Podman => podman::FILE,
            Engine::Nomad => nomad::FILE,
        })
    }

    /// Whether the file is ours alone, one of several that the engine reads. It has no backup: an
    /// engine might read that too.
    #[must_use]
    pub(crate) fn is_drop_in(self) -> bool {
        match self {
            Engine::Docker | Engine::Containerd => false,
            Engine::Crio | Engine::Podman | Engine::Nomad => true,
        }
    }

    /// The service that reads the file when it starts; none where every command reads it.
    #[must_use]
    pub(crate) fn service(self) -> Option<&'static str> {
        match self {
            Engine::Podman => None,
            Engine::Docker | Engine::Containerd | Engine::Crio | Engine::Nomad => Some(self.name()),
        }
    }

    /// The files to read beside the engine's own, whose text that is.
    ///
    /// # Errors
    /// The text is not understood.
    pub(crate) fn beside(self, now: Option<&str>) -> Result<Vec<Beside>, EngineError> {
        Ok(match self {
            Engine::Docker => Vec::new(),
            Engine::Containerd => containerd::beside(now)?,
            Engine::Crio => crio::beside(),
            Engine::Podman => podman::beside(),
            Engine::Nomad => nomad::beside(),
        })
    }

    /// What to do so that the engine knows us.
    ///
    /// # Errors
    /// [`EngineError`]: the file has to stay as it is.
    pub(crate) fn configure(self, files: &Files) -> Result<Decision, EngineError> {
        let wanted = self.wanted(files.now.as_deref(), &files.others)?;
        let decision = |file, backup| Decision {
            file,
            backup,
            warnings: wanted.warnings,
        };
        if wanted.text == files.now {
            return Ok(decision(Action::Keep, Action::Keep));
        }
        let Some(text) = wanted.text else {
            return Ok(decision(
                self.remove(files, Keep::Nothing)?.file,
                Action::Keep,
            ));
        };
        let backup = match &files.now {
            _ if self.is_drop_in() => Action::Keep,
            None => Action::Write(NO_FILE.to_owned()),
            // What holds something of ours is not what was there before us.
            Some(now) if self.is_ours(now)? => Action::Keep,
            Some(now) if files.before.as_ref() == Some(now) => Action::Keep,
            Some(now) => Action::Write(now.clone()),
        };
        Ok(decision(Action::Write(text), backup))
    }

    /// Whether anything of what was read can be ours: a file that does not hold our name was not
    /// changed by us, whatever else is the matter with it.
    #[must_use]
    pub(crate) fn has_trace(files: &Files) -> bool {
        let named = |text: &String| text.contains(RUNTIME_NAME);
        files.before.is_some() || files.now.as_ref().is_some_and(named)
    }

    /// Where the engine keeps what it knows of its containers, as its file says.
    ///
    /// # Errors
    /// The text is not understood.
    pub(crate) fn state_dir(self, now: Option<&str>) -> Result<PathBuf, EngineError> {
        let now = now.unwrap_or_default();
        let (named, default) = match self {
            Engine::Docker | Engine::Nomad => (docker::data_root(now)?, "/var/lib/docker"),
            Engine::Containerd => (containerd::state_dir(now)?, "/run/containerd"),
            Engine::Crio | Engine::Podman => (None, "/var/lib/containers/storage"),
        };
        Ok(named.map_or_else(|| PathBuf::from(default), PathBuf::from))
    }

    /// Whether a text registers our runtime for containers, which have to be looked for then.
    ///
    /// # Errors
    /// The text is not understood.
    pub(crate) fn registers(self, now: Option<&str>) -> Result<bool, EngineError> {
        let Some(now) = now.filter(|now| now.contains(RUNTIME_NAME)) else {
            return Ok(false);
        };
        match self {
            // Docker's, which Nomad asks for them.
            Engine::Nomad => Ok(false),
            Engine::Podman => podman::registers(now),
            Engine::Docker | Engine::Containerd | Engine::Crio => self.is_ours(now),
        }
    }

    /// The setting that makes our runtime the engine's default, if one of the files does. One that is
    /// not understood says nothing: the engine does not understand it either.
    #[must_use]
    pub(crate) fn default_setting(self, files: &Files) -> Option<&'static str> {
        type IsDefault = fn(&str) -> Result<bool, EngineError>;
        let (key, is_default): (_, IsDefault) = match self {
            Engine::Docker => (docker::DEFAULT, docker::is_default),
            Engine::Containerd => (containerd::DEFAULT, containerd::is_default),
            Engine::Crio => (crio::DEFAULT, crio::is_default),
            Engine::Podman => (podman::DEFAULT, podman::is_default),
            Engine::Nomad => return None,
        };
        let now = files.now.iter();
        let mut texts = now.chain(files.others.iter().map(|other| &other.text));
        let named = texts.any(|text| is_default(text).unwrap_or(false));
        named.then_some(key)
    }

    /// What to do so that the engine no longer knows us: the file as it was before us where nobody
    /// changed it since, else the file without what is ours. Where containers have recorded the
    /// runtime (`keep`), its entry and the backup stay until they are gone.
    ///
    /// # Errors
    /// [`EngineError`]: the file has to stay as it is.
    pub(crate) fn remove(self, files: &Files, keep: Keep) -> Result<Decision, EngineError> {
        let before = match files.before.as_deref() {
            None => Before::Unknown,
            Some(NO_FILE) => Before::Absent,
            Some(text) => Before::Text(text),
        };
        let file = match files.now.as_deref() {
            None => Action::Keep,
            Some(_) if !Engine::has_trace(files) => Action::Keep,
            Some(now) if before == Before::Unknown && !self.is_ours(now)? => Action::Keep,
            Some(now) if before == Before::Text(now) => Action::Keep,
            Some(now) if keep == Keep::Nothing && self.is_as_left(now, before, &files.others) => {
                match before.text() {
                    Some(before) => Action::Write(before.to_owned()),
                    None => Action::Remove,
                }
            }
            Some(now) => match self.without_ours(now, before, &files.others, keep)? {
                Some(text) if text == now => Action::Keep,
                Some(text) => Action::Write(text),
                None => Action::Remove,
            },
        };
        let backup = match before {
            _ if keep == Keep::Runtime => Action::Keep,
            Before::Unknown => Action::Keep,
            Before::Absent | Before::Text(_) => Action::Remove,
        };
        Ok(Decision {
            file,
            backup,
            warnings: Vec::new(),
        })
    }

    /// Whether a text is what we made of the one before, or what an earlier removal left of that
    /// while there were containers.
    fn is_as_left(self, now: &str, before: Before<'_>, others: &[Other]) -> bool {
        let wanted = self.wanted(before.text(), others);
        let Some(wanted) = wanted.ok().and_then(|wanted| wanted.text) else {
            return false;
        };
        let kept = || self.without_ours(&wanted, before, others, Keep::Runtime);
        wanted == now || kept().is_ok_and(|kept| kept.as_deref() == Some(now))
    }

    fn wanted(self, old: Option<&str>, others: &[Other]) -> Result<Wanted, EngineError> {
        match self {
            Engine::Docker => docker::wanted(old),
            Engine::Containerd => containerd::wanted(old, others),
            Engine::Crio => crio::wanted(old, others),
            Engine::Podman => podman::wanted(old, others),
            Engine::Nomad => nomad::wanted(old, others),
        }
    }

    /// Whether a text registers our runtime: everything else may be there without us.
    fn is_ours(self, text: &str) -> Result<bool, EngineError> {
        match self {
            Engine::Docker => docker::is_ours(text),
            Engine::Containerd => containerd::is_ours(text),
            Engine::Crio => crio::is_ours(text),
            Engine::Podman => podman::is_ours(text),
            Engine::Nomad => Ok(nomad::is_ours(text)),
        }
    }

    /// A text without what is ours; none where nothing else is left that was not there before.
    fn without_ours(
        self,
        now: &str,
        before: Before<'_>,
        others: &[Other],
        keep: Keep,
    ) -> Result<Option<String>, EngineError> {
        match self {
            Engine::Docker => docker::without_ours(now, before, keep),
            Engine::Containerd => containerd::without_ours(now, before, keep),
            // Nothing but the runtime is in it.
            Engine::Crio if keep == Keep::Runtime => Ok(Some(now.to_owned())),
            Engine::Crio => crio::without_ours(now),
            Engine::Podman => podman::without_ours(now, others, keep),
            Engine::Nomad => nomad::without_ours(now),
        }
    }
}

#[cfg(test)]
mod tests;
