//! The dynamic loader's list of libraries, /etc/ld.so.cache, as glibc has written it since 2.2.
//!
//! Source: glibc's sysdeps/generic/dl-cache.h (`struct cache_file`, `struct cache_file_new`).

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const OLD_HEADER_BYTES: usize = 16;
const OLD_ENTRY_BYTES: usize = 12;
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;

/// Limit for the entries of the cache; a large installation has about 5000.
const MAX_ENTRIES: usize = 65536;
/// Limit for the paths returned for one name.
const MAX_PATHS: usize = 16;

/// Returns the paths of the libraries with a name, in the order of the file, in which the loader prefers later hardware
/// capabilities. Returns none if the file is damaged or in another format.
pub fn find_library_paths<'a>(cache: &'a [u8], name: &str) -> Vec<&'a str> {
    let mut paths = Vec::new();
    let Some(cache) = skip_old_format(cache).filter(|cache| cache.starts_with(MAGIC)) else {
        return paths;
    };
    let count = number(cache, MAGIC.len()).unwrap_or_default();
    for entry in 0..count.min(MAX_ENTRIES) {
        let offset = HEADER_BYTES + entry * ENTRY_BYTES;
        let (Some(key), Some(value)) = (number(cache, offset + 4), number(cache, offset + 8))
        else {
            break;
        };
        if is_string(cache, key, name)
            && let Some(path) = string(cache, value)
        {
            paths.push(path);
        }
        if paths.len() == MAX_PATHS {
            break;
        }
    }
    paths
}

/// Skips the list for older loaders, which precedes the one that is read here.
fn skip_old_format(cache: &[u8]) -> Option<&[u8]> {
    if !cache.starts_with(OLD_MAGIC) {
        return Some(cache);
    }
    let entries = number(cache, OLD_MAGIC.len())?.checked_mul(OLD_ENTRY_BYTES)?;
    let end = entries.checked_add(OLD_HEADER_BYTES)?;
    cache.get(end.next_multiple_of(8)..)
}

/// Reads a number in native byte order, since the cache is read on the machine that it was written for.
fn number(cache: &[u8], offset: usize) -> Option<usize> {
    let bytes = cache.get(offset..)?.first_chunk::<4>()?;
    usize::try_from(u32::from_ne_bytes(*bytes)).ok()
}

fn is_string(cache: &[u8], offset: usize, text: &str) -> bool {
    let end = offset.saturating_add(text.len());
    cache.get(offset..end) == Some(text.as_bytes()) && cache.get(end) == Some(&0)
}

fn string(cache: &[u8], offset: usize) -> Option<&str> {
    let tail = cache.get(offset..)?;
    let end = tail.iter().take(crate::fs::open::PATH_MAX).position(|byte| *byte == 0)?;
    std::str::from_utf8(&tail[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut table = Vec::new();
        let start = HEADER_BYTES + entries.len() * ENTRY_BYTES;
        let mut place = |text: &str| {
            let at = start + strings.len();
            strings.extend(text.bytes().chain([0]));
            u32::try_from(at).unwrap().to_ne_bytes()
        };
        for (name, path) in entries {
            table.extend(0x303_u32.to_ne_bytes());
            table.extend(place(name));
            table.extend(place(path));
            table.extend([0; 12]);
        }
        let mut cache = MAGIC.to_vec();
        cache.extend(u32::try_from(entries.len()).unwrap().to_ne_bytes());
        cache.resize(HEADER_BYTES, 0);
        [cache, table, strings].concat()
    }

    const ENTRIES: [(&str, &str); 3] = [
        ("liba.so.1", "/opt/a/liba.so.1"),
        ("libb.so.1", "/usr/lib/libb.so.1"),
        ("liba.so.1", "/usr/lib/liba.so.1"),
    ];

    #[test]
    fn a_library_is_found_by_its_whole_name() {
        let cache = cache(&ENTRIES);
        let both = ["/opt/a/liba.so.1", "/usr/lib/liba.so.1"];
        assert_eq!(find_library_paths(&cache, "liba.so.1"), both);
        for name in ["liba.so", "liba.so.11", "iba.so.1", "", "/opt/a/liba.so.1"] {
            assert_eq!(find_library_paths(&cache, name), [""; 0], "{name}");
        }
    }

    #[test]
    fn the_part_for_older_loaders_is_skipped() {
        let mut both = OLD_MAGIC.to_vec();
        both.extend(1_u32.to_ne_bytes());
        both.resize(OLD_HEADER_BYTES + OLD_ENTRY_BYTES, 1);
        both.resize(both.len().next_multiple_of(8), 0);
        both.extend(cache(&ENTRIES));
        assert_eq!(find_library_paths(&both, "libb.so.1"), ["/usr/lib/libb.so.1"]);
        both[12..16].fill(0xff);
        assert_eq!(find_library_paths(&both, "libb.so.1"), [""; 0]);
    }

    #[test]
    fn a_cache_that_is_cut_or_counts_too_far_names_what_it_holds() {
        let whole = cache(&ENTRIES);
        for length in 0..whole.len() {
            let found = find_library_paths(&whole[..length], "liba.so.1");
            assert!(found.len() < 2, "{length}");
        }
        let mut counting = whole.clone();
        counting[MAGIC.len()..MAGIC.len() + 4].fill(0xff);
        assert_eq!(find_library_paths(&counting, "libb.so.1"), ["/usr/lib/libb.so.1"]);
        assert_eq!(find_library_paths(b"glibc-ld.so.cache1.2", "libb.so.1"), [""; 0]);
    }

    #[test]
    fn this_machine_s_cache_has_its_libc() {
        let path = std::path::Path::new("/etc/ld.so.cache");
        let Ok(cache) = std::fs::read(path) else {
            eprintln!("skipped: no {path:?}");
            return;
        };
        let found = find_library_paths(&cache, "libc.so.6");
        assert!(found.iter().any(|path| path.ends_with("/libc.so.6")));
    }
}
