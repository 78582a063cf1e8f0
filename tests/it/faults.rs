//! Hosts, directories and files that are broken, and runs that are killed: no panic, no half-written
//! file, and a line that names the path.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::hosts::{hugepages, rdma, vfio, x2, x3};
use crate::common::strace::{can_trace, fault, with_faults};
use crate::common::{
    Commands, NOBODY, Pci, Run, Tree, captured, device_names, each, is_root, json_file, names_in,
    needs, on, reason, run, run_unprivileged, specs_in, texts,
};
use serde_json::Value;

// Runs that end in the middle.

/// Every specification file is whole, and is the old or the new one.
#[track_caller]
fn assert_whole(dir: &Path, old: &Path, new: &Path) {
    for name in specs_in(dir) {
        let found = fs::read(dir.join(&name)).unwrap();
        let either = [old, new].map(|dir| fs::read(dir.join(&name)).ok());
        assert!(either.contains(&Some(found)), "{name} is neither the old nor the new one");
    }
}

fn temporary(dir: &Path) -> Vec<String> {
    let mut names = names_in(dir);
    names.retain(|name| name.ends_with(".tmp"));
    names
}

/// Two states of one host: the specifications of each in a directory of its own.
struct TwoStates {
    tree: Tree,
    dirs: [tempfile::TempDir; 2],
}

const STATES: [&str; 2] =
    ["[cdi]\n", "[cdi]\nfdtable-size = 4096\nkinds = [\"nic\", \"zf\", \"profile\"]\n"];

fn two_states() -> TwoStates {
    let tree = x2();
    let dirs = STATES.map(|config| {
        let dir = tempfile::tempdir().unwrap();
        tree.config(config);
        run(on(tree.root(), &["cdi", "generate", "--output-dir"]).arg(dir.path())).done();
        dir
    });
    TwoStates { tree, dirs }
}

