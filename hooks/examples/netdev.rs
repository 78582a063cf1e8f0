//! The hook and `lease restore` where virtual pairs (veth(4)) stand in for the interfaces of PCI functions, for tests
//! on machines without any: `netdev INDEX=PCI[,…] STAGE [OPTION]…` and `netdev INDEX=PCI[,…] restore`. INDEX is that of
//! the end that stays where it is.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use onload_core::lease::Leases;
use onload_core::pci::PciAddress;
use onload_core::processes::Processes;
use onload_core::run_dir::{RUN_DIR, RunDir};
use onload_core::text::Chain;
use onload_hooks::entry::hook;
use onload_hooks::netdev::{Identity, restore};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [stand_ins, rest @ ..] = args.as_slice() else {
        return Err("usage: netdev INDEX=PCI[,…] restore|STAGE [OPTION]…".into());
    };
    let stand_ins = stand_ins.to_str().ok_or("stand-ins are text")?;
    let identity = Identity::with_stand_ins(parse(stand_ins)?);
    if rest == ["restore"] {
        return restore_all(&identity);
    }
    let words: Vec<OsString> = [vec!["onload-hook".into()], rest.to_vec()].concat();
    Ok(ExitCode::from(u8::try_from(hook::run(&words, &identity))?))
}

fn parse(text: &str) -> Result<BTreeMap<u32, PciAddress>, Box<dyn Error>> {
    let mut stand_ins = BTreeMap::new();
    for pair in text.split(',') {
        let (index, pci) = pair.split_once('=').ok_or("want INDEX=PCI")?;
        stand_ins.insert(index.parse()?, pci.parse()?);
    }
    Ok(stand_ins)
}

fn restore_all(identity: &Identity) -> Result<ExitCode, Box<dyn Error>> {
    let Some(run) = RunDir::find(Path::new(RUN_DIR))? else {
        return Ok(ExitCode::SUCCESS);
    };
    let Some(leases) = Leases::find(&run, Processes::default())? else {
        return Ok(ExitCode::SUCCESS);
    };
    let mut status = ExitCode::SUCCESS;
    for one in restore(&leases, identity)? {
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
