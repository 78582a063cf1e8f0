//! `status`: how containers do, on made-up hosts and with real containers of runc and podman.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::fuse;
use crate::common::hosts::x3;
use crate::common::{
    Commands, MULTIARCH, Run, Tree, each, is_root, needs, on, program, run, run_unprivileged,
    skipped, terminal, text,
};
use onload_test_tree::PATIENCE;
use serde_json::{Value, json};

pub(crate) const ID: &str = "3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a";
const OTHER: &str = "3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b";
const JSON: [&str; 3] = ["status", "--format", "json"];

/// A process of a host: of the host itself, or of docker's container with that id.
pub(crate) fn process(tree: &Tree, pid: u32, id: Option<&str>, name: &str) {
    let dir = format!("/proc/{pid}");
    let (cgroup, network, pids) = match id {
        None => ("0::/init.scope\n".to_owned(), "net:[1]", "pid:[1]"),
        Some(id) => (format!("0::/system.slice/docker-{id}.scope\n"), "net:[1]", "pid:[7]"),
    };
    tree.file(&format!("{dir}/cgroup"), cgroup);
    let status = format!("Name:\t{name}\nUid:\t0\t0\t0\t0\nNSpid:\t{pid}\t1\n");
    tree.file(&format!("{dir}/status"), status);
    let stat = format!("{pid} (x) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 700 0\n");
    tree.file(&format!("{dir}/stat"), stat);
    tree.file(&format!("{dir}/auxv"), "");
    let library = fs::metadata(tree.path(MULTIARCH).join("libonload.so"));
    let inode = library.map_or(5, |library| library.ino());
    let line = format!("7f00-7f01 r-xp 0 08:01 {inode} /usr/lib64/libonload.so\n");
    tree.file(&format!("{dir}/maps"), line);
    tree.file(&format!("{dir}/mountinfo"), "20 1 8:1 / / rw - ext4 /dev/sda rw\n");
    tree.file(&format!("{dir}/limits"), "Max locked memory unlimited unlimited bytes\n");
    tree.directory(&format!("{dir}/root/dev"));
    tree.directory(&format!("{dir}/fd"));
    tree.link(&format!("{dir}/ns/net"), network);
    tree.link(&format!("{dir}/ns/pid"), pids);
}

/// A host with an accelerated interface, and a container on its network that uses it.
fn accelerated() -> Tree {
    let tree = x3();
    process(&tree, 1, None, "systemd");
    process(&tree, 77, Some(ID), "redis");
    tree.link("/proc/77/fd/3", "/dev/onload");
    tree.link("/proc/77/fd/4", "/dev/onload");
    tree.link("/proc/77/fd/5", "onload:[tcpl:0:2047]");
    name(&tree, ID, "redis");
    tree
}

fn name(tree: &Tree, id: &str, name: &str) {
    let config = json!({ "Name": format!("/{name}") }).to_string();
    tree.file(&format!("/var/lib/docker/containers/{id}/config.v2.json"), config);
}

#[test]
fn a_container_is_shown_with_its_verdict_and_what_it_has() {
    let tree = accelerated();
    let run = tree.run(&["status"]).done();
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "redis 3f2a3f2a3f2a (docker)",
            "  accelerated: processes with a stack of Onload: 1 of 1",
            "  processes 77 redis",
        ],
        "{}",
        run.stdout
    );
    assert_eq!(run.stderr, "");
}

