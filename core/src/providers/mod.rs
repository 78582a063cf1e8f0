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

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::slice;

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
        /// Which devices have none then, each with the reason; none where all are served.
        unserved: Option<String>,
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
    let verdict = verdict(image, host, providers, &mut notes);
    let verdict = verdict.unwrap_or_else(|error| Verdict::Unfit(format!("{error:#}")));
    Judgement { verdict, notes }
}

/// The providers, each with the devices that it serves.
type Providers<'a> = BTreeMap<&'static str, Vec<&'a RdmaDevice>>;

fn providers<'a>(devices: &'a [RdmaDevice], notes: &mut Vec<String>) -> Providers<'a> {
    let mut found = Providers::new();
    for device in devices {
        let RdmaDevice { name, driver, .. } = device;
        match drivers::provider(driver) {
            Some(provider) => found.entry(provider).or_default().push(device),
            None => notes.push(format!(
                "the provider library of {name} is not examined: its driver {driver:?} is unknown"
            )),
        }
    }
    found
}

/// The names of the devices that some providers serve.
fn names<'a>(
    providers: &Providers<'_>,
    some: impl IntoIterator<Item = &'a &'static str>,
) -> Vec<String> {
    let devices = some.into_iter().filter_map(|one| providers.get(one));
    let devices = devices.flatten().map(|device| device.name.clone());
    devices.collect()
}

fn verdict(
    image: &Image<'_>,
    host: &Trusted,
    mut providers: Providers<'_>,
    notes: &mut Vec<String>,
) -> Result<Verdict> {
    if providers.is_empty() {
        return Ok(Verdict::Fits);
    }
    let libraries = Libraries::new(image, "the image", image.library_path)?;
    let mut brings = |places: &[PathBuf]| {
        let own = places.iter().find(|path| image.covers(path));
        notes.extend(own.map(|path| {
            format!("a mount of the container is at {path:?}: it brings its own libraries")
        }));
        own.is_some()
    };
    if brings(&libraries.candidates(LIBIBVERBS)) {
        return Ok(Verdict::Fits);
    }
    let verbs = Verbs::find(&libraries)?;
    if let Some(verbs) = &verbs {
        providers.retain(|provider, _| !brings(&verbs.places(provider, &libraries)));
    }
    let providers = &providers;
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
    let mut ways = Vec::new();
    if let Some(verbs) = &verbs {
        ways.push(mounting.add(verbs, &host_verbs, &lacking));
    }
    if ways.iter().all(|way| !way.unserved.is_empty()) {
        ways.push(mounting.replace(&host_verbs));
    }
    // Of two that serve as many devices, the one that leaves the image its own libraries.
    let best = ways.iter().min_by_key(|way| way.unserved.len());
    let Some(best) = best.filter(|way| way.unserved.len() < providers.len()) else {
        let mut why = why_lacking(&libraries, &lacking);
        for (_, reason) in ways.iter().filter_map(|way| way.unserved.first()) {
            if !why.ends_with(reason) {
                why = format!("{why}; {reason}");
            }
        }
        bail!("{why}; use an image whose rdma-core and glibc fit the host's");
    };
    if best.way == Way::Replace && mounting.lacks(LIBRDMACM)? {
        notes.push(format!(
            "neither the image nor the host has {LIBRDMACM}: programs that need it, as rping does, do not load"
        ));
    }
    let unserved = best.unserved.iter().map(|(provider, reason)| {
        let names = names(providers, [provider]).join(", ");
        let own = lacking.iter().find(|(lacking, _)| lacking == provider);
        let own = own.map(|own| why_lacking(&libraries, slice::from_ref(own)) + "; ");
        format!("{names}: {}{reason}", own.unwrap_or_default())
    });
    let unserved: Vec<String> = unserved.collect();
    Ok(best.verdict(&unserved.join("; ")))
}

