//! Durations in Go's format (`time.ParseDuration`).

use std::time::Duration;

/// The units in nanoseconds, longer names before their prefixes.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("μs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];
const MAX_NANOSECONDS: f64 = 9_223_372_036_854_775_807.0;

/// Parses a duration that is not negative, such as `1m`, `1h30m` or `1.5s`.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let number: f64 = number.parse().ok()?;
        let (tail, size) =
            UNITS.iter().find_map(|(name, size)| Some((tail.strip_prefix(name)?, size)))?;
        nanos += number * size;
        rest = tail;
    }
    let is_time = text.ends_with(char::is_alphabetic) && nanos <= MAX_NANOSECONDS;
    is_time.then(|| Duration::from_secs_f64(nanos / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_go_writes_it() {
        let times = [
            ("1m", 60_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("+20ms", 20),
            ("0", 0),
            ("0s", 0),
            ("1m0.25s", 60_250),
        ];
        for (text, millis) in times {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("3µs"), Some(Duration::from_micros(3)));
    }

    #[test]
    fn what_go_refuses_and_negative_times_are_refused() {
        for bad in
            ["", "1", "m", "-1m", "1 m", "1d", "1m5", "1..5s", ".s", "+", "1e3s", "9999999999h"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
