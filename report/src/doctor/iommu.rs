//! The IOMMU, without which no function goes to vfio, and its groups.

use onload_core::vf_config::OWN_GROUPS;
use onload_host::discover::pci::{DEVICES, PciFunction};
use onload_host::discover::vfio::{
    NEEDS_TOKEN, NO_LINK, any_has_interface, can_be_spared, find_blockers, is_bound_to_vfio,
};
use onload_sys::text::{format_count, quote_for_shell};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};
use super::kernel_line;

const DRIVERCTL: &str = "driverctl";
const FIRMWARE: &str = "systemctl reboot --firmware-setup";
const CPUINFO: &str = "/proc/cpuinfo";

pub(super) fn check_enabled(context: &CheckContext<'_>) -> Findings {
    let functions = &context.inventory.functions;
    let vfio = functions.iter().filter(|function| is_bound_to_vfio(function)).count();
    let has_virtual = functions.iter().any(|function| function.physical_function.is_some());
    if vfio == 0 && !has_virtual && context.config.sriov.is_empty() {
        return Ok(Vec::new());
    }
    // Their groups are made without an IOMMU (`vfio_noiommu_group_alloc`).
    let open: Vec<String> = context
        .inventory
        .vfio
        .iter()
        .filter(|device| device.noiommu)
        .map(|device| device.pci_address.to_string())
        .collect();
    let grouped = functions.iter().filter(|function| function.iommu_group.is_some()).count();
    if grouped > 0 && open.is_empty() {
        let singular = "function is in an IOMMU group";
        let text = format_count(grouped, singular, "functions are in IOMMU groups");
        return Ok(vec![Finding::pass(text).with_path("/sys/kernel/iommu_groups")]);
    }
    let text = match &open[..] {
        [] => "no function is in an IOMMU group: the IOMMU is disabled in the firmware or the \
            kernel"
            .to_owned(),
        open => format!(
            "vfio provides {} without an IOMMU (noiommu), so its holder can write all of the \
             host's memory",
            open.join(", ")
        ),
    };
    let finding = |remedy| match vfio {
        0 => Finding::warn(text, remedy),
        _ => Finding::fail(text, remedy),
    };
    let finding = match enable_remedy(context)? {
        Some(remedy) => kernel_line::with_reboot(context, finding(remedy))?,
        None => finding(Remedy::run(FIRMWARE)),
    };
    let finding = finding.with_path("/sys/kernel/iommu_groups");
    Ok(vec![finding.with_path(CPUINFO).with_path(kernel_line::CMDLINE_PATH)])
}

/// Returns the change of the kernel's command line that enables the IOMMU; `None` if only the firmware can: the kernel
/// enables each SMMU and AMD-Vi that the firmware describes (drivers/iommu/amd/init.c), and VT-d if its word asks for it.
fn enable_remedy(context: &CheckContext<'_>) -> HostResult<Option<Remedy>> {
    const ENABLE: &str = "intel_iommu=on";
    const PASS_THROUGH: &str = "iommu=pt";
    if context.is_arm()? {
        return Ok(None);
    }
    let is_amd = is_amd(context)?;
    let disabling = match is_amd {
        true => [("amd_iommu=off", PASS_THROUGH), ("iommu=off", PASS_THROUGH)],
        false => [("intel_iommu=off", ENABLE), ("iommu=off", PASS_THROUGH)],
    };
    for (start, replacement) in disabling {
        if let Some(word) = kernel_line::find_word(context, start)? {
            return kernel_line::replace(context, &word, replacement).map(Some);
        }
    }
    if is_amd || kernel_line::find_word(context, ENABLE)?.is_some() {
        return Ok(None);
    }
    let words = match kernel_line::find_word(context, PASS_THROUGH)? {
        Some(_) => ENABLE.to_owned(),
        None => format!("{ENABLE} {PASS_THROUGH}"),
    };
    kernel_line::write(context, &words).map(Some)
}

