//! The links of every page lead somewhere: to a file of the project, and to a heading in it. So do the
//! paths of source files in ARCHITECTURE.md.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page below a directory but those of captured hosts, and what builds leave.
fn pages(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        let is_ours = name != "target" && !name.as_encoded_bytes().starts_with(b".");
        let is_host = directory.ends_with("tests/hosts");
        if entry.file_type().unwrap().is_dir() {
            if is_ours && !is_host {
                pages(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

fn all_pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    pages(package(), &mut found);
    found.sort();
    found
}

/// The lines of a page with their numbers, without those of code blocks.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, None) => lines.push((index + 1, line)),
            (None, Some(_)) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
        }
    }
    lines
}

/// A line without what stands in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Where the links of a line lead: `[text](target)`, or `[name]: target`.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    let target = |rest: &str| {
        let end = rest.find([')', ' ']).unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    let mut found: Vec<String> = line.split("](").skip(1).map(target).collect();
    if line.starts_with('[')
        && let Some((_, rest)) = line.split_once("]: ")
    {
        found.push(target(rest));
    }
    found
}

/// The anchors of a page's headings: in lower case, without punctuation, with `-` for a blank; one that
/// comes again gets a number.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).into_iter().map(|(_, line)| line).filter_map(|line| {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        (1..=6).contains(&level).then(|| title.strip_prefix(' ')).flatten()
    });
    let anchors = headings.map(|title| {
        let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let words: String = shown(title).trim().chars().filter(is_kept).collect();
        let anchor = words.to_lowercase().replace(' ', "-");
        let times = seen.entry(anchor.clone()).or_default();
        *times += 1;
        match *times {
            1 => anchor,
            times => format!("{anchor}-{}", times - 1),
        }
    });
    anchors.collect()
}

/// A heading without the targets of its links.
fn shown(title: &str) -> String {
    let mut parts = title.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| shown + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// What is wrong with a link of a page, if anything.
fn fault(root: &Path, page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let path = match path {
        "" => page.to_owned(),
        path => page.parent().unwrap().join(path),
    };
    let Ok(path) = path.canonicalize() else {
        return Some("there is no such file".to_owned());
    };
    if !path.starts_with(root.canonicalize().unwrap()) {
        return Some("it leaves the project".to_owned());
    }
    let anchor = anchor?;
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    if !is_page || !anchors(&fs::read_to_string(&path).unwrap()).contains(&anchor.to_owned()) {
        return Some("there is no such heading".to_owned());
    }
    None
}

/// The links of a page that lead nowhere, and why.
fn broken(root: &Path, page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let name = page.strip_prefix(root).unwrap().display();
    let mut broken = Vec::new();
    for (number, line) in prose(&text) {
        if line.matches('`').count() % 2 != 0 {
            broken.push(format!("{name}:{number}: a backtick has no second one on its line"));
        }
        for target in links(line) {
            if let Some(fault) = fault(root, page, &target) {
                broken.push(format!("{name}:{number}: {target}: {fault}"));
            }
        }
    }
    broken
}

/// Paths in backticks that look like a source file or a directory of the project and are none. One may
/// be written from the root, or from a directory that its paragraph links to or that holds a file which
/// it links to.
fn gone(root: &Path, page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let mut gone = Vec::new();
    for paragraph in paragraphs(&text) {
        let mut bases = vec![root.to_owned()];
        for target in paragraph.iter().flat_map(|(_, line)| links(line)) {
            let target = page.parent().unwrap().join(target);
            bases.extend(target.parent().map(Path::to_owned));
            bases.push(target);
        }
        for (number, line) in paragraph {
            for path in code(line).filter(|code| is_source(code)) {
                if !bases.iter().any(|base| base.join(path).exists()) {
                    let name = page.strip_prefix(root).unwrap().display();
                    gone.push(format!("{name}:{number}: {path}: there is no such file"));
                }
            }
        }
    }
    gone
}

/// `fs/trust.rs` and `host/`; not `/run/onload-ctk/`, which is a host's.
fn is_source(code: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let is_relative = !code.starts_with('/') && code.chars().all(is_plain);
    is_relative && (code.ends_with(".rs") || code.ends_with('/'))
}

/// Lines that belong together: up to an empty one, or to the next point of a list.
fn paragraphs(text: &str) -> Vec<Vec<(usize, &str)>> {
    let mut paragraphs = vec![Vec::new()];
    for (number, line) in prose(text) {
        if line.trim().is_empty() || line.trim_start().starts_with("- ") {
            paragraphs.push(Vec::new());
        }
        paragraphs.last_mut().unwrap().push((number, line));
    }
    paragraphs
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = all_pages();
    let has = |name: &str| pages.iter().any(|page| page.ends_with(name));
    for name in ["README.md", "CHANGELOG.md", "docs/entry-points.md", "tests/hosts/README.md"] {
        assert!(has(name), "{name} is not among {pages:?}");
    }
    let broken: Vec<String> = pages.iter().flat_map(|page| broken(package(), page)).collect();
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn every_page_of_docs_is_linked() {
    let docs = package().join("docs");
    let mut linked = Vec::new();
    let is_read = |page: &PathBuf| page.starts_with(&docs) || page.ends_with("README.md");
    for page in all_pages().into_iter().filter(is_read) {
        let text = fs::read_to_string(&page).unwrap();
        let paths = prose(&text).into_iter().flat_map(|(_, line)| links(line)).map(|target| {
            let file = target.split('#').next().unwrap().to_owned();
            page.parent().unwrap().join(file)
        });
        linked.extend(paths.filter_map(|path| path.canonicalize().ok()).filter(|to| *to != page));
    }
    for page in all_pages().iter().filter(|page| page.starts_with(&docs)) {
        let page = page.canonicalize().unwrap();
        assert!(linked.contains(&page), "nothing leads to {}", page.display());
    }
}

#[test]
fn every_source_file_that_the_architecture_names_is_there() {
    let page = package().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&page).unwrap();
    let named = text.lines().flat_map(code).filter(|code| is_source(code));
    assert!(named.count() > 20);
    let gone = gone(package(), &page);
    assert!(gone.is_empty(), "\n{}\n", gone.join("\n"));
}

/// A directory with a page of this text in `docs/`, and more beside it.
fn project(text: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("docs/a")).unwrap();
    fs::create_dir_all(root.path().join("src")).unwrap();
    let other =
        "# One `word`, two\n## Again\n## Again\n```sh\n# no heading\n```\n## A [link](page.md)\n";
    fs::write(root.path().join("docs/other.md"), other).unwrap();
    fs::write(root.path().join("docs/page.md"), text).unwrap();
    fs::write(root.path().join("docs/a/file.rs"), "").unwrap();
    fs::write(root.path().join("src/b.rs"), "").unwrap();
    root
}

