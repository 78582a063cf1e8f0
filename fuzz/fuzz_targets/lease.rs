//! The name of a lease file, up to the first newline, and its content: what is read is written the same.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (name, content) = bytes.split_at(end.unwrap_or(0));
    let name = String::from_utf8_lossy(name);
    onload_lease::fuzz(&name, content.strip_prefix(b"\n").unwrap_or(content));
});
