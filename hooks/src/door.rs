//! The ends of the doors that change a configuration: read it, call the filter, write what it says.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use onload_cdi::json::{RawError, RawObject};
use onload_core::fs::atomic::{WriteError, write_atomic};
use onload_core::fs::lock::{Kind, Lock, LockError, START_PATIENCE};
use onload_core::fs::trust::TrustError;
use onload_core::run_dir::{RUN_DIR_MODE, RunDir, make_dir, set_mode};
use onload_core::text::{Chain, one_line};
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

use crate::bundle::{BundleError, ConfigFile};
use crate::filter::{self, Container, FilterError, Outcome};
use crate::host::{Host, HostError, ThisHost};
use crate::host_root;
use crate::live::init::InitError;
use crate::live::record::RecordError;
use crate::maker::{Door, MAKER, Maker};
use crate::poststop;
use crate::preload::HostFile;
use crate::scan;
use crate::state::State;
use onload_core::container_id::ContainerId;
use onload_core::run_dir::RUN_DIR;

/// Why a door stays shut.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// config.json could not be read or replaced.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The container must not start.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The host's own files cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The description of a later process.
    #[error("reading the process of `exec`: {0}")]
    Process(String),
    /// Standard input or output.
    #[error("{action}: {error}")]
    Stream {
        /// What was done.
        action: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// A file for the container could not be written on the host.
    #[error("writing {path:?}: {error}")]
    HostFile {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The lock of the containers cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// This process cannot be looked at.
    #[error(transparent)]
    Own(#[from] InitError),
    /// It could not be written down.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// What was done to the configuration of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edited {
    /// Lines for people.
    pub warnings: Vec<String>,
    /// The container that a file was written for, under [`RUN_DIR`].
    pub own: Option<ContainerId>,
    /// As [`Outcome::guards_exec`].
    pub guards_exec: bool,
}

impl Edited {
    /// Takes the file away again: nobody will start the container, and no poststop follows. What led
    /// here is the error to tell. What a hook made for a living container of that id stays.
    pub fn undo(&self) {
        if let Some(id) = &self.own {
            let _ = poststop::forget_list(Path::new(RUN_DIR), id);
        }
    }
}

/// Edits the configuration of a bundle where it stands.
///
/// # Errors
/// [`DoorError`]; the configuration is then as it was.
pub fn edit(
    file: &ConfigFile,
    container: Container<'_>,
    door: Door<'_>,
    host: &ThisHost,
) -> Result<Edited, DoorError> {
    let scanned = file.scan()?;
    if !scanned.asks {
        return Ok(Edited::default());
    }
    if scanned.more {
        return Err(FilterError::TooLarge.into());
    }
    let outcome = filter::apply_text(&filter::text(scanned.kept)?, container, host)?;
    poststop::sweep(Path::new(RUN_DIR), container.id);
    let edited = written(&outcome, door, host)?;
    let Some(config) = &outcome.config else {
        return Ok(edited);
    };
    file.replace(config).inspect_err(|_| edited.undo())?;
    Ok(edited)
}

/// Writes the file that the outcome wants on this host, if any.
fn written(outcome: &Outcome, door: Door<'_>, host: &ThisHost) -> Result<Edited, DoorError> {
    let mut warnings = outcome.warnings.clone();
    if let Some(own) = &outcome.file {
        warnings.extend(write_host_file(own, door, host)?);
    }
    Ok(Edited {
        warnings,
        own: outcome.file.as_ref().map(|own| own.id.clone()),
        guards_exec: outcome.guards_exec,
    })
}

/// Takes CAP_SETUID from the description of a process that is started in a container later, where it
/// must not come with one (runc and crun, `exec --process`).
///
/// # Errors
/// [`DoorError`]; the process must then not start.
pub fn take_setuid(process: &Path) -> Result<(), DoorError> {
    let file = ConfigFile::open(Path::new(""), Some(process))?;
    let scanned = file.scan()?;
    if scanned.more {
        return Err(DoorError::Process("it is too large".to_owned()));
    }
    let failed = |error: RawError| DoorError::Process(Chain(&error).to_string());
    let mut described = RawObject::parse(&scanned.kept).map_err(failed)?;
    if host_root::take_setuid(&mut described).map_err(failed)? {
        file.replace(&described.to_bytes())?;
    }
    Ok(())
}

/// What came through a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Streamed {
    /// A configuration, which went on with these warnings.
    Config(Vec<String>),
    /// The state of a container, which asks for something else.
    State(State),
}

/// Edits a configuration on its way from one stream to another.
///
/// # Errors
/// [`DoorError`]; what was written by then is not to be used.
pub fn stream(
    from: impl Read,
    to: &mut dyn Write,
    container: Container<'_>,
    door: Door<'_>,
    config: &Path,
) -> Result<Streamed, DoorError> {
    let output = |error| DoorError::Stream {
        action: "writing standard output",
        error,
    };
    let mut began = false;
    let scanned = scan::read(from, 0, &mut |kept, piece| {
        if !std::mem::replace(&mut began, true) {
            to.write_all(kept)?;
        }
        to.write_all(piece)
    })
    .map_err(|error| DoorError::Stream {
        action: "copying standard input",
        error,
    })?;
    if !scanned.asks {
        if !began {
            to.write_all(&scanned.kept).map_err(output)?;
        }
        return to
            .flush()
            .map_err(output)
            .map(|()| Streamed::Config(Vec::new()));
    }
    if scanned.more {
        return Err(FilterError::TooLarge.into());
    }
    if let Some(state) = State::recognise(&scanned.kept) {
        return Ok(Streamed::State(state));
    }
    let host = ThisHost::with_config(config)?;
    let text = filter::text(scanned.kept)?;
    let outcome = filter::apply_text(&text, container, &host)?;
    poststop::sweep(Path::new(RUN_DIR), container.id);
    let edited = written(&outcome, door, &host)?;
    let changed = outcome.config.as_deref();
    to.write_all(changed.unwrap_or(text.as_bytes()))
        .and_then(|()| to.flush())
        .inspect_err(|_| edited.undo())
        .map_err(output)?;
    Ok(Streamed::Config(edited.warnings))
}

/// What would be done to the configuration of a bundle, for people.
///
/// # Errors
/// [`DoorError::Bundle`] and [`DoorError::Host`] where it cannot be told; a refusal is part of the
/// answer.
pub fn explain(bundle: &Path, host: &dyn Host) -> Result<Explanation, DoorError> {
    let file = ConfigFile::open(bundle, None)?;
    let scanned = file.scan()?;
    let before = shown(&scanned.kept);
    let name = bundle.file_name().and_then(OsStr::to_str);
    let id = podman_id(bundle).or_else(|| name?.parse().ok());
    let container = Container {
        bundle,
        id: id.as_ref(),
        sees_exec: true,
    };
    let applied = if scanned.more && scanned.asks {
        Err(FilterError::TooLarge)
    } else {
        filter::apply(&scanned.kept, container, host)
    };
    let (outcome, refusal) = match applied {
        Ok(outcome) => (outcome, None),
        Err(FilterError::Host(error)) => return Err(error.into()),
        Err(error) => (Outcome::default(), Some(error.to_string())),
    };
    Ok(Explanation {
        after: outcome
            .config
            .as_deref()
            .map_or_else(|| before.clone(), shown),
        before,
        reasons: outcome.reasons.iter().map(|line| one_line(line)).collect(),
        warnings: outcome.warnings.iter().map(|line| one_line(line)).collect(),
        refusal: refusal.map(|line| one_line(&line)),
    })
}

/// What would be done to a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The configuration as it is, one value a line.
    pub before: String,
    /// The configuration as it would be.
    pub after: String,
    /// What would be given, and why.
    pub reasons: Vec<String>,
    /// What the person at the host should know.
    pub warnings: Vec<String>,
    /// Why the container would not start.
    pub refusal: Option<String>,
}

