use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use onload_engines::files::{
    EngineFileAction, EngineFiles, FileDecision, KeptPart, RelatedFile, RelatedFiles,
};
use onload_engines::installed::PROGRAM_DIRS;
use onload_engines::our_runtime::RUNTIME_NAME;
use onload_engines::runtime_containers::RuntimeUse;
use onload_engines::setup::EngineSetup;
use onload_host::host::{EntryKind, Host};
use onload_sys::fs::trust::{TrustError, TrustedOwners, TrustedTree};
use rustix::process::geteuid;

use super::{print_diff, runtime_containers, unchanged_message};
use crate::config_file::{ConfigDir, ConfigFile, backup_name};
use crate::printer::Printer;

pub(super) struct EngineFile {
    pub(super) setup: EngineSetup,
    shown: PathBuf,
    is_named: bool,
    directory: Option<ConfigDir>,
    found: Option<ConfigFile>,
    files: EngineFiles,
}

/// A file with what is to be done with it: nothing undecided is carried out.
pub(super) struct DecidedFile {
    pub(super) file: EngineFile,
    pub(super) decision: FileDecision,
    held: RuntimeUse,
}

impl EngineFile {
    /// One that was named may be anywhere, so nobody but root and the caller may be able to put another file in its
    /// place.
    pub(super) fn open(host: &Host, setup: EngineSetup, is_named: bool) -> anyhow::Result<Self> {
        let parent = setup.file.parent().unwrap_or(Path::new("/"));
        let directory = if is_named {
            open_trusted_directory(host, parent)
                .with_context(|| format!("--file {}", setup.file.display()))?
        } else {
            host.directory(parent)?
        };
        let shown = host.outside_path(parent);
        Ok(EngineFile {
            shown: host.outside_path(&setup.file),
            directory: directory.map(|open| ConfigDir::new(shown, open)),
            setup,
            is_named,
            found: None,
            files: EngineFiles::default(),
        })
    }

    pub(super) fn has_no_directory(&self) -> bool {
        self.directory.is_none()
    }

    fn name(&self) -> &OsStr {
        self.setup.file.file_name().unwrap_or_default()
    }

    fn backup_name(&self) -> OsString {
        backup_name(&self.setup.file)
    }

    fn read(&mut self, host: &Host, is_removed: bool, printer: &mut Printer) -> anyhow::Result<()> {
        if let Some(directory) = &self.directory {
            self.found = directory.read(self.name())?;
            if self.found.is_some() {
                printer.log_read(&self.shown);
            }
            self.files.now = self.found.as_ref().map(|file| file.text.clone());
            if !self.setup.is_drop_in() {
                let backup = directory.read(&self.backup_name())?;
                if backup.is_some() {
                    printer.log_read(&self.shown.with_file_name(self.backup_name()));
                }
                self.files.before = backup.map(|file| file.text);
            }
        }
        if is_removed && !EngineSetup::has_trace(&self.files) {
            return Ok(());
        }
        let beside = self.setup.related_files(self.files.now.as_deref());
        let beside = beside.with_context(|| self.configure_context())?;
        self.files.others = read_beside(host, &beside, &self.setup.file)?;
        Ok(())
    }

    /// It is an error where there is no file of it either: one would be made that nothing reads.
    pub(super) fn check_engine(
        &self,
        host: &Host,
        is_dry_run: bool,
        printer: &mut Printer,
    ) -> anyhow::Result<()> {
        if self.is_named {
            return Ok(());
        }
        let program = self.setup.engine.kind().program();
        for directory in PROGRAM_DIRS {
            if host.entry(&Path::new(directory).join(program))?.is_some() {
                return Ok(());
            }
        }
        let (name, usual) = (self.setup.engine.name(), self.setup.engine.file());
        let missing =
            format!("{name} is not installed: {program} not found in {}", PROGRAM_DIRS.join(", "));
        let has_file = host.entry(&self.setup.file)?.is_some() || host.entry(usual)?.is_some();
        if !has_file && !is_dry_run {
            bail!(
                "{missing}; install it, or write its configuration in advance with --file {}",
                usual.display()
            );
        }
        printer.warning(missing);
        Ok(())
    }

