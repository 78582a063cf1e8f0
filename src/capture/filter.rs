//! The part of a text that a capture contains: the lines that discovery reads, without people's
//! comments and addresses of other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use onload_cdi::DEFAULT_DIRS;
use onload_core::kfd;
use onload_core::netdev::usage::NetworkState;
use onload_host::discover::data_direct::{self, find_uuid};
use onload_host::discover::gpu_index::{NVIDIA_GPUS, keep_numbered_nodes};
use onload_host::host::NETWORK_TABLE;
use onload_sys::mountinfo::parse_mounts_line;
use serde_json::Value;

pub(crate) fn filter_content(path: &Path, content: &[u8], masked: bool) -> Vec<u8> {
    if path == Path::new("/proc/mounts") {
        return hugetlbfs_mounts(content);
    }
    if is_vpd(path) {
        return strip_vpd(content);
    }
    // A capture does not show which sockets exist.
    if path == Path::new("/proc/net/packet") {
        return Vec::new();
    }
    let Ok(text) = std::str::from_utf8(content) else {
        // All that discovery can say about it is that it is not text.
        return vec![0xff];
    };
    if path == Path::new("/").join(NETWORK_TABLE) {
        return filter_network(text, masked).into_bytes();
    }
    if path.parent().is_some_and(|dir| DEFAULT_DIRS.iter().any(|known| dir == Path::new(known))) {
        return keep_numbered_nodes(path, text).into_bytes();
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    let text = match extension {
        _ if path.starts_with(NVIDIA_GPUS) => lines_with(text, &["Device Minor:"]),
        _ if path.starts_with(Path::new("/sys").join(kfd::NODES)) => {
            lines_with(text, &kfd::READ_PROPERTIES)
        }
        Some("opf" | "opf-fragment") => filter_profile(text, masked),
        _ => text.to_owned(),
    };
    text.into_bytes()
}

fn filter_network(text: &str, masked: bool) -> String {
    match NetworkState::parse(text) {
        Ok(namespace) if masked => namespace.mask_addresses().to_text(),
        // A captured host's table may be unparsable.
        _ => text.to_owned(),
    }
}

fn lines_with(text: &str, prefixes: &[&str]) -> String {
    text.lines()
        .filter(|line| prefixes.iter().any(|prefix| line.starts_with(prefix)))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn hugetlbfs_mounts(table: &[u8]) -> Vec<u8> {
    let mut lines = Vec::new();
    for mount in table.split(|byte| *byte == b'\n').filter_map(parse_mounts_line) {
        if mount.fs_type != b"hugetlbfs" {
            continue;
        }
        let mut options = mount.options.split(|byte| *byte == b',');
        let size = options
            .find(|option| option.starts_with(b"pagesize="))
            .map(|size| [b",", size].concat())
            .unwrap_or_default();
        lines.extend([b"hugetlbfs ", mount.point, b" hugetlbfs rw", &size, b" 0 0\n"].concat());
    }
    lines
}

/// A profile with its line numbers preserved, since refusals mention them.
fn filter_profile(text: &str, masked: bool) -> String {
    let lines = text.lines().map(|line| match line.trim_start() {
        remark if remark.starts_with('#') => "#\n".to_owned(),
        _ if masked => format!("{}\n", mask_addresses(line)),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// The line with its addresses replaced by those reserved for documentation (RFC 5737, RFC 3849).
fn mask_addresses(line: &str) -> String {
    let in_address = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
    let mut result = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(in_address) {
        let (before, after) = rest.split_at(start);
        let end = after.find(|c| !in_address(c)).unwrap_or(after.len());
        let (word, tail) = after.split_at(end);
        result.push_str(before);
        result.push_str(documentation_address(word));
        rest = tail;
    }
    result + rest
}

fn documentation_address(word: &str) -> &str {
    // A port may follow.
    let (host, port) = match word.rsplit_once(':') {
        Some((host, port)) if host.parse::<Ipv4Addr>().is_ok() => (host, port),
        _ => (word, ""),
    };
    match (host.parse::<Ipv4Addr>(), host.parse::<Ipv6Addr>()) {
        (Ok(address), _) if address.is_unspecified() || address.is_loopback() => word,
        (_, Ok(address)) if address.is_unspecified() || address.is_loopback() => word,
        (Ok(_), _) if port.is_empty() => "192.0.2.1",
        (Ok(_), _) => "192.0.2.1:0",
        (_, Ok(_)) => "2001:db8::1",
        _ => word,
    }
}

/// The sections of a configuration that discovery reads, without comments.
pub(crate) fn filter_config(text: &str) -> Option<String> {
    let mut sections: BTreeMap<String, Value> = toml_edit::de::from_str(text).ok()?;
    sections.retain(|name, _| ["cdi", "discover", "leases", "pools"].contains(&name.as_str()));
    if sections.is_empty() {
        return None;
    }
    toml_edit::ser::to_string_pretty(&sections).ok()
}

pub(super) fn is_vpd(path: &Path) -> bool {
    path.starts_with("/sys") && path.ends_with(data_direct::VPD)
}

/// Vital product data with the UUID that pairs a NIC with its Data Direct function, and nothing else of a card.
fn strip_vpd(vpd: &[u8]) -> Vec<u8> {
    match find_uuid(vpd) {
        Ok(uuid) => with(uuid),
        // All that discovery can say about it is that it is none.
        Err(_) => vec![0xff],
    }
}

/// Numbers in the order of the UUIDs, as [`super::mask`] has them: equal ones stay equal.
#[derive(Debug, Default)]
pub(super) struct Uuids(BTreeSet<String>);

impl Uuids {
    pub(super) fn collect(&mut self, vpd: &[u8]) {
        let uuid = find_uuid(vpd).ok().flatten();
        self.0.extend(uuid.map(str::to_owned));
    }

    pub(super) fn mask(&self, vpd: &[u8]) -> Vec<u8> {
        let uuid = find_uuid(vpd).ok().flatten();
        let number = uuid.and_then(|uuid| self.0.iter().position(|known| known == uuid));
        match number {
            Some(number) => with(Some(&format!("{:032x}", number + 1))),
            None => vpd.to_vec(),
        }
    }
}

/// The item that holds it, and the one that ends them (PCI Local Bus Specification 3.0, appendix I).
fn with(uuid: Option<&str>) -> Vec<u8> {
    let mut vpd = Vec::new();
    if let Some(value) = uuid
        && let Ok(length) = u8::try_from(value.len())
    {
        let [low, high] = (u16::from(length) + 3).to_le_bytes();
        vpd.extend([0x90, low, high, b'V', b'3', length]);
        vpd.extend(value.as_bytes());
    }
    vpd.push(0x78);
    vpd
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(path: &str, text: &str) -> String {
        String::from_utf8(filter_content(Path::new(path), text.as_bytes(), true)).unwrap()
    }

    #[test]
    fn of_the_mounts_only_hugetlbfs_is_kept() {
        let mounts = "filer.example:/home /home nfs4 rw,addr=10.1.2.3 0 0\n\
                      none /mnt/a\\040b hugetlbfs rw,gid=12,pagesize=2M 0 0\n\
                      hugetlbfs /b hugetlbfs rw,relatime 0 0\n";
        let kept = "hugetlbfs /mnt/a\\040b hugetlbfs rw,pagesize=2M 0 0\n\
                    hugetlbfs /b hugetlbfs rw 0 0\n";
        assert_eq!(filtered("/proc/mounts", mounts), kept);
    }

    #[test]
    fn of_the_network_addresses_are_not_kept_and_what_they_decide_is() {
        let table = "link 2 ens1 - - - -\naddress 2 10.1.2.3/24\naddress 2 fe80::5054:ff:fe12:3456/64\n\
                     route 2 0.0.0.0/0 4\nroute 2 10.9.0.0/16 3\n";
        let kept = "link 2 ens1 - - - -\naddress 2 192.0.2.1/24\naddress 2 fe80::1/64\n\
                    route 2 0.0.0.0/0 4\nroute 2 192.0.2.1/16 3\n";
        assert_eq!(filtered("/network.table", table), kept);
        let open = filter_content(Path::new("/network.table"), table.as_bytes(), false);
        assert_eq!(open, table.as_bytes());
    }

    #[test]
    fn of_the_memory_only_the_default_page_size_is_kept() {}

    #[test]
    fn of_a_gpu_no_serial_number_is_kept() {
        let information = "Model: \t NVIDIA L4\nGPU UUID: \t GPU-4f2b\nDevice Minor: \t 3\n";
        let path = "/proc/driver/nvidia/gpus/0000:1b:00.0/information";
        assert_eq!(filtered(path, information), "Device Minor: \t 3\n");
        let properties = "location_id 13056\ndomain 0\ndrm_render_minor 129\nunique_id 4711\n";
        let path = "/sys/class/kfd/kfd/topology/nodes/1/properties";
        let kept = "location_id 13056\ndomain 0\ndrm_render_minor 129\n";
        assert_eq!(filtered(path, properties), kept);
    }

    #[test]
    fn remarks_and_addresses_in_profiles_are_not_kept_and_lines_keep_their_numbers() {
        let profile = "# for db1.example, call Ann\nonload_set EF_A 10.1.2.3\n\
                       onload_set EF_B 1.5\nonload_set EF_C fd00::12\nonload_set EF_D 10.1.2.3:80\n\
                       onload_set EF_E 0.0.0.0\n";
        let kept = "#\nonload_set EF_A 192.0.2.1\nonload_set EF_B 1.5\n\
                    onload_set EF_C 2001:db8::1\nonload_set EF_D 192.0.2.1:0\n\
                    onload_set EF_E 0.0.0.0\n";
        assert_eq!(filtered("/p/a.opf", profile), kept);
        let open = filter_content(Path::new("/p/a.opf"), b"# x\nonload_set EF_A 10.1.2.3\n", false);
        assert_eq!(open, b"#\nonload_set EF_A 10.1.2.3\n");
    }

    #[test]
    fn what_is_not_text_is_kept_as_something_else_that_is_not() {
        assert_eq!(filter_content(Path::new("/sys/x"), b"secret\xff", true), [0xff]);
    }

    #[test]
    fn of_the_configuration_the_settings_of_discovery_are_kept_without_remarks() {
        let text = "# ours\n[discover] # x\nignored-interfaces = [ # why\n \"eth0\", # Ann's\n]\n\
                    offer-umad = true # y\n[annotations]\nallow = [\"nic\"]\n[pools.\"b c\"]\nclass = \"rdma\"\n\
                    select = { interfaces = [ # Ann's\n\"ib*\" ], numa = 0 }\n";
        let kept = filter_config(text).unwrap();
        let read = |text: &str| toml_edit::de::from_str::<Value>(text).unwrap();
        let mut expected = read(text);
        expected.as_object_mut().unwrap().remove("annotations");
        assert_eq!(read(&kept), expected);
        assert!(!kept.contains('#'), "{kept}");
        assert_eq!(filter_config("[annotations]\nallow = []\n"), None);
        assert_eq!(filter_config(""), None);
    }

    #[test]
    fn nothing_stays_of_vital_product_data_but_the_uuid() {
        let vpd = b"\x82\x03\x00NIC\x90\x12\x00SN\x03123V3\x04abcdRV\x02\x00\x00\x78";
        assert_eq!(strip_vpd(vpd), b"\x90\x07\x00V3\x04abcd\x78");
        assert_eq!(strip_vpd(b"\x90\x06\x00SN\x03123\x78"), b"\x78");
        assert_eq!(strip_vpd(b"\x90\xff\x00SN"), b"\xff");
        for same in [&b"\x90\x07\x00V3\x04abcd\x78"[..], b"\x78", b"\xff"] {
            assert_eq!(strip_vpd(same), same);
        }
    }

    #[test]
    fn uuids_are_masked_by_numbers_in_their_order() {
        let [later, earlier] = ["6bbb", "11aa"].map(|uuid| with(Some(uuid)));
        let mut uuids = Uuids::default();
        for vpd in [&later, &earlier, &later, &vec![0x78]] {
            uuids.collect(vpd);
        }
        let masked = uuids.mask(&later);
        assert_eq!(find_uuid(&masked), Ok(Some("00000000000000000000000000000002")));
        assert_eq!(uuids.mask(&[0x78]), [0x78]);
        let mut again = Uuids::default();
        for vpd in [&uuids.mask(&earlier), &masked] {
            again.collect(vpd);
        }
        assert_eq!(again.mask(&masked), masked);
    }
}
