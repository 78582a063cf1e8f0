//! Small crates in which an upward use or a cycle is found, and the paths that cause it.

use serde_json::json;

use super::crates::{self, Layer};
use super::graph;
use super::modules::{Arrows, Modules};

/// A crate with these files, the first of which is its root.
fn modules(files: &[(&str, &str)]) -> Modules {
    let read = |file: &str| {
        let found = files.iter().find(|(name, _)| *name == file);
        found.map(|(_, text)| (*text).to_owned())
    };
    Modules::read(files[0].0, &read).unwrap()
}

/// `from → to` of each arrow.
fn arrows(files: &[(&str, &str)]) -> Vec<String> {
    named(&modules(files).arrows())
}

fn named(arrows: &Arrows) -> Vec<String> {
    arrows
        .keys()
        .map(|(from, to)| format!("{from} → {to}"))
        .collect()
}

fn cycles(files: &[(&str, &str)], known: &[(&str, &str)]) -> Vec<String> {
    let modules = modules(files);
    graph::cycles(&modules.arrows(), &modules.files(), known)
}

/// The arrows of a module `a` with this text, beside `b`, `dir`, `dir::c` and `dir::d`.
fn of_a(text: &str) -> Vec<String> {
    let files = [
        ("lib.rs", "mod a; mod b; mod dir; pub struct Root;"),
        ("a.rs", text),
        (
            "b.rs",
            "pub struct B; pub fn f() {} pub mod inline { pub struct I; }",
        ),
        (
            "dir/mod.rs",
            "pub mod c; pub mod d; pub use c::C; pub use std::fs; pub struct D;",
        ),
        ("dir/c.rs", "pub struct C;"),
        (
            "dir/d.rs",
            "pub use super::C as Again; pub use super::c::*;",
        ),
    ];
    let arrows = arrows(&files);
    let of_a = arrows
        .iter()
        .filter_map(|arrow| arrow.strip_prefix("a.rs → "));
    of_a.map(str::to_owned).collect()
}

#[test]
fn an_import_is_an_arrow_to_the_deepest_file_that_it_names() {
    assert_eq!(of_a("use crate::b::B;"), ["b.rs"]);
    assert_eq!(of_a("use super::b;"), ["b.rs"]);
    assert_eq!(of_a("use crate::b::inline::I;"), ["b.rs"]);
    assert_eq!(of_a("use crate::dir::c::C;"), ["dir/c.rs"]);
    assert_eq!(of_a("use crate::dir::D;"), ["dir/mod.rs"]);
    assert_eq!(of_a("use crate::Root;"), ["lib.rs"]);
    assert_eq!(of_a("pub(crate) use crate::b::f as g;"), ["b.rs"]);
}

#[test]
fn every_name_of_a_nested_group_counts() {
    let text = "use crate::{b::{self, f}, dir::{D, c::{C as X}}};";
    assert_eq!(of_a(text), ["b.rs", "dir/c.rs", "dir/mod.rs"]);
}

#[test]
fn a_path_in_code_is_an_arrow_without_an_import() {
    assert_eq!(of_a("fn f() { crate::b::f(); }"), ["b.rs"]);
    assert_eq!(of_a("fn f(c: &super::dir::c::C) {}"), ["dir/c.rs"]);
    assert_eq!(of_a("type T = Vec<Option<crate::b::B>>;"), ["b.rs"]);
    assert_eq!(of_a("impl From<crate::b::B> for u8 {}"), ["b.rs"]);
    assert_eq!(of_a("fn f() { let crate::b::B = g(); }"), ["b.rs"]);
    assert_eq!(of_a("fn f() { use crate::dir::c; }"), ["dir/c.rs"]);
}

#[test]
fn a_path_in_the_arguments_of_a_macro_or_an_attribute_counts() {
    assert_eq!(of_a("fn f() { assert!(g(1) && super::b::f()); }"), ["b.rs"]);
    assert_eq!(
        of_a("fn f() { format!(\"{}\", crate::dir::c::C); }"),
        ["dir/c.rs"]
    );
    assert_eq!(
        of_a("macro_rules! m { () => { $crate::b::f() }; }"),
        ["b.rs"]
    );
    let serde = "#[derive(Deserialize)] struct S { #[serde(with = \"crate::b\")] x: u8 }";
    assert_eq!(of_a(serde), ["b.rs"]);
}

#[test]
fn a_renamed_import_leads_where_its_name_comes_from() {
    assert_eq!(
        of_a("use crate::dir as d; fn f(c: d::c::C) {}"),
        ["dir/c.rs", "dir/mod.rs"]
    );
    let in_block = "fn f() { use super::dir as d; d::c::C; }";
    assert_eq!(of_a(in_block), ["dir/c.rs", "dir/mod.rs"]);
}

