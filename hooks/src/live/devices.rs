//! Allows a running container to open devices: in the device list of cgroup v1 or the BPF device
//! programs of cgroup v2, and in the list that systemd keeps for the container's scope.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use onload_core::container_id::ContainerId;
use onload_sys::bpf::cgroup::{self as bpf, AttachedPrograms, BpfProgram};
use onload_sys::error::{Context, Result, bail};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::cgroup::CgroupDir;
use super::program;
use super::systemd::Systemd;
use crate::decide::verified_node::CgroupRule;

/// Changes that can be undone.
#[derive(Debug, Default)]
pub struct CgroupChanges {
    /// For cgroup v1: the open file `devices.deny`, and the rules that were added to the list and were not
    /// in force before.
    list: Option<(File, Vec<CgroupRule>)>,
    programs: Vec<ReplacedProgram>,
    pub warnings: Vec<String>,
}

#[derive(Debug)]
struct ReplacedProgram {
    cgroup: Rc<OwnedFd>,
    flags: u32,
    old: OwnedFd,
    /// `None` if the old one was detached because systemd's program replaces it.
    new: Option<OwnedFd>,
}

impl CgroupChanges {
    /// Undoes the changes as far as possible. Rules that were in force before remain: the engine may have
    /// granted them, and the container may be using them.
    pub fn undo(self) {
        if let Some((deny, rules)) = &self.list {
            for rule in rules {
                let _ = write_rule(deny, *rule);
            }
        }
        for replaced in self.programs.iter().rev() {
            let cgroup = replaced.cgroup.as_fd();
            let _ = match &replaced.new {
                Some(new) => bpf::replace(cgroup, replaced.flags, &replaced.old, new),
                None => bpf::attach(cgroup, &replaced.old),
            };
        }
    }
}

/// Allows a container to open all of these devices, or none of them if an error occurs. `socket` is the path
/// of systemd's socket.
pub fn allow_devices(
    dir: &CgroupDir,
    id: &ContainerId,
    rules: &[CgroupRule],
    socket: &Path,
) -> Result<CgroupChanges> {
    let mut update = DeviceUpdate { dir, id, rules, socket, changes: CgroupChanges::default() };
    if rules.is_empty() {
        return Ok(update.changes);
    }
    let result = if dir.is_v2 { update.allow_v2() } else { update.allow_v1() };
    match result {
        Ok(()) => Ok(update.changes),
        Err(error) => {
            update.changes.undo();
            Err(error)
        }
    }
}

/// Writes the rule for one device to `devices.allow` or `devices.deny`. The kernel accepts one rule per
/// system call (Documentation/admin-guide/cgroup-v1/devices.rst).
fn write_rule(mut list: &File, rule: CgroupRule) -> io::Result<()> {
    list.write_all(format!("c {} {}", rule.numbers(), rule.access).as_bytes())
}

/// The devices that a container is to be allowed to open, and the changes so far.
struct DeviceUpdate<'a> {
    dir: &'a CgroupDir,
    id: &'a ContainerId,
    rules: &'a [CgroupRule],
    /// The socket of systemd.
    socket: &'a Path,
    changes: CgroupChanges,
}

/// A cgroup, and the device programs that were attached to it at first.
struct CgroupPrograms {
    path: PathBuf,
    fd: Rc<OwnedFd>,
    /// The programs when the cgroup was opened.
    before: AttachedPrograms,
}

