//! Writes this node's CDI specifications, unless the package's onload-cdi.service writes them, which runs every minute.
//! Two writers of different versions would undo each other's changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use onload_cdi::to_json;
use onload_core::class::Class;
use onload_core::config::{CdiConfig, Config};
use onload_host::devices::inventory::Inventory;
use onload_host::generate::{GeneratedSpecs, InstalledFiles, generate};
use onload_host::host::Host;
use onload_host::pools::PoolSet;
use onload_host::spec_name::SpecName;
use onload_host::specdir::{
    DesiredSpecs, LOCK_NAME, MANIFEST_NAME, Manifest, SpecDir, SpecFormat, SpecPlan, WRITER_LOCK,
    is_package_writer, plan,
};
use onload_lease::run_dir::{LOCKS, RUN_DIR, RUN_DIR_MODE, open_private, set_mode};
use onload_sys::fs::atomic;
use onload_sys::fs::lock::Lock;
use onload_sys::fs::trust::{TrustedOwners, TrustedTree};

use crate::resources::SpecAuthor;

/// The directory for specifications.
pub const SPEC_DIR: &str = "/var/run/cdi";
/// The default directory of the hook.
pub const HOOK_DIR: &str = "/opt/onload-ctk";
/// The name of the hook, in the image and on the host.
pub const HOOK_NAME: &str = "onload-hook";
/// The version of this program and of its hook.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The lock of the daemon that offers devices to kubelet, held while it runs. It is not in kubelet's directory, which
/// pods of other device plugins can open and thus lock.
pub const OFFER_LOCK: &str = "device-plugin";

/// Takes [`WRITER_LOCK`] or [`OFFER_LOCK`] until the result is dropped. Returns `None` if another process holds it:
/// during an update two instances may run, and the second one only reads until the first has ended.
pub fn try_lock(host: &Host, name: &str) -> Result<Option<Lock>> {
    let run = host.create_directory(Path::new(RUN_DIR))?;
    let path = host.outside_path(Path::new(RUN_DIR));
    let locks = path.join(LOCKS);
    let opening = || format!("opening the directory of locks {}", locks.display());
    // The hook uses this directory too. Runtimes in user namespaces must be able to enter it, but not to list it.
    set_mode(&run, RUN_DIR_MODE).with_context(opening)?;
    let directory = open_private(&run, LOCKS).with_context(opening)?;
    Ok(Lock::try_acquire(directory, &locks, name)?)
}

/// Returns the path of the hook for specifications. If the operator sets `hook-path`, this is the only candidate.
/// Otherwise it is this version's hook in `directory`, or if that does not exist, the hook of the package, which may be
/// installed without enabling its units. Fails if users other than `owners` can change the hook, since OCI runtimes
/// execute it as root.
pub fn hook_path(
    host: &Host,
    config: &Config,
    directory: &Path,
    owners: &TrustedOwners,
) -> Result<PathBuf> {
    let packaged = CdiConfig::default().hook_path;
    let paths = if config.cdi.hook_path == packaged {
        vec![directory.join(VERSION).join(HOOK_NAME), packaged]
    } else {
        vec![config.cdi.hook_path.clone()]
    };
    let unused = |path: &Path| {
        let path = path.display();
        format!("writing CDI specifications: the hook {path} is not used")
    };
    let root = host.outside_path(Path::new("/"));
    let trusted = TrustedTree::for_tree(&root, owners.clone()).with_context(|| unused(&root))?;
    for path in &paths {
        match trusted.open(path) {
            Ok(file) if file.is_executable() => return Ok(path.clone()),
            Ok(_) => bail!(
                "writing CDI specifications: the hook {} is not executable; run \"chmod 755\" on it",
                path.display()
            ),
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error).with_context(|| unused(path)),
        }
    }
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    bail!(
        "writing CDI specifications: hook {} not found; run \"onload-kubernetes install\", or set \
         [cdi] hook-path",
        paths.join(" or ")
    )
}

/// The result of an update.
#[derive(Debug)]
pub struct WriteResult {
    pub author: SpecAuthor,
    /// Whether a specification has changed.
    pub has_changed: bool,
    /// Says which program writes the specifications, for the log.
    pub message: String,
}

