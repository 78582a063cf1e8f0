//! Onload: its modules, the library that goes with them, and interfaces.

use onload_core::class::Class;
use onload_core::host_settings::InterfaceName;
use onload_core::onload::AF_XDP_FLOW_FILTERS;
use onload_host::devices::{RETURNING, STATE_HELD, absent_af_xdp};
use onload_host::discover::af_xdp::{AfXdpTrouble, SWITCH_OFF};
use onload_host::discover::bond::{BondFault, OnloadBond};
use onload_host::discover::nic::{DEBUGFS_NICS, Datapath, Nic};
use onload_host::discover::onload::{CONTROL_PLANE, DEFAULT_CONTROL_PLANE, ProgramFault};
use onload_host::netlink::features::{FlowFilters, InterfaceFeatures};
use onload_sys::text::{format_count, quote_for_shell};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use super::rdma::link_remedy;
use super::reload::{lost_registrations, reapply_remedy, reload_finding};
use crate::status::OTHER_BUILD_EFFECT;

/// Modules that create device nodes, as the kernel lists loaded ones. Without the second, programs of TCPDirect and
/// ef_vi find no node.
const MODULES: [&str; 2] = ["onload", "sfc_char"];
const EXPLAIN: &str = "onload-ctk discover --explain";

pub(super) fn check_modules(context: &CheckContext<'_>) -> Findings {
    if context.inventory.onload.is_none() {
        return Ok(Vec::new());
    }
    let mut missing = Vec::new();
    for module in MODULES {
        if !context.exists(format!("/sys/class/{module}/{module}"))? {
            missing.push(module);
        }
    }
    let finding = match missing.as_slice() {
        [] => Finding::pass(format!("{} are loaded", MODULES.join(" and "))),
        missing => {
            let load = Remedy::run(format!("modprobe --all {}", missing.join(" ")));
            let finding = Finding::fail(format!("not loaded: {}", missing.join(", ")), load);
            reapply_remedy(context)?.into_iter().fold(finding, Finding::with_remedy)
        }
    };
    Ok(vec![finding.with_path("/sys/class/onload").with_path("/sys/class/sfc_char")])
}

pub(super) fn check_library(context: &CheckContext<'_>) -> Findings {
    let Some(onload) = &context.inventory.onload else { return Ok(Vec::new()) };
    let Some(installation) = &onload.installation else {
        let finding = "the driver is loaded, but libonload.so is in none of the library \
            directories: install the user space of the same Onload, or configure its directory";
        let search = Remedy::run("find / -xdev -name libonload.so");
        let line = "host-library-dirs = [\"DIRECTORY\"]";
        return Ok(vec![
            Finding::fail(finding, search)
                .with_remedy(Remedy::write_under(context.config_file, "[cdi]", line))
                .with_path("/usr/lib64/libonload.so"),
        ]);
    };
    // A build from git may have no version.
    let with_version = |name: &str, version: &Option<String>| match version {
        Some(version) => format!("{name} {version}"),
        None => name.to_owned(),
    };
    let library = with_version("the library", &onload.library_version);
    let driver = with_version("driver", &onload.version);
    let finding = match onload.library_matches {
        Some(true) => Finding::pass(format!("{library} was built for this driver")),
        Some(false) => build_finding(
            context,
            &format!(
                "{library} was built for another driver than the loaded {driver}: programs that start now with the preload {OTHER_BUILD_EFFECT}; those with a stack keep it until the reload"
            ),
        )?,
        // Without a loaded driver there is nothing to compare, and `modules` says so.
        None if onload.version.is_none() && onload.interface_checksum.is_none() => {
            return Ok(Vec::new());
        }
        None => Finding::unknown(
            format!("whether {library} was built for the loaded {driver} is unknown"),
            Remedy::run(EXPLAIN),
        ),
    };
    let library = installation.library_dir.join("libonload.so");
    Ok(vec![finding.with_path("/proc/driver/onload/version").with_path(library)])
}

/// Returns the problem of a driver of another build than the library. A reload helps if the modules on disk match it.
fn build_finding(context: &CheckContext<'_>, text: &str) -> HostResult<Finding> {
    let install = Remedy::install(
        "the modules and the library of one Onload",
        "its release, if the reload does not help",
    );
    let finding = reload_finding(context, text, Finding::fail, None)?;
    Ok(finding.with_remedy(install))
}

