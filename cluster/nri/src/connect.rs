//! How the plugin comes to a runtime: by its socket, again and again; or by the descriptor that a runtime
//! hands to a plugin which it launches.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use onload_core::text::Chain;
use rustix::fs::{FileType, fstat};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::journal::{Journal, Severity};
use crate::session::{Decider, Identity, Session, SessionError};

/// Where runtimes listen.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

/// The variable with the number of the descriptor, for a plugin that the runtime launched.
pub const SOCKET_VARIABLE: &str = "NRI_PLUGIN_SOCKET";
/// The plugin's name, as its file says.
pub const NAME_VARIABLE: &str = "NRI_PLUGIN_NAME";
pub const INDEX_VARIABLE: &str = "NRI_PLUGIN_IDX";

/// The first wait before another attempt.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest one: after a runtime has come back, annotated pods start without devices for as long.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The variable holds no number.
    #[error("{SOCKET_VARIABLE}={0:?} is not the number of a descriptor")]
    Number(String),
    /// There is no such descriptor, or it is no socket.
    #[error("taking descriptor {number} of {SOCKET_VARIABLE}")]
    Descriptor { number: i32, source: io::Error },
    #[error(
        "connecting to {path:?}; is NRI on in the container runtime? \"onload-ctk runtime configure --nri\" turns it on"
    )]
    Socket { path: PathBuf, source: io::Error },
}

/// The connection to the runtime that launched this process. The descriptor is copied out of this process
/// itself, and so it is known to be open (pidfd_getfd(2), Linux 5.6).
///
/// # Errors
/// [`ConnectError`].
pub fn launched(variable: &str) -> Result<UnixStream, ConnectError> {
    let number: i32 = variable
        .parse()
        .ok()
        .filter(|number| *number > 2)
        .ok_or_else(|| ConnectError::Number(variable.to_owned()))?;
    let failed = |source: io::Error| ConnectError::Descriptor { number, source };
    let itself = pidfd_open(getpid(), PidfdFlags::empty());
    let copy = itself.and_then(|itself| pidfd_getfd(itself, number, PidfdGetfdFlags::empty()));
    let copy = copy.map_err(|error| failed(error.into()))?;
    let stat = fstat(&copy).map_err(|error| failed(error.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => Ok(UnixStream::from(copy)),
        _ => Err(failed(io::Error::other("not a socket"))),
    }
}

/// Serves the runtime that launched this process, until it closes the connection.
///
/// # Errors
/// [`SessionError`], of a session that ended before the runtime took us.
pub fn serve_launched<D: Decider>(
    stream: UnixStream,
    identity: &Identity,
    decider: &D,
    journal: Journal,
) -> Result<(), SessionError> {
    let mut session = Session::new(stream, identity, decider, journal);
    let ended = session.run();
    if !session.is_synchronized() {
        return Err(ended);
    }
    journal.say(Severity::Info, &Chain(&ended).to_string());
    Ok(())
}

/// Serves whoever listens at the socket, and connects again whenever the connection ends.
pub fn serve<D: Decider>(socket: &Path, identity: &Identity, decider: &D, journal: Journal) -> ! {
    let mut backoff = Backoff::default();
    let mut said = String::new();
    loop {
        let (text, was_taken) = attempt(socket, identity, decider, journal);
        if was_taken {
            backoff = Backoff::default();
            said.clear();
        }
        if text != said {
            journal.say(Severity::Warning, &text);
            said = text;
        }
        sleep(backoff.next(RandomState::new().hash_one(socket)));
    }
}

/// One connection; why it ended, and whether the runtime took us for longer than a moment.
fn attempt<D: Decider>(
    socket: &Path,
    identity: &Identity,
    decider: &D,
    journal: Journal,
) -> (String, bool) {
    let began = Instant::now();
    let stream = UnixStream::connect(socket).map_err(|source| ConnectError::Socket {
        path: socket.to_owned(),
        source,
    });
    match stream {
        Ok(stream) => {
            let mut session = Session::new(stream, identity, decider, journal);
            let ended = session.run();
            let was_taken = session.is_synchronized() && began.elapsed() > LONGEST_WAIT;
            (Chain(&ended).to_string(), was_taken)
        }
        Err(error) => (Chain(&error).to_string(), false),
    }
}

/// The waits between attempts: twice as long each time, and by chance up to half of that shorter, so that
/// the plugins of a node do not come all at once.
#[derive(Clone, Copy, Debug)]
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(FIRST_WAIT)
    }
}

impl Backoff {
    fn next(&mut self, chance: u64) -> Duration {
        let whole = self.0;
        self.0 = (whole * 2).min(LONGEST_WAIT);
        let half = whole / 2;
        let span = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
        half + Duration::from_micros(chance % (span + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn waits_grow_to_a_bound_and_differ_by_chance() {
        let mut longest = Backoff::default();
        let waits: Vec<u128> = (0..8)
            .map(|_| longest.next(u64::MAX / 2).as_millis())
            .collect();
        assert!(
            waits
                .windows(2)
                .all(|pair| pair[1] >= pair[0] || pair[0] >= 500),
            "{waits:?}"
        );
        for chance in [0, 1, 49_999, 50_000, u64::MAX] {
            let first = Backoff::default().next(chance);
            assert!(first >= FIRST_WAIT / 2 && first <= FIRST_WAIT, "{first:?}");
            let mut late = Backoff(LONGEST_WAIT);
            let wait = late.next(chance);
            assert!(wait >= LONGEST_WAIT / 2 && wait <= LONGEST_WAIT, "{wait:?}");
        }
        assert_ne!(Backoff::default().next(1), Backoff::default().next(2));
    }

    #[test]
    fn the_descriptor_of_a_launched_plugin_is_its_connection() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut taken = launched(&ours.as_raw_fd().to_string()).unwrap();
        drop(ours);
        io::Write::write_all(&mut taken, b"x").unwrap();
        let mut byte = [0];
        io::Read::read_exact(&mut &theirs, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn a_variable_that_names_no_socket_is_refused() {
        for text in ["", "x", "-1", "0", "2", "99999999999", "3 "] {
            let refused = launched(text).unwrap_err().to_string();
            assert!(refused.contains("is not the number"), "{text}: {refused}");
        }
        let file = tempfile::tempfile().unwrap();
        let refused = launched(&file.as_raw_fd().to_string()).unwrap_err();
        assert!(Chain(&refused).to_string().ends_with("not a socket"));
        let refused = launched("1048500").unwrap_err();
        assert!(
            refused.to_string().contains("descriptor 1048500"),
            "{refused}"
        );
    }
}
