//! Hosts whose kernel reacts to what is written, as far as these tests need.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onload_core::config::Config;
use onload_core::host_settings::RdmaNetns;
use onload_sys::netlink::link::format_hwaddr;
use onload_sys::netlink::vf::VlanTag;

use super::kernel::{HostKernel, KernelReader, VfChange, VfSettings};
use super::running_kernel::netns_busy_error;
use super::{ApplyOutcome, HostPlan, HostStep, OfflineKernel, StepStage, apply, plan};
use crate::discover::test_tree::{AsHost, Tree};
use crate::host::Host;

const PF: &str = "/sys/devices/pci0000:81/0000:81:00.0";
const VF: &str = "/sys/devices/pci0000:81/0000:81:10.0";
const NODES: &str = "/sys/devices/system/node";
const REGISTER: &str = "/sys/module/sfc_resource/afxdp/register";
const NICS: &str = "/sys/kernel/debug/sfc_resource/nics";
const FLOW_FILTERS: &str = "/sys/module/sfc_resource/parameters/enable_af_xdp_flow_filters";
/// What a driver without flow filters says.
const WITHOUT_FILTERS: &str = "ens2 xdp none 4\n";

/// What the kernel says of the network: an interface of the adapter, one of each virtual function, and more.
fn network(more: &str) -> String {
    let functions: String =
        (0..8).map(|index| format!("link {} ens2v{index} - - - -\n", 10 + index)).collect();
    format!("link 2 ens2 - - - -\n{functions}{more}")
}

/// A host with an adapter that can have eight virtual functions, and a kernel that makes them.
struct Machine {
    tree: Tree,
    settings: RefCell<BTreeMap<u32, VfSettings>>,
    holders: RefCell<BTreeMap<PathBuf, String>>,
    /// What the kernel was told, in order.
    writes: RefCell<Vec<String>>,
    /// After how many words the machine fails; none: never.
    fails_after: Cell<Option<usize>>,
    ignored: RefCell<Vec<&'static str>>,
    refuses: RefCell<Vec<&'static str>>,
    /// The most pages that a node has memory for.
    memory: Cell<u64>,
    /// Which look at the machine finds that udev has renamed the first function's interface; none: no one.
    renamed_at: Cell<Option<u32>>,
}

impl Machine {
    fn new() -> Self {
        let tree = Tree::new();
        tree.function("0000:81:00.0", "0x020000", 0);
        tree.attributes(
            PF,
            &[("sriov_totalvfs", "8"), ("sriov_numvfs", "0"), ("sriov_drivers_autoprobe", "1")],
        );
        tree.file(&format!("{PF}/net/ens2/address"), "52:54:00:12:34:56\n");
        tree.link("/sys/class/net/ens2", &format!("{PF}/net/ens2"));
        tree.directory("/sys/bus/pci/drivers/igbvf");
        for (node, pages) in [(0, "2"), (1, "0")] {
            let file = format!("{NODES}/node{node}/hugepages/hugepages-1048576kB/nr_hugepages");
            tree.file(&file, format!("{pages}\n"));
        }
        tree.file("/sys/module/ib_core/parameters/netns_mode", "Y\n");
        tree.file("/network.table", network(""));
        Machine {
            tree,
            settings: RefCell::default(),
            holders: RefCell::default(),
            writes: RefCell::default(),
            fails_after: Cell::new(None),
            ignored: RefCell::default(),
            refuses: RefCell::default(),
            memory: Cell::new(u64::MAX),
            renamed_at: Cell::new(None),
        }
    }

    /// A machine whose adapter has two functions of vfio-pci, in groups 15 and 16.
    fn with_two_vfs() -> Self {
        let machine = Machine::new();
        assert_eq!(machine.apply(&vfio(2)).failed, [""; 0]);
        machine.writes.take();
        machine
    }

    fn host(&self) -> Host {
        self.tree.host()
    }

    fn outside(&self, path: &str) -> PathBuf {
        self.tree.path(path)
    }

    fn plan(&self, config: &str) -> HostPlan {
        plan(&self.host(), self, &Config::parse(config).unwrap())
    }

    fn apply(&self, config: &str) -> ApplyOutcome {
        let config = Config::parse(config).unwrap();
        apply(&self.host(), self, &config, Duration::ZERO, &mut |_, _| {})
    }

    fn steps(&self, config: &str) -> Vec<String> {
        shown(&self.plan(config).steps)
    }

    #[track_caller]
    fn refusal(&self, config: &str) -> String {
        let plan = self.plan(config);
        assert_eq!(plan.refused.len(), 1, "{plan:?}");
        plan.refused[0].to_string()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.outside(path)).unwrap().trim().to_owned()
    }

    fn driver(&self, address: &str) -> Option<String> {
        let link = self.outside(&format!("/sys/bus/pci/devices/{address}/driver"));
        let target = fs::read_link(self.resolved(&link)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// A path whose directory is behind the link of the bus.
    fn resolved(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix(self.outside("/sys/bus/pci/devices"));
        match below {
            Ok(below) => self.outside("/sys/devices/pci0000:81").join(below),
            Err(_) => path.to_owned(),
        }
    }

    /// Notes a word, and tells whether the kernel does it.
    fn hears(&self, word: String) -> anyhow::Result<bool> {
        if self.fails_after.get() == Some(self.writes.borrow().len()) {
            return Err(anyhow::Error::new(io::Error::other("killed")).context(word));
        }
        if self.refuses.borrow().iter().any(|part| word.contains(part)) {
            return Err(anyhow::Error::new(io::Error::other("refused")).context(word));
        }
        let is_ignored = self.ignored.borrow().iter().any(|part| word.contains(part));
        self.writes.borrow_mut().push(word);
        Ok(!is_ignored)
    }

    fn set_count(&self, count: u32) {
        for index in 0..8 {
            let address = format!("0000:81:10.{index}");
            let _ = fs::remove_file(self.outside(&format!("{PF}/virtfn{index}")));
            let _ = fs::remove_file(self.outside(&format!("/sys/bus/pci/devices/{address}")));
            let function = format!("/sys/devices/pci0000:81/{address}");
            let _ = fs::remove_dir_all(self.outside(&function));
            let _ = fs::remove_file(self.outside(&format!("/sys/class/net/ens2v{index}")));
            self.settings.borrow_mut().remove(&index);
            if index >= count {
                continue;
            }
            self.tree.function(&address, "0x020000", 0);
            self.tree.file(&format!("{function}/driver_override"), "(null)\n");
            self.tree.file(&format!("{function}/modalias"), "pci:igbvf\n");
            self.tree.link(&format!("{PF}/virtfn{index}"), &function);
            self.tree.link(&format!("{function}/physfn"), PF);
            let group = format!("/sys/kernel/iommu_groups/{}", 15 + index);
            self.tree.link(&format!("{function}/iommu_group"), &group);
            let settings = VfSettings {
                mac: Some([0; 6]),
                vlan: Some(VlanTag::default()),
                spoof_check: Some(true),
                trust: Some(false),
                ..VfSettings::default()
            };
            self.settings.borrow_mut().insert(index, settings);
            self.probe(&address);
        }
    }

    fn probe(&self, address: &str) {
        let function = format!("/sys/devices/pci0000:81/{address}");
        let wanted = self.read(&format!("{function}/driver_override"));
        let takes_any = self.read(&format!("{PF}/sriov_drivers_autoprobe")) == "1";
        let driver = match wanted.as_str() {
            "(null)" if takes_any => "igbvf",
            "(null)" => return,
            wanted => wanted,
        };
        let driver = format!("/sys/bus/pci/drivers/{driver}");
        if self.outside(&driver).is_dir() && self.driver(address).is_none() {
            self.tree.link(&format!("{function}/driver"), &driver);
            if driver.ends_with("igbvf") {
                let (_, index) = address.rsplit_once('.').unwrap();
                let net = format!("{function}/net/ens2v{index}");
                self.tree.file(&format!("{net}/address"), "");
                let class = format!("/sys/class/net/ens2v{index}");
                let _ = fs::remove_file(self.outside(&class));
                self.tree.link(&class, &net);
            }
        }
    }

    fn bind_parent(&self, driver: &str) {
        let driver = format!("/sys/bus/pci/drivers/{driver}");
        self.tree.directory(&driver);
        self.tree.link(&format!("{PF}/driver"), &driver);
    }

    /// Binds a function to a driver that makes no interface, as who drives it by a program of user space does.
    fn bind(&self, address: &str, driver: &str) {
        let function = self.outside(&format!("/sys/devices/pci0000:81/{address}"));
        let _ = fs::remove_file(function.join("driver"));
        let _ = fs::remove_dir_all(function.join("net"));
        let driver = format!("/sys/bus/pci/drivers/{driver}");
        let function = format!("/sys/devices/pci0000:81/{address}");
        self.tree.directory(&driver);
        self.tree.link(&format!("{function}/driver"), &driver);
    }

    fn is_idle_bnxt(&self) -> bool {
        let flags = fs::read_to_string(self.outside(&format!("{PF}/net/ens2/flags")));
        let is_down = flags.is_ok_and(|flags| flags.trim() == "0x1002");
        is_down && self.driver("0000:81:00.0").as_deref() == Some("bnxt_en")
    }

    fn react(&self, path: &Path, text: &str) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        let outside = self.outside(path.to_str().unwrap());
        let place = self.resolved(&outside);
        match name {
            // bnxt_sriov_configure takes the number, and makes none.
            "sriov_numvfs" if self.is_idle_bnxt() => {}
            "sriov_numvfs" => {
                self.set_count(text.parse().unwrap());
                fs::write(place, format!("{text}\n")).unwrap();
            }
            "driver_override" => {
                let text = if text.is_empty() { "(null)" } else { text };
                fs::write(place, format!("{text}\n")).unwrap();
            }
            "unbind" => {
                let driver = place.parent().unwrap();
                fs::remove_file(driver).unwrap();
                let _ = fs::remove_dir_all(driver.with_file_name("net"));
            }
            "drivers_probe" => self.probe(text),
            "nr_hugepages" => {
                let pages = text.parse::<u64>().unwrap().min(self.memory.get());
                fs::write(place, format!("{pages}\n")).unwrap();
            }
            "register" => {
                self.tree.directory(&format!("{NICS}/000_{text}"));
            }
            _ => fs::write(place, format!("{text}\n")).unwrap(),
        }
    }
}

