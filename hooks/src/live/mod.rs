//! Injection into a container that its runtime has already created: device nodes that can be
//! opened, bind mounts, the preload, resource limits.
//!
//! First everything is examined and decided. Then mounts are prepared as descriptors, devices are
//! opened in the container's cgroup, and the mounts are moved into its mount namespace. A step that
//! fails undoes all before it.

mod apply;
pub mod cgroup;
pub mod devices;
pub(crate) mod fs_user;
mod inspect;
mod libraries;
pub(crate) mod limits;
pub(crate) mod plan;
pub mod program;
pub(crate) mod reapply;
pub(crate) mod systemd;
pub(crate) mod target;

use std::path::Path;

use onload_cdi::oci::OciConfig;
use onload_core::hook_arguments::{HookArguments, TakeArgument};
use onload_core::request::Request;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::error::Result;

use crate::config::config_file::{OciConfigFile, read_config};
use crate::config::decision_input::DecisionInput;
use crate::config::scan::ScanScope;
use crate::config::state::OciState;
use crate::decide::host_view::{HostView, LocalHost};
use crate::decide::report::ContainerReport;
use crate::decide::subject::{ContainerRef, DecisionSubject};
use crate::moves;
use crate::record::container_dir::ContainerDir;
use crate::record::container_record::{self, LiveInjection};
use crate::record::creator::CreatorStage;
use crate::record::init::InitProcess;
use crate::record::lease::{self, Reserver};
use crate::record::sweep;
use inspect::Inspection;
use libraries::HookLibraries;
pub(crate) use libraries::choose_for_hook;
use onload_sys::fs::container_root::ContainerRoot;
use plan::InjectionPlan;

/// Gives a container what its annotations request and its configuration does not contain.
pub(crate) fn inject(state: &OciState, config_path: &Path) -> Result<ContainerReport> {
    let file = OciConfigFile::open(&state.bundle, None)?;
    let input = DecisionInput::read(file.scan(ScanScope::Annotations)?)?;
    let Some(DecisionInput { config, request, .. }) = input else {
        return Ok(ContainerReport::default());
    };
    let host = LocalHost::with_config(config_path)?;
    inject_request(state, &config, &request, &[], &host)
}

/// Gives a container members of the pools that a specification's device refers to.
pub(crate) fn inject_members(
    state: &OciState,
    takes: &[TakeArgument],
    config_path: &Path,
) -> Result<ContainerReport> {
    let config = read_config(&state.bundle)?;
    let host = LocalHost::with_config(config_path)?;
    inject_request(state, &config, &plan::take_request(takes), takes, &host)
}

fn inject_request(
    state: &OciState,
    config: &OciConfig,
    request: &Request,
    takes: &[TakeArgument],
    host: &LocalHost,
) -> Result<ContainerReport> {
    // Without the mounts of the container's configuration, as this process sees the root. If it cannot
    // be opened, it is refused later, with its reason.
    let path = config.root_path().ok().flatten();
    let root = path.and_then(|path| ContainerRoot::open(&state.bundle.join(path)).ok());
    let subject = DecisionSubject {
        config,
        request,
        tickets: &[],
        container: ContainerRef { bundle: &state.bundle, id: Some(&state.id), sees_exec: false },
        lacks: &|dir: &Path| root.as_ref().is_some_and(|root| root.is_missing(dir)),
    };
    // A second call for the same process must not choose once more.
    let mut warnings = Vec::new();
    let before = match state.pid {
        Some(_) => earlier_injection(state, host, &mut warnings)?,
        None => None,
    };
    if plan::is_served_before(takes, before.as_ref()) {
        return Ok(ContainerReport::from_warnings(warnings, host.log()));
    }
    let mut reserver = Reserver::creating(host, "onload-hook");
    reserver.fetch = Some(&moves::fetch);
    let (mut plan, reservation) = reserver.decide_and_reserve(
        |pools| plan::decide(subject, takes, &state.id, host, pools),
        |plan| plan.choice.take(),
    )?;
    warnings.append(&mut plan.warnings);
    let mut report = ContainerReport::from_warnings(warnings, host.log());
    if plan.is_empty() {
        return Ok(report);
    }
    report.granted = std::mem::take(&mut plan.granted);
    let result = libraries::choose_for_plan(&plan, takes, config, root.as_ref(), host).and_then(
        |libraries| {
            plan.record.library_warnings.clone_from(&libraries.warnings);
            report.warnings.extend(libraries.warnings);
            report.reasons = libraries.reasons;
            plan.binds.extend(libraries.binds);
            report.reasons.extend(plan.reasons());
            inject_plan(state, config, plan, before, host)
        },
    );
    if let (Err(_), Some(reservation)) = (&result, &reservation) {
        lease::cancel(reservation);
    }
    report.warnings.extend(result?);
    Ok(report)
}

