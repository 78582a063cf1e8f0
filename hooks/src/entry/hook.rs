//! `onload-hook`: which stage does what.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use onload_core::class::Class;
use onload_core::config::{CONFIG_PATH, Log, LogLevel};
use onload_core::container_id::{ContainerId, NotContainerId};
use onload_core::hook_arguments::{HookArguments, HookArgumentsError, PROGRAM};
use onload_core::lease::Device;
use onload_core::run_dir::RUN_DIR;
use onload_core::text::{Chain, Quoted};

use crate::config_json::bundle::podman_id;
use crate::config_json::scan::{self, Places};
use crate::decision::error::DecisionError;
use crate::decision::report::Report;
use crate::entry::caller::{self, NoBundle};
use crate::entry::create_runtime::{self, CreateRuntimeError};
use crate::entry::edit::{self, EntryError, Streamed};
use crate::entry::log_file::{self, Line};
use crate::entry::program::{FAILURE, SUCCESS, USAGE, say};
use crate::entry::stand_ins::StandIns;
use crate::entry::system_log::{self, Severity};
use crate::filter::{Container, FilterError};
use crate::host::sysfs::Sysfs;
use crate::live;
use crate::live::error::LiveError;
use crate::live::reapply::{self, ReapplyError};
use crate::netdev::{self, NetdevError};
use crate::rdma::{self, RdmaError};
use crate::returning::Gone;
use crate::run::lease::{self, ClaimError};
use crate::run::maker::{EntryPoint, Stage};
use crate::run::sweep::{self, PoststopError};
use crate::state::{State, StateError};

const USAGE_TEXT: &str = "usage: onload-hook [--config FILE] createRuntime|prestart|poststop|precreate [--memlock unlimited|BYTES] [--expect NODE=CLASS:ID[@PCI][#MAJOR:MINOR]]… [--lease CLASS:NAME]… [--token HEX] [--claim UID] [--netdev IFNAME@PCI]… [--address IFNAME=ADDRESS/PREFIX]…, onload-hook [--config FILE] reapply ID, or onload-hook --version|--help";

/// Stages of runtime-spec's config.md ("POSIX-platform Hooks") that this version does not handle. A
/// specification or a configuration from another version may call for them.
const OTHER_STAGES: [&str; 3] = ["createContainer", "startContainer", "poststart"];

/// A command line of the hook.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    /// `createRuntime` and `prestart`.
    CreateRuntime {
        stage: &'static str,
        args: Vec<OsString>,
    },
    /// `poststop`.
    Poststop { args: Vec<OsString> },
    /// `precreate`.
    Precreate,
    /// `reapply ID`.
    Reapply(ContainerId),
    /// An OCI stage that is not handled.
    OtherStage(&'static str),
    /// `--version`.
    Version,
    /// `--help`.
    Help,
}

