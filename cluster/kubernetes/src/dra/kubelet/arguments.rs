//! The topology policy of kubelet and one of its feature gates, by its arguments and the files that they name. The right
//! to ask the API server for a kubelet's configuration (`nodes/proxy`) would be that to run commands in its pods.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use onload_host::host::{EntryKind, Host};
use onload_sys::text::{Quoted, to_one_line};
use serde::Deserialize;

/// The policy of a kubelet that aligns nothing, which is the default.
pub(super) const NO_POLICY: &str = "none";

/// By which kubelet gives pods what DRA has of a resource that they ask for by its name.
pub(super) const GATE: &str = "DRAExtendedResource";

/// How deep drop-in files are looked for; kubelet follows no links there, so nothing is deeper.
const DEPTH: usize = 16;
const MOST_FILES: usize = 256;

/// What of a `KubeletConfiguration` matters.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    topology_manager_policy: Option<String>,
    feature_gates: Option<BTreeMap<String, bool>>,
}

/// What a kubelet was told; none of what it was not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) policy: Option<String>,
    pub(super) gate: Option<bool>,
}

/// The settings of the kubelet that is this process, or why they are not known.
pub(super) fn settings(host: &Host, pid: u32) -> Result<Settings> {
    let path = PathBuf::from(format!("/proc/{pid}/cmdline"));
    let text = host.text(&path)?.unwrap_or_default();
    let mut arguments = text.split_terminator('\0');
    let program = arguments.next().unwrap_or_default();
    if Path::new(program).file_name().is_none_or(|name| name != "kubelet") {
        bail!("process {pid} is {}, and not kubelet", Quoted(program));
    }
    let flags = Flags::of(arguments);
    let mut files = Vec::new();
    if let Some(directory) = flags.config_dir {
        let directory = absolute(host, pid, directory)?;
        drop_ins(host, &directory, DEPTH, &mut files)?;
    }
    // The last file wins, and each of them over the one that all begins with.
    files.reverse();
    if let Some(config) = flags.config {
        files.push(absolute(host, pid, config)?);
    }
    let mut found = Settings { policy: flags.policy.map(str::to_owned), gate: flags.gate };
    for file in files {
        let of_file = settings_in(host, &file)?;
        found.policy = found.policy.or(of_file.policy);
        found.gate = found.gate.or(of_file.gate);
    }
    Ok(found)
}

/// The flags that matter, the last of each.
#[derive(Default)]
struct Flags<'a> {
    policy: Option<&'a str>,
    config: Option<&'a str>,
    config_dir: Option<&'a str>,
    gate: Option<bool>,
}

impl<'a> Flags<'a> {
    /// As pflag reads them: `--NAME=VALUE` or `--NAME VALUE`, and kubelet takes `_` for `-`.
    fn of(mut arguments: impl Iterator<Item = &'a str>) -> Self {
        let mut flags = Flags::default();
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix("--") else {
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            let mut value = || value.or_else(|| arguments.next());
            let target = match name.replace('_', "-").as_str() {
                "topology-manager-policy" => &mut flags.policy,
                "config" => &mut flags.config,
                "config-dir" => &mut flags.config_dir,
                "feature-gates" => {
                    flags.gate = value().and_then(gate_in).or(flags.gate);
                    continue;
                }
                _ => continue,
            };
            // An empty one is as none.
            *target = value().filter(|value| !value.is_empty());
        }
        flags
    }
}

/// The gate in a list such as `A=true,B=false`.
fn gate_in(list: &str) -> Option<bool> {
    let mut pairs = list.split(',').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.rfind(|(name, _)| name.trim() == GATE)?;
    Some(["1", "t", "true"].contains(&value.trim().to_lowercase().as_str()))
}

/// Kubelet stays in the directory that it was started in.
fn absolute(host: &Host, pid: u32, path: &str) -> Result<PathBuf> {
    if Path::new(path).is_absolute() {
        return Ok(path.into());
    }
    let link = PathBuf::from(format!("/proc/{pid}/cwd"));
    let directory = host.link(&link)?;
    let directory = directory.with_context(|| {
        let path = Quoted(path);
        format!("{path} is no absolute path, and there is no {}", link.display())
    })?;
    Ok(directory.join(path))
}

