//! Requests by a variable of the container's environment, and by a ticket that it names: containers of this
//! machine's runc, created through the wrapper.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Output;
use std::time::Duration;

use crate::common::{HOOK_THERE, Sandbox, WRAPPER_THERE, config, has_runc, stderr, stdout, unique};
use crate::pools::{bundles, oci_hook};
use onload_core::token::Token;
use onload_lease::run_dir::RunDir;
use onload_lease::tickets::{Ticket, Tickets, to_variable};
use onload_sys::processes::Processes;
use onload_test_needs as needs;
use serde_json::{Value, json};

const VARIABLE: &str = "ONLOAD_CTK_REQUEST";
const LEASES: &str = "/run/onload-ctk/@leases";
const WAITS: &str = "while :; do read -r x < /proc/loadavg; done";
/// Says whether the node of class nic can be opened, then whether that of rdma can, and the preload.
const LOOK: &str = "for n in onload infiniband/uverbs0; do \
    if [ -c /dev/$n ] && (exec 3<>/dev/$n) 2>/dev/null; then echo yes; else echo no; fi; done; echo ${LD_PRELOAD:-none}";
const NOTHING: &str = "no\nno\nnone\n";

/// Lists the classes that a variable may ask for; annotations may ask for nic and rdma.
fn allow(sandbox: &Sandbox, classes: &[&str]) {
    sandbox.allow(&["nic", "rdma"], &format!("[environment]\nallow = {classes:?}"));
}

fn asking(value: &str, annotations: &Value, command: &str) -> Value {
    with(&[(VARIABLE.to_owned(), value.to_owned())], annotations, command)
}

/// A container with these variables.
fn with(variables: &[(String, String)], annotations: &Value, command: &str) -> Value {
    let mut config = config(annotations, command);
    let env = config["process"]["env"].as_array_mut().unwrap();
    env.extend(variables.iter().map(|(name, value)| json!(format!("{name}={value}"))));
    config
}

/// Runs a container with this configuration, from its bytes as they are.
fn run_bytes(sandbox: &Sandbox, config: &[u8]) -> Output {
    sandbox.root_file_system("/bundle/rootfs");
    sandbox.file("/bundle/config.json", config);
    let id = unique("request");
    let script = format!("exec {WRAPPER_THERE} --root /run/runc run -b /bundle {id}");
    sandbox.script(&script, b"")
}

fn run(sandbox: &Sandbox, config: &Value) -> Output {
    run_bytes(sandbox, &serde_json::to_vec(config).unwrap())
}

/// The container's program has printed this and no more.
#[track_caller]
fn prints(output: &Output, wanted: &str) {
    assert_eq!(stdout(output), wanted, "{}", stderr(output));
}

/// What a container that asks in this way says of its devices.
fn given(sandbox: &Sandbox, value: &str, annotations: &Value) -> String {
    let output = run(sandbox, &asking(value, annotations, LOOK));
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Why a container that asks in this way does not start: one line.
fn refusal(sandbox: &Sandbox, value: &str, annotations: &Value) -> String {
    let output = run(sandbox, &asking(value, annotations, LOOK));
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let message = stderr(&output);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.len() < 1024, "{} bytes", message.len());
    message
}

/// A ticket for what is asked.
fn ticket(sandbox: &Sandbox, request: &str, exclusive: &[&str]) -> Token {
    sandbox.mkdir("/run/onload-ctk");
    sandbox.chmod("/run/onload-ctk", 0o711);
    let run = RunDir::find(&sandbox.path("/run/onload-ctk")).unwrap();
    let tickets = Tickets::open(&run.unwrap(), Processes::default()).unwrap();
    let new = Ticket {
        request: request.to_owned(),
        exclusive: exclusive.iter().map(|one| one.parse().unwrap()).collect(),
        engine: "nomad".to_owned(),
        description: Some("a test".to_owned()),
        ..Ticket::default()
    };
    tickets.write(new, Duration::from_secs(10)).unwrap()
}

