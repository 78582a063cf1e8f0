//! Small hosts of one kind each, as `tests/cases/hosts` describes them.

use onload_test_tree::Tree;

macro_rules! hosts {
    ($($function:ident: $name:literal,)*) => {
        $(pub(crate) fn $function() -> Tree {
            Tree::described($name)
        })*
    };
}

hosts! {
    hugepages: "hugepages",
    odd_names: "odd-names",
    onload8: "onload8",
    opt_onload: "opt-onload",
    rdma: "rdma",
    refused: "refused",
    vfio_cdev: "vfio-cdev",
    vfio_without_groups: "vfio-without-groups",
    x2: "x2",
    x3: "x3",
    x4: "x4",
    vfio: "vfio-groups",
}

/// Every host, with the name of its golden files.
pub(crate) fn all() -> Vec<(&'static str, Tree)> {
    let mut hosts = vec![("nothing", Tree::new()), ("vfio", vfio())];
    let names = [
        "hugepages",
        "odd-names",
        "onload8",
        "opt-onload",
        "rdma",
        "rdma-exclusive",
        "refused",
        "vfio-cdev",
        "x2",
        "x3",
        "x4",
    ];
    hosts.extend(names.map(|name| (name, Tree::described(name))));
    hosts
}

/// A host whose interface `ens1v0` is in a container, or on its way back from one.
pub(crate) fn leased_interface(returning: bool) -> Tree {
    Tree::described(if returning { "returning-interface" } else { "leased-interface" })
}
