//! By what the programs of a container use its RDMA devices.

use std::path::Path;

use onload_core::rdma_providers::{
    LIBRARY_DIRS, LibraryMisfit, RunningFiles, VerbsDevice, find_misfit, is_rdmacm_missing,
};
use onload_host::host::Host;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::fs::container_root::ContainerRoot;
use serde::{Deserialize, Serialize};

use super::process::{self, ContainerProcess};

pub(super) const NODES: &str = "/dev/infiniband/uverbs";
const LIBRARY: &[u8] = b"/libibverbs.so.";
const NO_DEVICE: &str = "programs find no RDMA device";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LibraryUse {
    #[default]
    Unknown,
    /// The libraries in the loader's directories support the devices.
    Usual,
    /// The same, and no librdmacm is there.
    WithoutRdmacm,
    /// A program with an open device loads this libibverbs by its RUNPATH.
    Elsewhere(String),
    /// A program that has a device open maps no libibverbs: it is part of the program, or there is none, as with raw
    /// system calls.
    BuiltIn,
    /// Which devices programs do not find that look where a loader does, and why.
    Misfit { effect: String, reason: String },
    /// The same, with the reason that the hook recorded which could not mount the host's.
    Recorded { effect: String, reason: String },
}

/// The part of a hook's record of a container ([`RUN_DIR`]) that is used here.
#[derive(Deserialize)]
struct HookRecord {
    live: Option<RecordedInjection>,
}

#[derive(Deserialize)]
struct RecordedInjection {
    pid: u32,
    #[serde(rename = "libraryWarnings", default)]
    library_warnings: Vec<String>,
}

const MAX_RECORD_BYTES: u64 = 1024 * 1024;

/// With the hook's own reason, where it has recorded one, in the place of what is found now.
pub(super) fn prefer_recorded(
    library_use: LibraryUse,
    host: &Host,
    id: &str,
    processes: &[ContainerProcess],
) -> LibraryUse {
    let effect = match &library_use {
        LibraryUse::Misfit { effect, .. } => effect.clone(),
        LibraryUse::Unknown => "programs may find no RDMA device".to_owned(),
        _ => return library_use,
    };
    match recorded_reason(host, id, processes) {
        Some(reason) => LibraryUse::Recorded { effect, reason },
        None => library_use,
    }
}

/// Why the host's libraries were not mounted when the container of these processes started.
fn recorded_reason(host: &Host, id: &str, processes: &[ContainerProcess]) -> Option<String> {
    let path = Path::new(RUN_DIR).join(id).join("record.json");
    let bytes = host.bytes(&path, MAX_RECORD_BYTES).ok()??;
    let live = serde_json::from_slice::<HookRecord>(&bytes).ok()?.live?;
    let is_current = processes.iter().any(|process| process.pid == live.pid);
    let warnings = live.library_warnings.join("; ");
    (is_current && !warnings.is_empty()).then_some(warnings)
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
        return LibraryUse::Unknown;
    };
    let root = RunningFiles(ContainerRoot::from_process(root));
    match find_misfit(&root, "the container", path, &devices) {
        Ok(None) if devices.len() < nodes.len() => LibraryUse::Unknown,
        Ok(None) if is_rdmacm_missing(&root, path).unwrap_or(false) => LibraryUse::WithoutRdmacm,
        Ok(None) => LibraryUse::Usual,
        Ok(Some(LibraryMisfit { reason: why, devices, .. })) => {
            let effect = if devices.len() < nodes.len() {
                format!("programs do not find {}", devices.join(", "))
            } else {
                NO_DEVICE.to_owned()
            };
            LibraryUse::Misfit { effect, reason: why }
        }
        Err(error) => {
            LibraryUse::Misfit { effect: NO_DEVICE.to_owned(), reason: format!("{error:#}") }
        }
    }
}

/// The libraries that a process with an open device has loaded.
pub(super) fn loaded_libraries(host: &Host, pid: u32) -> LibraryUse {
    let Ok(Some(lines)) =
        process::read_mappings(host, pid, &|line| memchr::memmem::find(line, LIBRARY).is_some())
    else {
        return LibraryUse::Unknown;
    };
    let lines = String::from_utf8_lossy(&lines);
    let path = lines.lines().next().and_then(|line| Some(&line[line.find('/')?..]));
    let Some(path) = path else { return LibraryUse::BuiltIn };
    let directory = Path::new(path).parent().and_then(Path::to_str);
    match directory {
        Some(directory) if LIBRARY_DIRS.contains(&directory) => LibraryUse::Usual,
        _ => LibraryUse::Elsewhere(path.to_owned()),
    }
}
