//! What a lease file holds, and what it is called.

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

/// The fact that says of which pod the container is, as `NAMESPACE/NAME`.
pub const POD: &str = "pod";

/// The fact that says which numbers the nodes of the device have, as `MAJOR:MINOR`, separated by spaces.
pub const NODES: &str = "nodes";

/// The newest version of the file that is understood.
pub(crate) const VERSION: u32 = 1;

/// Whether a text can be [`POD`]: a label of DNS, a slash and a subdomain. Annotations are text of anybody's.
pub fn is_pod_name(text: &str) -> bool {
    let is_name = |name: &str, max: usize, punctuation: &[u8]| {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || punctuation.contains(&byte);
        (1..=max).contains(&name.len()) && name.bytes().all(legal)
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
    /// A container that exists, by its first process.
    #[serde(rename_all = "camelCase")]
    Init {
        process: ProcessId,
        /// The directory of its cgroup; none where that is not its own.
        cgroup: Option<Cgroup>,
    },
    /// A container that is being made.
    #[serde(rename_all = "camelCase")]
    Reservation {
        /// What the container's hook has to name.
        token: Token,
        /// Until when it holds, in milliseconds after boot (CLOCK_BOOTTIME).
        expires_ms: u64,
        /// The process that becomes the runtime which creates the container, where it is one: when it
        /// has ended, nobody else will name the token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        maker: Option<ProcessId>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The boot that it is of: numbers of processes mean nothing after another.
    pub boot: String,
    pub container: ContainerId,
    /// The container's bundle, without symbolic links. Empty in a reservation by an entry point that is
    /// called before the engine has made one.
    pub bundle: PathBuf,
    pub holder: Holder,
    /// The claim of a cluster engine that the container holds it for; all containers of it are one holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimUid>,
    /// The program and stage that claimed it.
    pub entry_point: String,
    /// When, in seconds after 1970.
    pub since: u64,
    /// What was known of the device and its holder; [`POD`] and [`NODES`] are among the keys.
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
    /// Whether it was made for a container of this id and bundle. A reservation without a bundle is told
    /// by its token, which the caller compares.
    pub(crate) fn belongs_to(&self, container: &ContainerId, bundle: &Path) -> bool {
        let is_reservation = matches!(self.holder, Holder::Reservation { .. });
        let is_anywhere = is_reservation && self.bundle.as_os_str().is_empty();
        self.container == *container && (is_anywhere || self.bundle == bundle)
    }

    /// The device that moved to the container and has to come back.
    pub(crate) fn device_to_return(&self) -> Option<&MoveRecord> {
        let moved = self.moved.as_ref();
        moved.filter(|moved| moved.saved.must_return())
    }

    /// Reads a file's text; fields that this version does not know are passed over.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Lease> {
        versioned::parse(bytes, VERSION, "it is no lease")
    }

    /// The boot and the holder, of a file that is not understood as a whole.
    pub(crate) fn parse_holder(bytes: &[u8]) -> Option<(String, Holder)> {
        #[derive(Deserialize)]
        struct PartialLease {
            boot: String,
            holder: Holder,
        }
        let partial: PartialLease = serde_json::from_slice(bytes).ok()?;
        Some((partial.boot, partial.holder))
    }

    /// The text of the file for one slot of a device. It says again what the file's name says, for
    /// people; the name decides.
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
    /// Who holds it and since when, for a line.
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

/// Properties that hold for every name and content of a file.
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
            assert!(refusal(damaged).starts_with("it is no lease: "), "{damaged}");
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
