//! Resource limits of the container's init: RLIMIT_MEMLOCK raised, never lowered.

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::config::Memlock;

/// Why a limit was not raised.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The runtime named no process.
    #[error(
        "the container's state has no pid, so RLIMIT_MEMLOCK cannot be raised; this stage of a hook has to run when the container's init exists"
    )]
    NoProcess,
    /// The kernel refused, for another reason than a lack of rights.
    #[error("{action} of process {pid}: {error}")]
    Set {
        /// What was done.
        action: &'static str,
        /// The process.
        pid: u32,
        /// Why.
        error: Errno,
    },
}

/// What became of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Raised {
    /// It is at least what was asked for.
    Fully,
    /// The hard limit stayed, for a lack of CAP_SYS_RESOURCE; the soft one is as high as it.
    ToHardLimit(Option<u64>),
    /// Not even that was allowed: the process is not ours.
    NotAtAll,
}

impl Raised {
    /// What to tell people where it is less than what was asked for.
    #[must_use]
    pub fn warning(&self, wanted: Memlock) -> Option<String> {
        match self {
            Raised::Fully => None,
            Raised::ToHardLimit(hard) => Some(format!(
                "RLIMIT_MEMLOCK raised to the hard limit of {} only, not to {wanted}: CAP_SYS_RESOURCE is missing",
                hard.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes")),
            )),
            Raised::NotAtAll => Some(format!(
                "RLIMIT_MEMLOCK not raised to {wanted}: CAP_SYS_RESOURCE is missing"
            )),
        }
    }
}

/// Raises RLIMIT_MEMLOCK of a process to at least `want`, hard and soft (prlimit(2)).
///
/// # Errors
/// [`LimitError`]; a lack of rights is no error, but said in the result.
pub fn raise_memlock(pid: Option<u32>, want: Memlock) -> Result<Raised, LimitError> {
    let number = pid.ok_or(LimitError::NoProcess)?;
    let pid = process(number)?;
    raise(&mut |new| prlimit_memlock(pid, new), want).map_err(|error| LimitError::Set {
        action: "raising RLIMIT_MEMLOCK",
        pid: number,
        error,
    })
}

/// Lowers RLIMIT_NOFILE of a process to at most `most` descriptors, hard and soft.
///
/// # Errors
/// [`LimitError`].
pub fn lower_nofile(pid: Option<u32>, most: u64) -> Result<(), LimitError> {
    let number = pid.ok_or(LimitError::NoProcess)?;
    let pid = process(number)?;
    let lower = || {
        let old = current(pid, "Max open files")?;
        let new = Rlimit {
            current: Some(old.current.map_or(most, |limit| limit.min(most))),
            maximum: Some(old.maximum.map_or(most, |limit| limit.min(most))),
        };
        if new != old {
            prlimit(Some(pid), Resource::Nofile, new)?;
        }
        Ok(())
    };
    lower().map_err(|error| LimitError::Set {
        action: "lowering RLIMIT_NOFILE",
        pid: number,
        error,
    })
}

/// A `Pid` is never 0, which would be this process itself.
fn process(number: u32) -> Result<Pid, LimitError> {
    let number = i32::try_from(number).ok();
    number.and_then(Pid::from_raw).ok_or(LimitError::NoProcess)
}

fn prlimit_memlock(pid: Pid, new: Option<Rlimit>) -> Result<Rlimit, Errno> {
    let Some(new) = new else {
        return current(pid, "Max locked memory");
    };
    prlimit(Some(pid), Resource::Memlock, new)
}

/// prlimit(2) without a new limit is not in reach of the library, and /proc/PID/limits says the
/// same.
fn current(pid: Pid, name: &str) -> Result<Rlimit, Errno> {
    let text = std::fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    parse_limits(&text, name).ok_or(Errno::IO)
}

fn parse_limits(text: &str, name: &str) -> Option<Rlimit> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = line.split_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Rlimit {
        current: limit()?,
        maximum: limit()?,
    })
}

