//! The specification of a claim, for its containers only. It has a device for each leased device, whose hook leases the
//! real one for the claim (`--claim UID`), so that all containers of the claim share it. Nodes come from the real
//! device's specification, which is read again for each container. It also has a device for each request, with the file
//! that describes the request's devices and, if the pod requested an extended resource, the variables that a device
//! plugin sets.
//!
//! A second file names the claim and its devices, for [`mod@super::sweep`] and for the claim's status: a claim's name
//! does not fit into a file name, and CDI readers ignore files other than `.json` and `.yaml`. At the next start it
//! shows that kubelet needs a driver to unprepare the claim, regardless of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::resource::v1::NetworkDeviceData;
use onload_cdi::{ContainerEdits, Device, DeviceName, Hook, Mount, Spec, minimum_version, to_json};
use onload_core::claim_uid::ClaimUid;
use onload_core::class::Class;
use onload_core::device_id::DeviceId;
use onload_core::hook_arguments::HookArguments;
use onload_core::vf_config::{VfArgument, VfConfig};
use onload_sys::fs::atomic;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::snapshot::{CLAIM_FILES, CLAIM_KIND};
use crate::wire::dra::Claim;

/// Engines of any user may read specifications.
const READABLE: u32 = 0o644;
const SPEC: &str = ".json";
const OWNER: &str = ".claim";
/// Limit for the second file in bytes: a claim has at most 32 devices, each with names of at most 500 bytes and 16
/// addresses.
const MAX_OWNER_BYTES: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimDevice {
    pub(crate) request: String,
    pub(crate) device: DeviceId,
    /// The number of containers or claims that may have it at once.
    pub(crate) max_holders: u32,
    /// Arguments for the interface, if the claim configures it. The claim's hook runs first and moves it, so that the
    /// device's own hook finds it in the container.
    pub(crate) interface: Option<HookArguments>,
    /// Settings of its virtual function, if the claim's hook applies them.
    pub(crate) vf: Option<VfConfig>,
}

/// The claim and its devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedClaim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The pod's name for the claim, if it was created from a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod_claim: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) devices: Vec<PreparedDevice>,
}

impl PreparedClaim {
    /// Returns the claim as kubelet names it.
    pub(crate) fn claim(&self, uid: &ClaimUid) -> Claim {
        Claim { namespace: self.namespace.clone(), name: self.name.clone(), uid: uid.to_string() }
    }
}

/// A device of a claim with its names at the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreparedDevice {
    pub(crate) pool: String,
    pub(crate) device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share_id: Option<String>,
    /// Data of an interface in the pod, once it has moved there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkDeviceData>,
}

pub(crate) type HooksByClass = BTreeMap<Class, Vec<Hook>>;

pub(crate) type VariablesByRequest = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the CDI device name for a device of the claim. kubelet requires unique names.
pub(crate) fn cdi_device_name(uid: &ClaimUid, device: &DeviceId) -> String {
    format!("{CLAIM_KIND}={uid}.{}.{}", device.class, device.name)
}

pub(crate) fn cdi_request_name(uid: &ClaimUid, request: &str) -> String {
    format!("{CLAIM_KIND}={uid}.request.{request}")
}

