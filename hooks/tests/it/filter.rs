//! The filter on a host of files: what it gives, keeps and rejects. Most tests are cases in `tests/cases/filter`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_spec::runtime::{ContainerState, PosixRlimit, Spec, StateBuilder};
use onload_cdi::SpecSource;
use onload_cdi::oci::{HostNode, NodeKind, NodeLookup, OciConfig};
use onload_core::class::Class;
use onload_core::config::HookConfig;
use onload_core::container_id::ContainerId;
use onload_core::token::Token;
use onload_hooks::config::filter::{FilterOutcome, apply};
use onload_hooks::config::state::OciState;
use onload_hooks::decide::host_view::{HookSettings, HostView, Privilege};
use onload_hooks::decide::pools::{PoolRequest, Pools, Reservation};
use onload_hooks::decide::specs::OnloadSpecs;
use onload_hooks::decide::subject::ContainerRef;
use onload_hooks::decide::sysfs::Sysfs;
use onload_lease::choose_without_leases;
use onload_lease::drain::DrainList;
use onload_lease::tickets::{self, Ticket};
use onload_sys::elf::ElfSummary;
use onload_sys::error::Result;
use onload_sys::fs::trust::{TrustError, TrustedOwners, TrustedTree};
use onload_sys::netlink::link::Link;
use onload_sys::text::ErrorChain;
use onload_test_tree::elf::SharedLibrary;
use onload_test_tree::{Tree, case};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The host of all cases.
const BASE: &str = include_str!("../cases/filter.host");

/// A host whose answers are files below one directory.
struct FakeHost {
    tree: Tree,
    files: TrustedTree,
}

impl FakeHost {
    /// The host of all cases, with these files in addition.
    fn new(files: &[(String, String)]) -> Self {
        let tree = Tree::new();
        for path in ["b/rootfs/etc", "b/rootfs/usr/lib64", "b/rootfs/dev"] {
            tree.directory(path);
        }
        for (path, text) in case::sections(BASE).iter().chain(files) {
            tree.file(path, text);
        }
        let owner = fs::metadata(tree.root()).unwrap().uid();
        let files =
            TrustedTree::for_tree(tree.root(), TrustedOwners::from_users(&[0, owner])).unwrap();
        FakeHost { tree, files }
    }

    fn apply_for(
        &self,
        json: &[u8],
        id: Option<&ContainerId>,
        sees_exec: bool,
    ) -> Result<FilterOutcome> {
        let bundle = self.tree.path("b");
        apply(json, ContainerRef { bundle: &bundle, id, sees_exec }, self, self)
    }

    fn apply_bytes(&self, json: &[u8]) -> Result<FilterOutcome> {
        self.apply_for(json, None, true)
    }

    fn apply(&self, config: &Value) -> Result<FilterOutcome> {
        self.apply_bytes(&serde_json::to_vec(config).unwrap())
    }

