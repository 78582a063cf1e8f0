//! What was read on a host, path by path, with the result: the material of a capture. Absent paths
//! are not recorded, since a tree shows them by not having them.

use onload_cdi::oci::HostNode;

use super::entry::EntryKind;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedPath {
    /// What the path leads to when links are followed; `None` if only the link itself was read.
    pub entry: Option<EntryKind>,
    /// The content of a text; empty if the kernel had no value.
    pub content: Option<Vec<u8>>,
    /// As a program or library, whose content is not kept.
    pub opened: bool,
    pub names: Vec<String>,
    pub node: Option<HostNode>,
}
