//! Reads what Nomad sends: a map in MessagePack, as go-cty writes it. Nomad has checked the types against the
//! schema; what a type does not say is checked here.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use onload_sys::text::Quoted;
use serde::Deserialize;

use super::duration;
use super::values::{Paths, Place, Probe, Settings, Slots, Way};

/// The most tasks that may have one device: a host with a hundred devices lists them in one message of gRPC.
const MAX_SLOTS: u32 = 1000;

fn refusal(name: &str, value: impl Display, remedy: &str) -> Error {
    anyhow!("setting {name} of the plugin is {value}; {remedy}")
}

/// A value of MessagePack that go-cty writes for the types of the schema.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Null(()),
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Value>),
}

/// The settings; without a configuration the defaults.
pub fn decode(bytes: &[u8]) -> Result<Settings> {
    if bytes.is_empty() {
        return Ok(Settings::default());
    }
    let values: Option<BTreeMap<String, Value>> =
        rmp_serde::from_slice(bytes).context("reading the plugin's configuration")?;
    Values(values.unwrap_or_default()).settings()
}

struct Values(BTreeMap<String, Value>);

impl Values {
    fn settings(&self) -> Result<Settings> {
        let usual = Settings::default();
        Ok(Settings {
            set_preload: self.bool("set_preload", usual.set_preload)?,
            mount_onload: self.bool("mount_onload", usual.mount_onload)?,
            need_nic: self.bool("need_nic", usual.need_nic)?,
            probe: self.probe(usual.probe)?,
            ignored_interfaces: self.texts("ignored_interfaces")?,
            slots: self.slots(usual.slots)?,
            paths: self.paths()?,
            has_runtime: self.has_runtime()?,
            fingerprint_period: match self.text("fingerprint_period")? {
                Some(text) => period(text)?,
                None => usual.fingerprint_period,
            },
            reserve_wait: match self.text("reserve_wait")? {
                Some(text) => time(
                    "reserve_wait",
                    text,
                    "write a time such as \"15s\", or \"0s\"",
                )?,
                None => usual.reserve_wait,
            },
        })
    }

    fn probe(&self, usual: Probe) -> Result<Probe> {
        Ok(Probe {
            nic: self.bool("probe_nic", usual.nic)?,
            xdp: self.bool("probe_xdp", usual.xdp)?,
            ptp: self.bool("probe_ptp", usual.ptp)?,
            pps: self.bool("probe_pps", usual.pps)?,
            rdma: self.bool("probe_rdma", usual.rdma)?,
            vfio: self.bool("probe_vfio", usual.vfio)?,
            netdev: self.bool("probe_netdev", usual.netdev)?,
            hugepages: self.bool("probe_hugepages", usual.hugepages)?,
            profile: self.bool("probe_profile", usual.profile)?,
        })
    }

    fn slots(&self, usual: Slots) -> Result<Slots> {
        Ok(Slots {
            nic: self.number("num_nic", usual.nic)?,
            ptp: self.number("num_ptp", usual.ptp)?,
            pps: self.number("num_pps", usual.pps)?,
            rdma: self.number("num_rdma", usual.rdma)?,
            hugepages: self.number("num_hugepages", usual.hugepages)?,
            profile: self.number("num_profile", usual.profile)?,
        })
    }

    fn paths(&self) -> Result<Paths> {
        let way = |host, task| -> Result<Way> {
            Ok(Way {
                host: self.place(host)?,
                task: self.place(task)?,
            })
        };
        Ok(Paths {
            device: way("host_device_path", "task_device_path")?,
            onload_lib: way("host_onload_lib_path", "task_onload_lib_path")?,
            onload_bin: way("host_onload_bin_path", "task_onload_bin_path")?,
            profile_dir: way("host_profile_dir_path", "task_profile_dir_path")?,
            zf_lib: way("host_zf_lib_path", "task_zf_lib_path")?,
            zf_bin: way("host_zf_bin_path", "task_zf_bin_path")?,
        })
    }

    fn has_runtime(&self) -> Result<bool> {
        let name = "runtime";
        match self.text(name)? {
            None | Some("") => Ok(false),
            Some("onload") => Ok(true),
            Some(other) => Err(refusal(
                name,
                Quoted(other),
                "write \"onload\" if the docker driver runs all tasks with that runtime, or leave it out",
            )),
        }
    }

