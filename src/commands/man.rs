//! `man`: the manual pages, one a command, from the definition of the command line.

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::{Cli, Man};
use crate::exit::Answer;

/// Runs the command.
///
/// # Errors
/// The directory or a page cannot be written.
pub fn run(args: &Man) -> anyhow::Result<Answer> {
    let directory = &args.directory;
    let failed = || format!("writing manual pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(failed)?;
    clap_mangen::generate_to(Cli::command(), directory).with_context(failed)?;
    Ok(Answer::Yes)
}
