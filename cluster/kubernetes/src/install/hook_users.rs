//! Finds files that still name the hook of a version: specifications, bundles of containers, and the records of OCI
//! runtimes. Specifications are searched for the path of the version's directory. In a container's files only its hooks
//! count, since a pod's owner chooses the rest; if they cannot be parsed, the whole file is searched.
//!
//! Containers of users' own engines are not searched. Their runtimes have read the configuration already, and their
//! hooks have nothing to release at the end: only root's containers have leases.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memchr::memmem;
use onload_cdi::DEFAULT_DIRS;
use onload_engines::container_dirs::{self, ContainerDirs};
use onload_host::host::{Host, HostError};
use onload_host::leases;
use serde::Deserialize;

/// Limit for a searched file in bytes: no container configuration is longer.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The state file of runc, and crun's copy of the bundle's configuration.
const STATES: [&str; 2] = ["state.json", "config.json"];

/// The files and containers that name each version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HookUsers {
    named: BTreeMap<String, BTreeSet<PathBuf>>,
    /// Files that could not be read, with the reason. They may name any version.
    unread: BTreeSet<String>,
}

impl HookUsers {
    /// Describes what names a version, for a message. `None` if nothing does.
    pub(super) fn describe(&self, version: &str) -> Option<String> {
        let Some(files) = self.named.get(version) else {
            let unread = self.unread.first()?;
            return Some(format!("could not determine whether a container uses it: {unread}"));
        };
        let first = files.first()?.display();
        Some(match files.len() - 1 {
            0 => format!("{first} names it"),
            more => format!("{first} and {more} more use it"),
        })
    }

    #[cfg(test)]
    pub(super) fn with_user(version: &str, file: &str) -> Self {
        let files = BTreeSet::from([PathBuf::from(file)]);
        HookUsers { named: BTreeMap::from([(version.to_owned(), files)]), unread: BTreeSet::new() }
    }
}

/// Finds everything that names one of these versions' directories below `directory`.
pub(super) fn find(host: &Host, directory: &Path, versions: &[&str]) -> HookUsers {
    let mut users = HookUsers::default();
    if versions.is_empty() {
        return users;
    }
    let texts: Vec<(&str, String)> = versions
        .iter()
        .map(|version| (*version, format!("{}/{version}/", directory.display())))
        .collect();
    for (file, is_specification) in candidate_files(host, &mut users) {
        let bytes = match host.bytes(&file, MAX_BYTES) {
            Ok(bytes) => bytes.unwrap_or_default(),
            // A directory among files.
            Err(error) if is_wrong_file_type(&error) => continue,
            Err(error) => {
                users.unread.insert(format_chain(error));
                continue;
            }
        };
        let hooks = if is_specification { None } else { parse_hooks(&bytes) };
        let names = |text: &str| match &hooks {
            Some(paths) => paths.iter().any(|path| path.starts_with(text)),
            None => memmem::find(&bytes, text.as_bytes()).is_some(),
        };
        for (version, text) in &texts {
            if names(text) {
                let of_version = users.named.entry((*version).to_owned()).or_default();
                of_version.insert(file.clone());
            }
        }
    }
    users
}

/// The parsed part of a container's configuration (runtime-spec, `config.json`), or of runc's state, which contains the
/// same under `config` (libcontainer, `State` and `Config`).
#[derive(Debug, Deserialize)]
struct HookedConfig {
    #[serde(default, alias = "Hooks")]
    hooks: Option<HookMap>,
    #[serde(default)]
    config: Option<Box<HookedConfig>>,
}

type HookMap = BTreeMap<String, Option<Vec<HookPath>>>;

#[derive(Debug, Deserialize)]
struct HookPath {
    #[serde(default)]
    path: String,
}

/// Returns the paths of a container's hooks, or `None` if the file cannot be parsed.
fn parse_hooks(bytes: &[u8]) -> Option<Vec<String>> {
    let container: HookedConfig = serde_json::from_slice(bytes).ok()?;
    let of_state = container.config.and_then(|state| state.hooks);
    let hooks = container
        .hooks
        .into_iter()
        .chain(of_state)
        .flat_map(BTreeMap::into_values)
        .flatten()
        .flatten();
    Some(hooks.map(|hook| hook.path).collect())
}