impl WriteResult {
    fn by_another(author: SpecAuthor, message: &str) -> WriteResult {
        WriteResult { author, has_changed: false, message: message.to_owned() }
    }
}

/// Keeps the specifications of a node up to date, unless another program does.
#[derive(Debug)]
pub struct SpecWriter {
    hook_dir: PathBuf,
    /// The required owners of the hook: root, except in tests.
    owners: TrustedOwners,
    lock: Option<Lock>,
}

impl SpecWriter {
    /// Creates a writer. Its specifications name the hook in `hook_dir`, a directory of the host.
    pub fn new(hook_dir: PathBuf) -> Self {
        SpecWriter { hook_dir, owners: TrustedOwners::root(), lock: None }
    }

    /// Updates the specifications for an inventory. Writes only files that change.
    pub fn update(
        &mut self,
        host: &Host,
        config: &Config,
        inventory: &Inventory,
        pools: &PoolSet,
    ) -> Result<WriteResult> {
        // If the lock's file was removed, another daemon may have taken the lock.
        if !self.lock.as_ref().is_some_and(Lock::is_linked) {
            self.lock = None;
            self.lock = try_lock(host, WRITER_LOCK)?;
        }
        if self.lock.is_none() {
            let message = "another daemon of this node writes the specifications until it ends";
            return Ok(WriteResult::by_another(SpecAuthor::Daemon, message));
        }
        if is_package_writer(host)? {
            let message = "the package writes the specifications, by onload-cdi.service";
            return Ok(WriteResult::by_another(SpecAuthor::Operator, message));
        }
        if config.discover.missing_nic_is_error && inventory.nics.is_empty() {
            bail!(
                "writing CDI specifications: no accelerated interface, and [discover] \
                 missing-nic-is-error is set"
            );
        }
        let hook = hook_path(host, config, &self.hook_dir, &self.owners)?;
        let mut config = config.clone();
        config.cdi.hook_path.clone_from(&hook);
        let installed = InstalledFiles::read(host, &config)?;
        let specs = generate(inventory, &pools.offered, &config, installed)?;
        let kinds = &config.cdi.kinds;
        let plan = write(host, &specs, kinds, inventory.undecided_classes())?;
        let hook = hook.display();
        let mut message = format!("this daemon writes the specifications, with the hook {hook}");
        let foreign: Vec<&str> = plan.left_files().collect();
        if !foreign.is_empty() {
            let names = foreign.join(", ");
            message += &format!(", except {names}, which another program or user wrote or changed");
        }
        let has_changed = plan.changes_files();
        Ok(WriteResult { author: SpecAuthor::Daemon, has_changed, message })
    }
}

/// Updates the directory to the specifications of the classes in `kinds`, and returns the changes. After an error each
/// file is either the old or the new one. Classes in `undecided` keep their devices, since not all of their data could
/// be read.
pub fn write(
    host: &Host,
    specs: &GeneratedSpecs,
    kinds: &[Class],
    undecided: BTreeSet<Class>,
) -> Result<SpecPlan> {
    let files = specs
        .iter()
        .filter(|(name, _)| kinds.contains(&name.class))
        .map(|(name, spec)| (*name, to_json(spec).into_bytes()));
    let path = host.outside_path(Path::new(SPEC_DIR));
    let directory = SpecDir::new(path, host.create_directory(Path::new(SPEC_DIR))?);
    write_files(&directory, files.collect(), kinds, undecided)
}

fn write_files(
    directory: &SpecDir,
    files: BTreeMap<SpecName, Vec<u8>>,
    kinds: &[Class],
    undecided: BTreeSet<Class>,
) -> Result<SpecPlan> {
    let desired = DesiredSpecs {
        scope: Class::ALL.to_vec(),
        files,
        format: SpecFormat::Json,
        undecided,
        manifest: Manifest { kinds: kinds.to_vec(), ..Manifest::default() },
        force: false,
    };
    let _lock = directory.lock()?;
    // If the manifest cannot be parsed, all files count as foreign and are kept.
    let manifest = directory.read_manifest()?.unwrap_or_default();
    let plan = plan(&desired, &directory.read_files()?, manifest.as_ref());
    directory.apply(&plan)?;
    Ok(plan)
}

