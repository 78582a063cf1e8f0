//! How libonload.so gets into the container's processes: which of the two methods, whether the
//! container's libc can load it, and how the table that it sizes by RLIMIT_NOFILE stays bounded.

pub(crate) mod libc_check;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use onload_cdi::oci::{MountEntry, OciConfig, OciConfigError, Rlimit};
use onload_cdi::{ContainerEdits, Hook, HookName, Mount};
use onload_core::config::{OnIncompatible, Preload};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::PROGRAM;
use onload_core::onload::{LIBRARY, PRELOAD_FILE};
use onload_core::run_dir::RUN_DIR;
use onload_core::text::Chain;

use crate::decision::preload_choice::{LD_SO_PRELOAD, PreloadChoice, split};
use crate::decision::present::drop_held_hooks;
use crate::host::{HostFilesError, HostView, Privilege, Settings};
use crate::rootfs::container_root::ContainerRoot;
use libc_check::{Library, Program, Verdict};

/// Bytes of the image's own list that are read.
const MAX_LIST_BYTES: u64 = 64 * 1024;

/// Why there is no preload.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// The container's libc cannot load it.
    #[error(
        "{0}; use another image, ask for onload.dev/nic-plain, or set on-incompatible = \"skip\""
    )]
    Incompatible(String),
    /// The host has no list that could be mounted.
    #[error("preloading by file: {}; the onload-ctk package brings it", Chain(.0))]
    NoFile(HostFilesError),
    /// The image's own list cannot be read.
    #[error("merging with the image's {LD_SO_PRELOAD}: {0}; set onload.dev/preload: env")]
    OwnList(String),
    /// One of the user's mounts is at that path.
    #[error(
        "the container has its own mount at {LD_SO_PRELOAD}; remove it or set onload.dev/preload: env"
    )]
    OwnMount,
    /// The merged list is named after the container, whose id this entry point does not know.
    #[error(
        "the image has its own {LD_SO_PRELOAD}, and this entry point cannot merge it; set onload.dev/preload: env"
    )]
    NoId,
    /// The configuration cannot be changed.
    #[error(transparent)]
    Config(#[from] OciConfigError),
}

impl onload_core::error::Typed for PreloadError {}

/// A file to write on this host before the container starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    /// The container that it is for.
    pub id: ContainerId,
    /// Its name under the container's directory.
    pub name: &'static str,
    pub bytes: Vec<u8>,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub warnings: Vec<String>,
    /// A file to write on the host.
    pub file: Option<HostFile>,
    /// What the container gets, and why.
    pub reasons: Vec<String>,
}

/// What an entry point knows when it applies the preload.
pub(crate) struct PreloadContext<'a> {
    pub settings: &'a Settings,
    /// The container's root; none where the image is not there yet.
    pub root: Option<&'a ContainerRoot>,
    /// The container's id, if this entry point knows it.
    pub id: Option<&'a ContainerId>,
    /// The privileges of this process.
    pub privilege: Privilege,
}

/// Puts the chosen preload into the edits and the configuration.
///
/// # Errors
/// [`PreloadError`].
pub(crate) fn apply(
    edits: &mut ContainerEdits,
    config: &mut OciConfig,
    choice: PreloadChoice,
    now: &PreloadContext<'_>,
    host: &dyn HostView,
) -> Result<Applied, PreloadError> {
    let mut applied = Applied::default();
    let source = choice.source.as_deref();
    if choice.mode == Preload::Off || !may_preload(source, config, now, host, &mut applied)? {
        return Ok(applied);
    }
    match choice.mode {
        Preload::Off => {}
        Preload::Env => by_env(edits, config, now, choice.libraries, &mut applied)?,
        Preload::File => by_file(edits, config, now, choice.mount, host, &mut applied)?,
    }
    Ok(applied)
}

