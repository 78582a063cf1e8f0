//! Checks the device nodes of a request on this host: each exists, is a character device, has the
//! number that its driver currently assigns, and belongs to the device that its specification was
//! written for.

use std::collections::BTreeMap;
use std::io;

use onload_cdi::DeviceNode;
use onload_cdi::oci::{Node, NodeInfo, NodeKind};
use onload_core::class::Class;
use onload_core::expect::{Expect, Expected};
use onload_core::text::Chain;

use crate::host::specs::{Entry, Specs, expectations};
use crate::host::sysfs::{Numbers, Sysfs, SysfsError, rdma_class};

/// Why a node is not given to the container.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It does not exist. podman takes a runtime that says "No such file or directory" for one that is
    /// missing.
    #[error(
        "{key}: device node {path} does not exist; is the driver loaded? run `onload-ctk cdi generate`"
    )]
    Absent {
        /// Where it is requested, for people.
        key: String,
        /// The node on the host.
        path: String,
    },
    #[error(
        "{key}: device node {path}: {error}; is the driver loaded? run `onload-ctk cdi generate`"
    )]
    Unexamined {
        /// Where it is requested, for people.
        key: String,
        /// The node on the host.
        path: String,
        error: io::Error,
    },
    /// It is not a character device.
    #[error("{key}: {path} is not a character device")]
    NotCharacter {
        /// Where it is requested, for people.
        key: String,
        /// The node on the host.
        path: String,
    },
    /// The specification states numbers other than the node's.
    #[error(
        "{key}: device node {path} is {found}, but its specification says {written}; remove type, major and minor from it"
    )]
    Written {
        /// Where it is requested, for people.
        key: String,
        /// The node on the host.
        path: String,
        /// The numbers that it has.
        found: Numbers,
        written: String,
    },
    /// It belongs to another device, or to none.
    #[error("{key}: {}{}", Chain(.error), remedy(.error))]
    Other {
        /// Where it is requested, for people.
        key: String,
        /// The device it belongs to.
        error: SysfsError,
    },
    /// The device it should belong to is unknown.
    #[error(
        "{key}: the device of node {path} is unknown: its specification has neither an --expect nor an entry named after the device"
    )]
    Unowned {
        /// Where it is requested, for people.
        key: String,
        /// The node in the container.
        path: String,
    },
}

impl onload_core::error::Typed for NodeError {}

/// The remedy for an unexpected node. The node was examined just now, so a wrong number belongs to
/// the node in /dev.
fn remedy(error: &SysfsError) -> &'static str {
    match error {
        SysfsError::Numbers { .. } => {
            "; the node in /dev is not its driver's own: remove it, then run `systemctl start onload-cdi.service`"
        }
        SysfsError::Gone { .. } | SysfsError::Other { .. } => {
            "; run `systemctl start onload-cdi.service`"
        }
        SysfsError::NoSuchNode { .. } | SysfsError::Read { .. } => "",
    }
}

/// The nodes as found, by their paths on the host, so that exactly what was checked is written.
pub(super) type Nodes = BTreeMap<String, Node>;

/// Checks every node of the entries.
///
/// # Errors
/// [`NodeError`] names the annotation and the node.
pub(super) fn check(
    entries: &[Entry<'_>],
    specs: &Specs,
    host: &dyn NodeInfo,
    sysfs: &Sysfs,
) -> Result<Nodes, NodeError> {
    let mut nodes = Nodes::default();
    for entry in entries {
        let check = NodeCheck {
            entry,
            specs,
            host,
            sysfs,
        };
        check.entry(&mut nodes)?;
    }
    Ok(nodes)
}

struct NodeCheck<'a> {
    entry: &'a Entry<'a>,
    specs: &'a Specs,
    host: &'a dyn NodeInfo,
    sysfs: &'a Sysfs,
}

