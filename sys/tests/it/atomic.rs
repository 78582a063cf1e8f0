//! A file is replaced completely or not at all, and nothing is left beside it.

// Test helpers may panic, as tests do.
#![allow(clippy::expect_used)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use onload_sys::fs::atomic::{
    TempFile, is_temporary_name, remove, remove_leftover, sync, write_atomic, write_atomic_locked,
};
use onload_sys::text::ErrorChain;

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

fn fixture() -> (tempfile::TempDir, File) {
    let dir = tempfile::tempdir().expect("a directory");
    let descriptor = File::open(dir.path()).expect("a descriptor");
    (dir, descriptor)
}

#[test]
fn a_file_is_written_with_exactly_its_mode_and_nothing_is_left_beside_it() {
    let (dir, descriptor) = fixture();
    for (mode, content) in [(0o644, "one"), (0o600, "two"), (0o666, "")] {
        write_atomic(&descriptor, OsStr::new("a.json"), content.as_bytes(), mode).expect("a file");
        let path = dir.path().join("a.json");
        assert_eq!(fs::read_to_string(&path).expect("content"), content);
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o7777, mode);
        assert_eq!(entries(dir.path()), ["a.json"]);
    }
}

#[test]
fn the_old_file_is_replaced_and_never_written_into() {
    let (dir, descriptor) = fixture();
    let path = dir.path().join("a.json");
    fs::write(&path, "old").expect("a file");
    fs::hard_link(&path, dir.path().join("kept")).expect("a link");
    let inode = fs::metadata(&path).expect("a file").ino();
    write_atomic(&descriptor, OsStr::new("a.json"), b"new", 0o644).expect("a file");
    assert_ne!(fs::metadata(&path).expect("a file").ino(), inode);
    assert_eq!(fs::read_to_string(dir.path().join("kept")).expect("content"), "old");
}

#[test]
fn a_link_of_that_name_is_replaced_and_not_followed() {
    let (dir, descriptor) = fixture();
    let victim = dir.path().join("victim");
    fs::write(&victim, "old").expect("a file");
    symlink("victim", dir.path().join("a.json")).expect("a link");
    write_atomic(&descriptor, OsStr::new("a.json"), b"new", 0o644).expect("a file");
    assert_eq!(fs::read_to_string(victim).expect("content"), "old");
    assert!(fs::symlink_metadata(dir.path().join("a.json")).expect("a file").is_file());
}

#[test]
fn a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it() {
    let (dir, descriptor) = fixture();
    fs::write(dir.path().join("a.json"), "old").expect("a file");
    let mut temp =
        TempFile::create(descriptor.as_fd(), OsStr::new("a.json"), 0o644).expect("a file");
    temp.file().write_all(b"half").expect("a write");
    assert_eq!(entries(dir.path()).len(), 2);
    drop(temp);
    assert_eq!(entries(dir.path()), ["a.json"]);
    assert_eq!(fs::read_to_string(dir.path().join("a.json")).expect("content"), "old");

    fs::create_dir_all(dir.path().join("dir/full")).expect("a directory");
    let error =
        write_atomic(&descriptor, OsStr::new("dir"), b"new", 0o644).expect_err("a directory");
    assert!(
        ErrorChain(&error).to_string().starts_with("renaming a temporary file to dir: "),
        "{error}"
    );
    assert_eq!(entries(dir.path()), ["a.json", "dir"]);
}

#[test]
fn what_a_killed_process_leaves_is_no_specification_and_is_known_as_ours() {
    let (dir, descriptor) = fixture();
    let temp = TempFile::create(descriptor.as_fd(), OsStr::new("a.json"), 0o644).expect("a file");
    let [name] = &entries(dir.path())[..] else { panic!("one file") };
    assert!(!name.ends_with(".json") && !name.ends_with(".yaml"));
    assert!(is_temporary_name(OsStr::new(name)));
    drop(temp);
    for other in ["a.json", ".onload-ctk-manifest", "x.tmp", ".onload-ctk-1-1.tmp.json"] {
        assert!(!is_temporary_name(OsStr::new(other)), "{other}");
    }
}

#[test]
fn nobody_can_lay_the_names_of_temporary_files_in_advance() {
    let (dir, descriptor) = fixture();
    let victim = dir.path().join("victim");
    fs::write(&victim, "old").expect("a file");
    for serial in 0..1024 {
        let name = format!(".onload-ctk-{}-{serial}.tmp", std::process::id());
        symlink("victim", dir.path().join(name)).expect("a link");
    }
    write_atomic(&descriptor, OsStr::new("a.json"), b"new", 0o644).expect("a name that is free");
    assert_eq!(fs::read_to_string(victim).expect("content"), "old");
    let open = |name| TempFile::create(descriptor.as_fd(), OsStr::new(name), 0o644).expect("free");
    let before = entries(dir.path());
    let (_one, _two) = (open("a.json"), open("a.json"));
    let now = entries(dir.path());
    let new: Vec<_> = now.iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(new.len(), 2, "{new:?}");
    for name in new {
        assert!(is_temporary_name(OsStr::new(name)), "{name}");
    }
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    let (dir, descriptor) = fixture();
    for name in ["", ".", "..", "a/b", "/etc/x", "../x"] {
        let error = write_atomic(&descriptor, OsStr::new(name), b"new", 0o644).expect_err(name);
        assert!(ErrorChain(&error).to_string().contains("not a plain file name"), "{error}");
    }
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn a_directory_that_is_gone_is_an_error_with_the_name_of_the_file() {
    let (dir, descriptor) = fixture();
    drop(dir);
    let error =
        write_atomic(&descriptor, OsStr::new("a.json"), b"new", 0o644).expect_err("no directory");
    assert!(
        ErrorChain(&error).to_string().starts_with("creating a temporary file for a.json: "),
        "{error}"
    );
}

#[test]
fn removing_says_whether_there_was_something() {
    let (dir, descriptor) = fixture();
    fs::write(dir.path().join("a.json"), "").expect("a file");
    assert!(remove(&descriptor, OsStr::new("a.json")).expect("removed"));
    assert!(!remove(&descriptor, OsStr::new("a.json")).expect("nothing there"));
    fs::create_dir(dir.path().join("dir")).expect("a directory");
    assert!(remove(&descriptor, OsStr::new("dir")).is_err());
    sync(&descriptor).expect("a directory");
}

#[test]
fn who_removes_leftovers_leaves_a_file_that_is_being_written() {
    let (dir, descriptor) = fixture();
    let killed = TempFile::create(descriptor.as_fd(), OsStr::new("a.json"), 0o644);
    std::mem::forget(killed.expect("a temporary file"));
    let remove_all = || {
        let is_temporary = |name: &String| is_temporary_name(OsStr::new(name));
        for name in entries(dir.path()).into_iter().filter(is_temporary) {
            remove_leftover(&descriptor, OsStr::new(&name)).expect("it goes, or stays");
        }
    };
    let written = AtomicBool::new(false);
    let failed = thread::scope(|scope| {
        scope.spawn(|| {
            while !written.load(Ordering::Relaxed) {
                remove_all();
            }
        });
        let write = |_| write_atomic_locked(&descriptor, OsStr::new("a.json"), b"new", 0o644);
        let failed = (0..300).map(write).filter_map(Result::err).next();
        written.store(true, Ordering::Relaxed);
        failed
    });
    assert!(failed.is_none(), "{failed:?}");
    remove_all();
    assert_eq!(entries(dir.path()), ["a.json"]);
}
