//! Containers of this machine's runc, created through the wrapper.

use crate::common::{
    HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, is_root, memlock, oci, print_file,
    status, stderr, stdout, unique,
};
use onload_test_needs as needs;
use serde_json::json;

/// Runs `/bundle` as a container named `id`. A different reader parses the resulting bundle too.
fn run(sandbox: &Sandbox, id: &str) -> std::process::Output {
    let output =
        sandbox.script(&format!("exec {WRAPPER_THERE} --root /run/runc run -b /bundle {id}"), b"");
    oci(sandbox.read("/bundle/config.json").as_bytes());
    output
}

#[test]
fn a_container_that_asks_can_open_the_nodes_and_has_the_preload() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = "exec 3<>/dev/onload && echo opened; echo $LD_PRELOAD $EF_FDTABLE_SIZE $ONLOAD_CTK_NIC_ENS1; \
                   while read -r line; do case $line in *libonload.so*) echo mapped; break;; esac; done < /proc/self/maps";
    let mut config = config(&json!({"onload.dev/nic": "all"}), command);
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    let spec = sandbox.read("/etc/cdi/onload.dev-nic.json");
    for (size, bound) in [("4096", " 4096"), ("4097", "")] {
        let sized = spec.replace("SIZE=524288", &format!("SIZE={size}"));
        sandbox.file("/etc/cdi/onload.dev-nic.json", sized);
        sandbox.bundle(&config);
        let output = run(&sandbox, &unique("nic"));
        assert!(output.status.success(), "{}", stderr(&output));
        let wanted = format!("opened\nlibonload.so{bound} ens1\nmapped\n");
        assert_eq!(stdout(&output), wanted);
    }
}

#[test]
fn one_interface_by_name_is_chosen_and_two_are_not_by_wrapper_and_precreate() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    for (class, variable) in
        [("nic-plain", "EF_INTERFACE_WHITELIST="), ("zf", "ZF_ATTR=interface=")]
    {
        let device = |name: &str| json!({"name": name, "containerEdits": {"env": [format!("{variable}{name}")]}});
        let spec = json!({"cdiVersion": "0.3.0", "kind": format!("onload.dev/{class}"),
            "devices": [device("ens1"), device("ens2")]});
        sandbox.file(&format!("/etc/cdi/onload.dev-{class}.json"), spec.to_string());
    }
    sandbox.allow(&["nic-plain", "zf"], "");
    let print = "echo ${EF_INTERFACE_WHITELIST-none} ${ZF_ATTR-none}";
    for (plain, zf, own, printed) in [
        ("ens1", "ens2", None, "ens1 interface=ens2\n"),
        ("ens1,ens2", "ens2", None, "none interface=ens2\n"),
        ("ens2", "ens1,ens2", None, "ens2 none\n"),
        ("ens1", "ens2", Some("ZF_ATTR=interface=eth0"), "ens1 interface=eth0\n"),
    ] {
        let asked = json!({"onload.dev/nic-plain": plain, "onload.dev/zf": zf});
        let mut config = config(&asked, print);
        let env = config["process"]["env"].as_array_mut().unwrap();
        env.extend(own.map(|entry| json!(entry)));
        sandbox.bundle(&config);
        let output = run(&sandbox, &unique("choice"));
        assert_eq!(stdout(&output), printed, "{}", stderr(&output));

        let filtered = sandbox.precreate(config.to_string().as_bytes());
        assert!(filtered.status.success(), "{}", stderr(&filtered));
        let env: serde_json::Value = serde_json::from_slice(&filtered.stdout).unwrap();
        let env = env["process"]["env"].to_string();
        let has = |entry: &str| env.contains(entry);
        assert_eq!(has("EF_INTERFACE_WHITELIST="), !printed.starts_with("none"));
        assert_eq!(has("ZF_ATTR="), !printed.ends_with("none\n"));
    }
}

#[test]
fn a_container_that_asks_for_nothing_gets_nothing() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = "test -e /dev/onload && echo node; echo ${LD_PRELOAD:-none}; exit 7";
    sandbox.bundle(&config(&json!({"example.com/nic": "all"}), command));
    let before = sandbox.read("/bundle/config.json");
    let output = run(&sandbox, &unique("none"));
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert_eq!(stdout(&output), "none\n");
    assert_eq!(sandbox.read("/bundle/config.json"), before);
}

