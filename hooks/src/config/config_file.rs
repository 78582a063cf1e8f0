//! A bundle's `config.json`: read once, then replaced completely or not at all.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use onload_cdi::oci::OciConfig;
use onload_core::container_id::ContainerId;
use onload_sys::error::{Context, Result, bail};
use onload_sys::fs::atomic::TempFile;
use onload_sys::fs::attributes;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::decision_input::into_text;
use super::scan::{self, ScanResult, ScanScope};
use crate::decide::subject::CONFIG_JSON;

#[derive(Debug)]
pub(crate) struct OciConfigFile {
    dir: OwnedFd,
    name: OsString,
    path: PathBuf,
    file: File,
    stat: Stat,
    is_link: bool,
}

impl OciConfigFile {
    pub(crate) fn open(bundle: &Path, config: Option<&Path>) -> Result<Self> {
        let path = config_path(bundle, config);
        OciConfigFile::open_at(&path).with_context(|| read_context(&path))?.check_regular()
    }

    /// As [`OciConfigFile::open`]; `None` if there is no file.
    pub(crate) fn find(bundle: &Path, config: Option<&Path>) -> Result<Option<Self>> {
        let path = config_path(bundle, config);
        match OciConfigFile::open_at(&path) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            opened => Ok(Some(opened.with_context(|| read_context(&path))?.check_regular()?)),
        }
    }

    fn open_at(path: &Path) -> Result<Self, Errno> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL);
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent, flags, Mode::empty())?;
        // Opening a FIFO must not block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |flags| openat(&dir, name, flags, Mode::empty());
        let (file, is_link) = match open(flags | OFlags::NOFOLLOW) {
            Err(Errno::LOOP) => (open(flags)?, true),
            opened => (opened?, false),
        };
        Ok(OciConfigFile {
            stat: fstat(&file)?,
            name: name.to_owned(),
            path: path.to_owned(),
            file: File::from(file),
            dir,
            is_link,
        })
    }

    fn check_regular(self) -> Result<Self> {
        if FileType::from_raw_mode(self.stat.st_mode) != FileType::RegularFile {
            bail!("{:?} is not a regular file", self.path);
        }
        Ok(self)
    }

    /// Reads as much of it as is ever parsed, and searches all of it for a request.
    pub(crate) fn scan(&self, scope: ScanScope) -> Result<ScanResult> {
        let size = usize::try_from(self.stat.st_size).unwrap_or_default();
        let scan_result = scan::read(&self.file, size, scope, &mut |_, _| Ok(()));
        scan_result.with_context(|| read_context(&self.path))
    }

    /// Replaces it completely or not at all. The new file has the owner, mode and label of the old one.
    pub(crate) fn replace(&self, bytes: &[u8]) -> Result<()> {
        self.check_replaceable()?;
        let path = &self.path;
        let replacing = || format!("replacing {path:?}");
        let mode = self.stat.st_mode & 0o7777;
        let mut temporary =
            TempFile::create(self.dir.as_fd(), &self.name, mode).with_context(replacing)?;
        if let Err(failed) = attributes::copy(&self.file, &self.stat, temporary.file()) {
            let sentence = format!("giving the new {path:?} the {} of the old one", failed.what);
            return Err(failed.error).context(sentence);
        }
        temporary.write(bytes).with_context(replacing)?;
        // Without synchronising the file, some file systems leave it empty after a power loss, and a bundle that a user
        // starts with `run -b` would stay broken. The directory needs none: the next start finds either the old file or
        // the new one, and both are complete.
        temporary.commit_without_dir_sync().with_context(replacing)
    }

    /// Refuses a file where replacing it would replace something else as well.
    fn check_replaceable(&self) -> Result<()> {
        let problem = if self.is_link {
            "is a symbolic link".to_owned()
        } else if self.stat.st_nlink != 1 {
            format!("has {} names", self.stat.st_nlink)
        } else if self.stat.st_uid != 0 && self.stat.st_uid != geteuid().as_raw() {
            format!("belongs to user {}", self.stat.st_uid)
        } else {
            return Ok(());
        };
        bail!(
            "{:?} {problem}, so it is not replaced; onload.dev annotations need a configuration \
             that belongs only to the bundle",
            self.path
        )
    }
}

/// Reads the configuration of a bundle, whatever it requests.
pub(crate) fn read_config(bundle: &Path) -> Result<OciConfig> {
    let scan_result = OciConfigFile::open(bundle, None)?.scan(ScanScope::Annotations)?;
    OciConfig::parse_text(into_text(scan_result.kept)?).context(CONFIG_JSON)
}

/// The file of the network namespace that a container joins; `None` if it gets a new one, or the
/// configuration is gone.
pub(crate) fn network_namespace(bundle: &Path) -> Option<PathBuf> {
    let config = read_config(bundle).ok()?;
    let paths = config.namespace_paths("network").ok()?;
    let path = PathBuf::from(paths.into_iter().next()?);
    Some(path).filter(|path| path.is_absolute())
}

fn config_path(bundle: &Path, config: Option<&Path>) -> PathBuf {
    let bundle = if bundle.as_os_str().is_empty() { Path::new(".") } else { bundle };
    bundle.join(config.unwrap_or(Path::new("config.json")))
}

