//! What commands that take their time are at: shown on a terminal, and nowhere else.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::fuse::{self, SilentOverlay};
use crate::common::hosts::x2;
use crate::common::{Commands, captured, on, run, terminal};

/// The commands that look at a whole host.
const COMMANDS: [&str; 4] = ["discover", "doctor", "status", "topology"];

/// What a command shows on stderr if that is a terminal, while its stdout is none. With an overlay, the command waits for
/// it until a progress line is shown.
fn progress_output(command: &mut Command, mut overlay: Option<SilentOverlay>) -> String {
    let (master, stderr) = terminal(80);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::from(stderr)).spawn().unwrap();
    // Closes the terminal in this process, so that the output ends with the child.
    command.stderr(Stdio::null());
    let (mut master, mut text, mut buffer) = (File::from(master), Vec::new(), [0; 4096]);
    // Linux reports EIO at the end.
    while let Ok(length @ 1..) = master.read(&mut buffer) {
        text.extend(&buffer[..length]);
        drop(overlay.take_if(|_| String::from_utf8_lossy(&text).contains("reading this host")));
    }
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
fn a_terminal_shows_what_takes_long_and_nothing_of_it_stays() {
    if !fuse::can_mount() {
        return;
    }
    for color in ["always", "never"] {
        for name in COMMANDS {
            let tree = x2();
            let directory = tempfile::tempdir().unwrap();
            let overlay = SilentOverlay::mount_at(directory, &tree.path("/sys/class/net"));
            overlay.fall_silent();
            let mut command = on(tree.root(), &["--color", color, name]);
            let text = progress_output(&mut command, Some(overlay));
            assert!(text.contains("reading this host"), "{name}: {text:?}");
            for line in left(&text) {
                assert!(
                    !line.contains("looking at") && !line.contains("checking"),
                    "{name}: {text:?}"
                );
            }
            for check in onload_report::doctor::list_check_names() {
                let is_named = text.contains(&format!("checking {check}"));
                assert_eq!(is_named, name == "doctor", "{name} {check}: {text:?}");
            }
        }
    }
}

#[test]
fn messages_on_a_terminal_are_those_in_a_pipe() {
    for name in COMMANDS {
        let text = progress_output(&mut on(&captured(), &[name]), None);
        let piped = run(&mut on(&captured(), &[name]));
        assert_eq!(left(&text), piped.stderr.lines().collect::<Vec<_>>(), "{name}: {text:?}");
    }
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
            let text = progress_output(&mut on(&captured(), &[option, name]), None);
            let is_said = text.contains("reading this host");
            assert!(!is_said, "{name} {option}: {text:?}");
        }
    }
}

#[test]
fn host_apply_prints_what_it_did() {
    if !crate::common::can_have_namespaces() {
        return;
    }
    let wanted = || {
        let tree = x2();
        tree.config("[host]\nhugepages = { 2Mi = { 0 = 128 } }\n");
        tree
    };
    let step = "hugepages 2Mi on node 0: pages: 64 -> 128";
    let text = progress_output(&mut crate::common::apply_below(&wanted()), None);
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
    let text = progress_output(&mut crate::common::apply_below(&tree), None);
    assert_eq!(left(&text), ["nothing to change on this host"], "{text:?}");
}
