//! The command line, as it is typed. Every flag has an environment variable, so that a unit's
//! EnvironmentFile can set it; a flag takes precedence over its variable, and that over config.toml.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, PossibleValue, StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    Arg, ArgMatches, Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand,
    ValueEnum, ValueHint,
};
use clap_complete::Shell;
use onload_core::class::Class;
use onload_host::specdir::Format;
use onload_sys::error::Error;

use crate::engine::Engine;
use crate::exit;
use crate::files::{
    CONFIGURATION, CONTAINERS, EDITED_OF_ENGINES, Files, HOST_UNIT, KERNEL, LEASES, MANIFEST,
    OWN_DEVICES, OWN_POOLS, READ_OF_ENGINES, SCRIPTS, SPECIFICATIONS, TICKETS, VARIABLES,
};

/// Container toolkit for kernel-bypass networking
///
/// Finds what a host has of Onload, TCPDirect, RDMA, vfio and hugepages, and writes CDI
/// specifications that give it to containers: docker run --device onload.dev/nic=all.
#[derive(Debug, Parser)]
#[command(name = "onload-ctk", version, max_term_width = 100)]
#[command(after_long_help = exit::summary())]
#[command(add = Files(&[CONFIGURATION, VARIABLES, KERNEL, SPECIFICATIONS, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do; none shows where this host stands.
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Cli {
    /// Reads the command line and the environment of this process. The error may be a request for help: clap says how it
    /// is to be shown.
    pub fn read() -> Result<Cli, clap::Error> {
        let words: Vec<OsString> = std::env::args_os().collect();
        let variable = std::env::var_os(COLOR_VARIABLE);
        let mut command = Cli::command().color(early_color(&words, variable.as_deref()));
        let matches = command.try_get_matches_from_mut(words)?;
        let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        settled(cli, &matches).map_err(|error| match generate_of(&mut command) {
            Some(generate) => error.format(generate),
            None => error,
        })
    }
}

/// The definition of `cdi generate`, whose usage goes with its errors.
fn generate_of(command: &mut clap::Command) -> Option<&mut clap::Command> {
    command
        .find_subcommand_mut("cdi")?
        .find_subcommand_mut("generate")
}

/// Decides what needs to know whether a value was typed or comes from a variable.
fn settled(mut cli: Cli, matches: &ArgMatches) -> Result<Cli, clap::Error> {
    if let Some(Command::Cdi(Cdi::Generate(generate))) = &mut cli.command {
        let below = matches.subcommand_matches("cdi");
        let below = below.and_then(|matches| matches.subcommand_matches("generate"));
        below.map_or(Ok(()), |matches| generate.settle_output(matches))?;
    }
    Ok(cli)
}

/// The variable of `--color`.
const COLOR_VARIABLE: &str = "ONLOAD_CTK_COLOR";

