//! Encodes a decision in NRI messages. Edits that the runtime does not support are rejected by name, since a container
//! with some of its edits would look like one with all of them.

use onload_cdi::{Hook as CdiHook, HookName, Mount as CdiMount};
use onload_core::request::Request;
use onload_hooks::config::adjust::{Adjustment, ContainerNode, LD_PRELOAD};
use onload_sys::error::{Error, Result};
use onload_sys::{bail, error};

use crate::runtime::NriRuntime;
use crate::wire::messages::{
    CdiDevice, ContainerAdjustment, Hook, Hooks, HugepageLimit, KeyValue, LinuxContainerAdjustment,
    LinuxDevice, LinuxResources, Mount, OptionalFileMode, OptionalInt, OptionalUInt32, PosixRlimit,
};

const USE_DOCKER: &str = "use --device, or the runtime onload";
const USE_HANDLER: &str = "use the runtime class onload";
const UPDATE_FOR_LIMITS: &str =
    "update it (containerd 1.7.7, CRI-O 1.29), or use the runtime class onload";
const UPDATE_FOR_NAMES: &str =
    "update it (containerd 2.1, CRI-O 1.34), or use the runtime class onload";

/// Rejects requests other than devices that the runtime does not support, before anything is decided or reserved.
pub fn check(request: &Request, runtime: &NriRuntime) -> Result<()> {
    if let Some(entry) = &request.ipc_lock {
        bail!(
            "{}: NRI cannot add a capability; add IPC_LOCK to the container's securityContext.capabilities, or use the runtime class onload",
            entry.origin
        );
    }
    match &request.hugepages_limit {
        Some(entry) if !runtime.supports_hugepage_limits() => {
            bail!(
                "{}: {runtime} cannot be told limits on huge pages by NRI; {USE_HANDLER}",
                entry.origin
            )
        }
        _ => Ok(()),
    }
}

/// Encodes a decision. `held` are the names of devices that the runtime already injects.
pub fn build_answer(
    adjustment: &Adjustment,
    held_names: &[String],
    runtime: &NriRuntime,
) -> Result<ContainerAdjustment> {
    let builder = AnswerBuilder { adjustment, runtime };
    if !runtime.has_pods() {
        return Err(builder.refusal_error("devices", USE_DOCKER));
    }
    match &adjustment.names {
        Some(names) if runtime.features.names => builder.build_by_names(names, held_names),
        _ => builder.build_by_edits(),
    }
}

struct AnswerBuilder<'a> {
    adjustment: &'a Adjustment,
    runtime: &'a NriRuntime,
}

