//! The hook of OCI runtimes: see [`onload_hooks::entry::hook`].
//!
//! It has a C entry point because the standard library's start-up installs signal handlers, which costs more than
//! everything this program does when a container requests nothing.
#![no_main]

use std::ffi::{c_char, c_int};

use onload_hooks::entry::allocator::BumpAllocator;
use onload_hooks::entry::{hook, program};

#[global_allocator]
static MEMORY: BumpAllocator = BumpAllocator::new();

#[expect(unsafe_code, reason = "an unmangled name could clash with another one")]
// SAFETY: `no_main` leaves out the standard library's `main`, so no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    program::harden();
    // SAFETY: these are the arguments of the program's own `main`.
    let args = unsafe { program::command_line(argc, argv) };
    hook::main(&args)
}
