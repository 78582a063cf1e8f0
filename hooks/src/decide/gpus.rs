//! The GPUs of a container, and the members of a pool that are nearest to them.
//!
//! The configuration lists the device nodes of GPUs that were requested as CDI devices or by
//! `--device`; rootless engines mount the host's nodes. GPUs that NVIDIA's own runtime or hook adds
//! later, as for docker's `--gpus`, are only named in a variable. Only numbers and names are taken
//! from the list and the variable, and looked up among the GPUs of the host.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use onload_cdi::oci::{NodeKind, NodeLookup, OciConfig, OciConfigError};
use onload_core::nearness::Nearness;
use onload_core::pool::Pool;
use onload_core::{gpu_name, kfd};
use onload_sys::error::{Context, Result, bail};
use onload_sys::pci::PciAddress;
use onload_sys::text::{Quoted, parse_decimal};

use super::existing::is_bind;
use super::sysfs::{Sysfs, list_names, pci_function};

/// The variable of NVIDIA's container toolkit (`internal/config/image/cuda_image.go`). Many images
/// set it to `all`.
const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Maximum length of its value: more than the slices of 16 GPUs need.
const MAX_VALUE_BYTES: usize = 16 * 1024;
/// The major number of /dev/nvidiaN, whose minor is the GPU's (`NV_MAJOR_DEVICE_NUMBER`,
/// open-gpu-kernel-modules, kernel-open/common/inc/nv.h).
const NVIDIA: i64 = 195;
/// The major number of /dev/dri (Documentation/admin-guide/devices.txt).
const DRM: i64 = 226;
/// Maximum number of GPUs of a host, and of GPU nodes in a configuration, that are examined.
const MAX_GPUS: usize = 1024;

const ONE_GPU_REMEDY: &str = "give it one, for example with --device nvidia.com/gpu=0 or --gpus \
    device=0, or request a device by name; if it has one, run `onload-ctk cdi generate`";

/// The GPUs that a container may have, and the GPUs of the host's drivers.
#[derive(Debug)]
pub(super) struct ContainerGpus {
    /// The GPUs of nodes in the configuration.
    listed: BTreeSet<PciAddress>,
    /// The reason why the GPU of a node is unknown.
    unknown: Option<String>,
    /// The value of [`VARIABLE`].
    visible: String,
    /// The GPUs of NVIDIA's driver, by address.
    nvidia_gpus: Vec<NvidiaGpu>,
    /// The minors of GPUs that are divided into slices.
    divided: BTreeSet<u32>,
}

/// A GPU, as NVIDIA's driver describes it.
#[derive(Debug)]
struct NvidiaGpu {
    address: PciAddress,
    minor: Option<u32>,
    uuid: Option<String>,
    /// Whether the driver hides the GPU from programs, and does not number it.
    is_excluded: bool,
}

