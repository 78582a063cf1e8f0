//! Huge pages: how many the kernel has reserved, by size and NUMA node, and where they are mounted
//! (`Documentation/admin-guide/mm/hugetlbpage.rst`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use onload_core::class::Class;
use onload_core::host_settings::PageSize;
use onload_sys::mountinfo::{parse_mounts_line, unescape};
use onload_sys::text::parse_digits;
use serde::Serialize;

use crate::discover::exclusion::Exclusion;
use crate::discover::probe::Probe;

pub(crate) const SIZES: &str = "/sys/kernel/mm/hugepages";
pub const NODES: &str = "/sys/devices/system/node";
const MOUNTS: &str = "/proc/mounts";
/// Limit for the size of a page in KiB. The kernel counts a page's bytes in 64 bits.
const MAX_KIB: u64 = 1 << 54;
const HUGETLBFS: &[u8] = b"hugetlbfs";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hugepages {
    pub size_kib: u64,
    pub total: u64,
    pub free: u64,
    pub nodes: Vec<NodePages>,
    /// The mount points of hugetlbfs with this page size, sorted.
    pub mounts: Vec<String>,
    /// The size as a name: `2Mi`, `1Gi`.
    pub name: String,
    /// Pages that may be allocated beyond the total while there is memory.
    pub overcommit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodePages {
    pub node: u32,
    pub total: u64,
    pub free: u64,
}

pub(crate) fn read(probe: &Probe<'_>) -> Vec<Hugepages> {
    let mut offered = Vec::new();
    for pages in read_sizes(probe) {
        if pages.total > 0 || pages.overcommit > 0 {
            offered.push(pages);
            continue;
        }
        let directory = pages_directory(SIZES, pages.size_kib);
        let reason = match probe.unread_reason(&directory) {
            Some(reason) => {
                format!("could not determine how many pages are reserved: {reason}")
            }
            None => format!(
                "no pages of this size are reserved; run \"echo N > {}/nr_hugepages\"",
                directory.display()
            ),
        };
        probe.exclude(Exclusion::new(Class::Hugepages, pages.name, reason));
    }
    offered
}

/// Reads all page sizes that the kernel supports. Nodes are found by their directories: their numbers have gaps where a
/// socket is empty.
pub(crate) fn read_sizes(probe: &Probe<'_>) -> Vec<Hugepages> {
    let sizes: BTreeSet<u64> =
        probe.list(SIZES).iter().filter_map(|name| parse_size(name)).collect();
    if sizes.is_empty() {
        return Vec::new();
    }
    let nodes: BTreeSet<u32> =
        probe.list(NODES).iter().filter_map(|name| parse_node(name)).collect();
    let mut mounts = read_mounts(probe);
    let mut all = Vec::new();
    for size_kib in sizes {
        let count = |directory: &Path, file: &str| probe.number(directory.join(file)).unwrap_or(0);
        let mut node_pages = Vec::new();
        for node in &nodes {
            let directory = node_directory(*node, size_kib);
            if probe.entry(&directory).is_some() {
                node_pages.push(NodePages {
                    node: *node,
                    total: count(&directory, "nr_hugepages"),
                    free: count(&directory, "free_hugepages"),
                });
            }
        }
        let directory = pages_directory(SIZES, size_kib);
        all.push(Hugepages {
            total: count(&directory, "nr_hugepages"),
            free: count(&directory, "free_hugepages"),
            overcommit: count(&directory, "nr_overcommit_hugepages"),
            name: PageSize::from_kib(size_kib).to_string(),
            size_kib,
            nodes: node_pages,
            mounts: mounts.remove(&size_kib).unwrap_or_default().into_iter().collect(),
        });
    }
    all
}

fn pages_directory(above: impl AsRef<Path>, size_kib: u64) -> PathBuf {
    above.as_ref().join(format!("hugepages-{size_kib}kB"))
}

pub(crate) fn node_directory(node: u32, size_kib: u64) -> PathBuf {
    pages_directory(Path::new(NODES).join(format!("node{node}/hugepages")), size_kib)
}

/// Returns the mount points of hugetlbfs by page size in KiB.
fn read_mounts(probe: &Probe<'_>) -> BTreeMap<u64, BTreeSet<String>> {
    let lines = probe.host().lines(Path::new(MOUNTS), &|line| {
        parse_mounts_line(line).is_some_and(|mount| mount.fs_type == HUGETLBFS)
    });
    let mounts = probe.ok_or_warn(lines).unwrap_or_default();
    let mut by_size: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    let lines = mounts.split(|byte| *byte == b'\n');
    for mount in lines.filter_map(parse_mounts_line) {
        let path = String::from_utf8_lossy(&unescape(mount.point)).into_owned();
        let mut options = mount.options.split(|byte| *byte == b',');
        // The kernel shows the size of every mount (`hugetlbfs_show_options`, fs/hugetlbfs/inode.c).
        let size = options.find_map(|option| option.strip_prefix(b"pagesize="));
        match size.and_then(|size| parse_memory(std::str::from_utf8(size).ok()?)) {
            Some(size) => drop(by_size.entry(size).or_default().insert(path)),
            None => probe.warn(format!(
                "reading {MOUNTS}: the page size of the hugetlbfs at {path} cannot be parsed"
            )),
        }
    }
    by_size
}

/// A size in the format of the kernel's `memparse`, in KiB: `2M`, `1024M`, `65536`.
fn parse_memory(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let bytes = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => number,
        "K" => number.checked_mul(1 << 10)?,
        "M" => number.checked_mul(1 << 20)?,
        "G" => number.checked_mul(1 << 30)?,
        "T" => number.checked_mul(1 << 40)?,
        _ => return None,
    };
    Some(bytes / 1024).filter(|kib| *kib > 0)
}

