//! The CPUs and NUMA nodes of a container that requests a bundle with them. They are in the configuration that the runtime
//! reads, so only an entry point before it can set them.

mod ancestor;

use std::collections::BTreeSet;
use std::path::Path;

use onload_cdi::oci::Cpuset;
use onload_core::bundle::{Cpus, Mems};
use onload_sys::cpu_list;
use onload_sys::error::{Context as _, Result, bail, error};
use onload_sys::text::Quoted;

use crate::decide::cpu_placement::CpuPlacement;
use crate::decide::sysfs::Sysfs;
use ancestor::AncestorCgroup;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpusetChoice {
    /// `None` keeps the current CPUs.
    pub cpus: Option<String>,
    /// The NUMA nodes of the memory. `None` keeps the current ones.
    pub mems: Option<String>,
    pub warnings: Vec<String>,
}

/// Chooses for a container whose configuration sets `own` and this control group path. Settings of the engine are kept.
pub(crate) fn choose(
    placements: &[CpuPlacement],
    own: &Cpuset,
    cgroups_path: Option<&str>,
    sysfs: &Sysfs,
) -> Result<CpusetChoice> {
    let mut chosen = CpusetChoice::default();
    let (mut cpus, mut mems) = (BTreeSet::new(), BTreeSet::new());
    for placement in placements {
        let ancestor = ancestor::find_nearest(cgroups_path.unwrap_or_default(), sysfs);
        let resolver = CpusetResolver { placement, sysfs, ancestor };
        let wanted_cpus = placement.cpus.as_ref().map(|cpus| resolver.resolve_cpus(cpus));
        let wanted_mems = placement.mems.as_ref().map(|mems| resolver.resolve_mems(mems));
        for (names, wanted, held, all) in [
            (("cpus", "CPUs"), wanted_cpus, &own.cpus, &mut cpus),
            (("mems", "NUMA nodes"), wanted_mems, &own.mems, &mut mems),
        ] {
            match (wanted, held) {
                (None, _) => {}
                (Some(wanted), None) => all.extend(wanted?),
                (Some(wanted), Some(held)) => {
                    chosen.warnings.extend(unchanged_warning(placement, names, held, wanted.ok()));
                }
            }
        }
        chosen.warnings.extend(two_nodes_warning(placement));
    }
    let text = |set: &BTreeSet<u32>| (!set.is_empty()).then(|| cpu_list::format_list(set));
    (chosen.cpus, chosen.mems) = (text(&cpus), text(&mems));
    Ok(chosen)
}

/// The warning that what the engine set stays, unless it is the same.
fn unchanged_warning(
    placement: &CpuPlacement,
    (key, what): (&str, &str),
    held: &str,
    wanted: Option<BTreeSet<u32>>,
) -> Option<String> {
    if wanted.is_some_and(|wanted| Ok(wanted) == cpu_list::parse_kernel_list(held)) {
        return None;
    }
    Some(format!(
        "{}: the container keeps the {what} {} that its engine set, so {key} of bundle {} has no effect",
        placement.origin,
        Quoted(held),
        placement.bundle
    ))
}

/// Devices on two nodes have no CPUs that are near all of them.
fn two_nodes_warning(placement: &CpuPlacement) -> Option<String> {
    let is_near = matches!(placement.cpus, Some(Cpus::Numa | Cpus::Isolated))
        || placement.mems == Some(Mems::Numa);
    (is_near && placement.nodes.len() > 1).then(|| {
        format!(
            "{}: the devices of bundle {} are on the NUMA nodes {}, so its CPUs and memory are those of all of them",
            placement.origin,
            placement.bundle,
            cpu_list::format_list(&placement.nodes)
        )
    })
}

/// A warning for a container that does not get the CPUs and nodes of its bundles.
pub(crate) fn not_set_warning(placements: &[CpuPlacement], why: &str) -> Option<String> {
    let first = placements.first()?;
    let bundles: Vec<&str> = placements.iter().map(|one| one.bundle.as_str()).collect();
    Some(format!(
        "{}: cpus and mems of bundle {} are not set: {why}",
        first.origin,
        bundles.join(", ")
    ))
}

