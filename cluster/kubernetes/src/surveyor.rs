//! What looks at the host, and tells the rest of the daemon what it has.

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
use crate::spec_writer::{SpecWriter, WriteResult};

/// The time between two looks at the host where changes cannot be waited for.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

const STARTING: &str = "starting the thread that looks at the host";

/// Where what was said of the specifications stands.
const SPECIFICATIONS: usize = 2;
const MEASURES: usize = 3;

/// Where the host is, and what is configured.
#[derive(Debug)]
pub struct KubernetesSurveyor {
    host: Host,
    /// The configuration file, if it is not the host's own.
    config_path: Option<PathBuf>,
    specs: Arc<SpecNames>,
    config: Config,
    metrics: Arc<DaemonMetrics>,
    /// Who writes the specifications, if that is the daemon's work at all.
    spec_writer: Option<SpecWriter>,
    /// Whether the command line says where metrics are served: what the file says of it matters only if not.
    is_listen_set: bool,
    /// What was said last of the configuration, the host, its specifications and its metrics, so that it is not
    /// said twice.
    last_messages: [LastMessage; 4],
}

impl KubernetesSurveyor {
    pub fn new(
        host: Host,
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

    /// What the host has now. Its specifications are written first, where that is the daemon's work.
    pub fn survey_host(&mut self) -> Result<KubernetesSnapshot> {
        let mut survey = self.read_survey()?;
        let (written_by, has_changed) = self.update_specs(&survey);
        if has_changed {
            (survey.specs, survey.spec_files) = self.host.spec_index().scan(self.specs.dirs());
        }
        self.specs.update(&survey.specs, &survey.spec_files);
        let devices = survey.offers();
        self.update_metrics(&survey, &devices);
        Ok(KubernetesSnapshot::from_survey(survey, devices, &self.config, written_by))
    }

    /// Takes the numbers of the host for those who collect them: an answer to them reads no file.
    fn update_metrics(&mut self, survey: &Survey, devices: &[HostDevice]) {
        let text = render_openmetrics(MetricsInput {
            host: &self.host,
            inventory: &survey.inventory,
            devices,
            leases: Some(&survey.leases),
            // It sees no process of the node.
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
                let message = "the host is not measured; its metrics are those of before";
                self.log_once(MEASURES, error, message);
            }
        }
    }

    fn read_survey(&self) -> Result<Survey> {
        let survey = Survey::read(&self.host, &self.config, self.specs.dirs());
        self.metrics.record_survey(survey.is_ok());
        survey
    }

    /// Brings the specifications up to date; who writes them, and whether one has changed.
    fn update_specs(&mut self, survey: &Survey) -> (SpecAuthor, bool) {
        let Some(spec_writer) = &mut self.spec_writer else {
            return (SpecAuthor::Operator, false);
        };
        let (host, config) = (&self.host, &self.config);
        let result = spec_writer.update(host, config, &survey.inventory, &survey.pools);
        let author = match &result {
            Ok(WriteResult::ByPackage) => SpecAuthor::Operator,
            // Where it could not, its log says why.
            Ok(WriteResult::Here { .. } | WriteResult::ByAnother) | Err(_) => SpecAuthor::Daemon,
        };
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                let message = "the specifications are not brought up to date; what is there stays";
                self.log_once(SPECIFICATIONS, error, message);
                return (author, false);
            }
        };
        let message = result.describe();
        if self.last_messages[SPECIFICATIONS].is_new(&message) {
            tracing::info!("{message}");
        }
        (author, result.changes_files())
    }

    /// What the host has now, looked at in another thread: malloc(3) gives each thread memory of its own, and
    /// keeps what a look has needed for the next thread.
    pub fn first_survey(&mut self) -> Result<KubernetesSnapshot> {
        thread::scope(|scope| {
            let survey = scope.spawn(move || self.survey_host());
            survey.join().map_err(|_| anyhow!("it ended early").context(STARTING))?
        })
    }

    /// Looks at the host in another thread whenever something may have changed, and sends what it gives.
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
            tracing::warn!(%reason, "changes are found later, within a minute");
        }
        Ok(watcher)
    }

    /// Whether anybody wants to know more.
    fn survey_again(&mut self, to: &watch::Sender<Arc<KubernetesSnapshot>>) -> bool {
        self.reload();
        match self.survey_host() {
            Ok(snapshot) => {
                self.last_messages[1].clear();
                to.send(Arc::new(snapshot)).is_ok()
            }
            Err(error) => {
                let message = "the host cannot be looked at; what was found before stays offered";
                self.log_once(1, error, message);
                !to.is_closed()
            }
        }
    }

    /// Takes a changed configuration. One that is wrong changes nothing.
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
                    tracing::warn!(%listen, "[kubernetes] listen has changed; restart this daemon to serve there");
                }
                tracing::info!("the configuration has changed");
                self.config = config;
            }
            Err(error) => self.log_once(
                0,
                error,
                "the configuration is not taken; the one before stays in force",
            ),
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
    tracing::error!(%error, "changes are not told; looking at the host every few seconds");
}
