//! Untrusted text, escaped and truncated for one-line messages.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::str::FromStr;

/// Characters of an untrusted text that a message shows.
const MAX_SHOWN: usize = 80;

/// A text in double quotes, with control characters escaped and its length bounded, so that a
/// message stays one line whatever an annotation contains.
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        let mut rest = self.0.chars();
        for character in rest.by_ref().take(MAX_SHOWN) {
            write!(f, "{}", character.escape_debug())?;
        }
        if rest.next().is_some() {
            f.write_str("…")?;
        }
        f.write_char('"')
    }
}

/// A list for messages, cut after a few entries.
pub struct ShortList<'a>(pub &'a [String]);

impl fmt::Display for ShortList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ENTRIES: usize = 16;
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        f.write_str(&join_first(self.0, ENTRIES))
    }
}

/// Joins the first `max` names and appends the number of the others.
pub fn join_first(names: &[String], max: usize) -> String {
    let shown = names.get(..max).unwrap_or(names).join(", ");
    match names.len().saturating_sub(max) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Whether a text consists of lower-case hexadecimal digits.
pub fn is_lower_hex(text: impl AsRef<[u8]>) -> bool {
    text.as_ref().iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Parses a number that consists of decimal digits, without a sign.
pub fn parse_digits<N: FromStr>(text: &str) -> Option<N> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Like [`parse_digits`], but rejects leading zeros.
pub fn parse_decimal(text: &str) -> Option<u32> {
    parse_digits(text).filter(|number: &u32| number.to_string() == text)
}

/// Parses a size with a binary unit and returns it in KiB: 2048 for `2Mi`.
pub fn parse_kib(text: &str) -> Option<u64> {
    let units = [("Ki", 0), ("Mi", 10), ("Gi", 20)];
    let (number, shift) =
        units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))?;
    parse_digits::<u64>(number)?.checked_mul(1 << shift)
}

/// Formats a number with a noun, or longer phrase, in the singular or plural: `1 page is`, `3 pages are`.
pub fn format_count<N: Copy + fmt::Display + PartialEq + From<u8>>(
    number: N,
    singular: &str,
    plural: &str,
) -> String {
    let words = if number == N::from(1) { singular } else { plural };
    format!("{number} {words}")
}

/// An error with all its causes, for errors whose own text does not state the cause.
pub struct ErrorChain<'a>(pub &'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
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

/// Returns whether a terminal interprets a character instead of showing it: control characters, and those that reverse
/// the direction of the following text (Unicode Standard Annex 9, CVE-2021-42574).
pub fn is_terminal_control(character: char) -> bool {
    let turns = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || turns || matches!(character, '\u{2028}' | '\u{2029}')
}

