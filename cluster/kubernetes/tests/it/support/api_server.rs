//! An API server: as much of Kubernetes' as a DRA driver meets. It checks method, path, media type, field manager
//! and rights, keeps slices with their resource versions, tells watches what happens, and can be told to go wrong.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use k8s_openapi::api::resource::v1::ResourceSlice;
use onload_core::class::Class;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::limits;

pub(crate) const TOKEN: &str = "token-1";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/resourceclaims";
const HEADS: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Gates {
    pub(crate) consumable: bool,
    pub(crate) taints: bool,
}

impl Gates {
    /// As in 1.36.
    pub(crate) const ON: Gates = Gates { consumable: true, taints: true };
    /// As in 1.34.
    pub(crate) const OFF: Gates = Gates { consumable: false, taints: false };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// DRA is beta, and off as a rule: where it is on, the server has v1beta1 and v1beta2 of it.
    V1_33,
    /// v1; sharing, taints and old manifests by DRA are alpha.
    V1_34,
    V1_36,
}

impl Release {
    /// The versions of resource.k8s.io that the server has.
    fn versions(self) -> &'static [&'static str] {
        match self {
            Release::V1_33 => &["v1beta1", "v1beta2"],
            Release::V1_34 | Release::V1_36 => &["v1beta1", "v1beta2", "v1"],
        }
    }

    fn gates(self) -> Gates {
        match self {
            Release::V1_33 | Release::V1_34 => Gates::OFF,
            Release::V1_36 => Gates::ON,
        }
    }

    fn serves(self, path: &str) -> bool {
        let group = path.strip_prefix("/apis/resource.k8s.io/");
        let version = group.and_then(|rest| rest.split('/').next());
        version.is_none_or(|version| self.versions().contains(&version))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asked {
    /// The verb of the right that it needs: get, list, watch, patch, delete.
    pub(crate) verb: &'static str,
    pub(crate) resource: String,
    pub(crate) name: String,
    pub(crate) is_dry: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) verb: &'static str,
    pub(crate) status: u16,
    pub(crate) retry_after: Option<u32>,
}

struct Watcher {
    /// Of whose slices; none: it watches DeviceClasses.
    node: Option<String>,
    sender: mpsc::UnboundedSender<Bytes>,
}

struct Kept {
    gates: Gates,
    release: Release,
    slices: BTreeMap<String, Value>,
    claims: BTreeMap<String, Value>,
    classes: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    /// What each Node counts.
    allocatable: BTreeMap<String, String>,
    kubelet_version: String,
    /// How often the Nodes were registered; none while they are deleted.
    registered: Option<u32>,
    version: u64,
    history: Vec<(u64, &'static str, Value)>,
    class_history: Vec<(u64, &'static str, Value)>,
    known_from: u64,
    tokens: BTreeSet<String>,
    rights: BTreeSet<(&'static str, &'static str)>,
    /// The node that a token belongs to; none: any.
    bound: Option<String>,
    faults: VecDeque<Fault>,
    delay: Duration,
    asked: Vec<Asked>,
    watchers: Vec<Watcher>,
    webhook: Option<fn(&mut Value)>,
}

pub(crate) struct ApiServer {
    kept: Arc<Mutex<Kept>>,
    changes: watch::Sender<u64>,
    pub(crate) address: String,
    _dir: tempfile::TempDir,
    pub(crate) token: PathBuf,
    pub(crate) kubeconfig: PathBuf,
}

#[derive(Clone)]
struct Shared {
    kept: Arc<Mutex<Kept>>,
    changes: watch::Sender<u64>,
}

pub(crate) const RIGHTS: [(&str, &str); 14] = [
    ("get", "nodes"),
    ("list", "deviceclasses"),
    ("watch", "deviceclasses"),
    ("list", "resourceslices"),
    ("watch", "resourceslices"),
    ("patch", "resourceslices"),
    ("create", "resourceslices"),
    ("delete", "resourceslices"),
    ("get", "resourceclaims"),
    ("list", "resourceclaims"),
    ("patch", "resourceclaims/status"),
    ("associated-node:patch", "resourceclaims/driver"),
    ("create", "events"),
    ("patch", "events"),
];

impl ApiServer {
    pub(crate) async fn start(gates: Gates) -> ApiServer {
        ApiServer::with(Release::V1_36, gates).await
    }

    pub(crate) async fn for_release(release: Release) -> ApiServer {
        ApiServer::with(release, release.gates()).await
    }

    async fn with(release: Release, gates: Gates) -> ApiServer {
        let kept = Kept {
            gates,
            release,
            slices: BTreeMap::new(),
            claims: BTreeMap::new(),
            classes: BTreeMap::new(),
            pods: BTreeMap::new(),
            allocatable: BTreeMap::new(),
            kubelet_version: "v1.36.2".to_owned(),
            registered: Some(1),
            version: 100,
            history: Vec::new(),
            class_history: Vec::new(),
            known_from: 0,
            tokens: BTreeSet::from([TOKEN.to_owned()]),
            rights: BTreeSet::from(RIGHTS),
            bound: None,
            faults: VecDeque::new(),
            delay: Duration::ZERO,
            asked: Vec::new(),
            watchers: Vec::new(),
            webhook: None,
        };
        let kept = Arc::new(Mutex::new(kept));
        let (changes, _) = watch::channel(0);
        let shared = Shared { kept: Arc::clone(&kept), changes: changes.clone() };
        let app = Router::new().fallback(answer).with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, TOKEN).unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, kubeconfig_of(&address, Path::new("token"))).unwrap();
        ApiServer { kept, changes, address, _dir: dir, token, kubeconfig }
    }

