//! Searches raw JSON for `onload.dev`, or the variable that may hold a request, before anything is
//! parsed, so that a container that requests nothing costs nothing.
//!
//! A spelling of `onload.dev` (RFC 8259 §7: `\u006f`) either holds those bytes, or escapes at least one of its letters.
//! Engines escape none of them, so looking for both costs one search for a backslash. Anything may follow the domain:
//! an annotation `onload.dev` without a class is rejected, not ignored.

use std::io::{self, Read};

// On x86 the generic functions of memchr first query the processor's features, which traps under a
// hypervisor and takes longer than searching most configurations. SSE2 is part of the architecture.
#[cfg(target_arch = "x86_64")]
use memchr::arch::x86_64::sse2;
use memchr::{memchr2_iter, memmem};
use onload_core::request::{DOMAIN, VARIABLE};
use onload_sys::fs::regular::read_sized;

/// The key by which the runtime moves interfaces itself (runtime-spec 1.3, config-linux.md, "Network Devices"). runc
/// reads it with Go's encoding/json, which folds the case of keys (fold.go): U+017F counts as an `s` there.
const NET_DEVICES: &str = "netdevices";
const LONG_S: char = '\u{17f}';

/// The largest configuration or state that is parsed. A larger one with a request is refused.
pub(crate) const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Bytes per read beyond the part that is kept.
const CHUNK: usize = 64 * 1024;

/// The longest spelling of a letter of the domain, `\u006f`.
const ESCAPE: usize = 6;

/// Bytes at the end of a chunk that may be the beginning of what is looked for, or of an escape.
const OVERLAP: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanScope {
    Annotations,
    /// In annotations and in the environment.
    VariableToo,
}

/// Whether the bytes may hold a request, or interfaces that the runtime moves. An escaped letter elsewhere makes it true
/// for no reason, which only costs a parse; it is never false where a JSON string spells what is looked for.
#[must_use]
pub fn may_contain_request(json: &[u8], scope: ScanScope) -> bool {
    let with_variable = scope == ScanScope::VariableToo;
    contains_text(json, DOMAIN)
        || has_net_devices_key(json)
        || with_variable && contains_text(json, VARIABLE)
        || has_escaped_letter(json, with_variable)
}

fn contains_text(json: &[u8], text: &str) -> bool {
    let text = text.as_bytes();
    #[cfg(target_arch = "x86_64")]
    if let Some(finder) = sse2::packedpair::Finder::new(text)
        && json.len() >= finder.min_haystack_len()
    {
        return finder.find(json, text).is_some();
    }
    memmem::find(json, text).is_some()
}

/// Whether it has the key `netDevices` in any case, without escapes.
fn has_net_devices_key(json: &[u8]) -> bool {
    let is_key = |v: usize| {
        let before = v.checked_sub(6).and_then(|start| json.get(start..v));
        let after = json.get(v + 1..).and_then(|after| after.split_at_checked(3));
        let (Some(before), Some((middle, end))) = (before, after) else {
            return false;
        };
        let ends = [&b"s\""[..], b"S\"", "\u{17f}\"".as_bytes()];
        before.eq_ignore_ascii_case(b"\"netde")
            && middle.eq_ignore_ascii_case(b"ice")
            && ends.iter().any(|one| end.starts_with(one))
    };
    any_position(json, [b'v', b'V'], is_key)
}

/// Whether any position of one of two bytes matches.
fn any_position(json: &[u8], [one, other]: [u8; 2], is_match: impl FnMut(usize) -> bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(finder) = sse2::memchr::Two::new(one, other) {
        return finder.iter(json).any(is_match);
    }
    memchr2_iter(one, other, json).any(is_match)
}

fn has_escaped_letter(json: &[u8], with_variable: bool) -> bool {
    let is_ours = |backslash: usize| {
        decode_escape(json, backslash).is_some_and(|letter| {
            DOMAIN.contains(letter)
                || letter == LONG_S
                || NET_DEVICES.contains(letter.to_ascii_lowercase())
                || with_variable && VARIABLE.contains(letter)
        })
    };
    any_position(json, [b'\\'; 2], is_ours)
}

