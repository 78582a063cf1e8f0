//! Sessions of the hook and the wrapper in a sandbox: cases in `tests/cases`, which `tests/cases/README.md` describes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::{HOOK_THERE, Sandbox, WRAPPER_THERE, config, is_root, stderr, stdout, unique};
use onload_test_needs as needs;
use onload_test_tree::case::{self, Case};
use serde_json::{Value, json};

/// A container that engines give up after this long.
const TIMEOUT: Duration = Duration::from_secs(100);

#[test]
fn sessions_with_the_runtime_that_created_a_container() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/made-by"), replay);
}

#[test]
fn sessions_with_hostile_input() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/hostile"), replay);
}

#[test]
fn sessions_through_the_wrapper() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/wrapper"), replay);
}

#[test]
fn sessions_with_the_hook_of_containers_that_nothing_changed() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/live"), replay);
}

/// Whether this machine has what a case needs.
fn are_met(needs: &[&str]) -> bool {
    is_root()
        && needs.iter().all(|need| match *need {
            "user-namespace" => needs::user_namespace(),
            "exec" => needs::no_chroot("runc exec"),
            "cgroup-v1" => {
                let is_v1 = Path::new("/sys/fs/cgroup/devices/devices.allow").exists();
                needs::on_this_machine(is_v1, "cgroup v1's devices are not mounted")
            }
            program => needs::programs(&[program]),
        })
}

fn replay(case: &Case) -> Option<impl FnMut(&str) -> String + use<>> {
    if !are_met(&case.words("needs")) {
        return None;
    }
    let sandbox = Sandbox::new();
    for (path, text) in case.files() {
        sandbox.file(&path, &text);
        if text.starts_with("#!") {
            sandbox.chmod(&path, 0o755);
        }
    }
    Some(move |command: &str| run(&sandbox, command))
}

/// Runs a command of a case. `bundle [live] [at PATH] {PATCH}` writes a container's configuration, `{"sh": COMMAND}` for
/// its shell. Other commands are the shell's, with `$w` for the wrapper, `$h` for the hook, and `$id` for a container.
/// Returns what they print, and the changed files of the host if they run one of our programs.
fn run(sandbox: &Sandbox, command: &str) -> String {
    if let Some(words) = command.strip_prefix("bundle") {
        let (words, patch) = words.split_at(words.find('{').unwrap());
        write_bundle(sandbox, words, &serde_json::from_str(patch).expect(patch));
        return String::new();
    }
    let id = unique("c");
    let script = format!(
        "w={WRAPPER_THERE} h={HOOK_THERE} id={id} PATH=$PATH:/usr/sbin
         r=\"$w --root /run/runc\" runc='timeout 60 runc --root /run/runc'
         exec 2>&1; {command}"
    );
    let before = traces(sandbox, &id);
    let output = sandbox.script_within(TIMEOUT, &script);
    let mut printed: String = stdout(&output).lines().filter_map(readable).collect();
    printed += &stderr(&output);
    match output.status.code() {
        Some(0) => {}
        code => printed += &format!("[exit {}]\n", code.unwrap()),
    }
    if ["$w", "$h", "$r", "runc"].iter().any(|program| command.contains(program)) {
        let after = traces(sandbox, &id);
        for (path, description) in &before {
            match after.get(path) {
                None => printed += &format!("- {path}\n"),
                Some(new) if new != description => printed += &format!("~ {path}\n"),
                Some(_) => {}
            }
        }
        let new = after.keys().filter(|path| !before.contains_key(*path));
        new.for_each(|path| printed += &format!("+ {path}\n"));
    }
    printed.replace(&id, "$id")
}

/// The line without what differs between machines and C libraries. Of what runc logs, the message of our program.
fn readable(line: &str) -> Option<String> {
    // The loader's stream is not in order with the container's, and the limit is the machine's.
    if line.starts_with("ERROR: ld.so: ") || line.ends_with("CAP_SYS_RESOURCE is missing") {
        return None;
    }
    let mut line = line.to_owned();
    if let Some(at) = line.find("msg=").filter(|_| line.starts_with("time=")) {
        let message = line[at + 4..].replace("\\\"", "\"").replace("\\n", "").replace("\\\\", "\\");
        let message = message.strip_prefix('"').unwrap_or(&message);
        let message = message.strip_suffix('"').unwrap_or(message);
        line = format!("runc: {}", &message[message.find("onload-hook ").unwrap_or(0)..]);
    }
    Some(case::mask_error(&line) + "\n")
}

fn write_bundle(sandbox: &Sandbox, words: &str, patch: &Value) {
    let mut patch = patch.clone();
    let command = patch.as_object_mut().unwrap().remove("sh");
    let command = command.as_ref().map_or(":", |command| command.as_str().unwrap());
    let mut bundle = config(&json!({}), command);
    if words.contains("live") {
        add_hooks(&mut bundle);
    }
    case::merge(&mut bundle, &patch);
    match words.split_once("at ") {
        Some((_, path)) => {
            let path = format!("{}/config.json", path.trim());
            sandbox.file(&path, bundle.to_string());
        }
        None => sandbox.bundle(&bundle),
    }
}

/// Adds the hooks that the operator configures for all containers, and a limit of open files that bounds Onload's table.
pub(crate) fn add_hooks(config: &mut Value) {
    let hook = |stage: &str| json!([{"path": HOOK_THERE, "args": ["onload-hook", stage], "env": ["PATH=/usr/sbin:/usr/bin"], "timeout": 10}]);
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]);
    config["hooks"] = json!({"createRuntime": hook("createRuntime"), "poststop": hook("poststop")});
}

/// What a container could leave on the host: files, also those of its image, mounts and cgroups.
pub(crate) fn traces(sandbox: &Sandbox, id: &str) -> BTreeMap<String, String> {
    let mut traces: BTreeMap<String, String> = sandbox
        .snapshot()
        .into_iter()
        .map(|(path, description)| (format!("/{}", path.display()), description))
        .collect();
    let list = "test ! -d /bundle || find /bundle -printf '%p\\t%y %s %m %U %l\\n'; ls -d /sys/fs/cgroup/*/onload-ctk-* 2> /dev/null";
    let listed = stdout(&sandbox.script(list, b""));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = sandbox.path("/").display().to_string();
    let listed = listed.lines().filter(|line| line.starts_with("/bundle") || line.contains(id));
    let mounts = mounts.lines().filter(|line| line.contains(&root) || line.contains(id));
    for line in listed.chain(mounts) {
        let (path, description) = line.split_once('\t').unwrap_or((line, ""));
        traces.insert(path.to_owned(), description.to_owned());
    }
    // The directory of all containers stays, with their lock.
    traces.retain(|path, _| !path.starts_with("/run/onload-ctk/@locks"));
    traces
}
