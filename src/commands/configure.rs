//! `runtime configure`: an engine's file, and the policy in `config.toml`. Both are decided before
//! either is written.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use onload_core::config::CONFIG_PATH;
use onload_host::host::{EntryKind, Host};

use super::holders;
use crate::cli::{Configure, Global};
use crate::config_file::{self, ConfigDir, ConfigFile, backup_name};
use crate::engine::holders::Held;
use crate::engine::{
    Action, Beside, Decision, Engine, Files, Keep, Other, RUNTIME_NAME, RUNTIME_PATH, policy,
};
use crate::exit::Answer;
use crate::printer::{Printer, harmless};

/// Where systemd's command is; PATH is the caller's.
const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];

/// Runs the command.
///
/// # Errors
/// A file cannot be read or written, or has to stay as it is.
pub fn run(global: &Global, args: &Configure, printer: &mut Printer) -> anyhow::Result<Answer> {
    let host = Host::open(&global.host_root)?;
    if args.restart && !host.is_running() {
        bail!(
            "restarting {}: {} is not the running host; leave --restart out",
            args.runtime.name(),
            global.host_root.display()
        );
    }
    let mut engine = EngineFile::open(&host, args)?;
    // Where there is neither a file nor one to be made, nothing is locked.
    let has_none = args.remove && args.allow.is_empty() && engine.directory.is_none();
    let is_idle = args.dry_run || has_none;
    let _lock = (!is_idle).then(|| config_file::lock(&host)).transpose()?;
    engine.read(&host, args)?;
    let held = engine.held(&host, args)?;
    let decision = engine.decide(args, &held)?;
    let mut policy = PolicyFile::open(&host, global, args)?;
    let edited = policy.as_ref().map(|policy| policy.decide(args));
    let edited = edited.transpose()?.flatten();
    for warning in &decision.warnings {
        printer.warning(warning);
    }
    if !args.remove {
        warn_of_missing(&host, args.runtime, printer)?;
    }
    if args.dry_run {
        engine.show(&decision, printer)?;
        if let Some(policy) = &policy {
            policy.show(edited.as_deref(), printer)?;
        }
        if held.is_held() {
            printer.warning(engine.what_stays(&held));
            return Ok(Answer::No);
        }
        return Ok(Answer::Yes);
    }
    if let (Some(policy), Some(text)) = (&mut policy, &edited) {
        policy.write(&host, text, printer)?;
    }
    let changed = engine.carry_out(&host, &decision, printer)?;
    restart(args, changed, printer)?;
    if held.is_held() {
        // A name may be any user's, of a container of their own podman.
        printer.print(format_args!("{}\n", harmless(engine.what_stays(&held))))?;
        return Ok(Answer::No);
    }
    Ok(Answer::Yes)
}

/// The engine's file.
struct EngineFile {
    engine: Engine,
    /// Where it is, for messages.
    shown: PathBuf,
    directory: Option<ConfigDir>,
    file: Option<ConfigFile>,
    files: Files,
}

impl EngineFile {
    fn open(host: &Host, args: &Configure) -> anyhow::Result<Self> {
        let path = args.runtime.file();
        let directory = open_directory(host, path)?;
        Ok(EngineFile {
            engine: args.runtime,
            shown: host.outside_path(path),
            directory,
            file: None,
            files: Files::default(),
        })
    }

