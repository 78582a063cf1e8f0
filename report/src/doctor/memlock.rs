//! How much memory containers may lock: RDMA and vfio pin memory, and engines start containers with a limit of 8 MiB by
//! default.

use std::path::PathBuf;

use onload_core::config::Memlock;
use onload_core::policy::MIN_MEMLOCK;

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings};

fn is_needed(context: &CheckContext<'_>) -> bool {
    let inventory = context.inventory;
    let vfio = inventory.vfio.iter().any(|device| device.viable);
    vfio || !inventory.rdma.is_empty()
}

pub(super) fn check_hook(context: &CheckContext<'_>) -> Findings {
    if !is_needed(context) {
        return Ok(Vec::new());
    }
    let path = &context.config.cdi.hook_path;
    let finding = if context.is_file(path)? {
        Finding::pass(format!("{} is there", path.display()))
    } else {
        Finding::fail(
            format!(
                "{} does not exist: containers keep the engine's memory lock limit, and device \
                 nodes are not verified",
                path.display()
            ),
            match find_hook(context)? {
                Some(hook) => Remedy::write_under(
                    context.config_file,
                    "[cdi]",
                    format!("hook-path = {:?}", hook.display().to_string()),
                ),
                None => context.reinstall_remedy()?,
            },
        )
    };
    Ok(vec![finding.with_path(path)])
}

fn find_hook(context: &CheckContext<'_>) -> Result<Option<PathBuf>, onload_host::host::HostError> {
    for directory in ["/usr/bin", "/usr/local/bin", "/opt/onload-ctk/bin"] {
        let path = PathBuf::from(directory).join("onload-hook");
        if context.is_file(&path)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

pub(super) fn check_limit(context: &CheckContext<'_>) -> Findings {
    if !is_needed(context) {
        return Ok(Vec::new());
    }
    let finding = match context.config.cdi.memlock {
        Memlock::Unlimited => Finding::pass("memlock is unlimited"),
        Memlock::Bytes(bytes) if bytes >= MIN_MEMLOCK => {
            Finding::pass(format!("memlock is {} MiB", bytes / 1024 / 1024))
        }
        Memlock::Bytes(bytes) => Finding::warn(
            format!("memlock is {bytes} bytes: too few to register buffers"),
            Remedy::write_under(context.config_file, "[cdi]", "memlock = \"unlimited\""),
        ),
    };
    Ok(vec![finding.with_path(context.config_file)])
}
