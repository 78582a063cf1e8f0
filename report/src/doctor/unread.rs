//! Whether what decides could be read: the configuration, and what discovery looks at.

use onload_core::config::CONFIG_PATH;

use super::check::{Finding, Remedy};
use super::examined::{Examined, Findings};

pub(super) fn configuration(examined: &Examined<'_>) -> Findings {
    let problems = examined.config_problems.iter().map(|problem| {
        let text = format!("{problem:#}; correct that line: until then onload-ctk cdi generate, and others that use the file whole, refuse it");
        let edit = Remedy::run(format!("${{EDITOR:-vi}} {CONFIG_PATH}"));
        Finding::fail(text, edit).at(CONFIG_PATH)
    });
    Ok(problems.chain(absent(examined)).collect())
}

/// A name that is not there may be a misspelt one, whose interface is then offered.
fn absent<'e>(examined: &'e Examined<'_>) -> impl Iterator<Item = Finding> + 'e {
    let inventory = examined.inventory;
    let ignored = examined.config.discover.ignored_interfaces.iter();
    let is_there = |name: &String| inventory.interfaces.iter().any(|one| one.name == *name);
    // What could not be read may have it.
    let absent = ignored.filter(move |name| inventory.unread.is_empty() && !is_there(name));
    absent.map(|name| {
        let text = format!("[discover] ignored-interfaces names {name:?}, and this host has no interface of that name: correct it, or take it out");
        let edit = Remedy::run(format!("${{EDITOR:-vi}} {CONFIG_PATH}"));
        Finding::warn(text, edit).at(CONFIG_PATH)
    })
}

pub(super) fn discovery(examined: &Examined<'_>) -> Findings {
    let unread = &examined.inventory.unread;
    let finding = match unread.first() {
        None => Finding::pass("everything needed was readable"),
        Some(first) => {
            let more = match unread.len() {
                1 => String::new(),
                count => format!(", and {} more", count - 1),
            };
            let text = format!("what is offered is not fully known: {}{more}", first.reason);
            Finding::unknown(text, Remedy::run("sudo onload-ctk doctor")).at(&first.path)
        }
    };
    Ok(vec![finding.at("/sys")])
}
