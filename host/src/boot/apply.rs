//! Carries out a plan, and checks the effect after each step.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use onload_core::config::Config;

use super::af_xdp;
use super::function_users::FunctionUsers;
use super::kernel::HostKernel;
use super::plan::plan;
use super::step::{Effect, HostPlan, HostStep, StepAction, StepSubject};
use crate::discover::nic::DEBUGFS_NICS;
use crate::discover::pci::DEVICES;
use crate::host::Host;

const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub struct ApplyOutcome {
    pub done: usize,
    pub failed: Vec<String>,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStage {
    Begins,
    Done,
}

/// Consequences of a step, such as the virtual functions that it created, are planned after it. A failed step skips the
/// other steps for its subject, except those that undo earlier ones; other subjects continue. `timeout` limits the wait
/// for an effect.
pub fn apply(
    host: &Host,
    kernel: &dyn HostKernel,
    config: &Config,
    timeout: Duration,
    report: &mut dyn FnMut(StepStage, &HostStep),
) -> ApplyOutcome {
    let mut run = ApplyRun {
        host,
        kernel,
        timeout,
        done: BTreeSet::new(),
        given_up: BTreeSet::new(),
        failed: Vec::new(),
    };
    let mut deadline = Instant::now();
    let last = loop {
        let plan = plan(host, kernel, config);
        if run.run_round(&plan, report) {
            deadline = Instant::now() + timeout;
        } else if plan.refused.is_empty() || Instant::now() >= deadline {
            break plan;
        } else {
            // udev renames the interfaces of new virtual functions shortly after the driver created them.
            std::thread::sleep(INTERVAL);
        }
    };
    let refused = last.refused.iter().map(ToString::to_string);
    ApplyOutcome {
        done: run.done.len(),
        failed: run.failed.into_iter().chain(refused).collect(),
        warnings: last.warnings,
    }
}

type SettingKey = (StepSubject, String, String);

struct ApplyRun<'r> {
    host: &'r Host,
    kernel: &'r dyn HostKernel,
    timeout: Duration,
    done: BTreeSet<SettingKey>,
    given_up: BTreeSet<StepSubject>,
    failed: Vec<String>,
}

