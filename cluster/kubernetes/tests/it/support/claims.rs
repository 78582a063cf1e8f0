//! An API server that knows claims and Events and nothing else, and a kubeconfig that names it.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as Parts, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, patch, post};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::api_server::absent;

#[derive(Debug)]
struct Shared {
    claims: Mutex<BTreeMap<String, Value>>,
    /// How the next requests are answered, before the claims are looked at.
    odd: Mutex<VecDeque<Odd>>,
    asked: Mutex<Vec<String>>,
    answers: Semaphore,
    written: Mutex<Vec<Written>>,
    /// Writes are answered when they may.
    writes: Semaphore,
    refuses_writes: AtomicBool,
    /// Somebody else changes what is written next at the same time.
    conflicts: AtomicBool,
}

/// What the driver has written: to the status of a claim, or an Event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) verb: &'static str,
    /// NAMESPACE/NAME of the claim or of the Event.
    pub(crate) object: String,
    pub(crate) body: Value,
}

/// A 404 whose claim may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    /// Of a proxy, or of a server that does not know the API.
    PageNotFound,
    /// Of a server that says for a moment that it has no such claim.
    NotYet,
}

pub(crate) struct ClaimServer {
    shared: Arc<Shared>,
    address: String,
    server: JoinHandle<()>,
}

