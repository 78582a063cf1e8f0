use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAnswer {
    Yes,
    No,
    /// Nothing says no, and not everything could be determined.
    Unknown,
    /// The device was not tried: the engine starts no container, or one would show nothing.
    NotTried,
}

pub type CommandResult = anyhow::Result<ExitAnswer>;

impl ExitAnswer {
    const fn status(self) -> u8 {
        match self {
            ExitAnswer::Yes => 0,
            ExitAnswer::No => 1,
            ExitAnswer::Unknown => FAILURE,
            ExitAnswer::NotTried => NOT_TRIED,
        }
    }
}

impl From<ExitAnswer> for ExitCode {
    fn from(answer: ExitAnswer) -> ExitCode {
        ExitCode::from(answer.status())
    }
}

pub const FAILURE: u8 = 2;
pub const NOT_TRIED: u8 = 3;

/// Every exit status, with what it says; the help and the manual pages print this.
pub const STATUSES: [(u8, &str); 4] = [
    (ExitAnswer::Yes.status(), "success, or the answer is yes"),
    (
        ExitAnswer::No.status(),
        "the answer is no (drift, an invalid file, a refusal, a failed check, containers still in use)",
    ),
    (FAILURE, "error, or the answer could not be determined"),
    (
        NOT_TRIED,
        "\"try\" could not test the device: the engine starts no container, or the test could not \
         use the interface",
    ),
];

/// The commands that can answer no, by their words, and when they do.
const NEGATIVE_ANSWERS: [(&str, &str); 12] = [
    (
        "cdi check",
        "a specification file is missing, is to be removed, or differs from what would be written now",
    ),
    (
        "cdi generate",
        "a file that another program or user wrote or changed was kept; all others are written",
    ),
    ("cdi validate", "a file is not a valid specification"),
    ("container explain", "the container would not start"),
    ("doctor", "a check fails"),
    ("drain", "containers still use the drained devices, which stay drained"),
    ("host plan", "this host differs from its configuration, and \"host apply\" can change it"),
    ("lease release", "a running container holds the device; stop it first"),
    (
        "lease restore",
        "an interface could not be returned or fully restored; the message names the cause",
    ),
    (
        "runtime configure",
        "--remove leaves the entry in place, because containers or the engine's default need it",
    ),
    ("status", "the named container does not use its devices correctly"),
    ("try", "the device does not work in a container; the message says why"),
];

/// When a command exits with "no"; `None` if it never does.
pub fn describe_negative_answer(command: &str) -> Option<&'static str> {
    NEGATIVE_ANSWERS.iter().find(|(words, _)| *words == command).map(|(_, when)| *when)
}

pub fn summary() -> String {
    let statuses = STATUSES.map(|(status, meaning)| format!("{status} {meaning}"));
    format!("Exit status: {}.", statuses.join("; "))
}