fn raise(
    set: &mut dyn FnMut(Option<Rlimit>) -> Result<Rlimit, Errno>,
    want: Memlock,
) -> Result<Raised, Errno> {
    let old = set(None)?;
    let want = match want {
        Memlock::Unlimited => None,
        Memlock::Bytes(bytes) => Some(bytes),
    };
    let new = Rlimit {
        current: higher(old.current, want),
        maximum: higher(old.maximum, want),
    };
    if new == old {
        return Ok(Raised::Fully);
    }
    match set(Some(new)) {
        Ok(_) => return Ok(Raised::Fully),
        Err(Errno::PERM | Errno::ACCESS) => {}
        Err(error) => return Err(error),
    }
    let hard = old.maximum;
    let soft_only = Rlimit {
        current: hard,
        maximum: hard,
    };
    match set(Some(soft_only)) {
        Ok(_) => Ok(Raised::ToHardLimit(hard)),
        Err(Errno::PERM | Errno::ACCESS) => Ok(Raised::NotAtAll),
        Err(error) => Err(error),
    }
}

/// The higher of two limits; none is no limit at all.
#[must_use]
pub fn higher(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.max(other?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process whose hard limit can only be lowered, or not even that.
    struct Fake {
        limit: Rlimit,
        may_raise_hard: bool,
        is_ours: bool,
    }

    impl Fake {
        fn new(current: Option<u64>, maximum: Option<u64>) -> Self {
            Fake {
                limit: Rlimit { current, maximum },
                may_raise_hard: false,
                is_ours: true,
            }
        }

        fn raise(&mut self, want: Memlock) -> Raised {
            let mut set = |new: Option<Rlimit>| {
                let old = self.limit;
                let Some(new) = new else { return Ok(old) };
                let raises = higher(new.maximum, old.maximum) != old.maximum;
                if !self.is_ours || raises && !self.may_raise_hard {
                    return Err(Errno::PERM);
                }
                self.limit = new;
                Ok(old)
            };
            raise(&mut set, want).unwrap()
        }

        fn limits(&self) -> (Option<u64>, Option<u64>) {
            (self.limit.current, self.limit.maximum)
        }
    }

    #[test]
    fn with_the_right_both_limits_rise() {
        let mut process = Fake::new(Some(8), Some(8));
        process.may_raise_hard = true;
        assert_eq!(process.raise(Memlock::Unlimited), Raised::Fully);
        assert_eq!(process.limits(), (None, None));
    }

    #[test]
    fn without_the_right_the_soft_limit_rises_to_the_hard_one() {
        let mut process = Fake::new(Some(8), Some(64));
        assert_eq!(
            process.raise(Memlock::Unlimited),
            Raised::ToHardLimit(Some(64))
        );
        assert_eq!(process.limits(), (Some(64), Some(64)));
    }

    #[test]
    fn a_process_of_somebody_else_is_left_alone() {
        let mut process = Fake::new(Some(8), Some(64));
        process.is_ours = false;
        assert_eq!(process.raise(Memlock::Bytes(128)), Raised::NotAtAll);
    }

    #[test]
    fn nothing_is_ever_lowered() {
        let mut process = Fake::new(Some(100), None);
        assert_eq!(process.raise(Memlock::Bytes(64)), Raised::Fully);
        assert_eq!(process.limits(), (Some(100), None));
        assert_eq!(process.raise(Memlock::Bytes(128)), Raised::Fully);
        assert_eq!(process.limits(), (Some(128), None));
    }

    #[test]
    fn no_pid_never_means_this_process() {
        assert!(matches!(
            raise_memlock(None, Memlock::Unlimited),
            Err(LimitError::NoProcess)
        ));
        assert!(matches!(
            raise_memlock(Some(0), Memlock::Unlimited),
            Err(LimitError::NoProcess)
        ));
    }

    #[test]
    fn the_kernel_s_table_of_limits_is_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max locked memory         8388608              unlimited            bytes     \n";
        let limit = parse_limits(text, "Max locked memory").unwrap();
        assert_eq!((limit.current, limit.maximum), (Some(8_388_608), None));
        assert!(parse_limits("Max locked memory  x y bytes", "Max locked memory").is_none());
        assert!(parse_limits("", "Max locked memory").is_none());
    }
}