/// Whether the driver can start the program without which no network namespace gets stacks.
pub(super) fn check_control_plane(context: &CheckContext<'_>) -> Findings {
    let onload = context.inventory.onload.as_ref();
    let Some(control_plane) = onload.and_then(|onload| onload.control_plane.as_ref()) else {
        return Ok(Vec::new());
    };
    let path = &control_plane.path;
    let finding = match control_plane.fault_reason() {
        None => Finding::pass(format!("the driver can start {}", path.display())),
        Some(text) if control_plane.fault == Some(ProgramFault::NotExecutable) => {
            let quoted = quote_for_shell(path);
            Finding::fail(text, Remedy::run(format!("chmod 755 {quoted}")))
        }
        Some(text) if context.is_file(DEFAULT_CONTROL_PLANE)? => {
            let set = format!("echo {DEFAULT_CONTROL_PLANE} > {CONTROL_PLANE}");
            Finding::fail(text, Remedy::run(set))
        }
        Some(text) => {
            let install = Remedy::install(
                "the user space of the same Onload as the driver",
                "the release of which the driver is",
            );
            Finding::fail(text, install)
        }
    };
    Ok(vec![finding.with_path(CONTROL_PLANE).with_path(path)])
}

/// Whether Onload accelerates the bonds of its interfaces.
pub(super) fn check_bonds(context: &CheckContext<'_>) -> Findings {
    let findings = context.inventory.bonds.iter().map(|bond| {
        let finding = match bond.fault_reason() {
            None => Finding::pass("Onload accelerates each member and supports the mode"),
            Some(reason) => {
                let (first, others) = bond_remedies(bond);
                others.into_iter().fold(Finding::warn(reason, first), Finding::with_remedy)
            }
        };
        finding.with_path(format!("/sys/class/net/{}/bonding", bond.name)).with_subject(&bond.name)
    });
    Ok(findings.collect())
}

/// Returns the first command and those after it.
fn bond_remedies(bond: &OnloadBond) -> (Remedy, Vec<Remedy>) {
    let name = quote_for_shell(&bond.name);
    let set = |device: &String, words: &str| {
        Remedy::run(format!("ip link set dev {} {words}", quote_for_shell(device)))
    };
    if let Some(BondFault::Member(member)) = &bond.fault {
        return (set(member, "nomaster"), Vec::new());
    }
    // The kernel changes the mode of a bond that is down and has no members (drivers/net/bonding/bond_options.c).
    let empty = bond.members.iter().map(|member| set(member, "nomaster"));
    let mode = set(&bond.name, "type bond mode active-backup");
    let fill = bond.members.iter().map(|member| set(member, &format!("master {name}")));
    let others = empty.chain([mode]).chain(fill).chain([set(&bond.name, "up")]);
    (set(&bond.name, "down"), others.collect())
}

pub(super) fn check_interfaces(context: &CheckContext<'_>) -> Findings {
    let inventory = context.inventory;
    if inventory.onload.as_ref().is_none_or(|onload| onload.obstacle.is_some()) {
        return Ok(Vec::new());
    }
    let lost = lost_registrations(context);
    let nics = inventory.nics.iter().filter(|nic| !lost.contains(&nic.name));
    let names: Vec<&str> = nics.map(|nic| nic.device.as_str()).collect();
    let finding = if names.is_empty() && inventory.undecided_classes().contains(&Class::Nic) {
        Finding::unknown(
            "could not determine which interfaces Onload accelerates",
            Remedy::for_unread(),
        )
    } else if names.is_empty() {
        let explain = Remedy::run(EXPLAIN);
        let text = "Onload works, but no interface is accelerated";
        match reapply_remedy(context)? {
            Some(reapply) => Finding::warn(text, reapply).with_remedy(explain),
            None => Finding::warn(text, explain),
        }
    } else {
        Finding::pass(format!("accelerated: {}", names.join(", ")))
    };
    let mut findings = vec![finding.with_path("/sys/class/net")];
    if !names.is_empty()
        && let Some(reapply) = reapply_remedy(context)?
    {
        let mut missing = Vec::new();
        for name in context.config.host.af_xdp.iter().map(InterfaceName::as_str) {
            if inventory.interfaces.iter().any(|interface| interface.name == name)
                && !inventory.attached.iter().any(|attached| attached == name)
            {
                missing.push(name);
            }
        }
        if !missing.is_empty() {
            let missing = missing.join(", ");
            let text =
                format!("[host] af-xdp lists {missing}, but it is not registered with Onload");
            findings.push(Finding::warn(text, reapply).with_path(DEBUGFS_NICS));
        }
    }
    Ok(findings)
}

