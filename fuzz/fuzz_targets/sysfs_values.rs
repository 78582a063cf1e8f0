//! Attributes, names and tables of the kernel from foreign bytes, to every parser of them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| onload_host::discover::fuzz(text));
