//! `try`: a container of an image of ours that uses a device, and whether that works. Nothing of it is left.

mod asked;
mod client;
mod engine;
mod image;
mod nic;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use onload_core::class::Class;
use onload_host::devices::inventory::Inventory;
use onload_host::host::Host;
use onload_report::doctor::{Check, Verdict};
use onload_sys::text::shell_word;
use rustix::process::geteuid;

use super::doctor::examined;
use super::engine_checks::of;
use super::watched_host;
use crate::cli::{Global, Try};
use crate::exit::Answer;
use crate::layout::{in_a_line, paragraph};
use crate::printer::{ERROR, GOOD, Printer};
use asked::Asked;
use client::{Container, Interrupt, run as run_client};
pub(crate) use engine::Engine;
use engine::Names;

/// What a probe prints when it has used its device.
pub(super) const READY: &str = "ready";
const STARTING: Duration = Duration::from_secs(60);
const ENDING: Duration = Duration::from_secs(10);

/// Whether it works, and what was seen or why not.
enum Outcome {
    Works(String),
    Fails(String),
}

struct Trial<'t> {
    host: &'t Host,
    inventory: &'t Inventory,
    engine: Engine,
    asked: Asked,
    names: Names,
    stop: Interrupt,
}

pub fn run(global: &Global, args: &Try, printer: &mut Printer) -> anyhow::Result<Answer> {
    let asked = Asked::read(&args.device)?;
    let short = asked.short();
    if !watched_host(global)?.is_running() {
        bail!(
            "trying {short}: containers are started on the running host alone; leave out --host-root"
        );
    }
    if !geteuid().is_root() {
        let device = shell_word(&short);
        bail!("trying {short}: run it as root: sudo onload-ctk try {device}");
    }
    let (inventory, checks) = examined(global, printer)?;
    asked.require_offer(&inventory)?;
    require_written(&short, &checks)?;
    let engine = choose(&short, &checks, args.engine)?;
    let host = watched_host(global)?;
    let trial = Trial {
        host: &host,
        inventory: &inventory,
        engine,
        asked,
        names: Names::of_process(std::process::id()),
        stop: Interrupt::watch()?,
    };
    printer.progress(format_args!("trying {short} with {}", engine.name()));
    let outcome = trial.outcome(printer);
    let left = trial.forget();
    printer.end_progress();
    if let Err(error) = left {
        printer.warning(format_args!("{error:#}"));
    }
    let outcome = outcome.with_context(|| format!("trying {short} with {}", engine.name()))?;
    print(&short, engine, &outcome, printer)
}

fn print(
    short: &str,
    engine: Engine,
    outcome: &Outcome,
    printer: &mut Printer,
) -> anyhow::Result<Answer> {
    let is_nic = short.starts_with("nic=");
    let (style, word, text, answer) = match outcome {
        Outcome::Works(text) if is_nic => (GOOD, "accelerated", text, Answer::Yes),
        Outcome::Works(text) => (GOOD, "works", text, Answer::Yes),
        Outcome::Fails(text) if is_nic => (ERROR, "not accelerated", text, Answer::No),
        Outcome::Fails(text) => (ERROR, "does not work", text, Answer::No),
    };
    let first = format!(
        "{short} in a container of {}: {style}{word}{style:#}: ",
        engine.name()
    );
    printer.print(paragraph(
        &first,
        "    ",
        &in_a_line(text),
        printer.columns(),
    ))?;
    Ok(answer)
}

fn require_written(short: &str, checks: &[Check]) -> anyhow::Result<()> {
    let stale = of(checks, "specs-fresh").find(|check| check.finding.verdict != Verdict::Pass);
    let Some(stale) = stale else {
        return Ok(());
    };
    bail!("trying {short}: the specifications are {}", advised(stale));
}

/// What a check found, with the first thing to do.
fn advised(check: &Check) -> String {
    let finding = &check.finding;
    match finding.remedy.first() {
        Some(remedy) => format!("{}; {remedy}", finding.finding),
        None => finding.finding.clone(),
    }
}

fn choose(short: &str, checks: &[Check], named: Option<Engine>) -> anyhow::Result<Engine> {
    let Some(engine) = named.or_else(|| Engine::usable(checks).next()) else {
        let engines = of(checks, "engine").map(advised);
        let engines: Vec<String> = engines.collect();
        bail!(
            "trying {short}: no engine here can give devices ({}); \"onload-ctk doctor\" says what to do",
            engines.join("; ")
        );
    };
    let name = engine.name();
    match engine.check(checks) {
        None => bail!(
            "trying {short}: {name} is not installed; install it, or name another by --engine"
        ),
        Some((_, Some(obstacle))) => bail!("trying {short} with {name}: {}", advised(obstacle)),
        Some((_, None)) => {}
    }
    if let Some(path) = engine.lacks() {
        bail!("trying {short} with {name}: {path} is missing; install the package onload-ctk");
    }
    Ok(engine)
}

