//! Reads each configured resource and plans the changes.

use std::collections::BTreeSet;

use onload_core::config::Config;
use onload_sys::text::ErrorChain;

use super::function_users::FunctionUsers;
use super::kernel::KernelReader;
use super::step::{HostPlan, StepSubject};
use super::{af_xdp, hugepages, rdma_netns, sriov};
use crate::host::{Host, HostError};

pub fn plan(host: &Host, kernel: &dyn KernelReader, config: &Config) -> HostPlan {
    let mut plan = HostPlan::default();
    let settings = &config.host;
    // The mode can change only while there is a single network namespace, so this comes first.
    if let Some(mode) = settings.rdma_netns {
        let subject = StepSubject::new("rdma-netns", "");
        if let Some(now) = read(rdma_netns::read(host), &subject, &mut plan) {
            rdma_netns::decide(now, mode, &mut plan);
        }
    }
    // Huge pages are easiest to allocate while little memory is in use.
    if !settings.hugepages.is_empty() {
        let subject = StepSubject::new("hugepages", "");
        if let Some(state) = read(hugepages::read(host), &subject, &mut plan) {
            hugepages::decide(&state, &settings.hugepages, &mut plan);
        }
    }
    plan_sriov(host, kernel, config, &mut plan);
    if !settings.af_xdp.is_empty() || settings.af_xdp_flow_filters.is_some() {
        let subject = StepSubject::new("af-xdp", "");
        if let Some(state) = read(af_xdp::read(host), &subject, &mut plan) {
            af_xdp::decide(&state, settings, &mut plan);
        }
    }
    plan
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
