//! Opaque parameters: configuration of our devices in a DeviceClass or claim.
//!
//! `packaging/kubernetes/dra/parameters.yaml` makes the same checks as [`Parameters::parse`] when the object is
//! created, as far as the API server can, with the same messages.

use std::fmt;

use anyhow::{Context, Error, Result, anyhow, bail};
use onload_cdi::DeviceName;
use onload_core::host_settings::Vlan;
use onload_core::netdev::address::InterfaceAddress;
use onload_core::netdev::new_name::NewInterfaceName;
use onload_core::netdev::settings::{InterfaceRoute, Mtu};
use onload_host::offers::HostDevice;
use onload_sys::text::Quoted;
use serde_json::{Map, Value};

const KEYS: [&str; 7] = ["preload", "profile", "name", "mtu", "vlan", "address", "routes"];
/// Limit for the parameters of an entry in bytes (`OpaqueParametersMaxLength` of k8s.io/api/resource/v1).
const MAX_BYTES: usize = 10 << 10;
/// Limit for a text in a message, in bytes.
const MAX_SHOWN: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Whether Onload is preloaded into programs; as configured if unset.
    pub(crate) preload: Option<Parameter<bool>>,
    pub(crate) profile: Option<Parameter<DeviceName>>,
    /// The name of an interface in the container.
    pub(crate) name: Option<Parameter<NewInterfaceName>>,
    pub(crate) mtu: Option<Parameter<Mtu>>,
    /// The VLAN of its virtual function.
    pub(crate) vlan: Option<Parameter<Vlan>>,
    pub(crate) address: Option<Parameter<Vec<InterfaceAddress>>>,
    pub(crate) routes: Option<Parameter<Vec<InterfaceRoute>>>,
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

/// A value, its source, and whether it is for this request. Otherwise it is for all of the claim's devices to which it
/// applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter<T> {
    pub(crate) value: T,
    pub(crate) author: Author,
    pub(crate) is_of_request: bool,
}

impl Parameters {
    pub(crate) fn parse_json(text: &str, author: Author) -> Result<Parameters> {
        if text.len() > MAX_BYTES {
            bail!("they are longer than {MAX_BYTES} bytes");
        }
        Parameters::parse(&serde_json::from_str(text)?, author)
    }

    pub(crate) fn parse(value: &Value, author: Author) -> Result<Parameters> {
        let keys = KEYS.join(", ");
        let Some(object) = value.as_object() else {
            bail!("they are no object; known keys are {keys}");
        };
        let unknown = object.keys().filter(|key| !KEYS.contains(&key.as_str()));
        match unknown.min() {
            Some(key) if is_plain(key) => bail!("unknown key {}; known are {keys}", Quoted(key)),
            Some(_) => bail!("an unknown key; known are {keys}"),
            None => {}
        }
        Ok(Parameters {
            preload: read(object, author, "preload", parse_preload)?,
            profile: read(object, author, "profile", parse_profile)?,
            name: read(object, author, "name", parse_name)?,
            mtu: read(object, author, "mtu", parse_mtu)?,
            vlan: read(object, author, "vlan", parse_vlan)?,
            address: read(object, author, "address", parse_addresses)?,
            routes: read(object, author, "routes", parse_routes)?,
        })
    }

    /// Overrides the values that `other` sets.
    pub(crate) fn override_with(&mut self, other: &Parameters, is_of_request: bool) {
        override_parameter(&mut self.preload, other.preload.as_ref(), is_of_request);
        override_parameter(&mut self.profile, other.profile.as_ref(), is_of_request);
        override_parameter(&mut self.name, other.name.as_ref(), is_of_request);
        override_parameter(&mut self.mtu, other.mtu.as_ref(), is_of_request);
        override_parameter(&mut self.vlan, other.vlan.as_ref(), is_of_request);
        override_parameter(&mut self.address, other.address.as_ref(), is_of_request);
        override_parameter(&mut self.routes, other.routes.as_ref(), is_of_request);
    }
}

fn override_parameter<T: Clone>(
    target: &mut Option<Parameter<T>>,
    other: Option<&Parameter<T>>,
    is_of_request: bool,
) {
    if let Some(other) = other {
        *target = Some(Parameter { is_of_request, ..other.clone() });
    }
}

fn read<T>(
    object: &Map<String, Value>,
    author: Author,
    key: &str,
    parse: fn(&Value) -> Result<T>,
) -> Result<Option<Parameter<T>>> {
    object
        .get(key)
        .map(|value| Ok(Parameter { value: parse(value)?, author, is_of_request: false }))
        .transpose()
}

