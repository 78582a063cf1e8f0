//! The files of an engine, and the changes to them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use onload_host::host::{Host, HostError};

use crate::our_runtime::RUNTIME_NAME;

/// Other files that are read because their settings matter too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelatedFiles {
    File(PathBuf),
    /// The files of directories whose names match a pattern with `*`, sorted together by their names. Of files of one
    /// name only the one in the last directory counts.
    Directories(Vec<PathBuf>, String),
}

impl RelatedFiles {
    pub fn paths(&self, host: &Host) -> Result<Vec<PathBuf>, HostError> {
        Ok(match self {
            RelatedFiles::File(path) => vec![path.clone()],
            RelatedFiles::Directories(directories, pattern) => {
                let mut last = BTreeMap::new();
                for directory in directories {
                    let names = host
                        .list(directory)?
                        .names
                        .into_iter()
                        .filter(|name| matches(pattern, name));
                    last.extend(names.map(|name| (name.clone(), directory.join(name))));
                }
                last.into_values().collect()
            }
        })
    }

    pub(crate) fn contains(&self, path: &Path) -> bool {
        match self {
            RelatedFiles::File(file) => file == path,
            RelatedFiles::Directories(directories, pattern) => {
                let name = path.file_name().and_then(OsStr::to_str);
                directories.iter().any(|directory| path.parent() == Some(directory))
                    && name.is_some_and(|name| matches(pattern, name))
            }
        }
    }
}

/// The only special character is `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let mut ends = name.char_indices().map(|(index, _)| index).chain([name.len()]);
            ends.any(|end| matches(rest, name.get(end..).unwrap_or_default()))
        }),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelatedFile {
    pub path: PathBuf,
    pub text: String,
}

impl RelatedFile {
    /// Why the engine's file is not changed if this file has the same settings.
    pub(crate) fn conflict_error(&self, advice: &str) -> anyhow::Error {
        anyhow!(
            "{} sets the same keys, and one of the two would replace the other; {advice}",
            self.path.display()
        )
    }

    pub(crate) fn registered_error(&self) -> anyhow::Error {
        self.conflict_error(&format!("remove the runtime {RUNTIME_NAME} from it"))
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} beside it", self.path.display())
    }

    /// Returns whether the engine reads it after another file of its directory, which are read in the order of their
    /// names.
    pub(crate) fn is_read_after(&self, file: &Path) -> bool {
        self.path.parent() == file.parent() && self.path.as_path() > file
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineFiles {
    pub now: Option<String>,
    /// Its backup: the content before our first change, or `NO_FILE` if it did not exist. `None` if we have not changed
    /// it, and for drop-ins.
    pub before: Option<String>,
    pub other_files: Vec<RelatedFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineFileAction {
    Keep,
    Write(String),
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDecision {
    pub file: EngineFileAction,
    pub backup: EngineFileAction,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptPart {
    Nothing,
    /// The entry of our runtime, for the containers that have recorded it.
    Runtime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginalText<'a> {
    /// It is unknown: only what is certainly ours is removed.
    Unknown,
    /// It was not there: what we set is ours.
    Absent,
    Text(&'a str),
}

impl<'a> OriginalText<'a> {
    pub(crate) fn text(self) -> Option<&'a str> {
        match self {
            OriginalText::Unknown | OriginalText::Absent => None,
            OriginalText::Text(text) => Some(text),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewText {
    pub(crate) text: Option<String>,
    pub(crate) warnings: Vec<String>,
}
