//! The filter with a fake host: what is written, what is kept, what is refused.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{ContainerState, PosixRlimit, Spec, StateBuilder};
use onload_cdi::SpecSource;
use onload_cdi::oci::{HostNode, NodeKind, NodeLookup, OciConfig};
use onload_core::class::Class;
use onload_core::config::{HookConfig, Memlock, RdmaLibraries, RootWithOnload};
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
use onload_sys::fs::trust::{TrustedOwners, TrustedTree};
use onload_sys::netlink::link::Link;
use onload_sys::text::ErrorChain;
use onload_test_tree::Tree;
use onload_test_tree::elf::SharedLibrary;
use proptest::prelude::*;
use serde_json::{Value, json};

const NIC: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/nic",
  "containerEdits":{
    "deviceNodes":[{"path":"/dev/onload","permissions":"rw"}],
    "mounts":[{"hostPath":"/usr/lib64/libonload.so","containerPath":"/usr/lib64/libonload.so","options":["ro","bind"]}],
    "env":["LD_PRELOAD=libonload.so","EF_FDTABLE_SIZE=524288"]},
  "devices":[{"name":"all","containerEdits":{"env":["ONLOAD_CTK_NIC_ENS1=ens1"]}}]}"#;
const NODES: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/nic-nodes",
  "containerEdits":{"deviceNodes":[{"path":"/dev/onload","permissions":"rw"},{"path":"/dev/onload_epoll"}]},
  "devices":[{"name":"all","containerEdits":{"env":["A=1"],"mounts":[
      {"hostPath":"/usr/bin/onload","containerPath":"/usr/bin/onload","options":["ro","bind"]},
      {"hostPath":"/usr/share/x","containerPath":"/x","options":["ro","bind"]}],
      "hooks":[{"hookName":"poststart","path":"/bin/true","args":["true"],"env":["X=1"]}]}},
    {"name":"ens1","containerEdits":{"env":["ENS1=ens1"]}}]}"#;
const PROFILE: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/profile",
  "devices":[{"name":"latency","containerEdits":{"env":["EF_POLL_USEC=100000","EF_SPIN=1"]}}]}"#;
const RDMA: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/rdma",
  "devices":[{"name":"rxe0","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0","permissions":"rw"},{"path":"/dev/infiniband/rdma_cm","permissions":"rw"}]}},
    {"name":"all","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0","permissions":"rw"}]}},
    {"name":"checked","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0"}],"hooks":[{"hookName":"createRuntime","path":"/usr/bin/onload-hook",
      "args":["onload-hook","createRuntime","--memlock","unlimited","--expect","/dev/infiniband/uverbs0=rdma:rxe0#231:192"],"env":["PATH=/usr/bin"]}]}},
    {"name":"fabric","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0"}]}}]}"#;
const VFIO: &str = r#"{"cdiVersion":"0.5.0","kind":"onload.dev/vfio",
  "containerEdits":{"deviceNodes":[{"path":"/dev/vfio/vfio","permissions":"rw"},{"path":"/dev/vhost-net","permissions":"rw"},{"path":"/dev/net/tun","permissions":"rw"}]},
  "devices":[{"name":"0000:81:10.0","containerEdits":{"deviceNodes":[{"path":"/dev/vfio/15","permissions":"rw"}]}}]}"#;
const HUGE: &str = r#"{"cdiVersion":"0.5.0","kind":"onload.dev/hugepages",
  "devices":[{"name":"2Mi","containerEdits":{"mounts":[{"hostPath":"hugetlbfs","containerPath":"/dev/hugepages-2Mi","type":"hugetlbfs","options":["nosuid","nodev","pagesize=2M","mode=1777"]}]}}]}"#;

const ZF: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/zf",
  "containerEdits":{"deviceNodes":[{"path":"/dev/onload","permissions":"rw"},{"path":"/dev/sfc_char","permissions":"rw"}],
    "hooks":[{"hookName":"createRuntime","path":"/usr/bin/onload-hook","args":["onload-hook","createRuntime",
      "--expect","/dev/onload=nic:onload#243:0","--expect","/dev/sfc_char=zf:sfc_char#244:0"],"env":["PATH=/usr/bin"],"timeout":10}]},
  "devices":[{"name":"ens1","containerEdits":{"env":["ONLOAD_CTK_ZF_ENS1=ens1"]}}]}"#;
/// What `select-interface` adds: a choice for each device, and one file of an operator's own.
const CHOICES: [&str; 4] = [
    r#"{"cdiVersion":"0.3.0","kind":"onload.dev/nic","devices":[
        {"name":"ens2","containerEdits":{"env":["EF_INTERFACE_WHITELIST=ens2"]}},
        {"name":"ens3","containerEdits":{"env":["EF_INTERFACE_WHITELIST=ens3"]}},
        {"name":"loopback","containerEdits":{"env":["ONLOAD_CTK_NIC_LOOPBACK=loopback"]}}]}"#,
    r#"{"cdiVersion":"0.3.0","kind":"onload.dev/nic-plain","devices":[
        {"name":"ens2","containerEdits":{"env":["EF_INTERFACE_WHITELIST=ens2"]}},
        {"name":"ens3","containerEdits":{"env":["EF_INTERFACE_WHITELIST=ens3"]}}]}"#,
    r#"{"cdiVersion":"0.3.0","kind":"onload.dev/zf","devices":[
        {"name":"ens2","containerEdits":{"env":["ZF_ATTR=interface=ens2"]}},
        {"name":"ens3","containerEdits":{"env":["ZF_ATTR=interface=ens3"]}}]}"#,
    r#"{"cdiVersion":"0.3.0","kind":"onload.dev/profile","devices":[
        {"name":"wide","containerEdits":{"env":["EF_INTERFACE_WHITELIST=ens2 ens3"]}}]}"#,
];
const CLOCKS: [&str; 2] = [
    r#"{"cdiVersion":"0.3.0","kind":"onload.dev/ptp",
  "devices":[{"name":"ptp0","containerEdits":{"deviceNodes":[{"path":"/dev/ptp0","permissions":"r"}]}}]}"#,
    r#"{"cdiVersion":"0.3.0","kind":"onload.dev/pps",
  "devices":[{"name":"pps0","containerEdits":{"deviceNodes":[{"path":"/dev/pps0","permissions":"r"}]}}]}"#,
];
/// One of an operator's own, without an expectation.
const GDRCOPY: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/gdrcopy",
  "devices":[{"name":"gdrdrv","containerEdits":{"deviceNodes":[{"path":"/dev/gdrdrv","permissions":"rw"}]}}]}"#;

/// As discovery writes it; `fast` is a pool.
const NETDEV: &str = r#"{"cdiVersion":"0.6.0","kind":"onload.dev/netdev","devices":[
    {"name":"ens1f0v3","containerEdits":{"env":["ONLOAD_CTK_NETDEV_ENS1F0V3=ens1f0v3"],"hooks":[
      {"hookName":"createRuntime","path":"/usr/bin/onload-hook","args":["onload-hook","createRuntime",
        "--lease","netdev:ens1f0v3","--netdev","ens1f0v3@0000:3b:02.1"],"env":["PATH=/usr/bin"]},
      {"hookName":"poststop","path":"/usr/bin/onload-hook","args":["onload-hook","poststop",
        "--lease","netdev:ens1f0v3","--netdev","ens1f0v3@0000:3b:02.1"],"env":["PATH=/usr/bin"]}]}},
    {"name":"fast","containerEdits":{"hooks":[{"hookName":"createRuntime","path":"/usr/bin/onload-hook",
      "args":["onload-hook","createRuntime","--take","netdev:fast"],"env":["PATH=/usr/bin"]}]}}]}"#;

/// A host with these specifications, and a directory for the container's root and for sysfs.
#[derive(Debug)]
struct FakeHost {
    tree: Tree,
    config: HookConfig,
    privilege: Privilege,
    nodes: BTreeMap<String, HostNode>,
    has_preload_file: bool,
    /// The content of /proc/41/uid_map.
    user_map: String,
    files: TrustedTree,
    /// The content of drain.json.
    drain: &'static str,
}

