//! Made-up hosts with a container.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::test_tree::{AsHost, Tree};
use onload_core::config::Config;
use onload_core::device_id::DeviceId;
use onload_engines::container_dirs::ContainerDirs;
use onload_host::devices::discover;
use onload_host::devices::inventory::Inventory;
use onload_lease::{Holder, Lease, LeaseEntry};
use onload_sys::netlink::link::Link;
use onload_sys::processes::ProcessId as Holding;

use super::groups::ContainerGroup;
use super::*;

pub(super) const ID: &str = "3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a3f2a";
pub(super) const HOST_NET: &str = "net:[1]";
pub(super) const OWN_NET: &str = "net:[77]";
pub(super) const GLIBC: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");
pub(super) const MUSL: Option<&str> = Some("/lib/ld-musl-x86_64.so.1");
pub(super) const STATIC: Option<&str> = None;
pub(super) const CAPABILITIES: &str = "00000000a80425fb";
pub(super) const HOST_USERS: &str = "user:[1]";
pub(super) const PRELOADED: &str = "LD_PRELOAD=libonload.so\0ONLOAD_CTK_NIC_ENS1=ens1\0";

/// A made-up host with one docker container, whose process is 77.
pub(super) struct Made {
    pub(super) tree: Tree,
    pub(super) leases: Vec<LeaseEntry>,
    /// The host's interfaces that Onload has.
    pub(super) attached: Vec<String>,
    /// The container's network, of which the host's is number 0.
    pub(super) network: Option<NetnsLinks>,
    /// The IDs of the host's BPF programs; `None` if this user may not list them.
    pub(super) programs: Option<Vec<u32>>,
}

/// The mapping of the host's library.
pub(super) const MAPS: &str = "7f00-7f01 r-xp 0 08:01 5 /usr/lib64/libonload.so\n";
pub(super) const ROOT: &str = "20 1 8:1 / / rw - ext4 /dev/sda rw\n";

/// An interface in a container that is set up and has a link.
pub(super) fn link(name: &str, kind: &str) -> Link {
    Link { index: 2, flags: 0x1_1003, name: name.into(), kind: kind.into(), ..Link::default() }
}

/// One that is on an interface of the host.
pub(super) fn on_host(name: &str, kind: &str, lower: u32) -> Link {
    Link { lower: Some(lower), lower_namespace: Some(0), ..link(name, kind) }
}

/// One of a PCI function.
pub(super) fn of_function(name: &str, function: &str) -> Link {
    Link { function: Some(function.parse().unwrap()), ..link(name, "") }
}

impl Made {
    pub(super) fn new() -> Made {
        let made = Made {
            tree: Tree::new(),
            leases: Vec::new(),
            attached: vec!["ens1".to_owned()],
            programs: None,
            network: Some(NetnsLinks {
                links: vec![Link { index: 1, flags: 0x1_0049, ..link("lo", "") }],
                own_id: Some(0),
            }),
        };
        made.file("/sys/class/net/ens1/ifindex", "5\n");
        made.process(1, "0::/init.scope\n", "systemd", HOST_NET, "pid:[1]");
        made.process(
            77,
            &format!("0::/system.slice/docker-{ID}.scope\n"),
            "redis",
            OWN_NET,
            "pid:[7]",
        );
        made
    }

    pub(super) fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Made {
        self.tree.file(path, content);
        self
    }

    pub(super) fn link(&self, path: &str, target: &str) -> &Made {
        self.tree.link(path, target);
        self
    }

