//! Later commands for a container reach the runtime that created it, whatever happened to the
//! configuration meanwhile.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Output;

use crate::common::{Sandbox, WRAPPER_THERE, config, has_runc, is_root, stderr, stdout, unique};
use serde_json::json;

const CONFIG: &str = "/etc/onload-ctk/config.toml";
const RECORDS: &str = "/run/onload-ctk/@runtimes";

/// Verbs for existing containers.
const LATER: [&str; 9] = [
    "state c1",
    "start c1",
    "kill c1 KILL",
    "exec --process /p c1",
    "pause c1",
    "ps --format json c1",
    "update --resources - c1",
    "events --stats c1",
    "delete --force c1",
];

/// A sandbox with two runtimes that report being reached; the first one is configured.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["one", "two"] {
        let path = format!("/opt/onload/{name}");
        sandbox.file(&path, format!("#!/bin/sh\necho {name} \"$@\"\n"));
        sandbox.chmod(&path, 0o755);
    }
    sandbox.file("/bundle/config.json", "{}");
    sandbox.mkdir("/run/onload-ctk");
    names(&sandbox, "one");
    sandbox
}

fn names(sandbox: &Sandbox, runtime: &str) {
    let text = format!("[runtime]\npath = \"/opt/onload/{runtime}\"\n");
    sandbox.file(CONFIG, text);
}

fn wrapper(sandbox: &Sandbox, words: &str) -> Output {
    sandbox.script(&format!("exec timeout 20 {WRAPPER_THERE} {words}"), b"")
}

/// The runtime gets these words, and the wrapper prints nothing.
fn reaches(sandbox: &Sandbox, runtime: &str, words: &str) {
    let output = wrapper(sandbox, words);
    let printed = (stdout(&output), stderr(&output));
    assert_eq!(printed, (format!("{runtime} {words}\n"), String::new()));
}

fn refused(sandbox: &Sandbox, words: &str) -> String {
    let output = wrapper(sandbox, words);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{words}: {message}");
    assert_eq!(stdout(&output), "", "{words}");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

/// The records of containers; beside them is that of the configuration.
fn records(sandbox: &Sandbox) -> Vec<PathBuf> {
    let entries = fs::read_dir(sandbox.path(RECORDS)).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("@configured"))
        .collect()
}