/// Parses `preload`. kubectl reads an `off` without quotes as false (YAML 1.1).
fn parse_preload(value: &Value) -> Result<bool> {
    match (value.as_bool(), value.as_str()) {
        (Some(preload), _) => Ok(preload),
        (_, Some("on")) => Ok(true),
        (_, Some("off")) => Ok(false),
        _ => Err(type_error("preload", "on or off", value)),
    }
}

fn parse_profile(value: &Value) -> Result<DeviceName> {
    value
        .as_str()
        .map(DeviceName::try_from)
        .and_then(Result::ok)
        .ok_or_else(|| type_error("profile", "the name of an Onload profile", value))
}

fn parse_name(value: &Value) -> Result<NewInterfaceName> {
    let name = value.as_str().and_then(|name| name.parse().ok());
    name.ok_or_else(|| {
        let expected = "1 to 15 letters, digits, dots, dashes and underscores with a letter or digit first, other than eth0, lo, all and default";
        type_error("name", expected, value)
    })
}

fn parse_mtu(value: &Value) -> Result<Mtu> {
    let mtu = value.as_i64().and_then(|number| Mtu::try_from(number).ok());
    mtu.ok_or_else(|| type_error("mtu", "a number of bytes from 68 to 65535", value))
}

fn parse_vlan(value: &Value) -> Result<Vlan> {
    let number = value.as_i64().and_then(|number| u16::try_from(number).ok());
    let vlan = number.and_then(|number| Vlan::try_from(number).ok());
    vlan.ok_or_else(|| type_error("vlan", "a VLAN from 1 to 4094, or 0 for none", value))
}

fn parse_addresses(value: &Value) -> Result<Vec<InterfaceAddress>> {
    let texts = parse_texts("address", "ADDRESS/PREFIX or a list of these", value)?;
    texts.into_iter().map(str::parse).collect::<Result<_, _>>().context("address")
}

fn parse_routes(value: &Value) -> Result<Vec<InterfaceRoute>> {
    let expected = "NETWORK, NETWORK via GATEWAY, or a list of these";
    let texts = parse_texts("routes", expected, value)?;
    texts.into_iter().map(str::parse).collect::<Result<_, _>>().context("routes")
}

/// Parses one text or a list of texts.
fn parse_texts<'a>(key: &str, expected: &str, value: &'a Value) -> Result<Vec<&'a str>> {
    let one = std::slice::from_ref(value);
    let all = value.as_array().map_or(one, Vec::as_slice);
    let texts: Option<Vec<&str>> =
        all.iter().map(|text| text.as_str().filter(|text| is_plain(text))).collect();
    texts.filter(|texts| !texts.is_empty()).ok_or_else(|| type_error(key, expected, value))
}

/// Returns the error for a parameter that does not apply to the devices of its request.
pub(crate) fn misplaced_error(parameter: &str, expected: &str, device: &HostDevice) -> Error {
    anyhow!(
        "parameter {parameter} is for devices of class {expected}, and {} is of class {}",
        device.name,
        device.class.as_str()
    )
}

fn type_error(key: &str, expected: &str, value: &Value) -> Error {
    let shown = match value {
        Value::String(text) => is_plain(text).then(|| text.clone()),
        Value::Bool(is) => Some(is.to_string()),
        Value::Number(number) => number.as_i64().map(|number| number.to_string()),
        _ => None,
    };
    match shown {
        Some(shown) => anyhow!("{key} is {expected}, and not {}", Quoted(&shown)),
        None => anyhow!("{key} is {expected}"),
    }
}

/// Returns whether a message shows a text unescaped. The admission policy cannot escape other texts.
fn is_plain(text: &str) -> bool {
    text.len() <= MAX_SHOWN
        && text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !b"\"'\\".contains(&byte))
}

#[cfg(test)]
mod tests {
    use onload_host::specdir::sha256;
    use onload_test_tree::sample::sources;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    fn parsed(value: &Value) -> Parameters {
        Parameters::parse(value, Author::Claim).unwrap()
    }

    fn refusal(value: &Value) -> String {
        let refused = Parameters::parse(value, Author::Claim).unwrap_err();
        format!("{refused:#}")
    }

    /// The error with which Kubernetes rejected an object with these parameters by the policy. `None` if it accepted the object.
    #[derive(Deserialize)]
    struct Answer {
        resource: String,
        parameters: Value,
        answer: Option<String>,
    }

    fn recorded(name: &str) -> String {
        let directory = sources().join("cluster/kubernetes/tests/recorded/parameters-1.36.2");
        std::fs::read_to_string(directory.join(name)).unwrap()
    }

