//! Onload: the kernel modules, the device nodes, the library, and whether they fit together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onload_core::class::Class;
use onload_core::config::CdiConfig;
use onload_core::onload::LIBRARY;
use onload_sys::elf::GlibcVersion;
use serde::Serialize;

use crate::discover::exclusion::{Exclusion, ExclusionSubject};
use crate::discover::installation::{self, ContainerLibraries, Installation, Tool};
use crate::discover::node::{NumberedNode, OfferedNode};
use crate::discover::probe::Probe;
use crate::discover::profile::{self, Profile};
use crate::host::EntryKind;

/// Parameters for the program that the driver starts for each network namespace (Onload, `linux_onload/cplane.c`).
pub const CONTROL_PLANE: &str = "/sys/module/onload/parameters/cplane_server_path";
const STARTS_CONTROL_PLANE: &str = "/sys/module/onload/parameters/cplane_spawn_server";
/// The program if the parameter is empty.
pub const DEFAULT_CONTROL_PLANE: &str = "/sbin/onload_cp_server";

const DRIVER_VERSION: &str = "/proc/driver/onload/version";

/// Programs that a container may use; those in sbin administer the host.
const TOOLS: [&str; 13] = [
    "onload",
    "onload_fe",
    "onload_fuser",
    "onload_helper",
    "onload_iptables",
    "onload_mibdump",
    "onload_shrubdump",
    "onload_stackdump",
    "onload_tcpdump",
    "onload_tcpdump.bin",
    "orm_json",
    "orm_webserver",
    "solar_clusterd",
];

const NOT_INSTALLED: &str =
    "not installed: no kernel module is loaded and libonload.so was not found; install Onload";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Onload {
    pub version: Option<String>,
    /// Version of the library, if the file contains it.
    pub library_version: Option<String>,
    /// The md5 checksum of the interface between driver and library, according to the driver.
    pub interface_checksum: Option<String>,
    /// Whether the library was built for that interface; `None` if either is missing.
    pub library_matches: Option<bool>,
    pub glibc_needed: Option<GlibcVersion>,
    pub tools: Vec<Tool>,
    pub profiles: Vec<Profile>,
    /// The driver's nodes. Empty if one is missing, and then Onload is not offered.
    #[serde(skip)]
    pub nodes: Vec<Arc<OfferedNode>>,
    #[serde(skip)]
    pub profile_dir: Option<PathBuf>,
    #[serde(skip)]
    pub installation: Option<Installation>,
    /// Machine of the library, `e_machine` of its ELF header.
    #[serde(skip)]
    pub machine: Option<u16>,
    #[serde(skip)]
    pub obstacle: Option<String>,
    /// `None` if the driver starts no program or does not report its path.
    #[serde(skip)]
    pub control_plane: Option<ControlPlane>,
}

/// The program that creates the tables of a network namespace, without which no program there gets a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlane {
    pub path: PathBuf,
    /// `None` if the kernel can execute it.
    pub fault: Option<ProgramFault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramFault {
    Missing,
    NotExecutable,
}

impl ControlPlane {
    fn read(probe: &Probe<'_>) -> Option<ControlPlane> {
        let path = match probe.attribute(CONTROL_PLANE) {
            Some(path) => PathBuf::from(path),
            None => probe.entry(CONTROL_PLANE).map(|_| PathBuf::from(DEFAULT_CONTROL_PLANE))?,
        };
        if probe.attribute(STARTS_CONTROL_PLANE).as_deref() == Some("N") {
            return None;
        }
        let fault = match probe.entry(&path) {
            Some(EntryKind::File { executable: true }) => None,
            Some(_) => Some(ProgramFault::NotExecutable),
            None if probe.unread_reason(&path).is_some() => return None,
            None => Some(ProgramFault::Missing),
        };
        Some(ControlPlane { path, fault })
    }

    pub fn fault_reason(&self) -> Option<String> {
        let fault = match self.fault? {
            ProgramFault::Missing => "is missing",
            ProgramFault::NotExecutable => "is not an executable file",
        };
        let path = self.path.display();
        Some(format!(
            "Onload's control plane {path} {fault}: the driver cannot start it, so programs get no \
             stack"
        ))
    }
}