#[test]
fn a_start_with_a_request_asks_the_kernel_for_nothing_twice() {
    if !is_root() || !needs::programs(&["strace"]) {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&["nic"], "[runtime]\npath = \"/usr/bin/true\"");
    let node = json!({"deviceNodes": [{"path": "/dev/onload", "permissions": "rw"}]});
    let spec = json!({"cdiVersion": "0.3.0", "kind": "onload.dev/nic",
        "devices": [{"name": "all", "containerEdits": node}]});
    sandbox.file("/etc/cdi/onload.dev-nic.json", spec.to_string());
    sandbox.bundle(&config(&json!({"onload.dev/nic": "all"}), ":"));
    // The first makes the directory for what runtimes are remembered.
    let create = format!("{WRAPPER_THERE} create -b /bundle");
    let script = format!(
        "cp /bundle/config.json /asks && {create} before && cp /asks /bundle/config.json &&
         strace -qq -o /trace {create} new && cat /trace"
    );
    let output = sandbox.script(&script, b"");
    let trace = stdout(&output);
    assert!(output.status.success(), "{trace} {}", stderr(&output));
    let (calls, _) = trace.rsplit_once("execve(").unwrap();
    let count =
        |name: &str| calls.lines().filter(|line| line.starts_with(&format!("{name}("))).count();
    for (name, wanted) in [("renameat", 1), ("capget", 1), ("flock", 0), ("mmap", 0), ("munmap", 0)]
    {
        assert_eq!(count(name), wanted, "{name}: {calls}");
    }
    for limit in ["NOFILE", "MEMLOCK"] {
        let asked = calls.matches(&format!("RLIMIT_{limit}")).count();
        assert_eq!(asked, 1, "{limit}: {calls}");
    }
}

#[test]
fn standard_streams_and_the_exit_status_come_through() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = "read -r word; echo out $word; echo err >&2; exit 42";
    sandbox.bundle(&config(&json!({"onload.dev/nic": "ens1"}), command));
    let script =
        format!("exec {WRAPPER_THERE} --root /run/runc run -b /bundle {}", unique("streams"));
    let output = sandbox.script(&script, b"hello\n");
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(stdout(&output), "out hello\n");
    assert!(stderr(&output).contains("err\n"));
}

#[test]
fn create_start_exec_kill_and_delete_pass_through() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = "trap 'echo got term; exit 9' TERM; echo up > /tmp/up; while :; do read -r x < /proc/loadavg; done";
    sandbox.bundle(&config(&json!({"onload.dev/nic": "all"}), command));
    let id = unique("verbs");
    let script = format!(
        "r='{WRAPPER_THERE} --root /run/runc --log /tmp/log --log-format json'
         $r create --bundle /bundle --pid-file /tmp/pid {id} > /tmp/out 2>&1 < /dev/null || exit 10
         $r state {id} > /tmp/state || exit 11
         $r start {id} || exit 12
         while ! test -e /bundle/rootfs/tmp/up; do sleep 0.1; done
         $r exec {id} /bin/sh -c 'exec 3<>/dev/onload && echo exec opened' || exit 13
         $r kill {id} TERM || exit 14
         i=0; while $r state {id} | grep -q running && test $i -lt 100; do sleep 0.1; i=$((i+1)); done
         $r delete {id} || exit 15
         $r state {id} && exit 16
         cat /tmp/out"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(output.status.code(), Some(0), "{} {}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("exec opened\n"), "{}", stdout(&output));
    assert!(stdout(&output).contains("got term\n"), "{}", stdout(&output));
}

