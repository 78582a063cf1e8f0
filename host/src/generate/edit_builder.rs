//! The container edits from which every class is built.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_cdi::{
    ContainerEdits, Device as CdiDevice, DeviceName, DeviceNode, Hook, HookName, Mount,
};
use onload_core::class::Class;
use onload_core::config::{CdiConfig, Config, LeasesConfig, RdmaLibraries};
use onload_core::device_id::DeviceId;
use onload_core::expectation::Expectation;
use onload_core::hook_arguments::{HookArguments, PROGRAM};
use onload_core::onload::{TOOL_DIR, TOOL_STARTER};
use onload_core::vf_config::VfArgument;

use super::installed_files::InstalledFiles;
use crate::devices::HostDevice;
use crate::discover::installation::{Installation, Tool};
use crate::discover::node::OfferedNode;

/// Read and write, for nodes that a program maps and controls.
pub(super) const READ_WRITE: &str = "rw";
const READ: &str = "r";

/// The file name of the dynamic loader among the libraries of tools, which [`TOOL_STARTER`] uses.
const LOADER: &str = "ld.so";

/// Mount options for files of the host. Without noexec, since libraries are mapped executable.
const READ_ONLY_FILE: [&str; 4] = ["ro", "nosuid", "nodev", "bind"];
/// Time limit for the hook in seconds; it needs milliseconds.
const HOOK_TIMEOUT: i64 = 10;

/// A device with its edits, without its variable.
pub(super) type DeviceEdits = (DeviceName, ContainerEdits);

/// The edits of a class before they become a specification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassEdits {
    pub(super) common: ContainerEdits,
    /// The devices, including `loopback` if the class has it.
    pub(super) devices: Vec<DeviceEdits>,
    /// Edits of the device `all` in addition to its members' variables. `None` if the class has no such device.
    pub(super) all: Option<ContainerEdits>,
}

pub(super) struct EditBuilder<'c> {
    pub(super) config: &'c CdiConfig,
    leases: &'c LeasesConfig,
    pub(super) installed: InstalledFiles,
}

impl<'c> EditBuilder<'c> {
    pub(super) fn new(config: &'c Config, installed: InstalledFiles) -> Self {
        EditBuilder { config: &config.cdi, leases: &config.leases, installed }
    }

    /// Returns the device node with this path below /dev.
    pub(super) fn device_node(&self, path: &str, permissions: &str) -> DeviceNode {
        let below = Path::new(path).strip_prefix("/dev").unwrap_or(Path::new(path));
        let path_in = |dir: &Option<PathBuf>| match dir {
            Some(dir) => path_text(&dir.join(below)),
            None => path.to_owned(),
        };
        let (path, host_path) =
            (path_in(&self.config.container_device_dir), path_in(&self.config.host_device_dir));
        DeviceNode {
            host_path: (host_path != path).then_some(host_path),
            path,
            permissions: Some(permissions.to_owned()),
            ..DeviceNode::default()
        }
    }

    /// Returns mounts for the libraries of an installation, under each name, in every directory that a loader searches.
    pub(super) fn library_mounts(
        &self,
        installation: &Installation,
        machine: Option<u16>,
    ) -> Vec<Mount> {
        let mut mounts = Vec::new();
        for dir in self.container_library_dirs(installation, machine) {
            for name in &installation.libraries {
                mounts.push(read_only(&installation.library_dir.join(name), &dir.join(name)));
            }
        }
        mounts
    }

    /// Returns the library directories in containers. Debian's loader searches the multiarch directory, Red Hat's
    /// /usr/lib64. As for tools, an empty path means none.
    fn container_library_dirs(
        &self,
        installation: &Installation,
        machine: Option<u16>,
    ) -> Vec<PathBuf> {
        let configured = &self.config.container_library_dirs;
        if !configured.is_empty() {
            return configured.iter().filter(|dir| !dir.as_os_str().is_empty()).cloned().collect();
        }
        let multiarch = match machine {
            Some(EM_X86_64) => PathBuf::from("/usr/lib/x86_64-linux-gnu"),
            Some(EM_AARCH64) => PathBuf::from("/usr/lib/aarch64-linux-gnu"),
            _ => installation.library_dir.clone(),
        };
        let mut dirs = vec![multiarch, PathBuf::from("/usr/lib64")];
        dirs.dedup();
        dirs
    }

