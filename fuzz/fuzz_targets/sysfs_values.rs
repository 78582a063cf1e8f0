//! Untrusted attributes, names, messages and tables of the kernel, given to each of their parsers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    onload_host::discover::fuzz(text);
    onload_host::boot::fuzz(text);
    onload_host::watch::fuzz(text.as_bytes());
    // Vital product data is no text.
    let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
    let _ = onload_host::discover::data_direct::find_uuid(&bytes);
});
