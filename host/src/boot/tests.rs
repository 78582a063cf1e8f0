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
use onload_test_tree::{case, split_commands};

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
    /// The requests to the kernel, in order.
    writes: RefCell<Vec<String>>,
    /// After how many words the machine fails; none: never.
    fails_after: Cell<Option<usize>>,
    ignored: RefCell<Vec<String>>,
    refuses: RefCell<Vec<String>>,
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
        tree.file("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n");
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
        if self.refuses.borrow().iter().any(|part| word.contains(part.as_str())) {
            return Err(anyhow::Error::new(io::Error::other("refused")).context(word));
        }
        let is_ignored = self.ignored.borrow().iter().any(|part| word.contains(part.as_str()));
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
            self.tree.file("/interfaces.table", format!("{interface} xdp none 1\n"));
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

/// Of the kernel's own driver, with interface ens2v0.
fn with_interface() -> Machine {
    let machine = Machine::new();
    machine.apply(&kernels(1));
    machine
}

/// Writes a lease of this boot or another one, with its facts and what has moved.
fn lease(machine: &Machine, name: &str, boot: &str, facts: &str) {
    machine.tree.boot("this-boot");
    let holder = r#""holder":{"init":{"process":{"pid":42,"startTime":7,"pidNamespace":1}}}"#;
    let text = format!(
        r#"{{"version":1,"class":"vfio","name":"x","slot":0,"boot":"{boot}","container":"web","bundle":"/b/web",
            {holder},"entryPoint":"createRuntime","since":1,{facts}}}"#
    );
    machine.tree.file(&format!("/run/onload-ctk/@leases/{name}#0"), text);
}

#[test]
fn cases_of_plans_print_what_their_files_say() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/boot"), |_| {
        let mut machine = Machine::new();
        Some(move |script: &str| run(&mut machine, script))
    });
}

/// Runs the commands of a case, one a line: `apply CONFIG` prints what the kernel was told. One that succeeds leaves nothing to
/// do. A command that is not here is one of `Tree::script`.
fn run(machine: &mut Machine, script: &str) -> String {
    let mut script = script.replace("{PF}", PF).replace("{VF}", VF);
    for count in 0..10 {
        script = script.replace(&format!("{{vfio {count}}}"), &vfio(count).replace('\n', "\\n"));
        let text = kernels(count).replace('\n', "\\n");
        script = script.replace(&format!("{{kernel {count}}}"), &text);
    }
    script = script.replace("{everything}", &everything().replace('\n', "\\n"));
    let mut out = String::new();
    for command in split_commands(&script) {
        out += &run_command(machine, &command);
    }
    out.replace(machine.tree.root().to_str().unwrap(), "")
}

