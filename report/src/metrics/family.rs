//! Families of metrics, and their text.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

const PREFIX: &str = "onload_ctk";

pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Debug)]
pub(super) struct MetricFamily {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricKind,
    pub(super) samples: Vec<(Labels, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Count,
    /// In bytes.
    Bytes,
    /// Seconds since 1970.
    Timestamp,
    /// A kernel counter. It is no counter of OpenMetrics, whose name has to end in `_total`: readers of the older
    /// format, node_exporter's textfile collector among them, know no such ending.
    Kernels,
}

impl MetricFamily {
    pub(super) fn new(
        name: &'static str,
        help: &'static str,
        kind: MetricKind,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) -> MetricFamily {
        MetricFamily { name, help, kind, samples: samples.into_iter().collect() }
    }
}

#[derive(Debug)]
struct FamilyCollector(Vec<MetricFamily>);

impl Collector for FamilyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in self.0.iter().filter(|family| !family.samples.is_empty()) {
            let unit = match family.kind {
                MetricKind::Bytes => Some(Unit::Bytes),
                MetricKind::Timestamp => Some(Unit::Seconds),
                MetricKind::Count | MetricKind::Kernels => None,
            };
            let kind = match family.kind {
                MetricKind::Kernels => MetricType::Unknown,
                _ => MetricType::Gauge,
            };
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
            for (labels, value) in &family.samples {
                if labels.is_empty() {
                    metric.encode_gauge(value)?;
                } else {
                    metric.encode_family(labels)?.encode_gauge(value)?;
                }
            }
        }
        Ok(())
    }
}

/// Renders text that readers of OpenMetrics 1.0 and of Prometheus's older format accept. Leaves out
/// the type `unknown`: the older format does not have it, and it is the default in both.
pub(super) fn render(families: Vec<MetricFamily>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(FamilyCollector(families)));
    let mut text = String::new();
    let _ = encode(&mut text, &registry);
    text.lines()
        .filter(|line| !(line.starts_with("# TYPE ") && line.ends_with(" unknown")))
        .map(|line| format!("{line}\n"))
        .collect()
}

pub(super) fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}
