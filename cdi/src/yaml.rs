//! Reads YAML as the engines' library does (Go's yaml.v2 behind sigs.k8s.io/yaml). Plain scalars
//! follow YAML 1.1, so `0666` is an octal number and `on` a boolean. If a field requires text, numbers
//! and booleans are converted to text (`name: 010` names the device `8`).

use std::fmt;

use serde::de::value::StringDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum YamlValue {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<YamlValue>),
    Map(Vec<(String, YamlValue)>),
}

/// An error of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueError {
    /// Path of the value, such as `containerEdits.deviceNodes[0].fileMode`. Empty for the document.
    path: String,
    message: String,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

impl std::error::Error for ValueError {}

impl serde::de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        ValueError { path: String::new(), message: message.to_string() }
    }
}

impl ValueError {
    /// Prefixes the path with a step from the enclosing value: a key, or an index in brackets.
    fn prefix_path(mut self, step: &str) -> Self {
        let joint = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{step}{joint}{}", self.path);
        self
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

impl YamlValue {
    /// Converts a scalar to text as the library does. Returns `None` for a list, a map and null.
    fn to_text(&self) -> Option<String> {
        match self {
            YamlValue::Bool(value) => Some(value.to_string()),
            YamlValue::Signed(value) => Some(value.to_string()),
            YamlValue::Unsigned(value) => Some(value.to_string()),
            YamlValue::Float(value) => Some(format_float(*value)),
            YamlValue::Text(text) => Some(text.clone()),
            YamlValue::Null | YamlValue::List(_) | YamlValue::Map(_) => None,
        }
    }

    fn unexpected(&self) -> Unexpected<'_> {
        match self {
            YamlValue::Null => Unexpected::Unit,
            YamlValue::Bool(value) => Unexpected::Bool(*value),
            YamlValue::Signed(value) => Unexpected::Signed(*value),
            YamlValue::Unsigned(value) => Unexpected::Unsigned(*value),
            YamlValue::Float(value) => Unexpected::Float(*value),
            YamlValue::Text(text) => Unexpected::Str(text),
            YamlValue::List(_) => Unexpected::Seq,
            YamlValue::Map(_) => Unexpected::Map,
        }
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = YamlValue;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_none<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Signed(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Unsigned(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<YamlValue, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element()? {
            list.push(value);
        }
        Ok(YamlValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<YamlValue, A::Error> {
        let mut map: Vec<(String, YamlValue)> = Vec::new();
        while let Some(key) = access.next_key::<YamlValue>()? {
            let Some(key) = key.to_text() else {
                return Err(A::Error::custom("a key is no text"));
            };
            if map.iter().any(|(other, _)| *other == key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            map.push((key, access.next_value()?));
        }
        Ok(YamlValue::Map(map))
    }
}

impl<'de> Deserializer<'de> for YamlValue {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self {
            YamlValue::Null => visitor.visit_unit(),
            YamlValue::Bool(value) => visitor.visit_bool(value),
            YamlValue::Signed(value) => visitor.visit_i64(value),
            YamlValue::Unsigned(value) => visitor.visit_u64(value),
            YamlValue::Float(value) => match as_integer(value) {
                Some(integer) => visitor.visit_i64(integer),
                None => visitor.visit_f64(value),
            },
            YamlValue::Text(text) => visitor.visit_string(text),
            YamlValue::List(list) => visitor.visit_seq(ListReader(list.into_iter().enumerate())),
            YamlValue::Map(map) => {
                visitor.visit_map(MapReader { rest: map.into_iter(), value: None })
            }
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.to_text() {
            Some(text) => visitor.visit_string(text),
            None => Err(ValueError::invalid_type(self.unexpected(), &"a text")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_string(visitor)
    }

    /// Rejects lists, which serde's derived code would accept for a struct.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self {
            YamlValue::Map(_) => self.deserialize_any(visitor),
            other => Err(ValueError::invalid_type(other.unexpected(), &visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self {
            YamlValue::Null => visitor.visit_none(),
            value => visitor.visit_some(value),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct struct enum identifier ignored_any
    }
}

struct ListReader(std::iter::Enumerate<std::vec::IntoIter<YamlValue>>);

impl<'de> SeqAccess<'de> for ListReader {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        let Some((index, value)) = self.0.next() else {
            return Ok(None);
        };
        let element = seed.deserialize(value);
        element.map(Some).map_err(|error| error.prefix_path(&format!("[{index}]")))
    }
}

struct MapReader {
    rest: std::vec::IntoIter<(String, YamlValue)>,
    value: Option<(String, YamlValue)>,
}

impl<'de> MapAccess<'de> for MapReader {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ValueError> {
        let Some((key, value)) = self.rest.next() else {
            return Ok(None);
        };
        let text: StringDeserializer<ValueError> = key.clone().into_deserializer();
        self.value = Some((key, value));
        seed.deserialize(text).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ValueError> {
        // Called only after a key.
        let (key, value) = self.value.take().unwrap_or((String::new(), YamlValue::Null));
        seed.deserialize(value).map_err(|error| error.prefix_path(&key))
    }
}
