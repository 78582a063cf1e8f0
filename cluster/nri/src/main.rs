//! `onload-nri`: parse, connect, report errors.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use onload_core::config::CONFIG_PATH;
use onload_hooks::decide::host_view::LocalHost;
use onload_hooks::entry::program;
use onload_hooks::record::lease::{self, Reserver};
use onload_nri::cli::{self, HELP, NriCommand, NriOptions};
use onload_nri::connect::{
    INDEX_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE, connect_launched, serve, serve_launched,
};
use onload_nri::create::{CreateAnswer, CreateFailure, create};
use onload_nri::journal::{Journal, Severity};
use onload_nri::runtime::NriRuntime;
use onload_nri::session::Decider;
use onload_sys::text::ErrorChain;

const ENTRY_POINT: &str = "onload-nri";

fn main() -> ExitCode {
    program::harden();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let journal = Journal { max_severity: Severity::Error };
            journal.write(Severity::Error, &ErrorChain(error.as_ref()).to_string());
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    match cli::parse(std::env::args_os().skip(1))? {
        NriCommand::Help => print(HELP),
        NriCommand::Version => print(&format!("onload-nri {}\n", env!("CARGO_PKG_VERSION"))),
        NriCommand::Run(options) => run_plugin(options),
    }
}

fn print(text: &str) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Only the variables that a runtime sets for a plugin that it launches are used from the environment.
fn run_plugin(options: NriOptions) -> Result<(), Box<dyn Error>> {
    let journal =
        Journal { max_severity: if options.verbose { Severity::Debug } else { Severity::Info } };
    let read_variable = |variable| std::env::var(variable).ok();
    let socket = read_variable(SOCKET_VARIABLE);
    let read_variable = |variable| socket.as_ref().and_then(|_| read_variable(variable));
    let (name, index) = (read_variable(NAME_VARIABLE), read_variable(INDEX_VARIABLE));
    let registration = cli::plugin_registration(name.as_deref(), index.as_deref(), &options)?;
    let decider = HostDecider { root: options.host_root };
    match socket {
        Some(number) => {
            Ok(serve_launched(connect_launched(&number)?, &registration, &decider, journal)?)
        }
        None => serve(&options.socket, &registration, &decider, journal),
    }
}

/// Decides by the files of a host, which are read again for each container with a request.
struct HostDecider {
    root: Option<PathBuf>,
}

impl HostDecider {
    fn open_host(&self) -> onload_sys::error::Result<LocalHost> {
        match &self.root {
            Some(root) => LocalHost::for_tree(root, Path::new(CONFIG_PATH)),
            None => LocalHost::new(),
        }
    }
}

impl Decider for HostDecider {
    fn create(&self, message: &[u8], runtime: &NriRuntime) -> Result<CreateAnswer, CreateFailure> {
        create(message, runtime, &|decide| {
            let host = self.open_host()?;
            let reserver = Reserver::answering(&host, ENTRY_POINT);
            let (answer, reservation) = reserver
                .decide_and_reserve(|pools| decide(&host, pools), |answer| answer.choice.take())?;
            Ok(CreateAnswer { reservation, ..answer })
        })
    }

    fn cancel_reservation(&self, answer: &CreateAnswer) {
        if let (Some(reservation), Ok(host)) = (&answer.reservation, self.open_host()) {
            lease::cancel_at(&host, reservation);
        }
    }
}
