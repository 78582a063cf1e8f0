//! `lease`: who holds the devices that only so many containers may have.

pub mod list;
pub mod release;
pub mod restore;

use onload_core::device_id::DeviceId;

fn format_device(device: &DeviceId) -> String {
    format!("{}={}", device.class, device.name)
}
