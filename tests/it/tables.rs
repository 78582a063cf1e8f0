//! Tables at the width of a terminal: lines are wrapped between words, and what is not offered is said
//! once with its remedy. What they look like as a whole is in `tests/golden`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use crate::common::hosts::{vfio, x3};
use crate::common::{Commands, captured, each, every_host, on, run};

const EXPLAIN: [&str; 2] = ["discover", "--explain"];

/// What a command prints where `COLUMNS` says so.
fn at(columns: &str, root: &std::path::Path, args: &[&str]) -> String {
    run(on(root, args).env("COLUMNS", columns)).done().stdout
}

fn words(text: &str) -> BTreeSet<&str> {
    let words = text.split_whitespace();
    words.map(|word| word.trim_end_matches(',')).collect()
}

#[test]
fn no_word_is_broken_and_no_line_is_too_long_that_has_two() {
    for (_, tree) in every_host() {
        let root = tree.root();
        let plain = at("", root, &EXPLAIN);
        let whole = words(&plain);
        for columns in [80, 40] {
            let shown = at(&columns.to_string(), root, &EXPLAIN);
            let stand_in = |word: &&str| word.contains("NAME") || word.contains("ADDRESS");
            let broken: Vec<&str> = words(&shown).difference(&whole).copied().collect();
            let broken: Vec<_> = broken.iter().filter(|word| !stand_in(word)).collect();
            assert!(broken.is_empty(), "{broken:?} at {columns} of {}", root.display());
            for line in shown.lines() {
                let fits = line.chars().count() <= columns;
                assert!(fits || line.split_whitespace().count() == 1, "{columns}: {line}");
            }
        }
    }
}

/// What a remedy begins with, behind the last semicolon of a reason.
const REMEDIES: [&str; 20] = [
    "add ",
    "bind ",
    "choose ",
    "correct ",
    "enable ",
    "if ",
    "install ",
    "load ",
    "check ",
    "make ",
    "move ",
    "this is unsupported",
    "remove ",
    "rename ",
    "run ",
    "set ",
    "request ",
    "see ",
    "use ",
    "write ",
];

/// What no setting of the host changes.
const FINAL: [&str; 4] =
    ["cannot accelerate it", "does not support", "unsupported", "not for programs"];

#[test]
fn every_reason_ends_with_what_to_do_or_says_that_it_is_unsupported() {
    let mut seen = 0;
    for (_, tree) in every_host() {
        let root = tree.root();
        let found = run(&mut on(root, &["discover", "--format", "json"])).done().json();
        for reason in each(&found["not_offered"], "reason") {
            let (_, remedy) = reason.rsplit_once("; ").unwrap_or_default();
            let is_final = FINAL.iter().any(|text| reason.contains(text));
            let known = REMEDIES.iter().any(|start| remedy.starts_with(start));
            assert!(known || is_final, "{reason}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

#[test]
fn tools_are_no_interfaces() {
    let found = run(&mut on(&captured(), &["discover", "--format", "json"])).done().json();
    let kind = |name: &str| {
        let list = found["not_offered"].as_array().unwrap();
        let entry = list.iter().find(|entry| entry["name"] == name).unwrap();
        entry["kind"].as_str().unwrap().to_owned()
    };
    for tool in ["onload_stackdump", "onload_tcpdump", "orm_webserver"] {
        assert_eq!(kind(tool), "tool", "{tool}");
    }
    assert_eq!(kind("ens2"), "nic");
}

#[test]
fn what_is_bound_to_the_kernels_driver_is_told_the_command_that_binds_it_to_vfio() {
    let shown = at("80", &captured(), &EXPLAIN);
    let wanted = "  vfio  0000:41:10.0, 0000:41:10.2, 0000:41:10.4, 0000:81:10.4\n      \
                  bound to igbvf, not to a vfio driver; run\n      \
                  \"driverctl set-override ADDRESS vfio-pci\" (the host then loses its\n      \
                  interface)\n";
    assert!(shown.contains(wanted), "{shown}");
    let found = vfio().discover();
    let reason = crate::common::reason(&found, "vfio", "0000:81:04.1");
    assert!(reason.ends_with("run \"driverctl set-override 0000:81:04.1 vfio-pci\""), "{reason}");
}

#[test]
fn behind_a_pipe_each_reason_has_one_line() {
    let table = at("", &captured(), &EXPLAIN);
    let (_, rows) = table.split_once("\nNot offered\n").unwrap();
    let columns = |row: &str| -> Vec<String> {
        row.split("  ").map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect()
    };
    let rows: Vec<Vec<String>> = rows.lines().map(columns).collect();
    assert_eq!(rows[0], ["KIND", "NAME", "REASON"]);
    let found = run(&mut on(&captured(), &["discover", "--format", "json"])).done().json();
    let mut names = each(&found["not_offered"], "name");
    let mut shown: Vec<&str> = rows[1..].iter().flat_map(|row| row[1].split(", ")).collect();
    names.sort();
    shown.sort();
    assert_eq!(shown, names);
    // A variable that names no width is as good as none.
    for odd in ["0", "-1", "wide", "80x24"] {
        assert_eq!(at(odd, &captured(), &EXPLAIN), table, "{odd}");
    }
}

#[test]
fn one_thing_is_not_counted_as_several() {
    let tree = x3();
    tree.config("[cdi]\nhost-tool-dir = \"\"\n");
    let shown = at("", tree.root(), &["discover"]);
    assert!(shown.contains("\n1 thing is not offered; "), "{shown}");
}

/// What a command prints on a terminal of that width.
fn on_terminal(columns: u16, root: &std::path::Path, args: &[&str]) -> String {
    let (master, terminal) = crate::common::terminal(columns);
    let mut command = on(root, args);
    let mut child = command.stdout(Stdio::from(terminal)).spawn().unwrap();
    // Ours of the terminal goes with the command, so that the end of the child is the end of the text.
    drop(command);
    let mut text = Vec::new();
    // Linux gives EIO for the end.
    let _ = File::from(master).read_to_end(&mut text);
    assert!(child.wait().unwrap().success());
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

#[test]
fn a_terminal_is_asked_for_its_width() {
    let root = captured();
    let args = ["discover", "--explain", "--color", "never"];
    for columns in [80, 40] {
        let shown = on_terminal(columns, &root, &args);
        assert_eq!(shown, at(&columns.to_string(), &root, &EXPLAIN));
    }
    // A serial line says nothing of its width.
    assert_eq!(on_terminal(0, &root, &args), at("", &root, &EXPLAIN));
    // Coloured words are as wide as others.
    let args = ["discover", "--explain", "--color", "always"];
    let coloured = on_terminal(40, &root, &args);
    assert!(coloured.contains('\u{1b}'), "{coloured}");
    let plain = anstream::adapter::strip_str(&coloured).to_string();
    assert_eq!(plain, at("40", &root, &EXPLAIN));
}

#[test]
fn what_hides_a_device_is_said_in_lines_that_fit() {
    let tree = x3();
    tree.generate();
    let spec = tree.specs().join("onload.dev-nic.json");
    let copy = std::fs::read(spec).unwrap();
    tree.file("/etc/cdi/copy.json", copy);
    let plain = at("", tree.root(), &["cdi", "list"]);
    assert!(plain.contains("/etc/cdi/copy.json is hidden by /"), "{plain}");
    let shown = at("20", tree.root(), &["cdi", "list"]);
    assert_eq!(words(&shown), words(&plain));
    for line in shown.lines() {
        let fits = line.chars().count() <= 20;
        assert!(fits || line.split_whitespace().count() == 1, "{line}");
    }
}
