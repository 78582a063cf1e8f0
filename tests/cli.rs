//! The command line itself: exit statuses, variables, what goes to which stream, scripts and pages.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use clap::CommandFactory;
use common::hosts::{refused, x3};
use common::{Tree, captured, names_in, on, program, run, run_with_stdin, specs_in};
use onload_ctk::cli::Cli;

#[test]
fn a_line_that_is_not_understood_ends_with_2_and_help_with_0() {
    for args in [
        &["--nonsense"][..],
        &["discover", "--format", "xml"],
        &[
            "cdi",
            "generate",
            "--output-dir",
            "/nonexistent/a",
            "--output",
            "/nonexistent/b",
        ],
        &["cdi", "inject"],
        &["cdi"],
        &[],
        &["completion", "csh"],
        &["--color", "sometimes", "discover"],
    ] {
        let run = run(program().args(args));
        assert_eq!(run.code, Some(2), "{args:?}");
        assert_eq!(run.stdout, "", "{args:?}");
    }
    for args in [
        &["--help"][..],
        &["-h"],
        &["cdi", "generate", "--help"],
        &["help", "discover"],
    ] {
        let run = run(program().args(args)).done();
        assert!(run.stdout.contains("Usage: onload-ctk"), "{args:?}");
        assert_eq!(run.stderr, "", "{args:?}");
    }
    let version = run(program().arg("--version")).done().stdout;
    assert_eq!(
        version,
        format!("onload-ctk {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn the_help_names_the_variables_the_exit_statuses_and_an_example() {
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = words(run(program().arg("--help")).done().stdout);
    for wanted in [
        "ONLOAD_CTK_HOST_ROOT",
        "1 the answer is no",
        "2 it could not be told or done",
    ] {
        assert!(help.contains(wanted), "{wanted} in {help}");
    }
    let help = run(program().args(["cdi", "generate", "--help"]))
        .done()
        .stdout;
    for wanted in [
        "ONLOAD_CTK_CDI_GENERATE_MAX_CDI_VERSION",
        "Example: onload-ctk cdi generate",
    ] {
        assert!(help.contains(wanted), "{wanted} in {help}");
    }
}

/// Calls `look` with the path of every command and the command.
fn each_command(
    command: &clap::Command,
    path: &[String],
    look: &mut dyn FnMut(&[String], &clap::Command),
) {
    look(path, command);
    for below in command.get_subcommands() {
        let path = [path, &[below.get_name().to_owned()]].concat();
        each_command(below, &path, look);
    }
}

#[test]
fn every_flag_has_the_variable_of_its_name() {
    let mut flags = 0;
    each_command(&Cli::command(), &[], &mut |path, command| {
        for flag in command.get_arguments() {
            let Some(name) = flag
                .get_long()
                .filter(|name| !["help", "version"].contains(name))
            else {
                continue;
            };
            let words = path.iter().map(String::as_str).chain([name]);
            let words: Vec<&str> = ["ONLOAD_CTK"].into_iter().chain(words).collect();
            let wanted = words.join("_").replace('-', "_").to_uppercase();
            let found = flag.get_env().and_then(|name| name.to_str());
            assert_eq!(found, Some(wanted.as_str()));
            flags += 1;
        }
    });
    assert_eq!(flags, 5 + 4 + 8 + 2 + 2 + 1 + 1 + 5);
}

#[test]
fn every_command_and_flag_says_what_it_is_for() {
    each_command(&Cli::command(), &[], &mut |path, command| {
        assert!(command.get_about().is_some(), "{path:?}");
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{path:?} {}",
                argument.get_id()
            );
        }
    });
}

/// Sets variables, runs, and gives stdout.
fn with(tree: &Tree, variables: &[(&str, &str)], args: &[&str]) -> common::Run {
    run(on(tree.root(), args).envs(variables.iter().copied()))
}

