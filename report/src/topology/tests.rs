//! Topologies of the hosts that come with the sources, and of a large one that is made here.

use std::collections::BTreeMap;

use crate::test_tree::{AsHost, Tree, sample};
use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::device_id::DeviceId;
use onload_host::discover::pcie_link::PcieLink;
use onload_host::host::Host;
use onload_host::pools::discover_with_pools;
use onload_lease::{HolderState, LeaseEntry};
use onload_test_tree::sample::NAMES;

use super::*;
use crate::status::{ContainerEngine, ContainerGrants};

const TITLE: &str = "Devices of this host";

fn topology(host: &Host, leases: Option<&[LeaseEntry]>) -> Topology {
    configured(host, &Config::default(), leases)
}

fn configured(host: &Host, config: &Config, leases: Option<&[LeaseEntry]>) -> Topology {
    let (inventory, pools) = discover_with_pools(host, config);
    read(TopologyInput { host, inventory: &inventory, pools: &pools, leases, grantees: &[] })
        .unwrap()
}

fn of_sample(name: &str) -> Topology {
    topology(&Tree::sample(name).host(), Some(&[]))
}

fn held(class: Class, name: &str) -> LeaseEntry {
    LeaseEntry {
        device: DeviceId { class, name: name.try_into().unwrap() },
        number: 0,
        state: HolderState::Alive,
        lease: Err("it is not a lease".to_owned()),
    }
}

/// Every function of a topology, by address.
fn functions(topology: &Topology) -> BTreeMap<String, TopologyFunction> {
    fn add(bus: &Bus, found: &mut BTreeMap<String, TopologyFunction>) {
        for function in &bus.functions {
            let below = function.virtual_functions.iter();
            for each in below.chain([function]) {
                found.insert(each.address.to_string(), each.clone());
            }
        }
        bus.bridges.iter().for_each(|bridge| add(&bridge.bus, found));
    }
    let mut found = BTreeMap::new();
    topology.nodes.iter().flat_map(|node| &node.roots).for_each(|root| add(&root.bus, &mut found));
    found
}

fn device(class: Class, name: &str, state: Occupancy, holders: usize) -> TopologyDevice {
    TopologyDevice {
        class,
        name: name.to_owned(),
        state,
        reason: (state == Occupancy::NotOffered).then(|| "bound to sfc; bind it".to_owned()),
        holders: (0..holders).map(|at| format!("{at:064x}")).collect(),
    }
}

fn virtual_function(nic: u32, index: u32) -> TopologyFunction {
    let address = format!("0000:{:02x}:{:02x}.{}", nic + 0x40, index / 8 + 1, index % 8);
    let (driver, devices) = match index % 5 {
        0 => (Some("vfio-pci"), vec![device(Class::Vfio, &address, Occupancy::Held, 1)]),
        1 | 2 => (Some("vfio-pci"), vec![device(Class::Vfio, &address, Occupancy::Free, 0)]),
        3 => (
            Some("sfc"),
            vec![device(Class::Nic, &format!("ens{nic}v{index}"), Occupancy::Free, 9)],
        ),
        _ => (None, vec![device(Class::Vfio, &address, Occupancy::NotOffered, 0)]),
    };
    TopologyFunction {
        address: address.parse().unwrap(),
        id: "1924:1b03".to_owned(),
        driver: driver.map(str::to_owned),
        link: None,
        index: Some(index),
        gpu: None,
        interfaces: Vec::new(),
        devices,
        virtual_functions: Vec::new(),
    }
}

fn nic(number: u32) -> TopologyFunction {
    let name = format!("enp{number}s0f0np0");
    let interface = TopologyInterface {
        name: name.clone(),
        state: Some("up".to_owned()),
        speed_mbps: Some(100_000),
    };
    TopologyFunction {
        address: format!("0000:{:02x}:00.0", number + 0x40).parse().unwrap(),
        id: "1924:0b03".to_owned(),
        driver: Some("sfc".to_owned()),
        link: Some(PcieLink { speed: 160, width: 16 }),
        index: None,
        gpu: None,
        interfaces: vec![interface],
        devices: vec![
            device(Class::Nic, &name, Occupancy::Free, 2),
            device(Class::Zf, &name, Occupancy::Free, 0),
            device(Class::Rdma, &format!("mlx5_{number}"), Occupancy::Held, 1),
            device(Class::Ptp, &format!("ptp{number}"), Occupancy::Free, 0),
            device(Class::Pps, &format!("pps{number}"), Occupancy::NotOffered, 0),
        ],
        virtual_functions: (0..64).map(|index| virtual_function(number, index)).collect(),
    }
}

