//! Rewords serde's errors, which name the types of Rust.

/// Types as serde names them, and their description for users.
const TYPES: [(&str, &str); 4] = [
    ("u32", "a whole number from 0 to 4294967295"),
    ("i64", "a whole number"),
    ("a sequence", "a list"),
    ("a boolean", "true or false"),
];

/// Describes the expected type in plain words. The rest of the message is kept, since it may quote
/// the file.
pub(crate) fn reword(message: &str) -> String {
    const EXPECTED: &str = ", expected ";
    let Some((found, expected)) = message.rsplit_once(EXPECTED) else {
        return message.to_owned();
    };
    let found = match found.strip_prefix("invalid type: sequence") {
        Some(rest) => format!("invalid type: list{rest}"),
        None => found.to_owned(),
    };
    let expected = reword_expected(expected).unwrap_or_else(|| expected.to_owned());
    format!("{found}{EXPECTED}{expected}")
}

fn reword_expected(expected: &str) -> Option<String> {
    // JSON's errors end with line and column.
    let end = expected.find(" at line ").unwrap_or(expected.len());
    let (name, position) = expected.split_at(end);
    let plain = match TYPES.iter().find(|(type_name, _)| *type_name == name) {
        Some((_, plain)) => plain,
        None if name.starts_with("struct ") => "a map",
        None => return None,
    };
    Some(format!("{plain}{position}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_described_in_plain_words() {
        for (message, expected) in [
            (
                "invalid type: string \"a\", expected u32 at line 1 column 2",
                "invalid type: string \"a\", expected a whole number from 0 to 4294967295 at line 1 column 2",
            ),
            (
                "invalid type: sequence, expected struct Device",
                "invalid type: list, expected a map",
            ),
            (
                "invalid type: sequence, expected struct Device at line 2 column 3",
                "invalid type: list, expected a map at line 2 column 3",
            ),
            ("invalid type: map, expected a sequence", "invalid type: map, expected a list"),
        ] {
            assert_eq!(reword(message), expected);
        }
    }

    #[test]
    fn other_messages_and_quoted_text_are_kept() {
        for message in [
            "EOF while parsing a list at line 1 column 1",
            "unknown field `x`, expected one of `u32`, `path`",
            "invalid type: string \", expected u32\", expected u32x",
        ] {
            assert_eq!(reword(message), message);
        }
    }
}
