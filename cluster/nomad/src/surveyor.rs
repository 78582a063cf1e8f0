//! Looks at the host, again and again, in a thread of its own. It starts when Nomad first asks for devices: until
//! then the plugin touches nothing.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use onload_agent::Said;
use onload_agent::survey::{self, Watch};
use onload_core::run_dir::{REQUESTS, RUN_DIR};
use onload_host::host::Host;
use onload_host::settings;
use onload_host::specdir::resolve_dirs;
use onload_host::watch::{Waker, WatchSources, Watcher};
use tokio::sync::watch;

use crate::cli::Cli;
use crate::host_state::Snapshot;
use crate::log;
use crate::settings::Settings;

/// The shortest time after which everything is looked at again: what changes is told anyway.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Surveyor {
    options: Cli,
    shared: Mutex<Shared>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
}

#[derive(Debug, Default)]
struct Shared {
    settings: Settings,
    is_started: bool,
    waker: Option<Waker>,
}

impl Surveyor {
    pub fn new(options: Cli) -> Self {
        Surveyor { options, shared: Mutex::default(), snapshots: watch::channel(None).0 }
    }

    pub fn options(&self) -> &Cli {
        &self.options
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, settings: Settings) {
        let mut shared = self.shared();
        shared.settings = settings;
        if let Some(waker) = &shared.waker {
            // It looks again after a while in any case.
            let _ = waker.wake();
        }
    }

    fn watcher(&self, host: &Host, dirs: &[PathBuf], period: Duration) -> io::Result<Watcher> {
        let mut sources = WatchSources::for_host(host, dirs);
        sources.interval = period;
        let run = host.outside_path(RUN_DIR.as_ref());
        sources.directories.push(run.join(REQUESTS));
        let named = self.options.config.as_ref();
        let named = named.and_then(|path| Some(path.parent()?.to_owned()));
        sources.directories.extend(named);
        let watcher = Watcher::new(sources)?;
        for reason in watcher.missing_sources() {
            tracing::warn!("changes are found later, after fingerprint_period: {reason}");
        }
        self.shared().waker = Some(watcher.waker());
        Ok(watcher)
    }

    /// What the host has. The first call begins to look at it; nothing is there before the first look.
    pub fn snapshots(self: &Arc<Self>) -> watch::Receiver<Option<Arc<Snapshot>>> {
        let receiver = self.snapshots.subscribe();
        let is_first = !std::mem::replace(&mut self.shared().is_started, true);
        if is_first {
            let mut looking = Looking {
                surveyor: Arc::clone(self),
                period: SHORTEST_PERIOD,
                said: Said::default(),
                left_out: BTreeSet::new(),
                warnings: BTreeSet::new(),
            };
            let started = survey::start(move |watch| Some(looking.look_again(watch)), untold);
            if let Err(error) = started {
                tracing::error!(
                    "starting the thread that looks at the host: {error}; no devices are published"
                );
                self.snapshots.send_replace(Some(Arc::default()));
            }
        }
        receiver
    }
}

fn untold(error: &io::Error) {
    tracing::error!(
        "waiting for changes of the host: {error}; they are found later, after fingerprint_period"
    );
}

struct Looking {
    surveyor: Arc<Surveyor>,
    /// How often everything is looked at in any case.
    period: Duration,
    said: Said,
    left_out: BTreeSet<String>,
    warnings: BTreeSet<String>,
}

impl Looking {
    /// Looks until that was by the settings of now: others may have come before there was a waker.
    fn look_again(&mut self, watch: &mut Watch) -> Duration {
        loop {
            let settings = self.surveyor.shared().settings.clone();
            match self.look(&settings, watch) {
                Ok(snapshot) => {
                    self.said.clear();
                    self.explain(&snapshot);
                    let snapshots = &self.surveyor.snapshots;
                    snapshots.send_replace(Some(Arc::new(snapshot)));
                }
                Err(error) => self.failed(&error),
            }
            if self.surveyor.shared().settings == settings {
                return self.period;
            }
        }
    }

    fn look(&mut self, settings: &Settings, watch: &mut Watch) -> Result<Snapshot> {
        let options = &self.surveyor.options;
        let host = Host::open(&options.host_root)?;
        let dirs = resolve_dirs(&host, &options.spec_dir)?;
        let period = settings.fingerprint_period.max(SHORTEST_PERIOD);
        if std::mem::replace(&mut self.period, period) != period {
            watch.discard();
        }
        watch.begin(|| self.surveyor.watcher(&host, &dirs, period));
        let config = settings::load(&host, options.config.as_deref())?;
        log::set_level(config.log.level);
        let earlier = self.surveyor.snapshots.borrow().clone();
        Snapshot::of(&host, &config, settings, &dirs, earlier.as_deref())
    }

    /// What was found before stays. At the start that is nothing: Nomad waits for the first answer.
    fn failed(&mut self, error: &anyhow::Error) {
        let said = format!("{error:#}");
        if self.said.is_news(&said) {
            tracing::error!("looking at the host: {said}; what was found before stays published");
        }
        self.surveyor.snapshots.send_if_modified(|snapshot| {
            let is_first = snapshot.is_none();
            if is_first {
                *snapshot = Some(Arc::default());
            }
            is_first
        });
    }

    /// Says once what is offered and not published, and what may be a mistake.
    fn explain(&mut self, snapshot: &Snapshot) {
        for line in snapshot.plan.left_out.difference(&self.left_out) {
            tracing::info!("{line}");
        }
        for line in snapshot.warnings.difference(&self.warnings) {
            tracing::warn!("{line}");
        }
        self.left_out.clone_from(&snapshot.plan.left_out);
        self.warnings.clone_from(&snapshot.warnings);
    }
}
