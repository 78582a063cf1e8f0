//! Links that go up and down: each change would be a write for the API server, and an event for each scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use onload_core::class::Class;
use onload_host::offers::Offer;

use crate::dra::slices::trouble;

/// How long a device that came back for the second time has to stay, before anybody is told. Each time more it
/// is twice as long.
const FIRST: Duration = Duration::from_secs(10);
const MOST: Duration = Duration::from_secs(300);
/// A device that was well for so long has no history.
const FORGIVEN: Duration = Duration::from_secs(600);

type Key = (Class, String);

/// What is known of devices that have been unhealthy.
#[derive(Debug, Default)]
pub(super) struct Damper {
    devices: BTreeMap<Key, History>,
}

#[derive(Clone, Copy, Debug)]
struct History {
    /// How often it went away.
    times: u32,
    /// Since when it is well; none if it is not.
    well: Option<Instant>,
}

impl History {
    /// How long it has to be well before it counts. That it went away once is told as it is.
    fn hold(self) -> Duration {
        match self.times.checked_sub(2) {
            None => Duration::ZERO,
            Some(more) => MOST.min(FIRST * 2_u32.saturating_pow(more.min(16))),
        }
    }
}

impl Damper {
    /// The devices that are well at this moment, and have been away too often to be believed; when one of them
    /// is believed again. A device that goes away is told of at once.
    pub(super) fn look(
        &mut self,
        offers: &[Offer],
        now: Instant,
    ) -> (BTreeSet<Key>, Option<Instant>) {
        let mut there = BTreeSet::new();
        for offer in offers {
            let is_well = trouble(offer).is_none();
            if is_well && self.devices.is_empty() {
                continue;
            }
            let key = (offer.class, offer.name.to_string());
            self.note(key.clone(), is_well, now);
            there.insert(key);
        }
        self.devices.retain(|key, history| {
            let since = history.well.map(|since| now.duration_since(since));
            there.contains(key) && since.is_none_or(|since| since < FORGIVEN)
        });
        let mut unsteady = BTreeSet::new();
        let mut next: Option<Instant> = None;
        for (key, history) in &self.devices {
            let Some(until) = history.well.map(|since| since + history.hold()) else {
                continue;
            };
            if until > now {
                unsteady.insert(key.clone());
                next = Some(next.map_or(until, |other| other.min(until)));
            }
        }
        (unsteady, next)
    }

    fn note(&mut self, key: Key, is_well: bool, now: Instant) {
        match (self.devices.get_mut(&key), is_well) {
            (None, true) => {}
            (None, false) => {
                let history = History {
                    times: 1,
                    well: None,
                };
                self.devices.insert(key, history);
            }
            (Some(history), true) => {
                history.well.get_or_insert(now);
            }
            (Some(history), false) => {
                if history.well.take().is_some() {
                    history.times += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use onload_host::offers::Health;

    use super::*;
    use crate::dra::test_offers::offer;

    fn link(is_up: bool) -> [Offer; 2] {
        let mut ens1 = offer(Class::Nic, "ens1");
        if !is_up {
            ens1.health = Health::Unhealthy("its link is down".to_owned());
        }
        [ens1, offer(Class::Nic, "ens2")]
    }

    #[test]
    fn one_loss_of_a_link_is_told_as_it_is() {
        let (mut damper, start) = (Damper::default(), Instant::now());
        for (second, is_up) in [(0, true), (1, false), (60, true), (61, true)] {
            let now = start + Duration::from_secs(second);
            let (unsteady, next) = damper.look(&link(is_up), now);
            assert!(unsteady.is_empty() && next.is_none(), "{second}");
        }
    }

    #[test]
    fn a_link_that_flaps_is_believed_later_each_time() {
        let (mut damper, start) = (Damper::default(), Instant::now());
        let mut now = start;
        for hold in [0, 10, 20, 40, 80, 160, 300, 300] {
            now += Duration::from_secs(1);
            assert!(damper.look(&link(false), now).0.is_empty());
            now += Duration::from_secs(1);
            let (unsteady, next) = damper.look(&link(true), now);
            let ens1 = BTreeSet::from([(Class::Nic, "ens1".to_owned())]);
            match hold {
                0 => assert!(unsteady.is_empty()),
                hold => {
                    assert_eq!(unsteady, ens1);
                    let until = now + Duration::from_secs(hold);
                    assert_eq!(next, Some(until));
                    let (unsteady, next) = damper.look(&link(true), until);
                    assert!(unsteady.is_empty() && next.is_none());
                    now = until;
                }
            }
        }
    }

    #[test]
    fn a_link_that_was_well_for_long_has_no_history() {
        let (mut damper, start) = (Damper::default(), Instant::now());
        for second in 0..20 {
            let now = start + Duration::from_secs(second);
            damper.look(&link(second % 2 == 1), now);
        }
        let later = start + Duration::from_secs(20) + FORGIVEN;
        assert!(damper.look(&link(true), later).0.is_empty());
        assert!(damper.devices.is_empty());
        damper.look(&link(false), later);
        assert!(damper.look(&link(true), later).0.is_empty());
    }

    #[test]
    fn a_device_that_is_gone_is_forgotten() {
        let mut damper = Damper::default();
        damper.look(&link(false), Instant::now());
        damper.look(&[], Instant::now());
        assert!(damper.devices.is_empty());
    }

    /// How often the API server is told of a link that goes away and comes back with that period, in an hour.
    fn writes(period: u64) -> usize {
        let (mut damper, start) = (Damper::default(), Instant::now());
        let mut told = true;
        let mut writes = 0;
        for second in 0..3600 {
            let is_up = second % period != 0;
            let now = start + Duration::from_secs(second);
            let (unsteady, _) = damper.look(&link(is_up), now);
            let is_well = is_up && unsteady.is_empty();
            writes += usize::from(is_well != told);
            told = is_well;
        }
        writes
    }

    #[test]
    fn a_link_is_at_most_40_writes_an_hour_however_it_flaps() {
        let periods = [5, 11, 12, 15, 21, 41, 81, 161, 301, 302, 310, 400, 600];
        let most = periods.into_iter().map(writes).max().unwrap();
        assert!((20..=40).contains(&most), "{most}");
        // One that never stays is told of three times.
        assert_eq!(writes(2), 3);
    }
}
