//! Containers of this machine's runc that nothing of ours changed before they were made: the hook
//! puts into them what they ask for.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{
    HOOK_THERE, NIC, Sandbox, WRAPPER_THERE, config, has_runc, memlock, print_file, stderr, stdout,
    unique,
};
use onload_test_needs as needs;
use onload_test_tree::copy_program;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

const MAPPED: &str = "while read -r line; do case $line in *libonload.so*) echo mapped; break;; esac; done < /proc/self/maps";

/// Prints how often something is mounted at a place.
fn count_mounts(at: &str) -> String {
    format!(
        "n=0; while read -r a b c d point rest; do test \"$point\" = {at} && n=$((n+1)); done < /proc/self/mountinfo; echo $n"
    )
}

fn hook(stage: &str) -> Value {
    json!([{"path": HOOK_THERE, "args": ["onload-hook", stage],
            "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 10}])
}

/// A configuration whose hooks are ours.
fn live(annotations: &Value, command: &str) -> Value {
    let mut config = config(annotations, command);
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    config
}

/// A container of Onload's network cards.
fn nic(command: &str) -> Value {
    live(&json!({"onload.dev/nic": "all"}), command)
}

/// Mounts a path of the host into a container.
fn bind(config: &mut Value, source: &str, at: &str, options: &[&str]) {
    let mounts = config["mounts"].as_array_mut().unwrap();
    let mount = json!({"destination": at, "type": "bind", "source": source, "options": options});
    mounts.push(mount);
}

/// A host whose `/dev/onload` is a device that runc does not give by itself: the kernel's log, which
/// may be opened for writing without any capability. None where no container can be run.
#[track_caller]
fn host() -> Option<Sandbox> {
    if !has_runc() {
        return None;
    }
    let sandbox = Sandbox::new();
    fs::remove_file(sandbox.path("/dev/onload")).unwrap();
    sandbox.node("/dev/onload", 1, 11);
    Some(sandbox)
}

const RUNC: &str = "timeout 60 runc --root /run/runc";

fn script_of(id: &str) -> String {
    format!("exec {RUNC} run -b /bundle {id}")
}

fn run(sandbox: &Sandbox, id: &str) -> Output {
    sandbox.script(&script_of(id), b"")
}

/// The host with everything that a container could leave on it: files, those of the image too,
/// mounts and cgroups.
fn traces(sandbox: &Sandbox) -> BTreeSet<String> {
    // The directory of all containers stays, with their lock.
    let kept = ["", "/@locks", "/@locks/containers"].map(|path| format!("run/onload-ctk{path}"));
    let files = sandbox.snapshot().into_iter();
    let files = files.filter(|(path, _)| kept.iter().all(|kept| path != Path::new(kept)));
    let files = files.map(|(path, what)| format!("{} {what}", path.display()));
    let image =
        "cd /bundle && find . -printf '%p %y %s %m %U %l\\n'; ls -d /sys/fs/cgroup/*/onload-ctk-*";
    let image = stdout(&sandbox.script(image, b""));
    let id = unique("c");
    let image = image.lines().filter(|line| line.starts_with('.') || line.contains(&id));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // Others mount and unmount on this machine meanwhile.
    let root = sandbox.path("/").display().to_string();
    let mounts = mounts.lines().filter(|line| line.contains(&root) || line.contains(&id));
    files.chain(image.map(str::to_owned)).chain(mounts.map(str::to_owned)).collect()
}

/// What differs between the host before and now.
fn differences(sandbox: &Sandbox, before: &BTreeSet<String>) -> Vec<String> {
    let now = traces(sandbox);
    now.symmetric_difference(before).cloned().collect()
}

const NOTHING: [String; 0] = [];

/// Runs a script that must leave nothing behind.
#[track_caller]
fn leaves_nothing(sandbox: &Sandbox, script: &str) -> Output {
    let before = traces(sandbox);
    let output = sandbox.script_within(Duration::from_secs(100), script);
    let message = stderr(&output);
    assert_eq!(differences(sandbox, &before), NOTHING, "{message}");
    output
}

/// As [`leaves_nothing`], of a script that must print just this; what it says on standard error.
#[track_caller]
fn prints(sandbox: &Sandbox, script: &str, expected: &str) -> String {
    let output = leaves_nothing(sandbox, script);
    let message = stderr(&output);
    assert_eq!(stdout(&output), expected, "{message}");
    message
}

/// Runs a container that must end well, and leave nothing behind; what it prints.
#[track_caller]
fn succeeds(sandbox: &Sandbox, config: &Value) -> String {
    sandbox.bundle(config);
    let output = leaves_nothing(sandbox, &script_of(&unique("c")));
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Runs a container that must not start, and leave nothing behind; what the hook says.
#[track_caller]
fn refused(sandbox: &Sandbox, config: &Value) -> String {
    sandbox.bundle(config);
    refused_as_it_is(sandbox)
}

/// The same of `/bundle` as it is.
#[track_caller]
fn refused_as_it_is(sandbox: &Sandbox) -> String {
    let id = unique("c");
    one_line(&leaves_nothing(sandbox, &script_of(&id)), &id)
}

/// A script around another, which is run while the container of `/bundle` runs; `$r` is its runtime.
fn while_it_runs(runtime: &str, id: &str, script: &str) -> String {
    format!(
        "r='{runtime}'
         $r create --bundle /bundle {id} > /tmp/out 2>&1 < /dev/null || exit 10
         $r start {id} || exit 12
         {script}
         {}",
        ended(id)
    )
}

/// Ends a container that `$r` started.
fn ended(id: &str) -> String {
    format!(
        "$r kill {id} KILL; i=0; while $r state {id} | grep -q running && test $i -lt 100; do sleep 0.1; i=$((i+1)); done
         $r delete {id} || exit 15"
    )
}

/// A command that goes on until it is killed.
const GOES_ON: &str = "while :; do read -r x < /proc/loadavg; done";

/// The one line that our hook says, out of what runc makes of it.
fn one_line(output: &Output, id: &str) -> String {
    let message = stderr(output);
    assert!(!output.status.success(), "{message}");
    assert!(!stdout(output).contains("started"), "{message}");
    let count = message.matches("onload-hook createRuntime: ").count();
    assert_eq!(count, 1, "{message}");
    assert!(message.contains(&format!("container {id}: ")), "{message}");
    // runc quotes what a hook said.
    message.replace("\\\"", "\"")
}

#[test]
fn a_container_can_open_the_nodes_and_has_the_library_and_the_preload() {
    let Some(sandbox) = host() else { return };
    let command = format!(
        "exec 3>/dev/onload && echo opened; {MAPPED}; echo ${{LD_PRELOAD:-no variable}}; \
         /bin/sh -c '{MAPPED}'; read -r line < /etc/ld.so.preload; echo $line"
    );
    let config = nic(&command);
    assert_eq!(
        succeeds(&sandbox, &config),
        "opened\nmapped\nno variable\nmapped\n/usr/lib/x86_64-linux-gnu/libonload.so\n"
    );
}

#[test]
fn a_device_is_opened_as_far_as_its_specification_says_and_no_other() {
    let Some(sandbox) = host() else { return };
    let command = "(exec 3>/dev/onload) && echo written; (exec 3</dev/onload) && echo read; \
                   (exec 3<>/dev/onload) && echo both; while read -r rule; do case $rule in 'c 1:11 '*) echo $rule;; esac; done < /proc/1/root/devices; :";
    let mut config = live(&json!({"onload.dev/nic-nodes": "all"}), command);
    for (access, opened) in [("w", "written\n"), ("r", "")] {
        let nodes = NIC.replace("onload.dev/nic", "onload.dev/nic-nodes").replace(
            r#"{"path":"/dev/onload","permissions":"rw"}"#,
            &format!(r#"{{"path":"/dev/onload","permissions":"{access}"}}"#),
        );
        let mut nodes: Value = serde_json::from_str(&nodes).unwrap();
        let edits = nodes["containerEdits"].as_object_mut().unwrap();
        edits.remove("env");
        edits.remove("mounts");
        sandbox.file("/etc/cdi/onload.dev-nodes.json", nodes.to_string());
        sandbox.allow(&["nic-nodes"], "");
        config["process"]["capabilities"] = json!({});
        let message = succeeds(&sandbox, &config);
        assert_eq!(message, opened, "{access}");
    }
}

#[test]
fn a_container_cannot_change_the_mode_or_owner_of_the_host_s_nodes() {
    let Some(sandbox) = host() else { return };
    // As user 0 of the host without a user namespace, as engines start containers by default.
    let command =
        "/bin/chmod 600 /dev/onload; /bin/chown 7 /dev/onload; exec 3>/dev/onload && echo opened";
    let mut config = live(&json!({"onload.dev/nic": "all", "onload.dev/preload": "off"}), command);
    let all = json!(["CAP_KILL", "CAP_CHOWN", "CAP_FOWNER"]);
    config["process"]["capabilities"] =
        json!({"bounding": all, "effective": all, "permitted": all});
    sandbox.bundle(&config);
    for program in ["chmod", "chown"] {
        let to = format!("/bundle/rootfs/bin/{program}");
        copy_program(format!("/bin/{program}"), sandbox.path(&to));
    }
    let message = prints(&sandbox, &script_of(&unique("c")), "opened\n");
    let refused = message.matches("Read-only file system").count();
    assert_eq!(refused, 2, "{message}");
}

/// A host whose node is root's alone, as the kernel makes that of an IOMMU group, and a container of a user
/// who says whether the node is the user's and opens.
fn closed_node() -> Option<(Sandbox, Value)> {
    let sandbox = host()?;
    sandbox.chmod("/dev/onload", 0o600);
    let own = "test -O /dev/onload && test -G /dev/onload && echo own";
    let mut config = nic(&format!("{own}; exec 3>/dev/onload && echo opened"));
    config["process"]["user"] = json!({"uid": 1000, "gid": 1001});
    Some((sandbox, config))
}

#[test]
fn a_node_that_is_root_s_alone_opens_for_the_container_s_user() {
    let Some((sandbox, mut config)) = closed_node() else {
        return;
    };
    assert_eq!(succeeds(&sandbox, &config), "own\nopened\n");
    // Whoever may open the host's own has that.
    config["process"]["user"] = json!({"uid": 0, "gid": 0});
    assert_eq!(succeeds(&sandbox, &config), "own\nopened\n");
    sandbox.chmod("/dev/onload", 0o666);
    config["process"]["user"] = json!({"uid": 1000, "gid": 1001});
    assert_eq!(succeeds(&sandbox, &config), "opened\n");
}

#[test]
fn a_node_that_is_root_s_alone_opens_for_the_user_of_a_crun_container() {
    let Some((sandbox, config)) = closed_node() else {
        return;
    };
    if needs::programs(&["crun"]) {
        sandbox.bundle(&config);
        sandbox.mkdir("/run/mount");
        prints(&sandbox, &with_crun(), "own\nopened\n");
    }
}

/// Everything on the host stays as it is, where each mount of it is shared too.
#[test]
fn a_container_s_own_node_is_another_than_the_host_s() {
    let Some((sandbox, mut config)) = closed_node() else {
        return;
    };
    config["process"]["args"][2] = json!(GOES_ON);
    sandbox.bundle(&config);
    let id = unique("c");
    let inspect = format!(
        "p=$($r state {id} | sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p'); n=/proc/$p/root/dev/onload
         stat -c '%a %u:%g %t:%T' $n /dev/onload
         test $(stat -c %d $n) != $(stat -c %d /dev/onload) && echo another
         chmod 666 $n 2> /tmp/said || grep -o 'Read-only file system' /tmp/said
         chmod 666 /dev/onload; stat -c %a $n; chmod 600 /dev/onload
         grep -c ' /node[0-9]* ' /proc/$p/mountinfo; grep -c ' /node[0-9]* ' /proc/self/mountinfo"
    );
    let script = format!(
        "mount -n --make-rshared /
         {}
         grep -c tmpfs /proc/self/mountinfo > /tmp/after; cmp /tmp/before /tmp/after",
        while_it_runs(RUNC, &id, &inspect)
    );
    let script = format!("grep -c tmpfs /proc/self/mountinfo > /tmp/before; {script}");
    let expected = "600 1000:1001 1:b\n600 0:0 1:b\nanother\nRead-only file system\n600\n1\n0\n";
    prints(&sandbox, &script, expected);
}

/// SELinux forbids containers the label of the host's node, `device_t`.
#[test]
fn a_container_with_a_label_of_selinux_gets_nodes_of_its_own_on_one_file_system() {
    let Some(sandbox) = host() else { return };
    sandbox.chmod("/dev/onload", 0o640);
    let mut config = nic(GOES_ON);
    let label = "system_u:object_r:container_file_t:s0:c40,c987";
    config["linux"]["mountLabel"] = json!(label);
    // A kernel without SELinux refuses a tmpfs with a label.
    let mounts = config["mounts"].as_array_mut().unwrap();
    mounts.retain(|mount| mount["type"] != "tmpfs");
    sandbox.bundle(&config);
    let id = unique("c");
    let inspect = format!(
        "p=$($r state {id} | sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p'); n=/proc/$p/root/dev/onload
         stat -c '%a %u:%g %t:%T' $n
         test $(stat -c %d $n) != $(stat -c %d /dev/onload) && echo another
         test $(stat -c %d $n) = $(stat -c %d ${{n}}_epoll) && echo one file system"
    );
    let output = sandbox.script(&while_it_runs(RUNC, &id, &inspect), b"");
    let expected = "640 0:0 1:b\nanother\none file system\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
}

#[test]
fn a_node_that_is_root_s_alone_is_refused_to_a_user_namespace() {
    if !needs::user_namespace() {
        return;
    }
    let Some((sandbox, mut config)) = closed_node() else {
        return;
    };
    with_own_users(&mut config);
    for user in [0, 1000] {
        config["process"]["user"] = json!({"uid": user, "gid": user});
        sandbox.bundle(&config);
        let chown = sandbox.script("chown -hR 100000:100000 /bundle/rootfs", b"");
        assert!(chown.status.success());
        let message = refused_as_it_is(&sandbox);
        let wanted = "in the container's user namespace \"/dev/onload\" of the host (mode 0600) cannot be opened";
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn an_exec_d_process_has_devices_and_preload() {
    if !needs::no_chroot("runc exec") {
        return;
    }
    let Some(sandbox) = host() else { return };
    sandbox.bundle(&nic(GOES_ON));
    let id = unique("c");
    let script = format!(
        "$r exec {id} /bin/sh -c 'exec 3>/dev/onload && echo opened; {}'
         cat /run/onload-ctk/{id}/record.json",
        MAPPED.replace('\'', "\"")
    );
    let output = leaves_nothing(&sandbox, &while_it_runs(RUNC, &id, &script));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let (output_text, record) = text.split_at("opened\nmapped\n".len());
    assert_eq!(output_text, "opened\nmapped\n", "{}", stderr(&output));
    let record: Value = serde_json::from_str(record).unwrap();
    assert_eq!(
        record["live"]["rules"],
        json!([{"major": 1, "minor": 11, "access": "rw"}, {"major": 1, "minor": 5, "access": "rw"}])
    );
}

#[test]
fn two_stages_and_another_door_give_what_one_gives() {
    let Some(sandbox) = host() else { return };
    let command =
        format!("{}; {}", count_mounts("/dev/onload"), count_mounts("/etc/ld.so.preload"));
    let mut config = nic(&command);
    config["hooks"]["prestart"] = hook("prestart");
    assert_eq!(succeeds(&sandbox, &config), "1\n1\n");

    config["annotations"]["onload.dev/preload"] = json!("file");
    sandbox.bundle(&config);
    let id = unique("c");
    let script = format!(
        "{WRAPPER_THERE} --root /run/runc run -b /bundle {id}; ls -A -I '@*' /run/onload-ctk"
    );
    let output = sandbox.script(&script, b"");
    // runc made the node itself, so nothing is mounted there.
    assert_eq!(stdout(&output), "0\n1\n", "{}", stderr(&output));
}

#[test]
fn the_memory_lock_limit_rises_as_far_as_this_machine_lets_it() {
    let Some(sandbox) = host() else { return };
    let read = print_file("/proc/self/limits");
    let [_, hard] = memlock(&stdout(&sandbox.script(&read, b"")));
    let may = rustix::thread::capabilities(None)
        .unwrap()
        .effective
        .contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
    let want = if may { "unlimited".to_owned() } else { hard };
    let config = live(&json!({"onload.dev/rdma": "rxe0"}), &read);
    let limits = succeeds(&sandbox, &config);
    assert_eq!(memlock(&limits), [want.clone(), want]);
}

#[test]
fn what_comes_too_late_names_the_door_that_gives_it() {
    let Some(sandbox) = host() else { return };
    sandbox.file(
        "/etc/cdi/onload.dev-profile.json",
        r#"{"cdiVersion":"0.3.0","kind":"onload.dev/profile","devices":[{"name":"latency","containerEdits":{"env":["EF_POLL_USEC=100","ONLOAD_CTK_PROFILE_LATENCY=latency"]}}]}"#,
    );
    sandbox.file(
        "/etc/cdi/onload.dev-hugepages.json",
        r#"{"cdiVersion":"0.5.0","kind":"onload.dev/hugepages","devices":[{"name":"2Mi","containerEdits":{"mounts":[{"hostPath":"hugetlbfs","containerPath":"/dev/hugepages-2Mi","type":"hugetlbfs","options":["nosuid","nodev","pagesize=2M","mode=1777"]}]}}]}"#,
    );
    sandbox.allow(&["nic", "rdma", "profile", "hugepages"], "");
    for (annotations, key, door) in [
        (
            json!({"onload.dev/profile": "latency"}),
            "onload.dev/profile",
            "--device onload.dev/profile=latency",
        ),
        (
            json!({"onload.dev/hugepages": "2Mi"}),
            "onload.dev/hugepages",
            "--device onload.dev/hugepages=2Mi",
        ),
        (
            json!({"onload.dev/rdma": "rxe0", "onload.dev/ipc-lock": "true"}),
            "onload.dev/ipc-lock",
            "use the runtime onload",
        ),
        (
            json!({"onload.dev/hugepages-limit": "2Mi=2Mi"}),
            "onload.dev/hugepages-limit",
            "use the runtime onload",
        ),
        (
            json!({"onload.dev/nic": "all", "onload.dev/preload": "env"}),
            "onload.dev/preload",
            "--device onload.dev/nic=all",
        ),
    ] {
        let message = refused(&sandbox, &live(&annotations, "echo started"));
        assert!(message.contains(key) && message.contains(door), "{message}");
    }
}

/// What `vhost-net` adds to the specification of vfio devices; the modules need not be loaded.
const VHOST: &str = r#"{"cdiVersion":"0.5.0","kind":"onload.dev/vfio",
    "containerEdits":{"deviceNodes":[{"path":"/dev/vhost-net","permissions":"rw"},{"path":"/dev/net/tun","permissions":"rw"}]},
    "devices":[{"name":"0000:81:10.0","containerEdits":{"hooks":[{"hookName":"createRuntime","path":"/opt/onload/onload-hook",
      "args":["onload-hook","createRuntime","--expect","/dev/vhost-net=misc:vhost-net#10:238","--expect","/dev/net/tun=misc:tun#10:200"],
      "env":["PATH=/usr/bin"],"timeout":10}]}}]}"#;

#[test]
fn vhost_and_tun_come_with_a_vfio_device_and_only_as_themselves() {
    let Some(sandbox) = host() else { return };
    sandbox.file("/etc/cdi/onload.dev-vfio.json", VHOST);
    sandbox.allow(&["vfio"], "");
    sandbox.mkdir("/dev/net");
    sandbox.node("/dev/net/tun", 10, 200);
    sandbox.node("/dev/vhost-net", 10, 238);
    let print = "test -c /dev/vhost-net && test -c /dev/net/tun && echo both";
    let asked = live(&json!({"onload.dev/vfio": "0000:81:10.0"}), print);
    assert_eq!(succeeds(&sandbox, &asked), "both\n");
    fs::remove_file(sandbox.path("/dev/vhost-net")).unwrap();
    sandbox.node("/dev/vhost-net", 10, 229);
    let message = refused(&sandbox, &asked);
    let says = "the node is 10:229 but the kernel's vhost-net is 10:238";
    assert!(message.contains(says), "{message}");
    fs::remove_file(sandbox.path("/dev/vhost-net")).unwrap();
    let message = refused(&sandbox, &asked);
    assert!(message.contains("device node /dev/vhost-net"), "{message}");
}

/// A specification of `select-interface`.
const CHOOSING: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/nic-plain","devices":[
    {"name":"all","containerEdits":{"env":["ONLOAD_CTK_NIC_PLAIN_ENS1=ens1","ONLOAD_CTK_NIC_PLAIN_ENS2=ens2"]}},
    {"name":"ens1","containerEdits":{"env":["EF_INTERFACE_WHITELIST=ens1"]}},
    {"name":"ens2","containerEdits":{"env":["EF_INTERFACE_WHITELIST=ens2"]}}]}"#;

#[test]
fn a_choice_of_an_interface_comes_too_late_unless_the_container_makes_it_or_there_are_two() {
    let Some(sandbox) = host() else { return };
    sandbox.file("/etc/cdi/onload.dev-nic-plain.json", CHOOSING);
    sandbox.allow(&["nic-plain"], "");
    let print = "echo started ${EF_INTERFACE_WHITELIST-with none}";
    let one = json!({"onload.dev/nic-plain": "ens1"});
    let message = refused(&sandbox, &live(&one, print));
    for part in [
        "onload.dev/nic-plain",
        "cannot be given the environment variable EF_INTERFACE_WHITELIST",
        "--device onload.dev/nic-plain=ens1",
    ] {
        assert!(message.contains(part), "{message}");
    }
    for own in ["ens1", "eth0", ""] {
        let mut config = live(&one, print);
        let own = format!("EF_INTERFACE_WHITELIST={own}");
        config["process"]["env"] = json!(["PATH=/bin", own]);
        let value = own.split_once('=').unwrap().1;
        let started = format!("started {value}");
        assert_eq!(succeeds(&sandbox, &config).trim(), started.trim());
    }
    for names in ["ens1,ens2", "ens2,all", "all"] {
        let several = live(&json!({"onload.dev/nic-plain": names}), print);
        assert_eq!(succeeds(&sandbox, &several), "started with none\n");
    }
}

#[test]
fn what_the_configuration_holds_already_is_not_refused() {
    let Some(sandbox) = host() else { return };
    sandbox.file(
        "/etc/cdi/onload.dev-profile.json",
        r#"{"cdiVersion":"0.3.0","kind":"onload.dev/profile","devices":[{"name":"latency","containerEdits":{"env":["EF_POLL_USEC=100"]}}]}"#,
    );
    sandbox.allow(&["nic", "rdma", "profile"], "");
    let mut config = live(
        &json!({"onload.dev/nic": "all", "onload.dev/profile": "latency", "onload.dev/rdma": "rxe1",
            "onload.dev/ipc-lock": "true", "onload.dev/preload": "env"}),
        "echo started $EF_POLL_USEC",
    );
    config["process"]["env"] = json!(["PATH=/bin", "EF_POLL_USEC=7", "LD_PRELOAD=libonload.so"]);
    let set = json!(["CAP_KILL", "CAP_IPC_LOCK"]);
    config["process"]["capabilities"] =
        json!({"bounding": set, "effective": set, "permitted": set});
    assert_eq!(succeeds(&sandbox, &config), "started 7\n");
}

#[test]
fn a_preload_without_a_bounded_table_is_refused() {
    let Some(sandbox) = host() else { return };
    let mut config = nic("echo started");
    config["process"]["rlimits"] =
        json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1_073_741_816}]);
    let message = refused(&sandbox, &config);
    assert!(
        message.contains("an RLIMIT_NOFILE of 1073741816")
            && message.contains("--ulimit nofile=524288:524288"),
        "{message}"
    );
    config["process"]["rlimits"] =
        json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1_048_577}]);
    let message = refused(&sandbox, &config);
    assert!(message.contains("an RLIMIT_NOFILE of 1048577"), "{message}");
    config["process"]["rlimits"] = json!([]);
    let message = refused(&sandbox, &config);
    assert!(message.contains("no own RLIMIT_NOFILE"), "{message}");
    config["annotations"]["onload.dev/preload"] = json!("off");
    assert_eq!(succeeds(&sandbox, &config), "started\n");
}

