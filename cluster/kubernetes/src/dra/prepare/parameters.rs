//! Opaque parameters: what a DeviceClass or a claim says of our devices beyond which ones it wants.

use std::fmt;

use anyhow::{Error, Result, anyhow, bail};
use onload_cdi::DeviceName;
use onload_core::netdev::address::InterfaceAddress;
use onload_host::offers::Offer;
use onload_sys::text::Quoted;
use serde_json::Value;

const KEYS: &str = "preload, profile, address";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Whether programs are accelerated without being changed; as configured if nobody says so.
    pub(crate) preload: Option<Said<bool>>,
    pub(crate) profile: Option<Said<DeviceName>>,
    /// What an interface that moves into a container is to have there.
    pub(crate) address: Option<Said<Addresses>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    Class,
    Claim,
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Author::Class => "the class",
            Author::Claim => "the claim",
        })
    }
}

/// Addresses, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) list: Vec<InterfaceAddress>,
    pub(crate) author: Author,
}

/// A value, and whether it was said of this request. Otherwise it is for all of the claim's devices that have a
/// use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said<T> {
    pub(crate) value: T,
    pub(crate) is_of_request: bool,
}

impl Parameters {
    pub(crate) fn parse(value: &Value, author: Author) -> Result<Parameters> {
        let Some(object) = value.as_object() else {
            bail!("they are no object; known keys are {KEYS}");
        };
        let mut parameters = Parameters::default();
        for (key, value) in object {
            match key.as_str() {
                "address" => {
                    let list = addresses(value)?;
                    parameters.address = Some(said(Addresses { list, author }));
                }
                "preload" => parameters.preload = Some(said(preload(value)?)),
                "profile" => parameters.profile = Some(said(profile(value)?)),
                _ => bail!("unknown key {}; known are {KEYS}", Quoted(key)),
            }
        }
        Ok(parameters)
    }

    /// Takes what others say, where they say something.
    pub(crate) fn override_by(&mut self, others: &Parameters, is_of_request: bool) {
        later(&mut self.preload, others.preload.as_ref(), is_of_request);
        later(&mut self.profile, others.profile.as_ref(), is_of_request);
        later(&mut self.address, others.address.as_ref(), is_of_request);
    }
}

fn later<T: Clone>(own: &mut Option<Said<T>>, other: Option<&Said<T>>, is_of_request: bool) {
    if let Some(other) = other {
        let value = other.value.clone();
        *own = Some(Said {
            value,
            is_of_request,
        });
    }
}

fn said<T>(value: T) -> Said<T> {
    Said {
        value,
        is_of_request: false,
    }
}

/// kubectl reads an `off` without quotes as false (YAML 1.1).
fn preload(value: &Value) -> Result<bool> {
    match (value.as_bool(), value.as_str()) {
        (Some(preload), _) => Ok(preload),
        (_, Some("on")) => Ok(true),
        (_, Some("off")) => Ok(false),
        _ => Err(not("preload", "on or off", value)),
    }
}

fn profile(value: &Value) -> Result<DeviceName> {
    let name = value.as_str().map(DeviceName::try_from);
    name.and_then(Result::ok)
        .ok_or_else(|| not("profile", "the name of an Onload profile", value))
}

/// One address, or a list of them.
fn addresses(value: &Value) -> Result<Vec<InterfaceAddress>> {
    let wanted = || not("address", "ADDRESS/PREFIX or a list of these", value);
    let one = std::slice::from_ref(value);
    let texts = value.as_array().map_or(one, Vec::as_slice);
    let parse = |text: &Value| -> Result<InterfaceAddress> {
        let text = text.as_str().ok_or_else(wanted)?;
        Ok(text.parse()?)
    };
    let list = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    if list.is_empty() {
        return Err(wanted());
    }
    Ok(list)
}

/// A parameter of a request that is for devices of another class.
pub(crate) fn misplaced(parameter: &str, wanted: &str, offer: &Offer) -> Error {
    anyhow!(
        "parameter {parameter} is for devices of class {wanted}, and {} is of class {}",
        offer.name,
        offer.class.as_str()
    )
}

