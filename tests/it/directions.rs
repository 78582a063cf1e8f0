//! Directions that cargo does not hold: between the modules of a crate, where unsafe code may stand, and what
//! small crates do without. The tables are at the top; changing a direction means changing a table.
//!
//! Sources are scanned, not parsed: every path that begins with `crate`, `super`, `self` or the name of a module
//! counts, in code that is not only for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use crate::common::package;

/// The top-level modules of each crate, which may use only those before them. Nothing uses `lib.rs`.
const ORDERS: [&str; 13] = [
    "cdi/src: json name annotations spec messages yaml parse version validate oci registry",
    "sys/src: text error device_number pci cpu_list elf mountinfo mount_api netns netlink ethtool bpf fs ld_cache processes child",
    "core/src: timestamp token claim_uid onload rdma_providers gpu_name kfd device_ref class device_id rdma_companion bundle expectation container_id pod pool nearness versioned
        host_settings select vf_config netdev kubernetes_settings config hook_arguments request policy",
    "lease/src: run_dir drain move_record file users request slot store returning acquire tickets",
    "host/src: netlink spec_index host engine_dirs settings drain discover leases devices pools spec_name generate specdir drift boot
        offers watch",
    "engines/src: version kind installed oci_runtime our_runtime files daemon toml json hcl settings kubernetes variant default_runtime nri containerd
        containerd_drop_in template docker crio podman nomad reader container_dirs engine setup runtime_containers allow",
    "report/src: status metrics doctor topology",
    "hooks/src: decide image config record moves live entry",
    "cluster/agent/src: backoff log last_message host_watch",
    "cluster/kubernetes/src: wire serve socket mounted_directory resources names snapshot observe spec_writer install surveyor plugin
        dra health_changes cli run",
    "cluster/nomad/src: wire cli log settings devices tickets snapshot surveyor statistics plugin",
    "cluster/nri/src: wire journal runtime container answer create session connect cli",
    "src: exit permissions progress printer layout config_file files capture help cli commands",
];
/// The only files with unsafe code: what begins and ends a program, and system calls that no library has.
const UNSAFE: &str = "hooks/src/bin/onload-container-runtime.rs hooks/src/bin/onload-hook.rs
    hooks/src/entry/allocator.rs hooks/src/entry/program.rs hooks/src/entry/wrapper/exec.rs
    src/commands/probe/system.rs sys/src/bpf/syscall.rs sys/src/child.rs sys/src/ethtool.rs sys/src/mount_api.rs sys/src/netns.rs";
/// The crates that stay synchronous and know no command line, and how the names begin that they do without.
const SMALL: &str = "onload-cdi onload-sys onload-core onload-lease onload-hooks onload-host onload-engines onload-report onload-nri";
const LARGE: &str = "tokio async- futures hyper tonic reqwest smol mio clap argh lexopt pico-args";

/// The modules of a crate by their names from its root, each with a `/` behind it, with their files and the code in them
/// that is not for tests. The root's name is empty.
type Modules = BTreeMap<String, (String, String)>;
/// Paths as written, each name with a `/` behind it, and their lines.
type Paths = Vec<(usize, String)>;
/// From one module to another, with the first line that leads there.
type Arrows = BTreeMap<(String, String), String>;

fn rust_files(src: &str) -> Vec<String> {
    walkdir::WalkDir::new(package().join(src))
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .map(|path| path.strip_prefix(package()).unwrap().display().to_string())
        .filter(|name| name.ends_with(".rs"))
        .collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(package().join(file)).unwrap()
}

/// The modules of the library below `src`, without those that are only for tests.
fn modules(src: &str) -> Modules {
    let mut found = Modules::new();
    let mut tests = Vec::new();
    for file in rust_files(src) {
        let path = file[src.len() + 1..].strip_suffix(".rs").unwrap();
        let directory = path.strip_suffix("mod").or(path.strip_suffix("lib"));
        let path = directory.map_or(format!("{path}/"), str::to_owned);
        let text = read(&file);
        let lines: Vec<&str> = text.lines().collect();
        let names = lines
            .windows(2)
            .filter(|pair| is_for_tests(pair[0]))
            .filter_map(|pair| pair[1].strip_suffix(';')?.rsplit_once("mod "));
        tests.extend(names.map(|(_, name)| format!("{path}{name}/")));
        if !path.starts_with("bin/") && path != "main/" {
            found.insert(path, (file, code(&text)));
        }
    }
    found.retain(|module, _| !tests.iter().any(|tests| module.starts_with(tests)));
    found
}