#[test]
fn a_function_is_coloured_by_what_it_carries_and_by_its_clock_where_that_is_all() {
    let mut function = nic(1);
    let mut summarize = |devices: Vec<TopologyDevice>| {
        function.devices = devices;
        let telling = function.informative_devices().count();
        (function.class(), function.state(), telling)
    };
    let nic = |state| device(Class::Nic, "a", state, 0);
    let ptp = || device(Class::Ptp, "ptp0", Occupancy::Free, 0);
    let vfio = |state| device(Class::Vfio, "b", state, 0);
    assert_eq!(summarize(vec![]), (None, Occupancy::NotOffered, 0));
    assert_eq!(summarize(vec![ptp()]), (Some(Class::Ptp), Occupancy::Free, 1));
    let found = summarize(vec![nic(Occupancy::NotOffered), ptp()]);
    assert_eq!(found, (Some(Class::Nic), Occupancy::NotOffered, 2));
    let found = summarize(vec![nic(Occupancy::NotOffered), vfio(Occupancy::Free), ptp()]);
    assert_eq!(found, (Some(Class::Vfio), Occupancy::Free, 2));
    let found = summarize(vec![nic(Occupancy::Free), vfio(Occupancy::Held), ptp()]);
    assert_eq!(found, (Some(Class::Vfio), Occupancy::Held, 3));
}

/// A host of 4 nodes with 2 interfaces each, of 64 virtual functions each: one behind a switch.
fn large() -> Topology {
    let node = |number: u32| {
        let first = number * 32;
        let bridge = |address: String, bus| Bridge {
            address: address.parse().unwrap(),
            link: Some(PcieLink { speed: 160, width: 16 }),
            bus,
        };
        let direct = Bus { bridges: Vec::new(), functions: vec![nic(number * 2)] };
        let behind = Bus { bridges: Vec::new(), functions: vec![nic(number * 2 + 1)] };
        let switch = bridge(format!("0000:{number:02x}:03.0"), behind);
        let bus = Bus { bridges: vec![switch], functions: Vec::new() };
        let bridges = vec![
            bridge(format!("0000:{number:02x}:01.0"), direct),
            bridge(format!("0000:{number:02x}:02.0"), bus),
        ];
        TopologyNumaNode {
            number: Some(number),
            cpus: Some(format!("{first}-{}", first + 31)),
            isolated_cpus: number
                .is_multiple_of(2)
                .then(|| format!("{}-{}", first + 8, first + 15)),
            memory: Some(NumaMemory { total_kib: 263_000_000, free_kib: 98_000_000 }),
            hugepages: vec![
                PageTotals { name: "2Mi".to_owned(), total: 4096, free: 1024 },
                PageTotals { name: "1Gi".to_owned(), total: 16, free: 16 },
            ],
            roots: vec![PcieRoot {
                name: format!("pci0000:{number:02x}"),
                bus: Bus { bridges, functions: Vec::new() },
            }],
            devices: Vec::new(),
        }
    };
    Topology { holders_known: true, nodes: (0..4).map(node).collect(), containers: Vec::new() }
}

/// Names that no kernel would like, deep below bridges, and of any length.
fn hostile() -> Topology {
    let mut topology = large();
    let mut function = nic(1);
    let names = ["</text><script>", "a\"b'&c", "\u{1b}[31m\u{0}\u{fffe}", "wöïd🦀"];
    for name in names.into_iter().chain(["x".repeat(400).as_str()]) {
        function.interfaces.push(TopologyInterface {
            name: name.to_owned(),
            state: Some(name.to_owned()),
            speed_mbps: Some(u64::MAX),
        });
        function.devices.push(device(Class::Rdma, name, Occupancy::Held, 40));
        function.devices.push(device(Class::Vfio, name, Occupancy::NotOffered, 0));
        function.driver = Some(name.to_owned());
    }
    let mut bus = Bus { bridges: Vec::new(), functions: vec![function] };
    for level in 0..30 {
        let bridge =
            Bridge { address: format!("0001:{level:02x}:00.0").parse().unwrap(), link: None, bus };
        bus = Bus { bridges: vec![bridge], functions: vec![nic(level)] };
    }
    topology.nodes[0].roots[0].bus = bus;
    topology.nodes[0].roots[0].name = "</svg>".repeat(40);
    topology.nodes[1].cpus = Some("0-65534".to_owned());
    let devices = (0..70).map(|at| device(Class::Rdma, &format!("rxe{at}"), Occupancy::Free, 0));
    topology.nodes[2].devices = devices.collect();
    topology.nodes[3] = TopologyNumaNode::default();
    topology
}

