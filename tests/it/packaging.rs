//! The files of the packages: units, rules, scripts, lists.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::common::{Commands, Tree, names_in, needs};

const CONFIG: &str = "etc/onload-ctk/config.toml";
/// Those that the package enables.
const UNITS: [&str; 3] = ["onload-cdi.service", "onload-cdi.path", "onload-cdi.timer"];
/// Those that the operator enables.
const HOST_UNIT: &str = "onload-host.service";
const METRICS_TIMER: &str = "onload-metrics.timer";
const METRICS_UNIT: &str = "onload-metrics.service";
const NRI_UNIT: &str = "onload-nri.service";
/// The one that udev's rule starts.
const RESTORE_UNIT: &str = "onload-restore.service";

fn packaging(path: &str) -> PathBuf {
    crate::common::package().join("packaging").join(path)
}

fn read(path: &str) -> String {
    let path = packaging(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The values of a setting of a unit, in their order.
fn settings(unit: &str, key: &str) -> Vec<String> {
    let text = read(&format!("systemd/{unit}"));
    let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn engines_start_when_the_specifications_are_written() {
    let before = settings("onload-cdi.service", "Before").join(" ");
    let engines = ["docker", "containerd", "podman", "crio", "nomad"];
    let of_pods = ["k3s", "rke2-agent", "kubelet", "k0sworker", "k0scontroller"];
    let others = [
        "snap.microk8s.daemon-containerd",
        "snap.microk8s.daemon-kubelite",
        // Rootless engines of users with lingering come after it.
        "systemd-user-sessions",
    ];
    for engine in engines.into_iter().chain(of_pods).chain(others) {
        let unit = format!("{engine}.service");
        assert!(before.split(' ').any(|word| word == unit), "{unit}: {before}");
    }
}

#[test]
fn the_nri_plugin_runs_before_pods_are_created() {
    let words = |unit| settings(unit, "Before").join(" ");
    let (nri, cdi) = (words(NRI_UNIT), words("onload-cdi.service"));
    // These have no pods.
    let others = ["docker", "podman", "podman-restart", "nomad", "systemd-user-sessions"];
    let others = others.map(|name| format!("{name}.service"));
    let of_pods = |word: &&str| !others.iter().any(|other| other == word);
    let expected: Vec<&str> = cdi.split(' ').filter(of_pods).collect();
    assert_eq!(nri.split(' ').collect::<Vec<_>>(), expected);
    let capabilities = settings(NRI_UNIT, "CapabilityBoundingSet").join(" ");
    assert!(capabilities.contains("CAP_SYS_PTRACE"), "{capabilities}");
    assert!(!capabilities.contains("CAP_SYS_ADMIN"), "{capabilities}");
}

/// cloud-init's network stage waits for the network and is itself waited for by sysinit.target, so what comes before the
/// network and has systemd's default dependencies closes a circle, which systemd breaks by leaving one of them out.
#[test]
fn what_comes_before_the_network_does_not_wait_for_sysinit() {
    let words = |unit: &str, key: &str| settings(unit, key).join(" ");
    let has = |unit: &str, key: &str, word: &str| words(unit, key).split(' ').any(|w| w == word);
    assert!(has(HOST_UNIT, "Before", "network-pre.target"));
    assert_eq!(settings(HOST_UNIT, "DefaultDependencies"), ["no"]);
    // What the default dependencies would have brought: its end, and that its files, modules and sysctl's values are there.
    assert!(has(HOST_UNIT, "Before", "shutdown.target"));
    assert!(has(HOST_UNIT, "Conflicts", "shutdown.target"));
    for unit in [
        "local-fs.target",
        "systemd-tmpfiles-setup.service",
        "systemd-sysctl.service",
        "systemd-modules-load.service",
    ] {
        assert!(has(HOST_UNIT, "After", unit), "{unit}");
    }
    let others = UNITS.into_iter().chain([METRICS_TIMER, METRICS_UNIT, NRI_UNIT, RESTORE_UNIT]);
    for unit in others {
        assert!(!words(unit, "Before").contains(".target"), "{unit}");
        assert_eq!(settings(unit, "DefaultDependencies"), [""; 0], "{unit}");
    }
}

#[test]
fn an_event_during_a_run_is_followed_by_one_more_run() {
    let stale = "/run/onload-cdi/stale";
    // The rule makes the file, a run removes it before it looks, the path unit looks when it ends.
    assert!(read("udev/90-onload-ctk.rules").contains(&format!("RUN+=\"/bin/touch {stale}\"")));
    let first = settings("onload-cdi.service", "ExecStartPre");
    assert_eq!(first.last(), Some(&format!("/bin/rm -f {stale}")));
    assert_eq!(settings("onload-cdi.path", "PathExists"), [stale]);
    assert_eq!(settings("onload-cdi.service", "Type"), ["oneshot"]);
    let directories = settings("onload-cdi.service", "RuntimeDirectory");
    assert_eq!(directories, ["onload-cdi cdi onload"]);
    assert_eq!(settings("onload-cdi.service", "RuntimeDirectoryPreserve"), ["yes"]);
}

/// `cdi generate` ends so where it left a file alone; it has written the others and warned.
#[test]
fn a_file_that_somebody_changed_does_not_fail_the_service() {
    let success = settings("onload-cdi.service", "SuccessExitStatus");
    assert_eq!(success, ["1"]);
}

#[test]
fn a_storm_neither_fails_the_service_nor_runs_it_for_each_event() {
    assert_eq!(settings("onload-cdi.service", "StartLimitIntervalSec"), ["0"]);
    let first = settings("onload-cdi.service", "ExecStartPre");
    assert_eq!(first.first().unwrap(), "-+/usr/bin/udevadm settle --timeout=10");
    // Engines make a pair of interfaces for each container.
    let rules = read("udev/90-onload-ctk.rules");
    let net = rules.lines().find(|line| line.starts_with("SUBSYSTEM==\"net\""));
    assert!(net.unwrap().contains("DEVPATH==\"*/pci*\""));
}

/// SUSE 15 has not merged /bin with /usr/bin, and systemd's programs are in the latter only.
#[test]
fn no_unit_or_rule_names_a_program_below_bin_that_not_every_host_has_there() {
    let files = ["systemd", "udev"].into_iter().flat_map(|directory| {
        let names = names_in(&packaging(directory)).into_iter();
        names.map(move |name| format!("{directory}/{name}"))
    });
    let mut named = BTreeSet::new();
    for file in files {
        let text = read(&file);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for word in lines.flat_map(|line| line.split(['"', ' ', '=', '+', '-'])) {
            if word.starts_with("/bin/") || word.starts_with("/sbin/") {
                named.insert(word.to_owned());
            }
        }
    }
    let everywhere = ["/bin/rm", "/bin/sh", "/bin/touch"].map(str::to_owned);
    assert_eq!(named, BTreeSet::from(everywhere));
}

#[test]
fn an_interface_that_the_kernel_gives_back_is_restored() {
    let rules = read("udev/90-onload-ctk.rules");
    let mut lines = rules.lines();
    let rule = lines.find(|line| line.contains("onload-restore.service")).unwrap();
    for part in [
        "ACTION==\"add|move\"",
        "SUBSYSTEM==\"net|infiniband\"",
        "DEVPATH==\"*/pci*\"",
        "TEST==\"/run/onload-ctk/@leases\"",
    ] {
        assert!(rule.contains(part), "{rule}");
    }
    // It must not wait for the first run of discovery.
    assert!(lines.any(|line| line.starts_with("TEST!=\"/run/onload-cdi\"")));
    let started = settings(RESTORE_UNIT, "ExecStart");
    assert_eq!(started, ["/usr/bin/onload-ctk --quiet lease restore"]);
    // Of many that come back at once, the last one is restored too.
    assert_eq!(settings(RESTORE_UNIT, "StartLimitIntervalSec"), ["0"]);
    // And where the others do not come: each of a hundred may take 20 seconds.
    assert_eq!(settings(RESTORE_UNIT, "TimeoutStartSec"), ["1h"]);
    // It tells the kernel about interfaces, in namespaces of containers too.
    let capabilities = settings(RESTORE_UNIT, "CapabilityBoundingSet").join(" ");
    for capability in ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"] {
        assert!(capabilities.contains(capability), "{capabilities}");
    }
}

/// Of a function of vfio the kernel tells nothing when its container ends.
#[test]
fn a_function_that_is_set_up_for_a_container_is_looked_at_every_minute() {
    let dir = tempfile::tempdir().unwrap();
    let leases = dir.path().join("run/onload-ctk/@leases");
    fs::create_dir_all(&leases).unwrap();
    let done = settings("onload-cdi.service", "ExecStartPost").join(" ");
    let done = done.strip_prefix("-+/bin/sh -c '").unwrap();
    let done = done.strip_suffix('\'').unwrap();
    assert!(!done.contains(['\\', '%']), "systemd reads them: {done}");
    let starts = || {
        let script = done
            .replace("/run/", &format!("{}/run/", dir.path().display()))
            .replace("systemctl", "echo");
        let ran = Command::new("/bin/sh").args(["-c", &script]).output();
        String::from_utf8(ran.unwrap().stdout).unwrap()
    };
    let write = |name: &str, moved: &str| {
        let lease = format!(r#"{{"version":1,"moved":{{{moved}"namespace":0}}}}"#);
        fs::write(leases.join(name), lease).unwrap();
    };
    assert_eq!(starts(), "");
    write("vfio=0000:81:10.2#0", "");
    write("netdev=ens1v0#0", r#""interface":{},"#);
    assert_eq!(starts(), "");
    write("vfio=0000:81:10.0#0", r#""function":{},"#);
    assert_eq!(starts(), "--no-block start onload-restore.service\n");
    for unit in ["onload-cdi.service", RESTORE_UNIT] {
        assert_eq!(settings(unit, "LogLevelMax"), ["notice"], "{unit}");
        assert_eq!(settings(unit, "SyslogLevel"), ["notice"], "{unit}");
    }
}

#[test]
fn what_comes_back_while_others_are_restored_starts_one_more_run() {
    let stale = "/run/onload-restore/stale";
    // The rule makes the file before it starts the service, which does nothing while that runs. A run removes the file
    // before it looks, and starts one more where it is there again.
    let rules = read("udev/90-onload-ctk.rules");
    let touched = rules.find(&format!("RUN+=\"/bin/touch {stale}\"")).unwrap();
    assert!(touched < rules.find("start onload-restore.service").unwrap());
    let first = settings(RESTORE_UNIT, "ExecStartPre");
    assert_eq!(first, [format!("/bin/rm -f {stale}")]);
    let last = settings(RESTORE_UNIT, "ExecStopPost").join(" ");
    assert!(last.contains(&format!("test ! -e {stale} || ")), "{last}");
    assert!(last.contains(&format!("systemctl --no-block start {RESTORE_UNIT}")), "{last}");
    let directory = settings(RESTORE_UNIT, "RuntimeDirectory");
    assert_eq!(directory, ["onload-restore"]);
    assert_eq!(settings(RESTORE_UNIT, "RuntimeDirectoryPreserve"), ["yes"]);
}

#[test]
fn a_run_follows_the_specifications_of_vendors_and_not_its_own() {
    let watched = settings("onload-cdi.path", "PathChanged");
    for directory in onload_cdi::DEFAULT_DIRS {
        for name in ["nvidia.yaml", "nvidia.json", "amd.json"] {
            let file = format!("{directory}/{name}");
            assert!(watched.contains(&file), "{file}: {watched:?}");
        }
        // A run locks a file there, and writes there.
        assert!(!watched.iter().any(|path| path == directory));
        assert!(!watched.iter().any(|path| path.contains("onload.dev-")));
    }
}

/// amdkfd says which GPU a partition is of only to a process that may open the GPU's node (`node_show` in
/// drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
#[test]
fn units_that_may_open_no_devices_are_told_of_amd_s_gpus() {
    let mut closed = Vec::new();
    for unit in names_in(&packaging("systemd")) {
        if settings(&unit, "DevicePolicy") == ["closed"] {
            assert_eq!(settings(&unit, "DeviceAllow"), ["char-drm rw"], "{unit}");
            closed.push(unit);
        }
    }
    assert_eq!(closed, ["onload-cdi.service", METRICS_UNIT]);
}

/// The units as installed, but for the programs and pages that are not.
fn installed_units() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for unit in names_in(&packaging("systemd")) {
        let text = read(&format!("systemd/{unit}"));
        let text = text
            .replace("/usr/bin/onload-ctk", "/bin/true")
            .replace("/usr/bin/onload-nri", "/bin/true");
        let lines = text.lines().filter(|line| !line.starts_with("Documentation="));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        fs::write(directory.path().join(unit), text).unwrap();
    }
    directory
}

/// The service in GDRCopy's rpm comes after multi-user.target (2.4 to 2.6), which waits for what it wants.
#[test]
fn nothing_that_starts_at_boot_waits_for_its_end() {
    if !needs::programs(&["systemd-analyze"]) {
        return;
    }
    let units = installed_units();
    let late = "[Unit]\nAfter=multi-user.target\n[Service]\nExecStart=/bin/true\n";
    fs::write(units.path().join("gdrcopy.service"), late).unwrap();
    let wants = units.path().join("multi-user.target.wants");
    fs::create_dir(&wants).unwrap();
    for unit in UNITS.into_iter().chain(["gdrcopy.service"]) {
        std::os::unix::fs::symlink(format!("../{unit}"), wants.join(unit)).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "multi-user.target"]);
    // The host's own come after them.
    verify.env("SYSTEMD_UNIT_PATH", format!("{}:", units.path().display()));
    let output = verify.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("cycle"), "{stderr}");
}

#[test]
fn a_run_that_hangs_keeps_logins_for_minutes_alone() {
    assert_eq!(settings("onload-cdi.service", "TimeoutStartSec"), ["2min"]);
}

#[test]
fn units_are_what_systemd_takes() {
    if !needs::programs(&["systemd-analyze"]) {
        return;
    }
    let directory = installed_units();
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify");
    let units = names_in(directory.path());
    verify.args(units.iter().map(|unit| directory.path().join(unit)));
    let output = verify.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = stderr.lines().filter(|line| line.contains("onload")).collect();
    assert_eq!(ours, Vec::<&str>::new(), "{stderr}");
}

#[test]
fn scripts_are_what_a_shell_takes() {
    let common_part = read("scripts/common.sh");
    let mut scripts = 0;
    for (directory, shell) in [("deb", "sh"), ("rpm", "sh"), ("tarball", "sh"), (".", "bash")] {
        for name in names_in(&packaging(directory)) {
            let path = packaging(directory).join(&name);
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            if !text.starts_with("#!") && !name.ends_with(".sh") {
                continue;
            }
            let lines = text.lines().map(|line| match line {
                "#COMMON#" => common_part.as_str(),
                line => line,
            });
            let text: String = lines.map(|line| format!("{line}\n")).collect();
            let shell = if text.starts_with("#!/bin/sh") { "sh" } else { shell };
            let checked = Command::new(shell).args(["-n", "-c", &text]).output().unwrap();
            let stderr = String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{}: {stderr}", path.display());
            scripts += 1;
        }
    }
    assert_eq!(scripts, 3 + 3 + 1 + 9);
}

/// Compose files and quadlets: each with the device that its placeholder stands for.
const EXAMPLES: [(&str, &str, &[(&str, &str)]); 2] = [
    (
        "compose",
        "${DEVICE:?}",
        &[("rdma.yaml", "rxe0"), ("redis.yaml", ""), ("testpmd.yaml", "0000:81:10.0")],
    ),
    (
        "quadlets",
        "%i",
        &[
            ("onload-redis.container", ""),
            ("rdma-client@.container", "rxe0"),
            ("rdma-server@.container", "rxe0"),
            ("testpmd.container", ""),
        ],
    ),
];

#[test]
fn compose_files_and_quadlets_name_devices_that_a_host_offers() {
    let host = Tree::sample("debian13-2numa-onload-rxe-vfio");
    for (directory, placeholder, files) in EXAMPLES {
        assert_eq!(
            names_in(&packaging(directory)),
            files.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
        for (name, device) in files {
            let text = read(&format!("{directory}/{name}")).replace(placeholder, device);
            let names = text.lines().filter_map(|line| {
                let line = line.trim();
                line.strip_prefix("device_ids: ").or_else(|| line.strip_prefix("AddDevice="))
            });
            let names: Vec<&str> = names
                .flat_map(|names| names.trim_matches(['[', ']']).split(", "))
                .map(|name| name.trim_matches('"'))
                .collect();
            assert!(!names.is_empty(), "{name}");
            host.run(&[&["cdi", "preview"], names.as_slice()].concat()).done();
        }
    }
}

#[test]
fn quadlets_become_units_with_their_devices_and_commands() {
    const GENERATOR: &str = "/usr/libexec/podman/quadlet";
    let has_quadlet = Path::new(GENERATOR).exists();
    if !needs::on_this_machine(has_quadlet, "podman is missing or older than quadlets (4.4)") {
        return;
    }
    for (name, _) in EXAMPLES[1].2 {
        let directory = tempfile::tempdir().unwrap();
        let text = read(&format!("quadlets/{name}"));
        fs::write(directory.path().join(name), &text).unwrap();
        let mut quadlet = Command::new(GENERATOR);
        quadlet.arg("-dryrun").env("QUADLET_UNIT_DIRS", directory.path());
        let output = quadlet.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stderr}");
        let unit = String::from_utf8(output.stdout).unwrap();
        let start = unit.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        for line in text.lines() {
            match line.split_once('=') {
                Some(("AddDevice", device)) => {
                    assert!(start.contains(&format!(" --device {device} ")), "{start}")
                }
                Some(("Exec", command)) => assert!(start.ends_with(command), "{start}"),
                _ => {}
            }
        }
    }
}

#[test]
fn the_recipe_for_redis_has_the_quadlet_of_packaging() {
    let recipes = fs::read_to_string(crate::common::package().join("docs/recipes.md")).unwrap();
    let (_, block) = recipes.split_once("systemd/onload-redis.container\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let quadlet = read("quadlets/onload-redis.container");
    let lines = quadlet.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(block.lines().collect::<Vec<_>>(), lines.collect::<Vec<_>>());
}

#[test]
fn the_notes_of_a_release_are_the_section_of_its_version() {
    let notes = |changelog: &str| {
        let tree = Scripts::new();
        fs::create_dir_all(tree.path("packaging")).unwrap();
        tree.write("packaging/release", &read("release"));
        tree.write("packaging/scripts/project.sh", &read("scripts/project.sh"));
        tree.write("Cargo.toml", "[workspace.package]\nversion = \"1.2.3\"\n");
        tree.write("CHANGELOG.md", changelog);
        let mut bash = Command::new("bash");
        bash.arg(tree.path("packaging/release")).arg("--notes");
        let output = bash.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let changelog = "# Changelog\n\n## Unreleased\n\n- later\n\n## 1.2.3 (today)\n\n### Features\n\n- now\n\n## 1.2.30\n\n- no\n";
    let released = "# onload-ctk 1.2.3\n\n### Features\n\n- now\n";
    assert_eq!(notes(changelog), (true, released.to_owned(), String::new()));

    let (done, stdout, stderr) = notes("# Changelog\n\n## Unreleased\n\n- later\n");
    assert!(done);
    assert_eq!(stdout, "# onload-ctk 1.2.3\n\n- later\n");
    assert!(stderr.contains("has no section 1.2.3"), "{stderr}");

    let (done, stdout, stderr) = notes("# Changelog\n\n## 1.2.2\n\n- before\n");
    assert!(!done);
    assert_eq!(stdout, "");
    assert!(stderr.contains("neither a section 1.2.3 nor Unreleased"), "{stderr}");
}

/// What bash prints for these lines, behind packaging/scripts/binaries.sh, on a machine of that name.
fn on_machine(machine: &str, lines: &str) -> (Option<i32>, String) {
    let common = packaging("scripts/binaries.sh");
    let script = format!(
        "set -eu; uname() {{ echo {machine}; }}; . {}; {{ {lines}\n}} 2>&1",
        common.display()
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).env_clear();
    let output = bash.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    let output = output.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text)
}

#[test]
fn programs_of_another_architecture_are_beside_this_machine_s() {
    let names = "for one in amd64 arm64; do machine_of $one; programs_of $one; done";
    let own = "target/programs";
    let (_, text) = on_machine("x86_64", names);
    let expected = ["x86_64", own, "aarch64", "target/programs-arm64"];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    let (_, text) = on_machine("aarch64", names);
    let expected = ["x86_64", "target/programs-amd64", "aarch64", own];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_build_for_another_architecture_has_its_cross_compiler() {
    let tools = "for one in gcc ar; do eval \"aarch64-linux-gnu-$one() { :; }\"; done";
    let shown =
        "for one in arm64 amd64; do across_to $one env | grep -i aarch64_unknown | sort; done";
    let (code, text) = on_machine("x86_64", &format!("{tools}; {shown}"));
    assert_eq!(code, Some(0), "{text}");
    let expected = [
        "AR_aarch64_unknown_linux_musl=aarch64-linux-gnu-ar",
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=aarch64-linux-gnu-gcc",
        "CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);

    let (code, text) = on_machine("x86_64", "PATH=/nowhere; across_to arm64 echo built");
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(
        text,
        "programs for arm64 need aarch64-linux-gnu-gcc: install the packages gcc-aarch64-linux-gnu and libc6-dev-arm64-cross\n"
    );
    let (_, text) = on_machine("aarch64", "PATH=/nowhere; across_to amd64 echo built || true");
    assert!(
        text.ends_with("install the packages gcc-x86-64-linux-gnu and libc6-dev-amd64-cross\n"),
        "{text}"
    );
}

#[test]
fn nothing_is_built_for_an_architecture_that_is_none() {
    for words in [
        &["build", "mips"][..],
        &["release", "amd64", "mips"],
        &["image", "--architecture", "mips"],
        &["nomad/build", "--architecture", "mips"],
        &["../scripts/build-programs", "--architecture", "mips"],
        &["../scripts/hooks-target", "mips"],
    ] {
        let mut command = Command::new(packaging(words[0]));
        // A commit's time, which a checkout without its history does not know.
        command.args(&words[1..]).env("SOURCE_DATE_EPOCH", "1767225600");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let expected = "there is no architecture mips: programs are built for amd64 and arm64\n";
        assert_eq!(stderr, expected, "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

/// What a package puts where, but for names that differ between distributions.
fn destinations(manifest: &toml_edit::DocumentMut, kind: &str) -> BTreeSet<String> {
    let assets = manifest["package"]["metadata"][kind]["assets"].as_array().unwrap();
    let assets = assets.iter().map(|asset| match asset.as_array() {
        Some(asset) => (asset.get(0).unwrap(), asset.get(1).unwrap()),
        None => {
            let asset = asset.as_inline_table().unwrap();
            (asset.get("source").unwrap(), asset.get("dest").unwrap())
        }
    });
    let paths = assets.map(|(source, to)| {
        let (source, to) = (source.as_str().unwrap(), to.as_str().unwrap());
        let to = to.trim_start_matches('/').replace("vendor-completions", "site-functions");
        let last = source.rsplit('/').next().unwrap();
        if to.ends_with('/') { format!("{to}{last}") } else { to }
    });
    // Debian enables what is installed, and asks no preset.
    let own = ["usr/share/doc/", "usr/share/lintian/", "usr/lib/systemd/system-preset/"];
    paths.filter(|path| !own.iter().any(|own| path.starts_with(own))).collect()
}

#[test]
fn both_packages_hold_the_same_files_and_no_directory_of_an_engine() {
    let text = fs::read_to_string(crate::common::package().join("Cargo.toml")).unwrap();
    let manifest: toml_edit::DocumentMut = text.parse().unwrap();
    let (mut deb, rpm) = (destinations(&manifest, "deb"), destinations(&manifest, "generate-rpm"));
    // Where rpm leaves a file that was changed alone, dpkg asks: there it is put into its place by the package's script.
    assert!(deb.remove("usr/share/onload-ctk/config.toml"));
    deb.insert(CONFIG.to_owned());
    assert_eq!(deb, rpm);
    for path in &deb {
        for directory in ["containers", "docker", "containerd", "crio", "cni", "nomad", "etc/cdi"] {
            assert!(!path.contains(directory) || path.contains("onload-container"), "{path}");
        }
    }
    for kind in names_in(&packaging("hooks.d")) {
        let path = format!("usr/share/onload-ctk/hooks.d/{kind}/*");
        assert!(deb.contains(&path), "no package holds {path}");
    }
}

#[test]
fn the_package_for_nomad_holds_the_program_and_its_page_and_runs_nothing() {
    let path = crate::common::package().join("cluster/nomad/Cargo.toml");
    let manifest: toml_edit::DocumentMut = fs::read_to_string(path).unwrap().parse().unwrap();
    let metadata = &manifest["package"]["metadata"];
    let wanted = BTreeSet::from(["usr/bin/*".to_owned(), "usr/share/man/man8/*".to_owned()]);
    for kind in ["deb", "generate-rpm"] {
        assert_eq!(destinations(&manifest, kind), wanted, "{kind}");
        let table = metadata[kind].as_table().unwrap();
        assert_eq!(table["name"].as_str(), Some("onload-ctk-nomad"));
        let is_script = |key: &str| key == "maintainer-scripts" || key.contains("_script");
        let keys: Vec<&str> = table.iter().map(|(key, _)| key).collect();
        assert!(!keys.iter().any(|key| is_script(key)), "{keys:?}");
    }
    assert_eq!(metadata["deb"]["depends"].as_str(), Some("onload-ctk"));
    let requires = &metadata["generate-rpm"]["requires"];
    assert_eq!(requires["onload-ctk"].as_str(), Some("*"));
    // The other package does not have its files.
    let build = read("build");
    assert!(build.contains("\"$stage/nomad/usr/bin\""));
    assert!(!build.contains("put packaging/nomad"));
}

/// The directories that only we have, of those that the rpm puts files into.
fn own_directories() -> BTreeSet<String> {
    let text = fs::read_to_string(crate::common::package().join("Cargo.toml")).unwrap();
    let manifest: toml_edit::DocumentMut = text.parse().unwrap();
    let assets = &manifest["package"]["metadata"]["generate-rpm"]["assets"];
    let assets = assets.as_array().unwrap().iter();
    let mut own = BTreeSet::new();
    for asset in assets.map(|asset| asset.as_inline_table().unwrap()) {
        let to = asset["dest"].as_str().unwrap().trim_start_matches('/');
        let (mut directory, _) = to.rsplit_once('/').unwrap();
        while directory.contains("onload-ctk") {
            own.insert(directory.to_owned());
            directory = directory.rsplit_once('/').unwrap().0;
        }
    }
    own
}

#[test]
fn the_last_step_of_the_rpm_takes_the_directories_that_are_ours_and_empty() {
    let own = own_directories();
    assert!(own.len() > 5, "{own:?}");
    for (versions, kept, left) in
        [("0", None, 0), ("0", Some("etc/onload-ctk"), 1), ("1", None, own.len())]
    {
        let scripts = Scripts::new();
        scripts.program("stand-ins/systemctl", "");
        scripts.program("stand-ins/onload-ctk", "");
        for directory in &own {
            scripts.0.directory(directory);
        }
        if let Some(directory) = kept {
            scripts.write(&format!("{directory}/config.toml.rpmsave"), "");
        }
        scripts.done(&read("rpm/postun.sh"), &[versions]);
        let stands = own.iter().filter(|path| scripts.path(path).exists());
        assert_eq!(stands.count(), left, "{versions} {kept:?}");
        assert!(scripts.path("usr/share").exists());
    }
}

#[test]
fn a_preset_enables_every_unit_where_the_host_s_last_one_disables_all() {
    let text = read("rpm/90-onload-ctk.preset");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<_> = lines.map(|line| line.split_once(' ').unwrap()).collect();
    let wanted = UNITS.map(|unit| ("enable", unit)).into_iter();
    let wanted: Vec<_> =
        wanted.chain([HOST_UNIT, METRICS_TIMER, NRI_UNIT].map(|unit| ("disable", unit))).collect();
    assert_eq!(lines, wanted);
    if !crate::common::has("systemctl") {
        crate::common::skipped("systemctl is not installed");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let presets = root.path().join("usr/lib/systemd/system-preset");
    let units = root.path().join("usr/lib/systemd/system");
    let own = root.path().join("etc/systemd/system-preset");
    for directory in [&presets, &units, &own] {
        fs::create_dir_all(directory).unwrap();
    }
    for unit in UNITS {
        fs::write(units.join(unit), read(&format!("systemd/{unit}"))).unwrap();
    }
    fs::write(presets.join("90-onload-ctk.preset"), text).unwrap();
    // As Fedora and Red Hat have it.
    fs::write(presets.join("99-default-disable.preset"), "disable *\n").unwrap();
    let states = || {
        let systemctl = |verb: &str| {
            let mut systemctl = Command::new("systemctl");
            systemctl.arg("--root").arg(root.path()).arg(verb).args(UNITS);
            String::from_utf8(systemctl.output().unwrap().stdout).unwrap()
        };
        systemctl("preset");
        let states = systemctl("is-enabled");
        states.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(states(), ["enabled"; 3]);
    // Where the host's last preset enables what no other names.
    fs::write(units.join(HOST_UNIT), read(&format!("systemd/{HOST_UNIT}"))).unwrap();
    fs::write(presets.join("99-default-disable.preset"), "enable *\n").unwrap();
    let systemctl = |verb: &str| {
        let mut systemctl = Command::new("systemctl");
        let systemctl = systemctl.arg("--root").arg(root.path()).args([verb, HOST_UNIT]);
        String::from_utf8(systemctl.output().unwrap().stdout).unwrap()
    };
    systemctl("preset");
    assert_eq!(systemctl("is-enabled"), "disabled\n");
    fs::write(own.join("50-site.preset"), "disable onload-cdi.*\n").unwrap();
    assert_eq!(states(), ["disabled"; 3]);
}

#[test]
fn the_environment_of_the_service_names_variables_that_there_are() {
    use clap::CommandFactory;
    let mut command = onload_ctk::cli::Cli::command();
    let generate = command.find_subcommand_mut("cdi").unwrap();
    let generate = generate.find_subcommand_mut("generate").unwrap().clone();
    let known = |name: &str| {
        let flags = generate.get_arguments().chain(command.get_arguments());
        flags.into_iter().any(|flag| flag.get_env().is_some_and(|env| env == name))
    };
    let mut variables = 0;
    for line in read("default").lines() {
        let Some((name, _)) = line.trim_start_matches('#').split_once('=') else {
            continue;
        };
        let of_nri = settings(NRI_UNIT, "ExecStart").join(" ");
        let is_of_nri = of_nri.ends_with(&format!(" ${name}"));
        assert!(known(name) || is_of_nri, "{name}");
        variables += 1;
    }
    assert_eq!(variables, 4);
}

#[test]
fn the_preload_file_is_one_line() {
    assert_eq!(read("ld.so.preload"), "libonload.so\n");
}

#[test]
fn manual_pages_are_what_man_takes() {
    if !needs::programs(&["man"]) {
        return;
    }
    let generated = tempfile::tempdir().unwrap();
    crate::common::run(crate::common::program().arg("man").arg(generated.path())).done();
    let directories = [packaging("man"), generated.path().to_owned()];
    let pages = directories.iter().flat_map(|directory| {
        let names = names_in(directory).into_iter();
        names.map(|name| directory.join(name))
    });
    let of_nomad = packaging("nomad/onload-nomad-device.8");
    for page in pages.chain([of_nomad]) {
        let mut man = Command::new("man");
        man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]);
        let output = man.arg(&page).env("MANWIDTH", "100").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr, "", "{}", page.display());
    }
}

/// The functions that the packages' scripts share, on a host of their own below a directory, with
/// programs that stand in for those that they call.
struct Scripts(Tree);

impl Scripts {
    fn new() -> Scripts {
        let scripts = Scripts(Tree::on_disk());
        for directory in ["usr/bin", "etc/docker", "proc", "run/onload-ctk/@runtimes", "stand-ins"]
        {
            scripts.0.directory(directory);
        }
        scripts
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }

    fn write(&self, path: &str, text: &str) {
        self.0.file(path, text);
    }

    fn program(&self, path: &str, text: &str) {
        self.0.program(path, format!("#!/bin/sh\n{text}\n"));
    }

    /// A process by what the kernel shows of it; one without arguments never tells them.
    fn process(&self, pid: u32, name: &str, arguments: Option<&[&str]>) {
        self.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        let cmdline = format!("proc/{pid}/cmdline");
        match arguments {
            Some(arguments) => {
                let words = arguments.iter().map(|word| format!("{word}\0"));
                self.write(&cmdline, &words.collect::<String>());
            }
            None => {
                let made = Command::new("mkfifo").arg(self.path(&cmdline)).status();
                assert!(made.unwrap().success());
            }
        }
    }

    /// The wrapper's path as the script names it there.
    fn wrapper(&self) -> String {
        let path = self.path("usr/bin/onload-container-runtime");
        path.to_str().unwrap().to_owned()
    }

    /// A script's text, with each path of the host below the directory.
    fn moved(&self, text: &str) -> String {
        let mut moved = String::new();
        for (at, sign) in text.char_indices() {
            let begins = !text[..at].ends_with(|c: char| c.is_alphanumeric() || "/*.]".contains(c));
            let is_ours = ["/run/", "/usr/", "/etc/", "/var/", "/proc/"]
                .iter()
                .any(|directory| text[at..].starts_with(directory));
            if begins && is_ours {
                moved.push_str(self.0.root().to_str().unwrap());
            }
            moved.push(sign);
        }
        moved
    }

    fn sh(&self, text: &str, arguments: &[&str]) -> std::process::Output {
        let text = text.replace("#COMMON#", &read("scripts/common.sh"));
        let path = std::env::var("PATH").unwrap();
        let mut sh = Command::new("sh");
        // The tarball's script also removes directories below where it installed.
        let root = format!("{}/", self.0.root().display());
        let text = self.moved(&text).replace("$destination/", &root);
        sh.args(["-c", &text, "sh"]).args(arguments);
        sh.current_dir(self.0.root());
        sh.env("PATH", format!("{}:{path}", self.path("stand-ins").display()));
        sh.output().unwrap()
    }

    /// Whether a function of the scripts answers yes.
    #[track_caller]
    fn says(&self, function: &str) -> bool {
        let text = format!("set -e\n#COMMON#\nif {function}; then exit 0; else exit 3; fi");
        let output = self.sh(&text, &[]);
        match output.status.code() {
            Some(code @ (0 | 3)) => code == 0,
            code => panic!("{code:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }

    /// What is said on stderr while it is done.
    #[track_caller]
    fn done(&self, text: &str, arguments: &[&str]) -> String {
        let output = self.sh(text, arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        stderr
    }
}

const LEAVE: &str = "set -e\n#COMMON#\nonload_ctk_leave_runtime";

#[test]
fn an_upgrade_starts_the_nri_plugin_again_only_where_it_runs() {
    for (active, expected) in [
        (0, "is-active onload-nri.service\nrestart onload-nri.service\n"),
        (3, "is-active onload-nri.service\n"),
    ] {
        let scripts = Scripts::new();
        fs::create_dir_all(scripts.path("run/systemd/system")).unwrap();
        let log = scripts.path("log");
        let program = format!(
            "[ \"$1\" != --quiet ] || shift\necho \"$*\" >>{}\n[ \"$1\" != is-active ] || exit {active}",
            log.display()
        );
        scripts.program("stand-ins/systemctl", &program);
        scripts.done("set -e\n#COMMON#\nonload_ctk_restart_nri systemctl", &[]);
        assert_eq!(fs::read_to_string(log).unwrap(), expected);
    }
}

#[test]
fn removal_asks_monitors_alone_for_their_arguments() {
    let scripts = Scripts::new();
    scripts.process(10, "bash", None);
    let wrapper = scripts.wrapper();
    scripts.process(11, "less", Some(&["less", &wrapper]));
    scripts.process(12, "conmon", Some(&["conmon", "-r", "/usr/bin/crun"]));
    assert!(!scripts.says("onload_ctk_running"));
    scripts.process(13, "conmon", Some(&["/usr/bin/conmon", "-r", &wrapper]));
    assert!(scripts.says("onload_ctk_running"));
}

#[test]
fn a_monitor_that_never_tells_its_arguments_counts_as_one_of_ours() {
    let scripts = Scripts::new();
    // The time is up at once.
    scripts.program("stand-ins/timeout", "[ \"$1 $2\" = '-s KILL' ] && exit 137");
    scripts.process(10, "conmon", None);
    assert!(scripts.says("onload_ctk_running"));
}

#[test]
fn removal_says_that_the_guard_of_running_containers_ends() {
    let scripts = Scripts::new();
    scripts.program("usr/bin/runc", "");
    scripts.write("etc/docker/daemon.json", &scripts.wrapper());
    let record = |name: &str, target: &str| {
        let path = scripts.path("run/onload-ctk/@runtimes").join(name);
        std::os::unix::fs::symlink(target, path).unwrap();
    };
    record("plain@1", "1:/usr/bin/runc");
    let line = "root-with-onload = \"refuse\" no longer holds";
    let output_text = scripts.done(LEAVE, &[]);
    assert!(
        output_text.contains("is now a link to") && !output_text.contains(line),
        "{output_text}"
    );
    fs::remove_file(scripts.wrapper()).unwrap();
    record("kept@2", "1:guarded:/usr/bin/runc");
    record("other@2", "1:guarded:/usr/bin/crun");
    let output_text = scripts.done(LEAVE, &[]);
    let expected = format!("onload-ctk: {line} in containers that run; end them: kept other");
    assert!(output_text.lines().any(|output_text| output_text == expected), "{output_text}");
}

#[test]
fn removal_passes_on_what_is_said_about_the_runtime_behind_ours() {
    let scripts = Scripts::new();
    let program = "case $* in *behind) echo /opt/crun; echo 'warning: two runtimes' >&2 ;; esac";
    scripts.program("stand-ins/onload-ctk", program);
    let message = scripts.done("set -e\n#COMMON#\nonload_ctk_forget", &[]);
    assert_eq!(message, "warning: two runtimes\n");
    let behind = fs::read_to_string(scripts.path("run/onload-ctk-behind")).unwrap();
    assert_eq!(behind, "/opt/crun\n");
}

#[test]
fn removal_takes_the_specifications_and_leaves_those_of_others() {
    let scripts = Scripts::new();
    let directory = scripts.path("var/run/cdi");
    let output_dir = directory.to_str().unwrap();
    Tree::sample("x2-2port-sriov").run(&["cdi", "generate", "--output-dir", output_dir]).done();
    assert!(names_in(&directory).contains(&"onload.dev-nic.json".to_owned()));
    scripts.write("var/run/cdi/nvidia.yaml", "");
    let program = env!("CARGO_BIN_EXE_onload-ctk");
    let text = format!("case $* in *generate*) exec {program} \"$@\" ;; esac");
    scripts.program("stand-ins/onload-ctk", &text);
    assert_eq!(scripts.done("set -e\n#COMMON#\nonload_ctk_forget", &[]), "");
    assert_eq!(names_in(&directory), ["nvidia.yaml"]);
}

#[test]
fn removal_takes_back_what_files_elsewhere_were_told() {
    let scripts = Scripts::new();
    let log = scripts.path("log");
    let program = format!("echo \"$*\" >>{}", log.display());
    scripts.program("stand-ins/onload-ctk", &program);
    let ours = [
        "var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
        "var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/99-onload-ctk.toml",
        "var/snap/microk8s/current/args/containerd-template.toml",
    ];
    for file in ours {
        scripts.write(file, &scripts.wrapper());
    }
    scripts.write(
        "var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        "{{ template \"base\" . }}\n",
    );
    scripts.done("set -e\n#COMMON#\nonload_ctk_forget", &[]);
    let log = fs::read_to_string(log).unwrap();
    let named = log.lines().filter(|line| line.contains("--file"));
    let expected = ours.map(|file| {
        let file = scripts.path(file);
        format!("--quiet runtime configure --runtime containerd --file {} --remove", file.display())
    });
    assert_eq!(named.collect::<Vec<_>>(), expected);
    for engine in ["docker", "containerd", "crio", "podman", "nomad"] {
        let line = format!("--quiet runtime configure --runtime {engine} --remove");
        assert!(log.lines().any(|message| message == line), "{engine}: {log}");
    }
}

#[test]
fn every_unit_is_in_one_of_the_lists_of_a_removal() {
    let text = read("scripts/common.sh");
    let lists = ["units", "own_units", "started_units"].map(|list| {
        let begin = format!("onload_ctk_{list}=\"");
        let line = text.lines().find_map(|line| line.strip_prefix(&begin));
        line.unwrap().trim_end_matches('"')
    });
    let mut listed: Vec<&str> = lists.iter().flat_map(|list| list.split(' ')).collect();
    listed.sort_unstable();
    assert_eq!(listed, names_in(&packaging("systemd")));
}

#[test]
fn a_removal_stops_what_others_start_and_leaves_nothing_of_it_failed_or_in_run() {
    for (script, argument, is_first, is_last) in [
        ("deb/prerm", "remove", true, false),
        ("deb/prerm", "upgrade", false, false),
        ("deb/postrm", "remove", false, true),
        ("rpm/preun.sh", "0", true, false),
        ("rpm/preun.sh", "1", false, false),
        ("rpm/postun.sh", "0", false, true),
        ("tarball/install", "--remove", true, true),
    ] {
        let scripts = Scripts::new();
        fs::create_dir_all(scripts.path("run/systemd/system")).unwrap();
        fs::create_dir_all(scripts.path("root")).unwrap();
        scripts.write("run/onload-restore/stale", "");
        scripts.write("log", "");
        for program in ["onload-ctk", "deb-systemd-helper", "deb-systemd-invoke"] {
            scripts.program(&format!("stand-ins/{program}"), "");
        }
        scripts.program("stand-ins/systemctl", "echo \"$*\" >>log");
        scripts.done(&read(script), &[argument]);
        let log = fs::read_to_string(scripts.path("log")).unwrap();
        let does = |verb: &str| {
            let mut lines = log.lines().filter(|line| line.starts_with(verb));
            lines.any(|line| [RESTORE_UNIT, METRICS_UNIT].iter().all(|unit| line.contains(unit)))
        };
        assert_eq!(does("stop "), is_first, "{script} {argument}: {log}");
        assert_eq!(does("reset-failed "), is_last, "{script} {argument}: {log}");
        let stays = scripts.path("run/onload-restore").exists();
        assert_eq!(stays, !is_first && !is_last, "{script} {argument}");
    }
}

/// A lease as it is written: one line, with what is to come back where something moved or is set up.
fn lease_of(container: &str, moved: &str) -> String {
    format!(
        "{{\"version\":1,\"class\":\"x\",\"container\":\"{container}\",\"bundle\":\"/b\"{moved}}}\n"
    )
}

#[test]
fn removal_brings_back_what_ended_containers_left_and_names_what_others_have() {
    const MOVED: &str = ",\"moved\":{\"interface\":{\"name\":\"ens1v0\"}}";
    const SET_UP: &str = ",\"moved\":{\"function\":{\"vf\":{}}}";
    let scripts = Scripts::new();
    let leases = scripts.path("run/onload-ctk/@leases");
    for (name, lease) in [
        ("netdev=ens1v0#0", lease_of("web", MOVED)),
        ("netdev=ens1v1#0", lease_of("ended", MOVED)),
        ("vfio=0000:81:10.0#0", lease_of("db", SET_UP)),
        ("vfio=0000:81:10.1#0", lease_of("plain", "")),
        ("rdma=mlx5_0#0", "{".to_owned()),
    ] {
        scripts.write(&format!("run/onload-ctk/@leases/{name}"), &lease);
    }
    let program = format!(
        "echo \"$*\" >>{0}/log\ncase $* in *'lease restore') rm {1}/netdev=ens1v1*; echo 'error: late' >&2; exit 1 ;; esac",
        scripts.path("").display(),
        leases.display()
    );
    scripts.program("stand-ins/onload-ctk", &program);
    let message = scripts.done(FORGET, &[]);
    let expected = "error: late\nonload-ctk: these devices are with containers, and become what they were only while \
        onload-ctk is installed: netdev=ens1v0 (web), vfio=0000:81:10.0 (db); stop the containers, then install it again\n";
    assert_eq!(message, expected);
    let log = fs::read_to_string(scripts.path("log")).unwrap();
    assert_eq!(log.lines().next(), Some("--quiet lease restore"));
}

#[test]
fn an_installation_brings_back_what_containers_left_while_it_was_away() {
    for (script, arguments) in [
        ("deb/postinst", &["configure", ""][..]),
        ("rpm/post.sh", &["1"]),
        ("tarball/install", &[]),
    ] {
        for leases in [false, true] {
            let scripts = Scripts::new();
            fs::create_dir_all(scripts.path("run/systemd/system")).unwrap();
            fs::create_dir_all(scripts.path("root")).unwrap();
            scripts.write("usr/share/onload-ctk/config.toml", "");
            if leases {
                scripts.write("run/onload-ctk/@leases/.lock", "");
            }
            for program in ["deb-systemd-helper", "deb-systemd-invoke"] {
                scripts.program(&format!("stand-ins/{program}"), "");
            }
            scripts.program("stand-ins/systemctl", "echo \"$*\" >>log");
            scripts.done(&read(script), arguments);
            let log = fs::read_to_string(scripts.path("log")).unwrap();
            let mut started = log.lines().filter(|line| line.contains(RESTORE_UNIT));
            let wanted = format!("--no-block start {RESTORE_UNIT}");
            assert_eq!(started.next(), leases.then_some(&wanted[..]), "{script}");
            assert_eq!(started.next(), None, "{script}");
        }
    }
}

/// node_exporter goes on serving what lies there.
#[test]
fn removal_takes_the_metrics_away_that_the_service_wrote() {
    let usual = "var/lib/prometheus/node-exporter/onload-ctk.prom";
    let variable = "ONLOAD_CTK_METRICS_OUTPUT";
    let with = |name: &str, line: &dyn Fn(&str) -> String| {
        let scripts = Scripts::new();
        scripts.program("stand-ins/onload-ctk", "");
        let path = scripts.path(name);
        scripts.write(name, "onload_ctk_build_info 1\n");
        scripts.write("etc/default/onload-ctk", &line(path.to_str().unwrap()));
        scripts
    };
    let is_left = |scripts: &Scripts, name: &str| {
        let message = scripts.done(FORGET, &[]);
        assert_eq!(message, "");
        scripts.path(name).exists()
    };
    assert!(!is_left(&with(usual, &|_| String::new()), usual));
    assert!(!is_left(&with(usual, &|_| "# nothing\n".to_owned()), usual));

    let named = "srv/text file/a.prom";
    for quote in ["", "\"", "'"] {
        let line =
            |path: &str| format!("A=1\n{variable}=/x.prom\n{variable}={quote}{path}{quote} \n");
        let scripts = with(named, &line);
        scripts.write(usual, "onload_ctk_build_info 1\n");
        assert!(!is_left(&scripts, named), "{quote}");
        assert!(!scripts.path(usual).exists());
    }
    let commented = |path: &str| format!("#{variable}={path}\n");
    assert!(is_left(&with(named, &commented), named));
    let earlier = |path: &str| format!("{variable}={path}\n{variable}=/srv/none.prom\n");
    assert!(is_left(&with(named, &earlier), named));
    // Whatever else it names is no file of metrics.
    let plainly = |path: &str| format!("{variable}={path}\n");
    assert!(is_left(&with("srv/a.conf", &plainly), "srv/a.conf"));
    let scripts = with("srv/other", &|path| format!("{variable}={path}.prom\n"));
    std::os::unix::fs::symlink("other", scripts.path("srv/other.prom")).unwrap();
    assert!(is_left(&scripts, "srv/other.prom"));
    // The file is no script.
    let run = |path: &str| format!("rm -f {path}\n{variable}=$(rm -f {path})\n");
    assert!(is_left(&with("srv/b", &run), "srv/b"));
}

/// A host with systemd, where these services run and docker reads its file again or does not.
fn with_services(active: &str, reload: u8) -> Scripts {
    let scripts = Scripts::new();
    fs::create_dir_all(scripts.path("run/systemd/system")).unwrap();
    let log = scripts.path("log");
    let program = format!(
        "[ \"$1\" != --quiet ] || shift\necho \"$*\" >>{}\ncase \"$1 $2\" in\n{active}) ;;\nis-active*) exit 3 ;;\nreload*) exit {reload} ;;\nshow*) cat {} 2>/dev/null ;;\nesac",
        log.display(),
        scripts.path("invocation").display(),
    );
    scripts.program("stand-ins/systemctl", &program);
    // Its removal takes the entries out of the files.
    let ours = format!(
        "case $* in *--remove) rm -f {} {} ;; esac",
        scripts.path("etc/docker/daemon.json").display(),
        scripts.path("etc/containerd/config.toml").display(),
    );
    scripts.program("stand-ins/onload-ctk", &ours);
    scripts.program("stand-ins/docker", "cat \"$(dirname \"$0\")/../known\" 2>/dev/null");
    scripts.program("stand-ins/sleep", "");
    scripts.program("usr/bin/runc", "");
    scripts.write("invocation", "1\n");
    let docker =
        format!("{{\"default-runtime\": \"onload\", \"path\": \"{}\"}}", scripts.wrapper());
    scripts.write("etc/docker/daemon.json", &docker);
    scripts
}

const FORGET: &str = "set -e\n#COMMON#\nonload_ctk_forget";

#[test]
fn removal_makes_docker_read_its_file_again_and_leaves_no_link() {
    let scripts = with_services("'is-active docker.service'", 0);
    scripts.write("known", "runc\n");
    scripts.done(FORGET, &[]);
    let log = fs::read_to_string(scripts.path("log")).unwrap();
    let log: Vec<&str> = log.lines().filter(|line| !line.starts_with("stop ")).collect();
    assert_eq!(log, ["is-active docker.service", "reload docker.service"]);
    assert_eq!(scripts.done(LEAVE, &[]), "");
    assert!(fs::symlink_metadata(scripts.wrapper()).is_err());
}

#[test]
fn removal_leaves_a_link_to_an_engine_that_still_runs_with_our_default() {
    for (reload, known) in [(1, "runc\n"), (0, "onload\n")] {
        let scripts = with_services("'is-active docker.service'", reload);
        scripts.write("known", known);
        scripts.done(FORGET, &[]);
        let message = scripts.done(LEAVE, &[]);
        assert!(
            message.contains("docker runs with the runtime \"onload\" until it is restarted")
                && message.contains("\"systemctl restart docker\", then remove the link"),
            "{message}"
        );
        assert!(fs::symlink_metadata(scripts.wrapper()).unwrap().is_symlink());
        // A purge keeps it until then.
        scripts.done("set -e\n#COMMON#\nonload_ctk_remove_link", &[]);
        assert!(fs::symlink_metadata(scripts.wrapper()).is_ok());
        scripts.write("invocation", "2\n");
        scripts.done("set -e\n#COMMON#\nonload_ctk_remove_link", &[]);
        assert!(fs::symlink_metadata(scripts.wrapper()).is_err());
    }
}

#[test]
fn removal_restarts_no_containerd_and_leaves_it_a_link_where_ours_was_its_default() {
    let default = |scripts: &Scripts| {
        let text =
            format!("default_runtime_name = \"onload\"\nBinaryName = \"{}\"\n", scripts.wrapper());
        scripts.write("etc/containerd/config.toml", &text);
    };
    let scripts = with_services("'is-active containerd.service'", 0);
    default(&scripts);
    scripts.done(FORGET, &[]);
    let log = fs::read_to_string(scripts.path("log")).unwrap();
    assert!(!log.contains("restart") && !log.contains("reload"), "{log}");
    let message = scripts.done(LEAVE, &[]);
    assert!(message.contains("\"systemctl restart containerd\""), "{message}");
    assert!(fs::symlink_metadata(scripts.wrapper()).unwrap().is_symlink());
    // One that does not run reads its file when it starts.
    let scripts = with_services("'is-active nothing'", 0);
    default(&scripts);
    scripts.done(FORGET, &[]);
    assert_eq!(scripts.done(LEAVE, &[]), "");
    assert!(fs::symlink_metadata(scripts.wrapper()).is_err());
}

#[test]
fn removal_names_the_service_of_k3s_and_rke2_whose_containerd_still_has_our_default() {
    for (product, service) in
        [("k3s", "k3s"), ("k3s", "k3s-agent"), ("rke2", "rke2-server"), ("rke2", "rke2-agent")]
    {
        // Another containerd that runs there has not our default.
        let active = format!("'is-active containerd.service' | 'is-active {service}.service'");
        let scripts = with_services(&active, 0);
        let text =
            format!("default_runtime_name = \"onload\"\nBinaryName = \"{}\"\n", scripts.wrapper());
        let file = format!("var/lib/rancher/{product}/agent/etc/containerd/config-v3.toml.tmpl");
        scripts.write(&file, &text);
        scripts.done(FORGET, &[]);
        fs::remove_file(scripts.path(&file)).unwrap();
        let message = scripts.done(LEAVE, &[]);
        let restart = format!("\"systemctl restart {service}\"");
        assert!(message.contains(&restart), "{service}: {message}");
        assert_eq!(message.matches("systemctl restart").count(), 1, "{message}");
    }
}

#[test]
fn without_systemd_docker_is_told_by_a_signal() {
    let scripts = with_services("nothing", 1);
    fs::remove_dir_all(scripts.path("run/systemd")).unwrap();
    scripts.write("known", "runc\n");
    scripts.process(10, "dockerd", None);
    let dockerd =
        "trap 'echo told >told; exit 0' HUP; echo $$ >run/docker.pid; while :; do sleep 0.1; done";
    // A shell does not trap what was ignored when it started, as below nohup.
    let mut child = Command::new("env")
        .args(["--default-signal=HUP", "bash", "-c", dockerd])
        .current_dir(scripts.path(""))
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !scripts.path("run/docker.pid").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    scripts.done(FORGET, &[]);
    assert!(child.wait().unwrap().success());
    assert!(scripts.path("told").exists());
    assert_eq!(scripts.done(LEAVE, &[]), "");
}

#[test]
fn an_entry_in_a_drop_in_of_containerd_or_in_a_template_of_k3s_keeps_the_runtime() {
    for file in [
        "etc/containerd/config.toml",
        "etc/containerd/conf.d/99-onload-ctk.toml",
        "var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
    ] {
        let scripts = Scripts::new();
        let asks = "[ -n \"$(onload_ctk_entries)\" ]";
        scripts.write(file, "/usr/bin/runc");
        assert!(!scripts.says(asks), "{file}");
        scripts.write(file, &scripts.wrapper());
        assert!(scripts.says(asks), "{file}");
    }
}

#[test]
fn a_container_of_k3s_or_microk8s_that_runs_counts() {
    let id = "io.containerd.runtime.v2.task/k8s.io/0123/options.json";
    for state in ["run/k3s/containerd", "var/snap/microk8s/common/run/containerd"] {
        let scripts = Scripts::new();
        assert!(!scripts.says("onload_ctk_running"), "{state}");
        scripts.write(&format!("{state}/{id}"), &scripts.wrapper());
        assert!(scripts.says("onload_ctk_running"), "{state}");
    }
}

#[test]
fn a_containerd_that_stops_answering_has_containers_of_ours() {
    let scripts = Scripts::new();
    let database = "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db";
    let recorded = |namespaces: &str, ids: &str, info: &str| {
        let program =
            format!("case $* in *namespaces*) {namespaces} ;; *info*) {info} ;; *) {ids} ;; esac");
        scripts.program("stand-ins/ctr", &program);
        scripts.says("onload_ctk_recorded")
    };
    assert!(!recorded("exit 1", "exit 1", "exit 1"));
    scripts.write(database, &scripts.wrapper());
    let encoded = |path: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-c", "printf %s \"$0\" | base64 -w0", path]);
        String::from_utf8(sh.output().unwrap().stdout).unwrap()
    };
    let info = |path: &str| format!("echo '   \"value\": \"{}\"'", encoded(path));
    let (ours, other) = (info(&scripts.wrapper()), info("/usr/bin/runc"));
    assert!(recorded("echo default", "echo c1 c2", &ours));
    assert!(!recorded("echo default", "echo c1 c2", &other));
    assert!(!recorded("echo default", "true", "exit 1"));
    for (namespaces, ids, info) in [
        ("exit 1", "echo c1", &other[..]),
        ("echo default", "exit 1", &other),
        ("echo default", "echo c1; exit 1", &other),
        ("echo default", "echo c1", "exit 1"),
    ] {
        assert!(recorded(namespaces, ids, info), "{namespaces}, {ids}, {info}");
    }
}

#[test]
fn an_rpm_starts_the_units_that_are_enabled_and_no_other() {
    for (versions, enabled, does) in [
        ("1", "path timer service", "preset restart:path restart:timer start:service"),
        // The administrator's preset disables them.
        ("1", "", "preset"),
        ("2", "path timer service", "restart:path restart:timer start:service"),
        ("2", "path service", "restart:path start:service"),
        ("2", "timer", "restart:timer"),
        ("2", "", ""),
    ] {
        let scripts = Scripts::new();
        fs::create_dir_all(scripts.path("run/systemd/system")).unwrap();
        let program = format!(
            "case $* in
            *is-enabled*) for unit in {enabled} none; do [ onload-cdi.$unit = \"$3\" ] && exit 0; done; exit 1 ;;
            preset*) printf 'preset ' >>log ;;
            daemon-reload) ;;
            *) for unit in $*; do case $unit in onload-cdi.*) printf '%s ' $1:${{unit#*.}} >>log ;; esac; done ;;
            esac"
        );
        scripts.program("stand-ins/systemctl", &program);
        scripts.write("log", "");
        scripts.done(&read("rpm/post.sh"), &[versions]);
        let done = fs::read_to_string(scripts.path("log")).unwrap();
        assert_eq!(done.trim_end(), does, "{versions}: {enabled}");
    }
}

#[test]
fn a_first_installation_ends_with_the_next_command_and_an_upgrade_says_nothing() {
    let scripts = Scripts::new();
    for program in ["systemctl", "deb-systemd-helper", "deb-systemd-invoke"] {
        scripts.program(&format!("stand-ins/{program}"), "exit 0");
    }
    scripts.write("usr/share/onload-ctk/config.toml", "");
    let next = "onload-ctk: run \"onload-ctk\" to see what this host offers and what to do next\n";
    for (script, arguments, message) in [
        ("deb/postinst", &["configure", ""][..], next),
        ("deb/postinst", &["configure"], next),
        ("deb/postinst", &["configure", "0.1.0-1"], ""),
        ("deb/postinst", &["abort-upgrade", "0.1.0-1"], ""),
        ("deb/postinst", &["abort-remove"], ""),
        ("rpm/post.sh", &["1"], next),
        ("rpm/post.sh", &["2"], ""),
    ] {
        let output = scripts.sh(&read(script), arguments);
        assert!(output.status.success(), "{script} {arguments:?}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert_eq!(stdout, message, "{script} {arguments:?}");
    }
}

#[test]
fn debian_s_configuration_is_made_by_the_first_installation_and_goes_with_a_purge() {
    let scripts = Scripts::new();
    for program in ["systemctl", "deb-systemd-helper", "deb-systemd-invoke"] {
        scripts.program(&format!("stand-ins/{program}"), "exit 0");
    }
    let now = || fs::read_to_string(scripts.path(CONFIG)).ok();
    scripts.write("usr/share/onload-ctk/config.toml", "# all\n");
    for (arguments, before, after) in [
        (&["configure", ""][..], None, Some("# all\n")),
        (&["configure"], Some("# mine\n"), Some("# mine\n")),
        (&["configure", "0.1.0-1"], Some("# mine\n"), Some("# mine\n")),
        (&["configure", "0.1.0-1"], None, None),
        (&["abort-remove"], None, None),
    ] {
        match before {
            Some(text) => scripts.write(CONFIG, text),
            None => drop(fs::remove_file(scripts.path(CONFIG))),
        }
        scripts.done(&read("deb/postinst"), arguments);
        assert_eq!(now().as_deref(), after, "{arguments:?} {before:?}");
    }
    scripts.write(CONFIG, "# mine\n");
    scripts.done(&read("deb/postrm"), &["remove"]);
    assert!(now().is_some());
    scripts.done(&read("deb/postrm"), &["purge"]);
    assert!(!scripts.path("etc/onload-ctk").exists());
}

/// Whoever may run the programs has to reach them, and podman of any user reads what lies below /etc.
#[test]
fn a_tarball_s_directories_are_open_whatever_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let scripts = Scripts::new();
    let files = ["etc/onload-ctk/config.toml", "usr/share/a/b/file"];
    for file in files {
        scripts.write(&format!("root/{file}"), "");
    }
    let destination = scripts.path("installed");
    scripts.write("install", &read("tarball/install").replace("#COMMON#", ""));
    let line = "umask 077; export DESTDIR=$PWD/installed; sh ./install";
    let mut sh = Command::new("sh");
    let ran = sh.args(["-c", line]).current_dir(scripts.path("")).status();
    assert!(ran.unwrap().success());
    for file in files {
        let path = destination.join(file);
        assert!(path.is_file());
        let above = path.ancestors().skip(1);
        for directory in above.take_while(|above| above.starts_with(&destination)) {
            let mode = fs::metadata(directory).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o755, "{}", directory.display());
        }
    }
}

#[test]
fn no_removal_takes_the_lease_of_a_container_that_may_run() {
    const LEASE: &str = "run/onload-ctk/@leases/vfio=0000:81:10.0#0";
    for (script, argument) in
        [("deb/postrm", "purge"), ("rpm/postun.sh", "0"), ("tarball/install", "--remove")]
    {
        let scripts = Scripts::new();
        for program in ["systemctl", "deb-systemd-helper", "onload-ctk"] {
            scripts.program(&format!("stand-ins/{program}"), "");
        }
        scripts.write(LEASE, "{}");
        fs::create_dir_all(scripts.path("root")).unwrap();
        scripts.done(&read(script), &[argument]);
        assert!(scripts.path(LEASE).exists(), "{script} {argument}");
    }
}

#[test]
fn no_removal_takes_the_lock_of_a_daemon_that_may_run() {
    const LOCKS: [&str; 2] = ["device-plugin", "spec-writer"];
    for (script, argument) in [
        ("deb/prerm", "remove"),
        ("deb/postrm", "purge"),
        ("rpm/preun.sh", "0"),
        ("rpm/postun.sh", "0"),
        ("tarball/install", "--remove"),
    ] {
        let scripts = Scripts::new();
        for program in ["systemctl", "deb-systemd-helper", "deb-systemd-invoke", "onload-ctk"] {
            scripts.program(&format!("stand-ins/{program}"), "");
        }
        for lock in LOCKS.into_iter().chain(["containers"]) {
            scripts.write(&format!("run/onload-ctk/@locks/{lock}"), "");
        }
        fs::create_dir_all(scripts.path("root")).unwrap();
        scripts.done(&read(script), &[argument]);
        let left = names_in(&scripts.path("run/onload-ctk/@locks"));
        assert_eq!(left, LOCKS, "{script} {argument}");
    }
}

#[test]
fn the_last_step_of_each_removal_takes_records_and_locks() {
    for (script, argument, goes) in [
        ("deb/postrm", "purge", true),
        ("deb/postrm", "remove", false),
        ("deb/postrm", "upgrade", false),
        ("rpm/postun.sh", "0", true),
        ("rpm/postun.sh", "1", false),
        ("tarball/install", "--remove", true),
    ] {
        let scripts = Scripts::new();
        for program in ["systemctl", "deb-systemd-helper", "onload-ctk"] {
            scripts.program(&format!("stand-ins/{program}"), "");
        }
        fs::create_dir_all(scripts.path("run/onload-ctk/@locks")).unwrap();
        scripts.write("run/onload-ctk/@leases/.lock", "");
        let record = scripts.path("run/onload-ctk/@runtimes/c1@1");
        std::os::unix::fs::symlink("1:/usr/bin/runc", record).unwrap();
        // Where the tarball was unpacked.
        fs::create_dir_all(scripts.path("root")).unwrap();
        scripts.done(&read(script), &[argument]);
        let left = names_in(&scripts.path("run/onload-ctk"));
        let kept: &[&str] = match goes {
            true => &[],
            false => &["@leases", "@locks", "@runtimes"],
        };
        assert_eq!(left, kept, "{script} {argument}");
        assert_eq!(scripts.path("run/onload-ctk").exists(), !goes, "{script} {argument}");
    }
}
