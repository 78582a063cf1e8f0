//! Reads from an ELF file what the dynamic loader reads: interpreter, needed libraries, symbols and their versions.
//! Like the loader, it starts from the program headers, since section headers may be stripped. Nothing is mapped or
//! run, and every count in the file is bounded.
//!
//! Source: System V gABI chapter 5, and the Linux Standard Base on symbol versioning (`Elf_Verdef`,
//! `Elf_Verneed`).

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use memchr::memmem::Finder;
use memchr::{memchr, memrchr};
use object::elf;
use object::endian::{Endianness, U32};
use object::pod::{self, Pod};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};
use object::read::{ReadCache, ReadCacheOps, ReadRef};
use serde::Serialize;

use crate::error::written_as_text;

/// Limit for program headers; real files have about a dozen.
const MAX_PROGRAM_HEADERS: usize = 512;
/// Limit for the dynamic section in bytes; an entry has 16.
const MAX_DYNAMIC_BYTES: u64 = 64 * 1024;
/// Limit for one name in bytes, the same as PATH_MAX.
const MAX_NAME_BYTES: u64 = 4096;
/// Limit for symbol versions in total; glibc defines about fifty.
const MAX_VERSIONS: usize = 8192;
/// Limit for the symbols of one file; glibc has about three thousand.
const MAX_SYMBOLS: u64 = 16 * 1024;
/// Limit for the relocations of one file; libmlx5 has about 300.
const MAX_RELOCATIONS: u64 = 16 * 1024;
/// Limit for the symbol names of one file in bytes; glibc has about 40000.
const MAX_STRING_BYTES: u64 = 512 * 1024;
/// Limit for the constants that are searched for strings, in bytes; libibverbs has about 100000.
const MAX_CONSTANT_BYTES: u64 = 1024 * 1024;
/// Limit for the strings of one file that match a search.
const MAX_MATCHES: usize = 64;
/// Limit for all names copied from a file, in bytes: tables may refer to one long string thousands of times.
const MAX_TEXT_BYTES: usize = 2 * 1024 * 1024;

/// Size of a block in bytes.
const BLOCK_BYTES: u64 = 4 * 1024;
/// Limit for a read that is served from the cache, in bytes.
const MAX_CACHED_READ: usize = BLOCK_BYTES as usize;
/// Limit for the blocks that are read of one file; a libc takes about ten.
const MAX_BLOCKS: usize = 512;
/// Limit for the bytes that are read of one file; a libc takes about 20000.
const MAX_BYTES: usize = 2 * 1024 * 1024;

/// The parts of an ELF file that the dynamic loader uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfSummary {
    /// `e_machine`, for instance 62 for x86-64.
    pub machine: u16,
    /// 64-bit (`ELFCLASS64`).
    pub is_64: bool,
    /// PT_INTERP: the dynamic loader that the file requests.
    pub interpreter: Option<String>,
    pub soname: Option<String>,
    pub needed: Vec<String>,
    /// DT_RPATH, which the loader searches before LD_LIBRARY_PATH, but not if there is a DT_RUNPATH.
    pub rpath: Option<String>,
    /// DT_RUNPATH, which the loader searches after LD_LIBRARY_PATH.
    pub runpath: Option<String>,
    /// The symbol versions that the file needs, by library.
    pub version_needs: BTreeSet<VersionNeed>,
    pub version_definitions: BTreeSet<String>,
}

/// A symbol version that a file needs from a library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VersionNeed {
    pub library: String,
    /// The version, for instance `GLIBC_2.38`.
    pub version: String,
    /// `VER_FLG_WEAK`: the loader only warns when it is missing.
    pub weak: bool,
}

/// An entry of the dynamic symbol table that other files can see, or that the file needs from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicSymbol<'a> {
    pub name: &'a str,
    /// For instance `GLIBC_2.38`; `None` for a symbol without one, or of the file's base version.
    pub version: Option<&'a str>,
    pub is_defined: bool,
    /// For an undefined symbol: whether the loader accepts that no file defines it.
    pub is_weak: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct GlibcVersion {
    pub major: u32,
    pub minor: u32,
}

written_as_text!(GlibcVersion);

impl GlibcVersion {
    /// Parses the name of a symbol version such as `GLIBC_2.38` or `GLIBC_2.2.5`. Returns `None` for `GLIBC_PRIVATE`,
    /// `GLIBC_ABI_DT_RELR` and names of other libraries.
    pub fn from_symbol_version(name: &str) -> Option<GlibcVersion> {
        let mut numbers = name.strip_prefix("GLIBC_")?.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(GlibcVersion { major, minor })
    }
}

