//! A virtual function of class vfio that is set up for its container. It stays where it is: its
//! [journey](super::lifecycle) is from what it was to what the container has, and back.

mod iommu_group;
mod settings;

use onload_core::class::Class;
use onload_core::lease::{SavedFunction, SavedState};
use onload_sys::bail;
use onload_sys::error::{Context as _, Result};
use onload_sys::pci::PciAddress;

pub use settings::{VfAccess, VfStandIns};

use super::lifecycle::{
    ContainerDevice, HostNetns, MoveContext, MoveOps, MoveRequest, RestoreError, ReturnedDevice,
};
use super::netns::Netns;

impl MoveOps for VfAccess {
    const CLASS: Class = Class::Vfio;
    const WORD: &'static str = "vfio";
    const THING: &'static str = "physical function";
    const NEEDS: &'static str = "a virtual function is set up by an engine of the host's root";
    const MOVES: bool = false;
    type Facts = SavedFunction;
    type Seen = ();
    type Driver = ();

    fn find_requested(&self, _: &Netns, _: &MoveRequest<'_>) -> Result<Option<()>> {
        Ok(Some(()))
    }

    fn examine(
        &self,
        (): &(),
        request: &MoveRequest<'_>,
        way: &MoveContext<'_, Self>,
    ) -> Result<(SavedFunction, Option<String>)> {
        let pci = request.pci;
        let wanted = request.vf.clone().unwrap_or_default();
        let vf = self.check_alone(pci);
        let vf = vf.and_then(|()| VfAccess::examine(self, &way.home.netns, pci, &wanted));
        let vf = vf.with_context(|| format!("vfio {}", request.name))?;
        Ok((SavedFunction { pci, vf }, None))
    }

    fn stray_state(&self, (): &(), request: &MoveRequest<'_>) -> Result<SavedFunction> {
        bail!("vfio {} is not on this host", request.name)
    }

    fn send(
        &self,
        grant: &ContainerDevice<'_, Self>,
        facts: &SavedFunction,
        way: &MoveContext<'_, Self>,
    ) -> Result<()> {
        let set = self.set_up(&way.home.netns, facts.pci, &facts.vf);
        set.with_context(|| format!("vfio {}", grant.request.name))
    }

    fn downcast_saved(facts: &SavedState) -> Option<&SavedFunction> {
        match facts {
            SavedState::Function(facts) => Some(facts),
            SavedState::Interface(_) | SavedState::Rdma(_) => None,
        }
    }

    /// Its name is its address.
    fn identity(facts: &SavedFunction) -> (PciAddress, &str) {
        (facts.pci, "")
    }

    fn find(&self, _: &Netns, _: &SavedFunction) -> Result<Option<()>> {
        Ok(Some(()))
    }

    fn exists_in(&self, _: &Netns, _: PciAddress, _: &str) -> bool {
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
        arrival: ReturnedDevice<'_, Self>,
        home: &HostNetns<'_, Self>,
    ) -> Result<(), RestoreError> {
        let SavedFunction { pci, vf } = &arrival.back.facts;
        // Who kept it open would go on with what it was.
        self.check_unused(*pci)?;
        self.restore_settings(&home.netns, *pci, vf)
    }
}
