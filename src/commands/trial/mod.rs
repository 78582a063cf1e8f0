//! `try`: starts a container of our own image with a device, and reports whether it works. Nothing of it is left.

mod client;
mod device;
mod engine;
mod image;
mod nic;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onload_core::class::Class;
use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_host::pools::discover_with_pools;
use onload_host::settings;
use onload_report::doctor::{Check, CheckVerdict};
use onload_sys::text::quote_for_shell;
use rustix::process::geteuid;
use serde_json::json;

use super::doctor::{check_host, checks_named, format_finding};
use super::interrupt::Interrupt;
use super::{open_host, open_traced_host};
use crate::cli::{GlobalArgs, ListFormat, TryArgs, TryEngine};
use crate::exit::{CommandResult, ExitAnswer};
use crate::layout::{format_paragraph, to_one_line};
use crate::printer::{ERROR, GOOD, Printer, WARNING};
use client::{ForegroundContainer, run as run_client};
use device::TrialDevice;
use engine::TrialNames;
use image::ImageTree;
pub(super) use image::PINGPONG;

/// The output of a successful probe.
pub(super) const READY_LINE: &str = "ready";
const STARTING: Duration = Duration::from_secs(60);
const ENDING: Duration = Duration::from_secs(10);

/// Whether it works, and what was seen or why not.
enum TrialOutcome {
    Works(String),
    /// Why not, and what to do.
    Fails(String, Option<String>),
    /// The engine starts no container, with or without the device.
    StartsNone(String),
    /// Why a container could not show whether it works, and what to do.
    NotTried(String, String),
}

struct Trial<'t> {
    host: &'t Host,
    inventory: &'t Inventory,
    engine: TryEngine,
    trial_device: TrialDevice,
    /// The devices it refers to.
    devices: Vec<String>,
    names: TrialNames,
    /// Whether the interface was on the host, which has to come back then.
    has_interface: bool,
    stop: Interrupt,
}

fn interface(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name)
}

pub fn run(global: &GlobalArgs, args: &TryArgs, printer: &mut Printer) -> CommandResult {
    let mut trial_device = TrialDevice::read_on_host(&args.device, || {
        let (host, config) = open_host(global)?;
        Ok(discover_with_pools(&host, &config).0)
    })?;
    let short = trial_device.short_name();
    if !open_traced_host(global)?.is_running() {
        bail!(
            "trying {short}: containers can be started only on the running host; omit --host-root"
        );
    }
    if !geteuid().is_root() {
        let device = quote_for_shell(&short);
        bail!("trying {short}: run it as root: sudo onload-ctk try {device}");
    }
    let (inventory, checks) = check_host(global, printer)?;
    trial_device.complete(&inventory)?;
    let devices = trial_device.resolve_devices(&inventory)?;
    require_written(&short, &checks)?;
    let host = open_traced_host(global)?;
    let (config, _) = settings::load_leniently(&host, global.config.as_deref())?;
    let chosen = choose(&short, &checks, args.engine).and_then(|engine| {
        check_allowed(&short, engine, trial_device.class, &config.annotations.allow)?;
        Ok(engine)
    });
    let engine = match chosen {
        Ok(engine) => engine,
        Err(reason) => {
            if args.format == ListFormat::Json {
                print_json(&short, None, ("not-tried", &reason), None, printer)?;
            }
            printer.error(reason);
            return Ok(ExitAnswer::NotTried);
        }
    };
    let trial = Trial {
        host: &host,
        inventory: &inventory,
        engine,
        has_interface: trial_device.class == Class::Netdev
            && interface(&trial_device.name).exists(),
        trial_device,
        devices,
        names: TrialNames::for_this_process()?,
        stop: Interrupt::watch()?,
    };
    printer.progress(format_args!("trying {short} with {}", engine.name()));
    let outcome = trial.try_device(printer);
    let cleanup = trial.clean_up();
    printer.end_progress();
    if let Err(error) = cleanup
        && !matches!(outcome, Ok(TrialOutcome::StartsNone(_)))
    {
        printer.warning(format_args!("{error:#}"));
    }
    let outcome = outcome.with_context(|| format!("trying {short} with {}", engine.name()))?;
    let (answer, result, reason, remedy) = match &outcome {
        TrialOutcome::Works(text) => (ExitAnswer::Yes, "works", text, None),
        TrialOutcome::Fails(text, remedy) => (ExitAnswer::No, "fails", text, remedy.as_deref()),
        TrialOutcome::NotTried(text, remedy) => {
            (ExitAnswer::NotTried, "not-tried", text, Some(remedy.as_str()))
        }
        TrialOutcome::StartsNone(text) => {
            (ExitAnswer::NotTried, "engine-starts-no-container", text, None)
        }
    };
    match args.format {
        ListFormat::Table => print(&short, engine, &outcome, (reason.as_str(), remedy), printer)?,
        ListFormat::Json => print_json(&short, Some(engine), (result, reason), remedy, printer)?,
    }
    Ok(answer)
}

