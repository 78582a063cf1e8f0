//! `cdi generate`: specifications of what the host has, into a directory, a file or stdout.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use onload_cdi::{CdiVersion, Spec, minimum_version};
use onload_core::class::Class;
use onload_core::config;
use onload_host::devices::exclude_without_hook;
use onload_host::devices::inventory::Inventory;
use onload_host::drift::render;
use onload_host::generate::{GeneratedSpecs, InstalledFiles, warnings};
use onload_host::host::Host;
use onload_host::spec_name::{SpecName, SpecPart};
use onload_host::specdir::{
    DesiredSpecs, FileAction, FileStep, Manifest, SpecDir, SpecFormat, SpecPlan, plan,
};
use onload_sys::fs::{atomic, regular};
use onload_sys::text::{ShortList, join_first};
use serde_json::json;

use super::{
    OUTPUT_DIR, discover_host, generate_specs, make_directory, open_host, print_diff, require_nic,
    unchanged_message, unread_reasons,
};
use crate::cli::{GenerateArgs, GlobalArgs, ListFormat};
use crate::exit::{CommandResult, ExitAnswer};
use crate::printer::Printer;

const FIELDS: usize = 3;
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

pub fn run(global: &GlobalArgs, args: &GenerateArgs, printer: &mut Printer) -> CommandResult {
    let (host, config) = open_host(global)?;
    let newest = args
        .max_cdi_version
        .as_deref()
        .map(str::parse::<CdiVersion>)
        .transpose()
        .context("reading --max-cdi-version")?;
    let kinds = if args.kind.is_empty() {
        config.cdi.kinds.clone()
    } else {
        config::parse_kinds(&args.kind).context("reading --kind")?
    };
    let kinds = kinds.as_slice();
    let is_preview = args.dry_run || args.diff;
    let directory = match args.output {
        Some(_) => None,
        None => match find_directory(&host, args.output_dir.as_deref()) {
            // To make it says better what is in the way.
            Err(_) if !is_preview => None,
            result => result?,
        },
    };
    // Locked before the host is read, so that this run does not add devices that another command
    // drains at the same time. A directory that does not exist offers nothing.
    let _lock = directory.as_ref().filter(|_| !is_preview).map(SpecDir::lock).transpose()?;
    let (mut inventory, pools) = discover_host(&host, &config, printer);
    require_nic(&inventory, &config)?;
    let installed = InstalledFiles::read(&host, &config)?;
    if !installed.hook {
        printer.warnings(exclude_without_hook(&mut inventory, &config.cdi.hook_path));
    }
    let (specs, pools) =
        generate_specs(&inventory, pools, kinds, newest, &config, installed, printer)?;
    printer.warnings(warnings(&specs, &pools, &config.cdi, installed));
    if let Some(newest) = newest {
        refuse_newer(&specs, newest)?;
    }
    if args.format == SpecFormat::Yaml {
        printer.warning("onload-hook and onload-container-runtime read JSON only: YAML specifications work by --device, not by annotation");
    }
    let format = args.format;
    match args.output.as_deref() {
        Some(path) if path == Path::new("-") => return to_stdout(&specs, format, printer),
        Some(path) => return to_file(path, &specs, args, printer),
        None => {}
    }
    let touched = if args.kind.is_empty() { &Class::ALL } else { kinds };
    let files = specs.iter();
    let desired = DesiredSpecs {
        scope: touched.to_vec(),
        files: files.map(|(name, spec)| (*name, render(spec, format).into_bytes())).collect(),
        format,
        undecided: inventory.undecided_classes(),
        manifest: Manifest {
            format,
            max_cdi_version: newest.map(|version| version.to_string()),
            kinds: kinds.to_vec(),
            files: BTreeMap::new(),
        },
        force: args.force,
    };
    to_directory(&host, args, directory.as_ref(), desired, &inventory, printer)
}

