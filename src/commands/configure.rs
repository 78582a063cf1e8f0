//! `runtime configure`: an engine's file, and the policy in `config.toml`. Both are decided before
//! either is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use onload_core::config::CONFIG_PATH;
use onload_core::onload::RUNTIMES;
use onload_engines::allow;
use onload_engines::daemon::DaemonFlags;
use onload_engines::engine::Engine;
use onload_engines::files::EngineFiles;
use onload_engines::installed::{self, PROGRAM_DIRS, find_installed};
use onload_engines::kubernetes::{BundledContainerd, find_bundled};
use onload_engines::oci_runtime::{KNOWN, find_runtime_behind};
use onload_engines::our_runtime::{RUNTIME_NAME, RUNTIME_PATH};
use onload_engines::setup::EngineSetup;
use onload_engines::version::{DOCKER_CDI, EngineVersion};
use onload_host::host::Host;
use onload_report::doctor::{CheckVerdict, is_cdi_on_in_docker};
use onload_sys::fs::lock::Lock;
use rustix::process::geteuid;

use super::behind::read_named_runtime;
use super::doctor::{check_host, checks_named, format_finding};
use super::engine_file::{DecidedFile, EngineFile};
use super::engine_record::EngineRecord;
use super::restart::{EngineService, ReloadMethod};
use super::{open_traced_host, print_diff, process, unchanged_message};
use crate::cli::{ConfigureArgs, GlobalArgs};
use crate::config_file::{self, OwnFile};
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::{Printer, escape_controls};

const CONFIG_NAME: &str = "config.toml";
const NRI_PLUGIN: &str = "/usr/bin/onload-nri";

pub fn run(global: &GlobalArgs, args: &ConfigureArgs, printer: &mut Printer) -> CommandResult {
    let host = open_traced_host(global)?;
    refuse(&host, global, args)?;
    let setups = find_setups(&host, global, args, &EngineRecord::read(&host)?, printer)?;
    refuse_restart(args, &setups)?;
    let service =
        if args.restart && !args.dry_run { EngineService::open(args.runtime)? } else { None };
    let files = setups
        .into_iter()
        .map(|setup| EngineFile::open(&host, setup, args.file.is_some()))
        .collect::<Result<Vec<_>>>()?;
    for file in files.iter().filter(|_| !args.remove) {
        file.check_engine(&host, args.dry_run, printer)?;
    }
    // Locks nothing if there is neither a file nor one to create.
    let is_nowhere = files.iter().all(|file| file.directory.is_none());
    let has_none = args.remove && args.allow.is_empty() && is_nowhere;
    let _lock = if args.dry_run || has_none { None } else { lock(&host, args)? };
    // The record may have changed before this run had the lock.
    let mut record = EngineRecord::read(&host)?;
    let (mut files, failed) = decide_files(files, &host, args, printer)?;
    if args.set_default && !args.remove && args.runtime != Engine::Nomad {
        for file in &files {
            check_default(&host, global, args.runtime, file)?;
        }
    }
    let policy = edit_policy(&host, global, args, printer)?;
    printer.warnings(files.iter().flat_map(|file| &file.decision.warnings));
    let version = engine_version(&host, args);
    let too_old = version.and_then(|version| args.runtime.kind().too_old_reason(version));
    if !args.remove {
        warn_of_missing(&host, args.runtime, printer)?;
        if let Some(reason) = &too_old {
            let name = args.runtime.name();
            printer.warning(format!(
                "{name} {reason}; until then only the runtime \"onload\" provides devices; \
                 \"onload-ctk doctor\" says where to get a newer {name}"
            ));
        }
    }
    if args.nri && host.entry(Path::new(NRI_PLUGIN))?.is_none() {
        printer.warning(format!(
            "{} does not exist; until it runs, pods start without the devices that their \
             annotations request",
            host.outside_path(Path::new(NRI_PLUGIN)).display()
        ));
    }
    if args.dry_run {
        for file in &files {
            file.show(printer)?;
        }
        match &policy {
            Some((own_file, Some(new))) => {
                print_diff(&own_file.path, own_file.text(), Some(new), printer)?;
            }
            Some((own_file, None)) => printer.note(unchanged_message(&own_file.path)),
            None => {}
        }
        for file in files.iter().filter(|file| file.is_runtime_in_use()) {
            printer.warning(file.kept_message());
        }
    } else {
        if let Some((mut own_file, Some(new))) = policy {
            own_file.write(&host, Some(&new))?;
            printer.note(format_args!("wrote {}", own_file.path.display()));
        }
        // A version without CDI support has nothing to enable.
        let has_cdi = version.is_some_and(|version| version >= DOCKER_CDI);
        let is_on = args.runtime == Engine::Docker
            && (has_cdi || args.file.is_none() && is_cdi_on_in_docker(&host) == Some(true));
        let is_settled = is_on || too_old.is_some();
        if args.file.is_none() && !args.remove {
            for setup in files.iter().map(|file| &file.file.setup).filter(|setup| !setup.is_usual())
            {
                record.add(&host, args.runtime, &setup.file)?;
            }
        }
        let changed = apply_files(&host, &mut files, is_settled, service.as_ref(), printer)?;
        if args.file.is_none() && args.remove {
            let kept: Vec<&Path> = files
                .iter()
                .filter(|file| file.is_runtime_in_use())
                .map(|file| file.file.setup.file.as_path())
                .chain(failed.iter().map(|(path, _)| path.as_path()))
                .collect();
            record.retain(&host, args.runtime, &kept)?;
        }
        if !changed && !args.remove && args.file.is_none() {
            reload_unread(global, args.runtime, service.as_ref(), printer)?;
        }
    }
    if !failed.is_empty() {
        let reasons: Vec<_> = failed.iter().map(|(_, error)| format!("{error:#}")).collect();
        bail!("{}", reasons.join("; "));
    }
    Ok(if files.iter().any(DecidedFile::is_runtime_in_use) {
        ExitAnswer::No
    } else {
        ExitAnswer::Yes
    })
}

