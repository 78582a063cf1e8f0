//! Merges bursts of events: loading a driver causes thousands.

use std::time::{Duration, Instant};

/// How long to wait for further events of the same change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damping {
    /// A burst ends after this long without an event.
    pub quiet: Duration,
    /// The maximum duration of a burst.
    pub longest: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Burst {
    first: Instant,
    last: Instant,
}

impl Burst {
    pub(super) fn begin(now: Instant) -> Burst {
        Burst { first: now, last: now }
    }

    pub(super) fn extend(&mut self, now: Instant) {
        self.last = now;
    }

    /// Returns when the burst ends if no further event arrives.
    pub(super) fn end(&self, damping: Damping) -> Instant {
        let quiet = self.last + damping.quiet;
        quiet.min(self.first + damping.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_ends_when_it_is_quiet_or_has_lasted_too_long() {
        let ms = Duration::from_millis;
        let damping = Damping { quiet: ms(200), longest: ms(2000) };
        let start = Instant::now();
        let mut burst = Burst::begin(start);
        assert_eq!(burst.end(damping), start + ms(200));
        burst.extend(start + ms(150));
        assert_eq!(burst.end(damping), start + ms(350));
        burst.extend(start + ms(1900));
        assert_eq!(burst.end(damping), start + ms(2000));
    }
}
