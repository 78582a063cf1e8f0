//! The kind of a file on a host.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Directory,
    File {
        executable: bool,
    },
    /// A device node, socket or pipe.
    Other,
}
