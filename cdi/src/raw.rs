//! Lossless JSON: objects and arrays one level deep, whose values stay the text that they were.
//!
//! An object or array that nobody changed is written byte for byte as it was read; in a changed one
//! every untouched key and value keeps its spelling (`1e3`, `0.10`, escapes, 30-digit numbers) and its
//! place, and only the white space between them goes. Values are scanned without recursion, so that
//! nesting costs no stack, and an object that says a key twice is refused when it is opened, since two
//! readers may keep different ones.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;

/// Why a text could not be opened, or a value not read or written.
#[derive(Debug, Error)]
pub enum RawError {
    /// Not JSON, or not the kind of value that was asked for; says line and column.
    #[error("{0}")]
    Parse(#[from] serde_json::Error),
    /// The bytes are not text.
    #[error("not UTF-8 from byte {0} on")]
    Utf8(usize),
    /// The object says a key twice.
    #[error("duplicate key {0:?}")]
    Duplicate(String),
    /// The object says a key in another case. Go's reader takes it for the one that is meant, others
    /// do not.
    #[error("key {found:?} differs from {meant:?} in case alone")]
    Case {
        /// The key found.
        found: String,
        /// The key that readers of this object know.
        meant: &'static str,
    },
    /// The value of a key cannot be read.
    #[error("{key}: {source}")]
    Value {
        /// The key, or the index in brackets.
        key: String,
        /// What is wrong with it.
        source: Box<RawError>,
    },
}

impl RawError {
    /// The same error, said of the value at `key`.
    #[must_use]
    pub fn at(self, key: impl Into<String>) -> Self {
        Self::Value {
            key: key.into(),
            source: Box::new(self),
        }
    }
}

#[derive(Clone, Debug)]
struct Member {
    key: String,
    spelling: Box<str>,
    value: Box<RawValue>,
}

/// A JSON object whose members keep their order and spelling.
#[derive(Clone, Debug, Default)]
pub struct RawObject {
    members: Vec<Member>,
    original: Option<Box<str>>,
}

/// A JSON array whose elements keep their spelling.
#[derive(Clone, Debug, Default)]
pub struct RawArray {
    elements: Vec<Box<RawValue>>,
    original: Option<Box<str>>,
}

impl RawObject {
    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the object that `bytes` hold.
    ///
    /// # Errors
    /// [`RawError`] where the bytes are anything else, or a key is there twice.
    pub fn parse(bytes: &[u8]) -> Result<Self, RawError> {
        Self::from_text(text_of(bytes)?)
    }

    fn from_text(text: &str) -> Result<Self, RawError> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let members = deserializer.deserialize_map(Members)?;
        deserializer.end()?;
        let mut seen = BTreeSet::new();
        if let Some(twice) = members
            .iter()
            .find(|member| !seen.insert(member.key.as_str()))
        {
            return Err(RawError::Duplicate(twice.key.clone()));
        }
        Ok(Self {
            members,
            original: Some(text.into()),
        })
    }

    /// Whether anything was set or removed since it was read.
    #[must_use]
    pub fn is_modified(&self) -> bool {
        self.original.is_none()
    }

