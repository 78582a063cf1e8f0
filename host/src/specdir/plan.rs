//! Plans the changes to an output directory from its content without changing it.

use std::collections::{BTreeMap, BTreeSet};

use onload_core::class::Class;

use super::manifest::{FileHashes, Manifest, SpecFormat, sha256};
use crate::spec_name::SpecName;

#[derive(Clone, Debug)]
pub struct DesiredSpecs {
    pub scope: Vec<Class>,
    pub files: BTreeMap<SpecName, Vec<u8>>,
    pub format: SpecFormat,
    /// Classes that could not be read completely: a device missing from their new file may still exist.
    pub undecided: BTreeSet<Class>,
    pub manifest: Manifest,
    /// Whether to replace or remove a file with one of our names that onload-ctk did not write.
    pub force: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStep {
    pub name: String,
    pub action: FileAction,
    pub old: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileAction {
    Write(Vec<u8>),
    /// The file is removed: its class has no devices or pools any more, or it has the other format.
    Remove,
    /// The file is up to date.
    Keep,
    /// The file has one of our names but onload-ctk did not write it: it is kept, and the run is incomplete.
    Leave,
    /// The file offers devices that could not be examined: it is kept, and the run is incomplete.
    Undecided,
}

#[derive(Clone, Debug)]
pub struct SpecPlan {
    pub steps: Vec<FileStep>,
    /// The manifest before the first change: it lists both the old and the new content.
    pub before: Manifest,
    /// The manifest after the last change.
    pub after: Manifest,
}

impl SpecPlan {
    pub fn changes_files(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step.action, FileAction::Write(_) | FileAction::Remove))
    }

    pub fn left_files(&self) -> impl Iterator<Item = &str> {
        self.files_with(FileAction::Leave)
    }

    pub fn undecided_files(&self) -> impl Iterator<Item = &str> {
        self.files_with(FileAction::Undecided)
    }

    fn files_with(&self, action: FileAction) -> impl Iterator<Item = &str> {
        self.steps.iter().filter(move |step| step.action == action).map(|step| step.name.as_str())
    }
}

/// Plans the changes. `existing` has the files with our names; a name that is not a regular file has no content.
/// `manifest` is the directory's own, if it has one.
pub fn plan(
    desired: &DesiredSpecs,
    existing: &BTreeMap<String, Option<Vec<u8>>>,
    manifest: Option<&Manifest>,
) -> SpecPlan {
    let known = manifest.cloned().unwrap_or_default();
    let mut steps = Vec::new();
    let mut after =
        Manifest { files: files_out_of_scope(&known, &desired.scope), ..desired.manifest.clone() };
    let mut before = known.clone();
    let held = held_classes(desired, existing, &known);
    let specs = desired.scope.iter().copied().flat_map(SpecName::for_class);
    for (spec, format) in specs.flat_map(|spec| SpecFormat::ALL.map(|format| (spec, format))) {
        let name = format.file_name(spec);
        let content = desired.files.get(&spec).filter(|_| format == desired.format);
        let old = existing.get(&name);
        let may_change = |old: &Option<Vec<u8>>| {
            desired.force || old.as_ref().is_some_and(|old| known.owns(&name, old))
        };
        let is_held = held.contains(&spec.class);
        let Some(action) = decide(content, old, may_change, is_held) else {
            continue;
        };
        match (&action, content) {
            // A file that onload-ctk once wrote there is still its own if it is restored.
            (FileAction::Undecided, _) | (FileAction::Leave, Some(_)) => {
                let hashes = known.files.get(&name).cloned().map(|hashes| (name.clone(), hashes));
                after.files.extend(hashes);
            }
            (FileAction::Write(_) | FileAction::Keep, Some(content)) => {
                let hash = sha256(content);
                let entry = before.files.entry(name.clone()).or_default();
                if !entry.sha256.contains(&hash) {
                    entry.sha256.push(hash.clone());
                }
                let sha256 = vec![hash];
                after.files.insert(name.clone(), FileHashes { sha256 });
            }
            (_, None) | (FileAction::Remove, _) => {}
        }
        let old = old.cloned().flatten();
        steps.push(FileStep { name, action, old });
    }
    steps.sort_by(|one, other| one.name.cmp(&other.name));
    SpecPlan { steps, before, after }
}

