//! Completion, by the shells themselves: a line is typed into each, and what it makes of it is looked at.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::hosts::{vfio, x3};
use crate::common::{Commands, Tree, has, program, run, run_unprivileged, skipped};

/// Where a shell finds the program.
fn path() -> OsString {
    let program = Path::new(env!("CARGO_BIN_EXE_onload-ctk")).parent().unwrap();
    let mut path = program.as_os_str().to_owned();
    path.push(":/usr/bin:/bin");
    path
}

/// A directory with the script for a shell.
fn with_script(shell: &str, name: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let script = run(program().args(["completion", shell])).done().stdout;
    let file = directory.path().join(name);
    fs::write(&file, script).unwrap();
    (directory, file)
}

/// A shell without anything of the developer's environment, on a host.
fn shell(name: &str, directory: &Path, root: &Path) -> Command {
    let mut shell = Command::new(name);
    shell
        .env_clear()
        .env("PATH", path())
        .env("HOME", directory)
        .env("TERM", "dumb")
        .env("ONLOAD_CTK_HOST_ROOT", root)
        .current_dir(directory);
    shell
}

/// Types each line into bash, then `key`; gives what stands on the command line after it.
fn typed_into_bash(root: &Path, before: &str, lines: &[&str], key: &str) -> Vec<String> {
    let (directory, script) = with_script("bash", "onload-ctk");
    fs::create_dir(directory.path().join("a directory")).unwrap();
    fs::write(directory.path().join("a file"), "").unwrap();
    let found = directory.path().join("found");
    let mut keys = format!("source {}\n{before}\n", script.display());
    // A key that writes the line down.
    keys += &format!(
        "bind -x '\"\\C-x\\C-p\": printf \"%s\\n\" \"$READLINE_LINE\" >>{}'\n",
        found.display()
    );
    for line in lines {
        keys += &format!("{line}{key}\u{18}\u{10}\u{15}");
    }
    keys += "exit\n";
    let mut bash = shell("bash", directory.path(), root);
    bash.args(["--norc", "--noprofile", "-i"]).env("INPUTRC", "/dev/null");
    bash.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = bash.spawn().unwrap();
    child.stdin.take().unwrap().write_all(keys.as_bytes()).unwrap();
    let message = child.wait_with_output().unwrap().stderr;
    let found = fs::read_to_string(&found);
    let found = found.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&message)));
    found.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// What bash makes of each line when the tabulator is pressed behind it.
fn completed(root: &Path, lines: &[&str]) -> Vec<String> {
    typed_into_bash(root, "", lines, "\t")
}

/// All that bash offers for the last word of a line.
fn offered(root: &Path, line: &str) -> Vec<String> {
    // insert-completions
    let lines = typed_into_bash(root, "", &[line], "\u{1b}*");
    let before = line.rfind(' ').map_or(0, |end| end + 1);
    let words = lines[0][before..].split(' ').map(str::to_owned);
    words.collect()
}

fn generated(tree: Tree) -> Tree {
    tree.generate();
    tree
}

#[test]
fn bash_completes_the_names_of_devices() {
    let tree = generated(vfio());
    let listed = tree.run(&["cdi", "list", "--format", "json"]).done().json();
    let names = crate::common::each(&listed["devices"], "name");
    let address = "onload.dev/vfio=0000:81:04.0";
    assert!(names.contains(&address.to_owned()), "{names:?}");
    let wanted = |line: &str| format!("onload-ctk cdi show {line}");
    let typed = [
        "onload.dev/vfio=0000:81:04.0",
        "onload.dev/vfio=0000:81:04",
        "onload.dev/vfio=0",
        // A pool is a device like others.
        "onload.dev/vfio=a",
        "onload.dev/vf",
    ];
    let lines = typed.map(wanted);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let done = completed(tree.root(), &lines);
    assert_eq!(done[0], wanted(address));
    assert_eq!(done[1], wanted(address));
    assert_eq!(done[2], wanted("onload.dev/vfio=0000:81:0"));
    assert_eq!(done[3], wanted("onload.dev/vfio=any"));
    assert_eq!(done[4], wanted("onload.dev/vfio="));
    for command in ["show", "inject"] {
        let mut all = offered(tree.root(), &format!("onload-ctk cdi {command} "));
        all.sort();
        let mut wanted = names.clone();
        wanted.sort();
        assert_eq!(all, wanted, "{command}");
    }
}

