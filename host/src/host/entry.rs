//! What is at a path of a host.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    pub kind: DeviceKind,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    Character,
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Directory,
    File {
        executable: bool,
    },
    /// A device node, socket or pipe.
    Other,
}
