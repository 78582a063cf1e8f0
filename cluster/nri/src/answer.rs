//! Encodes a decision in NRI messages. Edits that the runtime does not support are rejected by name, since a container
//! with some of its edits would look like one with all of them.

use onload_cdi::{Hook as CdiHook, HookName, Mount as CdiMount};
use onload_core::hook_arguments::HookArguments;
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
            let remedy = if runtime.has_pods() { USE_HANDLER } else { USE_DOCKER };
            bail!(
                "{}: {runtime} cannot be told limits on huge pages by NRI; {remedy}",
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
        let (rlimits, _) = self.limits()?;
        Ok(ContainerAdjustment {
            cdi_devices: names.map(|name| CdiDevice { name: name.clone() }).collect(),
            rlimits,
            linux: self.linux(Vec::new()),
            ..ContainerAdjustment::default()
        })
    }

    fn build_by_edits(&self) -> Result<ContainerAdjustment> {
        let adjustment = self.adjustment;
        if let Some(other) = adjustment.others.first() {
            let remedy = if self.runtime.features.is_whole { UPDATE_FOR_NAMES } else { USE_DOCKER };
            return Err(self.refusal_error(&format!("{other} of a specification"), remedy));
        }
        if !self.runtime.features.is_whole {
            return self.variables_and_mounts();
        }
        let devices =
            adjustment.nodes.iter().map(|node| self.device(node)).collect::<Result<_>>()?;
        let (rlimits, by_hooks) = self.limits()?;
        let limit_hooks: &[_] = if by_hooks { &adjustment.limit_hooks } else { &[] };
        let hooks = hooks_by_stage(adjustment.hooks.iter().chain(limit_hooks))
            .map_err(|stage| self.refusal_error(&format!("hooks of stage {stage}"), USE_HANDLER))?;
        Ok(ContainerAdjustment {
            mounts: adjustment.mounts.iter().map(mount).collect(),
            env: self.env(),
            hooks,
            linux: self.linux(devices),
            rlimits,
            cdi_devices: Vec::new(),
        })
    }

    fn variables_and_mounts(&self) -> Result<ContainerAdjustment> {
        let adjustment = self.adjustment;
        let what = if let Some(node) = adjustment.nodes.first() {
            format!("device node {}", node.path)
        } else if !adjustment.hooks.is_empty() {
            "hooks".to_owned()
        } else if let Some(limit) = adjustment.limits.first() {
            limit.type_.clone()
        } else {
            let mounts = adjustment.mounts.iter().map(|mount| self.read_only_mount(mount));
            return Ok(ContainerAdjustment {
                env: self.env(),
                mounts: mounts.collect::<Result<_, _>>()?,
                ..ContainerAdjustment::default()
            });
        };
        Err(self.refusal_error(&what, USE_DOCKER))
    }

    /// Returns a bind mount whose only option is `ro`.
    fn read_only_mount(&self, cdi_mount: &CdiMount) -> Result<Mount> {
        const BIND_OPTIONS: [&str; 5] = ["bind", "rbind", "ro", "nosuid", "nodev"];
        let mount = mount(cdi_mount);
        let options = &mount.options;
        let odd = options.iter().find(|option| !BIND_OPTIONS.contains(&option.as_str()));
        let is_read_only = options.iter().any(|option| option == "ro");
        // nosuid and nodev protect against files of other users, and are not needed for root's read-only files.
        if mount.r#type != "bind" || odd.is_some() || !is_read_only {
            let what = format!("the mount at {} with its options", cdi_mount.container_path);
            return Err(self.refusal_error(&what, USE_DOCKER));
        }
        Ok(Mount { options: vec!["ro".to_owned()], ..mount })
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

    /// Returns the limits, and whether a hook has to raise the one on locked memory instead.
    fn limits(&self) -> Result<(Vec<PosixRlimit>, bool)> {
        let limits = &self.adjustment.limits;
        if self.runtime.features.limits || limits.is_empty() {
            let limits = limits.iter().map(|limit| PosixRlimit {
                r#type: limit.type_.clone(),
                hard: limit.hard,
                soft: limit.soft,
            });
            return Ok((limits.collect(), false));
        }
        let adjustment = self.adjustment;
        let mut hooks = adjustment.hooks.iter().chain(&adjustment.limit_hooks);
        let has_hook = hooks.any(|(_, hook)| {
            let arguments = HookArguments::from_command(&hook.args);
            arguments.is_some_and(|(_, arguments)| arguments.memlock.is_some())
        });
        match limits.iter().find(|limit| !has_hook || limit.type_ != "RLIMIT_MEMLOCK") {
            Some(limit) => Err(self.refusal_error(&limit.type_, UPDATE_FOR_LIMITS)),
            None => Ok((Vec::new(), true)),
        }
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
fn hooks_by_stage<'a>(
    all: impl Iterator<Item = &'a (HookName, CdiHook)>,
) -> Result<Option<Hooks>, HookName> {
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
