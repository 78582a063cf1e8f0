//! An installed libibverbs: which providers it opens, and where.

use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use onload_sys::bail;
use onload_sys::error::Result;
use onload_sys::text::parse_digits;

use super::files::NativeLibrary;
use super::libraries::LibrarySearch;

pub const LIBIBVERBS: &str = "libibverbs.so.1";

/// The directories where libraries may be mounted. Nothing else is ever covered, whatever an
/// image's libibverbs names.
const LIBRARY_ROOTS: [&str; 4] = ["/usr", "/lib", "/lib64", "/opt"];
const CONFIG_DIR: &str = "/etc/libibverbs.d";

/// The paths that were compiled into a libibverbs (libibverbs/dynamic_driver.c, `load_driver` and
/// `read_config`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VerbsLayout {
    pub providers: PathBuf,
    /// The number in `-rdmav34.so`.
    pub private_abi: u32,
    pub config: PathBuf,
}

pub(super) struct VerbsLibrary {
    pub library: Rc<NativeLibrary>,
    pub layout: VerbsLayout,
}

impl VerbsLibrary {
    /// Finds the libibverbs that a loader takes: the first one in its search order, even if there are others.
    pub(super) fn find(libraries: &LibrarySearch<'_>) -> Result<Option<VerbsLibrary>> {
        let owner = libraries.owner;
        let Some(library) = libraries.find_first(LIBIBVERBS)? else {
            return Ok(None);
        };
        let strings = library.find_strings(&["/lib%s-rdmav", "/libibverbs.d"])?;
        let Some(layout) = VerbsLayout::new(&strings) else {
            bail!(
                "{:?} of {owner} does not name a directory of providers below /usr, /lib or /opt",
                library.path
            );
        };
        Ok(Some(VerbsLibrary { library, layout }))
    }

    /// Returns the possible paths of a provider, in the order in which libibverbs opens them.
    pub(super) fn provider_paths(&self, name: &str, libraries: &LibrarySearch<'_>) -> Vec<PathBuf> {
        let mut paths = vec![self.layout.provider_path(name)];
        paths.extend(libraries.candidate_paths(&self.layout.provider_file(name)));
        paths
    }

    /// Finds the provider that libibverbs opens: the one in its own directory, or else the one that
    /// the loader finds (libibverbs/dynamic_driver.c, `load_driver`).
    pub(super) fn find_provider(
        &self,
        name: &str,
        libraries: &LibrarySearch<'_>,
    ) -> Result<Option<Rc<NativeLibrary>>> {
        match libraries.open(&self.layout.provider_path(name))? {
            Some(library) => Ok(Some(library)),
            None => libraries.find_first(&self.layout.provider_file(name)),
        }
    }
}

impl VerbsLayout {
    fn new(strings: &[String]) -> Option<VerbsLayout> {
        let (providers, private_abi) = strings.iter().find_map(|string| {
            let (directory, suffix) = string.split_once("/lib%s-rdmav")?;
            Some((directory, parse_digits(suffix.strip_suffix(".so")?)?))
        })?;
        let config = strings
            .iter()
            .find(|string| string.ends_with("/libibverbs.d"))
            .map_or(CONFIG_DIR, String::as_str);
        let layout = VerbsLayout {
            providers: PathBuf::from(providers),
            private_abi,
            config: PathBuf::from(config),
        };
        if !is_library_path(&layout.providers) || !is_config_path(&layout.config) {
            return None;
        }
        Some(layout)
    }

    pub(super) fn provider_path(&self, name: &str) -> PathBuf {
        self.providers.join(self.provider_file(name))
    }

    fn provider_file(&self, name: &str) -> String {
        format!("lib{name}-rdmav{}.so", self.private_abi)
    }

    pub(super) fn driver_file(&self, name: &str) -> PathBuf {
        self.config.join(format!("{name}.driver"))
    }
}

/// Returns whether libraries may be mounted at a path, or taken from there.
pub(super) fn is_library_path(path: &Path) -> bool {
    is_plain(path)
        && LIBRARY_ROOTS.iter().any(|root| path.starts_with(root) && path != Path::new(root))
}

/// Returns whether files that name drivers may be mounted at a path, or taken from there.
pub(super) fn is_config_path(path: &Path) -> bool {
    is_plain(path) && path.starts_with(CONFIG_DIR) || is_library_path(path)
}

/// Maximum length of a path. Each missing directory is created and recorded, and file systems
/// accept names of up to 255 bytes.
const MAX_COMPONENTS: usize = 32;
const MAX_PATH_BYTES: usize = 255;

fn is_plain(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.len() <= MAX_PATH_BYTES
        && path.components().count() <= MAX_COMPONENTS
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && !text.contains(|letter: char| letter.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(strings: &[&str]) -> Option<VerbsLayout> {
        VerbsLayout::new(&strings.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_layout_is_read_from_the_strings() {
        let debian =
            layout(&["/etc/libibverbs.d", "/usr/lib/x86_64-linux-gnu/libibverbs/lib%s-rdmav34.so"])
                .unwrap();
        assert_eq!(
            debian.provider_path("rxe"),
            Path::new("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so")
        );
        let file = Path::new("/etc/libibverbs.d/rxe.driver");
        assert_eq!(debian.driver_file("rxe"), file);
        let built = layout(&["/opt/rdma/etc/libibverbs.d", "/opt/rdma/lib/lib%s-rdmav57.so"]);
        assert_eq!(built.unwrap().config, Path::new("/opt/rdma/etc/libibverbs.d"));
    }

    #[test]
    fn paths_outside_the_library_directories_are_rejected() {
        for strings in [
            &["lib%s-rdmav34.so"][..],
            &["/lib%s-rdmav34.so"],
            &["/etc/lib%s-rdmav34.so"],
            &["/usr/lib/../../etc/lib%s-rdmav34.so"],
            &["/usr/lib/./x\n/lib%s-rdmav34.so"],
            &["usr/lib/lib%s-rdmav34.so"],
            &["/usrlib/lib%s-rdmav34.so"],
            &["/usr/lib/lib%s-rdmav34"],
            &["/usr/lib/lib%s-rdmav.so"],
            &["/usr/lib/lib%s-rdmav+4.so"],
            &["/usr/lib/lib%s-rdmav34.so/x.so"],
            &["/usr/lib/lib%s-rdmav99999999999.so"],
            &["/usr/lib/lib%s-rdmav34.so", "/proc/libibverbs.d"],
            &["/usr/lib/lib%s-rdmav34.so", "/etc/libibverbs.d/../x/libibverbs.d"],
        ] {
            assert_eq!(layout(strings), None, "{strings:?}");
        }
    }

    #[test]
    fn a_directory_that_is_too_deep_or_long_is_rejected() {
        for directory in ["/a".repeat(40), format!("/{}", "a".repeat(300))] {
            let provider = format!("/usr/lib{directory}/lib%s-rdmav34.so");
            assert_eq!(layout(&[&provider]), None, "{provider}");
            let config = format!("/opt{directory}/libibverbs.d");
            assert_eq!(layout(&["/usr/lib/lib%s-rdmav34.so", &config]), None);
        }
    }
}
