//! Containers whose image is laid out as Red Hat does it: libraries in /usr/lib64, no multiarch
//! directory, and a loader that searches /lib64 and /usr/lib64. No image of Red Hat's is here: the
//! files are this Debian machine's, the places are Red Hat's, and the loader is Debian's with Red Hat's
//! directories written into it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, oci, skipped, stderr, stdout, unique,
};
use onload_test_tree::copy_program;
use serde_json::{Value, json};

const ROOT: &str = "/bundle/rootfs";
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const RUNTIMES: [&str; 2] = ["runc", "crun"];

/// Says where libonload.so is mapped from, whether the node opens, and which directories are there.
const LOOK: &str = "while read -r line; do case $line in *libonload.so*) echo mapped ${line##* }; break;; esac; done < /proc/self/maps; \
     exec 3>/dev/onload && echo opened; \
     for d in /usr/lib64 /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu; do test -e $d && echo has $d; done; ";

/// A host with a bundle whose root is laid out as Red Hat does it.
fn host(config: &Value) -> Sandbox {
    let sandbox = Sandbox::new();
    // One that no runtime gives by itself: the kernel's log.
    fs::remove_file(sandbox.path("/dev/onload")).unwrap();
    sandbox.node("/dev/onload", 1, 11);
    for dir in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "proc", "sys", "etc", "tmp"] {
        sandbox.mkdir(&format!("{ROOT}/{dir}"));
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), sandbox.path(&format!("{ROOT}/{name}"))).unwrap();
    }
    let place = |path: &str| sandbox.path(&format!("{ROOT}/{path}"));
    copy_program("/bin/dash", place("usr/bin/sh"));
    fs::copy(LIBC, place("usr/lib64/libc.so.6")).unwrap();
    copy_program(LOADER, place("usr/lib64/ld-linux-x86-64.so.2"));
    fs::write(place("usr/lib64/ld-linux-x86-64.so.2"), red_hat_loader()).unwrap();
    cache(&place(""));
    sandbox.file("/bundle/config.json", config.to_string());
    sandbox
}

/// Debian's loader, searching Red Hat's directories: each name is filled up with slashes to the length
/// of the one in its place, since the loader knows how long they are.
fn red_hat_loader() -> Vec<u8> {
    let mut loader = fs::read(LOADER).unwrap();
    // The longer one first, which the other is a part of.
    for (debian, red_hat) in
        [("/usr/lib/x86_64-linux-gnu/", "/usr/lib64"), ("/lib/x86_64-linux-gnu/", "/lib64")]
    {
        let name = format!("{red_hat:/<width$}", width = debian.len());
        let mut replaced = 0;
        while let Some(at) =
            loader.windows(debian.len()).position(|bytes| bytes == debian.as_bytes())
        {
            loader[at..at + debian.len()].copy_from_slice(name.as_bytes());
            replaced += 1;
        }
        assert!(replaced > 0, "{LOADER} does not search {debian}");
    }
    loader
}

/// The loader's cache, as ldconfig writes it when an image is made: before there is a libonload.so.
fn cache(root: &Path) {
    fs::write(root.join("etc/ld.so.conf"), "/lib64\n/usr/lib64\n").unwrap();
    let mut ldconfig = Command::new("/sbin/ldconfig");
    let made = ldconfig.arg("-r").arg(root).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let cache = fs::read(root.join("etc/ld.so.cache")).unwrap();
    let has = |name: &str| cache.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    assert!(has("lib64/libc.so.6") && !has("libonload"));
}

fn has(runtime: &str) -> bool {
    let found = has_runc() && Path::new("/usr/bin").join(runtime).exists();
    if !found {
        skipped(&format!("running a bundle needs root and {runtime}"));
    }
    found
}

/// Runs the bundle by a program that takes the options of the runtime; crun wants one kind of
/// hierarchy.
fn run(sandbox: &Sandbox, program: &str, runtime: &str, name: &str) -> Output {
    let (before, options) = match runtime {
        "crun" => ("umount /sys/fs/cgroup/unified 2> /tmp/said;", "--cgroup-manager=cgroupfs"),
        _ => ("", ""),
    };
    let id = unique(&format!("{runtime}-{name}"));
    let script = format!(
        "{before} exec timeout 60 {program} {options} --root /run/runc run -b /bundle {id}"
    );
    sandbox.script(&script, b"")
}

