//! The record of a running container in /run/onload-ctk/ID: the process that created the files in this directory, the
//! paths created in the container's root, and the data for `reapply`. The record may be of a different version of this
//! program: unknown fields are ignored, and a `version` above [`VERSION`] means that the rest cannot be interpreted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use onload_core::device_id::DeviceId;
use onload_core::versioned;
use onload_sys::error::{Context as _, Result, error};
use onload_sys::fs::atomic::write_atomic;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::creator::Creator;
use crate::decide::verified_node::CgroupRule;

/// Holds [`ContainerRecord`].
pub(crate) const RECORD: &str = "record.json";
/// The variables of the members of pools, as a file for the container's programs.
pub(crate) const VARIABLES: &str = "variables";
/// The newest version of the record that this code understands.
pub(crate) const VERSION: u32 = 1;
const MAX_BYTES: u64 = 1024 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    /// The process that created the files last. `None` if the container is gone and only mount targets in its root are
    /// left.
    pub maker: Option<Creator>,
    /// None until a hook is about to create mount targets.
    pub created: Option<CreatedPaths>,
    /// None until a hook has finished.
    pub live: Option<LiveInjection>,
}

/// A file or a directory; device nodes are mounted on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TargetType {
    File,
    Directory,
}

impl TargetType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            TargetType::File => "regular file or device node",
            TargetType::Directory => "directory",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CreatedPath {
    pub path: PathBuf,
    pub kind: TargetType,
    /// Its inode, which distinguishes it from a later one; `None` before it is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
}

impl CreatedPath {
    pub(crate) fn new(path: &Path, kind: TargetType) -> Self {
        CreatedPath { path: path.to_owned(), kind, inode: None }
    }
}

/// Everything that was created in one root. It is recorded before anything is created, without inodes, and again afterwards
/// with them. Whenever the hook is killed, the record lists what exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CreatedPaths {
    /// The path of the container's root on the host.
    pub root: PathBuf,
    pub made: Vec<CreatedPath>,
}

/// The data that `reapply` needs to open the devices again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LiveInjection {
    pub pid: u32,
    /// When that process started, in clock ticks since boot.
    pub start_time: u64,
    pub rules: Vec<CgroupRule>,
    /// For each of them, the node of this host that had its numbers.
    pub nodes: Vec<PathBuf>,
    /// The devices leased to the container.
    pub leases: Vec<DeviceId>,
    /// The bundle that the leases name.
    pub bundle: PathBuf,
    /// The hooks of specifications that did part of it. A hook that runs for an annotation has no entry.
    pub takes: Vec<String>,
    /// The content of the file of variables.
    pub variables: String,
    /// Whether a hook did part of it by annotation.
    pub by_annotation: bool,
    /// Why its programs may find no RDMA device, which `onload-ctk status` reads. A record of an earlier version has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub library_warnings: Vec<String>,
}

impl LiveInjection {
    /// Prepends the injection of an earlier hook for the same process.
    pub(crate) fn merge_earlier(self, before: Option<LiveInjection>) -> LiveInjection {
        let Some(before) = before.filter(|before| before.is_of(self.pid, self.start_time)) else {
            return self;
        };
        let nodes = before.rules.into_iter().zip(before.nodes);
        let more = self.rules.into_iter().zip(self.nodes);
        let (rules, nodes) = nodes.chain(more).unzip();
        let bundle = if self.leases.is_empty() { before.bundle } else { self.bundle };
        LiveInjection {
            rules,
            nodes,
            bundle,
            leases: [before.leases, self.leases].concat(),
            takes: [before.takes, self.takes].concat(),
            variables: before.variables + &self.variables,
            by_annotation: before.by_annotation || self.by_annotation,
            library_warnings: [before.library_warnings, self.library_warnings].concat(),
            ..self
        }
    }

    pub(crate) fn is_of(&self, pid: u32, start_time: u64) -> bool {
        (self.pid, self.start_time) == (pid, start_time)
    }
}

pub(crate) fn write(dir: &OwnedFd, record: &ContainerRecord) -> Result<()> {
    let bytes = versioned::to_bytes(VERSION, record).unwrap_or_default();
    write_atomic(dir, OsStr::new(RECORD), &bytes, 0o600)
        .context("recording the changes to the container")
}