#[test]
fn a_watch_prints_a_line_for_each_change() {
    let tree = accelerated();
    let mut child = on(tree.root(), &["status", "--watch", "1"]);
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || {
        let line = lines.next().unwrap().unwrap();
        line.split_once("Z ").unwrap().1.to_owned()
    };
    let name = "redis 3f2a3f2a3f2a (docker): ";
    let accelerated = "accelerated: processes with a stack of Onload: 1 of 1";
    assert_eq!(line(), format!("{name}{accelerated}"));
    process(&tree, 78, Some(OTHER), "nginx");
    let added = line();
    assert!(added.starts_with("3f2b3f2b3f2b (docker): "), "{added}");
    tree.remove("/proc/77");
    assert_eq!(line(), format!("{name}ended"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_watch_of_a_name_that_no_container_has_says_that_it_waits() {
    let tree = accelerated();
    let mut child = on(tree.root(), &["status", "rediss", "--watch", "1"]);
    let mut child = child.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.starts_with("looking for container \"rediss\": no running container"), "{line}");
    assert!(line.ends_with("; waiting for it"), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_watch_redraws_a_terminal() {
    let (master, terminal) = terminal(80);
    let tree = accelerated();
    let mut command = on(tree.root(), &["status", "--watch", "1"]);
    let mut child = command.stdout(Stdio::from(terminal)).spawn().unwrap();
    // The child alone has the terminal, so that its end ends the text.
    command.stdout(Stdio::null());
    let mut reader = fs::File::from(master);
    let mut text = String::new();
    while text.matches("\u{1b}[H\u{1b}[2J").count() < 2 {
        let mut bytes = [0; 4096];
        let length = reader.read(&mut bytes).unwrap();
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    assert!(text.contains("every 1 s") && text.contains("accelerated"), "{text:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn programs_get_an_object() {
    let json = accelerated().run(&JSON).done().json();
    assert_eq!(json["unseen_processes"], 0);
    let container = &json["containers"][0];
    assert_eq!(container["engine"], "docker");
    assert_eq!(container["name"], "redis");
    assert_eq!(container["id"], ID);
    assert_eq!(container["state"], "accelerated");
    assert_eq!(container["verdicts"][0]["state"], "accelerated");
    assert_eq!(container["processes"], json!([{"pid": 77, "name": "redis"}]));
}

#[test]
fn a_host_without_such_a_container_says_so() {
    let tree = Tree::new();
    process(&tree, 1, None, "systemd");
    let run = tree.run(&["status"]).done();
    assert_eq!(run.stdout, "");
    assert_eq!(
        run.stderr,
        "no container holds an onload.dev device, loads libonload.so or requests a device\n"
    );
    assert_eq!(tree.run(&JSON).done().json()["containers"], json!([]));
}

#[test]
fn one_container_is_named_and_the_exit_status_says_how_it_does() {
    let tree = accelerated();
    for word in ["redis", "3f2a", ID] {
        let run = tree.run(&["status", word]).done();
        assert!(run.stdout.starts_with("redis "), "{word}: {}", run.stdout);
    }
    tree.file("/proc/77/maps", "7f00-7f01 r-xp 0 08:01 5 /usr/lib64/libonload.so (deleted)\n");
    let run = tree.run(&["status", "redis"]).done();
    assert!(run.stdout.contains("libonload.so has been replaced: "), "{}", run.stdout);
    // Nor does it have a stack.
    tree.remove("/proc/77/fd/5");
    let run = tree.run(&["status", "redis"]).answered_no();
    assert!(run.stdout.contains("library of another build: "), "{}", run.stdout);
    assert!(run.stdout.contains("\n      start the container again\n"), "{}", run.stdout);
    // The list as a whole is no question.
    tree.run(&["status"]).done();
}

#[test]
fn a_name_that_is_no_container_is_refused() {
    let tree = accelerated();
    for word in ["web", "", "3f2c", "../redis", "\u{1b}[31m"] {
        let line = tree.run(&["status", word]).refused();
        assert!(line.starts_with("looking for container "), "{line}");
        assert!(line.contains("\"onload-ctk status\" lists those that do"), "{line}");
        assert!(!line.contains('\u{1b}'), "{line}");
    }
}

#[test]
fn a_beginning_of_two_ids_is_refused_and_a_name_goes_before_an_id() {
    let tree = accelerated();
    process(&tree, 78, Some(OTHER), "nginx");
    let line = tree.run(&["status", "3f2"]).refused();
    assert!(
        line.contains("it means 3f2b3f2b3f2b (docker) and redis 3f2a3f2a3f2a (docker)"),
        "{line}"
    );
    // A container that is called like the beginning of another's id.
    name(&tree, OTHER, "3f2a");
    let run = tree.run(&["status", "3f2a"]).done();
    assert!(run.stdout.starts_with("3f2a 3f2b3f2b3f2b"), "{}", run.stdout);
}

#[test]
fn a_container_that_ends_meanwhile_is_not_there() {
    let tree = accelerated();
    tree.remove("/proc/77/status");
    let run = tree.run(&["status"]).done();
    assert_eq!(run.stdout, "");
    tree.run(&["status", "redis"]).refused();
}

#[test]
fn hostile_names_do_not_steer_the_terminal() {
    let tree = accelerated();
    let odd = "x\u{1b}[2J\u{9b}31m";
    tree.file("/proc/77/status", format!("Name:\t{odd}\nUid:\t0\t0\t0\t0\nNSpid:\t77\t1\n"));
    name(&tree, ID, "a\u{1b}]0;title\u{7}\nredis 3f2a (docker)");
    let shown = tree.run(&["status"]).done().stdout;
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
    assert_eq!(shown.lines().count(), 3, "{shown}");
    let name = tree.run(&JSON).done().json()["containers"][0]["name"].take();
    assert!(text(&name).starts_with("a\u{1b}]0;"), "{name}");
}

#[test]
fn a_cgroup_path_with_escapes_is_of_nobody_we_know() {
    let tree = accelerated();
    tree.file("/proc/77/cgroup", "0::/\u{1b}[31m/docker-../../../etc.scope\n");
    let json = tree.run(&JSON).done().json();
    assert_eq!(json["containers"][0]["engine"], "unknown");
    let shown = tree.run(&["status"]).done().stdout;
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn lines_keep_to_the_terminal() {
    let tree = accelerated();
    tree.file("/proc/77/maps", "7f00-7f01 r-xp 0 08:01 5 /usr/lib64/libonload.so (deleted)\n");
    let shown = run(on(tree.root(), &["status"]).env("COLUMNS", "40")).done().stdout;
    assert!(shown.lines().all(|line| line.chars().count() <= 40), "{shown}");
}

#[test]
fn a_user_is_told_what_was_not_seen() {
    if !is_root() {
        skipped("not root, so there is nobody with fewer rights to be");
        return;
    }
    let tree = accelerated();
    use std::os::unix::fs::PermissionsExt;
    for directory in ["/proc/77/fd", "/proc/77/root"] {
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(tree.path(directory), private).unwrap();
    }
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(tree.path("/proc/77/maps"), private).unwrap();
    tree.file("/proc/77/cgroup", format!("0::/system.slice/docker-{ID}.scope\n"));
    let run = run_unprivileged(&tree, &["status"]).done();
    assert!(
        run.stderr.contains("1 process could not be inspected; run sudo onload-ctk status"),
        "{}",
        run.stderr
    );
}

/// A copy of a library of this machine that is called as Onload's is; it does nothing.
fn stand_in(directory: &Path) {
    let dirs = ["/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib"];
    let found = dirs
        .iter()
        .map(|dir| Path::new(dir).join("libm.so.6"))
        .into_iter()
        .find(|path| path.exists())
        .unwrap();
    fs::copy(found, directory.join("libonload.so")).unwrap();
}

/// Directories of this machine that a container is made of.
fn host_dirs() -> Vec<&'static str> {
    ["/bin", "/lib", "/lib64", "/usr"].into_iter().filter(|dir| Path::new(dir).exists()).collect()
}

/// A runtime's "start" does not wait until the program is executed, nor that until its libraries are loaded.
fn wait_until_it_sleeps(pid: u64) {
    let path = format!("/proc/{pid}/stat");
    let end = Instant::now() + PATIENCE;
    loop {
        let stat = fs::read_to_string(&path).unwrap();
        if stat.contains("(sleep) S ") {
            return;
        }
        assert!(Instant::now() < end, "{stat}");
        sleep(Duration::from_millis(10));
    }
}

fn must(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    output
}

/// Held by each test with a real container: a run examines all containers of the machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn wait_for_other_tests() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A container of runc alone, whose program has the stand-in preloaded.
struct Runc {
    _turn: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    id: String,
}

impl Runc {
    fn start(args: &[&str], env: &[&str]) -> Runc {
        Runc::start_with(args, env, None)
    }

    /// With a directory of the host that holds its RDMA devices.
    fn start_with(args: &[&str], env: &[&str], rdma: Option<&Path>) -> Runc {
        let turn = wait_for_other_tests();
        let dir = tempfile::tempdir().unwrap();
        let id = format!("octk-status-{}-{}", std::process::id(), args.len() + env.len());
        let runc = Runc { _turn: turn, dir, id };
        let (rootfs, lib) = (runc.dir.path().join("rootfs"), runc.dir.path().join("lib"));
        fs::create_dir_all(&rootfs).unwrap();
        fs::create_dir_all(&lib).unwrap();
        stand_in(&lib);
        let bind = |to: &str, from: &Path| json!({"destination": to, "type": "bind", "source": from, "options": ["rbind", "ro"]});
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}),
            bind("/onload", &lib),
        ];
        mounts.extend(host_dirs().into_iter().map(|dir| bind(dir, Path::new(dir))));
        mounts.extend(rdma.map(|directory| bind("/dev/infiniband", directory)));
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {"args": args, "env": env, "cwd": "/", "user": {"uid": 0, "gid": 0}},
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network"}]},
        });
        fs::write(runc.dir.path().join("config.json"), config.to_string()).unwrap();
        let mut run = runc.command();
        run.args(["run", "--detach", "--bundle"]).arg(runc.dir.path()).arg(&runc.id);
        // The container keeps what it inherits: a pipe would never end.
        run.stdout(Stdio::null()).stderr(Stdio::null());
        assert!(run.status().unwrap().success());
        wait_until_it_sleeps(runc.pid());
        runc
    }

    fn command(&self) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.dir.path().join("state"));
        command.stdin(Stdio::null());
        command
    }

    fn pid(&self) -> u64 {
        let state = must(self.command().arg("state").arg(&self.id)).stdout;
        let state: Value = serde_json::from_slice(&state).unwrap();
        state["pid"].as_u64().unwrap()
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        let _ = self.command().args(["delete", "--force"]).arg(&self.id).output();
    }
}

