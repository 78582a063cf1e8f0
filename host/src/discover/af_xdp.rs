//! Reasons why programs are not accelerated on an AF_XDP interface: flow filters and channels (Onload,
//! `lib/efhw/af_xdp.c`).

use std::fmt;

use onload_sys::text::quote_for_shell;

use crate::netlink::features::{FlowFilters, InterfaceFeatures};

/// The setting for cards without flow filters.
pub const SWITCH_OFF: &str = "af-xdp-flow-filters = false";

/// Whether an interface is registered with Onload, which reads its channels then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    NotMade,
    Made,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfXdpTrouble {
    NoFilters,
    FiltersOff,
    /// Without flow filters, frames arrive at this number of queues.
    Channels(u32),
}

impl AfXdpTrouble {
    pub fn find(features: InterfaceFeatures, parameter: Option<&str>) -> Option<AfXdpTrouble> {
        let is_one = features.channels.is_none_or(|channels| channels < 2);
        match (parameter?, features.flow_filters) {
            ("0", _) if is_one => None,
            ("0", _) => features.channels.map(AfXdpTrouble::Channels),
            (_, Some(FlowFilters::Absent)) => Some(AfXdpTrouble::NoFilters),
            (_, Some(FlowFilters::Off)) => Some(AfXdpTrouble::FiltersOff),
            (_, Some(FlowFilters::On) | None) => None,
        }
    }

    pub fn remedy_command(self, interface: &str) -> Option<String> {
        let interface = quote_for_shell(interface);
        match self {
            AfXdpTrouble::NoFilters => None,
            AfXdpTrouble::FiltersOff => Some(format!("ethtool -K {interface} ntuple on")),
            AfXdpTrouble::Channels(_) => Some(format!("ethtool -L {interface} combined 1")),
        }
    }

    pub(crate) fn describe(self, interface: &str, registration: Registration) -> String {
        match self.remedy_command(interface) {
            // The driver has to be reloaded then, which takes more commands than fit here.
            Some(_)
                if matches!(self, AfXdpTrouble::Channels(_))
                    && registration == Registration::Made =>
            {
                format!("{interface}: {self}; \"onload-ctk doctor\" lists the commands")
            }
            Some(command) => format!("{interface}: {self}; run \"{command}\""),
            None => format!(
                "{interface}: {self}; set {SWITCH_OFF} and list {interface} in af-xdp under [host], \
                 and run \"onload-ctk host apply\""
            ),
        }
    }
}

impl fmt::Display for AfXdpTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FAILS: &str = "bind or listen of servers fails with \"Operation not supported\"";
        match self {
            AfXdpTrouble::NoFilters => {
                write!(
                    f,
                    "its driver does not support flow filters, which Onload sets with AF_XDP: \
                     {FAILS}"
                )
            }
            AfXdpTrouble::FiltersOff => write!(
                f,
                "its flow filters are disabled, but Onload sets some with AF_XDP: unless the \
                 driver allows that, {FAILS}"
            ),
            AfXdpTrouble::Channels(channels) => write!(
                f,
                "Onload sets no flow filters with AF_XDP, but it has {channels} channels: only \
                 connections that hash to the stack's queue are accelerated"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(flow_filters: Option<FlowFilters>, channels: Option<u32>) -> InterfaceFeatures {
        InterfaceFeatures { xdp: Some(true), flow_filters, channels }
    }

    #[test]
    fn a_card_without_filters_is_in_trouble_while_onload_sets_some() {
        let absent = with(Some(FlowFilters::Absent), Some(4));
        assert_eq!(AfXdpTrouble::find(absent, Some("1")), Some(AfXdpTrouble::NoFilters));
        assert_eq!(AfXdpTrouble::find(absent, Some("0")), Some(AfXdpTrouble::Channels(4)));
        let alone = with(Some(FlowFilters::Absent), Some(1));
        assert_eq!(AfXdpTrouble::find(alone, Some("0")), None);
        let off = with(Some(FlowFilters::Off), Some(4));
        assert_eq!(AfXdpTrouble::find(off, Some("1")), Some(AfXdpTrouble::FiltersOff));
        let on = with(Some(FlowFilters::On), Some(4));
        assert_eq!(AfXdpTrouble::find(on, Some("1")), None);
    }

    #[test]
    fn channels_change_by_one_command_only_before_the_registration() {
        let line = |registration| AfXdpTrouble::Channels(2).describe("ens2", registration);
        let before = line(Registration::NotMade);
        assert!(before.ends_with("; run \"ethtool -L ens2 combined 1\""), "{before}");
        let after = line(Registration::Made);
        assert!(after.ends_with("; \"onload-ctk doctor\" lists the commands"), "{after}");
    }

    #[test]
    fn what_is_not_known_is_no_trouble() {
        assert_eq!(AfXdpTrouble::find(with(None, None), Some("1")), None);
        assert_eq!(AfXdpTrouble::find(with(None, None), Some("0")), None);
        let absent = with(Some(FlowFilters::Absent), Some(4));
        assert_eq!(AfXdpTrouble::find(absent, None), None);
    }
}
