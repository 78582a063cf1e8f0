//! Decides which RDMA provider libraries a container uses: the image's own, or the host's, mounted
//! into the container.
//!
//! A provider has to be compatible in three respects: the private ABI between it and libibverbs,
//! glibc, and the kernel ABI of its driver. The private ABI is judged by symbols, since it has
//! grown without a new version number.

mod device;
mod drivers;
mod files;
mod libraries;
mod symbols;
mod verbs;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::slice;

use onload_sys::bail;
use onload_sys::error::Result;
use onload_sys::fs::trust::TrustedTree;

pub use device::VerbsDevice;
pub use files::{ImageFiles, LibraryFiles, RunningFiles};
pub use libraries::LIBRARY_DIRS;

pub use drivers::LIBRDMACM;
use drivers::PUBLIC_LIBRARIES;
use files::NativeLibrary;
use libraries::LibrarySearch;
use symbols::{find_lost_version, find_unmet, find_unmet_by_program};
pub use verbs::LIBIBVERBS;
use verbs::{VerbsLibrary, is_config_path, is_library_path};

/// How the host's libraries are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountMethod {
    /// A provider is added, and no file of the image is covered.
    Add,
    /// The host's libibverbs, librdmacm and providers replace the image's, or the image has none.
    Replace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibraryDecision {
    /// The image's own libraries serve all devices.
    Fits,
    Mount {
        method: MountMethod,
        /// Regular files of the host, without links in their paths, by the path where each is
        /// mounted: read-only, nosuid, nodev.
        files: BTreeMap<PathBuf, PathBuf>,
        /// The devices that these libraries do not serve, with the reasons.
        unserved: Option<String>,
    },
    /// No libraries are compatible. The text says which versions were found and which are needed.
    Unfit(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryReport {
    pub decision: LibraryDecision,
    /// Libraries that could not be examined and were assumed to be compatible, for the debug log.
    pub notes: Vec<String>,
}

/// Decides which libraries the container uses. `host` is the host's file system.
pub fn decide_libraries(
    image: &ImageFiles<'_>,
    host: &TrustedTree,
    devices: &[VerbsDevice],
) -> LibraryReport {
    let mut notes = Vec::new();
    let providers = group_by_provider(devices, &mut notes);
    let decision = try_decide(image, host, providers, &mut notes)
        .unwrap_or_else(|error| LibraryDecision::Unfit(format!("{error:#}")));
    LibraryReport { decision, notes }
}

/// The providers, each with the devices that it serves.
type ProviderDevices<'a> = BTreeMap<&'static str, Vec<&'a VerbsDevice>>;

fn group_by_provider<'a>(
    devices: &'a [VerbsDevice],
    notes: &mut Vec<String>,
) -> ProviderDevices<'a> {
    let mut providers = ProviderDevices::new();
    for device in devices {
        let VerbsDevice { name, driver, .. } = device;
        match drivers::provider_name(driver) {
            Some(provider) => providers.entry(provider).or_default().push(device),
            None => notes.push(format!(
                "the provider library of {name} is not examined: its driver {driver:?} is unknown"
            )),
        }
    }
    providers
}

/// Returns the names of the devices that these providers serve.
fn device_names<'a>(
    providers: &ProviderDevices<'_>,
    names: impl IntoIterator<Item = &'a &'static str>,
) -> Vec<String> {
    names
        .into_iter()
        .filter_map(|name| providers.get(name))
        .flatten()
        .map(|device| device.name.clone())
        .collect()
}

