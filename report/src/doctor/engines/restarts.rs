//! Containers that docker does not start after a boot or its own restart (moby issue 49989): it restores those with a restart policy before
//! it knows CDI.

use onload_core::container_id;
use onload_engines::container_dirs::ContainerDirs;
use onload_engines::kind::EngineKind;
use onload_engines::our_runtime::RUNTIME_NAME;
use onload_engines::version::EngineVersion;
use serde_json::Value;

use super::installed::InstalledEngine;
use crate::doctor::check::{Finding, Remedy};
use crate::doctor::context::{CheckContext, Findings};

const MAX_BYTES: u64 = 1024 * 1024;
/// The first docker that knows CDI, and the first that knows it before it restores containers.
const AFFECTED: std::ops::Range<EngineVersion> = EngineVersion(25, 0, 0)..EngineVersion(28, 2, 0);

/// By what docker keeps of a container in `hostconfig.json`.
fn stays_down(config: &Value) -> bool {
    let mut requests = config.get("DeviceRequests").and_then(Value::as_array).into_iter().flatten();
    let has_cdi = requests.any(|request| request["Driver"] == "cdi");
    let policy = &config["RestartPolicy"]["Name"];
    let is_restarted = policy == "always" || policy == "unless-stopped";
    has_cdi && is_restarted && config["Runtime"] != RUNTIME_NAME
}

pub(crate) fn check_restarts(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    let Some(docker) = engines.iter().find(|engine| {
        engine.kind == EngineKind::Docker
            && engine.version.is_some_and(|version| AFFECTED.contains(&version))
    }) else {
        return Ok(Vec::new());
    };
    let mut down = Vec::new();
    let dirs = ContainerDirs::read(context.host).docker;
    for dir in &dirs {
        for id in context.host.list(dir)?.names {
            let config = context
                .host
                .bytes(&dir.join(&id).join("hostconfig.json"), MAX_BYTES)?
                .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            if config.is_some_and(|config| stays_down(&config)) {
                down.push(container_id::short_id(&id).to_owned());
            }
        }
    }
    let finding = match down.as_slice() {
        [] => Finding::pass("no container with devices depends on a restart by docker"),
        down => Finding::warn(
            format!(
                "docker does not restart containers with devices after a boot, nor after its own \
                 restart without live-restore (moby issue 49989); docker 28.2, an annotation with \
                 the runtime \"{RUNTIME_NAME}\" or a quadlet of podman helps; until then start \
                 these each time: {}",
                down.join(", ")
            ),
            Remedy::run(format!("docker start {}", down.join(" "))),
        ),
    };
    let finding = dirs.iter().fold(finding, Finding::with_path);
    Ok(vec![finding.with_subject(docker.kind.name())])
}