fn by_ticket(id: &Token) -> String {
    format!("ticket:{}", id.as_str())
}

/// A script in which `create N ID` makes container ID of bundle N and says why not, and `delete ID` ends it.
fn script(sandbox: &Sandbox, steps: &str) -> String {
    let script = format!(
        "r='{WRAPPER_THERE} --root /run/runc'
         create() {{ $r create -b /b$1 $2 </dev/null >/dev/null 2>/tmp/err || {{ cat /tmp/err; return 1; }}; }}
         delete() {{ $r delete --force $1; }}
         {steps}"
    );
    let output = sandbox.script(&script, b"");
    let output_text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output_text} {}", stderr(&output));
    output_text
}

#[test]
fn a_class_that_the_operator_allows_is_given_by_variable() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    allow(&sandbox, &["nic", "rdma"]);
    let none = json!({});
    let nic = "yes\nno\nlibonload.so\n";
    assert_eq!(given(&sandbox, "nic=all", &none), nic);
    assert_eq!(given(&sandbox, " nic = ens1 ", &none), nic);
    assert_eq!(given(&sandbox, "nic=all;preload=off", &none), "yes\nno\nnone\n");
    let both = "yes\nyes\nlibonload.so\n";
    assert_eq!(given(&sandbox, "nic=all;rdma=rxe0", &none), both);
    assert_eq!(given(&sandbox, "", &none), NOTHING);
}

#[test]
fn an_image_that_carries_the_variable_gets_nothing_and_a_warning() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let long = format!("nic={}", "x".repeat(64 * 1024));
    for value in ["nic=all;rdma=rxe0", "gpu=\u{1b}[31m\n", ";;;", &long] {
        let config = asking(value, &json!({}), LOOK);
        let output = run(&sandbox, &config);
        prints(&output, NOTHING);
        let message = stderr(&output);
        assert_eq!(message.lines().count(), 1, "{message}");
        let line = "under [environment] in /etc/onload-ctk/config.toml would allow it";
        assert!(message.starts_with("warning: ") && message.contains(line), "{message}");
        // The configuration is as the engine wrote it.
        assert_eq!(sandbox.read("/bundle/config.json"), serde_json::to_string(&config).unwrap());
    }
    let output = run(&sandbox, &asking("nic=all", &json!({}), LOOK));
    assert!(
        stderr(&output).contains("allow = [\"nic\"] under [environment]"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn where_one_class_is_allowed_another_is_refused_like_an_annotation() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    allow(&sandbox, &["rdma"]);
    let none = json!({});
    assert_eq!(given(&sandbox, "rdma=rxe0", &none), "no\nyes\nnone\n");
    let message = refusal(&sandbox, "nic=all;rdma=rxe0", &none);
    for part in [
        "of ONLOAD_CTK_REQUEST requests class nic, which the operator does not allow",
        "under [environment] in /etc/onload-ctk/config.toml",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let message = refusal(&sandbox, "rdma=rxe7", &none);
    assert!(
        message.contains("there is no rdma") && message.contains("offered: rxe0, rxe1"),
        "{message}"
    );
}

#[test]
fn an_annotation_goes_before_the_variable_for_its_class() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    allow(&sandbox, &["nic", "rdma"]);
    let annotation = json!({"onload.dev/rdma": "rxe0"});
    // rxe7 is not there; it is not asked for either.
    let both = given(&sandbox, "nic=all;rdma=rxe7", &annotation);
    assert_eq!(both, "yes\nyes\nlibonload.so\n");
    let off = json!({"onload.dev/preload": "off"});
    assert_eq!(given(&sandbox, "nic=all;preload=file", &off), "yes\nno\nnone\n");
    // The lists are two: what annotations may ask for is nothing for the variable.
    allow(&sandbox, &["rdma"]);
    assert!(refusal(&sandbox, "nic=all", &annotation).contains("under [environment]"));
    allow(&sandbox, &[]);
    assert_eq!(given(&sandbox, "nic=all", &annotation), "no\nyes\nnone\n");
}

#[test]
fn a_hostile_value_is_one_line_where_a_class_is_allowed() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    allow(&sandbox, &["nic"]);
    let long = format!("nic={}", "x".repeat(64 * 1024));
    for (value, why) in [
        (long.as_str(), "ONLOAD_CTK_REQUEST has more than 4096 bytes"),
        ("nic=\u{1b}[31m\nall", "cannot be the name of a device"),
        ("nic=../../etc/shadow", "cannot be the name of a device"),
        ("nic=all;nic=ens1", "appears twice"),
        ("nic=all;ipc-lock=true", "cannot be requested there"),
        ("\n=all", "unknown class"),
    ] {
        let message = refusal(&sandbox, value, &json!({}));
        assert!(message.contains(why), "{message}");
        assert!(!message.contains('\u{1b}'));
    }
    let mut twice = asking("nic=all", &json!({}), LOOK);
    let env = twice["process"]["env"].as_array_mut().unwrap();
    env.push(json!(format!("{VARIABLE}=nic=ens1")));
    let output = run(&sandbox, &twice);
    assert!(stderr(&output).contains("more than once, with different values"));
}