    /// Runs a command of a case. `filter [as ID] [without-exec] PATCH` applies the filter to config.json with a JSON merge
    /// patch, and `again PATCH` to the last result. Other commands are the shell's.
    fn run(&self, command: &str) -> String {
        let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
        if word != "filter" && word != "again" {
            let shell = Command::new("/bin/sh")
                .args(["-ec", command])
                .current_dir(self.tree.root())
                .output()
                .unwrap();
            assert!(shell.status.success(), "{command}: {shell:?}");
            return String::from_utf8(shell.stdout).unwrap();
        }
        let (words, patch) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
        let id: Option<ContainerId> =
            words.split_once("as ").map(|(_, id)| id.split(' ').next().unwrap().parse().unwrap());
        let mut before = match word {
            "again" => serde_json::from_str(&self.tree.read("result.json")).unwrap(),
            _ => config(&json!({})),
        };
        if !patch.is_empty() {
            case::merge(&mut before, &serde_json::from_str(patch).expect(patch));
        }
        let filter =
            |json: &[u8]| self.apply_for(json, id.as_ref(), !words.contains("without-exec"));
        let json = serde_json::to_vec(&before).unwrap();
        let outcome = match filter(&json) {
            Ok(outcome) => outcome,
            Err(error) => {
                return format!("error: {}\n", self.shorten(&ErrorChain(&error).to_string()));
            }
        };
        let mut text = String::new();
        for warning in &outcome.report.warnings {
            text += &format!("warning: {}\n", self.shorten(warning));
        }
        if words.contains("reasons") {
            outcome.report.reasons.iter().for_each(|reason| text += &format!("{reason}\n"));
        }
        if outcome.guards_exec {
            text += "watches exec\n";
        }
        if let Some(file) = &outcome.file {
            text += &format!("list of {}:\n{}", file.id, String::from_utf8_lossy(&file.bytes));
        }
        let Some(config) = &outcome.config else {
            return text + "unchanged\n";
        };
        let after = written(config);
        text += &case::changes(&case::flatten(&before), &case::flatten(&after));
        self.tree.file("result.json", config);
        // A container may start twice from one bundle.
        match filter(config) {
            Ok(twice)
                if twice.config.is_none()
                    && twice.file == outcome.file
                    && twice.guards_exec == outcome.guards_exec => {}
            twice => text += &format!("twice: {twice:?}\n"),
        }
        text
    }

    fn shorten(&self, message: &str) -> String {
        message.replace(self.tree.root().to_str().unwrap(), "")
    }
}

impl NodeLookup for FakeHost {
    fn node(&self, host_path: &str) -> io::Result<HostNode> {
        let nodes = self.tree.read("nodes");
        let node = nodes
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .rfind(|node| node[3] == host_path)
            .ok_or(io::ErrorKind::NotFound)?;
        let (major, minor) = node[1].split_once(':').unwrap();
        Ok(HostNode {
            kind: if node[0] == "c" { NodeKind::Char } else { NodeKind::Block },
            major: major.parse().unwrap(),
            minor: minor.parse().unwrap(),
            mode: u32::from_str_radix(node[2], 8).unwrap(),
        })
    }
}

impl Pools for FakeHost {
    fn choose(&self, request: &PoolRequest) -> Result<Reservation> {
        let devices = choose_without_leases(&request.devices, request.numa, &|_| None);
        Ok(Reservation { token: [7; 16].into(), devices: devices? })
    }

    fn ticket(&self, id: &Token, _: ContainerRef<'_>, _: Option<&Path>) -> Result<Ticket> {
        Err(tickets::unknown_error(id))
    }
}

impl HostView for FakeHost {
    fn settings(&self) -> Result<HookSettings> {
        let config = HookConfig::parse(&self.tree.read("config.toml"))?;
        Ok(HookSettings { config, file: PathBuf::from("/etc/onload-ctk/config.toml") })
    }

    fn specs(&self, _wanted: &[Class]) -> Result<OnloadSpecs> {
        let source = |name: &String| SpecSource {
            path: PathBuf::from(format!("/etc/cdi/{name}")),
            priority: 0,
            content: onload_cdi::from_json(self.tree.read(&format!("cdi/{name}")).as_bytes())
                .map_err(Into::into),
        };
        Ok(OnloadSpecs::from_sources(self.tree.names("cdi").iter().map(source).collect()))
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at_root(self.tree.path("sys"))
    }

