//! `discover`: what this host has, and what of it is offered.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use onload_core::bundle::Bundle;
use onload_core::class::Class;
use onload_core::config::Config;
use onload_host::boot;
use onload_host::devices::inventory::Inventory;
use onload_host::devices::{GpuAlias, exclude_without_hook};
use onload_host::discover::clock::Clock;
use onload_host::discover::exclusion::{Exclusion, ExclusionSubject};
use onload_host::discover::gdrcopy::Gdrcopy;
use onload_host::discover::hugepages::Hugepages;
use onload_host::discover::movable_interface::Netdev;
use onload_host::discover::nic::Nic;
use onload_host::discover::onload::Onload;
use onload_host::discover::rdma::{RdmaDevice, RdmaPort};
use onload_host::discover::vfio::VfioDevice;
use onload_host::generate::{InstalledFiles, bundle_exclusions, generate};
use onload_host::host::Host;
use onload_host::pools::{PoolSet, discover_with_pools};
use onload_host::settings;
use onload_report::topology::{self, TopologyInput, format_speed};
use onload_sys::pci::PciAddress;
use onload_sys::text::{ErrorChain, format_count};
use serde::Serialize;
use serde_json::{Value, json};

use super::generate::{find_directory, write_file};
use super::pools::{PoolHolders, PoolView, print_pools};
use super::reasons::{format_ranges, group_reasons, name_pattern};
use super::{open_host, require_nic, warn_of_unread};
use crate::capture::tree::collect;
use crate::capture::{CapturedTree, pack};
use crate::cli::{DiscoverArgs, GlobalArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::{format_entry, format_labelled, format_paragraph, format_part, format_table};
use crate::printer::{DIM, GOOD, HEADING, Printer, WARNING, escape_controls};

pub fn run(global: &GlobalArgs, args: &DiscoverArgs, printer: &mut Printer) -> CommandResult {
    let (mut host, config) = open_host(global)?;
    if let Some(path) = &args.capture {
        check_capture_name(path)?;
        host.start_recording();
    }
    printer.progress("reading this host");
    let (mut inventory, pools) = discover_with_pools(&host, &config);
    let installed = InstalledFiles::read(&host, &config)?;
    let left_out = pools_left_out_reason(&host, &config, installed);
    if let Some(reason) = &left_out {
        let rows =
            pools.offered.iter().map(|pool| Exclusion::new(pool.class, pool.name.as_str(), reason));
        inventory.not_offered.extend(rows);
        inventory.not_offered.sort();
    }
    if !installed.hook {
        let warnings = exclude_without_hook(&mut inventory, &config.cdi.hook_path);
        inventory.warnings.extend(warnings);
    }
    let mut bundles = config.bundles.clone();
    if !bundles.is_empty() {
        // Obstacles to all specifications are reported by commands that write them.
        let specs = generate(&inventory, &pools.offered, &config, installed);
        let excluded = bundle_exclusions(&specs.unwrap_or_default(), &config, &inventory.drain);
        bundles.retain(|name, _| !excluded.iter().any(|bundle| bundle.name == *name));
        inventory.not_offered.extend(excluded);
    }
    printer.end_progress();
    let holders = PoolHolders::read(&host, &pools.offered, printer);
    let pool_views = pools.offered.iter();
    let is_left_out = left_out.is_some();
    let pool_views: Vec<PoolView<'_>> =
        pool_views.map(|pool| PoolView { is_left_out, ..PoolView::new(pool, &holders) }).collect();
    match args.format {
        ListFormat::Json => print_json(&inventory.offered_only(), &pool_views, &bundles, printer)?,
        ListFormat::Table => {
            print_tables(&inventory.offered_only(), &pool_views, &bundles, printer)?;
            print_not_offered(&inventory.offered_only(), args.explain, printer)?;
        }
    }
    printer.warnings(&inventory.warnings);
    warn_of_unread(&inventory, printer);
    if let Some(path) = &args.capture {
        // The files that "host plan" reads, so that it works on a capture.
        let _ = boot::plan(&host, &boot::OfflineKernel, &config);
        // And what "topology" asks.
        topology::read(TopologyInput {
            host: &host,
            inventory: &inventory,
            pools: &pools,
            leases: None,
            grantees: &[],
        })?;
        // Reads the use of interfaces even if none may move.
        if let Err(error) = host.network() {
            printer.warning(ErrorChain(&error));
        }
        let recording = host.stop_recording();
        let config = settings::read(&host, global.config.as_deref())?;
        let tree = collect(&host, &recording, &inventory, config.as_deref(), !args.no_mask);
        write_capture(path, &tree, args.no_mask, printer)?;
    }
    require_nic(&inventory, &config)?;
    Ok(ExitAnswer::Yes)
}

fn pools_left_out_reason(
    host: &Host,
    config: &Config,
    installed: InstalledFiles,
) -> Option<String> {
    if !installed.hook {
        let hook = config.cdi.hook_path.display();
        return Some(format!(
            "pools are omitted: the hook {hook}, which chooses a member for a container, does not \
             exist; install it, or set hook-path in [cdi]"
        ));
    }
    let directory = find_directory(host, None).ok().flatten();
    let manifest = directory.and_then(|directory| directory.read_manifest().ok()?.ok()?);
    let newest = manifest.and_then(|manifest| manifest.max_cdi_version?.parse().ok());
    newest.and_then(PoolSet::left_out_reason)
}

fn print_json(
    inventory: &Inventory,
    pools: &[PoolView<'_>],
    bundles: &BTreeMap<String, Bundle>,
    printer: &mut Printer,
) -> Result<()> {
    #[derive(Serialize)]
    struct DiscoverOutput<'a> {
        #[serde(flatten)]
        inventory: &'a Inventory,
        pools: Vec<Value>,
        bundles: Vec<Value>,
    }
    let pools = pools.iter().map(PoolView::to_json).collect();
    let bundles = bundles
        .iter()
        .map(|(name, bundle)| json!({"name": name, "devices": list_members(bundle)}))
        .collect();
    printer.print_json(&DiscoverOutput { inventory, pools, bundles })?;
    Ok(())
}

/// Returns the devices of a bundle as CLASS=NAME.
fn list_members(bundle: &Bundle) -> Vec<String> {
    let classes = bundle.devices.iter();
    classes
        .flat_map(|(class, devices)| devices.iter().map(move |device| format!("{class}={device}")))
        .collect()
}

/// A name that promises another format would mislead its reader.
fn check_capture_name(path: &Path) -> Result<()> {
    const OTHER_FORMATS: [&str; 6] = ["tar", "gz", "tgz", "xz", "bz2", "zip"];
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    if OTHER_FORMATS.contains(&extension) {
        bail!(
            "writing {}: a capture is a tar archive compressed with zstd; use the name \
             FILE.tar.zst",
            path.display()
        );
    }
    Ok(())
}

fn write_capture(
    path: &Path,
    tree: &CapturedTree,
    open: bool,
    printer: &mut Printer,
) -> Result<()> {
    let archive = pack(tree).with_context(|| format!("packing {}", path.display()))?;
    write_file(path, &archive)?;
    for omitted in &tree.left_out {
        printer.warning(format_args!(
            "{} is an empty file in the capture, because discovery could not read it",
            omitted.display()
        ));
    }
    let masks = if open {
        "hardware addresses and GUIDs not masked"
    } else {
        "hardware addresses and GUIDs masked"
    };
    printer.note(format_args!(
        "wrote {}: {}, {}, {masks}; check it before you share it",
        path.display(),
        format_count(tree.files(), "file", "files"),
        format_count(tree.nodes.len(), "device node", "device nodes")
    ));
    Ok(())
}

/// Returns what a request for an interface must include.
const NETWORK: &str = "nic and zf accelerate an interface in the container's network: use \
    --network host, macvlan, ipvlan (l2), or move the interface in.";

/// Virtual functions of one physical function that have a row each. More of them share one row.
const MAX_FUNCTION_ROWS: usize = 8;

/// A row of the table of a NUMA node.
#[derive(Clone)]
struct DeviceRow {
    numa_node: Option<u32>,
    class: &'static str,
    name: String,
    address: Option<PciAddress>,
    details: Vec<String>,
}

impl DeviceRow {
    fn to_cells(&self) -> [String; 4] {
        let address = self.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
        [self.class.to_owned(), self.name.clone(), address, self.details.join(", ")]
    }
}

/// Merges the rows of more than [`MAX_FUNCTION_ROWS`] virtual functions of one physical function. Keeps the details
/// that all of them have.
fn merge_functions(rows: Vec<DeviceRow>, inventory: &Inventory) -> Vec<DeviceRow> {
    let parent = |row: &DeviceRow| inventory.functions.get(row.address?)?.physical_function;
    let mut families = BTreeMap::<_, Vec<DeviceRow>>::new();
    for row in &rows {
        if let Some(parent) = parent(row) {
            families.entry((row.class, parent)).or_default().push(row.clone());
        }
    }
    let mut merged = Vec::new();
    for mut row in rows {
        let key = parent(&row).map(|parent| (row.class, parent));
        let family = key.and_then(|key| families.get(&key));
        let (Some((_, parent)), Some(family)) = (key, family) else {
            merged.push(row);
            continue;
        };
        if family.len() > MAX_FUNCTION_ROWS {
            if family[0].name != row.name {
                continue;
            }
            let vf_detail = format_vf_parent(parent);
            row.details.retain(|detail| {
                *detail != vf_detail && family.iter().all(|other| other.details.contains(detail))
            });
            row.details.push(format!("VFs of {parent}"));
            let names: Vec<&str> = family.iter().map(|other| other.name.as_str()).collect();
            row.name = format_ranges(&names, MAX_FUNCTION_ROWS, name_pattern).join(", ");
            row.address = None;
        }
        merged.push(row);
    }
    merged
}

fn format_vf_parent(parent: PciAddress) -> String {
    format!("VF of {parent}")
}

/// Prints what the host has: Onload, TCPDirect and the devices of each NUMA node.
pub(super) fn print_devices(inventory: &Inventory, printer: &mut Printer) -> Result<()> {
    let columns = printer.columns();
    print_products(inventory, printer)?;
    for ((_, node), rows) in rows_by_node(inventory) {
        let heading = match node {
            Some(node) => format!("NUMA node {node}"),
            None => "No NUMA node".to_owned(),
        };
        printer.print(format_args!("\n{HEADING}{heading}{HEADING:#}\n"))?;
        let header = ["CLASS", "NAME", "PCI ADDRESS", "DETAILS"];
        printer.print(format_table(header, rows, columns))?;
    }
    Ok(())
}

fn print_tables(
    inventory: &Inventory,
    pools: &[PoolView<'_>],
    bundles: &BTreeMap<String, Bundle>,
    printer: &mut Printer,
) -> Result<()> {
    let columns = printer.columns();
    print_devices(inventory, printer)?;
    print_pools("\n", pools, printer)?;
    if !bundles.is_empty() {
        let rows =
            bundles.iter().map(|(name, bundle)| [name.clone(), list_members(bundle).join(", ")]);
        printer.print(format_args!("\n{HEADING}Bundles{HEADING:#}\n"))?;
        printer.print(format_table(["NAME", "DEVICES"], rows, columns))?;
    }
    if !inventory.nics.is_empty() {
        let text = format!("{DIM}{NETWORK}{DIM:#}");
        printer.print(format_args!("\n{}", format_paragraph("", "", &text, columns)))?;
    }
    Ok(())
}

fn print_products(inventory: &Inventory, printer: &mut Printer) -> Result<()> {
    match &inventory.onload {
        Some(onload) => print_onload(onload, printer)?,
        None => printer.print(format_labelled("Onload", "not installed", printer.columns()))?,
    }
    let tcpdirect = inventory
        .tcpdirect
        .as_ref()
        .map(|tcpdirect| {
            let tools: Vec<&str> = tcpdirect.tools.iter().map(|tool| tool.name.as_str()).collect();
            let tools = if tools.is_empty() { "no tools".to_owned() } else { tools.join(", ") };
            format!("{GOOD}offered{GOOD:#}; {tools}")
        })
        .unwrap_or_else(|| {
            let reason = escape_controls(tcpdirect_reason(inventory));
            format!("{WARNING}not offered{WARNING:#}: {reason}")
        });
    let line = format_labelled("TCPDirect", &tcpdirect, printer.columns());
    Ok(printer.print(line)?)
}

/// Returns why TCPDirect is not offered: as a whole, or else on the first interface.
fn tcpdirect_reason(inventory: &Inventory) -> String {
    if inventory.onload.is_none() {
        return "it needs Onload".to_owned();
    }
    let mut exclusions = inventory
        .not_offered
        .iter()
        .filter(|exclusion| exclusion.kind == ExclusionSubject::Device(Class::Zf));
    let whole = exclusions.clone().find(|exclusion| exclusion.name == "tcpdirect");
    match (whole, exclusions.next()) {
        (Some(exclusion), _) => exclusion.reason.clone(),
        (None, Some(exclusion)) => format!("{}: {}", exclusion.name, exclusion.reason),
        (None, None) => "it is not installed".to_owned(),
    }
}

fn print_onload(onload: &Onload, printer: &mut Printer) -> Result<()> {
    let availability = match &onload.obstacle {
        None => format!("{GOOD}offered{GOOD:#}"),
        Some(reason) => format!("{WARNING}not offered{WARNING:#}: {}", escape_controls(reason)),
    };
    printer.print(format_labelled("Onload", &availability, printer.columns()))?;
    let unknown = |text: &Option<String>| escape_controls(text.as_deref().unwrap_or("unknown"));
    let matches = match onload.library_matches {
        Some(true) => "built for this driver",
        Some(false) => "built for another driver",
        None => "not comparable",
    };
    let glibc = onload.glibc_needed.map(|version| format!(", needs glibc {version}"));
    let driver = match (&onload.version, &onload.interface_checksum) {
        (None, Some(_)) => "without a version, as a build from git".to_owned(),
        (version, _) => unknown(version),
    };
    let mut parts = vec![("driver", driver)];
    if onload.installation.is_some() {
        let (version, glibc) = (unknown(&onload.library_version), glibc.unwrap_or_default());
        let library = format!("{version}, {matches}{glibc}");
        let tools: Vec<&str> = onload.tools.iter().map(|tool| tool.name.as_str()).collect();
        let profiles: Vec<&str> = onload.profiles.iter().map(|p| p.name.as_str()).collect();
        parts.extend([
            ("library", library),
            ("tools", format_names(&tools)),
            ("profiles", escape_controls(format_names(&profiles))),
        ]);
    }
    for (label, text) in parts {
        printer.print(format_part(label, &text, printer.columns()))?;
    }
    Ok(())
}

fn format_names(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Sorted by NUMA node; devices without one come last.
fn rows_by_node(inventory: &Inventory) -> BTreeMap<(bool, Option<u32>), Vec<[String; 4]>> {
    let mut rows: Vec<DeviceRow> = Vec::new();
    rows.extend(inventory.nics.iter().map(nic_row));
    rows.extend(inventory.rdma.iter().map(rdma_row));
    let near_gpus = inventory.near_gpus.iter();
    rows.extend(near_gpus.map(|alias| near_gpu_row(alias, inventory)));
    rows.extend(inventory.vfio.iter().map(vfio_row));
    for size in &inventory.hugepages {
        let with_pages = size.nodes.iter().filter(|node| node.total > 0);
        rows.extend(with_pages.map(|node| {
            let mounts = size.mounts.join(" ");
            let mounts = (!mounts.is_empty()).then(|| format!("mounted at {mounts}"));
            pages_row(size, Some(node.node), node.free, node.total, mounts)
        }));
        if size.nodes.iter().all(|node| node.total == 0) {
            let overcommit = format!("{} more by overcommit", size.overcommit);
            rows.push(pages_row(size, None, size.free, size.total, Some(overcommit)));
        }
    }
    rows.extend(inventory.netdevs.iter().map(netdev_row));
    rows.extend(inventory.ptp.iter().map(|clock| clock_row("ptp", clock)));
    rows.extend(inventory.pps.iter().map(|clock| clock_row("pps", clock)));
    rows.extend(inventory.gdrcopy.iter().map(gdrcopy_row));
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for row in merge_functions(rows, inventory) {
        let key = (row.numa_node.is_none(), row.numa_node);
        groups.entry(key).or_default().push(row.to_cells());
    }
    groups
}

fn new_row(
    numa_node: Option<u32>,
    class: &'static str,
    name: &str,
    address: Option<PciAddress>,
    details: impl IntoIterator<Item = Option<String>>,
) -> DeviceRow {
    let details = details.into_iter().flatten().filter(|text| !text.is_empty()).collect();
    DeviceRow { numa_node, class, name: name.to_owned(), address, details }
}

/// Offered under another name than the kernel's.
fn format_alias(name: &str, device: &str) -> Option<String> {
    (name != device).then(|| format!("the kernel's {name:?}"))
}

fn nic_row(nic: &Nic) -> DeviceRow {
    let functions = nic.virtual_functions.len();
    let details = [
        format_alias(&nic.name, &nic.device),
        nic.driver.clone(),
        Some(nic.datapath.to_string()),
        nic.stacks.map(|stacks| format_count(stacks, "stack", "stacks")),
        nic.state.clone(),
        nic.speed_mbps.map(format_speed),
        (functions > 0).then(|| format_count(functions, "VF", "VFs")),
    ];
    new_row(nic.numa_node, "nic", &nic.device, nic.pci_address, details)
}

fn rdma_row(device: &RdmaDevice) -> DeviceRow {
    let is_multiport = device.ports.len() > 1;
    let ports = device.ports.iter().map(|port| port_text(port, is_multiport));
    let nodes: Vec<&str> = device.nodes.iter().map(|node| node.node.name()).collect();
    let mut details = vec![format_alias(&device.name, &device.device)];
    details.extend(ports.map(Some));
    details.push(Some(nodes.join(" ")));
    let (node, address) = (device.numa_node, device.pci_address);
    new_row(node, "rdma", &device.device, address, details)
}

fn near_gpu_row(alias: &GpuAlias, inventory: &Inventory) -> DeviceRow {
    let gpu = inventory.functions.get(alias.gpu);
    let node = gpu.and_then(|gpu| gpu.numa_node);
    let details = [Some(format!("nearest to this GPU: {}", alias.rdma.join(" ")))];
    new_row(node, "rdma", &alias.name, Some(alias.gpu), details)
}

/// Formats the details of one port: `port 1 InfiniBand ACTIVE 40 Gbit/s (4X QDR) on ib0`.
fn port_text(port: &RdmaPort, is_multiport: bool) -> String {
    let number = is_multiport.then(|| format!("port {}", port.port));
    let netdevs = (!port.netdevs.is_empty()).then(|| format!("on {}", port.netdevs.join(" ")));
    // The kernel writes "40 Gb/sec (4X QDR)".
    let rate = port.rate.as_ref().map(|rate| rate.replace("Gb/sec", "Gbit/s"));
    let words = [number, port.link_layer.clone(), port.state.clone(), rate, netdevs];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn vfio_row(device: &VfioDevice) -> DeviceRow {
    let parent = device.physical_function;
    let aliases: Vec<String> = device.aliases.iter().map(ToString::to_string).collect();
    let details = [
        Some(format!("group {}", device.iommu_group)),
        device.driver.clone(),
        parent.map(format_vf_parent),
        (!aliases.is_empty()).then(|| format!("with {}", aliases.join(" "))),
        device.noiommu.then(|| "no IOMMU".to_owned()),
        (!device.viable).then(|| "not viable, not offered".to_owned()),
    ];
    let address = device.pci_address;
    new_row(device.numa_node, "vfio", &address.to_string(), Some(address), details)
}

fn pages_row(
    size: &Hugepages,
    node: Option<u32>,
    free: u64,
    total: u64,
    detail: Option<String>,
) -> DeviceRow {
    let free = format!("{free} of {} free", format_count(total, "page", "pages"));
    new_row(node, "hugepages", &size.name, None, [Some(free), detail])
}

fn netdev_row(netdev: &Netdev) -> DeviceRow {
    let details = [
        format_alias(&netdev.name, &netdev.device),
        netdev.driver.clone(),
        netdev.state.clone(),
        netdev.speed_mbps.map(format_speed),
    ];
    let (node, address) = (netdev.numa_node, Some(netdev.pci_address));
    new_row(node, "netdev", &netdev.device, address, details)
}

fn clock_row(class: &'static str, clock: &Clock) -> DeviceRow {
    let nic = clock.nic.as_ref();
    // Some drivers name a clock after the hardware address of its interface.
    let clock_name = clock
        .clock_name
        .clone()
        .filter(|name| name.len() != 12 || !name.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let details = [clock_name, nic.map(|nic| format!("clock of {nic}"))];
    new_row(clock.numa_node, class, &clock.name, clock.pci_address, details)
}

fn gdrcopy_row(gdrcopy: &Gdrcopy) -> DeviceRow {
    let version = gdrcopy.version.as_ref();
    let details = version.map(|version| format!("driver {version}"));
    new_row(None, "gdrcopy", gdrcopy.name, None, [details])
}

fn print_not_offered(inventory: &Inventory, explain: bool, printer: &mut Printer) -> Result<()> {
    let (entries, columns) = (&inventory.not_offered, printer.columns());
    if entries.is_empty() {
        return Ok(());
    }
    if !explain {
        let (singular, plural) = ("thing is", "things are");
        let things = format_count(entries.len(), singular, plural);
        let text = format!("{things} not offered; \"onload-ctk discover --explain\" says why.");
        printer.print(format_args!("\n{}", format_paragraph("", "", &text, columns)))?;
        return Ok(());
    }
    printer.print(format_args!("\n{HEADING}Not offered{HEADING:#}\n"))?;
    let groups = group_reasons(entries);
    if columns.is_none() {
        let rows = groups.into_iter().map(|group| {
            let names = group.format_names();
            [group.kind.to_string(), names, group.reason]
        });
        printer.print(format_table(["KIND", "NAME", "REASON"], rows, columns))?;
        return Ok(());
    }
    for group in groups {
        let names = format!("{}  {}", group.kind, group.format_names());
        printer.print(format_entry(&names, &group.reason, columns))?;
    }
    Ok(())
}
