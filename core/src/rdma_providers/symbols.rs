//! Decides whether libraries load in an image: each symbol and version that they need must be
//! defined by themselves or by libraries that the image's loader finds.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use onload_sys::bail;
use onload_sys::elf::{ElfSummary, VersionNeed};
use onload_sys::error::Result;

use super::drivers::PUBLIC_LIBRARIES;
use super::files::NativeLibrary;
use super::libraries::LibrarySearch;
use super::verbs::LIBIBVERBS;

/// Maximum number of libraries that are loaded for one provider. libibverbs, libnl and libc bring
/// about eight.
const MAX_LIBRARIES: usize = 64;

/// Names of symbols, with the versions in which they are needed.
type NeededSymbols = HashMap<String, BTreeSet<Option<String>>>;

/// Returns the first need of the libraries in `loaded` that the image does not meet, as the end of
/// a sentence: `needs …`.
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
    Ok(symbols
        .into_iter()
        .filter_map(|(name, versions)| Some((name, versions.into_iter().next()?)))
        .min()
        .map(|(name, version)| {
            let suffix = version.map_or_else(String::new, |version| format!("@{version}"));
            format!("needs {name}{suffix}, which no library of {owner} defines")
        }))
}

/// Adds needed libraries that are not loaded yet.
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
            // A symbol without a version matches any version, on either side.
            versions.retain(|needed| {
                needed.is_some() && symbol.version.is_some() && needed.as_deref() != symbol.version
            });
        }
    })
}

/// Returns what a program needs of the mounted libraries that they do not provide, or a library of
/// the same rdma-core that neither the image nor the host has. Skips a program with its own search
/// path, which may find other libraries.
pub(super) fn find_unmet_by_program(
    program: &ElfSummary,
    libraries: &[Rc<NativeLibrary>],
    image: &LibrarySearch<'_>,
) -> Result<Option<String>> {
    if program.rpath.is_some() || program.runpath.is_some() {
        return Ok(None);
    }
    let needs: Vec<&VersionNeed> = program.version_needs.iter().filter(|need| !need.weak).collect();
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

/// Returns the version of this library that is needed and not defined. The loader rejects such a
/// library, whichever symbols are used.
fn find_missing_version(needs: &[&VersionNeed], library: &NativeLibrary) -> Option<String> {
    let name = library.name();
    let defined = &library.summary.version_definitions;
    let missing = needs
        .iter()
        .filter(|need| need.library == name && !defined.contains(&need.version))
        .max_by_key(|need| version_numbers(&need.version))?;
    let prefix = version_prefix(&missing.version);
    let newest = defined
        .iter()
        .filter(|version| version_prefix(version) == prefix)
        .max_by_key(|version| version_numbers(version))
        .map_or("no such version", String::as_str);
    let (version, path) = (&missing.version, &library.path);
    Some(format!("needs {version} of {name}, and {path:?} has {newest}"))
}

/// Returns `GLIBC_` of `GLIBC_2.38`.
fn version_prefix(version: &str) -> &str {
    version.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.')
}

/// Returns 2 and 38 of `GLIBC_2.38`.
fn version_numbers(version: &str) -> Vec<u32> {
    version[version_prefix(version).len()..]
        .split('.')
        .map(|part| part.parse().unwrap_or_default())
        .collect()
}

/// Returns the first public version that `other` defines and `library` does not.
pub(super) fn find_lost_version<'a>(
    library: &NativeLibrary,
    other: &'a NativeLibrary,
) -> Option<&'a String> {
    other
        .summary
        .version_definitions
        .iter()
        .filter(|version| !version.contains("_PRIVATE_"))
        .find(|version| !library.summary.version_definitions.contains(*version))
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