    fn privilege(&self) -> Privilege {
        let words = self.tree.read("privilege");
        let limit = |name: &str| {
            words
                .split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        Privilege {
            is_initial_namespace: words.contains("initial-namespace"),
            may_raise_limits: words.contains("raise-limits"),
            memlock_hard: limit("memlock"),
            nofile_soft: Some(1024),
            nofile_hard: limit("nofile"),
        }
    }

    fn check_preload_file(&self) -> Result<()> {
        if !self.tree.path("no-preload-file").exists() {
            return Ok(());
        }
        let path = PathBuf::from("/usr/share/onload-ctk/ld.so.preload");
        Err(TrustError::Open { path, source: io::ErrorKind::NotFound.into() }.into())
    }

    fn files(&self) -> &TrustedTree {
        &self.files
    }

    fn drain(&self) -> Result<DrainList> {
        DrainList::parse(self.tree.read("drain.json").as_bytes())
    }

    fn interfaces(&self) -> Result<Vec<Link>> {
        let names = [("ens1f0v3", "enp59s2v3"), ("eno9", "enp0s9")];
        let links = names.map(|(name, other)| Link {
            name: name.into(),
            alternative_names: vec![other.into()],
            ..Link::default()
        });
        Ok(links.into())
    }

    fn library_summary(&self, _path: &str) -> Option<ElfSummary> {
        Some(ElfSummary { machine: 62, is_64: true, ..ElfSummary::default() })
    }
}

/// A written configuration, which another crate's types of the OCI specification accept.
fn written(config: &[u8]) -> Value {
    serde_json::from_slice::<Spec>(config).unwrap();
    serde_json::from_slice(config).unwrap()
}

#[test]
fn cases_of_the_filter_print_what_their_files_say() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/filter"), |case| {
        let host = FakeHost::new(&case.files());
        add_own_loader(&host);
        Some(move |command: &str| host.run(command))
    });
}

fn config(annotations: &Value) -> Value {
    let (_, text) = case::sections(BASE).pop().unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["annotations"] = annotations.clone();
    config
}

fn ask(class: &str, names: &str) -> Value {
    config(&json!({format!("onload.dev/{class}"): names}))
}

/// Puts a program whose loader of glibc searches only its own directory into `own-loader`, a root file system.
fn add_own_loader(host: &FakeHost) {
    let loader = "/nix/glibc/lib/ld-linux-x86-64.so.2";
    let directory = loader.trim_end_matches("ld-linux-x86-64.so.2");
    let glibc = |soname: &str| SharedLibrary::new(soname).defines("GLIBC_2.36", &["a"]);
    let file = |path: &str, bytes: Vec<u8>| {
        host.tree.file(&format!("b/own-loader{path}"), bytes);
    };
    file("/bin/app", program_with_loader(loader));
    file(loader, glibc("ld-linux-x86-64.so.2").says(directory).bytes());
    file(&format!("{directory}libc.so.6"), glibc("libc.so.6").bytes());
}

/// An ELF file of x86-64 with one program header, PT_INTERP.
fn program_with_loader(loader: &str) -> Vec<u8> {
    let mut file = vec![0_u8; 120];
    file[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0");
    (file[20], file[32], file[52], file[54], file[56]) = (1, 64, 64, 56, 1);
    let size = u64::try_from(loader.len() + 1).unwrap().to_le_bytes();
    (file[64], file[72]) = (3, 120);
    file[96..104].copy_from_slice(&size);
    file[104..112].copy_from_slice(&size);
    file.extend(loader.bytes().chain([0]));
    file
}

#[test]
fn what_nobody_knows_stays_as_it_was_spelled() {
    let json = r#"{ "future": {"x": 1e3, "y": 0.10, "z": 12345678901234567890123},
  "process" : {"user":{"uid":0.0e0,"gid":0},"args":["/bin/app"],"env":["PATH=\/bin"],"cwd":"/","new":[1.50]},
  "root":{"path":"rootfs"},  "mounts":[{"destination":"/dev","type":"tmpfs","x":1E2}],
  "annotations":{"onload.dev\/nic-nodes":"ens1", "other":"\u00e4\/"},
  "linux":{"seccomp":{"a":[1e0]},"resources":{"pids":{"limit":1e2}}} }"#;
    // A user id that is not an integer is somebody else's mistake, and is not repaired here.
    assert!(FakeHost::new(&[]).apply_bytes(json.as_bytes()).is_err());
    let json = json.replace("0.0e0", "0");
    let outcome = FakeHost::new(&[]).apply_bytes(json.as_bytes()).unwrap();
    let after = String::from_utf8(outcome.config.unwrap()).unwrap();
    for kept in [
        r#""future":{"x": 1e3, "y": 0.10, "z": 12345678901234567890123}"#,
        r#""new":[1.50]"#,
        r#""PATH=\/bin""#,
        r#""other":"\u00e4\/""#,
        r#""onload.dev\/nic-nodes":"ens1""#,
        r#"{"a":[1e0]}"#,
        r#"{"limit":1e2}"#,
        r#""x":1E2"#,
        r#""ENS1=ens1""#,
    ] {
        let squeezed = after.replace("\": ", "\":").replace(", ", ",");
        assert!(
            squeezed.contains(&kept.replace("\": ", "\":").replace(", ", ",")),
            "{kept} in {after}"
        );
    }
}

