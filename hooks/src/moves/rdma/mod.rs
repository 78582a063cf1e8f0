//! The [lifecycle](super::lifecycle) of an RDMA device in netns mode exclusive. A move recreates its nodes, so the
//! nodes for a container are known only afterwards.

mod access;
mod kernel;
pub(super) mod ops;
mod usage;

use std::io;

use onload_lease::{SavedRdma, SavedState};
use onload_sys::error::{Context as _, Result, bail};
use onload_sys::netlink::nldev::{RdmaChardev, RdmaNetnsMode};
use onload_sys::pci::PciAddress;
use rustix::io::Errno;

pub use ops::NetnsRdmaDevice;

use super::lifecycle::{MoveContext, MoveOps, MoveRequest, RestoreError, ReturnedDevice};
use super::netns::Netns;
use super::transit_name::{is_transit_name, transit_name};

#[derive(Debug)]
pub(crate) struct RdmaOps;

impl MoveOps for RdmaOps {
    const WORD: &'static str = "rdma";
    const NEEDS: &'static str = "it needs a rootful engine on the host, or RDMA's mode shared";
    type Saved = SavedRdma;
    const TO_STATE: fn(SavedRdma) -> SavedState = SavedState::Rdma;
    type Observation = NetnsRdmaDevice;

    fn check_movable(context: &MoveContext<'_>, name: &str) -> Result<()> {
        let mode = access::netns_mode(&context.host_netns)
            .with_context(|| format!("asking for the mode of rdma {name}"))?;
        if mode == Some(RdmaNetnsMode::Shared) {
            bail!(
                "rdma {name} does not move: network namespaces share RDMA devices now; run \
                 `systemctl start onload-cdi.service`, then start a new container"
            );
        }
        Ok(())
    }

    /// Finds the device by name. `examine` fails if its PCI function differs.
    fn find_requested(netns: &Netns, request: &MoveRequest<'_>) -> Result<Option<NetnsRdmaDevice>> {
        let MoveRequest { name, pci, .. } = request;
        let device = list_all(netns, name)?.into_iter().find(|device| device.name == *name);
        if let Some(other) = device.as_ref().filter(|device| device.pci != Some(*pci)) {
            let now = match other.pci {
                Some(pci) => format!("PCI function {pci}"),
                None => "no PCI function".to_owned(),
            };
            bail!(
                "rdma {name} belongs to {now} now, not to PCI function {pci}; run `systemctl start onload-cdi.service`, then start a new container"
            );
        }
        Ok(device)
    }

    fn examine(
        device: &NetnsRdmaDevice,
        request: &MoveRequest<'_>,
        context: &MoveContext<'_>,
    ) -> Result<(SavedRdma, Option<String>)> {
        let warning = usage::check_interfaces(&context.host_netns, device)?;
        Ok((save_rdma(device, request, false), warning))
    }

    /// A program other than this one moved the device there, and moves it back.
    fn stray_state(device: &NetnsRdmaDevice, request: &MoveRequest<'_>) -> Result<SavedRdma> {
        Ok(save_rdma(device, request, true))
    }

    fn send(
        device: &NetnsRdmaDevice,
        _: &MoveRequest<'_>,
        _: &SavedRdma,
        context: &MoveContext<'_>,
    ) -> Result<()> {
        // Checked here, since by now no container can have it open.
        usage::check_users(&context.host_netns, device)?;
        let moved =
            access::move_device(&context.host_netns, device.index, &context.container_netns);
        check_moved(moved, "moving into the container", &device.name)
    }

    /// A rebound driver gives the device another index, so it is found by its PCI function.
    fn find(netns: &Netns, saved: &SavedRdma) -> Result<Option<NetnsRdmaDevice>> {
        Ok(list_all(netns, &saved.name)?.into_iter().find(|device| {
            let is_named = device.index == saved.index || device.name == saved.name;
            is_named && device.pci == Some(saved.pci)
        }))
    }

    fn is_in_netns(netns: &Netns, pci: PciAddress, _: &str) -> bool {
        access::list_devices(netns).unwrap_or_default().iter().any(|device| device.pci == Some(pci))
    }