    /// What is to be done with it; nothing is done yet.
    pub(super) fn decide(
        mut self,
        host: &Host,
        is_removed: bool,
        printer: &mut Printer,
    ) -> anyhow::Result<DecidedFile> {
        self.read(host, is_removed, printer)?;
        let (decision, held) = if is_removed {
            let held = self.find_runtime_use(host)?;
            let keep = if held.is_in_use() { KeptPart::Runtime } else { KeptPart::Nothing };
            (self.setup.remove(&self.files, keep), held)
        } else {
            let held = RuntimeUse::By(Vec::new());
            (self.setup.configure(&self.files), held)
        };
        Ok(DecidedFile {
            decision: decision.with_context(|| self.configure_context())?,
            file: self,
            held,
        })
    }

    fn find_runtime_use(&self, host: &Host) -> anyhow::Result<RuntimeUse> {
        let now = self.files.now.as_deref();
        if !self.setup.registers_runtime(now).with_context(|| self.configure_context())? {
            return Ok(RuntimeUse::By(Vec::new()));
        }
        if let Some(key) = self.setup.default_setting(&self.files) {
            return Ok(RuntimeUse::Default(key));
        }
        Ok(match self.setup.state_dir(&self.files) {
            Ok(state) => runtime_containers::find_runtime_use(host, self.setup.engine, &state),
            Err(error) => RuntimeUse::Unknown(format!("{error:#}")),
        })
    }

    fn configure_context(&self) -> String {
        let (name, path) = (self.setup.engine.name(), self.shown.display());
        format!("configuring {name}, whose {path} is left as it is")
    }

    fn make_directory(&mut self, host: &Host) -> anyhow::Result<()> {
        if self.directory.is_some() {
            return Ok(());
        }
        let parent = self.setup.file.parent().unwrap_or(Path::new("/"));
        let made = host.create_directory(parent)?;
        let open = if self.is_named {
            open_trusted_directory(host, parent)?.context("opening the directory")?
        } else {
            made
        };
        self.directory = Some(ConfigDir::new(host.outside_path(parent), open));
        Ok(())
    }
}

impl DecidedFile {
    pub(super) fn is_runtime_in_use(&self) -> bool {
        self.held.is_in_use()
    }

    pub(super) fn kept_message(&self) -> String {
        let (held, setup) = (&self.held, &self.file.setup);
        let (name, path) = (setup.engine.name(), self.file.shown.display());
        let file = if self.file.is_named {
            format!(" --file {}", setup.file.display())
        } else {
            String::new()
        };
        format!(
            "the runtime \"{RUNTIME_NAME}\" stays in {path}: {held}; then run \"onload-ctk runtime configure --runtime {name}{file} --remove\""
        )
    }

    pub(super) fn show(&self, printer: &mut Printer) -> anyhow::Result<()> {
        if self.decision.file == EngineFileAction::Keep {
            printer.note(unchanged_message(&self.file.shown));
            return Ok(());
        }
        let (now, new) = self.text_change();
        Ok(print_diff(&self.file.shown, now, new, printer)?)
    }

    /// Its text as it is, and as it is to be.
    fn text_change(&self) -> (Option<&str>, Option<&str>) {
        let now = self.file.files.now.as_deref();
        match &self.decision.file {
            EngineFileAction::Keep => (now, now),
            EngineFileAction::Write(text) => (now, Some(text)),
            EngineFileAction::Remove => (now, None),
        }
    }

    /// The backup before the file; whether the engine has to read anew. On an error what was there is still whole.
    pub(super) fn apply(&mut self, host: &Host, printer: &mut Printer) -> anyhow::Result<bool> {
        let changes = self.decision.file != EngineFileAction::Keep;
        if changes || self.decision.backup != EngineFileAction::Keep {
            self.file.make_directory(host)?;
        }
        let (file, decision) = (&self.file, &self.decision);
        if let Some(directory) = &file.directory {
            let backup = file.backup_name();
            if let EngineFileAction::Write(text) = &decision.backup {
                directory.write(&backup, text, file.found.as_ref())?;
            }
            match &decision.file {
                EngineFileAction::Write(text) => {
                    directory.write(file.name(), text, file.found.as_ref())?
                }
                EngineFileAction::Remove => directory.remove(file.name())?,
                EngineFileAction::Keep => {}
            }
            if decision.backup == EngineFileAction::Remove {
                directory.remove(&backup)?;
            }
        }
        let path = file.shown.display();
        match &decision.file {
            EngineFileAction::Write(_) => printer.note(format_args!("wrote {path}")),
            EngineFileAction::Remove => printer.note(format_args!("removed {path}")),
            EngineFileAction::Keep => printer.note(unchanged_message(&file.shown)),
        }
        Ok(changes)
    }