fn format_chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

fn is_wrong_file_type(error: &HostError) -> bool {
    matches!(error, HostError::Read { .. }) && error.unread_path().is_none()
}

/// Returns the files that may name a hook, and whether each is a specification, which only root writes.
fn candidate_files(host: &Host, users: &mut HookUsers) -> BTreeMap<PathBuf, bool> {
    let mut names = |path: &Path| -> Vec<PathBuf> {
        match container_dirs::list(host, path) {
            Ok(names) => names,
            // A file among directories.
            Err(error) if is_wrong_file_type(&error) => Vec::new(),
            Err(error) => {
                users.unread.insert(format_chain(error));
                Vec::new()
            }
        }
    };
    let specifications = DEFAULT_DIRS.map(|dir| names(Path::new(dir)));
    let mut files: BTreeSet<PathBuf> = BTreeSet::new();
    let dirs = ContainerDirs::read(host);
    for namespace in dirs.list_tasks(&mut names) {
        files.extend(names(&namespace).iter().map(|id| id.join("config.json")));
    }
    for driver in dirs.list_storage(&mut names) {
        let ids = names(&driver);
        files.extend(ids.iter().map(|id| id.join("userdata/config.json")));
    }
    let runtimes = dirs.list_runtimes(&mut names);
    let containers: Vec<PathBuf> = runtimes.iter().flat_map(|dir| names(dir)).collect();
    for container in containers {
        files.extend(STATES.map(|name| container.join(name)));
    }
    files.extend(lease_bundles(host, users));
    let files = files.into_iter().map(|path| (path, false));
    let specifications = specifications.into_iter().flatten().map(|path| (path, true));
    files.chain(specifications).collect()
}