/// Returns the messages and mounts of the hooks in a bundle, which an engine took from specifications, about libraries
/// for its RDMA devices.
pub(crate) fn explain_libraries(bundle: &Path, host: &dyn HostView) -> Result<ContainerReport> {
    let config = read_config(bundle)?;
    let library_hooks = libraries::library_hooks(&config)?;
    let Some(first) = library_hooks.first() else {
        return Ok(ContainerReport::default());
    };
    let libraries = choose_for_hook(first, bundle, &config, host)?;
    let mounts = libraries.binds.iter().map(|bind| {
        let (target, source) = (bind.target.display(), bind.source.display());
        format!("the hook of its device would mount {target} from {source}")
    });
    Ok(ContainerReport {
        warnings: libraries.warnings,
        reasons: libraries.reasons.into_iter().chain(mounts).collect(),
        ..ContainerReport::default()
    })
}

/// Mounts libraries, and nothing else. The container starts without what is refused; a mount that fails ends it, since
/// what earlier hooks did is undone then too. Returns warnings.
pub(crate) fn mount_libraries(
    state: &OciState,
    config: &OciConfig,
    libraries: HookLibraries,
    host: &LocalHost,
) -> Result<Vec<String>> {
    let mut warnings = libraries.warnings;
    let key = libraries::request_key(&libraries.devices);
    let takes: Vec<String> =
        libraries.devices.iter().map(|name| format!("rdma-libraries {name}")).collect();
    if libraries.binds.is_empty() {
        record(state, takes, &warnings, host);
        return Ok(warnings);
    }
    let mut plan =
        InjectionPlan { keys: key.clone(), binds: libraries.binds, ..InjectionPlan::default() };
    plan.record.takes.clone_from(&takes);
    plan.record.library_warnings.clone_from(&warnings);
    let inspect = |warnings: &mut Vec<String>| -> Result<Option<Inspection<'_>>> {
        let before = earlier_injection(state, host, warnings)?;
        if plan::is_already_given(&takes, before.as_ref()) {
            return Ok(None);
        }
        let init = InitProcess::open(state.pid)?;
        sweep::remove_stale(Path::new(RUN_DIR), Some(&state.id));
        Inspection::new(state, init, config, host, plan, before).map(Some)
    };
    match inspect(&mut warnings) {
        Ok(Some(inspection)) => warnings.extend(inspection.apply(host)?),
        Ok(None) => {}
        Err(error) => {
            warnings.push(format!("{key}: {}: {error:#}", libraries::NOT_MOUNTED));
            record(state, takes, &warnings, host);
        }
    }
    Ok(warnings)
}

