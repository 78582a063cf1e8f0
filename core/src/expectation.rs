//! The state of a device node at the time when its specification was written: `--expect
//! NODE=CLASS:ID[@PCI][#MAJOR:MINOR]`.
//!
//! The kernel numbers nodes in the order in which devices appear. After a reboot, a reset or a
//! reload of the driver, neither a node's name nor its number identifies the device behind it. This
//! module only parses; [`the sysfs of the hook`] compares.

use std::fmt;
use std::str::FromStr;

use onload_sys::device_number::DeviceNumber;
use onload_sys::error::{Error, Result, bail, error};
use onload_sys::pci::PciAddress;
use onload_sys::text::Quoted;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expectation {
    /// The node's path in the container. For rdma and vfio, the last component is the kernel's name
    /// of the node.
    pub node: String,
    pub device: ExpectedDevice,
    /// The numbers that the generator saw; `None` in a specification of version 0.1. They are not
    /// compared with the container's. They make the specification change when a number changes: a
    /// long-lived engine reads a node's number once per loaded specification, and keeps it until
    /// the file changes.
    pub number: Option<DeviceNumber>,
}

/// The device that a node must belong to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpectedDevice {
    /// `rdma:IBDEV[@PCI]`: an RDMA device by name, and its PCI function if it has one.
    Rdma { ibdev: String, pci: Option<PciAddress> },
    /// `vfio:PCI`: a PCI function that is a member of the node's group, or has the node as its
    /// cdev.
    Vfio { pci: PciAddress },
    /// `nic:onload` and the like: the only node with that name in its driver.
    Driver(&'static DriverNode),
    /// `ptp:NAME[@PCI]` and `pps:NAME[@PCI]`: a clock by name, and its PCI function if it has one.
    /// The PPS source of a PTP clock has the function of that clock.
    Clock {
        /// `ptp` or `pps`, which is also the kernel's class.
        class: &'static str,
        /// The kernel's name, for instance `ptp0`.
        name: String,
        pci: Option<PciAddress>,
    },
}

/// A node that its driver has once per host.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverNode {
    pub class: &'static str,
    /// The ID, which is the kernel's name of the device.
    pub name: &'static str,
    pub source: NumberSource,
}

/// The place where the kernel shows the number of a driver's node.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NumberSource {
    /// In sysfs, as a device of this class.
    Sysfs {
        class: &'static str,
        /// The number that the kernel reserves for the node. The node exists with this number even
        /// before its module is loaded, which opening it does; only afterwards sysfs lists it.
        reserved: Option<DeviceNumber>,
    },
    /// Only in `/proc/devices`, by name: the driver creates no device in sysfs, and another program
    /// creates the node.
    ProcDevices,
}

/// The nodes that exist once per host. Each of Onload's three has a class with its name (Onload,
/// `src/include/ci/driver/chrdev.h`). The `misc` nodes are misc devices: two get their minor number
/// when the module is loaded (`drivers/infiniband/core/ucma.c`, `drivers/iommu/iommufd/main.c`),
/// and two have a reserved one (`include/linux/miscdevice.h`). GDRCopy's driver registers only a
/// major number, and its packages create the node (`src/gdrdrv/gdrdrv.c` and `insmod.sh` of
/// GDRCopy, 1.3 to 2.6).
static DRIVER_NODES: [DriverNode; 9] = [
    driver_node("nic", "onload", sysfs_source("onload", None)),
    driver_node("nic", "onload_epoll", sysfs_source("onload_epoll", None)),
    driver_node("zf", "sfc_char", sysfs_source("sfc_char", None)),
    driver_node("misc", "rdma_cm", sysfs_source("misc", None)),
    driver_node("misc", "vfio", sysfs_source("misc", None)),
    driver_node("misc", "iommu", sysfs_source("misc", None)),
    driver_node("misc", "vhost-net", sysfs_source("misc", misc_number(238))),
    driver_node("misc", "tun", sysfs_source("misc", misc_number(200))),
    driver_node("gdrcopy", "gdrdrv", NumberSource::ProcDevices),
];