    fn place(&self, name: &str) -> Result<Place> {
        let Some(text) = self.text(name)? else {
            return Ok(Place::Found);
        };
        let text = text.trim();
        if text.is_empty() {
            return Ok(Place::Nowhere);
        }
        let path = Path::new(text);
        let is_clear = path.components().all(|part| part != Component::ParentDir);
        if !path.is_absolute() || !is_clear {
            return Err(refusal(
                name,
                Quoted(text),
                "write an absolute path without \"..\", or \"\" to give tasks nothing of it",
            ));
        }
        // Without a slash at its end, and without empty parts.
        Ok(Place::At(path.components().collect::<PathBuf>()))
    }

    /// None where the setting is left out or null.
    fn get(&self, name: &str) -> Option<&Value> {
        let value = self.0.get(name);
        value.filter(|value| !matches!(value, Value::Null(())))
    }

    fn bool(&self, name: &str, usual: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(usual),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(other.refused(name, "true or false")),
        }
    }

    fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(other.refused(name, "a text")),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>> {
        let list = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::List(list)) => list,
            Some(other) => return Err(other.refused(name, "a list of texts")),
        };
        let texts = list.iter().map(|value| match value {
            Value::Text(text) => Ok(text.clone()),
            other => Err(other.refused(name, "a list of texts")),
        });
        texts.collect()
    }

    /// A number of tasks. A negative one is none, as in nomad-onload.
    fn number(&self, name: &str, usual: u32) -> Result<u32> {
        let number = match self.get(name) {
            None => return Ok(usual),
            Some(Value::Int(number)) => (*number).max(0),
            Some(other) => return Err(other.refused(name, "a whole number")),
        };
        let slots = u32::try_from(number).ok();
        slots
            .filter(|slots| *slots <= MAX_SLOTS)
            .ok_or_else(|| refusal(name, number, "write a number up to 1000"))
    }
}

impl Value {
    fn refused(&self, name: &str, wanted: &str) -> Error {
        let found = match self {
            Value::Null(()) => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Text(text) => Quoted(text).to_string(),
            Value::List(_) => "a list".to_owned(),
        };
        refusal(name, found, &format!("give it {wanted}"))
    }
}

fn period(text: &str) -> Result<Duration> {
    let (name, remedy) = (
        "fingerprint_period",
        "write a time such as \"1m\" or \"30s\"",
    );
    // In no time, everything would be looked at all the time.
    match time(name, text, remedy)? {
        Duration::ZERO => Err(refusal(name, Quoted(text), remedy)),
        period => Ok(period),
    }
}

