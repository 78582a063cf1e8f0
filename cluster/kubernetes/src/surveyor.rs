//! Surveys the host and publishes snapshots to the rest of the daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use onload_agent::LastMessage;
use onload_agent::host_watch::{self, HostWatch};
use onload_core::config::Config;
use onload_host::host::Host;
use onload_host::offers::{HostDevice, Survey};
use onload_host::settings;
use onload_host::watch::{WatchSources, Watcher};
use onload_report::metrics::{MetricsInput, render_openmetrics};
use tokio::sync::watch;

use crate::observe::metrics::DaemonMetrics;
use crate::resources::SpecAuthor;
use crate::snapshot::{KubernetesSnapshot, SpecNames};
use crate::spec_writer::SpecWriter;

/// Interval between surveys if changes cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

const STARTING: &str = "starting the thread that reads the host";

/// The subject of messages about specifications.
const SPECIFICATIONS: usize = 2;
const MEASURES: usize = 3;

/// The host and the configuration.
#[derive(Debug)]
pub struct KubernetesSurveyor {
    host: Arc<Host>,
    /// The configuration file, if it is not the host's own.
    config_path: Option<PathBuf>,
    specs: Arc<SpecNames>,
    config: Config,
    metrics: Arc<DaemonMetrics>,
    /// The writer of specifications, if this daemon may write them.
    spec_writer: Option<SpecWriter>,
    /// Whether the command line sets the address for metrics, which overrides the configuration file.
    is_listen_set: bool,
    /// The last messages about the configuration, the host, its specifications and its metrics, so that they are not
    /// repeated.
    last_messages: [LastMessage; 4],
}

impl KubernetesSurveyor {
    pub fn new(
        host: Arc<Host>,
        config_path: Option<PathBuf>,
        specs: &Arc<SpecNames>,
        spec_writer: Option<SpecWriter>,
        metrics: &Arc<DaemonMetrics>,
        is_listen_set: bool,
    ) -> Result<Self> {
        let config = settings::load(&host, config_path.as_deref())?;
        Ok(KubernetesSurveyor {
            host,
            config_path,
            specs: Arc::clone(specs),
            config,
            metrics: Arc::clone(metrics),
            spec_writer,
            is_listen_set,
            last_messages: Default::default(),
        })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Surveys the host now, after writing its specifications if that is the daemon's task.
    pub fn survey_host(&mut self) -> Result<KubernetesSnapshot> {
        let survey = Survey::read(&self.host, &self.config, self.specs.dirs());
        self.metrics.record_survey(survey.is_ok());
        let mut survey = survey?;
        let (written_by, has_changed) = self.update_specs(&survey);
        if has_changed {
            (survey.specs, survey.spec_files) = self.host.spec_index().scan(self.specs.dirs());
        }
        self.specs.update(&survey.specs, &survey.spec_files);
        let devices = survey.offers();
        self.update_metrics(&survey, &devices);
        Ok(KubernetesSnapshot::from_survey(survey, devices, &self.config, written_by))
    }

    /// Stores the host's metrics, so that a scrape reads no file.
    fn update_metrics(&mut self, survey: &Survey, devices: &[HostDevice]) {
        let text = render_openmetrics(MetricsInput {
            host: &self.host,
            inventory: &survey.inventory,
            devices,
            leases: Some(&survey.leases),
            // The pod sees no processes of the node.
            grantees: None,
            containers: None,
            now: SystemTime::now(),
        });
        match text {
            Ok(text) => {
                self.last_messages[MEASURES].clear();
                self.metrics.set_host_text(&text);
            }
            Err(error) => {
                let message = "reading the host's counters failed; keeping the previous values";
                self.log_once(MEASURES, error, message);
            }
        }
    }

    /// Updates the specifications. Returns the writer, and whether one has changed.
    fn update_specs(&mut self, survey: &Survey) -> (SpecAuthor, bool) {
        let Some(spec_writer) = &mut self.spec_writer else {
            return (SpecAuthor::Operator, false);
        };
        let (host, config) = (&self.host, &self.config);
        let result = match spec_writer.update(host, config, &survey.inventory, &survey.pools) {
            Ok(result) => result,
            Err(error) => {
                let message = "updating the specifications failed; keeping the existing ones";
                self.log_once(SPECIFICATIONS, error, message);
                return (SpecAuthor::Daemon, false);
            }
        };
        if self.last_messages[SPECIFICATIONS].is_new(&result.message) {
            tracing::info!("{}", result.message);
        }
        (result.author, result.has_changed)
    }

    /// Surveys the host in another thread, because malloc(3) keeps the memory of a survey in that thread's arena for
    /// the next one.
    pub fn first_survey(&mut self) -> Result<KubernetesSnapshot> {
        thread::scope(|scope| {
            let survey = scope.spawn(move || self.survey_host());
            survey.join().map_err(|_| anyhow!("it ended early").context(STARTING))?
        })
    }

    /// Surveys the host in another thread whenever something may have changed, and sends the snapshots.
    pub fn start(mut self, to: watch::Sender<Arc<KubernetesSnapshot>>) -> Result<()> {
        let survey = move |watch: &mut HostWatch| {
            watch.begin(|| self.new_watcher());
            self.survey_again(&to).then_some(POLL_INTERVAL)
        };
        host_watch::start(survey, log_watch_failure).context(STARTING)
    }

    fn new_watcher(&self) -> io::Result<Watcher> {
        let mut sources = WatchSources::for_host(&self.host, self.specs.dirs());
        let config_dir = self.config_path.as_deref().and_then(Path::parent);
        sources.directories.extend(config_dir.map(Path::to_owned));
        let watcher = Watcher::new(sources)?;
        for reason in watcher.missing_sources() {
            tracing::warn!(%reason, "changes are detected later, within a minute");
        }
        Ok(watcher)
    }

    /// Returns whether there are receivers.
    fn survey_again(&mut self, to: &watch::Sender<Arc<KubernetesSnapshot>>) -> bool {
        self.reload();
        match self.survey_host() {
            Ok(snapshot) => {
                self.last_messages[1].clear();
                to.send(Arc::new(snapshot)).is_ok()
            }
            Err(error) => {
                let message = "reading the host failed; the previous devices stay offered";
                self.log_once(1, error, message);
                !to.is_closed()
            }
        }
    }

    /// Loads a changed configuration. An invalid one is ignored.
    fn reload(&mut self) {
        match settings::load(&self.host, self.config_path.as_deref()) {
            Ok(config) => {
                self.last_messages[0].clear();
                if config == self.config {
                    return;
                }
                let listen = &config.kubernetes.listen;
                let has_changed = *listen != self.config.kubernetes.listen;
                if has_changed && !self.is_listen_set {
                    tracing::warn!(%listen, "[kubernetes] listen has changed; restart this daemon \
                        to apply it");
                }
                tracing::info!("the configuration has changed");
                self.config = config;
            }
            Err(error) => {
                self.log_once(0, error, "the configuration is invalid; keeping the previous one");
            }
        }
    }

    fn log_once(&mut self, index: usize, error: impl Into<anyhow::Error>, message: &'static str) {
        let text = format!("{:#}", error.into());
        if self.last_messages[index].is_new(&text) {
            tracing::error!(error = %text, message);
        }
    }
}

fn log_watch_failure(error: &io::Error) {
    tracing::error!(%error, "changes are not reported; reading the host every few seconds");
}
