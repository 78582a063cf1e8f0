//! What an agent of a cluster engine has: a host, and in directories beside it what belongs to the agent.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::sample;
use crate::tree::Tree;

/// A host with its specifications in a directory beside it, and an agent's configuration.
#[derive(Debug)]
pub struct AgentHost(Tree);

impl Deref for AgentHost {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.0
    }
}

impl AgentHost {
    /// A host without anything.
    pub fn empty() -> AgentHost {
        let directory = tempfile::tempdir().unwrap();
        let host = AgentHost(Tree::below(directory, "root"));
        for directory in [host.spec_dir(), host.sockets()] {
            fs::create_dir(directory).unwrap();
        }
        host
    }

    /// A captured host that has started. Its specifications are the golden files that `onload-ctk cdi generate` is
    /// held to.
    pub fn captured(name: &str) -> AgentHost {
        let host = AgentHost::empty();
        host.take_sample(name);
        host.boot("a-boot");
        let golden = sample::sources().join("tests/golden").join(name);
        for entry in fs::read_dir(golden).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with("onload.dev-") {
                fs::copy(&path, host.spec_dir().join(name)).unwrap();
            }
        }
        host
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.root().with_file_name(name)
    }

    pub fn config_path(&self) -> PathBuf {
        self.beside("config.toml")
    }

    pub fn spec_dir(&self) -> PathBuf {
        self.beside("cdi")
    }

    /// Short, as paths of sockets have to be.
    pub fn sockets(&self) -> PathBuf {
        self.beside("s")
    }

    pub fn plugin_dir(&self) -> PathBuf {
        self.beside("device-plugins")
    }

    pub fn kubelet_dir(&self) -> PathBuf {
        self.beside("kubelet")
    }

    /// Writes the configuration as an editor does: a new file takes the place of the old.
    pub fn config(&self, text: &str) -> &Self {
        replace(&self.config_path(), text);
        self
    }

    pub fn change_spec(&self, class: &str, change: impl FnOnce(&mut Value)) {
        let path = self.spec_dir().join(format!("onload.dev-{class}.json"));
        let mut spec = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut spec);
        replace(&path, &spec.to_string());
    }

    pub fn remove_from_spec(&self, class: &str, device: &str) {
        self.change_spec(class, |spec| {
            let devices = spec["devices"].as_array_mut().unwrap();
            let before = devices.len();
            devices.retain(|other| other["name"] != device);
            assert_eq!(devices.len() + 1, before);
        });
    }

    /// Gives the devices of a specification the hooks that lease them: captured hosts have none, since no hook is
    /// installed there.
    pub fn lease_in_spec(&self, class: &str) {
        self.change_spec(class, |spec| {
            for device in spec["devices"].as_array_mut().unwrap() {
                let lease = format!("{class}:{}", device["name"].as_str().unwrap());
                let hook = |stage: &str| {
                    json!({
                        "hookName": stage,
                        "path": "/opt/onload-ctk/0.1.0/onload-hook",
                        "args": ["onload-hook", stage, "--memlock", "unlimited", "--lease", lease],
                        "env": ["PATH=/usr/bin"],
                        "timeout": 10,
                    })
                };
                device["containerEdits"]["hooks"] =
                    json!([hook("createRuntime"), hook("poststop")]);
            }
        });
    }

    /// A container has a device, for a claim or for nobody's.
    pub fn lease(&self, device: &str, claim: Option<&str>) {
        let mut lease = json!({
            "version": 1,
            "boot": "a-boot",
            "container": "web",
            "bundle": "/bundles/web",
            "holder": {"reservation": {"token": "0".repeat(32), "expiresMs": u64::MAX}},
            "entryPoint": "test",
            "since": 0,
        });
        if let Some(claim) = claim {
            lease["claim"] = claim.into();
        }
        let name = device.replacen(':', "=", 1);
        self.boot("a-boot");
        self.file(&format!("run/onload-ctk/@leases/{name}#0"), lease.to_string());
    }
}

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new~");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}