impl Onload {
    pub fn library_dir(&self) -> Option<&Path> {
        let installation = self.installation.as_ref();
        installation.map(|installation| installation.library_dir.as_path())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DriverVersion {
    version: Option<String>,
    interface: Option<String>,
}

/// Nodes by name, or the reason why a node cannot be offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverNodes(BTreeMap<&'static str, Result<Arc<OfferedNode>, String>>);

impl DriverNodes {
    pub(crate) fn read(probe: &Probe<'_>) -> DriverNodes {
        let named_nodes = ["onload", "onload_epoll", "sfc_char"]
            .into_iter()
            .map(|name| (name, find_node(probe, name).map(OfferedNode::shared)));
        DriverNodes(named_nodes.collect())
    }

    /// Returns the nodes. Fails with the reason of the first one that cannot be offered.
    pub(crate) fn find_all(&self, names: &[&str]) -> Result<Vec<Arc<OfferedNode>>, String> {
        names.iter().filter_map(|&name| self.0.get(name)).cloned().collect()
    }
}

pub(crate) fn read(probe: &Probe<'_>, cdi: &CdiConfig, nodes: &DriverNodes) -> Option<Onload> {
    let driver = read_driver(probe);
    let loaded = driver != DriverVersion::default()
        || ["onload", "sfc_char", "sfc_resource"]
            .iter()
            .any(|module| probe.entry(Path::new("/sys/module").join(module)).is_some());
    let library = read_library(probe, cdi, &driver);
    let unread = unread_reason(probe, cdi);
    if !loaded && library.installation.is_none() {
        let reason = match &unread {
            Some(reason) => format!("could not determine whether it is installed: {reason}"),
            None => NOT_INSTALLED.to_owned(),
        };
        probe.exclude(Exclusion::new(Class::Nic, "onload", reason));
        return None;
    }
    let nodes = nodes.find_all(&["onload", "onload_epoll"]);
    let obstacle = find_obstacle(&nodes, &driver, &library, unread.as_deref());
    if let Some(reason) = &obstacle {
        probe.exclude(Exclusion::new(Class::Nic, "onload", reason.clone()));
    }
    let installation = library.installation.as_ref();
    let control_plane = probe.with_classes(&[], || ControlPlane::read(probe));
    let reason = control_plane.as_ref().and_then(ControlPlane::fault_reason);
    reason.into_iter().for_each(|reason| probe.warn(reason));
    let profile_dir = installation.and_then(|installation| profile_dir(probe, cdi, installation));
    let profiles = profile_dir.as_deref().map(|dir| profile::read(probe, dir));
    let tools = installation.map(|installation| read_tools(probe, cdi, installation, &TOOLS));
    Some(Onload {
        version: driver.version,
        interface_checksum: driver.interface,
        nodes: nodes.unwrap_or_default(),
        tools: tools.unwrap_or_default(),
        profiles: profiles.unwrap_or_default(),
        profile_dir,
        obstacle,
        control_plane,
        ..library
    })
}

fn unread_reason(probe: &Probe<'_>, cdi: &CdiConfig) -> Option<String> {
    let dirs = installation::library_dirs(&cdi.host_library_dirs);
    dirs.iter()
        .map(PathBuf::as_path)
        .chain([Path::new(DRIVER_VERSION), Path::new("/sys/module")])
        .find_map(|path| probe.unread_reason(path))
}

fn read_driver(probe: &Probe<'_>) -> DriverVersion {
    let text = probe.ok_or_warn(probe.host().text(Path::new(DRIVER_VERSION))).unwrap_or_default();
    let mut driver = parse_driver_version(&text);
    if driver.version.is_none() {
        let version = probe.attribute("/sys/module/onload/version");
        driver.version = version.filter(|text| is_version(text));
    }
    driver
}

/// Returns whether a build has a version. Otherwise the field contains only the name of the build profile: `cloud`
/// (Onload, `scripts/onload_version_gen`).
fn is_version(text: &str) -> bool {
    text != "<dev-snapshot>" && text.contains(|letter: char| letter.is_ascii_digit())
}

/// Parses `/proc/driver/onload/version` (Onload, `linux_onload/linux_stats.c`).
fn parse_driver_version(text: &str) -> DriverVersion {
    let field = |name: &str| {
        let value = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim())
            .next();
        value.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    DriverVersion {
        version: field("onload_version").filter(|text| is_version(text)),
        interface: field("uk_intf_ver")
            .filter(|text| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit())),
    }
}

/// Returns the copy of the library that matches the driver, or else the first one, or none.
fn read_library(probe: &Probe<'_>, cdi: &CdiConfig, driver: &DriverVersion) -> Onload {
    let dirs = installation::library_dirs(&cdi.host_library_dirs);
    let installations = installation::find_installations(probe, &dirs, LIBRARY, is_onload_library);
    let mut copies: Vec<Onload> =
        installations.into_iter().map(|copy| inspect_library(probe, copy, driver)).collect();
    if copies.is_empty() {
        return Onload::default();
    }
    let best = copies.iter().position(|copy| copy.library_matches == Some(true)).unwrap_or(0);
    let chosen = copies.remove(best);
    let others = copies.iter().filter_map(Onload::library_dir);
    exclude_copies(probe, Class::Nic, LIBRARY, chosen.library_dir(), others);
    chosen
}

/// Excludes the copies of a library that are not used.
pub(crate) fn exclude_copies<'p>(
    probe: &Probe<'_>,
    class: Class,
    library: &str,
    used: Option<&Path>,
    others: impl Iterator<Item = &'p Path>,
) {
    let used = used.unwrap_or(Path::new("/")).join(library);
    for other in others {
        let reason = format!(
            "another copy, {}, is used; set host-library-dirs in [cdi] to choose",
            used.display()
        );
        let path = other.join(library).display().to_string();
        probe.exclude(Exclusion::new(class, path, reason));
    }
}

