//! A snapshot of the host for answers to kubelet: resources, and specifications on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use onload_cdi::{DeviceName, Hook, Registry};
use onload_core::class::Class;
use onload_core::config::{Config, Mover};
use onload_core::device_id::DeviceId;
use onload_core::hook_arguments::HookArguments;
use onload_core::vf_config::VfConfig;
use onload_host::discover::exclusion::{Exclusion, ExclusionSubject};
use onload_host::offers::{HostDevice, Survey};
use onload_host::spec_index::SpecFiles;

use crate::resources::{Resource, ResourcePlan, SpecAuthor, container_nodes, plan};

/// The CDI kind of devices of ResourceClaims.
pub const CLAIM_KIND: &str = "onload.dev/claim";
/// Prefix of their file names. It differs from `onload.dev-`, whose files the hook and the wrapper read.
pub const CLAIM_FILES: &str = "claim.onload.dev-";

#[derive(Debug)]
pub struct KubernetesSnapshot {
    pub plan: ResourcePlan,
    /// The host's offers, sorted by class and name.
    pub devices: Vec<HostDevice>,
    pub config: Config,
    /// The writer of the specifications, if known.
    pub written_by: SpecAuthor,
    /// The hooks in the specifications that lease a device of a class. Their device arguments must be replaced. Classes
    /// without leases have none.
    pub lease_hooks: BTreeMap<Class, Vec<Hook>>,
    /// The paths of each device's nodes in a container.
    pub nodes: BTreeMap<(Class, DeviceName), Vec<String>>,
    /// Settings of virtual functions while a container has them.
    pub vf: BTreeMap<DeviceId, VfConfig>,
    pub exclusions: Vec<Exclusion>,
    pub taken: Instant,
}

impl KubernetesSnapshot {
    /// Builds a snapshot from a survey, which is dropped as soon as possible.
    pub fn from_survey(
        survey: Survey,
        devices: Vec<HostDevice>,
        config: &Config,
        written_by: SpecAuthor,
    ) -> Self {
        let Survey { specs, mut inventory, pools, leases, .. } = survey;
        let exclusions = std::mem::take(&mut inventory.not_offered);
        drop((inventory, pools, leases));
        KubernetesSnapshot {
            plan: plan(&devices, &specs, config),
            nodes: device_nodes(&devices, &specs),
            devices,
            config: config.clone(),
            written_by,
            lease_hooks: lease_hooks(&specs),
            vf: vf_configs(&specs),
            exclusions,
            taken: Instant::now(),
        }
    }

    /// Returns whether a CNI plugin moves an interface into its container.
    pub fn is_moved_by_cni(&self, device: &HostDevice) -> bool {
        let pools = &self.config.pools;
        device.pools.iter().any(|name| pools.get(name).is_some_and(|pool| pool.mover == Mover::Cni))
    }

    /// Returns discovery's reason why a resource has no device with that id.
    pub fn exclusion_reason(&self, resource: &Resource, id: &str) -> Option<String> {
        let without_slot = id.rsplit_once('-').map(|(name, _)| name);
        for name in [Some(id), without_slot].into_iter().flatten() {
            let exclusion = self
                .exclusions
                .iter()
                .find(|exclusion| exclusion.name == name && may_concern(exclusion, resource));
            if let Some(exclusion) = exclusion {
                return Some(exclusion.reason.clone());
            }
        }
        None
    }
}

/// Returns whether a device that is not offered could be one of a resource.
fn may_concern(exclusion: &Exclusion, resource: &Resource) -> bool {
    let devices = &resource.devices;
    match exclusion.kind {
        ExclusionSubject::Device(class) => {
            devices.is_empty() || devices.iter().any(|device| device.class == class)
        }
        ExclusionSubject::Tool => false,
    }
}

fn device_nodes(
    devices: &[HostDevice],
    specs: &Registry,
) -> BTreeMap<(Class, DeviceName), Vec<String>> {
    let nodes = devices
        .iter()
        .map(|device| ((device.class, device.name.clone()), container_nodes(device, specs)));
    nodes.filter(|(_, nodes)| !nodes.is_empty()).collect()
}

fn vf_configs(specs: &Registry) -> BTreeMap<DeviceId, VfConfig> {
    let kinds = Class::FUNCTION_CLASSES.map(Class::cdi_kind);
    let mut configs = BTreeMap::new();
    for resolved in specs.devices() {
        if !kinds.iter().any(|kind| kind == resolved.name.kind.as_str()) {
            continue;
        }
        for hook in &resolved.device.container_edits.hooks {
            let arguments = HookArguments::from_command(&hook.args);
            for argument in arguments.into_iter().flat_map(|(_, arguments)| arguments.vf) {
                configs.insert(argument.device, argument.vf);
            }
        }
    }
    configs
}

/// Returns the hooks of the first device of each leased class. All devices of a class have the same hooks except for
/// their arguments.
fn lease_hooks(specs: &Registry) -> BTreeMap<Class, Vec<Hook>> {
    let leases = |hook: &&Hook| {
        let arguments = HookArguments::from_command(&hook.args);
        arguments.is_some_and(|(_, arguments)| !arguments.lease.is_empty())
    };
    let kinds = Class::ALL.map(|class| (class, class.cdi_kind()));
    let mut hooks = BTreeMap::new();
    for resolved in specs.devices() {
        let kind = resolved.name.kind.as_str();
        let class = kinds.iter().find(|(_, of_class)| of_class == kind);
        let Some((class, _)) = class.filter(|(class, _)| !hooks.contains_key(class)) else {
            continue;
        };
        let edits = &resolved.device.container_edits;
        let leasing: Vec<Hook> = edits.hooks.iter().filter(leases).cloned().collect();
        if !leasing.is_empty() {
            hooks.insert(*class, leasing);
        }
    }
    hooks
}