/// Podman's is 1048576, and runc sets it again after the hook.
#[test]
fn a_limit_that_podman_gives_bounds_the_table_well_enough() {
    let Some(sandbox) = host() else { return };
    let mut config = nic("ulimit -Hn");
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    sandbox.allow(&["nic"], "");
    let text = sandbox.read("/etc/onload-ctk/config.toml");
    let text = format!("{text}fdtable-size = 2048\n");
    sandbox.file("/etc/onload-ctk/config.toml", text);
    assert_eq!(succeeds(&sandbox, &config), "4096\n");
}

#[test]
fn an_operator_can_close_the_door_for_devices() {
    let Some(sandbox) = host() else { return };
    sandbox.allow(&["nic", "rdma"], "live-devices = false");
    let config = nic("echo started");
    let message = refused(&sandbox, &config);
    assert!(
        message.contains("live-devices = false in /etc/onload-ctk/config.toml")
            && message.contains("use the engine's --device"),
        "{message}"
    );
}

/// The loader takes from the list for such a program only what is named with its path, or has the
/// set-user-ID bit itself (elf/rtld.c, `do_preload`, `__RTLD_SECURE`).
#[test]
fn a_set_user_id_program_is_preloaded() {
    let Some(sandbox) = host() else { return };
    let command = format!("/bin/raised -p -c '{MAPPED}' 2>&1");
    let mut config = nic(&command);
    config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    config["process"]["noNewPrivileges"] = json!(false);
    sandbox.bundle(&config);
    let raised = "/bundle/rootfs/bin/raised";
    copy_program(sandbox.path("/bundle/rootfs/bin/sh"), sandbox.path(raised));
    sandbox.chmod(raised, 0o4755);
    assert_eq!(succeeds(&sandbox, &config), "mapped\n");
}

