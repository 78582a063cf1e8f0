//! Network namespaces for tests.

use std::fs::File;

use onload_test_tree::network::Child;

use super::Netns;

pub(crate) fn netns(child: &Child) -> Netns {
    let path = child.path();
    Netns::enter(File::open(&path).unwrap(), &path).unwrap()
}
