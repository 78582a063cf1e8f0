//! How container engines are configured: the old text of a file gives the new one. Nothing here reads or writes a file.
//! CDI is on, and `onload-container-runtime` is the OCI runtime `onload`. All other content of a file is kept byte for
//! byte.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use onload_host::host::Host;

use crate::daemon::DaemonFlags;
use crate::engine::Engine;
use crate::files::{
    EngineFileAction, EngineFiles, FileDecision, KeptPart, NewText, OriginalText, RelatedFile,
    RelatedFiles,
};
use crate::kubernetes::{BundledContainerd, K0S_DROP_IN, is_k0s_managed};
use crate::oci_runtime::DefaultRuntime;
use crate::our_runtime::{RUNTIME_NAME, RUNTIME_PATH};
use crate::variant::EngineVariant;
use crate::{containerd, containerd_drop_in, crio, docker, nomad, nri, podman, template};

/// The flags by which an engine reads another file than usual.
const CONFIG_FLAGS: [&str; 3] = ["config-file", "config", "c"];
/// The backup of a file that was not there. With no backup at all, a file is somebody else's, and what
/// another engine's user may have set, such as CDI itself, is not ours to take away.
pub(crate) const NO_FILE: &str = "onload-ctk: there was no such file\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetupForm {
    /// The only one of its kind: it is edited in place, and what it was is kept as a backup.
    Whole,
    /// The toolkit's file among several that the engine reads. It has no backup: an engine might read that too.
    DropIn,
    /// The template from which k3s generates such a file; also edited in place.
    Template,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSetup {
    pub engine: Engine,
    pub file: PathBuf,
    /// The settings of its daemon; `None` if it is unknown whether the daemon reads the file.
    flags: DaemonFlags,
    variant: Option<EngineVariant>,
    form: SetupForm,
    pub set_default: bool,
    pub nri: bool,
}

impl EngineSetup {
    /// The file that the engine reads if it starts with these flags.
    pub fn for_daemon(engine: Engine, flags: DaemonFlags) -> EngineSetup {
        let file = match engine {
            Engine::Docker => flags.path(&["config-file"]),
            Engine::Containerd => flags.path(&["config", "c"]),
            Engine::Crio => Some(crio::drop_in_file(&flags)),
            Engine::Podman | Engine::Nomad => None,
        };
        let file = file.unwrap_or_else(|| engine.file().to_owned());
        EngineSetup { flags, ..EngineSetup::for_file(engine, file) }
    }

    /// Its name says what it is.
    pub fn for_file(engine: Engine, file: PathBuf) -> EngineSetup {
        let form = match engine {
            Engine::Docker => SetupForm::Whole,
            Engine::Containerd if template::is_template(&file) => SetupForm::Template,
            Engine::Containerd if containerd_drop_in::is_drop_in(&file) => SetupForm::DropIn,
            Engine::Containerd => SetupForm::Whole,
            Engine::Crio | Engine::Podman | Engine::Nomad => SetupForm::DropIn,
        };
        let (flags, variant) = (DaemonFlags::default(), EngineVariant::from_path(&file));
        EngineSetup { engine, file, flags, variant, form, set_default: false, nri: false }
    }

    /// A file of the containerd that a distribution of Kubernetes brings, wherever that is.
    pub fn for_bundled(bundled: &BundledContainerd, file: PathBuf) -> EngineSetup {
        let variant = Some(EngineVariant::Bundled(bundled.kind));
        EngineSetup { variant, ..EngineSetup::for_file(Engine::Containerd, file) }
    }

    /// Returns the setup of another file of the same daemon.
    pub fn for_other_file(&self, file: PathBuf) -> EngineSetup {
        EngineSetup { flags: self.flags.clone(), ..EngineSetup::for_file(self.engine, file) }
    }

    /// Whether a distribution of Kubernetes brings the engine.
    pub fn is_bundled(&self) -> bool {
        matches!(self.variant, Some(EngineVariant::Bundled(_)))
    }

    /// The drop-in of an engine that is normally configured by its main file, or `None`.
    pub fn find_drop_in(engine: Engine) -> Option<EngineSetup> {
        let file = Path::new(containerd_drop_in::FILE);
        (engine == Engine::Containerd).then(|| EngineSetup::for_file(engine, file.to_owned()))
    }

