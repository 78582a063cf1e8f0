use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use onload_engines::files::{
    EngineFileAction, EngineFiles, FileDecision, KeptPart, RelatedFile, RelatedFiles,
};
use onload_engines::installed::{PROGRAM_DIRS, find_program};
use onload_engines::oci_runtime::DefaultRuntime;
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
    path: PathBuf,
    is_named: bool,
    pub(super) directory: Option<ConfigDir>,
    config_file: Option<ConfigFile>,
    files: EngineFiles,
}

/// A file with what is to be done with it: nothing undecided is carried out.
pub(super) struct DecidedFile {
    pub(super) file: EngineFile,
    pub(super) decision: FileDecision,
    runtime_use: RuntimeUse,
}

impl EngineFile {
    /// A file named by the user may be anywhere, so it must be protected from replacement by users other than root and
    /// the caller.
    pub(super) fn open(host: &Host, setup: EngineSetup, is_named: bool) -> Result<Self> {
        let mut file = EngineFile {
            path: host.outside_path(&setup.file),
            setup,
            is_named,
            directory: None,
            config_file: None,
            files: EngineFiles::default(),
        };
        file.open_directory(host)?;
        Ok(file)
    }

    fn open_directory(&mut self, host: &Host) -> Result<()> {
        let parent = self.setup.file.parent().unwrap_or(Path::new("/"));
        let open = if self.is_named || !self.setup.is_usual() {
            open_trusted_directory(host, parent).with_context(|| {
                let option = if self.is_named { "--file" } else { "opening the directory of" };
                format!("{option} {}", self.setup.file.display())
            })?
        } else {
            host.directory(parent)?
        };
        self.directory = open.map(|open| ConfigDir::new(host.outside_path(parent), open));
        Ok(())
    }

    fn name(&self) -> &OsStr {
        self.setup.file.file_name().unwrap_or_default()
    }

    fn backup_name(&self) -> OsString {
        backup_name(&self.setup.file)
    }

    fn read(&mut self, host: &Host, is_removed: bool, printer: &mut Printer) -> Result<()> {
        if let Some(directory) = &self.directory {
            self.config_file = directory.read(self.name())?;
            if self.config_file.is_some() {
                printer.log_read(&self.path);
            }
            self.files.now = self.config_file.as_ref().map(|file| file.text.clone());
            if !self.setup.is_drop_in() {
                let backup = directory.read(&self.backup_name())?;
                if backup.is_some() {
                    printer.log_read(&self.path.with_file_name(self.backup_name()));
                }
                self.files.before = backup.map(|file| file.text);
            }
        }
        if is_removed && !EngineSetup::has_trace(&self.files) {
            return Ok(());
        }
        let related = self
            .setup
            .related_files(self.files.now.as_deref())
            .with_context(|| self.configure_context())?;
        self.files.other_files = read_sibling_files(host, &related, &self.setup.file)?;
        Ok(())
    }

    /// It is an error where there is no file of it either: one would be made that nothing reads.
    pub(super) fn check_engine(
        &self,
        host: &Host,
        is_dry_run: bool,
        printer: &mut Printer,
    ) -> Result<()> {
        if self.is_named || self.setup.is_bundled() {
            return Ok(());
        }
        let program = self.setup.engine.kind().program();
        if find_program(host, self.setup.engine.kind())?.is_some() {
            return Ok(());
        }
        let (name, usual) = (self.setup.engine.name(), self.setup.engine.file());
        let message =
            format!("{name} is not installed: {program} not found in {}", PROGRAM_DIRS.join(", "));
        let has_file = host.entry(&self.setup.file)?.is_some() || host.entry(usual)?.is_some();
        if !has_file && !is_dry_run {
            bail!(
                "{message}; install it, or write its configuration in advance with --file {}",
                usual.display()
            );
        }
        printer.warning(message);
        Ok(())
    }

    /// The planned change.
    pub(super) fn decide(
        mut self,
        host: &Host,
        is_removed: bool,
        printer: &mut Printer,
    ) -> Result<DecidedFile> {
        self.read(host, is_removed, printer)?;
        let (decision, runtime_use) = if is_removed {
            let runtime_use = self.find_runtime_use(host)?;
            let keep = if runtime_use.is_in_use() { KeptPart::Runtime } else { KeptPart::Nothing };
            (self.setup.remove(&self.files, keep), runtime_use)
        } else {
            let runtime_use = RuntimeUse::By(Vec::new());
            (self.setup.configure(&self.files), runtime_use)
        };
        Ok(DecidedFile {
            decision: decision.with_context(|| self.configure_context())?,
            file: self,
            runtime_use,
        })
    }

    fn find_runtime_use(&self, host: &Host) -> Result<RuntimeUse> {
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
        let (name, path) = (self.setup.engine.name(), self.path.display());
        format!("configuring {name}, whose {path} is not changed")
    }

    fn make_directory(&mut self, host: &Host) -> Result<()> {
        if self.directory.is_some() {
            return Ok(());
        }
        host.create_directory(self.setup.file.parent().unwrap_or(Path::new("/")))?;
        self.open_directory(host)?;
        self.directory.as_ref().context("opening the directory").map(drop)
    }
}

impl DecidedFile {
    pub(super) fn replaced_default(&self, host: &Host) -> Result<Option<DefaultRuntime>> {
        let replaced = self.file.setup.replaced_default(host, &self.file.files);
        replaced.with_context(|| self.file.configure_context())
    }

