//! The values of attributes, with placeholders for unknown ones.

use std::collections::BTreeMap;

use onload_sys::text::parse_digits;

/// The attributes of a device. All devices of one class have the same keys, because a Kubernetes selector fails for all
/// devices if one of them lacks a key. Unknown values are an empty text, 0, or version 0.0.0.
pub type Attributes = BTreeMap<&'static str, Attribute>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Int(i64),
    Bool(bool),
    /// A version of three numbers (`MAJOR.MINOR.PATCH` of Semantic Versioning 2.0.0).
    Version(String),
}

/// Returns a text, empty if unknown.
pub(super) fn text(text: Option<&str>) -> Attribute {
    Attribute::Text(text.unwrap_or_default().to_owned())
}

/// Returns a number, 0 if unknown. Larger numbers become the maximum.
pub(super) fn int(number: Option<u64>) -> Attribute {
    Attribute::Int(i64::try_from(number.unwrap_or(0)).unwrap_or(i64::MAX))
}

pub(super) fn count(number: usize) -> Attribute {
    int(u64::try_from(number).ok())
}

/// Returns the first three numbers of a version such as `9.0.2.140`, or 0.0.0 if it does not start with three numbers.
/// Kubernetes compares versions of exactly three numbers without leading zeros (Semantic Versioning 2.0.0).
pub(super) fn version(text: Option<&str>) -> Attribute {
    let numbers = text.and_then(parse_three_numbers).unwrap_or_default();
    let [major, minor, patch] = numbers;
    Attribute::Version(format!("{major}.{minor}.{patch}"))
}

fn parse_three_numbers(text: &str) -> Option<[u64; 3]> {
    let mut parts = text.split('.');
    let mut numbers = [0; 3];
    for number in &mut numbers {
        *number = parse_digits(parts.next()?)?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_three_numbers() {
        let version = |text| match version(text) {
            Attribute::Version(version) => version,
            other => panic!("{other:?}"),
        };
        assert_eq!(version(Some("9.0.2.140")), "9.0.2");
        assert_eq!(version(Some("20.31.1014")), "20.31.1014");
        assert_eq!(version(Some("22.35.08")), "22.35.8");
        for unknown in [
            None,
            Some(""),
            Some("9.1"),
            Some("9.1.x"),
            Some("9.+1.0"),
            Some("ef17681d 2026-07-22 master"),
            Some("1.2.99999999999999999999"),
        ] {
            assert_eq!(version(unknown), "0.0.0", "{unknown:?}");
        }
    }

    #[test]
    fn a_number_that_does_not_fit_is_the_largest() {
        assert_eq!(int(Some(u64::MAX)), Attribute::Int(i64::MAX));
        assert_eq!(int(None), Attribute::Int(0));
    }
}