    /// Returns mounts for the tools of a product, in the configured directory or at the host's paths. If an image may
    /// lack libraries of a tool, a script in its place starts it with the host's loader and libraries in the product's
    /// directory below [`TOOL_DIR`]. No loader searches this directory by default, so that programs of the image are
    /// not affected.
    pub(super) fn tool_mounts(&self, tools: &[Tool], product: &str) -> Vec<Mount> {
        let dir = self.config.container_tool_dir.as_deref();
        if dir.is_some_and(|dir| dir.as_os_str().is_empty()) {
            return Vec::new();
        }
        let private = Path::new(TOOL_DIR).join(product);
        // Libraries may be shared between tools.
        let mut private_files: BTreeMap<PathBuf, &Path> = BTreeMap::new();
        let mut mounts = Vec::new();
        for tool in tools {
            let source = match &tool.closure {
                None => &tool.path,
                Some(closure) => {
                    private_files.insert(private.join(&tool.name), &tool.path);
                    private_files.insert(private.join(LOADER), &closure.loader);
                    let libraries = closure.libraries.iter();
                    private_files
                        .extend(libraries.map(|(name, path)| (private.join(name), &**path)));
                    Path::new(TOOL_STARTER)
                }
            };
            let target = dir.map_or_else(|| tool.path.clone(), |dir| dir.join(&tool.name));
            mounts.push(read_only(source, &target));
        }
        mounts.extend(private_files.iter().map(|(target, source)| read_only(source, target)));
        mounts
    }

    /// Returns the permissions for nodes. Clocks are read-only by default, because a program that can write to one can
    /// step the host's time.
    pub(super) fn permissions(&self, class: Class) -> &'static str {
        if class.is_clock() && !self.config.ptp_write { READ } else { READ_WRITE }
    }

    /// Returns the hook's setting for provider libraries, or `None` if it must not search for them.
    pub(super) fn rdma_libraries(&self) -> Option<RdmaLibraries> {
        Some(self.config.rdma_libraries).filter(|libraries| *libraries != RdmaLibraries::Off)
    }

    pub(super) fn leasing_edits(&self, devices: &[&HostDevice]) -> ContainerEdits {
        ContainerEdits {
            hooks: self.hooks(&self.lease_arguments(devices)),
            ..ContainerEdits::default()
        }
    }

    /// Returns the hook arguments for leasing and setting up these devices. Empty for devices without a limit of
    /// containers.
    pub(super) fn lease_arguments(&self, devices: &[&HostDevice]) -> HookArguments {
        let mut arguments = HookArguments::default();
        for device in devices {
            if self.leases.share(device.class).is_none() {
                continue;
            }
            let (class, name) = (device.class, device.name.clone());
            let device_id = DeviceId { class, name };
            arguments
                .vf
                .extend(device.vf.clone().map(|vf| VfArgument { device: device_id.clone(), vf }));
            arguments.lease.push(device_id);
        }
        arguments
    }

    /// Returns hooks with these arguments at createRuntime and, if there is something to clean up, at poststop. Empty
    /// if the binary is missing, since engines would then reject every container.
    pub(super) fn hooks(&self, arguments: &HookArguments) -> Vec<Hook> {
        // A hook without arguments would read the container's annotations.
        if !self.installed.hook || arguments.is_empty() {
            return Vec::new();
        }
        let hook = |stage: HookName| {
            let mut args = vec![PROGRAM.to_owned(), stage.as_str().to_owned()];
            args.extend(arguments.to_args());
            Hook {
                hook_name: stage.into(),
                path: path_text(&self.config.hook_path),
                args,
                // Without its own environment a hook may run with the container's: NVIDIA's CVE-2025-23266 was an
                // image's LD_PRELOAD in such a hook.
                env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
                timeout: Some(HOOK_TIMEOUT),
            }
        };
        let mut hooks = vec![hook(HookName::CreateRuntime)];
        if arguments.needs_poststop() {
            hooks.push(hook(HookName::Poststop));
        }
        hooks
    }

    /// Returns the hook's expectations for a node: its devices and its current number. A long-lived engine examines a
    /// node again only when the specification's bytes change, so they must contain the number.
    pub(super) fn expectations(&self, node: &OfferedNode) -> impl Iterator<Item = Expectation> {
        node.expected.iter().map(|device| Expectation {
            node: self.device_node(&node.node.path, READ).path,
            device: device.clone(),
            number: Some(node.node.number),
        })
    }
}

/// `e_machine` of x86-64 and of AArch64 (System V gABI, chapter 4).
const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;

/// Returns a read-only mount of a file or directory of the host.
pub(super) fn read_only(host: &Path, container: &Path) -> Mount {
    Mount {
        host_path: path_text(host),
        container_path: path_text(container),
        options: READ_ONLY_FILE.map(str::to_owned).to_vec(),
        ..Mount::default()
    }
}

/// Creates a device of a specification.
pub(super) fn new_device(
    name: DeviceName,
    container_edits: ContainerEdits,
) -> (DeviceName, CdiDevice) {
    let device = CdiDevice { name: name.clone().into(), container_edits, ..CdiDevice::default() };
    (name, device)
}

pub(super) fn nodes_only(device_nodes: Vec<DeviceNode>) -> ContainerEdits {
    ContainerEdits { device_nodes, ..ContainerEdits::default() }
}

/// Returns a path as text. All paths here come from names that were read as UTF-8.
pub(super) fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
