//! Files of an image and of the host, read by the same rules: regular, not empty, links followed within the root.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use onload_sys::bail;
use onload_sys::elf::{self, DynamicSymbol, ElfError, ElfSummary};
use onload_sys::error::{Context, Result};
use onload_sys::fs::trust::TrustedTree;

use onload_sys::fs::container_root::{ContainerPath, ContainerRoot};

use super::device::VerbsDevice;

/// The image, with nothing of ours mounted.
pub struct ImageFiles<'a> {
    pub root: &'a ContainerRoot,
    /// Whether nothing can be made in it.
    pub read_only: bool,
    /// `LD_LIBRARY_PATH` of the container's configuration.
    pub library_path: Option<&'a str>,
    /// The file of the program that the container starts, and what that needs; `None` where it is not known.
    pub program: &'a dyn Fn() -> Option<(PathBuf, ElfSummary)>,
    /// Whether one of the container's mounts hides a path.
    pub covered: &'a dyn Fn(&Path) -> bool,
}

/// What a running container sees, the mounts in it included.
pub struct RunningFiles(pub ContainerRoot);

/// A file whose content counts.
pub struct OpenFile {
    file: File,
    size: u64,
    /// Where it lies, with no link on the path.
    path: PathBuf,
}

impl OpenFile {
    pub(super) fn read(self, limit: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.file.take(limit + 1).read_to_end(&mut bytes);
        read.with_context(|| format!("reading {:?}", self.path))?;
        if bytes.len() as u64 > limit {
            bail!("{:?} is larger than {limit} bytes", self.path);
        }
        Ok(bytes)
    }
}

pub trait LibraryFiles {
    /// `None` if there is nothing, or an empty file: one that a runtime made as a mount point.
    fn open(&self, path: &Path) -> Result<Option<OpenFile>>;

    /// Where a directory lies, with no link on the path; `None` if there is none that can be searched.
    fn find_directory(&self, path: &Path) -> Option<PathBuf>;
}

impl LibraryFiles for ImageFiles<'_> {
    fn open(&self, path: &Path) -> Result<Option<OpenFile>> {
        let (file, size) = match self.root.open_file(path) {
            Ok((_, 0)) => return Ok(None),
            Ok(opened) => opened,
            Err(error) if error.is_absent() || error.is_behind_mount() => return Ok(None),
            Err(error) => return Err(error).context("examining the image"),
        };
        let path = self.resolve(path)?;
        if (self.covered)(&path) {
            return Ok(None);
        }
        Ok(Some(OpenFile { file, size, path }))
    }

    fn find_directory(&self, path: &Path) -> Option<PathBuf> {
        self.root.find_on_own_mount(path).ok()?;
        let path = self.resolve(path).ok()?;
        (!(self.covered)(&path)).then_some(path)
    }
}

impl LibraryFiles for RunningFiles {
    fn open(&self, path: &Path) -> Result<Option<OpenFile>> {
        let (file, size) = match self.0.open_file(path) {
            Ok((_, 0)) => return Ok(None),
            Ok(opened) => opened,
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(error).context("examining the container"),
        };
        let path = ContainerPath::resolve(Some(&self.0), path, &|_| false)?.to_path();
        Ok(Some(OpenFile { file, size, path }))
    }

    fn find_directory(&self, path: &Path) -> Option<PathBuf> {
        self.0.find(path).ok()?;
        let path = ContainerPath::resolve(Some(&self.0), path, &|_| false);
        Some(path.ok()?.to_path())
    }
}

impl ImageFiles<'_> {
    /// Whether a mount of the container hides what is at a path, or where the image's links lead from there.
    pub(super) fn is_covered(&self, path: &Path) -> bool {
        let resolved = self.resolve(path);
        (self.covered)(path) || resolved.is_ok_and(|path| (self.covered)(&path))
    }

    /// Where a path leads in the image, whether something is there or not.
    pub(super) fn resolve(&self, path: &Path) -> Result<PathBuf> {
        let covered = |resolved: &ContainerPath| (self.covered)(&resolved.to_path());
        Ok(ContainerPath::resolve(Some(self.root), path, &covered)?.to_path())
    }
}

