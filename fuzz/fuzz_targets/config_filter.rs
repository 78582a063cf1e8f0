//! An untrusted configuration through the whole filter, on a host that allows everything: no panic,
//! one line in a refusal, and nothing more to do the second time.

#![no_main]

mod fake_host;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use onload_hooks::config::filter::apply;
use onload_hooks::decide::subject::ContainerRef;
use onload_sys::text::to_one_line;

use fake_host::FakeHost;

/// A bundle whose root is this program's own directory: whatever `root.path` says is resolved from
/// there, and only read.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("onload-ctk-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("rootfs/etc")).expect("a directory");
        let gpu = dir.join("proc/driver/nvidia/gpus/0000:13:00.0");
        std::fs::create_dir_all(&gpu).expect("a directory");
        let information = "GPU UUID: \t GPU-a\nDevice Minor: \t 0\n";
        std::fs::write(gpu.join("information"), information).expect("a file");
        dir
    })
}

fuzz_target!(|bytes: &[u8]| {
    let host = FakeHost(bundle().to_owned());
    let container = ContainerRef { bundle: bundle(), id: None, sees_exec: true };
    match apply(bytes, container, &host, &host) {
        Ok(outcome) => {
            if let Some(config) = outcome.config {
                let again =
                    apply(&config, container, &host, &host).expect("what we wrote is taken");
                assert_eq!(again.config, None, "{}", String::from_utf8_lossy(&config));
            }
        }
        Err(error) => assert!(to_one_line(&error.to_string()).lines().count() == 1),
    }
});
