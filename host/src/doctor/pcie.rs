//! The PCIe link of each card against what the card and its slot give
//! (`Documentation/ABI/testing/sysfs-bus-pci`, `current_link_speed` and beside).

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use onload_core::pci::PciAddress;

use super::check::{Finding, Remedy};
use super::examined::{Examined, Findings};
use crate::discover::pci::DEVICES;
use crate::host::HostError;

/// What a link can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    /// Transfers of a lane, in tenths of GT/s.
    speed: u32,
    /// Lanes.
    width: u32,
}

impl Link {
    /// What both ends give.
    fn with(self, other: Link) -> Link {
        Link {
            speed: self.speed.min(other.speed),
            width: self.width.min(other.width),
        }
    }

    fn is_below(self, other: Link) -> bool {
        self.speed < other.speed || self.width < other.width
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, tenth) = (self.speed / 10, self.speed % 10);
        write!(f, "{whole}.{tenth} GT/s on {} lanes", self.width)
    }
}

/// Whether the link of each card that is offered is as fast as the card and the slot.
pub(super) fn links(examined: &Examined<'_>) -> Findings {
    let mut findings = Vec::new();
    for address in cards(examined) {
        let directory = Path::new(DEVICES).join(address.to_string());
        let Some(now) = read(examined, &directory, "current")? else {
            continue;
        };
        let Some(card) = read(examined, &directory, "max")? else {
            continue;
        };
        let above = examined.host.resolve(&directory)?;
        let above = above.as_deref().and_then(Path::parent);
        let slot = match above {
            Some(above) => read(examined, above, "max")?,
            None => None,
        };
        let best = slot.map_or(card, |slot| card.with(slot));
        let finding = match now.is_below(best) {
            true => Finding::warn(
                format!(
                    "the link runs at {now}, and card and slot give {best}: seat the card anew"
                ),
                Remedy::run(format!(
                    "lspci -vv -s {address} | grep -E \"LnkCap|LnkSta\""
                )),
            ),
            false => Finding::pass(format!("the link runs at {now}")),
        };
        let finding = finding.at(directory.join("current_link_speed"));
        findings.push(finding.of(address.to_string()));
    }
    Ok(findings)
}

/// The physical functions of what is offered; a virtual one has no link of its own.
fn cards(examined: &Examined<'_>) -> BTreeSet<PciAddress> {
    let inventory = examined.inventory;
    let nics = inventory.nics.iter().filter_map(|nic| nic.pci_address);
    let rdma = inventory
        .rdma
        .iter()
        .filter_map(|device| device.pci_address);
    let vfio = inventory.vfio.iter().map(|device| device.pci_address);
    let physical = |address: PciAddress| {
        let function = inventory.functions.get(address);
        let parent = function.and_then(|function| function.physical_function);
        parent.unwrap_or(address)
    };
    nics.chain(rdma).chain(vfio).map(physical).collect()
}

/// What a function or port says of its link; none where it says nothing that counts.
fn read(examined: &Examined<'_>, directory: &Path, which: &str) -> Result<Option<Link>, HostError> {
    let speed = examined.attribute(directory.join(format!("{which}_link_speed")))?;
    let width = examined.attribute(directory.join(format!("{which}_link_width")))?;
    let speed = speed.as_deref().and_then(parse_speed);
    let width = width.and_then(|width| width.parse().ok());
    let width = width.filter(|width| (1..=32).contains(width));
    Ok(speed.zip(width).map(|(speed, width)| Link { speed, width }))
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
        for text in [
            "Unknown",
            "Unknown speed",
            "",
            ". GT/s",
            "5. GT/s",
            "99999999999",
        ] {
            assert_eq!(parse_speed(text), None, "{text}");
        }
    }

    #[test]
    fn the_slower_end_says_what_a_link_gives() {
        let card = Link {
            speed: 160,
            width: 8,
        };
        let slot = Link {
            speed: 80,
            width: 16,
        };
        let best = card.with(slot);
        assert_eq!(
            best,
            Link {
                speed: 80,
                width: 8
            }
        );
        assert!(!best.is_below(best));
        assert!(
            Link {
                speed: 80,
                width: 4
            }
            .is_below(best)
        );
        assert!(
            Link {
                speed: 25,
                width: 8
            }
            .is_below(best)
        );
        assert_eq!(best.to_string(), "8.0 GT/s on 8 lanes");
    }
}
