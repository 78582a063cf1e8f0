//! Captures a host for a bug report: what discovery read, as a tree for which discovery gives the same answer, with
//! hardware addresses masked.

pub(crate) mod filter;
pub(crate) mod mask;
pub(crate) mod stub;
pub(crate) mod tree;

use std::fmt::Write;
use std::io;
use std::path::Path;

use onload_host::host::DEVICE_TABLE;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use tar::{Builder, EntryType, Header};

use tree::CapturedEntry;
pub(crate) use tree::CapturedTree;

/// The same bytes for the same tree. It can be unpacked without privileges: device nodes are lines of `dev.table`,
/// owners and times are 0.
pub(crate) fn pack(tree: &CapturedTree) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    let table = device_table(tree);
    append_file(&mut builder, Path::new(DEVICE_TABLE), table.as_bytes(), 0o644)?;
    for (path, entry) in &tree.entries {
        let name = path.strip_prefix("/").unwrap_or(path);
        match entry {
            CapturedEntry::Directory => {
                let mut header = header(EntryType::Directory, 0o755, 0);
                builder.append_data(&mut header, name, io::empty())?;
            }
            CapturedEntry::Link(target) => {
                let mut header = header(EntryType::Symlink, 0o777, 0);
                builder.append_link(&mut header, name, target)?;
            }
            CapturedEntry::File { content, executable } => {
                let mode = if *executable { 0o755 } else { 0o644 };
                append_file(&mut builder, name, content, mode)?;
            }
        }
    }
    let archive = builder.into_inner()?;
    Ok(compress_to_vec(archive.as_slice(), CompressionLevel::Fastest))
}

pub(crate) fn append_file(
    builder: &mut Builder<Vec<u8>>,
    name: &Path,
    content: &[u8],
    mode: u32,
) -> io::Result<()> {
    let mut header = header(EntryType::Regular, mode, content.len() as u64);
    builder.append_data(&mut header, name, content)
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// The table that [`onload_host::host::Host::open`] reads; it does not include the owners of nodes.
/// It cannot contain a path with white space.
fn device_table(tree: &CapturedTree) -> String {
    let mut table = "# path type major minor mode uid gid\n".to_owned();
    for (path, node) in &tree.nodes {
        if path.to_string_lossy().contains(char::is_whitespace) {
            continue;
        }
        let _ = writeln!(
            table,
            "{} {} {} {} {:04o} 0 0",
            path.display(),
            node.kind.letter(),
            node.major,
            node.minor,
            node.mode
        );
    }
    table
}
