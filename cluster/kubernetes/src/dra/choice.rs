//! Which interface a class is to have, by all that is known of the cluster and the node. Nothing is asked here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use onload_core::class::Class;
use onload_core::kubernetes_settings::{
    OfferMethod, ResourceName, ResourceSettings, ResourceSource,
};

use super::DraRegistration;
use super::classes::DeviceClasses;
use super::kubelet::Findings;
use super::resource_names::{device_class_manifest, other_resources};
use crate::snapshot::KubernetesSnapshot;

/// Who offers a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    #[default]
    Nobody,
    Plugin,
    Dra,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Nobody => "nobody",
            Way::Plugin => "the device plugin",
            Way::Dra => "DRA",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Way(Way),
    /// The device plugin, although the server serves pods by DRA, and why.
    Plugin(Why),
    Wait,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Why {
    reason: String,
    /// What `kubectl apply` takes to change it.
    apply: Option<String>,
}

impl Why {
    pub(super) fn of(reason: String) -> Why {
        Why { reason, apply: None }
    }
}

pub(super) struct Moment<'a> {
    pub(super) snapshot: &'a KubernetesSnapshot,
    pub(super) told: &'a DeviceClasses,
    pub(super) findings: &'a Findings,
    pub(super) registered: DraRegistration,
    pub(super) is_late: bool,
}

impl Moment<'_> {
    pub(super) fn choose(&self, class: Class, now: Way) -> Choice {
        let plugin = |reason: &str| Choice::Plugin(Why::of(reason.to_owned()));
        let resources = match self.findings {
            Findings::Absent if now != Way::Nobody => return Choice::Way(now),
            Findings::Absent => None,
            // What is decided is not undone by what is not known.
            Findings::Unknown(_) if now == Way::Dra => None,
            Findings::Unknown(reason) | Findings::Against(reason) => return plugin(reason),
            Findings::Resources(resources) => Some(resources),
        };
        let is_of_class = |name: &&String| classes_of(name, self.snapshot).contains(&class);
        if let Some(name) = resources.into_iter().flatten().find(is_of_class) {
            return plugin(&format!(
                "a pod had {name} from the device plugin and kubelet has not forgotten it; pods that ask for it would not start by DRA"
            ));
        }
        match missing(self.snapshot, self.told, class) {
            Some(why) => Choice::Plugin(why),
            None if self.registered.now && resources.is_some() || now == Way::Dra => {
                Choice::Way(Way::Dra)
            }
            None if self.registered.is_refused => plugin("kubelet does not take the DRA driver"),
            None if self.is_late => plugin(
                "kubelet has not asked for the DRA driver; is --kubelet-dir its --root-dir, and mounted in the pod?",
            ),
            None => Choice::Wait,
        }
    }
}

/// Why pods that ask for resources of the operator's would find nothing by DRA; none where they would.
pub(super) fn missing(
    snapshot: &KubernetesSnapshot,
    told: &DeviceClasses,
    class: Class,
) -> Option<Why> {
    let mut resources = other_resources(snapshot, class);
    resources.retain(|name, _| told.is_served(name.as_str()) == Some(false));
    if resources.is_empty() {
        return None;
    }
    let names: Vec<&str> = resources.keys().map(ResourceName::as_str).collect();
    Some(Why {
        reason: format!("no DeviceClass has the extendedResourceName {}", names.join(", ")),
        apply: Some(device_class_manifest(class, &resources).to_string()),
    })
}

/// Says once why classes are not with DRA, or what nobody serves where they are.
pub(super) fn say(
    why: &BTreeMap<Why, Vec<Class>>,
    said: &mut BTreeMap<Why, Vec<Class>>,
    snapshot: &KubernetesSnapshot,
) {
    for (Why { reason, apply }, classes) in
        why.iter().filter(|(why, of)| said.get(*why) != Some(of))
    {
        let is_dra =
            |class: &Class| snapshot.config.kubernetes.offer.method(*class) == OfferMethod::Dra;
        let (is_lost, apply) = (classes.iter().all(is_dra), apply.as_deref());
        let names: Vec<&str> = classes.iter().map(|class| class.as_str()).collect();
        let classes = names.join(", ");
        if is_lost {
            let message = "pods that ask for a resource by its name find none";
            tracing::warn!(%classes, %reason, apply, message);
        } else {
            tracing::info!(%classes, %reason, apply, "left to the device plugin");
        }
    }
    said.clone_from(why);
}