impl KernelReader for Machine {
    fn vf_settings(&self, interface: &str) -> anyhow::Result<Option<BTreeMap<u32, VfSettings>>> {
        assert_eq!(interface, "ens2");
        Ok(Some(self.settings.borrow().clone()))
    }

    fn refresh(&self) {
        let class = ["vf0", "ens2v0"].map(|name| self.outside(&format!("/sys/class/net/{name}")));
        match self.renamed_at.get() {
            Some(0) => drop(fs::rename(&class[0], &class[1])),
            Some(looks) => {
                let _ = fs::rename(&class[1], &class[0]);
                let has_it = class[0].is_symlink();
                self.renamed_at.set(Some(looks - u32::from(has_it)));
            }
            None => {}
        }
    }

    fn find_opener(&self, node: &Path) -> Option<String> {
        self.holders.borrow().get(node).cloned()
    }
}

impl HostKernel for Machine {
    fn set_vf(&self, interface: &str, vf: u32, change: VfChange) -> anyhow::Result<()> {
        if self.hears(format!("{interface} vf {vf} {change:?}"))? {
            let mut settings = self.settings.borrow_mut();
            let settings = settings.get_mut(&vf).unwrap();
            match change {
                VfChange::Mac(mac) => settings.mac = Some(mac),
                VfChange::Vlan(tag) => settings.vlan = Some(tag),
                VfChange::SpoofCheck(on) => settings.spoof_check = Some(on),
                VfChange::Trust(on) => settings.trust = Some(on),
                VfChange::Rate { .. } | VfChange::LinkState(_) => {}
            }
        }
        Ok(())
    }

    fn set_rdma_netns(&self, mode: RdmaNetns) -> anyhow::Result<()> {
        if self.hears(format!("rdma {mode}"))? {
            let letter = if mode == RdmaNetns::Shared { "Y" } else { "N" };
            self.tree.file("/sys/module/ib_core/parameters/netns_mode", letter);
        }
        Ok(())
    }

    fn set_one_channel(&self, interface: &str) -> anyhow::Result<()> {
        if self.hears(format!("{interface} has one channel"))? {
            let table = format!("{interface} xdp none 1\n");
            self.tree.file("/interfaces.table", table);
        }
        Ok(())
    }

    fn write(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        if self.hears(format!("{name} {text}"))? {
            self.react(path, text);
        }
        Ok(())
    }

    fn load(&self, module: &str) -> anyhow::Result<()> {
        if self.hears(format!("load {module}"))? {
            match module {
                "vfio-pci" => drop(self.tree.directory("/sys/bus/pci/drivers/vfio-pci")),
                "onload" => drop(self.tree.file(REGISTER, "").directory(NICS)),
                _ => {}
            }
        }
        Ok(())
    }
}

fn shown(steps: &[HostStep]) -> Vec<String> {
    let shown = |step: &HostStep| {
        let HostStep { subject, setting, now, wanted, .. } = step;
        format!("{subject}: {setting}: {now} -> {wanted}")
    };
    steps.iter().map(shown).collect()
}

fn vfio(count: u32) -> String {
    format!("[[sriov]]\npf = \"ens2\"\nvfs = {count}\ndriver = \"vfio-pci\"\n")
}

fn kernels(count: u32) -> String {
    vfio(count).replace("vfio-pci", "kernel")
}

/// Everything that there is to configure.
fn everything() -> String {
    format!(
        "{}vlan = 7\nmac = \"02:00:00:00:10:00\"\nspoof-check = true\ntrust = true\n\
         [host]\naf-xdp = [\"ens2\"]\nrdma-netns = \"exclusive\"\nhugepages = {{ 1Gi = {{ 0 = 4, 1 = 4 }} }}\n",
        vfio(2)
    )
}

#[test]
fn without_the_sections_nothing_is_looked_at_and_nothing_is_done() {
    let machine = Machine::new();
    let mut host = machine.host();
    host.start_recording();
    let config = Config::default();
    assert_eq!(plan(&host, &machine, &config), HostPlan::default());
    let outcome = apply(&host, &machine, &config, Duration::ZERO, &mut |_, _| {});
    assert_eq!((outcome.done, outcome.failed.len()), (0, 0));
    assert!(host.stop_recording().is_empty());
}

#[test]
fn each_step_is_told_when_it_begins_and_when_it_is_done() {
    let machine = Machine::new();
    let config = Config::parse(&everything()).unwrap();
    let (mut begun, mut done) = (None, 0);
    let mut observe = |stage, step: &HostStep| match stage {
        StepStage::Begins => assert_eq!(begun.replace(step.clone()), None),
        StepStage::Done => {
            assert_eq!(begun.take().as_ref(), Some(step));
            done += 1;
        }
    };
    let outcome = apply(&machine.host(), &machine, &config, Duration::ZERO, &mut observe);
    assert_eq!(outcome.failed, [""; 0]);
    assert_eq!(done, outcome.done);
    assert_eq!(begun, None);
}

#[test]
fn a_plan_shows_what_is_and_what_is_to_be_and_tells_the_kernel_nothing() {
    let machine = Machine::new();
    assert_eq!(
        machine.steps(&everything()),
        [
            "rdma-netns: mode: shared -> exclusive",
            "hugepages 1Gi on node 0: pages: 2 -> 4",
            "hugepages 1Gi on node 1: pages: 0 -> 4",
            "sriov ens2: sriov_drivers_autoprobe: 1 -> 0",
            "sriov ens2: virtual functions: 0 -> 2",
            "sriov ens2: vf 0-1 mac: - -> 02:00:00:00:10:00 and up",
            "sriov ens2: vf 0-1 vlan: - -> 7",
            "sriov ens2: vf 0-1 spoof-check: - -> on",
            "sriov ens2: vf 0-1 trust: - -> on",
            "sriov ens2: vf 0-1 driver: - -> vfio-pci",
            "af-xdp ens2: registered with Onload: no, module not loaded -> yes",
        ]
    );
    assert!(machine.writes.borrow().is_empty());
}

#[test]
fn what_is_configured_becomes_so_and_a_second_run_changes_nothing() {
    let machine = Machine::new();
    let outcome = machine.apply(&everything());
    assert_eq!(outcome.failed, [""; 0]);
    assert_eq!(machine.steps(&everything()), [""; 0]);
    for (index, address) in ["0000:81:10.0", "0000:81:10.1"].iter().enumerate() {
        assert_eq!(machine.driver(address).as_deref(), Some("vfio-pci"));
        let settings = machine.settings.borrow()[&u32::try_from(index).unwrap()];
        let mac = format_hwaddr(&settings.mac.unwrap());
        assert_eq!(mac, format!("02:00:00:00:10:0{index}"));
        assert_eq!((settings.vlan, settings.trust), (Some(vlan(7)), Some(true)));
    }
    assert_eq!(machine.read("/sys/module/ib_core/parameters/netns_mode"), "N");
    let heard = machine.writes.borrow().len();
    let outcome = machine.apply(&everything());
    assert_eq!((outcome.done, outcome.failed.len()), (0, 0));
    assert_eq!(machine.writes.borrow().len(), heard);
}

