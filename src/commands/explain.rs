//! `container explain`: shows what the request of a bundle would change, as a diff, and why. It
//! runs the same function as the entry points.

use std::io;
use std::path::Path;

use anyhow::anyhow;
use onload_core::config::{CONFIG_PATH, HookConfig};
use onload_core::request::PREFIX;
use onload_hooks::decide::host_view::{HookSettings, LocalHost};
use onload_hooks::entry::explain;
use onload_hooks::record::lease::Viewer;
use onload_sys::text::quote_for_shell;
use serde_json::json;

use super::{format_diff, open_host};
use crate::cli::{ExplainArgs, GlobalArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::permissions::is_error_kind;
use crate::printer::Printer;

/// The directory of the bundles of docker's running containers.
const DOCKER_TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task/moby";

pub fn run(global: &GlobalArgs, args: &ExplainArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    let standard = Path::new(CONFIG_PATH);
    let local_host = if host.is_running() {
        LocalHost::new()?
    } else {
        LocalHost::for_tree(&global.host_root, standard)?
    };
    let settings = HookSettings {
        config: HookConfig::from(&config),
        file: global.config.clone().unwrap_or_else(|| host.outside_path(standard)),
    };
    let local_host = local_host.for_preview(settings, host.captured_nodes().clone());
    let viewer = Viewer::below(&global.host_root);
    let explanation = explain::explain(&args.bundle, &local_host, &viewer)
        .map_err(|error| with_advice(error.into(), &args.bundle))?;
    let refusal = &explanation.refusal;
    let mut warnings = explanation.warnings.clone();
    if refusal.is_none() {
        warnings.extend(misspelled_annotations(&explanation.before).iter().map(|name| {
            format!("annotation {name:?} has no effect; write {:?}", name.to_lowercase())
        }));
    }
    printer.warnings(&warnings);
    let (before, after) = (&explanation.before, &explanation.after);
    let diff = (refusal.is_none() && before != after)
        .then(|| format_diff(&args.bundle.join("config.json"), Some(before), Some(after)));
    if args.format == ListFormat::Json {
        printer.print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "would_start": refusal.is_none(),
            "refusal": refusal,
            "reasons": explanation.reasons,
            "warnings": warnings,
            "diff": diff,
        }))?;
    } else if let Some(refusal) = refusal {
        printer.error(format_args!("the container would not start: {refusal}"));
    } else {
        for reason in &explanation.reasons {
            printer.note(reason);
        }
        match diff {
            Some(diff) => printer.print(diff)?,
            None => printer.note("nothing would be changed"),
        }
    }
    Ok(if refusal.is_none() { ExitAnswer::Yes } else { ExitAnswer::No })
}

/// Returns the annotations whose prefix differs from ours only in case. Engines keep the case.
fn misspelled_annotations(config: &str) -> Vec<String> {
    let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    let annotations = config.get("annotations").and_then(serde_json::Value::as_object);
    let names = annotations.into_iter().flat_map(|annotations| annotations.keys());
    names
        .filter(|name| !name.starts_with(PREFIX) && name.to_lowercase().starts_with(PREFIX))
        .cloned()
        .collect()
}

fn with_advice(error: anyhow::Error, bundle: &Path) -> anyhow::Error {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    if !is_error_kind(error.as_ref(), &kinds) {
        return error;
    }
    let advice = "use the directory that contains the container's config.json";
    // A word without a slash may be the name of a container.
    match bundle.to_str().filter(|word| !word.contains('/') && !bundle.exists()) {
        None => anyhow!("{error:#}; {advice}"),
        Some(name) => {
            let name = quote_for_shell(name);
            anyhow!(
                "{error:#}; {advice}: of a running container of docker \
                 \"{DOCKER_TASKS}/$(docker inspect -f '{{{{.Id}}}}' {name})\", of podman \
                 \"$(dirname $(podman inspect -f '{{{{.OCIConfigPath}}}}' {name}))\""
            )
        }
    }
}