#[test]
fn broken_configurations_that_ask_are_refused() {
    let host = FakeHost::new(&[]);
    let whole = serde_json::to_string(&ask("nic", "all")).unwrap();
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let broken = [
        whole[..whole.len() - 2].to_owned(),
        whole.replace("\"root\":", "\"annotations\":{},\"root\":"),
        whole.replace(
            "\"onload.dev/nic\":\"all\"",
            "\"onload.dev/nic\":\"all\",\"onload.dev/nic\":\"ens1\"",
        ),
        whole.replace(
            "\"onload.dev/nic\":\"all\"",
            "\"onload.dev/nic\":\"all\",\"onload.dev\\/nic\":\"ens1\"",
        ),
        whole.replace("\"annotations\":", "\"Annotations\":"),
        whole.replace("\"onload.dev/nic\":\"all\"", &format!("\"onload.dev/nic\":{deep}")),
        whole.replace("\"onload.dev/nic\":\"all\"", "\"onload.dev/nic\":null"),
        // Go's reader folds these letters into s and k (encoding/json, fold.go).
        whole.replace("\"ociVersion\":", "\"mount\u{17f}\":[],\"ociVersion\":"),
        whole.replace("\"ociVersion\":", "\"hoo\u{212a}s\":{},\"ociVersion\":"),
        whole.replace("\"ociVersion\":", "\"Root\":{},\"ociVersion\":"),
        whole.replace("\"path\":\"rootfs\"", "\"path\":\"rootfs\",\"Path\":\"/x\""),
        whole.replace("\"type\":\"tmpfs\"", "\"type\":\"tmpfs\",\"Type\":\"bind\""),
        whole.replace("[\"nosuid\"]", "[null,\"rbind\"]"),
        whole.replace("[\"nosuid\"]", "\"rbind\""),
        whole.replace("\"destination\":\"/dev\"", "\"destination\":[\"/dev\"]"),
        whole.replace("\"uid\":1000", "\"uid\":1000,\"Uid\":0"),
        whole.replace("\"resources\":{", "\"resources\":{\"Devices\":[],"),
        "\"onload.dev/nic\"".to_owned(),
        "onload.dev/nic".to_owned(),
    ];
    for json in broken {
        assert_ne!(json, whole);
        assert!(host.apply_bytes(json.as_bytes()).is_err(), "{}", &json[..json.len().min(300)]);
    }
}

#[test]
fn nesting_that_nobody_opens_is_no_trouble() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let json = serde_json::to_string(&ask("nic-nodes", "ens1")).unwrap().replacen(
        '{',
        &format!("{{\"deep\":{deep},"),
        1,
    );
    let after = FakeHost::new(&[]).apply_bytes(json.as_bytes()).unwrap().config.unwrap();
    assert!(String::from_utf8(after).unwrap().contains(&deep));
}