/// A file that cannot be undone, and why.
type FailedFile = (PathBuf, anyhow::Error);

/// Decides about each file. A removal skips files that cannot be undone, and returns them with the errors.
fn decide_files(
    files: Vec<EngineFile>,
    host: &Host,
    args: &ConfigureArgs,
    printer: &mut Printer,
) -> Result<(Vec<DecidedFile>, Vec<FailedFile>)> {
    let is_only = files.len() == 1;
    let (mut decided, mut failed) = (Vec::new(), Vec::new());
    for file in files {
        let path = file.setup.file.clone();
        match file.decide(host, args.remove, printer) {
            Ok(file) => decided.push(file),
            Err(error) if args.remove && !is_only => failed.push((path, error)),
            Err(error) => return Err(error),
        }
    }
    Ok((decided, failed))
}

fn apply_files(
    host: &Host,
    files: &mut [DecidedFile],
    has_cdi: bool,
    service: Option<&EngineService>,
    printer: &mut Printer,
) -> Result<bool> {
    let method = if files.iter().any(|file| file.needs_restart(has_cdi)) {
        ReloadMethod::Restart
    } else {
        ReloadMethod::Reload
    };
    let mut changed: Vec<EngineSetup> = Vec::new();
    for decided in files.iter_mut() {
        if decided.apply(host, printer)? {
            let setup = &decided.file.setup;
            // Files of one service are read by one restart.
            changed.retain(|other| other.restart_command() != setup.restart_command());
            changed.push(setup.clone());
        }
    }
    match service {
        Some(service) if !changed.is_empty() => reload_engine(service, method, files, printer)?,
        Some(_) => (),
        None => {
            for setup in &changed {
                print_reload_command(host, setup, method, printer)?;
            }
        }
    }
    for file in files.iter().filter(|file| file.is_runtime_in_use()) {
        // The name may belong to a container in any user's podman.
        printer.print(format_args!("{}\n", escape_controls(file.kept_message())))?;
    }
    Ok(!changed.is_empty())
}

/// An earlier run, or somebody's editor, may have changed what the engine has not read since.
fn reload_unread(
    global: &GlobalArgs,
    engine: Engine,
    service: Option<&EngineService>,
    printer: &mut Printer,
) -> Result<()> {
    let (_, checks) = check_host(global, printer)?;
    let mut unread = checks_named(&checks, "engine-restarted").filter(|check| {
        let finding = &check.finding;
        finding.subject.as_deref() == Some(engine.name()) && finding.verdict.is_problem()
    });
    let Some(check) = unread.next() else { return Ok(()) };
    let advice = format_finding(check);
    // A restart does not make known what is not.
    let service = service.filter(|_| check.finding.verdict != CheckVerdict::Unknown);
    let Some(service) = service else {
        printer.note(format_args!("{}: {advice}", engine.name()));
        return Ok(());
    };
    let method = if advice.contains("systemctl reload ") {
        ReloadMethod::Reload
    } else {
        ReloadMethod::Restart
    };
    reload_engine(service, method, &[], printer)
}