const fn driver_node(class: &'static str, name: &'static str, source: NumberSource) -> DriverNode {
    DriverNode { class, name, source }
}

const fn sysfs_source(class: &'static str, reserved: Option<DeviceNumber>) -> NumberSource {
    NumberSource::Sysfs { class, reserved }
}

/// Returns a number with the major number of misc devices (`include/uapi/linux/major.h`).
const fn misc_number(minor: u32) -> Option<DeviceNumber> {
    Some(DeviceNumber { major: 10, minor })
}

impl ExpectedDevice {
    /// Finds the driver's node with this class and name.
    pub fn find_driver(class: &str, name: &str) -> Option<ExpectedDevice> {
        DRIVER_NODES
            .iter()
            .find(|node| node.class == class && node.name == name)
            .map(ExpectedDevice::Driver)
    }

    /// Finds the driver's node with this name in any class. Returns `None` if no driver has one
    /// such node per host.
    pub fn find_driver_node(name: &str) -> Option<ExpectedDevice> {
        DRIVER_NODES.iter().find(|node| node.name == name).map(ExpectedDevice::Driver)
    }

    /// Returns the clock with this class and name. Returns `None` if no clock can have the name.
    pub fn for_clock(class: &str, name: &str, pci: Option<PciAddress>) -> Option<ExpectedDevice> {
        let class = ["ptp", "pps"].into_iter().find(|known| *known == class)?;
        let number = name.strip_prefix(class)?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(ExpectedDevice::Clock { class, name: name.to_owned(), pci })
    }
}

impl Expectation {
    /// Returns the kernel's name of the node.
    pub fn node_name(&self) -> &str {
        self.node.rsplit('/').next().unwrap_or_default()
    }
}

impl FromStr for Expectation {
    type Err = Error;

    /// NODE extends to the first `=`, CLASS to the first `:` after it. The last `#` starts the
    /// numbers, and before them the last `@` starts PCI, but only if the text after it has the
    /// right form: the name of an RDMA device may contain both characters.
    fn from_str(text: &str) -> Result<Self> {
        let Some((node, (class, id))) =
            text.split_once('=').and_then(|(node, device)| Some((node, device.split_once(':')?)))
        else {
            bail!("{} is not NODE=CLASS:ID[@PCI][#MAJOR:MINOR]", Quoted(text));
        };
        let (id, number) = split_suffix(id, '#');
        Ok(Expectation { device: parse_device(class, id)?, node: parse_node_path(node)?, number })
    }
}

/// Splits a text at the last separator, if the rest can be parsed.
fn split_suffix<T: FromStr>(text: &str, separator: char) -> (&str, Option<T>) {
    if let Some((before, suffix)) = text.rsplit_once(separator)
        && let Ok(value) = suffix.parse()
    {
        return (before, Some(value));
    }
    (text, None)
}

fn parse_device(class: &str, id: &str) -> Result<ExpectedDevice> {
    let device = match class {
        "rdma" => return parse_rdma(id),
        "vfio" => return Ok(ExpectedDevice::Vfio { pci: id.parse()? }),
        "ptp" | "pps" => {
            let (name, pci) = split_suffix(id, '@');
            ExpectedDevice::for_clock(class, name, pci)
        }
        _ if DRIVER_NODES.iter().any(|node| node.class == class) => {
            ExpectedDevice::find_driver(class, id)
        }
        other => bail!(
            "class {} has no expectations; known classes are rdma, vfio, nic, zf, ptp, pps, gdrcopy and misc",
            Quoted(other)
        ),
    };
    device.ok_or_else(|| error!("{class} device {} with a node not found", Quoted(id)))
}