impl FakeHost {
    fn new() -> Self {
        let tree = Tree::new();
        for path in
            ["b/rootfs/etc", "b/rootfs/usr/lib64", "b/rootfs/dev", "sys/class/infiniband/rxe0"]
        {
            tree.directory(path);
        }
        let mut config = HookConfig::default();
        config.annotations.allow = Class::ALL.to_vec();
        config.cdi.rdma_libraries = RdmaLibraries::Off;
        let node = |major, minor| HostNode { kind: NodeKind::Char, major, minor, mode: 0o666 };
        let nodes = [
            ("/dev/onload", node(243, 0)),
            ("/dev/onload_epoll", node(242, 0)),
            ("/dev/infiniband/uverbs0", node(231, 192)),
            ("/dev/infiniband/rdma_cm", node(10, 260)),
        ];
        let owner = std::fs::metadata(tree.root()).unwrap().uid();
        let files =
            TrustedTree::for_tree(tree.root(), TrustedOwners::from_users(&[0, owner])).unwrap();
        let host = FakeHost {
            tree,
            config,
            privilege: Privilege {
                is_initial_namespace: true,
                may_raise_limits: true,
                memlock_hard: Some(65536),
                nofile_soft: Some(1024),
                nofile_hard: Some(1_048_576),
            },
            nodes: nodes.into_iter().map(|(path, node)| (path.to_owned(), node)).collect(),
            has_preload_file: true,
            user_map: String::new(),
            files,
            drain: r#"{"version":1}"#,
        };
        host.sysfs_file("infiniband_verbs/uverbs0/ibdev", "rxe0\n");
        host.sysfs_file("infiniband_verbs/uverbs0/dev", "231:192\n");
        host.sysfs_file("misc/rdma_cm/dev", "10:260\n");
        host.sysfs_file("onload/onload/dev", "243:0\n");
        host.sysfs_file("onload_epoll/onload_epoll/dev", "242:0\n");
        host
    }

    fn sysfs_file(&self, path: &str, text: &str) {
        self.tree.file(&format!("sys/class/{path}"), text);
    }

    fn root_file(&self, path: &str, text: &str) {
        self.tree.file(&format!("b/rootfs/{path}"), text);
    }

    fn apply_bytes(&self, json: &[u8]) -> Result<FilterOutcome> {
        let bundle = self.tree.path("b");
        apply(json, ContainerRef { bundle: &bundle, id: None, sees_exec: true }, self, self)
    }

    fn apply(&self, config: &Value) -> Result<FilterOutcome> {
        self.apply_bytes(&serde_json::to_vec(config).unwrap())
    }

    fn after(&self, config: &Value) -> Value {
        let outcome = self.apply(config).unwrap();
        written(&outcome.config.unwrap())
    }

    fn refusal(&self, config: &Value) -> String {
        ErrorChain(&self.apply(config).unwrap_err()).to_string()
    }
}

impl NodeLookup for FakeHost {
    fn node(&self, host_path: &str) -> io::Result<HostNode> {
        self.nodes.get(host_path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
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
        Ok(HookSettings {
            config: self.config.clone(),
            file: PathBuf::from("/etc/onload-ctk/config.toml"),
        })
    }

    fn specs(&self, _wanted: &[Class]) -> Result<OnloadSpecs> {
        let sources = [NIC, NODES, PROFILE, RDMA, HUGE, ZF]
            .iter()
            .chain(&CLOCKS)
            .chain([&GDRCOPY])
            .chain(&CHOICES)
            .chain([&VFIO, &NETDEV])
            .enumerate()
            .map(|(at, text)| SpecSource {
                path: PathBuf::from(format!("/etc/cdi/{at}.json")),
                priority: 0,
                content: onload_cdi::from_json(text.as_bytes()).map_err(Into::into),
            });
        Ok(OnloadSpecs::from_sources(sources.collect()))
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at_root(self.tree.path("sys"))
    }

    fn privilege(&self) -> Privilege {
        self.privilege
    }

    fn check_preload_file(&self) -> Result<()> {
        if self.has_preload_file {
            return Ok(());
        }
        let path = PathBuf::from("/usr/share/onload-ctk/ld.so.preload");
        let error = io::ErrorKind::NotFound.into();
        let source = error;
        Err(onload_sys::fs::trust::TrustError::Open { path, source }.into())
    }

    fn files(&self) -> &TrustedTree {
        &self.files
    }

    fn drain(&self) -> Result<DrainList> {
        DrainList::parse(self.drain.as_bytes())
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

    fn user_map(&self, pid: u32) -> Option<String> {
        (pid == 41).then(|| self.user_map.clone())
    }
}

/// A written configuration, which another crate's types of the OCI specification accept.
fn written(config: &[u8]) -> Value {
    serde_json::from_slice::<Spec>(config).unwrap();
    serde_json::from_slice(config).unwrap()
}

fn config(annotations: &Value) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 1000, "gid": 1000}, "args": ["/bin/app"], "env": ["PATH=/bin"], "cwd": "/"},
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                   {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]}],
        "annotations": annotations,
        "linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}]}}
    })
}

fn ask(class: &str, names: &str) -> Value {
    config(&json!({format!("onload.dev/{class}"): names}))
}

