//! Metrics, in the text format of OpenMetrics 1.0.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onload_core::class::Class;
use onload_core::kubernetes_settings::ResourceName;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::resources::Resource;

/// In seconds: answers take microseconds, and kubelet gives up after 10 s.
const BUCKETS: [f64; 9] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 1.0, 10.0];

const END: &str = "# EOF\n";

type LabelSet = Vec<(&'static str, String)>;
type Gauges = Family<LabelSet, Gauge>;

#[derive(Debug)]
pub struct DaemonMetrics {
    registry: Registry,
    devices: Gauges,
    allocated: Gauges,
    registered: Gauges,
    requests: Family<LabelSet, Counter>,
    seconds: Family<LabelSet, Histogram, fn() -> Histogram>,
    registrations: Family<LabelSet, Counter>,
    dra_registered: Gauge,
    surveys: Family<LabelSet, Counter>,
    api_requests: Family<LabelSet, Counter>,
    slices: Gauge,
    published: Gauges,
    /// The ids of each resource that were allocated since the start.
    allocated_ids: Mutex<BTreeMap<ResourceName, BTreeSet<String>>>,
    /// When the host was looked at last, and whether it could be read.
    last_survey: Mutex<(Instant, bool)>,
    /// The host's metrics of that survey, without the end of the text.
    host_text: Mutex<String>,
}

fn resource_label(resource: &ResourceName) -> (&'static str, String) {
    ("resource", resource.to_string())
}

fn outcome_label(is_good: bool) -> (&'static str, String) {
    ("outcome", if is_good { "ok" } else { "error" }.to_owned())
}

fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Default for DaemonMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("onload_kubernetes");
        let counted = &mut registry;
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let seconds = Family::new_with_constructor(histogram);
        DaemonMetrics {
            devices: add(counted, "devices", "Devices and slots that are reported to kubelet"),
            allocated: add(
                counted,
                "allocated_since_start",
                "Distinct devices and slots that Allocate has granted since this program started, \
                 returned or not: kubelet does not report the end of a container",
            ),
            registered: add(counted, "registered", "Whether kubelet has accepted the resource"),
            requests: add(counted, "requests", "Requests of kubelet"),
            seconds: {
                let (name, help) = ("request_duration", "Duration of a request");
                counted.register_with_unit(name, help, Unit::Seconds, seconds.clone());
                seconds
            },
            registrations: add(counted, "registrations", "Attempts to register with kubelet"),
            dra_registered: add(
                counted,
                "dra_registered",
                "Whether kubelet has registered the DRA driver",
            ),
            surveys: add(counted, "surveys", "Reads of the host"),
            api_requests: add(counted, "api_requests", "Requests to the API server"),
            slices: add(counted, "slices", "ResourceSlices of this node on the API server"),
            published: add(counted, "published_devices", "Devices in ResourceSlices, by class"),
            allocated_ids: Mutex::default(),
            last_survey: Mutex::new((Instant::now(), false)),
            host_text: Mutex::default(),
            registry,
        }
    }
}

fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn to_old_format(text: &str) -> String {
    let counters: BTreeSet<String> = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_owned()))
        .collect();
    let mut older = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != END.trim_end()) {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(word), Some(name), Some(rest)) if counters.contains(name) => {
                older += &format!("# {word} {name}_total {rest}\n");
            }
            _ => {
                older += line;
                older.push('\n');
            }
        }
    }
    older
}

impl DaemonMetrics {
    /// Renders the metrics: the host's, and then our own, whose names have another prefix.
    pub fn render(&self) -> String {
        let host = self.host_text.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = host.clone();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Renders Prometheus's older text format 0.0.4, in which `_total` is a part of a counter's name.
    pub fn render_old(&self) -> String {
        to_old_format(&self.render())
    }

    pub fn count_api_request(&self, verb: &str, is_good: bool) {
        let labels = vec![("verb", verb.to_owned()), outcome_label(is_good)];
        self.api_requests.get_or_create(&labels).inc();
    }

    /// Sets the number of slices on the API server, and of their devices by class.
    pub fn set_published(&self, slices: usize, devices: &BTreeMap<Class, usize>) {
        self.slices.set(number(slices));
        for (class, devices) in devices {
            let labels = vec![("class", class.to_string())];
            self.published.get_or_create(&labels).set(number(*devices));
        }
    }

    pub fn set_resource(&self, resource: &Resource) {
        let (healthy, unhealthy) = resource.count();
        for (health, count) in [("healthy", healthy), ("unhealthy", unhealthy)] {
            let labels = vec![resource_label(&resource.name), ("health", health.to_owned())];
            self.devices.get_or_create(&labels).set(number(count));
        }
    }

    pub fn set_allocated<'i>(&self, name: &ResourceName, ids: impl Iterator<Item = &'i String>) {
        let mut allocated_ids = self.allocated_ids.lock().unwrap_or_else(PoisonError::into_inner);
        let of_resource = allocated_ids.entry(name.clone()).or_default();
        of_resource.extend(ids.cloned());
        let labels = vec![resource_label(name)];
        self.allocated.get_or_create(&labels).set(number(of_resource.len()));
    }

