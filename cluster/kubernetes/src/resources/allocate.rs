//! Decides what a container gets with devices of a resource, from the files on disk and without other state.

use std::collections::{BTreeMap, BTreeSet};

use super::pci_variables::{VariableDevice, pci_variables};
use super::resource::{PluginDevice, Resource};
use onload_host::offers::GENERATE;
use onload_sys::text::{Quoted, ShortList};
use tonic::Status;

use crate::wire::device_plugin::{CdiDevice, ContainerAllocateResponse};

/// The writer of the node's specifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecAuthor {
    #[default]
    Operator,
    Daemon,
}

impl SpecAuthor {
    /// Returns why a container would not find a device.
    pub fn missing_spec_reason(self, name: &str) -> String {
        let remedy = match self {
            SpecAuthor::Operator => {
                "\"systemctl restart onload-cdi.service\" or \"onload-ctk cdi generate\" on the node writes it"
            }
            SpecAuthor::Daemon => "see the log of onload-kubernetes on the node, which writes it",
        };
        format!("no CDI specification has {name}; {remedy}")
    }

    /// Returns a reason with the remedy for this node.
    pub(crate) fn with_node_advice(self, reason: &str) -> String {
        match self {
            SpecAuthor::Operator => reason.to_owned(),
            SpecAuthor::Daemon => reason.replace(
                GENERATE,
                "see the log of onload-kubernetes on the node, which writes the specifications",
            ),
        }
    }
}

#[derive(Clone, Copy)]
pub struct AllocateContext<'a> {
    /// The CDI devices in the specifications on disk.
    pub specs: &'a BTreeSet<String>,
    pub written_by: SpecAuthor,
    /// Why discovery does not offer a device with that name or address.
    pub exclusion_reason: &'a dyn Fn(&Resource, &str) -> Option<String>,
}

/// Returns what each container gets, in their order. Fails if one of them cannot get its devices. Kubernetes shows the
/// error to the owner of the pod.
pub fn allocate(
    resource: &Resource,
    containers: &[Vec<String>],
    context: AllocateContext<'_>,
) -> Result<Vec<ContainerAllocateResponse>, Status> {
    let mut used = BTreeSet::new();
    let responses = containers.iter().map(|ids| {
        if ids.is_empty() {
            return Err(Status::invalid_argument("no device is requested"));
        }
        if let Some(twice) = ids.iter().find(|id| !used.insert(id.as_str())) {
            let text = format!("device {} is requested twice", Quoted(twice));
            return Err(Status::invalid_argument(text));
        }
        allocate_container(resource, ids, context)
    });
    responses.collect()
}

fn allocate_container(
    resource: &Resource,
    ids: &[String],
    context: AllocateContext<'_>,
) -> Result<ContainerAllocateResponse, Status> {
    // Sorted by device, since the order of the ids has no meaning.
    let mut devices = BTreeMap::new();
    for id in ids {
        let device = find_usable(resource, id, context)?;
        devices.insert((device.class, device.name.as_str()), device);
    }
    // Without duplicates.
    let mut cdi_devices: Vec<CdiDevice> = Vec::new();
    for name in devices.values().flat_map(|device| &device.cdi) {
        if !context.specs.contains(name) {
            let text = context.written_by.missing_spec_reason(name);
            return Err(Status::failed_precondition(text));
        }
        let device = CdiDevice { name: name.clone() };
        if !cdi_devices.contains(&device) {
            cdi_devices.push(device);
        }
    }
    let functions = devices.into_values().map(VariableDevice::from);
    Ok(ContainerAllocateResponse {
        envs: pci_variables(&resource.name, functions),
        cdi_devices,
        ..ContainerAllocateResponse::default()
    })
}

