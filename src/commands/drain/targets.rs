//! Parses the targets of a drain: CLASS=NAME, CLASS, a pool, or the address of a PCI function.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use onload_core::class::Class;
use onload_host::devices::HostDevice;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::exclusion::ExclusionSubject;
use onload_host::pools::PoolSet;
use onload_lease::drain::{DrainList, DrainTarget};
use onload_sys::pci::PciAddress;
use onload_sys::text::ShortList;

use crate::commands::MAX_TYPING_ERRORS;
use crate::commands::device_name::{
    complete_address, is_address, strip_vendor, suggest_host_device,
};
use crate::printer::Printer;

const DISCOVER_HINT: &str = "\"onload-ctk discover\" shows what this host has";

/// Returns every class but bundle, whose members are devices of the other classes.
pub(super) fn all_classes() -> Vec<DrainTarget> {
    let targets: BTreeSet<DrainTarget> = Class::ALL
        .into_iter()
        .filter(|class| *class != Class::Bundle)
        .map(|class| DrainTarget::new(class, None))
        .collect();
    targets.into_iter().collect()
}

pub(super) fn resolve_targets(
    words: &[String],
    inventory: &Inventory,
    pools: &PoolSet,
    printer: &mut Printer,
) -> Result<Vec<DrainTarget>> {
    let mut targets = BTreeSet::new();
    for word in words {
        let word_targets = resolve_word(word, inventory, pools)?;
        if !word_targets.iter().all(|target| word.ends_with(&target.to_string())) {
            let names: Vec<String> = word_targets.iter().map(ToString::to_string).collect();
            printer.note(format_args!("{word} stands for {}", ShortList(&names)));
        }
        targets.extend(word_targets);
    }
    Ok(targets.into_iter().collect())
}

/// Returns the drained targets that the words refer to. Searches the list of drained targets before the host's devices,
/// since a drained device may no longer exist.
pub(super) fn resolve_drained(
    words: &[String],
    drain: &DrainList,
    mut discover: impl FnMut() -> (Inventory, PoolSet),
) -> Result<Vec<DrainTarget>> {
    let mut host = None;
    let mut targets = BTreeSet::new();
    for word in words {
        let parsed = match parse_word(word) {
            Ok(parsed) => parsed,
            Err(_) => {
                let (inventory, _) = host.get_or_insert_with(&mut discover);
                parse_word_of_host(word, inventory)?
            }
        };
        let known = match &parsed {
            // A device that was drained separately, perhaps for another reason, stays drained.
            TargetWord::Class(class) => {
                match drain.get(&DrainTarget::new(*class, None)) {
                    Some(entry) => targets.extend([entry.target.clone()]),
                    None => {
                        targets.extend(drain.for_class(*class).map(|entry| entry.target.clone()));
                    }
                }
                continue;
            }
            TargetWord::Device(class, name) => drain.get(&DrainTarget::new(*class, Some(name))),
            TargetWord::Function(_) => None,
        };
        if let Some(known) = known {
            check_not_by_class(drain, word, &known.target)?;
            targets.insert(known.target.clone());
            continue;
        }
        let (inventory, pools) = host.get_or_insert_with(&mut discover);
        for target in resolve_word(word, inventory, pools)? {
            check_not_by_class(drain, word, &target)?;
            if drain.get(&target).is_some() {
                targets.insert(target);
            }
        }
    }
    Ok(targets.into_iter().collect())
}

fn check_not_by_class(drain: &DrainList, word: &str, target: &DrainTarget) -> Result<()> {
    let class = target.class;
    if drain.get(&DrainTarget::new(class, None)).is_some() {
        bail!(
            "undraining {word}: {target} is drained with its class; run \"onload-ctk undrain \
             {class}\""
        );
    }
    Ok(())
}

enum TargetWord {
    Class(Class),
    Device(Class, String),
    /// A PCI address, perhaps without its domain.
    Function(String),
}

fn parse_word(word: &str) -> Result<TargetWord> {
    let short = strip_vendor(word);
    let class = |text: &str| -> Result<Class> {
        let class: Class = text.parse()?;
        if class == Class::Bundle {
            bail!("reading {word:?}: bundles cannot be drained; drain their members");
        }
        Ok(class)
    };
    Ok(match short.split_once('=') {
        Some((class_name, "all")) => TargetWord::Class(class(class_name)?),
        Some((class_name, name)) => TargetWord::Device(class(class_name)?, name.to_owned()),
        None if is_address(short) => TargetWord::Function(short.to_owned()),
        None => TargetWord::Class(class(short)?),
    })
}

