use std::fs;
use std::path::{Path, PathBuf};

use onload_cdi::{MAX_FILE_BYTES, QualifiedName, Registry};

use crate::error_chain;

/// A specification of `kind` whose devices each set a variable that names the file.
fn file(kind: &str, from: &str, devices: &[&str]) -> String {
    let devices: Vec<String> = devices
        .iter()
        .map(|name| {
            format!(
                r#"{{"name": "{name}", "containerEdits": {{"env": ["DEVICE={name} of {from}"]}}}}"#
            )
        })
        .collect();
    format!(
        r#"{{"cdiVersion": "0.5.0", "kind": "{kind}", "containerEdits": {{"env": ["SHARED={from}"]}},
            "devices": [{}]}}"#,
        devices.join(",")
    )
}

struct Dirs {
    root: tempfile::TempDir,
}

impl Dirs {
    fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a directory") }
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, content).expect("a file");
        self
    }

    fn scan(&self) -> Registry {
        Registry::scan(&["etc", "run"].map(|dir| self.root.path().join(dir)))
    }

    fn relative(&self, path: &Path) -> String {
        path.strip_prefix(self.root.path()).expect("below the root").display().to_string()
    }

    /// `name from file` of each device.
    fn devices(&self, registry: &Registry) -> Vec<String> {
        registry
            .devices()
            .map(|found| format!("{} from {}", found.name, self.relative(found.path)))
            .collect()
    }

    fn errors(&self, registry: &Registry) -> Vec<String> {
        registry.errors().keys().map(|path| self.relative(path)).collect()
    }
}

fn names(list: &[&str]) -> Vec<QualifiedName> {
    list.iter().map(|name| name.parse().expect("a name")).collect()
}

#[test]
fn missing_directories_count_as_empty() {
    let dirs = Dirs::new();
    let registry = dirs.scan();
    assert_eq!((registry.devices().count(), registry.errors().len()), (0, 0));
    fs::create_dir(dirs.root.path().join("etc")).expect("a directory");
    assert_eq!(dirs.scan().errors().len(), 0);
}

#[test]
fn a_device_is_found_with_its_file_and_priority() {
    let dirs = Dirs::new();
    dirs.put("etc/a.json", file("vendor.com/device", "etc", &["dev1"]));
    dirs.put("run/b.json", file("vendor.com/device", "run", &["dev2"]));
    let registry = dirs.scan();
    let want = ["vendor.com/device=dev1 from etc/a.json", "vendor.com/device=dev2 from run/b.json"];
    assert_eq!(dirs.devices(&registry), want);
    let name = &names(&["vendor.com/device=dev2"])[0];
    assert_eq!(registry.device(name).expect("dev2").priority, 1);
    assert!(registry.device(&names(&["vendor.com/device=dev3"])[0]).is_none());
}

#[test]
fn later_directory_shadows_single_devices() {
    let dirs = Dirs::new();
    dirs.put("etc/a.json", file("vendor.com/device", "etc", &["dev1", "dev2"]));
    dirs.put("run/a.json", file("vendor.com/device", "run", &["dev1"]));
    let registry = dirs.scan();
    let want = ["vendor.com/device=dev1 from run/a.json", "vendor.com/device=dev2 from etc/a.json"];
    assert_eq!(dirs.devices(&registry), want);
    assert_eq!(registry.errors().len(), 0);
    let [shadowed] = registry.shadowed() else { panic!("{:?}", registry.shadowed()) };
    assert_eq!(shadowed.name.to_string(), "vendor.com/device=dev1");
    assert_eq!(dirs.relative(&shadowed.path), "etc/a.json");
    assert_eq!(dirs.relative(&shadowed.by), "run/a.json");
}

#[test]
fn conflict_makes_only_that_device_unavailable() {
    let dirs = Dirs::new();
    dirs.put("run/a.json", file("vendor.com/device", "a", &["dev1", "dev2"]));
    dirs.put("run/b.json", file("vendor.com/device", "b", &["dev1"]));
    dirs.put("run/c.json", file("vendor.com/device", "c", &["dev1", "dev3"]));
    let registry = dirs.scan();
    let want = ["vendor.com/device=dev2 from run/a.json", "vendor.com/device=dev3 from run/c.json"];
    assert_eq!(dirs.devices(&registry), want);
    assert_eq!(dirs.errors(&registry), ["run/a.json", "run/b.json", "run/c.json"]);
    let [conflict] = registry.conflicts() else { panic!("{:?}", registry.conflicts()) };
    let paths: Vec<_> = conflict.paths.iter().map(|path| dirs.relative(path)).collect();
    assert_eq!(
        (conflict.priority, paths),
        (1, vec!["run/a.json".into(), "run/b.json".into(), "run/c.json".into()])
    );
}

