//! The objects and arrays, and the errors of opening them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;

use super::slice::{
    Elements, JsonSlice, decode_string, find_members, is_key, key_spelling, measure, plain_content,
    value_range,
};

/// Maximum length of a list that is read into memory at once. The kernel allows no more groups of a
/// process or mounts of a container (NGROUPS_MAX, fs.mount-max). Longer lists can still be passed on
/// unread.
pub const MAX_VALUES: usize = 100_000;

/// Maximum length in bytes of a string that is read into memory, after decoding (Go's encoding/json
/// spells `<` with six bytes). The kernel allows no longer argument or variable (MAX_ARG_STRLEN).
/// Longer strings can still be passed on unread.
pub const MAX_STRING: usize = 131_072;

/// Maximum length of a key in a message, in characters.
const MAX_SHOWN: usize = 128;

/// Why a text could not be opened, or a value could not be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RawError {
    /// Not JSON, or not the requested kind of value; with line and column.
    #[error(transparent)]
    Parse(#[from] serde_json::Error),
    /// The bytes are not UTF-8.
    #[error("not UTF-8 from byte {0} on")]
    Utf8(usize),
    /// The object has a key twice.
    #[error("duplicate key {0:?}")]
    Duplicate(String),
    /// The object has a key in the wrong case. Go's reader takes it for the key that is meant;
    /// others do not.
    #[error("key {found:?} differs from {meant:?} only in case")]
    Case {
        /// The key found.
        found: String,
        /// The key that readers of this object know.
        meant: &'static str,
    },
    /// More bytes than can be counted.
    #[error("the text has 4 GiB or more")]
    TooLong,
    /// A list of more than [`MAX_VALUES`] values.
    #[error("more than {MAX_VALUES} values; no real container has as many")]
    TooMany,
    /// A string longer than the kernel passes to a program.
    #[error("a string of more than {MAX_STRING} bytes; the kernel gives no program a longer one")]
    LongString,
    /// The value of a key cannot be read.
    #[error("{key}")]
    Value {
        /// The key, or the index in brackets.
        key: String,
        /// The reason.
        source: Box<RawError>,
    },
}

impl RawError {
    /// Returns this error for the value at `key`.
    #[must_use]
    pub fn with_key(self, key: impl Into<String>) -> Self {
        Self::Value { key: key.into(), source: Box::new(self) }
    }
}

/// A JSON object whose members keep their order and spelling. A clone shares what was read.
#[derive(Clone, Debug)]
pub struct RawObject {
    piece: JsonSlice,
    /// The offset in `piece` of each member's key.
    begins: Arc<Vec<u32>>,
    /// `None` if the object is unchanged.
    changes: Option<Box<ObjectChanges>>,
}

#[derive(Clone, Debug, Default)]
struct ObjectChanges {
    /// The current values of changed members, by index; `None` for a removed one.
    members: BTreeMap<usize, Option<JsonSlice>>,
    /// New members in order, by the spelling of the key.
    added: Vec<(String, JsonSlice)>,
}

/// A JSON array whose elements keep their spelling. A clone shares what was read.
#[derive(Clone, Debug)]
pub struct RawArray {
    piece: JsonSlice,
    /// New elements, after those that were read.
    added: Vec<JsonSlice>,
    is_modified: bool,
}

/// A change to an element of an array.
#[derive(Debug)]
pub enum ElementChange {
    /// Leaves the element unchanged.
    Keep,
    /// Removes the element.
    Drop,
    /// Replaces the element by this value.
    Replace(Box<RawValue>),
}

impl Default for RawObject {
    fn default() -> Self {
        Self { piece: JsonSlice::new("{}"), begins: Arc::default(), changes: Some(Box::default()) }
    }
}

impl RawObject {
    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the object in `bytes`.
    ///
    /// # Errors
    /// [`RawError`] if the bytes are anything else, or a key appears twice.
    pub fn parse(bytes: &[u8]) -> Result<Self, RawError> {
        let text = str::from_utf8(bytes).map_err(|error| RawError::Utf8(error.valid_up_to()))?;
        Self::parse_text(Arc::new(text.to_owned()))
    }

