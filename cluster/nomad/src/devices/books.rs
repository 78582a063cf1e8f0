//! Where the edits of each class stand: in the specifications on disk, or in those that the plugin's own paths
//! make.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onload_cdi::{ContainerEdits, QualifiedName, Registry, SpecSource, UnresolvableError};
use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::lease::Listed;
use onload_core::text::Chain;
use onload_host::discover::inventory::Inventory;
use onload_host::generate::{GenerateError, Specs, Surroundings, generate};
use onload_host::host::{Host, HostError};
use onload_host::leases::UnknownLeases;
use onload_host::offers::{Offer, Survey, offers};
use onload_host::pools;

use super::layout::layouts;
use crate::settings::Settings;

/// What edits of the plugin's own are said to stand in.
const OWN_SOURCE: &str = "the settings of the plugin";

/// Why nothing is known of a host.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The leases cannot be read.
    #[error(transparent)]
    Leases(#[from] UnknownLeases),
    /// What decides about specifications cannot be looked at.
    #[error("writing what tasks get by the paths of the plugin's configuration")]
    Surroundings(#[from] HostError),
    /// There are no such specifications.
    #[error("writing what tasks get by the paths of the plugin's configuration")]
    Generate(#[from] GenerateError),
}

/// The edits of all classes.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// The directories of specifications.
    dirs: Vec<PathBuf>,
    /// The classes that the plugin's settings have their own edits of.
    own: Vec<(&'static [Class], Arc<Registry>)>,
}

impl Books {
    /// The edits of some devices of one class, from the specifications as they are now.
    ///
    /// # Errors
    /// No specification has one of them.
    pub fn edits(
        &self,
        class: Class,
        names: &[QualifiedName],
    ) -> Result<ContainerEdits, UnresolvableError> {
        let own = self
            .own
            .iter()
            .find(|(classes, _)| classes.contains(&class));
        match own {
            Some((_, registry)) => registry.edits_for(names),
            None => Registry::scan(&self.dirs).edits_for(names),
        }
    }

    /// Whether the settings of the plugin have their own edits of a class.
    #[must_use]
    pub fn is_own(&self, class: Class) -> bool {
        self.own.iter().any(|(classes, _)| classes.contains(&class))
    }
}

/// A host at one moment.
#[derive(Debug)]
pub struct Look {
    /// What it offers.
    pub offers: Vec<Offer>,
    /// What the offers consist of.
    pub books: Books,
}

/// Looks at a host.
///
/// # Errors
/// [`LookError`].
pub fn look(
    host: &Host,
    config: &Config,
    settings: &Settings,
    dirs: &[PathBuf],
) -> Result<Look, LookError> {
    let survey = Survey::read(host, config, dirs)?;
    let mut offered = survey.offers();
    let mut books = Books {
        dirs: dirs.to_vec(),
        own: Vec::new(),
    };
    for (classes, config) in layouts(settings, config) {
        let (own, registry) = own_offers(host, &config, &survey.leases)?;
        offered.retain(|offer| !classes.contains(&offer.class));
        offered.extend(
            own.into_iter()
                .filter(|offer| classes.contains(&offer.class)),
        );
        books.own.push((classes, Arc::new(registry)));
    }
    Ok(Look {
        offers: offered,
        books,
    })
}

/// What a host offers with another configuration, whose specifications stand in no file.
fn own_offers(
    host: &Host,
    config: &Config,
    leases: &[Listed],
) -> Result<(Vec<Offer>, Registry), LookError> {
    let (inventory, pools) = pools::survey(host, config);
    let specs = specifications(host, config, &inventory)?;
    let sources = specs.into_values().map(|spec| SpecSource {
        path: Path::new(OWN_SOURCE).to_owned(),
        priority: 0,
        content: Ok(spec),
    });
    let registry = Registry::from_sources(sources.collect());
    Ok((offers(&inventory, &registry, &pools, leases), registry))
}

fn specifications(host: &Host, config: &Config, inventory: &Inventory) -> Result<Specs, LookError> {
    let surroundings = Surroundings::of(host, config)?;
    Ok(generate(inventory, &[], config, surroundings)?)
}

/// Why names are not resolved, in one line.
#[must_use]
pub fn why(error: &UnresolvableError) -> String {
    format!("{}; run \"onload-ctk cdi generate\"", Chain(error))
}
