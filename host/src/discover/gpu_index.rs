//! The numbers by which a vendor's own CDI specifications name GPUs, as in `nvidia.com/gpu=0`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_cdi::{
    ContainerEdits, DEFAULT_DIRS, DeviceNode, LoadError, ParseError, Registry, Spec, SpecSource,
    from_json, from_yaml, to_json, validate,
};
use onload_core::{gpu_name, kfd};
use onload_sys::pci::PciAddress;
use onload_sys::text::parse_decimal;

use super::gpu;
use super::pci::{PciFunction, PciFunctions};
use super::probe::Probe;
use crate::engine_dirs::engine_dirs;
use crate::host::HostError;
use crate::spec_index::{AMD_GPU, NVIDIA_GPU};

/// A directory for each GPU that NVIDIA's driver has.
pub const NVIDIA_GPUS: &str = "/proc/driver/nvidia/gpus";
/// A node that belongs to no GPU.
const NO_GPU_NODE: &str = "/dev/null";

const ADVICE: &str = "request by the address, as gpu-0000:1b:00.0";

/// A vendor that numbers GPUs.
struct GpuVendor {
    kind: &'static str,
    /// The same as in [`gpu::vendor`].
    name: &'static str,
    /// Returns the nodes that belong to a single one of these GPUs.
    nodes: fn(&Probe<'_>, &[&PciFunction]) -> Vec<GpuNodes>,
}

type GpuNodes = (PciAddress, Vec<String>);

const VENDORS: [GpuVendor; 2] = [
    GpuVendor { kind: NVIDIA_GPU, name: "NVIDIA", nodes: nvidia_nodes },
    GpuVendor { kind: AMD_GPU, name: "AMD", nodes: amd_nodes },
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuIndexes {
    pub(crate) known: BTreeMap<u32, PciAddress>,
    /// Names that are not offered, each with the reason.
    pub(crate) unknown: BTreeMap<String, String>,
}

/// Reads the numbers. Empty on a host without GPUs.
pub(crate) fn read(probe: &Probe<'_>, functions: &PciFunctions) -> GpuIndexes {
    let gpus: Vec<(&PciFunction, &str)> = gpu::gpus(functions).collect();
    if gpus.is_empty() {
        return GpuIndexes::default();
    }
    let specs = read_specs(probe);
    let numbering: Vec<_> = VENDORS
        .iter()
        .map(|vendor| (vendor, numbered_nodes(&specs, vendor)))
        .filter(|(_, names)| !names.is_empty())
        .collect();
    match numbering.as_slice() {
        [] => unknown_index(
            "no CDI specification of nvidia.com/gpu or amd.com/gpu on this host numbers GPUs",
        ),
        [(vendor, names)] => {
            let vendor_gpus: Vec<&PciFunction> =
                gpus.iter().filter(|(_, name)| *name == vendor.name).map(|(gpu, _)| *gpu).collect();
            match_indexes(vendor, names, &(vendor.nodes)(probe, &vendor_gpus))
        }
        _ => unknown_index("both nvidia.com/gpu and amd.com/gpu number GPUs"),
    }
}

fn unknown_index(why: &str) -> GpuIndexes {
    let reason = format!("{why}; {ADVICE}");
    GpuIndexes {
        unknown: BTreeMap::from([(gpu_name::from_index(0), reason)]),
        ..GpuIndexes::default()
    }
}

/// Returns the node paths by GPU number in the device names. For a divided GPU only its slices are listed.
fn numbered_nodes(specs: &Registry, vendor: &GpuVendor) -> BTreeMap<u32, BTreeSet<String>> {
    let devices = specs.devices().filter(|resolved| resolved.name.kind.as_str() == vendor.kind);
    let mut numbered: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for resolved in devices {
        if let Some(index) = gpu_name::vendor_index(resolved.name.device.as_str()) {
            let paths =
                resolved.device.container_edits.device_nodes.iter().map(|node| node.path.clone());
            numbered.entry(index).or_default().extend(paths);
        }
    }
    numbered
}

fn match_indexes(
    vendor: &GpuVendor,
    names: &BTreeMap<u32, BTreeSet<String>>,
    gpus: &[GpuNodes],
) -> GpuIndexes {
    let mut indexes = GpuIndexes::default();
    for (index, paths) in names {
        let matching: Vec<PciAddress> = gpus
            .iter()
            .filter(|(_, nodes)| nodes.iter().any(|node| paths.contains(node)))
            .map(|(gpu, _)| *gpu)
            .collect();
        if let [gpu] = matching[..] {
            indexes.known.insert(*index, gpu);
            continue;
        }
        let (kind, number) =
            (vendor.kind, if matching.is_empty() { "no GPU" } else { "several GPUs" });
        let reason =
            format!("the nodes of {kind}={index} belong to {number} by PCI address; {ADVICE}");
        indexes.unknown.insert(gpu_name::from_index(*index), reason);
    }
    indexes
}

/// Finds the nodes by the minor number in the driver's information.
fn nvidia_nodes(probe: &Probe<'_>, gpus: &[&PciFunction]) -> Vec<GpuNodes> {
    let mut nodes = Vec::new();
    for gpu in gpus {
        let path = format!("{NVIDIA_GPUS}/{}/information", gpu.address);
        let text = probe.ok_or_warn(probe.host().text(Path::new(&path)));
        let minor = text.as_deref().and_then(device_minor);
        let node = minor.map(|minor| format!("/dev/nvidia{minor}"));
        nodes.push((gpu.address, node.into_iter().collect()));
    }
    nodes
}

/// Parses a line such as `Device Minor: \t 3`.
fn device_minor(information: &str) -> Option<u32> {
    let minor = information.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
    parse_decimal(minor.trim())
}

/// Finds the render nodes of a GPU and its partitions.
fn amd_nodes(probe: &Probe<'_>, gpus: &[&PciFunction]) -> Vec<GpuNodes> {
    let directory = Path::new("/sys").join(kfd::NODES);
    let mut partitions = Vec::new();
    for node in probe.list(&directory) {
        let path = directory.join(node).join(kfd::PROPERTIES);
        let properties = probe.ok_or_warn(if_readable(probe.host().text(&path)));
        partitions.extend(properties.as_deref().and_then(kfd::render_node));
    }
    let mut nodes = Vec::new();
    for gpu in gpus {
        let mut names = probe.list(gpu.directory().join("drm"));
        names.retain(|name| name.starts_with("renderD"));
        for (minor, address) in &partitions {
            if *address == gpu.address {
                names.push(format!("renderD{minor}"));
            }
        }
        let paths = names.into_iter().map(|name| format!("/dev/dri/{name}"));
        nodes.push((gpu.address, paths.collect()));
    }
    nodes
}

/// Treats a refused read as absent. amdkfd shows a GPU only to processes whose cgroup may open its render node
/// (`node_show` in drivers/gpu/drm/amd/amdkfd/kfd_topology.c), so not to a daemon in a pod, where partitions are
/// unknown.
fn if_readable(text: Result<Option<String>, HostError>) -> Result<Option<String>, HostError> {
    match text {
        Err(error) if error.is_not_permitted() => Ok(None),
        text => text,
    }
}

/// Reads these vendors' specifications in the directories that engines use.
fn read_specs(probe: &Probe<'_>) -> Registry {
    let host = probe.host();
    let mut sources = Vec::new();
    // The index knows the files by these paths.
    let outside_dirs = engine_dirs(host).unwrap_or_default();
    for (priority, dir) in DEFAULT_DIRS.iter().enumerate() {
        for name in probe.list(dir) {
            if outside_dirs
                .get(priority)
                .is_some_and(|dir| !host.spec_index().is_relevant(&dir.join(&name)))
            {
                continue;
            }
            let path = Path::new(dir).join(&name);
            let text = probe.ok_or_warn(host.text(&path)).unwrap_or_default();
            if let Some(content) = parse_spec(&path, &text) {
                sources.push(SpecSource { path, priority, content });
            }
        }
    }
    Registry::from_sources(sources)
}

/// Returns `None` if the file does not mention these vendors.
fn parse_spec(path: &Path, text: &str) -> Option<Result<Spec, LoadError>> {
    let parse: fn(&[u8]) -> Result<Spec, ParseError> = match path.extension()?.to_str()? {
        "json" => from_json,
        "yaml" => from_yaml,
        _ => return None,
    };
    VENDORS
        .iter()
        .any(|vendor| text.contains(vendor.kind))
        .then(|| parse(text.as_bytes()).map_err(LoadError::from))
}

/// Returns the part of a CDI file that discovery reads: the kind, the numbers of GPUs and the paths of their nodes. Anything
/// else in it may be secret: variables, hooks with their arguments, mounts, and the files of other kinds.
pub fn keep_numbered_nodes(path: &Path, text: &str) -> String {
    let Some(Ok(mut spec)) = parse_spec(path, text) else {
        return String::new();
    };
    if validate(&spec).is_err() || !VENDORS.iter().any(|vendor| vendor.kind == spec.kind.as_str()) {
        return String::new();
    }
    spec.annotations.clear();
    spec.container_edits = ContainerEdits::default();
    spec.devices.retain(|device| gpu_name::vendor_index(device.name.as_str()).is_some());
    if spec.devices.is_empty() {
        return String::new();
    }
    for device in &mut spec.devices {
        let mut paths: Vec<String> = device
            .container_edits
            .device_nodes
            .iter()
            .map(|node| node.path.clone())
            .filter(|path| is_gpu_node(path))
            .collect();
        if paths.is_empty() {
            // A device without edits would make the file invalid.
            paths.push(NO_GPU_NODE.to_owned());
        }
        let nodes = paths.into_iter().map(|path| DeviceNode { path, ..DeviceNode::default() });
        device.annotations.clear();
        device.container_edits =
            ContainerEdits { device_nodes: nodes.collect(), ..ContainerEdits::default() };
    }
    // Also valid for a YAML file, since YAML includes JSON.
    to_json(&spec)
}

/// Returns whether [`nvidia_nodes`] or [`amd_nodes`] may return this path.
fn is_gpu_node(path: &str) -> bool {
    let number = path.strip_prefix("/dev/nvidia").or_else(|| path.strip_prefix("/dev/dri/renderD"));
    number.is_some_and(|number| parse_decimal(number).is_some())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn nothing_stays_of_a_cdi_file_but_numbers_of_gpus_and_their_nodes() {
        let node = |path: &str| format!(r#"{{"path": "{path}", "hostPath": "/secret"}}"#);
        let device = |name: &str, nodes: &str| {
            format!(
                r#"{{"name": "{name}", "annotations": {{"vendor.com/a": "secret"}}, "containerEdits": {{"env": ["TOKEN=secret"], "deviceNodes": [{nodes}]}}}}"#
            )
        };
        let spec = |kind: &str, devices: &[String]| {
            format!(
                r#"{{"cdiVersion": "0.6.0", "kind": "{kind}", "devices": [{}], "containerEdits": {{"hooks": [{{"hookName": "createContainer", "path": "/secret", "args": ["secret"]}}], "mounts": [{{"hostPath": "/secret", "containerPath": "/secret"}}]}}}}"#,
                devices.join(", ")
            )
        };
        let devices = [
            device("0", &[node("/dev/nvidia0"), node("/dev/nvidiactl")].join(", ")),
            device("1:0", &node("/dev/secret")),
            device("2", ""),
            device("GPU-secret", &node("/dev/nvidia0")),
        ];
        let text = spec("nvidia.com/gpu", &devices);
        for path in ["/etc/cdi/nvidia.json", "/etc/cdi/nvidia.yaml"].map(Path::new) {
            let kept = keep_numbered_nodes(path, &text);
            assert!(!kept.contains("secret"), "{kept}");
            let numbers = |text: &str| {
                let content = parse_spec(path, text).unwrap();
                let source = SpecSource { path: path.to_owned(), priority: 0, content };
                numbered_nodes(&Registry::from_sources(vec![source]), &VENDORS[0])
            };
            let (before, after) = (numbers(&text), numbers(&kept));
            assert!(before.keys().eq(after.keys()), "{before:?} {after:?}");
            assert_eq!(after[&0], BTreeSet::from(["/dev/nvidia0".to_owned()]));
            assert_eq!(keep_numbered_nodes(path, &kept), kept);
            let others = [
                spec("vendor.com/device", &devices),
                spec("nvidia.com/gpu", &devices[3..]),
                spec("vendor.com/device", &[device("nvidia.com/gpu", "")]),
                "nvidia.com/gpu: secret".to_owned(),
                String::new(),
            ];
            for other in others {
                assert_eq!(keep_numbered_nodes(path, &other), "", "{other}");
            }
        }
        assert_eq!(keep_numbered_nodes(Path::new("/etc/cdi/README"), &text), "");
    }

    #[test]
    fn what_amdkfd_tells_nobody_in_a_pod_is_not_known_and_no_failure() {
        let failing = |errno: Errno| {
            let (path, source) = ("/sys/properties".into(), errno.into());
            if_readable(Err(HostError::Read { path, source }))
        };
        assert_eq!(failing(Errno::PERM).unwrap(), None);
        for errno in [Errno::ACCESS, Errno::IO] {
            assert!(failing(errno).unwrap_err().unread_path().is_some());
        }
        let text = || Ok(Some("domain 0".to_owned()));
        assert_eq!(if_readable(text()).unwrap(), text().unwrap());
    }
}
