//! A host that is being built. Paths are absolute paths of that host; without the slash they mean the same.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use tempfile::TempDir;

use crate::files::names_in;

/// A host in a directory of its own. Its files can be read by everybody and written by their owner alone, whatever
/// the umask is, as whoever trusts them asks for.
#[derive(Debug)]
pub struct Tree {
    /// Removed with the tree.
    _directory: Option<TempDir>,
    root: PathBuf,
    /// The lines of its `dev.table`.
    pub(crate) nodes: Mutex<String>,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::new()
    }
}

/// A directory in memory where there is one: each run synchronises what it writes, and hundreds of
/// runs would wait minutes for a disk.
pub fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir()
        && let Ok(directory) = tempfile::tempdir_in(memory)
    {
        return directory;
    }
    tempfile::tempdir().unwrap()
}

impl Tree {
    pub fn new() -> Tree {
        let tree = Tree::below(scratch(), "");
        tree.directory("/var/run");
        tree
    }

    /// One with nothing in it that is not in memory, where device nodes cannot be opened.
    pub fn on_disk() -> Tree {
        Tree::below(tempfile::tempdir().unwrap(), "")
    }

    /// One in a directory that stays.
    pub fn at(root: &Path) -> Tree {
        fs::create_dir_all(root).unwrap();
        Tree { _directory: None, root: root.to_owned(), nodes: Mutex::default() }
    }

    /// One with nothing in it, whose root is at that place in a directory.
    pub(crate) fn below(directory: TempDir, place: &str) -> Tree {
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let root = match place {
            "" => directory.path().to_owned(),
            _ => directory.path().join(place),
        };
        fs::create_dir_all(&root).unwrap();
        Tree { _directory: Some(directory), root, nodes: Mutex::default() }
    }

    /// One with these files.
    pub fn with(files: &[(&str, &str)]) -> Tree {
        let tree = Tree::new();
        for (path, text) in files {
            tree.file(path, text);
        }
        tree
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a path of the host stands outside of it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    fn made(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        self.directories(path.parent().unwrap());
        path
    }

    pub(crate) fn directories(&self, path: &Path) {
        // What is written through a link that leads out, as absolute ones do, would land on this machine.
        if path.is_symlink() {
            let (real, root) = (path.canonicalize().unwrap(), self.root.canonicalize().unwrap());
            assert!(real.starts_with(root), "{}", path.display());
        }
        if path.is_dir() {
            if path != self.root() {
                self.directories(path.parent().unwrap());
            }
            return;
        }
        self.directories(path.parent().unwrap());
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    pub fn directory(&self, path: &str) -> &Tree {
        self.directories(&self.path(path));
        self
    }

    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Tree {
        let (made, content) = (self.made(path), content.as_ref());
        if content.starts_with(b"#!") {
            write_script(&made, content);
        } else {
            fs::write(made, content).unwrap();
        }
        self.chmod(path, 0o644)
    }

    pub fn program(&self, path: &str, content: impl AsRef<[u8]>) -> &Tree {
        self.file(path, content).chmod(path, 0o755)
    }

    /// A file of that mode that takes the place of another one at once.
    pub fn replace(&self, path: &str, content: &str, mode: u32) -> &Tree {
        let new = format!("{path}.new~");
        self.file(&new, content).chmod(&new, mode);
        fs::rename(self.path(&new), self.path(path)).unwrap();
        self
    }

    pub fn chmod(&self, path: &str, mode: u32) -> &Tree {
        fs::set_permissions(self.path(path), Permissions::from_mode(mode)).unwrap();
        self
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// An attribute, with the newline that sysfs ends it with.
    pub fn attribute(&self, path: &str, value: &str) -> &Tree {
        self.file(path, format!("{value}\n"))
    }

    pub fn attributes(&self, directory: &str, attributes: &[(&str, &str)]) -> &Tree {
        self.directory(directory);
        for (name, value) in attributes {
            self.attribute(&format!("{directory}/{name}"), value);
        }
        self
    }

    /// A link in the place of what is there.
    pub fn link(&self, path: &str, target: &str) -> &Tree {
        // The links of sysfs are relative ones.
        let depth = path.trim_matches('/').matches('/').count();
        let target = match target.strip_prefix("/sys/") {
            Some(below) if path.starts_with("/sys/") => {
                format!("{}sys/{below}", "../".repeat(depth))
            }
            _ => target.to_owned(),
        };
        let path = self.made(path);
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
        self
    }

    pub fn remove(&self, path: &str) -> &Tree {
        let path = self.path(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
        self
    }

    /// The names in a directory, sorted; empty where there is none.
    pub fn names(&self, path: &str) -> Vec<String> {
        names_in(&self.path(path))
    }

    /// A character device in `dev.table`.
    pub fn node(&self, path: &str, major: u32, minor: u32) -> &Tree {
        self.listed(path, 'c', major, minor)
    }

    pub fn block_node(&self, path: &str, major: u32, minor: u32) -> &Tree {
        self.listed(path, 'b', major, minor)
    }

    fn listed(&self, path: &str, kind: char, major: u32, minor: u32) -> &Tree {
        let line = format!("{path} {kind} {major} {minor} 0666 0 0\n");
        let mut nodes = self.nodes.lock().unwrap();
        nodes.push_str(&line);
        let mut table = fs::File::options();
        let mut table = table.create(true).append(true).open(self.path("/dev.table")).unwrap();
        table.write_all(line.as_bytes()).unwrap();
        self
    }

    /// The numbers of a node, `243:0`.
    pub fn number(&self, path: &str) -> String {
        let nodes = self.nodes.lock().unwrap();
        let mut nodes = nodes.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let node = nodes.find(|node| node[0] == path).unwrap();
        format!("{}:{}", node[2], node[3])
    }

    pub fn without_node(&self, path: &str) -> &Tree {
        let mut nodes = self.nodes.lock().unwrap();
        let lines = nodes.split_inclusive('\n');
        *nodes = lines.filter(|line| line.split(' ').next() != Some(path)).collect();
        self.file("/dev.table", nodes.as_str())
    }

    /// A character device itself, which only root can make.
    pub fn real_node(&self, path: &str, major: u32, minor: u32) -> &Tree {
        let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o666));
        let node = self.made(path);
        let _ = fs::remove_file(&node);
        mknodat(CWD, node, kind, mode, makedev(major, minor)).unwrap();
        self.chmod(path, 0o666)
    }

    /// What the kernel says of this start of it.
    pub fn boot(&self, id: &str) -> &Tree {
        self.attribute("/proc/sys/kernel/random/boot_id", id)
    }

    /// A process that runs, and its start time.
    pub fn process(&self, pid: u32, start_time: u64) -> &Tree {
        let stat = format!("{pid} (a) S 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 {start_time} 9");
        self.file(&format!("/proc/{pid}/stat"), stat)
    }
}

// A child that a thread beside this one makes has a copy of each of our descriptors until it executes its own
// program, and nothing that is open for writing can be run (execve(2), ETXTBSY). So a process without other threads
// writes what is run.

/// Copies a program, with its mode.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = Command::new("cp");
    copy.arg(from.as_ref()).arg(to.as_ref());
    assert!(copy.status().unwrap().success(), "{copy:?}");
}

fn write_script(path: &Path, content: &[u8]) {
    let mut write = Command::new("tee");
    write.arg(path).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = write.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(content).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success(), "{write:?}");
}