/// Builds the specification. `None` if the claim needs none. `mounts` has the file that describes the devices of each
/// request.
pub(super) fn build_spec(
    uid: &ClaimUid,
    claim_devices: &[ClaimDevice],
    hooks: &HooksByClass,
    variables: &VariablesByRequest,
    mounts: &BTreeMap<String, Mount>,
) -> Option<Spec> {
    let mut edits_by_name: BTreeMap<String, ContainerEdits> = BTreeMap::new();
    for claim_device in claim_devices {
        let Some(hooks) = hooks.get(&claim_device.device.class) else {
            continue;
        };
        let edits = ContainerEdits {
            hooks: hooks.iter().map(|hook| hook_for_claim(hook, uid, claim_device)).collect(),
            ..ContainerEdits::default()
        };
        edits_by_name.insert(cdi_device_name(uid, &claim_device.device), edits);
    }
    for request in BTreeSet::from_iter(variables.keys().chain(mounts.keys())) {
        let variables = variables.get(request).into_iter().flatten();
        let edits = ContainerEdits {
            env: variables.map(|(name, value)| format!("{name}={value}")).collect(),
            mounts: mounts.get(request).cloned().into_iter().collect(),
            ..ContainerEdits::default()
        };
        edits_by_name.insert(cdi_request_name(uid, request), edits);
    }
    let mut devices = Vec::new();
    for (qualified_name, container_edits) in edits_by_name {
        let name = qualified_name.split_once('=').map(|(_, name)| DeviceName::try_from(name));
        if let Some(Ok(name)) = name {
            devices.push(Device { name: name.into(), container_edits, ..Device::default() });
        }
    }
    if devices.is_empty() {
        return None;
    }
    let mut spec = Spec { kind: CLAIM_KIND.into(), devices, ..Spec::default() };
    spec.cdi_version = minimum_version(&spec).version.to_string();
    Some(spec)
}

/// Returns a hook with the same program and stage, for a device of a claim.
fn hook_for_claim(hook: &Hook, uid: &ClaimUid, device: &ClaimDevice) -> Hook {
    let vf =
        device.vf.iter().map(|vf| VfArgument { device: device.device.clone(), vf: vf.clone() });
    let arguments = HookArguments {
        lease: vec![device.device.clone()],
        claim: Some(uid.clone()),
        vf: vf.collect(),
        ..device.interface.clone().unwrap_or_default()
    };
    let mut hook = hook.clone();
    hook.args.truncate(2);
    hook.args.extend(arguments.to_args());
    hook
}

/// The directory of the specifications of claims.
#[derive(Clone, Debug)]
pub(crate) struct ClaimSpecs {
    dir: PathBuf,
}

impl ClaimSpecs {
    pub(crate) fn new(dir: PathBuf) -> Self {
        ClaimSpecs { dir }
    }

    /// Writes the file that names the claim. It is written first, so that no specification is left without it.
    pub(crate) fn write_owner(&self, uid: &ClaimUid, prepared_claim: &PreparedClaim) -> Result<()> {
        let bytes = serde_json::to_vec(prepared_claim).with_context(|| self.open_context())?;
        self.write_one(&file_name(uid, OWNER), &bytes)
    }

    /// Writes the specification of a claim.
    pub(crate) fn write(&self, uid: &ClaimUid, spec: &Spec) -> Result<()> {
        self.write_one(&file_name(uid, SPEC), to_json(spec).as_bytes())
    }

    /// Writes a file unless it has this content, because engines read the whole directory again after a write.
    fn write_one(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if fs::read(self.dir.join(name)).is_ok_and(|existing| existing == bytes) {
            return Ok(());
        }
        fs::create_dir_all(&self.dir).with_context(|| self.open_context())?;
        let dir = self.open().with_context(|| self.open_context())?;
        // Locked, since the writer of the devices' specifications removes leftover temporary files each minute.
        let written = atomic::write_atomic_locked(dir, OsStr::new(name), bytes, READABLE);
        written.with_context(|| self.write_context())
    }

    /// Removes the files of a claim. Returns whether it had a specification.
    pub(crate) fn remove(&self, uid: &ClaimUid) -> Result<bool> {
        let dir = match self.open() {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error).with_context(|| self.open_context()),
        };
        let remove = |end| {
            let removed = atomic::remove(&dir, OsStr::new(&file_name(uid, end)));
            removed.with_context(|| self.write_context())
        };
        let had_spec = remove(SPEC)?;
        remove(OWNER)?;
        Ok(had_spec)
    }

    /// Returns whether both files of a claim exist whose devices are described to its pod.
    pub(crate) fn is_complete(&self, uid: &ClaimUid) -> bool {
        [OWNER, SPEC].iter().all(|end| self.dir.join(file_name(uid, end)).exists())
    }

    /// Returns the prepared claims, each with its record if it can be read.
    pub(crate) fn list(&self) -> BTreeMap<ClaimUid, Option<PreparedClaim>> {
        fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| parse_uid(&entry.file_name()))
            .map(|uid| {
                let prepared_claim = self.read_claim(&uid);
                (uid, prepared_claim)
            })
            .collect()
    }

    pub(crate) fn read_claim(&self, uid: &ClaimUid) -> Option<PreparedClaim> {
        let bytes = fs::read(self.dir.join(file_name(uid, OWNER))).ok()?;
        serde_json::from_slice(bytes.get(..MAX_OWNER_BYTES).unwrap_or(&bytes)).ok()
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.dir, flags, Mode::empty())?)
    }

    fn open_context(&self) -> String {
        let dir = self.dir.display();
        format!("opening the directory of specifications {dir}")
    }

    fn write_context(&self) -> String {
        let dir = self.dir.display();
        format!("writing what the claim's containers share to {dir}")
    }
}

