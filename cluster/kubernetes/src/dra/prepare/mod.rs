//! What containers of a claim get: from the claim's allocation and what is on disk, with nothing to remember.
//!
//! [`allocation`] reads what a claim was given, and [`parameters`] what its owner and its class say of it.
//! [`decision`] says what containers get, [`metadata`] writes what programs read of it, [`claim_spec`] what only containers of
//! this claim may have, and [`preparer`] does it all for kubelet. [`mod@sweep`] removes what a killed instance left.

mod allocation;
mod claim_locks;
mod claim_spec;
mod decision;
mod metadata;
mod parameters;
mod preparer;
mod sweep;

use std::path::Path;

use onload_core::class::Class;

pub(super) use claim_locks::ClaimLocks;
pub(super) use claim_spec::{ClaimSpecs, PreparedClaim, PreparedDevice};
pub(super) use metadata::MetadataFiles;
pub(super) use preparer::{ClaimReport, Preparer};
pub(super) use sweep::sweep;

use crate::names::NodeName;

/// Whether a claim is prepared, by what stands of it in the directory of specifications.
pub(crate) fn has_claims(spec_dir: &Path) -> bool {
    !ClaimSpecs::new(spec_dir.to_owned()).list().is_empty()
}

/// Whether such a claim may have a device of a class; one that does not say what it was given may.
pub(super) fn may_have_claims(spec_dir: &Path, node: &NodeName, class: Class) -> bool {
    let prepared_claims = ClaimSpecs::new(spec_dir.to_owned()).list().into_values();
    let devices = prepared_claims.map(|prepared_claim| prepared_claim.unwrap_or_default().devices);
    let is_of =
        |device: &PreparedDevice| node.parse_pool(&device.pool).is_none_or(|of| of == class);
    devices.into_iter().any(|devices| devices.is_empty() || devices.iter().any(is_of))
}