/// Why a container of a pod has none.
pub(crate) const POD_REASON: &str =
    "kubelet's CPU manager and topology manager set the CPUs of pods";
/// Why a rootless one has none.
pub(crate) const ROOTLESS: &str = "a rootless engine cannot use the host's cpusets";
/// Why one has none that is told what it gets by NRI.
pub(crate) const NRI_REASON: &str =
    "NRI is called before the container has a control group; use the runtime onload";

/// Finds what one bundle means on this host.
struct CpusetResolver<'a> {
    placement: &'a CpuPlacement,
    sysfs: &'a Sysfs,
    ancestor: Option<AncestorCgroup>,
}

impl CpusetResolver<'_> {
    fn resolve_cpus(&self, wanted: &Cpus) -> Result<BTreeSet<u32>> {
        let above = self.ancestor()?;
        let (wanted, is_list) = match wanted {
            Cpus::List(list) => (list.clone(), true),
            Cpus::Numa => (self.cpus_of_nodes()?, false),
            Cpus::Isolated => (self.isolated_cpus()?, false),
        };
        self.restrict_to(above, &wanted, is_list, ("the CPUs", &above.cpus))
    }

    fn resolve_mems(&self, wanted: &Mems) -> Result<BTreeSet<u32>> {
        let above = self.ancestor()?;
        let (wanted, is_list) = match wanted {
            Mems::List(list) => (list.clone(), true),
            Mems::Numa => (self.numa_nodes()?, false),
        };
        let has = ("memory of the NUMA nodes", &above.mems);
        self.restrict_to(above, &wanted, is_list, has)
    }

    fn ancestor(&self) -> Result<&AncestorCgroup> {
        let CpuPlacement { origin, bundle, .. } = self.placement;
        self.ancestor.as_ref().ok_or_else(|| {
            error!(
                "{origin}: the kernel does not support cpusets; remove cpus and mems from \
                 [bundles.{bundle}]"
            )
        })
    }

    /// The NUMA nodes of the devices. With a single NUMA node everything is on it, although the kernel may not report
    /// that.
    fn numa_nodes(&self) -> Result<BTreeSet<u32>> {
        let CpuPlacement { origin, bundle, .. } = self.placement;
        if !self.placement.nodes.is_empty() {
            return Ok(self.placement.nodes.clone());
        }
        let online = self.list("devices/system/node/online")?;
        if online.len() != 1 {
            bail!(
                "{origin}: the kernel reports no NUMA node for the devices of bundle {bundle}; set \
                 CPUs and nodes as lists in [bundles.{bundle}], such as \"0-3\""
            );
        }
        Ok(online)
    }

    fn cpus_of_nodes(&self) -> Result<BTreeSet<u32>> {
        let mut cpus = BTreeSet::new();
        for node in self.numa_nodes()? {
            cpus.extend(self.list(&format!("devices/system/node/node{node}/cpulist"))?);
        }
        Ok(cpus)
    }

    fn isolated_cpus(&self) -> Result<BTreeSet<u32>> {
        let isolated = self.list("devices/system/cpu/isolated")?;
        let near = self.cpus_of_nodes()?;
        let both: BTreeSet<u32> = near.intersection(&isolated).copied().collect();
        if both.is_empty() {
            let CpuPlacement { origin, bundle, .. } = self.placement;
            bail!(
                "{origin}: bundle {bundle} requests isolated CPUs, but NUMA node {} has none ({} \
                 on this host); isolate some with isolcpus on the kernel command line, or set cpus \
                 = \"numa\"",
                cpu_list::format_list(&self.numa_nodes()?),
                format_list(&isolated)
            );
        }
        Ok(both)
    }

    /// A list of the kernel. A list that cannot be parsed would restrict the container to a part of it.
    fn list(&self, path: &str) -> Result<BTreeSet<u32>> {
        let text = self.sysfs.text(Path::new(path));
        cpu_list::parse_kernel_list(&text.unwrap_or_default()).with_context(|| {
            let CpuPlacement { origin, bundle, .. } = self.placement;
            format!(
                "{origin}: reading /sys/{path}; set CPUs and nodes as lists in [bundles.{bundle}], \
                 such as \"0-3\""
            )
        })
    }

    /// The CPUs or nodes that the container may use: all of an explicit list, or at least one of the others.
    fn restrict_to(
        &self,
        above: &AncestorCgroup,
        wanted: &BTreeSet<u32>,
        is_list: bool,
        (what, has): (&str, &BTreeSet<u32>),
    ) -> Result<BTreeSet<u32>> {
        let both: BTreeSet<u32> = wanted.intersection(has).copied().collect();
        if both.is_empty() || is_list && both != *wanted {
            let CpuPlacement { origin, bundle, .. } = self.placement;
            bail!(
                "{origin}: bundle {bundle} requests {what} {}, but the container's control group \
                 {} has {}; extend that, or change [bundles.{bundle}]",
                format_list(wanted),
                Quoted(&above.path.to_string_lossy()),
                format_list(has)
            );
        }
        Ok(both)
    }
}

