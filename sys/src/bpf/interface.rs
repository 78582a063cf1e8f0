//! BPF programs on an interface that netlink cannot detach: tcx programs stay attached when the interface moves
//! (net/core/dev.c, `__dev_change_net_namespace`), and an XDP program that a BPF link attached is detached only through
//! the link.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use super::syscall::{
    BpfAttr, NumberAttr, PROG_DETACH, PROG_GET_FD_BY_ID, PROG_QUERY, ProgQueryAttr, ProgramInfo,
    address, bpf, number, open_by_id, read_info, word,
};
use crate::netlink::link::Link;
use crate::netlink::message::until_nul;

const PROG_GET_NEXT_ID: libc::c_long = 11;
const LINK_GET_FD_BY_ID: libc::c_long = 30;
const LINK_GET_NEXT_ID: libc::c_long = 31;
const LINK_DETACH: libc::c_long = 34;

/// `BPF_TCX_INGRESS` and `BPF_TCX_EGRESS` (Linux 6.6).
const TCX_ATTACH_TYPES: [u32; 2] = [46, 47];
const XDP_PROGRAM: u32 = 6;
const XDP_LINK: u32 = 6;
const MAX_ATTACHED: usize = 64;
/// Limit for the links or programs of the machine that are examined.
const MAX_IDS: usize = 65536;

/// The beginning of `struct bpf_link_info`, for a link of XDP.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    ifindex: u32,
    more: [u32; 27],
}

impl BpfAttr for LinkInfo {}

/// A tcx program: its ID, and the ID of its BPF link or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TcxProgram {
    program: u32,
    link: u32,
}

/// Returns whether an interface in this process's network namespace has tcx programs.
pub fn has_tcx_programs(link: &Link) -> bool {
    let mut attach_types = TCX_ATTACH_TYPES.into_iter();
    attach_types.any(|attach_type| {
        query_tcx_programs(link.index, attach_type).is_ok_and(|programs| !programs.is_empty())
    })
}

