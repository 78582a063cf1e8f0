//! Lists a directory of records, and chooses where a bounded search in it begins.

use std::os::fd::AsFd;
use std::time::SystemTime;

use onload_sys::fs::list::each_name;

pub(crate) fn random_index() -> usize {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    usize::try_from(now.map_or(0, |now| now.subsec_nanos())).unwrap_or_default()
}

pub(super) fn list_entries(dir: impl AsFd) -> Vec<String> {
    let mut names = Vec::new();
    // A directory that cannot be listed counts as empty.
    let _ = each_name(dir, &mut |name| {
        names.push(String::from_utf8_lossy(name).into_owned());
        true
    });
    names
}
