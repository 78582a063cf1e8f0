//! The DeviceClasses of the API server, listed once and then watched.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use http::StatusCode;
use k8s_openapi::api::resource::v1::DeviceClass;
use kube_client::core::WatchEvent;
use onload_agent::{Backoff, LastMessage};
use onload_core::class::Class;
use tokio::sync::watch;
use tokio::time::sleep;

use super::DRIVER;
use super::api::{Api, ApiError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceClasses {
    #[default]
    Nothing,
    /// The server rejects the request, as before 1.34 or without permission.
    Refused,
    /// The `extendedResourceName` of each DeviceClass that has one, by the name of the class.
    Classes(BTreeMap<String, String>),
}

impl DeviceClasses {
    /// Returns whether DRA serves pods that request a resource, or `None` if unknown.
    pub(super) fn is_served(&self, resource: &str) -> Option<bool> {
        match self {
            DeviceClasses::Nothing | DeviceClasses::Refused => None,
            DeviceClasses::Classes(classes) => Some(classes.values().any(|name| name == resource)),
        }
    }

    /// Returns the resource that pods request to get devices of a DeviceClass. If our DeviceClasses are unknown, those
    /// of packaging/kubernetes/dra are assumed.
    pub(super) fn resource_of(&self, device_class: &str) -> Option<String> {
        if let DeviceClasses::Classes(classes) = self {
            return classes.get(device_class).cloned();
        }
        let class = device_class.strip_suffix(DRIVER)?.strip_suffix('.')?;
        let known = Class::ALL.into_iter().find(|known| known.as_str() == class)?;
        Some(known.cdi_kind())
    }
}

/// Returns whether the server does not have something or does not allow it to this program. A rejected token does not
/// count, since it says nothing about the API.
pub(super) fn is_refused(error: &ApiError) -> bool {
    let status = error.status();
    status == Some(StatusCode::FORBIDDEN) || status == Some(StatusCode::NOT_FOUND)
}

/// Publishes the DeviceClasses until there is no receiver. After a rejection the request is repeated after `refused`,
/// since permissions may be granted later. While the server cannot be reached, the last state is kept.
pub(super) async fn watch_classes(api: Api, refused: Duration, to: watch::Sender<DeviceClasses>) {
    let mut backoff = Backoff::default();
    let mut last_message = LastMessage::default();
    loop {
        let begun = Instant::now();
        let Err(error) = watch_once(&api, &to).await;
        backoff.record_success(begun.elapsed());
        let wait = if is_refused(&error) {
            send(&to, DeviceClasses::Refused);
            refused
        } else {
            backoff.next().max(error.retry_after().unwrap_or_default())
        };
        error.warn_once(&mut last_message, "listing the DeviceClasses failed; trying again");
        tokio::select! {
            () = sleep(wait) => {}
            () = to.closed() => return,
        }
    }
}

async fn watch_once(api: &Api, to: &watch::Sender<DeviceClasses>) -> Result<Infallible, ApiError> {
    let mut classes = BTreeMap::new();
    let each = |class: DeviceClass| {
        let named = class.metadata.name.zip(class.spec.extended_resource_name);
        classes.extend(named);
    };
    let version = api.visit_device_classes(each).await?;
    send(to, DeviceClasses::Classes(classes.clone()));
    let mut watch = api.watch_device_classes(&version).await?;
    loop {
        match watch.next().await? {
            Some(event) => {
                apply_event(&mut classes, event);
                send(to, DeviceClasses::Classes(classes.clone()));
            }
            // The server ends watches after a while, and another one continues.
            None => {
                sleep(Backoff::default().next()).await;
                watch = api.watch_device_classes(watch.version()).await?;
            }
        }
    }
}

fn apply_event(classes: &mut BTreeMap<String, String>, event: WatchEvent<DeviceClass>) {
    let (class, is_there) = match event {
        WatchEvent::Added(class) | WatchEvent::Modified(class) => (class, true),
        WatchEvent::Deleted(class) => (class, false),
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return,
    };
    let name = class.metadata.name.unwrap_or_default();
    match class.spec.extended_resource_name {
        Some(resource) if is_there => classes.insert(name, resource),
        _ => classes.remove(&name),
    };
}

/// Sends a value if it has changed.
pub(super) fn send<T: PartialEq>(to: &watch::Sender<T>, now: T) {
    to.send_if_modified(|before| {
        let differs = *before != now;
        *before = now;
        differs
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn classes(named: &[(&str, &str)]) -> DeviceClasses {
        let named =
            named.iter().map(|(name, resource)| ((*name).to_owned(), (*resource).to_owned()));
        DeviceClasses::Classes(named.collect())
    }

    #[test]
    fn a_resource_is_served_where_any_class_has_its_name() {
        let classes_seen = classes(&[("fast.example.com", "amd.com/onload")]);
        assert_eq!(classes_seen.is_served("amd.com/onload"), Some(true));
        assert_eq!(classes_seen.is_served("onload.dev/fast"), Some(false));
        assert_eq!(DeviceClasses::Nothing.is_served("amd.com/onload"), None);
        assert_eq!(DeviceClasses::Refused.is_served("amd.com/onload"), None);
    }

    #[test]
    fn the_resource_of_a_class_is_what_the_server_says_and_else_that_of_ours() {
        let classes_seen =
            classes(&[("nic.onload.dev", "amd.com/onload"), ("x.example.com", "a.b/c")]);
        let resource = |classes_seen: &DeviceClasses, class: &str| {
            classes_seen.resource_of(class).unwrap_or_default()
        };
        assert_eq!(resource(&classes_seen, "nic.onload.dev"), "amd.com/onload");
        assert_eq!(resource(&classes_seen, "x.example.com"), "a.b/c");
        assert_eq!(resource(&classes_seen, "vfio.onload.dev"), "");
        for classes_seen in [DeviceClasses::Nothing, DeviceClasses::Refused] {
            assert_eq!(resource(&classes_seen, "vfio.onload.dev"), "onload.dev/vfio");
            for other in ["nic", "nic.example.com", "onload.dev", "x.onload.dev"] {
                assert_eq!(resource(&classes_seen, other), "", "{other}");
            }
        }
    }

    #[test]
    fn what_the_watch_tells_of_ours_is_noted_and_no_other_class_is_taken_for_it() {
        let event = |kind: &str, name: &str, resource: &str| {
            let object =
                json!({"metadata": {"name": name}, "spec": {"extendedResourceName": resource}});
            serde_json::from_value(json!({"type": kind, "object": object})).unwrap()
        };
        let mut classes = BTreeMap::new();
        let mut noted = |event| {
            apply_event(&mut classes, event);
            DeviceClasses::Classes(classes.clone()).is_served("onload.dev/nic") == Some(true)
        };
        let ours = |kind| event(kind, "nic.onload.dev", "onload.dev/nic");
        let other = |kind| event(kind, "nic.example.com", "example.com/nic");
        let mark = json!({"kind": "", "apiVersion": "", "metadata": {"resourceVersion": "9"}});
        assert!(!noted(other("ADDED")));
        assert!(noted(ours("ADDED")));
        assert!(noted(other("DELETED")));
        let bookmark = WatchEvent::Bookmark(serde_json::from_value(mark).unwrap());
        assert!(noted(bookmark));
        let renamed = event("MODIFIED", "nic.onload.dev", "example.com/nic");
        assert!(!noted(renamed));
        assert!(noted(ours("MODIFIED")));
        assert!(!noted(ours("DELETED")));
    }
}
