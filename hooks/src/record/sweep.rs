//! `poststop`: removes what was created for a container under /run/onload-ctk, and nothing else. It also removes what is
//! left of containers that never had a poststop. No lease ends here: a container may live on without its first process.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::timestamp::since_boot_ms;
use onload_lease::run_dir::RunDir;
use onload_sys::error::{Context as _, Result, bail};
use onload_sys::fs::atomic::is_temporary_name;
use onload_sys::fs::lock::{Lock, LockMode, START_TIMEOUT};
use onload_sys::text::ErrorChain;
use rustix::fs::{AtFlags, Mode, OFlags, statat, unlinkat};
use rustix::io::Errno;

use super::container_record::{self, ContainerRecord, CreatedPaths, LiveInjection};
use super::listing::{list_entries, random_index};
use super::{lease, targets};
use onload_sys::fs::container_root::ContainerRoot;

pub(crate) const FILES: [&str; 3] =
    ["ld.so.preload", container_record::VARIABLES, container_record::RECORD];

/// Containers that one sweep examines, however many there are. The choice is random, so that each has its turn.
const MAX_EXAMINED: usize = 8;

/// Removes the files of one container and returns warnings. Files that are not there count as removed.
pub(crate) fn run(run_dir: &Path, id: &ContainerId) -> Result<Vec<String>> {
    let Some(run) = RunDir::find(run_dir).with_context(|| remove_context(run_dir))? else {
        return Ok(Vec::new());
    };
    let run_stat = statat(&run, id.as_str(), AtFlags::SYMLINK_NOFOLLOW);
    if matches!(run_stat, Err(Errno::NOENT)) {
        return Ok(Vec::new());
    }
    let lock = run.lock(LockMode::Exclusive, START_TIMEOUT);
    let stays = clear(&run, id, lock.as_ref().ok())?;
    match lock {
        Ok(lock) => sweep_locked(&run, &list_others(&run, Some(id)), random_index(), &lock),
        Err(error) if stays => {
            return Ok(vec![format!(
                "the mount targets in the container's root stay until another container starts or ends: {}",
                ErrorChain(&error)
            )]);
        }
        Err(_) => {}
    }
    Ok(Vec::new())
}

/// Removes what is left of some containers that are gone. A runtime may abandon a container after this hook without
/// calling a poststop (crun, `libcrun_container_create`), or before it calls any hook, and a user who starts such
/// containers would fill the directory. While others start or end, nothing is done; the next sweep does it.
pub(crate) fn remove_stale(run_dir: &Path, except: Option<&ContainerId>) {
    let Ok(Some(run)) = RunDir::find(run_dir) else {
        return;
    };
    let ids = list_others(&run, except);
    if ids.is_empty() {
        return;
    }
    if let Some(lock) = run.lock_if_free() {
        sweep_locked(&run, &ids, random_index(), &lock);
    }
}

/// The containers that something may be left of, but one.
fn list_others(run: &RunDir, except: Option<&ContainerId>) -> Vec<ContainerId> {
    list_entries(run)
        .into_iter()
        .filter_map(|name| name.parse().ok())
        .filter(|id| Some(id) != except)
        .collect()
}

fn sweep_locked(run: &RunDir, ids: &[ContainerId], chance: usize, lock: &Lock) {
    let first = chance.checked_rem(ids.len()).unwrap_or(0);
    let turns = ids.iter().cycle().skip(first).take(ids.len().min(MAX_EXAMINED));
    for id in turns.filter(|id| is_stale(run, id)) {
        // If something stays, a later sweep tries again.
        let _ = clear(run, id, Some(lock));
    }
}

/// Whether something was created for a container whose init is gone, or that never appeared. A directory that another
/// program created has no record, and one of another version is understood by that version's own poststop.
fn is_stale(run: &RunDir, id: &ContainerId) -> bool {
    let Ok(dir) = run.open(id.as_str()) else {
        return false;
    };
    let Ok(Some(record)) = container_record::read(&dir) else {
        return false;
    };
    let Some(creator) = &record.maker else {
        return true;
    };
    match &record.live {
        Some(injection) => {
            creator.has_ended(injection.pid, injection.start_time)
                && !has_leases(run, id, injection).unwrap_or(true)
        }
        None => creator.is_abandoned(id, since_boot_ms()),
    }
}

