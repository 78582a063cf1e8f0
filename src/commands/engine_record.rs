//! The record of engine files that are not in their usual places: the unit or file that named one may have changed by the
//! time of its removal.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use onload_engines::engine::Engine;
use onload_host::host::Host;

use crate::config_file::OwnFile;

const NAME: &str = "engine-files";
const HEADER: &str = "# Files that \"onload-ctk runtime configure\" has changed; its --remove looks for them here.\n";

pub(super) struct EngineRecord {
    /// With the engine's name.
    files: Vec<(String, PathBuf)>,
    own_file: OwnFile,
}

impl EngineRecord {
    pub(super) fn read(host: &Host) -> Result<EngineRecord> {
        let own_file = OwnFile::of_host(host, NAME)?;
        let files = own_file
            .text()
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(_, path)| path.starts_with('/'))
            .map(|(engine, path)| (engine.to_owned(), path.into()))
            .collect();
        Ok(EngineRecord { files, own_file })
    }

    pub(super) fn files(&self, engine: Engine) -> impl Iterator<Item = &Path> {
        self.files
            .iter()
            .filter(move |(name, _)| name == engine.name())
            .map(|(_, path)| path.as_path())
    }

    pub(super) fn add(&mut self, host: &Host, engine: Engine, path: &Path) -> Result<()> {
        if self.files(engine).any(|known| known == path) {
            return Ok(());
        }
        self.files.push((engine.name().to_owned(), path.to_owned()));
        self.write(host)
    }

    /// Forgets the files of an engine but these.
    pub(super) fn retain(&mut self, host: &Host, engine: Engine, kept: &[&Path]) -> Result<()> {
        let count = self.files.len();
        self.files.retain(|(name, file)| name != engine.name() || kept.contains(&file.as_path()));
        if self.files.len() < count { self.write(host) } else { Ok(()) }
    }

    fn write(&mut self, host: &Host) -> Result<()> {
        let mut text = HEADER.to_owned();
        for (engine, path) in &self.files {
            writeln!(text, "{engine} {}", path.display())?;
        }
        let text = (!self.files.is_empty()).then_some(text.as_str());
        self.own_file.write(host, text).context("recording the changed engine files")
    }
}
