//! `createRuntime --memlock … --expect … --lease …`: the hook of a CDI specification. It raises
//! RLIMIT_MEMLOCK of the container's init process, leases exclusive devices, and stops the
//! container if a device node is not what its specification says.
//!
//! Docker, containerd and CRI-O look at a node once, when they load the specification, and keep its
//! numbers. If a driver has been reloaded since, or devices were bound in another order, those
//! numbers belong to something else, and the container would get another driver's device.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::slice;

use onload_core::expectation::Expectation;
use onload_core::hook_arguments::HookArguments;
use onload_sys::device_number::DeviceNumber;
use onload_sys::error::{Context, Result, bail, error};
use rustix::fs::{Mode, OFlags};
use serde_json::Deserializer;

use crate::config::node_entries::ListedNodes;
use crate::config::state::OciState;
use crate::decide::host_view::LocalHost;
use crate::decide::sysfs::{self, Remedies, Sysfs};
use crate::live::{self, limits};
use crate::moves;
use crate::record::init;
use crate::record::lease::{ContainerInit, canonical};

/// The largest configuration that is read into memory completely. Engines write about forty
/// thousand bytes.
const MAX_BUFFERED_BYTES: u64 = 256 * 1024;

const REMEDIES: Remedies = Remedies {
    renumbered: "; devices were renumbered, and the engine keeps the old number until the specification changes: run `systemctl start onload-cdi.service`, then start a new container",
    // A rewritten file would have the same bytes, and the engine would not read it again.
    renumbered_since: "; its specification has the same number, so the engine keeps an older one: \
        remove the onload.dev-* files in /var/run/cdi, run `systemctl start onload-cdi.service`, \
        then start a new container",
    moved: "; run `systemctl start onload-cdi.service`, then start a new container",
};

/// Runs the hook and returns warnings.
pub(crate) fn run(
    arguments: &HookArguments,
    state: &OciState,
    sysfs: &Sysfs,
    config: &Path,
) -> Result<Vec<String>> {
    if !arguments.expect.is_empty() {
        let path = state.bundle.join("config.json");
        let listed_nodes =
            read_config(&path, &arguments.expect).with_context(|| format!("reading {path:?}"))?;
        check(&arguments.expect, &listed_nodes, &state.bundle, sysfs)?;
    }
    let (rest, moving) = moves::split(arguments);
    if rest.lease.is_empty() && rest.netdev.is_empty() {
        return apply_arguments(arguments, &moving, state, config);
    }
    let init = state.pid.ok_or_else(init::no_pid_error)?;
    let host = LocalHost::with_config(config)?;
    let bundle = canonical(&state.bundle)?;
    let container = ContainerInit { id: &state.id, bundle: &bundle, init, host: &host };
    let acquired = moves::acquire(slice::from_ref(&rest), &[], container, "createRuntime")?;
    match apply_arguments(arguments, &moving, state, config) {
        Ok(warnings) => Ok([warnings, acquired.finish()].concat()),
        Err(failed) => Err(acquired.withdraw(failed)),
    }
}

/// Applies the arguments after the leases were acquired.
fn apply_arguments(
    arguments: &HookArguments,
    moving: &HookArguments,
    state: &OciState,
    config: &Path,
) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    if !moving.rdma_netns.is_empty() || arguments.rdma_libraries.is_some() {
        let host = LocalHost::with_config(config)?;
        let libraries = live::choose_libraries(arguments, state, &host)?;
        warnings.extend(if moving.rdma_netns.is_empty() {
            live::mount_libraries(state, libraries, &host)?
        } else {
            live::move_rdma(state, moving, libraries, &host)?
        });
    }
    if !arguments.take.is_empty() {
        warnings.extend(live::inject_members(state, &arguments.take, config)?.warnings);
    }
    // Last, so that a container that is rejected keeps its limits.
    if let Some(memlock) = arguments.memlock {
        warnings.extend(limits::raise_memlock(state.pid, memlock)?);
    }
    Ok(warnings)
}

