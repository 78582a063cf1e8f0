//! Device programs of cgroup v2, on cgroups made for the test: extended in place, never piled up,
//! and put back.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use onload_hooks::decide::verified_node::CgroupRule;
use onload_hooks::live::cgroup::CgroupDir;
use onload_hooks::live::devices::{self, CgroupChanges};
use onload_hooks::live::program::extend;
use onload_sys::bpf::cgroup::{self as bpf, BpfProgram, Insn};
use onload_sys::mountinfo;
use onload_test_needs as needs;
use rustix::thread::gettid;
use walkdir::WalkDir;

const ID: &str = "c0ffee";

fn rule(major: u32, minor: u32, access: &str) -> CgroupRule {
    CgroupRule { major, minor, access: access.to_owned().try_into().unwrap() }
}

/// A program with a constant result, "r0 = RESULT; exit": 1 allows everything, 0 nothing.
fn constant_program(result: i32) -> Vec<Insn> {
    let [byte0, byte1, byte2, byte3] = result.to_ne_bytes();
    [[0xb7, 0, 0, 0, byte0, byte1, byte2, byte3], [0x95, 0, 0, 0, 0, 0, 0, 0]]
        .map(Insn::from_ne_bytes)
        .into()
}

/// The kernel's log: everybody may write to it whom the cgroup lets.
fn kmsg() -> CgroupRule {
    rule(1, 11, "w")
}

fn load(insns: &[u64]) -> OwnedFd {
    bpf::load(&BpfProgram {
        name: *b"runtime\0\0\0\0\0\0\0\0\0",
        is_gpl: false,
        insns: insns.to_vec(),
    })
    .unwrap()
}

fn makes_cgroup(path: &Path) -> bool {
    let made = fs::create_dir(path).is_ok();
    needs::that(made, "making a cgroup needs root and a hierarchy that can be written")
}

/// A cgroup of this test's own, removed at the end with those in it.
struct Cgroups {
    mount: PathBuf,
    name: String,
}

impl Cgroups {
    fn new(name: &str) -> Option<Self> {
        let table = fs::read("/proc/self/mountinfo").unwrap();
        let mount = mountinfo::parse(&table)
            .find(|mount| mount.fs_type == b"cgroup2")
            .map(|mount| PathBuf::from(OsStr::from_bytes(mount.point)));
        if !needs::on_this_machine(mount.is_some(), "there is no cgroup v2 hierarchy") {
            return None;
        }
        if !needs::that(Path::new("/dev/kmsg").exists(), "there is no /dev/kmsg") {
            return None;
        }
        let (mount, name) = (mount?, format!("onload-ctk-{}-{name}", std::process::id()));
        // Not then_some: without a cgroup there must be nothing to drop.
        makes_cgroup(&mount.join(&name)).then(|| Cgroups { mount, name })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.mount.join(&self.name).join(path)
    }

    /// Makes a cgroup with a program that a runtime could have attached: it allows /dev/null.
    fn container(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
        self.attach(path, &extend(&constant_program(0), &[rule(1, 3, "rwm")]).unwrap());
    }

    fn attach(&self, path: &str, insns: &[u64]) {
        let program = load(insns);
        let dir = File::open(self.at(path)).unwrap();
        bpf::attach(dir.as_fd(), &program).unwrap();
    }

    fn programs(&self, path: &str) -> Vec<u32> {
        bpf::query(File::open(self.at(path)).unwrap().as_fd()).unwrap().ids
    }

    fn place(&self, path: &str) -> CgroupDir {
        CgroupDir { is_v2: true, mount: self.mount.clone(), path: Path::new(&self.name).join(path) }
    }

    fn allow(&self, path: &str, rules: &[CgroupRule]) -> onload_sys::error::Result<CgroupChanges> {
        let nobody = Path::new("/nonexistent/systemd");
        devices::allow_devices(&self.place(path), &ID.parse().unwrap(), rules, nobody)
    }

    /// Whether a process in a cgroup can write to a device.
    fn opens(&self, path: &str, device: &str) -> bool {
        let procs = self.at(path).join("cgroup.procs");
        let script = format!("echo $$ > {} && exec 3>{device}", procs.display());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = message.contains("Operation not permitted");
        assert_ne!(output.status.success(), refused, "{message}");
        !refused
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let entries =
            WalkDir::new(self.at("")).contents_first(true).into_iter().map(|entry| entry.unwrap());
        for dir in entries.filter(|entry| entry.file_type().is_dir()) {
            let _ = fs::remove_dir(dir.path());
        }
    }
}