impl ClaimServer {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared {
            claims: Mutex::default(),
            odd: Mutex::default(),
            asked: Mutex::default(),
            answers: Semaphore::new(Semaphore::MAX_PERMITS),
            written: Mutex::default(),
            writes: Semaphore::new(Semaphore::MAX_PERMITS),
            refuses_writes: AtomicBool::new(false),
            conflicts: AtomicBool::new(false),
        });
        let path = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}";
        let events = "/apis/events.k8s.io/v1/namespaces/{namespace}/events";
        let router = Router::new()
            .route(path, get(claim))
            .route(&format!("{path}/status"), patch(status))
            .route(events, post(event))
            .route(&format!("{events}/{{name}}"), patch(again))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        ClaimServer { shared, address, server }
    }

    pub(crate) fn kubeconfig(&self, dir: &Path) -> PathBuf {
        let path = dir.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.address}}],
            "users": [{"name": "test", "user": {"token": "t"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    pub(crate) fn put(&self, claim: Value) {
        let key = format!(
            "{}/{}",
            claim["metadata"]["namespace"].as_str().unwrap(),
            claim["metadata"]["name"].as_str().unwrap()
        );
        self.shared.claims.lock().unwrap().insert(key, claim);
    }

    pub(crate) fn delete(&self, namespace: &str, name: &str) {
        let key = format!("{namespace}/{name}");
        self.shared.claims.lock().unwrap().remove(&key).unwrap();
    }

    pub(crate) fn answer_once(&self, odd: Odd) {
        self.shared.odd.lock().unwrap().push_back(odd);
    }

    pub(crate) fn asked(&self) -> usize {
        self.shared.asked.lock().unwrap().len()
    }

    /// Waits until so many requests have come.
    pub(crate) async fn until_asked(&self, number: usize) {
        let wait = async {
            while self.asked() < number {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let waited = tokio::time::timeout(super::PATIENCE, wait).await;
        assert!(waited.is_ok(), "asked {} times", self.asked());
    }

    pub(crate) fn written(&self) -> Vec<Written> {
        self.shared.written.lock().unwrap().clone()
    }

    /// Waits until what was written is so.
    pub(crate) async fn until_written(&self, is_so: impl Fn(&[Written]) -> bool) {
        let wait = async {
            while !is_so(&self.written()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(super::PATIENCE, wait).await;
        assert!(waited.is_ok(), "{:#?}", self.written());
    }

    /// The devices in the status of a claim.
    pub(crate) fn devices(&self, name: &str) -> Value {
        let claims = self.shared.claims.lock().unwrap();
        claims[&format!("default/{name}")]["status"]["devices"].clone()
    }

    /// Answers no write from now on, until it may.
    pub(crate) fn hold_writes(&self) {
        self.shared.writes.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(crate) fn go_on_with_writes(&self) {
        self.shared.writes.add_permits(1_000_000);
    }

    /// The driver has no right to write any more.
    pub(crate) fn refuse_writes(&self) {
        self.shared.refuses_writes.store(true, Ordering::Relaxed);
    }

    /// The next write is answered that somebody else was faster.
    pub(crate) fn conflict_once(&self) {
        self.shared.conflicts.store(true, Ordering::Relaxed);
    }

    /// Answers nothing from now on, until it may.
    pub(crate) fn hold(&self) {
        self.shared.answers.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(crate) fn go_on(&self) {
        self.shared.answers.add_permits(1_000_000);
    }
}

impl Drop for ClaimServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn claim(
    State(shared): State<Arc<Shared>>,
    Parts((namespace, name)): Parts<(String, String)>,
) -> Result<String, (StatusCode, String)> {
    let key = format!("{namespace}/{name}");
    shared.asked.lock().unwrap().push(key.clone());
    shared.answers.acquire().await.unwrap().forget();
    let claims = shared.claims.lock().unwrap();
    let absent = || absent("resourceclaims", &name).to_string();
    let odd = shared.odd.lock().unwrap().pop_front();
    let refused = match (odd, claims.get(&key)) {
        (Some(Odd::PageNotFound), _) => "404 page not found\n".to_owned(),
        (Some(Odd::NotYet), _) | (None, None) => absent(),
        (None, Some(claim)) => return Ok(claim.to_string()),
    };
    Err((StatusCode::NOT_FOUND, refused))
}

type Answer = Result<String, (StatusCode, String)>;

async fn note(
    shared: &Shared,
    verb: &'static str,
    object: String,
    body: &str,
) -> Result<Value, (StatusCode, String)> {
    let body: Value = serde_json::from_str(body).unwrap();
    let written = Written { verb, object, body: body.clone() };
    shared.written.lock().unwrap().push(written);
    shared.writes.acquire().await.unwrap().forget();
    if shared.refuses_writes.load(Ordering::Relaxed) {
        return Err(refusal(403, "Forbidden", "it has no right to"));
    }
    if shared.conflicts.swap(false, Ordering::Relaxed) {
        let message = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(refusal(409, "Conflict", message));
    }
    Ok(body)
}

fn refusal(code: u16, reason: &str, message: &str) -> (StatusCode, String) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": code});
    (StatusCode::from_u16(code).unwrap(), status.to_string())
}

/// Server-side apply of the devices that the driver has.
async fn status(
    State(shared): State<Arc<Shared>>,
    Parts((namespace, name)): Parts<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: String,
) -> Answer {
    assert_eq!(headers["content-type"], "application/apply-patch+yaml");
    let query = query.unwrap();
    assert!(query.contains("fieldManager=onload.dev") && query.contains("force=true"), "{query}");
    let key = format!("{namespace}/{name}");
    let body = note(&shared, "PATCH", key.clone(), &body).await?;
    assert_eq!((&body["metadata"]["name"], &body["kind"]), (&json!(name), &json!("ResourceClaim")));
    let mut claims = shared.claims.lock().unwrap();
    let Some(claim) = claims.get_mut(&key) else {
        let absent = absent("resourceclaims", &name).to_string();
        return Err((StatusCode::NOT_FOUND, absent));
    };
    if body["metadata"]["uid"] != claim["metadata"]["uid"] {
        return Err(refusal(409, "Conflict", "Precondition failed: UID in precondition"));
    }
    let typed: ResourceClaim = serde_json::from_value(json!({"metadata": {}, "spec": {},
        "status": body["status"]}))
    .unwrap();
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().unwrap();
    for device in typed.status.unwrap().devices.unwrap() {
        let is_it = |result: &&Value| {
            result["driver"] == *device.driver
                && result["pool"] == *device.pool
                && result["device"] == *device.device
                && result["shareID"].as_str() == device.share_id.as_deref()
        };
        assert_eq!(results.iter().filter(is_it).count(), 1, "{device:?}");
        assert!(!device.conditions.unwrap()[0].reason.is_empty());
    }
    claim["status"]["devices"] = body["status"]["devices"].clone();
    Ok(claim.to_string())
}

async fn event(
    State(shared): State<Arc<Shared>>,
    Parts(namespace): Parts<String>,
    body: String,
) -> Answer {
    let typed: Event = serde_json::from_str(&body).unwrap();
    // As the server validates it.
    assert!(typed.event_time.is_some() && typed.metadata.namespace.as_ref() == Some(&namespace));
    assert!(typed.reporting_controller.is_some_and(|name| !name.is_empty()));
    assert!(typed.reporting_instance.is_some_and(|name| (1..=128).contains(&name.len())));
    assert!(typed.note.is_some_and(|note| note.len() <= 1024));
    let object = format!("{namespace}/{}", typed.metadata.name.unwrap());
    Ok(note(&shared, "POST", object, &body).await?.to_string())
}

async fn again(
    State(shared): State<Arc<Shared>>,
    Parts((namespace, name)): Parts<(String, String)>,
    headers: HeaderMap,
    body: String,
) -> Answer {
    assert_eq!(headers["content-type"], "application/merge-patch+json");
    let object = format!("{namespace}/{name}");
    Ok(note(&shared, "PATCH", object, &body).await?.to_string())
}

// json! takes references of what it is given.
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn claim_of(name: &str, uid: &str, results: Value, config: Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": uid},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results, "config": config}}},
    })
}

pub(crate) fn result(request: &str, pool: &str, device: &str) -> Value {
    json!({"request": request, "driver": "onload.dev", "pool": pool, "device": device})
}
