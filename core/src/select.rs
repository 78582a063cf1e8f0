//! The table `select` of a pool: the conditions that a device of the pool has to meet.
//!
//! Each key holds a value or a list of alternatives. A device belongs to the pool if it matches
//! every key that is set.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::host_settings::{PfRef, mismatch_error};
use onload_sys::error::{Error, Result, read_as_text, shown_as_serialized, shown_as_text};
use onload_sys::pci::PciAddress;
use onload_sys::text::parse_digits;

/// The conditions for a device to belong to a pool. Without keys, every device of the class belongs
/// to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct PoolSelector {
    /// The vendor of the PCI function, as four hexadecimal digits.
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMore<HexId>"))]
    pub vendor: Vec<HexId>,
    /// The device ID of the PCI function, as four hexadecimal digits.
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMore<HexId>"))]
    pub device: Vec<HexId>,
    /// The driver of the PCI function.
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMore<String>"))]
    pub driver: Vec<String>,
    /// The physical function of a virtual function, by its interface or PCI address.
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMore<PfRef>"))]
    pub pf: Vec<PfRef>,
    /// The index of a virtual function below its physical function, as numbers and ranges.
    pub vf: VfRanges,
    /// The NUMA node. A device without one does not match.
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMore<u32>"))]
    pub numa: Vec<u32>,
    /// The name of one of the device's network interfaces; "*" matches any characters. A vfio
    /// device has none.
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMore<Glob>"))]
    pub interfaces: Vec<Glob>,
    /// The link layer of one of the device's ports: "ethernet" or "infiniband".
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMore<LinkLayer>"))]
    pub link_layer: Vec<LinkLayer>,
    /// The PCI address of the device.
    #[serde(deserialize_with = "deserialize_one_or_more")]
    #[cfg_attr(feature = "schema", schemars(with = "OneOrMore<String>"))]
    pub addresses: Vec<PciAddress>,
}

read_as_text!(HexId VfRanges Glob LinkLayer);

/// The ID of a PCI vendor or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HexId(pub u16);

impl FromStr for HexId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        match u16::from_str_radix(digits, 16) {
            Ok(id) if digits.len() == 4 && !digits.starts_with('+') => Ok(HexId(id)),
            _ => Err(mismatch_error("four hexadecimal digits such as \"15b3\"", text)),
        }
    }
}

impl fmt::Display for HexId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)
    }
}

/// Indexes of virtual functions, such as `0,2-7`. An empty list matches every index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct VfRanges(Vec<VfRange>);

/// Consecutive indexes of virtual functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VfRange {
    first: u16,
    last: u16,
}

impl VfRange {
    pub(crate) fn last(self) -> u16 {
        self.last
    }

    pub fn contains(self, index: u32) -> bool {
        (u32::from(self.first)..=u32::from(self.last)).contains(&index)
    }
}

impl VfRanges {
    pub fn as_slice(&self) -> &[VfRange] {
        &self.0
    }
}

impl FromStr for VfRanges {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.split(',')
            .map(|word| parse_range(word.trim()))
            .collect::<Option<_>>()
            .map(VfRanges)
            .ok_or_else(|| mismatch_error("indexes of virtual functions such as \"0,2-7\"", text))
    }
}

/// Parses `N` or `N-M`. A physical function has at most 65535 virtual functions (`TotalVFs` has 16
/// bits).
pub(crate) fn parse_range(word: &str) -> Option<VfRange> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (parse_digits(first)?, parse_digits(last)?);
    (first <= last).then_some(VfRange { first, last })
}

impl fmt::Display for VfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.first == self.last {
            return Ok(());
        }
        write!(f, "-{}", self.last)
    }
}

/// A pattern for names of interfaces; `*` matches any characters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Glob(String);

impl FromStr for Glob {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty()
            || text.contains(|c: char| "/?[]{}".contains(c) || c.is_whitespace() || c.is_control())
        {
            let expected = "an interface name, in which only \"*\" matches other characters";
            return Err(mismatch_error(expected, text));
        }
        Ok(Glob(text.to_owned()))
    }
}

