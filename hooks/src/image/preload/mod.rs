//! How libonload.so gets into the container's processes: which of the two methods, whether the
//! container's libc can load it, and how the table that it sizes by RLIMIT_NOFILE stays bounded.

pub(crate) mod libc_check;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use onload_cdi::oci::{MountEntry, OciConfig, OciConfigError, Rlimit};
use onload_cdi::{ContainerEdits, Hook, HookName, Mount};
use onload_core::config::{MAX_FDTABLE_SIZE, Preload};
use onload_core::container_id::ContainerId;
use onload_core::hook_arguments::PROGRAM;
use onload_core::onload::{LIBRARY, PRELOAD_FILE};
use onload_core::run_dir::RUN_DIR;
use onload_sys::bail;
use onload_sys::error;
use onload_sys::error::{Error, Result};
use onload_sys::text::ErrorChain;

use crate::decide::existing::drop_held_hooks;
use crate::decide::host_view::{HookSettings, HostView, Privilege};
use crate::decide::preload_choice::{LD_SO_PRELOAD, PreloadChoice, split};
use crate::decide::report::ContainerReport;
use libc_check::{ContainerProgram, LibcCompatibility};
use onload_sys::fs::container_root::{ContainerPath, ContainerRoot};

/// The list under the container's directory that has the image's own libraries too.
pub(crate) const MERGED: &str = "ld.so.preload";

const NOFILE: &str = "RLIMIT_NOFILE";
const TABLE_SIZE: &str = "EF_FDTABLE_SIZE=";
/// Bytes of the image's own list that are read.
const MAX_LIST_BYTES: u64 = 64 * 1024;

/// Why the container's own list cannot be merged. Each entry point says what to do about it.
pub(crate) enum PreloadListError {
    /// One of the user's mounts is at its path.
    OwnMount,
    Unreadable(String),
}

/// A file of the name [`MERGED`] to write on this host before the container starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    pub id: ContainerId,
    pub bytes: Vec<u8>,
    /// What SELinux calls the container's files.
    pub label: Option<String>,
}

/// What an entry point knows.
pub(crate) struct PreloadContext<'a> {
    pub settings: &'a HookSettings,
    /// `None` if the image is not there yet.
    pub root: Option<&'a ContainerRoot>,
    pub id: Option<&'a ContainerId>,
    pub privilege: Privilege,
}

/// Puts the chosen preload into the edits and the configuration; what it needs of this host.
pub(crate) fn apply(
    edits: &mut ContainerEdits,
    config: &mut OciConfig,
    choice: PreloadChoice,
    now: &PreloadContext<'_>,
    host: &dyn HostView,
    report: &mut ContainerReport,
) -> Result<Option<HostFile>> {
    let source = choice.source.as_deref();
    let mut file = None;
    if choice.mode != Preload::Off && check_preload(source, config, now, host, report)? {
        set_fdtable_size(edits, now);
        if choice.mode == Preload::File {
            file = preload_by_file(edits, config, now, choice.mount, host, report)?;
        } else {
            preload_by_env(edits, config, choice.libraries, report).map_err(config_error)?;
        }
    }
    drop_unreachable_bound(edits, config, now, report).map_err(config_error)?;
    Ok(file)
}

