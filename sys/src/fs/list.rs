//! The names in an open directory.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::fs::{RawDir, SeekFrom, seek};
use rustix::io::Errno;

/// Size of the getdents(2) buffer in bytes; most directories fit.
const BYTES: usize = 8 * 1024;

/// Calls `visit` with each name but `.` and `..`, until it returns false.
///
/// # Errors
/// The errors of getdents(2).
pub fn each_name(dir: impl AsFd, visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Errno> {
    seek(&dir, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); BYTES];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && !visit(name) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_directory_is_listed_whole_each_time_and_no_further_than_wanted() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..1000 {
            File::create(directory.path().join(format!("a-long-name-{number}"))).unwrap();
        }
        let open = File::open(directory.path()).unwrap();
        let count = |most: usize| {
            let mut seen = 0;
            each_name(&open, &mut |name| {
                assert!(name.starts_with(b"a-long-name-"));
                seen += 1;
                seen < most
            })
            .map(|()| seen)
        };
        assert_eq!([count(3), count(5000), count(5000)], [Ok(3), Ok(1000), Ok(1000)]);
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(each_name(&file, &mut |_| true), Err(Errno::NOTDIR));
    }
}
