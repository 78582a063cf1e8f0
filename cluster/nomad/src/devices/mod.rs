//! The devices that are offered to Nomad, and the edits for their tasks. Pure, except for reading specifications.

pub mod attributes;
pub mod edit_sources;
pub mod group;
pub mod id;
pub mod layout;
pub mod plan;
pub mod reservation;
pub mod trust;
