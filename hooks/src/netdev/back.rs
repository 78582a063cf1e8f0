//! The way back: out of the network namespace where an interface is, and what it was on the host.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use onload_core::error::{Context as _, Error, Result};
use onload_core::fs::lock::START_PATIENCE;
use onload_core::lease::{Device, Facts, InterfaceFacts, Leases, Moved};
use onload_core::pci::PciAddress;
use onload_core::{bail, error};

use super::facts::{self, Step};
use super::home::{ANY, Home};
use super::identity::Identity;
use super::leftovers::{looking, moving};
use super::rebind::{self, Function};
use super::{leftovers, onload, queues};
use crate::netlink::link::{Change, Link, PROMISCUOUS, UP};
use crate::netns::{self, Depth, Netns};
use crate::returning::{self, Hint, is_passing, passing};

/// Between two looks at a namespace that ends.
const PAUSE: Duration = Duration::from_millis(20);
/// How often an interface is fetched from a container that still changes it.
const FETCHES: u32 = 4;
/// After that long it is not fetched again: who is in its namespace, or in any other, can make each look at it take its
/// time.
const FETCHING: Duration = Duration::from_secs(4);
/// How long a driver that is bound anew has to make its interface, and udev to see it.
const BINDING: Duration = Duration::from_secs(10);
/// Where udev listens, and where it keeps what it knows of each interface.
const UDEV: [&str; 2] = ["/run/udev/control", "/run/udev/data"];
/// How often it is put right: udev names an interface that comes at the same time.
const ROUNDS: u32 = 4;

struct Lease<'a> {
    leases: &'a Leases,
    device: &'a Device,
    moved: &'a Moved,
}

impl Lease<'_> {
    fn amend(&self, change: &dyn Fn(&mut Moved<Facts>)) -> Result<()> {
        self.leases.amend(self.device, START_PATIENCE, change)
    }
}

/// Why an interface is not what it was.
#[derive(Debug)]
struct NotBack {
    error: Error,
    /// What of it differs, where it is on the host; none where it is not, or where something may stand on it.
    differs: Option<String>,
}

impl From<Error> for NotBack {
    fn from(error: Error) -> Self {
        NotBack {
            error,
            differs: None,
        }
    }
}

/// Brings an interface back as [`bring`] does. Its lease says then what of it is not as it was.
pub(super) fn bring_leased(
    leases: &Leases,
    device: &Device,
    home: &Home<'_>,
    moved: &Moved,
    hint: Hint<'_>,
    patience: Duration,
) -> Result<()> {
    let lease = Lease {
        leases,
        device,
        moved,
    };
    bring(home, &lease, hint, patience).map_err(|NotBack { error, differs }| {
        if differs.is_some() {
            // The error says it too.
            let _ = lease.amend(&|moved| moved.left.clone_from(&differs));
        }
        error
    })
}

/// Brings back what earlier containers have left of an interface, for who has its lock; whether there was something.
pub(super) fn settle(
    leases: &Leases,
    device: &Device,
    identity: &Identity,
    patience: Duration,
) -> Result<bool> {
    returning::settle(leases, device, &|moved| {
        let home = Home::open(identity, ANY)?;
        bring_leased(leases, device, &home, moved, &|| None, patience)
    })
}

