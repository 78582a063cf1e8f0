//! The engine's client as a process: what it says, how long it may take, and that it ends when the user says so.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::commands::interrupt::Interrupt;
use crate::commands::process::{last_line, run_with_input, spawn_reader};

/// An image of a hundred megabytes is written to a slow disk.
const LOADING: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(50);

fn to_command(line: &[String]) -> Command {
    let mut command = Command::new(line.first().map_or("", String::as_str));
    command.args(line.iter().skip(1)).process_group(0);
    command
}

/// Runs a client to its end with `input` on stdin, and returns what it printed.
pub(super) fn run(line: &[String], input: Vec<u8>, stop: &Interrupt) -> Result<String> {
    run_with_input(&mut to_command(line), input, Instant::now() + LOADING, stop)
}

/// A container in the foreground. It ends when its stdin does, and with it this program.
pub(super) struct ForegroundContainer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<io::Result<String>>,
    stderr: Receiver<String>,
}

impl ForegroundContainer {
    pub(super) fn start(line: &[String]) -> Result<ForegroundContainer> {
        let mut command = to_command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("running {}", line.join(" ")))?;
        let stdout = child.stdout.take();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
            for line in lines {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(ForegroundContainer {
            stdin: child.stdin.take(),
            stderr: spawn_reader(child.stderr.take()),
            child,
            lines,
        })
    }

    /// The output before that line. An error is what the engine or the probe said last.
    pub(super) fn read_until(
        &self,
        end: &str,
        timeout: Duration,
        stop: &Interrupt,
    ) -> Result<Vec<String>> {
        let deadline = Instant::now() + timeout;
        let mut lines = Vec::new();
        loop {
            stop.refuse()?;
            match self.lines.recv_timeout(TICK) {
                Ok(Ok(line)) if line.trim_end() == end => return Ok(lines),
                Ok(Ok(line)) => lines.push(line),
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                    let stderr_timeout = Duration::from_secs(5);
                    let stderr = self.stderr.recv_timeout(stderr_timeout).unwrap_or_default();
                    bail!("{}", last_line(&stderr, "it ended without an answer"));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    bail!("it did not answer within {} s", timeout.as_secs());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for its end, so that its runtime returns its devices, and kills it after the time limit.
    pub(super) fn end(mut self, timeout: Duration) {
        drop(self.stdin.take());
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(TICK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    const SHORT: Duration = Duration::from_secs(10);

    #[test]
    fn what_a_client_prints_is_given_and_its_last_word_is_the_error() {
        let stop = Interrupt::default();
        let lines = run(&sh("cat"), b"in".to_vec(), &stop).unwrap();
        assert_eq!(lines, "in");
        let error = run(&sh("echo one >&2; echo two >&2; exit 3"), Vec::new(), &stop).unwrap_err();
        assert!(error.to_string().ends_with(": two"), "{error}");
        let error = run(&["/nonexistent/docker".to_owned()], Vec::new(), &stop).unwrap_err();
        assert!(format!("{error:#}").starts_with("running /nonexistent/docker: "), "{error:#}");
    }

    #[test]
    fn the_reason_is_found_before_what_docker_says_after_it() {
        for (stderr, reason) in [
            (
                "docker: Error response from daemon: no.\nSee 'docker run --help'.\n",
                "docker: Error response from daemon: no.",
            ),
            ("docker: no.\n\nRun 'docker run --help' for more information\n", "docker: no."),
            (
                "docker: hook failed: stderr: onload-hook: held\n: unknown.\n",
                "docker: hook failed: stderr: onload-hook: held",
            ),
            ("", "exit status: 1"),
        ] {
            assert_eq!(last_line(stderr, "exit status: 1"), reason);
        }
    }

    #[test]
    fn an_interrupt_ends_a_client_that_would_go_on() {
        let stop = Interrupt::default();
        stop.raise();
        let began = Instant::now();
        let error = run(&sh("sleep 60"), Vec::new(), &stop).unwrap_err();
        assert!(error.to_string().starts_with("interrupted"), "{error}");
        assert!(began.elapsed() < SHORT);
    }

    #[test]
    fn a_container_speaks_until_it_is_ready_and_ends_with_its_input() {
        let stop = Interrupt::default();
        let container = ForegroundContainer::start(&sh("echo seen; echo ready; cat")).unwrap();
        let lines = container.read_until("ready", SHORT, &stop).unwrap();
        assert_eq!(lines, ["seen"]);
        let began = Instant::now();
        container.end(SHORT);
        assert!(began.elapsed() < SHORT);
    }

    #[test]
    fn a_container_that_never_gets_ready_says_why() {
        let stop = Interrupt::default();
        let container =
            ForegroundContainer::start(&sh("echo no such device >&2; exit 125")).unwrap();
        let error = container.read_until("ready", SHORT, &stop).unwrap_err();
        assert_eq!(error.to_string(), "no such device");
        container.end(SHORT);
        let container = ForegroundContainer::start(&sh("sleep 60")).unwrap();
        let within = Duration::from_millis(100);
        let error = container.read_until("ready", within, &stop).unwrap_err();
        assert!(error.to_string().starts_with("it did not answer"), "{error}");
        container.end(within);
    }
}
