//! Lossless JSON: objects and arrays one level deep, whose values remain the text that was read.
//!
//! Writing an unchanged object or array returns the bytes that were read. In a changed one, every
//! untouched key and value keeps its spelling (`1e3`, `0.10`, escapes, 30-digit numbers) and its
//! position; only the white space between them is dropped. Values are scanned without recursion, so
//! nesting costs no stack. An object with a duplicate key is rejected when it is opened, since two
//! readers may keep different values.
//!
//! An untrusted text may have millions of members, so only the start of each is stored: four bytes
//! for a member of an object, nothing for an element of an array. Opened objects and arrays share
//! the text that they were read from.

mod raw;
mod slice;
pub(crate) mod value_path;

pub use raw::{ElementChange, MAX_STRING, MAX_VALUES, RawArray, RawError, RawObject, read_string};
