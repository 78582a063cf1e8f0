//! Vital product data in a capture: the UUIDs that pair NICs with their Data Direct functions, and nothing else of a card.

use std::collections::BTreeSet;
use std::path::Path;

use onload_host::discover::data_direct::{self, find_uuid};

pub(super) fn is_vpd(path: &Path) -> bool {
    path.starts_with("/sys") && path.ends_with(data_direct::VPD)
}

pub(super) fn strip_vpd(vpd: &[u8]) -> Vec<u8> {
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