fn refuse(host: &Host, global: &GlobalArgs, args: &ConfigureArgs) -> Result<()> {
    let engine = args.runtime.name();
    if args.restart && !host.is_running() {
        bail!(
            "restarting {engine}: {} is not the running host; omit --restart",
            global.host_root.display()
        );
    }
    if let Some(file) = &args.file
        && (!file.is_absolute() || file.file_name().is_none())
    {
        bail!("--file {}: use an absolute path", file.display());
    }
    if args.nri && !matches!(args.runtime, Engine::Containerd | Engine::Crio) {
        bail!(
            "--nri: NRI serves pods of containerd and crio; for {engine} omit --nri, and use \
             --device or the runtime \"onload\""
        );
    }
    let wrapper = Path::new(RUNTIME_PATH);
    // Nomad has no default, which its own file's editor says.
    if args.set_default && args.runtime != Engine::Nomad && host.entry(wrapper)?.is_none() {
        bail!(
            "--set-default: {} does not exist, and with it as the default {engine} could start no \
             container; install it first",
            host.outside_path(wrapper).display()
        );
    }
    Ok(())
}

/// Fails if it is unknown whether the engine's usual service reads the file.
fn refuse_restart(args: &ConfigureArgs, setups: &[EngineSetup]) -> Result<()> {
    let Some(setup) = setups
        .iter()
        .find(|setup| args.file.is_some() || setup.is_bundled())
        .filter(|_| args.restart)
    else {
        return Ok(());
    };
    let command = setup.restart_command().unwrap_or_else(|| "no restart is needed".to_owned());
    bail!(
        "--restart: could not determine which service reads {} for certain; omit --restart, and \
         run: {command}",
        setup.file.display()
    );
}

/// Fails if our runtime as the default would start no container, or start it by another runtime than until now.
fn check_default(
    host: &Host,
    global: &GlobalArgs,
    engine: Engine,
    file: &DecidedFile,
) -> Result<()> {
    let config = host.outside_path(Path::new(CONFIG_PATH));
    let config = global.config.as_deref().unwrap_or(&config).display();
    let named = read_named_runtime(host, global.config.as_deref())?;
    let replaced = file.replaced_default(host)?;
    let engine = engine.name();
    if named == Path::new(RUNTIME_PATH) {
        bail!(
            "--set-default: path under [runtime] in {config} is {RUNTIME_PATH} itself; set it to \
             the OCI runtime"
        );
    }
    if let Some(replaced) = &replaced
        && !replaced.is_known()
    {
        let known = KNOWN.join(", ");
        bail!(
            "--set-default: the default runtime of {engine} is {:?}, and {RUNTIME_NAME} can \
             replace only {known}; omit --set-default, and choose the runtime {RUNTIME_NAME} for \
             single containers",
            replaced.name
        );
    }
    let program = replaced.as_ref().and_then(|replaced| replaced.program.as_deref());
    let setting = match find_program(host, program)? {
        Some(path) if named.as_os_str().is_empty() => format!("write path = {path:?}"),
        _ => "name the OCI runtime by path".to_owned(),
    };
    let advice = format!(
        "{setting} under [runtime] in {config}, which all engines share, or omit --set-default"
    );
    let Some(behind) = find_runtime_behind(host, &named)? else {
        let missing = if named.as_os_str().is_empty() {
            RUNTIMES.join(", ")
        } else {
            named.display().to_string()
        };
        bail!(
            "--set-default: {engine} could start no container, because the OCI runtime behind \
             {RUNTIME_NAME} was not found at {missing}; {advice}"
        );
    };
    if let Some(replaced) = &replaced
        && !replaced.is_at(host, &behind)?
    {
        let program = program.unwrap_or(Path::new("")).display();
        bail!(
            "--set-default: the default runtime of {engine} is {:?} ({program}), and {RUNTIME_NAME} would start {} instead; {advice}",
            replaced.name,
            behind.display()
        );
    }
    Ok(())
}

