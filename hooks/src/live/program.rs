//! The instructions prepended to a device program: they allow some devices and continue with the original for all
//! others. Nothing in that has to change: its jumps are relative, register 1 still holds its context, and it cannot
//! rely on any other register (kernel/bpf/verifier.c, `init_func_state`).

use onload_sys::bpf::cgroup::Insn;

use crate::decide::verified_node::{CgroupRule, DeviceAccess};

/// `BPF_DEVCG_DEV_CHAR`.
const CHARACTER: i32 = 2;

mod op {
    /// `dst = *(u32 *)(src + off)`.
    pub(super) const LOAD_WORD: u8 = 0x61;
    /// `dst = src`.
    pub(super) const MOVE: u8 = 0xbf;
    /// `dst = imm`.
    pub(super) const MOVE_IMM: u8 = 0xb7;
    /// `(u32)dst &= imm`.
    pub(super) const AND32_IMM: u8 = 0x54;
    /// `(u32)dst >>= imm`.
    pub(super) const SHIFT_RIGHT32_IMM: u8 = 0x74;
    /// `if dst != imm, off instructions on`.
    pub(super) const JUMP_NOT_EQUAL_IMM: u8 = 0x55;
    /// `return r0`.
    pub(super) const EXIT: u8 = 0x95;
}

/// `struct bpf_insn` in the byte order of this machine.
fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    let registers = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
    let [off0, off1] = off.to_ne_bytes();
    let [imm0, imm1, imm2, imm3] = imm.to_ne_bytes();
    Insn::from_ne_bytes([code, registers, off0, off1, imm0, imm1, imm2, imm3])
}

/// The context is `struct bpf_cgroup_dev_ctx`: the device type in the low half of its first word and the
/// requested access in the high half, then the major and minor numbers.
pub(crate) fn prologue(rules: &[CgroupRule]) -> Vec<Insn> {
    let mut insns = vec![
        insn(op::LOAD_WORD, 2, 1, 0, 0),
        insn(op::MOVE, 3, 2, 0, 0),
        insn(op::AND32_IMM, 2, 0, 0, 0xffff),
        insn(op::SHIFT_RIGHT32_IMM, 3, 0, 0, 16),
        insn(op::LOAD_WORD, 4, 1, 4, 0),
        insn(op::LOAD_WORD, 5, 1, 8, 0),
    ];
    for rule in rules {
        append_allow(&mut insns, *rule);
    }
    insns
}

fn append_allow(insns: &mut Vec<Insn>, rule: CgroupRule) {
    // Device numbers have 12 and 20 bits (include/linux/kdev_t.h).
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let refused = i32::from(!rule.access.bits());
    let mut limit = Vec::new();
    if rule.access != DeviceAccess::ALL {
        limit = vec![
            insn(op::MOVE, 0, 3, 0, 0),
            insn(op::AND32_IMM, 0, 0, 0, refused),
            insn(op::JUMP_NOT_EQUAL_IMM, 0, 0, 2, 0),
        ];
    }
    let skip = i16::try_from(limit.len()).unwrap_or_default() + 2;
    insns.extend([
        insn(op::JUMP_NOT_EQUAL_IMM, 2, 0, skip + 2, CHARACTER),
        insn(op::JUMP_NOT_EQUAL_IMM, 4, 0, skip + 1, number(rule.major)),
        insn(op::JUMP_NOT_EQUAL_IMM, 5, 0, skip, number(rule.minor)),
    ]);
    insns.extend(limit);
    insns.extend([insn(op::MOVE_IMM, 0, 0, 0, 1), insn(op::EXIT, 0, 0, 0, 0)]);
}

/// A program with the rules prepended; `None` if it already begins with them.
#[must_use]
pub fn extend(insns: &[Insn], rules: &[CgroupRule]) -> Option<Vec<Insn>> {
    let mut new = prologue(rules);
    if insns.starts_with(&new) {
        return None;
    }
    new.extend(insns);
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with a constant result: 1 allows everything, 0 nothing.
    fn constant_program(value: i32) -> Vec<Insn> {
        vec![insn(op::MOVE_IMM, 0, 0, 0, value), insn(op::EXIT, 0, 0, 0, 0)]
    }

    fn rule(major: u32, minor: u32, access: &str) -> CgroupRule {
        CgroupRule { major, minor, access: access.to_owned().try_into().unwrap() }
    }

    /// Computes the few instructions used here as the kernel's interpreter does.
    fn run(insns: &[Insn], kind: u32, access: u32, major: u32, minor: u32) -> u64 {
        let context = [access << 16 | kind, major, minor];
        let mut r = [0_u64; 11];
        let mut at = 0_usize;
        loop {
            let [code, registers, off0, off1, imm0, imm1, imm2, imm3] = insns[at].to_ne_bytes();
            let (dst, src) = (usize::from(registers & 15), usize::from(registers >> 4));
            let off = i16::from_ne_bytes([off0, off1]);
            let imm = i32::from_ne_bytes([imm0, imm1, imm2, imm3]);
            let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap();
            at += 1;
            match code {
                op::LOAD_WORD => {
                    assert_eq!(src, 1);
                    r[dst] = context[usize::try_from(off).unwrap() / 4].into();
                }
                op::MOVE => r[dst] = r[src],
                op::MOVE_IMM => r[dst] = u64::try_from(imm).unwrap(),
                op::AND32_IMM => {
                    r[dst] = (low(r[dst]) & u32::from_ne_bytes(imm.to_ne_bytes())).into();
                }
                op::SHIFT_RIGHT32_IMM => r[dst] = (low(r[dst]) >> imm).into(),
                op::JUMP_NOT_EQUAL_IMM => {
                    if r[dst] != u64::try_from(imm).unwrap() {
                        at += usize::try_from(off).unwrap();
                    }
                }
                op::EXIT => return r[0],
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn exactly_what_the_rules_say_is_allowed() {
        let rules = [rule(243, 0, "rw"), rule(10, 229, "rwm"), rule(231, 192, "r")];
        let closed = extend(&constant_program(0), &rules).unwrap();
        let open = extend(&constant_program(1), &rules).unwrap();
        for (kind, access, major, minor, allowed) in [
            (2, 2, 243, 0, 1),
            (2, 6, 243, 0, 1),
            (2, 7, 243, 0, 0),
            (2, 1, 243, 0, 0),
            (1, 2, 243, 0, 0),
            (2, 2, 243, 1, 0),
            (2, 2, 244, 0, 0),
            (2, 7, 10, 229, 1),
            (1, 7, 10, 229, 0),
            (2, 2, 231, 192, 1),
            (2, 6, 231, 192, 0),
            (2, 2, 1, 3, 0),
        ] {
            let asked = (kind, access, major, minor);
            assert_eq!(run(&closed, kind, access, major, minor), allowed, "{asked:?}");
            assert_eq!(run(&open, kind, access, major, minor), 1, "{asked:?}");
        }
    }

    #[test]
    fn rules_are_put_in_front_once() {
        let rules = [rule(243, 0, "rw")];
        let once = extend(&constant_program(0), &rules).unwrap();
        assert_eq!(extend(&once, &rules), None);
        assert!(once.ends_with(&constant_program(0)));
    }

    #[test]
    fn an_instruction_has_the_kernel_s_layout() {
        // r2 = *(u32 *)(r1 + 4), as a disassembler shows its bytes.
        let bytes = insn(op::LOAD_WORD, 2, 1, 4, 0).to_ne_bytes();
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, [0x61, 0x12, 4, 0, 0, 0, 0, 0]);
        }
        assert_eq!(bytes.len(), 8);
    }
}