/// Makes a message one line by escaping the characters that a terminal interprets.
pub fn to_one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for character in message.chars() {
        if is_terminal_control(character) {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// Like [`to_one_line`], but keeps line breaks.
pub fn escape_controls(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(to_one_line).collect();
    lines.join("\n")
}

/// A name, path or value as one word of a command that people copy into a shell.
///
/// Common words are returned unchanged, and other printable ASCII is put in single quotes. A word with any other byte
/// becomes `$'…'` with octal escapes. bash, zsh, ksh and busybox support this; other shells read it as a literal that
/// names nothing, since it contains no quote.
///
/// The program still reads a word that begins with `-` as an option, so callers place it where no option is expected.
pub fn quote_for_shell(word: impl AsRef<OsStr>) -> String {
    let bytes = word.as_ref().as_bytes();
    let is_shown = |byte: &u8| *byte == b' ' || byte.is_ascii_graphic();
    // No shell interprets the bytes of the second list, except at the beginning of a word.
    if bytes.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_./".contains(byte))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(byte))
    {
        return bytes.iter().copied().map(char::from).collect();
    }
    if bytes.iter().all(is_shown) {
        let text: String = bytes.iter().copied().map(char::from).collect();
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut escaped = String::from("$'");
    for byte in bytes {
        if is_shown(byte) && !b"'\\".contains(byte) {
            escaped.push(char::from(*byte));
        } else {
            escaped.push_str(&format!("\\{byte:03o}"));
        }
    }
    escaped.push('\'');
    escaped
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_foreign_text_is_escaped_and_cut() {
        assert_eq!(Quoted("a\nb\"\0").to_string(), r#""a\nb\"\0""#);
        let long = "x".repeat(100_000);
        assert!(Quoted(&long).to_string().len() < 200);
    }

    #[test]
    fn a_list_is_cut_with_the_count_of_the_rest() {
        assert_eq!(ShortList(&[]).to_string(), "nothing");
        let names: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
        assert!(ShortList(&names).to_string().ends_with("n15 and 4 more"));
        assert_eq!(ShortList(&names[..2]).to_string(), "n0, n1");
        assert_eq!(join_first(&[], 1), "");
        assert_eq!(join_first(&names[..2], 2), "n0, n1");
        assert_eq!(join_first(&names[..3], 2), "n0, n1 and 1 more");
    }

    #[test]
    fn one_is_counted_in_the_singular() {
        assert_eq!(format_count(0_u64, "page is", "pages are"), "0 pages are");
        assert_eq!(format_count(1_usize, "page is", "pages are"), "1 page is");
        assert_eq!(format_count(2_u32, "process", "processes"), "2 processes");
    }

    #[test]
    fn an_error_is_told_with_each_of_its_causes_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Step(&'static str, #[source] Option<Box<Step>>);
        let cause = Step("there is no disk", None);
        let reading = Step("reading /x", Some(Box::new(cause)));
        let asked = Step("looking at a", Some(Box::new(reading)));
        let message = ErrorChain(&asked).to_string();
        assert_eq!(message, "looking at a: reading /x: there is no disk");
        assert_eq!(ErrorChain(&Step("alone", None)).to_string(), "alone");
    }

    #[test]
    fn a_message_stays_one_line() {
        assert_eq!(to_one_line("a\r\n\u{1b}[31mb"), "a\\r\\n\\u{1b}[31mb");
        // Nor does it read from right to left.
        assert_eq!(to_one_line("eth\u{202e}0\u{2028}é"), "eth\\u{202e}0\\u{2028}é");
    }

    /// Returns the argument that a shell passes to a program for a word.
    fn as_shell_reads(shell: &str, word: &str) -> Vec<u8> {
        let script = format!("printf %s {word}");
        let output = Command::new(shell).args(["-c", &script]).output().unwrap();
        assert!(output.stderr.is_empty(), "{word}: {output:?}");
        output.stdout
    }

    /// Whether a shell is here to be asked.
    #[track_caller]
    fn has_shell(shell: &str) -> bool {
        let path = Path::new("/usr/bin").join(shell);
        onload_test_needs::that(path.exists(), &format!("{shell} is not installed"))
    }

    const STRANGE: &[&[u8]] = &[
        b"",
        b"$(reboot)",
        b"`reboot`",
        b"a;reboot",
        b"a b",
        b"a'b",
        b"'",
        b"''$(reboot)''",
        b"\\'$(reboot)",
        b"a\"$HOME\"",
        b"~",
        b"~root",
        b"=ls",
        b"-rf",
        b"#a",
        b"!!",
        b"{a,b}",
        b"*",
        b"a\\",
        b"a&b|c>d<e",
        b"a\nreboot\n",
        b"\x1b[31m'\\7",
        b"a\x7f",
        "\u{202e}$(reboot)'".as_bytes(),
        "é7".as_bytes(),
        b"\xff\xfe",
    ];

    #[test]
    fn a_common_word_stays_as_it_is_for_a_shell() {
        for word in ["ens3", "/run/cdi/onload.dev-nic.json", "0000:3b:00.0"] {
            assert_eq!(quote_for_shell(word), word);
        }
        for word in ["a=b", "eth0@if7", "a-b_c%d+e,f", ".hidden", "7", "_"] {
            assert_eq!(quote_for_shell(word), word);
        }
    }

    #[test]
    fn a_word_that_a_shell_would_read_is_quoted() {
        assert_eq!(quote_for_shell(""), "''");
        assert_eq!(quote_for_shell("$(reboot)"), "'$(reboot)'");
        assert_eq!(quote_for_shell("a'b"), r"'a'\''b'");
        assert_eq!(quote_for_shell("~root"), "'~root'");
        assert_eq!(quote_for_shell("=ls"), "'=ls'");
        assert_eq!(quote_for_shell("-rf"), "'-rf'");
    }

    #[test]
    fn what_a_terminal_would_obey_becomes_octal_digits() {
        assert_eq!(quote_for_shell("a\n'\\"), r"$'a\012\047\134'");
        assert_eq!(quote_for_shell("\u{1b}[31m"), r"$'\033[31m'");
        assert_eq!(quote_for_shell("\u{202e}7"), r"$'\342\200\2567'");
        for word in STRANGE {
            let word = quote_for_shell(OsStr::from_bytes(word));
            assert!(word.bytes().all(|byte| (b' '..0x7f).contains(&byte)));
        }
    }

    #[test]
    fn a_shell_hands_on_the_bytes_that_a_word_was_made_of() {
        if !has_shell("bash") {
            return;
        }
        for word in STRANGE {
            let escaped = quote_for_shell(OsStr::from_bytes(word));
            assert_eq!(as_shell_reads("bash", &escaped), *word, "{escaped}");
        }
    }

    #[test]
    fn a_shell_without_escapes_runs_nothing_either() {
        if !has_shell("dash") {
            return;
        }
        for word in STRANGE {
            let escaped = quote_for_shell(OsStr::from_bytes(word));
            let read = as_shell_reads("dash", &escaped);
            // It leaves the dollar, and what stands between the two quotes.
            let literal = escaped.replace("$'", "$").replace('\'', "");
            let is_literal = escaped.starts_with("$'") && read == literal.as_bytes();
            assert!(is_literal || read == *word, "{escaped}: {read:?}");
        }
    }
}