fn try_decide(
    image: &ImageFiles<'_>,
    host: &TrustedTree,
    mut providers: ProviderDevices<'_>,
    notes: &mut Vec<String>,
) -> Result<LibraryDecision> {
    if providers.is_empty() {
        return Ok(LibraryDecision::Fits);
    }
    let libraries = LibrarySearch::new(image, "the image", image.library_path)?;
    let mut is_mounted_by_user = |paths: &[PathBuf]| {
        let Some(path) = paths.iter().find(|path| image.is_covered(path)) else {
            return false;
        };
        notes.push(format!("the container has a mount at {path:?}: it brings its own libraries"));
        true
    };
    if is_mounted_by_user(&libraries.candidate_paths(LIBIBVERBS)) {
        return Ok(LibraryDecision::Fits);
    }
    let verbs = VerbsLibrary::find(&libraries)?;
    if let Some(verbs) = &verbs {
        providers
            .retain(|provider, _| !is_mounted_by_user(&verbs.provider_paths(provider, &libraries)));
    }
    let providers = &providers;
    let lacking = match &verbs {
        Some(verbs) => find_incomplete(verbs, providers, &libraries)?,
        None => Vec::new(),
    };
    if verbs.is_some() && lacking.is_empty() {
        return Ok(LibraryDecision::Fits);
    }
    let mut builder = MountBuilder {
        image,
        libraries: &libraries,
        host,
        host_libraries: LibrarySearch::new(host, "the host", None)?,
        providers,
        files: BTreeMap::new(),
    };
    let Some(host_verbs) = VerbsLibrary::find(&builder.host_libraries)? else {
        let message = describe_lacking(&libraries, &lacking);
        bail!(
            "{message}, and the host has no {LIBIBVERBS}; install rdma-core in the image or on the host"
        );
    };
    let mut plans = Vec::new();
    if let Some(verbs) = &verbs {
        plans.push(builder.add(verbs, &host_verbs, &lacking));
    }
    if plans.iter().all(|plan| !plan.unserved.is_empty()) {
        plans.push(builder.replace(&host_verbs));
    }
    // If both plans serve the same number of providers, the first one keeps the image's libraries.
    let Some(best) = plans
        .iter()
        .min_by_key(|plan| plan.unserved.len())
        .filter(|plan| plan.unserved.len() < providers.len())
    else {
        let mut message = describe_lacking(&libraries, &lacking);
        for (_, reason) in plans.iter().filter_map(|plan| plan.unserved.first()) {
            message = append_reason(message, reason);
        }
        bail!("{message}; use an image whose rdma-core and glibc fit the host's");
    };
    if best.method == MountMethod::Replace && builder.is_missing(LIBRDMACM)? {
        notes.push(format!(
            "neither the image nor the host has {LIBRDMACM}: programs that need it, such as rping, \
             do not start"
        ));
    }
    let mut unserved = Vec::new();
    for (provider, reason) in &best.unserved {
        let names = device_names(providers, [provider]).join(", ");
        unserved.push(match lacking.iter().find(|(lacking, _)| lacking == provider) {
            Some(lack) => {
                let description = describe_lacking(&libraries, slice::from_ref(lack));
                format!("{names}: {}", append_reason(description, reason))
            }
            None => format!("{names}: {reason}"),
        });
    }
    let unserved = unserved.join("; ");
    // The image's own libraries serve the other devices.
    if best.files.is_empty() {
        return Ok(LibraryDecision::Unfit(unserved));
    }
    Ok(LibraryDecision::Mount {
        method: best.method,
        files: best.files.clone(),
        unserved: Some(unserved).filter(|unserved| !unserved.is_empty()),
    })
}

fn append_reason(message: String, reason: &str) -> String {
    if message.ends_with(reason) { message } else { format!("{message}; {reason}") }
}

