//! Lossless JSON: objects and arrays one level deep, whose values stay the text that they were.
//!
//! An object or array that nobody changed is written byte for byte as it was read; in a changed one
//! every untouched key and value keeps its spelling (`1e3`, `0.10`, escapes, 30-digit numbers) and its
//! place, and only the white space between them goes. Values are scanned without recursion, so that
//! nesting costs no stack, and an object that says a key twice is refused when it is opened, since two
//! readers may keep different ones.
//!
//! Who wrote the text may have written millions of members, so nothing is held for each but the place
//! where it begins: four bytes for a member of an object, none for an element of an array. All of it
//! stays one text, and what is opened in it is a piece of that.

pub(crate) mod place;
mod raw;
mod text;

pub use raw::{Change, MAX_STRING, MAX_VALUES, RawArray, RawError, RawObject, read_string};
