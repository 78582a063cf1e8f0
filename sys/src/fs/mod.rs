//! Files, opened with care: inside a root ([`open`]), inside that of a container ([`container_root`]), only where nobody but root could have changed
//! them ([`trust`]), only where they are files ([`regular`]), replaced whole ([`atomic`]), given the owner
//! and labels of another ([`attributes`]), and locked between processes of ours ([`lock`]); the names in a directory
//! ([`list`]); and file systems of the kernel that nothing is mounted over ([`detached`]).

pub mod atomic;
pub mod attributes;
pub mod container_root;
pub mod detached;
pub mod list;
pub mod lock;
pub mod open;
pub mod regular;
pub mod trust;
