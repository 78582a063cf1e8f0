//! Which provider libraries make RDMA devices usable in an image: its own, or files of the host that are mounted into
//! it. A provider fits by three versions: the private ABI between it and libibverbs, glibc, and the kernel's ABI of
//! the driver. What decides is the symbols, since a private ABI grew without a new number.

mod device;
mod drivers;
mod files;
mod libraries;
mod needs;
mod verbs;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use onload_sys::bail;
use onload_sys::error::Result;
use onload_sys::fs::trust::Trusted;

pub use device::RdmaDevice;
pub use files::{Files, Image, Running};
pub use libraries::LIBRARY_DIRS;

pub use drivers::LIBRDMACM;
use drivers::PUBLIC_LIBRARIES;
use files::Library;
use libraries::Libraries;
use needs::{lost_version, unmet, unmet_by_program};
pub use verbs::LIBIBVERBS;
use verbs::{Verbs, holds_config, holds_libraries};

/// A regular file of the host, with no link on its path, and where it is mounted: read-only, nosuid, nodev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryMount {
    pub source: PathBuf,
    pub target: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// A provider is added, and no file of the image is covered.
    Add,
    /// The image's provider is covered by the host's.
    Cover,
    /// The host's libibverbs, librdmacm and providers replace the image's, or are all that there is.
    Replace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The image's own libraries serve all devices.
    Fits,
    Mount {
        way: Way,
        files: Vec<LibraryMount>,
    },
    /// Nothing fits: which version is where, and what would fit.
    Unfit(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub verdict: Verdict,
    /// What could not be examined and was taken to fit; for the debug log.
    pub notes: Vec<String>,
}

/// `host` is the host's file system.
pub fn judge(image: &Image<'_>, host: &Trusted, devices: &[RdmaDevice]) -> Judgement {
    let mut notes = Vec::new();
    let providers = providers(devices, &mut notes);
    let verdict = verdict(image, host, &providers, &mut notes);
    let verdict = verdict.unwrap_or_else(|error| Verdict::Unfit(format!("{error:#}")));
    Judgement { verdict, notes }
}

/// The providers that serve the devices, and the kernel's ABI of each device.
type Providers = BTreeMap<&'static str, BTreeSet<u32>>;

fn providers(devices: &[RdmaDevice], notes: &mut Vec<String>) -> Providers {
    let mut found = Providers::new();
    for RdmaDevice {
        name,
        driver,
        kernel_abi,
    } in devices
    {
        match drivers::provider(driver) {
            Some(provider) => found.entry(provider).or_default().extend(kernel_abi),
            None => notes.push(format!(
                "the provider library of {name} is not examined: its driver {driver:?} is unknown"
            )),
        }
    }
    found
}

fn verdict(
    image: &Image<'_>,
    host: &Trusted,
    providers: &Providers,
    notes: &mut Vec<String>,
) -> Result<Verdict> {
    if providers.is_empty() {
        return Ok(Verdict::Fits);
    }
    let libraries = Libraries::new(image, "the image", image.library_path)?;
    let candidates = libraries.candidates(LIBIBVERBS);
    if let Some(path) = candidates.iter().find(|path| (image.covered)(path)) {
        notes.push(format!(
            "a mount of the container is at {path:?}: it brings its own libraries"
        ));
        return Ok(Verdict::Fits);
    }
    let verbs = Verbs::find(&libraries)?;
    let lacking = match &verbs {
        Some(verbs) => lacking(verbs, providers, &libraries)?,
        None => Vec::new(),
    };
    if verbs.is_some() && lacking.is_empty() {
        return Ok(Verdict::Fits);
    }
    let mut mounting = Mounting {
        image,
        libraries: &libraries,
        host,
        host_libraries: Libraries::new(host, "the host", None)?,
        providers,
        files: BTreeMap::new(),
    };
    let Some(host_verbs) = Verbs::find(&mounting.host_libraries)? else {
        let why = why_lacking(&libraries, &lacking);
        bail!(
            "{why}, and the host has no {LIBIBVERBS}; install rdma-core in the image or on the host"
        );
    };
    let mut why = why_lacking(&libraries, &lacking);
    if let Some(verbs) = &verbs {
        match mounting.add(verbs, &host_verbs, &lacking) {
            Ok(way) => return Ok(mounting.verdict(way)),
            Err(error) => why = format!("{why}; {error:#}"),
        }
    }
    mounting.files.clear();
    match mounting.replace(&host_verbs) {
        Ok(()) => {
            if mounting.lacks(LIBRDMACM)? {
                notes.push(format!(
                    "neither the image nor the host has {LIBRDMACM}: programs that need it, as rping does, do not load"
                ));
            }
            Ok(mounting.verdict(Way::Replace))
        }
        Err(error) => {
            let error = format!("; {error:#}");
            if !why.ends_with(&error) {
                why += &error;
            }
            bail!("{why}; use an image whose rdma-core and glibc fit the host's")
        }
    }
}

/// What the image has for a device.
enum State {
    Fits,
    /// The provider is there and is not named in the configuration.
    Unnamed,
    Missing(PathBuf),
    /// The provider is there and does not load, or not serve the kernel's driver.
    Unusable(PathBuf, String),
}