fn time(name: &str, text: &str, remedy: &str) -> Result<Duration> {
    duration::parse(text).ok_or_else(|| refusal(name, Quoted(text), remedy))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::settings::table::{BOOL, NUMBER, TABLE, TEXT, TEXTS};

    fn packed(config: &Json) -> Vec<u8> {
        rmp_serde::to_vec(config).unwrap()
    }

    fn read(config: &Json) -> Result<Settings> {
        decode(&packed(config))
    }

    fn said(config: &Json) -> String {
        read(config).unwrap_err().to_string()
    }

    #[test]
    fn no_configuration_and_an_empty_one_are_the_defaults() {
        assert_eq!(decode(&[]).unwrap(), Settings::default());
        assert_eq!(read(&json!({})).unwrap(), Settings::default());
        assert_eq!(read(&Json::Null).unwrap(), Settings::default());
        let null = TABLE
            .iter()
            .map(|setting| (setting.name.to_owned(), Json::Null));
        assert_eq!(
            read(&null.collect::<serde_json::Map<_, _>>().into()).unwrap(),
            Settings::default()
        );
    }

    #[test]
    fn the_defaults_of_the_schema_are_those_without_a_configuration() {
        let values = TABLE.iter().map(|setting| {
            let value = setting
                .default
                .map_or(Json::Null, |literal| serde_json::from_str(literal).unwrap());
            (setting.name.to_owned(), value)
        });
        let all = values.collect::<serde_json::Map<_, _>>();
        assert_eq!(all.len(), TABLE.len());
        assert_eq!(read(&all.into()).unwrap(), Settings::default());
    }

    #[test]
    fn every_setting_has_an_effect() {
        for setting in TABLE {
            let value = match (setting.kind, setting.name) {
                (BOOL, _) => json!(setting.default != Some("true")),
                (NUMBER, _) => json!(3),
                (TEXTS, _) => json!(["ens1"]),
                (TEXT, "fingerprint_period" | "reserve_wait") => json!("1h30m"),
                (TEXT, "runtime") => json!("onload"),
                _ => json!("/opt/onload"),
            };
            let config = json!({ setting.name: value });
            assert_ne!(
                read(&config).unwrap(),
                Settings::default(),
                "{}",
                setting.name
            );
        }
    }

    #[test]
    fn a_setting_of_another_type_is_refused_by_name() {
        for setting in TABLE {
            let wrong = match setting.kind {
                NUMBER => json!(1.5),
                TEXTS => json!("ens1"),
                _ => json!(["a"]),
            };
            let said = said(&json!({ setting.name: wrong }));
            let begins = format!("setting {} of the plugin is ", setting.name);
            assert!(said.starts_with(&begins), "{said}");
        }
        assert_eq!(
            said(&json!({"num_nic": "ten"})),
            "setting num_nic of the plugin is \"ten\"; give it a whole number"
        );
        assert_eq!(
            decode(b"\xc1").unwrap_err().to_string(),
            "reading the plugin's configuration"
        );
    }

    #[test]
    fn a_directory_is_named_left_out_or_nowhere() {
        let of = |text: &str| {
            read(&json!({"host_onload_lib_path": text}))
                .unwrap()
                .paths
                .onload_lib
                .host
        };
        // The stanza of nomad-onload's examples ends with a slash, a default of its README begins with a space.
        assert_eq!(
            of("/usr/lib/x86_64-linux-gnu/"),
            Place::At("/usr/lib/x86_64-linux-gnu".into())
        );
        assert_eq!(
            of(" /usr/libexec/onload/profiles"),
            Place::At("/usr/libexec/onload/profiles".into())
        );
        assert_eq!(of(""), Place::Nowhere);
        for bad in ["usr/lib64", "/usr/../etc", "~"] {
            let said = said(&json!({"task_zf_bin_path": bad}));
            assert!(said.contains("absolute path without"), "{said}");
        }
    }

    #[test]
    fn a_number_of_slots_has_bounds() {
        let slots =
            |number: i64| read(&json!({"num_ptp": number})).map(|settings| settings.slots.ptp);
        assert_eq!(slots(1000).unwrap(), 1000);
        assert_eq!(slots(-5).unwrap(), 0);
        for bad in [1001, i64::MAX] {
            let said = slots(bad).unwrap_err().to_string();
            assert_eq!(
                said,
                format!("setting num_ptp of the plugin is {bad}; write a number up to 1000")
            );
        }
    }

    #[test]
    fn a_period_that_is_no_time_is_refused() {
        let settings = read(&json!({"fingerprint_period": "20ms"})).unwrap();
        assert_eq!(settings.fingerprint_period, Duration::from_millis(20));
        for bad in ["", "0s", "-1m", "often"] {
            let said = said(&json!({"fingerprint_period": bad}));
            assert!(
                said.ends_with("write a time such as \"1m\" or \"30s\""),
                "{said}"
            );
        }
    }

    #[test]
    fn a_reservation_may_wait_for_no_time_at_all() {
        let wait = |text: &str| read(&json!({"reserve_wait": text}));
        assert_eq!(wait("0s").unwrap().reserve_wait, Duration::ZERO);
        assert_eq!(wait("1m").unwrap().reserve_wait, Duration::from_secs(60));
        assert_eq!(
            wait("long").unwrap_err().to_string(),
            "setting reserve_wait of the plugin is \"long\"; write a time such as \"15s\", or \"0s\""
        );
    }

    #[test]
    fn only_our_runtime_is_a_word_of_the_operator() {
        assert!(!read(&json!({"runtime": ""})).unwrap().has_runtime);
        let said = said(&json!({"runtime": "runc"}));
        assert!(
            said.starts_with("setting runtime of the plugin is \"runc\"; write \"onload\""),
            "{said}"
        );
    }
}
