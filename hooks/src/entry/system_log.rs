//! Sends a hook's messages to the system log if its standard error is not shown to anyone.
//!
//! crun's hooks have /dev/null as standard error (containers/crun, pull request 200), and crun
//! reports only the exit status. runc's hooks have a pipe, whose content runc shows only if the
//! hook fails (opencontainers/runc, libcontainer/configs/config.go, `Command.Run`).

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use onload_core::config::LogLevel;
use onload_sys::text::to_one_line;
use rustix::fs::{FileType, fstat, major, minor};

/// The socket of the log daemon, such as journald (syslog(3); systemd-journald.socket(8)).
pub(crate) const SOCKET: &str = "/dev/log";

const NULL: (u32, u32) = (1, 3);

/// The facility "daemon" of syslog(3), shifted left past the severity.
const DAEMON: u8 = 3 << 3;

/// Returns whether the output of a hook to a descriptor is never shown.
pub(crate) fn is_unread(descriptor: impl AsFd, level: LogLevel) -> bool {
    fstat(descriptor).is_ok_and(|stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => (major(stat.st_rdev), minor(stat.st_rdev)) == NULL,
        FileType::Fifo => level != LogLevel::Error,
        _ => false,
    })
}

/// Sends one line to the log daemon at `socket`, without waiting for it: a busy daemon is an error.
pub(crate) fn send(socket: &Path, program: &str, level: LogLevel, line: &str) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    // LOG_ERR and LOG_WARNING of syslog(3).
    let severity = if level == LogLevel::Error { 3 } else { 4 };
    let (priority, pid) = (DAEMON | severity, std::process::id());
    let message = format!("<{priority}>{program}[{pid}]: {}", to_one_line(line));
    sender.send_to(message.as_bytes(), socket).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_null_device_is_never_read_and_a_pipe_only_for_an_error() {
        let socket = UnixDatagram::unbound().unwrap();
        for level in [LogLevel::Error, LogLevel::Warning] {
            assert!(is_unread(File::open("/dev/null").unwrap(), level));
            assert!(!is_unread(File::open("/dev/zero").unwrap(), level));
            assert!(!is_unread(tempfile::tempfile().unwrap(), level));
            assert!(!is_unread(&socket, level));
        }
        let (_reader, writer) = io::pipe().unwrap();
        assert!(is_unread(&writer, LogLevel::Warning));
        assert!(!is_unread(&writer, LogLevel::Error));
    }

    #[test]
    fn a_line_reaches_the_log_as_one_line_with_its_program_and_severity() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("log");
        let log = UnixDatagram::bind(&socket).unwrap();
        send(&socket, "onload-hook", LogLevel::Error, "createRuntime: no\n<0>kernel: forged")
            .unwrap();
        let mut bytes = [0; 256];
        let length = log.recv(&mut bytes).unwrap();
        let pid = std::process::id();
        assert_eq!(
            str::from_utf8(&bytes[..length]).unwrap(),
            format!("<27>onload-hook[{pid}]: createRuntime: no\\n<0>kernel: forged")
        );
    }

    #[test]
    fn a_log_that_is_not_there_or_full_holds_nobody_up() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("log");
        assert!(send(&socket, "onload-hook", LogLevel::Warning, "x").is_err());
        let _never_read = UnixDatagram::bind(&socket).unwrap();
        let full =
            (0..100_000).any(|_| send(&socket, "onload-hook", LogLevel::Warning, "x").is_err());
        assert!(full);
    }
}