/// A mishap: its description and its action.
type Harm = (&'static str, fn(&Sandbox));

/// Everything that somebody once did to a configuration.
fn mishaps() -> [Harm; 9] {
    [
        ("others may write it", |sandbox| {
            sandbox.chmod(CONFIG, 0o664);
        }),
        ("another owner", |sandbox| {
            std::os::unix::fs::chown(sandbox.path(CONFIG), Some(1000), None).unwrap();
        }),
        ("a byte of Latin-1 in a comment", |sandbox| {
            sandbox.file(CONFIG, b"# M\xfcller\n[runtime]\npath = \"/opt/onload/one\"\n");
        }),
        ("a directory in its place", |sandbox| {
            fs::remove_file(sandbox.path(CONFIG)).unwrap();
            sandbox.mkdir(CONFIG);
        }),
        ("a link to nowhere", |sandbox| {
            fs::remove_file(sandbox.path(CONFIG)).unwrap();
            symlink("config.toml", sandbox.path(CONFIG)).unwrap();
        }),
        ("a link to what is gone", |sandbox| {
            fs::remove_file(sandbox.path(CONFIG)).unwrap();
            symlink("/opt/onload/config.toml", sandbox.path(CONFIG)).unwrap();
        }),
        ("its directory writable", |sandbox| {
            sandbox.chmod("/etc/onload-ctk", 0o777);
        }),
        ("broken", |sandbox| {
            sandbox.file(CONFIG, "[runtime]\npath = \"/opt/onload\n");
        }),
        ("a runtime that does not exist", |sandbox| {
            names(sandbox, "none");
        }),
    ]
}

#[test]
fn what_runs_goes_on_whatever_became_of_the_configuration() {
    if !is_root() {
        return;
    }
    for (what, harm) in mishaps() {
        let sandbox = sandbox();
        for verb in LATER {
            names(&sandbox, "one");
            reaches(&sandbox, "one", "--root /r create -b /bundle c1");
            harm(&sandbox);
            let output = wrapper(&sandbox, &format!("--root /r {verb}"));
            assert_eq!(
                (stdout(&output), stderr(&output)),
                (format!("one --root /r {verb}\n"), String::new()),
                "{what}"
            );
            refused(&sandbox, "--root /r restore c2");
            if sandbox.path(CONFIG).is_dir() {
                fs::remove_dir(sandbox.path(CONFIG)).unwrap();
            } else {
                fs::remove_file(sandbox.path(CONFIG)).unwrap();
            }
            sandbox.chmod("/etc/onload-ctk", 0o755);
        }
    }
}

/// A container that asks for nothing starts with that runtime, and a warning, which is returned, says why.
fn starts_all_the_same(sandbox: &Sandbox, runtime: &str, what: &str) -> String {
    let mut message = String::new();
    for words in ["create -b /bundle c2", "run -b /bundle c2"] {
        let output = wrapper(sandbox, words);
        message = stderr(&output);
        let reached = format!("{runtime} {words}\n");
        assert_eq!(stdout(&output), reached, "{what}: {message}");
        assert_eq!(message.lines().count(), 1, "{what}: {message}");
        let wanted =
            format!("; the container requests nothing, so it starts with /opt/onload/{runtime}\n");
        assert!(message.ends_with(&wanted), "{what}: {message}");
    }
    message
}

/// Containers that ask, each in its own way.
fn askers() -> [serde_json::Value; 4] {
    let by_variable = |entry: &str| json!({"process": {"env": [entry]}});
    [
        json!({"annotations": {"onload.dev/nic": "all"}}),
        json!({"annotations": {"onload.dev/nik": "all"}}),
        by_variable("ONLOAD_CTK_REQUEST=nic=all"),
        by_variable("ONLOAD_CTK_REQUEST=ticket:0123456789abcdef0123456789abcdef"),
    ]
}

#[test]
fn a_configuration_that_nobody_can_use_stops_only_who_asks() {
    if !is_root() {
        return;
    }
    for (what, harm) in mishaps() {
        let sandbox = sandbox();
        reaches(&sandbox, "one", "--root /r create -b /bundle c1");
        harm(&sandbox);
        if what == "a runtime that does not exist" {
            refused(&sandbox, "create -b /bundle c2");
            continue;
        }
        starts_all_the_same(&sandbox, "one", what);
        for asker in askers() {
            sandbox.file("/bundle/config.json", asker.to_string());
            refused(&sandbox, "create -b /bundle c2");
            assert_eq!(sandbox.read("/bundle/config.json"), asker.to_string(), "{what}");
        }
    }
}

#[test]
fn a_section_that_is_not_understood_is_no_reason_to_give_something_to_who_asks() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    reaches(&sandbox, "one", "create -b /bundle c1");
    sandbox.file(CONFIG, "[annotations]\nallow = [\"nic\"]\n[runtime]\npath = 1\n");
    starts_all_the_same(&sandbox, "one", "a number for a path");
    for asker in askers() {
        sandbox.file("/bundle/config.json", asker.to_string());
        refused(&sandbox, "create -b /bundle c2");
    }
}

#[test]
fn the_record_of_the_configuration_follows_every_good_one_that_names_a_runtime() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    reaches(&sandbox, "one", "create -b /bundle c1");
    names(&sandbox, "two");
    reaches(&sandbox, "two", "create -b /bundle c2");
    sandbox.file(CONFIG, "[annotations]\n\n[cdi\n");
    starts_all_the_same(&sandbox, "two", "once");
    let message = starts_all_the_same(&sandbox, "two", "again");
    let wanted = "warning: onload-container-runtime: \"/etc/onload-ctk/config.toml\": line 3: ";
    assert!(message.starts_with(wanted), "{message}");
    names(&sandbox, "one");
    reaches(&sandbox, "one", "run -b /bundle c3");
    sandbox.file(CONFIG, "[cdi\n");
    starts_all_the_same(&sandbox, "one", "again");
}

