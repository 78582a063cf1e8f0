//! Everything that is printed: results on stdout, messages on stderr.

use std::fmt::Display;
use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// Names and headings.
pub(crate) const HEADING: Style = Style::new().bold();
/// Less important text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Something that works.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Something that needs attention.
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Something that went wrong.
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();

/// The two streams, with the requested colours and verbosity.
#[derive(Debug)]
pub struct Printer {
    stdout: AutoStream<io::Stdout>,
    stderr: AutoStream<io::Stderr>,
    quiet: bool,
    verbose: bool,
}

impl Printer {
    /// Streams with this choice of colours.
    #[must_use]
    pub fn new(colors: ColorChoice, quiet: bool, verbose: bool) -> Self {
        Printer {
            stdout: AutoStream::new(io::stdout(), colors),
            stderr: AutoStream::new(io::stderr(), colors),
            quiet,
            verbose,
        }
    }

    /// Prints to stdout, unchanged.
    ///
    /// # Errors
    /// Nobody reads it, or there is no space for it.
    pub(crate) fn print(&mut self, text: impl Display) -> io::Result<()> {
        write!(self.stdout, "{text}")
    }

    /// Flushes stdout.
    ///
    /// # Errors
    /// Nobody reads it, or there is no space for it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }

    /// Says what was done, unless the user wants quiet.
    pub(crate) fn note(&mut self, text: impl Display) {
        if !self.quiet {
            self.say(harmless(text));
        }
    }

    /// Says what was read, if the user wants to know.
    pub(crate) fn detail(&mut self, text: impl Display) {
        if self.verbose {
            self.say(format_args!("{DIM}{}{DIM:#}", harmless(text)));
        }
    }

    /// Warns, unless the user wants quiet.
    pub(crate) fn warning(&mut self, text: impl Display) {
        if !self.quiet {
            let text = harmless(text);
            self.say(format_args!("{WARNING}warning:{WARNING:#} {text}"));
        }
    }

    /// Reports an error.
    pub fn error(&mut self, text: impl Display) {
        let text = harmless(text);
        self.say(format_args!("{ERROR}error:{ERROR:#} {text}"));
    }

    /// If stderr is gone, nothing can be reported.
    fn say(&mut self, text: impl Display) {
        let _ = writeln!(self.stderr, "{text}");
    }
}

/// Escapes control characters except newlines: names of interfaces and files may contain any, and
/// must not control the reader's terminal.
#[must_use]
pub(crate) fn harmless(text: impl Display) -> String {
    let mut shown = String::new();
    for c in text.to_string().chars() {
        match c {
            '\n' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Whether an error means that nobody reads the output any more, as with `| head`.
#[must_use]
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out_and_nothing_else_is() {
        assert_eq!(
            harmless("a\u{1b}[31mb\u{7f}\tc"),
            "a\\u{1b}[31mb\\u{7f}\\tc"
        );
        assert_eq!(harmless("é \"x\" \\n\nü"), "é \"x\" \\n\nü");
    }
}