    fn move_home(
        from: &Netns,
        device: &NetnsRdmaDevice,
        host_netns: &Netns,
        saved: &SavedRdma,
    ) -> Result<()> {
        let moved = access::move_device(from, device.index, host_netns);
        // The namespace was destroyed, and the kernel moved the device first.
        if moved.as_ref().is_err_and(is_gone) && Self::find(from, saved)?.is_none() {
            return Ok(());
        }
        check_moved(moved, "moving back to the host", &saved.name)
    }

    /// Restores the name, which a process with CAP_NET_ADMIN in the container can change. If another device has the
    /// name, this one first gets a transit name: a container may have swapped the names of two devices, which would
    /// block each other.
    fn restore(returned: ReturnedDevice<'_, Self>, host_netns: &Netns) -> Result<(), RestoreError> {
        let ReturnedDevice { returning, observation: device } = returned;
        let SavedRdma { name: saved_name, pci, .. } = &returning.saved;
        if device.name == *saved_name {
            return Ok(());
        }
        let rename = |name: &str| access::rename(host_netns, device.index, name);
        let Err(source) = rename(saved_name) else {
            return Ok(());
        };
        let mut name = device.name;
        let is_taken = Errno::from_io_error(&source) == Some(Errno::EXIST);
        if is_taken && !is_transit_name(name.as_bytes()) {
            let temporary_name = transit_name();
            name = rename(&temporary_name).map_or(name, |()| temporary_name);
        }
        let failed = Err(source)
            .with_context(|| format!("renaming rdma {name:?} ({pci}) back to {saved_name}"));
        Ok(failed?)
    }
}

fn list_all(netns: &Netns, name: &str) -> Result<Vec<NetnsRdmaDevice>> {
    access::list_devices(netns).with_context(|| format!("looking for rdma {name}"))
}

/// Returns the nodes of a container's devices. Read after the move, which recreates them with other numbers.
pub(super) fn collect_nodes(
    container_netns: &Netns,
    devices: &[(String, NetnsRdmaDevice)],
) -> Result<Vec<RdmaChardev>> {
    let mut nodes = Vec::new();
    for (name, device) in devices {
        let device_nodes = access::nodes(container_netns, device.index)
            .with_context(|| format!("looking for the nodes of rdma {name}"))?;
        if device_nodes.is_empty() {
            bail!("rdma {name} has no uverbs device; load the module ib_uverbs");
        }
        nodes.extend(device_nodes);
    }
    Ok(nodes)
}

fn save_rdma(
    device: &NetnsRdmaDevice,
    request: &MoveRequest<'_>,
    moved_by_other: bool,
) -> SavedRdma {
    SavedRdma { name: request.name.clone(), pci: request.pci, index: device.index, moved_by_other }
}

/// Converts the kernel's error for a device that did not move.
fn check_moved(moved: io::Result<()>, action: &str, name: &str) -> Result<()> {
    if moved.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::OPNOTSUPP)) {
        bail!(
            "rdma {name} cannot move: its driver cannot take a device out of a network namespace (EOPNOTSUPP), like soft-RoCE (rxe) and soft-iWARP (siw); give the container the host's network, or set RDMA's mode to shared"
        );
    }
    moved.with_context(|| format!("{action} rdma {name}"))
}