/// Returns whether this is a library of Onload itself. Names of TCPDirect's libraries have the same prefix.
fn is_onload_library(name: &str) -> bool {
    let onload = name.starts_with("libonload") && !name.starts_with("libonload_zf");
    (onload || name.starts_with("libefcp")) && is_shared_object(name)
}

/// `lib*.so`, or `lib*.so.` and a version.
pub(crate) fn is_shared_object(name: &str) -> bool {
    name.split_once(".so").is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with('.'))
}

fn inspect_library(
    probe: &Probe<'_>,
    installation: Installation,
    driver: &DriverVersion,
) -> Onload {
    let path = installation.library_dir.join(LIBRARY);
    let content = installation::read_library(probe, &path);
    let text = content.as_deref();
    let summary = text.and_then(|content| installation::library_summary(probe, &path, content));
    let checksum = driver.interface.as_ref();
    let has_interface =
        checksum.zip(text).map(|(checksum, content)| contains(content, checksum.as_bytes()));
    // The library of a driver without a version has no version either, even if its strings look like one.
    let has_none = has_interface == Some(true) && driver.version.is_none();
    let version = text
        .filter(|_| !has_none)
        .and_then(|content| library_version(content, driver.version.as_deref()));
    let is_other = is_other_release(version.as_deref(), driver.version.as_deref());
    Onload {
        library_version: version,
        library_matches: has_interface.map(|has| has && !is_other),
        glibc_needed: summary.as_ref().and_then(onload_sys::elf::ElfSummary::glibc_needed),
        machine: summary.map(|summary| summary.machine),
        installation: Some(installation),
        ..Onload::default()
    }
}

/// Returns whether the driver rejects the library because of its version, although releases may share an interface
/// (Onload, `version_check.h`). Builds from git compare the name of a branch instead, which is unknown here.
fn is_other_release(library: Option<&str>, driver: Option<&str>) -> bool {
    let driver = driver.filter(|driver| release(driver.as_bytes()).is_some());
    driver.is_some() && library.is_some() && library != driver
}

/// Returns the part of a library's content that a capture keeps: the strings that may contain its release, in order,
/// and those of `marks` that appear anywhere in it.
pub fn release_strings<'c>(
    content: &'c [u8],
    driver: Option<&str>,
    marks: &[&'c str],
) -> Vec<&'c [u8]> {
    let releases = content.split(|byte| *byte == 0 || *byte == b'\n').filter(|text| {
        let printed = text.strip_prefix(b"Onload ").and_then(release);
        let is_drivers = driver.is_some_and(|driver| text.trim_ascii() == driver.as_bytes());
        is_drivers || printed.is_some() || release(text).is_some()
    });
    let marks = marks.iter().map(|mark| mark.as_bytes());
    releases.chain(marks.filter(|mark| contains(content, mark))).collect()
}

fn contains(content: &[u8], text: &[u8]) -> bool {
    memchr::memmem::find(content, text).is_some()
}

