//! Containers that have recorded the runtime `onload`, as the engines store it on disk. An engine
//! finds a container's runtime through that record, so the recorded runtime has to work until the
//! last such container is gone.
//!
//! docker stores the name (`HostConfig.Runtime`) and starts a stopped container with it (moby,
//! `daemon/start.go`). podman stores the name and can neither stop nor remove a running container
//! whose name it does not find (podman, `libpod/sqlite_state_internal.go`, `finalizeCtrSqlite`);
//! nor can CRI-O. containerd's CRI stores it for the pod's sandbox, and needs it again for each
//! further container of the pod (containerd, `internal/cri/server/container_create.go`).

use std::fmt;

use onload_core::container_id;
use onload_core::pod::AnnotatedConfig;
use onload_sys::text::{format_count, join_first};
use serde_json::Value;

use crate::our_runtime::{RUNTIME_NAME, RUNTIME_PATH};

const MAX_SHOWN: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeContainer {
    pub id: String,
    pub name: String,
}

impl RuntimeContainer {
    fn new(id: &str, name: &str) -> Self {
        RuntimeContainer { id: id.to_owned(), name: name.to_owned() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeUse {
    By(Vec<RuntimeContainer>),
    /// A setting makes it the default: without it, the engine does not start, or starts nothing.
    Default(&'static str),
    /// It counts as held; the reason.
    Unknown(String),
}

impl RuntimeUse {
    pub fn is_in_use(&self) -> bool {
        *self != RuntimeUse::By(Vec::new())
    }
}

impl fmt::Display for RuntimeUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let containers = match self {
            RuntimeUse::Unknown(reason) => {
                return write!(f, "which containers use it could not be determined: {reason}");
            }
            RuntimeUse::Default(key) => {
                return write!(f, "{key} makes it the default; set another");
            }
            RuntimeUse::By(containers) => containers,
        };
        let each = containers.iter().map(|container| {
            let short = container_id::short_id(&container.id);
            match container.name.as_str() {
                "" => short.to_owned(),
                // The name of a user's own container may contain line breaks too.
                name => format!("{} ({short})", name.escape_debug()),
            }
        });
        let names = join_first(&each.collect::<Vec<_>>(), MAX_SHOWN);
        let (one, many) = ("container of it is", "containers of it are");
        let count = format_count(containers.len(), one, many);
        write!(f, "{count} left, to be removed first: {names}")
    }
}

/// A docker container, from its `hostconfig.json` and its `config.v2.json`; `None` if it has
/// another runtime. Docker loads no container whose files it cannot parse.
pub fn from_docker(id: &str, host_config: &[u8], config: &[u8]) -> Option<RuntimeContainer> {
    let host_config: Value = serde_json::from_slice(host_config).ok()?;
    if host_config["Runtime"] != RUNTIME_NAME {
        return None;
    }
    let config: Value = serde_json::from_slice(config).unwrap_or_default();
    let name = config["Name"].as_str().unwrap_or_default();
    Some(RuntimeContainer::new(id, name.trim_start_matches('/')))
}

fn find_annotation<'a>(config: &'a AnnotatedConfig, key: &str) -> &'a str {
    config.annotations.get(key).map_or("", String::as_str)
}

/// A pod's sandbox, from the `config.json` that CRI-O keeps with the container's storage; `None` if it has another
/// handler, belongs to podman, or is another container of a pod: of that CRI-O writes no handler, and the pod may.
pub fn from_crio(id: &str, config: &[u8]) -> Option<RuntimeContainer> {
    let config: AnnotatedConfig = serde_json::from_slice(config).ok()?;
    let is_sandbox = find_annotation(&config, "io.kubernetes.cri-o.SandboxID") == id;
    let handler = find_annotation(&config, "io.kubernetes.cri-o.RuntimeHandler");
    (is_sandbox && handler == RUNTIME_NAME)
        .then(|| RuntimeContainer::new(id, find_annotation(&config, "io.kubernetes.cri-o.Name")))
}

