//! The command line. Every flag has an environment variable, so that a DaemonSet or the unit's
//! EnvironmentFile can set it; a flag takes precedence over its variable, and that over config.toml.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use onload_core::kubernetes_settings::ListenAddress;

use crate::names::NodeName;
use crate::spec_writer::HOOK_DIR;

/// Offers the devices of this node to Kubernetes
#[derive(Debug, Parser)]
#[command(name = "onload-kubernetes", version, max_term_width = 100)]
pub struct KubernetesCli {
    /// Options of every command.
    #[command(flatten)]
    pub global: KubernetesArgs,
    /// The command to run.
    #[command(subcommand)]
    pub command: KubernetesCommand,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct KubernetesArgs {
    /// Use this directory as the root of the host, instead of /
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/",
        env = "ONLOAD_KUBERNETES_HOST_ROOT"
    )]
    pub host_root: PathBuf,
    /// Configuration file [default: etc/onload-ctk/config.toml of the host]
    #[arg(long, global = true, value_name = "FILE", env = "ONLOAD_KUBERNETES_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory of the host for hooks, with one directory per version
    ///
    /// The OCI runtime executes them there: the file system must be mounted with exec, and the directory and each one
    /// above it must belong to root.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = HOOK_DIR,
        env = "ONLOAD_KUBERNETES_HOOK_DIR"
    )]
    pub hook_dir: PathBuf,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum KubernetesCommand {
    /// Offer the devices of this node to its kubelet, until SIGTERM
    Run(RunArgs),
    /// Ask the daemon for its health, as the probes of its pod do
    ///
    /// The exit status is 1 if it is unhealthy or not ready, and 2 if it does not answer.
    Health(HealthArgs),
    /// Install the hook of this version on the host, and remove older ones that are not in use
    Install(InstallArgs),
    /// Remove hooks, specifications and configuration that this program put on the host
    ///
    /// Files that a container, a lease or a specification still names are kept, and the exit status is 1.
    Uninstall(UninstallArgs),
}

/// Install the hook.
#[derive(Clone, Debug, Args)]
pub struct InstallArgs {
    /// The hook to install
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/usr/bin/onload-hook",
        env = "ONLOAD_KUBERNETES_INSTALL_FROM"
    )]
    pub from: PathBuf,
    /// Configuration to install on a host that has no etc/onload-ctk/config.toml
    #[arg(long, value_name = "FILE", env = "ONLOAD_KUBERNETES_INSTALL_DEFAULT_CONFIG")]
    pub default_config: Option<PathBuf>,
    /// Replace a different file in the place of this version's hook
    #[arg(long, env = "ONLOAD_KUBERNETES_INSTALL_FORCE")]
    pub force: bool,
}

/// Remove what was installed.
#[derive(Clone, Copy, Debug, Args)]
pub struct UninstallArgs {
    /// Wait for SIGTERM after everything is removed, so that kubelet does not start the container again
    #[arg(long, env = "ONLOAD_KUBERNETES_UNINSTALL_STAY")]
    pub stay: bool,
}

/// Run the daemon.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Directory in which kubelet and device plugins have their sockets
    ///
    /// Kubelet uses this one whatever its --root-dir says.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins",
        env = "ONLOAD_KUBERNETES_DEVICE_PLUGIN_DIR"
    )]
    pub device_plugin_dir: PathBuf,
    /// Directory of kubelet (its --root-dir): the DRA driver registers in plugins_registry below it
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet",
        env = "ONLOAD_KUBERNETES_KUBELET_DIR"
    )]
    pub kubelet_dir: PathBuf,
    /// Name of this Node; without it the DRA driver is off
    #[arg(long, value_name = "NAME", env = "ONLOAD_KUBERNETES_NODE_NAME")]
    pub node_name: Option<NodeName>,
    /// Kubeconfig file that says how to reach the API server
    /// [default: as a pod does, by the token of its service account]
    #[arg(long, value_name = "FILE", env = "ONLOAD_KUBERNETES_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Spec directory (repeatable; later directories take precedence)
    /// [default: etc/cdi and var/run/cdi of the host]
    #[arg(long, value_name = "DIR", value_delimiter = ',', env = "ONLOAD_KUBERNETES_SPEC_DIR")]
    pub spec_dir: Vec<PathBuf>,
    /// Address of /metrics, /healthz and /readyz: ADDRESS:PORT, unix:/PATH, or an empty text for none
    /// [default: listen in section kubernetes of the configuration]
    #[arg(long, value_name = "ADDRESS", env = "ONLOAD_KUBERNETES_LISTEN")]
    pub listen: Option<ListenAddress>,
    /// Socket on which the daemon answers "health"; only root can use it
    #[arg(long, value_name = "FILE", env = "ONLOAD_KUBERNETES_HEALTH_SOCKET")]
    pub health_socket: Option<PathBuf>,
}

/// Ask the daemon how it is.
#[derive(Clone, Debug, Args)]
pub struct HealthArgs {
    /// Also ask whether kubelet has registered everything that the node offers
    #[arg(long)]
    pub ready: bool,
    /// The daemon's --health-socket
    #[arg(long, value_name = "FILE", env = "ONLOAD_KUBERNETES_HEALTH_SOCKET")]
    pub health_socket: PathBuf,
}