/// The classes that a resource's devices may be of; none if it is not ours.
pub(super) fn classes_of(name: &str, snapshot: &KubernetesSnapshot) -> BTreeSet<Class> {
    let own = ResourceName::try_from(name.to_owned()).ok();
    let Some(own) = own else {
        return BTreeSet::new();
    };
    if let Some(resource) = snapshot.plan.resources.get(&own) {
        return resource.devices.iter().map(|device| device.class).collect();
    }
    let named = snapshot.config.kubernetes.resources.get(&own);
    match named.and_then(ResourceSettings::source) {
        Some(ResourceSource::Class(class)) => BTreeSet::from([class]),
        // Its pool may have had devices of any class.
        Some(ResourceSource::Pool(_)) => BTreeSet::from(Class::ALL),
        None => {
            let mut classes = Class::ALL.into_iter();
            classes.find(|class| class.cdi_kind() == name).into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::test_offers::{offer, snapshot};

    /// What is chosen for class nic, now with somebody, by a kubelet that has told so much.
    fn chosen(findings: &Findings, now: Way, registered: DraRegistration, is_late: bool) -> Choice {
        let settings = r#"{"resources": {"amd.com/onload": {"class": "nic"}}}"#;
        let snapshot =
            snapshot(vec![offer(Class::Nic, "ens1")], serde_json::from_str(settings).unwrap());
        let classes = BTreeMap::from([("a.example.com".to_owned(), "amd.com/onload".to_owned())]);
        let moment = Moment {
            snapshot: &snapshot,
            told: &DeviceClasses::Classes(classes),
            findings,
            registered,
            is_late,
        };
        moment.choose(Class::Nic, now)
    }

    fn reason(choice: Choice) -> String {
        match choice {
            Choice::Plugin(why) => why.reason,
            other => panic!("{other:?}"),
        }
    }

    fn resources(names: &[&str]) -> Findings {
        Findings::Resources(names.iter().map(|name| (*name).to_owned()).collect())
    }

    const KNOWN: DraRegistration = DraRegistration { now: true, is_refused: false };
    const REFUSED_DRIVER: DraRegistration = DraRegistration { now: false, is_refused: true };

    #[test]
    fn what_kubelet_has_not_forgotten_keeps_a_class_from_dra_and_nothing_else_does() {
        for name in ["onload.dev/nic", "amd.com/onload"] {
            for now in [Way::Nobody, Way::Plugin, Way::Dra] {
                let line = reason(chosen(&resources(&[name]), now, KNOWN, false));
                assert!(line.contains(name), "{line}");
            }
        }
        let others = resources(&["onload.dev/vfio", "nvidia.com/gpu", "not a name"]);
        assert_eq!(chosen(&others, Way::Nobody, KNOWN, false), Choice::Way(Way::Dra));
    }

    #[test]
    fn what_is_not_known_leaves_a_class_where_dra_has_it_and_else_with_the_device_plugin() {
        let unknown = Findings::Unknown("why".to_owned());
        assert_eq!(reason(chosen(&unknown, Way::Nobody, KNOWN, false)), "why");
        assert_eq!(reason(chosen(&unknown, Way::Plugin, KNOWN, false)), "why");
        assert_eq!(chosen(&unknown, Way::Dra, KNOWN, false), Choice::Way(Way::Dra));
        let against = Findings::Against("policy".to_owned());
        assert_eq!(reason(chosen(&against, Way::Dra, KNOWN, false)), "policy");
    }

    #[test]
    fn a_kubelet_that_has_not_said_anything_is_waited_for() {
        let nothing = resources(&[]);
        let silent = DraRegistration::default();
        assert_eq!(chosen(&nothing, Way::Nobody, silent, false), Choice::Wait);
        assert_eq!(chosen(&Findings::Absent, Way::Nobody, silent, false), Choice::Wait);
        assert_eq!(chosen(&Findings::Absent, Way::Dra, KNOWN, false), Choice::Way(Way::Dra));
        let refused = reason(chosen(&nothing, Way::Nobody, REFUSED_DRIVER, false));
        assert!(refused.contains("does not take"), "{refused}");
        let late = reason(chosen(&nothing, Way::Nobody, silent, true));
        assert!(late.contains("--kubelet-dir"), "{late}");
    }
}
