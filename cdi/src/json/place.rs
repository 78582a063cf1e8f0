//! Where in a JSON text an error stands, by the names of keys.

/// A step from a value to one inside it.
enum Step {
    /// A key of an object; its name, and whether its value has begun.
    Key(String, bool),
    /// An element of an array.
    Index(usize),
}

/// The place of a value as people write it, such as `devices[0].containerEdits.env[1]`: the one that
/// `read`, the part of the text that a parser has taken, ends in or with. Empty for the whole text.
pub(crate) fn place(read: &[u8]) -> String {
    let mut steps = Vec::new();
    let mut bytes = read.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' => steps.push(Step::Key(String::new(), false)),
            b'[' => steps.push(Step::Index(0)),
            b'}' | b']' => drop(steps.pop()),
            b'"' => {
                let text = string(&mut bytes);
                if let Some(Step::Key(name, false)) = steps.last_mut() {
                    *name = text;
                }
            }
            b':' => {
                if let Some(Step::Key(_, has_value)) = steps.last_mut() {
                    *has_value = true;
                }
            }
            b',' => match steps.last_mut() {
                Some(Step::Key(_, has_value)) => *has_value = false,
                Some(Step::Index(index)) => *index += 1,
                None => {}
            },
            _ => {}
        }
    }
    written(&steps)
}

/// The text up to the next quote, its escapes as they stand there.
fn string(bytes: &mut impl Iterator<Item = u8>) -> String {
    let mut text = Vec::new();
    while let Some(byte) = bytes.next().filter(|byte| *byte != b'"') {
        text.push(byte);
        if byte == b'\\' {
            text.extend(bytes.next());
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn written(steps: &[Step]) -> String {
    let mut place = String::new();
    for step in steps {
        match step {
            Step::Key(name, true) if place.is_empty() => place.push_str(name),
            Step::Key(name, true) => place.extend([".", name]),
            // An error about a key itself names it.
            Step::Key(_, false) => {}
            Step::Index(index) => place.push_str(&format!("[{index}]")),
        }
    }
    place
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
            assert_eq!(place(read.as_bytes()), wanted, "{read}");
        }
    }

    #[test]
    fn a_key_whose_value_has_not_begun_is_not_part_of_it() {
        assert_eq!(place(br#"{"a": {"b""#), "a");
        assert_eq!(place(br#"{"a": 1, "b" "#), "");
    }

    #[test]
    fn what_stands_in_a_text_is_no_structure() {
        assert_eq!(place(br#"{"a": "]}{[,:\"", "b": 1"#), "b");
        assert_eq!(place(br#"{"a\"{": 1"#), r#"a\"{"#);
        assert_eq!(place(b"}]:,"), "");
    }
}
