//! The journey of a device, an interface or an RDMA device, into a container's network namespace and back. Each state is a
//! type, whose methods are all that may happen next; each method says which state that is.
//!
//! ```text
//! MoveRequest ──▶ ContainerDevice ──▶ ReturningDevice ──▶ ReturnedDevice ──▶ the lease has ended
//!    │                                      ▲
//!    └──────────────────────────────────────┘ the device could not be moved
//! ```
//!
//! A virtual function that is set up for a container and stays on the host takes the same way.
//!
//! A process may be killed at any point. What is known then is the lease, which is written before the device moves, and
//! ends when the device is what it was: whoever comes next finds a [`ReturningDevice`].

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use onload_core::class::Class;
use onload_core::container_id::ContainerId;
use onload_core::lease::{DeviceId, Leases, MoveRecord, STAYS, SavedState, Token};
use onload_core::netdev::address::InterfaceAddress;
use onload_core::netdev::new_name::NewInterfaceName;
use onload_core::netdev::settings::NetdevSettings;
use onload_core::vf_config::VfConfig;
use onload_sys::error::{Context as _, Error, Result};
use onload_sys::fs::lock::Lock;
use onload_sys::pci::PciAddress;
use onload_sys::processes::Processes;
use onload_sys::{bail, error};

use super::netns::{self, Netns};
use crate::config::config_file;
use crate::decide::host_view::LocalHost;
use crate::record::container_dir::open_run;
use crate::record::lease::{self, ContainerInit};

/// How long a container's start or end waits for a device whose namespace has ended: the kernel takes its time to give it
/// back.
pub(super) const DYING_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at a namespace that ends.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// How often a device is fetched from a container that still changes it.
const FETCHES: u32 = 4;
/// After that long it is not fetched again: who is in its namespace, or in any other, can make each look at it take its
/// time.
const FETCHING: Duration = Duration::from_secs(4);

/// What is different about interfaces, RDMA devices and virtual functions.
pub(crate) trait MoveOps: Sized {
    const CLASS: Class;
    /// What a message calls such a device before its name, and what without one.
    const WORD: &'static str;
    const THING: &'static str;
    /// What it needs where the engine is in a user namespace.
    const NEEDS: &'static str;
    /// Whether it leaves the host's network namespace.
    const MOVES: bool = true;
    /// What a lease keeps of it.
    type Facts: Clone + Into<SavedState>;
    /// The device as a network namespace has it now.
    type Seen;
    /// What [`MoveOps::prepare`] found.
    type Driver: Default;

