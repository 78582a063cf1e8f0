//! `probe`, the hidden command that `try` runs in a container: it uses the device that it was given, and says on
//! stdout, a line each, what it saw.

mod system;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use onload_core::class::Class;
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::net::sockopt::set_ip_multicast_if_with_ifindex;

use super::trial::READY;
use crate::cli::Probe;
use crate::exit::Answer;
use crate::printer::Printer;

/// RFC 863: whoever gets it throws it away.
const DISCARD: u16 = 9;
const PATIENCE: Duration = Duration::from_secs(5);
/// VFIO_NOIOMMU_IOMMU, VFIO_TYPE1v2_IOMMU and VFIO_TYPE1_IOMMU.
const NOIOMMU: usize = 8;
const IOMMUS: [usize; 2] = [3, 1];

pub fn run(args: &Probe, printer: &mut Printer) -> anyhow::Result<Answer> {
    let name = args.name.as_str();
    let seen = match args.class {
        Class::Hugepages => hugepages(name)?,
        Class::Rdma => rdma(name)?,
        Class::Vfio => vfio(name)?,
        Class::Netdev => netdev(name)?,
        class => bail!(
            "trying {}: there is no probe for this class",
            class.as_str()
        ),
    };
    printer.print(format_args!("{seen}\n{READY}\n"))?;
    printer.flush()?;
    // Whoever started it looks at the container meanwhile, and then closes the pipe.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(Answer::Yes)
}

fn hugepages(size: &str) -> anyhow::Result<String> {
    let bytes = page_bytes(size)
        .with_context(|| format!("reading the page size {size:?}: it is not like 2Mi or 1Gi"))?;
    let mount = mount_of(&fs::read_to_string("/proc/self/mounts")?, |mount| {
        statfs(mount).is_ok_and(|about| u64::try_from(about.f_bsize).ok() == Some(bytes))
    });
    let mount = mount.with_context(|| {
        format!("looking for huge pages of {size}: no hugetlbfs of that size is mounted")
    })?;
    let path = mount.join("onload-ctk-probe");
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create_new(true).open(&path);
    let file = file.with_context(|| format!("making {}", path.display()))?;
    fs::remove_file(&path)?;
    file.set_len(bytes)?;
    match system::touch(&file, usize::try_from(bytes)?) {
        Ok(_) => Ok(format!(
            "a page of {size} was mapped and written below {}",
            mount.display()
        )),
        Err(Errno::NOMEM) => bail!(
            "mapping a page of {size}: none is free; free one, or raise vm.nr_hugepages (onload-ctk discover shows how many are free)"
        ),
        Err(error) => Err(error).with_context(|| format!("mapping a page of {size}")),
    }
}

fn page_bytes(size: &str) -> Option<u64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let (number, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((size.strip_suffix(unit)?, shift)))?;
    number.parse::<u64>().ok()?.checked_shl(*shift)
}

/// The first hugetlbfs among the lines of /proc/mounts that is the one meant.
fn mount_of(mounts: &str, is_meant: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let place = fields.next()?;
        (fields.next()? == "hugetlbfs").then(|| PathBuf::from(place))
    });
    mounted.into_iter().find(|mount| is_meant(mount))
}

fn rdma(name: &str) -> anyhow::Result<String> {
    let nodes = Path::new("/sys/class/infiniband_verbs");
    let listed = fs::read_dir(nodes).with_context(|| {
        format!("looking for RDMA device {name}: its kernel files are not in the container")
    })?;
    let mut names = listed.filter_map(|entry| Some(entry.ok()?.path()));
    let verbs = names.find(|verbs| attribute(&verbs.join("ibdev")).is_ok_and(|own| own == name));
    let verbs = verbs.with_context(|| {
        format!("looking for RDMA device {name}: the container's network does not have it")
    })?;
    let verbs = verbs.file_name().unwrap_or_default();
    let node = Path::new("/dev/infiniband").join(verbs);
    opened(&node)?;
    let ports = Path::new("/sys/class/infiniband").join(name).join("ports");
    let mut states = Vec::new();
    for port in fs::read_dir(&ports).into_iter().flatten().flatten() {
        let state = attribute(&port.path().join("state")).unwrap_or_default();
        let port = port.file_name();
        states.push(format!("port {} is {state}", port.to_string_lossy()));
    }
    if !states.iter().any(|state| state.ends_with("ACTIVE")) {
        bail!(
            "looking at RDMA device {name}: no port is active ({}); look at its link, and set its interface up",
            states.join(", ")
        );
    }
    Ok(format!(
        "{} opens, {}; no message was sent over the device",
        node.display(),
        states.join(", ")
    ))
}

fn attribute(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

fn opened(path: &Path) -> anyhow::Result<File> {
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).open(path);
    file.with_context(|| format!("opening {}", path.display()))
}

