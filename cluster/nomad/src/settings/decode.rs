//! Decodes the settings from Nomad: a MessagePack map written by go-cty. Nomad has checked the types against the
//! schema; other constraints are checked here.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use onload_sys::text::Quoted;
use serde::Deserialize;
use serde_json::Value;

use super::duration;
use super::table::{Setting, SettingField, TABLE};
use super::values::{DirSetting, PluginSettings};

/// Limit for the tasks of one device: a host with a hundred devices lists all slots in one gRPC message.
const MAX_SLOTS: u32 = 1000;

fn setting_error(name: &str, value: impl Display, remedy: &str) -> Error {
    anyhow!("setting {name} of the plugin is {value}; {remedy}")
}

/// Decodes the settings. An empty configuration gives the defaults.
pub fn decode(bytes: &[u8]) -> Result<PluginSettings> {
    let mut settings = PluginSettings::default();
    if bytes.is_empty() {
        return Ok(settings);
    }
    let values: Option<BTreeMap<String, Value>> =
        rmp_serde::from_slice(bytes).context("reading the plugin's configuration")?;
    for setting in TABLE {
        // Null is the same as a missing setting.
        match values.as_ref().and_then(|values| values.get(setting.name)) {
            None | Some(Value::Null) => {}
            Some(value) => set(&mut settings, setting, value)?,
        }
    }
    Ok(settings)
}

fn set(settings: &mut PluginSettings, setting: &Setting, value: &Value) -> Result<()> {
    let name = setting.name;
    let text = || value.as_str().ok_or_else(|| type_error(name, value, "a text"));
    match setting.field {
        SettingField::Bool(field) => {
            let flag = value.as_bool();
            *field(settings) = flag.ok_or_else(|| type_error(name, value, "true or false"))?;
        }
        SettingField::Slots(field) => *field(settings) = parse_slots(name, value)?,
        SettingField::Place(field) => *field(settings) = parse_dir(name, text()?)?,
        SettingField::Texts(field) => {
            *field(settings) =
                Vec::deserialize(value).map_err(|_| type_error(name, value, "a list of texts"))?;
        }
        SettingField::Period => settings.fingerprint_period = parse_period(name, text()?)?,
        SettingField::Wait => {
            let remedy = "write a time such as \"15s\", or \"0s\"";
            settings.reserve_wait = parse_duration(name, text()?, remedy)?;
        }
        SettingField::Runtime => settings.has_runtime = parse_runtime_switch(name, text()?)?,
    }
    Ok(())
}

fn type_error(name: &str, value: &Value, expected: &str) -> Error {
    setting_error(name, value, &format!("give it {expected}"))
}

/// Parses a number of tasks. As in nomad-onload, negative numbers mean none.
fn parse_slots(name: &str, value: &Value) -> Result<u32> {
    let number = value.as_i64().ok_or_else(|| type_error(name, value, "a whole number"))?.max(0);
    match u32::try_from(number) {
        Ok(slots) if slots <= MAX_SLOTS => Ok(slots),
        _ => Err(setting_error(name, number, "write a number up to 1000")),
    }
}

fn parse_dir(name: &str, text: &str) -> Result<DirSetting> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(DirSetting::Nowhere);
    }
    let path = Path::new(text);
    let is_clear = path.components().all(|part| part != Component::ParentDir);
    if !path.is_absolute() || !is_clear {
        return Err(setting_error(
            name,
            Quoted(text),
            "write an absolute path without \"..\", or \"\" to omit it",
        ));
    }
    // Removes trailing slashes and empty components.
    Ok(DirSetting::At(path.components().collect::<PathBuf>()))
}

fn parse_runtime_switch(name: &str, text: &str) -> Result<bool> {
    match text {
        "" => Ok(false),
        "onload" => Ok(true),
        other => Err(setting_error(
            name,
            Quoted(other),
            "write \"onload\" if the docker driver runs all tasks with that runtime, or leave it out",
        )),
    }
}

