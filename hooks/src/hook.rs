//! `onload-hook`: which stage is served how.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::config::CONFIG_PATH;
use crate::create_runtime::{self, CreateRuntimeError, Orders, OrdersError};
use crate::poststop::{self, PoststopError};
use crate::process::{FAILURE, SUCCESS, USAGE, arguments, say};
use crate::state::{State, StateError};
use crate::sysfs::Sysfs;
use crate::text::Quoted;

const USAGE_TEXT: &str = "usage: onload-hook [--config FILE] createRuntime|prestart|poststop|precreate [--memlock unlimited|BYTES] [--expect NODE=CLASS:ID[@PCI]]…, or onload-hook --version";

/// The stages of runtime-spec's config.md ("POSIX-platform Hooks") that are not served: a
/// specification or a configuration of another version may call for them.
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
    Poststop,
    /// `precreate`.
    Precreate,
    /// An OCI stage that is not served.
    OtherStage(&'static str),
    /// `--version`.
    Version,
}

/// A command line that makes no sense.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error("{USAGE_TEXT}")]
    Empty,
    #[error("{0} is no stage of a hook; {USAGE_TEXT}")]
    NoStage(String),
    #[error("{stage} takes no argument, but was given {arg}; {USAGE_TEXT}")]
    Stray { stage: &'static str, arg: String },
    #[error("--config wants the absolute path of a file; {USAGE_TEXT}")]
    Config,
}

/// Why a stage failed.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error(transparent)]
    Orders(#[from] OrdersError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    CreateRuntime(#[from] CreateRuntimeError),
    #[error(transparent)]
    Poststop(#[from] PoststopError),
    #[error("writing standard output: {0}")]
    Output(#[source] io::Error),
}

/// Runs the program; the result is its exit status.
#[must_use]
pub fn main() -> i32 {
    let args = arguments();
    let (config, command) = match parse(&args) {
        Ok(parsed) => parsed,
        Err(error) => {
            say(&format!("onload-hook: {error}"));
            return USAGE;
        }
    };
    match dispatch(&command, &config) {
        Ok(()) => SUCCESS,
        Err((stage, subject, error)) => {
            say(&format!("onload-hook {stage}: {subject}{error}"));
            FAILURE
        }
    }
}

fn parse(args: &[OsString]) -> Result<(PathBuf, Command), UsageError> {
    let mut config = PathBuf::from(CONFIG_PATH);
    let mut rest = args;
    while let [option, behind @ ..] = rest
        && option == "--config"
    {
        let [path, behind @ ..] = behind else {
            return Err(UsageError::Config);
        };
        config = PathBuf::from(path);
        if !config.is_absolute() {
            return Err(UsageError::Config);
        }
        rest = behind;
    }
    let [word, args @ ..] = rest else {
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
        "poststop" => plain(Command::Poststop, "poststop"),
        "precreate" => plain(Command::Precreate, "precreate"),
        "--version" => plain(Command::Version, "--version"),
        other => Err(UsageError::NoStage(Quoted(other).to_string())),
    }
}

type Failure = (&'static str, String, HookError);

fn dispatch(command: &Command, _config: &Path) -> Result<(), Failure> {
    match command {
        Command::CreateRuntime { stage, args } => create_runtime(stage, args),
        Command::Poststop => poststop(),
        Command::Precreate => Ok(()),
        Command::OtherStage(stage) => {
            say(&format!(
                "onload-hook: warning: stage {stage} is not served, nothing done"
            ));
            Ok(())
        }
        Command::Version => writeln!(io::stdout(), "onload-hook {}", env!("CARGO_PKG_VERSION"))
            .map_err(|error| ("--version", String::new(), HookError::Output(error))),
    }
}

fn create_runtime(stage: &'static str, args: &[OsString]) -> Result<(), Failure> {
    let unnamed = |error: HookError| (stage, String::new(), error);
    let orders = Orders::parse(args).map_err(|error| unnamed(error.into()))?;
    if orders.is_empty() {
        return Ok(());
    }
    let state = State::read(io::stdin().lock(), true).map_err(|error| unnamed(error.into()))?;
    let named = |error: CreateRuntimeError| (stage, subject(&state), error.into());
    if let Some(warning) = create_runtime::run(&orders, &state, &Sysfs::default()).map_err(named)? {
        say(&format!(
            "onload-hook {stage}: {}warning: {warning}",
            subject(&state)
        ));
    }
    Ok(())
}

fn poststop() -> Result<(), Failure> {
    let stage = "poststop";
    let state = State::read(io::stdin().lock(), false)
        .map_err(|error| (stage, String::new(), error.into()))?;
    poststop::run(Path::new(poststop::RUN_DIR), &state.id)
        .map_err(|error| (stage, subject(&state), error.into()))
}

fn subject(state: &State) -> String {
    format!("container {}: ", state.id)
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
            ("poststop", Command::Poststop),
            ("precreate", Command::Precreate),
            ("--version", Command::Version),
            ("createContainer", Command::OtherStage("createContainer")),
            ("startContainer", Command::OtherStage("startContainer")),
            ("poststart", Command::OtherStage("poststart")),
        ] {
            assert_eq!(parsed(&[word]).unwrap().1, command, "{word}");
        }
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
        assert!(refusal(&["create"]).contains("\"create\" is no stage"));
        assert!(refusal(&["CreateRuntime"]).contains("is no stage"));
        assert!(refusal(&["poststop", "x"]).contains("takes no argument"));
        assert!(refusal(&["--config"]).contains("--config wants"));
        assert!(refusal(&["--config", "rel.toml", "precreate"]).contains("--config wants"));
    }

    #[test]
    fn the_configuration_is_the_fixed_file_unless_named() {
        assert_eq!(parsed(&["precreate"]).unwrap().0, Path::new(CONFIG_PATH));
        let named = parsed(&["--config", "/x.toml", "precreate"]).unwrap().0;
        assert_eq!(named, Path::new("/x.toml"));
    }
}
