//! The plugin's `config` block in the agent's configuration. [`table`] defines every setting once, for the schema that
//! Nomad checks and for decoding.

mod decode;
mod duration;
mod schema;
pub mod table;
mod values;

pub use decode::decode;
pub use schema::build_schema;
pub use values::{
    DirMapping, DirSetting, PathSettings, PluginSettings, ProbeSettings, SlotSettings,
};