/// Removes all our specifications, their manifest and their lock file. Files that others wrote or changed are kept and
/// listed in the plan. Returns `None` if the directory does not exist.
pub fn remove(host: &Host) -> Result<Option<SpecPlan>> {
    let path = host.outside_path(Path::new(SPEC_DIR));
    let Some(open) = host.directory(Path::new(SPEC_DIR))? else {
        return Ok(None);
    };
    let directory = SpecDir::new(path.clone(), open);
    let plan = write_files(&directory, BTreeMap::new(), &[], BTreeSet::new())?;
    for name in [MANIFEST_NAME, LOCK_NAME] {
        atomic::remove(directory.descriptor(), OsStr::new(name))
            .map_err(|failed| failed.source)
            .with_context(|| format!("removing {}", path.join(name).display()))?;
    }
    Ok(Some(plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_cdi::{ContainerEdits, Spec};
    use onload_host::specdir::{FileAction, LAST_RUN};
    use onload_test_tree::Tree;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::time::{Duration, SystemTime};

    struct Node(Tree);

    impl Node {
        fn new() -> Self {
            Node(Tree::on_disk())
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path(path)
        }

        fn file(&self, path: &str, text: &str) {
            self.0.file(path, text);
        }

        fn program(&self, path: &str) {
            self.0.program(path, "hook");
        }

        fn mode(&self, path: &str, mode: u32) {
            self.0.chmod(path, mode);
        }

        fn host(&self) -> Host {
            Host::open(self.0.root()).unwrap()
        }

        /// Who runs the test owns what it makes.
        fn owners(&self) -> TrustedOwners {
            TrustedOwners::from_users(&[fs::metadata(self.0.root()).unwrap().uid()])
        }

        fn keeper(&self) -> SpecWriter {
            SpecWriter { owners: self.owners(), ..SpecWriter::new(PathBuf::from(HOOKS)) }
        }

        fn hook(&self, config: &Config) -> Result<PathBuf> {
            hook_path(&self.host(), config, Path::new(HOOKS), &self.owners())
        }

        fn package_writes(&self) -> bool {
            is_package_writer(&self.host()).unwrap()
        }

        fn last_run(&self, ago: Duration) {
            self.file(&LAST_RUN[1..], "");
            let file = fs::File::open(self.path(&LAST_RUN[1..])).unwrap();
            file.set_modified(SystemTime::now() - ago).unwrap();
        }
    }

    fn is_here(result: &WriteResult) -> bool {
        result.message.starts_with("this daemon writes ")
    }

    #[test]
    fn a_node_without_our_package_has_the_daemon_as_its_writer() {
        let node = Node::new();
        assert!(!node.package_writes());
        node.file("usr/lib/systemd/system/onload-cdi.service", "[Unit]");
        assert!(!node.package_writes(), "it has never run");
    }

    #[test]
    fn the_package_writes_from_its_first_run_until_runs_are_missing() {
        let node = Node::new();
        node.program(PACKAGED);
        let config = Config::default();
        let (inventory, pools) = onload_host::pools::discover_with_pools(&node.host(), &config);
        let mut keeper = node.keeper();
        let mut keep = || keeper.update(&node.host(), &config, &inventory, &pools).unwrap();
        assert!(is_here(&keep()));
        for (seconds, by_package) in [(0, true), (200, true), (240, false)] {
            node.last_run(Duration::from_secs(seconds));
            assert_eq!(keep().author == SpecAuthor::Operator, by_package, "a run {seconds} s ago");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_takes_nothing_from_the_package() {
        let node = Node::new();
        node.last_run(Duration::ZERO);
        let file = fs::File::open(node.path(&LAST_RUN[1..])).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
        assert!(node.package_writes());
    }

    #[test]
    fn one_daemon_at_a_time_writes() {
        let node = Node::new();
        let first = try_lock(&node.host(), WRITER_LOCK).unwrap();
        assert!(first.is_some());
        assert!(try_lock(&node.host(), WRITER_LOCK).unwrap().is_none());
        drop(first);
        assert!(try_lock(&node.host(), WRITER_LOCK).unwrap().is_some());
    }

    #[test]
    fn one_daemon_at_a_time_offers_whoever_writes() {
        let node = Node::new();
        let first = try_lock(&node.host(), OFFER_LOCK).unwrap();
        assert!(first.is_some());
        assert!(try_lock(&node.host(), OFFER_LOCK).unwrap().is_none());
        assert!(try_lock(&node.host(), WRITER_LOCK).unwrap().is_some());
        drop(first);
        assert!(try_lock(&node.host(), OFFER_LOCK).unwrap().is_some());
    }

    #[test]
    fn the_place_of_the_writer_is_taken_where_only_root_can_enter() {
        let node = Node::new();
        let _claim = try_lock(&node.host(), WRITER_LOCK).unwrap();
        let mode = |path| fs::metadata(node.path(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("run/onload-ctk"), mode("run/onload-ctk/@locks")), (0o711, 0o700));
    }

    const PACKAGED: &str = "usr/bin/onload-hook";
    const HOOKS: &str = "/opt/onload-ctk";

    fn of_this_version() -> String {
        format!("{HOOKS}/{VERSION}/onload-hook")
    }

    fn operators() -> Config {
        Config::parse("[cdi]\nhook-path = \"/usr/local/bin/onload-hook\"").unwrap()
    }

    #[test]
    fn specifications_name_the_hook_of_this_version_before_the_packages() {
        let node = Node::new();
        let hook = |config: &Config| node.hook(config).unwrap();
        node.program(PACKAGED);
        assert_eq!(hook(&Config::default()), Path::new("/").join(PACKAGED), "install never ran");
        node.program(&of_this_version()[1..]);
        assert_eq!(hook(&Config::default()), Path::new(&of_this_version()));
        node.program("usr/local/bin/onload-hook");
        let theirs = operators();
        assert_eq!(hook(&theirs), theirs.cdi.hook_path);
    }

    #[test]
    fn a_hook_that_is_missing_is_named_with_what_to_do() {
        let node = Node::new();
        let refusal = |config: &Config| node.hook(config).unwrap_err().to_string();
        let places = format!("hook {} or /{PACKAGED} not found; run", of_this_version());
        assert!(refusal(&Config::default()).contains(&places));
        // A hook of another version is none.
        node.program("opt/onload-ctk/0.0.9/onload-hook");
        assert!(refusal(&Config::default()).contains(&places));
        // What the operator set is not looked for elsewhere.
        node.program(&of_this_version()[1..]);
        let text = refusal(&operators());
        assert!(text.contains("hook /usr/local/bin/onload-hook not found; run"), "{text}");
    }

    #[test]
    fn a_hook_that_others_can_change_or_nobody_can_execute_is_refused() {
        let node = Node::new();
        let own = of_this_version();
        let refusal = || {
            let error = node.hook(&Config::default()).unwrap_err();
            format!("{error:#}")
        };
        node.program(PACKAGED);
        node.program(&own[1..]);
        for (path, mode, says) in [
            (own[1..].to_owned(), 0o644, "is not executable; run \"chmod 755\""),
            (own[1..].to_owned(), 0o777, "is not used: "),
            (format!("opt/onload-ctk/{VERSION}"), 0o777, "is not used: "),
        ] {
            let before = fs::metadata(node.path(&path)).unwrap().mode();
            node.mode(&path, mode);
            let text = refusal();
            assert!(text.contains(&format!("the hook {own} {says}")), "{text}");
            node.mode(&path, before);
        }
        fs::remove_file(node.path(&own[1..])).unwrap();
        fs::create_dir(node.path(&own[1..])).unwrap();
        let text = refusal();
        assert!(text.contains("is not a regular file"), "{text}");
    }

    #[test]
    fn a_hook_of_another_user_is_refused() {
        if !onload_test_needs::root("giving a file to another user") {
            return;
        }
        let node = Node::new();
        node.program(PACKAGED);
        std::os::unix::fs::chown(node.path(PACKAGED), Some(65_534), None).unwrap();
        let error = node.hook(&Config::default()).unwrap_err();
        let line = format!("the hook /{PACKAGED} is not used");
        assert!(error.to_string().ends_with(&line), "{error}");
    }

    #[test]
    fn a_writer_whose_lock_was_removed_takes_it_again_or_reads() {
        let node = Node::new();
        node.program(PACKAGED);
        let mut first = node.keeper();
        let keep = |keeper: &mut SpecWriter| {
            let config = Config::default();
            let (inventory, pools) = onload_host::pools::discover_with_pools(&node.host(), &config);
            keeper.update(&node.host(), &config, &inventory, &pools).unwrap()
        };
        assert!(is_here(&keep(&mut first)));
        let locks = node.path("run/onload-ctk/@locks");
        fs::remove_dir_all(&locks).unwrap();
        assert!(is_here(&keep(&mut first)));
        assert!(try_lock(&node.host(), WRITER_LOCK).unwrap().is_none(), "it is taken again");
        fs::remove_dir_all(&locks).unwrap();
        let mut second = node.keeper();
        assert!(is_here(&keep(&mut second)));
        assert!(keep(&mut first).message.starts_with("another daemon "));
    }

    #[test]
    fn without_a_hook_the_specifications_that_are_there_stay() {
        let node = Node::new();
        write(&node.host(), &specs(), &Class::ALL, BTreeSet::new()).unwrap();
        let before = fs::read(node.path(FILE)).unwrap();
        let mut keeper = node.keeper();
        let config = Config::default();
        let mut keep = || {
            let (inventory, pools) = onload_host::pools::discover_with_pools(&node.host(), &config);
            keeper.update(&node.host(), &config, &inventory, &pools)
        };
        assert!(keep().unwrap_err().to_string().contains("hook "));
        assert_eq!(fs::read(node.path(FILE)).unwrap(), before);
        node.program(PACKAGED);
        assert!(is_here(&keep().unwrap()));
        assert!(!node.path(FILE).exists(), "this node has no such device");
    }

    fn specs() -> GeneratedSpecs {
        let kind = Class::Rdma.cdi_kind();
        let device = onload_cdi::Device {
            name: "mlx5_0".into(),
            container_edits: ContainerEdits {
                env: vec!["A=b".to_owned()],
                ..ContainerEdits::default()
            },
            ..onload_cdi::Device::default()
        };
        let spec = Spec {
            cdi_version: "0.5.0".to_owned(),
            kind: kind.as_str().into(),
            devices: vec![device],
            ..Spec::default()
        };
        GeneratedSpecs::from([(SpecName::devices(Class::Rdma), spec)])
    }

    const FILE: &str = "var/run/cdi/onload.dev-rdma.json";

    #[test]
    fn what_is_written_is_removed_again() {
        let node = Node::new();
        let plan = write(&node.host(), &specs(), &Class::ALL, BTreeSet::new()).unwrap();
        assert!(plan.changes_files() && node.path(FILE).exists());
        let plan = write(&node.host(), &specs(), &Class::ALL, BTreeSet::new()).unwrap();
        assert!(!plan.changes_files());
        remove(&node.host()).unwrap().unwrap();
        assert_eq!(fs::read_dir(node.path("var/run/cdi")).unwrap().count(), 0);
    }

    #[test]
    fn kinds_that_the_operator_left_out_are_not_written() {
        let node = Node::new();
        write(&node.host(), &specs(), &[Class::Nic], BTreeSet::new()).unwrap();
        assert!(!node.path(FILE).exists());
    }

    #[test]
    fn what_somebody_else_wrote_stays() {
        let node = Node::new();
        node.file(FILE, "theirs");
        node.file("var/run/cdi/other.json", "theirs");
        let plan = write(&node.host(), &specs(), &Class::ALL, BTreeSet::new()).unwrap();
        assert_eq!(plan.left_files().collect::<Vec<_>>(), ["onload.dev-rdma.json"]);
        let plan = remove(&node.host()).unwrap().unwrap();
        assert!(plan.steps.iter().any(|step| step.action == FileAction::Leave));
        for path in [FILE, "var/run/cdi/other.json"] {
            assert_eq!(fs::read_to_string(node.path(path)).unwrap(), "theirs");
        }
    }

    #[test]
    fn a_node_without_a_directory_of_specifications_has_nothing_to_remove() {
        let node = Node::new();
        assert!(remove(&node.host()).unwrap().is_none());
        assert!(!node.path("var").exists());
    }
}
