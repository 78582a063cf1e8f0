//! The state of this node's slices on the server, and the slices to write.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube_client::core::{PartialObjectMeta, WatchEvent};

use crate::dra::slices::SliceSummary;

#[derive(Debug, Default)]
pub(super) struct ServerSlices {
    /// Slices by name. The content of one that another client changed is unknown.
    slices: BTreeMap<String, ServerSlice>,
    /// The highest generation seen of each pool.
    generations: BTreeMap<String, i64>,
}

#[derive(Debug)]
struct ServerSlice {
    version: String,
    summary: Option<SliceSummary>,
}

impl ServerSlices {
    /// Records a slice as stored on the server.
    pub(super) fn record(&mut self, name: String, summary: SliceSummary) {
        let generation = self.generations.entry(summary.pool.clone()).or_default();
        *generation = summary.generation.max(*generation);
        let slice = ServerSlice { version: summary.version.clone(), summary: Some(summary) };
        self.slices.insert(name, slice);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.slices.remove(name);
    }

    /// Applies an event of the watch. Returns whether another client has changed a slice.
    pub(super) fn apply_event(
        &mut self,
        event: WatchEvent<PartialObjectMeta<ResourceSlice>>,
    ) -> bool {
        let (head, is_deleted) = match event {
            WatchEvent::Added(head) | WatchEvent::Modified(head) => (head, false),
            WatchEvent::Deleted(head) => (head, true),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return false,
        };
        let name = head.metadata.name.unwrap_or_default();
        let version = head.metadata.resource_version.unwrap_or_default();
        let before = self.slices.get(&name).map(|slice| slice.version.as_str());
        let is_old = before.is_some_and(|before| is_older(&version, before));
        if is_old || before == (!is_deleted).then_some(version.as_str()) {
            return false;
        }
        if is_deleted {
            self.slices.remove(&name);
        } else {
            let summary = None;
            self.slices.insert(name, ServerSlice { version, summary });
        }
        true
    }

    fn pool_slices(&self, pool: &str) -> impl Iterator<Item = (&String, &SliceSummary)> {
        self.slices
            .iter()
            .filter_map(|(name, slice)| Some((name, slice.summary.as_ref()?)))
            .filter(move |(_, summary)| summary.pool == pool)
    }

    /// Returns whether slots are devices in a pool, or `None` if it has no shared device.
    pub(super) fn has_slot_devices(&self, pool: &str) -> Option<bool> {
        self.pool_slices(pool).find_map(|(_, summary)| summary.is_numbered)
    }

    /// Returns the generation with which all slices of a pool must be written, or `None` if they are up to date. A pool
    /// with several slices gets a new generation with each change, because the slices of a generation count together. A
    /// single slice keeps its generation.
    pub(super) fn generation(&self, pool: &str, desired: &[(String, String)]) -> Option<i64> {
        let existing: BTreeMap<&String, &SliceSummary> = self.pool_slices(pool).collect();
        let count = i64::try_from(desired.len()).unwrap_or(i64::MAX);
        let generations: BTreeSet<i64> =
            existing.values().map(|summary| summary.generation).collect();
        let are_current = desired.iter().all(|(name, fingerprint)| {
            existing.get(name).is_some_and(|summary| {
                summary.fingerprint == *fingerprint && summary.count == count
            })
        });
        if are_current && existing.len() <= desired.len() && generations.len() <= 1 {
            return None;
        }
        let highest = self.generations.get(pool).copied().unwrap_or(0);
        let is_alone = desired.len() == 1 && existing.keys().all(|name| **name == desired[0].0);
        Some(if is_alone { highest.max(1) } else { highest + 1 })
    }

    /// Returns the slices to delete: those neither desired nor in a pool that is kept. The pool of a slice that another
    /// client wrote is unknown.
    pub(super) fn stray_slices(
        &self,
        desired: &BTreeSet<String>,
        is_kept: impl Fn(Option<&str>) -> bool,
    ) -> Vec<String> {
        let mut strays = Vec::new();
        for (name, slice) in &self.slices {
            let pool = slice.summary.as_ref().map(|summary| summary.pool.as_str());
            if !desired.contains(name) && !is_kept(pool) {
                strays.push(name.clone());
            }
        }
        strays
    }

    pub(super) fn len(&self) -> usize {
        self.slices.len()
    }
}

