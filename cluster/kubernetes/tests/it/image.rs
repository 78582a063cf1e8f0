//! `packaging/image`: the same bytes from two builds, and an image that engines load.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use onload_test_needs as needs;
use serde_json::Value;

const NAME: &str = concat!("onload.dev/onload-kubernetes:", env!("CARGO_PKG_VERSION"));
const PROGRAMS: [&str; 3] = ["onload-kubernetes", "onload-ctk", "onload-hook"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A directory with the programs: ours, and stand-ins for the others.
fn programs(directory: &Path) -> PathBuf {
    let programs = directory.join("programs");
    fs::create_dir_all(&programs).unwrap();
    for name in PROGRAMS {
        fs::write(programs.join(name), format!("stand-in of {name}")).unwrap();
    }
    fs::copy(env!("CARGO_BIN_EXE_onload-kubernetes"), programs.join(PROGRAMS[0])).unwrap();
    programs
}

fn build(programs: &Path, output: &Path, umask: &str) {
    let script = format!("umask {umask}; exec \"$0\" --binaries \"$1\" \"$2\"");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).arg(root().join("packaging/image")).arg(programs).arg(output);
    // A commit's time, which a checkout without its history does not know.
    command.env("SOURCE_DATE_EPOCH", "1767225600");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn image(directory: &Path) -> PathBuf {
    let output = directory.join("image.tar");
    build(&programs(directory), &output, "022");
    output
}

fn unpack(archive: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let tar = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(to).status().unwrap();
    assert!(tar.success());
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn listing(archive: &Path) -> Vec<String> {
    let output =
        Command::new("tar").args(["--numeric-owner", "-tvf"]).arg(archive).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn two_builds_are_the_same_bytes() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = one.path().join("first.tar");
    build(&programs(one.path()), &first, "022");
    // Later, elsewhere, with other permissions, as somebody who lets nobody read what they make.
    let place = other.path().join("a place of another name");
    let programs = programs(&place);
    for name in PROGRAMS {
        let path = programs.join(name);
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1);
        fs::File::options().append(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let second = place.join("deep/second.tar");
    build(&programs, &second, "077");
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap(), "the archives differ");
}

#[test]
fn other_programs_are_another_image() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("first.tar"), directory.path().join("second.tar"));
    let programs = programs(directory.path());
    build(&programs, &first, "022");
    fs::write(programs.join("onload-hook"), "another").unwrap();
    build(&programs, &second, "022");
    assert!(fs::read(first).unwrap() != fs::read(second).unwrap());
}

#[test]
fn a_program_that_is_missing_is_an_error_and_makes_no_archive() {
    let directory = tempfile::tempdir().unwrap();
    let programs = programs(directory.path());
    fs::remove_file(programs.join("onload-hook")).unwrap();
    let output = directory.path().join("image.tar");
    let mut command = Command::new(root().join("packaging/image"));
    command.arg("--binaries").arg(&programs).arg(&output).env("SOURCE_DATE_EPOCH", "1");
    let done = command.output().unwrap();
    assert!(!done.status.success());
    assert!(String::from_utf8_lossy(&done.stderr).contains("onload-hook"));
    assert!(!output.exists());
    let done = Command::new(root().join("packaging/image")).arg("--binary").output().unwrap();
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn the_image_holds_the_programs_and_licences_of_root_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let layout = directory.path().join("layout");
    unpack(&image(directory.path()), &layout);
    let blob = |digest: &Value| {
        let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        layout.join("blobs/sha256").join(digest)
    };
    let index = json(&layout.join("index.json"));
    let manifest = json(&blob(&index["manifests"][0]["digest"]));
    let layer = blob(&manifest["layers"][0]["digest"]);
    let entries = listing(&layer);
    let expected = [
        ("drwxr-xr-x", "usr/"),
        ("drwxr-xr-x", "usr/bin/"),
        ("-rwxr-xr-x", "usr/bin/onload-ctk"),
        ("-rwxr-xr-x", "usr/bin/onload-hook"),
        ("-rwxr-xr-x", "usr/bin/onload-kubernetes"),
        ("drwxr-xr-x", "usr/share/"),
        ("drwxr-xr-x", "usr/share/doc/"),
        ("drwxr-xr-x", "usr/share/doc/onload-ctk/"),
        ("-rw-r--r--", "usr/share/doc/onload-ctk/LICENSE-APACHE"),
        ("-rw-r--r--", "usr/share/doc/onload-ctk/LICENSE-MIT"),
    ];
    assert_eq!(entries.len(), expected.len(), "{entries:?}");
    for (entry, (mode, path)) in entries.iter().zip(expected) {
        assert!(entry.starts_with(&format!("{mode} 0/0 ")) && entry.ends_with(path), "{entry}");
    }
    let config = json(&blob(&manifest["config"]["digest"]));
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/onload-kubernetes"]));
    assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(labels["org.opencontainers.image.licenses"], "MIT OR Apache-2.0");
    assert_eq!(config["created"], "2026-01-01T00:00:00Z");
}