/// The colours of help and of lines that clap does not understand: they are printed before, or
/// instead of, the flag's own reading. What is no word of `--color` counts as `auto`.
fn early_color(words: &[OsString], variable: Option<&OsStr>) -> ColorChoice {
    let mut chosen = variable.and_then(OsStr::to_str);
    let mut words = words.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next().filter(|word| *word != "--") {
        if word == "--color" {
            chosen = words.next();
        } else if let Some(value) = word.strip_prefix("--color=") {
            chosen = Some(value);
        }
    }
    match chosen.and_then(|word| Color::from_str(word, false).ok()) {
        Some(Color::Always) => ColorChoice::Always,
        Some(Color::Never) => ColorChoice::Never,
        Some(Color::Auto) | None => ColorChoice::Auto,
    }
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
        env = "ONLOAD_CTK_HOST_ROOT"
    )]
    pub host_root: PathBuf,
    /// Configuration file [default: etc/onload-ctk/config.toml of the host]
    #[arg(long, global = true, value_name = "FILE", env = "ONLOAD_CTK_CONFIG")]
    pub config: Option<PathBuf>,
    /// Say more on stderr: each file and directory that is read
    #[arg(short, long, global = true, env = "ONLOAD_CTK_VERBOSE", value_parser = BoolishValueParser::new())]
    pub verbose: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, env = "ONLOAD_CTK_QUIET", value_parser = BoolishValueParser::new())]
    pub quiet: bool,
    /// When to use colours
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        env = COLOR_VARIABLE
    )]
    pub color: Color,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<Color> for anstream::ColorChoice {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what this host has, and what of it containers can be given
    #[command(add = Files(&[CONFIGURATION, KERNEL]))]
    Discover(Discover),
    /// Tell how containers do with the devices that they have
    ///
    /// Shows each container that holds a device or has libonload.so mapped, of every engine, with a verdict, the
    /// reason and what to do. No engine is asked, and nothing is changed. With CONTAINER the exit status says how
    /// that one does.
    #[command(add = Files(&[CONFIGURATION, KERNEL, LEASES]))]
    Status(Status),
    /// Try a device: start a small container with it, and tell whether it works
    ///
    /// Makes an image of files of this host, starts a container of it by the engine, and uses the device in there:
    /// nic sends packets through Onload, rdma opens its node, vfio opens the group and the function, hugepages maps
    /// and writes a page, netdev sends a packet by the interface. The answer says what was seen. Container and image
    /// are removed, also when it is interrupted.
    #[command(add = Files(&[CONFIGURATION, KERNEL, SPECIFICATIONS, READ_OF_ENGINES, LEASES]))]
    Try(Try),
    /// Tell what is wrong with this host, and what to do about it
    ///
    /// Looks at modules, PCIe links, CPUs, huge pages, RDMA, specifications, rights of files, units, SELinux,
    /// AppArmor and container engines. Each check says what it looked at; one that does not pass says which
    /// command to run, or which line to write to which file. Nothing is changed.
    #[command(add = Files(&[CONFIGURATION, KERNEL, SPECIFICATIONS, READ_OF_ENGINES]))]
    Doctor(Doctor),
    /// Print numbers of this host for collectors, as OpenMetrics text
    ///
    /// Counts devices by class and health, leases, huge pages, errors of interfaces and RDMA ports, and stacks of
    /// Onload. The number of series does not grow with virtual functions. onload-metrics.timer, which is off at
    /// first, writes it for the textfile collector of node_exporter.
    #[command(add = Files(&[CONFIGURATION, KERNEL, LEASES, SPECIFICATIONS]))]
    Metrics(Metrics),
    /// Show where everything of this host is: NUMA nodes, the PCIe tree, devices and who holds them
    ///
    /// Shows each NUMA node with its CPUs, memory and huge pages, and the PCIe tree below it down to the functions,
    /// with interfaces, devices and the containers that hold them. Virtual functions that are alike stand in one
    /// line. The picture is made for a browser, light or dark.
    #[command(add = Files(&[CONFIGURATION, KERNEL, LEASES]))]
    Topology(Topology),
    /// Write, list, check, validate and apply CDI specifications
    #[command(subcommand, add = Files(&[CONFIGURATION, VARIABLES, KERNEL, SPECIFICATIONS, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
    Cdi(Cdi),
    /// Look at what a container would get
    #[command(subcommand, add = Files(&[CONFIGURATION, SPECIFICATIONS]))]
    Container(Container),
    /// Show and end what containers have for themselves
    #[command(subcommand, add = Files(&[LEASES, KERNEL]))]
    Lease(Lease),
    /// Make the host what containers need of it: virtual functions, huge pages
    #[command(subcommand, add = Files(&[CONFIGURATION, KERNEL, LEASES, HOST_UNIT]))]
    Host(Host),
    /// Set container engines up
    #[command(subcommand, add = Files(&[CONFIGURATION, CONTAINERS]))]
    Runtime(Runtime),
    /// Print a completion script for a shell
    #[command(add = SCRIPTS)]
    Completion(Completion),
    /// Write the manual pages
    #[command(hide = true)]
    Man(Man),
    /// Use a device that this container was given, and say what was seen
    #[command(hide = true)]
    Probe(Probe),
}

/// Commands on CDI specifications.
#[derive(Debug, Subcommand)]
pub enum Cdi {
    /// Write specifications of what this host has
    #[command(add = Files(&[CONFIGURATION, KERNEL, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
    Generate(Generate),
    /// List every device that an engine would see, by file
    #[command(add = Files(&[CONFIGURATION, SPECIFICATIONS]))]
    List(List),
    /// Show what a container gets for some devices, and from which file
    #[command(add = Files(&[CONFIGURATION, SPECIFICATIONS]))]
    Show(Show),
    /// Tell whether the written specifications still describe this host
    #[command(add = Files(&[CONFIGURATION, KERNEL, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
    Check(Check),
    /// Tell whether specification files are valid
    #[command(add = Files(&[CONFIGURATION, SPECIFICATIONS]))]
    Validate(Validate),
    /// Give devices to an OCI configuration, from stdin to stdout, as an engine would
    #[command(add = Files(&[CONFIGURATION, SPECIFICATIONS]))]
    Inject(Inject),
}