    pub(super) fn needs_restart(&self, has_cdi: bool) -> bool {
        let (now, new) = self.text_change();
        self.file.setup.needs_restart(now, new, has_cdi)
    }

    pub(super) fn restore(&self) -> anyhow::Result<()> {
        let file = &self.file;
        let Some(directory) = &file.directory else {
            return Ok(());
        };
        let backup = file.backup_name();
        let mut was = vec![(file.name(), &file.files.now)];
        if !file.setup.is_drop_in() {
            was.push((&backup, &file.files.before));
        }
        for (name, text) in was {
            match text {
                Some(text) => directory.write(name, text, file.found.as_ref())?,
                None => directory.remove(name)?,
            }
        }
        Ok(())
    }
}

/// Opens a directory that nobody but root and the caller can change, nor one above it; none where it
/// is not there.
fn open_trusted_directory(host: &Host, path: &Path) -> anyhow::Result<Option<OwnedFd>> {
    let caller = geteuid().as_raw();
    let root = host.outside_path(Path::new("/"));
    let trusted = TrustedTree::for_tree(&root, TrustedOwners::from_users(&[0, caller]))?;
    for (above, directory) in path.ancestors().enumerate() {
        match trusted.open_dir(directory) {
            Ok(open) => return Ok((above == 0).then(|| OwnedFd::from(open))),
            // What is above it decides who could make it.
            Err(error) if error.is_absent() => {}
            Err(TrustError::Owner { path, owner }) => bail!(
                "{} belongs to user {owner}, who could put another file in its place; run this as that user",
                host.outside_path(&path).display()
            ),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn read_beside(
    host: &Host,
    beside: &[RelatedFiles],
    own: &Path,
) -> anyhow::Result<Vec<RelatedFile>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for beside in beside {
        paths.extend(beside.paths(host)?);
    }
    let mut others: Vec<RelatedFile> = Vec::new();
    for path in paths {
        let seen = path == own || others.iter().any(|other| other.path == path);
        let is_file = matches!(host.entry(&path)?, Some(EntryKind::File { .. }));
        if seen || !is_file {
            continue;
        }
        if let Some(text) = host.text(&path)? {
            others.push(RelatedFile { path, text });
        }
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use anstream::ColorChoice;

    use super::*;
    use onload_engines::engine::Engine;

    #[test]
    fn what_was_changed_is_put_back_as_it_was_read() {
        let cases = [
            (Engine::Docker, Some("{}")),
            (Engine::Docker, None),
            (Engine::Containerd, Some("# mine\n")),
            (Engine::Crio, None),
        ];
        for (engine, was) in cases {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join(engine.file().strip_prefix("/").unwrap());
            let directory = path.parent().unwrap();
            fs::create_dir_all(directory).unwrap();
            if let Some(was) = was {
                fs::write(&path, was).unwrap();
            }
            let host = Host::open(root.path()).unwrap();
            let mut printer = Printer::new(ColorChoice::Never, true, false);
            let file = EngineFile::open(&host, EngineSetup::for_engine(engine), false).unwrap();
            let mut file = file.decide(&host, false, &mut printer).unwrap();
            assert!(file.apply(&host, &mut printer).unwrap());
            assert!(fs::read_to_string(&path).unwrap().contains(RUNTIME_NAME));
            file.restore().unwrap();
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), was, "{engine:?}");
            let left = fs::read_dir(directory).unwrap().count();
            assert_eq!(left, usize::from(was.is_some()), "{engine:?}");
        }
    }
}
