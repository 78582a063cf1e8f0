//! Which process created a container's files under /run/onload-ctk, and whether they are still needed: a start may fail
//! before any poststop is called.

use std::path::{Path, PathBuf};
use std::time::Duration;

use onload_core::container_id::ContainerId;
use onload_core::timestamp::since_boot_ms;
use onload_sys::error::Result;
use onload_sys::fs::open::may_exist;
use onload_sys::processes::{ProcessId, Processes};
use serde::{Deserialize, Serialize};

use super::init::ended_error;

/// How long after precreate a container may still appear: podman starts its runtime right after it.
const GRACE: Duration = Duration::from_secs(600);

/// The directories in which runc, crun and youki keep their containers without `--root`. The last one is crun's with
/// root's XDG_RUNTIME_DIR.
pub(crate) const DEFAULT_ROOTS: [&str; 4] =
    ["/run/runc", "/run/crun", "/run/youki", "/run/user/0/crun"];

/// The next step of the process that creates the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CreatorStage {
    /// A hook that changes a living container, and records that when it has finished.
    Hook,
    /// It exits before the runtime starts.
    Precreate,
    /// It executes the runtime, which creates the container or fails.
    Runtime,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Creator {
    stage: CreatorStage,
    /// The container's init is counted in the same PID namespace.
    #[serde(flatten)]
    process: ProcessId,
    /// When it wrote this, in milliseconds after boot (CLOCK_BOOTTIME).
    made_ms: u64,
    /// `None` for a path that JSON cannot express.
    bundle: Option<PathBuf>,
    /// The directories where its runtime may keep the state of containers, one directory each.
    roots: Vec<PathBuf>,
}

impl Creator {
    /// `root` is the runtime's `--root`. Relative paths start at the working directory.
    pub(crate) fn current(
        stage: CreatorStage,
        bundle: &Path,
        root: Option<&Path>,
    ) -> Result<Creator> {
        let pid = std::process::id();
        let here = std::env::current_dir().ok();
        let whole = |path: &Path| here.as_ref()?.join(path).to_str().map(PathBuf::from);
        Ok(Creator {
            stage,
            process: Processes::default().find(pid)?.ok_or_else(|| ended_error(pid))?,
            made_ms: since_boot_ms(),
            bundle: whole(bundle),
            roots: match root {
                Some(root) => whole(root).into_iter().collect(),
                None => DEFAULT_ROOTS.map(PathBuf::from).to_vec(),
            },
        })
    }

    /// Returns whether a process of the container's record has ended. Returns false if that cannot be determined: a
    /// runtime in a container may share /run with its host, and the number of a process there is another process or none
    /// here.
    pub(crate) fn has_ended(&self, pid: u32, start_time: u64) -> bool {
        let process = ProcessId { pid, start_time, ..self.process };
        Processes::default().has_ended(process).ok().flatten() == Some(true)
    }

    /// Returns whether the files of a container that no hook has finished for are useless, `now_ms` after boot: their
    /// creator is gone, and no container appeared. With any runtime, its directory for the container shows that. A file
    /// removed by mistake was already mounted when the container was created, and stays mounted.
    pub(crate) fn is_abandoned(&self, id: &ContainerId, now_ms: u64) -> bool {
        if !self.has_ended(self.process.pid, self.process.start_time) {
            return false;
        }
        let has_bundle = self.bundle.as_ref().is_none_or(|bundle| may_exist(bundle));
        let age = Duration::from_millis(now_ms.saturating_sub(self.made_ms));
        match self.stage {
            CreatorStage::Hook => true,
            _ if !has_bundle => true,
            CreatorStage::Precreate if age < GRACE => false,
            CreatorStage::Precreate | CreatorStage::Runtime => {
                !self.roots.iter().any(|root| may_exist(&root.join(id.as_str())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    /// A maker that has ended, with a bundle and a state directory of its runtime.
    struct Ended {
        dir: tempfile::TempDir,
        maker: Creator,
        id: ContainerId,
    }

    impl Ended {
        fn new(stage: CreatorStage) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (bundle, root) = (dir.path().join("bundle"), dir.path().join("root"));
            fs::create_dir(&bundle).unwrap();
            fs::create_dir_all(root.join("other")).unwrap();
            let mut maker = Creator::current(stage, &bundle, Some(&root)).unwrap();
            maker.process.start_time -= 1;
            let id = "c1".parse().unwrap();
            Ended { dir, maker, id }
        }

        fn is_abandoned(&self, minutes: u64) -> bool {
            self.maker.is_abandoned(&self.id, self.maker.made_ms + 60_000 * minutes)
        }

        fn make(&self, path: &str) {
            fs::create_dir(self.dir.path().join(path)).unwrap();
        }
    }

    #[test]
    fn what_a_process_that_lives_made_is_needed() {
        for stage in [CreatorStage::Hook, CreatorStage::Precreate, CreatorStage::Runtime] {
            let mut ended = Ended::new(stage);
            fs::remove_dir(ended.dir.path().join("bundle")).unwrap();
            assert!(ended.is_abandoned(60), "{stage:?}");
            ended.maker.process.start_time += 1;
            assert!(!ended.is_abandoned(60), "{stage:?}");
        }
    }

    #[test]
    fn a_process_has_ended_when_its_number_is_another_s_in_this_pid_namespace() {
        let mut ended = Ended::new(CreatorStage::Hook).maker;
        let ProcessId { pid, start_time, .. } = ended.process;
        assert!(ended.has_ended(pid, start_time) && !ended.has_ended(pid, start_time + 1));
        ended.process.pid_namespace = 1;
        assert!(!ended.has_ended(pid, start_time));
    }

    #[test]
    fn a_hook_that_ended_without_a_record_left_what_it_made() {
        let ended = Ended::new(CreatorStage::Hook);
        ended.make("root/c1");
        assert!(ended.is_abandoned(0));
    }

    #[test]
    fn a_runtime_that_ended_left_the_list_unless_it_made_the_container() {
        let ended = Ended::new(CreatorStage::Runtime);
        assert!(ended.is_abandoned(0));
        ended.make("root/c1");
        assert!(!ended.is_abandoned(60));
        fs::remove_dir(ended.dir.path().join("bundle")).unwrap();
        assert!(ended.is_abandoned(0));
    }

    #[test]
    fn a_container_may_come_for_a_while_after_precreate() {
        let ended = Ended::new(CreatorStage::Precreate);
        assert!(!ended.is_abandoned(9));
        assert!(ended.is_abandoned(10));
        ended.make("root/c1");
        assert!(!ended.is_abandoned(10));
        fs::remove_dir(ended.dir.path().join("bundle")).unwrap();
        assert!(ended.is_abandoned(0), "podman rm");
    }

    #[test]
    fn a_clock_that_is_set_makes_nothing_older() {
        let ended = Ended::new(CreatorStage::Precreate);
        // As if the clock had been an hour behind when it was made.
        let long_ago = std::time::SystemTime::now() - 6 * GRACE;
        File::open(ended.dir.path()).unwrap().set_modified(long_ago).unwrap();
        assert!(!ended.maker.is_abandoned(&ended.id, since_boot_ms()));
    }

    #[test]
    fn a_runtime_that_is_told_no_root_is_known_by_the_usual_ones() {
        let maker = Creator::current(CreatorStage::Runtime, Path::new("."), None).unwrap();
        assert_eq!(maker.roots, DEFAULT_ROOTS.map(PathBuf::from));
        assert!(maker.bundle.unwrap().is_absolute());
    }
}