/// The files of a configuration directory in the order in which kubelet merges them: those whose names end in `.conf`,
/// of its subdirectories too.
fn drop_ins(host: &Host, directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    for name in host.list(directory)?.names {
        let path = directory.join(&name);
        match host.entry(&path)? {
            Some(EntryKind::Directory) if depth > 0 => drop_ins(host, &path, depth - 1, files)?,
            _ if path.extension().is_some_and(|end| end == "conf") => files.push(path),
            _ => {}
        }
        if files.len() > MOST_FILES {
            bail!("{} has more than {MOST_FILES} files", directory.display());
        }
    }
    Ok(())
}

fn settings_in(host: &Host, path: &Path) -> Result<Settings> {
    let shown = path.display();
    let text = host.text(path)?.with_context(|| format!("there is no {shown}"))?;
    let configuration: Configuration = serde_saphyr::from_str(&text)
        .map_err(|error| anyhow!("reading {shown}: {}", to_one_line(&error.to_string())))?;
    let policy = configuration.topology_manager_policy;
    let gates = configuration.feature_gates.unwrap_or_default();
    Ok(Settings {
        policy: policy.filter(|policy| !policy.is_empty()),
        gate: gates.get(GATE).copied(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PID: u32 = 812;
    /// As kubeadm starts it (its unit's arguments and /var/lib/kubelet/config.yaml, shortened).
    const KUBEADM: [&str; 4] = [
        "/usr/bin/kubelet",
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
    ];
    const CONFIG: &str = "/var/lib/kubelet/config.yaml";
    const YAML: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nauthentication:\n  anonymous:\n    enabled: false\ncgroupDriver: systemd\nkind: KubeletConfiguration\n";

    fn settings_of(arguments: &[&str], files: &[(&str, &str)]) -> Result<Settings, String> {
        let root = tempfile::tempdir().unwrap();
        let cmdline = format!("{}\0", arguments.join("\0"));
        let proc = format!("/proc/{PID}/cmdline");
        for (path, text) in files.iter().copied().chain([(proc.as_str(), cmdline.as_str())]) {
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        settings(&Host::open(root.path()).unwrap(), PID).map_err(|error| format!("{error:#}"))
    }

    fn policy(arguments: &[&str], files: &[(&str, &str)]) -> Result<String, String> {
        let settings = settings_of(arguments, files)?;
        Ok(settings.policy.unwrap_or_else(|| NO_POLICY.to_owned()))
    }

    fn with(policy: &str) -> String {
        format!("{YAML}topologyManagerPolicy: {policy}\n")
    }

    #[test]
    fn a_kubelet_that_says_nothing_of_it_has_no_policy() {
        assert_eq!(policy(&["kubelet"], &[]).unwrap(), "none");
        assert_eq!(policy(&KUBEADM, &[(CONFIG, YAML)]).unwrap(), "none");
        assert_eq!(policy(&KUBEADM, &[(CONFIG, &with("none"))]).unwrap(), "none");
        assert_eq!(policy(&KUBEADM, &[(CONFIG, &with("\"\""))]).unwrap(), "none");
    }

    #[test]
    fn a_policy_of_the_configuration_file_is_found_in_yaml_and_json() {
        let json = r#"{"kind": "KubeletConfiguration", "topologyManagerPolicy": "restricted"}"#;
        assert_eq!(policy(&KUBEADM, &[(CONFIG, json)]).unwrap(), "restricted");
        let yaml = with("single-numa-node");
        assert_eq!(policy(&KUBEADM, &[(CONFIG, &yaml)]).unwrap(), "single-numa-node");
    }

    #[test]
    fn an_argument_goes_before_every_file() {
        let yaml = with("single-numa-node");
        for flag in [
            &["--topology-manager-policy=none"][..],
            &["--topology_manager_policy", "none"],
            &["--topology-manager-policy=best-effort", "--topology-manager-policy=none"],
        ] {
            let arguments = [&KUBEADM, flag].concat();
            assert_eq!(policy(&arguments, &[(CONFIG, &yaml)]).unwrap(), "none", "{flag:?}");
        }
        assert_eq!(
            policy(&["kubelet", "--topology-manager-policy", "best-effort"], &[]).unwrap(),
            "best-effort"
        );
    }

    #[test]
    fn the_last_drop_in_file_that_names_one_wins() {
        let arguments = [&KUBEADM[..], &["--config-dir", "/etc/kubelet.d"]].concat();
        let (none, strict) = (with("none"), with("single-numa-node"));
        let files = |of_drop_ins: &[(&'static str, &str)]| {
            let mut files: Vec<(&str, &str)> = vec![(CONFIG, &none)];
            files.extend(of_drop_ins);
            policy(&arguments, &files).unwrap()
        };
        assert_eq!(files(&[]), "none");
        assert_eq!(files(&[("/etc/kubelet.d/10-a.conf", &strict)]), "single-numa-node");
        assert_eq!(files(&[("/etc/kubelet.d/sub/10.conf", &strict)]), "single-numa-node");
        assert_eq!(files(&[("/etc/kubelet.d/10-a.yaml", &strict)]), "none");
        let two = [
            ("/etc/kubelet.d/10-a.conf", strict.as_str()),
            ("/etc/kubelet.d/20-b.conf", &none),
            ("/etc/kubelet.d/30-c.conf", YAML),
        ];
        assert_eq!(files(&two), "none");
    }

    #[test]
    fn a_path_is_relative_to_the_directory_that_kubelet_was_started_in() {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path().join(format!("proc/{PID}"));
        fs::create_dir_all(&proc).unwrap();
        fs::create_dir_all(root.path().join("srv/kubelet")).unwrap();
        fs::write(proc.join("cmdline"), "kubelet\0--config\0config.yaml\0").unwrap();
        fs::write(root.path().join("srv/kubelet/config.yaml"), with("restricted")).unwrap();
        std::os::unix::fs::symlink("/srv/kubelet", proc.join("cwd")).unwrap();
        let host = Host::open(root.path()).unwrap();
        let policy = settings(&host, PID).unwrap().policy;
        assert_eq!(policy.as_deref(), Some("restricted"));
    }

    #[test]
    fn a_feature_gate_is_as_the_last_place_says_that_names_it() {
        let gate = |arguments: &[&str], yaml: &str| {
            let arguments = [&KUBEADM, arguments].concat();
            settings_of(&arguments, &[(CONFIG, yaml)]).unwrap().gate
        };
        let with = |gates: &str| format!("{YAML}featureGates: {gates}\n");
        assert_eq!(gate(&[], YAML), None);
        assert_eq!(gate(&[], &with("")), None);
        assert_eq!(gate(&[], &with("{NodeSwap: true}")), None);
        let (on, off) = (
            with("{NodeSwap: false, DRAExtendedResource: true}"),
            with("{DRAExtendedResource: false}"),
        );
        assert_eq!(gate(&[], &on), Some(true));
        assert_eq!(gate(&[], &off), Some(false));
        let flag = "--feature-gates=NodeSwap=true,DRAExtendedResource=false";
        assert_eq!(gate(&[flag], &on), Some(false));
        assert_eq!(gate(&["--feature-gates", "NodeSwap=true"], &on), Some(true));
        let twice =
            ["--feature_gates", "DRAExtendedResource=True", "--feature-gates=NodeSwap=true"];
        assert_eq!(gate(&twice, &off), Some(true));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let broken = with("[");
        for (arguments, files, why) in [
            (&["k3s", "server"][..], &[][..], "is \"k3s\", and not kubelet"),
            (&[""], &[], "is \"\", and not kubelet"),
            (
                &["kubelet", "--config", "config.yaml"],
                &[],
                "is no absolute path, and there is no /proc/812/cwd",
            ),
            (&KUBEADM, &[], "there is no /var/lib/kubelet/config.yaml"),
            (&KUBEADM, &[(CONFIG, broken.as_str())], "reading /var/lib/kubelet/config.yaml"),
        ] {
            let line = policy(arguments, files).unwrap_err();
            assert!(line.contains(why), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }
}