#[test]
fn an_image_s_own_list_is_merged_and_comes_back() {
    let Some(sandbox) = host() else { return };
    let command = "while read -r line; do echo $line; done < /etc/ld.so.preload";
    let config = nic(command);
    sandbox.bundle(&config);
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "libother.so # theirs\n");
    assert_eq!(
        succeeds(&sandbox, &config),
        "/usr/lib/x86_64-linux-gnu/libonload.so\nlibother.so\n"
    );
}

#[test]
fn a_libc_that_cannot_load_the_library_stops_the_container_or_skips_the_preload() {
    let Some(sandbox) = host() else { return };
    let config = nic("test -e /etc/ld.so.preload || echo none");
    sandbox.bundle(&config);
    // A glibc that defines nothing beside a loader that nobody asks.
    let libc = sandbox.path("/bundle/rootfs/usr/lib/x86_64-linux-gnu/libc.so.6");
    let real = fs::read(&libc).unwrap();
    fs::write(&libc, rename_versions(&real)).unwrap();
    let message = refused_as_it_is(&sandbox);
    assert!(message.contains("on-incompatible = \"skip\""), "{message}");
}

/// glibc's version names as those of a libc that nobody knows.
fn rename_versions(library: &[u8]) -> Vec<u8> {
    let mut renamed = library.to_vec();
    let mut at = 0;
    while let Some(found) = renamed[at..].windows(6).position(|bytes| bytes == b"GLIBC_") {
        renamed[at + found] = b'H';
        at += found + 6;
    }
    renamed
}

