//! What a device node was when its specification was written: `--expect NODE=CLASS:ID[@PCI]`.
//!
//! The kernel numbers nodes in the order in which devices appear, so a node's name says nothing
//! about the device behind it after a reboot or a reset. Parsing only; [`crate::sysfs`] compares.

use std::fmt;
use std::str::FromStr;

use crate::text::Quoted;

/// What a node must still be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expect {
    /// The node's path in the container; its last component is the kernel's name of the node.
    pub node: String,
    /// The device that it must belong to.
    pub device: Expected,
}

/// The device that a node must belong to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expected {
    /// `rdma:IBDEV[@PCI]`: an RDMA device by name, and the function it sits on where it has one.
    Rdma {
        /// The name in /sys/class/infiniband.
        ibdev: String,
        /// The PCI function; none for a device without one.
        pci: Option<PciAddress>,
    },
    /// `vfio:PCI`: a PCI function that is a member of the node's group, or has the node as cdev.
    Vfio {
        /// The function.
        pci: PciAddress,
    },
}

/// A PCI address as sysfs spells it: domain of four or more hexadecimal digits, bus, device and
/// function, `0000:3b:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress(String);

impl PciAddress {
    /// The address as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PciAddress {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let hex = |part: &str, least: usize, most: usize| {
            (least..=most).contains(&part.len())
                && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let legal = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let known = hex(domain, 4, 8) && hex(bus, 2, 2) && hex(device, 2, 2);
            (known && hex(function, 1, 1)).then_some(())
        };
        legal()
            .map(|()| PciAddress(text.to_owned()))
            .ok_or_else(|| ExpectError::Pci(Quoted(text).to_string()))
    }
}

/// Why an expectation cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpectError {
    /// It has not the form.
    #[error("{0} is not NODE=CLASS:ID[@PCI]")]
    Form(String),
    /// The node is no path of a node.
    #[error("{0} is not the absolute path of a device node")]
    Node(String),
    /// A class whose nodes are not expected to be anything.
    #[error("class {0} has no expectation; known are rdma and vfio")]
    Class(String),
    /// The name cannot be that of a device.
    #[error("{0} is no name of an RDMA device")]
    Name(String),
    /// Not an address.
    #[error("{0} is no PCI address; want one like 0000:3b:00.0")]
    Pci(String),
}

impl Expect {
    /// The kernel's name of the node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        self.node.rsplit('/').next().unwrap_or_default()
    }
}

impl FromStr for Expect {
    type Err = ExpectError;

    /// NODE reaches up to the first `=`, CLASS up to the first `:` behind it, and the last `@`
    /// begins PCI.
    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let form = || ExpectError::Form(Quoted(text).to_string());
        let (node, device) = text.split_once('=').ok_or_else(form)?;
        let (class, id) = device.split_once(':').ok_or_else(form)?;
        let device = match class {
            "rdma" => rdma(id)?,
            "vfio" => Expected::Vfio { pci: id.parse()? },
            other => return Err(ExpectError::Class(Quoted(other).to_string())),
        };
        Ok(Expect {
            node: node_path(node)?,
            device,
        })
    }
}

fn rdma(id: &str) -> Result<Expected, ExpectError> {
    let (ibdev, pci) = match id.rsplit_once('@') {
        Some((ibdev, pci)) => (ibdev, Some(pci.parse()?)),
        None => (id, None),
    };
    // The name becomes a file name below /sys.
    if matches!(ibdev, "" | "." | "..") || ibdev.contains(['/', '\0']) {
        return Err(ExpectError::Name(Quoted(ibdev).to_string()));
    }
    Ok(Expected::Rdma {
        ibdev: ibdev.to_owned(),
        pci,
    })
}

fn node_path(path: &str) -> Result<String, ExpectError> {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    match path.strip_prefix('/') {
        Some(rest) if rest.split('/').all(plain) => Ok(path.to_owned()),
        _ => Err(ExpectError::Node(Quoted(path).to_string())),
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.node, self.device)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Rdma { ibdev, pci: None } => write!(f, "rdma:{ibdev}"),
            Expected::Rdma {
                ibdev,
                pci: Some(pci),
            } => write!(f, "rdma:{ibdev}@{pci}"),
            Expected::Vfio { pci } => write!(f, "vfio:{pci}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Expect {
        text.parse().unwrap()
    }

    fn refusal(text: &str) -> String {
        text.parse::<Expect>().unwrap_err().to_string()
    }

    #[test]
    fn every_form_is_read_and_written_the_same() {
        for text in [
            "/dev/infiniband/uverbs0=rdma:mlx5_0@0000:3b:00.0",
            "/dev/infiniband/umad1=rdma:rxe0",
            "/dev/infiniband/uverbs0=rdma:a@b:c=d@10000:3b:00.0",
            "/dev/vfio/15=vfio:0000:81:10.0",
            "/dev/vfio/devices/vfio3=vfio:0000:81:10.0",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn the_last_at_sign_begins_the_pci_address() {
        let Expected::Rdma { ibdev, pci } =
            parse("/dev/infiniband/uverbs0=rdma:a@b@0000:3b:00.0").device
        else {
            panic!("not rdma");
        };
        assert_eq!(ibdev, "a@b");
        assert_eq!(pci.unwrap().as_str(), "0000:3b:00.0");
    }

    #[test]
    fn the_node_name_is_its_last_component() {
        assert_eq!(parse("/x/y/uverbs7=rdma:m").node_name(), "uverbs7");
    }

    #[test]
    fn what_is_no_expectation_is_refused() {
        assert!(refusal("").contains("is not NODE=CLASS:ID"));
        assert!(refusal("/dev/x").contains("is not NODE=CLASS:ID"));
        assert!(refusal("/dev/x=rdma").contains("is not NODE=CLASS:ID"));
        assert!(refusal("/dev/x=nic:ens1").contains("has no expectation"));
        assert!(refusal("/dev/x=rdma:").contains("no name of an RDMA device"));
        assert!(refusal("/dev/x=rdma:../../x").contains("no name of an RDMA device"));
        assert!(refusal("/dev/x=rdma:m@").contains("no PCI address"));
        assert!(refusal("/dev/vfio/1=vfio:0000:81:10").contains("no PCI address"));
        assert!(refusal("/dev/vfio/1=vfio:0000:81:10.0/..").contains("no PCI address"));
        assert!(refusal("/dev/vfio/1=vfio:../../a.0").contains("no PCI address"));
    }

    #[test]
    fn a_node_must_be_an_absolute_path_without_dots() {
        for node in [
            "dev/x",
            "/",
            "/dev/",
            "/dev//x",
            "/dev/../x",
            "/dev/.",
            "/dev/x\0y",
        ] {
            assert!(
                refusal(&format!("{node}=rdma:m")).contains("device node"),
                "{node}"
            );
        }
    }
}