impl AnswerBuilder<'_> {
    fn refusal_error(&self, what: &str, remedy: &str) -> Error {
        let (keys, runtime) = (&self.adjustment.keys, self.runtime);
        error!("{keys}: {runtime} cannot be told {what} by NRI; {remedy}")
    }

    /// Encodes the devices by name, and the limits. Names that the runtime already has are kept.
    fn build_by_names(
        &self,
        names: &[String],
        held_names: &[String],
    ) -> Result<ContainerAdjustment> {
        let names = names.iter().filter(|name| !held_names.contains(name));
        Ok(ContainerAdjustment {
            cdi_devices: names.map(|name| CdiDevice { name: name.clone() }).collect(),
            rlimits: self.limits()?,
            linux: self.linux(Vec::new()),
            ..ContainerAdjustment::default()
        })
    }

    fn build_by_edits(&self) -> Result<ContainerAdjustment> {
        let adjustment = self.adjustment;
        if let Some(other) = adjustment.others.first() {
            let what = format!("{other} of a specification");
            return Err(self.refusal_error(&what, UPDATE_FOR_NAMES));
        }
        let devices =
            adjustment.nodes.iter().map(|node| self.device(node)).collect::<Result<_>>()?;
        let hooks = hooks_by_stage(&adjustment.hooks)
            .map_err(|stage| self.refusal_error(&format!("hooks of stage {stage}"), USE_HANDLER))?;
        Ok(ContainerAdjustment {
            mounts: adjustment.mounts.iter().map(mount).collect(),
            env: self.env(),
            hooks,
            linux: self.linux(devices),
            rlimits: self.limits()?,
            cdi_devices: Vec::new(),
        })
    }

    /// Returns the variables. A preload that another plugin set is merged like the container's own. NRI rejects a
    /// variable that two plugins set, unless the later plugin removes it first by a `-` before its name
    /// (pkg/adaptation/result.go, `adjustEnv`).
    fn env(&self) -> Vec<KeyValue> {
        let env = self.adjustment.env.iter().flat_map(|(key, value)| {
            let removed = (key == LD_PRELOAD).then(|| (format!("-{key}"), String::new()));
            removed.into_iter().chain([(key.clone(), value.clone())])
        });
        env.map(|(key, value)| KeyValue { key, value }).collect()
    }

    fn limits(&self) -> Result<Vec<PosixRlimit>> {
        let limits = &self.adjustment.limits;
        if let Some(limit) = limits.first().filter(|_| !self.runtime.features.limits) {
            return Err(self.refusal_error(&limit.type_, UPDATE_FOR_LIMITS));
        }
        let limits = limits.iter().map(|limit| PosixRlimit {
            r#type: limit.type_.clone(),
            hard: limit.hard,
            soft: limit.soft,
        });
        Ok(limits.collect())
    }

    fn linux(&self, devices: Vec<LinuxDevice>) -> Option<LinuxContainerAdjustment> {
        let hugepage_limits: Vec<HugepageLimit> = self
            .adjustment
            .hugepage_limits
            .iter()
            .map(|limit| HugepageLimit { page_size: limit.page_size.clone(), limit: limit.limit })
            .collect();
        let resources = (!hugepage_limits.is_empty())
            .then(|| LinuxResources { hugepage_limits, devices: Vec::new() });
        let is_any = resources.is_some() || !devices.is_empty();
        is_any.then_some(LinuxContainerAdjustment { devices, resources })
    }

    /// Returns a node. The runtime always allows both reading and writing.
    fn device(&self, node: &ContainerNode) -> Result<LinuxDevice> {
        if !(node.access.contains('r') && node.access.contains('w')) {
            let remedy = match self.adjustment.names {
                Some(_) => UPDATE_FOR_NAMES,
                None => USE_HANDLER,
            };
            let what = format!("that {} is for {:?} only", node.path, node.access);
            return Err(self.refusal_error(&what, remedy));
        }
        let id = |value| OptionalUInt32 { value };
        Ok(LinuxDevice {
            path: node.path.clone(),
            r#type: "c".to_owned(),
            major: node.major.into(),
            minor: node.minor.into(),
            file_mode: Some(OptionalFileMode { value: node.mode }),
            uid: node.uid.map(id),
            gid: node.gid.map(id),
        })
    }
}

fn mount(cdi_mount: &CdiMount) -> Mount {
    let is_bind = cdi_mount.options.iter().any(|o| o == "bind" || o == "rbind");
    let given_type = cdi_mount.type_.as_deref().unwrap_or_default();
    let mount_type = if given_type.is_empty() && is_bind { "bind" } else { given_type };
    Mount {
        destination: cdi_mount.container_path.clone(),
        r#type: mount_type.to_owned(),
        source: cdi_mount.host_path.clone(),
        options: cdi_mount.options.clone(),
    }
}

/// Groups hooks by stage. Returns the stage that NRI does not support, if any.
fn hooks_by_stage(all: &[(HookName, CdiHook)]) -> Result<Option<Hooks>, HookName> {
    let mut hooks = Hooks::default();
    for (stage, hook) in all {
        let list = match stage {
            HookName::Prestart => &mut hooks.prestart,
            HookName::CreateRuntime => &mut hooks.create_runtime,
            HookName::CreateContainer => &mut hooks.create_container,
            HookName::StartContainer => &mut hooks.start_container,
            HookName::Poststart => &mut hooks.poststart,
            HookName::Poststop => &mut hooks.poststop,
            other => return Err(*other),
        };
        list.push(Hook {
            path: hook.path.clone(),
            args: hook.args.clone(),
            env: hook.env.clone(),
            timeout: hook.timeout.map(|value| OptionalInt { value }),
        });
    }
    Ok((hooks != Hooks::default()).then_some(hooks))
}