    pub(crate) fn kubeconfig_with(&self, token: &Path) -> String {
        kubeconfig_of(&self.address, token)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap()
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Other features, as after an update of the server.
    pub(crate) fn set_gates(&self, gates: Gates) {
        self.kept().gates = gates;
    }

    pub(crate) fn slices(&self) -> BTreeMap<String, ResourceSlice> {
        let kept = self.kept();
        let slices = kept.slices.iter();
        let typed = |object: &Value| serde_json::from_value(object.clone()).unwrap();
        slices.map(|(name, slice)| (name.clone(), typed(slice))).collect()
    }

    pub(crate) fn slice(&self, name: &str) -> Option<ResourceSlice> {
        let slice = self.kept().slices.get(name).cloned();
        slice.map(|slice| serde_json::from_value(slice).unwrap())
    }

    /// Waits until a slice is so.
    pub(crate) async fn until_slice(&self, name: &str, is_so: impl Fn(&ResourceSlice) -> bool) {
        let mut changes = self.changes.subscribe();
        let wait = async {
            while !self.slice(name).is_some_and(|slice| is_so(&slice)) {
                changes.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(super::PATIENCE, wait).await.is_err() {
            panic!("{name} never is as expected: {:?}", self.slice(name));
        }
    }

    /// Waits until the slices are so. A failing test waits for long.
    pub(crate) async fn until(&self, is_so: impl Fn(&BTreeMap<String, ResourceSlice>) -> bool) {
        let mut changes = self.changes.subscribe();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if is_so(&self.slices()) {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(super::PATIENCE, wait).await.is_err() {
            let slices = serde_json::to_string_pretty(&self.slices()).unwrap();
            panic!("the slices never are as expected: {slices}\n{:?}", self.asked());
        }
    }

    /// Waits until what was asked is so.
    pub(crate) async fn until_asked(&self, is_so: impl Fn(&[Asked]) -> bool) {
        let mut changes = self.changes.subscribe();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if is_so(&self.asked()) {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(super::PATIENCE, wait).await.is_err() {
            panic!("it never is asked as expected: {:?}", self.asked());
        }
    }

    /// What was asked since it was forgotten.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.kept().asked.clone()
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for asked in &self.kept().asked {
            let dry = if asked.is_dry { " (dry run)" } else { "" };
            let key = format!("{} {}{dry}", asked.verb, asked.resource);
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    pub(crate) fn forget_asked(&self) {
        self.kept().asked.clear();
    }

    pub(crate) fn fail(&self, verb: &'static str, status: u16, retry_after: Option<u32>) {
        self.kept().faults.push_back(Fault { verb, status, retry_after });
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.kept().faults.is_empty()
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.kept().delay = delay;
    }

    pub(crate) fn set_webhook(&self, webhook: fn(&mut Value)) {
        self.kept().webhook = Some(webhook);
    }

    pub(crate) fn replace_token(&self, token: &str) {
        self.kept().tokens = BTreeSet::from([token.to_owned()]);
    }

    /// The token belongs to a pod of that node, and the policy of packaging/kubernetes is in force.
    pub(crate) fn bind(&self, node: &str) {
        self.kept().bound = Some(node.to_owned());
    }

    pub(crate) fn take_right(&self, verb: &'static str, resource: &'static str) {
        assert!(self.kept().rights.remove(&(verb, resource)));
    }

    pub(crate) fn give_right(&self, verb: &'static str, resource: &'static str) {
        self.kept().rights.insert((verb, resource));
    }

    pub(crate) fn put_claim(&self, namespace: &str, name: &str, claim: Value) {
        self.kept().claims.insert(format!("{namespace}/{name}"), claim);
    }

    pub(crate) fn delete_claim(&self, namespace: &str, name: &str) {
        self.kept().claims.remove(&format!("{namespace}/{name}"));
    }

    pub(crate) fn put_allocatable(&self, resource: &str, amount: &str) {
        let amount = amount.to_owned();
        self.kept().allocatable.insert(resource.to_owned(), amount);
    }

    /// What kubelets tell of their version.
    pub(crate) fn set_kubelet_version(&self, version: &str) {
        self.kept().kubelet_version = version.to_owned();
    }

    /// Deletes the Nodes, and the garbage collector the slices of one, or registers them for the nth time.
    pub(crate) fn set_registered(&self, times: Option<u32>, node: &str) {
        self.kept().registered = times;
        if times.is_none() {
            self.delete_slices_of(node);
        }
    }

    pub(crate) fn put_pod(&self, name: &str, pod: Value) {
        self.kept().pods.insert(name.to_owned(), pod);
    }

    pub(crate) fn delete_pod(&self, name: &str) {
        self.kept().pods.remove(name);
    }

    /// Writes a DeviceClass. A server before 1.36 drops the name of its resource.
    pub(crate) fn put_class(&self, name: &str, mut class: Value) {
        let mut kept = self.kept();
        if kept.release != Release::V1_36 {
            let spec = class["spec"].as_object_mut().unwrap();
            spec.remove("extendedResourceName");
        }
        kept.version += 1;
        class["metadata"]["resourceVersion"] = kept.version.to_string().into();
        let old = kept.classes.insert(name.to_owned(), class.clone());
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        publish_class(&mut kept, kind, &class);
    }

    pub(crate) fn put_classes(&self) {
        for class in Class::ALL {
            let name = format!("{class}.onload.dev");
            let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
                "metadata": {"name": name}, "spec": {"extendedResourceName": class.cdi_kind()}});
            self.put_class(&name, object);
        }
    }

    pub(crate) fn delete_class(&self, name: &str) {
        let mut kept = self.kept();
        kept.version += 1;
        let mut class = kept.classes.remove(name).unwrap();
        class["metadata"]["resourceVersion"] = kept.version.to_string().into();
        publish_class(&mut kept, "DELETED", &class);
    }

    /// What kubelet does when it starts: all slices of the node go.
    pub(crate) fn delete_slices_of(&self, node: &str) {
        let mut kept = self.kept();
        let names: Vec<String> = kept
            .slices
            .iter()
            .filter(|(_, slice)| slice["spec"]["nodeName"] == node)
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            delete(&mut kept, &name);
        }
        drop(kept);
        self.changed();
    }

    pub(crate) fn put_slice(&self, name: &str, mut slice: Value) {
        let mut kept = self.kept();
        slice["metadata"]["name"] = name.into();
        let kind = if kept.slices.contains_key(name) { "MODIFIED" } else { "ADDED" };
        store(&mut kept, name, slice, kind);
        drop(kept);
        self.changed();
    }

    pub(crate) fn delete_slice(&self, name: &str) {
        delete(&mut self.kept(), name);
        self.changed();
    }

    /// Ends all watches, as the server does after a while.
    pub(crate) fn end_watches(&self) {
        self.kept().watchers.clear();
    }

    /// Forgets what happened up to now: a watch from before is refused with 410.
    pub(crate) fn compact(&self) {
        let mut kept = self.kept();
        kept.version += 1;
        kept.known_from = kept.version;
        kept.history.clear();
        kept.class_history.clear();
    }

    pub(crate) fn was_ever(&self, is_so: impl Fn(&ResourceSlice) -> bool) -> bool {
        let kept = self.kept();
        let mut all = kept.history.iter();
        all.any(|(_, _, slice)| is_so(&serde_json::from_value(slice.clone()).unwrap()))
    }

    pub(crate) fn watches(&self) -> usize {
        let mut kept = self.kept();
        kept.watchers.retain(|watcher| !watcher.sender.is_closed());
        kept.watchers.iter().filter(|watcher| watcher.node.is_some()).count()
    }
}

fn store(kept: &mut Kept, name: &str, mut slice: Value, kind: &'static str) {
    kept.version += 1;
    slice["metadata"]["resourceVersion"] = kept.version.to_string().into();
    kept.slices.insert(name.to_owned(), slice.clone());
    publish(kept, kind, &slice);
}

fn delete(kept: &mut Kept, name: &str) -> bool {
    let Some(mut slice) = kept.slices.remove(name) else {
        return false;
    };
    kept.version += 1;
    slice["metadata"]["resourceVersion"] = kept.version.to_string().into();
    publish(kept, "DELETED", &slice);
    true
}

fn publish(kept: &mut Kept, kind: &'static str, slice: &Value) {
    kept.history.push((kept.version, kind, slice.clone()));
    kept.watchers.retain(|watcher| {
        let is_its = watcher.node.as_ref().is_some_and(|node| slice["spec"]["nodeName"] == **node);
        !is_its || watcher.sender.send(event(kind, slice)).is_ok()
    });
}

fn publish_class(kept: &mut Kept, kind: &'static str, class: &Value) {
    kept.class_history.push((kept.version, kind, class.clone()));
    kept.watchers
        .retain(|watcher| watcher.node.is_some() || watcher.sender.send(line(kind, class)).is_ok());
}

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

fn head(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

fn event(kind: &str, slice: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": head(slice)})))
}

/// An answer that is no success (`Status` of apimachinery).
fn refuse(status: u16, message: &str) -> Response {
    let reason = StatusCode::from_u16(status).unwrap();
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason.canonical_reason(), "code": status,
    });
    respond(status, &body)
}

/// What the server says of an object that it does not have.
pub(crate) fn absent(resource: &str, name: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{resource} \"{name}\" not found"), "reason": "NotFound",
        "details": {"name": name, "kind": resource}, "code": 404,
    })
}

