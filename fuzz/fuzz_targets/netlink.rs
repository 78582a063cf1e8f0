//! What the kernel answers by netlink.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    onload_core::netlink::fuzz(bytes);
    onload_host::watch::fuzz(bytes);
});