#[test]
fn a_run_that_is_killed_leaves_whole_files_and_the_next_one_cleans_up() {
    let TwoStates { tree, dirs: [old, new] } = two_states();
    let specs = tree.specs();
    tree.config(STATES[0]);
    tree.generate();
    let start = std::time::Instant::now();
    tree.config(STATES[1]).generate();
    let whole_run = start.elapsed();
    let mut killed = 0;
    for attempt in 0..100 {
        tree.config(STATES[attempt % 2]);
        let mut child = on(tree.root(), &["cdi", "generate", "-q"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Moments that are spread over a whole run, in no order.
        std::thread::sleep(whole_run * (attempt as u32 * 37 % 100) / 100);
        let _ = child.kill();
        killed += u32::from(!child.wait().unwrap().success());
        assert_whole(&specs, old.path(), new.path());
        if attempt % 3 == 0 {
            tree.generate();
            let wanted = [&old, &new][attempt % 2].path();
            assert_eq!(specs_in(&specs), specs_in(wanted));
            assert_eq!(temporary(&specs), [""; 0]);
            tree.run(&["cdi", "check"]).done();
        }
    }
    assert!(killed > 0);
}

/// The system calls after which a run may be killed, in the order of a run that changes everything.
fn kill_after(tree: &Tree, call: &str, count: u32) -> bool {
    let (trace, kill) = (format!("trace={call}"), fault(call, "signal=KILL", count));
    let mut run = with_faults(tree.root(), &[&trace, &kill], &["cdi", "generate", "-q"]);
    run.stdout(Stdio::null()).stderr(Stdio::null());
    !run.status().unwrap().success()
}

#[test]
fn a_run_that_is_killed_at_each_of_its_steps_leaves_whole_files_that_are_ours() {
    if !can_trace() {
        return;
    }
    let TwoStates { tree, dirs: [old, new] } = two_states();
    let specs = tree.specs();
    let mut kills = 0;
    for call in ["openat", "fchmod", "write", "fsync", "renameat", "unlinkat"] {
        for count in 1.. {
            tree.config(STATES[0]).run(&["cdi", "generate", "--force", "-q"]).done();
            tree.config(STATES[1]);
            if !kill_after(&tree, call, count) {
                break;
            }
            kills += 1;
            assert_whole(&specs, old.path(), new.path());
            // Without --force: what the killed run wrote is known as ours.
            tree.generate();
            assert_eq!(specs_in(&specs), specs_in(new.path()), "{call} {count}");
            assert_eq!(temporary(&specs), [""; 0], "{call} {count}");
        }
    }
    assert!(kills > 20, "{kills}");
}

#[test]
fn a_system_call_that_fails_at_any_step_is_an_error_with_the_file_and_leaves_whole_files() {
    if !can_trace() {
        return;
    }
    let TwoStates { tree, dirs: [old, new] } = two_states();
    let specs = tree.specs();
    for (call, error) in
        [("fsync", "EIO"), ("write", "ENOSPC"), ("renameat", "EROFS"), ("fchmod", "EPERM")]
    {
        for count in 1..4 {
            tree.config(STATES[0]).run(&["cdi", "generate", "--force", "-q"]).done();
            tree.config(STATES[1]);
            let fault = fault(call, &format!("error={error}"), count);
            let mut generate = with_faults(tree.root(), &[&fault], &["cdi", "generate"]);
            let refusal = run(&mut generate).refused();
            let ours = specs.join("onload.dev-").display().to_string();
            let directory = format!("the directory of CDI specifications {}: ", specs.display());
            // Whichever step it was.
            let steps = [
                format!("writing {ours}"),
                format!("removing {ours}"),
                format!("writing to {directory}"),
            ];
            let is_named = steps.iter().any(|step| refusal.starts_with(step));
            assert!(is_named, "{refusal}");
            assert_whole(&specs, old.path(), new.path());
            assert_eq!(temporary(&specs), [""; 0], "{call} {count}");
            tree.generate();
        }
    }
}

#[test]
fn two_runs_at_once_end_with_whole_files() {
    let TwoStates { tree, dirs: [old, new] } = two_states();
    let spawn = |config: &str, name: &str| {
        tree.file(&format!("/etc/{name}.toml"), config);
        let config = tree.path(&format!("/etc/{name}.toml"));
        let mut command = on(tree.root(), &["-q", "cdi", "generate", "--config"]);
        command.arg(config).spawn().unwrap()
    };
    for _ in 0..10 {
        let children = [spawn(STATES[0], "a"), spawn(STATES[1], "b"), spawn(STATES[0], "c")];
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_whole(&tree.specs(), old.path(), new.path());
        assert_eq!(temporary(&tree.specs()), [""; 0]);
    }
    tree.config(STATES[1]).generate();
    tree.run(&["cdi", "check"]).done();
}

#[test]
fn a_full_disk_is_an_error_and_leaves_the_old_files() {
    if !needs::mount_namespace("mounting a file system") {
        return;
    }
    let TwoStates { tree, .. } = two_states();
    let fill = "mount -t tmpfs -o size=256k tmpfs \"$1\" && mkdir \"$1/specs\" && \
                \"$2\" --host-root \"$3\" --config \"$4\" cdi generate -q --output-dir \"$1/specs\" && \
                cp -a \"$1/specs\" \"$5/old\" && \
                dd if=/dev/zero of=\"$1/fill\" bs=4k status=none 2>/dev/null; \
                \"$2\" --host-root \"$3\" cdi generate --output-dir \"$1/specs\"; echo \"status $?\"; \
                rm \"$1/fill\"; cp -a \"$1/specs\" \"$5/full\"; \
                \"$2\" --host-root \"$3\" cdi generate -q --output-dir \"$1/specs\"; echo \"after $?\"; \
                ls -A \"$1/specs\"";
    let (mount, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree.file("/etc/old.toml", STATES[0]);
    tree.config(STATES[1]);
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "--propagation", "private", "sh", "-c", fill, "sh"]);
    unshare.arg(mount.path()).arg(env!("CARGO_BIN_EXE_onload-ctk")).arg(tree.root());
    let done = run(unshare.arg(tree.path("/etc/old.toml")).arg(out.path())).done();
    assert!(done.stdout.starts_with("status 2\nafter 0\n"), "{}{}", done.stdout, done.stderr);
    let errors: Vec<&str> = done.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{}", done.stderr);
    assert!(errors[0].contains("No space left on device"), "{}", errors[0]);
    assert!(
        errors[0].starts_with("error: writing to the directory of CDI specifications ")
            && errors[0].contains("/specs: No space left on device"),
        "{}",
        errors[0]
    );
    let (old, full) = (out.path().join("old"), out.path().join("full"));
    assert_eq!(names_in(&old), names_in(&full));
    for name in names_in(&old) {
        assert_eq!(
            fs::read(old.join(&name)).unwrap(),
            fs::read(full.join(&name)).unwrap(),
            "{name}"
        );
    }
}

// Locks that somebody else holds.

/// A process that holds a lock on a path until it is killed.
struct Holder(Child);

impl Holder {
    /// As another user, where this is root and that is somebody; the path has to be in reach.
    fn new(path: &Path, user: u32) -> Self {
        let mut flock = Command::new("flock");
        flock.arg("--no-fork").arg(path);
        flock.args(["sh", "-c", "echo held; exec sleep 600"]);
        flock.stdout(Stdio::piped());
        if is_root() {
            flock.uid(user).gid(user);
        }
        let mut child = flock.spawn().unwrap();
        let mut line = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"held\n");
        Holder(child)
    }

    /// How a message names it.
    fn named(&self) -> String {
        format!("process {} (\"sleep\") holds it", self.0.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A host whose directories everybody can open, with specifications and docker configured.
fn open_host() -> Tree {
    let tree = x2();
    for path in ["/", "/var", "/var/run", "/var/run/cdi", "/etc", "/etc/docker"] {
        fs::create_dir_all(tree.path(path)).unwrap();
        tree.chmod(path, 0o755);
    }
    tree.file("/usr/bin/dockerd", "");
    tree.generate();
    tree.run(CONFIGURE).done();
    tree
}

const CONFIGURE: &[&str] = &["runtime", "configure", "--runtime", "docker"];
const REMOVE: &[&str] = &["runtime", "configure", "--runtime", "docker", "--remove"];

#[test]
fn a_lock_on_a_directory_that_everybody_can_open_holds_nothing_up() {
    let tree = open_host();
    let holders = ["/var/run/cdi", "/etc/docker", "/etc"];
    let holders = holders.map(|path| Holder::new(&tree.path(path), NOBODY));
    tree.config(STATES[1]).generate();
    tree.run(REMOVE).done();
    tree.run(CONFIGURE).done();
    drop(holders);
}

#[test]
fn no_other_user_can_open_the_locks() {
    let tree = open_host();
    for (path, mode) in [
        ("/var/run/cdi/.onload-ctk-lock", 0o600),
        ("/run/onload-ctk/@locks/configure", 0o600),
        ("/run/onload-ctk/@locks", 0o700),
    ] {
        let found = fs::metadata(tree.path(path)).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{path}");
    }
}

/// User 0 of a container that sees the directory can open it all the same.
#[test]
fn a_lock_that_is_not_freed_ends_a_command_with_a_line_that_names_its_holder() {
    let tree = open_host();
    let before = fs::read(tree.path("/etc/docker/daemon.json")).unwrap();
    let specs = tree.path("/var/run/cdi/.onload-ctk-lock");
    let configure = tree.path("/run/onload-ctk/@locks/configure");
    let own = rustix::process::geteuid().as_raw();
    let generate = Holder::new(&specs, own);
    let configured = Holder::new(&configure, own);
    tree.config(STATES[1]);
    std::thread::scope(|scope| {
        for (args, lock, holder) in [
            (&["cdi", "generate"][..], &specs, &generate),
            (CONFIGURE, &configure, &configured),
            (REMOVE, &configure, &configured),
        ] {
            let root = tree.root();
            scope.spawn(move || {
                let refusal = run(&mut on(root, args)).refused();
                assert!(
                    refusal.contains(&format!("{lock:?} was not free within 10 s"))
                        && refusal.contains(&holder.named()),
                    "{refusal}"
                );
            });
        }
    });
    assert_eq!(fs::read(tree.path("/etc/docker/daemon.json")).unwrap(), before);
    // To look needs no lock.
    tree.run(&["cdi", "generate", "--dry-run"]).done();
    tree.run(&["cdi", "generate", "--diff"]).done();
    drop((generate, configured));
    tree.generate();
    tree.run(REMOVE).done();
}

#[test]
fn what_is_laid_in_the_place_of_the_lock_is_told_and_left_alone() {
    let tree = x2();
    tree.generate();
    let lock = tree.path("/var/run/cdi/.onload-ctk-lock");
    let other = tree.path("/etc/other");
    tree.file("/etc/other", "theirs");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).unwrap();
    let laid: [&dyn Fn(); 3] = [
        &|| std::os::unix::fs::symlink(&other, &lock).unwrap(),
        &|| fs::hard_link(&other, &lock).unwrap(),
        &|| fs::create_dir(&lock).unwrap(),
    ];
    for lay in laid {
        fs::remove_file(&lock).unwrap();
        lay();
        let refusal = tree.run(&["cdi", "generate"]).refused();
        assert!(refusal.contains(".onload-ctk-lock") && refusal.contains("remove it"), "{refusal}");
        assert_eq!(fs::metadata(&other).unwrap().permissions().mode() & 0o777, 0o644);
        let _ = fs::remove_dir(&lock).map(|()| fs::write(&lock, ""));
    }
    tree.generate();
}

#[test]
fn a_user_locks_a_directory_of_his_own() {
    let tree = x2();
    let out = tree.path("/out");
    fs::create_dir(&out).unwrap();
    if is_root() {
        chown(&out, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let args = ["cdi", "generate", "--output-dir", out.to_str().unwrap()];
    for _ in 0..2 {
        run_unprivileged(&tree, &args).done();
    }
    let lock = fs::metadata(out.join(".onload-ctk-lock")).unwrap();
    assert_eq!(lock.permissions().mode() & 0o7777, 0o600);
    // Root writes there too.
    tree.run(&args).done();
}

// Places that cannot be written.

#[test]
fn an_output_directory_that_is_a_file_or_below_one_is_named() {
    let tree = x3();
    tree.file("/var/run/cdi", "a file");
    let refusal = tree.run(&["cdi", "generate"]).refused();
    assert!(refusal.contains("/var/run/cdi: Not a directory"), "{refusal}");
    for dir in ["/var/run/cdi", "/var/run/cdi/below"] {
        let dir = tree.path(dir).display().to_string();
        for options in [&[][..], &["--dry-run"], &["--diff"]] {
            let args = [&["cdi", "generate", "--output-dir", &dir], options].concat();
            let refusal = tree.run(&args).refused();
            assert!(refusal.contains(&dir), "{refusal}");
        }
    }
    assert_eq!(fs::read(tree.path("/var/run/cdi")).unwrap(), b"a file");
}

#[test]
fn a_directory_in_the_place_of_a_file_is_left_alone() {
    let tree = x3();
    tree.directory("/var/run/cdi/onload.dev-nic.json");
    let run = tree.run(&["cdi", "generate"]).answered_no();
    assert!(run.warnings()[0].contains("onload.dev-nic.json"), "{}", run.stderr);
    let refusal = tree.run(&["cdi", "generate", "--force"]).refused();
    assert!(refusal.contains("onload.dev-nic.json"), "{refusal}");
    assert!(tree.path("/var/run/cdi/onload.dev-nic.json").is_dir());
    assert_eq!(temporary(&tree.specs()), [""; 0]);
}

#[test]
fn a_lookup_that_a_rename_elsewhere_disturbed_is_done_again() {
    if !can_trace() {
        return;
    }
    // openat2(2): inside a root, a lookup of ".." gives EAGAIN when anything on the machine was
    // renamed or mounted meanwhile. Here every second lookup does.
    let args = ["discover", "--format", "json"];
    let undisturbed = run(&mut on(&captured(), &args)).done();
    let faults = ["trace=openat2", &fault("openat2", "error=EAGAIN", "1+2")];
    let disturbed = run(&mut with_faults(&captured(), &faults, &args)).done();
    assert_eq!(disturbed.stderr, undisturbed.stderr);
    assert_eq!(disturbed.stdout, undisturbed.stdout);
}

// Hosts that are broken.

/// The warnings of `discover`, which still ends well and shows everything but what is broken.
#[track_caller]
fn warnings(run: Run) -> (Vec<String>, Value) {
    let run = run.done();
    let warnings = run.warnings().into_iter().map(str::to_owned).collect();
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    (warnings, run.json())
}

#[test]
fn an_attribute_that_may_not_be_read_costs_a_warning_with_its_path() {
    let tree = x3();
    let function = "/sys/devices/pci0000:3b/0000:3b:00.0";
    tree.chmod(&format!("{function}/numa_node"), 0o000);
    tree.directory("/sys/kernel/debug");
    tree.chmod("/sys/kernel/debug", 0o700);
    // Nobody, who is not the owner, may not look into debugfs.
    let args = ["discover", "--format", "json"];
    let (messages, found) = warnings(run_unprivileged(&tree, &args));
    assert!(messages.iter().any(|w| w.contains("/numa_node: Permission denied")), "{messages:?}");
    if is_root() {
        let debugfs = "/sys/kernel/debug/sfc_resource/nics: Permission denied";
        assert!(messages.iter().any(|w| w.contains(debugfs)), "{messages:?}");
    }
    assert_eq!(found["nics"][0]["name"], "ens3");
    assert_eq!(found["nics"][0]["numa_node"], Value::Null);
    run_unprivileged(&tree, &["cdi", "generate", "--output", "-"]).done();
}

#[test]
fn a_function_whose_directory_may_not_be_read_costs_a_warning_and_hides_no_other() {
    let tree = x2();
    let function = "/sys/devices/pci0000:3b/0000:3b:02.0";
    tree.chmod(function, 0o000);
    let (message, found) = warnings(run_unprivileged(&tree, &["discover", "--format", "json"]));
    assert!(message.iter().any(|w| w.contains("0000:3b:02.0: Permission denied")), "{message:?}");
    assert_eq!(found["nics"][0]["name"], "enp59s0f0np0");
    tree.chmod(function, 0o755);
}

/// A host with an interface that Onload knows by debugfs alone, and its specifications.
fn registered() -> Tree {
    let tree = x3();
    let function = tree.pci(Pci::network("0000:41:00.0", "8086:10c9", "igb"));
    tree.interface(&function, "ens1");
    tree.file("/sys/module/sfc_resource/afxdp/register", "");
    tree.attribute("/sys/kernel/debug/sfc_resource/nics/000_ens1/devtype", "5:0:0 => AF_XDP");
    tree.generate();
    tree.chmod("/var/run/cdi", 0o755);
    tree
}

/// Runs without rights while nobody may look into that directory.
fn run_with_unreadable(tree: &Tree, directory: &str, args: &[&str]) -> Run {
    let mode = fs::metadata(tree.path(directory)).unwrap();
    tree.chmod(directory, 0o000);
    let run = run_unprivileged(tree, args);
    tree.chmod(directory, mode.permissions().mode() & 0o7777);
    run
}

const DEBUGFS: &str = "/sys/kernel/debug";

#[test]
fn an_interface_whose_registration_may_not_be_read_is_not_called_unregistered() {
    let tree = registered();
    let args = ["discover", "--format", "json"];
    let run = run_with_unreadable(&tree, DEBUGFS, &args).done();
    let found = run.json();
    let why = reason(&found, "nic", "ens1");
    assert!(
        why.starts_with("could not determine whether Onload is attached to it: reading "),
        "{why}"
    );
    assert!(why.contains("/sys/kernel/debug/sfc_resource/nics: Permission denied"), "{why}");
    assert!(!why.contains("write ens1"), "{why}");
    let kinds = texts(&found["unread"][0]["kinds"]);
    assert_eq!(kinds, ["nic", "nic-plain", "nic-nodes", "zf"]);
    let advice = run.warnings().into_iter().find(|message| message.contains("run as root"));
    assert!(advice.is_some(), "{}", run.stderr);
}

#[test]
fn what_everything_could_be_read_of_is_decided() {
    let tree = registered();
    let run = tree.run(&["discover", "--format", "json"]).done();
    assert_eq!(run.json()["unread"], Value::Null);
    assert!(!run.stderr.contains("as root"), "{}", run.stderr);
    // Without Onload's module no interface can be in its debugfs.
    let tree = Tree::new();
    let function = tree.pci(Pci::network("0000:41:00.0", "8086:10c9", "igb"));
    tree.interface(&function, "ens1");
    tree.directory("/sys/kernel/debug");
    let args = ["discover", "--format", "json"];
    let run = run_with_unreadable(&tree, DEBUGFS, &args).done();
    let why = reason(&run.json(), "nic", "ens1");
    assert_eq!(
        why,
        "driver igb is not one of Onload's; if igb supports XDP, Onload accelerates it with \
         AF_XDP: set af-xdp = [\"ens1\"] under [host], and run \"systemctl enable onload-host && \
         systemctl restart onload-host\""
    );
    // Nothing of this host hangs on debugfs.
    let tree = x3();
    tree.directory("/sys/kernel/debug").generate();
    tree.chmod("/var/run/cdi", 0o755);
    run_with_unreadable(&tree, DEBUGFS, &["cdi", "check"]).done();
}

#[test]
fn check_does_not_answer_where_something_that_decides_may_not_be_read() {
    let tree = registered();
    let places = [
        DEBUGFS,
        "/usr/lib/x86_64-linux-gnu",
        "/sys/class/net",
        "/sys/bus/pci/devices",
        "/usr/lib/x86_64-linux-gnu/libonload.so",
    ];
    for place in places {
        let run = run_with_unreadable(&tree, place, &["cdi", "check"]);
        assert_eq!(run.stdout, "", "{place}");
        let refusal = run.refused();
        assert!(refusal.contains("could not determine"), "{refusal}");
        assert!(refusal.contains(place), "{refusal}");
        assert!(refusal.ends_with("run as root"), "{refusal}");
        let args = ["doctor", "--check", "specs-fresh"];
        let run = run_with_unreadable(&tree, place, &args);
        assert!(run.stdout.contains("could not determine whether they are"), "{}", run.stdout);
        assert!(run.stdout.contains("run: sudo onload-ctk doctor"), "{}", run.stdout);
    }
    let overview = run_with_unreadable(&tree, DEBUGFS, &[]).done().stdout;
    assert!(overview.contains("CDI specs  could not determine whether they are"), "{overview}");
    let overview = run_with_unreadable(&tree, "/sys/class/net", &[]).done().stdout;
    assert!(overview.contains(", unknown: nic"), "{overview}");
    run_unprivileged(&tree, &["cdi", "check"]).done();
}

#[test]
fn an_ignored_interface_is_not_called_absent_where_interfaces_may_not_be_listed() {
    let tree = registered();
    tree.config("[discover]\nignored-interfaces = [\"ens9\"]\n");
    let says = |run: &Run| run.stderr.contains("interface not found");
    assert!(says(&run_unprivileged(&tree, &["discover"]).done()));
    let run = run_with_unreadable(&tree, "/sys/class/net", &["discover"]).done();
    assert!(!says(&run), "{}", run.stderr);
}

#[test]
fn interfaces_that_may_not_be_listed_leave_each_class_open_that_they_decide() {
    let args = ["discover", "--format", "json"];
    let found = run_with_unreadable(&registered(), "/sys/class/net", &args).done().json();
    let kinds = texts(&found["unread"][0]["kinds"]);
    let mut kinds: Vec<&str> = kinds.iter().map(|kind| &**kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["netdev", "nic", "nic-nodes", "nic-plain", "pps", "ptp", "rdma", "zf"]);
}

#[test]
fn what_has_certainly_changed_is_told_whatever_may_not_be_read() {
    let tree = registered();
    tree.remove("/var/run/cdi/onload.dev-nic-plain.json");
    let run = run_with_unreadable(&tree, DEBUGFS, &["cdi", "check"]).answered_no();
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].ends_with("/onload.dev-nic-plain.json: missing"), "{lines:?}");
}

#[test]
fn generate_takes_nothing_away_for_what_may_not_be_read() {
    let tree = registered();
    tree.remove("/var/run/cdi").directory("/var/run/cdi");
    if is_root() {
        chown(tree.specs(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    run_unprivileged(&tree, &["cdi", "generate"]).done();
    let nic = || json_file(tree.specs().join("onload.dev-nic.json"));
    let before = nic();
    assert!(device_names(&before).contains(&"ens1".to_owned()));
    let refusal = run_with_unreadable(&tree, DEBUGFS, &["cdi", "generate"]).refused();
    assert!(refusal.contains("kept onload.dev-nic-nodes.json, "), "{refusal}");
    assert!(
        refusal.contains("/sys/kernel/debug/sfc_resource/nics: Permission denied"),
        "{refusal}"
    );
    assert!(refusal.contains("run as root"), "{refusal}");
    assert_eq!(nic(), before);
    let gone =
        run_with_unreadable(&tree, "/usr/lib/x86_64-linux-gnu", &["cdi", "generate"]).refused();
    assert!(gone.contains("onload.dev-zf.json"), "{gone}");
    assert_eq!(nic(), before);
    run_with_unreadable(&tree, DEBUGFS, &["cdi", "generate", "--force"]).done();
    assert!(!device_names(&nic()).contains(&"ens1".to_owned()));
    run_unprivileged(&tree, &["cdi", "generate"]).done();
    assert_eq!(nic(), before);
}

#[test]
fn a_library_that_may_not_be_read_is_not_called_one_of_another_driver() {
    let tree = registered();
    let library = "/usr/lib/x86_64-linux-gnu/libonload.so";
    let args = ["discover", "--format", "json"];
    let found = run_with_unreadable(&tree, library, &args).done().json();
    let why = reason(&found, "nic", "onload");
    assert!(
        why.contains("could not determine whether ") && !why.contains("was not built"),
        "{why}"
    );
    let found = run_with_unreadable(&tree, "/usr/lib/x86_64-linux-gnu", &args).done().json();
    let why = reason(&found, "nic", "onload");
    assert!(
        why.contains(
            "could not determine whether a libonload.so for the loaded driver is installed"
        ),
        "{why}"
    );
    assert!(!why.contains("install Onload"), "{why}");
}

/// Every regular file of sysfs and procfs of a host, as paths of the host.
fn attributes(tree: &Tree) -> Vec<String> {
    fn below(root: &Path, dir: &Path, found: &mut Vec<String>) {
        for name in names_in(dir) {
            let path = dir.join(name);
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                below(root, &path, found);
            } else {
                found.push(format!("/{}", path.strip_prefix(root).unwrap().display()));
            }
        }
    }
    let mut found = Vec::new();
    for top in ["sys", "proc"] {
        below(tree.root(), &tree.root().join(top), &mut found);
    }
    found
}

/// The hosts whose every attribute is broken in turn.
fn breakable() -> Vec<Tree> {
    vec![x2(), rdma(), vfio(), hugepages()]
}

#[test]
fn an_attribute_of_garbage_never_ends_a_run_badly() {
    let long = vec![b'7'; 1 << 20];
    let contents: [&[u8]; 6] =
        [b"", b"\xff\xfe\x00\n", b"garbage\n", b"-1\n", b"99999999999999999999999\n", &long];
    let mut runs = 0;
    for tree in breakable() {
        for (index, attribute) in attributes(&tree).iter().enumerate() {
            let whole = fs::read(tree.path(attribute)).unwrap();
            // One content each, so that this takes seconds and not minutes.
            let content = contents[index % contents.len()];
            tree.file(attribute, content);
            let (message, _) = warnings(tree.run(&["discover", "--format", "json"]));
            let read_whole = attribute.starts_with("/proc");
            if content.starts_with(b"\xff") {
                let named = message.iter().any(|w| w.ends_with("not UTF-8 text"));
                assert!(named || !is_read(attribute), "{attribute}: {message:?}");
            } else if content.len() > 1 << 19 && !read_whole {
                let named = message.iter().any(|w| w.ends_with("longer than 4096 bytes"));
                assert!(named || !is_read(attribute), "{attribute}: {message:?}");
            }
            tree.run(&["cdi", "generate", "--output", "-"]).done();
            tree.file(attribute, whole);
            runs += 1;
        }
    }
    assert!(runs > 150, "{runs}");
}

/// Whether discovery reads an attribute: it has no use for some, asks of one only whether it is
/// there, and has no use for devices that are not offered for another reason.
fn is_read(attribute: &str) -> bool {
    let unused = [
        "sriov_totalvfs",
        "sriov_numvfs",
        "/sys/module/onload/version",
        "/afxdp/register",
        "/gid_attrs/",
        "/gids/",
        "/proc/",
        "/infiniband/smi1/",
        "/infiniband_mad/",
        "/sys/class/vfio/21/",
        "/sys/class/vfio/22/",
    ];
    !unused.iter().any(|part| attribute.contains(part))
}

#[test]
fn an_attribute_that_went_leaves_the_rest_of_the_host() {
    for tree in breakable() {
        for attribute in attributes(&tree) {
            let whole = fs::read(tree.path(&attribute)).unwrap();
            tree.remove(&attribute);
            warnings(tree.run(&["discover", "--format", "json"]));
            tree.file(&attribute, whole);
        }
    }
}

#[test]
fn an_attribute_that_is_a_directory_a_loop_or_dangles_leaves_the_rest_of_the_host() {
    for tree in breakable() {
        for (index, attribute) in attributes(&tree).iter().enumerate() {
            let whole = fs::read(tree.path(attribute)).unwrap();
            tree.remove(attribute);
            match index % 3 {
                0 => tree.directory(attribute),
                1 => tree.link(attribute, attribute),
                _ => tree.link(attribute, "/nowhere"),
            };
            let (message, _) = warnings(tree.run(&["discover", "--format", "json"]));
            if index % 3 < 2 && is_read(attribute) {
                let name = attribute.rsplit('/').next().unwrap();
                let named = message.iter().any(|w| w.contains(&format!("/{name}")));
                assert!(named, "{attribute}: {message:?}");
            }
            tree.remove(attribute).file(attribute, whole);
        }
    }
}

/// Every link of sysfs, as paths of the host with what they say.
fn links(tree: &Tree) -> Vec<(String, String)> {
    fn below(root: &Path, dir: &Path, found: &mut Vec<(String, String)>) {
        for name in names_in(dir) {
            let path = dir.join(name);
            if let Ok(target) = fs::read_link(&path) {
                let path = format!("/{}", path.strip_prefix(root).unwrap().display());
                found.push((path, target.display().to_string()));
            } else if path.is_dir() {
                below(root, &path, found);
            }
        }
    }
    let mut found = Vec::new();
    below(tree.root(), &tree.root().join("sys"), &mut found);
    found
}

#[test]
fn a_link_that_dangles_or_leads_in_a_circle_leaves_the_rest_of_the_host() {
    for tree in breakable() {
        for (path, target) in links(&tree) {
            for broken in ["/nowhere/0000:00:00.9", &path, "/", "."] {
                tree.remove(&path).link(&path, broken);
                let (message, _) = warnings(tree.run(&["discover", "--format", "json"]));
                if *broken == path && !path.contains("iommu_groups/") {
                    let name = path.rsplit('/').next().unwrap();
                    let read = ["driver", "iommu_group", "physfn", "virtfn0", "virtfn1"];
                    // These are read and not followed.
                    let named = message.iter().any(|w| w.contains("Too many levels"));
                    assert!(
                        named || read.contains(&name) || name == "device",
                        "{path}: {message:?}"
                    );
                }
            }
            tree.remove(&path).link(&path, &target);
        }
    }
}

#[test]
fn names_with_every_odd_character_are_taken_as_they_are() {
    let tree = Tree::with_onload();
    let odd = ["eth#0", "eth%0", "a=b", "a,b", "ü", "a\"b", "a'b", "$(id)", "a\\b", "<b>", "a;b"];
    for (index, name) in odd.iter().enumerate() {
        let address = format!("0000:3b:{index:02x}.0");
        let function = tree.pci(Pci::network(&address, "1924:0b03", "sfc"));
        tree.interface(&function, name);
        let auxiliary = format!("sfc.onload.{index}");
        tree.auxiliary(&function, &auxiliary, "sfc_resource.ef10", None);
    }
    let found = tree.discover();
    let names: BTreeSet<String> = each(&found["nics"], "name").into_iter().collect();
    assert_eq!(names, odd.iter().map(|&name| name.to_owned()).collect());
    let spec = tree.spec("nic");
    assert_eq!(device_names(&spec).len(), odd.len() + 2);
    tree.run(&["cdi", "validate"]).done();
}

#[test]
fn names_cannot_steer_a_terminal() {
    let tree = Tree::with_onload();
    let name = "x\u{1b}[2J\u{7f}";
    tree.class_device("net", "/sys/devices/virtual", name, &[("speed", "\u{1b}[2J")]);
    for args in [&["discover", "--explain"][..], &["discover"], &["cdi", "generate"]] {
        let run = tree.run(&[&["--color", "always"], args].concat()).done();
        for text in [run.stdout, run.stderr] {
            assert!(!text.contains("\u{1b}[2J") && !text.contains('\u{7f}'), "{text:?}");
        }
    }
    let explained = tree.run(&["discover", "--explain"]).done();
    assert!(explained.stdout.contains("x\\u{1b}[2J\\u{7f}"), "{}", explained.stdout);
}

#[test]
fn names_that_are_no_text_cost_a_warning() {
    let tree = x3();
    let odd = std::ffi::OsStr::from_bytes(b"eth\xff");
    fs::create_dir_all(tree.path("/sys/class/net").join(odd)).unwrap();
    let (message, found) = warnings(tree.run(&["discover", "--format", "json"]));
    assert!(message[0].contains("skipped the name \"eth\\xFF\": not UTF-8"), "{message:?}");
    assert_eq!(found["nics"][0]["name"], "ens3");
}

#[test]
fn a_table_of_nodes_that_is_not_understood_is_refused_with_its_line() {
    let tree = x3();
    tree.file("/dev.table", "/dev/null c 1 3 0666 0 0\nnonsense\n");
    let refusal = tree.run(&["discover"]).refused();
    assert!(refusal.contains("dev.table: line 2: expected"), "{refusal}");
}

#[test]
fn a_profile_that_imports_itself_or_is_no_text_is_not_offered() {
    let tree = Tree::with_onload();
    let dir = "/usr/libexec/onload/profiles";
    tree.file(&format!("{dir}/self.opf"), "onload_import self\n");
    tree.file(&format!("{dir}/bytes.opf"), b"onload_set EF_A \xff\n");
    tree.directory(&format!("{dir}/dir.opf"));
    tree.link(&format!("{dir}/loop.opf"), "loop.opf");
    let (_, found) = warnings(tree.run(&["discover", "--format", "json"]));
    assert!(reason(&found, "profile", "self").contains("imports itself"));
    for name in ["bytes", "dir", "loop"] {
        assert!(reason(&found, "profile", name).contains("cannot be read"), "{name}");
    }
}
