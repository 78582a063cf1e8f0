//! Network interfaces that containers get for themselves: the addresses ([`address`]) and new_names ([`new_name`]) that they may
//! have there, what the operator's configuration sets on them ([`settings`]), and whether the host uses one itself
//! ([`usage`]).

pub mod address;
pub mod new_name;
pub mod settings;
pub mod usage;