fn env(config: &Value) -> Vec<String> {
    config["process"]["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e.as_str().unwrap().to_owned())
        .collect()
}

/// Onload cannot raise the hard limit, says so in every program, and raises the soft one to it (`citp_fdtable_ctor`).
#[test]
fn a_bound_of_the_table_above_the_limit_of_open_files_is_left_out() {
    let has_bound = |host: &FakeHost, asked: &Value| {
        let bound = "EF_FDTABLE_SIZE=524288".to_owned();
        env(&host.after(asked)).contains(&bound)
    };
    let mut host = FakeHost::new();
    for (hard, wanted) in
        [(None, true), (Some(524_288), true), (Some(524_287), false), (Some(65_536), false)]
    {
        host.privilege.nofile_hard = hard;
        for preload in ["env", "off"] {
            let asked = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": preload}));
            assert_eq!(has_bound(&host, &asked), wanted, "{hard:?} {preload}");
        }
    }
    // The container's own limit counts before that of who starts it.
    let mut asked = ask("nic", "all");
    let limit = |hard: u64| json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": hard}]);
    asked["process"]["rlimits"] = limit(1_073_741_816);
    assert!(has_bound(&host, &asked));
    host.privilege.nofile_hard = Some(1_073_741_816);
    asked["process"]["rlimits"] = limit(4096);
    assert!(!has_bound(&host, &asked));
    // What the container says itself stays.
    asked["process"]["env"] = json!(["PATH=/bin", "EF_FDTABLE_SIZE=524288"]);
    assert!(has_bound(&host, &asked));
}

#[test]
fn a_request_gives_nodes_exact_rules_mounts_and_variables() {
    let after = FakeHost::new().after(&ask("nic", "all"));
    assert_eq!(
        env(&after),
        [
            "PATH=/bin",
            "EF_FDTABLE_SIZE=524288",
            "ONLOAD_CTK_NIC_ENS1=ens1",
            "LD_PRELOAD=libonload.so"
        ]
    );
    assert_eq!(
        after["linux"]["devices"],
        json!([{"path": "/dev/onload", "type": "c", "major": 243, "minor": 0, "fileMode": 438, "uid": 1000, "gid": 1000}])
    );
    assert_eq!(
        after["linux"]["resources"]["devices"],
        json!([{"allow": false, "access": "rwm"},
               {"allow": true, "type": "c", "major": 243, "minor": 0, "access": "rw"}])
    );
    let destinations: Vec<&str> = after["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["destination"].as_str().unwrap())
        .collect();
    assert_eq!(destinations, ["/proc", "/dev", "/usr/lib64/libonload.so"]);
    assert_eq!(after["process"]["capabilities"], Value::Null, "no capability unasked");
    assert_eq!(after["process"]["rlimits"], Value::Null, "no limit unasked");
}

#[test]
fn a_configuration_without_a_process_is_refused_where_it_asks_and_else_stays() {
    let host = FakeHost::new();
    for class in ["nic", "nic-nodes"] {
        let mut config = ask(class, "all");
        config.as_object_mut().unwrap().remove("process");
        let refusal = host.refusal(&config);
        assert!(refusal.contains("it has no \"process\""), "{refusal}");
    }
    let mut config = config(&json!({"other": "onload.dev/nic"}));
    config.as_object_mut().unwrap().remove("process");
    assert_eq!(host.apply(&config).unwrap().config, None);
}

#[test]
fn the_image_s_own_preload_stays_behind_ours() {
    let host = FakeHost::new();
    for (own, merged) in [
        ("libjemalloc.so", "libonload.so:libjemalloc.so"),
        ("a.so:b.so", "libonload.so:a.so:b.so"),
        ("a.so b.so", "libonload.so:a.so b.so"),
        ("a.so:libonload.so", "a.so:libonload.so"),
        ("libonload.so", "libonload.so"),
    ] {
        let mut config = ask("nic", "all");
        config["process"]["env"] = json!([format!("LD_PRELOAD={own}")]);
        let after = host.after(&config);
        assert!(env(&after).contains(&format!("LD_PRELOAD={merged}")), "{own}: {:?}", env(&after));
    }
}

#[test]
fn settings_that_the_container_brings_win_over_a_profile_s() {
    let mut config = ask("profile", "latency");
    config["process"]["env"] = json!(["EF_SPIN=0"]);
    assert_eq!(env(&FakeHost::new().after(&config)), ["EF_SPIN=0", "EF_POLL_USEC=100000"]);
}

/// The settings that choose an interface, after a request.
fn chosen(annotations: &Value, own: &[&str]) -> Vec<String> {
    let host = FakeHost::new();
    let mut config = config(annotations);
    let held = config["process"]["env"].as_array_mut().unwrap();
    held.extend(own.iter().map(|entry| json!(entry)));
    // A request for devices without nodes may change nothing.
    let outcome = host.apply(&config).unwrap();
    let after = outcome.config.map_or(config, |config| written(&config));
    let is_choice =
        |entry: &String| entry.starts_with("EF_INTERFACE") || entry.starts_with("ZF_ATTR");
    let chosen: Vec<String> = env(&after).into_iter().filter(is_choice).collect();
    assert_eq!(host.apply(&after).unwrap().config, None, "applied twice");
    chosen
}

const ENS2: &str = "EF_INTERFACE_WHITELIST=ens2";
const ZF_ENS3: &str = "ZF_ATTR=interface=ens3";

#[test]
fn one_interface_by_name_is_the_one_that_programs_use() {
    for (annotations, wanted) in [
        (json!({"onload.dev/nic": "ens2"}), &[ENS2][..]),
        (json!({"onload.dev/nic": "ens2,loopback"}), &[ENS2]),
        (json!({"onload.dev/nic-plain": "ens2"}), &[ENS2]),
        (json!({"onload.dev/nic": "ens2", "onload.dev/nic-plain": "ens2"}), &[ENS2]),
        (json!({"onload.dev/zf": "ens3"}), &[ZF_ENS3]),
        (json!({"onload.dev/nic": "ens2", "onload.dev/zf": "ens3"}), &[ENS2, ZF_ENS3]),
    ] {
        assert_eq!(chosen(&annotations, &[]), wanted, "{annotations}");
    }
}

#[test]
fn more_than_one_interface_chooses_none() {
    for annotations in [
        json!({"onload.dev/nic": "ens2,ens3"}),
        json!({"onload.dev/nic": "ens3,ens2"}),
        json!({"onload.dev/nic": "ens2,all"}),
        json!({"onload.dev/nic": "all"}),
        json!({"onload.dev/nic": "loopback"}),
        json!({"onload.dev/nic": "ens2", "onload.dev/nic-plain": "ens3"}),
        json!({"onload.dev/nic": "ens2", "onload.dev/nic-nodes": "all"}),
        json!({"onload.dev/zf": "ens2,ens3"}),
    ] {
        assert_eq!(chosen(&annotations, &[]), [""; 0], "{annotations}");
    }
    // Each of the two products counts its own.
    let both = json!({"onload.dev/nic": "ens2,ens3", "onload.dev/zf": "ens3"});
    assert_eq!(chosen(&both, &[]), [ZF_ENS3]);
}

#[test]
fn the_interface_that_the_container_itself_or_a_profile_names_wins() {
    let nic = json!({"onload.dev/nic": "ens2"});
    for own in [
        "EF_INTERFACE_WHITELIST=eth0",
        "EF_INTERFACE_WHITELIST=",
        "EF_INTERFACE_WHITELIST=ens2 ens3",
    ] {
        assert_eq!(chosen(&nic, &[own]), [own]);
    }
    let zf = json!({"onload.dev/zf": "ens3"});
    let own = "ZF_ATTR=log_level=0x1;interface=eth0";
    assert_eq!(chosen(&zf, &[own]), [own]);
    // Another variable of that beginning is another variable.
    let own = "ZF_ATTRIBUTES=none";
    assert_eq!(chosen(&zf, &[own]), [own, ZF_ENS3]);
    for names in ["ens2", "ens2,ens3"] {
        let wide = json!({"onload.dev/nic": names, "onload.dev/profile": "wide"});
        assert_eq!(chosen(&wide, &[]), ["EF_INTERFACE_WHITELIST=ens2 ens3"]);
    }
}

#[test]
fn vhost_and_tun_are_given_before_their_modules_are_loaded_and_only_as_themselves() {
    let mut host = FakeHost::new();
    let node = |major, minor| HostNode { kind: NodeKind::Char, major, minor, mode: 0o600 };
    for (path, major, minor) in [
        ("/dev/vfio/vfio", 10, 196),
        ("/dev/vfio/15", 241, 15),
        ("/dev/vhost-net", 10, 238),
        ("/dev/net/tun", 10, 200),
    ] {
        host.nodes.insert(path.to_owned(), node(major, minor));
    }
    host.sysfs_file("misc/vfio/dev", "10:196\n");
    host.sysfs_file("vfio/15/dev", "241:15\n");
    let function = host.tree.path("sys/bus/pci/devices/0000:81:10.0");
    let group = host.tree.path("sys/kernel/iommu_groups/15");
    std::fs::create_dir_all(&function).unwrap();
    std::fs::create_dir_all(&group).unwrap();
    symlink(&group, function.join("iommu_group")).unwrap();
    let asked = ask("vfio", "0000:81:10.0");
    let devices = host.after(&asked)["linux"]["devices"].clone();
    let paths: Vec<&str> =
        devices.as_array().unwrap().iter().map(|device| device["path"].as_str().unwrap()).collect();
    for path in ["/dev/vhost-net", "/dev/net/tun"] {
        assert!(paths.contains(&path), "{paths:?}");
    }
    host.sysfs_file("misc/vhost-net/dev", "10:238\n");
    host.apply(&asked).unwrap();
    // Fuse's number, under vhost's name.
    host.nodes.insert("/dev/vhost-net".to_owned(), node(10, 229));
    for loaded in [true, false] {
        if !loaded {
            host.tree.remove("sys/class/misc/vhost-net");
        }
        let refusal = host.refusal(&asked);
        let says = "the node is 10:229 but the kernel's vhost-net is 10:238";
        assert!(refusal.contains(says), "{refusal}");
    }
    host.nodes.remove("/dev/vhost-net");
    let refusal = host.refusal(&asked);
    assert!(refusal.contains("device node /dev/vhost-net"), "{refusal}");
}

#[test]
fn the_annotation_chooses_how_to_preload() {
    let host = FakeHost::new();
    let with = |mode: &str| config(&json!({"onload.dev/nic": "all", "onload.dev/preload": mode}));
    let off = host.after(&with("off"));
    assert!(!env(&off).iter().any(|entry| entry.starts_with("LD_PRELOAD=")));
    let file = host.after(&with("file"));
    assert!(!env(&file).iter().any(|entry| entry.starts_with("LD_PRELOAD=")));
    let mount = file["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|m| m["destination"] == "/etc/ld.so.preload");
    assert_eq!(mount.unwrap()["source"], "/usr/share/onload-ctk/ld.so.preload");
    assert_eq!(
        file["process"]["rlimits"],
        json!([{"type": "RLIMIT_NOFILE", "hard": 524_288, "soft": 1024}]),
        "docker's limit would make the table too large"
    );
}

#[test]
fn preload_by_file_caps_the_limit_of_open_files_and_never_raises_it() {
    let host = FakeHost::new();
    for (held, capped) in [
        ((1_048_576_u64, 1_048_576_u64), (524_288_u64, 524_288_u64)),
        ((1024, 4096), (1024, 4096)),
        ((1024, 1 << 24), (1024, 524_288)),
    ] {
        let mut config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}));
        config["process"]["rlimits"] =
            json!([{"type": "RLIMIT_NOFILE", "soft": held.0, "hard": held.1}]);
        let after = host.after(&config);
        let limit = &after["process"]["rlimits"][0];
        assert_eq!(
            (limit["soft"].as_u64(), limit["hard"].as_u64()),
            (Some(capped.0), Some(capped.1))
        );
    }
}