impl State {
    fn of(
        verbs: &Verbs,
        provider: &str,
        abis: &BTreeSet<u32>,
        libraries: &Libraries<'_>,
    ) -> Result<State> {
        let files = libraries.files;
        let Some(library) = verbs.provider(provider, libraries)? else {
            return Ok(State::Missing(verbs.layout.provider(provider)));
        };
        if let Some(reason) = unmet(&[&library], libraries)? {
            return Ok(State::Unusable(library.path.clone(), reason));
        }
        if let Some(reason) = library.unserved(provider, abis)? {
            return Ok(State::Unusable(library.path.clone(), reason));
        }
        match files.open(&verbs.layout.driver_file(provider))? {
            Some(_) => Ok(State::Fits),
            None => Ok(State::Unnamed),
        }
    }
}

/// The providers of which something is missing.
fn lacking(
    verbs: &Verbs,
    providers: &Providers,
    libraries: &Libraries<'_>,
) -> Result<Vec<(&'static str, State)>> {
    let mut lacking = Vec::new();
    for (provider, abis) in providers {
        let state = State::of(verbs, provider, abis, libraries)?;
        if !matches!(state, State::Fits) {
            lacking.push((*provider, state));
        }
    }
    Ok(lacking)
}

/// Why programs that load what is in `files` cannot use the devices; `None` if they can. `whose` is for the message.
pub fn misfit(
    files: &dyn Files,
    whose: &'static str,
    library_path: Option<&str>,
    devices: &[RdmaDevice],
) -> Result<Option<String>> {
    let providers = providers(devices, &mut Vec::new());
    if providers.is_empty() {
        return Ok(None);
    }
    let libraries = Libraries::new(files, whose, library_path)?;
    let lacking = match Verbs::find(&libraries)? {
        Some(verbs) => lacking(&verbs, &providers, &libraries)?,
        None => return Ok(Some(why_lacking(&libraries, &[]))),
    };
    Ok((!lacking.is_empty()).then(|| why_lacking(&libraries, &lacking)))
}

/// Whether programs that load what is in `files` find no librdmacm, which many connect by.
pub fn lacks_rdmacm(files: &dyn Files, library_path: Option<&str>) -> Result<bool> {
    let libraries = Libraries::new(files, "", library_path)?;
    Ok(libraries.first(LIBRDMACM)?.is_none())
}

fn why_lacking(libraries: &Libraries<'_>, lacking: &[(&str, State)]) -> String {
    let whose = libraries.whose;
    let reason = lacking.iter().find_map(|(provider, state)| match state {
        State::Fits => None,
        State::Unnamed => Some(format!("{whose} does not name the driver {provider}")),
        State::Missing(path) => Some(format!("{whose} has no provider {path:?}")),
        State::Unusable(path, reason) => Some(format!("{whose}'s provider {path:?} {reason}")),
    });
    reason.unwrap_or_else(|| format!("{whose} has no {LIBIBVERBS}"))
}

fn is_public(name: &str) -> bool {
    !name.contains("-rdmav")
}

/// Files of the host on their way into the image, by their targets.
struct Mounting<'a> {
    image: &'a Image<'a>,
    libraries: &'a Libraries<'a>,
    host: &'a Trusted,
    host_libraries: Libraries<'a>,
    providers: &'a Providers,
    files: BTreeMap<PathBuf, PathBuf>,
}