/// The operator names another runtime, and makes a mistake elsewhere in the same edit.
#[test]
fn a_broken_configuration_that_names_another_runtime_gives_that_or_none() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    reaches(&sandbox, "one", "create -b /bundle c1");
    let broken = |runtime: &str| format!("[runtime]\npath = \"{runtime}\" # confines\n[cdi\n");
    sandbox.file(CONFIG, broken("/opt/onload/two"));
    starts_all_the_same(&sandbox, "two", "once");
    // What a broken file names is not remembered.
    sandbox.file(CONFIG, "[cdi\n");
    starts_all_the_same(&sandbox, "one", "named no more");
    for bad in ["/opt/onload/none", "two", WRAPPER_THERE] {
        sandbox.file(CONFIG, broken(bad));
        let message = refused(&sandbox, "create -b /bundle c2");
        assert!(message.contains(CONFIG), "{bad}: {message}");
    }
}

#[test]
fn a_runtime_that_nobody_named_is_remembered_in_the_place_of_none() {
    if !has_runc() {
        return;
    }
    let broken = |sandbox: &Sandbox| sandbox.file(CONFIG, "[cdi\n");
    let link = |sandbox: &Sandbox| fs::read_link(sandbox.path(RECORDS).join("@configured"));
    // The start itself fails, as the bundle has no root; the runtime was found by then.
    let starts = |sandbox: &Sandbox| wrapper(sandbox, "create -b /bundle c9");
    let sandbox = sandbox();
    fs::remove_file(sandbox.path(CONFIG)).unwrap();
    starts(&sandbox);
    let remembered = link(&sandbox).unwrap();
    assert!(remembered.ends_with("runc"), "{remembered:?}");
    names(&sandbox, "two");
    reaches(&sandbox, "two", "create -b /bundle c1");
    for unnamed in [None, Some("[runtime]\n"), Some("")] {
        fs::remove_file(sandbox.path(CONFIG)).unwrap();
        if let Some(text) = unnamed {
            sandbox.file(CONFIG, text);
        }
        starts(&sandbox);
        broken(&sandbox);
        starts_all_the_same(&sandbox, "two", "the last that was named");
    }
}

/// After a reboot there is no record.
#[test]
fn without_a_record_a_broken_configuration_has_to_name_the_runtime() {
    if !is_root() {
        return;
    }
    let named = "[runtime]\npath = \"/opt/onload/one\" # confines\n[cdi\n";
    let sandbox = sandbox();
    sandbox.file(CONFIG, named);
    starts_all_the_same(&sandbox, "one", "named");
    assert!(!sandbox.path(RECORDS).join("@configured").is_symlink());
    for unclear in [
        "[cdi\n",
        "[annotations]\nallow = [\"ni",
        "[runtime]\npath = \"/opt/onload/one",
        "[runtime]\npath = \"/opt/onload/none\"\n[cdi\n",
        "runtime:\n  path: /opt/onload/one\n",
        "[runtime]\npath = \"/opt/onload/one\"\n[runtime]\npath = \"/opt/onload/two\"\n",
        "# [runtime]\n# path = \"/opt/onload/one\"\n[cdi\n",
    ] {
        sandbox.file(CONFIG, unclear);
        let message = refused(&sandbox, "create -b /bundle c2");
        assert!(message.contains(CONFIG), "{message}");
    }
    sandbox.file(CONFIG, named);
    std::os::unix::fs::chown(sandbox.path(CONFIG), Some(1000), None).unwrap();
    let message = refused(&sandbox, "create -b /bundle c2");
    assert!(message.contains("belongs to user 1000"), "{message}");
}

#[test]
fn a_record_of_the_configuration_that_is_not_trusted_is_none() {
    if !is_root() {
        return;
    }
    let link = format!("{RECORDS}/@configured");
    let relink = |sandbox: &Sandbox, target: &str| {
        let link = sandbox.path(&format!("{RECORDS}/@configured"));
        fs::remove_file(&link).unwrap();
        symlink(target, link).unwrap();
    };
    let sandbox = sandbox();
    reaches(&sandbox, "one", "create -b /bundle c1");
    sandbox.file(CONFIG, "[cdi\n");
    for target in [
        "1:/opt/onload/one",
        "2:configured:/opt/onload/one",
        "1:configured:opt/onload/one",
        "1:configured:/opt/onload/none",
        "/opt/onload/one",
    ] {
        relink(&sandbox, target);
        refused(&sandbox, "create -b /bundle c2");
    }
    relink(&sandbox, "1:configured:/opt/onload/one");
    starts_all_the_same(&sandbox, "one", "as it was");
    sandbox.chmod("/opt/onload/one", 0o775);
    refused(&sandbox, "create -b /bundle c2");
    sandbox.chmod("/opt/onload/one", 0o755);
    sandbox.chmod(RECORDS, 0o770);
    refused(&sandbox, "create -b /bundle c2");
    sandbox.chmod(RECORDS, 0o700);
    fs::remove_file(sandbox.path(&link)).unwrap();
    refused(&sandbox, "create -b /bundle c2");
}