fn find_usable<'r>(
    resource: &'r Resource,
    id: &str,
    context: AllocateContext<'_>,
) -> Result<&'r PluginDevice, Status> {
    let Some(device) = resource.device(id) else {
        let quoted = Quoted(id);
        return Err(match (context.exclusion_reason)(resource, id) {
            Some(reason) => {
                Status::failed_precondition(format!("device {quoted} is not offered: {reason}"))
            }
            None => {
                let known: Vec<String> =
                    resource.devices.iter().map(|device| device.name.clone()).collect();
                let known = ShortList(&known);
                Status::not_found(format!("unknown device {quoted}; the resource has {known}"))
            }
        });
    };
    match resource.unhealthy_reason(id) {
        None => Ok(device),
        Some(reason) => Err(Status::failed_precondition(format!(
            "device {} is not healthy: {}",
            Quoted(id),
            context.written_by.with_node_advice(reason)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use onload_host::offers::Health;

    use super::super::test_devices::{exclusive, resource, shared};
    use super::*;

    const NAMES: [&str; 3] =
        ["onload.dev/nic=ens1", "onload.dev/nic=ens2", "onload.dev/vfio=0000:81:10.0"];

    type Given = Result<Vec<ContainerAllocateResponse>, Status>;

    fn given(resource: &Resource, containers: &[Vec<String>]) -> Given {
        given_by(SpecAuthor::Operator, resource, containers)
    }

    fn given_by(written_by: SpecAuthor, resource: &Resource, containers: &[Vec<String>]) -> Given {
        let surroundings = AllocateContext {
            specs: &NAMES.map(str::to_owned).into(),
            written_by,
            exclusion_reason: &|_, id| {
                (id == "0000:81:10.7").then(|| "bound to igbvf; bind it to vfio-pci".to_owned())
            },
        };
        allocate(resource, containers, surroundings)
    }

    fn cdi(given: &ContainerAllocateResponse) -> Vec<&str> {
        let devices = given.cdi_devices.iter();
        devices.map(|device| device.name.as_str()).collect()
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn refusal(resource: &Resource, containers: &[Vec<String>]) -> String {
        let refused = given(resource, containers).unwrap_err();
        refused.message().to_owned()
    }

    #[test]
    fn slots_of_one_device_give_its_cdi_name_once() {
        let nics = resource("nic", vec![shared("ens1", 3), shared("ens2", 3)]);
        let given = given(&nics, &[ids(&["ens2-0", "ens1-2", "ens1-0"])]).unwrap();
        assert_eq!(cdi(&given[0]), ["onload.dev/nic=ens1", "onload.dev/nic=ens2"]);
        assert!(given[0].envs.is_empty());
    }

    #[test]
    fn each_container_of_a_request_gets_its_own_devices() {
        let nics = resource("nic", vec![shared("ens1", 3), shared("ens2", 3)]);
        let containers = [ids(&["ens1-0"]), ids(&["ens2-1"])];
        let given = given(&nics, &containers).unwrap();
        let given: Vec<Vec<&str>> = given.iter().map(cdi).collect();
        assert_eq!(given, [["onload.dev/nic=ens1"], ["onload.dev/nic=ens2"]]);
    }

    #[test]
    fn a_function_is_told_by_its_address() {
        let address = "0000:81:10.0";
        let vfio = resource("vfio", vec![exclusive(address, Some(address))]);
        let given = given(&vfio, &[ids(&[address])]).unwrap();
        assert_eq!(cdi(&given[0]), ["onload.dev/vfio=0000:81:10.0"]);
        assert_eq!(given[0].envs["PCIDEVICE_ONLOAD_DEV_VFIO"], address);
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
        assert!(!hostile.contains('\n') && !hostile.contains('\u{1b}'), "{hostile}");
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
        device.health = Health::Unhealthy("in use by container 3f2a".to_owned());
        let vfio = resource("vfio", vec![device]);
        assert_eq!(
            refusal(&vfio, &[ids(&["0000:81:10.0"])]),
            "device \"0000:81:10.0\" is not healthy: in use by container 3f2a"
        );
    }

    #[test]
    fn the_slots_that_others_have_are_the_last_and_refused() {
        let mut device = shared("ens1", 4);
        device.remaining = Some((1, "in use by container web".to_owned()));
        let nics = resource("nic", vec![device, shared("ens2", 4)]);
        assert_eq!(nics.count(), (5, 3));
        assert!(given(&nics, &[ids(&["ens1-0", "ens2-3"])]).is_ok());
        assert_eq!(
            refusal(&nics, &[ids(&["ens1-1"])]),
            "device \"ens1-1\" is not healthy: in use by container web"
        );
    }

    #[test]
    fn what_no_specification_has_is_refused_with_the_remedy() {
        let nics = resource("nic", vec![shared("ens1", 2), shared("gone", 2)]);
        let message = refusal(&nics, &[ids(&["ens1-0", "gone-1"])]);
        assert!(message.starts_with("no CDI specification has onload.dev/nic=gone; "), "{message}");
        assert!(message.contains("onload-ctk cdi generate"), "{message}");
    }

    #[test]
    fn where_the_daemon_writes_specifications_a_refusal_names_its_log() {
        let mut stale = shared("ens2", 2);
        stale.health = Health::Unhealthy(format!("devices have been renumbered; {GENERATE}"));
        let nics = resource("nic", vec![shared("gone", 2), stale]);
        let refusal_of = |id: &str| {
            let refused = given_by(SpecAuthor::Daemon, &nics, &[ids(&[id])]).unwrap_err();
            refused.message().to_owned()
        };
        assert_eq!(
            refusal_of("gone-0"),
            "no CDI specification has onload.dev/nic=gone; see the log of onload-kubernetes on the \
             node, which writes it"
        );
        assert!(refusal_of("ens2-0").ends_with("renumbered; see the log of onload-kubernetes on the node, which writes the specifications"));
    }

    #[test]
    fn one_id_twice_is_refused_in_one_container_and_in_two() {
        let nics = resource("nic", vec![shared("ens1", 2)]);
        let message = "device \"ens1-0\" is requested twice";
        assert_eq!(refusal(&nics, &[ids(&["ens1-0", "ens1-0"])]), message);
        assert_eq!(refusal(&nics, &[ids(&["ens1-0"]), ids(&["ens1-0"])]), message);
    }

    #[test]
    fn a_container_that_asks_for_nothing_is_refused() {
        let nics = resource("nic", vec![shared("ens1", 2)]);
        assert_eq!(refusal(&nics, &[ids(&[])]), "no device is requested");
        assert_eq!(given(&nics, &[]).unwrap(), []);
    }
}
