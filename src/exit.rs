//! What the exit status says.

use std::process::ExitCode;

/// How a command ended that could do its work.
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

/// It could not be told or done.
pub const FAILURE: u8 = 2;