fn vfio(address: &str) -> anyhow::Result<String> {
    let link = format!("/sys/bus/pci/devices/{address}/iommu_group");
    let group = fs::read_link(&link)
        .with_context(|| format!("reading {link}, the IOMMU group of {address}"))?;
    let number = group.file_name().unwrap_or_default();
    let number = number.to_string_lossy().into_owned();
    let plain = PathBuf::from(format!("/dev/vfio/{number}"));
    let noiommu = PathBuf::from(format!("/dev/vfio/noiommu-{number}"));
    let (node, kinds) = if noiommu.exists() {
        (noiommu, &[NOIOMMU][..])
    } else {
        (plain, &IOMMUS[..])
    };
    let container = opened(Path::new("/dev/vfio/vfio"))?;
    let version =
        system::api_version(&container).context("asking /dev/vfio/vfio for its version")?;
    let group = opened(&node)?;
    let node = node.display();
    if !system::is_viable(&group).with_context(|| format!("asking {node} for its status"))? {
        bail!(
            "asking {node} for its status: the group is not viable, since another driver has a function of it; onload-ctk discover --explain names it"
        );
    }
    system::set_container(&group, &container)
        .with_context(|| format!("putting {node} into a vfio container"))?;
    let mut set = Err(Errno::INVAL);
    for kind in kinds {
        set = system::set_iommu(&container, *kind);
        if set.is_ok() {
            break;
        }
    }
    set.with_context(|| format!("setting the IOMMU of {node}"))?;
    system::open_device(&group, &CString::new(address)?)
        .with_context(|| format!("opening {address} of {node}"))?;
    Ok(format!(
        "{node} opens (vfio {version}), its group is viable, and {address} gave a descriptor"
    ))
}

fn netdev(name: &str) -> anyhow::Result<String> {
    let directory = Path::new("/sys/class/net").join(name);
    let index = attribute(&directory.join("ifindex")).with_context(|| {
        format!("looking for interface {name}: the container's network does not have it")
    })?;
    let sent = || -> anyhow::Result<u64> {
        let path = directory.join("statistics/tx_packets");
        let text = attribute(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(text.parse()?)
    };
    let before = sent()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let result = send_one(index.parse()?);
        let now = sent()?;
        if now > before {
            let packets = onload_sys::text::counted(now - before, "packet", "packets");
            return Ok(format!(
                "{name} is in the container's network, and {packets} left it"
            ));
        }
        if Instant::now() > deadline {
            result.with_context(|| format!("sending by {name}"))?;
            bail!(
                "sending by {name}: its counter of packets does not move; look at its link, and whether it is up"
            );
        }
        sleep(Duration::from_millis(200));
    }
}

/// To all hosts of the link, by that interface, which needs neither an address nor a route for it.
fn send_one(index: u32) -> io::Result<()> {
    let all = Ipv4Addr::new(224, 0, 0, 1);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    set_ip_multicast_if_with_ifindex(&socket, &all, &Ipv4Addr::UNSPECIFIED, index)?;
    socket.send_to(b"onload-ctk try\n", (all, DISCARD))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_those_of_device_names() {
        assert_eq!(page_bytes("2Mi"), Some(2 << 20));
        assert_eq!(page_bytes("1Gi"), Some(1 << 30));
        for size in ["", "Mi", "2M", "2mi", "-1Mi"] {
            assert_eq!(page_bytes(size), None, "{size}");
        }
    }

    #[test]
    fn the_mount_of_a_size_is_found_among_others() {
        let mounts = "proc /proc proc rw 0 0\nnone /dev/hugepages-1Gi hugetlbfs rw,pagesize=1024M 0 0\n\
                      none /dev/hugepages-2Mi hugetlbfs rw,pagesize=2M 0 0\n";
        let found = mount_of(mounts, |mount| mount.ends_with("hugepages-2Mi"));
        assert_eq!(found.as_deref(), Some(Path::new("/dev/hugepages-2Mi")));
        assert_eq!(mount_of(mounts, |mount| mount.ends_with("proc")), None);
    }

    #[test]
    fn what_the_container_does_not_have_is_said_by_name() {
        let said = |result: anyhow::Result<String>| format!("{:#}", result.unwrap_err());
        let error = said(netdev("nonexistent0"));
        assert!(
            error.contains(
                "looking for interface nonexistent0: the container's network does not have it"
            ),
            "{error}"
        );
        let error = said(vfio("ffff:ff:1f.7"));
        assert!(error.contains("the IOMMU group of ffff:ff:1f.7"), "{error}");
        let error = said(rdma("nonexistent0"));
        assert!(
            error.contains("looking for RDMA device nonexistent0"),
            "{error}"
        );
        let error = said(hugepages("3Mi"));
        assert!(
            error.contains("no hugetlbfs of that size is mounted"),
            "{error}"
        );
        let error = said(hugepages("many"));
        assert!(error.contains("it is not like 2Mi or 1Gi"), "{error}");
    }

    #[test]
    fn what_is_no_vfio_node_is_refused() {
        let file = File::open("/dev/null").unwrap();
        for error in [
            system::api_version(&file).map(drop).unwrap_err(),
            system::is_viable(&file).map(drop).unwrap_err(),
            system::set_container(&file, &file).unwrap_err(),
            system::set_iommu(&file, NOIOMMU).unwrap_err(),
            system::open_device(&file, c"0000:00:00.0").unwrap_err(),
        ] {
            assert_eq!(error, Errno::NOTTY);
        }
    }

    #[test]
    fn a_page_is_written_and_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(system::touch(&file, 4096), Ok(42));
    }
}
