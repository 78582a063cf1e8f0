//! Events with rate limits. A repeated Event of an object increments the count of the first one. kubelet retries a
//! rejected claim every minute, and a link can go up and down all day: each object has a few Events at once and then
//! one in five minutes, and all objects together one per second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use onload_host::specdir::sha256;
use serde_json::{Value, json};

use crate::dra::DRIVER;
use crate::names::{NodeName, truncate};

/// Limit for a note in bytes (`NoteLengthLimit` of k8s.io/kubernetes/pkg/apis/core/validation).
const MAX_NOTE: usize = 1024;
/// Limit for the name of the reporter in bytes (`ReportingInstanceLengthLimit`).
const MAX_INSTANCE: usize = 128;
/// Limit for the object's name in the name of its Event, in bytes.
const MAX_NAME: usize = 200;
/// Rate for each object: number at once, and interval for further ones.
const OBJECT_RATE: (u32, Duration) = (5, Duration::from_secs(300));
/// Rate for all objects together.
const TOTAL_RATE: (u32, Duration) = (50, Duration::from_secs(1));
/// Time after which an Event is forgotten, so that a repetition creates another one.
const MAX_QUIET: Duration = Duration::from_secs(1800);
/// Limit for remembered Events.
const MAX_REMEMBERED: usize = 512;

/// The reason for an Event.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventReason {
    name: &'static str,
    /// The action that was taken or attempted.
    action: &'static str,
}

pub(super) const PREPARE_REFUSED: EventReason =
    EventReason { name: "PrepareRefused", action: "Prepare" };
pub(super) const DEVICE_UNHEALTHY: EventReason =
    EventReason { name: "DeviceUnhealthy", action: "Watch" };

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EventWrite {
    New(Box<Event>),
    /// A repetition, with the namespace and name of the Event.
    Again(String, String, Value),
}

#[derive(Debug)]
pub(super) struct EventLog {
    instance: String,
    all: TokenBucket,
    of_objects: BTreeMap<String, TokenBucket>,
    earlier: BTreeMap<String, EarlierEvent>,
}

#[derive(Debug)]
struct EarlierEvent {
    name: String,
    count: i32,
    last: Instant,
}

/// A token bucket: a number at once, and one more per interval.
#[derive(Debug)]
struct TokenBucket {
    remaining: u32,
    filled: Instant,
}

impl TokenBucket {
    fn new_full((max, _): (u32, Duration), now: Instant) -> TokenBucket {
        TokenBucket { remaining: max, filled: now }
    }

    fn refill(&mut self, (max, every): (u32, Duration), now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs() / every.as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.remaining = self.remaining.saturating_add(passed).min(max);
        self.filled += every * passed.min(max);
        if self.remaining == max {
            self.filled = now;
        }
    }
}

impl EventLog {
    pub(super) fn new(node: &NodeName, now: Instant) -> EventLog {
        EventLog {
            instance: truncate(&format!("{DRIVER}-{node}"), MAX_INSTANCE).to_owned(),
            all: TokenBucket::new_full(TOTAL_RATE, now),
            of_objects: BTreeMap::new(),
            earlier: BTreeMap::new(),
        }
    }

    /// Returns the write for an Event of an object, which has a namespace, a name and a uid. `None` if the rate limit
    /// is exceeded.
    pub(super) fn record(
        &mut self,
        regarding: ObjectReference,
        related: Option<ObjectReference>,
        reason: EventReason,
        note: &str,
        now: Instant,
    ) -> Option<EventWrite> {
        let object = regarding.uid.clone()?;
        if !self.is_allowed(&object, now) {
            return None;
        }
        let key = sha256(format!("{object} {} {note}", reason.name).as_bytes());
        let time = MicroTime(Timestamp::now());
        if let Some(before) = self.earlier.get_mut(&key) {
            before.count = before.count.saturating_add(1);
            before.last = now;
            let change = json!({"series": {"count": before.count, "lastObservedTime": time}});
            return Some(EventWrite::Again(regarding.namespace?, before.name.clone(), change));
        }
        let object_name = regarding.name.clone()?;
        // The time makes names differ between starts of this program.
        let unique = sha256(format!("{key} {:?}", time.0).as_bytes());
        // A DNS label must end with a letter or digit.
        let object_name = truncate(&object_name, MAX_NAME).trim_end_matches(['-', '.']);
        let name = format!("{object_name}.{}", truncate(&unique, 16));
        let before = EarlierEvent { name: name.clone(), count: 1, last: now };
        self.earlier.insert(key, before);
        Some(EventWrite::New(Box::new(Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(time),
            reporting_controller: Some(DRIVER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(reason.action.to_owned()),
            reason: Some(reason.name.to_owned()),
            type_: Some("Warning".to_owned()),
            note: Some(truncate(note, MAX_NOTE).to_owned()),
            regarding: Some(regarding),
            related,
            ..Event::default()
        })))
    }

    /// Forgets an Event that was not written or is gone, so that the next one is created again.
    pub(super) fn forget(&mut self, name: &str) {
        self.earlier.retain(|_, before| before.name != name);
    }