/// Whether a container lives on, or its poststop may be about to come for what it has to give back.
fn has_leases(run: &RunDir, id: &ContainerId, injection: &LiveInjection) -> Result<bool> {
    if injection.leases.is_empty() {
        return Ok(false);
    }
    let leases = lease::find_in(run)?;
    leases.map_or(Ok(false), |leases| leases.holds_any(&injection.leases, id))
}

/// Removes the preload list of a container that is deleted: a runtime that abandons a container before it calls any hook
/// calls no poststop either. A living container keeps its mount of the list, and what its hook keeps stays for its
/// poststop. Returns whether the container had anything.
pub(crate) fn remove_preload_list(run_dir: &Path, id: &ContainerId) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::open(run_dir.join(id.as_str()), flags, Mode::empty()) else {
        return false;
    };
    if container_record::read(&dir)
        .is_ok_and(|record| record.is_none_or(|record| record.created.is_none()))
    {
        // The runtime that follows reports its own errors, and what stays is small.
        for name in ["ld.so.preload", container_record::RECORD] {
            let _ = unlinkat(&dir, name, AtFlags::empty());
        }
        remove_temporary(&dir);
        let _ = rustix::fs::rmdir(run_dir.join(id.as_str()));
    }
    true
}

/// Removes the files of one container in an open directory. Without the lock, another container with the same root may be
/// starting and find a mount target that is about to disappear. The targets and their record then stay for a sweep.
/// Returns whether they stayed.
pub(crate) fn clear(run: &RunDir, id: &ContainerId, lock: Option<&Lock>) -> Result<bool> {
    let path = run.path().join(id.as_str());
    let dir = match run.open(id.as_str()) {
        Err(Errno::NOENT) => return Ok(false),
        dir => dir.with_context(|| remove_context(&path))?,
    };
    // A record that cannot be parsed does not show what has to be done.
    let record = container_record::read(&dir).ok().flatten().unwrap_or_default();
    let created = record
        .created
        .filter(|created| !created.made.is_empty())
        .filter(|created| !remove_created(run, created, id, lock));
    let stays = created.is_some();
    if stays {
        let record = ContainerRecord { created, ..ContainerRecord::default() };
        container_record::write(&dir, &record)?;
    }
    for name in FILES {
        if stays && name == container_record::RECORD {
            continue;
        }
        match unlinkat(&dir, name, AtFlags::empty()) {
            Err(Errno::NOENT) => {}
            removed => removed.with_context(|| remove_context(&path.join(name)))?,
        }
    }
    remove_temporary(&dir);
    if stays {
        return Ok(true);
    }
    match unlinkat(run, id.as_str(), AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            let foreign = list_entries(&dir).first().map(|name| path.join(name));
            bail!(
                "{:?} was not created by onload-ctk and stays; remove it manually",
                foreign.unwrap_or(path)
            )
        }
        removed => removed.map(|()| false).with_context(|| remove_context(&path)),
    }
}

/// Returns the devices that the hook leased to an exited container, and the bundle of these leases.
pub(crate) fn recorded_leases(
    run_dir: &Path,
    id: &ContainerId,
) -> Option<(Vec<DeviceId>, PathBuf)> {
    let run = RunDir::find(run_dir).ok()??;
    let dir = run.open(id.as_str()).ok()?;
    let injection = container_record::read(&dir).ok()??.live?;
    Some((injection.leases, injection.bundle))
}

fn remove_context(path: &Path) -> String {
    format!("removing {path:?}")
}

/// Removes the mount targets that were created in the container's root, if they are still the same files. A root that is
/// gone, or that its engine has unmounted, contains none. Returns whether nothing is left to do.
fn remove_created(
    run: &RunDir,
    created: &CreatedPaths,
    id: &ContainerId,
    lock: Option<&Lock>,
) -> bool {
    if lock.is_none() {
        return false;
    }
    if hand_over_targets(run, id, created) {
        return true;
    }
    if let Ok(root) = ContainerRoot::open(&created.root) {
        targets::remove(&root, &created.made);
    }
    true
}

