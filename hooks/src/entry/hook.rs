//! `onload-hook`: runs the stage that the command line names.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use onload_core::config::{CONFIG_PATH, LogConfig, LogLevel};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::{self, HookArguments, PROGRAM};
use onload_lease::LeasedContainer;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::error::{Context, Error, Result, bail};
use onload_sys::text::Quoted;

use super::config_edit::{self, StreamResult};
use super::log_file::{self, LogLine};
use super::program::{FAILURE, SUCCESS, USAGE, print_line};
use super::{caller, create_runtime, system_log};
use crate::config::config_file::podman_container_id;
use crate::config::decision_input;
use crate::config::scan::{self, ScanScope};
use crate::config::state::OciState;
use crate::decide::report::ContainerReport;
use crate::decide::subject::ContainerRef;
use crate::decide::sysfs::Sysfs;
use crate::live;
use crate::live::reapply;
use crate::moves;
use crate::record::{lease, sweep};

fn usage() -> String {
    format!(
        "usage: onload-hook [--config FILE] createRuntime|prestart|poststop|precreate {}, onload-hook [--config FILE] reapply ID, or onload-hook --version|--help",
        hook_arguments::usage()
    )
}

/// The hook stages of runtime-spec's config.md ("POSIX-platform Hooks") that this version does not
/// handle. A specification or a configuration of another version may call them.
const OTHER_STAGES: [&str; 3] = ["createContainer", "startContainer", "poststart"];

#[derive(Debug, PartialEq, Eq)]
enum HookCommand {
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

/// Runs the hook and returns its exit status.
#[must_use]
pub fn main(args: &[OsString]) -> i32 {
    let (config, command) = match parse(args.get(1..).unwrap_or_default()) {
        Ok(parsed) => parsed,
        Err(error) => {
            fail(Path::new(CONFIG_PATH), ":", &error);
            return USAGE;
        }
    };
    match dispatch(&command, &config) {
        Ok(()) => SUCCESS,
        Err(error) => {
            fail(&config, "", &error);
            FAILURE
        }
    }
}

fn parse(args: &[OsString]) -> Result<(PathBuf, HookCommand)> {
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
            _ => bail!("--config needs an absolute path; {}", usage()),
        }
    }
    let [word, args @ ..] = rest.as_slice() else {
        bail!("{}", usage());
    };
    Ok((config, parse_command(word, args)?))
}

fn parse_command(word: &OsStr, args: &[OsString]) -> Result<HookCommand> {
    let create_runtime = |stage| HookCommand::CreateRuntime { stage, args: args.to_vec() };
    let word = word.to_str().unwrap_or_default();
    Ok(match (word, args) {
        ("createRuntime", _) => create_runtime("createRuntime"),
        ("prestart", _) => create_runtime("prestart"),
        ("poststop", args) => HookCommand::Poststop { args: args.to_vec() },
        ("reapply", [id]) => HookCommand::Reapply(id.to_string_lossy().parse()?),
        ("reapply", _) => bail!("reapply needs the id of one container; {}", usage()),
        ("precreate", []) => HookCommand::Precreate,
        ("--version", []) => HookCommand::Version,
        ("--help", []) => HookCommand::Help,
        ("precreate" | "--version" | "--help", [arg, ..]) => bail!(
            "{word} takes no argument, but was given {}; {}",
            Quoted(&arg.to_string_lossy()),
            usage()
        ),
        _ => match OTHER_STAGES.into_iter().find(|stage| *stage == word) {
            Some(stage) => HookCommand::OtherStage(stage),
            None => bail!("unknown hook stage {}; {}", Quoted(word), usage()),
        },
    })
}

/// Runs a command. Its errors begin with the stage, and with the container if it is known.
fn dispatch(command: &HookCommand, config: &Path) -> Result<()> {
    let print = |text: &str| writeln!(io::stdout(), "{text}").context("writing standard output");
    match command {
        HookCommand::CreateRuntime { stage, args } => create_runtime(stage, args, config),
        HookCommand::Poststop { args } => run_poststop(args, config),
        HookCommand::Precreate => run_precreate(config),
        HookCommand::Reapply(id) => {
            let subject = format_subject("reapply", id);
            let warnings = reapply::run(id, config).context(&subject)?;
            let report =
                ContainerReport::from_warnings(warnings, log_file::read_log_config(config));
            // The caller is not a runtime, and shows this output.
            report_all(&subject, &report, |_, text| {
                print_line(&format!("{PROGRAM}{text}"));
            });
            Ok(())
        }
        HookCommand::OtherStage(stage) => {
            let warning = format!("stage {stage} is not supported; nothing was done");
            print_message(LogLevel::Warning, &format!(": warning: {warning}"));
            let log = log_file::read_log_config(config);
            log_lines(&log, [(LogLevel::Warning, warning)]);
            Ok(())
        }
        HookCommand::Version => {
            print(&format!("onload-hook {}", env!("CARGO_PKG_VERSION"))).context("--version")
        }
        HookCommand::Help => print(&usage()).context("--help"),
    }
}

