//! Removes files of claims that were deleted while no instance ran. kubelet unprepares every claim in its state, and
//! forgets those of a node whose state it lost.

use std::collections::BTreeMap;
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimKnowledge {
    Nothing,
    /// The API server has reported once that it is gone.
    Gone,
    Settled,
}

/// Removes the specifications of claims that the API server twice reported as gone or without an allocation. Caution is
/// needed because without its specification no container of a claim starts again. Ends when all claims have been
/// checked; kubelet unprepares the others.
pub(crate) async fn sweep(preparer: Arc<Preparer>) {
    let mut remaining: BTreeMap<ClaimUid, (Option<PreparedClaim>, ClaimKnowledge)> = preparer
        .claim_specs
        .list()
        .into_iter()
        .map(|(uid, prepared_claim)| (uid, (prepared_claim, ClaimKnowledge::Nothing)))
        .collect();
    while !remaining.is_empty() {
        let mut is_unknown = false;
        for (uid, (prepared_claim, knowledge)) in &mut remaining {
            match sweep_claim(&preparer, uid, prepared_claim.as_ref(), *knowledge).await {
                Ok(now) => *knowledge = now,
                Err(error) => {
                    let reason = format!("{error:#}");
                    is_unknown = true;
                    *knowledge = ClaimKnowledge::Nothing;
                    tracing::warn!(%uid, %reason, "could not determine whether a claim is still \
                        there; trying again");
                }
            }
        }
        remaining.retain(|_, (_, knowledge)| *knowledge != ClaimKnowledge::Settled);
        if !remaining.is_empty() {
            sleep(if is_unknown { RETRY_INTERVAL } else { CONFIRM }).await;
        }
    }
}

async fn sweep_claim(
    preparer: &Preparer,
    uid: &ClaimUid,
    prepared_claim: Option<&PreparedClaim>,
    knowledge: ClaimKnowledge,
) -> Result<ClaimKnowledge> {
    let _lock = preparer.claim_locks.acquire(uid).await;
    // A claim without a record cannot be looked up and may be in use. kubelet unprepares it.
    let is_gone = match prepared_claim {
        Some(prepared_claim) => !claim_exists(preparer, uid, prepared_claim).await?,
        None => false,
    };
    if !is_gone {
        return Ok(ClaimKnowledge::Settled);
    }
    if knowledge != ClaimKnowledge::Gone {
        return Ok(ClaimKnowledge::Gone);
    }
    preparer.remove(uid)?;
    tracing::info!(%uid, "removed the specification of a deleted claim");
    Ok(ClaimKnowledge::Settled)
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
