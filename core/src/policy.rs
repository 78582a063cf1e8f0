//! The operator's policy for requests. Nothing is allowed unless the configuration allows the
//! class.
//!
//! The author of an image can set annotations and variables too. Devices that a cluster engine has
//! reserved need no permission here.

use std::path::Path;

use crate::class::Class;
use crate::config::{AnnotationsConfig, EnvironmentConfig, RootWithOnload};
use crate::netdev::address::Network;
use crate::request::{DeviceValue, Origin, Request};
use onload_sys::error::{Result, bail};
use onload_sys::text::Quoted;

/// The RLIMIT_MEMLOCK in bytes below which not even the queues of one small program can be
/// registered.
pub const MIN_MEMLOCK: u64 = 64 * 1024 * 1024;

/// The classes whose devices make use of CAP_IPC_LOCK.
pub(crate) const IPC_LOCK: [Class; 4] = [Class::Rdma, Class::Vfio, Class::Zf, Class::Hugepages];

/// Whether a container's process is the host's user 0, or can become it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostRootAccess {
    /// The process is another user and cannot become user 0.
    NotRoot,
    Root,
    /// A set-user-ID program can make the process user 0, since it does not have `noNewPrivileges`
    /// (prctl(2), PR_SET_NO_NEW_PRIVS).
    BySetUserId,
    /// The process has this capability, or a file of the image can give it.
    ByCapability(&'static str),
    /// The process joins this user namespace, whose mappings cannot be read.
    Unknown(String),
}

/// The operator's policy for requests.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    pub annotations: &'a AnnotationsConfig,
    pub environment: &'a EnvironmentConfig,
    pub file: &'a Path,
}

impl<'a> Policy<'a> {
    /// Returns the classes that may be requested at this origin, and the configuration section that
    /// lists them. Returns `None` if the origin needs no permission.
    fn list(&self, origin: &Origin) -> Option<(&'a [Class], &'static str)> {
        match origin {
            Origin::Annotation(_) => Some((&self.annotations.allow, "annotations")),
            Origin::Variable(_) => Some((&self.environment.allow, "environment")),
            // Bundles are defined by the operator; requesting a bundle is checked separately. A user who may use
            // --device controls the engine.
            Origin::Device(_) | Origin::Ticket(_) | Origin::Bundle(_) => None,
        }
    }
}

/// Formats a line of the configuration that allows more classes.
pub fn format_allow_line(allow: &[Class], more: &[Class]) -> String {
    let classes: Vec<String> = allow
        .iter()
        .chain(more.iter().filter(|class| !allow.contains(class)))
        .map(|class| format!("\"{class}\""))
        .collect();
    format!("allow = [{}]", classes.join(", "))
}

/// Checks a request against the operator's policy, and returns warnings.
pub fn check(request: &Request, policy: Policy<'_>, root: &HostRootAccess) -> Result<Vec<String>> {
    if let Some(entry) = &request.bundles {
        check_class(Class::Bundle, &entry.origin, policy)?;
    }
    for (class, entry) in &request.devices {
        check_class(*class, &entry.origin, policy)?;
    }
    // The requested limit may be higher than the limit that the engine set.
    if let Some(entry) = &request.hugepages_limit {
        check_class(Class::Hugepages, &entry.origin, policy)?;
    }
    if let Some(entry) = &request.ipc_lock {
        check_ipc_lock(request, &entry.origin, policy)?;
    }
    if let Some(entry) = &request.preload
        && entry.value != crate::config::Preload::Off
        && !request.requests_any(&[Class::Nic])
    {
        bail!(
            "{} has no effect without onload.dev/nic, because nothing is preloaded; remove it",
            entry.origin
        );
    }
    check_addresses(request, policy)?;
    check_root_with_onload(request, policy, root)
}

/// Checks the requested addresses. A container that sets an address can impersonate any machine of
/// its network.
fn check_addresses(request: &Request, policy: Policy<'_>) -> Result<()> {
    let Some(entry) = &request.addresses else {
        return Ok(());
    };
    let allowed = &policy.annotations.addresses;
    for DeviceValue { value: address, .. } in &entry.value {
        if !allowed.iter().any(|network| network.contains(address)) {
            bail!(
                "{} sets the address {address}, which is outside the networks that the operator \
                 allows; addresses = [{}] under [annotations] in {} would allow it",
                entry.origin,
                format_networks(allowed, &address.network()),
                policy.file.display()
            );
        }
    }
    Ok(())
}