/// Like [`parse_word`]; the error suggests a device of this host.
fn parse_word_of_host(word: &str, inventory: &Inventory) -> Result<TargetWord> {
    parse_word(word).map_err(|error| match suggest_host_device(word, inventory) {
        Some(suggestion) => {
            anyhow::anyhow!("reading {word:?}: expected CLASS=NAME, for example {suggestion}")
        }
        None => error,
    })
}

/// Returns the targets that a word refers to on this host, at least one.
fn resolve_word(word: &str, inventory: &Inventory, pools: &PoolSet) -> Result<Vec<DrainTarget>> {
    match parse_word_of_host(word, inventory)? {
        TargetWord::Class(class) => Ok(vec![DrainTarget::new(class, None)]),
        TargetWord::Function(address) => {
            let known: Vec<String> =
                inventory.functions.iter().map(|function| function.address.to_string()).collect();
            let address =
                complete_address(&address, known.iter().map(String::as_str))?.unwrap_or(&address);
            let targets = match address.parse() {
                Ok(address) => function_targets(address, inventory),
                Err(_) => Vec::new(),
            };
            if targets.is_empty() {
                bail!("reading {word:?}: that function has no onload.dev device; {DISCOVER_HINT}");
            }
            Ok(targets)
        }
        TargetWord::Device(class, name) => {
            let members: Vec<DrainTarget> = pools
                .offered
                .iter()
                .chain(&pools.drained)
                .filter(|pool| pool.class == class && pool.name.as_str() == name)
                .flat_map(|pool| &pool.pool.members)
                .map(|member| DrainTarget::new(class, Some(member.name.as_str())))
                .collect();
            if !members.is_empty() {
                return Ok(members);
            }
            if is_known(class, &name, inventory) {
                return Ok(vec![DrainTarget::new(class, Some(&name))]);
            }
            let names = class_devices(class, inventory).map(|device| device.name.as_str());
            if let Some(name) = complete_address(&name, names)? {
                return Ok(vec![DrainTarget::new(class, Some(name))]);
            }
            let suggestion = similar_device(class, &name, inventory, pools)
                .map(|suggestion| format!("; did you mean {class}={suggestion}?"));
            bail!(
                "reading {word:?}: this host has no {class} {name:?}{}; {DISCOVER_HINT}",
                suggestion.unwrap_or_default()
            );
        }
    }
}

fn class_devices(class: Class, inventory: &Inventory) -> impl Iterator<Item = &HostDevice> {
    let all = inventory.with_drained();
    all.filter(move |device| device.class == class)
}

/// Returns whether the host has a device with this name, even if it is not offered.
fn is_known(class: Class, name: &str, inventory: &Inventory) -> bool {
    class_devices(class, inventory).any(|device| device.name.as_str() == name)
        || inventory.not_offered.iter().any(|entry| match entry.kind {
            ExclusionSubject::Device(other) => {
                entry.name == name && (other == class || (other.is_onload() && class.is_onload()))
            }
            ExclusionSubject::Tool => false,
        })
}

/// Returns the devices on a function and on its virtual functions, which exist only as long as the function.
fn function_targets(address: PciAddress, inventory: &Inventory) -> Vec<DrainTarget> {
    let functions = &inventory.functions;
    let mut all = BTreeSet::from([address]);
    let parent = functions.get(address).into_iter();
    all.extend(parent.flat_map(|parent| parent.virtual_functions.values().copied()));
    let linked = functions.iter().filter(|function| function.physical_function == Some(address));
    all.extend(linked.map(|function| function.address));
    let devices = inventory.with_drained().filter(|device| {
        let mut addresses = device.pci.iter().chain(&device.aliases);
        addresses.any(|pci| all.contains(pci))
    });
    let targets: BTreeSet<DrainTarget> =
        devices.map(|device| DrainTarget::new(device.class, Some(device.name.as_str()))).collect();
    targets.into_iter().collect()
}

pub(in crate::commands) fn similar_device(
    class: Class,
    name: &str,
    inventory: &Inventory,
    pools: &PoolSet,
) -> Option<String> {
    // A word may be the address of another function in a device's IOMMU group.
    for device in class_devices(class, inventory) {
        if device.aliases.iter().any(|alias| alias.to_string() == name) {
            return Some(device.name.to_string());
        }
    }
    let pools = pools.offered.iter().filter(|pool| pool.class == class);
    class_devices(class, inventory)
        .map(|device| device.name.as_str())
        .chain(pools.map(|pool| pool.name.as_str()))
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= MAX_TYPING_ERRORS)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}
