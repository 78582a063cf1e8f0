//! Made-up hosts and those that come with the sources, as hosts that are open.

use onload_host::host::Host;
use onload_test_tree::sample;

pub(crate) use onload_test_tree::Tree;

pub(crate) trait AsHost {
    /// The host as built so far.
    fn host(&self) -> Host;
}

impl AsHost for Tree {
    fn host(&self) -> Host {
        Host::open(self.root()).unwrap()
    }
}

pub(crate) fn sample(name: &str) -> Host {
    Host::open(&sample::whole(name)).unwrap()
}