/// Formats networks as in the configuration.
fn format_networks(allowed: &[Network], more: &Network) -> String {
    let networks: Vec<String> = allowed
        .iter()
        .filter(|network| *network != more)
        .chain([more])
        .map(|network| format!("\"{network}\""))
        .collect();
    networks.join(", ")
}

/// Checks a request for CAP_IPC_LOCK. It needs a class that is allowed at the same origin: a
/// variable or a ticket that grants the class does not grant a capability.
fn check_ipc_lock(request: &Request, origin: &Origin, policy: Policy<'_>) -> Result<()> {
    let classes: Vec<Class> =
        IPC_LOCK.into_iter().filter(|class| request.requests_any(&[*class])).collect();
    let Some(first) = classes.first() else {
        bail!(
            "{origin} has no effect without rdma, vfio, zf or hugepages, because only these lock \
             memory; remove it"
        );
    };
    match policy.list(origin) {
        Some((allow, section)) if !classes.iter().any(|class| allow.contains(class)) => bail!(
            "{origin}: the operator does not allow rdma, vfio, zf or hugepages there, even if the \
             container gets one elsewhere; {} under [{section}] in {} would allow it",
            format_allow_line(allow, &[*first]),
            policy.file.display()
        ),
        _ => Ok(()),
    }
}

fn check_class(class: Class, origin: &Origin, policy: Policy<'_>) -> Result<()> {
    match policy.list(origin) {
        Some((allow, section)) if !allow.contains(&class) => bail!(
            "{origin} requests class {class}, which the operator does not allow; {} under \
             [{section}] in {} would allow it",
            format_allow_line(allow, &[class]),
            policy.file.display()
        ),
        _ => Ok(()),
    }
}

fn check_root_with_onload(
    request: &Request,
    policy: Policy<'_>,
    root: &HostRootAccess,
) -> Result<Vec<String>> {
    let Some(entry) = Class::ONLOAD.iter().find_map(|class| request.devices.get(class)) else {
        return Ok(Vec::new());
    };
    let key = &entry.origin;
    match (policy.annotations.root_with_onload, root) {
        (RootWithOnload::Warn, HostRootAccess::Root) => Ok(vec![format!(
            "{key}: this container's user 0 is the host's and can map every Onload stack of the host"
        )]),
        (RootWithOnload::Allow | RootWithOnload::Warn, _) | (_, HostRootAccess::NotRoot) => {
            Ok(Vec::new())
        }
        (RootWithOnload::Refuse, root) => bail!(
            "{key}: {}, which root-with-onload = \"refuse\" in {} forbids, because the host's user \
             0 can map every Onload stack of the host; {}",
            root.cause(),
            policy.file.display(),
            root.remedy()
        ),
    }
}

impl HostRootAccess {
    fn cause(&self) -> String {
        match self {
            HostRootAccess::NotRoot => {
                "this container's process is not the host's user 0".to_owned()
            }
            HostRootAccess::Root => "this container's process is the host's user 0".to_owned(),
            HostRootAccess::BySetUserId => {
                "a set-user-ID program would make this container's user the host's user 0"
                    .to_owned()
            }
            HostRootAccess::ByCapability(name) => {
                format!("{name} can make this container's user the host's user 0")
            }
            HostRootAccess::Unknown(path) if path.is_empty() => {
                "this container's user namespace has no mappings".to_owned()
            }
            HostRootAccess::Unknown(path) => format!(
                "could not determine which users the namespace {} maps to the host's user 0",
                Quoted(path)
            ),
        }
    }

