//! A host in a directory: configuration, specifications, device nodes and what the kernel says of them.

use std::fs;
use std::ops::Deref;

use onload_test_needs as needs;
use onload_test_tree::Tree;
use serde_json::{Value, json};

use super::of_workspace;

/// A host that was captured, of which these tests take the specifications.
const CAPTURED: &str = "tests/golden/debian13-2numa-onload-rxe-vfio";

#[track_caller]
pub fn can_make() -> bool {
    needs::root("making device nodes")
}

pub struct TestNode(Tree);

impl Deref for TestNode {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.0
    }
}

impl TestNode {
    /// One that allows these classes and has no specification.
    pub fn bare(allow: &[&str], more: &str) -> TestNode {
        let tree = TestNode(Tree::on_disk());
        for dir in ["etc/onload-ctk", "etc/cdi", "run/cdi", "dev", "sys/class", "var"] {
            tree.directory(dir);
        }
        tree.link("var/run", "/run");
        tree.configure(allow, more);
        tree
    }

    /// The captured one: its specifications, and nodes with what the kernel says of them.
    pub fn captured() -> TestNode {
        let tree = TestNode::bare(&["nic", "nic-nodes", "profile", "ptp", "rdma", "hugepages"], "");
        for class in ["nic", "nic-nodes", "profile", "ptp", "hugepages"] {
            let name = format!("onload.dev-{class}.json");
            let text = fs::read_to_string(of_workspace(CAPTURED).join(&name)).unwrap();
            tree.file(&format!("run/cdi/{name}"), &text);
        }
        for (name, major) in [("onload", 243), ("onload_epoll", 242)] {
            tree.real_node(&format!("dev/{name}"), major, 0);
            tree.kernel(&format!("{name}/{name}/dev"), &format!("{major}:0"));
        }
        for minor in [0, 1] {
            tree.real_node(&format!("dev/ptp{minor}"), 247, minor);
            tree.kernel(&format!("ptp/ptp{minor}/dev"), &format!("247:{minor}"));
        }
        tree
    }

    /// HCAs `m0`, `m1`, … of which each is for one container, and their pool `any`.
    pub fn with_pool(count: u32) -> TestNode {
        let tree = TestNode::bare(&["rdma"], "[leases]\nshare = { rdma = 1 }\n");
        let hook = |stage: &str, args: &[&str]| {
            let args = [&["onload-hook", stage], args].concat();
            json!({"hookName": stage, "path": "/usr/bin/onload-hook", "args": args,
                   "env": ["PATH=/usr/bin"]})
        };
        let mut devices: Vec<Value> = Vec::new();
        for number in 0..count {
            let (name, node) = (format!("m{number}"), format!("infiniband/uverbs{number}"));
            tree.directory("dev/infiniband");
            tree.real_node(&format!("dev/{node}"), 231, 192 + number);
            let verbs = format!("infiniband_verbs/uverbs{number}");
            tree.kernel(&format!("{verbs}/ibdev"), &name);
            tree.kernel(&format!("{verbs}/dev"), &format!("231:{}", 192 + number));
            tree.directory(&format!("sys/class/infiniband/{name}"));
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
        self.file(&format!("run/cdi/onload.dev-{name}.json"), spec.to_string());
    }

    pub fn kernel(&self, path: &str, text: &str) {
        self.attribute(&format!("sys/class/{path}"), text);
    }

    pub fn leased(&self) -> Vec<String> {
        let mut names = self.names("run/onload-ctk/@leases");
        names.retain(|name| !name.starts_with('.'));
        names
    }
}
