//! `onload-hook`: which stage does what.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use onload_core::class::Class;
use onload_core::config::{CONFIG_PATH, LogConfig, LogLevel};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::{self, HookArguments, PROGRAM};
use onload_core::lease::DeviceId;
use onload_core::run_dir::RUN_DIR;
use onload_sys::bail;
use onload_sys::error::{Context, Error, Result};
use onload_sys::text::Quoted;

use super::caller;
use super::create_runtime;
use super::edit::{self, Streamed};
use super::log_file::{self, Line};
use super::program::{FAILURE, SUCCESS, USAGE, say};
use super::system_log;
use crate::config::bundle::podman_id;
use crate::config::input;
use crate::config::scan::{self, Places};
use crate::config::state::State;
use crate::decide::report::Report;
use crate::decide::subject::Container;
use crate::decide::sysfs::Sysfs;
use crate::live;
use crate::live::reapply;
use crate::moves::{self, Gone, StandIns};
use crate::record::lease;
use crate::record::sweep;

fn usage() -> String {
    format!(
        "usage: onload-hook [--config FILE] createRuntime|prestart|poststop|precreate {}, onload-hook [--config FILE] reapply ID, or onload-hook --version|--help",
        hook_arguments::usage()
    )
}

/// Stages of runtime-spec's config.md ("POSIX-platform Hooks") that this version does not handle. A
/// specification or a configuration from another version may call for them.
const OTHER_STAGES: [&str; 3] = ["createContainer", "startContainer", "poststart"];

#[derive(Debug, PartialEq, Eq)]
enum Command {
    /// `createRuntime` and `prestart`.
    CreateRuntime {
        stage: &'static str,
        args: Vec<OsString>,
    },
    Poststop {
        args: Vec<OsString>,
    },
    Precreate,
    Reapply(ContainerId),
    OtherStage(&'static str),
    Version,
    Help,
}

/// Returns the exit status.
#[must_use]
pub fn main(args: &[OsString]) -> i32 {
    run(args, &StandIns::default())
}

/// As [`main`], where devices that move are found in a way of their own.
#[must_use]
pub fn run(args: &[OsString], stand_ins: &StandIns) -> i32 {
    let (config, command) = match parse(args.get(1..).unwrap_or_default()) {
        Ok(parsed) => parsed,
        Err(error) => {
            fail(Path::new(CONFIG_PATH), ":", &error);
            return USAGE;
        }
    };
    match dispatch(&command, &config, stand_ins) {
        Ok(()) => SUCCESS,
        Err(error) => {
            fail(&config, "", &error);
            FAILURE
        }
    }
}

fn parse(args: &[OsString]) -> Result<(PathBuf, Command)> {
    let mut config = PathBuf::from(CONFIG_PATH);
    let mut rest = Vec::with_capacity(args.len());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg != "--config" {
            rest.push(arg.clone());
            continue;
        }
        match args.next().map(PathBuf::from) {
            Some(path) if path.is_absolute() => config = path,
            _ => bail!("--config needs the absolute path of a file; {}", usage()),
        }
    }
    let [word, args @ ..] = rest.as_slice() else {
        bail!("{}", usage());
    };
    Ok((config, command(word, args)?))
}

fn command(word: &OsStr, args: &[OsString]) -> Result<Command> {
    let word = word.to_str().unwrap_or_default();
    let create_runtime = |stage| Command::CreateRuntime { stage, args: args.to_vec() };
    Ok(match (word, args) {
        ("createRuntime", _) => create_runtime("createRuntime"),
        ("prestart", _) => create_runtime("prestart"),
        ("poststop", args) => Command::Poststop { args: args.to_vec() },
        ("reapply", [id]) => Command::Reapply(id.to_string_lossy().parse()?),
        ("reapply", _) => bail!("reapply needs the id of one container; {}", usage()),
        ("precreate", []) => Command::Precreate,
        ("--version", []) => Command::Version,
        ("--help", []) => Command::Help,
        ("precreate" | "--version" | "--help", [arg, ..]) => bail!(
            "{word} takes no argument, but was given {}; {}",
            Quoted(&arg.to_string_lossy()),
            usage()
        ),
        _ => match OTHER_STAGES.into_iter().find(|stage| *stage == word) {
            Some(stage) => Command::OtherStage(stage),
            None => bail!("{} is not a hook stage; {}", Quoted(word), usage()),
        },
    })
}

/// Its failures begin with the stage, and the container as far as it is known.
fn dispatch(command: &Command, config: &Path, stand_ins: &StandIns) -> Result<()> {
    let print = |text: &str| writeln!(io::stdout(), "{text}").context("writing standard output");
    match command {
        Command::CreateRuntime { stage, args } => create_runtime(stage, args, config, stand_ins),
        Command::Poststop { args } => poststop(args, config, stand_ins),
        Command::Precreate => precreate(config, stand_ins),
        Command::Reapply(id) => {
            let subject = subject("reapply", id);
            let warnings = reapply::run(id, config).context(&subject)?;
            let report = Report::of_warnings(warnings, log_file::settings(config));
            // Its caller is no runtime, and reads what it says.
            say_all(&subject, &report, |_, text| {
                say(&format!("{PROGRAM}{text}"));
            });
            Ok(())
        }
        Command::OtherStage(stage) => {
            let warning = format!("stage {stage} is not handled, nothing done");
            tell(LogLevel::Warning, &format!(": warning: {warning}"));
            let log = log_file::settings(config);
            log_lines(&log, [(LogLevel::Warning, warning)]);
            Ok(())
        }
        Command::Version => {
            print(&format!("onload-hook {}", env!("CARGO_PKG_VERSION"))).context("--version")
        }
        Command::Help => print(&usage()).context("--help"),
    }
}