fn respond(status: u16, body: &Value) -> Response {
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

struct Call {
    verb: &'static str,
    resource: &'static str,
    namespace: String,
    name: String,
    query: BTreeMap<String, String>,
    accept: String,
    media: String,
}

impl Call {
    fn from_request(request: &Request) -> Option<Call> {
        let path = request.uri().path();
        let (resource, rest) = [
            ("/api/v1/nodes", "nodes"),
            ("/api/v1/pods", "pods"),
            ("/apis/resource.k8s.io/v1/deviceclasses", "deviceclasses"),
            (SLICES, "resourceslices"),
            (CLAIMS, "resourceclaims"),
        ]
        .into_iter()
        .find_map(|(prefix, resource)| Some((resource, path.strip_prefix(prefix)?.to_owned())))
        .or_else(|| {
            let rest = path.strip_prefix("/apis/resource.k8s.io/v1/namespaces/")?;
            let (namespace, rest) = rest.split_once("/resourceclaims/")?;
            Some(("resourceclaims", format!("/{namespace}/{rest}")))
        })?;
        let mut parts = rest.split('/').skip(1).map(str::to_owned);
        let first = parts.next().unwrap_or_default();
        let (namespace, name) = match parts.next() {
            Some(name) => (first, name),
            None => (String::new(), first),
        };
        let query: BTreeMap<String, String> = request
            .uri()
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), unescape(value)))
            .collect();
        let verb = match (request.method(), name.is_empty()) {
            (&Method::GET, false) => "get",
            (&Method::GET, true) if query.contains_key("watch") => "watch",
            (&Method::GET, true) => "list",
            (&Method::PATCH, false) => "patch",
            (&Method::DELETE, false) => "delete",
            _ => return None,
        };
        let text = |name| {
            request
                .headers()
                .get(name)
                .map(|value| value.to_str().unwrap())
                .unwrap_or_default()
                .to_owned()
        };
        Some(Call {
            verb,
            resource,
            namespace,
            name,
            query,
            accept: text(header::ACCEPT),
            media: text(header::CONTENT_TYPE),
        })
    }

    fn text(&self, key: &str) -> &str {
        self.query.get(key).map_or("", String::as_str)
    }

    /// Whether a watch ends by itself, and is told how far it is.
    fn is_short_watch(&self) -> bool {
        let seconds: u32 = self.text("timeoutSeconds").parse().unwrap();
        self.text("allowWatchBookmarks") == "true" && (1800..=3600).contains(&seconds)
    }

    /// The node of the field selector, which has to name this driver too.
    fn node(&self) -> Option<String> {
        let selector = self.text("fieldSelector");
        let rest = selector.strip_prefix("spec.nodeName=")?;
        let (node, rest) = rest.split_once(',')?;
        (rest == "spec.driver=onload.dev").then(|| node.to_owned())
    }
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let hex = [rest.next().unwrap(), rest.next().unwrap()];
                let hex = std::str::from_utf8(&hex).unwrap().to_owned();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap());
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let delay = shared.kept.lock().unwrap().delay;
    tokio::time::sleep(delay).await;
    let release = shared.kept.lock().unwrap().release;
    if !release.serves(request.uri().path()) {
        let mut unserved = Response::new(Body::from("404 page not found\n"));
        *unserved.status_mut() = StatusCode::NOT_FOUND;
        return unserved;
    }
    let Some(call) = Call::from_request(&request) else {
        return refuse(404, "the server could not find the requested resource");
    };
    let authorization = request.headers().get(header::AUTHORIZATION);
    let token = authorization
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
        .unwrap_or_default()
        .to_owned();
    let body = to_bytes(request.into_body(), 3 << 20).await.unwrap();
    let mut kept = shared.kept.lock().unwrap();
    let answer = serve(&mut kept, &call, &token, &body);
    drop(kept);
    shared.changes.send_modify(|changes| *changes += 1);
    answer
}

