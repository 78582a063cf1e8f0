//! Metadata of devices for programs in a pod (KEP-5304): a file for each request of a claim, in this driver's
//! directory, which the specification of the claim mounts at the standard path.
//!
//! Files are written before their containers start, with the data that an interface will have in the pod: the container
//! starts only if the hook applies it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::resource::v1::DeviceAttribute;
use onload_cdi::Mount;
use onload_core::claim_uid::ClaimUid;
use onload_core::kubernetes_settings::is_dns_label;
use onload_sys::text::Quoted;
use serde_json::{Value, json};

use super::claim_spec::{PreparedClaim, PreparedDevice};
use crate::dra::DRIVER;
use crate::wire::dra::Claim;

/// The directory in containers for the files of all drivers (`ContainerDir` of k8s.io/dynamic-resource-allocation).
const CONTAINER_DIR: &str = "/var/run/kubernetes.io/dra-device-attributes";
/// The subdirectory in a driver's own directory.
const DIRECTORY: &str = "dra-device-metadata";
/// Newest first: a reader uses the first version that it supports.
const VERSIONS: [&str; 2] =
    ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"];
const END: &str = ".json";
/// Readable for programs of any user.
const READABLE: u32 = 0o644;

/// A device of a claim with its attributes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeviceMetadata {
    /// As in [`super::allocation::AllocatedDevice`].
    pub(crate) request: String,
    pub(crate) chosen: String,
    pub(crate) prepared: PreparedDevice,
    pub(crate) attributes: BTreeMap<String, DeviceAttribute>,
}

/// The metadata files in a driver's directory.
#[derive(Clone, Debug)]
pub(crate) struct MetadataFiles {
    dir: PathBuf,
}

impl MetadataFiles {
    pub(crate) fn for_driver(driver_dir: &Path) -> Self {
        MetadataFiles { dir: driver_dir.join(DIRECTORY) }
    }

    /// Writes the files of a claim. Returns the mount for each request.
    pub(crate) fn write(
        &self,
        uid: &ClaimUid,
        prepared_claim: &PreparedClaim,
        devices: &[DeviceMetadata],
    ) -> Result<BTreeMap<String, Mount>> {
        let mut requests: BTreeMap<&str, Vec<&DeviceMetadata>> = BTreeMap::new();
        for device in devices {
            requests.entry(&device.request).or_default().push(device);
        }
        let mut mounts = BTreeMap::new();
        for (request, devices) in requests {
            if !is_dns_label(request) {
                bail!("request {} is not a file name", Quoted(request));
            }
            let path = self.claim_dir(uid).join(format!("{request}{END}"));
            write_one(&path, &metadata_json(uid, prepared_claim, &devices))
                .with_context(|| format!("writing what pods read to {}", path.display()))?;
            mounts.insert(request.to_owned(), mount(&path, prepared_claim, request));
        }
        Ok(mounts)
    }

    /// Removes the files of a claim. Succeeds if there are none.
    pub(crate) fn remove(&self, uid: &ClaimUid) -> Result<()> {
        let path = self.claim_dir(uid);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the claims with files.
    pub(crate) fn list(&self) -> Vec<ClaimUid> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let uids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        uids.collect()
    }

    pub(crate) fn contains(&self, uid: &ClaimUid) -> bool {
        self.claim_dir(uid).exists()
    }

    /// Returns which claim the files describe.
    pub(crate) fn read_claim(&self, uid: &ClaimUid) -> Option<Claim> {
        let files = fs::read_dir(self.claim_dir(uid)).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_to_string(file.path()).ok()).find_map(|text| {
            let described: Value = serde_json::from_str(text.lines().next()?).ok()?;
            let text = |key: &str| Some(described["metadata"][key].as_str()?.to_owned());
            Some(Claim { namespace: text("namespace")?, name: text("name")?, uid: uid.to_string() })
        })
    }

    fn claim_dir(&self, uid: &ClaimUid) -> PathBuf {
        self.dir.join(uid.as_str())
    }
}

