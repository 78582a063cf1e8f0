//! The network namespace that a configuration names.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

const MAX_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    linux: Linux,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Linux {
    namespaces: Vec<Namespace>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Namespace {
    r#type: String,
    path: PathBuf,
}

/// The file of the network namespace that a container joins; `None` if it gets a new one, or the
/// configuration is gone.
pub(crate) fn network(config: &Path) -> Option<PathBuf> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(config, flags, Mode::empty()).ok()?);
    file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Option<PathBuf> {
    let config: Config = serde_json::from_slice(bytes).ok()?;
    let mut namespaces = config.linux.namespaces.into_iter();
    let network = namespaces.find(|namespace| namespace.r#type == "network")?;
    Some(network.path).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_namespace_is_read_whatever_stands_beside_it() {
        let json = br#"{"ociVersion":"1.0.2","linux":{"resources":{},"namespaces":[{"type":"pid"},
            {"type":"network","path":"/run/netns/a"}]}}"#;
        assert_eq!(parse(json), Some(PathBuf::from("/run/netns/a")));
    }

    #[test]
    fn a_new_one_has_no_file_and_neither_has_what_is_not_understood() {
        for json in [
            r#"{"linux":{"namespaces":[{"type":"network"}]}}"#,
            r#"{"linux":{"namespaces":[{"type":"network","path":"relative"}]}}"#,
            r#"{"linux":{"namespaces":[{"type":"pid","path":"/a"}]}}"#,
            r#"{"linux":{"namespaces":7}}"#,
            "{}",
            "",
        ] {
            assert_eq!(parse(json.as_bytes()), None, "{json}");
        }
    }
}
