//! The largest untrusted configurations, with as many items of one kind as fit into 16 MiB: each
//! entry point accepts or refuses them within a bounded address space. `scripts/measure-bounds`
//! measures their cost.

#[allow(unreachable_pub, reason = "the example has it too")]
#[path = "common/shapes.rs"]
mod shapes;

use crate::common::{HOOK_THERE, Sandbox, WRAPPER_THERE, is_root, stderr};
use shapes::SHAPES;

/// The largest configuration that is parsed.
const LARGEST: usize = 16 * 1024 * 1024;

/// A size that an unoptimised program reads in reasonable time.
const LARGE: usize = 1024 * 1024;

/// Bytes of address space that a program may use for the largest one; it touches only part of that.
const MOST: usize = 96 * 1024 * 1024;

/// The same for a large one: six times its size, as for the largest, plus the program itself, which
/// is large when unoptimised.
const LESS: usize = 38 * 1024 * 1024;

const STATE: &str =
    r#"{"ociVersion":"1.0.2","id":"c1","status":"creating","pid":1073741824,"bundle":"/bundle"}"#;

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.allow(&["nic"], "root-with-onload = \"allow\"");
    let text = sandbox.read("/etc/onload-ctk/config.toml");
    let runtime = "[runtime]\npath = \"/usr/bin/true\"\n";
    sandbox.file("/etc/onload-ctk/config.toml", format!("{text}{runtime}"));
    sandbox.root_file_system("/bundle/rootfs");
    sandbox
}

/// Runs a command in `/bundle`. Returns its standard error, or nothing if it succeeds.
fn run(sandbox: &Sandbox, size: usize, command: &str, input: &[u8]) -> Result<(), String> {
    let kib = if size == LARGEST { MOST } else { LESS } / 1024;
    let script = format!("cd /bundle; ulimit -v {kib}; exec timeout 120 {command} > /dev/null");
    let output = sandbox.script(&script, input);
    let message = stderr(&output);
    match output.status.code() {
        Some(0) => Ok(()),
        Some(1) if message.trim_end().lines().count() == 1 && message.len() < 8192 => Err(message),
        status => Err(format!("status {status:?}, {message}")),
    }
}

/// What is wrong with a result, so that all results can be reported together.
fn wrong(name: &str, refusal: Option<&str>, result: &Result<(), String>) -> Option<String> {
    match (refusal, result) {
        (None, Ok(())) => None,
        (Some(want), Err(message)) if message.contains(want) => None,
        (want, result) => Some(format!("{name}: expected {want:?}, got {result:?}")),
    }
}

#[test]
fn no_shape_of_a_configuration_takes_more_memory_than_a_bound() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    let mut all = Vec::new();
    for shape in SHAPES {
        let json = shape.json(LARGE);
        let room = LARGE - json.len();
        assert!(room < 1024, "{}: {room} bytes are left", shape.name);
        let result = run(&sandbox, LARGE, &format!("{HOOK_THERE} precreate"), &json);
        all.extend(wrong(shape.name, shape.refusal, &result));
        sandbox.file("/bundle/config.json", &json);
        let command = format!("{WRAPPER_THERE} create -b /bundle c1");
        let result = run(&sandbox, LARGE, &command, b"");
        all.extend(wrong(shape.name, shape.refusal, &result));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_largest_configurations_take_no_more_memory_than_the_bound() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    let mut all = Vec::new();
    for (name, refusal) in [
        ("members", None),
        ("annotations", None),
        ("env-same", None),
        ("nested", None),
        ("devices", None),
        ("mounts", Some("mounts: more than 100000 values")),
        // A part of each is looked up in the image.
        ("mounts-at-most", Some("(os error 40)")),
    ] {
        let shape = SHAPES.iter().find(|shape| shape.name == name).unwrap();
        let command = format!("{HOOK_THERE} precreate");
        let result = run(&sandbox, LARGEST, &command, &shape.json(LARGEST));
        all.extend(wrong(name, refusal, &result));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_door_of_a_living_container_holds_no_more_than_the_others() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    let mut all = Vec::new();
    let asks = r#""annotations":{"onload.dev/nic":"all"},"bundle""#;
    let state = STATE.replace(r#""bundle""#, asks);
    for shape in SHAPES {
        sandbox.file("/bundle/config.json", shape.json(LARGE));
        let command = format!("{HOOK_THERE} createRuntime");
        let result = run(&sandbox, LARGE, &command, state.as_bytes());
        let want = match shape.name {
            // This entry point sets no variable and does not search PATH.
            "path-list" => "no own RLIMIT_NOFILE",
            // It ends before it gets to these.
            "mounts-over-each-other" | "root-long" => "no own RLIMIT_NOFILE",
            _ => shape.refusal.unwrap_or("no own RLIMIT_NOFILE"),
        };
        all.extend(wrong(shape.name, Some(want), &result));
    }
    assert!(
        all.is_empty(),
        "{}",
        all.join(
            "
"
        )
    );
}

#[test]
fn the_hook_of_a_specification_finds_its_nodes_among_any_number() {
    if !is_root() {
        return;
    }
    let sandbox = sandbox();
    let node = "/dev/infiniband/uverbs0";
    let command = format!("{HOOK_THERE} createRuntime --expect {node}=rdma:rxe0");
    let result = |json: &[u8]| {
        sandbox.file("/bundle/config.json", json);
        run(&sandbox, 0, &command, STATE.as_bytes())
    };
    for name in ["members", "devices", "devices-same", "nested", "string", "annotations"] {
        let shape = SHAPES.iter().find(|shape| shape.name == name).unwrap();
        let message = result(&shape.json(LARGE)).unwrap_err();
        assert!(message.contains("has no such node"), "{name}: {message}");
    }
    let entries = |minor: &dyn Fn(usize) -> usize| {
        let entry = |n| format!(r#"{{"path":"{node}","type":"c","major":1,"minor":{}}}"#, minor(n));
        let entries: Vec<String> = (0..LARGE / 80).map(entry).collect();
        format!(r#"{{"linux":{{"devices":[{}]}}}}"#, entries.join(","))
    };
    assert_eq!(result(entries(&|_| 7).as_bytes()), Ok(()));
    let message = result(entries(&|n| n).as_bytes()).unwrap_err();
    assert!(message.contains("renumbered"), "{message}");
}
