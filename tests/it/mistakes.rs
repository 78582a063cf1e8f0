//! Mistakes that people make: what was typed or written, and the one line with the remedy that they read.

#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::hosts::{rdma, x3};
use crate::common::{Commands, Run, Tree, is_root, run_unprivileged, skipped};
use crate::status::process;

/// A host with Onload, RDMA and written specifications.
fn onload() -> Tree {
    let tree = x3();
    tree.hook().program("/usr/bin/onload-container-runtime", "");
    tree.generate();
    tree
}

/// Compares exit statuses and all that was said with what is wanted, and tells of every one that differs.
struct Answers(Vec<String>);

impl Answers {
    fn expect(&mut self, tree: &Tree, mistake: &str, run: &Run, code: i32, wanted: &str) {
        // Where the host is differs from run to run.
        let root = tree.root().to_str().unwrap();
        let message = (run.stdout.clone() + &run.stderr).replace(root, "ROOT");
        if run.code != Some(code) || message != format!("{wanted}\n") {
            let found = format!("{:?} {message}", run.code);
            self.0.push(format!("{mistake}\n  wanted: {code} {wanted}\n  found:  {found}"));
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.0.is_empty(), "{}", self.0.join("\n"));
        }
    }
}

/// What was typed, the exit status, and the line.
const TYPED: &[(&[&str], i32, &str)] = &[
    (
        &["statsu"],
        2,
        "unrecognized subcommand 'statsu'; tip: a similar subcommand exists: 'status'; usage: onload-ctk [OPTIONS] [COMMAND]",
    ),
    (
        &["cdi", "generate", "--kind", "gpu"],
        2,
        "reading --kind: unknown class \"gpu\"; known are nic, nic-plain, nic-nodes, zf, profile, rdma, vfio, hugepages, netdev, ptp, pps, gdrcopy, bundle",
    ),
    (&["cdi", "generate", "--kind", "NIC"], 2, "reading --kind: unknown class \"NIC\"; write nic"),
    (
        &["cdi", "generate", "--format", "jsn"],
        2,
        "invalid value 'jsn' for '--format <FORMAT>' [possible values: json, yaml]; tip: a similar value exists: 'json'",
    ),
    (
        &["cdi", "generate", "--max-cdi-version", "9"],
        2,
        "reading --max-cdi-version: unknown CDI version \"9\": known are 0.1.0 to 1.1.0, as released",
    ),
    (
        &["cdi", "generate", "--output", "/tmp/x.json"],
        2,
        "writing /tmp/x.json: one file holds one kind; name it with --kind",
    ),
    (
        &["discover", "--formt", "json"],
        2,
        "unexpected argument '--formt' found; tip: a similar argument exists: '--format'; usage: onload-ctk discover --format <FORMAT>",
    ),
    (
        &["cdi", "show"],
        2,
        "the following required arguments were not provided: <DEVICE>...; usage: onload-ctk cdi show <DEVICE>...",
    ),
    (
        &["cdi", "show", "onload.dev/nic=ens33"],
        2,
        "resolving CDI devices: no specification offers onload.dev/nic=ens33 (looked in ROOT/etc/cdi and ROOT/var/run/cdi); did you mean onload.dev/nic=ens3?; \"onload-ctk cdi list\" shows what is offered, \"onload-ctk discover --explain\" says what is not, and why",
    ),
    (
        &["cdi", "show", "onload.dev/nic=ENS3"],
        2,
        "resolving CDI devices: no specification offers onload.dev/nic=ENS3 (looked in ROOT/etc/cdi and ROOT/var/run/cdi); did you mean onload.dev/nic=ens3?; \"onload-ctk cdi list\" shows what is offered, \"onload-ctk discover --explain\" says what is not, and why",
    ),
    (
        &["cdi", "show", "onload.dev/nics=ens3"],
        2,
        "resolving CDI devices: no specification offers onload.dev/nics=ens3 (looked in ROOT/etc/cdi and ROOT/var/run/cdi); did you mean onload.dev/nic=ens3?; \"onload-ctk cdi list\" shows what is offered, \"onload-ctk discover --explain\" says what is not, and why",
    ),
    (
        &["cdi", "show", "onlaod.dev/nic=ens3"],
        2,
        "resolving CDI devices: no specification offers onlaod.dev/nic=ens3 (looked in ROOT/etc/cdi and ROOT/var/run/cdi); did you mean onload.dev/nic=ens3?; \"onload-ctk cdi list\" shows what is offered, \"onload-ctk discover --explain\" says what is not, and why",
    ),
    (
        &["cdi", "show", "onload.dev/nic"],
        2,
        "reading device \"onload.dev/nic\": \"onload.dev/nic\" is not a qualified device name: want vendor/class=device; \"onload-ctk cdi list\" shows the names",
    ),
    (
        &["cdi", "show", "onload.dev/nic:ens3"],
        2,
        "reading device \"onload.dev/nic:ens3\": \"onload.dev/nic:ens3\" is not a qualified device name: want vendor/class=device; \"onload-ctk cdi list\" shows the names",
    ),
    (
        &["cdi", "show", "ens3"],
        2,
        "reading device \"ens3\": \"ens3\" is not a qualified device name: want vendor/class=device; \"onload-ctk cdi list\" shows the names",
    ),
    (
        &["cdi", "list", "--spec-dir", "ROOT/nowhere"],
        2,
        "reading specifications: ROOT/nowhere is no directory; name one with --spec-dir, or leave that out",
    ),
    (
        &["cdi", "generate", "--kind", "rmda"],
        2,
        "reading --kind: unknown class \"rmda\"; did you mean rdma?",
    ),
    (
        &["drain", "--until-reboot"],
        2,
        "the following required arguments were not provided: <NAME|--all>; usage: onload-ctk drain --until-reboot <NAME|--all>",
    ),
    (
        &["drain", "vfio", "--wait", "--timeout", "5m"],
        2,
        "invalid value '5m' for '--timeout <SECONDS>': write a number of seconds, such as 300",
    ),
    (
        &["discover", "--capture", "/tmp/x.tar.gz"],
        2,
        "writing /tmp/x.tar.gz: a capture is a tar archive that is compressed with zstd; name it FILE.tar.zst",
    ),
    (
        &["version"],
        2,
        "unrecognized subcommand 'version'; write onload-ctk --version; usage: onload-ctk [OPTIONS] [COMMAND]",
    ),
    (
        &["list"],
        2,
        "unrecognized subcommand 'list'; write onload-ctk cdi list or onload-ctk lease list; usage: onload-ctk [OPTIONS] [COMMAND]",
    ),
    (
        &["status", "--json"],
        2,
        "unexpected argument '--json' found; write --format json; usage: onload-ctk status [OPTIONS] [CONTAINER]",
    ),
    (
        &["discover", "-o", "json"],
        2,
        "unexpected argument '-o' found; write --format json; usage: onload-ctk discover [OPTIONS]",
    ),
    (
        &["runtime", "configure", "docker"],
        2,
        "unexpected argument 'docker' found; write --runtime docker; usage: onload-ctk runtime configure [OPTIONS] --runtime <ENGINE>",
    ),
    (
        &["runtime", "configure"],
        2,
        "the following required arguments were not provided: --runtime <ENGINE>; usage: onload-ctk runtime configure --runtime <ENGINE>",
    ),
    (
        &["runtime", "configure", "--runtime", "cri-o"],
        2,
        "invalid value 'cri-o' for '--runtime <ENGINE>' [possible values: docker, containerd, crio, podman, nomad]; tip: a similar value exists: 'crio'",
    ),
    (
        &["runtime", "configure", "--runtime", "docker"],
        2,
        "docker is not installed: dockerd not found in /usr/bin, /usr/sbin, /usr/local/bin, /usr/local/sbin, /opt/bin; install it, or write its configuration in advance with --file /etc/docker/daemon.json",
    ),
    (
        &["runtime", "configure", "--runtime", "docker", "--allow", "gpu"],
        2,
        "invalid value 'gpu' for '--allow <CLASS>': unknown class \"gpu\"; known are nic, nic-plain, nic-nodes, zf, profile, rdma, vfio, hugepages, netdev, ptp, pps, gdrcopy, bundle",
    ),
    (
        &["container", "explain", "ROOT/nowhere"],
        2,
        "reading \"ROOT/nowhere/config.json\": No such file or directory (os error 2); a bundle is the directory that holds the config.json of a container",
    ),
    (
        &["lease", "release", "vfio"],
        2,
        "reading device \"vfio\": want CLASS=NAME, as in \"lease list\"",
    ),
    (
        &["status", "redis"],
        2,
        "looking for container \"redis\": none that runs is called so and holds an onload.dev device, loads libonload.so or requests a device; \"onload-ctk status\" lists those that do, and the engine those that have ended",
    ),
    (
        &["host", "apply"],
        2,
        "changing the host below ROOT: it is not running; leave out --host-root to change the running host, or see what would change with \"onload-ctk host plan\"",
    ),
    (
        &["completion", "bsh"],
        2,
        "invalid value 'bsh' for '<SHELL>' [possible values: bash, elvish, fish, powershell, zsh]; tip: a similar value exists: 'bash'",
    ),
];

