//! Bundles: the operator's names for devices of several classes that belong together, and for the
//! CPUs and memory of the containers that get them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::class::Class;
use crate::device_ref::{DeviceRef, MAX_NAMES};
use onload_sys::cpu_list;
use onload_sys::error::{Error, Result, bail, error};

/// A section `[bundles.NAME]`, checked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "BundleText")]
pub struct Bundle {
    pub devices: BTreeMap<Class, Vec<DeviceRef>>,
    pub cpus: Option<Cpus>,
    pub mems: Option<Mems>,
}

/// The CPUs of a bundle's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// All CPUs of the devices' NUMA nodes.
    Numa,
    /// The CPUs of these nodes that the kernel's scheduler leaves free (kernel-parameters.txt,
    /// `isolcpus`).
    Isolated,
    List(BTreeSet<u32>),
}

/// The NUMA nodes for the memory of a bundle's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mems {
    /// The devices' NUMA nodes.
    Numa,
    List(BTreeSet<u32>),
}

const NUMA: &str = "numa";
const ISOLATED: &str = "isolated";

/// A section `[bundles.NAME]`.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub(crate) struct BundleText {
    /// The devices, each as CLASS=NAME. NAME may also be "all", a pool, or POOL*N for N members of
    /// a pool. A bundle cannot contain another bundle.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    devices: Vec<String>,
    /// The CPUs of the container: "numa", all CPUs of the devices' NUMA nodes; "isolated", those of
    /// them that are isolated from the scheduler (isolcpus); or a list such as "0-3,8". Only an
    /// annotation sets them, and only through onload-container-runtime and podman's hook. All CPUs
    /// of a list, and at least one CPU for "numa" and "isolated", must belong to the control group
    /// above the container, or the container does not start. CPUs that the engine sets
    /// (--cpuset-cpus) take precedence, and a container of a pod keeps those that kubelet assigns.
    cpus: Option<String>,
    /// The NUMA nodes for the memory of the container: "numa", the devices' NUMA nodes, or a list
    /// such as "0,1". The same rules apply as for cpus.
    mems: Option<String>,
}

impl TryFrom<BundleText> for Bundle {
    type Error = Error;

    fn try_from(bundle_text: BundleText) -> Result<Self> {
        let devices = parse_devices(&bundle_text.devices)?;
        let cpus = bundle_text.cpus.map(|text| parse_cpus(&text)).transpose()?;
        let mems = bundle_text.mems.map(|text| parse_mems(&text)).transpose()?;
        let numa_setting = match (&cpus, &mems) {
            (Some(Cpus::Numa), _) => Some(("cpus", NUMA)),
            (Some(Cpus::Isolated), _) => Some(("cpus", ISOLATED)),
            (_, Some(Mems::Numa)) => Some(("mems", NUMA)),
            _ => None,
        };
        if let Some((key, value)) = numa_setting
            && !devices.keys().any(|class| class.can_be_on_function())
        {
            bail!(
                "{key} = {value:?} needs a device on a NUMA node, but none of its devices has one; \
                 set a list, or add a device"
            );
        }
        Ok(Bundle { devices, cpus, mems })
    }
}

fn parse_devices(texts: &[String]) -> Result<BTreeMap<Class, Vec<DeviceRef>>> {
    if texts.is_empty() {
        bail!("a bundle needs devices, such as devices = [\"nic=ens1\", \"hugepages=2Mi\"]");
    }
    let mut devices: BTreeMap<Class, Vec<DeviceRef>> = BTreeMap::new();
    let mut total = 0;
    for text in texts {
        let (class, device_ref) = parse_device(text)?;
        total += device_ref.count.unwrap_or(1);
        if total > MAX_NAMES {
            bail!("a bundle may have at most {MAX_NAMES} devices");
        }
        let device_refs = devices.entry(class).or_default();
        if device_refs.iter().any(|other| other.name == device_ref.name) {
            let device = format!("{class}={}", device_ref.name);
            bail!("{device:?} is listed twice; remove one");
        }
        device_refs.push(device_ref);
    }
    Ok(devices)
}

fn parse_device(text: &str) -> Result<(Class, DeviceRef)> {
    let Some((class, name)) = text.split_once('=') else {
        bail!(
            "expected a device as CLASS=NAME or CLASS=POOL*N, such as \"nic=ens1\", found {text:?}"
        );
    };
    let class = class.parse().map_err(|error| error!("{text:?}: {error}"))?;
    if class == Class::Bundle {
        bail!("{text:?}: a bundle cannot contain another one; list its devices");
    }
    let device_ref = name.parse().map_err(|error| error!("{text:?}: {error}"))?;
    Ok((class, device_ref))
}