fn serve(kept: &mut Kept, call: &Call, token: &str, body: &[u8]) -> Response {
    kept.asked.push(Asked {
        verb: call.verb,
        resource: call.resource.to_owned(),
        name: call.name.clone(),
        is_dry: call.text("dryRun") == "All",
    });
    if !kept.tokens.contains(token) {
        return refuse(401, "Unauthorized");
    }
    if let Some(at) = kept.faults.iter().position(|fault| fault.verb == call.verb) {
        let fault = kept.faults.remove(at).unwrap();
        let mut answer = refuse(fault.status, "it was told to fail");
        if let Some(seconds) = fault.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        return answer;
    }
    let may = |verb: &'static str| kept.rights.contains(&(verb, call.resource));
    let creates = call.verb == "patch" && !kept.slices.contains_key(&call.name);
    if !may(call.verb) || creates && !may("create") {
        return refuse(
            403,
            &format!(
                "{} is forbidden: User \"system:serviceaccount:onload-system:onload-kubernetes\" cannot {} it",
                call.resource, call.verb
            ),
        );
    }
    match (call.verb, call.resource) {
        ("get", "nodes") if call.accept == HEADS => {
            let times = kept.registered.filter(|_| !call.name.starts_with("gone"));
            let Some(times) = times else {
                return respond(404, &absent("nodes", &call.name));
            };
            let uid = match times {
                1 => format!("uid-of-{}", call.name),
                _ => format!("uid-{times}-of-{}", call.name),
            };
            let object = json!({"metadata": {"name": call.name, "uid": uid}});
            respond(200, &head(&object))
        }
        ("get", "nodes") => {
            let info = json!({"kubeletVersion": kept.kubelet_version});
            let status = json!({"allocatable": kept.allocatable, "nodeInfo": info});
            respond(200, &json!({"metadata": {"name": call.name}, "status": status}))
        }
        ("get", "resourceclaims") => {
            let key = format!("{}/{}", call.namespace, call.name);
            found(kept.claims.get(&key), call)
        }
        ("list", "deviceclasses") => list(kept.version, &kept.classes, call),
        ("watch", "deviceclasses") => watch_of_classes(kept, call),
        ("list", "pods") => {
            let node =
                call.text("fieldSelector").strip_prefix("spec.nodeName=").unwrap_or_default();
            let of_node = kept
                .pods
                .iter()
                .filter(|(_, pod)| pod["spec"]["nodeName"] == *node)
                .map(|(name, pod)| (name.clone(), pod.clone()))
                .collect();
            list(kept.version, &of_node, call)
        }
        ("list", "resourceclaims") => list(kept.version, &kept.claims, call),
        ("list", "resourceslices") => match call.node() {
            Some(node) => {
                let of_node = kept
                    .slices
                    .iter()
                    .filter(|(_, slice)| slice["spec"]["nodeName"] == node)
                    .map(|(name, slice)| (name.clone(), slice.clone()))
                    .collect();
                list(kept.version, &of_node, call)
            }
            None => refuse(400, "a driver lists its own slices alone"),
        },
        ("watch", "resourceslices") => watch_of(kept, call),
        ("patch", "resourceslices") => patch(kept, call, body),
        ("delete", "resourceslices") => {
            let of_another = |slice: &Value| {
                kept.bound.as_ref().is_some_and(|node| slice["spec"]["nodeName"] != *node)
            };
            match kept.slices.get(&call.name) {
                None => respond(404, &absent(call.resource, &call.name)),
                Some(slice) if of_another(slice) => {
                    refuse(403, "a pod deletes slices of its own node")
                }
                Some(_) => {
                    delete(kept, &call.name);
                    respond(200, &json!({"kind": "Status", "status": "Success"}))
                }
            }
        }
        _ => refuse(405, "method not allowed"),
    }
}