fn refuse_newer(specs: &GeneratedSpecs, newest: CdiVersion) -> Result<()> {
    for (name, spec) in specs {
        let needed = minimum_version(spec);
        if needed.version > newest {
            let kind = name.class.cdi_kind();
            // A few fields say what is in the way; a host has thousands alike.
            let fields = join_first(&needed.fields, FIELDS);
            bail!(
                "writing {kind} for readers of CDI {newest}: it needs {}, because of {fields}; \
                 exclude the kind with --kind, or raise --max-cdi-version",
                needed.version
            );
        }
    }
    Ok(())
}

fn to_stdout(specs: &GeneratedSpecs, format: SpecFormat, printer: &mut Printer) -> CommandResult {
    for (index, spec) in specs.values().enumerate() {
        if format == SpecFormat::Yaml && index > 0 {
            printer.print("---\n")?;
        }
        printer.print(render(spec, format))?;
    }
    if specs.is_empty() {
        printer.note("nothing to offer: \"onload-ctk discover --explain\" says why");
    }
    Ok(ExitAnswer::Yes)
}

fn to_file(
    path: &Path,
    specs: &GeneratedSpecs,
    args: &GenerateArgs,
    printer: &mut Printer,
) -> CommandResult {
    if args.kind.len() != 1 || args.kind.iter().any(|kind| kind == "all") {
        bail!("writing {}: one file contains one kind; choose it with --kind", path.display());
    }
    let find_part = |part| specs.iter().find(|(name, _)| name.part == part);
    let Some((SpecName { class, .. }, spec)) = find_part(SpecPart::Devices) else {
        bail!(
            "writing {}: this host offers no {}; \"onload-ctk discover --explain\" says why",
            path.display(),
            args.kind.concat()
        );
    };
    if let Some((_, pools)) = find_part(SpecPart::Pools) {
        printer.warning(pools_left_out_warning(path, *class, pools));
    }
    let content = render(spec, args.format);
    let old = path
        .exists()
        .then(|| regular::read(path, MAX_FILE_BYTES))
        .transpose()
        .with_context(|| format!("reading {}", path.display()))?;
    let is_same = old.as_deref() == Some(content.as_bytes());
    if args.dry_run && !args.diff {
        let word = if is_same { "keep" } else { "write" };
        print_action(word, path, printer)?;
    }
    if is_same {
        printer.note(unchanged_message(path));
        return Ok(ExitAnswer::Yes);
    }
    if args.diff {
        let old = old.as_deref().map(String::from_utf8_lossy);
        print_diff(path, old.as_deref(), Some(&content), printer)?;
        return Ok(ExitAnswer::Yes);
    }
    if args.dry_run {
        return Ok(ExitAnswer::Yes);
    }
    write_file(path, content.as_bytes())?;
    printer.note(format_args!("wrote {} {}", class.cdi_kind(), path.display()));
    Ok(ExitAnswer::Yes)
}

/// A file has a single specification, and old engines reject the whole file if it contains pools.
fn pools_left_out_warning(path: &Path, class: Class, pools: &Spec) -> String {
    let names: Vec<String> =
        pools.devices.iter().map(|pool| format!("{class}={}", pool.name)).collect();
    format!(
        "pools are not in {} ({}): they need a separate file, which --output-dir writes",
        path.display(),
        ShortList(&names)
    )
}

pub(super) fn write_file(path: &Path, content: &[u8]) -> Result<()> {
    let parent =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let context = || format!("writing {}", path.display());
    regular::check_replaceable(path).with_context(context)?;
    let Some(name) = path.file_name() else {
        bail!("{}: this is not a file name", context());
    };
    let Some(directory) = SpecDir::open(parent)? else {
        bail!("{}: directory {} not found; create it first", context(), parent.display());
    };
    let result = atomic::write_atomic(directory.descriptor(), name, content, 0o644);
    result.map_err(|error| error.source).with_context(context)
}

