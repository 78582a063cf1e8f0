//! The command line, for `args` of the plugin in the agent's configuration. Every flag has an environment
//! variable.

use std::path::PathBuf;

use clap::Parser;

/// Offers the devices of this host to Nomad, as a plugin that its agent starts
#[derive(Clone, Debug, Parser)]
#[command(name = "onload-nomad-device", version, max_term_width = 100)]
pub struct NomadCli {
    /// Use this directory as the root of the host, instead of /
    #[arg(long, value_name = "DIR", default_value = "/", env = "ONLOAD_NOMAD_HOST_ROOT")]
    pub host_root: PathBuf,
    /// Configuration file [default: etc/onload-ctk/config.toml of the host]
    #[arg(long, value_name = "FILE", env = "ONLOAD_NOMAD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Spec directory (repeatable; later directories take precedence) [default: those that engines read]
    #[arg(long, value_name = "DIR", value_delimiter = ',', env = "ONLOAD_NOMAD_SPEC_DIR")]
    pub spec_dir: Vec<PathBuf>,
}
