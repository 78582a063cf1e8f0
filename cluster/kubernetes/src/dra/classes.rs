//! What the API server says of our DeviceClasses. It is asked once, and tells from then on what changes: a cluster
//! where nothing changes is not asked again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use http::StatusCode;
use k8s_openapi::api::resource::v1::DeviceClass;
use onload_core::class::Class;
use onload_core::text::Chain;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;

use super::DRIVER;
use super::api::{Api, ApiError, Change, Watch};
use crate::plugin::Backoff;

/// Whether the server serves pods by DRA that ask for the old resource of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It does.
    Yes,
    /// It has dropped the name, or has no such DeviceClass: packaging/kubernetes/dra is not there yet.
    No,
    /// It does not say, as before 1.34 or without the right to ask.
    Refused,
}

/// What is known of the DeviceClasses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The server does not say.
    Refused,
    /// The classes that are there, and whether their old name is.
    Classes(BTreeMap<Class, bool>),
}

impl Told {
    /// What is known of one; none if nothing is.
    pub(super) fn of(&self, class: Class) -> Option<Kept> {
        match self {
            Told::Nothing => None,
            Told::Refused => Some(Kept::Refused),
            Told::Classes(classes) => match classes.get(&class) {
                Some(true) => Some(Kept::Yes),
                Some(false) | None => Some(Kept::No),
            },
        }
    }
}

/// Whether the server serves something to nobody, or not to this program. A token that it does not take is not that:
/// it says nothing about what there is.
pub(super) fn is_refused(error: &ApiError) -> bool {
    let status = error.status();
    status == Some(StatusCode::FORBIDDEN) || status == Some(StatusCode::NOT_FOUND)
}

/// Tells what the server says, until nobody wants to know. A server that refuses is asked again after `refused`:
/// rights may come, and it does not tell of them. What was told stays when it cannot be reached.
pub(super) async fn tell(api: Api, refused: Duration, to: watch::Sender<Told>) {
    let mut backoff = Backoff::default();
    let mut said = String::new();
    loop {
        let begun = Instant::now();
        let Err(error) = follow(&api, &to).await;
        backoff.held(begun.elapsed());
        let wait = match is_refused(&error) {
            true => {
                send(&to, Told::Refused);
                refused
            }
            false => backoff.next().max(error.retry_after().unwrap_or_default()),
        };
        say(&error, &mut said);
        tokio::select! {
            () = sleep(wait) => {}
            () = to.closed() => return,
        }
    }
}

/// Once, however often it is tried.
fn say(error: &ApiError, said: &mut String) {
    let reason = Chain(error).to_string();
    if *said == reason || error.is_gone() {
        return;
    }
    match is_refused(error) {
        true => {
            tracing::info!(%reason, "whether DRA can offer devices is not known; they stay where they are");
        }
        false => {
            tracing::warn!(error = %reason, "what DeviceClasses there are is not known; trying again");
        }
    }
    *said = reason;
}

/// From one list to an error.
async fn follow(api: &Api, to: &watch::Sender<Told>) -> Result<Infallible, ApiError> {
    let mut classes = BTreeMap::new();
    let each = |found: DeviceClass| {
        if let Some(class) = found.metadata.name.as_deref().and_then(of_name) {
            let kept = found.spec.extended_resource_name;
            classes.insert(class, kept == Some(class.kind()));
        }
    };
    let version = api.device_classes(each).await?;
    send(to, Told::Classes(classes.clone()));
    let mut watch = api.watch_device_classes(&version).await?;
    loop {
        match watch.next_object().await? {
            Some((change, object)) => {
                note(&mut classes, change, &object);
                send(to, Told::Classes(classes.clone()));
            }
            None => watch = again(api, &watch).await?,
        }
    }
}

/// A watch has its end after a while, and goes on from there.
async fn again(api: &Api, watch: &Watch) -> Result<Watch, ApiError> {
    sleep(Backoff::default().next()).await;
    api.watch_device_classes(watch.version()).await
}

fn note(classes: &mut BTreeMap<Class, bool>, change: Change, object: &Value) {
    let Some(class) = object["metadata"]["name"].as_str().and_then(of_name) else {
        return;
    };
    match change {
        Change::Applied => {
            let kept = &object["spec"]["extendedResourceName"];
            classes.insert(class, *kept == class.kind());
        }
        Change::Deleted => {
            classes.remove(&class);
        }
        Change::Bookmark => {}
    }
}

/// The class whose DeviceClass has that name in packaging/kubernetes/dra.
fn of_name(name: &str) -> Option<Class> {
    let class = name.strip_suffix(DRIVER)?.strip_suffix('.')?;
    Class::ALL.into_iter().find(|known| known.as_str() == class)
}

fn send(to: &watch::Sender<Told>, told: Told) {
    to.send_if_modified(|before| {
        let differs = *before != told;
        *before = told;
        differs
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_name_of_a_device_class_is_that_of_a_class_before_the_driver() {
        for class in Class::ALL {
            assert_eq!(of_name(&format!("{class}.onload.dev")), Some(class));
        }
        for other in [
            "nic",
            "nic.example.com",
            "onload.dev",
            "x.onload.dev",
            "nic-onload.dev",
        ] {
            assert_eq!(of_name(other), None, "{other}");
        }
    }

    #[test]
    fn what_the_watch_tells_of_ours_is_noted_and_nothing_else() {
        let object = |name: &str, resource: &str| json!({"metadata": {"name": name}, "spec": {"extendedResourceName": resource}});
        let mut classes = BTreeMap::new();
        let mut noted = |change, object: &Value| {
            note(&mut classes, change, object);
            Told::Classes(classes.clone()).of(Class::Nic)
        };
        let ours = object("nic.onload.dev", "onload.dev/nic");
        let other = object("nic.example.com", "onload.dev/nic");
        assert_eq!(noted(Change::Applied, &other), Some(Kept::No));
        assert_eq!(noted(Change::Applied, &ours), Some(Kept::Yes));
        assert_eq!(noted(Change::Deleted, &other), Some(Kept::Yes));
        assert_eq!(noted(Change::Bookmark, &json!({})), Some(Kept::Yes));
        let renamed = object("nic.onload.dev", "example.com/nic");
        assert_eq!(noted(Change::Applied, &renamed), Some(Kept::No));
        assert_eq!(noted(Change::Applied, &ours), Some(Kept::Yes));
        assert_eq!(noted(Change::Deleted, &ours), Some(Kept::No));
    }

    #[test]
    fn nothing_is_said_of_a_class_before_the_server_has_said_something() {
        assert_eq!(Told::Nothing.of(Class::Nic), None);
        assert_eq!(Told::Refused.of(Class::Nic), Some(Kept::Refused));
        assert_eq!(
            Told::Classes(BTreeMap::new()).of(Class::Nic),
            Some(Kept::No)
        );
    }
}
