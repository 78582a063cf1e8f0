//! SR-IOV virtual functions: their number, their driver, and their settings in the physical function's driver
//! (`Documentation/PCI/pci-iov-howto.rst`, `Documentation/ABI/testing/sysfs-bus-pci`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use onload_core::host_settings::{PfRef, SriovConfig, VfDriver, Vlan};
use onload_sys::netlink::link::UP;
use onload_sys::netlink::vf::VlanTag;
use onload_sys::pci::PciAddress;
use onload_sys::text::{format_count, quote_for_shell};

use super::function_users::FunctionUsers;
use super::kernel::{KernelReader, VfChange, VfSettings};
use super::step::{Effect, HostPlan, HostStep, StepAction, StepSubject};
use crate::discover::netdev::{SYS_CLASS_NET, is_ipoib_address, is_representor_port_name};
use crate::discover::pci::DEVICES;
use crate::host::{Host, HostError};

const VFIO_PCI: &str = "vfio-pci";
const VFIO_PCI_DRIVER: &str = "/sys/bus/pci/drivers/vfio-pci";
const DRIVERS_PROBE: &str = "/sys/bus/pci/drivers_probe";
const AUTOPROBE: &str = "sriov_drivers_autoprobe";
const COUNT: &str = "sriov_numvfs";
/// Drivers that create no virtual functions while their interface is down: the first accepts the number without effect
/// (`bnxt_sriov_configure`), the second rejects it (`bnx2x_sriov_configure`).
const MAKE_WHILE_UP: [&str; 2] = ["bnxt_en", "bnx2x"];
/// `driver_override` of a function without a fixed driver.
const NO_OVERRIDE: &str = "(null)";

#[derive(Debug)]
pub(super) struct PfState {
    pub(super) address: PciAddress,
    driver: Option<String>,
    interface: Option<String>,
    /// Whether its interface is an IPoIB interface.
    is_ipoib: bool,
    /// Flags of its interface.
    flags: Option<u32>,
    total: Option<u16>,
    count: u16,
    /// Whether the kernel probes drivers for new virtual functions; `None` before Linux 4.12.
    autoprobe: Option<bool>,
    /// Its interface with the host's default route.
    default_route: Option<String>,
    has_vfio_pci: bool,
    vfs: BTreeMap<u32, VfState>,
    /// `None` if the host's kernel cannot be queried.
    settings: Result<Option<BTreeMap<u32, VfSettings>>, String>,
}

#[derive(Debug)]
struct VfState {
    address: PciAddress,
    driver: Option<String>,
    driver_override: Option<String>,
    modalias: Option<String>,
    user: Option<String>,
}

pub(super) fn read(
    host: &Host,
    kernel: &dyn KernelReader,
    users: &FunctionUsers<'_>,
    pf: &PfRef,
) -> anyhow::Result<PfState> {
    let address = find(host, pf)?;
    let interface = match pf {
        PfRef::Interface(name) => Some(name.to_string()),
        PfRef::Address(address) => find_uplink(host, *address)?,
    };
    let mut settings = match &interface {
        Some(name) => kernel.vf_settings(name).map_err(|error| format!("{error:#}")),
        None => Ok(Some(BTreeMap::new())),
    };
    let directory = function_path(address);
    let number = |name: &str| -> Result<_, HostError> {
        let text = host.attribute(&directory.join(name))?;
        Ok(text.and_then(|text| text.parse::<u16>().ok()))
    };
    let interfaces = host.list(&directory.join("net"))?.names;
    let attribute = |file: &str| match &interface {
        Some(name) => host.attribute(&Path::new(SYS_CLASS_NET).join(name).join(file)),
        None => Ok(None),
    };
    let flags = attribute("flags")?;
    let hardware_address = attribute("address")?;
    let mut vfs = BTreeMap::new();
    for name in host.list(&directory)?.names {
        let Some(index) = name.strip_prefix("virtfn") else {
            continue;
        };
        let target = host.link_name(&directory.join(&name))?;
        let address = target.and_then(|target| target.parse().ok());
        if let (Ok(index), Some(address)) = (index.parse(), address) {
            // Settings for a container are restored when it exits.
            if let Ok(Some(settings)) = &mut settings
                && let (Some(now), Some(before)) =
                    (settings.get_mut(&index), users.settings_before(address))
            {
                *now = before.merge_missing(now);
            }
            vfs.insert(index, read_vf(host, users, address)?);
        }
    }
    Ok(PfState {
        total: number("sriov_totalvfs")?,
        count: number(COUNT)?.unwrap_or(0),
        driver: host.link_name(&directory.join("driver"))?,
        autoprobe: number(AUTOPROBE)?.map(|number| number != 0),
        default_route: interfaces.into_iter().find(|name| users.is_on_default_route(name)),
        has_vfio_pci: host.entry(Path::new(VFIO_PCI_DRIVER))?.is_some(),
        address,
        is_ipoib: hardware_address.as_deref().is_some_and(is_ipoib_address),
        interface,
        flags: flags.and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()),
        vfs,
        settings,
    })
}