impl fmt::Display for GlibcVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl ElfSummary {
    /// Returns the newest glibc version that the file needs, or `None` if it needs no versioned symbols.
    pub fn glibc_needed(&self) -> Option<GlibcVersion> {
        self.version_needs
            .iter()
            .filter(|need| !need.weak)
            .filter_map(|need| GlibcVersion::from_symbol_version(&need.version))
            .max()
    }

    /// Returns the newest glibc version that the file, a libc, defines.
    pub fn glibc_defined(&self) -> Option<GlibcVersion> {
        self.version_definitions
            .iter()
            .filter_map(|version| GlibcVersion::from_symbol_version(version))
            .max()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// The file does not start with the ELF magic number.
    #[error("not an ELF file")]
    NotElf,
    /// A header or table lies outside the file, or a count exceeds its limit.
    #[error("malformed ELF file: {0}")]
    Malformed(&'static str),
}

impl crate::error::TypedError for ElfError {}

use ElfError::Malformed;

const TOO_MANY: ElfError = Malformed("too many versions");

/// Opens a file by its class, and calls a method of [`ElfFile`].
macro_rules! with_file {
    ($data:expr, $method:ident($($argument:expr),*)) => {
        if is_64($data)? {
            ElfFile::<elf::FileHeader64<Endianness>, _>::open($data)?.$method($($argument),*)
        } else {
            ElfFile::<elf::FileHeader32<Endianness>, _>::open($data)?.$method($($argument),*)
        }
    };
}

fn is_64<'d, R: ReadRef<'d>>(data: R) -> Result<bool, ElfError> {
    let ident = data.read_bytes_at(0, 16).map_err(|()| ElfError::NotElf)?;
    if ident.get(..4) != Some(&elf::ELFMAG) {
        return Err(ElfError::NotElf);
    }
    Ok(ident.get(4) == Some(&2))
}

/// Reads the parts of a file that the dynamic loader uses.
pub fn summarize<'d, R: ReadRef<'d>>(data: R) -> Result<ElfSummary, ElfError> {
    with_file!(data, summarize())
}

/// Calls `visit` with each symbol that a file exports or imports, in the order of its table.
pub fn each_symbol<'d, R: ReadRef<'d>>(
    data: R,
    visit: &mut dyn FnMut(DynamicSymbol<'_>),
) -> Result<(), ElfError> {
    with_file!(data, each_symbol(visit))
}

/// Returns the string constants of a file that contain one of `words`.
pub fn find_strings<'d, R: ReadRef<'d>>(data: R, words: &[&str]) -> Result<Vec<String>, ElfError> {
    with_file!(data, find_strings(words))
}

/// Paths that are compiled into a glibc loader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoaderPaths {
    /// The directories that the loader searches last (elf/dl-load.c, `system_dirs`).
    pub library_dirs: Vec<PathBuf>,
    /// ld.so.cache.
    pub cache: Option<PathBuf>,
    /// The path of the preload list. Nix's loader reads /etc/ld-nix.so.preload.
    pub preload_list: Option<PathBuf>,
}

/// Finds the paths that are compiled into a glibc loader.
pub fn find_loader_paths<'d, R: ReadRef<'d>>(data: R) -> Result<LoaderPaths, ElfError> {
    let mut paths = LoaderPaths::default();
    for string in find_strings(data, &["/lib", "/ld.so.cache", ".preload"])? {
        let path = PathBuf::from(&string);
        if !path.is_absolute() {
            continue;
        }
        if string.ends_with('/') && !paths.library_dirs.contains(&path) {
            paths.library_dirs.push(path);
        } else if string.ends_with("/ld.so.cache") {
            paths.cache = Some(path);
        } else if string.ends_with(".preload") {
            paths.preload_list = Some(path);
        }
    }
    Ok(paths)
}

/// Returns the dynamic loader that a program requests (PT_INTERP), or `None` for a static program. `beginning` must
/// include the program headers and the loader's path.
pub fn parse_interpreter(beginning: &[u8]) -> Result<Option<String>, ElfError> {
    with_file!(beginning, interpreter())
}

/// Like [`summarize`], for an open file of `length` bytes.
pub fn summarize_file(file: &std::fs::File, length: u64) -> Result<ElfSummary, ElfError> {
    summarize(&block_reader(file, length))
}

/// Returns a reader for an open file of `length` bytes. The file is not mapped, because truncating a mapped file kills
/// its reader.
pub fn block_reader(file: &std::fs::File, length: u64) -> ReadCache<impl ReadCacheOps> {
    ReadCache::new(BlockReader::new(file, length))
}

/// Finds constant structures that consist of a pointer to `name`, two numbers and another pointer, and returns the
/// numbers. Only structures in 64-bit files whose pointers have DT_RELA relocations are found.
pub fn find_numbers_after_name(
    file: &std::fs::File,
    length: u64,
    name: &str,
) -> Result<Vec<(u32, u32)>, ElfError> {
    let data = &block_reader(file, length);
    if !is_64(data)? {
        return Ok(Vec::new());
    }
    ElfFile::<elf::FileHeader64<Endianness>, _>::open(data)?.find_numbers_after_name(name)
}

/// Reads a file in blocks, which it keeps, since the reader alternates between tables and the names that they refer to.
struct BlockReader<'a> {
    file: &'a std::fs::File,
    length: u64,
    position: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
    blocks_left: usize,
    bytes_left: usize,
}

impl<'a> BlockReader<'a> {
    fn new(file: &'a std::fs::File, length: u64) -> Self {
        let blocks = BTreeMap::new();
        let (blocks_left, bytes_left) = (MAX_BLOCKS, MAX_BYTES);
        BlockReader { file, length, position: 0, blocks, blocks_left, bytes_left }
    }

