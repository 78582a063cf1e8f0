//! How libonload.so gets into a container's processes: by which method, under which name, and with which bound of
//! the table that the library sizes by RLIMIT_NOFILE.

mod loader;
pub(crate) mod program;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use onload_cdi::oci::{MountEntry, OciConfig, OciConfigError, Rlimit};
use onload_cdi::{ContainerEdits, HookName, Mount};
use onload_core::config::{MAX_FDTABLE_SIZE, Preload};
use onload_core::container_id::ContainerId;
use onload_core::onload::{LIBRARY, PRELOAD_FILE};
use onload_lease::run_dir::RUN_DIR;
use onload_sys::error::{Context, Error, Result, bail, error};
use onload_sys::fs::regular::read_at_most;
use onload_sys::text::ErrorChain;

use crate::decide::existing::drop_held_hooks;
use crate::decide::host_view::{HookSettings, HostView, Privilege};
use crate::decide::preload_choice::{LD_SO_PRELOAD, PreloadChoice, split};
use crate::decide::report::ContainerReport;
use crate::decide::subject::CONFIG_JSON;
pub(crate) use loader::PreloadedLibrary;
use loader::{LoadVerdict, LoaderCheck};
use onload_sys::fs::container_root::{ContainerPath, ContainerRoot};
use program::{ContainerProgram, ProgramFiles};

/// The list in the container's directory on the host that also has the image's own libraries.
pub(crate) const MERGED: &str = "ld.so.preload";

const NOFILE: &str = "RLIMIT_NOFILE";
const TABLE_SIZE: &str = "EF_FDTABLE_SIZE=";
/// Bytes of the image's own list that are read.
const MAX_LIST_BYTES: u64 = 64 * 1024;

/// A file with the name [`MERGED`] that has to be written on this host before the container starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    pub id: ContainerId,
    pub bytes: Vec<u8>,
    /// The SELinux label of the container's files.
    pub label: Option<String>,
}

/// The container and host as an entry point sees them.
pub(crate) struct PreloadContext<'a> {
    pub settings: &'a HookSettings,
    /// `None` if the image does not exist yet.
    pub root: Option<&'a ContainerRoot>,
    pub id: Option<&'a ContainerId>,
    pub privilege: Privilege,
    pub host: &'a dyn HostView,
}

/// The result of preloading the library, beyond the edits.
#[derive(Default)]
pub(crate) struct PreloadOutcome {
    /// Bounds of the library's table above this are left out. The library cannot raise the hard limit of open
    /// files: it says so in every program, and raises the soft limit to it (Onload, `citp_fdtable_ctor`).
    max_table_size: u64,
    pub file: Option<HostFile>,
    pub report: ContainerReport,
}

/// Adds what preloads the library in a container to its edits, and sets its limit of open files.
pub(crate) fn apply(
    choice: PreloadChoice,
    edits: &mut ContainerEdits,
    config: &mut OciConfig,
    context: &PreloadContext<'_>,
) -> Result<PreloadOutcome> {
    let limit = context.read_nofile(config).context(CONFIG_JSON)?;
    let mut outcome = PreloadOutcome { max_table_size: limit.hard, ..PreloadOutcome::default() };
    outcome.add_edits(choice, &limit, edits, config, context)?;
    outcome.bound_table(edits);
    Ok(outcome)
}

impl PreloadOutcome {
    fn add_edits(
        &mut self,
        choice: PreloadChoice,
        limit: &Rlimit,
        edits: &mut ContainerEdits,
        config: &mut OciConfig,
        context: &PreloadContext<'_>,
    ) -> Result<()> {
        if choice.mode == Preload::Off {
            return Ok(());
        }
        let library = PreloadedLibrary {
            source: choice.source.as_deref(),
            targets: &choice.targets,
            mode: choice.mode,
            is_path_required: false,
        };
        let Some(name) = check_library(&library, config, context, &mut self.report)? else {
            return Ok(());
        };
        // The library sizes its table by this variable before the hard limit of open files, which podman sets after
        // its hooks.
        if !edits.env.iter().any(|entry| entry.starts_with(TABLE_SIZE)) {
            let size = context.settings.config.cdi.fdtable_size;
            edits.env.push(format!("{TABLE_SIZE}{size}"));
        }
        if choice.mode == Preload::File {
            self.use_file(&name, choice.mount, limit, edits, config, context)
        } else {
            self.use_env(&name, choice.libraries, edits, config).context(CONFIG_JSON)
        }
    }

