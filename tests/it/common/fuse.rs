//! A file system in user space that stops to answer, mounted below a directory of its own.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onload_test_needs as needs;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

/// Requests and their answers (include/uapi/linux/fuse.h).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const READDIRPLUS: u32 = 44;
const HEADER: usize = 16;

/// An overlay on such a file system, which no table of mounts shows at the place that the overlay names.
pub(crate) struct SilentOverlay {
    directory: tempfile::TempDir,
    merged: PathBuf,
    is_silent: Arc<AtomicBool>,
}

impl SilentOverlay {
    pub(crate) fn mount() -> SilentOverlay {
        let directory = tempfile::tempdir().unwrap();
        let merged = directory.path().join("merged");
        SilentOverlay::mount_at(directory, &merged)
    }

    /// With its other directories in `directory`.
    pub(crate) fn mount_at(directory: tempfile::TempDir, merged: &Path) -> SilentOverlay {
        let is_silent = Arc::new(AtomicBool::new(false));
        let overlay = SilentOverlay {
            directory,
            merged: merged.to_owned(),
            is_silent: Arc::clone(&is_silent),
        };
        let path = |name: &str| {
            let path = overlay.directory.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let (fuse, empty, handle) = (path("fuse"), path("empty"), path("handle"));
        fs::create_dir_all(merged).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        mount("silent", &fuse, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
        // The connection, and every wait for it, ends with this descriptor, which the test's process has.
        std::thread::spawn(move || serve(device, &is_silent));
        let layers = format!("lowerdir={}:{}", fuse.display(), empty.display());
        let layers = std::ffi::CString::new(layers).unwrap();
        mount("overlay", merged, "overlay", MountFlags::empty(), layers.as_c_str()).unwrap();
        mount_bind(&fuse, &handle).unwrap();
        unmount(&fuse, UnmountFlags::DETACH).unwrap();
        overlay
    }

    pub(crate) fn path(&self) -> &Path {
        &self.merged
    }

    pub(crate) fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// Ends the waits for it, as root can.
    fn abort(&self) {
        let handle = self.directory.path().join("handle");
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        let _ = unmount(&handle, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

impl Drop for SilentOverlay {
    fn drop(&mut self) {
        self.abort();
    }
}

fn serve(mut device: File, is_silent: &AtomicBool) {
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = device.read(&mut request) {
        let number = |at: usize, size: usize| {
            request[..length][at..at + size]
                .iter()
                .rev()
                .fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
        };
        let (operation, unique) = (u32::try_from(number(4, 4)).unwrap(), number(8, 8));
        if is_silent.load(Ordering::SeqCst) {
            continue;
        }
        let (error, body) = match operation {
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            INIT => (0, words(&[(4, 7), (4, 31), (4, 0), (4, 0), (4, 0), (4, 4096), (40, 0)])),
            GETATTR => {
                let root = [(48, 0), (12, 0), (4, 0o040_755), (4, 2), (20, 0)];
                (0, words(&[&[(16, 0)][..], &root].concat()))
            }
            STATFS => (0, words(&[(80, 0)])),
            OPENDIR => (0, words(&[(16, 0)])),
            READDIR | READDIRPLUS | RELEASEDIR => (0, Vec::new()),
            LOOKUP => (-2, Vec::new()),
            _ => (-38, Vec::new()),
        };
        let mut answer = Vec::new();
        answer.extend(u32::try_from(HEADER + body.len()).unwrap().to_le_bytes());
        answer.extend(i32::to_le_bytes(error));
        answer.extend(unique.to_le_bytes());
        answer.extend(body);
        // It was interrupted meanwhile.
        let _ = device.write(&answer);
    }
}

/// Numbers of so many bytes.
fn words(fields: &[(usize, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (size, number) in fields {
        let start = bytes.len();
        bytes.extend(number.to_le_bytes());
        bytes.resize(start + size, 0);
    }
    bytes
}

/// Returns whether this machine can mount one.
#[track_caller]
pub(crate) fn can_mount() -> bool {
    let kinds = fs::read_to_string("/proc/filesystems").unwrap();
    let has = |kind: &str| kinds.lines().any(|line| line.ends_with(&format!("\t{kind}")));
    needs::mount_namespace("mounts a file system")
        && needs::on_this_machine(
            Path::new("/dev/fuse").exists() && has("fuse") && has("overlay"),
            "FUSE or overlays are missing",
        )
}
