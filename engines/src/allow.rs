//! The policy in `config.toml`: the classes that annotations may request.

use anyhow::Result;
use onload_core::class::Class;
use onload_core::config::Config;
use toml_edit::{Array, Value};

use crate::toml::{get, get_or_create_array, get_or_create_section, parse, render};

const SECTION: &str = "annotations";
const KEY: &str = "allow";
/// How the packaged file shows the default.
const DEFAULT_LINE: &str = "#allow = []";

pub fn allow_classes(text: &str, classes: &[Class]) -> Result<String> {
    let allowed = Config::parse(text)?.annotations.allow;
    let mut missing: Vec<Class> = Vec::new();
    for class in classes {
        if !allowed.contains(class) && !missing.contains(class) {
            missing.push(*class);
        }
    }
    if missing.is_empty() {
        return Ok(text.to_owned());
    }
    let edited = match uncomment(text, &missing) {
        Some(edited) => edited,
        None => add_classes(text, &missing)?,
    };
    let now = Config::parse(&edited)?.annotations.allow;
    debug_assert!(classes.iter().all(|class| now.contains(class)));
    Ok(edited)
}

fn add_classes(text: &str, classes: &[Class]) -> Result<String> {
    let mut document = parse(text)?;
    let table = get_or_create_section(&mut document, &[SECTION])?;
    table.set_implicit(false);
    let list = get_or_create_array(table, KEY)?;
    for class in classes {
        list.push(class.as_str());
    }
    Ok(render(&document, text))
}

/// Puts the setting where the packaged file shows its default, below its explanation.
fn uncomment(text: &str, classes: &[Class]) -> Option<String> {
    if get(&*parse(text).ok()?, &[SECTION, KEY]).is_some() {
        return None;
    }
    let header = text.find(&format!("\n[{SECTION}]\n"))? + 1;
    let inside = text.get(header + 1..)?;
    let end = inside.find("\n[").unwrap_or(inside.len());
    let line = inside.get(..end)?.find(&format!("\n{DEFAULT_LINE}\n"))?;
    let start = header + 1 + line + 1;
    let list: Array = classes.iter().map(|class| class.as_str()).collect();
    let mut edited = text.to_owned();
    let list = Value::Array(list).to_string();
    let setting = format!("{KEY} = {}", list.trim());
    edited.replace_range(start..start + DEFAULT_LINE.len(), &setting);
    Some(edited)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGED: &str = include_str!("../../packaging/config.toml");

    fn classes(text: &str) -> Vec<Class> {
        Config::parse(text).unwrap().annotations.allow
    }

    #[test]
    fn the_packaged_file_gets_the_setting_where_it_shows_the_default() {
        let edited = allow_classes(PACKAGED, &[Class::Nic, Class::Rdma, Class::Nic]).unwrap();
        // The second list is what variables may ask for.
        let expected = PACKAGED.replacen("#allow = []", "allow = [\"nic\", \"rdma\"]", 1);
        assert_eq!(edited, expected);
        assert_eq!(classes(&edited), [Class::Nic, Class::Rdma]);
    }

    #[test]
    fn classes_are_added_behind_those_that_are_allowed() {
        let cases = [
            ("", "[annotations]\nallow = [\"rdma\"]\n"),
            (
                "# mine\n[annotations]\nallow = [\"nic\"] # why\nlive-devices = false\n",
                "# mine\n[annotations]\nallow = [\"nic\", \"rdma\"] # why\nlive-devices = false\n",
            ),
            ("annotations.allow = []\n", "annotations.allow = [\"rdma\"]\n"),
            (
                "[cdi]\n#preload = \"env\"\n",
                "[cdi]\n#preload = \"env\"\n\n[annotations]\nallow = [\"rdma\"]\n",
            ),
            ("# mine", "# mine\n[annotations]\nallow = [\"rdma\"]\n"),
            (
                "[cdi]\nkinds = [\"all\"]\n",
                "[cdi]\nkinds = [\"all\"]\n\n[annotations]\nallow = [\"rdma\"]\n",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(allow_classes(text, &[Class::Rdma]).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_allowed_already_changes_nothing() {
        let text = "[annotations]\n  allow=['rdma' ,\"nic\"]#x";
        assert_eq!(allow_classes(text, &[Class::Nic, Class::Rdma]).unwrap(), text);
        assert_eq!(allow_classes(PACKAGED, &[]).unwrap(), PACKAGED);
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused() {
        for text in [
            "[annotations]\nallow = \"nic\"\n",
            "[annotations]\nallow = [\"nick\"]\n",
            "[annotation]\n",
            "annotations = 1\n",
            "[annotations\n",
        ] {
            assert!(allow_classes(text, &[Class::Rdma]).is_err(), "{text:?}");
        }
    }
}