#[test]
fn the_variable_is_found_however_json_spells_it() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    allow(&sandbox, &["nic"]);
    let config = serde_json::to_string(&asking("nic=all", &json!({}), LOOK)).unwrap();
    for spelling in [
        r"\u004fNLOAD_CTK_REQUEST",
        r"ONLOAD\u005fCTK\u005FREQUEST",
        r"\u004f\u004e\u004c\u004f\u0041\u0044\u005f\u0043\u0054\u004b\u005f\u0052\u0045\u0051\u0055\u0045\u0053\u0054",
    ] {
        let spelled = config.replacen(VARIABLE, spelling, 1);
        let output = run_bytes(&sandbox, spelled.as_bytes());
        prints(&output, "yes\nno\nlibonload.so\n");
    }
}

#[test]
fn no_other_entry_point_reads_the_variable() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    allow(&sandbox, &["nic", "rdma"]);
    let config = asking("nic=all", &json!({}), LOOK);
    let bytes = serde_json::to_vec(&config).unwrap();
    sandbox.bundle(&config);
    let output = sandbox.precreate(&bytes);
    assert_eq!(output.stdout, bytes, "{}", stderr(&output));
    let mut config = config;
    let hook =
        json!([{"path": HOOK_THERE, "args": ["onload-hook", "createRuntime"], "env": ["A=b"]}]);
    config["hooks"] = json!({"createRuntime": hook});
    sandbox.bundle(&config);
    let id = unique("hook");
    let output = sandbox.script(&format!("exec runc --root /run/runc run -b /bundle {id}"), b"");
    prints(&output, NOTHING);
}

#[test]
fn a_pod_s_sandbox_is_not_touched_whatever_its_environment_says() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    allow(&sandbox, &["nic"]);
    let pod = json!({"io.kubernetes.cri.container-type": "sandbox"});
    assert_eq!(given(&sandbox, "nic=all", &pod), NOTHING);
}

