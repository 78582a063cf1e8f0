//! Untrusted text, escaped and truncated for one-line messages.

use std::error::Error;
use std::fmt::{self, Write as _};

/// Characters of an untrusted text that a message shows.
const SHOWN: usize = 80;

/// A text in double quotes, with control characters escaped and its length bounded, so that a
/// message stays one line whatever an annotation contains.
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        let mut rest = self.0.chars();
        for character in rest.by_ref().take(SHOWN) {
            write!(f, "{}", character.escape_debug())?;
        }
        if rest.next().is_some() {
            f.write_str("…")?;
        }
        f.write_char('"')
    }
}

/// A list for messages, cut after a few entries.
pub struct Listed<'a>(pub &'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ENTRIES: usize = 16;
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (at, entry) in self.0.iter().take(ENTRIES).enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            f.write_str(entry)?;
        }
        match self.0.len().checked_sub(ENTRIES) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}

/// An error with all its causes, for errors whose own text does not state the cause.
pub struct Chain<'a>(pub &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// Makes a message one line by escaping control characters.
#[must_use]
pub fn one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for character in message.chars() {
        if character.is_control() {
            line.extend(character.escape_debug());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_text_is_escaped_and_cut() {
        assert_eq!(Quoted("a\nb\"\0").to_string(), r#""a\nb\"\0""#);
        let long = "x".repeat(100_000);
        assert!(Quoted(&long).to_string().len() < 200);
    }

    #[test]
    fn a_list_is_cut_with_the_count_of_the_rest() {
        assert_eq!(Listed(&[]).to_string(), "nothing");
        let names: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
        assert!(Listed(&names).to_string().ends_with("n15 and 4 more"));
        assert_eq!(Listed(&names[..2]).to_string(), "n0, n1");
    }

    #[test]
    fn an_error_is_told_with_each_of_its_causes_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Step(&'static str, #[source] Option<Box<Step>>);
        let cause = Step("there is no disk", None);
        let reading = Step("reading /x", Some(Box::new(cause)));
        let asked = Step("looking at a", Some(Box::new(reading)));
        let said = Chain(&asked).to_string();
        assert_eq!(said, "looking at a: reading /x: there is no disk");
        assert_eq!(Chain(&Step("alone", None)).to_string(), "alone");
    }

    #[test]
    fn a_message_stays_one_line() {
        assert_eq!(one_line("a\r\n\u{1b}[31mb"), "a\\r\\n\\u{1b}[31mb");
    }
}