/// Returns whether the error means that the socket's or sender's namespace lacks the device (`nldev_set_doit`,
/// `rdma_dev_change_netns`).
fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::NODEV))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::rc::Rc;
    use std::thread;
    use std::time::{Duration, Instant};

    use onload_sys::netlink::link::Link;
    use onload_test_tree::network::{self, Child};
    use rustix::fd::BorrowedFd;

    use super::*;
    use crate::moves::netns::test_namespace::{netns, without_first_thread};
    use crate::moves::stand_ins::{RdmaAccess, install_rdma};

    /// A device that the kernel does not move.
    #[derive(Debug)]
    struct Unmoved {
        refusal: Errno,
        found: Vec<NetnsRdmaDevice>,
    }

    impl RdmaAccess for Unmoved {
        fn netns_mode(&self, _: &Netns) -> io::Result<Option<RdmaNetnsMode>> {
            Ok(Some(RdmaNetnsMode::Exclusive))
        }

        fn list_devices(&self, _: &Netns) -> io::Result<Vec<NetnsRdmaDevice>> {
            Ok(self.found.clone())
        }

        fn move_device(&self, _: u32, _: BorrowedFd<'_>) -> io::Result<()> {
            Err(self.refusal.into())
        }

        fn rename(&self, _: &Netns, _: u32, _: &str) -> io::Result<()> {
            Ok(())
        }

        fn nodes(&self, _: &Netns, _: u32) -> io::Result<Vec<RdmaChardev>> {
            Ok(Vec::new())
        }

        fn interfaces(&self, _: &Netns, _: &NetnsRdmaDevice) -> Result<Vec<Link>> {
            Ok(Vec::new())
        }

        fn kernel_users(&self, _: &Netns, _: u32) -> io::Result<BTreeSet<String>> {
            Ok(BTreeSet::new())
        }

        fn host_nodes(&self, _: &str) -> Vec<PathBuf> {
            vec!["/dev/full".into()]
        }
    }

    fn one_device() -> NetnsRdmaDevice {
        install_rdma(Rc::new(Unmoved { refusal: Errno::PERM, found: Vec::new() }));
        NetnsRdmaDevice { index: 3, name: "mlx5_3".to_owned(), pci: None }
    }

    #[test]
    fn a_descriptor_that_a_container_kept_of_a_device_does_not_keep_it_from_the_next() {
        if !network::can_be("descriptors of other network namespaces")
            || !onload_test_needs::programs(&["unshare", "sleep"])
        {
            return;
        }
        let seen = one_device();
        let here = Netns::open_own().unwrap();
        // This process must not have it open.
        let script = "exec 3</dev/full && exec unshare --net sleep 1000";
        let mut keeper = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while here.contains_process(Path::new(&format!("/proc/{}", keeper.id()))) {
            assert!(Instant::now() < until, "it stays in this namespace");
            thread::sleep(Duration::from_millis(5));
        }
        let its = Netns::open_init(keeper.id()).unwrap();
        let [refused, refusal] = [&here, &its].map(|home| usage::check_users(home, &seen));
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        refused.unwrap();
        let refusal = refusal.unwrap_err().to_string();
        assert!(refusal.contains("has \"/dev/full\" open, and would lose it"), "{refusal}");
    }

    #[test]
    fn a_device_does_not_move_that_a_process_has_open_whose_first_thread_has_ended() {
        if !network::can_be("users of RDMA devices") || !onload_test_needs::programs(&["python3"]) {
            return;
        }
        let (host, other) = (Child::of_root(), Child::of_root());
        let seen = one_device();
        let mut holder = None;
        host.within(|| holder = Some(without_first_thread(Path::new("/dev/full"))));
        let mut holder = holder.unwrap();
        let [refusal, elsewhere] =
            [&host, &other].map(|home| usage::check_users(&netns(home), &seen));
        let pid = holder.id();
        drop(holder.stdin.take());
        holder.wait().unwrap();
        elsewhere.unwrap();
        let refusal = refusal.unwrap_err().to_string();
        assert!(refusal.contains(&format!("process {pid} (")), "{refusal}");
    }

    #[test]
    fn a_refused_device_has_gone_only_where_it_is_not_found_any_more() {
        if !network::can_be("moving RDMA devices") {
            return;
        }
        let (host, container) = (Child::of_root(), Child::of_root());
        let facts = SavedRdma {
            name: "mlx5_3".to_owned(),
            pci: "0000:3b:00.3".parse().unwrap(),
            index: 3,
            moved_by_other: false,
        };
        let seen = NetnsRdmaDevice { index: 3, name: "mlx5_3".to_owned(), pci: Some(facts.pci) };
        let take = |refusal: Errno, found: &[NetnsRdmaDevice]| {
            let found = found.to_vec();
            install_rdma(Rc::new(Unmoved { refusal, found }));
            let (home, from) = (netns(&host), netns(&container));
            let taken = RdmaOps::move_home(&from, &seen, &home, &facts);
            taken.map_err(|error| format!("{error:#}"))
        };
        let here = std::slice::from_ref(&seen);
        for refusal in [Errno::NODEV, Errno::INVAL] {
            assert_eq!(take(refusal, &[]), Ok(()));
            let message = take(refusal, here).unwrap_err();
            assert!(message.contains("moving back to the host rdma mlx5_3: "), "{message}");
        }
        assert!(take(Errno::PERM, &[]).is_err());
    }
}
