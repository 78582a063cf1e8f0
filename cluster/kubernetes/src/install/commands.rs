//! The two commands: what is on the host is read, a plan decided, and carried out under a lock.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use onload_core::config::{CONFIG_PATH, Config};
use onload_core::fs::lock::Lock;
use onload_core::fs::regular;
use onload_core::fs::trust::Owners;
use onload_core::run_dir::{LEASES, LOCKS, RUN_DIR};
use onload_host::host::Host;
use onload_host::specdir::Action;

use super::apply::{Source, Target, remove_directory, try_hook};
use super::error::InstallError;
use super::place::{Directory, HOOK_LIMIT, Tree};
use super::plan::{self, Found, Kept, Plan, Wanted};
use super::record::sha256;
use super::users;
use crate::spec_writer::{self, HOOK_NAME, SpecWriter, VERSION};

/// Bytes of a configuration.
const CONFIG_LIMIT: u64 = 4 * 1024 * 1024;
/// The lock in the directory of leases.
const LEASES_LOCK: &str = ".lock";
/// Which users of the host the users of this process's namespace are.
const UID_MAP: &str = "/proc/self/uid_map";

/// Where hooks are installed.
#[derive(Clone, Debug)]
pub struct Place<'p> {
    /// The host.
    pub host: &'p Host,
    pub directory: &'p Path,
    /// Who has to own what is used there: root, but in tests.
    pub owners: Owners,
}

#[derive(Clone, Copy, Debug)]
pub struct What<'w> {
    pub hook: &'w Path,
    /// The configuration for a host that has none.
    pub config: Option<&'w Path>,
    /// Whether another file with the hook's name is replaced.
    pub force: bool,
}

/// What was done and what was not, in lines for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was done.
    pub done: Vec<String>,
    /// What is not ours and stays.
    pub kept: Vec<String>,
    /// What is ours and stays, since something names it.
    pub in_use: Vec<String>,
}

/// Installs this version's hook, and a configuration where the host has none; removes older hooks that nothing
/// names.
///
/// # Errors
/// [`InstallError`]; nothing of the host is changed then, but for what a full disk or the like came between.
pub fn install(place: &Place<'_>, what: What<'_>) -> Result<Report, InstallError> {
    let tree = Tree::of(place.host, place.owners.clone())?;
    let given = Given::read(what)?;
    let mounted = tree.mounted(&place.directory.join(VERSION))?;
    if mounted.noexec {
        return Err(InstallError::NoExec(tree.outside(place.directory)));
    }
    let (found, plan) = decide(place, &tree, &given)?;
    let is_baked_in = mounted.read_only && plan.steps.is_empty();
    if is_baked_in || plan.is_idle(&found.content.record) {
        return Ok(report(place, &plan, Vec::new()));
    }
    if mounted.read_only {
        return Err(InstallError::ReadOnly(tree.outside(place.directory)));
    }
    let directory = tree.make(place.directory)?;
    let _lock = directory.lock()?;
    // Another installer may have been at work.
    let (_, plan) = decide(place, &tree, &given)?;
    let target = Target {
        tree: &tree,
        path: place.directory,
        directory: &directory,
    };
    let done = target.carry_out(&plan, given.source())?;
    Ok(report(place, &plan, done))
}

/// What there is to install, read and checked.
struct Given {
    hook: Vec<u8>,
    hook_sha256: String,
    config: Option<GivenConfig>,
    force: bool,
}

struct GivenConfig {
    text: String,
    sha256: String,
    sets_something: bool,
}

impl Given {
    fn read(what: What<'_>) -> Result<Self, InstallError> {
        let hook = read_hook(what.hook)?;
        Ok(Given {
            hook_sha256: sha256(&hook),
            hook,
            config: what.config.map(GivenConfig::read).transpose()?,
            force: what.force,
        })
    }

    fn wanted(&self) -> Wanted<'_> {
        let config = self.config.as_ref();
        Wanted {
            version: VERSION,
            hook: &self.hook_sha256,
            config: config.map(|config| config.sha256.as_str()),
            sets_something: config.is_some_and(|config| config.sets_something),
            force: self.force,
        }
    }

    fn source(&self) -> Source<'_> {
        Source {
            hook: &self.hook,
            config: self.config.as_ref().map_or("", |config| &config.text),
        }
    }
}

