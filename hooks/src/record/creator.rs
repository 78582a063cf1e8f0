//! Which process created a container's files under /run/onload-ctk, and whether they are still needed: a start may fail
//! before any poststop is called.

use std::path::{Path, PathBuf};
use std::time::Duration;

use onload_core::container_id::ContainerId;
use onload_core::timestamp::since_boot_ms;
use onload_sys::error::{Context as _, Result};
use onload_sys::fs::open::may_exist;
use onload_sys::processes::Processes;
use rustix::fs::stat;
use serde::{Deserialize, Serialize};

use super::init::{InitProcess, has_ended};

/// How long after precreate a container may still appear: podman starts its runtime right after it.
const GRACE: Duration = Duration::from_secs(600);

const PID_NAMESPACE: &str = "/proc/self/ns/pid";

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
    pid: u32,
    /// In clock ticks since boot.
    start_time: u64,
    /// Process ids have no meaning after a reboot.
    boot: String,
    /// When it wrote this, in milliseconds after boot (CLOCK_BOOTTIME).
    made_ms: u64,
    /// Inode of the PID namespace in which `pid`, and the container's init, are counted.
    pid_namespace: u64,
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
            pid,
            start_time: InitProcess::open(Some(pid))?.start_time()?,
            boot: boot_id()?,
            made_ms: since_boot_ms(),
            pid_namespace: pid_namespace()?,
            bundle: whole(bundle),
            roots: match root {
                Some(root) => whole(root).into_iter().collect(),
                None => DEFAULT_ROOTS.map(PathBuf::from).to_vec(),
            },
        })
    }

    /// Whether process ids in the container's record mean the same to this process as to the one that wrote them. A
    /// runtime in a container may share /run with its host. A number from one of them is another process or none in the
    /// other, which must not conclude that the container is gone.
    pub(crate) fn shares_pid_namespace(&self) -> bool {
        pid_namespace().is_ok_and(|own| own == self.pid_namespace)
    }

    fn is_alive(&self) -> bool {
        let is_this_boot = boot_id().map_or(true, |boot| boot == self.boot);
        is_this_boot && !has_ended(self.pid, self.start_time)
    }

    /// Returns whether the files of a container that no hook has finished for are useless, `now_ms` after boot: their
    /// creator is gone, and no container appeared. With any runtime, its directory for the container shows that. A file
    /// removed by mistake was already mounted when the container was created, and stays mounted.
    pub(crate) fn is_abandoned(&self, id: &ContainerId, now_ms: u64) -> bool {
        if self.is_alive() {
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

fn pid_namespace() -> Result<u64> {
    let found = stat(PID_NAMESPACE).with_context(|| format!("reading {PID_NAMESPACE:?}"))?;
    Ok(found.st_ino)
}

/// Returns the boot ID. In an unprivileged system container, the container manager's file is mounted over the kernel's,
/// and this process cannot mount another proc to read the kernel's. All processes there see the same file.
fn boot_id() -> Result<String> {
    Processes::default().boot_id().or_else(|error| {
        let shown = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        shown.map(|shown| shown.trim_ascii().to_owned()).map_err(|_| error)
    })
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
            maker.start_time -= 1;
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
            ended.maker.start_time += 1;
            assert!(!ended.is_abandoned(60), "{stage:?}");
            ended.maker.boot.push('x');
            assert!(ended.is_abandoned(60), "{stage:?} of an earlier boot");
        }
    }

    #[test]
    fn a_start_goes_on_where_the_boot_is_covered_and_no_proc_can_be_mounted() {
        const COVERED: &str = "ONLOAD_CTK_TEST_COVERED";
        let boot = "/proc/sys/kernel/random/boot_id";
        if std::env::var_os(COVERED).is_some() {
            let shown = fs::read_to_string(boot).unwrap();
            assert_eq!(shown, "another\n");
            assert!(Processes::default().boot_id().is_err());
            let ended = Ended::new(CreatorStage::Hook);
            assert_eq!(ended.maker.boot, "another");
            assert!(ended.is_abandoned(0));
            return;
        }
        let unshare = || {
            let mut unshare = std::process::Command::new("unshare");
            unshare.args(["--user", "--map-root-user", "--mount"]);
            unshare
        };
        if !onload_test_needs::user_namespace() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("boot_id");
        fs::write(&own, "another\n").unwrap();
        let script = "mount --bind \"$1\" \"$2\" && exec \"$3\" --exact \"$4\"";
        let test = "record::creator::tests::a_start_goes_on_where_the_boot_is_covered_and_no_proc_can_be_mounted";
        let output = unshare()
            .args(["sh", "-ec", script, "sh"])
            .arg(own)
            .arg(boot)
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .env(COVERED, "1")
            .output()
            .unwrap();
        let output_text = String::from_utf8_lossy(&output.stdout);
        assert!(output_text.contains("1 passed"), "{output_text}");
    }

    #[test]
    fn what_was_counted_in_another_pid_namespace_is_not_judged() {
        let ended = Ended::new(CreatorStage::Hook);
        let counts = |pid_namespace: u64| {
            let maker = Creator { pid_namespace, ..ended.maker.clone() };
            maker.shares_pid_namespace()
        };
        assert!(counts(ended.maker.pid_namespace));
        assert!(!counts(1));
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