/// On docker 26 a health check of `true` aborted so: exec has the limit of the engine or of --ulimit, and no variable.
#[test]
fn preload_by_file_is_refused_where_exec_would_have_too_high_a_limit_of_open_files() {
    let mut host = FakeHost::new();
    let mut config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}));
    host.privilege.nofile_hard = Some(1_073_741_816);
    let refusal = host.refusal(&config);
    for part in [
        "exec and health checks start would have an RLIMIT_NOFILE of 1073741816",
        "--ulimit nofile=524288:524288",
        "onload.dev/preload: env",
    ] {
        assert!(refusal.contains(part), "{part:?} in {refusal}");
    }
    let limit = |hard: u64| json!([{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": hard}]);
    config["process"]["rlimits"] = limit(1_048_576);
    assert!(host.apply(&config).is_ok(), "--ulimit counts for exec too");
    host.privilege.nofile_hard = Some(1_048_576);
    config["process"]["rlimits"] = limit((1 << 24) + 1);
    assert!(host.refusal(&config).contains("an RLIMIT_NOFILE of 16777217"));
    // The engine hands on to exec what NRI sets.
    host.privilege.nofile_hard = None;
    assert!(host.apply(&config).is_ok());
    host.privilege.nofile_hard = Some(1_073_741_816);
    config["annotations"]["onload.dev/preload"] = json!("env");
    assert!(host.apply(&config).is_ok());
}

/// podman gives a container without a limit its own one, after its hooks.
#[test]
fn preload_by_file_bounds_the_table_by_the_variable_too() {
    let mut host = FakeHost::new();
    host.config.cdi.fdtable_size = 4096;
    // A specification of an operator's own may not have it.
    let mut config = config(&json!({"onload.dev/nic": "ens2", "onload.dev/preload": "file"}));
    let bound = |config: &Value| {
        let mut env = env(&host.after(config));
        env.retain(|entry| entry.starts_with("EF_FDTABLE_SIZE="));
        env
    };
    assert_eq!(bound(&config), ["EF_FDTABLE_SIZE=4096"]);
    config["process"]["env"] = json!(["EF_FDTABLE_SIZE=77"]);
    assert_eq!(bound(&config), ["EF_FDTABLE_SIZE=77"]);
    config["annotations"] = json!({"onload.dev/nic": "all", "onload.dev/preload": "file"});
    config["process"]["env"] = json!([]);
    assert_eq!(bound(&config), [""; 0], "the specified bound is above the limit, which is 4096");
    config["annotations"] = json!({"onload.dev/nic": "ens2", "onload.dev/preload": "off"});
    assert_eq!(bound(&config), [""; 0]);
}

#[test]
fn preload_by_file_without_the_file_or_over_a_user_s_mount_is_refused() {
    let mut host = FakeHost::new();
    let mut config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}));
    host.root_file("etc/ld.so.preload", "libown.so\n");
    assert!(host.refusal(&config).contains("this entry point cannot merge it"));
    host.root_file("etc/ld.so.preload", "# nothing\nlibonload.so\n");
    assert!(host.apply(&config).is_ok());
    host.has_preload_file = false;
    assert!(host.refusal(&config).contains("/usr/share/onload-ctk/ld.so.preload"));
    host.has_preload_file = true;
    config["mounts"].as_array_mut().unwrap().push(
        json!({"destination": "/etc/ld.so.preload", "type": "bind", "source": "/home/me/list", "options": ["bind"]}),
    );
    assert!(host.refusal(&config).contains("the container has its own mount"));
}

#[test]
fn an_image_that_podman_mounts_later_is_not_taken_for_one_without_anything() {
    let host = FakeHost::new();
    host.root_file("lib/ld-musl-x86_64.so.1", "x");
    host.tree.directory("b/later");
    let with = |mode: &str, root: &str| {
        let mut config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": mode}));
        config["root"]["path"] = json!(root);
        config
    };
    for mode in ["env", "file"] {
        let refusal = host.refusal(&with(mode, "rootfs"));
        assert!(refusal.contains("the image's libc is musl"), "{refusal}");
    }
    let refusal = host.refusal(&with("file", "later"));
    let why = "annotation \"onload.dev/nic\": preloading by file: the container's root is empty, ";
    assert!(refusal.contains(why), "{refusal}");
    let outcome = host.apply(&with("env", "later")).unwrap();
    assert_eq!(outcome.report.warnings, [""; 0]);
    let after = written(&outcome.config.unwrap());
    assert!(env(&after).contains(&"LD_PRELOAD=libonload.so".to_owned()));
}

