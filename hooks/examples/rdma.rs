//! The hook and `lease restore` where virtual pairs (veth(4)) stand in for RDMA devices, for tests on machines without
//! one that can move: `rdma INDEX=PCI=NODE[=fixed][,…] STAGE [OPTION]…` and `rdma … restore`. INDEX is that of the end
//! that stays where it is, NODE the name of a node below /dev/infiniband, and `fixed` a device whose driver cannot move
//! it.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use onload_core::lease::Leases;
use onload_core::processes::Processes;
use onload_core::run_dir::{RUN_DIR, RunDir};
use onload_core::text::Chain;
use onload_hooks::entry::hook;
use onload_hooks::entry::stand_ins::StandIns;
use onload_hooks::rdma::{Devices, StandIn, restore};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [stand_ins, rest @ ..] = args.as_slice() else {
        return Err("usage: rdma INDEX=PCI=NODE[=fixed][,…] restore|STAGE [OPTION]…".into());
    };
    let stand_ins = stand_ins.to_str().ok_or("stand-ins are text")?;
    let all = stand_ins.split(',').map(parse);
    let devices = Devices::with_stand_ins(all.collect::<Result<_, _>>()?);
    if rest == ["restore"] {
        return restore_all(&devices);
    }
    let words: Vec<OsString> = [vec!["onload-hook".into()], rest.to_vec()].concat();
    let stand_ins = StandIns {
        rdma: devices,
        ..StandIns::default()
    };
    let status = hook::run_with(&words, &stand_ins);
    Ok(ExitCode::from(u8::try_from(status)?))
}

fn parse(text: &str) -> Result<StandIn, Box<dyn Error>> {
    let parts: Vec<&str> = text.split('=').collect();
    let [index, pci, node, rest @ ..] = parts.as_slice() else {
        return Err("want INDEX=PCI=NODE[=fixed]".into());
    };
    Ok(StandIn {
        end: index.parse()?,
        pci: pci.parse()?,
        node: (*node).to_owned(),
        is_fixed: rest == ["fixed"],
    })
}

fn restore_all(devices: &Devices) -> Result<ExitCode, Box<dyn Error>> {
    let Some(run) = RunDir::find(Path::new(RUN_DIR))? else {
        return Ok(ExitCode::SUCCESS);
    };
    let Some(leases) = Leases::find(&run, Processes::default())? else {
        return Ok(ExitCode::SUCCESS);
    };
    let mut status = ExitCode::SUCCESS;
    for one in restore(&leases, devices)? {
        match one.result {
            Ok(()) => println!("{} is back", one.device),
            Err(error) => {
                println!("{}: {}", one.device, Chain(&error));
                status = ExitCode::FAILURE;
            }
        }
    }
    Ok(status)
}