#[test]
fn a_program_is_extended_in_place_and_only_once() {
    let Some(cgroups) = Cgroups::new("one") else {
        return;
    };
    cgroups.container(ID);
    let before = cgroups.programs(ID);
    assert!(!cgroups.opens(ID, "/dev/kmsg") && cgroups.opens(ID, "/dev/null"));
    let changes = cgroups.allow(ID, &[kmsg()]).unwrap();
    assert!(changes.warnings.is_empty(), "{:?}", changes.warnings);
    assert!(cgroups.opens(ID, "/dev/kmsg") && cgroups.opens(ID, "/dev/null"));
    assert!(!cgroups.opens(ID, "/dev/zero"), "nothing else is opened");
    let after = cgroups.programs(ID);
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_ne!(before, after);
    cgroups.allow(ID, &[kmsg()]).unwrap();
    assert_eq!(cgroups.programs(ID), after, "there was nothing left to do");
}

#[test]
fn every_one_of_several_programs_is_extended() {
    let Some(cgroups) = Cgroups::new("several") else {
        return;
    };
    cgroups.container(ID);
    cgroups.container(ID);
    cgroups.attach(ID, &constant_program(1));
    cgroups.allow(ID, &[kmsg(), rule(1, 5, "rw")]).unwrap();
    assert_eq!(cgroups.programs(ID).len(), 3);
    assert!(cgroups.opens(ID, "/dev/kmsg") && cgroups.opens(ID, "/dev/zero"));
}

#[test]
fn crun_s_cgroup_and_its_scope_are_both_extended() {
    let Some(cgroups) = Cgroups::new("crun") else {
        return;
    };
    let scope = format!("libpod-{ID}.scope");
    let leaf = format!("{scope}/container");
    cgroups.container(&scope);
    cgroups.container(&leaf);
    let changes = cgroups.allow(&leaf, &[kmsg()]).unwrap();
    assert!(cgroups.opens(&leaf, "/dev/kmsg"));
    assert!(
        changes.warnings.len() == 1 && changes.warnings[0].contains("systemd is not reachable at"),
        "{:?}",
        changes.warnings
    );
}

/// systemd in a container moves to a cgroup below the one that its runtime made.
#[test]
fn the_cgroups_above_one_that_the_container_moved_to_are_extended() {
    let Some(cgroups) = Cgroups::new("moved") else {
        return;
    };
    let leaf = format!("{ID}/init.scope");
    cgroups.container(ID);
    fs::create_dir(cgroups.at(&leaf)).unwrap();
    assert!(!cgroups.opens(&leaf, "/dev/kmsg"));
    let changes = cgroups.allow(&leaf, &[kmsg()]).unwrap();
    assert!(changes.warnings.is_empty(), "{:?}", changes.warnings);
    assert!(cgroups.opens(&leaf, "/dev/kmsg"));
}

#[test]
fn a_cgroup_around_the_container_s_is_never_changed() {
    let Some(cgroups) = Cgroups::new("around") else {
        return;
    };
    cgroups.container("pod");
    let leaf = format!("pod/{ID}");
    cgroups.container(&leaf);
    let before = cgroups.programs("pod");
    let changes = cgroups.allow(&leaf, &[kmsg()]).unwrap();
    assert_eq!(cgroups.programs("pod"), before);
    assert!(!cgroups.opens("pod", "/dev/kmsg"));
    assert!(changes.warnings[0].contains("has its own device program"), "{:?}", changes.warnings);
}

/// Sends signals to the thread that calls this, for about a second, to a handler that does nothing.
#[expect(unsafe_code, reason = "the library sends signals to processes alone")]
fn signals() -> JoinHandle<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a handler that does nothing may run at any time; no other test uses this signal.
    unsafe { libc::signal(libc::SIGUSR2, handler) };
    let (process, thread) = (std::process::id(), gettid().as_raw_nonzero().get());
    std::thread::spawn(move || {
        for _ in 0..2000 {
            // SAFETY: three numbers.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_micros(300));
        }
    })
}