    fn name(&self) -> &'static OsStr {
        self.engine.file().file_name().unwrap_or_default()
    }

    fn backup_name(&self) -> OsString {
        backup_name(self.engine.file())
    }

    fn read(&mut self, host: &Host, args: &Configure) -> anyhow::Result<()> {
        if let Some(directory) = &self.directory {
            self.file = directory.read(self.name())?;
            self.files.now = self.file.as_ref().map(|file| file.text.clone());
            if !self.engine.is_drop_in() {
                let backup = directory.read(&self.backup_name())?;
                self.files.before = backup.map(|file| file.text);
            }
        }
        if args.remove && !Engine::has_trace(&self.files) {
            return Ok(());
        }
        let beside = self.engine.beside(self.files.now.as_deref());
        let beside = beside.with_context(|| self.what())?;
        self.files.others = read_beside(host, &beside, self.engine.file())?;
        Ok(())
    }

    /// Who needs the entry that is to be removed.
    fn held(&self, host: &Host, args: &Configure) -> anyhow::Result<Held> {
        let now = self.files.now.as_deref();
        if !args.remove || !self.engine.registers(now).with_context(|| self.what())? {
            return Ok(Held::By(Vec::new()));
        }
        Ok(match self.engine.default_setting(&self.files) {
            Some(key) => Held::Default(key),
            None => holders::held(host, self.engine, now),
        })
    }

    /// What a removal leaves, and what to do about it.
    fn what_stays(&self, held: &Held) -> String {
        let (name, path) = (self.engine.name(), self.shown.display());
        format!(
            "the runtime \"{RUNTIME_NAME}\" stays in {path}: {held}; then run \"onload-ctk runtime configure --runtime {name} --remove\""
        )
    }

    fn decide(&self, args: &Configure, held: &Held) -> anyhow::Result<Decision> {
        let keep = match held.is_held() {
            true => Keep::Runtime,
            false => Keep::Nothing,
        };
        let decision = if args.remove {
            self.engine.remove(&self.files, keep)
        } else {
            self.engine.configure(&self.files)
        };
        decision.with_context(|| self.what())
    }

    fn what(&self) -> String {
        let (name, path) = (self.engine.name(), self.shown.display());
        format!("configuring {name}, whose {path} is left as it is")
    }

    fn show(&self, decision: &Decision, printer: &mut Printer) -> anyhow::Result<()> {
        print_diff(
            &self.shown,
            self.files.now.as_deref(),
            &decision.file,
            printer,
        )
    }

    /// Carries a decision out, the backup before the file; whether the engine has to read anew.
    fn carry_out(
        &mut self,
        host: &Host,
        decision: &Decision,
        printer: &mut Printer,
    ) -> anyhow::Result<bool> {
        let changes = decision.file != Action::Keep;
        if changes || decision.backup != Action::Keep {
            self.make_directory(host)?;
        }
        if let Some(directory) = &self.directory {
            let backup = self.backup_name();
            if let Action::Write(text) = &decision.backup {
                directory.write(&backup, text, self.file.as_ref())?;
            }
            match &decision.file {
                Action::Write(text) => directory.write(self.name(), text, self.file.as_ref())?,
                Action::Remove => directory.remove(self.name())?,
                Action::Keep => {}
            }
            if decision.backup == Action::Remove {
                directory.remove(&backup)?;
            }
        }
        let path = self.shown.display();
        match &decision.file {
            Action::Write(_) => printer.note(format_args!("wrote {path}")),
            Action::Remove => printer.note(format_args!("removed {path}")),
            Action::Keep => printer.note(format_args!("nothing to change in {path}")),
        }
        Ok(changes)
    }

    fn make_directory(&mut self, host: &Host) -> anyhow::Result<()> {
        if self.directory.is_none() {
            let parent = self.engine.file().parent().unwrap_or(Path::new("/"));
            let open = host.create_directory(parent)?;
            self.directory = Some(ConfigDir::new(host.outside_path(parent), open));
        }
        Ok(())
    }
}

/// `config.toml`, where classes are to be allowed.
struct PolicyFile {
    shown: PathBuf,
    /// None where it was named on the command line.
    on_host: Option<&'static Path>,
    directory: Option<ConfigDir>,
    file: Option<ConfigFile>,
}

impl PolicyFile {
    /// None where no class is to be allowed.
    fn open(host: &Host, global: &Global, args: &Configure) -> anyhow::Result<Option<Self>> {
        if args.allow.is_empty() {
            return Ok(None);
        }
        let on_host = Path::new(CONFIG_PATH);
        let mut policy = match &global.config {
            Some(path) => PolicyFile {
                shown: path.clone(),
                on_host: None,
                directory: Some(open_given(path)?),
                file: None,
            },
            None => PolicyFile {
                shown: host.outside_path(on_host),
                on_host: Some(on_host),
                directory: open_directory(host, on_host)?,
                file: None,
            },
        };
        if let Some(directory) = &policy.directory {
            policy.file = directory.read(policy.name())?;
        }
        Ok(Some(policy))
    }

    fn name(&self) -> &OsStr {
        self.shown.file_name().unwrap_or_default()
    }

    fn text(&self) -> Option<&str> {
        self.file.as_ref().map(|file| file.text.as_str())
    }

    /// The new text; none where it stays.
    fn decide(&self, args: &Configure) -> anyhow::Result<Option<String>> {
        let old = self.text().unwrap_or_default();
        let path = self.shown.display();
        let new = policy::allow(old, &args.allow)
            .with_context(|| format!("allowing classes in {path}, which is left as it is"))?;
        Ok((new != old).then_some(new))
    }

    fn show(&self, edited: Option<&str>, printer: &mut Printer) -> anyhow::Result<()> {
        let action = edited.map_or(Action::Keep, |text| Action::Write(text.to_owned()));
        print_diff(&self.shown, self.text(), &action, printer)
    }