impl NodeCheck<'_> {
    fn entry(&self, nodes: &mut Nodes) -> Result<(), NodeError> {
        let expected = expectations(&self.entry.found);
        let shared = &self.entry.found.spec.container_edits.device_nodes;
        let own = &self.entry.found.device.container_edits.device_nodes;
        for node in shared.iter().chain(own) {
            let found = self.look(node)?;
            nodes.insert(node.source().to_owned(), found);
            let numbers = Numbers {
                major: found.major,
                minor: found.minor,
            };
            let told: Vec<&Expect> = expected.iter().filter(|e| e.node == node.path).collect();
            for expect in &told {
                self.compare(expect, numbers)?;
            }
            if told.is_empty()
                && let Some(expect) = self.derive(node)?
            {
                self.compare(&expect, numbers)?;
            }
        }
        Ok(())
    }

    fn look(&self, node: &DeviceNode) -> Result<Node, NodeError> {
        let path = node.source().to_owned();
        let found = match self.host.node(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(NodeError::Absent {
                    key: self.key(),
                    path,
                });
            }
            Err(error) => {
                return Err(NodeError::Unexamined {
                    key: self.key(),
                    path,
                    error,
                });
            }
        };
        if found.kind != NodeKind::Char {
            return Err(NodeError::NotCharacter {
                key: self.key(),
                path,
            });
        }
        let kind = node.type_.as_deref().unwrap_or_default();
        let major = node.major.unwrap_or_default();
        let same_kind = matches!(kind, "" | "c" | "u");
        let minor = node.minor.unwrap_or_default();
        let same_numbers = (major, minor) == (found.major.into(), found.minor.into());
        if same_kind && (major == 0 || same_numbers) {
            return Ok(found);
        }
        Err(NodeError::Written {
            key: self.key(),
            path,
            found: Numbers {
                major: found.major,
                minor: found.minor,
            },
            written: format!("{kind} {major}:{minor}"),
        })
    }

    /// The expectation for a node whose specification has none: an entry is named after its device.
    fn derive(&self, node: &DeviceNode) -> Result<Option<Expect>, NodeError> {
        let name = node.path.rsplit('/').next().unwrap_or_default();
        let unowned = || NodeError::Unowned {
            key: self.key(),
            path: node.path.clone(),
        };
        let device = match self.entry.class {
            Class::Rdma if rdma_class(name).is_some() => {
                let ibdev = match self.entry.found.name.device().as_str() {
                    "all" => self.member(&node.path, name).ok_or_else(unowned)?,
                    own => own.to_owned(),
                };
                let pci = self.sysfs.function_of(&ibdev);
                Expected::Rdma { ibdev, pci }
            }
            Class::Vfio if Expected::driver("misc", name).is_none() => {
                let address = self.entry.found.name.device().as_str();
                Expected::Vfio {
                    pci: address.parse().map_err(|_| unowned())?,
                }
            }
            // A driver's node is identified by its name on the host, whatever its name in the
            // container.
            class => {
                let kernels = node.source().rsplit('/').next().unwrap_or_default();
                let Some(device) = self.of_driver(class, kernels) else {
                    return Ok(None);
                };
                device
            }
        };
        Ok(Some(Expect {
            node: node.path.clone(),
            device,
            written: None,
        }))
    }

    /// The device behind a node that has the same name on every host, or is named after its clock.
    fn of_driver(&self, class: Class, name: &str) -> Option<Expected> {
        match class {
            Class::Nic | Class::NicPlain | Class::NicNodes | Class::Zf => {
                Expected::driver("nic", name).or_else(|| Expected::driver("zf", name))
            }
            Class::Rdma | Class::Vfio => Expected::driver("misc", name),
            Class::Ptp | Class::Pps => {
                let pci = self.sysfs.function_of_clock(class.as_str(), name);
                Expected::clock(class.as_str(), name, pci)
            }
            Class::Profile | Class::Hugepages | Class::Netdev | Class::Bundle => None,
        }
    }

    /// The entry that a node of `all` belongs to: the one named after the device that owns the node
    /// now, or else any other, which the comparison then refuses.
    fn member(&self, path: &str, name: &str) -> Option<String> {
        let owners = self.specs.owners_of(Class::Rdma, path);
        let now = self.sysfs.ibdev_of(name);
        now.filter(|now| owners.contains(now))
            .or_else(|| owners.into_iter().next())
    }

    fn compare(&self, expect: &Expect, numbers: Numbers) -> Result<(), NodeError> {
        self.sysfs
            .check(expect, numbers)
            .map_err(|error| NodeError::Other {
                key: self.key(),
                error,
            })
    }

    fn key(&self) -> String {
        self.entry.origin.to_string()
    }
}