#[test]
fn a_user_of_the_host_cannot_hold_containers_up_by_a_lock() {
    let Some(sandbox) = host() else { return };
    // What an earlier version made.
    sandbox.mkdir("/run/onload-ctk");
    let other = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let config = nic("echo started");
    sandbox.bundle(&config);
    let held = HELD;
    let script = format!(
        "{other} flock --no-fork /run/onload-ctk sh -c 'echo > /tmp/held; exec sleep 50' > /dev/null 2>&1 & {held}
         runc --root /run/runc run -b /bundle {}
         {other} flock -s /run/onload-ctk true || echo closed
         {other} flock -s /run/onload-ctk/@locks/containers true || echo closed
         {other} ls /run/onload-ctk/@locks || echo closed
         kill $!
         printf '{{\"id\":\"c1\",\"status\":\"stopped\"}}' | {other} {HOOK_THERE} poststop || echo failed",
        unique("c")
    );
    // A user without root has nothing to clean up there.
    sandbox.mkdir("/tmp");
    sandbox.chmod("/tmp", 0o777);
    let output = sandbox.script_within(Duration::from_secs(40), &script);
    let message = stderr(&output);
    let closed = "closed\n".repeat(3);
    assert_eq!(stdout(&output), format!("started\n{closed}"), "{message}");
    assert_eq!(message.matches("Permission denied").count(), 3, "{message}");
}

/// Waits for a program in the background that says when it holds a lock.
const HELD: &str = "while ! test -e /tmp/held; do :; done;";

/// The hook's messages, which runc keeps to itself where all goes well, go to /tmp/said.
fn heard(sandbox: &Sandbox, config: &mut Value) {
    sandbox.allow(&["nic", "rdma"], "root-with-onload = \"allow\"");
    sandbox.file("/opt/onload/heard", format!("#!/bin/sh\nexec {HOOK_THERE} $1 2>> /tmp/said\n"));
    sandbox.chmod("/opt/onload/heard", 0o755);
    for stage in ["createRuntime", "poststop"] {
        config["hooks"][stage] = json!([{"path": "/opt/onload/heard", "args": ["heard", stage], "env": ["PATH=/usr/bin:/bin"]}]);
    }
    sandbox.bundle(config);
    sandbox.file("/tmp/said", "");
}

/// User 0 of a container without a user namespace, who has /run mounted read-only.
#[test]
fn a_container_that_sees_run_cannot_hold_others_up_by_a_lock() {
    let Some(sandbox) = host() else { return };
    let mut config = nic("echo started");
    heard(&sandbox, &mut config);
    sandbox.mkdir("/run/mount");
    let run = |id: &str| format!("runc --root /run/runc run -b /bundle {id} || echo failed");
    let id = unique("c");
    let script = format!(
        "{}
         unshare --mount sh -c 'mount --bind -o ro /run /run && mount -o remount,bind,ro /run && exec flock --no-fork /run/onload-ctk/@locks/containers sh -c \"echo > /tmp/held; exec sleep 50\"' & holder=$!
         {HELD}
         {}
         cat /tmp/said; ls -I '@*' /run/onload-ctk
         kill $holder; wait $holder
         {}
         ls -I '@*' /run/onload-ctk; ls -A /bundle/rootfs/etc",
        run("first"),
        run(&id),
        run("last"),
    );
    let output = sandbox.script_within(Duration::from_secs(40), &script);
    let (text, message) = (stdout(&output), stderr(&output));
    let lines: Vec<&str> = text.lines().collect();
    let [first, second, start, end, left, last] = lines[..] else {
        panic!("{text} {message}");
    };
    assert_eq!([first, second, last], ["started"; 3], "{text} {message}");
    for (line, stage) in [(start, "createRuntime"), (end, "poststop")] {
        assert!(
            line.starts_with(&format!("onload-hook {stage}: container {id}: warning: "))
                && line.contains("/run/onload-ctk/@locks/containers")
                && line.contains("(\"sleep\") holds it"),
            "{line}"
        );
    }
    assert_eq!(left, id, "the record of its mount targets waits for a sweep");
}

/// Any user may mount FUSE, under a name that is no text.
#[test]
fn a_mount_of_the_host_whose_name_is_no_text_hinders_no_container() {
    let Some(sandbox) = host() else { return };
    let command = "exec 3>/dev/onload && echo opened";
    sandbox.bundle(&nic(command));
    sandbox.mkdir("/run/mount");
    let script = format!(
        "d=$(printf '/tmp/caf\\351'); mkdir \"$d\"; mount -t tmpfs none \"$d\"; {}",
        script_of(&unique("c"))
    );
    prints(&sandbox, &script, "opened\n");
}

