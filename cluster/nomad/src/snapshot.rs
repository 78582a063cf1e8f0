//! The result of a survey: the published devices, and the edits for their tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use onload_cdi::QualifiedName;
use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::device_id::DeviceId;
use onload_host::host::Host;
use onload_host::leases;
use onload_host::offers::Health;
use onload_lease::tickets::to_variable;
use onload_sys::text::ShortList;

use crate::devices::edit_sources::{self, EditSources};
use crate::devices::group::{NomadDevice, NomadGroup, find_position};
use crate::devices::id;
use crate::devices::plan::{NomadPlan, plan};
use crate::devices::reservation::{
    NomadReservation, ReservationOptions, UnsupportedEdit, unsupported_edits,
};
use crate::settings::PluginSettings;
use crate::tickets::{self, OwnTasks};
use crate::wire::device::{ContainerReservation, DeviceGroup};

/// The variable that lists the edits that a task did not get.
const MISSING_VARIABLE: &str = "ONLOAD_CTK_NOT_GIVEN";

#[derive(Clone, Debug, Default)]
pub struct NomadSnapshot {
    pub plan: NomadPlan,
    pub settings: PluginSettings,
    /// `None` before the first survey.
    pub host: Option<Arc<Host>>,
    tasks: OwnTasks,
    edit_sources: EditSources,
}

impl NomadSnapshot {
    pub fn new(
        host: &Arc<Host>,
        config: &Config,
        settings: &PluginSettings,
        dirs: &[PathBuf],
        earlier: Option<&NomadSnapshot>,
    ) -> Result<NomadSnapshot> {
        let survey = edit_sources::survey_host(host, config, settings, dirs)?;
        let leases = survey.devices.iter().flat_map(|host_device| {
            let device = DeviceId { class: host_device.class, name: host_device.name.clone() };
            host_device.leases.iter().filter_map(move |device_lease| {
                Some((device.clone(), device_lease.lease.as_ref()?))
            })
        });
        let tasks = match earlier {
            Some(earlier) => OwnTasks::read(host).merge_earlier(&earlier.tasks, leases),
            None => OwnTasks::read(host),
        };
        let earlier_plan = earlier.map(|earlier| &earlier.plan);
        let mut plan =
            plan(&survey.devices, settings, earlier_plan, |lease| tasks.holds_lease(lease));
        plan.left_out.extend(survey.exclusions);
        Ok(NomadSnapshot {
            plan,
            settings: settings.clone(),
            host: Some(Arc::clone(host)),
            tasks,
            edit_sources: survey.edit_sources,
        })
    }

    pub fn to_wire(&self) -> Vec<DeviceGroup> {
        self.plan.groups.iter().map(|group| group.to_wire(&self.tasks.slots)).collect()
    }

    pub fn reserve(&self, ids: &[String]) -> Result<ContainerReservation> {
        let mut reservation = NomadReservation::default();
        let (mut by_ticket, mut exclusive) = (BTreeSet::new(), Vec::new());
        let mut not_given = BTreeSet::new();
        let mut is_current = None;
        let devices = self.devices(ids)?;
        let host = self.host.as_deref().context("the host could not be read")?;
        for (id, group, device) in devices {
            for (class, names) in &device.cdi_devices {
                let reserving = || format!("reserving {id}");
                // Reserve's answer replaces the task's own variables, while the runtime keeps them and merges those of
                // several blocks.
                if self.needs_ticket(*class) {
                    let is_current = match is_current {
                        Some(is_current) => is_current,
                        None => *is_current
                            .insert(self.edit_sources.is_current(host).with_context(reserving)?),
                    };
                    if !is_current {
                        self.edit_sources.edits(host, *class, names).with_context(reserving)?;
                    }
                    by_ticket.extend(names.iter().map(|name| (*class, name.clone())));
                    exclusive.extend(leased_devices(*class, names).filter(|_| group.is_exclusive));
                    continue;
                }
                let edits = self.edit_sources.edits(host, *class, names).with_context(reserving)?;
                let unsupported = unsupported_edits(&edits);
                check_supported(&unsupported, id)?;
                not_given.extend(unsupported);
                reservation.add(&edits, &self.reservation_options(*class));
            }
        }
        if !not_given.is_empty() {
            let words: Vec<&str> = not_given.into_iter().map(UnsupportedEdit::as_str).collect();
            reservation.set(MISSING_VARIABLE, words.join(","));
        }
        if !by_ticket.is_empty() {
            let ids = ids.join(tickets::SEPARATOR);
            let ticket = tickets::write(host, &by_ticket, &exclusive, &ids)
                .with_context(|| format!("reserving {ids}"))?;
            let (name, value) = to_variable(&ticket);
            reservation.set(&name, value);
        }
        Ok(reservation.into_wire())
    }