impl ContainerGpus {
    /// Reads the GPUs of a configuration. `host` looks up the nodes that are mounted.
    pub(super) fn read(
        config: &OciConfig,
        sysfs: &Sysfs,
        host: &dyn NodeLookup,
    ) -> Result<ContainerGpus, OciConfigError> {
        let (mut nvidia, mut drm) = (BTreeSet::new(), BTreeSet::new());
        let mut keep = |major: i64, minor: i64| {
            let minors = match major {
                NVIDIA => &mut nvidia,
                DRM => &mut drm,
                _ => return,
            };
            if minors.len() < MAX_GPUS {
                minors.insert(minor);
            }
        };
        config.each_device(|device| {
            if matches!(device.type_.as_str(), "c" | "u") {
                keep(device.major, device.minor);
            }
        })?;
        // In a user namespace no node can be created, so engines mount it (podman's addDevice, pkg/specgen/generate).
        for mount in config.mounts().iter().filter(|mount| is_bind(mount)) {
            let source = mount.source();
            if source.starts_with("/dev/")
                && let Ok(node) = host.node(&source)
                && node.kind == NodeKind::Char
            {
                keep(node.major.into(), node.minor.into());
            }
        }
        let mut visible = String::new();
        config.each_env(|entry| {
            if let Some((VARIABLE, value)) = entry.split_once('=') {
                // The last one counts, as for NVIDIA. The author of an image may set a very long value.
                visible = value.trim_matches(' ').chars().take(MAX_VALUE_BYTES + 1).collect();
            }
        })?;
        let nvidia_gpus = read_nvidia_gpus(sysfs);
        let mut listed: BTreeSet<PciAddress> = nvidia_gpus
            .iter()
            .filter(|gpu| gpu.minor.is_some_and(|minor| nvidia.contains(&i64::from(minor))))
            .map(|gpu| gpu.address)
            .collect();
        let mut partitions = BTreeSet::new();
        for minor in drm {
            let Ok(node) = fs::canonicalize(sysfs.root().join(format!("dev/char/{DRM}:{minor}")))
            else {
                continue;
            };
            match pci_function(&node) {
                Some(function) => drop(listed.insert(function)),
                None => partitions.extend(partition_minor(&node)),
            }
        }
        let mut unknown = None;
        match partition_gpus(&partitions, sysfs) {
            Ok(gpus) => listed.extend(gpus),
            Err(error) => unknown = Some(format!("{error:#}")),
        }
        Ok(ContainerGpus { listed, unknown, visible, divided: find_mig_minors(sysfs), nvidia_gpus })
    }

    /// Keeps the members of a pool that are near the container's GPUs, in the order for a request
    /// of `count` members.
    pub(super) fn sort(&self, pool: &mut Pool, nearness: &Nearness, count: u32) -> Result<()> {
        if nearness.gpus.is_empty() {
            bail!(
                "its specification has no distances to GPUs; run `onload-ctk cdi generate`, and if \
                 this host has no GPU remove the request"
            );
        }
        let gpus = self.resolve(nearness)?;
        if let Some(gpu) =
            gpus.iter().find(|gpu| nearness.gpus.get(gpu).is_none_or(|gpu| gpu.nics.is_empty()))
        {
            let reason =
                nearness.unknown.as_deref().unwrap_or("its specification does not contain it");
            bail!(
                "could not determine what is nearest to GPU {gpu}: {reason}; request a device by \
                 name"
            );
        }
        let mut members: Vec<_> = std::mem::take(&mut pool.members).into_iter().map(Some).collect();
        pool.members = nearness
            .rank_members(&gpus, count)
            .into_iter()
            .filter_map(|index| members.get_mut(index)?.take())
            .collect();
        Ok(())
    }

    /// Returns the container's GPUs, by address. There is at least one, and the host has all of
    /// them.
    fn resolve(&self, nearness: &Nearness) -> Result<Vec<PciAddress>> {
        if let Some(reason) = &self.unknown {
            bail!("{reason}; request a device by name");
        }
        let is_gpu = |gpu: &&PciAddress| nearness.gpus.contains_key(gpu);
        let listed: Vec<PciAddress> = self.listed.iter().filter(is_gpu).copied().collect();
        if !listed.is_empty() {
            return Ok(listed);
        }
        let value = match self.visible.as_str() {
            // No GPU. With "none" NVIDIA still mounts the driver's libraries.
            "" | "void" | "none" => {
                bail!("the container has no GPU; {ONE_GPU_REMEDY}")
            }
            value if value.len() > MAX_VALUE_BYTES => {
                bail!("{VARIABLE} of the container has more than {MAX_VALUE_BYTES} bytes")
            }
            value => value,
        };
        let gpus = self
            .parse_visible(value, nearness)
            .with_context(|| format!("{VARIABLE} of the container"))?;
        match gpus.iter().find(|gpu| !is_gpu(gpu)) {
            Some(gpu) => {
                bail!("no specification contains GPU {gpu}; run `onload-ctk cdi generate`")
            }
            None => Ok(gpus.into_iter().collect()),
        }
    }

