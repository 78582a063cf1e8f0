//! An OCI runtime that gives a container what its annotations ask for and then becomes runc or
//! crun: see [`onload_hooks::entry::wrapper`].
//!
//! Entered from C: the start-up code of the standard library ignores SIGPIPE, and the runtime and
//! the container would inherit that.
#![no_main]

/// The C runtime calls it once; the arguments are read through the standard library.
#[expect(unsafe_code, reason = "an unmangled name could clash with another one")]
// SAFETY: the standard library's `main` is left out by `no_main`, so no other function is so named.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    onload_hooks::entry::program::harden();
    onload_hooks::entry::wrapper::main()
}
