//! The wrapper.

pub mod args;
pub mod exec;
pub mod log;

/// Runs.
#[must_use]
pub fn main() -> i32 {
    0
}