    /// Like [`Self::parse`], but shares the text instead of copying it.
    pub fn parse_text(text: Arc<String>) -> Result<Self, RawError> {
        let piece = JsonSlice::from_shared(text);
        let text = piece.as_str();
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let begins = deserializer.deserialize_map(SkippedObject { text })?;
        deserializer.end()?;
        Self::from_members(piece, begins)
    }

    /// Opens an element of an array. The caller has checked that it is JSON.
    ///
    /// # Errors
    /// [`RawError`] if it is not an object, or a key appears twice.
    pub(crate) fn parse_element(element: &str) -> Result<Self, RawError> {
        Self::open(JsonSlice::new(element))
    }

    /// Opens a piece of text. The caller has checked that it is JSON.
    fn open(piece: JsonSlice) -> Result<Self, RawError> {
        let text = piece.as_str();
        if !text.starts_with('{') {
            serde_json::Deserializer::from_str(text).deserialize_map(SkippedObject { text })?;
        }
        let begins = find_members(text);
        Self::from_members(piece, begins)
    }

    /// Creates an object from its text and the offsets of its keys.
    fn from_members(piece: JsonSlice, begins: Vec<u32>) -> Result<Self, RawError> {
        let text = piece.as_str();
        if u32::try_from(text.len()).is_err() {
            return Err(RawError::TooLong);
        }
        check_duplicates(text, &begins)?;
        Ok(Self { begins: Arc::new(begins), piece, changes: None })
    }