    /// Returns the GPUs that a value of [`VARIABLE`] names.
    fn parse_visible(&self, value: &str, nearness: &Nearness) -> Result<BTreeSet<PciAddress>> {
        if self.nvidia_gpus.is_empty() {
            bail!("this host has no GPU in /proc/driver/nvidia/gpus; load NVIDIA's driver");
        }
        let mut gpus = BTreeSet::new();
        for word in value.split(',').map(|word| word.trim_matches(' ')) {
            match word {
                "all" => gpus.extend(self.numbered_gpus().map(|gpu| gpu.address)),
                word => drop(gpus.insert(self.parse_word(word, nearness)?)),
            }
        }
        Ok(gpus)
    }

    /// Returns the GPU that a word of [`VARIABLE`] names, or the GPU of a slice.
    fn parse_word(&self, word: &str, nearness: &Nearness) -> Result<PciAddress> {
        let (slice, is_slice) = match word.strip_prefix("MIG-") {
            Some(slice) => (slice, true),
            None => (word, false),
        };
        if is_slice && !slice.starts_with("GPU-") {
            return self.only_mig_gpu(word);
        }
        let uuid = match slice.split_once('/') {
            Some((uuid, _)) if is_slice => uuid,
            _ => slice,
        };
        let gpu = match gpu_name::vendor_index(slice) {
            Some(number) => self.find_by_number(number, nearness),
            None => self
                .nvidia_gpus
                .iter()
                .find(|gpu| gpu.uuid.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(uuid))),
        };
        match gpu {
            Some(gpu) => Ok(gpu.address),
            None => bail!("{} is no GPU of this host; \"nvidia-smi -L\" lists them", Quoted(word)),
        }
    }

    /// Returns the GPU of a slice whose name does not contain it. Only the driver's own library
    /// knows this GPU, unless no other GPU is divided.
    fn only_mig_gpu(&self, word: &str) -> Result<PciAddress> {
        let divided: Vec<&NvidiaGpu> = self
            .nvidia_gpus
            .iter()
            .filter(|gpu| gpu.minor.is_some_and(|minor| self.divided.contains(&minor)))
            .collect();
        match divided[..] {
            [gpu] => Ok(gpu.address),
            _ => bail!(
                "{} does not identify its GPU: /proc/driver/nvidia/capabilities lists slices of {} \
                 GPUs; use the numbers of GPU and slice, such as 0:1",
                Quoted(word),
                divided.len()
            ),
        }
    }

    /// Finds a GPU by its number in the vendor's specification. Without one, GPUs are numbered in
    /// the order of their addresses, like nvidia-smi does.
    fn find_by_number(&self, number: u32, nearness: &Nearness) -> Option<&NvidiaGpu> {
        let index = |gpu: &NvidiaGpu| nearness.gpus.get(&gpu.address).and_then(|gpu| gpu.index);
        let mut numbered = self.numbered_gpus();
        if self.nvidia_gpus.iter().any(|gpu| index(gpu).is_some()) {
            return numbered.find(|gpu| index(gpu) == Some(number));
        }
        numbered.nth(usize::try_from(number).ok()?)
    }

    fn numbered_gpus(&self) -> impl Iterator<Item = &NvidiaGpu> {
        self.nvidia_gpus.iter().filter(|gpu| !gpu.is_excluded)
    }
}

/// Reads the GPUs in /proc/driver/nvidia/gpus, by address.
fn read_nvidia_gpus(sysfs: &Sysfs) -> Vec<NvidiaGpu> {
    let directory = sysfs.proc("driver/nvidia/gpus");
    let mut gpus: Vec<NvidiaGpu> = list_names(&directory)
        .take(MAX_GPUS)
        .filter_map(|name| {
            let address: PciAddress = name.parse().ok()?;
            let text = sysfs.text(&directory.join(&name).join("information"))?;
            Some(NvidiaGpu {
                address,
                minor: find_field(&text, "Device Minor:").and_then(parse_decimal),
                uuid: find_field(&text, "GPU UUID:").map(str::to_owned),
                is_excluded: find_field(&text, "GPU Excluded:") == Some("Yes"),
            })
        })
        .collect();
    gpus.sort_unstable_by_key(|gpu| gpu.address);
    gpus
}

