//! An untrusted manifest of an output directory: what is accepted and written reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onload_host::specdir::Manifest;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = Manifest::parse(bytes) {
        let again = Manifest::parse(&manifest.to_bytes()).expect("our own is read");
        assert_eq!(again, manifest);
    }
});