/// Brings an interface back and makes it what it was. If it is on the host already, that is done there. `hint` names a
/// file that may be of its namespace. After an error, calling again goes on where this ended.
fn bring(
    home: &Home<'_>,
    lease: &Lease<'_>,
    hint: Hint<'_>,
    patience: Duration,
) -> Result<(), NotBack> {
    let moved = lease.moved;
    let facts = &moved.facts;
    let begun = Instant::now();
    let mut fetched = 0;
    // A namespace that is nowhere now is nowhere later: nobody is in it who could show it.
    let mut is_somewhere = true;
    let mut failed = None;
    sweep(home)?;
    let function = Function::find(Path::new(rebind::PCI), facts.pci);
    // If this fails, the interface is not on the host, which is what is said then.
    let is_bound_again = function
        .as_ref()
        .is_some_and(|own| own.bind_again().is_ok_and(|done| done));
    if is_bound_again {
        wait_for(home, facts)?;
    }
    loop {
        if let Some(link) = home.find(facts)? {
            return finish(home, link, facts, &|link| {
                if is_bound_again {
                    // Nobody has had it since its driver made it.
                    return Ok(());
                }
                clear(home, link, lease, function.as_ref())
            });
        }
        let is_in_time = fetched == 0 || begun.elapsed() < FETCHING;
        if is_somewhere && fetched < FETCHES && is_in_time {
            fetched += 1;
            // Whoever is in that namespace may be in the way, and may be too late the next time.
            match fetch(home, moved, hint().as_deref()) {
                Ok(found) => is_somewhere = found,
                Err(error) => failed = Some(error),
            }
            continue;
        }
        if begun.elapsed() >= patience {
            return Err(failed
                .unwrap_or_else(|| away(home, facts.pci, &facts.name))
                .into());
        }
        thread::sleep(PAUSE);
    }
}

/// Says where an interface is that is not on the host.
pub(super) fn away(home: &Home<'_>, pci: PciAddress, name: &str) -> Error {
    match elsewhere(home, pci, name) {
        Ok(found) => not_here(name, pci, found.map(|found| found.keeper)),
        Err(error) => error,
    }
}

/// `keeper` keeps the namespace where the interface is.
pub(super) fn not_here(name: &str, pci: PciAddress, keeper: Option<String>) -> Error {
    let why = match keeper {
        Some(keeper) => format!("; it is in a network namespace that {keeper} keeps"),
        None => "; is it bound to its driver?".to_owned(),
    };
    error!("interface {name}: PCI function {pci} has no interface on this host{why}")
}

/// The namespace where an interface is that is not on the host; an error where there was no time for all of them.
fn elsewhere(home: &Home<'_>, pci: PciAddress, name: &str) -> Result<Option<netns::Found>> {
    let is_there = |netns: &Netns| matches!(home.identity.find(netns, pci, name), Ok(Some(_)));
    netns::holder_of(&home.netns, &is_there).with_context(|| looking(name))
}

/// Takes an interface out of the namespace that it moved to, or that a container moved it on to; whether it was
/// somewhere.
fn fetch(home: &Home<'_>, moved: &Moved, hint: Option<&Path>) -> Result<bool> {
    let facts = &moved.facts;
    let find = |netns: &Netns| home.identity.find(netns, facts.pci, &facts.name);
    // Where there is no time for that, the search below says so.
    if let Ok(Some(found)) = netns::find(moved.namespace, hint)
        && let Some(link) = find(&found.netns)?
    {
        fetch_from(home, &found.netns, &link, facts)?;
        return Ok(true);
    }
    let Some(found) = elsewhere(home, facts.pci, &facts.name)? else {
        return Ok(false);
    };
    if let Some(link) = find(&found.netns)? {
        fetch_from(home, &found.netns, &link, facts)?;
    }
    Ok(true)
}

/// Takes an interface out of a namespace, whatever was done to it there. A container may go on changing it
/// meanwhile, so that only the move counts.
pub(super) fn fetch_from(
    home: &Home<'_>,
    from: &Netns,
    link: &Link,
    facts: &InterfaceFacts,
) -> Result<()> {
    let (before, _) = from.look()?;
    undress(from, link, &before);
    // The name is told to nobody before: where an interface that was put in its place has it as another name, the
    // kernel moves that one, fails to name it, and leaves it on the host under a name that somebody else chose.
    let name = passing();
    let moved = from.give(link.index, &home.netns, Some(name.as_bytes()));
    let own = facts.name.as_bytes();
    moved.with_context(|| moving(own, "back to the host"))?;
    send_back(home, from, facts, name.as_bytes())
}

