//! Finds the containers with our runtime in each engine's storage. docker, containerd and CRI-O may be stopped, so
//! their files are read from disk. podman has no daemon and uses a database (SQLite; before version 5 also bolt), so
//! this runs podman.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use onload_engines::container_dirs::{ContainerDirs, docker_dirs, list};
use onload_engines::engine::Engine;
use onload_engines::runtime_containers::{self, RuntimeContainer, RuntimeUse};
use onload_host::host::Host;

use super::process::{self, run_command};

const PODMAN: [&str; 3] = ["/usr/bin/podman", "/bin/podman", "/usr/local/bin/podman"];
/// The files of podman's database in a storage directory. One of them exists if podman was used on the host.
const PODMAN_STATE: [&str; 2] = ["db.sql", "libpod/bolt_state.db"];
/// Limit for podman's commands. It is long enough for a thousand containers, and ends the wait for a lock that is never
/// released.
const PODMAN_DEADLINE: Duration = Duration::from_secs(60);
/// The program that monitors a running container of podman or CRI-O.
const MONITOR: &str = "conmon";
const MONITOR_DEADLINE: Duration = Duration::from_secs(5);
/// The number of containers that one `podman container inspect` examines.
const CHUNK: usize = 200;
/// Limit for the size of an engine's file, in bytes. A container's configuration has a few kilobytes.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
const CRI_TASKS: &str = "io.containerd.runtime.v2.task/k8s.io";

/// Finds an engine's containers with our runtime. `state` is the engine's data or state directory.
pub(super) fn find_runtime_use(host: &Host, engine: Engine, state: &Path) -> RuntimeUse {
    match find(host, engine, state) {
        Ok(mut containers) => {
            containers.sort();
            containers.dedup_by(|one, other| one.id == other.id);
            RuntimeUse::By(containers)
        }
        Err(error) => RuntimeUse::Unknown(format!("{error:#}")),
    }
}

fn find(host: &Host, engine: Engine, state: &Path) -> Result<Vec<RuntimeContainer>> {
    match engine {
        Engine::Docker => find_docker(host, state),
        Engine::Containerd => find_containerd(host, state),
        Engine::Crio => Ok([find_crio(host)?, find_monitored(host, false)?].concat()),
        Engine::Podman => Ok([find_podman(host)?, find_monitored(host, true)?].concat()),
        // Nomad's containers are docker's, and Nomad stops them without checking allow_runtimes.
        Engine::Nomad => Ok(Vec::new()),
    }
}

fn find_docker(host: &Host, root: &Path) -> Result<Vec<RuntimeContainer>> {
    // Fails if the directory cannot be read, which `docker_dirs` ignores.
    host.list(root)?;
    let mut records = Vec::new();
    for containers in docker_dirs(host, root) {
        for id in host.list(&containers)?.names {
            let directory = containers.join(&id);
            let host_config = read_bytes(host, &directory.join("hostconfig.json"))?;
            let config = read_bytes(host, &directory.join("config.v2.json"))?;
            records.extend(runtime_containers::from_docker(&id, &host_config, &config));
        }
    }
    Ok(records)
}

/// Finds the containers that have a shim. A pod's sandbox that has ended is not among them: it is never
/// started again, and needs no runtime to be removed.
fn find_containerd(host: &Host, state: &Path) -> Result<Vec<RuntimeContainer>> {
    let tasks = state.join(CRI_TASKS);
    let mut records = Vec::new();
    for id in host.list(&tasks)?.names {
        let bundle = tasks.join(&id);
        let mut options = read_bytes(host, &bundle.join("options.json"))?;
        // The shim of containerd 1.6 stores only the path.
        options.extend(read_bytes(host, &bundle.join("runtime"))?);
        let config = read_bytes(host, &bundle.join("config.json"))?;
        records.extend(runtime_containers::from_containerd(&id, &options, &config));
    }
    Ok(records)
}

fn find_crio(host: &Host) -> Result<Vec<RuntimeContainer>> {
    let (dirs, mut records) = (ContainerDirs::read(host), Vec::new());
    // Fails if a directory cannot be read, which the closure below ignores.
    for storage in &dirs.storage {
        host.list(storage)?;
    }
    for driver in dirs.list_storage(|path| list(host, path).unwrap_or_default()) {
        for id in host.list(&driver)?.names {
            let path = driver.join(&id).join("userdata/config.json");
            // Files of the storage itself, such as containers.json, are skipped.
            if let Ok(Some(config)) = host.bytes(&path, MAX_BYTES) {
                records.extend(runtime_containers::from_crio(&id, &config));
            }
        }
    }
    Ok(records)
}

/// Finds the running containers of podman (`podmans`) or CRI-O by the arguments of their monitors.
fn find_monitored(host: &Host, podmans: bool) -> Result<Vec<RuntimeContainer>> {
    if !host.is_running() {
        return Ok(Vec::new());
    }
    let cmdlines = process::read_arguments(host, Path::new("/proc"), MONITOR, MONITOR_DEADLINE)?;
    let records = cmdlines.iter().filter_map(|cmdline| {
        let container = runtime_containers::from_conmon(cmdline)?;
        (runtime_containers::is_podman_monitor(cmdline) == podmans).then_some(container)
    });
    Ok(records.collect())
}

fn read_bytes(host: &Host, path: &Path) -> Result<Vec<u8>> {
    Ok(host.bytes(path, MAX_BYTES)?.unwrap_or_default())
}

fn find_podman(host: &Host) -> Result<Vec<RuntimeContainer>> {
    if !host.is_running() {
        for storage in ContainerDirs::read(host).storage {
            for state in PODMAN_STATE.map(|state| storage.join(state)) {
                if host.entry(&state)?.is_some() {
                    let state = state.display();
                    bail!(
                        "only podman can read {state}, and it cannot be queried about another host"
                    );
                }
            }
        }
        return Ok(Vec::new());
    }
    let Some(program) = PODMAN.into_iter().map(PathBuf::from).find(|p| p.exists()) else {
        return Ok(Vec::new());
    };
    // If a container is removed between `ps` and `inspect`, `inspect` fails.
    query_podman(&program).or_else(|_| query_podman(&program))
}

fn query_podman(program: &Path) -> Result<Vec<RuntimeContainer>> {
    let deadline = Instant::now() + PODMAN_DEADLINE;
    let words = ["ps", "--all", "--quiet", "--no-trunc"];
    let output = run_command(Command::new(program).args(words), deadline)?;
    let ids: Vec<&str> = output.split_whitespace().collect();
    let mut records = Vec::new();
    for ids in ids.chunks(CHUNK) {
        let mut command = Command::new(program);
        command.args(["container", "inspect", "--format", runtime_containers::PODMAN_FORMAT]);
        let output = run_command(command.args(ids), deadline)?;
        records.extend(runtime_containers::from_podman(&output));
    }
    Ok(records)
}
