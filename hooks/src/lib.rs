//! Into a container: what a container asks for, what the operator allows, and the edits that follow.
//!
//! The binaries of this crate run as root while a container is made, so it stays small, static and
//! free of everything that takes its orders from an environment.

pub mod class;
pub mod config;
pub mod elf;
