use std::path::PathBuf;

use super::read::{config_tables, table_keys};
use super::*;
use crate::bundle::Bundle;
use crate::class::Class;
use crate::host_settings::{SriovConfig, VfDriver, Vlan};
use crate::kubernetes_settings::{ListenAddress, OfferMethod};
use crate::netdev::settings::NetdevSettings;
use crate::select::{HexId, PoolSelector};
use crate::vf_config::VfConfig;

/// The sections of which there is one.
fn sections() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let is_one = |table: &str| table != "sriov" && !table.contains('*');
    config_tables().into_iter().filter(move |(table, _)| is_one(table))
}

fn refusal(text: &str) -> String {
    Config::parse(text).unwrap_err().to_string()
}

#[test]
fn a_lenient_reader_leaves_out_what_is_wrong_and_uses_the_rest() {
    let text = "[annotations]\nallows = []\nallow = [\"nic\"]\nroot-with-onload = \"refuse\"\nlive-devices = 3\n\
                [leases]\nshare = { rdma = 0, vfio = 2 }\n[[sriov]]\npf = \"ens1\"\nvfs = 70000\n[kubernetes]\nslots = 7\n";
    let (config, problems) = Config::parse_leniently(text);
    assert_eq!(config.annotations.allow, [Class::Nic]);
    assert_eq!(config.annotations.root_with_onload, RootWithOnload::Refuse);
    assert!(config.annotations.live_devices);
    assert_eq!(config.leases.share(Class::Vfio), Some(2));
    assert_eq!(config.kubernetes.slots.get(), 7);
    let problems: Vec<String> = problems.iter().map(|one| format!("{one:#}")).collect();
    for wanted in ["line 2: ", "line 5: ", "line 7: "] {
        assert!(problems.iter().any(|one| one.starts_with(wanted)), "{problems:#?}");
    }
    let (config, problems) = Config::parse_leniently("no toml");
    assert_eq!((config, problems.len()), (Config::default(), 1));
}

