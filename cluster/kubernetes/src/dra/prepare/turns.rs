//! One at a time for each claim: kubelet prepares a claim of two pods twice at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use onload_core::lease::ClaimUid;
use tokio::sync::{Mutex as Gate, OwnedMutexGuard};

type Gates = Mutex<BTreeMap<ClaimUid, Arc<Gate<()>>>>;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    gates: Gates,
}

#[derive(Debug)]
pub(crate) struct Turn<'t> {
    gates: &'t Gates,
    uid: &'t ClaimUid,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits until nobody else works on a claim. Claims do not wait for each other.
    pub(crate) async fn take<'t>(&'t self, uid: &'t ClaimUid) -> Turn<'t> {
        let mut turn = Turn {
            gates: &self.gates,
            uid,
            guard: None,
        };
        let gate = {
            let mut gates = lock(&self.gates);
            Arc::clone(gates.entry(uid.clone()).or_default())
        };
        turn.guard = Some(gate.lock_owned().await);
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut gates = lock(self.gates);
        self.guard = None;
        // Whoever waits has it too.
        if gates
            .get(self.uid)
            .is_some_and(|gate| Arc::strong_count(gate) == 1)
        {
            gates.remove(self.uid);
        }
    }
}

fn lock(gates: &Gates) -> std::sync::MutexGuard<'_, BTreeMap<ClaimUid, Arc<Gate<()>>>> {
    gates.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn one_works_on_a_claim_and_nothing_is_kept_when_all_are_done() {
        let turns = Arc::new(Turns::default());
        let at_work = Arc::new(Mutex::new((0, 0)));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (turns, at_work) = (Arc::clone(&turns), Arc::clone(&at_work));
                tokio::spawn(async move {
                    let uid = "u1".parse().unwrap();
                    let _turn = turns.take(&uid).await;
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
        assert!(lock(&turns.gates).is_empty());
    }

    #[tokio::test]
    async fn claims_do_not_wait_for_each_other() {
        let turns = Turns::default();
        let (one, two) = ("u1".parse().unwrap(), "u2".parse().unwrap());
        let _one = turns.take(&one).await;
        let _two = turns.take(&two).await;
        assert_eq!(lock(&turns.gates).len(), 2);
    }

    #[tokio::test]
    async fn who_gives_up_waiting_leaves_nothing() {
        let turns = Turns::default();
        let uid = "u1".parse().unwrap();
        let first = turns.take(&uid).await;
        let waiting = turns.take(&uid);
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, waiting)
                .await
                .is_err()
        );
        drop(first);
        assert!(lock(&turns.gates).is_empty());
    }
}
