//! Files of a device in the container.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use anyhow::{Context, Result};

pub(super) fn read_attribute(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

pub(super) fn open(path: &Path) -> Result<File> {
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).open(path);
    file.with_context(|| format!("opening {}", path.display()))
}
