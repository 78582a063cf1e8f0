//! The devices that a selector matches, and the words in it that match none.

use std::cell::Cell;
use std::fmt;

use onload_core::host_settings::PfRef;
use onload_core::select::PoolSelector;
use onload_sys::pci::PciAddress;

use super::device::HostDevice;
use super::function_index::{FunctionIndex, FunctionPlace};

pub(crate) struct Selection {
    /// Whether each candidate belongs to the pool, in their order.
    pub(crate) chosen: Vec<bool>,
    /// The words that no device matches, as `select.KEY = WORD`.
    pub(crate) unmatched: Vec<String>,
}

/// A function of a device, or a device without one.
struct DeviceFunction<'i> {
    device: &'i HostDevice,
    place: FunctionPlace<'i>,
}

/// Matches candidates against a selector. A candidate has the devices that a container gets together, and matches if
/// one of its functions does.
pub(crate) fn select(
    candidates: &[Vec<&HostDevice>],
    select: &PoolSelector,
    function_index: &FunctionIndex<'_>,
) -> Selection {
    let keys = selector_keys(select, function_index);
    let belongs = |device_function: &DeviceFunction<'_>| {
        let any = |words: &Vec<SelectorWord<'_>>| {
            words.iter().filter(|word| word.matches(device_function)).count() > 0
        };
        // All words are tried, so that each is marked as matched.
        keys.iter().map(any).fold(true, |all, any| all & any)
    };
    let mut chosen = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let mut any = false;
        for device in candidate {
            let functions: Vec<_> = device.functions().map(Some).collect();
            let functions = if functions.is_empty() { vec![None] } else { functions };
            // All functions are tried, so that each word is marked as matched.
            for function in functions {
                let place = function_index.find(function);
                any |= belongs(&DeviceFunction { device, place });
            }
        }
        chosen.push(any);
    }
    let unmatched = keys.into_iter().flatten().filter(|word| !word.is_matched.get());
    Selection { chosen, unmatched: unmatched.map(|word| word.text).collect() }
}

/// A word of a selector.
struct SelectorWord<'s> {
    /// `select.KEY = WORD`.
    text: String,
    test: Box<dyn Fn(&DeviceFunction<'_>) -> bool + 's>,
    /// Whether any device matched it.
    is_matched: Cell<bool>,
}

impl SelectorWord<'_> {
    fn matches(&self, device_function: &DeviceFunction<'_>) -> bool {
        let is_match = (self.test)(device_function);
        self.is_matched.set(self.is_matched.get() | is_match);
        is_match
    }
}

/// Returns the words of each key in the selector. A device must match one word of each key.
fn selector_keys<'s>(
    select: &'s PoolSelector,
    function_index: &'s FunctionIndex<'_>,
) -> Vec<Vec<SelectorWord<'s>>> {
    let PoolSelector { vendor, device, driver, pf, vf, numa, interfaces, link_layer, addresses } =
        select;
    let keys = [
        selector_key("vendor", vendor, quoted, |id, device_function| {
            let function = device_function.place.function;
            function.is_some_and(|function| function.id.vendor == id.0)
        }),
        selector_key("device", device, quoted, |id, device_function| {
            let function = device_function.place.function;
            function.is_some_and(|function| function.id.device == id.0)
        }),
        selector_key("driver", driver, quoted, |name, device_function| {
            let driver =
                device_function.place.function.and_then(|function| function.driver.as_ref());
            driver == Some(name)
        }),
        selector_key("pf", pf, quoted, |pf, device_function| {
            let parent = device_function.place.physical_function;
            parent.is_some() && resolve_pf(pf, function_index) == parent
        }),
        selector_key("vf", vf.as_slice(), quoted, |range, device_function| {
            device_function.place.index.is_some_and(|index| range.contains(index))
        }),
        selector_key("numa", numa, unquoted, |numa_node, device_function| {
            device_function.device.numa_node == Some(*numa_node)
        }),
        selector_key("interfaces", interfaces, quoted, |glob, device_function| {
            let mut names = device_function.device.interfaces.iter();
            names.any(|name| glob.matches(name))
        }),
        selector_key("link-layer", link_layer, quoted, |layer, device_function| {
            device_function.device.link_layers.contains(layer)
        }),
        selector_key("addresses", addresses, quoted, |address, device_function| {
            let function = device_function.place.function;
            function.is_some_and(|function| function.address == *address)
        }),
    ];
    keys.into_iter().filter(|words| !words.is_empty()).collect()
}

fn selector_key<'s, T: fmt::Display>(
    key: &'static str,
    words: &'s [T],
    write: fn(&dyn fmt::Display) -> String,
    test: impl Fn(&T, &DeviceFunction<'_>) -> bool + Copy + 's,
) -> Vec<SelectorWord<'s>> {
    let words = words.iter().map(|word| SelectorWord {
        text: format!("select.{key} = {}", write(word)),
        test: Box::new(move |device_function| test(word, device_function)),
        is_matched: Cell::new(false),
    });
    words.collect()
}

fn resolve_pf(pf: &PfRef, function_index: &FunctionIndex<'_>) -> Option<PciAddress> {
    match pf {
        PfRef::Address(address) => Some(*address),
        PfRef::Interface(name) => function_index.interface(name.as_str())?.pci(),
    }
}

fn quoted(word: &dyn fmt::Display) -> String {
    format!("{:?}", word.to_string())
}

fn unquoted(word: &dyn fmt::Display) -> String {
    word.to_string()
}
