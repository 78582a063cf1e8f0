//! Offers of captured hosts, with leases, pools and specifications made for each test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onload_cdi::{DeviceName, LoadError, Registry, Spec, SpecSource, from_json, to_json};
use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::expectation::ExpectedDevice;
use onload_core::host_settings::RdmaNetns;
use onload_lease::{Holder, HolderState, Lease, LeaseEntry};
use onload_sys::processes::{Cgroup, ProcessId};

use super::{Attribute, Health, HostDevice, LOOPBACK, Sharing, Survey, build_offers};
use crate::devices::devices;
use crate::devices::inventory::Inventory;
use crate::discover::exclusion::Exclusion;
use crate::discover::test_tree::{AsHost, Tree, sample};
use crate::discover::unread::UnreadEntry;
use crate::generate::{InstalledFiles, generate};
use crate::host::Host;
use crate::pools::{discover_with_pools, resolve};

const CAPTURED: &str = "debian13-2numa-onload-rxe-vfio";
const HOSTS: [&str; 5] = [CAPTURED, "x2-2port-sriov", "rdma-hcas", "iommu-groups", "vmd-numa-gaps"];

/// A host, and the files of its specification directory.
struct Given {
    inventory: Inventory,
    config: Config,
    files: BTreeMap<PathBuf, Result<Spec, LoadError>>,
    leases: Vec<LeaseEntry>,
}

fn holders(device: &HostDevice) -> Vec<&str> {
    let leases = device.leases.iter();
    leases.map(|held| held.text.as_str()).collect()
}

impl Given {
    fn sample(name: &str, config: &str) -> Given {
        Given::new(&sample(name), config)
    }

    /// A host whose specifications are up to date.
    fn new(host: &Host, config: &str) -> Given {
        let config = Config::parse(config).unwrap();
        let mut given = Given {
            inventory: discover_with_pools(host, &config).0,
            config,
            files: BTreeMap::new(),
            leases: Vec::new(),
        };
        given.generate();
        given
    }

    /// A test may have changed what was read.
    fn make_devices(&mut self) {
        self.inventory.devices = devices(&self.inventory);
    }

    fn generate(&mut self) {
        self.make_devices();
        let installed = InstalledFiles { hook: true, ..InstalledFiles::default() };
        let pools = resolve(&self.inventory, &self.config).offered;
        let specs = generate(&self.inventory, &pools, &self.config, installed).unwrap();
        let files = specs.into_iter();
        let files = files.map(|(name, spec)| (path(&name.to_string()), Ok(spec)));
        self.files = files.collect();
    }

    fn registry(&mut self) -> Registry {
        let files = std::mem::take(&mut self.files);
        let sources =
            files.into_iter().map(|(path, content)| SpecSource { path, priority: 0, content });
        Registry::from_sources(sources.collect())
    }

    fn offers(&mut self) -> Vec<HostDevice> {
        self.make_devices();
        let pools = resolve(&self.inventory, &self.config);
        let registry = self.registry();
        build_offers(&self.inventory, &registry, &pools, &self.leases)
    }

    fn offer(&mut self, name: &str) -> HostDevice {
        let offers = self.offers();
        let mut offers = offers.into_iter();
        let found = offers.find(|offer| format!("{}={}", offer.class, offer.name) == name);
        found.unwrap_or_else(|| panic!("no offer {name}"))
    }

    fn health(&mut self, name: &str) -> Health {
        self.offer(name).health
    }

    fn lease(&mut self, device: &str, slot: u32, container: &str) -> &mut LeaseEntry {
        let process = ProcessId { pid: 42, start_time: 7, pid_namespace: 9 };
        let lease = Lease {
            claim: None,
            boot: "b".to_owned(),
            container: container.parse().unwrap(),
            bundle: Path::new("/bundles").join(container),
            holder: Holder::Init {
                process,
                cgroup: Some(Cgroup {
                    path: format!("/sys/fs/cgroup/{container}.scope").into(),
                    inode: 3,
                }),
            },
            entry_point: "createRuntime".to_owned(),
            since: 1_700_000_000,
            facts: BTreeMap::new(),
            ticket: None,
            moved: None,
        };
        self.leases.push(LeaseEntry {
            device: device.parse().unwrap(),
            number: slot,
            state: HolderState::Alive,
            lease: Ok(lease),
        });
        self.leases.last_mut().unwrap()
    }
}

fn path(spec: &str) -> PathBuf {
    Path::new("/var/run/cdi").join(format!("onload.dev-{spec}.json"))
}

fn unhealthy(reason: &str) -> Health {
    Health::Unhealthy(reason.to_owned())
}

fn text(device: &HostDevice, key: &str) -> String {
    match device.attributes.get(key) {
        Some(Attribute::Text(text)) => text.clone(),
        other => panic!("{key} of {}: {other:?}", device.name),
    }
}

fn row(device: &HostDevice) -> String {
    let numa_node = device.numa_node.map_or("-".to_owned(), |node| node.to_string());
    let pci = device.pci.map_or("-".to_owned(), |pci| pci.to_string());
    let root = device.pcie_root.as_deref().unwrap_or("-");
    assert_eq!(device.health, Health::Healthy, "{}", device.name);
    let sharing = match device.sharing {
        Sharing::Exclusive => "one",
        Sharing::Shared => "shared",
    };
    format!("{} {pci} {root} {numa_node} {sharing}", device.cdi.join(" "))
}