fn read_vf(
    host: &Host,
    users: &FunctionUsers<'_>,
    address: PciAddress,
) -> Result<VfState, HostError> {
    let directory = function_path(address);
    let driver = host.link_name(&directory.join("driver"))?;
    let driver_override = host.attribute(&directory.join("driver_override"))?;
    Ok(VfState {
        user: users.find_user(address, driver.as_deref())?,
        driver_override: driver_override.filter(|name| !name.is_empty() && name != NO_OVERRIDE),
        modalias: host.attribute(&directory.join("modalias"))?,
        address,
        driver,
    })
}

fn unbind(vf: &VfState) -> StepAction {
    StepAction::write(function_path(vf.address).join("driver/unbind"), &vf.address)
}

fn flags_path(interface: &str) -> PathBuf {
    Path::new(SYS_CLASS_NET).join(interface).join("flags")
}

fn function_path(address: PciAddress) -> PathBuf {
    Path::new(DEVICES).join(address.to_string())
}

fn find(host: &Host, pf: &PfRef) -> anyhow::Result<PciAddress> {
    match pf {
        PfRef::Address(address) => {
            let entry = host.entry(&function_path(*address))?;
            entry.context("PCI function not found")?;
            Ok(*address)
        }
        PfRef::Interface(name) => {
            let path = host
                .resolve(&Path::new(SYS_CLASS_NET).join(name.as_str()))?
                .context("interface not found")?;
            // Interfaces of subfunctions are deeper in the tree and do not belong to the physical function.
            let device = path.ancestors().nth(2).and_then(Path::file_name);
            let address = device.and_then(|name| name.to_str()?.parse().ok());
            address.context("it is not the interface of a PCI function")
        }
    }
}

/// Returns the interface of a physical function itself, not the representors of other functions in the same directory.
fn find_uplink(host: &Host, address: PciAddress) -> Result<Option<String>, HostError> {
    let names = host.list(&function_path(address).join("net"))?.names;
    for name in &names {
        let port = host.attribute(&Path::new(SYS_CLASS_NET).join(name).join("phys_port_name"))?;
        if port.is_none_or(|port| !is_representor_port_name(&port)) {
            return Ok(Some(name.clone()));
        }
    }
    Ok(None)
}

pub(super) fn decide(pf: &PfState, config: &SriovConfig, plan: &mut HostPlan) {
    let planner = SriovPlanner { pf, config, subject: StepSubject::new("sriov", &config.pf) };
    if pf.is_ipoib
        && let Some(change) = planner.changes(0).next()
    {
        return plan.refuse(&planner.subject, planner.ipoib_reason(change));
    }
    planner.warn_of_own_address(plan);
    if pf.count != config.vfs {
        match planner.check_recount() {
            Ok(()) => return planner.plan_recount(plan),
            Err(reason) => plan.refuse(&planner.subject, reason),
        }
    }
    planner.plan_existing(plan);
    planner.warn_of_spoofing(plan);
}

struct SriovPlanner<'d> {
    pf: &'d PfState,
    config: &'d SriovConfig,
    subject: StepSubject,
}

