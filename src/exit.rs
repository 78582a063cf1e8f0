use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
    /// Nothing says no, and not all could be told.
    Unknown,
}

impl Answer {
    const fn status(self) -> u8 {
        match self {
            Answer::Yes => 0,
            Answer::No => 1,
            Answer::Unknown => FAILURE,
        }
    }
}

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> ExitCode {
        ExitCode::from(answer.status())
    }
}

pub const FAILURE: u8 = 2;

/// Every exit status, with what it says; the help and the manual pages print this.
pub const STATUSES: [(u8, &str); 3] = [
    (Answer::Yes.status(), "done, or yes"),
    (
        Answer::No.status(),
        "the answer is no (drift, an invalid file, a refusal, a failed check, containers that are left)",
    ),
    (FAILURE, "it could not be told or done"),
];

/// The commands that can answer no, by their words, and when they do.
const NO: [(&str, &str); 11] = [
    (
        "cdi check",
        "a file of specifications is missing, is to be removed, or differs from what would be written now",
    ),
    (
        "cdi generate",
        "a file that somebody else wrote or changed was left alone; every other one is written",
    ),
    ("cdi validate", "a file is not a valid specification"),
    ("container explain", "the container would not start"),
    ("doctor", "a check fails"),
    (
        "host plan",
        "this host is not as it is configured, and \"host apply\" can make it so",
    ),
    (
        "lease release",
        "a container that still runs holds the device; stop it first",
    ),
    (
        "lease restore",
        "an interface is not back, or not as it was; the line says who keeps it or what is in the way",
    ),
    (
        "runtime configure",
        "--remove leaves the entry in place, because containers or the engine's default need it",
    ),
    ("status", "the container that was named does not do well"),
    (
        "try",
        "the device does not work in a container; the line says why",
    ),
];

/// When a command answers no; none where it never does.
pub fn when_no(command: &str) -> Option<&'static str> {
    let found = NO.iter().find(|(words, _)| *words == command);
    found.map(|(_, when)| *when)
}

pub fn summary() -> String {
    let statuses = STATUSES.map(|(status, meaning)| format!("{status} {meaning}"));
    format!("Exit status: {}.", statuses.join("; "))
}