#[test]
fn an_image_s_list_is_merged_into_a_file_that_poststop_removes() {
    let host = FakeHost::new();
    host.root_file("etc/ld.so.preload", "/lib/libown.so libtwo.so\n");
    let json = serde_json::to_vec(&config(
        &json!({"onload.dev/nic": "all", "onload.dev/preload": "file"}),
    ))
    .unwrap();
    let id: ContainerId = "c1".parse().unwrap();
    let bundle = host.tree.path("b");
    let container = ContainerRef { bundle: &bundle, id: Some(&id), sees_exec: true };
    let outcome = apply(&json, container, &host, &host).unwrap();
    let file = outcome.file.unwrap();
    assert_eq!(
        String::from_utf8(file.bytes.clone()).unwrap(),
        "libonload.so\n/lib/libown.so\nlibtwo.so\n"
    );
    let config = outcome.config.unwrap();
    let after = written(&config);
    assert_eq!(
        after["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .find(|m| m["destination"] == "/etc/ld.so.preload")
            .unwrap()["source"],
        "/run/onload-ctk/c1/ld.so.preload"
    );
    assert_eq!(after["hooks"]["poststop"][0]["args"], json!(["onload-hook", "poststop"]));
    // The bundle may be started again after poststop has removed the file.
    let again = apply(&config, container, &host, &host).unwrap();
    assert_eq!((again.config, again.file), (None, Some(file)));
}

#[test]
fn a_libc_that_cannot_load_it_stops_the_container_or_skips_the_preload() {
    let mut host = FakeHost::new();
    host.tree.directory("b/rootfs/lib");
    host.root_file("lib/ld-musl-x86_64.so.1", "x");
    for mode in ["env", "file"] {
        let config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": mode}));
        host.config.annotations.on_incompatible = onload_core::config::OnIncompatible::Fail;
        let message = host.refusal(&config);
        assert!(
            message.contains("annotation \"onload.dev/nic\": the image's libc is musl"),
            "{message}"
        );
        host.config.annotations.on_incompatible = onload_core::config::OnIncompatible::Skip;
        let outcome = host.apply(&config).unwrap();
        assert!(
            outcome
                .report
                .warnings
                .iter()
                .any(|warning| warning.contains("is not preloaded: the image's libc is musl"))
        );
        let text = String::from_utf8(outcome.config.unwrap()).unwrap();
        assert!(
            !text.contains("LD_PRELOAD")
                && !text.contains("ld.so.preload")
                && text.contains("/dev/onload")
        );
    }
    host.config.annotations.on_incompatible = onload_core::config::OnIncompatible::Fail;
    host.after(&ask("nic-nodes", "all"));
}

/// A root file system whose program has a loader of glibc that searches only its own directory.
fn add_own_loader(host: &FakeHost) {
    let loader =
        "/nix/store/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-glibc-2.40-66/lib/ld-linux-x86-64.so.2";
    let directory = loader.trim_end_matches("ld-linux-x86-64.so.2");
    let glibc = |soname: &str| SharedLibrary::new(soname).defines("GLIBC_2.36", &["a"]);
    let file = |path: &str, bytes: Vec<u8>| {
        host.tree.file(&format!("b/rootfs{path}"), bytes);
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
fn a_loader_with_directories_of_its_own_is_given_the_library_s_path() {
    let host = FakeHost::new();
    add_own_loader(&host);
    let with = |mode: &str, env: &[&str]| {
        let mut config = config(&json!({"onload.dev/nic": "all", "onload.dev/preload": mode}));
        config["process"]["env"] = json!(env);
        config
    };
    for (held, expected) in [
        (&[][..], "LD_PRELOAD=/usr/lib64/libonload.so"),
        (&["LD_PRELOAD=/usr/lib64/libonload.so"], "LD_PRELOAD=/usr/lib64/libonload.so"),
        // As a specification gives it.
        (&["LD_PRELOAD=libonload.so"], "LD_PRELOAD=/usr/lib64/libonload.so"),
        (&["LD_PRELOAD=libown.so:libonload.so"], "LD_PRELOAD=/usr/lib64/libonload.so:libown.so"),
        (&["LD_PRELOAD=libown.so"], "LD_PRELOAD=/usr/lib64/libonload.so:libown.so"),
    ] {
        let after = host.after(&with("env", held));
        let mut preloads = env(&after);
        preloads.retain(|entry| entry.starts_with("LD_PRELOAD="));
        assert_eq!(preloads, [expected], "{held:?}");
        assert!(host.apply(&after).unwrap().config.is_none(), "{held:?}");
    }
    let refusal = host.refusal(&with("file", &[]));
    assert!(refusal.contains("this entry point cannot merge it"), "{refusal}");
    let id: ContainerId = "c1".parse().unwrap();
    let bundle = host.tree.path("b");
    let container = ContainerRef { bundle: &bundle, id: Some(&id), sees_exec: true };
    let json = serde_json::to_vec(&with("file", &[])).unwrap();
    let outcome = apply(&json, container, &host, &host).unwrap();
    assert_eq!(outcome.file.clone().unwrap().bytes, b"/usr/lib64/libonload.so\n");
    let again = apply(&outcome.config.unwrap(), container, &host, &host).unwrap();
    assert_eq!((again.config, again.file), (None, outcome.file));
}

#[test]
fn rdma_raises_the_memory_lock_limit_and_never_lowers_it() {
    let mut host = FakeHost::new();
    let after = host.after(&ask("rdma", "rxe0"));
    assert_eq!(
        after["process"]["rlimits"],
        json!([{"type": "RLIMIT_MEMLOCK", "hard": u64::MAX, "soft": u64::MAX}])
    );
    host.config.cdi.memlock = Memlock::Bytes(1000);
    let mut config = ask("rdma", "rxe0");
    config["process"]["rlimits"] = json!([{"type": "RLIMIT_MEMLOCK", "hard": 2000, "soft": 500}]);
    assert_eq!(
        host.after(&config)["process"]["rlimits"][0],
        json!({"type": "RLIMIT_MEMLOCK", "hard": 2000, "soft": 1000})
    );
}

#[test]
fn without_the_right_no_limit_above_one_s_own_is_written() {
    let mut host = FakeHost::new();
    host.privilege.may_raise_limits = false;
    let outcome = host.apply(&ask("rdma", "rxe0")).unwrap();
    assert!(outcome.report.warnings[0].contains("CAP_SYS_RESOURCE is missing"));
    let reached: Vec<&String> =
        outcome.report.reasons.iter().filter(|r| r.contains("RLIMIT_MEMLOCK")).collect();
    assert_eq!(reached, ["onload.dev/rdma: RLIMIT_MEMLOCK is 65536 bytes"]);
    let after = written(&outcome.config.unwrap());
    assert_eq!(
        after["process"]["rlimits"][0],
        json!({"type": "RLIMIT_MEMLOCK", "hard": 65536, "soft": 65536})
    );
}

#[test]
fn ipc_lock_goes_into_the_sets_that_the_user_needs() {
    let host = FakeHost::new();
    let mut config = config(&json!({"onload.dev/rdma": "rxe0", "onload.dev/ipc-lock": "true"}));
    let sets = |after: &Value| -> Vec<String> {
        after["process"]["capabilities"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(
        sets(&host.after(&config)),
        ["ambient", "bounding", "effective", "inheritable", "permitted"]
    );
    config["process"]["user"] = json!({"uid": 0, "gid": 0});
    assert_eq!(sets(&host.after(&config)), ["bounding", "effective", "permitted"]);
}

#[test]
fn limits_on_huge_pages_replace_those_of_the_same_size() {
    let mut config = config(
        &json!({"onload.dev/hugepages": "2Mi", "onload.dev/hugepages-limit": "2Mi=128Mi,1Gi=0"}),
    );
    config["linux"]["resources"]["hugepageLimits"] = json!([{"pageSize": "2MB", "limit": 0}]);
    let after = FakeHost::new().after(&config);
    assert_eq!(
        after["linux"]["resources"]["hugepageLimits"],
        json!([{"pageSize": "2MB", "limit": 134_217_728}, {"pageSize": "1GB", "limit": 0}])
    );
    assert_eq!(after["mounts"][2]["type"], "hugetlbfs");
}

#[test]
fn a_hugetlbfs_is_refused_by_name_where_only_root_could_mount_it() {
    let in_namespace = |class: &str, value: &str| {
        let mut config = ask(class, value);
        config["linux"]["namespaces"] = json!([{"type": "mount"}, {"type": "user"}]);
        config
    };
    let mut host = FakeHost::new();
    let message = "\"onload.dev/hugepages\": a hugetlbfs cannot be mounted";
    let refused = host.refusal(&in_namespace("hugepages", "2Mi"));
    assert!(refused.contains(message), "{refused}");
    host.after(&in_namespace("nic-nodes", "all"));
    host.privilege.is_initial_namespace = false;
    let refused = host.refusal(&ask("hugepages", "2Mi"));
    assert!(refused.contains(message), "{refused}");
    host.after(&ask("nic-nodes", "all"));
}

#[test]
fn a_target_under_a_user_s_mount_is_refused() {
    let host = FakeHost::new();
    for (at, class) in
        [("/usr/lib64", "nic"), ("/usr", "nic"), ("/dev", "nic-nodes"), ("/", "rdma")]
    {
        let mut config = ask(class, "all");
        config["mounts"].as_array_mut().unwrap().push(
            json!({"destination": at, "type": "bind", "source": at, "options": ["rbind", "rw"]}),
        );
        let message = host.refusal(&config);
        assert!(message.contains(&format!("is below the mount at {at:?}")), "{message}");
        assert!(message.contains(&format!("\"onload.dev/{class}\"")), "{message}");
    }
}

#[test]
fn mounts_are_judged_in_the_order_in_which_they_will_be_made() {
    let host = FakeHost::new();
    host.tree.directory("b/rootfs/x");
    host.tree.link("b/rootfs/x/d", "/dev");
    let mut config = ask("nic", "all");
    let bind =
        json!({"destination": "/x/d", "type": "bind", "source": "/volume", "options": ["rbind"]});
    // Sorted by depth, as the edits leave the list, it covers /dev.
    config["mounts"].as_array_mut().unwrap().insert(0, bind);
    let message = host.refusal(&config);
    assert!(message.contains("is below the mount at \"/x/d\""), "{message}");
}

#[test]
fn the_kernel_s_own_trees_may_be_bound_with_mounts_inside() {
    let host = FakeHost::new();
    let mut config = ask("nic-nodes", "all");
    let mounts = config["mounts"].as_array_mut().unwrap();
    for (at, source) in [("/sys", "/sys"), ("/sys/fs/cgroup", "/sys/fs/cgroup")] {
        mounts.push(json!({"destination": at, "type": "bind", "source": source, "options": ["rbind", "ro"]}));
    }
    host.after(&config);
    config["mounts"][2]["source"] = json!("/volume");
    config["mounts"][3]["source"] = json!("/elsewhere");
    assert!(host.refusal(&config).contains("inside the mount at \"/sys\""));
}

#[test]
fn who_asks_for_what_is_drained_is_told_since_when_and_why() {
    let mut host = FakeHost::new();
    host.drain = r#"{"version":1,"drained":[
        {"class":"rdma","name":"rxe9","since":0,"reason":"new firmware"},
        {"class":"ptp","since":0},{"class":"nic","name":"ens9","since":0}]}"#;
    for (class, name, message) in [
        (
            "rdma",
            "rxe9",
            "annotation \"onload.dev/rdma\": rdma \"rxe9\" is drained since 1970-01-01T00:00:00Z: new firmware; \"onload-ctk undrain rdma=rxe9\" offers it again",
        ),
        ("zf", "ens9", "\"onload-ctk undrain nic=ens9\" offers it again"),
        ("ptp", "ptp9", "\"onload-ctk undrain ptp\" offers it again"),
        // A pool of which nothing is left.
        (
            "rdma",
            "pool",
            "there is no rdma \"pool\"; offered: all, checked, fabric, rxe0; drained: rdma=rxe9, as \"onload-ctk drain\" shows",
        ),
    ] {
        let refusal = host.refusal(&ask(class, name));
        assert!(refusal.contains(message), "{refusal}");
    }
    // Nobody is refused what a specification has.
    host.apply(&ask("rdma", "rxe0")).unwrap();
    let refusal = host.refusal(&ask("vfio", "none"));
    assert!(!refusal.contains("drained"), "{refusal}");
    host.drain = "";
    let refusal = host.refusal(&ask("rdma", "rxe9"));
    assert!(
        refusal.contains("there is no rdma \"rxe9\"; ")
            && refusal.contains("; what is drained is not known: it is no list of what is drained"),
        "{refusal}"
    );
}

#[test]
fn the_host_s_own_root_is_no_container_s() {
    let mut config = ask("nic", "all");
    config["root"]["path"] = json!("/");
    assert!(FakeHost::new().refusal(&config).contains("is the host's own"));
}

#[test]
fn a_node_that_is_missing_or_no_character_device_is_refused() {
    let mut host = FakeHost::new();
    host.nodes.get_mut("/dev/onload").unwrap().kind = NodeKind::Block;
    assert!(host.refusal(&ask("nic", "all")).contains("/dev/onload is not a character device"));
    host.nodes.remove("/dev/onload");
    let refusal = host.refusal(&ask("nic", "all"));
    assert!(
        refusal.contains("device node /dev/onload does not exist; is the driver loaded?"),
        "{refusal}"
    );
    // podman takes a runtime that says this for one that is missing.
    assert!(!refusal.contains("No such file"), "{refusal}");
}

#[test]
fn a_node_that_belongs_to_another_device_is_refused() {
    let host = FakeHost::new();
    host.apply(&ask("rdma", "all")).unwrap();
    host.sysfs_file("infiniband_verbs/uverbs0/dev", "231:193\n");
    assert!(
        host.refusal(&ask("rdma", "rxe0"))
            .contains("the node in /dev is not its driver's own: remove it")
    );
    host.sysfs_file("infiniband_verbs/uverbs0/dev", "231:192\n");
    host.sysfs_file("infiniband_verbs/uverbs0/ibdev", "mlx5_9\n");
    for name in ["rxe0", "all"] {
        assert!(host.refusal(&ask("rdma", name)).contains("belongs to rdma:mlx5_9 now"), "{name}");
    }
}

#[test]
fn an_onload_node_that_is_not_its_driver_s_is_refused_by_every_class_that_has_it() {
    let host = FakeHost::new();
    for class in ["nic", "nic-nodes"] {
        host.sysfs_file("onload/onload/dev", "243:0\n");
        host.apply(&ask(class, "all")).unwrap();
        host.sysfs_file("onload/onload/dev", "239:0\n");
        let refusal = host.refusal(&ask(class, "all"));
        assert!(
            refusal.contains(
                "/dev/onload=nic:onload: the node is 243:0 but the kernel's onload is 239:0"
            ),
            "{refusal}"
        );
    }
    host.tree.remove("sys/class/onload");
    assert!(host.refusal(&ask("nic", "all")).contains("the kernel has no onload any more"));
}

#[test]
fn a_clock_that_is_not_its_driver_s_is_refused() {
    let mut host = FakeHost::new();
    for (path, minor) in [("/dev/ptp0", 0), ("/dev/pps0", 0)] {
        let node = HostNode { kind: NodeKind::Char, major: 247, minor, mode: 0o600 };
        host.nodes.insert(path.to_owned(), node);
    }
    host.sysfs_file("ptp/ptp0/dev", "247:0\n");
    host.sysfs_file("pps/pps0/dev", "247:0\n");
    host.apply(&ask("ptp", "ptp0")).unwrap();
    host.apply(&ask("pps", "pps0")).unwrap();
    host.sysfs_file("ptp/ptp0/dev", "247:1\n");
    host.sysfs_file("pps/pps0/dev", "248:0\n");
    let refusal = host.refusal(&ask("ptp", "ptp0"));
    assert!(refusal.contains("the kernel's ptp0 is 247:1"), "{refusal}");
    let refusal = host.refusal(&ask("pps", "pps0"));
    assert!(refusal.contains("the kernel's pps0 is 248:0"), "{refusal}");
}

#[test]
fn the_node_of_gdrcopy_is_given_only_with_its_driver_s_number() {
    let mut host = FakeHost::new();
    let node = HostNode { kind: NodeKind::Char, major: 510, minor: 0, mode: 0o666 };
    host.nodes.insert("/dev/gdrdrv".to_owned(), node);
    let refusal = host.refusal(&ask("gdrcopy", "gdrdrv"));
    assert!(refusal.contains("the kernel has no gdrdrv any more"), "{refusal}");
    let list = |host: &FakeHost, text: &str| {
        host.tree.file("proc/devices", text);
    };
    list(&host, "Character devices:\n510 gdrdrv\n");
    let after = host.after(&ask("gdrcopy", "gdrdrv"));
    let given = &after["linux"]["devices"][0];
    assert_eq!((&given["path"], &given["major"]), (&json!("/dev/gdrdrv"), &json!(510)));
    list(&host, "Character devices:\n509 gdrdrv\n510 nvidia-uvm\n");
    let refusal = host.refusal(&ask("gdrcopy", "gdrdrv"));
    assert!(refusal.contains("the kernel's gdrdrv is 509:0"), "{refusal}");
}

/// A specification of 0.1.0 has no expectation for a clock.
#[test]
fn a_clock_without_an_expectation_is_given_whatever_it_sits_on() {
    let mut host = FakeHost::new();
    let sysfs = host.tree.path("sys");
    let function = "devices/pci0000:40/0000:41:00.0";
    for (class, parent) in [("ptp", function), ("pps", "devices/virtual")] {
        let node = HostNode { kind: NodeKind::Char, major: 247, minor: 0, mode: 0o600 };
        host.nodes.insert(format!("/dev/{class}0"), node);
        let device = sysfs.join(format!("{parent}/{class}/{class}0"));
        std::fs::create_dir_all(&device).unwrap();
        std::fs::create_dir_all(sysfs.join(format!("class/{class}"))).unwrap();
        symlink(&device, sysfs.join(format!("class/{class}/{class}0"))).unwrap();
    }
    host.sysfs_file("ptp/ptp0/dev", "247:0\n");
    host.sysfs_file("pps/pps0/dev", "247:0\n");
    host.sysfs_file("pps/pps0/name", "ptp0\n");
    host.apply(&ask("ptp", "ptp0")).unwrap();
    host.apply(&ask("pps", "pps0")).unwrap();
}

#[test]
fn the_connection_manager_s_node_is_its_driver_s_too() {
    let host = FakeHost::new();
    host.apply(&ask("rdma", "rxe0")).unwrap();
    host.sysfs_file("misc/rdma_cm/dev", "10:122\n");
    let refusal = host.refusal(&ask("rdma", "rxe0"));
    assert!(refusal.contains("the kernel's rdma_cm is 10:122"), "{refusal}");
}

#[test]
fn a_hook_that_only_checks_what_was_checked_here_is_not_run_again() {
    let mut host = FakeHost::new();
    let node = HostNode { kind: NodeKind::Char, major: 244, minor: 0, mode: 0o666 };
    host.nodes.insert("/dev/sfc_char".to_owned(), node);
    host.sysfs_file("sfc_char/sfc_char/dev", "244:0\n");
    let after = host.after(&ask("zf", "ens1"));
    assert_eq!(after["linux"]["devices"].as_array().unwrap().len(), 2);
    assert_eq!(after["hooks"], Value::Null);
    // One that raises a limit is.
    let after = host.after(&ask("rdma", "checked"));
    assert_eq!(after["hooks"]["createRuntime"].as_array().unwrap().len(), 1);
    // It was checked, too: the number that its driver has now counts, not the recorded one.
    host.sysfs_file("sfc_char/sfc_char/dev", "240:0\n");
    assert!(host.refusal(&ask("zf", "ens1")).contains("the kernel's sfc_char is 240:0"));
}

#[test]
fn an_entry_that_is_not_named_after_its_device_needs_an_expectation() {
    assert!(FakeHost::new().refusal(&ask("rdma", "fabric")).contains("belongs to rdma:rxe0 now"));
}

#[test]
fn what_nobody_knows_stays_as_it_was_spelled() {
    let json = r#"{ "future": {"x": 1e3, "y": 0.10, "z": 12345678901234567890123},
  "process" : {"user":{"uid":0.0e0,"gid":0},"args":["/bin/app"],"env":["PATH=\/bin"],"cwd":"/","new":[1.50]},
  "root":{"path":"rootfs"},  "mounts":[{"destination":"/dev","type":"tmpfs","x":1E2}],
  "annotations":{"onload.dev\/nic-nodes":"ens1", "other":"\u00e4\/"},
  "linux":{"seccomp":{"a":[1e0]},"resources":{"pids":{"limit":1e2}}} }"#;
    // A user id that is not an integer is somebody else's mistake, and is not repaired here.
    assert!(FakeHost::new().apply_bytes(json.as_bytes()).is_err());
    let json = json.replace("0.0e0", "0");
    let outcome = FakeHost::new().apply_bytes(json.as_bytes()).unwrap();
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
fn a_value_that_only_mentions_us_changes_nothing() {
    let mut config = config(&json!({"example.com/docs": "see onload.dev/nic"}));
    config["process"]["env"] = json!(["HELP=onload.dev/nic"]);
    assert_eq!(FakeHost::new().apply(&config).unwrap(), FilterOutcome::default());
}

#[test]
fn broken_configurations_that_ask_are_refused() {
    let host = FakeHost::new();
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
    let after = FakeHost::new().apply_bytes(json.as_bytes()).unwrap().config.unwrap();
    assert!(String::from_utf8(after).unwrap().contains(&deep));
}

#[test]
fn a_policy_that_allows_nothing_gives_nothing() {
    let mut host = FakeHost::new();
    host.config.annotations.allow.clear();
    let message = host.refusal(&ask("nic", "all"));
    assert!(
        message.contains("allow = [\"nic\"] under [annotations] in /etc/onload-ctk/config.toml"),
        "{message}"
    );
}

#[test]
fn root_is_warned_about_unless_a_user_namespace_maps_it_away() {
    let host = FakeHost::new();
    let mut config = ask("nic-nodes", "all");
    config["process"]["user"] = json!({"uid": 0, "gid": 0});
    assert_eq!(host.apply(&config).unwrap().report.warnings.len(), 1);
    config["linux"]["namespaces"] = json!([{"type": "user"}]);
    assert_eq!(
        host.apply(&config).unwrap().report.warnings.len(),
        1,
        "a joined namespace maps it who knows where"
    );
    config["linux"]["uidMappings"] = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
    assert_eq!(host.apply(&config).unwrap().report.warnings.len(), 0);
    config["process"]["user"] = json!({"uid": 7, "gid": 0});
    config["linux"]["uidMappings"] = json!([{"containerID": 7, "hostID": 0, "size": 1}]);
    assert_eq!(host.apply(&config).unwrap().report.warnings.len(), 1);
}

/// A request for Onload by user 1000 with no-new-privileges, where the host's root is refused.
fn as_plain_user() -> (FakeHost, Value) {
    let mut host = FakeHost::new();
    host.config.annotations.root_with_onload = RootWithOnload::Refuse;
    let mut config = ask("nic-nodes", "all");
    config["process"]["noNewPrivileges"] = json!(true);
    (host, config)
}

fn joins_or_makes_users(config: &mut Value, path: Option<&str>, mappings: &[(u64, u64, u64)]) {
    config["linux"]["namespaces"] = match path {
        Some(path) => json!([{"type": "user", "path": path}]),
        None => json!([{"type": "user"}]),
    };
    let mappings = mappings.iter().map(
        |(inside, outside, size)| json!({"containerID": inside, "hostID": outside, "size": size}),
    );
    config["linux"]["uidMappings"] = mappings.collect();
}

#[test]
fn a_user_who_can_become_root_is_refused_where_root_is() {
    let (host, mut config) = as_plain_user();
    host.after(&config);
    config["process"]["noNewPrivileges"] = json!(false);
    assert!(host.refusal(&config).contains("no-new-privileges"));
    config["process"]["noNewPrivileges"] = Value::Null;
    assert!(host.refusal(&config).contains("no-new-privileges"));
    joins_or_makes_users(&mut config, None, &[(0, 100_000, 65536)]);
    host.after(&config);
}

#[test]
fn a_capability_that_leads_to_root_is_refused_in_every_set_but_the_bounding_one() {
    let (host, plain) = as_plain_user();
    for name in [
        "CAP_SYS_ADMIN",
        "CAP_SYS_PTRACE",
        "cap_sys_module",
        "CAP_SYS_RAWIO",
        "CAP_SYS_BOOT",
        "CAP_DAC_READ_SEARCH",
    ] {
        for set in ["permitted", "effective", "inheritable", "ambient"] {
            let mut config = plain.clone();
            config["process"]["capabilities"] = json!({set: ["CAP_KILL", name]});
            let message = host.refusal(&config);
            assert!(message.contains("drop CAP_"), "{name} {set}: {message}");
        }
    }
    let mut config = plain;
    let harmless = ["CAP_SETGID", "CAP_SETFCAP", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_DAC_OVERRIDE"];
    config["process"]["capabilities"] = json!({"permitted": harmless, "effective": harmless,
        "bounding": ["CAP_SETUID", "CAP_SYS_ADMIN"]});
    let after = host.after(&config);
    assert_eq!(after["process"]["capabilities"], config["process"]["capabilities"]);
}

#[test]
fn a_capability_that_only_crun_understands_is_taken_or_refused() {
    let (host, plain) = as_plain_user();
    for name in ["7", "0x7", "17", "CAP_SETUID+X", "CAP_SYS_ADMIN+"] {
        let mut config = plain.clone();
        config["process"]["capabilities"] = json!({"permitted": ["CAP_KILL", name]});
        let after = host.after(&config);
        let left = &after["process"]["capabilities"]["permitted"];
        assert_eq!(*left, json!(["CAP_KILL"]), "{name}");
        config["process"]["capabilities"] = json!({"ambient": ["CAP_KILL", name]});
        assert!(host.refusal(&config).contains("drop CAP_"), "{name}");
    }
}

#[test]
fn a_process_of_user_minus_one_counts_as_the_host_s_root() {
    let (host, mut config) = as_plain_user();
    config["process"]["user"]["uid"] = json!(u32::MAX);
    assert!(host.refusal(&config).contains("root-with-onload"));
    config["process"]["user"]["uid"] = json!(u32::MAX - 1);
    host.after(&config);
}

#[test]
fn the_capability_to_change_the_user_is_taken_where_only_programs_of_the_image_would_have_it() {
    let (host, mut config) = as_plain_user();
    let held = ["CAP_CHOWN", "CAP_SETUID", "CAP_KILL"];
    config["process"]["capabilities"] = json!({"bounding": held, "effective": held, "permitted": held, "inheritable": ["cap_setuid"]});
    let outcome = host.apply(&config).unwrap();
    assert!(outcome.guards_exec);
    assert!(
        outcome.report.warnings.iter().any(|line| line.contains("CAP_SETUID is removed")),
        "{:?}",
        outcome.report.warnings
    );
    let after = written(&outcome.config.unwrap());
    let kept = ["CAP_CHOWN", "CAP_KILL"];
    assert_eq!(
        after["process"]["capabilities"],
        json!({"bounding": held, "effective": kept, "permitted": kept, "inheritable": []})
    );
    let again = host.apply(&after).unwrap();
    assert!(again.guards_exec && again.config.is_none() && again.report.warnings.is_empty());
}

#[test]
fn the_capability_to_change_the_user_is_refused_where_the_container_itself_has_it() {
    let (host, mut config) = as_plain_user();
    config["process"]["capabilities"] = json!({"permitted": ["CAP_SETUID"], "inheritable": ["CAP_SETUID"], "ambient": ["CAP_SETUID"]});
    let message = host.refusal(&config);
    assert!(message.contains("drop CAP_SETUID"), "{message}");
    // User 0 of the container uses its permitted set; user 5 is the host's user 0.
    config["process"]["user"] = json!({"uid": 0, "gid": 0});
    config["process"]["capabilities"] = json!({"permitted": ["CAP_SETUID"]});
    joins_or_makes_users(&mut config, None, &[(0, 100_000, 5), (5, 0, 1)]);
    let message = host.refusal(&config);
    assert!(message.contains("drop CAP_SETUID"), "{message}");
}

#[test]
fn whoever_does_not_see_later_processes_refuses_the_capability_to_change_the_user() {
    let (host, mut config) = as_plain_user();
    config["process"]["capabilities"] = json!({"permitted": ["CAP_SETUID"]});
    let bundle = host.tree.path("b");
    let container = ContainerRef { bundle: &bundle, id: None, sees_exec: false };
    let json = serde_json::to_vec(&config).unwrap();
    let message = ErrorChain(&apply(&json, container, &host, &host).unwrap_err()).to_string();
    assert!(message.contains("drop CAP_SETUID"), "{message}");
}

#[test]
fn every_mapping_that_holds_the_host_s_root_counts() {
    let (host, mut config) = as_plain_user();
    config["process"]["noNewPrivileges"] = json!(false);
    for mappings in [
        &[(0, 100_000, 5), (5, 0, 1)][..],
        &[(0, 0, 65536)],
        &[(0, 100_000, 65536), (0, 0, 1)],
        &[(0, 4_294_967_295, 2)],
        &[],
    ] {
        joins_or_makes_users(&mut config, None, mappings);
        host.refusal(&config);
    }
    for mappings in [&[(0, 100_000, 65536)][..], &[(0, 0, 0), (0, 1, 65536)]] {
        joins_or_makes_users(&mut config, None, mappings);
        host.after(&config);
    }
    config["process"]["user"] = json!({"uid": 5, "gid": 5});
    config["process"]["noNewPrivileges"] = json!(true);
    joins_or_makes_users(&mut config, None, &[(0, 100_000, 5), (5, 0, 1)]);
    assert!(host.refusal(&config).contains("is the host's user 0"));
}

#[test]
fn a_joined_user_namespace_counts_by_what_the_kernel_says_of_it() {
    let (mut host, mut config) = as_plain_user();
    let safe = [(0, 100_000, 65536)];
    for path in ["/run/userns/pinned", "/proc/42/ns/user", "/proc/41/../1/ns/user"] {
        joins_or_makes_users(&mut config, Some(path), &safe);
        assert!(host.refusal(&config).contains(path), "mappings beside a path say nothing");
    }
    joins_or_makes_users(&mut config, Some("/proc/41/ns/user"), &safe);
    host.refusal(&config);
    host.user_map = "         0     100000      65536\n".to_owned();
    config["process"]["noNewPrivileges"] = json!(false);
    host.after(&config);
    host.user_map = "0 100000 5\n5 0 1\n".to_owned();
    assert!(host.refusal(&config).contains("set-user-ID"));
    // A new one beside it does not hide it.
    config["linux"]["namespaces"] = json!([{"type": "user"}, {"type": "user", "path": "/run/x"}]);
    assert!(host.refusal(&config).contains("/run/x"));
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
        let host = FakeHost::new();
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
        let host = FakeHost::new();
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
        let host = FakeHost::new();
        let _ = host.apply_bytes(format!("{{\"annotations\":{{\"onload.dev/{text}\":\"{value}\"}}}}").as_bytes());
        let _ = host.apply(&super_config(&text, &value));
    }
}

fn super_config(key: &str, value: &str) -> Value {
    config(&json!({format!("onload.dev/{key}"): value, "onload.dev/nic": value}))
}

#[test]
fn configurations_of_the_specification_s_own_pass_byte_for_byte() {
    let host = FakeHost::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oci");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(host.apply_bytes(&bytes).unwrap(), FilterOutcome::default(), "{path:?}");
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
    let host = FakeHost::new();
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

/// A container whose configuration moves interfaces, as an engine writes it.
fn moving(devices: &Value) -> Value {
    let mut config = config(&json!({}));
    config["linux"]["netDevices"] = devices.clone();
    config
}

fn hook_words(config: &Value, stage: &str) -> Vec<String> {
    let words = config["hooks"][stage][0]["args"].as_array().unwrap();
    words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_interface_that_the_configuration_moves_is_moved_by_our_hook_where_it_is_offered() {
    let devices = json!({"ens1f0v3": {"name": "net0"}, "eno9": {"name": "mgmt"}});
    let after = FakeHost::new().after(&moving(&devices));
    assert_eq!(after["linux"]["netDevices"], json!({"eno9": {"name": "mgmt"}}));
    for stage in ["createRuntime", "poststop"] {
        let words = hook_words(&after, stage).join(" ");
        let expected = format!(
            "onload-hook {stage} --lease netdev:ens1f0v3 --netdev ens1f0v3@0000:3b:02.1 --rename ens1f0v3=net0"
        );
        assert_eq!(words, expected);
    }
    assert_eq!(env(&after), ["PATH=/bin"]);
}

#[test]
fn an_interface_keeps_its_name_where_the_configuration_says_none_or_the_same() {
    for device in [json!({}), json!({"name": ""}), json!({"name": "ens1f0v3"}), json!(null)] {
        let after = FakeHost::new().after(&moving(&json!({"ens1f0v3": device})));
        assert_eq!(after["linux"].get("netDevices"), None);
        let words = hook_words(&after, "createRuntime");
        assert!(!words.contains(&"--rename".to_owned()), "{words:?}");
    }
}

/// As runc and crun find it (`rtnl_dev_get` in the kernel's net/core/rtnetlink.c).
#[test]
fn an_interface_that_the_configuration_calls_by_another_name_of_it_is_the_same() {
    let (host, free) = (FakeHost::new(), json!({"enp0s9": {}}));
    let devices = json!({"enp59s2v3": {"name": "net0"}, "enp0s9": {}});
    let after = host.after(&moving(&devices));
    assert_eq!(after["linux"]["netDevices"], free);
    let words = hook_words(&after, "createRuntime").join(" ");
    let expected = "--netdev ens1f0v3@0000:3b:02.1 --rename ens1f0v3=net0";
    assert!(words.ends_with(expected), "{words}");
    let twice = json!({"enp59s2v3": {"name": "net0"}, "ens1f0v3": {}});
    let refusal = host.refusal(&moving(&twice));
    assert!(refusal.ends_with("ask for it once"), "{refusal}");
    let drained = FakeHost { drain: ENO9_IS_DRAINED, ..host };
    let refusal = drained.refusal(&moving(&free));
    assert!(refusal.starts_with("linux.netDevices: netdev \"eno9\" is drained"), "{refusal}");
}

#[test]
fn the_same_configuration_is_changed_once() {
    let host = FakeHost::new();
    let after = host.after(&moving(&json!({"ens1f0v3": {}})));
    assert_eq!(host.apply(&after).unwrap().config, None);
}

#[test]
fn an_interface_that_is_not_offered_stays_with_the_runtime() {
    for name in ["eno9", "fast"] {
        let config = moving(&json!({name: {"name": "net0"}}));
        assert_eq!(FakeHost::new().apply(&config).unwrap().config, None, "{name}");
    }
    let mut host = FakeHost::new();
    host.privilege.is_initial_namespace = false;
    assert_eq!(host.apply(&moving(&json!({"ens1f0v3": {}}))).unwrap().config, None);
}

#[test]
fn what_is_not_there_or_is_text_elsewhere_moves_nothing() {
    for devices in [json!({}), json!(null)] {
        assert_eq!(FakeHost::new().apply(&moving(&devices)).unwrap().config, None);
    }
    let mut config = config(&json!({"note": "\"netDevices\": {\"ens1f0v3\": {}}"}));
    config["netDevices"] = json!({"ens1f0v3": {}});
    assert_eq!(FakeHost::new().apply(&config).unwrap().config, None);
}

#[test]
fn an_interface_that_is_asked_for_twice_is_refused() {
    let twice = "linux.netDevices: the container is given netdev \"ens1f0v3\" by onload.dev too; ask for it once";
    let mut by_annotation = ask("netdev", "ens1f0v3");
    by_annotation["linux"]["netDevices"] = json!({"ens1f0v3": {"name": "net0"}});
    assert_eq!(FakeHost::new().refusal(&by_annotation), twice);
    // By our specification, which an engine applied.
    let mut by_cdi = FakeHost::new().after(&ask("netdev", "ens1f0v3"));
    by_cdi["annotations"] = json!({});
    by_cdi["linux"]["netDevices"] = json!({"ens1f0v3": {}});
    assert_eq!(FakeHost::new().refusal(&by_cdi), twice);
    // Another one beside it is moved too.
    by_annotation["linux"]["netDevices"] = json!({"eno9": {}});
    assert_eq!(FakeHost::new().after(&by_annotation)["linux"]["netDevices"], json!({"eno9": {}}));
}

const ENO9_IS_DRAINED: &str =
    r#"{"version":1,"drained":[{"class":"netdev","name":"eno9","since":1,"reason":"cable"}]}"#;

#[test]
fn a_drained_interface_is_refused_to_a_configuration_too() {
    let host = FakeHost { drain: ENO9_IS_DRAINED, ..FakeHost::new() };
    let refusal = host.refusal(&moving(&json!({"eno9": {}})));
    assert!(refusal.starts_with("linux.netDevices: netdev \"eno9\" is drained"), "{refusal}");
}

#[test]
fn a_configuration_whose_moves_are_not_understood_is_refused() {
    for (devices, problem) in [
        (json!([]), "linux"),
        (json!({"ens1f0v3": 1}), "netDevices"),
        (json!({"ens1f0v3": {"name": 1}}), "netDevices"),
        (json!({"ens1f0v3": {"Name": "net0"}}), "netDevices"),
        (json!({"ens1f0v3": {"name": "a/b"}}), "linux.netDevices: "),
    ] {
        let refusal = FakeHost::new().refusal(&moving(&devices));
        assert!(refusal.contains(problem), "{devices}: {refusal}");
    }
}
