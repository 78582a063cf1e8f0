//! A JSON text in which single members are set and removed. Every other byte stays unchanged.

use std::fmt;
use std::ops::Range;

use anyhow::{Result, anyhow, bail};
use serde::Deserializer;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

const DEFAULT_INDENT: &str = "  ";

/// A JSON document with an object at the top level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonText {
    pub(crate) text: String,
}

#[derive(Debug)]
struct ObjectSpan {
    /// From its opening brace to just after its closing one.
    span: Range<usize>,
    members: Vec<MemberSpan>,
}

#[derive(Debug)]
struct MemberSpan {
    key: String,
    /// The quote that opens the key.
    start: usize,
    value: Range<usize>,
}

#[derive(Clone, Debug)]
struct JsonStyle {
    /// The line ending and the indentation of one level; `None` for a text on one line.
    lines: Option<(&'static str, String)>,
    colon: &'static str,
}

impl JsonText {
    /// Parses a text. A text of only white space is an empty object. A byte order mark stays at its
    /// start.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut json = JsonText { text: text.to_owned() };
        if without_mark(text).trim().is_empty() {
            json.text.truncate(text.len() - without_mark(text).len());
            json.text.push_str("{}\n");
        }
        json.root()?;
        Ok(json)
    }

    /// The value at a path of keys; `None` if one of them does not exist. Fails if a value on the path is not an
    /// object. `null` counts as an empty object, as in Go.
    pub(crate) fn get(&self, path: &[&str]) -> Result<Option<Value>> {
        let Some(span) = self.find(path)? else { return Ok(None) };
        let value = self.text.get(span).unwrap_or_default();
        Ok(Some(serde_json::from_str(value)?))
    }

    pub(crate) fn keys(&self) -> Result<Vec<String>> {
        let members = self.root()?.members;
        Ok(members.into_iter().map(|member| member.key).collect())
    }

    pub(crate) fn set(&mut self, path: &[&str], value: &Value) -> Result<()> {
        let style = self.style()?;
        if let Some(span) = self.find(path)? {
            let rendered = style.render(value, path.len());
            self.text.replace_range(span, &rendered);
            return Ok(());
        }
        let (parent, rest) = self.parent(path)?;
        if let Some((key, below)) = rest.split_first() {
            let null = parent.members.iter().find(|member| member.key == *key);
            let value = below.iter().rev().fold(value.clone(), |value, key| {
                Value::Object([((*key).to_owned(), value)].into_iter().collect())
            });
            let depth = path.len() - below.len();
            if let Some(null) = null {
                self.text.replace_range(null.value.clone(), &style.render(&value, depth));
                return Ok(());
            }
            self.insert(&parent, &style, depth, key, &value);
        }
        Ok(())
    }

    /// Whether it existed.
    pub(crate) fn remove(&mut self, path: &[&str]) -> Result<bool> {
        let (parent, rest) = self.parent(path)?;
        let mut members = parent.members.iter();
        let Some(index) = members.position(|member| [member.key.as_str()] == *rest) else {
            return Ok(false);
        };
        self.text.replace_range(parent.removal_range(index), "");
        Ok(true)
    }

    fn root(&self) -> Result<ObjectSpan> {
        let start = self.text.len() - without_mark(&self.text).trim_start().len();
        parse_object(&self.text, start..self.text.trim_end().len())
    }

    fn find(&self, path: &[&str]) -> Result<Option<Range<usize>>> {
        let (parent, rest) = self.parent(path)?;
        let member = parent.members.into_iter().find(|member| [member.key.as_str()] == *rest);
        Ok(member.map(|member| member.value))
    }

    /// The innermost object on the way to a value, and the keys from there on.
    fn parent<'p, 'k>(&self, mut path: &'p [&'k str]) -> Result<(ObjectSpan, &'p [&'k str])> {
        let mut parent = self.root()?;
        while let [key, rest @ ..] = path
            && !rest.is_empty()
            && let Some(member) = parent.members.iter().find(|member| member.key == *key)
            && self.text.get(member.value.clone()) != Some("null")
        {
            (parent, path) = (parse_object(&self.text, member.value.clone())?, rest);
        }
        Ok((parent, path))
    }

    fn style(&self) -> Result<JsonStyle> {
        let root = self.root()?;
        let Some(first) = root.members.first() else {
            return Ok(JsonStyle { lines: Some(("\n", DEFAULT_INDENT.to_owned())), colon: ": " });
        };
        let before = self.text.get(root.span.start + 1..first.start).unwrap_or_default();
        let line_end = if before.contains("\r\n") { "\r\n" } else { "\n" };
        let indent = before.rsplit_once('\n').map(|(_, indent)| indent);
        let is_tight = self.text.get(..first.value.start).is_some_and(|text| text.ends_with(':'));
        Ok(JsonStyle {
            lines: indent.map(|indent| (line_end, indent.to_owned())),
            colon: if is_tight { ":" } else { ": " },
        })
    }

    fn insert(
        &mut self,
        parent: &ObjectSpan,
        style: &JsonStyle,
        depth: usize,
        key: &str,
        value: &Value,
    ) {
        let member = format!("{}{}{}", Value::from(key), style.colon, style.render(value, depth));
        match parent.members.last() {
            Some(last) => {
                let from = match parent.members.as_slice() {
                    [.., previous, _] => previous.value.end,
                    _ => parent.span.start,
                };
                let space = self.text.get(from..last.start).unwrap_or_default();
                let space = match space.find(['\r', '\n']) {
                    Some(line) => space.get(line..).unwrap_or_default(),
                    None if style.colon == ":" => "",
                    None => " ",
                };
                let end = last.value.end;
                self.text.insert_str(end, &format!(",{space}{member}"));
            }
            None => {
                let inside = format!(
                    "{{{}{member}{}}}",
                    style.line(depth),
                    style.line(depth.saturating_sub(1))
                );
                self.text.replace_range(parent.span.clone(), &inside);
            }
        }
    }
}

