//! Findings of checks, and remedies.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::Serialize;
use strum::IntoStaticStr;

#[derive(Clone, Copy, Debug, strum::Display, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckFamily {
    /// The host itself: modules, PCIe, CPUs, memory.
    Host,
    #[strum(serialize = "RDMA")]
    Rdma,
    #[strum(serialize = "Specifications")]
    Specs,
    Trust,
    Units,
    Security,
    Engines,
}

#[derive(Clone, Copy, Debug, IntoStaticStr, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum CheckVerdict {
    Pass,
    /// Containers work, but not as well as they could, or not all of them.
    Warn,
    /// Containers do not get what they ask for.
    Fail,
    Unknown,
    /// There is nothing on this host that the check could examine.
    Skipped,
}

impl CheckVerdict {
    /// Returns whether there is something to do.
    pub fn is_problem(self) -> bool {
        !matches!(self, CheckVerdict::Pass | CheckVerdict::Skipped)
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A remedy: a command, a line for a file, a file to correct, kernel parameters, or software to install. There is no other
/// kind of advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Remedy {
    Run {
        /// As it is typed: each name of the host in it is one word to a shell.
        run: String,
    },
    Write {
        file: PathBuf,
        /// The section of the file that the line belongs to, where it has sections.
        #[serde(skip_serializing_if = "Option::is_none")]
        section: Option<String>,
        line: String,
    },
    /// A file to correct as the finding says.
    Edit { edit: PathBuf },
    /// Words of the kernel's command line, where the boot loader's file is not known.
    KernelLine {
        kernel_line: String,
        /// The word that they take the place of.
        #[serde(skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
    },
    /// Software that is not in the distribution's archives.
    Install {
        install: String,
        /// The address of its publisher, or the file that contains it.
        from: String,
    },
}

impl Remedy {
    pub(super) fn install(install: impl Into<String>, from: impl Into<String>) -> Remedy {
        Remedy::Install { install: install.into(), from: from.into() }
    }

    pub(super) fn run(command: impl Into<String>) -> Remedy {
        Remedy::Run { run: command.into() }
    }

    /// For what discovery could not read: another user lacks the right, and root is not told to be root.
    pub(super) fn for_unread() -> Remedy {
        Remedy::run(if geteuid().is_root() {
            "onload-ctk discover --explain"
        } else {
            "sudo onload-ctk doctor"
        })
    }

    pub(super) fn write(file: impl AsRef<Path>, line: impl Into<String>) -> Remedy {
        Remedy::Write { file: file.as_ref().to_owned(), section: None, line: line.into() }
    }

    pub(super) fn write_under(
        file: impl AsRef<Path>,
        section: impl Into<String>,
        line: impl Into<String>,
    ) -> Remedy {
        Remedy::Write {
            file: file.as_ref().to_owned(),
            section: Some(section.into()),
            line: line.into(),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Run { run } => write!(f, "run: {run}"),
            Remedy::Write { file, section, line } => {
                write!(f, "write to {}", file.display())?;
                if let Some(section) = section {
                    write!(f, " under {section}")?;
                }
                write!(f, ": {line}")
            }
            Remedy::Edit { edit } => write!(f, "edit {}", edit.display()),
            Remedy::KernelLine { kernel_line, replaces: None } => {
                write!(f, "add to the kernel command line in the boot loader: {kernel_line}")
            }
            Remedy::KernelLine { kernel_line, replaces: Some(old) } => {
                write!(
                    f,
                    "replace on the kernel command line in the boot loader: {old} by {kernel_line}"
                )
            }
            Remedy::Install { install, from } => write!(f, "install {install} from {from}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub family: CheckFamily,
    /// Its name, the same on every host.
    pub name: &'static str,
    #[serde(flatten)]
    pub finding: Finding,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub verdict: CheckVerdict,
    pub finding: String,
    pub looked_at: Vec<PathBuf>,
    /// The remedies, in this order. Empty if the check passed.
    pub remedy: Vec<Remedy>,
}

impl Finding {
    fn new(verdict: CheckVerdict, finding: impl Into<String>, remedy: Vec<Remedy>) -> Finding {
        Finding { subject: None, verdict, finding: finding.into(), looked_at: Vec::new(), remedy }
    }

    pub(super) fn pass(finding: impl Into<String>) -> Finding {
        Finding::new(CheckVerdict::Pass, finding, Vec::new())
    }

    pub(super) fn skipped(reason: &str) -> Finding {
        Finding::new(CheckVerdict::Skipped, reason, Vec::new())
    }

    pub(super) fn warn(finding: impl Into<String>, remedy: Remedy) -> Finding {
        Finding::new(CheckVerdict::Warn, finding, vec![remedy])
    }

    pub(super) fn fail(finding: impl Into<String>, remedy: Remedy) -> Finding {
        Finding::new(CheckVerdict::Fail, finding, vec![remedy])
    }

    pub(super) fn unknown(finding: impl Into<String>, remedy: Remedy) -> Finding {
        Finding::new(CheckVerdict::Unknown, finding, vec![remedy])
    }

    /// The same, of one device, engine or file among several.
    pub(super) fn with_subject(mut self, subject: impl Into<String>) -> Finding {
        self.subject = Some(subject.into());
        self
    }

    /// The same, after a look at that path.
    pub(super) fn with_path(mut self, path: impl AsRef<Path>) -> Finding {
        self.looked_at.push(path.as_ref().to_owned());
        self
    }

    /// The same, with something to do before the others, if anything.
    pub(super) fn with_first_remedy(mut self, remedy: Option<Remedy>) -> Finding {
        self.remedy.splice(..0, remedy);
        self
    }

    /// The same, with one more thing to do after the others.
    pub(super) fn with_remedy(mut self, remedy: Remedy) -> Finding {
        self.remedy.push(remedy);
        self
    }
}