/// Returns the classes whose files are kept: onload-ctk's own file has devices that the new one would lack only because
/// of a failed read. The pools of a class list its devices, so both files are kept.
fn held_classes(
    desired: &DesiredSpecs,
    existing: &BTreeMap<String, Option<Vec<u8>>>,
    known: &Manifest,
) -> BTreeSet<Class> {
    let mut held = BTreeSet::new();
    for class in desired.undecided.iter().filter(|_| !desired.force) {
        for spec in SpecName::for_class(*class) {
            let new = desired.files.get(&spec).map(|new| (desired.format, &**new));
            for format in SpecFormat::ALL {
                let name = format.file_name(spec);
                if let Some(Some(old)) = existing.get(&name)
                    && known.owns(&name, old)
                    && loses_devices((format, old), new)
                {
                    held.insert(*class);
                }
            }
        }
    }
    held
}

/// Returns whether the old file has a device that the new one lacks. Without a new file, all are lacking. An old file
/// that is not a specification has no devices.
fn loses_devices(old: (SpecFormat, &[u8]), new: Option<(SpecFormat, &[u8])>) -> bool {
    let names = |(format, bytes): (SpecFormat, &[u8])| -> BTreeSet<String> {
        format
            .parse(bytes)
            .map(|spec| spec.devices)
            .into_iter()
            .flatten()
            .map(|device| device.name.clone())
            .collect()
    };
    let new_names = new.map(names).unwrap_or_default();
    !names(old).is_subset(&new_names)
}

fn files_out_of_scope(known: &Manifest, scope: &[Class]) -> BTreeMap<String, FileHashes> {
    let in_scope: BTreeSet<String> =
        scope.iter().copied().flat_map(SpecFormat::file_names).collect();
    let mut files = known.files.clone();
    files.retain(|name, _| !in_scope.contains(name));
    files
}