    /// Why none can move from the host to this container.
    fn check_way(&self, _home: &Netns, _to: &Netns, _name: &str) -> Result<()> {
        Ok(())
    }
    /// What else must be nobody's before the device moves, beside the device itself.
    fn reserve(&self, _: &Leases, _: &MoveRequest<'_>) -> Result<Option<Lock>> {
        Ok(None)
    }
    /// The device that a hook names, in a namespace; none where that has none.
    fn find_requested(
        &self,
        netns: &Netns,
        request: &MoveRequest<'_>,
    ) -> Result<Option<Self::Seen>>;
    /// Everything that may be wrong, before anything is changed; what the device is, and a warning.
    fn examine(
        &self,
        seen: &Self::Seen,
        request: &MoveRequest<'_>,
        way: &MoveContext<'_, Self>,
    ) -> Result<(Self::Facts, Option<String>)>;
    /// Refuses one that another container of the namespace has otherwise than this one asks for.
    fn check_there(&self, _there: &Netns, _seen: &Self::Seen, _: &MoveRequest<'_>) -> Result<()> {
        Ok(())
    }
    /// What is known of a device that is in the container's namespace though no lease says how it was before.
    fn stray_state(&self, seen: &Self::Seen, request: &MoveRequest<'_>) -> Result<Self::Facts>;
    /// Gives the container a device that is leased to it.
    fn send(
        &self,
        grant: &ContainerDevice<'_, Self>,
        facts: &Self::Facts,
        way: &MoveContext<'_, Self>,
    ) -> Result<()>;

    /// What a lease keeps, if that is of this kind.
    fn downcast_saved(facts: &SavedState) -> Option<&Self::Facts>;
    /// The PCI function of a device, and its name for messages.
    fn identity(facts: &Self::Facts) -> (PciAddress, &str);
    /// The device of a lease, in a namespace, whatever it is called.
    fn find(&self, netns: &Netns, facts: &Self::Facts) -> Result<Option<Self::Seen>>;
    /// Whether a namespace has a device of a function.
    fn exists_in(&self, netns: &Netns, pci: PciAddress, name: &str) -> bool;
    /// What can be done for a device that may be without its driver, and what has to be before it comes.
    fn prepare(&self, _: &HostNetns<'_, Self>, _: &Self::Facts) -> Result<Self::Driver> {
        Ok(Self::Driver::default())
    }
    /// Takes the device out of a namespace, whatever was done to it there; no error where it has gone meanwhile.
    fn move_home(
        &self,
        from: &Netns,
        seen: &Self::Seen,
        home: &HostNetns<'_, Self>,
        facts: &Self::Facts,
    ) -> Result<()>;
    /// Makes a device that is on the host what it was.
    fn restore(
        &self,
        arrival: ReturnedDevice<'_, Self>,
        home: &HostNetns<'_, Self>,
    ) -> Result<(), RestoreError>;

    fn search_context(name: &str) -> String {
        format!("looking at other network namespaces for {} {name}", Self::WORD)
    }

    /// `keeper` keeps the namespace where the device is.
    fn not_here_error(name: &str, pci: PciAddress, keeper: Option<String>) -> Error {
        let why = match keeper {
            Some(keeper) => format!("; it is in a network namespace that {keeper} keeps"),
            None => "; is its function bound to its driver?".to_owned(),
        };
        error!("{} {name} ({pci}) is not on this host{why}", Self::WORD)
    }
}

/// The host's own network namespace, where devices come from and go back to.
pub(crate) struct HostNetns<'a, K> {
    pub(super) netns: Netns,
    pub(super) kind: &'a K,
}

impl<'a, K: MoveOps> HostNetns<'a, K> {
    /// The namespace of this process, which has to be the host's; `name` is for messages.
    fn open(kind: &'a K, name: &str) -> Result<Self> {
        let netns = Netns::open_own()?;
        if !netns.is_initial() {
            bail!(
                "{} {name} cannot move: the engine is not in this host's own network and PID namespaces, and has no {} of it",
                K::WORD,
                K::THING
            );
        }
        Ok(HostNetns { netns, kind })
    }

    /// The device of a lease, if it is here.
    pub(super) fn find(&self, facts: &K::Facts) -> Result<Option<K::Seen>> {
        self.kind.find(&self.netns, facts)
    }

    /// Says where a device is that is not on the host.
    pub(super) fn away_error(&self, pci: PciAddress, name: &str) -> Error {
        match self.find_elsewhere(name, &|netns| self.kind.exists_in(netns, pci, name)) {
            Ok(found) => K::not_here_error(name, pci, found.map(|found| found.keeper)),
            Err(error) => error,
        }
    }

    /// The namespace that has a device; an error where there was no time for all of them.
    fn find_elsewhere(
        &self,
        name: &str,
        has_it: &dyn Fn(&Netns) -> bool,
    ) -> Result<Option<netns::FoundNetns>> {
        netns::find_netns(&self.netns, has_it).with_context(|| K::search_context(name))
    }
}

/// The way of one kind of devices from the host to a container.
pub(crate) struct MoveContext<'a, K> {
    pub(super) home: HostNetns<'a, K>,
    pub(super) to: Netns,
    pub(super) leases: Leases,
    container: ContainerInit<'a>,
    /// All of the container's leases but the devices.
    claim: lease::InitLeaseRequest<'a>,
    host: &'a LocalHost,
}

