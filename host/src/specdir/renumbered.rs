//! Compares specifications that differ only in the numbers of device nodes.

use std::collections::BTreeSet;

use onload_cdi::{ContainerEdits, Hook, Spec};
use onload_core::expectation::Expectation;
use onload_sys::device_number::DeviceNumber;

use super::manifest::SpecFormat;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RenumberedNode {
    pub node: String,
    pub before: Option<DeviceNumber>,
    pub now: Option<DeviceNumber>,
}

/// Returns the nodes whose numbers have changed, sorted. `None` if anything else differs.
pub fn find_renumbered(format: SpecFormat, old: &[u8], new: &[u8]) -> Option<Vec<RenumberedNode>> {
    let (old, before) = strip_numbers(format.parse(old)?);
    let (new, now) = strip_numbers(format.parse(new)?);
    if old != new {
        return None;
    }
    // They are equal except for the numbers, so they have the same nodes.
    let nodes: BTreeSet<RenumberedNode> = before
        .into_iter()
        .zip(now)
        .filter(|((_, before), (_, now))| before != now)
        .map(|((node, before), (_, now))| RenumberedNode { node, before, now })
        .collect();
    Some(nodes.into_iter().collect())
}

/// The nodes that hooks check, in the order of the specification, with their numbers.
type CheckedNumbers = Vec<(String, Option<DeviceNumber>)>;

fn strip_numbers(mut spec: Spec) -> (Spec, CheckedNumbers) {
    let mut numbers = CheckedNumbers::new();
    let devices = spec.devices.iter_mut();
    let edits = devices.map(|device| &mut device.container_edits);
    for edits in edits.chain([&mut spec.container_edits]) {
        remove_numbers(edits, &mut numbers);
    }
    (spec, numbers)
}

fn remove_numbers(edits: &mut ContainerEdits, numbers: &mut CheckedNumbers) {
    let hooks = edits.hooks.iter_mut();
    for arg in hooks.flat_map(|hook: &mut Hook| &mut hook.args) {
        let Ok(mut expectation) = arg.parse::<Expectation>() else {
            continue;
        };
        let number = expectation.number.take();
        *arg = expectation.to_string();
        numbers.push((expectation.node, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(expect: &str, node: &str) -> String {
        format!(
            r#"{{"cdiVersion":"0.5.0","kind":"onload.dev/nic","devices":[{{"name":"all","containerEdits":{{
            "deviceNodes":[{{"path":"{node}"}}],
            "hooks":[{{"hookName":"createRuntime","path":"/h","args":["onload-hook","createRuntime","--expect","{expect}"]}}]}}}}]}}"#
        )
    }

    fn changed(old: &str, new: &str) -> Option<String> {
        let (old, new) = (spec(old, "/dev/onload"), spec(new, "/dev/onload"));
        let found = find_renumbered(SpecFormat::Json, old.as_bytes(), new.as_bytes())?;
        let shown = found.iter().map(|node| {
            let text =
                |numbers: Option<DeviceNumber>| numbers.map_or("-".to_owned(), |n| n.to_string());
            format!("{} {} {}", node.node, text(node.before), text(node.now))
        });
        Some(shown.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn a_change_of_numbers_alone_is_told_with_its_node() {
        let found = changed("/dev/onload=nic:onload#243:0", "/dev/onload=nic:onload#239:0");
        assert_eq!(found.as_deref(), Some("/dev/onload 243:0 239:0"));
        let old = changed("/dev/onload=nic:onload", "/dev/onload=nic:onload#239:0");
        assert_eq!(old.as_deref(), Some("/dev/onload - 239:0"));
    }

    #[test]
    fn any_other_change_is_not_one_of_numbers_alone() {
        assert_eq!(
            changed("/dev/onload=nic:onload#243:0", "/dev/onload_epoll=nic:onload_epoll#239:0"),
            None
        );
        let old = spec("/dev/onload=nic:onload#243:0", "/dev/onload");
        let new = spec("/dev/onload=nic:onload#239:0", "/dev/other");
        assert_eq!(find_renumbered(SpecFormat::Json, old.as_bytes(), new.as_bytes()), None);
        assert_eq!(find_renumbered(SpecFormat::Json, b"{}", old.as_bytes()), None);
        assert_eq!(find_renumbered(SpecFormat::Json, old.as_bytes(), b"\xff"), None);
    }
}
