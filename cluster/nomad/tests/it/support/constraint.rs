//! A job's constraints, as Nomad's server holds them against attributes (plugins/shared/structs/attribute.go and units.go
//! of 1.10.5). `recorded/parsed-1.10.5.txt` has what its own code makes of some texts.

use onload_nomad::wire::structs::Attribute;
use onload_nomad::wire::structs::attribute::Value;

const UNITS: [&str; 34] = [
    "KiB/s", "MiB/s", "GiB/s", "TiB/s", "PiB/s", "EiB/s", "kB/s", "KB/s", "MB/s", "GB/s", "TB/s",
    "PB/s", "EB/s", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "MHz", "GHz", "kB", "KB", "MB", "GB",
    "TB", "PB", "EB", "mW", "kW", "MW", "GW", "W", "",
];
const TRUE: [&str; 6] = ["1", "t", "T", "TRUE", "true", "True"];
const FALSE: [&str; 6] = ["0", "f", "F", "FALSE", "false", "False"];

/// `ParseAttribute`: a number with or without a unit, a truth value, or else a text.
pub(crate) fn parse(input: &str) -> Attribute {
    let unit = UNITS.into_iter().find(|unit| input.ends_with(unit)).unwrap_or_default();
    let numeric = match unit {
        "" => input,
        unit => input.strip_suffix(unit).unwrap().trim(),
    };
    let attribute = |value, unit: &str| Attribute { value: Some(value), unit: unit.to_owned() };
    if let Ok(number) = numeric.parse() {
        return attribute(Value::IntVal(number), unit);
    }
    if let Some(number) = float(numeric) {
        return attribute(Value::FloatVal(number), unit);
    }
    if TRUE.contains(&input) || FALSE.contains(&input) {
        return attribute(Value::BoolVal(TRUE.contains(&input)), "");
    }
    attribute(Value::StringVal(input.to_owned()), "")
}

/// `strconv.ParseFloat`: what Rust reads, and hexadecimal digits with an exponent.
fn float(text: &str) -> Option<f64> {
    let digits = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let is_hexadecimal = digits.strip_prefix("0x").is_some_and(|rest| rest.contains('p'));
    if is_hexadecimal {
        return Some(f64::NAN);
    }
    let number: f64 = text.replace('_', "").parse().ok()?;
    // One that is too large is none.
    (number.is_finite() || !digits.starts_with(|c: char| c.is_ascii_digit())).then_some(number)
}

/// Whether an attribute meets `OPERATOR VALUE`. Values of different types never do.
pub(crate) fn meets(attribute: &Attribute, operator: &str, value: &str) -> bool {
    let wanted = parse(value);
    let number = |attribute: &Attribute| match attribute.value {
        #[allow(clippy::cast_precision_loss, reason = "the numbers are small")]
        Some(Value::IntVal(number)) => Some(number as f64),
        Some(Value::FloatVal(number)) => Some(number),
        _ => None,
    };
    match (operator, number(attribute), number(&wanted)) {
        (">=", Some(is), Some(wants)) => attribute.unit == wanted.unit && is >= wants,
        ("=", None, None) => attribute.value == wanted.value,
        ("=", Some(is), Some(wants)) => {
            attribute.unit == wanted.unit && (is - wants).abs() < f64::EPSILON
        }
        ("=" | ">=", ..) => false,
        _ => panic!("{operator} is not written down here"),
    }
}
