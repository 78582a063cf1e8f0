//! Into a container.
