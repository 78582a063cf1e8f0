//! What the server has of this node's slices, and what has to be written.

use std::collections::{BTreeMap, BTreeSet};

use crate::dra::api::Event;
use crate::dra::slices::{Fingerprint, Listed};

#[derive(Debug, Default)]
pub(super) struct Server {
    /// Them, by name; what somebody else has changed is not known.
    slices: BTreeMap<String, Slice>,
    /// The highest generation of each pool that was ever seen.
    generations: BTreeMap<String, i64>,
}

#[derive(Debug)]
struct Slice {
    version: String,
    known: Option<Listed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Right,
    Write { which: Vec<usize>, generation: i64 },
}

impl Server {
    /// Forgets the slices, and not the generations: they are listed anew.
    pub(super) fn clear(&mut self) {
        self.slices.clear();
    }

    /// A slice as the server has it.
    pub(super) fn note(&mut self, name: String, listed: Listed) {
        let generation = self.generations.entry(listed.pool.clone()).or_default();
        *generation = listed.generation.max(*generation);
        let slice = Slice {
            version: listed.version.clone(),
            known: Some(listed),
        };
        self.slices.insert(name, slice);
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.slices.remove(name);
    }

    /// What the watch told; whether somebody else has changed something.
    pub(super) fn told(&mut self, event: Event) -> bool {
        match event {
            Event::Bookmark => false,
            Event::Applied { name, version } => match self.slices.get_mut(&name) {
                Some(slice) if is_older(&version, &slice.version) => false,
                Some(slice) => {
                    let is_news = slice.version != version;
                    if is_news {
                        *slice = Slice {
                            version,
                            known: None,
                        };
                    }
                    is_news
                }
                None => {
                    let known = None;
                    self.slices.insert(name, Slice { version, known });
                    true
                }
            },
            Event::Deleted { name, version } => match self.slices.get(&name) {
                Some(slice) if is_older(&version, &slice.version) => false,
                Some(_) => {
                    self.slices.remove(&name);
                    true
                }
                None => false,
            },
        }
    }

    fn of_pool(&self, pool: &str) -> impl Iterator<Item = (&String, &Listed)> {
        let known = self.slices.iter();
        let known = known.filter_map(|(name, slice)| Some((name, slice.known.as_ref()?)));
        known.filter(move |(_, listed)| listed.pool == pool)
    }

    /// Whether slots are devices in a pool; none if it has no shared device.
    pub(super) fn is_numbered(&self, pool: &str) -> Option<bool> {
        self.of_pool(pool)
            .find_map(|(_, listed)| listed.is_numbered)
    }

    /// What makes a pool be these slices. All slices of a generation count together, so a pool of several gets
    /// a new one with each change; a slice alone is changed as it is.
    pub(super) fn decide(&self, pool: &str, wanted: &[(String, Fingerprint)]) -> Decision {
        let have: BTreeMap<&String, &Listed> = self.of_pool(pool).collect();
        let count = i64::try_from(wanted.len()).unwrap_or(i64::MAX);
        let generations: BTreeSet<i64> = have.values().map(|listed| listed.generation).collect();
        let is_right = |(name, fingerprint): &(String, Fingerprint)| {
            let is_so =
                |listed: &&Listed| listed.fingerprint == *fingerprint && listed.count == count;
            have.get(name).is_some_and(is_so)
        };
        let has_others = have.len() > wanted.len();
        if wanted.iter().all(is_right) && !has_others && generations.len() <= 1 {
            return Decision::Right;
        }
        let highest = self.generations.get(pool).copied().unwrap_or(0);
        let is_alone = wanted.len() == 1 && have.keys().all(|name| **name == wanted[0].0);
        let generation = if is_alone {
            highest.max(1)
        } else {
            highest + 1
        };
        Decision::Write {
            which: (0..wanted.len()).collect(),
            generation,
        }
    }

    /// The slices that are not among the wanted, nor in a pool that is left as it is. Of a slice that somebody else
    /// wrote the pool is not known.
    pub(super) fn strays(
        &self,
        wanted: &BTreeSet<String>,
        is_left: impl Fn(Option<&str>) -> bool,
    ) -> Vec<String> {
        let pool = |slice: &'_ Slice| slice.known.as_ref().map(|known| known.pool.clone());
        let strays = self
            .slices
            .iter()
            .filter(|(name, slice)| !wanted.contains(*name) && !is_left(pool(slice).as_deref()));
        strays.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.slices.len()
    }
}

