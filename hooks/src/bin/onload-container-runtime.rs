//! An OCI runtime that gives a container what its annotations ask for and then becomes runc or
//! crun: see [`onload_hooks::entry::wrapper`].
//!
//! Entered from C: the start-up code of the standard library ignores SIGPIPE, and the runtime and
//! the container would inherit that.
#![no_main]

use std::ffi::{c_char, c_int};

use onload_hooks::entry::{program, wrapper};

/// The C runtime calls it once.
#[expect(unsafe_code, reason = "an unmangled name could clash with another one")]
// SAFETY: the standard library's `main` is left out by `no_main`, so no other function is so named.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    program::harden();
    // SAFETY: these are the arguments of the program's own `main`.
    let args = unsafe { program::arguments(argc, argv) };
    wrapper::main(args)
}
