//! docs/migrate.md: the configuration of another device plugin and ours beside it mean the same. Theirs is read
//! here by what their documentation says, from the files of a captured host; ours by the program itself.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::kubernetes_settings::{ResourceName, ResourceSettings, ResourceSource, SlotCount};
use onload_host::devices::discover;
use onload_host::host::Host;
use onload_host::offers::{HostDevice, Survey};
use onload_test_tree::Tree;
use onload_test_tree::sample::{sources, whole};
use serde::Deserialize;

/// A section of the page.
fn section(title: &str) -> String {
    let page = fs::read_to_string(sources().join("docs/migrate.md")).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {title}\n")).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

/// The only block of a language in a section.
fn block(section: &str, language: &str) -> String {
    let fence = format!("```{language}\n");
    let mut blocks = section.split(&fence).skip(1);
    let block = blocks.next().unwrap().split_once("```").unwrap().0.to_owned();
    assert!(blocks.next().is_none(), "two blocks of {language}");
    block
}

fn ours(section: &str) -> Config {
    Config::parse(&block(section, "toml")).unwrap()
}

fn resource<'c>(config: &'c Config, name: &str) -> &'c ResourceSettings {
    let name = ResourceName::try_from(name.to_owned()).unwrap();
    &config.kubernetes.resources[&name]
}

/// The PCI addresses that a resource of ours has on a host.
fn chosen_by_us(config: &Config, name: &str, host: &str) -> BTreeSet<String> {
    let Some(ResourceSource::Pool(pool)) = resource(config, name).source() else {
        panic!("{name} is of no pool");
    };
    let tree = Tree::sample(host);
    let survey = Survey::read(&Host::open(tree.root()).unwrap(), config, &[]).unwrap();
    let devices: Vec<HostDevice> = survey.offers();
    devices
        .iter()
        .filter(|device| device.pools.iter().any(|other| other == pool))
        .map(|device| device.pci.unwrap().to_string())
        .collect()
}

/// A PCI function as their plugins look at it.
struct Function {
    address: String,
    directory: PathBuf,
}

impl Function {
    fn all(tree: &Tree) -> Vec<Function> {
        let devices = tree.path("sys/bus/pci/devices");
        let functions = fs::read_dir(devices).unwrap().map(Result::unwrap).map(|entry| Function {
            address: entry.file_name().into_string().unwrap(),
            directory: entry.path(),
        });
        functions.collect()
    }

    fn number(&self, file: &str) -> String {
        let text = fs::read_to_string(self.directory.join(file)).unwrap();
        text.trim().trim_start_matches("0x").to_owned()
    }

    fn link(&self, name: &str) -> Option<String> {
        let target = fs::read_link(self.directory.join(name)).ok()?;
        Some(target.file_name().unwrap().to_str().unwrap().to_owned())
    }

    fn names(&self, directory: &str) -> Vec<String> {
        fs::read_dir(self.directory.join(directory))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// What the link type of its interfaces is called. A capture has that of its RDMA ports, to which the
    /// interfaces belong.
    fn link_types(&self) -> Vec<String> {
        let mut types = Vec::new();
        for device in self.names("infiniband") {
            let ports = format!("infiniband/{device}/ports");
            for port in self.names(&ports) {
                let path = self.directory.join(&ports).join(port).join("link_layer");
                types.push(match fs::read_to_string(path).unwrap().trim() {
                    "Ethernet" => "ether".to_owned(),
                    "InfiniBand" => "infiniband".to_owned(),
                    other => panic!("link layer {other}"),
                });
            }
        }
        types
    }

    fn is_rdma(&self) -> bool {
        !self.names("infiniband").is_empty()
    }

    /// Its number among the functions of its physical one, and that one.
    fn virtual_function(&self) -> Option<(usize, Function)> {
        let physical =
            Function { address: self.link("physfn")?, directory: self.directory.join("physfn") };
        let index = (0..256)
            .find(|index| physical.link(&format!("virtfn{index}")).as_ref() == Some(&self.address));
        Some((index.unwrap(), physical))
    }
}

/// The selectors of both plugins, under the names of each.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Selectors {
    vendors: Vec<String>,
    #[serde(alias = "deviceIDs")]
    devices: Vec<String>,
    drivers: Vec<String>,
    if_names: Vec<String>,
    link_types: Vec<String>,
    pf_names: Vec<String>,
    root_devices: Vec<String>,
}

impl Selectors {
    /// Elements of one selector are alternatives, and all selectors have to match.
    fn match_function(&self, function: &Function) -> bool {
        let any = |wanted: &[String], found: &[String]| {
            wanted.is_empty() || wanted.iter().any(|wanted| found.contains(wanted))
        };
        any(&self.vendors, &[function.number("vendor")])
            && any(&self.devices, &[function.number("device")])
            && any(&self.drivers, &function.link("driver").into_iter().collect::<Vec<_>>())
            && any(&self.if_names, &function.names("net"))
            && (self.link_types.is_empty() || any(&self.link_types, &function.link_types()))
            && self.match_physical(function)
    }

    fn match_physical(&self, function: &Function) -> bool {
        if self.pf_names.is_empty() && self.root_devices.is_empty() {
            return true;
        }
        let Some((index, physical)) = function.virtual_function() else {
            return false;
        };
        let by_name = self.pf_names.iter().any(|wanted| {
            let (name, range) = wanted.split_once('#').unwrap_or((wanted, "0-255"));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let range = first.parse::<usize>().unwrap()..=last.parse().unwrap();
            physical.names("net").iter().any(|interface| interface == name)
                && range.contains(&index)
        });
        by_name || self.root_devices.contains(&physical.address)
    }
}