/// Annotations that the fake host can satisfy, in many combinations.
fn annotations() -> impl Strategy<Value = Value> {
    let class = |key: &'static str, names: &'static [&'static str]| {
        proptest::option::of(proptest::sample::select(names).prop_map(move |name| (key, name)))
    };
    (
        class("onload.dev/nic", &["all"]),
        class("onload.dev/nic-nodes", &["all", "ens1", "all,ens1", "ens1, all, ens1"]),
        class("onload.dev/profile", &["latency"]),
        class("onload.dev/rdma", &["rxe0", "all", "rxe0,all"]),
        class("onload.dev/hugepages", &["2Mi"]),
        class("onload.dev/hugepages-limit", &["2Mi=4Mi", "1Gi=1Gi,2Mi=0"]),
        class("example.com/x", &["y", "onload.dev/nic"]),
        (proptest::sample::select(&["", "env", "file", "off"][..]), any::<bool>()),
    )
        .prop_map(|(nic, nodes, profile, rdma, huge, limit, other, (preload, lock))| {
            let chosen = [nic, nodes, profile, rdma, huge, limit, other];
            let mut map: serde_json::Map<String, Value> = chosen
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.to_owned(), value.into()))
                .collect();
            if map.contains_key("onload.dev/nic") && !preload.is_empty() {
                map.insert("onload.dev/preload".to_owned(), preload.into());
            }
            if lock
                && (map.contains_key("onload.dev/rdma") || map.contains_key("onload.dev/hugepages"))
            {
                map.insert("onload.dev/ipc-lock".to_owned(), "true".into());
            }
            Value::Object(map)
        })
}

/// What a container may have in addition.
fn base() -> impl Strategy<Value = Value> {
    let flags = proptest::collection::vec(any::<bool>(), 8);
    (annotations(), flags, 0_u32..3).prop_map(|(annotations, flags, uid)| {
        let mut config = config(&annotations);
        config["process"]["user"]["uid"] = uid.into();
        if flags[0] {
            config["process"]["env"] = json!(["LD_PRELOAD=liba.so", "EF_SPIN=7", "A=0"]);
        }
        if flags[1] {
            config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 1_u64 << 24}, {"type": "RLIMIT_MEMLOCK", "soft": 1, "hard": 2}]);
        }
        if flags[2] {
            config["linux"]["devices"] = json!([{"path": "/dev/onload", "type": "c", "major": 243, "minor": 0}]);
        }
        if flags[3] {
            config["linux"]["resources"]["devices"] = json!([{"allow": true, "type": "c", "major": 243, "minor": 0, "access": "rwm"}]);
        }
        if flags[4] {
            config["hooks"] = json!({"poststart": [{"path": "/bin/true", "args": ["true"], "env": ["X=1"]}]});
        }
        if flags[5] {
            config["process"]["capabilities"] = json!({"bounding": ["CAP_KILL", "CAP_IPC_LOCK"]});
        }
        if flags[6] {
            config["mounts"].as_array_mut().unwrap().insert(0, json!({"destination": "/a/b/c", "source": "/s", "options": ["bind"]}));
        }
        if flags[7] {
            config["process"].as_object_mut().unwrap().remove("env");
            config.as_object_mut().unwrap().remove("linux");
        }
        config
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn applying_twice_gives_what_applying_once_gives(config in base()) {
        let host = FakeHost::new(&[]);
        let once = host.apply(&config).unwrap();
        if let Some(mut bytes) = once.config {
            bytes.push(b'\n');
            let twice = host.apply_bytes(&bytes).unwrap();
            prop_assert_eq!(twice.config.map(|bytes| String::from_utf8(bytes).unwrap()), None);
        }
    }

    /// If CDI can express a whole request, the filter and the CDI library agree.
    #[test]
    fn what_cdi_can_say_is_injected_as_cdi_does_it(names in proptest::sample::select(&["all", "ens1", "all,ens1", "ens1,all"][..]), uid in 0_u32..2) {
        let host = FakeHost::new(&[]);
        let mut config = ask("nic-nodes", names);
        config["process"]["user"]["uid"] = uid.into();
        let json = serde_json::to_vec(&config).unwrap();
        let specs = host.specs(&[]).unwrap();
        let annotations = BTreeMap::from([("onload.dev/nic-nodes".to_owned(), names.to_owned())]);
        let request = onload_core::request::Request::parse(&annotations).unwrap().unwrap();
        let edits = specs.merge_edits(&specs.resolve(&request).unwrap());
        let mut theirs = OciConfig::parse(&json).unwrap();
        onload_cdi::oci::apply(&mut theirs, &edits, &host).unwrap();
        let ours = host.apply_bytes(&json).unwrap().config.unwrap();
        prop_assert_eq!(String::from_utf8(ours).unwrap(), String::from_utf8(theirs.to_bytes()).unwrap());
    }

    #[test]
    fn nothing_that_is_thrown_at_it_makes_it_panic(text in ".{0,64}", value in ".{0,32}") {
        let host = FakeHost::new(&[]);
        let _ = host.apply_bytes(format!("{{\"annotations\":{{\"onload.dev/{text}\":\"{value}\"}}}}").as_bytes());
        let _ = host.apply(&super_config(&text, &value));
    }
}

