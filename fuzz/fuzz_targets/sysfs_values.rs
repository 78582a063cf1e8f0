//! Untrusted attributes, names, messages and tables of the kernel, given to each of their parsers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    onload_host::discover::fuzz(text);
    onload_host::boot::fuzz(text);
    onload_host::watch::fuzz(text.as_bytes());
});
