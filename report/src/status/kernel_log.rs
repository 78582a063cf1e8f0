//! Reads the kernel log for programs that got no Onload stack. The library writes it there through the driver, and so
//! can any program that has the node: it explains, and decides nothing.

use std::io::{ErrorKind, Read};
use std::path::Path;

use onload_host::host::Host;
use serde::{Deserialize, Serialize};

use super::process::ContainerProcess;

const LOG: &str = "/dev/kmsg";
/// Bytes that are read; the kernel keeps 128 KiB to 16 MiB.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of one record at most (`CONSOLE_EXT_LOG_MAX`, and some).
const RECORD: usize = 16 * 1024;
/// Characters of a program's name that its library writes; the kernel keeps 15 of the same.
const NAME: usize = 15;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct StackFailure {
    /// Hundredths of a second since boot.
    time: u64,
    /// Its number in its own pid namespace.
    pid: u32,
    name: String,
    pub(super) error: StackError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum StackError {
    /// The driver's error, `rc` of "Failed to allocate stack (rc=-16)".
    Refused(i32),
    /// No interface was there that it might use.
    NoInterface,
}

impl StackError {
    /// EBUSY: each channel of the interfaces has its stack.
    pub(super) const NO_FREE_STACK: StackError = StackError::Refused(-16);
    /// EINVAL: the EF_ variables are wrong, or no stack was free.
    pub(super) const INVALID: StackError = StackError::Refused(-22);
}

/// A user was refused a stack that EF_NAME names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShareRefusal {
    /// Hundredths of a second since boot.
    time: u64,
    pub(super) stack: String,
    pub(super) owner: u32,
}

impl ShareRefusal {
    pub(super) fn is_since_start(&self, process: &ContainerProcess) -> bool {
        self.time + time_slack(self.time) >= process.start_time
    }
}

/// The log entries of programs that got no stack, latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StackLog {
    pub(super) failures: Vec<StackFailure>,
    pub(super) refusals: Vec<ShareRefusal>,
}

impl StackFailure {
    /// Whether that is a program's, as it runs now. The library writes the name of its file where a link led there, as
    /// `redis-check-rdb` for Debian's `redis-server`.
    pub(super) fn matches_process(&self, process: &ContainerProcess, file: Option<&str>) -> bool {
        let short = |name: &str| name.chars().take(NAME).collect::<String>();
        let mut names = [Some(process.name.as_str()), file].into_iter().flatten();
        Some(self.pid) == process.own_pid
            && self.time + time_slack(self.time) >= process.start_time
            && names.any(|name| short(&self.name) == short(name))
    }
}

/// How much earlier a program's line may seem to be than the program, in hundredths of a second. The log uses the
/// processor's clock (`local_clock` in kernel/printk/printk.c), which NTP does not correct, unlike the clock of process
/// start times: after days the two differ by seconds. Allows 200 ppm and a second.
fn time_slack(time: u64) -> u64 {
    time / 5_000 + 100
}

