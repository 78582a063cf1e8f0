//! Names of files, for shells that complete them better than we would: bash quotes what has to be
//! quoted, and knows `~` and variables.

use std::ffi::OsStr;

use clap::{Arg, Command, ValueHint};
use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCompleter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paths {
    Any,
    Directories,
}

impl Paths {
    const ALL: [Paths; 2] = [Paths::Any, Paths::Directories];

    fn mark(self) -> &'static str {
        match self {
            Paths::Any => "paths",
            Paths::Directories => "directories",
        }
    }

    fn of(argument: &Arg) -> Option<Paths> {
        match argument.get_value_hint() {
            ValueHint::AnyPath | ValueHint::FilePath => Some(Paths::Any),
            ValueHint::DirPath => Some(Paths::Directories),
            _ => None,
        }
    }
}

pub(super) fn leave_to_shell(command: Command) -> Command {
    let marked = |argument: Arg| match Paths::of(&argument) {
        Some(paths) => {
            argument.add(ArgValueCompleter::new(move |word: &OsStr| {
                // What looks like an option is one.
                let is_option = word.as_encoded_bytes().starts_with(b"-");
                let mark = CompletionCandidate::new("").tag(Some(paths.mark().into()));
                if is_option { Vec::new() } else { vec![mark] }
            }))
        }
        None => argument,
    };
    command.mut_args(marked).mut_subcommands(leave_to_shell)
}

/// What the shell is to complete, where a mark is among the candidates.
pub(super) fn wanted(candidates: &[CompletionCandidate]) -> Option<Paths> {
    let marks = |paths: &Paths| {
        let tags = candidates.iter().filter_map(CompletionCandidate::get_tag);
        tags.into_iter().any(|tag| tag.to_string() == paths.mark())
    };
    Paths::ALL.into_iter().find(marks)
}