impl ObjectSpan {
    /// The range that is removed with a member: the comma before it, or after it if it is the
    /// first; all white space if it is the only one.
    fn removal_range(&self, index: usize) -> Range<usize> {
        let inside = self.span.start + 1..self.span.end.saturating_sub(1);
        let before = index.checked_sub(1).and_then(|i| self.members.get(i));
        let (this, next) = (self.members.get(index), self.members.get(index + 1));
        match (before, this, next) {
            (Some(before), Some(this), _) => before.value.end..this.value.end,
            (None, Some(this), Some(next)) => this.start..next.start,
            _ => inside,
        }
    }
}

impl JsonStyle {
    fn line(&self, depth: usize) -> String {
        let line = self.lines.as_ref();
        line.map_or_else(String::new, |(end, indent)| format!("{end}{}", indent.repeat(depth)))
    }

    fn render(&self, value: &Value, depth: usize) -> String {
        let Value::Object(members) = value else { return value.to_string() };
        let members: Vec<String> = members
            .iter()
            .map(|(key, value)| {
                let (key, value) = (Value::from(key.as_str()), self.render(value, depth + 1));
                format!("{}{key}{}{value}", self.line(depth + 1), self.colon)
            })
            .collect();
        format!("{{{}{}}}", members.join(","), self.line(depth))
    }
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Visitor<'de> for Members<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
            self.0.push((key, value));
        }
        Ok(self)
    }
}

/// The text after its byte order mark, which dockerd skips (`getConflictFreeConfiguration`).
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Describes an error in the part of a text that begins at `start`, with its line and column in the whole text.
fn describe_error(text: &str, start: usize, error: &serde_json::Error) -> anyhow::Error {
    let above = text.get(..start).unwrap_or_default();
    let line = above.matches('\n').count() + error.line();
    let first_line = above.rsplit('\n').next().unwrap_or_default();
    let column = error.column() + if error.line() == 1 { first_line.len() } else { 0 };
    let message = error.to_string();
    let reason = message.split(" at line ").next().unwrap_or_default();
    anyhow!("{reason} at line {line} column {column}")
}

