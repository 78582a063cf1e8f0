//! Reads the configuration: strictly, so that a typing error never leaves a default in force, and
//! leniently, for diagnostic commands.

use std::collections::BTreeMap;
use std::path::Path;
use std::slice;

use serde::de::value::Error as Silent;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::sections::{
    AnnotationsConfig, CdiConfig, Config, DiscoverConfig, EnvironmentConfig, LeasesConfig,
    LogConfig, Mover, PoolConfig, RuntimeConfig,
};
use super::toml_error::{describe_toml_error, error_at};
use super::values::Share;
use crate::bundle::Bundle;
use crate::class::{Class, nearest_word};
use crate::host_settings::{HostSettings, SriovConfig};
use crate::kubernetes_settings::{KubernetesSettings, ResourceSettings};
use crate::netdev::settings::NetdevSettings;
use crate::select::PoolSelector;
use crate::vf_config::VfConfig;
use onload_sys::error::{Context as _, Error, Result, bail};

impl Config {
    /// Parses the text of a configuration file. The error names the line and the key.
    pub fn parse(text: &str) -> Result<Config> {
        let table = DeTable::parse(text).map_err(|error| describe_toml_error(text, &error))?;
        if let Some(problem) = find_key_problems(text, table.get_ref()).into_iter().next() {
            return Err(problem);
        }
        let deserializer = toml::de::Deserializer::from(table);
        let config =
            Config::deserialize(deserializer).map_err(|error| describe_toml_error(text, &error))?;
        config.check()?;
        Ok(config)
    }

    /// Like [`Config::parse`], for commands that change nothing: leaves out what is wrong, and
    /// returns the errors.
    pub fn parse_leniently(text: &str) -> (Config, Vec<Error>) {
        let mut table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => return (Config::default(), vec![describe_toml_error(text, &error)]),
        };
        let mut problems = find_key_problems(text, table.get_ref());
        loop {
            let deserializer = toml::de::Deserializer::from(table.clone());
            let error = match Config::deserialize(deserializer) {
                Ok(config) => {
                    problems.extend(config.check().err());
                    return (config, problems);
                }
                Err(error) => error,
            };
            problems.push(describe_toml_error(text, &error));
            let offset = error.span().map(|span| span.start);
            if !offset.is_some_and(|offset| remove_at(table.get_mut(), offset)) {
                return (Config::default(), problems);
            }
        }
    }

    fn check(&self) -> Result<()> {
        let cdi = &self.cdi;
        let paths = [
            ("cdi.hook-path", slice::from_ref(&cdi.hook_path)),
            ("cdi.hugepages-dir", slice::from_ref(&cdi.hugepages_dir)),
            ("cdi.host-library-dirs", &cdi.host_library_dirs),
            ("cdi.container-library-dirs", &cdi.container_library_dirs),
            ("cdi.host-device-dir", cdi.host_device_dir.as_slice()),
            ("cdi.container-device-dir", cdi.container_device_dir.as_slice()),
        ];
        for (key, paths) in paths {
            paths.iter().try_for_each(|path| check_absolute(key, path))?;
        }
        let may_be_empty = [
            ("cdi.host-tool-dir", &cdi.host_tool_dir),
            ("cdi.container-tool-dir", &cdi.container_tool_dir),
            ("cdi.host-profile-dir", &cdi.host_profile_dir),
            ("cdi.container-profile-dir", &cdi.container_profile_dir),
            ("runtime.path", &Some(self.runtime.path.clone())),
            ("log.file", &Some(self.log.file.clone())),
        ];
        for (key, path) in may_be_empty {
            if let Some(path) = path.as_ref().filter(|path| !path.as_os_str().is_empty()) {
                check_absolute(key, path)?;
            }
        }
        check_fdtable_size(cdi.fdtable_size)?;
        check_sriov(&self.sriov)?;
        check_netdev_pools(&self.pools)?;
        check_netdev_share(&self.leases)?;
        self.check_bundles()?;
        check_netdevs(&self.netdev)?;
        self.kubernetes.check(
            |name| {
                let pool = self.pools.get(name)?;
                Some((pool.class, pool.share.map(Share::get)))
            },
            |class| self.leases.share(class),
        )
    }

    /// Rejects pools and shares of class bundle: only a bundle's devices are counted.
    fn check_bundles(&self) -> Result<()> {
        let key = match self.pools.iter().find(|(_, pool)| pool.class == Class::Bundle) {
            Some((name, _)) => format!("pools.{name}.class"),
            None if self.leases.share.contains_key(&Class::Bundle) => {
                "a class of leases.share".to_owned()
            }
            None => return Ok(()),
        };
        bail!("{key} is bundle, which has devices of several classes; list their classes instead")
    }
}

