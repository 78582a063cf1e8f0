//! The start and the exit of this crate's programs.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use onload_sys::text::to_one_line;
use rustix::fs::{Mode, OFlags};
use rustix::io::fcntl_getfd;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

pub(crate) const SUCCESS: i32 = 0;
/// The container must not start.
pub(crate) const FAILURE: i32 = 1;
/// The command line is invalid.
pub(crate) const USAGE: i32 = 2;

/// Prepares the process: no core dump that contains the container's configuration, and no
/// descriptor of this program in place of a standard one.
///
/// PR_SET_DUMPABLE belongs to one program, so the runtime that the wrapper executes starts with its
/// own (fs/exec.c, `begin_new_exec`). RLIMIT_CORE would be inherited by the runtime and the
/// container.
pub fn harden() {
    // If it fails, a crash leaves a dump. Nothing else depends on it.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    fill_standard_descriptors();
}

/// Opens /dev/null in place of a closed standard descriptor. Without this, the next file that is
/// opened would get that number, and messages would be written into the file. The descriptor is
/// closed on exec.
fn fill_standard_descriptors() {
    // Borrowing them by number is fine even if they are closed, since they are only tested.
    let standard = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    for descriptor in standard {
        if fcntl_getfd(descriptor).is_err() {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            if let Ok(null) = rustix::fs::open("/dev/null", flags, Mode::empty()) {
                // It has the lowest free number, which is that of the closed descriptor. Keep it open.
                std::mem::forget(null);
            }
        }
    }
}

/// Returns the words of the command line, starting with the program's name. `std::env::args_os` does
/// not return them here: it needs the standard library's own `main`, or glibc.
///
/// # Safety `argv` points to `argc` pointers to NUL-terminated strings that do not change, as for a
/// C program's `main` (C11 §5.1.2.2.1).
#[expect(unsafe_code, reason = "main takes pointers")]
#[must_use]
pub unsafe fn command_line(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(argc).unwrap_or_default();
    (0..count)
        .map(|index| {
            // SAFETY: the index is below `argc`, and the caller promises a string there.
            let word = unsafe { CStr::from_ptr(*argv.add(index)) };
            OsStr::from_bytes(word.to_bytes()).to_owned()
        })
        .collect()
}

/// Writes one line to standard error. A failure cannot be reported anywhere.
pub(crate) fn print_line(line: &str) {
    let line = format!("{}\n", to_one_line(line));
    let _ = io::stderr().write_all(line.as_bytes());
}