fn chosen_by(selectors: &Selectors, host: &str, is_rdma: bool) -> BTreeSet<String> {
    let tree = Tree::sample(host);
    Function::all(&tree)
        .into_iter()
        .filter(|function| function.is_rdma() == is_rdma && selectors.match_function(function))
        .map(|function| function.address)
        .collect()
}

/// Compares every resource on every host, each of which has to have a device on one of them.
fn compare(config: &Config, theirs: &BTreeMap<String, (Selectors, bool)>, hosts: &[&str]) {
    let names: Vec<String> = config.kubernetes.resources.keys().map(ToString::to_string).collect();
    assert_eq!(names, theirs.keys().cloned().collect::<Vec<_>>());
    for (name, (selectors, is_rdma)) in theirs {
        let mut found = 0;
        for host in hosts {
            let expected = chosen_by(selectors, host, *is_rdma);
            assert_eq!(chosen_by_us(config, name, host), expected, "{name} on {host}");
            found += expected.len();
        }
        assert!(found > 0, "{name} has no device on any host");
    }
}

const HOSTS: [&str; 2] = ["rdma-hcas", "debian12-stand-ins"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RdmaConfig {
    config_list: Vec<RdmaResource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RdmaResource {
    resource_name: String,
    resource_prefix: Option<String>,
    rdma_hca_max: u32,
    selectors: Option<Selectors>,
    devices: Option<Vec<String>>,
}

#[test]
fn the_rdma_shared_device_plugin_s_resources_have_the_same_devices_here() {
    let section = section("k8s-rdma-shared-dev-plugin");
    let config = ours(&section);
    let theirs: RdmaConfig = serde_json::from_str(&block(&section, "json")).unwrap();
    let mut selectors = BTreeMap::new();
    for entry in theirs.config_list {
        let prefix = entry.resource_prefix.as_deref().unwrap_or("rdma");
        let name = format!("{prefix}/{}", entry.resource_name);
        let slots = resource(&config, &name).slots.map(SlotCount::get);
        assert_eq!(slots, Some(entry.rdma_hca_max), "{name}");
        let by_name = || Selectors { if_names: entry.devices.unwrap(), ..Selectors::default() };
        selectors.insert(name, (entry.selectors.unwrap_or_else(by_name), true));
    }
    compare(&config, &selectors, &HOSTS);
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SriovConfig {
    resource_list: Vec<SriovResource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SriovResource {
    resource_name: String,
    resource_prefix: String,
    #[serde(default)]
    is_rdma: bool,
    selectors: Selectors,
}

#[test]
fn the_sriov_device_plugin_s_resources_have_the_same_devices_here() {
    let section = section("sriov-network-device-plugin");
    let config = ours(&section);
    let theirs: SriovConfig = serde_json::from_str(&block(&section, "json")).unwrap();
    let resources = theirs.resource_list.into_iter().map(|entry| {
        let name = format!("{}/{}", entry.resource_prefix, entry.resource_name);
        let Some(ResourceSource::Pool(pool)) = resource(&config, &name).source() else {
            panic!("{name} is of no pool");
        };
        let class = if entry.is_rdma { Class::Rdma } else { Class::Vfio };
        assert_eq!(config.pools[pool].class, class, "{name}");
        (name, (entry.selectors, entry.is_rdma))
    });
    compare(&config, &resources.collect(), &HOSTS);
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OnloadResource {
    device_plugin: OnloadPlugin,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(dead_code, reason = "here libraries and tools are always mounted")]
struct OnloadPlugin {
    max_pods_per_node: u32,
    set_preload: bool,
    mount_onload: bool,
}

#[test]
fn kubernetes_onload_s_resource_has_the_same_preload_and_number_here() {
    let section = section("kubernetes-onload");
    let config = ours(&section);
    let theirs: OnloadResource = serde_saphyr::from_str(&block(&section, "yaml")).unwrap();
    let plugin = theirs.device_plugin;
    let resource = resource(&config, "amd.com/onload");
    let class = if plugin.set_preload { Class::Nic } else { Class::NicPlain };
    assert_eq!(resource.source(), Some(ResourceSource::Class(class)));
    let slots = resource.slots.map(SlotCount::get);
    assert_eq!(slots, Some(plugin.max_pods_per_node));
    let row = "| `setPreload: false` | `class = \"nic-plain\"` |";
    assert!(section.contains(row));
}

#[test]
fn a_selector_that_no_device_matches_would_be_noticed() {
    let section = section("k8s-rdma-shared-dev-plugin");
    let other = block(&section, "toml").replace("vendor = \"15b3\"", "vendor = \"15b4\"");
    let config = Config::parse(&other).unwrap();
    let inventory = discover(&Host::open(&whole(HOSTS[0])).unwrap(), &config);
    assert!(!inventory.rdma.is_empty());
    let name = "rdma/hca_shared_devices_a";
    assert!(chosen_by_us(&config, name, HOSTS[0]).is_empty());
    assert!(!chosen_by_us(&ours(&section), name, HOSTS[0]).is_empty());
}

/// The configuration in docs/kubernetes-device-plugin.md is valid.
#[test]
fn the_configuration_of_the_page_about_kubernetes_is_one() {
    let page = fs::read_to_string(sources().join("docs/kubernetes-device-plugin.md")).unwrap();
    let config = Config::parse(&block(&page, "toml")).unwrap();
    assert_eq!(config.kubernetes.resources.len(), 2);
}
