//! Determines whether a container's process is the host's user 0 or can become it.
//!
//! Onload lets the host's user 0 map every stack of the host (onload
//! `efab_thr_user_can_access_stack`), so `root-with-onload = "refuse"` must consider every way to
//! become that user.

use onload_cdi::json::{RawError, RawObject};
use onload_cdi::oci::{CapabilitySet, OciConfig, OciConfigError};
use onload_core::policy::HostRootAccess;
use serde::Deserialize;

use super::host_view::HostView;

pub(crate) const CAP_SETUID: &str = "CAP_SETUID";

/// Capabilities with which a process of another user can become the host's user 0, or can do what
/// only that user can (include/uapi/linux/capability.h). Engines grant CAP_SETUID to every
/// container by default, and the other capabilities only on request.
const ROOT_CAPABILITIES: [&str; 7] = [
    CAP_SETUID,
    // Controls mounts, namespaces and the kernel's usermode helpers.
    "CAP_SYS_ADMIN",
    // Takes over a process of user 0 that an engine starts in the container.
    "CAP_SYS_PTRACE",
    "CAP_SYS_MODULE",
    // Accesses I/O ports and physical memory.
    "CAP_SYS_RAWIO",
    // Boots another kernel by kexec_load(2).
    "CAP_SYS_BOOT",
    // Opens any file of the host by open_by_handle_at(2).
    "CAP_DAC_READ_SEARCH",
];

/// The sets from which a program can obtain a capability under no-new-privileges. The bounding set is not one of them:
/// it limits what a file's capabilities add, and under no-new-privileges they add nothing to the permitted set of the
/// process (security/commoncap.c, `cap_bprm_creds_from_file`).
const SOURCE_SETS: [CapabilitySet; 4] = [
    CapabilitySet::Permitted,
    CapabilitySet::Effective,
    CapabilitySet::Inheritable,
    CapabilitySet::Ambient,
];

pub(crate) fn assess(
    config: &OciConfig,
    host: &dyn HostView,
) -> Result<HostRootAccess, OciConfigError> {
    if !host.privilege().is_initial_namespace {
        return Ok(HostRootAccess::NotRoot);
    }
    let uid = effective_uid(config.user()?.uid);
    let users = UserMapping::read(config, host)?;
    if users.is_root(uid) {
        return Ok(HostRootAccess::Root);
    }
    if !users.can_reach_root() {
        return Ok(HostRootAccess::NotRoot);
    }
    if let UserMapping::Unseen(path) = users {
        return Ok(HostRootAccess::Unknown(path));
    }
    let in_process = |error: RawError| OciConfigError::Read(error.with_key("process"));
    let none = RawObject::default();
    let process = config.process().unwrap_or(&none);
    if !has_no_new_privileges(process).map_err(in_process)? {
        return Ok(HostRootAccess::BySetUserId);
    }
    let capability = find_root_capability(process).map_err(in_process)?;
    Ok(capability.map_or(HostRootAccess::NotRoot, HostRootAccess::ByCapability))
}

/// Returns the user ID that a process will have. For setresuid(2), -1 means "unchanged", so crun
/// leaves a process with this number as user 0 of its user namespace. An image can specify the number
/// (CVE-2024-40635 is similar).
fn effective_uid(uid: u32) -> u32 {
    if uid == u32::MAX { 0 } else { uid }
}

/// Removes CAP_SETUID from a process with no-new-privileges whose user is not 0. Returns whether it was removed.
///
/// Such a process can use the capability only in programs of its image whose files have capabilities, since
/// executing any other program clears the permitted set (capabilities(7)). A process with an ambient
/// CAP_SETUID is left unchanged: every program that it executes keeps the capability, and the container may
/// need it.
pub(crate) fn drop_setuid(process: &mut RawObject) -> Result<bool, RawError> {
    let user = process.object("user")?.unwrap_or_default();
    let uid: Option<u32> = user.read("uid")?;
    let Some(mut sets) = process.object("capabilities")? else {
        return Ok(false);
    };
    let is_plain =
        uid.is_some_and(|uid| effective_uid(uid) != 0) && has_no_new_privileges(process)?;
    let ambient = read_capabilities(&sets, CapabilitySet::Ambient)?;
    if !is_plain || ambient.iter().any(|name| is_setuid(name)) {
        return Ok(false);
    }
    let mut is_taken = false;
    for set in SOURCE_SETS {
        let mut names = read_capabilities(&sets, set)?;
        let before = names.len();
        names.retain(|name| !is_setuid(name));
        if names.len() < before {
            sets.write(set.as_str(), &names)?;
            is_taken = true;
        }
    }
    if is_taken {
        process.set_object("capabilities", &sets);
    }
    Ok(is_taken)
}

