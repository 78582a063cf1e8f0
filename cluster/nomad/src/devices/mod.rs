//! Which devices Nomad is offered, and what a task of one gets: pure, but for reading specifications.

pub mod attributes;
pub mod edit_sources;
pub mod group;
pub mod id;
pub mod layout;
pub mod plan;
pub mod reservation;
pub mod trust;
