//! Device names that stand for the RDMA devices nearest to a GPU: `gpu-0000:1b:00.0`, or `gpu0` if
//! its vendor numbers it.

use onload_sys::pci::PciAddress;
use onload_sys::text::parse_decimal;

pub fn from_address(gpu: PciAddress) -> String {
    format!("gpu-{gpu}")
}

pub fn from_index(index: u32) -> String {
    format!("gpu{index}")
}

/// Returns whether a name has this form. A device may have such a name too.
pub fn is_gpu_name(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("gpu") else {
        return false;
    };
    match rest.strip_prefix('-') {
        Some(address) => address.parse::<PciAddress>().is_ok(),
        None => parse_decimal(rest).is_some(),
    }
}

/// Returns the number of the GPU in a vendor's name for it, `0`, or for one of its slices, `0:1`.
pub fn vendor_index(name: &str) -> Option<u32> {
    match name.split_once(':') {
        Some((gpu, slice)) => parse_decimal(slice).and(parse_decimal(gpu)),
        None => parse_decimal(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_name_contains_its_address_or_its_number() {
        let address: PciAddress = "0000:1b:00.0".parse().unwrap();
        assert_eq!(from_address(address), "gpu-0000:1b:00.0");
        assert_eq!(from_index(7), "gpu7");
        for name in [from_address(address), from_index(0), from_index(u32::MAX)] {
            assert!(is_gpu_name(&name), "{name}");
        }
    }

    #[test]
    fn a_vendor_numbers_gpus_and_their_slices() {
        for name in ["3", "3:0", "3:11"] {
            assert_eq!(vendor_index(name), Some(3), "{name}");
        }
        for name in ["", "all", "GPU-4f2b", "03", "3:", "3:x", "x:3", ":3", "3:01", "3:0:1", "-3"] {
            assert_eq!(vendor_index(name), None, "{name}");
        }
    }

    #[test]
    fn other_names_are_not_gpu_names() {
        for name in [
            "",
            "gpu",
            "gpu-",
            "gpu-0",
            "gpu01",
            "gpu-1",
            "gpu1a",
            "gpus",
            "GPU0",
            "mlx5_0",
            "0000:1b:00.0",
            "gpu0000:1b:00.0",
            "gpu-0000:1b:00",
            "gpu4294967296",
        ] {
            assert!(!is_gpu_name(name), "{name}");
        }
    }
}