#[test]
fn no_driver_of_the_kernel_can_take_a_function_that_is_for_vfio() {
    let machine = Machine::new();
    machine.apply(&vfio(1));
    assert_eq!(
        *machine.writes.borrow(),
        [
            "sriov_drivers_autoprobe 0",
            "sriov_numvfs 1",
            "load vfio-pci",
            "driver_override vfio-pci",
            "drivers_probe 0000:81:10.0",
        ]
    );
}

#[test]
fn a_function_of_the_kernel_has_its_address_before_its_driver_looks() {
    let machine = Machine::new();
    let config = format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(1));
    assert_eq!(machine.apply(&config).failed, [""; 0]);
    let writes = machine.writes.take();
    assert_eq!(writes[..2], ["sriov_drivers_autoprobe 0", "sriov_numvfs 1"]);
    assert!(writes[2].starts_with("ens2 vf 0 Mac"), "{writes:?}");
    assert_eq!(
        writes[3..],
        ["sriov_drivers_autoprobe 1", "load pci:igbvf", "drivers_probe 0000:81:10.0"]
    );
    assert_eq!(machine.driver("0000:81:10.0").as_deref(), Some("igbvf"));
    assert_eq!(machine.apply(&config).done, 0);
}

#[test]
fn a_function_that_has_a_driver_of_the_kernel_is_bound_again_with_its_new_address() {
    let machine = with_interface();
    machine.writes.take();
    let mut now = "00:00:00:00:00:00";
    for mac in ["02:00:00:00:10:00", "02:00:00:00:20:00"] {
        let config = format!("{}mac = \"{mac}\"\nvlan = 7\n", kernels(1));
        let steps = machine.steps(&config);
        assert_eq!(
            steps[..2],
            [
                format!("sriov ens2: vf 0 (0000:81:10.0) mac: {now} -> {mac}"),
                "sriov ens2: vf 0 (0000:81:10.0) driver: igbvf -> bound again".to_owned(),
            ]
        );
        assert_eq!(machine.apply(&config).failed, [""; 0]);
        let writes = machine.writes.take();
        assert_eq!(writes[0], "unbind 0000:81:10.0");
        assert!(writes[1].starts_with("ens2 vf 0 Mac"), "{writes:?}");
        assert_eq!(writes[writes.len() - 2..], ["load pci:igbvf", "drivers_probe 0000:81:10.0"]);
        assert_eq!(machine.driver("0000:81:10.0").as_deref(), Some("igbvf"));
        assert_eq!(machine.plan(&config), HostPlan::default());
        now = mac;
    }
}

#[test]
fn the_interface_of_the_physical_function_is_up_before_a_driver_asks_for_the_address() {
    let flags = format!("{PF}/net/ens2/flags");
    let with_mac = format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(2));
    for (config, is_up_before) in [
        (with_mac.clone(), true),
        (kernels(2), false),
        (with_mac.replace("kernel", "vfio-pci"), false),
    ] {
        let machine = Machine::new();
        machine.tree.file(&flags, "0x1002\n");
        assert_eq!(machine.apply(&config).failed, [""; 0]);
        let writes = machine.writes.take();
        let flags_told: Vec<usize> =
            (0..writes.len()).filter(|at| writes[*at].starts_with("flags")).collect();
        assert_eq!(!flags_told.is_empty(), is_up_before, "{config}: {writes:?}");
        // The network's own units find it as it was: with an address that it got meanwhile they would leave it alone.
        assert_eq!(machine.read(&flags), "0x1002");
        if let [up, down] = flags_told[..] {
            assert_eq!((&*writes[up], &*writes[down]), ("flags 0x1003", "flags 0x1002"));
            let probed =
                writes[up..down].iter().filter(|writes| writes.starts_with("drivers_probe"));
            assert_eq!((probed.count(), down), (2, writes.len() - 1), "{writes:?}");
            assert_eq!(machine.plan(&config), HostPlan::default());
        }
    }
    // One that is up already is left alone.
    let machine = Machine::new();
    machine.tree.file(&flags, "0x1103\n");
    assert_eq!(machine.apply(&with_mac).failed, [""; 0]);
    assert_eq!(machine.read(&flags), "0x1103");
}

#[test]
fn the_interface_of_a_card_that_makes_no_functions_otherwise_is_up_meanwhile() {
    let flags = format!("{PF}/net/ens2/flags");
    let with_mac = format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(2));
    for (driver, times, config) in [
        ("bnxt_en", 1, vfio(2)),
        // Again while they are bound.
        ("bnxt_en", 2, with_mac),
        ("ice", 0, vfio(2)),
    ] {
        let machine = Machine::new();
        machine.tree.file(&flags, "0x1002\n");
        machine.bind_parent(driver);
        assert_eq!(machine.apply(&config).failed, [""; 0], "{driver}");
        assert_eq!(machine.read(&format!("{PF}/sriov_numvfs")), "2");
        assert_eq!(machine.read(&flags), "0x1002");
        let writes = machine.writes.take().into_iter();
        let up = writes.filter(|writes| writes == "flags 0x1003").count();
        assert_eq!(up, times, "{driver}: {config}");
        // Nor does it take them away.
        assert_eq!(machine.apply(&vfio(0)).failed, [""; 0], "{driver}");
        assert_eq!(machine.read(&format!("{PF}/sriov_numvfs")), "0");
        assert_eq!(machine.read(&flags), "0x1002");
    }
}

#[test]
fn the_interface_of_a_card_that_makes_no_functions_goes_down_again_though_the_number_was_refused() {
    let flags = format!("{PF}/net/ens2/flags");
    let machine = Machine::new();
    machine.tree.file(&flags, "0x1002\n");
    machine.bind_parent("bnxt_en");
    machine.refuses.borrow_mut().push("sriov_numvfs");
    let failed = machine.apply(&vfio(2)).failed;
    assert!(failed.len() == 1 && failed[0].contains("refused"), "{failed:?}");
    assert!(machine.writes.borrow().contains(&"flags 0x1003".to_owned()));
    assert_eq!(machine.read(&flags), "0x1002");
}

#[test]
fn the_interface_of_the_physical_function_goes_up_once_for_new_functions_and_those_of_another_address()
 {
    let flags = format!("{PF}/net/ens2/flags");
    let machine = Machine::new();
    assert_eq!(machine.apply(&kernels(2)).failed, [""; 0]);
    machine.react(Path::new("/sys/bus/pci/devices/0000:81:10.0/driver/unbind"), "0000:81:10.0");
    machine.tree.file(&flags, "0x1002\n");
    machine.writes.take();
    let config = format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(2));
    assert_eq!(machine.apply(&config).failed, [""; 0]);
    let writes = machine.writes.take();
    let up = writes.iter().filter(|writes| *writes == "flags 0x1003").count();
    let last = writes.last().map(String::as_str);
    assert_eq!((up, last), (1, Some("flags 0x1002")), "{writes:?}");
    for address in ["0000:81:10.0", "0000:81:10.1"] {
        assert_eq!(machine.driver(address).as_deref(), Some("igbvf"));
    }
    assert_eq!(machine.plan(&config), HostPlan::default());
}

#[test]
fn the_interface_of_the_physical_function_goes_down_again_though_a_function_was_not_bound() {
    let flags = format!("{PF}/net/ens2/flags");
    let config = format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(2));
    for (ignored, says, words) in [
        ("drivers_probe 0000:81:10.1", "driver", vec!["flags 0x1003", "flags 0x1002"]),
        ("drivers_probe 0000:81:10.0", "driver", vec!["flags 0x1003", "flags 0x1002"]),
        // One that was not brought up is not set down.
        ("flags 0x1003", "interface ens2", vec!["flags 0x1003"]),
    ] {
        let machine = Machine::new();
        machine.tree.file(&flags, "0x1002\n");
        machine.ignored.borrow_mut().push(ignored);
        let failed = machine.apply(&config).failed;
        assert!(failed.len() == 1 && failed[0].contains(says), "{ignored}: {failed:?}");
        assert_eq!(machine.read(&flags), "0x1002", "{ignored}");
        let mut writes = machine.writes.take();
        writes.retain(|writes| writes.starts_with("flags"));
        assert_eq!(writes, words, "{ignored}");
    }
}

