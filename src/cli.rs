//! The definition of the command line. Every flag has an environment variable, so that a unit's EnvironmentFile can set
//! it: [`add_variables()`] names them. A flag takes precedence over its variable, and that over config.toml.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{BoolishValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Args, ColorChoice, CommandFactory, FromArgMatches,
    Parser, Subcommand, ValueEnum, ValueHint,
};
use clap_complete::Shell;
use onload_core::class::Class;
use onload_engines::engine::Engine;
use onload_host::specdir::SpecFormat;
use onload_report::doctor::list_check_names;
use onload_sys::error::Error;

use crate::exit;
use crate::files::{
    CONFIGURATION, CONTAINERS, DRAINED, EDITED_OF_ENGINES, FileList, HOST_UNIT, KERNEL, LEASES,
    MANIFEST, OWN_DEVICES, OWN_POOLS, READ_OF_ENGINES, SCRIPTS, SPECIFICATIONS, TICKETS, VARIABLES,
};
use crate::help;

/// Container toolkit for kernel-bypass networking
///
/// Finds Onload, TCPDirect, RDMA, vfio and hugepages on this host, and writes CDI specifications that provide them to
/// containers: docker run --device onload.dev/nic=all.
#[derive(Debug, Parser)]
#[command(name = "onload-ctk", version, max_term_width = 100)]
#[command(after_long_help = exit::summary())]
#[command(add = FileList(&[CONFIGURATION, VARIABLES, KERNEL, SPECIFICATIONS, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
#[command(mut_args(|flag| add_variable(PREFIX, flag)), mut_subcommands(|command| add_variables(PREFIX, command)))]
pub struct Cli {
    /// Output format of onload-ctk without a command
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The command. Without one, an overview of this host is shown.
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Cli {
    /// Reads the command line and the environment of this process. The error may be a request for help.
    pub fn read() -> Result<Cli, clap::Error> {
        let color = match early_color() {
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
            Color::Auto => ColorChoice::Auto,
        };
        let mut command = help::shorten(Cli::command().color(color));
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        let mut cli =
            Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        if cli.command.is_some() && matches.value_source("format") == Some(ValueSource::CommandLine)
        {
            let message = "write --format after the command: onload-ctk status --format json";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        if let Some(Command::Cdi(CdiCommand::Generate(generate))) = &mut cli.command
            && let Some(matches) = matches.subcommand_matches("cdi")
            && let Some(matches) = matches.subcommand_matches("generate")
        {
            generate.resolve_output(matches).map_err(|error| {
                let cdi = command.find_subcommand_mut("cdi");
                match cdi.and_then(|cdi| cdi.find_subcommand_mut("generate")) {
                    Some(generate) => error.format(generate),
                    None => error,
                }
            })?;
        }
        Ok(cli)
    }
}

/// The prefix of the variables of all flags.
const PREFIX: &str = "ONLOAD_CTK";
/// The variable of `--color`.
const COLOR_VARIABLE: &str = "ONLOAD_CTK_COLOR";

/// Gives the flags of a command their variables, such as ONLOAD_CTK_CDI_GENERATE_DRY_RUN.
fn add_variables(above: &str, command: clap::Command) -> clap::Command {
    let prefix = format!("{above}_{}", command.get_name().to_uppercase());
    let with_flags = command.mut_args(|flag| add_variable(&prefix, flag));
    with_flags.mut_subcommands(|below| add_variables(&prefix, below))
}

fn add_variable(prefix: &str, argument: Arg) -> Arg {
    let Some(flag) = argument.get_long() else { return argument };
    let name = format!("{prefix}_{}", flag.replace('-', "_").to_uppercase());
    let argument = argument.env(name);
    match argument.get_action() {
        // A variable has a word, which a flag has not.
        ArgAction::SetTrue => argument.value_parser(BoolishValueParser::new()),
        _ => argument,
    }
}

/// Returns clap's error for a wrong command line as one line: the reason, clap's suggestion, and the usage. Returns
/// `None` for help, which was requested or answers a command without its subcommand.
pub fn format_usage_error(error: &clap::Error) -> Option<String> {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        return None;
    }
    let text = error.render().to_string();
    let lines = text.strip_prefix("error: ").unwrap_or(&text).lines();
    let mut line = String::new();
    for part in lines.map(str::trim).filter(|part| !part.is_empty()) {
        let is_misleading = line.contains("; write ") && part.starts_with("tip: to pass");
        if is_misleading || part.starts_with("For more information") {
            continue;
        }
        let between = match line.chars().next_back() {
            None => "",
            Some(':') => " ",
            Some(_) if part.starts_with('[') => " ",
            Some(_) => "; ",
        };
        line.push_str(between);
        line.push_str(&part.replacen("Usage:", "usage:", 1));
        let is_engine = text.contains("onload-ctk try ") && part.contains("'--runtime'");
        let meant = if is_engine {
            Some("--engine".to_owned())
        } else if text.contains("onload-ctk host apply ") && part.contains("'--dry-run'") {
            Some("onload-ctk host plan".to_owned())
        } else if text.contains("onload-ctk [OPTIONS] [COMMAND]") {
            find_nested_command(part).or_else(|| usual_word(part))
        } else {
            usual_word(part)
        };
        if let Some(meant) = meant.filter(|_| line == part) {
            line.push_str(&format!("; write {meant}"));
        }
    }
    if line.contains("for '--engine <") && line.contains("'cri") {
        line.push_str("; CRI-O starts only pods: start one with the device instead");
    }
    Some(line)
}

/// Returns the commands that end in the word that was typed as a command.
fn find_nested_command(reason: &str) -> Option<String> {
    let word = reason.strip_prefix("unrecognized subcommand '")?.split('\'').next()?;
    let command = Cli::command();
    let names: Vec<String> = command
        .get_subcommands()
        .filter(|above| !above.is_hide_set() && above.find_subcommand(word).is_some())
        .map(|above| format!("onload-ctk {} {word}", above.get_name()))
        .collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// Returns our word for one that other programs accept.
fn usual_word(reason: &str) -> Option<String> {
    let word = reason.split('\'').nth(1)?;
    let meant = match word {
        "version" => "onload-ctk --version",
        "--json" | "-o" | "--output" => "--format json",
        _ if reason.starts_with("invalid value") => return None,
        engine if Engine::ALL.iter().any(|known| known.name() == engine) => {
            return Some(format!("--runtime {engine}"));
        }
        _ => return None,
    };
    (reason.starts_with("un")).then(|| meant.to_owned())
}

/// Returns the colours of help and of clap's errors, which are printed before `--color` is parsed. An invalid value
/// counts as `auto`.
pub fn early_color() -> Color {
    let words: Vec<OsString> = std::env::args_os().collect();
    let variable = std::env::var_os(COLOR_VARIABLE);
    let mut chosen = variable.as_deref().and_then(OsStr::to_str);
    let mut words = words.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next().filter(|word| *word != "--") {
        if word == "--color" {
            chosen = words.next();
        } else if let Some(value) = word.strip_prefix("--color=") {
            chosen = Some(value);
        }
    }
    let chosen = chosen.and_then(|word| Color::from_str(word, false).ok());
    chosen.unwrap_or(Color::Auto)
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Use this directory as the root of the host, instead of /
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/",
        value_hint = ValueHint::DirPath
    )]
    pub host_root: PathBuf,
    /// Configuration file [default: etc/onload-ctk/config.toml of the host]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Also log every file and directory read
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Print only errors on stderr
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
}

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

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the devices of this host, and which of them containers can use
    #[command(add = FileList(&[CONFIGURATION, KERNEL]))]
    Discover(DiscoverArgs),
    /// Show whether each container is using its devices
    ///
    /// Shows each container, of any engine, that has a device, requests one or has libonload.so mapped, with a verdict,
    /// the reason and what to do. It calls no engine and changes nothing. With CONTAINER the exit status is the verdict
    /// on that container.
    #[command(add = FileList(&[CONFIGURATION, KERNEL, LEASES]))]
    Status(StatusArgs),
    /// Try a device: start a small container with it, and report whether it works
    ///
    /// Makes an image from files of this host, starts a container from it with the engine, and uses the device there:
    /// nic sends packets through Onload, rdma locks memory and sends messages with the host's ibv_rc_pingpong, vfio
    /// opens the function through each of its nodes, hugepages maps and writes a page, netdev sends a packet through
    /// the interface. The result says what was observed. If the container does not start, a second one without the
    /// device shows whether the engine is at fault. Container and image are removed, even if the command is
    /// interrupted; after a kill, the next run removes them.
    #[command(add = FileList(&[CONFIGURATION, KERNEL, SPECIFICATIONS, READ_OF_ENGINES, LEASES]))]
    Try(TryArgs),
    /// Check this host and suggest fixes
    ///
    /// Checks modules, PCIe links, CPUs, huge pages, RDMA, specifications, file permissions, units, SELinux, AppArmor
    /// and container engines. Each check lists what it read; one that does not pass shows the command to run, or the
    /// line to write to a file. Nothing is changed.
    #[command(add = FileList(&[CONFIGURATION, KERNEL, SPECIFICATIONS, READ_OF_ENGINES]))]
    Doctor(DoctorArgs),
    /// Print metrics of this host as OpenMetrics text
    ///
    /// Counts devices by class and health, leases, huge pages, errors of interfaces and RDMA ports, and Onload
    /// stacks. The number of series does not grow with the number of virtual functions. onload-metrics.timer, which
    /// is disabled by default, writes them for the textfile collector of node_exporter.
    #[command(add = FileList(&[CONFIGURATION, KERNEL, LEASES, SPECIFICATIONS]))]
    Metrics(MetricsArgs),
    /// Show NUMA nodes, the PCIe tree, devices and the containers that hold them
    ///
    /// Shows each NUMA node with its CPUs, memory and huge pages, and the PCIe tree below it down to the functions,
    /// with interfaces, devices and the containers that hold them. Identical virtual functions share one line. The
    /// SVG picture opens in a browser, light or dark.
    #[command(add = FileList(&[CONFIGURATION, KERNEL, LEASES]))]
    Topology(TopologyArgs),
    /// Write, list, check, validate and apply CDI specifications
    #[command(subcommand, add = FileList(&[CONFIGURATION, VARIABLES, KERNEL, SPECIFICATIONS, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
    Cdi(CdiCommand),
    /// Show and check the configuration of onload-ctk
    #[command(subcommand, add = FileList(&[CONFIGURATION]))]
    Config(ConfigCommand),
    /// Show what a container would get
    #[command(subcommand, add = FileList(&[CONFIGURATION, SPECIFICATIONS]))]
    Container(ContainerCommand),
    /// Stop offering devices, show the containers that hold them, and wait until they are free
    ///
    /// For an upgrade of a driver or of firmware: no container gets a drained device, through any engine, and one that
    /// requests it is rejected with the reason. Containers that have one keep it, and are listed with their engine;
    /// with --wait the command returns when they have ended. A container that was created before and is started later
    /// still gets its device if the class has no leases (nic, zf, profile, hugepages and others), except with docker's
    /// --device: docker resolves the name at each start, and reports "unresolvable CDI devices". Devices stay drained
    /// over a reboot and an upgrade of this package, until "onload-ctk undrain" or, with --until-reboot, the next boot.
    /// The classes nic, nic-plain, nic-nodes and zf are drained together: they share a driver. Without a name it shows
    /// the drained devices and their holders.
    #[command(add = FileList(&[DRAINED, CONFIGURATION, KERNEL, LEASES, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
    Drain(DrainArgs),
    /// Offer drained devices again
    #[command(add = FileList(&[DRAINED, CONFIGURATION, KERNEL, LEASES, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
    Undrain(UndrainArgs),
    /// List, release and restore devices that containers hold
    #[command(subcommand, add = FileList(&[LEASES, KERNEL]))]
    Lease(LeaseCommand),
    /// Configure virtual functions and huge pages
    #[command(subcommand, add = FileList(&[CONFIGURATION, KERNEL, LEASES, HOST_UNIT]))]
    Host(HostCommand),
    /// Set up container engines
    #[command(subcommand, add = FileList(&[CONFIGURATION, CONTAINERS]))]
    Runtime(RuntimeCommand),
    /// Print a completion script for a shell
    #[command(add = SCRIPTS)]
    Completion(CompletionArgs),
    /// Write the manual pages
    #[command(hide = true)]
    Man(ManArgs),
    /// Use a device of this container, and report the result
    #[command(hide = true)]
    Probe(ProbeArgs),
}

