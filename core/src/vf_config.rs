//! What a virtual function is for a container, as its physical function is told: its VLAN and its like.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as Silent;

use crate::host_settings::{MacAddress, Vlan, mismatch_error};
use crate::lease::DeviceId;
use crate::select::{VfRange, parse_range};
use onload_sys::error::{Context as _, Error, Result, bail, error, read_as_text};
use onload_sys::netlink::vf::{LinkState, VfSettings, VlanProtocol, VlanTag};
use onload_sys::text::{Quoted, parse_decimal};

/// What is left to do where a function shares its IOMMU group.
pub const OWN_GROUPS: &str = "have each function in a group of its own (PCI access control services, ACS, in the firmware's settings)";

/// Table `vf` of a section `[pools.NAME]` or `[netdev.NAME]`: what a virtual function is while a container has it. It is
/// set through the interface of its physical function, and put back when the container has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct VfConfig {
    /// The VLAN that the card puts its frames into, from 1 to 4094; 0: none.
    pub vlan: Option<Vlan>,
    /// The VLANs that a container may choose from by the annotation onload.dev/vlan, as numbers and ranges:
    /// "100-199,300". One that chooses none has that of "vlan", and without "vlan" it is refused.
    pub vlans: Option<VlanRanges>,
    /// The priority of the frames in the VLAN, from 0 to 7. Default: 0.
    pub vlan_priority: Option<VlanPriority>,
    /// The standard by which frames are tagged: "802.1q", or "802.1ad" for a provider's tag in front of a customer's.
    /// Default: "802.1q".
    pub vlan_protocol: Option<VlanProtocol>,
    /// Its hardware address. Not for a pool, which has several devices.
    pub mac: Option<MacAddress>,
    /// Drop frames with another source address than its own, which the container chooses where no "mac" is set, here
    /// or under \[\[sriov]].
    pub spoof_check: Option<bool>,
    /// Let the container change its hardware address and receive frames for others.
    pub trust: Option<bool>,
    /// Mbit/s that it can always send; 0: none.
    pub min_rate: Option<u32>,
    /// The most Mbit/s that it sends; 0: no limit.
    pub max_rate: Option<u32>,
    /// Whether it has a link: "auto", as the physical function has; "enable", always; "disable", never.
    pub link_state: Option<LinkState>,
}

/// Numbers of VLANs, such as `100-199,300`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct VlanRanges(Vec<VfRange>);

impl VlanRanges {
    pub fn contains(&self, vlan: Vlan) -> bool {
        let mut ranges = self.0.iter();
        ranges.any(|range| range.contains(vlan.number().into()))
    }
}

impl FromStr for VlanRanges {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let ranges: Option<Vec<VfRange>> =
            text.split(',').map(|word| parse_range(word.trim())).collect();
        let is_legal = |ranges: &Vec<VfRange>| ranges.iter().all(|range| range.last() <= Vlan::MAX);
        let ranges = ranges.filter(is_legal).map(VlanRanges);
        ranges.ok_or_else(|| mismatch_error("VLANs up to 4094, such as \"100-199,300\"", text))
    }
}

impl fmt::Display for VlanRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The priority of frames in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct VlanPriority(u8);

impl TryFrom<i64> for VlanPriority {
    type Error = Error;

    fn try_from(number: i64) -> Result<Self> {
        match u8::try_from(number) {
            Ok(priority @ 0..=7) => Ok(VlanPriority(priority)),
            _ => Err(mismatch_error("a priority from 0 to 7", &number.to_string())),
        }
    }
}

read_as_text!(VlanRanges);

impl VfConfig {
    /// Looks at what belongs together.
    pub fn check(&self) -> Result<()> {
        let is_tagged = self.vlan.is_some() || self.vlans.is_some();
        if !is_tagged && (self.vlan_priority.is_some() || self.vlan_protocol.is_some()) {
            bail!("vlan-priority and vlan-protocol are those of a VLAN; add vlan or vlans");
        }
        let (min, max) = (self.min_rate.unwrap_or(0), self.max_rate.unwrap_or(0));
        if max != 0 && min > max {
            bail!("min-rate {min} is above max-rate {max}");
        }
        if *self == VfConfig::default() {
            bail!("it sets nothing; leave the table out");
        }
        Ok(())
    }