fn decide(place: &Place<'_>, tree: &Tree, given: &Given) -> Result<(Found, Plan), InstallError> {
    let found = look(place, tree)?;
    let hook = place.directory.join(VERSION).join(HOOK_NAME);
    let other = |plan::OtherHook| InstallError::OtherHook(tree.outside(&hook));
    let plan = plan::install(&found, &given.wanted()).map_err(other)?;
    Ok((found, plan))
}

/// Removes all that was installed, and the specifications of the daemon; what something still names stays.
///
/// # Errors
/// [`InstallError`].
pub fn uninstall(place: &Place<'_>) -> Result<Report, InstallError> {
    let tree = Tree::of(place.host, place.owners.clone())?;
    // What cannot be read is an error before anything is changed.
    tree.content(place.directory)?;
    let Some(claim) = spec_writer::claim(place.host)? else {
        return Err(InstallError::DaemonRuns);
    };
    let writer = spec_writer::spec_writer(place.host).map_err(InstallError::Host)?;
    let mut all = Report::default();
    if writer == SpecWriter::Daemon {
        remove_specs(place.host, &mut all)?;
    }
    if tree.content(place.directory)?.record.is_empty() {
        let line = format!("nothing is installed at {}", place.directory.display());
        all.kept.push(line);
    } else if let Some(directory) = tree.open(place.directory)? {
        let mine = remove_installed(place, &tree, &directory)?;
        all.done.extend(mine.done);
        all.kept.extend(mine.kept);
        all.in_use.extend(mine.in_use);
    }
    if all.in_use.is_empty() && writer == SpecWriter::Daemon {
        remove_run_dir(place.host, &tree)?;
    }
    drop(claim);
    Ok(all)
}

/// Removes hooks and the configuration, and the directory itself when it is empty.
fn remove_installed(
    place: &Place<'_>,
    tree: &Tree,
    directory: &Directory,
) -> Result<Report, InstallError> {
    let lock = directory.lock()?;
    let plan = plan::uninstall(&look(place, tree)?);
    let target = Target {
        tree,
        path: place.directory,
        directory,
    };
    let nothing = Source {
        hook: &[],
        config: "",
    };
    let done = target.carry_out(&plan, nothing)?;
    if plan.after.is_empty() {
        directory.remove_own()?;
        drop(lock);
        remove_directory(tree, place.directory)?;
    }
    Ok(report(place, &plan, done))
}

/// Refuses to go on as root of a user namespace alone: its files would belong to another user of the host.
///
/// # Errors
/// [`InstallError::UserNamespace`].
pub fn refuse_user_namespace() -> Result<(), InstallError> {
    let map =
        fs::read_to_string(UID_MAP).map_err(InstallError::path("reading", Path::new(UID_MAP)))?;
    match is_initial(&map) {
        true => Ok(()),
        false => Err(InstallError::UserNamespace),
    }
}

/// Whether every user has the same number as on the host (user_namespaces(7)).
fn is_initial(uid_map: &str) -> bool {
    let words: Vec<&str> = uid_map.split_whitespace().collect();
    words == ["0", "0", "4294967295"]
}

/// The content of the hook to install, after it has said that it is this version's.
fn read_hook(path: &Path) -> Result<Vec<u8>, InstallError> {
    let content = regular::read(path, HOOK_LIMIT).map_err(InstallError::path("reading", path))?;
    let file = fs::File::open(path).map_err(InstallError::path("opening", path))?;
    try_hook(&file, path)?;
    Ok(content)
}

impl GivenConfig {
    fn read(path: &Path) -> Result<Self, InstallError> {
        let failed = || InstallError::path("reading", path);
        let bytes = regular::read(path, CONFIG_LIMIT).map_err(failed())?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let kind = std::io::ErrorKind::InvalidData;
            failed()(std::io::Error::new(kind, error.utf8_error()))
        })?;
        let config = Config::parse(&text).map_err(|source| InstallError::Config {
            path: path.to_owned(),
            source,
        })?;
        Ok(GivenConfig {
            sha256: sha256(text.as_bytes()),
            sets_something: config != Config::default(),
            text,
        })
    }
}

