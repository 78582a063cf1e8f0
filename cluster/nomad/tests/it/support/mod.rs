//! The plugin on a captured host, and an agent made for tests.

// Each test file uses a part of it.
#![allow(dead_code, unused_imports)]

mod agent;
mod constraint;
mod go;

pub(crate) use agent::{Agent, Devices, config, start};
pub(crate) use constraint::{meets, parse};
pub(crate) use go::{GoHost, program as go_program};
pub(crate) use onload_test_tree::{AgentHost, PATIENCE, sample::sources};

/// The captured host with two ports of an X2, one of them bound to vfio by its virtual functions.
pub(crate) const X2: &str = "x2-2port-sriov";

/// A captured host as it was when an agent's words were recorded, with the bound of Onload's table that was the default then.
pub(crate) fn as_recorded(name: &str) -> AgentHost {
    let host = AgentHost::captured(name);
    host.config("[cdi]\nfdtable-size = 1048576\n");
    host.change_spec("nic", |spec| {
        let text = spec.to_string().replace("SIZE=524288", "SIZE=1048576");
        *spec = text.parse().unwrap();
    });
    host
}
