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
    match words {
        "completion" => scripts(),
        "discover" => vec![configuration(), kernel()],
        "metrics" => vec![configuration(), kernel(), leases(), specifications()],
        "status" | "topology" => vec![configuration(), kernel(), leases()],
        "doctor" => {
            let mut files = vec![configuration(), kernel(), specifications()];
            files.extend(Engine::value_variants().iter().map(read_of));
            files
        }
        "host" | "host plan" | "host apply" => vec![configuration(), kernel(), leases(), unit()],
        "cdi generate" | "cdi check" => {
            let mut files = vec![configuration(), kernel()];
            files.extend(written());
            files
        }
        "runtime configure" => {
            let mut files: Vec<File> = Engine::value_variants().iter().map(engine).collect();
            files.push(configuration());
            files.push(containers());
            files
        }
        "runtime" => vec![configuration(), containers()],
        "lease" | "lease list" | "lease release" | "lease restore" => vec![leases(), kernel()],
        "container explain" => vec![configuration(), specifications(), tickets()],
        "" | "cdi" => {
            let mut files = vec![configuration(), variables(), kernel(), specifications()];
            files.extend(written());
            files
        }
        _ => vec![configuration(), specifications()],
    }
}

fn file(path: &str, said: &str) -> File {
    (path.to_owned(), said.to_owned())
}

fn configuration() -> File {
    file(
        CONFIG_PATH,
        "The configuration. The option --config names another file.",
    )
}

fn variables() -> File {
    file(
        "/etc/default/onload-ctk",
        "Variables for the service onload-cdi.service, which writes the specifications at boot and after changes.",
    )
}

fn kernel() -> File {
    file(
        "/sys, /proc, /dev",
        "What the kernel and the drivers say of this host.",
    )
}

fn specifications() -> File {
    file(
        "/etc/cdi, /var/run/cdi",
        "CDI specifications of every vendor. A device in the second directory goes before one in the first.",
    )
}

fn written() -> [File; 3] {
    let written = format!("{OUTPUT_DIR}/onload.dev-CLASS.json");
    let pools = format!("{OUTPUT_DIR}/onload.dev-CLASS-pools.json");
    let manifest = format!("{OUTPUT_DIR}/.onload-ctk-manifest");
    [
        (written, "The specification of a class.".to_owned()),
        (
            pools,
            "The specification of the pools of a class.".to_owned(),
        ),
        (
            manifest,
            "Which of the files there were written by onload-ctk, and for which options."
                .to_owned(),
        ),
    ]
}

fn engine(engine: &Engine) -> File {
    let said = format!("What is edited for {}.", engine.name());
    (engine.file().display().to_string(), said)
}

fn read_of(engine: &Engine) -> File {
    let said = format!(
        "What is read of {}, with the files beside it.",
        engine.name()
    );
    (engine.file().display().to_string(), said)
}

fn containers() -> File {
    file(
        RUN_DIR,
        "Which runtime made which container, and the lock of files of configuration.",
    )
}

fn leases() -> File {
    file(
        &format!("{RUN_DIR}/{LEASES}"),
        "The leases, a file each. Only root can enter.",
    )
}

fn tickets() -> File {
    file(
        &format!("{RUN_DIR}/{REQUESTS}"),
        "What cluster engines have reserved for their tasks, a file for each ticket. Only root can enter.",
    )
}

fn unit() -> File {
    file(
        "/usr/lib/systemd/system/onload-host.service",
        "The unit that runs host apply at boot. The package does not enable it.",
    )
}

fn scripts() -> Vec<File> {
    [
        ("/usr/share/bash-completion/completions/onload-ctk", "bash"),
        (
            "/usr/share/zsh/vendor-completions/_onload-ctk",
            "zsh on Debian",
        ),
        ("/usr/share/zsh/site-functions/_onload-ctk", "zsh elsewhere"),
        (
            "/usr/share/fish/vendor_completions.d/onload-ctk.fish",
            "fish",
        ),
    ]
    .map(|(path, shell)| {
        (
            path.to_owned(),
            format!("The script for {shell} of the packages."),
        )
    })
    .into()
}