    /// Number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.key.as_str())
    }

    /// Keys and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.members
            .iter()
            .map(|member| (member.key.as_str(), &*member.value))
    }

    /// Whether `key` is there, be its value `null`.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The text of the value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.members
            .iter()
            .find(|member| member.key == key)
            .map(|member| &*member.value)
    }

    /// The value of `key` read as `T`; `None` where it is absent or `null`. For strings, numbers and
    /// flat lists: what is deep is opened with [`Self::object`] and [`Self::array`].
    ///
    /// # Errors
    /// [`RawError::Value`] where it is not a `T`.
    pub fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, RawError> {
        match self.present(key) {
            None => Ok(None),
            Some(value) => serde_json::from_str(value)
                .map(Some)
                .map_err(|error| RawError::from(error).at(key)),
        }
    }

    /// Opens the object at `key`; `None` where it is absent or `null`.
    ///
    /// # Errors
    /// [`RawError::Value`] where it is something else, or says a key twice.
    pub fn object(&self, key: &str) -> Result<Option<Self>, RawError> {
        self.present(key)
            .map(Self::from_text)
            .transpose()
            .map_err(|error| error.at(key))
    }

    /// Opens the array at `key`; `None` where it is absent or `null`.
    ///
    /// # Errors
    /// [`RawError::Value`] where it is something else.
    pub fn array(&self, key: &str) -> Result<Option<RawArray>, RawError> {
        self.present(key)
            .map(RawArray::from_text)
            .transpose()
            .map_err(|error| error.at(key))
    }

    fn present(&self, key: &str) -> Option<&str> {
        self.get(key)
            .map(RawValue::get)
            .filter(|text| *text != "null")
    }

    /// Sets `key`, in its place where it is there, at the end where it is new.
    pub fn set(&mut self, key: &str, value: Box<RawValue>) {
        self.original = None;
        match self.members.iter_mut().find(|member| member.key == key) {
            Some(member) => member.value = value,
            None => self.members.push(Member {
                key: key.to_owned(),
                spelling: spell(key),
                value,
            }),
        }
    }

    /// Sets `key` to a value of ours.
    ///
    /// # Errors
    /// [`RawError::Value`] where `value` has no form in JSON.
    pub fn write<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), RawError> {
        let value = to_raw_value(value).map_err(|error| RawError::from(error).at(key))?;
        self.set(key, value);
        Ok(())
    }

    /// Puts an object at `key`. Nothing changes where it is what was opened there.
    pub fn set_object(&mut self, key: &str, value: &Self) {
        if value.is_modified() || !self.contains(key) {
            self.set(key, value.to_raw());
        }
    }

    /// Puts an array at `key`. Nothing changes where it is what was opened there.
    pub fn set_array(&mut self, key: &str, value: &RawArray) {
        if value.is_modified() || !self.contains(key) {
            self.set(key, value.to_raw());
        }
    }

    /// Takes `key` away.
    pub fn remove(&mut self, key: &str) -> Option<Box<RawValue>> {
        let index = self.members.iter().position(|member| member.key == key)?;
        self.original = None;
        Some(self.members.remove(index).value)
    }

    /// Refuses keys that equal one of `known` but for case, as Go's encoding/json folds it (fold.go):
    /// U+017F is an `s` there and U+212A a `k`.
    ///
    /// # Errors
    /// [`RawError::Case`].
    pub fn refuse_case_variants(&self, known: &[&'static str]) -> Result<(), RawError> {
        for key in self.keys() {
            let variant = |meant: &&&'static str| {
                **meant != key && key.chars().map(fold).eq(meant.chars().map(fold))
            };
            if let Some(meant) = known.iter().find(variant) {
                return Err(RawError::Case {
                    found: key.to_owned(),
                    meant,
                });
            }
        }
        Ok(())
    }

    fn text(&self) -> Cow<'_, str> {
        if let Some(original) = &self.original {
            return Cow::Borrowed(original);
        }
        let mut text = String::new();
        self.write_with(&[], &mut text);
        Cow::Owned(text)
    }

    /// Writes the object with other values at some keys. A value that is large is copied once, and
    /// not read again, on its way out.
    pub(crate) fn write_with(&self, others: &[(&str, Part<'_>)], text: &mut String) {
        if let Some(original) = self.original.as_ref().filter(|_| others.is_empty()) {
            text.push_str(original);
            return;
        }
        let mut separator = '{';
        let mut begin = |text: &mut String, spelling: &str| {
            text.push(separator);
            text.push_str(spelling);
            text.push(':');
            separator = ',';
        };
        for member in &self.members {
            begin(text, &member.spelling);
            match others.iter().find(|(key, _)| *key == member.key) {
                Some((_, other)) => other.write(text),
                None => text.push_str(member.value.get()),
            }
        }
        for (key, other) in others.iter().filter(|(key, _)| !self.contains(key)) {
            begin(text, &spell(key));
            other.write(text);
        }
        if separator == '{' {
            text.push('{');
        }
        text.push('}');
    }

    /// Bytes that the object's text has at least, for making room.
    pub(crate) fn size_hint(&self) -> usize {
        let size = |member: &Member| member.spelling.len() + member.value.get().len() + 2;
        self.members.iter().map(size).sum()
    }

    /// The object as JSON.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.text().into_owned().into_bytes()
    }

    /// The object as a value of another one.
    #[must_use]
    pub fn to_raw(&self) -> Box<RawValue> {
        raw(self.text())
    }
}

impl RawArray {
    /// An empty array.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the array that `bytes` hold.
    ///
    /// # Errors
    /// [`RawError`] where the bytes are anything else.
    pub fn parse(bytes: &[u8]) -> Result<Self, RawError> {
        Self::from_text(text_of(bytes)?)
    }

