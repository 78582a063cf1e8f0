//! Which devices a selector chooses, and which of its words choose none.

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
    let mut matched: Vec<Vec<bool>> = keys
        .iter()
        .map(|key| vec![false; key.words.len()])
        .collect();
    let mut belongs = |part: &Part<'_>| {
        let mut all = true;
        for (key, matched) in keys.iter().zip(&mut matched) {
            let found = (key.find)(part);
            all &= !found.is_empty();
            for index in found {
                matched[index] = true;
            }
        }
        all
    };
    let mut chosen = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let mut any = false;
        for device in candidate {
            let functions: Vec<_> = device.functions().map(Some).collect();
            let functions = if functions.is_empty() {
                vec![None]
            } else {
                functions
            };
            // Each is looked at, since one may match what the others do not.
            for function in functions {
                let place = places.place(function);
                any |= belongs(&Part { device, place });
            }
        }
        chosen.push(any);
    }
    let words = keys.iter().zip(&matched).flat_map(|(key, matched)| {
        let words = key.words.iter().zip(matched);
        let unmatched = words.filter(|(_, matched)| !**matched);
        unmatched.map(|(word, _)| format!("select.{} = {word}", key.name))
    });
    Selection {
        chosen,
        unmatched: words.collect(),
    }
}

/// Which words of a key a part of a device matches, by index.
type Find<'s> = Box<dyn Fn(&Part<'_>) -> Vec<usize> + 's>;

struct Key<'s> {
    name: &'static str,
    /// Its words, as a configuration has them.
    words: Vec<String>,
    find: Find<'s>,
}

fn keys<'s>(select: &'s Select, places: &'s Places<'_>) -> Vec<Key<'s>> {
    let Select {
        vendor,
        device,
        driver,
        pf,
        vf,
        numa,
        interfaces,
        link_layer,
        addresses,
    } = select;
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
            let driver = part
                .place
                .function
                .and_then(|function| function.driver.as_ref());
            driver == Some(name)
        }),
        key("pf", pf, quoted, |pf, part| {
            let parent = part.place.physical_function;
            parent.is_some() && address(pf, places) == parent
        }),
        key("vf", vf.as_slice(), quoted, |range, part| {
            part.place.index.is_some_and(|index| range.contains(index))
        }),
        key("numa", numa, plain, |wanted, part| {
            part.device.numa_node == Some(*wanted)
        }),
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
    keys.into_iter().flatten().collect()
}

/// A key whose words are tried one after the other; `None` if it has none.
fn key<'s, T>(
    name: &'static str,
    words: &'s [T],
    write: fn(&T) -> String,
    test: impl Fn(&T, &Part<'_>) -> bool + 's,
) -> Option<Key<'s>> {
    (!words.is_empty()).then(|| Key {
        name,
        words: words.iter().map(write).collect(),
        find: Box::new(move |part| {
            let matching = words.iter().enumerate();
            let matching = matching.filter(|(_, word)| test(word, part));
            matching.map(|(index, _)| index).collect()
        }),
    })
}

fn address(pf: &select::PhysicalFunction, places: &Places<'_>) -> Option<PciAddress> {
    match &pf.0 {
        PhysicalFunction::Address(address) => Some(*address),
        PhysicalFunction::Interface(name) => places.interface(name.as_str())?.pci,
    }
}

fn quoted<T: fmt::Display>(word: &T) -> String {
    format!("{:?}", word.to_string())
}

fn plain<T: fmt::Display>(word: &T) -> String {
    word.to_string()
}