    fn read_file(&mut self, buffer: &mut [u8], position: u64) -> Result<usize, ()> {
        let blocks = buffer.len().div_ceil(MAX_CACHED_READ);
        self.blocks_left = self.blocks_left.checked_sub(blocks).ok_or(())?;
        self.file.read_at(buffer, position).map_err(|_| ())
    }
}

impl ReadCacheOps for BlockReader<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.length)
    }

    fn seek(&mut self, position: u64) -> Result<u64, ()> {
        self.position = position;
        Ok(position)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        let within = self.position % BLOCK_BYTES;
        let start = self.position - within;
        let is_known = self.blocks.contains_key(&start);
        let count = if !is_known && buffer.len() >= MAX_CACHED_READ {
            // A table or segment that is read once.
            self.read_file(buffer, self.position)?
        } else {
            if !is_known {
                let mut block = vec![0; MAX_CACHED_READ];
                let count = self.read_file(&mut block, start)?;
                block.truncate(count);
                self.blocks.insert(start, block);
            }
            let within = usize::try_from(within).map_err(|_| ())?;
            let rest =
                self.blocks.get(&start).and_then(|block| block.get(within..)).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            count
        };
        self.bytes_left = self.bytes_left.checked_sub(count).ok_or(())?;
        self.position += u64::try_from(count).map_err(|_| ())?;
        Ok(count)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..])? {
                0 => return Err(()),
                count => filled += count,
            }
        }
        Ok(())
    }
}