fn create_runtime(
    stage: &str,
    args: &[OsString],
    config: &Path,
    stand_ins: &StandIns,
) -> Result<()> {
    let arguments = HookArguments::parse(args).context(stage)?;
    if arguments.is_empty() {
        return by_annotation(stage, config, stand_ins);
    }
    let mut state = State::read(BufReader::new(io::stdin().lock()), true).context(stage)?;
    let subject = subject(stage, &state.id);
    // Raising a limit does not need the bundle.
    let only_memlock = HookArguments { memlock: arguments.memlock, ..HookArguments::default() };
    if arguments != only_memlock {
        caller::restore_bundle(&mut state).context(&subject)?;
    }
    let warnings = create_runtime::run(&arguments, &state, &Sysfs::default(), config, stand_ins);
    warn(&subject, warnings.context(&subject)?, config);
    Ok(())
}

/// The entry point for a container that is already running. The state contains its annotations too,
/// so a state without onload.dev annotations means there is nothing to do.
fn by_annotation(stage: &str, config: &Path, stand_ins: &StandIns) -> Result<()> {
    let stdin = io::stdin().lock();
    let scanned = scan::read(stdin, 0, Places::Annotations, &mut |_, _| Ok(()))
        .context("reading standard input")
        .context(stage)?;
    if !scanned.may_ask {
        return Ok(());
    }
    if scanned.more {
        return Err(input::too_large()).context(stage);
    }
    let mut state = State::read(&scanned.kept[..], true).context(stage)?;
    if state.is_stopped {
        return clean_up(&state, config, stand_ins);
    }
    let subject = subject(stage, &state.id);
    caller::restore_bundle(&mut state).context(&subject)?;
    let report = live::inject(&state, config, stand_ins).context(&subject)?;
    say_all(&subject, &report, tell);
    Ok(())
}

