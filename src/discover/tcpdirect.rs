//! TCPDirect: its libraries and tools, which stand on Onload's device nodes.

use onload_hooks::class::Class;
use onload_hooks::config::Cdi;
use serde::{Serialize, Serializer};

use crate::discover::Probe;
use crate::discover::onload::{is_shared_object, node_obstacle, tool_dir};
use crate::discover::program::{self, Installation, Tool};
use crate::inventory::NotOffered;

const LIBRARY: &str = "libonload_zf.so";
/// The control plane client that TCPDirect of version 9 and later opens with dlopen(3).
const CONTROL_PLANE: &str = "libefcp.so.1";
const TOOLS: [&str; 2] = ["zf_debug", "zf_stackdump"];

/// TCPDirect, where it is offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TcpDirect {
    /// The tools that work in a container.
    #[serde(serialize_with = "tool_names")]
    pub tools: Vec<Tool>,
    /// Where its libraries are.
    #[serde(skip)]
    pub installation: Installation,
    /// Machine of the library, `e_machine` of its ELF header.
    #[serde(skip)]
    pub machine: Option<u16>,
}

fn tool_names<S: Serializer>(tools: &[Tool], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tools.iter().map(|tool| &tool.name))
}

/// Looks for TCPDirect; none where it is not there or not offered.
pub fn read(probe: &Probe<'_>, cdi: &Cdi, not_offered: &mut Vec<NotOffered>) -> Option<TcpDirect> {
    let dirs = program::library_dirs(&cdi.host_library_dirs);
    let installation = program::installations(probe, &dirs, LIBRARY, is_tcpdirect_library)
        .into_iter()
        .next()?;
    let path = installation.library_dir.join(LIBRARY);
    let content = program::library_content(probe, &path).unwrap_or_default();
    if let Some(reason) = obstacle(probe, &installation, &content) {
        not_offered.push(NotOffered::new(Class::Zf, "tcpdirect", reason));
        return None;
    }
    let machine = program::library_summary(probe, &path, &content).map(|summary| summary.machine);
    let tools = read_tools(probe, cdi, &installation, not_offered);
    Some(TcpDirect {
        tools,
        installation,
        machine,
    })
}

fn is_tcpdirect_library(name: &str) -> bool {
    (name.starts_with("libonload_zf.") || name.starts_with("libefcp.")) && is_shared_object(name)
}

/// Why TCPDirect is not offered; none where it is.
fn obstacle(probe: &Probe<'_>, installation: &Installation, content: &[u8]) -> Option<String> {
    let has = |name: &str| installation.libraries.iter().any(|library| library == name);
    let wants_control_plane = memchr::memmem::find(content, CONTROL_PLANE.as_bytes()).is_some();
    if wants_control_plane && !has(CONTROL_PLANE) {
        let dir = installation.library_dir.display();
        return Some(format!(
            "{LIBRARY} opens {CONTROL_PLANE}, which is not in {dir}; install the Onload that it belongs to"
        ));
    }
    let nodes = ["onload", "sfc_char"];
    nodes.iter().find_map(|name| node_obstacle(probe, name))
}

fn read_tools(
    probe: &Probe<'_>,
    cdi: &Cdi,
    installation: &Installation,
    not_offered: &mut Vec<NotOffered>,
) -> Vec<Tool> {
    let Some(dir) = tool_dir(cdi, installation) else {
        return Vec::new();
    };
    let mounted = program::needs_of(probe, installation);
    let (tools, refused) = program::tools(probe, &dir, &TOOLS, &mounted);
    let refused = refused.into_iter();
    not_offered.extend(refused.map(|(name, reason)| NotOffered::new(Class::Zf, name, reason)));
    tools
}
