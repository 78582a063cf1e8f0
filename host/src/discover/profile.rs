//! Onload profiles: shell fragments whose settings are read and never executed.
//!
//! Source: Onload, `scripts/onload` (`onload_set`, `onload_import`). A variable that is already set is not changed, so
//! the first setting of a name counts; a fragment can only be imported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_core::class::Class;
use serde::Serialize;

use crate::discover::exclusion::Exclusion;
use crate::discover::probe::Probe;
use crate::discover::taken_names;

/// Depth of nested imports; the longest chain that Onload ships has three.
const MAX_IMPORT_DEPTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Profile {
    pub name: String,
    #[serde(skip)]
    pub settings: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Statement {
    Set { name: String, value: String },
    Import(String),
}

pub(crate) fn read(probe: &Probe<'_>, dir: &Path) -> Vec<Profile> {
    let files = probe.list(dir);
    let mut profiles = Vec::new();
    for name in files.iter().filter_map(|file| file.strip_suffix(".opf")) {
        match read_profile(probe, dir, &files, name) {
            Ok(profile) => profiles.push(profile),
            Err(reason) => probe.exclude(Exclusion::new(Class::Profile, name, reason)),
        }
    }
    // Sorted by file name, latency-best.opf would come before latency.opf.
    profiles.sort_by(|one, other| one.name.cmp(&other.name));
    profiles
}

fn read_profile(
    probe: &Probe<'_>,
    dir: &Path,
    files: &[String],
    name: &str,
) -> Result<Profile, String> {
    taken_names::check_name(name).map_err(|problem| format!("{problem}; rename its file"))?;
    let mut settings = BTreeMap::new();
    let mut importing = BTreeSet::new();
    collect(probe, dir, files, &format!("{name}.opf"), &mut importing, &mut settings)?;
    if settings.is_empty() {
        return Err("it has no settings; add a line onload_set".to_owned());
    }
    Ok(Profile { name: name.to_owned(), settings })
}

fn collect(
    probe: &Probe<'_>,
    dir: &Path,
    files: &[String],
    file: &str,
    importing: &mut BTreeSet<String>,
    settings: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    if importing.len() >= MAX_IMPORT_DEPTH || !importing.insert(file.to_owned()) {
        return Err(format!("{file} imports itself, or too many files; remove the import"));
    }
    let text = probe
        .ok_or_warn(probe.host().text(&dir.join(file)))
        .ok_or_else(|| format!("{file} cannot be read; check that file"))?;
    let statements = parse(&text).map_err(|(line, text)| {
        format!(
            "{file} line {line}: {text:?} is shell code, which is not executed; set its variables \
             in the container"
        )
    })?;
    for statement in statements {
        match statement {
            Statement::Set { name, value } => drop(settings.entry(name).or_insert(value)),
            Statement::Import(other) => {
                let candidates = [format!("{other}.opf"), format!("{other}.opf-fragment")];
                let imported = candidates
                    .iter()
                    .find(|candidate| files.contains(candidate))
                    .ok_or_else(|| format!("{file} imports {other}, which does not exist; install it, or remove the import"))?;
                collect(probe, dir, files, imported, importing, settings)?;
            }
        }
    }
    importing.remove(file);
    Ok(())
}

/// Parses a profile. Fails with the number and text of an invalid line.
fn parse(text: &str) -> Result<Vec<Statement>, (usize, String)> {
    let mut statements = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let not_understood = || (index + 1, line.trim().to_owned());
        let words = split_words(line).ok_or_else(not_understood)?;
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => {}
            ["onload_set", name, value] => {
                statements.push(set(name, value).ok_or_else(not_understood)?);
            }
            ["onload_set", assignment] => {
                let statement = assignment
                    .split_once('=')
                    .filter(|(_, value)| !value.contains('='))
                    .and_then(|(name, value)| set(name, value));
                statements.push(statement.ok_or_else(not_understood)?);
            }
            ["onload_import", other] if !other.contains('/') => {
                statements.push(Statement::Import(other.to_owned()));
            }
            _ => return Err(not_understood()),
        }
    }
    Ok(statements)
}

fn set(name: &str, value: &str) -> Option<Statement> {
    (is_setting(name) && !value.is_empty())
        .then(|| Statement::Set { name: name.to_owned(), value: value.to_owned() })
}

/// Returns whether a profile may set this variable.
fn is_setting(name: &str) -> bool {
    let rest = name.strip_prefix("EF_").unwrap_or_default();
    !rest.is_empty()
        && rest
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Returns the words of a shell line without expansions, or `None` for other lines. Quotes are removed, and a comment
/// ends the line.
fn split_words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '$' | '`' | '\\') => return None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ' | '\t' | '\r') => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            (
                None,
                '|' | '&' | ';' | '<' | '>' | '(' | ')' | '{' | '}' | '*' | '?' | '[' | '~' | '!',
            ) => {
                return None;
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return None;
    }
    words.extend(word);
    // A control character does not belong in a setting, nor a NUL in an environment.
    let clean = words.iter().all(|word| !word.chars().any(char::is_control));
    clean.then_some(words)
}

/// For the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz(text: &str) {
    for statement in parse(text).unwrap_or_default() {
        match statement {
            Statement::Set { name, value } => {
                assert!(is_setting(&name) && !value.is_empty());
                assert!(!value.contains(['\0', '\n']));
            }
            Statement::Import(other) => assert!(!other.contains('/')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Statement {
        Statement::Set { name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn settings_imports_and_comments_are_read() {
        let text = "# comment\n\nonload_import throughput_base\n  onload_set EF_POLL_USEC 20 # why\n\
                    onload_set EF_A=1\nonload_set EF_B \"a b\"\nonload_set EF_C 'x$y'\n";
        let expected = vec![
            Statement::Import("throughput_base".to_owned()),
            set("EF_POLL_USEC", "20"),
            set("EF_A", "1"),
            set("EF_B", "a b"),
            set("EF_C", "x$y"),
        ];
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn a_line_that_only_a_shell_understands_is_refused_with_its_number() {
        let refused = [
            "if [ -z \"$EF_CTPIO_MODE\" ]; then",
            "fi",
            "onload_set EF_A $EF_B",
            "onload_set EF_A $(( 1 + 1 ))",
            "onload_set EF_A `id`",
            "onload_set EF_A \"$(id)\"",
            "onload_set EF_A 1; rm -rf /",
            "onload_set EF_A 1 2",
            "onload_set EF_A",
            "onload_set EF_A=",
            "onload_set EF_A ''",
            "onload_set LD_PRELOAD /tmp/x.so",
            "onload_set ef_a 1",
            "onload_import ../../etc/passwd",
            "onload_set EF_A 'unfinished",
            "onload_set EF_A a\\",
            "log \"hello\"",
            "export EF_A=1",
            "onload_set EF_A \u{1}",
        ];
        for line in refused {
            let text = format!("# first\n{line}\n");
            assert_eq!(parse(&text), Err((2, line.to_owned())), "{line}");
        }
    }
}