#[test]
fn a_function_keeps_its_driver_where_that_needs_no_new_address() {
    // Another setting, which the driver does not keep.
    let machine = with_interface();
    machine.writes.take();
    let outcome = machine.apply(&format!("{}vlan = 7\n", kernels(1)));
    assert_eq!((outcome.done, outcome.failed.len()), (1, 0));
    assert_eq!(machine.writes.take().len(), 1);
    // A driver of vfio, whose program reads the address itself.
    let config = vfio(1);
    assert_eq!(machine.apply(&config).failed, [""; 0]);
    machine.writes.take();
    let config = format!("{config}mac = \"02:00:00:00:10:00\"\n");
    assert_eq!(machine.apply(&config).done, 1);
    let writes = machine.writes.take();
    assert!(writes[0].starts_with("ens2 vf 0 Mac"), "{writes:?}");
    assert_eq!(writes.len(), 1);
}

#[test]
fn a_function_in_use_is_not_unbound_for_a_new_address() {
    let config = format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(1));
    let machine = with_interface();
    machine.writes.take();
    let used = network("address 10 192.0.2.10/24\n");
    machine.tree.file("/network.table", used);
    let outcome = machine.apply(&config);
    assert!(
        outcome.failed[0]
            .contains("the mac of vf 0 (0000:81:10.0) is not changed, because it is in use by"),
        "{:?}",
        outcome.failed
    );
    assert!(machine.writes.borrow().is_empty());
    // And one that a container takes between plan and step.
    machine.tree.file("/network.table", network(""));
    let mut starts = |stage, _: &HostStep| {
        if stage == StepStage::Begins {
            lease(&machine, "netdev=ens2v0", "this boot");
        }
    };
    let config = Config::parse(&config).unwrap();
    let (host, timeout) = (machine.host(), Duration::ZERO);
    let outcome = apply(&host, &machine, &config, timeout, &mut starts);
    assert!(
        outcome.failed[0].contains("0000:81:10.0 is now in use by container web"),
        "{:?}",
        outcome.failed
    );
    assert!(machine.writes.borrow().is_empty());
}

#[test]
fn a_new_address_that_is_interrupted_at_any_word_is_completed_by_the_next_run() {
    let config = format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(1));
    for number in 0..4 {
        let machine = with_interface();
        machine.writes.take();
        machine.fails_after.set(Some(number));
        assert!(!machine.apply(&config).failed.is_empty(), "{number}");
        let heard = machine.writes.take();
        machine.fails_after.set(None);
        assert_eq!(machine.apply(&config).failed, [""; 0], "after {heard:?}");
        assert_eq!(machine.plan(&config), HostPlan::default(), "after {heard:?}");
        let writes = [heard, machine.writes.take()].concat();
        let last = |word: &str| writes.iter().rposition(|writes| writes.contains(word));
        assert!(last("Mac") > last("unbind"), "{writes:?}");
        assert!(last("drivers_probe") > last("Mac"), "{writes:?}");
    }
}

#[test]
fn functions_go_from_the_kernel_to_vfio_and_back() {
    let machine = Machine::new();
    assert_eq!(machine.apply(&kernels(2)).failed, [""; 0]);
    assert_eq!(*machine.writes.borrow(), ["sriov_numvfs 2"]);
    assert_eq!(
        machine.steps(&vfio(2)),
        [
            "sriov ens2: module vfio-pci: not loaded -> loaded",
            "sriov ens2: vf 0 (0000:81:10.0) driver: igbvf -> vfio-pci",
            "sriov ens2: vf 1 (0000:81:10.1) driver: igbvf -> vfio-pci",
        ]
    );
    assert_eq!(machine.apply(&vfio(2)).failed, [""; 0]);
    assert_eq!(machine.driver("0000:81:10.1").as_deref(), Some("vfio-pci"));
    machine.writes.take();
    assert_eq!(machine.apply(&kernels(2)).failed, [""; 0]);
    assert_eq!(machine.driver("0000:81:10.1").as_deref(), Some("igbvf"));
    assert_eq!(
        machine.writes.borrow()[..4],
        ["driver_override ", "unbind 0000:81:10.0", "load pci:igbvf", "drivers_probe 0000:81:10.0"]
    );
}

/// Whatever was done when a run ended, the next one does the rest.
#[test]
fn a_run_that_is_ended_at_any_word_is_completed_by_the_next() {
    for config in [everything(), everything().replace("vfio-pci", "kernel")] {
        let whole = Machine::new();
        assert_eq!(whole.apply(&config).failed, [""; 0]);
        let words = whole.writes.borrow().len();
        assert!(words > 15, "{words}");
        for number in 0..words {
            let machine = Machine::new();
            machine.fails_after.set(Some(number));
            let first = machine.apply(&config);
            assert!(!first.failed.is_empty(), "{number}");
            machine.fails_after.set(None);
            let next = machine.apply(&config);
            assert_eq!(next.failed, [""; 0], "after {number}: {:?}", first.failed);
            assert_eq!(machine.plan(&config), HostPlan::default(), "after {number}");
        }
    }
}

#[test]
fn a_kernel_that_does_not_do_what_it_is_told_is_reported_and_nothing_goes_round() {
    for (word, says) in [
        (
            "sriov_numvfs",
            "sriov ens2: virtual functions: /sys/bus/pci/devices/0000:81:00.0/sriov_numvfs is still 0, not 2",
        ),
        ("sriov_drivers_autoprobe", "sriov_drivers_autoprobe is still 1, not 0"),
        (
            "load vfio-pci",
            "sriov ens2: module vfio-pci: /sys/bus/pci/drivers/vfio-pci does not exist",
        ),
        (
            "drivers_probe",
            "sriov ens2: vf 0 (0000:81:10.0) driver: the driver is none; is the IOMMU enabled",
        ),
        ("Vlan", "sriov ens2: vf 0 (0000:81:10.0) vlan: the driver rejected it"),
        ("rdma", "rdma-netns: mode: /sys/module/ib_core/parameters/netns_mode is still Y, not N"),
        (
            "register",
            "af-xdp ens2: registered with Onload: /sys/kernel/debug/sfc_resource/nics does not list it",
        ),
        (
            "nr_hugepages",
            "hugepages 1Gi on node 0: pages: the kernel gave 2 of 4; the node has no more contiguous free memory",
        ),
    ] {
        let machine = Machine::new();
        machine.ignored.borrow_mut().push(word);
        let outcome = machine.apply(&everything());
        // The pages of one node do not depend on those of another.
        let failures = if word == "nr_hugepages" { 2 } else { 1 };
        assert_eq!(outcome.failed.len(), failures, "{word}: {:?}", outcome.failed);
        assert!(outcome.failed[0].contains(says), "{word}: {:?}", outcome.failed);
        // The rest is done all the same.
        assert!(outcome.done >= 2, "{word}: {}", outcome.done);
    }
}

#[test]
fn a_kernel_that_takes_a_step_back_is_reported() {
    let machine = Machine::new();
    // It gives what it was told last to the file that is read back, and forgets the functions.
    machine.apply(&vfio(2));
    fs::remove_file(machine.outside(&format!("{PF}/virtfn1"))).unwrap();
    assert_eq!(
        machine.refusal(&vfio(2)),
        "sriov ens2: 1 of its 2 virtual functions are there; see dmesg"
    );
}

#[test]
fn pages_that_the_kernel_has_no_memory_for_are_counted_and_what_it_gave_stays() {
    let machine = Machine::new();
    machine.memory.set(3);
    let config = "[host]\nhugepages = { 1Gi = { 0 = 4 } }\n";
    let outcome = machine.apply(config);
    assert_eq!(outcome.failed.len(), 1);
    let line = &outcome.failed[0];
    assert!(
        line.starts_with("hugepages 1Gi on node 0: pages: the kernel gave 3 of 4; the node has no"),
        "{line}"
    );
    assert!(line.contains("hugepagesz= and hugepages= on the kernel command line"));
    assert_eq!(machine.steps(config), ["hugepages 1Gi on node 0: pages: 3 -> 4"]);
}

#[test]
fn pages_are_never_given_back() {
    let machine = Machine::new();
    let config = "[host]\nhugepages = { 1Gi = { 0 = 1, 1 = 0 } }\n";
    assert_eq!(machine.plan(config), HostPlan::default());
}

#[test]
fn pages_of_a_size_or_on_a_node_that_there_is_not_are_refused() {
    let machine = Machine::new();
    assert_eq!(
        machine.refusal("[host]\nhugepages = { 2Mi = { 0 = 1 } }\n"),
        "hugepages 2Mi on node 0: unsupported page size; this kernel supports 1Gi"
    );
    assert_eq!(
        machine.refusal("[host]\nhugepages = { 1Gi = { 7 = 1 } }\n"),
        "hugepages 1Gi on node 7: NUMA node not found; this host has 0, 1"
    );
}