impl<'a, K: MoveOps> MoveContext<'a, K> {
    /// `name` is for messages.
    fn open(
        name: &str,
        claim: lease::InitLeaseRequest<'a>,
        container: ContainerInit<'a>,
        host: &'a LocalHost,
        kind: &'a K,
    ) -> Result<Self> {
        if !host.is_initial_namespace() {
            bail!(
                "{} {name} cannot move: the engine is in a user namespace (rootless); {}",
                K::WORD,
                K::NEEDS
            );
        }
        let home = HostNetns::open(kind, name)?;
        let to = Netns::open_init(container.init)?;
        kind.check_way(&home.netns, &to, name)?;
        Ok(MoveContext {
            home,
            to,
            leases: Leases::open(&open_run(host)?, Processes::default())?,
            container,
            claim,
            host,
        })
    }

    /// Leases a device to the container; `moved` says what it was on the host, unless it stays where it is.
    fn lease_device(&self, device: &DeviceId, moved: Option<&MoveRecord>) -> Result<()> {
        let wanted = lease::InitLeaseRequest {
            devices: slice::from_ref(device),
            moved,
            alone: K::MOVES,
            ..self.claim
        };
        lease::claim(wanted, self.container, self.host).map(drop)
    }

    /// Whether the hook of a claim has set a device up for the container as the claim says. The device's own hook, which
    /// comes after it and names no claim, leaves it so.
    fn is_set_up_by_claim(&self, device: &DeviceId) -> Result<bool> {
        if self.claim.asked.claim.is_some() {
            return Ok(false);
        }
        let (id, bundle) = (self.container.id, lease::canonical(self.container.bundle)?);
        let found = self.leases.is_set_up_for_claim(device, id, &bundle)?;
        Ok(found)
    }

    /// What a lease says of a device in the container's namespace.
    fn new_record(&self, facts: SavedState, addresses: Vec<IpAddr>) -> MoveRecord {
        MoveRecord {
            facts,
            namespace: if K::MOVES { self.to.cookie() } else { STAYS },
            addresses,
            returning: false,
            left: None,
            rebound: None,
        }
    }

    /// Brings back a device that was to stay in the container.
    fn return_device(&self, device: &DeviceId, facts: K::Facts) -> Result<()> {
        let (id, bundle) = (self.container.id, lease::canonical(self.container.bundle)?);
        self.leases.mark_returning(device, id, &bundle)?;
        // An earlier start of the container may have left it otherwise than it was, which its lease knows.
        let (leases, kind) = (&self.leases, self.home.kind);
        let kept = leases.find_returning(device)?;
        let kept = kept.and_then(|moved| ReturningDevice::new(leases, device, moved));
        let back = kept.unwrap_or_else(|| ReturningDevice {
            leases,
            device,
            moved: self.new_record(facts.clone().into(), Vec::new()),
            facts,
        });
        if let Some(seen) = kind.find(&self.to, &back.facts)? {
            kind.move_home(&self.to, &seen, &self.home, &back.facts)?;
        }
        back.retrieve(&self.home, None, DYING_PATIENCE)?.end(&self.home)
    }
}

/// A device that a hook names for a container.
#[derive(Clone, Debug)]
pub(crate) struct MoveRequest<'a> {
    /// As it is leased.
    pub(super) device: &'a DeviceId,
    /// Its name on the host.
    pub(super) name: String,
    pub(super) pci: PciAddress,
    /// What it is called in the container; none where it keeps its name.
    pub(super) new_name: Option<&'a NewInterfaceName>,
    /// What the hook's arguments say that it is to have there.
    pub(super) asked: NetdevSettings,
    /// What it is to have there: that, and where it says nothing, what the operator's configuration says.
    pub(super) settings: NetdevSettings,
    /// What its virtual function is to be.
    pub(super) vf: Option<VfConfig>,
}