/// Finds a program that may be given by its bare name.
fn find_program(host: &Host, program: Option<&Path>) -> Result<Option<PathBuf>> {
    let Some(program) = program else { return Ok(None) };
    for directory in PROGRAM_DIRS {
        // A program with an absolute path is not changed.
        let path = Path::new(directory).join(program);
        if host.entry(&path)?.is_some() {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// The files that are to be edited: the one that was named; else a drop-in where the main file has it
/// read, or the main file. A removal looks at both, and at those that another unit or file named before.
fn find_setups(
    host: &Host,
    global: &GlobalArgs,
    args: &ConfigureArgs,
    record: &EngineRecord,
    printer: &mut Printer,
) -> Result<Vec<EngineSetup>> {
    let setup = |mut setup: EngineSetup| {
        setup.set_default = args.set_default;
        setup.nri = args.nri;
        setup
    };
    let bundled = match args.runtime {
        Engine::Containerd => find_bundled(host)?,
        _ => Vec::new(),
    };
    let flags = DaemonFlags::read(host, args.runtime.kind())?;
    let main = EngineSetup::for_daemon(args.runtime, flags);
    let for_file = |file: &Path| match bundled.iter().find(|bundled| bundled.owns(file)) {
        Some(bundled) => EngineSetup::for_bundled(bundled, file.to_owned()),
        None => main.for_other_file(file.to_owned()),
    };
    if let Some(file) = &args.file {
        let is_main = *file == main.file;
        return Ok(vec![setup(if is_main { main } else { for_file(file) })]);
    }
    let drop_in = EngineSetup::find_drop_in(args.runtime);
    let is_bundled = !bundled.is_empty()
        && installed::find_program(host, args.runtime.kind())?.is_none()
        && host.entry(&main.file)?.is_none();
    if args.remove {
        // With another containerd on the host, a template is named with --file.
        let bundled = if is_bundled { bundled.as_slice() } else { &[] };
        let templates = bundled.iter().flat_map(BundledContainerd::editable_files);
        let recorded = record.files(args.runtime).map(Path::to_owned);
        let usual = [args.runtime.file().to_owned()];
        let mut other_files = Vec::new();
        for file in templates.chain(recorded).chain(usual) {
            if file != main.file && has_trace(host, &file)? && !other_files.contains(&file) {
                other_files.push(file);
            }
        }
        let other_setups: Vec<_> = other_files.iter().map(|file| for_file(file)).collect();
        let drop_in = match drop_in {
            Some(drop_in) if host.entry(&drop_in.file)?.is_some() => Some(drop_in),
            _ => None,
        };
        let main = (!is_bundled || other_setups.is_empty()).then_some(main);
        return Ok(drop_in.into_iter().chain(main).chain(other_setups).collect());
    }
    if is_bundled {
        let bundled = choose_bundled(&bundled)?;
        let named = read_named_runtime(host, global.config.as_deref())?;
        if find_runtime_behind(host, &named)?.is_none() {
            let (name, runc) = (bundled.kind.name(), bundled.runc.display());
            printer.warning(format!(
                "the OCI runtime behind \"{RUNTIME_NAME}\" was not found; to use the one of {name}, write path = \"{runc}\" under [runtime] in {CONFIG_PATH}"
            ));
        }
        return Ok(vec![setup(EngineSetup::for_bundled(bundled, bundled.editable_file(host)?))]);
    }
    for bundled in &bundled {
        let file = bundled.editable_file(host).map(|file| file.display().to_string());
        printer.warning(format!(
            "{} has its own containerd, which this does not configure; to configure it, add --file \
             {}",
            bundled.kind.name(),
            file.unwrap_or("FILE".to_owned())
        ));
    }
    let text = host.text(&main.file).ok().flatten();
    Ok(vec![setup(
        drop_in
            .filter(|drop_in| text.as_ref().is_some_and(|text| drop_in.is_read_by(text)))
            .unwrap_or(main),
    )])
}

/// Whether a file or its backup shows that we changed it.
fn has_trace(host: &Host, file: &Path) -> Result<bool> {
    let backup = file.with_file_name(config_file::backup_name(file));
    Ok(EngineSetup::has_trace(&EngineFiles {
        now: host.text(file).ok().flatten(),
        before: host.entry(&backup)?.map(|_| String::new()),
        ..EngineFiles::default()
    }))
}

/// The only distribution of Kubernetes on a host.
fn choose_bundled(bundled: &[BundledContainerd]) -> Result<&BundledContainerd> {
    let [only] = bundled else {
        let names = bundled.iter().map(|bundled| bundled.kind.name()).collect::<Vec<_>>();
        bail!("{} are installed; name the file of one with --file", names.join(" and "));
    };
    Ok(only)
}

/// The engine's version, where that decides what it knows of CDI. Which program reads a file that was named is not known,
/// and a removal turns nothing on.
fn engine_version(host: &Host, args: &ConfigureArgs) -> Option<EngineVersion> {
    if args.remove || args.file.is_some() {
        return None;
    }
    // An error is ignored, since the version decides only what is advised.
    find_installed(host, args.runtime.kind(), &|program| process::read_version(host, program))
        .ok()??
        .1
}

/// A user who names a file cannot take the host's locks and does not need them.
fn lock(host: &Host, args: &ConfigureArgs) -> Result<Option<Lock>> {
    let is_user = host.is_running() && !geteuid().is_root();
    Ok(if args.file.is_some() && is_user {
        config_file::lock_as_user(host)?
    } else {
        Some(config_file::lock(host)?)
    })
}

/// The operator's configuration, with its new text if that differs.
fn edit_policy(
    host: &Host,
    global: &GlobalArgs,
    args: &ConfigureArgs,
    printer: &mut Printer,
) -> Result<Option<(OwnFile, Option<String>)>> {
    if args.allow.is_empty() {
        return Ok(None);
    }
    let own_file = match &global.config {
        Some(path) => OwnFile::named(path)?,
        None => OwnFile::of_host(host, CONFIG_NAME)?,
    };
    if own_file.text().is_some() {
        printer.log_read(&own_file.path);
    }
    let old = own_file.text().unwrap_or_default();
    let new = allow::allow_classes(old, &args.allow).with_context(|| {
        format!("allowing classes in {}, which is not changed", own_file.path.display())
    })?;
    let edited = (new != old).then_some(new);
    Ok(Some((own_file, edited)))
}

fn warn_of_missing(host: &Host, engine: Engine, printer: &mut Printer) -> Result<()> {
    let needed = match engine {
        Engine::Nomad => Engine::Docker.file(),
        _ => Path::new(RUNTIME_PATH),
    };
    if host.entry(needed)?.is_some() {
        return Ok(());
    }
    let path = host.outside_path(needed);
    printer.warning(match engine {
        Engine::Nomad => format!(
            "{} does not exist; Nomad uses docker's runtimes, so run this with --runtime docker \
             too",
            path.display()
        ),
        _ => format!(
            "{} does not exist; a container that requests the runtime cannot start until it is \
             installed",
            path.display()
        ),
    });
    Ok(())
}

fn print_reload_command(
    host: &Host,
    setup: &EngineSetup,
    method: ReloadMethod,
    printer: &mut Printer,
) -> Result<()> {
    let name = setup.engine.name();
    let by_init = |command: &str| init_command(host, command);
    let reload = setup.reload_command().map(by_init).transpose()?;
    let restart = setup.restart_command().as_deref().map(by_init).transpose()?;
    match (method, reload, restart) {
        (_, _, None) => {
            printer.note("nothing to restart: podman reads it whenever it starts a container");
        }
        (ReloadMethod::Reload, Some(reload), _) => {
            printer.note(format_args!("{name} reads it on reload: {reload}"));
        }
        (_, Some(_), Some(restart)) => printer.note(format_args!(
            "{name} enables CDI when it starts, and a restart stops its containers unless \
             live-restore is on: {restart}"
        )),
        (_, None, Some(restart)) => {
            printer.note(format_args!("{name} reads it at its start: {restart}"));
        }
    }
    Ok(())
}

/// A command to systemd as the host's own init system takes it: OpenRC's, where there is no systemctl.
fn init_command(host: &Host, command: &str) -> Result<String> {
    let exists = |program| host.entry(Path::new(program)).map(|entry| entry.is_some());
    let is_openrc = exists("/sbin/rc-service")? && !exists("/usr/bin/systemctl")?;
    Ok(match command.split(' ').collect::<Vec<_>>()[..] {
        ["systemctl", verb, service, ref more @ ..] if is_openrc && verb != "--user" => {
            [&["rc-service", service, verb], more].concat().join(" ")
        }
        _ => command.to_owned(),
    })
}

/// If the engine works worse than before, its files are restored.
fn reload_engine(
    service: &EngineService,
    method: ReloadMethod,
    files: &[DecidedFile],
    printer: &mut Printer,
) -> Result<()> {
    let name = service.name;
    if method == ReloadMethod::Reload && !service.before.is_active {
        printer.note(format_args!("{name} is not running: it reads the file at its start"));
        return Ok(());
    }
    let Some(worse) = service.reload(method)? else {
        printer.note(format_args!("{}ed {name}", method.verb()));
        return Ok(());
    };
    for file in files.iter().rev() {
        file.restore()?;
    }
    let result = match service.retry_reload(method)? {
        None => format!("it was {}ed with them", method.verb()),
        Some(still) => format!("that did not fix it: {still}"),
    };
    bail!(
        "{}ing {name}, which made it worse: {worse}; its files are unchanged, and {result}",
        method.verb()
    )
}
