use std::fs;
use std::path::{Path, PathBuf};

use super::read::{config_tables, table_keys};
use super::*;
use crate::bundle::Bundle;
use crate::class::Class;
use crate::host_settings::{SriovConfig, VfDriver, Vlan};
use crate::kubernetes_settings::{ListenAddress, OfferMethod};
use crate::netdev::settings::NetdevSettings;
use crate::select::{HexId, PoolSelector};
use crate::vf_config::VfConfig;
use onload_sys::error::Error;

/// The sections of which there is one.
fn sections() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let is_one = |table: &str| table != "sriov" && !table.contains('*');
    config_tables().into_iter().filter(move |(table, _)| is_one(table))
}

fn refusal(text: &str) -> String {
    Config::parse(text).unwrap_err().to_string()
}

/// Checks a file of cases, separated by blank lines: a configuration, and its error after `=> `.
/// `UPDATE_GOLDEN=1` writes the errors.
fn check_rejected(file: &str, parse: fn(&str) -> Error) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(file);
    let mut cases = Vec::new();
    for case in fs::read_to_string(&path).unwrap().trim_end_matches('\n').split("\n\n") {
        let Some((text, expected)) = case.split_once("=> ") else {
            assert!(case.lines().all(|line| line.starts_with('#')), "no error: {case}");
            cases.push(case.to_owned());
            continue;
        };
        let error = format!("{:#}", parse(text));
        if std::env::var_os("UPDATE_GOLDEN").is_none() {
            assert_eq!(error, expected, "{text}");
        }
        cases.push(format!("{text}=> {error}"));
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, cases.join("\n\n") + "\n").unwrap();
    }
}

#[test]
fn invalid_configurations_are_rejected() {
    check_rejected("config-rejected.case", |text| Config::parse(text).unwrap_err());
    check_rejected("hook-config-rejected.case", |text| HookConfig::parse(text).unwrap_err());
}