/// Checks whether the container's libc can load the library at `source` on the host. A library that
/// cannot be loaded is no error if the operator chose to skip it.
pub(crate) fn may_preload(
    source: Option<&str>,
    config: &OciConfig,
    now: &PreloadContext<'_>,
    host: &dyn HostView,
    applied: &mut Applied,
) -> Result<bool, PreloadError> {
    let Some(root) = now.root else {
        applied.reasons.push(format!(
            "whether the image can load {LIBRARY} is not known before the image is there"
        ));
        return Ok(true);
    };
    let summary = source.and_then(|path| host.library(path));
    if let (Some(path), None) = (source, &summary) {
        applied
            .warnings
            .push(format!("which glibc {path} needs cannot be read"));
    }
    let mut args = Vec::new();
    config.each_arg(|arg| {
        if args.len() < libc_check::WORDS {
            args.push(arg.to_owned());
        }
    })?;
    let program = Program {
        args,
        path: config.env_get("PATH")?,
        cwd: config
            .process()
            .and_then(|process| process.read("cwd").ok().flatten())
            .unwrap_or_default(),
    };
    let mounts = config.mounts().iter().map(MountEntry::destination);
    let mounts: BTreeSet<PathBuf> = mounts.filter(|at| at != "/").map(PathBuf::from).collect();
    // A mount without a destination may hide anything.
    let covered = |path: &Path| {
        let mut above = path.ancestors().chain([Path::new("")]);
        above.any(|above| mounts.contains(above))
    };
    match libc_check::check(root, &program, &Library { summary }, &covered) {
        Verdict::Loads => Ok(true),
        Verdict::Unknown(reason) => {
            applied.warnings.push(format!(
                "whether {LIBRARY} takes effect is unknown: {reason}"
            ));
            Ok(true)
        }
        Verdict::CannotLoad(reason) => match now.settings.config.annotations.on_incompatible {
            OnIncompatible::Fail => Err(PreloadError::Incompatible(reason)),
            OnIncompatible::Skip => {
                applied
                    .warnings
                    .push(format!("{LIBRARY} is not preloaded: {reason}"));
                Ok(false)
            }
        },
    }
}

fn by_env(
    edits: &mut ContainerEdits,
    config: &OciConfig,
    now: &PreloadContext<'_>,
    mut libraries: Vec<String>,
    applied: &mut Applied,
) -> Result<(), PreloadError> {
    if libraries.is_empty() {
        libraries.push(LIBRARY.to_owned());
    }
    let own = config.env_get("LD_PRELOAD")?.unwrap_or_default();
    libraries.retain(|library| !split(&own).any(|held| held == library));
    if !libraries.is_empty() {
        if !own.is_empty() {
            libraries.push(own);
        }
        edits
            .env
            .push(format!("LD_PRELOAD={}", libraries.join(":")));
    }
    let is_set = |entry: &String| entry.starts_with("EF_FDTABLE_SIZE=");
    if !edits.env.iter().any(is_set) {
        edits.env.push(format!(
            "EF_FDTABLE_SIZE={}",
            now.settings.config.cdi.fdtable_size
        ));
    }
    applied.reasons.push(format!(
        "{LIBRARY} is preloaded by LD_PRELOAD; EF_FDTABLE_SIZE bounds its table"
    ));
    Ok(())
}

fn by_file(
    edits: &mut ContainerEdits,
    config: &mut OciConfig,
    now: &PreloadContext<'_>,
    from_spec: Option<Mount>,
    host: &dyn HostView,
    applied: &mut Applied,
) -> Result<(), PreloadError> {
    cap_nofile(config, now, applied)?;
    let standard = from_spec
        .as_ref()
        .map_or(PRELOAD_FILE, |mount| mount.host_path.as_str())
        .to_owned();
    let own_list = || now.root.map_or_else(|| Ok(Vec::new()), own_list);
    let merged = now.id.map(|id| format!("{RUN_DIR}/{id}/ld.so.preload"));
    let present = config
        .mounts()
        .iter()
        .rev()
        .find(|mount| mount.is_at(LD_SO_PRELOAD));
    if let Some(present) = present {
        let source = present.source();
        return match now.id {
            _ if source == standard => Ok(()),
            // The poststop of an earlier start of the same bundle removed it.
            Some(id) if Some(&source) == merged.as_ref() => {
                applied.file = Some(merged_list(id, &own_list()?));
                Ok(())
            }
            _ => Err(PreloadError::OwnMount),
        };
    }
    if from_spec.is_none() {
        host.preload_file().map_err(PreloadError::NoFile)?;
    }
    let mut mount = from_spec.unwrap_or_else(|| Mount {
        host_path: PRELOAD_FILE.to_owned(),
        container_path: LD_SO_PRELOAD.to_owned(),
        type_: None,
        options: ["ro", "nosuid", "nodev", "bind"]
            .map(str::to_owned)
            .to_vec(),
    });
    let own = own_list()?;
    if own.iter().any(|library| library != LIBRARY) {
        let (Some(id), Some(path)) = (now.id, merged) else {
            return Err(PreloadError::NoId);
        };
        mount.host_path = path;
        applied.file = Some(merged_list(id, &own));
        let mut hooks = vec![cleanup(now.settings)];
        drop_held_hooks(&mut hooks, config)?;
        edits.hooks.append(&mut hooks);
        applied.reasons.push(format!(
            "the image's own {LD_SO_PRELOAD} is merged; poststop removes the merged file"
        ));
    }
    edits.mounts.push(mount);
    applied.reasons.push(format!(
        "{LIBRARY} is preloaded by {LD_SO_PRELOAD}; RLIMIT_NOFILE bounds its table"
    ));
    Ok(())
}

