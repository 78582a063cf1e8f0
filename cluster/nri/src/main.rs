//! `onload-nri`: parse, connect, report errors.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use onload_core::config::CONFIG_PATH;
use onload_hooks::decide::host::ThisHost;
use onload_hooks::entry::program;
use onload_hooks::record::lease::Keeper;
use onload_nri::cli::{self, Asked, HELP, Options};
use onload_nri::connect::{
    INDEX_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE, launched, serve, serve_launched,
};
use onload_nri::create::{Created, Failure, create};
use onload_nri::journal::{Journal, Severity};
use onload_nri::runtime::Runtime;
use onload_nri::session::Decider;
use onload_sys::text::ErrorChain;

const ENTRY_POINT: &str = "onload-nri";

fn main() -> ExitCode {
    program::harden();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let journal = Journal { most: Severity::Error };
            journal.say(Severity::Error, &ErrorChain(error.as_ref()).to_string());
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    match cli::parse(std::env::args_os().skip(1))? {
        Asked::Help => print(HELP),
        Asked::Version => print(&format!("onload-nri {}\n", env!("CARGO_PKG_VERSION"))),
        Asked::Run(options) => plug_in(options),
    }
}

fn print(text: &str) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Nothing of the environment counts but what a runtime tells a plugin that it launches.
fn plug_in(options: Options) -> Result<(), Box<dyn Error>> {
    let journal = Journal { most: if options.verbose { Severity::Debug } else { Severity::Info } };
    let told = |variable| std::env::var(variable).ok();
    let socket = told(SOCKET_VARIABLE);
    let told = |variable| socket.as_ref().and_then(|_| told(variable));
    let (name, index) = (told(NAME_VARIABLE), told(INDEX_VARIABLE));
    let identity = cli::identity(name.as_deref(), index.as_deref(), &options)?;
    let decider = OfHost { root: options.host_root };
    match socket {
        Some(number) => Ok(serve_launched(launched(&number)?, &identity, &decider, journal)?),
        None => serve(&options.socket, &identity, &decider, journal),
    }
}

/// Decides by the files of a host, which are read for each container that asks for something.
struct OfHost {
    root: Option<PathBuf>,
}

impl OfHost {
    fn look(&self) -> onload_sys::error::Result<ThisHost> {
        match &self.root {
            Some(root) => ThisHost::below(root, Path::new(CONFIG_PATH)),
            None => ThisHost::new(),
        }
    }
}

impl Decider for OfHost {
    fn create(&self, message: &[u8], runtime: &Runtime) -> Result<Created, Failure> {
        create(message, runtime, &|decide| {
            let host = self.look()?;
            let keeper = Keeper::before(&host, ENTRY_POINT);
            keeper.keep_what(|| decide(&host, &keeper))
        })
    }

    fn give_back(&self, created: &Created) {
        if let (Some(reserved), Ok(host)) = (&created.reserved, self.look()) {
            Keeper::before(&host, ENTRY_POINT).give_back(reserved);
        }
    }
}