#[test]
fn conflict_hides_the_device_of_a_higher_priority() {
    let dirs = Dirs::new();
    dirs.put("etc/a.json", file("vendor.com/device", "a", &["dev1"]));
    dirs.put("etc/b.json", file("vendor.com/device", "b", &["dev1"]));
    dirs.put("run/c.json", file("vendor.com/device", "c", &["dev1"]));
    let registry = dirs.scan();
    assert_eq!(dirs.devices(&registry), [""; 0]);
    assert_eq!(dirs.errors(&registry), ["etc/a.json", "etc/b.json"]);
    assert_eq!(registry.shadowed(), []);
}

#[test]
fn invalid_files_do_not_affect_others() {
    let dirs = Dirs::new();
    dirs.put("etc/good.json", file("vendor.com/device", "good", &["dev1"]));
    dirs.put("etc/broken.json", "{");
    dirs.put("etc/empty.json", "");
    dirs.put("etc/unknown.json", r#"{"unknown": 1}"#);
    dirs.put("etc/invalid.json", r#"{"cdiVersion": "0.3.0", "kind": "vendor.com/device"}"#);
    dirs.put("etc/binary.json", [0xff, 0xfe]);
    dirs.put("etc/dir.json/a.json", "{");
    std::os::unix::fs::symlink("nowhere", dirs.root.path().join("etc/dangling.json"))
        .expect("a link");
    std::os::unix::fs::symlink("dir.json", dirs.root.path().join("etc/linked.json"))
        .expect("a link");
    std::os::unix::fs::symlink("loop.json", dirs.root.path().join("etc/loop.json"))
        .expect("a link");
    let registry = dirs.scan();
    assert_eq!(dirs.devices(&registry), ["vendor.com/device=dev1 from etc/good.json"]);
    let bad = ["binary", "broken", "dangling", "empty", "invalid", "linked", "loop", "unknown"];
    assert_eq!(dirs.errors(&registry), bad.map(|name| format!("etc/{name}.json")));
    for errors in registry.errors().values() {
        assert!(errors.iter().all(|error| !error_chain(error).contains('\n')), "{errors:?}");
    }
}

#[test]
fn paths_include_invalid_files() {
    let dirs = Dirs::new();
    dirs.put("etc/good.json", file("vendor.com/class", "etc", &["a"]))
        .put("etc/same.json", file("vendor.com/class", "etc", &["a"]))
        .put("etc/broken.json", "{")
        .put("etc/note.txt", "")
        .put("run", "no directory");
    let registry = dirs.scan();
    let paths: Vec<String> = registry.paths().iter().map(|path| dirs.relative(path)).collect();
    assert_eq!(paths, ["etc/broken.json", "etc/good.json", "etc/same.json", "run"]);
    assert!(Registry::scan(&[]).paths().is_empty());
}

#[test]
fn only_json_and_yaml_files_are_read() {
    let dirs = Dirs::new();
    for name in ["a.yml", "b.JSON", "c.json.bak", "d", "sub/e.json", ".manifest", "json"] {
        dirs.put(&format!("run/{name}"), file("vendor.com/device", name, &["dev1"]));
    }
    let registry = dirs.scan();
    let hidden: Vec<String> = dirs.devices(&registry);
    assert_eq!(hidden, [""; 0]);
    assert_eq!(dirs.errors(&registry), [""; 0]);
}

#[test]
fn a_link_to_a_file_is_followed() {
    let dirs = Dirs::new();
    dirs.put("elsewhere/a.txt", file("vendor.com/device", "a", &["dev1"]));
    fs::create_dir(dirs.root.path().join("run")).expect("a directory");
    std::os::unix::fs::symlink("../elsewhere/a.txt", dirs.root.path().join("run/a.json"))
        .expect("a link");
    assert_eq!(dirs.devices(&dirs.scan()), ["vendor.com/device=dev1 from run/a.json"]);
}

#[test]
fn file_in_place_of_a_directory_is_reported() {
    let dirs = Dirs::new();
    dirs.put("etc", "");
    dirs.put("run/a.json", file("vendor.com/device", "a", &["dev1"]));
    let registry = dirs.scan();
    assert_eq!(dirs.errors(&registry), ["etc"]);
    assert_eq!(registry.devices().count(), 1);
}

#[test]
fn linked_directory_is_rejected_but_parent_links_are_followed() {
    let dirs = Dirs::new();
    dirs.put("real/cdi/a.json", file("vendor.com/device", "a", &["dev1"]));
    std::os::unix::fs::symlink("real/cdi", dirs.root.path().join("etc")).expect("a link");
    std::os::unix::fs::symlink("real", dirs.root.path().join("run")).expect("a link");
    for link in ["etc", "etc/"] {
        let registry = Registry::scan(&[dirs.root.path().join(link)]);
        assert_eq!((registry.devices().count(), registry.errors().len()), (0, 1), "{link}");
    }
    let registry = Registry::scan(&[dirs.root.path().join("run/cdi")]);
    assert_eq!((registry.devices().count(), registry.errors().len()), (1, 0));
}

#[test]
fn pipes_and_oversized_files_are_reported() {
    let dirs = Dirs::new();
    dirs.put("run/a.json", file("vendor.com/device", "a", &["dev1"]));
    let pipe = dirs.root.path().join("run/pipe.json");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    let giant = fs::File::create(dirs.root.path().join("run/giant.json")).expect("a file");
    giant.set_len(MAX_FILE_BYTES + 1).expect("a size");
    let registry = dirs.scan();
    assert_eq!(dirs.errors(&registry), ["run/giant.json", "run/pipe.json"]);
    let error = &registry.errors()[&dirs.root.path().join("run/giant.json")][0];
    assert!(error_chain(error).contains("larger than"), "{error:?}");
    assert_eq!(registry.devices().count(), 1);
}

#[test]
fn repeated_directory_shadows_itself() {
    let dirs = Dirs::new();
    dirs.put("run/a.json", file("vendor.com/device", "a", &["dev1"]));
    let dir: PathBuf = dirs.root.path().join("run");
    let registry = Registry::scan(&[dir.clone(), dir]);
    assert_eq!((registry.devices().count(), registry.shadowed().len()), (1, 1));
}

#[test]
fn edits_follow_request_order_with_shared_edits_once() {
    let dirs = Dirs::new();
    dirs.put("run/a.json", file("vendor.com/a", "A", &["1", "2"]));
    dirs.put("run/b.json", file("vendor.com/b", "B", &["1"]));
    dirs.put("etc/a.json", file("vendor.com/a", "OLD", &["1", "3"]));
    let registry = dirs.scan();
    let ask = |list: &[&str]| registry.edits_for(&names(list)).expect("edits").env;
    assert_eq!(
        ask(&["vendor.com/a=2", "vendor.com/b=1", "vendor.com/a=1"]),
        ["SHARED=A", "DEVICE=2 of A", "SHARED=B", "DEVICE=1 of B", "DEVICE=1 of A"]
    );
    assert_eq!(
        ask(&["vendor.com/a=3", "vendor.com/a=1"]),
        ["SHARED=OLD", "DEVICE=3 of OLD", "SHARED=A", "DEVICE=1 of A"]
    );
    assert_eq!(
        ask(&["vendor.com/b=1", "vendor.com/b=1"]),
        ["SHARED=B", "DEVICE=1 of B", "DEVICE=1 of B"]
    );
    assert_eq!(ask(&[]), [""; 0]);
}

#[test]
fn all_unresolvable_names_are_reported() {
    let dirs = Dirs::new();
    dirs.put("run/a.json", file("vendor.com/a", "A", &["1"]));
    let ask = names(&["vendor.com/a=9", "vendor.com/a=1", "vendor.com/b=1"]);
    let error = dirs.scan().edits_for(&ask).expect_err("two are missing");
    assert_eq!(error.names, names(&["vendor.com/a=9", "vendor.com/b=1"]));
    assert_eq!(
        error.to_string(),
        "resolving CDI devices: no specification offers vendor.com/a=9, vendor.com/b=1"
    );
}

#[cfg(not(feature = "yaml"))]
#[test]
fn yaml_file_is_an_error_without_the_feature() {
    let dirs = Dirs::new();
    dirs.put("run/a.json", file("vendor.com/a", "A", &["1"]));
    dirs.put("run/b.yaml", "kind: vendor.com/b\n");
    let registry = dirs.scan();
    assert_eq!(registry.devices().count(), 1);
    assert_eq!(dirs.errors(&registry), ["run/b.yaml"]);
}

#[cfg(feature = "yaml")]
#[test]
fn yaml_files_are_read_too() {
    let dirs = Dirs::new();
    dirs.put("run/a.json", file("vendor.com/a", "A", &["1"]));
    let yaml = "cdiVersion: 0.3.0\nkind: vendor.com/b\ndevices:\n- name: x\n  containerEdits:\n    env: [A=b]\n";
    dirs.put("run/b.yaml", yaml);
    dirs.put("run/c.yaml", "kind: [\n");
    let registry = dirs.scan();
    assert_eq!(registry.devices().count(), 2);
    assert_eq!(dirs.errors(&registry), ["run/c.yaml"]);
}
