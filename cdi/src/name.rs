//! The names of kinds (`vendor/class`), devices (`vendor/class=device`) and hook stages.
//!
//! The rules are those of the parser in the engines' CDI library. It implements neither the length
//! limits nor the DNS rules that the specification mentions.

use std::fmt;
use std::str::FromStr;

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
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
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
    /// The kind.
    pub kind: Kind,
    /// The device's name in its kind.
    pub device: DeviceName,
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

impl From<HookName> for String {
    fn from(name: HookName) -> String {
        name.as_str().to_owned()
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