    /// Returns whether anything was set or removed since the object was read.
    #[must_use]
    pub fn is_modified(&self) -> bool {
        self.changes.is_some()
    }

    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        let Some(changes) = &self.changes else {
            return self.begins.len();
        };
        let removed = changes.members.values().filter(|value| value.is_none()).count();
        self.begins.len() - removed + changes.added.len()
    }

    /// Returns whether the object has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.members().map(|member| decode_string(member.spelling()))
    }

    /// Iterates over the keys that `is_wanted` accepts and the texts of their values, in order.
    pub fn matching_members(
        &self,
        is_wanted: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
        self.members().filter_map(move |member| {
            let key = decode_string(member.spelling());
            is_wanted(&key).then(|| (key, member.value()))
        })
    }

    fn members(&self) -> impl Iterator<Item = MemberRef<'_>> {
        let changes = self.changes.as_deref();
        let changed = move |index: usize| changes.and_then(|changes| changes.members.get(&index));
        let read = (0..self.begins.len()).filter_map(move |index| match changed(index) {
            None => Some(MemberRef::Read(self, index)),
            Some(Some(value)) => Some(MemberRef::Changed(self, index, value)),
            Some(None) => None,
        });
        let added = changes.into_iter().flat_map(|changes| &changes.added);
        read.chain(added.map(|(key, value)| MemberRef::Added(key, value)))
    }

    /// Returns the offset of the key of a member that was read.
    fn begin(&self, index: usize) -> Option<usize> {
        self.begins.get(index).map(|begin| *begin as usize)
    }

    /// Returns the range of the value of a member that was read.
    fn range(&self, index: usize) -> Range<usize> {
        let begin = self.begin(index).unwrap_or_default();
        value_range(self.piece.as_str(), begin, self.begin(index + 1))
    }

    /// Finds the index of a member that was read, even if it has been removed since.
    fn index_of(&self, key: &str) -> Option<usize> {
        let text = self.piece.as_str();
        self.begins.iter().position(|begin| is_key(text, *begin as usize, key))
    }

    fn value(&self, key: &str) -> Option<JsonSlice> {
        let changes = self.changes.as_deref();
        if let Some(index) = self.index_of(key) {
            match changes.and_then(|changes| changes.members.get(&index)) {
                None => return Some(self.piece.slice(&self.range(index))),
                Some(Some(value)) => return Some(value.clone()),
                // Removed. It may have been added again.
                Some(None) => {}
            }
        }
        let (_, value) =
            changes?.added.iter().find(|(spelling, _)| decode_string(spelling) == key)?;
        Some(value.clone())
    }

    /// Returns whether `key` exists, even with the value `null`.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Reads the value of `key` as `T`. Returns `None` if it is absent or `null`. Meant for strings,
    /// numbers and flat lists; open nested values with [`Self::object`] and [`Self::array`].
    ///
    /// # Errors
    /// [`RawError::Value`] if it is not a `T`, is a list of more than [`MAX_VALUES`], or contains a
    /// string longer than [`MAX_STRING`].
    pub fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, RawError> {
        let Some(value) = self.non_null(key) else {
            return Ok(None);
        };
        read_text(value.as_str()).map(Some).map_err(|error| error.with_key(key))
    }

    /// Opens the object at `key`. Returns `None` if it is absent or `null`.
    ///
    /// # Errors
    /// [`RawError::Value`] if it is not an object, or has a key twice.
    pub fn object(&self, key: &str) -> Result<Option<Self>, RawError> {
        self.non_null(key).map(Self::open).transpose().map_err(|error| error.with_key(key))
    }

    /// Opens the array at `key`. Returns `None` if it is absent or `null`.
    ///
    /// # Errors
    /// [`RawError::Value`] if it is not an array.
    pub fn array(&self, key: &str) -> Result<Option<RawArray>, RawError> {
        self.non_null(key).map(RawArray::open).transpose().map_err(|error| error.with_key(key))
    }

    /// Reads the elements of the array at `key` one at a time. The list may be longer than
    /// [`MAX_VALUES`].
    ///
    /// # Errors
    /// [`RawError::Value`] if it is not an array, or an element is not a `T`.
    pub fn each_element<T: DeserializeOwned>(
        &self,
        key: &str,
        mut visit: impl FnMut(T),
    ) -> Result<(), RawError> {
        self.try_each(key, |element| read_text(element).map(&mut visit))
    }

    /// Visits the strings of the array at `key`, which are copied only if they contain escapes.
    ///
    /// # Errors
    /// [`RawError::Value`] if it is not an array, or an element is not a string.
    pub fn each_string(&self, key: &str, mut visit: impl FnMut(&str)) -> Result<(), RawError> {
        self.try_each(key, |element| read_string(element).map(|text| visit(&text)))
    }

    fn try_each(
        &self,
        key: &str,
        mut visit: impl FnMut(&str) -> Result<(), RawError>,
    ) -> Result<(), RawError> {
        let Some(array) = self.array(key)? else {
            return Ok(());
        };
        for (index, element) in array.iter().enumerate() {
            visit(element).map_err(|error| error.with_key(format!("[{index}]")).with_key(key))?;
        }
        Ok(())
    }

    fn non_null(&self, key: &str) -> Option<JsonSlice> {
        self.value(key).filter(|value| value.as_str() != "null")
    }

    fn set_piece(&mut self, key: &str, value: JsonSlice) {
        let index = self.index_of(key);
        let changes = self.changes.get_or_insert_default();
        if let Some(index) = index
            && !matches!(changes.members.get(&index), Some(None))
        {
            changes.members.insert(index, Some(value));
            return;
        }
        let spelled = encode_key(key);
        match changes.added.iter_mut().find(|(existing, _)| *existing == spelled) {
            Some((_, existing)) => *existing = value,
            None => changes.added.push((spelled, value)),
        }
    }

    /// Sets `key` to a serialised value. A new key is added at the end.
    ///
    /// # Errors
    /// [`RawError::Value`] if `value` cannot be expressed in JSON.
    pub fn write<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), RawError> {
        let value = to_raw_value(value).map_err(|error| RawError::from(error).with_key(key))?;
        self.set_piece(key, JsonSlice::new(value.get()));
        Ok(())
    }

    /// Sets `key` to an object. An unmodified object that was opened at `key` changes nothing.
    pub fn set_object(&mut self, key: &str, value: &Self) {
        if value.is_modified() || !self.contains(key) {
            self.set_piece(key, value.to_piece());
        }
    }

    /// Sets `key` to an array. An unmodified array that was opened at `key` changes nothing.
    pub fn set_array(&mut self, key: &str, value: &RawArray) {
        if value.is_modified() || !self.contains(key) {
            self.set_piece(key, value.to_piece());
        }
    }

    /// Removes `key`. Returns whether it existed.
    pub fn remove(&mut self, key: &str) -> bool {
        if !self.contains(key) {
            return false;
        }
        let index = self.index_of(key);
        let changes = self.changes.get_or_insert_default();
        let spelled = encode_key(key);
        changes.added.retain(|(existing, _)| *existing != spelled);
        if let Some(index) = index {
            changes.members.insert(index, None);
        }
        true
    }

    /// Rejects keys that differ from one of `known` only in case, as Go's encoding/json folds it
    /// (fold.go): U+017F counts as an `s` there, and U+212A as a `k`.
    pub fn refuse_case_variants(&self, known: &[&'static str]) -> Result<(), RawError> {
        for member in self.members() {
            let spelling = member.spelling();
            // An ASCII key without escapes has the same length in either case.
            let is_plain = plain_content(spelling).is_some_and(str::is_ascii);
            if is_plain && known.iter().all(|meant| meant.len() + 2 != spelling.len()) {
                continue;
            }
            let key = decode_string(spelling);
            for meant in known {
                if *meant != key && key.chars().map(fold_case).eq(meant.chars().map(fold_case)) {
                    return Err(RawError::Case { found: key.into_owned(), meant });
                }
            }
        }
        Ok(())
    }

    /// Returns the object's JSON form, which is copied only if it was changed.
    fn to_piece(&self) -> JsonSlice {
        let Some(changes) = &self.changes else {
            return self.piece.clone();
        };
        // The exact size is computed first, so that the text is allocated once.
        let mut size = self.piece.len();
        for (key, value) in &changes.added {
            size += key.len() + value.len() + 2;
        }
        for (index, value) in &changes.members {
            size -= self.range(*index).len();
            size += value.as_ref().map_or(0, JsonSlice::len);
        }
        let mut text = String::with_capacity(size);
        for member in self.members() {
            text.push(if text.is_empty() { '{' } else { ',' });
            text.push_str(member.spelling());
            text.push(':');
            text.push_str(member.value());
        }
        close(text, "{", '}')
    }

    /// Returns the text of a value that was read.
    fn text_at(&self, index: usize) -> &str {
        self.piece.as_str().get(self.range(index)).unwrap_or_default()
    }

    /// Returns the object's JSON form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_piece().into_bytes()
    }
}

