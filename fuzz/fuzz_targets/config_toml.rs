//! An untrusted config.toml is accepted, or refused with the line, and nothing relative or out of
//! range is accepted. The hook interprets an accepted one in the same way.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onload_core::config::{Config, HookConfig};

fuzz_target!(|text: &str| {
    let lines = text.split('\n').count();
    match Config::parse(text) {
        Ok(config) => {
            let cdi = &config.cdi;
            assert!(cdi.hook_path.is_absolute() && cdi.hugepages_dir.is_absolute());
            assert!(cdi.host_library_dirs.iter().all(|dir| dir.is_absolute()));
            assert!(cdi.container_library_dirs.iter().all(|dir| dir.is_absolute()));
            assert!((1..=1 << 24).contains(&cdi.fdtable_size));
            assert!(!cdi.kinds.is_empty());
            assert_eq!(HookConfig::parse(text), Ok(HookConfig::from(&config)));
        }
        Err(error) => {
            let error = format!("{error:#}");
            let line = error.strip_prefix("line ").and_then(|rest| rest.split_once(':'));
            if let Some((line, _)) = line {
                assert!((1..=lines).contains(&line.parse().expect("a number")), "{error}");
            }
            assert!(!error.contains('\n'), "{error}");
            let (_, problems) = Config::parse_leniently(text);
            assert!(!problems.is_empty(), "{error}");
        }
    }
});