/// Detaches the programs that netlink cannot detach from an interface in this process's network namespace.
pub fn detach_all(link: &Link) -> Result<(), Errno> {
    if !link.xdp_programs.is_empty() {
        detach_xdp_links(link)?;
    }
    for attach_type in TCX_ATTACH_TYPES {
        // Fails with EINVAL on kernels without tcx, and with ENOSYS on those without bpf(2). Neither has such programs.
        for program in query_tcx_programs(link.index, attach_type).unwrap_or_default() {
            match detach(link.index, attach_type, program) {
                Err(Errno::NOENT) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Returns the IDs of the machine's XDP programs with a name. Programs that cannot be examined are skipped.
pub fn find_xdp_programs(name: &[u8]) -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    let mut last = 0;
    for _ in 0..MAX_IDS {
        let mut attr = word(last);
        if bpf(PROG_GET_NEXT_ID, &mut attr).is_err() {
            break;
        }
        last = attr.0[1];
        let info = open_by_id(PROG_GET_FD_BY_ID, last).and_then(|program| {
            let mut info = ProgramInfo::default();
            read_info(&program, &mut info).map(|()| info)
        });
        ids.extend(
            info.ok()
                .filter(|info| info.kind == XDP_PROGRAM && until_nul(&info.name) == name)
                .map(|info| info.id),
        );
    }
    ids
}

/// Returns whether a BPF program exists. `None` if unknown, as without CAP_SYS_ADMIN.
pub fn has_program(id: u32) -> Option<bool> {
    match open_by_id(PROG_GET_FD_BY_ID, id) {
        Ok(_) => Some(true),
        Err(Errno::NOENT) => Some(false),
        Err(_) => None,
    }
}

fn query_tcx_programs(ifindex: u32, attach_type: u32) -> Result<Vec<TcxProgram>, Errno> {
    let mut programs = [0_u32; MAX_ATTACHED];
    let mut links = [0_u32; MAX_ATTACHED];
    let mut query = ProgQueryAttr {
        target: ifindex,
        attach_type,
        programs: address(programs.as_mut_ptr()),
        links: address(links.as_mut_ptr()),
        count: u32::try_from(MAX_ATTACHED).unwrap_or_default(),
        ..ProgQueryAttr::default()
    };
    match bpf(PROG_QUERY, &mut query) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        result => result?,
    };
    let count = usize::try_from(query.count).unwrap_or_default();
    let attached = programs.into_iter().zip(links).take(count);
    Ok(attached.map(|(program, link)| TcxProgram { program, link }).collect())
}

fn detach(ifindex: u32, attach_type: u32, attached: TcxProgram) -> Result<(), Errno> {
    if attached.link != 0 {
        return detach_link(&open_by_id(LINK_GET_FD_BY_ID, attached.link)?);
    }
    let program = open_by_id(PROG_GET_FD_BY_ID, attached.program)?;
    let mut attr = NumberAttr([ifindex, number(program.as_fd()), attach_type, 0, 0, 0]);
    bpf(PROG_DETACH, &mut attr).map(drop)
}

/// Detaches XDP links of an interface. Links of all network namespaces are listed and report only an interface index,
/// so they are matched by the ID of the attached program.
fn detach_xdp_links(link: &Link) -> Result<(), Errno> {
    let mut last = 0;
    for _ in 0..MAX_IDS {
        let mut attr = word(last);
        match bpf(LINK_GET_NEXT_ID, &mut attr) {
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => return Ok(()),
            result => result?,
        };
        last = attr.0[1];
        let Ok(fd) = open_by_id(LINK_GET_FD_BY_ID, last) else {
            continue;
        };
        let mut info = LinkInfo::default();
        if read_info(&fd, &mut info).is_err() {
            continue;
        }
        let is_on_link = info.kind == XDP_LINK && info.ifindex == link.index;
        if is_on_link && link.xdp_programs.contains(&info.program) {
            detach_link(&fd)?;
        }
    }
    Ok(())
}

fn detach_link(link: &OwnedFd) -> Result<(), Errno> {
    bpf(LINK_DETACH, &mut word(number(link.as_fd()))).map(drop)
}

#[cfg(test)]
mod tests {
    use onload_test_tree::network::{self, Child};

    use super::super::syscall::{self, ProgLoadAttr, descriptor};
    use super::*;
    use crate::netlink::link;
    use crate::netlink::socket::NetlinkSocket;

    const PROG_ATTACH: libc::c_long = 8;
    const LINK_CREATE: libc::c_long = 28;
    const SCHED_CLS: u32 = 3;
    const XDP: u32 = 6;
    const XDP_PLACE: u32 = 37;

    fn named_link(name: &[u8]) -> Link {
        let socket = NetlinkSocket::open(None).unwrap();
        let links = socket.list(link::GET, &link::dump_payload(), &link::parse).unwrap();
        links.into_iter().find(|link| link.name == name).unwrap()
    }

    /// A program of two instructions, that returns a number.
    fn load(kind: u32, number: u32, place: u32) -> OwnedFd {
        load_named(b"", kind, number, place)
    }

    fn load_named(called: &[u8], kind: u32, number: u32, place: u32) -> OwnedFd {
        let mut name = [0; 16];
        name[..called.len()].copy_from_slice(called);
        let mut code = [0xb7_u64 | u64::from(number) << 32, 0x95];
        let mut licence = *b"GPL\0";
        let mut attr = ProgLoadAttr {
            prog_type: kind,
            insn_cnt: 2,
            insns: address(&mut code),
            license: address(&mut licence),
            prog_name: name,
            expected_attach_type: place,
            ..ProgLoadAttr::default()
        };
        syscall::load(&mut attr).unwrap()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn programs_of_tcx_are_seen_and_taken_away_however_they_were_put_there() {
        if !network::can_be("BPF programs on interfaces") {
            return;
        }
        let child = Child::of_root();
        child.ip("link add d0 type veth peer name d1");
        child.within(|| {
            let link = named_link(b"d0");
            assert!(!has_tcx_programs(&link));
            detach_all(&link).unwrap();
            let plain = load(SCHED_CLS, 0, 0);
            let mut attr = NumberAttr([link.index, number(plain.as_fd()), 46, 0, 0, 0]);
            bpf(PROG_ATTACH, &mut attr).unwrap();
            let held = load(SCHED_CLS, 1, 0);
            let mut attr = NumberAttr([number(held.as_fd()), link.index, 47, 0, 0, 0]);
            let _kept = descriptor(bpf(LINK_CREATE, &mut attr).unwrap());
            assert!(has_tcx_programs(&link));
            detach_all(&link).unwrap();
            assert!(!has_tcx_programs(&link));
        });
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn programs_of_xdp_are_found_by_their_name_while_somebody_holds_them() {
        if !network::can_be("BPF programs") {
            return;
        }
        let name = format!("ctk{}", std::process::id());
        let found = || find_xdp_programs(name.as_bytes());
        let before = found();
        let other = load_named(name.as_bytes(), SCHED_CLS, 0, 0);
        let longer = load_named(format!("{name}x").as_bytes(), XDP, 2, XDP_PLACE);
        assert_eq!((before, found()), (BTreeSet::new(), BTreeSet::new()));
        let program = load_named(name.as_bytes(), XDP, 2, XDP_PLACE);
        assert_eq!(found().len(), 1);
        drop((other, longer));
        assert_eq!(found().len(), 1);
        drop(program);
        // The kernel ends a program a moment after its last holder.
        let is_gone = || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            found().is_empty()
        };
        assert!((0..500).any(|_| is_gone()));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_program_of_xdp_goes_with_the_link_that_holds_it_and_no_other_does() {
        if !network::can_be("BPF programs on interfaces") {
            return;
        }
        let child = Child::of_root();
        child.ip("link add d0 type veth peer name d1");
        child.within(|| {
            let kept = [b"d0", b"d1"].map(|name| {
                let program = load(XDP, 2, XDP_PLACE);
                // `XDP_FLAGS_SKB_MODE`.
                let index = named_link(name).index;
                let mut attr = NumberAttr([number(program.as_fd()), index, XDP_PLACE, 2, 0, 0]);
                descriptor(bpf(LINK_CREATE, &mut attr).unwrap())
            });
            assert!(!named_link(b"d0").xdp_modes.is_empty());
            detach_all(&named_link(b"d0")).unwrap();
            assert!(named_link(b"d0").xdp_modes.is_empty());
            assert!(!named_link(b"d1").xdp_modes.is_empty());
            drop(kept);
        });
    }
}