fn metadata_json(
    uid: &ClaimUid,
    prepared_claim: &PreparedClaim,
    devices: &[&DeviceMetadata],
) -> String {
    let of_devices = devices.iter().map(|device| {
        let prepared = &device.prepared;
        let mut of_device = json!({"driver": DRIVER, "pool": prepared.pool, "name": prepared.device,
            "attributes": device.attributes});
        if let Some(network) = &prepared.network {
            of_device["networkData"] = json!(network);
        }
        of_device
    });
    let of_devices: Vec<Value> = of_devices.collect();
    let mut metadata = json!({
        "kind": "DeviceMetadata",
        "metadata": {"name": prepared_claim.name, "namespace": prepared_claim.namespace, "uid": uid.as_str(),
            "generation": 1},
        "requests": [{"name": devices.first().map_or("", |device| &device.chosen),
            "devices": of_devices}],
    });
    if let Some(name) = &prepared_claim.pod_claim {
        metadata["podClaimName"] = json!(name);
    }
    let mut text = String::new();
    for version in VERSIONS {
        metadata["apiVersion"] = json!(version);
        text += &format!("{metadata}\n");
    }
    text
}

/// Writes a file unless it has this content.
fn write_one(path: &Path, text: &str) -> Result<()> {
    if fs::read(path).is_ok_and(|before| before == text.as_bytes()) {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    // Not synchronised, since claims are prepared again after a reboot.
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::set_permissions(&new, Permissions::from_mode(READABLE))?;
    Ok(fs::rename(&new, path)?)
}

fn mount(path: &Path, prepared_claim: &PreparedClaim, request: &str) -> Mount {
    let of_claim = match &prepared_claim.pod_claim {
        Some(name) => format!("resourceclaimtemplates/{name}"),
        None => format!("resourceclaims/{}", prepared_claim.name),
    };
    Mount {
        host_path: path.display().to_string(),
        container_path: format!("{CONTAINER_DIR}/{of_claim}/{request}/{DRIVER}-metadata.json"),
        options: ["ro", "bind", "nosuid", "nodev", "noexec"].map(str::to_owned).to_vec(),
        ..Mount::default()
    }
}

/// Reads the hardware address of an interface of the host.
pub(crate) fn read_hardware_address(host_root: &Path, interface: &str) -> Option<String> {
    let of_interface = Path::new("sys/class/net").join(interface).join("address");
    let mut address = fs::read_to_string(host_root.join(of_interface)).ok()?;
    address.truncate(address.trim_end().len());
    address
        .split(':')
        .all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then_some(address)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use k8s_openapi::api::resource::v1::NetworkDeviceData;
    use onload_test_tree::names_in;
    use serde_json::json;

    use super::*;

    const UID: &str = "0d7e3c1a-5c0f-4c57-9a4e-2b1f8f0f8f11";

    fn uid() -> ClaimUid {
        UID.parse().unwrap()
    }

    fn owner(pod_claim: Option<&str>) -> PreparedClaim {
        PreparedClaim {
            namespace: "default".to_owned(),
            name: "c".to_owned(),
            pod_claim: pod_claim.map(str::to_owned),
            devices: Vec::new(),
        }
    }

    fn described(request: &str, device: &str) -> DeviceMetadata {
        let pci = DeviceAttribute {
            string: Some("0000:81:10.0".to_owned()),
            ..DeviceAttribute::default()
        };
        let base = request.split('/').next().unwrap();
        DeviceMetadata {
            request: base.to_owned(),
            chosen: request.to_owned(),
            prepared: PreparedDevice {
                pool: "n1/vfio".to_owned(),
                device: device.to_owned(),
                ..PreparedDevice::default()
            },
            attributes: BTreeMap::from([("resource.kubernetes.io/pciBusID".to_owned(), pci)]),
        }
    }

    fn documents(mount: &Mount) -> Vec<Value> {
        let text = fs::read_to_string(&mount.host_path).unwrap();
        let documents = text.lines().filter(|line| !line.is_empty());
        documents.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn each_request_has_a_file_in_all_versions_with_the_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        let files = MetadataFiles::for_driver(dir.path());
        let devices = [described("a/fast", "x"), described("a/fast", "y"), described("b", "z")];
        let mounts = files.write(&uid(), &owner(None), &devices).unwrap();
        assert_eq!(mounts.keys().collect::<Vec<_>>(), ["a", "b"]);
        let of_a = documents(&mounts["a"]);
        let versions: Vec<&str> =
            of_a.iter().map(|one| one["apiVersion"].as_str().unwrap()).collect();
        assert_eq!(versions, VERSIONS);
        let device = |name: &str| {
            json!({"driver": "onload.dev", "pool": "n1/vfio", "name": name,
            "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:81:10.0"}}})
        };
        assert_eq!(
            of_a[1],
            json!({
                "apiVersion": "metadata.resource.k8s.io/v1alpha1",
                "kind": "DeviceMetadata",
                "metadata": {"name": "c", "namespace": "default", "uid": UID, "generation": 1},
                "requests": [{"name": "a/fast", "devices": [device("x"), device("y")]}],
            })
        );
        let mount = &mounts["a"];
        assert_eq!(
            mount.container_path,
            "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/a/onload.dev-metadata.json"
        );
        assert!(mount.options.contains(&"ro".to_owned()));
        let mode = fs::metadata(&mount.host_path).unwrap().mode();
        assert_eq!(mode & 0o777, READABLE);
        assert_eq!(files.list(), [uid()]);
        files.remove(&uid()).unwrap();
        files.remove(&uid()).unwrap();
        assert!(names_in(&dir.path().join(DIRECTORY)).is_empty());
    }

    #[test]
    fn a_claim_of_a_template_goes_by_what_its_pod_calls_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = MetadataFiles::for_driver(dir.path());
        let of_template = owner(Some("nic"));
        let mounts = files.write(&uid(), &of_template, &[described("r", "x")]);
        let mount = &mounts.unwrap()["r"];
        assert!(
            mount
                .container_path
                .ends_with("/resourceclaimtemplates/nic/r/onload.dev-metadata.json")
        );
        assert_eq!(documents(mount)[0]["podClaimName"], "nic");
    }

    #[test]
    fn a_file_is_written_when_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let files = MetadataFiles::for_driver(dir.path());
        let mut device = described("r", "x");
        device.prepared.network = Some(NetworkDeviceData {
            interface_name: Some("ens1v0".to_owned()),
            ips: Some(vec!["192.0.2.10/24".to_owned()]),
            hardware_address: Some("02:00:00:00:10:01".to_owned()),
        });
        let write = |device: &DeviceMetadata| {
            let written = files.write(&uid(), &owner(None), std::slice::from_ref(device));
            written.unwrap().remove("r").unwrap()
        };
        let mount = write(&device);
        let inode = || fs::metadata(&mount.host_path).unwrap().ino();
        let first = inode();
        write(&device);
        assert_eq!(inode(), first, "it is not written again");
        let network = &documents(&mount)[0]["requests"][0]["devices"][0]["networkData"];
        assert_eq!(network["ips"], json!(["192.0.2.10/24"]));
        device.prepared.network = None;
        write(&device);
        let documents = documents(&mount);
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[0]["requests"][0]["devices"][0].get("networkData"), None);
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let files = MetadataFiles::for_driver(dir.path());
        let error = files.write(&uid(), &owner(None), &[described("..", "x")]);
        assert_eq!(error.unwrap_err().to_string(), "request \"..\" is not a file name");
    }

    #[test]
    fn a_hardware_address_is_read_as_the_kernel_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let of_interface = dir.path().join("sys/class/net/ens1v0");
        fs::create_dir_all(&of_interface).unwrap();
        assert_eq!(read_hardware_address(dir.path(), "ens1v0"), None);
        for (text, address) in
            [("02:00:00:00:10:01\n", Some("02:00:00:00:10:01")), ("\n", None), ("02:00:zz\n", None)]
        {
            fs::write(of_interface.join("address"), text).unwrap();
            assert_eq!(read_hardware_address(dir.path(), "ens1v0").as_deref(), address, "{text:?}");
        }
    }
}