/// The verifier stops for a signal, and says EAGAIN.
#[test]
fn a_signal_while_the_kernel_verifies_a_program_is_no_refusal() {
    let Some(cgroups) = Cgroups::new("signals") else {
        return;
    };
    cgroups.container(ID);
    let signals = signals();
    while !signals.is_finished() {
        cgroups.allow(ID, &[kmsg()]).unwrap().undo();
    }
}

/// `BPF_LINK_CREATE` (include/uapi/linux/bpf.h); the link lives as long as what is returned.
#[expect(unsafe_code, reason = "the library has no links")]
fn link(cgroup: &File, program: &OwnedFd) -> OwnedFd {
    const LINK_CREATE: libc::c_long = 28;
    const ATTACH_DEVICE: i32 = 6;
    // program, target, attach type, flags
    let mut attr = [program.as_raw_fd(), cgroup.as_raw_fd(), ATTACH_DEVICE, 0];
    // SAFETY: the kernel reads the four numbers and keeps no pointer.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, LINK_CREATE, attr.as_mut_ptr(), size_of_val(&attr)) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor that nobody else knows.
    unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) }
}

/// BPF_F_REPLACE does not find such a program, and says the same as of one that is gone.
#[test]
fn a_program_that_is_attached_by_a_link_is_refused_and_the_others_are_as_they_were() {
    let Some(cgroups) = Cgroups::new("linked") else {
        return;
    };
    cgroups.container(ID);
    let only_null = extend(&constant_program(0), &[rule(1, 3, "rwm")]).unwrap();
    let program = load(&only_null);
    let link = link(&File::open(cgroups.at(ID)).unwrap(), &program);
    let before = cgroups.programs(ID);
    assert_eq!(before.len(), 2);
    let message = format!("{:#}", cgroups.allow(ID, &[kmsg()]).unwrap_err());
    let linked = format!("device program {} ", bpf::program_id(&program).unwrap());
    assert!(message.contains(&linked) && message.contains("attached by a BPF link"), "{message}");
    assert_eq!(cgroups.programs(ID), before);
    assert!(!cgroups.opens(ID, "/dev/kmsg"));
    drop(link);
    // A process that another test starts has the link, too, until it becomes its program.
    while cgroups.programs(ID).len() == 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    cgroups.allow(ID, &[kmsg()]).unwrap();
    assert!(cgroups.opens(ID, "/dev/kmsg"));
}

#[test]
fn a_program_of_a_link_that_has_the_rules_is_no_hindrance() {
    let Some(cgroups) = Cgroups::new("linked-open") else {
        return;
    };
    cgroups.container(ID);
    let program = load(&extend(&constant_program(0), &[kmsg()]).unwrap());
    let _link = link(&File::open(cgroups.at(ID)).unwrap(), &program);
    cgroups.allow(ID, &[kmsg()]).unwrap();
    assert!(cgroups.opens(ID, "/dev/kmsg"));
}

#[test]
fn what_was_changed_is_changed_back() {
    let Some(cgroups) = Cgroups::new("undo") else {
        return;
    };
    cgroups.container(ID);
    let before = cgroups.programs(ID);
    let changes = cgroups.allow(ID, &[kmsg()]).unwrap();
    assert!(cgroups.opens(ID, "/dev/kmsg"));
    changes.undo();
    assert_eq!(cgroups.programs(ID), before);
    assert!(!cgroups.opens(ID, "/dev/kmsg"));
}

#[test]
fn without_a_program_nothing_is_attached() {
    let Some(cgroups) = Cgroups::new("none") else {
        return;
    };
    fs::create_dir(cgroups.at(ID)).unwrap();
    cgroups.allow(ID, &[kmsg()]).unwrap();
    assert_eq!(cgroups.programs(ID), [0; 0]);
    assert!(cgroups.opens(ID, "/dev/kmsg"));
}

