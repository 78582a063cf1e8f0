//! The image of the probe, made of what the host has: an archive that docker, podman and containerd load.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use onload_host::discover::installation::{ProgramClosure, find_host_closure};
use onload_host::host::Host;
use onload_host::specdir::sha256;
use serde_json::json;
use tar::Builder;

use crate::capture::append_file;

/// This program in the image.
pub(super) const PROGRAM_PATH: &str = "/onload-ctk";
/// The program that sends packets through libc, as Onload requires: this program is static and cannot be preloaded.
pub(super) const SHELL: &str = "/bin/bash";
/// A program of libibverbs: sending requires it, since each adapter has its own kind of queues.
pub(in crate::commands) const PINGPONG: &str = "/usr/bin/ibv_rc_pingpong";
/// Directories of libibverbs providers on Debian and Red Hat, and the files with their names.
const PROVIDERS: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs",
    "/usr/lib/aarch64-linux-gnu/libibverbs",
    "/usr/lib64/libibverbs",
];
const DRIVERS: &str = "/etc/libibverbs.d";

pub(super) type ImageTree = BTreeMap<PathBuf, Vec<u8>>;

pub(super) fn probe_files() -> Result<ImageTree> {
    let program =
        fs::read("/proc/self/exe").context("reading this program for the probe's image")?;
    Ok(ImageTree::from([(PathBuf::from(PROGRAM_PATH), program)]))
}

/// bash of the host, with its loader and all libraries that it and Onload's library need.
pub(super) fn shell_files(host: &Host, onload: PathBuf) -> Result<ImageTree> {
    read(program_paths(host, Path::new(SHELL), &[onload])?)
}

/// libibverbs' own ping-pong, where the host has it, with libibverbs and the libraries of all its providers.
pub(super) fn pingpong_files(host: &Host) -> Result<ImageTree> {
    let program = Path::new(PINGPONG);
    if !program.exists() {
        return Ok(ImageTree::new());
    }
    let providers = PROVIDERS.into_iter().flat_map(list_dir).collect::<Vec<_>>();
    let mut paths = program_paths(host, program, &providers)?;
    paths.extend(providers);
    paths.extend(list_dir(DRIVERS));
    read(paths)
}

fn list_dir(dir: &str) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// A program with its loader, and all libraries that it needs, and those that it loads.
fn program_paths(host: &Host, program: &Path, loads: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let closure = find_host_closure(host, program, loads).map_err(|reason| {
        let program = program.display();
        anyhow!("making the probe's image of {program}: {reason}")
    });
    let ProgramClosure { loader, libraries } = closure?;
    let mut paths = vec![program.to_owned(), loader];
    paths.extend(libraries.into_values());
    Ok(paths)
}

fn read(paths: Vec<PathBuf>) -> Result<ImageTree> {
    let read = |path: PathBuf| {
        let content = fs::read(&path)
            .with_context(|| format!("reading {} for the probe's image", path.display()));
        content.map(|content| (path, content))
    };
    paths.into_iter().map(read).collect()
}

/// In the form of `docker save`, with one layer.
pub(super) fn build_archive(name: &str, files: &ImageTree) -> io::Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    for (path, content) in files {
        let relative = path.strip_prefix("/").unwrap_or(path);
        append_file(&mut layer, relative, content, 0o755)?;
    }
    let layer = layer.into_inner()?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {"Cmd": [PROGRAM_PATH], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))]},
    })
    .to_string();
    let config_name = format!("{}.json", sha256(config.as_bytes()));
    let manifest =
        json!([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).to_string();
    let mut archive = Builder::new(Vec::new());
    for (name, content) in [
        (config_name.as_str(), config.as_bytes()),
        ("layer.tar", &layer),
        ("manifest.json", manifest.as_bytes()),
    ] {
        append_file(&mut archive, Path::new(name), content, 0o644)?;
    }
    archive.into_inner()
}

/// As images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn unpacked(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), content)
        });
        entries.collect()
    }

    #[test]
    fn the_archive_names_its_layer_by_digest_and_holds_the_files() {
        let files = ImageTree::from([(PathBuf::from("/bin/x"), b"content".to_vec())]);
        let whole = unpacked(&build_archive("localhost/x:1", &files).unwrap());
        let manifest: serde_json::Value = serde_json::from_slice(&whole["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "localhost/x:1");
        let layer = &whole[manifest[0]["Layers"][0].as_str().unwrap()];
        let config = &whole[manifest[0]["Config"].as_str().unwrap()];
        let config: serde_json::Value = serde_json::from_slice(config).unwrap();
        let digest = format!("sha256:{}", sha256(layer));
        assert_eq!(config["rootfs"]["diff_ids"][0], digest.as_str());
        assert_eq!(unpacked(layer), BTreeMap::from([("bin/x".to_owned(), b"content".to_vec())]));
    }

    #[test]
    fn a_preloaded_library_that_is_not_there_is_named() {
        let host = Host::open(Path::new("/")).unwrap();
        let error = shell_files(&host, "/nonexistent/libonload.so".into()).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains("/nonexistent/libonload.so"), "{message}");
    }

    #[test]
    fn the_shell_comes_with_its_loader_and_libc() {
        let host = Host::open(Path::new("/")).unwrap();
        // Any shared object stands for Onload's library here.
        let files = shell_files(&host, SHELL.into()).unwrap();
        let names: Vec<_> = files.keys().filter_map(|path| path.file_name()).collect();
        assert!(names.iter().any(|name| *name == "libc.so.6"), "{names:?}");
        assert!(
            names.iter().any(|name| name.to_string_lossy().starts_with("ld-linux")),
            "{names:?}"
        );
    }
}
