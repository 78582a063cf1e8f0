//! containerd's default runtime, without which its plugin for Kubernetes does not load.

use onload_engines::kind::EngineKind;
use onload_engines::settings::{CONTAINERD_2, EngineSettings, RuntimeNames};
use onload_engines::version::EngineVersion;

use super::installed::{InstalledEngine, check_each};
use crate::doctor::check::{Finding, Remedy};
use crate::doctor::context::{CheckContext, Findings};
use crate::doctor::distribution::Distribution;

/// containerd's built-in runtime, which is also its default unless a file names another.
const BUILT_IN: &str = "runc";

/// The first containerd that merges lists of runtimes.
const MERGING: EngineVersion = EngineVersion(2, 0, 0);

pub(crate) fn default_runtime(context: &CheckContext<'_>, engines: &[InstalledEngine]) -> Findings {
    check_each(engines, |engine, settings| {
        if engine.kind != EngineKind::Containerd || settings.is_off {
            return Ok(None);
        }
        let (name, names) = default(engine, settings);
        let is_registered = names.contains(&name);
        let finding = match settings.runtimes.last() {
            Some(runtimes) if !is_registered => {
                let text = format!(
                    "the default runtime {name:?} is not registered: its plugin for Kubernetes does not load"
                );
                let restart = Distribution::detect(context.host)?.restart_remedy("containerd");
                Finding::fail(text, register(runtimes, name, &names)).with_remedy(restart)
            }
            _ => Finding::pass(format!("the default runtime {name:?} is registered")),
        };
        Ok(Some(finding.with_path(&engine.program)))
    })
}

/// Returns the default runtime and the registered names. containerd 2 merges files with its defaults; containerd 1 uses
/// the plugin's section of the last file that has one, with its lists replacing earlier ones.
fn default<'s>(engine: &InstalledEngine, settings: &'s EngineSettings) -> (&'s str, Vec<&'s str>) {
    let is_2 = engine.version.is_some_and(|version| version >= MERGING);
    let is_merged = is_2 || settings.format.is_some_and(|format| format >= CONTAINERD_2);
    let runtimes = if is_merged {
        settings.runtimes.as_slice()
    } else {
        settings.runtimes.last().map_or(&[][..], std::slice::from_ref)
    };
    let mut names: Vec<&str> = runtimes
        .iter()
        .filter_map(|runtime| runtime.names.as_ref())
        .flatten()
        .map(String::as_str)
        .collect();
    if is_merged || runtimes.iter().all(|runtime| runtime.names.is_none()) {
        names.push(BUILT_IN);
    }
    let default = runtimes.iter().rev().find_map(|runtime| runtime.default.as_deref());
    (default.unwrap_or(BUILT_IN), names)
}

fn register(runtimes: &RuntimeNames, name: &str, names: &[&str]) -> Remedy {
    let section = format!("plugins.\"{}\".containerd", runtimes.plugin);
    if name == BUILT_IN {
        return Remedy::write_under(
            &runtimes.file,
            format!("[{section}.runtimes.{BUILT_IN}]"),
            "runtime_type = \"io.containerd.runc.v2\"",
        );
    }
    let other = names.iter().find(|other| **other == BUILT_IN).or(names.first());
    Remedy::write_under(
        &runtimes.file,
        format!("[{section}]"),
        format!("default_runtime_name = \"{}\"", other.unwrap_or(&BUILT_IN)),
    )
}
