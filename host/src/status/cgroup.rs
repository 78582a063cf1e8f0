//! Which container a process is in, by the path of its cgroup. Who makes a cgroup chooses its name: what it
//! says is shown, and nothing is opened because of it but what that engine keeps under that id.

use serde::Serialize;

/// Who made a container, as far as its cgroup tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// docker.
    Docker,
    /// podman.
    Podman,
    /// containerd.
    Containerd,
    /// CRI-O.
    #[serde(rename = "cri-o")]
    Crio,
    /// Nobody that is known: an OCI runtime by itself, a sandbox.
    Unknown,
}

impl Engine {
    /// Its name as people know it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Engine::Docker => "docker",
            Engine::Podman => "podman",
            Engine::Containerd => "containerd",
            Engine::Crio => "cri-o",
            Engine::Unknown => "unknown",
        }
    }
}

/// A container as a cgroup names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) engine: Engine,
    pub(super) id: String,
    /// The user below whose slice it is, for engines of users.
    pub(super) user: Option<u32>,
}

/// Digits of an id that engines make.
const ID: usize = 64;

/// The container in a process's `cgroup`; none for a process of the host.
pub(super) fn named(table: &[u8]) -> Option<Named> {
    let text = String::from_utf8_lossy(table);
    let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(of_path)
}

/// The last part of the path that a process's cgroup has, which runtimes name after the container that they
/// make by themselves.
pub(super) fn leaf(table: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(table);
    let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let path = paths.find(|path| !path.is_empty() && *path != "/")?;
    path.rsplit('/').next().map(str::to_owned)
}

fn of_path(path: &str) -> Option<Named> {
    let parts: Vec<&str> = path.split('/').collect();
    let found = parts.iter().enumerate().rev();
    let (engine, id) = found
        .filter_map(|(index, part)| of_part(part, parts.get(..index).unwrap_or_default()))
        .next()?;
    let user = parts.iter().find_map(|part| {
        let user = part.strip_prefix("user-")?.strip_suffix(".slice")?;
        user.parse().ok()
    });
    Some(Named { engine, id, user })
}

/// A part of a path, with those before it.
fn of_part(part: &str, before: &[&str]) -> Option<(Engine, String)> {
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    for (prefix, engine) in [
        ("docker-", Engine::Docker),
        ("libpod-payload-", Engine::Podman),
        ("libpod-", Engine::Podman),
        ("cri-containerd-", Engine::Containerd),
        ("nerdctl-", Engine::Containerd),
        ("crio-", Engine::Crio),
    ] {
        let id = scope.strip_prefix(prefix).filter(|id| is_id(id));
        if let Some(id) = id {
            return Some((engine, id.to_owned()));
        }
    }
    if !is_id(part) {
        return None;
    }
    let is_below = |name: &str| before.contains(&name);
    let engine = match before.last() {
        Some(&"docker") => Engine::Docker,
        Some(&"libpod_parent") => Engine::Podman,
        Some(&"default" | &"k8s.io") => Engine::Containerd,
        _ if is_below("kubepods") => Engine::Containerd,
        _ => Engine::Unknown,
    };
    Some((engine, part.to_owned()))
}

pub(super) fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == ID && text.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a";

    fn found(path: &str) -> Option<(Engine, Option<u32>)> {
        let named = named(format!("0::{}\n", path.replace("ID", A)).as_bytes())?;
        assert_eq!(named.id, A);
        Some((named.engine, named.user))
    }

    #[test]
    fn a_container_is_told_by_the_path_that_its_engine_makes() {
        let cases = [
            ("/system.slice/docker-ID.scope", Engine::Docker, None),
            ("/docker/ID", Engine::Docker, None),
            ("/docker/ID/child", Engine::Docker, None),
            (
                "/machine.slice/libpod-ID.scope/container",
                Engine::Podman,
                None,
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope",
                Engine::Podman,
                Some(1000),
            ),
            (
                "/kubepods.slice/kubepods-pod1.slice/cri-containerd-ID.scope",
                Engine::Containerd,
                None,
            ),
            ("/kubepods/besteffort/pod1/ID", Engine::Containerd, None),
            ("/default/ID", Engine::Containerd, None),
            (
                "/kubepods.slice/kubepods-pod1.slice/crio-ID.scope",
                Engine::Crio,
                None,
            ),
        ];
        for (path, engine, user) in cases {
            assert_eq!(found(path), Some((engine, user)), "{path}");
        }
    }

    #[test]
    fn the_inner_container_counts_where_one_runs_in_another() {
        let other = "0".repeat(64);
        let path = format!("/docker/{other}/docker/{A}");
        assert_eq!(found(&path), Some((Engine::Docker, None)));
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
        ] {
            assert_eq!(found(path), None, "{path}");
        }
        assert_eq!(named(b""), None);
        assert_eq!(named(b"\xff\n0:"), None);
    }

    #[test]
    fn a_table_of_version_1_has_the_path_in_any_of_its_lines() {
        let table = format!("12:pids:/docker/{A}\n1:name=systemd:/docker/{A}\n0::/\n");
        assert_eq!(named(table.as_bytes()).unwrap().engine, Engine::Docker);
    }
}
