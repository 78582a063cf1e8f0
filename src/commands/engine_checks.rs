//! What doctor's checks say of the engines one by one.

use onload_report::doctor::{Check, Verdict};

pub(super) fn of<'c>(checks: &'c [Check], name: &'static str) -> impl Iterator<Item = &'c Check> {
    checks.iter().filter(move |check| check.name == name)
}

/// What keeps containers of an engine from asking for devices.
pub(super) fn obstacle<'c>(checks: &'c [Check], engine: &Check) -> Option<&'c Check> {
    let names = ["engine-version", "engine-cdi", "engine-restarted"];
    let all = names.into_iter().flat_map(|name| of(checks, name));
    let mut own = all.filter(|check| check.finding.subject == engine.finding.subject);
    own.find(|check| check.finding.verdict != Verdict::Pass)
}

/// What a check found, with the first thing to do.
pub(super) fn advised(check: &Check) -> String {
    let finding = &check.finding;
    match finding.remedy.first() {
        Some(remedy) => format!("{}; {remedy}", finding.finding),
        None => finding.finding.clone(),
    }
}
