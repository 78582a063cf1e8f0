//! Whether what decides could be read: the configuration, and what discovery looks at.

use onload_core::config::CONFIG_PATH;

use super::check::{Finding, Remedy};
use super::examined::{Examined, Findings};

pub(super) fn configuration(examined: &Examined<'_>) -> Findings {
    let problems = examined.config_problems.iter().map(|problem| {
        let text = format!("{problem:#}; correct that line: until then commands that change something refuse the file");
        let edit = Remedy::run(format!("${{EDITOR:-vi}} {CONFIG_PATH}"));
        Finding::fail(text, edit).at(CONFIG_PATH)
    });
    Ok(problems.collect())
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
