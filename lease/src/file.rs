//! The content and the name of a lease file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::move_record::MoveRecord;
use onload_core::claim_uid::ClaimUid;
use onload_core::container_id::ContainerId;
use onload_core::device_id::DeviceId;
use onload_core::timestamp::format_rfc3339;
use onload_core::token::Token;
use onload_core::versioned;
use onload_sys::error::Result;
use onload_sys::processes::{Cgroup, ProcessId};
use onload_sys::text::{Quoted, parse_decimal};

/// The key of the fact with the container's pod, as `NAMESPACE/NAME`.
pub const POD: &str = "pod";

/// The key of the fact with the numbers of the device's nodes, as `MAJOR:MINOR`, separated by spaces.
pub const NODES: &str = "nodes";

/// The newest supported version of the file.
pub(crate) const VERSION: u32 = 1;

/// Returns whether a text can be the value of [`POD`]: a DNS label, a slash and a DNS subdomain. It
/// comes from annotations, which any user can write.
pub fn is_pod_name(text: &str) -> bool {
    let is_name = |name: &str, max: usize, punctuation: &[u8]| {
        (1..=max).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || punctuation.contains(&byte))
    };
    text.split_once('/')
        .is_some_and(|(namespace, name)| is_name(namespace, 63, b"-") && is_name(name, 253, b"-."))
}

/// Returns the name of the lease file in one of a device's slots. Device names contain neither `=`
/// nor `#`.
pub(crate) fn file_name(device: &DeviceId, slot: u32) -> String {
    format!("{}={}#{slot}", device.class, device.name.as_str())
}

/// Parses the name of a lease file. Returns `None` for the name of any other file.
pub(crate) fn parse_file_name(name: &str) -> Option<(DeviceId, u32)> {
    let (device, slot) = name.rsplit_once('#')?;
    Some((DeviceId::split(device, '=')?, parse_decimal(slot)?))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Holder {
    /// A container that exists, by its init process.
    #[serde(rename_all = "camelCase")]
    Init {
        process: ProcessId,
        /// The directory of the container's cgroup. `None` if the container shares that of its creator.
        cgroup: Option<Cgroup>,
    },
    /// A container that is not created yet.
    #[serde(rename_all = "camelCase")]
    Reservation {
        /// The token that the container's hook must name.
        token: Token,
        /// The time of expiry, in milliseconds after boot (CLOCK_BOOTTIME).
        expires_ms: u64,
        /// The process that becomes the container's runtime, if there is one. Once it has exited, no
        /// hook will name the token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        maker: Option<ProcessId>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The ID of the boot: process IDs mean nothing after another one.
    pub boot: String,
    pub container: ContainerId,
    /// The container's bundle, without symbolic links. Empty in a reservation by an entry point that
    /// runs before the engine creates the bundle.
    pub bundle: PathBuf,
    pub holder: Holder,
    /// The ResourceClaim of the container. All its containers count as one holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimUid>,
    /// The program and stage that wrote the lease.
    pub entry_point: String,
    /// The time of the lease, in seconds after 1970.
    pub since: u64,
    /// Facts about the device and its holder. The keys include [`POD`] and [`NODES`].
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
    /// The ticket that the container was started with ([`crate::tickets`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<Token>,
    /// The device that moved to the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<MoveRecord>,
}

impl Lease {
    /// Returns whether the lease is for a container with this ID and bundle. A reservation may have no
    /// bundle; the caller compares its token.
    pub(crate) fn belongs_to(&self, container: &ContainerId, bundle: &Path) -> bool {
        let is_reservation = matches!(self.holder, Holder::Reservation { .. });
        let is_anywhere = is_reservation && self.bundle.as_os_str().is_empty();
        self.container == *container && (is_anywhere || self.bundle == bundle)
    }

    /// Returns the record of a move that must be undone.
    pub(crate) fn device_to_return(&self) -> Option<&MoveRecord> {
        let moved = self.moved.as_ref();
        moved.filter(|moved| moved.saved.must_return())
    }

    /// Parses a file. Ignores unknown fields.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Lease> {
        versioned::parse(bytes, VERSION, "it is not a lease")
    }

    /// Parses only the boot ID and the holder, of a file that [`Lease::parse`] rejects.
    pub(crate) fn parse_holder(bytes: &[u8]) -> Option<(String, Holder)> {
        #[derive(Deserialize)]
        struct PartialLease {
            boot: String,
            holder: Holder,
        }
        let partial: PartialLease = serde_json::from_slice(bytes).ok()?;
        Some((partial.boot, partial.holder))
    }

    /// Returns the content of the file for a device's slot. It repeats the file's name, for people; only
    /// the name is read.
    pub(crate) fn to_bytes(&self, device: &DeviceId, slot: u32) -> serde_json::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct LeaseFile<'a> {
            class: &'a str,
            name: &'a str,
            slot: u32,
            #[serde(flatten)]
            lease: &'a Lease,
        }
        let file = LeaseFile {
            class: device.class.as_str(),
            name: device.name.as_str(),
            slot,
            lease: self,
        };
        versioned::to_bytes(VERSION, file)
    }
}