fn create_runtime(stage: &str, args: &[OsString], config: &Path) -> Result<()> {
    let arguments = HookArguments::parse(args).context(stage)?;
    if arguments.is_empty() {
        return run_by_annotation(stage, config);
    }
    let mut state = OciState::read(BufReader::new(io::stdin().lock()), true).context(stage)?;
    let subject = format_subject(stage, &state.id);
    // Raising a limit does not need the bundle.
    let only_memlock = HookArguments { memlock: arguments.memlock, ..HookArguments::default() };
    if arguments != only_memlock {
        caller::restore_bundle(&mut state).context(&subject)?;
    }
    let warnings = create_runtime::run(&arguments, &state, &Sysfs::default(), config);
    warn(&subject, warnings.context(&subject)?, config);
    Ok(())
}

/// Runs for a container that is already running. The state contains its annotations too, so a state
/// without onload.dev annotations means there is nothing to do.
fn run_by_annotation(stage: &str, config: &Path) -> Result<()> {
    let stdin = io::stdin().lock();
    let scan_result = scan::read(stdin, 0, ScanScope::Annotations, &mut |_, _| Ok(()))
        .context("reading standard input")
        .context(stage)?;
    if !scan_result.may_hold_request {
        return Ok(());
    }
    if scan_result.more {
        return Err(decision_input::too_large_error()).context(stage);
    }
    let mut state = OciState::read(&scan_result.kept[..], true).context(stage)?;
    if state.is_stopped {
        return clean_up(&state, config);
    }
    let subject = format_subject(stage, &state.id);
    caller::restore_bundle(&mut state).context(&subject)?;
    let report = live::inject(&state, config).context(&subject)?;
    report_all(&subject, &report, print_message);
    Ok(())
}