/// A path of mount(2) has 4096 bytes, and each may take four in the table.
#[test]
fn a_table_of_mounts_of_more_than_eight_megabytes_is_read_to_its_end() {
    let Some(sandbox) = host() else { return };
    let command = "exec 3>/dev/onload && echo opened";
    sandbox.bundle(&nic(command));
    sandbox.mkdir("/run/mount");
    let script = format!(
        "n=\"$(printf '%250s')\"; d=/tmp; i=0; while test $i -lt 15; do d=\"$d/$n\"; i=$((i+1)); done
         mkdir -p \"$d\"
         i=0; while test $i -lt 600; do mount -n -i -t tmpfs none \"$d\" || exit 9; i=$((i+1)); done
         test $(wc -c < /proc/self/mountinfo) -gt 8388608 || exit 8
         {}",
        script_of(&unique("c"))
    );
    prints(&sandbox, &script, "opened\n");
}

#[test]
fn a_record_of_another_version_costs_a_line_and_no_more() {
    let Some(sandbox) = host() else { return };
    let mut config = nic("exec 3>/dev/onload && echo opened");
    heard(&sandbox, &mut config);
    let before = traces(&sandbox);
    let id = unique("c");
    sandbox.file(
        &format!("/run/onload-ctk/{id}/record.json"),
        "{\"version\": 1, \"live\": {\"pid\": \"seven\"}}",
    );
    let output = sandbox.script(&format!("{}; ", script_of(&id).replace("exec ", "")), b"");
    assert_eq!(stdout(&output), "opened\n", "{}", stderr(&output));
    let message = sandbox.read("/tmp/said");
    let line =
        format!("createRuntime: container {id}: warning: reading the record of the container: ");
    assert!(message.contains(&line), "{message}");
    assert!(message.ends_with("; it is ignored\n"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_eq!(differences(&sandbox, &before), NOTHING);
}

/// A list is as large as the image's own makes it, and its container may fail before any hook.
#[test]
fn lists_of_containers_that_never_came_do_not_pile_up() {
    let Some(sandbox) = host() else { return };
    let mut config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}), ":");
    config["linux"]["namespaces"] = json!([{"type": "nonsense"}]);
    config["root"]["path"] = json!("/bundle/rootfs");
    sandbox.root_file_system("/bundle/rootfs");
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "libother.so\n".repeat(5000));
    let text = serde_json::to_vec(&config).unwrap();
    for n in 1..=6 {
        sandbox.file(&format!("/own{n}/userdata/config.json"), &text);
    }
    let ls = "ls -I '@*' /run/onload-ctk; echo end;";
    let fail = |n: u32| {
        format!("{WRAPPER_THERE} --root /run/runc create -b /own{n}/userdata c{n} 2> /dev/null;")
    };
    let all: String = (1..=6).map(fail).collect();
    let output = sandbox
        .script(&format!("{all} {ls} {WRAPPER_THERE} --root /run/runc delete c6; {ls}"), b"");
    assert_eq!(stdout(&output), "c6\nend\nend\n", "{}", stderr(&output));

    // podman's hook ends before its runtime begins, and podman removes what failed.
    let precreate = |n: u32| {
        format!("cd /own{n}/userdata; {HOOK_THERE} precreate < config.json > /tmp/config; cd /;")
    };
    for n in 1..=6 {
        sandbox.file(&format!("/own{n}/userdata/config.json"), &text);
    }
    let script = format!(
        "{} {} {ls} rm -r /own1 /own2; {} {ls} rm -r /own3; printf '{{\"id\":\"own3\",\"status\":\"stopped\"}}' | {HOOK_THERE} poststop; {ls}",
        precreate(1),
        precreate(2),
        precreate(3)
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(stdout(&output), "own1\nown2\nend\nown3\nend\nend\n", "{}", stderr(&output));
}

#[test]
fn the_list_of_a_container_that_lives_stays() {
    let Some(sandbox) = host() else { return };
    let mut config =
        config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}), GOES_ON);
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    sandbox.bundle(&config);
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "libother.so\n");
    config["root"]["path"] = json!("/bundle/rootfs");
    config["linux"]["namespaces"] = json!([{"type": "nonsense"}]);
    sandbox.file("/own/config.json", serde_json::to_vec(&config).unwrap());
    let id = unique("c");
    let script = format!(
        "r='{WRAPPER_THERE} --root /run/other'
         $r create --bundle /bundle {id} > /tmp/out 2>&1 < /dev/null || exit 10
         for n in 1 2; do $r create --bundle /own c$n 2> /dev/null; $r delete c$n 2> /dev/null; done
         ls -I '@*' /run/onload-ctk
         $r delete --force {id} || exit 15
         ls -I '@*' /run/onload-ctk"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), format!("{id}\n"), "{}", stderr(&output));
}

#[test]
fn an_engine_s_umask_closes_nothing_to_the_container_s_users() {
    let Some(sandbox) = host() else { return };
    let spec = NIC.replace("/usr/lib64/libonload.so", "/opt/new/dir/libonload.so");
    sandbox.file("/etc/cdi/onload.dev-nic.json", spec);
    let command =
        "test -r /opt/new/dir/libonload.so && read -r line < /etc/ld.so.preload && echo $line";
    let mut config = nic(command);
    config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    sandbox.bundle(&config);
    let script = format!("umask 077; {}", script_of(&unique("c")));
    prints(&sandbox, &script, "/opt/new/dir/libonload.so\n");
    let script = format!(
        "umask 077; rm -r /run/onload-ctk; {WRAPPER_THERE} --root /run/runc create -b /own c1; stat -c '%n %a' /run/onload-ctk /run/onload-ctk/c1"
    );
    config["annotations"]["onload.dev/preload"] = json!("file");
    config["hooks"] = json!({});
    config["root"]["path"] = json!("/bundle/rootfs");
    config["linux"]["namespaces"] = json!([{"type": "nonsense"}]);
    sandbox.file("/own/config.json", serde_json::to_vec(&config).unwrap());
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "libother.so\n");
    assert_eq!(
        stdout(&sandbox.script(&script, b"")),
        "/run/onload-ctk 711\n/run/onload-ctk/c1 755\n"
    );
}

#[test]
fn a_read_only_root_and_a_restart_work() {
    let Some(sandbox) = host() else { return };
    let command = "exec 3>/dev/onload && echo opened; (: > /file) || echo read-only";
    let mut config = nic(command);
    config["root"]["readonly"] = json!(true);
    for _ in 0..2 {
        assert_eq!(succeeds(&sandbox, &config), "opened\nread-only\n");
    }
}

#[test]
fn three_containers_at_once_in_one_root_do_not_meet() {
    let Some(sandbox) = host() else { return };
    let command = format!("exec 3>/dev/onload && echo opened; {MAPPED}");
    sandbox.bundle(&nic(&command));
    let id = unique("c");
    let one = |n: u32| format!("{RUNC} run -b /bundle {id}{n} > /tmp/out{n} 2>&1 & ");
    let script = format!("{}{}{} wait; cat /tmp/out*", one(1), one(2), one(3));
    prints(&sandbox, &script, &"opened\nmapped\n".repeat(3));
}

/// crun gives a container up without a poststop when something fails behind our hook: another hook,
/// or a command that is not there.
#[test]
fn what_a_runtime_leaves_without_a_poststop_goes_when_the_next_container_starts() {
    let Some(sandbox) = host() else { return };
    sandbox.bundle(&nic(GOES_ON));
    let bundle = |name: &str, root: &str, has_poststop: bool| {
        let mut config = nic("echo started");
        config["root"]["path"] = json!(root);
        let hooks = config["hooks"].as_object_mut().unwrap();
        hooks.retain(|stage, _| stage == "createRuntime" || has_poststop);
        sandbox.file(&format!("/{name}/config.json"), serde_json::to_vec(&config).unwrap());
    };
    sandbox.root_file_system("/root2");
    bundle("left", "/root2", false);
    bundle("next", "/bundle/rootfs", true);
    let id = unique("c");
    let script = format!(
        "$r run -b /left {id}-left
         ls -I '@*' /run/onload-ctk
         $r run -b /next {id}-next
         ls -I '@*' /run/onload-ctk"
    );
    let script = format!("{}; echo ended", while_it_runs(RUNC, &id, &script));
    let expected = format!("started\n{id}\n{id}-left\nstarted\n{id}\nended\n");
    prints(&sandbox, &script, &expected);
}

