//! Cases of a crate: files of a host, commands, and what these print and change. `hooks/tests/cases/README.md` describes the
//! format.

use std::path::Path;
use std::{env, fs};

use serde_json::{Map, Value};

use crate::{golden, names_in};

/// A case file without its expected output.
pub struct Case {
    /// Comments and files.
    top: String,
    commands: Vec<String>,
}

impl Case {
    fn parse(text: &str) -> Case {
        let mut lines = text.lines().peekable();
        let mut case = Case { top: String::new(), commands: Vec::new() };
        while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
            case.top += &format!("{line}\n");
        }
        for line in lines {
            match (line.strip_prefix("$ "), line.strip_prefix("> "), case.commands.last_mut()) {
                (Some(command), ..) => case.commands.push(command.to_owned()),
                (_, Some(more), Some(last)) => *last += &format!("\n{more}"),
                _ => {}
            }
        }
        case
    }

    /// The words behind `# KEY: `.
    pub fn words(&self, key: &str) -> Vec<&str> {
        let words = self
            .top
            .lines()
            .find_map(|line| line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": "));
        words.into_iter().flat_map(str::split_whitespace).collect()
    }

    pub fn files(&self) -> Vec<(String, String)> {
        sections(&self.top)
    }
}

/// The parts of a text that begin with `-- PATH`. Each ends with a line feed, unless it says otherwise as diffs do.
pub fn sections(text: &str) -> Vec<(String, String)> {
    format!("\n{}", text.trim_end())
        .split("\n-- ")
        .skip(1)
        .map(|section| {
            let (path, text) = section.split_once('\n').unwrap_or((section, ""));
            let text = match text.strip_suffix("\n\\ No newline at end of file") {
                Some(text) => text.to_owned(),
                None if text.is_empty() => String::new(),
                None => format!("{text}\n"),
            };
            (path.to_owned(), text)
        })
        .collect()
}

/// Replays the cases in a directory. `replay` is given the case and returns what runs a command and
/// describes its effect, or `None` to skip the case. With `CASE` set, replays only cases with that text in their name;
/// with `UPDATE_GOLDEN` set, rewrites cases that differ.
#[track_caller]
pub fn check<R: FnMut(&str) -> String>(directory: &str, replay: impl Fn(&Case) -> Option<R>) {
    let directory = Path::new(directory);
    let names = names_in(directory);
    assert!(!names.is_empty(), "{directory:?}");
    let mut failures = String::new();
    for name in names.iter().filter(|name| name.ends_with(".case")) {
        if env::var("CASE").is_ok_and(|filter| !name.contains(&filter)) {
            continue;
        }
        let path = directory.join(name);
        let case = Case::parse(&fs::read_to_string(&path).unwrap());
        let Some(mut run) = replay(&case) else { continue };
        let mut found = case.top.clone();
        for command in &case.commands {
            found += &format!("$ {}\n{}", command.replace('\n', "\n> "), run(command));
        }
        if let Some(diff) = golden::compare(&path, &found) {
            failures += &format!("{name}:\n{diff}");
        }
    }
    assert!(failures.is_empty(), "{failures}to accept it, set UPDATE_GOLDEN=1");
}

/// A line without the words of a system call's error, which differ between C libraries; its number stays.
pub fn mask_error(line: &str) -> String {
    let parts = line.split_once(" (os error ").and_then(|(before, number)| {
        let (before, _) = before.rsplit_once(": ")?;
        Some(format!("{before}: ... (os error {number}"))
    });
    parts.unwrap_or_else(|| line.to_owned())
}

/// Applies a JSON merge patch (RFC 7396). A key that ends in `+` appends to an array, and the value `"<null>"` is null.
pub fn merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(members) => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            let map = target.as_object_mut().unwrap();
            for (key, value) in members {
                if let Some(key) = key.strip_suffix('+') {
                    let array = map.entry(key).or_insert_with(|| Value::Array(Vec::new()));
                    array.as_array_mut().unwrap().extend(value.as_array().unwrap().iter().cloned());
                } else if value.is_null() {
                    map.remove(key);
                } else {
                    merge(map.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        Value::String(text) if text == "<null>" => *target = Value::Null,
        other => *target = other.clone(),
    }
}

/// The members of a configuration, one a line; elements of an array are lines of their own.
pub fn flatten(config: &Value) -> Vec<String> {
    fn add(path: &str, value: &Value, lines: &mut Vec<String>) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                members.iter().for_each(|(key, value)| {
                    let dot = if path.is_empty() { "" } else { "." };
                    add(&format!("{path}{dot}{key}"), value, lines);
                });
            }
            Value::Array(elements) if !elements.is_empty() => {
                lines.extend(elements.iter().map(|element| format!("{path}[] {element}")));
            }
            value => lines.push(format!("{path} {value}")),
        }
    }
    let mut lines = Vec::new();
    add("", config, &mut lines);
    lines
}

/// The lines that only one of two lists has.
pub fn changes(old: &[String], new: &[String]) -> String {
    let only = |sign: &str, all: &[String], other: &[String]| -> String {
        let lines = all.iter().filter(|line| !other.contains(line));
        lines.map(|line| format!("{sign} {line}\n")).collect()
    };
    only("-", old, new) + &only("+", new, old)
}
