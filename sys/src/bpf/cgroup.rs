//! Device programs of cgroups. The kernel accepts a shorter `union bpf_attr` in place of one that ends in zeros
//! (kernel/bpf/syscall.c, `bpf_check_uarg_tail_zero`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::syscall::{
    self, BpfAttr, PROG_DETACH, PROG_GET_FD_BY_ID, PROG_QUERY, ProgLoadAttr, ProgQueryAttr,
    ProgramInfo, address, bpf, number, read_info,
};

const PROG_ATTACH: libc::c_long = 8;

/// `BPF_PROG_TYPE_CGROUP_DEVICE`.
const TYPE_DEVICE: u32 = 15;
/// `BPF_CGROUP_DEVICE`.
const ATTACH_DEVICE: u32 = 6;

/// `BPF_F_ALLOW_MULTI`: the cgroup may have several programs, and all of them must allow the access.
pub const ALLOW_MULTI: u32 = 2;
/// `BPF_F_REPLACE`: replaces one of them.
const REPLACE: u32 = 4;

/// `BPF_CGROUP_MAX_PROGS` (kernel/bpf/cgroup.c).
const MAX_ATTACHED: usize = 64;
/// Limit for the instructions of a program; a runtime's program has about a hundred.
const MAX_INSNS: usize = 1 << 16;

/// An instruction, `struct bpf_insn`, in the machine's byte order.
pub type Insn = u64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachedPrograms {
    /// The attach flags of the first program (`BPF_F_…`). The others have the same.
    pub flags: u32,
    pub ids: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfProgram {
    pub name: [u8; 16],
    /// Whether the program's licence is GPL-compatible.
    pub is_gpl: bool,
    /// Empty if the kernel does not show them.
    pub insns: Vec<Insn>,
}

#[repr(C)]
#[derive(Default)]
struct AttachAttr {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
    replace_bpf_fd: u32,
}

impl AttachAttr {
    fn new(cgroup: BorrowedFd<'_>, program: &OwnedFd) -> Self {
        AttachAttr {
            target_fd: number(cgroup),
            attach_bpf_fd: number(program.as_fd()),
            attach_type: ATTACH_DEVICE,
            ..AttachAttr::default()
        }
    }
}

impl BpfAttr for AttachAttr {}

/// Returns the programs attached to this cgroup, without those of its ancestors.
pub fn query(cgroup: BorrowedFd<'_>) -> Result<AttachedPrograms, Errno> {
    let mut ids = vec![0_u32; MAX_ATTACHED];
    let mut attr = ProgQueryAttr {
        target: number(cgroup),
        attach_type: ATTACH_DEVICE,
        programs: address(ids.as_mut_ptr()),
        count: count(ids.len()),
        ..ProgQueryAttr::default()
    };
    bpf(PROG_QUERY, &mut attr)?;
    ids.truncate(usize::try_from(attr.count).unwrap_or_default());
    Ok(AttachedPrograms { flags: attr.attach_flags, ids })
}

/// Opens a program by ID. Fails with ENOENT if it is gone.
pub fn open_program(id: u32) -> Result<OwnedFd, Errno> {
    syscall::open_by_id(PROG_GET_FD_BY_ID, id)
}

/// Reads a program. Fails with E2BIG if it is longer than any runtime's.
pub fn read(program: &OwnedFd) -> Result<BpfProgram, Errno> {
    let mut info = ProgramInfo::default();
    read_info(program, &mut info)?;
    let bytes = usize::try_from(info.xlated_prog_len).unwrap_or(usize::MAX);
    let insn_count = bytes / size_of::<Insn>();
    if insn_count > MAX_INSNS {
        return Err(Errno::TOOBIG);
    }
    let mut insns = vec![0 as Insn; insn_count];
    let mut info = ProgramInfo {
        xlated_prog_len: count(insn_count * size_of::<Insn>()),
        xlated_prog_insns: address(insns.as_mut_ptr()),
        ..ProgramInfo::default()
    };
    read_info(program, &mut info)?;
    // The kernel clears the address if it does not show the instructions (kernel/bpf/syscall.c,
    // `bpf_prog_get_info_by_fd`).
    if info.xlated_prog_insns == 0 {
        insns.clear();
    }
    Ok(BpfProgram { name: info.name, is_gpl: info.gpl_compatible & 1 == 1, insns })
}

pub fn program_id(program: &OwnedFd) -> Result<u32, Errno> {
    let mut info = ProgramInfo::default();
    read_info(program, &mut info)?;
    Ok(info.id)
}

/// Loads a program. The kernel's verifier checks it.
pub fn load(program: &BpfProgram) -> Result<OwnedFd, Errno> {
    let license = if program.is_gpl { c"GPL" } else { c"" };
    let mut attr = ProgLoadAttr {
        prog_type: TYPE_DEVICE,
        insn_cnt: count(program.insns.len()),
        insns: address(program.insns.as_ptr().cast_mut()),
        license: address(license.as_ptr().cast_mut()),
        prog_name: program.name,
        expected_attach_type: ATTACH_DEVICE,
        ..ProgLoadAttr::default()
    };
    syscall::load(&mut attr)
}

/// Replaces an attached program with another in one step, so the cgroup is never without a program.
/// `flags` are those that [`query`] returned.
pub fn replace(
    cgroup: BorrowedFd<'_>,
    flags: u32,
    new: &OwnedFd,
    old: &OwnedFd,
) -> Result<(), Errno> {
    let mut attr = AttachAttr { attach_flags: flags, ..AttachAttr::new(cgroup, new) };
    // In a cgroup limited to one program, the same call without the flag replaces it.
    if flags & ALLOW_MULTI != 0 {
        attr.attach_flags |= REPLACE;
        attr.replace_bpf_fd = number(old.as_fd());
    }
    bpf(PROG_ATTACH, &mut attr).map(|_| ())
}

/// Attaches a program in addition to the existing ones.
pub fn attach(cgroup: BorrowedFd<'_>, program: &OwnedFd) -> Result<(), Errno> {
    let mut attr = AttachAttr { attach_flags: ALLOW_MULTI, ..AttachAttr::new(cgroup, program) };
    bpf(PROG_ATTACH, &mut attr).map(|_| ())
}

pub fn detach(cgroup: BorrowedFd<'_>, program: &OwnedFd) -> Result<(), Errno> {
    bpf(PROG_DETACH, &mut AttachAttr::new(cgroup, program)).map(|_| ())
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