#[test]
fn every_device_of_a_host_is_offered_one_by_one() {
    let pool = "[pools.fast]\nclass = \"vfio\"\n[pools.empty]\nclass = \"rdma\"\nselect = { driver = \"x\" }\n";
    let offers = Given::sample(CAPTURED, pool).offers();
    let rows: Vec<String> = offers.iter().map(row).collect();
    let ens1 = "0000:41:00.0 pci0000:40 0 shared";
    let expected = [
        format!("onload.dev/nic=ens1 {ens1}"),
        "onload.dev/nic=loopback - - - shared".to_owned(),
        format!("onload.dev/nic-plain=ens1 {ens1}"),
        "onload.dev/nic-plain=loopback - - - shared".to_owned(),
        format!("onload.dev/nic-nodes=ens1 {ens1}"),
        "onload.dev/nic-nodes=loopback - - - shared".to_owned(),
        "onload.dev/profile=cloud - - - shared".to_owned(),
        "onload.dev/profile=latency - - - shared".to_owned(),
        "onload.dev/profile=redis-balanced - - - shared".to_owned(),
        "onload.dev/rdma=rxe0 - - - shared".to_owned(),
        "onload.dev/rdma=rxe1 - - - shared".to_owned(),
        "onload.dev/vfio=0000:81:10.0 0000:81:10.0 pci0000:80 1 one".to_owned(),
        "onload.dev/vfio=0000:81:10.2 0000:81:10.2 pci0000:80 1 one".to_owned(),
        "onload.dev/hugepages=1Gi - - - shared".to_owned(),
        "onload.dev/hugepages=2Mi - - - shared".to_owned(),
        "onload.dev/ptp=ptp0 0000:00:06.0 pci0000:00 - shared".to_owned(),
        "onload.dev/ptp=ptp1 0000:81:00.0 pci0000:80 1 shared".to_owned(),
        format!("onload.dev/ptp=ptp2 {ens1}"),
    ];
    assert_eq!(rows, expected);
}

/// Gives a host an interface that may move; the configuration that offers it.
fn idle_interface(tree: &Tree) -> &'static str {
    let function = tree.function("0000:3b:02.0", "0x020000", 1);
    tree.bind(&function, "igbvf");
    tree.class_device("net", &function, "ens1v0", &[("operstate", "down")]);
    tree.file("/network.table", "link 2 ens1v0 - - - -\n");
    "[discover]\noffer-netdevs = [\"ens1v*\"]\n"
}

#[test]
fn an_interface_is_exclusive_and_healthy_though_its_link_is_down() {
    let tree = Tree::new();
    let config = idle_interface(&tree);
    let offer = Given::new(&tree.host(), config).offer("netdev=ens1v0");
    assert_eq!(offer.sharing, Sharing::Exclusive);
    assert_eq!((offer.slots, offer.health), (None, Health::Healthy));
    assert_eq!(offer.pci.unwrap().to_string(), "0000:3b:02.0");
    assert_eq!(offer.numa_node, Some(1));
    let text = |key: &str| match &offer.attributes[key] {
        Attribute::Text(text) => text.clone(),
        other => panic!("{key} is {other:?}"),
    };
    assert_eq!((text("kind"), text("interface")), ("netdev".to_owned(), "ens1v0".to_owned()));
}

#[test]
fn an_interface_that_a_cni_plugin_moves_is_the_same_offer_while_it_is_away() {
    let tree = Tree::new();
    idle_interface(&tree);
    let config = "[pools.sriov]\nclass = \"netdev\"\nmove = \"cni\"\n";
    let device = "netdev=0000:3b:02.0";
    let at_home = Given::new(&tree.host(), config).offer(device);
    let away = Tree::new();
    let function = away.function("0000:3b:02.0", "0x020000", 1);
    away.bind(&function, "igbvf");
    away.file("/network.table", "");
    let away = Given::new(&away.host(), config).offer(device);
    for (offer, interface) in [(at_home, "ens1v0"), (away, "")] {
        assert_eq!((offer.sharing, offer.health), (Sharing::Exclusive, Health::Healthy));
        let text = |key: &str| Attribute::Text(key.to_owned());
        assert_eq!(offer.attributes["name"], text("0000:3b:02.0"));
        assert_eq!(offer.attributes["interface"], text(interface));
    }
}

