//! Settings of a virtual function while a container has it, such as its VLAN. They are set through
//! its physical function.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as Silent;

use crate::device_id::DeviceId;
use crate::host_settings::{MacAddress, Vlan, mismatch_error};
use crate::select::{VfRange, parse_range};
use onload_sys::error::{Context as _, Error, Result, bail, error, read_as_text};
use onload_sys::netlink::vf::{LinkState, VfSettings, VlanProtocol, VlanTag};
use onload_sys::text::{Quoted, parse_decimal};

/// The remedy if a function shares its IOMMU group, as part of a message.
pub const OWN_GROUPS: &str = "put each function into its own group (PCI access control services, ACS, in the firmware's settings)";

/// Table `vf` of a section `[pools.NAME]` or `[netdev.NAME]`: settings of a virtual function while
/// a container has it. They are set through the interface of its physical function, and restored
/// when the container has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct VfConfig {
    /// The VLAN that the NIC puts its frames into, from 1 to 4094; 0 for none.
    pub vlan: Option<Vlan>,
    /// The VLANs that a container may choose from by the annotation onload.dev/vlan, as numbers and
    /// ranges: "100-199,300". A container that chooses none gets the VLAN of "vlan"; without "vlan"
    /// it is rejected.
    pub vlans: Option<VlanRanges>,
    /// The priority of the frames in the VLAN, from 0 to 7. Default: 0.
    pub vlan_priority: Option<VlanPriority>,
    /// The standard for tagged frames: "802.1q", or "802.1ad" for a provider's tag in front of a
    /// customer's. Default: "802.1q".
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub vlan_protocol: Option<VlanProtocol>,
    /// The hardware address of the function. A pool cannot set it, since it has several devices.
    pub mac: Option<MacAddress>,
    /// Drop frames whose source address is not the function's. If no "mac" is set, here or under
    /// \[\[sriov]], the container can choose that address.
    pub spoof_check: Option<bool>,
    /// Allow the container to change the hardware address and to receive frames for others.
    pub trust: Option<bool>,
    /// The guaranteed transmit rate in Mbit/s; 0 for none.
    pub min_rate: Option<u32>,
    /// The maximum transmit rate in Mbit/s; 0 for no limit.
    pub max_rate: Option<u32>,
    /// The link state: "auto", the same as that of the physical function; "enable", always up;
    /// "disable", always down.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub link_state: Option<LinkState>,
}

/// VLAN numbers, such as `100-199,300`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct VlanRanges(Vec<VfRange>);

impl VlanRanges {
    pub fn contains(&self, vlan: Vlan) -> bool {
        self.0.iter().any(|range| range.contains(vlan.number().into()))
    }
}

impl FromStr for VlanRanges {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.split(',')
            .map(|word| parse_range(word.trim()).filter(|range| range.last() <= Vlan::MAX))
            .collect::<Option<_>>()
            .map(VlanRanges)
            .ok_or_else(|| mismatch_error("VLANs up to 4094, such as \"100-199,300\"", text))
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

/// The priority of frames in a VLAN, from 0 to 7.
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
    /// Checks that the settings are consistent.
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
            bail!("it is empty; remove the table");
        }
        Ok(())
    }

    /// Sets the VLAN that a container chose.
    pub fn choose(&mut self, vlan: Vlan) -> Result<()> {
        match &self.vlans {
            Some(vlans) if !vlans.contains(vlan) => {
                bail!("VLAN {vlan} is not allowed; choose from {vlans}")
            }
            None if self.vlan != Some(vlan) => bail!("it may not choose a VLAN"),
            _ => self.vlan = Some(vlan),
        }
        Ok(())
    }

    /// Returns the settings for the driver. Fails if the container has to choose a VLAN and has not.
    pub fn to_settings(&self) -> Result<VfSettings> {
        if let (None, Some(vlans)) = (self.vlan, &self.vlans) {
            bail!(
                "choose a VLAN from {vlans}: add the annotation onload.dev/vlan, or in a ResourceClaim the parameter vlan; or the operator sets vlan in addition to vlans"
            );
        }
        Ok(VfSettings {
            vlan: self.vlan.map(|vlan| match vlan.number() {
                0 => VlanTag::default(),
                id => VlanTag {
                    id,
                    priority: self.vlan_priority.map_or(0, |priority| priority.0),
                    protocol: self.vlan_protocol.unwrap_or_default(),
                },
            }),
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
    /// Writes `KEY=VALUE` pairs, separated by `;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn text(value: Option<impl fmt::Display>) -> Option<String> {
            value.map(|value| value.to_string())
        }
        let pairs: Vec<String> = [
            ("vlan", text(self.vlan)),
            ("vlans", text(self.vlans.as_ref())),
            ("vlan-priority", text(self.vlan_priority.map(|priority| priority.0))),
            ("vlan-protocol", text(self.vlan_protocol)),
            ("mac", text(self.mac)),
            ("spoof-check", text(self.spoof_check)),
            ("trust", text(self.trust)),
            ("min-rate", text(self.min_rate)),
            ("max-rate", text(self.max_rate)),
            ("link-state", text(self.link_state)),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
        .collect();
        f.write_str(&pairs.join(";"))
    }
}

impl FromStr for VfConfig {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut config = VfConfig::default();
        for part in text.split(';') {
            part.split_once('=')
                .and_then(|(key, value)| config.set(key, value))
                .ok_or_else(|| error!("{} is not a setting of a virtual function", Quoted(part)))?;
        }
        config.check()?;
        Ok(config)
    }
}