#[test]
fn a_command_that_is_typed_wrong_is_answered_with_what_to_type() {
    let tree = onload();
    let mut answers = Answers(Vec::new());
    for (typed, code, wanted) in TYPED {
        let root = tree.root().to_str().unwrap();
        let args: Vec<String> = typed.iter().map(|word| word.replace("ROOT", root)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let found = tree.run(&args);
        answers.expect(&tree, &typed.join(" "), &found, *code, &format!("error: {wanted}"));
    }
}

#[test]
fn a_device_is_named_with_or_without_its_vendor() {
    let tree = onload();
    let shown = tree.run(&["cdi", "show", "onload.dev/nic=ens3"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    assert_eq!(tree.run(&["cdi", "show", "nic=ens3"]).stdout, shown.stdout);
    let released = tree.run(&["lease", "release", "onload.dev/vfio=0000:41:10.0"]);
    assert!(released.stderr.contains("is not leased"), "{}", released.stderr);
    let config = r#"{"annotations": {"Onload.dev/nic": "all"}}"#;
    tree.file("/bundle/config.json", config);
    let bundle = tree.path("/bundle").display().to_string();
    let explained = tree.run(&["container", "explain", &bundle]);
    let warning =
        "warning: annotation \"Onload.dev/nic\" has no effect; write \"onload.dev/nic\"\n";
    assert!(explained.stderr.starts_with(warning), "{}", explained.stderr);
}

#[test]
fn a_host_root_that_holds_no_host_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let tree = Tree::at(empty.path());
    let root = tree.root().display().to_string();
    let found = tree.run(&["discover"]);
    let expected =
        format!("error: opening host root {root}: it has none of the directories sys, proc,");
    assert!(found.code == Some(2) && found.stderr.starts_with(&expected), "{}", found.stderr);
    tree.file("/overlay.table", "base other\n");
    let found = tree.run(&["discover"]);
    assert!(found.stderr.contains("only what differs from another host"), "{}", found.stderr);
}

/// config.toml, and the line behind [`IN_CONFIG`].
const CONFIGURED: &[(&str, &str)] = &[
    (
        "[annotations]\nallows = [\"nic\"]\n",
        "line 2: unknown key \"annotations.allows\"; did you mean \"annotations.allow\"?",
    ),
    (
        "[annotation]\nallow = [\"nic\"]\n",
        "line 1: unknown key \"annotation\"; did you mean \"annotations\"?",
    ),
    ("allow = [\"nic\"]\n", "line 1: unknown key \"allow\"; did you mean \"annotations.allow\"?"),
    (
        "[annotations]\nallow = \"nic\"\n",
        "line 2: annotations.allow: expected an array, found string \"nic\"",
    ),
    (
        "[annotations]\nallow = [nic]\n",
        "line 2: nic is no number, and neither true nor false; a string wants quotes: \"nic\"",
    ),
    (
        "[annotations]\nallow = [\"NIC\"]\n",
        "line 2: annotations.allow: unknown class \"NIC\"; write nic",
    ),
    (
        "[annotations]\nallow = [\"gpu\"]\n",
        "line 2: annotations.allow: unknown class \"gpu\"; known are nic, nic-plain, nic-nodes, zf, profile, rdma, vfio, hugepages, netdev, ptp, pps, gdrcopy, bundle",
    ),
    (
        "[annotations]\nallow = [\"nic\", \"rdma\"\n\n[cdi]\n",
        "line 2: a comma is missing, or the ] of this array",
    ),
    ("[annotations]\nallow = [\"nic\"\n", "line 2: unclosed array, expected `]`"),
    (
        "[annotations]\nallow = [\"nic\"]\n[annotations]\n",
        "line 3: annotations is there already; write each key and section once",
    ),
    (
        "[annotations]\nallow = []\nallow = [\"nic\"]\n",
        "line 3: allow is there already; write each key and section once",
    ),
    (
        "annotations:\n  allow: [nic]\n",
        "line 1: this is YAML, and the file is TOML: write [section], and key = value",
    ),
    (
        "{\"annotations\": {}}\n",
        "line 1: this is JSON, and the file is TOML: write [section], and key = value",
    ),
    (
        "[cdi]\npreload = \"yes\"\n",
        "line 2: cdi.preload: unknown variant `yes`, expected one of `env`, `file`, `off`",
    ),
    (
        "[cdi]\nmemlock = \"8GB\"\n",
        "line 2: cdi.memlock: expected \"unlimited\" or a number of bytes, which may end in K, M, G or T (powers of 1024) as \"8G\" does, found \"8GB\"",
    ),
    (
        "[cdi]\nfdtable-size = 0\n",
        "cdi.fdtable-size must be from 1 to 16777216, not 0; a larger table cannot be allocated by every process",
    ),
    (
        "[cdi]\nfdtable_size = 1048576\n",
        "line 2: unknown key \"cdi.fdtable_size\"; did you mean \"cdi.fdtable-size\"?",
    ),
    (
        "[cdi]\nhook-path = \"onload-hook\"\n",
        "cdi.hook-path must be an absolute path, not \"onload-hook\"",
    ),
    (
        "[cdi]\nptp-write = \"true\"\n",
        "line 2: cdi.ptp-write: expected a boolean, found string \"true\"",
    ),
    (
        "[host]\nhugepages = { 2MB = { 0 = 8 } }\n",
        "line 2: host.hugepages.2MB: expected the size of a huge page, such as \"2Mi\" or \"1Gi\", found \"2MB\"",
    ),
    (
        "[host]\nrdma-netns = \"private\"\n",
        "line 2: host.rdma-netns: unknown variant `private`, expected `shared` or `exclusive`",
    ),
    ("[sriov]\npf = \"ens1\"\n", "line 1: sriov: expected an array of tables; write [[sriov]]"),
    (
        "[[sriov]]\npf = \"ens1\"\nvfs = 4\ndriver = \"vfio\"\n",
        "line 4: sriov.driver: unknown variant `vfio`, expected `vfio-pci` or `kernel`",
    ),
    (
        "[[pools.fast]]\nclass = \"nic\"\n",
        "line 1: pools.fast: expected a table, found an array; write [pools.fast]",
    ),
    ("[pools.fast]\nselect = { numa = 0 }\n", "line 1: pools.fast: missing field `class`"),
    (
        "[pools.fast]\nclass = \"nic\"\nselect = { node = 0 }\n",
        "line 3: unknown key \"pools.fast.select.node\"; known are vendor, device, driver, pf, vf, numa, interfaces, link-layer, addresses",
    ),
    (
        "[netdev.ens1]\naddresses = [\"192.0.2.10\"]\n",
        "line 2: netdev.ens1.addresses: \"192.0.2.10\" is not ADDRESS/PREFIX, as 192.0.2.10/24 and 2001:db8::10/64 are",
    ),
    (
        "[bundles.hft]\ndevices = [\"ens3\"]\n",
        "line 1: bundles.hft: expected a device as CLASS=NAME or CLASS=POOL*N, such as \"nic=ens1\", found \"ens3\"",
    ),
    (
        "[log]\nlevel = \"verbose\"\n",
        "line 2: log.level: unknown variant `verbose`, expected one of `error`, `warning`, `info`, `debug`",
    ),
];

const IN_CONFIG: &str = "error: reading configuration ROOT/etc/onload-ctk/config.toml: ";

#[test]
fn a_config_toml_that_is_wrong_is_answered_with_the_line_and_what_to_write() {
    let tree = onload();
    let mut answers = Answers(Vec::new());
    for (text, wanted) in CONFIGURED {
        tree.config(text);
        let found = tree.run(&["cdi", "generate", "--dry-run"]);
        answers.expect(&tree, text, &found, 2, &format!("{IN_CONFIG}{wanted}"));
    }
}

/// A specification of another vendor, its ending, and the line of `cdi validate`.
const SPECIFIED: &[(&str, &str, &str)] = &[
    (
        "yaml",
        "cdiVersion: 0.6.0\nkind: acme.com/card\n devices: []\n",
        "acme.yaml: parsing YAML: line 3 column 9: mapping values are not allowed in this context",
    ),
    (
        "yaml",
        "cdiVersion: 0.6\nkind: acme.com/card\ndevices: [{name: a, containerEdits: {env: [A=b]}}]\n",
        "acme.yaml: cdiVersion: unknown CDI version \"0.6\": known are 0.1.0 to 1.1.0, as released",
    ),
    (
        "yaml",
        "cdiVersion: \"0.6.0\"\nkind: card\ndevices: [{name: a, containerEdits: {env: [A=b]}}]\n",
        "acme.yaml: kind: invalid kind \"card\": want vendor/class",
    ),
    (
        "json",
        "{\"cdiVersion\": \"0.6.0\",}\n",
        "acme.json: parsing JSON: trailing comma at line 1 column 24",
    ),
    (
        "json",
        "{\"cdiVersion\": \"9.0.0\", \"kind\": \"acme.com/card\", \"devices\": [{\"name\": \"a\", \"containerEdits\": {\"env\": [\"A=b\"]}}]}\n",
        "acme.json: cdiVersion: unknown CDI version \"9.0.0\": known are 0.1.0 to 1.1.0, as released",
    ),
    (
        "json",
        "{\"cdiVersion\": \"0.6.0\", \"kind\": \"acme.com/card\", \"device\": []}\n",
        "acme.json: parsing JSON: unknown field `device`, expected one of `cdiVersion`, `kind`, `annotations`, `containerEdits`, `devices` at line 1 column 57",
    ),
    (
        "json",
        "{\"cdiVersion\": \"0.6.0\", \"kind\": \"acme.com/card\", \"devices\": []}\n",
        "acme.json: devices: none found, expected at least one",
    ),
    ("json", "", "acme.json: parsing JSON: there is nothing in it"),
];

#[test]
fn a_specification_that_is_wrong_is_answered_with_the_place_and_what_is_wanted() {
    let tree = onload();
    let mut answers = Answers(Vec::new());
    for (ending, text, wanted) in SPECIFIED {
        let path = format!("/etc/cdi/acme.{ending}");
        tree.file(&path, text);
        let file = tree.path(&path).display().to_string();
        let found = tree.run(&["cdi", "validate", &file]);
        answers.expect(&tree, text, &found, 1, &format!("ROOT/etc/cdi/{wanted}"));
        tree.remove(&path);
    }
}

/// The key and value of an annotation, where rdma alone is allowed, and the line of `container explain`.
const ANNOTATED: &[(&str, &str, &str)] = &[
    (
        "onload.dev/rdma",
        "mlx5_1",
        "annotation \"onload.dev/rdma\": there is no rdma \"mlx5_1\"; offered: all, mlx4_0, mlx5_0, rxe0",
    ),
    (
        "onload.dev/rdma",
        "MLX5_0",
        "annotation \"onload.dev/rdma\": there is no rdma \"MLX5_0\"; offered: all, mlx4_0, mlx5_0, rxe0",
    ),
    (
        "onload.dev/rdma",
        "ens1",
        "annotation \"onload.dev/rdma\": there is no rdma \"ens1\"; offered: all, mlx4_0, mlx5_0, rxe0",
    ),
    (
        "onload.dev/rdma",
        "",
        "annotation \"onload.dev/rdma\" asks for an empty name; want names separated by ','",
    ),
    (
        "onload.dev/rdma",
        "mlx5_0 mlx4_0",
        "annotation \"onload.dev/rdma\": \"mlx5_0 mlx4_0\" cannot be the name of a device or pool, nor POOL*N with N from 1 to 128; separate several by ','",
    ),
    (
        "onload.dev/rmda",
        "mlx5_0",
        "annotation \"onload.dev/rmda\": unknown class \"rmda\"; did you mean rdma?; settings are preload, ipc-lock, hugepages-limit, numa, near, address, vlan",
    ),
    (
        "onload.dev/RDMA",
        "mlx5_0",
        "annotation \"onload.dev/RDMA\": unknown class \"RDMA\"; write rdma; settings are preload, ipc-lock, hugepages-limit, numa, near, address, vlan",
    ),
    (
        "onload.dev/vfio",
        "any",
        "annotation \"onload.dev/vfio\" asks for class vfio, which the operator does not allow; allow = [\"rdma\", \"vfio\"] under [annotations] in ROOT/etc/onload-ctk/config.toml would allow it",
    ),
    (
        "onload.dev/preload",
        "yes",
        "annotation \"onload.dev/preload\" is \"yes\"; want env, file or off",
    ),
    ("onload.dev/ipc-lock", "1", "annotation \"onload.dev/ipc-lock\" is \"1\"; want true or false"),
    (
        "onload.dev/rdma",
        "fast*2",
        "annotation \"onload.dev/rdma\": there is no rdma \"fast\"; offered: all, mlx4_0, mlx5_0, rxe0",
    ),
    (
        "onload.dev/numa",
        "0",
        "annotation \"onload.dev/numa\": it has no effect without a pool, such as onload.dev/vfio: any; remove it",
    ),
];

#[test]
fn an_annotation_that_is_wrong_is_answered_with_what_to_write() {
    let tree = rdma();
    tree.config("[annotations]\nallow = [\"rdma\"]\n");
    tree.generate();
    let bundle = tree.path("/bundle").display().to_string();
    let mut answers = Answers(Vec::new());
    for (key, value, wanted) in ANNOTATED {
        let config = serde_json::json!({"ociVersion": "1.0.2", "process": {"args": ["sh"]}, "annotations": {*key: value}});
        tree.file("/bundle/config.json", config.to_string());
        let found = tree.run(&["container", "explain", &bundle]);
        let wanted = format!("error: the container would not start: {wanted}");
        answers.expect(&tree, &format!("{key}={value}"), &found, 1, &wanted);
    }
}

/// docker's daemon.json, the options of `runtime configure`, and the line.
const ENGINES: &[(&str, &[&str], &str)] = &[
    (
        "{\"Features\": {}}",
        &[],
        "configuring docker, whose ROOT/etc/docker/daemon.json is left as it is: unknown key \"Features\"; write \"features\"",
    ),
    (
        "{\"features\": {\"cdi\": \"yes\"}}",
        &[],
        "configuring docker, whose ROOT/etc/docker/daemon.json is left as it is: features.cdi is not true or false; write true or false there",
    ),
    (
        "{\"runtimes\": {\"onload\": {\"path\": \"/opt/runtime\"}}}",
        &[],
        "configuring docker, whose ROOT/etc/docker/daemon.json is left as it is: a runtime onload is registered already, and not as /usr/bin/onload-container-runtime but as \"/opt/runtime\"; rename or remove it",
    ),
    (
        "{}",
        &["--nri"],
        "--nri: by NRI, pods of containerd and crio get devices; for docker leave --nri out, and use --device or the runtime \"onload\"",
    ),
    ("{}", &["--file", "daemon.json"], "--file daemon.json: name the file by its whole path"),
];

#[test]
fn a_file_of_an_engine_that_is_wrong_is_answered_with_what_to_change() {
    let tree = onload();
    tree.file("/usr/bin/dockerd", "");
    let mut answers = Answers(Vec::new());
    for (text, more, wanted) in ENGINES {
        tree.file("/etc/docker/daemon.json", text);
        let args = [&["runtime", "configure", "--runtime", "docker", "--dry-run"], *more].concat();
        let found = tree.run(&args);
        answers.expect(&tree, text, &found, 2, &format!("error: {wanted}"));
    }
}

#[test]
fn an_engine_without_cdi_is_answered_with_the_version_that_has_it() {
    let tree = onload();
    let package = "Package: docker.io\nVersion: 20.10.24+dfsg1-1+deb12u1+b2\n";
    tree.file("/usr/sbin/dockerd", "").file("/var/lib/dpkg/status", package);
    tree.file("/etc/docker/daemon.json", "{}");
    let run = tree.run(&["runtime", "configure", "--runtime", "docker"]).done();
    let wanted = "docker 20.10.24 is too old: CDI needs 25.0.0; until then containers get devices by the runtime \"onload\" only, and \"onload-ctk doctor\" says where to get a newer docker";
    assert_eq!(run.warnings(), [wanted]);
}

#[test]
fn a_container_with_an_annotation_and_without_the_runtime_is_answered_with_the_option() {
    let tree = onload();
    let id = "3f2a".repeat(16);
    process(&tree, 1, None, "systemd");
    process(&tree, 77, Some(&id), "redis");
    tree.file("/proc/77/maps", "");
    let docker = format!("/var/lib/docker/containers/{id}");
    tree.file(&format!("{docker}/config.v2.json"), "{\"Name\": \"/redis\"}");
    tree.file(&format!("{docker}/hostconfig.json"), "{\"Runtime\": \"runc\"}");
    let task = format!("/run/containerd/io.containerd.runtime.v2.task/moby/{id}/config.json");
    tree.file(&task, "{\"annotations\": {\"onload.dev/nic\": \"all\"}}");
    let found = tree.run(&["status", "redis"]).answered_no();
    let wanted = "it asks by annotation \"onload.dev/nic\", but its runtime is runc, which does not read that\n";
    assert!(found.stdout.contains(wanted), "{}", found.stdout);
    let remedy = "ask by --device onload.dev/CLASS=NAME; or start it with the runtime onload (docker run --runtime onload), which gives the classes that [annotations] allow names";
    assert!(found.stdout.contains(remedy), "{}", found.stdout);
}

#[test]
fn who_is_not_root_is_answered_so() {
    if !is_root() {
        return skipped("not root, so there is nobody with fewer rights to be");
    }
    let tree = onload();
    tree.config("").chmod("/etc", 0o755);
    let mut answers = Answers(Vec::new());
    let found = run_unprivileged(
        &tree,
        &["cdi", "generate", "--output-dir", tree.path("/etc/cdi").to_str().unwrap()],
    );
    answers.expect(
        &tree,
        "cdi generate",
        &found,
        2,
        "error: making the directory ROOT/etc/cdi: Permission denied (os error 13); run as root",
    );
}