impl CgroupPrograms {
    fn open(path: PathBuf) -> Result<Self> {
        let fd = open_dir(&path)?;
        let before = query(&path, &fd)?;
        Ok(CgroupPrograms { path, fd: Rc::new(fd), before })
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(rustix::fs::CWD, path, flags, Mode::empty()).with_context(|| format!("opening {path:?}"))
}

fn query(path: &Path, fd: &OwnedFd) -> Result<AttachedPrograms> {
    let programs = bpf::query(fd.as_fd());
    programs.with_context(|| format!("querying the device programs of cgroup {path:?}"))
}

impl DeviceUpdate<'_> {
    /// Adds the devices to the list of cgroup v1. systemd rewrites that list whenever it updates the scope,
    /// so the list of systemd is updated first (systemd, `src/core/cgroup.c`, `cgroup_apply_devices`).
    fn allow_v1(&mut self) -> Result<()> {
        let path = self.dir.full_path();
        let open = |name: &str| {
            let path = path.join(name);
            let file = File::options().write(true).open(&path);
            file.with_context(|| format!("opening {path:?}"))
        };
        let list = path.join("devices.list");
        let before = std::fs::read_to_string(&list).with_context(|| format!("reading {list:?}"))?;
        self.update_systemd()?;
        let allow = open("devices.allow")?;
        let (_, written) = self.changes.list.insert((open("devices.deny")?, Vec::new()));
        for rule in self.rules {
            write_rule(&allow, *rule)
                .with_context(|| format!("writing a device to {:?}", path.join("devices.allow")))?;
            written.extend(rule.missing_from(&before));
        }
        Ok(())
    }

    /// Adds the devices to systemd's list for the container's scope (`DeviceAllow`), if the scope allows only
    /// the devices in that list. Returns whether they were added.
    fn update_systemd(&mut self) -> Result<bool> {
        let Some(scope) = self.dir.systemd_scope(self.id) else {
            return Ok(false);
        };
        let Some(mut systemd) = Systemd::connect(self.socket, scope)? else {
            self.changes.warnings.push(format!(
                "systemd is not reachable at {}, so an update of {scope} closes the devices",
                self.socket.display()
            ));
            return Ok(false);
        };
        let is_closed = systemd.is_closed()?;
        if is_closed {
            systemd.allow_devices(self.rules)?;
        }
        Ok(is_closed)
    }

    fn allow_v2(&mut self) -> Result<()> {
        let mut own_cgroups = Vec::new();
        for path in self.dir.own_cgroups(self.id) {
            own_cgroups.push(CgroupPrograms::open(path)?);
        }
        self.warn_of_outer_programs()?;
        if own_cgroups.iter().all(|programs| programs.before.ids.is_empty()) {
            return Ok(());
        }
        let covers_new = self.update_systemd()?;
        let mut has_replaced = false;
        for programs in own_cgroups.iter().filter(|_| covers_new) {
            let now = query(&programs.path, &programs.fd)?;
            // A program that systemd has just attached already allows the devices.
            has_replaced |= now.ids.iter().any(|id| !programs.before.ids.contains(id));
        }
        for programs in &own_cgroups {
            self.extend_all(programs, covers_new, has_replaced)?;
        }
        Ok(())
    }

    /// Prepends the rules to each program of a cgroup. Repeats this until all programs have them, since other
    /// processes may attach programs at the same time.
    ///
    /// If `covers_new` is true, systemd has the devices in its list, so programs that were attached since then
    /// already allow them. If `has_replaced` is true, systemd has already attached such a program.
    fn extend_all(
        &mut self,
        cgroup_programs: &CgroupPrograms,
        covers_new: bool,
        has_replaced: bool,
    ) -> Result<()> {
        let mut extended = Vec::new();
        for round in 0.. {
            let now = query(&cgroup_programs.path, &cgroup_programs.fd)?;
            let mut remaining = now.ids;
            remaining.retain(|id| {
                let is_covered = covers_new && !cgroup_programs.before.ids.contains(id);
                !is_covered && !extended.contains(id)
            });
            let Some(first) = remaining.first() else { break };
            if round == ROUNDS {
                bail!(
                    "the device program {first} of cgroup {:?} is attached by a BPF link, so only the owner of the link can change what it allows (`bpftool link` lists it); use the engine's --device",
                    cgroup_programs.path
                );
            }
            for program in remaining {
                match extend(cgroup_programs, now.flags, program, self.rules)? {
                    ExtendResult::Already => extended.push(program),
                    ExtendResult::By(new, replaced) => {
                        extended.push(new);
                        self.changes.programs.push(replaced);
                    }
                    ExtendResult::Gone => {}
                    ExtendResult::Hidden(_, old) if has_replaced => {
                        self.changes.programs.push(detach(cgroup_programs, now.flags, old)?);
                    }
                    ExtendResult::Hidden(cause, _) => bail!(
                        "the device program of cgroup {:?} cannot be extended ({cause}), and no systemd scope replaces it; set net.core.bpf_jit_harden to 1 or use the engine's --device",
                        cgroup_programs.path
                    ),
                }
            }
        }
        Ok(())
    }

