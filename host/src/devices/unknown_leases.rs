//! What is said of devices in containers when the leases that name them cannot be read.

use std::path::PathBuf;

use onload_core::class::Class;
use onload_core::run_dir::RUN_DIR;

use super::inventory::Inventory;
use crate::discover::unread::Unread;

/// Nothing of the class is removed. `what` they are is for people.
pub(super) fn leave_unread(
    error: &anyhow::Error,
    class: Class,
    what: &str,
    inventory: &mut Inventory,
) {
    let reason = format!("{error:#}");
    let warning = format!("{what} that are in containers are not known: {reason}");
    inventory.unread.push(Unread {
        path: PathBuf::from(RUN_DIR),
        kinds: vec![class],
        reason,
    });
    inventory.unread.sort();
    inventory.warnings.push(warning);
    inventory.warnings.sort();
}
