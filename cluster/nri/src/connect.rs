//! Connects to a runtime: through its socket, with reconnects, or through the descriptor that a runtime passes to a
//! plugin that it launches.

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use onload_agent::{Backoff, LastMessage};
use onload_sys::error;
use onload_sys::error::{Context, Result};
use rustix::fs::{FileType, fstat};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::journal::{Journal, Severity};
use crate::session::{Decider, NriSession, PluginRegistration};

pub const SOCKET: &str = "/var/run/nri/nri.sock";

/// The variable with the number of the descriptor, for a plugin that the runtime launched.
pub const SOCKET_VARIABLE: &str = "NRI_PLUGIN_SOCKET";
/// The variable with the plugin's name, from its file name.
pub const NAME_VARIABLE: &str = "NRI_PLUGIN_NAME";
pub const INDEX_VARIABLE: &str = "NRI_PLUGIN_IDX";

const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait: after a runtime's restart, annotated pods start without devices for this long.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Returns the connection to the runtime that launched this process. The descriptor is copied by pidfd_getfd(2) (Linux
/// 5.6), which fails safely if it is not open.
pub fn connect_launched(variable: &str) -> Result<UnixStream> {
    let number: i32 = variable
        .parse()
        .ok()
        .filter(|number| *number > 2)
        .ok_or_else(|| error!("{SOCKET_VARIABLE}={variable:?} is not a descriptor number"))?;
    copy(number).with_context(|| format!("using descriptor {number} of {SOCKET_VARIABLE}"))
}

fn copy(number: i32) -> Result<UnixStream, Box<dyn Error + Send + Sync>> {
    let itself = pidfd_open(getpid(), PidfdFlags::empty())?;
    let copy = pidfd_getfd(itself, number, PidfdGetfdFlags::empty())?;
    match FileType::from_raw_mode(fstat(&copy)?.st_mode) {
        FileType::Socket => Ok(UnixStream::from(copy)),
        _ => Err("not a socket".into()),
    }
}

/// Serves the runtime that launched this process until it closes the connection. Fails if it closed the connection
/// before registration.
pub fn serve_launched<D: Decider>(
    stream: UnixStream,
    registration: &PluginRegistration,
    decider: &D,
    journal: Journal,
) -> Result<()> {
    let mut session = NriSession::new(stream, registration, decider, journal);
    let ended = session.run();
    if !session.is_synchronized() {
        return Err(ended);
    }
    journal.write(Severity::Info, &format!("{ended:#}"));
    Ok(())
}

/// Serves the runtime at the socket, and connects again whenever the connection ends.
pub fn serve<D: Decider>(
    socket: &Path,
    registration: &PluginRegistration,
    decider: &D,
    journal: Journal,
) -> ! {
    let mut backoff = Backoff::new(FIRST_WAIT, MAX_WAIT);
    let mut last_message = LastMessage::default();
    loop {
        let (text, was_taken) = run_connection(socket, registration, decider, journal);
        if was_taken {
            backoff.reset();
            last_message.clear();
        }
        if last_message.is_new(&text) {
            journal.write(Severity::Warning, &text);
        }
        sleep(backoff.next());
    }
}

/// Runs one connection. Returns why it ended, and whether the plugin was registered for longer than a moment.
fn run_connection<D: Decider>(
    socket: &Path,
    registration: &PluginRegistration,
    decider: &D,
    journal: Journal,
) -> (String, bool) {
    let began = Instant::now();
    let stream = UnixStream::connect(socket).with_context(|| {
        format!(
            "connecting to {socket:?}; is NRI enabled in the container runtime? run \"onload-ctk \
             runtime configure --nri\""
        )
    });
    match stream {
        Ok(stream) => {
            let mut session = NriSession::new(stream, registration, decider, journal);
            let ended = session.run();
            let was_taken = session.is_synchronized() && began.elapsed() > MAX_WAIT;
            (format!("{ended:#}"), was_taken)
        }
        Err(error) => (format!("{error:#}"), false),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_descriptor_of_a_launched_plugin_is_its_connection() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut taken = connect_launched(&ours.as_raw_fd().to_string()).unwrap();
        drop(ours);
        io::Write::write_all(&mut taken, b"x").unwrap();
        let mut byte = [0];
        io::Read::read_exact(&mut &theirs, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn a_variable_that_names_no_socket_is_refused() {
        for text in ["", "x", "-1", "0", "2", "99999999999", "3 "] {
            let refused = connect_launched(text).unwrap_err().to_string();
            assert!(refused.contains("is not a descriptor number"), "{text}: {refused}");
        }
        let file = tempfile::tempfile().unwrap();
        let refused = connect_launched(&file.as_raw_fd().to_string()).unwrap_err();
        assert!(format!("{refused:#}").ends_with("not a socket"));
        let refused = connect_launched("1048500").unwrap_err();
        assert!(refused.to_string().contains("descriptor 1048500"), "{refused}");
    }
}