fn check_netdev_pools(pools: &BTreeMap<String, PoolConfig>) -> Result<()> {
    for (name, pool) in pools {
        let class = pool.class;
        if class != Class::Netdev && pool.mover != Mover::default() {
            bail!(
                "pools.{name}.move is for class netdev, but the pool is of class {class}; remove \
                 it"
            );
        }
        if pool.mover == Mover::Cni && !pool.select.interfaces.is_empty() {
            bail!(
                "pools.{name}.select: a CNI plugin moves and renames interfaces; select by pf and \
                 vf, by addresses or by driver where move is \"cni\""
            );
        }
        if let Some(vf) = &pool.vf {
            check_pool_vf(pool, vf).with_context(|| format!("pools.{name}.vf"))?;
        }
        if class == Class::Netdev {
            check_exclusive_share(&format!("pools.{name}.share"), pool.share)?;
        }
    }
    Ok(())
}

fn check_pool_vf(pool: &PoolConfig, vf: &VfConfig) -> Result<()> {
    if !Class::FUNCTION_CLASSES.contains(&pool.class) {
        bail!(
            "it is for classes netdev and vfio, but the pool is of class {}; remove it",
            pool.class
        );
    }
    if pool.mover == Mover::Cni {
        bail!("where move is \"cni\" the plugin sets up virtual functions; remove it");
    }
    if vf.mac.is_some() {
        bail!(
            "mac is for one device; set it in [[sriov]], or in the section [netdev.NAME] of each"
        );
    }
    vf.check()
}

pub(super) fn check_netdev_share(leases: &LeasesConfig) -> Result<()> {
    let class = Class::Netdev;
    check_exclusive_share(&format!("leases.share.{class}"), leases.share.get(&class).copied())
}

/// Rejects a share greater than 1. An interface is in one network namespace at a time.
fn check_exclusive_share(key: &str, share: Option<Share>) -> Result<()> {
    match share.map(Share::get) {
        None | Some(1) => Ok(()),
        Some(share) => bail!(
            "{key} is {share}, but an interface can be in only one container at a time; remove it: \
             containers that share a network, as those of a pod do, share the interface"
        ),
    }
}

pub(super) fn check_netdevs(netdevs: &BTreeMap<String, NetdevSettings>) -> Result<()> {
    for (name, settings) in netdevs {
        settings.check().with_context(|| format!("netdev.{name}"))?;
    }
    Ok(())
}

fn check_sriov(sections: &[SriovConfig]) -> Result<()> {
    for (index, section) in sections.iter().enumerate() {
        let SriovConfig { pf, vfs, .. } = section;
        if sections.iter().skip(index + 1).any(|other| other.pf == *pf) {
            bail!("two sections [[sriov]] have the pf {pf}; merge them");
        }
        let last = vfs.saturating_sub(1);
        if let Some(mac) = section.mac.filter(|mac| mac.checked_add(last).is_none()) {
            bail!(
                "sriov.mac {mac} of {pf}: counting up to {vfs} virtual functions changes its first \
                 three bytes; start lower"
            );
        }
    }
    Ok(())
}

