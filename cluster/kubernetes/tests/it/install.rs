//! `install` and `uninstall` on trees that stand for a host: cases in `tests/cases/install`.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use onload_kubernetes::spec_writer::VERSION;
use onload_test_needs as needs;
use onload_test_tree::Tree;
use onload_test_tree::case::{self, Case};

/// A host, and an image with a program that prints what the hook prints.
struct Node {
    tree: Tree,
    image: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Node { tree: Tree::new(), image: tempfile::tempdir().unwrap() };
        node.tree.boot("b");
        let hook = node.image.path().join("onload-hook");
        fs::write(&hook, format!("#!/bin/sh\necho \"onload-hook {VERSION}\"\n")).unwrap();
        fs::set_permissions(hook, Permissions::from_mode(0o755)).unwrap();
        node
    }

    /// Runs shell commands in the host's root, in a mount namespace of their own. `$k` is the program with the host's root,
    /// `$image` the directory of the hook and of a configuration, `$v` the version. Returns what they print, and the changed
    /// files if they run the program.
    fn run(&self, command: &str) -> String {
        let script = format!(
            "exec 2>&1; k=\"$KUBERNETES --host-root $ROOT\" v={VERSION}
             if test -e $image/config.toml; then export ONLOAD_KUBERNETES_INSTALL_DEFAULT_CONFIG=$image/config.toml; fi
             {command}"
        );
        let before = self.files();
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "--propagation", "private", "sh", "-c", &script]);
        unshare.current_dir(self.tree.root()).env("ROOT", self.tree.root());
        unshare.env("KUBERNETES", env!("CARGO_BIN_EXE_onload-kubernetes"));
        unshare.env("image", self.image.path());
        unshare.env("ONLOAD_KUBERNETES_INSTALL_FROM", self.image.path().join("onload-hook"));
        let output = unshare.output().unwrap();
        let mut printed = String::from_utf8(output.stdout).unwrap();
        if !output.status.success() {
            printed += &format!("[exit {}]\n", output.status.code().unwrap());
        }
        if command.contains("$k ") {
            let changes = case::changes(&before, &self.files());
            let shown = changes.lines().map(|line| line.rsplit_once(" at ").unwrap().0);
            printed.extend(shown.map(|line| format!("{line}\n")));
        }
        printed
            .replace(self.image.path().to_str().unwrap(), "/image")
            .replace(self.tree.root().to_str().unwrap(), "")
            .replace(VERSION, "VERSION")
    }

    /// Mode of each file and directory of the host, and when it was written.
    fn files(&self) -> Vec<String> {
        let entries = walkdir::WalkDir::new(self.tree.root()).min_depth(1).sort_by_file_name();
        let describe = |entry: walkdir::DirEntry| {
            let metadata = entry.metadata().unwrap();
            let path = entry.path().strip_prefix(self.tree.root()).unwrap().display();
            let written = metadata.is_file().then(|| (metadata.mtime(), metadata.mtime_nsec()));
            format!("{path} {:o} at {written:?}", metadata.mode() & 0o7777)
        };
        entries.into_iter().map(Result::unwrap).map(describe).collect()
    }
}

#[test]
fn cases_of_install_print_what_their_files_say() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/install"), |case: &Case| {
        if !needs::mount_namespace("a host of root's files") {
            return None;
        }
        let node = Node::new();
        for (path, text) in case.files() {
            match path.strip_prefix("image/") {
                Some(name) => fs::write(node.image.path().join(name), text).unwrap(),
                None => {
                    node.tree.file(&path, text);
                }
            }
        }
        Some(move |command: &str| node.run(command))
    });
}

#[test]
fn the_hook_has_the_security_label_of_a_program() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const LABEL: &str = "security.selinux";
    let node = Node::new();
    node.tree.file("usr/bin/env", "");
    let program = node.tree.path("usr/bin/env");
    let label = b"system_u:object_r:bin_t:s0\0";
    let set = setxattr(program, LABEL, label, XattrFlags::empty());
    if !needs::mount_namespace("setting a security label")
        || !needs::on_this_machine(set.is_ok(), "its file system keeps no security labels")
    {
        return;
    }
    node.run("$k install");
    let mut found = [0; 64];
    let hook = node.tree.path(&format!("opt/onload-ctk/{VERSION}/onload-hook"));
    let length = getxattr(hook, LABEL, &mut found).unwrap();
    assert_eq!(&found[..length], label);
}