#[test]
fn an_empty_file_gives_the_defaults() {
    let config = Config::parse("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.cdi.kinds, Class::ALL);
    assert!(config.annotations.allow.is_empty());
    assert!(config.annotations.live_devices);
}

#[test]
fn every_known_key_can_be_set() {
    let text = r#"
        [discover]
        ignored-interfaces = ["eth0"]
        missing-nic-is-error = true
        offer-umad = true
        offer-issm = true
        offer-pf-with-vfs = true
        offer-netdevs = ["ens1f0v*"]
        [cdi]
        kinds = ["rdma", "nic"]
        hook-path = "/opt/bin/onload-hook"
        preload = "file"
        fdtable-size = 4096
        memlock = 65536
        rdma-libraries = "image"
        select-interface = true
        onload-socket = true
        ptp-write = true
        vhost-net = true
        hugepages-dir = "/mnt"
        host-library-dirs = ["/opt/lib"]
        container-library-dirs = ["/usr/lib"]
        host-tool-dir = "/opt/bin"
        container-tool-dir = ""
        tool-libraries = true
        host-profile-dir = "/opt/profiles"
        container-profile-dir = "/profiles"
        host-device-dir = "/dev"
        container-device-dir = "/dev"
        [annotations]
        allow = ["nic", "nic-plain"]
        addresses = ["192.0.2.0/24", "2001:db8::/64"]
        root-with-onload = "refuse"
        on-incompatible = "skip"
        live-devices = false
        [environment]
        allow = ["rdma"]
        [leases]
        share = { rdma = 500, vfio = 2 }
        [runtime]
        path = "/usr/bin/crun"
        [log]
        level = "debug"
        file = "/var/log/onload-ctk.log"
        [host]
        af-xdp = ["ens1"]
        af-xdp-flow-filters = false
        rdma-netns = "exclusive"
        hugepages = {"1Gi"={0=4,"1"=2}}
        [kubernetes]
        offer = "device-plugin"
        classes = ["nic", "rdma"]
        slots = 20
        resources = {"amd.com/onload"={class="nic",slots=5}}
        addresses = ["192.0.2.0/24"]
        routes = ["198.51.100.0/24"]
        mtu = 9000
        listen = ""
    "#;
    let config = Config::parse(text).unwrap();
    assert_eq!(config.cdi.kinds, [Class::Nic, Class::Rdma]);
    assert_eq!(config.cdi.memlock, Memlock::Bytes(65_536));
    assert_eq!(config.cdi.preload, Preload::File);
    assert_eq!(config.cdi.rdma_libraries, RdmaLibraries::Image);
    assert!(config.cdi.select_interface && config.cdi.vhost_net);
    assert_eq!(config.annotations.allow, [Class::Nic, Class::NicPlain]);
    assert_eq!(config.environment.allow, [Class::Rdma]);
    let hooks = HookConfig::parse(text).unwrap();
    assert_eq!(hooks.environment, config.environment);
    assert_eq!(config.runtime.path, PathBuf::from("/usr/bin/crun"));
    let kubernetes = &config.kubernetes;
    assert_eq!(kubernetes.classes.as_slice(), [Class::Nic, Class::Rdma]);
    assert_eq!((kubernetes.slots.get(), kubernetes.resources.len()), (20, 1));
    assert_eq!(kubernetes.addresses[0].to_string(), "192.0.2.0/24");
    assert_eq!(kubernetes.routes[0].to_string(), "198.51.100.0/24");
    let usual = Config::default().kubernetes.mtu;
    assert_eq!((kubernetes.mtu.get(), usual.get()), (9000, 1500));
    assert_eq!(kubernetes.listen, ListenAddress::Nowhere);
    let log = LogConfig { level: LogLevel::Debug, file: "/var/log/onload-ctk.log".into() };
    assert_eq!((&config.log, &HookConfig::from(&config).log), (&log, &log));
    assert_eq!(HookConfig::parse(text).unwrap().log, log);
    let known: usize = sections().map(|(_, keys)| keys.len()).sum();
    // Each class of a share has one too.
    assert_eq!(text.matches(" = ").count(), known + 2);
}

#[test]
fn an_interface_has_what_its_section_says() {
    let text = r#"
        [discover]
        offer-netdevs = ["ens1f0v*", "ens2"]
        [annotations]
        addresses = ["192.0.2.0/24", "2001:db8::/64"]
        [pools.fast]
        class = "netdev"
        move = "cni"
        [netdev.ens1f0v3]
        addresses = ["192.0.2.10/24", "2001:db8::10/64"]
        routes = ["198.51.100.0/24 via 192.0.2.1", "203.0.113.0/24"]
        gateway = ["192.0.2.1", "2001:db8::1"]
        mtu = 9000
        [netdev."0000:3b:02.1"]
        gateway = "192.0.2.1"
    "#;
    let config = Config::parse(text).unwrap();
    assert!(config.discover.offer_netdevs[0].matches("ens1f0v12"));
    assert_eq!(config.pools["fast"].mover, Mover::Cni);
    let settings = &config.netdev["ens1f0v3"];
    assert_eq!(settings.addresses[1].to_string(), "2001:db8::10/64");
    assert_eq!(settings.routes[1].to_string(), "203.0.113.0/24");
    assert_eq!((settings.gateway.len(), settings.mtu.unwrap().get()), (2, 9000));
    assert_eq!(config.netdev["0000:3b:02.1"].gateway.len(), 1);
    assert_eq!(config.leases.share(Class::Netdev), Some(1));
    assert_eq!(HookConfig::parse(text).unwrap(), HookConfig::from(&config));
    // A newer version may know more of an interface.
    let newer = HookConfig::parse("[netdev.ens1]\nvrf = 5\nmtu = 1500\n").unwrap();
    assert_eq!(newer.netdev["ens1"].mtu.unwrap().get(), 1500);
}

#[test]
fn what_an_interface_cannot_have_is_refused_with_its_line_and_key() {
    for case in [
        "[netdev.a]\naddresses = [\"192.0.2.0/24\"] => line 2: netdev.a.addresses: \"192.0.2.0/24\" is the address of its network",
        "[netdev.a]\nroutes = [\"192.0.2.1/24\"] => line 2: netdev.a.routes: \"192.0.2.1/24\" is no network",
        "[netdev.a]\ngateway = \"router\" => line 2: netdev.a.gateway: ",
        "[netdev.a]\nmtu = 67 => line 2: netdev.a.mtu: expected a number of bytes from 68 to 65535, found 67",
        "[netdev.a]\ngateway = [\"192.0.2.1\", \"192.0.2.2\"] => netdev.a: gateway has 192.0.2.1 and 192.0.2.2",
        "[annotations]\naddresses = [\"192.0.2.1/24\"] => line 2: annotations.addresses: \"192.0.2.1/24\" is no network",
        "[leases]\nshare = { netdev = 2 } => leases.share.netdev is 2, and an interface is in one container at a time",
    ] {
        let (text, says) = case.split_once(" => ").unwrap();
        for error in [
            format!("{:#}", Config::parse(text).unwrap_err()),
            format!("{:#}", HookConfig::parse(text).unwrap_err()),
        ] {
            assert!(error.starts_with(says), "{text:?}: {error}");
        }
    }
    for case in [
        "[netdev.a]\ngatewai = \"192.0.2.1\" => line 2: unknown key \"netdev.a.gatewai\"; did you mean \"netdev.a.gateway\"?",
        "[pools.p]\nclass = \"netdev\"\nshare = 2 => pools.p.share is 2, and an interface is in one container at a time",
        "[pools.p]\nclass = \"vfio\"\nmove = \"cni\" => pools.p.move is for class netdev, and the pool is of class vfio",
        "[pools.p]\nclass = \"netdev\"\nmove = \"cni\"\nselect = { interfaces = \"ens1v*\" } => pools.p.select: interfaces names what a CNI plugin moves away and renames; select by pf and vf",
        "[kubernetes]\naddresses = [\"192.0.2.1/24\"] => line 2: kubernetes.addresses: \"192.0.2.1/24\" is no network",
        "[kubernetes]\nroutes = [\"198.51.100.1/24\"] => line 2: kubernetes.routes: \"198.51.100.1/24\" is no network",
        "[kubernetes]\nmtu = 67 => line 2: kubernetes.mtu: expected a number of bytes from 68 to 65535, found 67",
        "[pools.p]\nclass = \"netdev\"\nmove = \"us\" => line 3: pools.p.move: ",
        "[discover]\noffer-netdevs = [\"\"] => line 2: discover.offer-netdevs: ",
    ] {
        let (text, says) = case.split_once(" => ").unwrap();
        assert!(refusal(text).starts_with(says), "{text:?}: {}", refusal(text));
    }
}

#[test]
fn a_share_is_counted_by_class_and_vfio_has_one_holder_without() {
    let text = "[leases]\nshare = { rdma = 500, nic = 1 }\n";
    let config = Config::parse(text).unwrap();
    let hook = HookConfig::parse(text).unwrap();
    assert_eq!(HookConfig::from(&config), hook);
    for (class, share) in [
        (Class::Rdma, Some(500)),
        (Class::Nic, Some(1)),
        (Class::Vfio, Some(1)),
        (Class::Ptp, None),
    ] {
        assert_eq!(hook.leases.share(class), share, "{class}");
    }
    let two = Config::parse("[leases]\nshare.vfio = 2\n").unwrap();
    assert_eq!(two.leases.share(Class::Vfio), Some(2));
}

#[test]
fn what_is_no_share_is_refused_with_its_line_and_key() {
    for case in [
        "{ rdma = 0 } => leases.share.rdma: expected a number of containers from 1 to 65536, found 0",
        "{ rdma = 65537 } => leases.share.rdma: expected a number of containers from 1 to 65536, found 65537",
        "{ rdma = -1 } => leases.share.rdma: expected a number of containers from 1 to 65536, found -1",
        "{ rdma = \"2\" } => leases.share.rdma: expected a whole number, found string \"2\"",
        "{ rdma = [2] } => leases.share.rdma: expected a whole number, found an array",
        "{ disk = 2 } => leases.share.disk: unknown class \"disk\"; known are ",
        "5 => leases.share: expected a table, found integer `5`",
        "[] => leases.share: expected a table, found an array",
    ] {
        let (value, says) = case.split_once(" => ").unwrap();
        let message = refusal(&format!("[leases]\nshare = {value}\n"));
        assert!(message.starts_with(&format!("line 2: {says}")), "{value}: {message}");
    }
}

#[test]
fn a_pool_is_read_with_every_selector() {
    let text = r#"
        [pools.fast]
        class = "vfio"
        share = 2
        [pools.fast.select]
        vendor = "15b3"
        device = ["101e", "0x1018"]
        driver = "vfio-pci"
        pf = ["ens1f0np0", "0000:3b:00.1"]
        vf = "0,2-7"
        numa = [0, 1]
        interfaces = ["ens1*"]
        link-layer = "ethernet"
        addresses = ["0000:3b:02.0"]
        [pools.slow]
        class = "rdma"
    "#;
    let config = Config::parse(text).unwrap();
    let names: Vec<&String> = config.pools.keys().collect();
    assert_eq!(names, ["fast", "slow"]);
    let fast = &config.pools["fast"];
    assert_eq!((fast.class, fast.share.map(Share::get)), (Class::Vfio, Some(2)));
    let select = &fast.select;
    assert_eq!(select.vendor, [HexId(0x15b3)]);
    assert_eq!(select.device, [HexId(0x101e), HexId(0x1018)]);
    assert_eq!(select.numa, [0, 1]);
    let words = |list: &[&dyn std::fmt::Display]| -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    };
    let [pf, other] = &select.pf[..] else {
        panic!("{:?}", select.pf);
    };
    let found = words(&[
        pf,
        other,
        &select.driver[0],
        &select.vf.as_slice()[1],
        &select.interfaces[0],
        &select.link_layer[0],
        &select.addresses[0],
    ]);
    let wanted =
        ["ens1f0np0", "0000:3b:00.1", "vfio-pci", "2-7", "ens1*", "ethernet", "0000:3b:02.0"];
    assert_eq!(found, wanted);
    let slow = PoolConfig {
        mover: Mover::Hook,
        class: Class::Rdma,
        select: PoolSelector::default(),
        share: None,
        vf: None,
    };
    assert_eq!(config.pools["slow"], slow);
    // Neither hook nor wrapper reads them.
    assert_eq!(HookConfig::parse(text).unwrap(), HookConfig::default());
}