fn print_json(
    device: &str,
    engine: Option<TryEngine>,
    (result, reason): (&str, &String),
    remedy: Option<&str>,
    printer: &mut Printer,
) -> Result<()> {
    printer.print_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "device": device,
        "engine": engine.map(TryEngine::name),
        "result": result,
        "reason": reason,
        "remedy": remedy,
    }))?;
    Ok(())
}

fn print(
    short: &str,
    engine: TryEngine,
    outcome: &TrialOutcome,
    (reason, remedy): (&str, Option<&str>),
    printer: &mut Printer,
) -> Result<()> {
    let (works, fails) = if short.starts_with("nic=") {
        ("accelerated", "not accelerated")
    } else {
        ("works", "does not work")
    };
    let name = engine.name();
    let (style, word) = match outcome {
        TrialOutcome::Works(_) => (GOOD, works),
        TrialOutcome::Fails(..) => (ERROR, fails),
        TrialOutcome::NotTried(..) => (WARNING, "not tried"),
        TrialOutcome::StartsNone(_) => {
            printer.error(format_args!(
                "trying {short} with {name}: {name} cannot start any container: {reason}; fix that \
                 first, and see what onload-ctk doctor says about {name}"
            ));
            return Ok(());
        }
    };
    let first = format!("{short} in a container of {name}: {style}{word}{style:#}: ");
    printer.print(format_paragraph(&first, "    ", &to_one_line(reason), printer.columns()))?;
    if let Some(remedy) = remedy {
        let columns = printer.columns();
        printer.print(format_paragraph("    ", "    ", &to_one_line(remedy), columns))?;
    }
    Ok(())
}

fn require_written(short: &str, checks: &[Check]) -> Result<()> {
    // A user may try devices of other classes than those that only root can determine.
    let stale = checks_named(checks, "specs-fresh")
        .find(|check| matches!(check.finding.verdict, CheckVerdict::Fail | CheckVerdict::Warn));
    let Some(stale) = stale else { return Ok(()) };
    bail!("trying {short}: CDI specifications: {}", format_finding(stale));
}

/// The engine, or why none can be asked for a device.
fn choose(
    short: &str,
    checks: &[Check],
    requested: Option<TryEngine>,
) -> Result<TryEngine, String> {
    let Some(engine) = requested.or_else(|| TryEngine::usable_engines(checks).next()) else {
        let engines: Vec<String> = checks_named(checks, "engine").map(format_finding).collect();
        return Err(format!(
            "trying {short}: no engine on this host can provide devices ({}); \"onload-ctk \
             doctor\" says what to do",
            engines.join("; ")
        ));
    };
    let name = engine.name();
    match (engine.check(checks), engine.missing_part()) {
        (None, _) => Err(format!(
            "trying {short}: {name} is not installed; install it, or choose another with --engine"
        )),
        (Some((_, Some(obstacle))), _) => {
            Err(format!("trying {short} with {name}: {}", format_finding(obstacle)))
        }
        (Some((_, None)), Some(path)) => Err(format!(
            "trying {short} with {name}: {path} is missing; install the package onload-ctk"
        )),
        (Some((_, None)), None) => Ok(engine),
    }
}

/// Checks that the operator allows the request, which only containerd's clients make by annotation.
fn check_allowed(
    short: &str,
    engine: TryEngine,
    class: Class,
    allow: &[Class],
) -> Result<(), String> {
    if engine != TryEngine::Containerd || allow.contains(&class) {
        return Ok(());
    }
    Err(format!(
        "trying {short} with containerd: not tried, because the operator does not allow class \
         {class} by annotation; run: onload-ctk runtime configure --runtime containerd --allow \
         {class}"
    ))
}