    fn write(&mut self, host: &Host, text: &str, printer: &mut Printer) -> anyhow::Result<()> {
        if let (None, Some(path)) = (&self.directory, self.on_host) {
            let parent = path.parent().unwrap_or(Path::new("/"));
            let open = host.create_directory(parent)?;
            self.directory = Some(ConfigDir::new(host.outside_path(parent), open));
        }
        if let Some(directory) = &self.directory {
            directory.write(self.name(), text, self.file.as_ref())?;
            printer.note(format_args!("wrote {}", self.shown.display()));
        }
        Ok(())
    }
}

/// The directory of a file of the host; none where there is none.
fn open_directory(host: &Host, path: &Path) -> anyhow::Result<Option<ConfigDir>> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let open = host.directory(parent)?;
    Ok(open.map(|open| ConfigDir::new(host.outside_path(parent), open)))
}

fn open_given(path: &Path) -> anyhow::Result<ConfigDir> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let open = rustix::fs::open(parent, flags, rustix::fs::Mode::empty())
        .with_context(|| format!("opening the directory {}", parent.display()))?;
    Ok(ConfigDir::new(parent.to_owned(), open))
}

/// Reads what stands beside an engine's file, each file once and not that one.
fn read_beside(host: &Host, beside: &[Beside], own: &Path) -> anyhow::Result<Vec<Other>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for beside in beside {
        match beside {
            Beside::File(path) => paths.push(path.clone()),
            Beside::Directory(directory, pattern) => {
                let names = host.list(directory)?.names;
                let names = names.iter().filter(|name| matches(pattern, name));
                paths.extend(names.map(|name| directory.join(name)));
            }
        }
    }
    let mut others: Vec<Other> = Vec::new();
    for path in paths {
        let seen = path == own || others.iter().any(|other| other.path == path);
        let is_file = matches!(host.entry(&path)?, Some(EntryKind::File { .. }));
        if let Some(text) = host.text(&path)?.filter(|_| !seen && is_file) {
            others.push(Other { path, text });
        }
    }
    Ok(others)
}

/// Whether a name matches a pattern whose only special character is `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            let ends = name.char_indices().map(|(place, _)| place);
            let mut ends = ends.chain([name.len()]);
            ends.any(|end| matches(rest, name.get(end..).unwrap_or_default()))
        }),
    }
}

fn print_diff(
    path: &Path,
    old: Option<&str>,
    action: &Action,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    const NOTHING: &str = "/dev/null";
    let path = path.display().to_string();
    let from = if old.is_some() { &path } else { NOTHING };
    let (to, new) = match action {
        Action::Keep => {
            printer.note(format_args!("nothing to change in {path}"));
            return Ok(());
        }
        Action::Write(text) => (path.as_str(), text.as_str()),
        Action::Remove => (NOTHING, ""),
    };
    let diff = similar::TextDiff::from_lines(old.unwrap_or_default(), new);
    printer.print(diff.unified_diff().header(from, to))?;
    Ok(())
}

fn warn_of_missing(host: &Host, engine: Engine, printer: &mut Printer) -> anyhow::Result<()> {
    let needed = match engine {
        Engine::Nomad => Engine::Docker.file(),
        _ => Path::new(RUNTIME_PATH),
    };
    if host.entry(needed)?.is_some() {
        return Ok(());
    }
    let path = host.outside_path(needed);
    printer.warning(match engine {
        Engine::Nomad => format!(
            "{} is not there; Nomad uses docker's runtimes, so run this with --runtime docker too",
            path.display()
        ),
        _ => format!(
            "{} is not there; a container that asks for the runtime cannot start until it is installed",
            path.display()
        ),
    });
    Ok(())
}

fn restart(args: &Configure, changed: bool, printer: &mut Printer) -> anyhow::Result<()> {
    let Some(service) = args.runtime.service() else {
        if changed {
            printer.note("nothing to restart: podman reads it whenever it starts a container");
        }
        return Ok(());
    };
    if !changed {
        return Ok(());
    }
    if !args.restart {
        printer.note(format_args!(
            "{service} reads it when it starts: systemctl restart {service}"
        ));
        return Ok(());
    }
    let program = SYSTEMCTL.into_iter().find(|path| Path::new(path).exists());
    let program = program.context("restarting a service: there is no systemctl")?;
    let status = Command::new(program).args(["restart", service]).status();
    let status = status.with_context(|| format!("restarting {service} with {program}"))?;
    if !status.success() {
        bail!(
            "restarting {service}: {program} ended with {status}; \"journalctl -u {service}\" says more"
        );
    }
    printer.note(format_args!("restarted {service}"));
    Ok(())
}