/// The entry point for `podman --hooks-dir`: config.json in, config.json out. podman runs it in the
/// bundle.
fn precreate(config: &Path, stand_ins: &StandIns) -> Result<()> {
    let bundle = std::env::current_dir().unwrap_or_default();
    let id = podman_id(&bundle);
    let subject = match &id {
        Some(id) => subject("precreate", id),
        None => "precreate".to_owned(),
    };
    let container = Container { bundle: &bundle, id: id.as_ref(), sees_exec: false };
    let (stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    let streamed = edit::stream(stdin, &mut stdout, container, config);
    match streamed.context(&subject)? {
        Streamed::Config(report) => say_all(&subject, &report, tell),
        Streamed::State(state) => return clean_up(&state, config, stand_ins),
    }
    Ok(())
}

/// Without arguments it removes what was made for a container's annotations; with those of a
/// specification, it ends what was leased by them.
fn poststop(args: &[OsString], config: &Path, stand_ins: &StandIns) -> Result<()> {
    let stage = "poststop";
    let asked = HookArguments::parse(args).context(stage)?;
    let state = State::read(BufReader::new(io::stdin().lock()), false).context(stage)?;
    if asked.is_empty() || !asked.take.is_empty() {
        return clean_up(&state, config, stand_ins);
    }
    let (token, id) = (asked.token.as_ref(), &state.id);
    let (rest, rdma) = moves::split(&asked);
    let (moving, others): (Vec<DeviceId>, Vec<DeviceId>) =
        rest.lease.iter().cloned().partition(|device| {
            let mut set_up = rest.vf.iter();
            device.class == Class::Netdev || set_up.any(|given| given.device == *device)
        });
    // What goes wrong with the one keeps nothing from the other.
    let released = lease::release(&others, token, id, &state.bundle);
    let gone = Gone { container: id, token, bundle: &state.bundle };
    let back = moves::take_back(&rdma.lease, &moving, &gone, stand_ins);
    let cleaned = if !rdma.rdma_netns.is_empty() || asked.rdma_libraries.is_some() {
        // The record goes with the nodes, and only it knows what another of the container's hooks took of a pool.
        clean_up(&state, config, stand_ins)
    } else {
        Ok(())
    };
    back.context(subject(stage, id))?;
    released.context(subject(stage, id))?;
    cleaned
}

fn clean_up(state: &State, config: &Path, stand_ins: &StandIns) -> Result<()> {
    let leased = sweep::leased(Path::new(RUN_DIR), &state.id);
    let (leased, bundle) = leased.unwrap_or_default();
    let gone = Gone { container: &state.id, token: None, bundle: &bundle };
    let back = moves::take_back(&leased, &leased, &gone, stand_ins);
    // Whoever wants one next finds out that its holder has ended, so nothing is lost where this fails.
    let _ = lease::release(&leased, None, &state.id, &bundle);
    remove_nodes(state, config)?;
    back.context(subject("poststop", &state.id))
}

/// Removes what was made in a container's root.
fn remove_nodes(state: &State, config: &Path) -> Result<()> {
    let subject = subject("poststop", &state.id);
    let warnings = sweep::run(Path::new(RUN_DIR), &state.id).context(&subject)?;
    warn(&subject, warnings, config);
    Ok(())
}

fn subject(stage: &str, id: &ContainerId) -> String {
    format!("{stage}: container {id}")
}

/// Says warnings, where there are any, and logs them.
fn warn(subject: &str, warnings: Vec<String>, config: &Path) {
    if !warnings.is_empty() {
        let log = log_file::settings(config);
        say_all(subject, &Report::of_warnings(warnings, log), tell);
    }
}

/// Says the warnings of a report, and logs all of it.
fn say_all(subject: &str, report: &Report, tell: fn(LogLevel, &str)) {
    for warning in &report.warnings {
        tell(LogLevel::Warning, &format!(" {subject}: warning: {warning}"));
    }
    log_lines(&report.log, log_file::lines(report, &format!("{subject}: ")));
}

/// Says why the program fails. That comes last, since engines show the last line.
fn fail(config: &Path, separator: &str, error: &Error) {
    let line = (LogLevel::Error, format!("{error:#}"));
    log_lines(&log_file::settings(config), [line]);
    tell(LogLevel::Error, &format!("{separator} {error:#}"));
}

/// Writes lines to the operator's log; the container starts without them too.
fn log_lines(log: &LogConfig, lines: impl IntoIterator<Item = Line>) {
    if let Err(error) = log_file::write(log, PROGRAM, lines) {
        tell(LogLevel::Warning, &format!(": warning: {error:#}"));
    }
}

/// Writes `text`, with the program's name before it, to standard error, and to the system log if the
/// runtime that called this hook shows nobody what is there.
fn tell(level: LogLevel, text: &str) {
    say(&format!("{PROGRAM}{text}"));
    if system_log::is_unread(io::stderr(), level) {
        let line = text.trim_start_matches([':', ' ']);
        // There is nowhere else to report it.
        let _ = system_log::send(Path::new(system_log::SOCKET), PROGRAM, level, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<(PathBuf, Command)> {
        let args: Vec<OsString> = words.iter().map(OsString::from).collect();
        parse(&args)
    }

    fn refusal(words: &[&str]) -> String {
        parsed(words).unwrap_err().to_string()
    }

    #[test]
    fn every_served_stage_is_known() {
        for (word, command) in [
            ("poststop", Command::Poststop { args: Vec::new() }),
            ("precreate", Command::Precreate),
            ("--version", Command::Version),
            ("--help", Command::Help),
            ("createContainer", Command::OtherStage("createContainer")),
            ("startContainer", Command::OtherStage("startContainer")),
            ("poststart", Command::OtherStage("poststart")),
        ] {
            assert_eq!(parsed(&[word]).unwrap().1, command, "{word}");
        }
        let id = "c1".parse().unwrap();
        assert_eq!(parsed(&["reapply", "c1"]).unwrap().1, Command::Reapply(id));
        for stage in ["createRuntime", "prestart"] {
            let command = parsed(&[stage, "--memlock", "1"]).unwrap().1;
            assert!(matches!(command, Command::CreateRuntime { args, .. } if args.len() == 2));
        }
    }

    #[test]
    fn a_stage_that_is_not_served_may_have_any_arguments() {
        assert!(parsed(&["createContainer", "--whatever"]).is_ok());
    }

    #[test]
    fn what_is_no_stage_is_refused() {
        assert!(refusal(&[]).starts_with("usage: "));
        assert!(refusal(&["create"]).contains("\"create\" is not a hook stage"));
        assert!(refusal(&["CreateRuntime"]).contains("is not a hook stage"));
        assert!(refusal(&["precreate", "x"]).contains("takes no argument"));
        assert!(refusal(&["reapply"]).contains("reapply needs the id"));
        assert!(refusal(&["reapply", "a", "b"]).contains("reapply needs the id"));
        assert!(refusal(&["reapply", "../a"]).contains("is not a container id"));
        assert!(refusal(&["--config"]).contains("--config needs"));
        assert!(refusal(&["--config", "rel.toml", "precreate"]).contains("--config needs"));
    }

    #[test]
    fn the_configuration_is_the_fixed_file_unless_named() {
        assert_eq!(parsed(&["precreate"]).unwrap().0, Path::new(CONFIG_PATH));
        for words in [["--config", "/x.toml", "precreate"], ["precreate", "--config", "/x.toml"]] {
            let (named, command) = parsed(&words).unwrap();
            assert_eq!((named.as_path(), command), (Path::new("/x.toml"), Command::Precreate));
        }
    }
}