#[derive(Debug, Subcommand)]
pub enum CdiCommand {
    /// Write specifications of the devices of this host
    #[command(add = FileList(&[CONFIGURATION, KERNEL, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
    Generate(GenerateArgs),
    /// List every device that engines see, by file
    #[command(add = FileList(&[CONFIGURATION, SPECIFICATIONS]))]
    List(ListArgs),
    /// Show what devices provide to a container, and from which file
    #[command(add = FileList(&[CONFIGURATION, SPECIFICATIONS]))]
    Show(ShowArgs),
    /// Show what this host has, what "cdi generate" would write, and what a container gets. Writes nothing
    #[command(add = FileList(&[CONFIGURATION, KERNEL]))]
    Preview(Preview),
    /// Check whether the written specifications still match this host
    #[command(add = FileList(&[CONFIGURATION, KERNEL, OWN_DEVICES, OWN_POOLS, MANIFEST]))]
    Check(CheckArgs),
    /// Check whether specification files are valid
    #[command(add = FileList(&[CONFIGURATION, SPECIFICATIONS]))]
    Validate(ValidateArgs),
    /// Apply devices to an OCI configuration, from stdin to stdout, as an engine would
    #[command(add = FileList(&[CONFIGURATION, SPECIFICATIONS]))]
    Inject(InjectArgs),
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show the value of every setting, and whether it is the default
    ///
    /// The origin of a value is "file", the configuration file; "default"; or "variable": the environment variables of
    /// "cdi generate --kind" and "onload-kubernetes --listen" take precedence over the file. This command reads its own
    /// environment, not that of a service.
    #[command(add = FileList(&[CONFIGURATION]))]
    #[command(after_long_help = "Example: onload-ctk config show")]
    Show(FormatArgs),
    /// Check whether a configuration file is valid
    #[command(add = FileList(&[CONFIGURATION]))]
    Validate(ConfigValidateArgs),
    /// Print the JSON Schema of the configuration file, for editors
    #[command(add = FileList(&[CONFIGURATION]))]
    #[command(after_long_help = "Example: onload-ctk config schema > config.schema.json")]
    Schema,
}