#[test]
fn variables_stand_for_flags() {
    let tree = x3();
    let root = tree.root().to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let found = run(program().args(["discover"]).envs([
        ("ONLOAD_CTK_HOST_ROOT", root),
        ("ONLOAD_CTK_DISCOVER_FORMAT", "json"),
    ]));
    assert_eq!(found.done().json()["nics"][0]["name"], "ens3");
    let explained = with(
        &tree,
        &[("ONLOAD_CTK_DISCOVER_EXPLAIN", "true")],
        &["discover"],
    );
    assert!(explained.done().stdout.contains("Not offered"));
    let generate = |variables: &[(&str, &str)]| with(&tree, variables, &["cdi", "generate"]);
    let specs = path("specs");
    generate(&[
        ("ONLOAD_CTK_CDI_GENERATE_OUTPUT_DIR", specs.as_str()),
        ("ONLOAD_CTK_CDI_GENERATE_KIND", "nic,zf"),
        ("ONLOAD_CTK_CDI_GENERATE_FORMAT", "yaml"),
    ])
    .done();
    assert_eq!(
        specs_in(Path::new(&specs)),
        ["onload.dev-nic.yaml", "onload.dev-zf.yaml"]
    );
    let checked = with(
        &tree,
        &[("ONLOAD_CTK_CDI_CHECK_OUTPUT_DIR", &specs)],
        &["cdi", "check"],
    );
    checked.done();
    let listed = [
        ("ONLOAD_CTK_CDI_LIST_SPEC_DIR", specs.as_str()),
        ("ONLOAD_CTK_CDI_LIST_FORMAT", "json"),
    ];
    let listed = with(&tree, &listed, &["cdi", "list"]).done().json();
    assert_eq!(listed["devices"].as_array().unwrap().len(), 5);
    let shown = [
        ("ONLOAD_CTK_CDI_SHOW_SPEC_DIR", specs.as_str()),
        ("ONLOAD_CTK_CDI_SHOW_FORMAT", "json"),
    ];
    let shown = with(&tree, &shown, &["cdi", "show", "onload.dev/zf=all"]);
    assert_eq!(shown.done().json()["kind"], "onload.dev/zf");
    let mut inject = on(tree.root(), &["cdi", "inject", "onload.dev/zf=all"]);
    let both = format!("/,{specs}");
    inject.env("ONLOAD_CTK_CDI_INJECT_SPEC_DIR", &both);
    run_with_stdin(&mut inject, b"{}").done();
    let version = [("ONLOAD_CTK_CDI_GENERATE_MAX_CDI_VERSION", "0.4.0")];
    assert!(generate(&version).refused().contains("CDI 0.4.0"));
    for look in [
        "ONLOAD_CTK_CDI_GENERATE_DRY_RUN",
        "ONLOAD_CTK_CDI_GENERATE_DIFF",
    ] {
        assert_ne!(generate(&[(look, "yes")]).done().stdout, "");
        assert_eq!(names_in(&tree.specs()), [""; 0]);
    }
    let stdout = generate(&[("ONLOAD_CTK_CDI_GENERATE_OUTPUT", "-")])
        .done()
        .stdout;
    assert!(stdout.starts_with("{\n"), "{stdout}");
    tree.file("/var/run/cdi/onload.dev-nic.json", "{}");
    generate(&[]).refused();
    generate(&[("ONLOAD_CTK_CDI_GENERATE_FORCE", "1")]).done();
    let config = path("config.toml");
    fs::write(&config, "[cdi]\nkinds = [\"zf\"]\n").unwrap();
    generate(&[("ONLOAD_CTK_CONFIG", &config)]).done();
    assert_eq!(specs_in(&tree.specs()), ["onload.dev-zf.json"]);
    assert_eq!(generate(&[("ONLOAD_CTK_QUIET", "1")]).done().stderr, "");
    assert!(
        generate(&[("ONLOAD_CTK_VERBOSE", "1")])
            .done()
            .stderr
            .contains("unchanged ")
    );
    let colours = with(&tree, &[("ONLOAD_CTK_COLOR", "always")], &["discover"])
        .done()
        .stdout;
    assert!(colours.contains("\u{1b}["), "{colours}");
}

