//! `doctor`, where a case in `tests/cases/doctor` cannot show it: other users, every host, and a docker that answers.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use crate::common::hosts::{self, x3};
use crate::common::{
    Commands, Tree, every_host, is_root, package, run_unprivileged, skipped, text,
};
use serde_json::Value;

const JSON: [&str; 3] = ["doctor", "--format", "json"];

/// All that was found of a check.
fn found(tree: &Tree, check: &str) -> Vec<Value> {
    let checks = tree.run(&JSON).json()["checks"].take();
    let checks = checks.as_array().unwrap().iter();
    let found = checks.filter(|each| each["name"] == check && each["verdict"] != "skipped");
    found.cloned().collect()
}

fn remedies(finding: &Value) -> Vec<String> {
    let remedies = finding["remedy"].as_array().unwrap().iter();
    let one = |remedy: &Value| match (remedy.get("run"), remedy.get("install")) {
        _ if remedy.get("kernel_line").is_some() => remedy.to_string(),
        _ if remedy.get("edit").is_some() => format!("edit {}", text(&remedy["edit"])),
        (Some(run), _) => text(run),
        (_, Some(install)) => format!("{} from {}", text(install), text(&remedy["from"])),
        _ => format!("{}: {}", text(&remedy["file"]), text(&remedy["line"])),
    };
    remedies.map(one).collect()
}

/// A guest with a real Onload in which a command was run by hand, as doctor printed it.
const REAL: &str = "by hand with a real Onload";
/// Reasons why a command is run nowhere as printed.
const DISTRIBUTION: &str = "nowhere: another distribution";
const HARDWARE: &str = "nowhere: hardware that no guest has";
const NETWORK: &str = "nowhere: packages of the distribution, by the network";
const REBOOT: &str = "nowhere: it reboots, or matters only after a reboot";
const PERSON: &str = "nowhere: it shows a person something";

const UNTRIED: &str = "nowhere yet";

/// The beginnings of the commands that doctor prints, and where each is run as printed.
const PRINTED_COMMANDS: &[(&str, &str)] = &[
    ("apk add ", NETWORK),
    ("apt-get install ", NETWORK),
    ("cat /sys/class/infiniband/", HARDWARE),
    ("chmod ", REAL),
    ("chown ", REAL),
    ("containerd config dump", PERSON),
    ("cpupower frequency-set ", HARDWARE),
    ("crio config", PERSON),
    ("dnf install ", NETWORK),
    ("docker start ", REAL),
    ("docker stop ", UNTRIED),
    ("dockerd --validate", PERSON),
    ("driverctl ", HARDWARE),
    ("echo ", REAL),
    ("ethtool -K ", HARDWARE),
    ("ethtool -L ", REAL),
    ("ethtool -k ", PERSON),
    ("find / -xdev -name libonload.so", REAL),
    ("grub-mkconfig ", DISTRIBUTION),
    ("grub2-mkconfig ", DISTRIBUTION),
    ("grubby ", DISTRIBUTION),
    ("ip -statistics link show ", HARDWARE),
    ("ip link set dev ", REAL),
    ("journalctl ", PERSON),
    ("ln -s ", HARDWARE),
    ("lspci ", PERSON),
    ("mkdir -p ", DISTRIBUTION),
    ("mknod ", HARDWARE),
    ("modprobe ", UNTRIED),
    ("mv ", REAL),
    ("nomad config validate ", PERSON),
    ("od -c ", PERSON),
    ("onload-ctk ", REAL),
    ("onload_tool reload", REAL),
    ("pacman -S ", NETWORK),
    ("podman info", PERSON),
    ("podman stop ", UNTRIED),
    ("rc-service ", DISTRIBUTION),
    ("reboot", REBOOT),
    ("rm ", REAL),
    ("rpm-ostree ", DISTRIBUTION),
    ("sed -i ", REBOOT),
    ("setpci ", HARDWARE),
    ("setsebool ", DISTRIBUTION),
    ("sminfo ", HARDWARE),
    ("sudo onload-ctk doctor", PERSON),
    ("sysctl --system", DISTRIBUTION),
    ("systemctl enable ", REAL),
    ("systemctl reboot", REBOOT),
    ("systemctl reload ", REAL),
    ("systemctl restart ", REAL),
    ("systemctl start ", REAL),
    ("systemctl unmask ", REAL),
    ("touch ", REAL),
    ("transactional-update ", DISTRIBUTION),
    ("udevadm control --reload", REAL),
    ("update-grub", REBOOT),
    ("zgrep ", PERSON),
    ("zypper install ", NETWORK),
];

/// Asserts that each command of a finding is shell, and that the list above has it.
#[track_caller]
fn assert_listed(finding: &Value) {
    let remedies = finding["remedy"].as_array().unwrap().iter();
    for command in remedies.filter_map(|remedy| remedy["run"].as_str()) {
        let is_listed = PRINTED_COMMANDS.iter().any(|(start, _)| command.starts_with(start));
        assert!(is_listed || command.contains(" --version"), "{command:?} is not listed");
        let shell = Command::new("bash").args(["-n", "-c", command]).status().unwrap();
        assert!(shell.success(), "{command:?} is no shell");
    }
}

#[test]
fn what_a_user_cannot_read_is_not_known() {
    if !is_root() {
        skipped("not root, so there is nobody with fewer rights to be");
        return;
    }
    let tree = x3();
    let discovery = found(&tree, "discovery");
    assert_eq!(discovery[0]["verdict"], "pass", "{discovery:?}");
    tree.chmod("/sys/bus/pci/devices", 0o700);
    let run = run_unprivileged(&tree, &JSON);
    let json = run.json();
    let checks = json["checks"].as_array().unwrap();
    let discovery = checks.iter().find(|c| c["name"] == "discovery").unwrap();
    assert_eq!(discovery["verdict"], "unknown", "{discovery}");
    assert_eq!(remedies(discovery), ["sudo onload-ctk doctor"]);
}