fn found(object: Option<&Value>, call: &Call) -> Response {
    match object {
        Some(object) => respond(200, object),
        None => respond(404, &absent(call.resource, &call.name)),
    }
}

fn list(version: u64, objects: &BTreeMap<String, Value>, call: &Call) -> Response {
    let limit: usize = call.text("limit").parse().unwrap_or(usize::MAX);
    let after = call.text("continue");
    let rest = objects.iter().filter(|(name, _)| after.is_empty() || name.as_str() > after);
    let page: Vec<(&String, &Value)> = rest.clone().take(limit).collect();
    let has_more = rest.count() > page.len();
    let last = page.last().filter(|_| has_more).map(|(name, _)| name.as_str());
    let items: Vec<&Value> = page.iter().map(|(_, object)| *object).collect();
    let metadata = json!({
        "resourceVersion": version.to_string(), "continue": last.unwrap_or_default(),
    });
    respond(200, &json!({"kind": "List", "metadata": metadata, "items": items}))
}

fn watch_of(kept: &mut Kept, call: &Call) -> Response {
    let node = call.node();
    let is_good = call.accept == HEADS && call.is_short_watch();
    let Some(node) = node.filter(|_| is_good) else {
        return refuse(400, "a driver watches the metadata of its own slices, for at most an hour");
    };
    let known = kept
        .history
        .iter()
        .filter(|(_, _, slice)| slice["spec"]["nodeName"] == node)
        .map(|(version, kind, slice)| (*version, event(kind, slice)))
        .collect();
    told_since(kept, call, known, Some(node))
}