#[derive(Clone, Debug, Args)]
pub struct FormatArgs {
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk config validate new.toml")]
pub struct ConfigValidateArgs {
    /// File to check [default: the configuration that other commands use]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ContainerCommand {
    /// Show as a diff what annotations, or the variable ONLOAD_CTK_REQUEST, would change in an OCI bundle, and why
    #[command(add = FileList(&[CONFIGURATION, SPECIFICATIONS, TICKETS]))]
    Explain(ExplainArgs),
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk container explain /run/containers/bundle")]
pub struct ExplainArgs {
    /// Directory that holds the container's config.json
    #[arg(value_name = "BUNDLE", value_hint = ValueHint::DirPath)]
    pub bundle: PathBuf,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk drain rdma=mlx5_0 --reason \"firmware upgrade\" --wait --timeout 3600"
)]
pub struct DrainArgs {
    /// A device or a pool as CLASS=NAME, a class, or the PCI address of a function, which means the devices on it and
    /// on its virtual functions
    #[arg(value_name = "NAME", conflicts_with = "all", group = "targets")]
    pub names: Vec<String>,
    /// Drain every class
    #[arg(long, group = "targets")]
    pub all: bool,
    /// Reason shown to anyone who requests the device
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Lift the drain at the next boot
    #[arg(long, requires = "targets")]
    pub until_reboot: bool,
    /// Wait until no container uses the devices
    #[arg(long)]
    pub wait: bool,
    /// Wait at most this long [default: forever]
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = parse_seconds)]
    pub timeout: Option<u64>,
    /// Show what would be drained and its holders, without draining it
    #[arg(long)]
    pub dry_run: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk undrain rdma=mlx5_0")]
