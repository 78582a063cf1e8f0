//! An Onload profile from foreign bytes: settings of Onload's, and nothing that a shell would do.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| onload_host::discover::profile::fuzz(text));
