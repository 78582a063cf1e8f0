//! `install` and `uninstall` on trees that stand for a host, as whoever runs the tests; and the program itself as
//! root, on file systems that are mounted so that it must refuse.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use onload_host::host::Host;
use onload_host::specdir::WRITER_LOCK;
use onload_kubernetes::install::{InstallReport, InstallSite, install, uninstall};
use onload_kubernetes::spec_writer::{self, VERSION};
use onload_sys::fs::trust::TrustedOwners;
use onload_test_needs as needs;
use onload_test_tree::Tree;

const DIRECTORY: &str = "/opt/onload-ctk";
const RECORD: &str = "opt/onload-ctk/.onload-kubernetes.json";
const BUNDLE: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json";

/// A program that says what the hook says.
fn script(version: &str, more: &str) -> String {
    format!("#!/bin/sh\necho \"onload-hook {version}\"\n{more}")
}

struct Node {
    tree: Tree,
    image: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Node { tree: Tree::new(), image: tempfile::tempdir().unwrap() };
        node.tree.boot("b");
        node.hook(&script(VERSION, ""), 0o755);
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.tree.path(path)
    }

    fn source(&self, name: &str) -> PathBuf {
        self.image.path().join(name)
    }

    fn file(&self, path: &str, text: &str) {
        self.tree.file(path, text);
    }

    fn hook(&self, text: &str, mode: u32) {
        let path = self.source("onload-hook");
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn config(&self, text: &str) {
        fs::write(self.source("config.toml"), text).unwrap();
    }

    fn installed(&self) -> PathBuf {
        self.path(&format!("opt/onload-ctk/{VERSION}/onload-hook"))
    }

    fn with<T>(&self, act: impl FnOnce(&InstallSite<'_>) -> T) -> T {
        let host = Host::open(self.tree.root()).unwrap();
        let owner = fs::metadata(self.tree.root()).unwrap().uid();
        act(&InstallSite {
            host: &host,
            directory: Path::new(DIRECTORY),
            owners: TrustedOwners::from_users(&[owner]),
        })
    }

    fn try_install(&self, force: bool) -> anyhow::Result<InstallReport> {
        let (hook, config) = (self.source("onload-hook"), self.source("config.toml"));
        let config = config.exists().then_some(config);
        self.with(|place| install(place, &hook, config.as_deref(), force))
    }

    fn install(&self) -> InstallReport {
        self.try_install(false).unwrap()
    }

    fn refusal(&self) -> String {
        format!("{:#}", self.try_install(false).unwrap_err())
    }

    /// The daemon's lock is waited for.
    #[track_caller]
    fn uninstall(&self) -> InstallReport {
        let mut report = None;
        when_locks_are_free(|| match self.with(uninstall) {
            Ok(done) => {
                report = Some(done);
                true
            }
            Err(error) if error.to_string().contains("the daemon of this node still runs") => false,
            Err(error) => panic!("{error:#}"),
        });
        report.unwrap()
    }

    /// Every file of the host, with its text.
    fn files(&self) -> Vec<(PathBuf, String)> {
        let all = walkdir::WalkDir::new(self.tree.root()).sort_by_file_name();
        all.into_iter()
            .map(Result::unwrap)
            .filter(|entry| entry.file_type().is_file())
            .map(|entry| {
                let below = entry.path().strip_prefix(self.tree.root()).unwrap();
                (below.to_owned(), fs::read_to_string(entry.path()).unwrap())
            })
            .collect()
    }

    fn names(&self) -> Vec<String> {
        let files = self.files();
        files.iter().map(|(path, _)| path.display().to_string()).collect()
    }

    /// As if everything had been installed that many seconds earlier.
    fn age(&self, seconds: u64) {
        let text = fs::read_to_string(self.path(RECORD)).unwrap();
        let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
        for hook in record["hooks"].as_object_mut().unwrap().values_mut() {
            hook["since"] = (hook["since"].as_u64().unwrap() - seconds).into();
        }
        fs::write(self.path(RECORD), record.to_string()).unwrap();
    }

    /// As if the version 0.0.9 had been installed, and this one thereafter.
    fn with_an_old_version(&self) {
        self.file("opt/onload-ctk/0.0.9/onload-hook", "old");
        let record = format!(
            r#"{{"version":1,"current":"0.0.9","hooks":{{"0.0.9":{{"sha256":["{OLD_SHA256}"],"since":1700000000}}}}}}"#
        );
        self.file(RECORD, &record);
        let report = self.install();
        assert_eq!(report.done.len(), 1, "{report:?}");
        self.age(601);
    }
}

/// Of the text `old`, by sha256sum.
const OLD_SHA256: &str = "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4";

fn line(text: &str) -> Vec<String> {
    vec![text.to_owned()]
}

#[test]
fn the_hook_stands_at_the_path_of_its_version() {
    let node = Node::new();
    let report = node.install();
    assert_eq!(report.done, line(&format!("put /opt/onload-ctk/{VERSION}/onload-hook")));
    let hook = fs::metadata(node.installed()).unwrap();
    assert_eq!(hook.permissions().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_to_string(node.installed()).unwrap(), script(VERSION, ""));
    for directory in ["opt", "opt/onload-ctk"] {
        let mode = fs::metadata(node.path(directory)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "{directory}");
    }
}

#[test]
fn a_second_install_writes_nothing() {
    let node = Node::new();
    node.install();
    let inodes =
        || [RECORD, "opt/onload-ctk"].map(|path| fs::metadata(node.path(path)).unwrap().ino());
    let before = (inodes(), node.files());
    assert_eq!(node.install(), InstallReport::default());
    assert_eq!((inodes(), node.files()), before);
}

#[test]
fn another_file_of_the_same_version_is_replaced_only_by_force() {
    let node = Node::new();
    node.install();
    node.hook(&script(VERSION, "# another build\n"), 0o755);
    let before = node.files();
    let refusal = node.refusal();
    assert!(refusal.contains("is another file than this version's hook"), "{refusal}");
    assert!(refusal.contains("--force"), "{refusal}");
    assert_eq!(node.files(), before);
    node.try_install(true).unwrap();
    assert!(fs::read_to_string(node.installed()).unwrap().contains("another build"));
    assert_eq!(node.install(), InstallReport::default());
}

#[test]
fn what_somebody_put_in_its_place_is_not_replaced() {
    let node = Node::new();
    node.file(&format!("opt/onload-ctk/{VERSION}/onload-hook"), "theirs");
    assert!(node.refusal().contains("is another file"));
    for make in
        [(|node: &Node| symlink("/bin/sh", node.installed()).unwrap()) as fn(&Node), |node| {
            fs::create_dir(node.installed()).unwrap();
        }]
    {
        fs::remove_file(node.installed()).or_else(|_| fs::remove_dir(node.installed())).unwrap();
        make(&node);
        let refusal = node.refusal();
        assert!(refusal.contains("not a regular file"), "{refusal}");
    }
}

#[test]
fn only_the_hook_of_this_version_is_installed() {
    let node = Node::new();
    for (text, mode, says) in [
        (script("9.9.9", ""), 0o755, "it says \"onload-hook 9.9.9\""),
        ("#!/bin/sh\nexit 3\n".to_owned(), 0o755, "it says \"\""),
        (script(VERSION, ""), 0o644, "Permission denied"),
        ("no program".to_owned(), 0o755, "Exec format error"),
    ] {
        node.hook(&text, mode);
        let refusal = node.refusal();
        assert!(refusal.contains(says), "{refusal}");
    }
    fs::remove_file(node.source("onload-hook")).unwrap();
    assert!(node.refusal().contains("No such file"));
    fs::create_dir(node.source("onload-hook")).unwrap();
    assert!(node.refusal().contains("not a regular file"));
    assert!(!node.path("opt").exists());
}

#[test]
fn a_link_of_the_host_is_followed_inside_the_host() {
    for target in ["/var/opt", "var/opt"] {
        let node = Node::new();
        fs::create_dir_all(node.path("var/opt")).unwrap();
        symlink(target, node.path("opt")).unwrap();
        node.install();
        let installed = node.path(&format!("var/opt/onload-ctk/{VERSION}/onload-hook"));
        assert!(installed.is_file(), "{target}");
    }
    let (node, outside) = (Node::new(), tempfile::tempdir().unwrap());
    symlink(outside.path(), node.path("opt")).unwrap();
    let refusal = node.refusal();
    assert!(refusal.contains("making the directory"), "{refusal}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_that_others_can_write_to_is_refused_before_anything_is_made() {
    for (directory, mode) in [("opt", 0o777), ("opt", 0o1777), ("opt/onload-ctk", 0o775)] {
        let node = Node::new();
        fs::create_dir_all(node.path(directory)).unwrap();
        fs::set_permissions(node.path(directory), Permissions::from_mode(mode)).unwrap();
        let before = node.names();
        let refusal = node.refusal();
        assert!(refusal.contains("others can change it"), "{directory}: {refusal}");
        assert_eq!(node.names(), before);
        assert!(!node.installed().exists());
    }
}

#[test]
fn a_directory_or_link_of_somebody_else_is_refused() {
    if !needs::root("a file of another user") {
        return;
    }
    for what in ["opt", "opt/onload-ctk"] {
        let node = Node::new();
        fs::create_dir_all(node.path(what)).unwrap();
        chown(node.path(what), Some(1000), None).unwrap();
        let refusal = node.refusal();
        assert!(refusal.contains("belongs to user 1000"), "{refusal}");
        assert!(!node.installed().exists());
    }
    let node = Node::new();
    fs::create_dir_all(node.path("srv/opt")).unwrap();
    symlink("/srv/opt", node.path("opt")).unwrap();
    std::os::unix::fs::lchown(node.path("opt"), Some(1000), None).unwrap();
    assert!(node.refusal().contains("belongs to user 1000"));
    assert!(!node.path("srv/opt/onload-ctk").exists());
}

#[test]
fn the_hook_has_the_security_label_of_a_program() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const LABEL: &str = "security.selinux";
    let node = Node::new();
    node.file("usr/bin/env", "");
    let set = setxattr(
        node.path("usr/bin/env"),
        LABEL,
        b"system_u:object_r:bin_t:s0\0",
        XattrFlags::empty(),
    );
    if !needs::root("setting a security label")
        || !needs::on_this_machine(set.is_ok(), "its file system keeps no security labels")
    {
        return;
    }
    node.install();
    let mut label = [0; 64];
    let length = getxattr(node.installed(), LABEL, &mut label).unwrap();
    assert_eq!(&label[..length], b"system_u:object_r:bin_t:s0\0");
}

#[test]
fn a_record_that_is_not_understood_stops_everything() {
    for (text, says) in [
        (r#"{"version":2}"#, "it is of format 2"),
        ("{", "it is no record"),
        (r#"{"version":1,"hooks":{"../x":{"sha256":[]}}}"#, "names the version \"../x\""),
    ] {
        let node = Node::new();
        node.file(RECORD, text);
        let before = node.files();
        assert!(node.refusal().contains(says), "{}", node.refusal());
        let error = node.with(uninstall).unwrap_err();
        assert!(format!("{error:#}").contains(says), "{error}");
        assert_eq!(node.files(), before);
    }
}

#[test]
fn installers_that_run_at_once_put_one_hook_there() {
    let node = Node::new();
    thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| node.try_install(false))).collect();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
    let names = node.names();
    let ours: Vec<&String> = names.iter().filter(|name| name.starts_with("opt/")).collect();
    assert_eq!(
        ours,
        ["opt/onload-ctk/.lock", RECORD, &format!("opt/onload-ctk/{VERSION}/onload-hook")]
    );
}

// The configuration.

const CONFIG: &str = "etc/onload-ctk/config.toml";
const SETS: &str = "[annotations]\nallow = [\"nic\"]\n";

#[test]
fn a_host_without_a_configuration_gets_the_one_of_the_cluster() {
    let node = Node::new();
    node.config(SETS);
    let report = node.install();
    assert!(report.done.contains(&"put /etc/onload-ctk/config.toml".to_owned()), "{report:?}");
    assert_eq!(fs::read_to_string(node.path(CONFIG)).unwrap(), SETS);
    assert_eq!(fs::metadata(node.path(CONFIG)).unwrap().mode() & 0o7777, 0o644);
    let other = "[leases]\nshare = { rdma = 4 }\n";
    node.config(other);
    node.install();
    assert_eq!(fs::read_to_string(node.path(CONFIG)).unwrap(), other);
}

#[test]
fn a_configuration_that_sets_nothing_makes_no_file() {
    let node = Node::new();
    node.config("# nothing is set\n[cdi]\n");
    node.install();
    assert!(!node.path("etc").exists());
}

#[test]
fn the_host_s_own_configuration_rules_over_the_cluster_s() {
    let node = Node::new();
    node.file(CONFIG, "[cdi]\npreload = \"off\"\n");
    node.config(SETS);
    let report = node.install();
    let kept = "left /etc/onload-ctk/config.toml: it is the host's configuration, which takes \
        precedence";
    assert_eq!(report.kept, line(kept));
    assert!(fs::read_to_string(node.path(CONFIG)).unwrap().contains("preload"));
    // So does one that was ours until the operator changed it, and a link.
    let node = Node::new();
    node.config(SETS);
    node.install();
    node.file(CONFIG, "[log]\nlevel = \"debug\"\n");
    assert_eq!(node.install().kept, line(kept));
    fs::remove_file(node.path(CONFIG)).unwrap();
    symlink("/nix/store/config.toml", node.path(CONFIG)).unwrap();
    assert_eq!(node.install().kept, line(kept));
    node.uninstall();
    assert!(node.path(CONFIG).is_symlink());
}

#[test]
fn a_configuration_with_a_mistake_is_refused_before_anything_is_put_there() {
    let node = Node::new();
    node.config("[cdi]\nhook-pth = \"/x\"\n");
    let refusal = node.refusal();
    assert!(refusal.contains("config.toml: line 2: unknown key \"cdi.hook-pth\""), "{refusal}");
    assert!(!node.path("opt").exists() && !node.path("etc").exists());
    fs::write(node.source("config.toml"), b"\xff").unwrap();
    assert!(node.refusal().contains("utf-8"), "{}", node.refusal());
}

// Versions beside each other.

#[test]
fn the_old_version_stays_while_a_container_names_it() {
    let node = Node::new();
    node.with_an_old_version();
    node.file(BUNDLE, r#"{"hooks":{"poststop":[{"path":"/opt/onload-ctk/0.0.9/onload-hook"}]}}"#);
    let report = node.install();
    assert_eq!(report.done, [""; 0]);
    assert_eq!(
        report.in_use,
        line(&format!("left /opt/onload-ctk/0.0.9/onload-hook: /{BUNDLE} names it"))
    );
    fs::remove_file(node.path(BUNDLE)).unwrap();
    let report = node.install();
    assert_eq!(report.done, line("removed /opt/onload-ctk/0.0.9/onload-hook"));
    assert!(!node.path("opt/onload-ctk/0.0.9").exists());
    assert!(node.installed().exists());
}

#[test]
fn the_old_version_stays_while_specifications_name_it() {
    let node = Node::new();
    node.with_an_old_version();
    node.file("var/run/cdi/onload.dev-rdma.json", "/opt/onload-ctk/0.0.9/onload-hook");
    assert_eq!(node.install().in_use.len(), 1);
    fs::remove_file(node.path("var/run/cdi/onload.dev-rdma.json")).unwrap();
    assert_eq!(node.install().done.len(), 1);
}

#[test]
fn the_old_version_stays_where_it_cannot_be_told_who_uses_it() {
    let node = Node::new();
    node.with_an_old_version();
    node.file("run/onload-ctk/@leases/vfio=a#0", "{\"version\":9}");
    let report = node.install();
    assert!(
        report.in_use[0].contains("it cannot be told whether a container names it"),
        "{report:?}"
    );
    assert!(node.path("opt/onload-ctk/0.0.9/onload-hook").exists());
}

#[test]
fn files_that_somebody_left_beside_the_old_hook_stay() {
    let node = Node::new();
    node.with_an_old_version();
    node.file("opt/onload-ctk/0.0.9/notes", "theirs");
    let report = node.install();
    assert!(report.done[0].ends_with("something else is left in its directory"), "{report:?}");
    assert!(node.path("opt/onload-ctk/0.0.9/notes").exists());
}

// Uninstall.

/// What a node has that is not ours.
fn with_others(node: &Node) {
    for path in ["opt/other/file", "etc/other", "var/run/cdi/other.json", "run/other"] {
        node.file(path, "theirs");
    }
}

#[test]
fn an_uninstall_removes_everything_that_was_installed() {
    let node = Node::new();
    with_others(&node);
    let before = node.files();
    node.config(SETS);
    node.install();
    node.file("etc/onload-ctk/drain.json", "{\"version\":1}");
    {
        let host = Host::open(node.tree.root()).unwrap();
        let _claim = spec_writer::try_lock(&host, WRITER_LOCK).unwrap();
    }
    let report = node.uninstall();
    assert_eq!((&report.kept, &report.in_use), (&vec![], &vec![]), "{report:?}");
    assert_eq!(node.files(), before);
    for directory in ["opt/onload-ctk", "etc/onload-ctk", "run/onload-ctk"] {
        assert!(!node.path(directory).exists(), "{directory}");
    }
    let report = node.uninstall();
    assert_eq!(report.kept, ["nothing is installed at /opt/onload-ctk"]);
    assert_eq!((report.done, report.in_use), (vec![], vec![]));
}

#[test]
fn an_uninstall_keeps_what_the_command_of_the_package_has_drained() {
    let node = Node::new();
    node.config(SETS);
    node.install();
    let drain = "etc/onload-ctk/drain.json";
    node.file(drain, "{\"version\":1}");
    node.file("usr/bin/onload-ctk", "the package's");
    node.uninstall();
    assert!(node.path(drain).exists());
}

#[test]
fn an_uninstall_from_another_directory_says_that_nothing_is_there() {
    let node = Node::new();
    node.install();
    let host = Host::open(node.tree.root()).unwrap();
    let report = node.with(|place| {
        uninstall(&InstallSite { directory: Path::new("/srv/hooks"), ..place.clone() })
    });
    let kept = report.unwrap().kept;
    assert_eq!(kept, ["nothing is installed at /srv/hooks"]);
    assert!(node.installed().exists() && host.list(Path::new("/srv")).unwrap().names.is_empty());
}

/// Tries until it is so. What another test of this process starts has its locks too, until it has become another
/// program.
#[track_caller]
fn when_locks_are_free(mut try_it: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !try_it() {
        assert!(Instant::now() < until, "a lock is not given up");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_uninstall_leaves_the_locks_that_somebody_holds() {
    use onload_sys::fs::lock::Lock;
    for (directory, name) in [("@leases", ".lock"), ("@locks", "containers")] {
        let node = Node::new();
        node.install();
        let path = node.path(&format!("run/onload-ctk/{directory}"));
        fs::create_dir_all(&path).unwrap();
        let open = fs::File::open(&path).unwrap();
        let held = Lock::try_acquire(&open, &path, name).unwrap().unwrap();
        node.uninstall();
        assert!(path.join(name).exists(), "{directory}");
        drop(held);
        when_locks_are_free(|| {
            node.uninstall();
            !node.path("run/onload-ctk").exists()
        });
    }
}

#[test]
fn a_hook_that_fails_where_it_is_put_leaves_the_one_before_it() {
    let node = Node::new();
    node.install();
    let before = node.files();
    // It can be executed once: in the image.
    let flag = node.source("flag");
    let once = format!("[ -e {0} ] && exit 3; : >{0}; ", flag.display());
    let hook = script(VERSION, "").replacen("echo", &format!("{once}echo"), 1);
    node.hook(&hook, 0o755);
    let error = node.try_install(true).unwrap_err();
    assert!(error.to_string().contains(" is not the hook of version "), "{error}");
    assert_eq!(fs::read_to_string(node.installed()).unwrap(), script(VERSION, ""));
    assert!(!node.installed().with_extension("new").exists());
    let after = node.files();
    let names = |files: &[(PathBuf, String)]| {
        files.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&before), names(&after));
    node.hook(&script(VERSION, "# another build\n"), 0o755);
    node.try_install(true).unwrap();
    let now = fs::read_to_string(node.installed()).unwrap();
    assert!(now.ends_with("# another build\n"), "{now}");
}

#[test]
fn an_uninstall_leaves_what_a_container_names_and_ends_when_it_is_gone() {
    let node = Node::new();
    node.install();
    node.file(BUNDLE, &format!("\"/opt/onload-ctk/{VERSION}/onload-hook\""));
    let report = node.uninstall();
    assert_eq!((report.done.len(), report.in_use.len()), (0, 1), "{report:?}");
    assert!(node.installed().exists() && node.path(RECORD).exists());
    fs::remove_file(node.path(BUNDLE)).unwrap();
    assert_eq!(node.uninstall().in_use, [""; 0]);
    assert!(!node.path("opt/onload-ctk").exists());
}

#[test]
fn an_uninstall_leaves_the_locks_of_containers_that_run() {
    let node = Node::new();
    node.install();
    node.file("run/onload-ctk/c1/state.json", "{}");
    node.uninstall();
    assert!(node.path("run/onload-ctk/c1/state.json").exists());
    assert!(node.path("run/onload-ctk/@locks").exists());
}

#[test]
fn an_uninstall_leaves_what_somebody_else_changed() {
    let node = Node::new();
    node.install();
    fs::write(node.installed(), "theirs").unwrap();
    node.file("opt/onload-ctk/notes", "theirs");
    let report = node.uninstall();
    let changed = format!(
        "left /opt/onload-ctk/{VERSION}/onload-hook: another program or user wrote or changed it"
    );
    assert_eq!((report.kept, report.in_use), (line(&changed), vec![]));
    assert_eq!(fs::read_to_string(node.installed()).unwrap(), "theirs");
    assert!(node.path("opt/onload-ctk/notes").exists());
    assert!(!node.path(RECORD).exists());
}

#[test]
fn an_uninstall_is_refused_while_the_daemon_runs() {
    let node = Node::new();
    node.install();
    let host = Host::open(node.tree.root()).unwrap();
    let claim = spec_writer::try_lock(&host, WRITER_LOCK).unwrap();
    let error = node.with(uninstall).unwrap_err();
    assert!(error.to_string().contains("the daemon of this node still runs"), "{error}");
    assert!(node.installed().exists());
    drop(claim);
    node.uninstall();
    assert!(!node.installed().exists());
}

#[test]
fn an_uninstall_leaves_the_specifications_of_the_package() {
    let node = Node::new();
    node.install();
    node.file("run/onload-cdi/last-run", "");
    for name in [".onload-ctk-manifest", ".onload-ctk-lock"] {
        node.file(&format!("var/run/cdi/{name}"), "");
    }
    node.uninstall();
    assert!(!node.installed().exists());
    assert!(node.path("var/run/cdi/.onload-ctk-manifest").exists());
}

// The program, as root, on file systems of its own.

/// Runs a script of sh in a mount namespace of its own. `$ROOT` is the host's root, `$KUBERNETES` the program,
/// `$HOOK` the hook to install.
fn in_namespace(node: &Node, script: &str) -> Output {
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "--propagation", "private", "sh", "-c", script]);
    unshare.env("ROOT", node.tree.root());
    unshare.env("KUBERNETES", env!("CARGO_BIN_EXE_onload-kubernetes"));
    unshare.env("HOOK", node.source("onload-hook"));
    unshare.output().unwrap()
}

fn can_mount() -> bool {
    needs::mount_namespace("mounting a file system")
}

const INSTALL: &str = "\"$KUBERNETES\" --host-root \"$ROOT\" install --from \"$HOOK\"";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_file_system_without_exec_is_refused_by_name() {
    if !can_mount() {
        return;
    }
    let node = Node::new();
    fs::create_dir(node.path("opt")).unwrap();
    let script = format!(
        "mount -t tmpfs -o noexec,mode=755 tmpfs $ROOT/opt; {INSTALL}; echo $?; ls -A $ROOT/opt"
    );
    let output = in_namespace(&node, &script);
    assert_eq!(text(&output.stdout), "2\n");
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("opt/onload-ctk is on a file system that is mounted noexec"),
        "{stderr}"
    );
    assert!(stderr.contains("--hook-dir"), "{stderr}");
}

