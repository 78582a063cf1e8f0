//! The program that a container starts: the file that the kernel executes in the end.
//!
//! The image's author controls the files, so every read is bounded.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use onload_cdi::oci::{OciConfig, OciConfigError};
use onload_sys::elf::{self, ElfError, ElfSummary};
use onload_sys::fs::container_root::{ContainerRoot, FileError};
use onload_sys::fs::open::PATH_MAX;
use onload_sys::text::ErrorChain;

/// Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE).
const LINE_BYTES: usize = 256;
/// Nested interpreters that the kernel follows (fs/exec.c, `exec_binprm`).
const MAX_SCRIPTS: usize = 5;
const MAX_PATH_DIRS: usize = 64;
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Arguments that are read: an init, its `--`, and the command after it.
const MAX_ARGS: usize = 3;

#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerProgram {
    /// The first [`MAX_ARGS`] of `process.args`.
    pub args: Vec<String>,
    pub path: Option<String>,
    pub cwd: String,
}

impl ContainerProgram {
    pub(crate) fn from_config(config: &OciConfig) -> Result<Self, OciConfigError> {
        let mut args = Vec::new();
        config.each_arg(|arg| {
            if args.len() < MAX_ARGS {
                args.push(arg.to_owned());
            }
        })?;
        let cwd = config.process().map(|process| process.read("cwd"));
        Ok(ContainerProgram {
            args,
            path: config.env_value("PATH")?,
            cwd: cwd.and_then(|cwd| cwd.ok().flatten()).unwrap_or_default(),
        })
    }
}

/// The files of an image that no mount of the container hides.
#[derive(Clone, Copy)]
pub(crate) struct ProgramFiles<'a> {
    pub root: &'a ContainerRoot,
    /// Whether a mount of the container may hide a path.
    pub covered: &'a dyn Fn(&Path) -> bool,
}

impl ProgramFiles<'_> {
    /// Finds the file that the kernel executes. Returns the reason if the image does not show it.
    pub(crate) fn resolve_program(
        &self,
        program: &ContainerProgram,
    ) -> Result<(PathBuf, ElfSummary), String> {
        let mut path = self.find(program)?;
        for _ in 0..MAX_SCRIPTS {
            if (self.covered)(&path) {
                return Err(format!("{path:?} is under a mount"));
            }
            let (file, size) =
                self.root.open_file(&path).map_err(|error| ErrorChain(&error).to_string())?;
            match elf::summarize_file(&file, size) {
                Ok(summary) => return Ok((path, summary)),
                Err(ElfError::NotElf) => {}
                Err(error) => return Err(format!("{path:?}: {error}")),
            }
            let interpreter = read_interpreter(&file);
            path = interpreter
                .ok_or_else(|| format!("{path:?} is neither an ELF file nor a script"))?;
        }
        Err(format!("{path:?} is reached through more than {MAX_SCRIPTS} scripts"))
    }

    /// Returns the path of the program in the container. If the engine mounts an init that runs first, this is
    /// the command after the init's `--`.
    fn find(&self, program: &ContainerProgram) -> Result<PathBuf, String> {
        let mut name = program.args.first().ok_or("args is empty")?;
        if name.starts_with('/')
            && (self.covered)(Path::new(name))
            && let [_, dashes, command, ..] = program.args.as_slice()
            && dashes == "--"
        {
            name = command;
        }
        if name.len().max(program.cwd.len()) > PATH_MAX {
            return Err("args[0] or cwd is longer than a path may be".to_owned());
        }
        if name.contains('/') {
            return Ok(Path::new("/").join(&program.cwd).join(name));
        }
        let dirs = program.path.as_deref().unwrap_or(DEFAULT_PATH).split(':');
        for dir in dirs.take(MAX_PATH_DIRS) {
            if dir.len() > PATH_MAX {
                return Err("PATH has an entry that is longer than a path may be".to_owned());
            }
            let candidate = Path::new("/").join(&program.cwd).join(dir).join(name);
            if (self.covered)(&candidate) {
                continue;
            }
            match self.root.open_file(&candidate) {
                Ok(_) => return Ok(candidate),
                Err(FileError::NotRegular(_)) => {}
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(ErrorChain(&error).to_string()),
            }
        }
        Err(format!("{name:?} is in no directory of PATH"))
    }
}

/// Returns the program of a line `#! /path/to/program argument`.
fn read_interpreter(file: &File) -> Option<PathBuf> {
    let mut line = [0; LINE_BYTES];
    let count = file.read_at(&mut line, 0).ok()?;
    let mut lines = line[..count].strip_prefix(b"#!")?.split(|byte| *byte == b'\n');
    let text = std::str::from_utf8(lines.next()?).ok()?;
    let word = text.split([' ', '\t']).find(|word| !word.is_empty())?;
    (!word.contains('\0')).then(|| Path::new("/").join(word))
}
