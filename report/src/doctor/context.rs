//! The input of all checks: a host and the data already read from it.

use std::path::Path;

use onload_cdi::Registry;
use onload_core::config::Config;
use onload_engines::installed::VersionLookup;
use onload_host::devices::inventory::Inventory;
use onload_host::host::{EntryKind, Host, HostError};
use onload_host::pools::PoolSet;
use onload_lease::LeaseEntry;

use super::check::{Finding, Remedy};
use super::distribution::Distribution;

pub struct CheckContext<'e> {
    pub host: &'e Host,
    pub config: &'e Config,
    /// The configuration file, as the operator names it.
    pub config_file: &'e Path,
    /// Parts that are skipped.
    pub config_problems: &'e [anyhow::Error],
    pub inventory: &'e Inventory,
    pub pools: &'e PoolSet,
    /// Empty without the right to read them.
    pub leases: &'e [LeaseEntry],
    pub specs: &'e Registry,
    pub version_of: VersionLookup<'e>,
}

pub(super) const RELEASE: &str = "/proc/sys/kernel/osrelease";
const MODULES_LOAD: &str = "/etc/modules-load.d/onload-ctk.conf";
/// Since Linux 6.1.
const ARCH: &str = "/proc/sys/kernel/arch";

/// Empty where there is nothing to check.
pub(super) type Findings = HostResult<Vec<Finding>>;

pub(super) type HostResult<T> = Result<T, HostError>;

impl CheckContext<'_> {
    pub(super) fn exists(&self, path: impl AsRef<Path>) -> HostResult<bool> {
        Ok(self.host.entry(path.as_ref())?.is_some())
    }

    pub(super) fn is_file(&self, path: impl AsRef<Path>) -> HostResult<bool> {
        let entry = self.host.entry(path.as_ref())?;
        Ok(matches!(entry, Some(EntryKind::File { .. })))
    }

    pub(super) fn attribute(&self, path: impl AsRef<Path>) -> HostResult<Option<String>> {
        self.host.attribute(path.as_ref())
    }

    /// The first two numbers of the running kernel's release, where it is shown.
    pub(super) fn kernel_version(&self) -> HostResult<Option<(u32, u32)>> {
        Ok(self.attribute(RELEASE)?.as_deref().and_then(parse_kernel_version))
    }

    /// Whether the processor is a 64-bit Arm. If the kernel does not report it, this program's architecture is assumed.
    pub(super) fn is_arm(&self) -> HostResult<bool> {
        let arch = self.attribute(ARCH)?;
        Ok(arch.as_deref().unwrap_or(std::env::consts::ARCH) == "aarch64")
    }

    /// Whether a file is a link to /dev/null, by which units and rules are switched off.
    pub(super) fn is_masked(&self, path: impl AsRef<Path>) -> HostResult<bool> {
        let target = self.host.link(path.as_ref())?;
        Ok(target.is_some_and(|target| target == Path::new("/dev/null")))
    }

    /// How a program is installed that is not there, and that a command needs.
    pub(super) fn install_remedy(&self, program: &str) -> HostResult<Option<Remedy>> {
        for directory in ["/usr/bin", "/usr/sbin", "/bin", "/sbin"] {
            if self.is_file(Path::new(directory).join(program))? {
                return Ok(None);
            }
        }
        let distribution = Distribution::detect(self.host)?;
        let package = distribution.package_for(program);
        Ok(Some(Remedy::run(distribution.install(package))))
    }

    /// Returns what loads a module at each boot, unless that is written already.
    pub(super) fn module_remedy(&self, module: &str) -> HostResult<Option<Remedy>> {
        let text = self.host.text(MODULES_LOAD.as_ref())?.unwrap_or_default();
        let is_written = text.lines().any(|line| line.trim() == module);
        Ok((!is_written).then(|| Remedy::write(MODULES_LOAD, module)))
    }

    /// How the package's files come back: no archive of a distribution has it.
    pub(super) fn reinstall_remedy(&self) -> Remedy {
        let version = env!("CARGO_PKG_VERSION");
        Remedy::install(format!("onload-ctk {version} again"), "its package or archive")
    }

    /// Whether the package's units start what they are for, as the main one says: where it is not there, somebody else
    /// starts that. Its archive lays them down where there is no systemd, too.
    pub(super) fn has_units(&self) -> HostResult<bool> {
        Ok(self.is_file("/usr/lib/systemd/system/onload-cdi.service")?
            && Distribution::detect(self.host)?.has_systemd())
    }
}

/// Parses a release such as `6.12.48+deb13-amd64`.
fn parse_kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_told_by_its_first_two_numbers() {
        assert_eq!(parse_kernel_version("6.12.48+deb13-amd64"), Some((6, 12)));
        assert_eq!(parse_kernel_version("5.4.0-216-generic"), Some((5, 4)));
        assert_eq!(parse_kernel_version("5.14.0-503.el9.x86_64"), Some((5, 14)));
        assert_eq!(parse_kernel_version(""), None);
        assert_eq!(parse_kernel_version("6"), None);
    }
}
