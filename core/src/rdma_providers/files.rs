//! Files of an image, a running container or the host, read by the same rules: regular, not empty,
//! with links followed within the root.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use onload_sys::bail;
use onload_sys::elf::{self, DynamicSymbol, ElfError, ElfSummary, LoaderPaths};
use onload_sys::error::{Context, Result};
use onload_sys::fs::trust::TrustedTree;

use onload_sys::fs::container_root::{ContainerPath, ContainerRoot};

use super::device::VerbsDevice;

/// The image of a container, without any of our mounts.
pub struct ImageFiles<'a> {
    pub root: &'a ContainerRoot,
    /// Whether the root file system is read-only.
    pub read_only: bool,
    /// `LD_LIBRARY_PATH` of the container's configuration.
    pub library_path: Option<&'a str>,
    /// Returns the file of the container's program, and its dependencies, if they are known.
    pub program: &'a dyn Fn() -> Option<(PathBuf, ElfSummary)>,
    /// Returns whether one of the container's mounts hides a path.
    pub covered: &'a dyn Fn(&Path) -> bool,
}

/// The files that a running container sees, including its mounts.
pub struct RunningFiles(pub ContainerRoot);

/// A regular file that is not empty.
pub struct OpenFile {
    file: File,
    size: u64,
    /// The file's path, without links.
    path: PathBuf,
}

impl OpenFile {
    pub(super) fn read(self, limit: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file
            .take(limit + 1)
            .read_to_end(&mut bytes)
            .with_context(|| format!("reading {:?}", self.path))?;
        if bytes.len() as u64 > limit {
            bail!("{:?} is larger than {limit} bytes", self.path);
        }
        Ok(bytes)
    }
}

pub trait LibraryFiles {
    /// Opens a file. Returns `None` if it is missing, or empty, like a mount point that a runtime
    /// created.
    fn open(&self, path: &Path) -> Result<Option<OpenFile>>;

    /// Returns the path of a directory, without links. Returns `None` if the directory is missing
    /// or inaccessible.
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
    /// Returns whether a mount of the container hides the path, or the path that the image's links
    /// lead to.
    pub(super) fn is_covered(&self, path: &Path) -> bool {
        let resolved = self.resolve(path);
        (self.covered)(path) || resolved.is_ok_and(|path| (self.covered)(&path))
    }

    /// Follows the image's links. The path may not exist.
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
    /// Opens a library. Returns `None` if it is missing, or has another architecture, since a
    /// loader skips it.
    pub(super) fn open(files: &dyn LibraryFiles, path: &Path) -> Result<Option<NativeLibrary>> {
        let Some(opened) = files.open(path)? else {
            return Ok(None);
        };
        let OpenFile { file, size, path } = opened;
        let summary =
            elf::summarize_file(&file, size).with_context(|| format!("reading {path:?}"))?;
        let is_native = summary.is_64 && Some(summary.machine) == MACHINE;
        Ok(is_native.then_some(NativeLibrary { path, summary, file, size }))
    }

    pub(super) fn each_symbol(&self, visit: &mut dyn FnMut(DynamicSymbol<'_>)) -> Result<()> {
        let data = elf::block_reader(&self.file, self.size);
        self.with_path_context(elf::each_symbol(&data, visit))
    }

    pub(super) fn find_strings(&self, words: &[&str]) -> Result<Vec<String>> {
        let data = elf::block_reader(&self.file, self.size);
        self.with_path_context(elf::find_strings(&data, words))
    }

    pub(super) fn find_loader_paths(&self) -> Result<LoaderPaths> {
        let data = elf::block_reader(&self.file, self.size);
        self.with_path_context(elf::find_loader_paths(&data))
    }

    /// Returns why libibverbs does not use the provider for a device: the kernel ABI
    /// (`match_device`, libibverbs/init.c).
    pub(super) fn unserved_reason(
        &self,
        provider: &str,
        devices: &[&VerbsDevice],
    ) -> Result<Option<String>> {
        let Some((min, max)) = self.read_kernel_abi(provider)? else {
            return Ok(None);
        };
        Ok(devices
            .iter()
            .filter_map(|device| device.kernel_abi)
            .find(|abi| !(min..=max).contains(abi))
            .map(|abi| format!("serves kernel ABI {min} to {max}, and the driver has {abi}")))
    }

    /// Returns the kernel ABIs that a provider supports: `match_min_abi_version` and
    /// `match_max_abi_version`, which follow its name in `struct verbs_device_ops`
    /// (libibverbs/driver.h). Returns `None` if they cannot be found.
    fn read_kernel_abi(&self, provider: &str) -> Result<Option<(u32, u32)>> {
        let mut ranges =
            self.with_path_context(elf::find_numbers_after_name(&self.file, self.size, provider))?;
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

    /// Returns the name by which other libraries need this one.
    pub(super) fn name(&self) -> String {
        match &self.summary.soname {
            Some(soname) => soname.clone(),
            None => self.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }
}

/// The `e_machine` of this program (elf.h, EM_X86_64 and EM_AARCH64).
const MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};