#[test]
fn a_table_that_sets_up_functions_is_refused_where_it_cannot_be_kept() {
    let pool = |more: &str| refusal_of(&format!("[pools.fast]\n{more}\n"));
    for (more, says) in [
        (
            "class = \"rdma\"\nvf = { vlan = 1 }",
            "it is for classes netdev and vfio, and the pool is of class rdma",
        ),
        (
            "class = \"netdev\"\nmove = \"cni\"\nvf = { vlan = 1 }",
            "where move is \"cni\" the plugin sets up",
        ),
        ("class = \"vfio\"\nvf = { mac = \"02:00:00:00:10:01\" }", "mac is that of one device"),
        ("class = \"vfio\"\nvf = {}", "it sets nothing"),
        ("class = \"vfio\"\nvf = { vlans = \"5000\" }", "VLANs up to 4094"),
        ("class = \"vfio\"\nvf = { vlan-priority = 8 }", "a priority from 0 to 7"),
        ("class = \"vfio\"\nvf = { trusted = true }", "vf.trusted"),
    ] {
        let message = pool(more);
        assert!(message.contains("fast.vf") && message.contains(says), "{more}: {message}");
    }
    let text = "[pools.fast]\nclass = \"vfio\"\nvf = { vlans = \"100-199\", spoof-check = true, link-state = \"auto\" }\n\
                [netdev.ens1v0]\nvf = { vlan = 100, mac = \"02:00:00:00:10:01\", vlan-protocol = \"802.1ad\" }\n";
    let config = Config::parse(text).unwrap();
    assert!(config.pools["fast"].vf.is_some() && config.netdev["ens1v0"].vf.is_some());
    let of_both = "[netdev.a]\nvf = { vlan-priority = 1 }\n";
    assert!(refusal_of(of_both).contains("netdev.a: vf: vlan-priority and vlan-protocol"));
}

fn refusal_of(text: &str) -> String {
    format!("{:#}", Config::parse(text).unwrap_err())
}

#[test]
fn a_pool_that_is_not_understood_is_refused_with_its_line_and_key() {
    for case in [
        "class = \"disk\" => line 2: pools.fast.class: unknown class \"disk\"; known are ",
        "share = 1 => line 1: pools.fast: missing field `class`",
        "class = \"vfio\"\nshare = 0 => line 3: pools.fast.share: expected a number of containers from 1 to 65536, found 0",
        "class = \"vfio\"\nshares = 1 => line 3: unknown key \"pools.fast.shares\"; did you mean \"pools.fast.share\"?",
        "class = \"vfio\"\nselect = 5 => line 3: pools.fast.select: expected a table, found integer `5`",
        "class = \"vfio\"\nselect = [] => line 3: pools.fast.select: expected a table, found an array",
        "class = \"vfio\"\nselect.vfs = \"1\" => line 3: unknown key \"pools.fast.select.vfs\"; did you mean \"pools.fast.select.vf\"?",
        "class = \"vfio\"\nselect.vendor = \"mellanox\" => line 3: pools.fast.select.vendor: expected four hexadecimal digits such as \"15b3\", found \"mellanox\"",
        "class = \"vfio\"\nselect.vendor = 5555 => line 3: pools.fast.select.vendor: expected a string, found integer `5555`",
        "class = \"vfio\"\nselect.pf = [\"ens1\",\n\"3b:00.0\"] => line 3: pools.fast.select.pf: expected the name of an interface, or a PCI address such as \"0000:3b:00.0\", found \"3b:00.0\"",
        "class = \"vfio\"\nselect.vf = \"7-2\" => line 3: pools.fast.select.vf: expected indexes of virtual functions such as \"0,2-7\", found \"7-2\"",
        "class = \"vfio\"\nselect.vf = 7 => line 3: pools.fast.select.vf: expected a string, found integer `7`",
        "class = \"vfio\"\nselect.numa = -1 => line 3: pools.fast.select.numa: expected a whole number from 0 on, found integer `-1`",
        "class = \"vfio\"\nselect.numa = [] => line 3: pools.fast.select.numa: the list is empty, so that no device would match; leave the key out",
        "class = \"vfio\"\nselect.numa = true => line 3: pools.fast.select.numa: expected one value or an array of them, found boolean `true`",
        "class = \"vfio\"\nselect.interfaces = \"ens?\" => line 3: pools.fast.select.interfaces: expected a name of an interface, in which only \"*\" stands for other characters, found \"ens?\"",
        "class = \"vfio\"\nselect.link-layer = \"roce\" => line 3: pools.fast.select.link-layer: expected \"ethernet\" or \"infiniband\", found \"roce\"",
        "class = \"vfio\"\nselect.addresses = \"3b:00.0\" => line 3: pools.fast.select.addresses: \"3b:00.0\" is not a PCI address; want one like 0000:3b:00.0",
    ] {
        let (pool, says) = case.split_once(" => ").unwrap();
        let message = refusal(&format!("[pools.fast]\n{pool}\n"));
        assert!(message.starts_with(says), "{pool}: {message}");
    }
    for case in [
        "[pools]\nclass = \"vfio\"\n => line 2: pools.class: expected a table, found string \"vfio\"",
        "[[pools]]\nclass = \"vfio\"\n => line 1: pools: expected a table, found an array; write [pools.NAME]",
        "[[pools.fast]]\nclass = \"vfio\"\n => line 1: pools.fast: expected a table, found an array; write [pools.fast]",
        "pools = 5\n => line 1: pools: expected a table, found integer `5`",
        "[pool.fast]\nclass = \"vfio\"\n => line 1: unknown key \"pool\"; did you mean \"pools\"?",
    ] {
        let (text, says) = case.split_once(" => ").unwrap();
        assert_eq!(refusal(text), says, "{text}");
    }
}

