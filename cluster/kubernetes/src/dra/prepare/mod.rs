//! Prepares claims from their allocation and the files on disk, without state in memory.
//!
//! [`allocation`] reads a claim's devices, and [`parameters`] the configuration of the claim and its class.
//! [`decision`] decides what containers get, [`metadata`] writes the files for programs, [`claim_spec`] the
//! specification of the claim, and [`preparer`] does all of this for kubelet. [`mod@sweep`] removes files of deleted
//! claims, and [`mod@restore`] writes removed files again.

mod allocation;
mod claim_locks;
mod claim_spec;
mod decision;
mod metadata;
mod parameters;
mod preparer;
mod restore;
mod sweep;

use std::path::Path;

use onload_core::class::Class;

pub(super) use claim_locks::ClaimLocks;
pub(super) use claim_spec::{ClaimSpecs, PreparedClaim, PreparedDevice};
pub(super) use metadata::MetadataFiles;
pub(super) use preparer::{ClaimReport, Preparer};
pub(super) use restore::restore;
pub(super) use sweep::sweep;

use crate::names::NodeName;

/// Returns whether any claim is prepared, by the files in the directory of specifications.
pub(crate) fn has_claims(spec_dir: &Path) -> bool {
    !ClaimSpecs::new(spec_dir.to_owned()).list().is_empty()
}

/// Returns a prepared claim that has a device of a class. A claim whose record does not list its devices may have one.
pub(super) fn claim_with_device(spec_dir: &Path, node: &NodeName, class: Class) -> Option<String> {
    ClaimSpecs::new(spec_dir.to_owned())
        .list()
        .into_iter()
        .map(|(uid, claim)| (uid, claim.unwrap_or_default()))
        .filter(|(_, claim)| may_have_device(claim, node, class))
        .map(|(uid, claim)| format!("claim {}/{} with uid {uid}", claim.namespace, claim.name))
        .next()
}

fn may_have_device(claim: &PreparedClaim, node: &NodeName, class: Class) -> bool {
    let mut pools = claim.devices.iter().map(|device| node.parse_pool(&device.pool));
    claim.devices.is_empty() || pools.any(|pool_class| pool_class.is_none_or(|of| of == class))
}
