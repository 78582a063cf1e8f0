//! A watcher that is made anew after it failed.

use std::io;

use super::watcher::Watcher;

#[derive(Debug)]
pub enum Failure {
    New(io::Error),
    Known,
}

#[derive(Debug)]
pub struct Renewed<W = Watcher> {
    watcher: Option<W>,
    is_failing: bool,
}

impl<W> Default for Renewed<W> {
    fn default() -> Self {
        Renewed {
            watcher: None,
            is_failing: false,
        }
    }
}

impl<W> Renewed<W> {
    pub fn make(&mut self, make: impl FnOnce() -> io::Result<W>) -> Result<(), Failure> {
        if self.watcher.is_none() {
            self.watcher = Some(make().map_err(|error| self.failed(error))?);
        }
        Ok(())
    }

    /// None where there is no watcher. After a failure the next one is a new one.
    pub fn wait<T>(
        &mut self,
        wait: impl FnOnce(&mut W) -> io::Result<T>,
    ) -> Result<Option<T>, Failure> {
        let Some(watcher) = &mut self.watcher else {
            return Ok(None);
        };
        match wait(watcher) {
            Ok(told) => {
                self.is_failing = false;
                Ok(Some(told))
            }
            Err(error) => {
                self.discard();
                Err(self.failed(error))
            }
        }
    }

    pub fn discard(&mut self) {
        self.watcher = None;
    }

    fn failed(&mut self, error: io::Error) -> Failure {
        if std::mem::replace(&mut self.is_failing, true) {
            Failure::Known
        } else {
            Failure::New(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails<T>() -> io::Result<T> {
        Err(io::Error::other("no"))
    }

    #[test]
    fn a_watcher_that_failed_is_made_anew() {
        let mut renewed = Renewed::default();
        renewed.make(|| Ok(1)).unwrap();
        renewed.make(|| Ok(2)).unwrap();
        assert_eq!(renewed.wait(|watcher| Ok(*watcher)).unwrap(), Some(1));
        renewed.wait(|_| fails::<u8>()).unwrap_err();
        assert_eq!(renewed.wait(|watcher| Ok(*watcher)).unwrap(), None);
        renewed.make(|| Ok(3)).unwrap();
        assert_eq!(renewed.wait(|watcher| Ok(*watcher)).unwrap(), Some(3));
    }

    #[test]
    fn a_failure_is_new_once_until_changes_are_told_again() {
        let mut renewed = Renewed::default();
        for _ in 0..2 {
            renewed.make(|| Ok(())).unwrap();
            assert!(matches!(
                renewed.wait(|()| fails::<()>()),
                Err(Failure::New(_))
            ));
            renewed.make(|| Ok(())).unwrap();
            assert!(matches!(
                renewed.wait(|()| fails::<()>()),
                Err(Failure::Known)
            ));
            assert!(matches!(renewed.make(fails), Err(Failure::Known)));
            renewed.make(|| Ok(())).unwrap();
            renewed.wait(|()| Ok(())).unwrap();
        }
    }
}
