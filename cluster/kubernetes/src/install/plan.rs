//! Plans the changes for installing or uninstalling a version, without changing the host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use onload_core::config::CONFIG_PATH;

use super::directory::{HOOK_MODE, InstalledContent};
use super::hook_users::HookUsers;
use super::record::{InstallRecord, InstalledHook};
use crate::spec_writer::HOOK_NAME;

/// Time that a version must have been current before an older one may be removed: a container with the older one may
/// have been created and not yet started, which no file shows.
pub(super) const GRACE: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, Default)]
pub(super) struct InstalledState {
    /// The directory of the hooks.
    pub directory: PathBuf,
    pub content: InstalledContent,
    /// The sha256 of the host's configuration, in hexadecimal, if it has one.
    pub config: Option<String>,
    /// The users of each version.
    pub users: HookUsers,
    /// Seconds after 1970.
    pub now: u64,
}

/// The files to install, each with its sha256 in hexadecimal.
#[derive(Clone, Debug, Default)]
pub(super) struct InstallInput {
    pub version: &'static str,
    pub hook: Vec<u8>,
    pub hook_sha256: String,
    /// The configuration for a host that has none.
    pub config: Option<ConfigInput>,
    pub force: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ConfigInput {
    pub text: String,
    pub sha256: String,
    pub sets_something: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InstallStep {
    PutHook,
    PutConfig,
    RemoveHook(String),
    RemoveConfig,
}

/// The steps that were done and those that were not, as lines for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstallReport {
    pub done: Vec<String>,
    /// Files of others, which are kept.
    pub kept: Vec<String>,
    /// Our files that are kept because something names them.
    pub in_use: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InstallPlan {
    pub steps: Vec<InstallStep>,
    /// The files that are kept.
    pub report: InstallReport,
    /// The record before the first change: it lists both the old and the new content.
    pub before: InstallRecord,
    /// The record after the last change.
    pub after: InstallRecord,
}

/// Plans an installation. `None` if another file has the hook's name and must not be replaced.
pub(super) fn install(state: &InstalledState, input: &InstallInput) -> Option<InstallPlan> {
    let record = &state.content.record;
    let mut plan =
        InstallPlan { before: record.clone(), after: record.clone(), ..InstallPlan::default() };
    plan_hook(state, input, &mut plan)?;
    plan_config(state, input, &mut plan);
    let installed = plan.after.hooks.get(input.version);
    let since = installed.map_or(state.now, |installed| installed.since);
    if state.now.saturating_sub(since) >= GRACE.as_secs() {
        let other_versions = record.hooks.keys().filter(|version| *version != input.version);
        for version in other_versions {
            remove_hook(state, version, &mut plan);
        }
    }
    Some(plan)
}

fn plan_hook(state: &InstalledState, input: &InstallInput, plan: &mut InstallPlan) -> Option<()> {
    let hook_file = state.content.hook.as_ref();
    let is_same = hook_file.is_some_and(|hook_file| hook_file.sha256 == input.hook_sha256);
    if hook_file.is_some() && !is_same && !input.force {
        return None;
    }
    if !hook_file.is_some_and(|hook_file| is_same && hook_file.mode == HOOK_MODE) {
        plan.steps.push(InstallStep::PutHook);
    }
    let record = &state.content.record;
    let installed = match record.hooks.get(input.version) {
        Some(installed) if record.current == input.version => *installed,
        _ => InstalledHook { since: state.now },
    };
    for record in [&mut plan.before, &mut plan.after] {
        record.hooks.insert(input.version.to_owned(), installed);
        input.version.clone_into(&mut record.current);
    }
    Some(())
}

/// Plans the configuration: one that we installed is updated, the host's own is kept, and a host without one gets none
/// if it would set nothing.
fn plan_config(state: &InstalledState, input: &InstallInput, plan: &mut InstallPlan) {
    let record = &state.content.record;
    let Some(new) = &input.config else {
        return;
    };
    match &state.config {
        None if !new.sets_something => {
            plan.after.config = Vec::new();
            return;
        }
        Some(current) if !record.has_config(current) => {
            if new.sets_something {
                let line = format!(
                    "left {CONFIG_PATH}: it is the host's configuration, which takes precedence"
                );
                plan.report.kept.push(line);
            }
            plan.after.config = Vec::new();
            return;
        }
        Some(current) if *current == new.sha256 => {}
        _ => plan.steps.push(InstallStep::PutConfig),
    }
    if !record.has_config(&new.sha256) {
        plan.before.config.push(new.sha256.clone());
    }
    plan.after.config = vec![new.sha256.clone()];
}

fn remove_hook(state: &InstalledState, version: &str, plan: &mut InstallPlan) {
    if let Some(why) = state.users.describe(version) {
        let path = state.directory.join(version).join(HOOK_NAME);
        plan.report.in_use.push(format!("left {}: {why}", path.display()));
        return;
    }
    plan.steps.push(InstallStep::RemoveHook(version.to_owned()));
    plan.after.hooks.remove(version);
}

pub(super) fn foreign_message(path: &Path) -> String {
    format!("left {}: another program or user wrote or changed it", path.display())
}

pub(super) fn uninstall(state: &InstalledState) -> InstallPlan {
    let record = &state.content.record;
    let mut plan =
        InstallPlan { before: record.clone(), after: record.clone(), ..InstallPlan::default() };
    for version in record.hooks.keys() {
        remove_hook(state, version, &mut plan);
    }
    if state.config.as_ref().is_some_and(|hash| record.has_config(hash)) {
        plan.steps.push(InstallStep::RemoveConfig);
    }
    plan.after.config = Vec::new();
    plan
}

impl InstallPlan {
    /// Returns whether nothing changes, neither on the host nor in its record.
    pub(super) fn is_idle(&self, record: &InstallRecord) -> bool {
        self.steps.is_empty() && self.after == *record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::directory::HookFile;

    const NOW: u64 = 1_000_000;

    fn removed(plan: &InstallPlan) -> Vec<&str> {
        plan.steps
            .iter()
            .filter_map(|step| match step {
                InstallStep::RemoveHook(version) => Some(version.as_str()),
                _ => None,
            })
            .collect()
    }

    fn wanted() -> InstallInput {
        InstallInput { version: "0.2.0", hook_sha256: "new".to_owned(), ..InstallInput::default() }
    }

    fn hook(sha256: &str) -> Option<HookFile> {
        let sha256 = sha256.to_owned();
        Some(HookFile { sha256, mode: HOOK_MODE })
    }

    fn installed(since: u64) -> InstalledHook {
        InstalledHook { since }
    }

    fn with_old() -> InstalledState {
        let mut found = InstalledState { now: NOW, ..InstalledState::default() };
        let record = &mut found.content.record;
        record.hooks.insert("0.1.0".to_owned(), installed(5));
        record.current = "0.1.0".to_owned();
        found
    }

    /// The same after an update, a while ago.
    fn updated(seconds: u64) -> InstalledState {
        let mut found = with_old();
        found.content.hook = hook("new");
        let record = &mut found.content.record;
        record.hooks.insert("0.2.0".to_owned(), installed(NOW - seconds));
        record.current = "0.2.0".to_owned();
        found
    }

    #[test]
    fn an_empty_host_gets_the_hook() {
        let found = InstalledState { now: NOW, ..InstalledState::default() };
        let plan = install(&found, &wanted()).unwrap();
        assert_eq!(plan.steps, [InstallStep::PutHook]);
        assert_eq!(plan.before, plan.after);
        assert_eq!(plan.after.hooks["0.2.0"], installed(NOW));
    }

    #[test]
    fn an_installed_version_stays_untouched() {
        let mut found = updated(5);
        let record = found.content.record.clone();
        let plan = install(&found, &wanted()).unwrap();
        assert!(plan.is_idle(&record), "{plan:?}");
        // A file that was copied there by hand is the same, and is ours from now on.
        found.content.record.hooks.remove("0.2.0");
        found.content.record.current = "0.1.0".to_owned();
        let plan = install(&found, &wanted()).unwrap();
        assert_eq!((plan.steps.len(), plan.is_idle(&found.content.record)), (0, false));
    }

    #[test]
    fn a_hook_that_nobody_may_execute_is_put_anew() {
        let mut found = updated(5);
        found.content.hook = Some(HookFile { sha256: "new".to_owned(), mode: 0o644 });
        assert_eq!(install(&found, &wanted()).unwrap().steps, [InstallStep::PutHook]);
    }

    #[test]
    fn another_file_of_the_same_version_is_refused_and_replaced_by_force_alone() {
        let mut found = updated(5);
        found.content.hook = hook("other");
        assert_eq!(install(&found, &wanted()), None);
        let force = InstallInput { force: true, ..wanted() };
        let plan = install(&found, &force).unwrap();
        assert_eq!(plan.steps, [InstallStep::PutHook]);
    }

    #[test]
    fn the_old_version_stays_at_an_update() {
        let plan = install(&with_old(), &wanted()).unwrap();
        assert_eq!(plan.steps, [InstallStep::PutHook]);
        assert!(plan.after.hooks.contains_key("0.1.0"));
        let plan = install(&updated(GRACE.as_secs() - 1), &wanted()).unwrap();
        assert_eq!(plan.steps, [], "a container of it may be about to start");
    }

    #[test]
    fn the_old_version_goes_later_when_nothing_names_it() {
        let plan = install(&updated(GRACE.as_secs()), &wanted()).unwrap();
        assert_eq!(plan.steps, [InstallStep::RemoveHook("0.1.0".to_owned())]);
        assert_eq!(plan.after.hooks.keys().collect::<Vec<_>>(), ["0.2.0"]);
        assert_eq!(removed(&plan), ["0.1.0"]);
    }

    #[test]
    fn the_old_version_stays_as_long_as_something_names_it() {
        let mut found = updated(GRACE.as_secs());
        found.users = HookUsers::with_user("0.1.0", "/run/c1/config.json");
        let plan = install(&found, &wanted()).unwrap();
        assert_eq!(plan.steps, []);
        let line = "left 0.1.0/onload-hook: /run/c1/config.json names it";
        assert_eq!(
            (plan.report.in_use.as_slice(), plan.report.kept.len()),
            (&[line.to_owned()][..], 0)
        );
        assert!(plan.is_idle(&found.content.record));
    }

    #[test]
    fn after_a_downgrade_the_newer_version_has_its_time_too() {
        let mut found = updated(GRACE.as_secs());
        found.content.hook = hook("old");
        let old = InstallInput { version: "0.1.0", hook_sha256: "old".to_owned(), ..wanted() };
        let plan = install(&found, &old).unwrap();
        assert_eq!((plan.steps, plan.after.hooks["0.1.0"].since), (vec![], NOW));
        found.content.record = plan.after;
        found.now += GRACE.as_secs();
        let plan = install(&found, &old).unwrap();
        assert_eq!(plan.steps, [InstallStep::RemoveHook("0.2.0".to_owned())]);
    }

    #[test]
    fn a_clock_that_was_set_back_removes_nothing() {
        let mut found = updated(0);
        found.now = 10;
        assert_eq!(install(&found, &wanted()).unwrap().steps, []);
    }

    fn with_config(there: Option<&str>, on_record: &[&str]) -> InstalledState {
        let mut found = updated(5);
        found.config = there.map(str::to_owned);
        found.content.record.config = on_record.iter().map(|sha256| (*sha256).to_owned()).collect();
        found
    }

    fn wanting(config: &str) -> InstallInput {
        InstallInput {
            config: Some(ConfigInput {
                sha256: config.to_owned(),
                sets_something: true,
                ..ConfigInput::default()
            }),
            ..wanted()
        }
    }

    #[test]
    fn a_host_without_a_configuration_gets_ours() {
        let plan = install(&with_config(None, &[]), &wanting("one")).unwrap();
        assert_eq!(plan.steps, [InstallStep::PutConfig]);
        assert_eq!(
            (plan.before.config, plan.after.config),
            (vec!["one".to_owned()], vec!["one".to_owned()])
        );
    }

    #[test]
    fn a_configuration_that_sets_nothing_is_not_put_there() {
        let mut nothing = wanting("one");
        nothing.config.as_mut().unwrap().sets_something = false;
        let plan = install(&with_config(None, &[]), &nothing).unwrap();
        assert_eq!((plan.steps, plan.after.config), (vec![], Vec::<String>::new()));
        let plan = install(&with_config(Some("two"), &["two"]), &nothing).unwrap();
        assert_eq!(plan.steps, [InstallStep::PutConfig], "in place of the one with settings");
    }

    #[test]
    fn our_configuration_follows_the_wanted_one() {
        let found = with_config(Some("one"), &["one"]);
        assert!(install(&found, &wanting("one")).unwrap().is_idle(&found.content.record));
        let plan = install(&found, &wanting("two")).unwrap();
        assert_eq!(plan.steps, [InstallStep::PutConfig]);
        assert_eq!(plan.before.config, ["one", "two"]);
        assert_eq!(plan.after.config, ["two"]);
    }

    #[test]
    fn the_host_s_own_configuration_rules() {
        for on_record in [&[][..], &["one"]] {
            let plan = install(&with_config(Some("theirs"), on_record), &wanting("one")).unwrap();
            assert_eq!(plan.steps, []);
            let line = "left /etc/onload-ctk/config.toml: it is the host's configuration, which \
                takes precedence";
            assert_eq!(plan.report.kept, [line]);
            assert_eq!(plan.after.config, [""; 0]);
            assert_eq!(uninstall(&with_config(Some("theirs"), on_record)).report.kept, [""; 0]);
        }
    }

    #[test]
    fn an_uninstall_removes_all_of_ours_and_what_is_used_last() {
        let found = with_config(Some("one"), &["one"]);
        let plan = uninstall(&found);
        let steps = [
            InstallStep::RemoveHook("0.1.0".to_owned()),
            InstallStep::RemoveHook("0.2.0".to_owned()),
            InstallStep::RemoveConfig,
        ];
        assert_eq!(plan.steps, steps);
        assert!(plan.after.is_empty());
        let mut used = found;
        used.users = HookUsers::with_user("0.2.0", "/run/c1/config.json");
        let plan = uninstall(&used);
        assert_eq!(removed(&plan), ["0.1.0"]);
        assert!(!plan.after.is_empty());
    }

    #[test]
    fn an_uninstall_leaves_the_host_s_own_configuration() {
        let plan = uninstall(&with_config(Some("theirs"), &["one"]));
        assert!(!plan.steps.contains(&InstallStep::RemoveConfig));
        assert!(
            !uninstall(&with_config(None, &["one"])).steps.contains(&InstallStep::RemoveConfig)
        );
    }
}
