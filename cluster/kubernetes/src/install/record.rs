//! The record of installed files: hooks by version, and the configuration by content. It is stored with the hooks, so
//! that an uninstallation, or an installation of another version, can distinguish our files from others.
//!
//! It may be from another version. Unknown fields are ignored, and with a `version` above [`FORMAT`] this program
//! cannot distinguish files.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};

pub(super) const RECORD_NAME: &str = ".onload-kubernetes.json";
/// The newest supported format.
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstallRecord {
    version: u32,
    /// The version that was installed last.
    #[serde(default)]
    pub current: String,
    #[serde(default)]
    pub hooks: BTreeMap<String, InstalledHook>,
    /// The sha256 of the configuration file, in hexadecimal; two while it is being replaced, none where it is
    /// the host's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstalledHook {
    /// When it became the current version, in seconds after 1970.
    #[serde(default)]
    pub since: u64,
}

impl Default for InstallRecord {
    fn default() -> Self {
        InstallRecord {
            version: FORMAT,
            current: String::new(),
            hooks: BTreeMap::new(),
            config: Vec::new(),
        }
    }
}

impl InstallRecord {
    pub(super) fn parse(bytes: &[u8]) -> Result<InstallRecord> {
        #[derive(Deserialize)]
        struct InstallRecordVersion {
            version: u32,
        }
        let damaged = |error| {
            anyhow!(
                "it is not a record of the installation ({error}); remove it, and existing files \
                 are treated as files of others"
            )
        };
        let InstallRecordVersion { version } = serde_json::from_slice(bytes).map_err(damaged)?;
        if version > FORMAT {
            bail!(
                "it is of format {version}, and this program understands {FORMAT}; run the newer version"
            );
        }
        let record: InstallRecord = serde_json::from_slice(bytes).map_err(damaged)?;
        if let Some(version) = record.hooks.keys().find(|version| !is_version(version)) {
            bail!(
                "it has the invalid version {version:?}; remove it, and existing files are treated \
                 as files of others"
            );
        }
        Ok(record)
    }

    pub(super) fn to_text(&self) -> String {
        // Cannot fail for texts and numbers.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    pub(super) fn has_config(&self, sha256: &str) -> bool {
        self.config.iter().any(|known| known == sha256)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hooks.is_empty() && self.config.is_empty()
    }
}

fn is_version(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> InstallRecord {
        let installed = InstalledHook { since: 7 };
        InstallRecord {
            hooks: BTreeMap::from([("0.1.0".to_owned(), installed)]),
            config: vec!["01".to_owned()],
            ..InstallRecord::default()
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for record in [record(), InstallRecord::default()] {
            assert_eq!(InstallRecord::parse(record.to_text().as_bytes()).unwrap(), record);
        }
    }

    #[test]
    fn fields_that_are_not_known_are_passed_over() {
        let text = record().to_text();
        let more = text.replacen('{', "{\"later\":[{}],", 1);
        assert_eq!(InstallRecord::parse(more.as_bytes()).unwrap(), record());
    }

    #[test]
    fn a_record_that_is_newer_or_damaged_or_leads_elsewhere_is_refused() {
        let text = record().to_text();
        for (text, says) in [
            (text.replacen("\"version\": 1", "\"version\": 2", 1), "it is of format 2"),
            (text[..text.len() / 2].to_owned(), "it is not a record"),
            (String::new(), "it is not a record"),
            ("{}".to_owned(), "missing field `version`"),
            (text.replacen("0.1.0", "../../etc", 1), "the invalid version \"../../etc\""),
            (text.replacen("0.1.0", "0/..", 1), "the invalid version \"0/..\""),
        ] {
            let error = InstallRecord::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_version_is_one_plain_name() {
        for good in ["0.1.0", "1.0.0-rc.1", "1.2.3+git.4"] {
            assert!(is_version(good), "{good}");
        }
        for bad in ["", ".", "..", ".1", "a", "0/1", "0 1", "0\n", "-1", "0\u{e9}"] {
            assert!(!is_version(bad), "{bad:?}");
        }
    }
}