/// The settings of a virtual function, as `CLASS:NAME=KEY=VALUE[;KEY=VALUE]…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfArgument {
    /// The leased device of class netdev or vfio.
    pub device: DeviceId,
    pub vf: VfConfig,
}

impl FromStr for VfArgument {
    type Err = Error;

    /// Splits at the first `=`, which no device name contains.
    fn from_str(text: &str) -> Result<Self> {
        let Some((device, vf)) = text.split_once('=') else {
            bail!(
                "{} is not CLASS:NAME=KEY=VALUE, such as \"vfio:0000:81:10.0=vlan=100\"",
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
    fn values_survive_a_round_trip() {
        let all = "vlan=100;vlans=100-199,300;vlan-priority=3;vlan-protocol=802.1ad;mac=02:00:00:00:10:01;\
                   spoof-check=true;trust=false;min-rate=10;max-rate=1000;link-state=enable";
        let given: VfArgument = format!("vfio:0000:81:10.0={all}").parse().unwrap();
        assert_eq!(given.to_string(), format!("vfio:0000:81:10.0={all}"));
        let settings = given.vf.to_settings().unwrap();
        let tag = VlanTag { id: 100, priority: 3, protocol: VlanProtocol::Ad };
        assert_eq!(settings.vlan, Some(tag));
        assert_eq!(settings.mac, Some([2, 0, 0, 0, 0x10, 1]));
        assert_eq!(settings.link_state, Some(LinkState::Enable));
        // Untagged frames have no priority and no protocol.
        let none = config("vlan=0;vlan-priority=3").to_settings().unwrap();
        assert_eq!(none.vlan, Some(VlanTag::default()));
    }

    #[test]
    fn empty_and_contradictory_settings_are_rejected() {
        for (text, says) in [
            ("", "\"\" is not a setting of a virtual function"),
            ("vlan=4095", "\"vlan=4095\" is not a setting"),
            ("vlan=0100", "is not a setting"),
            ("vlans=200-100", "is not a setting"),
            ("vlans=1-4095", "is not a setting"),
            ("vlan-priority=8;vlan=1", "is not a setting"),
            ("vlan-protocol=802.1x;vlan=1", "is not a setting"),
            ("mac=01:00:5e:00:00:01", "is not a setting"),
            ("spoof-check=on", "is not a setting"),
            ("link-state=up", "is not a setting"),
            ("color=red", "\"color=red\" is not a setting"),
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
    fn a_container_must_choose_an_allowed_vlan_unless_one_is_fixed() {
        let mut open = config("vlans=100-199,300");
        let message = open.to_settings().unwrap_err().to_string();
        assert!(message.starts_with("choose a VLAN from 100-199,300: "), "{message}");
        for good in [100, 199, 300] {
            open.choose(vlan(good)).unwrap();
            assert_eq!(open.to_settings().unwrap().vlan.unwrap().id, good);
        }
        for bad in [0, 99, 200, 4094] {
            let message = open.choose(vlan(bad)).unwrap_err().to_string();
            assert_eq!(message, format!("VLAN {bad} is not allowed; choose from 100-199,300"));
        }
        let mut fixed = config("vlan=100");
        fixed.choose(vlan(100)).unwrap();
        assert_eq!(fixed.choose(vlan(101)).unwrap_err().to_string(), "it may not choose a VLAN");
        assert!(config("spoof-check=true").choose(vlan(100)).is_err());
        // Untagged frames are allowed only if the operator lists 0.
        config("vlans=0,100").choose(vlan(0)).unwrap();
    }
}
