//! The Helm chart: that it is made of packaging/kubernetes, and what it becomes with values.
//!
//! `tests/go-helm` renders it, with the engine of Helm and those of its functions that the chart calls. Where helm itself is
//! installed, it has to say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use onload_core::class::Class;
use onload_core::config::Config;
use onload_core::kubernetes_settings::OfferMethod;
use onload_test_needs as needs;
use serde_json::{Map, Value, json};
use walkdir::WalkDir;

use crate::manifests::{objects, read_back, text};
use crate::support::{newest_go, sources};

const DRA: [&str; 5] = [
    "dra/admissionpolicy.yaml",
    "dra/clusterrole.yaml",
    "dra/deviceclasses.yaml",
    "dra/parameters.yaml",
    "dra/statuspolicy.yaml",
];

fn chart() -> PathBuf {
    sources().join("packaging/helm/onload-ctk")
}

fn script(arguments: &[&Path]) {
    let mut script = Command::new(sources().join("packaging/helm/chart"));
    let status = script.args(arguments).env("SOURCE_DATE_EPOCH", "1000000000").status();
    assert!(status.unwrap().success());
}

fn values() -> Value {
    let values = fs::read_to_string(chart().join("values.yaml")).unwrap();
    objects(&values).remove(0)
}

/// The values with others in the place of some.
fn with(others: &Value) -> Value {
    let mut all = values();
    for (key, value) in others.as_object().unwrap() {
        match value.as_object() {
            Some(fields) if key == "image" => {
                let fields = fields.clone();
                all[key].as_object_mut().unwrap().extend(fields);
            }
            _ => all[key] = value.clone(),
        }
    }
    all
}

fn run(mut command: Command, input: &str) -> Output {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// What the chart becomes, or the error; None where there is no Go.
fn rendered(namespace: &str, values: &Value) -> Option<Result<Objects, String>> {
    let mut go = Command::new(newest_go::program("go-helm")?);
    go.arg(chart());
    let input = json!({"Values": values, "Release": {"Namespace": namespace}});
    Some(answer(&run(go, &input.to_string())))
}

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

fn answer(output: &Output) -> Result<Objects, String> {
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(by_name(objects(&String::from_utf8_lossy(&output.stdout))))
}

fn by_name(objects: Vec<Value>) -> Objects {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let named = objects.into_iter().filter(|object| !object.is_null()).map(|object| {
        let name = (text(&object["kind"]), text(&object["metadata"]["name"]));
        (name, object)
    });
    named.collect()
}

/// The objects of packaging/kubernetes, but for the namespace, which is the release's.
fn base(files: &[&str]) -> Objects {
    let mut all: Vec<Value> = files.iter().flat_map(|file| objects(&text(file))).collect();
    all.push(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "onload-ctk", "namespace": "onload-system"},
        "data": {"config.toml": text("config.toml")}}));
    by_name(all)
}

/// The metadata of the daemon's pods.
fn pod_metadata(objects: &mut Objects) -> &mut Map<String, Value> {
    let daemon = ("DaemonSet".to_owned(), "onload-kubernetes".to_owned());
    let daemon = objects.get_mut(&daemon).unwrap();
    let metadata = daemon.pointer_mut("/spec/template/metadata");
    metadata.unwrap().as_object_mut().unwrap()
}

fn config_map(objects: &Objects) -> &Value {
    let mut all = objects.iter();
    let found = all.find(|((kind, _), _)| kind == "ConfigMap");
    found.unwrap().1
}

#[test]
fn the_chart_is_what_the_script_makes_of_the_base() {
    let made = tempfile::tempdir().unwrap().path().join("chart");
    script(&[&made]);
    let files = |root: &Path| -> BTreeMap<PathBuf, String> {
        let files = WalkDir::new(root)
            .into_iter()
            .map(Result::unwrap)
            .filter(|entry| entry.file_type().is_file());
        let read = |path: &Path| {
            let name = path.strip_prefix(root).unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        };
        files.map(|entry| read(entry.path())).collect()
    };
    let (made, kept) = (files(&made), files(&chart()));
    assert!(made == kept, "run packaging/helm/chart");
    assert_eq!(made.len(), 13);
}

#[test]
fn with_its_default_values_it_is_the_base() {
    for (dra, files) in [(false, &[][..]), (true, &DRA)] {
        let Some(chart) = rendered("onload-system", &with(&json!({"dra": dra}))) else {
            return;
        };
        let mut chart = chart.unwrap();
        pod_metadata(&mut chart).remove("annotations").unwrap();
        let own = ["serviceaccount.yaml", "daemonset.yaml"];
        let base = base(&[&own, files].concat());
        let names: Vec<_> = chart.keys().collect();
        assert_eq!(names, base.keys().collect::<Vec<_>>());
        assert_eq!(chart, base);
        for ((kind, _), object) in &chart {
            if kind != "ConfigMap" {
                assert_eq!(read_back(object), *object);
            }
        }
    }
}