#[test]
fn a_read_only_file_system_is_refused_unless_the_hook_is_there_already() {
    if !can_mount() {
        return;
    }
    let node = Node::new();
    fs::create_dir(node.path("opt")).unwrap();
    let script = format!(
        "mount -t tmpfs -o ro,mode=755 tmpfs $ROOT/opt; {INSTALL}; echo $?
         mount -o remount,rw $ROOT/opt; install -D $HOOK $ROOT/opt/onload-ctk/{VERSION}/onload-hook
         mount -o remount,ro $ROOT/opt; {INSTALL}; echo $?
         {INSTALL} --hook-dir /var/opt/onload-ctk; echo $?"
    );
    let output = in_namespace(&node, &script);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("is on a file system that is mounted read-only"), "{stderr}");
    let put = format!("put /var/opt/onload-ctk/{VERSION}/onload-hook");
    assert_eq!(text(&output.stdout), format!("2\n0\n{put}\n0\n"), "{stderr}");
}

#[test]
fn a_full_disk_leaves_nothing_half_and_the_next_install_goes_on() {
    if !can_mount() {
        return;
    }
    let node = Node::new();
    let long = format!("# {}\n", "x".repeat(500_000));
    node.hook(&script_with_exit(&long), 0o755);
    fs::create_dir(node.path("opt")).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=128k,mode=755 tmpfs $ROOT/opt; {INSTALL}; echo $?
         ls -A $ROOT/opt/onload-ctk/{VERSION}
         mount -o remount,size=2m $ROOT/opt; {INSTALL}; echo $?; cmp $HOOK $ROOT/opt/onload-ctk/{VERSION}/onload-hook && echo same"
    );
    let output = in_namespace(&node, &script);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("onload-hook.new: No space left on device"), "{stderr}");
    let put = format!("put /opt/onload-ctk/{VERSION}/onload-hook");
    assert_eq!(text(&output.stdout), format!("2\n{put}\n0\nsame\n"), "{stderr}");
}