impl<'a> MoveRequest<'a> {
    /// Next: [`ContainerDevice`]. What fails before the lease has changed nothing; what fails afterwards is taken back.
    fn fulfill<K: MoveOps>(self, way: &MoveContext<'_, K>) -> Result<ContainerDevice<'a, K>> {
        let (kind, leases) = (way.home.kind, &way.leases);
        let mut locks = vec![leases.lock_device(self.device)?];
        return_leftovers(leases, self.device, kind, DYING_PATIENCE)?;
        locks.extend(kind.reserve(leases, &self)?);
        let Some(seen) = kind.find_requested(&way.home.netns, &self)? else {
            return self.join_others(way, locks);
        };
        let grant = ContainerDevice::new(self, seen, locks);
        if !K::MOVES {
            let device = grant.request.device;
            if let Some(moved) = leases.find_moved_to(device, STAYS)? {
                if let Err(otherwise) = grant.request.check_same(&moved)
                    && !way.is_set_up_by_claim(device)?
                {
                    return Err(otherwise);
                }
                return grant.lease_in_place(way, Some(&moved));
            }
        } else if way.to.is_same(&way.home.netns) {
            // A container with the host's network opens it where it is.
            return grant.lease_in_place(way, None);
        }
        grant.send(way)
    }

    /// One that others have too is set up once.
    fn check_same(&self, moved: &MoveRecord) -> Result<()> {
        let wanted = self.vf.as_ref().map(VfConfig::to_settings).transpose()?;
        let had = moved.facts.vf().map(|vf| vf.given);
        if wanted != had {
            bail!(
                "{}: another container has it too, and its virtual function is set up otherwise; ask for the same VLAN, or for another device",
                self.device
            );
        }
        Ok(())
    }

    /// The device is not on the host: another container of the same namespace may have it, or somebody else has put it
    /// there. Next: [`ContainerDevice`].
    fn join_others<K: MoveOps>(
        self,
        way: &MoveContext<'_, K>,
        locks: Vec<Lock>,
    ) -> Result<ContainerDevice<'a, K>> {
        let (kind, leases) = (way.home.kind, &way.leases);
        let Some(seen) = kind.find_requested(&way.to, &self)? else {
            let held = leases.holders_error(self.device, way.claim.asked.token.as_ref())?;
            return Err(held.unwrap_or_else(|| way.home.away_error(self.pci, &self.name)));
        };
        let moved = leases.find_moved_to(self.device, way.to.cookie())?;
        let (facts, addresses) = match moved {
            Some(moved) => {
                self.check_same(&moved)?;
                kind.check_there(&way.to, &seen, &self)?;
                (moved.facts, moved.addresses)
            }
            None => (kind.stray_state(&seen, &self)?.into(), Vec::new()),
        };
        let moved = way.new_record(facts, addresses);
        ContainerDevice::new(self, seen, locks).lease_in_place(way, Some(&moved))
    }
}

/// A device that the container has, or is about to have.
pub(crate) struct ContainerDevice<'a, K: MoveOps> {
    pub(super) request: MoveRequest<'a>,
    /// As it was when it was found.
    pub(super) seen: K::Seen,
    /// Nobody else touches it before all are granted.
    _locks: Vec<Lock>,
    /// What it was; none where it did not move for this container.
    facts: Option<K::Facts>,
    /// What is not known of it.
    warning: Option<String>,
}

impl<'a, K: MoveOps> ContainerDevice<'a, K> {
    /// Not before it is leased.
    fn new(request: MoveRequest<'a>, seen: K::Seen, locks: Vec<Lock>) -> Self {
        ContainerDevice { request, seen, _locks: locks, facts: None, warning: None }
    }

    /// For a container in whose namespace it is.
    fn lease_in_place(self, way: &MoveContext<'_, K>, moved: Option<&MoveRecord>) -> Result<Self> {
        way.lease_device(self.request.device, moved)?;
        Ok(self)
    }

    /// Leases it with what it was, and moves it then. Next: the same, or [`ReturningDevice`] and its error.
    fn send(mut self, way: &MoveContext<'_, K>) -> Result<Self> {
        let (request, kind) = (&self.request, way.home.kind);
        let (facts, warning) = kind.examine(&self.seen, request, way)?;
        let addresses = request.settings.addresses.iter();
        let addresses = addresses.map(InterfaceAddress::address).collect();
        let moved = way.new_record(facts.clone().into(), addresses);
        way.lease_device(request.device, Some(&moved))?;
        if let Err(failed) = kind.send(&self, &facts, way) {
            return Err(combine_errors(failed, way.return_device(request.device, facts)));
        }
        (self.facts, self.warning) = (Some(facts), warning);
        Ok(self)
    }

