//! Parses the device to try.

use anyhow::{Result, bail};
use onload_core::class::Class;
use onload_core::pool::ANY;
use onload_host::devices::LOOPBACK;
use onload_host::devices::inventory::Inventory;
use onload_host::discover::exclusion::ExclusionSubject;
use onload_host::pools::PoolSet;

use crate::commands::device_name::{complete_address, strip_vendor, suggest_host_device};
use crate::commands::drain::targets::similar_device;

/// The classes that have a probe.
const CLASSES: [Class; 5] = [Class::Nic, Class::Rdma, Class::Vfio, Class::Hugepages, Class::Netdev];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrialDevice {
    pub class: Class,
    pub name: String,
}

impl TrialDevice {
    pub(super) fn read(word: &str) -> Result<TrialDevice> {
        let short = strip_vendor(word);
        let Some((class, name)) = short.split_once('=') else {
            bail!("reading device {word:?}: expected CLASS=NAME, for example nic=ens1");
        };
        let class: Class = class.parse()?;
        let is_several = ["all", ANY].contains(&name);
        if is_several || class == Class::Nic && name == LOOPBACK {
            bail!("trying {short}: choose one device; \"onload-ctk discover\" lists them");
        }
        Ok(TrialDevice { class, name: name.to_owned() })
    }

    /// Like [`TrialDevice::read`]; the error suggests a device of this host.
    pub(super) fn read_on_host(
        word: &str,
        discover: impl FnOnce() -> Result<Inventory>,
    ) -> Result<TrialDevice> {
        let short = strip_vendor(word);
        if short.contains('=') {
            return TrialDevice::read(word);
        }
        match discover().ok().and_then(|inventory| suggest_host_device(word, &inventory)) {
            Some(suggestion) => {
                bail!("reading device {word:?}: expected CLASS=NAME, for example {suggestion}")
            }
            None => TrialDevice::read(word),
        }
    }

    /// Completes a PCI address that was typed without its domain.
    pub(super) fn complete(&mut self, inventory: &Inventory) -> Result<()> {
        let devices = inventory.devices.iter().filter(|device| device.class == self.class);
        if let Some(name) =
            complete_address(&self.name, devices.map(|device| device.name.as_str()))?
        {
            self.name = name.to_owned();
        }
        Ok(())
    }

    /// As `--device` takes it.
    pub(super) fn device(&self) -> String {
        format!("{}={}", self.class.cdi_kind(), self.name)
    }

    pub(super) fn short_name(&self) -> String {
        format!("{}={}", self.class.as_str(), self.name)
    }

    /// Onload accelerates interfaces that the container sees.
    pub(super) fn needs_host_network(&self) -> bool {
        self.class == Class::Nic
    }

