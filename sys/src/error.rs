//! Errors as one line for people: what was being done, to which path or name, why it failed, what to do.

use std::error::Error as StdError;
use std::fmt;

use rustix::io::Errno;

use crate::text::ErrorChain;

/// An error message and its causes.
///
/// `{}` formats only the message, and `{:#}` the message and its causes, separated by colons. Functions whose callers
/// distinguish failures return a separate type.
#[derive(Debug)]
pub struct Error(Repr);

#[derive(Debug)]
enum Repr {
    Sentence(String, Option<Cause>),
    Typed(Cause),
}

type Cause = Box<dyn StdError + Send + Sync>;

/// A result with an [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(sentence: impl Into<String>) -> Self {
        Error(Repr::Sentence(sentence.into(), None))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            _ if f.alternate() => write!(f, "{}", ErrorChain(self)),
            Repr::Sentence(sentence, _) => f.write_str(sentence),
            Repr::Typed(error) => write!(f, "{error}"),
        }
    }
}

/// Errors are equal if their texts are equal.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:#}") == format!("{other:#}")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0 {
            Repr::Sentence(_, cause) => Some(cause.as_deref()?),
            Repr::Typed(error) => error.source(),
        }
    }
}

/// An error that some callers match on. `?` converts it to an [`Error`] in other callers.
pub trait TypedError: StdError + Send + Sync + 'static {}

impl<E: TypedError> From<E> for Error {
    fn from(error: E) -> Self {
        Error(Repr::Typed(Box::new(error)))
    }
}

/// Returns the error of a system call that was made directly.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Adds what was being done to an error.
pub trait Context<T> {
    fn context(self, sentence: impl Into<String>) -> Result<T>;
    /// Like [`Context::context`], for a message that is formatted only on failure.
    fn with_context<S: Into<String>>(self, sentence: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<Cause>> Context<T> for Result<T, E> {
    fn context(self, sentence: impl Into<String>) -> Result<T> {
        self.with_context(|| sentence)
    }

    fn with_context<S: Into<String>>(self, sentence: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|cause| Error(Repr::Sentence(sentence().into(), Some(cause.into()))))
    }
}

/// Creates an [`Error`] from a format string.
#[macro_export]
macro_rules! error {
    ($($sentence:tt)*) => { $crate::error::Error::new(format!($($sentence)*)) };
}

/// Returns from the function with an [`Error`] from a format string, converted to the function's error type.
#[macro_export]
macro_rules! bail {
    ($($sentence:tt)*) => { return Err($crate::error!($($sentence)*).into()) };
}

/// Implements `Deserialize` from a string for types with `FromStr`.
#[macro_export]
macro_rules! read_as_text {
    ($($name:ty)*) => {$(
        impl TryFrom<String> for $name {
            type Error = $crate::error::Error;

            fn try_from(text: String) -> $crate::error::Result<Self> {
                text.parse()
            }
        }
    )*};
}

/// Implements `Serialize` as a string for types with `Display`.
#[macro_export]
macro_rules! written_as_text {
    ($($name:ty)*) => {$(
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    )*};
}

/// Implements `as_str` and `Display` for types that wrap a checked string.
#[macro_export]
macro_rules! shown_as_text {
    ($($name:ty)*) => {$(
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

/// Implements `Display` for enums that are serialized as words.
#[macro_export]
macro_rules! shown_as_serialized {
    ($($name:ty)*) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        }
    )*};
}

/// Implements `get`, and `Deserialize` from a number, for types that wrap a number within bounds.
#[macro_export]
macro_rules! bounded_number {
    ($name:ident, $min:literal..=$max:expr, $unit:literal) => {
        impl $name {
            pub fn get(self) -> u32 {
                self.0
            }
        }

        impl TryFrom<i64> for $name {
            type Error = $crate::error::Error;

            fn try_from(number: i64) -> $crate::error::Result<Self> {
                match u32::try_from(number) {
                    Ok(number) if ($min..=$max).contains(&number) => Ok($name(number)),
                    _ => $crate::error::bail!(
                        "expected a number of {} from {} to {}, found {number}",
                        $unit,
                        $min,
                        $max
                    ),
                }
            }
        }
    };
}

pub use {
    bail, bounded_number, error, read_as_text, shown_as_serialized, shown_as_text, written_as_text,
};
