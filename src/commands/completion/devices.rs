//! The devices of the specifications, as `cdi list` would show them for what was typed so far. They are read with the
//! user's rights, since specifications are world-readable.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command, CommandFactory};
use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCandidates;
use onload_cdi::Registry;
use onload_host::host::Host;

use crate::cli::Cli;
use crate::commands::resolve_spec_dirs;

pub(super) fn add_candidates(command: Command, words: &[OsString]) -> Command {
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
