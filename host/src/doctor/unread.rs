//! Whether discovery could read what decides.

use super::check::{Finding, Remedy};
use super::examined::{Examined, Findings};

pub(super) fn discovery(examined: &Examined<'_>) -> Findings {
    let unread = &examined.inventory.unread;
    let finding = match unread.first() {
        None => Finding::pass("all that decides what is offered could be read"),
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
