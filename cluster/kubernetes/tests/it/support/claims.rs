//! An API server that knows claims and nothing else, and a kubeconfig that names it.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as Parts, State};
use axum::http::StatusCode;
use axum::routing::get;
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
        });
        let path = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}";
        let router = Router::new().route(path, get(claim));
        let router = router.with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        ClaimServer {
            shared,
            address,
            server,
        }
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
