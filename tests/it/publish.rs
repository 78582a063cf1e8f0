//! What makes a release reach its users: the repository's address, packaging/publish and packaging/install.sh.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use onload_test_tree::copy_program;

use crate::common::{Tree, needs, package};

/// `repository` in Cargo.toml; scripts/set-repository changes this line too.
const REPOSITORY: &str = "https://git.invalid/onload/onload-ctk";
const PLACEHOLDER: &str = "https://placeholder.invalid/x/ctk";
const IMAGE: &str = "onload.dev/onload-kubernetes";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A git checkout with some files of the project, and programs that print how they are called.
struct Checkout(Tree);

impl Checkout {
    fn new(files: &[&str]) -> Checkout {
        let checkout = Checkout(Tree::on_disk());
        for file in files {
            let to = checkout.path(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            copy_program(package().join(file), to);
        }
        checkout.0.directory("bin");
        checkout.sh("git init -q . && git add . && git commit -q -m all");
        checkout
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }

    fn write(&self, path: &str, text: &str) {
        self.0.file(path, text);
    }

    fn read(&self, path: &str) -> String {
        self.0.read(path)
    }

    fn program(&self, name: &str, text: &str) {
        self.0.program(&format!("bin/{name}"), format!("#!/bin/sh\n{text}\n"));
    }

    /// Runs commands of a shell, and returns whether they succeeded and what they printed.
    fn run(&self, commands: &str) -> (bool, String) {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1; {commands}")])
            .current_dir(self.0.root())
            .env("PATH", path)
            .envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"].map(|name| (name, "test")))
            .envs(["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "test@invalid")))
            .env("HOME", self.0.root())
            .env_remove("GH_TOKEN")
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    #[track_caller]
    fn sh(&self, commands: &str) -> String {
        let (is_done, text) = self.run(commands);
        assert!(is_done, "{commands}: {text}");
        text
    }

    #[track_caller]
    fn fails(&self, commands: &str, reason: &str) {
        let (is_done, text) = self.run(commands);
        assert!(!is_done && text.contains(reason), "{commands}: {text}");
    }
}

const DERIVED: [&str; 14] = [
    ".github/CODEOWNERS",
    ".github/ISSUE_TEMPLATE/config.yml",
    "Cargo.toml",
    "README.md",
    "cluster/kubernetes/tests/it/image.rs",
    "cluster/kubernetes/tests/it/manifests.rs",
    "docs/install.md",
    "packaging/deb/copyright",
    "packaging/helm/onload-ctk/Chart.yaml",
    "packaging/helm/onload-ctk/values.yaml",
    "packaging/kubernetes/daemonset.yaml",
    "packaging/scripts/project.sh",
    "packaging/systemd/onload-nri.service",
    "scripts/set-repository",
];

#[test]
fn one_command_moves_the_project_to_another_repository() {
    if !needs::programs(&["git"]) {
        return;
    }
    let checkout = Checkout::new(&DERIVED);
    let scripts = ["packaging/scripts/project.sh", "scripts/set-repository"];
    let before = scripts.map(|script| checkout.read(script));

    checkout.fails("scripts/set-repository github.com/x/y", "expected https://HOST/OWNER/NAME");
    for (url, registry, owner) in [
        ("https://github.com/Example/ctk", "ghcr.io/example", "Example"),
        ("https://codeberg.org/another/onload", "onload.dev", "another"),
        ("https://github.com/third/onload-ctk", "ghcr.io/third", "third"),
    ] {
        checkout.sh(&format!("scripts/set-repository {url}"));
        assert!(checkout.read("Cargo.toml").contains(&format!("\nrepository = \"{url}\"\n")));
        assert!(checkout.read("README.md").contains(&format!("git clone {url} onload-ctk")));
        assert!(checkout.read(".github/CODEOWNERS").ends_with(&format!("* @{owner}\n")));
        for manifest in ["kubernetes/daemonset.yaml", "helm/onload-ctk/values.yaml"] {
            let image = format!("{registry}/onload-kubernetes");
            assert!(checkout.read(&format!("packaging/{manifest}")).contains(&image), "{url}");
        }
    }
    for file in DERIVED {
        let text = checkout.read(file);
        assert!(!text.contains(REPOSITORY), "{file}");
        assert!(scripts.contains(&file) || !text.contains(IMAGE), "{file}");
    }
    assert_eq!(scripts.map(|script| checkout.read(script)), before);
}

/// A checkout of which everything that a release publishes has been made.
fn released() -> Checkout {
    let checkout =
        Checkout::new(&["packaging/publish", "packaging/scripts/project.sh", "Cargo.toml"]);
    let manifest = checkout.read("Cargo.toml");
    checkout.write("Cargo.toml", &manifest.replace(REPOSITORY, "https://github.com/x/ctk"));
    checkout.write("CHANGELOG.md", &format!("# Changelog\n\n## {VERSION} (today)\n"));
    checkout.sh(&format!("git add . && git commit -q -m release && git tag v{VERSION}"));
    checkout.write("target/dist/package", "");
    checkout.sh("cd target/dist && sha256sum * >SHA256SUMS");
    for program in ["helm", "cargo"] {
        checkout.program(program, ":");
    }
    // No such release exists.
    checkout.program("gh", "[ \"$2\" != view ]");
    let digest =
        "while [ $# -gt 0 ]; do [ \"$1\" != --digestfile ] || echo sha256:1 >\"$2\"; shift; done";
    checkout.program("podman", digest);
    checkout
}

#[test]
fn a_release_is_published_in_five_parts() {
    if !needs::programs(&["git"]) {
        return;
    }
    let checkout = released();
    checkout.sh("packaging/publish check");
    let image = format!("ghcr.io/x/onload-kubernetes:{VERSION}");
    let archive = |architecture: &str| {
        format!("oci-archive:target/dist/onload-kubernetes-{VERSION}-{architecture}.tar")
    };
    let text = checkout.sh("packaging/publish release image chart crate");
    for line in [
        format!(
            "+ gh release create v{VERSION} --repo x/ctk --verify-tag --title onload-ctk {VERSION} --notes-file \
             target/dist/onload-ctk-{VERSION}-notes.md target/dist/SHA256SUMS target/dist/package"
        ),
        format!("+ podman manifest add {image} {}", archive("amd64")),
        format!("+ podman manifest add {image} {}", archive("arm64")),
        "name=ghcr.io/x/onload-kubernetes".to_owned(),
        "digest=sha256:1".to_owned(),
        format!("+ helm push target/dist/onload-ctk-{VERSION}.tgz oci://ghcr.io/x/charts"),
        "+ cargo publish --locked --no-verify --package onload-cdi".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    }
    assert!(!text.contains("login"), "{text}");
    let text = checkout.sh("GH_TOKEN=secret GITHUB_ACTOR=me packaging/publish image chart");
    assert_eq!(text.matches("login --username me --password-stdin ghcr.io\n").count(), 2, "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn what_is_not_ready_is_not_published() {
    if !needs::programs(&["git"]) {
        return;
    }
    let checkout = released();
    checkout.fails("packaging/publish", "expected check, release, image, chart or crate");
    checkout.fails("packaging/publish all", "found \"all\"");
    checkout.write("target/dist/package", "changed");
    for part in ["release", "image", "chart"] {
        checkout.fails(&format!("packaging/publish {part}"), "target/dist is incomplete");
    }
    checkout.write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n");
    checkout.fails("packaging/publish check", "CHANGELOG.md has no section");
    checkout.sh("git commit -q -a -m next");
    checkout.fails("packaging/publish check", "this commit has no tag v");
    let manifest = checkout.read("Cargo.toml");
    checkout.write("Cargo.toml", &manifest.replace("https://github.com/x/ctk", PLACEHOLDER));
    checkout.fails("packaging/publish check", "is a placeholder; run scripts/set-repository");
}

#[test]
fn onload_cdi_is_compared_with_the_release_before_this_commit() {
    if !needs::programs(&["git"]) {
        return;
    }
    let checkout = Checkout::new(&["scripts/check-semver"]);
    checkout.program("cargo", "echo called $1 $4 $5 && git -C last describe --tags");
    checkout.program("cargo-semver-checks", "");
    let skipped = "skipped: no version of onload-cdi is released yet\n";
    assert_eq!(checkout.sh("scripts/check-semver"), skipped);
    checkout.sh("git tag v0.9.0");
    assert_eq!(checkout.sh("scripts/check-semver"), skipped);
    let commit = "git commit -q --allow-empty -m next";
    checkout.sh(&format!("{commit} && git tag v0.10.0 && {commit} && git tag v0.10.1"));
    let called = "called semver-checks --baseline-root last\nv0.10.0\n";
    assert_eq!(checkout.sh("scripts/check-semver"), called);

    checkout.sh("git clone -q --depth 1 file://$PWD shallow && cp -r scripts shallow");
    checkout.fails("shallow/scripts/check-semver", "run git fetch --unshallow --tags");
}

/// Serves the files of a directory over HTTP on loopback, and returns the URL.
fn serve(directory: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut request = String::new();
            stream.read_line(&mut request).unwrap();
            let mut header = String::from(" ");
            while !header.trim().is_empty() {
                header.clear();
                stream.read_line(&mut header).unwrap();
            }
            let name = request.split(' ').nth(1).unwrap().trim_start_matches('/');
            let (status, content) = match fs::read(directory.join(name)) {
                Ok(content) => ("200 OK", content),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let length = content.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            stream.get_mut().write_all(&[head.as_bytes(), &content].concat()).unwrap();
        }
    });
    url
}

/// A host of one distribution with the installer, and a release for it.
struct Host {
    checkout: Checkout,
    url: String,
}

const FILES: [&str; 3] =
    ["_1.2.3-1_amd64.deb", "-1.2.3-1.x86_64.rpm", "-1.2.3-x86_64-linux.tar.gz"];

fn host(os_release: &str) -> Option<Host> {
    if !needs::programs(&["git", "curl", "tar"]) {
        return None;
    }
    let files =
        ["packaging/release", "packaging/install.sh", "packaging/scripts/project.sh", "Cargo.toml"];
    let checkout = Checkout::new(&files);
    let manifest = checkout.read("Cargo.toml");
    checkout.write("Cargo.toml", &manifest.replace(REPOSITORY, PLACEHOLDER));
    let installer = checkout.sh("packaging/release --installer");
    assert!(installer.contains(&format!("\nversion={VERSION}\nrepository={PLACEHOLDER}\n")));
    let os_release_file = checkout.path("os-release").display().to_string();
    checkout.write("install.sh", &installer.replace("/etc/os-release", &os_release_file));
    checkout.write("os-release", os_release);
    checkout.program("id", "echo 0");
    checkout.program("uname", "echo x86_64");
    for program in ["dpkg", "dnf", "zypper", "gh"] {
        checkout.program(program, &format!("echo called {program} \"$@\""));
    }
    for file in FILES {
        checkout.write(&format!("release/onload-ctk{file}"), "");
    }
    checkout
        .write("onload-ctk-1.2.3-x86_64-linux/install", "#!/bin/sh\necho called install \"$@\"\n");
    checkout.sh("chmod +x onload-ctk-1.2.3-x86_64-linux/install
        tar -czf release/onload-ctk-1.2.3-x86_64-linux.tar.gz onload-ctk-1.2.3-x86_64-linux
        cd release && sha256sum * >SHA256SUMS");
    let url = serve(checkout.path("release"));
    Some(Host { checkout, url })
}

impl Host {
    fn command(&self, options: &str) -> String {
        format!("sh install.sh --version 1.2.3 --url {} {options}", self.url)
    }
}

#[test]
fn the_installer_installs_the_package_of_the_distribution_and_removes_it() {
    for (os_release, install, remove) in [
        ("ID=debian\n", "dpkg -i .deb", "dpkg -r onload-ctk"),
        ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "dpkg -i .deb", "dpkg -r onload-ctk"),
        (
            "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
            "dnf install -y .rpm",
            "dnf remove -y onload-ctk",
        ),
        (
            "ID=opensuse-leap\nID_LIKE='suse opensuse'\n",
            "zypper --non-interactive --no-gpg-checks install .rpm",
            "zypper --non-interactive remove onload-ctk",
        ),
        ("ID=arch\n", "install", "install --remove"),
    ] {
        let Some(host) = host(os_release) else { return };
        let text = host.checkout.sh(&host.command(""));
        let (command, suffix) = install.split_once('.').unwrap_or((install, ""));
        let called =
            |line: &str| line.starts_with(&format!("called {command}")) && line.ends_with(suffix);
        assert!(text.lines().any(called), "{os_release}: {text}");
        assert!(text.contains("the provenance of onload-ctk"), "{text}");
        assert!(
            text.ends_with("Next: run \"onload-ctk\" to see what this host offers.\n"),
            "{text}"
        );

        let text = host.checkout.sh(&host.command("--uninstall"));
        assert!(text.contains(&format!("called {remove}\n")), "{os_release}: {text}");

        let text = host.checkout.sh(&host.command("--dry-run"));
        assert!(!text.contains("called"), "{text}");
        assert!(
            text.contains("+ curl") && text.contains(&format!("{}/onload-ctk", host.url)),
            "{text}"
        );
    }
}

#[test]
fn the_installer_rejects_what_it_cannot_verify() {
    let Some(host) = host("ID=debian\n") else { return };
    let checkout = &host.checkout;
    let fails = |options: &str, reason: &str| {
        let (is_done, text) = checkout.run(&format!("sh install.sh {options}"));
        assert!(!is_done && text.contains(reason), "{options}: {text}");
        assert!(!text.contains("called"), "{options}: {text}");
    };
    let url = &host.url;
    fails("", "no release is published yet: name a directory with --url");
    fails(
        &format!("--url {url} --version 1.2.4"),
        "SHA256SUMS does not list onload-ctk_1.2.4-1_amd64.deb",
    );
    fails("--url ftp://127.0.0.1 --version 1.2.3", "expected an https: URL");
    fails("--version '1;2'", "invalid version 1;2");
    fails("--url", "--url needs a value");
    fails("--force", "unknown option --force");

    checkout.write("release/onload-ctk_1.2.3-1_amd64.deb", "another");
    fails(
        &format!("--url {url} --version 1.2.3"),
        "the checksum of onload-ctk_1.2.3-1_amd64.deb does not match",
    );
    fs::remove_file(checkout.path("release/onload-ctk_1.2.3-1_amd64.deb")).unwrap();
    fails(&format!("--url {url} --version 1.2.3"), "could not download");

    checkout.program("uname", "echo riscv64");
    fails("", "there is no package for the architecture riscv64");
    checkout.program("uname", "echo x86_64");
    checkout.program("id", "echo 1000");
    fails("", "run it as root, or with --dry-run");
}

#[test]
fn the_installer_verifies_the_provenance_of_a_published_release() {
    let Some(host) = host("ID=debian\n") else { return };
    let checkout = &host.checkout;
    let installer = checkout.read("install.sh");
    checkout.write("install.sh", &installer.replace(PLACEHOLDER, "https://github.com/x/ctk"));
    let release = checkout.path("release").display().to_string();
    // The URL is the last argument, the file to write the one before.
    let curl = format!(
        "while [ $# -gt 2 ]; do shift; done; echo \"got $2\"; cp {release}/\"${{2##*/}}\" \"$1\""
    );
    checkout.program("curl", &curl);
    let text = checkout.sh("sh install.sh --version 1.2.3");
    let url =
        "got https://github.com/x/ctk/releases/download/v1.2.3/onload-ctk_1.2.3-1_amd64.deb\n";
    assert!(text.contains(url), "{text}");
    let verified = text.lines().position(|line| {
        line.starts_with("called gh attestation verify") && line.ends_with("--repo x/ctk")
    });
    let installed = text.lines().position(|line| line.starts_with("called dpkg -i"));
    assert!(verified.is_some() && verified < installed, "{text}");
    assert!(!text.contains("was not verified"), "{text}");

    checkout.program("gh", "[ \"$1\" = auth ] || [ \"$3\" = --help ]");
    let (is_done, text) = checkout.run("sh install.sh --version 1.2.3");
    assert!(!is_done && !text.contains("called dpkg"), "{text}");
    assert!(text.contains("could not be verified; nothing was installed"), "{text}");

    // It is not logged in, or too old.
    checkout.program("gh", "exit 1");
    let text = checkout.sh("sh install.sh --version 1.2.3");
    assert!(text.contains("called dpkg -i") && text.contains("was not verified"), "{text}");
}
