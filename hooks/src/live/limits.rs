//! Resource limits of the container's init: RLIMIT_MEMLOCK is raised, never lowered.

use onload_core::config::Memlock;
use onload_sys::error::{Context as _, Error, Result, bail, error};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::record::init::{InitProcess, no_pid_error};

/// Raises RLIMIT_MEMLOCK of the process that a runtime states. The runtime waits for this process, so its init is not
/// younger than this one; a younger process merely has its number.
pub(crate) fn raise_memlock(pid: Option<u32>, limit: Memlock) -> Result<Option<String>> {
    let init = InitProcess::open(pid)?;
    if init.start_time()? > InitProcess::open(Some(std::process::id()))?.start_time()? {
        return Err(not_init_error(init.pid()));
    }
    raise_memlock_of(&init, limit)
}

/// Raises RLIMIT_MEMLOCK to at least `limit`, hard and soft. Missing privileges are a warning.
pub(crate) fn raise_memlock_of(init: &InitProcess, limit: Memlock) -> Result<Option<String>> {
    with_live_process(init, "raising RLIMIT_MEMLOCK", |pid| {
        let old = current_limit(init, "Max locked memory")?;
        raise_limit(old, &mut |new| prlimit(Some(pid), Resource::Memlock, new).map(drop), limit)
    })
}

/// Lowers RLIMIT_NOFILE to at most `max` descriptors, hard and soft.
pub(crate) fn lower_nofile(init: &InitProcess, max: u64) -> Result<()> {
    with_live_process(init, "lowering RLIMIT_NOFILE", |pid| {
        let old = current_limit(init, "Max open files")?;
        let new = Rlimit {
            current: Some(old.current.map_or(max, |limit| limit.min(max))),
            maximum: Some(old.maximum.map_or(max, |limit| limit.min(max))),
        };
        if new != old {
            prlimit(Some(pid), Resource::Nofile, new)?;
        }
        Ok(())
    })
}

/// Sets a limit by prlimit(2), which takes a PID that the kernel may have reused for another process. The descriptor of
/// the init's /proc directory shows before and after the call whether the init exists.
fn with_live_process<T>(
    init: &InitProcess,
    action: &'static str,
    set: impl FnOnce(Pid) -> Result<T, Errno>,
) -> Result<T> {
    let number = init.pid();
    // A `Pid` is never 0, which would mean this process itself.
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(no_pid_error)?;
    if init.start_time().is_err() {
        return Err(not_init_error(number));
    }
    let result = set(pid);
    if init.start_time().is_err() {
        bail!(
            "process {number}, the container's init, ended during {action}, so another process \
             with that number may have received the limit; start the container again"
        );
    }
    result.with_context(|| format!("{action} of process {number}"))
}

/// rustix does not offer prlimit(2) without a new limit; /proc/PID/limits says the same.
fn current_limit(init: &InitProcess, name: &str) -> Result<Rlimit, Errno> {
    let text = init
        .read_file("limits")
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    parse_limits(&String::from_utf8_lossy(&text), name).ok_or(Errno::IO)
}

fn not_init_error(pid: u32) -> Error {
    error!(
        "process {pid} is no longer the container's init, so its limits are not changed; start the \
         container again"
    )
}

fn parse_limits(text: &str, name: &str) -> Option<Rlimit> {
    let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Rlimit { current: limit()?, maximum: limit()? })
}

fn raise_limit(
    old: Rlimit,
    set: &mut dyn FnMut(Rlimit) -> Result<(), Errno>,
    limit: Memlock,
) -> Result<Option<String>, Errno> {
    let bytes = limit.bytes();
    let new =
        Rlimit { current: max_limit(old.current, bytes), maximum: max_limit(old.maximum, bytes) };
    if new == old {
        return Ok(None);
    }
    match set(new) {
        Ok(()) => return Ok(None),
        Err(Errno::PERM | Errno::ACCESS) => {}
        Err(error) => return Err(error),
    }
    // Without CAP_SYS_RESOURCE the hard limit stays, and the soft one can be as high.
    let hard = old.maximum;
    let soft_only = Rlimit { current: hard, maximum: hard };
    match set(soft_only) {
        // A failure without privileges means that the process belongs to another user.
        Ok(()) | Err(Errno::PERM | Errno::ACCESS) => {}
        Err(error) => return Err(error),
    }
    let hard = hard.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes"));
    Ok(Some(format!(
        "RLIMIT_MEMLOCK is at most {hard} and not {limit}: CAP_SYS_RESOURCE is missing"
    )))
}