/// The largest table of descriptors that every process of a container can allocate.
pub const MAX_FDTABLE_SIZE: u32 = 16_777_216;

pub(super) fn check_fdtable_size(size: u32) -> Result<()> {
    if (1..=MAX_FDTABLE_SIZE).contains(&size) {
        return Ok(());
    }
    bail!(
        "cdi.fdtable-size must be from 1 to {MAX_FDTABLE_SIZE}, not {size}; a larger table cannot be allocated by every process"
    )
}

pub(super) fn check_absolute(key: &str, path: &Path) -> Result<()> {
    if path.is_absolute() {
        return Ok(());
    }
    bail!("{key} must be an absolute path, not {path:?}")
}

/// Returns the tables of the file and their keys. `*` is a placeholder for a name that the operator chooses. Tables that
/// contain such names have no other keys.
pub(super) fn config_tables() -> [(&'static str, &'static [&'static str]); 17] {
    [
        ("discover", table_keys::<DiscoverConfig>()),
        ("cdi", table_keys::<CdiConfig>()),
        ("annotations", table_keys::<AnnotationsConfig>()),
        ("environment", table_keys::<EnvironmentConfig>()),
        ("leases", table_keys::<LeasesConfig>()),
        ("runtime", table_keys::<RuntimeConfig>()),
        ("log", table_keys::<LogConfig>()),
        ("host", table_keys::<HostSettings>()),
        ("kubernetes", table_keys::<KubernetesSettings>()),
        (LIST, table_keys::<SriovConfig>()),
        ("pools.*", table_keys::<PoolConfig>()),
        ("pools.*.select", table_keys::<PoolSelector>()),
        ("pools.*.vf", table_keys::<VfConfig>()),
        ("netdev.*", table_keys::<NetdevSettings>()),
        ("netdev.*.vf", table_keys::<VfConfig>()),
        ("bundles.*", table_keys::<Bundle>()),
        ("kubernetes.resources.*", table_keys::<ResourceSettings>()),
    ]
}

/// The section that is an array of tables.
const LIST: &str = "sriov";

/// Returns the keys of a table, which its type passes to the deserializer.
pub(super) fn table_keys<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    struct KeyCollector<'k>(&'k mut &'static [&'static str]);
    impl<'de> Deserializer<'de> for KeyCollector<'_> {
        type Error = Silent;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            keys: &'static [&'static str],
            _visitor: V,
        ) -> std::result::Result<V::Value, Silent> {
            *self.0 = keys;
            Err(Silent::custom(""))
        }

        fn deserialize_any<V: Visitor<'de>>(
            self,
            _visitor: V,
        ) -> std::result::Result<V::Value, Silent> {
            Err(Silent::custom(""))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut keys: &[&str] = &[];
    let _ = T::deserialize(KeyCollector(&mut keys));
    keys
}

/// Finds unknown keys, and values of the wrong form in place of a table, which serde would read as
/// a table without keys.
fn find_key_problems(text: &str, file: &DeTable<'_>) -> Vec<Error> {
    let mut reader = KeyReader { text, tables: &config_tables(), problems: Vec::new() };
    let mut sections: Vec<&str> = Vec::new();
    for (table, _) in reader.tables {
        let section = table.split('.').next().unwrap_or(table);
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    for (key, value) in file {
        let (name, offset) = (key.get_ref().as_ref(), key.span().start);
        if sections.contains(&name) {
            reader.check_table(name, name, offset, value);
        } else {
            reader.problems.push(unknown_key_error(text, "", offset, name, &sections));
        }
    }
    reader.problems
}

struct KeyReader<'t> {
    text: &'t str,
    tables: &'t [(&'static str, &'static [&'static str])],
    problems: Vec<Error>,
}

