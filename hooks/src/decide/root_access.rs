//! Whether a container's process is the host's user 0, or can become it.
//!
//! Onload lets the host's user 0 map every stack of the host (onload
//! `efab_thr_user_can_access_stack`), so `root-with-onload = "refuse"` has to know every way to
//! become that user.

use onload_cdi::json::{RawError, RawObject};
use onload_cdi::oci::{CapabilitySet, OciConfig, OciConfigError};
use onload_core::policy::HostRootAccess;
use serde::Deserialize;

use super::host_view::HostView;

pub(crate) const CAP_SETUID: &str = "CAP_SETUID";

/// Capabilities with which a process of another user can become the host's user 0, or can do what
/// only that user can (include/uapi/linux/capability.h). Engines give CAP_SETUID to every
/// container; the others only on request.
const ROOT_CAPABILITIES: [&str; 7] = [
    CAP_SETUID,
    // Mounts, namespaces, the kernel's usermode helpers.
    "CAP_SYS_ADMIN",
    // Takes over a process of user 0 that an engine starts in the container.
    "CAP_SYS_PTRACE",
    "CAP_SYS_MODULE",
    // I/O ports and physical memory.
    "CAP_SYS_RAWIO",
    // Boots another kernel by kexec_load(2).
    "CAP_SYS_BOOT",
    // Opens any file of the host by open_by_handle_at(2).
    "CAP_DAC_READ_SEARCH",
];

/// The sets from which a program can get a capability under no-new-privileges. The bounding set is not among them: a
/// file's capabilities add nothing to the permitted set of the process (security/commoncap.c,
/// `cap_bprm_creds_from_file`).
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

/// The user that a process ends up as. To setresuid(2), -1 means "unchanged": crun leaves such a
/// process user 0 of its user namespace, and an image can specify that number (CVE-2024-40635 is
/// similar).
fn effective_uid(uid: u32) -> u32 {
    if uid == u32::MAX { 0 } else { uid }
}

/// Removes CAP_SETUID from a process that holds it only for the programs of its image: a user other
/// than 0 loses its permitted set when it executes a plain program (capabilities(7)). An ambient
/// capability reaches every program, and the container may need it. Returns whether it was removed.
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

/// A process without `capabilities` has none (runc `finalizeNamespace`, crun `libcrun_set_caps`).
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
/// which also accepts lower case and numbers, and ignores anything that follows either (cap_from_name(3)): a word with
/// other characters than letters and `_` counts as every capability.
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

const USERS: u64 = 1 << 32;

impl IdMapping {
    /// Whether the mapped users include the host's user 0, wherever the range begins. For code that
    /// counts in 32 bits, a range that passes the highest user id continues at 0.
    fn holds_root(self) -> bool {
        let end = self.host_id.saturating_add(self.size);
        self.size > 0 && (self.host_id == 0 || end > USERS)
    }

    fn maps_to_root(self, uid: u32) -> bool {
        let within = u64::from(uid).checked_sub(self.container_id);
        within.is_some_and(|within| {
            let host = self.host_id.saturating_add(within);
            within < self.size && host.is_multiple_of(USERS)
        })
    }
}

enum UserMapping {
    Hosts,
    Mapped(Vec<IdMapping>),
    /// Returns the capabilities in a namespace at this path that cannot be examined.
    Unseen(String),
}

impl UserMapping {
    /// The mappings of a configuration belong to the namespace that it creates. A namespace that it
    /// joins has its own mappings, whatever the configuration says.
    fn read(config: &OciConfig, host: &dyn HostView) -> Result<UserMapping, OciConfigError> {
        let paths = config.namespace_paths("user")?;
        let Some(path) = paths.first() else {
            return Ok(UserMapping::Hosts);
        };
        if let Some(path) = paths.iter().find(|path| !path.is_empty()) {
            let mappings = parse_process(path)
                .and_then(|pid| host.user_map(pid))
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

/// The process whose user namespace a path names. containerd writes such paths for the containers
/// of a pod.
fn parse_process(path: &str) -> Option<u32> {
    let pid = path.strip_prefix("/proc/")?.strip_suffix("/ns/user")?;
    let is_plain = pid.bytes().all(|byte| byte.is_ascii_digit());
    pid.parse().ok().filter(|_| is_plain)
}

/// Parses /proc/PID/uid_map (user_namespaces(7)): first user inside, first user outside, count.
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
