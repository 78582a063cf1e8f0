//! Surveys the host repeatedly in a separate thread. It starts when Nomad first requests devices; until then the plugin
//! reads nothing.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use onload_agent::LastMessage;
use onload_agent::host_watch::{self, HostWatch};
use onload_host::host::Host;
use onload_host::settings;
use onload_host::specdir::resolve_dirs;
use onload_host::watch::{Waker, WatchSources, Watcher};
use tokio::sync::watch;

use crate::cli::NomadCli;
use crate::log;
use crate::settings::PluginSettings;
use crate::snapshot::NomadSnapshot;

/// The shortest interval between surveys without changes, since changes trigger a survey anyway.
const MIN_PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct NomadSurveyor {
    options: NomadCli,
    state: Mutex<SurveyorState>,
    snapshots: watch::Sender<Option<Arc<NomadSnapshot>>>,
}

#[derive(Debug, Default)]
struct SurveyorState {
    settings: PluginSettings,
    is_started: bool,
    waker: Option<Waker>,
}

impl NomadSurveyor {
    pub fn new(options: NomadCli) -> Self {
        NomadSurveyor { options, state: Mutex::default(), snapshots: watch::channel(None).0 }
    }

    fn lock_state(&self) -> MutexGuard<'_, SurveyorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, settings: PluginSettings) {
        let mut state = self.lock_state();
        state.settings = settings;
        if let Some(waker) = &state.waker {
            // On failure the next survey follows after the interval.
            let _ = waker.wake();
        }
    }

    fn new_watcher(&self, host: &Host, dirs: &[PathBuf], period: Duration) -> io::Result<Watcher> {
        let mut sources = WatchSources::for_host(host, dirs);
        sources.interval = period;
        // Changes of tickets are not watched: a task that starts with one also changes the leases, and a survey reads
        // thousands of files.
        let config_path = self.options.config.as_ref();
        let config_dir = config_path.and_then(|path| Some(path.parent()?.to_owned()));
        sources.directories.extend(config_dir);
        let watcher = Watcher::new(sources)?;
        for reason in watcher.missing_sources() {
            tracing::warn!("changes are detected later, after fingerprint_period: {reason}");
        }
        self.lock_state().waker = Some(watcher.waker());
        Ok(watcher)
    }

    /// Returns the snapshots. The first call starts the surveys; there is no snapshot before the first one.
    pub fn snapshots(self: &Arc<Self>) -> watch::Receiver<Option<Arc<NomadSnapshot>>> {
        let receiver = self.snapshots.subscribe();
        let is_first = !std::mem::replace(&mut self.lock_state().is_started, true);
        if is_first {
            let mut task = SurveyTask {
                surveyor: Arc::clone(self),
                host: None,
                period: MIN_PERIOD,
                last_message: LastMessage::default(),
                left_out: BTreeSet::new(),
            };
            let started = host_watch::start(
                move |watch| Some(task.survey_until_current(watch)),
                log_watch_failure,
            );
            if let Err(error) = started {
                tracing::error!(
                    "starting the thread that reads the host: {error}; no devices are published"
                );
                self.snapshots.send_replace(Some(Arc::default()));
            }
        }
        receiver
    }
}

fn log_watch_failure(error: &io::Error) {
    tracing::error!(
        "waiting for changes of the host: {error}; they are detected later, after \
         fingerprint_period"
    );
}

struct SurveyTask {
    surveyor: Arc<NomadSurveyor>,
    /// Kept for its index of CDI files. `None` until it could be opened.
    host: Option<Arc<Host>>,
    /// Interval of surveys without changes.
    period: Duration,
    last_message: LastMessage,
    left_out: BTreeSet<String>,
}

impl SurveyTask {
    /// Surveys until the result is based on the present settings, which may have changed before there was a waker.
    fn survey_until_current(&mut self, watch: &mut HostWatch) -> Duration {
        loop {
            let settings = self.surveyor.lock_state().settings.clone();
            match self.survey(&settings, watch) {
                Ok(snapshot) => {
                    self.last_message.clear();
                    self.explain(&snapshot);
                    let snapshots = &self.surveyor.snapshots;
                    snapshots.send_replace(Some(Arc::new(snapshot)));
                }
                Err(error) => self.log_failure(&error),
            }
            if self.surveyor.lock_state().settings == settings {
                return self.period;
            }
        }
    }

    fn survey(
        &mut self,
        settings: &PluginSettings,
        watch: &mut HostWatch,
    ) -> Result<NomadSnapshot> {
        let options = &self.surveyor.options;
        let host = match &self.host {
            Some(host) => host,
            None => self.host.insert(Arc::new(Host::open(&options.host_root)?)),
        };
        let dirs = resolve_dirs(host, &options.spec_dir)?;
        let period = settings.fingerprint_period.max(MIN_PERIOD);
        if std::mem::replace(&mut self.period, period) != period {
            watch.discard();
        }
        watch.begin(|| self.surveyor.new_watcher(host, &dirs, period));
        let config = settings::load(host, options.config.as_deref())?;
        log::set_level(config.log.level);
        let earlier = self.surveyor.snapshots.borrow().clone();
        NomadSnapshot::new(host, &config, settings, &dirs, earlier.as_deref())
    }

    /// Logs a failed survey. The earlier snapshot is kept; at the start there is none, and Nomad waits for the first
    /// one.
    fn log_failure(&mut self, error: &anyhow::Error) {
        let message = format!("{error:#}");
        if self.last_message.is_new(&message) {
            tracing::error!("reading the host: {message}; the previous devices stay published");
        }
        self.surveyor.snapshots.send_if_modified(|snapshot| {
            let is_first = snapshot.is_none();
            if is_first {
                *snapshot = Some(Arc::default());
            }
            is_first
        });
    }

    /// Logs once each offer that is not published.
    fn explain(&mut self, snapshot: &NomadSnapshot) {
        for line in snapshot.plan.left_out.difference(&self.left_out) {
            tracing::info!("{line}");
        }
        self.left_out.clone_from(&snapshot.plan.left_out);
    }
}
