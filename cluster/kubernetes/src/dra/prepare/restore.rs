//! Writes the CDI files of prepared claims again after they were removed, for example by the uninstallation of another
//! vendor's toolkit. kubelet does not prepare a claim again until it restarts, and without the files no container of
//! the claim starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use onload_core::claim_uid::ClaimUid;
use onload_sys::text::to_one_line;
use tokio::time::sleep;

use super::preparer::Preparer;
use crate::dra::api::ClaimObject;

/// How long to wait before a claim that could not be written is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Looks for missing files now and after each survey of the host, until the driver ends. The metadata of claims is in
/// another directory and shows which claims were prepared.
pub(crate) async fn restore(preparer: Arc<Preparer>) {
    let mut host = preparer.host.clone();
    let mut logged: BTreeMap<ClaimUid, String> = BTreeMap::new();
    loop {
        host.mark_unchanged();
        let mut failures = BTreeMap::new();
        for uid in preparer.metadata.list() {
            if preparer.claim_specs.is_complete(&uid) {
                continue;
            }
            let Err(error) = restore_claim(&preparer, &uid).await else {
                continue;
            };
            let reason = to_one_line(&format!("{error:#}"));
            if logged.get(&uid) != Some(&reason) {
                let message = "the CDI files of a claim are missing and cannot be restored, so its \
                    containers do not start; trying again";
                tracing::warn!(%uid, %reason, message);
            }
            failures.insert(uid, reason);
        }
        logged = failures;
        if !logged.is_empty() {
            sleep(RETRY_INTERVAL).await;
        } else if host.changed().await.is_err() {
            return;
        }
    }
}

async fn restore_claim(preparer: &Preparer, uid: &ClaimUid) -> Result<()> {
    let _lock = preparer.claim_locks.acquire(uid).await;
    // kubelet may have prepared or unprepared it by now.
    if preparer.claim_specs.is_complete(uid) || !preparer.metadata.contains(uid) {
        return Ok(());
    }
    let Some(claim) = preparer.metadata.read_claim(uid) else {
        tracing::warn!(%uid, "the CDI files of a claim are missing, and the claim is unknown");
        return preparer.metadata.remove(uid);
    };
    let context = || format!("claim {}/{}", claim.namespace, claim.name);
    let found = preparer.find(&claim).await.with_context(context)?;
    let Some(found) = found.filter(|found| is_in_use(found, uid)) else {
        // kubelet prepares it again before another pod starts with it.
        return preparer.metadata.remove(uid);
    };
    preparer.prepare_found(&claim, uid, found).with_context(context)?;
    tracing::info!(
        namespace = %claim.namespace,
        claim = %claim.name,
        %uid,
        "restored the missing CDI files of a claim"
    );
    Ok(())
}

/// Returns whether the claim of this uid is allocated and reserved for a pod.
fn is_in_use(claim: &ClaimObject, uid: &ClaimUid) -> bool {
    claim.has_uid(uid.as_str())
        && claim.status.as_ref().is_some_and(|status| {
            let consumers = status.reserved_for.as_deref().unwrap_or_default();
            status.allocation.is_some() && !consumers.is_empty()
        })
}