fn to_directory(
    host: &Host,
    args: &GenerateArgs,
    existing: Option<&SpecDir>,
    desired: DesiredSpecs,
    inventory: &Inventory,
    printer: &mut Printer,
) -> CommandResult {
    let is_empty = desired.files.is_empty();
    let is_preview = args.dry_run || args.diff;
    let created = match existing {
        None if !is_preview => make_and_open(host, args.output_dir.as_deref())?,
        _ => None,
    };
    let _lock = created.as_ref().map(SpecDir::lock).transpose()?;
    let directory = existing.or(created.as_ref());
    let path = directory_path(host, args.output_dir.as_deref());
    let is_named = !args.kind.is_empty();
    let plan = make_plan(directory, &path, desired, is_named, printer)?;
    if args.diff {
        for step in &plan.steps {
            print_step(step, &path, printer)?;
        }
    } else if args.dry_run && args.report == ListFormat::Table {
        print_steps(&plan, &path, printer)?;
    } else if !args.dry_run
        && let Some(directory) = directory
    {
        directory.apply(&plan)?;
        report(&plan, &path, printer);
    }
    if args.report == ListFormat::Json {
        print_json(&plan, &path, args.dry_run, printer)?;
    }
    print_unchanged(&plan, is_empty, &path, printer);
    if is_preview {
        return Ok(ExitAnswer::Yes);
    }
    refuse_undecided(&plan, &path, inventory)?;
    Ok(report_unwritten(&plan, &path, printer))
}

type ExistingFiles = BTreeMap<String, Option<Vec<u8>>>;

/// Reads the files in a directory and its manifest, or why the manifest is not used.
pub(super) fn read_existing(
    directory: Option<&SpecDir>,
    path: &Path,
    printer: &mut Printer,
) -> Result<(ExistingFiles, Result<Option<Manifest>, String>)> {
    let (existing, manifest) = match directory {
        Some(directory) => (directory.read_files()?, directory.read_manifest()?),
        None => (BTreeMap::new(), Ok(None)),
    };
    printer.log_lookup(path, directory.is_some());
    for name in existing.keys() {
        printer.log_read(&path.join(name));
    }
    Ok((existing, manifest))
}

/// Kinds on the command line are added to those that are already written.
fn make_plan(
    directory: Option<&SpecDir>,
    path: &Path,
    mut desired: DesiredSpecs,
    is_named: bool,
    printer: &mut Printer,
) -> Result<SpecPlan> {
    let (existing, manifest) = read_existing(directory, path, printer)?;
    let manifest = manifest.unwrap_or_else(|warning| {
        printer.warning(warning);
        None
    });
    if is_named {
        let kinds = &mut desired.manifest.kinds;
        kinds.extend(manifest.iter().flat_map(|manifest| &manifest.kinds));
        kinds.sort();
        kinds.dedup();
    }
    Ok(plan(&desired, &existing, manifest.as_ref()))
}

pub(super) fn directory_path(host: &Host, output_dir: Option<&Path>) -> std::path::PathBuf {
    output_dir.map_or_else(|| host.outside_path(Path::new(OUTPUT_DIR)), Path::to_owned)
}

fn make_and_open(host: &Host, output_dir: Option<&Path>) -> Result<Option<SpecDir>> {
    let Some(output_dir) = output_dir else {
        let directory = host.create_directory(Path::new(OUTPUT_DIR))?;
        return Ok(Some(SpecDir::new(directory_path(host, None), directory)));
    };
    make_directory(output_dir)
        .with_context(|| format!("making the directory {}", output_dir.display()))?;
    SpecDir::open(output_dir)
}

pub(super) fn find_directory(host: &Host, output_dir: Option<&Path>) -> Result<Option<SpecDir>> {
    let Some(output_dir) = output_dir else {
        let directory = host.directory(Path::new(OUTPUT_DIR))?;
        return Ok(directory.map(|open| SpecDir::new(directory_path(host, None), open)));
    };
    SpecDir::open(output_dir)
}

