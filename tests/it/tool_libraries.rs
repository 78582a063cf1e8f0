//! `[cdi] tool-libraries`: a tool that needs more than libc, in a container with nothing but a shell.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::hosts::x3;
use crate::common::{Commands, Tree, each, package, skipped, text, texts};
use onload_test_tree::copy_program;
use serde_json::{Value, json};

const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu";
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const STARTER: &str = "/usr/share/onload-ctk/start-tool";
const TOOL: &str = "/usr/bin/onload_stackdump";
const PRIVATE: &str = "/usr/lib/onload-ctk/onload";
const ON: &str = "[cdi]\ntool-libraries = true\n";

/// A file of this machine.
fn own(path: &str) -> Vec<u8> {
    fs::read(path).unwrap()
}

/// A host whose onload_stackdump needs a libpcap.so.0.8, which needs a libtinfo.so.6. The first is a
/// shell of this machine, since only what it needs is looked at.
fn host() -> Tree {
    let tree = x3();
    tree.config(ON);
    tree.program(STARTER, own(&package().join("packaging/start-tool").to_string_lossy()));
    tree.file(&format!("{MULTIARCH}/libpcap.so.0.8"), own("/bin/bash"));
    // On another way than the first.
    tree.file("/usr/lib64/libtinfo.so.6", own("/lib/x86_64-linux-gnu/libtinfo.so.6"));
    tree.file("/lib/x86_64-linux-gnu/libc.so.6", own("/lib/x86_64-linux-gnu/libc.so.6"));
    tree.program(LOADER, own(LOADER));
    tree
}

/// Why a tool is not offered.
#[track_caller]
fn reason(found: &Value, name: &str) -> String {
    let mut refused = found["not_offered"].as_array().unwrap().iter();
    let entry = refused.find(|entry| entry["name"] == name).unwrap();
    text(&entry["reason"])
}

fn mounts(spec: &Value) -> Vec<(String, String)> {
    let mounts = &spec["containerEdits"]["mounts"];
    let (from, to) = (each(mounts, "hostPath"), each(mounts, "containerPath"));
    from.into_iter().zip(to).collect()
}

#[test]
fn a_tool_comes_with_its_loader_and_every_library_in_a_directory_of_its_own() {
    let tree = host();
    tree.config("");
    let without = mounts(&tree.spec("nic"));
    tree.config(ON);
    let spec = tree.spec("nic");
    let mut added = mounts(&spec);
    added.retain(|mount| !without.contains(mount));
    let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let other = "/usr/bin/onload_tcpdump.bin";
    // Both need libpcap, which is there once.
    let wanted = [
        pair(STARTER, TOOL),
        pair(STARTER, other),
        pair(LOADER, &format!("{PRIVATE}/ld.so")),
        pair("/lib/x86_64-linux-gnu/libc.so.6", &format!("{PRIVATE}/libc.so.6")),
        pair(&format!("{MULTIARCH}/libpcap.so.0.8"), &format!("{PRIVATE}/libpcap.so.0.8")),
        pair("/usr/lib64/libtinfo.so.6", &format!("{PRIVATE}/libtinfo.so.6")),
        pair(TOOL, &format!("{PRIVATE}/onload_stackdump")),
        pair(other, &format!("{PRIVATE}/onload_tcpdump.bin")),
    ];
    assert_eq!(added, wanted);
    for mount in spec["containerEdits"]["mounts"].as_array().unwrap() {
        assert_eq!(texts(&mount["options"]), ["ro", "nosuid", "nodev", "bind"]);
    }
    assert_eq!(
        tree.written("nic-plain")["containerEdits"]["mounts"],
        spec["containerEdits"]["mounts"]
    );
    for class in ["nic-nodes", "zf"] {
        let found = mounts(&tree.written(class));
        assert!(found.iter().all(|(_, to)| !to.starts_with("/usr/lib/onload-ctk")), "{class}");
    }
    let found = tree.discover();
    assert!(texts(&found["onload"]["tools"]).contains(&"onload_stackdump".to_owned()));
    let refused = each(&found["not_offered"], "name");
    assert!(!refused.contains(&"onload_stackdump".to_owned()));
}

#[test]
fn a_tool_that_needs_nothing_more_stands_in_its_place_itself() {
    let tree = host();
    let found = mounts(&tree.spec("nic"));
    let fuser = "/usr/bin/onload_fuser".to_owned();
    assert!(found.contains(&(fuser.clone(), fuser)));
    tree.config(&format!("{ON}container-tool-dir = \"/opt/bin\"\n"));
    let found = mounts(&tree.spec("nic"));
    assert!(found.contains(&(STARTER.to_owned(), "/opt/bin/onload_stackdump".to_owned())));
    assert!(found.contains(&(TOOL.to_owned(), format!("{PRIVATE}/onload_stackdump"))));
    tree.config(&format!("{ON}container-tool-dir = \"\"\n"));
    let found = mounts(&tree.spec("nic"));
    assert!(found.iter().all(|(_, to)| !to.starts_with("/usr/lib/onload-ctk")));
}