    /// Next: [`ReturningDevice`], where it moved for this container. Otherwise it is the host's network, or the others of the
    /// namespace keep the device.
    fn withdraw(self, way: &MoveContext<'_, K>) -> Result<()> {
        let device = self.request.device;
        if let Some(facts) = self.facts {
            return way.return_device(device, facts);
        }
        let (id, bundle) = (way.container.id, lease::canonical(way.container.bundle)?);
        way.leases.release_unmoved(device, id, &bundle)
    }
}

/// All that a container is granted of one kind.
pub(crate) struct ContainerDevices<'a, K: MoveOps> {
    way: MoveContext<'a, K>,
    all: Vec<ContainerDevice<'a, K>>,
}

impl<'a, K: MoveOps> ContainerDevices<'a, K> {
    /// Gives a container all of the devices, or none of them: after an error what moved is back, or the error says that
    /// it is not.
    pub(super) fn new(
        mut requests: Vec<MoveRequest<'a>>,
        claim: lease::InitLeaseRequest<'a>,
        container: ContainerInit<'a>,
        host: &'a LocalHost,
        kind: &'a K,
    ) -> Result<Option<Self>> {
        // Two containers that want the same two must not wait for each other.
        requests.sort_unstable_by_key(|one| one.device);
        let Some(first) = requests.first() else {
            return Ok(None);
        };
        let way = MoveContext::open(&first.name, claim, container, host, kind)?;
        let mut grants = ContainerDevices { way, all: Vec::new() };
        for request in requests {
            match request.fulfill(&grants.way) {
                Ok(grant) => grants.all.push(grant),
                Err(failed) => return Err(grants.withdraw(failed)),
            }
        }
        Ok(Some(grants))
    }

    pub(super) fn to(&self) -> &Netns {
        &self.way.to
    }

    /// The devices with their names on the host.
    pub(super) fn observations(&self) -> impl Iterator<Item = (&str, &K::Seen)> {
        let all = self.all.iter();
        all.map(|one| (one.request.name.as_str(), &one.seen))
    }

    /// What is not known of the devices. From here on others may touch them.
    pub(super) fn finish(self) -> Vec<String> {
        let all = self.all.into_iter();
        all.filter_map(|one| one.warning).collect()
    }

    /// Takes everything back, since something failed; the error to report.
    pub(crate) fn withdraw(self, mut failed: Error) -> Error {
        for one in self.all.into_iter().rev() {
            failed = combine_errors(failed, one.withdraw(&self.way));
        }
        failed
    }
}

/// Why a device was not given, and did not come back either.
fn combine_errors(failed: Error, back: Result<()>) -> Error {
    match back {
        Ok(()) => failed,
        Err(back) => {
            error!("{failed:#}; and then: {back}; \"onload-ctk lease restore\" brings it back")
        }
    }
}

/// A device that is to come back: its lease says so, or no container has it any more. After an error it still is, and the
/// next try goes on where this ended.
pub(super) struct ReturningDevice<'a, K: MoveOps> {
    pub(super) leases: &'a Leases,
    pub(super) device: &'a DeviceId,
    pub(super) moved: MoveRecord,
    /// What it was.
    pub(super) facts: K::Facts,
}

impl<'a, K: MoveOps> ReturningDevice<'a, K> {
    /// None for a device of another kind.
    pub(super) fn new(leases: &'a Leases, device: &'a DeviceId, moved: MoveRecord) -> Option<Self> {
        let facts = K::downcast_saved(&moved.facts)?.clone();
        Some(ReturningDevice { leases, device, moved, facts })
    }

    pub(super) fn update_record(&self, change: &dyn Fn(&mut MoveRecord)) -> Result<()> {
        self.leases.update_moves(self.device, change)
    }

    fn complete(
        self,
        kind: &K,
        gone: Option<&ExitedContainer<'_>>,
        patience: Duration,
    ) -> Result<()> {
        let home = HostNetns::open(kind, self.device.name.as_str())?;
        self.retrieve(&home, gone, patience)?.end(&home)
    }

