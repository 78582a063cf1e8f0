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

/// Code that was generated from the .proto files in a crate is what `generate` makes of them.
pub fn assert_generated(manifest_dir: &str, generate: impl Fn(&Path)) {
    let committed = Path::new(manifest_dir).join("generated");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        generate(&committed);
    }
    let dir = tempfile::tempdir().unwrap();
    generate(dir.path());
    assert_eq!(names_in(dir.path()), names_in(&committed));
    for name in names_in(&committed) {
        let [made, there] =
            [dir.path(), &committed].map(|dir| fs::read_to_string(dir.join(&name)).unwrap());
        assert!(
            made == there,
            "{name:?} differs: run this test with UPDATE_GOLDEN=1, and look at the change"
        );
    }
}
