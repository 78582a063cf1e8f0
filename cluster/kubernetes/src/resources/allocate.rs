//! What a container gets with some devices of a resource. The answer is made of what is on disk, and
//! remembers nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::pcidevice::{Function, variables};
use super::resource::{Device, Resource};
use onload_core::text::{Listed, Quoted};
use onload_host::offers::GENERATE;

/// What a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub variables: BTreeMap<String, String>,
    /// CDI devices, each once.
    pub cdi: Vec<String>,
}

/// Why it gets nothing. Kubernetes shows the text to the owner of the pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no device is asked for")]
    Nothing,
    #[error("device {} is asked for twice", Quoted(.0))]
    Twice(String),
    /// The resource has no such id, and discovery knows why.
    #[error("device {} is not offered: {reason}", Quoted(.id))]
    NotOffered {
        id: String,
        /// What `discover` says.
        reason: String,
    },
    /// The resource has no such id.
    #[error("unknown device {}; the resource has {}", Quoted(.id), Listed(.known))]
    Unknown {
        id: String,
        /// The devices that there are.
        known: Vec<String>,
    },
    /// A container cannot use it now.
    #[error("device {} is not healthy: {reason}", Quoted(.id))]
    Unhealthy { id: String, reason: String },
    /// The runtime would not find it.
    #[error(
        "no CDI specification has {name}; \"systemctl restart onload-cdi.service\" or \"onload-ctk cdi generate\" on the node writes it"
    )]
    NoSpec { name: String },
    /// The same, where the daemon writes specifications.
    #[error(
        "no CDI specification has {name}; onload-kubernetes on the node writes it, and says in its log why it has not"
    )]
    Unwritten { name: String },
}

/// Who writes the node's specifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WrittenBy {
    /// The units of the package, or the operator.
    #[default]
    Operator,
    Daemon,
}

impl WrittenBy {
    fn no_spec(self, name: String) -> Refusal {
        match self {
            WrittenBy::Operator => Refusal::NoSpec { name },
            WrittenBy::Daemon => Refusal::Unwritten { name },
        }
    }

    /// A reason of the host's, with what helps on this node.
    fn reason(self, reason: &str) -> String {
        match self {
            WrittenBy::Operator => reason.to_owned(),
            WrittenBy::Daemon => reason.replace(
                GENERATE,
                "see the log of onload-kubernetes on the node, which writes the specifications",
            ),
        }
    }
}

/// What allocation looks at beside the resource.
pub trait Surroundings {
    /// Whether a specification on disk has that CDI device now.
    fn has_spec(&self, cdi: &str) -> bool;
    /// Who writes the specifications.
    fn written_by(&self) -> WrittenBy;
    /// Why discovery does not offer a device with that name or address.
    fn why_not_offered(&self, resource: &Resource, id: &str) -> Option<String>;
}

/// What each of some containers gets, in their order.
///
/// # Errors
/// [`Refusal`] for the first id that cannot be given; then no container gets anything.
pub fn allocate(
    resource: &Resource,
    containers: &[Vec<String>],
    surroundings: &dyn Surroundings,
) -> Result<Vec<Given>, Refusal> {
    let mut seen = BTreeSet::new();
    let given = containers.iter().map(|ids| {
        if ids.is_empty() {
            return Err(Refusal::Nothing);
        }
        if let Some(twice) = ids.iter().find(|id| !seen.insert(id.as_str())) {
            return Err(Refusal::Twice(twice.clone()));
        }
        container(resource, ids, surroundings)
    });
    given.collect()
}

fn container(
    resource: &Resource,
    ids: &[String],
    surroundings: &dyn Surroundings,
) -> Result<Given, Refusal> {
    // In the order of the devices: the order of the ids means nothing.
    let mut devices = BTreeMap::new();
    for id in ids {
        let device = usable(resource, id, surroundings)?;
        devices.insert((device.class, device.name.as_str()), device);
    }
    let mut cdi: Vec<String> = Vec::new();
    for name in devices.values().flat_map(|device| &device.cdi) {
        if !surroundings.has_spec(name) {
            return Err(surroundings.written_by().no_spec(name.clone()));
        }
        if !cdi.contains(name) {
            cdi.push(name.clone());
        }
    }
    let functions = devices.into_values().map(Function::from);
    Ok(Given {
        variables: variables(&resource.name, functions),
        cdi,
    })
}

