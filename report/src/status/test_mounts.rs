//! Which roots are looked into: a file system that a program answers for may make who looks wait for good, whatever it is
//! mounted as.

use std::os::unix::fs::chown;

use crate::test_tree::AsHost;

use super::process::ContainerProcess;
use super::test_host::*;
use super::*;

/// Whether a container with such mounts beside its root, and these of the host, is looked into.
fn is_looked_into(made: &Made, mounts: &str) -> bool {
    made.file("/proc/77/mountinfo", mounts);
    let verdicts = made.verdicts();
    let is_told = verdicts.iter().any(|one| one.reason.contains("of a kind that may never"));
    let state = if is_told { VerdictState::Unknown } else { VerdictState::Accelerated };
    assert_eq!(verdicts[0].state, state, "{mounts}: {verdicts:?}");
    !is_told
}

fn accelerated() -> Made {
    let made = preloaded();
    made.link("/proc/77/ns/net", HOST_NET).stack();
    made
}

#[test]
fn a_file_system_that_may_never_answer_is_not_looked_into() {
    for (place, kind, is_good) in [
        ("/dev", "fuse.evil", false),
        ("/", "fuse", false),
        ("/", "fuseblk", false),
        ("/", "nfs4", false),
        ("/", "virtiofs", false),
        ("/", "9p", false),
        ("/", "erofs", false),
        ("/dev/onload", "fuse", false),
        ("/dev/vfio/15", "fuse", false),
        ("/sys/class/infiniband", "fuse", false),
        ("/dev", "tmpfs", true),
        ("/dev/shm", "tmpfs", true),
        ("/", "btrfs", true),
        ("/data", "fuse.s3fs", true),
        ("/dev/shm/x", "fuse", true),
        ("/sys/devices/system/cpu", "fuse.lxcfs", true),
    ] {
        let mounts = format!("{ROOT}9 1 0:50 / {place} rw,nosuid shared:7 - {kind} x rw\n");
        assert_eq!(is_looked_into(&accelerated(), &mounts), is_good, "{place} {kind}");
    }
    // A process in a root below a mount does not see that one.
    assert!(!is_looked_into(&accelerated(), "9 1 0:5 / /proc rw - proc proc rw\n"));
}

const LAYERS: &str = "/var/lib/docker/overlay2";

/// The mounts of a container whose root is an overlay with these options.
fn overlay(options: &str) -> String {
    format!("9 1 0:50 / / rw,relatime - overlay overlay rw,{options}\n")
}

#[test]
fn an_overlay_is_looked_into_where_its_layers_are_on_good_file_systems_of_the_host() {
    let host = format!(
        "{ROOT}30 20 8:2 / /var/lib/docker rw - ext4 /dev/sdb rw\n\
         31 20 0:60 / /var/lib/containerd-stargz-grpc/snapshotter/snapshots/5/fs rw - fuse.rawBridge stargz rw\n\
         32 20 0:61 / /srv rw - nfs4 server:/x rw\n\
         33 20 0:62 / /live rw - overlay overlay rw,lowerdir=/srv/a\n\
         34 20 0:63 / /good rw - overlay overlay rw,lowerdir=/usr\n"
    );
    let made = accelerated();
    made.file("/proc/1/mountinfo", host);
    let good = format!(
        "lowerdir={LAYERS}/l/A:{LAYERS}/l/B,upperdir={LAYERS}/x/diff,workdir={LAYERS}/x/work"
    );
    for options in [
        good.as_str(),
        "lowerdir+=/var/lib/docker/a,lowerdir+=/usr,xino=off",
        "lowerdir=/usr::/var",
        "lowerdir=l/A:l/B,upperdir=x/diff,workdir=x/work",
        "lowerdir=/good/x",
    ] {
        assert!(is_looked_into(&made, &overlay(options)), "{options}");
    }
    let stargz = "/var/lib/containerd-stargz-grpc/snapshotter/snapshots";
    for options in [
        format!("{good}:x,lowerdir={stargz}/5/fs"),
        format!("lowerdir=/usr:{stargz}/5/fs/deep"),
        format!("lowerdir+=/usr,lowerdir+={stargz}/5/fs"),
        "lowerdir=4/fs:5/fs,upperdir=6/fs".to_owned(),
        "lowerdir=/usr,upperdir=/srv/upper".to_owned(),
        "lowerdir=/live/x".to_owned(),
        "lowerdir=/usr\\134:/x".to_owned(),
        "lowerdir=".to_owned(),
        "xino=off".to_owned(),
        String::new(),
    ] {
        assert!(!is_looked_into(&made, &overlay(&options)), "{options}");
    }
    // Without a table of the host nothing is known of layers.
    made.tree.remove("/proc/1/mountinfo");
    assert!(!is_looked_into(&made, &overlay(&good)));
}

/// In a user namespace of its own, who has a FUSE file system can have it below an overlay, and in no table of the host.
#[test]
fn an_overlay_of_a_user_is_not_looked_into_while_a_user_has_a_fuse_file_system() {
    let made = accelerated();
    made.link("/proc/77/ns/user", "user:[9]");
    assert!(is_looked_into(&made, &overlay("lowerdir=/usr")));
    let connection = made.tree.path("/sys/fs/fuse/connections/44");
    made.tree.directory("/sys/fs/fuse/connections/44");
    let user = rustix::process::geteuid();
    if user.is_root() {
        assert!(is_looked_into(&made, &overlay("lowerdir=/usr")));
        chown(&connection, Some(1000), Some(1000)).unwrap();
    }
    assert!(!is_looked_into(&made, &overlay("lowerdir=/usr")));
    // Other file systems are the kernel's own, and a container of root has its layers from root.
    assert!(is_looked_into(&made, ROOT));
    made.link("/proc/77/ns/user", HOST_USERS);
    assert!(is_looked_into(&made, &overlay("lowerdir=/usr")));
}

#[test]
fn the_mounts_of_one_mount_namespace_are_read_once() {
    let made = accelerated();
    let host = made.tree.host();
    let mut mounts = mounts::Mounts::of(&host);
    let process = |pid| ContainerProcess {
        pid,
        mounts: Some("mnt:[5]".into()),
        ..ContainerProcess::default()
    };
    let first = mounts.of_process(&process(77));
    assert!(first.unwrap().may_look);
    made.file("/proc/77/mountinfo", "");
    assert_eq!(mounts.of_process(&process(77)), first);
    // There is no such process, and the namespace is known all the same.
    assert_eq!(mounts.of_process(&process(4000)), first);
    // Another root in it shows other mounts.
    made.file("/proc/78/mountinfo", "");
    made.link("/proc/78/root", "/mnt/fuse");
    assert!(!mounts.of_process(&process(78)).unwrap().may_look);
    let other = ContainerProcess { mounts: Some("mnt:[6]".into()), ..process(77) };
    assert!(!mounts.of_process(&other).unwrap().may_look);
}
