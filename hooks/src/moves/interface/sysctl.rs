//! Settings of an interface below `net.ipv4.conf` and `net.ipv6.conf` (Documentation/networking/ip-sysctl.rst).

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use onload_sys::netlink::link::Link;

use crate::moves::netns::Netns;

/// A thread finds those of the network namespace that it is in (net/sysctl_net.c, `net_ctl_header_lookup`).
const NET: &str = "/proc/sys/net";
/// What is called so there is no interface (net/core/sysctl_net_core.c, `sysctl_dev_name_is_allowed`).
const OF_ALL: [&[u8]; 2] = [b"all", b"default"];

/// Has an interface take IPv6 addresses: docker before 26.0 turns IPv6 off in a container's network that has none.
pub(super) fn allow_ipv6(netns: &Netns, link: &Link) -> io::Result<()> {
    netns.inside(|| {
        let file = dir("ipv6", &link.name)?.join("disable_ipv6");
        match fs::read_to_string(&file) {
            Ok(value) if value.trim_end() == "0" => Ok(()),
            Ok(_) => write(&file, "0"),
            // What is set next says that it has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    })
}

/// The directory with the settings of an interface.
fn dir(family: &str, name: &[u8]) -> io::Result<PathBuf> {
    let name = OsStr::from_bytes(name);
    if Path::new(name).file_name() != Some(name) || OF_ALL.contains(&name.as_bytes()) {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    Ok(Path::new(NET).join(family).join("conf").join(name))
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(file)?;
    file.write_all(value.as_bytes())
}