/// Returns whether the processor has AMD-Vi rather than VT-d.
fn is_amd(context: &CheckContext<'_>) -> HostResult<bool> {
    let lines = context.host.lines(CPUINFO.as_ref(), &|line| {
        let value = line.strip_prefix(b"vendor_id").unwrap_or_default().trim_ascii_end();
        value.ends_with(b"AuthenticAMD") || value.ends_with(b"HygonGenuine")
    })?;
    Ok(lines.is_some_and(|lines| !lines.is_empty()))
}

pub(super) fn check_groups(context: &CheckContext<'_>) -> Findings {
    let vfio = &context.inventory.vfio;
    let good = vfio.iter().filter(|device| device.viable).count();
    let mut findings: Vec<Finding> = Vec::new();
    for device in vfio.iter().filter(|device| !device.viable) {
        let blockers = find_blockers(&context.inventory.functions, &device.group_members);
        let Some((first, rest)) = blockers.split_first() else { continue };
        let group = device.iommu_group;
        let names: Vec<String> =
            blockers.iter().map(|blocker| blocker.address.to_string()).collect();
        let text = format!(
            "IOMMU group {group} also contains {}, which is bound to another driver",
            names.join(", ")
        );
        let finding = if blockers.iter().all(|blocker| can_be_spared(blocker)) {
            let cost = if any_has_interface(&blockers) {
                ": with vfio the host loses its interface"
            } else {
                ""
            };
            let bind = |blocker: &&PciFunction| {
                Remedy::run(format!("{DRIVERCTL} set-override {} vfio-pci", blocker.address))
            };
            let finding = Finding::fail(text + cost, bind(first));
            rest.iter()
                .map(bind)
                .fold(finding, Finding::with_remedy)
                .with_first_remedy(context.install_remedy(DRIVERCTL)?)
        } else {
            Finding::fail(format!("{text}: {OWN_GROUPS}"), Remedy::run(FIRMWARE))
        };
        let finding = finding.with_subject(device.pci_address.to_string());
        findings.push(finding.with_path(format!("/sys/kernel/iommu_groups/{group}/devices")));
    }
    if findings.is_empty() && good > 0 {
        let singular = "device is in a viable IOMMU group";
        let text = format_count(good, singular, "devices are in viable IOMMU groups");
        findings.push(Finding::pass(text).with_path("/sys/kernel/iommu_groups"));
    }
    Ok(findings)
}

/// Checks that physical functions with virtual functions are bound to a driver, without which these cannot be set up.
/// And whether their interfaces are up where containers get these.
pub(super) fn check_vf_parents(context: &CheckContext<'_>) -> Findings {
    let install = context.install_remedy(DRIVERCTL)?;
    let mut findings = Vec::new();
    for parent in context.inventory.functions.iter() {
        let count = parent.virtual_functions.len();
        if count == 0 {
            continue;
        }
        let address = parent.address;
        let idle = context.inventory.idle_ports.iter().find(|(idle, _)| *idle == address);
        let functions = format_count(count, "virtual function", "virtual functions");
        let finding = match (parent.driver.as_deref(), idle) {
            // To leave vfio would remove them (`vfio_pci_core_unregister_device`).
            (Some(driver), _) if is_bound_to_vfio(parent) => {
                Finding::pass(format!("it has {functions} and is bound to {driver}: {NEEDS_TOKEN}"))
            }
            (Some(_), Some((_, name))) => Finding::warn(
                format!("its interface {name} is down: {NO_LINK}"),
                Remedy::run(format!("ip link set dev {} up", quote_for_shell(name))),
            ),
            (Some(driver), None) => Finding::pass(format!("{driver} drives its {functions}")),
            (None, _) => Finding::warn(
                format!("it has {functions} but no driver, so they cannot be set up"),
                Remedy::run(format!("{DRIVERCTL} unset-override {address}")),
            )
            .with_first_remedy(install.clone()),
        };
        let finding = finding.with_path(format!("{DEVICES}/{address}/driver"));
        findings.push(finding.with_subject(address.to_string()));
    }
    Ok(findings)
}
