//! An engine's daemon: its processes, and the flags that it starts with, as its unit files say or, without a unit, the
//! process itself.

use std::collections::BTreeMap;
use std::mem::take;
use std::path::{Path, PathBuf};

use onload_host::host::{Host, HostError};

use crate::files::RelatedFiles;
use crate::installed::{DOCKER_SNAP, find_program};
use crate::kind::EngineKind;

const PROC: &str = "/proc";
/// The directories of systemd units; the last one takes precedence (systemd.unit(5)).
const UNIT_DIRS: [&str; 5] = [
    "/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/usr/local/lib/systemd/system",
    "/run/systemd/system",
    "/etc/systemd/system",
];
/// The flags that the snap's own script passes.
const SNAP_FLAGS: [&str; 3] = [
    "--config-file=/var/snap/docker/current/config/daemon.json",
    "--data-root=/var/snap/docker/common/var-lib-docker",
    "--exec-root=/run/snap.docker",
];
const MAX_BYTES: u64 = 1024 * 1024;

/// A flag that has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    pub name: String,
    pub value: String,
    /// The unit file, environment file or process that has it.
    pub source: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonFlags {
    /// With the source of each.
    words: Vec<(String, String)>,
    /// The variables that its unit sets, with the source of each.
    environment: BTreeMap<String, (String, String)>,
}

impl DaemonFlags {
    /// Reads the flags of the next start: those of the unit or, without one, of the process that runs.
    pub fn read(host: &Host, kind: EngineKind) -> Result<DaemonFlags, HostError> {
        if let Some(flags) = DaemonFlags::for_snap(host, kind)? {
            return Ok(flags);
        }
        let flags = DaemonFlags::from_units(host, kind)?;
        if flags.words.is_empty() {
            let processes = find_processes(host, kind.process_names())?;
            return Ok(DaemonFlags::from_processes(host, kind, &processes));
        }
        Ok(flags)
    }

    /// Reads the flags of the daemon that runs; those of its unit if it does not run.
    pub(crate) fn read_running(
        host: &Host,
        kind: EngineKind,
        processes: &[Process],
    ) -> Result<DaemonFlags, HostError> {
        let flags = DaemonFlags::from_processes(host, kind, processes);
        if flags.words.is_empty() { DaemonFlags::read(host, kind) } else { Ok(flags) }
    }

    /// The flags of docker's snap, if no other docker is installed.
    fn for_snap(host: &Host, kind: EngineKind) -> Result<Option<DaemonFlags>, HostError> {
        let program = if kind == EngineKind::Docker { find_program(host, kind)? } else { None };
        let is_snap = program.is_some_and(|program| program == Path::new(DOCKER_SNAP));
        Ok(is_snap.then(DaemonFlags::of_snap))
    }

    pub(crate) fn of_snap() -> DaemonFlags {
        let words = SNAP_FLAGS.map(|flag| (flag.to_owned(), DOCKER_SNAP.to_owned()));
        DaemonFlags { words: words.to_vec(), ..DaemonFlags::default() }
    }

    fn from_units(host: &Host, kind: EngineKind) -> Result<DaemonFlags, HostError> {
        for service in kind.services() {
            let mut start = UnitStart::default();
            for file in unit_files(host, &format!("{service}.service"))? {
                // The specifier in RKE2's own units (systemd.unit(5)).
                let text = host.text(&file)?.unwrap_or_default().replace("%N", service);
                start.add_file(&file.display().to_string(), &text);
            }
            let flags = start.into_flags(host)?;
            if !flags.words.is_empty() {
                return Ok(flags);
            }
        }
        Ok(DaemonFlags::default())
    }

    fn from_processes(host: &Host, kind: EngineKind, processes: &[Process]) -> DaemonFlags {
        let command_line = processes
            .iter()
            .find(|process| process.is_system_service(host, kind))
            .and_then(|process| host.bytes(&process.directory.join("cmdline"), MAX_BYTES).ok()?)
            .unwrap_or_default();
        let source = format!("the running {}", kind.program());
        let words = String::from_utf8_lossy(&command_line)
            .split_terminator('\0')
            .map(|word| (word.to_owned(), source.clone()))
            .collect();
        DaemonFlags { words, ..DaemonFlags::default() }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(|(value, _)| value.as_str())
    }

    /// The last value of a flag, which is known by several names.
    pub fn find(&self, names: &[&str]) -> Option<Flag> {
        self.find_all(names).pop()
    }

    pub fn find_all(&self, names: &[&str]) -> Vec<Flag> {
        let mut words = self.words.iter();
        let mut flags = Vec::new();
        while let Some((word, source)) = words.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            if names.contains(&name) {
                flags.push(Flag {
                    name: name.to_owned(),
                    value: value
                        .unwrap_or_else(|| words.next().map_or("", |(word, _)| word.as_str()))
                        .to_owned(),
                    source: source.clone(),
                });
            }
        }
        flags
    }

    /// The path that a flag names. systemd starts services in the root directory.
    pub fn path(&self, names: &[&str]) -> Option<PathBuf> {
        let flag = self.find(names).filter(|flag| !flag.value.is_empty())?;
        Some(Path::new("/").join(flag.value))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// In /proc.
    pub directory: PathBuf,
    pub name: String,
    /// The lines of its `cgroup`.
    pub cgroup: String,
}

