//! Converts scalars of YAML as the engines' library does (Go's yaml.v2 behind sigs.k8s.io/yaml): if a
//! field requires text, numbers and booleans are converted to text (`name: 010` names the device `8`).

use serde_json::Value;

/// The fields that are numbers or booleans.
const NOT_TEXT: [&str; 8] =
    ["major", "minor", "fileMode", "uid", "gid", "timeout", "additionalGids", "enableMonitoring"];

/// Converts the scalars in the value of the field `key` to the types of their fields.
pub(crate) fn convert_scalars(key: &str, value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                // The names of annotations are not fields.
                convert_scalars(if key == "annotations" { key } else { name }, member);
            }
        }
        Value::Array(elements) => {
            elements.iter_mut().for_each(|element| convert_scalars(key, element));
        }
        Value::Bool(_) | Value::Number(_) if !NOT_TEXT.contains(&key) => {
            *value = Value::from(to_text(value));
        }
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().and_then(as_integer) {
                *value = Value::from(whole);
            }
        }
        _ => {}
    }
}

fn to_text(scalar: &Value) -> String {
    match scalar.as_f64().filter(|_| scalar.is_f64()) {
        Some(number) => format_float(number),
        None => scalar.to_string(),
    }
}

/// Formats a number as the library does: Go's `strconv.FormatFloat`, format `g`, 32 bits.
fn format_float(number: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "the library rounds to 32 bits too")]
    let number = number as f32;
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return number.to_string();
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => number.to_string(),
    }
}

/// Converts a number without a fraction to an integer.
fn as_integer(number: f64) -> Option<i64> {
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole and below 2^53, so the integer is the number"
    )]
    (number.fract() == 0.0 && number.abs() <= LIMIT).then_some(number as i64)
}
