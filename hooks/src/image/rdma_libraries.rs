//! Which provider libraries a container with RDMA devices uses: those of its image, or those of the host, as the operator
//! has it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use onload_cdi::oci::{MountEntry, OciConfig, OciConfigError};
use onload_cdi::{Hook, Mount};
use onload_core::config::RdmaLibraries;
use onload_core::hook_arguments::HookArguments;
use onload_core::rdma_providers::{self, ImageFiles, LibraryDecision, MountMethod, VerbsDevice};

use super::preload::covered_by;
use super::preload::program::{ContainerProgram, ProgramFiles};
use crate::decide::existing::has_mount;
use crate::decide::host_view::HostView;
use onload_sys::fs::container_root::ContainerRoot;

/// The advice for images with libraries that cannot be examined here.
pub(crate) const REMEDY: &str = "set rdma-libraries = \"off\" if programs contain such libraries \
    or load them from elsewhere";

/// The options of each mount of a library.
const OPTIONS: [&str; 4] = ["ro", "nosuid", "nodev", "bind"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LibraryChoice {
    /// The files of the host that the container does not have yet, by their paths in the container.
    pub files: BTreeMap<PathBuf, PathBuf>,
    /// Why its programs cannot use the devices, or some of them.
    pub misfit: Option<String>,
    pub reasons: Vec<String>,
}

/// Checks the libraries by which programs of an image use RDMA devices, which are given by the kernel's names.
pub(crate) fn choose(
    devices: &[String],
    setting: RdmaLibraries,
    config: &OciConfig,
    root: &ContainerRoot,
    host: &dyn HostView,
) -> Result<LibraryChoice, OciConfigError> {
    let mut choice = LibraryChoice::default();
    if setting == RdmaLibraries::Off {
        return Ok(choice);
    }
    let sysfs = host.sysfs();
    let known: Vec<VerbsDevice> =
        devices.iter().filter_map(|name| VerbsDevice::read(sysfs.root(), name)).collect();
    if known.is_empty() {
        return Ok(choice);
    }
    let library_path = config.env_value("LD_LIBRARY_PATH")?;
    let program = ContainerProgram::from_config(config)?;
    // Libraries that were mounted by this program earlier do not count as the container's.
    let others = config.mounts().iter().filter(|mount| mount.options() != OPTIONS);
    let covered = &covered_by(others.map(MountEntry::destination).collect(), root);
    let files = ProgramFiles { root, covered };
    let image = ImageFiles {
        root,
        read_only: root.is_read_only(),
        library_path: library_path.as_deref(),
        program: &|| files.resolve_program(&program).ok(),
        covered,
    };
    let judgement = rdma_providers::decide_libraries(&image, host.files(), &known);
    choice.reasons = judgement.notes;
    let names = devices.join(", ");
    match judgement.decision {
        // Libraries that were not examined are not reported as working.
        LibraryDecision::Fits if !choice.reasons.is_empty() => {}
        LibraryDecision::Fits => {
            choice.reasons.push(format!("the image's own libraries can use {names}"));
        }
        LibraryDecision::Unfit(misfit_reason) => choice.misfit = Some(misfit_reason),
        LibraryDecision::Mount { method, .. } if setting == RdmaLibraries::Image => {
            choice.misfit = Some(format!(
                "{}; rdma-libraries = \"auto\" would mount the host's",
                describe_lack(method, &names)
            ));
        }
        LibraryDecision::Mount { method, mut files, unserved } => {
            choice.misfit = unserved;
            choice
                .reasons
                .push(format!("{}: the host's are mounted", describe_lack(method, &names)));
            files.retain(|target, source| !has_mount(config, &mount(target, source)));
            choice.files = files;
        }
    }
    Ok(choice)
}

/// Takes from hooks what is done before the runtime is there.
pub(crate) fn remove_from_hooks(hooks: &mut Vec<Hook>) {
    hooks.retain_mut(|hook| {
        let Some((stage, mut arguments)) = HookArguments::from_command(&hook.args) else {
            return true;
        };
        if arguments.rdma_libraries.take().is_none() {
            return true;
        }
        let is_needed = stage != "poststop" || arguments.needs_poststop();
        arguments.replace_in(&mut hook.args);
        is_needed
    });
}

fn describe_lack(method: MountMethod, names: &str) -> String {
    match method {
        MountMethod::Add => format!("the image has no provider library for {names}"),
        MountMethod::Replace => {
            format!("the image has no libibverbs with a provider library that serves {names}")
        }
    }
}

pub(crate) fn mount(target: &Path, source: &Path) -> Mount {
    Mount {
        host_path: source.to_string_lossy().into_owned(),
        container_path: target.to_string_lossy().into_owned(),
        type_: None,
        options: OPTIONS.map(Into::into).into(),
    }
}
