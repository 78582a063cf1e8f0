//! The files that a command reads or writes, for its manual page.

use clap::ValueEnum;
use clap_mangen::roff::{Roff, italic};
use onload_core::config::CONFIG_PATH;
use onload_core::run_dir::{LEASES, REQUESTS, RUN_DIR};

use super::term;
use crate::commands::OUTPUT_DIR;
use crate::engine::Engine;

/// A path, and what it is to the command.
type File = (String, String);

/// Writes the list; below `--host-root DIR` every path is one below `DIR`.
pub(super) fn render(roff: &mut Roff, words: &str) {
    for (name, said) in files(words) {
        term::write(roff, italic(name), &said);
    }
}

fn files(words: &str) -> Vec<File> {
    let file = |path: &str, said: &str| (path.to_owned(), said.to_owned());
    let configuration = || {
        let said = "The configuration. The option --config names another file.";
        file(CONFIG_PATH, said)
    };
    let kernel = || {
        let said = "What the kernel and the drivers say of this host.";
        file("/sys, /proc, /dev", said)
    };
    let specifications = || {
        let said = "CDI specifications of every vendor. A device in the second directory goes before one in the first.";
        file("/etc/cdi, /var/run/cdi", said)
    };
    let leases = || {
        let said = "The leases, a file each. Only root can enter.";
        file(&format!("{RUN_DIR}/{LEASES}"), said)
    };
    let containers = || {
        let said = "Which runtime made which container, and the lock of files of configuration.";
        file(RUN_DIR, said)
    };
    let of_engines = |said: fn(&str) -> String| {
        let engines = Engine::value_variants().iter();
        let files =
            engines.map(|engine| file(&engine.file().to_string_lossy(), &said(engine.name())));
        files.collect::<Vec<_>>()
    };
    match words {
        "completion" => scripts(),
        "discover" => vec![configuration(), kernel()],
        "metrics" => vec![configuration(), kernel(), leases(), specifications()],
        "status" | "topology" => vec![configuration(), kernel(), leases()],
        "doctor" => {
            let read =
                of_engines(|name| format!("What is read of {name}, with the files beside it."));
            [vec![configuration(), kernel(), specifications()], read].concat()
        }
        "host" | "host plan" | "host apply" => {
            let unit = file(
                "/usr/lib/systemd/system/onload-host.service",
                "The unit that runs host apply at boot. The package does not enable it.",
            );
            vec![configuration(), kernel(), leases(), unit]
        }
        "cdi generate" | "cdi check" => [vec![configuration(), kernel()], written()].concat(),
        "runtime configure" => {
            let edited = of_engines(|name| format!("What is edited for {name}."));
            [edited, vec![configuration(), containers()]].concat()
        }
        "runtime" => vec![configuration(), containers()],
        "lease" | "lease list" | "lease release" | "lease restore" => vec![leases(), kernel()],
        "container explain" => {
            let tickets = file(
                &format!("{RUN_DIR}/{REQUESTS}"),
                "What cluster engines have reserved for their tasks, a file for each ticket. Only root can enter.",
            );
            vec![configuration(), specifications(), tickets]
        }
        "" | "cdi" => {
            let variables = file(
                "/etc/default/onload-ctk",
                "Variables for the service onload-cdi.service, which writes the specifications at boot and after changes.",
            );
            let read = vec![configuration(), variables, kernel(), specifications()];
            [read, written()].concat()
        }
        _ => vec![configuration(), specifications()],
    }
}

fn written() -> Vec<File> {
    [
        ("onload.dev-CLASS.json", "The specification of a class."),
        (
            "onload.dev-CLASS-pools.json",
            "The specification of the pools of a class.",
        ),
        (
            ".onload-ctk-manifest",
            "Which of the files there were written by onload-ctk, and for which options.",
        ),
    ]
    .map(|(name, said)| (format!("{OUTPUT_DIR}/{name}"), said.to_owned()))
    .into()
}

fn scripts() -> Vec<File> {
    [
        ("bash-completion/completions/onload-ctk", "bash"),
        ("zsh/vendor-completions/_onload-ctk", "zsh on Debian"),
        ("zsh/site-functions/_onload-ctk", "zsh elsewhere"),
        ("fish/vendor_completions.d/onload-ctk.fish", "fish"),
    ]
    .map(|(path, shell)| {
        let said = format!("The script for {shell} of the packages.");
        (format!("/usr/share/{path}"), said)
    })
    .into()
}
