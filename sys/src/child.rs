//! Runs work that may block forever in a child process. A user space file system may never answer, and not even SIGKILL
//! ends the wait (`request_wait_answer` in fs/fuse/dev.c; hard NFS mounts). A process with such a thread cannot exit.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, geteuid, kill_process, set_parent_process_death_signal, waitpid,
};
use rustix::time::{ClockId, clock_gettime};

use crate::processes::{is_zombie, start_time};

/// Length of a process name in the kernel, in bytes.
pub const MAX_NAME: usize = 15;
/// Time limit for a child to exit after it has closed its pipe.
const EXIT_TIMEOUT: Duration = Duration::from_millis(50);
/// The unit of start times in /proc (`USER_HZ`).
const MS_PER_TICK: u64 = 10;

/// Runs `work` in a child process and returns its output up to the deadline, at most `max` bytes. A child that does not
/// end in time is killed; if it cannot be, it is left behind, and [`list_older`] finds it by its name.
///
/// The child keeps only the pipe for its answer, /dev/null as its other standard files, and `kept`.
pub fn run_in_child(
    name: &str,
    kept: BorrowedFd<'_>,
    max: usize,
    deadline: Instant,
    work: impl FnOnce(&mut File),
) -> io::Result<Vec<u8>> {
    let name = CString::new(name)?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let Some(child) = fork()? else {
        let _exit = ExitGuard;
        let descriptors = [kept.as_raw_fd(), writer.as_raw_fd()];
        if prepare_child(&name, &null, &descriptors).is_ok() {
            work(&mut File::from(writer));
        }
        return Ok(Vec::new());
    };
    drop(writer);
    let answer = read_until(reader, max, deadline);
    let _ = kill_process(child, Signal::KILL);
    let exit_deadline = Instant::now() + EXIT_TIMEOUT;
    while matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
        && Instant::now() < exit_deadline
    {
        sleep(Duration::from_micros(100));
    }
    answer
}

fn prepare_child(name: &CString, null: &OwnedFd, kept: &[RawFd]) -> rustix::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::thread::set_name(name)?;
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    close_others(kept)
}

/// Ends the child without running the parent's exit handlers, even if the work panics.
struct ExitGuard;

#[expect(unsafe_code, reason = "no library in the tree has _exit(2)")]
impl Drop for ExitGuard {
    fn drop(&mut self) {
        // SAFETY: the call ends the process and accesses no memory.
        unsafe { libc::_exit(0) }
    }
}

/// Returns `None` in the child.
#[expect(unsafe_code, reason = "no library in the tree has fork(2)")]
fn fork() -> rustix::io::Result<Option<Pid>> {
    // SAFETY: libc makes its allocator usable in the child. The child uses no other lock that another thread of the parent
    // may hold: it writes to no standard stream and changes no environment. If it did, the parent would kill it at the deadline.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::AGAIN)),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Closes the parent's descriptors, such as locks and network namespaces, which a child that is left behind would keep
/// open.
#[expect(unsafe_code, reason = "descriptors that belong to other parts of the program")]
fn close_others(kept: &[RawFd]) -> rustix::io::Result<()> {
    let entries = fs::read_dir("/proc/self/fd").map_err(|_| Errno::NOENT)?;
    let descriptors: Vec<RawFd> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2 && !kept.contains(fd))
        .collect();
    for descriptor in descriptors {
        // SAFETY: the child never returns to the code that owns them: `ExitGuard` ends it.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

fn read_until(reader: OwnedFd, max: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut reader = File::from(reader);
    let (mut answer, mut part) = (Vec::new(), vec![0; 64 * 1024]);
    while answer.len() < max {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).map_err(io::Error::other)?;
        let mut waiting = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)];
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => break,
            Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match reader.read(&mut part)? {
            0 => break,
            length => answer.extend(part.iter().take(length)),
        }
    }
    answer.truncate(max);
    Ok(answer)
}

/// Lists the names of this user's processes that start with `prefix` and are at least `min_age` old. Processes of other
/// PID namespaces are left out, because a root container can give its processes any name.
pub fn list_older(prefix: &str, min_age: Duration) -> io::Result<Vec<String>> {
    let own_namespace = fs::read_link("/proc/self/ns/pid")?;
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0));
    let mut names = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        // `self` and `thread-self` are links.
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let directory = entry.path();
        let Ok(name) = fs::read_to_string(directory.join("comm")) else {
            continue;
        };
        let name = name.trim_end();
        if !is_process
            || !name.starts_with(prefix)
            || fs::metadata(&directory).map(|data| data.uid()).ok() != Some(geteuid().as_raw())
            || fs::read_link(directory.join("ns/pid")).ok().as_ref() != Some(&own_namespace)
        {
            continue;
        }
        let stat = fs::read(directory.join("stat")).unwrap_or_default();
        let started = start_time(&stat)
            .filter(|_| !is_zombie(&stat))
            .map(|ticks| Duration::from_millis(ticks.saturating_mul(MS_PER_TICK)));
        if started.is_some_and(|started| now.saturating_sub(started) >= min_age) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn run(name: &str, max: usize, limit: Duration, work: impl FnOnce(&mut File)) -> Vec<u8> {
        let root = File::open("/").unwrap();
        run_in_child(name, root.as_fd(), max, Instant::now() + limit, work).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_child_answers_within_its_bounds() {
        let answer_yes = |answer: &mut File| answer.write_all(b"yes, and more").unwrap();
        assert_eq!(run("octk-test", 3, LONG, answer_yes), b"yes");
        assert_eq!(run("octk-test", 300, LONG, answer_yes), b"yes, and more");
        assert_eq!(run("octk-test", 300, LONG, |_| panic!("on purpose")), b"");
        let early = Duration::from_millis(50);
        let part = run("octk-test", 300, early, |answer| {
            answer.write_all(b"so far").unwrap();
            sleep(LONG);
        });
        assert_eq!(part, b"so far");
    }

    #[test]
    fn a_child_keeps_nothing_of_its_parent_s_open() {
        let lock = tempfile::tempfile().unwrap();
        let listed = run("octk-test", 4096, LONG, |answer| {
            let text: Vec<_> = (0..200)
                .filter_map(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok())
                .map(|target| target.display().to_string())
                .collect();
            answer.write_all(text.join("\n").as_bytes()).unwrap();
        });
        drop(lock);
        let listed = String::from_utf8(listed).unwrap();
        let mut lines: Vec<&str> = listed.lines().collect();
        lines.retain(|line| !line.starts_with("pipe:["));
        assert_eq!(lines, ["/dev/null", "/dev/null", "/dev/null", "/"], "{listed}");
        assert_eq!(listed.lines().count(), 5);
    }

    #[test]
    fn a_child_is_found_by_its_name_until_it_has_ended() {
        let found = run("octk-test-find", 64, LONG, |answer| {
            let young = list_older("octk-test-f", LONG).unwrap();
            let all = list_older("octk-test-f", Duration::ZERO).unwrap();
            write!(answer, "{young:?} {all:?}").unwrap();
        });
        assert_eq!(String::from_utf8(found).unwrap(), "[] [\"octk-test-find\"]");
        assert_eq!(list_older("octk-test-f", Duration::ZERO).unwrap(), [""; 0]);
    }
}
