//! Looks at the host, again and again, in a thread of its own: reading thousands of files would hold up answers to the
//! engine.

use std::io;
use std::thread;
use std::time::Duration;

use onload_host::watch::Watcher;

/// What waits for changes between two looks. It is made anew after it failed.
#[derive(Debug)]
pub struct Watch<W = Watcher> {
    watcher: Option<W>,
    /// One that nobody was told of.
    failure: Option<io::Error>,
    is_failing: bool,
}

impl<W> Default for Watch<W> {
    fn default() -> Self {
        Watch {
            watcher: None,
            failure: None,
            is_failing: false,
        }
    }
}

impl<W> Watch<W> {
    /// Begins to wait, before the look itself, so that what changes meanwhile is not lost.
    pub fn begin(&mut self, make: impl FnOnce() -> io::Result<W>) {
        if self.watcher.is_none() {
            match make() {
                Ok(watcher) => self.watcher = Some(watcher),
                Err(error) => self.failed(error),
            }
        }
    }

    /// The next look begins anew.
    pub fn discard(&mut self) {
        self.watcher = None;
    }

    /// Waits for a change; whether that could be done.
    fn wait<T>(&mut self, wait: impl FnOnce(&mut W) -> io::Result<T>) -> bool {
        let waited = self.watcher.as_mut().map(wait);
        match waited {
            Some(Ok(_)) => self.is_failing = false,
            Some(Err(error)) => {
                self.discard();
                self.failed(error);
            }
            None => {}
        }
        self.watcher.is_some()
    }

    fn failed(&mut self, error: io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            self.failure = Some(error);
        }
    }
}

/// Starts the thread. It ends when `look` gives no time, which is how long to sleep where changes cannot be waited for;
/// `untold` says why they cannot, once.
pub fn start(
    mut look: impl FnMut(&mut Watch) -> Option<Duration> + Send + 'static,
    untold: fn(&io::Error),
) -> io::Result<()> {
    let run = move || {
        let mut watch = Watch::default();
        while let Some(pause) = look(&mut watch) {
            let has_waited = watch.wait(|watcher| watcher.wait(None));
            if let Some(error) = watch.failure.take() {
                untold(&error);
            }
            if !has_waited {
                thread::sleep(pause);
            }
        }
    };
    let thread = thread::Builder::new().name("surveyor".to_owned());
    thread.spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails<T>() -> io::Result<T> {
        Err(io::Error::other("no"))
    }

    #[test]
    fn a_watcher_that_failed_is_made_anew() {
        let mut watch = Watch::default();
        watch.begin(|| Ok(1));
        watch.begin(|| Ok(2));
        let mut seen = 0;
        assert!(watch.wait(|watcher| {
            seen = *watcher;
            Ok(())
        }));
        assert_eq!(seen, 1);
        assert!(!watch.wait(|_| fails::<u8>()));
        assert!(!watch.wait(|_| Ok(())), "there is none");
        watch.begin(|| Ok(3));
        let mut seen = 0;
        assert!(watch.wait(|watcher| {
            seen = *watcher;
            Ok(())
        }));
        assert_eq!(seen, 3);
    }

    #[test]
    fn a_failure_is_new_once_until_changes_are_told_again() {
        let mut watch = Watch::default();
        for _ in 0..2 {
            watch.begin(|| Ok(()));
            assert!(!watch.wait(|()| fails::<()>()));
            assert!(watch.failure.take().is_some());
            watch.begin(|| Ok(()));
            assert!(!watch.wait(|()| fails::<()>()));
            assert!(watch.failure.is_none());
            watch.begin(fails);
            assert!(watch.failure.is_none());
            watch.begin(|| Ok(()));
            assert!(watch.wait(|()| Ok(())));
        }
    }
}