fn broken_in(text: &str) -> Vec<String> {
    let root = project(text);
    broken(root.path(), &root.path().join("docs/page.md"))
}

#[test]
fn a_link_that_leads_nowhere_is_named() {
    for (target, fault) in [
        ("gone.md", "there is no such file"),
        ("../docs/Other.md", "there is no such file"),
        ("a/gone", "there is no such file"),
        ("other.md#one", "there is no such heading"),
        ("other.md#no-heading", "there is no such heading"),
        ("other.md#again-2", "there is no such heading"),
        ("other.md#", "there is no such heading"),
        ("#again", "there is no such heading"),
        ("a#file", "there is no such heading"),
        ("a/file.rs#L1", "there is no such heading"),
        ("/usr/bin", "it leaves the project"),
        ("../..", "it leaves the project"),
    ] {
        let expected = [format!("docs/page.md:3: {target}: {fault}")];
        assert_eq!(broken_in(&format!("# Page\n\n[x]({target})\n")), expected);
        assert_eq!(broken_in(&format!("# Page\n\n[x]: {target}\n")), expected);
    }
    let two = broken_in("[a](gone.md) and ![b](gone.png), [c](other.md)");
    assert_eq!(two.len(), 2, "{two:?}");
    // Which words are code could not be told.
    let expected = ["docs/page.md:1: a backtick has no second one on its line"];
    assert_eq!(broken_in("`code\n"), expected);
}

#[test]
fn a_link_to_what_is_there_is_fine() {
    for target in [
        "other.md",
        "../docs/other.md#one-word-two",
        "other.md#again",
        "other.md#again-1",
        "other.md#a-link",
        "#page-1",
        "a/",
        "a/file.rs",
        "a/file.rs \"title\"",
        "https://example.com/gone.md#x",
    ] {
        assert_eq!(broken_in(&format!("# Page\n# Page\n[x]({target})\n")), [""; 0]);
    }
    // Code holds no links.
    assert_eq!(broken_in("`[x](gone)`\n```\n[x](gone)\n```\n"), [""; 0]);
}

#[test]
fn a_path_of_no_source_file_is_named() {
    let gone = |text: &str| {
        let root = project(text);
        gone(root.path(), &root.path().join("docs/page.md"))
    };
    for fine in [
        "`src/b.rs` and `src/`",
        "[x](a/): `file.rs`",
        "[`file.rs`](a/file.rs) and `other.md`, `gone.toml`, `/run/gone/`, `a b/`",
        "[`b.rs`](../src/b.rs),\nthen `b.rs`",
    ] {
        assert_eq!(gone(fine), [""; 0], "{fine}");
    }
    for (wrong, path) in [
        ("`src/gone.rs`", "src/gone.rs"),
        ("`gone/`", "gone/"),
        ("`file.rs`", "file.rs"),
        ("[x](a/): `b.rs`", "b.rs"),
        ("`file.rs`\n\n[x](a/)", "file.rs"),
        ("- `file.rs`\n- [x](a/)", "file.rs"),
    ] {
        let expected = format!("{path}: there is no such file");
        let gone = gone(wrong);
        assert!(gone.len() == 1 && gone[0].ends_with(&expected), "{wrong}: {gone:?}");
    }
}
