//! Pieces of a shared JSON text, and iteration over its members and elements.
//!
//! The iteration relies on `serde_json` having checked that the text is JSON. It only finds the ends
//! of strings, objects and arrays, without recursion and without allocating memory.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use memchr::memchr2;

const BLANKS: [u8; 8] = [b' '; 8];

/// A piece of a JSON text. A clone shares the text, so a piece costs 32 bytes whatever its length.
#[derive(Clone)]
pub(crate) struct JsonSlice {
    whole: Arc<String>,
    range: Range<usize>,
}

impl JsonSlice {
    /// Creates a slice of the whole text.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { range: 0..text.len(), whole: Arc::new(text) }
    }

    /// Creates a slice of a shared text, without surrounding white space.
    pub(crate) fn from_shared(whole: Arc<String>) -> Self {
        let space = [' ', '\t', '\r', '\n'];
        let begin = whole.len() - whole.trim_start_matches(space).len();
        let end = whole.trim_end_matches(space).len().max(begin);
        Self { range: begin..end, whole }
    }

    pub(crate) fn as_str(&self) -> &str {
        self.whole.get(self.range.clone()).unwrap_or_default()
    }

    /// Returns a part of this piece, by byte range.
    pub(crate) fn slice(&self, range: &Range<usize>) -> Self {
        let begin = self.range.start;
        Self { whole: Arc::clone(&self.whole), range: begin + range.start..begin + range.end }
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns the bytes, which are copied only if the text is still shared.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match Arc::try_unwrap(self.whole) {
            Ok(whole) => {
                let mut bytes = whole.into_bytes();
                bytes.truncate(self.range.end);
                bytes.drain(..self.range.start);
                bytes
            }
            Err(whole) => whole.get(self.range).unwrap_or_default().into(),
        }
    }
}

impl fmt::Debug for JsonSlice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// An iterator over the elements of an array.
#[derive(Clone, Debug)]
pub(crate) struct Elements<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Elements<'a> {
    pub(crate) fn new(array: &'a str) -> Self {
        Self { text: array, offset: 1 }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let bytes = self.text.as_bytes();
        let begin = next_begin(bytes, self.offset, b',');
        if matches!(bytes.get(begin), None | Some(b']')) {
            return None;
        }
        self.offset = value_end(bytes, begin);
        self.text.get(begin..self.offset)
    }
}

/// Finds the offset of each member's key.
pub(crate) fn find_members(object: &str) -> Vec<u32> {
    let bytes = object.as_bytes();
    let mut begins = Vec::new();
    let mut offset = 1;
    loop {
        let begin = next_begin(bytes, offset, b',');
        if bytes.get(begin) != Some(&b'"') {
            return begins;
        }
        begins.push(u32::try_from(begin).unwrap_or(u32::MAX));
        let value = next_begin(bytes, string_end(bytes, begin), b':');
        offset = value_end(bytes, value);
    }
}

/// Returns the spelling of the key at the offset `begin`, with its quotes.
pub(crate) fn key_spelling(object: &str, begin: usize) -> &str {
    let end = string_end(object.as_bytes(), begin);
    object.get(begin..end).unwrap_or_default()
}

/// Returns the range of the value whose key is at `begin`. `next` is the offset of the next key, if
/// there is one.
pub(crate) fn value_range(object: &str, begin: usize, next: Option<usize>) -> Range<usize> {
    let bytes = object.as_bytes();
    let start = next_begin(bytes, string_end(bytes, begin), b':');
    let end = next.unwrap_or(bytes.len());
    let up_to_end = bytes.get(start..end).unwrap_or_default().trim_ascii_end();
    let closing: &[u8] = if next.is_some() { b"," } else { b"}" };
    let value = up_to_end.strip_suffix(closing).unwrap_or(up_to_end);
    start..start + value.trim_ascii_end().len()
}

/// Returns whether the key spelled at `begin` decodes to `key`.
pub(crate) fn is_key(object: &str, begin: usize, key: &str) -> bool {
    let bytes = object.as_bytes();
    let spelled = bytes.get(begin + 1..).unwrap_or_default();
    for (index, byte) in spelled.iter().enumerate() {
        match byte {
            b'"' => return index == key.len(),
            b'\\' => return decode_string(key_spelling(object, begin)) == key,
            byte if key.as_bytes().get(index) == Some(byte) => {}
            _ => return false,
        }
    }
    false
}

/// Decodes a string. A lone surrogate cannot be expressed as text; a string with one is returned as
/// spelled, with its quotes.
pub(crate) fn decode_string(spelling: &str) -> Cow<'_, str> {
    if let Some(plain) = plain_content(spelling) {
        return Cow::Borrowed(plain);
    }
    match serde_json::from_str(spelling) {
        Ok(text) => Cow::Owned(text),
        Err(_) => Cow::Borrowed(spelling),
    }
}