fn super_config(key: &str, value: &str) -> Value {
    config(&json!({format!("onload.dev/{key}"): value, "onload.dev/nic": value}))
}

#[test]
fn configurations_of_the_specification_s_own_pass_byte_for_byte() {
    let host = FakeHost::new(&[]);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oci");
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let outcome = host.apply_bytes(&bytes).unwrap();
        assert_eq!(format!("{outcome:?}"), format!("{:?}", FilterOutcome::default()), "{path:?}");
        // What is opened and written again without a change is identical to the byte.
        if let Ok(config) = OciConfig::parse(&bytes) {
            assert!(config.to_bytes() == bytes.trim_ascii(), "{path:?}");
        }
        count += 1;
    }
    assert!(count >= 5, "the fixtures are there");
}

#[test]
fn what_is_written_says_to_another_reader_what_was_meant() {
    let host = FakeHost::new(&[]);
    let asks =
        json!({"onload.dev/nic": "all", "onload.dev/rdma": "rxe0", "onload.dev/hugepages": "2Mi"});
    let outcome = host.apply(&config(&asks)).unwrap();
    let spec: Spec = serde_json::from_slice(&outcome.config.unwrap()).unwrap();
    let linux = spec.linux().as_ref().unwrap();
    let nodes: Vec<(&str, i64, i64)> = linux
        .devices()
        .iter()
        .flatten()
        .map(|node| (node.path().to_str().unwrap(), node.major(), node.minor()))
        .collect();
    let wanted = [
        ("/dev/onload", 243, 0),
        ("/dev/infiniband/uverbs0", 231, 192),
        ("/dev/infiniband/rdma_cm", 10, 260),
    ];
    assert_eq!(nodes, wanted);
    let rules = linux.resources().as_ref().unwrap().devices();
    let allowed: Vec<_> = rules
        .iter()
        .flatten()
        .filter(|rule| rule.allow())
        .map(|rule| (rule.major(), rule.minor()))
        .collect();
    assert_eq!(allowed, wanted.map(|(_, major, minor)| (Some(major), Some(minor))));
    let types: Vec<_> =
        spec.mounts().iter().flatten().filter_map(|mount| mount.typ().as_deref()).collect();
    assert!(types.contains(&"hugetlbfs"), "{types:?}");
    let limits: Vec<_> = spec
        .process()
        .as_ref()
        .unwrap()
        .rlimits()
        .iter()
        .flatten()
        .map(PosixRlimit::hard)
        .collect();
    assert_eq!(limits, [u64::MAX]);
}

#[test]
fn a_state_that_another_writer_writes_is_read() {
    for (status, is_stopped) in [
        (ContainerState::Creating, false),
        (ContainerState::Created, false),
        (ContainerState::Running, false),
        (ContainerState::Stopped, true),
    ] {
        let state = StateBuilder::default()
            .version("1.2.0")
            .id("c1")
            .status(status)
            .pid(4711)
            .bundle("/b")
            .build()
            .unwrap();
        let read = OciState::read(serde_json::to_vec(&state).unwrap().as_slice(), true).unwrap();
        assert_eq!((read.id.as_str(), read.pid), ("c1", Some(4711)));
        assert_eq!((read.bundle, read.is_stopped), (PathBuf::from("/b"), is_stopped));
    }
}
