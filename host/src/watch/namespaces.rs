//! Checks whether the kernel's device events reach this process.

use std::fs;
use std::path::Path;

/// The inodes of the first user namespace and of the first PID namespace, which never change
/// (`PROC_USER_INIT_INO` and `PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_USER: &str = "user:[4026531837]";
const FIRST_PID: &str = "pid:[4026531836]";

/// Returns why some events do not arrive. `None` if all do, or if it is unknown.
pub(super) fn missing_events_reason() -> Option<String> {
    let namespace_of = |process: &str, kind: &str| {
        let link = Path::new("/proc").join(process).join("ns").join(kind);
        let target = fs::read_link(link).ok()?;
        Some(target.to_string_lossy().into_owned())
    };
    let (user, pid) = (namespace_of("self", "user"), namespace_of("self", "pid"));
    let (network, first) = (namespace_of("self", "net"), namespace_of("1", "net"));
    let (network, first) = (network.as_deref(), first.as_deref());
    judge(user.as_deref(), pid.as_deref(), network, first).map(str::to_owned)
}

/// Decides by the namespaces of this process and the network namespace of the first visible process. The kernel sends
/// uevents only to network namespaces of the first user namespace, and those about a network interface only to the
/// interface's namespace (`uevent_net_broadcast_untagged` and `uevent_net_broadcast_tagged` in lib/kobject_uevent.c).
fn judge(
    user: Option<&str>,
    pid: Option<&str>,
    network: Option<&str>,
    first: Option<&str>,
) -> Option<&'static str> {
    if user.is_some_and(|user| user != FIRST_USER) {
        return Some("the kernel does not report devices to programs in a user namespace");
    }
    let is_other = first.is_some() && first != network;
    (pid == Some(FIRST_PID) && is_other).then_some(
        "the kernel does not report the host's interfaces to programs in other network namespaces",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why_not_all(user: &str, pid: &str, own: &str, first: Option<&str>) -> Option<&'static str> {
        judge(Some(user), Some(pid), Some(own), first)
    }

    #[test]
    fn a_program_of_the_host_is_told_all() {
        let all = why_not_all(FIRST_USER, FIRST_PID, "net:[1]", Some("net:[1]"));
        assert_eq!(all, None);
        // It may be the host's first process or have no access to it: there is no way to know.
        assert_eq!(why_not_all(FIRST_USER, "pid:[7]", "net:[2]", Some("net:[1]")), None);
        assert_eq!(why_not_all(FIRST_USER, FIRST_PID, "net:[2]", None), None);
    }

    #[test]
    fn a_program_in_namespaces_of_its_own_is_told_less() {
        let user = why_not_all("user:[7]", FIRST_PID, "net:[1]", Some("net:[1]"));
        assert!(user.unwrap().contains("user namespace"));
        let network = why_not_all(FIRST_USER, FIRST_PID, "net:[2]", Some("net:[1]"));
        assert!(network.unwrap().contains("network namespace"));
    }
}