/// The size in KiB of a directory such as `hugepages-2048kB`.
fn parse_size(name: &str) -> Option<u64> {
    let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok();
    size.filter(|size| *size > 0 && *size < MAX_KIB)
}

/// The number of a directory such as `node1`.
fn parse_node(name: &str) -> Option<u32> {
    parse_digits(name.strip_prefix("node")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::test_tree::{AsHost, Discovered, Tree, discover};
    use crate::host::Host;

    fn discover_tree(host: &Host) -> Discovered<Hugepages> {
        discover(host, |probe, _, _| read(probe))
    }

    fn overall(tree: &Tree, size: u64, total: u64, overcommit: u64) {
        let files = [
            ("nr_hugepages", total.to_string()),
            ("free_hugepages", total.to_string()),
            ("nr_overcommit_hugepages", overcommit.to_string()),
        ];
        for (name, value) in files {
            tree.file(&format!("{SIZES}/hugepages-{size}kB/{name}"), value + "\n");
        }
    }

    fn on_node(tree: &Tree, node: u32, size: u64, total: &str, free: &str) {
        let directory = format!("{NODES}/node{node}/hugepages/hugepages-{size}kB");
        tree.attributes(&directory, &[("nr_hugepages", total), ("free_hugepages", free)]);
    }

    #[test]
    fn nodes_may_have_gaps_in_their_numbers() {
        let tree = Tree::new();
        overall(&tree, 2048, 12, 0);
        for node in [0, 2, 10] {
            on_node(&tree, node, 2048, "4", "1");
        }
        tree.file(&format!("{NODES}/node/x"), "");
        tree.file(&format!("{NODES}/online"), "0,2,10\n");
        let found = discover_tree(&tree.host());
        let nodes: Vec<u32> = found.devices[0].nodes.iter().map(|n| n.node).collect();
        assert_eq!(nodes, [0, 2, 10]);
        assert_eq!(found.devices[0].nodes[2].free, 1);
    }

    #[test]
    fn a_size_without_pages_is_not_offered_and_one_that_may_be_overcommitted_is() {
        let tree = Tree::new();
        overall(&tree, 2048, 0, 8);
        overall(&tree, 1_048_576, 0, 0);
        let found = discover_tree(&tree.host());
        assert_eq!(found.devices.len(), 1);
        assert_eq!(found.devices[0].name, "2Mi");
        assert_eq!(found.devices[0].overcommit, 8);
        assert_eq!(
            found.reasons(),
            [
                "1Gi: no pages of this size are reserved; run \"echo N > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages\""
            ]
        );
    }

    #[test]
    fn a_kernel_without_numa_has_pages_but_no_nodes() {
        let tree = Tree::new();
        overall(&tree, 2048, 16, 0);
        let found = discover_tree(&tree.host());
        assert_eq!(found.devices[0].total, 16);
        assert_eq!(found.devices[0].nodes, []);
    }

    #[test]
    fn a_count_that_is_no_number_costs_a_warning() {
        let tree = Tree::new();
        overall(&tree, 2048, 16, 0);
        tree.file(&format!("{SIZES}/hugepages-2048kB/free_hugepages"), "many\n");
        let found = discover_tree(&tree.host());
        assert_eq!((found.devices[0].total, found.devices[0].free), (16, 0));
        assert!(found.warnings[0].contains("free_hugepages: expected a number"));
    }

    #[test]
    fn mounts_are_grouped_by_their_page_size() {
        let tree = Tree::new();
        overall(&tree, 2048, 16, 0);
        overall(&tree, 1_048_576, 1, 0);
        tree.file(
            MOUNTS,
            "hugetlbfs /b hugetlbfs rw,pagesize=2M 0 0\n\
             none /dev/huge\\040pages hugetlbfs rw,relatime,pagesize=1024M 0 0\n\
             none /a hugetlbfs rw,pagesize=2048K 0 0\n\
             none /strange hugetlbfs rw,pagesize=2X 0 0\n\
             tmpfs /pagesize tmpfs rw,pagesize=2M 0 0\n",
        );
        let found = discover_tree(&tree.host());
        assert_eq!(found.devices[0].mounts, ["/a", "/b"]);
        assert_eq!(found.devices[1].mounts, ["/dev/huge pages"]);
        assert_eq!(
            found.warnings,
            ["reading /proc/mounts: the page size of the hugetlbfs at /strange cannot be parsed"]
        );
    }

    #[test]
    fn sizes_have_names_of_their_largest_unit() {
        let names = [
            (64, "64Ki"),
            (1024, "1Mi"),
            (1536, "1536Ki"),
            (2048, "2Mi"),
            (32_768, "32Mi"),
            (1_048_576, "1Gi"),
            (16_777_216, "16Gi"),
        ];
        for (size, name) in names {
            assert_eq!(PageSize::from_kib(size).to_string(), name);
        }
    }

    #[test]
    fn a_page_size_is_read_as_the_kernel_reads_it() {
        let sizes = [
            ("2M", Some(2048)),
            ("1024M", Some(1_048_576)),
            ("1G", Some(1_048_576)),
            ("64k", Some(64)),
            ("2097152", Some(2048)),
            ("512", None),
            ("", None),
            ("M", None),
            ("2MB", None),
            ("-2M", None),
            ("99999999999999999999", None),
            ("18446744073709551615T", None),
        ];
        for (text, size) in sizes {
            assert_eq!(parse_memory(text), size, "{text}");
        }
    }

    #[test]
    fn a_mount_whose_name_is_no_text_hides_no_other() {
        let tree = Tree::new();
        overall(&tree, 2048, 16, 0);
        let mounts = [
            &b"u@h:/ /home/u/caf\xe9 fuse.sshfs rw,nosuid,nodev 0 0\n"[..],
            b"none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n",
            b"none /mnt/\xff hugetlbfs rw,pagesize=2M 0 0\n",
        ];
        tree.file(MOUNTS, mounts.concat());
        let found = discover_tree(&tree.host());
        assert_eq!(found.warnings, [""; 0]);
        assert_eq!(found.devices[0].mounts, ["/dev/hugepages", "/mnt/\u{fffd}"]);
    }

    #[test]
    fn a_table_of_mounts_of_twelve_megabytes_is_read_to_its_end() {
        let tree = Tree::new();
        overall(&tree, 2048, 16, 0);
        let other = format!("tmpfs /{} tmpfs rw 0 0\n", "x".repeat(200));
        let mut mounts = other.repeat((12 << 20) / other.len());
        mounts.push_str("none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n");
        tree.file(MOUNTS, mounts);
        let found = discover_tree(&tree.host());
        assert_eq!(found.warnings, [""; 0]);
        assert_eq!(found.devices[0].mounts, ["/dev/hugepages"]);
    }

    #[test]
    fn a_table_with_more_mounts_of_hugepages_than_any_has_is_told() {
        let tree = Tree::new();
        overall(&tree, 2048, 16, 0);
        let line = format!("none /{} hugetlbfs rw,pagesize=2M 0 0\n", "x".repeat(200));
        tree.file(MOUNTS, line.repeat((5 << 20) / line.len()));
        let found = discover_tree(&tree.host());
        assert!(
            found.warnings[0].contains("/proc/mounts: longer than 4194304 bytes"),
            "{:?}",
            found.warnings
        );
    }

    #[test]
    fn directories_that_are_no_size_and_no_node_are_passed_over() {
        for name in [
            "",
            "hugepages-",
            "hugepages-kB",
            "hugepages-2M",
            "hugepages-0kB",
            "hugepages-18014398509481984kB",
            "x",
        ] {
            assert_eq!(parse_size(name), None, "{name}");
        }
        for name in ["", "node", "node+1", "nodes", "possible", "node4294967296"] {
            assert_eq!(parse_node(name), None, "{name}");
        }
        assert_eq!(parse_node("node12"), Some(12));
    }

    #[test]
    fn a_number_that_is_none_is_not_called_no_pages() {
        for file in ["nr_hugepages", "nr_overcommit_hugepages"] {
            let tree = Tree::new();
            let directory = "/sys/kernel/mm/hugepages/hugepages-2048kB";
            let counts = ["nr_hugepages", "free_hugepages", "nr_overcommit_hugepages"];
            tree.attributes(directory, &counts.map(|name| (name, "0")));
            tree.file(&format!("{directory}/{file}"), "forty two\n");
            let found = discover(&tree.host(), |probe, _, _| read(probe));
            assert!(found.devices.is_empty());
            let reasons = found.reasons();
            let [reason] = &reasons[..] else {
                panic!("{reasons:?}");
            };
            assert!(
                reason
                    .starts_with("2Mi: could not determine how many pages are reserved: reading ")
            );
            let wanted = format!("{directory}/{file}: expected a number, found \"forty two\"");
            assert!(reason.contains(&wanted), "{reason}");
            assert!(reason.ends_with("; check that file"), "{reason}");
        }
    }
}
