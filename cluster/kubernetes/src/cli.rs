//! The command line. Every flag has an environment variable, so that a DaemonSet or the unit's
//! EnvironmentFile can set it; a flag goes before its variable, and that before config.toml.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};
use onload_core::kubernetes_settings::Listen;

/// Offers the devices of this node to Kubernetes
#[derive(Debug, Parser)]
#[command(name = "onload-kubernetes", version, max_term_width = 100)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Look at the host below this directory instead of the running one
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/",
        value_hint = ValueHint::DirPath,
        env = "ONLOAD_KUBERNETES_HOST_ROOT"
    )]
    pub host_root: PathBuf,
    /// Configuration file [default: etc/onload-ctk/config.toml of the host]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "ONLOAD_KUBERNETES_CONFIG"
    )]
    pub config: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Offer the devices of this node to its kubelet, until SIGTERM
    Run(Run),
}

/// Run the daemon.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// The directory where kubelet and device plugins meet
    ///
    /// Kubelet has no other one, whatever its --root-dir says.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins",
        value_hint = ValueHint::DirPath,
        env = "ONLOAD_KUBERNETES_DEVICE_PLUGIN_DIR"
    )]
    pub device_plugin_dir: PathBuf,
    /// Directories with CDI specifications, each of a higher priority than the one before
    /// [default: etc/cdi and var/run/cdi of the host]
    #[arg(
        long,
        value_name = "DIR",
        value_delimiter = ',',
        value_hint = ValueHint::DirPath,
        env = "ONLOAD_KUBERNETES_SPEC_DIR"
    )]
    pub spec_dir: Vec<PathBuf>,
    /// Where /metrics and /healthz are served: ADDRESS:PORT, unix:/PATH, or nothing for nowhere
    /// [default: listen in section kubernetes of the configuration]
    #[arg(long, value_name = "ADDRESS", env = "ONLOAD_KUBERNETES_LISTEN")]
    pub listen: Option<Listen>,
}
