//! An untrusted Onload profile: only settings of Onload, and no shell syntax.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| onload_host::discover::profile::fuzz(text));
