//! Looks that may never end.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use onload_host::host::Host;

pub(super) const PATIENCE: Duration = Duration::from_secs(1);
const STACK: usize = 256 * 1024;

/// Looks at something that may never answer, such as a file system of a container's own (FUSE): none where it does not
/// in time. The thread that waits ends with this program.
pub(super) fn patiently<T: Send + 'static>(
    host: &Host,
    patience: Duration,
    look: impl FnOnce(&Host) -> T + Send + 'static,
) -> Option<T> {
    // Files that stand for a host answer.
    if !host.is_running() {
        return Some(look(host));
    }
    let host = Host::open(Path::new("/")).ok()?;
    let (to, from) = mpsc::channel();
    let thread = thread::Builder::new().stack_size(STACK);
    let looks = thread.spawn(move || {
        // Nobody waits any more where this fails.
        let _ = to.send(look(&host));
    });
    looks.ok()?;
    from.recv_timeout(patience).ok()
}