/// Bytes of a configuration that is shown; real ones have some ten thousand, and with its lines and
/// indentation one takes many times as much.
const MAX_SHOWN: usize = 1024 * 1024;

fn shown(json: &[u8]) -> String {
    if json.len() > MAX_SHOWN {
        return format!("{} bytes, which is too long to be shown\n", json.len());
    }
    indent(json)
}

/// JSON with one value a line, every value spelled as it was. What is no JSON comes out as some
/// text, no more.
#[must_use]
pub fn indent(json: &[u8]) -> String {
    let mut text = Vec::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    let line = |text: &mut Vec<u8>, depth: usize| {
        text.push(b'\n');
        text.resize(text.len() + 2 * depth.min(16), b' ');
    };
    for &byte in json {
        if in_string {
            text.push(byte);
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'{' | b'[' => {
                text.push(byte);
                depth += 1;
                line(&mut text, depth);
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                let content = text.trim_ascii_end().len();
                text.truncate(content);
                if !text.ends_with(b"{") && !text.ends_with(b"[") {
                    line(&mut text, depth);
                }
                text.push(byte);
            }
            b',' => {
                text.push(byte);
                line(&mut text, depth);
            }
            b':' => text.extend(b": "),
            b'"' => {
                in_string = true;
                text.push(byte);
            }
            byte => text.push(byte),
        }
    }
    text.push(b'\n');
    // Bytes that a terminal would obey are shown as they would be escaped.
    let mut shown = String::with_capacity(text.len());
    for character in String::from_utf8_lossy(&text).chars() {
        if character.is_control() && character != '\n' {
            shown.extend(character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Writes a file for one container under [`RUN_DIR`]. The result are warnings.
fn write_host_file(
    own: &HostFile,
    door: Door<'_>,
    host: &ThisHost,
) -> Result<Option<String>, DoorError> {
    let dir = OwnDir::open(&own.id, door, host)?;
    dir.write(own.name, &own.bytes)
        .inspect_err(|_| dir.give_up(&own.id))?;
    Ok(dir.warning)
}

/// The directory of one container under [`RUN_DIR`].
#[derive(Debug)]
pub struct OwnDir {
    /// [`RUN_DIR`].
    pub run: RunDir,
    /// The container's directory in it.
    pub dir: OwnedFd,
    /// Until it is dropped, no poststop takes away what is found here. None where somebody holds it
    /// for too long: then nobody else sweeps either.
    pub lock: Option<Lock>,
    /// A line for people about that.
    pub warning: Option<String>,
    path: PathBuf,
}

impl OwnDir {
    /// Opens it, and makes it first where it is not there; every directory above belongs to root.
    /// That it is this process's is written down in it.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn open(id: &ContainerId, door: Door<'_>, host: &ThisHost) -> Result<Self, DoorError> {
        let path = Path::new(RUN_DIR);
        let failed = |path: PathBuf| move |error: io::Error| DoorError::HostFile { path, error };
        let above = path.parent().unwrap_or(Path::new("/"));
        let above = host.trusted().open_dir(above).map_err(HostError::from)?;
        let name = path.file_name().unwrap_or(OsStr::new("onload-ctk"));
        let made = make_dir(&above, name, RUN_DIR_MODE);
        made.map_err(|error| failed(path.to_owned())(error.into()))?;
        let run = host.trusted().open_dir(path).map_err(HostError::from)?;
        set_mode(&run, RUN_DIR_MODE).map_err(|error| failed(path.to_owned())(error.into()))?;
        let run = RunDir::new(run.into(), path);
        let lock = run.lock(Kind::Shared, START_PATIENCE);
        let maker = Maker::this(door)?;
        let own = OwnDir::make(run, id, lock)?;
        maker.write(&own.dir).inspect_err(|_| own.give_up(id))?;
        Ok(own)
    }

    /// The lock comes first: whoever opens the directory before it may hold one that a sweep then
    /// removes.
    fn make(
        run: RunDir,
        id: &ContainerId,
        lock: Result<Lock, LockError>,
    ) -> Result<Self, DoorError> {
        let (lock, warning) = match lock {
            Ok(lock) => (Some(lock), None),
            Err(error @ LockError::Held { .. }) => (None, Some(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        let path = run.path().join(id.as_str());
        let failed = |error: rustix::io::Errno| DoorError::HostFile {
            path: path.clone(),
            error: error.into(),
        };
        let name = OsStr::new(id.as_str());
        make_dir(&run, name, OWN_DIR_MODE).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(&run, name, flags, Mode::empty());
        let dir = dir.and_then(|dir| set_mode(&dir, OWN_DIR_MODE).map(|()| dir));
        let dir = dir.map_err(|error| {
            remove_empty(&run, id);
            failed(error)
        })?;
        Ok(OwnDir {
            run,
            dir,
            lock,
            warning,
            path,
        })
    }

    /// Writes a file in it.
    ///
    /// # Errors
    /// [`DoorError::HostFile`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), DoorError> {
        write_atomic(&self.dir, OsStr::new(name), bytes, 0o644).map_err(|error: WriteError| {
            DoorError::HostFile {
                path: self.path.join(name),
                error: error.source,
            }
        })
    }

    /// Leaves it as it was found, as far as that goes; what led here is the error to tell.
    fn give_up(&self, id: &ContainerId) {
        let _ = unlinkat(&self.dir, MAKER, AtFlags::empty());
        remove_empty(&self.run, id);
    }
}

/// A directory that was made just now is empty and goes; one that was there is not and stays.
fn remove_empty(run: &RunDir, id: &ContainerId) {
    let _ = unlinkat(run, id.as_str(), AtFlags::REMOVEDIR);
}

/// Mode of the directory of one container.
const OWN_DIR_MODE: Mode = Mode::from_raw_mode(0o755);

/// The name of the container whose bundle podman keeps at `…/ID/userdata`.
#[must_use]
pub fn podman_id(bundle: &Path) -> Option<ContainerId> {
    if bundle.file_name()? != "userdata" {
        return None;
    }
    bundle.parent()?.file_name()?.to_str()?.parse().ok()
}

/// A trust error as one of the host's.
impl From<TrustError> for DoorError {
    fn from(error: TrustError) -> Self {
        DoorError::Host(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(bytes: &[u8]) -> Result<Vec<u8>, DoorError> {
        let mut to = Vec::new();
        let container = Container {
            bundle: Path::new("/"),
            id: None,
            sees_exec: false,
        };
        let door = Door {
            stage: crate::maker::Stage::Precreate,
            bundle: Path::new("/"),
            root: None,
        };
        stream(bytes, &mut to, container, door, Path::new("/none"))?;
        Ok(to)
    }

    #[test]
    fn what_asks_for_nothing_is_copied_whatever_it_is_and_however_long() {
        for bytes in [&b""[..], b"{}", b"not json \xff", b"{\"a\": 1e3 }\n"] {
            assert_eq!(copied(bytes).unwrap(), bytes);
        }
        let mut long = vec![b'x'; scan::MAX_BYTES + 200_001];
        assert_eq!(copied(&long).unwrap(), long);
        long.extend(b"onload.dev/nic");
        assert!(matches!(
            copied(&long),
            Err(DoorError::Filter(FilterError::TooLarge))
        ));
    }

    /// The sweep of another container finds the directory of an earlier start, and removes it while
    /// this one waits for the lock.
    #[test]
    fn a_restart_that_meets_a_sweep_has_a_directory_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let run = || RunDir::find(dir.path()).unwrap().unwrap();
        let id: ContainerId = "c1".parse().unwrap();
        std::fs::create_dir(dir.path().join("c1")).unwrap();
        std::fs::write(dir.path().join("c1/created"), "{}").unwrap();
        let mut sweeper = run().lock_if_free();
        let lock = run().lock_while(Kind::Shared, &mut || {
            poststop::clear(&run(), &id, sweeper.take().as_ref()).unwrap();
            assert!(!dir.path().join("c1").exists());
            true
        });
        let own = OwnDir::make(run(), &id, lock).unwrap();
        own.write("ld.so.preload", b"x").unwrap();
        assert!(dir.path().join("c1/ld.so.preload").exists());
    }

    #[test]
    fn a_stranger_s_lock_costs_a_start_a_line_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let run = || RunDir::find(dir.path()).unwrap().unwrap();
        let stranger = run().lock_if_free();
        let lock = run().lock_while(Kind::Shared, &mut || false);
        let own = OwnDir::make(run(), &"c1".parse().unwrap(), lock).unwrap();
        let line = own.warning.clone().unwrap();
        assert!(own.lock.is_none() && line.contains("holds it"), "{line}");
        own.write("ld.so.preload", b"x").unwrap();
        drop(stranger);
    }

    #[test]
    fn json_is_indented_and_keeps_its_spelling() {
        let json = br#"{"a":1e3,"b":[],"c":{"d":"x,{\"","e":[0.10, true]} }"#;
        assert_eq!(
            indent(json),
            "{\n  \"a\": 1e3,\n  \"b\": [],\n  \"c\": {\n    \"d\": \"x,{\\\"\",\n    \"e\": [\n      0.10,\n      true\n    ]\n  }\n}\n"
        );
    }

    #[test]
    fn a_configuration_too_long_to_be_shown_is_told_by_its_length() {
        let long = vec![b'['; MAX_SHOWN + 1];
        assert_eq!(
            shown(&long),
            "1048577 bytes, which is too long to be shown\n"
        );
        let deep = shown(&long[..MAX_SHOWN]);
        assert!(deep.len() < 40 * MAX_SHOWN, "{} bytes", deep.len());
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(
            indent("[\"\u{9b}31m\u{7f}\",\u{1b}]0;x]".as_bytes()),
            "[\n  \"\\u{9b}31m\\u{7f}\",\n  \\u{1b}\n]0;x\n]\n"
        );
    }

    #[test]
    fn the_name_of_a_podman_container_is_read_from_its_bundle() {
        let id = |path| podman_id(Path::new(path)).map(|id| id.to_string());
        assert_eq!(
            id("/var/lib/containers/storage/overlay-containers/ab12/userdata").as_deref(),
            Some("ab12")
        );
        assert_eq!(id("/bundle"), None);
        assert_eq!(id("/userdata"), None);
    }
}
