//! The manifest of an output directory: which of its files onload-ctk wrote, identified by content. Unknown fields and
//! classes are ignored, and a field `version` above [`VERSION`] means that this version cannot interpret the rest.

use std::collections::BTreeMap;

use anyhow::bail;
use onload_cdi::{Spec, from_json, from_yaml};
use onload_core::class::Class;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

pub use crate::spec_index::FILE_PREFIX;
use crate::spec_name::SpecName;

/// CDI readers use only names that end in .json or .yaml.
pub const MANIFEST_NAME: &str = ".onload-ctk-manifest";

const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpecFormat {
    /// JSON, which every reader accepts.
    #[default]
    Json,
    Yaml,
}

impl SpecFormat {
    pub(crate) const ALL: [SpecFormat; 2] = [SpecFormat::Json, SpecFormat::Yaml];

    pub(crate) fn extension(self) -> &'static str {
        match self {
            SpecFormat::Json => "json",
            SpecFormat::Yaml => "yaml",
        }
    }

    pub(super) fn parse(self, bytes: &[u8]) -> Option<Spec> {
        match self {
            SpecFormat::Json => from_json(bytes).ok(),
            SpecFormat::Yaml => from_yaml(bytes).ok(),
        }
    }

    pub fn file_name(self, spec: SpecName) -> String {
        format!("{FILE_PREFIX}{spec}.{}", self.extension())
    }

    pub(crate) fn file_names(class: Class) -> impl Iterator<Item = String> {
        SpecName::for_class(class)
            .into_iter()
            .flat_map(|spec| SpecFormat::ALL.map(|format| format.file_name(spec)))
    }
}

/// Equal for two runs that write the same files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub format: SpecFormat,
    /// The newest CDI version that was allowed; `None` means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cdi_version: Option<String>,
    #[serde(deserialize_with = "deserialize_known_classes")]
    pub kinds: Vec<Class>,
    pub files: BTreeMap<String, FileHashes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHashes {
    /// The sha256 of its content in hexadecimal; two while it is being replaced.
    pub sha256: Vec<String>,
}

impl Manifest {
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Manifest> {
        #[derive(Deserialize)]
        struct ManifestVersion {
            #[serde(default)]
            version: u32,
        }
        let ManifestVersion { version } = serde_json::from_slice(bytes)?;
        if version > VERSION {
            bail!(
                "it is of version {version}, and this program understands {VERSION}; run the newer one, or remove the file"
            );
        }
        Ok(serde_json::from_slice(bytes)?)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        // Serialisation cannot fail: its maps have text keys.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    pub(crate) fn owns(&self, name: &str, content: &[u8]) -> bool {
        let hash = sha256(content);
        let hashes = self.files.get(name);
        hashes.is_some_and(|hashes| hashes.sha256.contains(&hash))
    }
}

/// Returns the digest in hexadecimal.
pub fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn deserialize_known_classes<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<Class>, D::Error> {
    let words = Vec::<String>::deserialize(input)?;
    Ok(words.iter().filter_map(|word| word.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = r#"{"format":"yaml","maxCdiVersion":"0.5.0","kinds":["nic","rdma"],
        "files":{"onload.dev-nic.yaml":{"sha256":["00"]}}}"#;

    #[test]
    fn what_another_version_says_more_is_passed_over() {
        let plain = Manifest::parse(PLAIN.as_bytes()).unwrap();
        assert_eq!(plain.kinds, [Class::Nic, Class::Rdma]);
        let more = PLAIN
            .replace("{\"format\"", "{\"version\":1,\"writtenBy\":{\"a\":1},\"format\"")
            .replace("\"nic\",", "\"gpu\",\"nic\",")
            .replace("{\"sha256\"", "{\"label\":\"x\",\"sha256\"");
        assert_eq!(Manifest::parse(more.as_bytes()).unwrap(), plain);
    }

    #[test]
    fn a_newer_manifest_is_told_from_a_broken_one() {
        let newer = PLAIN.replace("{\"format\"", "{\"version\":2,\"format\"");
        let error = Manifest::parse(newer.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("it is of version 2, "), "{error}");
        for text in
            ["", "[]", "{}", r#"{"version":"1"}"#, r#"{"format":"xml","kinds":[],"files":{}}"#]
        {
            let error = Manifest::parse(text.as_bytes()).unwrap_err();
            assert!(error.is::<serde_json::Error>(), "{text}: {error}");
        }
    }
}
