//! What commands that take their time are at: shown on a terminal, and nowhere else.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::hosts::x2;
use crate::common::{Commands, captured, on, run, terminal};

/// The commands that look at a whole host.
const COMMANDS: [&str; 4] = ["discover", "doctor", "status", "topology"];

/// What a command says on stderr if that is a terminal of that width, while its stdout is none.
fn progress_output(columns: u16, command: &mut Command) -> String {
    let (master, stderr) = terminal(columns);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::from(stderr)).spawn().unwrap();
    // Ours of the terminal goes with it, so that the end of the child is the end of the text.
    command.stderr(Stdio::null());
    let mut text = Vec::new();
    // Linux gives EIO for the end.
    let _ = File::from(master).read_to_end(&mut text);
    child.wait().unwrap();
    String::from_utf8(text).unwrap()
}

/// What stands on a terminal at the end: each `\r` goes back to the beginning of the line.
fn left(text: &str) -> Vec<String> {
    let text = anstream::adapter::strip_str(text).to_string();
    let lines = text.replace("\r\n", "\n");
    let lines = lines.split('\n').map(|line| {
        let mut shown: Vec<char> = Vec::new();
        for part in line.split('\r') {
            for (at, c) in part.chars().enumerate() {
                match shown.get_mut(at) {
                    Some(old) => *old = c,
                    None => shown.push(c),
                }
            }
        }
        shown.into_iter().collect::<String>().trim_end().to_owned()
    });
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn a_terminal_shows_what_is_being_done_and_nothing_of_it_stays() {
    for color in ["always", "never"] {
        for name in COMMANDS {
            let text = progress_output(80, &mut on(&captured(), &["--color", color, name]));
            let is_said = text.contains("looking at this host");
            assert!(is_said, "{name}: {text:?}");
            let piped = run(&mut on(&captured(), &[name]));
            let messages: Vec<&str> = piped.stderr.lines().collect();
            assert_eq!(left(&text), messages, "{name} {color}: {text:?}");
        }
    }
}

#[test]
fn doctor_names_each_check() {
    let text = progress_output(80, &mut on(&captured(), &["doctor"]));
    for check in onload_report::doctor::list_check_names() {
        let line = format!("checking {check}");
        assert!(text.contains(&line), "{check}: {text:?}");
    }
}

#[test]
fn a_line_is_shorter_than_the_terminal_is_wide() {
    let text = progress_output(12, &mut on(&captured(), &["--color", "never", "doctor"]));
    assert!(text.contains("looking at "), "{text:?}");
    let parts = text.split(['\r', '\n']).map(|part| part.chars().count());
    assert_eq!(parts.max(), Some(11), "{text:?}");
}

#[test]
fn a_pipe_gets_nothing_of_it() {
    for name in COMMANDS {
        let run = run(&mut on(&captured(), &[name]));
        for part in ["looking at", "checking", "\r", "\u{1b}"] {
            assert!(!run.stderr.contains(part), "{name}: {}", run.stderr);
            assert!(!run.stdout.contains(part), "{name}: {}", run.stdout);
        }
    }
}

#[test]
fn who_wants_it_quiet_or_told_in_full_gets_nothing_of_it_either() {
    for option in ["--quiet", "--verbose"] {
        for name in COMMANDS {
            let text = progress_output(80, &mut on(&captured(), &[option, name]));
            let is_said = text.contains("looking at this host");
            assert!(!is_said, "{name} {option}: {text:?}");
        }
    }
}

#[test]
fn host_apply_shows_each_step_on_a_terminal_and_only_what_it_did_in_a_pipe() {
    if !crate::common::can_have_namespaces() {
        return;
    }
    let wanted = || {
        let tree = x2();
        tree.config("[host]\nhugepages = { 2Mi = { 0 = 128 } }\n");
        tree
    };
    let step = "hugepages 2Mi on node 0: pages: 64 -> 128";
    let text = progress_output(80, &mut crate::common::apply_below(&wanted()));
    let compares = text.find("\rcomparing this host with config.toml");
    let begins = text.find(&format!("\r{step}"));
    assert!(compares.is_some() && compares < begins, "{text:?}");
    assert_eq!(text.matches(step).count(), 2, "{text:?}");
    assert_eq!(left(&text), [step], "{text:?}");

    let piped = run(&mut crate::common::apply_below(&wanted())).done();
    assert_eq!((piped.stdout, piped.stderr), (String::new(), format!("{step}\n")));
}

#[test]
fn host_apply_that_has_nothing_to_do_leaves_only_that() {
    if !crate::common::can_have_namespaces() {
        return;
    }
    let tree = x2();
    tree.config("[host]\nhugepages = { 2Mi = { 0 = 64 } }\n");
    let text = progress_output(80, &mut crate::common::apply_below(&tree));
    assert!(text.contains("comparing this host with config.toml"), "{text:?}");
    assert_eq!(left(&text), ["nothing to change on this host"], "{text:?}");
}
