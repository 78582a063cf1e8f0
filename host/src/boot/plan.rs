//! Reads each configured resource and plans the changes.

use std::collections::BTreeSet;
use std::path::Path;

use onload_core::config::Config;
use onload_core::host_settings::RdmaNetns;
use onload_sys::text::ErrorChain;

use super::function_users::FunctionUsers;
use super::kernel::KernelReader;
use super::step::{Effect, HostPlan, HostStep, StepAction, StepSubject};
use super::{af_xdp, hugepages, sriov};
use crate::discover::rdma::{NETNS_MODE, parse_netns_mode};
use crate::host::{Host, HostError};

pub fn plan(host: &Host, kernel: &dyn KernelReader, config: &Config) -> HostPlan {
    let mut plan = HostPlan::default();
    let settings = &config.host;
    // The mode can change only while there is a single network namespace, so this comes first.
    if let Some(mode) = settings.rdma_netns {
        let subject = StepSubject::new("rdma-netns", "");
        if let Some(now) = read(host.attribute(Path::new(NETNS_MODE)), &subject, &mut plan) {
            let now = now.as_deref().and_then(parse_netns_mode);
            plan.steps.extend(rdma_netns_step(&subject, now, mode));
        }
    }
    // Huge pages are easiest to allocate while little memory is in use.
    if !settings.hugepages.is_empty() {
        hugepages::plan_hugepages(host, &settings.hugepages, &mut plan);
    }
    plan_sriov(host, kernel, config, &mut plan);
    if !settings.af_xdp.is_empty() || settings.af_xdp_flow_filters.is_some() {
        let subject = StepSubject::new("af-xdp", "");
        let result = af_xdp::plan_af_xdp(host, settings, &mut plan);
        read(result, &subject, &mut plan);
    }
    plan
}

/// Returns the step that sets the RDMA netns mode: whether all network namespaces share the devices (rdma-system(8)).
fn rdma_netns_step(
    subject: &StepSubject,
    now: Option<RdmaNetns>,
    target: RdmaNetns,
) -> Option<HostStep> {
    if now == Some(target) {
        return None;
    }
    let module = now.is_none().then(|| StepAction::Load("ib_core".to_owned()));
    let letter = match target {
        RdmaNetns::Shared => "Y",
        RdmaNetns::Exclusive => "N",
    };
    let now = now.map_or("module not loaded".to_owned(), |mode| mode.to_string());
    Some(HostStep {
        actions: module.into_iter().chain([StepAction::SetRdmaNetns(target)]).collect(),
        effect: Effect::Is { path: NETNS_MODE.into(), text: letter.to_owned() },
        ..HostStep::new(subject, "mode", now, target.to_string())
    })
}

fn plan_sriov(host: &Host, kernel: &dyn KernelReader, config: &Config, plan: &mut HostPlan) {
    if config.sriov.is_empty() {
        return;
    }
    let subject = StepSubject::new("sriov", "");
    let Some(users) = read(FunctionUsers::read(host, kernel), &subject, plan) else {
        return;
    };
    let mut addresses = BTreeSet::new();
    for section in &config.sriov {
        let subject = StepSubject::new("sriov", &section.pf);
        match sriov::read(host, kernel, &users, &section.pf) {
            Ok(pf) if !addresses.insert(pf.address) => {
                let address = pf.address;
                plan.refuse(
                    &subject,
                    format!("another section configures {address} too; merge them"),
                );
            }
            Ok(pf) => sriov::decide(&pf, section, plan),
            Err(error) => plan.refuse(&subject, format!("{error:#}")),
        }
    }
}

fn read<T>(result: Result<T, HostError>, subject: &StepSubject, plan: &mut HostPlan) -> Option<T> {
    result.map_err(|error| plan.refuse(subject, ErrorChain(&error).to_string())).ok()
}
