//! The class hugepages: a fresh hugetlbfs of one page size.

use onload_cdi::{ContainerEdits, Mount};
use onload_core::class::Class;

use super::edits::{Writer, text};
use super::offer::{Entry, Offer};
use crate::discover::hugepages::Hugepages;
use crate::discover::inventory::Inventory;

pub(super) fn offer(inventory: &Inventory, writer: &Writer<'_>) -> Offer {
    let sizes = inventory.hugepages.iter();
    Offer {
        devices: sizes.map(|size| entry(size, writer)).collect(),
        ..Offer::default()
    }
}

fn entry(size: &Hugepages, writer: &Writer<'_>) -> Entry {
    let place = writer
        .config
        .hugepages_dir
        .join(format!("hugepages-{}", size.name));
    // The kernel accepts sizes in the units of memparse(): 2M, 1G.
    let page_size = format!("pagesize={}", size.name.trim_end_matches('i'));
    let mount = Mount {
        host_path: "hugetlbfs".to_owned(),
        container_path: text(&place),
        type_: Some("hugetlbfs".to_owned()),
        // Without a mode it would belong to root only, and a container with another user could not
        // use it.
        options: ["nosuid", "nodev", &page_size, "mode=1777"]
            .map(str::to_owned)
            .to_vec(),
    };
    let edits = ContainerEdits {
        mounts: vec![mount],
        ..writer.leasing_edits(Class::Hugepages, [size.name.as_str()].into_iter())
    };
    (size.name.clone(), edits)
}