/// A container of containerd's CRI with a shim, from what the shim keeps in the bundle: its
/// options, which contain the path of the OCI runtime, and `config.json`.
pub fn from_containerd(id: &str, options: &[u8], config: &[u8]) -> Option<RuntimeContainer> {
    memchr::memmem::find(options, RUNTIME_PATH.as_bytes())?;
    let config: Option<AnnotatedConfig> = serde_json::from_slice(config).ok();
    let name = config.map(|config| {
        let pod = find_annotation(&config, "io.kubernetes.cri.sandbox-name");
        match find_annotation(&config, "io.kubernetes.cri.container-name") {
            "" => pod.to_owned(),
            container => format!("{pod}/{container}"),
        }
    });
    Some(RuntimeContainer::new(id, &name.unwrap_or_default()))
}

/// The format in which podman prints each container.
pub const PODMAN_FORMAT: &str = "{{.ID}} {{.OCIRuntime}} {{.Name}}";

pub fn from_podman(output: &str) -> Vec<RuntimeContainer> {
    let fields = output.lines().filter_map(|line| {
        let (id, rest) = line.split_once(' ')?;
        let (runtime, name) = rest.split_once(' ')?;
        (runtime == RUNTIME_NAME).then(|| RuntimeContainer::new(id, name))
    });
    fields.collect()
}

/// A container whose monitor is running, from the monitor's arguments: podman and CRI-O pass conmon
/// the path of the runtime, the id and the name (conmon(8)). There is no other way to see a user's
/// podman.
pub fn from_conmon(cmdline: &[u8]) -> Option<RuntimeContainer> {
    let words: Vec<&[u8]> = cmdline.split(|byte| *byte == 0).collect();
    let option_value = |options: [&[u8]; 2]| {
        let mut pairs = words.windows(2);
        pairs.find_map(|pair| match pair {
            [option, value] if options.contains(option) => Some(String::from_utf8_lossy(value)),
            _ => None,
        })
    };
    let program = words.first()?.rsplit(|byte| *byte == b'/').next()?;
    let runtime = option_value([b"-r", b"--runtime"])?;
    (program == b"conmon" && runtime == RUNTIME_PATH).then(|| {
        let id = option_value([b"-c", b"--cid"]).unwrap_or_default();
        RuntimeContainer::new(&id, &option_value([b"-n", b"--name"]).unwrap_or_default())
    })
}