    /// Sets the VLAN that a container chose.
    pub fn choose(&mut self, vlan: Vlan) -> Result<()> {
        let vlan_is_fixed = self.vlan == Some(vlan) && self.vlans.is_none();
        let is_allowed = |vlans: &VlanRanges| vlans.contains(vlan);
        if !(vlan_is_fixed || self.vlans.as_ref().is_some_and(is_allowed)) {
            match &self.vlans {
                Some(vlans) => bail!("it may choose from {vlans}, and {vlan} is none of them"),
                None => bail!("it may choose no VLAN"),
            }
        }
        self.vlan = Some(vlan);
        Ok(())
    }

    /// What the driver is told.
    pub fn to_settings(&self) -> Result<VfSettings> {
        if let (None, Some(vlans)) = (self.vlan, &self.vlans) {
            bail!(
                "it has to choose a VLAN from {vlans}; add the annotation onload.dev/vlan, in a claim of Kubernetes the parameter vlan, or let the operator set vlan beside vlans"
            );
        }
        let tag = |vlan: Vlan| match vlan.number() {
            0 => VlanTag::default(),
            id => VlanTag {
                id,
                priority: self.vlan_priority.map_or(0, |priority| priority.0),
                protocol: self.vlan_protocol.unwrap_or_default(),
            },
        };
        Ok(VfSettings {
            vlan: self.vlan.map(tag),
            mac: self.mac.map(MacAddress::bytes),
            spoof_check: self.spoof_check,
            trust: self.trust,
            min_rate: self.min_rate,
            max_rate: self.max_rate,
            link_state: self.link_state,
        })
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let number = || parse_decimal(value);
        match key {
            "vlan" => self.vlan = Some(value.parse().ok()?),
            "vlans" => self.vlans = Some(value.parse().ok()?),
            "vlan-priority" => self.vlan_priority = Some(i64::from(number()?).try_into().ok()?),
            "vlan-protocol" => self.vlan_protocol = Some(parse_word(value)?),
            "mac" => self.mac = Some(value.parse().ok()?),
            "spoof-check" => self.spoof_check = Some(value.parse().ok()?),
            "trust" => self.trust = Some(value.parse().ok()?),
            "min-rate" => self.min_rate = Some(number()?),
            "max-rate" => self.max_rate = Some(number()?),
            "link-state" => self.link_state = Some(parse_word(value)?),
            _ => return None,
        }
        Some(())
    }
}

fn parse_word<'de, T: Deserialize<'de>>(text: &'de str) -> Option<T> {
    let deserializer: serde::de::value::StrDeserializer<'de, Silent> = text.into_deserializer();
    T::deserialize(deserializer).ok()
}

impl fmt::Display for VfConfig {
    /// As `KEY=VALUE`, separated by `;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &dyn fmt::Display| value.to_string();
        let all = [
            ("vlan", self.vlan.as_ref().map(|one| text(one))),
            ("vlans", self.vlans.as_ref().map(|one| text(one))),
            ("vlan-priority", self.vlan_priority.map(|one| text(&one.0))),
            ("vlan-protocol", self.vlan_protocol.map(|one| text(&one))),
            ("mac", self.mac.map(|one| text(&one))),
            ("spoof-check", self.spoof_check.map(|one| text(&one))),
            ("trust", self.trust.map(|one| text(&one))),
            ("min-rate", self.min_rate.map(|one| text(&one))),
            ("max-rate", self.max_rate.map(|one| text(&one))),
            ("link-state", self.link_state.map(|one| text(&one))),
        ];
        let set = all.into_iter();
        let set = set.filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        f.write_str(&set.collect::<Vec<_>>().join(";"))
    }
}

impl FromStr for VfConfig {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut config = VfConfig::default();
        for part in text.split(';') {
            let set = part.split_once('=');
            let set = set.and_then(|(key, value)| config.set(key, value));
            set.ok_or_else(|| error!("{} is no setting of a virtual function", Quoted(part)))?;
        }
        config.check()?;
        Ok(config)
    }
}

/// The virtual function of a device of class netdev or vfio, and what it is to be, as
/// `CLASS:NAME=KEY=VALUE[;KEY=VALUE]…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfArgument {
    /// As it is leased.
    pub device: DeviceId,
    pub vf: VfConfig,
}

