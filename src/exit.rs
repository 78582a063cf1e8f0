//! The meaning of the exit status.

use std::process::ExitCode;

/// How a command that could do its work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done, or yes.
    Yes,
    /// The answer is no: drift, an invalid file, a refusal.
    No,
}

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> ExitCode {
        match answer {
            Answer::Yes => ExitCode::SUCCESS,
            Answer::No => ExitCode::from(1),
        }
    }
}

/// The question could not be answered, or the work not done.
pub const FAILURE: u8 = 2;