#[test]
fn the_runtime_that_made_a_container_is_reached_when_the_configuration_names_another() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    for verb in ["create -b /bundle c1", "run -b /bundle c2", "restore -b /bundle c3"] {
        reaches(&sandbox, "one", &format!("--root /r {verb}"));
    }
    names(&sandbox, "two");
    for id in ["c1", "c2", "c3"] {
        reaches(&sandbox, "one", &format!("--root /r state {id}"));
    }
    // Another engine has a container with the same name.
    reaches(&sandbox, "two", "--root /other create -b /bundle c1");
    reaches(&sandbox, "two", "create -b /bundle c1");
    reaches(&sandbox, "one", "--root /r kill c1");
    reaches(&sandbox, "two", "--root /other kill c1");
    reaches(&sandbox, "two", "--root=/other kill c1");
    reaches(&sandbox, "two", "kill c1");
    assert_eq!(records(&sandbox).len(), 5);
    reaches(&sandbox, "one", "--root /r delete c1");
    assert_eq!(records(&sandbox).len(), 4);
    // That presumably failed, so only the configuration is left to decide.
    reaches(&sandbox, "two", "--root /r delete c1");
    reaches(&sandbox, "two", "--root /r state unknown");
    reaches(&sandbox, "two", "list");
}

#[test]
fn a_container_that_lives_is_not_taken_over_by_another_of_its_name() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    reaches(&sandbox, "one", "--root /bundle/r create -b /bundle c1");
    names(&sandbox, "two");
    sandbox.mkdir("/bundle/r/c1");
    reaches(&sandbox, "two", "--root /bundle/r create -b /bundle c1");
    reaches(&sandbox, "one", "--root /bundle/r state c1");
    fs::remove_dir(sandbox.path("/bundle/r/c1")).unwrap();
    reaches(&sandbox, "two", "--root /bundle/r create -b /bundle c1");
    reaches(&sandbox, "two", "--root /bundle/r state c1");
}

#[test]
fn a_record_is_believed_only_where_root_alone_could_have_made_it() {
    if !is_root() {
        return;
    }
    let harms: [Harm; 6] = [
        ("others may write there", |sandbox| {
            sandbox.chmod(RECORDS, 0o770);
        }),
        ("others may write above", |sandbox| {
            sandbox.chmod("/run/onload-ctk", 0o777);
        }),
        ("somebody else's", |sandbox| {
            std::os::unix::fs::chown(sandbox.path(RECORDS), Some(1000), None).unwrap();
        }),
        ("a link of somebody else's", |sandbox| {
            fs::rename(sandbox.path(RECORDS), sandbox.path("/run/moved")).unwrap();
            symlink("/run/moved", sandbox.path(RECORDS)).unwrap();
            std::os::unix::fs::lchown(sandbox.path(RECORDS), Some(1000), None).unwrap();
        }),
        ("a runtime that others may write", |sandbox| {
            sandbox.chmod("/opt/onload/one", 0o775);
        }),
        ("a runtime that does not exist", |sandbox| {
            fs::remove_file(sandbox.path("/opt/onload/one")).unwrap();
        }),
    ];
    for (what, harm) in harms {
        let sandbox = sandbox();
        reaches(&sandbox, "one", "create -b /bundle c1");
        names(&sandbox, "two");
        harm(&sandbox);
        let output = wrapper(&sandbox, "state c1");
        assert_eq!(stdout(&output), "two state c1\n", "{what}");
        let warns = what.starts_with("a runtime");
        assert_eq!(stderr(&output).lines().count(), usize::from(warns), "{what}");
    }
}