impl Trial<'_> {
    fn try_device(&self, printer: &mut Printer) -> Result<TrialOutcome> {
        if self.trial_device.class == Class::Nic {
            return self.try_nic(printer);
        }
        let mut files = image::probe_files()?;
        if self.trial_device.class == Class::Rdma {
            files.extend(image::pingpong_files(self.host)?);
        }
        let class = self.trial_device.class.as_str();
        let program =
            [image::PROGRAM_PATH, "probe", class, &self.devices.join(",")].map(str::to_owned);
        self.try_program(&files, &program, |lines| Ok(TrialOutcome::Works(lines.join("; "))))
    }

    /// Starts the program with the device, and looks at what it does once it says that it is ready.
    fn try_program(
        &self,
        files: &ImageTree,
        program: &[String],
        judge: impl FnOnce(Vec<String>) -> Result<TrialOutcome>,
    ) -> Result<TrialOutcome> {
        let image = image::build_archive(&self.names.image(), files)?;
        if let Err(error) = run_client(&self.engine.load(), image, &self.stop) {
            self.stop.refuse()?;
            return Ok(TrialOutcome::StartsNone(format!("{error:#}")));
        }
        let line = self.engine.start(&self.names, Some(&self.trial_device), program);
        let container = ForegroundContainer::start(&line)?;
        let outcome = container.read_until(READY_LINE, STARTING, &self.stop).map(judge);
        container.end(ENDING);
        self.stop.refuse()?;
        match outcome {
            Ok(outcome) => outcome,
            Err(error) => self.find_fault(&without_first_word(&format!("{error:#}")), program),
        }
    }

    /// A container of the same image without the device tells whose fault it is.
    fn find_fault(&self, reason: &str, program: &[String]) -> Result<TrialOutcome> {
        self.remove_container(&self.names);
        let program: Vec<String> = program.iter().take(1).cloned().collect();
        let plain = [program, vec!["--version".to_owned()]].concat();
        let line = self.engine.start(&self.names, None, &plain);
        let result = run_client(&line, Vec::new(), &self.stop);
        self.stop.refuse()?;
        Ok(match result {
            Ok(_) => TrialOutcome::Fails(with_journal(reason), None),
            Err(error) => TrialOutcome::StartsNone(format!("{error:#}")),
        })
    }

    fn remove_container(&self, names: &TrialNames) {
        for line in self.engine.remove_container(names) {
            // An error is ignored: the container is already gone if its program has ended.
            let _ = run_client(&line, Vec::new(), &Interrupt::default());
        }
    }

    /// Takes away what this run made and what runs that were killed have left, and waits for an interface.
    fn clean_up(&self) -> Result<()> {
        let removed = self.remove();
        self.require_interface()?;
        removed
    }

    fn remove(&self) -> Result<()> {
        for names in self.list_runs()? {
            if names == self.names || names.has_ended() {
                self.remove_container(&names);
                let line = self.engine.remove_image(&names);
                let _ = run_client(&line, Vec::new(), &Interrupt::default());
            }
        }
        if self.list_runs()?.contains(&self.names) {
            bail!(
                "removing container {} and image {}: they still exist; remove them with {}",
                self.names.container(),
                self.names.image(),
                self.engine.name()
            );
        }
        Ok(())
    }

    /// The runs that have a container or an image.
    fn list_runs(&self) -> Result<BTreeSet<TrialNames>> {
        let mut names = BTreeSet::new();
        for line in self.engine.list() {
            // It has to be done, whatever the user wants.
            let listing = run_client(&line, Vec::new(), &Interrupt::default())
                .context("checking for leftovers of the test")?;
            names.extend(listing.lines().filter_map(TrialNames::read));
        }
        Ok(names)
    }

    fn require_interface(&self) -> Result<()> {
        if !self.has_interface {
            return Ok(());
        }
        let path = interface(&self.trial_device.name);
        let deadline = Instant::now() + ENDING;
        while !path.exists() {
            if Instant::now() > deadline {
                bail!(
                    "returning {}: it is not back from the container; run: onload-ctk lease \
                     restore",
                    self.trial_device.name
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// As the probe and the engines begin such a line.
fn without_first_word(text: &str) -> String {
    let words = ["error: ", "Error: "];
    words.iter().find_map(|word| text.strip_prefix(word)).unwrap_or(text).to_owned()
}

/// crun discards a hook's output, so the reason is only in the journal.
fn with_journal(reason: &str) -> String {
    if reason.contains("error executing hook") && !reason.contains("onload-hook createRuntime:") {
        format!("{reason}; its reason: journalctl -t onload-hook")
    } else {
        reason.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use onload_report::doctor::{CheckFamily, Finding, Remedy};

    use super::*;

    #[test]
    fn a_hooks_reason_that_the_runtime_discards_is_in_the_journal() {
        let crun = "crun: error executing hook `/usr/bin/onload-hook` (exit code: 1)";
        assert!(with_journal(crun).ends_with("; its reason: journalctl -t onload-hook"));
        let runc = "error running hook: exit status 1, stdout: , stderr: onload-hook createRuntime: it is in use";
        assert_eq!(with_journal(runc), runc);
    }

    fn check(name: &'static str, subject: &str, verdict: CheckVerdict, finding: &str) -> Check {
        let run = "onload-ctk cdi generate".to_owned();
        let remedy = match verdict {
            CheckVerdict::Pass | CheckVerdict::Skipped => Vec::new(),
            _ => vec![Remedy::Run { run }],
        };
        Check {
            family: CheckFamily::Engines,
            name,
            finding: Finding {
                subject: Some(subject.to_owned()).filter(|subject| !subject.is_empty()),
                verdict,
                finding: finding.to_owned(),
                looked_at: Vec::new(),
                remedy,
            },
        }
    }

    fn installed(engine: &str) -> Check {
        check("engine", engine, CheckVerdict::Pass, "is there")
    }

    fn too_old(engine: &str) -> Check {
        check("engine-version", engine, CheckVerdict::Fail, "1 knows no CDI")
    }

    #[test]
    fn the_first_engine_that_gives_devices_is_chosen_unless_one_is_named() {
        let checks = [installed("podman"), installed("docker"), too_old("docker")];
        assert_eq!(choose("nic=x", &checks, None).unwrap(), TryEngine::Podman);
        let checks = [installed("podman"), installed("docker")];
        assert_eq!(choose("nic=x", &checks, None).unwrap(), TryEngine::Docker);
        let named = Some(TryEngine::Podman);
        assert_eq!(choose("nic=x", &checks, named).unwrap(), TryEngine::Podman);
    }

    #[test]
    fn an_engine_that_gives_no_devices_is_refused_with_the_remedy() {
        let refused = |checks: &[Check], named| choose("nic=x", checks, named).unwrap_err();
        assert_eq!(
            refused(&[installed("podman")], Some(TryEngine::Docker)),
            "trying nic=x: docker is not installed; install it, or choose another with --engine"
        );
        let old = [installed("docker"), too_old("docker")];
        assert_eq!(
            refused(&old, Some(TryEngine::Docker)),
            "trying nic=x with docker: 1 knows no CDI; run: onload-ctk cdi generate"
        );
        let error = refused(&old, None);
        assert!(error.contains("no engine on this host can provide devices"), "{error}");
        let error = refused(&[installed("crio")], None);
        assert!(error.contains("no engine on this host can provide devices"), "{error}");
    }

    #[test]
    fn containerd_is_asked_by_annotation_whatever_its_cdi_is() {
        let checks = [installed("containerd"), too_old("containerd")];
        let usable: Vec<TryEngine> = TryEngine::usable_engines(&checks).collect();
        assert_eq!(usable, [TryEngine::Containerd]);
    }

    #[test]
    fn a_class_that_is_not_allowed_by_annotation_is_not_tried_with_containerd() {
        let check = |engine, allow: &[Class]| check_allowed("nic=x", engine, Class::Nic, allow);
        assert_eq!(
            check(TryEngine::Containerd, &[Class::Vfio]).unwrap_err(),
            "trying nic=x with containerd: not tried, because the operator does not allow class nic \
             by annotation; run: onload-ctk runtime configure --runtime containerd --allow nic"
        );
        assert_eq!(check(TryEngine::Containerd, &[Class::Nic]), Ok(()));
        assert_eq!(check(TryEngine::Docker, &[]), Ok(()));
        assert_eq!(check(TryEngine::Podman, &[]), Ok(()));
    }

    #[test]
    fn specifications_that_are_not_written_are_refused_with_the_remedy() {
        let fresh = check("specs-fresh", "", CheckVerdict::Pass, "9 files, up to date");
        assert!(require_written("nic=x", &[fresh]).is_ok());
        let stale = check("specs-fresh", "", CheckVerdict::Fail, "9 files missing");
        assert_eq!(
            require_written("nic=x", &[stale]).unwrap_err().to_string(),
            "trying nic=x: CDI specifications: 9 files missing; run: onload-ctk cdi generate"
        );
    }
}
