//! The cost of a container start: whole processes, measured in pairs with a static program that
//! does nothing, since only the ratio means the same on two machines.
//!
//! `cargo bench -p onload-hooks --bench start`; the figures are in docs/performance.md.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a measurement"
)]

use onload_hooks::config::scan::{self, Places};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 1000;

fn main() {
    let hook = PathBuf::from(env!("CARGO_BIN_EXE_onload-hook"));
    let nothing = hook.with_file_name("examples").join("nothing");
    let state = br#"{"ociVersion":"1.0.2","id":"c","status":"creating","pid":1,"bundle":"/b","annotations":{"org.example":"x"}}"#;
    if nothing.exists() {
        hook_report(&nothing, &hook, state);
    } else {
        println!(
            "skipped: no {nothing:?}; cargo build --release -p onload-hooks --example nothing"
        );
    }
    scan_report();
}

fn hook_report(nothing: &Path, hook: &Path, state: &[u8]) {
    let mut pairs = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        pairs.0.push(time(nothing, &["createRuntime"], state));
        pairs.1.push(time(hook, &["createRuntime"], state));
    }
    let (base, own) = (median(pairs.0), median(pairs.1));
    let ratio = own.as_secs_f64() / base.as_secs_f64();
    println!("hook, nothing asked: {own:?} beside {base:?}, ratio {ratio:.2}");
}

fn time(program: &Path, args: &[&str], input: &[u8]) -> Duration {
    let begin = Instant::now();
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    // A program that does nothing may have exited by now.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait().unwrap();
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A configuration as docker writes it: most of it is the list of system calls.
fn docker_like_config(bytes: usize) -> String {
    let mut filler = String::new();
    while filler.len() < bytes {
        filler.push_str(r#"{"names":["accept","access","adjtimex"],"action":"SCMP_ACT_ALLOW"},"#);
    }
    format!(r#"{{"linux":{{"seccomp":{{"syscalls":[{filler}{{}}]}}}},"annotations":{{}}}}"#)
}

fn scan_report() {
    let config = docker_like_config(1_000_000);
    let begin = Instant::now();
    let rounds = 100;
    for _ in 0..rounds {
        let config = std::hint::black_box(config.as_bytes());
        assert!(!scan::may_ask(config, Places::VariableToo));
    }
    println!("looking through 1 MB: {:?}", begin.elapsed() / rounds);
}
