//! A failure, as one line for people: what was being done, to which path or name, why it failed, what to do.

use std::error::Error as StdError;
use std::fmt;

use crate::text::ErrorChain;

/// A sentence, and what caused it.
///
/// `{}` is the sentence alone and `{:#}` the sentence with its causes, each after a colon. A caller that has to tell
/// failures apart gets a type of its own instead.
#[derive(Debug)]
pub struct Error(Repr);

#[derive(Debug)]
enum Repr {
    Sentence(String, Option<Cause>),
    Typed(Cause),
}

type Cause = Box<dyn StdError + Send + Sync>;

/// A result whose failure is a sentence.
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

/// Two failures are the same if people read the same.
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

/// An error that some callers match on; for the others `?` makes a sentence of it.
pub trait TypedError: StdError + Send + Sync + 'static {}

impl<E: TypedError> From<E> for Error {
    fn from(error: E) -> Self {
        Error(Repr::Typed(Box::new(error)))
    }
}

/// Says what was being done when something failed.
pub trait Context<T> {
    fn context(self, sentence: impl Into<String>) -> Result<T>;
    /// As [`Context::context`], for a sentence that has to be made.
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

/// Makes an [`Error`] of a format string.
#[macro_export]
macro_rules! error {
    ($($sentence:tt)*) => { $crate::error::Error::new(format!($($sentence)*)) };
}

/// Returns with an [`Error`] of a format string, or whatever the function's error is made from one.
#[macro_export]
macro_rules! bail {
    ($($sentence:tt)*) => { return Err($crate::error!($($sentence)*).into()) };
}

/// Types that serde reads as a text, by their `FromStr`.
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

/// Types that serde writes as a text, by their `Display`.
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

pub use {bail, error, read_as_text, written_as_text};