/// A current member of an object.
enum MemberRef<'a> {
    Read(&'a RawObject, usize),
    Changed(&'a RawObject, usize, &'a JsonSlice),
    Added(&'a str, &'a JsonSlice),
}

impl<'a> MemberRef<'a> {
    /// Returns the spelling of the key, with quotes.
    fn spelling(&self) -> &'a str {
        match *self {
            Self::Read(object, index) | Self::Changed(object, index, _) => {
                let begin = object.begin(index).unwrap_or_default();
                key_spelling(object.piece.as_str(), begin)
            }
            Self::Added(spelling, _) => spelling,
        }
    }

    fn value(&self) -> &'a str {
        match *self {
            Self::Read(object, index) => object.text_at(index),
            Self::Changed(_, _, value) | Self::Added(_, value) => value.as_str(),
        }
    }
}

impl Default for RawArray {
    fn default() -> Self {
        Self { piece: JsonSlice::new("[]"), added: Vec::new(), is_modified: true }
    }
}

impl RawArray {
    /// An empty array.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a piece of text. The caller has checked that it is JSON.
    fn open(piece: JsonSlice) -> Result<Self, RawError> {
        if !piece.as_str().starts_with('[') {
            serde_json::Deserializer::from_str(piece.as_str()).deserialize_seq(SkippedArray)?;
        }
        Ok(Self { piece, added: Vec::new(), is_modified: false })
    }