const SRIOV: &str = r#"
    [[sriov]]
    pf = "ens1f0"
    vfs = 4
    driver = "vfio-pci"
    vlan = 100
    mac = "02:00:00:00:10:00"
    spoof-check = true
    trust = false
    [[sriov]]
    pf = "0000:81:00.0"
    vfs = 0
    driver = "kernel"
"#;

#[test]
fn the_host_s_own_settings_can_be_set() {
    let config = Config::parse(SRIOV).unwrap();
    let [first, second] = &config.sriov[..] else { panic!("{config:?}") };
    assert_eq!((first.pf.to_string(), first.vfs), ("ens1f0".to_owned(), 4));
    assert_eq!(first.driver, VfDriver::VfioPci);
    assert_eq!(first.vlan.map(Vlan::number), Some(100));
    assert_eq!(first.mac.unwrap().to_string(), "02:00:00:00:10:00");
    assert_eq!((first.spoof_check, first.trust), (Some(true), Some(false)));
    assert_eq!((second.vfs, second.driver), (0, VfDriver::Kernel));
    assert_eq!((second.vlan, second.mac), (None, None));
    let text = "[host]\naf-xdp = [\"ens1\"]\nhugepages = { 1Gi = { 0 = 4, 8 = 1 }, \"2Mi\" = { 0 = 512 } }\n";
    let host = Config::parse(text).unwrap().host;
    let pages: Vec<String> = host
        .hugepages
        .iter()
        .flat_map(|(size, nodes)| {
            nodes.iter().map(move |(node, count)| format!("{size} {node} {count}"))
        })
        .collect();
    assert_eq!(pages, ["2Mi 0 512", "1Gi 0 4", "1Gi 8 1"]);
    assert_eq!(host.af_xdp[0].as_str(), "ens1");
    assert_eq!(host.rdma_netns, None);
}

#[test]
fn a_wrong_setting_of_the_host_is_refused_with_its_line_and_key() {
    let message = |line: &str| {
        let text = format!("[[sriov]]\npf = \"ens1\"\nvfs = 4\ndriver = \"kernel\"\n{line}\n");
        refusal(&text)
    };
    for case in [
        "vlan = 4095 => line 5: sriov.vlan: expected a VLAN from 1 to 4094",
        "vlan = -1 => line 5: sriov.vlan: expected a whole number from 0 on, found integer `-1`",
        "mac = \"01:00:5e:00:00:01\" => line 5: sriov.mac: expected the hardware address of one",
        "trust = \"yes\" => line 5: sriov.trust: expected a boolean, found string \"yes\"",
        "spoofcheck = true => line 5: unknown key \"sriov.spoofcheck\"; did you mean \"sriov.spoof-check\"?",
        "mac = \"02:00:00:ff:ff:fd\" => sriov.mac 02:00:00:ff:ff:fd of ens1: counting up to 4 virtual",
        "[[sriov]]\npf = \"ens1\"\nvfs = 1\ndriver = \"kernel\" => two sections [[sriov]] have the pf ens1",
        "[[sriov]]\npf = \"ens2\"\nvfs = 1 => line 5: missing field `driver`",
    ] {
        let (line, refused) = case.split_once(" => ").unwrap();
        assert!(message(line).starts_with(refused), "{line}: {}", message(line));
    }
    for case in [
        "[sriov]\npf = \"ens1\"\n => line 1: sriov: expected an array of tables; write [[sriov]]",
        "[[host]]\n => line 1: host: expected a table, found an array",
        "[[sriov]]\npf = \"a/b\"\n => line 2: sriov.pf: expected the name of an interface or a PCI address",
        "[[sriov]]\npf = \"a\"\nvfs = 65536\n => line 3: sriov.vfs: expected a smaller number, found integer `65536`",
        "[[sriov]]\npf = \"a\"\nvfs = 1\ndriver = \"uio\"\n => line 4: sriov.driver: unknown variant `uio`",
        "[host]\nhugepages = { \"3Mi\" = { 0 = 1 } }\n => line 2: host.hugepages",
        "[host]\nhugepages = { \"2Mi\" = { node0 = 1 } }\n => line 2: host.hugepages",
        "[host]\nhugepages = { \"2Mi\" = 4 }\n => line 2: host.hugepages",
        "[host]\nrdma-netns = \"none\"\n => line 2: host.rdma-netns: unknown variant `none`",
        "[host]\naf-xdp = [\"a b\"]\n => line 2: host.af-xdp: expected the name of an interface",
    ] {
        let (text, refused) = case.split_once(" => ").unwrap();
        assert!(refusal(text).starts_with(refused), "{text}: {}", refusal(text));
    }
}

#[test]
fn hook_and_wrapper_pass_over_the_settings_of_the_host_right_or_wrong() {
    for text in [SRIOV, "sriov = 5\nhost = []\n", "[[sriov]]\nvfs = -1\n[host]\nmoods = 1\n"] {
        assert_eq!(HookConfig::parse(text).unwrap(), HookConfig::default());
    }
}

/// The section that the shipped file shows as an example, behind `#   `, or that the page lists.
fn example(lines: &[String]) -> String {
    let start = lines.iter().position(|line| line == "[[sriov]]").unwrap();
    let rest = lines[start..].iter();
    let rest: Vec<&str> = rest.map(String::as_str).take_while(|line| !line.is_empty()).collect();
    rest.join("\n")
}

#[test]
fn the_example_of_virtual_functions_holds_every_key_in_file_and_page() {
    let shipped = include_str!("../../../packaging/config.toml");
    let shipped = shipped.lines();
    let shipped = shipped.map(|line| line.strip_prefix('#').unwrap_or("").trim().to_owned());
    let page = settings_of_page(include_str!("../../../packaging/man/onload-ctk.toml.5"));
    for text in [example(&shipped.collect::<Vec<_>>()), example(&page)] {
        let config = Config::parse(&text).unwrap();
        assert_eq!(config.sriov.len(), 1, "{text}");
        let keys = table_keys::<SriovConfig>();
        for key in keys {
            assert!(text.contains(&format!("\n{key} = ")), "{key}: {text}");
        }
        assert_eq!(text.matches(" = ").count(), keys.len(), "{text}");
    }
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
    assert_eq!(
        refusal("[cdi]\nkind = [\"nic\"]\n"),
        "line 2: unknown key \"cdi.kind\"; did you mean \"cdi.kinds\"?"
    );
    assert_eq!(
        refusal("[anotations]\nallow = []\n"),
        "line 1: unknown key \"anotations\"; did you mean \"annotations\"?"
    );
    assert_eq!(
        refusal("allow = [\"nic\"]\n"),
        "line 1: unknown key \"allow\"; did you mean \"annotations.allow\"?"
    );
    assert_eq!(
        refusal("[runtime]\nxyzzyplugh = 1\n"),
        "line 2: unknown key \"runtime.xyzzyplugh\"; known are path"
    );
}

