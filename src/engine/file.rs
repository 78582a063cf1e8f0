//! What is read of an engine's files, and what is to be done with them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Files that are read beside the engine's own, since what they say decides too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    File(PathBuf),
    /// The files of a directory whose names match a pattern with `*`, sorted.
    Directory(PathBuf, String),
}

impl Beside {
    /// Whether a file is among them.
    pub(super) fn holds(&self, path: &Path) -> bool {
        match self {
            Beside::File(file) => file == path,
            Beside::Directory(directory, pattern) => {
                let name = path.file_name().and_then(OsStr::to_str);
                path.parent() == Some(directory) && name.is_some_and(|name| matches(pattern, name))
            }
        }
    }
}

/// Whether a name matches a pattern whose only special character is `*`.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let ends = name.char_indices().map(|(place, _)| place);
            let mut ends = ends.chain([name.len()]);
            ends.any(|end| matches(rest, name.get(end..).unwrap_or_default()))
        }),
    }
}

/// A file beside the engine's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    /// Its path on the host.
    pub path: PathBuf,
    pub text: String,
}

impl Other {
    /// Whether the engine reads it after a file beside it: those of one directory are read in the order
    /// of their names.
    pub(super) fn is_read_after(&self, file: &Path) -> bool {
        self.path.parent() == file.parent() && self.path.as_path() > file
    }
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// The engine's file; none where there is none.
    pub now: Option<String>,
    /// Its backup: what it was before we changed it, `NO_FILE` where there was none; none where we
    /// did not change it, or for drop-ins.
    pub before: Option<String>,
    /// The files beside it, in the order in which the engine reads them.
    pub others: Vec<Other>,
}

/// What is to be done with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Keep,
    Write(String),
    Remove,
}

/// What is to be done, all in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub file: Action,
    pub backup: Action,
    /// What people should look at.
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    /// The entry of our runtime, for the containers that have recorded it.
    Runtime,
}

/// What a file was before us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before<'a> {
    /// Nobody knows: what is not ours for certain is left.
    Unknown,
    /// It was not there: what we set is ours.
    Absent,
    /// It was this.
    Text(&'a str),
}

impl<'a> Before<'a> {
    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Before::Unknown | Before::Absent => None,
            Before::Text(text) => Some(text),
        }
    }
}

/// A file as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Its content; none where no file is needed.
    pub(super) text: Option<String>,
    pub(super) warnings: Vec<String>,
}