#[test]
fn bash_completes_what_follows_the_characters_at_which_it_breaks_words() {
    let tree = generated(x3());
    let lines = [
        "onload-ctk cdi show onload.dev/hugepages=",
        "onload-ctk cdi show onload.dev/nic=al",
        "onload-ctk cdi show \"onload.dev/nic=al",
        "onload-ctk cdi show onload.dev/zf=all onload.dev/nic=al",
        "onload-ctk --color=nev",
        "COMP_WORDBREAKS=' '; onload-ctk cdi show onload.dev/nic=al",
    ];
    assert_eq!(
        completed(tree.root(), &lines),
        [
            "onload-ctk cdi show onload.dev/hugepages=2Mi",
            "onload-ctk cdi show onload.dev/nic=all",
            "onload-ctk cdi show \"onload.dev/nic=all\"",
            "onload-ctk cdi show onload.dev/zf=all onload.dev/nic=all",
            "onload-ctk --color=never",
            "COMP_WORDBREAKS=' '; onload-ctk cdi show onload.dev/nic=all",
        ]
    );
    let whole = typed_into_bash(
        tree.root(),
        "COMP_WORDBREAKS=' '",
        &["onload-ctk cdi show onload.dev/nic=al"],
        "\t",
    );
    assert_eq!(whole, ["onload-ctk cdi show onload.dev/nic=all"]);
}

#[test]
fn bash_completes_kinds_classes_engines_commands_and_options() {
    let tree = x3();
    let lines = [
        "onload-ctk cdi g",
        "onload-ctk cdi generate --kind rd",
        "onload-ctk cdi generate --kind nic,rd",
        "onload-ctk runtime configure --allow hu",
        "onload-ctk runtime configure --runtime pod",
        "onload-ctk cdi generate --max",
        "onload-ctk disc",
    ];
    assert_eq!(
        completed(tree.root(), &lines),
        [
            "onload-ctk cdi generate",
            "onload-ctk cdi generate --kind rdma",
            "onload-ctk cdi generate --kind nic,rdma",
            "onload-ctk runtime configure --allow hugepages",
            "onload-ctk runtime configure --runtime podman",
            "onload-ctk cdi generate --max-cdi-version",
            "onload-ctk discover",
        ]
    );
    let classes = offered(tree.root(), "onload-ctk runtime configure --allow ");
    assert_eq!(classes.len(), 13, "{classes:?}");
    assert!(classes.contains(&"nic-plain".to_owned()), "{classes:?}");
    let kinds = offered(tree.root(), "onload-ctk cdi generate --kind ");
    assert_eq!(kinds.len(), 14, "{kinds:?}");
    let commands = offered(tree.root(), "onload-ctk cdi ");
    assert!(commands.contains(&"validate".to_owned()), "{commands:?}");
    assert!(!commands.iter().any(|word| word.starts_with('-')), "{commands:?}");
}

#[test]
fn bash_completes_names_of_files_itself() {
    let lines = [
        "onload-ctk cdi validate a\\ f",
        "onload-ctk cdi validate --config a\\ f",
        "onload-ctk --config=a\\ f",
        "onload-ctk --host-root a",
        "onload-ctk container explain a",
    ];
    let done = completed(x3().root(), &lines);
    assert_eq!(
        done,
        [
            "onload-ctk cdi validate a\\ file",
            "onload-ctk cdi validate --config a\\ file",
            "onload-ctk --config=a\\ file",
            "onload-ctk --host-root a\\ directory/",
            "onload-ctk container explain a\\ directory/",
        ]
    );
}

#[test]
fn a_line_that_makes_no_sense_and_files_that_are_broken_offer_nothing_and_say_nothing() {
    let tree = x3();
    tree.file("/etc/cdi/broken.json", "{");
    tree.file("/etc/cdi/none.json", [0xff, 0xfe]);
    let lines = [
        "onload-ctk cdi show onload.dev/n",
        "onload-ctk nonsense onload.dev/n",
        "onload-ctk cdi show --nonsense 'onload.dev/n",
    ];
    assert_eq!(completed(tree.root(), &lines), lines);
}

