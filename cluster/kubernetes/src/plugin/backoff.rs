//! How long to wait before something is tried again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(60);

/// Waits that double, with a random part, so that the plugins of a node do not all come at once.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(FIRST)
    }
}

impl Backoff {
    /// What was tried has worked for so long: after a minute the waits begin anew.
    pub(crate) fn held(&mut self, time: Duration) {
        if time >= MOST {
            *self = Backoff::default();
        }
    }

    /// The next wait: from half of it to all of it.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = MOST.min(wait * 2);
        // Without randomness the wait is the longest.
        jittered(wait, random().unwrap_or(u8::MAX))
    }
}

fn jittered(wait: Duration, random: u8) -> Duration {
    wait / 2 + wait * u32::from(random) / (2 * u32::from(u8::MAX))
}

pub(crate) fn random() -> Option<u8> {
    let mut byte = [0];
    let read = rustix::rand::getrandom(&mut byte, rustix::rand::GetRandomFlags::NONBLOCK);
    (read == Ok(1)).then_some(byte[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_begin_anew_after_what_has_held_for_a_minute() {
        let mut backoff = Backoff(MOST);
        backoff.held(MOST / 2);
        assert_eq!(backoff.0, MOST);
        backoff.held(MOST);
        assert_eq!(backoff.0, FIRST);
    }

    #[test]
    fn waits_double_up_to_a_minute() {
        let mut backoff = Backoff::default();
        for _ in 0..20 {
            let longest = backoff.0;
            let wait = backoff.next();
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?}");
        }
        assert_eq!(backoff.0, MOST);
    }

    #[test]
    fn the_random_part_is_at_most_half() {
        let second = Duration::from_secs(1);
        assert_eq!(jittered(second, 0), second / 2);
        assert_eq!(jittered(second, u8::MAX), second);
    }
}