#[test]
fn crun_s_containers_get_what_runc_s_get() {
    let Some(sandbox) = host() else { return };
    if !needs::programs(&["crun"]) {
        return;
    }
    let command = format!("exec 3>/dev/onload && echo opened; {MAPPED}");
    sandbox.bundle(&nic(&command));
    // umount(8) keeps notes there.
    sandbox.mkdir("/run/mount");
    prints(&sandbox, &with_crun(), "opened\nmapped\n");
}

/// Runs the container of `/bundle` with crun, which wants one kind of hierarchy.
fn with_crun() -> String {
    format!(
        "umount /sys/fs/cgroup/unified 2> /tmp/said
         exec timeout 60 crun --cgroup-manager=cgroupfs --root /run/runc run -b /bundle {}",
        unique("c")
    )
}

/// An engine written in Go spells `<`, `>` and `&` as six bytes each.
#[test]
fn a_variable_that_is_long_by_its_spelling_alone_does_not_matter() {
    let Some(sandbox) = host() else { return };
    let command = "exec 3>/dev/onload && echo opened ${#LONG}";
    let mut config = nic(command);
    let env = config["process"]["env"].as_array_mut().unwrap();
    env.push(json!("LONG=@"));
    sandbox.bundle(&config);
    let long = format!("LONG={}", r"\u003c".repeat(22_000));
    let text = sandbox.read("/bundle/config.json").replace("LONG=@", &long);
    sandbox.file("/bundle/config.json", text);
    let output = run(&sandbox, &unique("c"));
    assert_eq!(stdout(&output), "opened 22000\n", "{}", stderr(&output));
}

/// Gives a container a user namespace of its own.
fn with_own_users(config: &mut Value) {
    let mappings = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
    config["linux"]["uidMappings"] = mappings.clone();
    config["linux"]["gidMappings"] = mappings;
    let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.push(json!({"type": "user"}));
}

#[test]
fn a_user_namespace_of_its_own_works() {
    if !needs::user_namespace() {
        return;
    }
    let Some(sandbox) = host() else { return };
    let command = format!(
        "exec 3>/dev/onload && echo opened; {MAPPED}; while read -r map; do echo $map; done < /proc/self/uid_map"
    );
    let mut config = nic(&command);
    with_own_users(&mut config);
    sandbox.bundle(&config);
    let chown = sandbox.script("chown -hR 100000:100000 /bundle/rootfs", b"");
    assert!(chown.status.success());
    let expected = "opened\nmapped\n0 100000 65536\n";
    prints(&sandbox, &script_of(&unique("c")), expected);
}

#[test]
fn a_volume_over_a_target_is_refused_and_stays_empty() {
    for (at, options) in [
        ("/dev", ["rbind", "rw"]),
        ("/usr/lib64", ["bind", "rw"]),
        ("/usr", ["bind", "ro"]),
        ("/etc", ["bind", "rshared"]),
    ] {
        let Some(sandbox) = host() else { return };
        let mut config = nic("echo started");
        sandbox.bundle(&config);
        // What the container starts must be there.
        let copied =
            sandbox.script(&format!("mkdir -p /volume && cp -a /bundle/rootfs{at}/. /volume"), b"");
        assert!(copied.status.success());
        bind(&mut config, "/volume", at, &options);
        let message = refused(&sandbox, &config);
        assert!(message.contains("is below the mount at"), "{at}: {message}");
    }
}

#[test]
fn a_shared_root_carries_nothing_to_the_host() {
    let Some(sandbox) = host() else { return };
    let mut config = nic("echo started");
    config["linux"]["rootfsPropagation"] = json!("shared");
    sandbox.bundle(&config);
    // mount(8) keeps notes there.
    sandbox.mkdir("/run/mount");
    let script = format!(
        "mount --bind /bundle /bundle; mount --make-shared /bundle; {}",
        script_of(&unique("c"))
    );
    prints(&sandbox, &script, "started\n");
}

#[test]
fn a_target_on_a_mount_that_is_shared_with_the_host_is_refused() {
    let Some(sandbox) = host() else { return };
    let mut config = nic("echo started");
    sandbox.file("/volume/library", "theirs");
    bind(&mut config, "/volume/library", "/usr/lib64/libonload.so", &["bind", "rshared"]);
    sandbox.bundle(&config);
    sandbox.file("/bundle/rootfs/usr/lib64/libonload.so", "");
    sandbox.mkdir("/run/mount");
    let id = unique("c");
    let script = format!(
        "mount --make-rshared /; mount --bind /volume /volume; mount --make-shared /volume; cat /proc/self/mountinfo > /tmp/before
         {}; echo $?; cat /proc/self/mountinfo | diff - /tmp/before && echo same",
        script_of(&id).replace("exec ", "")
    );
    let message = prints(&sandbox, &script, "1\nsame\n");
    assert!(message.contains("is on a mount that is shared with the host"), "{message}");
}

#[test]
fn links_of_the_image_that_lead_out_stay_inside_or_are_refused() {
    for (link, target) in [
        ("usr/lib64", "/proc/self/root/etc"),
        ("etc", "/proc/self/root/etc"),
        ("etc", "../../../../../../../etc"),
        ("etc", "/host/etc"),
        ("usr/lib64", "/host/usr/lib64"),
        ("etc/ld.so.preload", "/host/etc/nothing"),
        ("etc/ld.so.preload", "/nowhere/nothing"),
        ("etc/ld.so.preload", "/proc/self/fd/0"),
        ("etc", "etc"),
    ] {
        let Some(sandbox) = host() else { return };
        let mut config = nic("echo started");
        bind(&mut config, "/", "/host", &["rbind", "rw"]);
        sandbox.bundle(&config);
        sandbox.mkdir("/bundle/rootfs/host");
        let place = sandbox.path(&format!("/bundle/rootfs/{link}"));
        let _ = fs::rename(&place, sandbox.path("/bundle/rootfs/moved"));
        symlink(target, &place).unwrap();
        let before = traces(&sandbox);
        let output = run(&sandbox, &unique("c"));
        assert_eq!(
            differences(&sandbox, &before),
            NOTHING,
            "{link} -> {target}: {}",
            stderr(&output)
        );
        if target.contains("/host") || target.contains("/proc") {
            assert!(!output.status.success(), "{link} -> {target}");
        }
    }
}

#[test]
fn a_directory_that_is_swapped_for_a_link_while_the_hook_looks_never_leads_out() {
    let Some(sandbox) = host() else { return };
    let mut config = live(&json!({"onload.dev/nic": "all", "onload.dev/preload": "off"}), ":");
    bind(&mut config, "/volume", "/host", &["bind", "rw"]);
    sandbox.mkdir("/volume/lib64");
    sandbox.bundle(&config);
    sandbox.mkdir("/bundle/rootfs/host");
    let usr = |name: &str| sandbox.path(&format!("/bundle/rootfs/usr/{name}"));
    symlink("/host/lib64", usr("link")).unwrap();
    // What the image itself becomes is its own affair.
    let host_only = |all: BTreeSet<String>| -> BTreeSet<String> {
        all.into_iter().filter(|line| !line.starts_with("./")).collect()
    };
    let before = host_only(traces(&sandbox));
    let id = unique("c");
    let script = format!(
        "i=0; while test $i -lt 20; do i=$((i+1)); {RUNC} run -b /bundle {id} && echo started; done"
    );
    let done = AtomicBool::new(false);
    let swap = || {
        while !done.load(Ordering::Relaxed) {
            let exchange = RenameFlags::EXCHANGE;
            renameat_with(CWD, usr("lib64"), CWD, usr("link"), exchange).unwrap();
        }
    };
    let output = std::thread::scope(|scope| {
        scope.spawn(swap);
        let output = sandbox.script(&script, b"");
        done.store(true, Ordering::Relaxed);
        output
    });
    println!("{} of 20 containers started", stdout(&output).lines().count());
    let after = host_only(traces(&sandbox));
    let changed: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(changed.is_empty(), "{changed:?} {}", stderr(&output));
}

