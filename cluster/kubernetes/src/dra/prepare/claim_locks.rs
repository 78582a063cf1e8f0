//! A lock for each claim, since kubelet prepares a claim of two pods twice at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use onload_core::claim_uid::ClaimUid;
use tokio::sync::{Mutex as Gate, OwnedMutexGuard};

#[derive(Debug, Default)]
pub(crate) struct ClaimLocks(Mutex<BTreeMap<ClaimUid, Weak<Gate<()>>>>);

impl ClaimLocks {
    /// Locks a claim until the result is dropped. Different claims do not block each other.
    pub(crate) async fn acquire(&self, uid: &ClaimUid) -> OwnedMutexGuard<()> {
        let gate = {
            let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            gates.retain(|_, gate| gate.strong_count() > 0);
            let gate = gates.get(uid).and_then(Weak::upgrade).unwrap_or_default();
            gates.insert(uid.clone(), Arc::downgrade(&gate));
            gate
        };
        gate.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    /// Returns the number of claims with a lock while one more is locked.
    async fn known_with_another(turns: &ClaimLocks) -> usize {
        let _turn = turns.acquire(&"another".parse().unwrap()).await;
        turns.0.lock().unwrap().len()
    }

    #[tokio::test]
    async fn one_works_on_a_claim_and_nothing_is_kept_when_all_are_done() {
        let turns = Arc::new(ClaimLocks::default());
        let at_work = Arc::new(Mutex::new((0, 0)));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (turns, at_work) = (Arc::clone(&turns), Arc::clone(&at_work));
                tokio::spawn(async move {
                    let uid = "u1".parse().unwrap();
                    let _turn = turns.acquire(&uid).await;
                    {
                        let mut at_work = at_work.lock().unwrap();
                        at_work.0 += 1;
                        at_work.1 = at_work.0.max(at_work.1);
                    }
                    yield_now().await;
                    at_work.lock().unwrap().0 -= 1;
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*at_work.lock().unwrap(), (0, 1));
        assert_eq!(known_with_another(&turns).await, 1);
    }

    #[tokio::test]
    async fn claims_do_not_wait_for_each_other() {
        let turns = ClaimLocks::default();
        let (one, two) = ("u1".parse().unwrap(), "u2".parse().unwrap());
        let _one = turns.acquire(&one).await;
        let _two = turns.acquire(&two).await;
        assert_eq!(known_with_another(&turns).await, 3);
    }

    #[tokio::test]
    async fn who_gives_up_waiting_leaves_nothing() {
        let turns = ClaimLocks::default();
        let uid = "u1".parse().unwrap();
        let first = turns.acquire(&uid).await;
        let waiting = turns.acquire(&uid);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, waiting).await.is_err());
        drop(first);
        assert_eq!(known_with_another(&turns).await, 1);
    }
}