    /// Returns whether anything was changed since the array was read.
    #[must_use]
    pub fn is_modified(&self) -> bool {
        self.is_modified
    }

    /// Counts the elements.
    #[must_use]
    pub fn len(&self) -> usize {
        Elements::new(self.piece.as_str()).count() + self.added.len()
    }

    /// Returns whether the array has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Iterates over the texts of the elements, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let read = Elements::new(self.piece.as_str());
        read.chain(self.added.iter().map(JsonSlice::as_str))
    }

    /// Opens every element as an object.
    ///
    /// # Errors
    /// [`RawError::Value`] if an element is not an object, or has a key twice;
    /// [`RawError::TooMany`] if there are more than [`MAX_VALUES`].
    pub fn parse_objects(&self) -> Result<Vec<RawObject>, RawError> {
        let mut objects = Vec::new();
        let text = self.piece.as_str();
        for (index, element) in Elements::new(text).enumerate() {
            if index == MAX_VALUES {
                return Err(RawError::TooMany);
            }
            let begin = element.as_ptr().addr() - text.as_ptr().addr();
            let object = RawObject::open(self.piece.slice(&(begin..begin + element.len())))
                .map_err(|error| error.with_key(format!("[{index}]")))?;
            objects.push(object);
        }
        for value in &self.added {
            objects.push(RawObject::open(value.clone())?);
        }
        Ok(objects)
    }

    /// Changes elements in one pass. `change` receives the text of each element.
    ///
    /// # Errors
    /// The errors of `change`, with the element's index. The array is then unchanged.
    pub fn edit_elements(
        &mut self,
        mut change: impl FnMut(&str) -> Result<ElementChange, RawError>,
    ) -> Result<(), RawError> {
        let mut text: Option<String> = None;
        for (index, element) in self.iter().enumerate() {
            let change = change(element).map_err(|error| error.with_key(format!("[{index}]")))?;
            if text.is_none() && !matches!(change, ElementChange::Keep) {
                let mut copied = String::with_capacity(self.max_size() + 4096);
                self.iter().take(index).for_each(|element| append(&mut copied, element));
                text = Some(copied);
            }
            match (&mut text, change) {
                (None, _) | (_, ElementChange::Drop) => {}
                (Some(text), ElementChange::Keep) => append(text, element),
                (Some(text), ElementChange::Replace(value)) => append(text, value.get()),
            }
        }
        if let Some(text) = text {
            *self = Self { piece: close(text, "[", ']'), added: Vec::new(), is_modified: true };
        }
        Ok(())
    }

    /// Adds an object at the end.
    pub fn push_object(&mut self, object: &RawObject) {
        self.push_piece(object.to_piece());
    }

    fn push_piece(&mut self, value: JsonSlice) {
        self.is_modified = true;
        self.added.push(value);
    }

    /// Serialises a value and adds it at the end.
    ///
    /// # Errors
    /// [`RawError::Parse`] if `value` cannot be expressed in JSON.
    pub fn push_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), RawError> {
        let value = to_raw_value(value)?;
        self.push_piece(JsonSlice::new(value.get()));
        Ok(())
    }

    /// Returns the array's JSON form, which is copied only if something was added.
    fn to_piece(&self) -> JsonSlice {
        if self.added.is_empty() {
            return self.piece.clone();
        }
        let mut text = String::with_capacity(self.max_size());
        self.iter().for_each(|element| append(&mut text, element));
        close(text, "[", ']')
    }

    /// Returns an upper bound for the length of the JSON form.
    fn max_size(&self) -> usize {
        let added: usize = self.added.iter().map(|value| value.len() + 1).sum();
        self.piece.len() + added
    }
}

