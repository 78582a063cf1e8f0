//! The parts of the configuration that the hook and the wrapper use.
//!
//! They ignore unknown sections, keys and classes, and values of keys that they do not use, so that
//! an older hook works with a newer configuration. `onload-ctk` reports what is wrong with a file.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use toml::de::{DeArray, DeTable, DeValue};

use super::read::{
    check_absolute, check_fdtable_size, check_netdev_share, check_netdevs, table_keys,
};
use super::sections::{
    AnnotationsConfig, CdiConfig, Config, EnvironmentConfig, LeasesConfig, LogConfig,
};
use super::toml_error::{describe_toml_error, error_at};
use super::values::Share;
use crate::bundle::Bundle;
use crate::class::Class;
use crate::netdev::settings::NetdevSettings;
use crate::versioned::LenientValue;
use crate::vf_config::VfConfig;
use onload_sys::error::{Result, bail};

/// The keys of section `[cdi]` that the hook and the wrapper use.
const CDI_KEYS: [&str; 4] = ["hook-path", "fdtable-size", "memlock", "rdma-libraries"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HookConfig {
    /// Only the keys in [`CDI_KEYS`] are read.
    pub cdi: CdiConfig,
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

impl From<&Config> for HookConfig {
    fn from(config: &Config) -> Self {
        HookConfig {
            cdi: CdiConfig {
                hook_path: config.cdi.hook_path.clone(),
                fdtable_size: config.cdi.fdtable_size,
                memlock: config.cdi.memlock,
                rdma_libraries: config.cdi.rdma_libraries,
                ..CdiConfig::default()
            },
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
    let mut keys =
        LenientValue::<toml::Table>::deserialize(deserializer)?.value().unwrap_or_default();
    keys.retain(|key, _| table_keys::<LogConfig>().contains(&key));
    Ok(LogConfig::deserialize(keys).ok().filter(|log| log.file.is_absolute()).unwrap_or_default())
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
        remove_unknown_keys(text, table.get_mut())?;
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

/// Removes keys that this version does not know.
fn remove_unknown_keys(text: &str, file: &mut DeTable<'_>) -> Result<()> {
    reject_misspelled(text, "", file, &["annotations", "cdi", "environment", "leases"])?;
    for (section, value) in file {
        let DeValue::Table(table) = value.get_mut() else {
            continue;
        };
        let section = section.get_ref().as_ref();
        let keys = match section {
            "annotations" => table_keys::<AnnotationsConfig>(),
            "cdi" => {
                reject_misspelled(text, section, table, table_keys::<CdiConfig>())?;
                &CDI_KEYS
            }
            "environment" => table_keys::<EnvironmentConfig>(),
            "leases" => table_keys::<LeasesConfig>(),
            "bundles" => {
                let keys = table_keys::<Bundle>();
                tables_in(table).for_each(|bundle| retain_keys(bundle, keys));
                continue;
            }
            "netdev" => {
                for interface in tables_in(table) {
                    retain_keys(interface, table_keys::<NetdevSettings>());
                    tables_in(interface).for_each(|vf| retain_keys(vf, table_keys::<VfConfig>()));
                }
                continue;
            }
            _ => continue,
        };
        reject_misspelled(text, section, table, keys)?;
        retain_keys(table, keys);
    }
    Ok(())
}

fn tables_in<'t, 'i>(table: &'t mut DeTable<'i>) -> impl Iterator<Item = &'t mut DeTable<'i>> {
    table.iter_mut().filter_map(|(_, value)| match value.get_mut() {
        DeValue::Table(table) => Some(table),
        _ => None,
    })
}

fn retain_keys(table: &mut DeTable<'_>, keys: &[&str]) {
    *table = std::mem::take(table)
        .into_iter()
        .filter(|(key, _)| keys.contains(&key.get_ref().as_ref()))
        .collect();
}

/// Rejects a key that differs from a known one only in case, `_` or a final `s`. No other version
/// has such a key, and ignoring it would leave a default in force in place of the operator's
/// policy.
fn reject_misspelled(text: &str, section: &str, table: &DeTable<'_>, known: &[&str]) -> Result<()> {
    let fold =
        |key: &str| key.to_ascii_lowercase().replace('_', "-").trim_end_matches('s').to_owned();
    let dot = if section.is_empty() { "" } else { "." };
    for key in table.keys() {
        let name = key.get_ref().as_ref();
        if !known.contains(&name)
            && let Some(meant) = known.iter().find(|known| fold(known) == fold(name))
        {
            let message = format!(
                "unknown key {:?}; did you mean {:?}?",
                format!("{section}{dot}{name}"),
                format!("{section}{dot}{meant}")
            );
            return Err(error_at(text, key.span().start, None, &message));
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
