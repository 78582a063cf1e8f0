//! The manifest of an output directory: which of its files are ours, by their content.

use std::collections::BTreeMap;

use onload_hooks::class::Class;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Its name; CDI readers take only names that end in .json or .yaml.
pub const MANIFEST_NAME: &str = ".onload-ctk-manifest";

/// The format of specification files.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// JSON, which every reader takes.
    #[default]
    Json,
    /// YAML, which the engines take.
    Yaml,
}

impl Format {
    /// Both of them.
    pub const ALL: [Format; 2] = [Format::Json, Format::Yaml];

    /// The end of a file's name, without the point.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Yaml => "yaml",
        }
    }

    /// The name of the file of a class.
    #[must_use]
    pub fn file_name(self, class: Class) -> String {
        format!("onload.dev-{class}.{}", self.extension())
    }
}

/// What was asked for and what was written; nothing in it differs between two runs that write the
/// same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Manifest {
    /// The format asked for.
    pub format: Format,
    /// The newest CDI version that was allowed; none: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cdi_version: Option<String>,
    /// The classes asked for.
    #[serde(with = "class_names")]
    pub kinds: Vec<Class>,
    /// The files, by their name in the directory.
    pub files: BTreeMap<String, Written>,
}

/// A file of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// The sha256 of its content in hexadecimal digits; two while it is being replaced.
    pub sha256: Vec<String>,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// It is none, or one of another version of this program.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The manifest as it is written.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Nothing of it can fail to be written: its maps have text as keys.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Whether a file with that content is ours.
    #[must_use]
    pub fn owns(&self, name: &str, content: &[u8]) -> bool {
        let hash = sha256(content);
        let written = self.files.get(name);
        written.is_some_and(|written| written.sha256.contains(&hash))
    }
}

/// The sha256 of a content in hexadecimal digits.
#[must_use]
pub(super) fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

mod class_names {
    use onload_hooks::class::Class;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(classes: &[Class], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(classes.iter().map(|class| class.as_str()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Class>, D::Error> {
        Vec::<Class>::deserialize(input)
    }
}
