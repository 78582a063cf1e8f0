//! Which distribution a host is of, so that a command is one that it has.

use std::path::Path;

use onload_core::providers::{LIBIBVERBS, LIBRDMACM};
use onload_host::host::{Host, HostError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    Debian,
    RedHat,
    Suse,
    Arch,
    Alpine,
}

/// os-release(5): the first that is there counts.
const FILES: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];
const DNF: &str = "/usr/bin/dnf";

impl Distribution {
    /// By os-release(5), else by whether there is dnf.
    pub(super) fn of(host: &Host) -> Result<Distribution, HostError> {
        for file in FILES.map(Path::new) {
            if let Some(text) = host.text(file)? {
                if let Some(known) = Distribution::named(&text) {
                    return Ok(known);
                }
                break;
            }
        }
        Ok(if host.entry(Path::new(DNF))?.is_some() {
            Distribution::RedHat
        } else {
            Distribution::Debian
        })
    }

    /// The first known name of `ID`, then of `ID_LIKE`, which begins with the closest.
    fn named(text: &str) -> Option<Distribution> {
        let value = |key: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.unwrap_or_default().trim_matches(['"', '\''])
        };
        let words = [value("ID"), value("ID_LIKE")];
        let mut words = words.into_iter().flat_map(str::split_whitespace);
        words.find_map(|word| match word {
            "debian" | "ubuntu" => Some(Distribution::Debian),
            "fedora" | "rhel" | "centos" => Some(Distribution::RedHat),
            "suse" | "opensuse" | "sles" => Some(Distribution::Suse),
            "arch" => Some(Distribution::Arch),
            "alpine" => Some(Distribution::Alpine),
            _ => None,
        })
    }

    /// The package of the distribution's own that has a program, or the provider libraries of libibverbs; mostly it is
    /// called as the program is.
    pub(super) fn package(self, program: &str) -> &str {
        match (program, self) {
            ("lspci" | "setpci", _) => "pciutils",
            ("cpupower", Distribution::Debian) => "linux-cpupower",
            ("cpupower", Distribution::RedHat) => "kernel-tools",
            (LIBIBVERBS, Distribution::Debian) => "ibverbs-providers",
            (LIBIBVERBS, Distribution::RedHat | Distribution::Suse) => "libibverbs",
            (LIBIBVERBS, Distribution::Arch | Distribution::Alpine) => "rdma-core",
            (LIBRDMACM, Distribution::Debian) => "rdmacm-utils",
            (LIBRDMACM, Distribution::RedHat) => "librdmacm",
            (LIBRDMACM, Distribution::Suse) => "librdmacm1",
            (LIBRDMACM, Distribution::Arch | Distribution::Alpine) => "rdma-core",
            _ => program,
        }
    }

    /// The command that installs a package of the distribution's own.
    pub(super) fn install(self, package: &str) -> String {
        let command = match self {
            Distribution::Debian => "apt-get install",
            Distribution::RedHat => "dnf install",
            Distribution::Suse => "zypper install",
            Distribution::Arch => "pacman -S",
            Distribution::Alpine => "apk add",
        };
        format!("{command} {package}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_told_by_its_own_name_or_by_what_it_is_like() {
        for (text, known) in [
            (
                "PRETTY_NAME=\"Debian\"\nID=debian\n",
                Some(Distribution::Debian),
            ),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                Some(Distribution::Debian),
            ),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                Some(Distribution::RedHat),
            ),
            ("ID=fedora\n", Some(Distribution::RedHat)),
            (
                "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n",
                Some(Distribution::Suse),
            ),
            ("ID=\"sles\"\nID_LIKE=\"suse\"\n", Some(Distribution::Suse)),
            ("ID=arch\n", Some(Distribution::Arch)),
            (
                "ID='alpine'\nVERSION_ID=3.22.0\n",
                Some(Distribution::Alpine),
            ),
            ("VERSION_ID=\"12\"\nBUILD_ID=debian\n", None),
            ("", None),
        ] {
            assert_eq!(Distribution::named(text), known, "{text}");
        }
    }
}