#[test]
fn all_devices_of_a_class_have_the_same_attributes() {
    let mut keys: BTreeMap<Class, BTreeSet<Vec<(&str, u8)>>> = BTreeMap::new();
    let mut add = |offers: Vec<HostDevice>| {
        for offer in offers {
            let shape = offer.attributes.iter().map(|(key, value)| match value {
                Attribute::Text(_) => (*key, 0),
                Attribute::Int(_) => (*key, 1),
                Attribute::Bool(_) => (*key, 2),
                Attribute::Version(_) => (*key, 3),
            });
            keys.entry(offer.class).or_default().insert(shape.collect());
        }
    };
    let tree = Tree::new();
    tree.file("/proc/devices", "Character devices:\n510 gdrdrv\n");
    tree.node("/dev/gdrdrv", 510, 0);
    let (config, movable) = (idle_interface(&tree), tree.host());
    let hosts = HOSTS.iter().map(|name| Given::sample(name, ""));
    for mut given in hosts.chain([Given::new(&movable, config)]) {
        let files: Vec<(PathBuf, String)> = given
            .files
            .iter()
            .map(|(path, spec)| (path.clone(), to_json(spec.as_ref().unwrap())))
            .collect();
        add(given.offers());
        // The same specifications on a host that has none of these devices any more.
        let mut gone = Given::new(&Tree::new().host(), "");
        let specs = files.into_iter();
        gone.files =
            specs.map(|(path, text)| (path, Ok(from_json(text.as_bytes()).unwrap()))).collect();
        let offers = gone.offers();
        assert!(offers.iter().all(|offer| offer.health != Health::Healthy));
        add(offers);
    }
    let classes: Vec<Class> = keys.keys().copied().collect();
    // A bundle is no offer: its devices are.
    let offered = Class::ALL.into_iter().filter(|class| *class != Class::Bundle);
    assert_eq!(classes, offered.collect::<Vec<_>>());
    for (class, shapes) in keys {
        assert_eq!(shapes.len(), 1, "{class}: {shapes:?}");
        for (key, _) in shapes.into_iter().flatten() {
            let is_identifier = key.bytes().all(|byte| byte.is_ascii_alphanumeric());
            assert!(is_identifier && key.len() <= 32, "{key}");
        }
    }
}

#[test]
fn attributes_say_what_a_virtual_function_is_of() {
    let tree = Tree::sample("x2-2port-sriov");
    let function = "/sys/devices/pci0000:64/0000:64:00.0/0000:65:00.1";
    for (name, port) in [("0a1b2c3d4e5f", "pf1vf0"), ("enp101s0f1np1", "p1")] {
        let port = [("phys_port_name", port)];
        tree.class_device("net", function, name, &port);
    }
    let mut given = Given::new(&tree.host(), "");
    let vfio = given.offer("vfio=0000:65:00.6");
    for (key, value) in [
        ("kind", "vfio"),
        ("name", "0000:65:00.6"),
        ("vendor", "1924"),
        ("driver", "vfio-pci"),
        ("pf", "0000:65:00.1"),
        ("pfInterface", "enp101s0f1np1"),
    ] {
        assert_eq!(text(&vfio, key), value, "{key}");
    }
    assert_eq!(vfio.attributes["virtualFunction"], Attribute::Bool(true));
    assert_eq!(vfio.attributes["vfIndex"], Attribute::Int(0));
    assert_eq!(vfio.attributes["iommuGroup"], Attribute::Int(65));
    given.generate();
    let nic = given.offer("zf=enp101s0f0np0");
    assert_eq!(nic.attributes["linkMbps"], Attribute::Int(25_000));
    assert_eq!(nic.attributes["accelerated"], Attribute::Bool(true));
    assert_eq!(nic.attributes["virtualFunctions"], Attribute::Int(2));
    let version = Attribute::Version("9.0.2".to_owned());
    assert_eq!(nic.attributes["onloadVersion"], version);
    let texts = ["kind", "interface", "datapath", "linkLayer", "onload", "pf"];
    let texts = texts.map(|key| text(&nic, key));
    let expected = ["zf", "enp101s0f0np0", "ef10", "Ethernet", "9.0.2.140", ""];
    assert_eq!(texts, expected);
}

/// The root below which a driver of GPUs says that its GPU is, where the NIC's own is another.
#[test]
fn a_nic_with_data_direct_says_the_root_of_its_gpu() {
    let roots = |uuid: &str| {
        let tree = Tree::new();
        tree.machine(&format!(
            "pci0008:00 0\n  gpu 0008:06:00.0 10de:31c2\n  dma 0008:05:00.0 V3=aa\npci0000:00 0\n  nic 0000:03:00.0 mlx5_0 400 V3={uuid}\n  nic 0000:04:00.0 mlx5_1 400\n"
        ));
        let mut given = Given::new(&tree.host(), "");
        let offers = given.offers().into_iter();
        let offers = offers.filter(|offer| offer.class == Class::Rdma);
        let roots = offers.map(|offer| offer.attributes.get("dataDirectRoot").cloned());
        roots.collect::<Vec<_>>()
    };
    let text = |text: &str| Some(Attribute::Text(text.to_owned()));
    assert_eq!(roots("aa"), [text("pci0008:00"), text("")]);
    // Nothing is paired.
    assert_eq!(roots("bb"), [None, None]);
}