fn by_wrapper(sandbox: &Sandbox, runtime: &str, name: &str) -> Output {
    let path = format!("[runtime]\npath = \"/usr/bin/{runtime}\"");
    sandbox.allow(&["nic"], &path);
    let output = run(sandbox, WRAPPER_THERE, runtime, name);
    oci(sandbox.read("/bundle/config.json").as_bytes());
    output
}

fn by_hook(sandbox: &Sandbox, runtime: &str, name: &str) -> Output {
    run(sandbox, runtime, runtime, name)
}

/// The same configuration with our hook, for a container that its runtime has already made.
fn live(mut config: Value) -> Value {
    let hook = |stage: &str| {
        json!([{"path": HOOK_THERE, "args": ["onload-hook", stage],
                "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 10}])
    };
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    config
}

/// No directory of Debian's was made, by anybody, and nothing of ours is left by the hook.
fn assert_layout(sandbox: &Sandbox) {
    let inside = |dir: &str| sandbox.tree.names(&format!("{ROOT}/{dir}"));
    assert_eq!(inside("usr/lib"), [""; 0]);
    assert_eq!(inside("lib"), [""; 0]);
}

/// The container has the library of /usr/lib64 in its processes, opened the node, and said `more`.
#[track_caller]
fn assert_loaded(sandbox: &Sandbox, output: &Output, more: &str, runtime: &str) {
    assert_eq!(
        stdout(output),
        format!("mapped /usr/lib64/libonload.so\nopened\nhas /usr/lib64\n{more}"),
        "{runtime}: {}",
        stderr(output)
    );
    assert_layout(sandbox);
}

#[test]
fn the_loader_that_the_tests_start_with_searches_lib64_alone() {
    if !has("runc") {
        return;
    }
    let sandbox = host(&json!({}));
    for (dir, found) in [("usr/lib64", true), ("usr/lib/x86_64-linux-gnu", false)] {
        sandbox.mkdir(&format!("{ROOT}/{dir}"));
        let library = sandbox.path("/opt/onload/lib/libonload.so");
        fs::copy(library, sandbox.path(&format!("{ROOT}/{dir}/libonload.so"))).unwrap();
        let mut chroot = Command::new("chroot");
        chroot.arg(sandbox.path(ROOT)).arg(LOADER);
        chroot.args(["--preload", "libonload.so", "/bin/sh", "-c", ":"]);
        let output = chroot.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).is_empty(), found, "{dir}: {}", stderr(&output));
        fs::remove_file(sandbox.path(&format!("{ROOT}/{dir}/libonload.so"))).unwrap();
    }
}

#[test]
fn by_annotation_the_library_is_preloaded_from_usr_lib64_and_no_multiarch_directory_is_made() {
    for runtime in RUNTIMES.into_iter().filter(|runtime| has(runtime)) {
        let command = format!("{LOOK} echo $LD_PRELOAD");
        let sandbox = host(&config(&json!({"onload.dev/nic": "all"}), &command));
        let output = by_wrapper(&sandbox, runtime, "env");
        assert_loaded(&sandbox, &output, "libonload.so\n", runtime);
    }
}

#[test]
fn a_preload_list_names_a_library_that_the_loader_finds_in_usr_lib64() {
    for runtime in RUNTIMES.into_iter().filter(|runtime| has(runtime)) {
        let annotations = json!({"onload.dev/nic": "all", "onload.dev/preload": "file"});
        let command = format!("{LOOK} read -r line < /etc/ld.so.preload; echo $line");
        let mut asking = config(&annotations, &command);
        asking["process"]["rlimits"] =
            json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
        let sandbox = host(&asking);
        let output = by_wrapper(&sandbox, runtime, "file");
        assert_loaded(&sandbox, &output, "libonload.so\n", runtime);
    }
}

#[test]
fn a_container_that_its_runtime_has_made_gets_the_library_in_usr_lib64_alone() {
    for runtime in RUNTIMES.into_iter().filter(|runtime| has(runtime)) {
        let command = format!("{LOOK} read -r line < /etc/ld.so.preload; echo $line");
        let asking = live(config(&json!({"onload.dev/nic": "all"}), &command));
        let sandbox = host(&asking);
        let output = by_hook(&sandbox, runtime, "live");
        assert_loaded(&sandbox, &output, "/usr/lib64/libonload.so\n", runtime);
        let libraries = sandbox.tree.names(&format!("{ROOT}/usr/lib64"));
        assert_eq!(libraries, ["ld-linux-x86-64.so.2", "libc.so.6"]);
    }
}

#[test]
fn what_the_wrapper_gave_the_hook_has_nothing_to_add_to() {
    if !has("runc") {
        return;
    }
    // Devices are closed to the hook, so that it fails where it has something left to give.
    let asking = live(config(&json!({"onload.dev/nic": "all"}), LOOK));
    let sandbox = host(&asking);
    sandbox.allow(&["nic"], "live-devices = false\n[runtime]\npath = \"/usr/bin/runc\"");
    let output = run(&sandbox, WRAPPER_THERE, "runc", "both");
    assert_loaded(&sandbox, &output, "", "runc");
}

#[test]
fn a_glibc_in_usr_lib64_that_cannot_load_the_library_stops_the_container() {
    for runtime in RUNTIMES.into_iter().filter(|runtime| has(runtime)) {
        let sandbox = host(&config(&json!({"onload.dev/nic": "all"}), LOOK));
        // A glibc that defines no version that anybody asks for.
        let libc = sandbox.path(&format!("{ROOT}/usr/lib64/libc.so.6"));
        let mut bytes = fs::read(&libc).unwrap();
        for at in 0..bytes.len().saturating_sub(6) {
            if bytes[at..].starts_with(b"GLIBC_") {
                bytes[at] = b'H';
            }
        }
        fs::write(&libc, bytes).unwrap();
        let output = by_wrapper(&sandbox, runtime, "old");
        assert!(!output.status.success(), "{}", stdout(&output));
        let message = stderr(&output);
        assert!(message.contains("the image's glibc is"), "{message}");
        assert_layout(&sandbox);
    }
}

#[test]
fn a_volume_over_usr_lib64_is_refused_and_stays_empty() {
    for runtime in RUNTIMES.into_iter().filter(|runtime| has(runtime)) {
        let mut asking = config(&json!({"onload.dev/nic": "all"}), LOOK);
        let mounts = asking["mounts"].as_array_mut().unwrap();
        mounts.push(
            json!({"destination": "/usr/lib64", "type": "bind", "source": "/volume", "options": ["bind", "rw"]}),
        );
        let sandbox = host(&asking);
        sandbox.mkdir("/volume");
        let output = by_wrapper(&sandbox, runtime, "volume");
        assert!(!output.status.success(), "{}", stdout(&output));
        let message = stderr(&output);
        assert!(message.contains("is below the mount at"), "{message}");
        assert_eq!(sandbox.tree.names("/volume"), [""; 0]);
        assert_layout(&sandbox);
    }
}

#[test]
fn a_link_in_the_place_of_usr_lib64_that_leads_into_a_volume_is_refused() {
    if !has("runc") {
        return;
    }
    let mut asking = config(&json!({"onload.dev/nic": "all"}), LOOK);
    let mounts = asking["mounts"].as_array_mut().unwrap();
    mounts.push(
        json!({"destination": "/host", "type": "bind", "source": "/volume", "options": ["bind", "rw"]}),
    );
    let sandbox = host(&asking);
    sandbox.mkdir("/volume");
    sandbox.mkdir(&format!("{ROOT}/host"));
    // The image has Debian's directory too, so that it could do without.
    sandbox.mkdir(&format!("{ROOT}/usr/lib/x86_64-linux-gnu"));
    let lib64 = sandbox.path(&format!("{ROOT}/usr/lib64"));
    fs::rename(&lib64, sandbox.path(&format!("{ROOT}/usr/moved"))).unwrap();
    symlink("/host/lib64", lib64).unwrap();
    let output = by_wrapper(&sandbox, "runc", "link");
    assert!(!output.status.success(), "{}", stdout(&output));
    let message = stderr(&output);
    assert!(message.contains("is below the mount at"), "{message}");
    assert_eq!(sandbox.tree.names("/volume"), [""; 0]);
}