    fn is_allowed(&mut self, object: &str, now: Instant) -> bool {
        let is_fresh = |last: Instant| now.saturating_duration_since(last) < MAX_QUIET;
        if self.earlier.len() >= MAX_REMEMBERED || self.of_objects.len() >= MAX_REMEMBERED {
            self.earlier.retain(|_, before| is_fresh(before.last));
            self.of_objects.retain(|_, bucket| is_fresh(bucket.filled));
        }
        self.all.refill(TOTAL_RATE, now);
        let is_known =
            self.of_objects.contains_key(object) || self.of_objects.len() < MAX_REMEMBERED;
        if self.all.remaining == 0 || !is_known || self.earlier.len() >= MAX_REMEMBERED {
            return false;
        }
        let full = TokenBucket::new_full(OBJECT_RATE, now);
        let bucket = self.of_objects.entry(object.to_owned()).or_insert(full);
        bucket.refill(OBJECT_RATE, now);
        if bucket.remaining == 0 {
            return false;
        }
        bucket.remaining -= 1;
        self.all.remaining -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some("default".to_owned()),
            name: Some("web".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    fn events(now: Instant) -> EventLog {
        EventLog::new(&"n1".parse().unwrap(), now)
    }

    fn record_note(
        events: &mut EventLog,
        uid: &str,
        note: &str,
        now: Instant,
    ) -> Option<EventWrite> {
        events.record(pod(uid), None, DEVICE_UNHEALTHY, note, now)
    }

    #[test]
    fn the_same_of_an_object_is_a_number_in_its_first_event() {
        let now = Instant::now();
        let mut events = events(now);
        let Some(EventWrite::New(event)) = record_note(&mut events, "u1", "link down", now) else {
            panic!("it is not said");
        };
        let name = event.metadata.name.unwrap();
        assert!(name.starts_with("web.") && name.len() == 20, "{name}");
        assert_eq!(event.note.as_deref(), Some("link down"));
        assert_eq!(event.reporting_instance.as_deref(), Some("onload.dev-n1"));
        let Some(EventWrite::Again(namespace, again, change)) =
            record_note(&mut events, "u1", "link down", now)
        else {
            panic!("it is another");
        };
        assert_eq!((namespace.as_str(), &again), ("default", &name));
        assert_eq!(change["series"]["count"], 2);
        for (uid, note) in [("u1", "gone"), ("u2", "link down")] {
            let other = record_note(&mut events, uid, note, now);
            assert!(matches!(other, Some(EventWrite::New(_))), "{uid} {note}");
        }
        // Its Event was not written, or was deleted.
        events.forget(&name);
        let anew = record_note(&mut events, "u1", "link down", now);
        assert!(matches!(anew, Some(EventWrite::New(_))));
    }

    #[test]
    fn an_object_has_five_at_once_and_then_one_in_five_minutes() {
        let start = Instant::now();
        let mut events = events(start);
        let mut count = |from: u64, to: u64| {
            (from..to)
                .map(|second| start + Duration::from_secs(second))
                .filter(|now| record_note(&mut events, "u1", "link down", *now).is_some())
                .count()
        };
        assert_eq!(count(0, 290), 5);
        assert_eq!(count(290, 3600), 11);
    }

    #[test]
    fn all_objects_together_have_one_a_second() {
        let start = Instant::now();
        let mut events = events(start);
        let mut written = 0;
        for second in 0..10_u64 {
            let now = start + Duration::from_secs(second);
            for object in 0..200 {
                let uid = format!("u{second}-{object}");
                written += usize::from(record_note(&mut events, &uid, "gone", now).is_some());
            }
        }
        assert_eq!(written, 59);
    }

    #[test]
    fn objects_without_end_take_no_memory_without_end() {
        let start = Instant::now();
        let mut events = events(start);
        let mut last = 0;
        for minute in 0..1000_u64 {
            let now = start + Duration::from_secs(60 * minute);
            for object in 0..60 {
                let uid = format!("u{minute}-{object}");
                if record_note(&mut events, &uid, "gone", now).is_some() {
                    last = minute;
                }
            }
            assert!(events.earlier.len() <= MAX_REMEMBERED);
            assert!(events.of_objects.len() <= MAX_REMEMBERED);
        }
        assert!(last > 990, "it is silent since {last}");
    }

    #[test]
    fn a_name_that_is_cut_ends_with_a_letter_or_digit() {
        let now = Instant::now();
        let name = format!("{}-.{}", "a".repeat(198), "b".repeat(20));
        let pod = ObjectReference { name: Some(name), ..pod("u1") };
        let written = events(now).record(pod, None, DEVICE_UNHEALTHY, "link down", now);
        let Some(EventWrite::New(event)) = written else {
            panic!("it is not said");
        };
        let name = event.metadata.name.unwrap();
        assert!(name.starts_with(&format!("{}.", "a".repeat(198))), "{name}");
    }

    #[test]
    fn a_note_is_cut() {
        let now = Instant::now();
        let event = record_note(&mut events(now), "u1", &"é".repeat(2000), now);
        let Some(EventWrite::New(event)) = event else {
            panic!("it is not said");
        };
        assert_eq!(event.note.unwrap().len(), 1024);
    }
}
