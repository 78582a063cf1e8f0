//! Whether what decides could be read: the configuration, and what discovery looks at.

use onload_host::generate::{InstalledFiles, bundle_exclusions, generate};

use super::check::{Finding, Remedy};
use super::context::{CheckContext, Findings, HostResult};

/// The beginnings of discovery's warnings that an edit of the configuration answers.
const CONFIG_WARNINGS: [&str; 5] = ["[discover]", "[host]", "[netdev.", "pool ", "pools "];

pub(super) fn check_configuration(context: &CheckContext<'_>) -> Findings {
    let edit = || Remedy::Edit { edit: context.config_file.to_owned() };
    let problems = context.config_problems.iter().map(|problem| {
        let text = format!(
            "{problem:#}; correct that line: until then commands that need the whole file, such as \
             onload-ctk cdi generate, fail"
        );
        Finding::fail(text, edit()).with_path(context.config_file)
    });
    let inventory = context.inventory;
    let warnings = inventory
        .warnings
        .iter()
        .filter(|text| CONFIG_WARNINGS.iter().any(|start| text.starts_with(start)))
        .cloned()
        .chain(describe_missing_bundles(context)?)
        // The missing ones may be among the paths that could not be read.
        .filter(|_| inventory.unread.is_empty())
        .map(|text| Finding::warn(text, edit()).with_path(context.config_file));
    let mut findings: Vec<Finding> = problems.chain(warnings).collect();
    if findings.is_empty() {
        let pass = Finding::pass("no mistakes in the configuration file");
        findings.push(pass.with_path(context.config_file));
    }
    Ok(findings)
}

fn describe_missing_bundles(context: &CheckContext<'_>) -> HostResult<Vec<String>> {
    if context.config.bundles.is_empty() {
        return Ok(Vec::new());
    }
    let inventory = context.inventory;
    let installed = InstalledFiles::read(context.host, context.config)?;
    let specs = generate(inventory, &context.pools.offered, context.config, installed);
    Ok(bundle_exclusions(&specs.unwrap_or_default(), context.config, &inventory.drain)
        .into_iter()
        .map(|bundle| format!("bundle {} is not offered: {}", bundle.name, bundle.reason))
        .collect())
}

pub(super) fn check_discovery(context: &CheckContext<'_>) -> Findings {
    let unread = &context.inventory.unread;
    let finding = match unread.first() {
        None => Finding::pass("all required files could be read"),
        Some(first) => {
            let more = match unread.len() {
                1 => String::new(),
                count => format!(", and {} more", count - 1),
            };
            let text = format!("the list of devices may be incomplete: {}{more}", first.reason);
            Finding::unknown(text, Remedy::for_unread()).with_path(&first.path)
        }
    };
    Ok(vec![finding.with_path("/sys")])
}