fn script_with_exit(more: &str) -> String {
    script(VERSION, &format!("exit 0\n{more}"))
}

#[test]
fn the_program_says_what_it_did_and_by_its_status_what_is_left() {
    if !needs::root("a host whose files belong to root") {
        return;
    }
    let node = Node::new();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onload-kubernetes"));
        command.arg("--host-root").arg(node.tree.root()).args(words);
        let output = command
            .env("ONLOAD_KUBERNETES_INSTALL_FROM", node.source("onload-hook"))
            .output()
            .unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let path = format!("/opt/onload-ctk/{VERSION}/onload-hook");
    assert_eq!(run(&["install"]), (Some(0), format!("put {path}\n"), String::new()));
    node.file(BUNDLE, &format!("\"{path}\""));
    assert_eq!(
        run(&["uninstall"]),
        (Some(1), format!("left {path}: /{BUNDLE} names it\n"), String::new())
    );
    fs::remove_file(node.path(BUNDLE)).unwrap();
    assert_eq!(run(&["uninstall"]), (Some(0), format!("removed {path}\n"), String::new()));
    let (status, _, stderr) = run(&["install", "--from", "/nonexistent"]);
    assert_eq!(status, Some(2));
    assert_eq!(
        stderr,
        "onload-kubernetes: reading /nonexistent: No such file or directory (os error 2)\n"
    );
}