/// Decides for one file. Returns `None` if it neither exists nor has to be written.
fn decide(
    desired: Option<&Vec<u8>>,
    existing: Option<&Option<Vec<u8>>>,
    may_change: impl Fn(&Option<Vec<u8>>) -> bool,
    is_held: bool,
) -> Option<FileAction> {
    match (desired, existing) {
        (None, None) => None,
        (Some(content), Some(Some(old))) if content == old => Some(FileAction::Keep),
        (_, Some(old)) if !may_change(old) => Some(FileAction::Leave),
        (_, existing) if is_held => existing.map(|_| FileAction::Undecided),
        (Some(content), _) => Some(FileAction::Write(content.clone())),
        (None, Some(_)) => Some(FileAction::Remove),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: &str = "onload.dev-nic.json";

    fn wanted(files: &[(Class, &str)]) -> DesiredSpecs {
        let files = files.iter().map(|(class, text)| (SpecName::devices(*class), *text));
        wanting(&files.collect::<Vec<_>>())
    }

    fn wanting(files: &[(SpecName, &str)]) -> DesiredSpecs {
        let files = files.iter().map(|(spec, text)| (*spec, text.as_bytes().to_vec()));
        DesiredSpecs {
            scope: Class::ALL.to_vec(),
            files: files.collect(),
            format: SpecFormat::Json,
            undecided: BTreeSet::new(),
            manifest: Manifest { kinds: Class::ALL.to_vec(), ..Manifest::default() },
            force: false,
        }
    }

    fn existing(files: &[(&str, &str)]) -> BTreeMap<String, Option<Vec<u8>>> {
        files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Some(text.as_bytes().to_vec())))
            .collect()
    }

    fn owning(files: &[(&str, &str)]) -> Manifest {
        let entry = |text: &str| FileHashes { sha256: vec![sha256(text.as_bytes())] };
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), entry(text)));
        Manifest { kinds: Class::ALL.to_vec(), files: files.collect(), ..Manifest::default() }
    }

    fn actions(plan: &SpecPlan) -> Vec<(&str, &FileAction)> {
        plan.steps.iter().map(|step| (step.name.as_str(), &step.action)).collect()
    }

    #[test]
    fn a_new_file_is_written_and_both_manifests_know_it() {
        let plan = plan(&wanted(&[(Class::Nic, "new")]), &existing(&[]), None);
        assert_eq!(actions(&plan), [(NIC, &FileAction::Write(b"new".to_vec()))]);
        assert!(plan.before.owns(NIC, b"new"));
        assert!(plan.after.owns(NIC, b"new"));
    }

    #[test]
    fn while_a_file_is_replaced_the_old_and_the_new_content_are_ours() {
        let manifest = owning(&[(NIC, "old")]);
        let plan =
            plan(&wanted(&[(Class::Nic, "new")]), &existing(&[(NIC, "old")]), Some(&manifest));
        assert!(plan.before.owns(NIC, b"old") && plan.before.owns(NIC, b"new"));
        assert!(!plan.after.owns(NIC, b"old") && plan.after.owns(NIC, b"new"));
    }

    #[test]
    fn a_file_that_is_as_it_should_be_is_kept_and_counts_as_ours_without_a_manifest() {
        let plan = plan(&wanted(&[(Class::Nic, "same")]), &existing(&[(NIC, "same")]), None);
        assert_eq!(actions(&plan), [(NIC, &FileAction::Keep)]);
        assert!(!plan.changes_files());
        assert!(plan.after.owns(NIC, b"same"));
    }

    #[test]
    fn a_kind_that_is_gone_has_its_file_removed() {
        let manifest = owning(&[(NIC, "old")]);
        let plan = plan(&wanted(&[]), &existing(&[(NIC, "old")]), Some(&manifest));
        assert_eq!(actions(&plan), [(NIC, &FileAction::Remove)]);
        assert!(plan.after.files.is_empty());
    }

    #[test]
    fn a_file_of_our_name_that_is_not_ours_is_left_alone() {
        let files = existing(&[(NIC, "somebody's")]);
        let without = plan(&wanted(&[(Class::Nic, "new")]), &files, None);
        assert_eq!(actions(&without), [(NIC, &FileAction::Leave)]);
        let edited = plan(&wanted(&[(Class::Nic, "new")]), &files, Some(&owning(&[(NIC, "old")])));
        assert_eq!(edited.left_files().collect::<Vec<_>>(), [NIC]);
        assert!(edited.after.owns(NIC, b"old"));
        let gone = plan(&wanted(&[]), &files, None);
        assert_eq!(actions(&gone), [(NIC, &FileAction::Leave)]);
    }

    fn spec(devices: &[&str]) -> String {
        let devices = devices
            .iter()
            .map(|name| format!(r#"{{"name":"{name}","containerEdits":{{"env":["A=b"]}}}}"#))
            .collect::<Vec<_>>()
            .join(",");
        format!(r#"{{"cdiVersion":"0.3.0","kind":"onload.dev/nic","devices":[{devices}]}}"#)
    }

    fn undecided(new: Option<&str>) -> DesiredSpecs {
        let files: Vec<_> = new.map(|new| (Class::Nic, new)).into_iter().collect();
        DesiredSpecs { undecided: BTreeSet::from([Class::Nic]), ..wanted(&files) }
    }

    #[test]
    fn a_file_stays_where_devices_of_it_could_not_be_looked_at() {
        let (old, fewer) = (spec(&["ens1", "ens3"]), spec(&["ens3"]));
        for new in [None, Some(fewer.as_str())] {
            let mut wanted = undecided(new);
            let files = existing(&[(NIC, &old)]);
            let held = plan(&wanted, &files, Some(&owning(&[(NIC, &old)])));
            assert_eq!(held.undecided_files().collect::<Vec<_>>(), [NIC]);
            assert!(!held.changes_files() && held.after.owns(NIC, old.as_bytes()));
            wanted.force = true;
            let forced = plan(&wanted, &files, Some(&owning(&[(NIC, &old)])));
            assert!(forced.changes_files());
        }
    }

    #[test]
    fn a_file_that_loses_no_device_is_written_whatever_could_not_be_read() {
        let (old, new) = (spec(&["ens3"]), spec(&["ens1", "ens3"]));
        let wanted = undecided(Some(&new));
        let files = existing(&[(NIC, &old)]);
        let written = plan(&wanted, &files, Some(&owning(&[(NIC, &old)])));
        assert_eq!(actions(&written), [(NIC, &FileAction::Write(new.into_bytes()))]);
        let first = plan(&wanted, &existing(&[]), None);
        assert!(first.changes_files());
    }

    #[test]
    fn a_file_of_the_other_format_stays_alone_where_its_devices_are_not_known() {
        let (old, new) = (spec(&["ens1"]), spec(&["ens3"]));
        let yaml = "onload.dev-nic.yaml";
        let manifest = owning(&[(yaml, &old)]);
        let plan = plan(&undecided(Some(&new)), &existing(&[(yaml, &old)]), Some(&manifest));
        assert_eq!(actions(&plan), [(yaml, &FileAction::Undecided)]);
    }

    const POOLS: &str = "onload.dev-nic-pools.json";

    /// A pool may be one of fewer members, where a device is not known.
    #[test]
    fn the_devices_of_a_class_and_its_pools_stay_together() {
        let (both, one, any) = (spec(&["ens1", "ens3"]), spec(&["ens3"]), spec(&["any"]));
        let other = any.replace("A=b", "A=c");
        let (devices, pools) = (SpecName::devices(Class::Nic), SpecName::pools(Class::Nic));
        for (old, new) in [
            ([&both, &any], vec![(devices, &*one), (pools, &*other)]),
            ([&both, &any], vec![(devices, &*one)]),
            ([&one, &any], vec![(devices, &*both)]),
        ] {
            let files = [(NIC, old[0].as_str()), (POOLS, old[1].as_str())];
            let (files, manifest) = (existing(&files), owning(&files));
            let mut wanted =
                DesiredSpecs { undecided: BTreeSet::from([Class::Nic]), ..wanting(&new) };
            let held = plan(&wanted, &files, Some(&manifest));
            assert_eq!(held.undecided_files().collect::<Vec<_>>(), [POOLS, NIC]);
            assert_eq!(held.after.files, manifest.files);
            wanted.undecided.clear();
            let known = plan(&wanted, &files, Some(&manifest));
            assert!(known.changes_files() && known.undecided_files().next().is_none());
        }
    }

    #[test]
    fn pools_that_are_gone_have_their_file_removed_and_the_devices_stay() {
        let files = [(NIC, "nic"), (POOLS, "pools")];
        let (files, manifest) = (existing(&files), owning(&files));
        let gone = plan(&wanted(&[(Class::Nic, "nic")]), &files, Some(&manifest));
        assert_eq!(actions(&gone), [(POOLS, &FileAction::Remove), (NIC, &FileAction::Keep)]);
        assert!(gone.after.owns(NIC, b"nic") && !gone.after.files.contains_key(POOLS));
        // A run for another class touches neither, and one without a manifest removes nothing.
        let rdma = DesiredSpecs { scope: vec![Class::Rdma], ..wanted(&[]) };
        let rdma = plan(&rdma, &files, Some(&manifest));
        assert_eq!(actions(&rdma), []);
        assert_eq!(rdma.after.files, manifest.files);
        let foreign = plan(&wanted(&[(Class::Nic, "nic")]), &files, None);
        assert_eq!(foreign.left_files().collect::<Vec<_>>(), [POOLS]);
    }

    #[test]
    fn force_takes_a_file_of_our_name() {
        let forced = DesiredSpecs { force: true, ..wanted(&[(Class::Nic, "new")]) };
        let plan = plan(&forced, &existing(&[(NIC, "somebody's")]), None);
        assert_eq!(actions(&plan), [(NIC, &FileAction::Write(b"new".to_vec()))]);
    }

    #[test]
    fn our_file_of_the_other_format_goes() {
        let yaml = "onload.dev-nic.yaml";
        let manifest = owning(&[(yaml, "old")]);
        let plan =
            plan(&wanted(&[(Class::Nic, "new")]), &existing(&[(yaml, "old")]), Some(&manifest));
        assert_eq!(
            actions(&plan),
            [(NIC, &FileAction::Write(b"new".to_vec())), (yaml, &FileAction::Remove)]
        );
    }

    #[test]
    fn a_run_for_some_kinds_leaves_the_others_and_their_entries() {
        let manifest = owning(&[(NIC, "nic")]);
        let named = DesiredSpecs { scope: vec![Class::Rdma], ..wanted(&[(Class::Rdma, "rdma")]) };
        let plan = plan(&named, &existing(&[(NIC, "nic")]), Some(&manifest));
        assert_eq!(
            actions(&plan),
            [("onload.dev-rdma.json", &FileAction::Write(b"rdma".to_vec()))]
        );
        assert!(plan.after.owns(NIC, b"nic"));
    }

    #[test]
    fn a_name_that_leads_to_no_regular_file_is_left_alone() {
        let files = BTreeMap::from([(NIC.to_owned(), None)]);
        let plan = plan(&wanted(&[(Class::Nic, "new")]), &files, None);
        assert_eq!(actions(&plan), [(NIC, &FileAction::Leave)]);
    }
}