#[command(group(ArgGroup::new("targets").required(true)))]
pub struct UndrainArgs {
    /// The drained device, pool or class, as for drain. Devices that were drained separately from a drained class
    /// stay drained; if only devices of a class are drained, it means all of these
    #[arg(value_name = "NAME", conflicts_with = "all", group = "targets")]
    pub names: Vec<String>,
    /// Offer all devices again
    #[arg(long, group = "targets")]
    pub all: bool,
    /// Show what would be offered again
    #[arg(long)]
    pub dry_run: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// List leased devices with their containers, and how much of each pool is free
    #[command(add = FileList(&[LEASES, KERNEL]))]
    #[command(after_long_help = "Example: onload-ctk lease list --format json")]
    List(FormatArgs),
    /// Release the lease of a device after its container has exited
    #[command(add = FileList(&[LEASES, KERNEL]))]
    Release(LeaseReleaseArgs),
    /// Return interfaces left behind by exited containers to the host
    ///
    /// An interface that moved into a container returns to the host when the container ends. If that did not happen,
    /// because the engine was killed or a process kept the container's network namespace open, this command returns it
    /// and restores its name, alternative names, hardware address, MTU, queue length, alias and flags. The next
    /// container that requests the interface does the same, and so does the udev rule when the kernel returns an
    /// interface. An RDMA device that moved returns in the same way, under its name.
    #[command(add = FileList(&[LEASES, KERNEL]))]
    #[command(after_long_help = "Example: onload-ctk lease restore")]
    Restore,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk lease release vfio=0000:81:10.0 --force")]
pub struct LeaseReleaseArgs {
    /// The device, for example vfio=0000:81:10.0
    #[arg(value_name = "CLASS=NAME")]
    pub device: String,
    /// Required, because a lease normally ends with its container. Rejected while the container runs
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Show what "host apply" would change
    ///
    /// Compares this host with the sections sriov and host of config.toml: virtual functions, huge pages, interfaces
    /// registered with Onload, the RDMA mode. Nothing is changed.
    #[command(add = FileList(&[CONFIGURATION, KERNEL, LEASES, HOST_UNIT]))]
    Plan(HostPlanArgs),
    /// Change this host to match config.toml
    ///
    /// Creates and binds virtual functions, reserves huge pages, registers interfaces with Onload and sets the RDMA
    /// mode, as the sections sriov and host of config.toml say. Settings that match already are not changed, and
    /// nothing that is leased or in use is removed. An interrupted run is completed by the next one.
    /// onload-host.service runs it at boot.
    #[command(add = FileList(&[CONFIGURATION, KERNEL, LEASES, HOST_UNIT]))]
    Apply(HostApplyArgs),
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk host apply")]
pub struct HostApplyArgs {
    /// Output format; json is an object with the lists done, failed and warnings
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk host plan")]
pub struct HostPlanArgs {
    /// Output format; json is an object with the lists steps, refused and warnings
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Debug, Subcommand)]
pub enum RuntimeCommand {
    /// Enable CDI and the runtime "onload" in an engine, and set which classes annotations may request
    #[command(add = FileList(&[EDITED_OF_ENGINES, CONFIGURATION, CONTAINERS]))]
    Configure(ConfigureArgs),
    /// Print the OCI runtime that onload-container-runtime executes, for the package's removal
    #[command(hide = true)]
    Behind,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk discover --explain\n         onload-ctk discover --capture host.tar.zst"
)]
pub struct DiscoverArgs {
    /// Also show what is not offered, and why
    #[arg(long)]
    pub explain: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
    /// Save everything discovery read to FILE, to attach to a bug report: a tar archive, compressed with zstd.
    /// Unpacked, it serves as a host for --host-root
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Do not mask hardware addresses and GUIDs in the capture
    #[arg(long, requires = "capture")]
    pub no_mask: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk doctor --problems")]
pub struct DoctorArgs {
    /// Output format; json is an object with the list checks, for a fleet of hosts
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
    /// Show only checks that found a problem
    #[arg(long)]
    pub problems: bool,
    /// Show only these checks, for example iommu,hugepages, which determine the exit status
    #[arg(long, value_name = "NAME", value_delimiter = ',', hide_possible_values = true, value_parser = check_parser())]
    pub check: Vec<String>,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk status\n         onload-ctk status redis\n         onload-ctk status redis --watch"
)]
pub struct StatusArgs {
    /// Only this container: its name, or the beginning of its id
    #[arg(value_name = "CONTAINER")]
    pub container: Option<String>,
    /// Output format; json is an object with the list containers
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
    /// Repeat every SECONDS: redraw a terminal, or print a line for each change
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = parse_interval,
        conflicts_with = "format"
    )]
    pub watch: Option<u64>,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk try nic=ens1\n         onload-ctk try vfio=0000:81:10.0 --engine podman"
)]
pub struct TryArgs {
    /// The device, for example nic=ens1 or hugepages=2Mi
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// The engine [default: the first that can provide devices]
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<TryEngine>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
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

#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// Its class
    #[arg(value_name = "CLASS", value_parser = CLASS_PARSER)]
    pub class: Class,
    /// Its name
    #[arg(value_name = "NAME")]
    pub name: String,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk metrics --output /var/lib/prometheus/node-exporter/onload-ctk.prom"
)]
pub struct MetricsArgs {
    /// Write to this file instead of stdout, replacing it atomically
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk topology\n         onload-ctk topology --format svg > host.svg\n         onload-ctk topology --matrix"
)]
pub struct TopologyArgs {
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: PictureFormat,
    /// Print the matrix of distances between GPUs and NICs, as nvidia-smi topo -m does
    #[arg(long, conflicts_with = "format")]
    pub matrix: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PictureFormat {
    /// Text for people.
    Text,
    /// A picture for a browser.
    Svg,
    /// A JSON object for programs.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// A table for people.
    Table,
    /// A JSON object for programs.
    Json,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi generate --kind nic,rdma --diff")]
pub struct GenerateArgs {
    /// Output directory: one file per kind, plus one per kind for its pools [default: var/run/cdi of the host]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output_dir: Option<PathBuf>,
    /// Output file for one kind, without its pools; "-" writes all kinds to stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write or remove only these kinds, for example nic,rdma [default: those in config.toml]
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = KIND_PARSER)]
    pub kind: Vec<String>,
    /// Format of the files
    #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = format_parser())]
    pub format: SpecFormat,
    /// Newest CDI version that the engine can read, for example 0.5.0. Specifications that need a newer one are
    /// rejected, except pools, which need 0.6.0 and are omitted
    #[arg(long, value_name = "VERSION")]
    pub max_cdi_version: Option<String>,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print what would change as a unified diff, and change nothing
    #[arg(long)]
    pub diff: bool,
    /// Also replace onload.dev files that another program or user wrote or changed, or whose devices could not be read
    #[arg(long)]
    pub force: bool,
    /// Report what was done, or would be done; json is an object with the list files
    #[arg(long, value_name = "FORMAT", default_value = "table", conflicts_with_all = ["output", "diff"])]
    pub report: ListFormat,
}