#[test]
fn a_tool_that_cannot_be_given_what_it_needs_is_not_offered_with_the_reason() {
    let why = |tree: &Tree| {
        let found = tree.discover();
        let reason = reason(&found, "onload_stackdump");
        let places = mounts(&tree.spec("nic"));
        assert!(places.iter().all(|(_, to)| to != TOOL), "{reason}");
        reason
    };
    let tree = host();
    tree.config("");
    let without = "it needs libpcap.so.0.8, which images may lack";
    assert!(why(&tree).starts_with(without));
    let tree = host();
    tree.remove(STARTER);
    assert_eq!(
        why(&tree),
        format!(
            "it needs libpcap.so.0.8, which {STARTER} would provide, but that is missing; install \
             the package onload-ctk"
        )
    );
    let tree = host();
    tree.remove("/usr/lib64/libtinfo.so.6");
    let reason = why(&tree);
    assert!(
        reason.starts_with(&format!("it needs libtinfo.so.6, which is in none of {MULTIARCH}, ")),
        "{reason}"
    );
    assert!(reason.ends_with("; install it on this host"), "{reason}");
    let tree = host();
    tree.remove(LOADER);
    assert_eq!(why(&tree), format!("its dynamic loader {LOADER} is not on this host; install it"));
    // A name with a stroke is a path, which the loader would open in the container.
    let tree = host();
    let mut content = own("/bin/bash");
    let at = memchr::memmem::find(&content, b"libtinfo.so.6\0").unwrap();
    content[at] = b'/';
    tree.file(&format!("{MULTIARCH}/libpcap.so.0.8"), content);
    assert_eq!(
        why(&tree),
        "it needs \"/ibtinfo.so.6\", which is not a library name; run it on the host"
    );
}

#[test]
fn a_library_for_another_machine_is_passed_over_as_the_loader_does() {
    let tree = host();
    let mut other = own("/lib/x86_64-linux-gnu/libtinfo.so.6");
    // e_machine of AArch64.
    other[18] = 183;
    tree.file(&format!("{MULTIARCH}/libtinfo.so.6"), &other);
    let from = |tree: &Tree| {
        let found = mounts(&tree.spec("nic"));
        let to = format!("{PRIVATE}/libtinfo.so.6");
        found.into_iter().find(|mount| mount.1 == to).unwrap().0
    };
    assert_eq!(from(&tree), "/usr/lib64/libtinfo.so.6");
    tree.remove("/usr/lib64/libtinfo.so.6");
    let found = tree.discover();
    assert!(reason(&found, "onload_stackdump").starts_with("it needs libtinfo.so.6, "));
}

/// Puts what a specification mounts into a root file system, as far as these are files.
fn give(tree: &Tree, spec: &Value, root: &Path) {
    for (from, to) in mounts(spec) {
        let to = root.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        if tree.path(&from).is_file() {
            fs::copy(tree.path(&from), to).unwrap();
        }
    }
}

#[test]
fn the_tool_runs_in_an_image_with_other_libraries_of_the_same_names() {
    if !rustix::process::geteuid().is_root() {
        return skipped("chroot needs root");
    }
    let tree = host();
    // A real program that needs a library beside libc.
    tree.program(TOOL, own("/bin/bash"));
    let spec = tree.spec("nic-plain");
    // Memory may be mounted noexec.
    let image = tempfile::tempdir().unwrap();
    let at = |path: &str| image.path().join(path);
    for dir in ["bin", "lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib64"] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    copy_program("/bin/dash", at("bin/sh"));
    copy_program(LOADER, at("lib64/ld-linux-x86-64.so.2"));
    fs::copy("/lib/x86_64-linux-gnu/libc.so.6", at("lib/x86_64-linux-gnu/libc.so.6")).unwrap();
    // The image's own, which no program that asks for it could do without.
    let places = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib64"];
    for dir in places {
        fs::write(at(dir).join("libtinfo.so.6"), "the image's own").unwrap();
    }
    give(&tree, &spec, image.path());
    for dir in places {
        assert_eq!(fs::read(at(dir).join("libtinfo.so.6")).unwrap(), b"the image's own");
    }
    let run = |path: &str, more: &[(&str, &str)]| {
        let mut command = Command::new("chroot");
        command.arg(image.path()).arg(path).args([
            "-c",
            "echo \"$0 $1 ${LD_PRELOAD-unset}\"",
            "a",
            "b c",
        ]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(more.iter().copied()).output().unwrap()
    };
    let output = run(TOOL, &[]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a b c unset\n", "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{output:?}");
    assert!(output.status.success());
    // Neither the container's preload nor its library path reaches the tool.
    let surroundings = [("LD_PRELOAD", "/nowhere.so"), ("LD_LIBRARY_PATH", "/usr/lib64")];
    let output = run(TOOL, &surroundings);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a b c unset\n", "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.lines().count(), 2, "of chroot and the shell: {stderr}");
    // By itself the loader of the image finds the image's own, as for every program of the image.
    let output = run(&format!("{PRIVATE}/onload_stackdump"), &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("libtinfo.so.6"), "{stderr}");
    // The script in the place of nothing.
    copy_program(at(TOOL.trim_start_matches('/')), at("bin/other"));
    let output = run("/bin/other", &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(stderr, "other: it is not below /usr/lib/onload-ctk; start it by its own name\n");
}

#[test]
fn a_capture_of_the_host_offers_the_tool_too() {
    let tree = host();
    let dir = crate::common::scratch();
    let capture = dir.path().join("host.tar.zst");
    let words = ["discover", "--capture", capture.to_str().unwrap()];
    tree.run(&words).done();
    let unpacked = dir.path().join("host");
    fs::create_dir(&unpacked).unwrap();
    if !crate::common::has("tar") || !crate::common::has("zstd") {
        return skipped("there is no tar or no zstd");
    }
    let status = Command::new("tar").arg("-xf").arg(&capture).arg("-C").arg(&unpacked).status();
    assert!(status.unwrap().success());
    let found =
        crate::common::run(&mut crate::common::on(&unpacked, &["discover", "--format", "json"]))
            .done()
            .json();
    assert!(texts(&found["onload"]["tools"]).contains(&"onload_stackdump".to_owned()), "{found}");
    assert_eq!(found["not_offered"], tree.discover()["not_offered"]);
    assert_ne!(found["onload"], json!(null));
}