fn watch_of_classes(kept: &mut Kept, call: &Call) -> Response {
    if call.accept != "application/json" || !call.is_short_watch() {
        return refuse(400, "a driver watches DeviceClasses for at most an hour");
    }
    let known = kept
        .class_history
        .iter()
        .map(|(version, kind, class)| (*version, line(kind, class)))
        .collect();
    told_since(kept, call, known, None)
}

/// What has happened since the version of a watch, and what will.
fn told_since(
    kept: &mut Kept,
    call: &Call,
    known: Vec<(u64, Bytes)>,
    node: Option<String>,
) -> Response {
    let from: u64 = call.text("resourceVersion").parse().unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    if from < kept.known_from {
        let message = format!("too old resource version: {from} ({})", kept.known_from);
        let status =
            json!({"kind": "Status", "code": 410, "message": message, "reason": "Expired"});
        sender.send(line("ERROR", &status)).unwrap();
    } else {
        for (_, event) in known.into_iter().filter(|(version, _)| *version > from) {
            sender.send(event).unwrap();
        }
        let mark = json!({"metadata": {"name": "", "resourceVersion": kept.version.to_string()}});
        sender.send(event("BOOKMARK", &mark)).unwrap();
        kept.watchers.push(Watcher { node, sender });
    }
    let lines = UnboundedReceiverStream::new(receiver).map(Ok::<_, std::io::Error>);
    Response::new(Body::from_stream(lines))
}