fn parse_rdma(id: &str) -> Result<ExpectedDevice> {
    let (ibdev, pci) = split_suffix(id, '@');
    // The name becomes a file name below /sys.
    if matches!(ibdev, "" | "." | "..") || ibdev.contains(['/', '\0']) {
        bail!("{} cannot be the name of an RDMA device", Quoted(ibdev));
    }
    Ok(ExpectedDevice::Rdma { ibdev: ibdev.to_owned(), pci })
}

fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('\0')
}

fn parse_node_path(path: &str) -> Result<String> {
    match path.strip_prefix('/') {
        Some(rest) if rest.split('/').all(is_plain_name) => Ok(path.to_owned()),
        _ => bail!("{} is not the absolute path of a device node", Quoted(path)),
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.node, self.device)?;
        self.number.map_or(Ok(()), |number| write!(f, "#{number}"))
    }
}

impl fmt::Display for ExpectedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, name, pci) = match self {
            ExpectedDevice::Vfio { pci } => return write!(f, "vfio:{pci}"),
            ExpectedDevice::Rdma { ibdev, pci } => ("rdma", ibdev.as_str(), *pci),
            ExpectedDevice::Driver(node) => (node.class, node.name, None),
            ExpectedDevice::Clock { class, name, pci } => (*class, name.as_str(), *pci),
        };
        write!(f, "{class}:{name}")?;
        pci.map_or(Ok(()), |pci| write!(f, "@{pci}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Expectation {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        text.parse::<Expectation>().unwrap_err().to_string()
    }

    #[test]
    fn every_form_survives_a_round_trip() {
        for text in [
            "/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0#231:192",
            "/dev/infiniband/umad1=rdma:rxe0#231:1",
            "/dev/infiniband/uverbs0=rdma:a@b:c=d@10000:3b:00.0#231:192",
            "/dev/vfio/15=vfio:0000:81:10.0#241:0",
            "/dev/vfio/devices/vfio3=vfio:0000:81:10.0#511:3",
            "/dev/onload=nic:onload#243:0",
            "/dev/onload_epoll=nic:onload_epoll#242:0",
            "/dev/sfc_char=zf:sfc_char#244:0",
            "/dev/infiniband/rdma_cm=misc:rdma_cm#10:260",
            "/dev/vfio/vfio=misc:vfio#10:196",
            "/dev/iommu=misc:iommu#10:120",
            "/dev/vhost-net=misc:vhost-net#10:238",
            "/dev/net/tun=misc:tun#10:200",
            "/dev/gdrdrv=gdrcopy:gdrdrv#510:0",
            "/dev/ptp0=ptp:ptp0@0000:41:00.0#247:0",
            "/dev/ptp12=ptp:ptp12#247:12",
            "/dev/pps0=pps:pps0#248:0",
            "/dev/pps0=pps:pps0@0000:41:00.0#248:0",
        ] {
            assert_eq!(parse(text).to_string(), text);
            let numbers = parse(text).number.unwrap().to_string();
            assert!(text.ends_with(&format!("#{numbers}")), "{text}");
        }
    }

    #[test]
    fn an_expectation_of_an_old_specification_has_no_numbers() {
        for text in [
            "/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0",
            "/dev/infiniband/umad1=rdma:rxe0",
            "/dev/infiniband/umad1=rdma:mlx#5",
            "/dev/vfio/15=vfio:0000:81:10.0",
        ] {
            assert_eq!(parse(text).to_string(), text);
            assert_eq!(parse(text).number, None, "{text}");
        }
    }

    /// Name, function and numbers of an RDMA device, with `-` for those missing.
    fn split(id: &str) -> String {
        let expect = parse(&format!("/dev/infiniband/uverbs0=rdma:{id}"));
        let ExpectedDevice::Rdma { ibdev, pci } = expect.device else {
            panic!("not rdma");
        };
        let pci = pci.map_or("-".to_owned(), |pci| pci.to_string());
        let numbers = expect.number.map_or("-".to_owned(), |n| n.to_string());
        format!("{ibdev} {pci} {numbers}")
    }

    #[test]
    fn a_device_name_may_contain_the_separators() {
        assert_eq!(split("a@b@0000:3b:00.0"), "a@b 0000:3b:00.0 -");
        assert_eq!(split("a#b#231:192"), "a#b - 231:192");
        assert_eq!(split("a#1:2#231:192"), "a#1:2 - 231:192");
        assert_eq!(split("a#1:2@b@0000:3b:00.0#231:192"), "a#1:2@b 0000:3b:00.0 231:192");
        assert_eq!(
            split("a@0000:3b:00.1@0000:3b:00.0#231:192"),
            "a@0000:3b:00.1 0000:3b:00.0 231:192"
        );
        // A suffix that is not a function or a number belongs to the name of the device.
        assert_eq!(split("a@b#231:192"), "a@b - 231:192");
        assert_eq!(split("a@0000:3b:00.0#x"), "a@0000:3b:00.0#x - -");
        assert_eq!(split("a#231"), "a#231 - -");
        assert_eq!(split("a#4294967296:0"), "a#4294967296:0 - -");
        assert_eq!(split("a#-1:0"), "a#-1:0 - -");
    }

    #[test]
    fn the_node_name_is_its_last_component() {
        assert_eq!(parse("/x/y/uverbs7=rdma:m").node_name(), "uverbs7");
    }

    #[test]
    fn invalid_expectations_are_rejected() {
        assert!(refusal("").contains("is not NODE=CLASS:ID"));
        assert!(refusal("/dev/x").contains("is not NODE=CLASS:ID"));
        assert!(refusal("/dev/x=rdma").contains("is not NODE=CLASS:ID"));
        assert!(
            refusal("/dev/x=numa:0")
                .contains("has no expectations; known classes are rdma, vfio, nic")
        );
        assert!(refusal("/dev/x=rdma:").contains("cannot be the name of an RDMA device"));
        assert!(refusal("/dev/x=rdma:../../x").contains("cannot be the name of an RDMA device"));
        assert!(refusal("/dev/vfio/1=vfio:0000:81:10").contains("not a PCI address"));
        assert!(refusal("/dev/vfio/1=vfio:0000:81:10.0/..").contains("not a PCI address"));
        assert!(refusal("/dev/vfio/1=vfio:../../a.0").contains("not a PCI address"));
    }

    #[test]
    fn an_unknown_id_of_a_class_is_rejected() {
        for text in [
            "nic:ens1",
            "nic:sfc_char",
            "nic:onload@0000:3b:00.0",
            "nic:onload#243",
            "nic:onload#243:",
            "nic:",
            "zf:onload",
            "misc:kvm",
            "misc:vfio/vfio",
            "misc:net/tun",
            "misc:vhost-vsock",
            "misc:gdrdrv",
            "gdrcopy:gdrdrv1",
            "ptp:pps0",
            "ptp:ptp",
            "ptp:ptp0/..",
            "ptp:ptp0@0000:41:00",
            "ptp:ptp0#247:-1",
            "pps:ptp0",
            "pps:../pps0",
        ] {
            let (class, id) = text.split_once(':').unwrap();
            assert_eq!(
                refusal(&format!("/dev/x={text}")),
                format!("{class} device {id:?} with a node not found")
            );
        }
        for numbers in ["#", "#1", "#1:", "#:1", "#a:b", "#1:2:3", "#4294967296:0"] {
            let text = format!("/dev/vfio/1=vfio:0000:81:10.0{numbers}");
            assert!(refusal(&text).contains("not a PCI address"), "{text}");
        }
    }

    #[test]
    fn a_node_must_be_an_absolute_path_without_dots() {
        for node in ["dev/x", "/", "/dev/", "/dev//x", "/dev/../x", "/dev/.", "/dev/x\0y"] {
            assert!(refusal(&format!("{node}=rdma:m")).contains("device node"), "{node}");
        }
    }
}
