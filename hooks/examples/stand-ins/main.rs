//! The hook and `lease restore` where virtual pairs (veth(4)) stand in for devices that move, for tests on machines
//! without any: `stand-ins netdev INDEX=PCI[,…] STAGE [OPTION]…`, `stand-ins rdma INDEX=PCI=NODE[=fixed][,…] STAGE
//! [OPTION]…`, `stand-ins vfio vf=DIRECTORY STAGE [OPTION]…`, and all with `restore` in the place of STAGE and options.
//! With `vf=DIRECTORY` in a list of interfaces, files there stand in for their virtual functions too. INDEX is that of the end that stays where it
//! is, NODE the name of a node below /dev/infiniband, and `fixed` a device whose driver cannot move it.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

mod rdma;
mod vf;

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use onload_hooks::entry::hook;
use onload_hooks::moves::stand_ins::{install_functions, install_interfaces, install_rdma};
use onload_hooks::moves::{self, RestoreResult};
use onload_lease::Leases;
use onload_lease::run_dir::{RUN_DIR, RunDir};
use onload_sys::pci::PciAddress;
use onload_sys::processes::Processes;
use onload_sys::text::ErrorChain;

const USAGE: &str =
    "usage: stand-ins netdev|rdma|vfio INDEX=PCI…|vf=DIRECTORY[,…] restore|STAGE [OPTION]…";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [kind, list, rest @ ..] = args.as_slice() else {
        return Err(USAGE.into());
    };
    let list = list.to_str().ok_or("stand-ins are text")?.split(',');
    let (functions, list): (Vec<&str>, Vec<&str>) = list.partition(|one| one.starts_with("vf="));
    let directory = functions.first().and_then(|one| one.strip_prefix("vf="));
    if let Some(directory) = directory {
        install_functions(Rc::new(vf::Files(directory.into())));
    }
    let list = list.into_iter();
    match kind.to_str() {
        Some("netdev") => {
            install_interfaces(list.map(interface).collect::<Result<_, _>>()?);
        }
        Some("rdma") => {
            let pairs = list.map(rdma_device).collect::<Result<_, _>>()?;
            install_rdma(Rc::new(rdma::Pairs(pairs)));
        }
        Some("vfio") => {}
        _ => return Err(USAGE.into()),
    }
    if rest == ["restore"] {
        return restore();
    }
    let words: Vec<OsString> = [vec!["onload-hook".into()], rest.to_vec()].concat();
    let status = hook::main(&words);
    Ok(ExitCode::from(u8::try_from(status)?))
}

fn interface(text: &str) -> Result<(u32, PciAddress), Box<dyn Error>> {
    let (index, pci) = text.split_once('=').ok_or("want INDEX=PCI")?;
    Ok((index.parse()?, pci.parse()?))
}

fn rdma_device(text: &str) -> Result<rdma::Pair, Box<dyn Error>> {
    let parts: Vec<&str> = text.split('=').collect();
    let [index, pci, node, rest @ ..] = parts.as_slice() else {
        return Err("want INDEX=PCI=NODE[=fixed]".into());
    };
    Ok(rdma::Pair {
        end: index.parse()?,
        pci: pci.parse()?,
        node: (*node).to_owned(),
        is_fixed: rest == ["fixed"],
    })
}

fn restore() -> Result<ExitCode, Box<dyn Error>> {
    let Some(run) = RunDir::find(Path::new(RUN_DIR))? else {
        return Ok(ExitCode::SUCCESS);
    };
    let Some(leases) = Leases::find(&run, Processes::default())? else {
        return Ok(ExitCode::SUCCESS);
    };
    Ok(exit_code(moves::restore(&leases)?))
}

fn exit_code(restored: Vec<RestoreResult>) -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for one in restored {
        match one.result {
            Ok(()) => println!("{} is back", one.device),
            Err(error) => {
                println!("{}: {}", one.device, ErrorChain(&error));
                status = ExitCode::FAILURE;
            }
        }
    }
    status
}