fn print_steps(plan: &SpecPlan, directory: &Path, printer: &mut Printer) -> Result<()> {
    for step in &plan.steps {
        let word = match step.action {
            FileAction::Undecided => "leave",
            _ => action_name(&step.action),
        };
        print_action(word, &directory.join(&step.name), printer)?;
    }
    Ok(())
}

fn print_action(word: &str, path: &Path, printer: &mut Printer) -> io::Result<()> {
    printer.print(format_args!("{word:6} {}\n", path.display()))
}

fn action_name(action: &FileAction) -> &'static str {
    match action {
        FileAction::Write(_) => "write",
        FileAction::Remove => "remove",
        FileAction::Keep => "keep",
        FileAction::Leave => "leave",
        FileAction::Undecided => "undecided",
    }
}

fn print_json(
    plan: &SpecPlan,
    directory: &Path,
    is_dry_run: bool,
    printer: &mut Printer,
) -> Result<()> {
    let files = plan.steps.iter().map(|step| {
        let path = directory.join(&step.name).display().to_string();
        json!({"file": path, "action": action_name(&step.action)})
    });
    printer.print_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "directory": directory.display().to_string(),
        "dry_run": is_dry_run,
        "files": files.collect::<Vec<_>>(),
    }))?;
    Ok(())
}

/// Nothing where they are alike.
fn print_step(step: &FileStep, directory: &Path, printer: &mut Printer) -> io::Result<()> {
    let path = directory.join(&step.name);
    let new = match &step.action {
        FileAction::Write(content) => Some(String::from_utf8_lossy(content)),
        FileAction::Remove => None,
        FileAction::Keep => return Ok(()),
        FileAction::Leave => {
            let path = path.display();
            printer.warning(format_args!("{path} was not written by onload-ctk and would be kept"));
            return Ok(());
        }
        FileAction::Undecided => {
            let path = path.display();
            printer.warning(format_args!(
                "{path} would be kept: not all of its devices could be read"
            ));
            return Ok(());
        }
    };
    let old = step.old.as_deref().map(String::from_utf8_lossy);
    print_diff(&path, old.as_deref(), new.as_deref(), printer)
}

pub(super) fn report(plan: &SpecPlan, directory: &Path, printer: &mut Printer) {
    for step in &plan.steps {
        let path = directory.join(&step.name);
        match step.action {
            FileAction::Write(_) => printer.note(format_args!("wrote {}", path.display())),
            FileAction::Remove => printer.note(format_args!("removed {}", path.display())),
            FileAction::Keep => printer.detail(format_args!("unchanged {}", path.display())),
            FileAction::Leave | FileAction::Undecided => {}
        }
    }
}

fn print_unchanged(plan: &SpecPlan, is_empty: bool, directory: &Path, printer: &mut Printer) {
    if is_empty {
        printer.note("nothing to offer: \"onload-ctk discover --explain\" says why");
    } else if !plan.changes_files()
        && plan.left_files().chain(plan.undecided_files()).next().is_none()
    {
        printer.note(unchanged_message(directory));
    }
}

fn refuse_undecided(plan: &SpecPlan, directory: &Path, inventory: &Inventory) -> Result<()> {
    let undecided: Vec<&str> = plan.undecided_files().collect();
    if undecided.is_empty() {
        return Ok(());
    }
    bail!(
        "in {}: kept {}, because not all of its devices could be read: {}; --force replaces it",
        directory.display(),
        undecided.join(", "),
        unread_reasons(inventory, |_| true)
    );
}

/// Other files are written even if one is kept.
fn report_unwritten(plan: &SpecPlan, directory: &Path, printer: &mut Printer) -> ExitAnswer {
    let left_files: Vec<&str> = plan.left_files().collect();
    if left_files.is_empty() {
        return ExitAnswer::Yes;
    }
    printer.warning(format_args!(
        "in {}: kept {}, which another program or user wrote or changed; --diff --force shows the \
         difference, --force replaces it",
        directory.display(),
        left_files.join(", ")
    ));
    ExitAnswer::No
}