/// Commands on containers.
#[derive(Debug, Subcommand)]
pub enum Container {
    /// Show as a diff what the annotations of a bundle, or its variable ONLOAD_CTK_REQUEST, would change, and why
    #[command(add = Files(&[CONFIGURATION, SPECIFICATIONS, TICKETS]))]
    Explain(Explain),
}

/// Explain a bundle.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk container explain /run/containers/bundle")]
pub struct Explain {
    /// Directory that holds the container's config.json
    #[arg(value_name = "BUNDLE", value_hint = ValueHint::DirPath)]
    pub bundle: PathBuf,
}

/// Commands on leases.
#[derive(Debug, Subcommand)]
pub enum Lease {
    /// Show which container has each device that only so many may have, and what of pools is free
    #[command(add = Files(&[LEASES, KERNEL]))]
    List(LeaseList),
    /// End the lease of a device whose container is gone
    #[command(add = Files(&[LEASES, KERNEL]))]
    Release(LeaseRelease),
    /// Bring back interfaces whose containers have ended, as they were
    ///
    /// An interface that moved into a container comes back when the container ends. Where nothing did that, since the
    /// engine was killed or a process kept the container's network, this does: the interface comes back to the host
    /// and gets its name, its other names, its hardware address, MTU, queue length, alias and flags again. The next
    /// container that wants it does the same, and so does udev's rule when the kernel gives an interface back. An RDMA
    /// device that moved comes back in the same way, under its name.
    #[command(add = Files(&[LEASES, KERNEL]))]
    Restore(LeaseRestore),
}

/// Restore interfaces and RDMA devices.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk lease restore")]
pub struct LeaseRestore {}

/// List leases.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk lease list --format json")]
pub struct LeaseList {
    /// How to show it
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "table",
        env = "ONLOAD_CTK_LEASE_LIST_FORMAT"
    )]
    pub format: Listing,
}

/// Release a lease.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk lease release vfio=0000:81:10.0 --force")]
pub struct LeaseRelease {
    /// The device, for instance vfio=0000:81:10.0
    #[arg(value_name = "CLASS=NAME")]
    pub device: String,
    /// Do it now; refused while the container runs
    #[arg(long, env = "ONLOAD_CTK_LEASE_RELEASE_FORCE", value_parser = BoolishValueParser::new())]
    pub force: bool,
}

/// Commands on the host itself.
#[derive(Debug, Subcommand)]
pub enum Host {
    /// Show what "host apply" would change
    ///
    /// Compares this host with the sections sriov and host of config.toml: virtual functions, huge
    /// pages, interfaces registered with Onload, the mode of RDMA. Nothing is changed.
    #[command(add = Files(&[CONFIGURATION, KERNEL, LEASES, HOST_UNIT]))]
    Plan(HostPlan),
    /// Make this host what config.toml says
    ///
    /// Makes virtual functions and binds them, sets huge pages aside, registers interfaces with Onload and
    /// sets the mode of RDMA, as the sections sriov and host of config.toml say. What is so already is
    /// left alone, nothing that is leased or in use is taken away, and a run that was ended is completed by
    /// the next one. onload-host.service runs it at boot.
    #[command(add = Files(&[CONFIGURATION, KERNEL, LEASES, HOST_UNIT]))]
    Apply(HostApply),
}

/// Show what would change.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk host plan")]
pub struct HostPlan {
    /// How to show it; json is an object with the lists steps, refused and warnings
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "table",
        env = "ONLOAD_CTK_HOST_PLAN_FORMAT"
    )]
    pub format: Listing,
}

/// Change it.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk host apply")]
pub struct HostApply {}