fn is_setuid(name: &str) -> bool {
    may_name_capability(name, CAP_SETUID)
}

fn has_no_new_privileges(process: &RawObject) -> Result<bool, RawError> {
    Ok(process.read("noNewPrivileges")? == Some(true))
}

/// Returns the first of [`ROOT_CAPABILITIES`] that a process has. A configuration without `capabilities`
/// means that it has none (runc `finalizeNamespace`, crun `libcrun_set_caps`).
fn find_root_capability(process: &RawObject) -> Result<Option<&'static str>, RawError> {
    let Some(sets) = process.object("capabilities")? else {
        return Ok(None);
    };
    let mut all = Vec::new();
    for set in SOURCE_SETS {
        all.extend(read_capabilities(&sets, set)?);
    }
    Ok(ROOT_CAPABILITIES
        .into_iter()
        .find(|way| all.iter().any(|name| may_name_capability(name, way))))
}

fn read_capabilities(sets: &RawObject, set: CapabilitySet) -> Result<Vec<String>, RawError> {
    Ok(sets.read(set.as_str())?.unwrap_or_default())
}

/// Returns whether a word of the configuration may mean this capability. runc accepts only the name. crun uses libcap,
/// which also accepts lower case and numbers, and ignores what follows the name or number (cap_from_name(3)). A word
/// that contains anything but letters and `_` therefore counts as every capability.
fn may_name_capability(word: &str, name: &str) -> bool {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    !is_plain || word.eq_ignore_ascii_case(name)
}

/// A mapping of user ids (runtime-spec, config-linux.md "User namespace mappings").
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdMapping {
    #[serde(rename = "containerID")]
    container_id: u64,
    #[serde(rename = "hostID")]
    host_id: u64,
    size: u64,
}

/// The number of user IDs, which have 32 bits.
const USERS: u64 = 1 << 32;

impl IdMapping {
    /// Returns whether the mapped users include the host's user 0, even if the range begins at another
    /// user: in code that counts in 32 bits, a range that passes the highest user ID continues at 0.
    fn holds_root(self) -> bool {
        let end = self.host_id.saturating_add(self.size);
        self.size > 0 && (self.host_id == 0 || end > USERS)
    }

    /// Returns whether this user of the container is the host's user 0, counting as in
    /// [`IdMapping::holds_root`].
    fn maps_to_root(self, uid: u32) -> bool {
        let within = u64::from(uid).checked_sub(self.container_id);
        within.is_some_and(|within| {
            let host = self.host_id.saturating_add(within);
            within < self.size && host.is_multiple_of(USERS)
        })
    }
}

/// The user IDs of the host that a container's processes can have.
enum UserMapping {
    /// The container has no user namespace of its own, so its user IDs are those of the host.
    Hosts,
    Mapped(Vec<IdMapping>),
    /// The mappings of the user namespace are unknown. Contains the path of the namespace, which is empty
    /// for a new namespace.
    Unseen(String),
}

impl UserMapping {
    /// Reads the mappings of the container's user namespace. Those in the configuration apply only to a
    /// namespace that is created for the container. A namespace that the container joins has its own.
    fn read(config: &OciConfig, host: &dyn HostView) -> Result<UserMapping, OciConfigError> {
        let paths = config.namespace_paths("user")?;
        let Some(path) = paths.first() else {
            return Ok(UserMapping::Hosts);
        };
        if let Some(path) = paths.iter().find(|path| !path.is_empty()) {
            let mappings = parse_process(path)
                .and_then(|pid| {
                    let sysfs = host.sysfs();
                    sysfs.text(&sysfs.proc(&format!("{pid}/uid_map")))
                })
                .and_then(|text| parse_map(&text));
            return Ok(
                mappings.map_or_else(|| UserMapping::Unseen(path.clone()), UserMapping::Mapped)
            );
        }
        let mut mappings: Option<Vec<IdMapping>> = None;
        if let Some(linux) = config.linux() {
            let read = linux.read("uidMappings");
            mappings = read.map_err(|error| OciConfigError::Read(error.with_key("linux")))?;
        }
        let mappings = mappings.filter(|mappings| !mappings.is_empty());
        Ok(mappings.map_or_else(|| UserMapping::Unseen(path.clone()), UserMapping::Mapped))
    }

    fn is_root(&self, uid: u32) -> bool {
        match self {
            UserMapping::Mapped(mappings) => {
                mappings.iter().any(|mapping| mapping.maps_to_root(uid))
            }
            UserMapping::Hosts | UserMapping::Unseen(_) => uid == 0,
        }
    }