/// The names of the CDI devices of our classes. An answer looks only at the files that the last survey read, and reads
/// them again only if one has changed, so other vendors' files never delay it.
#[derive(Debug)]
pub struct SpecNames {
    dirs: Vec<PathBuf>,
    read: Mutex<(SpecFiles, Arc<BTreeSet<String>>)>,
}

impl SpecNames {
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        SpecNames { dirs, read: Mutex::default() }
    }

    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    fn lock_read(&self) -> MutexGuard<'_, (SpecFiles, Arc<BTreeSet<String>>)> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the names that a survey has read.
    pub fn update(&self, specs: &Registry, files: &SpecFiles) -> Arc<BTreeSet<String>> {
        let mut read = self.lock_read();
        if read.0 != *files {
            let names = specs.devices().map(|device| device.name.to_string());
            *read = (files.clone(), Arc::new(names.collect()));
        }
        Arc::clone(&read.1)
    }

    pub fn current(&self) -> Arc<BTreeSet<String>> {
        let (files, names) = self.lock_read().clone();
        if files.is_current() {
            return names;
        }
        let (specs, files) = files.read();
        self.update(&specs, &files)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use onload_host::spec_index::SpecIndex;

    use super::*;

    const SPEC: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/nic","devices":[{"name":"NAME","containerEdits":{"env":["A=1"]}}]}"#;

    fn names(specs: &SpecNames) -> Vec<String> {
        specs.current().iter().cloned().collect()
    }

    #[test]
    fn names_are_those_of_the_files_that_the_survey_read() {
        let dir = tempfile::tempdir().unwrap();
        let specs = SpecNames::new(vec![dir.path().to_owned()]);
        let index = SpecIndex::default();
        let survey = || {
            let (registry, files) = index.scan(specs.dirs());
            specs.update(&registry, &files);
        };
        let file = dir.path().join("onload.dev-nic.json");
        fs::write(&file, SPEC.replace("NAME", "ens1")).unwrap();
        assert!(names(&specs).is_empty());
        survey();
        assert_eq!(names(&specs), ["onload.dev/nic=ens1"]);
        // A file of the same length and name takes its place, as the generator does it.
        let other = dir.path().join("new");
        fs::write(&other, SPEC.replace("NAME", "ens2")).unwrap();
        fs::rename(&other, &file).unwrap();
        assert_eq!(names(&specs), ["onload.dev/nic=ens2"]);
        fs::write(dir.path().join("other.json"), SPEC.replace("onload.dev/nic", "a.b/c")).unwrap();
        let before = specs.current();
        survey();
        assert!(Arc::ptr_eq(&before, &specs.current()));
        fs::write(&file, "{").unwrap();
        assert!(names(&specs).is_empty());
        fs::remove_file(&file).unwrap();
        assert!(names(&specs).is_empty());
    }

    #[test]
    fn each_class_that_is_leased_has_the_hooks_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let golden =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/debian13-2numa-stand-ins");
        for class in ["nic", "vfio"] {
            let name = format!("onload.dev-{class}.json");
            fs::copy(format!("{golden}/{name}"), dir.path().join(name)).unwrap();
        }
        let hooks = lease_hooks(&Registry::scan(&[dir.path().to_owned()]));
        assert_eq!(hooks.keys().collect::<Vec<_>>(), [&Class::Vfio]);
        let stages = hooks[&Class::Vfio].iter().map(|hook| hook.args[1].as_str());
        assert_eq!(stages.collect::<Vec<_>>(), ["createRuntime", "poststop"]);
    }

    #[test]
    fn what_a_function_is_to_be_is_what_its_own_hook_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let spec_text = |kind: &str, vf: &str| {
            let (leased, _) = vf.split_once('=').unwrap();
            let args = ["onload-hook", "createRuntime", "--lease", leased, "--vf", vf];
            let hook = serde_json::json!({"hookName": "createRuntime", "path": "/h", "args": args});
            let edits = serde_json::json!({"hooks": [hook]});
            let devices = serde_json::json!([{"name": "ens1v0", "containerEdits": edits}]);
            serde_json::json!({"cdiVersion": "0.3.0", "kind": kind, "devices": devices}).to_string()
        };
        for (file, kind, vf) in [
            ("onload.dev-netdev.json", "onload.dev/netdev", "netdev:ens1v0=vlans=100-199"),
            ("onload.dev-vfio.json", "onload.dev/vfio", "vfio:0000:81:10.0=vlan=7"),
            ("claim.onload.dev-1.json", CLAIM_KIND, "netdev:ens1v0=vlan=150;vlans=100-199"),
        ] {
            fs::write(dir.path().join(file), spec_text(kind, vf)).unwrap();
        }
        let functions = vf_configs(&Registry::scan(&[dir.path().to_owned()]));
        let listed: Vec<String> =
            functions.iter().map(|(device, vf)| format!("{device} {vf}")).collect();
        let expected = ["vfio:0000:81:10.0 vlan=7", "netdev:ens1v0 vlans=100-199"];
        assert_eq!(listed, expected);
    }
}
