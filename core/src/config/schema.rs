//! The JSON Schema of the configuration file, generated from the types that the file is parsed into.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::sections::Config;
use super::toml_error::describe_toml_error;
use super::values::{Memlock, Share};
use crate::class::Class;
use crate::host_settings::{InterfaceName, MacAddress, NumaNodeId, PageSize, PfRef, Vlan};
use crate::kubernetes_settings::{
    ListenAddress, MAX_IDS, OfferSetting, ResourceClasses, ResourceName, SlotCount,
};
use crate::netdev::address::{InterfaceAddress, Network};
use crate::netdev::settings::{InterfaceRoute, Mtu};
use crate::select::{Glob, HexId, LinkLayer, VfRanges};
use crate::vf_config::{VlanPriority, VlanRanges};
use onload_sys::error::{Result, shown_as_serialized};

/// Returns the JSON Schema of the configuration file. It contains no references.
pub fn config_schema() -> Schema {
    SchemaSettings::draft07()
        .with(|settings| settings.inline_subschemas = true)
        .with_transform(adapt_to_parser)
        .into_generator()
        .into_root_schema_for::<Config>()
}

/// Adapts a schema to the parser, which rejects unknown keys, and to TOML, which has no null.
fn adapt_to_parser(schema: &mut Schema) {
    transform_subschemas(&mut adapt_to_parser, schema);
    if schema.get("properties").is_some() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    if let Some(Value::String(description)) = schema.get_mut("description") {
        // rustdoc requires the escape.
        *description = description.replace('\n', " ").replace("\\[", "[");
    }
    // An empty list is rejected where one value or several are expected.
    let is_never_empty = schema.get("anyOf").or(schema.get("minItems")).is_some();
    if schema
        .get("default")
        .is_some_and(|value| value.is_null() || (is_never_empty && *value == json!([])))
    {
        schema.remove("default");
    }
    for (keyword, null) in
        [("type", json!("null")), ("enum", Value::Null), ("anyOf", json!({"type": "null"}))]
    {
        if let Some(Value::Array(alternatives)) = schema.get_mut(keyword) {
            alternatives.retain(|alternative| *alternative != null);
            if keyword != "enum" && alternatives.len() == 1 {
                let only = alternatives.remove(0);
                schema.remove(keyword);
                let entries = match only {
                    Value::Object(entries) => entries,
                    only => Map::from_iter([(keyword.to_owned(), only)]),
                };
                for (key, value) in entries {
                    let object = schema.ensure_object();
                    object.entry(key).or_insert(value);
                }
            }
        }
    }
}

/// Defines the schemas of types that are parsed from a text or a number.
macro_rules! schemas {
    ($($schema:tt: $($name:ident)*;)*) => {$($(
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*)*};
}

schemas! {
    {"type": "string"}:
        HexId VfRanges Glob LinkLayer InterfaceName PfRef MacAddress PageSize NumaNodeId VlanRanges
        InterfaceRoute InterfaceAddress Network ResourceName ListenAddress;
    {"type": ["string", "integer"]}: Memlock;
    {"type": "integer", "minimum": 0, "maximum": 4094}: Vlan;
    {"type": "integer", "minimum": 0, "maximum": 7}: VlanPriority;
    {"type": "integer", "minimum": 68, "maximum": 65535}: Mtu;
    {"type": "integer", "minimum": 1, "maximum": (Share::MAX)}: Share;
    {"type": "integer", "minimum": 1, "maximum": MAX_IDS}: SlotCount;
    {"type": "string", "enum": (Class::ALL.map(Class::as_str))}: Class;
    {"type": "array", "items": {"type": "string", "enum": (class_words())}}: ResourceClasses;
    {"type": ["string", "object"]}: OfferSetting;
}

/// The words of a list of classes.
fn class_words() -> Vec<&'static str> {
    Class::ALL.into_iter().map(Class::as_str).chain(["all"]).collect()
}

/// Implements `Serialize` by `Display`: for values of which a key has a default, and where they come from.
macro_rules! serialized_as_text {
    ($($name:ident)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

serialized_as_text!(
    Glob InterfaceName ListenAddress Memlock Network NumaNodeId PageSize ResourceName
);

/// A setting, its value and where the value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The section and the key, for example `cdi.preload`.
    pub name: String,
    /// `None` if the setting has no default and is not set.
    pub value: Option<Value>,
    pub origin: SettingOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SettingOrigin {
    Default,
    File,
    /// An environment variable.
    Variable,
}

shown_as_serialized!(SettingOrigin);

/// Lists every setting with its value in a valid configuration file.
pub fn list_settings(text: &str) -> Result<Vec<Setting>> {
    let file = toml::from_str(text).map_err(|error| describe_toml_error(text, &error))?;
    let mut settings = Vec::new();
    add_settings("", config_schema().as_value(), Some(&file), &mut settings);
    Ok(settings)
}

fn add_settings(name: &str, schema: &Value, value: Option<&Value>, settings: &mut Vec<Setting>) {
    // The values of keys may be tables too, such as leases.share.
    if let Some(keys) = schema["properties"].as_object().filter(|_| !name.contains('.')) {
        for (key, schema) in keys {
            let name = if name.is_empty() { key } else { &format!("{name}.{key}") };
            add_settings(name, schema, value.and_then(|value| value.get(key)), settings);
        }
        return;
    }
    let origin = if value.is_some() { SettingOrigin::File } else { SettingOrigin::Default };
    let mut add = |name: String, value| settings.push(Setting { name, value, origin });
    match value {
        // Sections whose names the operator chose, such as [pools.NAME].
        Some(Value::Object(sections)) if !name.contains('.') => {
            for (key, section) in sections {
                add(format!("{name}.{key}"), Some(section.clone()));
            }
        }
        _ => add(name.to_owned(), value.or_else(|| schema.get("default")).cloned()),
    }
}
