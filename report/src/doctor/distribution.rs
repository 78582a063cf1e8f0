//! Which distribution a host is of, so that a command is one that it has.

use std::path::Path;

use onload_core::rdma_providers::{LIBIBVERBS, LIBRDMACM};
use onload_host::host::{Host, HostError};

use super::check::Remedy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    Debian,
    Ubuntu,
    RedHat,
    /// Red Hat's as an image, whose /usr is read-only: CoreOS, Silverblue, bootc.
    RpmOstree,
    Suse,
    /// SUSE's in snapshots that are read-only: SL Micro, MicroOS.
    Transactional,
    Arch,
    Alpine,
}

/// os-release(5): the first that is there counts.
const FILES: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];
const DNF: &str = "/usr/bin/dnf";
const OSTREE: &str = "/run/ostree-booted";
const TRANSACTIONAL: &str = "/usr/sbin/transactional-update";

impl Distribution {
    pub(super) fn detect(host: &Host) -> Result<Distribution, HostError> {
        let exists = |path: &str| Ok(host.entry(Path::new(path))?.is_some());
        Ok(match Distribution::detect_base(host)? {
            Distribution::RedHat if exists(OSTREE)? => Distribution::RpmOstree,
            Distribution::Suse if exists(TRANSACTIONAL)? => Distribution::Transactional,
            known => known,
        })
    }