fn not(key: &str, wanted: &str, value: &Value) -> Error {
    let found = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    anyhow!("{key} is {wanted}, and not {}", Quoted(&found))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(value: &Value) -> Parameters {
        Parameters::parse(value, Author::Claim).unwrap()
    }

    fn refusal(value: &Value) -> String {
        Parameters::parse(value, Author::Claim)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn both_keys_are_read() {
        let parsed = parsed(&json!({"preload": "off", "profile": "latency"}));
        assert!(!parsed.preload.unwrap().value);
        assert_eq!(parsed.profile.unwrap().value.as_str(), "latency");
        assert_eq!(
            Parameters::parse(&json!({}), Author::Claim).unwrap(),
            Parameters::default()
        );
    }

    #[test]
    fn the_preload_is_on_or_off_as_yaml_writes_it() {
        for (value, is) in [
            (json!("on"), true),
            (json!("off"), false),
            (json!(true), true),
            (json!(false), false),
        ] {
            let parsed = parsed(&json!({"preload": value}));
            assert_eq!(parsed.preload.unwrap().value, is);
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_its_key() {
        for key in ["addresses", "Preload", "preload ", "", "__proto__", "kind"] {
            let line = refusal(&json!({"preload": "off", key: "x"}));
            assert_eq!(
                line,
                format!("unknown key \"{key}\"; known are preload, profile, address")
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
            assert_eq!(
                refusal(&value),
                "they are no object; known keys are preload, profile, address"
            );
        }
    }

    #[test]
    fn an_address_is_one_or_a_list_and_keeps_who_says_it() {
        let of = |value: &Value| Parameters::parse(&json!({"address": value}), Author::Class);
        for (value, wanted) in [
            (json!("192.0.2.10/24"), vec!["192.0.2.10/24"]),
            (
                json!(["192.0.2.10/24", "2001:db8::10/64"]),
                vec!["192.0.2.10/24", "2001:db8::10/64"],
            ),
        ] {
            let said = of(&value).unwrap().address.unwrap().value;
            let list: Vec<String> = said.list.iter().map(ToString::to_string).collect();
            assert_eq!(
                (list, said.author),
                (
                    wanted.into_iter().map(str::to_owned).collect(),
                    Author::Class
                )
            );
        }
    }

    #[test]
    fn what_no_interface_can_have_is_no_address() {
        for (value, says) in [
            (json!("192.0.2.10"), "is not ADDRESS/PREFIX"),
            (json!("192.0.2.0/24"), "the address of its network"),
            (
                json!("192.0.2.255/24"),
                "the broadcast address of its network",
            ),
            (json!("127.0.0.1/8"), "a loopback address"),
            (
                json!("192.0.2.10/24, 192.0.2.11/24"),
                "is not ADDRESS/PREFIX",
            ),
            (json!("$(reboot)/24\n"), "is not ADDRESS/PREFIX"),
            (
                json!(["192.0.2.10/24", 3]),
                "address is ADDRESS/PREFIX or a list of these, and not",
            ),
            (
                json!([]),
                "address is ADDRESS/PREFIX or a list of these, and not",
            ),
            (
                json!(null),
                "address is ADDRESS/PREFIX or a list of these, and not",
            ),
        ] {
            let line = refusal(&json!({"address": value}));
            assert!(line.contains(says) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn what_is_said_later_goes_before_key_by_key() {
        let mut parameters = Parameters::default();
        let said = parsed;
        parameters.override_by(&said(&json!({"preload": "off", "profile": "a"})), false);
        parameters.override_by(&said(&json!({"profile": "b"})), true);
        let (preload, profile) = (parameters.preload.unwrap(), parameters.profile.unwrap());
        assert_eq!((preload.value, preload.is_of_request), (false, false));
        assert_eq!((profile.value.as_str(), profile.is_of_request), ("b", true));
    }
}
