//! What is said of devices in containers when the leases that name them cannot be read.

use std::path::PathBuf;

use onload_core::class::Class;
use onload_core::run_dir::RUN_DIR;
use onload_core::text::Chain;

use crate::discover::inventory::Inventory;
use crate::discover::unread::Unread;
use crate::leases::UnknownLeases;

/// Devices of a class that are in containers are not known, so nothing of the class is removed. `what` they are is for
/// people.
pub(super) fn leave_unread(
    error: &UnknownLeases,
    class: Class,
    what: &str,
    inventory: &mut Inventory,
) {
    let reason = Chain(error).to_string();
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
