//! Lossless JSON: objects and arrays one level deep, whose values remain the text that was read.
//!
//! An unchanged object or array is written byte for byte as it was read. In a changed one, every
//! untouched key and value keeps its spelling (`1e3`, `0.10`, escapes, 30-digit numbers) and its
//! position; only the white space between them is dropped. Values are scanned without recursion, so
//! nesting costs no stack. An object with a duplicate key is refused when it is opened, since two
//! readers may keep different values.
//!
//! An untrusted text may have millions of members, so only the start of each is stored: four bytes
//! for a member of an object, nothing for an element of an array. All of it stays one text, and
//! whatever is opened in it is a piece of that text.

mod raw;
mod slice;
pub(crate) mod value_path;

pub use raw::{ElementChange, MAX_STRING, MAX_VALUES, RawArray, RawError, RawObject, read_string};
