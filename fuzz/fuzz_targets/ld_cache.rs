//! Untrusted lists of libraries: no panic, and no path that is not in the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onload_sys::ld_cache::find_library_paths;

fuzz_target!(|bytes: &[u8]| {
    for path in find_library_paths(bytes, "libibverbs.so.1") {
        let is_part = |part: &[u8]| part == path.as_bytes();
        assert!(path.is_empty() || bytes.windows(path.len()).any(is_part));
    }
});