/// Reads the record of a container's directory; `None` if there is none.
pub(crate) fn read(dir: impl AsFd) -> Result<Option<ContainerRecord>> {
    read_bytes(dir, RECORD).context(READ_CONTEXT)?.map(|bytes| parse(&bytes)).transpose()
}

/// As [`read`], but a record that cannot be understood, perhaps from another version, counts as absent and adds a line to
/// `warnings`.
pub(crate) fn read_known(
    dir: impl AsFd,
    warnings: &mut Vec<String>,
) -> Result<Option<ContainerRecord>> {
    let Some(bytes) = read_bytes(dir, RECORD).context(READ_CONTEXT)? else {
        return Ok(None);
    };
    let record = parse(&bytes);
    Ok(record.map_err(|error| warnings.push(format!("{error:#}; it is ignored"))).ok())
}

const READ_CONTEXT: &str = "reading the record of the container";

/// Reads a record; `None` if there is none.
pub(super) fn read_bytes(dir: impl AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        file => File::from(file?),
    };
    // Most fit into one read, which reads a regular file up to its end.
    let mut bytes = vec![0; 1024];
    let length = (&file).read(&mut bytes)?;
    bytes.truncate(length);
    if length == 1024 {
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    }
    Ok(Some(bytes))
}

fn parse(bytes: &[u8]) -> Result<ContainerRecord> {
    versioned::parse(bytes, VERSION, "it is not a record")
        .map_err(|error| error!("{READ_CONTEXT}: {error:#}; start the container again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Option<ContainerRecord>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(RECORD), text).unwrap();
        read(File::open(dir.path()).unwrap())
    }

    const LIVE: &str = r#""live":{"pid":7,"startTime":70,"rules":[{"major":243,"minor":0,"access":"rw"}],"nodes":["/dev/onload"],"leases":[],"bundle":"","takes":[],"variables":"","byAnnotation":true}"#;
    const CREATED: &str = r#""created":{"root":"/r","made":[{"path":"/a","kind":"file"}]}"#;

    #[test]
    fn fields_of_another_version_are_passed_over() {
        let plain = read_text(&format!(r#"{{"version":1,{LIVE},{CREATED}}}"#)).unwrap().unwrap();
        let made = &plain.created.as_ref().unwrap().made;
        assert_eq!(made, &[CreatedPath::new(Path::new("/a"), TargetType::File)]);
        for more in [
            r#""version":1,"since":{"boot":"x"},"moods":["a"]"#,
            r#""version":0,"rulesOfTomorrow":null"#,
        ] {
            let record = read_text(&format!("{{{more},{LIVE},{CREATED}}}"));
            assert_eq!(record.unwrap().unwrap(), plain, "{more}");
        }
    }

    #[test]
    fn a_record_of_a_newer_version_is_told_from_a_broken_one() {
        for text in [r#"{"version":2}"#.to_owned(), format!("{{{LIVE},\"version\":4294967295}}")] {
            let error = read_text(&text).unwrap_err();
            assert!(
                error.to_string().contains("understands 1; start the container again"),
                "{error}"
            );
        }
        for text in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"version":"1"}"#,
            r#"{"version":-1}"#,
            r#"{"version":1,"live":{"pid":7}}"#,
        ] {
            let error = read_text(text).unwrap_err();
            let start = format!("{READ_CONTEXT}: it is not a record: ");
            assert!(error.to_string().starts_with(&start), "{text}: {error}");
        }
    }

    #[test]
    fn the_bundle_of_leases_stays_when_a_later_hook_leases_nothing() {
        let first = LiveInjection {
            leases: vec!["vfio:0000:41:10.0".parse().unwrap()],
            bundle: PathBuf::from("/b"),
            ..LiveInjection::default()
        };
        let both = LiveInjection::default().merge_earlier(Some(first.clone()));
        assert_eq!((both.leases, both.bundle), (first.leases, first.bundle));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let open = OwnedFd::from(File::open(dir.path()).unwrap());
        let written = read_text(&format!(r#"{{"version":1,{LIVE},{CREATED}}}"#)).unwrap().unwrap();
        write(&open, &written).unwrap();
        assert_eq!(read(&open).unwrap(), Some(written));
        let text = std::fs::read_to_string(dir.path().join(RECORD)).unwrap();
        assert!(text.starts_with("{\"version\":1,"), "{text}");
    }
}
