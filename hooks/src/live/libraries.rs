//! Provider libraries of the host for the RDMA devices of a container that its runtime has already created.

use std::path::Path;

use onload_cdi::HookName;
use onload_cdi::oci::OciConfig;
use onload_core::class::Class;
use onload_core::config::RdmaLibraries;
use onload_core::hook_arguments::{HookArguments, TakeArgument};
use onload_sys::error::{Context, Result, error};
use onload_sys::mount_api::attr;

use super::plan::{BindMount, InjectionPlan};
use crate::decide::cpu_placement::rdma_in_arguments;
use crate::decide::host_view::{HostView, LocalHost};
use crate::decide::subject::CONFIG_JSON;
use crate::image::{self, rdma_libraries};
use onload_sys::fs::container_root::ContainerRoot;

/// The libraries that the hook of a specification mounts for its devices.
#[derive(Debug, Default)]
pub(crate) struct HookLibraries {
    pub(super) devices: Vec<String>,
    pub(super) binds: Vec<BindMount>,
    pub(super) warnings: Vec<String>,
    pub(super) reasons: Vec<String>,
}

/// Chooses libraries for all RDMA devices of a container in the first of its hooks, wherever the devices are. Libraries
/// that do not fit cause a warning only, since the user of a specification's device may have other libraries.
pub(crate) fn choose_for_hook(
    arguments: &HookArguments,
    bundle: &Path,
    config: &OciConfig,
    host: &dyn HostView,
) -> Result<HookLibraries> {
    let Some(setting) = arguments.rdma_libraries else {
        return Ok(HookLibraries::default());
    };
    let hooks = library_hooks(config)?;
    let devices: Vec<String> = match hooks.first() {
        Some(first) if first == arguments => hooks.iter().flat_map(rdma_in_arguments).collect(),
        _ if hooks.contains(arguments) => return Ok(HookLibraries::default()),
        _ => rdma_in_arguments(arguments),
    };
    let key = request_key(&devices);
    let root = image::open_root(bundle, config)
        .and_then(|root| root.ok_or_else(|| error!("the container's root is empty")));
    let root = match root {
        Ok(root) => root,
        Err(error) => {
            let warning = format!("{key}: whether the image has libraries is unknown: {error:#}");
            return Ok(HookLibraries { warnings: vec![warning], ..HookLibraries::default() });
        }
    };
    let (mut libraries, misfit) = choose(devices, setting, config, &root, host)?;
    let warnings = &mut libraries.warnings;
    warnings.extend(misfit.map(|reason| format!("{key}: {reason}")));
    if !libraries.binds.is_empty()
        && let Some(reason) = closed_reason(host)?
    {
        libraries.binds.clear();
        warnings.push(format!("{key}: {NOT_MOUNTED}: {reason}"));
    }
    Ok(libraries)
}

/// The hooks of a configuration that look for libraries.
pub(super) fn library_hooks(config: &OciConfig) -> Result<Vec<HookArguments>> {
    let mut library_hooks = Vec::new();
    for hook in config.hooks(HookName::CreateRuntime).context(CONFIG_JSON)? {
        if let Some((_, arguments)) = HookArguments::from_command(&hook.args.unwrap_or_default())
            && arguments.rdma_libraries.is_some()
        {
            library_hooks.push(arguments);
        }
    }
    Ok(library_hooks)
}

/// The same for devices that are given to a container late, of which it may have none yet.
pub(super) fn choose_for_plan(
    plan: &InjectionPlan,
    takes: &[TakeArgument],
    config: &OciConfig,
    root: Option<&ContainerRoot>,
    host: &LocalHost,
) -> Result<HookLibraries> {
    let Some(root) = root.filter(|_| !plan.rdma.is_empty()) else {
        return Ok(HookLibraries::default());
    };
    let settings = host.settings()?;
    let setting = settings.config.cdi.rdma_libraries;
    let (mut libraries, misfit) = choose(plan.rdma.clone(), setting, config, root, host)?;
    let Some(reason) = misfit else {
        return Ok(libraries);
    };
    let what = format!("{} may not work", plan.rdma.join(", "));
    let warning = match takes {
        [] => settings.refuse_or_warn(&what, &reason, rdma_libraries::REMEDY),
        _ => Ok(format!("{what}: {reason}")),
    };
    libraries.warnings.push(warning.context(&plan.keys)?);
    Ok(libraries)
}

pub(super) const NOT_MOUNTED: &str =
    "the host's provider libraries, which the container needs, are not mounted";

pub(super) fn request_key(devices: &[String]) -> String {
    format!("{}={}", Class::Rdma.cdi_kind(), devices.join(","))
}

/// Why nothing is mounted into a container that is there already.
fn closed_reason(host: &dyn HostView) -> Result<Option<String>> {
    if !host.privilege().is_initial_namespace {
        return Ok(Some("the engine is rootless; use an image that has them".to_owned()));
    }
    let settings = host.settings()?;
    let is_closed = !settings.config.annotations.live_devices;
    Ok(is_closed.then(|| format!("live-devices = false in {}", settings.file.display())))
}

/// Libraries for these devices, or why none fits. The image is looked at from here, without what is mounted in the
/// container.
fn choose(
    devices: Vec<String>,
    setting: RdmaLibraries,
    config: &OciConfig,
    root: &ContainerRoot,
    host: &dyn HostView,
) -> Result<(HookLibraries, Option<String>)> {
    let choice =
        rdma_libraries::choose(&devices, setting, config, root, host).context(CONFIG_JSON)?;
    let attributes = attr::RDONLY | attr::NOSUID | attr::NODEV;
    let libraries = HookLibraries {
        devices,
        binds: choice
            .files
            .into_iter()
            .map(|(target, source)| BindMount::new(source, target, attributes))
            .collect(),
        warnings: Vec::new(),
        reasons: choice.reasons,
    };
    Ok((libraries, choice.misfit))
}
