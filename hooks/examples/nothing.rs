//! A static program that does nothing: the cost of starting any process on this machine.
#![no_main]

/// The C runtime calls it once.
#[expect(unsafe_code, reason = "an unmangled name could clash with another one")]
// SAFETY: `no_main` leaves out the standard library's `main`, so no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    0
}