/// Commands on container engines.
#[derive(Debug, Subcommand)]
pub enum Runtime {
    /// Make an engine know CDI and the runtime "onload", and allow classes to annotations
    #[command(add = Files(&[EDITED_OF_ENGINES, CONFIGURATION, CONTAINERS]))]
    Configure(Configure),
    /// Print the OCI runtime that onload-container-runtime becomes, for the package's removal
    #[command(hide = true)]
    Behind,
}

/// Show what this host has.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk discover --explain\n         onload-ctk discover --capture host.tar.zst"
)]
pub struct Discover {
    /// Also show what is not offered, and why
    #[arg(long, env = "ONLOAD_CTK_DISCOVER_EXPLAIN", value_parser = BoolishValueParser::new())]
    pub explain: bool,
    /// How to show it
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "table",
        env = "ONLOAD_CTK_DISCOVER_FORMAT"
    )]
    pub format: Listing,
    /// Also write what discovery looked at to this file, for a report of a fault: a tar archive,
    /// compressed with zstd, that is a host for --host-root when it is unpacked
    #[arg(long, value_name = "FILE", env = "ONLOAD_CTK_DISCOVER_CAPTURE")]
    pub capture: Option<PathBuf>,
    /// Leave hardware addresses and GUIDs in the capture as they are, for hosts of your own
    #[arg(long, env = "ONLOAD_CTK_DISCOVER_NO_MASK", value_parser = BoolishValueParser::new())]
    pub no_mask: bool,
}

/// Examine this host.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk doctor")]
pub struct Doctor {
    /// How to show it; json is an object with the list checks, for a fleet of hosts
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "table",
        env = "ONLOAD_CTK_DOCTOR_FORMAT"
    )]
    pub format: Listing,
}

/// Show containers.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk status\n         onload-ctk status redis")]
pub struct Status {
    /// Only this container: its name, or the beginning of its id
    #[arg(value_name = "CONTAINER")]
    pub container: Option<String>,
    /// How to show it; json is an object with the list containers
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "table",
        env = "ONLOAD_CTK_STATUS_FORMAT"
    )]
    pub format: Listing,
}

/// Try a device.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk try nic=ens1\n         onload-ctk try vfio=0000:81:10.0 --engine podman"
)]
pub struct Try {
    /// The device, as in nic=ens1 or hugepages=2Mi
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// The engine [default: the first that can give devices]
    #[arg(long, value_name = "ENGINE", env = "ONLOAD_CTK_TRY_ENGINE")]
    pub engine: Option<TryEngine>,
}

/// An engine that a device is tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TryEngine {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd, by its client ctr and the runtime of this package.
    Containerd,
}

/// Use a device.
#[derive(Clone, Debug, Args)]
pub struct Probe {
    /// Its class
    #[arg(value_name = "CLASS", value_parser = ClassWord)]
    pub class: Class,
    /// Its name
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Print metrics.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk metrics --output /var/lib/prometheus/node-exporter/onload-ctk.prom"
)]
pub struct Metrics {
    /// Write this file instead, which is replaced whole
    #[arg(long, value_name = "FILE", env = "ONLOAD_CTK_METRICS_OUTPUT")]
    pub output: Option<PathBuf>,
}

/// Show where everything is.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk topology\n         onload-ctk topology --format svg > host.svg"
)]
pub struct Topology {
    /// How to show it
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        env = "ONLOAD_CTK_TOPOLOGY_FORMAT"
    )]
    pub format: Picture,
}

/// How a topology is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Picture {
    /// Text for people.
    Text,
    /// A picture to look at in a browser.
    Svg,
    /// A JSON object for programs.
    Json,
}

/// How a listing is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listing {
    /// A table for people.
    Table,
    /// A JSON object for programs.
    Json,
}

