//! The PCIe link of a function or port (`Documentation/ABI/testing/sysfs-bus-pci`, `current_link_speed` and the
//! following attributes).

use std::fmt;
use std::path::Path;

use onload_sys::error::written_as_text;
use onload_sys::text::format_count;
use serde::Serialize;

use crate::host::{Host, HostError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct PcieLink {
    /// Transfers of a lane, in tenths of GT/s.
    pub speed: u32,
    pub width: u32,
}

impl PcieLink {
    pub fn combine(self, other: PcieLink) -> PcieLink {
        PcieLink { speed: self.speed.min(other.speed), width: self.width.min(other.width) }
    }

    /// Returns the usable bandwidth in Mbit/s, by NCCL's formula (`kvDictPciGen`, src/graph/topo.cc).
    pub(crate) fn mbps(self) -> u64 {
        let of_tenth = if self.speed < 80 { 60 } else { 75 };
        u64::from(self.speed) * of_tenth * u64::from(self.width)
    }

    pub fn is_slower_than(self, other: PcieLink) -> bool {
        self.speed < other.speed || self.width < other.width
    }

    /// Returns the generation of PCIe and the lanes, such as `Gen3 x8`.
    pub fn short(self) -> String {
        const SPEEDS: [u32; 6] = [25, 50, 80, 160, 320, 640];
        match SPEEDS.iter().position(|speed| *speed == self.speed) {
            Some(index) => format!("Gen{} x{}", index + 1, self.width),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenth) = (self.speed / 10, self.speed % 10);
        let lanes = format_count(self.width, "lane", "lanes");
        write!(f, "{whole}.{tenth} GT/s on {lanes}")
    }
}

written_as_text!(PcieLink);

/// Reads the present (`current`) or maximum (`max`) link of a function or port. `None` without a usable value.
pub fn read(host: &Host, directory: &Path, which: &str) -> Result<Option<PcieLink>, HostError> {
    let speed = host.attribute(&directory.join(format!("{which}_link_speed")))?;
    let width = host.attribute(&directory.join(format!("{which}_link_width")))?;
    let speed = speed.as_deref().and_then(parse_speed);
    let width = width.and_then(|width| width.parse().ok()).filter(|width| (1..=32).contains(width));
    Ok(speed.zip(width).map(|(speed, width)| PcieLink { speed, width }))
}

/// Reads `16.0 GT/s PCIe` or, of kernels before 5.7, `8 GT/s`.
fn parse_speed(text: &str) -> Option<u32> {
    let number = text.split(' ').next()?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u32 = whole.parse().ok()?;
    let tenth: u32 = tenth.get(..1)?.parse().ok()?;
    whole.checked_mul(10)?.checked_add(tenth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_read_as_every_kernel_writes_it() {
        assert_eq!(parse_speed("16.0 GT/s PCIe"), Some(160));
        assert_eq!(parse_speed("2.5 GT/s PCIe"), Some(25));
        assert_eq!(parse_speed("8 GT/s"), Some(80));
        for text in ["Unknown", "Unknown speed", "", ". GT/s", "5. GT/s", "99999999999"] {
            assert_eq!(parse_speed(text), None, "{text}");
        }
    }

    #[test]
    fn the_slower_end_says_what_a_link_gives() {
        let card = PcieLink { speed: 160, width: 8 };
        let slot = PcieLink { speed: 80, width: 16 };
        let best = card.combine(slot);
        assert_eq!(best, PcieLink { speed: 80, width: 8 });
        assert!(!best.is_slower_than(best));
        assert!(PcieLink { speed: 80, width: 4 }.is_slower_than(best));
        assert!(PcieLink { speed: 25, width: 8 }.is_slower_than(best));
        assert_eq!(best.to_string(), "8.0 GT/s on 8 lanes");
        let narrow = PcieLink { speed: 25, width: 1 };
        assert_eq!(narrow.to_string(), "2.5 GT/s on 1 lane");
        let [fast, odd] = [(320, 16), (30, 1)].map(|(speed, width)| PcieLink { speed, width });
        let short = [best, narrow, fast, odd].map(PcieLink::short);
        assert_eq!(short, ["Gen3 x8", "Gen1 x1", "Gen5 x16", "3.0 GT/s on 1 lane"]);
    }

    #[test]
    fn a_link_carries_less_than_its_transfers() {
        for (speed, width, mbps) in [
            (25, 16, 24_000),
            (50, 8, 24_000),
            (80, 16, 96_000),
            (160, 16, 192_000),
            (320, 16, 384_000),
            (640, 16, 768_000),
        ] {
            assert_eq!(PcieLink { speed, width }.mbps(), mbps);
        }
    }
}