fn parse_object(text: &str, span: Range<usize>) -> Result<ObjectSpan> {
    let inner = text.get(span.clone()).unwrap_or_default();
    let mut reader = serde_json::Deserializer::from_str(inner);
    let Members(object) = reader
        .deserialize_map(Members(Vec::new()))
        .and_then(|object| reader.end().map(|()| object))
        .map_err(|error| describe_error(text, span.start, &error))?;
    let mut members: Vec<MemberSpan> = Vec::with_capacity(object.len());
    let mut end = span.start + 1;
    for (key, value) in object {
        if members.iter().any(|member| member.key == key) {
            bail!("key {key:?} appears twice");
        }
        // Both are in one text, so the difference of their addresses is the position.
        let start = value.get().as_ptr().addr() - text.as_ptr().addr();
        let between = text.get(end..start).unwrap_or_default();
        let quote = end + between.find('"').unwrap_or_default();
        end = start + value.get().len();
        members.push(MemberSpan { key, start: quote, value: start..end });
    }
    Ok(ObjectSpan { span, members })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(text: &str, path: &[&str], value: &Value) -> String {
        let mut json = JsonText::parse(text).unwrap();
        json.set(path, value).unwrap();
        json.text
    }

    fn removed(text: &str, path: &[&str]) -> String {
        let mut json = JsonText::parse(text).unwrap();
        json.remove(path).unwrap();
        json.text
    }

    #[test]
    fn a_member_is_added_in_the_layout_of_the_text() {
        let cases = [
            ("", "{\n  \"a\": {\n    \"b\": true\n  }\n}\n"),
            ("{}", "{\n  \"a\": {\n    \"b\": true\n  }\n}"),
            ("{\"x\":1}", "{\"x\":1,\"a\":{\"b\":true}}"),
            ("{ \"x\": 1 }\n", "{ \"x\": 1, \"a\": {\"b\": true} }\n"),
            ("{\n\t\"x\": 1.0e2\n}\n", "{\n\t\"x\": 1.0e2,\n\t\"a\": {\n\t\t\"b\": true\n\t}\n}\n"),
            (
                "{\r\n    \"x\": 1,\r\n    \"a\": { }\r\n}",
                "{\r\n    \"x\": 1,\r\n    \"a\": {\r\n        \"b\": true\r\n    }\r\n}",
            ),
            ("{\n  \"a\": {\"c\": null}\n}\n", "{\n  \"a\": {\"c\": null, \"b\": true}\n}\n"),
            (
                "{\n  \"a\": {\"c\": null, \"d\": 1}\n}\n",
                "{\n  \"a\": {\"c\": null, \"d\": 1, \"b\": true}\n}\n",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(set(text, &["a", "b"], &json!(true)), expected, "{text:?}");
        }
    }

    #[test]
    fn a_value_that_is_there_is_replaced_in_place() {
        let text = "{ \"a\" : { \"b\" :false , \"c\":1 } }";
        let expected = "{ \"a\" : { \"b\" :true , \"c\":1 } }";
        assert_eq!(set(text, &["a", "b"], &json!(true)), expected);
    }

    #[test]
    fn a_member_is_removed_with_one_comma() {
        let cases = [
            ("{\"b\": 1}", "{}"),
            ("{\n  \"b\": 1\n}\n", "{}\n"),
            ("{\n  \"b\": 1,\n  \"c\": 2\n}", "{\n  \"c\": 2\n}"),
            ("{\n  \"a\": 0,\n  \"b\": 1\n}", "{\n  \"a\": 0\n}"),
            ("{\"a\":0 , \"b\":1, \"c\":2}", "{\"a\":0, \"c\":2}"),
            ("{\"a\": 0}", "{\"a\": 0}"),
        ];
        for (text, expected) in cases {
            assert_eq!(removed(text, &["b"]), expected, "{text:?}");
        }
    }

    #[test]
    fn what_was_added_can_be_removed_to_the_byte() {
        for text in ["{\"x\":1}", "{\n  \"x\": [1,\n 2]\n}\n", "{ \"x\": \"\\u00e9\" }"] {
            let mut json = JsonText::parse(text).unwrap();
            json.set(&["a", "b"], &json!({"c": "d"})).unwrap();
            assert_ne!(json.text, text);
            json.remove(&["a"]).unwrap();
            assert_eq!(json.text, text);
        }
    }

    #[test]
    fn keys_are_compared_as_they_are_meant() {
        let json = JsonText::parse("{\"\\u0061\": {\"b\\\"c\": 7}}").unwrap();
        assert_eq!(json.get(&["a", "b\"c"]).unwrap(), Some(json!(7)));
        assert_eq!(json.keys().unwrap(), ["a"]);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["[]", "{", "{} {}", "null", "{\"a\": 1,}", "// no\n{}", "{'a': 1}"] {
            assert!(JsonText::parse(text).is_err(), "{text:?}");
        }
        let mut json = JsonText::parse("{\"a\": [1]}").unwrap();
        assert!(json.get(&["a", "b"]).is_err());
        assert!(json.set(&["a", "b"], &json!(1)).is_err());
        assert_eq!(json.text, "{\"a\": [1]}");
    }

    #[test]
    fn null_is_an_object_without_members() {
        let text = "{\n  \"a\": null,\n  \"c\": 1\n}\n";
        let expected = "{\n  \"a\": {\n    \"b\": true\n  },\n  \"c\": 1\n}\n";
        assert_eq!(set(text, &["a", "b"], &json!(true)), expected);
        assert_eq!(JsonText::parse(text).unwrap().get(&["a", "b"]).unwrap(), None);
        assert_eq!(removed(text, &["a", "b"]), text);
    }

    #[test]
    fn a_byte_order_mark_stays() {
        for (text, expected) in [("", "{\n  \"a\": 1\n}\n"), ("\n{\"b\":1}", "\n{\"b\":1,\"a\":1}")]
        {
            let marked = set(&format!("\u{feff}{text}"), &["a"], &json!(1));
            assert_eq!(marked, format!("\u{feff}{expected}"));
        }
    }

    #[test]
    fn an_error_counts_lines_and_columns_of_the_whole_text() {
        let json = JsonText::parse("{\n  \"x\": 1, \"a\": [1]\n}").unwrap();
        let error = json.get(&["a", "b"]).unwrap_err();
        let expected = "invalid type: sequence, expected an object at line 2 column 15";
        assert_eq!(error.to_string(), expected);
        let error = JsonText::parse("{\n  \"x\": 1,}").unwrap_err().to_string();
        assert!(error.ends_with("at line 2 column 10"), "{error}");
    }

    #[test]
    fn a_key_that_stands_twice_is_refused() {
        let error = JsonText::parse("{\"a\": 1, \"\\u0061\": 2}").unwrap_err();
        assert_eq!(error.to_string(), "key \"a\" appears twice");
    }
}