/// Write specifications.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi generate --kind nic,rdma --diff")]
pub struct Generate {
    /// Directory for the specifications, one file a kind and one for its pools [default: var/run/cdi of the host]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, env = "ONLOAD_CTK_CDI_GENERATE_OUTPUT_DIR")]
    pub output_dir: Option<PathBuf>,
    /// Write the specification of one kind to this file, without its pools, or all to stdout where it is
    /// "-"
    #[arg(long, value_name = "FILE", env = "ONLOAD_CTK_CDI_GENERATE_OUTPUT")]
    pub output: Option<PathBuf>,
    /// Touch only these kinds, for instance nic,rdma [default: those of config.toml]
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        value_parser = KindWord,
        env = "ONLOAD_CTK_CDI_GENERATE_KIND"
    )]
    pub kind: Vec<String>,
    /// Format of the files
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "json",
        env = "ONLOAD_CTK_CDI_GENERATE_FORMAT"
    )]
    pub format: SpecFormat,
    /// Refuse to write what a reader of this CDI version cannot read, for instance 0.5.0; files of
    /// pools, which need 0.6.0, are left out instead
    #[arg(
        long,
        value_name = "VERSION",
        env = "ONLOAD_CTK_CDI_GENERATE_MAX_CDI_VERSION"
    )]
    pub max_cdi_version: Option<String>,
    /// Say what would be done, and do nothing
    #[arg(long, env = "ONLOAD_CTK_CDI_GENERATE_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Show what would change as a unified diff, and do nothing
    #[arg(long, env = "ONLOAD_CTK_CDI_GENERATE_DIFF", value_parser = BoolishValueParser::new())]
    pub diff: bool,
    /// Replace files of our names that somebody else wrote or changed, or whose part of the host
    /// could not be read
    #[arg(long, env = "ONLOAD_CTK_CDI_GENERATE_FORCE", value_parser = BoolishValueParser::new())]
    pub force: bool,
}

impl Generate {
    /// Of the two places for the output one holds: a flag takes precedence over the other's variable. clap's
    /// own conflicts make no such difference.
    fn settle_output(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        if self.output.is_none() || self.output_dir.is_none() {
            return Ok(());
        }
        let is_flag = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        match (is_flag("output"), is_flag("output_dir")) {
            (true, false) => self.output_dir = None,
            (false, true) => self.output = None,
            _ => {
                let message = "--output and --output-dir cannot be used together";
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
            }
        }
        Ok(())
    }
}

/// List devices.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi list")]
pub struct List {
    /// Directory of specifications, repeatable; a later one goes before an earlier one
    /// [default: etc/cdi and var/run/cdi of the host]
    #[arg(
        long,
        value_name = "DIR",
        value_delimiter = ',',
        value_hint = ValueHint::DirPath,
        env = "ONLOAD_CTK_CDI_LIST_SPEC_DIR"
    )]
    pub spec_dir: Vec<PathBuf>,
    /// How to show it
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "table",
        env = "ONLOAD_CTK_CDI_LIST_FORMAT"
    )]
    pub format: Listing,
}

/// Show devices.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk cdi show onload.dev/nic=all onload.dev/rdma=mlx5_0"
)]
pub struct Show {
    /// Devices to show, for instance onload.dev/nic=all
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,
    /// Directory of specifications, repeatable; a later one goes before an earlier one
    /// [default: etc/cdi and var/run/cdi of the host]
    #[arg(
        long,
        value_name = "DIR",
        value_delimiter = ',',
        value_hint = ValueHint::DirPath,
        env = "ONLOAD_CTK_CDI_SHOW_SPEC_DIR"
    )]
    pub spec_dir: Vec<PathBuf>,
    /// How to show it; json is a specification with these devices alone
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "table",
        env = "ONLOAD_CTK_CDI_SHOW_FORMAT"
    )]
    pub format: Listing,
}

/// Check written specifications.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi check || onload-ctk cdi generate")]
pub struct Check {
    /// Directory of the specifications [default: var/run/cdi of the host]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, env = "ONLOAD_CTK_CDI_CHECK_OUTPUT_DIR")]
    pub output_dir: Option<PathBuf>,
}

/// Validate files.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi validate /etc/cdi/vendor.json")]
pub struct Validate {
    /// Files to validate [default: those of etc/cdi and var/run/cdi of the host]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Apply devices.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk cdi inject onload.dev/nic=all < config.json > new.json"
)]
pub struct Inject {
    /// Devices to give, for instance onload.dev/nic=all
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,
    /// Directory of specifications, repeatable; a later one goes before an earlier one
    /// [default: etc/cdi and var/run/cdi of the host]
    #[arg(
        long,
        value_name = "DIR",
        value_delimiter = ',',
        value_hint = ValueHint::DirPath,
        env = "ONLOAD_CTK_CDI_INJECT_SPEC_DIR"
    )]
    pub spec_dir: Vec<PathBuf>,
}

