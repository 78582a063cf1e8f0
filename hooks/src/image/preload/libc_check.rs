//! Whether the container's libc can load libonload.so: a loader that cannot exits before the program
//! starts, and reports the reason nowhere. The way is that of the kernel and the loader: `args[0]`, the
//! interpreter line of a script, PT_INTERP, and the versions that the libc beside that loader defines.
//! The image's author controls all of these files, so every read is bounded. Which program that is, others ask too.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use onload_sys::elf::{self, ElfError, ElfSummary, GlibcVersion};
use onload_sys::fs::open::PATH_MAX;
use onload_sys::text::ErrorChain;

use onload_core::rdma_providers::LIBRARY_DIRS;
use onload_sys::fs::container_root::{ContainerRoot, FileError};

/// Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE).
const LINE_BYTES: usize = 256;
/// Nested interpreters that the kernel follows (fs/exec.c, `exec_binprm`).
const MAX_SCRIPTS: usize = 5;
const MAX_PATH_DIRS: usize = 64;
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a libc's loader is, if the program does not say.
const LOADERS: [&str; 6] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-linux.so.2",
    "/lib64/ld64.so.2",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];

/// Words of a command line that are read: an init, its `--`, and the command after it.
pub(crate) const WORDS: usize = 3;

#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerProgram {
    /// The first [`WORDS`] of `process.args`.
    pub args: Vec<String>,
    pub path: Option<String>,
    pub cwd: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LibcCompatibility {
    Loads,
    /// Why it has no effect, or the answer is unknown.
    Unknown(String),
    /// Why it cannot be loaded.
    CannotLoad(String),
}

/// `library` is what the library's file needs, if it could be read. `covered` says whether the
/// container's mounts will hide a path.
pub(crate) fn check(
    root: &ContainerRoot,
    program: &ContainerProgram,
    library: Option<&ElfSummary>,
    covered: &dyn Fn(&Path) -> bool,
) -> LibcCompatibility {
    let files = ProgramFiles { root, covered };
    let check = LibcCheck { files, library };
    match check.files.resolve_program(program) {
        Ok((path, summary)) => check.judge_elf(&path, &summary),
        Err(reason) => check.judge_root_file_system(&reason),
    }
}

struct LibcCheck<'a> {
    files: ProgramFiles<'a>,
    library: Option<&'a ElfSummary>,
}

/// Where a container's program is looked for.
pub(crate) struct ProgramFiles<'a> {
    pub root: &'a ContainerRoot,
    pub covered: &'a dyn Fn(&Path) -> bool,
}

enum ProgramFormat {
    Script(PathBuf),
    Elf(ElfSummary),
    Other,
}

