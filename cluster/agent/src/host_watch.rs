//! Surveys the host repeatedly in a separate thread, since reading thousands of files would delay answers to kubelet or
//! Nomad.

use std::io;
use std::thread;
use std::time::Duration;

use onload_host::watch::Watcher;

/// Waits for changes between two surveys. The watcher is created again after a failure.
pub struct HostWatch {
    watcher: Option<Watcher>,
    /// Whether `on_failure` was called and no change has been reported since.
    is_failing: bool,
    on_failure: fn(&io::Error),
}

impl HostWatch {
    /// Creates the watcher, unless there is one. A survey calls this first, so that changes during the survey are not
    /// missed.
    pub fn begin(&mut self, new_watcher: impl FnOnce() -> io::Result<Watcher>) {
        if self.watcher.is_none() {
            match new_watcher() {
                Ok(watcher) => self.watcher = Some(watcher),
                Err(error) => self.log_failure(&error),
            }
        }
    }

    /// Discards the watcher, so that the next call of [`HostWatch::begin`] creates a new one.
    pub fn discard(&mut self) {
        self.watcher = None;
    }

    /// Waits for a change, or sleeps if changes cannot be watched.
    fn wait(&mut self, pause: Duration) {
        if let Some(watcher) = &mut self.watcher {
            match watcher.wait() {
                Ok(()) => {
                    self.is_failing = false;
                    return;
                }
                Err(error) => {
                    self.discard();
                    self.log_failure(&error);
                }
            }
        }
        thread::sleep(pause);
    }

    fn log_failure(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            (self.on_failure)(error);
        }
    }
}

/// Starts the thread. `survey` returns how long to sleep if changes cannot be watched, or `None` to end the thread.
/// `on_failure` is called with the reason why they cannot be watched, once until a change is reported again.
pub fn start(
    mut survey: impl FnMut(&mut HostWatch) -> Option<Duration> + Send + 'static,
    on_failure: fn(&io::Error),
) -> io::Result<()> {
    thread::Builder::new().name("surveyor".to_owned()).spawn(move || {
        let mut watch = HostWatch { watcher: None, is_failing: false, on_failure };
        while let Some(pause) = survey(&mut watch) {
            watch.wait(pause);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use onload_host::watch::{Damping, WatchSources};

    use super::*;

    thread_local! {
        static REPORTED: Cell<usize> = const { Cell::new(0) };
    }

    fn watcher() -> io::Result<Watcher> {
        let now = Damping { quiet: Duration::ZERO, longest: Duration::ZERO };
        Watcher::new(WatchSources {
            directories: Vec::new(),
            spec_dirs: Vec::new(),
            spec_index: Default::default(),
            kernel: false,
            interval: Duration::ZERO,
            damping: now,
        })
    }

    #[test]
    fn a_watcher_is_kept_until_it_is_discarded_and_a_failure_is_told_once_until_one_works() {
        let mut watch = HostWatch {
            watcher: None,
            is_failing: false,
            on_failure: |_| REPORTED.set(REPORTED.get() + 1),
        };
        let fails = || Err(io::Error::other("no"));
        for count in 1..=2 {
            watch.begin(fails);
            watch.begin(fails);
            assert_eq!(REPORTED.get(), count);
            watch.begin(watcher);
            watch.begin(|| unreachable!("there is one"));
            watch.wait(Duration::ZERO);
            watch.discard();
        }
    }
}