/// Set an engine up.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk runtime configure --runtime docker --allow nic,rdma --dry-run"
)]
pub struct Configure {
    /// The engine
    #[arg(
        long,
        value_name = "ENGINE",
        env = "ONLOAD_CTK_RUNTIME_CONFIGURE_RUNTIME"
    )]
    pub runtime: Engine,
    /// The engine's file, where it is not the usual one: of k3s, RKE2, MicroK8s, rootless docker. It is
    /// a path of the host
    #[arg(long, value_name = "PATH", env = "ONLOAD_CTK_RUNTIME_CONFIGURE_FILE")]
    pub file: Option<PathBuf>,
    /// Also make "onload" the runtime of containers that name none
    #[arg(long, conflicts_with = "remove", env = "ONLOAD_CTK_RUNTIME_CONFIGURE_SET_DEFAULT", value_parser = BoolishValueParser::new())]
    pub set_default: bool,
    /// Also turn NRI on, for onload-nri, which gives pods what their annotations ask for without a
    /// runtime class; for containerd and crio
    #[arg(long, conflicts_with = "remove", env = "ONLOAD_CTK_RUNTIME_CONFIGURE_NRI", value_parser = BoolishValueParser::new())]
    pub nri: bool,
    /// Classes that annotations may ask for, beside those that config.toml allows already; for
    /// instance nic,rdma. A container that is given rdma, vfio, zf or hugepages may also ask for
    /// CAP_IPC_LOCK
    #[arg(
        long,
        value_name = "CLASS",
        value_delimiter = ',',
        value_parser = ClassWord,
        env = "ONLOAD_CTK_RUNTIME_CONFIGURE_ALLOW"
    )]
    pub allow: Vec<Class>,
    /// Show what would change as a unified diff, and do nothing
    #[arg(long, env = "ONLOAD_CTK_RUNTIME_CONFIGURE_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
    /// Undo it: give the file back as it was, or take out what is ours where it was changed since;
    /// config.toml stays. While containers of the runtime are left its entry stays, they are named,
    /// and the exit status is 1
    #[arg(long, conflicts_with = "allow", env = "ONLOAD_CTK_RUNTIME_CONFIGURE_REMOVE", value_parser = BoolishValueParser::new())]
    pub remove: bool,
    /// Make the engine's service read its file again where that changed: docker is reloaded, and restarted only where
    /// CDI is turned on (before docker 28.2, or where its file has it off), which stops its containers unless
    /// live-restore is on; the others are restarted. Where the service or a plugin of containerd works no more, the
    /// file gets back what was in it
    #[arg(long, env = "ONLOAD_CTK_RUNTIME_CONFIGURE_RESTART", value_parser = BoolishValueParser::new())]
    pub restart: bool,
}

/// Print a completion script.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk completion bash > /usr/share/bash-completion/completions/onload-ctk"
)]
pub struct Completion {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Write manual pages.
#[derive(Clone, Debug, Args)]
pub struct Man {
    /// Directory for the pages
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
}

/// A word of `--kind`. It is read with the others, as the words of config.toml are; help, pages and
/// completion list what it may be.
#[derive(Clone, Copy, Debug)]
struct KindWord;

impl TypedValueParser for KindWord {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&Arg>,
        word: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let all = std::iter::once(PossibleValue::new("all"));
        Some(Box::new(class_words().chain(all)))
    }
}

/// The name of a class, with the list of all for help, pages and completion.
#[derive(Clone, Copy, Debug)]
struct ClassWord;

impl TypedValueParser for ClassWord {
    type Value = Class;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&Arg>,
        word: &OsStr,
    ) -> Result<Class, clap::Error> {
        let parse = |word: &str| -> Result<Class, Error> { word.parse() };
        parse.parse_ref(command, argument, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(class_words()))
    }
}

fn class_words() -> impl Iterator<Item = PossibleValue> {
    Class::ALL
        .into_iter()
        .map(|class| PossibleValue::new(class.as_str()))
}

/// The format of specification files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SpecFormat {
    /// JSON, which every reader takes.
    #[default]
    Json,
    /// YAML, which the engines take.
    Yaml,
}

impl From<SpecFormat> for Format {
    fn from(format: SpecFormat) -> Format {
        match format {
            SpecFormat::Json => Format::Json,
            SpecFormat::Yaml => Format::Yaml,
        }
    }
}