impl ProgramFiles<'_> {
    /// The file that the kernel executes in the end, or why that reveals nothing.
    pub(crate) fn resolve_program(
        &self,
        program: &ContainerProgram,
    ) -> Result<(PathBuf, ElfSummary), String> {
        let mut path = self.find(program)?;
        for _ in 0..MAX_SCRIPTS {
            match self.open(&path)? {
                ProgramFormat::Script(interpreter) => path = interpreter,
                ProgramFormat::Elf(summary) => return Ok((path, summary)),
                ProgramFormat::Other => {
                    return Err(format!("{path:?} is neither an ELF file nor a script"));
                }
            }
        }
        Err(format!("{path:?} is reached through more than {MAX_SCRIPTS} scripts"))
    }

    /// The path in the container that the runtime will execute; not an init that the engine mounts and
    /// runs first, but the command after its `--`.
    fn find(&self, program: &ContainerProgram) -> Result<PathBuf, String> {
        let mut words = program.args.iter();
        let mut name = words.next().ok_or("args is empty")?;
        if name.starts_with('/')
            && (self.covered)(Path::new(name))
            && let [second, third, ..] = words.as_slice()
            && second == "--"
        {
            name = third;
        }
        if name.len().max(program.cwd.len()) > PATH_MAX {
            return Err("args[0] or cwd is longer than a path".to_owned());
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

    fn open(&self, path: &Path) -> Result<ProgramFormat, String> {
        if (self.covered)(path) {
            return Err(format!("{path:?} is under a mount"));
        }
        let (file, size) =
            self.root.open_file(path).map_err(|error| ErrorChain(&error).to_string())?;
        classify(&file, size).map_err(|error| format!("{path:?}: {error}"))
    }
}

impl LibcCheck<'_> {
    fn judge_elf(&self, path: &Path, program: &ElfSummary) -> LibcCompatibility {
        let Some(loader) = &program.interpreter else {
            return LibcCompatibility::Unknown(format!(
                "{path:?} is a static program, which preloads nothing"
            ));
        };
        if loader.is_empty() {
            return LibcCompatibility::Unknown(format!("{path:?} names no loader"));
        }
        if !self.is_same_machine(program) {
            return LibcCompatibility::CannotLoad(format!(
                "{path:?} is for a different machine than libonload.so"
            ));
        }
        self.judge_loader(Path::new(loader))
    }

    /// Decides from the loader that a program requests.
    fn judge_loader(&self, loader: &Path) -> LibcCompatibility {
        let name = loader.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("ld-musl") {
            return LibcCompatibility::CannotLoad(format!(
                "the image's libc is musl ({}), libonload.so needs glibc",
                loader.display()
            ));
        }
        let glibc = ["ld-linux", "ld64.so", "ld.so"];
        if !glibc.iter().any(|prefix| name.starts_with(prefix)) {
            return LibcCompatibility::CannotLoad(format!(
                "the image's loader {loader:?} is not glibc's, which libonload.so needs"
            ));
        }
        let Some(library) = self.library else {
            return LibcCompatibility::Loads;
        };
        match self.find_libc(loader) {
            Ok(libc) => compare(library, &libc),
            Err(reason) => LibcCompatibility::Unknown(reason),
        }
    }

    /// The libc beside a loader.
    fn find_libc(&self, loader: &Path) -> Result<ElfSummary, String> {
        let beside = loader.parent().into_iter().map(Path::to_owned);
        let usual = LIBRARY_DIRS.iter().map(PathBuf::from);
        for dir in beside.chain(usual) {
            let path = dir.join("libc.so.6");
            if (self.files.covered)(&path) {
                return Err(format!("{path:?} is under a mount"));
            }
            let Ok((file, size)) = self.files.root.open_file(&path) else {
                continue;
            };
            match elf::summarize_file(&file, size) {
                // A library for another machine may be in a directory that both share.
                Ok(summary) if self.is_same_machine(&summary) => return Ok(summary),
                Ok(_) => {}
                Err(error) => return Err(format!("{path:?}: {error}")),
            }
        }
        Err("the image has no libc.so.6 where glibc keeps it".to_owned())
    }

    fn is_same_machine(&self, other: &ElfSummary) -> bool {
        self.library
            .is_none_or(|library| (library.machine, library.is_64) == (other.machine, other.is_64))
    }

    /// Decides from what is installed, if the program could not be examined.
    fn judge_root_file_system(&self, reason: &str) -> LibcCompatibility {
        let is_there = |loader: &&Path| {
            !(self.files.covered)(loader) && self.files.root.open_file(loader).is_ok()
        };
        let Some(loader) = LOADERS.iter().map(Path::new).find(is_there) else {
            return LibcCompatibility::Unknown(reason.to_owned());
        };
        match self.judge_loader(loader) {
            LibcCompatibility::Unknown(more) => {
                LibcCompatibility::Unknown(format!("{reason}; {more}"))
            }
            verdict => verdict,
        }
    }
}

fn classify(file: &File, size: u64) -> Result<ProgramFormat, ElfError> {
    let mut buffer = [0; LINE_BYTES];
    let read = file.read_at(&mut buffer, 0).unwrap_or_default();
    let line = &buffer[..read];
    if line.starts_with(b"#!") {
        return Ok(parse_shebang(line).map_or(ProgramFormat::Other, ProgramFormat::Script));
    }
    match elf::summarize_file(file, size) {
        Ok(summary) => Ok(ProgramFormat::Elf(summary)),
        Err(ElfError::NotElf) => Ok(ProgramFormat::Other),
        Err(error) => Err(error),
    }
}

/// The program of a line `#! /path/to/program argument`.
fn parse_shebang(line: &[u8]) -> Option<PathBuf> {
    let mut lines = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n');
    let text = std::str::from_utf8(lines.next()?).ok()?;
    let word = text.split([' ', '\t']).find(|word| !word.is_empty())?;
    (!word.contains('\0')).then(|| Path::new("/").join(word))
}

