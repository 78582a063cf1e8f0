//! A static program that does nothing: what starting any process costs on this machine.
#![no_main]

/// The C runtime calls it once.
#[expect(unsafe_code, reason = "an unmangled name could clash with another one")]
// SAFETY: the standard library's `main` is left out by `no_main`, so no other function is so named.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    0
}
