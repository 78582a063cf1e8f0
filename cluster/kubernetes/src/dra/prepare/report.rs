//! What those learn who tell the API server of claims.

use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use onload_core::lease::ClaimUid;

use super::own_spec::Owner;
use crate::wire::dra::Claim;

/// What became of a claim.
#[derive(Debug)]
pub(crate) enum Report {
    Prepared(ClaimUid, Owner),
    /// It was prepared before this start. The devices in its status are those that the API server has.
    Found(ClaimUid, Owner, Vec<AllocatedDeviceStatus>),
    Unprepared(ClaimUid, Owner),
    Refused(Claim, String),
}