fn all() -> Vec<(&'static str, Topology)> {
    let mut all: Vec<_> = NAMES.map(|name| (name, of_sample(name))).into();
    all.push(("large", large()));
    all.push(("hostile", hostile()));
    all.push(("nothing", Topology::default()));
    all.push(("gpus", gpus(12)));
    all
}

/// GPUs and NICs of one node without a bridge in common, of which each GPU gets one.
fn gpus(count: u32) -> Topology {
    let root = |number: u32, function: &str| {
        format!("pci{number:04x}:00 0\n  bridge {number:04x}:00:01.0\n    {function}\n")
    };
    let functions = (1..=count).map(|at| {
        let gpu = root(at, &format!("gpu {at:04x}:01:00.0 10de:2330"));
        let nic = format!("nic {:04x}:01:00.0 mlx5_{at} 400", at + 0x100);
        gpu + &root(at + 0x100, &nic)
    });
    let tree = Tree::new();
    tree.machine(&functions.collect::<String>());
    topology(&tree.host(), Some(&[]))
}

#[test]
fn lines_of_pairs_beside_each_other_have_lanes_of_their_own() {
    let lanes = |topology: &Topology| {
        draw(topology, TITLE)
            .items
            .into_iter()
            .filter(|item| item.shape == Shape::Pair && item.rect.width == 2)
            .map(|item| item.rect)
            .collect::<Vec<_>>()
    };
    let lines = lanes(&gpus(4));
    assert_eq!(lines.len(), 4);
    for (at, one) in lines.iter().enumerate() {
        assert!(lines[at + 1..].iter().all(|other| !overlap(one, other)));
    }
    // More than there is room for: the text of the GPU has to do.
    assert_eq!(lanes(&gpus(12)).len(), 8);
    assert!(lanes(&large()).is_empty());
}

fn overlap(one: &Rect, other: &Rect) -> bool {
    one.x < other.right()
        && other.x < one.right()
        && one.y < other.bottom()
        && other.y < one.bottom()
}

fn is_inside(inner: &Rect, outer: &Rect) -> bool {
    inner.x >= outer.x
        && inner.y >= outer.y
        && inner.right() <= outer.right()
        && inner.bottom() <= outer.bottom()
}

#[test]
fn nothing_overlaps_and_all_is_inside_of_what_it_belongs_to() {
    for (name, topology) in all() {
        let drawing = draw(&topology, TITLE);
        assert_eq!(drawing.width, 1200);
        let page = Rect::new(0, 0, drawing.width, drawing.height);
        for (at, one) in drawing.items.iter().enumerate() {
            assert!(is_inside(&one.rect, &page), "{name}: {one:?}");
            assert!(one.rect.width > 0 && one.rect.height > 0, "{name}: {one:?}");
            let holds = matches!(one.shape, Shape::Panel | Shape::Card | Shape::Bridge)
                || matches!(one.shape, Shape::Chip(_) | Shape::Pages);
            for other in &drawing.items[at + 1..] {
                let kinds = [&one.shape, &other.shape];
                let wires = kinds == [&Shape::Wire; 2] || kinds == [&Shape::Pair; 2];
                let inside = holds && is_inside(&other.rect, &one.rect);
                let apart = wires || inside || !overlap(&one.rect, &other.rect);
                assert!(apart, "{name}: {one:?} and {other:?}");
            }
        }
    }
}

#[test]
fn a_text_is_as_wide_as_its_place() {
    for (name, topology) in all() {
        for item in draw(&topology, TITLE).items {
            let Shape::Text(style, text) = &item.shape else { continue };
            assert!(style.width(text) <= item.rect.width, "{name}: {item:?}");
            let is_plain = |c: char| matches!(c, ' '..='~' | '·' | '…');
            assert!(text.chars().all(is_plain), "{name}: {text}");
        }
    }
}

