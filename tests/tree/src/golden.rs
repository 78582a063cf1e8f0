//! Files with the expected output of tests.

use std::path::Path;
use std::{env, fs};

use similar::TextDiff;

/// Returns the diff of a file and what came out, if they differ. With `UPDATE_GOLDEN` set, rewrites the file instead.
pub fn compare(path: &Path, found: &str) -> Option<String> {
    let expected = fs::read_to_string(path).unwrap_or_default();
    if expected == found {
        return None;
    }
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, found).unwrap();
        return None;
    }
    let diff = TextDiff::from_lines(expected.as_str(), found);
    Some(diff.unified_diff().header("expected", "found").to_string())
}
