//! RDMA devices in netns mode exclusive: a device of the host that moves into a container's network namespace, and comes
//! back. As for interfaces ([`crate::netdev`]), its lease is written before and ends when it is back. A move makes its
//! nodes anew, so which nodes a container gets is known only after the move.

mod back;
mod devices;
mod give;
mod kernel;

use std::time::Duration;

use onload_core::class::Class;
use onload_core::error::Result;
use onload_core::hook_arguments::HookArguments;
use onload_core::lease::{Device, Leases};

use back::Home;
pub(crate) use devices::Node;
pub use devices::{Devices, StandIn};
pub(crate) use give::give;

use crate::returning::{self, DYING_PATIENCE, Gone, Restored};

/// A hook's arguments as two: what else there is to do, and the devices that move, with their leases.
pub(crate) fn split(arguments: &HookArguments) -> (HookArguments, HookArguments) {
    let moves = |device: &&Device| {
        let mut rdma = arguments.rdma_netns.iter();
        rdma.any(|rdma| give::is_of(device, rdma))
    };
    let (moving, others): (Vec<&Device>, Vec<&Device>) = arguments.lease.iter().partition(moves);
    let rest = HookArguments {
        lease: others.into_iter().cloned().collect(),
        rdma_netns: Vec::new(),
        ..arguments.clone()
    };
    let moving = HookArguments {
        lease: moving.into_iter().cloned().collect(),
        token: arguments.token.clone(),
        claim: arguments.claim.clone(),
        rdma_netns: arguments.rdma_netns.clone(),
        ..HookArguments::default()
    };
    (rest, moving)
}

/// As [`crate::netdev::take_back`].
pub(crate) fn take_back(leased: &[Device], gone: &Gone<'_>, devices: &Devices) -> Result<()> {
    returning::take_back(leased, Class::Rdma, gone, &|_, device, moved, hint| {
        let home = Home::open(devices, device.name.as_str())?;
        back::bring(&home, moved, hint, DYING_PATIENCE)
    })
}

/// Brings back every RDMA device whose containers have ended. Nothing is waited for: udev calls again when the kernel
/// gives one back.
pub fn restore(leases: &Leases, devices: &Devices) -> Result<Vec<Restored>> {
    let is_wanted = |device: &Device| device.class == Class::Rdma;
    returning::restore(leases, &is_wanted, &|device| {
        back::settle(leases, device, devices, Duration::ZERO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> HookArguments {
        let words: Vec<std::ffi::OsString> = text.split(' ').map(Into::into).collect();
        HookArguments::parse(&words).unwrap()
    }

    #[test]
    fn a_hook_s_arguments_are_those_that_move_and_the_rest() {
        let asked = parsed(
            "--memlock unlimited --lease rdma:mlx5_0 --lease vfio:0000:81:10.0 --lease rdma:mlx5_1 --rdma-netns mlx5_0@0000:3b:00.0",
        );
        let (rest, moving) = split(&asked);
        let of = |all: &[Device]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of(&rest.lease), ["vfio:0000:81:10.0", "rdma:mlx5_1"]);
        assert_eq!(of(&moving.lease), ["rdma:mlx5_0"]);
        assert!(rest.rdma_netns.is_empty() && rest.memlock.is_some());
        assert!(moving.memlock.is_none());
    }

    #[test]
    fn a_device_is_leased_by_its_name_or_by_its_function() {
        for name in ["mlx5_0", "0000:3b:00.0"] {
            let asked = parsed(&format!(
                "--lease rdma:{name} --rdma-netns mlx5_0@0000:3b:00.0"
            ));
            assert_eq!(give::asked(&asked).unwrap().len(), 1);
        }
        for other in ["rdma:mlx5_1", "netdev:mlx5_0"] {
            let asked = parsed(&format!("--lease {other} --rdma-netns mlx5_0@0000:3b:00.0"));
            let refused = give::asked(&asked).unwrap_err().to_string();
            assert!(refused.contains("has no --lease rdma:NAME"), "{refused}");
        }
    }
}
