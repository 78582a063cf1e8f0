//! The NRI protocol: messages ([`messages`]) in ttrpc calls ([`ttrpc`]) in frames of a multiplexed connection
//! ([`mux`]). The formats are those of github.com/containerd/nri (pkg/net/multiplex, pkg/api) and
//! github.com/containerd/ttrpc (PROTOCOL.md); the messages are generated from the files in `proto/`
//! (cluster/agent/tests/generated.rs).

#[allow(unreachable_pub, clippy::all, clippy::pedantic)]
mod generated {
    include!("../../generated/mod.rs");
}
pub mod mux;
pub mod ttrpc;

pub use generated::nri::pkg::api::v1alpha1 as messages;
