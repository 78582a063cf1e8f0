//! Everything that is printed: results on stdout, messages on stderr.

use std::env;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use onload_sys::text;
use serde::Serialize;

use crate::progress::Progress;

pub(crate) const HEADING: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();

/// The version of docs/output.schema.json. It changes if a field is removed or changes its meaning.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct VersionedOutput<'o, T> {
    schema_version: u32,
    #[serde(flatten)]
    output: &'o T,
}

#[derive(Debug)]
pub struct Printer {
    stdout: AutoStream<io::Stdout>,
    stderr: AutoStream<io::Stderr>,
    quiet: bool,
    verbose: bool,
    columns: Option<usize>,
    progress_columns: Option<usize>,
    progress: Option<Progress>,
    is_closed: bool,
}

impl Printer {
    pub fn new(colors: ColorChoice, quiet: bool, verbose: bool) -> Self {
        colors.write_global();
        Printer {
            stdout: AutoStream::new(io::stdout(), colors),
            stderr: AutoStream::new(io::stderr(), colors),
            quiet,
            verbose,
            columns: columns_of_stdout(),
            progress_columns: (!quiet && !verbose).then(columns_of_stderr).flatten(),
            progress: None,
            is_closed: false,
        }
    }

    /// The width of lines on stdout. `None` if unknown, as for a pipe, where lines are not wrapped so that programs
    /// always read the same.
    pub(crate) fn columns(&self) -> Option<usize> {
        self.columns
    }

    /// Succeeds also if the reader of stdout is gone, as with `| head -1`, so that the exit status is the command's answer.
    pub(crate) fn print(&mut self, text: impl Display) -> io::Result<()> {
        let result = write!(self.stdout, "{text}");
        self.ignore_broken_pipe(result)
    }

    /// Returns whether the reader of stdout is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(crate) fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Clears the terminal, also without colours.
    pub(crate) fn clear_screen(&mut self) -> io::Result<()> {
        self.flush()?;
        let result = io::stdout().write_all(b"\x1b[H\x1b[2J");
        self.ignore_broken_pipe(result)
    }

    /// Prints an object with `schema_version` as its first field. Escapes the characters that steer a terminal, which
    /// JSON requires only below U+0020 (RFC 8259, section 7).
    pub(crate) fn print_json(&mut self, output: &impl Serialize) -> io::Result<()> {
        let output = VersionedOutput { schema_version: SCHEMA_VERSION, output };
        self.print(escape_json(&serde_json::to_string_pretty(&output)?) + "\n")
    }

    pub fn flush(&mut self) -> io::Result<()> {
        let result = self.stdout.flush();
        self.ignore_broken_pipe(result)
    }

    fn ignore_broken_pipe(&mut self, result: io::Result<()>) -> io::Result<()> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            result => result,
        }
    }

    pub(crate) fn note(&mut self, text: impl Display) {
        if !self.quiet {
            self.print_stderr(escape_controls(text));
        }
    }

    pub(crate) fn detail(&mut self, text: impl Display) {
        if self.verbose {
            self.print_stderr(format_args!("{DIM}{}{DIM:#}", escape_controls(text)));
        }
    }

    pub(crate) fn log_read(&mut self, path: &Path) {
        self.detail(format_args!("read {}", path.display()));
    }

    pub(crate) fn log_lookup(&mut self, path: &Path, exists: bool) {
        let action = if exists { "listed" } else { "no directory" };
        self.detail(format_args!("{action} {}", path.display()));
    }

    /// Shows on a terminal what is being done, if that takes long; the next text replaces this one. Nothing in a pipe.
    pub(crate) fn progress(&mut self, text: impl Display) {
        if let Some(columns) = self.progress_columns {
            self.progress.get_or_insert_with(|| Progress::start(columns)).set(text.to_string());
        }
    }

    /// Removes the line of [`Printer::progress`].
    pub(crate) fn end_progress(&mut self) {
        self.progress = None;
    }

    pub(crate) fn warning(&mut self, text: impl Display) {
        if !self.quiet {
            let text = escape_controls(text);
            self.print_stderr(format_args!("{WARNING}warning:{WARNING:#} {text}"));
        }
    }

    pub(crate) fn warnings(&mut self, texts: impl IntoIterator<Item = impl Display>) {
        for text in texts {
            self.warning(text);
        }
    }

    pub fn error(&mut self, text: impl Display) {
        let text = escape_controls(text);
        self.print_stderr(format_args!("{ERROR}error:{ERROR:#} {text}"));
    }

    /// If stderr is gone, nothing can be reported.
    fn print_stderr(&mut self, text: impl Display) {
        self.end_progress();
        let _ = writeln!(self.stderr, "{text}");
    }
}

pub(crate) fn log_read(path: &Path) {
    let path = escape_controls(path.display());
    // A failure to write to stderr cannot be reported.
    let _ = writeln!(anstream::stderr(), "{DIM}read {path}{DIM:#}");
}

/// The value of `COLUMNS`, or else the terminal's width, as in ls(1).
fn columns_of_stdout() -> Option<usize> {
    let configured = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        Some(usize::from(size.ws_col))
    };
    configured.or_else(terminal).filter(|columns| *columns > 0)
}

/// None where it is no terminal.
fn columns_of_stderr() -> Option<usize> {
    let stderr = io::stderr();
    let size = stderr.is_terminal().then(|| rustix::termios::tcgetwinsize(&stderr))?;
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    // A serial line says nothing of its width.
    Some(if columns == 0 { 80 } else { columns })
}

/// Escapes characters that a terminal interprets, except newlines: names of interfaces and files may contain any.
pub(crate) fn escape_controls(text: impl Display) -> String {
    text::escape_controls(&text.to_string())
}

/// Escapes such characters in JSON, where only strings contain them, with four digits.
fn escape_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if text::is_terminal_control(character) && character != '\n' {
            escaped.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out_and_nothing_else_is() {
        assert_eq!(escape_controls("a\u{1b}[31mb\u{7f}\tc"), "a\\u{1b}[31mb\\u{7f}\\tc");
        assert_eq!(escape_controls("eth\u{202e}0\u{2066}"), "eth\\u{202e}0\\u{2066}");
        // serde_json leaves these as they are.
        let name = "a\u{9b}31m\u{7f}\u{202e}\u{1b} é\"\\\n";
        let json = escape_json(&serde_json::to_string_pretty(&[name]).unwrap());
        assert_eq!(
            json,
            r#"[
  "a\u009b31m\u007f\u202e\u001b é\"\\\n"
]"#
        );
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [name]);
        assert_eq!(escape_controls("é \"x\" \\n\nü"), "é \"x\" \\n\nü");
    }
}
