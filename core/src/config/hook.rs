//! The parts of the configuration that the hook and the wrapper use.
//!
//! They ignore unknown sections, keys and classes, and values of keys that they do not use, so that
//! an older hook works with a newer configuration. `onload-ctk` reports what is wrong with a file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::read::{
    check_absolute, check_fdtable_size, check_netdev_share, check_netdevs, table_keys,
    unknown_key_error,
};
use super::sections::{
    AnnotationsConfig, CdiConfig, Config, EnvironmentConfig, LeasesConfig, LogConfig,
};
use super::toml_error::describe_toml_error;
use super::values::{Memlock, RdmaLibraries, Share};
use crate::bundle::Bundle;
use crate::class::Class;
use crate::netdev::settings::NetdevSettings;
use crate::versioned::LenientValue;
use onload_sys::error::{Result, bail};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HookConfig {
    pub cdi: HookCdiConfig,
    pub annotations: AnnotationsConfig,
    pub environment: EnvironmentConfig,
    pub leases: LeasesConfig,
    #[serde(deserialize_with = "deserialize_log")]
    pub log: LogConfig,
    pub netdev: BTreeMap<String, NetdevSettings>,
    /// The value is `None` if this version does not understand the bundle. Only containers that
    /// request that bundle are rejected.
    #[serde(deserialize_with = "deserialize_bundles")]
    pub bundles: BTreeMap<String, Option<Bundle>>,
}

/// The keys of section `[cdi]` that the hook and the wrapper use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct HookCdiConfig {
    pub hook_path: PathBuf,
    pub fdtable_size: u32,
    pub memlock: Memlock,
    pub rdma_libraries: RdmaLibraries,
}

impl From<&CdiConfig> for HookCdiConfig {
    fn from(cdi: &CdiConfig) -> Self {
        HookCdiConfig {
            hook_path: cdi.hook_path.clone(),
            fdtable_size: cdi.fdtable_size,
            memlock: cdi.memlock,
            rdma_libraries: cdi.rdma_libraries,
        }
    }
}

impl Default for HookCdiConfig {
    fn default() -> Self {
        HookCdiConfig::from(&CdiConfig::default())
    }
}

impl From<&Config> for HookConfig {
    fn from(config: &Config) -> Self {
        HookConfig {
            cdi: HookCdiConfig::from(&config.cdi),
            annotations: config.annotations.clone(),
            environment: config.environment.clone(),
            leases: config.leases.clone(),
            log: config.log.clone(),
            netdev: config.netdev.clone(),
            bundles: config
                .bundles
                .iter()
                .map(|(name, bundle)| (name.clone(), Some(bundle.clone())))
                .collect(),
        }
    }
}

fn deserialize_log<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<LogConfig, D::Error> {
    let log = LenientValue::<LogConfig>::deserialize(deserializer)?.value();
    Ok(log.filter(|log| log.file.is_absolute()).unwrap_or_default())
}

fn deserialize_bundles<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<BTreeMap<String, Option<Bundle>>, D::Error> {
    let bundles = BTreeMap::<String, LenientValue<Bundle>>::deserialize(deserializer)?;
    Ok(bundles.into_iter().map(|(name, bundle)| (name, bundle.value())).collect())
}

impl LogConfig {
    /// Reads this section, ignoring errors in the rest of the file. Returns the default, which logs
    /// to no file, if the section is not understood: the container starts all the same, and
    /// `onload-ctk` reports the error.
    pub fn read(text: &str) -> LogConfig {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct LogOnly {
            #[serde(deserialize_with = "deserialize_log")]
            log: LogConfig,
        }
        toml::from_str::<LogOnly>(text).unwrap_or_default().log
    }
}

impl HookConfig {
    /// Parses a configuration file. The error names the line if the text is not TOML, or if a key
    /// that is used has an invalid value.
    pub fn parse(text: &str) -> Result<HookConfig> {
        let mut table = DeTable::parse(text).map_err(|error| describe_toml_error(text, &error))?;
        check_misspelled(text, table.get_ref())?;
        leave_unknown_classes_out(table.get_mut())?;
        let deserializer = toml::de::Deserializer::from(table);
        let config = HookConfig::deserialize(deserializer)
            .map_err(|error| describe_toml_error(text, &error))?;
        check_absolute("cdi.hook-path", &config.cdi.hook_path)?;
        check_fdtable_size(config.cdi.fdtable_size)?;
        check_netdev_share(&config.leases)?;
        check_netdevs(&config.netdev)?;
        Ok(config)
    }
}

/// Rejects a key that differs from a used one only in case, `_` or a final `s`. No other version
/// has such a key, and ignoring it would leave a default in force in place of the operator's
/// policy.
fn check_misspelled(text: &str, file: &DeTable<'_>) -> Result<()> {
    let used = [
        ("annotations", table_keys::<AnnotationsConfig>()),
        ("cdi", table_keys::<CdiConfig>()),
        ("environment", table_keys::<EnvironmentConfig>()),
        ("leases", table_keys::<LeasesConfig>()),
    ];
    let sections = used.map(|(section, _)| section);
    let fold =
        |key: &str| key.to_ascii_lowercase().replace('_', "-").trim_end_matches('s').to_owned();
    let is_misspelled = |key: &str, known: &[&str]| {
        !known.contains(&key) && known.iter().any(|known| fold(known) == fold(key))
    };
    for (section, value) in file {
        let (name, offset) = (section.get_ref().as_ref(), section.span().start);
        if is_misspelled(name, &sections) {
            return Err(unknown_key_error(text, "", offset, name, &sections));
        }
        let keys = used.iter().find(|(known, _)| *known == name);
        if let (Some((_, keys)), DeValue::Table(table)) = (keys, Spanned::get_ref(value))
            && let Some(key) = table.keys().find(|key| is_misspelled(key.get_ref(), keys))
        {
            return Err(unknown_key_error(text, name, key.span().start, key.get_ref(), keys));
        }
    }
    Ok(())
}

/// Removes classes that this version does not know. Containers can neither request nor get their
/// devices.
fn leave_unknown_classes_out(file: &mut DeTable<'_>) -> Result<()> {
    let is_known = |word: &str| Class::from_name(word).is_some();
    for (section, value) in file {
        let DeValue::Table(section_table) = value.get_mut() else {
            continue;
        };
        for (key, value) in section_table {
            match (section.get_ref().as_ref(), key.get_ref().as_ref(), value.get_mut()) {
                ("annotations" | "environment", "allow", DeValue::Array(classes)) => {
                    *classes = std::mem::replace(classes, DeArray::new())
                        .into_iter()
                        .filter(|class| class.get_ref().as_str().is_none_or(is_known))
                        .collect();
                }
                ("leases", "share", DeValue::Table(share)) => {
                    *share = std::mem::take(share)
                        .into_iter()
                        .filter(|(class, _)| is_known(class.get_ref()))
                        .collect();
                    for (class, share) in share {
                        let is_share = share.get_ref().as_integer().is_some_and(|number| {
                            i64::from_str_radix(number.as_str(), number.radix())
                                .is_ok_and(|number| Share::try_from(number).is_ok())
                        });
                        if !is_share {
                            bail!(
                                "leases.share.{} must be a number of containers from 1 to {}",
                                class.get_ref(),
                                Share::MAX
                            );
                        }
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}