#[test]
fn a_name_that_a_module_only_hands_on_leads_to_both() {
    assert_eq!(of_a("use crate::dir::C;"), ["dir/c.rs", "dir/mod.rs"]);
    let chain = ["dir/c.rs", "dir/d.rs", "dir/mod.rs"];
    assert_eq!(of_a("use crate::dir::d::Again;"), chain);
    assert_eq!(of_a("use crate::dir::d::C;"), ["dir/c.rs", "dir/d.rs"]);
    assert_eq!(
        of_a("use crate::dir::*; type X = c::C;"),
        ["dir/c.rs", "dir/mod.rs"]
    );
}

#[test]
fn super_climbs_one_module_each() {
    let files = [
        ("src/lib.rs", "mod top; mod one;"),
        ("src/top.rs", "pub fn f() {}"),
        ("src/one/mod.rs", "mod two; mod beside;"),
        ("src/one/beside.rs", ""),
        (
            "src/one/two.rs",
            "use super::super::top; mod inline { use super::super::beside; }",
        ),
    ];
    let expected = [
        "src/one/two.rs → src/one/beside.rs",
        "src/one/two.rs → src/top.rs",
    ];
    assert_eq!(arrows(&files), expected);
}

#[test]
fn a_macro_by_its_bare_name_leads_to_the_module_above_that_defines_it() {
    let files = [
        ("lib.rs", "macro_rules! ours { () => {} } mod a;"),
        ("a.rs", "ours!(); fn f() { println!(); }"),
    ];
    assert_eq!(arrows(&files), ["a.rs → lib.rs"]);
}

#[test]
fn what_is_no_use_is_no_arrow() {
    // A module's declaration, another crate, its own name, a visibility, a comment.
    assert_eq!(
        of_a("mod b { pub fn f() {} } fn g() { b::f(); self::b::f(); }"),
        [""; 0]
    );
    assert_eq!(
        of_a("use std::fs; fn f() { fs::read(\"crate::b\"); ::b::f(); }"),
        [""; 0]
    );
    assert_eq!(of_a("use b::b; fn g() { b::f(); }"), [""; 0]);
    assert_eq!(of_a("pub(crate) fn g() {} pub(super) struct S;"), [""; 0]);
    assert_eq!(of_a("/// See [`crate::b::B`].\nfn g() {}"), [""; 0]);
    assert_eq!(of_a("enum E { A } use E::A; fn g() { E::A; }"), [""; 0]);
}

#[test]
fn what_is_for_tests_alone_is_left_out() {
    assert_eq!(of_a("#[cfg(test)] mod tests { use crate::b; }"), [""; 0]);
    assert_eq!(of_a("#[cfg(all(test, unix))] use crate::b;"), [""; 0]);
    assert_eq!(of_a("#[test] fn f() { crate::b::f(); }"), [""; 0]);
    // Not these.
    assert_eq!(of_a("#[cfg(not(test))] use crate::b;"), ["b.rs"]);
    assert_eq!(of_a("#[cfg(any(test, unix))] use crate::b;"), ["b.rs"]);
    assert_eq!(of_a("#[cfg(feature = \"test\")] use crate::b;"), ["b.rs"]);
}

#[test]
fn a_file_that_is_not_understood_is_no_empty_one() {
    for (text, expected) in [
        ("mod gone;", "lib.rs: mod gone has no file"),
        (
            "#[path = \"x.rs\"] mod a;",
            "lib.rs:1: #[path] on a module is not understood",
        ),
        (
            "mod a { #[macro_use] mod b; }",
            "lib.rs:1: #[macro_use] on a module is not understood",
        ),
        ("fn f() {}\nfn {}", "lib.rs:2: expected identifier"),
    ] {
        let read = |file: &str| (file == "lib.rs").then(|| text.to_owned());
        let error = Modules::read("lib.rs", &read).err();
        let error = error.unwrap_or_else(|| panic!("{text} is read"));
        assert!(error.starts_with(expected), "{error}");
    }
}

const ROUND: [(&str, &str); 4] = [
    ("lib.rs", "mod a; mod b; mod c;"),
    ("a.rs", "use crate::b;"),
    ("b.rs", "use crate::c;"),
    ("c.rs", "fn f() {}\nfn g() { super::a::f() }"),
];

#[test]
fn a_cycle_of_files_is_said_with_a_line_for_each_arrow() {
    let expected = "\
a cycle: a.rs → b.rs → c.rs → a.rs
  a.rs:1: crate::b
  b.rs:1: crate::c
  c.rs:2: super::a::f";
    assert_eq!(cycles(&ROUND, &[]), [expected]);
}