#[test]
fn a_record_of_another_version_or_without_a_path_is_none() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    reaches(&sandbox, "one", "create -b /bundle c1");
    let record = records(&sandbox).remove(0);
    assert_eq!(fs::read_link(&record).unwrap().to_str(), Some("1:/opt/onload/one"));
    names(&sandbox, "two");
    for target in ["2:/opt/onload/one", "1:opt/onload/one", "/opt/onload/one", "1:"] {
        fs::remove_file(&record).unwrap();
        symlink(target, &record).unwrap();
        reaches(&sandbox, "two", "state c1");
    }
    fs::remove_file(&record).unwrap();
    fs::write(&record, "1:/opt/onload/one").unwrap();
    reaches(&sandbox, "two", "state c1");
}

#[test]
fn a_container_that_asks_for_nothing_starts_where_nothing_can_be_remembered() {
    if !is_root() || !onload_test_needs::user_namespace() {
        return;
    }
    let sandbox = sandbox();
    sandbox.file(RECORDS, "in the way");
    reaches(&sandbox, "one", "create -b /bundle c1");
    fs::remove_file(sandbox.path(RECORDS)).unwrap();
    sandbox.mkdir(RECORDS);
    sandbox.chmod(RECORDS, 0o777);
    reaches(&sandbox, "one", "create -b /bundle c1");
    assert_eq!(records(&sandbox).len(), 0);
    fs::remove_dir(sandbox.path(RECORDS)).unwrap();
    for enter in
        ["setpriv --reuid 1000 --regid 1000 --clear-groups", "unshare --user --map-root-user"]
    {
        let script = format!("{enter} {WRAPPER_THERE} create -b /bundle c1");
        let output = sandbox.script(&script, b"");
        assert_eq!(
            (stdout(&output), stderr(&output)),
            ("one create -b /bundle c1\n".to_owned(), String::new())
        );
        assert!(!sandbox.path(RECORDS).exists());
    }
}

/// As rootlesskit does for docker and nerdctl: the user's own tmpfs, mode 1777, with links to the host's directory.
#[test]
fn a_rootless_engine_that_copies_etc_and_run_up_has_the_host_s_configuration() {
    if !is_root() || !onload_test_needs::user_namespace() {
        return;
    }
    let sandbox = sandbox();
    names(&sandbox, "two");
    let copy = "mkdir /tmp/b; mount -n --rbind $d /tmp/b; mount -n -t tmpfs none $d; mkdir -m 700 $d/.ro1
         mount -n --move /tmp/b $d/.ro1; for f in $d/.ro1/*; do ln -s .ro1/${f##*/} $d; done; rmdir /tmp/b";
    let create = |more: &str| {
        let script = format!(
            "chmod 1777 /tmp
             exec setpriv --reuid 1000 --regid 1000 --clear-groups unshare --user --map-root-user --mount sh -c '
             for d in /etc /run; do {copy}; done; {more}
             exec {WRAPPER_THERE} create -b /bundle c1'"
        );
        sandbox.script(&script, b"")
    };
    let output = create("");
    assert_eq!(
        (stdout(&output), stderr(&output)),
        ("two create -b /bundle c1\n".to_owned(), String::new())
    );
    // Everybody may write to a directory that is not sticky.
    let output = create("chmod 777 /etc");
    let message = stderr(&output);
    assert!(message.contains("\"/etc\" has mode 0777, so others can change it"), "{message}");
    assert_eq!(stdout(&output), "");
}

