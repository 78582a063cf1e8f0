//! The interface that Onload and TCPDirect use, where the specifications choose one for each device: more
//! than one device of a container chooses none.

use std::collections::BTreeSet;

use onload_cdi::ContainerEdits;
use onload_core::class::Class;
use onload_core::onload::{ONLOAD_INTERFACES, TCPDIRECT_ATTRIBUTES};
use onload_core::request::Request;

use crate::host::specs::Entry;

/// The classes that give interfaces to Onload.
const ONLOAD: [Class; 3] = [Class::Nic, Class::NicPlain, Class::NicNodes];

/// Removes the choice of an interface from the edits of one class, if the request names more than one.
/// `all` counts, since it means every interface, and `loopback` does not, since it means none. Returns
/// whether anything was removed.
pub(super) fn drop_ambiguous(
    edits: &mut ContainerEdits,
    entries: &[Entry<'_>],
    request: &Request,
) -> bool {
    let Some((variable, classes)) = entries.first().and_then(|entry| chooser(entry.class)) else {
        return false;
    };
    let asked = classes
        .iter()
        .filter_map(|class| request.devices.get(class));
    let names: BTreeSet<&str> = asked
        .flat_map(|asked| asked.value.iter().map(|wanted| wanted.name.as_str()))
        .filter(|name| *name != "loopback")
        .collect();
    if names.len() < 2 {
        return false;
    }
    // What an operator sets for all devices of a file is no choice between them.
    let devices = entries.iter().map(|entry| entry.found.device);
    let chosen: BTreeSet<&String> = devices
        .flat_map(|device| &device.container_edits.env)
        .filter(|entry| is_of(entry, variable))
        .collect();
    let before = edits.env.len();
    edits.env.retain(|entry| !chosen.contains(entry));
    edits.env.len() < before
}

/// The variable by which a class chooses, and the classes whose interfaces it concerns.
fn chooser(class: Class) -> Option<(&'static str, &'static [Class])> {
    match class {
        Class::Nic | Class::NicPlain => Some((ONLOAD_INTERFACES, &ONLOAD)),
        Class::Zf => Some((TCPDIRECT_ATTRIBUTES, &[Class::Zf])),
        _ => None,
    }
}

fn is_of(entry: &str, variable: &str) -> bool {
    entry
        .split_once('=')
        .is_some_and(|(name, _)| name == variable)
}
