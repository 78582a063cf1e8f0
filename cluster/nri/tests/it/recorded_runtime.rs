//! The plugin is asked what a real runtime asked, byte for byte, and answers as it did then (`recorded/README.md`).

#![allow(clippy::unwrap_used, reason = "a test")]

use serde_json::Value;

use crate::support::host::{TestNode, can_make};
use crate::support::{Plugin, next};

fn bytes(line: &Value) -> Vec<u8> {
    let digits = line["body"].as_str().unwrap().as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// With zeros in the place of tokens, which are chance.
fn without_tokens(mut bytes: Vec<u8>) -> Vec<u8> {
    const BEFORE: &[u8] = b"--token\x12\x20";
    const DIGITS: usize = 32;
    for at in BEFORE.len()..bytes.len().saturating_sub(DIGITS - 1) {
        if bytes[..at].ends_with(BEFORE) {
            bytes[at..at + DIGITS].fill(b'0');
        }
    }
    bytes
}

fn replay(tree: &TestNode, recorded: &str) {
    let (_plugin, listener) = Plugin::start(&["--host-root", tree.root().to_str().unwrap()]);
    let mut runtime = next(&listener);
    for line in recorded.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| u32::try_from(line[key].as_u64().unwrap()).unwrap();
        let (connection, stream, kind) = (number("connection"), number("stream"), number("kind"));
        let kind = u8::try_from(kind).unwrap();
        if line["by"] == "runtime" {
            runtime.send(connection, stream, kind, &bytes(&line));
            continue;
        }
        let (own_connection, own_stream, own_kind, body) = runtime.receive().unwrap();
        assert_eq!((own_connection, own_stream, own_kind), (connection, stream, kind));
        let (own, then) = (without_tokens(body), without_tokens(bytes(&line)));
        assert!(
            own == then,
            "stream {stream}:\n{}\nthen:\n{}",
            own.escape_ascii(),
            then.escape_ascii()
        );
    }
}

#[test]
fn what_containerd_asked_of_a_host_is_answered_as_then() {
    if can_make() {
        let recorded = include_str!("../recorded/containerd-2.1.9/host.jsonl");
        let tree = TestNode::captured();
        // With the bound of the table that was the default then.
        let name = "run/cdi/onload.dev-nic.json";
        let text = std::fs::read_to_string(tree.path(name)).unwrap();
        tree.file(name, text.replace("SIZE=524288", "SIZE=1048576"));
        replay(&tree, recorded);
    }
}

#[test]
fn what_containerd_asked_of_a_pool_is_answered_as_then() {
    if can_make() {
        let recorded = include_str!("../recorded/containerd-2.1.9/pool.jsonl");
        replay(&TestNode::with_pool(1), recorded);
    }
}