/// Returns the minor of the render node of an AMD GPU's partition, from the sysfs directory of one
/// of the partition's nodes.
fn partition_minor(node: &Path) -> Option<u32> {
    let nodes = node.parent()?;
    if !nodes.parent()?.file_name()?.to_str()?.starts_with("amdgpu_xcp") {
        return None;
    }
    list_names(nodes).take(MAX_GPUS).find_map(|name| parse_decimal(name.strip_prefix("renderD")?))
}

/// Returns the GPUs of partitions. A partition that amdkfd does not list is unused, and its node
/// cannot be opened (`amdgpu_xcp_open_device`, drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c): an
/// undivided GPU has seven of them.
fn partition_gpus(partitions: &BTreeSet<u32>, sysfs: &Sysfs) -> Result<Vec<PciAddress>> {
    let Some(first) = partitions.first() else {
        return Ok(Vec::new());
    };
    let context = |minor| format!("could not determine which GPU /dev/dri/renderD{minor} is of");
    let known_gpus = sysfs.render_nodes_of_amd().with_context(|| context(first))?;
    if known_gpus.is_empty() {
        bail!("{}: amdkfd lists no GPU in /sys/{}", context(first), kfd::NODES);
    }
    Ok(partitions.iter().filter_map(|minor| known_gpus.get(minor).copied()).collect())
}

/// Finds a field such as `Device Minor: \t 3`.
fn find_field<'a>(information: &'a str, name: &str) -> Option<&'a str> {
    information.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Returns the minors of GPUs with instances, which have a directory such as `gpu0/mig/gi1`.
