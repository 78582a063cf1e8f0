//! The hook of OCI runtimes: see [`onload_hooks::entry::hook`].
//!
//! Entered from C: the start-up code of the standard library ignores SIGPIPE and installs handlers
//! for other signals, which costs more than all that this program does when nothing is asked.
#![no_main]

use std::ffi::{c_char, c_int};

use onload_hooks::entry::{hook, program};

/// The C runtime calls it once.
#[expect(unsafe_code, reason = "an unmangled name could clash with another one")]
// SAFETY: the standard library's `main` is left out by `no_main`, so no other function is so named.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    program::harden();
    // SAFETY: these are the arguments of the program's own `main`.
    let args = unsafe { program::arguments(argc, argv) };
    hook::main(&args)
}
