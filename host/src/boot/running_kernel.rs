//! The running kernel.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use onload_core::host_settings::RdmaNetns;
use onload_sys::ethtool::Ethtool;
use onload_sys::netlink::nldev::{self, RdmaNetnsMode};
use onload_sys::netlink::socket::NetlinkSocket;
use onload_sys::netlink::{link, vf};
use onload_sys::processes::{Processes, device_number, open_device};
use onload_sys::text::{Quoted, to_one_line};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::netlink::RDMA;

use super::kernel::{HostKernel, KernelReader, VfChange, VfSettings};

const MODPROBE: [&str; 2] = ["/usr/sbin/modprobe", "/sbin/modprobe"];

const VFIO: &str = "/dev/vfio";

#[derive(Debug, Default)]
pub struct RunningKernel {
    /// The processes with open nodes by device number, read once for all functions.
    open: RefCell<Option<BTreeMap<(u32, u32), String>>>,
}

/// Returns the processes that have character devices open, among those that this process may inspect.
fn open_nodes(processes: &Processes) -> BTreeMap<(u32, u32), String> {
    let mut open = BTreeMap::new();
    for (pid, descriptor) in processes.descriptors() {
        if let Some(number) = open_device(&descriptor, &|number| !open.contains_key(&number)) {
            let program = processes.program_name(pid);
            open.insert(number, format!("process {pid} ({})", Quoted(&program)));
        }
    }
    open
}

/// Returns the error for a mode that cannot change because other network namespaces exist.
pub(super) fn netns_busy_error(mode: RdmaNetns) -> anyhow::Error {
    anyhow!(
        "setting the RDMA netns mode to {mode}: other network namespaces already exist; write \"options ib_core netns_mode={}\" to /etc/modprobe.d/rdma-netns.conf, rebuild the initramfs if the module is in it, and reboot",
        u8::from(mode == RdmaNetns::Shared)
    )
}

impl KernelReader for RunningKernel {
    fn vf_settings(&self, interface: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>> {
        let read = || {
            let socket = NetlinkSocket::open(None)?;
            let index = name_to_index(&socket, interface)?;
            socket.get(link::GET, &vf::get_payload(index), &vf::parse)
        };
        let reply = read().with_context(|| format!("reading virtual functions of {interface}"))?;
        Ok(Some(reply.unwrap_or_default().reported))
    }

    fn refresh(&self) {
        self.open.take();
    }

    fn find_opener(&self, node: &Path) -> Option<String> {
        let number = device_number(node)?;
        let mut cache = self.open.borrow_mut();
        let open = cache.get_or_insert_with(|| open_nodes(&Processes::default()));
        if let Some(opener) = open.get(&number) {
            return Some(opener.clone());
        }
        // Only one process at a time can open a group (vfio_group_fops_open). Other nodes are not opened, since that
        // may succeed several times or have side effects.
        if node.parent() != Some(Path::new(VFIO)) {
            return None;
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let is_busy = rustix::fs::open(node, flags, Mode::empty()).err() == Some(Errno::BUSY);
        is_busy.then(|| "a process that /proc does not show".to_owned())
    }
}

impl HostKernel for RunningKernel {
    fn set_vf(&self, interface: &str, vf: u32, change: VfChange) -> anyhow::Result<()> {
        let set = || {
            let socket = NetlinkSocket::open(None)?;
            let index = name_to_index(&socket, interface)?;
            socket.execute(link::SET, 0, &vf::set_payload(index, vf, change))
        };
        set().with_context(|| format!("telling the driver of {interface}"))
    }

    fn set_rdma_netns(&self, mode: RdmaNetns) -> anyhow::Result<()> {
        let payload = nldev::set_netns_mode_payload(match mode {
            RdmaNetns::Shared => RdmaNetnsMode::Shared,
            RdmaNetns::Exclusive => RdmaNetnsMode::Exclusive,
        });
        let set = || NetlinkSocket::open(Some(RDMA))?.execute(nldev::SYS_SET, 0, &payload);
        set().map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => netns_busy_error(mode),
            _ => anyhow::Error::new(error).context("setting RDMA's network namespaces"),
        })
    }

    fn set_one_channel(&self, interface: &str) -> anyhow::Result<()> {
        let set = || Ethtool::open(interface.as_bytes())?.ok_or(Errno::NODEV)?.set_one_channel();
        set().with_context(|| format!("setting channels of {interface}"))
    }

    fn write(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        // The kernel treats one write as one value, and an empty line as no value.
        let write = || {
            let mut file = OpenOptions::new().write(true).open(path)?;
            file.write_all(format!("{text}\n").as_bytes())
        };
        write().with_context(|| format!("writing {text:?} to {}", path.display()))
    }

    fn load(&self, module: &str) -> anyhow::Result<()> {
        let load_error = |reason: String| anyhow!("loading module {module}: {reason}");
        let program = MODPROBE
            .into_iter()
            .find(|path| Path::new(path).exists())
            .ok_or_else(|| load_error(format!("{} does not exist", MODPROBE[0])))?;
        let output = Command::new(program)
            .args(["--", module])
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .map_err(|error| load_error(format!("starting {program}: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = stderr.trim();
        Err(load_error(to_one_line(message.strip_prefix("modprobe: FATAL: ").unwrap_or(message))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_test_tree::Tree;
    use std::fs;

    #[test]
    fn who_has_a_node_open_is_found_by_its_number() {
        let tree = Tree::new();
        // A container renames what it has open.
        tree.link("renamed", "/dev/null");
        let renamed = tree.path("renamed");
        for (pid, comm, link) in [
            ("7", "qemu", renamed.to_str().unwrap()),
            ("8", "cat", "/proc/self/comm"),
            ("9", "gone", "/dev/no-such-node"),
            ("self", "x", "/dev/zero"),
        ] {
            tree.file(&format!("proc/{pid}/comm"), format!("{comm}\n"));
            tree.link(&format!("proc/{pid}/fd/3"), link);
        }
        let processes = Processes::at_root(tree.root());
        let found = open_nodes(&processes);
        let null = device_number(Path::new("/dev/null")).unwrap();
        let wanted = BTreeMap::from([(null, "process 7 (\"qemu\")".to_owned())]);
        assert_eq!(found, wanted);
    }

    #[test]
    fn an_attribute_is_written_as_a_line_and_a_file_that_is_not_there_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let (there, missing) = (dir.path().join("there"), dir.path().join("missing"));
        fs::write(&there, "").unwrap();
        let kernel = RunningKernel::default();
        kernel.write(&there, "vfio-pci").unwrap();
        assert_eq!(fs::read_to_string(&there).unwrap(), "vfio-pci\n");
        let error = kernel.write(&missing, "4").unwrap_err().to_string();
        assert_eq!(error, format!("writing \"4\" to {}", missing.display()));
        assert!(!missing.exists());
    }

    #[test]
    fn a_module_that_there_is_not_is_an_error_in_one_line() {
        let error = RunningKernel::default().load("no-such-module-of-ours").unwrap_err();
        let line = error.to_string();
        assert!(line.starts_with("loading module no-such-module-of-ours: "), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }

    /// The loopback interface of every machine has no virtual functions.
    #[test]
    fn the_kernel_understands_the_question_for_virtual_functions() {
        let kernel = RunningKernel::default();
        assert_eq!(kernel.vf_settings("lo").unwrap(), Some(BTreeMap::new()));
        assert!(kernel.vf_settings("no-such-thing").is_err());
    }
}