fn compare(library: &ElfSummary, libc: &ElfSummary) -> LibcCompatibility {
    let missing = library
        .version_needs
        .iter()
        .filter(|need| !need.weak && need.library.starts_with("libc.so."))
        .map(|need| need.version.as_str())
        .filter(|version| !libc.version_definitions.contains(*version))
        .max_by_key(|version| GlibcVersion::from_symbol_version(version));
    let newer = library.glibc_needed().filter(|needed| Some(*needed) > libc.glibc_defined());
    let wanted = match (missing, newer) {
        (None, None) => return LibcCompatibility::Loads,
        (_, Some(needed)) => format!("GLIBC_{needed}"),
        (Some(version), None) => version.to_owned(),
    };
    let has = libc
        .glibc_defined()
        .map_or_else(|| "of an unknown version".to_owned(), |version| version.to_string());
    LibcCompatibility::CannotLoad(format!(
        "libonload.so needs {wanted}, the image's glibc is {has}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_sys::elf::VersionNeed;
    use onload_test_tree::Tree;

    /// A root file system made of this machine's own glibc programs, or of given bytes.
    struct Image(Tree);

    impl Image {
        fn new() -> Self {
            let image = Image(Tree::new());
            for dir in ["bin", "lib", "lib64", "usr/bin", "etc"] {
                image.0.directory(dir);
            }
            image
        }

        fn file(&self, path: &str, bytes: &[u8]) -> &Self {
            self.0.file(path, bytes);
            self
        }

        fn link(&self, target: &str, path: &str) -> &Self {
            self.0.link(path, target);
            self
        }

        fn check_covered(&self, args: &[&str], covered: &[&str]) -> LibcCompatibility {
            let root = ContainerRoot::open(self.0.root()).unwrap();
            let program = ContainerProgram {
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                path: Some("/none:/bin".to_owned()),
                cwd: "/".to_owned(),
            };
            check(&root, &program, Some(&library("GLIBC_2.17")), &|path| {
                covered.iter().any(|c| path.starts_with(c))
            })
        }

        fn check(&self, program: &str) -> LibcCompatibility {
            self.check_covered(&[program], &[])
        }

        fn reason(&self, program: &str) -> String {
            match self.check(program) {
                LibcCompatibility::Loads => panic!("loads"),
                LibcCompatibility::Unknown(reason) => format!("unknown: {reason}"),
                LibcCompatibility::CannotLoad(reason) => format!("cannot: {reason}"),
            }
        }
    }

    fn library(version: &str) -> ElfSummary {
        let need = VersionNeed {
            library: "libc.so.6".to_owned(),
            version: version.to_owned(),
            weak: false,
        };
        ElfSummary {
            machine: 62,
            is_64: true,
            version_needs: [need].into(),
            ..ElfSummary::default()
        }
    }

    fn libc(versions: &[&str]) -> ElfSummary {
        ElfSummary {
            version_definitions: versions.iter().map(|v| (*v).to_owned()).collect(),
            ..library("")
        }
    }

    /// An ELF file with one program header, PT_INTERP, or without any.
    fn elf_with_loader(loader: Option<&str>) -> Vec<u8> {
        let mut file = vec![0_u8; 64];
        file[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0");
        file[20] = 1;
        file[52] = 64;
        file[54] = 56;
        let Some(loader) = loader else {
            return file;
        };
        file[32] = 64;
        file[56] = 1;
        let mut header = vec![0_u8; 56];
        header[0] = 3;
        header[8] = 120;
        let size = u64::try_from(loader.len() + 1).unwrap().to_le_bytes();
        header[32..40].copy_from_slice(&size);
        header[40..48].copy_from_slice(&size);
        file.extend(header);
        file.extend(loader.as_bytes());
        file.push(0);
        file
    }

    const MUSL: &str = "/lib/ld-musl-x86_64.so.1";
    const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";

    #[test]
    fn a_program_that_is_nowhere_is_named() {
        let reason = Image::new().reason("redis-server");
        assert!(reason.contains("\"redis-server\" is in no directory of PATH"), "{reason}");
    }

    #[test]
    fn a_libc_with_the_needed_versions_loads() {
        let old = libc(&["GLIBC_2.2.5", "GLIBC_2.36"]);
        assert_eq!(compare(&library("GLIBC_2.2.5"), &old), LibcCompatibility::Loads);
        assert_eq!(compare(&library("GLIBC_2.36"), &old), LibcCompatibility::Loads);
        assert_eq!(
            compare(&library("GLIBC_2.38"), &old),
            LibcCompatibility::CannotLoad(
                "libonload.so needs GLIBC_2.38, the image's glibc is 2.36".to_owned()
            )
        );
        assert_eq!(
            compare(&library("GLIBC_ABI_DT_RELR"), &old),
            LibcCompatibility::CannotLoad(
                "libonload.so needs GLIBC_ABI_DT_RELR, the image's glibc is 2.36".to_owned()
            )
        );
        assert!(matches!(
            compare(&library("GLIBC_2.3"), &libc(&[])),
            LibcCompatibility::CannotLoad(_)
        ));
    }

    #[test]
    fn a_musl_image_cannot_load_it() {
        let image = Image::new();
        image.file("bin/app", &elf_with_loader(Some(MUSL)));
        assert!(image.reason("/bin/app").starts_with("cannot: the image's libc is musl"));
        assert!(image.reason("app").starts_with("cannot: "), "found in PATH");
        image.file("bin/script", b"#! /bin/app -x\n");
        image.file("bin/script2", b"#!/bin/script\n");
        assert!(image.reason("/bin/script2").starts_with("cannot: "));
        image.file("bin/odd", &elf_with_loader(Some("/system/bin/linker64")));
        assert!(image.reason("/bin/odd").contains("is not glibc's"));
    }

    #[test]
    fn a_static_program_is_told() {
        let image = Image::new();
        image.file("bin/app", &elf_with_loader(None));
        assert!(image.reason("/bin/app").starts_with("unknown: \"/bin/app\" is a static program"));
    }

    #[test]
    fn a_program_for_another_machine_cannot_load_it() {
        let image = Image::new();
        let mut bytes = elf_with_loader(Some(GLIBC));
        bytes[18] = 183;
        image.file("bin/app", &bytes);
        assert!(image.reason("/bin/app").contains("different machine"));
    }

    #[test]
    fn an_init_that_the_engine_mounts_is_not_the_image_s_program() {
        let image = Image::new();
        image.file("bin/app", &elf_with_loader(Some(MUSL)));
        let verdict =
            image.check_covered(&["/sbin/docker-init", "--", "/bin/app"], &["/sbin/docker-init"]);
        assert!(matches!(verdict, LibcCompatibility::CannotLoad(_)));
    }

    #[test]
    fn where_the_program_cannot_be_seen_the_installed_loader_tells() {
        let image = Image::new();
        image.file("lib/ld-musl-x86_64.so.1", b"x");
        assert!(image.reason("/absent").starts_with("cannot: the image's libc is musl"));
        assert!(matches!(
            image.check_covered(&["/app/x"], &["/app"]),
            LibcCompatibility::CannotLoad(_)
        ));
        assert!(matches!(Image::new().check("/absent"), LibcCompatibility::Unknown(_)));
        let glibc = Image::new();
        glibc.file("lib64/ld-linux-x86-64.so.2", b"x");
        assert!(glibc.reason("/absent").contains("has no libc.so.6"));
    }

    #[test]
    fn programs_that_are_no_files_are_given_up_in_bounded_time() {
        let image = Image::new();
        image.link("b", "bin/a").link("a", "bin/b").link("/proc/self/root/bin/sh", "bin/magic");
        image.link("../../../../../../../../../bin/sh", "bin/up");
        image.file("bin/self", b"#!/bin/self\n").file("bin/empty", b"").file("bin/text", b"echo\n");
        image.file("bin/nul", b"#!/bin/\0sh\n").file("bin/bare", b"#!\n");
        let fifo = image.0.path("bin/fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let sparse = File::create(image.0.path("bin/sparse")).unwrap();
        sparse.set_len(10 << 30).unwrap();
        let names = [
            "a", "magic", "up", "self", "empty", "text", "nul", "bare", "fifo", "sparse", "../bin",
        ];
        for name in names {
            let reason = image.reason(&format!("/bin/{name}"));
            assert!(reason.starts_with("unknown: "), "{name}: {reason}");
        }
        assert!(matches!(image.check_covered(&[], &[]), LibcCompatibility::Unknown(_)));
    }

    #[test]
    fn a_libc_that_is_no_library_is_given_up() {
        let image = Image::new();
        image.file("bin/app", &elf_with_loader(Some(GLIBC)));
        assert!(image.reason("/bin/app").contains("has no libc.so.6"));
        image.file("lib64/libc.so.6", b"INPUT(libc)\n");
        assert!(image.reason("/bin/app").contains("not an ELF file"));
        image.0.remove("lib64/libc.so.6");
        image.link("/proc/self/root/lib/x86_64-linux-gnu/libc.so.6", "lib64/libc.so.6");
        assert!(image.reason("/bin/app").contains("has no libc.so.6"));
    }
}
