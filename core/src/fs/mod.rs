//! Careful access to files: opening inside a root ([`open`]), trusting only what nobody but root
//! could have changed ([`trust`]), replacing whole files ([`atomic`]), copying owner and labels
//! ([`attributes`]), and locks between onload-ctk's processes ([`lock`]).

pub mod atomic;
pub mod attributes;
pub mod lock;
pub mod open;
pub mod trust;
