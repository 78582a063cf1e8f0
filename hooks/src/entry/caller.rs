//! Finds the bundle of a container from the command line of the runtime that called the hook.
//!
//! crun (1.21) writes its working directory into the state as the bundle. To create device nodes
//! for a container in its own user namespace, it leaves its mount namespace and returns to it
//! (src/libcrun/linux.c, `prepare_and_send_dev_mounts`). setns(2) changes the working directory to
//! `/`, so the bundle of such a container is `/` in the state.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

use onload_core::container_id::ContainerId;
use onload_sys::error::{Result, bail};

use super::wrapper::args;
use crate::config::state::OciState;

/// Corrects the bundle of a state in which it is `/`.
pub(crate) fn restore_bundle(state: &mut OciState) -> Result<()> {
    let root = Path::new("/");
    if state.bundle != root || root.join("config.json").exists() {
        return Ok(());
    }
    let words = fs::read(format!("/proc/{}/cmdline", parent_id())).ok();
    let Some(bundle) = words.and_then(|words| parse_bundle(&words, &state.id)) else {
        bail!(
            "crun did not report the container's bundle (its state says /, which has no \
             config.json); call it with --bundle and an absolute path, and without --config"
        );
    };
    state.bundle = bundle;
    Ok(())
}

/// Returns the bundle that a command line in procfs form names, if that command creates this
/// container.
fn parse_bundle(words: &[u8], id: &ContainerId) -> Option<PathBuf> {
    let words: Vec<OsString> = words
        .split(|byte| *byte == 0)
        .skip(1)
        .filter(|word| !word.is_empty())
        .map(|word| OsStr::from_bytes(word).to_owned())
        .collect();
    let called = args::parse(&words);
    let same = called.container.is_some_and(|named| named == id.as_str());
    let create = called.create?;
    (same && create.config.is_none() && create.bundle.is_absolute()).then_some(create.bundle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[&str]) -> Option<PathBuf> {
        let line: Vec<u8> = words.iter().flat_map(|word| word.bytes().chain([0])).collect();
        parse_bundle(&line, &"c1".parse().unwrap())
    }

    #[test]
    fn the_bundle_that_a_runtime_was_given_is_found() {
        let podman = [
            "/usr/bin/crun",
            "--systemd-cgroup",
            "create",
            "--bundle",
            "/var/lib/b",
            "--pid-file",
            "/run/pid",
            "c1",
        ];
        assert_eq!(found(&podman), Some("/var/lib/b".into()));
        assert_eq!(found(&["crun", "run", "-b", "/b", "c1"]), Some("/b".into()));
    }

    #[test]
    fn a_command_line_that_does_not_tell_it_tells_nothing() {
        for words in [
            &["crun", "create", "--bundle", "/b", "c2"][..],
            &["crun", "create", "--bundle", "b", "c1"],
            &["crun", "create", "c1"],
            &["crun", "create", "--bundle", "/b", "--config", "other.json", "c1"],
            &["crun", "start", "c1"],
            &["crun"],
            &[],
        ] {
            assert_eq!(found(words), None, "{words:?}");
        }
    }
}
