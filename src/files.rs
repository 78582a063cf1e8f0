//! The files that a command reads or writes. They are part of the command's definition, and its manual page lists them.

use clap::builder::CommandExt;
use onload_cdi::DEFAULT_DIRS;
use onload_core::config::CONFIG_PATH;
use onload_engines::engine::Engine;
use onload_host::specdir::{MANIFEST_NAME, OUTPUT_DIR};
use onload_lease::drain::DRAIN_PATH;
use onload_lease::run_dir::{self, RUN_DIR};

#[derive(Clone, Copy, Debug)]
pub(crate) struct FileList(pub(crate) &'static [FileGroup]);

impl CommandExt for FileList {}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FileGroup {
    /// The parts of a path, and what it is to the command.
    At(&'static [&'static str], &'static str),
    /// The file of each engine, as the text before and after the engine's name.
    Engines(&'static str, &'static str),
}
use FileGroup::{At, Engines};

impl FileGroup {
    /// Paths, each with what it is.
    pub(crate) fn entries(self) -> Vec<(String, String)> {
        match self {
            At(parts, description) => vec![(parts.concat(), description.to_owned())],
            Engines(before, after) => Engine::ALL
                .iter()
                .map(|engine| {
                    let path = engine.file().to_string_lossy().into_owned();
                    (path, format!("{before}{}{after}", engine.name()))
                })
                .collect(),
        }
    }
}

pub(crate) const CONFIGURATION: FileGroup =
    At(&[CONFIG_PATH], "The configuration. The option --config names another file.");
pub(crate) const DRAINED: FileGroup =
    At(&[DRAIN_PATH], "The drained devices. It exists only while there are any.");
pub(crate) const VARIABLES: FileGroup = At(
    &["/etc/default/onload-ctk"],
    "Variables for the service onload-cdi.service, which writes the specifications at boot and after changes.",
);
pub(crate) const KERNEL: FileGroup =
    At(&["/sys, /proc, /dev"], "What the kernel and its drivers report.");
pub(crate) const SPECIFICATIONS: FileGroup = At(
    &[DEFAULT_DIRS[0], ", ", DEFAULT_DIRS[1]],
    "CDI specifications of every vendor. A device in the second directory takes precedence over one in the first.",
);
pub(crate) const OWN_DEVICES: FileGroup =
    At(&[OUTPUT_DIR, "/onload.dev-CLASS.json"], "The specification of a class.");
pub(crate) const OWN_POOLS: FileGroup =
    At(&[OUTPUT_DIR, "/onload.dev-CLASS-pools.json"], "The specification of the pools of a class.");
pub(crate) const MANIFEST: FileGroup = At(
    &[OUTPUT_DIR, "/", MANIFEST_NAME],
    "Which of the files there onload-ctk wrote, and with which options.",
);
pub(crate) const LEASES: FileGroup =
    At(&[RUN_DIR, "/", run_dir::LEASES], "Leases, one file each. Only root can enter.");
pub(crate) const TICKETS: FileGroup = At(
    &[RUN_DIR, "/", run_dir::REQUESTS],
    "Reservations of cluster engines for their tasks, one file per ticket. Only root can enter.",
);
pub(crate) const CONTAINERS: FileGroup =
    At(&[RUN_DIR], "Which runtime created which container, and the lock on configuration files.");
pub(crate) const HOST_UNIT: FileGroup = At(
    &["/usr/lib/systemd/system/onload-host.service"],
    "The unit that runs host apply at boot. The package does not enable it.",
);
pub(crate) const SCRIPTS: FileList = FileList(&[
    At(&["/usr/share/bash-completion/completions/onload-ctk"], "The packaged script for bash."),
    At(
        &["/usr/share/zsh/vendor-completions/_onload-ctk"],
        "The packaged script for zsh on Debian.",
    ),
    At(&["/usr/share/zsh/site-functions/_onload-ctk"], "The packaged script for zsh elsewhere."),
    At(&["/usr/share/fish/vendor_completions.d/onload-ctk.fish"], "The packaged script for fish."),
]);
pub(crate) const READ_OF_ENGINES: FileGroup =
    Engines("Read for ", ", and the other files of that directory.");
pub(crate) const EDITED_OF_ENGINES: FileGroup = Engines("Edited for ", ".");
