//! Removes files of claims that were deleted while no instance ran. kubelet unprepares every claim in its state, and
//! forgets those of a node whose state it lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use onload_core::claim_uid::ClaimUid;
use tokio::time::sleep;

use super::claim_spec::PreparedClaim;
use super::preparer::{ClaimReport, Preparer};

/// How long to wait for an API server that does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Delay before a claim that seems gone is requested a second time.
const CONFIRM: Duration = Duration::from_secs(10);

/// Removes the specifications of claims that the API server twice reported as gone or without an allocation. Caution is
/// needed because without its specification no container of a claim starts again. Ends when all claims have been
/// checked; kubelet unprepares the others.
pub(crate) async fn sweep(preparer: Arc<Preparer>) {
    let mut remaining = preparer.claim_specs.list();
    // The claims that the API server has reported once as gone.
    let mut gone = BTreeSet::new();
    while !remaining.is_empty() {
        let mut is_unknown = false;
        let mut unsettled = BTreeMap::new();
        for (uid, prepared_claim) in remaining {
            match sweep_claim(&preparer, &uid, prepared_claim.as_ref(), &mut gone).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    let reason = format!("{error:#}");
                    is_unknown = true;
                    gone.remove(&uid);
                    tracing::warn!(%uid, %reason, "could not determine whether a claim is still \
                        there; trying again");
                }
            }
            unsettled.insert(uid, prepared_claim);
        }
        remaining = unsettled;
        if !remaining.is_empty() {
            sleep(if is_unknown { RETRY_INTERVAL } else { CONFIRM }).await;
        }
    }
}

/// Removes the specification of a claim that is gone for the second time. Returns whether the claim needs no other check.
async fn sweep_claim(
    preparer: &Preparer,
    uid: &ClaimUid,
    prepared_claim: Option<&PreparedClaim>,
    gone: &mut BTreeSet<ClaimUid>,
) -> Result<bool> {
    let _lock = preparer.claim_locks.acquire(uid).await;
    // A claim without a record cannot be looked up and may be in use. kubelet unprepares it.
    let is_gone = match prepared_claim {
        Some(prepared_claim) => !claim_exists(preparer, uid, prepared_claim).await?,
        None => false,
    };
    if !is_gone {
        return Ok(true);
    }
    if gone.insert(uid.clone()) {
        return Ok(false);
    }
    preparer.remove(uid)?;
    tracing::info!(%uid, "removed the specification of a deleted claim");
    Ok(true)
}

/// Returns whether the API server has the claim with this uid and an allocation.
async fn claim_exists(
    preparer: &Preparer,
    uid: &ClaimUid,
    prepared_claim: &PreparedClaim,
) -> Result<bool> {
    let claim = preparer
        .find(&prepared_claim.claim(uid))
        .await?
        .filter(|claim| claim.has_uid(uid.as_str()));
    let status = claim.and_then(|claim| claim.status);
    let Some(status) = status.filter(|status| status.allocation.is_some()) else {
        return Ok(false);
    };
    let devices = status.devices.entries().unwrap_or_default();
    let report = ClaimReport::Found(uid.clone(), prepared_claim.clone(), devices);
    preparer.report(report);
    Ok(true)
}