#[test]
fn a_string_without_quotes_is_told_to_want_some() {
    for (text, line, word) in [
        ("[annotations]\nallow = [nic]\n", 2, "nic"),
        ("[annotations]\nallow = [\"nic\", rdma]\n", 2, "rdma"),
        ("[annotations]\nallow = [\n  nic-plain,\n]\n", 3, "nic-plain"),
        ("[cdi]\nmemlock = unlimited\n", 2, "unlimited"),
        ("[cdi]\npreload = file\n", 2, "file"),
        ("[cdi]\npreload = inherit\n", 2, "inherit"),
        ("[discover]\noffer-umad = yes\n", 2, "yes"),
        ("[discover]\noffer-umad = True\n", 2, "True"),
    ] {
        let wanted = format!(
            "line {line}: {word} is no number, and neither true nor false; a string wants quotes: \"{word}\""
        );
        assert_eq!(refusal(text), wanted);
    }
}

#[test]
fn yaml_is_told_to_be_toml() {
    for (text, line) in [
        ("annotations:\n  allow: [nic]\n", 1),
        ("# ours\n---\nannotations:\n  allow:\n  - nic\n", 2),
        ("[annotations]\nallow: [\"nic\"]\n", 2),
        ("- nic\n", 1),
    ] {
        let wanted = format!(
            "line {line}: this is YAML, and the file is TOML: write [section], and key = value"
        );
        assert_eq!(refusal(text), wanted);
    }
}

#[test]
fn what_is_neither_is_told_as_the_parser_says_it() {
    for text in [
        "[annotations\nallow = []\n",
        "[annotations]\nallow = [\"nic\"\n",
        "[runtime]\npath = \"/x\n",
        "[annotations]\nallow = \n",
        "[log]\nfile = /var/log/x\n",
        "# a: b\n[cdi\n",
    ] {
        let message = refusal(text);
        assert!(!message.contains("YAML") && !message.contains("quotes:"), "{message}");
    }
}

#[test]
fn a_value_of_the_wrong_kind_is_refused_with_its_line_and_key() {
    for case in [
        "[cdi]\nmemlock = true\n => line 2: cdi.memlock: expected a string or an integer, found boolean `true`",
        "[cdi]\nptp-write = \"no\"\n => line 2: cdi.ptp-write: expected a boolean, found string \"no\"",
        "[cdi]\nhook-path = 5\n => line 2: cdi.hook-path: expected a string, found integer `5`",
        "[cdi]\nhost-tool-dir = [\"/a\"]\n => line 2: cdi.host-tool-dir: expected a string, found an array",
        "[cdi]\nkinds = \"nic\"\n => line 2: cdi.kinds: expected an array, found string \"nic\"",
        "[annotations]\n\nallow = [\"nic\",\n 1]\n => line 4: annotations.allow: expected a string, found integer `1`",
        "[cdi]\nfdtable-size = -1\n => line 2: cdi.fdtable-size: expected a whole number from 0 on, found integer `-1`",
        "[cdi]\npreload = 1\n => line 2: cdi.preload: expected a string",
        "[cdi]\npreload = \"always\"\n => line 2: cdi.preload: unknown variant `always`, expected one of `env`, `file`, `off`",
        "[log]\nlevel = \"loud\"\n => line 2: log.level: unknown variant `loud`, expected one of `error`, `warning`, `info`, `debug`",
        "cdi.memlock = []\n => line 1: cdi.memlock: expected a string or an integer, found an array",
        "log = { level = \"info\", file = 1 }\n => line 1: log.file: expected a string, found integer `1`",
        "cdi = 5\n => line 1: cdi: expected a table, found integer `5`",
        "\ncdi = []\n => line 2: cdi: expected a table, found an array; write [cdi]",
        "[[log]]\nlevel = \"info\"\n => line 1: log: expected a table, found an array; write [log]",
    ] {
        let (text, refused) = case.split_once(" => ").unwrap();
        assert_eq!(refusal(text), refused, "{text}");
    }
    assert!(
        refusal("[annotations]\n\nallow = [\"gpu\"]\n")
            .starts_with("line 3: annotations.allow: unknown class \"gpu\"")
    );
    assert!(refusal("[cdi]\nkinds = []\n").contains("the list of kinds is empty"));
    assert!(refusal("[cdi]\nfdtable-size = 0\n").contains("from 1 to 16777216"));
    assert!(refusal("not toml").starts_with("line 1: "));
}

#[test]
fn memlock_is_a_number_of_bytes_with_or_without_a_unit() {
    let memlock = |value: &str| Config::parse(&format!("[cdi]\nmemlock = {value}\n"));
    for (value, bytes) in [
        ("65536", 65_536),
        ("\"65536\"", 65_536),
        ("0", 0),
        ("\"0\"", 0),
        ("\"64K\"", 64 << 10),
        ("\"64Ki\"", 64 << 10),
        ("\"512M\"", 512 << 20),
        ("\"512Mi\"", 512 << 20),
        ("\"8G\"", 8 << 30),
        ("\"8Gi\"", 8 << 30),
        ("\"1T\"", 1 << 40),
        ("\"16777215T\"", 16_777_215 << 40),
        ("18446744073709551615", u64::MAX),
    ] {
        let found = memlock(value).unwrap().cdi.memlock;
        assert_eq!(found, Memlock::Bytes(bytes), "{value}");
        let hook = HookConfig::parse(&format!("[cdi]\nmemlock = {value}\n")).unwrap();
        assert_eq!(hook.cdi.memlock, found, "{value}");
    }
    assert_eq!(memlock("\"unlimited\"").unwrap().cdi.memlock, Memlock::Unlimited);
}