fn read_config(path: &Path, expect: &[Expectation]) -> io::Result<ListedNodes> {
    // Opening a FIFO in place of the file must not block the hook.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let listed_nodes = if metadata.len() <= MAX_BUFFERED_BYTES {
        let size = usize::try_from(metadata.len()).unwrap_or_default();
        let mut bytes = Vec::with_capacity(size + 1);
        file.by_ref().take(MAX_BUFFERED_BYTES).read_to_end(&mut bytes)?;
        ListedNodes::parse(Deserializer::from_slice(&bytes), expect)
    } else {
        let file = BufReader::with_capacity(64 * 1024, file);
        ListedNodes::parse(Deserializer::from_reader(file), expect)
    };
    Ok(listed_nodes?)
}

fn check(
    expect: &[Expectation],
    listed_nodes: &ListedNodes,
    bundle: &Path,
    sysfs: &Sysfs,
) -> Result<()> {
    for expect in expect {
        let mut entries = listed_nodes.entries(&expect.node).peekable();
        if entries.peek().is_none() {
            let Some(source) = listed_nodes.mount_source(&expect.node) else {
                bail!(
                    "{expect}: config.json has no such node, neither in linux.devices nor as a bind mount; was the container's device list changed after the specification was applied?"
                );
            };
            let source = bundle.join(source);
            let number = read_device_number(&source)
                .with_context(|| format!("{expect}: {source:?}, which is mounted there"))?;
            sysfs.check(expect, number, &REMEDIES)?;
        }
        // A runtime may use any of several entries, so all of them must be right.
        for entry in entries {
            let number = entry.numbers().ok_or_else(|| {
                error!("{expect}: linux.devices of config.json has no character device with numbers there")
            })?;
            sysfs.check(expect, number, &REMEDIES)?;
        }
    }
    Ok(())
}