pub(super) fn check_af_xdp(context: &CheckContext<'_>) -> Findings {
    let inventory = context.inventory;
    let lost = lost_registrations(context);
    // No command of the host reads or sets the channels of an interface that is in a container.
    let nics: Vec<&Nic> = inventory
        .nics
        .iter()
        .filter(|nic| nic.datapath == Datapath::AfXdp && !lost.contains(&nic.name))
        .filter(|nic| inventory.interfaces.iter().any(|interface| interface.name == nic.name))
        .collect();
    if nics.is_empty() {
        return Ok(Vec::new());
    }
    let parameter = context.attribute(AF_XDP_FLOW_FILTERS)?;
    let features_by_name = context.host.interface_features()?;
    let install = context.install_remedy("ethtool")?;
    let findings = nics.into_iter().map(|nic| {
        let name = &nic.name;
        let register = register_remedy(context, name);
        let features = features_by_name.get(name).copied().unwrap_or_default();
        let finding = match AfXdpTrouble::find(features, parameter.as_deref()) {
            Some(trouble) => {
                let text = trouble.to_string();
                let apply = Remedy::run("onload-ctk host apply");
                match (trouble.remedy_command(name), context.config.host.af_xdp_flow_filters) {
                    // Onload reads the channels when an interface is registered.
                    (Some(command), _) if matches!(trouble, AfXdpTrouble::Channels(_)) => {
                        let then = reapply_remedy(context)?.is_none().then_some(apply);
                        reload_finding(context, &text, Finding::warn, then)?
                            .with_first_remedy(register)
                            .with_first_remedy(Some(Remedy::run(command)))
                            .with_first_remedy(install.clone())
                    }
                    (Some(command), _) => {
                        Finding::warn(text, Remedy::run(command)).with_first_remedy(install.clone())
                    }
                    // The file has the line already, and takes no second one.
                    (None, Some(false)) => Finding::fail(text, apply),
                    (None, _) => {
                        let set = Remedy::write_under(context.config_file, "[host]", SWITCH_OFF);
                        Finding::fail(text, apply)
                            .with_first_remedy(register)
                            .with_first_remedy(Some(set))
                    }
                }
            }
            None if !is_suitability_known(features, parameter.as_deref()) => {
                let command = format!("ethtool -k {}", quote_for_shell(name));
                let text = "could not determine whether the driver has the flow filters and \
                    channels that Onload needs";
                Finding::unknown(text, Remedy::run(command)).with_first_remedy(install.clone())
            }
            None => {
                let text = "flow filters and channels suit Onload";
                let stacks = nic.stacks.map_or_else(String::new, |stacks| {
                    format!(
                        "; it serves {}, one per channel: more programs run on the kernel's \
                         sockets",
                        format_count(stacks, "stack", "stacks")
                    )
                });
                Finding::pass(text.to_owned() + &stacks)
            }
        };
        Ok(finding.with_path(AF_XDP_FLOW_FILTERS).with_subject(nic.device.clone()))
    });
    findings.collect()
}

/// Returns what registers an interface again after a reload and at boot. `None` if the configuration does so already. A
/// file with mistakes has to be corrected first, since it may list interfaces that are not understood.
fn register_remedy(context: &CheckContext<'_>, interface: &str) -> Option<Remedy> {
    let mut names: Vec<&str> =
        context.config.host.af_xdp.iter().map(InterfaceName::as_str).collect();
    if names.contains(&interface) {
        return None;
    }
    if !context.config_problems.is_empty() {
        return Some(Remedy::Edit { edit: context.config_file.to_owned() });
    }
    let absent = absent_af_xdp(context.inventory, context.config);
    names.retain(|name| !absent.contains(name));
    names.push(interface);
    let line = format!("af-xdp = {names:?}");
    Some(Remedy::write_under(context.config_file, "[host]", line))
}

/// Returns whether enough is known to say that an interface suits Onload. `parameter` is Onload's own
/// setting of flow filters.
fn is_suitability_known(features: InterfaceFeatures, parameter: Option<&str>) -> bool {
    match parameter {
        None => features.flow_filters == Some(FlowFilters::On),
        Some("0") => features.channels.is_some(),
        Some(_) => features.flow_filters.is_some(),
    }
}

pub(super) fn link(context: &CheckContext<'_>) -> Findings {
    let mut findings = Vec::new();
    for nic in &context.inventory.nics {
        let name = &nic.name;
        let finding = match nic.state.as_deref() {
            Some(state @ ("up" | "unknown")) => Finding::pass(format!("{name} is {state}")),
            // It is in a container, so its link is not visible here.
            None | Some(STATE_HELD | RETURNING) => continue,
            Some(state) => Finding::warn(
                format!("{name} is {state}: it carries no traffic"),
                link_remedy(context, name)?,
            ),
        };
        let finding = finding.with_path(format!("/sys/class/net/{name}/operstate"));
        findings.push(finding.with_subject(nic.device.clone()));
    }
    Ok(findings)
}