    /// Warns about programs above the container's own cgroups. They control other processes too, so they are
    /// not changed.
    fn warn_of_outer_programs(&mut self) -> Result<()> {
        for path in self.dir.outer_cgroups(self.id) {
            let fd = open_dir(&path)?;
            if !query(&path, &fd)?.ids.is_empty() {
                self.changes.warnings.push(format!(
                    "cgroup {path:?} above the container has its own device program, which may still \
                     deny the devices"
                ));
            }
        }
        Ok(())
    }
}

/// The maximum number of passes over the programs of a cgroup. A program that still lacks the rules after the last pass
/// is taken to be attached by a BPF link.
const ROUNDS: usize = 4;

/// Detaches a program that systemd's program replaces.
fn detach(cgroup_programs: &CgroupPrograms, flags: u32, old: OwnedFd) -> Result<ReplacedProgram> {
    bpf::detach(cgroup_programs.fd.as_fd(), &old).with_context(|| {
        format!("detaching the runtime's program of cgroup {:?}", cgroup_programs.path)
    })?;
    let cgroup = Rc::clone(&cgroup_programs.fd);
    Ok(ReplacedProgram { cgroup, flags, old, new: None })
}

/// The result of prepending the rules to a program.
enum ExtendResult {
    /// A new program with this ID has replaced it.
    By(u32, ReplacedProgram),
    /// It already begins with the rules.
    Already,
    /// It has been detached, or it is attached by a link and cannot be replaced.
    Gone,
    /// The kernel does not return its instructions, or rejects them when they are loaded again. Contains the
    /// reason and the program.
    Hidden(&'static str, OwnedFd),
}

fn extend(
    cgroup_programs: &CgroupPrograms,
    flags: u32,
    program: u32,
    rules: &[CgroupRule],
) -> Result<ExtendResult> {
    let program_context = |action: &str| format!("{action} of cgroup {:?}", cgroup_programs.path);
    let old = match bpf::open_program(program) {
        // It has been detached and no longer controls anything.
        Err(Errno::NOENT) => return Ok(ExtendResult::Gone),
        old => old.with_context(|| program_context("opening the device program"))?,
    };
    let read = bpf::read(&old).with_context(|| program_context("reading the device program"))?;
    if read.insns.is_empty() {
        return Ok(ExtendResult::Hidden("the kernel does not return it", old));
    }
    let Some(insns) = program::extend(&read.insns, rules) else {
        return Ok(ExtendResult::Already);
    };
    let new = match bpf::load(&BpfProgram { insns, ..read }) {
        // Blinded constants use a register that the kernel rejects in a program that is loaded.
        Err(Errno::INVAL) => {
            return Ok(ExtendResult::Hidden("the kernel hides its constants", old));
        }
        new => new.with_context(|| program_context("loading the device program"))?,
    };
    let id = bpf::program_id(&new)
        .with_context(|| program_context("looking at the new device program"))?;
    let cgroup = Rc::clone(&cgroup_programs.fd);
    match bpf::replace(cgroup.as_fd(), flags, &new, &old) {
        // It has been detached, or it is attached by a link (kernel/bpf/cgroup.c,
        // `find_attach_entry`). The next round shows whether it is still there.
        Err(Errno::NOENT) => return Ok(ExtendResult::Gone),
        replaced => replaced.with_context(|| program_context("replacing the device program"))?,
    }
    let replaced = ReplacedProgram { cgroup, flags, old, new: Some(new) };
    Ok(ExtendResult::By(id, replaced))
}
