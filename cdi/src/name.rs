//! The names of kinds (`vendor/class`), devices (`vendor/class=device`) and hook stages.
//!
//! The rules are those of the parser in the engines' CDI library. It implements neither the length
//! limits nor the DNS rules that the specification mentions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Why a text is not a name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct NameError(String);

struct NameRule {
    what: &'static str,
    digit_first: bool,
    inside: &'static str,
    inside_words: &'static str,
}

const VENDOR: NameRule =
    NameRule { what: "vendor", digit_first: false, inside: "_-.", inside_words: "'_', '-', '.'" };
const CLASS: NameRule = NameRule { what: "class", ..VENDOR };
const DEVICE: NameRule = NameRule {
    what: "device name",
    digit_first: true,
    inside: "_-.:",
    inside_words: "'_', '-', '.', ':'",
};

fn check(rule: &NameRule, part: &str, whole: &str) -> Result<(), NameError> {
    let what = rule.what;
    let (Some(first), Some(last)) = (part.chars().next(), part.chars().next_back()) else {
        return Err(NameError(format!("invalid {what} in {whole:?}: it is empty")));
    };
    let invalid =
        |reason: fmt::Arguments<'_>| NameError(format!("invalid {what} {part:?}: {reason}"));
    if !(first.is_ascii_alphabetic() || rule.digit_first && first.is_ascii_digit()) {
        let expected = if rule.digit_first { "letter or a digit" } else { "letter" };
        return Err(invalid(format_args!("it starts with {first:?}, expected a {expected}")));
    }
    let invalid_char =
        part.chars().find(|c| !c.is_ascii_alphanumeric() && !rule.inside.contains(*c));
    if let Some(character) = invalid_char {
        let expected = rule.inside_words;
        return Err(invalid(format_args!(
            "{character:?} is not allowed, expected letters, digits and {expected}"
        )));
    }
    if !last.is_ascii_alphanumeric() {
        return Err(invalid(format_args!("it ends with {last:?}, expected a letter or a digit")));
    }
    Ok(())
}

macro_rules! text_newtype {
    ($name:ident) => {
        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
        impl TryFrom<&str> for $name {
            type Error = NameError;
            fn try_from(text: &str) -> Result<Self, NameError> {
                text.parse()
            }
        }
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }
    };
}

/// `vendor/class`: each of the two starts with a letter, ends with a letter or digit, and consists
/// of letters, digits, `_`, `-` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(String);
text_newtype!(Kind);

impl Kind {
    /// The part before the slash.
    #[must_use]
    pub fn vendor(&self) -> &str {
        self.0.split_once('/').map_or("", |(vendor, _)| vendor)
    }

    /// The part after the slash.
    #[must_use]
    pub fn class(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, class)| class)
    }
}

impl FromStr for Kind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (vendor, class) = text
            .split_once('/')
            .ok_or_else(|| NameError(format!("invalid kind {text:?}: expected vendor/class")))?;
        check(&VENDOR, vendor, text)?;
        check(&CLASS, class, text)?;
        Ok(Self(text.to_owned()))
    }
}

/// The name of a device in its kind: letters, digits, `_`, `-`, `.` and `:`, with a letter or digit
/// at both ends. A PCI address is a valid name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceName(String);
text_newtype!(DeviceName);

impl FromStr for DeviceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check(&DEVICE, text, text)?;
        Ok(Self(text.to_owned()))
    }
}

/// `vendor/class=device`: the name by which a device is requested.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    kind: Kind,
    device: DeviceName,
}

impl QualifiedName {
    /// Creates the qualified name of a device.
    #[must_use]
    pub fn new(kind: Kind, device: DeviceName) -> Self {
        Self { kind, device }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The device's name in its kind.
    #[must_use]
    pub fn device(&self) -> &DeviceName {
        &self.device
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.kind, self.device)
    }
}

impl FromStr for QualifiedName {
    type Err = NameError;

    /// Splits at the first `=`, then at the first `/`; a text that starts with `/` is a path.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let unqualified = || {
            NameError(format!(
                "{text:?} is not a qualified device name: expected vendor/class=device"
            ))
        };
        if text.starts_with('/') {
            return Err(unqualified());
        }
        let (kind, device) = text.split_once('=').ok_or_else(unqualified)?;
        if !kind.contains('/') {
            return Err(unqualified());
        }
        Ok(Self { kind: kind.parse()?, device: device.parse()? })
    }
}

impl TryFrom<&str> for QualifiedName {
    type Error = NameError;

    fn try_from(text: &str) -> Result<Self, NameError> {
        text.parse()
    }
}

/// Defines an enum with a text for each variant.
macro_rules! text_enum {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $text:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All of them, in order.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// Returns the text in files.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.as_str())
            }
        }
    };
}
pub(crate) use text_enum;

text_enum! {
    /// The stage at which a hook runs (OCI runtime specification, "POSIX-platform Hooks"), in
    /// execution order.
    #[non_exhaustive]
    pub enum HookName {
        /// Between creation and start, in the runtime's namespaces. Deprecated.
        Prestart = "prestart",
        /// While the container is created, in the runtime's namespaces.
        CreateRuntime = "createRuntime",
        /// While the container is created, in the container's namespaces.
        CreateContainer = "createContainer",
        /// Before the process of the container starts, in its namespaces.
        StartContainer = "startContainer",
        /// After the start, in the runtime's namespaces.
        Poststart = "poststart",
        /// After the deletion, in the runtime's namespaces.
        Poststop = "poststop",
    }
}

impl FromStr for HookName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::ALL.into_iter().find(|name| name.as_str() == text).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            NameError(format!("no stage is called {text:?}: expected one of {all}"))
        })
    }
}

/// A name read from a specification: a `T`, or an invalid text with the reason.
///
/// An invalid name makes the file invalid, but does not stop the reader: it is reported together
/// with all other problems ([`validate`](crate::validate())), and is written back unchanged.
///
/// ```
/// use onload_cdi::{Kind, LenientName};
///
/// let kind: LenientName<Kind> = "vendor.com/nic".into();
/// assert_eq!(kind.valid().map(Kind::class), Some("nic"));
///
/// let wrong: LenientName<Kind> = "vendor.com".into();
/// assert_eq!((wrong.valid(), wrong.as_str()), (None, "vendor.com"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenientName<T> {
    text: String,
    name: Result<T, NameError>,
}

impl<T> LenientName<T> {
    /// Returns the name.
    ///
    /// # Errors
    /// The reason why the text is not a valid name.
    pub fn check(&self) -> Result<&T, &NameError> {
        self.name.as_ref()
    }

    /// Returns the name, if it is valid.
    #[must_use]
    pub fn valid(&self) -> Option<&T> {
        self.check().ok()
    }

    /// The text, valid or not.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The empty text, which is not a valid name.
impl<T: FromStr<Err = NameError>> Default for LenientName<T> {
    fn default() -> Self {
        Self::from("")
    }
}

impl<T: FromStr<Err = NameError>> From<&str> for LenientName<T> {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), name: text.parse() }
    }
}

macro_rules! valid_names {
    ($($name:ident),*) => {$(
        impl From<$name> for LenientName<$name> {
            fn from(name: $name) -> Self {
                Self {
                    text: name.to_string(),
                    name: Ok(name),
                }
            }
        }
    )*};
}
valid_names!(Kind, DeviceName, HookName);

impl<T> fmt::Display for LenientName<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl<'de, T: FromStr<Err = NameError>> Deserialize<'de> for LenientName<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::from(text.as_str()))
    }
}

impl<T> Serialize for LenientName<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