fn patch(kept: &mut Kept, call: &Call, body: &[u8]) -> Response {
    if call.media != "application/apply-patch+yaml" {
        return refuse(415, "the body of the request was in an unknown format");
    }
    if call.text("fieldManager") != "onload.dev" || call.text("force") != "true" {
        return refuse(400, "fieldManager is required for apply patch");
    }
    let mut slice: Value = serde_json::from_slice(body).unwrap();
    let typed: ResourceSlice = serde_json::from_value(slice.clone()).unwrap();
    if slice["kind"] != "ResourceSlice" || slice["metadata"]["name"] != *call.name {
        return refuse(400, "the name of the object does not match the name on the URL");
    }
    let problems = limits::problems(&typed);
    if !problems.is_empty() {
        return refuse(422, &format!("ResourceSlice is invalid: {problems:?}"));
    }
    if kept.bound.as_ref().is_some_and(|node| slice["spec"]["nodeName"] != *node) {
        return refuse(
            403,
            "ValidatingAdmissionPolicy 'onload-kubernetes' denied request: a pod writes slices of its own node",
        );
    }
    let old = kept.slices.get(&call.name).cloned();
    for field in ["/spec/driver", "/spec/nodeName", "/spec/pool/name"] {
        let is_same = |old: &Value| old.pointer(field) == slice.pointer(field);
        if !old.as_ref().is_none_or(is_same) {
            return refuse(422, &format!("{field}: field is immutable"));
        }
    }
    drop_fields(&mut slice["spec"], kept.gates);
    add_times(&mut slice["spec"], old.as_ref());
    if let Some(webhook) = kept.webhook {
        webhook(&mut slice);
    }
    slice["metadata"]["uid"] = format!("uid-of-{}", call.name).into();
    if call.text("dryRun") == "All" {
        return respond(200, &slice);
    }
    let is_same = |old: &Value| {
        let owners = |slice: &Value| slice["metadata"]["ownerReferences"].clone();
        old["spec"] == slice["spec"] && owners(old) == owners(&slice)
    };
    if !old.as_ref().is_some_and(is_same) {
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        store(kept, &call.name, slice, kind);
    }
    respond(200, &kept.slices[&call.name])
}

/// What a server with a feature off does: it says nothing.
fn drop_fields(spec: &mut Value, gates: Gates) {
    let fields = spec.as_object_mut().unwrap();
    let devices = fields.get_mut("devices").and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten() {
        let device = device.as_object_mut().unwrap();
        if !gates.taints {
            device.remove("taints");
        }
        if !gates.consumable {
            device.remove("allowMultipleAllocations");
            let capacities = device.get_mut("capacity").and_then(Value::as_object_mut);
            for (_, capacity) in capacities.into_iter().flatten() {
                capacity.as_object_mut().unwrap().remove("requestPolicy");
            }
        }
    }
}

/// The server says since when a device has a taint.
fn add_times(spec: &mut Value, old: Option<&Value>) {
    let devices = spec.get_mut("devices").and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten() {
        let name = device["name"].clone();
        let before: Vec<Value> = old
            .and_then(|old| old["spec"]["devices"].as_array())
            .into_iter()
            .flatten()
            .filter(|before| before["name"] == name)
            .flat_map(|before| before["taints"].as_array().cloned().unwrap_or_default())
            .collect();
        let taints = device.get_mut("taints").and_then(Value::as_array_mut);
        for taint in taints.into_iter().flatten() {
            let same = before.iter().find(|before| before["key"] == taint["key"]);
            let time = same.map_or(json!("2026-11-22T09:00:00Z"), |same| same["timeAdded"].clone());
            taint["timeAdded"] = time;
        }
    }
}

fn kubeconfig_of(address: &str, token: &Path) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "t",
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        "clusters": [{"name": "t", "cluster": {"server": address}}],
        "users": [{"name": "t", "user": {"tokenFile": token}}],
    });
    config.to_string()
}
