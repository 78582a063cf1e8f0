//! bash. clap's own script takes the words as bash breaks them, at `=` and `:` too, and every device has
//! a `=` in its name: here the whole line is handed over and read as a shell reads it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use clap::Command;
use clap_complete::CompletionCandidate;
use clap_complete::engine::complete;
use clap_complete::env::EnvCompleter;

use super::paths::{self, ANY, DIRECTORIES};

pub(super) const NAME: &str = "bash";
const BREAKS: &str = "ONLOAD_CTK_COMPLETE_WORDBREAKS";

const SCRIPT: &str = r#"_onload_ctk() {
    local said
    COMPREPLY=()
    said=$(@VARIABLE@=bash @BREAKS@=$COMP_WORDBREAKS \
        @COMPLETER@ -- "${COMP_LINE:0:COMP_POINT}" 2>/dev/null) || return
    case $said in
        "") ;;
        @DIRECTORIES@) compopt -o dirnames ;;
        @ANY@) compopt -o default ;;
        *) mapfile -t COMPREPLY <<<"$said" ;;
    esac
}
complete -F _onload_ctk @PROGRAM@
"#;

pub(super) struct BashCompleter;

impl EnvCompleter for BashCompleter {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is(&self, name: &str) -> bool {
        name == NAME
    }

    fn write_registration(
        &self,
        variable: &str,
        _name: &str,
        program: &str,
        completer: &str,
        script: &mut dyn Write,
    ) -> io::Result<()> {
        let values = [
            ("@VARIABLE@", variable),
            ("@BREAKS@", BREAKS),
            ("@COMPLETER@", completer),
            ("@DIRECTORIES@", DIRECTORIES),
            ("@ANY@", ANY),
            ("@PROGRAM@", program),
        ];
        let text =
            values.iter().fold(SCRIPT.to_owned(), |text, (name, value)| text.replace(name, value));
        script.write_all(text.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        arguments: Vec<OsString>,
        directory: Option<&Path>,
        output: &mut dyn Write,
    ) -> io::Result<()> {
        let breaks = env::var_os(BREAKS).unwrap_or_default();
        let line = arguments.into_iter().next().unwrap_or_default();
        let ShellLine { words, piece } = ShellLine::read(&line, breaks.as_bytes());
        let last = words.len().saturating_sub(1);
        let word = words.last().cloned().unwrap_or_default();
        let (head, _) = word.split_at(piece);
        let words = words.into_iter().map(OsString::from_vec).collect();
        let candidates = complete(command, words, last, directory)?;
        if let Some(hint) = paths::find_hint(&candidates) {
            return writeln!(output, "{hint}");
        }
        for candidate in without_options(&candidates, &word) {
            let value = candidate.get_value().as_bytes();
            // Bash replaces only that part.
            output.write_all(value.strip_prefix(head).unwrap_or(value))?;
            output.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// Options are offered where one is begun, or where there is nothing else.
fn without_options<'c>(
    candidates: &'c [CompletionCandidate],
    word: &[u8],
) -> Vec<&'c CompletionCandidate> {
    let is_option = |candidate: &CompletionCandidate| {
        let value = candidate.get_value().as_bytes();
        value.starts_with(b"-")
    };
    let all = word.starts_with(b"-") || candidates.iter().all(is_option);
    candidates.iter().filter(|candidate| all || !is_option(candidate)).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct ShellLine {
    /// The words without quotes; at the end the one that is being typed, which may be empty.
    words: Vec<Vec<u8>>,
    /// The offset in that word of the part that bash completes.
    piece: usize,
}

impl ShellLine {
    /// Splits a line, which the script passes as one word, like a shell but without expansions. A quote may still be
    /// open.
    fn read(line: &OsStr, breaks: &[u8]) -> ShellLine {
        let mut words = Vec::new();
        let mut word: Option<Vec<u8>> = None;
        let (mut quote, mut piece, mut opened) = (None, 0, 0);
        let mut bytes = line.as_bytes().iter().copied();
        while let Some(byte) = bytes.next() {
            match (quote, byte) {
                (None, b' ' | b'\t' | b'\n') => {
                    words.extend(word.take());
                    piece = 0;
                }
                (None, b'\'' | b'"') => {
                    quote = Some(byte);
                    opened = word.get_or_insert_default().len();
                }
                (Some(open), byte) if open == byte => quote = None,
                (None | Some(b'"'), b'\\') => word.get_or_insert_default().extend(bytes.next()),
                (_, byte) => {
                    let word = word.get_or_insert_default();
                    word.push(byte);
                    if quote.is_none() && b"=:".contains(&byte) && breaks.contains(&byte) {
                        piece = word.len();
                    }
                }
            }
        }
        words.push(word.unwrap_or_default());
        let piece = if quote.is_none() { piece } else { opened };
        ShellLine { words, piece }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words, and the piece of the last one.
    fn read(line: &str) -> (Vec<String>, String) {
        let line = ShellLine::read(OsStr::new(line), b" \t\n\"'><=;|&(:");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let piece = text(&line.words.last().unwrap()[line.piece..]);
        (line.words.iter().map(|word| text(word)).collect(), piece)
    }

    #[test]
    fn a_name_with_the_characters_at_which_bash_breaks_words_is_one_word() {
        let (words, piece) = read("onload-ctk cdi  show onload.dev/vfio=0000:3b:0");
        assert_eq!(words, ["onload-ctk", "cdi", "show", "onload.dev/vfio=0000:3b:0"]);
        assert_eq!(piece, "0");
        assert_eq!(read("a --color=").1, "");
        assert_eq!(read("a --color").1, "--color");
        assert_eq!(read("a b=c ").0, ["a", "b=c", ""]);
        assert_eq!(read("a b=c d").1, "d");
        assert_eq!(read("").0, [""]);
    }

    #[test]
    fn quotes_are_read_as_a_shell_reads_them_and_may_be_open() {
        assert_eq!(read(r#"a 'b c' "d \" e" f\ g"#).0, ["a", "b c", "d \" e", "f g"]);
        assert_eq!(read("a 'b=c d"), (vec!["a".into(), "b=c d".into()], "b=c d".into()));
        assert_eq!(read("a b='c=d").1, "c=d");
        assert_eq!(read("a 'b'=c").1, "c");
        assert_eq!(read(r"a b=c\:d").1, "c:d");
        assert_eq!(read("a ''").0, ["a", ""]);
        assert_eq!(read("a \\").0, ["a", ""]);
    }

    #[test]
    fn where_bash_breaks_no_words_the_piece_is_the_word() {
        let line = ShellLine::read(OsStr::new("a b=c:d"), b" \t\n");
        assert_eq!(line.piece, 0);
    }
}
