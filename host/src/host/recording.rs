//! The paths that were read on a host with the results, for a capture. Absent paths are not recorded, since they are
//! absent in the captured tree too.

use onload_cdi::oci::HostNode;

use super::entry::EntryKind;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedPath {
    /// The kind of the target when links are followed. `None` if only the link itself was read.
    pub entry: Option<EntryKind>,
    /// The content of a text. Empty if the kernel had no value.
    pub content: Option<Vec<u8>>,
    /// Whether it was opened as a program or library, whose content is not kept.
    pub opened: bool,
    pub names: Vec<String>,
    pub node: Option<HostNode>,
}