#[test]
fn the_lenient_reader_ignores_and_reports_errors() {
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
fn an_interface_has_the_settings_of_its_section() {
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
fn the_default_share_of_vfio_is_one() {
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
fn a_pool_may_have_every_selector() {
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
fn pools_and_interfaces_set_up_their_virtual_functions() {
    let text = "[pools.fast]\nclass = \"vfio\"\nvf = { vlans = \"100-199\", spoof-check = true, link-state = \"auto\" }\n\
                [netdev.ens1v0]\nvf = { vlan = 100, mac = \"02:00:00:00:10:01\", vlan-protocol = \"802.1ad\" }\n";
    let config = Config::parse(text).unwrap();
    assert!(config.pools["fast"].vf.is_some() && config.netdev["ens1v0"].vf.is_some());
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
fn the_settings_of_the_host_are_parsed() {
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
fn hook_and_wrapper_ignore_the_settings_of_the_host() {
    for text in [SRIOV, "sriov = 5\nhost = []\n", "[[sriov]]\nvfs = -1\n[host]\nmoods = 1\n"] {
        assert_eq!(HookConfig::parse(text).unwrap(), HookConfig::default());
    }
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
fn the_hook_s_memlock_argument_has_no_units() {
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
fn classes_are_offered_to_kubernetes_by_one_interface_or_by_one_each() {
    let offer = |value: &str| {
        let config = Config::parse(&format!("[kubernetes]\noffer = {value}\n")).unwrap();
        let method = |class| config.kubernetes.offer.method(class);
        (method(Class::Vfio), method(Class::Nic))
    };
    assert_eq!(offer("\"dra\""), (OfferMethod::Dra, OfferMethod::Dra));
    assert_eq!(
        offer("{ vfio = \"device-plugin\" }"),
        (OfferMethod::DevicePlugin, OfferMethod::DevicePlugin)
    );
    assert_eq!(offer("{ vfio = \"dra\" }"), (OfferMethod::Dra, OfferMethod::DevicePlugin));
}

#[test]
fn a_resource_of_kubernetes_has_the_slots_of_its_class_or_pool() {
    for text in [
        "[leases]\nshare = { vfio = 4 }\n[kubernetes.resources]\n\"a.io/x\" = { class = \"vfio\", slots = 2 }\n",
        "[pools.p]\nclass = \"rdma\"\n[kubernetes.resources]\n\"rdma/hca\" = { pool = \"p\", slots = 500 }\n",
    ] {
        assert!(Config::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn the_hook_ignores_unknown_and_unused_keys() {
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
fn an_invalid_log_section_disables_the_file() {
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
fn the_hook_has_the_defaults_of_the_file() {
    let whole = HookConfig::from(&Config::default());
    assert_eq!(HookConfig::parse("").unwrap(), whole);
    assert_eq!(HookConfig::default(), whole);
    let shipped = include_str!("../../../packaging/config.toml");
    assert_eq!(HookConfig::parse(shipped).unwrap(), whole);
}

#[test]
fn the_hook_keeps_the_names_of_invalid_bundles() {
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

const SHIPPED: &str = include_str!("../../../packaging/config.toml");
const PAGE: &str = include_str!("../../../packaging/man/onload-ctk.toml.5");

/// Returns the settings of the shipped file, as `[section]` and `key = default`.
fn shipped_settings() -> Vec<&'static str> {
    SHIPPED
        .lines()
        .filter_map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') && setting.contains(" = ") => Some(setting),
            None if line.starts_with('[') => Some(line),
            _ => None,
        })
        .collect()
}

/// Returns the settings of the manual page, as `[section]` and `key = value`.
fn page_settings() -> Vec<String> {
    PAGE.lines()
        .filter_map(|line| line.strip_prefix(".B ").or(line.strip_prefix(".SS ")))
        .map(|text| text.replace("\\-", "-").replace("\\(dq", "\""))
        .filter(|text| text.starts_with('[') || text.contains(" = "))
        .collect()
}

#[test]
fn the_shipped_file_and_the_manual_page_have_every_key_with_its_default() {
    assert_eq!(Config::parse(SHIPPED).unwrap(), Config::default());
    let shipped = shipped_settings();
    let page = page_settings();
    let pools = page.iter().position(|setting| setting.starts_with("[pools.")).unwrap();
    assert_eq!(page[..pools], shipped);
    let mut known: Vec<String> = sections()
        .flat_map(|(section, keys)| {
            keys.iter().map(|key| (*key).to_owned()).chain([format!("[{section}]")])
        })
        .collect();
    let mut found: Vec<&str> =
        shipped.iter().map(|setting| setting.split(" = ").next().unwrap_or_default()).collect();
    known.sort();
    found.sort_unstable();
    assert_eq!(found, known);
    // The defaults of these keys depend on the host.
    let dependent = [
        "-tool-dir = ",
        "-profile-dir = ",
        "-device-dir = ",
        "af-xdp-flow-filters = ",
        "rdma-netns = ",
    ];
    let mut fixed = shipped;
    fixed.retain(|setting| !dependent.iter().any(|key| setting.contains(key)));
    assert_eq!(Config::parse(&fixed.join("\n")).unwrap(), Config::default());
}

#[test]
fn the_manual_page_has_every_key_of_the_examples() {
    let page = page_settings();
    let vf_keys = table_keys::<VfConfig>();
    let pool_keys = [table_keys::<PoolConfig>(), table_keys::<PoolSelector>()].concat();
    for (start, end, keys) in [
        ("[pools.", "[bundles.", pool_keys),
        ("[bundles.", "[netdev.", table_keys::<Bundle>().to_vec()),
        ("[netdev.", "[[sriov]]", [table_keys::<NetdevSettings>(), vf_keys].concat()),
        ("[[sriov]]", "[", table_keys::<SriovConfig>().to_vec()),
    ] {
        let first = page.iter().position(|setting| setting.starts_with(start)).unwrap();
        let rest = &page[first..];
        let length = rest
            .iter()
            .skip(1)
            .position(|setting| setting.starts_with(end))
            .map_or(rest.len(), |index| index + 1);
        let settings = &rest[..length];
        let mut found: Vec<&str> =
            settings.iter().filter_map(|setting| Some(setting.split_once(" = ")?.0)).collect();
        let mut known = keys;
        found.sort_unstable();
        known.sort_unstable();
        assert_eq!(found, known, "{start}");
        // The tables `select` and `vf` follow as sections.
        let text: Vec<&str> = settings
            .iter()
            .map(String::as_str)
            .filter(|setting| !["select = ", "vf = "].iter().any(|key| setting.starts_with(key)))
            .collect();
        let config = Config::parse(&text.join("\n")).unwrap();
        assert_ne!(config, Config::default(), "{start}");
    }
}

#[test]
fn the_examples_of_the_shipped_file_are_valid() {
    let pools: Vec<&str> = SHIPPED
        .lines()
        .skip_while(|line| !line.starts_with("# [pools."))
        .map(|line| line.trim_start_matches("# "))
        .collect();
    let config = Config::parse(&pools.join("\n")).unwrap();
    let pools: Vec<_> =
        config.pools.iter().map(|(name, pool)| (name.as_str(), pool.class)).collect();
    assert_eq!(pools, [("fast", Class::Vfio), ("roce", Class::Rdma)]);
    let sriov: Vec<&str> = SHIPPED
        .lines()
        .map(|line| line.strip_prefix('#').unwrap_or_default().trim())
        .skip_while(|line| *line != "[[sriov]]")
        .take_while(|line| !line.is_empty())
        .collect();
    let mut found: Vec<&str> =
        sriov.iter().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    let mut known = table_keys::<SriovConfig>().to_vec();
    found.sort_unstable();
    known.sort_unstable();
    assert_eq!(found, known);
    assert_eq!(Config::parse(&sriov.join("\n")).unwrap().sriov.len(), 1);
}