fn file_name(uid: &ClaimUid, end: &str) -> String {
    format!("{CLAIM_FILES}{uid}{end}")
}

fn parse_uid(name: &OsStr) -> Option<ClaimUid> {
    let rest = name.to_str()?.strip_prefix(CLAIM_FILES)?;
    let uid = rest.strip_suffix(SPEC).or_else(|| rest.strip_suffix(OWNER));
    uid?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use onload_cdi::{Registry, validate};

    use super::*;
    use onload_test_tree::names_in;

    const UID: &str = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";

    fn uid() -> ClaimUid {
        UID.parse().unwrap()
    }

    fn owner() -> PreparedClaim {
        PreparedClaim {
            namespace: "default".to_owned(),
            name: "c".to_owned(),
            ..PreparedClaim::default()
        }
    }

    fn leased(name: &str) -> ClaimDevice {
        ClaimDevice {
            request: "vf".to_owned(),
            device: format!("vfio:{name}").parse().unwrap(),
            max_holders: 1,
            interface: None,
            vf: None,
        }
    }

    /// As the generator writes them for some other device.
    fn hooks() -> HooksByClass {
        let hook = |stage: &str| Hook {
            hook_name: stage.into(),
            path: "/opt/onload-ctk/0.1.0/onload-hook".to_owned(),
            args: ["onload-hook", stage, "--memlock", "unlimited", "--lease", "vfio:other"]
                .map(str::to_owned)
                .to_vec(),
            env: vec!["PATH=/usr/bin".to_owned()],
            timeout: Some(10),
        };
        BTreeMap::from([(Class::Vfio, vec![hook("createRuntime"), hook("poststop")])])
    }

    const NONE: &VariablesByRequest = &VariablesByRequest::new();
    const NO_MOUNTS: &BTreeMap<String, Mount> = &BTreeMap::new();

    fn write(specs: &ClaimSpecs, names: &[&str]) {
        let leased: Vec<ClaimDevice> = names.iter().map(|name| leased(name)).collect();
        specs.write_owner(&uid(), &owner()).unwrap();
        if let Some(spec) = build_spec(&uid(), &leased, &hooks(), NONE, NO_MOUNTS) {
            specs.write(&uid(), &spec).unwrap();
        }
    }

    #[test]
    fn each_device_of_a_claim_is_one_whose_hook_leases_it_for_the_claim() {
        let spec =
            build_spec(&uid(), &[leased("b"), leased("a")], &hooks(), NONE, NO_MOUNTS).unwrap();
        validate(&spec).unwrap();
        let device = &spec.devices[0];
        assert_eq!(device.name, format!("{UID}.vfio.a"));
        let hooks = &device.container_edits.hooks;
        let args: Vec<&[String]> = hooks.iter().map(|hook| hook.args.as_slice()).collect();
        let args_of = |stage| ["onload-hook", stage, "--lease", "vfio:a", "--claim", UID];
        assert_eq!(args, [args_of("createRuntime"), args_of("poststop")]);
        assert!(
            hooks.iter().all(|hook| hook.path.ends_with("/onload-hook") && !hook.env.is_empty())
        );
        let edits = &device.container_edits;
        assert!(edits.device_nodes.is_empty() && edits.env.is_empty() && edits.mounts.is_empty());
        assert_eq!(spec.devices.len(), 2);
    }

    #[test]
    fn a_request_of_a_resource_is_a_device_that_has_its_variables_alone() {
        let of_request =
            |value: &str| BTreeMap::from([("PCIDEVICE_A".to_owned(), value.to_owned())]);
        let variables = BTreeMap::from([
            ("container-0-request-0".to_owned(), of_request("0000:81:10.0")),
            ("container-1-request-0".to_owned(), of_request("0000:81:10.1")),
        ]);
        let spec = build_spec(&uid(), &[], &HooksByClass::new(), &variables, NO_MOUNTS).unwrap();
        validate(&spec).unwrap();
        let env: Vec<(String, Vec<String>)> = spec
            .devices
            .iter()
            .map(|device| {
                let name = device.name.as_str();
                let edits = &device.container_edits;
                assert!(edits.hooks.is_empty() && edits.device_nodes.is_empty());
                (format!("{CLAIM_KIND}={name}"), edits.env.clone())
            })
            .collect();
        let device = |container: u8, value: &str| {
            let name = cdi_request_name(&uid(), &format!("container-{container}-request-0"));
            (name, vec![format!("PCIDEVICE_A={value}")])
        };
        assert_eq!(env, [device(0, "0000:81:10.0"), device(1, "0000:81:10.1")]);
    }

    #[test]
    fn the_hook_of_a_claim_moves_an_interface_of_which_it_says_something() {
        let parse = |more: &[&str]| {
            let hook = ["onload-hook", "createRuntime", "--netdev", "ens1v0@0000:81:11.0"];
            let args: Vec<String> =
                hook.iter().chain(more).map(|word| (*word).to_owned()).collect();
            HookArguments::from_command(&args).unwrap().1
        };
        let vf = "vlan=100;vlans=100-199".parse().ok();
        let moved = ["--netdev", "ens1v0@0000:81:11.0"];
        let more = [
            "--vf",
            "netdev:ens1v0=vlan=100;vlans=100-199",
            "--address",
            "ens1v0=192.0.2.10/24",
            "--address",
            "ens1v0=2001:db8::10/64",
            "--route",
            "ens1v0=198.51.100.0/24 via 192.0.2.1",
            "--mtu",
            "ens1v0=1400",
            "--rename",
            "ens1v0=net1",
        ];
        let hooks = BTreeMap::from([(Class::Netdev, hooks().remove(&Class::Vfio).unwrap())]);
        for (vf, more) in [(vf, &more[..]), (None, &[])] {
            let leased = ClaimDevice {
                device: "netdev:ens1v0".parse().unwrap(),
                interface: Some(parse(more.get(2..).unwrap_or_default())),
                vf,
                ..leased("a")
            };
            let spec = build_spec(&uid(), &[leased], &hooks, NONE, NO_MOUNTS).unwrap();
            validate(&spec).unwrap();
            let hook = &spec.devices[0].container_edits.hooks[0];
            let first = ["onload-hook", "createRuntime", "--lease", "netdev:ens1v0"];
            let words = [&first[..], &["--claim", UID], &moved, more].concat();
            assert_eq!(hook.args, words);
            let (_, asked) = HookArguments::from_command(&hook.args).unwrap();
            assert_eq!(asked.claim, Some(uid()));
        }
    }

    #[test]
    fn the_hook_of_a_claim_sets_up_a_function_of_which_it_says_something() {
        let set_up =
            ClaimDevice { vf: "vlan=150;vlans=100-199".parse().ok(), ..leased("0000:81:10.0") };
        let spec = build_spec(&uid(), &[set_up], &hooks(), NONE, NO_MOUNTS).unwrap();
        validate(&spec).unwrap();
        let hooks = &spec.devices[0].container_edits.hooks;
        let args: Vec<&[String]> = hooks.iter().map(|hook| hook.args.as_slice()).collect();
        let (device, vf) = ("vfio:0000:81:10.0", "vfio:0000:81:10.0=vlan=150;vlans=100-199");
        let args_of = |stage| {
            let leased = ["onload-hook", stage, "--lease", device];
            [&leased[..], &["--claim", UID, "--vf", vf]].concat()
        };
        assert_eq!(args, [args_of("createRuntime"), args_of("poststop")]);
    }

    #[test]
    fn an_engine_finds_what_the_answer_names() {
        let dir = tempfile::tempdir().unwrap();
        let specs = ClaimSpecs::new(dir.path().join("cdi"));
        write(&specs, &["0000:81:10.0"]);
        let registry = Registry::scan(&[dir.path().join("cdi")]);
        let found: Vec<String> = registry.devices().map(|found| found.name.to_string()).collect();
        assert_eq!(found, [cdi_device_name(&uid(), &leased("0000:81:10.0").device)]);
        assert!(registry.errors().is_empty(), "{:?}", registry.errors());
        let mode =
            fs::metadata(dir.path().join("cdi").join(file_name(&uid(), SPEC))).unwrap().mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn hook_and_wrapper_have_no_work_with_it() {
        assert!(!file_name(&uid(), SPEC).starts_with("onload.dev-"));
    }

    #[test]
    fn a_claim_that_has_nothing_for_itself_has_no_specification_and_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let specs = ClaimSpecs::new(dir.path().to_owned());
        write(&specs, &[]);
        assert_eq!(names_in(dir.path()), [file_name(&uid(), OWNER)]);
        assert_eq!(specs.list(), BTreeMap::from([(uid(), Some(owner()))]));
        assert!(!specs.remove(&uid()).unwrap());
        assert!(names_in(dir.path()).is_empty());
        let rdma = ClaimDevice { device: "rdma:mlx5_0".parse().unwrap(), ..leased("a") };
        assert_eq!(build_spec(&uid(), &[rdma], &hooks(), NONE, NO_MOUNTS), None);
    }

    #[test]
    fn what_is_there_is_not_written_again_and_what_differs_is() {
        let dir = tempfile::tempdir().unwrap();
        let specs = ClaimSpecs::new(dir.path().to_owned());
        write(&specs, &["a"]);
        let path = dir.path().join(file_name(&uid(), SPEC));
        let before = fs::metadata(&path).unwrap().ino();
        write(&specs, &["a"]);
        assert_eq!(fs::metadata(&path).unwrap().ino(), before);
        fs::write(&path, "{").unwrap();
        write(&specs, &["a"]);
        assert!(fs::read_to_string(&path).unwrap().contains(".vfio.a"));
    }

    #[test]
    fn its_removal_leaves_nothing_and_touches_nobody_else_s() {
        let dir = tempfile::tempdir().unwrap();
        let specs = ClaimSpecs::new(dir.path().to_owned());
        write(&specs, &["a"]);
        let others = ["claim.onload.dev-other.json", "onload.dev-vfio.json", "vendor.json"];
        for other in others {
            fs::write(dir.path().join(other), "{}").unwrap();
        }
        assert!(specs.remove(&uid()).unwrap());
        assert_eq!(names_in(dir.path()), others);
        assert!(!specs.remove(&uid()).unwrap());
    }

    #[test]
    fn claims_that_have_one_are_listed_with_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let specs = ClaimSpecs::new(dir.path().to_owned());
        write(&specs, &["a"]);
        for foreign in [
            "claim.onload.dev-.json",
            "claim.onload.dev-a b.json",
            "claim.onload.dev-x.yaml",
            "x.claim",
        ] {
            fs::write(dir.path().join(foreign), "{}").unwrap();
        }
        fs::write(dir.path().join("claim.onload.dev-u2.json"), "{}").unwrap();
        let listed = specs.list();
        let expected = [(uid(), Some(owner())), ("u2".parse().unwrap(), None)];
        assert_eq!(listed, BTreeMap::from(expected));
        assert!(ClaimSpecs::new(dir.path().join("none")).list().is_empty());
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cdi"), "").unwrap();
        let specs = ClaimSpecs::new(dir.path().join("cdi"));
        let spec = build_spec(&uid(), &[leased("a")], &hooks(), NONE, NO_MOUNTS).unwrap();
        for written in [specs.write_owner(&uid(), &owner()), specs.write(&uid(), &spec)] {
            let line = written.unwrap_err().to_string();
            assert!(line.starts_with("opening the directory of specifications "), "{line}");
        }
    }
}