fn look(place: &Place<'_>, tree: &Tree) -> Result<Found, InstallError> {
    let content = tree.content(place.directory)?;
    let versions: Vec<&str> = content.record.hooks.keys().map(String::as_str).collect();
    let users = users::find(place.host, place.directory, &versions);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(Found {
        config: host_config(place.host)?,
        users,
        now: now.map_or(0, |now| now.as_secs()),
        content,
    })
}

/// The sha256 of the host's configuration. A link in its place is the operator's, wherever it leads.
fn host_config(host: &Host) -> Result<Option<String>, InstallError> {
    let path = Path::new(CONFIG_PATH);
    if let Some(target) = host.link(path)? {
        return Ok(Some(format!("link to {}", target.display())));
    }
    let bytes = host.bytes(path, CONFIG_LIMIT)?;
    Ok(bytes.map(|bytes| sha256(&bytes)))
}

fn report(place: &Place<'_>, plan: &Plan, done: Vec<String>) -> Report {
    let mut report = Report {
        done,
        ..Report::default()
    };
    let hook = |version: &str| place.directory.join(version).join(HOOK_NAME);
    for kept in &plan.kept {
        match kept {
            Kept::Hook(version, why) => {
                let line = format!("left {}: {why}", hook(version).display());
                report.in_use.push(line);
            }
            Kept::ChangedHook(version) => report.kept.push(somebody_elses(&hook(version))),
            Kept::Config => {
                let line = format!("left {CONFIG_PATH}: it is the host's own, and rules");
                report.kept.push(line);
            }
        }
    }
    report
}

fn somebody_elses(path: &Path) -> String {
    format!("left {}: somebody else wrote or changed it", path.display())
}

fn remove_specs(host: &Host, report: &mut Report) -> Result<(), InstallError> {
    let Some(plan) = spec_writer::remove(host)? else {
        return Ok(());
    };
    let dir = Path::new(spec_writer::SPEC_DIR);
    for step in &plan.steps {
        let path = dir.join(&step.name);
        match step.action {
            Action::Remove => report.done.push(format!("removed {}", path.display())),
            Action::Leave => report.kept.push(somebody_elses(&path)),
            Action::Write(_) | Action::Keep | Action::Undecided => {}
        }
    }
    Ok(())
}

/// Removes locks and empty directories in /run, where no container has anything there. A lock that somebody holds
/// stays: a container may be starting.
fn remove_run_dir(host: &Host, tree: &Tree) -> Result<(), InstallError> {
    let run = Path::new(RUN_DIR);
    let is_container = |name: &String| name != LEASES && name != LOCKS;
    if host.list(run)?.names.iter().any(is_container) {
        return Ok(());
    }
    let leases = run.join(LEASES);
    if let Some(directory) = tree.open(&leases)? {
        let Some(_lock) = Lock::if_free(&directory, &directory.path, LEASES_LOCK)? else {
            return Ok(());
        };
        // Nobody can add one now.
        if host.list(&leases)?.names != [LEASES_LOCK] {
            return Ok(());
        }
        directory.remove(LEASES_LOCK)?;
        remove_directory(tree, &leases)?;
    }
    let locks = run.join(LOCKS);
    if let Some(directory) = tree.open(&locks)? {
        for name in host.list(&locks)?.names {
            // This process holds that one itself.
            let own = name == spec_writer::WRITER_LOCK;
            if own || Lock::if_free(&directory, &directory.path, &name)?.is_some() {
                directory.remove(&name)?;
            }
        }
        remove_directory(tree, &locks)?;
    }
    remove_directory(tree, run)
}

#[cfg(test)]
mod tests {
    use super::is_initial;

    #[test]
    fn root_of_a_user_namespace_is_told_from_root_of_the_host() {
        assert!(is_initial("         0          0 4294967295\n"));
        for other in [
            "         0       1000          1\n",
            "         0     231072      65536\n",
            "         0          0      65536\n",
            "         0          0 4294967295\n         1 1 1\n",
            "",
        ] {
            assert!(!is_initial(other), "{other:?}");
        }
    }
}
