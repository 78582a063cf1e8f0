//! `completion`: scripts for shells, which request candidates for the cursor position from this program. So they offer
//! the devices of this host, and what a newer program knows without a newer script.

mod bash;
mod devices;
mod paths;

use std::env;
use std::ffi::OsString;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::env::{Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};

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
        let command = devices::add_candidates(Cli::command(), &words);
        if is_bash { paths::leave_to_shell(command) } else { command }
    };
    let completer = CompleteEnv::with_factory(command).var(VARIABLE);
    let directory = env::current_dir().ok();
    completer.shells(SHELLS).try_complete(env::args_os(), directory.as_deref())
}