/// Returns the first string after `offset` that contains one of the words, and sets `offset` to its end.
fn next_with<'d>(bytes: &'d [u8], offset: &mut usize, words: &[Finder<'_>]) -> Option<&'d [u8]> {
    let rest = bytes.get(*offset..)?;
    let hit = words.iter().filter_map(|word| word.find(rest)).min()?;
    let start = memrchr(0, &rest[..hit]).map_or(0, |zero| zero + 1);
    let end = memchr(0, &rest[hit..]).map_or(rest.len(), |zero| hit + zero);
    *offset += end + 1;
    Some(&rest[start..end])
}

struct ElfFile<'d, H: FileHeader<Endian = Endianness>, R: ReadRef<'d>> {
    data: R,
    header: &'d H,
    endian: Endianness,
    segments: &'d [H::ProgramHeader],
    text_left: Cell<usize>,
}

/// The entries of a dynamic section.
struct DynamicEntries(Vec<(elf::DynamicTag, u64)>);

impl DynamicEntries {
    fn values(&self, wanted: elf::DynamicTag) -> impl DoubleEndedIterator<Item = u64> {
        self.0.iter().filter(move |(tag, _)| *tag == wanted).map(|(_, value)| *value)
    }

    /// Returns the value of the last entry, which is the one that the loader uses.
    fn value(&self, wanted: elf::DynamicTag) -> Option<u64> {
        self.values(wanted).next_back()
    }
}

impl<'d, H: FileHeader<Endian = Endianness>, R: ReadRef<'d>> ElfFile<'d, H, R> {
    fn open(data: R) -> Result<Self, ElfError> {
        let header = H::parse(data).map_err(|_| Malformed("file header"))?;
        let endian = header.endian().map_err(|_| Malformed("byte order"))?;
        let stated = usize::from(header.e_phnum(endian));
        if stated > MAX_PROGRAM_HEADERS {
            return Err(Malformed("too many program headers"));
        }
        let segments =
            header.program_headers(endian, data).map_err(|_| Malformed("program headers"))?;
        Ok(ElfFile { data, header, endian, segments, text_left: Cell::new(MAX_TEXT_BYTES) })
    }

    fn summarize(&self) -> Result<ElfSummary, ElfError> {
        let mut summary = ElfSummary {
            machine: self.header.e_machine(self.endian).0,
            is_64: self.header.is_type_64(),
            interpreter: self.interpreter()?,
            ..ElfSummary::default()
        };
        let Some(dynamic) = self.dynamic()? else {
            return Ok(summary);
        };
        let string =
            |tag| dynamic.value(tag).map(|offset| self.string(&dynamic, offset)).transpose();
        summary.soname = string(elf::DT_SONAME)?;
        for offset in dynamic.values(elf::DT_NEEDED) {
            summary.needed.push(self.string(&dynamic, offset)?);
        }
        summary.rpath = string(elf::DT_RPATH)?;
        summary.runpath = string(elf::DT_RUNPATH)?;
        let needs = self.version_needs(&dynamic)?.into_iter();
        summary.version_needs = needs.map(|(_, need)| need).collect();
        let definitions = self.version_definitions(&dynamic)?.into_iter();
        summary.version_definitions = definitions.map(|(_, name)| name).collect();
        Ok(summary)
    }

    fn each_symbol(&self, visit: &mut dyn FnMut(DynamicSymbol<'_>)) -> Result<(), ElfError> {
        let malformed = Malformed("symbol table");
        let Some(dynamic) = self.dynamic()? else {
            return Ok(());
        };
        let Some(table) = dynamic.value(elf::DT_SYMTAB) else {
            return Ok(());
        };
        let count = self.symbol_count(&dynamic)?;
        let symbols = self.table::<H::Sym>(table, count)?;
        let versions = match dynamic.value(elf::DT_VERSYM) {
            Some(table) => self.table::<elf::Versym<Endianness>>(table, count)?,
            None => &[],
        };
        let names = self.version_names(&dynamic)?;
        let strings_size = dynamic.value(elf::DT_STRSZ).unwrap_or_default();
        if strings_size > MAX_STRING_BYTES {
            return Err(malformed);
        }
        let strings =
            self.bytes_at(dynamic.value(elf::DT_STRTAB).ok_or(malformed)?, strings_size)?;
        for (symbol_index, symbol) in symbols.iter().enumerate().skip(1) {
            let index =
                versions.get(symbol_index).map(|version| version.0.get(self.endian).index());
            if symbol.is_local() || index == Some(elf::VER_NDX_LOCAL) {
                continue;
            }
            let start = symbol.st_name(self.endian) as usize;
            let name = strings.get(start..).ok_or(malformed)?;
            let name = until_nul(&name[..name.len().min(MAX_NAME_BYTES as usize)])
                .and_then(|name| std::str::from_utf8(name).ok())
                .ok_or(malformed)?;
            let version = match index {
                None | Some(elf::VER_NDX_GLOBAL) => None,
                Some(index) => Some(names.get(&index.0).ok_or(malformed)?.as_str()),
            };
            self.spend_text_budget(name.len() + version.map_or(0, str::len))?;
            visit(DynamicSymbol {
                name,
                version,
                is_defined: !symbol.is_undefined(self.endian),
                is_weak: symbol.is_weak(),
            });
        }
        Ok(())
    }

    fn spend_text_budget(&self, bytes: usize) -> Result<(), ElfError> {
        let remaining = self.text_left.get().checked_sub(bytes);
        self.text_left.set(remaining.ok_or(TOO_MANY)?);
        Ok(())
    }

    /// Returns the version names by the index that symbols use.
    fn version_names(&self, dynamic: &DynamicEntries) -> Result<BTreeMap<u16, String>, ElfError> {
        let mut names: BTreeMap<u16, String> = self
            .version_needs(dynamic)?
            .into_iter()
            .map(|(index, need)| (index, need.version))
            .collect();
        names.extend(self.version_definitions(dynamic)?);
        Ok(names)
    }

    /// Returns the number of symbols, which only the hash tables contain.
    fn symbol_count(&self, dynamic: &DynamicEntries) -> Result<u64, ElfError> {
        let malformed = Malformed("symbol hash table");
        let number = |value: &U32<Endianness>| u64::from(value.get(self.endian));
        let bounded = |count: u64| (count <= MAX_SYMBOLS).then_some(count).ok_or(malformed);
        let Some(table) = dynamic.value(elf::DT_GNU_HASH) else {
            let hash = dynamic.value(elf::DT_HASH).ok_or(malformed)?;
            let header = self.table::<U32<Endianness>>(hash, 2)?;
            return bounded(header.get(1).map(number).ok_or(malformed)?);
        };
        let header = self.table::<U32<Endianness>>(table, 4)?;
        let [buckets, first, filter, _] = header else {
            return Err(malformed);
        };
        let word = if self.header.is_type_64() { 8 } else { 4 };
        let (count, first) = (bounded(number(buckets))?, number(first));
        let buckets = table.checked_add(16 + number(filter) * word).ok_or(malformed)?;
        let last = self
            .table::<U32<Endianness>>(buckets, count)?
            .iter()
            .map(number)
            .max()
            .unwrap_or_default();
        if last < first {
            return bounded(first);
        }
        // The chain of the last bucket ends with the last symbol.
        let chains = buckets.checked_add(count * 4).ok_or(malformed)?;
        for symbol in last..=MAX_SYMBOLS {
            let address = chains.checked_add((symbol - first) * 4);
            let link: &U32<Endianness> = self.record(address.ok_or(malformed)?)?;
            if number(link) & 1 != 0 {
                return bounded(symbol + 1);
            }
        }
        Err(malformed)
    }

    fn find_strings(&self, words: &[&str]) -> Result<Vec<String>, ElfError> {
        let words: Vec<Finder<'_>> = words.iter().map(|word| Finder::new(*word)).collect();
        let mut found = Vec::new();
        let mut matches_left = MAX_MATCHES;
        let mut remaining = MAX_CONSTANT_BYTES;
        let is_loaded_without = |segment: &&H::ProgramHeader, flags: u32| {
            segment.p_type(self.endian) == elf::PT_LOAD
                && segment.p_flags(self.endian).0 & flags == 0
        };
        // Without a read-only segment, the constants are in the segment of the code.
        let (write, write_or_execute) = (elf::PF_W.0, elf::PF_W.0 | elf::PF_X.0);
        let has_read_only = self.segments.iter().any(|s| is_loaded_without(&s, write_or_execute));
        let excluded = if has_read_only { write_or_execute } else { write };
        for segment in self.segments.iter().filter(|s| is_loaded_without(s, excluded)) {
            let (offset, size) = segment.file_range(self.endian);
            let too_many = Malformed("too many constants");
            remaining = remaining.checked_sub(size).ok_or(too_many)?;
            let bytes = self.data.read_bytes_at(offset, size).map_err(|()| Malformed("segment"))?;
            let mut position = 0;
            while let Some(string) = next_with(bytes, &mut position, &words) {
                // Matches that are rejected below count too, since each costs a search of the rest.
                matches_left = matches_left.checked_sub(1).ok_or(too_many)?;
                if string.len() <= MAX_NAME_BYTES as usize
                    && let Ok(text) = std::str::from_utf8(string)
                {
                    found.push(text.to_owned());
                }
            }
        }
        Ok(found)
    }

    fn find_numbers_after_name(&self, name: &str) -> Result<Vec<(u32, u32)>, ElfError> {
        let pointers = self.read_pointers()?;
        let mut found = Vec::new();
        for (address, target) in &pointers {
            let following = |bytes: u64| address.checked_add(bytes);
            let is_pointer = |location: Option<u64>| {
                location.is_some_and(|location| pointers.contains_key(&location))
            };
            if is_pointer(following(8)) || !is_pointer(following(16)) {
                continue;
            }
            let text = self.bytes_at(*target, name.len() as u64 + 1);
            if text.ok().and_then(until_nul) != Some(name.as_bytes()) {
                continue;
            }
            let numbers =
                following(8).and_then(|location| self.table::<U32<Endianness>>(location, 2).ok());
            if let Some([min, max]) = numbers {
                found.push((min.get(self.endian), max.get(self.endian)));
            }
        }
        Ok(found)
    }

    /// Returns the relocated pointers in the file's data and the file offsets that they point to.
    fn read_pointers(&self) -> Result<BTreeMap<u64, u64>, ElfError> {
        let Some(dynamic) = self.dynamic()? else {
            return Ok(BTreeMap::new());
        };
        let Some(table) = dynamic.value(elf::DT_RELA) else {
            return Ok(BTreeMap::new());
        };
        let size = dynamic.value(elf::DT_RELASZ).unwrap_or_default();
        let count = size / size_of::<elf::Rela64<Endianness>>() as u64;
        if count > MAX_RELOCATIONS {
            return Err(Malformed("too many relocations"));
        }
        let kind = match self.header.e_machine(self.endian) {
            elf::EM_X86_64 => elf::R_X86_64_RELATIVE,
            elf::EM_AARCH64 => elf::R_AARCH64_RELATIVE,
            _ => return Ok(BTreeMap::new()),
        };
        let mut pointers = BTreeMap::new();
        for entry in self.table::<elf::Rela64<Endianness>>(table, count)? {
            if entry.r_type(self.endian, false) == kind
                && let Ok(target) = u64::try_from(entry.r_addend.get(self.endian))
            {
                pointers.insert(entry.r_offset.get(self.endian), target);
            }
        }
        Ok(pointers)
    }

    fn bytes_at(&self, address: u64, size: u64) -> Result<&'d [u8], ElfError> {
        let offset = self.file_offset(address)?;
        let bytes = self.data.read_bytes_at(offset, size);
        bytes.map_err(|()| Malformed("table outside the file"))
    }

    fn table<T: Pod>(&self, address: u64, count: u64) -> Result<&'d [T], ElfError> {
        let malformed = Malformed("table");
        let entries = usize::try_from(count).map_err(|_| malformed)?;
        let size = count.checked_mul(size_of::<T>() as u64).ok_or(malformed)?;
        let bytes = self.bytes_at(address, size)?;
        let table = pod::slice_from_bytes(bytes, entries);
        table.map(|(table, _)| table).map_err(|()| malformed)
    }

    fn segment(&self, kind: elf::ProgramType) -> Option<&'d H::ProgramHeader> {
        self.segments.iter().find(|segment| segment.p_type(self.endian) == kind)
    }

    fn interpreter(&self) -> Result<Option<String>, ElfError> {
        let Some(segment) = self.segment(elf::PT_INTERP) else {
            return Ok(None);
        };
        let (offset, size) = segment.file_range(self.endian);
        if size > MAX_NAME_BYTES {
            return Err(Malformed("interpreter is longer than a path may be"));
        }
        let bytes = self.data.read_bytes_at(offset, size).map_err(|()| Malformed("interpreter"))?;
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        text(name, "interpreter is not UTF-8").map(Some)
    }

    fn dynamic(&self) -> Result<Option<DynamicEntries>, ElfError> {
        let Some(segment) = self.segment(elf::PT_DYNAMIC) else {
            return Ok(None);
        };
        let malformed = Malformed("dynamic section");
        if segment.p_filesz(self.endian).into() > MAX_DYNAMIC_BYTES {
            return Err(malformed);
        }
        let entries: &[H::Dyn] =
            segment.data_as_array(self.endian, self.data).map_err(|()| malformed)?;
        let entries = entries.iter().map(|entry| (entry.tag(self.endian), entry.val(self.endian)));
        Ok(Some(DynamicEntries(entries.take_while(|(tag, _)| *tag != elf::DT_NULL).collect())))
    }

    fn string(&self, dynamic: &DynamicEntries, offset: u64) -> Result<String, ElfError> {
        let malformed = Malformed("string table");
        let table = dynamic.value(elf::DT_STRTAB).ok_or(malformed)?;
        let table_size = dynamic.value(elf::DT_STRSZ).unwrap_or_default();
        let room = table_size.checked_sub(offset).filter(|room| *room > 0).ok_or(malformed)?;
        let start = self.file_offset(table.checked_add(offset).ok_or(malformed)?)?;
        let end = start.checked_add(room.min(MAX_NAME_BYTES)).ok_or(malformed)?;
        let bytes = self.data.read_bytes_at_until(start..end, 0).map_err(|()| malformed)?;
        self.spend_text_budget(bytes.len())?;
        text(bytes, "name is not UTF-8")
    }

    /// Converts an address in the loaded image to a file offset.
    fn file_offset(&self, address: u64) -> Result<u64, ElfError> {
        let segments = self.segments.iter();
        for segment in segments.filter(|s| s.p_type(self.endian) == elf::PT_LOAD) {
            let start: u64 = segment.p_vaddr(self.endian).into();
            let (offset, size) = segment.file_range(self.endian);
            if let Some(within) = address.checked_sub(start).filter(|within| *within < size) {
                return offset.checked_add(within).ok_or(Malformed("segment"));
            }
        }
        Err(Malformed("address outside every segment"))
    }

    fn record<T: Pod>(&self, address: u64) -> Result<&'d T, ElfError> {
        self.table(address, 1)?.first().ok_or(Malformed("version table"))
    }

    /// Returns each entry with the index that symbols use for it.
    fn version_needs(&self, dynamic: &DynamicEntries) -> Result<Vec<(u16, VersionNeed)>, ElfError> {
        let mut needs = Vec::new();
        let Some(mut address) = dynamic.value(elf::DT_VERNEED) else {
            return Ok(needs);
        };
        let mut budget = MAX_VERSIONS;
        loop {
            let need: &elf::Verneed<Endianness> = self.record(address)?;
            let library = self.string(dynamic, need.vn_file.get(self.endian).into())?;
            let mut aux_address = advance(address, need.vn_aux.get(self.endian))?;
            for _ in 0..need.vn_cnt.get(self.endian) {
                budget = budget.checked_sub(1).ok_or(TOO_MANY)?;
                let aux: &elf::Vernaux<Endianness> = self.record(aux_address)?;
                self.spend_text_budget(library.len())?;
                let need = VersionNeed {
                    library: library.clone(),
                    version: self.string(dynamic, aux.vna_name.get(self.endian).into())?,
                    weak: aux.vna_flags.get(self.endian).0 & elf::VER_FLG_WEAK.0 != 0,
                };
                needs.push((aux.vna_other.get(self.endian).0, need));
                match aux.vna_next.get(self.endian) {
                    0 => break,
                    next => aux_address = advance(aux_address, next)?,
                }
            }
            budget = budget.checked_sub(1).ok_or(TOO_MANY)?;
            match need.vn_next.get(self.endian) {
                0 => return Ok(needs),
                next => address = advance(address, next)?,
            }
        }
    }

    /// Returns each entry with the index that symbols use for it.
    fn version_definitions(
        &self,
        dynamic: &DynamicEntries,
    ) -> Result<Vec<(u16, String)>, ElfError> {
        let mut definitions = Vec::new();
        let Some(mut address) = dynamic.value(elf::DT_VERDEF) else {
            return Ok(definitions);
        };
        for _ in 0..MAX_VERSIONS {
            let definition: &elf::Verdef<Endianness> = self.record(address)?;
            let base = definition.vd_flags.get(self.endian).0 & elf::VER_FLG_BASE.0 != 0;
            // The base definition names the file itself. The first name of any other definition is
            // its own.
            if !base && definition.vd_cnt.get(self.endian) > 0 {
                let aux_address = advance(address, definition.vd_aux.get(self.endian))?;
                let aux: &elf::Verdaux<Endianness> = self.record(aux_address)?;
                let name = self.string(dynamic, aux.vda_name.get(self.endian).into())?;
                definitions.push((definition.vd_ndx.get(self.endian).0, name));
            }
            match definition.vd_next.get(self.endian) {
                0 => return Ok(definitions),
                next => address = advance(address, next)?,
            }
        }
        Err(TOO_MANY)
    }
}