#[test]
fn a_ticket_gives_what_was_reserved_and_the_lease_names_it() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&[], "[leases]\nshare = { rdma = 1 }");
    let id = ticket(&sandbox, "rdma=rxe0;nic=all", &["rdma:rxe0"]);
    let value = by_ticket(&id);
    assert_eq!(given(&sandbox, &value, &json!({})), "yes\nyes\nlibonload.so\n");
    bundles(&sandbox, 1, &asking(&value, &json!({}), WAITS));
    let name = unique("ticket");
    let (hex, steps) = (id.as_str(), |ends: &str| {
        format!(
            "create 1 {name} || exit 11
             grep -l '\"ticket\":\"{}\"' {LEASES}/* | xargs grep -l '\"init\"' || exit 12
             {ends}
             ls {LEASES}; echo end",
            id.as_str()
        )
    });
    let lease = format!("{LEASES}/rdma=rxe0#0\n");
    let output_text = script(&sandbox, &steps(&format!("delete {name}")));
    assert_eq!(output_text, format!("{lease}end\n"), "{hex}");
}

/// The class is one that nobody counts holders of.
#[test]
fn what_a_ticket_gives_for_itself_is_refused_while_somebody_else_has_it() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&[], "");
    let lease = |stage: &str| oci_hook(stage, &["--lease", "rdma:rxe0"]);
    let mut holder = config(&json!({}), WAITS);
    holder["hooks"] =
        json!({"createRuntime": lease("createRuntime"), "poststop": lease("poststop")});
    bundles(&sandbox, 1, &holder);
    let id = ticket(&sandbox, "rdma=rxe0", &["rdma:rxe0"]);
    sandbox.root_file_system("/b2/rootfs");
    let task = asking(&by_ticket(&id), &json!({}), WAITS);
    sandbox.file("/b2/config.json", task.to_string());
    let name = unique("alone");
    let output_text = script(
        &sandbox,
        &format!(
            "create 1 {name}-1 || exit 11
             create 2 {name}-2 && exit 12
             delete {name}-1; create 2 {name}-2 || exit 13
             delete {name}-2; ls {LEASES}; echo end"
        ),
    );
    let refused = format!("rdma:rxe0: in use by container {name}-1 (");
    assert!(output_text.contains(&refused) && output_text.ends_with("\nend\n"), "{output_text}");
    assert!(!output_text.contains("rdma=rxe0#"), "{output_text}");
}

#[test]
fn a_task_with_several_tickets_has_what_all_of_them_are_good_for() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&[], "[leases]\nshare = { rdma = 1 }");
    let none = json!({});
    let rdma = ticket(&sandbox, "rdma=rxe0", &["rdma:rxe0"]);
    let nic = ticket(&sandbox, "nic=all", &[]);
    let both = [to_variable(&nic), to_variable(&rdma)];
    let output = run(&sandbox, &with(&both, &none, LOOK));
    prints(&output, "yes\nyes\nlibonload.so\n");
    bundles(&sandbox, 2, &with(&both, &none, WAITS));
    let name = unique("tickets");
    let output_text = script(
        &sandbox,
        &format!(
            "create 1 {name}-1 || exit 11
             grep -l '\"ticket\":\"{}\"' {LEASES}/* || exit 12
             grep -l '\"ticket\":\"{}\"' {LEASES}/* && exit 13
             create 2 {name}-2 && exit 14
             delete {name}-1
             ls {LEASES}; echo end",
            rdma.as_str(),
            nic.as_str(),
        ),
    );
    let lease = format!("{LEASES}/rdma=rxe0#0\n");
    assert!(output_text.starts_with(&lease) && output_text.ends_with("\nend\n"), "{output_text}");
    assert!(output_text.contains(&format!("is in use by container {name}-1")), "{output_text}");
}

#[test]
fn one_ticket_that_is_not_good_stops_a_task_that_has_good_ones_too() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    let good = to_variable(&ticket(&sandbox, "nic=all", &[]));
    let guessed = to_variable(&Token::from([0xab; 16]));
    let none = json!({});
    let output = run(&sandbox, &with(&[good.clone(), guessed], &none, LOOK));
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    let message = stderr(&output);
    assert!(
        message.contains("ONLOAD_CTK_REQUEST_ABABABAB: ticket abababab… is unknown"),
        "{message}"
    );
    let output = run(&sandbox, &with(&[good], &none, LOOK));
    prints(&output, "yes\nno\nlibonload.so\n");
}

#[test]
fn an_image_that_carries_the_variable_of_a_ticket_gets_nothing_even_of_allowed_classes() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    allow(&sandbox, &["nic", "rdma"]);
    for name in ["ONLOAD_CTK_REQUEST_A", "ONLOAD_CTK_REQUEST_ABABABAB"] {
        let variables = [(name.to_owned(), "nic=all;rdma=rxe0".to_owned())];
        let config = with(&variables, &json!({}), LOOK);
        let output = run(&sandbox, &config);
        prints(&output, NOTHING);
        let message = stderr(&output);
        let words = format!("{name} in the container's environment is ignored");
        // The runtime warns too, where a cgroup goes slowly.
        let ours: Vec<&str> =
            message.lines().filter(|line| line.starts_with("warning: ")).collect();
        assert!(ours.len() == 1 && ours[0].contains(&words), "{message}");
        let written = serde_json::to_string(&config).unwrap();
        assert_eq!(sandbox.read("/bundle/config.json"), written);
    }
}

#[test]
fn a_task_that_starts_again_uses_the_same_ticket_however_it_ended() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&[], "[leases]\nshare = { rdma = 1 }");
    let id = ticket(&sandbox, "rdma=rxe0", &["rdma:rxe0"]);
    bundles(&sandbox, 4, &asking(&by_ticket(&id), &json!({}), WAITS));
    let name = unique("again");
    let output_text = script(
        &sandbox,
        &format!(
            "holder() {{ grep -o '\"container\":\"[^\"]*\"' {LEASES}/*; }}
             create 1 {name}-1 || exit 11
             $r kill {name}-1 KILL; delete {name}-1; create 2 {name}-2 || exit 12
             holder
             # Its engine is gone too: nobody deletes the container.
             $r start {name}-2
             pid=$($r state {name}-2 | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p')
             kill -9 $pid; while grep -qs . /proc/$pid/stat && ! grep -qs ') [ZX]' /proc/$pid/stat; do :; done
             create 3 {name}-3 || exit 13
             holder
             delete {name}-2; delete {name}-3
             # A container that its runtime does not create.
             sed -i 's/\"rootfs\"/\"none\"/' /b4/config.json
             create 4 {name}-4 && exit 14
             sed -i 's/\"none\"/\"rootfs\"/' /b4/config.json
             create 4 {name}-5 || exit 15
             holder
             delete {name}-5; ls {LEASES}; echo end"
        ),
    );
    let holders: Vec<&str> = output_text.lines().filter(|line| line.starts_with('"')).collect();
    let holder = |number: u32| format!("\"container\":\"{name}-{number}\"");
    assert_eq!(holders, [holder(2), holder(3), holder(5)], "{output_text}");
    assert!(
        output_text.ends_with("\nend\n") && !output_text.contains("rdma=rxe0"),
        "{output_text}"
    );
}

/// A copy is refused, `flags` being options of the runtime; and not once the first container is gone, or its
/// first process.
fn copied(sandbox: &Sandbox, setup: &str, flags: &str, requests: &[(&str, &[&str])]) {
    for (request, exclusive) in requests {
        let id = ticket(sandbox, request, exclusive);
        bundles(sandbox, 3, &asking(&by_ticket(&id), &json!({}), WAITS));
        let name = unique("copied");
        let output_text = script(
            sandbox,
            &format!(
                "{setup}
                 r=\"$r {flags}\"
                 create 1 {name}-1 || exit 11
                 create 2 {name}-2 && exit 12
                 $r state {name}-1 | grep -o '\"status\": \"created\"'
                 delete {name}-1
                 create 2 {name}-2 || exit 13
                 kill -9 $($r state {name}-2 | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p')
                 until create 3 {name}-3 >/dev/null; do n=$((n+1)); [ $n -lt 100 ] || exit 14; done
                 delete {name}-2; delete {name}-3; echo end"
            ),
        );
        let refused =
            format!("is in use by container {name}-1, and a ticket is valid for one container");
        assert!(output_text.contains(&refused), "{output_text}");
        assert!(output_text.ends_with("\"status\": \"created\"\nend\n"), "{output_text}");
        assert!(!output_text.contains(id.as_str()), "{output_text}");
    }
}

#[test]
fn a_copied_ticket_is_refused_while_its_container_is_there() {
    if has_runc() {
        let sandbox = Sandbox::new();
        sandbox.allow(&[], "[leases]\nshare = { rdma = 1 }");
        let requests = [("rdma=rxe0", &["rdma:rxe0"][..]), ("nic=all", &[])];
        copied(&sandbox, "", "", &requests);
    }
}

#[test]
fn a_copied_ticket_is_refused_where_crun_keeps_the_container() {
    if has_runc() && needs::programs(&["crun"]) {
        let sandbox = Sandbox::new();
        let crun = "[runtime]\npath = \"/usr/bin/crun\"";
        sandbox.allow(&[], &format!("[leases]\nshare = {{ rdma = 1 }}\n{crun}"));
        sandbox.mkdir("/run/mount");
        // crun wants one kind of hierarchy.
        let setup = "umount /sys/fs/cgroup/unified 2>/dev/null";
        let requests = [("nic=all", &[][..])];
        copied(&sandbox, setup, "--cgroup-manager=cgroupfs", &requests);
    }
}

#[test]
fn a_copied_ticket_is_refused_to_another_task_when_its_own_is_over() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&[], "[leases]\nshare = { rdma = 1 }");
    let id = ticket(&sandbox, "rdma=rxe0", &["rdma:rxe0"]);
    let of_task = |task: &str| {
        let path = format!("/nomad/{task}/secrets");
        sandbox.mkdir(&path);
        let mut config = asking(&by_ticket(&id), &json!({}), LOOK);
        config["mounts"].as_array_mut().unwrap().push(json!({
            "destination": "/secrets", "type": "bind", "source": path, "options": ["rbind"],
        }));
        run(&sandbox, &config)
    };
    for task in ["redis", "redis"] {
        let output = of_task(task);
        prints(&output, "no\nyes\nnone\n");
    }
    let output = of_task("thief");
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let message = stderr(&output);
    assert!(message.contains("is valid only for the task that used it first"), "{message}");
    assert!(!message.contains(id.as_str()), "{message}");
}

#[test]
fn a_ticket_that_was_guessed_or_is_old_is_refused_and_gives_nothing() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    // What annotations and variables may ask for does not help a ticket that is not good.
    allow(&sandbox, &["nic", "rdma"]);
    let none = json!({});
    let guessed = Token::from([0xab; 16]);
    let message = refusal(&sandbox, &by_ticket(&guessed), &none);
    assert!(message.contains("ticket abababab… is unknown"), "{message}");
    let old = ticket(&sandbox, "rdma=rxe0", &["rdma:rxe0"]);
    let new = ticket(&sandbox, "rdma=rxe0;nic=all", &["rdma:rxe0"]);
    let message = refusal(&sandbox, &by_ticket(&old), &none);
    assert!(message.contains("is unknown: a later reservation has its devices"), "{message}");
    assert_eq!(given(&sandbox, &by_ticket(&new), &none), "yes\nyes\nlibonload.so\n");
    let file = format!("/run/onload-ctk/@requests/{}", new.as_str());
    let whole = sandbox.read(&file);
    let boot = whole.split("\"boot\":\"").nth(1).unwrap().split('"').next().unwrap();
    for (text, why) in [
        (whole.replace(boot, "another"), "from before the last boot"),
        (whole.replacen("\"version\":1", "\"version\":2", 1), "it is of version 2"),
        (whole[..40].to_owned(), "it is not a ticket"),
    ] {
        sandbox.file(&file, text);
        sandbox.chmod(&file, 0o600);
        let message = refusal(&sandbox, &by_ticket(&new), &none);
        assert!(message.contains(why), "{message}");
    }
    sandbox.file(&file, &whole);
    let message = refusal(&sandbox, &by_ticket(&new), &none);
    assert!(message.contains("other users may have accessed it"), "{message}");
    for bad in ["", "0f", &"0F".repeat(16), "../../../etc/passwd", &"0".repeat(65_536)] {
        let message = refusal(&sandbox, &format!("ticket:{bad}"), &none);
        assert!(message.contains("ONLOAD_CTK_REQUEST contains no ticket"), "{message}");
    }
}

#[test]
fn a_device_that_another_holds_is_not_given_by_a_ticket_either() {
    if !has_runc() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.allow(&["rdma"], "[leases]\nshare = { rdma = 1 }");
    let hook = |stage: &str| json!([{"path": HOOK_THERE, "args": ["onload-hook", stage, "--lease", "rdma:rxe0"], "env": ["A=b"]}]);
    // As an engine makes it of `--device`.
    let mut holder = config(&json!({}), WAITS);
    holder["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
    bundles(&sandbox, 1, &holder);
    let id = ticket(&sandbox, "rdma=rxe0", &["rdma:rxe0"]);
    sandbox.root_file_system("/b2/rootfs");
    let asking = asking(&by_ticket(&id), &json!({}), WAITS);
    sandbox.file("/b2/config.json", serde_json::to_vec(&asking).unwrap());
    let name = unique("held");
    let output_text = script(
        &sandbox,
        &format!(
            "create 1 {name}-1 || exit 11
             create 2 {name}-2 && exit 12
             delete {name}-1
             create 2 {name}-2 || exit 13
             delete {name}-2; echo end"
        ),
    );
    let refused = format!("rdma:rxe0: in use by container {name}-1 (");
    assert!(output_text.contains(&refused) && output_text.ends_with("\nend\n"), "{output_text}");
}

/// The runtime behind the wrapper is a program that does nothing, so that what is killed is the wrapper alone.
#[test]
fn a_wrapper_that_is_killed_at_any_system_call_leaves_a_ticket_that_is_good() {
    if !(has_runc() && needs::programs(&["strace"])) {
        return;
    }
    let sandbox = Sandbox::new();
    let config = |runtime: &str| {
        let share = "[leases]\nshare = { rdma = 1 }";
        sandbox.allow(&[], &format!("{share}\n[runtime]\npath = \"{runtime}\""));
        sandbox.read("/etc/onload-ctk/config.toml")
    };
    sandbox.file("/real.toml", config("/usr/bin/runc"));
    config("/usr/bin/true");
    let id = ticket(&sandbox, "rdma=rxe0", &["rdma:rxe0"]);
    let bytes = serde_json::to_vec(&asking(&by_ticket(&id), &json!({}), WAITS)).unwrap();
    bundles(&sandbox, 2, &asking(&by_ticket(&id), &json!({}), WAITS));
    sandbox.file("/config.json", &bytes);
    let name = unique("killed");
    let output_text = script(
        &sandbox,
        &format!(
            "once() {{
                 cp /config.json /b1/config.json
                 strace -qq -o /tmp/trace $1 $r create -b /b1 {name}-1 >/dev/null 2>&1
                 status=$?
                 # Another container of the task takes over at once.
                 cp /etc/onload-ctk/config.toml /fake.toml; cat /real.toml > /etc/onload-ctk/config.toml
                 cp /config.json /b2/config.json
                 create 2 {name}-2 || {{ echo \"lost at $1\"; exit 11; }}
                 delete {name}-2
                 cat /fake.toml > /etc/onload-ctk/config.toml
                 return $status
             }}
             once || exit 12
             killed=0
             for call in $(sed -n 's/^\\([a-z_0-9]*\\)(.*/\\1/p' /tmp/trace | grep -E '^(mkdirat|openat|rename|f?sync|unlink|write|fchmod|flock|symlink)' | sort -u); do
                 n=1
                 until once \"-e inject=$call:signal=KILL:when=$n\"; do n=$((n+1)) killed=$((killed+1)); done
             done
             echo killed at $killed; ls {LEASES}; echo end"
        ),
    );
    let killed: u32 = output_text
        .lines()
        .find_map(|line| line.strip_prefix("killed at "))
        .unwrap()
        .parse()
        .unwrap();
    assert!(killed >= 20 && output_text.ends_with("\nend\n"), "{output_text}");
    assert!(!output_text.contains("rdma=rxe0"), "{output_text}");
}