fn format_list(numbers: &BTreeSet<u32>) -> String {
    if numbers.is_empty() {
        return "none".to_owned();
    }
    cpu_list::format_list(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onload_core::request::Origin;
    use onload_test_tree::Tree;

    /// Two nodes of four CPUs, of which each has two that are isolated.
    const HOST: [(&str, &str); 8] = [
        ("fs/cgroup/cgroup.controllers", "cpuset\n"),
        ("fs/cgroup/cpuset.cpus.effective", "0-7\n"),
        ("fs/cgroup/cpuset.mems.effective", "0-1\n"),
        ("fs/cgroup/narrow/cpuset.cpus.effective", "0-1,6\n"),
        ("fs/cgroup/narrow/cpuset.mems.effective", "0\n"),
        ("devices/system/node/online", "0-1\n"),
        ("devices/system/node/node0/cpulist", "0-3\n"),
        ("devices/system/node/node1/cpulist", "4-7\n"),
    ];

    struct Cpus8(Tree);

    impl Cpus8 {
        fn new(more: &[(&str, &str)]) -> Cpus8 {
            Cpus8(Tree::with(&[&HOST, more].concat()))
        }

        fn choose(&self, placements: &[CpuPlacement], own: &Cpuset, path: &str) -> CpusetChoice {
            self.tried(placements, own, path).unwrap()
        }

        fn tried(
            &self,
            placements: &[CpuPlacement],
            own: &Cpuset,
            path: &str,
        ) -> Result<CpusetChoice> {
            choose(placements, own, Some(path), &Sysfs::at_root(self.0.root()))
        }

        fn refusal(&self, placement: CpuPlacement, path: &str) -> String {
            let refused = self.tried(&[placement], &Cpuset::default(), path);
            refused.unwrap_err().to_string()
        }
    }

    fn placement(cpus: Option<Cpus>, mems: Option<Mems>, nodes: &[u32]) -> CpuPlacement {
        CpuPlacement {
            bundle: "hft".to_owned(),
            origin: Origin::Annotation("onload.dev/bundle".to_owned()),
            cpus,
            mems,
            nodes: nodes.iter().copied().collect(),
        }
    }

    fn list(cpus: &str) -> BTreeSet<u32> {
        cpu_list::parse_user_list(cpus).unwrap()
    }

    fn set(chosen: &CpusetChoice) -> (Option<&str>, Option<&str>) {
        (chosen.cpus.as_deref(), chosen.mems.as_deref())
    }

    #[test]
    fn the_cpus_of_the_node_are_those_that_the_container_may_have() {
        let tree = Cpus8::new(&[]);
        let wanted = [placement(Some(Cpus::Numa), Some(Mems::Numa), &[0])];
        let free = Cpuset::default();
        let chosen = tree.choose(&wanted, &free, "/docker/c0ffee");
        assert_eq!(set(&chosen), (Some("0-3"), Some("0")));
        let chosen = tree.choose(&wanted, &free, "/narrow/c0ffee");
        assert_eq!(set(&chosen), (Some("0-1"), Some("0")));
        assert_eq!(chosen.warnings, [""; 0]);
        let one = [placement(Some(Cpus::Numa), None, &[1])];
        let chosen = tree.choose(&one, &free, "/narrow/c0ffee");
        assert_eq!(set(&chosen), (Some("6"), None));
    }

    #[test]
    fn devices_on_two_nodes_give_the_cpus_of_both_and_a_line_says_so() {
        let tree = Cpus8::new(&[]);
        let wanted = [placement(Some(Cpus::Numa), Some(Mems::Numa), &[0, 1])];
        let chosen = tree.choose(&wanted, &Cpuset::default(), "/x/y");
        assert_eq!(set(&chosen), (Some("0-7"), Some("0-1")));
        assert_eq!(
            chosen.warnings,
            [
                "annotation \"onload.dev/bundle\": the devices of bundle hft are on the NUMA nodes 0-1, so its CPUs and memory are those of all of them"
            ]
        );
        // Two bundles are together what each of them is.
        let wanted = [
            placement(Some(Cpus::Numa), None, &[0]),
            placement(Some(Cpus::List(list("7"))), Some(Mems::List(list("1"))), &[]),
        ];
        let chosen = tree.choose(&wanted, &Cpuset::default(), "/x/y");
        assert_eq!(set(&chosen), (Some("0-3,7"), Some("1")));
    }

    #[test]
    fn isolated_cpus_are_those_of_the_node() {
        let tree = Cpus8::new(&[("devices/system/cpu/isolated", "2-5\n")]);
        let place = |nodes: &[u32]| placement(Some(Cpus::Isolated), None, nodes);
        let chosen = tree.choose(&[place(&[1])], &Cpuset::default(), "/x/y");
        assert_eq!(set(&chosen), (Some("4-5"), None));
        let refused = tree.refusal(place(&[1]), "/narrow/c0ffee");
        assert!(
            refused.ends_with(
                "bundle hft requests the CPUs 4-5, but the container's control group \"/narrow\" \
                 has 0-1,6; extend that, or change [bundles.hft]"
            ),
            "{refused}"
        );
        let none = Cpus8::new(&[("devices/system/cpu/isolated", "\n")]);
        let refused = none.refusal(place(&[0]), "/x/y");
        assert!(refused.contains("NUMA node 0 has none (none on this host)"), "{refused}");
    }

    #[test]
    fn a_list_of_the_kernel_that_ends_in_null_is_a_list() {
        let tree = Cpus8::new(&[
            ("devices/system/node/node1/cpulist", "4-7\n\0"),
            ("devices/system/cpu/isolated", "2-5\n\0"),
        ]);
        let one = [placement(Some(Cpus::Isolated), None, &[1])];
        let chosen = tree.choose(&one, &Cpuset::default(), "/x/y");
        assert_eq!(set(&chosen), (Some("4-5"), None));
    }

    #[test]
    fn nobody_is_kept_to_a_part_of_a_list_that_is_not_understood() {
        let tree = Cpus8::new(&[("devices/system/node/node1/cpulist", "4-5,7-6\n")]);
        let place = |cpus| placement(Some(cpus), None, &[1]);
        let refused = tree.refusal(place(Cpus::Numa), "/x/y");
        let wanted = "reading /sys/devices/system/node/node1/cpulist; set CPUs and nodes as lists \
            in [bundles.hft]";
        assert!(refused.contains(wanted), "{refused}");
        // A group whose own list is not understood leaves it to the one above.
        let tree = Cpus8::new(&[("fs/cgroup/odd/cpuset.cpus.effective", "0-\n")]);
        let chosen = tree.choose(&[place(Cpus::Numa)], &Cpuset::default(), "/odd/y");
        assert_eq!(set(&chosen), (Some("4-7"), None));
    }

    #[test]
    fn a_list_is_given_whole_or_not_at_all() {
        let tree = Cpus8::new(&[]);
        let place = |cpus: &str| placement(Some(Cpus::List(list(cpus))), None, &[]);
        let chosen = tree.choose(&[place("1,5-6")], &Cpuset::default(), "/x/y");
        assert_eq!(set(&chosen), (Some("1,5-6"), None));
        for (wanted, group) in [("6-8", "/x/y"), ("1,5-6", "/narrow/y")] {
            let refused = tree.refusal(place(wanted), group);
            assert!(refused.contains(&format!("requests the CPUs {wanted}, but")), "{refused}");
        }
        let refused = tree.refusal(placement(None, Some(Mems::List(list("1-2"))), &[]), "/x/y");
        assert!(refused.contains("requests memory of the NUMA nodes 1-2, but the container's control group \"/\" has 0-1"), "{refused}");
    }

    #[test]
    fn what_the_engine_set_stays_and_a_line_says_so() {
        let tree = Cpus8::new(&[]);
        let own = Cpuset { cpus: Some("5".to_owned()), mems: None };
        let wanted = [placement(Some(Cpus::Numa), Some(Mems::Numa), &[0])];
        let chosen = tree.choose(&wanted, &own, "/x/y");
        assert_eq!(set(&chosen), (None, Some("0")));
        assert_eq!(
            chosen.warnings,
            [
                "annotation \"onload.dev/bundle\": the container keeps the CPUs \"5\" that its engine set, so cpus of bundle hft has no effect"
            ]
        );
        // Also where the bundle's could not be set.
        let impossible = [placement(Some(Cpus::List(list("99"))), None, &[])];
        assert_eq!(set(&tree.choose(&impossible, &own, "/x/y")), (None, None));
        // The previous value was not set by an engine.
        let before = Cpuset { cpus: Some("0-3".to_owned()), mems: Some("0".to_owned()) };
        assert_eq!(tree.choose(&wanted, &before, "/x/y"), CpusetChoice::default());
    }

    #[test]
    fn a_node_that_nobody_knows_is_refused_but_where_there_is_only_one() {
        let place = || placement(Some(Cpus::Numa), None, &[]);
        let refused = Cpus8::new(&[]).refusal(place(), "/x/y");
        assert!(
            refused.contains("the kernel reports no NUMA node for the devices of bundle hft"),
            "{refused}"
        );
        let one = Cpus8::new(&[("devices/system/node/online", "0\n")]);
        let chosen = one.choose(&[place()], &Cpuset::default(), "/x/y");
        assert_eq!(set(&chosen), (Some("0-3"), None));
    }

    /// A capture has no CPUs: these are as many as its machine had.
    #[test]
    fn devices_of_a_host_with_two_nodes_have_the_cpus_of_theirs() {
        use onload_core::class::Class;
        let captured = Sysfs::at_root(onload_test_tree::sample::captured().join("sys"));
        let tree = Cpus8::new(&[]);
        for (class, name, node) in [
            (Class::Nic, "ens1", Some(0)),
            (Class::Zf, "ens2", Some(1)),
            (Class::Netdev, "ens1v0", Some(0)),
            (Class::Nic, "0000:81:00.0", Some(1)),
            (Class::Vfio, "0000:81:10.2", Some(1)),
            (Class::Nic, "enp0s3", None),
            (Class::Rdma, "rxe0", None),
            (Class::Nic, "loopback", None),
            (Class::Hugepages, "2Mi", None),
            (Class::Vfio, "0000:99:00.0", None),
        ] {
            assert_eq!(captured.numa_node(class, name), node, "{class}={name}");
        }
        let nodes: Vec<u32> = ["ens1", "ens2"]
            .iter()
            .filter_map(|name| captured.numa_node(Class::Nic, name))
            .collect();
        for (nodes, cpus) in [(&nodes[..1], "0-3"), (&nodes[1..], "4-7")] {
            let wanted = [placement(Some(Cpus::Numa), None, nodes)];
            let chosen = tree.choose(&wanted, &Cpuset::default(), "/docker/c0ffee");
            assert_eq!(set(&chosen), (Some(cpus), None));
        }
    }

    #[test]
    fn a_kernel_without_cpusets_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let wanted = [placement(Some(Cpus::List(list("0"))), None, &[])];
        let refused = choose(&wanted, &Cpuset::default(), None, &Sysfs::at_root(empty.path()))
            .unwrap_err()
            .to_string();
        assert!(refused.contains("the kernel does not support cpusets"), "{refused}");
    }
}
