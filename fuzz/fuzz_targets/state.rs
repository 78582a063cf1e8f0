//! The state on a hook's standard input, and the command lines of hooks and runtimes.

#![no_main]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use libfuzzer_sys::fuzz_target;
use onload_core::expectation::Expectation;
use onload_core::hook_arguments::HookArguments;
use onload_hooks::config::state::OciState;
use onload_hooks::entry::wrapper::args;

fuzz_target!(|bytes: &[u8]| {
    for bundle_wanted in [true, false] {
        if let Ok(state) = OciState::read(bytes, bundle_wanted) {
            // The id becomes a file name, and the pid is never this process.
            assert!(!state.id.as_str().contains(['/', '\0']));
            assert!(!["", ".", ".."].contains(&state.id.as_str()));
            assert_ne!(state.pid, Some(0));
            assert!(!bundle_wanted || state.bundle.is_absolute());
        }
    }
    let _ = OciState::recognise(bytes);
    let words: Vec<OsString> =
        bytes.split(|byte| *byte == b'\n').map(|word| OsStr::from_bytes(word).to_owned()).collect();
    let _ = args::parse(&words);
    if let Ok(asked) = HookArguments::parse(&words) {
        for expect in asked.expect {
            assert!(!expect.node_name().is_empty() && !expect.node_name().contains('/'));
            let again: Expectation = expect.to_string().parse().expect("what we wrote is read");
            assert_eq!(again, expect);
        }
    }
});