    pub(super) fn is_runtime_in_use(&self) -> bool {
        self.runtime_use.is_in_use()
    }

    pub(super) fn kept_message(&self) -> String {
        let (runtime_use, setup) = (&self.runtime_use, &self.file.setup);
        let (name, path) = (setup.engine.name(), self.file.path.display());
        let file = if self.file.is_named {
            format!(" --file {}", setup.file.display())
        } else {
            String::new()
        };
        format!(
            "the runtime \"{RUNTIME_NAME}\" stays in {path}: {runtime_use}; then run \"onload-ctk runtime configure --runtime {name}{file} --remove\""
        )
    }

    pub(super) fn show(&self, printer: &mut Printer) -> Result<()> {
        if self.decision.file == EngineFileAction::Keep {
            printer.note(unchanged_message(&self.file.path));
            return Ok(());
        }
        let (now, new) = self.text_change();
        Ok(print_diff(&self.file.path, now, new, printer)?)
    }

    /// Its present and planned text.
    fn text_change(&self) -> (Option<&str>, Option<&str>) {
        let now = self.file.files.now.as_deref();
        match &self.decision.file {
            EngineFileAction::Keep => (now, now),
            EngineFileAction::Write(text) => (now, Some(text)),
            EngineFileAction::Remove => (now, None),
        }
    }

    /// Writes the backup and then the file. Returns whether the engine must reload. On an error what was there is still
    /// whole.
    pub(super) fn apply(&mut self, host: &Host, printer: &mut Printer) -> Result<bool> {
        let changes = self.decision.file != EngineFileAction::Keep;
        if changes || self.decision.backup != EngineFileAction::Keep {
            self.file.make_directory(host)?;
        }
        let (file, decision) = (&self.file, &self.decision);
        if let Some(directory) = &file.directory {
            let backup = file.backup_name();
            if let EngineFileAction::Write(text) = &decision.backup {
                directory.write(&backup, text, file.config_file.as_ref())?;
            }
            match &decision.file {
                EngineFileAction::Write(text) => {
                    directory.write(file.name(), text, file.config_file.as_ref())?;
                }
                EngineFileAction::Remove => directory.remove(file.name())?,
                EngineFileAction::Keep => {}
            }
            if decision.backup == EngineFileAction::Remove {
                directory.remove(&backup)?;
            }
        }
        let path = file.path.display();
        match &decision.file {
            EngineFileAction::Write(_) => printer.note(format_args!("wrote {path}")),
            EngineFileAction::Remove => printer.note(format_args!("removed {path}")),
            EngineFileAction::Keep => printer.note(unchanged_message(&file.path)),
        }
        Ok(changes)
    }

    pub(super) fn needs_restart(&self, has_cdi: bool) -> bool {
        let (now, new) = self.text_change();
        self.file.setup.needs_restart(now, new, has_cdi)
    }

    pub(super) fn restore(&self) -> Result<()> {
        let file = &self.file;
        let Some(directory) = &file.directory else { return Ok(()) };
        let backup = file.backup_name();
        let mut originals = vec![(file.name(), &file.files.now)];
        if !file.setup.is_drop_in() {
            originals.push((&backup, &file.files.before));
        }
        for (name, text) in originals {
            match text {
                Some(text) => directory.write(name, text, file.config_file.as_ref())?,
                None => directory.remove(name)?,
            }
        }
        Ok(())
    }
}

/// Opens a directory that, like its parents, only root and the caller can change. `None` if it does not exist.
fn open_trusted_directory(host: &Host, path: &Path) -> Result<Option<OwnedFd>> {
    let caller = geteuid().as_raw();
    let root = host.outside_path(Path::new("/"));
    let trusted = TrustedTree::for_tree(&root, TrustedOwners::from_users(&[0, caller]))?;
    for (depth, directory) in path.ancestors().enumerate() {
        match trusted.open_dir(directory) {
            Ok(open) => return Ok((depth == 0).then(|| OwnedFd::from(open))),
            // The parent's owner determines who could create it.
            Err(error) if error.is_absent() => {}
            Err(TrustError::Owner { path, owner }) => bail!(
                "{} belongs to user {owner}, who could replace it; run this as that user",
                host.outside_path(&path).display()
            ),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn read_sibling_files(
    host: &Host,
    related: &[RelatedFiles],
    own_path: &Path,
) -> Result<Vec<RelatedFile>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for files in related {
        paths.extend(files.paths(host)?);
    }
    let mut other_files: Vec<RelatedFile> = Vec::new();
    for path in paths {
        let is_known = path == own_path || other_files.iter().any(|other| other.path == path);
        let is_file = matches!(host.entry(&path)?, Some(EntryKind::File { .. }));
        if is_known || !is_file {
            continue;
        }
        if let Some(text) = host.text(&path)? {
            other_files.push(RelatedFile { path, text });
        }
    }
    Ok(other_files)
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
            let mut file = EngineFile::open(
                &host,
                EngineSetup::for_file(engine, engine.file().to_owned()),
                false,
            )
            .unwrap()
            .decide(&host, false, &mut printer)
            .unwrap();
            assert!(file.apply(&host, &mut printer).unwrap());
            assert!(fs::read_to_string(&path).unwrap().contains(RUNTIME_NAME));
            file.restore().unwrap();
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), was, "{engine:?}");
            let left = fs::read_dir(directory).unwrap().count();
            assert_eq!(left, usize::from(was.is_some()), "{engine:?}");
        }
    }
}
