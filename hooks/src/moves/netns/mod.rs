//! Network namespaces: a container's, this host's own, and one that is found again. This process never leaves its own: a
//! thread enters the other one, opens a socket there and ends; the socket stays in the namespace that it was made in
//! (net_namespaces(7)).

mod namespace;
mod owner;
mod search;
#[cfg(test)]
pub(crate) mod test_namespace;

pub use namespace::Netns;
pub(crate) use search::{
    FoundNetns, IncompleteSearch, SearchDepth, find_by_cookie, find_netns, search_other_netns,
};