    /// Returns the devices it refers to: itself, or those nearest to a GPU.
    pub(super) fn resolve_devices(&self, inventory: &Inventory) -> Result<Vec<String>> {
        let mut devices = inventory.devices.iter();
        if devices.any(|device| device.class == self.class && device.name.as_str() == self.name) {
            if !CLASSES.contains(&self.class) {
                bail!(
                    "trying {}: its class cannot be tested; choose a device of {}",
                    self.short_name(),
                    CLASSES.map(Class::as_str).join(", ")
                );
            }
            return Ok(vec![self.name.clone()]);
        }
        for alias in &inventory.near_gpus {
            if self.class == Class::Rdma && alias.name == self.name {
                return Ok(alias.rdma.clone());
            }
        }
        let exclusion = inventory.not_offered.iter().find(|entry| {
            entry.kind == ExclusionSubject::Device(self.class) && entry.name == self.name
        });
        let onload = inventory.onload.as_ref();
        match (exclusion, onload.and_then(|onload| onload.obstacle.as_ref())) {
            // It comes first: without Onload, no interface is offered whatever its own reason.
            (Some(_), Some(obstacle)) if self.class == Class::Nic => {
                bail!("trying {}: Onload is not offered: {obstacle}", self.short_name())
            }
            (Some(entry), _) => {
                bail!("trying {}: it is not offered: {}", self.short_name(), entry.reason)
            }
            (None, _) if self.class == Class::Netdev => bail!(
                "trying {}: interfaces are offered only if [discover] offer-netdevs in \
                 /etc/onload-ctk/config.toml lists them; \"onload-ctk discover --explain\" lists \
                 those",
                self.short_name()
            ),
            (None, _) => {
                let pools = PoolSet::default();
                let similar = similar_device(self.class, &self.name, inventory, &pools);
                let suggestion =
                    similar.map(|name| format!("; did you mean {}={name}?", self.class));
                bail!(
                    "trying {}: this host does not have it{}; \"onload-ctk discover --explain\" \
                     lists the devices",
                    self.short_name(),
                    suggestion.unwrap_or_default()
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use onload_core::config::Config;
    use onload_host::devices::discover;
    use onload_host::host::Host;
    use onload_test_tree::Tree;

    use super::*;

    #[test]
    fn a_device_is_typed_with_or_without_its_vendor() {
        for word in ["nic=ens1", "onload.dev/nic=ens1"] {
            let asked = TrialDevice::read(word).unwrap();
            assert_eq!(asked.device(), "onload.dev/nic=ens1");
            assert_eq!(asked.short_name(), "nic=ens1");
        }
    }

    #[test]
    fn a_gpu_s_name_stands_for_the_devices_nearest_to_it_and_no_other_name_does() {
        let tree = Tree::new();
        tree.machine(
            "pci0000:10 0\n  bridge 0000:10:01.0\n    gpu 0000:13:00.0 10de:2330\n    nic 0000:14:00.0 mlx5_0 400\n",
        );
        let host = Host::open(tree.root()).unwrap();
        let inventory = discover(&host, &Config::default());
        let offered = |word| TrialDevice::read(word).unwrap().resolve_devices(&inventory);
        for word in ["rdma=mlx5_0", "rdma=gpu-0000:13:00.0"] {
            assert_eq!(offered(word).unwrap(), ["mlx5_0"], "{word}");
        }
        for (word, why) in [
            ("rdma=gpu-0000:23:00.0", "this host does not have it"),
            ("rdma=MLX5_0", "this host does not have it; did you mean rdma=mlx5_0?"),
            ("vfio=gpu-0000:13:00.0", "this host does not have it"),
            ("netdev=ens1", "[discover] offer-netdevs"),
            ("rdma=gpu0", "it is not offered: no CDI specification of nvidia.com/gpu"),
        ] {
            let error = format!("{:#}", offered(word).unwrap_err());
            assert!(error.contains(why), "{word}: {error}");
        }
    }

    #[test]
    fn a_class_without_a_probe_is_told_after_why_its_device_is_not_offered() {
        let tree = Tree::sample("debian13-2numa-onload-rxe-vfio");
        let host = Host::open(tree.root()).unwrap();
        let inventory = discover(&host, &Config::default());
        for (word, why) in [
            ("zf=ens1", "it is not offered: Onload uses it with AF_XDP"),
            (
                "ptp=ptp2",
                "its class cannot be tested; choose a device of nic, rdma, vfio, hugepages, netdev",
            ),
        ] {
            let asked = TrialDevice::read(word).unwrap();
            let error = format!("{:#}", asked.resolve_devices(&inventory).unwrap_err());
            assert!(error.contains(why), "{word}: {error}");
        }
    }

    #[test]
    fn a_missing_module_comes_before_the_reason_of_an_interface() {
        let tree = Tree::sample("debian13-2numa-onload-rxe-vfio");
        tree.without_node("/dev/onload");
        let host = Host::open(tree.root()).unwrap();
        let inventory = discover(&host, &Config::default());
        let asked = TrialDevice::read("nic=ens2").unwrap();
        let error = format!("{:#}", asked.resolve_devices(&inventory).unwrap_err());
        assert!(error.starts_with("trying nic=ens2: Onload is not offered: "), "{error}");
        assert!(error.contains("/dev/onload is missing"), "{error}");
    }

    #[test]
    fn what_cannot_be_tried_is_refused_with_what_can() {
        for (word, why) in [
            ("ens1", "expected CLASS=NAME, for example nic=ens1"),
            ("gpu=0", "gpu"),
            ("nic=all", "choose one device"),
            ("nic=loopback", "choose one device"),
            ("rdma=all", "choose one device"),
            ("vfio=any", "choose one device"),
        ] {
            let error = format!("{:#}", TrialDevice::read(word).unwrap_err());
            assert!(error.contains(why), "{word}: {error}");
        }
    }
}