    fn bound_table(&mut self, edits: &mut ContainerEdits) {
        let size = |entry: &String| entry.strip_prefix(TABLE_SIZE)?.parse::<u64>().ok();
        if edits.env.iter().any(|entry| size(entry).is_some()) {
            edits.env.retain(|entry| size(entry).is_none_or(|size| size <= self.max_table_size));
            let bound = match edits.env.iter().find_map(size) {
                Some(size) => format!("{TABLE_SIZE}{size}"),
                None => format!("{NOFILE}, which is {}", self.max_table_size),
            };
            self.report.reasons.push(format!("the table of {LIBRARY} is bounded by {bound}"));
        }
    }

    fn use_env(
        &mut self,
        name: &str,
        mut libraries: Vec<String>,
        edits: &mut ContainerEdits,
        config: &OciConfig,
    ) -> Result<(), OciConfigError> {
        if libraries.is_empty() {
            libraries.push(LIBRARY.to_owned());
        }
        for library in libraries.iter_mut().filter(|library| *library == LIBRARY) {
            name.clone_into(library);
        }
        let env_value = config.env_value("LD_PRELOAD")?.unwrap_or_default();
        libraries.retain(|library| !split(&env_value).any(|held| held == library));
        if !libraries.is_empty() {
            // A name that the loader does not find makes it print an error in every program.
            let has_useless_name = name != LIBRARY && split(&env_value).any(|held| held == LIBRARY);
            if has_useless_name {
                libraries
                    .extend(split(&env_value).filter(|held| *held != LIBRARY).map(str::to_owned));
            } else if !env_value.is_empty() {
                libraries.push(env_value);
            }
            edits.env.push(format!("LD_PRELOAD={}", libraries.join(":")));
        }
        self.report.reasons.push(format!("{name} is preloaded by LD_PRELOAD"));
        Ok(())
    }

    fn use_file(
        &mut self,
        name: &str,
        from_spec: Option<Mount>,
        limit: &Rlimit,
        edits: &mut ContainerEdits,
        config: &mut OciConfig,
        context: &PreloadContext<'_>,
    ) -> Result<()> {
        context.check_exec_nofile(limit)?;
        self.cap_nofile(limit, config, context).context(CONFIG_JSON)?;
        let image_list = context.root.map_or_else(|| Ok(Vec::new()), read_image_list);
        let merged_path = context.id.map(|id| format!("{RUN_DIR}/{id}/{MERGED}"));
        let standard_path = from_spec.as_ref().map_or(PRELOAD_FILE, |mount| &mount.host_path);
        let mut mounts = config.mounts().iter().rev();
        if let Some(present) = mounts.find(|mount| mount.has_destination(LD_SO_PRELOAD)) {
            let source = present.source();
            if source == standard_path && name == LIBRARY {
                return Ok(());
            }
            // The poststop hook of an earlier start of the same bundle removed the file.
            if let Some(id) = context.id
                && merged_path.is_some_and(|path| source == path)
            {
                let image_list = image_list.map_err(|error| not_merged_error(&error))?;
                self.file = Some(merge_list(id, name, &image_list, config)?);
                return Ok(());
            }
            return Err(not_merged_error(&own_mount_error()));
        }
        if from_spec.is_none()
            && let Err(error) = context.host.check_preload_file()
        {
            bail!("preloading by file: {}; install the package onload-ctk", ErrorChain(&error));
        }
        let mut mount = from_spec.unwrap_or_else(|| Mount {
            host_path: PRELOAD_FILE.to_owned(),
            container_path: LD_SO_PRELOAD.to_owned(),
            type_: None,
            options: ["ro", "nosuid", "nodev", "bind"].map(Into::into).into(),
        });
        let image_list = image_list.map_err(|error| not_merged_error(&error))?;
        if name != LIBRARY || image_list.iter().any(|library| library != LIBRARY) {
            let (Some(id), Some(path)) = (context.id, merged_path) else {
                bail!(
                    "the image has its own list at {LD_SO_PRELOAD}, which this entry point cannot \
                     merge; set onload.dev/preload: env"
                );
            };
            mount.host_path = path;
            self.file = Some(merge_list(id, name, &image_list, config)?);
            let mut hooks = vec![context.settings.own_hook(HookName::Poststop)];
            drop_held_hooks(&mut hooks, config).context(CONFIG_JSON)?;
            edits.hooks.append(&mut hooks);
            self.report.reasons.push(format!(
                "the image's own {LD_SO_PRELOAD} is merged; poststop removes the merged file"
            ));
        }
        edits.mounts.push(mount);
        self.report.reasons.push(format!("{name} is preloaded by {LD_SO_PRELOAD}"));
        Ok(())
    }