/// Checks whether the container's libc can load the library at `source` on the host. A library that
/// cannot be loaded is no error if the operator chose to skip it.
pub(crate) fn check_preload(
    source: Option<&str>,
    config: &OciConfig,
    now: &PreloadContext<'_>,
    host: &dyn HostView,
    report: &mut ContainerReport,
) -> Result<bool> {
    let Some(root) = now.root else {
        report.reasons.push(format!(
            "whether the image can load {LIBRARY} is not known before the image is there"
        ));
        return Ok(true);
    };
    let summary = source.and_then(|path| host.library_summary(path));
    if let (Some(path), None) = (source, &summary) {
        report.warnings.push(format!("which glibc {path} needs cannot be read"));
    }
    let program = read_program(config).map_err(config_error)?;
    let mounts = config.mounts().iter().map(MountEntry::destination);
    let covered = covered_by(mounts.collect(), root);
    match libc_check::check(root, &program, summary.as_ref(), &covered) {
        LibcCompatibility::Loads => Ok(true),
        LibcCompatibility::Unknown(reason) => {
            report.warnings.push(format!("whether {LIBRARY} takes effect is unknown: {reason}"));
            Ok(true)
        }
        LibcCompatibility::CannotLoad(reason) => {
            let what = format!("{LIBRARY} is not preloaded");
            let remedy = "use another image, ask for onload.dev/nic-plain";
            let warning = now.settings.refuse_or_warn(&what, &reason, remedy)?;
            report.warnings.push(warning);
            Ok(false)
        }
    }
}