    /// By os-release(5), else by whether there is dnf.
    fn detect_base(host: &Host) -> Result<Distribution, HostError> {
        for file in FILES.map(Path::new) {
            if let Some(text) = host.text(file)? {
                if let Some(known) = Distribution::from_os_release(&text) {
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
    fn from_os_release(text: &str) -> Option<Distribution> {
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .unwrap_or_default()
                .trim_matches(['"', '\''])
        };
        let mut words = [value("ID"), value("ID_LIKE")].into_iter().flat_map(str::split_whitespace);
        words.find_map(|word| match word {
            "debian" => Some(Distribution::Debian),
            "ubuntu" => Some(Distribution::Ubuntu),
            "fedora" | "rhel" | "centos" => Some(Distribution::RedHat),
            "suse" | "opensuse" | "sles" => Some(Distribution::Suse),
            "arch" => Some(Distribution::Arch),
            "alpine" => Some(Distribution::Alpine),
            _ => None,
        })
    }

    /// The package of the distribution's own that has a program, or the provider libraries of libibverbs; mostly it is
    /// called as the program is.
    pub(super) fn package_for(self, program: &str) -> &str {
        match (program, self) {
            ("lspci" | "setpci", _) => "pciutils",
            ("cpupower", Distribution::Debian) => "linux-cpupower",
            // The package differs by kernel version: the program in /usr/bin only starts the one
            // for the running kernel.
            ("cpupower", Distribution::Ubuntu) => "linux-tools-$(uname -r)",
            ("cpupower", Distribution::RedHat | Distribution::RpmOstree) => "kernel-tools",
            (LIBIBVERBS, Distribution::Debian | Distribution::Ubuntu) => "ibverbs-providers",
            (LIBIBVERBS | LIBRDMACM, Distribution::Arch | Distribution::Alpine) => "rdma-core",
            (LIBIBVERBS, _) => "libibverbs",
            // The library's own package has a name that differs between releases.
            (LIBRDMACM, Distribution::Debian | Distribution::Ubuntu) => "rdmacm-utils",
            (LIBRDMACM, Distribution::Suse | Distribution::Transactional) => "librdmacm1",
            (LIBRDMACM, _) => "librdmacm",
            _ => program,
        }
    }

    /// The command that installs a package of the distribution's own.
    pub(super) fn install(self, package: &str) -> String {
        let command = match self {
            Distribution::Debian | Distribution::Ubuntu => "apt-get install",
            Distribution::RedHat => "dnf install",
            Distribution::RpmOstree => "rpm-ostree install --apply-live",
            Distribution::Suse => "zypper install",
            Distribution::Transactional => "transactional-update pkg install",
            Distribution::Arch => "pacman -S",
            Distribution::Alpine => "apk add",
        };
        format!("{command} {package}")
    }

    /// Alpine has OpenRC.
    pub(super) fn has_systemd(self) -> bool {
        self != Distribution::Alpine
    }

    pub(super) fn reboot_command(self) -> &'static str {
        if self.has_systemd() { "systemctl reboot" } else { "reboot" }
    }

    pub(super) fn restart_remedy(self, service: &str) -> Remedy {
        Remedy::run(if self.has_systemd() {
            format!("systemctl restart {service}")
        } else {
            format!("rc-service {service} restart")
        })
    }

    /// The command that makes GRUB's configuration of /etc/default/grub.
    pub(super) fn update_grub(self) -> &'static str {
        match self {
            Distribution::Debian | Distribution::Ubuntu | Distribution::Alpine => "update-grub",
            Distribution::RedHat | Distribution::RpmOstree | Distribution::Suse => {
                "grub2-mkconfig -o /boot/grub2/grub.cfg"
            }
            Distribution::Transactional => "transactional-update grub.cfg",
            Distribution::Arch => "grub-mkconfig -o /boot/grub/grub.cfg",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of os-release that count, as each release has them.
    const RELEASES: [(&str, Option<Distribution>); 24] = [
        ("ID=debian\nVERSION_ID=\"13\"\n", Some(Distribution::Debian)),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"22.04\"\n", Some(Distribution::Ubuntu)),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n", Some(Distribution::Ubuntu)),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"26.04\"\n", Some(Distribution::Ubuntu)),
        ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Some(Distribution::Ubuntu)),
        ("ID=raspbian\nID_LIKE=debian\n", Some(Distribution::Debian)),
        ("ID=\"rhel\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"9.6\"\n", Some(Distribution::RedHat)),
        (
            "ID=\"rhel\"\nID_LIKE=\"centos fedora\"\nVERSION_ID=\"10.0\"\n",
            Some(Distribution::RedHat),
        ),
        ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Some(Distribution::RedHat)),
        ("ID=\"almalinux\"\nID_LIKE=\"rhel centos fedora\"\n", Some(Distribution::RedHat)),
        ("ID=\"centos\"\nID_LIKE=\"rhel fedora\"\n", Some(Distribution::RedHat)),
        ("ID=\"ol\"\nID_LIKE=\"fedora\"\n", Some(Distribution::RedHat)),
        ("ID=\"amzn\"\nID_LIKE=\"fedora\"\n", Some(Distribution::RedHat)),
        ("ID=fedora\n", Some(Distribution::RedHat)),
        (
            "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\nVERSION_ID=\"15.6\"\n",
            Some(Distribution::Suse),
        ),
        ("ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n", Some(Distribution::Suse)),
        ("ID=\"sles\"\nID_LIKE=\"suse\"\nVERSION_ID=\"15.7\"\n", Some(Distribution::Suse)),
        ("ID=\"sle-micro\"\nID_LIKE=\"suse\"\n", Some(Distribution::Suse)),
        ("ID=arch\nBUILD_ID=rolling\n", Some(Distribution::Arch)),
        ("ID=manjaro\nID_LIKE=arch\n", Some(Distribution::Arch)),
        ("ID=alpine\nVERSION_ID=3.22.0\n", Some(Distribution::Alpine)),
        ("ID='alpine'\n", Some(Distribution::Alpine)),
        ("VERSION_ID=\"12\"\nBUILD_ID=debian\n", None),
        ("", None),
    ];

    #[test]
    fn a_distribution_is_told_by_its_own_name_or_by_what_it_is_like() {
        for (text, known) in RELEASES {
            assert_eq!(Distribution::from_os_release(text), known, "{text}");
        }
    }

    #[test]
    fn each_distribution_is_told_of_its_own_packages() {
        use Distribution::{Alpine, Arch, Debian, RedHat, RpmOstree, Suse, Transactional, Ubuntu};
        for (distribution, cpupower, verbs, rdmacm) in [
            (Debian, "linux-cpupower", "ibverbs-providers", "rdmacm-utils"),
            (Ubuntu, "linux-tools-$(uname -r)", "ibverbs-providers", "rdmacm-utils"),
            (RedHat, "kernel-tools", "libibverbs", "librdmacm"),
            (RpmOstree, "kernel-tools", "libibverbs", "librdmacm"),
            (Suse, "cpupower", "libibverbs", "librdmacm1"),
            (Transactional, "cpupower", "libibverbs", "librdmacm1"),
            (Arch, "cpupower", "rdma-core", "rdma-core"),
            (Alpine, "cpupower", "rdma-core", "rdma-core"),
        ] {
            let packages = ["cpupower", LIBIBVERBS, LIBRDMACM, "lspci"]
                .map(|program| distribution.package_for(program));
            assert_eq!(packages, [cpupower, verbs, rdmacm, "pciutils"]);
        }
    }
}