fn status_of(word: &str) -> Run {
    let mut command = program();
    run(command.args(["status", word, "--format", "json"]))
}

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

#[test]
fn a_real_container_of_runc_that_preloads_the_library_is_found() {
    if !needs::root("makes a container") || !needs::programs(&["runc"]) {
        return;
    }
    let runc = Runc::start(&SLEEP, &["PATH=/bin", "LD_PRELOAD=/onload/libonload.so"]);
    let json = status_of(&runc.id).json();
    let container = &json["containers"][0];
    assert_eq!(container["name"], runc.id.as_str());
    assert_eq!(container["engine"], "unknown");
    assert_eq!(container["processes"], json!([{"pid": runc.pid(), "name": "sleep"}]));
    // It has no sysfs: the kernel says in its network that there is nothing but lo.
    assert_eq!(container["state"], "no-interface", "{container}");
    // The file of the library is replaced, as by an upgrade.
    let library = runc.dir.path().join("lib/libonload.so");
    fs::copy(&library, library.with_extension("new")).unwrap();
    fs::rename(library.with_extension("new"), &library).unwrap();
    // That is a fault once the driver of the new library is loaded, and here none is.
    let run = status_of(&runc.id).answered_no();
    let verdicts = run.json()["containers"][0]["verdicts"].take();
    assert_eq!(each(&verdicts, "state"), ["no-interface"], "{verdicts}");
}