impl GenerateArgs {
    /// A flag takes precedence over the variable of the other output flag, which clap's conflicts do not support.
    /// Without `--format` the name of the output file chooses the format.
    fn resolve_output(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let extension = self.output.as_deref().and_then(Path::extension).and_then(OsStr::to_str);
        if matches.value_source("format") == Some(ValueSource::DefaultValue)
            && matches!(extension, Some("yaml" | "yml"))
        {
            self.format = SpecFormat::Yaml;
        }
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

#[derive(Clone, Debug, Args)]
pub struct SpecDirArgs {
    /// Spec directory (repeatable; later directories take precedence)
    /// [default: etc/cdi and var/run/cdi of the host]
    #[arg(long, value_name = "DIR", value_delimiter = ',', value_hint = ValueHint::DirPath)]
    pub spec_dir: Vec<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi list")]
pub struct ListArgs {
    #[command(flatten)]
    pub from: SpecDirArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk cdi show onload.dev/nic=all onload.dev/rdma=mlx5_0"
)]
pub struct ShowArgs {
    /// Devices to show, for example onload.dev/nic=all
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,
    #[command(flatten)]
    pub from: SpecDirArgs,
    /// Output format; json is a CDI specification of only these devices
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi preview onload.dev/nic=all")]
pub struct Preview {
    /// Devices that the container requests, for example onload.dev/nic=all
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi check || onload-ctk cdi generate")]
pub struct CheckArgs {
    /// Directory of the specifications [default: var/run/cdi of the host]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output_dir: Option<PathBuf>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example: onload-ctk cdi validate /etc/cdi/vendor.json")]
pub struct ValidateArgs {
    /// Files to validate [default: those of etc/cdi and var/run/cdi of the host]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: ListFormat,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk cdi inject onload.dev/nic=all < config.json > new.json"
)]
pub struct InjectArgs {
    /// Devices to apply, for example onload.dev/nic=all
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,
    #[command(flatten)]
    pub from: SpecDirArgs,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk runtime configure --runtime docker --allow nic,rdma --dry-run"
)]
pub struct ConfigureArgs {
    /// Container engine
    #[arg(long, value_name = "ENGINE", value_parser = engine_parser())]
    pub runtime: Engine,
    /// Configuration file of the engine, if it is not the default: for rootless docker, or k3s, RKE2, k0s or MicroK8s
    /// next to another containerd. A path on the host
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Also make "onload" the default runtime
    #[arg(long, conflicts_with = "remove")]
    pub set_default: bool,
    /// Also enable NRI in containerd or crio, for onload-nri, which serves annotations of pods without a runtime class
    #[arg(long, conflicts_with = "remove")]
    pub nri: bool,
    /// Classes that annotations may request, in addition to those that config.toml allows already, for example
    /// nic,rdma. A container that gets rdma, vfio, zf or hugepages may also request CAP_IPC_LOCK
    #[arg(long, value_name = "CLASS", value_delimiter = ',', value_parser = CLASS_PARSER)]
    pub allow: Vec<Class>,
    /// Print what would change as a unified diff, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Undo the changes: restore the file, or remove only the entries of onload-ctk if it has been edited. config.toml
    /// is kept. While containers still use the runtime, its entry is kept, they are listed, and the exit status is 1
    #[arg(long, conflicts_with = "allow")]
    pub remove: bool,
    /// Restart the engine if its configuration changed. Docker is only reloaded, unless CDI must be enabled (before
    /// docker 28.2, or if its file disables CDI); a restart stops its containers unless live-restore is on. If the
    /// service or a plugin of containerd then fails, the old file is restored
    #[arg(long)]
    pub restart: bool,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example: onload-ctk completion bash > /usr/share/bash-completion/completions/onload-ctk"
)]
pub struct CompletionArgs {
    /// Shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// Directory for the pages
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
}

/// Parses a class, or another word, with the list of all of them for help, man pages and completion.
#[derive(Clone)]
struct ClassParser<T> {
    parse: fn(&str) -> Result<T, Error>,
    others: &'static [&'static str],
}

const CLASS_PARSER: ClassParser<Class> = ClassParser { parse: str::parse, others: &[] };
/// The values of `--kind` are parsed together, as in config.toml.
const KIND_PARSER: ClassParser<String> =
    ClassParser { parse: |word| Ok(word.to_owned()), others: &["all"] };

impl<T: Clone + Send + Sync + 'static> TypedValueParser for ClassParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&Arg>,
        word: &OsStr,
    ) -> Result<T, clap::Error> {
        self.parse.parse_ref(command, argument, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let classes = Class::ALL.into_iter().map(Class::as_str);
        Some(Box::new(classes.chain(self.others.iter().copied()).map(PossibleValue::new)))
    }
}

