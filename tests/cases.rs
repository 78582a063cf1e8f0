//! Replays the sessions in `tests/cases`, one test a file. `tests/cases/README.md` describes their format.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

use libtest_mimic::{Arguments, Failed, Trial};
use onload_test_tree::{Tree, case, golden};
use similar::TextDiff;
use walkdir::WalkDir;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");
const PROGRAM: &str = env!("CARGO_BIN_EXE_onload-ctk");
/// Empty files in /usr/bin of every host.
const INSTALLED: &str =
    "dockerd containerd crio podman nomad onload-container-runtime onload-nri runc";
const LOCK: &str = "/run/onload-ctk/@locks/configure";
/// The hashes of the specifications, which change with them.
const MANIFEST: &str = "/cdi/.onload-ctk-manifest";
/// Other engines need the same policy, so `--remove` keeps it.
const POLICY: &str = "/etc/onload-ctk/config.toml";

/// Inode and text of each file, by its path on the host.
type Files = BTreeMap<String, (u64, String)>;

fn main() -> ExitCode {
    let cases = Path::new(REPOSITORY).join("tests/cases");
    let trials = WalkDir::new(&cases)
        .sort_by_file_name()
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .filter(|path| path.extension().is_some_and(|end| end == "case"))
        .map(|path| {
            let name = path.strip_prefix(&cases).unwrap().with_extension("").display().to_string();
            Trial::test(name.clone(), move || compare(&path, &name))
        });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// Fails with a diff if a session differs from its file. With `UPDATE_GOLDEN` set, rewrites the file.
fn compare(path: &Path, name: &str) -> Result<(), Failed> {
    let found = replay(&fs::read_to_string(path)?)?;
    match golden::compare(path, &found) {
        None => Ok(()),
        Some(diff) => {
            Err(format!("{diff}to accept it, run: UPDATE_GOLDEN=1 cargo test --test cases {name}")
                .into())
        }
    }
}

/// Replays each part of a case on a host of its own.
fn replay(case: &str) -> Result<String, Failed> {
    let parts = case.split("\n=== ").map(replay_part).collect::<Result<Vec<_>, _>>()?;
    Ok(parts.join("\n=== "))
}

/// Runs the commands of a part on its host. Returns the part with what they printed and changed.
fn replay_part(part: &str) -> Result<String, Failed> {
    let first_step = |mark: &str| format!("\n{part}").find(mark);
    let Some(top) = first_step("\n$ ").into_iter().chain(first_step("\n@ ")).min() else {
        let is_comment = part.lines().all(|line| line.is_empty() || line.starts_with('#'));
        return if is_comment { Ok(part.to_owned()) } else { Err("no command".into()) };
    };
    let (top, session) = part.split_at(top);
    let host = Host::new(top, session)?;
    let first = host.files();
    let mut is_undo_checked = top.contains("Lossy undo:");
    let mut configured = BTreeSet::new();
    let mut replayed = top.to_owned();
    // The files, if they are those after the last command.
    let mut files = None;
    let session = format!("\n{session}").replace("\n@ ", "\n$ @ ");
    for step in session.split("\n$ ").skip(1) {
        if let Some(changes) = step.strip_prefix("@ ") {
            host.0.script(changes);
            files = None;
            replayed += &format!("@ {}\n", changes.trim_end());
            continue;
        }
        let is_command = |(number, line): &(usize, &str)| *number == 0 || line.starts_with("> ");
        let command = step
            .lines()
            .enumerate()
            .take_while(is_command)
            .map(|(_, line)| line)
            .collect::<Vec<_>>()
            .join("\n");
        let before = files.take().unwrap_or_else(|| host.files());
        let (status, printed) = host.run(&command.replace("\n> ", "\n"));
        let after = host.files();
        replayed += &format!("$ {command}\n{printed}");
        // Our error messages stand for status 2.
        if status != 0 && (status != 2 || !printed.contains("error: ")) {
            replayed += &format!("[exit {status}]\n");
        }
        let changed = changed(&before, &after);
        if command.contains("onload-ctk ") {
            configured.extend(changed.clone());
        }
        let is_removal = command.ends_with("--remove");
        if command.starts_with("onload-ctk") && !command.ends_with("> /dev/null") {
            // A removal shows what it did not restore.
            replayed += &match is_removal {
                true => differences(&first, &after, &configured),
                false => differences(&before, &after, &changed),
            };
        }
        let left_out = ["onload-ctk runtime behind", "--remove", "--dry-run"];
        let is_configured =
            command.starts_with("onload-ctk ") && command.contains(" configure") && status == 0;
        if is_configured && !left_out.iter().any(|word| command.contains(word)) {
            if changed.is_empty() && command.ends_with("> /dev/null") {
                return Err(format!("{command}: changes nothing").into());
            }
            if !changed.is_empty() && !is_undo_checked {
                is_undo_checked = true;
                host.check_undo(&command, &before)?;
                continue;
            }
        }
        files = Some(after);
    }
    Ok(replayed)
}

/// Paths of the files whose text differs, without the backups of such files.
fn changed(old: &Files, new: &Files) -> BTreeSet<String> {
    let text = |files: &Files, path: &String| files.get(path).map(|(_, text)| text.clone());
    let mut changed: BTreeSet<_> = old
        .keys()
        .chain(new.keys())
        .filter(|path| text(old, path) != text(new, path))
        .cloned()
        .collect();
    for path in changed.clone() {
        changed.remove(&format!("{path}.onload-ctk-backup"));
    }
    changed
}

/// Diffs with one line of context.
fn differences(old: &Files, new: &Files, paths: &BTreeSet<String>) -> String {
    let mut shown = String::new();
    for path in paths {
        let (note, old, new) = match (old.get(path), new.get(path)) {
            (Some((_, old)), Some((_, new))) => ("", old.as_str(), new.as_str()),
            (None, Some((_, new))) => (" (new)", "", new.as_str()),
            (Some((_, old)), None) => (" (removed)", old.as_str(), ""),
            (None, None) => continue,
        };
        let diff = TextDiff::from_lines(old, new).unified_diff().context_radius(1).to_string();
        let mut lines = diff.lines().map(|line| match line {
            hunk if hunk.starts_with("@@") => "@@",
            // git and editors remove a space at the end of a line.
            " " => "",
            line => line,
        });
        if lines.next().is_some() || old != new || !note.is_empty() {
            shown += &format!("-- {path}{note}\n");
            lines.for_each(|line| shown += &format!("{line}\n"));
        }
    }
    shown
}

struct Host(Tree);

impl Host {
    /// `-- PATH` begins a file. `-- PATH < SOURCE` copies a file of this repository. A session that begins with `@` makes
    /// its own host.
    fn new(top: &str, session: &str) -> Result<Host, Failed> {
        let host = Host(Tree::new());
        for program in INSTALLED.split(' ').filter(|_| !session.starts_with("@ ")) {
            host.0.file(&format!("/usr/bin/{program}"), "");
        }
        for (path, text) in case::sections(top) {
            match path.split_once(" < ") {
                Some((path, source)) => {
                    host.0.file(path, fs::read(Path::new(REPOSITORY).join(source))?)
                }
                None => host.0.file(&path, text),
            };
        }
        Ok(host)
    }

    /// Runs shell commands in the root of the host. Returns the status and what they printed.
    fn run(&self, commands: &str) -> (i32, String) {
        let root = self.0.root().to_str().unwrap();
        let programs = Path::new(PROGRAM).parent().unwrap().display();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("exec 2>&1\n{commands}")]).current_dir(root).env_clear();
        shell.env("PATH", format!("{programs}:/usr/bin:/bin")).env("ONLOAD_CTK_HOST_ROOT", root);
        shell.env("REPOSITORY", REPOSITORY);
        // cargo llvm-cov
        shell.envs(env::vars_os().filter(|(name, _)| name == "LLVM_PROFILE_FILE"));
        let output = shell.output().unwrap();
        let mut printed = String::from_utf8_lossy(&output.stdout)
            .replace(concat!("onload-ctk ", env!("CARGO_PKG_VERSION")), "onload-ctk VERSION")
            .replace(&format!("{root}/"), "/")
            .replace(root, "/");
        if !printed.is_empty() && !printed.ends_with('\n') {
            printed += "\n\\ No newline at end of output\n";
        }
        (output.status.code().unwrap(), printed)
    }

    fn files(&self) -> Files {
        let files = WalkDir::new(self.0.root())
            .into_iter()
            .map(Result::unwrap)
            .filter(|entry| entry.file_type().is_file())
            .map(|entry| {
                let path = entry.path().strip_prefix(self.0.root()).unwrap();
                let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned();
                let inode = entry.metadata().unwrap().ino();
                (format!("/{}", path.display()), (inode, text))
            });
        files.filter(|(path, _)| path != LOCK && !path.ends_with(MANIFEST)).collect()
    }

    /// Fails unless a second run writes no file and `--remove` restores each file byte for byte, also if the operator
    /// added a comment at its top. Skips a host that mentioned onload before, since it keeps that.
    fn check_undo(&self, configure: &str, before: &Files) -> Result<(), Failed> {
        let mut texts = before.iter().filter(|(path, _)| *path != POLICY);
        if texts.any(|(_, (_, text))| text.contains("onload")) {
            return Ok(());
        }
        let left_out = ["--set-default", "--nri", "--allow", ">", "/dev/null"];
        let remove = configure
            .split(' ')
            .filter(|word| !left_out.iter().any(|flag| word.starts_with(flag)))
            .chain(["--remove"])
            .collect::<Vec<_>>()
            .join(" ");
        let configured = self.files();
        self.expect(configure, &configured)?;
        if self.files() != configured {
            return Err("a second run writes a file again".into());
        }
        self.expect(&remove, before)?;

        self.expect(configure, &configured)?;
        let mut commented = before.clone();
        for (path, (_, text)) in &mut commented {
            if text.ends_with('\n') && !path.ends_with("json") && configured[path].1 != *text {
                self.0.file(path, format!("# mine\n{}", configured[path].1));
                text.insert_str(0, "# mine\n");
            }
        }
        self.expect(&remove, &commented)?;

        for (path, (_, text)) in before {
            self.0.file(path, text);
        }
        self.expect(configure, &configured)
    }

    /// Fails unless a command succeeds and leaves these texts.
    fn expect(&self, command: &str, expected: &Files) -> Result<(), Failed> {
        let (status, printed) = self.run(command);
        let found = self.files();
        let paths = expected.keys().chain(found.keys()).filter(|path| *path != POLICY);
        let lines = differences(expected, &found, &paths.cloned().collect());
        if status == 0 && lines.is_empty() {
            return Ok(());
        }
        Err(format!("undo check: {command}: exit {status}\n{printed}{lines}").into())
    }
}
