//! Names of files, for shells that complete them better than we would: bash quotes what has to be
//! quoted, and knows `~` and variables.

use std::ffi::OsStr;

use clap::{Arg, Command, ValueHint};
use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCompleter;

/// The answers that leave names of files to bash: no candidate is one of them.
pub(super) const ANY: &str = "/";
pub(super) const DIRECTORIES: &str = "//";

fn path_hint(argument: &Arg) -> Option<&'static str> {
    match argument.get_value_hint() {
        ValueHint::AnyPath | ValueHint::FilePath => Some(ANY),
        ValueHint::DirPath => Some(DIRECTORIES),
        _ => None,
    }
}

/// Marks candidates for such an argument by the answer.
pub(super) fn leave_to_shell(command: Command) -> Command {
    command.mut_args(mark_path).mut_subcommands(leave_to_shell)
}

fn mark_path(argument: Arg) -> Arg {
    let Some(hint) = path_hint(&argument) else { return argument };
    argument.add(ArgValueCompleter::new(move |word: &OsStr| {
        // A word that looks like an option counts as one.
        let is_option = word.as_encoded_bytes().starts_with(b"-");
        let mark = CompletionCandidate::new("").tag(Some(hint.into()));
        if is_option { Vec::new() } else { vec![mark] }
    }))
}

/// The answer, where a mark is among the candidates.
pub(super) fn find_hint(candidates: &[CompletionCandidate]) -> Option<&'static str> {
    [ANY, DIRECTORIES].into_iter().find(|hint| {
        let mut tags = candidates.iter().filter_map(CompletionCandidate::get_tag);
        tags.any(|tag| tag.to_string() == *hint)
    })
}
