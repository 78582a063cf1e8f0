//! Stand-ins for programs and libraries: files that look the same to discovery and contain no code.

use std::collections::BTreeMap;

use onload_host::discover::installation::{INTERPRETER_LINE, parse_interpreter_line};
use onload_sys::elf::{self, ElfSummary, VersionNeed};

/// For anybody who looks into such a file.
const LABEL: &[u8] = b"stand-in made by onload-ctk discover --capture";
/// Lengths of the truncated copies of a malformed file that are tried to reproduce its error.
const BEGINNINGS: [usize; 3] = [16, 64, 4096];

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const TYPE_LOAD: u32 = 1;
const TYPE_DYNAMIC: u32 = 2;
const TYPE_INTERPRETER: u32 = 3;
const TAG_NEEDED: u64 = 1;
const TAG_STRINGS: u64 = 5;
const TAG_STRINGS_SIZE: u64 = 10;
const TAG_SONAME: u64 = 14;
const TAG_VERSION_NEEDS: u64 = 0x6fff_fffe;
const TAG_VERSION_NEEDS_COUNT: u64 = 0x6fff_ffff;
const WEAK: u16 = 2;

/// A file in which discovery finds what it finds in `content`: the interpreter of a script, what an
/// ELF file needs, and `strings` from it. `None` if there is no such file.
pub(crate) fn build_stub(content: &[u8], strings: &[&[u8]]) -> Option<Vec<u8>> {
    let head = &content[..content.len().min(INTERPRETER_LINE)];
    if let Some(interpreter) = parse_interpreter_line(head) {
        return Some(format!("#!{interpreter}\n").into_bytes());
    }
    let expected = elf::summarize(content).map(drop_definitions);
    let texts = [&[LABEL], strings].concat().join(&0);
    let candidates = match &expected {
        Ok(summary) => vec![write(summary, &texts)],
        Err(elf::ElfError::NotElf) => vec![texts],
        Err(_) => BEGINNINGS
            .into_iter()
            .filter_map(|end| content.get(..end))
            .map(<[u8]>::to_vec)
            .collect(),
    };
    let mut candidates = candidates.into_iter();
    candidates
        .find(|candidate| elf::summarize(candidate.as_slice()).map(drop_definitions) == expected)
}

/// Discovery loads nothing, so neither a file's definitions for others nor its word size matter.
fn drop_definitions(summary: ElfSummary) -> ElfSummary {
    ElfSummary { version_definitions: Default::default(), is_64: true, ..summary }
}

/// A little-endian 64-bit ELF file with that summary (System V gABI, chapters 4 and 5), followed by
/// `texts`.
fn write(summary: &ElfSummary, texts: &[u8]) -> Vec<u8> {
    let mut kinds = vec![TYPE_LOAD];
    kinds.extend(summary.is_dynamic.then_some(TYPE_DYNAMIC));
    kinds.extend(summary.interpreter.is_some().then_some(TYPE_INTERPRETER));
    let mut body = StubBody { bytes: vec![0; HEADER_BYTES + kinds.len() * PROGRAM_HEADER_BYTES] };
    let interpreter = summary.interpreter.as_deref().unwrap_or_default();
    let interpreter = body.append_aligned(&[interpreter.as_bytes(), &[0]].concat());
    let dynamic = if summary.is_dynamic { body.dynamic(summary) } else { (0, 0) };
    body.append_aligned(texts);
    let all = (0, body.bytes.len());
    let mut head = header(summary.machine, kinds.len());
    for kind in kinds {
        let (start, length) = match kind {
            TYPE_DYNAMIC => dynamic,
            TYPE_INTERPRETER => interpreter,
            _ => all,
        };
        head.extend(program_header(kind, start as u64, length as u64));
    }
    body.bytes[..head.len()].copy_from_slice(&head);
    body.bytes
}

fn header(machine: u16, program_headers: usize) -> Vec<u8> {
    const SHARED_OBJECT: u16 = 3;
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend([SHARED_OBJECT, machine].map(u16::to_le_bytes).concat());
    header.extend(1_u32.to_le_bytes());
    let offsets = [0, HEADER_BYTES as u64, 0];
    header.extend(offsets.map(u64::to_le_bytes).concat());
    header.extend(0_u32.to_le_bytes());
    let sizes = [HEADER_BYTES, PROGRAM_HEADER_BYTES, program_headers];
    header.extend(sizes.map(|count| (count as u16).to_le_bytes()).concat());
    header.extend([64, 0, 0].map(u16::to_le_bytes).concat());
    header
}

fn program_header(kind: u32, start: u64, length: u64) -> Vec<u8> {
    const READABLE: u32 = 4;
    let mut header = [kind, READABLE].map(u32::to_le_bytes).concat();
    let fields = [start, start, start, length, length, 8];
    header.extend(fields.map(u64::to_le_bytes).concat());
    header
}

/// The data after the headers. Addresses are file offsets.
struct StubBody {
    bytes: Vec<u8>,
}

impl StubBody {
    /// Appends bytes where a table may begin. Returns the offset and the length.
    fn append_aligned(&mut self, bytes: &[u8]) -> (usize, usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let start = self.bytes.len();
        self.bytes.extend(bytes);
        (start, bytes.len())
    }