/// Whether a monitor belongs to podman, which tells it what to run at the end.
pub fn is_podman_monitor(cmdline: &[u8]) -> bool {
    let mut words = cmdline.split(|byte| *byte == 0);
    words.any(|word| word == b"--exit-command")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_configuration_newer_than_the_types_of_oci_spec_still_names_its_container() {
        let config = r#"{"process":{"cwd":"/","user":{"uid":0,"gid":0},
            "capabilities":{"bounding":["CAP_OF_A_NEWER_KERNEL"]}},
            "annotations":{"io.kubernetes.cri-o.RuntimeHandler":"onload","io.kubernetes.cri-o.SandboxID":"c1",
            "io.kubernetes.cri-o.Name":"n"}}"#;
        assert!(serde_json::from_str::<oci_spec::runtime::Spec>(config).is_err());
        let holder = from_crio("c1", config.as_bytes());
        assert_eq!(holder, Some(RuntimeContainer::new("c1", "n")));
    }

    #[test]
    fn a_container_of_docker_holds_the_name_that_its_host_configuration_has() {
        let name = br#"{"ID":"01","Name":"/redis","State":{"Running":false}}"#;
        let ours = from_docker(ID, br#"{"Memory":0,"Runtime":"onload"}"#, name);
        assert_eq!(ours, Some(RuntimeContainer::new(ID, "redis")));
        assert_eq!(from_docker(ID, br#"{"Runtime":"runc"}"#, name), None);
        assert_eq!(from_docker(ID, br#"{"Runtime":"onload2"}"#, name), None);
        assert_eq!(from_docker(ID, b"{}", name), None);
        assert_eq!(from_docker(ID, b"{", name), None);
        let nameless = from_docker(ID, br#"{"Runtime":"onload"}"#, b"");
        assert_eq!(nameless, Some(RuntimeContainer::new(ID, "")));
    }

    #[test]
    fn a_sandbox_of_crio_holds_the_handler_that_its_annotation_has() {
        let config = |handler: &str, sandbox: &str| {
            format!(
                r#"{{"annotations":{{"io.kubernetes.cri-o.RuntimeHandler":"{handler}",
                "io.kubernetes.cri-o.SandboxID":"{sandbox}","io.kubernetes.cri-o.Name":"k8s_POD_pod"}}}}"#
            )
        };
        let ours = from_crio(ID, config("onload", ID).as_bytes());
        assert_eq!(ours, Some(RuntimeContainer::new(ID, "k8s_POD_pod")));
        assert_eq!(from_crio(ID, config("", ID).as_bytes()), None);
        // A pod's annotation for another of its containers.
        assert_eq!(from_crio(ID, config("onload", "c1").as_bytes()), None);
        assert_eq!(from_crio(ID, br#"{"annotations":{"onload.dev/nic":"all"}}"#), None);
    }

    #[test]
    fn a_container_of_containerd_holds_the_path_that_its_shim_has() {
        let config = br#"{"annotations":{"io.kubernetes.cri.sandbox-name":"pod","io.kubernetes.cri.container-name":"app"}}"#;
        let options = format!(r#"{{"binary_name":"{RUNTIME_PATH}","systemd_cgroup":true}}"#);
        let ours = from_containerd(ID, options.as_bytes(), config);
        assert_eq!(ours, Some(RuntimeContainer::new(ID, "pod/app")));
        assert_eq!(from_containerd(ID, br#"{"binary_name":"/usr/bin/runc"}"#, config), None);
        assert_eq!(from_containerd(ID, b"", config), None);
    }

    #[test]
    fn of_what_podman_prints_the_containers_of_our_name_count() {
        let printed = format!("{ID} onload redis\n{ID} crun web\n{ID} onload-2 x\n\nonload\n");
        assert_eq!(from_podman(&printed), [RuntimeContainer::new(ID, "redis")]);
        assert_eq!(from_podman(""), []);
    }

    #[test]
    fn a_monitor_tells_the_path_the_id_and_the_name() {
        let line = |program: &str, runtime: &str| {
            format!(
                "{program}\0--api-version\x001\0-c\0{ID}\0-u\0{ID}\0-r\0{runtime}\0-n\0redis\0--exit-command\0/usr/bin/podman\0"
            )
        };
        let ours = line("/usr/bin/conmon", RUNTIME_PATH);
        assert_eq!(from_conmon(ours.as_bytes()), Some(RuntimeContainer::new(ID, "redis")));
        assert!(is_podman_monitor(ours.as_bytes()));
        assert!(!is_podman_monitor(b"/usr/bin/conmon\0-r\0/usr/bin/runc\0"));
        assert_eq!(from_conmon(line("/usr/bin/conmon", "/usr/bin/crun").as_bytes()), None);
        assert_eq!(from_conmon(line("/bin/echo", RUNTIME_PATH).as_bytes()), None);
        assert_eq!(from_conmon(b""), None);
    }

    #[test]
    fn a_line_names_some_containers_and_counts_the_rest() {
        let default = RuntimeUse::Default("default-runtime").to_string();
        assert_eq!(default, "default-runtime makes it the default; set another");
        let one = RuntimeUse::By(vec![RuntimeContainer::new("ab", "")]);
        assert_eq!(one.to_string(), "1 container of it is left, to be removed first: ab");
        let odd =
            RuntimeUse::By(vec![RuntimeContainer::new("ab", "a\nerror: b\u{1b}")]).to_string();
        assert!(odd.ends_with(r"a\nerror: b\u{1b} (ab)"), "{odd}");
        let many = RuntimeUse::By(
            (0..7)
                .map(|number| {
                    RuntimeContainer::new(&format!("{number}{ID}"), &format!("c{number}"))
                })
                .collect(),
        );
        let text = many.to_string();
        assert!(
            text.starts_with("7 containers of it are left, to be removed first: c0 (001234567"),
            "{text}"
        );
        assert!(text.ends_with("and 2 more"), "{text}");
        assert!(many.is_in_use() && RuntimeUse::Unknown(String::new()).is_in_use());
        assert!(!RuntimeUse::By(Vec::new()).is_in_use());
    }
}
