//! `metrics`, by what reads them. `tests/cases/metrics` shows what they are.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::hosts::{rdma, x2, x3};
use crate::common::{
    Commands, Pci, Tree, every_host, is_root, needs, on, run, run_unprivileged, skipped,
};

use crate::status;

const PYTHON: &str = "/usr/bin/python3";
/// Reads OpenMetrics strictly, and prints each sample as the name, the labels and the value.
const READER: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families
for family in families(sys.stdin.read()):
    for sample in family.samples:
        print(family.type, sample.name, sorted(sample.labels.items()), sample.value)
";

fn metrics(tree: &Tree) -> String {
    tree.run(&["metrics"]).done().stdout
}

/// Every host, with its metrics.
fn all() -> Vec<(&'static str, String)> {
    every_host().into_iter().map(|(name, tree)| (name, metrics(&tree))).collect()
}

#[track_caller]
fn assert_has(text: &str, line: &str) {
    assert!(text.lines().any(|each| each == line), "{line}\n{text}");
}

#[test]
fn promtool_has_nothing_to_say_of_any_host() {
    if !needs::programs(&["promtool"]) {
        return;
    }
    for (name, text) in all() {
        let (is_good, message) =
            needs::asked(Command::new("promtool").args(["check", "metrics"]), &text);
        assert!(is_good && message.is_empty(), "{name}: {message}\n{text}");
    }
}

/// What node_exporter serves of the files in a directory.
fn exported(directory: &Path) -> String {
    let mut command = Command::new("prometheus-node-exporter");
    command.args(["--collector.disable-defaults", "--collector.textfile"]);
    command.arg(format!("--collector.textfile.directory={}", directory.display()));
    command.arg("--web.listen-address=127.0.0.1:0");
    let mut exporter =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(exporter.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let line = line.unwrap();
        let address = line.contains("Listening on").then(|| line.split("address=").nth(1))?;
        Some(address?.trim_matches('"').to_owned())
    });
    let mut stream = TcpStream::connect(address.unwrap()).unwrap();
    let request = b"GET /metrics HTTP/1.0\r\n\r\n";
    std::io::Write::write_all(&mut stream, request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    answer
}

#[test]
fn node_exporter_of_debian_serves_what_stands_in_the_file() {
    if !needs::programs(&["prometheus-node-exporter"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("onload-ctk.prom");
    let tree = x2();
    let mut command = on(tree.root(), &["metrics", "--output"]);
    run(command.arg(&file)).done();
    let text = fs::read_to_string(&file).unwrap();
    let served = exported(directory.path());
    assert_has(&served, "node_textfile_scrape_error 0");
    let name = |line: &str| line.split([' ', '{']).next().unwrap().to_owned();
    let samples = |text: &str| -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("onload_ctk_")) {
            *counts.entry(name(line)).or_default() += 1;
        }
        counts
    };
    assert!(samples(&text).len() > 5, "{text}");
    assert_eq!(samples(&served), samples(&text), "{served}");

    fs::write(&file, "onload_ctk_devices{ 1\n").unwrap();
    assert_has(&exported(directory.path()), "node_textfile_scrape_error 1");
}

#[test]
fn a_strict_reader_of_openmetrics_takes_every_host() {
    let mut python = Command::new(PYTHON);
    let python = python.args(["-c", "import prometheus_client.openmetrics.parser"]);
    let is_there = python.output().is_ok_and(|output| output.status.success());
    if !needs::that(is_there, "python3-prometheus-client is not installed") {
        return;
    }
    for (name, text) in all() {
        let (is_good, message) = needs::asked(Command::new(PYTHON).args(["-c", READER]), &text);
        assert!(is_good, "{name}: {message}\n{text}");
        let run = "gauge onload_ctk_last_run_timestamp_seconds []";
        assert!(message.contains(run), "{name}: {message}");
    }
}

#[test]
fn a_family_has_its_samples_together_a_help_text_and_an_end() {
    for (name, text) in all() {
        assert!(text.ends_with("\n# EOF\n"), "{name}: {text}");
        let mut families = BTreeSet::new();
        for line in text.lines().filter(|line| line.starts_with("# HELP ")) {
            let family = line.split(' ').nth(2).unwrap();
            assert!(family.starts_with("onload_ctk_"), "{name}: {line}");
            assert!(families.insert(family), "{name}: {family} twice");
        }
        assert!(!text.contains("_total"), "{name}: the older format knows no such ending");
    }
}

/// A host whose kernel counts errors of an RDMA port and of an interface.
pub(crate) fn with_counters() -> Tree {
    let tree = rdma();
    let port = "/sys/devices/pci0000:3b/0000:3b:00.0/infiniband/mlx5_0/ports/1";
    tree.attribute(&format!("{port}/hw_counters/out_of_buffer"), "12");
    tree.attribute(&format!("{port}/hw_counters/lifespan"), "10");
    tree.attribute(&format!("{port}/counters/port_rcv_errors"), "3");
    tree.attribute(&format!("{port}/counters/odd"), "N/A");
    let interface = "/sys/devices/pci0000:3b/0000:3b:00.0/net/ens1";
    tree.attribute(&format!("{interface}/statistics/rx_errors"), "7");
    tree
}

