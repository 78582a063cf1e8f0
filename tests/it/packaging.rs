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

/// A directory, the placeholder of a device in its files, and the files with that device.
type Examples = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Compose files and quadlets.
const EXAMPLES: [Examples; 2] = [
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
                    assert!(start.contains(&format!(" --device {device} ")), "{start}");
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

/// A script of the packages on a host of its own below a directory, with programs that stand in for those that it calls.
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

    /// What is said on stderr while it is done.
    #[track_caller]
    fn done(&self, text: &str, arguments: &[&str]) -> String {
        let output = self.sh(text, arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        stderr
    }
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
