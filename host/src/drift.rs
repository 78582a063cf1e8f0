//! Compares the specifications on disk with those that would be written now.

use std::collections::BTreeMap;

use onload_cdi::{Spec, to_json, to_yaml};
use onload_core::class::Class;
use onload_core::config::Config;

use crate::devices::inventory::Inventory;
use crate::generate::{InstalledFiles, generate};
use crate::pools::PoolSet;
use crate::specdir::{DesiredSpecs, Manifest, SpecFormat, SpecPlan, plan};

#[derive(Debug)]
pub struct Drift {
    pub plan: SpecPlan,
    /// The options from the configuration if there is no manifest.
    pub manifest: Manifest,
    pub warnings: Vec<String>,
}

/// Finds the differences. `existing` has the files with our names, and `None` for one that is not a regular file;
/// `manifest` the options with which they were written.
pub fn find_drift(
    existing: &BTreeMap<String, Option<Vec<u8>>>,
    manifest: Option<&Manifest>,
    inventory: &Inventory,
    pools: &PoolSet,
    config: &Config,
    installed: InstalledFiles,
) -> anyhow::Result<Drift> {
    let known = manifest;
    let manifest = known
        .cloned()
        .unwrap_or_else(|| Manifest { kinds: config.cdi.kinds.clone(), ..Manifest::default() });
    let newest = manifest.max_cdi_version.as_deref();
    let mut pools = pools.clone();
    pools.offered.retain(|pool| {
        manifest.kinds.contains(&pool.class) || manifest.kinds.contains(&Class::Bundle)
    });
    if let Some(newest) = newest.and_then(|version| version.parse().ok()) {
        pools.drop_unsupported(newest);
    }
    let mut files = BTreeMap::new();
    for (name, spec) in generate(inventory, &pools.offered, config, installed)? {
        if manifest.kinds.contains(&name.class) {
            files.insert(name, render(&spec, manifest.format).into_bytes());
        }
    }
    let desired = DesiredSpecs {
        scope: Class::ALL.to_vec(),
        files,
        format: manifest.format,
        undecided: inventory.undecided_classes(),
        manifest: manifest.clone(),
        force: false,
    };
    Ok(Drift { plan: plan(&desired, existing, known), manifest, warnings: pools.warnings })
}

pub fn render(spec: &Spec, format: SpecFormat) -> String {
    match format {
        SpecFormat::Json => to_json(spec),
        SpecFormat::Yaml => to_yaml(spec),
    }
}
