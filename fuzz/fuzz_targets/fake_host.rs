//! A host that allows everything and has one specification, for the targets that decide by one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use onload_cdi::SpecSource;
use onload_cdi::oci::{HostNode, NodeKind, NodeLookup};
use onload_core::class::Class;
use onload_core::config::HookConfig;
use onload_core::token::Token;
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

/// The member of its pool is no device, so that nothing is ever given of it.
const NIC: &str = r#"{"cdiVersion":"0.6.0","kind":"onload.dev/nic","containerEdits":{
    "deviceNodes":[{"path":"/dev/onload","permissions":"rw"}],
    "mounts":[{"hostPath":"/l","containerPath":"/usr/lib64/libonload.so","options":["ro","bind"]}],
    "env":["LD_PRELOAD=libonload.so","EF_FDTABLE_SIZE=524288"],
    "hooks":[{"hookName":"poststop","path":"/h","args":["h"],"env":["A=b"]}]},
  "devices":[{"name":"all","containerEdits":{"env":["X=y"],"additionalGids":[7]}},
    {"name":"any","annotations":{"onload.dev/pool-members":"gone","onload.dev/pool-share":"1","onload.dev/pool-nics":"0",
      "onload.dev/pool-near":"0000:13:00.0=0:0"},"containerEdits":{"env":["A=b"]}}]}"#;

/// It reads sysfs below a directory.
#[derive(Debug)]
pub struct FakeHost(pub PathBuf);

impl NodeLookup for FakeHost {
    fn node(&self, _: &str) -> io::Result<HostNode> {
        Ok(HostNode { kind: NodeKind::Char, major: 243, minor: 0, mode: 0o666 })
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
        let mut config = HookConfig::default();
        config.annotations.allow = Class::ALL.to_vec();
        config.environment.allow = Class::ALL.to_vec();
        Ok(HookSettings { config, file: PathBuf::from("/etc/onload-ctk/config.toml") })
    }

    fn specs(&self, _: &[Class]) -> Result<OnloadSpecs> {
        let content = onload_cdi::from_json(NIC.as_bytes()).map_err(Into::into);
        Ok(OnloadSpecs::from_sources(vec![SpecSource {
            path: "/nic.json".into(),
            priority: 0,
            content,
        }]))
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at_root(self.0.join("sys"))
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

    fn check_preload_file(&self) -> Result<()> {
        Ok(())
    }

    fn drain(&self) -> Result<DrainList> {
        Ok(DrainList::default())
    }

    fn files(&self) -> &TrustedTree {
        static FILES: OnceLock<TrustedTree> = OnceLock::new();
        FILES.get_or_init(|| TrustedTree::for_host(TrustedOwners::root()).unwrap())
    }

    fn interfaces(&self) -> Result<Vec<Link>> {
        Ok(Vec::new())
    }

    fn library_summary(&self, _: &str) -> Option<ElfSummary> {
        Some(ElfSummary::default())
    }
}
