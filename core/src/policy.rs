//! What the operator lets annotations request. Nothing, unless the configuration names the class:
//! the author of an image can set annotations too.

use std::path::Path;

use crate::class::Class;
use crate::config::{Annotations, RootWithOnload};
use crate::request::Request;
use crate::text::Quoted;

/// Classes whose nodes let the host's user 0 in a container access every Onload stack of the host
/// (onload `efab_thr_user_can_access_stack`).
pub const ONLOAD: [Class; 4] = [Class::Nic, Class::NicPlain, Class::NicNodes, Class::Zf];

/// Classes whose users lock memory.
pub const MEMLOCK: [Class; 2] = [Class::Rdma, Class::Vfio];

/// Classes for which CAP_IPC_LOCK makes sense.
pub(crate) const IPC_LOCK: [Class; 4] = [Class::Rdma, Class::Vfio, Class::Zf, Class::Hugepages];

/// How close a container's process is to the host's user 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostRoot {
    /// It is another user and cannot become user 0.
    No,
    /// It is the host's user 0.
    Is,
    /// A set-user-ID program makes it user 0: it has no `noNewPrivileges` (prctl(2),
    /// PR_SET_NO_NEW_PRIVS).
    BySetUserId,
    /// It has this capability, or a file of the image can give it.
    ByCapability(&'static str),
    /// It joins this user namespace, whose mappings cannot be read.
    Unseen(String),
}

/// Why the operator's policy refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyViolation {
    /// The operator does not allow the class.
    #[error(
        "annotation {key} asks for class {class}, which the operator does not allow; {line} under [annotations] in {file} would allow it"
    )]
    NotAllowed {
        /// The annotation's key, quoted.
        key: String,
        /// The class.
        class: Class,
        /// The configuration line that would allow it.
        line: String,
        /// The configuration file.
        file: String,
    },
    /// CAP_IPC_LOCK without a class that needs it.
    #[error(
        "annotation {key} has no effect without rdma, vfio, zf or hugepages, since nothing else locks memory; remove it"
    )]
    IpcLockAlone {
        /// The annotation's key, quoted.
        key: String,
    },
    /// The preload without a class that has one.
    #[error(
        "annotation {key} has no effect without onload.dev/nic, since there is nothing to preload; remove it"
    )]
    PreloadAlone {
        /// The annotation's key, quoted.
        key: String,
    },
    /// The host's root with Onload.
    #[error(
        "annotation {key}: {}, which root-with-onload = \"refuse\" in {file} forbids since the host's user 0 can map every Onload stack of the host; {}",
        .root.cause(),
        .root.remedy()
    )]
    RootWithOnload {
        /// The annotation's key, quoted.
        key: String,
        /// How it is the host's user 0, or becomes it.
        root: HostRoot,
        /// The configuration file.
        file: String,
    },
}

/// Checks a request against the operator's policy, and returns warnings.
///
/// # Errors
/// [`PolicyViolation`] names the annotation, the file and the remedy.
pub fn check(
    request: &Request,
    policy: &Annotations,
    file: &Path,
    root: &HostRoot,
) -> Result<Vec<String>, PolicyViolation> {
    for (class, asked) in &request.devices {
        allowed(*class, &asked.key, policy, file)?;
    }
    // The container's own limit could be higher than the one that the engine set.
    if let Some(asked) = &request.hugepages_limit {
        allowed(Class::Hugepages, &asked.key, policy, file)?;
    }
    if let Some(asked) = &request.ipc_lock
        && !request.wants(&IPC_LOCK)
    {
        return Err(PolicyViolation::IpcLockAlone {
            key: Quoted(&asked.key).to_string(),
        });
    }
    if let Some(asked) = &request.preload
        && asked.value != crate::config::Preload::Off
        && !request.wants(&[Class::Nic])
    {
        return Err(PolicyViolation::PreloadAlone {
            key: Quoted(&asked.key).to_string(),
        });
    }
    root_with_onload(request, policy.root_with_onload, file, root)
}

fn allowed(
    class: Class,
    key: &str,
    policy: &Annotations,
    file: &Path,
) -> Result<(), PolicyViolation> {
    if policy.allow.contains(&class) {
        return Ok(());
    }
    let classes: Vec<String> = policy
        .allow
        .iter()
        .chain([&class])
        .map(|class| format!("\"{class}\""))
        .collect();
    Err(PolicyViolation::NotAllowed {
        key: Quoted(key).to_string(),
        class,
        line: format!("allow = [{}]", classes.join(", ")),
        file: file.display().to_string(),
    })
}

fn root_with_onload(
    request: &Request,
    policy: RootWithOnload,
    file: &Path,
    root: &HostRoot,
) -> Result<Vec<String>, PolicyViolation> {
    let Some(asked) = ONLOAD.iter().find_map(|class| request.devices.get(class)) else {
        return Ok(Vec::new());
    };
    let key = Quoted(&asked.key).to_string();
    match (policy, root) {
        (RootWithOnload::Warn, HostRoot::Is) => Ok(vec![format!(
            "annotation {key}: this container's user 0 is the host's and can map every Onload stack of the host"
        )]),
        (RootWithOnload::Allow | RootWithOnload::Warn, _) | (_, HostRoot::No) => Ok(Vec::new()),
        (RootWithOnload::Refuse, root) => Err(PolicyViolation::RootWithOnload {
            key,
            root: root.clone(),
            file: file.display().to_string(),
        }),
    }
}

