//! A library or program from foreign bytes: what a loader would learn from it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onload_hooks::elf::summarize;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(summary) = summarize(bytes) {
        let _ = summary.glibc_needed();
        let size: usize = summary.needed.iter().map(String::len).sum();
        // Names may overlap in the table of strings, but there is an end to what is taken.
        assert!(summary.needed.len() <= bytes.len() && size <= bytes.len() * bytes.len());
    }
});