#[test]
fn a_picture_is_one_document_whatever_names_are_in_it() {
    use ::svg::parser::{Event, Parser};
    for (name, topology) in all() {
        let drawing = draw(&topology, TITLE);
        let text = render_svg(&drawing);
        let mut tags: BTreeMap<&str, usize> = BTreeMap::new();
        for event in Parser::new(&text) {
            match event {
                Event::Tag(tag, ..) => *tags.entry(tag).or_default() += 1,
                Event::Text(_) => {}
                other => panic!("{name}: {other:?}"),
            }
        }
        let known = ["g", "rect", "style", "svg", "text", "title"];
        assert!(tags.keys().all(|tag| known.contains(tag)), "{name}: {tags:?}");
        assert_eq!(tags.get("g"), Some(&(2 * drawing.items.len())), "{name}");
        let is_allowed = |c: char| c == '\n' || !c.is_control();
        assert!(text.chars().all(is_allowed), "{name}");
    }
}

#[test]
fn virtual_functions_stand_below_their_physical_one_and_are_folded() {
    let topology = large();
    let drawing = draw(&topology, TITLE);
    let texts: Vec<&str> = drawing
        .items
        .iter()
        .filter_map(|item| match &item.shape {
            Shape::Text(_, text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let count = |text: &str| texts.iter().filter(|each| each.contains(text)).count();
    assert_eq!(count("64 virtual functions"), 8);
    assert_eq!(count("13 held as vfio"), 8);
    assert_eq!(count("26 free as vfio"), 8);
    assert_eq!(count("13 free as nic"), 8);
    assert_eq!(count("12 not offered"), 8);
    let lines: Vec<String> = render_lines(&topology).into_iter().map(|line| line.text).collect();
    // Nine containers have each, and three are named, by ids as people type them.
    let held = format!("held by {0}, {0}, {0} and 6 more", "0".repeat(12));
    assert_eq!(lines.iter().filter(|line| line.contains(&held)).count(), 8);
    let folded = lines.iter().filter(|line| line.contains(" VF "));
    assert_eq!(folded.count(), 8 * 4);
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("no driver VF 4,9,14,")
                && line.ends_with(": 12 not offered")),
        "{lines:#?}"
    );
}

#[test]
fn a_function_stands_on_its_node_below_its_bridge() {
    let topology = of_sample("x2-2port-sriov");
    let node = topology.nodes.iter().find(|node| node.number == Some(1)).unwrap();
    assert_eq!(node.roots.len(), 1);
    let root = &node.roots[0];
    assert_eq!(root.name, "pci0000:64");
    assert_eq!(root.bus.functions, []);
    let bridge = &root.bus.bridges[0];
    assert_eq!(bridge.address.to_string(), "0000:64:00.0");
    let ports: Vec<String> = bridge.bus.functions.iter().map(|f| f.address.to_string()).collect();
    assert_eq!(ports, ["0000:65:00.0", "0000:65:00.1"]);
    let first = &bridge.bus.functions[0];
    assert_eq!(first.interfaces[0].name, "enp101s0f0np0");
    let numbers: Vec<Option<u32>> = first.virtual_functions.iter().map(|f| f.index).collect();
    assert_eq!(numbers, [Some(0), Some(1)]);
    let classes: Vec<(Class, Occupancy)> =
        first.devices.iter().map(|d| (d.class, d.state)).collect();
    for class in [Class::Nic, Class::Zf, Class::Ptp, Class::Pps] {
        assert!(classes.contains(&(class, Occupancy::Free)), "{classes:?}");
    }
}

#[test]
fn an_interface_that_may_move_stands_on_its_function() {
    let tree = Tree::sample("x2-2port-sriov");
    tree.file("/network.table", "link 4 enp101s0f0v0 - - - -\n");
    let text = "[discover]\noffer-netdevs = [\"enp101s0f0v0\"]\n";
    let (config, _) = Config::parse_leniently(text);
    for (leases, state) in
        [(vec![], Occupancy::Free), (vec![held(Class::Netdev, "enp101s0f0v0")], Occupancy::Held)]
    {
        let topology = configured(&tree.host(), &config, Some(&leases));
        let function = &functions(&topology)["0000:65:00.2"];
        let found: Vec<(Class, Occupancy)> =
            function.devices.iter().map(|one| (one.class, one.state)).collect();
        assert!(found.contains(&(Class::Netdev, state)), "{found:?}");
    }
}

#[test]
fn a_device_without_a_function_stands_beside_the_tree() {
    let topology = of_sample("debian13-2numa-onload-rxe-vfio");
    let last = topology.nodes.last().unwrap();
    assert_eq!(last.number, None);
    let names: Vec<&str> = last.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["rxe0", "rxe1"]);
}

