//! Safe file operations: opening paths inside a root ([`open`]) or a container's root ([`container_root`]), trusting
//! only files that root alone can change ([`trust`]), reading only regular files ([`regular`]), replacing files
//! atomically ([`atomic`]), copying owners and labels ([`attributes`]), locking ([`lock`]), listing directories
//! ([`list`]), and mounting kernel file systems outside of the file tree, where nothing can be mounted over their files
//! ([`detached`]).

pub mod atomic;
pub mod attributes;
pub mod container_root;
pub mod detached;
pub mod list;
pub mod lock;
pub mod open;
pub mod regular;
pub mod trust;
