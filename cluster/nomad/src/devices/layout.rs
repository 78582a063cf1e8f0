//! What the plugin's paths say, in the words of the host's configuration: the generator of specifications has
//! a setting for each of them.

use std::path::PathBuf;

use onload_core::class::Class;
use onload_core::config::Config;

use crate::settings::{Paths, Settings, Way};

/// The classes whose edits are written anew, with the configuration that they are written with. Where no path
/// is set there is none, and tasks get what the specifications on disk say.
#[must_use]
pub fn layouts(settings: &Settings, config: &Config) -> Vec<(&'static [Class], Config)> {
    let Paths {
        device,
        onload_lib,
        onload_bin,
        profile_dir,
        zf_lib,
        zf_bin,
    } = &settings.paths;
    let without_tools = !settings.mount_onload;
    let nodes = !device.is_default();
    let onload = nodes
        || without_tools
        || [onload_lib, onload_bin, profile_dir]
            .iter()
            .any(|way| !way.is_default());
    let zf = nodes || without_tools || [zf_lib, zf_bin].iter().any(|way| !way.is_default());
    let mut layouts: Vec<(&'static [Class], Config)> = Vec::new();
    if onload {
        let mut config = with_nodes(config, device);
        set_libraries(&mut config, onload_lib);
        set_tools(&mut config, onload_bin, without_tools);
        set_profiles(&mut config, profile_dir, without_tools);
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

fn with_nodes(config: &Config, way: &Way) -> Config {
    let mut config = config.clone();
    if !way.is_closed() {
        set(&mut config.cdi.host_device_dir, way.host.named());
        set(&mut config.cdi.container_device_dir, way.task.named());
    }
    config
}

fn set(of: &mut Option<PathBuf>, to: Option<&PathBuf>) {
    if to.is_some() {
        *of = to.cloned();
    }
}

/// An empty path stands for no directory, and no tools, no profiles.
fn nowhere() -> PathBuf {
    PathBuf::new()
}

fn set_libraries(config: &mut Config, way: &Way) {
    let cdi = &mut config.cdi;
    if way.is_closed() {
        cdi.container_library_dirs = vec![nowhere()];
        return;
    }
    if let Some(dir) = way.host.named() {
        cdi.host_library_dirs = vec![dir.clone()];
    }
    if let Some(dir) = way.task.named() {
        cdi.container_library_dirs = vec![dir.clone()];
    }
}

fn set_tools(config: &mut Config, way: &Way, without: bool) {
    let cdi = &mut config.cdi;
    if without || way.is_closed() {
        cdi.container_tool_dir = Some(nowhere());
        return;
    }
    set(&mut cdi.host_tool_dir, way.host.named());
    set(&mut cdi.container_tool_dir, way.task.named());
}

fn set_profiles(config: &mut Config, way: &Way, without: bool) {
    let cdi = &mut config.cdi;
    if without || way.is_closed() {
        cdi.container_profile_dir = Some(nowhere());
        return;
    }
    set(&mut cdi.host_profile_dir, way.host.named());
    set(&mut cdi.container_profile_dir, way.task.named());
}