#[test]
fn what_is_no_limit_is_refused_with_what_would_be_one() {
    for value in [
        "\"\"",
        "\"G\"",
        "\"8GB\"",
        "\"8 G\"",
        "\" 8G\"",
        "\"8g\"",
        "\"8P\"",
        "\"8iG\"",
        "\"+8G\"",
        "\"-8G\"",
        "\"1.5G\"",
        "\"1e3\"",
        "\"0x10\"",
        "\"8_000\"",
        "\"Unlimited\"",
        "\"٣G\"",
        "-1",
    ] {
        let text = refusal(&format!("[cdi]\nmemlock = {value}\n"));
        let wanted = "line 2: cdi.memlock: expected \"unlimited\" or a number of bytes, which may end in K, M, G or T (powers of 1024) as \"8G\" does, found ";
        assert!(text.starts_with(wanted), "{value}: {text}");
    }
    for value in ["\"16777216T\"", "\"18446744073709551616\"", "\"99999999999999999999K\""] {
        let text = refusal(&format!("[cdi]\nmemlock = {value}\n"));
        assert_eq!(
            text,
            format!(
                "line 2: cdi.memlock: {value} is more than 64 bits can hold; say \"unlimited\""
            )
        );
    }
    for value in ["1.5", "true", "[]", "{}"] {
        let text = refusal(&format!("[cdi]\nmemlock = {value}\n"));
        let wanted = "line 2: cdi.memlock: expected a string or an integer, found ";
        assert!(text.starts_with(wanted), "{value}: {text}");
    }
}

#[test]
fn the_argument_of_the_hook_has_no_units() {
    assert_eq!("65536".parse::<Memlock>().unwrap(), Memlock::Bytes(65_536));
    for text in ["8G", "64Ki", "-1", "+1", ""] {
        assert_eq!(
            text.parse::<Memlock>().unwrap_err().to_string(),
            format!("memlock is \"unlimited\" or a number of bytes, not {text:?}")
        );
    }
    assert_eq!(Memlock::from_setting("8G").unwrap().to_string(), "8589934592");
}

#[test]
fn a_relative_path_is_refused() {
    assert_eq!(
        refusal("[cdi]\nhook-path = \"onload-hook\"\n"),
        "cdi.hook-path must be an absolute path, not \"onload-hook\""
    );
    assert_eq!(
        refusal("[log]\nfile = \"log\"\n"),
        "log.file must be an absolute path, not \"log\""
    );
    assert_eq!(
        refusal("[runtime]\npath = \"runc\"\n"),
        "runtime.path must be an absolute path, not \"runc\""
    );
    assert_eq!(
        refusal("[cdi]\nhost-library-dirs = [\"/a\", \"b\"]\n"),
        "cdi.host-library-dirs must be an absolute path, not \"b\""
    );
}

#[test]
fn classes_are_offered_to_kubernetes_by_one_interface_or_by_one_each() {
    let offer = |value: &str| {
        let config = Config::parse(&format!("[kubernetes]\noffer = {value}\n")).unwrap();
        let method = |class| config.kubernetes.offer.method(class);
        (method(Class::Vfio), method(Class::Nic))
    };
    assert_eq!(offer("\"dra\""), (OfferMethod::Dra, OfferMethod::Dra));
    assert_eq!(
        offer("{ vfio = \"device-plugin\" }"),
        (OfferMethod::DevicePlugin, OfferMethod::Auto)
    );
}