    pub fn set_registered(&self, name: &ResourceName, is_registered: bool) {
        let labels = vec![resource_label(name)];
        self.registered.get_or_create(&labels).set(i64::from(is_registered));
    }

    /// Returns whether a resource is registered with kubelet.
    pub fn is_registered(&self, name: &ResourceName) -> bool {
        let registered = self.registered.get(&vec![resource_label(name)]);
        registered.is_some_and(|registered| registered.get() == 1)
    }

    /// When the host was looked at last, and whether it could be read.
    pub fn last_survey(&self) -> (Instant, bool) {
        *self.last_survey.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn backdate(&self, by: Duration) {
        let mut last_survey = self.last_survey.lock().unwrap_or_else(PoisonError::into_inner);
        last_survey.0 = last_survey.0.checked_sub(by).unwrap();
    }

    pub fn count_registration(&self, name: &ResourceName, is_good: bool) {
        let labels = vec![resource_label(name), outcome_label(is_good)];
        self.registrations.get_or_create(&labels).inc();
    }

    pub fn set_dra_registered(&self, is_registered: bool) {
        self.dra_registered.set(i64::from(is_registered));
    }

    /// Returns whether the DRA driver is registered with kubelet.
    pub fn is_dra_registered(&self) -> bool {
        self.dra_registered.get() == 1
    }

    pub fn record_survey(&self, is_good: bool) {
        self.surveys.get_or_create(&vec![outcome_label(is_good)]).inc();
        let now = (Instant::now(), is_good);
        *self.last_survey.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Sets the host's metrics of the last survey, as `onload-ctk metrics` prints them.
    pub fn set_host_text(&self, text: &str) {
        let text = text.strip_suffix(END).unwrap_or(text);
        text.clone_into(&mut self.host_text.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn count_request(&self, method: &'static str, is_good: bool, took: Duration) {
        let method = ("method", method.to_owned());
        let labels = vec![method.clone(), outcome_label(is_good)];
        self.requests.get_or_create(&labels).inc();
        self.seconds.get_or_create(&vec![method]).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_counted_by_resource_method_and_outcome() {
        let metrics = DaemonMetrics::default();
        let name = ResourceName::onload_dev("nic").unwrap();
        metrics.set_resource(&Resource::empty(name.clone()));
        let ids = ["ens1-0".to_owned(), "ens1-1".to_owned()];
        metrics.set_allocated(&name, ids.iter());
        metrics.set_allocated(&name, ids.iter().take(1));
        metrics.set_registered(&name, true);
        metrics.count_registration(&name, false);
        metrics.count_request("Allocate", true, Duration::from_micros(300));
        metrics.set_host_text(
            "# TYPE onload_ctk_leases gauge\nonload_ctk_leases{class=\"vfio\"} 2\n# EOF\n",
        );
        metrics.set_host_text(
            "# TYPE onload_ctk_leases gauge\nonload_ctk_leases{class=\"vfio\"} 3\n# EOF\n",
        );
        metrics.record_survey(true);
        let text = metrics.render();
        for line in [
            r#"onload_kubernetes_devices{resource="onload.dev/nic",health="healthy"} 0"#,
            r#"onload_kubernetes_allocated_since_start{resource="onload.dev/nic"} 2"#,
            r#"onload_kubernetes_registered{resource="onload.dev/nic"} 1"#,
            r#"onload_kubernetes_registrations_total{resource="onload.dev/nic",outcome="error"} 1"#,
            r#"onload_kubernetes_requests_total{method="Allocate",outcome="ok"} 1"#,
            r#"onload_kubernetes_request_duration_seconds_bucket{le="0.0005",method="Allocate"} 1"#,
            r#"onload_ctk_leases{class="vfio"} 3"#,
            r#"onload_kubernetes_surveys_total{outcome="ok"} 1"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
        let older = metrics.render_old();
        assert!(older.contains("\n# HELP onload_kubernetes_requests_total Requests of kubelet.\n# TYPE onload_kubernetes_requests_total counter\n"), "{older}");
        assert!(
            !older.contains("EOF") && older.contains("\n# HELP onload_kubernetes_registered "),
            "{older}"
        );
        assert_eq!(older.lines().count() + 1, text.lines().count());
        assert_eq!(text.matches(END).count(), 1);
        assert_eq!(text.matches("onload_ctk_leases{").count(), 1);
        assert!(text.ends_with(END));
    }
}
