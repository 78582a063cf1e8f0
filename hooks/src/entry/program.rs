//! What the binaries of this crate do to themselves before anything else, and how they end.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use onload_core::text::one_line;
use rustix::fs::{Mode, OFlags};
use rustix::io::fcntl_getfd;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Done or nothing to do.
pub(crate) const SUCCESS: i32 = 0;
/// The container must not start.
pub(crate) const FAILURE: i32 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: i32 = 2;

/// Prepares the process: no core dump with the container's configuration in it, and no descriptor
/// of ours where somebody expects the standard ones.
///
/// PR_SET_DUMPABLE is per program, so the runtime that the wrapper becomes starts with its own
/// (fs/exec.c, `begin_new_exec`); RLIMIT_CORE would be handed on to it and to the container.
pub fn harden() {
    // Without it a crash would leave a dump, no more; nothing depends on its success.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    fill_standard_descriptors();
}

/// Opens /dev/null in the place of a closed standard descriptor, or the next file that is opened
/// would take the place, and a message would be written into it. Closed again on exec.
fn fill_standard_descriptors() {
    for number in 0..3 {
        // SAFETY is the library's: `stdio` borrows by number and the call only asks.
        let closed = match number {
            0 => fcntl_getfd(rustix::stdio::stdin()),
            1 => fcntl_getfd(rustix::stdio::stdout()),
            _ => fcntl_getfd(rustix::stdio::stderr()),
        }
        .is_err();
        if closed {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            if let Ok(null) = rustix::fs::open("/dev/null", flags, Mode::empty()) {
                // The lowest free number is the one that was closed; it is kept open.
                std::mem::forget(null);
            }
        }
    }
}

/// The words of the command line, the program's own name first. They are taken from `main`: the standard
/// library learns them elsewhere only where it brings `main` itself, or the C library is glibc.
///
/// # Safety
/// `argv` points to `argc` pointers to texts that end with NUL and stay as they are, as those of a C
/// program's `main` do (C11 §5.1.2.2.1).
#[expect(unsafe_code, reason = "main takes pointers")]
#[must_use]
pub unsafe fn arguments(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(argc).unwrap_or_default();
    let word = |index: usize| {
        // SAFETY: the index is below `argc`, and the caller promises a text there.
        let word = unsafe { CStr::from_ptr(*argv.add(index)) };
        OsStr::from_bytes(word.to_bytes()).to_owned()
    };
    (0..count).map(word).collect()
}

/// Says one line on standard error; nobody is told when that fails.
pub(crate) fn say(line: &str) {
    let line = format!("{}\n", one_line(line));
    let _ = io::stderr().write_all(line.as_bytes());
}