/// A way to mount libraries of the host.
struct MountPlan {
    method: MountMethod,
    files: BTreeMap<PathBuf, PathBuf>,
    /// The providers that remain unusable, with the reasons.
    unserved: Vec<(&'static str, String)>,
}

/// The state of the image's provider for a device.
enum ProviderState {
    Fits,
    /// The provider exists, but the configuration does not name it.
    Unnamed,
    Missing(PathBuf),
    /// The provider exists, but does not load or does not support the kernel's driver.
    Unusable(PathBuf, String),
}

impl ProviderState {
    fn examine(
        verbs: &VerbsLibrary,
        provider: &str,
        devices: &[&VerbsDevice],
        libraries: &LibrarySearch<'_>,
    ) -> Result<ProviderState> {
        let files = libraries.files;
        let Some(library) = verbs.find_provider(provider, libraries)? else {
            return Ok(ProviderState::Missing(verbs.layout.provider_path(provider)));
        };
        if let Some(reason) = find_unmet(&[&library], libraries)? {
            return Ok(ProviderState::Unusable(library.path.clone(), reason));
        }
        if let Some(reason) = library.unserved_reason(provider, devices)? {
            return Ok(ProviderState::Unusable(library.path.clone(), reason));
        }
        match files.open(&verbs.layout.driver_file(provider))? {
            Some(_) => Ok(ProviderState::Fits),
            None => Ok(ProviderState::Unnamed),
        }
    }
}

/// Returns the providers that are missing or incomplete.
fn find_incomplete(
    verbs: &VerbsLibrary,
    providers: &ProviderDevices,
    libraries: &LibrarySearch<'_>,
) -> Result<Vec<(&'static str, ProviderState)>> {
    let mut lacking = Vec::new();
    for (provider, devices) in providers {
        let state = ProviderState::examine(verbs, provider, devices, libraries)?;
        if !matches!(state, ProviderState::Fits) {
            lacking.push((*provider, state));
        }
    }
    Ok(lacking)
}

/// The reason why programs cannot use some or all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryMisfit {
    pub reason: String,
    /// Whether a provider exists that does not load or does not support the driver.
    pub is_present: bool,
    /// The names of these devices.
    pub devices: Vec<String>,
}

/// Returns why programs that load the libraries in `files` cannot use the devices. Returns `None`
/// if they can. `owner` is for messages.
pub fn find_misfit(
    files: &dyn LibraryFiles,
    owner: &'static str,
    library_path: Option<&str>,
    devices: &[VerbsDevice],
) -> Result<Option<LibraryMisfit>> {
    let providers = group_by_provider(devices, &mut Vec::new());
    if providers.is_empty() {
        return Ok(None);
    }
    let libraries = LibrarySearch::new(files, owner, library_path)?;
    let (lacking, devices) = match VerbsLibrary::find(&libraries)? {
        Some(verbs) => {
            let lacking = find_incomplete(&verbs, &providers, &libraries)?;
            let devices = device_names(&providers, lacking.iter().map(|(provider, _)| provider));
            (lacking, devices)
        }
        None => (Vec::new(), device_names(&providers, providers.keys())),
    };
    if devices.is_empty() {
        return Ok(None);
    }
    Ok(Some(LibraryMisfit {
        reason: describe_lacking(&libraries, &lacking),
        is_present: lacking.iter().any(|(_, state)| matches!(state, ProviderState::Unusable(..))),
        devices,
    }))
}

/// Returns whether programs that load the libraries in `files` do not find librdmacm, which many
/// need to connect.
pub fn is_rdmacm_missing(files: &dyn LibraryFiles, library_path: Option<&str>) -> Result<bool> {
    let libraries = LibrarySearch::new(files, "", library_path)?;
    Ok(libraries.find_first(LIBRDMACM)?.is_none())
}

fn describe_lacking(libraries: &LibrarySearch<'_>, lacking: &[(&str, ProviderState)]) -> String {
    let owner = libraries.owner;
    lacking
        .iter()
        .find_map(|(provider, state)| match state {
            ProviderState::Fits => None,
            ProviderState::Unnamed => Some(format!("{owner} does not name the driver {provider}")),
            ProviderState::Missing(path) => Some(format!("{owner} has no provider {path:?}")),
            ProviderState::Unusable(path, reason) => {
                Some(format!("{owner}'s provider {path:?} {reason}"))
            }
        })
        .unwrap_or_else(|| format!("{owner} has no {LIBIBVERBS}"))
}

fn is_public_library(name: &str) -> bool {
    !name.contains("-rdmav")
}

/// Collects files of the host by their targets in the image.
struct MountBuilder<'a> {
    image: &'a ImageFiles<'a>,
    libraries: &'a LibrarySearch<'a>,
    host: &'a TrustedTree,
    host_libraries: LibrarySearch<'a>,
    providers: &'a ProviderDevices<'a>,
    files: BTreeMap<PathBuf, PathBuf>,
}