fn parse_cpus(text: &str) -> Result<Cpus> {
    Ok(match (text, cpu_list::parse_user_list(text)) {
        (NUMA, _) => Cpus::Numa,
        (ISOLATED, _) => Cpus::Isolated,
        (_, Ok(cpus)) => Cpus::List(cpus),
        _ => bail!("cpus is \"numa\", \"isolated\" or a list such as \"0-3,8\", not {text:?}"),
    })
}

fn parse_mems(text: &str) -> Result<Mems> {
    Ok(match (text, cpu_list::parse_user_list(text)) {
        (NUMA, _) => Mems::Numa,
        (_, Ok(nodes)) => Mems::List(nodes),
        _ => bail!("mems is \"numa\" or a list of NUMA nodes such as \"0,1\", not {text:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(devices: &[&str], cpus: Option<&str>, mems: Option<&str>) -> Result<Bundle> {
        Bundle::try_from(BundleText {
            devices: devices.iter().map(ToString::to_string).collect(),
            cpus: cpus.map(str::to_owned),
            mems: mems.map(str::to_owned),
        })
    }

    #[test]
    fn a_bundle_has_devices_of_several_classes() {
        let words = ["nic=ens1", "vfio=fast*2", "nic=ens2", "vfio=any"];
        let bundle = read(&words, Some("isolated"), Some("0,1")).unwrap();
        let names = |class| -> Vec<String> {
            bundle.devices[&class].iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(Class::Nic), ["ens1", "ens2"]);
        assert_eq!(names(Class::Vfio), ["fast*2", "any"]);
        assert_eq!(bundle.cpus, Some(Cpus::Isolated));
        assert_eq!(bundle.mems, Some(Mems::List(BTreeSet::from([0, 1]))));
        let bundle = read(&["nic=all"], Some("4-7,2"), Some("numa")).unwrap();
        assert_eq!(bundle.cpus, Some(Cpus::List([2, 4, 5, 6, 7].into())));
        assert_eq!(bundle.mems, Some(Mems::Numa));
        let plain = read(&["profile=latency"], None, None).unwrap();
        assert_eq!((plain.cpus, plain.mems), (None, None));
    }

    #[test]
    fn invalid_bundles_are_rejected() {
        let many = ["vfio=any*128", "nic=ens1"];
        for (devices, says) in [
            (&[][..], "a bundle needs devices"),
            (&["nic"], "found \"nic\""),
            (&[""], "found \"\""),
            (&["gpu=0"], "\"gpu=0\": unknown class \"gpu\""),
            (&["nic="], "\"nic=\": expected the name"),
            (&["nic=../x"], "\"nic=../x\": expected the name"),
            (&["vfio=any*0"], "with N from 1 to 128"),
            (&["vfio=any*129"], "with N from 1 to 128"),
            (&["bundle=other"], "cannot contain another one"),
            (&["nic=ens1", "nic=ens1"], "\"nic=ens1\" is listed twice"),
            (&["vfio=any", "vfio=any*2"], "\"vfio=any\" is listed twice"),
            (&many, "at most 128 devices"),
        ] {
            let refused = read(devices, None, None).unwrap_err().to_string();
            assert!(refused.contains(says), "{devices:?}: {refused}");
        }
        for (cpus, mems, says) in [
            (Some("all"), None, "not \"all\""),
            (Some(""), None, "not \"\""),
            (Some("8-2"), None, "not \"8-2\""),
            (Some("0;1"), None, "not \"0;1\""),
            (None, Some("isolated"), "mems is \"numa\" or a list"),
            (None, Some("0-"), "not \"0-\""),
        ] {
            let refused = read(&["nic=ens1"], cpus, mems).unwrap_err().to_string();
            assert!(refused.contains(says), "{cpus:?} {mems:?}: {refused}");
        }
    }

    #[test]
    fn numa_settings_require_a_device_with_a_numa_node() {
        let plain = ["profile=latency", "hugepages=2Mi"];
        for (cpus, mems) in [(Some("numa"), None), (Some("isolated"), None), (None, Some("numa"))] {
            let refused = read(&plain, cpus, mems).unwrap_err().to_string();
            assert!(refused.contains("none of its devices has one"), "{refused}");
        }
        read(&plain, Some("0"), Some("0")).unwrap();
        read(&["hugepages=2Mi", "rdma=mlx5_0"], Some("numa"), None).unwrap();
    }
}
