//! The devices that a selector matches, and the words in it that match none.

use std::fmt;

use onload_core::host_settings::PfRef;
use onload_core::select::{HexId, PoolSelector};
use onload_sys::pci::PciAddress;

use super::device::HostDevice;
use super::function_index::FunctionIndex;
use crate::discover::pci::PciFunction;

pub(crate) struct Selection {
    /// Whether each candidate belongs to the pool, in their order.
    pub(crate) chosen: Vec<bool>,
    /// The words that no device matches, as `select.KEY = WORD`.
    pub(crate) unmatched: Vec<String>,
}

/// Matches candidates against a selector. A candidate has the devices that a container gets together, and matches if
/// one of its functions matches a word of each key.
pub(crate) fn select(
    candidates: &[Vec<&HostDevice>],
    select: &PoolSelector,
    function_index: &FunctionIndex<'_>,
) -> Selection {
    let mut functions = Vec::new();
    for (candidate, devices) in candidates.iter().enumerate() {
        for device in devices {
            let mut addresses: Vec<_> = device.functions().map(Some).collect();
            // A device without a function can match by its own data.
            if addresses.is_empty() {
                addresses.push(None);
            }
            functions.extend(addresses.into_iter().map(|address| {
                let function = function_index.find(address);
                CandidateFunction { candidate, device, function, is_chosen: true }
            }));
        }
    }
    let mut matcher = Matcher { functions, unmatched: Vec::new() };
    let PoolSelector { vendor, device, driver, pf, vf, numa, interfaces, link_layer, addresses } =
        select;
    matcher.apply("vendor", vendor, on_function(|id: &HexId, function| function.id.vendor == id.0));
    matcher.apply("device", device, on_function(|id: &HexId, function| function.id.device == id.0));
    matcher.apply(
        "driver",
        driver,
        on_function(|name: &String, function| function.driver.as_ref() == Some(name)),
    );
    matcher.apply("pf", pf, |pf, one| {
        let parent = one.function.and_then(|function| function.physical_function);
        parent.is_some() && resolve_pf(pf, function_index) == parent
    });
    matcher.apply("vf", vf.as_slice(), |range, one| {
        let index = one.function.and_then(|function| function.vf_index);
        index.is_some_and(|index| range.contains(index))
    });
    matcher.apply("numa", numa, |node, one| one.device.numa_node == Some(*node));
    matcher.apply("interfaces", interfaces, |glob, one| {
        one.device.interfaces.iter().any(|name| glob.matches(name))
    });
    matcher.apply("link-layer", link_layer, |layer, one| one.device.link_layers.contains(layer));
    matcher.apply(
        "addresses",
        addresses,
        on_function(|address: &PciAddress, function| function.address == *address),
    );
    let mut chosen = vec![false; candidates.len()];
    for function in matcher.functions.iter().filter(|function| function.is_chosen) {
        chosen[function.candidate] = true;
    }
    Selection { chosen, unmatched: matcher.unmatched }
}

/// A function of a candidate's device, or a device without one.
struct CandidateFunction<'i> {
    /// The index of the candidate.
    candidate: usize,
    device: &'i HostDevice,
    function: Option<&'i PciFunction>,
    /// Whether it matches a word of each key so far.
    is_chosen: bool,
}

struct Matcher<'i> {
    functions: Vec<CandidateFunction<'i>>,
    unmatched: Vec<String>,
}

impl Matcher<'_> {
    /// Matches the words of a key. A key without words matches everything.
    fn apply<T: fmt::Display>(
        &mut self,
        key: &str,
        words: &[T],
        matches: impl Fn(&T, &CandidateFunction<'_>) -> bool,
    ) {
        if words.is_empty() {
            return;
        }
        for word in words {
            if !self.functions.iter().any(|function| matches(word, function)) {
                // Numbers are not quoted in the configuration.
                let text = match key {
                    "numa" => word.to_string(),
                    _ => format!("{:?}", word.to_string()),
                };
                self.unmatched.push(format!("select.{key} = {text}"));
            }
        }
        for function in &mut self.functions {
            function.is_chosen &= words.iter().any(|word| matches(word, function));
        }
    }
}

/// Returns a match by the PCI function.
fn on_function<T>(
    matches: impl Fn(&T, &PciFunction) -> bool,
) -> impl Fn(&T, &CandidateFunction<'_>) -> bool {
    move |word, one| one.function.is_some_and(|function| matches(word, function))
}

fn resolve_pf(pf: &PfRef, function_index: &FunctionIndex<'_>) -> Option<PciAddress> {
    match pf {
        PfRef::Address(address) => Some(*address),
        PfRef::Interface(name) => function_index.interface(name.as_str())?.pci(),
    }
}
