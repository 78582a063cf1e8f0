//! `probe`, the hidden command that `try` runs in a container: it uses the device that it was given, and says on
//! stdout, a line each, what it saw.

mod files;
mod rdma;
mod system;
mod vfio;

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onload_core::class::Class;
use onload_core::host_settings::PageSize;
use onload_sys::mountinfo::parse_mounts_line;
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::net::sockopt::set_ip_multicast_if_with_ifindex;

use super::trial::READY_LINE;
use crate::cli::ProbeArgs;
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;
use files::read_attribute;

/// The discard port (RFC 863).
const DISCARD: u16 = 9;
/// A link takes seconds to come up after a move.
const TIMEOUT: Duration = Duration::from_secs(20);

pub fn run(args: &ProbeArgs, printer: &mut Printer) -> CommandResult {
    let name = args.name.as_str();
    let report = match args.class {
        Class::Hugepages => use_hugepages(name)?,
        // A GPU may have several.
        Class::Rdma => {
            let used: Result<Vec<String>> = name.split(',').map(rdma::use_device).collect();
            used?.join("; ")
        }
        Class::Vfio => vfio::use_device(name)?,
        Class::Netdev => use_netdev(name)?,
        class => bail!("trying {}: this class cannot be tested", class.as_str()),
    };
    printer.print(format_args!("{report}\n{READY_LINE}\n"))?;
    printer.flush()?;
    // The caller inspects the container and then closes the pipe.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(ExitAnswer::Yes)
}

fn use_hugepages(size: &str) -> Result<String> {
    let page = size.parse::<PageSize>().ok();
    let bytes = page.and_then(|page| page.kib().checked_mul(1024)).with_context(|| {
        format!("reading the page size {size:?}: expected a size such as 2Mi or 1Gi")
    })?;
    let mount = mount_of(&fs::read_to_string("/proc/self/mounts")?, |mount| {
        statfs(mount).is_ok_and(|stats| u64::try_from(stats.f_bsize).ok() == Some(bytes))
    })
    .with_context(|| {
        format!("looking for huge pages of {size}: no hugetlbfs of that size is mounted")
    })?;
    let path = mount.join("onload-ctk-probe");
    let mut open = OpenOptions::new();
    let file = open
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .with_context(|| format!("making {}", path.display()))?;
    fs::remove_file(&path)?;
    file.set_len(bytes)?;
    match system::touch_page(&file, usize::try_from(bytes)?) {
        Ok(_) => {
            Ok(format!("a page of {size} can be mapped and written below {}", mount.display()))
        }
        Err(Errno::NOMEM) => bail!(
            "mapping a page of {size}: none is free; free one, or raise hugepages-{}kB/nr_hugepages below /sys/kernel/mm/hugepages (onload-ctk discover shows how many are free)",
            bytes / 1024
        ),
        Err(error) => Err(error).with_context(|| format!("mapping a page of {size}")),
    }
}

/// The first hugetlbfs among the lines of /proc/mounts that is the one meant.
fn mount_of(mounts: &str, accepts: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    mounts
        .lines()
        .filter_map(|line| parse_mounts_line(line.as_bytes()))
        .filter(|mount| mount.fs_type == b"hugetlbfs")
        .map(|mount| PathBuf::from(OsStr::from_bytes(mount.point)))
        .find(|mount| accepts(mount))
}

fn use_netdev(name: &str) -> Result<String> {
    let directory = Path::new("/sys/class/net").join(name);
    let index = read_attribute(&directory.join("ifindex")).with_context(|| {
        format!("looking for interface {name}: the container's network does not have it")
    })?;
    let sent = || -> Result<u64> {
        let path = directory.join("statistics/tx_packets");
        let text = read_attribute(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(text.parse()?)
    };
    let before = sent()?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let result = send_one(index.parse()?);
        let now = sent()?;
        if now > before {
            let packets = onload_sys::text::format_count(now - before, "packet", "packets");
            return Ok(format!("{name} is in the container's network, and {packets} left it"));
        }
        if Instant::now() > deadline {
            result.with_context(|| format!("sending by {name}"))?;
            bail!(
                "sending by {name}: its packet counter does not change; check its link, and \
                 whether it is up"
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
    fn the_mount_of_a_size_is_found_among_others() {
        let mounts = "proc /proc proc rw 0 0\nnone /dev/hugepages-1Gi hugetlbfs rw,pagesize=1024M 0 0\n\
                      none /dev/hugepages-2Mi hugetlbfs rw,pagesize=2M 0 0\n";
        let found = mount_of(mounts, |mount| mount.ends_with("hugepages-2Mi"));
        assert_eq!(found.as_deref(), Some(Path::new("/dev/hugepages-2Mi")));
        assert_eq!(mount_of(mounts, |mount| mount.ends_with("proc")), None);
    }

    #[test]
    fn what_the_container_does_not_have_is_said_by_name() {
        let error_of = |result: Result<String>| format!("{:#}", result.unwrap_err());
        let error = error_of(use_netdev("nonexistent0"));
        assert!(
            error.contains(
                "looking for interface nonexistent0: the container's network does not have it"
            ),
            "{error}"
        );
        let error = error_of(use_hugepages("8Mi"));
        assert!(error.contains("no hugetlbfs of that size is mounted"), "{error}");
        let error = error_of(use_hugepages("many"));
        assert!(error.contains("expected a size such as 2Mi or 1Gi"), "{error}");
    }

    #[test]
    fn a_page_is_written_and_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(system::touch_page(&file, 4096), Ok(42));
    }
}
