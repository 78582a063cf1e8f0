//! The records under /run/onload-ctk/ID for as long as a container lives: what was created in its root, and what `reapply`
//! needs. Another version may have written them: unknown fields are ignored, and a field `version` above [`VERSION`] means
//! that this version cannot interpret the rest. Version 1 is written without that field.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use onload_core::lease::Device as LeasedDevice;
use onload_sys::bail;
use onload_sys::error::{Context as _, Result};
use onload_sys::fs::atomic::write_atomic;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::decide::device::Rule;

/// Holds [`Created`].
pub(crate) const CREATED: &str = "created";
/// Holds [`Live`].
pub(crate) const STATE: &str = "state.json";
/// The variables of the members of pools, as a file for the container's programs.
pub(crate) const VARIABLES: &str = "variables";
/// The newest version of either record that this code understands.
pub(crate) const VERSION: u32 = 1;
const MAX_BYTES: u64 = 1024 * 1024;

/// A file or a directory; device nodes are mounted on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TargetType {
    File,
    Directory,
}

impl TargetType {
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            TargetType::File => "regular file or device node",
            TargetType::Directory => "directory",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    pub path: PathBuf,
    pub kind: TargetType,
    /// Its inode, which distinguishes it from a later one; `None` before it is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
}

impl Made {
    #[must_use]
    pub(crate) fn planned(path: &Path, kind: TargetType) -> Self {
        Made {
            path: path.to_owned(),
            kind,
            inode: None,
        }
    }
}

/// Everything that was created in one root. It is written before anything is created, without inodes, and again afterwards
/// with them. Whenever the hook is killed, the record lists what exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Created {
    /// The path of the container's root on the host.
    pub root: PathBuf,
    pub made: Vec<Made>,
}

/// What `reapply` needs to open the devices again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Live {
    pub pid: u32,
    /// When that process started, in clock ticks since boot.
    pub start_time: u64,
    pub rules: Vec<Rule>,
    /// For each of them, the node of this host that had its numbers.
    pub nodes: Vec<PathBuf>,
    /// What the container has for itself.
    pub leases: Vec<LeasedDevice>,
    /// The bundle that the leases name.
    pub bundle: PathBuf,
    /// The hooks of specifications that did part of it. One that comes by annotation has no entry.
    pub takes: Vec<String>,
    /// What the file of variables says.
    pub variables: String,
    /// Whether a hook did part of it by annotation.
    pub by_annotation: bool,
}

impl Live {
    /// What another hook did for the same process before comes first.
    pub(crate) fn after(self, before: Option<Live>) -> Live {
        let Some(before) = before.filter(|before| before.is_of(self.pid, self.start_time)) else {
            return self;
        };
        let nodes = before.rules.into_iter().zip(before.nodes);
        let more = self.rules.into_iter().zip(self.nodes);
        let (rules, nodes) = nodes.chain(more).unzip();
        Live {
            rules,
            nodes,
            leases: [before.leases, self.leases].concat(),
            takes: [before.takes, self.takes].concat(),
            variables: before.variables + &self.variables,
            by_annotation: before.by_annotation || self.by_annotation,
            ..self
        }
    }

    pub(crate) fn is_of(&self, pid: u32, start_time: u64) -> bool {
        (self.pid, self.start_time) == (pid, start_time)
    }
}

pub(crate) fn write(dir: &OwnedFd, name: &str, record: &impl Serialize) -> Result<()> {
    let mut bytes = serde_json::to_vec(record).unwrap_or_default();
    bytes.push(b'\n');
    write_atomic(dir, OsStr::new(name), &bytes, 0o600)
        .context("recording what is done for the container")
}

/// Reads a record; `None` if there is no file.
pub(crate) fn read<T: DeserializeOwned>(dir: impl AsFd, name: &str) -> Result<Option<T>> {
    let bytes = bytes(dir, name)?;
    bytes.map(|bytes| parse(name, &bytes)).transpose()
}

/// As [`read`], but a record that cannot be understood, perhaps from another version, counts as absent and adds a line to
/// `warnings`.
pub(crate) fn read_known<T: DeserializeOwned>(
    dir: impl AsFd,
    name: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<T>> {
    let Some(bytes) = bytes(dir, name)? else {
        return Ok(None);
    };
    let record = parse(name, &bytes);
    Ok(record
        .map_err(|error| warnings.push(format!("{error:#}; it is ignored")))
        .ok())
}

fn reading(name: &str) -> String {
    format!("reading {name} of the container")
}

fn bytes(dir: impl AsFd, name: &str) -> Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        file => File::from(file.with_context(|| reading(name))?),
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES).read_to_end(&mut bytes);
    read.with_context(|| reading(name))?;
    Ok(Some(bytes))
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T> {
    let version = version(bytes).with_context(|| reading(name))?;
    if version > VERSION {
        bail!(
            "{name} of the container has version {version}, but this program understands {VERSION}; run the newer program, or start the container again"
        );
    }
    serde_json::from_slice(bytes).with_context(|| reading(name))
}

/// The version of a record; without the field it is the first.
fn version(bytes: &[u8]) -> Result<u32, serde_json::Error> {
    #[derive(Deserialize)]
    struct Versioned {
        #[serde(default = "first")]
        version: u32,
    }
    fn first() -> u32 {
        1
    }
    Ok(serde_json::from_slice::<Versioned>(bytes)?.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text<T: DeserializeOwned>(text: &str) -> Result<Option<T>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(STATE), text).unwrap();
        let open = File::open(dir.path()).unwrap();
        read(&open, STATE)
    }

    const LIVE: &str = r#""pid":7,"startTime":70,"rules":[{"major":243,"minor":0,"access":"rw"}],"nodes":["/dev/onload"],"leases":[],"bundle":"","takes":[],"variables":"","byAnnotation":true"#;

    #[test]
    fn fields_of_another_version_are_passed_over() {
        let plain: Live = read_text(&format!("{{{LIVE}}}")).unwrap().unwrap();
        for more in [
            r#""version":1"#,
            r#""since":{"boot":"x"},"moods":["a"]"#,
            r#""version":0,"rulesOfTomorrow":null"#,
        ] {
            let live: Live = read_text(&format!("{{{more},{LIVE}}}")).unwrap().unwrap();
            assert_eq!(live, plain, "{more}");
        }
        let created: Created = read_text(
            r#"{"version":1,"root":"/r","made":[{"path":"/a","kind":"file","mode":1}],"x":1}"#,
        )
        .unwrap()
        .unwrap();
        assert_eq!(
            created.made,
            [Made::planned(Path::new("/a"), TargetType::File)]
        );
    }

    #[test]
    fn a_record_of_a_newer_version_is_told_from_a_broken_one() {
        for text in [
            r#"{"version":2}"#.to_owned(),
            format!("{{{LIVE},\"version\":4294967295}}"),
        ] {
            let error = read_text::<Live>(&text).unwrap_err();
            assert!(error.to_string().contains("understands 1"), "{error}");
        }
        for text in [
            "",
            "{",
            "[]",
            r#"{"version":"2"}"#,
            r#"{"version":-1}"#,
            r#"{"pid":7}"#,
        ] {
            let error = read_text::<Live>(text).unwrap_err();
            assert_eq!(error.to_string(), reading(STATE), "{text}");
        }
    }

    #[test]
    fn what_is_written_says_no_version_as_long_as_it_is_the_first() {
        let live: Live = read_text(&format!("{{{LIVE}}}")).unwrap().unwrap();
        assert_eq!(serde_json::to_string(&live).unwrap(), format!("{{{LIVE}}}"));
        assert_eq!(VERSION, 1);
    }
}
