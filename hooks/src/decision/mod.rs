//! What one container gets.

pub mod host_root;
pub mod nodes;