#[test]
fn a_resource_that_kubernetes_cannot_be_offered_is_refused() {
    for case in [
        "[kubernetes]\noffer = \"csi\"\n => line 2: kubernetes.offer: unknown variant",
        "[kubernetes]\noffer = { gpu = \"dra\" }\n => unknown class \"gpu\"",
        "[kubernetes]\noffer = 1\n => line 2: kubernetes.offer: ",
        "[kubernetes]\nclasses = [\"hugepages\"]\n => kubelet offers hugepages-2Mi",
        "[kubernetes]\nslots = 0\n => line 2: kubernetes.slots: expected a number of slots from 1 to 32768, found 0",
        "[kubernetes]\nslots = 40000\n => from 1 to 32768",
        "[kubernetes]\nlisten = \"9478\"\n => line 2: kubernetes.listen: expected ADDRESS:PORT",
        "[kubernetes]\nclass = []\n => unknown key \"kubernetes.class\"; did you mean \"kubernetes.classes\"?",
        "[kubernetes.resources]\nnic = { class = \"nic\" }\n => \"nic\" is no name of an extended resource",
        "[kubernetes.resources]\n\"a.io/x\" = { class = \"nic\", slot = 1 }\n => line 2: unknown key \"kubernetes.resources.\\\"a.io/x\\\".slot\"",
        "[kubernetes.resources]\n\"a.io/x\" = {}\n => kubernetes.resources.\"a.io/x\" needs a class or a pool, and not both",
        "[kubernetes.resources]\n\"a.io/x\" = { class = \"nic\", pool = \"p\" }\n => not both",
        "[kubernetes.resources]\n\"a.io/x\" = { pool = \"p\" }\n => there is no section [pools.p]",
        "[kubernetes.resources]\n\"a.io/x\" = { class = \"profile\" }\n => profile is no resource",
        "[kubernetes.resources]\n\"a.io/x\" = { class = \"vfio\", slots = 2 }\n => a vfio device is for one",
        "[pools.p]\nclass = \"rdma\"\nshare = 1\n[kubernetes.resources]\n\"a.io/x\" = { pool = \"p\", slots = 2 }\n => a rdma device is for one",
    ] {
        let (text, says) = case.split_once(" => ").unwrap();
        assert!(refusal(text).contains(says), "{text}: {}", refusal(text));
    }
    for text in [
        "[leases]\nshare = { vfio = 4 }\n[kubernetes.resources]\n\"a.io/x\" = { class = \"vfio\", slots = 2 }\n",
        "[pools.p]\nclass = \"rdma\"\n[kubernetes.resources]\n\"rdma/hca\" = { pool = \"p\", slots = 500 }\n",
    ] {
        assert!(Config::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn the_hook_passes_over_what_it_does_not_use() {
    let newer = r#"
        top-level = 1
        discover = "of another type"
        [cdi]
        kinds = 5
        preload = "always"
        select-interface = true
        memlock = 65536
        [annotations]
        allow = ["nic", "gpu", "later", "rdma"]
        networks = ["192.0.2.0/24"]
        root-with-onload = "refuse"
        [runtime]
        path = 7
        [environment]
        allow = ["nic"]
        [leases]
        share = { rdma = 500, gpu = "each" }
        grace = 60
        [log]
        level = "debug"
        file = "/var/log/x"
        format = "json"
        [pools.fast]
        class = "vfio"
        select = { vf = "0,2-7" }
        [kubernetes]
        offer = "later"
        [[sriov]]
        pf = "ens1"
    "#;
    let config = HookConfig::parse(newer).unwrap();
    assert_eq!(config.annotations.allow, [Class::Nic, Class::Rdma]);
    assert_eq!(config.annotations.root_with_onload, RootWithOnload::Refuse);
    assert_eq!(config.cdi.memlock, Memlock::Bytes(65_536));
    assert_eq!(config.log.file, PathBuf::from("/var/log/x"));
    assert_eq!(config.leases.share(Class::Rdma), Some(500));
    assert!(refusal(newer).contains("unknown key"));
}

#[test]
fn a_log_that_is_not_understood_is_none_and_stops_no_container() {
    for text in [
        "log = 1\n",
        "[log]\nfile = \"log\"\n",
        "[log]\nfile = \"\"\n",
        "[log]\nfile = 1\n",
        "[log]\nlevel = \"loud\"\nfile = \"/var/log/x\"\n",
        "[[log]]\nfile = \"/var/log/x\"\n",
    ] {
        let config = HookConfig::parse(text).unwrap();
        assert_eq!(config, HookConfig::default(), "{text}");
        assert_eq!(LogConfig::read(text), LogConfig::default(), "{text}");
    }
    assert_eq!(LogConfig::read("[log\n"), LogConfig::default());
    let other = "[log]\nfile = \"/var/log/x\"\n[annotations]\nallow = 7\n";
    assert!(HookConfig::parse(other).is_err());
    assert_eq!(LogConfig::read(other).file, PathBuf::from("/var/log/x"));
}

#[test]
fn the_hook_refuses_what_it_uses_and_does_not_understand() {
    let refusal = |text| HookConfig::parse(text).unwrap_err().to_string();
    for case in [
        "[annotations]\nallow = \"nic\"\n => line 2: ",
        "[annotations]\nallow = [1]\n => line 2: ",
        "[annotations]\n\nroot-with-onload = \"never\"\n => line 3: annotations.root-with-onload: unknown variant",
        "[annotations]\nlive-devices = \"no\"\n => line 2: ",
        "annotations = 1\n => line 1: ",
        "[cdi]\nmemlock = \"some\"\n => line 2: cdi.memlock: expected \"unlimited\" or",
        "[cdi]\nfdtable-size = 0\n => from 1 to 16777216",
        "[cdi]\nhook-path = \"hook\"\n => absolute path",
        "[annotations]\nallow = []\nallow = []\n => line 3: allow is there already; write each key and section once",
        "[pools\n => line 1: ",
        "[annotations]\nroot_with_onload = \"refuse\"\n => line 2: unknown key \"annotations.root_with_onload\"; did you mean \"annotations.root-with-onload\"?",
        "[leases]\nshare = 5\n => line 2: leases.share: expected a table",
        "leases = 5\n => line 1: leases: expected a table",
        "[leases]\nshare = { rdma = 0 }\n => leases.share.rdma must be a number of containers from 1 to 65536",
        "[leases]\nshare = { rdma = \"two\" }\n => leases.share.rdma must be a number",
        "[lease]\n => did you mean \"leases\"?",
        "[leases]\nShare = {}\n => line 2: unknown key",
        "[Environments]\n => did you mean \"environment\"?",
        "[environment]\nallows = [\"nic\"]\n => unknown key \"environment.allows\"",
        "[annotation]\n => did you mean \"annotations\"?",
        "[Annotations]\n => line 1: unknown key",
        "[cdi]\nMemLock = 1\n => line 2: unknown key",
    ] {
        let (text, says) = case.split_once(" => ").unwrap();
        assert!(refusal(text).contains(says), "{text}: {}", refusal(text));
    }
}

#[test]
fn the_hook_s_defaults_are_those_of_the_file() {
    let whole = HookConfig::from(&Config::default());
    assert_eq!(HookConfig::parse("").unwrap(), whole);
    assert_eq!(HookConfig::default(), whole);
    let shipped = include_str!("../../../packaging/config.toml");
    assert_eq!(HookConfig::parse(shipped).unwrap(), whole);
}

#[test]
fn the_shipped_file_holds_every_setting_with_its_default() {
    let shipped = include_str!("../../../packaging/config.toml");
    assert_eq!(Config::parse(shipped).unwrap(), Config::default());
    for (section, keys) in sections() {
        assert!(shipped.contains(&format!("[{section}]\n")), "{section}");
        for key in keys {
            assert!(shipped.contains(&format!("\n#{key} = ")), "{section}.{key}");
        }
    }
    let settings = shipped.lines().filter(|line| line.starts_with('#') && line.contains(" = "));
    let is_setting = |line: &&str| !line.starts_with("# ");
    let known: usize = sections().map(|(_, keys)| keys.len()).sum();
    assert_eq!(settings.filter(is_setting).count(), known);
}

#[test]
fn the_defaults_that_the_shipped_file_shows_are_the_real_ones() {
    let shipped = include_str!("../../../packaging/config.toml");
    // Where a key is left out, the value depends on where Onload is installed, or the host stays as it is.
    let dependent = [
        "-tool-dir = ",
        "-profile-dir = ",
        "-device-dir = ",
        "af-xdp-flow-filters = ",
        "rdma-netns = ",
    ];
    let uncommented: Vec<&str> = shipped
        .lines()
        .filter(|line| !dependent.iter().any(|key| line.contains(key)))
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => setting,
            _ => line,
        })
        .collect();
    let config = Config::parse(&uncommented.join("\n")).unwrap();
    assert_eq!(config, Config::default());
}

/// The settings of a manual page, as `[section]` and `key = default`, and those of a configuration
/// file in which they are commented out.
fn settings_of_page(page: &str) -> Vec<String> {
    let heads = page.lines().filter_map(|line| {
        let text = line.strip_prefix(".B ").or(line.strip_prefix(".SS "))?;
        let text = text.replace("\\-", "-").replace("\\(dq", "\"");
        (text.starts_with('[') || text.contains(" = ")).then_some(text)
    });
    heads.collect()
}

fn settings_of_file(file: &str) -> Vec<String> {
    let settings = file.lines().filter_map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with(' ') && setting.contains(" = ") => Some(setting),
        None if line.starts_with('[') => Some(line),
        _ => None,
    });
    settings.map(str::to_owned).collect()
}

#[test]
fn the_manual_page_has_every_key_with_its_default_and_no_other() {
    let shipped = settings_of_file(include_str!("../../../packaging/config.toml"));
    let page = settings_of_page(include_str!("../../../packaging/man/onload-ctk.toml.5"));
    let is_pool = |setting: &String| setting.starts_with("[pools.");
    let pools = page.iter().position(is_pool).unwrap();
    let page = &page[..pools];
    assert_eq!(page, shipped);
    // The shipped file has them all, and so has the page.
    let known = sections().map(|(section, keys)| {
        let mut wanted = vec![format!("[{section}]")];
        wanted.extend(keys.iter().map(|key| (*key).to_owned()));
        wanted
    });
    let mut known: Vec<String> = known.flatten().collect();
    let key = |setting: &String| setting.split(" = ").next().unwrap_or_default().to_owned();
    let mut found: Vec<String> = page.iter().map(key).collect();
    known.sort();
    found.sort();
    assert_eq!(found, known);
}

