//! A virtual function of class vfio that is set up for its container. It stays where it is: its
//! [journey](super::journey) is from what it was to what the container has, and back.

mod group;
mod vf;

use onload_core::class::Class;
use onload_core::lease::{SavedFunction, SavedState};
use onload_sys::bail;
use onload_sys::error::{Context as _, Result};
use onload_sys::pci::PciAddress;

pub use vf::{Functions, VfStandIns};

use super::journey::{Arrival, Grant, Home, Kind, NotBack, Request, Way};
use super::netns::Netns;

impl Kind for Functions {
    const CLASS: Class = Class::Vfio;
    const WORD: &'static str = "vfio";
    const THING: &'static str = "physical function";
    const NEEDS: &'static str = "a virtual function is set up by an engine of the host's root";
    const MOVES: bool = false;
    type Facts = SavedFunction;
    type Seen = ();
    type Driver = ();

    fn look(&self, _: &Netns, _: &Request<'_>) -> Result<Option<()>> {
        Ok(Some(()))
    }

    fn examine(
        &self,
        (): &(),
        request: &Request<'_>,
        way: &Way<'_, Self>,
    ) -> Result<(SavedFunction, Option<String>)> {
        let pci = request.pci;
        let wanted = request.vf.clone().unwrap_or_default();
        let vf = self.check_alone(pci);
        let vf = vf.and_then(|()| Functions::examine(self, &way.home.netns, pci, &wanted));
        let vf = vf.with_context(|| format!("vfio {}", request.name))?;
        Ok((SavedFunction { pci, vf }, None))
    }

    fn stray(&self, (): &(), request: &Request<'_>) -> Result<SavedFunction> {
        bail!("vfio {} is not on this host", request.name)
    }

    fn send(
        &self,
        grant: &Grant<'_, Self>,
        facts: &SavedFunction,
        way: &Way<'_, Self>,
    ) -> Result<()> {
        let set = self.set_up(&way.home.netns, facts.pci, &facts.vf);
        set.with_context(|| format!("vfio {}", grant.request.name))
    }

    fn of(facts: &SavedState) -> Option<&SavedFunction> {
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

    fn is_in(&self, _: &Netns, _: PciAddress, _: &str) -> bool {
        true
    }

    fn take(&self, _: &Netns, (): &(), _: &Home<'_, Self>, _: &SavedFunction) -> Result<()> {
        Ok(())
    }

    fn restore(&self, arrival: Arrival<'_, Self>, home: &Home<'_, Self>) -> Result<(), NotBack> {
        let SavedFunction { pci, vf } = &arrival.back.facts;
        // Who kept it open would go on with what it was.
        self.check_unused(*pci)?;
        self.put_back(&home.netns, *pci, vf)
    }
}