/// Hands the targets over to another container with the same root, if there is one: unlinking a target would remove the
/// mount on it. Returns whether there is such a container.
fn hand_over_targets(run: &RunDir, id: &ContainerId, created: &CreatedPaths) -> bool {
    let Some((dir, mut record)) = find_same_root(run, id, &created.root) else {
        return false;
    };
    if let Some(theirs) = &mut record.created {
        theirs.made.splice(0..0, created.made.iter().cloned());
    }
    container_record::write(&dir, &record).is_ok()
}

/// Returns the directory and record of a different container with the same root file system. Without the lock, such a
/// container may be about to appear.
pub(crate) fn find_same_root(
    run: &RunDir,
    id: &ContainerId,
    root: &Path,
) -> Option<(OwnedFd, ContainerRecord)> {
    let mut records =
        list_entries(run).into_iter().filter(|name| name != id.as_str()).filter_map(|name| {
            let dir = run.open(&name).ok()?;
            let record = container_record::read(&dir).ok()??;
            Some((dir, record))
        });
    records.find(|(_, record)| {
        let theirs = record.created.as_ref();
        theirs.is_some_and(|theirs| theirs.root == root)
    })
}

/// Removes what a killed process left of a file that it was writing.
fn remove_temporary(dir: &OwnedFd) {
    let names = list_entries(dir).into_iter();
    for name in names.filter(|name| is_temporary_name(name.as_ref())) {
        let _ = unlinkat(dir, name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::creator::{Creator, CreatorStage};
    use onload_core::pool::Numa;
    use onload_lease::{
        Holder, LeaseRequest, Leases, MemberRequest, MoveRecord, SavedRdma, SavedState,
    };
    use onload_sys::processes::{Cgroup, Processes};
    use std::fs;

    fn remove(run_dir: &Path, id: &str) -> Result<Vec<String>> {
        run(run_dir, &id.parse().unwrap())
    }

    #[test]
    fn nothing_to_do_is_done() {
        let dir = tempfile::tempdir().unwrap();
        remove(dir.path(), "c1").unwrap();
        remove(&dir.path().join("absent"), "c1").unwrap();
    }

    #[test]
    fn the_files_of_one_container_go_and_those_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        for id in ["c1", "c2"] {
            fs::create_dir(dir.path().join(id)).unwrap();
            for name in FILES {
                fs::write(dir.path().join(id).join(name), "x").unwrap();
            }
        }
        remove(dir.path(), "c1").unwrap();
        assert!(!dir.path().join("c1").exists());
        assert_eq!(fs::read_dir(dir.path().join("c2")).unwrap().count(), FILES.len());
        remove(dir.path(), "c1").unwrap();
    }

    #[test]
    fn a_list_is_forgotten_where_no_container_was_made_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let id = "c1".parse().unwrap();
        assert!(!remove_preload_list(dir.path(), &id));
        fs::create_dir(dir.path().join("c1")).unwrap();
        let record = r#"{"version":1,"created":{"root":"/r","made":[]}}"#;
        for (name, text) in [("ld.so.preload", "x"), ("record.json", record)] {
            fs::write(dir.path().join("c1").join(name), text).unwrap();
        }
        assert!(remove_preload_list(dir.path(), &id));
        assert_eq!(fs::read_dir(dir.path().join("c1")).unwrap().count(), 2);
        fs::remove_file(dir.path().join("c1/record.json")).unwrap();
        assert!(remove_preload_list(dir.path(), &id));
        assert!(!dir.path().join("c1").exists());
    }

    #[test]
    fn a_foreign_file_stays_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("c1")).unwrap();
        fs::write(dir.path().join("c1/theirs"), "x").unwrap();
        let message = ErrorChain(&remove(dir.path(), "c1").unwrap_err()).to_string();
        assert!(message.contains("c1/theirs") && message.contains("not created by"), "{message}");
        assert!(dir.path().join("c1/theirs").exists());
    }

    #[test]
    fn a_symlink_in_the_place_of_the_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("record.json"), "x").unwrap();
        std::os::unix::fs::symlink(other.path(), dir.path().join("c1")).unwrap();
        assert!(remove(dir.path(), "c1").is_err());
        assert!(other.path().join("record.json").exists());
    }

    #[test]
    fn a_symlink_in_the_place_of_a_file_goes_without_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("victim"), "x").unwrap();
        fs::create_dir(dir.path().join("c1")).unwrap();
        std::os::unix::fs::symlink(other.path().join("victim"), dir.path().join("c1/record.json"))
            .unwrap();
        remove(dir.path(), "c1").unwrap();
        assert!(other.path().join("victim").exists());
    }

    /// A run directory, and a root in which targets were created for a container.
    struct Fixture {
        run: tempfile::TempDir,
        root: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            Fixture { run: tempfile::tempdir().unwrap(), root: tempfile::tempdir().unwrap() }
        }

        fn dir(&self) -> RunDir {
            RunDir::find(self.run.path()).unwrap().unwrap()
        }

        fn path(&self, path: &str) -> PathBuf {
            self.run.path().join(path)
        }

        /// A container whose hook was killed, or whose record a poststop left behind.
        fn leave(&self, id: &str) {
            fs::write(self.root.path().join(id), "").unwrap();
            fs::create_dir(self.path(id)).unwrap();
            let made = format!(r#"[{{"path":"/{id}","kind":"file"}}]"#);
            let root = self.root.path().display();
            let created = format!(r#"{{"root":"{root}","made":{made}}}"#);
            let record = format!(r#"{{"version":1,"created":{created}}}"#);
            fs::write(self.path(id).join("record.json"), record).unwrap();
            fs::write(self.path(id).join("ld.so.preload"), "x".repeat(65536)).unwrap();
        }

        /// A container that holds a device, and whose first process has ended.
        fn leave_holding(
            &self,
            id: &str,
            device_request: MemberRequest,
            cgroup: Option<Cgroup>,
        ) -> Leases {
            let mut init = std::process::Command::new("/bin/sleep");
            let mut init = init.arg("60").spawn().unwrap();
            let process = Processes::default().find(init.id()).unwrap().unwrap();
            let leases = Leases::open(&self.dir(), Processes::default()).unwrap();
            let (container, bundle) = (id.parse().unwrap(), PathBuf::from("/b"));
            let request = LeaseRequest {
                devices: &[device_request],
                numa: Numa::Any,
                container: &container,
                bundle: &bundle,
                holder: Holder::Init { process, cgroup },
                token: None,
                claim: None,
                entry_point: "a test",
            };
            let live = LiveInjection {
                pid: process.pid,
                start_time: process.start_time,
                leases: leases.acquire(&request, &|_| None).unwrap(),
                bundle,
                ..LiveInjection::default()
            };
            init.kill().unwrap();
            init.wait().unwrap();
            self.leave(id);
            let record = ContainerRecord {
                maker: Some(Creator::current(CreatorStage::Hook, Path::new("/b"), None).unwrap()),
                created: None,
                live: Some(live),
            };
            container_record::write(&self.dir().open(id).unwrap(), &record).unwrap();
            leases
        }

        fn sweep(&self, chance: usize) {
            let lock = self.dir().lock_if_free().unwrap();
            sweep_locked(&self.dir(), &list_others(&self.dir(), None), chance, &lock);
        }

        fn ids(&self) -> usize {
            list_entries(self.dir())
                .into_iter()
                .filter(|name| name != onload_lease::run_dir::LOCKS)
                .count()
        }
    }

    #[test]
    fn without_the_lock_the_targets_in_the_root_stay_for_a_sweep_and_all_else_goes() {
        let fixture = Fixture::new();
        fixture.leave("c1");
        let stranger = fixture.dir().lock_if_free().unwrap();
        let id = "c1".parse().unwrap();
        assert!(clear(&fixture.dir(), &id, None).unwrap());
        assert!(fixture.root.path().join("c1").exists());
        assert_eq!(list_entries(fixture.dir().open("c1").unwrap()), ["record.json"]);
        drop(stranger);
        fixture.sweep(0);
        assert!(!fixture.root.path().join("c1").exists());
        assert!(!fixture.path("c1").exists());
    }

    #[test]
    fn a_lock_that_a_stranger_holds_costs_poststop_a_line_and_no_more() {
        let fixture = Fixture::new();
        fixture.leave("c1");
        let stranger = fixture.dir().lock_if_free().unwrap();
        let warnings = remove(fixture.run.path(), "c1").unwrap();
        let own = format!("process {} (", std::process::id());
        assert!(warnings.len() == 1 && warnings[0].contains(&own), "{warnings:?}");
        remove_stale(fixture.run.path(), None);
        assert!(fixture.path("c1/record.json").exists(), "others are at work");
        drop(stranger);
        remove_stale(fixture.run.path(), None);
        assert!(!fixture.path("c1").exists());
    }

    #[test]
    fn the_record_of_what_is_to_come_back_or_lives_on_stays_for_its_poststop() {
        let fixture = Fixture::new();
        let device_request =
            |name: &str| MemberRequest::for_device(format!("rdma:{name}").parse().unwrap(), 1);
        fixture.leave_holding("over", device_request("m0"), None);
        // None of those that can be looked at.
        let cgroup = Cgroup { path: "/elsewhere".into(), inode: 1 };
        fixture.leave_holding("lives-on", device_request("m1"), Some(cgroup));
        let facts = SavedRdma {
            name: "m2".to_owned(),
            pci: "0000:03:02.3".parse().unwrap(),
            index: 3,
            moved_by_other: false,
        };
        let moved = MemberRequest {
            moved: Some(MoveRecord::new(SavedState::Rdma(facts), 4711)),
            ..device_request("m2")
        };
        let leases = fixture.leave_holding("away", moved, None);
        let stay = |names: [&str; 3]| {
            fixture.sweep(0);
            let is_there = |id: &str| fixture.path(id).join("record.json").exists();
            let all = ["over", "lives-on", "away"];
            let there = all.map(|id| if is_there(id) { id } else { "" });
            assert_eq!(there, names);
        };
        stay(["", "lives-on", "away"]);
        leases.end_returned(&"rdma:m2".parse().unwrap()).unwrap();
        stay(["", "lives-on", ""]);
    }

    #[test]
    fn a_poststop_takes_away_what_others_left_that_came_to_none() {
        let fixture = Fixture::new();
        for id in ["c1", "left1", "left2"] {
            fixture.leave(id);
        }
        assert_eq!(remove(fixture.run.path(), "c1").unwrap(), [""; 0]);
        assert_eq!(fixture.ids(), 0);
        assert_eq!(fs::read_dir(fixture.root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_sweep_looks_at_a_few_containers_and_each_has_its_turn() {
        let fixture = Fixture::new();
        let count = 3 * MAX_EXAMINED;
        for n in 0..count {
            fixture.leave(&format!("left{n}"));
        }
        fixture.sweep(5);
        assert_eq!(fixture.ids(), count - MAX_EXAMINED);
        fixture.sweep(usize::MAX);
        fixture.sweep(0);
        assert_eq!(fixture.ids(), 0);
    }

    #[test]
    fn what_is_no_container_s_is_never_swept() {
        let fixture = Fixture::new();
        for path in ["runtimes/c1", "leases", "@other", "c2"] {
            fs::create_dir_all(fixture.path(path)).unwrap();
        }
        fs::write(fixture.path("c2/runtime"), "x").unwrap();
        fs::write(fixture.path("file"), "x").unwrap();
        fixture.sweep(0);
        for path in ["runtimes/c1", "leases", "@other", "c2/runtime", "file"] {
            assert!(fixture.path(path).exists(), "{path}");
        }
    }

    #[test]
    fn a_state_of_another_version_is_left_to_the_poststop() {
        let fixture = Fixture::new();
        fixture.leave("c1");
        fs::write(fixture.path("c1/record.json"), "{\"version\":[]}").unwrap();
        fixture.sweep(0);
        assert!(fixture.path("c1/record.json").exists());
        assert_eq!(remove(fixture.run.path(), "c1").unwrap(), [""; 0]);
        assert!(!fixture.path("c1").exists());
    }
}
