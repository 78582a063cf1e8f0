//! Carries out a plan. The record lists files before they are created, so that a later run finds them even if this
//! program is killed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use onload_core::config::CONFIG_PATH;
use onload_sys::fs::attributes::copy_label;

use super::directory::{HOOK_MODE, HookDirectory, TrustedRoot};
use super::plan::{InstallInput, InstallPlan, InstallReport, InstallStep};
use super::record::RECORD_NAME;
use crate::spec_writer::{HOOK_NAME, VERSION};

/// A program of the host that any runtime may execute, whose security label also fits the hook.
const LABEL_SOURCE: &str = "/usr/bin/env";
/// The name of a hook that has not been executed yet.
const NEW_NAME: &str = "onload-hook.new";
/// The directories for the installation.
#[derive(Debug)]
pub(super) struct InstallTarget<'t> {
    pub tree: &'t TrustedRoot,
    pub path: &'t Path,
    pub directory: &'t HookDirectory,
}

impl InstallTarget<'_> {
    /// Carries out a plan and reports each step. If a step fails, the rest is skipped, and the record lists the files
    /// that may exist.
    pub(super) fn apply(&self, plan: InstallPlan, input: &InstallInput) -> Result<InstallReport> {
        self.directory.write_text(RECORD_NAME, &plan.before.to_text())?;
        let config = input.config.as_ref().map_or("", |config| &config.text);
        let mut report = plan.report;
        for step in &plan.steps {
            report.done.push(match step {
                InstallStep::PutHook => self.write_hook(&input.hook)?,
                InstallStep::PutConfig => self.write_config(config)?,
                InstallStep::RemoveHook(version) => self.remove_hook(version)?,
                InstallStep::RemoveConfig => self.remove_config()?,
            });
        }
        self.directory.write_text(RECORD_NAME, &plan.after.to_text())?;
        Ok(report)
    }

    fn write_hook(&self, content: &[u8]) -> Result<String> {
        let version = self.path.join(VERSION);
        let directory = self.tree.create_dir(&version)?;
        // Running containers may name the present hook, so it is kept until the new one has been executed successfully.
        directory
            .write_file(NEW_NAME, content, HOOK_MODE, |file| self.set_label(file, &directory))?;
        let new = version.join(NEW_NAME);
        let shown = self.tree.outside_path(&new);
        let tried = self.tree.open_file(&new)?.map(|file| try_hook(&file, &shown));
        if let Some(Err(error)) = tried {
            directory.remove(NEW_NAME)?;
            return Err(error);
        }
        directory.rename(NEW_NAME, HOOK_NAME)?;
        Ok(format!("put {}", version.join(HOOK_NAME).display()))
    }

    /// Sets the security label of programs on a file, if the host's programs have one.
    fn set_label(&self, file: &File, directory: &HookDirectory) -> Result<()> {
        let Some(like) = self.tree.open_file(Path::new(LABEL_SOURCE))? else {
            return Ok(());
        };
        copy_label(&like, file).with_context(|| {
            let path = directory.path.join(HOOK_NAME);
            format!("giving {} the security label of {LABEL_SOURCE}", path.display())
        })
    }

    fn write_config(&self, text: &str) -> Result<String> {
        let (directory, name) = split_config_path();
        self.tree.create_dir(&directory)?.write_text(name, text)?;
        Ok(format!("put {CONFIG_PATH}"))
    }

    fn remove_config(&self) -> Result<String> {
        let (path, name) = split_config_path();
        if let Some(directory) = self.tree.open(&path)? {
            directory.remove(name)?;
        }
        remove_directory(self.tree, &path)?;
        Ok(format!("removed {CONFIG_PATH}"))
    }

    fn remove_hook(&self, version: &str) -> Result<String> {
        let path = self.path.join(version);
        if let Some(directory) = self.tree.open(&path)? {
            directory.remove(HOOK_NAME)?;
            // Left by an interrupted installation.
            directory.remove(NEW_NAME)?;
        }
        let is_gone = self.directory.remove_directory(OsStr::new(version))?;
        let suffix = if is_gone { "" } else { "; something else is left in its directory" };
        Ok(format!("removed {}{suffix}", path.join(HOOK_NAME).display()))
    }
}

/// Removes a directory, if it exists and is empty.
pub(super) fn remove_directory(tree: &TrustedRoot, path: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    if let Some(parent) = tree.open(parent)? {
        parent.remove_directory(name)?;
    }
    Ok(())
}

fn split_config_path() -> (PathBuf, &'static str) {
    let path = Path::new(CONFIG_PATH);
    let directory = path.parent().unwrap_or(Path::new("/"));
    (directory.to_owned(), "config.toml")
}

/// Executes a hook. Fails unless it has this version.
pub(super) fn try_hook(file: &File, path: &Path) -> Result<()> {
    let executing = || format!("executing {}", path.display());
    // Executes the checked file, wherever its path leads by now. The descriptor stays open in the new process, since an
    // interpreter would open it again.
    rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).with_context(executing)?;
    let program = format!("/proc/self/fd/{}", file.as_raw_fd());
    let output = Command::new(&program).arg("--version").env_clear().output();
    let version_line =
        String::from_utf8_lossy(&output.with_context(executing)?.stdout).trim_end().to_owned();
    if version_line != format!("{HOOK_NAME} {VERSION}") {
        bail!(
            "installing the hook: {} is not the hook of version {VERSION}: it says {version_line:?}",
            path.display()
        );
    }
    Ok(())
}