/// Returns the content of a string without escapes, or `None` if the text is anything else.
pub(crate) fn plain_content(spelling: &str) -> Option<&str> {
    let inner = spelling.strip_prefix('"')?.strip_suffix('"')?;
    (!inner.as_bytes().contains(&b'\\')).then_some(inner)
}

/// Returns an upper bound for the number of nested values at any depth, and the length in bytes of
/// the longest decoded string.
pub(crate) fn measure(text: &str) -> (usize, usize) {
    let bytes = text.as_bytes();
    let (mut offset, mut count, mut longest) = (0, 0, 0);
    while let Some(byte) = bytes.get(offset) {
        if *byte == b'"' {
            let end = string_end(bytes, offset);
            let inner = bytes.get(offset + 1..end - 1).unwrap_or_default();
            longest = longest.max(decoded_len(inner));
            offset = end;
        } else {
            count += usize::from(matches!(byte, b',' | b'{' | b'['));
            offset += 1;
        }
    }
    (count, longest)
}

/// Returns the decoded length in bytes of the text between the quotes of a string.
fn decoded_len(inner: &[u8]) -> usize {
    let (mut offset, mut length) = (0, 0);
    while let Some(byte) = inner.get(offset) {
        let (spelled, read) = match (byte, inner.get(offset + 1)) {
            (b'\\', Some(b'u')) => (6, escape_len(inner.get(offset + 2..).unwrap_or_default())),
            (b'\\', _) => (2, 1),
            _ => (1, 1),
        };
        offset += spelled;
        length += read;
    }
    length
}

/// Returns the length in UTF-8 of the escape with these hexadecimal digits. A surrogate is half of a
/// four-byte character.
fn escape_len(digits: &[u8]) -> usize {
    match digits {
        [b'0', b'0', b'0'..=b'7', ..] => 1,
        [b'0', b'0'..=b'7', ..] | [b'd' | b'D', b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F', ..] => 2,
        _ => 3,
    }
}

/// Returns the offset of the next value, after white space and the separator.
fn next_begin(bytes: &[u8], mut offset: usize, separator: u8) -> usize {
    while let Some(byte) = bytes.get(offset) {
        if !byte.is_ascii_whitespace() && *byte != separator {
            break;
        }
        offset += 1;
    }
    offset
}

fn value_end(bytes: &[u8], begin: usize) -> usize {
    match bytes.get(begin) {
        Some(b'"') => string_end(bytes, begin),
        Some(b'{' | b'[') => container_end(bytes, begin),
        _ => {
            let rest = bytes.get(begin..).unwrap_or_default();
            let length = rest
                .iter()
                .position(|byte| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace());
            begin + length.unwrap_or(rest.len())
        }
    }
}

fn container_end(bytes: &[u8], begin: usize) -> usize {
    let (mut offset, mut depth) = (begin, 0_usize);
    while let Some(byte) = bytes.get(offset) {
        match byte {
            b'"' => {
                offset = string_end(bytes, offset);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return offset + 1,
            b'}' | b']' => depth -= 1,
            // An indented text is mostly blanks.
            b' ' => {
                while bytes.get(offset + 1..offset + 1 + BLANKS.len()) == Some(&BLANKS) {
                    offset += BLANKS.len();
                }
            }
            _ => {}
        }
        offset += 1;
    }
    bytes.len()
}

fn string_end(bytes: &[u8], begin: usize) -> usize {
    let mut offset = begin + 1;
    while let Some(rest) = bytes.get(offset..)
        && let Some(length) = memchr2(b'"', b'\\', rest)
    {
        offset += length + 1;
        if rest.get(length) == Some(&b'"') {
            return offset;
        }
        offset += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_element_ends_at_every_word_alignment() {
        for length in 0..40 {
            let plain = "x".repeat(length);
            let mut spelled = vec![plain.clone(), "\u{1}".repeat(length), "é".repeat(length)];
            for offset in 0..=length {
                for inside in ["\\\"", "\\\\", "{", "]", "\\u0022", ","] {
                    spelled.push(format!("{}{inside}{}", &plain[..offset], &plain[offset..]));
                }
            }
            for inner in spelled {
                let blank = " ".repeat(length);
                let nested =
                    format!("[{blank}{{{blank}\"{inner}\"{blank}:{blank}[]{blank}}}{blank}]");
                let string = format!("\"{inner}\"");
                let array = format!("[{blank}{string}{blank},{blank}{nested},1{blank}]");
                let found: Vec<&str> = Elements::new(&array).collect();
                assert_eq!(found, [string.as_str(), nested.as_str(), "1"], "{array}");
            }
        }
    }
}