#[test]
fn containers_are_counted_by_state_and_every_state_has_a_series() {
    let tree = x3();
    status::process(&tree, 1, None, "systemd");
    assert_has(&metrics(&tree), "onload_ctk_container_states{state=\"accelerated\"} 0.0");
    let id = "3f2a".repeat(16);
    status::process(&tree, 77, Some(&id), "redis");
    for (number, target) in [(3, "/dev/onload"), (4, "/dev/onload"), (5, "onload:[tcp:0:1]")] {
        tree.link(&format!("/proc/77/fd/{number}"), target);
    }
    let text = metrics(&tree);
    assert_has(&text, "onload_ctk_container_states{state=\"accelerated\"} 1.0");
    assert_has(&text, "onload_ctk_container_states{state=\"partly-accelerated\"} 0.0");
    assert_eq!(text.lines().filter(|line| line.contains("_container_states{")).count(), 17);
}

/// A physical function with so many virtual ones on vfio-pci.
pub(crate) fn with_functions(count: u32) -> Tree {
    let tree = Tree::new();
    tree.vfio().hook();
    let parent = tree.pci(Pci::network("0000:81:00.0", "8086:154c", "igb"));
    for index in 0..count {
        let address = format!("0000:81:{:02x}.{}", 1 + index / 8, index % 8);
        let child = tree.pci(Pci::network(&address, "8086:154c", "vfio-pci"));
        tree.virtual_function(&parent, index, &child);
        tree.group(&child, 100 + index).group_node(100 + index);
    }
    tree
}

#[test]
fn the_number_of_series_does_not_grow_with_virtual_functions() {
    let lines = |count| {
        let tree = with_functions(count);
        // Not one of them is in a specification: each has a reason.
        let without = metrics(&tree).lines().count();
        tree.generate();
        let text = metrics(&tree);
        assert_has(
            &text,
            &format!("onload_ctk_devices{{class=\"vfio\",health=\"healthy\"}} {count}.0"),
        );
        (without, text.lines().count())
    };
    let (few, many) = (lines(65), lines(240));
    assert_eq!(few, many);
}

#[test]
fn a_file_is_replaced_whole_and_everybody_can_read_it() {
    let tree = x3();
    tree.generate();
    let file = tree.path("/onload-ctk.prom");
    fs::write(&file, "old").unwrap();
    let old = fs::metadata(&file).unwrap().ino();
    // Who reads meanwhile keeps what was there.
    let reader = fs::File::open(&file).unwrap();
    let output = file.to_str().unwrap();
    let run = tree.run(&["metrics", "--output", output]).done();
    assert_eq!((run.stdout.as_str(), run.stderr), ("", format!("wrote {output}\n")));
    let written = fs::metadata(&file).unwrap();
    assert_ne!(written.ino(), old);
    assert_eq!(written.permissions().mode() & 0o777, 0o644);
    assert_eq!(std::io::read_to_string(reader).unwrap(), "old");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let beside = crate::common::names_in(tree.root());
    assert!(
        !beside.iter().any(|name| name.contains("prom") && name != "onload-ctk.prom"),
        "{beside:?}"
    );
}

#[test]
fn leases_that_are_not_known_are_left_out_and_said() {
    if !is_root() {
        skipped("not root, so there is nobody with fewer rights to be");
        return;
    }
    let tree = x3();
    tree.directory("/run/onload-ctk/@leases");
    tree.boot("b");
    let private = fs::Permissions::from_mode(0o700);
    for directory in ["/run/onload-ctk/@leases", "/run/onload-ctk"] {
        fs::set_permissions(tree.path(directory), private.clone()).unwrap();
    }
    assert!(metrics(&tree).contains("onload_ctk_devices_held"));
    let run = run_unprivileged(&tree, &["metrics"]).done();
    assert!(!run.stdout.contains("onload_ctk_devices_held"), "{}", run.stdout);
    assert!(run.stdout.contains("onload_ctk_devices{"), "{}", run.stdout);
    assert!(run.stderr.contains("leases and holders are omitted"), "{}", run.stderr);
}

#[test]
fn a_name_cannot_add_a_line() {
    let tree = x2();
    tree.generate();
    let odd = "/var/run/cdi/onload.dev-\"\n# EOF\nonload_ctk_x 1\\.json";
    tree.file(odd, "{}");
    let text = metrics(&tree);
    assert_eq!(text.lines().filter(|line| *line == "# EOF").count(), 1, "{text}");
    assert!(!text.lines().any(|line| line.starts_with("onload_ctk_x")), "{text}");
    assert!(Path::new(&tree.path(odd)).exists());
}
