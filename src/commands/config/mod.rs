//! `config`: the configuration file of onload-ctk.

pub mod schema;
pub mod show;
pub mod validate;