    fn from_text(text: &str) -> Result<Self, RawError> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let elements = deserializer.deserialize_seq(Elements)?;
        deserializer.end()?;
        Ok(Self {
            elements,
            original: Some(text.into()),
        })
    }

    /// Whether anything was changed since it was read.
    #[must_use]
    pub fn is_modified(&self) -> bool {
        self.original.is_none()
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The elements, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &RawValue> + ExactSizeIterator {
        self.elements.iter().map(|element| &**element)
    }

    /// The text of an element.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&RawValue> {
        self.elements.get(index).map(|element| &**element)
    }

    /// An element read as `T`.
    ///
    /// # Errors
    /// [`RawError::Value`] where it is not a `T`.
    pub fn read<T: DeserializeOwned>(&self, index: usize) -> Result<Option<T>, RawError> {
        let at = |error: serde_json::Error| RawError::from(error).at(format!("[{index}]"));
        self.get(index)
            .map(|value| serde_json::from_str(value.get()))
            .transpose()
            .map_err(at)
    }

    /// Opens every element as an object.
    ///
    /// # Errors
    /// [`RawError::Value`] where one is something else, or says a key twice.
    pub fn objects(&self) -> Result<Vec<RawObject>, RawError> {
        let open = |(index, value): (usize, &RawValue)| {
            RawObject::from_text(value.get()).map_err(|error| error.at(format!("[{index}]")))
        };
        self.iter().enumerate().map(open).collect()
    }

    /// Replaces an element; nothing where there is none at `index`.
    pub fn set(&mut self, index: usize, value: Box<RawValue>) {
        if let Some(element) = self.elements.get_mut(index) {
            *element = value;
            self.original = None;
        }
    }

    /// Adds an element at the end.
    pub fn push(&mut self, value: Box<RawValue>) {
        self.original = None;
        self.elements.push(value);
    }

    /// Adds a value of ours at the end.
    ///
    /// # Errors
    /// [`RawError::Parse`] where `value` has no form in JSON.
    pub fn push_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), RawError> {
        self.push(to_raw_value(value)?);
        Ok(())
    }

    /// Takes an element away; nothing where there is none at `index`.
    pub fn remove(&mut self, index: usize) -> Option<Box<RawValue>> {
        (index < self.len()).then(|| {
            self.original = None;
            self.elements.remove(index)
        })
    }

    fn text(&self) -> Cow<'_, str> {
        if let Some(original) = &self.original {
            return Cow::Borrowed(original);
        }
        let elements: Vec<&str> = self.iter().map(RawValue::get).collect();
        Cow::Owned(format!("[{}]", elements.join(",")))
    }

    /// The array as JSON.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.text().into_owned().into_bytes()
    }

    /// The array as a value of an object.
    #[must_use]
    pub fn to_raw(&self) -> Box<RawValue> {
        raw(self.text())
    }
}

impl FromIterator<Box<RawValue>> for RawArray {
    fn from_iter<I: IntoIterator<Item = Box<RawValue>>>(elements: I) -> Self {
        Self {
            elements: elements.into_iter().collect(),
            original: None,
        }
    }
}

fn fold(letter: char) -> char {
    match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, RawError> {
    let text = std::str::from_utf8(bytes).map_err(|error| RawError::Utf8(error.valid_up_to()))?;
    Ok(text.trim_matches([' ', '\t', '\r', '\n']))
}

/// Text put together from values that were checked is JSON, so the fallback never shows.
fn raw(text: Cow<'_, str>) -> Box<RawValue> {
    RawValue::from_string(text.into_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn spell(key: &str) -> Box<str> {
    serde_json::Value::from(key).to_string().into()
}

/// A value that is put in the place of another when an object is written.
pub(crate) enum Part<'a> {
    /// An object.
    Object(&'a RawObject),
    /// An array.
    Array(RawArray),
}

impl Part<'_> {
    fn write(&self, text: &mut String) {
        match self {
            Self::Object(object) => object.write_with(&[], text),
            Self::Array(array) => text.push_str(&array.text()),
        }
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<Member>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((key, value)) = access.next_entry::<&RawValue, Box<RawValue>>()? {
            let spelling = key.get();
            // A lone surrogate has no form as text; such a key is known by its spelling.
            let key = serde_json::from_str(spelling).unwrap_or_else(|_| spelling.to_owned());
            members.push(Member {
                key,
                spelling: spelling.into(),
                value,
            });
        }
        Ok(members)
    }
}

struct Elements;

impl<'de> Visitor<'de> for Elements {
    type Value = Vec<Box<RawValue>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = access.next_element()? {
            elements.push(element);
        }
        Ok(elements)
    }
}
