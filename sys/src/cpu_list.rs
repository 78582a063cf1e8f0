//! Lists of CPUs and other numbers as the kernel writes them: `0-3,8,10-11`
//! (Documentation/admin-guide/kernel-parameters.rst, "cpu lists").

use std::collections::BTreeSet;

use crate::error::{Result, bail};
use crate::text::parse_digits;

/// Most CPUs that a kernel may be built for.
const MAX_CPUS: u32 = 65_536;

/// Reads a list of the kernel's, which may be empty. Linux 5.16 and its next ones end it with a null byte
/// (`cpumap_print_list_to_buf` in lib/cpumask.c). A list that is only partly readable is an error: a part
/// would be taken for all of it.
pub fn parse_kernel_list(text: &str) -> Result<BTreeSet<u32>> {
    let list = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\0');
    if list.is_empty() {
        return Ok(BTreeSet::new());
    }
    parse_user_list(list)
}

/// Reads a list that a person wrote: not empty, and without anything else in it.
pub fn parse_user_list(text: &str) -> Result<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (parse_digits::<u32>(first), parse_digits(last)) {
            (Some(first), Some(last)) if first <= last && last < MAX_CPUS => {
                numbers.extend(first..=last);
            }
            _ => bail!("{text:?} is no list of numbers such as \"0-3,8\""),
        }
    }
    Ok(numbers)
}

pub fn format_list(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let ranges = ranges.into_iter().map(|(first, last)| {
        if first == last {
            return first.to_string();
        }
        format!("{first}-{last}")
    });
    ranges.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_read_whole_or_not_at_all() {
        for text in ["0-2,8,10-11\n", "0-2,8,10-11\n\0", "0-2,8,10-11\0"] {
            let cpus: Vec<u32> = parse_kernel_list(text).unwrap().into_iter().collect();
            assert_eq!(cpus, [0, 1, 2, 8, 10, 11], "{text:?}");
        }
        for text in ["", "\n", "\n\0"] {
            assert_eq!(parse_kernel_list(text), Ok(BTreeSet::new()), "{text:?}");
        }
        for text in ["a", "3-1", "0-4294967295", "-1", "0-3,8-1", "0-3,", "0-3\0,8"] {
            let message = parse_kernel_list(text).unwrap_err().to_string();
            assert_eq!(message, format!("{text:?} is no list of numbers such as \"0-3,8\""));
        }
    }

    #[test]
    fn a_list_of_a_person_is_whole_or_refused() {
        let cpus: Vec<u32> = parse_user_list("0-2,8").unwrap().into_iter().collect();
        assert_eq!(cpus, [0, 1, 2, 8]);
        for text in ["", ",", "0,", "a", "3-1", "0-", "-1", "+1", "0 - 3", "0-65536", "0\n"] {
            let message = parse_user_list(text).unwrap_err().to_string();
            assert_eq!(message, format!("{text:?} is no list of numbers such as \"0-3,8\""));
        }
    }

    #[test]
    fn a_list_is_written_as_it_was_read() {
        for list in ["", "0", "0-1", "0-2,8,10-11", "65535"] {
            assert_eq!(format_list(&parse_kernel_list(list).unwrap()), list);
        }
    }
}