/// Returns the version of a library from its strings: the driver's version if it appears there, or else the text that
/// old libraries print when they are run ("Onload 8.1.3.40"), or else the only string that looks like a release.
fn library_version(content: &[u8], driver: Option<&str>) -> Option<String> {
    let mut strings = content.split(|byte| *byte == 0 || *byte == b'\n');
    if let Some(version) = driver
        && strings.clone().any(|text| text.trim_ascii() == version.as_bytes())
    {
        return Some(version.to_owned());
    }
    let printed = strings.clone().find_map(|text| release(text.strip_prefix(b"Onload ")?));
    if printed.is_some() {
        return printed;
    }
    let first = strings.find_map(release)?;
    strings.filter_map(release).all(|other| other == first).then_some(first)
}

/// Parses a release of Onload, with three or four numbers.
fn release(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text.trim_ascii()).ok().filter(|text| text.len() <= 32)?;
    let numbers: Vec<&str> = text.split('.').collect();
    let release = (3..=4).contains(&numbers.len())
        && numbers
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    release.then(|| text.to_owned())
}

fn find_obstacle(
    nodes: &Result<Vec<Arc<OfferedNode>>, String>,
    driver: &DriverVersion,
    library: &Onload,
    unread: Option<&str>,
) -> Option<String> {
    if let Err(reason) = nodes {
        return Some(reason.clone());
    }
    if library.library_matches == Some(true) {
        return None;
    }
    if let (None, Some(reason)) = (library.library_matches, unread) {
        return Some(format!(
            "could not determine whether a libonload.so for the loaded driver is installed: \
             {reason}"
        ));
    }
    let Some(dir) = library.library_dir() else {
        return Some(
            "libonload.so is in none of the library directories; install Onload's user space"
                .to_owned(),
        );
    };
    let Some(checksum) = &driver.interface else {
        return Some(format!(
            "{DRIVER_VERSION} does not report the driver's interface, so the library cannot be \
             compared; load another version of the driver"
        ));
    };
    let (version, same) = match &driver.version {
        Some(version) => (format!(" and whose version is {version}"), "version"),
        None => (String::new(), "build"),
    };
    Some(format!(
        "{} was not built for the loaded driver, whose interface is {checksum}{version}; install the library of the same {same}, or load the driver that belongs to the library",
        dir.join(LIBRARY).display(),
    ))
}

fn find_node(probe: &Probe<'_>, name: &str) -> Result<NumberedNode, String> {
    let path = format!("/dev/{name}");
    if probe.device_node(&path).is_some() {
        let device = Path::new("/sys/class").join(name).join(name);
        return NumberedNode::find(probe, path, &device);
    }
    if let Some(reason) = probe.unread_reason(probe.device_path(&path)) {
        return Err(format!("could not determine whether {path} exists: {reason}"));
    }
    let module = if name == "sfc_char" { "sfc_char" } else { "onload" };
    Err(match probe.entry(Path::new("/sys/module").join(module)) {
        Some(_) => {
            format!("{path} is missing although the module {module} is loaded; check udev")
        }
        None => format!(
            "{path} is missing: the module {module} is not loaded; run \"modprobe {module}\""
        ),
    })
}

/// Returns the tools of an installation that a container can use. The others are recorded as not offered.
pub(crate) fn read_tools(
    probe: &Probe<'_>,
    cdi: &CdiConfig,
    installation: &Installation,
    names: &[&str],
) -> Vec<Tool> {
    let default = installation.prefix.join("usr/bin");
    let Some(dir) = configured_dir(cdi.host_tool_dir.as_ref(), default) else {
        return Vec::new();
    };
    let library_dir = Some(installation.library_dir.as_path());
    let search = || installation::search_dirs(library_dir, &cdi.host_library_dirs);
    let container_libraries = ContainerLibraries {
        mounted: installation::needed_libraries(probe, installation),
        search: cdi.tool_libraries.then(search),
    };
    let mut tools = Vec::new();
    for name in names {
        let path = dir.join(name);
        let closure = match probe.entry(&path) {
            None => continue,
            Some(EntryKind::File { .. }) => {
                installation::find_closure(probe, &path, &container_libraries)
            }
            Some(_) => Err("it is no regular file".to_owned()),
        };
        let name = (*name).to_owned();
        match closure {
            Ok(closure) => tools.push(Tool { name, path, closure }),
            Err(reason) => {
                probe.exclude(Exclusion::new(ExclusionSubject::Tool, name, with_remedy(reason)));
            }
        }
    }
    tools.sort();
    tools
}