    pub(super) fn process(
        &self,
        pid: u32,
        cgroup: &str,
        name: &str,
        net: &str,
        pidns: &str,
    ) -> &Made {
        let dir = format!("/proc/{pid}");
        self.file(&format!("{dir}/cgroup"), cgroup);
        self.runs(pid, "S", 1);
        self.is_at(pid, name, CAPABILITIES);
        self.file(&format!("{dir}/auxv"), auxiliary(0));
        let heads = "Inter-|   Receive\n face |bytes\n    lo:       0\n";
        self.file(&format!("{dir}/net/dev"), heads);
        self.file(&format!("{dir}/root/sys/class/net/lo/operstate"), "unknown\n");
        self.link(&format!("{dir}/ns/user"), HOST_USERS);
        self.file(&format!("{dir}/maps"), "");
        self.file(&format!("{dir}/mountinfo"), ROOT);
        let limits = "Max locked memory         unlimited            unlimited            bytes\n";
        self.file(&format!("{dir}/limits"), limits);
        self.tree.directory(&format!("{dir}/fd"));
        self.tree.directory(&format!("{dir}/root/dev"));
        self.link(&format!("{dir}/ns/net"), net);
        self.link(&format!("{dir}/ns/pid"), pidns)
    }

    /// The state and the number of threads in `stat`.
    pub(super) fn runs(&self, pid: u32, state: &str, threads: u32) -> &Made {
        let stat = stat_of(pid, 700).replacen(" S ", &format!(" {state} "), 1).replacen(
            " 20 0 1 0 ",
            &format!(" 20 0 {threads} 0 "),
            1,
        );
        self.file(&format!("/proc/{pid}/stat"), stat)
    }

    pub(super) fn is_at(&self, pid: u32, name: &str, capabilities: &str) -> &Made {
        let place = if pid == 77 { 1 } else { pid };
        let status = format!(
            "Name:\t{name}\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nNSpid:\t{pid}\t{place}\nCapEff:\t{capabilities}\n"
        );
        self.file(&format!("/proc/{pid}/status"), status)
    }

    /// A node of the container, and the number that the host says.
    pub(super) fn node(
        &mut self,
        path: &str,
        number: (u32, u32),
        class: &str,
        now: Option<(u32, u32)>,
    ) -> &mut Made {
        let (major, minor) = number;
        self.tree.node(&format!("/proc/77/root{path}"), major, minor);
        if let Some((major, minor)) = now {
            let name = path.rsplit('/').next().unwrap();
            let file = format!("/sys/class/{class}/{name}/dev");
            self.file(&file, format!("{major}:{minor}\n"));
        }
        self
    }

    pub(super) fn onload(&mut self) -> &mut Made {
        self.node("/dev/onload", (243, 0), "onload", Some((243, 0)))
    }

    pub(super) fn maps(&self, line: &str) -> &Made {
        self.file("/proc/77/maps", format!("7f00-7f01 r-xp 0 08:01 5 {line}\n"))
    }

    pub(super) fn program(&self, loader: Option<&str>, environment: &str) -> &Made {
        self.file("/proc/77/exe", program(loader, 200));
        self.file("/proc/77/environ", environment)
    }

    /// An interface of its network.
    pub(super) fn interface(&mut self, link: Link) -> &mut Made {
        let network = self.network.as_mut().unwrap();
        network.links.push(link);
        self
    }

    /// A PCI function of the host.
    pub(super) fn function(&self, address: &str, vendor: &str, device: &str) -> &Made {
        let directory = format!("/sys/bus/pci/devices/{address}");
        self.file(&format!("{directory}/vendor"), format!("{vendor}\n"));
        self.file(&format!("{directory}/device"), format!("{device}\n"));
        self.file(&format!("{directory}/class"), "0x020000\n")
    }

    /// The descriptors of the container's first process with a stack of Onload (as seen with a real one).
    pub(super) fn stack(&self) -> &Made {
        self.open(3, "/dev/onload").open(4, "/dev/onload");
        self.open(5, "onload:[tcpl:0:2047]")
    }

    /// A socket of the kernel that listens.
    pub(super) fn listens(&self, pid: u32, inode: u64) -> &Made {
        self.link(&format!("/proc/{pid}/fd/9"), &format!("socket:[{inode}]"));
        let heads = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let line = format!(
            "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"
        );
        self.file(&format!("/proc/{pid}/net/tcp"), heads.to_owned() + &line)
    }