#[test]
fn root_is_told_what_discovery_says_and_not_to_be_root() {
    let tree = x3();
    tree.file("/etc/onload-ctk/drain.json", "{");
    let discovery = found(&tree, "discovery");
    assert_eq!(discovery[0]["verdict"], "unknown", "{discovery:?}");
    let remedy = if is_root() { "onload-ctk discover --explain" } else { "sudo onload-ctk doctor" };
    assert_eq!(remedies(&discovery[0]), [remedy]);
}

#[test]
fn every_check_has_a_case_and_stands_in_the_page() {
    let page = fs::read_to_string(package().join("docs/doctor.md")).unwrap();
    for name in onload_report::doctor::list_check_names() {
        let case = package().join(format!("tests/cases/doctor/{name}.case"));
        assert!(case.exists() || name == "discovery", "{name} has no case");
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not in docs/doctor.md");
    }
}

#[test]
fn what_does_not_pass_says_what_was_looked_at_and_what_to_do() {
    for (name, tree) in hosts::all() {
        let run = tree.run(&JSON);
        let json = run.json();
        for check in json["checks"].as_array().unwrap() {
            let is_skipped = check["verdict"] == "skipped";
            let is_good = is_skipped || check["verdict"] == "pass";
            assert_eq!(remedies(check).is_empty(), is_good, "{name}: {check}");
            assert_listed(check);
            assert!(
                is_skipped || !check["looked_at"].as_array().unwrap().is_empty(),
                "{name}: {check}"
            );
        }
    }
}

#[test]
fn every_check_has_a_verdict_on_every_host() {
    for (name, tree) in every_host() {
        let checks = tree.run(&JSON).json()["checks"].take();
        let checks = checks.as_array().unwrap();
        for check in onload_report::doctor::list_check_names() {
            let mut of_name = checks.iter().filter(|each| each["name"] == check);
            let finding = of_name.next().unwrap_or_else(|| panic!("{name}: no {check}"));
            assert!(!text(&finding["finding"]).is_empty(), "{name}: {check}");
        }
    }
}

/// Answers like dockerd, once for each text.
pub(crate) fn dockerd_says(tree: &Tree, info: &'static str) -> std::thread::JoinHandle<()> {
    use std::io::{Read, Write};
    let socket = tree.path("/run/docker.sock");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _ = fs::remove_file(&socket);
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 256];
        let length = stream.read(&mut request).unwrap();
        assert!(request[..length].starts_with(b"GET /info HTTP/1.0\r\n"));
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{info}").unwrap();
    })
}

#[test]
fn a_docker_that_was_told_to_read_its_file_again_is_asked_what_it_knows() {
    let file = "/etc/docker/daemon.json";
    let tree = Tree::described("running-docker");
    // After dockerd was started.
    let change = || {
        let file = fs::File::open(tree.path(file)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_001_500)).unwrap();
    };
    change();
    let asked = |info| {
        let dockerd = dockerd_says(&tree, info);
        let mut found = found(&tree, "engine-restarted");
        dockerd.join().unwrap();
        let found = found.remove(0);
        (text(&found["verdict"]), remedies(&found))
    };
    let none = Vec::<String>::new();
    let old = r#"{"Runtimes":{"runc":{}},"DefaultRuntime":"runc","CDISpecDirs":["/etc/cdi"]}"#;
    let reload = vec!["systemctl reload docker".to_owned()];
    assert_eq!(asked(old), ("warn".to_owned(), reload));
    let new = r#"{"Runtimes":{"runc":{},"onload":{}},"DefaultRuntime":"runc","CDISpecDirs":[]}"#;
    assert_eq!(asked(new), ("pass".to_owned(), none.clone()));
    // CDI is turned on when it starts.
    tree.file(file, r#"{"features":{"cdi":true}}"#);
    change();
    let restart = vec!["systemctl restart docker".to_owned()];
    let off = r#"{"Runtimes":{"runc":{}},"DefaultRuntime":"runc","CDISpecDirs":[]}"#;
    assert_eq!(asked(off), ("warn".to_owned(), restart.clone()));
    assert_eq!(asked(old), ("pass".to_owned(), none));
    assert_eq!(asked("what"), ("warn".to_owned(), restart));
}

#[test]
fn a_running_docker_may_still_have_the_cdi_that_its_file_disables() {
    let tree = Tree::described("running-docker");
    tree.file("/etc/docker/daemon.json", r#"{"features":{"cdi":false}}"#);
    let asked = |info| {
        let dockerd = dockerd_says(&tree, info);
        let checks = tree.run(&[&JSON[..], &["--check", "engine-cdi"]].concat()).json();
        dockerd.join().unwrap();
        let finding = &checks["checks"][0];
        (text(&finding["verdict"]), remedies(finding))
    };
    let configure = "onload-ctk runtime configure --runtime docker".to_owned();
    let on = r#"{"Runtimes":{},"DefaultRuntime":"runc","CDISpecDirs":["/etc/cdi"]}"#;
    assert_eq!(asked(on), ("warn".to_owned(), vec![configure.clone()]));
    let off = r#"{"Runtimes":{},"DefaultRuntime":"runc","CDISpecDirs":[]}"#;
    assert_eq!(asked(off), ("fail".to_owned(), vec![configure + " --restart"]));
}
