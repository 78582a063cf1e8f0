//! What a cluster engine may give out: one device, with all that an engine asks of it.

use std::collections::BTreeMap;

use onload_cdi::DeviceName;
use onload_core::class::Class;
use onload_core::lease::{Lease, held};
use onload_core::pci::PciAddress;
use onload_core::text::Listed;

/// The attributes of an offer. All offers of one class have the same keys: what is not known is an empty
/// text, 0, or version 0.0.0. In a selector of Kubernetes a key that one device lacks is an error for all
/// of them.
pub type Attributes = BTreeMap<&'static str, Attribute>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub class: Class,
    pub name: DeviceName,
    /// The CDI devices that a container of it gets, such as `onload.dev/nic=ens1`. Empty if no
    /// specification has it; then it is not healthy.
    pub cdi: Vec<String>,
    pub pools: Vec<String>,
    pub pci: Option<PciAddress>,
    pub pcie_root: Option<String>,
    pub numa_node: Option<u32>,
    pub attributes: Attributes,
    /// Whether one container has it at a time.
    pub sharing: Sharing,
    /// How many containers may have it at once, if the operator said so; otherwise the engine's
    /// configuration says it.
    pub slots: Option<u32>,
    /// Whether a container can use it. Leases do not change it: an engine's own containers have them too.
    pub health: Health,
    pub holder: Option<String>,
    pub leases: Vec<Held>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Int(i64),
    Bool(bool),
    /// A version of three numbers (`MAJOR.MINOR.PATCH` of Semantic Versioning 2.0.0).
    Version(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    Exclusive,
    Shared,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// It cannot, and why; if `discover` gives a reason, it is that one.
    Unhealthy(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The slot, from 0.
    pub slot: u32,
    /// The lease; `None` if its file is not understood. It counts all the same.
    pub lease: Option<Lease>,
    pub text: String,
}

impl Offer {
    /// How many containers may have it at once; `None` if nobody counts them on this host.
    #[must_use]
    pub fn most(&self) -> Option<u32> {
        match self.sharing {
            Sharing::Exclusive => Some(1),
            Sharing::Shared => self.slots,
        }
    }

    /// Its health to an engine that knows the leases of its own containers: not healthy either if
    /// containers of others have all of it.
    pub fn health_beside(&self, is_own: impl Fn(&Lease) -> bool) -> Health {
        match (&self.health, self.left_beside(is_own)) {
            (Health::Healthy, Some((0, reason))) => Health::Unhealthy(reason),
            (health, _) => health.clone(),
        }
    }

    /// How many containers can have it at once beside those of others, and who those are; `None` if no other has it,
    /// or nobody counts.
    pub fn left_beside(&self, is_own: impl Fn(&Lease) -> bool) -> Option<(u32, String)> {
        let most = self.most()?;
        let others = self.leases.iter();
        let others = others.filter(|held| !held.lease.as_ref().is_some_and(&is_own));
        let others: Vec<String> = others.map(|held| held.text.clone()).collect();
        if others.is_empty() {
            return None;
        }
        let number = u32::try_from(others.len()).unwrap_or(u32::MAX);
        let reason = held(&[Listed(&others).to_string()]).to_string();
        Some((most.saturating_sub(number), reason))
    }
}