impl MountBuilder<'_> {
    fn is_missing(&self, name: &str) -> Result<bool> {
        let library = self.libraries.find_first(name)?;
        Ok(library.is_none() && self.host_libraries.find_first(name)?.is_none())
    }

    /// Mounts `source` at a path of the image, after following the links of the image.
    fn mount(&mut self, source: &Path, path: &Path, is_allowed: fn(&Path) -> bool) -> Result<()> {
        let target = self.image.resolve(path)?;
        if !is_allowed(source) {
            bail!("{source:?} of the host is not below /usr, /lib or /opt, so it is not mounted");
        }
        if !is_allowed(&target) {
            bail!("{path:?} in the image resolves to {target:?}, outside the library directories");
        }
        if (self.image.covered)(&target) {
            bail!("a mount of the container hides {target:?}");
        }
        if self.image.read_only && self.image.root.is_missing(&target) {
            bail!("the image's file system is read-only and has no {target:?} to mount at");
        }
        self.files.insert(target, source.to_owned());
        Ok(())
    }

    /// Mounts the host's providers that the image lacks, under the names that the image's libibverbs
    /// opens.
    fn add(
        &mut self,
        verbs: &VerbsLibrary,
        host: &VerbsLibrary,
        lacking: &[(&'static str, ProviderState)],
    ) -> MountPlan {
        let mut unserved = Vec::new();
        for lack in lacking {
            if let Err(error) = self.try_mount(|builder| builder.add_one(verbs, host, lack)) {
                unserved.push((lack.0, format!("{error:#}")));
            }
        }
        MountPlan { method: MountMethod::Add, files: std::mem::take(&mut self.files), unserved }
    }

    /// Runs `act`, and undoes its mounts if it fails.
    fn try_mount<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.files.clone();
        let result = act(self);
        if result.is_err() {
            self.files = before;
        }
        result
    }

    fn add_one(
        &mut self,
        verbs: &VerbsLibrary,
        host: &VerbsLibrary,
        lack: &(&'static str, ProviderState),
    ) -> Result<()> {
        let (provider, state) = lack;
        match state {
            ProviderState::Fits | ProviderState::Unnamed => {}
            ProviderState::Unusable(..) => {
                bail!("{}", describe_lacking(self.libraries, slice::from_ref(lack)))
            }
            ProviderState::Missing(path) => {
                let library = self.find_host_provider(host, provider)?;
                if let Some(reason) = find_unmet(&[&library], self.libraries)? {
                    bail!("the host's {:?} {reason}", library.path);
                }
                self.mount(&library.path, path, is_library_path)?;
                let name = library.name();
                if is_public_library(&name) {
                    if let Some(image_library) = self.libraries.find_first(&name)? {
                        bail!("the image has {:?} without its provider", image_library.path);
                    }
                    let directory = verbs.library.path.parent().unwrap_or(Path::new("/"));
                    self.mount(&library.path, &directory.join(name), is_library_path)?;
                }
            }
        }
        self.mount_driver_file(host, provider, &verbs.layout.driver_file(provider))
    }

    /// Finds the host's provider that supports the kernel's driver.
    fn find_host_provider(&self, host: &VerbsLibrary, provider: &str) -> Result<Rc<NativeLibrary>> {
        let Some(library) = host.find_provider(provider, &self.host_libraries)? else {
            let path = host.layout.provider_path(provider);
            bail!("the host has no provider {path:?}; install it there");
        };
        if let Some(devices) = self.providers.get(provider)
            && let Some(reason) = library.unserved_reason(provider, devices)?
        {
            let path = &library.path;
            bail!("the host's provider {path:?} {reason}; install the one that matches the driver");
        }
        Ok(library)
    }

    /// Mounts a library under the name by which other libraries need it: over the image's library,
    /// or else in `directory`.
    fn mount_by_name(&mut self, library: &NativeLibrary, directory: &Path) -> Result<()> {
        let name = library.name();
        let Some(image_library) = self.libraries.find_first(&name)? else {
            return self.mount(&library.path, &directory.join(name), is_library_path);
        };
        if let Some(version) = find_lost_version(library, &image_library) {
            bail!(
                "the host's {:?} does not define {version}, as the image's {:?} does",
                library.path,
                image_library.path
            );
        }
        self.mount(&library.path, &image_library.path, is_library_path)
    }

    /// Mounts the host's file that names a driver, unless the image has one.
    fn mount_driver_file(
        &mut self,
        host: &VerbsLibrary,
        provider: &str,
        path: &Path,
    ) -> Result<()> {
        if LibraryFiles::open(self.image, path)?.is_some() {
            return Ok(());
        }
        let host_file = host.layout.driver_file(provider);
        if LibraryFiles::open(self.host, &host_file)?.is_none() {
            bail!("the host has no {host_file:?}; install it there");
        }
        let source = self.host.resolve(&host_file)?;
        self.mount(&source, path, is_config_path)
    }

    /// Mounts the host's libibverbs, and all libraries that have to be of the same rdma-core.
    fn replace(&mut self, host: &VerbsLibrary) -> MountPlan {
        let mut unserved = Vec::new();
        if let Err(error) = self.try_mount(|builder| builder.replace_all(host, &mut unserved)) {
            let reason = format!("{error:#}");
            unserved = self.providers.keys().map(|provider| (*provider, reason.clone())).collect();
        }
        MountPlan { method: MountMethod::Replace, files: std::mem::take(&mut self.files), unserved }
    }

    fn replace_all(
        &mut self,
        host: &VerbsLibrary,
        unserved: &mut Vec<(&'static str, String)>,
    ) -> Result<()> {
        let Some(libc) = self.libraries.find_first("libc.so.6")? else {
            bail!("the host's libraries need glibc, and the image has no libc.so.6");
        };
        let directory = libc.path.parent().unwrap_or(Path::new("/"));
        let mut libraries = self.collect_whole_set()?;
        let mut public = Vec::new();
        for provider in self.providers.keys() {
            match self.try_mount(|builder| builder.replace_one(host, provider, &libraries)) {
                Ok(library) if is_public_library(&library.name()) => public.push(library),
                Ok(_) => {}
                Err(error) => unserved.push((*provider, format!("{error:#}"))),
            }
        }
        if unserved.len() == self.providers.len() {
            return Ok(());
        }
        libraries.extend(public);
        if let Some((path, program)) = (self.image.program)()
            && let Some(reason) = find_unmet_by_program(&program, &libraries, self.libraries)?
        {
            bail!("the program {path:?} {reason}");
        }
        for library in &libraries {
            self.mount_by_name(library, directory)?;
        }
        Ok(())
    }

    fn replace_one(
        &mut self,
        host: &VerbsLibrary,
        provider: &str,
        libraries: &[Rc<NativeLibrary>],
    ) -> Result<Rc<NativeLibrary>> {
        let library = self.find_host_provider(host, provider)?;
        let path = host.layout.provider_path(provider);
        self.mount(&library.path, &path, is_library_path)?;
        self.mount_driver_file(host, provider, &host.layout.driver_file(provider))?;
        let loaded: Vec<&NativeLibrary> =
            libraries.iter().map(Rc::as_ref).chain([&*library]).collect();
        if let Some(reason) = find_unmet(&loaded, self.libraries)? {
            bail!(
                "the image does not meet the requirements of the host's RDMA libraries: one \
                 {reason}"
            );
        }
        Ok(library)
    }

    /// Collects the host's libibverbs and librdmacm, its version of each public library of the
    /// image, and libnl if the image has none.
    fn collect_whole_set(&self) -> Result<Vec<Rc<NativeLibrary>>> {
        let mut names = vec![LIBIBVERBS.to_owned()];
        names.extend(PUBLIC_LIBRARIES.map(str::to_owned));
        let mut libraries = Vec::new();
        let mut index = 0;
        while let Some(name) = names.get(index).cloned() {
            index += 1;
            let image_library = self.libraries.find_first(&name)?;
            if image_library.is_none() && PUBLIC_LIBRARIES.contains(&&*name) && name != LIBRDMACM {
                continue;
            }
            let Some(library) = self.host_libraries.find_first(&name)? else {
                match image_library {
                    Some(image_library) => bail!(
                        "{:?} of the image would not load with the host's {LIBIBVERBS}, and the host has no {name}",
                        image_library.path
                    ),
                    None => continue,
                }
            };
            for needed in &library.summary.needed {
                let is_libnl = needed.starts_with("libnl-") && !names.contains(needed);
                if is_libnl && self.libraries.find_first(needed)?.is_none() {
                    names.push(needed.clone());
                }
            }
            libraries.push(library);
        }
        Ok(libraries)
    }
}