impl Mounting<'_> {
    fn lacks(&self, name: &str) -> Result<bool> {
        let own = self.libraries.first(name)?;
        Ok(own.is_none() && self.host_libraries.first(name)?.is_none())
    }

    fn verdict(self, way: Way) -> Verdict {
        let files = self.files.into_iter();
        let files = files.map(|(target, source)| LibraryMount { source, target });
        Verdict::Mount {
            way,
            files: files.collect(),
        }
    }

    /// Mounts `source` at a path of the image, or over what is at the end of the links there.
    fn mount(&mut self, source: &Path, path: &Path, may_be: fn(&Path) -> bool) -> Result<()> {
        let target = self.image.resolve(path)?;
        if !may_be(source) {
            bail!("{source:?} of the host is not below /usr, /lib or /opt, so it is not mounted");
        }
        if !may_be(&target) {
            bail!("{path:?} of the image leads to {target:?}, where no library belongs");
        }
        if (self.image.covered)(&target) {
            bail!("a mount of the container hides {target:?}");
        }
        if self.image.read_only && self.image.root.lacks(&target) {
            bail!("the image's file system is read-only and has no {target:?} to mount at");
        }
        self.files.insert(target, source.to_owned());
        Ok(())
    }

    /// Mounts the host's providers that are lacking under the names that the image's libibverbs opens.
    fn add(&mut self, verbs: &Verbs, host: &Verbs, lacking: &[(&str, State)]) -> Result<Way> {
        let mut way = Way::Add;
        for (provider, state) in lacking {
            if !matches!(state, State::Unnamed) {
                let library = self.host_provider(host, provider)?;
                if let Some(reason) = unmet(&[&library], self.libraries)? {
                    bail!("the host's {:?} {reason}", library.path);
                }
                let path = match state {
                    State::Unusable(own, _) => own.clone(),
                    _ => verbs.layout.provider(provider),
                };
                if matches!(state, State::Unusable(..)) {
                    way = Way::Cover;
                }
                self.mount(&library.path, &path, holds_libraries)?;
                if is_public(&library.name()) {
                    let beside = verbs.library.path.parent().unwrap_or(Path::new("/"));
                    if self.mount_by_name(&library, beside)? {
                        way = Way::Cover;
                    }
                }
            }
            self.name_driver(host, provider, &verbs.layout.driver_file(provider))?;
        }
        Ok(way)
    }

    /// One that serves the kernel's driver.
    fn host_provider(&self, host: &Verbs, provider: &str) -> Result<Rc<Library>> {
        let Some(library) = host.provider(provider, &self.host_libraries)? else {
            let path = host.layout.provider(provider);
            bail!("the host has no provider {path:?}; install it there");
        };
        if let Some(abis) = self.providers.get(provider)
            && let Some(reason) = library.unserved(provider, abis)?
        {
            let path = &library.path;
            bail!(
                "the host's provider {path:?} {reason}; install there the one that belongs to the driver"
            );
        }
        Ok(library)
    }

    /// Mounts a library under the name by which others need it: over the image's, and whether there is one, or else
    /// in a directory.
    fn mount_by_name(&mut self, library: &Library, directory: &Path) -> Result<bool> {
        let name = library.name();
        let Some(own) = self.libraries.first(&name)? else {
            self.mount(&library.path, &directory.join(name), holds_libraries)?;
            return Ok(false);
        };
        if let Some(version) = lost_version(library, &own) {
            bail!(
                "the host's {:?} does not define {version}, as the image's {:?} does",
                library.path,
                own.path
            );
        }
        self.mount(&library.path, &own.path, holds_libraries)?;
        Ok(true)
    }

    /// Mounts the host's file that names a driver, where the image has none.
    fn name_driver(&mut self, host: &Verbs, provider: &str, path: &Path) -> Result<()> {
        if Files::open(self.image, path)?.is_some() {
            return Ok(());
        }
        let own = host.layout.driver_file(provider);
        if Files::open(self.host, &own)?.is_none() {
            bail!("the host has no {own:?}; install it there");
        }
        let source = self.host.resolve(&own)?;
        self.mount(&source, path, holds_config)
    }

    /// Mounts the host's libibverbs, with all that has to be of the same rdma-core.
    fn replace(&mut self, host: &Verbs) -> Result<()> {
        let Some(libc) = self.libraries.first("libc.so.6")? else {
            bail!("the host's libraries need glibc, and the image has no libc.so.6");
        };
        let directory = libc.path.parent().unwrap_or(Path::new("/"));
        let mut set = self.whole_set()?;
        let mut loaded: Vec<Rc<Library>> = Vec::new();
        for provider in self.providers.keys() {
            let library = self.host_provider(host, provider)?;
            self.mount(
                &library.path,
                &host.layout.provider(provider),
                holds_libraries,
            )?;
            let file = host.layout.driver_file(provider);
            self.name_driver(host, provider, &file)?;
            if is_public(&library.name()) {
                set.push(library);
            } else {
                loaded.push(library);
            }
        }
        let all: Vec<&Library> = set.iter().chain(&loaded).map(Rc::as_ref).collect();
        if let Some(reason) = unmet(&all, self.libraries)? {
            bail!("the host's RDMA libraries need more than the image has: one {reason}");
        }
        if let Some((path, program)) = (self.image.program)()
            && let Some(reason) = unmet_by_program(&program, &set, self.libraries)?
        {
            bail!("the program {path:?} {reason}");
        }
        for library in &set {
            self.mount_by_name(library, directory)?;
        }
        Ok(())
    }

    /// The host's libibverbs and librdmacm, its version of each public library of the image, and libnl where the image
    /// has none.
    fn whole_set(&self) -> Result<Vec<Rc<Library>>> {
        let mut names = vec![LIBIBVERBS.to_owned()];
        names.extend(PUBLIC_LIBRARIES.map(str::to_owned));
        let mut set = Vec::new();
        let mut at = 0;
        while let Some(name) = names.get(at).cloned() {
            at += 1;
            let own = self.libraries.first(&name)?;
            if own.is_none() && PUBLIC_LIBRARIES.contains(&&*name) && name != LIBRDMACM {
                continue;
            }
            let Some(library) = self.host_libraries.first(&name)? else {
                match own {
                    Some(own) => bail!(
                        "{:?} of the image would not load with the host's {LIBIBVERBS}, and the host has no {name}",
                        own.path
                    ),
                    None => continue,
                }
            };
            for needed in &library.summary.needed {
                let is_libnl = needed.starts_with("libnl-") && !names.contains(needed);
                if is_libnl && self.libraries.first(needed)?.is_none() {
                    names.push(needed.clone());
                }
            }
            set.push(library);
        }
        Ok(set)
    }
}
