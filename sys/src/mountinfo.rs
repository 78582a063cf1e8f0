//! The kernel's mount tables (proc_pid_mountinfo(5), proc_pid_mounts(5)). Any user who may mount a
//! FUSE file system chooses names in them, in any bytes, and a table may be long. Tables are
//! therefore read line by line, and only the wanted parts are kept.

use std::io::{self, BufRead, BufReader, Read};

/// Limit for a line in bytes. A path has up to 4096 bytes, each of which may be escaped to four, and the options are
/// about as long.
const MAX_LINE: usize = 1024 * 1024;
/// Limit for the mounts of a table; the kernel allows 100,000 in a namespace (Documentation/admin-guide/sysctl/fs.rst,
/// `mount-max`).
const MAX_MOUNTS: usize = 1_000_000;
/// Limit for all lines that are kept, in bytes.
const MAX_KEPT: usize = 8 * 1024 * 1024;
/// Limit for the length of a file system type that is kept, since a user who mounts FUSE chooses the type.
const MAX_TYPE: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountinfoLine<'a> {
    /// The mount's id, which statx(2) returns for files on it.
    pub id: u64,
    /// The root of the mount within its file system, with spaces and the like as octal escapes.
    pub root: &'a [u8],
    /// Its mount point as seen from the process's root, with spaces and the like as octal escapes.
    pub point: &'a [u8],
    /// Whether mounts below it propagate to its peers, and theirs to it.
    pub is_shared: bool,
    pub fs_type: &'a [u8],
    /// Options of the file system.
    pub options: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountsLine<'a> {
    /// The mount point, with spaces and the like as octal escapes.
    pub point: &'a [u8],
    pub fs_type: &'a [u8],
    /// The options of the mount and of the file system.
    pub options: &'a [u8],
}

/// Calls `visit` for each line of a table, without the newline. Fails if a line is longer than any real one.
pub fn each_line(
    reader: impl Read,
    visit: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
        if reader.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() == MAX_LINE {
            return Err(limit_error(&format!("a line of more than {MAX_LINE} bytes")));
        }
        visit(&line)?;
    }
}

fn limit_error(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The mounts of a table in order; malformed lines are skipped.
pub fn parse(table: &[u8]) -> impl Iterator<Item = MountinfoLine<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(mount)
}

/// Returns the lines of the mounts that `is_wanted` accepts. Fails if they are longer than in any real case.
pub fn filter_lines(
    reader: impl Read,
    is_wanted: &dyn Fn(&MountinfoLine<'_>) -> bool,
) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    each_line(reader, &mut |line| {
        if mount(line).is_some_and(|mount| is_wanted(&mount)) {
            lines.extend_from_slice(line);
            lines.push(b'\n');
        }
        if lines.len() > MAX_KEPT {
            return Err(limit_error(&format!("more than {MAX_KEPT} bytes of mounts")));
        }
        Ok(())
    })?;
    Ok(lines)
}

/// A mount table reduced to the fields of [`MountSummary`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable(Vec<MountSummary>);

/// A mount of a [`MountTable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSummary {
    id: u64,
    /// As [`MountinfoLine::is_shared`].
    pub is_shared: bool,
    /// Whether it mounts the root of a tmpfs.
    pub is_fresh: bool,
    /// The beginning of the file system type.
    pub fs_type: Box<[u8]>,
}

impl MountTable {
    /// Reads a table. Fails if it has more mounts than any real one, rather than truncating it.
    pub fn read(reader: impl Read) -> io::Result<MountTable> {
        let mut mounts = Vec::new();
        each_line(reader, &mut |line| {
            let Some(mount) = mount(line) else {
                return Ok(());
            };
            if mounts.len() == MAX_MOUNTS {
                return Err(limit_error(&format!("more than {MAX_MOUNTS} mounts")));
            }
            mounts.push(MountSummary {
                id: mount.id,
                is_shared: mount.is_shared,
                is_fresh: mount.fs_type == b"tmpfs" && mount.root == b"/",
                fs_type: mount.fs_type[..mount.fs_type.len().min(MAX_TYPE)].into(),
            });
            Ok(())
        })?;
        Ok(MountTable(mounts))
    }

    /// The mount with this id.
    pub fn find(&self, id: u64) -> Option<&MountSummary> {
        self.0.iter().find(|mount| mount.id == id)
    }
}

fn mount(line: &[u8]) -> Option<MountinfoLine<'_>> {
    let separator = line.windows(3).position(|bytes| bytes == b" - ")?;
    let (left, right) = (&line[..separator], &line[separator + 3..]);
    let mut left = split_fields(left);
    let mut right = split_fields(right);
    let id = std::str::from_utf8(left.next()?).ok()?.parse().ok()?;
    let root = left.nth(2)?;
    let point = left.next()?;
    Some(MountinfoLine {
        id,
        root,
        point,
        // The optional fields follow the mount's own options.
        is_shared: left.skip(1).any(|field| field.starts_with(b"shared:")),
        fs_type: right.next()?,
        options: right.nth(1).unwrap_or_default(),
    })
}

/// Parses a line of /proc/mounts; `None` if it is malformed.
pub fn parse_mounts_line(line: &[u8]) -> Option<MountsLine<'_>> {
    let mut fields = split_fields(line).skip(1);
    Some(MountsLine { point: fields.next()?, fs_type: fields.next()?, options: fields.next()? })
}