#[test]
fn a_kernel_without_numa_has_node_0() {
    let machine = Machine::new();
    fs::remove_dir_all(machine.outside(NODES)).unwrap();
    machine.tree.file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
    let config = "[host]\nhugepages = { 2Mi = { 0 = 8 } }\n";
    assert_eq!(machine.apply(config).failed, [""; 0]);
    assert_eq!(machine.read("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "8");
}

#[test]
fn a_physical_function_that_there_is_not_is_refused() {
    let machine = Machine::new();
    let at = |pf: &str| machine.refusal(&vfio(1).replace("ens2", pf));
    assert_eq!(at("ens9"), "sriov ens9: interface not found");
    assert_eq!(at("0000:99:00.0"), "sriov 0000:99:00.0: PCI function not found");
    machine.tree.file("/sys/devices/virtual/net/br0/address", "");
    machine.tree.link("/sys/class/net/br0", "/sys/devices/virtual/net/br0");
    assert_eq!(at("br0"), "sriov br0: it is not the interface of a PCI function");
    machine.tree.function("0000:82:00.0", "0x020000", 0);
    assert_eq!(
        at("0000:82:00.0"),
        "sriov 0000:82:00.0: 0000:82:00.0 does not support SR-IOV; enable it in the firmware of \
         card and host"
    );
}

#[test]
fn an_interface_of_a_subfunction_is_no_physical_function() {
    let machine = Machine::new();
    let place = format!("{PF}/mlx5_core.sf.4/net/en3f0s4");
    machine.tree.file(&format!("{place}/address"), "");
    machine.tree.link("/sys/class/net/en3f0s4", &place);
    assert_eq!(
        machine.refusal(&vfio(1).replace("ens2", "en3f0s4")),
        "sriov en3f0s4: it is not the interface of a PCI function"
    );
}

#[test]
fn a_function_whose_rdma_device_a_program_has_open_is_in_use() {
    let machine = with_interface();
    let function = "/sys/devices/pci0000:81/0000:81:10.0";
    let verbs = format!("{function}/infiniband_verbs/uverbs3/dev");
    machine.tree.file(&verbs, "231:195\n");
    assert_eq!(machine.plan(&vfio(1)).refused, []);
    let holder = (PathBuf::from("/dev/infiniband/uverbs3"), "process 9 (\"dpdk\")".to_owned());
    machine.holders.borrow_mut().extend([holder]);
    let refusal = machine.refusal(&vfio(1));
    assert!(refusal.contains("in use by process 9 (\"dpdk\"); stop that first"), "{refusal}");
}

#[test]
fn more_functions_than_the_card_can_have_are_refused() {
    assert_eq!(
        Machine::new().refusal(&vfio(9)),
        "sriov ens2: 0000:81:00.0 can have 8 virtual functions, not 9; correct vfs, or raise the number in the card's firmware"
    );
}

#[test]
fn two_sections_about_one_function_are_refused_whatever_they_call_it() {
    let machine = Machine::new();
    let config = vfio(1) + &vfio(2).replace("ens2", "0000:81:00.0");
    assert_eq!(
        machine.refusal(&config),
        "sriov 0000:81:00.0: another section configures 0000:81:00.0 too; merge them"
    );
}

#[test]
fn functions_that_nobody_uses_are_made_anew_in_another_number() {
    let machine = Machine::with_two_vfs();
    assert_eq!(machine.apply(&vfio(3)).failed, [""; 0]);
    assert_eq!(machine.writes.borrow()[..2], ["sriov_numvfs 0", "sriov_numvfs 3"]);
    assert_eq!(machine.apply(&vfio(0)).failed, [""; 0]);
    assert_eq!(machine.read(&format!("{PF}/sriov_numvfs")), "0");
    assert_eq!(machine.plan(&vfio(0)), HostPlan::default());
}

fn vlan(id: u16) -> VlanTag {
    VlanTag { id, ..VlanTag::default() }
}

fn lease(machine: &Machine, name: &str, boot: &str) {
    machine.tree.boot("this boot");
    let text = format!(
        r#"{{"version":1,"class":"vfio","name":"x","slot":0,"boot":"{boot}","container":"web","bundle":"/b/web",
            "holder":{{"init":{{"process":{{"pid":42,"startTime":7,"pidNamespace":1}}}}}},"entryPoint":"createRuntime","since":1,"facts":{{}}}}"#
    );
    machine.tree.file(&format!("/run/onload-ctk/@leases/{name}#0"), text);
}

#[test]
fn a_leased_function_keeps_all_of_its_card_s_functions_where_they_are() {
    for count in [0, 1, 3] {
        let machine = Machine::with_two_vfs();
        lease(&machine, "vfio=0000:81:10.1", "this boot");
        let plan = machine.plan(&vfio(count));
        assert_eq!(shown(&plan.steps), [""; 0]);
        assert_eq!(
            plan.refused[0].to_string(),
            format!(
                "sriov ens2: 2 virtual functions are there, not {count}, and the kernel can change \
                 that only by removing all of them; vf 1 (0000:81:10.1) is used by container web \
                 (process 42) since 1970-01-01T00:00:01Z; stop that first"
            )
        );
        let outcome = machine.apply(&vfio(count));
        assert_eq!((outcome.done, outcome.failed.len()), (0, 1));
        assert!(machine.writes.borrow().is_empty());
    }
}

#[test]
fn a_container_that_starts_during_a_run_keeps_its_function() {
    let machine = Machine::new();
    machine.apply(&kernels(2));
    let config = Config::parse(&vfio(2)).unwrap();
    let mut started = |stage, step: &HostStep| {
        if stage == StepStage::Done && step.setting == "module vfio-pci" {
            lease(&machine, "vfio=0000:81:10.1", "this boot");
        }
    };
    let outcome = apply(&machine.host(), &machine, &config, Duration::ZERO, &mut started);
    assert_eq!(machine.driver("0000:81:10.0").as_deref(), Some("vfio-pci"));
    assert_eq!(machine.driver("0000:81:10.1").as_deref(), Some("igbvf"));
    assert_eq!(
        outcome.failed[0],
        "sriov ens2: vf 1 (0000:81:10.1) driver: 0000:81:10.1 is now in use by container web \
         (process 42) since 1970-01-01T00:00:01Z; stop that first"
    );
}

#[test]
fn a_lease_that_is_over_keeps_nothing_and_one_that_is_not_understood_does() {
    let machine = Machine::with_two_vfs();
    lease(&machine, "vfio=0000:81:10.1", "another boot");
    assert_eq!(machine.plan(&vfio(3)).refused, []);
    machine.tree.file("/run/onload-ctk/@leases/vfio=0000:81:10.1#0", "{");
    let refusal = machine.refusal(&vfio(3));
    assert!(refusal.contains("is used by an unknown container, because its lease"), "{refusal}");
}

#[test]
fn leases_that_cannot_be_read_keep_everything() {
    let machine = Machine::with_two_vfs();
    machine.tree.file("/run/onload-ctk/@leases", "no directory");
    let refusal = machine.refusal(&vfio(3));
    assert!(refusal.contains("is used by a container, perhaps (reading leases: "), "{refusal}");
}

#[test]
fn a_lease_of_one_function_of_a_group_is_one_of_all() {
    let machine = Machine::with_two_vfs();
    let other = machine.outside("/sys/devices/pci0000:81/0000:81:10.1/iommu_group");
    fs::remove_file(other).unwrap();
    machine
        .tree
        .link("/sys/devices/pci0000:81/0000:81:10.1/iommu_group", "/sys/kernel/iommu_groups/15");
    lease(&machine, "vfio=0000:81:10.0", "this boot");
    let plan = machine.plan(&kernels(2));
    let reasons: Vec<String> = plan.refused.iter().map(ToString::to_string).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons[1].contains("the driver of vf 1 (0000:81:10.1) is not changed"), "{reasons:?}");
}

