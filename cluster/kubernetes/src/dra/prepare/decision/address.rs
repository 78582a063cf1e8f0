//! The addresses that a claim or its class wants for an interface.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use onload_core::class::Class;
use onload_core::hook_arguments::MovedInterface;
use onload_core::host_settings::Interface;
use onload_core::netdev::address::InterfaceAddress;
use onload_host::offers::{Attribute, Offer};
use onload_sys::text::Listed;

use crate::dra::prepare::allocation::Allocated;
use crate::dra::prepare::own_spec::{Addressed, Leased};
use crate::dra::prepare::parameters::{Author, misplaced};
use crate::host_state::Snapshot;

/// The interface with the addresses that a claim or its class says, if it says some.
pub(super) fn addressed(
    snapshot: &Snapshot,
    offer: &Offer,
    allocated: &Allocated,
) -> Result<Option<Addressed>> {
    let Some(said) = &allocated.parameters.address else {
        return Ok(None);
    };
    if offer.class != Class::Netdev {
        if said.is_of_request {
            return Err(misplaced("address", "netdev", offer));
        }
        return Ok(None);
    }
    let device = &offer.name;
    let cni_pools = &snapshot.cni_pools;
    if offer.pools.iter().any(|pool| cni_pools.contains(pool)) {
        bail!(
            "parameter address: a CNI plugin moves {device}, and sets its addresses; set them in the plugin's configuration"
        );
    }
    if said.value.author == Author::Claim {
        allowed(snapshot, &said.value.list)?;
    }
    let interface = interface(offer).with_context(|| {
        format!(
            "parameter address: which interface {device} is, is not known; run `onload-ctk discover` on the node"
        )
    })?;
    let addresses = said.value.list.clone();
    Ok(Some(Addressed {
        interface,
        addresses,
    }))
}

/// A container that sets an address can impersonate any machine of its network.
fn allowed(snapshot: &Snapshot, addresses: &[InterfaceAddress]) -> Result<()> {
    let networks = &snapshot.settings.addresses;
    let is_allowed =
        |address: &InterfaceAddress| networks.iter().any(|network| network.contains(address));
    let Some(address) = addresses.iter().find(|address| !is_allowed(address)) else {
        return Ok(());
    };
    let names: Vec<String> = networks.iter().map(ToString::to_string).collect();
    let allowed = if names.is_empty() {
        "none".to_owned()
    } else {
        Listed(&names).to_string()
    };
    bail!(
        "parameter address sets {address}, which is in none of the networks that this node allows to claims ({allowed}); ask its operator for addresses under [kubernetes], or for a DeviceClass with it"
    )
}

pub(super) fn interface(offer: &Offer) -> Option<MovedInterface> {
    let Some(Attribute::Text(name)) = offer.attributes.get("interface") else {
        return None;
    };
    let name = Interface::try_from(name.clone()).ok()?;
    let pci = offer.pci?;
    Some(MovedInterface { name, pci })
}

/// Two interfaces of one address would answer for each other.
pub(super) fn refuse_twice(before: &[Leased], given: &[Leased]) -> Result<()> {
    let of = |leased: &Leased| -> Vec<IpAddr> {
        let addresses = leased.addressed.iter();
        let addresses = addresses.flat_map(|addressed| &addressed.addresses);
        addresses.map(InterfaceAddress::address).collect()
    };
    let mut taken: BTreeSet<IpAddr> = before.iter().flat_map(of).collect();
    for address in given.iter().flat_map(of) {
        if !taken.insert(address) {
            bail!(
                "parameter address sets {address} for two devices of the claim; name the request that it is for in requests of the configuration"
            );
        }
    }
    Ok(())
}