/// Records for `onload-ctk status` why a container has no libraries of the host. It starts without that too: a rootless
/// engine may not write there.
fn record(state: &OciState, takes: Vec<String>, warnings: &[String], host: &LocalHost) {
    let write = || -> Result<()> {
        let before = earlier_injection(state, host, &mut Vec::new())?;
        if plan::is_already_given(&takes, before.as_ref()) {
            return Ok(());
        }
        let init = InitProcess::open(state.pid)?;
        let injection = LiveInjection {
            pid: init.pid(),
            start_time: init.start_time()?,
            takes,
            library_warnings: warnings.to_vec(),
            ..LiveInjection::default()
        };
        let mut container_dir =
            ContainerDir::open(&state.id, CreatorStage::Hook, &state.bundle, None, host)?;
        container_dir.record.live = Some(injection.merge_earlier(before));
        container_dir.save()
    };
    if !warnings.is_empty() {
        let _ = write();
    }
}

/// Moves RDMA devices into a container's network namespace, or finds them there, and gives it their
/// nodes, and libraries for them. Returns warnings.
pub(crate) fn move_rdma(
    state: &OciState,
    arguments: &HookArguments,
    config: &OciConfig,
    libraries: HookLibraries,
    host: &LocalHost,
) -> Result<Vec<String>> {
    let mut warnings = libraries.warnings;
    let before = earlier_injection(state, host, &mut warnings)?;
    if plan::is_already_given(&plan::moved_rdma_names(arguments), before.as_ref()) {
        return Ok(warnings);
    }
    let mut plan = plan::plan_moves(arguments, &host.settings()?)?;
    plan.binds.extend(libraries.binds);
    plan.record.library_warnings.clone_from(&warnings);
    let more = inject_plan(state, config, plan, before, host)?;
    warnings.extend(more);
    Ok(warnings)
}

/// Examines the container, claims what it has for itself, and gives it the rest. Nothing of the container is changed
/// before all of that is leased. After an error nothing is leased.
fn inject_plan(
    state: &OciState,
    config: &OciConfig,
    mut plan: InjectionPlan,
    before: Option<LiveInjection>,
    host: &LocalHost,
) -> Result<Vec<String>> {
    let (lease_arguments, mut moves) =
        (std::mem::take(&mut plan.lease_arguments), std::mem::take(&mut plan.moves));
    moves.retain(|arguments| {
        !plan::is_already_given(&plan::moved_rdma_names(arguments), before.as_ref())
    });
    let record = &mut plan.record;
    record.takes.extend(moves.iter().flat_map(plan::moved_rdma_names));
    let arguments = lease_arguments.iter().chain(&moves);
    record.leases = arguments.flat_map(|arguments| arguments.lease.clone()).collect();
    if !record.leases.is_empty() {
        record.bundle.clone_from(&state.bundle);
    }
    let init = InitProcess::open(state.pid)?;
    let (id, bundle) = (&state.id, &lease::canonical(&state.bundle)?);
    let container = lease::ContainerInit { id, bundle, init: init.pid(), host };
    sweep::remove_stale(Path::new(RUN_DIR), Some(&state.id));
    let inspection = Inspection::new(state, init, config, host, plan, before)?;
    let acquired = moves::acquire(&lease_arguments, &moves, container, "onload-hook")?;
    let result = inspection
        .with_nodes(&acquired.nodes, config)
        .and_then(|inspection| inspection.apply(host));
    match result {
        Ok(warnings) => Ok([warnings, acquired.finish()].concat()),
        Err(failed) => Err(acquired.withdraw(failed)),
    }
}

/// Returns the injection of earlier runs for the same process: engines may call the hook both as prestart and as
/// createRuntime, and each pool device has its own hook.
fn earlier_injection(
    state: &OciState,
    host: &LocalHost,
    warnings: &mut Vec<String>,
) -> Result<Option<LiveInjection>> {
    let dir = match host.trusted().open_dir(&Path::new(RUN_DIR).join(state.id.as_str())) {
        Ok(dir) => dir,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let record = container_record::read_known(&dir, warnings)?;
    let Some(injection) = record.and_then(|record| record.live) else {
        return Ok(None);
    };
    let init = InitProcess::open(state.pid)?;
    let start_time = init.start_time()?;
    Ok(Some(injection).filter(|injection| injection.is_of(init.pid(), start_time)))
}
