//! What doctor's checks say of the engines one by one.

use onload_report::doctor::{Check, Verdict};

pub(super) fn of<'c>(checks: &'c [Check], name: &'static str) -> impl Iterator<Item = &'c Check> {
    checks.iter().filter(move |check| check.name == name)
}

/// What keeps containers of an engine from asking for devices.
pub(super) fn obstacle<'c>(checks: &'c [Check], engine: &Check) -> Option<&'c Check> {
    let versions = of(checks, "engine-version").chain(of(checks, "engine-cdi"));
    let mut own = versions.filter(|check| check.finding.subject == engine.finding.subject);
    own.find(|check| check.finding.verdict != Verdict::Pass)
}
