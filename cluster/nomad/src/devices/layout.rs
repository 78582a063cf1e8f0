//! Converts the plugin's paths to settings of the host's configuration, which the generator of specifications uses.

use std::path::PathBuf;

use onload_core::class::Class;
use onload_core::config::{CdiConfig, Config, Preload};

use crate::settings::{DirMapping, PathSettings, PluginSettings};

/// Returns the classes whose edits are generated with other paths, and the configuration for them. Empty if no path is
/// set, in which case tasks get the edits of the specifications on disk.
pub fn class_layouts(
    settings: &PluginSettings,
    config: &Config,
) -> Vec<(&'static [Class], Config)> {
    let PathSettings { device, onload_lib, onload_bin, profile_dir, zf_lib, zf_bin } =
        &settings.paths;
    let without_tools = !settings.mount_onload;
    let nodes = !device.is_default();
    let onload = nodes
        || without_tools
        || [onload_lib, onload_bin, profile_dir].iter().any(|mapping| !mapping.is_default());
    let zf = nodes || without_tools || [zf_lib, zf_bin].iter().any(|mapping| !mapping.is_default());
    let mut layouts: Vec<(&'static [Class], Config)> = Vec::new();
    if onload {
        let mut config = with_nodes(config, device);
        set_libraries(&mut config, onload_lib);
        set_preload(&mut config, onload_lib);
        set_tools(&mut config, onload_bin, without_tools);
        let CdiConfig { host_profile_dir, container_profile_dir, .. } = &mut config.cdi;
        set_dirs(host_profile_dir, container_profile_dir, profile_dir, without_tools);
        layouts.push((&[Class::Nic, Class::NicPlain], config));
    }
    if zf {
        let mut config = with_nodes(config, device);
        set_libraries(&mut config, zf_lib);
        set_tools(&mut config, zf_bin, without_tools);
        layouts.push((&[Class::Zf], config));
    }
    if nodes {
        layouts.push((&[Class::Ptp, Class::Pps], with_nodes(config, device)));
    }
    layouts
}

fn with_nodes(config: &Config, mapping: &DirMapping) -> Config {
    let mut config = config.clone();
    if !mapping.is_closed() {
        set(&mut config.cdi.host_device_dir, mapping.host.path());
        set(&mut config.cdi.container_device_dir, mapping.task.path());
    }
    config
}

fn set(setting: &mut Option<PathBuf>, path: Option<&PathBuf>) {
    if path.is_some() {
        *setting = path.cloned();
    }
}

/// Returns the empty path, which means no directory, and thus no tools or profiles.
fn no_path() -> PathBuf {
    PathBuf::new()
}

fn set_libraries(config: &mut Config, mapping: &DirMapping) {
    let cdi = &mut config.cdi;
    if mapping.is_closed() {
        cdi.container_library_dirs = vec![no_path()];
        return;
    }
    if let Some(dir) = mapping.host.path() {
        cdi.host_library_dirs = vec![dir.clone()];
    }
    if let Some(dir) = mapping.task.path() {
        cdi.container_library_dirs = vec![dir.clone()];
    }
}

/// Sets the preload. A library that is not mounted is not preloaded, and a mounted preload list names a library in the
/// loader's directories.
fn set_preload(config: &mut Config, mapping: &DirMapping) {
    let preload = &mut config.cdi.preload;
    match (&*preload, mapping.task.path()) {
        _ if mapping.is_closed() => *preload = Preload::Off,
        (Preload::File, Some(_)) => *preload = Preload::Env,
        _ => {}
    }
}

fn set_tools(config: &mut Config, mapping: &DirMapping, without: bool) {
    let CdiConfig { host_tool_dir, container_tool_dir, .. } = &mut config.cdi;
    set_dirs(host_tool_dir, container_tool_dir, mapping, without);
}

fn set_dirs(
    host: &mut Option<PathBuf>,
    container: &mut Option<PathBuf>,
    mapping: &DirMapping,
    without: bool,
) {
    if without || mapping.is_closed() {
        *container = Some(no_path());
        return;
    }
    set(host, mapping.host.path());
    set(container, mapping.task.path());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::DirSetting;

    fn layout(class: Class, settings: &PluginSettings, config: &Config) -> Option<Config> {
        let layouts = class_layouts(settings, config);
        layouts.into_iter().find(|(classes, _)| classes.contains(&class)).map(|(_, config)| config)
    }

    fn at(path: &str) -> DirSetting {
        DirSetting::At(PathBuf::from(path))
    }

    #[test]
    fn without_paths_all_is_as_on_disk() {
        assert!(class_layouts(&PluginSettings::default(), &Config::default()).is_empty());
    }

    #[test]
    fn a_path_is_for_its_own_product() {
        let mut settings = PluginSettings::default();
        settings.paths.zf_lib.host = at("/opt/zf");
        let config = Config::default();
        assert_eq!(layout(Class::Nic, &settings, &config), None);
        let zf = layout(Class::Zf, &settings, &config).unwrap();
        assert_eq!(zf.cdi.host_library_dirs, [PathBuf::from("/opt/zf")]);
        assert!(zf.cdi.container_library_dirs.is_empty(), "where a loader looks");
        settings.paths.device.task = at("/devices");
        for class in [Class::Nic, Class::NicPlain, Class::Zf, Class::Ptp, Class::Pps] {
            let config = layout(class, &settings, &config).unwrap();
            assert_eq!(config.cdi.container_device_dir.as_deref(), Some("/devices".as_ref()));
        }
        for class in [Class::Rdma, Class::Vfio, Class::Hugepages, Class::Profile] {
            assert_eq!(layout(class, &settings, &config), None);
        }
    }

    #[test]
    fn the_hosts_configuration_stays_where_no_path_is_set() {
        let mut config = Config::default();
        config.cdi.host_tool_dir = Some("/opt/tools".into());
        config.cdi.fdtable_size = 4096;
        let mut settings = PluginSettings::default();
        settings.paths.onload_lib.task = at("/opt/onload");
        let cdi = layout(Class::Nic, &settings, &config).unwrap().cdi;
        assert_eq!((cdi.host_tool_dir, cdi.fdtable_size), (config.cdi.host_tool_dir, 4096));
    }

    #[test]
    fn the_preload_is_one_that_finds_the_library() {
        let mut config = Config::default();
        config.cdi.preload = Preload::File;
        let mut settings = PluginSettings::default();
        let preload =
            |settings: &PluginSettings| layout(Class::Nic, settings, &config).unwrap().cdi.preload;
        settings.paths.onload_bin.host = at("/opt/bin");
        assert_eq!(preload(&settings), Preload::File);
        settings.paths.onload_lib.task = at("/opt/onload");
        assert_eq!(preload(&settings), Preload::Env);
        settings.paths.onload_lib.host = DirSetting::Nowhere;
        assert_eq!(preload(&settings), Preload::Off);
    }

    #[test]
    fn without_tools_there_are_no_profiles_either() {
        let settings = PluginSettings { mount_onload: false, ..PluginSettings::default() };
        let cdi = layout(Class::Nic, &settings, &Config::default()).unwrap().cdi;
        assert_eq!(
            (cdi.container_tool_dir, cdi.container_profile_dir),
            (Some(no_path()), Some(no_path()))
        );
    }
}
