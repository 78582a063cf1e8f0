//! Which devices a selector chooses, and which of its words choose none.

use std::cell::Cell;
use std::fmt;

use onload_core::host_settings::PhysicalFunction;
use onload_core::select::{self, Select};
use onload_sys::pci::PciAddress;

use super::device::Device;
use super::places::{Place, Places};

pub(crate) struct Selection {
    /// Whether each candidate belongs to the pool, in their order.
    pub(crate) chosen: Vec<bool>,
    /// The words that no device matches, as `select.KEY = WORD`.
    pub(crate) unmatched: Vec<String>,
}

/// A function of a device, or a device without one.
struct Part<'i> {
    device: &'i Device,
    place: Place<'i>,
}

/// Looks at each device once, whatever the selector names. A candidate is what a container gets together: it belongs
/// to a pool where one function of it does.
pub(crate) fn select(
    candidates: &[Vec<&Device>],
    select: &Select,
    places: &Places<'_>,
) -> Selection {
    let keys = keys(select, places);
    let belongs = |part: &Part<'_>| {
        let any =
            |words: &Vec<Word<'_>>| words.iter().filter(|word| word.is_met_by(part)).count() > 0;
        // Each is tried, since one may match what the others do not.
        keys.iter().map(any).fold(true, |all, any| all & any)
    };
    let mut chosen = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let mut any = false;
        for device in candidate {
            let functions: Vec<_> = device.functions().map(Some).collect();
            let functions = if functions.is_empty() { vec![None] } else { functions };
            // Each is looked at, since one may match what the others do not.
            for function in functions {
                let place = places.place(function);
                any |= belongs(&Part { device, place });
            }
        }
        chosen.push(any);
    }
    let words = keys.iter().flatten();
    let unmatched = words.filter(|word| !word.is_matched.get());
    Selection { chosen, unmatched: unmatched.map(Word::text).collect() }
}

/// A word of a selector.
struct Word<'s> {
    key: &'static str,
    word: &'s dyn fmt::Display,
    write: fn(&dyn fmt::Display) -> String,
    test: Box<dyn Fn(&Part<'_>) -> bool + 's>,
    /// Whether anything was it.
    is_matched: Cell<bool>,
}

impl Word<'_> {
    fn is_met_by(&self, part: &Part<'_>) -> bool {
        let is_met = (self.test)(part);
        self.is_matched.set(self.is_matched.get() | is_met);
        is_met
    }

    /// As `select.KEY = WORD`.
    fn text(&self) -> String {
        format!("select.{} = {}", self.key, (self.write)(self.word))
    }
}

/// The words of each key that has some: a device belongs where it matches one of each.
fn keys<'s>(select: &'s Select, places: &'s Places<'_>) -> Vec<Vec<Word<'s>>> {
    let Select { vendor, device, driver, pf, vf, numa, interfaces, link_layer, addresses } = select;
    let keys = [
        key("vendor", vendor, quoted, |id, part| {
            let function = part.place.function;
            function.is_some_and(|function| function.id.vendor == id.0)
        }),
        key("device", device, quoted, |id, part| {
            let function = part.place.function;
            function.is_some_and(|function| function.id.device == id.0)
        }),
        key("driver", driver, quoted, |name, part| {
            let driver = part.place.function.and_then(|function| function.driver.as_ref());
            driver == Some(name)
        }),
        key("pf", pf, quoted, |pf, part| {
            let parent = part.place.physical_function;
            parent.is_some() && address(pf, places) == parent
        }),
        key("vf", vf.as_slice(), quoted, |range, part| {
            part.place.index.is_some_and(|index| range.contains(index))
        }),
        key("numa", numa, plain, |wanted, part| part.device.numa_node == Some(*wanted)),
        key("interfaces", interfaces, quoted, |glob, part| {
            let mut names = part.device.interfaces.iter();
            names.any(|name| glob.matches(name))
        }),
        key("link-layer", link_layer, quoted, |layer, part| {
            part.device.link_layers.contains(layer)
        }),
        key("addresses", addresses, quoted, |address, part| {
            let function = part.place.function;
            function.is_some_and(|function| function.address == *address)
        }),
    ];
    keys.into_iter().filter(|words| !words.is_empty()).collect()
}

fn key<'s, T: fmt::Display>(
    key: &'static str,
    words: &'s [T],
    write: fn(&dyn fmt::Display) -> String,
    test: impl Fn(&T, &Part<'_>) -> bool + Copy + 's,
) -> Vec<Word<'s>> {
    let words = words.iter().map(|word| Word {
        key,
        word,
        write,
        test: Box::new(move |part| test(word, part)),
        is_matched: Cell::new(false),
    });
    words.collect()
}

fn address(pf: &select::PhysicalFunction, places: &Places<'_>) -> Option<PciAddress> {
    match &pf.0 {
        PhysicalFunction::Address(address) => Some(*address),
        PhysicalFunction::Interface(name) => places.interface(name.as_str())?.pci(),
    }
}

fn quoted(word: &dyn fmt::Display) -> String {
    format!("{:?}", word.to_string())
}

fn plain(word: &dyn fmt::Display) -> String {
    word.to_string()
}