#[test]
fn records_of_containers_that_are_gone_do_not_pile_up() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    for n in 0..20 {
        sandbox.mkdir(&format!("/bundle/r/alive{n}"));
    }
    let script = format!(
        "i=0; while test $i -lt 20; do {WRAPPER_THERE} --root /bundle/r create -b /bundle alive$i; i=$((i+1)); done
         {WRAPPER_THERE} --root /bundle/other create -b /bundle other
         i=0; while test $i -lt 300; do {WRAPPER_THERE} --root /bundle/r create -b /bundle gone$i; i=$((i+1))
         touch -h -d '1 hour ago' {RECORDS}/*; done"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(stdout(&output).lines().count(), 321, "{}", stderr(&output));
    let count = records(&sandbox).len();
    assert!(count < 80, "{count} records");
    names(&sandbox, "two");
    for n in 0..20 {
        reaches(&sandbox, "one", &format!("--root /bundle/r state alive{n}"));
    }
    reaches(&sandbox, "one", "--root /bundle/other state other");
}

#[test]
fn a_record_that_was_just_made_is_not_swept() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    let script = format!(
        "i=0; while test $i -lt 40; do {WRAPPER_THERE} --root /bundle/r create -b /bundle c$i; i=$((i+1)); done"
    );
    sandbox.script(&script, b"");
    assert_eq!(records(&sandbox).len(), 40);
}

#[test]
fn a_record_stays_where_nobody_knows_where_its_runtime_keeps_containers() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    let script = format!(
        "{WRAPPER_THERE} create -b /bundle kept; touch -h -d '1 hour ago' {RECORDS}/*
         i=0; while test $i -lt 40; do {WRAPPER_THERE} create -b /bundle c$i; i=$((i+1)); done"
    );
    sandbox.script(&script, b"");
    assert_eq!(records(&sandbox).len(), 41);
}

/// The only record.
fn the_link(sandbox: &Sandbox) -> PathBuf {
    let mut all = records(sandbox);
    let link = all.pop().unwrap();
    assert!(all.is_empty());
    link
}

fn the_record(sandbox: &Sandbox) -> String {
    let target = fs::read_link(the_link(sandbox)).unwrap();
    target.to_string_lossy().into_owned()
}

#[test]
fn what_exec_starts_is_looked_at_in_a_restored_container_as_before() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    reaches(&sandbox, "one", "--root /r create -b /bundle c1");
    reaches(&sandbox, "one", "--root /r restore -b /bundle c1");
    assert_eq!(the_record(&sandbox), "1:/opt/onload/one");
    let link = the_link(&sandbox);
    fs::remove_file(&link).unwrap();
    symlink("1:guarded:/opt/onload/one", &link).unwrap();
    reaches(&sandbox, "one", "--root /r restore -b /bundle c1");
    assert_eq!(the_record(&sandbox), "1:guarded:/opt/onload/one");
}

#[test]
fn a_container_with_a_lease_is_restored_only_by_runc_which_calls_its_hooks() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    let bundle = |hook: &str, args: &[&str]| {
        let args = [&[hook, "createRuntime"], args].concat();
        let mut config = config(&json!({}), "true");
        config["hooks"] =
            json!({"createRuntime": [{"path": "/opt/onload/onload-hook", "args": args}]});
        sandbox.file("/bundle/config.json", config.to_string());
    };
    let restore = "--root /r restore -b /bundle c1";
    for args in [
        ["--lease", "vfio:0000:81:10.0"],
        ["--expect", "/dev/infiniband/uverbs0=rdma:rxe0"],
        ["--netdev", "ens1f0v3@0000:3b:02.1"],
        ["--take", "rdma:any"],
        ["--of-a-later-version", "x"],
    ] {
        bundle("onload-hook", &args);
        names(&sandbox, "one");
        let message = refused(&sandbox, restore);
        let why = "container c1: restoring it: \"/opt/onload/one\" does not call the hooks that check its devices";
        assert!(message.contains(why), "{args:?}: {message}");
        assert!(!sandbox.path(RECORDS).exists());
    }
    // A link to crun is no runc.
    symlink("one", sandbox.path("/opt/onload/runc")).unwrap();
    names(&sandbox, "runc");
    refused(&sandbox, restore);
    fs::remove_file(sandbox.path("/opt/onload/runc")).unwrap();
    fs::rename(sandbox.path("/opt/onload/two"), sandbox.path("/opt/onload/runc")).unwrap();
    reaches(&sandbox, "two", restore);
    names(&sandbox, "one");
    for (hook, args) in [
        ("onload-hook", &["--memlock", "unlimited"][..]),
        ("onload-hook", &[]),
        ("other-hook", &["--lease", "vfio:0000:81:10.0"]),
    ] {
        bundle(hook, args);
        reaches(&sandbox, "one", restore);
    }
}

#[test]
fn a_restored_container_that_nobody_remembers_is_taken_as_the_policy_says() {
    if !is_root() {
        return;
    }
    for (policy, record) in [("warn", "1:/opt/onload/one"), ("refuse", "1:guarded:/opt/onload/one")]
    {
        let sandbox = sandbox();
        let text = format!(
            "[runtime]\npath = \"/opt/onload/one\"\n[annotations]\nroot-with-onload = \"{policy}\"\n"
        );
        sandbox.file(CONFIG, text);
        reaches(&sandbox, "one", "--root /r restore -b /bundle c1");
        assert_eq!(the_record(&sandbox), record, "{policy}");
    }
}

/// A container from a version without records, and a runtime with its usual name.
#[test]
fn without_a_record_the_runtime_is_told_from_the_container_s_state() {
    if !has_runc() {
        return;
    }
    for (what, harm) in mishaps() {
        if what == "a byte of Latin-1 in a comment" {
            continue;
        }
        let sandbox = sandbox();
        let asks = config(&json!({}), "while :; do read -r x < /proc/loadavg; done");
        sandbox.bundle(&asks);
        sandbox.file(CONFIG, "[runtime]\npath = \"/opt/onload/one\"\n");
        harm(&sandbox);
        let id = unique("left");
        let script = format!(
            "runc create -b /bundle {id} > /tmp/out 2>&1 < /dev/null || exit 10
             {WRAPPER_THERE} state {id} || exit 11
             {WRAPPER_THERE} --log /tmp/log kill {id} KILL || exit 12
             i=0; while runc state {id} | grep -q '\"status\": \"created\"' && test $i -lt 100; do sleep 0.1; i=$((i+1)); done
             {WRAPPER_THERE} delete {id} || exit 13
             runc state {id} 2> /dev/null && exit 14
             cat /tmp/log"
        );
        let output = sandbox.script(&script, b"");
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{what}: {message}");
        assert!(message.contains("continuing with /usr/"), "{what}: {message}");
        assert!(stdout(&output).contains("continuing with /usr/"), "{what}: the log");
    }
}

#[test]
fn a_byte_that_is_no_text_does_not_hide_the_runtime() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    sandbox.file(CONFIG, b"# M\xfcller\n[runtime]\npath = \"/opt/onload/one\"\n");
    reaches(&sandbox, "one", "state c1");
    reaches(&sandbox, "one", "features");
    starts_all_the_same(&sandbox, "one", "Latin-1");
    sandbox.file("/bundle/config.json", askers()[0].to_string());
    assert!(refused(&sandbox, "create -b /bundle c1").contains("is not UTF-8"));
}

#[test]
fn verbs_without_a_container_go_on_with_a_warning() {
    if !has_runc() {
        return;
    }
    let sandbox = sandbox();
    sandbox.chmod(CONFIG, 0o664);
    for words in ["--version", "--root /bundle/r list", "--help", "--root /bundle/r state nobody"] {
        let output = wrapper(&sandbox, words);
        let message = stderr(&output);
        assert!(
            message.starts_with(
                "warning: onload-container-runtime: \"/etc/onload-ctk/config.toml\" has mode 0664"
            ),
            "{words}: {message}"
        );
        assert!(message.contains("continuing with /usr/"), "{words}: {message}");
    }
    assert!(stdout(&wrapper(&sandbox, "--version")).contains("runc version"));
}

#[test]
fn a_container_of_a_runtime_that_cannot_be_told_is_left_alone() {
    if !has_runc() {
        return;
    }
    let sandbox = sandbox();
    sandbox.chmod(CONFIG, 0o664);
    sandbox.file("/bundle/r/c1/somebody", "else's");
    let message = refused(&sandbox, "--root /bundle/r delete --force c1");
    assert!(message.contains("has mode 0664"), "{message}");
    assert!(sandbox.path("/bundle/r/c1/somebody").exists());
}

#[test]
fn the_directory_of_records_is_root_s_alone_whatever_the_umask() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    fs::remove_dir(sandbox.path("/run/onload-ctk")).unwrap();
    let script = format!("umask 0; {WRAPPER_THERE} create -b /bundle c1");
    sandbox.script(&script, b"");
    let mode = |path: &str| fs::metadata(sandbox.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("/run/onload-ctk"), mode(RECORDS)), (0o711, 0o700));
}
