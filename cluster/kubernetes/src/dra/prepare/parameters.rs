//! Opaque parameters: what a DeviceClass or a claim says of our devices beyond which ones it wants.

use onload_cdi::DeviceName;
use onload_core::text::Quoted;
use serde_json::Value;

/// The keys.
const KEYS: &str = "preload, profile";

/// What is said of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Whether programs are accelerated without being changed; as configured if nobody says so.
    pub(crate) preload: Option<Said<bool>>,
    /// The Onload profile whose settings a container gets.
    pub(crate) profile: Option<Said<DeviceName>>,
}

/// A value, and whether it was said of this request. Otherwise it is for all of the claim's devices that have a
/// use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said<T> {
    pub(crate) value: T,
    pub(crate) is_of_request: bool,
}

/// Why parameters are not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParametersError {
    /// It is something else.
    #[error("they are no object; known keys are {KEYS}")]
    Form,
    /// A later version may know it.
    #[error("unknown key {}; known are {KEYS}", Quoted(.0))]
    Unknown(String),
    /// A value is of another kind.
    #[error("{key} is {wanted}, and not {}", Quoted(.found))]
    Value {
        /// The key.
        key: &'static str,
        /// What it has to be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
}

impl Parameters {
    /// Reads them.
    ///
    /// # Errors
    /// [`ParametersError`] with the first key that is not understood.
    pub(crate) fn parse(value: &Value) -> Result<Parameters, ParametersError> {
        let object = value.as_object().ok_or(ParametersError::Form)?;
        let mut parameters = Parameters::default();
        for (key, value) in object {
            match key.as_str() {
                "preload" => parameters.preload = Some(said(preload(value)?)),
                "profile" => parameters.profile = Some(said(profile(value)?)),
                _ => return Err(ParametersError::Unknown(key.clone())),
            }
        }
        Ok(parameters)
    }

    /// Takes what others say, where they say something.
    pub(crate) fn override_by(&mut self, others: &Parameters, is_of_request: bool) {
        if let Some(preload) = &others.preload {
            self.preload = Some(Said {
                is_of_request,
                ..preload.clone()
            });
        }
        if let Some(profile) = &others.profile {
            self.profile = Some(Said {
                is_of_request,
                ..profile.clone()
            });
        }
    }
}

fn said<T>(value: T) -> Said<T> {
    Said {
        value,
        is_of_request: false,
    }
}

/// kubectl reads an `off` without quotes as false (YAML 1.1).
fn preload(value: &Value) -> Result<bool, ParametersError> {
    match (value.as_bool(), value.as_str()) {
        (Some(preload), _) => Ok(preload),
        (_, Some("on")) => Ok(true),
        (_, Some("off")) => Ok(false),
        _ => Err(ParametersError::Value {
            key: "preload",
            wanted: "on or off",
            found: shown(value),
        }),
    }
}

fn profile(value: &Value) -> Result<DeviceName, ParametersError> {
    let name = value.as_str().map(DeviceName::try_from);
    name.and_then(Result::ok)
        .ok_or_else(|| ParametersError::Value {
            key: "profile",
            wanted: "the name of an Onload profile",
            found: shown(value),
        })
}

fn shown(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(value: &Value) -> String {
        Parameters::parse(value).unwrap_err().to_string()
    }

    #[test]
    fn both_keys_are_read() {
        let parsed = Parameters::parse(&json!({"preload": "off", "profile": "latency"})).unwrap();
        assert!(!parsed.preload.unwrap().value);
        assert_eq!(parsed.profile.unwrap().value.as_str(), "latency");
        assert_eq!(Parameters::parse(&json!({})), Ok(Parameters::default()));
    }

    #[test]
    fn the_preload_is_on_or_off_as_yaml_writes_it() {
        for (value, is) in [
            (json!("on"), true),
            (json!("off"), false),
            (json!(true), true),
            (json!(false), false),
        ] {
            let parsed = Parameters::parse(&json!({"preload": value})).unwrap();
            assert_eq!(parsed.preload.unwrap().value, is);
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_its_key() {
        for key in ["address", "Preload", "preload ", "", "__proto__", "kind"] {
            let line = refusal(&json!({"preload": "off", key: "x"}));
            assert_eq!(
                line,
                format!("unknown key \"{key}\"; known are preload, profile")
            );
        }
        let line = refusal(&json!({"x\n".repeat(5_000): {}}));
        assert!(line.len() < 400 && !line.contains('\n'), "{line}");
    }

    #[test]
    fn values_of_another_kind_are_refused() {
        for value in [
            json!("file"),
            json!("env"),
            json!(1),
            json!(null),
            json!(["off"]),
            json!(""),
        ] {
            let line = refusal(&json!({"preload": value}));
            assert!(
                line.starts_with("preload is on or off, and not \""),
                "{line}"
            );
        }
        for value in [
            json!(""),
            json!("a/b"),
            json!("../x"),
            json!(3),
            json!("a=b"),
            json!("a\nb"),
        ] {
            let line = refusal(&json!({"profile": value}));
            assert!(
                line.starts_with("profile is the name of an Onload profile, and not"),
                "{line}"
            );
            assert!(!line.contains('\n'));
        }
        for value in [json!(null), json!([]), json!("preload"), json!(1)] {
            assert_eq!(Parameters::parse(&value), Err(ParametersError::Form));
        }
    }

    #[test]
    fn what_is_said_later_goes_before_key_by_key() {
        let mut parameters = Parameters::default();
        let said = |value: &Value| Parameters::parse(value).unwrap();
        parameters.override_by(&said(&json!({"preload": "off", "profile": "a"})), false);
        parameters.override_by(&said(&json!({"profile": "b"})), true);
        let (preload, profile) = (parameters.preload.unwrap(), parameters.profile.unwrap());
        assert_eq!((preload.value, preload.is_of_request), (false, false));
        assert_eq!((profile.value.as_str(), profile.is_of_request), ("b", true));
    }
}
