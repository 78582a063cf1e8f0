//! Whether libraries load in an image: each symbol and version that they need is defined by themselves or by what the
//! image's loader takes. The number of a private ABI decides nothing: symbols were added without a new one.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use onload_sys::bail;
use onload_sys::elf::{ElfSummary, VersionNeed};
use onload_sys::error::Result;

use super::drivers::PUBLIC_LIBRARIES;
use super::files::NativeLibrary;
use super::libraries::LibrarySearch;
use super::verbs::LIBIBVERBS;

/// Libraries that are loaded for one provider; libibverbs, libnl and libc bring about eight.
const MAX_LIBRARIES: usize = 64;

/// Names of symbols, with the versions in which they are needed.
type NeededSymbols = HashMap<String, BTreeSet<Option<String>>>;

/// The first thing that `loaded` need and do not get in the image, as what follows a name: `needs …`.
pub(super) fn find_unmet(
    loaded: &[&NativeLibrary],
    image: &LibrarySearch<'_>,
) -> Result<Option<String>> {
    let owner = image.owner;
    let mut symbols = NeededSymbols::new();
    for library in loaded {
        library.each_symbol(&mut |symbol| {
            if !symbol.is_defined && !symbol.is_weak {
                let versions = symbols.entry(symbol.name.to_owned()).or_default();
                versions.insert(symbol.version.map(str::to_owned));
            }
        })?;
    }
    let needs: Vec<&VersionNeed> = loaded
        .iter()
        .flat_map(|library| &library.summary.version_needs)
        .filter(|need| !need.weak)
        .collect();
    let mut names: BTreeSet<String> = loaded.iter().map(|library| library.name()).collect();
    let mut queue: Vec<String> = Vec::new();
    for library in loaded {
        if let Some(missing) = find_missing_version(&needs, library) {
            return Ok(Some(missing));
        }
        remove_defined(&mut symbols, library)?;
        enqueue_needed(&mut queue, &names, &library.summary.needed)?;
    }
    while let Some(name) = queue.pop() {
        if !names.insert(name.clone()) {
            continue;
        }
        let Some(library) = image.find_first(&name)? else {
            return Ok(Some(format!("needs {name}, which {owner} does not have")));
        };
        if let Some(missing) = find_missing_version(&needs, &library) {
            return Ok(Some(missing));
        }
        remove_defined(&mut symbols, &library)?;
        enqueue_needed(&mut queue, &names, &library.summary.needed)?;
    }
    let unmet = symbols.into_iter().filter_map(|(name, versions)| {
        let version = versions.into_iter().next()?;
        Some((name, version))
    });
    Ok(unmet.min().map(|(name, version)| {
        let version = version.map_or_else(String::new, |version| format!("@{version}"));
        format!("needs {name}{version}, which no library of {owner} defines")
    }))
}

/// Adds what is to be loaded and is not yet.
fn enqueue_needed(
    queue: &mut Vec<String>,
    names: &BTreeSet<String>,
    needed: &[String],
) -> Result<()> {
    for name in needed {
        if !names.contains(name) && !queue.contains(name) {
            queue.push(name.clone());
        }
        if names.len() + queue.len() > MAX_LIBRARIES {
            bail!("a provider would load more than {MAX_LIBRARIES} libraries of the image");
        }
    }
    Ok(())
}

fn remove_defined(symbols: &mut NeededSymbols, library: &NativeLibrary) -> Result<()> {
    library.each_symbol(&mut |symbol| {
        if symbol.is_defined
            && let Some(versions) = symbols.get_mut(symbol.name)
        {
            // The loader takes either for the other if one has no version.
            let is_met = |needed: &Option<String>| {
                needed.is_none() || symbol.version.is_none() || needed.as_deref() == symbol.version
            };
            versions.retain(|needed| !is_met(needed));
        }
    })
}

/// What a program needs of one of these libraries and does not get, or of another of their kind that is in neither
/// place. One that has a search path of its own may find them elsewhere.
pub(super) fn find_unmet_by_program(
    program: &ElfSummary,
    libraries: &[Rc<NativeLibrary>],
    image: &LibrarySearch<'_>,
) -> Result<Option<String>> {
    if program.search_path.is_some() {
        return Ok(None);
    }
    let needs = program.version_needs.iter();
    let needs: Vec<&VersionNeed> = needs.filter(|need| !need.weak).collect();
    if let Some(missing) =
        libraries.iter().find_map(|library| find_missing_version(&needs, library))
    {
        return Ok(Some(missing));
    }
    for name in &program.needed {
        let is_provided = name == LIBIBVERBS || PUBLIC_LIBRARIES.contains(&&**name);
        let is_mounted = libraries.iter().any(|library| library.name() == *name);
        if is_provided && !is_mounted && image.find_first(name)?.is_none() {
            return Ok(Some(format!("needs {name}, which neither the image nor the host has")));
        }
    }
    Ok(None)
}

/// The loader refuses a library whose needed versions are not defined, whichever symbols it uses.
fn find_missing_version(needs: &[&VersionNeed], library: &NativeLibrary) -> Option<String> {
    let name = library.name();
    let defined = &library.summary.version_definitions;
    let missing = needs
        .iter()
        .filter(|need| need.library == name && !defined.contains(&need.version))
        .max_by_key(|need| version_numbers(&need.version))?;
    let prefix = version_prefix(&missing.version);
    let same = defined.iter().filter(|version| version_prefix(version) == prefix);
    let newest = same.max_by_key(|version| version_numbers(version));
    let newest = newest.map_or("no such version", String::as_str);
    let (version, path) = (&missing.version, &library.path);
    Some(format!("needs {version} of {name}, and {path:?} has {newest}"))
}

/// `GLIBC_` of `GLIBC_2.38`.
fn version_prefix(version: &str) -> &str {
    version.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.')
}

/// 2 and 38 of `GLIBC_2.38`.
fn version_numbers(version: &str) -> Vec<u32> {
    let parts = version[version_prefix(version).len()..].split('.');
    parts.map(|part| part.parse().unwrap_or_default()).collect()
}

/// The first public version that `other` defines and `library` does not.
pub(super) fn find_lost_version<'a>(
    library: &NativeLibrary,
    other: &'a NativeLibrary,
) -> Option<&'a String> {
    let versions = other.summary.version_definitions.iter();
    let mut public = versions.filter(|version| !version.contains("_PRIVATE_"));
    public.find(|version| !library.summary.version_definitions.contains(*version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(version_numbers("GLIBC_2.38") > version_numbers("GLIBC_2.4"));
        assert!(version_numbers("IBVERBS_PRIVATE_57") > version_numbers("IBVERBS_PRIVATE_34"));
        assert_eq!(version_prefix("IBVERBS_PRIVATE_34"), "IBVERBS_PRIVATE_");
        assert_eq!(version_numbers("GLIBC_ABI_DT_RELR"), [0]);
    }
}