#[test]
fn configurations_that_make_no_sense_are_refused_in_one_line() {
    let Some(sandbox) = host() else { return };
    let whole = nic(":").to_string();
    sandbox.bundle(&json!({}));
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let large = "y".repeat(50_000_000);
    let state = br#"{"id":"c1","bundle":"/bundle","pid":1,"annotations":{"onload.dev/nic":"all"}}"#;
    for json in [
        whole[..whole.len() / 2].to_owned() + "onload.dev/",
        whole.replacen('{', "{\"annotations\":{\"onload.dev/rdma\":\"rxe0\"},", 1),
        whole.replace("\"all\"", "\"all\",\"onload.dev/nic\":\"all\""),
        whole.replace("\"all\"", &deep),
        whole.replacen('{', &format!("{{\"filler\":\"{large}\","), 1),
        whole.replace("\"all\"", "\"../../etc\""),
        whole.replace("\"rootfs\"", "\"/\""),
        whole.replace("\"rootfs\"", "\"/nowhere\""),
    ] {
        sandbox.file("/bundle/config.json", &json);
        let before = traces(&sandbox);
        let script = format!("ulimit -v 98304; timeout 20 {HOOK_THERE} createRuntime");
        // Entered once more, so that process 1 of the state is in another mount namespace.
        let output = sandbox.script(&script, state);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.starts_with("onload-hook createRuntime: container c1: "), "{message}");
        assert_eq!(differences(&sandbox, &before), NOTHING);
    }
}

#[test]
fn a_place_that_is_no_file_is_refused() {
    for kind in ["fifo", "directory", "socket", "sparse"] {
        let Some(sandbox) = host() else { return };
        let config = nic("echo started");
        sandbox.bundle(&config);
        let path = "/bundle/rootfs/etc/ld.so.preload";
        match kind {
            "fifo" => drop(sandbox.script(&format!("mkfifo {path}"), b"")),
            "directory" => sandbox.mkdir(path),
            "sparse" => fs::File::create(sandbox.path(path)).unwrap().set_len(10 << 30).unwrap(),
            _ => drop(std::os::unix::net::UnixListener::bind(sandbox.path(path)).unwrap()),
        }
        let message = refused_as_it_is(&sandbox);
        assert!(message.contains("ld.so.preload"), "{kind}: {message}");
        // This door cannot set the variable in its stead.
        assert!(!message.contains("preload: env"), "{kind}: {message}");
    }
}

/// A link of the image leads a volume to where our list goes: what is in the volume is not the image's,
/// and may be readable to nobody in the container.
#[test]
fn a_list_on_somebody_else_s_mount_is_not_copied() {
    let Some(sandbox) = host() else { return };
    let command = "while read -r line; do echo $line; done < /etc/ld.so.preload";
    let mut config = nic(command);
    bind(&mut config, "/volume/list", "/link/ld.so.preload", &["bind", "ro"]);
    config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    sandbox.file("/volume/list", "secret\n");
    sandbox.chmod("/volume/list", 0o600);
    sandbox.bundle(&config);
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "");
    symlink("etc", sandbox.path("/bundle/rootfs/link")).unwrap();
    let message = refused(&sandbox, &config);
    assert!(
        message.contains("the container has its own mount at /etc/ld.so.preload; remove that, or set onload.dev/preload: off"),
        "{message}"
    );
}

/// Calls the hook for a process that a shell names.
fn hook_for(pid: &str) -> String {
    let state = r#"{"id":"c1","pid":%s,"bundle":"/bundle","annotations":{"onload.dev/nic":"all"}}"#;
    format!("printf '{state}' {pid} | {HOOK_THERE} createRuntime")
}

/// Whoever can exchange the directory that the runtime mounted, or calls the hook too early, must not
/// have files made on the host.
#[test]
fn a_root_that_nobody_mounted_is_refused() {
    let Some(sandbox) = host() else { return };
    let mut config = nic(":");
    config["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
    sandbox.bundle(&config);
    let script = format!(
        "unshare --mount sleep 60 & pid=$!
         while test \"$(readlink /proc/$pid/ns/mnt)\" = \"$(readlink /proc/self/ns/mnt)\"; do :; done
         {}
         status=$?; kill $pid; exit $status",
        hook_for("$pid")
    );
    let output = leaves_nothing(&sandbox, &script);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("is not a mount in the container's mount namespace"), "{message}");
}

#[test]
fn a_process_in_the_host_s_mount_namespace_is_never_touched() {
    let Some(sandbox) = host() else { return };
    sandbox.bundle(&nic(":"));
    let output = leaves_nothing(&sandbox, &hook_for("$$"));
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("shares this host's mount namespace"), "{message}");
}

#[test]
fn reapply_opens_the_devices_of_that_very_process_once_more() {
    let Some(sandbox) = host() else { return };
    let is_v1 = Path::new("/sys/fs/cgroup/devices/devices.allow").exists();
    if !needs::on_this_machine(is_v1, "taking a device away by hand needs cgroup v1's devices")
        || !needs::no_chroot("runc exec")
    {
        return;
    }
    sandbox.bundle(&nic(GOES_ON));
    let id = unique("c");
    let script = format!(
        "opens() {{ $r exec {id} /bin/sh -c 'exec 3>/dev/onload' 2> /dev/null && echo opens || echo closed; }}
         opens
         echo 'c 1:11 rw' > /sys/fs/cgroup/devices/{id}/devices.deny
         opens
         {HOOK_THERE} reapply {id}; echo $?
         opens
         s=/run/onload-ctk/{id}/record.json; cp $s /tmp/state; sed 's/\"live\":.\"pid\":[0-9]*,\"startTime\":/&1/' /tmp/state > $s
         {HOOK_THERE} reapply {id}; echo $?
         sed 's/\\(\"live\":.\"pid\":\\)[0-9]*/\\14194303/' /tmp/state > $s
         {HOOK_THERE} reapply {id}; echo $?
         cp /tmp/state $s; echo 'live-devices = false' > /tmp/line; cp /etc/onload-ctk/config.toml /tmp/config; sed -i '1r /tmp/line' /etc/onload-ctk/config.toml
         {HOOK_THERE} reapply {id}; echo $?
         {HOOK_THERE} reapply {id}x; echo $?
         cp /tmp/config /etc/onload-ctk/config.toml
         mv /dev/onload /tmp/node; mknod -m 666 /dev/onload c 1 9
         {HOOK_THERE} reapply {id}; echo $?
         rm /dev/onload; {HOOK_THERE} reapply {id}; echo $?
         mv /tmp/node /dev/onload"
    );
    let script = while_it_runs(RUNC, &id, &script);
    let expected = "opens\nclosed\n0\nopens\n1\n1\n1\n1\n1\n1\n";
    let message = prints(&sandbox, &script, expected);
    let lines: Vec<&str> = message.lines().collect();
    for (line, wanted) in lines.iter().zip([
        "that is another process",
        "/proc/4194303",
        "live-devices = false in /etc/onload-ctk/config.toml",
        "has no record of a hook that finished",
        "device node \"/dev/onload\" is no longer character device 1:11",
        "device node \"/dev/onload\" is no longer character device 1:11",
    ]) {
        assert!(line.contains(wanted), "{wanted}: {message}");
    }
    assert_eq!(lines.len(), 6, "{message}");
}

/// The system calls whose failure is tried, each with an error that it may have.
const CALLS: [(&str, &str); 16] = [
    ("openat", "EMFILE"),
    ("openat2", "EMFILE"),
    ("fstat", "EIO"),
    ("newfstatat", "EIO"),
    ("statx", "EIO"),
    ("read", "EIO"),
    ("write", "ENOSPC"),
    ("fsync", "EIO"),
    ("fchmod", "EROFS"),
    ("renameat", "EIO"),
    ("mkdirat", "ENOSPC"),
    ("open_tree", "ENOMEM"),
    ("mount_setattr", "ENOSYS"),
    ("setns", "EPERM"),
    ("move_mount", "EINVAL"),
    ("prlimit64", "EINVAL"),
];

