//! `completion`: scripts for shells, which request candidates for the cursor position from this program. So they offer
//! the devices of this host, and what a newer program knows without a newer script.

mod bash;
mod paths;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgMatches, Command, CommandFactory};
use clap_complete::engine::ArgValueCandidates;
use clap_complete::env::{Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use clap_complete::{CompleteEnv, CompletionCandidate};
use onload_cdi::Registry;
use onload_host::host::Host;

use super::resolve_spec_dirs;
use crate::cli::{Cli, CompletionArgs};
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

/// The program's name, by which the scripts call it through PATH, since an incomplete word must not be executed.
const PROGRAM: &str = "onload-ctk";
const VARIABLE: &str = "ONLOAD_CTK_COMPLETE";
/// Appended to clap's script for zsh, which only defines a function: compinit loads the file as a function at first
/// use, which must complete at once.
const ZSH_FIRST_CALL: &str = "\
if [[ $funcstack[1] == _onload-ctk ]]; then
    _clap_dynamic_completer_onload_ctk
fi
";

const SHELLS: Shells<'_> = Shells(&[&bash::BashCompleter, &Elvish, &Fish, &Powershell, &Zsh]);

pub fn run(args: &CompletionArgs, printer: &mut Printer) -> CommandResult {
    let name = args.shell.to_string();
    let shell = SHELLS
        .completer(&name)
        .with_context(|| format!("making a completion script: {name} not found"))?;
    let mut script = Vec::new();
    let (variable, program) = (VARIABLE, PROGRAM);
    shell.write_registration(variable, program, program, program, &mut script)?;
    printer.print(String::from_utf8_lossy(&script))?;
    if shell.name() == Zsh.name() {
        printer.print(ZSH_FIRST_CALL)?;
    }
    Ok(ExitAnswer::Yes)
}

/// Whether this process was started by a script.
pub fn try_complete() -> Result<bool, clap::Error> {
    let Some(shell) = env::var_os(VARIABLE).filter(|shell| !shell.is_empty()) else {
        return Ok(false);
    };
    let mut words: Vec<OsString> = env::args_os().skip_while(|word| word != "--").collect();
    words.drain(..words.len().min(1));
    let is_bash = shell == bash::NAME;
    if is_bash {
        words = bash::words(&words);
    }
    let command = || {
        let command = add_candidates(Cli::command(), &words);
        if is_bash { paths::leave_to_shell(command) } else { command }
    };
    let completer = CompleteEnv::with_factory(command).var(VARIABLE);
    let directory = env::current_dir().ok();
    completer.shells(SHELLS).try_complete(env::args_os(), directory.as_deref())
}

/// Offers the devices of the specifications, as `cdi list` would show them for what was typed so far. They are read with
/// the user's rights, since specifications are world-readable.
fn add_candidates(command: Command, words: &[OsString]) -> Command {
    let devices = || {
        let words = words.to_vec();
        ArgValueCandidates::new(move || device_candidates(&words))
    };
    let with_devices = |command: Command, argument: &str| {
        command.mut_arg(argument, |argument| argument.add(devices()))
    };
    command
        .mut_subcommand("try", |command| with_devices(command, "device"))
        .mut_subcommand("drain", |command| with_devices(command, "names"))
        .mut_subcommand("cdi", |cdi| {
            cdi.mut_subcommand("show", |command| with_devices(command, "devices"))
                .mut_subcommand("inject", |command| with_devices(command, "devices"))
        })
}

fn device_candidates(words: &[OsString]) -> Vec<CompletionCandidate> {
    let registry = Registry::scan(&directories(words));
    let devices = registry.devices().map(|device| {
        let file = device.path.display().to_string();
        CompletionCandidate::new(device.name.to_string()).help(Some(file.into()))
    });
    devices.collect()
}

fn directories(words: &[OsString]) -> Vec<PathBuf> {
    // A line that is half typed is understood as far as it goes.
    let matches =
        Cli::command().ignore_errors(true).try_get_matches_from(words).unwrap_or_default();
    let innermost = innermost(&matches);
    let root = innermost.try_get_one::<PathBuf>("host_root").ok().flatten();
    let explicit: Vec<PathBuf> = innermost
        .try_get_many::<PathBuf>("spec_dir")
        .ok()
        .flatten()
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    // Errors are ignored, since they cannot be shown while a line is typed.
    let host = Host::open(root.map_or(Path::new("/"), PathBuf::as_path));
    let resolved = host.ok().and_then(|host| resolve_spec_dirs(&host, &explicit).ok());
    resolved.unwrap_or_default()
}

fn innermost(matches: &ArgMatches) -> &ArgMatches {
    match matches.subcommand() {
        Some((_, submatches)) => innermost(submatches),
        None => matches,
    }
}
