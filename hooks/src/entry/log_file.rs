//! The operator's log: the file that `[log]` in config.toml names, for the messages of hook and
//! wrapper.
//!
//! Root writes to it while a container is created, so it is opened as carefully as the files that
//! root trusts. If writing fails, the container starts all the same. No file is opened if no log is
//! set or there is no message.

use std::io::Write;
use std::path::Path;

use onload_core::config::{LogConfig, LogLevel};
use onload_core::timestamp::{format_rfc3339, unix_seconds};
use onload_sys::error::{Context, Result, bail};
use onload_sys::fs::trust::{TrustedOwners, TrustedTree};
use onload_sys::text::to_one_line;
use rustix::process::{Resource, getrlimit};

use crate::decide::host_view::{LocalHost, is_root};
use crate::decide::report::ContainerReport;

/// A line and its severity.
pub(crate) type LogLine = (LogLevel, String);

/// Returns all lines about a container.
pub(crate) fn report_lines(report: &ContainerReport, subject: &str) -> Vec<LogLine> {
    let granted = (!report.granted.is_empty()).then(|| format!("given {}", report.granted));
    [
        (LogLevel::Warning, report.warnings.as_slice()),
        (LogLevel::Info, granted.as_slice()),
        (LogLevel::Debug, report.reasons.as_slice()),
    ]
    .into_iter()
    .flat_map(|(level, texts)| texts.iter().map(move |text| (level, format!("{subject}{text}"))))
    .collect()
}

const LOG: &str = "the log of config.toml";

/// Reads the settings of the log, for a caller that has not read the configuration.
pub(crate) fn read_log_config(config: &Path) -> LogConfig {
    LocalHost::with_config(config).map_or_else(|_| LogConfig::default(), |host| host.log())
}

/// Writes the lines of the configured level. Only root can write to the file, so there are no lines
/// about rootless containers.
pub(crate) fn write(
    log: &LogConfig,
    program: &str,
    lines: impl IntoIterator<Item = LogLine>,
) -> Result<()> {
    if log.file.as_os_str().is_empty() {
        return Ok(());
    }
    let text = format(log.level, program, lines, unix_seconds());
    if text.is_empty() || !is_root() {
        return Ok(());
    }
    let trusted = TrustedTree::for_host(TrustedOwners::root()).context(LOG)?;
    let largest = getrlimit(Resource::Fsize).current;
    append(&trusted, &log.file, text.as_bytes(), largest)
}

/// Appends with one call, so that lines of concurrent programs do not mix.
fn append(trusted: &TrustedTree, path: &Path, text: &[u8], largest: Option<u64>) -> Result<()> {
    let mut opened = trusted.append(path).context(LOG)?;
    // SIGXFSZ would kill this program, and the container would not start.
    let size = opened.size().saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
    if largest.is_some_and(|largest| size > largest) {
        bail!("{LOG}: {path:?} would pass RLIMIT_FSIZE of this process");
    }
    opened.file.write_all(text).context("writing the log of config.toml")
}

fn format(
    max_level: LogLevel,
    program: &str,
    lines: impl IntoIterator<Item = LogLine>,
    time: u64,
) -> String {
    let (time, pid) = (format_rfc3339(time), std::process::id());
    let mut text = String::new();
    for (level, line) in lines.into_iter().filter(|(level, _)| *level <= max_level) {
        text += &format!("{time} {program}[{pid}]: {level}: {}\n", to_one_line(&line));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const UNLIMITED: Option<u64> = None;

    fn lines() -> Vec<LogLine> {
        let report = ContainerReport {
            warnings: vec!["a\n2026 forged".to_owned()],
            granted: "nic=all".to_owned(),
            reasons: vec!["because".to_owned()],
            log: LogConfig::default(),
        };
        report_lines(&report, "container c: ")
    }

    fn below(dir: &tempfile::TempDir) -> TrustedTree {
        let owner = dir.path().metadata().unwrap().uid();
        TrustedTree::for_tree(dir.path(), TrustedOwners::from_users(&[owner])).unwrap()
    }

    #[test]
    fn each_level_has_the_lines_of_those_that_are_more_severe() {
        let mut lines = lines();
        lines.push((LogLevel::Error, "no".to_owned()));
        let pid = std::process::id();
        let line = |text: &str| format!("1970-01-01T00:00:00Z onload-hook[{pid}]: {text}\n");
        let (error, warning) = (line("error: no"), line("warning: container c: a\\n2026 forged"));
        let given = line("info: container c: given nic=all");
        let reason = line("debug: container c: because");
        for (level, text) in [
            (LogLevel::Error, error.clone()),
            (LogLevel::Warning, format!("{warning}{error}")),
            (LogLevel::Info, format!("{warning}{given}{error}")),
            (LogLevel::Debug, format!("{warning}{given}{reason}{error}")),
        ] {
            assert_eq!(format(level, "onload-hook", lines.clone(), 0), text, "{level}");
        }
    }

    #[test]
    fn what_was_given_nothing_has_no_line() {
        assert!(report_lines(&ContainerReport::default(), "").is_empty());
    }

    #[test]
    fn lines_are_appended_as_long_as_the_process_may_write_them() {
        let dir = tempfile::tempdir().unwrap();
        let trusted = below(&dir);
        let append = |text: &[u8], largest| append(&trusted, Path::new("/log"), text, largest);
        append(b"one\n", UNLIMITED).unwrap();
        append(b"two\n", Some(8)).unwrap();
        let refusal = append(b"three\n", Some(13)).unwrap_err().to_string();
        assert!(refusal.contains("would pass RLIMIT_FSIZE"), "{refusal}");
        let text = std::fs::read_to_string(dir.path().join("log")).unwrap();
        assert_eq!(text, "one\ntwo\n");
    }

    #[test]
    fn a_log_that_is_not_set_is_nowhere() {
        write(&LogConfig::default(), "onload-hook", lines()).unwrap();
    }
}
