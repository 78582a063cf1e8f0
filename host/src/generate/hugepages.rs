//! The class hugepages: a fresh hugetlbfs of one page size.

use onload_cdi::{ContainerEdits, Mount};

use super::edit_builder::{ClassEdits, DeviceEdits, EditBuilder, path_text};
use crate::devices::HostDevice;

pub(super) fn class_edits(devices: &[&HostDevice], builder: &EditBuilder<'_>) -> ClassEdits {
    ClassEdits {
        devices: devices.iter().map(|size| device_edits(size, builder)).collect(),
        ..ClassEdits::default()
    }
}

fn device_edits(size: &HostDevice, builder: &EditBuilder<'_>) -> DeviceEdits {
    let name = size.name.as_str();
    let path = builder.config.hugepages_dir.join(format!("hugepages-{name}"));
    // The kernel accepts sizes in the units of memparse(): 2M, 1G.
    let page_size = format!("pagesize={}", name.trim_end_matches('i'));
    let mount = Mount {
        host_path: "hugetlbfs".to_owned(),
        container_path: path_text(&path),
        type_: Some("hugetlbfs".to_owned()),
        // Without a mode only root could use it.
        options: ["nosuid", "nodev", &page_size, "mode=1777"].map(str::to_owned).to_vec(),
    };
    let edits = ContainerEdits { mounts: vec![mount], ..builder.leasing_edits(&[size]) };
    (size.name.clone(), edits)
}
