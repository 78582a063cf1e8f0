//! TCPDirect: its libraries and tools, which rely on Onload's device nodes.

use std::path::Path;
use std::sync::Arc;

use onload_core::class::Class;
use onload_core::config::CdiConfig;
use serde::Serialize;

use crate::discover::exclusion::Exclusion;
use crate::discover::installation::{self, Installation, Tool};
use crate::discover::nic::Nic;
use crate::discover::node::OfferedNode;
use crate::discover::onload::{DriverNodes, exclude_copies, is_shared_object, read_tools};
use crate::discover::probe::Probe;

const LIBRARY: &str = "libonload_zf.so";
/// The control plane client that TCPDirect 9 and later opens with dlopen(3).
pub const CONTROL_PLANE: &str = "libefcp.so.1";
const NO_AF_XDP: &str =
    "Onload uses it with AF_XDP, where TCPDirect programs crash (SIGSEGV); use nic instead";
const NO_INTERFACE: &str = "it needs an offered interface; see the reasons for nic";
const TOOLS: [&str; 2] = ["zf_debug", "zf_stackdump"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TcpDirect {
    pub tools: Vec<Tool>,
    #[serde(skip)]
    pub nodes: Vec<Arc<OfferedNode>>,
    #[serde(skip)]
    pub installation: Installation,
    /// Machine of the library, `e_machine` of its ELF header.
    #[serde(skip)]
    pub machine: Option<u16>,
}

/// Reads TCPDirect. `onload_dir` is the directory of the Onload library in use.
pub(crate) fn read(
    probe: &Probe<'_>,
    cdi: &CdiConfig,
    onload_dir: Option<&Path>,
    nodes: &DriverNodes,
) -> Option<TcpDirect> {
    let Some(installation) = find(probe, cdi, onload_dir) else {
        probe.exclude(Exclusion::new(Class::Zf, "tcpdirect", absent_reason(probe, cdi)));
        return None;
    };
    let path = installation.library_dir.join(LIBRARY);
    let content = installation::read_library(probe, &path);
    if let Some(reason) = probe.unread_reason(&path) {
        let reason = format!("could not determine its requirements: {reason}");
        probe.exclude(Exclusion::new(Class::Zf, "tcpdirect", reason));
        return None;
    }
    let content = content.unwrap_or_default();
    let nodes = check_control_plane(&installation, &content)
        .and_then(|()| nodes.find_all(&["onload", "sfc_char"]))
        .map_err(|reason| probe.exclude(Exclusion::new(Class::Zf, "tcpdirect", reason)))
        .ok()?;
    let machine =
        installation::library_summary(probe, &path, &content).map(|summary| summary.machine);
    let tools = read_tools(probe, cdi, &installation, &TOOLS);
    Some(TcpDirect { tools, nodes, installation, machine })
}

/// Returns the copy in the directory of the Onload library in use, or else the first one: both products contain
/// libefcp, which has to match the driver, and one container may request both.
fn find(probe: &Probe<'_>, cdi: &CdiConfig, onload_dir: Option<&Path>) -> Option<Installation> {
    let dirs = installation::library_dirs(&cdi.host_library_dirs);
    let mut copies = installation::find_installations(probe, &dirs, LIBRARY, is_tcpdirect_library);
    if copies.is_empty() {
        return None;
    }
    let chosen = copies.remove(
        copies.iter().position(|copy| Some(copy.library_dir.as_path()) == onload_dir).unwrap_or(0),
    );
    let others = copies.iter().map(|copy| copy.library_dir.as_path());
    exclude_copies(probe, Class::Zf, LIBRARY, Some(&chosen.library_dir), others);
    Some(chosen)
}

fn absent_reason(probe: &Probe<'_>, cdi: &CdiConfig) -> String {
    let dirs = installation::library_dirs(&cdi.host_library_dirs);
    match dirs.iter().find_map(|dir| probe.unread_reason(dir)) {
        Some(reason) => format!("could not determine whether it is installed: {reason}"),
        None => format!("{LIBRARY} is in none of the library directories; install TCPDirect"),
    }
}

fn is_tcpdirect_library(name: &str) -> bool {
    (name.starts_with("libonload_zf.") || name.starts_with("libefcp.")) && is_shared_object(name)
}

fn check_control_plane(installation: &Installation, content: &[u8]) -> Result<(), String> {
    let has = |name: &str| installation.libraries.iter().any(|library| library == name);
    let wants_control_plane = memchr::memmem::find(content, CONTROL_PLANE.as_bytes()).is_some();
    if wants_control_plane && !has(CONTROL_PLANE) {
        let dir = installation.library_dir.display();
        return Err(format!(
            "{LIBRARY} opens {CONTROL_PLANE}, which is not in {dir}; install the matching Onload"
        ));
    }
    Ok(())
}

/// Returns the interfaces that TCPDirect does not support, and finally TCPDirect itself if it supports none.
pub(crate) fn tcpdirect_exclusions(nics: &[Nic]) -> impl Iterator<Item = Exclusion> {
    let without_tcpdirect = nics
        .iter()
        .filter(|nic| !nic.datapath.has_tcpdirect())
        .map(|nic| Exclusion::new(Class::Zf, nic.name.as_str(), NO_AF_XDP));
    let has_none = nics.is_empty();
    let no_interface = has_none.then(|| Exclusion::new(Class::Zf, "tcpdirect", NO_INTERFACE));
    without_tcpdirect.chain(no_interface)
}