    /// A socket of the kernel with these addresses of IPv4, as `HOST:PORT`.
    pub(super) fn connects(&self, pid: u32, inode: u64, local: &str, remote: &str) -> &Made {
        let hex = |text: &str| {
            let address: std::net::SocketAddrV4 = text.parse().unwrap();
            let number = u32::from_ne_bytes(address.ip().octets());
            format!("{number:08X}:{:04X}", address.port())
        };
        self.link(&format!("/proc/{pid}/fd/9"), &format!("socket:[{inode}]"));
        let line = format!(
            "   0: {} {} 01 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n",
            hex(local),
            hex(remote)
        );
        self.file(&format!("/proc/{pid}/net/tcp"), format!("  sl  local_address\n{line}"))
    }

    pub(super) fn open(&self, number: u32, target: &str) -> &Made {
        self.link(&format!("/proc/77/fd/{number}"), target)
    }

    pub(super) fn lease(&mut self, device: &str, container: &str, pid: u32) -> &mut Made {
        let process = Holding { pid, start_time: 7, pid_namespace: 7 };
        let lease = Lease {
            boot: "b".to_owned(),
            container: container.parse().unwrap(),
            bundle: "/bundles/web".into(),
            holder: Holder::Init { process, cgroup: None },
            entry_point: "createRuntime".to_owned(),
            since: 1_700_000_000,
            facts: BTreeMap::new(),
            claim: None,
            ticket: None,
            moved: None,
        };
        self.leases.push(LeaseEntry {
            device: device.parse::<DeviceId>().unwrap(),
            slot: 0,
            lease: Ok(lease),
            has_ended: false,
            is_returning: false,
        });
        self
    }

    /// The discovered devices, with Onload attached to the given ones.
    fn inventory(&self, host: &Host) -> Inventory {
        let mut inventory = discover(host, &Config::default());
        let all = &mut inventory.attached;
        all.extend(self.attached.clone());
        all.sort();
        all.dedup();
        inventory
    }

    pub(super) fn status_with(&self, change: impl FnOnce(&mut Inventory)) -> StatusReport {
        let host = self.tree.host();
        let mut inventory = self.inventory(&host);
        change(&mut inventory);
        let input = StatusInput {
            host: &host,
            inventory: &inventory,
            leases: Some(&self.leases),
            networks: &|_| self.network.clone(),
            has_program: &|id| self.programs.as_ref().map(|programs| programs.contains(&id)),
        };
        read_status(input, &mut run_here).unwrap()
    }

    pub(super) fn status(&self) -> StatusReport {
        self.status_with(|_| ())
    }

    /// The verdicts of the one container.
    #[track_caller]
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        let mut containers = self.status().containers;
        assert_eq!(containers.len(), 1, "{containers:#?}");
        containers.remove(0).verdicts
    }

    #[track_caller]
    pub(super) fn assert_is(&self, state: VerdictState, reason: &str, remedy: &str) {
        let verdicts = self.verdicts();
        let found = verdicts
            .iter()
            .find(|verdict| verdict.state == state)
            .unwrap_or_else(|| panic!("no {state:?} in {verdicts:#?}"));
        assert!(found.reason.contains(reason), "{reason:?} in {found:?}");
        let actual = found.remedy.clone().unwrap_or_default();
        assert!(actual.contains(remedy), "{remedy:?} in {found:?}");
        assert_eq!(state.is_good(), found.remedy.is_none(), "{found:?}");
        assert_eq!(verdicts[0].state, verdicts.iter().map(|v| v.state).max().unwrap());
    }
}

/// The kernel's files for a process that started then, in hundredths of a second since boot.
pub(super) fn stat_of(pid: u32, started: u64) -> String {
    format!("{pid} (x) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0\n")
}