#[test]
fn a_device_is_held_by_lease_and_not_by_one_that_is_over() {
    let host = sample("x2-2port-sriov");
    let state = |leases: Option<&[LeaseEntry]>, address: &str| {
        let topology = topology(&host, leases);
        assert_eq!(topology.holders_known, leases.is_some());
        let function = &functions(&topology)[address];
        let device = function.devices.iter().find(|d| d.class == Class::Vfio).unwrap();
        (device.state, device.holders.len())
    };
    let lease = held(Class::Vfio, "0000:65:00.3");
    let over = LeaseEntry { state: HolderState::Ended, ..held(Class::Vfio, "0000:65:00.6") };
    let leases = [lease, over];
    assert_eq!(state(Some(&leases), "0000:65:00.3"), (Occupancy::Held, 1));
    assert_eq!(state(Some(&leases), "0000:65:00.6"), (Occupancy::Free, 0));
    assert_eq!(state(None, "0000:65:00.3"), (Occupancy::Free, 0));
    assert_eq!(state(None, "0000:65:00.7"), (Occupancy::NotOffered, 0));
}

#[test]
fn a_shared_device_is_free_until_as_many_hold_it_as_may() {
    let host = sample("rdma-hcas");
    let (inventory, _) = discover_with_pools(&host, &Config::default());
    let device = inventory.rdma[0].device.clone();
    for (share, expected) in
        [("", Occupancy::Free), ("rdma = 2", Occupancy::Free), ("rdma = 1", Occupancy::Held)]
    {
        let config = Config::parse(&format!("[leases]\nshare = {{ {share} }}\n")).unwrap();
        let (inventory, pools) = discover_with_pools(&host, &config);
        let leases = [held(Class::Rdma, &device)];
        let topology = read(TopologyInput {
            host: &host,
            inventory: &inventory,
            pools: &pools,
            leases: Some(&leases),
            grantees: &[],
        });
        let found = functions(&topology.unwrap());
        let held: Vec<Occupancy> = found
            .values()
            .flat_map(|function| &function.devices)
            .filter(|d| d.holders.len() == 1)
            .map(|d| d.state)
            .collect();
        assert_eq!(held, [expected], "{share}");
    }
}

#[test]
fn what_a_holder_took_away_is_still_shown_as_held() {
    let host = sample("x2-2port-sriov");
    let leases = [held(Class::Rdma, "mlx5_7"), held(Class::Vfio, "0000:65:00.2")];
    let topology = topology(&host, Some(&leases));
    let last = topology.nodes.last().unwrap();
    assert_eq!((last.devices[0].name.as_str(), last.devices[0].state), ("mlx5_7", Occupancy::Held));
    let function = &functions(&topology)["0000:65:00.2"];
    let mut devices = function.devices.iter();
    assert!(devices.any(|device| device.class == Class::Vfio && device.state == Occupancy::Held));
}

#[test]
fn a_node_has_its_cpus_memory_and_pages_as_far_as_sysfs_says() {
    let tree = Tree::new();
    let node = "/sys/devices/system/node/node2";
    tree.file(&format!("{node}/cpulist"), "8-15\n");
    tree.file(&format!("{node}/meminfo"), "Node 2 MemTotal:  2048 kB\nNode 2 MemFree:  1024 kB\n");
    tree.directory("/sys/devices/system/node/node5");
    tree.file("/sys/devices/system/cpu/isolated", "2-3,12-13,20\n");
    let found = topology(&tree.host(), None);
    let [first, second] = &found.nodes[..] else {
        panic!("{found:?}");
    };
    assert_eq!(first.cpus.as_deref(), Some("8-15"));
    assert_eq!(first.isolated_cpus.as_deref(), Some("12-13"));
    let memory = NumaMemory { total_kib: 2048, free_kib: 1024 };
    assert_eq!(first.memory, Some(memory));
    assert_eq!((second.number, &second.cpus, second.memory), (Some(5), &None, None));
}

