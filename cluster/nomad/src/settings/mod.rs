//! What stands in the `config` block of the plugin in the agent's configuration. [`table`] names every setting
//! once: the schema that Nomad checks is made of it, and what Nomad sends is read by it.

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
