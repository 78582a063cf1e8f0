//! AMD's GPUs and their partitions, as listed by amdkfd (`node_show`,
//! drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
//!
//! No other file says which GPU the render node of a partition belongs to: the node's parent is a
//! platform device, `amdgpu_xcp_1` (drivers/gpu/drm/amd/amdxcp/amdgpu_xcp_drv.c).

use onload_sys::pci::PciAddress;
use onload_sys::text::parse_decimal;

/// The directory below the root of sysfs with a subdirectory for each GPU, partition and CPU.
pub const NODES: &str = "class/kfd/kfd/topology/nodes";
/// The file in a subdirectory of [`NODES`] with the properties of the entry.
pub const PROPERTIES: &str = "properties";

/// The starts of the lines of [`PROPERTIES`] that [`render_node`] reads. A capture keeps only these, because another
/// line has the serial number of the GPU.
pub const READ_PROPERTIES: [&str; 3] = ["drm_render_minor ", "location_id ", "domain "];

/// Returns the minor number of the render node, and its PCI function. Returns `None` for a CPU.
pub fn render_node(properties: &str) -> Option<(u32, PciAddress)> {
    let property = |name: &str| {
        parse_decimal(
            properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?,
        )
    };
    let minor = property("drm_render_minor").filter(|minor| *minor != 0)?;
    // Bus, device and function. The upper bits are the number of the partition.
    let location = property("location_id")?;
    let (bus, device, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
    let domain = property("domain")?;
    let address = format!("{domain:04x}:{bus:02x}:{device:02x}.{function}");
    Some((minor, address.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_on_the_function_of_its_gpu() {
        for (location, domain, address) in [
            (0x3300_u32, 0, "0000:33:00.0"),
            (0x1000_3300, 0, "0000:33:00.0"),
            (0xf000_05a9, 0x10000, "10000:05:15.1"),
        ] {
            let properties = format!(
                "cpu_cores_count 0\nsimd_count 304\nlocation_id {location}\ndomain {domain}\ndrm_render_minor 129\nhive_id 7\n"
            );
            let expected = (129, address.parse().unwrap());
            assert_eq!(render_node(&properties), Some(expected));
        }
    }

    #[test]
    fn a_cpu_has_no_render_node() {
        for properties in [
            "",
            "cpu_cores_count 96\nlocation_id 0\ndomain 0\ndrm_render_minor 0\n",
            "location_id 13056\ndrm_render_minor 129\n",
            "location_id x\ndomain 0\ndrm_render_minor 129\n",
            "location_id 13056\ndomain 0\ndrm_render_minors 129\n",
        ] {
            assert_eq!(render_node(properties), None, "{properties}");
        }
    }
}