#[test]
fn the_shortest_of_several_cycles_is_said() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b;"),
        ("b.rs", "use crate::c;"),
        ("c.rs", "use crate::{a, b};"),
    ];
    let cycles = cycles(&files, &[]);
    let expected = "a cycle: b.rs → c.rs → b.rs (the shortest of 3 that lead to each other)\n";
    assert!(cycles[0].starts_with(expected), "{cycles:?}");
}

#[test]
fn a_child_that_uses_its_parent_is_a_cycle_where_the_parent_uses_the_child() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod child; pub struct A; fn f() { child::f() }"),
        ("a/child.rs", "use super::A;"),
    ];
    let cycles = cycles(&files, &[]);
    assert!(
        cycles[0].contains("a/child.rs → a/mod.rs → a/child.rs"),
        "{cycles:?}"
    );
}

/// Two directories, each with a file that the other uses.
const ACROSS: [(&str, &str); 7] = [
    ("lib.rs", "mod a; mod b;"),
    ("a/mod.rs", "mod low; mod high;"),
    ("a/low.rs", ""),
    ("a/high.rs", "use crate::b::low;"),
    ("b/mod.rs", "mod low; mod high;"),
    ("b/low.rs", ""),
    ("b/high.rs", "use crate::a::low;"),
];

#[test]
fn directories_that_use_each_other_are_a_cycle_even_where_their_files_are_none() {
    let expected = "\
a cycle: a → b → a
  a/high.rs:1: crate::b::low
  b/high.rs:1: crate::a::low";
    assert_eq!(cycles(&ACROSS, &[]), [expected]);
}

#[test]
fn a_known_arrow_opens_its_cycle_and_no_other() {
    assert_eq!(cycles(&ROUND, &[("c.rs", "a.rs")]), [""; 0]);
    assert_eq!(cycles(&ACROSS, &[("b/high.rs", "a/low.rs")]), [""; 0]);
    assert_eq!(cycles(&ACROSS, &[("a/high.rs", "b/high.rs")]).len(), 1);
}

#[test]
fn a_known_arrow_that_closes_no_cycle_is_stale() {
    let stale = |files: &[(&str, &str)], known: &[(&str, &str)]| {
        let modules = modules(files);
        graph::stale(&modules.arrows(), &modules.files(), known).len()
    };
    assert_eq!(stale(&ROUND, &[("c.rs", "a.rs")]), 0);
    assert_eq!(stale(&ACROSS, &[("b/high.rs", "a/low.rs")]), 0);
    // An arrow that does not exist, a file that does not exist, and one too many for the same
    // cycle.
    assert_eq!(stale(&ROUND, &[("c.rs", "b.rs")]), 1);
    assert_eq!(stale(&ROUND, &[("gone.rs", "a.rs")]), 1);
    assert_eq!(stale(&ROUND, &[("c.rs", "a.rs"), ("a.rs", "b.rs")]), 2);
    let open = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b;"),
        ("b.rs", ""),
    ];
    assert_eq!(stale(&open, &[("a.rs", "b.rs")]), 1);
}

fn backward(order: &[&str], known: &[(&str, &str)]) -> Vec<String> {
    let files = [
        ("lib.rs", "mod a; mod b; mod dir; pub use b::B;"),
        ("a.rs", ""),
        ("b.rs", "use crate::{a, dir::c};"),
        ("dir/mod.rs", "mod c; mod d;"),
        ("dir/c.rs", "use super::d;"),
        ("dir/d.rs", "fn f() { crate::a::f() }"),
    ];
    let modules = modules(&files);
    graph::backward(&modules.arrows(), &modules.files(), order, known)
}

#[test]
fn a_module_uses_those_before_it_and_those_of_its_directory() {
    assert_eq!(backward(&["a", "dir", "b"], &[]), [""; 0]);
    let expected = ["b.rs:1: crate::dir::c: dir/c.rs is above it"];
    assert_eq!(backward(&["a", "b", "dir"], &[]), expected);
    assert_eq!(
        backward(&["a", "b", "dir"], &[("b.rs", "dir/c.rs")]),
        [""; 0]
    );
    assert_eq!(backward(&["b", "dir", "a"], &[]).len(), 3);
}

#[test]
fn an_order_names_every_module_and_no_other() {
    let expected = [
        "ORDERS: dir has no place",
        "ORDERS: there is no module gone",
    ];
    assert_eq!(backward(&["a", "gone", "b"], &[]), expected);
}

#[test]
fn nothing_uses_the_root_of_its_crate() {
    let files = [
        ("lib.rs", "mod a; pub struct Root;"),
        ("a.rs", "use crate::Root;"),
    ];
    let modules = modules(&files);
    let wrong = graph::backward(&modules.arrows(), &modules.files(), &["a"], &[]);
    assert_eq!(wrong, ["a.rs:1: crate::Root: lib.rs is above it"]);
}

