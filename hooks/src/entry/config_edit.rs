//! The I/O of the filter: reads a configuration, calls the filter, writes the result.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use onload_cdi::json::RawObject;
use onload_lease::run_dir::RUN_DIR;
use onload_sys::error::{Context, Error, Result, bail};

use crate::config::config_file::OciConfigFile;
use crate::config::decision_input::{self, DecisionInput};
use crate::config::filter::{self, FilterOutcome};
use crate::config::scan::{self, ScanScope};
use crate::config::state::OciState;
use crate::decide::host_view::LocalHost;
use crate::decide::report::ContainerReport;
use crate::decide::root_access;
use crate::decide::subject::ContainerRef;
use crate::image::preload::MERGED;
use crate::moves;
use crate::record::container_dir::ContainerDir;
use crate::record::creator::CreatorStage;
use crate::record::lease::{self, Reserver};
use crate::record::sweep;

/// Removes the file that was written for a container, and cancels its reservation, since the
/// container will not start and no poststop follows. Errors are not reported, since the original
/// error matters more. Files that a hook created for a running container with the same ID remain.
pub(crate) fn undo(outcome: &FilterOutcome) {
    if let Some(reservation) = &outcome.reservation {
        lease::cancel(reservation);
    }
    if let Some(file) = &outcome.file {
        let _ = sweep::remove_preload_list(Path::new(RUN_DIR), &file.id);
    }
}

pub(crate) fn read_request(file: &OciConfigFile) -> Result<Option<DecisionInput>> {
    DecisionInput::read(file.scan(ScanScope::VariableToo)?)
}

/// Edits a bundle's configuration in place, or leaves it unchanged if that fails. `root` is the
/// directory where the runtime keeps its containers.
pub(crate) fn edit(
    file: &OciConfigFile,
    container: ContainerRef<'_>,
    root: Option<&Path>,
    host: &LocalHost,
) -> Result<FilterOutcome> {
    let Some(input) = read_request(file)? else {
        return Ok(FilterOutcome::default());
    };
    let mut reserver = Reserver::creating(host, "onload-container-runtime");
    reserver.root = root;
    let mut outcome = decide_and_reserve(&input, container, reserver, CreatorStage::Runtime, host)?;
    if let Some(config) = outcome.config.take() {
        file.replace(&config).inspect_err(|_| undo(&outcome))?;
    }
    Ok(outcome)
}

/// Decides, reserves members of pools, and writes the outcome's host file, if it has one.
fn decide_and_reserve(
    input: &DecisionInput,
    container: ContainerRef<'_>,
    mut reserver: Reserver<'_>,
    stage: CreatorStage,
    host: &LocalHost,
) -> Result<FilterOutcome> {
    reserver.fetch = Some(&moves::fetch);
    let (mut outcome, reservation) = reserver.decide_and_reserve(
        |pools| filter::apply_request(input, container, host, pools),
        |outcome| outcome.choice.take(),
    )?;
    outcome.reservation = reservation;
    sweep::remove_stale(Path::new(RUN_DIR), container.id);
    let Some(host_file) = &outcome.file else {
        return Ok(outcome);
    };
    let write = || {
        let dir = ContainerDir::open(&host_file.id, stage, container.bundle, reserver.root, host)?;
        dir.write(MERGED, &host_file.bytes, host_file.label.as_deref())
            .inspect_err(|_| dir.remove_if_unused(&host_file.id))?;
        Ok(dir.warning)
    };
    let warning = write().inspect_err(|_: &Error| {
        if let Some(reservation) = &outcome.reservation {
            lease::cancel(reservation);
        }
    })?;
    outcome.report.warnings.extend(warning);
    Ok(outcome)
}

/// Removes CAP_SETUID from the description of a process that starts in a container later (runc and
/// crun, `exec --process`), if the process must not have it.
pub(crate) fn drop_setuid(process: &Path) -> Result<()> {
    const READ_CONTEXT: &str = "reading the process of `exec`";
    let file = OciConfigFile::open(Path::new(""), Some(process))?;
    let scan_result = file.scan(ScanScope::Annotations)?;
    if scan_result.more {
        bail!("{READ_CONTEXT}: it is too large");
    }
    let mut described = RawObject::parse(&scan_result.kept).context(READ_CONTEXT)?;
    if root_access::drop_setuid(&mut described).context(READ_CONTEXT)? {
        file.replace(&described.to_bytes())?;
    }
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StreamResult {
    /// A configuration, which was passed on, and the report about it.
    Config(ContainerReport),
    /// The state of a container, which means another kind of call.
    State(OciState),
}

/// Edits a configuration while copying it from one stream to another. If this fails, the output
/// must not be used.
pub(crate) fn edit_stream(
    from: impl Read,
    to: &mut dyn Write,
    container: ContainerRef<'_>,
    config: &Path,
) -> Result<StreamResult> {
    const WRITING: &str = "writing standard output";
    let mut began = false;
    let scan_result = scan::read(from, 0, ScanScope::Annotations, &mut |kept, piece| {
        if !std::mem::replace(&mut began, true) {
            to.write_all(kept)?;
        }
        to.write_all(piece)
    })
    .context("copying standard input")?;
    if !scan_result.may_hold_request {
        if !began {
            to.write_all(&scan_result.kept).context(WRITING)?;
        }
        to.flush().context(WRITING)?;
        return Ok(StreamResult::Config(ContainerReport::default()));
    }
    if scan_result.more {
        return Err(decision_input::too_large_error());
    }
    if let Some(state) = OciState::recognise(&scan_result.kept) {
        return Ok(StreamResult::State(state));
    }
    let text = decision_input::into_text(scan_result.kept)?;
    let mut outcome = FilterOutcome::default();
    if let Some(input) = DecisionInput::parse(Arc::clone(&text), ScanScope::Annotations)? {
        let host = LocalHost::with_config(config)?;
        let reserver = Reserver::before(&host, "onload-hook precreate");
        outcome = decide_and_reserve(&input, container, reserver, CreatorStage::Precreate, &host)?;
    }
    to.write_all(outcome.config.as_deref().unwrap_or(text.as_bytes()))
        .and_then(|()| to.flush())
        .inspect_err(|_| undo(&outcome))
        .context(WRITING)?;
    Ok(StreamResult::Config(outcome.report))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(bytes: &[u8]) -> Result<Vec<u8>> {
        let mut to = Vec::new();
        let container = ContainerRef { bundle: Path::new("/"), id: None, sees_exec: false };
        edit_stream(bytes, &mut to, container, Path::new("/none"))?;
        Ok(to)
    }

    #[test]
    fn what_asks_for_nothing_is_copied_whatever_it_is_and_however_long() {
        for bytes in [&b""[..], b"{}", b"not json \xff", b"{\"a\": 1e3 }\n"] {
            assert_eq!(copied(bytes).unwrap(), bytes);
        }
        let mut long = vec![b'x'; scan::MAX_BYTES + 200_001];
        assert_eq!(copied(&long).unwrap(), long);
        long.extend(b"onload.dev/nic");
        let refusal = copied(&long).unwrap_err().to_string();
        assert!(refusal.ends_with("is larger than 16777216 bytes"), "{refusal}");
    }
}
