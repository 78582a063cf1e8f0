//! Where in a JSON text an error stands, by the names of keys.

/// A step from a value to one inside it.
enum PathStep {
    /// A key of an object; its name, and whether its value has begun.
    Key(String, bool),
    /// An element of an array.
    Index(usize),
}

/// The place of a value as people write it, such as `devices[0].containerEdits.env[1]`: the one that
/// `read`, the part of the text that a parser has taken, ends in or with. Empty for the whole text.
pub(crate) fn value_path(prefix: &[u8]) -> String {
    let mut steps = Vec::new();
    let mut bytes = prefix.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' => steps.push(PathStep::Key(String::new(), false)),
            b'[' => steps.push(PathStep::Index(0)),
            b'}' | b']' => drop(steps.pop()),
            b'"' => {
                let text = read_until_quote(&mut bytes);
                if let Some(PathStep::Key(name, false)) = steps.last_mut() {
                    *name = text;
                }
            }
            b':' => {
                if let Some(PathStep::Key(_, has_value)) = steps.last_mut() {
                    *has_value = true;
                }
            }
            b',' => match steps.last_mut() {
                Some(PathStep::Key(_, has_value)) => *has_value = false,
                Some(PathStep::Index(index)) => *index += 1,
                None => {}
            },
            _ => {}
        }
    }
    format_path(&steps)
}

/// The text up to the next quote, its escapes as they stand there.
fn read_until_quote(bytes: &mut impl Iterator<Item = u8>) -> String {
    let mut text = Vec::new();
    while let Some(byte) = bytes.next().filter(|byte| *byte != b'"') {
        text.push(byte);
        if byte == b'\\' {
            text.extend(bytes.next());
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn format_path(steps: &[PathStep]) -> String {
    let mut path = String::new();
    for step in steps {
        match step {
            PathStep::Key(name, true) if path.is_empty() => path.push_str(name),
            PathStep::Key(name, true) => path.extend([".", name]),
            // An error about a key itself names it.
            PathStep::Key(_, false) => {}
            PathStep::Index(index) => path.push_str(&format!("[{index}]")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_named_by_the_keys_and_indices_that_lead_to_it() {
        for (read, wanted) in [
            ("", ""),
            ("{", ""),
            (r#"{"a": 1"#, "a"),
            (r#"{"a": 1, "b": tru"#, "b"),
            (r#"{"a": {"b": [1, {"c": "x"#, "a.b[1].c"),
            (r#"{"a": [[1], [2, 3"#, "a[1][1]"),
            (r#"[{"a": 1}, 2"#, "[1]"),
            (r#"{"a": {"b": 1}, "c": 2"#, "c"),
        ] {
            assert_eq!(value_path(read.as_bytes()), wanted, "{read}");
        }
    }

    #[test]
    fn a_key_whose_value_has_not_begun_is_not_part_of_it() {
        assert_eq!(value_path(br#"{"a": {"b""#), "a");
        assert_eq!(value_path(br#"{"a": 1, "b" "#), "");
    }

    #[test]
    fn what_stands_in_a_text_is_no_structure() {
        assert_eq!(value_path(br#"{"a": "]}{[,:\"", "b": 1"#), "b");
        assert_eq!(value_path(br#"{"a\"{": 1"#), r#"a\"{"#);
        assert_eq!(value_path(b"}]:,"), "");
    }
}