#[test]
fn the_manual_page_has_every_key_of_an_interface_with_a_value_that_is_read() {
    let page = settings_of_page(include_str!("../../../packaging/man/onload-ctk.toml.5"));
    let is_netdev = |setting: &&String| !setting.starts_with("[netdev.");
    let page: Vec<&str> = page
        .iter()
        .skip_while(is_netdev)
        .map(String::as_str)
        .take_while(|setting| *setting != "[[sriov]]")
        .collect();
    let written = page.iter().filter_map(|setting| Some(setting.split_once(" = ")?.0));
    let known = [table_keys::<NetdevSettings>(), table_keys::<VfConfig>()].concat();
    assert_eq!(written.collect::<Vec<_>>(), known);
    // `vf` is the table with the rest.
    let text = page.into_iter().filter(|setting| !setting.starts_with("vf = "));
    let config = Config::parse(&text.collect::<Vec<_>>().join("\n")).unwrap();
    let netdev = &config.netdev["NAME"];
    assert!(!netdev.routes.is_empty() && netdev.mtu.is_some(), "{netdev:?}");
}

#[test]
fn the_manual_page_has_every_key_of_a_bundle_with_a_value_that_is_read() {
    let page = settings_of_page(include_str!("../../../packaging/man/onload-ctk.toml.5"));
    let page = page
        .iter()
        .skip_while(|setting| !setting.starts_with("[bundles."))
        .take_while(|setting| !setting.starts_with("[netdev."));
    let page: Vec<&str> = page.map(String::as_str).collect();
    let written = page.iter().filter_map(|setting| Some(setting.split_once(" = ")?.0));
    assert_eq!(written.collect::<Vec<_>>(), table_keys::<Bundle>());
    let config = Config::parse(&page.join("\n")).unwrap();
    let bundle = &config.bundles["NAME"];
    assert!(bundle.cpus.is_some() && bundle.mems.is_some(), "{bundle:?}");
}

#[test]
fn a_section_that_is_no_bundle_is_refused_where_it_stands() {
    for case in [
        "[bundles.hft]\ndevices = [\"gpu=0\"]\n => bundles.hft: \"gpu=0\": unknown class \"gpu\"",
        "[bundles.hft]\n => line 1: bundles.hft: a bundle needs devices",
        "[bundles.hft]\ndevice = [\"nic=ens1\"]\n => line 2: unknown key \"bundles.hft.device\"; did you mean \"bundles.hft.devices\"?",
        "[bundles.hft]\ndevices = \"nic=ens1\"\n => line 2: bundles.hft.devices: expected an array",
        "[bundles.hft]\ndevices = [\"nic=ens1\"]\ncpus = 3\n => line 3: bundles.hft.cpus: expected a string",
        "[bundles.hft]\ndevices = [\"nic=ens1\"]\ncpus = \"8-2\"\n => bundles.hft: cpus is \"numa\"",
        "[bundles.a]\ndevices = [\"nic=ens1\"]\n[bundles.b]\ndevices = [\"bundle=a\"]\n => bundles.b: \"bundle=a\": a bundle cannot hold another one",
        "[[bundles]]\n => line 1: bundles: expected a table, found an array",
        "[pools.p]\nclass = \"bundle\"\n => pools.p.class is bundle, which stands for devices",
        "[leases]\nshare = { bundle = 2 }\n => a class of leases.share is bundle",
        "[bundle.hft]\n => did you mean \"bundles\"?",
    ] {
        let (text, says) = case.split_once(" => ").unwrap();
        assert!(refusal(text).contains(says), "{text}: {}", refusal(text));
    }
}

#[test]
fn the_hook_takes_a_bundle_that_it_understands_and_knows_of_another_by_name() {
    let text = "[bundles.hft]\ndevices = [\"nic=ens1\"]\ncpus = \"numa\"\nlater = 1\n\
                [bundles.next]\ndevices = [\"gpu=0\"]\n[bundles.odd]\ndevices = 5\n";
    let config = HookConfig::parse(text).unwrap();
    let known: Vec<(&str, bool)> =
        config.bundles.iter().map(|(name, bundle)| (name.as_str(), bundle.is_some())).collect();
    assert_eq!(known, [("hft", true), ("next", false), ("odd", false)]);
    let whole = "[bundles.hft]\ndevices = [\"nic=ens1\"]\n";
    let whole = HookConfig::from(&Config::parse(whole).unwrap());
    assert!(whole.bundles["hft"].is_some());
}

#[test]
fn the_manual_page_has_every_key_of_a_pool_with_a_value_that_is_read() {
    let page = settings_of_page(include_str!("../../../packaging/man/onload-ctk.toml.5"));
    let is_pool = |setting: &&String| !setting.starts_with("[pools.");
    let is_of_pools = |setting: &&String| !setting.starts_with("[bundles.");
    let page = page.iter().skip_while(is_pool).take_while(is_of_pools);
    let page: Vec<&String> = page.collect();
    let written = page.iter().filter_map(|setting| Some(setting.split_once(" = ")?.0));
    let known: Vec<&str> = ["class", "share", "move", "select", "vf"]
        .into_iter()
        .chain(table_keys::<PoolSelector>().iter().copied())
        .collect();
    assert_eq!(written.collect::<Vec<_>>(), known);
    // `select` is the table with the rest.
    let text: Vec<&str> = page.iter().map(|setting| setting.as_str()).collect();
    let text = text.join("\n").replace("select = {}\n", "");
    let config = Config::parse(&text).unwrap();
    let pool = &config.pools["NAME"];
    assert!(pool.share.is_some() && !pool.select.addresses.is_empty(), "{pool:?}");
}

#[test]
fn the_pools_that_the_shipped_file_shows_are_read() {
    let shipped = include_str!("../../../packaging/config.toml");
    let examples = shipped.lines().skip_while(|line| !line.starts_with("# [pools."));
    let examples: Vec<&str> = examples.map(|line| line.trim_start_matches("# ")).collect();
    let config = Config::parse(&examples.join("\n")).unwrap();
    let pools: Vec<_> =
        config.pools.iter().map(|(name, pool)| (name.as_str(), pool.class)).collect();
    assert_eq!(pools, [("fast", Class::Vfio), ("roce", Class::Rdma)]);
}