#[test]
fn a_lease_that_names_an_interface_or_the_address_as_a_fact_is_found() {
    for (name, facts) in [("netdev=ens2v0", ""), ("rdma=mlx5_9", r#""pci":"0000:81:10.0""#)] {
        let machine = Machine::new();
        machine.apply(&kernels(1));
        let function = "/sys/devices/pci0000:81/0000:81:10.0";
        machine.tree.file(&format!("{function}/net/ens2v0/address"), "");
        lease(&machine, name, "this boot");
        let file = format!("/run/onload-ctk/@leases/{name}#0");
        let text = machine.read(&file);
        machine.tree.file(&file, text.replace(r#""facts":{}"#, &format!(r#""facts":{{{facts}}}"#)));
        let plan = machine.plan(&vfio(1));
        assert_eq!(plan.refused.len(), 1, "{name}: {plan:?}");
    }
}

#[test]
fn a_function_whose_interface_is_in_a_container_is_in_use() {
    let machine = Machine::new();
    machine.apply(&kernels(1));
    let name = "netdev=ens2v0";
    lease(&machine, name, "this boot");
    let file = format!("/run/onload-ctk/@leases/{name}#0");
    let moved = r#""facts":{},"moved":{"interface":{"name":"ens2v0","mac":"02:00:00:00:10:01","mtu":1500,
        "queueLength":1000,"flags":0,"pci":"0000:81:10.0"},"namespace":7}"#;
    let text = machine.read(&file).replace(r#""facts":{}"#, moved);
    machine.tree.file(&file, text);
    let plan = machine.plan(&vfio(1));
    assert_eq!(plan.refused.len(), 1, "{plan:?}");
}

#[test]
fn a_group_that_somebody_has_open_is_in_use() {
    let machine = Machine::with_two_vfs();
    machine.holders.borrow_mut().insert("/dev/vfio/15".into(), "process 7 (\"qemu\")".to_owned());
    let refusal = machine.refusal(&vfio(1));
    assert!(refusal.contains("vf 0 (0000:81:10.0) is used by process 7 (\"qemu\")"), "{refusal}");
    let refusal = machine.plan(&kernels(2)).refused;
    assert_eq!(
        refusal[0].to_string(),
        "sriov ens2: the driver of vf 0 (0000:81:10.0) is not changed, because it is in use by \
         process 7 (\"qemu\"); stop that first"
    );
    assert_eq!(refusal.len(), 1);
}

#[test]
fn a_function_in_use_keeps_its_settings_and_the_others_get_theirs() {
    let machine = Machine::with_two_vfs();
    let holder = ("/dev/vfio/15".into(), "process 7 (\"qemu\")".to_owned());
    machine.holders.borrow_mut().extend([holder]);
    let config = format!("{}vlan = 5\n", vfio(2));
    let outcome = machine.apply(&config);
    assert_eq!(outcome.done, 1);
    assert_eq!(outcome.failed.len(), 1);
    assert!(
        outcome.failed[0]
            .contains("the vlan of vf 0 (0000:81:10.0) is not changed, because it is in use by"),
        "{:?}",
        outcome.failed
    );
    let vlans: Vec<_> = machine.settings.borrow().values().map(|s| s.vlan).collect();
    assert_eq!(vlans, [Some(vlan(0)), Some(vlan(5))]);
}

#[test]
fn a_function_that_a_container_has_set_up_is_what_it_is_put_back_to() {
    let machine = Machine::with_two_vfs();
    let config = format!("{}vlan = 5\nspoof-check = true\ntrust = true\n", vfio(2));
    assert_eq!(machine.apply(&config).failed, [""; 0]);
    lease(&machine, "vfio=0000:81:10.1", "this boot");
    let file = "/run/onload-ctk/@leases/vfio=0000:81:10.1#0";
    let moved = r#""facts":{},"moved":{"function":{"pci":"0000:81:10.1","vf":{
        "given":{"vlan":{"id":100},"spoofCheck":false},"before":{"vlan":{"id":5},"spoofCheck":true}}},"namespace":0}"#;
    let text = machine.read(file).replace(r#""facts":{}"#, moved);
    machine.tree.file(file, text);
    let given = |settings: &mut VfSettings| {
        (settings.vlan, settings.spoof_check) = (Some(vlan(100)), Some(false));
    };
    given(machine.settings.borrow_mut().get_mut(&1).unwrap());
    machine.writes.take();
    assert_eq!(machine.plan(&config), HostPlan::default());
    assert_eq!(machine.apply(&config).failed, [""; 0]);
    assert!(machine.writes.borrow().is_empty());
    // What the operator wants otherwise by now waits for the container's end.
    let refusal = machine.refusal(&format!("{}vlan = 6\nspoof-check = true\n", vfio(2)));
    assert!(
        refusal.contains(
            "the vlan of vf 1 (0000:81:10.1) is not changed, because it is in use by container web"
        ),
        "{refusal}"
    );
}

/// Of the kernel's own driver, with interface ens2v0.
fn with_interface() -> Machine {
    let machine = Machine::new();
    machine.apply(&kernels(1));
    machine
}

#[test]
fn an_interface_in_another_network_namespace_is_in_use() {
    let machine = with_interface();
    // The kernel shows a moved one nowhere.
    fs::remove_dir_all(machine.outside(&format!("{VF}/net/ens2v0"))).unwrap();
    let refusal = machine.refusal(&vfio(1));
    assert!(
        refusal.contains(
            "in use by another network namespace, which contains its interface (driver igbvf)"
        ),
        "{refusal}"
    );
    assert_eq!(with_interface().apply(&vfio(1)).failed, [""; 0]);
}

#[test]
fn a_function_whose_driver_does_not_tell_who_uses_it_is_in_use() {
    for driver in ["uio_pci_generic", "igb_uio", "ifcvf"] {
        let machine = with_interface();
        machine.bind("0000:81:10.0", driver);
        for config in [vfio(1), vfio(3), kernels(3)] {
            let refused = machine.plan(&config).refused;
            let message = format!(
                " by an unknown process, perhaps: its driver {driver} does not report its users (if it is unused, unbind it)"
            );
            assert!(refused[0].to_string().contains(&message), "{refused:?}");
        }
    }
    // RDMA devices without an interface have nodes that programs open.
    let machine = with_interface();
    machine.bind("0000:81:10.0", "irdma");
    machine.tree.directory(&format!("{VF}/infiniband"));
    assert_eq!(machine.plan(&vfio(1)).refused, []);
    // And none is nobody's.
    fs::remove_file(machine.outside(&format!("{VF}/driver"))).unwrap();
    assert_eq!(machine.plan(&vfio(1)).refused, []);
}

#[test]
fn a_function_with_a_vdpa_device_is_in_use() {
    let other = "/sys/devices/pci0000:81/0000:81:10.01/vdpa1";
    for (place, is_its) in [
        (format!("{VF}/vdpa1"), true),
        (format!("{VF}/mlx5_core.sf.4/vdpa1"), true),
        (format!("{PF}/vdpa1"), false),
        (other.to_owned(), false),
        ("/sys/devices/vdpasim_net/vdpa1".to_owned(), false),
    ] {
        let machine = with_interface();
        machine.tree.directory(&place);
        machine.tree.link("/sys/bus/vdpa/devices/vdpa1", &place);
        let mac = format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(1));
        for config in [vfio(1), vfio(3), kernels(0), mac] {
            let refused = machine.plan(&config).refused;
            if !is_its {
                assert_eq!(refused, [], "{place}");
                continue;
            }
            let message = " by vDPA device \"vdpa1\" (if it is unused, run \"vdpa dev del vdpa1\"); stop that first";
            assert!(refused[0].to_string().contains(message), "{refused:?}");
        }
    }
    // Its interface may be nowhere.
    let machine = with_interface();
    machine.bind("0000:81:10.0", "mlx5_core");
    machine.tree.directory(&format!("{VF}/infiniband"));
    assert_eq!(machine.plan(&vfio(1)).refused, []);
    let place = format!("{VF}/vdpa1");
    machine.tree.directory(&place);
    machine.tree.link("/sys/bus/vdpa/devices/vdpa1", &place);
    let refusal = machine.refusal(&vfio(1));
    assert!(refusal.contains("vDPA device \"vdpa1\""), "{refusal}");
}

#[test]
fn an_interface_that_the_host_uses_is_in_use() {
    for (path, text, says) in [
        ("/network.table", network("route 10 0.0.0.0/0 4\n"), "it carries the default route"),
        (
            // Of another table than the main one, the kernel says the same.
            "/network.table",
            network("route 10 198.51.100.0/24 4\n"),
            "it has a route to 198.51.100.0/24",
        ),
        (
            "/network.table",
            network("address 10 192.0.2.10/24\n"),
            "it has the address 192.0.2.10/24",
        ),
        (
            "/network.table",
            network("").replace("ens2v0 - - - -", "ens2v0 - - - xdp"),
            "an XDP program is attached to it",
        ),
        (
            "/network.table",
            network("link 30 br0 bridge - - -\n").replace("ens2v0 - - - -", "ens2v0 - 30 - -"),
            "it is a part of bridge \"br0\"",
        ),
        (
            "/network.table",
            network("").replace("ens2v0", "ens9"),
            "could not determine its users; run onload-ctk in the host's network namespace",
        ),
        (
            "/sys/devices/virtual/infiniband/rxe0/parent",
            "ens2v0\n".to_owned(),
            "the software RDMA device \"rxe0\" is on it",
        ),
        (
            "/proc/net/packet",
            "sk RefCnt Type Proto  Iface R Rmem   User   Inode\n\
             0000000000000000 3      3    0003   10    1 0      0      20034 \n"
                .to_owned(),
            "a program receives its packets (AF_PACKET)",
        ),
        (&format!("{VF}/net/ens2v0/upper_vxlan0/x"), String::new(), "vxlan0 is on it"),
    ] {
        let machine = with_interface();
        machine.tree.file(path, text);
        machine.tree.link("/sys/class/infiniband/rxe0", "/sys/devices/virtual/infiniband/rxe0");
        let refusal = machine.refusal(&vfio(1));
        let wanted = format!("in use by the host (interface ens2v0: {says}");
        assert!(refusal.contains(&wanted), "{refusal}");
    }
    let machine = with_interface();
    // Bound to another interface, and to none.
    machine.tree.file(
        "/proc/net/packet",
        "sk RefCnt Type Proto  Iface R Rmem   User   Inode\n0 3 3 0003 2 1 0 0 20034\n0 3 3 0003 0 1 0 0 20035\n",
    );
    machine.tree.file("/network.table", network("address 10 fe80::1/64\nroute 10 fe80::/64 2\n"));
    assert_eq!(machine.plan(&vfio(1)).refused, []);
}