fn lease_bundles(host: &Host, users: &mut HookUsers) -> Vec<PathBuf> {
    let entries = leases::list(host).unwrap_or_else(|error| {
        users.unread.insert(format_chain(error));
        Vec::new()
    });
    let mut files = Vec::new();
    for entry in entries {
        match entry.lease {
            Ok(lease) => files.push(lease.bundle.join("config.json")),
            Err(why) => {
                let unread = format!("the lease of {}: {why}", entry.device);
                users.unread.insert(unread);
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;

    fn started() -> Tree {
        let tree = Tree::new();
        tree.boot("b");
        tree
    }

    fn find_on(tree: &Tree, versions: &[&str]) -> HookUsers {
        let host = Host::open(tree.root()).unwrap();
        find(&host, Path::new("/opt/onload-ctk"), versions)
    }

    const NAMES_IT: &str =
        r#"{"hooks":{"poststop":[{"path":"/opt/onload-ctk/0.1.0/onload-hook"}]}}"#;

    #[test]
    fn a_version_is_in_use_where_any_engine_keeps_its_containers() {
        for path in [
            "etc/cdi/site.yaml",
            "var/run/cdi/onload.dev-rdma.json",
            "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json",
            "run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json",
            "run/k0s/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json",
            "var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json",
            "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/c1/config.json",
            "var/lib/containers/storage/overlay-containers/c1/userdata/config.json",
            "run/containers/storage/overlay-containers/c1/userdata/config.json",
            "run/runc/c1/state.json",
            "run/containerd/runc/k8s.io/c1/state.json",
            "run/docker/runtime-runc/moby/c1/state.json",
            "run/crun/c1/config.json",
        ] {
            let tree = started();
            tree.file(path, NAMES_IT);
            let users = find_on(&tree, &["0.1.0", "0.2.0"]);
            assert_eq!(users, HookUsers::with_user("0.1.0", &format!("/{path}")), "{path}");
            assert_eq!(users.describe("0.1.0").unwrap(), format!("/{path} names it"));
            assert_eq!(users.describe("0.2.0"), None);
        }
    }

    #[test]
    fn a_container_that_names_a_version_anywhere_but_in_its_hooks_does_not_use_it() {
        let bundle = "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json";
        let state = "run/containerd/runc/k8s.io/c1/state.json";
        let path = "/opt/onload-ctk/0.1.0/onload-hook";
        let stages = format!(r#"{{"createRuntime":null,"poststop":[{{"path":"{path}"}}]}}"#);
        let elsewhere = format!(
            r#"{{"poststop":[{{"path":"/bin/true","args":["{path}"],"env":["X={path}"]}}]}}"#
        );
        for (file, text, is_used) in [
            (
                bundle,
                format!(
                    r#"{{"process":{{"env":["X={path}"]}},"annotations":{{"hooks":"{path}"}}}}"#
                ),
                false,
            ),
            (bundle, format!(r#"{{"hooks":{elsewhere}}}"#), false),
            (bundle, format!(r#"{{"hooks":null,"process":{{"hooks":{stages}}}}}"#), false),
            (bundle, format!(r#"{{"hooks":{stages}}}"#), true),
            (state, format!(r#"{{"config":{{"Hooks":{elsewhere},"labels":["{path}"]}}}}"#), false),
            (state, format!(r#"{{"config":{{"Hooks":{stages}}}}}"#), true),
            // A file that cannot be parsed may name it.
            (bundle, format!(r#"{{"hooks":["{path}"]}}"#), true),
            (bundle, format!(r#"{{"process":{{"env":["X={path}"#), true),
        ] {
            let tree = started();
            tree.file(file, &text);
            let users = find_on(&tree, &["0.1.0"]);
            assert_eq!(users.describe("0.1.0").is_some(), is_used, "{text}");
        }
    }

    #[test]
    fn a_version_is_in_use_by_the_bundle_of_a_lease_wherever_that_is() {
        let tree = started();
        tree.file("srv/bundles/c1/config.json", NAMES_IT);
        assert_eq!(find_on(&tree, &["0.1.0"]), HookUsers::default());
        let lease = r#"{"version":1,"class":"vfio","name":"a","slot":0,"boot":"b","container":"c1","bundle":"/srv/bundles/c1",
            "holder":{"init":{"process":{"pid":1,"startTime":7,"pidNamespace":9}}},"entryPoint":"createRuntime","since":1}"#;
        tree.file("run/onload-ctk/@leases/vfio=a#0", lease);
        assert_eq!(
            find_on(&tree, &["0.1.0"]),
            HookUsers::with_user("0.1.0", "/srv/bundles/c1/config.json")
        );
    }

    #[test]
    fn a_lease_that_is_not_understood_may_be_of_any_version() {
        let tree = started();
        tree.file("run/onload-ctk/@leases/vfio=a#0", "{\"version\":9}");
        let users = find_on(&tree, &["0.1.0"]).describe("0.1.0").unwrap();
        assert!(
            users.starts_with(
                "could not determine whether a container uses it: the lease of vfio:a"
            ),
            "{users}"
        );
    }

    #[test]
    fn a_configuration_that_cannot_be_read_may_name_any_version() {
        let tree = started();
        let path = "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json";
        tree.file(path, "");
        std::fs::File::options()
            .write(true)
            .open(tree.path(path))
            .unwrap()
            .set_len(MAX_BYTES + 1)
            .unwrap();
        let users = find_on(&tree, &["0.1.0"]).describe("0.1.0").unwrap();
        assert!(users.contains("longer than 16777216 bytes"), "{users}");
    }

    #[test]
    fn another_version_that_begins_alike_is_not_meant() {
        let tree = started();
        tree.file(
            "var/run/cdi/a.json",
            "/opt/onload-ctk/0.1.0-rc.1/onload-hook /srv/opt/onload-ctk/0.1.1",
        );
        let users = find_on(&tree, &["0.1.0", "0.1.0-rc.1", "0.1.1"]);
        assert_eq!((users.describe("0.1.0"), users.describe("0.1.1")), (None, None));
        assert!(users.describe("0.1.0-rc.1").is_some());
    }

    #[test]
    fn a_link_out_of_the_host_is_not_followed() {
        let (tree, outside) = (started(), started());
        outside.file("c1/config.json", NAMES_IT);
        tree.directory("run/containerd");
        let tasks = "run/containerd/io.containerd.runtime.v2.task";
        tree.link(tasks, outside.root().to_str().unwrap());
        assert_eq!(find_on(&tree, &["0.1.0"]), HookUsers::default());
    }

    #[test]
    fn a_host_without_containers_has_no_users() {
        assert_eq!(find_on(&started(), &["0.1.0"]).describe("0.1.0"), None);
    }
}
