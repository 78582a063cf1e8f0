//! Into a container: what it requests, what the operator allows, and how it gets that.
//!
//! [`decide`] says what one container gets. Three appliers carry it out: [`config::filter`] in the configuration that the
//! runtime will read, [`config::adjust`] by telling an engine that asks before it creates the container, [`live`] in the
//! namespaces of a container that its runtime has already created.
//!
//! The binaries run as root while a container is created: the crate stays small and static, and takes no
//! instructions from an environment.

pub mod config;
pub mod decide;
pub mod entry;
pub(crate) mod image;
pub mod live;
pub mod moves;
pub mod record;