/// Takes from an interface what would keep it where it is, as far as that can be done.
fn undress(from: &Netns, link: &Link, before: &[Link]) {
    let state = |flags| Change::Flags { mask: UP, flags };
    // What goes away while the interface is up leaves it neither its addresses nor in promiscuous mode.
    if before.iter().any(|other| other.stands_on(link.index)) {
        let _ = from.change(link.index, &state(UP));
    }
    let _ = leftovers::delete_uppers(from, link, Depth::Root, leftovers::SHORT);
    let _ = from.change(link.index, &state(0));
    for mode in link.xdp.iter().flat_map(|xdp| xdp.modes()) {
        let _ = from.change(link.index, &Change::NoXdp(*mode));
    }
    // Since Linux 6.6 one that the host has too makes the move fail.
    for name in &link.alternative_names {
        let _ = from.set_alternative(link.index, name, false);
    }
}

/// What came to the host under a name goes back where it came from, unless it is the interface: whoever is in that
/// namespace may have put one of their own making in its place, with its number.
fn send_back(home: &Home<'_>, from: &Netns, facts: &InterfaceFacts, name: &[u8]) -> Result<()> {
    let own = home.find(facts)?;
    let (here, _) = home.netns.look()?;
    let is_own = |link: &Link| own.as_ref().is_some_and(|own| own.index == link.index);
    let foreign = here.iter().find(|link| link.name == name && !is_own(link));
    if let Some(foreign) = foreign {
        let gone = home
            .netns
            .give(foreign.index, from, Some(passing().as_bytes()));
        gone.or_else(|_| leftovers::delete(&home.netns, foreign.index))
            .with_context(|| moving(name, "away, which is another one"))?;
    }
    if own.is_none() {
        bail!(
            "interface {} was replaced by another one in its container's network namespace while it was fetched; stop what runs there, then run \"onload-ctk lease restore\"",
            facts.name
        );
    }
    Ok(())
}

/// Deletes what a container put in an interface's place, where whoever fetched that was killed before it was sent away.
/// Only a driver's own interfaces come to the host under a passing name otherwise, and those are not deleted.
fn sweep(home: &Home<'_>) -> Result<()> {
    let (here, _) = home.netns.look()?;
    let is_left = |link: &&Link| {
        let is_virtual = !link.kind.is_empty() && !home.identity.is_function(link);
        is_virtual && is_passing(&link.name)
    };
    for foreign in here.iter().filter(is_left) {
        // What cannot be deleted must not keep an interface from coming back.
        let _ = home.netns.delete(foreign.index);
    }
    Ok(())
}

/// Takes from an interface of the host whatever a container left on it. Anybody on the machine can make the search for that
/// take its time; then the interface of a virtual function is made anew, if it is what it was but for that, and once:
/// udev calls for each that comes, and would do so for ever where something else cannot be put right.
fn clear(
    home: &Home<'_>,
    link: &Link,
    lease: &Lease<'_>,
    function: Option<&Function>,
) -> Result<(), NotBack> {
    let was_made_anew = |before| before != link.index;
    if lease.moved.rebound.is_some_and(was_made_anew) {
        return Ok(());
    }
    let has_other_way = function.is_some_and(|own| !own.has_others());
    let patience = if has_other_way {
        leftovers::SHORT
    } else {
        leftovers::LONG
    };
    leftovers::detach_programs(link)?;
    let cleared = leftovers::delete_uppers(&home.netns, link, Depth::Descriptors, patience);
    let (Err(unseen), Some(function)) = (&cleared, function) else {
        return Ok(cleared?);
    };
    let facts = &lease.moved.facts;
    restore(home, again(home, facts)?, &down(facts))?;
    make_anew(link, lease, function).with_context(|| format!("{unseen:#}; and then"))?;
    Ok(wait_for(home, facts)?)
}

/// Has the driver of a function make its interface anew. The lease says so before: whoever looks after a process that was
/// killed sees by the interface's number whether it was done.
fn make_anew(link: &Link, lease: &Lease<'_>, function: &Function) -> io::Result<()> {
    let leases = lease.leases.list().map_err(io::Error::other)?;
    let amended = lease.amend(&|moved| moved.rebound = Some(link.index));
    amended.map_err(io::Error::other)?;
    function.make_anew(&leases)
}