fn with_remedy(reason: String) -> String {
    if reason.contains("; ") { reason } else { format!("{reason}; run it on the host") }
}

/// Returns a configured directory, or else the default. An empty path means none.
fn configured_dir(configured: Option<&PathBuf>, default: PathBuf) -> Option<PathBuf> {
    Some(configured.cloned().unwrap_or(default)).filter(|dir| !dir.as_os_str().is_empty())
}

fn profile_dir(probe: &Probe<'_>, cdi: &CdiConfig, installation: &Installation) -> Option<PathBuf> {
    let default = installation.prefix.join("usr/libexec/onload/profiles");
    let dir = configured_dir(cdi.host_profile_dir.as_ref(), default)?;
    let is_dir = probe.entry(&dir) == Some(EntryKind::Directory);
    is_dir.then_some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_and_interface_are_read() {
        let text = "onload_product: Onload\nonload_version: ef17681d 2026-07-22 master \n\
                    uk_intf_ver: 94e6b7eccf68029c8c29f301197d3e9a\n";
        let driver = parse_driver_version(text);
        assert_eq!(driver.version.as_deref(), Some("ef17681d 2026-07-22 master"));
        assert_eq!(driver.interface.as_deref(), Some("94e6b7eccf68029c8c29f301197d3e9a"));
    }

    #[test]
    fn a_build_from_git_may_have_no_version() {
        let checksum = "94e6b7eccf68029c8c29f301197d3e9a";
        for version in ["", " ", "<dev-snapshot> ", " cloud"] {
            let text = format!("onload_version: {version}\nuk_intf_ver: {checksum}\n");
            let driver = parse_driver_version(&text);
            assert_eq!(driver.version, None, "{version:?}");
            assert_eq!(driver.interface.as_deref(), Some(checksum));
        }
    }

    #[test]
    fn a_version_file_of_garbage_tells_nothing() {
        for text in ["", "garbage", "uk_intf_ver: short\n", "uk_intf_ver:\nonload_version:\n"] {
            assert_eq!(parse_driver_version(text), DriverVersion::default(), "{text:?}");
        }
    }

    #[test]
    fn the_librarys_version_is_found_among_its_strings() {
        let version = |content: &[u8], driver| library_version(content, driver);
        let new = b"x\0ef17681d 2026-07-22 master \0y";
        assert_eq!(
            version(new, Some("ef17681d 2026-07-22 master")).as_deref(),
            Some("ef17681d 2026-07-22 master")
        );
        let old = b"\0Onload 8.1.3.40\nCopyright\0";
        assert_eq!(version(old, Some("9.0.0.1")).as_deref(), Some("8.1.3.40"));
        assert_eq!(version(b"\x009.2.0.9\0libfoo\0", None).as_deref(), Some("9.2.0.9"));
        assert_eq!(version(b"\x009.2.0.9\x001.2.3\0", None), None);
        assert_eq!(version(b"", Some("9.2.0.9")), None);
        assert_eq!(version(b"\x009.2.0.99\0", Some("9.2.0.9")).as_deref(), Some("9.2.0.99"));
    }

    #[test]
    fn only_two_releases_that_differ_are_told_apart_by_their_versions() {
        assert!(is_other_release(Some("8.1.1.17"), Some("8.1.0.15")));
        for (library, driver) in [
            (Some("8.1.0.15"), Some("8.1.0.15")),
            (None, Some("8.1.0.15")),
            (Some("8.1.1.17"), None),
            (Some("8.1.1.17"), Some("ef17681d 2026-07-22 master")),
            (Some("8.1.1.17"), Some("8.1.0.15 cloud")),
        ] {
            assert!(!is_other_release(library, driver), "{library:?} {driver:?}");
        }
    }

    #[test]
    fn libraries_of_onload_are_told_from_those_of_tcpdirect() {
        for name in ["libonload.so", "libonload_ext.so.1.2.0", "libefcp.so.1"] {
            assert!(is_onload_library(name), "{name}");
        }
        for name in ["libonload_zf.so.1", "libonload_ext.a", "libonload.so-old", "libc.so.6"] {
            assert!(!is_onload_library(name), "{name}");
        }
    }
}