impl Glob {
    pub fn matches(&self, name: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else {
            return self.0 == name;
        };
        let Some(mut name) = name.strip_prefix(start) else {
            return false;
        };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The first match of each part leaves the longest rest for the parts after it.
        for part in middle.split('*') {
            let Some(index) = name.find(part) else {
                return false;
            };
            name = &name[index + part.len()..];
        }
        name.ends_with(end)
    }
}

shown_as_text!(Glob);

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum LinkLayer {
    /// Also of RoCE.
    Ethernet,
    /// Also of IP over InfiniBand.
    InfiniBand,
}

impl FromStr for LinkLayer {
    type Err = Error;

    /// Ignores case: the kernel writes `InfiniBand`, people write `infiniband`.
    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "ethernet" => Ok(LinkLayer::Ethernet),
            "infiniband" => Ok(LinkLayer::InfiniBand),
            _ => Err(mismatch_error("\"ethernet\" or \"infiniband\"", text)),
        }
    }
}

shown_as_serialized!(LinkLayer);

/// Deserializes one value, or a list of at least one.
pub(crate) fn deserialize_one_or_more<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct WordsVisitor<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for WordsVisitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("one value or an array of them")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            T::deserialize(text.into_deserializer()).map(|value| vec![value])
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<T>, E> {
            T::deserialize(number.into_deserializer()).map(|value| vec![value])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut values = Vec::new();
            while let Some(value) = list.next_element()? {
                values.push(value);
            }
            if values.is_empty() {
                return Err(de::Error::custom(
                    "the list is empty, so that no device would match; remove the key",
                ));
            }
            Ok(values)
        }
    }
    deserializer.deserialize_any(WordsVisitor(PhantomData))
}

/// The schema of what [`deserialize_one_or_more`] reads.
#[cfg(feature = "schema")]
pub(crate) struct OneOrMore<T>(PhantomData<T>);

#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> schemars::JsonSchema for OneOrMore<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("OneOrMore{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let value = generator.subschema_for::<T>();
        schemars::json_schema!({"anyOf": [value, {"type": "array", "items": value, "minItems": 1}]})
    }
}

/// Checks that each type of word is parsed again from its text, and that [`Glob`] matches the same names as
/// [`slow_match`].
///
/// # Panics
/// If one of these does not hold.
#[cfg(fuzzing)]
pub fn fuzz(text: &str) {
    fn again<T: FromStr + fmt::Display + PartialEq + fmt::Debug>(text: &str) {
        if let Ok(word) = text.parse::<T>() {
            assert_eq!(word.to_string().parse::<T>().ok(), Some(word), "{text:?}");
        }
    }
    again::<HexId>(text);
    again::<PfRef>(text);
    again::<LinkLayer>(text);
    again::<Glob>(text);
    if let Ok(ranges) = text.parse::<VfRanges>() {
        let written: Vec<String> = ranges.0.iter().map(ToString::to_string).collect();
        assert_eq!(written.join(",").parse().ok(), Some(ranges));
    }
    let (pattern, name) = text.split_once('\n').unwrap_or((text, text));
    if let Ok(glob) = pattern.parse::<Glob>() {
        assert_eq!(glob.matches(name), slow_match(pattern.as_bytes(), name.as_bytes()));
    }
}