fn read_context(path: &Path) -> String {
    format!("reading {path:?}")
}

/// The id of the container whose bundle podman keeps at `…/ID/userdata`.
pub(crate) fn podman_container_id(bundle: &Path) -> Option<ContainerId> {
    if bundle.file_name()? != "userdata" {
        return None;
    }
    bundle.parent()?.file_name()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn bundle() -> tempfile::TempDir {
        let bundle = tempfile::tempdir().unwrap();
        fs::write(bundle.path().join("config.json"), "{}").unwrap();
        bundle
    }

    fn open(bundle: &Path) -> Result<OciConfigFile> {
        OciConfigFile::open(bundle, None)
    }

    #[test]
    fn it_is_replaced_with_its_mode_and_nothing_is_left_beside_it() {
        let bundle = bundle();
        let path = bundle.path().join("config.json");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let before = fs::metadata(&path).unwrap();
        let file = open(bundle.path()).unwrap();
        assert_eq!(file.scan(ScanScope::Annotations).unwrap().kept, b"{}");
        file.replace(b"{\"a\":1}").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{\"a\":1}");
        let after = fs::metadata(&path).unwrap();
        assert_eq!(
            (after.mode(), after.uid(), after.gid()),
            (before.mode(), before.uid(), before.gid())
        );
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_read_and_never_replaced() {
        let bundle = bundle();
        let path = bundle.path().join("config.json");
        fs::rename(&path, bundle.path().join("real.json")).unwrap();
        symlink("real.json", &path).unwrap();
        let file = open(bundle.path()).unwrap();
        assert_eq!(file.scan(ScanScope::Annotations).unwrap().kept, b"{}");
        assert!(file.replace(b"x").unwrap_err().to_string().contains("is a symbolic link"));
        assert_eq!(fs::read(bundle.path().join("real.json")).unwrap(), b"{}");
    }

    #[test]
    fn a_hard_link_is_never_replaced() {
        let bundle = bundle();
        fs::hard_link(bundle.path().join("config.json"), bundle.path().join("other")).unwrap();
        let message = open(bundle.path()).unwrap().replace(b"x").unwrap_err().to_string();
        assert!(message.contains("has 2 names"), "{message}");
    }

    #[test]
    fn a_file_of_somebody_else_is_never_replaced() {
        if !onload_test_needs::root("changing an owner") {
            return;
        }
        let bundle = bundle();
        std::os::unix::fs::chown(bundle.path().join("config.json"), Some(4242), Some(4242))
            .unwrap();
        let message = open(bundle.path()).unwrap().replace(b"x").unwrap_err().to_string();
        assert!(message.contains("belongs to user 4242"), "{message}");
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let bundle = tempfile::tempdir().unwrap();
        let path = bundle.path().join("config.json");
        let refused = || open(bundle.path()).unwrap_err().to_string();
        assert_eq!(refused(), format!("reading {path:?}"));
        assert!(OciConfigFile::find(bundle.path(), None).unwrap().is_none());
        fs::create_dir(&path).unwrap();
        let not_regular = format!("{path:?} is not a regular file");
        assert_eq!(refused(), not_regular);
        fs::remove_dir(&path).unwrap();
        let mode = Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
        assert_eq!(refused(), not_regular);
    }

    #[test]
    fn another_name_is_taken_from_the_bundle() {
        let bundle = bundle();
        fs::write(bundle.path().join("x.json"), "[]").unwrap();
        let file = OciConfigFile::open(bundle.path(), Some(Path::new("x.json"))).unwrap();
        assert_eq!(file.scan(ScanScope::Annotations).unwrap().kept, b"[]");
    }

    #[test]
    fn the_name_of_a_podman_container_is_read_from_its_bundle() {
        let id = |path| podman_container_id(Path::new(path)).map(|id| id.to_string());
        assert_eq!(
            id("/var/lib/containers/storage/overlay-containers/ab12/userdata").as_deref(),
            Some("ab12")
        );
        assert_eq!(id("/bundle"), None);
        assert_eq!(id("/userdata"), None);
    }

    #[test]
    fn the_network_namespace_is_read_whatever_stands_beside_it() {
        let bundle = bundle();
        let config = bundle.path().join("config.json");
        let named = |json: &str| {
            fs::write(&config, json).unwrap();
            network_namespace(bundle.path())
        };
        let json = r#"{"ociVersion":"1.0.2","linux":{"resources":{},"namespaces":[{"type":"pid"},
            {"type":"network","path":"/run/netns/a"}]}}"#;
        assert_eq!(named(json), Some(PathBuf::from("/run/netns/a")));
        for json in [
            r#"{"linux":{"namespaces":[{"type":"network"}]}}"#,
            r#"{"linux":{"namespaces":[{"type":"network","path":"relative"}]}}"#,
            r#"{"linux":{"namespaces":[{"type":"pid","path":"/a"}]}}"#,
            r#"{"linux":{"namespaces":7}}"#,
            "{}",
            "",
        ] {
            assert_eq!(named(json), None, "{json}");
        }
    }
}