#[test]
fn attributes_of_an_rdma_device_are_those_of_its_active_port() {
    let mut given = Given::sample("rdma-hcas", "");
    let devices = given.offers();
    let devices = devices.iter().filter(|offer| offer.class == Class::Rdma);
    let rows: Vec<String> = devices
        .map(|offer| {
            let keys = ["name", "linkLayer", "linkState", "transport", "netdevs", "firmware"];
            let texts = keys.map(|key| text(offer, key));
            let number = |key: &str| match &offer.attributes[key] {
                Attribute::Int(number) => number.to_string(),
                Attribute::Version(version) => version.clone(),
                other => panic!("{key}: {other:?}"),
            };
            let (speed, version) = (number("linkMbps"), number("firmwareVersion"));
            format!("{} {speed} {version}", texts.join("|"))
        })
        .collect();
    let expected = [
        "mlx4_0|InfiniBand|ACTIVE|infiniband|ens4d1,ib0|2.42.5000 56000 2.42.5000",
        "mlx5_0|InfiniBand|ACTIVE|infiniband|ibp177s0|40.44.1036 800000 40.44.1036",
        "qib0|InfiniBand|ACTIVE|infiniband|| 40000 0.0.0",
        "rocep193s0f0|Ethernet|ACTIVE|infiniband|enp193s0f0np0,vlan100|228.0.128.0 100000 228.0.128",
        "siw_lo|Ethernet|ACTIVE|iwarp|lo| 2500 0.0.0",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn domains_of_more_than_four_digits_have_their_root() {
    let vfio = Given::sample("vmd-numa-gaps", "").offer("vfio=10000:e1:00.0");
    assert_eq!(vfio.pcie_root.as_deref(), Some("pci10000:e1"));
    assert_eq!(vfio.numa_node, Some(8));
    assert_eq!(vfio.pci.unwrap().to_string(), "10000:e1:00.0");
}

#[test]
fn a_device_that_no_specification_has_is_not_healthy_and_has_no_cdi_name() {
    let mut given = Given::sample(CAPTURED, "");
    given.files.remove(&path("vfio"));
    let offer = given.offer("vfio=0000:81:10.0");
    assert!(offer.cdi.is_empty());
    assert_eq!(
        offer.health,
        unhealthy(
            "there is no specification of onload.dev/vfio; run \"onload-ctk cdi generate\", with vfio in \
             [cdi] kinds of /etc/onload-ctk/config.toml"
        )
    );
    given.generate();
    let vfio = given.files.get_mut(&path("vfio")).unwrap().as_mut().unwrap();
    vfio.devices.retain(|device| device.name.as_str() != "0000:81:10.0");
    assert_eq!(
        given.health("vfio=0000:81:10.0"),
        unhealthy(
            "no specification has onload.dev/vfio=0000:81:10.0; run \"onload-ctk cdi generate\""
        )
    );
}

#[test]
fn a_device_that_two_files_claim_or_whose_file_is_broken_says_so() {
    let mut given = Given::sample(CAPTURED, "");
    let copy = given.files[&path("vfio")].as_ref().unwrap().clone();
    given.files.insert("/var/run/cdi/other.json".into(), Ok(copy));
    assert_eq!(
        given.health("vfio=0000:81:10.0"),
        unhealthy(
            "it is in /var/run/cdi/onload.dev-vfio.json, /var/run/cdi/other.json, so engines \
             reject it; remove it from all but one"
        )
    );
    given.generate();
    let error = std::io::Error::other("not a regular file");
    given.files.insert(path("vfio"), Err(LoadError::Read(error)));
    assert_eq!(
        given.health("vfio=0000:81:10.0"),
        unhealthy(
            "/var/run/cdi/onload.dev-vfio.json cannot be used: reading the file: not a regular file; run \"onload-ctk cdi generate\""
        )
    );
}

#[test]
fn a_device_that_is_offered_no_longer_says_why_as_discover_does() {
    let reason = "acceleration is disabled; write 1 to /x";
    for class in ["nic", "nic-plain", "nic-nodes", "zf"] {
        let name = format!("{class}=enp101s0f0np0");
        let mut given = Given::sample("x2-2port-sriov", "");
        let offered = given.offer(&name);
        assert_eq!(offered.health, Health::Healthy);
        given.generate();
        let nic = given.inventory.nics.remove(0);
        let entry = Exclusion::new(Class::Nic, nic.name, reason);
        given.inventory.not_offered.push(entry);
        let gone = given.offer(&name);
        assert_eq!(gone.health, unhealthy(reason), "{class}");
        assert_eq!(gone.cdi, [format!("onload.dev/{name}")]);
        let place = (offered.pci, offered.pcie_root, offered.numa_node);
        assert_eq!((gone.pci, gone.pcie_root, gone.numa_node), place);
    }
    // Each class by its own name, and reasons that discovery gives by itself.
    for (host, class, name, other) in [
        (CAPTURED, Class::Vfio, "0000:81:10.0", "0000:81:10.4"),
        (CAPTURED, Class::Zf, "ens1", "ens1"),
        (CAPTURED, Class::Profile, "latency", "latency-best"),
        ("x2-2port-sriov", Class::Hugepages, "2Mi", "1Gi"),
    ] {
        let mut given = Given::sample(host, "");
        let from = match class {
            Class::Zf => Class::Nic,
            class => class,
        };
        let mut spec = given.files.remove(&path(from.as_str())).unwrap().unwrap();
        spec.kind = class.cdi_kind().as_str().into();
        spec.devices.retain(|device| device.name.as_str() == name);
        spec.devices[0].name = other.parse::<DeviceName>().unwrap().into();
        given.files.insert(path(class.as_str()), Ok(spec));
        let mut reasons = given.inventory.not_offered.iter();
        let entry = reasons.find(|entry| entry.kind == class.into() && entry.name == other);
        let reason = entry.unwrap().reason.clone();
        let health = given.health(&format!("{class}={other}"));
        assert_eq!(health, unhealthy(&reason), "{class}");
    }
}

#[test]
fn onload_that_is_offered_no_longer_takes_all_of_its_devices_along() {
    let mut given = Given::sample(CAPTURED, "");
    let onload = given.inventory.onload.as_mut().unwrap();
    onload.obstacle = Some("/dev/onload does not exist; load its driver".to_owned());
    let offers = given.offers();
    let of_onload = offers.iter().filter(|offer| {
        let classes = [Class::Nic, Class::NicPlain, Class::NicNodes, Class::Profile];
        classes.contains(&offer.class)
    });
    let of_onload: Vec<&HostDevice> = of_onload.collect();
    assert_eq!(of_onload.len(), 9);
    let why = "Onload is not offered: /dev/onload does not exist; load its driver";
    for offer in of_onload {
        assert_eq!(offer.health, unhealthy(why), "{}", offer.name);
    }
}

#[test]
fn a_device_that_is_gone_or_cannot_be_looked_at_says_which_of_both() {
    let mut given = Given::sample(CAPTURED, "");
    given.inventory.rdma.remove(0);
    assert_eq!(
        given.health("rdma=rxe0"),
        unhealthy(
            "this host no longer has this device; bring it back, or run \"onload-ctk cdi \
             generate\""
        )
    );
    let mut given = Given::sample(CAPTURED, "");
    given.inventory.rdma.remove(0);
    given.inventory.unread.push(UnreadEntry {
        path: "/sys/class/infiniband".into(),
        kinds: [Class::Rdma].into(),
        reason: "reading /sys/class/infiniband: permission denied".to_owned(),
        advice: "; run as root",
    });
    assert_eq!(
        given.health("rdma=rxe0"),
        unhealthy(
            "could not determine whether it is there: reading /sys/class/infiniband: permission \
             denied; run as root"
        )
    );
}

#[test]
fn a_link_that_is_down_makes_a_device_unhealthy() {
    let mut given = Given::sample(CAPTURED, "");
    given.inventory.nics[0].state = Some("down".to_owned());
    let port = &mut given.inventory.rdma[0].ports[0];
    port.state = Some("DOWN".to_owned());
    let files: Vec<PathBuf> = given.files.keys().cloned().collect();
    assert!(files.contains(&path("nic")));
    let offers = given.offers();
    let reason = |name: &str| {
        let mut offers = offers.iter();
        offers.find(|offer| offer.name.as_str() == name).unwrap().health.clone()
    };
    assert_eq!(
        reason("ens1"),
        unhealthy(
            "its link is down (operstate down); set the interface up, or check its cable and the \
             port at the other end"
        )
    );
    assert_eq!(
        reason("rxe0"),
        unhealthy(
            "none of its ports is active: port 1 is DOWN; bring its link up (InfiniBand needs a \
             subnet manager)"
        )
    );
    assert_eq!(reason("rxe1"), Health::Healthy);
    assert_eq!(reason(LOOPBACK), Health::Healthy);
}

#[test]
fn nodes_that_were_renumbered_make_a_device_unhealthy() {
    let why = |node: &str| {
        unhealthy(&format!(
            "its specification was written for another {node}: devices have been renumbered since; run \"onload-ctk cdi generate\""
        ))
    };
    // The same name with another number, another name, and the name with another device behind it.
    let mut given = Given::sample(CAPTURED, "");
    let node = Arc::make_mut(&mut given.inventory.rdma[0].nodes[0]);
    node.node.number.minor += 1;
    assert_eq!(given.health("rdma=rxe0"), why("/dev/infiniband/uverbs0"));
    let mut given = Given::sample(CAPTURED, "");
    let node = Arc::make_mut(&mut given.inventory.vfio[0].nodes[1]);
    node.node.path = "/dev/vfio/99".to_owned();
    assert_eq!(given.health("vfio=0000:81:10.0"), why("/dev/vfio/15"));
    let mut given = Given::sample("rdma-hcas", "");
    let index = given.inventory.rdma.iter().position(|one| one.pci_address.is_some());
    let device = &mut given.inventory.rdma[index.unwrap()];
    let name = format!("rdma={}", device.device);
    Arc::make_mut(&mut device.nodes[0]).expected = vec![ExpectedDevice::Rdma {
        ibdev: device.name.clone(),
        pci: Some("0000:ff:00.0".parse().unwrap()),
    }];
    assert!(matches!(given.health(&name), Health::Unhealthy(_)));
    // What all devices of a class share.
    let mut given = Given::sample(CAPTURED, "");
    let onload = given.inventory.onload.as_mut().unwrap();
    Arc::make_mut(&mut onload.nodes[0]).node.number.major += 1;
    assert_eq!(given.health("nic=loopback"), why("/dev/onload"));
    // A node that is no longer offered is no renumbered one.
    let umad = "[discover]\noffer-umad = true\n";
    let mut given = Given::sample("rdma-hcas", umad);
    let device = &mut given.inventory.rdma[0];
    assert!(device.nodes[2].node.path.contains("umad"));
    device.nodes.truncate(2);
    let name = format!("rdma={}", device.device);
    assert_eq!(given.health(&name), Health::Healthy);
}

#[test]
fn a_lease_names_its_holder_and_leaves_the_device_healthy_to_its_own_engine() {
    let mut given = Given::sample(CAPTURED, "");
    given.lease("vfio:0000:81:10.0", 0, "web");
    let offer = given.offer("vfio=0000:81:10.0");
    let holder = "container web (process 42, cgroup \"/sys/fs/cgroup/web.scope\") since 2023-11-14T22:13:20Z";
    assert_eq!(holders(&offer), [holder]);
    assert_eq!(offer.health, Health::Healthy);
    let is_web = |lease: &Lease| lease.container.as_str() == "web";
    assert_eq!(offer.health_excluding(is_web), Health::Healthy);
    assert_eq!(
        offer.health_excluding(|lease| !is_web(lease)),
        unhealthy(&format!("in use by {holder}; \"onload-ctk lease list\" shows all"))
    );
    assert_eq!(given.leases.len(), 1);
    given.generate();
    assert_eq!(given.offer("vfio=0000:81:10.2").leases, []);
}

#[test]
fn a_lease_that_is_over_holds_nothing_and_one_that_is_not_understood_does() {
    let mut given = Given::sample(CAPTURED, "");
    given.lease("vfio:0000:81:10.0", 0, "web").state = HolderState::Ended;
    given.lease("vfio:0000:81:10.2", 0, "web").lease = Err("it is not a lease".to_owned());
    let offers = given.offers();
    let offers = offers.iter().filter(|offer| offer.class == Class::Vfio);
    let offers: Vec<&HostDevice> = offers.collect();
    assert!(offers[0].leases.is_empty());
    assert_eq!(holders(offers[1]), ["an unknown container (it is not a lease)"]);
    assert_eq!(
        offers[1].health_excluding(|_| true),
        unhealthy(
            "in use by an unknown container (it is not a lease); \"onload-ctk lease list\" shows \
             all"
        )
    );
}

#[test]
fn a_shared_device_is_full_when_others_have_all_that_the_operator_allows() {
    let mut given = Given::sample(CAPTURED, "[leases]\nshare = { vfio = 2 }\n");
    given.lease("vfio:0000:81:10.0", 1, "b");
    given.lease("vfio:0000:81:10.0", 0, "a");
    let offer = given.offer("vfio=0000:81:10.0");
    assert_eq!((offer.sharing, offer.slots), (Sharing::Shared, Some(2)));
    let slots: Vec<u32> = offer.leases.iter().map(|held| held.slot).collect();
    assert_eq!(slots, [0, 1]);
    assert!(holders(&offer)[0].contains("container a "));
    let is_a = |lease: &Lease| lease.container.as_str() == "a";
    assert_eq!(offer.health_excluding(is_a), Health::Healthy);
    assert!(matches!(offer.health_excluding(|_| false), Health::Unhealthy(_)));
    // Nobody counts the containers of an interface.
    given.generate();
    given.lease("nic:ens1", 0, "a");
    let nic = given.offer("nic=ens1");
    assert_eq!((nic.sharing, nic.slots, nic.max_holders()), (Sharing::Shared, None, None));
    assert_eq!(nic.health_excluding(|_| false), Health::Healthy);
}

#[test]
fn the_strictest_of_class_and_pools_says_how_many_have_a_device() {
    let most = |config: &str, name: &str| {
        let offer = Given::sample(CAPTURED, config).offer(name);
        (offer.pools.join(" "), offer.sharing, offer.slots)
    };
    let pool = |name: &str, class: &str, share: &str| {
        format!("[pools.{name}]\nclass = \"{class}\"\n{share}\n")
    };
    let roce = pool("roce", "rdma", "share = 500");
    let (exclusive, shared) = (Sharing::Exclusive, Sharing::Shared);
    assert_eq!(most(&roce, "rdma=rxe0"), ("roce".to_owned(), shared, Some(500)));
    let two = roce.clone() + &pool("a", "rdma", "share = 3") + &pool("b", "rdma", "");
    assert_eq!(most(&two, "rdma=rxe1"), ("a b roce".to_owned(), shared, Some(3)));
    let class = format!("[leases]\nshare = {{ rdma = 2 }}\n{roce}");
    assert_eq!(most(&class, "rdma=rxe0"), ("roce".to_owned(), shared, Some(2)));
    // The hook gives a group to one container, whatever a pool of it says.
    let fast = pool("fast", "vfio", "share = 2\nselect = { addresses = \"0000:81:10.0\" }");
    assert_eq!(most(&fast, "vfio=0000:81:10.0"), ("fast".to_owned(), exclusive, None));
    assert_eq!(most(&fast, "vfio=0000:81:10.2"), (String::new(), exclusive, None));
    assert_eq!(most("", "rdma=rxe0"), (String::new(), shared, None));
}

#[test]
fn rdma_devices_of_one_network_namespace_each_are_exclusive() {
    let mut given = Given::sample(CAPTURED, "[leases]\nshare = { rdma = 5 }\n");
    given.inventory.rdma_netns_mode = Some(RdmaNetns::Exclusive);
    let offer = given.offer("rdma=rxe0");
    assert_eq!((offer.sharing, offer.slots), (Sharing::Exclusive, None));
    given.generate();
    assert_eq!(given.offer("nic=ens1").sharing, Sharing::Shared);
}

#[test]
fn a_device_that_its_holder_has_taken_along_stays_an_offer() {
    let mut given = Given::sample(CAPTURED, "[leases]\nshare = { rdma = 1 }\n");
    given.inventory.rdma.remove(0);
    given.lease("rdma:rxe0", 0, "web");
    // Where all namespaces see all devices, it is gone.
    assert!(matches!(given.health("rdma=rxe0"), Health::Unhealthy(_)));
    let mut taken = Given::sample(CAPTURED, "[leases]\nshare = { rdma = 1 }\n");
    taken.inventory.rdma.clear();
    taken.inventory.rdma_netns_mode = Some(RdmaNetns::Exclusive);
    taken.lease("rdma:rxe0", 0, "web");
    let offers = taken.offers();
    let rdma: Vec<&HostDevice> = offers.iter().filter(|offer| offer.class == Class::Rdma).collect();
    assert_eq!(rdma[0].health, Health::Healthy);
    assert!(matches!(rdma[0].health_excluding(|_| false), Health::Unhealthy(_)));
    // Nobody holds the other.
    assert!(matches!(rdma[1].health, Health::Unhealthy(_)));
}

#[test]
fn functions_of_one_iommu_group_are_one_offer() {
    let mut given = Given::sample("iommu-groups", "");
    given.lease("vfio:0000:05:00.1", 0, "earlier");
    let offers = given.offers();
    let names: Vec<&str> = offers.iter().map(|offer| offer.name.as_str()).collect();
    assert_eq!(names, ["0000:05:00.0", "0000:81:00.1", "0000:83:00.0"]);
    // A container of a time when the group went by another name.
    let holders = holders(&offers[0]);
    assert!(holders[0].starts_with("container earlier "), "{holders:?}");
    assert_eq!(offers[0].attributes["functions"], Attribute::Int(2));
    assert_eq!(offers[2].attributes["noIommu"], Attribute::Bool(true));
    // A specification that still has the group by that name.
    given.generate();
    let vfio = given.files.get_mut(&path("vfio")).unwrap().as_mut().unwrap();
    vfio.devices[0].name = "0000:05:00.1".parse::<DeviceName>().unwrap().into();
    let health = given.health("vfio=0000:05:00.1");
    assert_eq!(
        health,
        unhealthy(
            "it is in the IOMMU group of 0000:05:00.0, and offered with it; run \"onload-ctk cdi generate\""
        )
    );
}

#[test]
fn functions_with_nodes_of_their_own_come_with_their_whole_group() {
    let mut given = Given::sample("iommu-groups", "");
    // As on a kernel without group nodes, where each function of a group is a device.
    let first =
        given.inventory.vfio.iter().position(|device| !device.aliases.is_empty() && device.viable);
    let group = given.inventory.vfio.remove(first.unwrap());
    let functions = [group.pci_address, group.aliases[0]].map(|pci| {
        let mut function = group.clone();
        function.pci_address = pci;
        function.aliases.clear();
        let node = Arc::make_mut(&mut function.nodes[1]);
        node.node.path = format!("/dev/vfio/devices/{pci}");
        node.expected = vec![ExpectedDevice::Vfio { pci }];
        function
    });
    given.inventory.vfio = functions.to_vec();
    given.generate();
    let offers = given.offers();
    assert_eq!(offers.len(), 1);
    let names = ["onload.dev/vfio=0000:05:00.0", "onload.dev/vfio=0000:05:00.1"];
    assert_eq!(offers[0].cdi, names);
    assert_eq!(offers[0].health, Health::Healthy);
    given.generate();
    let vfio = given.files.get_mut(&path("vfio")).unwrap().as_mut().unwrap();
    vfio.devices.pop();
    let half = given.offer("vfio=0000:05:00.0");
    assert_eq!(half.cdi, names[..1]);
    assert!(matches!(half.health, Health::Unhealthy(_)));
}

#[test]
fn thousands_of_virtual_functions_are_an_offer_each() {
    let mut given = Given::sample(CAPTURED, "[pools.fast]\nclass = \"vfio\"\n");
    let sample = given.inventory.vfio[0].clone();
    let functions = (0..4096_u32).map(|n| {
        let address = format!("{:04x}:{:02x}:{:02x}.{}", n / 2048, n / 256 % 8, n / 8 % 32, n % 8);
        let mut device = sample.clone();
        device.pci_address = address.parse().unwrap();
        device.iommu_group = 1000 + n;
        let pci = device.pci_address;
        let node = Arc::make_mut(&mut device.nodes[1]);
        node.node.path = format!("/dev/vfio/{}", 1000 + n);
        node.expected = vec![ExpectedDevice::Vfio { pci }];
        device
    });
    given.inventory.vfio = functions.collect();
    given.generate();
    given.lease("vfio:0001:07:1f.7", 0, "last");
    let offers = given.offers();
    let vfio = offers.iter().filter(|offer| offer.class == Class::Vfio);
    let vfio: Vec<&HostDevice> = vfio.collect();
    assert_eq!(vfio.len(), 4096);
    assert!(vfio.iter().all(|offer| offer.health == Health::Healthy));
    assert!(vfio.iter().all(|offer| offer.pools == ["fast"] && offer.cdi.len() == 1));
    let held: Vec<&str> = vfio
        .iter()
        .filter(|offer| !offer.leases.is_empty())
        .map(|offer| offer.name.as_str())
        .collect();
    assert_eq!(held, ["0001:07:1f.7"]);
}

/// A host whose leases can be read, without any.
fn surveyed() -> (Tree, PathBuf) {
    let tree = Tree::new();
    tree.attributes("/sys/devices/system/node/node0", &[]);
    tree.boot("this boot");
    tree.file("/proc/self/ns/pid", "");
    tree.file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n");
    let root = tree.host().outside_path(Path::new("/"));
    (tree, root)
}

#[test]
fn a_survey_reads_specifications_and_leases() {
    let (tree, root) = surveyed();
    let cdi = root.join("var/run/cdi");
    fs::create_dir_all(&cdi).unwrap();
    let mut given = Given::new(&tree.host(), "");
    let (path, spec) = given.files.pop_first().unwrap();
    let file = cdi.join(path.file_name().unwrap());
    fs::write(file, to_json(&spec.unwrap())).unwrap();
    let lease = r#"{"version":1,"boot":"this boot","container":"web","bundle":"/b","entryPoint":"createRuntime","since":1,
        "holder":{"reservation":{"token":"0123456789abcdef0123456789abcdef","expiresMs":9000000000000000000}}}"#;
    tree.file("/run/onload-ctk/@leases/hugepages=2Mi#0", lease);
    let survey = Survey::read(&tree.host(), &given.config, &[cdi]).unwrap();
    let offers = survey.offers();
    assert_eq!(offers.len(), 1);
    assert_eq!(offers[0].cdi, ["onload.dev/hugepages=2Mi"]);
    assert_eq!(offers[0].health, Health::Healthy);
    assert_eq!(holders(&offers[0]), ["container web (being made) since 1970-01-01T00:00:01Z"]);
}

#[test]
fn a_drained_device_stays_an_offer_that_nobody_can_have() {
    let (tree, _) = surveyed();
    let drained = r#"{"version":1,"drained":[{"class":"hugepages","name":"2Mi","since":0,"reason":"new kernel"}]}"#;
    tree.file("/etc/onload-ctk/drain.json", drained);
    let survey = Survey::read(&tree.host(), &Config::default(), &[]).unwrap();
    assert_eq!(survey.inventory.devices, []);
    let offers = survey.offers();
    assert_eq!(offers.len(), 1);
    assert!(offers[0].is_drained && offers[0].cdi.is_empty());
    let why = "drained since 1970-01-01T00:00:00Z: new kernel; \"onload-ctk undrain hugepages=2Mi\" offers it again";
    assert_eq!(offers[0].health, unhealthy(why));
    assert_eq!(offers[0].attributes["kind"], Attribute::Text("hugepages".to_owned()));
    // Its attributes, pools and holders are those that it had.
    let mut given = Given::sample(CAPTURED, "[pools.fast]\nclass = \"vfio\"\n");
    let before = given.offer("vfio=0000:81:10.0");
    given.lease("vfio:0000:81:10.0", 0, "web");
    let at =
        |device: &HostDevice| device.class == Class::Vfio && device.name.as_str() == "0000:81:10.0";
    let at = given.inventory.devices.iter().position(at).unwrap();
    let device = given.inventory.devices.remove(at);
    given.inventory.drained.push(HostDevice { is_drained: true, health: unhealthy(why), ..device });
    let pools = resolve(&given.inventory, &given.config);
    let offers = build_offers(&given.inventory, &Registry::default(), &pools, &given.leases);
    let after = offers.iter().find(|offer| offer.name == before.name).unwrap();
    assert_eq!(after.pools, ["fast"]);
    assert_eq!(after.attributes, before.attributes);
    assert!(holders(after)[0].starts_with("container web "));
    assert_eq!(after.health, unhealthy(why));
}

#[test]
fn a_host_without_leases_is_surveyed_and_one_whose_leases_cannot_be_read_is_not() {
    let (tree, _) = surveyed();
    let read = || Survey::read(&tree.host(), &Config::default(), &[]);
    let survey = read().unwrap();
    assert!(survey.leases.is_empty());
    assert!(matches!(survey.offers()[0].health, Health::Unhealthy(_)));
    tree.file("/run/onload-ctk/@leases", "no directory");
    let error = read().unwrap_err();
    let message = format!("{error:#}");
    assert!(message.starts_with("reading leases: opening "), "{message}");
    assert!(message.contains("/run/onload-ctk/@leases"), "{message}");
}
