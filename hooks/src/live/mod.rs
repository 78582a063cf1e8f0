//! Injection into a container that its runtime has already created: device nodes that can be
//! opened, bind mounts, the preload, resource limits.
//!
//! First everything is examined and decided. Then mounts are prepared as descriptors, devices are
//! opened in the container's cgroup, and the mounts are moved into the container's mount namespace.
//! If any step fails, everything done so far is undone.

mod apply;
pub mod bpf;
pub mod cgroup;
pub mod devices;
pub(crate) mod error;
pub(crate) mod identity;
mod inspect;
pub(crate) mod mount_api;
pub(crate) mod plan;
pub mod program;
pub(crate) mod reapply;
pub(crate) mod systemd;
pub(crate) mod target;
mod undo;

use std::path::Path;

use onload_core::container_id::ContainerId;
use onload_core::run_dir::RUN_DIR;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::config_json::bundle::ConfigFile;
use crate::decision::input::DecisionInput;
use crate::decision::report::{self, Report};
use crate::host::{HostFilesError, ThisHost};
use crate::process::init::Init;
use crate::rootfs::container_root::ContainerRoot;
use crate::run::own_dir::OwnDirError;
use crate::run::record::{self, Live};
use crate::run::sweep;
use crate::state::State;
use error::LiveError;
use inspect::Inspection;
use plan::PlanError;

/// Gives a container what its annotations request and its configuration does not contain. Returns
/// what to report.
///
/// # Errors
/// [`LiveError`]; everything done so far is undone.
pub(crate) fn inject(state: &State, config_path: &Path) -> Result<Report, LiveError> {
    let file = ConfigFile::open(&state.bundle, None)?;
    let input = DecisionInput::read(file.scan()?).map_err(PlanError::from)?;
    let Some(DecisionInput {
        config, request, ..
    }) = input
    else {
        return Ok(Report::default());
    };
    let host = ThisHost::with_config(config_path)?;
    // As this process sees it: without the mounts of the container's configuration.
    // What cannot be opened here is refused later, with its reason.
    let path = config.root_path().ok().flatten();
    let root = path.and_then(|path| ContainerRoot::open(&state.bundle.join(path)).ok());
    let lacks = |dir: &Path| root.as_ref().is_some_and(|root| root.lacks(dir));
    let mut plan = plan::decide(&config, &request, &state.id, &host, &lacks)?;
    let mut report = Report::of_warnings(std::mem::take(&mut plan.warnings), host.log());
    if plan.is_empty() {
        return Ok(report);
    }
    let init = Init::open(state.pid)?;
    if is_done(&state.id, &init, &host, &mut report.warnings)? {
        return Ok(report);
    }
    sweep::sweep(Path::new(RUN_DIR), Some(&state.id));
    report.given = report::asked(&request);
    report.reasons = plan.reasons();
    let inspection = Inspection::new(state, init, &config, &host, plan)?;
    report.warnings.extend(inspection.go(&host)?);
    Ok(report)
}

/// Whether an earlier run for the same process did all of this: engines may call the hook both as
/// prestart and as createRuntime.
fn is_done(
    id: &ContainerId,
    init: &Init,
    host: &ThisHost,
    warnings: &mut Vec<String>,
) -> Result<bool, LiveError> {
    let run = match host.trusted().open_dir(Path::new(RUN_DIR)) {
        Ok(run) => run,
        Err(error) if error.is_absent() => return Ok(false),
        Err(error) => return Err(HostFilesError::from(error).into()),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = match rustix::fs::openat(&run, id.as_str(), flags, Mode::empty()) {
        Ok(own) => own,
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => {
            let path = Path::new(RUN_DIR).join(id.as_str());
            let error = error.into();
            return Err(OwnDirError::HostFile {
                path,
                source: error,
            }
            .into());
        }
    };
    let state: Option<Live> = record::read_known(&own, record::STATE, warnings)?;
    let now = (init.pid(), init.start_time()?);
    Ok(state.is_some_and(|live| (live.pid, live.start_time) == now))
}