#[test]
fn an_image_for_another_architecture_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let programs = programs(directory.path());
    for architecture in ["amd64", "arm64"] {
        let archive = directory.path().join("image.tar");
        let mut command = Command::new(root().join("packaging/image"));
        command
            .args(["--architecture", architecture, "--binaries"])
            .arg(&programs)
            .arg(&archive)
            .env("SOURCE_DATE_EPOCH", "1767225600");
        assert!(command.status().unwrap().success());
        let layout = directory.path().join(architecture);
        unpack(&archive, &layout);
        let blob = |digest: &Value| {
            let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
            json(&layout.join("blobs/sha256").join(digest))
        };
        let index = json(&layout.join("index.json"));
        let listed = &index["manifests"][0];
        assert_eq!(listed["platform"]["architecture"], architecture);
        let config = blob(&blob(&listed["digest"])["config"]["digest"]);
        assert_eq!(config["architecture"], architecture);
    }
}

#[test]
fn every_blob_is_what_its_digest_says() {
    let directory = tempfile::tempdir().unwrap();
    let layout = directory.path().join("layout");
    unpack(&image(directory.path()), &layout);
    let blobs = layout.join("blobs/sha256");
    let names: Vec<String> = fs::read_dir(&blobs)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 3);
    let text = names.iter().map(|name| format!("{name}  {name}\n")).collect::<String>();
    fs::write(directory.path().join("sums"), text).unwrap();
    let check = Command::new("sha256sum")
        .arg("--check")
        .arg(directory.path().join("sums"))
        .current_dir(blobs)
        .output();
    assert!(check.unwrap().status.success());
}

/// podman with a storage of its own.
fn podman(directory: &Path, words: &[&str]) -> Output {
    let mut podman = Command::new("podman");
    podman.args(["--runtime", "runc", "--root"]).arg(directory.join("storage"));
    podman.arg("--runroot").arg(directory.join("run"));
    podman.args(words).output().unwrap()
}

#[test]
fn podman_loads_the_image_and_runs_it() {
    if !needs::root("podman's own storage") || !needs::programs(&["podman", "runc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = image(directory.path());
    let loaded = podman(directory.path(), &["load", "--input", image.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&loaded.stdout).contains(NAME), "{loaded:?}");
    // Limits that any machine allows; podman's own are higher than some do.
    let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];
    let run = |words: &[&str]| {
        podman(
            directory.path(),
            &[&["run", "--rm", "--network", "none"], &limits[..], &[NAME], words].concat(),
        )
    };
    let version = run(&["--version"]);
    let unknown = run(&["no-such-command"]);
    podman(directory.path(), &["rmi", NAME]);
    // What podman leaves mounted could not be removed.
    let storage = directory.path().join("storage/overlay");
    let _ = Command::new("umount").arg(storage).stderr(Stdio::null()).status();
    let expected = concat!("onload-kubernetes ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(String::from_utf8_lossy(&version.stdout), expected, "{version:?}");
    assert_eq!(unknown.status.code(), Some(2));
}

/// A containerd of its own, which ends with this.
struct Containerd(Child);

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn containerd_imports_the_image() {
    if !needs::root("containerd") || !needs::programs(&["containerd", "ctr"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    // The plugin "opt" would make /opt/containerd.
    let config = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n[grpc]\naddress = {:?}\n",
        at("root"),
        at("state"),
        at("sock")
    );
    fs::write(at("config.toml"), config).unwrap();
    let mut containerd = Command::new("containerd");
    containerd.args(["--config", &at("config.toml")]).stdout(Stdio::null()).stderr(Stdio::null());
    let _containerd = Containerd(containerd.spawn().unwrap());
    let ctr = |words: &[&str]| {
        Command::new("ctr").args(["--address", &at("sock")]).args(words).output().unwrap()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ctr(&["version"]).status.success() {
        assert!(Instant::now() < deadline, "containerd does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    let image = image(directory.path());
    let imported = ctr(&["images", "import", "--no-unpack", image.to_str().unwrap()]);
    assert!(imported.status.success(), "{imported:?}");
    let listed = ctr(&["images", "list", "--quiet"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), format!("{NAME}\n"));
    // All that the image consists of came along.
    let checked = ctr(&["images", "check"]);
    assert!(String::from_utf8_lossy(&checked.stdout).contains("complete (2/2)"), "{checked:?}");
}
