//! The value of ONLOAD_CTK_REQUEST, and the file of a ticket: what is read of them has bounds, and a refusal is
//! one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onload_core::request::{MAX_NAMES, Origin, Request, VARIABLE};
use onload_core::token::Token;
use onload_hooks::config::scan::{self, ScanScope};
use onload_lease::tickets::WORD;

fuzz_target!(|bytes: &[u8]| {
    onload_lease::tickets::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let env = vec![format!("{VARIABLE}={text}")];
    let json = serde_json::to_vec(&env).expect("a list of strings");
    assert!(
        scan::may_contain_request(&json, ScanScope::VariableToo),
        "what asks is seen in the bytes"
    );
    if let Some(hex) = text.strip_prefix(WORD)
        && let Ok(token) = hex.parse::<Token>()
    {
        assert_eq!(token.as_str(), hex);
        assert!(hex.len() == 32 && !hex.contains(['/', '.']));
    }
    match Request::parse_text(text, Origin::Variable) {
        Ok(request) => {
            assert!(request.ipc_lock.is_none() && request.hugepages_limit.is_none());
            let wanted = request.devices.values().flat_map(|asked| &asked.value);
            let counts = wanted.clone().map(|wanted| wanted.count.unwrap_or(1));
            assert!(counts.sum::<u32>() <= MAX_NAMES);
            for name in wanted.map(|wanted| &wanted.name) {
                assert!(!name.is_empty() && !name.contains(['/', '\0', '\n', '=', ',', ';']));
            }
            for asked in request.devices.values() {
                assert!(matches!(asked.origin, Origin::Variable(_)));
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
