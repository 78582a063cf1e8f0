//! `createRuntime --memlock … --expect … --lease …`: the hook of a CDI specification. It raises
//! RLIMIT_MEMLOCK of the container's init process, leases exclusive devices, and stops the
//! container if a device node is not what its specification says.
//!
//! Docker, containerd and CRI-O look at a node once, when they load the specification, and keep its
//! numbers. If a driver has been reloaded since, or devices were bound in another order, those
//! numbers belong to something else, and the container would get another driver's device.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::slice;

use onload_cdi::oci::{OciConfig, OciDevice};
use onload_core::expectation::Expectation;
use onload_core::hook_arguments::HookArguments;
use onload_sys::device_number::DeviceNumber;
use onload_sys::error::{Context, Result, bail, error};

use crate::config::config_file::read_config;
use crate::config::state::OciState;
use crate::decide::existing::is_bind;
use crate::decide::host_view::LocalHost;
use crate::decide::subject::CONFIG_JSON;
use crate::decide::sysfs::{self, Sysfs};
use crate::live::{self, limits};
use crate::moves;
use crate::record::init;
use crate::record::lease::{ContainerInit, canonical};

/// The engine reads a specification again only if its bytes have changed, and they contain the number that the kernel had
/// when they were written. Only a new file is certain to be read.
const REMEDY: &str = "; devices were renumbered, and the engine may keep the old number: remove the \
    onload.dev-* files in /var/run/cdi, run `systemctl start onload-cdi.service`, then start a new \
    container";

/// Runs the hook and returns warnings.
pub(crate) fn run(
    arguments: &HookArguments,
    state: &OciState,
    sysfs: &Sysfs,
    config: &Path,
) -> Result<Vec<String>> {
    if !arguments.expect.is_empty() {
        check(&arguments.expect, &read_config(&state.bundle)?, &state.bundle, sysfs)?;
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
        let config = read_config(&state.bundle)?;
        let libraries = live::choose_for_hook(arguments, &state.bundle, &config, &host)?;
        warnings.extend(if moving.rdma_netns.is_empty() {
            live::mount_libraries(state, &config, libraries, &host)?
        } else {
            live::move_rdma(state, moving, &config, libraries, &host)?
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

/// Checks the nodes that the container gets by `linux.devices` or by `mounts` (runtime-spec, config-linux.md "Devices",
/// config.md "Mounts").
fn check(
    expectations: &[Expectation],
    config: &OciConfig,
    bundle: &Path,
    sysfs: &Sysfs,
) -> Result<()> {
    let mut listed: BTreeMap<&str, BTreeSet<Option<DeviceNumber>>> = BTreeMap::new();
    for expect in expectations {
        listed.entry(&expect.node).or_default();
    }
    config
        .each_device(|device| {
            if let Some(numbers) = listed.get_mut(device.path.as_str()) {
                numbers.insert(character_number(&device));
            }
        })
        .context(CONFIG_JSON)?;
    // The last of several mounts at a path is the visible one.
    let mut mounts = BTreeMap::new();
    for (index, mount) in config.mounts().iter().enumerate() {
        mounts.insert(PathBuf::from(mount.destination()), index);
    }
    for expect in expectations {
        let numbers = &listed[expect.node.as_str()];
        if numbers.is_empty() {
            let Some(source) = mount_source(Path::new(&expect.node), config, &mounts) else {
                bail!(
                    "{expect}: config.json has no such node, neither in linux.devices nor as a bind mount; was the container's device list changed after the specification was applied?"
                );
            };
            let source = bundle.join(source);
            let number = read_device_number(&source)
                .with_context(|| format!("{expect}: {source:?}, which is mounted there"))?;
            sysfs.check(expect, number, REMEDY)?;
        }
        // A runtime may use any of several entries, so all of them must be right.
        for number in numbers {
            let number = number.ok_or_else(|| {
                error!("{expect}: linux.devices of config.json has no character device with numbers there")
            })?;
            sysfs.check(expect, number, REMEDY)?;
        }
    }
    Ok(())
}

fn character_number(device: &OciDevice) -> Option<DeviceNumber> {
    // "u" is an unbuffered character device. Linux makes no difference.
    if !matches!(device.type_.as_str(), "c" | "u") {
        return None;
    }
    Some(DeviceNumber {
        major: device.major.try_into().ok()?,
        minor: device.minor.try_into().ok()?,
    })
}

/// Returns the path, which may be relative to the bundle, that is bind-mounted at a node or above it. In a user
/// namespace, engines may mount the host's node instead of listing it, since nodes cannot be created there.
fn mount_source(
    node: &Path,
    config: &OciConfig,
    mounts: &BTreeMap<PathBuf, usize>,
) -> Option<PathBuf> {
    let above = node.ancestors().filter(|above| mounts.contains_key(*above));
    let destination = above.max_by_key(|above| mounts[*above])?;
    let mount = &config.mounts()[mounts[destination]];
    let source = PathBuf::from(mount.source());
    if source.as_os_str().is_empty() || !is_bind(mount) {
        return None;
    }
    Some(match node.strip_prefix(destination) {
        Ok(rest) if !rest.as_os_str().is_empty() => source.join(rest),
        _ => source,
    })
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
        let config = OciConfig::parse(json.as_bytes()).unwrap();
        check(&expect, &config, Path::new("/b"), &Sysfs::at_root(tree.path()))
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

    #[test]
    fn a_stale_number_is_answered_with_what_helps() {
        let json = r#"{"linux":{"devices":[{"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":193}]}}"#;
        assert_eq!(
            checked(json).unwrap_err(),
            "/dev/infiniband/uverbs0=rdma:rxe0#231:192: the node is 231:193 but the kernel's uverbs0 is 231:192; devices were renumbered, and the engine may keep the old number: remove the onload.dev-* files in /var/run/cdi, run `systemctl start onload-cdi.service`, then start a new container"
        );
    }

    /// The source of /dev/a with these mounts.
    fn mounted(mounts: &str) -> Option<PathBuf> {
        let config = OciConfig::parse(format!(r#"{{"mounts":[{mounts}]}}"#).as_bytes()).unwrap();
        let destinations = config.mounts().iter().map(|mount| mount.destination().into());
        let mounts = destinations.zip(0..).collect();
        mount_source(Path::new("/dev/a"), &config, &mounts)
    }

    #[test]
    fn the_last_mount_that_covers_the_node_brings_it() {
        let tmpfs = r#"{"destination":"/dev","type":"tmpfs","source":"tmpfs"}"#;
        let bind =
            r#"{"destination":"/dev/a","type":"none","source":"/dev/x","options":["ro","rbind"]}"#;
        let whole = r#"{"destination":"/dev","type":"bind","source":"/host"}"#;
        assert_eq!(mounted(bind), Some("/dev/x".into()));
        assert_eq!(mounted(&format!("{tmpfs},{bind}")), Some("/dev/x".into()));
        assert_eq!(mounted(&format!("{bind},{tmpfs}")), None);
        assert_eq!(mounted(&format!("{tmpfs},{whole}")), Some("/host/a".into()));
        assert_eq!(mounted(tmpfs), None);
        assert_eq!(mounted(r#"{"destination":"/dev/a","type":"bind"}"#), None);
        assert_eq!(mounted(r#"{"destination":"/dev/aa","type":"bind","source":"/x"}"#), None);
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
        let config = OciConfig::parse(json.as_bytes()).unwrap();
        check(&expect, &config, Path::new("/dev"), &Sysfs::at_root(tree.path()))
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