#[test]
fn a_process_of_user_0_and_of_another_user_has_ipc_lock() {
    if !has_runc() {
        return;
    }
    const IPC_LOCK: u64 = 1 << 14;
    for uid in [0, 1000] {
        let sandbox = Sandbox::new();
        let command = print_file("/proc/self/status");
        let mut config =
            config(&json!({"onload.dev/rdma": "rxe1", "onload.dev/ipc-lock": "true"}), &command);
        config["process"]["user"] = json!({"uid": uid, "gid": uid});
        sandbox.bundle(&config);
        let output = run(&sandbox, &unique(&format!("ipc{uid}")));
        assert!(output.status.success(), "{}", stderr(&output));
        let effective = status(&stdout(&output)).capeff;
        assert_eq!(effective & IPC_LOCK, IPC_LOCK, "user {uid}");
    }
}

#[test]
fn without_ipc_lock_no_capability_is_added() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = print_file("/proc/self/status");
    sandbox.bundle(&config(&json!({"onload.dev/rdma": "rxe1"}), &command));
    let output = run(&sandbox, &unique("caps"));
    assert!(output.status.success(), "{}", stderr(&output));
    const KILL: u64 = 1 << 5;
    assert_eq!(status(&stdout(&output)).capbnd, Some(KILL));
}

#[test]
fn the_memory_lock_limit_rises_as_far_as_this_machine_lets_it() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = print_file("/proc/self/limits");
    sandbox.bundle(&config(&json!({"onload.dev/rdma": "rxe0"}), &command));
    let output = run(&sandbox, &unique("memlock"));
    assert!(output.status.success(), "{}", stderr(&output));
    let own = stdout(&sandbox.script(&command, b""));
    let may = rustix::thread::capabilities(None)
        .unwrap()
        .effective
        .contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
    let want = if may {
        "unlimited".to_owned()
    } else {
        let [_, hard] = memlock(&own);
        hard
    };
    assert_eq!(memlock(&stdout(&output)), [want.clone(), want]);
    if !may {
        assert!(stderr(&output).contains("CAP_SYS_RESOURCE is missing"), "{}", stderr(&output));
    }
}

#[test]
fn the_hook_of_a_cdi_specification_stops_a_container_whose_node_was_renumbered() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut config = config(&json!({}), "echo started");
    // As left by an engine that applied the specification before a reset.
    config["linux"]["devices"] =
        json!([{"path": "/dev/infiniband/uverbs0", "type": "c", "major": 1, "minor": 3}]);
    config["hooks"] = json!({"createRuntime": [{"path": HOOK_THERE, "args": ["onload-hook", "createRuntime", "--memlock", "unlimited",
        "--expect", "/dev/infiniband/uverbs0=rdma:rxe0"], "env": ["PATH=/usr/bin"]}]});
    sandbox.bundle(&config);
    let id = unique("renumbered");
    let output = run(&sandbox, &id);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let message = stderr(&output);
    assert!(message.contains(&format!("container {id}")), "{message}");
    assert!(message.contains("the node is 1:3 but the kernel's uverbs0 is 1:7"), "{message}");
}

/// A container as an engine creates it for the CDI device `nic-nodes=all`: the nodes with these
/// numbers, and the specification's hook.
fn by_cdi(devices: &serde_json::Value) -> serde_json::Value {
    let mut config = config(&json!({}), "exec 3<>/dev/onload && echo opened");
    config["linux"]["devices"] = devices.clone();
    config["hooks"] = json!({"createRuntime": [{"path": HOOK_THERE, "args": ["onload-hook", "createRuntime",
        "--expect", "/dev/onload=nic:onload#1:5", "--expect", "/dev/onload_epoll=nic:onload_epoll#1:5"],
        "env": ["PATH=/usr/bin"], "timeout": 10}]});
    config
}

fn onload_nodes(major: u32, minor: u32) -> serde_json::Value {
    json!([{"path": "/dev/onload", "type": "c", "major": major, "minor": minor, "fileMode": 438},
           {"path": "/dev/onload_epoll", "type": "c", "major": 1, "minor": 5, "fileMode": 438}])
}

#[test]
fn a_container_whose_onload_nodes_are_its_driver_s_starts() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut config = by_cdi(&onload_nodes(1, 5));
    config["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
    sandbox.bundle(&config);
    let output = run(&sandbox, &unique("fresh"));
    assert_eq!(stdout(&output), "opened\n", "{}", stderr(&output));
}