#[test]
fn functions_of_the_card_that_carries_the_default_route_are_not_removed() {
    let machine = Machine::with_two_vfs();
    for (uplink, way) in [
        ("ens2 - - - -", "link 30 ens2.5 vlan - 2 -\n"),
        ("ens2 - 30 - -", "link 30 br0 bridge - - -\n"),
        // Its port br-ex names neither its bridge nor the bridge's other ports.
        (
            "ens2 - 31 - -",
            "link 30 br-ex openvswitch - - -\nlink 31 ovs-system openvswitch - - -\n",
        ),
    ] {
        let text = network(&format!("{way}route 30 0.0.0.0/0 4\n")).replace("ens2 - - - -", uplink);
        machine.tree.file("/network.table", text);
        assert_eq!(
            machine.refusal(&vfio(3)),
            "sriov ens2: 2 virtual functions are there, not 3, and the kernel can change that only \
             by removing all of them; ens2 carries the default route, which the change may \
             interrupt; do it manually",
            "{way}"
        );
        assert_eq!(machine.plan(&vfio(2)), HostPlan::default());
    }
    // Open vSwitch with the default route elsewhere keeps nothing.
    let elsewhere = "link 30 br-ex openvswitch - - -\nlink 31 ovs-system openvswitch - - -\n\
                     link 32 ens9 - - - -\nroute 32 0.0.0.0/0 4\n";
    let text = network(elsewhere).replace("ens2 - - - -", "ens2 - 31 - -");
    machine.tree.file("/network.table", text);
    assert_eq!(machine.plan(&vfio(3)).refused, []);
}

#[test]
fn functions_without_spoof_checking_draw_a_warning() {
    let machine = Machine::new();
    let off = format!("{}spoof-check = false\n", vfio(2));
    let warning = "sriov ens2: spoof checking of vf 0-1 is disabled: a container that holds one \
        can send as any other machine; set spoof-check = true unless that is intended";
    assert_eq!(machine.plan(&off).warnings, [warning]);
    let outcome = machine.apply(&off);
    assert_eq!(outcome.failed, [""; 0]);
    assert_eq!(outcome.warnings, [warning.replace("0-1", "0, 1")]);
    // Nobody asked for it, and it is so.
    assert_eq!(machine.plan(&vfio(2)).warnings, outcome.warnings);
    let on = format!("{}spoof-check = true\nmac = \"02:00:00:00:10:00\"\n", vfio(2));
    assert_eq!(machine.plan(&on).warnings, [""; 0]);
    assert_eq!(machine.apply(&on).warnings, [""; 0]);
    assert_eq!(machine.plan(&vfio(2)).warnings, [""; 0]);
}

#[test]
fn spoof_checking_of_an_address_that_the_holder_chooses_draws_a_warning() {
    let machine = Machine::new();
    let open = format!("{}spoof-check = true\n", vfio(2));
    let warning = "sriov ens2: spoof-check = true without mac: a container can set its virtual \
        function's address to that of another machine and send as it; add mac, which a container \
        then cannot change";
    // Before the functions are there, when they are made, and later.
    assert_eq!(machine.plan(&open).warnings, [warning]);
    assert_eq!(machine.apply(&open).warnings, [warning]);
    let untrusted = format!("{open}trust = false\n");
    assert_eq!(machine.plan(&untrusted).warnings, [warning]);
    for silent in [
        format!("{open}mac = \"02:00:00:00:10:00\"\n"),
        // Who is trusted may change it, which is what the word says.
        format!("{open}trust = true\n"),
        open.replace("vfs = 2", "vfs = 0"),
    ] {
        assert_eq!(machine.plan(&silent).warnings, [""; 0], "{silent}");
    }
}

#[test]
fn a_function_that_gets_its_address_is_told_its_spoof_check_again() {
    let machine = Machine::with_two_vfs();
    let open = format!("{}spoof-check = true\n", vfio(2));
    let fixed = format!("{open}mac = \"02:00:00:00:10:00\"\n");
    for (config, times) in [(open, 0), (fixed.clone(), 2), (fixed, 0)] {
        machine.writes.take();
        assert_eq!(machine.apply(&config).failed, [""; 0]);
        let writes =
            machine.writes.take().into_iter().filter(|word| word.contains("SpoofCheck(true)"));
        assert_eq!(writes.count(), times, "{config}");
    }
}

#[test]
fn a_setting_that_the_driver_does_not_have_is_refused() {
    let machine = Machine::with_two_vfs();
    for settings in machine.settings.borrow_mut().values_mut() {
        settings.trust = None;
    }
    let plan = machine.plan(&format!("{}trust = false\n", vfio(2)));
    assert_eq!(
        plan.refused[1].to_string(),
        "sriov ens2: the trust of vf 1 (0000:81:10.1): the driver of the physical function does \
         not support it; remove it"
    );
    assert_eq!(plan.refused.len(), 2);
    machine.settings.borrow_mut().remove(&1);
    let plan = machine.plan(&format!("{}trust = false\n", vfio(2)));
    assert_eq!(
        plan.refused[1].to_string(),
        "sriov ens2: the trust of vf 1 (0000:81:10.1): the driver of the physical function does \
         not report it, or the kernel's answer is truncated, as with more than about 330 virtual \
         functions; remove the setting, or create fewer"
    );
}

#[test]
fn settings_that_ip_over_infiniband_does_not_have_are_refused_before_the_functions_exist() {
    const ADDRESS: &str = "00:00:01:48:fe:80:00:00:00:00:00:00:00:15:5d:ff:fd:34:02:83";
    for machine in [Machine::new(), Machine::with_two_vfs()] {
        machine.tree.file(&format!("{PF}/net/ens2/address"), format!("{ADDRESS}\n"));
        for (setting, name) in [
            ("mac = \"02:00:00:00:10:00\"\nspoof-check = true", "mac"),
            ("vlan = 7", "vlan"),
            ("spoof-check = false", "spoof-check"),
            ("trust = true", "trust"),
        ] {
            let plan = machine.plan(&format!("{}{setting}\n", kernels(2)));
            assert_eq!(shown(&plan.steps), [""; 0]);
            let refused: Vec<String> = plan.refused.iter().map(ToString::to_string).collect();
            let expected = format!(
                "sriov ens2: ens2 is IP over InfiniBand, whose virtual functions have no {name}; \
                 remove mac, vlan, spoof-check and trust, and give each function GUIDs before its \
                 driver binds: ip link set dev ens2 vf 0 node_guid GUID, and port_guid GUID"
            );
            assert_eq!(refused, [expected]);
        }
    }
    let machine = Machine::new();
    machine.tree.file(&format!("{PF}/net/ens2/address"), format!("{ADDRESS}\n"));
    assert_eq!(machine.plan(&kernels(2)).refused.len(), 0);
}

#[test]
fn settings_need_the_interface_of_the_physical_function() {
    let machine = Machine::with_two_vfs();
    fs::remove_dir_all(machine.outside(&format!("{PF}/net"))).unwrap();
    let config = vfio(2).replace("ens2", "0000:81:00.0");
    assert_eq!(machine.plan(&config), HostPlan::default());
    let plan = machine.plan(&format!("{config}vlan = 1\n"));
    assert!(
        plan.refused[0]
            .to_string()
            .contains("0000:81:00.0 has no interface, through which its driver is configured"),
        "{plan:?}"
    );
}

#[test]
fn a_host_that_does_not_run_does_not_tell_what_its_kernel_alone_knows() {
    let machine = Machine::with_two_vfs();
    let config = Config::parse(&format!("{}vlan = 1\n", vfio(2))).unwrap();
    let found = plan(&machine.host(), &OfflineKernel, &config);
    assert_eq!(found.refused.len(), 2);
    assert!(
        found.refused[0].to_string().ends_with("only the running kernel knows its value"),
        "{found:?}"
    );
    let other = Config::parse(&vfio(2)).unwrap();
    assert_eq!(plan(&machine.host(), &OfflineKernel, &other), HostPlan::default());
}