impl KeyReader<'_> {
    /// Checks a table of [`config_tables`]. `name` is its name in messages, and its header is at
    /// `offset`.
    fn check_table(
        &mut self,
        pattern: &str,
        name: &str,
        offset: usize,
        value: &Spanned<DeValue<'_>>,
    ) {
        let any_table = format!("{pattern}.*");
        let has_names = self.tables.iter().any(|(table, _)| *table == any_table);
        let table = match Spanned::get_ref(value) {
            DeValue::Table(_) if pattern == LIST => {
                let message = format!("expected an array of tables: [[{name}]]");
                return self.add_problem(offset, name, &message);
            }
            DeValue::Table(table) => table,
            DeValue::Array(entries) if pattern == LIST => {
                for entry in entries {
                    if let DeValue::Table(table) = Spanned::get_ref(entry) {
                        self.check_keys(pattern, name, table);
                    }
                }
                return;
            }
            DeValue::Array(_) => {
                let suffix = if has_names { ".NAME" } else { "" };
                let message = format!("expected a table, found an array: use [{name}{suffix}]");
                return self.add_problem(offset, name, &message);
            }
            // serde reports it.
            _ => return,
        };
        self.check_keys(pattern, name, table);
        for (key, value) in table {
            let key_name = key.get_ref().as_ref();
            let sub_pattern =
                if has_names { any_table.clone() } else { format!("{pattern}.{key_name}") };
            if self.tables.iter().any(|(table, _)| {
                table
                    .strip_prefix(&*sub_pattern)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }) {
                let name = match pattern {
                    "kubernetes.resources" => format!("{name}.{key_name:?}"),
                    _ => format!("{name}.{key_name}"),
                };
                self.check_table(&sub_pattern, &name, key.span().start, value);
            }
        }
    }

    fn check_keys(&mut self, pattern: &str, name: &str, table: &DeTable<'_>) {
        let Some((_, keys)) = self.tables.iter().find(|(table, _)| *table == pattern) else {
            return;
        };
        for key in table.keys() {
            let key_name = key.get_ref().as_ref();
            if !keys.contains(&key_name) {
                let problem = unknown_key_error(self.text, name, key.span().start, key_name, keys);
                self.problems.push(problem);
            }
        }
    }

    fn add_problem(&mut self, offset: usize, name: &str, message: &str) {
        self.problems.push(error_at(self.text, offset, Some(name), message));
    }
}

/// Returns the error for an unknown key. It suggests the most similar known key of the same table,
/// or else of any table.
pub(super) fn unknown_key_error(
    text: &str,
    table: &str,
    offset: usize,
    key: &str,
    known: &[&str],
) -> Error {
    let qualified = |table: &str, key: &str| match table {
        "" => key.to_owned(),
        table => format!("{table}.{key}"),
    };
    let find_nearest = |table: &str, known: &[&str]| {
        nearest_word(key, known.iter().copied())
            .map(|(distance, known)| (distance, qualified(table, known)))
    };
    let nearest = find_nearest(table, known).or_else(|| {
        config_tables()
            .iter()
            .filter(|(table, _)| !table.contains('*'))
            .filter_map(|(table, keys)| find_nearest(table, keys))
            .min_by_key(|(distance, _)| *distance)
    });
    let advice = match nearest {
        Some((_, key)) => format!("did you mean {key:?}?"),
        None => format!("known are {}", known.join(", ")),
    };
    error_at(text, offset, None, &format!("unknown key {:?}; {advice}", qualified(table, key)))
}

/// Removes only the key whose value is at a byte offset of the text. Returns whether there was one.
fn remove_at(table: &mut DeTable<'_>, offset: usize) -> bool {
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let is_removed = match value.get_mut() {
            DeValue::Table(table) => remove_at(table, offset),
            DeValue::Array(entries) => entries.iter_mut().any(|entry| match entry.get_mut() {
                DeValue::Table(table) => remove_at(table, offset),
                _ => false,
            }),
            _ => false,
        };
        if is_removed {
            return true;
        }
        if key.span().contains(&offset) || value.span().contains(&offset) {
            found = Some(key.clone());
            break;
        }
    }
    found.is_some_and(|key| table.remove(&key).is_some())
}