#[test]
fn a_container_with_onload_s_number_of_before_does_not_start() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.bundle(&by_cdi(&onload_nodes(1, 3)));
    let output = run(&sandbox, &unique("stale"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    // The specification that the engine read says 1:5, as the driver does: the engine did not read
    // it again.
    let message = "the node is 1:3 but the kernel's onload is 1:5; its specification says so too";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
    // One that was written before the driver was reloaded.
    sandbox.driver("onload", "1:7");
    sandbox.bundle(&by_cdi(&onload_nodes(1, 5)));
    let output = run(&sandbox, &unique("stale"));
    let message = "the node is 1:5 but the kernel's onload is 1:7; devices were renumbered, and the engine keeps the old number until the specification changes: run `systemctl start onload-cdi.service`, then start a new container";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

/// As engines that turn devices into mounts leave it, since nobody can create a node in a user
/// namespace.
#[test]
fn a_container_with_the_host_s_own_nodes_mounted_starts_unless_they_are_another_driver_s() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut config = by_cdi(&json!([]));
    for node in ["/dev/onload", "/dev/onload_epoll"] {
        let mount = json!({"destination": node, "type": "bind", "source": node, "options": ["rbind", "nosuid", "noexec"]});
        config["mounts"].as_array_mut().unwrap().push(mount);
    }
    config["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
    sandbox.bundle(&config);
    let output = run(&sandbox, &unique("mounted"));
    assert_eq!(stdout(&output), "opened\n", "{}", stderr(&output));
    sandbox.driver("onload", "1:3");
    let output = run(&sandbox, &unique("mounted"));
    let message = "the node is 1:5 but the kernel's onload is 1:3";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

#[test]
fn preload_by_file_reaches_exec_d_processes_and_bounds_the_table() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = "ulimit -Hn; /bin/sh -c 'while read -r line; do case $line in *libonload.so*) echo mapped; break;; esac; done < /proc/self/maps'; echo ${LD_PRELOAD:-no variable}";
    let mut config =
        config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}), command);
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    sandbox.bundle(&config);
    sandbox.allow(&["nic"], "");
    let text = sandbox.read("/etc/onload-ctk/config.toml");
    sandbox.file("/etc/onload-ctk/config.toml", format!("{text}fdtable-size = 2048\n"));
    let output = run(&sandbox, &unique("file"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "2048\nmapped\nno variable\n");
}

#[test]
fn an_image_s_own_preload_list_is_merged_and_cleaned_up() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let command = "while read -r line; do echo $line; done < /etc/ld.so.preload";
    sandbox
        .bundle(&config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}), command));
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "libother.so # theirs\n");
    let id = unique("merge");
    let output = run(&sandbox, &id);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "libonload.so\nlibother.so\n");
    assert!(sandbox.path("/run/onload-ctk").exists());
    assert!(!sandbox.path(&format!("/run/onload-ctk/{id}")).exists());
    assert_eq!(sandbox.read("/bundle/rootfs/etc/ld.so.preload"), "libother.so # theirs\n");
    // config.json is already edited, and the file that it names is gone.
    let output = run(&sandbox, &id);
    assert_eq!(stdout(&output), "libonload.so\nlibother.so\n", "{}", stderr(&output));
    assert!(!sandbox.path(&format!("/run/onload-ctk/{id}")).exists());
}

/// runc abandons it before any hook, so it calls no poststop; engines then delete the container.
#[test]
fn a_container_that_its_runtime_refuses_leaves_nothing_once_it_is_deleted() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}), ":");
    config["linux"]["namespaces"] = json!([{"type": "mount"}, {"type": "nonsense"}]);
    sandbox.bundle(&config);
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "libother.so\n");
    let id = unique("refused");
    let script = format!(
        "r='{WRAPPER_THERE} --root /run/runc'
         $r create -b /bundle {id} && exit 10; ls /run/onload-ctk
         $r delete --force {id} || exit 11; ls -A /run/onload-ctk /run/onload-ctk/@runtimes"
    );
    let output = sandbox.script(&script, b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        format!(
            "@locks\n@runtimes\n{id}\n/run/onload-ctk:\n@locks\n@runtimes\n\n/run/onload-ctk/@runtimes:\n@configured\n"
        ),
        "{}",
        stderr(&output)
    );
}

