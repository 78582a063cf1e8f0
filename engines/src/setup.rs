//! How container engines are configured: the old text of a file gives the new one. Nothing here reads or writes a
//! file. CDI is on, and `onload-container-runtime` is the OCI runtime `onload`. What
//! stands in a file beside that stays as it is, byte for byte.

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::engine::Engine;
use crate::file::{Action, Before, Beside, Decision, Files, Keep, Other, Wanted};
use crate::ours::RUNTIME_NAME;
use crate::place::Place;
use crate::{containerd, containerd_drop_in, crio, docker, nomad, nri, podman, template};

/// The backup of a file that was not there. With no backup at all, a file is somebody else's, and what
/// another engine's user may have set, such as CDI itself, is not ours to take away.
pub(crate) const NO_FILE: &str = "onload-ctk: there was no such file\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The only one of its kind: it is edited in place, and what it was is kept as a backup.
    Whole,
    /// Ours alone, one of several that the engine reads. It has no backup: an engine might read that
    /// too.
    DropIn,
    /// What k3s makes such a file of; edited in place, too.
    Template,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub engine: Engine,
    pub file: PathBuf,
    form: Form,
    set_default: bool,
    nri: bool,
}

impl Setup {
    pub fn usual(engine: Engine) -> Setup {
        Setup::named(engine, engine.file().to_owned())
    }

    /// Its name says what it is.
    pub fn named(engine: Engine, file: PathBuf) -> Setup {
        let form = match engine {
            Engine::Docker => Form::Whole,
            Engine::Containerd if template::is_template(&file) => Form::Template,
            Engine::Containerd if containerd_drop_in::is_drop_in(&file) => Form::DropIn,
            Engine::Containerd => Form::Whole,
            Engine::Crio | Engine::Podman | Engine::Nomad => Form::DropIn,
        };
        Setup { engine, file, form, set_default: false, nri: false }
    }

    pub fn with_default(self, set_default: bool) -> Setup {
        Setup { set_default, ..self }
    }

    pub fn with_nri(self, nri: bool) -> Setup {
        Setup { nri, ..self }
    }

    /// The drop-in of an engine that is set up by its main file as a rule; none where there is no such.
    pub fn usual_drop_in(engine: Engine) -> Option<Setup> {
        let file = Path::new(containerd_drop_in::FILE);
        (engine == Engine::Containerd).then(|| Setup::named(engine, file.to_owned()))
    }

    /// Whether the main file's text has the drop-in read, so that this is the place for ours.
    pub fn is_read_by(&self, main: &str) -> bool {
        self.form == Form::DropIn && containerd_drop_in::is_wanted(main)
    }

    pub fn is_drop_in(&self) -> bool {
        self.form == Form::DropIn
    }

    /// None where every command reads it.
    pub fn restart(&self) -> Option<String> {
        let service = self.engine.service()?;
        let known = Place::of(&self.file).map(|place| place.restart().to_owned());
        Some(known.unwrap_or_else(|| format!("systemctl restart {service}")))
    }