fn usable<'r>(
    resource: &'r Resource,
    id: &str,
    surroundings: &dyn Surroundings,
) -> Result<&'r Device, Refusal> {
    let Some(device) = resource.device(id) else {
        let id = id.to_owned();
        return Err(match surroundings.why_not_offered(resource, &id) {
            Some(reason) => Refusal::NotOffered { id, reason },
            None => Refusal::Unknown {
                id,
                known: resource
                    .devices
                    .iter()
                    .map(|device| device.name.clone())
                    .collect(),
            },
        });
    };
    match resource.why_unhealthy(id) {
        None => Ok(device),
        Some(reason) => Err(Refusal::Unhealthy {
            id: id.to_owned(),
            reason: surroundings.written_by().reason(reason),
        }),
    }
}

#[cfg(test)]
mod tests {
    use onload_host::offers::Health;

    use super::super::test_devices::{exclusive, resource, shared};
    use super::*;

    struct Disk(&'static [&'static str], WrittenBy);

    impl Surroundings for Disk {
        fn has_spec(&self, cdi: &str) -> bool {
            self.0.contains(&cdi)
        }

        fn written_by(&self) -> WrittenBy {
            self.1
        }

        fn why_not_offered(&self, _: &Resource, id: &str) -> Option<String> {
            (id == "0000:81:10.7").then(|| "bound to igbvf; bind it to vfio-pci".to_owned())
        }
    }

    const NAMES: &[&str] = &[
        "onload.dev/nic=ens1",
        "onload.dev/nic=ens2",
        "onload.dev/vfio=0000:81:10.0",
    ];
    const DISK: Disk = Disk(NAMES, WrittenBy::Operator);

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn refusal(resource: &Resource, containers: &[Vec<String>]) -> String {
        allocate(resource, containers, &DISK)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn slots_of_one_device_give_its_cdi_name_once() {
        let nics = resource("nic", vec![shared("ens1", 3), shared("ens2", 3)]);
        let given = allocate(&nics, &[ids(&["ens2-0", "ens1-2", "ens1-0"])], &DISK).unwrap();
        assert_eq!(given[0].cdi, ["onload.dev/nic=ens1", "onload.dev/nic=ens2"]);
        assert!(given[0].variables.is_empty());
    }

    #[test]
    fn each_container_of_a_request_gets_its_own_devices() {
        let nics = resource("nic", vec![shared("ens1", 3), shared("ens2", 3)]);
        let containers = [ids(&["ens1-0"]), ids(&["ens2-1"])];
        let given = allocate(&nics, &containers, &DISK).unwrap();
        let cdi: Vec<&[String]> = given.iter().map(|given| given.cdi.as_slice()).collect();
        assert_eq!(cdi, [["onload.dev/nic=ens1"], ["onload.dev/nic=ens2"]]);
    }

    #[test]
    fn a_function_is_told_by_its_address() {
        let address = "0000:81:10.0";
        let vfio = resource("vfio", vec![exclusive(address, Some(address))]);
        let given = allocate(&vfio, &[ids(&[address])], &DISK).unwrap();
        assert_eq!(given[0].cdi, ["onload.dev/vfio=0000:81:10.0"]);
        assert_eq!(given[0].variables["PCIDEVICE_ONLOAD_DEV_VFIO"], address);
    }

    #[test]
    fn an_unknown_device_is_refused_with_those_that_there_are() {
        let nics = resource("nic", vec![shared("ens1", 2), shared("ens2", 2)]);
        for id in ["ens3-0", "ens1-2", "ens1", "0000:81:10.0", "", "ens1-00"] {
            assert_eq!(
                refusal(&nics, &[ids(&[id])]),
                format!("unknown device {id:?}; the resource has ens1, ens2")
            );
        }
        let hostile = refusal(&nics, &[ids(&["a\n\u{1b}[31m"])]);
        assert!(
            !hostile.contains('\n') && !hostile.contains('\u{1b}'),
            "{hostile}"
        );
        assert_eq!(
            refusal(&Resource::empty(nics.name), &[ids(&["ens1-0"])]),
            "unknown device \"ens1-0\"; the resource has nothing"
        );
    }

    #[test]
    fn a_device_that_is_not_offered_is_refused_with_the_reason_of_discovery() {
        let vfio = resource("vfio", vec![exclusive("0000:81:10.0", None)]);
        assert_eq!(
            refusal(&vfio, &[ids(&["0000:81:10.7"])]),
            "device \"0000:81:10.7\" is not offered: bound to igbvf; bind it to vfio-pci"
        );
    }

    #[test]
    fn an_unhealthy_device_is_refused_with_its_reason() {
        let mut device = exclusive("0000:81:10.0", Some("0000:81:10.0"));
        device.health = Health::Unhealthy("it is held by container 3f2a".to_owned());
        let vfio = resource("vfio", vec![device]);
        assert_eq!(
            refusal(&vfio, &[ids(&["0000:81:10.0"])]),
            "device \"0000:81:10.0\" is not healthy: it is held by container 3f2a"
        );
    }

    #[test]
    fn the_slots_that_others_have_are_the_last_and_refused() {
        let mut device = shared("ens1", 4);
        device.left = Some((1, "it is held by container web".to_owned()));
        let nics = resource("nic", vec![device, shared("ens2", 4)]);
        assert_eq!(nics.count(), (5, 3));
        assert!(allocate(&nics, &[ids(&["ens1-0", "ens2-3"])], &DISK).is_ok());
        assert_eq!(
            refusal(&nics, &[ids(&["ens1-1"])]),
            "device \"ens1-1\" is not healthy: it is held by container web"
        );
    }

    #[test]
    fn what_no_specification_has_is_refused_with_the_remedy() {
        let nics = resource("nic", vec![shared("ens1", 2), shared("gone", 2)]);
        let said = refusal(&nics, &[ids(&["ens1-0", "gone-1"])]);
        assert!(
            said.starts_with("no CDI specification has onload.dev/nic=gone; "),
            "{said}"
        );
        assert!(said.contains("onload-ctk cdi generate"), "{said}");
    }

    #[test]
    fn where_the_daemon_writes_specifications_a_refusal_names_its_log() {
        let disk = Disk(NAMES, WrittenBy::Daemon);
        let mut stale = shared("ens2", 2);
        stale.health = Health::Unhealthy(format!("devices have been renumbered; {GENERATE}"));
        let nics = resource("nic", vec![shared("gone", 2), stale]);
        let said = |id: &str| {
            allocate(&nics, &[ids(&[id])], &disk)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            said("gone-0"),
            "no CDI specification has onload.dev/nic=gone; onload-kubernetes on the node writes it, and says in its log why it has not"
        );
        assert!(said("ens2-0").ends_with("renumbered; see the log of onload-kubernetes on the node, which writes the specifications"));
    }

    #[test]
    fn one_id_twice_is_refused_in_one_container_and_in_two() {
        let nics = resource("nic", vec![shared("ens1", 2)]);
        let said = "device \"ens1-0\" is asked for twice";
        assert_eq!(refusal(&nics, &[ids(&["ens1-0", "ens1-0"])]), said);
        assert_eq!(refusal(&nics, &[ids(&["ens1-0"]), ids(&["ens1-0"])]), said);
    }

    #[test]
    fn a_container_that_asks_for_nothing_is_refused() {
        let nics = resource("nic", vec![shared("ens1", 2)]);
        assert_eq!(refusal(&nics, &[ids(&[])]), "no device is asked for");
        assert_eq!(allocate(&nics, &[], &DISK), Ok(Vec::new()));
    }
}