#[test]
fn two_hundred_containers_leave_nothing_behind() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut asks = config(
        &json!({"onload.dev/nic": "all", "onload.dev/rdma": "rxe0", "onload.dev/preload": "file"}),
        ":",
    );
    asks["process"]["args"] = json!(["/bin/sh", "-c", ":"]);
    sandbox.bundle(&asks);
    sandbox.file("/bundle/rootfs/etc/ld.so.preload", "libonload.so\nlibm.so.6\n");
    let pristine = sandbox.read("/bundle/config.json");
    let id = unique("many");
    sandbox.file("/tmp/config.json", &pristine);
    // The first one creates /run/onload-ctk itself.
    let once = |count: usize| {
        let script = format!(
            "i=0; while test $i -lt {count}; do i=$((i+1)); cp /tmp/config.json /bundle/config.json
             {WRAPPER_THERE} --root /run/runc --log /tmp/log run -b /bundle {id}-$i || exit 1; done"
        );
        let output = sandbox.script(&script, b"");
        assert!(output.status.success(), "{}", stderr(&output));
    };
    once(1);
    let before = sandbox.snapshot();
    // Others mount and unmount on this machine meanwhile.
    let mounts = || {
        let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = sandbox.path("/").display().to_string();
        all.lines().filter(|line| line.contains(&root)).count()
    };
    let mounted = mounts();
    once(200);
    assert_eq!(sandbox.snapshot(), before);
    assert_eq!(mounts(), mounted);
    let mut left: Vec<_> = std::fs::read_dir(sandbox.path("/run/onload-ctk"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["@locks", "@runtimes"]);
    assert_eq!(std::fs::read_dir(sandbox.path("/bundle")).unwrap().count(), 2);
}

#[test]
fn our_failures_reach_the_engine_the_way_runc_s_do() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.bundle(&config(&json!({"onload.dev/vfio": "0000:81:10.0"}), "echo started"));
    let script = format!(
        "{WRAPPER_THERE} --root /run/runc --log /tmp/log.json --log-format json create -b /bundle {id}; echo status $?; cat /tmp/log.json",
        id = unique("refused")
    );
    let output = sandbox.script(&script, b"");
    let text = stdout(&output);
    let (status, log) = text.split_once('\n').unwrap();
    assert_eq!(status, "status 1");
    let line: serde_json::Value = serde_json::from_str(log.trim()).unwrap();
    assert_eq!(line["level"], "error");
    let message = line["msg"].as_str().unwrap();
    assert!(
        message.contains("annotation \"onload.dev/vfio\"")
            && message.contains("allow = [\"nic\", \"rdma\", \"vfio\"]"),
        "{message}"
    );
    assert!(stderr(&output).contains("onload.dev/vfio"));
}

#[test]
fn a_configuration_of_tomorrow_starts_what_asks_for_what_is_known() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let newer = "[annotations]\nallow = [\"nic\", \"gpu\", \"bundle\"]\nnetworks = [\"192.0.2.0/24\"]\n\
                 [cdi]\nselect-interface = true\nkinds = [\"all\", \"gpu\"]\n\
                 [environment]\nallow = [\"nic\"]\n[leases]\nshare = { rdma = 500 }\n\
                 [log]\nlevel = \"info\"\n[pools.fast]\nclass = \"vfio\"\n[[sriov]]\npf = \"ens1\"\n\
                 [runtime]\npath = \"\"\nflavour = \"new\"\n";
    sandbox.file("/etc/onload-ctk/config.toml", newer);
    sandbox
        .bundle(&config(&json!({"onload.dev/nic": "all"}), "exec 3<>/dev/onload && echo opened"));
    let output = run(&sandbox, &unique("tomorrow"));
    assert_eq!(stdout(&output), "opened\n", "{}", stderr(&output));
    sandbox.bundle(&config(&json!({"onload.dev/gpu": "fast"}), "echo started"));
    let output = run(&sandbox, &unique("gpu"));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("onload.dev/gpu"), "{}", stderr(&output));
}