/// A real host showed `nic ens1: free` while docker's containers used it.
#[test]
fn a_nic_that_containers_use_is_shared_and_not_free() {
    let host = sample("x2-2port-sriov");
    let (inventory, pools) = discover_with_pools(&host, &Config::default());
    let nic = inventory.nics[0].device.clone();
    let grantee = |container: &str, device: String| ContainerGrants {
        container: container.to_owned(),
        engine: ContainerEngine::Docker,
        id: "3f2a".to_owned(),
        devices: vec![device],
    };
    let grantees = [grantee("redis", format!("nic={nic}")), grantee("web", "nic=all".to_owned())];
    let topology = read(TopologyInput {
        host: &host,
        inventory: &inventory,
        pools: &pools,
        leases: Some(&[]),
        grantees: &grantees,
    });
    let lines = render_lines(&topology.unwrap());
    let has_line = |text: &str| lines.iter().any(|line| line.text == text);
    assert!(has_line(&format!("nic {nic}: shared, held by redis, web")), "{lines:?}");
    assert!(has_line(&format!("zf {nic}: free")), "{lines:?}");
}

#[test]
fn containers_that_were_made_with_devices_are_listed_below_the_nodes() {
    let mut topology = of_sample("debian13-no-hardware");
    assert!(!render_lines(&topology).iter().any(|line| line.text.starts_with("Containers")));
    topology.containers = vec![ContainerGrants {
        container: "redis".to_owned(),
        engine: ContainerEngine::Docker,
        id: "3f2a".to_owned(),
        devices: vec!["hugepages=2Mi".to_owned(), "profile=latency".to_owned()],
    }];
    let lines = render_lines(&topology);
    let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    assert!(
        texts.ends_with(&[
            "Containers, as they were created",
            "redis: hugepages=2Mi, profile=latency"
        ]),
        "{texts:?}"
    );
}

#[test]
fn an_rdma_device_is_not_on_the_function_of_an_interface_of_the_same_name() {
    let tree = Tree::new();
    let function = tree.function("0000:3b:00.0", "0x020000", 0);
    tree.interface(&function, "ens1");
    // In software and without uverbs, so that it is not offered.
    let attributes = [("node_type", "1: CA")];
    tree.class_device("infiniband", "/sys/devices/virtual", "ens1", &attributes);
    let topology = configured(&tree.host(), &Config::default(), None);
    let is_rdma = |device: &&TopologyDevice| device.class == Class::Rdma;
    let on_function = &functions(&topology)["0000:3b:00.0"].devices;
    assert_eq!(on_function.iter().find(is_rdma), None);
    let last = topology.nodes.last().unwrap();
    assert_eq!(last.devices.iter().find(is_rdma).unwrap().name, "ens1");
}

#[test]
fn speeds_from_1_gbit_on_have_one_unit() {
    let speeds = [100, 1000, 2500, 25_000, 1_025].map(format_speed);
    assert_eq!(speeds, ["100 Mbit/s", "1 Gbit/s", "2.5 Gbit/s", "25 Gbit/s", "1.025 Gbit/s"]);
}

#[test]
fn a_picture_explains_only_what_it_shows() {
    let texts = |topology: &Topology| -> Vec<String> {
        let texts = draw(topology, "Devices of web1")
            .items
            .into_iter()
            .take_while(|item| item.shape != Shape::Panel)
            .filter_map(|item| match item.shape {
                Shape::Text(_, text) => Some(text),
                _ => None,
            });
        texts.collect()
    };
    let empty = texts(&topology(&Tree::new().host(), Some(&[])));
    assert_eq!(empty, ["Devices of web1", "0 devices free, 0 held, 0 not offered"]);
    let x2 = texts(&of_sample("x2-2port-sriov"));
    for shown in ["nic", "vfio", "free", "not offered", "CPU"] {
        assert!(x2.iter().any(|text| text == shown), "{shown} in {x2:?}");
    }
    for absent in ["rdma", "netdev", "held", "drained", "a GPU and its NIC"] {
        assert!(!x2.iter().any(|text| text == absent), "{absent} in {x2:?}");
    }
}

#[test]
fn nodes_are_drawn_from_left_to_right_in_the_order_of_their_numbers() {
    let topology = of_sample("debian13-4numa-21vfs");
    let headings: Vec<_> = draw(&topology, TITLE)
        .items
        .into_iter()
        .filter_map(|item| match item.shape {
            Shape::Text(TextStyle::Heading, text) => Some((item.rect, text)),
            _ => None,
        })
        .collect();
    let left = headings[0].0.x;
    for (index, (rect, text)) in headings.iter().enumerate() {
        assert_eq!(rect.x == left, index % 2 == 0, "{text}");
    }
}
