//! Untrusted words of a pool's selectors: each is refused, or read again as it is written, and a pattern
//! matches the names that a slow reader of patterns says.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| onload_core::select::fuzz(text));