/// Each path of a value where two differ, with the second one's.
fn differences(path: &str, one: &Value, other: &Value, found: &mut BTreeMap<String, Value>) {
    match (one, other) {
        (Value::Object(ones), Value::Object(others)) => {
            let keys: BTreeSet<&String> = ones.keys().chain(others.keys()).collect();
            for key in keys {
                let path = format!("{path}/{key}");
                differences(&path, &one[key], &other[key], found);
            }
        }
        (Value::Array(ones), Value::Array(others)) if ones.len() == others.len() => {
            for (at, (one, other)) in ones.iter().zip(others).enumerate() {
                differences(&format!("{path}/{at}"), one, other, found);
            }
        }
        _ if one != other => drop(found.insert(path.to_owned(), other.clone())),
        _ => {}
    }
}

#[test]
fn each_value_changes_what_it_says_and_nothing_else() {
    let others = json!({"dra": true, "nodeSelector": {"kubernetes.io/os": "linux", "example.com/nic": "true"},
        "image": {"repository": "registry.example.com/onload", "tag": "2", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}], "kubeletDir": "/var/lib/k0s/kubelet"});
    let Some(usual) = rendered("onload-system", &with(&json!({"dra": true}))) else {
        return;
    };
    let changed = rendered("elsewhere", &with(&others)).unwrap().unwrap();
    let mut found = BTreeMap::new();
    for (name, object) in usual.unwrap() {
        differences(&name.0, &object, &changed[&name], &mut found);
    }
    // Kubelet and the daemon have its directories at the same paths.
    let is_of_kubelet = |value: &Value| value.as_str().is_some_and(|text| text.contains("k0s"));
    let paths: Vec<&str> =
        found.values().filter(|value| is_of_kubelet(value)).filter_map(Value::as_str).collect();
    let [root, registry, plugin] = ["", "/plugins_registry", "/plugins/onload.dev"]
        .map(|below| format!("/var/lib/k0s/kubelet{below}"));
    assert_eq!(paths, [&root, &registry, &plugin, &registry, &plugin]);
    found.retain(|_, value| !is_of_kubelet(value));
    let image = json!("registry.example.com/onload:2");
    let pod = "DaemonSet/spec/template/spec";
    let wanted = [
        ("ClusterRoleBinding/subjects/0/namespace".to_owned(), json!("elsewhere")),
        ("ConfigMap/metadata/namespace".to_owned(), json!("elsewhere")),
        ("DaemonSet/metadata/namespace".to_owned(), json!("elsewhere")),
        (format!("{pod}/containers/0/image"), image.clone()),
        (format!("{pod}/containers/0/imagePullPolicy"), json!("Always")),
        (format!("{pod}/imagePullSecrets"), json!([{"name": "registry"}])),
        (format!("{pod}/initContainers/0/image"), image),
        (format!("{pod}/initContainers/0/imagePullPolicy"), json!("Always")),
        (format!("{pod}/nodeSelector/example.com~1nic").replace("~1", "/"), json!("true")),
        ("ServiceAccount/metadata/namespace".to_owned(), json!("elsewhere")),
    ];
    assert_eq!(found, BTreeMap::from(wanted));
}

#[test]
fn the_configuration_is_the_one_of_the_values_and_a_change_is_rolled_out() {
    let config = "[kubernetes.resources]\n\"amd.com/onload\" = { class = \"nic\" }\n";
    let mut hashes = BTreeSet::new();
    for (values, classes, offer) in [
        (json!({}), 0, OfferMethod::DevicePlugin),
        (json!({"offer": "dra"}), 0, OfferMethod::Dra),
        (json!({"config": config, "offer": "device-plugin"}), 1, OfferMethod::DevicePlugin),
        (json!({"config": "[kubernetes]\noffer = \"dra\"\n"}), 0, OfferMethod::Dra),
    ] {
        let Some(chart) = rendered("x", &with(&values)) else {
            return;
        };
        let mut chart = chart.unwrap();
        let hash = pod_metadata(&mut chart)["annotations"]["checksum/config"].clone();
        let map = config_map(&chart);
        let config = Config::parse(map["data"]["config.toml"].as_str().unwrap()).unwrap();
        assert_eq!(config.kubernetes.offer.method(Class::Nic), offer);
        assert_eq!(config.kubernetes.resources.len(), classes);
        let name = &map["metadata"]["name"];
        let daemon = &chart[&("DaemonSet".to_owned(), "onload-kubernetes".to_owned())];
        let mut volumes = daemon["spec"]["template"]["spec"]["volumes"].as_array().unwrap().iter();
        let volume = volumes.find(|volume| volume["name"] == "config").unwrap();
        assert_eq!(volume["configMap"]["name"], *name);
        assert_eq!(*name, "onload-ctk");
        assert!(hashes.insert(hash.to_string()), "{hash} again");
    }
}