/// Empty where the log is not there or not ours to read.
pub(super) fn read_log(host: &Host) -> StackLog {
    let Ok(Some(mut file)) = host.file(Path::new(LOG)) else { return StackLog::default() };
    let (mut record, mut log) = (vec![0; RECORD], Vec::new());
    while log.len() < MAX_BYTES {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => log.extend(record.iter().take(length)),
            // The entry was overwritten; the next one still exists.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    let lines = || log.split(|byte| *byte == b'\n');
    StackLog {
        failures: lines().filter_map(parse_failure).collect(),
        refusals: lines().filter_map(parse_refusal).collect(),
    }
}

/// Hundredths of a second since boot, and the text.
fn parse_record(line: &[u8]) -> Option<(u64, &str)> {
    let (head, text) = std::str::from_utf8(line).ok()?.split_once(';')?;
    let microseconds: u64 = head.split(',').nth(2)?.parse().ok()?;
    Some((microseconds / 10_000, text))
}

/// `[onload] User 1000:1000 can't share stack 0(feed) owned by 0:0 share_with=0` (Onload, `efab_thr_table_lookup`).
fn parse_refusal(line: &[u8]) -> Option<ShareRefusal> {
    let (time, text) = parse_record(line)?;
    let (_, text) = text.split_once("can't share stack ")?;
    let (stack, owner) = text.split_once(" owned by ")?;
    let (_, stack) = stack.strip_suffix(')')?.split_once('(')?;
    let owner = owner.split(':').next()?.parse().ok()?;
    Some(ShareRefusal { time, stack: stack.to_owned(), owner })
}

/// `3,1042,93274651,-;[onload] oo:redis[1]: netif_tcp_helper_alloc_u: ERROR: Failed to allocate stack (rc=-16)`
/// (Documentation/ABI/testing/dev-kmsg; Onload, `citp_setup_logging_prefix` and `lib/transport/ip/netif_init.c`).
fn parse_failure(line: &[u8]) -> Option<StackFailure> {
    let (time, text) = parse_record(line)?;
    let (_, text) = text.split_once("oo:")?;
    let (name, text) = text.split_once('[')?;
    let (pid, text) = text.split_once("]: ")?;
    let error = match text.split_once("Failed to allocate stack (rc=") {
        Some((_, rc)) => StackError::Refused(rc.split(')').next()?.parse().ok()?),
        None if text.contains(": ENODEV.") => StackError::NoInterface,
        None => return None,
    };
    Some(StackFailure { time, pid: pid.parse().ok()?, name: name.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_of_a_program_though_the_log_has_another_clock_for_days() {
        let day = 24 * 60 * 60 * 100;
        let is_of = |at, started| {
            let failure = StackFailure {
                time: at,
                pid: 7,
                name: "redis".to_owned(),
                error: StackError::NoInterface,
            };
            let process = ContainerProcess {
                own_pid: Some(7),
                start_time: started,
                name: "redis".to_owned(),
                ..ContainerProcess::default()
            };
            failure.matches_process(&process, None)
        };
        // 8 ppm, as it was measured, and 100 ppm.
        for drift in [30 * day / 125_000, 30 * day / 10_000] {
            assert!(is_of(30 * day, 30 * day + drift));
            assert!(is_of(30 * day, 30 * day - drift));
        }
        // One that was written well before.
        assert!(!is_of(30 * day, 30 * day + 30 * day / 2_000));
        assert!(!is_of(30 * day, 31 * day));
        assert!(!is_of(100, 300));
    }

    #[test]
    fn a_line_of_the_log_names_the_program_that_got_no_stack() {
        let line = |text: &str| parse_failure(format!("3,1042,93274651,-;{text}").as_bytes());
        let found = line(
            "[onload] oo:redis-server[7]: netif_tcp_helper_alloc_u: ERROR: Failed to allocate stack (rc=-16)",
        ).unwrap();
        assert_eq!((found.time, found.pid, found.error), (9327, 7, StackError::Refused(-16)));
        let mut process = ContainerProcess {
            own_pid: Some(7),
            start_time: 9000,
            name: "redis-server".to_owned(),
            ..ContainerProcess::default()
        };
        assert!(found.matches_process(&process, None));
        // Another one that has had its number before.
        process.start_time = 9500;
        assert!(!found.matches_process(&process, None));
        process.start_time = 9000;
        process.name = "main".to_owned();
        assert!(found.matches_process(&process, Some("redis-server")));
        assert!(!found.matches_process(&process, Some("redis-check-rdb")));
        let text = "oo:redis[7]: netif_tcp_helper_alloc_u: ENODEV.\\x0aThis error can occur if:";
        let found = line(text).unwrap();
        assert_eq!(found.error, StackError::NoInterface);
        for other in [
            "oo:redis[7]: Using Onload",
            "oo:redis[x]: Failed to allocate stack (rc=-16)",
            "oo:redis[7]: Failed to allocate stack (rc=many)",
            "Failed to allocate stack (rc=-16)",
        ] {
            assert_eq!(line(other), None, "{other}");
        }
        assert_eq!(parse_failure(b"\xff"), None);
        assert_eq!(parse_failure(b" SUBSYSTEM=x"), None);
    }
}