    /// Has it on the host, wherever it is. Next: [`ReturnedDevice`].
    fn retrieve(
        self,
        home: &HostNetns<'_, K>,
        gone: Option<&ExitedContainer<'_>>,
        patience: Duration,
    ) -> Result<ReturnedDevice<'a, K>> {
        let facts = &self.facts;
        let begun = Instant::now();
        let mut fetched = 0;
        // A namespace that is nowhere now is nowhere later: nobody is in it who could show it.
        let mut is_somewhere = true;
        let mut failed = None;
        let driver = home.kind.prepare(home, facts)?;
        loop {
            if let Some(seen) = home.find(facts)? {
                let back = self;
                return Ok(ReturnedDevice { back, seen, driver });
            }
            let is_in_time = fetched == 0 || begun.elapsed() < FETCHING;
            if is_somewhere && fetched < FETCHES && is_in_time {
                fetched += 1;
                // Whoever is in that namespace may be in the way, and may be too late the next time.
                match self
                    .move_home(home, gone.and_then(ExitedContainer::network_namespace).as_deref())
                {
                    Ok(found) => is_somewhere = found,
                    Err(error) => failed = Some(error),
                }
                continue;
            }
            if begun.elapsed() >= patience {
                let (pci, name) = K::identity(facts);
                return Err(failed.unwrap_or_else(|| home.away_error(pci, name)));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Takes it out of the namespace that it moved to, or that a container moved it on to; whether it was somewhere.
    fn move_home(&self, home: &HostNetns<'_, K>, hint: Option<&Path>) -> Result<bool> {
        let (kind, facts) = (home.kind, &self.facts);
        // Where there is no time for that, the search below says so.
        if let Ok(Some(there)) = netns::find_by_cookie(self.moved.namespace, hint)
            && let Some(seen) = kind.find(&there.netns, facts)?
        {
            kind.move_home(&there.netns, &seen, home, facts)?;
            return Ok(true);
        }
        let has_it = |netns: &Netns| matches!(kind.find(netns, facts), Ok(Some(_)));
        let Some(there) = home.find_elsewhere(K::identity(facts).1, &has_it)? else {
            return Ok(false);
        };
        if let Some(seen) = kind.find(&there.netns, facts)? {
            kind.move_home(&there.netns, &seen, home, facts)?;
        }
        Ok(true)
    }
}

/// A device that is on the host again, and may not be what it was.
pub(crate) struct ReturnedDevice<'a, K: MoveOps> {
    pub(super) back: ReturningDevice<'a, K>,
    pub(super) seen: K::Seen,
    pub(super) driver: K::Driver,
}

impl<K: MoveOps> ReturnedDevice<'_, K> {
    /// Makes it what it was, and ends its lease. If that fails, its lease says what of it is not as it was.
    fn end(self, home: &HostNetns<'_, K>) -> Result<()> {
        let ReturningDevice { leases, device, .. } = self.back;
        match home.kind.restore(self, home) {
            Ok(()) => leases.end_returned(device),
            Err(RestoreError { error, differs }) => {
                if differs.is_some() {
                    let say = |moved: &mut MoveRecord| moved.left.clone_from(&differs);
                    // The error says it too.
                    let _ = leases.update_moves(device, &say);
                }
                Err(error)
            }
        }
    }
}

/// Why a device is not what it was.
#[derive(Debug)]
pub(crate) struct RestoreError {
    pub(super) error: Error,
    /// What of it differs, where it is on the host; none where it is not, or where something may stand on it.
    pub(super) differs: Option<String>,
}

impl From<Error> for RestoreError {
    fn from(error: Error) -> Self {
        RestoreError { error, differs: None }
    }
}

/// Brings back what earlier containers have left of a device, for who has its lock; whether there was something.
pub(super) fn return_leftovers<K: MoveOps>(
    leases: &Leases,
    device: &DeviceId,
    kind: &K,
    patience: Duration,
) -> Result<bool> {
    let moved = leases.find_returning(device)?;
    let Some(back) = moved.and_then(|moved| ReturningDevice::new(leases, device, moved)) else {
        return Ok(false);
    };
    back.complete(kind, None, patience).map(|()| true)
}