impl ApplyRun<'_> {
    /// Returns whether any step was done, which may require another round.
    fn run_round(&mut self, plan: &HostPlan, report: &mut dyn FnMut(StepStage, &HostStep)) -> bool {
        let mut done: Vec<SettingKey> = Vec::new();
        for step in &plan.steps {
            let key = |value: &String| (step.subject.clone(), step.setting.clone(), value.clone());
            let takes_back = done.contains(&key(&step.now));
            if self.given_up.contains(&step.subject) && !takes_back {
                continue;
            }
            let key = key(&step.wanted);
            let failure = if step.actions.is_empty() {
                // The step's actions are known only after the steps before it.
                if !done.is_empty() {
                    continue;
                }
                Some("it is still missing after the previous steps".to_owned())
            } else if self.done.contains(&key) {
                Some(format!("it was set, but is {} again", step.now))
            } else {
                report(StepStage::Begins, step);
                self.perform(step).err().map(|error| format!("{error:#}"))
            };
            match failure {
                Some(reason) => {
                    self.failed.push(format!("{}: {}: {reason}", step.subject, step.setting));
                    self.given_up.insert(step.subject.clone());
                }
                None => {
                    self.done.insert(key.clone());
                    done.push(key);
                    report(StepStage::Done, step);
                }
            }
        }
        !done.is_empty()
    }

    fn perform(&self, step: &HostStep) -> anyhow::Result<()> {
        self.check_unused(step)?;
        let act =
            |actions: &[StepAction]| actions.iter().try_for_each(|action| self.run_action(action));
        let (acted, taken_back) = (act(&step.actions), act(&step.finally));
        acted.and(taken_back)?;
        let deadline = Instant::now() + self.timeout;
        loop {
            let Some(reason) = self.missing_effect_reason(&step.effect)? else {
                return Ok(());
            };
            if !may_be_delayed(&step.effect) || Instant::now() >= deadline {
                bail!("{reason}");
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Checks again, since a container may have started after planning.
    fn check_unused(&self, step: &HostStep) -> anyhow::Result<()> {
        if step.frees.is_empty() {
            return Ok(());
        }
        let users = FunctionUsers::read(self.host, self.kernel)?;
        for address in &step.frees {
            let link = Path::new(DEVICES).join(address.to_string()).join("driver");
            let driver = self.host.link_name(&link)?;
            if let Some(user) = users.find_user(*address, driver.as_deref())? {
                bail!("{address} is now in use by {user}; stop that first");
            }
        }
        Ok(())
    }

    fn run_action(&self, action: &StepAction) -> anyhow::Result<()> {
        match action {
            StepAction::Write { path, text } => self.kernel.write(path, text),
            StepAction::Load(module) => self.kernel.load(module),
            StepAction::LoadIfThere(module) => {
                // The effect shows whether it worked.
                let _ = self.kernel.load(module);
                Ok(())
            }
            StepAction::SetVf { interface, vf, change } => {
                self.kernel.set_vf(interface, *vf, *change)
            }
            StepAction::OneChannel(interface) => self.kernel.set_one_channel(interface),
            StepAction::SetRdmaNetns(mode) => self.kernel.set_rdma_netns(*mode),
        }
    }

    /// Returns `None` if the effect is present.
    fn missing_effect_reason(&self, effect: &Effect) -> anyhow::Result<Option<String>> {
        let host = self.host;
        let (is_reached, reason) = match effect {
            Effect::Is { path, text } => {
                let value = host.attribute(path)?;
                let now = value.as_deref().unwrap_or("not there");
                let path = path.display();
                (now == text, format!("{path} is still {now}, not {text}"))
            }
            Effect::Minimum { path, number, advice } => {
                let value = host.attribute(path)?;
                let count: u64 = value.and_then(|text| text.parse().ok()).unwrap_or(0);
                let reason = format!("the kernel gave {count} of {number}; {advice}");
                (count >= *number, reason)
            }
            Effect::Exists(path) => {
                let reason = format!("{} does not exist", path.display());
                (host.entry(path)?.is_some(), reason)
            }
            Effect::Registered(interface) => {
                let reason = format!("{DEBUGFS_NICS} does not list it");
                (af_xdp::read_registered(host)?.contains(interface), reason)
            }
            Effect::Bound { function, driver, advice } => {
                let bound = host.link_name(&function.join("driver"))?;
                let now = bound.as_deref().unwrap_or("none");
                let is_bound = match (driver, &bound) {
                    (Some(driver), Some(bound)) => bound == driver,
                    (None, Some(bound)) => !bound.contains("vfio"),
                    (_, None) => false,
                };
                (is_bound, format!("the driver is {now}; {advice}"))
            }
            Effect::Vf { interface, vf, change } => {
                let settings = self.kernel.vf_settings(interface)?.unwrap_or_default();
                let now =
                    settings.get(vf).and_then(|vf_settings| change.current_setting(vf_settings));
                (now == Some(*change), "the driver rejected it".to_owned())
            }
            Effect::OneChannel(interface) => {
                let channels = host
                    .interface_features()?
                    .get(interface)
                    .and_then(|features| features.channels);
                let now = channels.map_or("unknown".to_owned(), |channels| channels.to_string());
                let reason = format!("its channels are still {now}, not 1");
                (channels == Some(1), reason)
            }
            Effect::Unknown => return Ok(None),
        };
        Ok((!is_reached).then_some(reason))
    }
}

/// Returns whether an effect may appear with a delay.
fn may_be_delayed(effect: &Effect) -> bool {
    matches!(effect, Effect::Exists(_) | Effect::Registered(_) | Effect::Bound { .. })
}
