//! Names of a run's container and image. They contain its PID, so that a later run can tell whether it has ended.

use anyhow::{Context, Result};
use onload_sys::processes::Processes;

const CONTAINER: &str = "onload-ctk-try-";
const IMAGE: &str = "localhost/onload-ctk-probe:";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TrialNames {
    pid: u32,
    /// In clock ticks after boot: another process may get the number.
    start_time: u64,
}

impl TrialNames {
    pub(super) fn for_this_process() -> Result<TrialNames> {
        let pid = std::process::id();
        let process = Processes::default().find(pid)?;
        let start_time = process
            .context("looking for this process: /proc does not show it; mount the host's /proc")?
            .start_time;
        Ok(TrialNames { pid, start_time })
    }

    /// Parses the name of a container or image. `None` for others.
    pub(super) fn read(name: &str) -> Option<TrialNames> {
        let name = name.trim();
        let suffix = name.strip_prefix(CONTAINER).or_else(|| name.strip_prefix(IMAGE))?;
        let (pid, start_time) = suffix.split_once('-')?;
        Some(TrialNames { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
    }

    pub(super) fn container(&self) -> String {
        format!("{CONTAINER}{}-{}", self.pid, self.start_time)
    }

    pub(super) fn image(&self) -> String {
        format!("{IMAGE}{}-{}", self.pid, self.start_time)
    }

    /// A process that cannot be looked at counts as running.
    pub(super) fn has_ended(&self) -> bool {
        match Processes::default().find(self.pid) {
            Ok(Some(now)) => now.start_time != self.start_time,
            Ok(None) => true,
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_those_of_others_are_not() {
        let own = TrialNames::for_this_process().unwrap();
        assert_eq!(TrialNames::read(&own.container()), Some(own.clone()));
        assert_eq!(TrialNames::read(&own.image()), Some(own));
        for name in [
            "",
            "redis",
            "onload-ctk-try-",
            "onload-ctk-try-7",
            "onload-ctk-try-mine-7",
            "my-onload-ctk-try-7-8",
            "localhost/onload-ctk-probe:latest",
            "example.com/localhost/onload-ctk-probe:7-8",
        ] {
            assert_eq!(TrialNames::read(name), None, "{name}");
        }
    }

    #[test]
    fn a_run_has_ended_when_another_process_has_its_number_or_none_has() {
        let own = TrialNames::for_this_process().unwrap();
        assert!(!own.has_ended());
        let start_time = own.start_time + 1;
        assert!(TrialNames { start_time, ..own }.has_ended());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let pid = child.id();
        assert!(TrialNames { pid, ..own }.has_ended());
    }
}