#[test]
fn devices_are_offered_to_every_user() {
    let tree = generated(x3());
    for path in ["/var/run/cdi", "/var/run", "/var"] {
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(tree.path(path), open).unwrap();
    }
    let listed = run_unprivileged(&tree, &["cdi", "list"]).done();
    assert!(listed.stdout.contains("onload.dev/zf=all"));
    let root = tree.root().to_str().unwrap();
    let mut asked = program();
    if crate::common::is_root() {
        use std::os::unix::process::CommandExt;
        let copy = tree.path("/program");
        let mut copied = Command::new("cp");
        copied.arg(env!("CARGO_BIN_EXE_onload-ctk")).arg(&copy);
        assert!(copied.status().unwrap().success());
        asked = Command::new(copy);
        asked.env_clear().uid(crate::common::NOBODY).gid(crate::common::NOBODY).current_dir("/");
    }
    asked.env("ONLOAD_CTK_HOST_ROOT", root).env("ONLOAD_CTK_COMPLETE", "bash");
    let answer = run(asked.args(["--", "onload-ctk cdi show onload.dev/zf=a"])).done();
    assert_eq!(answer.stdout, "onload.dev/zf=all\n");
    assert_eq!(answer.stderr, "");
}

#[test]
fn fish_completes_devices_and_commands() {
    if !has("fish") {
        return skipped("fish is not installed");
    }
    let tree = generated(x3());
    let (directory, script) = with_script("fish", "onload-ctk.fish");
    let complete = |line: &str| {
        let mut fish = shell("fish", directory.path(), tree.root());
        let source = format!("source {}; complete -C '{line}'", script.display());
        let output = fish.args(["--no-config", "-c", &source]).output().unwrap();
        let words = String::from_utf8(output.stdout).unwrap();
        let words = words.lines().map(|line| line.split('\t').next().unwrap().to_owned());
        words.collect::<Vec<_>>()
    };
    let devices = complete("onload-ctk cdi show onload.dev/nic=a");
    assert_eq!(devices, ["onload.dev/nic=all"]);
    assert_eq!(complete("onload-ctk cdi gen"), ["generate"]);
    assert_eq!(complete("onload-ctk cdi generate --kind rd"), ["rdma"]);
}

/// Types a line and the tabulator into a zsh on a terminal of its own, and prints the line as it is then.
const ZSH: &str = r#"
zmodload zsh/zpty
zpty shell "zsh -f -i"
zpty -w shell "PS1=; fpath=($DIRECTORY \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w shell "written() { print -r -- \$BUFFER >\$HOME/found }; zle -N written; bindkey '^P' written"
zpty -w shell "touch \$HOME/ready"
for _ in {1..600}; do [[ -e $HOME/ready ]] && break; sleep 0.1; done
zpty -n -w shell "$LINE"$'\t'$'\x10'
for _ in {1..600}; do [[ -e $HOME/found ]] && break; sleep 0.1; done
zpty -d shell
"#;

#[test]
fn zsh_completes_devices_at_the_first_call() {
    if !has("zsh") {
        return skipped("zsh is not installed");
    }
    let tree = generated(x3());
    let (directory, _) = with_script("zsh", "_onload-ctk");
    for (typed, wanted) in [
        ("onload-ctk cdi show onload.dev/nic=a", "onload-ctk cdi show onload.dev/nic=all"),
        ("onload-ctk cdi gen", "onload-ctk cdi generate"),
        ("onload-ctk cdi generate --kind rd", "onload-ctk cdi generate --kind rdma"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let mut zsh = shell("zsh", home.path(), tree.root());
        zsh.env("DIRECTORY", directory.path()).env("LINE", typed);
        let output = zsh.args(["-f", "-c", ZSH]).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let found = fs::read_to_string(home.path().join("found"));
        assert_eq!(found.unwrap_or_else(|_| panic!("{message}")).trim_end(), wanted);
    }
}

#[test]
fn there_is_a_completion_script_for_each_shell() {
    for (shell, registers) in [
        ("bash", "complete -F _onload_ctk onload-ctk\n"),
        ("zsh", "#compdef onload-ctk\n"),
        ("fish", "--command onload-ctk "),
        ("elvish", "set edit:completion:arg-completer[onload-ctk] ="),
        ("powershell", "Register-ArgumentCompleter -Native -CommandName onload-ctk "),
    ] {
        let script = run(program().args(["completion", shell])).done().stdout;
        assert!(script.contains(registers), "{shell}: {script}");
        assert!(script.contains("ONLOAD_CTK_COMPLETE"), "{shell}: {script}");
    }
}

#[test]
fn a_shell_that_is_not_known_is_refused() {
    let asked = run(program().env("ONLOAD_CTK_COMPLETE", "csh").args(["--", "onload-ctk "]));
    assert_eq!(asked.code, Some(2));
    assert_eq!(asked.stdout, "");
    // An empty variable asks for nothing.
    run(program().env("ONLOAD_CTK_COMPLETE", "").arg("--version")).done();
}
