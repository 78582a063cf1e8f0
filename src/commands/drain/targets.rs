//! What is drained, as it is typed: CLASS=NAME, CLASS, a pool, or the address of a PCI function.

use std::collections::BTreeSet;

use anyhow::bail;
use onload_core::class::Class;
use onload_core::drain::{DrainList, DrainTarget};
use onload_host::devices::HostDevice;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::exclusion::ExclusionSubject;
use onload_host::pools::PoolSet;
use onload_sys::pci::PciAddress;
use onload_sys::text::ShortList;

use crate::commands::MOST_TYPING_ERRORS;
use crate::printer::Printer;

const SHOWS: &str = "\"onload-ctk discover\" shows what this host has";

/// Every class. A bundle is made of devices of the others.
pub(super) fn all_classes() -> Vec<DrainTarget> {
    let classes = Class::ALL.into_iter();
    let classes = classes.filter(|class| *class != Class::Bundle);
    let targets = classes.map(|class| DrainTarget::new(class, None));
    let targets: BTreeSet<DrainTarget> = targets.collect();
    targets.into_iter().collect()
}

pub(super) fn resolve_targets(
    words: &[String],
    inventory: &Inventory,
    pools: &PoolSet,
    printer: &mut Printer,
) -> anyhow::Result<Vec<DrainTarget>> {
    let mut targets = BTreeSet::new();
    for word in words {
        let meant = resolve_word(word, inventory, pools)?;
        let is_as_typed = |target: &DrainTarget| word.ends_with(&target.to_string());
        if !meant.iter().all(is_as_typed) {
            let names: Vec<String> = meant.iter().map(ToString::to_string).collect();
            printer.note(format_args!("{word} stands for {}", ShortList(&names)));
        }
        targets.extend(meant);
    }
    Ok(targets.into_iter().collect())
}

