//! Files named on the command line. Only regular files are read or replaced: reading a pipe would block, a device may
//! have no end, and replacing a node in /dev would destroy it.

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Reads a file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    refuse_unusual(&path.metadata()?)?;
    // The file may be exchanged between check and open, so opening must not block on a pipe, and the type is checked
    // again.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    refuse_unusual(&file.metadata()?)?;
    read_at_most(file, limit)
}

/// Reads to the end. Fails if there are more than `limit` bytes.
pub fn read_at_most(source: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("longer than {}", format_size(limit));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Reads at most `limit` bytes of a file whose size was `size` when it was opened, or 0 if unknown.
///
/// # Errors The file cannot be read.
pub fn read_sized(mut file: impl Read, size: usize, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if size > 0 {
        bytes = vec![0; limit.min(size + 1)];
        let count = match file.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            read => read?,
        };
        bytes.truncate(count);
        // The read returned the whole size and less than requested, so this is the end of the file, and no further
        // system call is needed.
        if count == size {
            return Ok(bytes);
        }
    }
    let remaining = u64::try_from(limit - bytes.len()).unwrap_or(u64::MAX);
    file.take(remaining).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Fails if `path`, after following links, exists and is not a regular file.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(metadata) => refuse_unusual(&metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

pub fn refuse_unusual(metadata: &Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(not_regular_error(file_type_name(metadata.file_type()))),
    }
}

/// Returns the error for a path that is not a regular file.
pub fn not_regular_error(what: &str) -> io::Error {
    let message = format!("it is {what}, not a regular file");
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn file_type_name(file_type: FileType) -> &'static str {
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_fifo() {
        "a pipe"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn format_size(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    match bytes % MIB {
        0 => format!("{} MiB", bytes / MIB),
        _ => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn refusal<T>(done: io::Result<T>) -> String {
        done.err().unwrap().to_string()
    }

    #[test]
    fn a_file_of_the_limit_is_read_and_one_byte_more_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(refusal(read(&path, 4)), "longer than 4 bytes");
        assert_eq!(format_size(16 << 20), "16 MiB");
    }

    #[test]
    fn a_file_is_read_in_one_call_unless_its_size_has_changed() {
        struct Counted<'a>(&'a [u8], usize);
        impl Read for Counted<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.1 += 1;
                if self.1 == 1 && self.0.is_empty() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                self.0.read(buffer)
            }
        }
        for (text, size, limit, wanted, in_one) in [
            (&b"12345"[..], 5, 9, "12345", true),
            (b"12345", 5, 5, "12345", true),
            (b"12345", 9, 3, "123", true),
            (b"12345", 4, 9, "12345", false),
            (b"12345", 8, 9, "12345", false),
            (b"12345", 4, 5, "12345", true),
            (b"12345", 0, 9, "12345", false),
            (b"", 7, 9, "", false),
        ] {
            let mut file = Counted(text, 0);
            let read = read_sized(&mut file, size, limit).unwrap();
            assert_eq!(read, wanted.as_bytes(), "{size} {limit}");
            assert_eq!(file.1 == 1, in_one, "{size} {limit}: {} calls", file.1);
        }
    }

    #[test]
    fn what_is_no_file_is_named_and_never_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("dir")).unwrap();
        let (mode, pipe) = (Mode::from_raw_mode(0o644), rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), pipe, mode, 0).unwrap();
        symlink("pipe", path("link")).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        for (name, what) in [
            ("dir", "a directory"),
            ("pipe", "a pipe"),
            ("link", "a pipe"),
            ("socket", "a socket"),
            ("/dev/zero", "a device"),
        ] {
            let wanted = format!("it is {what}, not a regular file");
            assert_eq!(refusal(read(&path(name), 100)), wanted);
            assert_eq!(refusal(check_replaceable(&path(name))), wanted);
        }
        fs::write(path("file"), "").unwrap();
        for name in ["file", "absent"] {
            check_replaceable(&path(name)).unwrap();
        }
    }
}