    /// Caps RLIMIT_NOFILE: the library sizes its table by the hard limit, which docker sets to 1073741816.
    fn cap_nofile(
        &mut self,
        limit: &Rlimit,
        config: &mut OciConfig,
        context: &PreloadContext<'_>,
    ) -> Result<(), OciConfigError> {
        let size = u64::from(context.settings.config.cdi.fdtable_size);
        if limit.soft.max(limit.hard) > size {
            self.max_table_size = limit.hard.min(size);
            config.set_rlimit(&Rlimit {
                type_: NOFILE.to_owned(),
                hard: limit.hard.min(size),
                soft: limit.soft.min(size),
            })?;
            self.report
                .reasons
                .push(format!("{NOFILE} is capped at {size}, since {LIBRARY} sizes a table by it"));
        }
        Ok(())
    }
}

impl PreloadContext<'_> {
    /// Returns the container's own limit of open files, or the one that it would inherit.
    fn read_nofile(&self, config: &OciConfig) -> Result<Rlimit, OciConfigError> {
        Ok(config.rlimit(NOFILE)?.unwrap_or_else(|| Rlimit {
            type_: NOFILE.to_owned(),
            soft: self.privilege.nofile_soft.unwrap_or(u64::MAX),
            hard: self.privilege.nofile_hard.unwrap_or(u64::MAX),
        }))
    }

    /// Fails if processes that `exec` and health checks start later would have a limit of open files that is too high
    /// for the library's table: they load the library by the file, without `EF_FDTABLE_SIZE` and without a limit that
    /// is set here. Does not apply to NRI, which reports no limit: its engine gives such processes the limit set here.
    fn check_exec_nofile(&self, limit: &Rlimit) -> Result<()> {
        let hard = limit.hard;
        if self.privilege.nofile_hard.is_none() || hard <= u64::from(MAX_FDTABLE_SIZE) {
            return Ok(());
        }
        let size = self.settings.config.cdi.fdtable_size;
        bail!(
            "preloading by file: what exec and health checks start would have an {NOFILE} of {hard}, at which {LIBRARY} aborts; start the container with --ulimit nofile={size}:{size} (Kubernetes: LimitNOFILE={size} in containerd.service, default_ulimits = [\"nofile={size}:{size}\"] in crio.conf), or set onload.dev/preload: env"
        )
    }
}

