//! Lists of CPUs and other numbers as the kernel writes them: `0-3,8,10-11`
//! (Documentation/admin-guide/kernel-parameters.rst, "cpu lists").

use std::collections::BTreeSet;

/// Most CPUs that a kernel may be built for.
const MOST_CPUS: u32 = 65_536;

/// Reads a list of the kernel's; what is none gives nothing.
#[must_use]
pub fn parse(text: &str) -> BTreeSet<u32> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last < MOST_CPUS).then_some(first..=last)
    });
    ranges.flatten().collect()
}

/// Reads a list that a person wrote: not empty, and without anything else in it.
///
/// # Errors
/// [`NotList`].
pub fn read(text: &str) -> Result<BTreeSet<u32>, NotList> {
    let not = || NotList(text.to_owned());
    let mut numbers = BTreeSet::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| is_number)
        };
        let (first, last) = (number(first), number(last));
        let range = first.zip(last).filter(|(first, last)| first <= last);
        let (first, last) = range
            .filter(|(_, last)| *last < MOST_CPUS)
            .ok_or_else(not)?;
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

/// A text that is no list of numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no list of numbers such as \"0-3,8\"")]
pub struct NotList(pub String);

/// Writes a list.
#[must_use]
pub fn text(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let ranges = ranges.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    ranges.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_read_and_what_is_none_gives_nothing() {
        let cpus: Vec<u32> = parse("0-2,8,10-11\n").into_iter().collect();
        assert_eq!(cpus, [0, 1, 2, 8, 10, 11]);
        for text in ["", "\n", "a", "3-1", "0-4294967295", "-1"] {
            assert!(parse(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_list_of_a_person_is_whole_or_refused() {
        let cpus: Vec<u32> = read("0-2,8").unwrap().into_iter().collect();
        assert_eq!(cpus, [0, 1, 2, 8]);
        for text in [
            "", ",", "0,", "a", "3-1", "0-", "-1", "+1", "0 - 3", "0-65536", "0\n",
        ] {
            assert_eq!(read(text), Err(NotList(text.to_owned())), "{text:?}");
        }
    }

    #[test]
    fn a_list_is_written_as_it_was_read() {
        for list in ["", "0", "0-1", "0-2,8,10-11", "65535"] {
            assert_eq!(text(&parse(list)), list);
        }
    }
}