impl LibraryFiles for TrustedTree {
    fn open(&self, path: &Path) -> Result<Option<OpenFile>> {
        let (opened, path) = match self.open_resolved(path) {
            Ok((opened, _)) if opened.size() == 0 => return Ok(None),
            Ok(opened) => opened,
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(error).context("examining the host's libraries"),
        };
        Ok(Some(OpenFile { size: opened.size(), file: opened.file, path }))
    }

    fn find_directory(&self, path: &Path) -> Option<PathBuf> {
        self.resolve(path).ok()
    }
}

/// A shared library of this machine's architecture.
pub(super) struct NativeLibrary {
    pub path: PathBuf,
    pub summary: ElfSummary,
    file: File,
    size: u64,
}

impl NativeLibrary {
    /// `None` if there is nothing, or a library of another architecture, which a loader skips.
    pub(super) fn open(files: &dyn LibraryFiles, path: &Path) -> Result<Option<NativeLibrary>> {
        let Some(opened) = files.open(path)? else {
            return Ok(None);
        };
        let OpenFile { file, size, path } = opened;
        // A loader skips it by these bytes. Reading more of each would let an image have hundreds of files read.
        let mut start = [0; 20];
        let read = file.read_exact_at(&mut start, 0);
        if read.is_ok() && start.starts_with(ELF_MAGIC) && !is_native(&start) {
            return Ok(None);
        }
        let summary = elf::summarize_file(&file, size);
        let summary = summary.with_context(|| format!("reading {path:?}"))?;
        Ok(Some(NativeLibrary { path, summary, file, size }))
    }

    pub(super) fn each_symbol(&self, visit: &mut dyn FnMut(DynamicSymbol<'_>)) -> Result<()> {
        let data = elf::block_reader(&self.file, self.size);
        self.with_path_context(elf::each_symbol(&data, visit))
    }

    pub(super) fn find_strings(&self, words: &[&str]) -> Result<Vec<String>> {
        let data = elf::block_reader(&self.file, self.size);
        self.with_path_context(elf::find_strings(&data, words))
    }

    /// Why libibverbs does not take a provider for the kernel ABI of a device, as what follows its name
    /// (libibverbs/init.c, `match_device`).
    pub(super) fn unserved_reason(
        &self,
        provider: &str,
        devices: &[&VerbsDevice],
    ) -> Result<Option<String>> {
        let Some((min, max)) = self.read_kernel_abi(provider)? else {
            return Ok(None);
        };
        let mut abis = devices.iter().filter_map(|device| device.kernel_abi);
        let other = abis.find(|abi| !(min..=max).contains(abi));
        Ok(other.map(|abi| format!("serves kernel ABI {min} to {max}, and the driver has {abi}")))
    }

    /// The kernel ABIs that a provider serves: `match_min_abi_version` and `match_max_abi_version` behind its name in
    /// `struct verbs_device_ops` (libibverbs/driver.h). `None` where they cannot be told.
    fn read_kernel_abi(&self, provider: &str) -> Result<Option<(u32, u32)>> {
        let ranges = elf::find_numbers_after_name(&self.file, self.size, provider);
        let mut ranges = self.with_path_context(ranges)?;
        ranges.retain(|(min, max)| min <= max);
        ranges.dedup();
        Ok(match ranges[..] {
            [range] => Some(range),
            _ => None,
        })
    }

    fn with_path_context<T>(&self, result: Result<T, ElfError>) -> Result<T> {
        result.with_context(|| format!("reading {:?}", self.path))
    }

    /// The name by which other libraries need it.
    pub(super) fn name(&self) -> String {
        let file = self.path.file_name().unwrap_or_default();
        let soname = self.summary.soname.clone();
        soname.unwrap_or_else(|| file.to_string_lossy().into_owned())
    }
}

const ELF_MAGIC: &[u8] = b"\x7fELF";

/// By `EI_CLASS` (ELFCLASS64) and `e_machine`.
fn is_native(start: &[u8; 20]) -> bool {
    let machine = u16::from_ne_bytes([start[18], start[19]]);
    start[4] == 2 && Some(machine) == MACHINE
}

/// `e_machine` of this program (elf.h, EM_X86_64 and EM_AARCH64).
const MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};