impl SriovPlanner<'_> {
    /// Returns why a setting is rejected on InfiniBand, before the functions exist: IPoIB supports none of these
    /// (`ipoib_netdev_ops_pf` in drivers/infiniband/ulp/ipoib/ipoib_main.c), but `ndo_set_vf_guid` instead.
    fn ipoib_reason(&self, change: VfChange) -> String {
        let interface = self.pf.interface.as_deref().unwrap_or_default();
        let interface = quote_for_shell(interface);
        format!(
            "{interface} is IP over InfiniBand, whose virtual functions have no {}; remove mac, \
             vlan, spoof-check and trust, and give each function GUIDs before its driver binds: ip \
             link set dev {interface} vf 0 node_guid GUID, and port_guid GUID",
            change.name()
        )
    }

    /// Fails if the number of virtual functions must not change.
    fn check_recount(&self) -> Result<(), String> {
        let (pf, vfs) = (self.pf, self.config.vfs);
        let Some(total) = pf.total else {
            return Err(format!(
                "{} does not support SR-IOV; enable it in the firmware of card and host",
                pf.address
            ));
        };
        if vfs > total {
            return Err(format!(
                "{} can have {}, not {vfs}; correct vfs, or raise the number in the card's firmware",
                pf.address,
                format_count(total, "virtual function", "virtual functions")
            ));
        }
        if pf.count == 0 {
            return Ok(());
        }
        let used = pf.vfs.iter().find_map(|(index, vf)| {
            let user = vf.user.as_ref()?;
            Some(format!("vf {index} ({}) is used by {user}", vf.address))
        });
        let changing = format!(
            "{} there, not {vfs}, and the kernel can change that only by removing all of them",
            format_count(pf.count, "virtual function is", "virtual functions are")
        );
        match (used, &pf.default_route) {
            (Some(used), _) => Err(format!("{changing}; {used}; stop that first")),
            (None, Some(interface)) => Err(format!(
                "{changing}; {interface} carries the default route, which the change may \
                 interrupt; do it manually"
            )),
            (None, None) => Ok(()),
        }
    }

    /// Returns whether new virtual functions get no driver at first: the kernel's driver would bind to those for vfio,
    /// and reads a hardware address only once.
    fn defers_drivers(&self) -> bool {
        let config = self.config;
        let is_set = config.mac.is_some()
            || config.vlan.is_some()
            || config.spoof_check.is_some()
            || config.trust.is_some();
        config.driver == VfDriver::VfioPci || is_set
    }

    fn plan_autoprobe(&self, enabled: bool, plan: &mut HostPlan) {
        let Some(now) = self.pf.autoprobe.filter(|now| *now != enabled) else {
            return;
        };
        let digit = |on: bool| if on { "1" } else { "0" };
        let path = function_path(self.pf.address).join(AUTOPROBE);
        plan.steps.push(HostStep {
            actions: vec![StepAction::write(&path, digit(enabled))],
            effect: Effect::Is { path, text: digit(enabled).to_owned() },
            ..HostStep::new(&self.subject, AUTOPROBE, digit(now), digit(enabled))
        });
    }

    fn plan_recount(&self, plan: &mut HostPlan) {
        let (count, vfs) = (self.pf.count, self.config.vfs);
        let defers = self.defers_drivers();
        match self.config.driver {
            _ if vfs == 0 => {}
            VfDriver::VfioPci => self.plan_autoprobe(false, plan),
            VfDriver::Kernel if !defers => self.plan_autoprobe(true, plan),
            VfDriver::Kernel => {}
        }
        let (mut actions, mut finally) = (Vec::new(), Vec::new());
        if self.makes_while_up()
            && let Some((up, down)) = self.link_steps()
        {
            actions.extend(up.actions);
            finally.extend(down.actions);
        }
        let function = function_path(self.pf.address);
        // Probing is turned on again once their settings are in place.
        if defers
            && vfs > 0
            && self.pf.autoprobe == Some(true)
            && self.config.driver == VfDriver::Kernel
        {
            actions.push(StepAction::write(function.join(AUTOPROBE), "0"));
        }
        let path = function.join(COUNT);
        if count > 0 {
            actions.push(StepAction::write(&path, &0));
        }
        if vfs > 0 {
            actions.push(StepAction::write(&path, &vfs));
        }
        plan.steps.push(HostStep {
            actions,
            finally,
            frees: self.pf.vfs.values().map(|vf| vf.address).collect(),
            effect: Effect::Is { path, text: vfs.to_string() },
            ..HostStep::new(&self.subject, "virtual functions", count.to_string(), vfs.to_string())
        });
        if vfs == 0 {
            return;
        }
        let which = match vfs {
            1 => "vf 0".to_owned(),
            _ => format!("vf 0-{}", vfs - 1),
        };
        let settings = self.changes(0).map(|change| {
            let (name, value) = describe_change(change);
            match change {
                VfChange::Mac(_) if vfs > 1 => (name, format!("{value} and up")),
                _ => (name, value),
            }
        });
        let driver = ("driver", driver_words(self.config.driver).to_owned());
        for (name, value) in settings.chain([driver]) {
            plan.steps.push(HostStep::new(&self.subject, format!("{which} {name}"), "-", value));
        }
        if self.config.spoof_check == Some(false) {
            plan.warnings.push(self.spoofing_warning(&which));
        }
    }

    fn plan_existing(&self, plan: &mut HostPlan) {
        let (count, existing) = (usize::from(self.pf.count), self.pf.vfs.len());
        if existing < count {
            let reason = format!(
                "{existing} of its {} there; see dmesg",
                format_count(count, "virtual function is", "virtual functions are")
            );
            plan.refuse(&self.subject, reason);
        }
        let wanted = 0..u32::from(self.config.vfs);
        for (index, vf) in self.pf.vfs.range(wanted.clone()) {
            self.plan_settings(*index, vf, plan);
        }
        let mut free = Vec::new();
        for (index, vf) in self.pf.vfs.range(wanted) {
            if self.is_bound(vf) {
                continue;
            }
            if vf.user.is_some() {
                self.refuse_used(*index, vf, "driver", plan);
            } else {
                free.push((*index, vf));
            }
        }
        if free.is_empty() {
            return;
        }
        // Functions that lose their driver for a new address are bound later, all at once.
        let is_later =
            plan.steps.iter().any(|step| step.subject == self.subject && step.actions.is_empty());
        let needs_link_up = !is_later && self.binds_while_up();
        let (up, down) = self.link_steps().filter(|_| needs_link_up).unzip();
        plan.steps.extend(up);
        match self.config.driver {
            VfDriver::VfioPci => self.load_vfio_pci(plan),
            VfDriver::Kernel => self.plan_autoprobe(true, plan),
        }
        for (index, vf) in free {
            let mut step = self.bind(index, vf);
            if is_later {
                step.actions.clear();
            }
            plan.steps.push(step);
        }
        plan.steps.extend(down);
    }

    /// Drivers such as igbvf and ixgbevf request the address from the physical function when they are bound, and use a
    /// random one if its interface is down, as at boot. The interface is set down again afterwards, since a router
    /// advertisement could give it an address, and NetworkManager would then not manage it.
    fn link_steps(&self) -> Option<(HostStep, HostStep)> {
        let (interface, flags) = (self.pf.interface.as_ref()?, self.pf.flags?);
        let step = |flags: u32, now, wanted| {
            let (path, text) = (flags_path(interface), format!("{flags:#x}"));
            HostStep {
                actions: vec![StepAction::write(&path, &text)],
                effect: Effect::Is { path, text },
                ..HostStep::new(&self.subject, format!("interface {interface}"), now, wanted)
            }
        };
        (flags & UP == 0).then(|| (step(flags | UP, "down", "up"), step(flags, "up", "down")))
    }

    /// Drivers in [`MAKE_WHILE_UP`] also answer their virtual functions only while the interface is up.
    fn binds_while_up(&self) -> bool {
        let needs_link_up = self.config.mac.is_some() || self.makes_while_up();
        self.config.driver == VfDriver::Kernel && needs_link_up
    }

    fn makes_while_up(&self) -> bool {
        let driver = self.pf.driver.as_deref();
        driver.is_some_and(|driver| MAKE_WHILE_UP.contains(&driver))
    }

    fn refuse_used(&self, index: u32, vf: &VfState, what: &str, plan: &mut HostPlan) {
        let user = vf.user.as_deref().unwrap_or_default();
        let reason = format!(
            "the {what} of vf {index} ({}) is not changed, because it is in use by {user}; stop \
             that first",
            vf.address
        );
        plan.refuse(&self.subject, reason);
    }

    fn changes(&self, index: u32) -> impl Iterator<Item = VfChange> {
        let config = self.config;
        let mac = config
            .mac
            .zip(u16::try_from(index).ok())
            .and_then(|(first, index)| first.checked_add(index));
        [
            mac.map(|mac| VfChange::Mac(mac.bytes())),
            config.vlan.map(|vlan| VfChange::Vlan(vlan_tag(vlan))),
            config.spoof_check.map(VfChange::SpoofCheck),
            config.trust.map(VfChange::Trust),
        ]
        .into_iter()
        .flatten()
    }

    fn plan_settings(&self, index: u32, vf: &VfState, plan: &mut HostPlan) {
        for change in self.changes(index) {
            let (name, wanted) = describe_change(change);
            let now = match self.current_value(index, change) {
                Ok(now) if now == wanted => continue,
                Ok(now) => now,
                Err(why) => {
                    let reason = format!("the {name} of vf {index} ({}): {why}", vf.address);
                    plan.refuse(&self.subject, reason);
                    continue;
                }
            };
            if vf.user.is_some() {
                self.refuse_used(index, vf, name, plan);
                continue;
            }
            if let Some(interface) = self.pf.interface.clone() {
                self.set(index, vf, interface, change, now, plan);
            }
        }
    }

    fn set(
        &self,
        index: u32,
        vf: &VfState,
        interface: String,
        change: VfChange,
        now: String,
        plan: &mut HostPlan,
    ) {
        let (name, wanted) = describe_change(change);
        let setting = |name: &str| format!("vf {index} ({}) {name}", vf.address);
        let rebound_driver = self.reads_once(vf, change);
        let unbind = rebound_driver.map(|_| unbind(vf));
        let set = |change| StepAction::SetVf { interface: interface.clone(), vf: index, change };
        let mut actions: Vec<StepAction> = unbind.into_iter().collect();
        actions.push(set(change));
        // Before this change the virtual function's user could turn the spoof check off, which ixgbe does not report
        // (`ixgbe_set_vf_macvlan_msg`).
        if let (VfChange::Mac(_) | VfChange::Trust(_), Some(on)) = (change, self.config.spoof_check)
        {
            actions.push(set(VfChange::SpoofCheck(on)));
        }
        plan.steps.push(HostStep {
            actions,
            frees: rebound_driver.map(|_| vf.address).into_iter().collect(),
            effect: Effect::Vf { interface, vf: index, change },
            ..HostStep::new(&self.subject, setting(name), now, wanted)
        });
        if let Some(driver) = rebound_driver {
            let again = HostStep::new(&self.subject, setting("driver"), driver, "bound again");
            plan.steps.push(again);
        }
    }

    /// Returns the driver if it has read the address already and must be rebound to read it again. It is unbound first,
    /// so that the next run can continue after an interruption.
    fn reads_once<'v>(&self, vf: &'v VfState, change: VfChange) -> Option<&'v str> {
        let is_read = matches!(change, VfChange::Mac(_));
        let stays = self.config.driver == VfDriver::Kernel && self.is_bound(vf);
        vf.driver.as_deref().filter(|_| is_read && stays)
    }

    fn current_value(&self, index: u32, change: VfChange) -> Result<String, String> {
        if self.pf.interface.is_none() {
            return Err(format!(
                "{} has no interface, through which its driver is configured; bind it to the \
                 kernel's driver",
                self.pf.address
            ));
        }
        let settings = match &self.pf.settings {
            Ok(Some(settings)) => settings,
            Ok(None) => return Err("only the running kernel knows its value".to_owned()),
            Err(reason) => return Err(reason.clone()),
        };
        let Some(vf_settings) = settings.get(&index) else {
            return Err(
                "the driver of the physical function does not report it, or the kernel's answer is \
                 truncated, as with more than about 330 virtual functions; remove the setting, or \
                 create fewer"
                    .to_owned(),
            );
        };
        change.current_setting(vf_settings).map(|now| describe_change(now).1).ok_or_else(|| {
            "the driver of the physical function does not support it; remove it".to_owned()
        })
    }

    fn is_bound(&self, vf: &VfState) -> bool {
        let is_vfios = |driver: &str| driver.contains("vfio");
        vf.driver.as_deref().is_some_and(|driver| match self.config.driver {
            VfDriver::VfioPci => is_vfios(driver),
            VfDriver::Kernel => !is_vfios(driver),
        })
    }

    fn load_vfio_pci(&self, plan: &mut HostPlan) {
        if !self.pf.has_vfio_pci {
            plan.steps.push(HostStep {
                actions: vec![StepAction::Load(VFIO_PCI.to_owned())],
                effect: Effect::Exists(VFIO_PCI_DRIVER.into()),
                ..HostStep::new(&self.subject, "module vfio-pci", "not loaded", "loaded")
            });
        }
    }

    /// Sets `driver_override` first, so that no other driver binds to the function in between.
    fn bind(&self, index: u32, vf: &VfState) -> HostStep {
        let function = function_path(vf.address);
        let (name, driver, advice) = match self.config.driver {
            VfDriver::VfioPci => (
                VFIO_PCI,
                Some(VFIO_PCI),
                "is the IOMMU enabled, in the firmware and with intel_iommu=on if the kernel \
                 requires that? see dmesg",
            ),
            VfDriver::Kernel => ("", None, "is the module of its driver installed? see dmesg"),
        };
        let mut actions = Vec::new();
        if vf.driver_override.as_deref().unwrap_or_default() != name {
            // An empty line clears the override.
            actions.push(StepAction::write(function.join("driver_override"), name));
        }
        if vf.driver.is_some() {
            actions.push(unbind(vf));
        }
        if let (None, Some(alias)) = (driver, &vf.modalias) {
            actions.push(StepAction::LoadIfThere(alias.clone()));
        }
        actions.push(StepAction::write(DRIVERS_PROBE, &vf.address));
        let now = vf.driver.as_deref().unwrap_or("none");
        let wanted = driver_words(self.config.driver);
        HostStep {
            actions,
            frees: vec![vf.address],
            effect: Effect::Bound { function, driver, advice: advice.to_owned() },
            ..HostStep::new(
                &self.subject,
                format!("vf {index} ({}) driver", vf.address),
                now,
                wanted,
            )
        }
    }

    /// Warns that a spoof check without a set address is weak: drivers check frames against the function's address,
    /// which its user can choose as long as the physical function sets none (`ixgbe_set_vf_mac_addr`,
    /// `i40e_check_vf_permission`, `ice_can_vf_change_mac`, `bnxt_vf_configure_mac`).
    fn warn_of_own_address(&self, plan: &mut HostPlan) {
        let config = self.config;
        let is_checked = config.spoof_check == Some(true) && config.trust != Some(true);
        if is_checked && config.mac.is_none() && config.vfs > 0 {
            plan.warnings.push(format!(
                "{}: spoof-check = true without mac: a container can set its virtual function's \
                 address to that of another machine and send as it; add mac, which a container \
                 then cannot change",
                self.subject
            ));
        }
    }

    fn warn_of_spoofing(&self, plan: &mut HostPlan) {
        let settings = match (&self.pf.settings, self.config.spoof_check) {
            (_, Some(true)) => return,
            (Ok(Some(settings)), _) => settings,
            _ => return,
        };
        let off: Vec<String> = settings
            .iter()
            .filter(|(_, now)| self.config.spoof_check.or(now.spoof_check) == Some(false))
            .map(|(index, _)| index.to_string())
            .collect();
        if !off.is_empty() {
            let which = format!("vf {}", off.join(", "));
            plan.warnings.push(self.spoofing_warning(&which));
        }
    }

    fn spoofing_warning(&self, which: &str) -> String {
        format!(
            "{}: spoof checking of {which} is disabled: a container that holds one can send as any \
             other machine; set spoof-check = true unless that is intended",
            self.subject
        )
    }
}

fn vlan_tag(vlan: Vlan) -> VlanTag {
    VlanTag { id: vlan.number(), ..VlanTag::default() }
}

fn driver_words(driver: VfDriver) -> &'static str {
    match driver {
        VfDriver::VfioPci => VFIO_PCI,
        VfDriver::Kernel => "the kernel's",
    }
}

/// Returns the name and value of a setting. The section has no VLAN priority, so a VLAN is a number.
fn describe_change(change: VfChange) -> (&'static str, String) {
    let whole = match change {
        VfChange::Vlan(tag) => tag.id.to_string(),
        _ => change.to_string(),
    };
    let name = change.name();
    let value = whole.strip_prefix(name).unwrap_or(&whole).trim_start();
    (name, value.to_owned())
}