pub(crate) fn max_limit(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.max(other?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_sys::text::ErrorChain;

    /// A process whose hard limit can only be lowered, or not even that.
    struct Fake {
        limit: Rlimit,
        may_raise_hard: bool,
        is_ours: bool,
    }

    impl Fake {
        fn new(current: Option<u64>, maximum: Option<u64>) -> Self {
            Fake { limit: Rlimit { current, maximum }, may_raise_hard: false, is_ours: true }
        }

        fn raise(&mut self, want: Memlock) -> Option<String> {
            let old = self.limit;
            let mut set = |new: Rlimit| {
                let raises = max_limit(new.maximum, old.maximum) != old.maximum;
                if !self.is_ours || raises && !self.may_raise_hard {
                    return Err(Errno::PERM);
                }
                self.limit = new;
                Ok(())
            };
            raise_limit(old, &mut set, want).unwrap()
        }

        fn limits(&self) -> (Option<u64>, Option<u64>) {
            (self.limit.current, self.limit.maximum)
        }
    }

    #[test]
    fn with_the_right_both_limits_rise() {
        let mut process = Fake::new(Some(8), Some(8));
        process.may_raise_hard = true;
        assert_eq!(process.raise(Memlock::Unlimited), None);
        assert_eq!(process.limits(), (None, None));
    }

    #[test]
    fn without_the_right_the_soft_limit_rises_to_the_hard_one() {
        let mut process = Fake::new(Some(8), Some(64));
        let warning = process.raise(Memlock::Unlimited).unwrap();
        assert_eq!(
            warning,
            "RLIMIT_MEMLOCK is at most 64 bytes and not unlimited: CAP_SYS_RESOURCE is missing"
        );
        assert_eq!(process.limits(), (Some(64), Some(64)));
    }

    #[test]
    fn a_process_of_somebody_else_is_left_alone() {
        let mut process = Fake::new(Some(8), Some(64));
        process.is_ours = false;
        let warning = process.raise(Memlock::Bytes(128)).unwrap();
        assert_eq!(
            warning,
            "RLIMIT_MEMLOCK is at most 64 bytes and not 128: CAP_SYS_RESOURCE is missing"
        );
    }

    #[test]
    fn nothing_is_ever_lowered() {
        let mut process = Fake::new(Some(100), None);
        assert_eq!(process.raise(Memlock::Bytes(64)), None);
        assert_eq!(process.limits(), (Some(100), None));
        assert_eq!(process.raise(Memlock::Bytes(128)), None);
        assert_eq!(process.limits(), (Some(128), None));
    }

    #[test]
    fn no_pid_never_means_this_process() {
        for none in [None, Some(0)] {
            let refused = raise_memlock(none, Memlock::Unlimited).unwrap_err();
            assert_eq!(refused.to_string(), no_pid_error().to_string());
        }
    }

    struct Waiting(std::process::Child);

    impl Waiting {
        fn new() -> Self {
            let mut command = std::process::Command::new("sleep");
            Waiting(command.arg("600").spawn().unwrap())
        }

        fn init(&self) -> InitProcess {
            InitProcess::open(Some(self.0.id())).unwrap()
        }

        fn end(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn nofile(init: &InitProcess) -> Rlimit {
        let text = String::from_utf8(init.read("limits").unwrap()).unwrap();
        parse_limits(&text, "Max open files").unwrap()
    }

    #[test]
    fn the_limits_of_the_process_that_was_opened_are_set() {
        let child = Waiting::new();
        let init = child.init();
        lower_nofile(&init, 17).unwrap();
        let limit = nofile(&init);
        assert_eq!((limit.current, limit.maximum), (Some(17), Some(17)));
    }

    #[test]
    fn a_process_that_is_younger_than_the_hook_is_no_container_s_init() {
        // Start times are counted in hundredths of a second.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let child = Waiting::new();
        let before = nofile(&child.init());
        let refused = raise_memlock(Some(child.0.id()), Memlock::Bytes(0)).unwrap_err();
        assert_eq!(refused.to_string(), not_init_error(child.0.id()).to_string());
        assert_eq!(nofile(&child.init()), before);
    }

    #[test]
    fn a_process_that_ended_before_has_no_limits_to_set() {
        let mut child = Waiting::new();
        let init = child.init();
        child.end();
        let refused = lower_nofile(&init, 17).unwrap_err();
        assert_eq!(refused.to_string(), not_init_error(child.0.id()).to_string());
    }

    #[test]
    fn a_process_that_ends_meanwhile_is_told() {
        let mut child = Waiting::new();
        let init = child.init();
        let result = with_live_process(&init, "setting it", |_| {
            child.end();
            Ok(())
        });
        let line = ErrorChain(&result.unwrap_err()).to_string();
        assert!(line.contains("ended during setting it, so another process"), "{line}");
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
