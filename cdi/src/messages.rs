//! What serde says is wrong with a value, in the words of a specification and not of this language.

/// What serde calls the types of values, and what people call them.
const NAMES: [(&str, &str); 4] = [
    ("u32", "a whole number from 0 to 4294967295"),
    ("i64", "a whole number"),
    ("a sequence", "a list"),
    ("a boolean", "true or false"),
];

/// The message with what was expected in plain words. What stands before it may be a text of the file.
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
    let known = NAMES.iter().find(|(names, _)| *names == name);
    let plain = match known {
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
    fn types_are_called_what_people_call_them() {
        for (message, wanted) in [
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
            assert_eq!(reword(message), wanted);
        }
    }

    #[test]
    fn other_messages_and_texts_of_the_file_stay_as_they_are() {
        for message in [
            "EOF while parsing a list at line 1 column 1",
            "unknown field `x`, expected one of `u32`, `path`",
            "invalid type: string \", expected u32\", expected u32x",
        ] {
            assert_eq!(reword(message), message);
        }
    }
}