/// The list that is mounted for one container.
fn merged_list(id: &ContainerId, own: &[String]) -> HostFile {
    HostFile {
        id: id.clone(),
        name: "ld.so.preload",
        bytes: list(LIBRARY, own).into_bytes(),
    }
}

/// A list that begins with `library`, followed by the image's own entries.
pub(crate) fn list(library: &str, own: &[String]) -> String {
    let others = own.iter().map(String::as_str);
    let others = others.filter(|other| *other != LIBRARY);
    let all: Vec<&str> = std::iter::once(library).chain(others).collect();
    format!("{}\n", all.join("\n"))
}

fn cleanup(settings: &Settings) -> Hook {
    Hook {
        hook_name: HookName::Poststop.into(),
        path: settings.config.cdi.hook_path.display().to_string(),
        args: vec![PROGRAM.to_owned(), "poststop".to_owned()],
        env: vec!["PATH=/usr/sbin:/usr/bin".to_owned()],
        timeout: Some(10),
    }
}

/// The libraries in the image's own list. Its grammar has no comments (elf/rtld.c, `do_preload`),
/// but `#` starts one there.
pub(crate) fn own_list(root: &ContainerRoot) -> Result<Vec<String>, PreloadError> {
    let file = match root.open_file(Path::new(LD_SO_PRELOAD)) {
        Ok(file) => file,
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        Err(error) if error.is_elsewhere() => return Err(PreloadError::OwnMount),
        Err(error) => return Err(PreloadError::OwnList(Chain(&error).to_string())),
    };
    let mut text = String::new();
    let read = file.take(MAX_LIST_BYTES + 1).read_to_string(&mut text);
    let read = read.map_err(|error| PreloadError::OwnList(Chain(&error).to_string()))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_LIST_BYTES {
        return Err(PreloadError::OwnList(format!(
            "it is larger than {MAX_LIST_BYTES} bytes"
        )));
    }
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines.flat_map(split).map(str::to_owned).collect())
}

/// Caps RLIMIT_NOFILE: the library sizes its table by the hard limit, which docker sets to
/// 1073741816.
fn cap_nofile(
    config: &mut OciConfig,
    now: &PreloadContext<'_>,
    applied: &mut Applied,
) -> Result<(), PreloadError> {
    const NAME: &str = "RLIMIT_NOFILE";
    let size = u64::from(now.settings.config.cdi.fdtable_size);
    let held = config.rlimit(NAME)?;
    let (soft, hard) = match &held {
        Some(limit) => (limit.soft, limit.hard),
        // The limits that the container would inherit.
        None => (
            now.privilege.nofile_soft.unwrap_or(u64::MAX),
            now.privilege.nofile_hard.unwrap_or(u64::MAX),
        ),
    };
    let capped = Rlimit {
        type_: NAME.to_owned(),
        hard: hard.min(size),
        soft: soft.min(size),
    };
    if (capped.soft, capped.hard) != (soft, hard) {
        config.rlimit_set(&capped)?;
        applied.reasons.push(format!(
            "{NAME} is capped at {size}, since {LIBRARY} sizes a table by it"
        ));
    }
    Ok(())
}
