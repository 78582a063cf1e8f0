//! `completion`: scripts for shells, which request candidates for the cursor position from this program. So they offer
//! the devices of this host, and what a newer program knows without a newer script.

mod bash;
mod paths;

use std::env;
use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
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
    let is_bash = shell == bash::NAME;
    let command = || {
        let command = add_candidates(Cli::command());
        if is_bash { paths::leave_to_shell(command) } else { command }
    };
    let completer = CompleteEnv::with_factory(command).var(VARIABLE);
    let directory = env::current_dir().ok();
    completer.shells(SHELLS).try_complete(env::args_os(), directory.as_deref())
}

/// Offers the devices of the specifications. They are read with the user's rights, since specifications are
/// world-readable.
fn add_candidates(command: Command) -> Command {
    let with_devices = |command: Command, argument: &str| {
        command
            .mut_arg(argument, |argument| argument.add(ArgValueCandidates::new(device_candidates)))
    };
    command
        .mut_subcommand("try", |command| with_devices(command, "device"))
        .mut_subcommand("drain", |command| with_devices(command, "names"))
        .mut_subcommand("cdi", |cdi| {
            cdi.mut_subcommand("show", |command| with_devices(command, "devices"))
                .mut_subcommand("inject", |command| with_devices(command, "devices"))
        })
}

fn device_candidates() -> Vec<CompletionCandidate> {
    let root = env::var_os("ONLOAD_CTK_HOST_ROOT").unwrap_or_else(|| "/".into());
    // Errors are ignored, since they cannot be shown while a line is typed.
    let host = Host::open(Path::new(&root)).ok();
    let directories = host.and_then(|host| resolve_spec_dirs(&host, &[]).ok()).unwrap_or_default();
    let registry = Registry::scan(&directories);
    let devices = registry.devices().map(|device| {
        let file = device.path.display().to_string();
        CompletionCandidate::new(device.name.to_string()).help(Some(file.into()))
    });
    devices.collect()
}