/// Waits until a driver has made its interface, and udev has seen it, which may give it a name.
fn wait_for(home: &Home<'_>, facts: &InterfaceFacts) -> Result<()> {
    let [control, known] = UDEV.map(Path::new);
    let until = Instant::now() + BINDING;
    while Instant::now() < until {
        let is_seen =
            |link: &Link| !control.exists() || known.join(format!("n{}", link.index)).exists();
        if home.find(facts)?.as_ref().is_some_and(is_seen) {
            break;
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Makes an interface that is on the host what it was, without what a container left on it, which `clear` takes away.
/// Its name comes first: anybody on the machine can make the search for that take its time, or fail. It is not up before
/// that is gone.
fn finish(
    home: &Home<'_>,
    link: Link,
    facts: &InterfaceFacts,
    clear: &dyn Fn(&Link) -> Result<(), NotBack>,
) -> Result<(), NotBack> {
    // What a program on it prevents is done, or reported, the second time.
    let _ = restore(home, link, &down(facts));
    clear(&again(home, facts)?)?;
    let link = again(home, facts)?;
    calm(home, &link, facts);
    restore(home, link, facts)?;
    let link = again(home, facts)?;
    let mut left = queues::restore(&home.netns, &link, facts);
    if !left.is_empty() && facts.flags & UP == 0 {
        // Some drivers have what `threaded` is written to only while the interface is up.
        while_up(home, &link, UP, || {
            left = queues::restore(&home.netns, &link, facts);
        });
    }
    if !left.is_empty() {
        return Err(not_restored(facts, &left.join(", "), ""));
    }
    onload::restore(&home.netns, facts).map_err(|error| NotBack {
        error,
        differs: Some("its registration with Onload for AF_XDP".to_owned()),
    })
}

fn down(facts: &InterfaceFacts) -> InterfaceFacts {
    InterfaceFacts {
        flags: facts.flags & !UP,
        ..facts.clone()
    }
}

/// Sets what is not as it was.
fn restore(home: &Home<'_>, mut link: Link, facts: &InterfaceFacts) -> Result<(), NotBack> {
    let mut cause = None;
    if make_way(home, &link, facts)? {
        link = again(home, facts)?;
    }
    for _ in 0..ROUNDS {
        let plan = facts::plan(&link, facts);
        if plan.is_empty() {
            return Ok(());
        }
        for step in plan.into_iter().flat_map(|(_, steps)| steps) {
            let told = match step {
                Step::Change(change) => home.netns.change(link.index, &change),
                Step::AlternativeName { name, is_set } => {
                    home.netns.set_alternative(link.index, name, is_set)
                }
            };
            cause = told.err().or(cause);
        }
        link = again(home, facts)?;
    }
    let plan = facts::plan(&link, facts);
    if plan.is_empty() {
        return Ok(());
    }
    let left: Vec<&str> = plan.into_iter().map(|(what, _)| what).collect();
    let here = home.netns.links().unwrap_or_default();
    let has_name = |link: &Link| link.is_called(facts.name.as_bytes());
    let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
    let hint = if left.contains(&"its name") && here.iter().any(has_name) {
        "; another interface has that name: give that one another, then run \"onload-ctk lease restore\""
    } else {
        ""
    };
    Err(not_restored(
        facts,
        &left.join(", "),
        &format!("{cause}{hint}"),
    ))
}

/// The same interface as it is now.
fn again(home: &Home<'_>, facts: &InterfaceFacts) -> Result<Link> {
    let found = home.find(facts)?;
    found.ok_or_else(|| away(home, facts.pci, &facts.name))
}

/// Gives up a foreign name while another interface has its own; whether it did. A container may have swapped the names
/// of two, and each would wait for the other.
fn make_way(home: &Home<'_>, link: &Link, facts: &InterfaceFacts) -> Result<bool> {
    let own = facts.name.as_bytes();
    if link.name == own || is_passing(&link.name) {
        return Ok(false);
    }
    let (here, _) = home.netns.look()?;
    let is_taken = |other: &Link| other.index != link.index && other.is_called(own);
    if !here.iter().any(is_taken) {
        return Ok(false);
    }
    // Before Linux 6.2 the name of one that is up cannot change.
    let down = Change::Flags { mask: UP, flags: 0 };
    for change in [down, Change::Name(passing().as_bytes())] {
        // What fails is told as that its name is not as it was.
        let _ = home.netns.change(link.index, &change);
    }
    Ok(true)
}

/// What stood on an interface leaves it in promiscuous mode if it goes while the interface is down, until that is set up
/// the next time (`__dev_set_rx_mode` in net/core/dev.c). Someone of the host may want that mode too, so [`facts::plan`]
/// does not compare it. Whoever had the interface may have asked for the mode as well, which is taken back at the same
/// time: each of them counts.
fn calm(home: &Home<'_>, link: &Link, facts: &InterfaceFacts) {
    let asked = u32::from(link.flags & PROMISCUOUS != 0);
    let is_left = link.promiscuity > asked && link.flags & UP == 0;
    if is_left && facts.flags & (UP | PROMISCUOUS) == 0 {
        while_up(home, link, UP | PROMISCUOUS, || {});
    }
}

/// Does something while an interface is up that is down again afterwards, without the flags of the mask.
fn while_up(home: &Home<'_>, link: &Link, mask: u32, act: impl FnOnce()) {
    let set = |flags| {
        let _ = home
            .netns
            .change(link.index, &Change::Flags { mask, flags });
    };
    set(UP);
    act();
    set(0);
}

fn not_restored(facts: &InterfaceFacts, left: &str, why: &str) -> NotBack {
    let InterfaceFacts { name, pci, .. } = facts;
    NotBack {
        error: error!("restoring interface {name} ({pci}): {left} is not as it was{why}"),
        differs: Some(left.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use onload_core::lease::{Claim, Claimed, Holder, Token};
    use onload_core::processes::Processes;
    use onload_core::run_dir::RunDir;

    use super::*;
    use crate::netdev::facts;
    use crate::netns::test_namespace::{self, Child};

    /// A host where an interface of a virtual function may be.
    struct Host {
        child: Child,
        identity: Identity,
    }

    impl Host {
        /// None where namespaces cannot be made here.
        fn new() -> Option<Self> {
            test_namespace::can_be("moving interfaces").then(|| Host {
                child: Child::new(),
                identity: Identity::with_stand_ins([(51, pci())].into()),
            })
        }

        /// With the interface, under a name.
        fn with(name: &str) -> Option<Self> {
            let host = Host::new()?;
            host.make(name, "");
            Some(host)
        }

        fn make(&self, name: &str, more: &str) {
            self.ip(&format!(
                "link add {name} index 50 {more}type veth peer name end index 51"
            ));
        }

        fn ip(&self, words: &str) {
            self.child.ip(words);
        }

        fn home(&self) -> Home<'_> {
            Home {
                netns: self.child.netns(),
                identity: &self.identity,
            }
        }

        /// The interface, whatever it is called.
        fn find(&self) -> Link {
            let found = self.home().find(&facts::of(&seen(), pci()));
            found.unwrap().unwrap()
        }
    }

    fn pci() -> PciAddress {
        "0000:03:10.0".parse().unwrap()
    }

    /// What the first look saw, whose number another one has now.
    fn seen() -> Link {
        Link {
            index: 77,
            name: b"ens1v0".to_vec(),
            ..Link::default()
        }
    }

    fn names(netns: &Netns) -> Vec<String> {
        netns.links().unwrap().iter().map(Link::shown).collect()
    }

    #[test]
    fn an_interface_that_a_container_put_in_the_place_of_another_does_not_stay_on_the_host() {
        let Some(host) = Host::new() else { return };
        let (home, container) = (host.home(), Child::new());
        let seen = seen();
        let facts = facts::of(&seen, pci());
        for (came_as, kind, other) in [
            ("ens1v0", "veth", None),
            ("eth7", "veth", None),
            ("ens1v0", "bridge", None),
            // Its own name makes the kernel fail a rename after the move.
            ("eth7", "veth", Some("ens1v0")),
        ] {
            container.ip(&format!("link add {came_as} index 77 type {kind}"));
            if let Some(other) = other {
                container.ip(&format!("link property add dev {came_as} altname {other}"));
            }
            let from = container.netns();
            let told = fetch_from(&home, &from, &seen, &facts).unwrap_err();
            let told = told.to_string();
            let is_known = told.contains("was replaced by another one")
                || told.starts_with("moving interface");
            assert!(is_known, "{told}");
            assert_eq!(names(&home.netns), ["lo"], "{kind} {came_as}");
            let left = names(&from).into_iter().find(|name| name != "lo");
            container.ip(&format!("link del {}", left.unwrap()));
        }
    }

    #[test]
    fn what_came_in_the_place_of_an_interface_that_is_back_already_goes_too() {
        let Some(host) = Host::with("eth3") else {
            return;
        };
        let (home, container) = (host.home(), Child::new());
        container.ip("link add eth7 index 77 type veth");
        let seen = seen();
        let facts = facts::of(&seen, pci());
        fetch_from(&home, &container.netns(), &seen, &facts).unwrap();
        assert_eq!(names(&home.netns), ["lo", "eth3", "end"]);
    }

    #[test]
    fn an_interface_has_its_name_and_is_down_while_what_is_left_on_it_cannot_be_found() {
        let Some(host) = Host::with("ens1v0") else {
            return;
        };
        let home = host.home();
        host.ip("link set ens1v0 up");
        let find = |name: &str| {
            let here = home.netns.links().unwrap();
            here.into_iter().find(|link| link.shown() == name).unwrap()
        };
        let facts = facts::of(&find("ens1v0"), pci());
        host.ip("link set ens1v0 down");
        host.ip("link set ens1v0 name eth7");
        host.ip("link set eth7 up");
        let failed = || Err(Error::new("not found").into());
        finish(&home, find("eth7"), &facts, &|_| failed()).unwrap_err();
        assert_eq!(find("ens1v0").flags & UP, 0);
        finish(&home, find("ens1v0"), &facts, &|_| Ok(())).unwrap();
        assert_eq!(find("ens1v0").flags & UP, UP);
    }

    #[test]
    fn an_interface_that_was_made_anew_is_what_it_was() {
        let Some(host) = Host::new() else { return };
        let home = host.home();
        host.make("ens1v0", "address 02:00:00:00:10:01 ");
        host.ip("link set ens1v0 mtu 1400");
        let before = host.find();
        let facts = facts::of(&before, pci());
        // What its driver does, and a macvlan that no search has found goes with it.
        host.ip("link add link ens1v0 name mac0 type macvlan");
        let anew = |_: &Link| {
            host.ip("link del ens1v0");
            host.make("eth0", "address 02:00:00:00:66:66 ");
            Ok(wait_for(&home, &facts)?)
        };
        finish(&home, before, &facts, &anew).unwrap();
        let after = host.find();
        assert_eq!(after.shown(), "ens1v0");
        assert_eq!(
            (after.mtu, facts::of(&after, pci()).mac),
            (1400, facts.mac.clone())
        );
        assert!(!names(&home.netns).contains(&"mac0".to_owned()));
    }

    /// A bus with one virtual function whose driver binds.
    fn bus() -> tempfile::TempDir {
        let bus = tempfile::tempdir().unwrap();
        let function = bus.path().join("devices").join(pci().to_string());
        let driver = bus.path().join("drivers/igbvf");
        for dir in [&function.join("physfn"), &driver] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(function.join("driver_override"), "(null)\n").unwrap();
        std::os::unix::fs::symlink(driver, function.join("driver")).unwrap();
        bus
    }

    #[test]
    fn an_interface_is_made_anew_once_and_its_lease_says_so() {
        let Some(host) = Host::with("ens1v0") else {
            return;
        };
        let home = host.home();
        let (dir, bus) = (tempfile::tempdir().unwrap(), bus());
        let device: Device = "netdev:ens1v0".parse().unwrap();
        let leases = leased(dir.path(), &device, facts::of(&host.find(), pci()));
        let moved = || {
            let listed = leases.list().unwrap().remove(0).lease.unwrap();
            let kept = listed.moved.unwrap();
            Moved {
                facts: InterfaceFacts::try_from(kept.facts).unwrap(),
                namespace: kept.namespace,
                addresses: kept.addresses,
                returning: kept.returning,
                left: kept.left,
                rebound: kept.rebound,
            }
        };
        let with = |moved: &Moved, act: &dyn Fn(&Lease<'_>)| {
            let (leases, device) = (&leases, &device);
            act(&Lease {
                leases,
                device,
                moved,
            });
        };
        let first = moved();
        assert_eq!(first.rebound, None);
        let function = Function::find(bus.path(), pci()).unwrap();
        with(&first, &|lease| {
            make_anew(&host.find(), lease, &function).unwrap();
        });
        let again = moved();
        assert_eq!(again.rebound, Some(50));
        // Whoever did that was killed before it was unbound: what is left on it is looked for.
        let is_left = || names(&home.netns).contains(&"mac0".to_owned());
        host.ip("link add link ens1v0 name mac0 type macvlan");
        with(&again, &|lease| {
            drop(clear(&home, &host.find(), lease, None));
        });
        assert!(!is_left());
        host.ip("link del ens1v0");
        host.ip("link add ens1v0 index 60 type veth peer name end index 51");
        // What stands on it now is the host's own.
        host.ip("link add link ens1v0 name mac0 type macvlan");
        with(&again, &|lease| {
            clear(&home, &host.find(), lease, Some(&function)).unwrap();
        });
        assert!(is_left());
    }

    fn leased(run: &Path, device: &Device, facts: InterfaceFacts) -> Leases {
        let run = RunDir::find(run).unwrap().unwrap();
        let leases = Leases::open(&run, Processes::default()).unwrap();
        let moved = Moved {
            facts,
            namespace: 7,
            addresses: Vec::new(),
            returning: true,
            left: None,
            rebound: None,
        };
        let claimed = Claimed {
            device: device.clone(),
            most: 1,
            aliases: Vec::new(),
            facts: BTreeMap::new(),
            ticket: None,
            moved: Some(moved.kept()),
        };
        let claim = Claim {
            devices: &[claimed],
            container: &"one".parse().unwrap(),
            bundle: Path::new("/bundle"),
            holder: Holder::reserved_by(Token::new().unwrap(), None),
            token: None,
            claim: None,
            entry_point: "createRuntime",
        };
        leases.claim(&claim, &|_| None, START_PATIENCE).unwrap();
        leases
    }

    #[test]
    fn an_interface_that_was_down_is_up_for_a_moment() {
        let Some(host) = Host::with("ens1v0") else {
            return;
        };
        let home = host.home();
        host.ip("link set ens1v0 promisc on");
        let flags = || host.find().flags & (UP | PROMISCUOUS);
        let mut within = 0;
        while_up(&home, &host.find(), UP, || within = flags());
        assert_eq!((within, flags()), (UP | PROMISCUOUS, PROMISCUOUS));
        while_up(&home, &host.find(), UP | PROMISCUOUS, || within = flags());
        assert_eq!((within, flags()), (UP, 0));
    }

    #[test]
    fn what_a_killed_process_left_on_the_host_in_the_place_of_an_interface_is_deleted() {
        let Some(host) = Host::with("ctkffffffffffff") else {
            return;
        };
        let home = host.home();
        for name in ["ctk0123456789ab", "ctk-lan", "ctk0123456789AB"] {
            host.ip(&format!("link add {name} type bridge"));
        }
        sweep(&home).unwrap();
        let mut here = names(&home.netns);
        here.sort();
        let stay = ["ctk-lan", "ctk0123456789AB", "ctkffffffffffff", "end", "lo"];
        assert_eq!(here, stay);
    }
}
