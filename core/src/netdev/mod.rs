//! Network interfaces that containers get for themselves: the addresses that they may have there
//! ([`address`]) and what the operator's configuration sets on them ([`settings`]), and whether the host uses
//! one itself ([`usage`]).

pub mod address;
pub mod settings;
pub mod usage;
