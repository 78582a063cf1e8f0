//! Network namespaces: a container's, this host's own, and one that is found again.
//!
//! This process never leaves its own. A thread enters the other one, opens a socket there and ends; from then on the
//! socket is the way in, since it belongs to the namespace that it was made in (net_namespaces(7)).

mod cookie;
mod namespace;
mod owner;
mod search;

pub(crate) use namespace::Netns;
pub(crate) use namespace::NetnsError;
pub(crate) use search::{Depth, Found, Unseen, find, holder_of, others};
