//! Names: `vendor/class` of a kind, and `vendor/class=device` of a device.
//!
//! The rules are those of the CDI library's parser, which is what engines run: its code has
//! neither the length limits nor the DNS rules that the specification's text mentions.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Why a text is not a name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// There is nothing where a part of the name should be.
    #[error("invalid {what} in {text:?}: it is empty")]
    Empty {
        /// Which part.
        what: &'static str,
        /// The whole text.
        text: String,
    },
    /// The first character is not allowed there.
    #[error("invalid {what} {text:?}: it starts with {found:?}, want a {want}")]
    Start {
        /// Which part.
        what: &'static str,
        /// The part.
        text: String,
        /// The character found.
        found: char,
        /// What may stand there.
        want: &'static str,
    },
    /// The last character is not allowed there.
    #[error("invalid {what} {text:?}: it ends with {found:?}, want a letter or a digit")]
    End {
        /// Which part.
        what: &'static str,
        /// The part.
        text: String,
        /// The character found.
        found: char,
    },
    /// A character inside is not allowed.
    #[error("invalid {what} {text:?}: {found:?} is not allowed, want letters, digits and {want}")]
    Character {
        /// Which part.
        what: &'static str,
        /// The part.
        text: String,
        /// The character found.
        found: char,
        /// What is allowed beside letters and digits.
        want: &'static str,
    },
    /// A kind without its slash.
    #[error("invalid kind {0:?}: want vendor/class")]
    NoClass(String),
    /// A qualified name without its equals sign, or a path.
    #[error("{0:?} is not a qualified device name: want vendor/class=device")]
    Unqualified(String),
}

struct Rule {
    what: &'static str,
    digit_first: bool,
    inside: &'static str,
    inside_words: &'static str,
}

const VENDOR: Rule = Rule {
    what: "vendor",
    digit_first: false,
    inside: "_-.",
    inside_words: "'_', '-', '.'",
};
const CLASS: Rule = Rule {
    what: "class",
    ..VENDOR
};
const DEVICE: Rule = Rule {
    what: "device name",
    digit_first: true,
    inside: "_-.:",
    inside_words: "'_', '-', '.', ':'",
};

fn check(rule: &Rule, part: &str, whole: &str) -> Result<(), NameError> {
    let (Some(first), Some(last)) = (part.chars().next(), part.chars().next_back()) else {
        return Err(NameError::Empty {
            what: rule.what,
            text: whole.to_owned(),
        });
    };
    let text = || part.to_owned();
    if !(first.is_ascii_alphabetic() || rule.digit_first && first.is_ascii_digit()) {
        let want = if rule.digit_first {
            "letter or a digit"
        } else {
            "letter"
        };
        return Err(NameError::Start {
            what: rule.what,
            text: text(),
            found: first,
            want,
        });
    }
    let odd = |c: &char| !c.is_ascii_alphanumeric() && !rule.inside.contains(*c);
    if let Some(found) = part.chars().find(odd) {
        let want = rule.inside_words;
        return Err(NameError::Character {
            what: rule.what,
            text: text(),
            found,
            want,
        });
    }
    if !last.is_ascii_alphanumeric() {
        return Err(NameError::End {
            what: rule.what,
            text: text(),
            found: last,
        });
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
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
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

/// `vendor/class`: a letter first, then letters, digits, `_`, `-` and `.`, a letter or digit last,
/// in each of the two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(String);
text_newtype!(Kind);

impl Kind {
    /// What stands before the slash.
    #[must_use]
    pub fn vendor(&self) -> &str {
        self.0.split_once('/').map_or("", |(vendor, _)| vendor)
    }

    /// What stands behind the slash.
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
            .ok_or_else(|| NameError::NoClass(text.to_owned()))?;
        check(&VENDOR, vendor, text)?;
        check(&CLASS, class, text)?;
        Ok(Self(text.to_owned()))
    }
}

/// The name of a device in its kind: a letter or digit first and last, letters, digits, `_`, `-`,
/// `.` and `:` between, so that a PCI address is a name.
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

/// `vendor/class=device`: what is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    kind: Kind,
    device: DeviceName,
}

impl QualifiedName {
    /// Puts a name together.
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
        let unqualified = || NameError::Unqualified(text.to_owned());
        if text.starts_with('/') {
            return Err(unqualified());
        }
        let (kind, device) = text.split_once('=').ok_or_else(unqualified)?;
        if !kind.contains('/') {
            return Err(unqualified());
        }
        Ok(Self {
            kind: kind.parse()?,
            device: device.parse()?,
        })
    }
}

impl TryFrom<&str> for QualifiedName {
    type Error = NameError;

    fn try_from(text: &str) -> Result<Self, NameError> {
        text.parse()
    }
}
