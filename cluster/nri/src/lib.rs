//! An NRI plugin: containerd and CRI-O ask it before they create a container, and what the pod's annotations request
//! goes into the answer. A single thread answers the requests in the order in which runtimes send them.
//! [`wire`] is the protocol without a decision, [`create`] the decision without a socket.

pub mod answer;
pub mod cli;
pub mod connect;
pub mod container;
pub mod create;
pub mod journal;
pub mod runtime;
pub mod session;
pub mod wire;
