//! A copy of a captured host, with the specifications that it gets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::sources;

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
        let golden = sources().join("tests/golden").join(name);
        for entry in fs::read_dir(golden).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with("onload.dev-") {
                fs::copy(&path, host.spec_dir().join(name)).unwrap();
            }
        }
        host
    }

    /// A host without anything.
    pub(crate) fn empty() -> TestHost {
        let dir = tempfile::tempdir().unwrap();
        let host = TestHost { dir };
        fs::create_dir_all(host.root()).unwrap();
        fs::create_dir_all(host.spec_dir()).unwrap();
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

    pub(crate) fn plugin_dir(&self) -> PathBuf {
        self.dir.path().join("device-plugins")
    }

    /// Writes the configuration as an editor does: a new file takes the place of the old.
    pub(crate) fn config(&self, text: &str) -> &Self {
        let new = self.dir.path().join("config.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.config_path()).unwrap();
        self
    }

    /// Gives the devices of a specification the hooks that lease them: captured hosts have none, since no hook is
    /// installed there.
    pub(crate) fn lease_in_spec(&self, class: &str) {
        let path = self.spec_dir().join(format!("onload.dev-{class}.json"));
        let mut spec: serde_json::Value = serde_json::from_str(&read(&path)).unwrap();
        for device in spec["devices"].as_array_mut().unwrap() {
            let lease = format!("{class}:{}", device["name"].as_str().unwrap());
            let hook = |stage: &str| {
                serde_json::json!({
                    "hookName": stage,
                    "path": "/opt/onload-ctk/0.1.0/onload-hook",
                    "args": ["onload-hook", stage, "--memlock", "unlimited", "--lease", lease],
                    "env": ["PATH=/usr/bin"],
                    "timeout": 10,
                })
            };
            let hooks = [hook("createRuntime"), hook("poststop")];
            device["containerEdits"]["hooks"] = serde_json::json!(hooks);
        }
        fs::write(path, spec.to_string()).unwrap();
    }

    /// A container has a device, for a claim or for nobody's.
    pub(crate) fn lease(&self, device: &str, claim: Option<&str>) {
        let (class, name) = device.split_once(':').unwrap();
        let random = self.root().join("proc/sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        fs::write(random.join("boot_id"), "b\n").unwrap();
        let leases = self.root().join("run/onload-ctk/@leases");
        fs::create_dir_all(&leases).unwrap();
        let mut lease = serde_json::json!({
            "version": 1,
            "boot": "b",
            "container": "web",
            "bundle": "/bundles/web",
            "holder": {"reservation": {"token": "0".repeat(32), "expiresMs": u64::MAX}},
            "entryPoint": "test",
            "since": 0,
        });
        if let Some(claim) = claim {
            lease["claim"] = claim.into();
        }
        let file = leases.join(format!("{class}={name}#0"));
        fs::write(file, lease.to_string()).unwrap();
    }

    pub(crate) fn kubelet_dir(&self) -> PathBuf {
        self.dir.path().join("kubelet")
    }

    pub(crate) fn remove_from_spec(&self, class: &str, device: &str) {
        let path = self.spec_dir().join(format!("onload.dev-{class}.json"));
        let mut spec: serde_json::Value = serde_json::from_str(&read(&path)).unwrap();
        let devices = spec["devices"].as_array_mut().unwrap();
        let before = devices.len();
        devices.retain(|other| other["name"] != device);
        assert_eq!(devices.len() + 1, before);
        let new = path.with_extension("new");
        fs::write(&new, spec.to_string()).unwrap();
        fs::rename(new, path).unwrap();
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}