/// A container that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExitedContainer<'a> {
    pub(crate) container: &'a ContainerId,
    pub(crate) token: Option<&'a Token>,
    /// As it was named, links and all: config.json is below it.
    pub(crate) bundle: &'a Path,
}

impl ExitedContainer<'_> {
    /// The file of the network namespace that config.json names.
    fn network_namespace(&self) -> Option<PathBuf> {
        config_file::network_namespace(&self.bundle.join("config.json"))
    }
}

/// Ends what a container that is gone has of devices of a kind, and brings back those of which it was the last one of
/// its namespace. Those that did not move are released. What does not come back now stays with its lease, and the first
/// of these errors is returned.
pub(super) fn release_devices<K: MoveOps>(
    leased: &[DeviceId],
    gone: &ExitedContainer<'_>,
    kind: &K,
) -> Result<()> {
    let own = leased.iter().filter(|device| device.class == K::CLASS);
    let own: Vec<&DeviceId> = own.collect();
    if own.is_empty() {
        return Ok(());
    }
    let Some(leases) = lease::find()? else {
        return Ok(());
    };
    let bundle = lease::was_canonical(gone.bundle);
    let take_one = |device: &DeviceId| {
        // Most devices do not move, and a lock leaves a file.
        let _moving =
            if leases.has_moved(device)? { Some(leases.lock_device(device)?) } else { None };
        let left = leases.release_exited(device, gone.container, &bundle, gone.token)?;
        let back = left.and_then(|moved| ReturningDevice::new(&leases, device, moved));
        back.map_or(Ok(()), |back| back.complete(kind, Some(gone), DYING_PATIENCE))
    };
    retry_each(own, &take_one)
}

/// Does it for each device, and once more for those that failed where another one did not: that one may have had the
/// name of another, which is free then. The first error that stays.
fn retry_each(devices: Vec<&DeviceId>, act: &dyn Fn(&DeviceId) -> Result<()>) -> Result<()> {
    let failed = |device| act(device).err().map(|error| (device, error));
    let all = devices.len();
    let mut left: Vec<(&DeviceId, Error)> = devices.into_iter().filter_map(failed).collect();
    if left.len() < all {
        let devices = left.into_iter().map(|(device, _)| device);
        left = devices.filter_map(failed).collect();
    }
    match left.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

#[derive(Debug)]
pub struct RestoreResult {
    pub device: DeviceId,
    pub result: Result<()>,
}

/// Brings back each of the wanted devices whose containers have ended, under its lock. Whether one is wanted is asked when
/// its turn comes. An error says that the leases cannot be read.
pub(super) fn restore<K: MoveOps>(
    leases: &Leases,
    left_for: lease::Left<'_>,
    kind: &K,
    patience: Duration,
) -> Result<Vec<RestoreResult>> {
    let listed = leases.list()?.into_iter();
    let returning = listed.filter(|one| one.is_returning && one.device.class == K::CLASS);
    let mut devices: Vec<DeviceId> = returning.map(|one| one.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let beginning = random_start(devices.len());
    devices.rotate_left(beginning);
    let mut restored = Vec::new();
    for device in devices {
        let Some(left) = left_for(&device) else {
            continue;
        };
        let moving = leases.lock_device_within(&device, left);
        let settled = moving.and_then(|_moving| return_leftovers(leases, &device, kind, patience));
        if !matches!(settled, Ok(false)) {
            let result = settled.map(drop);
            restored.push(RestoreResult { device, result });
        }
    }
    restored.sort_unstable_by(|one, other| one.device.cmp(&other.device));
    Ok(restored)
}

/// At which of so many devices a look begins: a random one. Each may take its time, and whoever looks may be stopped
/// before the last one, which is not to be the same each time.
fn random_start(many: usize) -> usize {
    let mut bytes = [0; size_of::<usize>()];
    // Without random bytes it begins at the first, as good as any other.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    usize::from_ne_bytes(bytes).checked_rem(many).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_may_begin_at_each_device() {
        assert_eq!((random_start(0), random_start(1)), (0, 0));
        let begun: std::collections::BTreeSet<usize> = (0..1000).map(|_| random_start(5)).collect();
        assert_eq!(begun.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }
}