#[test]
fn a_flag_goes_before_its_variable_and_that_before_the_configuration() {
    let tree = x3();
    tree.config("[cdi]\nkinds = [\"nic\"]\n");
    let kinds = |variables: &[(&str, &str)], args: &[&str]| {
        tree.remove("/var/run").directory("/var/run");
        with(&tree, variables, &[&["cdi", "generate"], args].concat()).done();
        specs_in(&tree.specs())
    };
    let variable = [("ONLOAD_CTK_CDI_GENERATE_KIND", "zf")];
    assert_eq!(kinds(&[], &[]), ["onload.dev-nic.json"]);
    assert_eq!(kinds(&variable, &[]), ["onload.dev-zf.json"]);
    assert_eq!(
        kinds(&variable, &["--kind", "profile"]),
        ["onload.dev-profile.json"]
    );
}

#[test]
fn where_the_output_goes_by_flag_goes_before_where_it_goes_by_variable() {
    let tree = x3();
    let dir = tempfile::tempdir().unwrap();
    let specs = dir.path().join("specs");
    let path = specs.to_str().unwrap();
    let variable = [("ONLOAD_CTK_CDI_GENERATE_OUTPUT_DIR", path)];
    let run = with(&tree, &variable, &["cdi", "generate", "--output", "-"]).done();
    assert!(run.stdout.starts_with("{\n"), "{}", run.stdout);
    assert!(!specs.exists());
    let variable = [("ONLOAD_CTK_CDI_GENERATE_OUTPUT", "-")];
    let run = with(&tree, &variable, &["cdi", "generate", "--output-dir", path]).done();
    assert_eq!(run.stdout, "");
    assert!(specs.join("onload.dev-nic.json").exists());
}

#[test]
fn a_variable_says_no_in_the_words_that_people_use() {
    let tree = x3();
    for no in ["0", "false", "no", "off"] {
        let variable = [("ONLOAD_CTK_CDI_GENERATE_DRY_RUN", no)];
        with(&tree, &variable, &["cdi", "generate"]).done();
        assert!(!specs_in(&tree.specs()).is_empty(), "{no}");
        tree.remove("/var/run/cdi");
    }
    let odd = with(&tree, &[("ONLOAD_CTK_QUIET", "perhaps")], &["discover"]);
    assert_eq!(odd.code, Some(2));
}

#[test]
fn stdout_is_the_product_and_stderr_is_for_people() {
    let tree = refused();
    let loud = tree.run(&["-v", "cdi", "generate"]).done();
    assert_eq!(loud.stdout, "");
    assert!(loud.stderr.contains("wrote "), "{}", loud.stderr);
    tree.remove("/var/run/cdi");
    assert_eq!(tree.run(&["-q", "cdi", "generate"]).done().stderr, "");
    assert_eq!(tree.run(&["discover", "-q"]).done().stderr, "");
    // An error is told even so.
    let error = tree
        .run(&["-q", "--config", "/nonexistent/c.toml", "discover"])
        .refused();
    assert!(error.contains("/nonexistent/c.toml"), "{error}");
}

#[test]
fn colours_are_for_terminals_unless_they_are_asked_for() {
    let tree = x3();
    let looks = |args: &[&str]| tree.run(args).done().stdout.contains('\u{1b}');
    assert!(!looks(&["discover"]));
    assert!(!looks(&["--color", "auto", "discover"]));
    assert!(!looks(&["--color", "never", "discover"]));
    assert!(looks(&["--color", "always", "discover"]));
    assert!(!looks(&[
        "--color", "always", "discover", "--format", "json"
    ]));
    tree.remove("/dev.table");
    let error = tree.run(&["--color", "always", "--config", "/nonexistent", "discover"]);
    assert!(
        error.stderr.starts_with("\u{1b}[1m\u{1b}[31merror:"),
        "{:?}",
        error.stderr
    );
}

