//! `onload-hook`: runs the stage that the command line names.

use std::ffi::OsString;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use onload_core::config::{CONFIG_PATH, LogConfig, LogLevel};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::{self, HookArguments, PROGRAM};
use onload_lease::LeasedContainer;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::error::{Context, Error, Result, error};

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

/// Runs the hook and returns its exit status.
#[must_use]
pub fn main(args: &[OsString]) -> i32 {
    let Some((config, words)) = take_config(args.get(1..).unwrap_or_default()) else {
        return fail_usage(Path::new(CONFIG_PATH), "--config needs an absolute path");
    };
    match run(&words, &config) {
        None => fail_usage(&config, "unknown stage or arguments"),
        Some(Ok(())) => SUCCESS,
        Some(Err(error)) => {
            fail(&config, "", &error);
            FAILURE
        }
    }
}

/// Returns the configuration's path and the other arguments. Returns `None` if `--config` has no absolute path.
fn take_config(args: &[OsString]) -> Option<(PathBuf, Vec<OsString>)> {
    let mut config = PathBuf::from(CONFIG_PATH);
    let mut words = Vec::with_capacity(args.len());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--config" {
            config = args.next().map(PathBuf::from).filter(|path| path.is_absolute())?;
        } else {
            words.push(arg.clone());
        }
    }
    Some((config, words))
}

/// Runs a command. Its errors begin with the stage, and with the container if it is known. Returns `None` if there is no
/// such command.
fn run(words: &[OsString], config: &Path) -> Option<Result<()>> {
    let [word, args @ ..] = words else {
        return None;
    };
    Some(match (word.to_str()?, args) {
        (stage @ ("createRuntime" | "prestart"), _) => create_runtime(stage, args, config),
        ("poststop", _) => run_poststop(args, config),
        ("precreate", []) => run_precreate(config),
        ("reapply", [id]) => run_reapply(&id.to_string_lossy(), config),
        ("--version", []) => print_output(&format!("{PROGRAM} {}", env!("CARGO_PKG_VERSION"))),
        ("--help", []) => print_output(&usage()),
        _ => return None,
    })
}

fn print_output(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{text}").context("writing standard output")
}

fn run_reapply(id: &str, config: &Path) -> Result<()> {
    let id: ContainerId = id.parse().context("reapply")?;
    let subject = format_subject("reapply", &id);
    let warnings = reapply::run(&id, config).context(&subject)?;
    let report = ContainerReport::from_warnings(warnings, log_file::read_log_config(config));
    // The caller is not a runtime, and shows this output.
    report_all(&subject, &report, |_, text| {
        print_line(&format!("{PROGRAM}{text}"));
    });
    Ok(())
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

fn fail_usage(config: &Path, problem: &str) -> i32 {
    fail(config, ":", &error!("{problem}; {}", usage()));
    USAGE
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

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn what_is_no_command_is_refused() {
        let none: &[&str] = &[];
        for command in [
            none,
            &["create"],
            &["CreateRuntime"],
            &["createContainer"],
            &["precreate", "x"],
            &["reapply"],
            &["reapply", "a", "b"],
            &["--version", "x"],
        ] {
            assert!(run(&words(command), Path::new("/x.toml")).is_none(), "{command:?}");
        }
        let refused = run(&words(&["reapply", "../a"]), Path::new("/x.toml")).unwrap();
        assert!(format!("{:#}", refused.unwrap_err()).contains("is not a container id"));
    }

    #[test]
    fn the_configuration_is_the_fixed_file_unless_named() {
        let fixed = take_config(&words(&["precreate"])).unwrap();
        assert_eq!(fixed, (PathBuf::from(CONFIG_PATH), words(&["precreate"])));
        for named in [["--config", "/x.toml", "precreate"], ["precreate", "--config", "/x.toml"]] {
            let taken = take_config(&words(&named)).unwrap();
            assert_eq!(taken, (PathBuf::from("/x.toml"), words(&["precreate"])));
        }
        assert_eq!(take_config(&words(&["--config"])), None);
        assert_eq!(take_config(&words(&["--config", "rel.toml", "precreate"])), None);
    }
}