fn parse_period(name: &str, text: &str) -> Result<Duration> {
    let remedy = "write a time such as \"1m\" or \"30s\"";
    // A period of zero would survey the host continuously.
    match parse_duration(name, text, remedy)? {
        Duration::ZERO => Err(setting_error(name, Quoted(text), remedy)),
        period => Ok(period),
    }
}

fn parse_duration(name: &str, text: &str, remedy: &str) -> Result<Duration> {
    duration::parse(text).ok_or_else(|| setting_error(name, Quoted(text), remedy))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::settings::table::{BOOL, NUMBER, TABLE, TEXT, TEXTS};

    fn packed(config: &Json) -> Vec<u8> {
        rmp_serde::to_vec(config).unwrap()
    }

    fn read(config: &Json) -> Result<PluginSettings> {
        decode(&packed(config))
    }

    fn error_text(config: &Json) -> String {
        read(config).unwrap_err().to_string()
    }

    #[test]
    fn no_configuration_and_an_empty_one_are_the_defaults() {
        assert_eq!(decode(&[]).unwrap(), PluginSettings::default());
        assert_eq!(read(&json!({})).unwrap(), PluginSettings::default());
        assert_eq!(read(&Json::Null).unwrap(), PluginSettings::default());
        let null = TABLE.iter().map(|setting| (setting.name.to_owned(), Json::Null));
        assert_eq!(
            read(&null.collect::<serde_json::Map<_, _>>().into()).unwrap(),
            PluginSettings::default()
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
        assert_eq!(read(&all.into()).unwrap(), PluginSettings::default());
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
            assert_ne!(read(&config).unwrap(), PluginSettings::default(), "{}", setting.name);
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
            let message = error_text(&json!({ setting.name: wrong }));
            let begins = format!("setting {} of the plugin is ", setting.name);
            assert!(message.starts_with(&begins), "{message}");
        }
        assert_eq!(
            error_text(&json!({"num_nic": "ten"})),
            "setting num_nic of the plugin is \"ten\"; give it a whole number"
        );
        assert_eq!(decode(b"\xc1").unwrap_err().to_string(), "reading the plugin's configuration");
    }

    #[test]
    fn a_directory_is_named_left_out_or_nowhere() {
        let decode_dir = |text: &str| {
            read(&json!({"host_onload_lib_path": text})).unwrap().paths.onload_lib.host
        };
        // The stanza of nomad-onload's examples ends with a slash, a default of its README begins with a space.
        assert_eq!(
            decode_dir("/usr/lib/x86_64-linux-gnu/"),
            DirSetting::At("/usr/lib/x86_64-linux-gnu".into())
        );
        assert_eq!(
            decode_dir(" /usr/libexec/onload/profiles"),
            DirSetting::At("/usr/libexec/onload/profiles".into())
        );
        assert_eq!(decode_dir(""), DirSetting::Nowhere);
        for bad in ["usr/lib64", "/usr/../etc", "~"] {
            let message = error_text(&json!({"task_zf_bin_path": bad}));
            assert!(message.contains("absolute path without"), "{message}");
        }
    }

    #[test]
    fn a_number_of_slots_has_bounds() {
        let slots =
            |number: i64| read(&json!({"num_ptp": number})).map(|settings| settings.slots.ptp);
        assert_eq!(slots(1000).unwrap(), 1000);
        assert_eq!(slots(-5).unwrap(), 0);
        for bad in [1001, i64::MAX] {
            let message = slots(bad).unwrap_err().to_string();
            assert_eq!(
                message,
                format!("setting num_ptp of the plugin is {bad}; write a number up to 1000")
            );
        }
    }

    #[test]
    fn a_period_that_is_no_time_is_refused() {
        let settings = read(&json!({"fingerprint_period": "20ms"})).unwrap();
        assert_eq!(settings.fingerprint_period, Duration::from_millis(20));
        for bad in ["", "0s", "-1m", "often"] {
            let message = error_text(&json!({"fingerprint_period": bad}));
            assert!(message.ends_with("write a time such as \"1m\" or \"30s\""), "{message}");
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
        let message = error_text(&json!({"runtime": "runc"}));
        assert!(
            message.starts_with("setting runtime of the plugin is \"runc\"; write \"onload\""),
            "{message}"
        );
    }
}