/// Runs `status` for a container with a time limit that its own is well below.
fn timed_status(word: &str) -> Run {
    let mut child = program();
    let child = child
        .args(["status", word, "--format", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    let output = receiver.recv_timeout(Duration::from_secs(30));
    Run::new(output.expect("status does not end"))
}

/// The children of `status` that were left behind.
fn children() -> usize {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok())
        .filter(|name| name.starts_with("octk+") || name.starts_with("octk-"))
        .count()
}

#[test]
fn a_container_whose_file_system_never_answers_is_named_and_leaves_one_child() {
    if !needs::root("makes a container") || !needs::programs(&["runc"]) {
        return;
    }
    if !fuse::can_mount() {
        return;
    }
    let overlay = fuse::SilentOverlay::mount();
    let env = ["PATH=/bin", "LD_PRELOAD=/onload/libonload.so"];
    let runc = Runc::start_with(&SLEEP, &env, Some(overlay.path()));
    overlay.fall_silent();
    for _ in 0..3 {
        let run = timed_status(&runc.id);
        let json = run.json();
        let container = &json["containers"][0];
        assert_eq!(container["name"], runc.id.as_str());
        let reason = text(&container["verdicts"][0]["reason"]);
        assert!(reason.starts_with("it did not answer in time"), "{container}");
        assert_eq!(children(), 1);
    }
    drop(overlay);
    let deadline = Instant::now() + PATIENCE;
    while children() > 0 {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_real_container_with_nothing_of_ours_is_not_shown() {
    if !needs::root("makes a container") || !needs::programs(&["runc"]) {
        return;
    }
    let runc = Runc::start(&SLEEP, &["PATH=/bin"]);
    assert!(runc.pid() > 0);
    let line = status_of(&runc.id).refused();
    assert!(line.starts_with("looking for container"), "{line}");
}

/// A container of podman, with storage of its own.
struct Podman {
    _turn: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    id: String,
}

impl Podman {
    /// None where podman cannot run a container here.
    fn start() -> Option<Podman> {
        let dir = tempfile::tempdir().unwrap();
        let mut podman = Podman { _turn: wait_for_other_tests(), dir, id: String::new() };
        let rootfs = podman.dir.path().join("rootfs");
        for directory in
            ["bin", "lib", "lib64", "usr", "proc", "dev", "sys", "etc", "run", "tmp", "onload"]
        {
            fs::create_dir_all(rootfs.join(directory)).unwrap();
        }
        stand_in(&rootfs.join("onload"));
        let mut command = podman.command();
        command.args(["run", "--detach", "--network=none", "--security-opt=seccomp=unconfined"]);
        command.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"]);
        command.arg("--env=LD_PRELOAD=/onload/libonload.so");
        command.args(host_dirs().into_iter().map(|dir| format!("--volume={dir}:{dir}:ro")));
        let output = command.arg("--rootfs").arg(&rootfs).args(SLEEP).output().unwrap();
        let id = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let is_there = needs::on_this_machine(
            output.status.success(),
            &format!("podman runs nothing: {stderr}"),
        );
        id.trim().clone_into(&mut podman.id);
        is_there.then(|| {
            wait_until_it_sleeps(podman.pid());
            podman
        })
    }

    fn pid(&self) -> u64 {
        let mut inspect = self.command();
        inspect.args(["inspect", "--format={{.State.Pid}}", &self.id]);
        let pid = String::from_utf8(must(&mut inspect).stdout).unwrap();
        pid.trim().parse().unwrap()
    }

    fn command(&self) -> Command {
        let at = |name: &str| -> PathBuf { self.dir.path().join(name) };
        let mut command = Command::new("podman");
        command.args(["--cgroup-manager=cgroupfs", "--runtime=runc"]);
        command.arg("--root").arg(at("storage")).arg("--runroot").arg(at("run"));
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.command().args(["rm", "--force", "--time=0", &self.id]).output();
    }
}

#[test]
fn a_real_container_of_podman_on_a_network_of_its_own_is_not_accelerated() {
    if !needs::root("makes a container") || !needs::programs(&["podman", "runc"]) {
        return;
    }
    let Some(podman) = Podman::start() else {
        return;
    };
    let run = status_of(podman.id.get(..12).unwrap()).answered_no();
    let json = run.json();
    let container = &json["containers"][0];
    assert_eq!(container["engine"], "podman");
    assert_eq!(container["id"], podman.id.as_str());
    assert_eq!(container["state"], "no-interface", "{container}");
    let reason = text(&container["verdicts"][0]["reason"]);
    assert!(reason.contains("(none but lo)"), "{reason}");
}