/// Those of the words that are drained. A device may have gone meanwhile, so what is drained is looked at before the
/// host is.
pub(in crate::commands) fn resolve_drained(
    words: &[String],
    drain: &DrainList,
    mut look: impl FnMut() -> (Inventory, PoolSet),
) -> anyhow::Result<Vec<DrainTarget>> {
    let mut host = None;
    let mut targets = BTreeSet::new();
    for word in words {
        let typed = parse_word(word)?;
        let known = match &typed {
            TargetWord::Class(class) => {
                let all = drain.for_class(*class);
                targets.extend(all.map(|one| one.target.clone()));
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
        let (inventory, pools) = host.get_or_insert_with(&mut look);
        for target in resolve_word(word, inventory, pools)? {
            check_not_by_class(drain, word, &target)?;
            if drain.get(&target).is_some() {
                targets.insert(target);
            }
        }
    }
    Ok(targets.into_iter().collect())
}

fn check_not_by_class(drain: &DrainList, word: &str, target: &DrainTarget) -> anyhow::Result<()> {
    let class = target.class();
    if drain.get(&DrainTarget::new(class, None)).is_some() {
        bail!(
            "undraining {word}: {target} is drained with its class; \"onload-ctk undrain {class}\" offers all of it again"
        );
    }
    Ok(())
}

enum TargetWord {
    Class(Class),
    Device(Class, String),
    Function(PciAddress),
}

fn parse_word(word: &str) -> anyhow::Result<TargetWord> {
    let short = word.strip_prefix("onload.dev/").unwrap_or(word);
    let class = |text: &str| -> anyhow::Result<Class> {
        let class: Class = text.parse()?;
        if class == Class::Bundle {
            bail!(
                "reading {word:?}: a bundle is devices of other classes; drain these, and it is not offered either"
            );
        }
        Ok(class)
    };
    Ok(match short.split_once('=') {
        Some((of, "all")) => TargetWord::Class(class(of)?),
        Some((of, name)) => TargetWord::Device(class(of)?, name.to_owned()),
        None => match short.parse() {
            Ok(address) => TargetWord::Function(address),
            Err(_) => TargetWord::Class(class(short)?),
        },
    })
}

/// What a word means on this host: at least one.
fn resolve_word(
    word: &str,
    inventory: &Inventory,
    pools: &PoolSet,
) -> anyhow::Result<Vec<DrainTarget>> {
    let typed = parse_word(word).map_err(|error| match similar_name(word, inventory) {
        Some(near) => anyhow::anyhow!("reading {word:?}: write CLASS=NAME, as in {near}"),
        None => error,
    })?;
    match typed {
        TargetWord::Class(class) => Ok(vec![DrainTarget::new(class, None)]),
        TargetWord::Function(address) => {
            let found = function_targets(address, inventory);
            if found.is_empty() {
                bail!("reading {word:?}: no device of onload.dev is on that function; {SHOWS}");
            }
            Ok(found)
        }
        TargetWord::Device(class, name) => {
            let all = pools.offered.iter().chain(&pools.drained);
            let members = all
                .filter(|pool| pool.class == class && pool.name.as_str() == name)
                .flat_map(|pool| &pool.pool.members);
            let members = members.map(|member| DrainTarget::new(class, Some(member.name.as_str())));
            let members: Vec<DrainTarget> = members.collect();
            if !members.is_empty() {
                return Ok(members);
            }
            if is_known(class, &name, inventory) {
                return Ok(vec![DrainTarget::new(class, Some(&name))]);
            }
            let near = similar_device(class, &name, inventory, pools);
            let near = near.map(|near| format!("; did you mean {class}={near}?"));
            bail!(
                "reading {word:?}: this host has no {class} {name:?}{}; {SHOWS}",
                near.unwrap_or_default()
            );
        }
    }
}

fn class_devices(class: Class, inventory: &Inventory) -> impl Iterator<Item = &HostDevice> {
    let all = inventory.with_drained();
    all.filter(move |device| device.class == class)
}

/// A device that is offered, or would be but for a reason that may go away meanwhile.
fn is_known(class: Class, name: &str, inventory: &Inventory) -> bool {
    let mut not_offered = inventory.not_offered.iter();
    let is_it = |kind: ExclusionSubject| match kind {
        ExclusionSubject::Device(of) => of == class || (of.is_onload() && class.is_onload()),
        ExclusionSubject::Tool => false,
    };
    class_devices(class, inventory).any(|device| device.name.as_str() == name)
        || not_offered.any(|entry| is_it(entry.kind) && entry.name == name)
}

/// The devices on a function and on its virtual functions, which come and go with it.
fn function_targets(address: PciAddress, inventory: &Inventory) -> Vec<DrainTarget> {
    let functions = &inventory.functions;
    let mut all = BTreeSet::from([address]);
    let own = functions.get(address).into_iter();
    all.extend(own.flat_map(|own| own.virtual_functions.values().copied()));
    let linked = functions.iter();
    let linked = linked.filter(|one| one.physical_function == Some(address));
    all.extend(linked.map(|one| one.address));
    let devices = inventory.with_drained().filter(|device| {
        let mut own = device.pci.iter().chain(&device.aliases);
        own.any(|own| all.contains(own))
    });
    let targets = devices.map(|device| DrainTarget::new(device.class, Some(device.name.as_str())));
    let targets: BTreeSet<DrainTarget> = targets.collect();
    targets.into_iter().collect()
}

fn similar_device(
    class: Class,
    name: &str,
    inventory: &Inventory,
    pools: &PoolSet,
) -> Option<String> {
    // One of several names of a group.
    let by_alias =
        |device: &&HostDevice| device.aliases.iter().any(|alias| alias.to_string() == name);
    if let Some(device) = class_devices(class, inventory).find(by_alias) {
        return Some(device.name.to_string());
    }
    let pools = pools.offered.iter().filter(|pool| pool.class == class);
    let names = class_devices(class, inventory).map(|device| device.name.as_str());
    let names = names.chain(pools.map(|pool| pool.name.as_str()));
    let near = names.map(|near| (strsim::damerau_levenshtein(name, near), near));
    let near = near.filter(|(distance, _)| *distance <= MOST_TYPING_ERRORS);
    near.min().map(|(_, near)| near.to_owned())
}

/// A device whose class was left out.
fn similar_name(word: &str, inventory: &Inventory) -> Option<String> {
    let mut all = inventory.with_drained();
    let found = all.find(|device| device.name.as_str() == word)?;
    Some(DrainTarget::new(found.class, Some(word)).to_string())
}