    fn dynamic(&mut self, summary: &ElfSummary) -> (usize, usize) {
        let mut strings = vec![0];
        let mut entries: Vec<(u64, u64)> = Vec::new();
        for name in &summary.needed {
            entries.push((TAG_NEEDED, add(&mut strings, name).into()));
        }
        if let Some(name) = &summary.soname {
            entries.push((TAG_SONAME, add(&mut strings, name).into()));
        }
        if !summary.version_needs.is_empty() {
            let (table, count) = version_needs(summary, &mut strings);
            let (start, _) = self.append_aligned(&table);
            entries.push((TAG_VERSION_NEEDS, start as u64));
            entries.push((TAG_VERSION_NEEDS_COUNT, count as u64));
        }
        let (start, length) = self.append_aligned(&strings);
        entries.push((TAG_STRINGS, start as u64));
        entries.push((TAG_STRINGS_SIZE, length as u64));
        entries.push((0, 0));
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|(tag, value)| [*tag, *value])
            .flat_map(u64::to_le_bytes)
            .collect();
        self.append_aligned(&bytes)
    }
}

/// Gives the place of a text in the table of strings.
fn add(strings: &mut Vec<u8>, text: &str) -> u32 {
    let offset = strings.len();
    strings.extend(text.as_bytes());
    strings.push(0);
    // The summary limits the names to a few thousand of four KiB each.
    u32::try_from(offset).unwrap_or_default()
}

/// `Elf64_Verneed` with its `Elf64_Vernaux`, library by library, and the number of libraries.
fn version_needs(summary: &ElfSummary, strings: &mut Vec<u8>) -> (Vec<u8>, usize) {
    const BYTES: u32 = 16;
    let mut libraries: BTreeMap<&str, Vec<&VersionNeed>> = BTreeMap::new();
    for need in &summary.version_needs {
        libraries.entry(&need.library).or_default().push(need);
    }
    let mut table = Vec::new();
    let count = libraries.len();
    for (index, (library, needs)) in libraries.into_iter().enumerate() {
        let length = BYTES * (1 + needs.len() as u32);
        let next = if index + 1 < count { length } else { 0 };
        table.extend([1, needs.len() as u16].map(u16::to_le_bytes).concat());
        let fields = [add(strings, library), BYTES, next];
        table.extend(fields.map(u32::to_le_bytes).concat());
        for (index, need) in needs.iter().enumerate() {
            let next = if index + 1 < needs.len() { BYTES } else { 0 };
            let flags = if need.weak { WEAK } else { 0 };
            table.extend(0_u32.to_le_bytes());
            table.extend([flags, 0].map(u16::to_le_bytes).concat());
            let fields = [add(strings, &need.version), next];
            table.extend(fields.map(u32::to_le_bytes).concat());
        }
    }
    (table, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ElfSummary {
        let need = |library: &str, version: &str, weak| VersionNeed {
            library: library.to_owned(),
            version: version.to_owned(),
            weak,
        };
        ElfSummary {
            machine: 62,
            is_64: true,
            interpreter: Some("/lib64/ld-linux-x86-64.so.2".to_owned()),
            is_dynamic: true,
            soname: Some("libonload.so".to_owned()),
            needed: vec!["libdl.so.2".to_owned(), "libc.so.6".to_owned()],
            version_needs: [
                need("libc.so.6", "GLIBC_2.2.5", false),
                need("libc.so.6", "GLIBC_2.38", false),
                need("libc.so.6", "GLIBC_ABI_DT_RELR", true),
                need("libdl.so.2", "GLIBC_2.2.5", false),
            ]
            .into(),
            rpath: None,
            runpath: None,
            version_definitions: Default::default(),
        }
    }

    #[test]
    fn what_is_written_reads_as_it_was_meant() {
        let mut bare = sample();
        bare.version_needs.clear();
        bare.interpreter = None;
        bare.soname = None;
        let fixed = ElfSummary { machine: 183, is_64: true, ..ElfSummary::default() };
        for summary in [sample(), bare, fixed] {
            assert_eq!(elf::summarize(write(&summary, b"text").as_slice()), Ok(summary));
        }
    }

    #[test]
    fn a_stand_in_of_a_real_program_needs_the_same_and_is_small() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let made = build_stub(&program, &[b"9.0.2.140"]).unwrap();
        let summary = |content: &[u8]| elf::summarize(content).map(drop_definitions);
        assert_eq!(summary(&made), summary(&program));
        assert!(made.len() < 8192, "{}", made.len());
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
        let mut broken = write(&sample(), b"");
        broken.truncate(40);
        let made = build_stub(&broken, &[]).unwrap();
        assert_eq!(elf::summarize(made.as_slice()), elf::summarize(broken.as_slice()));
        let mut lying = write(&sample(), &[0; 8192]);
        // The interpreter, the third program header: its length.
        let length = HEADER_BYTES + 2 * PROGRAM_HEADER_BYTES + 32;
        lying[length..length + 8].copy_from_slice(&5000_u64.to_le_bytes());
        let made = build_stub(&lying, &[]).unwrap();
        assert_eq!(elf::summarize(made.as_slice()), elf::summarize(lying.as_slice()));
    }
}