impl Process {
    /// Whether root's service manager runs it as a service of the engine. The daemon of a user or of a container may
    /// have the same name.
    fn is_system_service(&self, host: &Host, kind: EngineKind) -> bool {
        let is_service = find_service(kind.services(), &self.cgroup).is_some();
        let status = host.bytes(&self.directory.join("status"), MAX_BYTES).ok().flatten();
        let is_root = String::from_utf8_lossy(&status.unwrap_or_default())
            .lines()
            .any(|line| line.starts_with("Uid:\t0\t"));
        is_service && is_root && kind.process_names().contains(&self.name.as_str())
    }
}

/// Finds the service of the host that a process belongs to, by the lines of its `cgroup`.
pub fn find_service(services: &[&'static str], cgroup: &str) -> Option<&'static str> {
    services.iter().copied().find(|service| {
        let path = format!(":/system.slice/{service}.service");
        cgroup.lines().any(|line| line.ends_with(&path))
    })
}

/// Finds the processes with these names.
pub fn find_processes(host: &Host, process_names: &[&str]) -> Result<Vec<Process>, HostError> {
    let mut processes = Vec::new();
    for pid in host.list(Path::new(PROC))?.names {
        if !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let directory = Path::new(PROC).join(pid);
        let read = |name: &str, max| {
            let bytes = host.bytes(&directory.join(name), max).ok()??;
            Some(String::from_utf8_lossy(bytes.trim_ascii()).into_owned())
        };
        // A process that has exited since it was listed is skipped.
        if let Some(name) = read("comm", 64)
            && process_names.contains(&name.as_str())
            && let Some(cgroup) = read("cgroup", 64 * 1024)
        {
            processes.push(Process { directory, name, cgroup });
        }
    }
    Ok(processes)
}

/// The file of a unit and its drop-ins, in the order in which systemd reads them.
fn unit_files(host: &Host, unit: &str) -> Result<Vec<PathBuf>, HostError> {
    let dirs = |name: &str| UNIT_DIRS.map(|dir| Path::new(dir).join(name));
    let mut files = Vec::new();
    for file in dirs(unit).into_iter().rev() {
        if host.entry(&file)?.is_some() {
            files.push(file);
            break;
        }
    }
    let drop_ins = dirs(&format!("{unit}.d")).to_vec();
    files.extend(RelatedFiles::Directories(drop_ins, "*.conf".to_owned()).paths(host)?);
    Ok(files)
}

/// The start settings of a unit, each with its source (systemd.exec(5), systemd.service(5)).
#[derive(Default)]
struct UnitStart {
    command: Option<(String, String)>,
    environment: BTreeMap<String, (String, String)>,
    environment_files: Vec<PathBuf>,
}

impl UnitStart {
    fn add_file(&mut self, source: &str, text: &str) {
        let mut section = String::new();
        for line in logical_lines(text) {
            if line.starts_with('[') {
                section = line;
            } else if let ("[Service]", Some((key, value))) =
                (section.as_str(), line.split_once('='))
            {
                self.add(source, key.trim(), value.trim());
            }
        }
    }

    /// An empty value takes back what earlier files say.
    fn add(&mut self, source: &str, key: &str, value: &str) {
        match (key, value) {
            ("ExecStart", "") => self.command = None,
            ("ExecStart", _) => self.command = Some((value.to_owned(), source.to_owned())),
            ("Environment", "") => self.environment.clear(),
            ("Environment", _) => {
                for word in split_words(value) {
                    self.add_variable(source, &word);
                }
            }
            ("EnvironmentFile", "") => self.environment_files.clear(),
            ("EnvironmentFile", _) => {
                let path = value.strip_prefix('-').unwrap_or(value);
                self.environment_files.push(PathBuf::from(path));
            }
            _ => {}
        }
    }

    fn add_variable(&mut self, source: &str, assignment: &str) {
        if let Some((name, value)) = assignment.split_once('=') {
            let variable = (value.to_owned(), source.to_owned());
            self.environment.insert(name.trim().to_owned(), variable);
        }
    }

    fn into_flags(mut self, host: &Host) -> Result<DaemonFlags, HostError> {
        let Some((command, source)) = self.command.take() else {
            return Ok(DaemonFlags::default());
        };
        for file in take(&mut self.environment_files) {
            let text = if file.is_absolute() { host.text(&file)? } else { None };
            for line in logical_lines(&text.unwrap_or_default()) {
                if let Some((name, value)) = line.split_once('=') {
                    let value = split_words(value).join(" ");
                    self.add_variable(&file.display().to_string(), &format!("{name}={value}"));
                }
            }
        }
        let words = split_words(&command)
            .into_iter()
            .flat_map(|word| self.expand(&word, &source))
            .collect();
        Ok(DaemonFlags { words, environment: self.environment })
    }

    /// A word `$NAME` becomes several words; `${NAME}` stays in its word (systemd.service(5), "Command lines").
    fn expand(&self, word: &str, source: &str) -> Vec<(String, String)> {
        if let Some(name) = word.strip_prefix('$').filter(|name| !name.starts_with(['{', '$'])) {
            let Some((value, source)) = self.environment.get(name) else { return Vec::new() };
            return split_words(value).into_iter().map(|word| (word, source.clone())).collect();
        }
        let mut expanded = (word.to_owned(), source.to_owned());
        for (name, (value, source)) in &self.environment {
            let reference = format!("${{{name}}}");
            if expanded.0.contains(&reference) {
                expanded = (expanded.0.replace(&reference, value), source.clone());
            }
        }
        vec![expanded]
    }
}

/// Joins lines that end in a backslash, and leaves out comments.
fn logical_lines(text: &str) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for part in text.lines().map(str::trim) {
        if part.starts_with(['#', ';']) {
            continue;
        }
        match part.strip_suffix('\\') {
            Some(part) => line = format!("{line}{part} "),
            None => lines.push(take(&mut line) + part),
        }
    }
    lines.push(line);
    lines
}

/// Splits a text at white space that is not quoted, and takes the quotes away.
fn split_words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(chars.next()),
            (c, Some(end)) if c == end => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use onload_test_tree::Tree;

    use super::*;

    fn docker_flags(tree: &Tree) -> DaemonFlags {
        let host = Host::open(tree.root()).unwrap();
        DaemonFlags::read(&host, EngineKind::Docker).unwrap()
    }

    fn values(flags: &DaemonFlags, name: &str) -> Vec<String> {
        flags.find_all(&[name]).into_iter().map(|flag| flag.value).collect()
    }

    fn daemon_process(tree: &Tree, pid: u32, cgroup: &str, uid: u32, arguments: &str) {
        let dir = format!("/proc/{pid}");
        tree.file(&format!("{dir}/comm"), "dockerd\n");
        tree.file(&format!("{dir}/cgroup"), format!("0::{cgroup}\n"));
        tree.file(
            &format!("{dir}/status"),
            format!("Name:\tdockerd\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"),
        );
        tree.file(&format!("{dir}/cmdline"), arguments.replace(' ', "\0"));
    }

    #[test]
    fn unit_files_take_precedence_over_the_process() {
        let tree = Tree::new();
        daemon_process(&tree, 9, "/system.slice/docker.service", 0, "dockerd --data-root=/process");
        assert_eq!(values(&docker_flags(&tree), "data-root"), ["/process"]);
        tree.file(
            "/etc/default/docker",
            "DOCKER_OPTS=\"--data-root=/srv/a --add-runtime x=/y\"\nexport B=1\n",
        );
        let unit = "/usr/lib/systemd/system/docker.service";
        tree.file(
            unit,
            "[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/dockerd -H fd:// \\\n  --containerd=/run/c.sock $DOCKER_OPTS\n",
        );
        let flags = docker_flags(&tree);
        assert_eq!(values(&flags, "data-root"), ["/srv/a"]);
        assert_eq!(flags.find(&["add-runtime"]).unwrap().source, "/etc/default/docker");
        assert_eq!(flags.find(&["containerd"]).unwrap().source, unit);
        // A drop-in takes back what the unit says.
        tree.file(
            "/etc/systemd/system/docker.service.d/a.conf",
            "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --data-root=/unit\n",
        );
        assert_eq!(values(&docker_flags(&tree), "data-root"), ["/unit"]);
    }

    #[test]
    fn a_running_daemon_of_a_user_or_a_container_is_not_followed() {
        let tree = Tree::new();
        let user = "/user.slice/user-1000.slice/user@1000.service/app.slice/docker.service";
        let pod = "/kubepods.slice/cri-containerd-0.scope/system.slice/docker.service";
        daemon_process(&tree, 7, user, 1000, "dockerd --data-root=/home/u/a");
        daemon_process(
            &tree,
            8,
            "/system.slice/docker.service",
            1000,
            "dockerd --data-root=/home/u/b",
        );
        daemon_process(&tree, 9, pod, 0, "dockerd --data-root=/in/a/container");
        assert_eq!(docker_flags(&tree), DaemonFlags::default());
        daemon_process(&tree, 10, "/system.slice/docker.service", 0, "dockerd --data-root /srv/d");
        assert_eq!(values(&docker_flags(&tree), "data-root"), ["/srv/d"]);
    }

    #[test]
    fn words_are_split_as_systemd_does() {
        assert_eq!(split_words(r#"a "b c"'d' \"e "" f=$X"#), ["a", "b cd", "\"e", "", "f=$X"]);
        let mut start = UnitStart::default();
        start.add_file("/u", "[Unit]\nExecStart=no\n[Service]\nEnvironment='A=1 2' B=3\nExecStart=x --a $A --b=${B}${A} $C $$D\n");
        let host = Host::open(Tree::new().root()).unwrap();
        let flags = start.into_flags(&host).unwrap();
        let words: Vec<&str> = flags.words.iter().map(|(word, _)| word.as_str()).collect();
        assert_eq!(words, ["x", "--a", "1", "2", "--b=31 2", "$$D"]);
    }
}