const LAYERS: &[Layer] = &[
    Layer::new("low", &[]),
    Layer::new("left", &["low"]),
    Layer::new("right", &["low"]),
    Layer::new("top", &["low", "left", "right"]),
];

/// A workspace with the four crates, `cluster/one`, `cluster/two`, and these dependencies.
fn upward(uses: &[(&str, &str, Option<&str>)], for_tests: &[(&str, &str, &str)]) -> Vec<String> {
    let places = [
        ("low", "/w/low"),
        ("left", "/w/left"),
        ("right", "/w/right"),
        ("top", "/w"),
        ("one", "/w/cluster/one"),
        ("two", "/w/cluster/two"),
    ];
    let packages = places.map(|(name, place)| {
        let used = uses.iter().filter(|(from, ..)| *from == name);
        let used = used.map(|(_, to, kind)| json!({"name": to, "kind": kind}));
        let used: Vec<_> = used.collect();
        json!({"name": name, "manifest_path": format!("{place}/Cargo.toml"), "dependencies": used})
    });
    let metadata = json!({"workspace_root": "/w", "packages": packages});
    let packages = crates::packages(&metadata);
    crates::upward(&packages, LAYERS, &["low", "left"], for_tests)
}

#[test]
fn a_crate_that_uses_one_above_or_beside_it_is_named() {
    let fine = [
        ("left", "low", None),
        ("top", "right", None),
        ("top", "serde", None),
        ("one", "left", None),
    ];
    assert_eq!(upward(&fine, &[]), [""; 0]);
    for (from, to) in [
        ("low", "left"),
        ("left", "right"),
        ("left", "top"),
        ("one", "two"),
        ("one", "top"),
        ("top", "one"),
        ("low", "one"),
        ("one", "right"),
    ] {
        let expected = format!("{from} uses {to}, which is not below it");
        assert_eq!(upward(&[(from, to, None)], &[]), [expected]);
        let build = upward(&[(from, to, Some("build"))], &[]);
        assert_eq!(build.len(), 1, "{build:?}");
    }
}

#[test]
fn what_tests_use_is_held_too_but_for_a_reason() {
    let uses = [("low", "left", Some("dev"))];
    let expected = "low uses left for its tests, which is not below it";
    assert_eq!(upward(&uses, &[]), [expected]);
    let reason = [("low", "left", "its tests write with it")];
    assert_eq!(upward(&uses, &reason), [""; 0]);
    // The reason is for tests only, and disappears with them.
    assert_eq!(upward(&[("low", "left", None)], &reason).len(), 2);
    let expected = "FOR_TESTS: low does not use left; take it out of the list";
    assert_eq!(upward(&[], &reason), [expected]);
}

#[test]
fn every_crate_has_a_layer_and_no_layer_stands_before_what_it_uses() {
    let package = |name| json!({"name": name, "manifest_path": "/w/x/Cargo.toml"});
    let packages = [package("a"), package("b"), package("new")];
    let metadata = json!({"workspace_root": "/w", "packages": packages});
    let layers = [
        Layer::new("a", &["b"]),
        Layer::new("b", &[]),
        Layer::new("gone", &[]),
    ];
    let wrong = crates::upward(&crates::packages(&metadata), &layers, &[], &[]);
    let expected = [
        "LAYERS: new has no layer; give it one",
        "LAYERS: b stands after a, which uses it",
        "LAYERS: there is no crate gone",
    ];
    assert_eq!(wrong, expected);
}

#[test]
fn a_large_crate_is_found_below_others_but_not_below_tests() {
    let node = |id: &str, uses: &[(&str, Option<&str>)]| {
        let deps = uses
            .iter()
            .map(|(to, kind)| json!({"pkg": to, "dep_kinds": [{"kind": kind}]}));
        json!({"id": id, "deps": deps.collect::<Vec<_>>()})
    };
    let names = ["ours", "small", "tokio-util", "build", "clap"];
    let packages = names.map(|name| json!({"id": name, "name": name}));
    let nodes = [
        node(
            "ours",
            &[
                ("small", None),
                ("clap", Some("dev")),
                ("build", Some("build")),
            ],
        ),
        node("small", &[("tokio-util", None)]),
    ];
    let metadata = json!({"packages": packages, "resolve": {"nodes": nodes}});
    let below = crates::below(&metadata, "ours");
    assert_eq!(
        below.iter().collect::<Vec<_>>(),
        ["build", "small", "tokio-util"]
    );
    assert!(crates::is_large("tokio-util") && crates::is_large("clap_builder"));
    assert!(!crates::is_large("small") && !crates::is_large("serde"));
}
