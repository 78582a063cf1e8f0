//! The only place that calls bpf(2). Callers pass the attribute of their command.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::error::last_errno;

const PROG_LOAD: libc::c_long = 5;
pub(super) const PROG_DETACH: libc::c_long = 9;
pub(super) const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
pub(super) const PROG_QUERY: libc::c_long = 16;

/// Attribute structures and the info structures that the kernel fills in. They consist of plain numbers without
/// padding, so that their bytes are exactly those that the kernel reads or writes. Addresses in a structure come from
/// [`address`]. They belong to vectors, strings or structures of plain numbers that outlive the call and whose length
/// is passed too. An address that the kernel writes to comes from a mutable reference.
pub(super) trait BpfAttr {}

/// `union bpf_attr` of the commands that take only numbers.
#[repr(C)]
pub(super) struct NumberAttr(pub(super) [u32; 6]);

/// `union bpf_attr` of [`PROG_QUERY`].
#[repr(C)]
#[derive(Default)]
pub(super) struct ProgQueryAttr {
    /// The descriptor of a cgroup, or the index of an interface.
    pub(super) target: u32,
    pub(super) attach_type: u32,
    pub(super) query_flags: u32,
    pub(super) attach_flags: u32,
    pub(super) programs: u64,
    pub(super) count: u32,
    pub(super) padding: u32,
    pub(super) program_flags: u64,
    pub(super) links: u64,
    pub(super) link_flags: u64,
    pub(super) revision: u64,
}

/// `union bpf_attr` of [`load`].
#[repr(C)]
#[derive(Default)]
pub(super) struct ProgLoadAttr {
    pub(super) prog_type: u32,
    pub(super) insn_cnt: u32,
    pub(super) insns: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log_buf: u64,
    pub(super) kern_version: u32,
    pub(super) prog_flags: u32,
    pub(super) prog_name: [u8; 16],
    pub(super) prog_ifindex: u32,
    pub(super) expected_attach_type: u32,
}

#[repr(C)]
struct ObjInfoAttr {
    fd: u32,
    length: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
pub(super) struct ProgramInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) tag: [u8; 8],
    pub(super) jited_prog_len: u32,
    pub(super) xlated_prog_len: u32,
    pub(super) jited_prog_insns: u64,
    pub(super) xlated_prog_insns: u64,
    pub(super) load_time: u64,
    pub(super) created_by_uid: u32,
    pub(super) nr_map_ids: u32,
    pub(super) map_ids: u64,
    pub(super) name: [u8; 16],
    pub(super) ifindex: u32,
    pub(super) gpl_compatible: u32,
}

impl BpfAttr for NumberAttr {}
impl BpfAttr for ProgQueryAttr {}
impl BpfAttr for ProgLoadAttr {}
impl BpfAttr for ObjInfoAttr {}
impl BpfAttr for ProgramInfo {}

pub(super) fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

pub(super) fn address<T>(pointer: *mut T) -> u64 {
    // An address of this process fits, on 32-bit machines too.
    pointer.expose_provenance() as u64
}

#[expect(unsafe_code, reason = "no library in the tree has bpf(2)")]
pub(super) fn bpf<A: BpfAttr>(command: libc::c_long, attr: &mut A) -> Result<libc::c_long, Errno> {
    // SAFETY: bpf(2) reads and writes at most `size` bytes of the attribute, which lives until the call returns, and
    // the memory that the addresses in it point to, which are as `Attr` says. The kernel writes only through the ones
    // that come from mutable references, and keeps no pointer.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<A>()) };
    if result < 0 {
        return Err(last_errno());
    }
    Ok(result)
}

/// Wraps the descriptor that a command returned.
#[expect(unsafe_code, reason = "no library in the tree has bpf(2)")]
pub(super) fn descriptor(result: libc::c_long) -> OwnedFd {
    // SAFETY: the commands whose result arrives here return a new close-on-exec descriptor (kernel/bpf/syscall.c,
    // `bpf_prog_new_fd`, `bpf_link_new_fd`) that nothing else owns; it fits an int.
    unsafe { OwnedFd::from_raw_fd(i32::try_from(result).unwrap_or(-1)) }
}

/// Loads a program. A signal to the thread, such as SIGCHLD, stops the verifier with EAGAIN (kernel/bpf/verifier.c,
/// `do_check`). It is delivered before the next attempt.
pub(super) fn load(attr: &mut ProgLoadAttr) -> Result<OwnedFd, Errno> {
    loop {
        match bpf(PROG_LOAD, attr) {
            Err(Errno::AGAIN) => {}
            loaded => return loaded.map(descriptor),
        }
    }
}

/// Opens a link or program by ID. Fails with ENOENT if it is gone.
pub(super) fn open_by_id(command: libc::c_long, id: u32) -> Result<OwnedFd, Errno> {
    bpf(command, &mut word(id)).map(descriptor)
}

/// Reads the info structure of a link or program.
pub(super) fn read_info<I: BpfAttr>(object: &OwnedFd, info: &mut I) -> Result<(), Errno> {
    let mut attr = ObjInfoAttr {
        fd: number(object.as_fd()),
        length: u32::try_from(size_of::<I>()).unwrap_or_default(),
        info: address(std::ptr::from_mut(info)),
    };
    bpf(OBJ_GET_INFO_BY_FD, &mut attr).map(drop)
}

pub(super) fn word(word: u32) -> NumberAttr {
    NumberAttr([word, 0, 0, 0, 0, 0])
}
