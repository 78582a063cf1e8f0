//! A copy of a captured host, with the specifications that it gets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::sources;

/// The captured host with two ports of an X2, one of them bound to vfio by its virtual functions.
pub(crate) const X2: &str = "x2-2port-sriov";

pub(crate) struct TestHost {
    dir: TempDir,
}

impl TestHost {
    /// A captured host. Its specifications are the golden files that `onload-ctk cdi generate` is held to.
    pub(crate) fn captured(name: &str) -> TestHost {
        let host = TestHost::empty();
        let from = sources().join("tests/hosts").join(name).join(".");
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(from).arg(host.root());
        assert!(copy.status().unwrap().success());
        for entry in fs::read_dir(sources().join("tests/golden").join(name)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with("onload.dev-") {
                fs::copy(&path, host.spec_dir().join(name)).unwrap();
            }
        }
        host.write("proc/sys/kernel/random/boot_id", "a-boot\n");
        host
    }

    pub(crate) fn x2() -> TestHost {
        TestHost::captured(X2)
    }

    pub(crate) fn empty() -> TestHost {
        let dir = tempfile::tempdir().unwrap();
        let host = TestHost { dir };
        fs::create_dir_all(host.root()).unwrap();
        fs::create_dir_all(host.spec_dir()).unwrap();
        fs::create_dir_all(host.sockets()).unwrap();
        host
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    pub(crate) fn spec_dir(&self) -> PathBuf {
        self.dir.path().join("cdi")
    }

    pub(crate) fn sockets(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        replace(&self.root().join(path), text);
    }

    pub(crate) fn write_private(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        let new = path.with_extension("new~");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// Writes the configuration as an editor does: a new file takes the place of the old.
    pub(crate) fn config(&self, text: &str) -> &Self {
        replace(&self.config_path(), text);
        self
    }

    pub(crate) fn change_spec(&self, class: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let path = self.spec_dir().join(format!("onload.dev-{class}.json"));
        let mut spec = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut spec);
        replace(&path, &spec.to_string());
    }

    pub(crate) fn remove_from_spec(&self, class: &str, device: &str) {
        self.change_spec(class, |spec| {
            let devices = spec["devices"].as_array_mut().unwrap();
            let before = devices.len();
            devices.retain(|other| other["name"] != device);
            assert_eq!(devices.len() + 1, before);
        });
    }
}

fn replace(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let new = path.with_extension("new~");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}