/// Returns whether a resource version is older than another. They are numbers (KEP-5504).
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::Device;
    use kube_client::core::PartialObjectMetaExt;
    use serde_json::json;

    use super::*;
    use crate::dra::slices::fingerprint;

    fn head(name: &str, version: &str) -> PartialObjectMeta<ResourceSlice> {
        let version = version.parse().unwrap();
        slice(name, version, 0, 0).metadata.into_response_partial()
    }

    fn slice(name: &str, version: u64, generation: i64, count: i64) -> ResourceSlice {
        let mut slice = ResourceSlice::default();
        slice.metadata.name = Some(name.to_owned());
        slice.metadata.resource_version = Some(version.to_string());
        slice.spec.pool.name = "n1/nic".to_owned();
        slice.spec.pool.generation = generation;
        slice.spec.pool.resource_slice_count = count;
        slice.spec.devices =
            Some(vec![Device { name: format!("in-{name}"), ..Default::default() }]);
        slice
    }

    fn wanted(names: &[&str]) -> Vec<(String, String)> {
        let wanted = names.iter().map(|name| {
            let fingerprint = fingerprint(&slice(name, 0, 0, 0));
            ((*name).to_owned(), fingerprint)
        });
        wanted.collect()
    }

    fn server(slices: &[ResourceSlice]) -> ServerSlices {
        let mut server = ServerSlices::default();
        for slice in slices {
            let name = slice.metadata.name.clone().unwrap();
            server.record(name, SliceSummary::from_slice(slice));
        }
        server
    }

    #[test]
    fn what_is_right_is_left_alone() {
        let server = server(&[slice("a", 1, 7, 2), slice("b", 2, 7, 2)]);
        assert_eq!(server.generation("n1/nic", &wanted(&["a", "b"])), None);
        assert_eq!(ServerSlices::default().generation("n1/nic", &[]), None);
    }

    #[test]
    fn a_pool_of_several_slices_gets_a_new_generation_and_all_are_written() {
        for slices in [
            vec![slice("a", 1, 7, 2)],
            vec![slice("a", 1, 7, 2), slice("b", 2, 6, 2)],
            vec![slice("a", 1, 7, 3), slice("b", 2, 7, 3)],
            vec![slice("a", 1, 7, 2), slice("b", 2, 7, 2), slice("c", 3, 7, 2)],
        ] {
            let generation = server(&slices).generation("n1/nic", &wanted(&["a", "b"]));
            assert_eq!(generation, Some(8), "{slices:?}");
        }
        assert_eq!(ServerSlices::default().generation("n1/nic", &wanted(&["a", "b"])), Some(1));
    }

    #[test]
    fn a_slice_alone_keeps_its_generation() {
        let mut other = slice("a", 1, 7, 1);
        other.spec.devices = None;
        assert_eq!(server(&[other]).generation("n1/nic", &wanted(&["a"])), Some(7));
        // Unless there were others.
        let server = server(&[slice("a", 1, 7, 2), slice("b", 1, 7, 2)]);
        assert_eq!(server.generation("n1/nic", &wanted(&["a"])), Some(8));
        assert_eq!(ServerSlices::default().generation("n1/nic", &wanted(&["a"])), Some(1));
    }

    #[test]
    fn a_generation_is_never_used_again_after_all_slices_were_deleted() {
        let mut server = server(&[slice("a", 1, 7, 2), slice("b", 2, 7, 2)]);
        for name in ["a", "b"] {
            assert!(server.apply_event(WatchEvent::Deleted(head(name, "9"))));
        }
        assert_eq!(server.len(), 0);
        let generation = server.generation("n1/nic", &wanted(&["a", "b"]));
        assert_eq!(generation, Some(8));
    }

    #[test]
    fn the_echo_of_an_own_write_is_no_news() {
        let mut server = server(&[slice("a", 12, 7, 1)]);
        let applied = |version: &str| WatchEvent::Modified(head("a", version));
        let mark = json!({"kind": "", "apiVersion": "", "metadata": {"resourceVersion": "99"}});
        let bookmark = WatchEvent::Bookmark(serde_json::from_value(mark).unwrap());
        for echo in [applied("12"), applied("11"), bookmark] {
            assert!(!server.apply_event(echo.clone()), "{echo:?}");
        }
        // A deletion that was before the write.
        assert!(!server.apply_event(WatchEvent::Deleted(head("a", "11"))));
        assert_eq!(server.generation("n1/nic", &wanted(&["a"])), None);
        assert!(server.apply_event(applied("13")));
        assert_eq!(server.generation("n1/nic", &wanted(&["a"])), Some(7));
    }

    #[test]
    fn what_nobody_wants_is_a_stray() {
        let mut server = server(&[slice("a", 1, 7, 1)]);
        server.apply_event(WatchEvent::Added(head("b", "5")));
        let wanted = BTreeSet::from(["a".to_owned()]);
        assert_eq!(server.stray_slices(&wanted, |_| false), ["b"]);
    }

    #[test]
    fn a_slice_of_a_pool_that_is_left_as_it_is_is_no_stray() {
        let server = server(&[slice("a", 1, 7, 1)]);
        let none = BTreeSet::new();
        assert_eq!(server.stray_slices(&none, |pool| pool == Some("n1/nic")), [""; 0]);
        assert_eq!(server.stray_slices(&none, |pool| pool == Some("n1/vfio")), ["a"]);
    }
}
