//! A host in a directory: configuration, specifications, device nodes and what the kernel says of them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use onload_test_needs as needs;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};

use super::of_workspace;

/// A host that was captured, of which these tests take the specifications.
const CAPTURED: &str = "tests/golden/debian13-2numa-onload-rxe-vfio";

#[track_caller]
pub fn can_make() -> bool {
    needs::root("making device nodes")
}

pub struct Tree(tempfile::TempDir);

impl Tree {
    /// One that allows these classes and has no specification.
    pub fn bare(allow: &[&str], more: &str) -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for dir in [
            "etc/onload-ctk",
            "etc/cdi",
            "run/cdi",
            "dev",
            "sys/class",
            "var",
        ] {
            tree.mkdir(dir);
        }
        std::os::unix::fs::symlink("/run", tree.path("var/run")).unwrap();
        fs::set_permissions(tree.root(), Permissions::from_mode(0o755)).unwrap();
        tree.configure(allow, more);
        tree
    }

    /// The captured one: its specifications, and nodes with what the kernel says of them.
    pub fn captured() -> Tree {
        let tree = Tree::bare(
            &["nic", "nic-nodes", "profile", "ptp", "rdma", "hugepages"],
            "",
        );
        for class in ["nic", "nic-nodes", "profile", "ptp", "hugepages"] {
            let name = format!("onload.dev-{class}.json");
            let text = fs::read_to_string(of_workspace(CAPTURED).join(&name)).unwrap();
            tree.file(&format!("run/cdi/{name}"), &text);
        }
        for (name, major) in [("onload", 243), ("onload_epoll", 242)] {
            tree.node(&format!("dev/{name}"), major, 0);
            tree.kernel(&format!("{name}/{name}/dev"), &format!("{major}:0"));
        }
        for minor in [0, 1] {
            tree.node(&format!("dev/ptp{minor}"), 247, minor);
            tree.kernel(&format!("ptp/ptp{minor}/dev"), &format!("247:{minor}"));
        }
        tree
    }

    /// HCAs `m0`, `m1`, … of which each is for one container, and their pool `any`.
    pub fn with_pool(count: u32) -> Tree {
        let tree = Tree::bare(&["rdma"], "[leases]\nshare = { rdma = 1 }\n");
        let hook = |stage: &str, args: &[&str]| {
            let args = [&["onload-hook", stage], args].concat();
            json!({"hookName": stage, "path": "/usr/bin/onload-hook", "args": args,
                   "env": ["PATH=/usr/bin"]})
        };
        let mut devices: Vec<Value> = Vec::new();
        for number in 0..count {
            let (name, node) = (format!("m{number}"), format!("infiniband/uverbs{number}"));
            tree.mkdir("dev/infiniband");
            tree.node(&format!("dev/{node}"), 231, 192 + number);
            let verbs = format!("infiniband_verbs/uverbs{number}");
            tree.kernel(&format!("{verbs}/ibdev"), &name);
            tree.kernel(&format!("{verbs}/dev"), &format!("231:{}", 192 + number));
            tree.mkdir(&format!("sys/class/infiniband/{name}"));
            let expect = format!("/dev/{node}=rdma:{name}");
            devices.push(json!({"name": name, "containerEdits": {
                "deviceNodes": [{"path": format!("/dev/{node}"), "permissions": "rw"}],
                "hooks": [hook("createRuntime", &["--memlock", "unlimited", "--expect", &expect])],
                "env": [format!("ONLOAD_CTK_RDMA_{}={name}", name.to_uppercase())]}}));
        }
        let members: Vec<String> = (0..count).map(|number| format!("m{number}")).collect();
        let pool = json!({"name": "any",
            "annotations": {"onload.dev/pool-members": members.join(" "), "onload.dev/pool-share": "1"},
            "containerEdits": {"hooks": [hook("createRuntime", &["--take", "rdma:any"]),
                                         hook("poststop", &["--take", "rdma:any"])]}});
        tree.spec(
            "rdma",
            json!({"cdiVersion": "0.3.0", "kind": "onload.dev/rdma", "devices": devices}),
        );
        tree.spec(
            "rdma-pools",
            json!({"cdiVersion": "0.6.0", "kind": "onload.dev/rdma", "devices": [pool]}),
        );
        tree
    }

    pub fn configure(&self, allow: &[&str], more: &str) {
        let text = format!("[annotations]\nallow = {allow:?}\n{more}");
        self.file("etc/onload-ctk/config.toml", &text);
    }

    pub fn spec(&self, name: &str, spec: Value) {
        self.file(
            &format!("run/cdi/onload.dev-{name}.json"),
            &spec.to_string(),
        );
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub fn mkdir(&self, path: &str) {
        let mut at = self.0.path().to_owned();
        for part in path.split('/') {
            at.push(part);
            if !at.exists() {
                fs::create_dir(&at).unwrap();
                fs::set_permissions(&at, Permissions::from_mode(0o755)).unwrap();
            }
        }
    }

    pub fn file(&self, path: &str, text: &str) {
        if let Some((dir, _)) = path.rsplit_once('/') {
            self.mkdir(dir);
        }
        fs::write(self.path(path), text).unwrap();
        fs::set_permissions(self.path(path), Permissions::from_mode(0o644)).unwrap();
    }

    pub fn kernel(&self, path: &str, text: &str) {
        self.file(&format!("sys/class/{path}"), &format!("{text}\n"));
    }

    pub fn node(&self, path: &str, major: u32, minor: u32) {
        let mode = Mode::from_raw_mode(0o666);
        let number = makedev(major, minor);
        mknodat(
            CWD,
            self.path(path),
            FileType::CharacterDevice,
            mode,
            number,
        )
        .unwrap();
        fs::set_permissions(self.path(path), Permissions::from_mode(0o666)).unwrap();
    }

    pub fn leased(&self) -> Vec<String> {
        let Ok(files) = fs::read_dir(self.path("run/onload-ctk/@leases")) else {
            return Vec::new();
        };
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }
}