/// Checks whether the image's loader can load the library, and returns how the loader has to find it. Returns `None` if
/// it cannot load the library, and the operator chose to start such a container without it.
pub(crate) fn check_library(
    library: &PreloadedLibrary<'_>,
    config: &OciConfig,
    context: &PreloadContext<'_>,
    report: &mut ContainerReport,
) -> Result<Option<String>> {
    let by_name = Ok(Some(LIBRARY.to_owned()));
    let Some(root) = context.root else {
        report.reasons.push(format!(
            "could not determine whether the image can load {LIBRARY} before the image is there"
        ));
        return by_name;
    };
    let summary = library.source.and_then(|path| context.host.library_summary(path));
    if let (Some(path), None) = (library.source, &summary) {
        report.warnings.push(format!("which glibc {path} needs cannot be read"));
    }
    let program = ContainerProgram::from_config(config).context(CONFIG_JSON)?;
    let library_path = config.env_value("LD_LIBRARY_PATH").context(CONFIG_JSON)?;
    let mounts = config.mounts().iter().map(MountEntry::destination);
    let covered = &covered_by(mounts.collect(), root);
    let loader_check = LoaderCheck {
        files: ProgramFiles { root, covered },
        library: summary.as_ref(),
        preload: library,
        library_path: library_path.as_deref(),
        started: Instant::now(),
    };
    match loader_check.judge(&program) {
        LoadVerdict::ByName => by_name,
        LoadVerdict::ByPath(path) => Ok(Some(path)),
        LoadVerdict::Unknown(reason) => {
            let warning = format!("could not determine whether {LIBRARY} takes effect: {reason}");
            report.warnings.push(warning);
            by_name
        }
        LoadVerdict::CannotLoad(reason) => {
            let what = format!("{LIBRARY} is not preloaded");
            let remedy = "use another image, request onload.dev/nic-plain";
            report.warnings.push(context.settings.refuse_or_warn(&what, &reason, remedy)?);
            Ok(None)
        }
    }
}

/// Returns a function that tells whether one of these mounts may hide a path of the image. Runtimes follow the image's
/// links to a mount's destination, for example from /lib to /usr/lib.
pub(crate) fn covered_by(mounts: Vec<String>, root: &ContainerRoot) -> impl Fn(&Path) -> bool {
    let follow = |path: &Path| ContainerPath::resolve(Some(root), path, &|_| false).ok();
    let resolve = |path: &Path| match (follow(path), path.parent(), path.file_name()) {
        (Some(resolved), ..) => Some(resolved.to_path()),
        // In a created container the mount is there already.
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

/// The error about a mount in place of the container's own list. The remedy depends on the entry point.
pub(crate) fn own_mount_error() -> Error {
    error!("the container has its own mount at {LD_SO_PRELOAD}")
}

fn not_merged_error(error: &Error) -> Error {
    error!("{error:#}; set onload.dev/preload: env")
}

fn merge_list(
    id: &ContainerId,
    name: &str,
    image_list: &[String],
    config: &OciConfig,
) -> Result<HostFile> {
    Ok(HostFile {
        id: id.clone(),
        bytes: list(name, image_list).into_bytes(),
        label: config.mount_label().context(CONFIG_JSON)?,
    })
}

/// Returns a list that begins with `library`, followed by the image's own entries.
pub(crate) fn list(library: &str, own: &[String]) -> String {
    let mut list = format!("{library}\n");
    for other in own.iter().filter(|other| *other != LIBRARY) {
        list.push_str(other);
        list.push('\n');
    }
    list
}

/// Reads the libraries in the image's own list. The loader's grammar has no comments (elf/rtld.c, `do_preload`), but
/// here `#` starts one.
pub(crate) fn read_image_list(root: &ContainerRoot) -> Result<Vec<String>> {
    const MERGING: &str = "merging with the image's /etc/ld.so.preload";
    let file = match root.open_file(Path::new(LD_SO_PRELOAD)) {
        Ok((file, _)) => file,
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        Err(error) if error.is_behind_mount() => return Err(own_mount_error()),
        Err(error) => return Err(error).context(MERGING),
    };
    let bytes = read_at_most(file, MAX_LIST_BYTES).context(MERGING)?;
    let text = std::str::from_utf8(&bytes).context(MERGING)?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines.flat_map(split).map(str::to_owned).collect())
}