fn run_command(machine: &mut Machine, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let text = |words: usize| {
        command.splitn(words + 1, ' ').nth(words).unwrap_or_default().replace("\\n", "\n")
    };
    match words[..] {
        ["#", ..] => {}
        ["new"] => *machine = Machine::new(),
        ["plan", ..] => return describe(&machine.plan(&text(1))),
        ["plan-offline", ..] => {
            let config = Config::parse(&text(1)).unwrap();
            return describe(&plan(&machine.host(), &OfflineKernel, &config));
        }
        ["refusals", ..] => {
            let refused = machine.plan(&text(1)).refused;
            return describe(&HostPlan { refused, ..HostPlan::default() });
        }
        ["apply", ..] => return apply_twice(machine, &text(1)),
        ["prepare", ..] => assert!(!apply_twice(machine, &text(1)).contains("failed: ")),
        ["functions"] => return functions(machine),
        ["read", path] => return format!("{}\n", machine.read(path)),
        ["ignore", ..] => machine.ignored.borrow_mut().push(text(1)),
        ["refuse", ..] => machine.refuses.borrow_mut().push(text(1)),
        ["memory", pages] => machine.memory.set(pages.parse().unwrap()),
        ["network", ..] => drop(machine.tree.file("/network.table", network(&text(1)))),
        ["edit", path, ..] => {
            let text = text(2);
            let (old, new) = text.split_once(" => ").unwrap();
            machine.tree.file(path, machine.tree.read(path).replace(old, new));
        }
        ["opened", node, ..] => drop(machine.holders.borrow_mut().insert(node.into(), text(2))),
        ["lease", name] => lease(machine, name, "this-boot", r#""facts":{}"#),
        ["lease", name, boot] => lease(machine, name, boot, r#""facts":{}"#),
        ["lease", name, boot, facts] => lease(machine, name, boot, facts),
        ["bind-parent", driver] => machine.bind_parent(driver),
        ["bind-function", address, driver] => machine.bind(address, driver),
        ["unbind", address] => {
            let driver = format!("/sys/bus/pci/devices/{address}/driver/unbind");
            machine.react(Path::new(&driver), address);
        }
        ["vdpa", path] => {
            machine.tree.directory(path).link("/sys/bus/vdpa/devices/vdpa1", path);
        }
        ["port", name, port] => {
            machine.tree.file(&format!("{PF}/net/{name}/phys_port_name"), port);
            machine.tree.link(&format!("/sys/class/net/{name}"), &format!("{PF}/net/{name}"));
        }
        ["set", index, vlan, spoof_check] => {
            let mut settings = machine.settings.borrow_mut();
            let settings = settings.get_mut(&index.parse().unwrap()).unwrap();
            let id = vlan.parse().unwrap();
            settings.vlan = Some(VlanTag { id, ..VlanTag::default() });
            settings.spoof_check = spoof_check.parse().ok();
        }
        ["without-trust"] => {
            machine.settings.borrow_mut().values_mut().for_each(|settings| settings.trust = None);
        }
        ["forget", index] => {
            machine.settings.borrow_mut().remove(&index.parse().unwrap());
        }
        ["with-onload"] => drop(machine.tree.file(REGISTER, "").directory(NICS)),
        ["registered", entry, name, address] => {
            let attributes = [("net_dev", name), ("mac_addr", address)];
            machine.tree.attributes(&format!("{NICS}/{entry}"), &attributes);
        }
        _ => drop(machine.tree.script(command)),
    }
    String::new()
}

fn apply_twice(machine: &Machine, config: &str) -> String {
    let outcome = machine.apply(config);
    let mut out: String =
        machine.writes.take().iter().map(|word| format!("told: {}\n", word.trim_end())).collect();
    out.extend(outcome.failed.iter().map(|line| format!("failed: {line}\n")));
    out.extend(outcome.warnings.iter().map(|line| format!("warning: {line}\n")));
    if outcome.failed.is_empty() {
        let plan = machine.plan(config);
        assert_eq!((plan.steps, plan.refused), (vec![], vec![]), "{config}");
        assert_eq!(machine.apply(config).done, 0, "{config}");
        assert_eq!(machine.writes.take(), [""; 0], "{config}");
    }
    format!("{out}done: {}\n", outcome.done)
}

fn describe(plan: &HostPlan) -> String {
    let mut out = String::new();
    for HostStep { subject, setting, now, wanted, .. } in &plan.steps {
        out += &format!("step: {subject}: {setting}: {now} -> {wanted}\n");
    }
    out.extend(plan.refused.iter().map(|reason| format!("refused: {reason}\n")));
    out.extend(plan.warnings.iter().map(|warning| format!("warning: {warning}\n")));
    if out.is_empty() { "nothing\n".to_owned() } else { out }
}

fn functions(machine: &Machine) -> String {
    let settings = machine.settings.borrow();
    settings
        .iter()
        .map(|(index, settings)| {
            let driver = machine.driver(&format!("0000:81:10.{index}"));
            let driver = driver.as_deref().unwrap_or("no driver");
            let mac = settings.mac.map(|mac| format_hwaddr(&mac)).unwrap_or_default();
            let VfSettings { vlan, spoof_check, trust, .. } = settings;
            let vlan = vlan.map(|vlan| vlan.id);
            format!("vf {index}: {driver}, {mac}, vlan {vlan:?}, {spoof_check:?}, {trust:?}\n")
        })
        .collect()
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
fn a_container_that_starts_during_a_run_keeps_its_function() {
    let machine = Machine::new();
    machine.apply(&kernels(2));
    let config = Config::parse(&vfio(2)).unwrap();
    let mut started = |stage, step: &HostStep| {
        if stage == StepStage::Done && step.setting == "module vfio-pci" {
            lease(&machine, "vfio=0000:81:10.1", "this-boot", r#""facts":{}"#);
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
fn where_the_mode_cannot_change_the_line_says_what_can() {
    let error = |mode| netns_busy_error(mode).to_string();
    let line = error(RdmaNetns::Exclusive);
    assert!(line.contains("options ib_core netns_mode=0"), "{line}");
    assert!(error(RdmaNetns::Shared).contains("netns_mode=1"));
}

#[test]
fn a_function_that_a_container_takes_during_a_run_is_not_unbound_for_a_new_address() {
    let machine = with_interface();
    machine.writes.take();
    let mut starts = |stage, _: &HostStep| {
        if stage == StepStage::Begins {
            lease(&machine, "netdev=ens2v0", "this-boot", r#""facts":{}"#);
        }
    };
    let config = Config::parse(&format!("{}mac = \"02:00:00:00:10:00\"\n", kernels(1))).unwrap();
    let outcome = apply(&machine.host(), &machine, &config, Duration::ZERO, &mut starts);
    assert!(outcome.failed[0].contains("0000:81:10.0 is now in use by container web"));
    assert!(machine.writes.borrow().is_empty());
}