/// Returns the numbers of a host node that is mounted into the container. The mount resolves a name
/// in the file system, so the numbers are read now.
fn read_device_number(source: &Path) -> io::Result<DeviceNumber> {
    let stat = rustix::fs::stat(source)?;
    sysfs::device_number(&stat).ok_or_else(|| io::Error::other("not a character device"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hca() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let verbs = tree.path().join("class/infiniband_verbs/uverbs0");
        std::fs::create_dir_all(&verbs).unwrap();
        std::fs::create_dir_all(tree.path().join("class/infiniband/rxe0")).unwrap();
        std::fs::write(verbs.join("ibdev"), "rxe0\n").unwrap();
        std::fs::write(verbs.join("dev"), "231:192\n").unwrap();
        tree
    }

    fn checked(json: &str) -> Result<(), String> {
        let tree = hca();
        let expect = ["/dev/infiniband/uverbs0=rdma:rxe0#231:192".parse().unwrap()];
        let listed = ListedNodes::parse(Deserializer::from_str(json), &expect).unwrap();
        check(&expect, &listed, Path::new("/b"), &Sysfs::at_root(tree.path()))
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_node_with_the_kernel_s_numbers_passes() {
        checked(r#"{"linux":{"devices":[{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192}]}}"#)
            .unwrap();
    }

    #[test]
    fn a_node_that_is_missing_or_no_character_device_stops_the_container() {
        assert!(checked("{}").unwrap_err().contains("config.json has no such node"));
        for entry in [
            r#"{"path":"/dev/infiniband/uverbs0","type":"b","major":231,"minor":192}"#,
            r#"{"path":"/dev/infiniband/uverbs0","type":"c"}"#,
            r#"{"path":"/dev/infiniband/uverbs0","type":"c","major":-1,"minor":192}"#,
        ] {
            let json = format!(r#"{{"linux":{{"devices":[{entry}]}}}}"#);
            assert!(checked(&json).unwrap_err().contains("has no character device"));
        }
    }

    #[test]
    fn one_wrong_entry_of_two_stops_the_container() {
        let json = r#"{"linux":{"devices":[
            {"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192},
            {"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":193}]}}"#;
        assert!(checked(json).unwrap_err().contains("the node is 231:193"));
    }

    fn remedied(written: &str, found: &str) -> String {
        let tree = hca();
        let expect: Expectation =
            format!("/dev/infiniband/uverbs0=rdma:rxe0{written}").parse().unwrap();
        let error = Sysfs::at_root(tree.path()).check(&expect, found.parse().unwrap(), &REMEDIES);
        format!("{:#}", error.unwrap_err())
    }

    #[test]
    fn a_stale_number_is_answered_with_what_helps() {
        let message = "/dev/infiniband/uverbs0=rdma:rxe0#231:193: the node is 231:193 but the kernel's uverbs0 is 231:192; devices were renumbered, and the engine keeps the old number until the specification changes: run `systemctl start onload-cdi.service`, then start a new container";
        assert_eq!(remedied("#231:193", "231:193"), message);
        assert!(remedied("", "231:193").contains("onload-cdi.service"));
    }

    #[test]
    fn a_stale_number_beside_a_fresh_specification_is_answered_with_what_helps_then() {
        let message = remedied("#231:192", "231:193");
        assert!(message.contains("remove the onload.dev-* files in /var/run/cdi"), "{message}");
        assert!(!message.contains("renumbered"), "{message}");
    }

    /// The outcome if `source` is mounted at the node's path; `tty` is a character device.
    fn mount(source: &Path, options: &str) -> Result<(), String> {
        let numbers = rustix::fs::stat(Path::new("/dev/null")).unwrap().st_rdev;
        let (major, minor) = (rustix::fs::major(numbers), rustix::fs::minor(numbers));
        let tree = tempfile::tempdir().unwrap();
        let onload = tree.path().join("class/onload/onload");
        std::fs::create_dir_all(&onload).unwrap();
        std::fs::write(onload.join("dev"), format!("{major}:{minor}\n")).unwrap();
        let expect = ["/dev/onload=nic:onload".parse().unwrap()];
        let json = format!(
            r#"{{"mounts":[{{"destination":"/dev","type":"tmpfs","source":"tmpfs"}},
                {{"destination":"/dev/onload","type":"bind","source":{source:?},"options":[{options}]}}]}}"#
        );
        let listed = ListedNodes::parse(Deserializer::from_str(&json), &expect).unwrap();
        check(&expect, &listed, Path::new("/dev"), &Sysfs::at_root(tree.path()))
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_node_that_is_only_mounted_is_the_host_s_own_and_passes() {
        mount(Path::new("/dev/null"), r#""rbind","nosuid""#).unwrap();
        // A source may be relative to the bundle, which is /dev here.
        mount(Path::new("null"), "").unwrap();
    }

    #[test]
    fn a_mounted_node_of_another_driver_stops_the_container() {
        let refusal = mount(Path::new("/dev/zero"), "").unwrap_err();
        assert!(refusal.contains("the node is 1:5 but the kernel's onload is 1:3"), "{refusal}");
    }

    #[test]
    fn what_is_mounted_and_no_node_stops_the_container() {
        let refusal = mount(Path::new("/etc/passwd"), "").unwrap_err();
        assert!(
            refusal.contains("\"/etc/passwd\", which is mounted there: not a character device"),
            "{refusal}"
        );
        let refusal = mount(Path::new("/nonexistent"), "").unwrap_err();
        assert!(refusal.contains("/nonexistent"), "{refusal}");
    }

    #[test]
    fn an_entry_comes_before_a_mount() {
        let json = r#"{"mounts":[{"destination":"/dev","type":"bind","source":"/nonexistent"}],
            "linux":{"devices":[{"path":"/dev/infiniband/uverbs0","type":"u","major":231,"minor":192}]}}"#;
        checked(json).unwrap();
    }
}