    fn answers() -> Vec<Answer> {
        let lines = recorded("answers.jsonl");
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn what_is_refused_when_it_is_made_is_what_the_daemon_refuses_and_with_the_same_words() {
        let answers = answers();
        for Answer { resource, parameters, answer } in &answers {
            let author = match resource.as_str() {
                "deviceclasses" => Author::Class,
                _ => Author::Claim,
            };
            let refused = Parameters::parse(parameters, author)
                .err()
                .map(|error| format!("parameters of {author}: {error:#}"));
            assert_eq!(refused, *answer, "{parameters}");
        }
        let refused = answers.iter().filter(|one| one.answer.is_some()).count();
        assert!(refused > 100 && answers.len() - refused > 20, "{refused}");
    }

    #[test]
    fn those_answers_are_of_the_policy_that_is_shipped() {
        let path = sources().join("packaging/kubernetes/dra/parameters.yaml");
        let objects = std::fs::read_to_string(path).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&objects).unwrap();
        let spec = objects[0]["spec"].to_string();
        assert_eq!(
            recorded("policy.sha256").trim_end(),
            sha256(spec.as_bytes()),
            "parameters.yaml is not the policy that gave these answers: record the answers of Kubernetes again, as their README says"
        );
    }

    #[test]
    fn the_daemon_knows_of_addresses_what_the_policy_cannot_tell() {
        for (address, says) in [
            ("192.0.2.255/24", "is the broadcast address of its network"),
            ("::ffff:192.0.2.1/128", "is an IPv4-mapped IPv6 address"),
        ] {
            let line = refusal(&json!({"address": address}));
            assert!(line.contains(says), "{line}");
        }
    }

    #[test]
    fn every_key_is_read() {
        let parsed = parsed(
            &json!({"preload": "off", "profile": "latency", "name": "net1", "mtu": 9000, "vlan": 100,
            "address": ["192.0.2.10/24", "2001:db8::10/64"], "routes": "198.51.100.0/24 via 192.0.2.1"}),
        );
        assert!(!parsed.preload.unwrap().value);
        assert_eq!(parsed.profile.unwrap().value.as_str(), "latency");
        assert_eq!(parsed.name.unwrap().value.as_str(), "net1");
        assert_eq!(parsed.mtu.unwrap().value.get(), 9000);
        assert_eq!(parsed.vlan.unwrap().value.number(), 100);
        let texts = |texts: &[String]| texts.join(", ");
        let addresses: Vec<String> =
            parsed.address.unwrap().value.iter().map(ToString::to_string).collect();
        assert_eq!(texts(&addresses), "192.0.2.10/24, 2001:db8::10/64");
        let routes: Vec<String> =
            parsed.routes.unwrap().value.iter().map(ToString::to_string).collect();
        assert_eq!(texts(&routes), "198.51.100.0/24 via 192.0.2.1");
        assert_eq!(Parameters::parse(&json!({}), Author::Claim).unwrap(), Parameters::default());
    }

    #[test]
    fn the_preload_is_on_or_off_as_yaml_writes_it() {
        for (value, is) in
            [(json!("on"), true), (json!("off"), false), (json!(true), true), (json!(false), false)]
        {
            let parsed = parsed(&json!({"preload": value}));
            assert_eq!(parsed.preload.unwrap().value, is);
        }
    }

    #[test]
    fn a_refusal_is_one_short_line_whatever_it_refuses() {
        let long = "x\n".repeat(5_000);
        for value in [
            json!({long.clone(): {}}),
            json!({"profile": long.clone()}),
            json!({"address": [long.clone()]}),
            json!({"name": vec![long; 3]}),
        ] {
            let line = refusal(&value);
            assert!(line.len() < 400 && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn what_is_said_later_goes_before_key_by_key_and_keeps_who_said_it() {
        let mut parameters = Parameters::default();
        let class = json!({"preload": "off", "profile": "a", "mtu": 9000});
        let class = Parameters::parse(&class, Author::Class).unwrap();
        parameters.override_with(&class, false);
        parameters.override_with(&parsed(&json!({"profile": "b"})), true);
        let preload = parameters.preload.unwrap();
        assert_eq!((preload.author, preload.is_of_request), (Author::Class, false));
        let profile = parameters.profile.unwrap();
        assert_eq!(profile.value.as_str(), "b");
        assert_eq!((profile.author, profile.is_of_request), (Author::Claim, true));
        assert_eq!(parameters.mtu.unwrap().value.get(), 9000);
    }
}