impl HostRoot {
    fn cause(&self) -> String {
        match self {
            HostRoot::No => "this container's process is not the host's user 0".to_owned(),
            HostRoot::Is => "this container's process is the host's user 0".to_owned(),
            HostRoot::BySetUserId => {
                "a set-user-ID program would make this container's user the host's user 0"
                    .to_owned()
            }
            HostRoot::ByCapability(name) => {
                format!("{name} can make this container's user the host's user 0")
            }
            HostRoot::Unseen(path) if path.is_empty() => {
                "this container's user namespace has no mappings".to_owned()
            }
            HostRoot::Unseen(path) => format!(
                "it cannot be determined which users the namespace {} maps to the host's user 0",
                Quoted(path)
            ),
        }
    }

    fn remedy(&self) -> String {
        match self {
            HostRoot::ByCapability(name) => {
                format!("drop {name}, or run the container in a user namespace")
            }
            HostRoot::Unseen(_) => {
                "give it a user namespace of its own, or run it as another user with no-new-privileges in the host's"
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
        let all: BTreeMap<String, String> = pairs
            .iter()
            .map(|(k, v)| (format!("onload.dev/{k}"), (*v).to_owned()))
            .collect();
        Request::parse(&all).unwrap().unwrap()
    }

    fn policy(allow: &[Class]) -> Annotations {
        Annotations {
            allow: allow.to_vec(),
            ..Annotations::default()
        }
    }

    fn verdict(
        pairs: &[(&str, &str)],
        policy: &Annotations,
        root: bool,
    ) -> Result<Vec<String>, String> {
        let root = if root { HostRoot::Is } else { HostRoot::No };
        check(&request(pairs), policy, Path::new("/etc/c.toml"), &root)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_allowed_unasked() {
        for class in Class::ALL {
            let message = verdict(&[(class.as_str(), "all")], &policy(&[]), false).unwrap_err();
            assert!(
                message.contains(&format!("allow = [\"{class}\"]")),
                "{message}"
            );
            assert!(
                message.contains("/etc/c.toml") && message.contains("onload.dev/"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_class_is_allowed_by_its_own_name_only() {
        let message = verdict(&[("nic", "all")], &policy(&[Class::NicPlain]), false).unwrap_err();
        assert!(
            message.contains("allow = [\"nic-plain\", \"nic\"]"),
            "{message}"
        );
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
            let refused = verdict(
                &[("ipc-lock", "true"), (class.as_str(), "x")],
                &policy(&[]),
                false,
            );
            assert!(refused.unwrap_err().contains("does not allow"));
        }
    }

    #[test]
    fn a_preload_needs_something_to_preload() {
        let all = policy(&Class::ALL);
        assert!(verdict(&[("preload", "env"), ("rdma", "x")], &all, false).is_err());
        verdict(&[("preload", "off"), ("rdma", "x")], &all, false).unwrap();
        verdict(&[("preload", "file"), ("nic", "x")], &all, false).unwrap();
    }

    #[test]
    fn the_host_s_root_with_onload_is_the_operator_s_choice() {
        let mut policy = policy(&Class::ALL);
        for class in ONLOAD {
            let ask = [(class.as_str(), "all")];
            policy.root_with_onload = RootWithOnload::Warn;
            assert_eq!(verdict(&ask, &policy, true).unwrap().len(), 1);
            assert_eq!(verdict(&ask, &policy, false).unwrap().len(), 0);
            policy.root_with_onload = RootWithOnload::Refuse;
            assert!(
                verdict(&ask, &policy, true)
                    .unwrap_err()
                    .contains("root-with-onload")
            );
            verdict(&ask, &policy, false).unwrap();
            policy.root_with_onload = RootWithOnload::Allow;
            assert_eq!(verdict(&ask, &policy, true).unwrap().len(), 0);
        }
        policy.root_with_onload = RootWithOnload::Refuse;
        verdict(&[("rdma", "all")], &policy, true).unwrap();
    }

    #[test]
    fn every_way_to_the_host_s_root_is_refused_with_its_remedy() {
        let mut policy = policy(&Class::ALL);
        for (root, cause, remedy) in [
            (HostRoot::Is, "is the host's user 0", "user namespace"),
            (HostRoot::BySetUserId, "set-user-ID", "no-new-privileges"),
            (
                HostRoot::ByCapability("CAP_SYS_ADMIN"),
                "CAP_SYS_ADMIN can make",
                "drop CAP_SYS_ADMIN",
            ),
            (
                HostRoot::Unseen("/run/userns/x".to_owned()),
                "\"/run/userns/x\"",
                "namespace of its own",
            ),
        ] {
            let ask = request(&[("nic", "all")]);
            let file = Path::new("/etc/c.toml");
            policy.root_with_onload = RootWithOnload::Refuse;
            let refused = check(&ask, &policy, file, &root).unwrap_err().to_string();
            for part in [cause, remedy, "root-with-onload", "/etc/c.toml"] {
                assert!(refused.contains(part), "{refused}");
            }
            policy.root_with_onload = RootWithOnload::Warn;
            let warned = check(&ask, &policy, file, &root).unwrap();
            assert_eq!(warned.is_empty(), root != HostRoot::Is);
        }
    }
}
