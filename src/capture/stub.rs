//! Stand-ins for programs and libraries: files that look the same to discovery and contain no code.

use std::cell::RefCell;
use std::ops::Range;

use object::read::ReadRef;
use onload_host::discover::installation::{INTERPRETER_LINE, parse_interpreter_line};
use onload_sys::elf::{self, ElfError};

/// For anybody who looks into such a file.
const LABEL: &[u8] = b"stand-in made by onload-ctk discover --capture";

/// A file in which discovery finds what it finds in `content`: the interpreter of a script, the parts of an ELF file
/// that the loader uses, and `strings` from it. `None` if there is no such file.
pub(crate) fn build_stub(content: &[u8], strings: &[&[u8]]) -> Option<Vec<u8>> {
    let head = &content[..content.len().min(INTERPRETER_LINE)];
    if let Some(interpreter) = parse_interpreter_line(head) {
        return Some(format!("#!{interpreter}\n").into_bytes());
    }
    let reads = RefCell::new(Vec::new());
    let expected = elf::summarize(RecordedBytes { bytes: content, reads: &reads });
    let texts = [&[LABEL], strings].concat().join(&0);
    if expected == Err(ElfError::NotElf) {
        return Some(texts);
    }
    // Only the bytes that were read stay.
    let (mut stub, mut end) = (vec![0; content.len()], 0);
    for range in reads.take() {
        end = range.end.max(end);
        stub[range.clone()].copy_from_slice(&content[range]);
    }
    // The length of a malformed file may be what is wrong with it.
    if expected.is_ok() {
        stub.truncate(end);
        stub.extend([&[0], texts.as_slice()].concat());
    }
    (elf::summarize(stub.as_slice()) == expected).then_some(stub)
}

/// The bytes of a file, and which of them were read.
#[derive(Clone, Copy)]
struct RecordedBytes<'d> {
    bytes: &'d [u8],
    reads: &'d RefCell<Vec<Range<usize>>>,
}

impl<'d> RecordedBytes<'d> {
    fn record(self, start: u64, length: usize) -> Result<(), ()> {
        let start = usize::try_from(start).map_err(|_| ())?;
        let end = start.saturating_add(length).min(self.bytes.len());
        self.reads.borrow_mut().push(start..end);
        Ok(())
    }
}

impl<'d> ReadRef<'d> for RecordedBytes<'d> {
    fn len(self) -> Result<u64, ()> {
        self.bytes.len().try_into().map_err(|_| ())
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'d [u8], ()> {
        let read = self.bytes.read_bytes_at(offset, size)?;
        self.record(offset, read.len())?;
        Ok(read)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'d [u8], ()> {
        let read = self.bytes.read_bytes_at_until(range.clone(), delimiter)?;
        self.record(range.start, read.len() + 1)?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_stand_in_of_a_real_program_needs_the_same_and_holds_little() {
        let program = this_program();
        let made = build_stub(&program, &[b"9.0.2.140"]).unwrap();
        assert_eq!(elf::summarize(made.as_slice()), elf::summarize(program.as_slice()));
        let kept = made.iter().filter(|byte| **byte != 0).count();
        assert!(kept < 8192, "{kept}");
        assert!(made.ends_with(b"\x009.0.2.140"));
    }

    #[test]
    fn of_a_script_the_interpreter_stays() {
        let script = b"#!/usr/bin/env python3\npassword = 1\n";
        assert_eq!(build_stub(script, &[]).unwrap(), b"#!/usr/bin/env\n");
        assert_eq!(build_stub(b"#! /bin/sh -e", &[]).unwrap(), b"#!/bin/sh\n");
    }

    #[test]
    fn of_what_is_neither_nothing_stays_but_its_telling_strings() {
        let made = build_stub(b"secret", &[b"9.0.2.140"]).unwrap();
        assert_eq!(made, [LABEL, b"9.0.2.140"].join(&0));
        assert_eq!(build_stub(b"", &[]).unwrap(), LABEL);
    }

    #[test]
    fn a_malformed_file_stays_malformed_in_the_same_way_or_is_left_out() {
        let program = this_program();
        let broken = &program[..40];
        let made = build_stub(broken, &[]).unwrap();
        assert_eq!(elf::summarize(made.as_slice()), elf::summarize(broken));
        // The program header of the dynamic section: its length.
        let mut lying = program;
        let headers = (64..).step_by(56);
        let dynamic = headers.into_iter().find(|at| lying[*at..at + 4] == [2, 0, 0, 0]).unwrap();
        lying[dynamic + 32..dynamic + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        let made = build_stub(&lying, &[]).unwrap();
        assert!(elf::summarize(lying.as_slice()).is_err());
        assert_eq!(elf::summarize(made.as_slice()), elf::summarize(lying.as_slice()));
    }
}