/// The character of an escape `\uXXXX`.
fn decode_escape(json: &[u8], index: usize) -> Option<char> {
    let digits = json.get(index + 1..index + ESCAPE)?.strip_prefix(b"u")?;
    let digits = std::str::from_utf8(digits).ok()?;
    char::from_u32(u32::from_str_radix(digits, 16).ok()?)
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ScanResult {
    /// Its first [`MAX_BYTES`] bytes.
    pub kept: Vec<u8>,
    /// Whether there was more.
    pub more: bool,
    /// Whether any of it may hold a request.
    pub may_hold_request: bool,
    pub scope: ScanScope,
}

/// Receives what lies beyond the kept part: the kept part, and the next piece.
pub(crate) type OverflowSink<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>;

/// Reads a stream to its end, keeps a bounded part of it, and says whether it may hold a request. `size` is how many bytes
/// its file has; 0 if that is not known.
pub(crate) fn read(
    mut from: impl Read,
    size: usize,
    scope: ScanScope,
    beyond: OverflowSink<'_>,
) -> io::Result<ScanResult> {
    let kept = read_sized(from.by_ref(), size, MAX_BYTES)?;
    let mut scan_result = ScanResult {
        may_hold_request: may_contain_request(&kept, scope),
        scope,
        more: false,
        kept,
    };
    if scan_result.kept.len() < MAX_BYTES {
        return Ok(scan_result);
    }
    let mut window = scan_result.kept[scan_result.kept.len() - OVERLAP..].to_vec();
    loop {
        let tail = window.len();
        window.resize(tail + CHUNK, 0);
        let count = from.read(&mut window[tail..])?;
        if count == 0 {
            return Ok(scan_result);
        }
        window.truncate(tail + count);
        scan_result.more = true;
        scan_result.may_hold_request |= may_contain_request(&window, scope);
        beyond(&scan_result.kept, &window[tail..])?;
        window.drain(..window.len().saturating_sub(OVERLAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mentions_domain(json: &[u8]) -> bool {
        may_contain_request(json, ScanScope::Annotations)
    }

    fn mentions_variable(json: &[u8]) -> bool {
        may_contain_request(json, ScanScope::VariableToo)
    }

    #[test]
    fn a_slash_that_crun_escapes_hides_nothing() {
        assert!(mentions_domain(br#"{"annotations":{"onload.dev\/nic":"all"}}"#));
    }

    #[test]
    fn interfaces_that_the_runtime_moves_are_found_and_not_those_of_a_longer_word() {
        for places in [ScanScope::Annotations, ScanScope::VariableToo] {
            assert!(may_contain_request(br#"{"linux":{"netDevices":{"ens1":{}}}}"#, places));
            for key in ["NETDEVICES", "netdevice\u{17f}", r"net\u0044evices", r"netDevice\u017f"] {
                let json = format!(r#"{{"linux":{{"{key}":{{"ens1":{{}}}}}}}}"#);
                assert!(may_contain_request(json.as_bytes(), places), "{json}");
            }
            for json in [
                r#"{"annotations":{"a":"my netDevices","netDevicesB":"1"}}"#,
                r#"{"xnetDevices":{}}"#,
                "netDevices\"",
                "\"netDev",
                "v",
            ] {
                assert!(!may_contain_request(json.as_bytes(), places), "{json}");
            }
        }
    }

    #[test]
    fn the_variable_is_found_where_it_is_looked_for() {
        for json in [
            &br#"{"process":{"env":["ONLOAD_CTK_REQUEST=nic=all"]}}"#[..],
            br#"{"process":{"env":["\u004fNLOAD_CTK_REQUEST=nic=all"]}}"#,
            br#"{"process":{"env":["ONLOAD\u005fCTK\u005FREQUEST=nic=all"]}}"#,
            br#"{"process":{"env":["ONLOAD_CTK_\u0052EQUEST=nic=all"]}}"#,
        ] {
            assert!(mentions_variable(json));
            assert!(!mentions_domain(json));
        }
        for json in [
            &br#"{"process":{"env":["ONLOAD_CTK_NOT_GIVEN=memlock","PATH=/bin"]}}"#[..],
            br#"{"process":{"args":["a \u003e b \u0026\u0026 \"c\"\n"]}}"#,
            b"",
        ] {
            assert!(!mentions_variable(json));
        }
        assert!(mentions_variable(br#"{"annotations":{"onload.dev/nic":"all"}}"#));
    }

    #[test]
    fn every_spelling_of_the_variable_is_found() {
        for at in 0..VARIABLE.len() {
            let letter = &VARIABLE[at..=at];
            let escaped = format!("\\u{:04x}", u32::from(VARIABLE.as_bytes()[at]));
            let text = format!("{}{escaped}{}", &VARIABLE[..at], &VARIABLE[at + 1..]);
            assert!(mentions_variable(text.as_bytes()), "{letter} of {text}");
        }
    }

    #[test]
    fn the_variable_across_the_bound_or_a_chunk_is_found() {
        for border in [MAX_BYTES, MAX_BYTES + CHUNK] {
            for back in 0..=VARIABLE.len() {
                let mut bytes = vec![b' '; border + CHUNK];
                let at = border - back;
                bytes[at..at + VARIABLE.len()].copy_from_slice(VARIABLE.as_bytes());
                let found = read(&bytes[..], 0, ScanScope::VariableToo, &mut |_, _| Ok(()));
                assert!(found.unwrap().may_hold_request, "{border} {back}");
            }
        }
    }

    #[test]
    fn a_plain_key_is_found_with_and_without_a_class() {
        assert!(mentions_domain(br#"{"annotations":{"onload.dev/nic":"all"}}"#));
        assert!(mentions_domain(br#"{"annotations":{"onload.dev":"all"}}"#));
        assert!(!mentions_domain(br#"{"annotations":{"example.com/nic":"all"}}"#));
        assert!(!mentions_domain(b""));
    }

    #[test]
    fn a_key_with_escaped_letters_is_found() {
        for key in [
            r"onload.dev\/nic",
            r"onload\u002edev",
            r"\u006fnload.dev/nic",
            r"onload\u002edev/nic",
            r"onload.dev\u002Fnic",
            r"\u006f\u006e\u006c\u006f\u0061\u0064\u002e\u0064\u0065\u0076\u002f",
        ] {
            let json = format!(r#"{{"annotations":{{"{key}":"all"}}}}"#);
            assert!(mentions_domain(json.as_bytes()), "{key}");
        }
    }

    #[test]
    fn what_engines_escape_is_not_taken_for_a_letter_of_ours() {
        assert!(!mentions_domain(br#"{"root":{"path":"\/var\/lib\/x\u002fy"}}"#));
        assert!(!mentions_domain(br#"{"args":["sh","-c","a \u003e b \u0026\u0026 \"c\"\n\\t"]}"#));
    }

    #[test]
    fn every_spelling_of_the_domain_is_found() {
        // All 3^10 ways to write each letter plainly, escaped in lower and in upper case would be
        // slow; every way to escape one or two letters is the same code.
        let letters: Vec<char> = DOMAIN.chars().collect();
        for first in 0..letters.len() {
            for second in 0..letters.len() {
                let text: String = letters
                    .iter()
                    .enumerate()
                    .map(|(at, letter)| {
                        if at == first || at == second {
                            format!("\\u{:04x}", u32::from(*letter))
                        } else {
                            letter.to_string()
                        }
                    })
                    .collect();
                assert!(mentions_domain(text.as_bytes()), "{text}");
            }
        }
    }

    fn scan(bytes: &[u8]) -> ScanResult {
        read(bytes, 0, ScanScope::Annotations, &mut |_, _| Ok(())).unwrap()
    }

    #[test]
    fn a_stream_is_kept_to_the_bound_and_searched_to_its_end() {
        let small = scan(b"{}");
        assert_eq!((small.kept.len(), small.more, small.may_hold_request), (2, false, false));
        let mut large = vec![b' '; MAX_BYTES + 3 * CHUNK];
        let found = scan(&large);
        assert_eq!(
            (found.kept.len(), found.more, found.may_hold_request),
            (MAX_BYTES, true, false)
        );
        large.extend_from_slice(b"onload.dev/nic");
        assert!(scan(&large).may_hold_request);
    }

    #[test]
    fn a_key_across_the_bound_or_a_chunk_is_found() {
        for border in [MAX_BYTES, MAX_BYTES + CHUNK] {
            for back in 0..12 {
                let mut bytes = vec![b' '; border + CHUNK];
                let at = border - back;
                bytes[at..at + 11].copy_from_slice(b"onload.dev/");
                assert!(scan(&bytes).may_hold_request, "{border} {back}");
            }
        }
    }

    #[test]
    fn what_lies_beyond_the_bound_is_handed_on() {
        let bytes = vec![b'x'; MAX_BYTES + CHUNK + 5];
        let mut beyond = 0;
        read(&bytes[..], 0, ScanScope::Annotations, &mut |_, piece| {
            beyond += piece.len();
            Ok(())
        })
        .unwrap();
        assert_eq!(beyond, CHUNK + 5);
    }
}