#[test]
fn an_interface_of_a_function_is_not_one_that_stands_for_another() {
    let machine = Machine::with_two_vfs();
    for (name, port) in [("eth0", "pf0vf0"), ("ens0", "c1pf0"), ("ens1", "pf0sf88"), ("ens2", "p0")]
    {
        machine.tree.file(&format!("{PF}/net/{name}/phys_port_name"), port);
        let _ = fs::remove_file(machine.outside(&format!("/sys/class/net/{name}")));
        machine.tree.link(&format!("/sys/class/net/{name}"), &format!("{PF}/net/{name}"));
    }
    // Another interface would be asked otherwise, and the machine has none.
    let config = vfio(2).replace("ens2", "0000:81:00.0");
    assert_eq!(machine.apply(&format!("{config}vlan = 3\n")).done, 2);
}

#[test]
fn an_interface_is_registered_once() {
    let machine = Machine::new();
    machine.tree.file(REGISTER, "").directory(NICS);
    let config = "[host]\naf-xdp = [\"ens2\", \"ens2\"]\n";
    assert_eq!(machine.steps(config), ["af-xdp ens2: registered with Onload: no -> yes"]);
    assert_eq!(machine.apply(config).failed, [""; 0]);
    assert_eq!(*machine.writes.borrow(), ["register ens2"]);
    assert_eq!(machine.plan(config), HostPlan::default());
}

#[test]
fn an_interface_with_the_old_name_of_a_registered_one_is_registered_too() {
    let machine = Machine::new();
    machine.tree.file(REGISTER, "").directory(NICS);
    let config = "[host]\naf-xdp = [\"ens2\"]\n";
    let register = ["af-xdp ens2: registered with Onload: no -> yes"];
    let lists = |entry: &str, name: &str, address: &str| {
        machine
            .tree
            .attributes(&format!("{NICS}/{entry}"), &[("net_dev", name), ("mac_addr", address)]);
    };
    lists("000_ens2", "ens7", "52:54:00:12:34:57");
    assert_eq!(machine.steps(config), register);
    // One in a container, which calls it so.
    lists("001_ens2v0", "ens2", "52:54:00:12:34:58");
    assert_eq!(machine.steps(config), register);
    // Where Onload does not take it, the other's directory does not stand for it.
    machine.ignored.borrow_mut().push("register");
    let wanted = format!("af-xdp ens2: registered with Onload: {NICS} does not list it");
    assert_eq!(machine.apply(config).failed, [wanted]);
    lists("002_eth0", "ens2", "52:54:00:12:34:56");
    assert_eq!(machine.plan(config), HostPlan::default());
}

#[test]
fn an_interface_of_a_new_function_is_registered_once_udev_has_named_it() {
    let text =
        "[[sriov]]\npf = \"ens2\"\nvfs = 1\ndriver = \"kernel\"\n[host]\naf-xdp = [\"ens2v0\"]\n";
    let config = Config::parse(text).unwrap();
    let apply_for = |machine: &Machine, timeout| {
        machine.tree.file(REGISTER, "").directory(NICS);
        let nothing = &mut |_: StepStage, _: &HostStep| {};
        apply(&machine.host(), machine, &config, timeout, nothing).failed
    };
    let machine = Machine::new();
    machine.renamed_at.set(Some(3));
    assert_eq!(apply_for(&machine, Duration::from_secs(60)), [""; 0]);
    let writes = machine.writes.borrow();
    assert_eq!(writes.last().map(String::as_str), Some("register ens2v0"), "{writes:?}");
    // One that gets no such name is waited for as long as an effect is.
    let machine = Machine::new();
    machine.renamed_at.set(Some(u32::MAX));
    assert_eq!(
        apply_for(&machine, Duration::from_millis(150)),
        ["af-xdp ens2v0: interface not found"]
    );
}

#[test]
fn a_card_without_flow_filters_is_warned_of_before_servers_fail() {
    let machine = Machine::new();
    machine.tree.file(REGISTER, "").directory(NICS);
    machine.tree.file("/interfaces.table", WITHOUT_FILTERS);
    let config = "[host]\naf-xdp = [\"ens2\"]\n";
    // An Onload without the parameter sets none.
    assert_eq!(machine.plan(config).warnings, [""; 0]);
    machine.tree.file(FLOW_FILTERS, "1\n");
    assert_eq!(
        machine.plan(config).warnings,
        ["ens2: its driver does not support flow filters, which Onload sets with AF_XDP: bind or \
            listen of servers fails with \"Operation not supported\"; set af-xdp-flow-filters = \
            false under [host], and run \"onload-ctk host apply\""]
    );
    machine.tree.file("/interfaces.table", "ens2 xdp on 4\n");
    assert_eq!(machine.plan(config).warnings, [""; 0]);
}

#[test]
fn without_flow_filters_an_interface_has_one_channel_before_it_is_registered() {
    let machine = Machine::new();
    machine.tree.file(REGISTER, "").directory(NICS);
    machine.tree.file(FLOW_FILTERS, "1\n");
    machine.tree.file("/interfaces.table", WITHOUT_FILTERS);
    let config = "[host]\naf-xdp = [\"ens2\"]\naf-xdp-flow-filters = false\n";
    assert_eq!(machine.apply(config).failed, [""; 0]);
    let writes = ["enable_af_xdp_flow_filters 0", "ens2 has one channel", "register ens2"];
    assert_eq!(*machine.writes.borrow(), writes);
    assert_eq!(machine.plan(config), HostPlan::default());
    // And back, as far as the configuration says.
    let back = config.replace("false", "true");
    assert_eq!(machine.steps(&back), ["af-xdp-flow-filters: enable_af_xdp_flow_filters: 0 -> 1"]);
}

#[test]
fn what_cannot_be_without_flow_filters_is_refused_or_warned_of() {
    let machine = Machine::new();
    machine.tree.file(REGISTER, "").directory(NICS);
    let config = "[host]\naf-xdp = [\"ens2\"]\naf-xdp-flow-filters = false\n";
    assert_eq!(
        machine.refusal(config),
        format!(
            "af-xdp-flow-filters: the loaded sfc_resource does not support {FLOW_FILTERS}; install \
             an Onload that does"
        )
    );
    // A kernel that does not say how many channels there are.
    assert_eq!(
        machine.plan(config).warnings,
        ["could not determine how many channels ens2 has: run \"ethtool -l ens2\"; it should \
             have one"]
    );
    // A driver that keeps its channels.
    machine.tree.file(FLOW_FILTERS, "0\n");
    machine.tree.file("/interfaces.table", WITHOUT_FILTERS);
    machine.ignored.borrow_mut().push("one channel");
    let failed = machine.apply(config).failed;
    let wanted = "af-xdp ens2: channels: its channels are still 4, not 1";
    assert_eq!(failed, [wanted]);
}

#[test]
fn an_interface_that_onload_cannot_take_is_refused() {
    let machine = Machine::new();
    let config = |name: &str| format!("[host]\naf-xdp = [\"{name}\"]\n");
    assert_eq!(machine.refusal(&config("ens9")), "af-xdp ens9: interface not found");
    machine.tree.directory("/sys/module/sfc_resource");
    assert_eq!(
        machine.refusal(&config("ens2")),
        "af-xdp ens2: the loaded sfc_resource does not support AF_XDP; install an Onload that does"
    );
}

#[test]
fn the_mode_of_rdma_is_set_where_it_is_another() {
    let machine = Machine::new();
    let config = |mode: &str| format!("[host]\nrdma-netns = \"{mode}\"\n");
    assert_eq!(machine.plan(&config("shared")), HostPlan::default());
    assert_eq!(machine.apply(&config("exclusive")).failed, [""; 0]);
    assert_eq!(machine.plan(&config("exclusive")), HostPlan::default());
    fs::remove_dir_all(machine.outside("/sys/module/ib_core")).unwrap();
    assert_eq!(machine.steps(&config("shared")), ["rdma-netns: mode: module not loaded -> shared"]);
    assert_eq!(machine.apply(&config("shared")).failed, [""; 0]);
}

#[test]
fn where_the_mode_cannot_change_the_line_says_what_can() {
    let error = |mode| netns_busy_error(mode).to_string();
    let line = error(RdmaNetns::Exclusive);
    assert!(line.contains("options ib_core netns_mode=0"), "{line}");
    assert!(error(RdmaNetns::Shared).contains("netns_mode=1"));
}
