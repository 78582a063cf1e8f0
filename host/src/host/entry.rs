//! What is at a path of a host.

/// A device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Character or block device.
    pub kind: DeviceKind,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
}

/// Character or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A character device.
    Character,
    /// A block device.
    Block,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Whether anybody may execute it.
        executable: bool,
    },
    /// A device node, socket or pipe.
    Other,
}