    /// Without a restart; none where it does not.
    pub fn reload(&self) -> Option<&'static str> {
        let is_docker = self.engine == Engine::Docker && Place::of(&self.file).is_none();
        is_docker.then_some("systemctl reload docker")
    }

    /// Whether the engine has to start again to do what a new text says. docker reads its file again, all
    /// but whether CDI is on; `has_cdi` says whether its version has that on unless told otherwise.
    pub fn needs_restart(&self, old: Option<&str>, new: Option<&str>, has_cdi: bool) -> bool {
        let is_on = |text| docker::cdi(text).unwrap_or(has_cdi);
        self.reload().is_none() || is_on(new) && !is_on(old)
    }

    pub fn beside(&self, now: Option<&str>) -> anyhow::Result<Vec<Beside>> {
        Ok(match (self.engine, self.form) {
            (Engine::Docker, _) | (Engine::Containerd, Form::Template) => Vec::new(),
            (Engine::Containerd, Form::Whole) => containerd::beside(&self.file, now)?,
            (Engine::Containerd, Form::DropIn) => containerd_drop_in::beside(&self.file),
            (Engine::Crio, _) => crio::beside(&self.file),
            (Engine::Podman, _) => podman::beside(&self.file),
            (Engine::Nomad, _) => nomad::beside(&self.file),
        })
    }

    /// On an error the file has to stay as it is.
    pub fn configure(&self, files: &Files) -> anyhow::Result<Decision> {
        self.refuse_generated()?;
        let wanted = self.wanted(files.now.as_deref(), &files.others)?;
        let decision = |file, backup| Decision { file, backup, warnings: wanted.warnings };
        if wanted.text == files.now {
            return Ok(decision(Action::Keep, Action::Keep));
        }
        let Some(text) = wanted.text else {
            return Ok(decision(self.remove(files, Keep::Nothing)?.file, Action::Keep));
        };
        let backup = match &files.now {
            _ if self.is_drop_in() => Action::Keep,
            None => Action::Write(NO_FILE.to_owned()),
            // What holds something of ours is not what was there before us.
            Some(now) if self.is_ours(now)? => self.backup_anew(files, now)?,
            Some(now) if files.before.as_ref() == Some(now) => Action::Keep,
            Some(now) => Action::Write(now.clone()),
        };
        Ok(decision(Action::Write(text), backup))
    }

    /// k3s and its like write some files anew at each start.
    fn refuse_generated(&self) -> anyhow::Result<()> {
        let instead = Place::of(&self.file).and_then(|place| place.written_from(&self.file));
        if let Some(instead) = instead {
            bail!("the engine rewrites it at each start; name {instead} beside it with --file");
        }
        Ok(())
    }

    /// The backup of a file that is ours already. Where it gets a default runtime now, the one that it
    /// has may be of a later day than the backup: what a removal would give now is kept.
    fn backup_anew(&self, files: &Files, now: &str) -> anyhow::Result<Action> {
        if !self.set_default || self.is_default(now)? {
            return Ok(Action::Keep);
        }
        let undone = match self.remove(files, Keep::Nothing)?.file {
            Action::Keep => now.to_owned(),
            Action::Write(text) => text,
            Action::Remove => NO_FILE.to_owned(),
        };
        Ok(if files.before.as_ref() == Some(&undone) {
            Action::Keep
        } else {
            Action::Write(undone)
        })
    }

    /// Whether anything of what was read can be ours: a file that does not hold our name was not
    /// changed by us, whatever else is the matter with it.
    pub fn has_trace(files: &Files) -> bool {
        let named = |text: &String| text.contains(RUNTIME_NAME);
        files.before.is_some() || files.now.as_ref().is_some_and(named)
    }

    pub fn state_dir(&self, files: &Files) -> anyhow::Result<PathBuf> {
        let now = files.now.as_deref().unwrap_or_default();
        let (named, default) = match self.engine {
            Engine::Docker | Engine::Nomad => (docker::data_root(now)?, "/var/lib/docker"),
            Engine::Containerd => (self.containerd_state(files)?, "/run/containerd"),
            Engine::Crio | Engine::Podman => (None, "/var/lib/containers/storage"),
        };
        let known = || Place::of(&self.file).map(|place| place.state_dir(&self.file));
        let named = named.map(PathBuf::from).or_else(known);
        Ok(named.unwrap_or_else(|| PathBuf::from(default)))
    }

    /// A drop-in leaves that to the file that imports it; a template is no TOML.
    fn containerd_state(&self, files: &Files) -> anyhow::Result<Option<String>> {
        let text = match self.form {
            Form::Whole => files.now.as_deref(),
            Form::Template => None,
            Form::DropIn => {
                let main = containerd_drop_in::main_file(&self.file);
                let main = files.others.iter().find(|other| other.path == main);
                main.map(|other| other.text.as_str())
            }
        };
        containerd::state_dir(text.unwrap_or_default())
    }

    /// Containers have to be looked for then.
    pub fn registers(&self, now: Option<&str>) -> anyhow::Result<bool> {
        let Some(now) = now.filter(|now| now.contains(RUNTIME_NAME)) else {
            return Ok(false);
        };
        match self.engine {
            // Docker's, which Nomad asks for them.
            Engine::Nomad => Ok(false),
            Engine::Podman => podman::registers(now),
            Engine::Docker | Engine::Containerd | Engine::Crio => self.is_ours(now),
        }
    }

    /// The setting by which somebody else made our runtime the engine's default, if one of the files
    /// does: a file of ours and one that had no such setting before us are made as they were. One that is
    /// not understood says nothing: the engine does not understand it either.
    pub fn default_setting(&self, files: &Files) -> Option<&'static str> {
        let key = match self.engine {
            Engine::Docker => docker::DEFAULT,
            Engine::Containerd => containerd::DEFAULT,
            Engine::Crio => crio::DEFAULT,
            Engine::Podman => podman::DEFAULT,
            Engine::Nomad => return None,
        };
        let is_default = |text: &str| self.is_default(text).unwrap_or(false);
        let now = files.now.as_deref().is_some_and(is_default);
        let is_theirs = match files.before.as_deref() {
            _ if self.is_drop_in() => false,
            None => now,
            Some(before) => now && before != NO_FILE && is_default(before),
        };
        let others = files.others.iter();
        let named = is_theirs || others.map(|other| &other.text).any(|text| is_default(text));
        named.then_some(key)
    }

    fn is_default(&self, text: &str) -> anyhow::Result<bool> {
        match self.engine {
            Engine::Docker => docker::is_default(text),
            Engine::Containerd if self.form == Form::Template => Ok(false),
            Engine::Containerd => containerd::is_default(text),
            Engine::Crio => crio::is_default(text),
            Engine::Podman => podman::is_default(text),
            Engine::Nomad => Ok(false),
        }
    }

    /// What to do so that the engine no longer knows us: the file as it was before us where nobody
    /// changed it since, else the file without what is ours. Where containers have recorded the
    /// runtime (`keep`), its entry and the backup stay until they are gone.
    /// On an error the file has to stay as it is.
    pub fn remove(&self, files: &Files, keep: Keep) -> anyhow::Result<Decision> {
        let before = match files.before.as_deref() {
            None => Before::Unknown,
            Some(NO_FILE) => Before::Absent,
            Some(text) => Before::Text(text),
        };
        let file = match files.now.as_deref() {
            None => Action::Keep,
            Some(_) if !Setup::has_trace(files) => Action::Keep,
            Some(now) if before == Before::Unknown && !self.is_ours(now)? => Action::Keep,
            Some(now) if before == Before::Text(now) => Action::Keep,
            Some(now) if keep == Keep::Nothing && self.is_as_left(now, before, &files.others) => {
                match before.text() {
                    Some(before) => Action::Write(before.to_owned()),
                    None => Action::Remove,
                }
            }
            Some(now) => match self.without_ours(now, before, &files.others, keep)? {
                Some(text) if text == now => Action::Keep,
                Some(text) => Action::Write(text),
                None => Action::Remove,
            },
        };
        let backup = match before {
            _ if keep == Keep::Runtime => Action::Keep,
            Before::Unknown => Action::Keep,
            Before::Absent | Before::Text(_) => Action::Remove,
        };
        let is_theirs = |now: &String| self.engine == Engine::Nomad && nomad::is_theirs(now);
        let warnings = files.now.iter().filter(|now| is_theirs(now)).map(|_| {
            let file = self.file.display();
            format!("{file} was not written by onload-ctk; remove \"{RUNTIME_NAME}\" from allow_runtimes there yourself")
        });
        Ok(Decision { file, backup, warnings: warnings.collect() })
    }

    /// Whether a text is what we made of the one before, or what an earlier removal left of that
    /// while there were containers.
    fn is_as_left(&self, now: &str, before: Before<'_>, others: &[Other]) -> bool {
        let combinations = [(false, false), (true, false), (false, true), (true, true)];
        combinations.into_iter().any(|(set_default, nri)| {
            let setup = self.clone().with_default(set_default).with_nri(nri);
            let wanted = setup.wanted(before.text(), others);
            let Some(wanted) = wanted.ok().and_then(|wanted| wanted.text) else {
                return false;
            };
            let kept = || setup.without_ours(&wanted, before, others, Keep::Runtime);
            wanted == now || kept().is_ok_and(|kept| kept.as_deref() == Some(now))
        })
    }

    fn wanted(&self, old: Option<&str>, others: &[Other]) -> anyhow::Result<Wanted> {
        let wanted = self.wanted_of_engine(old, others)?;
        if !self.nri {
            return Ok(wanted);
        }
        let text = wanted.text.unwrap_or_default();
        Ok(Wanted {
            text: Some(nri::turned_on(&text, others, self.nri_switches()?, !self.is_drop_in())?),
            ..wanted
        })
    }

    fn nri_switches(&self) -> anyhow::Result<&'static [nri::Switch]> {
        // Only containerd 2.2 and later have a file read at that place by themselves.
        let is_newest = self.file.as_path() == containerd_drop_in::FILE;
        match (self.engine, self.form) {
            (Engine::Crio, _) => Ok(nri::OF_CRIO),
            (Engine::Containerd, Form::DropIn) if is_newest => Ok(nri::OF_NEWEST_CONTAINERD),
            (Engine::Containerd, Form::Whole | Form::DropIn) => Ok(nri::OF_CONTAINERD),
            _ => bail!(
                "it has no setting of NRI; leave --nri out (k3s and RKE2 have NRI on, and dockerd's daemon.json is yours to edit)"
            ),
        }
    }

    fn wanted_of_engine(&self, old: Option<&str>, others: &[Other]) -> anyhow::Result<Wanted> {
        let (file, default) = (&self.file, self.set_default);
        match (self.engine, self.form) {
            (Engine::Docker, _) => docker::wanted(old, default),
            (Engine::Containerd, Form::Template) => template::wanted(file, old, default),
            (Engine::Containerd, Form::DropIn) => {
                containerd_drop_in::wanted(file, old, others, default)
            }
            (Engine::Containerd, Form::Whole) => containerd::wanted(file, old, others, default),
            (Engine::Crio, _) => crio::wanted(file, old, others, default),
            (Engine::Podman, _) => podman::wanted(file, old, others, default),
            (Engine::Nomad, _) => nomad::wanted(old, others, default),
        }
    }

    /// Whether a text registers our runtime: everything else may be there without us.
    fn is_ours(&self, text: &str) -> anyhow::Result<bool> {
        match self.engine {
            Engine::Docker => docker::is_ours(text),
            Engine::Containerd if self.form == Form::Template => template::is_ours(text),
            Engine::Containerd => containerd::is_ours(text),
            Engine::Crio => crio::is_ours(text),
            Engine::Podman => podman::is_ours(text),
            Engine::Nomad => Ok(nomad::is_ours(text)),
        }
    }

    /// None where nothing else is left that was not there before.
    fn without_ours(
        &self,
        now: &str,
        before: Before<'_>,
        others: &[Other],
        keep: Keep,
    ) -> anyhow::Result<Option<String>> {
        match (self.engine, self.form) {
            (Engine::Docker, _) => docker::without_ours(now, before, keep),
            // Nothing but the runtime is in it.
            (Engine::Containerd, Form::Template) if keep == Keep::Runtime => {
                Ok(Some(now.to_owned()))
            }
            (Engine::Containerd, Form::Template) => template::without_ours(now, before),
            (Engine::Containerd, Form::DropIn) => containerd_drop_in::without_ours(now, keep),
            (Engine::Containerd, Form::Whole) => containerd::without_ours(now, before, keep),
            (Engine::Crio, _) => crio::without_ours(now, keep),
            (Engine::Podman, _) => podman::without_ours(&self.file, now, others, keep),
            (Engine::Nomad, _) => nomad::without_ours(now),
        }
    }
}