/// The list that the kernel gives a program (getauxval(3)): AT_PAGESZ, AT_SECURE and the end.
pub(super) fn auxiliary(secure: u64) -> Vec<u8> {
    let words = [6, 4096, 23, secure, 0, 0_u64];
    words.into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// A program of 64 bits whose loader's path stands at a place in it.
pub(super) fn program(loader: Option<&str>, at: u64) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    let mut put = |size: usize, value: u64| bytes.extend_from_slice(&value.to_le_bytes()[..size]);
    // e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, and no sections
    let count = u64::from(loader.is_some());
    let header = [
        (2, 2),
        (2, 62),
        (4, 1),
        (8, 0),
        (8, 64),
        (8, 0),
        (4, 0),
        (2, 64),
        (2, 56),
        (2, count),
        (6, 0),
    ];
    for (size, value) in header {
        put(size, value);
    }
    let Some(loader) = loader else { return bytes };
    let length = loader.len() as u64 + 1;
    // PT_INTERP: type, flags, offset, two addresses, two sizes, alignment
    for (size, value) in [(4, 3), (4, 4), (8, at), (8, 0), (8, 0), (8, length), (8, length), (8, 1)]
    {
        put(size, value);
    }
    bytes.resize(usize::try_from(at).unwrap(), 0);
    bytes.extend_from_slice(loader.as_bytes());
    bytes.push(0);
    bytes
}

/// A container that has the nodes and the library.
pub(super) fn preloaded() -> Made {
    let mut made = Made::new();
    made.onload();
    made.maps("/usr/lib64/libonload.so");
    made.program(GLIBC, PRELOADED);
    made
}

/// A container that was given the library and has none of it.
pub(super) fn lost(program: Option<&str>, environment: &str) -> Made {
    let mut made = Made::new();
    made.onload();
    made.program(program, environment);
    made
}

/// A pipe to the parent, which each write wakes.
struct Lines(Vec<u8>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(bytes.ends_with(b"\n"), "a line is written in pieces");
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Examines a container in this process.
pub(super) fn run_here(_: ExaminedContainer<'_>, examine: Examination<'_>) -> Vec<u8> {
    let mut answer = Lines(Vec::new());
    examine(ExaminationDepth::Everything, &mut answer);
    answer.0
}

/// Returns what is known of the container, of whose examination so many lines came in time.
pub(super) fn facts_after(made: &Made, lines: usize) -> ContainerFacts {
    let host = made.tree.host();
    let inventory = made.inventory(&host);
    let input = StatusInput {
        host: &host,
        inventory: &inventory,
        leases: Some(&made.leases),
        networks: &|_| made.network.clone(),
        has_program: &|_| None,
    };
    let group = ContainerGroup {
        engine: ContainerEngine::Docker,
        key: String::new(),
        id: ID.to_owned(),
        user: None,
        is_named: true,
        pids: vec![77],
    };
    let host_facts = read_host_facts(&input);
    let dirs = ContainerDirs::read(input.host);
    let mut run = |container: ExaminedContainer<'_>, examine: Examination<'_>| {
        let answer = run_here(container, examine);
        // The line after them has begun.
        let kept = answer.split_inclusive(|byte| *byte == b'\n').take(lines);
        kept.flatten().copied().chain(*b"{\"group\"").collect()
    };
    ContainerReader::new(input, host_facts, dirs).read_facts(group, &mut run).unwrap()
}

pub(super) fn facts_of(made: &Made) -> ContainerFacts {
    facts_after(made, 2)
}

/// The environment in the container's bundle.
pub(super) fn made_with(made: &Made, variables: &str) {
    let bundle = format!("/run/containerd/io.containerd.runtime.v2.task/moby/{ID}/config.json");
    made.file(&bundle, format!(r#"{{"process":{{"env":[{variables}]}}}}"#));
}
