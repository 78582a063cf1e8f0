//! The numbers by which a vendor's own CDI specifications name GPUs, as in `nvidia.com/gpu=0`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use onload_cdi::{DEFAULT_DIRS, LoadError, Registry, SpecSource, from_json, from_yaml};
use onload_core::{gpu_name, kfd};
use onload_sys::pci::PciAddress;
use onload_sys::text::parse_decimal;

use super::gpu;
use super::pci::{PciFunction, PciFunctions};
use super::probe::Probe;
use crate::host::HostError;

const ADVICE: &str = "ask by the address, as gpu-0000:1b:00.0";

/// A vendor that numbers GPUs.
struct GpuVendor {
    kind: &'static str,
    /// As [`gpu::vendor`] says it.
    name: &'static str,
    /// The nodes that each of these GPUs alone has.
    nodes: fn(&Probe<'_>, &[&PciFunction]) -> Vec<GpuNodes>,
}

type GpuNodes = (PciAddress, Vec<String>);

const VENDORS: [GpuVendor; 2] = [
    GpuVendor { kind: "nvidia.com/gpu", name: "NVIDIA", nodes: nvidia_nodes },
    GpuVendor { kind: "amd.com/gpu", name: "AMD", nodes: amd_nodes },
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuIndexes {
    pub(crate) known: BTreeMap<u32, PciAddress>,
    /// Names that are not offered, each with the reason.
    pub(crate) unknown: BTreeMap<String, String>,
}

/// Nothing in it on a host without GPUs.
pub(crate) fn read(probe: &Probe<'_>, functions: &PciFunctions) -> GpuIndexes {
    let gpus: Vec<(&PciFunction, &str)> = gpu::gpus(functions).collect();
    if gpus.is_empty() {
        return GpuIndexes::default();
    }
    let specs = read_specs(probe);
    let numbering = VENDORS.iter().map(|vendor| (vendor, numbered_nodes(&specs, vendor)));
    let numbering: Vec<_> = numbering.filter(|(_, names)| !names.is_empty()).collect();
    match numbering.as_slice() {
        [] => unknown_index(
            "no CDI specification of nvidia.com/gpu or amd.com/gpu on this host numbers GPUs",
        ),
        [(vendor, names)] => {
            let vendor_gpus = gpus.iter().filter(|(_, name)| *name == vendor.name);
            let vendor_gpus: Vec<&PciFunction> = vendor_gpus.map(|(gpu, _)| *gpu).collect();
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

/// The paths of the nodes of each GPU that a device's name numbers. Of a divided GPU only its slices are there.
fn numbered_nodes(specs: &Registry, vendor: &GpuVendor) -> BTreeMap<u32, BTreeSet<String>> {
    let devices = specs.devices();
    let devices = devices.filter(|resolved| resolved.name.kind().as_str() == vendor.kind);
    let mut numbered: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for resolved in devices {
        if let Some(index) = gpu_name::vendor_index(resolved.name.device().as_str()) {
            let nodes = resolved.device.container_edits.device_nodes.iter();
            let paths = nodes.map(|node| node.path.clone());
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
        let is_its = |(_, nodes): &&GpuNodes| nodes.iter().any(|node| paths.contains(node));
        let matching: Vec<PciAddress> = gpus.iter().filter(is_its).map(|(gpu, _)| *gpu).collect();
        if let [gpu] = matching[..] {
            indexes.known.insert(*index, gpu);
            continue;
        }
        let (kind, number) =
            (vendor.kind, if matching.is_empty() { "no GPU" } else { "several GPUs" });
        let reason = format!("the nodes of {kind}={index} belong to {number} on PCI; {ADVICE}");
        indexes.unknown.insert(gpu_name::from_index(*index), reason);
    }
    indexes
}

/// By the minor that the driver gave it.
fn nvidia_nodes(probe: &Probe<'_>, gpus: &[&PciFunction]) -> Vec<GpuNodes> {
    let of_gpu = |gpu: &&PciFunction| {
        let path = format!("/proc/driver/nvidia/gpus/{}/information", gpu.address);
        let text = probe.ok_or_warn(probe.host().text(Path::new(&path)));
        let minor = text.as_deref().and_then(device_minor);
        let node = minor.map(|minor| format!("/dev/nvidia{minor}"));
        (gpu.address, node.into_iter().collect())
    };
    gpus.iter().map(of_gpu).collect()
}

/// Of a line such as `Device Minor: \t 3`.
fn device_minor(information: &str) -> Option<u32> {
    let mut lines = information.lines();
    let minor = lines.find_map(|line| line.strip_prefix("Device Minor:"))?;
    parse_decimal(minor.trim())
}

/// Its render node, and those of its partitions.
fn amd_nodes(probe: &Probe<'_>, gpus: &[&PciFunction]) -> Vec<GpuNodes> {
    let directory = Path::new("/sys").join(kfd::NODES);
    let properties = probe.list(&directory).into_iter().filter_map(|node| {
        let path = directory.join(node).join(kfd::PROPERTIES);
        probe.ok_or_warn(if_readable(probe.host().text(&path)))
    });
    let partitions: Vec<_> = properties.filter_map(|text| kfd::render_node(&text)).collect();
    let of_gpu = |gpu: &&PciFunction| {
        let names = probe.list(gpu.directory().join("drm")).into_iter();
        let card_nodes = names.filter(|name| name.starts_with("renderD"));
        let partitions = partitions.iter().filter(|(_, address)| *address == gpu.address);
        let partitions = partitions.map(|(minor, _)| format!("renderD{minor}"));
        let nodes = card_nodes.chain(partitions).map(|name| format!("/dev/dri/{name}"));
        (gpu.address, nodes.collect())
    };
    gpus.iter().map(of_gpu).collect()
}

/// What amdkfd says of a GPU. It says it only to a process whose cgroup lets it open that one's render node (`node_show` in
/// drivers/gpu/drm/amd/amdkfd/kfd_topology.c), so not to a daemon in a pod: then nothing is known of partitions.
fn if_readable(text: Result<Option<String>, HostError>) -> Result<Option<String>, HostError> {
    text.or_else(|error| match error.is_not_permitted() {
        true => Ok(None),
        false => Err(error),
    })
}

/// The specifications of these vendors in the directories that engines read.
fn read_specs(probe: &Probe<'_>) -> Registry {
    let mut sources = Vec::new();
    for (priority, dir) in DEFAULT_DIRS.iter().enumerate() {
        for name in probe.list(dir) {
            let path = Path::new(dir).join(&name);
            if let Some(content) = read_spec(probe, &path) {
                sources.push(SpecSource { path, priority, content });
            }
        }
    }
    Registry::from_sources(sources)
}

/// None of a file without any of their names in it.
fn read_spec(probe: &Probe<'_>, path: &Path) -> Option<Result<onload_cdi::Spec, LoadError>> {
    let parse = match path.extension()?.to_str()? {
        "json" => from_json,
        "yaml" => from_yaml,
        _ => return None,
    };
    let text = probe.ok_or_warn(probe.host().text(path))?;
    let is_theirs = VENDORS.iter().any(|vendor| text.contains(vendor.kind));
    is_theirs.then(|| parse(text.as_bytes()).map_err(LoadError::from))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

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