fn is_for_tests(line: &str) -> bool {
    let attributes =
        ["#[cfg(test)]", "#[cfg(all(test,", "#[test]", "#[cfg(feature = \"stand-ins\")]"];
    attributes.iter().any(|attribute| line.trim_start().starts_with(attribute))
}

/// The text without comments and items for tests, line for line. An item ends, as rustfmt writes it, with the
/// first line as far left as its beginning that ends a statement and is no end of a string.
fn code(text: &str) -> String {
    let mut item = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        item = item.or((is_for_tests(line)).then_some(indent));
        let code = line.split("//").next().unwrap();
        lines.push(if item.is_some() { "" } else { code });
        let ends = words.ends_with([';', '}', ',']) && !words.starts_with('"');
        item = item.filter(|at| *at != indent || !ends);
    }
    lines.join("\n")
}

/// Names, `::`, and every other character that is no space, with their lines.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match rest.find(|c: char| !c.is_alphanumeric() && c != '_') {
                Some(0) if rest.starts_with("::") => 2,
                Some(0) => first.len_utf8(),
                length => length.unwrap_or(rest.len()),
            };
            tokens.push((number + 1, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Reads the path that begins at a token, or several: `a::{b, c::d}` is two. Gives where it ends.
fn gather(tokens: &[(usize, &str)], start: usize, before: &str, found: &mut Paths) -> usize {
    let token = |at: usize| tokens.get(at).map_or("", |(_, token)| *token);
    let mut at = start;
    let mut path = before.to_owned();
    while is_name(token(at)) {
        path = path + token(at) + "/";
        at += 1 + usize::from(token(at + 1) == "::");
    }
    if token(at) != "{" || token(at - 1) != "::" {
        found.push((tokens[start].0, path));
        return at;
    }
    while !matches!(token(at), "}" | "") {
        at += 1;
        if is_name(token(at - 1)) {
            at = gather(tokens, at - 1, &path, found);
        }
    }
    at + 1
}

/// The deepest module that a path in `from` names; `None` for one of another crate.
fn resolve(modules: &Modules, from: &str, path: &str) -> Option<String> {
    let (mut at, mut rest) = (from, path);
    while let Some(after) = rest.strip_prefix("super/") {
        let parent = at.trim_end_matches('/').rfind('/');
        at = parent.map_or("", |end| &at[..=end]);
        rest = after;
    }
    if let Some(after) = rest.strip_prefix("crate/") {
        (at, rest) = ("", after);
    }
    let whole = at.to_owned() + rest.trim_start_matches("self/");
    let is_above = |module: &&String| module.len() >= at.len() && whole.starts_with(*module);
    let named = modules.keys().rfind(is_above)?;
    (named != from).then(|| named.clone())
}

fn arrows(modules: &Modules) -> Arrows {
    let mut arrows = Arrows::new();
    for (from, (file, code)) in modules {
        let tokens = tokens(code);
        let mut paths = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let word = |back: usize| at.checked_sub(back).map_or("", |at| tokens[at].1);
            let is_path = tokens.get(at + 1).is_some_and(|next| next.1 == "::");
            let is_visibility = word(1) == "in" && word(2) == "(";
            let begins = is_name(word(0)) && is_path && word(1) != "::" && !is_visibility;
            at += 1;
            if begins {
                at = gather(&tokens, at - 1, "", &mut paths);
            }
        }
        for (line, path) in paths {
            if let Some(to) = resolve(modules, from, &path) {
                let ends = (from.clone(), to);
                arrows.entry(ends).or_insert(format!("{file}:{line}"));
            }
        }
    }
    arrows
}

/// The lines that close cycles of files, or of modules of one directory with all that is below them: those left when
/// what leads nowhere, or is led to from nowhere, is taken away again and again.
fn cycles(arrows: &Arrows) -> Vec<&String> {
    let mut left = Vec::new();
    for ((from, to), line) in arrows {
        left.push((from.clone(), to.clone(), line));
        let common: usize = from
            .split_inclusive('/')
            .zip(to.split_inclusive('/'))
            .take_while(|(a, b)| a == b)
            .map(|(a, _)| a.len())
            .sum();
        if let (Some(a), Some(b)) = (from[common..].find('/'), to[common..].find('/')) {
            let whole = |path: &str, end: usize| path[..=common + end].to_owned() + "*";
            left.push((whole(from, a), whole(to, b), line));
        }
    }
    loop {
        let leading: BTreeSet<_> = left.iter().map(|(from, ..)| from.clone()).collect();
        let led: BTreeSet<_> = left.iter().map(|(_, to, _)| to.clone()).collect();
        let before = left.len();
        left.retain(|(from, to, _)| led.contains(from) && leading.contains(to));
        if left.len() == before {
            return left.into_iter().map(|(.., line)| line).collect();
        }
    }
}

#[test]
fn modules_use_only_those_before_them_and_nothing_in_a_cycle() {
    for order in ORDERS {
        let (src, order) = order.split_once(": ").unwrap();
        let order: Vec<&str> = order.split_whitespace().chain([""]).collect();
        let place = |module: &str| {
            order
                .iter()
                .position(|name| module.split('/').next() == Some(name))
                .unwrap_or_else(|| panic!("ORDERS: {src} has no place for {module}"))
        };
        let modules = modules(src);
        let arrows = arrows(&modules);
        for ((from, to), line) in &arrows {
            assert!(place(to) <= place(from), "{line}: {to} is above {from}");
        }
        assert_eq!(cycles(&arrows), [""; 0], "{src} has cycles");
    }
}

#[test]
fn every_crate_has_an_order() {
    let manifest: toml_edit::DocumentMut = read("Cargo.toml").parse().unwrap();
    for member in manifest["workspace"]["members"].as_array().unwrap() {
        let src = member.as_str().unwrap().replace('.', "") + "/src: ";
        let has_order = |order: &&str| order.starts_with(src.trim_start_matches('/'));
        let is_listed = ORDERS.iter().any(has_order) || src.starts_with("tests/");
        assert!(is_listed, "ORDERS: {src}");
    }
}

#[test]
fn unsafe_code_stands_only_where_it_may() {
    let mut files: BTreeSet<String> = ORDERS
        .map(|order| rust_files(order.split_once(':').unwrap().0))
        .into_iter()
        .flatten()
        .collect();
    files.retain(|file| read(file).contains("(unsafe_code"));
    assert_eq!(files, UNSAFE.split_whitespace().map(str::to_owned).collect());
}

#[test]
fn small_crates_have_no_async_runtime_and_no_command_line_below_them() {
    let large = |name: &str| -> Vec<String> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args("tree --locked --all-features -e normal,build --prefix none -p".split(' '));
        let output = cargo.arg(name).current_dir(package()).output().unwrap();
        let tree = String::from_utf8(output.stdout).unwrap();
        assert!(tree.starts_with(name), "{name}: {:?}", output.stderr);
        let is_large = |line: &&str| LARGE.split(' ').any(|large| line.starts_with(large));
        tree.lines().filter(is_large).map(str::to_owned).collect()
    };
    for name in SMALL.split(' ') {
        assert_eq!(large(name), [""; 0], "{name}");
    }
    assert_ne!(large("onload-ctk"), [""; 0], "clap is found where it is");
}

#[test]
fn paths_are_found_in_groups_and_behind_names_and_not_in_tests() {
    let files = [
        ("a/", "use crate::{b::{self, X}, dir::{C, c::D}};\npub(in crate::e) fn f() { b::g() }"),
        ("b/", "fn f() { super::dir::c::g() } // crate::e\n#[serde(with = \"crate::a\")]"),
        ("dir/", "mod c;\npub use c::C;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}"),
        ("dir/c/", "#[test]\nfn f() {\n    crate::a::f();\n}\nfn g() { std::fs::read(super::X); }"),
        ("", "fn f(b: b::B) {}"),
    ];
    let file = |(name, text): (&str, &str)| (name.to_owned(), (name.to_owned(), code(text)));
    let found = arrows(&files.into_iter().map(file).collect());
    let lines = found.iter().map(|((_, to), line)| format!("{line} {to}"));
    let expected = ":1 b/, a/:1 b/, a/:1 dir/, a/:1 dir/c/, b/:2 a/, b/:1 dir/c/, dir/:2 dir/c/, dir/c/:5 dir/";
    assert_eq!(lines.collect::<Vec<_>>().join(", "), expected);
    assert!(cycles(&found).contains(&&"b/:2".to_owned()), "{found:?}");
}
