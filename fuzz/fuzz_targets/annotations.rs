//! Untrusted annotations: lines `key=value`.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use onload_core::class::Class;
use onload_core::config::HookConfig;
use onload_core::request::{MAX_NAMES, Request};
use onload_hooks::config::scan::{self, ScanScope};

fuzz_target!(|text: &str| {
    let annotations: BTreeMap<String, String> = text
        .split('\n')
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let json = serde_json::to_vec(&annotations).expect("a map of strings");
    match Request::parse(&annotations) {
        Ok(None) => {}
        Ok(Some(mut request)) => {
            assert!(
                scan::may_contain_request(&json, ScanScope::Annotations),
                "what asks is seen in the bytes"
            );
            let wanted = request.devices.values().flat_map(|asked| &asked.value);
            let counts = wanted.clone().map(|wanted| wanted.count.unwrap_or(1));
            assert!(counts.sum::<u32>() <= MAX_NAMES);
            for name in wanted.map(|wanted| &wanted.name) {
                assert!(!name.is_empty() && !name.contains(['/', '\0', '\n', '=', ',']));
            }
            if request.expand_bundles(&bundles()).is_err() {
                return;
            }
            assert!(!request.devices.contains_key(&Class::Bundle));
            let wanted = request.devices.values().flat_map(|asked| &asked.value);
            let counts = wanted.map(|wanted| wanted.count.unwrap_or(1));
            assert!(counts.sum::<u32>() <= MAX_NAMES);
            for one in request.addresses.into_iter().flat_map(|asked| asked.value) {
                let text = one.to_string();
                let (_, address) = text.rsplit_once('=').expect("a word and an address");
                assert_eq!(address.parse(), Ok(one.value));
                assert!(one.value.network().contains(&one.value));
                assert!(request.devices.contains_key(&Class::Netdev));
            }
            for limit in request.hugepages_limit.into_iter().flat_map(|asked| asked.value) {
                let digits = limit.page_size.trim_end_matches(char::is_alphabetic);
                let unit = match &limit.page_size[digits.len()..] {
                    "KB" => 1 << 10,
                    "MB" => 1 << 20,
                    "GB" => 1 << 30,
                    other => panic!("{other}"),
                };
                let page: u64 = digits.parse().expect("a number");
                assert!(limit.limit.is_multiple_of(page * unit));
            }
        }
        Err(error) => {
            let message = error.to_string();
            assert!(
                message.len() < 2048 && !message.contains(['\n', '\0', '\u{1b}']),
                "{message:?}"
            );
        }
    }
});

/// An operator's configuration.
fn bundles() -> BTreeMap<String, Option<onload_core::bundle::Bundle>> {
    let text = "[bundles.a]\ndevices = [\"nic=ens1\", \"vfio=fast*100\", \"netdev=n\"]\n[bundles.b]\ndevices = 1\n";
    HookConfig::parse(text).expect("a configuration").bundles
}