#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error("{USAGE_TEXT}")]
    Empty,
    #[error("{0} is not a hook stage; {USAGE_TEXT}")]
    NoStage(String),
    #[error("{stage} takes no argument, but was given {arg}; {USAGE_TEXT}")]
    Stray { stage: &'static str, arg: String },
    #[error("reapply needs the id of one container; {USAGE_TEXT}")]
    Reapply,
    #[error(transparent)]
    Id(#[from] NotContainerId),
    #[error("--config needs the absolute path of a file; {USAGE_TEXT}")]
    Config,
}

impl onload_core::error::Typed for UsageError {}

#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error(transparent)]
    Arguments(#[from] HookArgumentsError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    NoBundle(#[from] NoBundle),
    #[error(transparent)]
    CreateRuntime(#[from] CreateRuntimeError),
    #[error(transparent)]
    Poststop(#[from] PoststopError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error(transparent)]
    Reapply(#[from] ReapplyError),
    #[error("reading standard input")]
    Input(#[source] io::Error),
    #[error("writing standard output")]
    Output(#[source] io::Error),
}

impl onload_core::error::Typed for HookError {}

/// Runs the program and returns its exit status.
#[must_use]
pub fn main(args: &[OsString]) -> i32 {
    run(args, &StandIns::default())
}

/// As [`main`], where devices that move are found in a way of their own.
#[must_use]
pub fn run(args: &[OsString], stand_ins: &StandIns) -> i32 {
    let args = args.get(1..).unwrap_or_default();
    let (config, command) = match parse(args) {
        Ok(parsed) => parsed,
        Err(error) => {
            fail(Path::new(CONFIG_PATH), &format!(": {}", Chain(&error)));
            return USAGE;
        }
    };
    match dispatch(&command, &config, stand_ins) {
        Ok(()) => SUCCESS,
        Err(failure) => {
            let Failure {
                stage,
                subject,
                error,
            } = failure;
            fail(&config, &format!(" {stage}: {subject}{}", Chain(&error)));
            FAILURE
        }
    }
}

fn parse(args: &[OsString]) -> Result<(PathBuf, Command), UsageError> {
    let mut config = PathBuf::from(CONFIG_PATH);
    let mut rest = Vec::with_capacity(args.len());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg != "--config" {
            rest.push(arg.clone());
            continue;
        }
        let path = args.next().map(PathBuf::from);
        config = path
            .filter(|path| path.is_absolute())
            .ok_or(UsageError::Config)?;
    }
    let [word, args @ ..] = rest.as_slice() else {
        return Err(UsageError::Empty);
    };
    Ok((config, command(word, args)?))
}

fn command(word: &OsStr, args: &[OsString]) -> Result<Command, UsageError> {
    let word = word.to_str().unwrap_or_default();
    let plain = |command: Command, stage: &'static str| match args {
        [] => Ok(command),
        [arg, ..] => Err(UsageError::Stray {
            stage,
            arg: Quoted(&arg.to_string_lossy()).to_string(),
        }),
    };
    if let Some(stage) = OTHER_STAGES.into_iter().find(|stage| *stage == word) {
        return Ok(Command::OtherStage(stage));
    }
    match word {
        "createRuntime" => Ok(Command::CreateRuntime {
            stage: "createRuntime",
            args: args.to_vec(),
        }),
        "prestart" => Ok(Command::CreateRuntime {
            stage: "prestart",
            args: args.to_vec(),
        }),
        "poststop" => Ok(Command::Poststop {
            args: args.to_vec(),
        }),
        "precreate" => plain(Command::Precreate, "precreate"),
        "reapply" => match args {
            [id] => Ok(Command::Reapply(id.to_string_lossy().parse()?)),
            _ => Err(UsageError::Reapply),
        },
        "--version" => plain(Command::Version, "--version"),
        "--help" => plain(Command::Help, "--help"),
        other => Err(UsageError::NoStage(Quoted(other).to_string())),
    }
}

/// The stage that failed, for which container, and why.
struct Failure {
    stage: &'static str,
    subject: String,
    error: Box<HookError>,
}

impl Failure {
    fn new(stage: &'static str, subject: &str, error: impl Into<HookError>) -> Self {
        Failure {
            stage,
            subject: subject.to_owned(),
            error: Box::new(error.into()),
        }
    }
}

fn dispatch(command: &Command, config: &Path, stand_ins: &StandIns) -> Result<(), Failure> {
    match command {
        Command::CreateRuntime { stage, args } => create_runtime(stage, args, config, stand_ins),
        Command::Poststop { args } => poststop(args, config, stand_ins),
        Command::Precreate => precreate(config, stand_ins),
        Command::Reapply(id) => reapply(id, config),
        Command::OtherStage(stage) => {
            let warning = format!("stage {stage} is not handled, nothing done");
            tell(Severity::Warning, &format!(": warning: {warning}"));
            let log = log_file::settings(config);
            log_lines(&log, [Line::new(LogLevel::Warning, warning)]);
            Ok(())
        }
        Command::Version => writeln!(io::stdout(), "onload-hook {}", env!("CARGO_PKG_VERSION"))
            .map_err(|error| Failure::new("--version", "", HookError::Output(error))),
        Command::Help => writeln!(io::stdout(), "{USAGE_TEXT}")
            .map_err(|error| Failure::new("--help", "", HookError::Output(error))),
    }
}

fn create_runtime(
    stage: &'static str,
    args: &[OsString],
    config: &Path,
    stand_ins: &StandIns,
) -> Result<(), Failure> {
    let arguments = HookArguments::parse(args).map_err(|error| Failure::new(stage, "", error))?;
    if arguments.is_empty() {
        return by_annotation(stage, config, stand_ins);
    }
    let mut state = State::read(BufReader::new(io::stdin().lock()), true)
        .map_err(|error| Failure::new(stage, "", error))?;
    // Raising a limit does not need the bundle.
    let only_memlock = HookArguments {
        memlock: arguments.memlock,
        ..HookArguments::default()
    };
    if arguments != only_memlock {
        caller::mend_bundle(&mut state)
            .map_err(|error| Failure::new(stage, &subject(&state), error))?;
    }
    let warnings = create_runtime::run(&arguments, &state, &Sysfs::default(), config, stand_ins)
        .map_err(|error| Failure::new(stage, &subject(&state), error))?;
    warn(stage, &subject(&state), warnings, config);
    Ok(())
}

/// The entry point for a container that is already running. The state contains its annotations too,
/// so a state without onload.dev annotations means there is nothing to do.
fn by_annotation(stage: &'static str, config: &Path, stand_ins: &StandIns) -> Result<(), Failure> {
    let scanned = scan::read(io::stdin().lock(), 0, Places::Annotations, &mut |_, _| {
        Ok(())
    })
    .map_err(|error| Failure::new(stage, "", HookError::Input(error)))?;
    if !scanned.may_ask {
        return Ok(());
    }
    if scanned.more {
        return Err(Failure::new(
            stage,
            "",
            EntryError::from(FilterError::from(DecisionError::TooLarge)),
        ));
    }
    let mut state =
        State::read(&scanned.kept[..], true).map_err(|error| Failure::new(stage, "", error))?;
    if state.is_stopped {
        return clean_up(&state, config, stand_ins);
    }
    caller::mend_bundle(&mut state)
        .map_err(|error| Failure::new(stage, &subject(&state), error))?;
    let report = live::inject(&state, config)
        .map_err(|error| Failure::new(stage, &subject(&state), error))?;
    say_all(stage, &subject(&state), &report);
    Ok(())
}

fn reapply(id: &ContainerId, config: &Path) -> Result<(), Failure> {
    let stage = "reapply";
    let subject = format!("container {id}: ");
    let warnings =
        reapply::run(id, config).map_err(|error| Failure::new(stage, &subject, error))?;
    warn(stage, &subject, warnings, config);
    Ok(())
}

/// The entry point for `podman --hooks-dir`: config.json in, config.json out. podman runs it in the
/// bundle.
fn precreate(config: &Path, stand_ins: &StandIns) -> Result<(), Failure> {
    let stage = "precreate";
    let bundle = std::env::current_dir().unwrap_or_default();
    let id = podman_id(&bundle);
    let subject = id
        .as_ref()
        .map(|id| format!("container {id}: "))
        .unwrap_or_default();
    let container = Container {
        bundle: &bundle,
        id: id.as_ref(),
        sees_exec: false,
    };
    let mut output = io::stdout().lock();
    let entry_point = EntryPoint {
        stage: Stage::Precreate,
        bundle: &bundle,
        root: None,
    };
    let streamed = edit::stream(
        io::stdin().lock(),
        &mut output,
        container,
        entry_point,
        config,
    )
    .map_err(|error| Failure::new(stage, &subject, error))?;
    let report = match streamed {
        Streamed::Config(report) => report,
        Streamed::State(state) => return clean_up(&state, config, stand_ins),
    };
    say_all(stage, &subject, &report);
    Ok(())
}

/// Without arguments it removes what was made for a container's annotations; with those of a
/// specification, it ends what was leased by them.
fn poststop(args: &[OsString], config: &Path, stand_ins: &StandIns) -> Result<(), Failure> {
    let stage = "poststop";
    let asked = HookArguments::parse(args).map_err(|error| Failure::new(stage, "", error))?;
    let state = State::read(BufReader::new(io::stdin().lock()), false)
        .map_err(|error| Failure::new(stage, "", error))?;
    if asked.is_empty() || !asked.take.is_empty() {
        return clean_up(&state, config, stand_ins);
    }
    let (token, id) = (asked.token.as_ref(), &state.id);
    let failed = |error: HookError| Failure::new(stage, &subject(&state), error);
    let (rest, rdma) = rdma::split(&asked);
    let (moving, others): (Vec<Device>, Vec<Device>) = rest
        .lease
        .into_iter()
        .partition(|device| device.class == Class::Netdev);
    // What goes wrong with the one keeps nothing from the other.
    let released = lease::release(&others, token, id, &state.bundle);
    let gone = Gone {
        container: id,
        token,
        bundle: &state.bundle,
    };
    let back = take_back(&rdma.lease, &moving, &gone, stand_ins);
    if !rdma.rdma_netns.is_empty() {
        remove_nodes(&state, config)?;
    }
    back.map_err(failed)?;
    released.map_err(|error| failed(error.into()))
}

fn clean_up(state: &State, config: &Path, stand_ins: &StandIns) -> Result<(), Failure> {
    let stage = "poststop";
    let leased = sweep::leased(Path::new(RUN_DIR), &state.id);
    let (moving, bundle) = leased.unwrap_or_default();
    let gone = Gone {
        container: &state.id,
        token: None,
        bundle: &bundle,
    };
    let back = take_back(&moving, &moving, &gone, stand_ins);
    remove_nodes(state, config)?;
    back.map_err(|error| Failure::new(stage, &subject(state), error))
}

/// Brings back the RDMA devices and the interfaces among what a container had. What goes wrong with the one keeps
/// nothing from the other.
fn take_back(
    rdma: &[Device],
    interfaces: &[Device],
    gone: &Gone<'_>,
    stand_ins: &StandIns,
) -> Result<(), HookError> {
    let devices = rdma::take_back(rdma, gone, &stand_ins.rdma);
    netdev::take_back(interfaces, gone, &stand_ins.interfaces)?;
    Ok(devices?)
}

/// Removes what was made in a container's root.
fn remove_nodes(state: &State, config: &Path) -> Result<(), Failure> {
    let stage = "poststop";
    let warnings = sweep::run(Path::new(RUN_DIR), &state.id)
        .map_err(|error| Failure::new(stage, &subject(state), error))?;
    warn(stage, &subject(state), warnings, config);
    Ok(())
}

fn subject(state: &State) -> String {
    format!("container {}: ", state.id)
}

/// Says warnings, where there are any, and logs them.
fn warn(stage: &str, subject: &str, warnings: Vec<String>, config: &Path) {
    if !warnings.is_empty() {
        let log = log_file::settings(config);
        say_all(stage, subject, &Report::of_warnings(warnings, log));
    }
}

/// Says the warnings of a report, and logs all of it.
fn say_all(stage: &str, subject: &str, report: &Report) {
    for warning in &report.warnings {
        let text = format!(" {stage}: {subject}warning: {warning}");
        tell(Severity::Warning, &text);
    }
    let subject = format!("{stage}: {subject}");
    log_lines(&report.log, Line::of(report, &subject));
}

/// Says why the program fails. That comes last, since engines show the last line.
fn fail(config: &Path, text: &str) {
    let line = Line::new(LogLevel::Error, text.trim_start_matches([':', ' ']));
    log_lines(&log_file::settings(config), [line]);
    tell(Severity::Error, text);
}

/// Writes lines to the operator's log; the container starts without them too.
fn log_lines(log: &Log, lines: impl IntoIterator<Item = Line>) {
    if let Err(error) = log_file::write(log, PROGRAM, lines) {
        tell(Severity::Warning, &format!(": warning: {}", Chain(&error)));
    }
}

/// Writes `text`, with the program's name before it, to standard error, or to the system log if
/// standard error leads nowhere.
fn tell(severity: Severity, text: &str) {
    say(&format!("{PROGRAM}{text}"));
    if system_log::leads_nowhere(io::stderr()) {
        let line = text.trim_start_matches([':', ' ']);
        // There is nowhere else to report it.
        let _ = system_log::send(Path::new(system_log::SOCKET), PROGRAM, severity, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<(PathBuf, Command), UsageError> {
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
        for words in [
            ["--config", "/x.toml", "precreate"],
            ["precreate", "--config", "/x.toml"],
        ] {
            let (named, command) = parsed(&words).unwrap();
            assert_eq!(
                (named.as_path(), command),
                (Path::new("/x.toml"), Command::Precreate)
            );
        }
    }
}