/// Whether a resource version is known to be older than another. They are numbers (KEP-5504).
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

    use super::*;

    fn slice(name: &str, version: u64, generation: i64, count: i64) -> ResourceSlice {
        let mut slice = ResourceSlice::default();
        slice.metadata.name = Some(name.to_owned());
        slice.metadata.resource_version = Some(version.to_string());
        slice.spec.pool.name = "n1/nic".to_owned();
        slice.spec.pool.generation = generation;
        slice.spec.pool.resource_slice_count = count;
        slice.spec.devices = Some(vec![Device {
            name: format!("in-{name}"),
            ..Default::default()
        }]);
        slice
    }

    fn wanted(names: &[&str]) -> Vec<(String, Fingerprint)> {
        let wanted = names.iter().map(|name| {
            let fingerprint = Fingerprint::of(&slice(name, 0, 0, 0));
            ((*name).to_owned(), fingerprint)
        });
        wanted.collect()
    }

    fn server(slices: &[ResourceSlice]) -> Server {
        let mut server = Server::default();
        for slice in slices {
            let name = slice.metadata.name.clone().unwrap();
            server.note(name, Listed::of(slice));
        }
        server
    }

    fn write(which: &[usize], generation: i64) -> Decision {
        let which = which.to_vec();
        Decision::Write { which, generation }
    }

    #[test]
    fn what_is_right_is_left_alone() {
        let server = server(&[slice("a", 1, 7, 2), slice("b", 2, 7, 2)]);
        assert_eq!(
            server.decide("n1/nic", &wanted(&["a", "b"])),
            Decision::Right
        );
        assert_eq!(Server::default().decide("n1/nic", &[]), Decision::Right);
    }

    #[test]
    fn a_pool_of_several_slices_gets_a_new_generation_and_all_are_written() {
        for slices in [
            vec![slice("a", 1, 7, 2)],
            vec![slice("a", 1, 7, 2), slice("b", 2, 6, 2)],
            vec![slice("a", 1, 7, 3), slice("b", 2, 7, 3)],
            vec![
                slice("a", 1, 7, 2),
                slice("b", 2, 7, 2),
                slice("c", 3, 7, 2),
            ],
        ] {
            let decision = server(&slices).decide("n1/nic", &wanted(&["a", "b"]));
            assert_eq!(decision, write(&[0, 1], 8), "{slices:?}");
        }
        assert_eq!(
            Server::default().decide("n1/nic", &wanted(&["a", "b"])),
            write(&[0, 1], 1)
        );
    }

    #[test]
    fn a_slice_alone_keeps_its_generation() {
        let mut other = slice("a", 1, 7, 1);
        other.spec.devices = None;
        assert_eq!(
            server(&[other]).decide("n1/nic", &wanted(&["a"])),
            write(&[0], 7)
        );
        // Unless there were others.
        let server = server(&[slice("a", 1, 7, 2), slice("b", 1, 7, 2)]);
        assert_eq!(server.decide("n1/nic", &wanted(&["a"])), write(&[0], 8));
        assert_eq!(
            Server::default().decide("n1/nic", &wanted(&["a"])),
            write(&[0], 1)
        );
    }

    #[test]
    fn a_generation_is_never_used_again_after_all_slices_were_deleted() {
        let mut server = server(&[slice("a", 1, 7, 2), slice("b", 2, 7, 2)]);
        for name in ["a", "b"] {
            let (name, version) = (name.to_owned(), "9".to_owned());
            assert!(server.told(Event::Deleted { name, version }));
        }
        assert_eq!(server.len(), 0);
        let decision = server.decide("n1/nic", &wanted(&["a", "b"]));
        assert_eq!(decision, write(&[0, 1], 8));
    }

    #[test]
    fn the_echo_of_an_own_write_is_no_news() {
        let mut server = server(&[slice("a", 12, 7, 1)]);
        let applied = |version: &str| Event::Applied {
            name: "a".to_owned(),
            version: version.to_owned(),
        };
        for echo in [applied("12"), applied("11"), Event::Bookmark] {
            assert!(!server.told(echo.clone()), "{echo:?}");
        }
        // A deletion that was before the write.
        let (name, version) = ("a".to_owned(), "11".to_owned());
        assert!(!server.told(Event::Deleted { name, version }));
        assert_eq!(server.decide("n1/nic", &wanted(&["a"])), Decision::Right);
        assert!(server.told(applied("13")));
        assert_eq!(server.decide("n1/nic", &wanted(&["a"])), write(&[0], 7));
    }

    #[test]
    fn what_nobody_wants_is_a_stray() {
        let mut server = server(&[slice("a", 1, 7, 1)]);
        server.told(Event::Applied {
            name: "b".to_owned(),
            version: "5".to_owned(),
        });
        let wanted = BTreeSet::from(["a".to_owned()]);
        assert_eq!(server.strays(&wanted, |_| false), ["b"]);
    }

    #[test]
    fn a_slice_of_a_pool_that_is_left_as_it_is_is_no_stray() {
        let server = server(&[slice("a", 1, 7, 1)]);
        let none = BTreeSet::new();
        assert_eq!(server.strays(&none, |pool| pool == Some("n1/nic")), [""; 0]);
        assert_eq!(server.strays(&none, |pool| pool == Some("n1/vfio")), ["a"]);
    }
}
