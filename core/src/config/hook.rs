//! What hook and wrapper use of the file. They pass over every section, key and class that they do not know, and over
//! values that are not theirs: beside a newer configuration an older hook goes on. `onload-ctk` says what is wrong with
//! such a file.

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
    #[serde(deserialize_with = "log")]
    pub log: LogConfig,
    pub netdev: BTreeMap<String, NetdevSettings>,
    /// `None` where this version does not understand one: only who asks for it is refused.
    #[serde(deserialize_with = "deserialize_bundles")]
    pub bundles: BTreeMap<String, Option<Bundle>>,
}

/// What they use of section `[cdi]`.
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
        let bundles = config.bundles.iter();
        HookConfig {
            cdi: HookCdiConfig::from(&config.cdi),
            annotations: config.annotations.clone(),
            environment: config.environment.clone(),
            leases: config.leases.clone(),
            log: config.log.clone(),
            netdev: config.netdev.clone(),
            bundles: bundles.map(|(name, bundle)| (name.clone(), Some(bundle.clone()))).collect(),
        }
    }
}

fn log<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<LogConfig, D::Error> {
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
    /// Reads this section of a configuration file, whatever else is wrong with the file. A log that is
    /// not understood is none: a container starts without it, and `onload-ctk` says what is wrong.
    pub fn read(text: &str) -> LogConfig {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct LogOnly {
            #[serde(deserialize_with = "log")]
            log: LogConfig,
        }
        toml::from_str(text).map_or_else(|_| LogConfig::default(), |read: LogOnly| read.log)
    }
}

impl HookConfig {
    /// The error names the line where the text is no TOML, or a key that they use has a value that they do not
    /// understand.
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

/// A key that is one of the hook's but for capitals, `_` and a final `s` belongs to no other version: to
/// pass over it would leave a default in force where the operator wrote a policy.
fn check_misspelled(text: &str, file: &DeTable<'_>) -> Result<()> {
    let used = [
        ("annotations", table_keys::<AnnotationsConfig>()),
        ("cdi", table_keys::<CdiConfig>()),
        ("environment", table_keys::<EnvironmentConfig>()),
        ("leases", table_keys::<LeasesConfig>()),
    ];
    let sections = used.map(|(section, _)| section);
    let folded = |key: &str| {
        let key = key.to_ascii_lowercase().replace('_', "-");
        key.trim_end_matches('s').to_owned()
    };
    let is_meant = |key: &str, known: &[&str]| {
        !known.contains(&key) && known.iter().any(|known| folded(known) == folded(key))
    };
    for (section, value) in file {
        let (name, offset) = (section.get_ref().as_ref(), section.span().start);
        if is_meant(name, &sections) {
            return Err(unknown_key_error(text, "", offset, name, &sections));
        }
        let keys = used.iter().find(|(known, _)| *known == name);
        if let (Some((_, keys)), DeValue::Table(table)) = (keys, Spanned::get_ref(value))
            && let Some(key) = table.keys().find(|key| is_meant(key.get_ref(), keys))
        {
            return Err(unknown_key_error(text, name, key.span().start, key.get_ref(), keys));
        }
    }
    Ok(())
}

/// Devices of a class that this version does not know cannot be asked for here, nor are they given.
fn leave_unknown_classes_out(file: &mut DeTable<'_>) -> Result<()> {
    let is_known = |word: &str| Class::from_name(word).is_some();
    for (section, value) in file {
        let DeValue::Table(section_table) = value.get_mut() else {
            continue;
        };
        for (key, value) in section_table {
            match (section.get_ref().as_ref(), key.get_ref().as_ref(), value.get_mut()) {
                ("annotations" | "environment", "allow", DeValue::Array(classes)) => {
                    let all = std::mem::replace(classes, DeArray::new()).into_iter();
                    *classes =
                        all.filter(|class| class.get_ref().as_str().is_none_or(is_known)).collect();
                }
                ("leases", "share", DeValue::Table(share)) => {
                    let all = std::mem::take(share).into_iter();
                    *share = all.filter(|(class, _)| is_known(class.get_ref())).collect();
                    for (class, share) in share {
                        let number = share.get_ref().as_integer();
                        let number = number.and_then(|number| {
                            i64::from_str_radix(number.as_str(), number.radix()).ok()
                        });
                        if number.is_none_or(|number| Share::try_from(number).is_err()) {
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
