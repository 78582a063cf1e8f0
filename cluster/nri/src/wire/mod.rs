//! NRI's wire: messages (`messages`) in ttrpc calls (`ttrpc`) in the frames of a multiplexed connection
//! (`mux`). The formats are those of github.com/containerd/nri (pkg/net/multiplex, pkg/api/api.proto) and
//! github.com/containerd/ttrpc (PROTOCOL.md).

pub mod messages;
pub mod mux;
pub mod ttrpc;
