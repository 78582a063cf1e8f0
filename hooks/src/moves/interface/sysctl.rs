//! Settings of an interface in `net.ipv4.conf` and `net.ipv6.conf` (Documentation/networking/ip-sysctl.rst). After each
//! move, the kernel resets them to those of `conf.default`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use onload_lease::SavedInterface;
use onload_sys::netlink::link::Link;

use super::queues::read;
use crate::moves::netns::Netns;

/// The tree shows the settings of the calling thread's network namespace (net/sysctl_net.c, `net_ctl_header_lookup`).
const NET: &str = "/proc/sys/net";
/// Names in the tree that are not interfaces (net/core/sysctl_net_core.c, `sysctl_dev_name_is_allowed`).
const GROUP_NAMES: [&[u8]; 2] = [b"all", b"default"];
/// The settings that are saved: ARP and neighbour replies, router advertisements, and forwarding. They are few, since
/// they are read at each move.
const SAVED_SYSCTLS: [(&str, &[&str]); 2] = [
    (
        "ipv4",
        &[
            "arp_accept",
            "arp_announce",
            "arp_evict_nocarrier",
            "arp_filter",
            "arp_ignore",
            "arp_notify",
            "forwarding",
            "rp_filter",
        ],
    ),
    ("ipv6", &["accept_ra", "addr_gen_mode", "autoconf", "disable_ipv6", "forwarding"]),
];

/// The kernel accepts this value only together with a secret (net/ipv6/addrconf.c, `check_stable_privacy`), which the
/// move deletes and no lease saves.
const SECRET_MODE: (&str, &str) = ("addr_gen_mode", "2");

/// Returns the settings for the lease: those that differ from the default.
pub(super) fn save_sysctls(netns: &Netns, link: &Link) -> io::Result<BTreeMap<String, String>> {
    netns.run_inside(|| {
        let mut settings = BTreeMap::new();
        for (family, names) in SAVED_SYSCTLS {
            let Some(dir) = settings_dir(family, link) else {
                continue;
            };
            let default = dir.with_file_name("default");
            for name in names {
                let value = read(&dir.join(name));
                let is_set = value != read(&default.join(name));
                let value = value.filter(|value| is_set && (*name, value.as_str()) != SECRET_MODE);
                settings.extend(value.map(|value| (format!("{family}/{name}"), value)));
            }
        }
        Ok(settings)
    })
}

/// Restores the settings in a lease. Returns the names of those that differ.
pub(super) fn restore(netns: &Netns, link: &Link, saved: &SavedInterface) -> Vec<String> {
    if saved.sysctls.is_empty() {
        return Vec::new();
    }
    let restored = netns.run_inside(|| {
        let mut differences = Vec::new();
        for (family, names) in SAVED_SYSCTLS {
            for name in names {
                let Some(value) = saved.sysctls.get(&format!("{family}/{name}")) else {
                    continue;
                };
                let file = settings_dir(family, link).map(|dir| dir.join(name));
                if !file.is_some_and(|file| set(&file, value)) {
                    differences.push(format!("its {name} below net.{family}.conf"));
                }
            }
        }
        Ok(differences)
    });
    restored
        .unwrap_or_else(|_| vec!["what it has below net.ipv4.conf and net.ipv6.conf".to_owned()])
}

/// Enables IPv6 on an interface: docker before 26.0 disables it in container networks without IPv6.
pub(super) fn enable_ipv6(netns: &Netns, link: &Link) -> io::Result<()> {
    netns.run_inside(|| {
        let Some(file) = settings_dir("ipv6", link).map(|dir| dir.join("disable_ipv6")) else {
            return Ok(());
        };
        // If the file is missing, adding an address fails next and reports it.
        if read(&file).is_none_or(|value| value == "0") {
            return Ok(());
        }
        write(&file, "0")
    })
}

/// Returns the directory of an interface's settings.
fn settings_dir(family: &str, link: &Link) -> Option<PathBuf> {
    let name = OsStr::from_bytes(&link.name);
    let is_own =
        Path::new(name).file_name() == Some(name) && !GROUP_NAMES.contains(&link.name.as_slice());
    is_own.then(|| Path::new(NET).join(family).join("conf").join(name))
}

/// Returns whether the setting has this value afterwards.
fn set(file: &Path, value: &str) -> bool {
    let is_so = || read(file).as_deref() == Some(value);
    is_so() || write(file, value).is_ok() && is_so()
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(file)?;
    file.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use onload_test_tree::network::{self, Child};

    use super::*;
    use crate::moves::netns::test_namespace::netns;

    #[test]
    fn addresses_by_a_secret_that_is_not_kept_are_not_kept_either() {
        if !network::can_be("reading settings") {
            return;
        }
        let child = Child::of_root();
        child.ip("link add d0 type veth peer name d1");
        let netns = netns(&child);
        let link = || {
            let mut links = netns.links().unwrap().into_iter();
            links.find(|link| link.name == b"d0").unwrap()
        };
        let set = |name: &str, value: &str| {
            let file = Path::new("/proc/sys/net/ipv6/conf/d0").join(name);
            child.within(|| fs::write(&file, value).unwrap());
        };
        set("addr_gen_mode", "1");
        let kept = save_sysctls(&netns, &link()).unwrap();
        assert_eq!(kept.get("ipv6/addr_gen_mode").unwrap(), "1");
        // The kernel then makes its addresses by it.
        set("stable_secret", "2001:db8::1");
        assert_eq!(save_sysctls(&netns, &link()).unwrap(), BTreeMap::new());
    }

    #[test]
    fn settings_are_those_of_one_interface() {
        let dir = |name: &[u8]| {
            let link = Link { name: name.to_vec(), ..Link::default() };
            settings_dir("ipv6", &link)
        };
        let wanted = Path::new("/proc/sys/net/ipv6/conf/ens1.100");
        assert_eq!(dir(b"ens1.100").as_deref(), Some(wanted));
        // A container may call an interface so where that has no IPv6, for instance by its MTU.
        for name in [&b"all"[..], b"default", b"", b".", b"..", b"../ens1", b"ens1/"] {
            assert_eq!(dir(name), None, "{name:?}");
        }
    }
}
