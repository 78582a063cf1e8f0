//! The interface that Onload and TCPDirect use, where the specifications choose one for each device: more
//! than one device of a container chooses none.

use std::collections::BTreeSet;

use onload_cdi::ContainerEdits;
use onload_core::class::Class;
use onload_core::onload::{ONLOAD_INTERFACES, TCPDIRECT_ATTRIBUTES};
use onload_core::request::Request;

use super::specs::SpecEntry;

/// Removes the choice of an interface from the edits of one class, if the request names more than one.
/// `all` counts, since it means every interface, and `loopback` does not, since it means none. Returns
/// whether anything was removed.
pub(super) fn drop_ambiguous(
    edits: &mut ContainerEdits,
    entries: &[SpecEntry<'_>],
    request: &Request,
) -> bool {
    let (variable, classes): (&str, &[Class]) = match entries.first().map(|entry| entry.class) {
        Some(Class::Nic | Class::NicPlain) => {
            (ONLOAD_INTERFACES, &[Class::Nic, Class::NicPlain, Class::NicNodes])
        }
        Some(Class::Zf) => (TCPDIRECT_ATTRIBUTES, &[Class::Zf]),
        _ => return false,
    };
    let names: BTreeSet<&str> = classes
        .iter()
        .filter_map(|class| request.devices.get(class))
        .flat_map(|request_entry| {
            request_entry.value.iter().map(|device_ref| device_ref.name.as_str())
        })
        .filter(|name| *name != "loopback")
        .collect();
    if names.len() < 2 {
        return false;
    }
    // Variables that the operator sets for all devices of a file do not choose between them.
    let own: BTreeSet<&String> = entries
        .iter()
        .map(|entry| entry.resolved.device)
        .flat_map(|device| &device.container_edits.env)
        .collect();
    let before = edits.env.len();
    edits.env.retain(|entry| {
        let name = entry.split_once('=').map(|(name, _)| name);
        name != Some(variable) || !own.contains(entry)
    });
    edits.env.len() < before
}
