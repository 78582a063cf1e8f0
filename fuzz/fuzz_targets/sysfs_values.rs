//! Untrusted attributes, names and kernel tables, given to each of their parsers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    onload_host::discover::fuzz(text);
    onload_host::boot::fuzz(text);
});
