//! The table of mounts that the kernel shows (proc_pid_mountinfo(5)). Parsing only.

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Its id, the one that statx(2) gives for files on it.
    pub id: u64,
    /// Which part of the file system it shows.
    pub root: &'a str,
    /// Where it is, as seen from the process's root; spaces and the like as octal escapes.
    pub point: &'a str,
    /// Whether what is mounted on it appears on its peers, and what is mounted on them here.
    pub is_shared: bool,
    /// File system type.
    pub fs_type: &'a str,
    /// Options of the file system.
    pub options: &'a str,
}

/// The mounts of a table, in its order; a line that is none of a table's is left out.
pub fn parse(text: &str) -> impl Iterator<Item = Mount<'_>> {
    text.lines().filter_map(mount)
}

/// The mount of an id.
#[must_use]
pub fn find(text: &str, id: u64) -> Option<Mount<'_>> {
    parse(text).find(|mount| mount.id == id)
}

fn mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    let mut right = right.split(' ');
    let id = left.next()?.parse().ok()?;
    let root = left.nth(2)?;
    let point = left.next()?;
    Some(Mount {
        id,
        root,
        point,
        // Behind the mount's own options.
        is_shared: left.skip(1).any(|field| field.starts_with("shared:")),
        fs_type: right.next()?,
        options: right.nth(1).unwrap_or_default(),
    })
}

/// A field with its octal escapes undone (`\040` and so on, fs/proc_namespace.c, `mangle`).
#[must_use]
pub fn unescape(field: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        };
        match behind.get(..3).and_then(octal).filter(|_| byte == b'\\') {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &behind[3..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
171 168 0:44 / /var/lib/c/merged rw,relatime master:5 - overlay overlay rw,lowerdir=a - b
180 171 0:50 / /var/lib/c/merged/dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
35 22 0:30 /x\\040y /sys/fs/cgroup/devices rw shared:9 master:2 - cgroup cgroup rw,devices

garbage
1 2 3
";

    #[test]
    fn every_mount_is_read_and_garbage_is_left_out() {
        let all: Vec<Mount<'_>> = parse(TABLE).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(all[0].id, 22);
        assert!(all[0].is_shared && all[3].is_shared);
        assert!(!all[1].is_shared && !all[2].is_shared);
        assert_eq!((all[1].fs_type, all[1].root), ("overlay", "/"));
        assert_eq!(all[3].options, "rw,devices");
        assert_eq!(all[3].point, "/sys/fs/cgroup/devices");
        assert_eq!(unescape(all[3].root), b"/x y");
    }

    #[test]
    fn a_mount_is_found_by_its_id() {
        assert_eq!(find(TABLE, 180).unwrap().fs_type, "tmpfs");
        assert!(find(TABLE, 18).is_none());
    }

    #[test]
    fn only_whole_escapes_are_undone() {
        assert_eq!(unescape("/a\\011b\\134"), b"/a\tb\\");
        assert_eq!(unescape("\\04"), b"\\04");
        assert_eq!(unescape("\\999"), b"\\999");
        assert_eq!(unescape(""), b"");
    }
}