fn parse_seconds(word: &str) -> Result<u64, &'static str> {
    word.parse().map_err(|_| "write a number of seconds, such as 300")
}

fn parse_interval(word: &str) -> Result<u64, &'static str> {
    match word.parse() {
        Ok(seconds) if seconds > 0 => Ok(seconds),
        _ => Err("write a number of seconds, such as 5; a container's name comes before --watch"),
    }
}

fn engine_parser() -> impl TypedValueParser<Value = Engine> {
    choice_parser(Engine::ALL.map(|engine| {
        let help = match engine {
            Engine::Docker => "Docker",
            Engine::Containerd => "containerd, for Kubernetes and other users of its CRI plugin",
            Engine::Crio => "CRI-O",
            Engine::Podman => "Podman",
            Engine::Nomad => "Nomad, with its docker driver",
        };
        (engine.name(), help, engine)
    }))
}

fn format_parser() -> impl TypedValueParser<Value = SpecFormat> {
    choice_parser([
        ("json", "JSON, which every CDI reader accepts", SpecFormat::Json),
        ("yaml", "YAML, which container engines accept", SpecFormat::Yaml),
    ])
}

/// Parses one of these words, which have a help and a value each.
fn choice_parser<T: Copy + Send + Sync + 'static, const N: usize>(
    choices: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let words = choices.map(|(word, help, _)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(words).try_map(move |word| {
        let choice = choices.into_iter().find(|(known, ..)| *known == word);
        choice.map(|(.., value)| value).ok_or("unknown word")
    })
}

fn check_parser() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(list_check_names())
}
