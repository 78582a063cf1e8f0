//! The line on a terminal that shows what a command is doing, if that takes long.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anstream::AutoStream;
use anstyle::Style;
use onload_sys::text::escape_controls;

const STYLE: Style = Style::new().dimmed();
/// A command that takes no longer shows nothing.
const DELAY: Duration = Duration::from_millis(300);

/// Dropping it removes the line.
#[derive(Debug)]
pub(crate) struct Progress {
    /// `None` while it is dropped.
    texts: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Shows nothing if no thread can be created.
    pub(crate) fn start(columns: usize) -> Progress {
        let (texts, received) = channel();
        let thread = thread::Builder::new().spawn(move || show(&received, columns));
        Progress { texts: Some(texts), thread: thread.ok() }
    }

    /// Replaces the text.
    pub(crate) fn set(&self, text: String) {
        if let Some(texts) = &self.texts {
            // It fails only if nothing is shown.
            let _ = texts.send(text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.texts = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn show(texts: &Receiver<String>, columns: usize) {
    let mut stderr = anstream::stderr();
    let mut line = ProgressLine { columns, ..ProgressLine::default() };
    let start = Instant::now();
    let mut elapsed = Duration::ZERO;
    loop {
        let received = if elapsed >= DELAY {
            texts.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            texts.recv_timeout(DELAY.saturating_sub(start.elapsed()))
        };
        match received {
            Ok(text) => line.text = text,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        elapsed = start.elapsed();
        write(&mut stderr, &line.draw(elapsed));
    }
    write(&mut stderr, &line.erase());
}

/// If stderr is gone, nothing can be shown.
fn write(stderr: &mut AutoStream<std::io::Stderr>, text: &str) {
    let _ = write!(stderr, "{text}");
    let _ = stderr.flush();
}

#[derive(Default)]
struct ProgressLine {
    columns: usize,
    text: String,
    /// The width of the longest text that was shown.
    width: usize,
}

impl ProgressLine {
    /// Returns what shows the text in place of the last one, or nothing if the command began a short time ago.
    fn draw(&mut self, elapsed: Duration) -> String {
        if elapsed < DELAY {
            return String::new();
        }
        // Some terminals begin a new line after the last column.
        let text: String = escape_controls(&self.text)
            .replace('\n', " ")
            .chars()
            .take(self.columns.saturating_sub(1))
            .collect();
        let width = text.chars().count();
        let rest = " ".repeat(self.width.saturating_sub(width));
        self.width = width.max(self.width);
        format!("\r{STYLE}{text}{STYLE:#}{rest}")
    }

    /// Returns what removes the line: spaces, since a terminal without colours may support no escape sequence.
    fn erase(&self) -> String {
        match self.width {
            0 => String::new(),
            width => format!("\r{}\r", " ".repeat(width)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(columns: usize) -> ProgressLine {
        ProgressLine { columns, ..ProgressLine::default() }
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_command_that_ends_soon_shows_nothing() {
        let mut line = line(80);
        for text in ["reading this host", "checking iommu"] {
            text.clone_into(&mut line.text);
            assert_eq!(line.draw(Duration::from_millis(299)), "");
        }
        assert_eq!(line.erase(), "");
    }

    #[test]
    fn later_the_last_text_is_shown_and_nothing_of_it_stays() {
        let mut line = line(80);
        "reading this host".clone_into(&mut line.text);
        assert_eq!(line.draw(Duration::ZERO), "");
        assert_eq!(plain(&line.draw(DELAY)), "\rreading this host");
        "checking iommu".clone_into(&mut line.text);
        assert_eq!(plain(&line.draw(DELAY)), "\rchecking iommu   ");
        assert_eq!(line.erase(), format!("\r{}\r", " ".repeat(17)));
    }

    #[test]
    fn a_line_is_shorter_than_the_terminal_is_wide() {
        let mut line = line(12);
        "looking at\nthis host".clone_into(&mut line.text);
        assert_eq!(plain(&line.draw(DELAY)), "\rlooking at ");
    }
}
