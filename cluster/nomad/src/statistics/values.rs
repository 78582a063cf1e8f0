//! Values of statistics, with what they are.

use crate::wire::structs::StatValue;

pub(super) fn count(number: u64, unit: &str, desc: &str) -> StatValue {
    StatValue {
        int_numerator_val: Some(i64::try_from(number).unwrap_or(i64::MAX)),
        unit: unit.to_owned(),
        desc: desc.to_owned(),
        ..StatValue::default()
    }
}

/// So many of so many.
pub(super) fn part(number: u64, of: u64, unit: &str, desc: &str) -> StatValue {
    StatValue {
        int_denominator_val: Some(i64::try_from(of).unwrap_or(i64::MAX)),
        ..count(number, unit, desc)
    }
}