fn find_mig_minors(sysfs: &Sysfs) -> BTreeSet<u32> {
    let directory = sysfs.proc("driver/nvidia/capabilities");
    let mut divided = BTreeSet::new();
    for name in list_names(&directory).take(MAX_GPUS) {
        if let Some(minor) = name.strip_prefix("gpu").and_then(parse_decimal)
            && list_names(&directory.join(&name).join("mig"))
                .take(MAX_GPUS)
                .any(|instance| instance.starts_with("gi"))
        {
            divided.insert(minor);
        }
    }
    divided
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::symlink;

    use onload_cdi::DeviceName;
    use onload_cdi::oci::HostNode;
    use onload_core::nearness::{GpuNearness, NicRank};
    use onload_core::pool::PoolMember;
    use onload_test_tree::Tree;
    use serde_json::{Value, json};

    use super::*;

    const FIRST: &str = "0000:13:00.0";
    const SECOND: &str = "0000:23:00.0";
    const OF_AMD: &str = "0000:33:00.0";

    /// A host with two GPUs of NVIDIA, of which the second has the first minor, and one of AMD.
    struct TestHost(Tree);

    impl TestHost {
        fn new() -> TestHost {
            let host = TestHost(Tree::new());
            host.driver(FIRST, 1, "GPU-aaaa0000-1111", "No");
            host.driver(SECOND, 0, "GPU-bbbb0000-2222", "No");
            host.drm(128, OF_AMD);
            host.drm(0, OF_AMD);
            // The graphics of a CPU.
            host.drm(129, "0000:00:02.0");
            host
        }

        fn driver(&self, address: &str, minor: u32, uuid: &str, excluded: &str) {
            let text = format!(
                "Model: \t\t NVIDIA H100\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n\
                 Device Minor: \t {minor}\nGPU Excluded:\t {excluded}\n"
            );
            let path = format!("/proc/driver/nvidia/gpus/{address}/information");
            self.0.file(&path, &text);
        }

        fn drm(&self, minor: u32, address: &str) {
            let device = format!("/sys/devices/pci0000:10/{address}/drm/d{minor}");
            self.0.directory(&device);
            self.0.directory("/sys/dev/char");
            let link = self.0.path(&format!("/sys/dev/char/226:{minor}"));
            symlink(self.0.path(&device), link).unwrap();
        }

        /// A partition of a GPU, with its card and its render node.
        fn partition(&self, number: u32) {
            let below = format!("/sys/devices/platform/amdgpu_xcp_{number}/drm");
            self.0.directory("/sys/dev/char");
            for (name, minor) in [("card", number), ("renderD", number + 128)] {
                let device = format!("{below}/{name}{minor}");
                self.0.directory(&device);
                let link = self.0.path(&format!("/sys/dev/char/226:{minor}"));
                symlink(self.0.path(&device), link).unwrap();
            }
        }

        /// The properties that amdkfd reports for a render node.
        fn kfd(&self, minor: u32, location: u32) {
            let path = format!("/sys/class/kfd/kfd/topology/nodes/{minor}/properties");
            let text = format!(
                "simd_count 304\nlocation_id {location}\ndomain 0\ndrm_render_minor {minor}\n"
            );
            self.0.file(&path, &text);
        }

        fn divide(&self, minor: u32) {
            let path = format!("/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi1/access");
            self.0.file(&path, "DeviceFileMinor: 12\n");
        }

        /// The order of the members of a pool for a container: `n0` is near the first GPU, `n1` near the second, `n2` near
        /// that of AMD.
        fn order(&self, config: &Value) -> Result<String> {
            self.order_of(config, &[FIRST, SECOND, OF_AMD], |_| {})
        }

        fn order_of(
            &self,
            config: &Value,
            known: &[&str],
            change: impl Fn(&mut Nearness),
        ) -> Result<String> {
            let config = OciConfig::parse(config.to_string().as_bytes()).unwrap();
            let sysfs = Sysfs::at_root(self.0.path("/sys"));
            let gpus =
                ContainerGpus::read(&config, &sysfs, &MountedNodes).context("config.json")?;
            let member = |at: usize| PoolMember {
                name: DeviceName::try_from(format!("n{at}").as_str()).unwrap(),
                numa_node: None,
            };
            let mut pool = Pool { members: (0..known.len()).map(member).collect(), share: 1 };
            let of_gpu = |(at, gpu): (usize, &&str)| {
                let nics = vec![NicRank { nic: at, rank: 0 }];
                (gpu.parse().unwrap(), GpuNearness { index: None, nics })
            };
            let mut near = Nearness {
                nics: (0..known.len()).map(|at| vec![at]).collect(),
                gpus: known.iter().enumerate().map(of_gpu).collect(),
                unknown: None,
            };
            change(&mut near);
            gpus.sort(&mut pool, &near, 1)?;
            let names = pool.members.iter().map(|member| member.name.as_str());
            Ok(names.collect::<Vec<_>>().join(" "))
        }

        fn by_variable(&self, value: &str) -> Result<String> {
            self.order(&with(&[value], &[]))
        }

        fn refusal(&self, value: &str) -> String {
            let message = error_text(&self.by_variable(value));
            assert!(!message.contains('\n') && message.len() < 1024, "{message}");
            message
        }
    }

    /// The nodes of a host, of which nothing else may be asked.
    struct MountedNodes;

    impl NodeLookup for MountedNodes {
        fn node(&self, host_path: &str) -> io::Result<HostNode> {
            let (kind, major, minor) = match host_path {
                "/dev/nvidia0" => (NodeKind::Char, 195, 0),
                "/dev/dri/renderD128" => (NodeKind::Char, 226, 128),
                "/dev/kfd" => (NodeKind::Char, 235, 0),
                "/dev/block" => (NodeKind::Block, 226, 128),
                "/dev/shm" => return Err(io::ErrorKind::InvalidInput.into()),
                other => panic!("{other} is asked for"),
            };
            let mode = 0o660;
            Ok(HostNode { kind, major, minor, mode })
        }
    }

    #[test]
    fn a_node_that_a_rootless_engine_mounts_is_the_containers() {
        let host = TestHost::new();
        let mounts = |all: &[(&str, &str, &[&str])]| {
            let mounts = all.iter().map(|(source, kind, options)| {
                json!({"destination": "/dev/x", "type": kind, "source": source, "options": options})
            });
            let mut config = with(&[], &[]);
            config["mounts"] = mounts.collect();
            host.order(&config)
        };
        let podman = &["slave", "nosuid", "noexec", "rw", "rbind"][..];
        let amd = [("/dev/kfd", "bind", podman), ("/dev/dri/renderD128", "bind", podman)];
        assert_eq!(mounts(&amd).unwrap(), "n2");
        assert_eq!(mounts(&[("/dev/nvidia0", "", podman)]).unwrap(), "n1");
        for other in [
            ("/dev/dri/renderD128", "tmpfs", &[][..]),
            ("/dev/block", "bind", &[]),
            ("/dev/shm", "bind", &[]),
            ("/srv/dri/renderD128", "bind", &[]),
            ("dev/dri/renderD128", "bind", &[]),
        ] {
            let refused = error_text(&mounts(&[other]));
            assert!(refused.contains("the container has no GPU"), "{refused}");
        }
    }

    fn error_text(refused: &Result<String>) -> String {
        format!("{:#}", refused.as_ref().unwrap_err())
    }

    /// A container with these values of the variable and these character devices.
    fn with(values: &[&str], nodes: &[(i64, i64)]) -> Value {
        let env = values.iter().map(|value| format!("{VARIABLE}={value}"));
        let nodes = nodes.iter().map(|(major, minor)| {
            json!({"path": format!("/dev/x{major}-{minor}"), "type": "c", "major": major, "minor": minor})
        });
        json!({
            "process": {"env": env.collect::<Vec<_>>()},
            "linux": {"devices": nodes.collect::<Vec<_>>()},
        })
    }

    #[test]
    fn a_container_has_the_gpus_whose_nodes_it_has() {
        let host = TestHost::new();
        let order = |nodes: &[(i64, i64)]| host.order(&with(&[], nodes)).unwrap();
        assert_eq!(order(&[(195, 255), (195, 0)]), "n1");
        assert_eq!(order(&[(195, 1), (195, 254)]), "n0");
        assert_eq!(order(&[(195, 0), (195, 1)]), "n0 n1");
        assert_eq!(order(&[(226, 128)]), "n2");
        assert_eq!(order(&[(226, 0), (226, 129)]), "n2");
    }

    /// Where amdkfd says that AMD's GPU is.
    const LOCATION: u32 = 0x3300;

    #[test]
    fn a_partition_of_amd_s_gpu_counts_as_its_gpu() {
        let host = TestHost::new();
        host.0.directory(&format!("/sys/bus/pci/devices/{OF_AMD}"));
        // A CPU comes first.
        host.kfd(0, 0);
        host.kfd(128, LOCATION);
        for number in 2..5 {
            host.partition(number);
            host.kfd(128 + number, LOCATION | number << 28);
        }
        let order = |nodes: &[(i64, i64)]| host.order(&with(&[], nodes)).unwrap();
        assert_eq!(order(&[(226, 130)]), "n2");
        assert_eq!(order(&[(226, 3), (226, 131)]), "n2");
        assert_eq!(order(&[(195, 0), (226, 132)]), "n1 n2");
    }

    #[test]
    fn a_node_of_a_partition_that_is_not_in_use_is_no_gpu_s() {
        let host = TestHost::new();
        host.0.directory(&format!("/sys/bus/pci/devices/{OF_AMD}"));
        host.kfd(128, LOCATION);
        host.partition(2);
        let all = host.order(&with(&[], &[(226, 0), (226, 2), (226, 128), (226, 130)]));
        assert_eq!(all.unwrap(), "n2");
        let none = error_text(&host.order(&with(&[], &[(226, 130)])));
        assert!(none.starts_with("the container has no GPU; give"), "{none}");
    }

    #[test]
    fn a_partition_whose_gpu_is_not_known_is_refused() {
        let host = TestHost::new();
        host.partition(2);
        let refusal = || error_text(&host.order(&with(&["all"], &[(195, 0), (226, 130)])));
        let begins = "could not determine which GPU /dev/dri/renderD130 is of: ";
        let says = |what: &str| {
            let message = refusal();
            assert!(message.starts_with(begins) && message.contains(what), "{message}");
            assert!(message.ends_with("; request a device by name"), "{message}");
        };
        says("class/kfd/kfd/topology/nodes\": No such file");
        host.kfd(0, 0);
        says("amdkfd lists no GPU in /sys/class/kfd/kfd/topology/nodes");
        host.0.directory("/sys/class/kfd/kfd/topology/nodes/7");
        says("nodes/7/properties\": No such file");
    }

    #[test]
    fn nodes_take_precedence_over_what_an_image_s_variable_says() {
        let host = TestHost::new();
        for value in ["all", "0", "void", "7", "../x"] {
            let order = host.order(&with(&[value], &[(195, 0)]));
            assert_eq!(order.unwrap(), "n1", "{value}");
        }
        // Of a node that is no GPU's it does not.
        let order = host.order(&with(&["0"], &[(226, 129), (195, 255)]));
        assert_eq!(order.unwrap(), "n0");
    }

    #[test]
    fn the_variable_names_gpus_by_number_or_uuid() {
        let host = TestHost::new();
        host.divide(0);
        for (value, order) in [
            ("0", "n0"),
            ("1", "n1"),
            (" 1 , 0 ", "n0 n1"),
            ("all", "n0 n1"),
            ("GPU-bbbb0000-2222", "n1"),
            ("gpu-AAAA0000-1111", "n0"),
            ("1,1,1,GPU-bbbb0000-2222", "n1"),
            // Slices.
            ("1:0,1:1", "n1"),
            ("MIG-GPU-aaaa0000-1111/1/0", "n0"),
            ("MIG-0f0f0f0f-3333", "n1"),
        ] {
            assert_eq!(host.by_variable(value).unwrap(), order, "{value}");
        }
        let last = host.order(&with(&["0", "1"], &[]));
        assert_eq!(last.unwrap(), "n1");
    }

    #[test]
    fn numbers_are_those_of_the_vendor_s_specification_and_excluded_gpus_have_none() {
        let host = TestHost::new();
        let numbered = |near: &mut Nearness| {
            for (gpu, index) in [(FIRST, 4), (SECOND, 0)] {
                let gpu = near.gpus.get_mut(&gpu.parse().unwrap()).unwrap();
                gpu.index = Some(index);
            }
        };
        let known = [FIRST, SECOND, OF_AMD];
        let order = |value| host.order_of(&with(&[value], &[]), &known, numbered);
        assert_eq!(order("0").unwrap(), "n1");
        assert_eq!(order("4").unwrap(), "n0");
        assert!(error_text(&order("1")).contains("\"1\" is no GPU"));
        host.driver(FIRST, 1, "GPU-aaaa0000-1111", "Yes");
        assert_eq!(host.by_variable("0").unwrap(), "n1");
        assert_eq!(host.by_variable("all").unwrap(), "n1");
        assert!(host.refusal("1").contains("\"1\" is no GPU of this host"));
    }

    #[test]
    fn a_container_without_a_gpu_is_refused_with_what_gives_one() {
        let host = TestHost::new();
        for config in [
            json!({}),
            with(&[], &[(195, 255), (1, 3)]),
            // A display that is no GPU.
            with(&[], &[(226, 129)]),
            with(&["void"], &[]),
            with(&["none"], &[]),
            with(&["all", ""], &[]),
            // A block device has such numbers too.
            json!({"linux": {"devices": [{"path": "/dev/b", "type": "b", "major": 195, "minor": 0}]}}),
        ] {
            let message = error_text(&host.order(&config));
            assert!(
                message.starts_with(
                    "the container has no GPU; give it one, for example with --device"
                ),
                "{config}: {message}"
            );
        }
    }

    #[test]
    fn a_value_that_names_no_gpu_of_the_host_is_refused_and_never_a_path() {
        let host = TestHost::new();
        for (value, says) in [
            ("2", "\"2\" is no GPU of this host; \"nvidia-smi -L\" lists them"),
            ("0,2", "\"2\" is no GPU"),
            ("0,", "\"\" is no GPU"),
            ("-1", "\"-1\" is no GPU"),
            ("00", "\"00\" is no GPU"),
            ("4294967296", "is no GPU"),
            ("0:x", "\"0:x\" is no GPU"),
            ("GPU-cccc", "\"GPU-cccc\" is no GPU"),
            ("../../etc/passwd", "\"../../etc/passwd\" is no GPU"),
            ("0000:13:00.0/../0000:23:00.0", "is no GPU"),
            ("/var/run/nvidia-container-devices", "is no GPU"),
            ("nvidia.com/gpu=0", "\"nvidia.com/gpu=0\" is no GPU"),
            ("a\nb", "\"a\\nb\" is no GPU"),
            ("MIG-GPU-cccc/1/0", "\"MIG-GPU-cccc/1/0\" is no GPU"),
            ("MIG-0f0f", "lists slices of 0 GPUs"),
        ] {
            let message = host.refusal(value);
            assert!(message.starts_with(VARIABLE), "{message}");
            assert!(message.contains(says), "{value}: {message}");
        }
        host.divide(0);
        host.divide(1);
        let message = host.refusal("MIG-0f0f");
        assert!(message.contains("lists slices of 2 GPUs"), "{message}");
        assert!(message.ends_with("such as 0:1"), "{message}");
    }

    #[test]
    fn a_long_value_is_refused_and_many_repeats_are_one() {
        let host = TestHost::new();
        let message = host.refusal(&"0,".repeat(512 * 1024));
        assert!(message.ends_with("has more than 16384 bytes"), "{message}");
        assert!(host.refusal(&"\u{202e}".repeat(5000)).len() < 1024);
        let repeats = vec!["1"; 8000].join(",");
        assert_eq!(host.by_variable(&repeats).unwrap(), "n1");
    }

    #[test]
    fn what_the_specification_does_not_know_is_refused_with_the_remedy() {
        let host = TestHost::new();
        let refusal = |known: &[&str], change: &dyn Fn(&mut Nearness)| {
            error_text(&host.order_of(&with(&["1"], &[]), known, change))
        };
        assert_eq!(
            refusal(&[FIRST], &|_| {}),
            "no specification contains GPU 0000:23:00.0; run `onload-ctk cdi generate`"
        );
        assert!(refusal(&[], &|_| {}).starts_with("its specification has no distances to GPUs"));
        let flat = |near: &mut Nearness| {
            near.gpus.values_mut().for_each(|gpu| gpu.nics.clear());
            near.unknown = Some("the hypervisor shows one flat PCI bus".to_owned());
        };
        assert_eq!(
            refusal(&[FIRST, SECOND], &flat),
            "could not determine what is nearest to GPU 0000:23:00.0: the hypervisor shows one \
             flat PCI bus; request a device by name"
        );
    }

    #[test]
    fn without_nvidia_s_driver_its_variable_names_nothing() {
        let host = TestHost(Tree::new());
        let message = host.refusal("all");
        assert!(message.ends_with("load NVIDIA's driver"), "{message}");
    }

    #[test]
    fn a_configuration_may_list_any_number_of_nodes() {
        let host = TestHost::new();
        let nodes: Vec<(i64, i64)> = (0..10_000).map(|minor| (226, minor)).collect();
        assert_eq!(host.order(&with(&[], &nodes)).unwrap(), "n2");
        let odd = json!({"linux": {"devices": [
            {"path": "/dev/a", "type": "c", "major": 226, "minor": -1},
            {"path": "/dev/b", "type": "c", "major": 226, "minor": i64::MAX},
            {"path": "/dev/c", "type": "c"},
        ]}});
        assert!(host.order(&odd).is_err());
    }
}
