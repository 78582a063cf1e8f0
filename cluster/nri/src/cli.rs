//! The command line, which is parsed without a library because it has few options.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use onload_sys::error::Result;
use onload_sys::text::{Quoted, parse_decimal};
use onload_sys::{bail, error};

use crate::connect::SOCKET;
use crate::session::PluginRegistration;

pub const HELP: &str = "\
Gives containers of pods the devices that their onload.dev annotations request, as an NRI plugin of the
container runtime

Usage: onload-nri [OPTIONS]

Options:
      --socket PATH    The runtime's NRI socket [default: /var/run/nri/nri.sock]
      --index NN       Two digits by which the runtime orders its plugins [default: 50]
      --registration-timeout SECONDS
                       Wait this long for the runtime to register the plugin [default: 60]
      --host-root DIR  Use this directory as the root of the host, instead of /
  -v, --verbose        Also log why a container gets its devices
  -h, --help           Print help
  -V, --version        Print version

A runtime that launches the plugin itself, from its directory of plugins, sets its socket, name and index by
NRI_PLUGIN_SOCKET, NRI_PLUGIN_NAME and NRI_PLUGIN_IDX.
";

/// The plugin's default name, unless the runtime that launches it sets another.
const NAME: &str = "onload";
/// A high index, so that the plugin runs after most others and sees the variables that they set.
const INDEX: &str = "50";
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NriCommand {
    Run(NriOptions),
    Help,
    Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NriOptions {
    pub socket: PathBuf,
    /// Two digits.
    pub index: String,
    pub registration_timeout: Duration,
    /// The root directory of another host.
    pub host_root: Option<PathBuf>,
    pub verbose: bool,
}

impl Default for NriOptions {
    fn default() -> Self {
        NriOptions {
            socket: SOCKET.into(),
            index: INDEX.to_owned(),
            registration_timeout: REGISTRATION_TIMEOUT,
            host_root: None,
            verbose: false,
        }
    }
}

pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<NriCommand> {
    let mut words = words.into_iter();
    let mut options = NriOptions::default();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let (name, joined) = match text.split_once('=') {
            Some((name, _)) => (name, Some(option_value(&word, name))),
            None => (&*text, None),
        };
        let mut value = |option| {
            let value = joined.clone().or_else(|| words.next());
            value.filter(|value| !value.is_empty()).ok_or_else(|| error!("{option} needs a value"))
        };
        match (name, &joined) {
            ("--socket", _) => options.socket = value("--socket")?.into(),
            ("--host-root", _) => options.host_root = Some(value("--host-root")?.into()),
            ("--index", _) => options.index = check_index(&value("--index")?.to_string_lossy())?,
            ("--registration-timeout", _) => {
                options.registration_timeout = parse_timeout(&value("--registration-timeout")?)?;
            }
            ("-v" | "--verbose", None) => options.verbose = true,
            ("-h" | "--help", None) => return Ok(NriCommand::Help),
            ("-V" | "--version", None) => return Ok(NriCommand::Version),
            _ => bail!("unknown option {}; \"onload-nri --help\" lists them", Quoted(&text)),
        }
    }
    Ok(NriCommand::Run(options))
}

/// Returns the value after `=`, which may be a path that is not UTF-8.
fn option_value(word: &OsStr, name: &str) -> OsString {
    use std::os::unix::ffi::OsStrExt;
    OsStr::from_bytes(&word.as_bytes()[name.len() + 1..]).to_owned()
}

/// Returns the name and index to register with, from the runtime that launched the plugin or from the options. Fails if
/// the runtime would reject them (pkg/api/plugin.go).
pub fn plugin_registration(
    name: Option<&str>,
    index: Option<&str>,
    options: &NriOptions,
) -> Result<PluginRegistration> {
    let name = name.unwrap_or(NAME);
    if name.is_empty()
        || !name.chars().all(|c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c))
    {
        bail!("name {}; expected letters, digits, '_', '.', '+' and '-'", Quoted(name));
    }
    Ok(PluginRegistration {
        name: name.to_owned(),
        index: check_index(index.unwrap_or(&options.index))?,
        timeout: options.registration_timeout,
    })
}

fn parse_timeout(text: &OsStr) -> Result<Duration> {
    let text = text.to_string_lossy();
    match parse_decimal(&text) {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds.into())),
        _ => bail!("--registration-timeout {}: expected a number of seconds", Quoted(&text)),
    }
}

fn check_index(text: &str) -> Result<String> {
    if text.len() != 2 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        bail!("index {}; expected two digits", Quoted(text));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<NriCommand> {
        parse(words.iter().map(OsString::from))
    }

    #[test]
    fn options_are_read_with_their_values_behind_them_or_joined() {
        let expected = NriCommand::Run(NriOptions {
            socket: "/s=1".into(),
            index: "07".to_owned(),
            registration_timeout: Duration::from_secs(90),
            host_root: Some("/host".into()),
            verbose: true,
        });
        let joined =
            ["--socket=/s=1", "--index=07", "--registration-timeout=90", "--host-root=/host", "-v"];
        let apart = [
            "--socket",
            "/s=1",
            "--index",
            "07",
            "--registration-timeout",
            "90",
            "--host-root",
            "/host",
            "--verbose",
        ];
        assert_eq!(parsed(&joined).unwrap(), expected);
        assert_eq!(parsed(&apart).unwrap(), expected);
        assert_eq!(parsed(&[]).unwrap(), NriCommand::Run(NriOptions::default()));
        assert_eq!(parsed(&["--version"]).unwrap(), NriCommand::Version);
        assert_eq!(parsed(&["-h"]).unwrap(), NriCommand::Help);
    }

    #[test]
    fn a_command_line_that_is_not_understood_is_refused() {
        for (words, says) in [
            (&["--sock", "/s"][..], "unknown option \"--sock\""),
            (&["x"], "unknown option \"x\""),
            (&["--verbose=1"], "unknown option"),
            (&["--socket"], "--socket needs a value"),
            (&["--socket="], "--socket needs a value"),
            (&["--index", "7"], "expected two digits"),
            (&["--index", "0x"], "expected two digits"),
            (&["--registration-timeout", "0"], "expected a number of seconds"),
            (&["--registration-timeout=1m"], "expected a number of seconds"),
        ] {
            let refused = parsed(words).unwrap_err().to_string();
            assert!(refused.contains(says), "{words:?}: {refused}");
        }
    }

    #[test]
    fn a_runtime_that_launches_the_plugin_says_its_name() {
        let options = NriOptions::default();
        let own = plugin_registration(None, None, &options).unwrap();
        assert_eq!((&*own.name, &*own.index), ("onload", "50"));
        let registration = plugin_registration(Some("nri"), Some("09"), &options).unwrap();
        assert_eq!((&*registration.name, &*registration.index), ("nri", "09"));
        assert!(plugin_registration(Some("a/b"), None, &options).is_err());
        assert!(plugin_registration(Some(""), None, &options).is_err());
        assert!(plugin_registration(None, Some("100"), &options).is_err());
    }
}