#[test]
#[ignore = "sets net.core.bpf_jit_harden of the machine for a moment"]
fn a_program_that_the_kernel_hides_is_refused_without_a_scope() {
    const HARDEN: &str = "/proc/sys/net/core/bpf_jit_harden";
    let Some(cgroups) = Cgroups::new("hidden") else {
        return;
    };
    let before = fs::read_to_string(HARDEN).unwrap();
    fs::write(HARDEN, "2").unwrap();
    cgroups.container(ID);
    let refused = cgroups.allow(ID, &[kmsg()]);
    let scope = format!("libpod-{ID}.scope");
    cgroups.container(&scope);
    fs::write(HARDEN, before).unwrap();
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("net.core.bpf_jit_harden"), "{message}");
    assert!(!cgroups.opens(ID, "/dev/kmsg"));

    // The one that could be extended is as it was when another one could not.
    let leaf = format!("{scope}/container");
    cgroups.container(&leaf);
    let before = (cgroups.programs(&leaf), cgroups.programs(&scope));
    assert!(cgroups.allow(&leaf, &[kmsg()]).is_err());
    assert_eq!((cgroups.programs(&leaf), cgroups.programs(&scope)), before);
}

/// A cgroup of version 1 in another, removed at the end.
struct Lists {
    mount: PathBuf,
    path: PathBuf,
}

impl Lists {
    fn new(name: &str) -> Option<Self> {
        let mount = PathBuf::from("/sys/fs/cgroup/devices");
        let around = format!("onload-ctk-{}-{name}", std::process::id());
        let is_v1 = mount.join("devices.list").exists();
        if !needs::on_this_machine(is_v1, "there is no devices controller of cgroup v1") {
            return None;
        }
        let path = Path::new(&around).join(ID);
        makes_cgroup(&mount.join(around)).then(|| Lists { mount, path })
    }

    fn at(&self) -> PathBuf {
        self.mount.join(&self.path)
    }

    fn around(&self) -> PathBuf {
        self.at().parent().unwrap().to_owned()
    }

    /// Closes the cgroup around the container's but for some devices, and makes the container's own.
    fn container(&self, allowed: &[&str]) {
        fs::write(self.around().join("devices.deny"), "a").unwrap();
        for line in allowed {
            fs::write(self.around().join("devices.allow"), line).unwrap();
        }
        fs::create_dir(self.at()).unwrap();
    }

    fn list(&self) -> Vec<String> {
        let text = fs::read_to_string(self.at().join("devices.list")).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    fn allow(&self, rules: &[CgroupRule]) -> onload_sys::error::Result<CgroupChanges> {
        let place = CgroupDir { is_v2: false, mount: self.mount.clone(), path: self.path.clone() };
        let nobody = Path::new("/nonexistent/systemd");
        devices::allow_devices(&place, &ID.parse().unwrap(), rules, nobody)
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.at());
        let _ = fs::remove_dir(self.around());
    }
}

#[test]
fn a_list_is_changed_back_to_what_it_was_and_not_beyond() {
    let Some(lists) = Lists::new("undo") else {
        return;
    };
    lists.container(&["c *:* rw"]);
    fs::write(lists.at().join("devices.deny"), "a").unwrap();
    for line in ["c 1:11 r", "c 1:5 rw", "c 2:* rw"] {
        fs::write(lists.at().join("devices.allow"), line).unwrap();
    }
    let before = lists.list();
    assert_eq!(before, ["c 1:11 r", "c 1:5 rw", "c 2:* rw"]);
    let asked = [(1, 11, "w"), (1, 11, "r"), (1, 5, "rw"), (2, 3, "rw"), (1, 7, "r")]
        .map(|(major, minor, access)| rule(major, minor, access));
    let changes = lists.allow(&asked).unwrap();
    let now = ["c 1:11 rw", "c 1:5 rw", "c 1:7 r", "c 2:* rw", "c 2:3 rw"];
    assert_eq!(lists.list(), now);
    changes.undo();
    assert_eq!(lists.list(), before);
}

/// As a failed reapply does it: the cgroup around the container's refuses the second device.
#[test]
fn a_device_that_was_open_before_stays_open_where_another_one_is_refused() {
    let Some(lists) = Lists::new("refused") else {
        return;
    };
    lists.container(&["c 1:11 rw"]);
    assert_eq!(lists.list(), ["c 1:11 rw"]);
    let refused = lists.allow(&[kmsg(), rule(1, 5, "rw")]);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("devices.allow"), "{message}");
    assert_eq!(lists.list(), ["c 1:11 rw"]);
}
