//! Names the location of an error in a JSON text by its keys and indices.

/// A step from a value to one inside it.
enum PathStep {
    /// A key of an object, and whether its value has begun.
    Key(String, bool),
    /// The index of an element of an array.
    Index(usize),
}

/// Returns the path of the value in which `prefix`, the part of a text that a parser has consumed,
/// ends, such as `devices[0].containerEdits.env[1]`. The path of the whole text is empty.
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

/// Reads up to the next quote, without decoding escapes.
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
    fn path_names_keys_and_indices() {
        for (read, expected) in [
            ("", ""),
            ("{", ""),
            (r#"{"a": 1"#, "a"),
            (r#"{"a": 1, "b": tru"#, "b"),
            (r#"{"a": {"b": [1, {"c": "x"#, "a.b[1].c"),
            (r#"{"a": [[1], [2, 3"#, "a[1][1]"),
            (r#"[{"a": 1}, 2"#, "[1]"),
            (r#"{"a": {"b": 1}, "c": 2"#, "c"),
            // The value of the key has not begun.
            (r#"{"a": {"b""#, "a"),
            (r#"{"a": 1, "b" "#, ""),
            // Strings may contain structural characters.
            (r#"{"a": "]}{[,:\"", "b": 1"#, "b"),
            (r#"{"a\"{": 1"#, r#"a\"{"#),
            // Not JSON.
            ("}]:,", ""),
        ] {
            assert_eq!(value_path(read.as_bytes()), expected, "{read}");
        }
    }
}
