//! Read-only reports about a host: [`doctor`] says what is wrong with it, [`status`] how its containers do,
//! [`topology`] where everything is, and [`metrics`] counts it. No hook and no specification depends on it.

pub mod doctor;
pub mod metrics;
pub mod status;
#[cfg(test)]
mod test_tree;
pub mod topology;