/// Runs for `podman --hooks-dir`: config.json in, config.json out. podman runs it in the bundle.
fn run_precreate(config: &Path) -> Result<()> {
    let bundle = std::env::current_dir().unwrap_or_default();
    let id = podman_container_id(&bundle);
    let subject = match &id {
        Some(id) => format_subject("precreate", id),
        None => "precreate".to_owned(),
    };
    let container = ContainerRef { bundle: &bundle, id: id.as_ref(), sees_exec: false };
    let (stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    match config_edit::edit_stream(stdin, &mut stdout, container, config).context(&subject)? {
        StreamResult::Config(report) => report_all(&subject, &report, print_message),
        StreamResult::State(state) => return clean_up(&state, config),
    }
    Ok(())
}

/// Without arguments, removes what was created for a container's annotations. With the arguments of
/// a specification, releases the leases of these arguments.
fn run_poststop(args: &[OsString], config: &Path) -> Result<()> {
    let stage = "poststop";
    let arguments = HookArguments::parse(args).context(stage)?;
    let state = OciState::read(BufReader::new(io::stdin().lock()), false).context(stage)?;
    if arguments.is_empty() || !arguments.take.is_empty() {
        return clean_up(&state, config);
    }
    let (token, id) = (arguments.token.as_ref(), &state.id);
    let bundle = lease::was_canonical(&state.bundle);
    let exited = LeasedContainer { id, bundle: &bundle, token };
    // A step that fails does not prevent the others.
    let released = lease::release(&arguments.lease, &exited);
    let returned = moves::release_devices(&arguments.lease, &exited);
    let cleaned = if !arguments.rdma_netns.is_empty() || arguments.rdma_libraries.is_some() {
        // The record is removed together with the nodes. Only it contains the members of pools that another hook
        // of the container leased.
        clean_up(&state, config)
    } else {
        Ok(())
    };
    returned.context(format_subject(stage, id))?;
    released.context(format_subject(stage, id))?;
    cleaned
}

/// Releases the devices that the record of a container names, and removes what was created for it.
fn clean_up(state: &OciState, config: &Path) -> Result<()> {
    let subject = format_subject("poststop", &state.id);
    let (leased, bundle) =
        sweep::recorded_leases(Path::new(RUN_DIR), &state.id).unwrap_or_default();
    let bundle = lease::was_canonical(&bundle);
    let exited = LeasedContainer { id: &state.id, bundle: &bundle, token: None };
    let returned = moves::release_devices(&leased, &exited);
    // A failure is harmless: the next container that requests a device detects that its holder has ended.
    let _ = lease::release(&leased, &exited);
    let warnings = sweep::run(Path::new(RUN_DIR), &state.id).context(&subject)?;
    warn(&subject, warnings, config);
    returned.context(subject)
}

fn format_subject(stage: &str, id: &ContainerId) -> String {
    format!("{stage}: container {id}")
}

/// Prints and logs warnings, if there are any.
fn warn(subject: &str, warnings: Vec<String>, config: &Path) {
    if !warnings.is_empty() {
        let log = log_file::read_log_config(config);
        report_all(subject, &ContainerReport::from_warnings(warnings, log), print_message);
    }
}

/// Prints the warnings of a report, and logs all of it.
fn report_all(subject: &str, report: &ContainerReport, print: fn(LogLevel, &str)) {
    for warning in &report.warnings {
        print(LogLevel::Warning, &format!(" {subject}: warning: {warning}"));
    }
    log_lines(&report.log, log_file::report_lines(report, &format!("{subject}: ")));
}

/// Reports why the program fails. This comes last, since engines show the last line.
fn fail(config: &Path, separator: &str, error: &Error) {
    let line = (LogLevel::Error, format!("{error:#}"));
    log_lines(&log_file::read_log_config(config), [line]);
    print_message(LogLevel::Error, &format!("{separator} {error:#}"));
}

/// Writes lines to the operator's log. If this fails, the container starts all the same.
fn log_lines(log: &LogConfig, lines: impl IntoIterator<Item = LogLine>) {
    if let Err(error) = log_file::write(log, PROGRAM, lines) {
        print_message(LogLevel::Warning, &format!(": warning: {error:#}"));
    }
}

/// Writes `text`, after the program's name, to standard error, and also to the system log if
/// nothing shows that output.
fn print_message(level: LogLevel, text: &str) {
    print_line(&format!("{PROGRAM}{text}"));
    if system_log::is_unread(io::stderr(), level) {
        let line = text.trim_start_matches([':', ' ']);
        // A failure cannot be reported anywhere.
        let _ = system_log::send(Path::new(system_log::SOCKET), PROGRAM, level, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<(PathBuf, HookCommand)> {
        let args: Vec<OsString> = words.iter().map(OsString::from).collect();
        parse(&args)
    }

    fn refusal(words: &[&str]) -> String {
        parsed(words).unwrap_err().to_string()
    }

    #[test]
    fn every_served_stage_is_known() {
        for (word, command) in [
            ("poststop", HookCommand::Poststop { args: Vec::new() }),
            ("precreate", HookCommand::Precreate),
            ("--version", HookCommand::Version),
            ("--help", HookCommand::Help),
            ("createContainer", HookCommand::OtherStage("createContainer")),
            ("startContainer", HookCommand::OtherStage("startContainer")),
            ("poststart", HookCommand::OtherStage("poststart")),
        ] {
            assert_eq!(parsed(&[word]).unwrap().1, command, "{word}");
        }
        let id = "c1".parse().unwrap();
        assert_eq!(parsed(&["reapply", "c1"]).unwrap().1, HookCommand::Reapply(id));
        for stage in ["createRuntime", "prestart"] {
            let command = parsed(&[stage, "--memlock", "1"]).unwrap().1;
            assert!(matches!(command, HookCommand::CreateRuntime { args, .. } if args.len() == 2));
        }
    }

    #[test]
    fn a_stage_that_is_not_served_may_have_any_arguments() {
        assert!(parsed(&["createContainer", "--whatever"]).is_ok());
    }

    #[test]
    fn what_is_no_stage_is_refused() {
        assert!(refusal(&[]).starts_with("usage: "));
        assert!(refusal(&["create"]).contains("unknown hook stage \"create\""));
        assert!(refusal(&["CreateRuntime"]).contains("unknown hook stage"));
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
            assert_eq!((named.as_path(), command), (Path::new("/x.toml"), HookCommand::Precreate));
        }
    }
}