    fn can_reach_root(&self) -> bool {
        match self {
            UserMapping::Mapped(mappings) => mappings.iter().any(|mapping| mapping.holds_root()),
            UserMapping::Hosts | UserMapping::Unseen(_) => true,
        }
    }
}

/// Returns the PID in a path `/proc/PID/ns/user`, and `None` for any other path. containerd writes such
/// paths for the containers of a pod.
fn parse_process(path: &str) -> Option<u32> {
    let pid = path.strip_prefix("/proc/")?.strip_suffix("/ns/user")?;
    let is_plain = pid.bytes().all(|byte| byte.is_ascii_digit());
    pid.parse().ok().filter(|_| is_plain)
}

/// Parses /proc/PID/uid_map (user_namespaces(7)). Each line has the first user inside the namespace, the
/// first user outside, and the number of users.
fn parse_map(text: &str) -> Option<Vec<IdMapping>> {
    let line = |line: &str| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        Some(IdMapping { container_id: next()?, host_id: next()?, size: next()? })
    };
    let mappings: Option<Vec<IdMapping>> = text.lines().map(line).collect();
    // A namespace without mappings has no users yet.
    mappings.filter(|mappings| !mappings.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mapping(container_id: u64, host_id: u64, size: u64) -> IdMapping {
        IdMapping { container_id, host_id, size }
    }

    #[test]
    fn a_mapping_holds_the_host_s_user_0_where_its_range_does() {
        for held in [
            mapping(0, 0, 1),
            mapping(5, 0, 1),
            mapping(0, 0, 65_536),
            mapping(0, 4_294_967_295, 2),
            mapping(0, u64::MAX, u64::MAX),
        ] {
            assert!(held.holds_root(), "{held:?}");
        }
        for free in [
            mapping(0, 0, 0),
            mapping(0, 1, 65_536),
            mapping(0, 100_000, 65_536),
            mapping(0, 4_294_967_295, 1),
        ] {
            assert!(!free.holds_root(), "{free:?}");
        }
    }

    #[test]
    fn a_user_is_the_host_s_user_0_by_its_own_mapping() {
        assert!(mapping(5, 0, 1).maps_to_root(5));
        assert!(!mapping(5, 0, 2).maps_to_root(6));
        assert!(!mapping(5, 0, 1).maps_to_root(0));
        assert!(mapping(0, 4_294_967_290, 10).maps_to_root(6));
    }

    #[test]
    fn a_capability_is_known_by_every_spelling_that_a_runtime_takes() {
        for word in [
            "CAP_SETUID",
            "cap_setuid",
            "7",
            "07",
            "0x7",
            "7abc",
            "CAP_SETUID2",
            "CAP_SETUID+X",
            "CAP_SETUID X",
            "cap_setuid,",
            "CAP_SETUID\u{e9}",
            "6",
        ] {
            assert!(is_setuid(word), "{word}");
        }
        for word in ["CAP_SETGID", "SETUID", "", "CAP_SETUIDS"] {
            assert!(!is_setuid(word), "{word}");
        }
    }

    #[test]
    fn a_process_of_user_minus_one_is_user_0() {
        assert_eq!(effective_uid(u32::MAX), 0);
        assert_eq!(effective_uid(u32::MAX - 1), u32::MAX - 1);
        let process = |uid: u32| {
            let json = format!(
                r#"{{"user":{{"uid":{uid}}},"noNewPrivileges":true,"capabilities":{{"permitted":["CAP_SETUID"]}}}}"#
            );
            RawObject::parse(json.as_bytes()).unwrap()
        };
        assert!(drop_setuid(&mut process(1000)).unwrap());
        assert!(!drop_setuid(&mut process(u32::MAX)).unwrap());
    }

    #[test]
    fn the_process_of_a_namespace_is_read_from_its_path() {
        assert_eq!(parse_process("/proc/41/ns/user"), Some(41));
        for path in [
            "/proc/self/ns/user",
            "/proc/+1/ns/user",
            "/proc//ns/user",
            "/proc/1/task/1/ns/user",
            "/run/userns/x",
        ] {
            assert_eq!(parse_process(path), None, "{path}");
        }
    }

    #[test]
    fn a_map_that_is_empty_or_no_map_tells_nothing() {
        assert!(parse_map("").is_none());
        assert!(parse_map("0 0\n").is_none());
        assert!(parse_map("a b c\n").is_none());
        let map = parse_map("         0     100000      65536\n 5 0 1\n").unwrap();
        assert!(map[1].holds_root() && !map[0].holds_root());
    }
}
