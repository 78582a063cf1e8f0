//! Network namespaces. This process never leaves its own: a thread enters another one, opens a socket there and ends.
//! The socket stays in the namespace in which it was opened (net_namespaces(7)).

mod namespace;
mod search;
#[cfg(test)]
pub(crate) mod test_namespace;

pub use namespace::Netns;
pub(crate) use search::{FoundNetns, SearchDepth, find_by_cookie, find_netns, visit_other_netns};
