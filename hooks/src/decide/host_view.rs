//! The facts about this host that the entry points need. They read nothing else of it.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use onload_cdi::oci::{HostNode, HostNodes, NodeLookup};
use onload_cdi::{Hook, HookName};
use onload_core::class::Class;
use onload_core::config::{CONFIG_PATH, HookConfig, LogConfig, OnIncompatible};
use onload_core::hook_arguments::PROGRAM;
use onload_core::onload::PRELOAD_FILE;
use onload_lease::drain::DrainList;
use onload_sys::elf::{self, ElfSummary};
use onload_sys::error::{Context, Result, bail, error};
use onload_sys::fs::open::may_exist;
use onload_sys::fs::trust::{TrustedOwners, TrustedTree};
use onload_sys::netlink::link::{self, Link};
use onload_sys::netlink::socket::NetlinkSocket;
use onload_sys::processes::Processes;
use rustix::fs::stat;
use rustix::process::{Resource, geteuid, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::specs::OnloadSpecs;
use super::sysfs::Sysfs;

/// Maximum size of a configuration file.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// Inode of /proc/self/ns/user in the initial user namespace (include/linux/proc_ns.h,
/// `PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// The user that the kernel shows for users that a namespace does not map
/// (Documentation/admin-guide/sysctl/kernel.rst, `overflowuid`).
const OVERFLOW_USER: u32 = 65534;

#[derive(Clone, Debug, Default)]
pub struct HookSettings {
    pub config: HookConfig,
    /// The path of the configuration file, which may not exist.
    pub file: PathBuf,
}

impl HookSettings {
    /// Returns our hook for a stage, without arguments.
    pub(crate) fn own_hook(&self, stage: HookName) -> Hook {
        Hook {
            hook_name: stage.into(),
            path: self.config.cdi.hook_path.display().to_string(),
            args: vec![PROGRAM.to_owned(), stage.as_str().to_owned()],
            env: vec!["PATH=/usr/sbin:/usr/bin".to_owned()],
            timeout: Some(10),
        }
    }

    /// Rejects a container whose programs cannot load a library, or returns a warning, as the
    /// operator chose.
    pub(crate) fn refuse_or_warn(&self, what: &str, why: &str, remedy: &str) -> Result<String> {
        match self.config.annotations.on_incompatible {
            OnIncompatible::Fail => {
                bail!("{why}; {remedy}, or set on-incompatible = \"skip\"")
            }
            OnIncompatible::Skip => Ok(format!("{what}: {why}")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privilege {
    /// Whether the process is in the initial user namespace, where user 0 is root.
    pub is_initial_namespace: bool,
    /// Whether the process has CAP_SYS_RESOURCE in the initial user namespace, with which it can
    /// raise hard limits.
    pub may_raise_limits: bool,
    /// The limit in bytes; `None` means unlimited.
    pub memlock_hard: Option<u64>,
    pub nofile_soft: Option<u64>,
    pub nofile_hard: Option<u64>,
}

pub trait HostView: NodeLookup {
    /// Returns the settings. A missing file counts as an empty one.
    fn settings(&self) -> Result<HookSettings>;

    fn specs(&self, classes: &[Class]) -> Result<OnloadSpecs>;

    fn sysfs(&self) -> Sysfs;

    fn privilege(&self) -> Privilege;

    /// Checks that [`PRELOAD_FILE`] exists and is trusted.
    fn check_preload_file(&self) -> Result<()>;

    /// Returns the host's files.
    fn files(&self) -> &TrustedTree;

    /// Returns the drained devices. Only called to explain why a device is in no specification.
    fn drain(&self) -> Result<DrainList>;

    /// Returns the interfaces that a runtime would find, with all of their names.
    fn interfaces(&self) -> Result<Vec<Link>>;

    /// Returns the dependencies of a library on the host. Returns `None` if it cannot be read.
    fn library_summary(&self, path: &str) -> Option<ElfSummary>;
}

#[derive(Debug)]
pub struct LocalHost {
    root: PathBuf,
    trusted: TrustedTree,
    config: PathBuf,
    /// The text of the configuration when it was first read, so that every caller gets the same
    /// answer.
    text: OnceCell<Option<String>>,
    settings: OnceCell<HookConfig>,
    is_initial_namespace: bool,
    privilege: OnceCell<Privilege>,
    /// The nodes of a captured host, which has no device files.
    captured_nodes: BTreeMap<PathBuf, HostNode>,
}

impl LocalHost {
    pub fn new() -> Result<Self> {
        LocalHost::with_config(Path::new(CONFIG_PATH))
    }

    pub(crate) fn with_config(config: &Path) -> Result<Self> {
        let is_initial_namespace = is_initial_namespace();
        let owners = if is_initial_namespace {
            TrustedOwners::root()
        } else {
            TrustedOwners::rootless(geteuid().as_raw(), OVERFLOW_USER)
        };
        let trusted = TrustedTree::for_host(owners)?;
        Ok(LocalHost::with_root(Path::new("/"), trusted, config, is_initial_namespace))
    }

    /// Opens a tree that represents a host, to preview changes. The owner of the tree counts as
    /// root.
    pub fn for_tree(root: &Path, config: &Path) -> Result<Self> {
        let owner = stat(root).map_or(0, |stat| stat.st_uid);
        let trusted = TrustedTree::for_tree(root, TrustedOwners::from_users(&[0, owner]))?;
        Ok(LocalHost::with_root(root, trusted, config, true))
    }

    fn with_root(
        root: &Path,
        trusted: TrustedTree,
        config: &Path,
        is_initial_namespace: bool,
    ) -> Self {
        LocalHost {
            root: root.to_owned(),
            trusted,
            config: config.to_owned(),
            text: OnceCell::new(),
            settings: OnceCell::new(),
            is_initial_namespace,
            privilege: OnceCell::new(),
            captured_nodes: BTreeMap::new(),
        }
    }

    /// Replaces the settings and adds nodes, to preview changes.
    pub fn for_preview(
        self,
        settings: HookSettings,
        captured_nodes: BTreeMap<PathBuf, HostNode>,
    ) -> Self {
        let HookSettings { config, file } = settings;
        LocalHost { config: file, settings: OnceCell::from(config), captured_nodes, ..self }
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn is_initial_namespace(&self) -> bool {
        self.is_initial_namespace
    }

    pub(crate) fn trusted(&self) -> &TrustedTree {
        &self.trusted
    }

    /// Returns the text of the configuration, or `None` if there is no file.
    pub(crate) fn config_text(&self) -> Result<Option<String>> {
        if let Some(text) = self.text.get() {
            return Ok(text.clone());
        }
        let text = self
            .config_bytes()?
            .map(String::from_utf8)
            .transpose()
            .map_err(|_| error!("{:?} is not UTF-8", self.config))?;
        Ok(self.text.get_or_init(|| text).clone())
    }

    /// Like [`LocalHost::config_text`], but the text may not be UTF-8.
    pub(crate) fn config_bytes(&self) -> Result<Option<Vec<u8>>> {
        match self.trusted.open(&self.config) {
            Ok(file) => Ok(Some(file.read(MAX_CONFIG_BYTES)?)),
            // A dangling link is not an absent file: the operator has a configuration.
            Err(error) if error.is_absent() && !may_exist(&self.path(&self.config)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn config_path(&self) -> &Path {
        &self.config
    }

    /// Returns the settings of the log, or the default if the configuration cannot be read.
    pub(crate) fn log(&self) -> LogConfig {
        if let Some(settings) = self.settings.get() {
            return settings.log.clone();
        }
        match self.config_text() {
            Ok(Some(text)) => LogConfig::read(&text),
            Ok(None) | Err(_) => LogConfig::default(),
        }
    }
}

impl NodeLookup for LocalHost {
    fn node(&self, host_path: &str) -> io::Result<HostNode> {
        match self.captured_nodes.get(Path::new(host_path)) {
            Some(node) => Ok(*node),
            None => HostNodes.node(&self.path(host_path).to_string_lossy()),
        }
    }
}

impl HostView for LocalHost {
    fn settings(&self) -> Result<HookSettings> {
        let config = match self.settings.get() {
            Some(config) => config,
            None => {
                let config = match self.config_text()? {
                    None => HookConfig::default(),
                    Some(text) => {
                        HookConfig::parse(&text).with_context(|| format!("{:?}", self.config))?
                    }
                };
                self.settings.get_or_init(|| config)
            }
        };
        Ok(HookSettings { config: config.clone(), file: self.config.clone() })
    }

    fn specs(&self, classes: &[Class]) -> Result<OnloadSpecs> {
        OnloadSpecs::read(&self.trusted, classes).context("specifications")
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at_root(self.path("/sys"))
    }

    fn privilege(&self) -> Privilege {
        *self.privilege.get_or_init(|| {
            let has_capability = capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
            let nofile = getrlimit(Resource::Nofile);
            Privilege {
                is_initial_namespace: self.is_initial_namespace,
                may_raise_limits: self.is_initial_namespace && has_capability,
                memlock_hard: getrlimit(Resource::Memlock).maximum,
                nofile_soft: nofile.current,
                nofile_hard: nofile.maximum,
            }
        })
    }

    fn check_preload_file(&self) -> Result<()> {
        self.trusted.check(Path::new(PRELOAD_FILE))?;
        Ok(())
    }

    fn files(&self) -> &TrustedTree {
        &self.trusted
    }

    fn drain(&self) -> Result<DrainList> {
        DrainList::read(&self.trusted, || Processes::at_root(&self.root).boot_id().ok())
    }

    fn interfaces(&self) -> Result<Vec<Link>> {
        if self.root != Path::new("/") {
            return Ok(Vec::new());
        }
        NetlinkSocket::open(None)
            .and_then(|socket| socket.list(link::GET, &link::dump_payload(), &link::parse))
            .context("listing network interfaces")
    }

    fn library_summary(&self, path: &str) -> Option<ElfSummary> {
        let library = self.trusted.open(Path::new(path)).ok()?;
        elf::summarize_file(&library.file, library.size()).ok()
    }
}

/// Returns whether this process is the host's root, the only user that may write the operator's files.
pub(crate) fn is_root() -> bool {
    geteuid().is_root() && is_initial_namespace()
}

fn is_initial_namespace() -> bool {
    // If the namespace is unknown, only root is trusted.
    stat("/proc/self/ns/user").map_or(true, |stat| stat.st_ino == INITIAL_USER_NAMESPACE)
}
