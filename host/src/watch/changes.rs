//! What may have changed.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// Paths that are told one by one. Who reads more than that reads everything.
const MOST_FILES: usize = 1024;

/// What may have changed since the last time. Nothing here says how: who is told looks again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Devices came or went, or changed their driver.
    pub devices: bool,
    pub links: bool,
    /// Entries of watched directories. A directory itself stands here if it has come, gone or been replaced.
    pub files: BTreeSet<PathBuf>,
    /// It is time to look at everything again, told or not.
    pub timer: bool,
    pub lost: bool,
    /// Another thread asked for the answer ([`super::Waker::wake`]).
    pub woken: bool,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    pub fn is_everything(&self) -> bool {
        self.timer || self.lost
    }

    pub(super) fn add(&mut self, more: Changes) {
        self.devices |= more.devices;
        self.links |= more.links;
        self.timer |= more.timer;
        self.lost |= more.lost;
        self.woken |= more.woken;
        more.files.into_iter().for_each(|file| self.add_file(file));
    }

    pub(super) fn add_file(&mut self, path: PathBuf) {
        if self.files.len() < MOST_FILES {
            self.files.insert(path);
        } else {
            self.lost = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_are_told_mean_everything() {
        let mut changes = Changes::default();
        for n in 0..MOST_FILES {
            changes.add_file(format!("/d/{n}").into());
        }
        assert!(!changes.is_everything() && !changes.is_empty());
        changes.add_file("/d/more".into());
        assert!(changes.is_everything());
        assert_eq!(changes.files.len(), MOST_FILES);
    }
}