impl FromStr for VfArgument {
    type Err = Error;

    /// The first `=` splits: no name of a device has one.
    fn from_str(text: &str) -> Result<Self> {
        let Some((device, vf)) = text.split_once('=') else {
            bail!(
                "{} is not CLASS:NAME=KEY=VALUE, as \"vfio:0000:81:10.0=vlan=100\" is one",
                Quoted(text)
            );
        };
        Ok(VfArgument {
            device: device.parse()?,
            vf: vf.parse().with_context(|| device.to_owned())?,
        })
    }
}

impl fmt::Display for VfArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.device, self.vf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(number: u16) -> Vlan {
        number.try_into().unwrap()
    }

    fn config(text: &str) -> VfConfig {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let all = "vlan=100;vlans=100-199,300;vlan-priority=3;vlan-protocol=802.1ad;mac=02:00:00:00:10:01;\
                   spoof-check=true;trust=false;min-rate=10;max-rate=1000;link-state=enable";
        let given: VfArgument = format!("vfio:0000:81:10.0={all}").parse().unwrap();
        assert_eq!(given.to_string(), format!("vfio:0000:81:10.0={all}"));
        let settings = given.vf.to_settings().unwrap();
        let tag = VlanTag { id: 100, priority: 3, protocol: VlanProtocol::Ad };
        assert_eq!(settings.vlan, Some(tag));
        assert_eq!(settings.mac, Some([2, 0, 0, 0, 0x10, 1]));
        assert_eq!(settings.link_state, Some(LinkState::Enable));
        // No VLAN has neither priority nor protocol.
        let none = config("vlan=0;vlan-priority=3").to_settings().unwrap();
        assert_eq!(none.vlan, Some(VlanTag::default()));
    }

    #[test]
    fn what_sets_nothing_or_contradicts_itself_is_refused() {
        for (text, says) in [
            ("", "\"\" is no setting of a virtual function"),
            ("vlan=4095", "\"vlan=4095\" is no setting"),
            ("vlan=0100", "is no setting"),
            ("vlans=200-100", "is no setting"),
            ("vlans=1-4095", "is no setting"),
            ("vlan-priority=8;vlan=1", "is no setting"),
            ("vlan-protocol=802.1x;vlan=1", "is no setting"),
            ("mac=01:00:5e:00:00:01", "is no setting"),
            ("spoof-check=on", "is no setting"),
            ("link-state=up", "is no setting"),
            ("color=red", "\"color=red\" is no setting"),
            ("vlan-priority=3", "add vlan or vlans"),
            ("min-rate=2000;max-rate=1000", "min-rate 2000 is above max-rate 1000"),
        ] {
            let message = text.parse::<VfConfig>().unwrap_err().to_string();
            assert!(message.contains(says), "{text}: {message}");
        }
        assert!(config("min-rate=2000;max-rate=0").check().is_ok());
        for bad in ["vfio:a", "vfio=vlan=1", "disk:a=vlan=1", "vfio:a="] {
            assert!(bad.parse::<VfArgument>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_container_chooses_from_what_it_may_and_has_to_where_nothing_is_fixed() {
        let mut open = config("vlans=100-199,300");
        let message = open.to_settings().unwrap_err().to_string();
        assert!(message.starts_with("it has to choose a VLAN from 100-199,300; "), "{message}");
        for good in [100, 199, 300] {
            open.choose(vlan(good)).unwrap();
            assert_eq!(open.to_settings().unwrap().vlan.unwrap().id, good);
        }
        for bad in [0, 99, 200, 4094] {
            let message = open.choose(vlan(bad)).unwrap_err().to_string();
            assert_eq!(
                message,
                format!("it may choose from 100-199,300, and {bad} is none of them")
            );
        }
        let mut fixed = config("vlan=100");
        fixed.choose(vlan(100)).unwrap();
        assert_eq!(fixed.choose(vlan(101)).unwrap_err().to_string(), "it may choose no VLAN");
        assert!(config("spoof-check=true").choose(vlan(100)).is_err());
        // Without a tag only where the operator lists it.
        config("vlans=0,100").choose(vlan(0)).unwrap();
    }
}