#[test]
fn nobody_reading_stdout_is_no_error() {
    let tree = x3();
    tree.generate();
    for args in [
        &["discover", "--explain"][..],
        &["discover", "--format", "json"],
        &["cdi", "generate", "--output", "-"],
        &["cdi", "list"],
        &["completion", "bash"],
        &["--help"],
    ] {
        let mut command = on(tree.root(), args);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(command);
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}: {said}");
        assert_eq!(said, "", "{args:?}");
    }
}

#[test]
fn stdout_without_room_is_an_error() {
    let tree = x3();
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = on(tree.root(), &["discover"]);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.starts_with("error: ") && said.contains("No space left"),
        "{said}"
    );
}

#[test]
fn a_host_root_that_is_not_there_is_refused() {
    for args in [
        &["discover"][..],
        &["cdi", "generate"],
        &["cdi", "check"],
        &["cdi", "list"],
    ] {
        let refusal = run(&mut on(Path::new("/nonexistent/root"), args)).refused();
        // The reason once, and not once for each error that carries it.
        let wanted = "opening host root /nonexistent/root: No such file or directory (os error 2)";
        assert_eq!(refusal, wanted);
    }
}

#[test]
fn a_relative_host_root_and_output_directory_are_taken_from_here() {
    let tree = x3();
    let parent = tree.root().parent().unwrap();
    let name = tree.root().file_name().unwrap();
    let mut command = on(Path::new(name), &["cdi", "generate", "--output-dir"]);
    let out = format!("{}/out", name.to_str().unwrap());
    run(command.arg(&out).current_dir(parent)).done();
    assert!(tree.outside("/out/onload.dev-nic.json").exists());
    let mut command = on(Path::new("."), &["discover", "--format", "json"]);
    let found = run(command.current_dir(tree.root())).done().json();
    assert_eq!(found["nics"][0]["name"], "ens3");
}

#[test]
fn there_is_a_completion_script_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(program().args(["completion", shell])).done().stdout;
        for word in ["generate", "max-cdi-version", "inject"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
}

#[test]
fn bash_takes_the_script_and_completes_with_it() {
    let Ok(version) = std::process::Command::new("bash").arg("--version").output() else {
        return common::skipped("bash is not there");
    };
    assert!(version.status.success());
    let script = run(program().args(["completion", "bash"])).done().stdout;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("onload-ctk");
    fs::write(&file, script).unwrap();
    let line = "source \"$1\"; read -ra words <<< \"$(complete -p onload-ctk)\"; \
                for word in \"${words[@]}\"; do [[ $word = _* ]] && function=$word; done; COMP_WORDS=(onload-ctk cdi g); COMP_CWORD=2; \
                $function onload-ctk g cdi; echo \"${COMPREPLY[@]}\"";
    let mut bash = std::process::Command::new("bash");
    let output = bash.args(["-c", line, "bash"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "generate\n",
        "{said}"
    );
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    run(program().arg("man").arg(&pages)).done();
    let names = names_in(&pages);
    for page in [
        "onload-ctk.1",
        "onload-ctk-discover.1",
        "onload-ctk-cdi-generate.1",
    ] {
        assert!(names.contains(&page.to_owned()), "{names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("-man")), "{names:?}");
    let page = fs::read_to_string(pages.join("onload-ctk-cdi-generate.1")).unwrap();
    assert!(page.contains("ONLOAD_CTK_CDI_GENERATE_OUTPUT"), "{page}");
    fs::write(dir.path().join("file"), "").unwrap();
    let refusal = run(program().arg("man").arg(dir.path().join("file"))).refused();
    assert!(refusal.contains("writing manual pages to "), "{refusal}");
}

#[test]
fn the_commands_of_the_readme_do_what_it_says() {
    let readme = fs::read_to_string(common::package().join("README.md")).unwrap();
    let root = captured()
        .strip_prefix(common::package())
        .unwrap()
        .display()
        .to_string();
    assert!(
        readme.contains(&format!("--host-root {root} cdi generate")),
        "{readme}"
    );
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("cdi");
    run(on(&captured(), &["cdi", "generate", "--output-dir"]).arg(&out)).done();
    assert_eq!(specs_in(&out).len(), 8);
}
