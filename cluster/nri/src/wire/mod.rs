//! The NRI protocol: ttrpc calls ([`ttrpc`]) carry the messages ([`messages`]), and frames of a multiplexed connection
//! ([`mux`]) carry the calls. The formats are those of github.com/containerd/nri (pkg/net/multiplex, pkg/api) and
//! github.com/containerd/ttrpc (PROTOCOL.md). cluster/agent/tests/generated.rs generates the code of the messages from
//! the files in `proto/`.

#[allow(unreachable_pub, clippy::all, clippy::pedantic)]
mod generated {
    include!("../../generated/mod.rs");
}
pub mod mux;
pub mod ttrpc;

pub use generated::nri::pkg::api::v1alpha1 as messages;
