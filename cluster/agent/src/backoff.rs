//! Back-off between attempts, and random values for other uses.

use std::io;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

/// An exponential back-off with jitter, so that the agents of all hosts do not retry at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
    first: Duration,
    max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::new(Duration::from_millis(500), Duration::from_secs(60))
    }
}

impl Backoff {
    pub fn new(first: Duration, max: Duration) -> Self {
        Backoff { next: first, first, max }
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Records for how long the last attempt worked. Resets the back-off if this was at least the maximum wait.
    pub fn record_success(&mut self, time: Duration) {
        if time >= self.max {
            self.reset();
        }
    }

    /// Returns a random time between half of the current wait and all of it, and doubles the wait up to the maximum.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = self.max.min(wait * 2);
        // If the kernel has no random byte yet, the caller waits for the whole time.
        add_jitter(wait, random_byte().unwrap_or(u8::MAX))
    }
}

fn add_jitter(wait: Duration, random: u8) -> Duration {
    wait / 2 + wait * u32::from(random) / (2 * u32::from(u8::MAX))
}

/// Returns 32 random bits in hexadecimal digits, for unique names.
pub fn random_id() -> io::Result<String> {
    let mut bytes = [0; 4];
    // getrandom(2) always fills such a small buffer.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:08x}", u32::from_be_bytes(bytes)))
}

/// Returns a random byte, or `None` if the kernel's generator is not initialized yet (early at boot). Does not block.
pub fn random_byte() -> Option<u8> {
    let mut byte = [0];
    let read = getrandom(&mut byte, GetRandomFlags::NONBLOCK);
    (read == Ok(1)).then_some(byte[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_PAUSE: Duration = Duration::from_secs(60);

    #[test]
    fn waits_begin_anew_after_what_has_held_for_a_minute() {
        let mut backoff = Backoff { next: MAX_PAUSE, ..Backoff::default() };
        backoff.record_success(MAX_PAUSE / 2);
        assert_eq!(backoff.next, MAX_PAUSE);
        backoff.record_success(MAX_PAUSE);
        assert_eq!(backoff.next, backoff.first);
    }

    #[test]
    fn waits_double_up_to_a_minute() {
        let mut backoff = Backoff::default();
        for _ in 0..20 {
            let longest = backoff.next;
            let wait = backoff.next();
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?}");
        }
        assert_eq!(backoff.next, MAX_PAUSE);
    }

    #[test]
    fn the_random_part_is_at_most_half() {
        let second = Duration::from_secs(1);
        assert_eq!(add_jitter(second, 0), second / 2);
        assert_eq!(add_jitter(second, u8::MAX), second);
    }
}