impl fmt::Display for Lease {
    /// Describes the holder on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {}", self.container)?;
        if let Some(pod) = self.facts.get(POD).filter(|pod| is_pod_name(pod)) {
            write!(f, " of pod {pod}")?;
        }
        match &self.holder {
            Holder::Init { process, cgroup } => {
                write!(f, " (process {}", process.pid)?;
                if let Some(cgroup) = cgroup {
                    write!(f, ", cgroup {}", Quoted(&cgroup.path.to_string_lossy()))?;
                }
                f.write_str(")")
            }
            Holder::Reservation { .. } => f.write_str(" (being made)"),
        }?;
        if let Some(claim) = &self.claim {
            write!(f, " of claim {claim}")?;
        }
        write!(f, " since {}", format_rfc3339(self.since))
    }
}

/// Asserts what must hold for every name and content of a file.
#[cfg(fuzzing)]
pub(super) fn fuzz(name: &str, content: &[u8]) {
    if let Some((device, slot)) = parse_file_name(name) {
        assert_eq!(file_name(&device, slot), name);
        assert_eq!(device.to_string().parse(), Ok(device));
    }
    if let Ok(token) = name.parse::<Token>() {
        assert_eq!(token.as_str(), name);
    }
    if let Ok(lease) = Lease::parse(content) {
        assert!(!lease.to_string().contains(char::is_control));
        let device = "vfio:0000:81:10.0".parse().expect("the name of a device");
        let bytes = lease.to_bytes(&device, 0).expect("a lease is written");
        assert_eq!(Lease::parse(&bytes).expect("our own is read"), lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(text: &str) -> DeviceId {
        text.parse().unwrap()
    }

    fn lease() -> Lease {
        let process = ProcessId { pid: 42, start_time: 7, pid_namespace: 9 };
        Lease {
            boot: "b".to_owned(),
            container: "web".parse().unwrap(),
            bundle: "/bundles/web".into(),
            holder: Holder::Init {
                process,
                cgroup: Some(Cgroup { path: "/sys/fs/cgroup/web.scope".into(), inode: 3 }),
            },
            claim: None,
            entry_point: "createRuntime".to_owned(),
            since: 1_700_000_000,
            facts: BTreeMap::from([("iommu-group".to_owned(), "15".to_owned())]),
            ticket: None,
            moved: None,
        }
    }

    #[test]
    fn a_file_is_named_after_its_device_and_slot() {
        let vfio = device("vfio:0000:81:10.0");
        assert_eq!(file_name(&vfio, 3), "vfio=0000:81:10.0#3");
        assert_eq!(parse_file_name("vfio=0000:81:10.0#3"), Some((vfio, 3)));
        for bad in [
            ".lock",
            "vfio=a",
            "vfio=a#",
            "vfio=a#01",
            "vfio=a#-1",
            "x=a#1",
            "vfio=#1",
            "vfio=a#4294967296",
        ] {
            assert_eq!(parse_file_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut reserved = lease();
        reserved.holder =
            Holder::Reservation { token: [0xab; 16].into(), expires_ms: 5, maker: None };
        let mut of_task = lease();
        of_task.ticket = Some([0xcd; 16].into());
        let of_claim = Lease { claim: Some("8b9a-1f".parse().unwrap()), ..lease() };
        for lease in [lease(), reserved, of_task, of_claim] {
            let bytes = lease.to_bytes(&device("vfio:a"), 2).unwrap();
            assert_eq!(Lease::parse(&bytes).unwrap(), lease);
        }
    }

    #[test]
    fn a_holder_is_named_with_its_pod_if_that_is_a_name() {
        let mut lease = lease();
        assert!(lease.to_string().starts_with("container web (process 42"));
        let mut describe = |pod: &str| {
            lease.facts.insert(POD.to_owned(), pod.to_owned());
            lease.to_string()
        };
        let named = describe("default/redis-0");
        assert!(named.starts_with("container web of pod default/redis-0 (process 42"), "{named}");
        let (long, longest) = (format!("{}/a", "a".repeat(64)), format!("a/{}", "a".repeat(254)));
        for bad in
            ["a b/c", "a/\u{1b}[31m", "a/b\n", "a", "/", "a/", "/b", "a/b/c", &long, &longest]
        {
            assert!(describe(bad).starts_with("container web (process 42"), "{bad:?}");
        }
    }

    #[test]
    fn a_file_says_what_it_is_for_to_people() {
        let text = String::from_utf8(lease().to_bytes(&device("vfio:a"), 2).unwrap()).unwrap();
        assert_eq!(
            text,
            "{\"version\":1,\"class\":\"vfio\",\"name\":\"a\",\"slot\":2,\"boot\":\"b\",\"container\":\"web\",\
             \"bundle\":\"/bundles/web\",\"holder\":{\"init\":{\"process\":{\"pid\":42,\"startTime\":7,\"pidNamespace\":9},\
             \"cgroup\":{\"path\":\"/sys/fs/cgroup/web.scope\",\"inode\":3}}},\"entryPoint\":\"createRuntime\",\"since\":1700000000,\
             \"facts\":{\"iommu-group\":\"15\"}}\n"
        );
    }

    #[test]
    fn fields_that_are_not_known_are_passed_over() {
        let text = String::from_utf8(lease().to_bytes(&device("vfio:a"), 0).unwrap()).unwrap();
        let more = text.replacen('{', "{\"moods\":[1,{\"x\":null}],", 1);
        assert_eq!(Lease::parse(more.as_bytes()).unwrap(), lease());
    }

    #[test]
    fn what_is_newer_or_cut_short_or_names_no_container_is_not_understood() {
        let text = String::from_utf8(lease().to_bytes(&device("vfio:a"), 0).unwrap()).unwrap();
        let refusal = |text: &str| format!("{:#}", Lease::parse(text.as_bytes()).unwrap_err());
        let newer = text.replacen("\"version\":1", "\"version\":2", 1);
        assert_eq!(refusal(&newer), "it is of version 2, and this program understands 1");
        for damaged in [
            &text[..text.len() / 2],
            "",
            "\0\0\0",
            "{}",
            &text.replacen("\"web\"", "\"../web\"", 1),
            &text.replacen("\"init\"", "\"ghost\"", 1),
        ] {
            assert!(refusal(damaged).starts_with("it is not a lease: "), "{damaged}");
        }
    }

    #[test]
    fn the_line_about_a_holder_has_no_control_characters() {
        let mut lease = lease();
        assert_eq!(
            lease.to_string(),
            "container web (process 42, cgroup \"/sys/fs/cgroup/web.scope\") since 2023-11-14T22:13:20Z"
        );
        lease.holder = Holder::Init {
            process: ProcessId { pid: 1, start_time: 2, pid_namespace: 9 },
            cgroup: Some(Cgroup { path: "/a\n\u{1b}[31m".into(), inode: 3 }),
        };
        assert!(!lease.to_string().contains(['\n', '\u{1b}']));
    }
}
