//! Untrusted annotations of a pool, as a specification has them, and untrusted arguments that take members
//! of one: each is refused in one line, or has members with legal names, each once, and is written as it
//! was read. The text up to the first line break is the share and the argument, the rest the members. The same as what
//! is near GPUs is refused in one line, or gives each member at most once.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use libfuzzer_sys::fuzz_target;
use onload_core::hook_arguments::TakeArgument;
use onload_core::nearness::{NEAR, NICS, Nearness};
use onload_core::pool::{MAX_MEMBERS, MEMBERS, Pool, SHARE};
use onload_core::request::MAX_NAMES;
use onload_sys::text::ErrorChain;

fuzz_target!(|text: &str| {
    let (first, members) = text.split_once('\n').unwrap_or((text, text));
    let entries = [(SHARE, first), (MEMBERS, members)];
    let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let annotations = BTreeMap::from(entries);
    match Pool::from_annotations(&annotations) {
        Ok(pool) => {
            let pool = pool.expect("both annotations are there");
            let names: BTreeSet<&str> = pool.members.iter().map(|m| m.name.as_str()).collect();
            assert_eq!(names.len(), pool.members.len());
            assert!((1..=MAX_MEMBERS).contains(&names.len()) && pool.share > 0);
            assert_eq!(pool.to_annotations(), annotations);
        }
        Err(error) => one_line(&error),
    }
    near(first, members);
    match first.parse::<TakeArgument>() {
        Ok(take) => {
            assert!((1..=MAX_NAMES).contains(&take.count));
            assert_eq!(take.to_string().parse::<TakeArgument>(), Ok(take));
        }
        Err(error) => one_line(&error),
    }
});

fn near(nics: &str, near: &str) {
    let entries = [(NICS, nics), (NEAR, near)];
    let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let nearness = match Nearness::from_annotations(&BTreeMap::from(entries), 100) {
        Ok(nearness) => nearness,
        Err(error) => return one_line(&error),
    };
    let gpus: Vec<_> = nearness.gpus.keys().copied().collect();
    for count in [1, 2] {
        let order = nearness.rank_members(&gpus, count);
        let members: BTreeSet<&usize> = order.iter().collect();
        assert!(members.len() == order.len() && order.iter().all(|member| *member < 100));
    }
    if !gpus.is_empty() {
        assert_eq!(Nearness::from_annotations(&nearness.to_annotations(), 100), Ok(nearness));
    }
}

fn one_line(error: &dyn Error) {
    assert!(!ErrorChain(error).to_string().contains('\n'), "{error}");
}