    /// Returns a task of this client that holds one of the devices without free slots, for messages. Reads leases
    /// again.
    pub fn find_own_holder(&self, ids: &[String]) -> Result<Option<String>> {
        let Some(host) = &self.host else {
            return Ok(None);
        };
        let mut slots_by_device: BTreeMap<DeviceId, u32> = BTreeMap::new();
        let groups = &self.plan.groups;
        for (group, index) in ids.iter().filter_map(|id| find_position(groups, id)) {
            let device = &groups[group].devices[index];
            for (class, names) in &device.cdi_devices {
                let members = leased_devices(*class, names);
                slots_by_device.extend(members.map(|member| (member, device.slots)));
            }
        }
        let mut leases = leases::list(host)?;
        leases.retain(|entry| !entry.has_ended());
        for entry in &leases {
            let (Ok(lease), Some(slots)) = (&entry.lease, slots_by_device.get(&entry.device))
            else {
                continue;
            };
            let held = leases.iter().filter(|other| other.device == entry.device).count();
            let is_own = self.tasks.holds_lease(lease) || tickets::is_of_ours(host, lease);
            if is_own && u32::try_from(held).unwrap_or(u32::MAX) >= *slots {
                return Ok(Some(lease.to_string()));
            }
        }
        Ok(None)
    }

    fn needs_ticket(&self, class: Class) -> bool {
        self.settings.has_runtime && !self.edit_sources.is_own(class)
    }

    /// Returns the devices of these ids, each once, with the first of its ids.
    fn devices<'s>(
        &'s self,
        ids: &'s [String],
    ) -> Result<Vec<(&'s str, &'s NomadGroup, &'s NomadDevice)>> {
        let mut used = BTreeSet::new();
        let mut devices = Vec::new();
        for id in ids {
            let Some((group_index, requested)) = find_position(&self.plan.groups, id) else {
                let why = self.absence_reason(id);
                bail!("reserving {id}: {why}; let Nomad place the task again");
            };
            let group = &self.plan.groups[group_index];
            let index = find_unused(group, requested, |index| used.contains(&(group_index, index)));
            let Some(device) =
                group.devices.get(index).filter(|_| used.insert((group_index, index)))
            else {
                continue;
            };
            if let Health::Unhealthy(why) = &device.health {
                bail!("reserving {id}: {why}");
            }
            devices.push((id.as_str(), group, device));
        }
        Ok(devices)
    }

    fn absence_reason(&self, id: &str) -> String {
        let Some((r#type, name, _)) = id::parse(id) else {
            return "it is not a device of this plugin".to_owned();
        };
        let left_out = format!("{type} {name} is not published: ");
        let left_out = self.plan.left_out.iter().find_map(|line| line.strip_prefix(&left_out));
        match left_out {
            Some(why) => format!("it is no longer published: {why}"),
            None => "this host no longer has this device".to_owned(),
        }
    }

    fn reservation_options(&self, class: Class) -> ReservationOptions {
        // The classes of nomad-onload's setting for the device directory.
        let has_place =
            [Class::Nic, Class::NicPlain, Class::Zf, Class::Ptp, Class::Pps].contains(&class);
        let paths = &self.settings.paths;
        ReservationOptions {
            library_dir: paths.onload_lib.task.path().cloned(),
            without_nodes: has_place && paths.device.is_closed(),
        }
    }
}

/// Fails for a device that does not work without an edit that Nomad does not support.
fn check_supported(unsupported: &BTreeSet<UnsupportedEdit>, id: &str) -> Result<()> {
    let required: Vec<String> = unsupported
        .iter()
        .filter(|edit| !edit.is_optional())
        .map(|edit| edit.as_str().to_owned())
        .collect();
    if !required.is_empty() {
        bail!(
            "reserving {id}: it needs {}, which Nomad does not support; run all tasks with the \
             runtime \"onload\", and set runtime = \"onload\" in the plugin's configuration",
            ShortList(&required)
        );
    }
    Ok(())
}

/// Returns an unused device of a group. Nomad chooses slots, so a second slot of the same device means another device
/// if there is one.
fn find_unused(group: &NomadGroup, index: usize, is_taken: impl Fn(usize) -> bool) -> usize {
    if !is_taken(index) {
        return index;
    }
    let mut devices = group.devices.iter().enumerate();
    let unused =
        devices.find(|(other, device)| device.health == Health::Healthy && !is_taken(*other));
    unused.map_or(index, |(other, _)| other)
}

fn leased_devices(class: Class, names: &[QualifiedName]) -> impl Iterator<Item = DeviceId> {
    names.iter().map(|name| name.device.clone()).map(move |name| DeviceId { class, name })
}
