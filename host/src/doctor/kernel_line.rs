//! How a word comes onto the kernel's command line, on Debian's and on Red Hat's systems.

use super::check::{Finding, Remedy};
use super::examined::Examined;
use crate::host::HostError;

/// Edits the entries of the boot loader, where Red Hat's are.
const GRUBBY: &str = "/usr/sbin/grubby";
const GRUB: &str = "/etc/default/grub";

/// The first step: where the words are written.
pub(super) fn write(examined: &Examined<'_>, words: &str) -> Result<Remedy, HostError> {
    Ok(match examined.is_file(GRUBBY)? {
        true => Remedy::run(format!("grubby --update-kernel=ALL --args=\"{words}\"")),
        false => {
            let line = format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {words}\"");
            Remedy::write(GRUB, line)
        }
    })
}

/// A finding whose first step was [`write()`], with the steps that follow it.
pub(super) fn then_reboot(examined: &Examined<'_>, finding: Finding) -> Result<Finding, HostError> {
    let finding = match examined.is_file(GRUBBY)? {
        true => finding,
        false => finding.then(Remedy::run("update-grub")),
    };
    Ok(finding.then(Remedy::run("systemctl reboot")))
}
