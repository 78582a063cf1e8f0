//! The source of each class's edits: the specifications on disk, or those generated for the plugin's own paths.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use onload_cdi::{ContainerEdits, QualifiedName, Registry, SpecSource};
use onload_core::class::Class;
use onload_core::config::Config;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::exclusion::ExclusionSubject;
use onload_host::generate::{InstalledFiles, generate};
use onload_host::host::Host;
use onload_host::offers::{Health, HostDevice, Survey, build_offers};
use onload_host::pools;
use onload_host::spec_index::SpecFiles;
use onload_sys::text::ErrorChain;

use super::layout::class_layouts;
use super::trust;
use crate::settings::PluginSettings;

/// The name of the plugin's own edits as a source.
const OWN_SOURCE: &str = "the settings of the plugin";

/// A registry, with the state of its files when it was read.
type DiskRead = (Arc<Registry>, SpecFiles);

#[derive(Clone, Debug, Default)]
pub struct EditSources {
    dirs: Vec<PathBuf>,
    spec_files: SpecFiles,
    /// The registry of the last reservation.
    on_disk: Arc<Mutex<Option<DiskRead>>>,
    /// The classes for which the plugin's settings have their own edits.
    own_registries: Vec<(&'static [Class], Arc<Registry>)>,
}

impl EditSources {
    /// Returns the edits of devices. Files on disk are read again only after a change.
    pub fn edits(
        &self,
        host: &Host,
        class: Class,
        names: &[QualifiedName],
    ) -> Result<ContainerEdits> {
        let own_registry = self.own_registries.iter().find(|(classes, _)| classes.contains(&class));
        let registry = match own_registry {
            Some((_, registry)) => Arc::clone(registry),
            None => self.registry_on_disk(host)?,
        };
        let edits = registry.edits_for(names);
        edits.map_err(|error| anyhow!("{}; run \"onload-ctk cdi generate\"", ErrorChain(&error)))
    }

    fn registry_on_disk(&self, host: &Host) -> Result<Arc<Registry>> {
        if let Some(why) = trust::untrusted_reason(host, &self.dirs, &self.spec_files) {
            bail!(why);
        }
        let mut on_disk = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((registry, files)) = &*on_disk
            && files.is_current()
        {
            return Ok(Arc::clone(registry));
        }
        let (registry, files) = self.spec_files.read();
        let registry = Arc::new(registry);
        *on_disk = Some((Arc::clone(&registry), files));
        Ok(registry)
    }

    /// Returns whether no file has changed since the last survey, so that its verdict on the devices holds. Fails if the
    /// files may not be used any more.
    pub fn is_current(&self, host: &Host) -> Result<bool> {
        if !self.spec_files.is_current() {
            return Ok(false);
        }
        match trust::untrusted_reason(host, &self.dirs, &self.spec_files) {
            Some(why) => bail!(why),
            None => Ok(true),
        }
    }

    pub fn is_own(&self, class: Class) -> bool {
        self.own_registries.iter().any(|(classes, _)| classes.contains(&class))
    }
}

#[derive(Debug)]
pub struct NomadSurvey {
    pub devices: Vec<HostDevice>,
    pub edit_sources: EditSources,
    /// Devices that are not offered for the plugin's own paths, with the reason, which no other program reports.
    pub exclusions: Vec<String>,
}

pub fn survey_host(
    host: &Host,
    config: &Config,
    settings: &PluginSettings,
    dirs: &[PathBuf],
) -> Result<NomadSurvey> {
    let survey = Survey::read(host, config, dirs)?;
    let mut devices = survey.offers();
    if let Some(why) = trust::untrusted_reason(host, dirs, &survey.spec_files) {
        for device in &mut devices {
            device.health = Health::Unhealthy(why.clone());
        }
    }
    let mut edit_sources = EditSources {
        dirs: dirs.to_vec(),
        spec_files: survey.spec_files.clone(),
        ..EditSources::default()
    };
    let mut exclusions = Vec::new();
    for (classes, config) in class_layouts(settings, config) {
        let (inventory, pools) = pools::discover_with_pools(host, &config);
        let registry = build_registry(host, &config, &inventory)?;
        let own_devices = build_offers(&inventory, &registry, &pools, &survey.leases);
        exclusions.extend(exclusion_reasons(&inventory, classes));
        devices.retain(|device| !classes.contains(&device.class));
        devices.extend(own_devices.into_iter().filter(|device| classes.contains(&device.class)));
        edit_sources.own_registries.push((classes, Arc::new(registry)));
    }
    Ok(NomadSurvey { devices, edit_sources, exclusions })
}

/// Builds the specifications of another configuration in memory.
fn build_registry(host: &Host, config: &Config, inventory: &Inventory) -> Result<Registry> {
    let writing = "applying the paths of the plugin's configuration";
    let installed = InstalledFiles::read(host, config).context(writing)?;
    let specs = generate(inventory, &[], config, installed).context(writing)?;
    let sources = specs.into_values().map(|spec| SpecSource {
        path: Path::new(OWN_SOURCE).to_owned(),
        priority: 0,
        content: Ok(spec),
    });
    Ok(Registry::from_sources(sources.collect()))
}

/// Returns why classes have fewer devices or none.
fn exclusion_reasons(inventory: &Inventory, classes: &[Class]) -> Vec<String> {
    let mut reasons = Vec::new();
    if classes.contains(&Class::Nic)
        && let Some(reason) = inventory.onload.as_ref().and_then(|onload| onload.obstacle.as_ref())
    {
        reasons.push(format!("Onload is not offered: {reason}"));
    }
    for entry in &inventory.not_offered {
        if let ExclusionSubject::Device(class) = entry.kind
            && classes.contains(&class)
        {
            reasons.push(format!("{} is not offered: {}", entry.name, entry.reason));
        }
    }
    reasons
}