impl Trial<'_> {
    fn outcome(&self, printer: &mut Printer) -> anyhow::Result<Outcome> {
        if self.asked.class == Class::Nic {
            return self.nic(printer);
        }
        let files = image::of_this_program()?;
        let class = self.asked.class.as_str();
        let program = [image::OURS, "probe", class, &self.asked.name].map(str::to_owned);
        let container = self.start(&files, &program)?;
        let said = container.says_until(READY, STARTING, &self.stop);
        container.end(ENDING);
        self.stop.refuse()?;
        Ok(match said {
            Ok(lines) => Outcome::Works(lines.join("; ")),
            Err(error) => {
                // As the probe and the engines begin such a line.
                let text = format!("{error:#}");
                let text = ["error: ", "Error: "]
                    .iter()
                    .find_map(|word| text.strip_prefix(word))
                    .unwrap_or(&text);
                Outcome::Fails(text.to_owned())
            }
        })
    }

    fn start(
        &self,
        files: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>,
        program: &[String],
    ) -> anyhow::Result<Container> {
        let archive = image::archive(&self.names.image, files)?;
        run_client(&self.engine.load(), archive, &self.stop)?;
        Container::start(&self.engine.start(&self.names, &self.asked, program))
    }

    /// Takes away the container and its image, and looks whether they and an interface are as before.
    fn forget(&self) -> anyhow::Result<()> {
        // It has to be done, whatever the user wants.
        let go_on = Interrupt::default();
        for line in self.engine.forget(&self.names) {
            // Most of it is gone already.
            let _ = run_client(&line, Vec::new(), &go_on);
        }
        for (line, forget) in self
            .engine
            .left(&self.names)
            .iter()
            .zip(["container", "image"])
        {
            let left = run_client(line, Vec::new(), &go_on)
                .with_context(|| format!("looking whether the {forget} of the trial is gone"))?;
            if !left.trim().is_empty() {
                let names = [&self.names.container, &self.names.image];
                bail!(
                    "removing the {forget} of the trial: it is still there ({} and {}); remove it with {}",
                    names[0],
                    names[1],
                    self.engine.name()
                );
            }
        }
        self.require_interface()
    }

    fn require_interface(&self) -> anyhow::Result<()> {
        if self.asked.class != Class::Netdev {
            return Ok(());
        }
        let path = Path::new("/sys/class/net").join(&self.asked.name);
        let deadline = Instant::now() + ENDING;
        while !path.exists() {
            if Instant::now() > deadline {
                bail!(
                    "taking {} back: it has not come back from the container; run: onload-ctk lease restore",
                    self.asked.name
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use onload_report::doctor::{Family, Finding, Remedy};

    use super::*;

    fn check(name: &'static str, subject: &str, verdict: Verdict, finding: &str) -> Check {
        let run = "onload-ctk cdi generate".to_owned();
        let remedy = match verdict {
            Verdict::Pass => Vec::new(),
            _ => vec![Remedy::Run { run }],
        };
        Check {
            family: Family::Engines,
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
        check("engine", engine, Verdict::Pass, "is there")
    }

    fn too_old(engine: &str) -> Check {
        check("engine-version", engine, Verdict::Fail, "1 knows no CDI")
    }

    #[test]
    fn the_first_engine_that_gives_devices_is_chosen_unless_one_is_named() {
        let checks = [installed("podman"), installed("docker"), too_old("docker")];
        assert_eq!(choose("nic=x", &checks, None).unwrap(), Engine::Podman);
        let checks = [installed("podman"), installed("docker")];
        assert_eq!(choose("nic=x", &checks, None).unwrap(), Engine::Docker);
        let named = Some(Engine::Podman);
        assert_eq!(choose("nic=x", &checks, named).unwrap(), Engine::Podman);
    }

    #[test]
    fn an_engine_that_gives_no_devices_is_refused_with_the_remedy() {
        let refused = |checks: &[Check], named| choose("nic=x", checks, named).unwrap_err();
        assert_eq!(
            refused(&[installed("podman")], Some(Engine::Docker)).to_string(),
            "trying nic=x: docker is not installed; install it, or name another by --engine"
        );
        let old = [installed("docker"), too_old("docker")];
        assert_eq!(
            refused(&old, Some(Engine::Docker)).to_string(),
            "trying nic=x with docker: 1 knows no CDI; run: onload-ctk cdi generate"
        );
        let error = refused(&old, None).to_string();
        assert!(error.contains("no engine here can give devices"), "{error}");
        let error = refused(&[installed("crio")], None).to_string();
        assert!(error.contains("no engine here can give devices"), "{error}");
    }

    #[test]
    fn containerd_is_asked_by_annotation_whatever_its_cdi_is() {
        let checks = [installed("containerd"), too_old("containerd")];
        let usable: Vec<Engine> = Engine::usable(&checks).collect();
        assert_eq!(usable, [Engine::Containerd]);
    }

    #[test]
    fn specifications_that_are_not_written_are_refused_with_the_remedy() {
        let fresh = check(
            "specs-fresh",
            "",
            Verdict::Pass,
            "the files describe this host",
        );
        assert!(require_written("nic=x", &[fresh]).is_ok());
        let stale = check("specs-fresh", "", Verdict::Fail, "not written yet: a.json");
        assert_eq!(
            require_written("nic=x", &[stale]).unwrap_err().to_string(),
            "trying nic=x: the specifications are not written yet: a.json; run: onload-ctk cdi generate"
        );
    }
}
