//! By what the programs of a container use its RDMA devices.

use std::path::Path;

use onload_core::rdma_providers::{
    LIBRARY_DIRS, LIBRDMACM, LibraryMisfit, RunningFiles, VerbsDevice, find_misfit,
    is_rdmacm_missing,
};
use onload_host::host::Host;
use onload_sys::fs::container_root::ContainerRoot;
use serde::{Deserialize, Serialize};

use super::process;

pub(super) const NODES: &str = "/dev/infiniband/uverbs";
const LIBRARY: &[u8] = b"/libibverbs.so.";
const NO_DEVICE: &str = "programs find no RDMA device";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LibraryUse {
    /// Why programs do not find devices; `None` if they do, or if it is unknown.
    pub(super) misfit: Option<String>,
    /// The end of a sentence about the devices: further information on the libraries.
    pub(super) note: String,
}

/// Whether what the process sees serves the devices whose nodes it has. `path` is its `LD_LIBRARY_PATH`.
pub(super) fn judge_libraries(
    host: &Host,
    pid: u32,
    path: Option<&str>,
    nodes: &[String],
) -> LibraryUse {
    let sysfs = host.outside_path(Path::new("/sys"));
    let devices: Vec<VerbsDevice> = nodes
        .iter()
        .filter_map(|node| {
            let node = node.strip_prefix("/dev/infiniband/")?;
            let ibdev = Path::new("/sys/class/infiniband_verbs").join(node).join("ibdev");
            let name = host.attribute(&ibdev).ok()??;
            VerbsDevice::read(&sysfs, &name).filter(VerbsDevice::has_known_driver)
        })
        .collect();
    let Ok(Some(root)) = host.directory(&process::proc_dir(pid).join("root")) else {
        return LibraryUse::default();
    };
    let root = RunningFiles(ContainerRoot::from_process(root));
    let is_decided = devices.len() == nodes.len();
    let (misfit, note) = match find_misfit(&root, "the container", path, &devices) {
        Ok(None) if is_decided && is_rdmacm_missing(&root, path).unwrap_or(false) => {
            let note = format!(
                "; it has no {LIBRDMACM}, without which programs that need it, such as rping, do \
                 not start"
            );
            (None, note)
        }
        Ok(None) => (None, String::new()),
        Ok(Some(LibraryMisfit { reason, devices, .. })) if devices.len() < nodes.len() => {
            let names = devices.join(", ");
            (Some(format!("{reason}: programs do not find {names}")), String::new())
        }
        Ok(Some(LibraryMisfit { reason, .. })) => {
            (Some(format!("{reason}: {NO_DEVICE}")), String::new())
        }
        Err(error) => (Some(format!("{error:#}: {NO_DEVICE}")), String::new()),
    };
    LibraryUse { misfit, note }
}

/// The libraries that a process with an open device has loaded. One that maps no libibverbs has it built in, or none, as
/// with raw system calls.
pub(super) fn loaded_libraries(host: &Host, pid: u32) -> LibraryUse {
    let lines =
        process::read_mappings(host, pid, &|line| memchr::memmem::find(line, LIBRARY).is_some());
    let Ok(Some(lines)) = lines else { return LibraryUse::default() };
    let lines = String::from_utf8_lossy(&lines);
    let path = lines.lines().next().and_then(|line| Some(&line[line.find('/')?..]));
    let directory = path.and_then(|path| Path::new(path).parent()?.to_str());
    let note = match (path, directory) {
        (None, _) => ", by their own libibverbs (not checked)".to_owned(),
        (_, Some(directory)) if LIBRARY_DIRS.contains(&directory) => String::new(),
        (Some(path), _) => format!(", by {path:?} (not checked)"),
    };
    LibraryUse { misfit: None, note }
}
