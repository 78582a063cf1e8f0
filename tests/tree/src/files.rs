//! Directories of this machine.

use std::fs;
use std::path::Path;

/// The names in a directory, sorted; empty where there is none.
pub fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