/// A container whose hook runs under strace, and is called at the end or not.
#[track_caller]
fn traced_host(has_poststop: bool) -> Option<Sandbox> {
    let sandbox = host()?;
    if !needs::programs(&["strace"]) {
        return None;
    }
    sandbox.file(
        "/opt/onload/traced",
        format!("#!/bin/sh\nexec strace -qq -o /tmp/trace $(cat /tmp/options) {HOOK_THERE} createRuntime\n"),
    );
    sandbox.chmod("/opt/onload/traced", 0o755);
    let mut config =
        live(&json!({"onload.dev/nic": "all", "onload.dev/rdma": "rxe0"}), "echo started");
    config["hooks"]["createRuntime"] =
        json!([{"path": "/opt/onload/traced", "env": ["PATH=/usr/bin:/bin"]}]);
    config["hooks"]
        .as_object_mut()
        .unwrap()
        .retain(|stage, _| stage == "createRuntime" || has_poststop);
    sandbox.bundle(&config);
    Some(sandbox)
}

/// Runs it with these options of strace. A hook that hangs is a failure with a line; it takes
/// milliseconds, and runc is given up later.
fn traced(sandbox: &Sandbox, options: &str) -> Output {
    sandbox.file("/tmp/options", options);
    sandbox.script_within(Duration::from_secs(50), &script_of(&unique("c")))
}

/// The calls that a run made while it changed something, each with its number among its like.
fn changing_calls(sandbox: &Sandbox) -> Vec<(&'static str, &'static str, usize)> {
    let trace = sandbox.read("/tmp/trace");
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    let mut has_begun = false;
    for line in trace.lines() {
        let name = line.split('(').next().unwrap();
        let Some((call, error)) = CALLS.into_iter().find(|(call, _)| *call == name) else {
            continue;
        };
        let nth = seen.entry(call).or_default();
        *nth += 1;
        // The first thing that is made is the container's directory.
        has_begun |= call == "mkdirat";
        // A warning that cannot be said, or of which it cannot be told whether anybody hears it, and
        // a size that would have spared an allocation.
        let of_a_warning = line.starts_with("write(2,") || line.starts_with("fstat(2,");
        let is_idle = of_a_warning || line.contains("STATX_ALL");
        if has_begun && !is_idle {
            found.push((call, error, *nth));
        }
    }
    found
}

/// One call of that name, counted from 1, fails or kills the hook: `what` is `error=EIO` or `signal=KILL`.
fn fault(call: &str, what: &str, nth: usize) -> String {
    format!("-e inject={call}:{what}:when={nth}")
}

#[test]
fn whichever_system_call_fails_the_container_does_not_start_and_nothing_is_left() {
    let Some(sandbox) = traced_host(false) else {
        return;
    };
    let before = traces(&sandbox);
    // The first makes the directory of all containers.
    for _ in 0..2 {
        let output = traced(&sandbox, "");
        assert_eq!(stdout(&output), "started\n", "{}", stderr(&output));
        // Nobody cleans up here but the hook itself, where it fails.
        let id = unique("c");
        let state = format!("{{\"id\":\"{id}\",\"status\":\"stopped\"}}");
        let script = format!("exec {HOOK_THERE} poststop");
        assert!(sandbox.script(&script, state.as_bytes()).status.success());
        assert_eq!(differences(&sandbox, &before), NOTHING);
    }
    let calls = changing_calls(&sandbox);
    for (call, error, nth) in &calls {
        let inject = fault(call, &format!("error={error}"), *nth);
        let output = traced(&sandbox, &inject);
        let injected = sandbox.read("/tmp/trace");
        let injected = injected.lines().find(|line| line.ends_with("(INJECTED)"));
        println!("{} {}", injected.unwrap(), stderr(&output));
        one_line(&output, &unique("c"));
        assert_eq!(differences(&sandbox, &before), NOTHING, "{inject}");
    }
    println!("{} failures were tried", calls.len());
}

/// One makes a target and fails a moment later, when the other has mounted onto it.
#[test]
fn a_hook_that_fails_leaves_another_container_in_the_same_root_its_mounts() {
    let Some(sandbox) = traced_host(true) else {
        return;
    };
    let mut other = live(
        &json!({"onload.dev/nic": "all", "onload.dev/preload": "off"}),
        &format!(
            "while ! test -e /tmp/failed; do read -r x < /proc/loadavg; done; {}",
            count_mounts("/usr/lib64/libonload.so")
        ),
    );
    other["root"]["path"] = json!("/bundle/rootfs");
    sandbox.file("/other/config.json", serde_json::to_vec(&other).unwrap());
    let before = traces(&sandbox);
    let id = unique("c");
    // The fourth mount is the first whose target lasts: those before go into the container's own /dev.
    let fault = fault("move_mount", "error=EINVAL:delay_enter=5s", 4);
    sandbox.file("/tmp/options", format!("-e trace=move_mount {fault}"));
    let script = format!(
        "{RUNC} run -b /bundle {id} 2> /tmp/said & failing=$!
         while ! test -e /bundle/rootfs/usr/lib64/libonload.so; do :; done
         {RUNC} run -b /other {id}-other > /tmp/out & other=$!
         while ! grep -qs '\"live\":.\"pid\"' /run/onload-ctk/{id}-other/record.json && kill -0 $failing; do :; done
         wait $failing; : > /bundle/rootfs/tmp/failed; wait $other
         rm /bundle/rootfs/tmp/failed; cat /tmp/out /tmp/said"
    );
    let output = sandbox.script_within(Duration::from_secs(50), &script);
    let text = stdout(&output);
    assert!(text.starts_with("1\n"), "{text} {}", stderr(&output));
    assert!(text.contains("mounting onto"), "{text}");
    assert_eq!(differences(&sandbox, &before), NOTHING);
}

#[test]
fn whenever_the_hook_is_killed_the_container_does_not_start_and_nothing_is_left() {
    let Some(sandbox) = traced_host(true) else {
        return;
    };
    let before = traces(&sandbox);
    // The first makes the directory of all containers.
    for _ in 0..2 {
        assert_eq!(stdout(&traced(&sandbox, "")), "started\n");
    }
    let calls = changing_calls(&sandbox);
    for (call, _, nth) in &calls {
        let inject = fault(call, "signal=KILL", *nth);
        let output = traced(&sandbox, &inject);
        assert!(!output.status.success(), "{inject}");
        assert_eq!(stdout(&output), "", "{inject}");
        assert_eq!(differences(&sandbox, &before), NOTHING, "{inject}");
    }
    println!("it was killed {} times", calls.len());
}

/// This door cannot take a capability away.
#[test]
fn a_user_whose_image_could_make_itself_the_host_s_root_is_refused() {
    let Some(sandbox) = host() else { return };
    sandbox.allow(&["nic"], "root-with-onload = \"refuse\"");
    let mut config = nic("echo started");
    config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    assert_eq!(succeeds(&sandbox, &config), "started\n");
    config["process"]["capabilities"]["permitted"] = json!(["CAP_KILL", "CAP_SETUID"]);
    let message = refused(&sandbox, &config);
    assert!(message.contains("drop CAP_SETUID"), "{message}");
}

/// This program's own test, run once more without a runtime in reach.
#[test]
fn without_runc_a_test_fails_where_it_is_required_and_says_elsewhere_that_it_checked_nothing() {
    let name = "live::a_read_only_root_and_a_restart_work";
    let run = |require: &str| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", name, "--test-threads=2"]);
        test.env("PATH", "/nonexistent").env(needs::REQUIRE, require);
        let output = test.output().unwrap();
        let message = stdout(&output) + &stderr(&output);
        assert!(message.contains("running 1 test"), "{message}");
        (output.status.success(), message)
    };
    let (passed, message) = run("1");
    assert!(!passed, "{message}");
    let asked = "ONLOAD_CTK_REQUIRE_ROOT=1 asks for every test";
    assert!(message.contains(asked), "{message}");
    let (passed, message) = run("");
    assert!(passed, "{message}");
    assert!(message.contains(&format!("skipped: {name}: ")), "{message}");
}