fn advance(address: u64, by: u32) -> Result<u64, ElfError> {
    let sum = address.checked_add(by.into());
    sum.ok_or(Malformed("version table"))
}

/// Returns the bytes before the first NUL, or `None` without a NUL.
fn until_nul(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    bytes.get(..end)
}

fn text(bytes: &[u8], problem: &'static str) -> Result<String, ElfError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Malformed(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_name_gives_its_glibc() {
        let version = |name| GlibcVersion::from_symbol_version(name);
        assert_eq!(version("GLIBC_2.38"), Some(GlibcVersion { major: 2, minor: 38 }));
        assert_eq!(version("GLIBC_2.2.5"), Some(GlibcVersion { major: 2, minor: 2 }));
        assert!(version("GLIBC_2.38") > version("GLIBC_2.4"));
        assert_eq!(version("GLIBC_PRIVATE"), None);
        assert_eq!(version("GLIBC_ABI_DT_RELR"), None);
        assert_eq!(version("GLIBCXX_3.4"), None);
        assert_eq!(version("GLIBC_99999999999.1"), None);
    }

    #[test]
    fn what_is_not_elf_is_refused() {
        assert_eq!(summarize(&b""[..]), Err(ElfError::NotElf));
        assert_eq!(summarize(&b"#!/bin/sh\nexec true\n"[..]), Err(ElfError::NotElf));
        assert_eq!(summarize(&b"\x7fELF"[..]), Err(ElfError::NotElf));
        let cut = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0";
        assert_eq!(summarize(&cut[..]), Err(Malformed("file header")));
    }

    /// The program that runs this test is a static ELF file, so it needs nothing.
    #[test]
    fn a_static_program_needs_nothing() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let summary = summarize(&bytes[..]).unwrap();
        assert_eq!(summary.interpreter, None);
        assert_eq!(summary.needed, Vec::<String>::new());
        assert_eq!(summary.glibc_needed(), None);
    }

    #[test]
    fn a_file_read_in_blocks_tells_the_same_as_its_bytes() {
        let path = std::env::var_os("CARGO").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let summary = summarize_file(&file, file.metadata().unwrap().len()).unwrap();
        assert_eq!(summary, summarize(&bytes[..]).unwrap());
        assert!(summary.interpreter.is_some(), "the compiler's driver is dynamic");
    }

    #[test]
    fn a_file_that_leads_the_reader_astray_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(10 << 30).unwrap();
        let mut header = std::fs::read("/proc/self/exe").unwrap();
        header.truncate(4096);
        file.write_all_at(&header, 0).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        assert!(summarize_file(&file, 10 << 30).is_ok_and(|summary| summary.needed.is_empty()));
        let mut blocks = BlockReader::new(&file, 10 << 30);
        let mut byte = [0];
        let far = |n: u64| (n % 100) * (100 << 20) + n * BLOCK_BYTES;
        let reads = (0..10_000)
            .take_while(|n| blocks.seek(far(*n)).and_then(|_| blocks.read(&mut byte)).is_ok())
            .count();
        assert_eq!(reads, MAX_BLOCKS);
    }

    fn library() -> Vec<u8> {
        onload_test_tree::elf::SharedLibrary::new("liba.so.1")
            .defines("A_1.0", &["open", "close"])
            .defines("", &["plain"])
            .needs("libc.so.6", "GLIBC_2.34", &["malloc"])
            .says("/usr/lib/lib%s-rdmav34.so")
            .record("a", 3, 7)
            .bytes()
    }

    fn symbols(bytes: &[u8]) -> Result<Vec<String>, ElfError> {
        let mut found = Vec::new();
        each_symbol(bytes, &mut |symbol| {
            let what = if symbol.is_defined { "has" } else { "needs" };
            found.push(format!("{what} {}@{:?}", symbol.name, symbol.version));
        })?;
        Ok(found)
    }

    #[test]
    fn symbols_come_with_their_versions() {
        let expected = [
            "has open@Some(\"A_1.0\")",
            "has close@Some(\"A_1.0\")",
            "has plain@None",
            "needs malloc@Some(\"GLIBC_2.34\")",
        ];
        assert_eq!(symbols(&library()).unwrap(), expected);
        let found = find_strings(&library()[..], &["-rdmav"]).unwrap();
        assert_eq!(found, ["/usr/lib/lib%s-rdmav34.so"]);
    }

    #[test]
    fn constants_are_read_from_the_code_only_without_a_read_only_segment() {
        // The first program header loads the whole file, the second describes its dynamic section.
        const FIRST: usize = 64;
        const SECOND: usize = FIRST + 56;
        let mut bytes = library();
        assert_eq!(bytes[FIRST..FIRST + 4], 1_u32.to_le_bytes(), "PT_LOAD");
        bytes[FIRST + 4] = 5;
        let found = |bytes: &[u8]| find_strings(bytes, &["-rdmav"]).unwrap().len();
        assert_eq!(found(&bytes), 1);
        bytes[SECOND] = 1;
        for (flags, expected) in [(4, 0), (5, 1), (6, 1)] {
            bytes[SECOND + 4] = flags;
            assert_eq!(found(&bytes), expected, "{flags}");
        }
    }

    #[test]
    fn a_long_version_that_thousands_of_symbols_have_is_not_copied_for_each() {
        let version = "A".repeat(4000);
        let names: Vec<String> = (0..1000).map(|n| format!("f{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let library = onload_test_tree::elf::SharedLibrary::new("liba.so.1");
        let few = library.clone().defines(&version, &names[..100]).bytes();
        assert_eq!(symbols(&few).unwrap().len(), 100);
        let many = library.defines(&version, &names).bytes();
        assert_eq!(symbols(&many), Err(TOO_MANY));
    }

    #[test]
    fn a_name_without_an_end_nearby_is_refused() {
        let name = "f".repeat(5000);
        let library = onload_test_tree::elf::SharedLibrary::new("liba.so.1");
        let bytes = library.defines("A_1.0", &[&name]).bytes();
        assert_eq!(symbols(&bytes), Err(Malformed("symbol table")));
    }

    #[test]
    fn numbers_are_found_behind_their_own_name_alone() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &library()).unwrap();
        let length = file.metadata().unwrap().len();
        assert_eq!(find_numbers_after_name(&file, length, "a"), Ok(vec![(3, 7)]));
        assert_eq!(find_numbers_after_name(&file, length, "b"), Ok(Vec::new()));
    }

    #[test]
    fn this_machine_s_compiler_library_defines_and_needs_what_it_says() {
        let path = std::env::var_os("CARGO").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        let mut needed = BTreeSet::new();
        each_symbol(&block_reader(&file, length), &mut |symbol| {
            if !symbol.is_defined {
                needed.extend(symbol.version.map(str::to_owned));
            }
        })
        .unwrap();
        let summary = summarize_file(&file, length).unwrap();
        let versions = summary.version_needs.into_iter().map(|need| need.version);
        assert_eq!(needed, versions.collect());
    }

    #[test]
    fn symbols_of_a_twisted_file_are_refused_or_read_but_never_panic() {
        let bytes = library();
        for at in 0..bytes.len() {
            let mut twisted = bytes.clone();
            twisted[at] ^= 0xff;
            let _ = (symbols(&twisted), symbols(&bytes[..at]));
            let _ = find_strings(&twisted[..], &["-rdmav"]);
        }
    }

    #[test]
    fn a_file_cut_anywhere_is_refused_or_read_but_never_panics() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        for length in (0..4096).chain([8192, 65_536]) {
            let _ = summarize(&bytes[..length.min(bytes.len())]);
        }
    }
}