/// Matches a pattern by a second algorithm, which is simple and slow.
#[cfg(any(test, fuzzing))]
fn slow_match(pattern: &[u8], name: &[u8]) -> bool {
    // matched[N]: whether the part of the pattern so far matches the first N bytes of the name.
    let mut matched: Vec<bool> = (0..=name.len()).map(|length| length == 0).collect();
    for symbol in pattern {
        let mut next = vec![false; matched.len()];
        for length in 0..matched.len() {
            next[length] = match symbol {
                b'*' => matched[..=length].contains(&true),
                byte => length > 0 && matched[length - 1] && name[length - 1] == *byte,
            };
        }
        matched = next;
    }
    matched.last() == Some(&true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names() {
        let matches = |glob: &str, name: &str| glob.parse::<Glob>().unwrap().matches(name);
        for (glob, name) in [
            ("ens1", "ens1"),
            ("ens1*", "ens1"),
            ("ens1*", "ens1f0np0"),
            ("*", "x"),
            ("*np0", "ens1f0np0"),
            ("ens*f0*", "ens1f0v3"),
            ("e*s*v*", "ens1f0v3"),
            ("a*a", "aa"),
            ("a**a", "aba"),
            ("*a*", "banana"),
            ("é*", "éa"),
        ] {
            assert!(matches(glob, name), "{glob} {name}");
        }
        for (glob, name) in [
            ("ens1", "ens10"),
            ("ens1", "xens1"),
            ("ens1*", "ens2"),
            ("ens1*", "en"),
            ("*np0", "np01"),
            ("a*a", "a"),
            ("ab*ba", "aba"),
            ("*x*", "banana"),
            ("a*b*c", "acb"),
        ] {
            assert!(!matches(glob, name), "{glob} {name}");
        }
    }

    #[test]
    fn matching_agrees_with_a_simple_algorithm() {
        let words = |letters: &[char]| {
            let mut words = vec![String::new()];
            let mut last = words.clone();
            for _ in 0..4 {
                last = last
                    .iter()
                    .flat_map(|word| letters.iter().map(move |letter| format!("{word}{letter}")))
                    .collect();
                words.extend(last.clone());
            }
            words
        };
        let names = words(&['a', 'b']);
        let globs: Vec<Glob> =
            words(&['a', 'b', '*']).iter().filter_map(|glob| glob.parse().ok()).collect();
        for glob in &globs {
            for name in &names {
                let expected = slow_match(glob.0.as_bytes(), name.as_bytes());
                assert_eq!(glob.matches(name), expected, "{glob} {name}");
            }
        }
        assert_eq!((globs.len(), names.len()), (120, 31));
    }

    #[test]
    fn indexes_of_virtual_functions_are_numbers_and_ranges() {
        let ranges: VfRanges = "0,2-7, 65535".parse().unwrap();
        let contained = |index| ranges.as_slice().iter().any(|range| range.contains(index));
        for index in [0, 2, 5, 7, 65_535] {
            assert!(contained(index), "{index}");
        }
        for index in [1, 8, 65_534, 65_536, u32::MAX] {
            assert!(!contained(index), "{index}");
        }
        let written: Vec<String> = ranges.as_slice().iter().map(ToString::to_string).collect();
        assert_eq!(written, ["0", "2-7", "65535"]);
    }

    #[test]
    fn words_have_a_canonical_form() {
        for (text, written) in [("15b3", "15b3"), ("0x1924", "1924"), ("10EE", "10ee")] {
            assert_eq!(text.parse::<HexId>().unwrap().to_string(), written);
        }
        for text in ["Ethernet", "ethernet"] {
            assert_eq!(text.parse(), Ok(LinkLayer::Ethernet));
        }
        assert_eq!("InfiniBand".parse(), Ok(LinkLayer::InfiniBand));
    }

    fn check_rejected<T: FromStr<Err = Error> + fmt::Debug>(texts: &[&str], expected: &str) {
        for text in texts {
            assert_eq!(text.parse::<T>().unwrap_err(), mismatch_error(expected, text));
        }
    }

    #[test]
    fn invalid_words_are_rejected() {
        check_rejected::<HexId>(
            &["", "0x", "15b", "015b3", "15bg", "+5b3", "0X15b3", "5555 "],
            "four hexadecimal digits such as \"15b3\"",
        );
        check_rejected::<VfRanges>(
            &["", "x", "1-", "-1", "7-2", "0,,1", "0,", "1-2-3", "+1", "65536", "0 2", "0x1"],
            "indexes of virtual functions such as \"0,2-7\"",
        );
        check_rejected::<Glob>(
            &["", "ens?", "ens[12]", "a b", "a/b", "{a}", "a\n"],
            "an interface name, in which only \"*\" matches other characters",
        );
        check_rejected::<LinkLayer>(&["", "roce", "ib"], "\"ethernet\" or \"infiniband\"");
    }
}