    /// Whether the main file's text has the drop-in read, so that this is the place for ours.
    pub fn is_read_by(&self, main: &str) -> bool {
        self.form == SetupForm::DropIn && containerd_drop_in::is_read_by(main)
    }

    /// Whether the file is where each engine of this name has it.
    pub fn is_usual(&self) -> bool {
        let drop_in = EngineSetup::find_drop_in(self.engine);
        self.file == self.engine.file() || drop_in.is_some_and(|usual| usual.file == self.file)
    }

    pub fn is_drop_in(&self) -> bool {
        self.form == SetupForm::DropIn
    }

    /// None where every command reads it.
    pub fn restart_command(&self) -> Option<String> {
        let service = self.engine.service()?;
        let known = self.variant.map(|variant| variant.restart_command().to_owned());
        Some(known.unwrap_or_else(|| format!("systemctl restart {service}")))
    }

    /// The command to reload without a restart; `None` if it has none.
    pub fn reload_command(&self) -> Option<&'static str> {
        let is_docker = self.engine == Engine::Docker && self.variant.is_none();
        is_docker.then_some("systemctl reload docker")
    }

    /// Returns whether the engine must restart to apply a new text. docker reloads its file, except
    /// whether CDI is enabled. `has_cdi` is whether its version enables CDI by default.
    pub fn needs_restart(&self, old: Option<&str>, new: Option<&str>, has_cdi: bool) -> bool {
        let is_on = |text| docker::is_cdi_enabled(text).unwrap_or(has_cdi);
        self.reload_command().is_none() || is_on(new) && !is_on(old)
    }

    pub fn related_files(&self, now: Option<&str>) -> Result<Vec<RelatedFiles>> {
        Ok(match (self.engine, self.form) {
            (Engine::Docker, _) | (Engine::Containerd, SetupForm::Template) => Vec::new(),
            (Engine::Containerd, SetupForm::Whole) => containerd::related_files(&self.file, now)?,
            (Engine::Containerd, SetupForm::DropIn) => {
                containerd_drop_in::related_files(&self.file)
            }
            (Engine::Crio, _) => crio::related_files(&self.file, &self.flags),
            (Engine::Podman, _) => podman::related_files(&self.file),
            (Engine::Nomad, _) => nomad::related_files(&self.file),
        })
    }

    /// Plans the configuration of the file. If this fails, the file must not be changed.
    pub fn configure(&self, files: &EngineFiles) -> Result<FileDecision> {
        self.refuse_variant(files.now.as_deref())?;
        let new_text = self.configure_text(files.now.as_deref(), &files.other_files)?;
        let decision = |file, backup| FileDecision { file, backup, warnings: new_text.warnings };
        if new_text.text == files.now {
            return Ok(decision(EngineFileAction::Keep, EngineFileAction::Keep));
        }
        let Some(text) = new_text.text else {
            return Ok(decision(
                self.remove(files, KeptPart::Nothing)?.file,
                EngineFileAction::Keep,
            ));
        };
        let backup = match &files.now {
            _ if self.is_drop_in() => EngineFileAction::Keep,
            None => EngineFileAction::Write(NO_FILE.to_owned()),
            // A text with our settings is not an original.
            Some(now) if self.has_our_runtime(now)? => self.renew_backup(files, now)?,
            Some(now) if files.before.as_ref() == Some(now) => EngineFileAction::Keep,
            Some(now) => EngineFileAction::Write(now.clone()),
        };
        Ok(decision(EngineFileAction::Write(text), backup))
    }

    /// k3s and similar engines regenerate some files at each start, and a snap is confined.
    fn refuse_variant(&self, now: Option<&str>) -> Result<()> {
        // As on Flatcar, where /usr is read-only and an update replaces it.
        if let Some(flag) = self.flags.find(&CONFIG_FLAGS)
            && self.file.starts_with("/usr")
            && !self.file.starts_with("/usr/local")
        {
            bail!(
                "it belongs to the distribution, and {} starts {} with --{}={}; copy it to {}, and \
                 use the copy in a drop-in of the unit",
                flag.source,
                self.engine.kind().program(),
                flag.name,
                flag.value,
                self.engine.file().display()
            );
        }
        if self.variant == Some(EngineVariant::DockerSnap) {
            bail!(
                "this docker is a snap, which cannot execute {RUNTIME_PATH} of the host; install docker from a package ({})",
                self.engine.kind().release_page()
            );
        }
        let template = self.variant.and_then(|variant| variant.template_name(&self.file, now));
        if let Some(instead) = template {
            bail!("the engine rewrites it at each start; use --file {instead}");
        }
        if self.form == SetupForm::Whole && now.is_some_and(is_k0s_managed) {
            bail!("k0s rewrites it at each start; use --file {K0S_DROP_IN}");
        }
        Ok(())
    }

    /// Decides about the backup of a file that already has our settings. If we are about to set the
    /// default runtime, the present default may be newer than the backup, so the backup becomes
    /// what a removal would restore now.
    fn renew_backup(&self, files: &EngineFiles, now: &str) -> Result<EngineFileAction> {
        if !self.set_default || self.is_default_runtime(now)? {
            return Ok(EngineFileAction::Keep);
        }
        let undone = match self.remove(files, KeptPart::Nothing)?.file {
            EngineFileAction::Keep => now.to_owned(),
            EngineFileAction::Write(text) => text,
            EngineFileAction::Remove => NO_FILE.to_owned(),
        };
        Ok(if files.before.as_ref() == Some(&undone) {
            EngineFileAction::Keep
        } else {
            EngineFileAction::Write(undone)
        })
    }

    /// Whether anything of what was read can be ours: a file that does not hold our name was not
    /// changed by us, whatever else is the matter with it.
    pub fn has_trace(files: &EngineFiles) -> bool {
        files.before.is_some() || files.now.as_ref().is_some_and(|text| text.contains(RUNTIME_NAME))
    }

    pub fn state_dir(&self, files: &EngineFiles) -> Result<PathBuf> {
        let now = files.now.as_deref().unwrap_or_default();
        let (configured, default) = match self.engine {
            Engine::Docker | Engine::Nomad => (docker::data_root(now)?, "/var/lib/docker"),
            Engine::Containerd => (self.containerd_state_dir(files)?, "/run/containerd"),
            Engine::Crio | Engine::Podman => (None, "/var/lib/containers/storage"),
        };
        let flag = match self.engine {
            Engine::Docker => self.flags.path(&["data-root", "graph", "g"]),
            Engine::Containerd => self.flags.path(&["state"]),
            Engine::Crio | Engine::Podman | Engine::Nomad => None,
        };
        let configured = flag
            .or(configured.map(PathBuf::from))
            .or_else(|| self.variant.map(|variant| variant.state_dir(&self.file)));
        Ok(configured.unwrap_or_else(|| PathBuf::from(default)))
    }

    /// A drop-in leaves that to the file that imports it; a template is no TOML.
    fn containerd_state_dir(&self, files: &EngineFiles) -> Result<Option<String>> {
        let text = match self.form {
            SetupForm::Whole => files.now.as_deref(),
            SetupForm::Template => None,
            SetupForm::DropIn => {
                let main = containerd_drop_in::main_file(&self.file);
                files
                    .other_files
                    .iter()
                    .find(|other| other.path == main)
                    .map(|other| other.text.as_str())
            }
        };
        containerd::state_dir(text.unwrap_or_default())
    }

    /// Containers have to be looked for then.
    pub fn registers_runtime(&self, now: Option<&str>) -> Result<bool> {
        let Some(now) = now.filter(|now| now.contains(RUNTIME_NAME)) else { return Ok(false) };
        match self.engine {
            // Docker's, which Nomad asks for them.
            Engine::Nomad => Ok(false),
            Engine::Podman => podman::registers_runtime(now),
            Engine::Docker | Engine::Containerd | Engine::Crio => self.has_our_runtime(now),
        }
    }

    /// Returns the key by which another program made our runtime the default, if one of the files
    /// does. Excludes files that we created, and those without such a key before our first change:
    /// removing our settings restores them. Ignores a file that cannot be parsed, since the engine
    /// cannot parse it either.
    pub fn default_setting(&self, files: &EngineFiles) -> Option<&'static str> {
        let key = match self.engine {
            Engine::Docker => docker::DEFAULT,
            Engine::Containerd => containerd::DEFAULT,
            Engine::Crio => crio::DEFAULT,
            Engine::Podman => podman::DEFAULT,
            Engine::Nomad => return None,
        };
        let is_default = |text: &str| self.is_default_runtime(text).unwrap_or(false);
        let now = files.now.as_deref().is_some_and(is_default);
        let is_theirs = match files.before.as_deref() {
            _ if self.is_drop_in() => false,
            None => now,
            Some(before) => now && before != NO_FILE && is_default(before),
        };
        let is_set = is_theirs || files.other_files.iter().any(|other| is_default(&other.text));
        is_set.then_some(key)
    }

    fn is_default_runtime(&self, text: &str) -> Result<bool> {
        match self.engine {
            Engine::Docker => docker::is_default_runtime(text),
            Engine::Containerd if self.form == SetupForm::Template => Ok(false),
            Engine::Containerd => containerd::is_default_runtime(text),
            Engine::Crio => crio::is_default_runtime(text),
            Engine::Podman => podman::is_default_runtime(text),
            Engine::Nomad => Ok(false),
        }
    }

    /// The default runtime that ours takes the place of: none if the files name none, so that the engine takes its own, or
    /// if it is ours already.
    pub fn replaced_default(
        &self,
        host: &Host,
        files: &EngineFiles,
    ) -> Result<Option<DefaultRuntime>> {
        let now = files.now.as_deref().unwrap_or_default();
        if self.engine == Engine::Nomad
            || self.form == SetupForm::Template
            || self.is_default_runtime(now)?
        {
            return Ok(None);
        }
        let other_texts = files.other_files.iter().map(|other| other.text.as_str());
        // containerd reads what a file imports after it, and the file first of all that imports a drop-in.
        let texts: Vec<&str> = match (self.engine, self.form) {
            (Engine::Containerd, SetupForm::Whole) => {
                [now].into_iter().chain(other_texts).collect()
            }
            _ => other_texts.chain([now]).collect(),
        };
        match self.engine {
            Engine::Docker => docker::default_runtime(now),
            Engine::Containerd => containerd::default_runtime(&texts),
            Engine::Crio => crio::default_runtime(&texts),
            Engine::Podman => podman::default_runtime(host, &texts),
            Engine::Nomad => Ok(None),
        }
    }

    /// Removes our settings: restores the original file if it was not changed since, or else removes
    /// only our entries. While containers have recorded the runtime (`keep`), its entry and the
    /// backup stay. If this fails, the file must not be changed.
    pub fn remove(&self, files: &EngineFiles, keep: KeptPart) -> Result<FileDecision> {
        let before = match files.before.as_deref() {
            None => OriginalText::Unknown,
            Some(NO_FILE) => OriginalText::Absent,
            Some(text) => OriginalText::Text(text),
        };
        let file = match files.now.as_deref() {
            None => EngineFileAction::Keep,
            Some(_) if !EngineSetup::has_trace(files) => EngineFileAction::Keep,
            Some(now) if before == OriginalText::Unknown && !self.has_our_runtime(now)? => {
                EngineFileAction::Keep
            }
            Some(now) if before == OriginalText::Text(now) => EngineFileAction::Keep,
            Some(now)
                if keep == KeptPart::Nothing
                    && self.is_unchanged_since(now, before, &files.other_files) =>
            {
                match before.text() {
                    Some(before) => EngineFileAction::Write(before.to_owned()),
                    None => EngineFileAction::Remove,
                }
            }
            Some(now) => match self.unconfigure(now, before, &files.other_files, keep)? {
                Some(text) if text == now => EngineFileAction::Keep,
                Some(text) => EngineFileAction::Write(text),
                None => EngineFileAction::Remove,
            },
        };
        let backup = match before {
            _ if keep == KeptPart::Runtime => EngineFileAction::Keep,
            OriginalText::Unknown => EngineFileAction::Keep,
            OriginalText::Absent | OriginalText::Text(_) => EngineFileAction::Remove,
        };
        let mut warnings = Vec::new();
        if self.engine == Engine::Nomad && files.now.as_deref().is_some_and(nomad::is_from_others) {
            let file = self.file.display();
            warnings.push(format!("{file} was not written by onload-ctk; remove \"{RUNTIME_NAME}\" from allow_runtimes there yourself"));
        }
        Ok(FileDecision { file, backup, warnings })
    }

    /// Whether a text is what we made of the one before, or what an earlier removal left of that
    /// while there were containers.
    fn is_unchanged_since(
        &self,
        now: &str,
        before: OriginalText<'_>,
        other_files: &[RelatedFile],
    ) -> bool {
        for (set_default, nri) in [(false, false), (true, false), (false, true), (true, true)] {
            let setup = EngineSetup { set_default, nri, ..self.clone() };
            let new_text = setup.configure_text(before.text(), other_files);
            let Some(configured) = new_text.ok().and_then(|new_text| new_text.text) else {
                continue;
            };
            let unconfigured =
                setup.unconfigure(&configured, before, other_files, KeptPart::Runtime);
            if configured == now || unconfigured.is_ok_and(|text| text.as_deref() == Some(now)) {
                return true;
            }
        }
        false
    }

    fn configure_text(&self, old: Option<&str>, other_files: &[RelatedFile]) -> Result<NewText> {
        let new_text = self.configure_engine_text(old, other_files)?;
        if !self.nri {
            return Ok(new_text);
        }
        let text = new_text.text.unwrap_or_default();
        Ok(NewText {
            text: Some(nri::enable(&text, other_files, self.nri_switches()?, !self.is_drop_in())?),
            ..new_text
        })
    }

    fn nri_switches(&self) -> Result<&'static [nri::NriSwitch]> {
        // Only containerd 2.2 and later have a file read at that place by themselves.
        let is_newest = self.file.as_path() == containerd_drop_in::FILE;
        match (self.engine, self.form) {
            (Engine::Crio, _) => Ok(nri::CRIO_SWITCHES),
            (Engine::Containerd, SetupForm::DropIn) if is_newest => {
                Ok(nri::NEWEST_CONTAINERD_SWITCHES)
            }
            (Engine::Containerd, SetupForm::Whole | SetupForm::DropIn) => {
                Ok(nri::CONTAINERD_SWITCHES)
            }
            _ => bail!(
                "it has no setting of NRI; omit --nri (k3s and RKE2 have NRI on, and dockerd's \
                 daemon.json is yours to edit)"
            ),
        }
    }

    fn configure_engine_text(
        &self,
        old: Option<&str>,
        other_files: &[RelatedFile],
    ) -> Result<NewText> {
        let (file, default) = (&self.file, self.set_default);
        match (self.engine, self.form) {
            (Engine::Docker, _) => docker::configure(old, default, &self.flags),
            (Engine::Containerd, SetupForm::Template) => template::configure(file, old, default),
            (Engine::Containerd, SetupForm::DropIn) => {
                containerd_drop_in::configure(file, old, other_files, default)
            }
            (Engine::Containerd, SetupForm::Whole) => {
                containerd::configure(file, old, other_files, default)
            }
            (Engine::Crio, _) => crio::configure(file, old, other_files, default),
            (Engine::Podman, _) => podman::configure(file, old, other_files, default),
            (Engine::Nomad, _) => nomad::configure(old, other_files, default),
        }
    }

    /// Whether a text registers our runtime: everything else may be there without us.
    fn has_our_runtime(&self, text: &str) -> Result<bool> {
        match self.engine {
            Engine::Docker => docker::has_our_runtime(text),
            Engine::Containerd if self.form == SetupForm::Template => {
                template::has_our_runtime(text)
            }
            Engine::Containerd => containerd::has_our_runtime(text),
            Engine::Crio => crio::has_our_runtime(text),
            Engine::Podman => podman::has_our_settings(text),
            Engine::Nomad => Ok(nomad::has_our_runtime(text)),
        }
    }

    /// None where nothing else is left that was not there before.
    fn unconfigure(
        &self,
        now: &str,
        before: OriginalText<'_>,
        other_files: &[RelatedFile],
        keep: KeptPart,
    ) -> Result<Option<String>> {
        match (self.engine, self.form) {
            (Engine::Docker, _) => docker::unconfigure(now, before, keep),
            // Nothing but the runtime is in it.
            (Engine::Containerd, SetupForm::Template) if keep == KeptPart::Runtime => {
                Ok(Some(now.to_owned()))
            }
            (Engine::Containerd, SetupForm::Template) => template::unconfigure(now, before),
            (Engine::Containerd, SetupForm::DropIn) => containerd_drop_in::unconfigure(now, keep),
            (Engine::Containerd, SetupForm::Whole) => containerd::unconfigure(now, before, keep),
            (Engine::Crio, _) => crio::unconfigure(now, keep),
            (Engine::Podman, _) => podman::unconfigure(&self.file, now, other_files, keep),
            (Engine::Nomad, _) => nomad::unconfigure(now),
        }
    }
}