fn split_fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ')
}

/// A field with its octal escapes decoded (`\040` and so on, fs/proc_namespace.c, `mangle`).
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    loop {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
            [] => return bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
171 168 0:44 / /var/lib/c/merged rw,relatime master:5 - overlay overlay rw,lowerdir=a - b
180 171 0:50 / /var/lib/c/merged/dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
35 22 0:30 /x\\040y /sys/fs/cgroup/devices rw shared:9 master:2 - cgroup cgroup rw,devices
36 22 0:31 / /home/u/caf\xe9 rw,nosuid,nodev - fuse.sshfs u@h:/\xff rw

garbage
1 2 3
";

    #[test]
    fn every_mount_is_read_and_garbage_is_left_out() {
        let all: Vec<MountinfoLine<'_>> = parse(TABLE).collect();
        assert_eq!(all.len(), 5);
        assert_eq!(all[0].id, 22);
        assert!(all[0].is_shared && all[3].is_shared);
        assert!(!all[1].is_shared && !all[2].is_shared);
        assert_eq!((all[1].fs_type, all[1].root), (&b"overlay"[..], &b"/"[..]));
        assert_eq!(all[3].options, b"rw,devices");
        assert_eq!(all[3].point, b"/sys/fs/cgroup/devices");
        assert_eq!(unescape(all[3].root), b"/x y");
    }

    #[test]
    fn a_mount_is_found_by_its_id_beside_one_whose_name_is_no_text() {
        let table = MountTable::read(TABLE).unwrap();
        let found = table.find(180).unwrap();
        assert_eq!((&*found.fs_type, found.is_fresh), (&b"tmpfs"[..], true));
        assert!(!table.find(22).unwrap().is_fresh);
        assert_eq!(&*table.find(36).unwrap().fs_type, b"fuse.sshfs");
        assert!(table.find(18).is_none());
    }

    #[test]
    fn a_table_of_twenty_megabytes_is_read_to_its_end() {
        let point = "x".repeat(180);
        let mut text = String::new();
        for id in 1..=100_000 {
            text.push_str(&format!("{id} 1 0:5 / /{point} rw - tmpfs tmpfs rw\n"));
        }
        assert!(text.len() > 20_000_000);
        let table = MountTable::read(text.as_bytes()).unwrap();
        assert_eq!(&*table.find(100_000).unwrap().fs_type, b"tmpfs");
    }

    #[test]
    fn only_the_root_of_a_tmpfs_is_fresh() {
        let text = "7000 1 0:5 / /a rw - tmpfs a rw\n7001 1 0:5 /b /a rw - tmpfs a rw\n";
        let table = MountTable::read(text.as_bytes()).unwrap();
        assert!(table.find(7000).unwrap().is_fresh && !table.find(7001).unwrap().is_fresh);
    }

    #[test]
    fn a_table_that_no_kernel_shows_is_an_error_and_never_cut() {
        let line = [&[b'x'; MAX_LINE][..], b"\n"].concat();
        let error = MountTable::read(&line[..]).unwrap_err();
        assert!(error.to_string().contains("a line of more than"), "{error}");
        let many = "1 1 0:5 / / rw - a b c\n".repeat(MAX_MOUNTS + 1);
        let error = MountTable::read(many.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("more than 1000000"), "{error}");
        let many = "1 1 0:5 / / rw - cgroup b c\n".repeat(MAX_KEPT / 20);
        let error = filter_lines(many.as_bytes(), &|_| true).unwrap_err();
        assert!(error.to_string().contains("bytes of mounts"), "{error}");
    }

    #[test]
    fn what_is_wanted_is_kept_as_it_stands() {
        let kept = filter_lines(TABLE, &|mount| mount.fs_type == b"fuse.sshfs").unwrap();
        assert!(kept.starts_with(b"36 22 ") && kept.ends_with(b":/\xff rw\n"));
        assert_eq!(parse(&kept).count(), 1);
        assert_eq!(
            filter_lines(&b"22 1 254:0 / / rw - ext4"[..], &|_| true).unwrap(),
            b"22 1 254:0 / / rw - ext4\n"
        );
    }

    #[test]
    fn a_line_of_the_other_table_is_read() {
        let line = parse_mounts_line(b"none /dev/h\\040\xe9 hugetlbfs rw,pagesize=2M 0 0").unwrap();
        assert_eq!(line.point, b"/dev/h\\040\xe9");
        assert_eq!((line.fs_type, line.options), (&b"hugetlbfs"[..], &b"rw,pagesize=2M"[..]));
        assert!(parse_mounts_line(b"none /dev/h").is_none());
    }

    #[test]
    fn only_whole_escapes_are_undone() {
        for (field, path) in [
            (&b"/a\\011b\\134"[..], &b"/a\tb\\"[..]),
            (b"\\04", b"\\04"),
            (b"\\999", b"\\999"),
            (b"\\+12", b"\\+12"),
            (b"\\777", b"\\777"),
            (b"/\\303\\251\xff", b"/\xc3\xa9\xff"),
            (b"", b""),
        ] {
            assert_eq!(unescape(field), path);
        }
    }
}
