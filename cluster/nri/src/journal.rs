//! Lines on standard error with their severity for journald (sd-daemon(3)). A runtime that launches the plugin discards
//! them.

use std::io::{self, Write};

use onload_sys::text::to_one_line;

/// The severity of a line, with the numbers of syslog(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A container is not created, or the program ends.
    Error = 3,
    Warning = 4,
    Info = 6,
    Debug = 7,
}

#[derive(Clone, Copy, Debug)]
pub struct Journal {
    pub max_severity: Severity,
}

impl Journal {
    /// Writes a line. Failures are ignored, since they could not be reported.
    pub fn write(&self, severity: Severity, text: &str) {
        if severity <= self.max_severity {
            let line = format!("<{}>onload-nri: {}\n", severity as u8, to_one_line(text));
            let _ = io::stderr().lock().write_all(line.as_bytes());
        }
    }
}