/// Whether one of these mounts of the container may hide a path of the image. Runtimes follow the image's links to a
/// mount's destination, as of /lib to /usr/lib.
pub(crate) fn covered_by(mounts: Vec<String>, root: &ContainerRoot) -> impl Fn(&Path) -> bool {
    let follow = |path: &Path| ContainerPath::resolve(Some(root), path, &|_| false).ok();
    let resolve = |path: &Path| match (follow(path), path.parent(), path.file_name()) {
        (Some(resolved), ..) => Some(resolved.to_path()),
        // In a created container it is there already.
        (None, Some(above), Some(name)) => Some(follow(above)?.to_path().join(name)),
        _ => None,
    };
    let mut paths = BTreeSet::new();
    for path in mounts.into_iter().filter(|path| path != "/") {
        let path = PathBuf::from(path);
        paths.extend(resolve(&path));
        paths.insert(path);
    }
    // A mount without a destination may hide anything.
    move |path| {
        let mut above = path.ancestors().chain([Path::new("")]);
        above.any(|above| paths.contains(above))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what map_err calls")]
fn config_error(error: OciConfigError) -> Error {
    error!("{}", ErrorChain(&error))
}

/// What the container starts.
pub(crate) fn read_program(config: &OciConfig) -> Result<ContainerProgram, OciConfigError> {
    let mut args = Vec::new();
    config.each_arg(|arg| {
        if args.len() < libc_check::WORDS {
            args.push(arg.to_owned());
        }
    })?;
    let cwd = config.process().map(|process| process.read("cwd"));
    Ok(ContainerProgram {
        args,
        path: config.env_value("PATH")?,
        cwd: cwd.and_then(|cwd| cwd.ok().flatten()).unwrap_or_default(),
    })
}

/// The library sizes its table by this variable before the hard limit of open files, which podman sets anew after its hooks.
fn set_fdtable_size(edits: &mut ContainerEdits, now: &PreloadContext<'_>) {
    if !edits.env.iter().any(|entry| entry.starts_with(TABLE_SIZE)) {
        let size = now.settings.config.cdi.fdtable_size;
        edits.env.push(format!("{TABLE_SIZE}{size}"));
    }
}

fn preload_by_env(
    edits: &mut ContainerEdits,
    config: &OciConfig,
    mut libraries: Vec<String>,
    report: &mut ContainerReport,
) -> Result<(), OciConfigError> {
    if libraries.is_empty() {
        libraries.push(LIBRARY.to_owned());
    }
    let env_value = config.env_value("LD_PRELOAD")?.unwrap_or_default();
    libraries.retain(|library| !split(&env_value).any(|held| held == library));
    if !libraries.is_empty() {
        if !env_value.is_empty() {
            libraries.push(env_value);
        }
        edits.env.push(format!("LD_PRELOAD={}", libraries.join(":")));
    }
    report.reasons.push(format!("{LIBRARY} is preloaded by LD_PRELOAD"));
    Ok(())
}

/// Leaves out a bound of the table above the hard limit of open files. The library cannot raise that: it says so in every program,
/// and raises the soft limit to it (Onload, `citp_fdtable_ctor`).
fn drop_unreachable_bound(
    edits: &mut ContainerEdits,
    config: &OciConfig,
    now: &PreloadContext<'_>,
    report: &mut ContainerReport,
) -> Result<(), OciConfigError> {
    let size = |entry: &String| entry.strip_prefix(TABLE_SIZE)?.parse::<u64>().ok();
    if edits.env.iter().any(|entry| size(entry).is_some()) {
        let Rlimit { hard, .. } = read_nofile(config, now)?;
        edits.env.retain(|entry| size(entry).is_none_or(|size| size <= hard));
        let by = match edits.env.iter().find_map(size) {
            Some(size) => format!("{TABLE_SIZE}{size}"),
            None => format!("{NOFILE}, which is {hard}"),
        };
        report.reasons.push(format!("the table of {LIBRARY} is bounded by {by}"));
    }
    Ok(())
}

fn preload_by_file(
    edits: &mut ContainerEdits,
    config: &mut OciConfig,
    now: &PreloadContext<'_>,
    from_spec: Option<Mount>,
    host: &dyn HostView,
    report: &mut ContainerReport,
) -> Result<Option<HostFile>> {
    check_exec_nofile(config, now)?;
    cap_nofile(config, now, report).map_err(config_error)?;
    let own_list = || {
        let list = now.root.map_or_else(|| Ok(Vec::new()), read_image_list);
        list.map_err(not_merged_error)
    };
    let merged = now.id.map(|id| (id, format!("{RUN_DIR}/{id}/{MERGED}")));
    let mut mounts = config.mounts().iter().rev();
    if let Some(present) = mounts.find(|mount| mount.has_destination(LD_SO_PRELOAD)) {
        let source = present.source();
        let standard = from_spec.as_ref().map(|mount| &*mount.host_path);
        if source == standard.unwrap_or(PRELOAD_FILE) {
            return Ok(None);
        }
        // The poststop of an earlier start of the same bundle removed it.
        if let Some((id, path)) = merged
            && source == path
        {
            return Ok(Some(merge_list(id, &own_list()?, config)?));
        }
        return Err(not_merged_error(PreloadListError::OwnMount));
    }
    if from_spec.is_none()
        && let Err(error) = host.check_preload_file()
    {
        bail!("preloading by file: {}; the onload-ctk package brings it", ErrorChain(&error));
    }
    let mut mount = from_spec.unwrap_or_else(|| Mount {
        host_path: PRELOAD_FILE.to_owned(),
        container_path: LD_SO_PRELOAD.to_owned(),
        type_: None,
        options: ["ro", "nosuid", "nodev", "bind"].map(Into::into).into(),
    });
    let mut file = None;
    let image_list = own_list()?;
    if image_list.iter().any(|library| library != LIBRARY) {
        let Some((id, path)) = merged else {
            bail!(
                "the image has its own {LD_SO_PRELOAD}, and this entry point cannot merge it; set onload.dev/preload: env"
            );
        };
        mount.host_path = path;
        file = Some(merge_list(id, &image_list, config)?);
        let mut hooks = vec![cleanup_hook(now.settings)];
        drop_held_hooks(&mut hooks, config).map_err(config_error)?;
        edits.hooks.append(&mut hooks);
        report.reasons.push(format!(
            "the image's own {LD_SO_PRELOAD} is merged; poststop removes the merged file"
        ));
    }
    edits.mounts.push(mount);
    report.reasons.push(format!("{LIBRARY} is preloaded by {LD_SO_PRELOAD}"));
    Ok(file)
}

fn not_merged_error(problem: PreloadListError) -> Error {
    match problem {
        PreloadListError::OwnMount => error!(
            "the container has its own mount at {LD_SO_PRELOAD}; remove it or set onload.dev/preload: env"
        ),
        PreloadListError::Unreadable(why) => {
            error!("merging with the image's {LD_SO_PRELOAD}: {why}; set onload.dev/preload: env")
        }
    }
}

fn merge_list(id: &ContainerId, image_list: &[String], config: &OciConfig) -> Result<HostFile> {
    Ok(HostFile {
        id: id.clone(),
        bytes: list(LIBRARY, image_list).into_bytes(),
        label: config.mount_label().map_err(config_error)?,
    })
}

/// A list that begins with `library`, followed by the image's own entries.
pub(crate) fn list(library: &str, own: &[String]) -> String {
    let mut list = format!("{library}\n");
    for other in own.iter().filter(|other| *other != LIBRARY) {
        list.push_str(other);
        list.push('\n');
    }
    list
}

fn cleanup_hook(settings: &HookSettings) -> Hook {
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
pub(crate) fn read_image_list(root: &ContainerRoot) -> Result<Vec<String>, PreloadListError> {
    let file = match root.open_file(Path::new(LD_SO_PRELOAD)) {
        Ok((file, _)) => file,
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        Err(error) if error.is_behind_mount() => return Err(PreloadListError::OwnMount),
        Err(error) => return Err(PreloadListError::Unreadable(ErrorChain(&error).to_string())),
    };
    let mut text = String::new();
    let read = file.take(MAX_LIST_BYTES + 1).read_to_string(&mut text);
    let read = read.map_err(|error| PreloadListError::Unreadable(error.to_string()))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_LIST_BYTES {
        let why = format!("it is larger than {MAX_LIST_BYTES} bytes");
        return Err(PreloadListError::Unreadable(why));
    }
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines.flat_map(split).map(str::to_owned).collect())
}

/// Fails if the limit of open files of what `exec` and health checks start later is too high for the library's table: these
/// processes have the library by the file, and neither `EF_FDTABLE_SIZE` nor a limit that is set here. If the entry point has no
/// limit of its own (NRI), the engine hands on what is set here.
fn check_exec_nofile(config: &OciConfig, now: &PreloadContext<'_>) -> Result<()> {
    if now.privilege.nofile_hard.is_none() {
        return Ok(());
    }
    let Rlimit { hard, .. } = read_nofile(config, now).map_err(config_error)?;
    if hard <= u64::from(MAX_FDTABLE_SIZE) {
        return Ok(());
    }
    let size = now.settings.config.cdi.fdtable_size;
    bail!(
        "preloading by file: what exec and health checks start would have an {NOFILE} of {hard}, at which {LIBRARY} aborts; start the container with --ulimit nofile={size}:{size} (Kubernetes: LimitNOFILE={size} in containerd.service, default_ulimits = [\"nofile={size}:{size}\"] in crio.conf), or set onload.dev/preload: env"
    )
}

/// Caps RLIMIT_NOFILE: the library sizes its table by the hard limit, which docker sets to
/// 1073741816.
fn cap_nofile(
    config: &mut OciConfig,
    now: &PreloadContext<'_>,
    report: &mut ContainerReport,
) -> Result<(), OciConfigError> {
    let size = u64::from(now.settings.config.cdi.fdtable_size);
    let Rlimit { soft, hard, .. } = read_nofile(config, now)?;
    let capped = Rlimit { type_: NOFILE.to_owned(), hard: hard.min(size), soft: soft.min(size) };
    if (capped.soft, capped.hard) != (soft, hard) {
        config.set_rlimit(&capped)?;
        report
            .reasons
            .push(format!("{NOFILE} is capped at {size}, since {LIBRARY} sizes a table by it"));
    }
    Ok(())
}

/// The container's own limit, or the one that it would inherit.
fn read_nofile(config: &OciConfig, now: &PreloadContext<'_>) -> Result<Rlimit, OciConfigError> {
    let inherited = || Rlimit {
        type_: NOFILE.to_owned(),
        soft: now.privilege.nofile_soft.unwrap_or(u64::MAX),
        hard: now.privilege.nofile_hard.unwrap_or(u64::MAX),
    };
    Ok(config.rlimit(NOFILE)?.unwrap_or_else(inherited))
}