/// Appends an element, preceded by a bracket if it is the first, and by a comma if it is not.
fn append(text: &mut String, element: &str) {
    text.push(if text.is_empty() { '[' } else { ',' });
    text.push_str(element);
}

/// Closes an object or array. An empty one is also opened here, since no element has done so.
fn close(mut text: String, open: &str, end: char) -> JsonSlice {
    if text.is_empty() {
        text.push_str(open);
    }
    text.push(end);
    JsonSlice::new(text)
}

/// Fails on the first repeated key. Keys are compared only if their hashes are equal, so that an
/// object with millions of keys costs little time, and eight bytes of memory for each.
fn check_duplicates(object: &str, begins: &[u32]) -> Result<(), RawError> {
    let key = |begin: u32| decode_string(key_spelling(object, begin as usize));
    let hash = |begin: u32| {
        let mut hasher = DefaultHasher::new();
        key(begin).hash(&mut hasher);
        // Half of the hash is enough to distinguish most keys.
        (hasher.finish() >> 32) as u32
    };
    let mut hashed: Vec<(u32, u32)> = begins.iter().map(|begin| (hash(*begin), *begin)).collect();
    hashed.sort_unstable();
    let mut second: Option<u32> = None;
    for same in hashed.chunk_by_mut(|one, other| one.0 == other.0) {
        if same.len() > 1 {
            same.sort_unstable_by(|one, other| {
                key(one.1).cmp(&key(other.1)).then(one.1.cmp(&other.1))
            });
        }
        for pair in same.windows(2).filter(|pair| key(pair[0].1) == key(pair[1].1)) {
            second = Some(second.map_or(pair[1].1, |second| second.min(pair[1].1)));
        }
    }
    match second {
        None => Ok(()),
        Some(begin) => Err(RawError::Duplicate(key(begin).chars().take(MAX_SHOWN).collect())),
    }
}

/// Reads a text as `T`.
fn read_text<T: DeserializeOwned>(text: &str) -> Result<T, RawError> {
    // A shorter text cannot exceed either limit: every value takes at least one byte, and a decoded
    // string is no longer than its spelling.
    if text.len() > MAX_VALUES.min(MAX_STRING) {
        let (count, longest) = measure(text);
        if count > MAX_VALUES {
            return Err(RawError::TooMany);
        }
        if longest > MAX_STRING {
            return Err(RawError::LongString);
        }
    }
    Ok(serde_json::from_str(text)?)
}

/// Decodes a JSON string.
///
/// # Errors
/// [`RawError::Parse`] if the text is not a string.
pub fn read_string(text: &str) -> Result<Cow<'_, str>, RawError> {
    match plain_content(text) {
        Some(plain) => Ok(Cow::Borrowed(plain)),
        None => Ok(Cow::Owned(serde_json::from_str(text)?)),
    }
}

fn fold_case(letter: char) -> char {
    match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    }
}

fn encode_key(key: &str) -> String {
    serde_json::Value::from(key).to_string()
}

/// Checks an object, and returns the offset of each key in `text`.
struct SkippedObject<'a> {
    text: &'a str,
}

impl<'de> Visitor<'de> for SkippedObject<'_> {
    type Value = Vec<u32>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Vec<u32>, A::Error> {
        let text_start = self.text.as_ptr() as usize;
        let mut begins = Vec::new();
        // Not `IgnoredAny`, which rejects a key with a lone surrogate.
        while let Some((key, IgnoredAny)) = access.next_entry::<&RawValue, IgnoredAny>()? {
            let begin = (key.get().as_ptr() as usize).wrapping_sub(text_start);
            begins.push(u32::try_from(begin).unwrap_or(u32::MAX));
        }
        Ok(begins)
    }
}

/// Checks an array.
struct SkippedArray;

impl<'de> Visitor<'de> for SkippedArray {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        while access.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
