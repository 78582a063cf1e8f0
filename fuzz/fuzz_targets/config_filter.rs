//! An untrusted configuration through the whole filter, on a host that allows everything: no panic,
//! one line in a refusal, and nothing more to do the second time.

#![no_main]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use onload_cdi::SpecSource;
use onload_cdi::oci::{Node, NodeInfo, NodeKind};
use onload_core::class::Class;
use onload_core::config::HookConfig;
use onload_core::elf::Summary;
use onload_core::text::one_line;
use onload_core::lease::{Token, take_unleased};
use onload_core::ticket::{Ticket, TicketError};
use onload_hooks::decision::subject::Identity;
use onload_hooks::decision::pools::{PoolRequest, Pools, PoolsError, Reserved};
use onload_hooks::filter::{Container, apply};
use onload_hooks::host::{HostView, HostFilesError, Privilege, Settings};
use onload_hooks::host::specs::{Specs, SpecsError};
use onload_hooks::host::sysfs::Sysfs;

const NIC: &str = r#"{"cdiVersion":"0.3.0","kind":"onload.dev/nic","containerEdits":{
    "deviceNodes":[{"path":"/dev/onload","permissions":"rw"}],
    "mounts":[{"hostPath":"/l","containerPath":"/usr/lib64/libonload.so","options":["ro","bind"]}],
    "env":["LD_PRELOAD=libonload.so","EF_FDTABLE_SIZE=1048576"],
    "hooks":[{"hookName":"poststop","path":"/h","args":["h"],"env":["A=b"]}]},
  "devices":[{"name":"all","containerEdits":{"env":["X=y"],"additionalGids":[7]}}]}"#;

#[derive(Debug)]
struct FakeHost(PathBuf);

impl NodeInfo for FakeHost {
    fn node(&self, _: &str) -> io::Result<Node> {
        Ok(Node { kind: NodeKind::Char, major: 243, minor: 0, mode: 0o666 })
    }
}

impl Pools for FakeHost {
    fn reserve(&self, wanted: PoolRequest<'_>) -> Result<Reserved, PoolsError> {
        let devices = take_unleased(wanted.wishes, wanted.numa, &|_| None);
        Ok(Reserved {
            token: [7; 16].into(),
            devices: devices.map_err(|error| PoolsError::Lease(Box::new(error)))?,
        })
    }

    fn give_back(&self, _: &Reserved) {}

    fn ticket(
        &self,
        id: &Token,
        _: Identity<'_>,
        _: Option<&Path>,
    ) -> Result<Ticket, PoolsError> {
        Err(PoolsError::Ticket(Box::new(TicketError::unknown(id))))
    }
}

impl HostView for FakeHost {
    fn settings(&self) -> Result<Settings, HostFilesError> {
        let mut config = HookConfig::default();
        config.annotations.allow = Class::ALL.to_vec();
        config.environment.allow = Class::ALL.to_vec();
        Ok(Settings { config, file: PathBuf::from("/etc/onload-ctk/config.toml") })
    }

    fn specs(&self, _: &[Class]) -> Result<Specs, SpecsError> {
        let content = onload_cdi::from_json(NIC.as_bytes()).map_err(Into::into);
        Ok(Specs::from_sources(vec![SpecSource { path: "/nic.json".into(), priority: 0, content }]))
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.0.join("sys"))
    }

    fn privilege(&self) -> Privilege {
        Privilege {
            is_initial_namespace: true,
            may_raise_limits: false,
            memlock_hard: Some(65536),
            nofile_soft: Some(1024),
            nofile_hard: Some(1 << 40),
        }
    }

    fn preload_file(&self) -> Result<(), HostFilesError> {
        Ok(())
    }

    fn library(&self, _: &str) -> Option<Summary> {
        Some(Summary::default())
    }

    fn user_map(&self, _: u32) -> Option<String> {
        None
    }
}

/// A bundle whose root is this program's own directory: whatever `root.path` says is resolved from
/// there, and only read.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("onload-ctk-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("rootfs/etc")).expect("a directory");
        dir
    })
}

fuzz_target!(|bytes: &[u8]| {
    let host = FakeHost(bundle().to_owned());
    let container = Container { bundle: bundle(), id: None, sees_exec: true };
    match apply(bytes, container, &host, &host) {
        Ok(outcome) => {
            if let Some(config) = outcome.config {
                let again = apply(&config, container, &host, &host).expect("what we wrote is taken");
                assert_eq!(again.config, None, "{}", String::from_utf8_lossy(&config));
            }
        }
        Err(error) => assert!(one_line(&error.to_string()).lines().count() == 1),
    }
});
