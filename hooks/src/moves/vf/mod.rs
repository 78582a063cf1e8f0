//! A virtual function of class vfio that is set up for its container. It stays on the host; in its
//! [lifecycle](super::lifecycle) only its settings change.

mod access;
mod iommu_group;
pub(super) mod kernel;
mod settings;

use onload_core::class::Class;
use onload_lease::{SavedFunction, SavedState};
use onload_sys::error::{Context as _, Result, bail, error};
use onload_sys::pci::PciAddress;

use iommu_group::check_alone;
pub(crate) use settings::VfAccess;
pub(super) use settings::{examine, restore_settings, set_up};

use super::lifecycle::{
    ContainerDevice, HostNetns, MoveContext, MoveOps, MoveRequest, RestoreError, ReturnedDevice,
};
use super::netns::Netns;

impl MoveOps for VfAccess {
    const CLASS: Class = Class::Vfio;
    const WORD: &'static str = "vfio";
    const NOUN: &'static str = "physical function";
    const NEEDS: &'static str = "the settings of a virtual function need a rootful engine on the \
        host";
    const MOVES: bool = false;
    type Saved = SavedFunction;
    type Observation = ();

    fn find_requested(&self, _: &Netns, _: &MoveRequest<'_>) -> Result<Option<()>> {
        Ok(Some(()))
    }

    fn examine(
        &self,
        (): &(),
        request: &MoveRequest<'_>,
        context: &MoveContext<'_, Self>,
    ) -> Result<(SavedFunction, Option<String>)> {
        let pci = request.pci;
        let vf_config = request.vf.clone().unwrap_or_default();
        let vf = check_alone(pci)
            .and_then(|()| examine(&context.host_netns.netns, pci, &vf_config))
            .with_context(|| format!("vfio {}", request.name))?;
        Ok((SavedFunction { pci, vf }, None))
    }

    fn stray_state(&self, (): &(), request: &MoveRequest<'_>) -> Result<SavedFunction> {
        bail!("vfio {} not found on this host", request.name)
    }

    fn send(
        &self,
        container_device: &ContainerDevice<'_, Self>,
        saved: &SavedFunction,
        context: &MoveContext<'_, Self>,
    ) -> Result<()> {
        let set = set_up(&context.host_netns.netns, saved.pci, &saved.vf);
        set.with_context(|| format!("vfio {}", container_device.request.name))
    }

    fn downcast_saved(saved: &SavedState) -> Option<&SavedFunction> {
        match saved {
            SavedState::Function(saved) => Some(saved),
            SavedState::Interface(_) | SavedState::Rdma(_) => None,
        }
    }

    fn find(&self, _: &Netns, _: &SavedFunction) -> Result<Option<()>> {
        Ok(Some(()))
    }

    fn is_in_netns(&self, _: &Netns, _: PciAddress, _: &str) -> bool {
        true
    }

    fn move_home(
        &self,
        _: &Netns,
        (): &(),
        _: &HostNetns<'_, Self>,
        _: &SavedFunction,
    ) -> Result<()> {
        Ok(())
    }

    fn restore(
        &self,
        returned: ReturnedDevice<'_, Self>,
        host_netns: &HostNetns<'_, Self>,
    ) -> Result<(), RestoreError> {
        let SavedFunction { pci, vf } = &returned.returning.saved;
        let context = || format!("putting back virtual function {pci}");
        let returning = &returned.returning;
        match self.find_last_user(returning.leases, returning.device, *pci) {
            Ok(None) => restore_settings(&host_netns.netns, *pci, vf),
            // The process still uses the function with these settings, so they stay.
            Ok(Some(user)) => Err(error!(
                "{}: it is still in use by {user}; stop that, then run \"onload-ctk lease \
                 restore\"",
                context()
            )
            .into()),
            // Any user can make the search time out, which must not leave the container's VLAN on the function. The
            // lease reserves the function until a longer search has ended.
            Err(failed) => {
                restore_settings(&host_netns.netns, *pci, vf)?;
                Err(error!(
                    "{}: its settings are restored, but could not determine whether a process \
                     still has it open: {failed}; run \"onload-ctk lease restore\", which searches \
                     for longer",
                    context()
                )
                .into())
            }
        }
    }
}