/// What one way of mounting libraries of the host does.
struct Served {
    way: Way,
    files: BTreeMap<PathBuf, PathBuf>,
    /// The providers that cannot be used then, and why.
    unserved: Vec<(&'static str, String)>,
}

impl Served {
    fn verdict(&self, unserved: &str) -> Verdict {
        // The image's own libraries serve the others.
        if self.files.is_empty() {
            return Verdict::Unfit(unserved.to_owned());
        }
        let files = self.files.iter().map(|(target, source)| LibraryMount {
            source: source.clone(),
            target: target.clone(),
        });
        Verdict::Mount {
            way: self.way,
            files: files.collect(),
            unserved: (!unserved.is_empty()).then(|| unserved.to_owned()),
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
        devices: &[&RdmaDevice],
        libraries: &Libraries<'_>,
    ) -> Result<State> {
        let files = libraries.files;
        let Some(library) = verbs.provider(provider, libraries)? else {
            return Ok(State::Missing(verbs.layout.provider(provider)));
        };
        if let Some(reason) = unmet(&[&library], libraries)? {
            return Ok(State::Unusable(library.path.clone(), reason));
        }
        if let Some(reason) = library.unserved(provider, devices)? {
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
    for (provider, devices) in providers {
        let state = State::of(verbs, provider, devices, libraries)?;
        if !matches!(state, State::Fits) {
            lacking.push((*provider, state));
        }
    }
    Ok(lacking)
}

/// Why programs cannot use some devices, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    pub why: String,
    /// Whether a provider is there that does not load, or not serve the driver.
    pub is_there: bool,
    /// The names of those devices.
    pub devices: Vec<String>,
}

/// Why programs that load what is in `files` cannot use the devices; `None` if they can. `whose` is for the message.
pub fn misfit(
    files: &dyn Files,
    whose: &'static str,
    library_path: Option<&str>,
    devices: &[RdmaDevice],
) -> Result<Option<Misfit>> {
    let providers = providers(devices, &mut Vec::new());
    if providers.is_empty() {
        return Ok(None);
    }
    let libraries = Libraries::new(files, whose, library_path)?;
    let (lacking, devices) = match Verbs::find(&libraries)? {
        Some(verbs) => {
            let lacking = lacking(&verbs, &providers, &libraries)?;
            let devices = names(&providers, lacking.iter().map(|(provider, _)| provider));
            (lacking, devices)
        }
        None => (Vec::new(), names(&providers, providers.keys())),
    };
    let why = why_lacking(&libraries, &lacking);
    let mut states = lacking.iter().map(|(_, state)| state);
    let is_there = states.any(|state| matches!(state, State::Unusable(..)));
    Ok((!devices.is_empty()).then_some(Misfit { why, is_there, devices }))
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
    providers: &'a Providers<'a>,
    files: BTreeMap<PathBuf, PathBuf>,
}

impl Mounting<'_> {
    fn lacks(&self, name: &str) -> Result<bool> {
        let own = self.libraries.first(name)?;
        Ok(own.is_none() && self.host_libraries.first(name)?.is_none())
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
    fn add(&mut self, verbs: &Verbs, host: &Verbs, lacking: &[(&'static str, State)]) -> Served {
        let (mut way, mut unserved) = (Way::Add, Vec::new());
        for (provider, state) in lacking {
            match self.attempt(|own| own.add_one(verbs, host, provider, state)) {
                Ok(own) => way = way.max(own),
                Err(error) => unserved.push((*provider, format!("{error:#}"))),
            }
        }
        Served { way, files: std::mem::take(&mut self.files), unserved }
    }

    /// Mounts nothing of what fails.
    fn attempt<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.files.clone();
        let done = act(self);
        if done.is_err() {
            self.files = before;
        }
        done
    }

    fn add_one(
        &mut self,
        verbs: &Verbs,
        host: &Verbs,
        provider: &str,
        state: &State,
    ) -> Result<Way> {
        let mut way = Way::Add;
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
        Ok(way)
    }

    /// One that serves the kernel's driver.
    fn host_provider(&self, host: &Verbs, provider: &str) -> Result<Rc<Library>> {
        let Some(library) = host.provider(provider, &self.host_libraries)? else {
            let path = host.layout.provider(provider);
            bail!("the host has no provider {path:?}; install it there");
        };
        if let Some(devices) = self.providers.get(provider)
            && let Some(reason) = library.unserved(provider, devices)?
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
    fn replace(&mut self, host: &Verbs) -> Served {
        let mut unserved = Vec::new();
        if let Err(error) = self.attempt(|own| own.replace_all(host, &mut unserved)) {
            let reason = format!("{error:#}");
            let all = self.providers.keys();
            unserved = all.map(|provider| (*provider, reason.clone())).collect();
        }
        Served { way: Way::Replace, files: std::mem::take(&mut self.files), unserved }
    }

    fn replace_all(
        &mut self,
        host: &Verbs,
        unserved: &mut Vec<(&'static str, String)>,
    ) -> Result<()> {
        let Some(libc) = self.libraries.first("libc.so.6")? else {
            bail!("the host's libraries need glibc, and the image has no libc.so.6");
        };
        let directory = libc.path.parent().unwrap_or(Path::new("/"));
        let mut set = self.whole_set()?;
        let mut public = Vec::new();
        for provider in self.providers.keys() {
            match self.attempt(|own| own.replace_one(host, provider, &set)) {
                Ok(library) if is_public(&library.name()) => public.push(library),
                Ok(_) => {}
                Err(error) => unserved.push((*provider, format!("{error:#}"))),
            }
        }
        if unserved.len() == self.providers.len() {
            return Ok(());
        }
        set.extend(public);
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

    fn replace_one(
        &mut self,
        host: &Verbs,
        provider: &str,
        set: &[Rc<Library>],
    ) -> Result<Rc<Library>> {
        let library = self.host_provider(host, provider)?;
        let path = host.layout.provider(provider);
        self.mount(&library.path, &path, holds_libraries)?;
        let file = host.layout.driver_file(provider);
        self.name_driver(host, provider, &file)?;
        let all = set.iter().map(Rc::as_ref).chain([&*library]);
        let all: Vec<&Library> = all.collect();
        if let Some(reason) = unmet(&all, self.libraries)? {
            bail!("the host's RDMA libraries need more than the image has: one {reason}");
        }
        Ok(library)
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