    fn remedy(&self) -> String {
        match self {
            HostRootAccess::ByCapability(name) => {
                format!("drop {name}, or run the container in a user namespace")
            }
            HostRootAccess::Unknown(_) => {
                "run it in a user namespace, or run it as another user with no-new-privileges in \
                 the host's"
                    .to_owned()
            }
            _ => "run the container in a user namespace, or as another user with no-new-privileges"
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn request(pairs: &[(&str, &str)]) -> Request {
        let all: BTreeMap<String, String> =
            pairs.iter().map(|(k, v)| (format!("onload.dev/{k}"), (*v).to_owned())).collect();
        Request::parse(&all).unwrap().unwrap()
    }

    fn policy(allow: &[Class]) -> AnnotationsConfig {
        AnnotationsConfig { allow: allow.to_vec(), ..AnnotationsConfig::default() }
    }

    fn verdict(
        pairs: &[(&str, &str)],
        policy: &AnnotationsConfig,
        root: bool,
    ) -> Result<Vec<String>, String> {
        let root = if root { HostRootAccess::Root } else { HostRootAccess::NotRoot };
        checked(&request(pairs), policy, &root).map_err(|error| error.to_string())
    }

    fn checked(
        request: &Request,
        annotations: &AnnotationsConfig,
        root: &HostRootAccess,
    ) -> Result<Vec<String>> {
        let policy = Policy {
            annotations,
            environment: &EnvironmentConfig { allow: vec![Class::Vfio] },
            file: Path::new("/etc/c.toml"),
        };
        check(request, policy, root)
    }

    #[test]
    fn addresses_are_allowed_by_network() {
        let ask = |address: &str| {
            let address = format!("ens1={address}");
            let pairs = [("netdev", "ens1"), ("address", address.as_str())];
            let mut bounded = policy(&[Class::Netdev]);
            let none = verdict(&pairs, &bounded, false).unwrap_err();
            bounded.addresses =
                ["192.0.2.0/24", "2001:db8::/64"].map(|network| network.parse().unwrap()).to_vec();
            (none, verdict(&pairs, &bounded, false))
        };
        for allowed in ["192.0.2.10/24", "192.0.2.10/32", "2001:db8::10/64"] {
            let (none, bounded) = ask(allowed);
            assert!(none.contains("outside the networks"), "{none}");
            assert_eq!(bounded, Ok(Vec::new()), "{allowed}");
        }
        for refused in
            ["192.0.2.10/23", "192.0.3.10/24", "192.0.2.255/32", "2001:db8:0:1::1/64", "fe80::1/64"]
        {
            assert!(ask(refused).1.is_err(), "{refused}");
        }
        let message = ask("192.0.3.10/24").1.unwrap_err();
        assert_eq!(
            message,
            "annotation \"onload.dev/address\" sets the address 192.0.3.10/24, which is outside \
             the networks that the operator allows; addresses = [\"192.0.2.0/24\", \
             \"2001:db8::/64\", \"192.0.3.0/24\"] under [annotations] in /etc/c.toml would allow \
             it"
        );
        let class = verdict(&[("netdev", "ens1")], &policy(&[]), false).unwrap_err();
        assert!(
            class.contains("requests class netdev, which the operator does not allow"),
            "{class}"
        );
    }

    #[test]
    fn annotations_and_variables_have_separate_lists() {
        let of_text = |text: &str, origin| {
            let request = Request::parse_text(text, origin).unwrap();
            checked(&request, &policy(&[Class::Nic]), &HostRootAccess::NotRoot)
        };
        of_text("vfio=a", Origin::Variable).unwrap();
        let refused = of_text("nic=a", Origin::Variable).unwrap_err().to_string();
        assert_eq!(
            refused,
            "\"nic\" of ONLOAD_CTK_REQUEST requests class nic, which the operator does not allow; \
             allow = [\"vfio\", \"nic\"] under [environment] in /etc/c.toml would allow it"
        );
        let refused = verdict(&[("vfio", "a")], &policy(&[Class::Nic]), false).unwrap_err();
        assert!(refused.contains("allow = [\"nic\", \"vfio\"] under [annotations]"));
        of_text("nic=a;rdma=b;vfio=c", Origin::Ticket).unwrap();
    }

    #[test]
    fn a_ticket_does_not_lift_the_policy_for_the_host_s_root() {
        let request = Request::parse_text("nic=a", Origin::Ticket).unwrap();
        let mut policy = policy(&[]);
        policy.root_with_onload = RootWithOnload::Refuse;
        let refused = checked(&request, &policy, &HostRootAccess::Root).unwrap_err();
        assert!(refused.to_string().contains("root-with-onload = \"refuse\""));
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        for class in Class::ALL {
            let message = verdict(&[(class.as_str(), "all")], &policy(&[]), false).unwrap_err();
            assert!(message.contains(&format!("allow = [\"{class}\"]")), "{message}");
            assert!(
                message.contains("/etc/c.toml") && message.contains("onload.dev/"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_class_is_allowed_by_its_own_name_only() {
        let message = verdict(&[("nic", "all")], &policy(&[Class::NicPlain]), false).unwrap_err();
        assert!(message.contains("allow = [\"nic-plain\", \"nic\"]"), "{message}");
        verdict(&[("nic", "all")], &policy(&[Class::Nic]), false).unwrap();
    }

    #[test]
    fn a_limit_on_huge_pages_needs_the_class() {
        let ask = [("hugepages-limit", "2Mi=2Mi")];
        assert!(verdict(&ask, &policy(&[Class::Zf]), false).is_err());
        verdict(&ask, &policy(&[Class::Hugepages]), false).unwrap();
    }

    #[test]
    fn ipc_lock_needs_something_that_locks_memory() {
        let all = policy(&Class::ALL);
        assert!(
            verdict(&[("ipc-lock", "true")], &all, false)
                .unwrap_err()
                .contains("has no effect without rdma")
        );
        assert!(verdict(&[("ipc-lock", "true"), ("nic", "all")], &all, false).is_err());
        for class in IPC_LOCK {
            verdict(&[("ipc-lock", "true"), (class.as_str(), "x")], &all, false).unwrap();
            let refused =
                verdict(&[("ipc-lock", "true"), (class.as_str(), "x")], &policy(&[]), false);
            assert!(refused.unwrap_err().contains("does not allow"));
        }
    }

    #[test]
    fn a_class_of_a_variable_or_ticket_does_not_allow_ipc_lock_by_annotation() {
        for origin in [Origin::Ticket as fn(String) -> Origin, Origin::Variable] {
            let verdict = |allow: &[Class]| {
                let mut asked = request(&[("ipc-lock", "true")]);
                let other = Request::parse_text("vfio=a", origin).unwrap();
                asked.add_missing(other).unwrap();
                checked(&asked, &policy(allow), &HostRootAccess::NotRoot)
                    .map_err(|error| error.to_string())
            };
            for allow in [&[][..], &[Class::Nic], &[Class::Rdma]] {
                let refused = verdict(allow).unwrap_err();
                assert!(
                    refused.contains("onload.dev/ipc-lock")
                        && refused.contains("\"vfio\"] under [annotations] in /etc/c.toml"),
                    "{refused}"
                );
            }
            verdict(&[Class::Vfio]).unwrap();
        }
    }

    #[test]
    fn preloading_requires_the_class_nic() {
        let all = policy(&Class::ALL);
        assert!(verdict(&[("preload", "env"), ("rdma", "x")], &all, false).is_err());
        verdict(&[("preload", "off"), ("rdma", "x")], &all, false).unwrap();
        verdict(&[("preload", "file"), ("nic", "x")], &all, false).unwrap();
    }

    #[test]
    fn root_with_onload_decides_about_the_host_s_root() {
        let mut policy = policy(&Class::ALL);
        for class in Class::ONLOAD {
            let ask = [(class.as_str(), "all")];
            policy.root_with_onload = RootWithOnload::Warn;
            assert_eq!(verdict(&ask, &policy, true).unwrap().len(), 1);
            assert_eq!(verdict(&ask, &policy, false).unwrap().len(), 0);
            policy.root_with_onload = RootWithOnload::Refuse;
            assert!(verdict(&ask, &policy, true).unwrap_err().contains("root-with-onload"));
            verdict(&ask, &policy, false).unwrap();
            policy.root_with_onload = RootWithOnload::Allow;
            assert_eq!(verdict(&ask, &policy, true).unwrap().len(), 0);
        }
        policy.root_with_onload = RootWithOnload::Refuse;
        verdict(&[("rdma", "all")], &policy, true).unwrap();
    }

    #[test]
    fn every_way_to_become_root_is_rejected_with_its_remedy() {
        let mut policy = policy(&Class::ALL);
        for (root, cause, remedy) in [
            (HostRootAccess::Root, "is the host's user 0", "user namespace"),
            (HostRootAccess::BySetUserId, "set-user-ID", "no-new-privileges"),
            (
                HostRootAccess::ByCapability("CAP_SYS_ADMIN"),
                "CAP_SYS_ADMIN can make",
                "drop CAP_SYS_ADMIN",
            ),
            (
                HostRootAccess::Unknown("/run/userns/x".to_owned()),
                "\"/run/userns/x\"",
                "run it in a user namespace",
            ),
        ] {
            let ask = request(&[("nic", "all")]);
            policy.root_with_onload = RootWithOnload::Refuse;
            let refused = checked(&ask, &policy, &root).unwrap_err().to_string();
            for part in [cause, remedy, "root-with-onload", "/etc/c.toml"] {
                assert!(refused.contains(part), "{refused}");
            }
            policy.root_with_onload = RootWithOnload::Warn;
            let warned = checked(&ask, &policy, &root).unwrap();
            assert_eq!(warned.is_empty(), root != HostRootAccess::Root);
        }
    }
}