#[test]
fn monitoring_adds_the_rules_and_serves_the_metrics() {
    let values =
        with(&json!({"monitoring": {"enabled": true, "labels": {"release": "prometheus"}}}));
    let Some(usual) = rendered("x", &with(&json!({}))) else {
        return;
    };
    let (usual, mut chart) = (usual.unwrap(), rendered("x", &values).unwrap().unwrap());
    let mut take = |kind: &str, name: &str| chart.remove(&(kind.into(), name.into())).unwrap();
    let monitor = take("PodMonitor", "onload-kubernetes");
    let rules = take("PrometheusRule", "onload-ctk");
    for object in [&monitor, &rules] {
        assert_eq!(object["metadata"]["namespace"], "x");
        assert_eq!(object["metadata"]["labels"], json!({"release": "prometheus"}));
    }
    let alerts = fs::read_to_string(sources().join("packaging/monitoring/alerts.yaml")).unwrap();
    assert_eq!(rules["spec"], objects(&alerts)[0]);

    let mut found = BTreeMap::new();
    for (name, object) in &usual {
        differences(&name.0, object, &chart[name], &mut found);
    }
    assert_eq!(usual.len(), chart.len());
    let environment = found.remove("DaemonSet/spec/template/spec/containers/0/env").unwrap();
    assert!(found.is_empty(), "{found:?}");
    let listen = json!({"name": "ONLOAD_KUBERNETES_LISTEN", "value": "0.0.0.0:9478"});
    assert!(environment.as_array().unwrap().contains(&listen), "{environment}");
}

#[test]
fn what_contradicts_itself_or_is_no_value_is_refused() {
    let twice = json!({"config": "slots = 1\n[kubernetes]\nslots = 20\n", "offer": "dra"});
    let Some(refused) = rendered("x", &with(&twice)) else {
        return;
    };
    let refused = refused.unwrap_err();
    assert!(refused.contains("config has a section [kubernetes]: say offer there"), "{refused}");
    // Helm compares the values with the schema before it renders anything.
    let schema = fs::read_to_string(chart().join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    let keys = |value: &Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().filter(|key| *key != "global").cloned().collect()
    };
    assert_eq!(keys(&schema["properties"]), keys(&values()));
    let of_image = &schema["properties"]["image"];
    assert_eq!(keys(&of_image["properties"]), keys(&values()["image"]));
    assert_eq!(of_image["additionalProperties"], false);
}

#[test]
fn helm_makes_the_same_of_it() {
    let has_helm = Command::new("helm").arg("version").output().is_ok();
    if !needs::on_this_machine(has_helm, "helm is not installed") {
        return;
    }
    let values = json!({"dra": true, "offer": "dra", "nodeSelector": {"a": "b"}});
    let Some(ours) = rendered("elsewhere", &with(&values)) else {
        return;
    };
    let helm = |words: &[&str], values: &Value| {
        let mut helm = Command::new("helm");
        let helm_words = helm.args(words).arg(chart());
        helm_words.args(["--namespace", "elsewhere", "--values", "-"]);
        answer(&run(helm, &values.to_string()))
    };
    assert_eq!(helm(&["template", "onload-ctk"], &values), ours);
    let refused = helm(&["template", "onload-ctk"], &json!({"offers": "dra"})).unwrap_err();
    assert!(refused.contains("additional properties 'offers' not allowed"), "{refused}");
    let refused = helm(&["template", "onload-ctk"], &json!({"offer": "DRA"})).unwrap_err();
    assert!(refused.contains("/offer"), "{refused}");
}

#[test]
fn the_archive_of_a_commit_has_the_same_bytes_and_the_whole_chart() {
    let dir = tempfile::tempdir().unwrap();
    let pack = |name: &str| {
        let path = dir.path().join(name);
        script(&[Path::new("--archive"), &path]);
        (fs::read(&path).unwrap(), path)
    };
    let ((one, path), (other, _)) = (pack("one.tgz"), pack("other.tgz"));
    assert_eq!(one, other);
    let listed = Command::new("tar").arg("-tzf").arg(path).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let files: BTreeSet<&str> = listed.lines().filter(|line| !line.ends_with('/')).collect();
    for file in ["Chart.yaml", "values.yaml", "templates/daemonset.yaml", "LICENSE-MIT"] {
        let path = format!("onload-ctk/{file}");
        assert!(files.contains(path.as_str()), "{file}: {listed}");
    }
    assert_eq!(files.len(), 15);
}
