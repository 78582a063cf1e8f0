//! An RDMA device: its node opens, memory can be locked for it, and messages go over it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::files::{open, read_attribute};
use super::system;
use crate::commands::trial::PINGPONG;

const TIMEOUT: Duration = Duration::from_secs(20);
const MESSAGES: &str = "100";
/// More than the 8 MiB that systemd and docker allow by default.
const LOCKED: usize = 16 << 20;

pub(super) fn use_device(name: &str) -> Result<String> {
    let node = find_node(name)?;
    open(&node)?;
    let device = Path::new("/sys/class/infiniband").join(name);
    let port = active_port(name, &device)?;
    system::lock(LOCKED).context(
        "locking 16 MiB of memory: the limit is lower, and RDMA needs locked memory; check \
         \"ulimit -l\" in a container",
    )?;
    let number = port.file_name().unwrap_or_default().to_string_lossy();
    let message = match no_traffic_reason(&device) {
        Some(reason) => format!("no message was sent, because {reason}"),
        None => run_ping_pong(name, &port)?,
    };
    Ok(format!(
        "{} opens, port {number} is active, 16 MiB can be locked; {message}",
        node.display()
    ))
}

fn find_node(name: &str) -> Result<PathBuf> {
    let nodes = Path::new("/sys/class/infiniband_verbs");
    let entries = fs::read_dir(nodes).with_context(|| {
        format!("looking for RDMA device {name}: its files in /sys are not in the container")
    })?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let verbs = names
        .find(|verbs| {
            read_attribute(&verbs.join("ibdev")).is_ok_and(|device_name| device_name == name)
        })
        .with_context(|| {
            format!("looking for RDMA device {name}: the container's network does not have it")
        })?;
    Ok(Path::new("/dev/infiniband").join(verbs.file_name().unwrap_or_default()))
}

fn active_port(name: &str, device: &Path) -> Result<PathBuf> {
    let mut states = Vec::new();
    for port in fs::read_dir(device.join("ports")).into_iter().flatten().flatten() {
        let state = read_attribute(&port.path().join("state")).unwrap_or_default();
        if state.ends_with(": ACTIVE") {
            return Ok(port.path());
        }
        let port = port.file_name();
        states.push(format!("port {} is {state}", port.to_string_lossy()));
    }
    bail!(
        "looking at RDMA device {name}: no port is active ({}); check its link, and set its \
         interface up",
        states.join(", ")
    )
}

/// Why nothing can be sent here.
fn no_traffic_reason(device: &Path) -> Option<String> {
    // include/rdma/ib_verbs.h: 1 is a channel adapter, by InfiniBand or RoCE.
    let kind = read_attribute(&device.join("node_type")).unwrap_or_default();
    if !kind.starts_with("1:") {
        return Some(format!("ibv_rc_pingpong does not support node type {kind:?}"));
    }
    let missing =
        "this host has no ibv_rc_pingpong; install ibverbs-utils (libibverbs-utils on Red Hat)";
    (!Path::new(PINGPONG).exists()).then(|| missing.to_owned())
}

/// From one queue pair of the port to another and back, by two processes.
fn run_ping_pong(name: &str, port: &Path) -> Result<String> {
    let number = port.file_name().unwrap_or_default().to_string_lossy();
    let mut options = ["-d", name, "-i", &number, "-n", MESSAGES].map(str::to_owned).to_vec();
    if read_attribute(&port.join("link_layer")).is_ok_and(|layer| layer == "Ethernet") {
        let gid = find_gid_index(&port.join("gids")).with_context(|| {
            format!("looking for an address of {name}: port {number} has no GID; give its interface an address")
        })?;
        options.extend(["-g".to_owned(), gid.to_string()]);
    }
    let mut server = start(&options)?;
    let result = send(&options, &mut server);
    let _ = server.kill();
    let _ = server.wait();
    result.with_context(|| format!("sending messages over {name}"))?;
    Ok(format!("{MESSAGES} messages went over port {number} to another queue pair and back"))
}

fn start(options: &[String]) -> Result<Child> {
    let mut command = Command::new(PINGPONG);
    command.args(options).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("running {PINGPONG}"))
}

fn send(options: &[String], server: &mut Child) -> Result<()> {
    let to_itself = [options, &["127.0.0.1".to_owned()]].concat();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let client = start(&to_itself)?.wait_with_output()?;
        if client.status.success() {
            return Ok(());
        }
        let mut output = client.stderr;
        if server.try_wait()?.is_some()
            && let Some(stderr) = &mut server.stderr
        {
            stderr.read_to_end(&mut output)?;
        } else if Instant::now() < deadline {
            // It may not listen yet.
            sleep(Duration::from_millis(200));
            continue;
        }
        let output = String::from_utf8_lossy(&output);
        let last = output.lines().rfind(|line| !line.trim().is_empty());
        bail!("ibv_rc_pingpong: {}", last.unwrap_or("it said nothing"));
    }
}

/// Returns a GID for an IPv4 address, which every RoCE network has, or else the first that is set.
fn find_gid_index(gids: &Path) -> Option<usize> {
    let gids = (0..).map_while(|index: usize| read_attribute(&gids.join(index.to_string())).ok());
    let set: Vec<(usize, String)> = gids
        .enumerate()
        .filter(|(_, gid)| gid.contains(|digit| !['0', ':'].contains(&digit)))
        .collect();
    set.iter().find(|(_, gid)| gid.contains(":ffff:")).or(set.first()).map(|(index, _)| *index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_device_that_the_container_does_not_have_is_said_by_name() {
        let error = format!("{:#}", use_device("nonexistent0").unwrap_err());
        assert!(error.contains("looking for RDMA device nonexistent0"), "{error}");
    }

    #[test]
    fn a_port_is_taken_only_when_it_is_active() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path().join("ports/1/state"), "1: DOWN\n");
        let error = active_port("rxe0", dir.path()).unwrap_err().to_string();
        assert!(error.contains("no port is active (port 1 is 1: DOWN)"), "{error}");
        file(dir.path().join("ports/2/state"), "4: ACTIVE\n");
        let found = active_port("rxe0", dir.path()).unwrap();
        assert_eq!(found, dir.path().join("ports/2"));
        // A port that holds its state while the link is away is not an active one.
        file(dir.path().join("ports/2/state"), "5: ACTIVE_DEFER\n");
        assert!(active_port("rxe0", dir.path()).is_err());
    }

    #[test]
    fn a_gid_of_an_ipv4_address_is_taken_first_and_none_that_is_not_set() {
        let dir = tempfile::tempdir().unwrap();
        let gid = |index: usize, text| file(dir.path().join(index.to_string()), text);
        assert_eq!(find_gid_index(dir.path()), None);
        gid(0, "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(find_gid_index(dir.path()), None);
        gid(1, "fe80:0000:0000:0000:5054:00ff:fe12:3456\n");
        assert_eq!(find_gid_index(dir.path()), Some(1));
        gid(2, "0000:0000:0000:0000:0000:ffff:c000:0201\n");
        assert_eq!(find_gid_index(dir.path()), Some(2));
    }

    #[test]
    fn a_device_of_another_kind_gets_no_message_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path().join("node_type"), "4: RNIC\n");
        let why = no_traffic_reason(dir.path()).unwrap();
        assert!(why.contains("4: RNIC"), "{why}");
    }
}
