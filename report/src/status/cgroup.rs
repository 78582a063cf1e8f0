//! Which container a process is in, by the path of its cgroup. The creator of a cgroup chooses its name, so it is only
//! shown and used to look up the id in that engine's files.

use onload_sys::text::is_lower_hex;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerEngine {
    Docker,
    Podman,
    Containerd,
    #[serde(rename = "cri-o")]
    Crio,
    #[default]
    Unknown,
}

impl ContainerEngine {
    pub fn as_str(self) -> &'static str {
        match self {
            ContainerEngine::Docker => "docker",
            ContainerEngine::Podman => "podman",
            ContainerEngine::Containerd => "containerd",
            ContainerEngine::Crio => "cri-o",
            ContainerEngine::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CgroupContainer {
    /// The path of the cgroup that has the name. It is necessary to identify a container, because
    /// users choose the names below their own slice.
    pub(super) path: String,
    pub(super) engine: ContainerEngine,
    pub(super) id: String,
    pub(super) user: Option<u32>,
}

/// Digits of an id that engines make.
const ID: usize = 64;

/// Returns the container in a process's `cgroup`, or `None` for a process of the host. `is_task` returns whether
/// containerd has a task with that id in that namespace, which distinguishes user-chosen ids from other cgroups.
pub(super) fn parse_container(
    table: &[u8],
    is_task: &dyn Fn(&str, &str) -> bool,
) -> Option<CgroupContainer> {
    let text = String::from_utf8_lossy(table);
    let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(|path| parse_path(path, is_task))
}

/// The last part of the path that a process's cgroup has, which runtimes name after the container that they
/// make by themselves.
pub(super) fn last_part(table: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(table);
    let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let path = paths.find(|path| !path.is_empty() && *path != "/")?;
    path.rsplit('/').next().map(str::to_owned)
}

fn parse_path(path: &str, is_task: &dyn Fn(&str, &str) -> bool) -> Option<CgroupContainer> {
    let parts: Vec<&str> = path.split('/').collect();
    let mut containers = parts.iter().enumerate().filter_map(|(index, part)| {
        let before = parts.get(..index).unwrap_or_default();
        Some((index, parse_part(part, before, is_task)?))
    });
    // A container may have cgroups of containers below its own: the innermost one counts.
    let (index, (engine, id)) = containers.next_back()?;
    // A container may have a cgroup below its own that is called as a slice is.
    let user = parts.iter().take(index).find_map(|part| {
        let user = part.strip_prefix("user-")?.strip_suffix(".slice")?;
        user.parse().ok()
    });
    Some(CgroupContainer { path: parts.get(..=index)?.join("/"), engine, id, user })
}

fn parse_part(
    part: &str,
    before: &[&str],
    is_task: &dyn Fn(&str, &str) -> bool,
) -> Option<(ContainerEngine, String)> {
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    for (prefix, engine) in [
        ("docker-", ContainerEngine::Docker),
        ("libpod-payload-", ContainerEngine::Podman),
        ("libpod-", ContainerEngine::Podman),
        ("cri-containerd-", ContainerEngine::Containerd),
        ("nerdctl-", ContainerEngine::Containerd),
        ("crio-", ContainerEngine::Crio),
    ] {
        let id = scope.strip_prefix(prefix).filter(|id| is_id(id));
        if let Some(id) = id {
            return Some((engine, id.to_owned()));
        }
    }
    if !is_id(part) {
        return before
            .last()
            .filter(|namespace| is_task(namespace, part))
            .map(|_| (ContainerEngine::Containerd, part.to_owned()));
    }
    let engine = match before.last() {
        Some(&"docker") => ContainerEngine::Docker,
        Some(&"libpod_parent") => ContainerEngine::Podman,
        Some(&"default" | &"k8s.io") => ContainerEngine::Containerd,
        _ if before.contains(&"kubepods") => ContainerEngine::Containerd,
        _ => ContainerEngine::Unknown,
    };
    Some((engine, part.to_owned()))
}

pub(super) fn is_id(text: &str) -> bool {
    text.len() == ID && is_lower_hex(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a";

    fn found(path: &str) -> Option<(ContainerEngine, Option<u32>)> {
        let named = parse_container(
            format!("0::{}\n", path.replace("ID", A)).as_bytes(),
            &|namespace, id| (namespace, id) == ("default", "redis"),
        )?;
        assert!([A, "redis"].contains(&named.id.as_str()), "{named:?}");
        Some((named.engine, named.user))
    }

    #[test]
    fn a_container_is_told_by_the_path_that_its_engine_makes() {
        let cases = [
            ("/system.slice/docker-ID.scope", ContainerEngine::Docker, None),
            ("/docker/ID", ContainerEngine::Docker, None),
            ("/docker/ID/child", ContainerEngine::Docker, None),
            ("/machine.slice/libpod-ID.scope/container", ContainerEngine::Podman, None),
            (
                "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope",
                ContainerEngine::Podman,
                Some(1000),
            ),
            (
                "/kubepods.slice/kubepods-pod1.slice/cri-containerd-ID.scope",
                ContainerEngine::Containerd,
                None,
            ),
            ("/kubepods/besteffort/pod1/ID", ContainerEngine::Containerd, None),
            ("/default/ID", ContainerEngine::Containerd, None),
            ("/default/redis", ContainerEngine::Containerd, None),
            ("/default/redis/child", ContainerEngine::Containerd, None),
            ("/team/ID", ContainerEngine::Unknown, None),
            ("/docker/ID/user-1000.slice/x", ContainerEngine::Docker, None),
            ("/kubepods.slice/kubepods-pod1.slice/crio-ID.scope", ContainerEngine::Crio, None),
        ];
        for (path, engine, user) in cases {
            assert_eq!(found(path), Some((engine, user)), "{path}");
        }
    }

    #[test]
    fn the_inner_container_counts_where_one_runs_in_another() {
        let other = "0".repeat(64);
        let path = format!("/docker/{other}/docker/{A}");
        assert_eq!(found(&path), Some((ContainerEngine::Docker, None)));
        let named = parse_container(format!("0::{path}/x\n").as_bytes(), &|_, _| false).unwrap();
        assert_eq!((named.path, named.id.as_str()), (path, A));
    }

    #[test]
    fn processes_of_the_host_and_monitors_are_in_none() {
        for path in [
            "/",
            "/system.slice/docker.service",
            "/machine.slice/libpod-conmon-ID.scope",
            "/kubepods.slice/crio-conmon-ID.scope",
            "/system.slice/docker-short.scope",
            "/system.slice/docker-../../etc.scope",
            "/default/other",
            "/other/redis",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
        let is_task = |_: &str, _: &str| false;
        assert_eq!(parse_container(b"", &is_task), None);
        assert_eq!(parse_container(b"\xff\n0:", &is_task), None);
    }

    #[test]
    fn a_table_of_version_1_has_the_path_in_any_of_its_lines() {
        let table = format!("12:pids:/docker/{A}\n1:name=systemd:/docker/{A}\n0::/\n");
        let named = parse_container(table.as_bytes(), &|_, _| false).unwrap();
        assert_eq!(named.engine, ContainerEngine::Docker);
        assert_eq!(named.path, format!("/docker/{A}"));
    }
}
