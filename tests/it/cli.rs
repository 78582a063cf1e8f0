//! The command line itself: exit statuses, variables, what goes to which stream, scripts and pages.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::common::hosts::{refused, x3};
use crate::common::{
    Commands, Tree, captured, names_in, on, program, run, run_with_stdin, specs_in,
};
use clap::CommandFactory;
use onload_ctk::cli::Cli;

#[test]
fn a_line_that_is_not_understood_ends_with_2_and_help_with_0() {
    for args in [
        &["--nonsense"][..],
        &["discover", "--format", "xml"],
        &["cdi", "generate", "--output-dir", "/nonexistent/a", "--output", "/nonexistent/b"],
        &["cdi", "inject"],
        &["cdi"],
        &["completion", "csh"],
        &["--color", "sometimes", "discover"],
    ] {
        let run = run(program().args(args));
        assert_eq!(run.code, Some(2), "{args:?}");
        assert_eq!(run.stdout, "", "{args:?}");
    }
    for args in [&["--help"][..], &["-h"], &["cdi", "generate", "--help"], &["help", "discover"]] {
        let run = run(program().args(args)).done();
        assert!(run.stdout.contains("Usage: onload-ctk"), "{args:?}");
        assert_eq!(run.stderr, "", "{args:?}");
    }
    let version = run(program().arg("--version")).done().stdout;
    assert_eq!(version, format!("onload-ctk {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_help_names_the_exit_statuses_an_example_and_where_variables_are_listed() {
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = words(run(program().arg("--help")).done().stdout);
    for wanted in [
        "--host-root <DIR>",
        "1 the answer is no",
        "2 error, or the answer could not be determined",
        "onload-ctk help environment",
    ] {
        assert!(help.contains(wanted), "{wanted} in {help}");
    }
    let help = run(program().args(["cdi", "generate", "--help"])).done().stdout;
    for wanted in ["Example: onload-ctk cdi generate", "onload-ctk help environment"] {
        assert!(help.contains(wanted), "{wanted} in {help}");
    }
    let topic = run(program().args(["help", "environment"])).done().stdout;
    each_command(&Cli::command(), &[], &mut |path, command| {
        for flag in command.get_arguments().filter(|_| !command.is_hide_set()) {
            let Some(variable) = flag.get_env().and_then(|variable| variable.to_str()) else {
                continue;
            };
            let flag = format!("--{}", flag.get_long().unwrap());
            let flag = [path, &[flag]].concat().join(" ");
            let is_listed = topic.lines().any(|line| {
                line.trim()
                    .split_once("  ")
                    .is_some_and(|(first, second)| first == variable && second.trim() == flag)
            });
            assert!(is_listed, "{variable} {flag} in {topic}");
        }
    });
    for option in ["--host-root <DIR>", "-v, --verbose", "--color <WHEN>"] {
        assert!(topic.contains(option) && topic.contains("COLUMNS"), "{topic}");
    }
}

#[test]
fn the_help_of_every_subcommand_has_at_most_40_lines() {
    each_command(&Cli::command(), &[], &mut |path, command| {
        if path.is_empty() || command.is_hide_set() {
            return;
        }
        for help in ["-h", "--help"] {
            let text = run(program().env("COLUMNS", "80").args(path).arg(help)).done().stdout;
            assert!(text.lines().count() <= 40, "{}", text);
            let long = command.get_long_about().or(command.get_about()).unwrap().to_string();
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&text).starts_with(&words(&long)), "{text}");
            for shared in ["ONLOAD_CTK_CDI", "--host-root <DIR>"] {
                assert!(!text.contains(shared), "{shared} in {text}");
            }
        }
    });
}

#[test]
fn the_help_says_all_that_a_flag_allows() {
    let help = |args: &[&str]| {
        let text = run(program().args(args).arg("--help")).done().stdout;
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let configure = help(&["runtime", "configure"]);
    let wanted = "A container that gets rdma, vfio, zf or hugepages may also request CAP_IPC_LOCK";
    assert!(configure.contains(wanted), "{configure}");
    let generate = help(&["cdi", "generate"]);
    let wanted = "that another program or user wrote or changed, or whose devices could not be \
        read";
    assert!(generate.contains(wanted), "{generate}");
}

/// Calls `look` with the path of every command and the command.
fn each_command(
    command: &clap::Command,
    path: &[String],
    visit: &mut dyn FnMut(&[String], &clap::Command),
) {
    visit(path, command);
    for below in command.get_subcommands() {
        let path = [path, &[below.get_name().to_owned()]].concat();
        each_command(below, &path, visit);
    }
}

#[test]
fn every_flag_has_the_variable_of_its_name() {
    let mut flags = 0;
    each_command(&Cli::command(), &[], &mut |path, command| {
        for flag in command.get_arguments() {
            let Some(name) = flag.get_long().filter(|name| !["help", "version"].contains(name))
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
    assert!(flags > 55, "{flags}");
}

#[test]
fn every_command_and_flag_says_what_it_is_for() {
    each_command(&Cli::command(), &[], &mut |path, command| {
        assert!(command.get_about().is_some(), "{path:?}");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{path:?} {}", argument.get_id());
        }
    });
}

/// Sets variables, runs, and gives stdout.
fn with(tree: &Tree, variables: &[(&str, &str)], args: &[&str]) -> crate::common::Run {
    run(on(tree.root(), args).envs(variables.iter().copied()))
}

#[test]
fn variables_stand_for_flags() {
    let tree = x3();
    let root = tree.root().to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let found = run(program()
        .args(["discover"])
        .envs([("ONLOAD_CTK_HOST_ROOT", root), ("ONLOAD_CTK_DISCOVER_FORMAT", "json")]));
    assert_eq!(found.done().json()["nics"][0]["name"], "ens3");
    let explained = with(&tree, &[("ONLOAD_CTK_DISCOVER_EXPLAIN", "true")], &["discover"]);
    assert!(explained.done().stdout.contains("Not offered"));
    let generate = |variables: &[(&str, &str)]| with(&tree, variables, &["cdi", "generate"]);
    let specs = path("specs");
    generate(&[
        ("ONLOAD_CTK_CDI_GENERATE_OUTPUT_DIR", specs.as_str()),
        ("ONLOAD_CTK_CDI_GENERATE_KIND", "nic,zf"),
        ("ONLOAD_CTK_CDI_GENERATE_FORMAT", "yaml"),
    ])
    .done();
    assert_eq!(specs_in(Path::new(&specs)), ["onload.dev-nic.yaml", "onload.dev-zf.yaml"]);
    let checked = with(&tree, &[("ONLOAD_CTK_CDI_CHECK_OUTPUT_DIR", &specs)], &["cdi", "check"]);
    checked.done();
    let listed =
        [("ONLOAD_CTK_CDI_LIST_SPEC_DIR", specs.as_str()), ("ONLOAD_CTK_CDI_LIST_FORMAT", "json")];
    let listed = with(&tree, &listed, &["cdi", "list"]).done().json();
    assert_eq!(listed["devices"].as_array().unwrap().len(), 5);
    let shown =
        [("ONLOAD_CTK_CDI_SHOW_SPEC_DIR", specs.as_str()), ("ONLOAD_CTK_CDI_SHOW_FORMAT", "json")];
    let shown = with(&tree, &shown, &["cdi", "show", "onload.dev/zf=all"]);
    assert_eq!(shown.done().json()["kind"], "onload.dev/zf");
    let mut inject = on(tree.root(), &["cdi", "inject", "onload.dev/zf=all"]);
    let both = format!("/,{specs}");
    inject.env("ONLOAD_CTK_CDI_INJECT_SPEC_DIR", &both);
    run_with_stdin(&mut inject, b"{}").done();
    let version = [("ONLOAD_CTK_CDI_GENERATE_MAX_CDI_VERSION", "0.4.0")];
    assert!(generate(&version).refused().contains("CDI 0.4.0"));
    for variable in ["ONLOAD_CTK_CDI_GENERATE_DRY_RUN", "ONLOAD_CTK_CDI_GENERATE_DIFF"] {
        assert_ne!(generate(&[(variable, "yes")]).done().stdout, "");
        assert_eq!(names_in(&tree.specs()), [""; 0]);
    }
    let stdout = generate(&[("ONLOAD_CTK_CDI_GENERATE_OUTPUT", "-")]).done().stdout;
    assert!(stdout.starts_with("{\n"), "{stdout}");
    tree.file("/var/run/cdi/onload.dev-nic.json", "{}");
    generate(&[]).answered_no();
    generate(&[("ONLOAD_CTK_CDI_GENERATE_FORCE", "1")]).done();
    let config = path("config.toml");
    fs::write(&config, "[cdi]\nkinds = [\"zf\"]\n").unwrap();
    generate(&[("ONLOAD_CTK_CONFIG", &config)]).done();
    assert_eq!(specs_in(&tree.specs()), ["onload.dev-zf.json"]);
    assert_eq!(generate(&[("ONLOAD_CTK_QUIET", "1")]).done().stderr, "");
    assert!(generate(&[("ONLOAD_CTK_VERBOSE", "1")]).done().stderr.contains("unchanged "));
    let colours = with(&tree, &[("ONLOAD_CTK_COLOR", "always")], &["discover"]).done().stdout;
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
    assert_eq!(kinds(&variable, &["--kind", "profile"]), ["onload.dev-profile.json"]);
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
    let error = tree.run(&["-q", "--config", "/nonexistent/c.toml", "discover"]).refused();
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
    assert!(!looks(&["--color", "always", "discover", "--format", "json"]));
    tree.remove("/dev.table");
    let error = tree.run(&["--color", "always", "--config", "/nonexistent", "discover"]);
    assert!(error.stderr.starts_with("\u{1b}[1m\u{1b}[31merror:"), "{:?}", error.stderr);
}

/// A line that is not understood, with colours where they are not for terminals alone.
fn misunderstood(args: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = program();
    command.args(args).envs(variables.iter().copied());
    let run = run(&mut command);
    assert_eq!(run.code, Some(2), "{args:?}");
    assert!(run.stderr.contains("error:"), "{}", run.stderr);
    run.stderr
}

#[test]
fn colours_of_a_line_that_is_not_understood_are_those_that_were_asked_for() {
    let forced = ("CLICOLOR_FORCE", "1");
    let bad = &["discover", "--nonsense"][..];
    for (args, variables, colours) in [
        (bad, &[][..], false),
        (bad, &[forced], true),
        (bad, &[forced, ("NO_COLOR", "1")], false),
        (bad, &[forced, ("ONLOAD_CTK_COLOR", "never")], false),
        (bad, &[("ONLOAD_CTK_COLOR", "always")], true),
        (&["--color", "never", "--nonsense"], &[forced], false),
        (&["--nonsense", "--color", "never"], &[forced], false),
        (&["discover", "--color=never", "--nonsense"], &[forced], false),
        (&["cdi", "inject", "--color=never"], &[forced], false),
        (&["--color", "always", "--nonsense"], &[("NO_COLOR", "1")], true),
        // A flag goes before its variable.
        (&["--color", "always", "--nonsense"], &[("ONLOAD_CTK_COLOR", "never")], true),
        (&["--color", "sometimes"], &[], false),
        (&["--color", "sometimes"], &[forced], true),
        (&["--color"], &[forced], true),
        // Behind two hyphens there are no options.
        (&["discover", "--", "--color", "always"], &[], false),
        (&["cdi", "generate", "--output=a", "--output-dir=b", "--color=never"], &[forced], false),
        (&["cdi", "generate", "--output=a", "--output-dir=b", "--color=always"], &[], true),
    ] {
        let message = misunderstood(args, variables);
        assert_eq!(message.contains('\u{1b}'), colours, "{args:?} {variables:?}: {message}");
    }
    let help = |color: &str| run(program().args(["--help", "--color", color])).done().stdout;
    assert!(!help("never").contains('\u{1b}'));
    assert!(help("always").contains('\u{1b}'));
}

#[test]
fn nobody_reading_stdout_is_no_error_and_no_other_answer() {
    let (tree, wrong, held) = (x3(), x3(), crate::drain::held());
    tree.generate();
    wrong.config("not toml");
    for (tree, args, code) in [
        (&tree, &["discover", "--explain"][..], 0),
        (&tree, &["discover", "--format", "json"], 0),
        (&tree, &["cdi", "generate", "--output", "-"], 0),
        (&tree, &["cdi", "list"], 0),
        (&tree, &["completion", "bash"], 0),
        (&tree, &["--help"], 0),
        (&wrong, &["doctor"], 1),
        (&wrong, &["doctor", "--format", "json"], 1),
        (&held, &["drain", "vfio", "--quiet"], 1),
        (&held, &["undrain", "vfio", "--quiet"], 0),
    ] {
        let mut command = on(tree.root(), args);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        let ended = child.wait().unwrap().code();
        assert_eq!(ended, Some(code), "{args:?}: {message}");
        assert_eq!(message, "", "{args:?}");
    }
}

#[test]
fn stdout_without_room_is_an_error() {
    let tree = x3();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = on(tree.root(), &["discover"]);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("error: ") && message.contains("No space left"), "{message}");
}

#[test]
fn a_host_root_that_is_not_there_is_refused() {
    for args in [&["discover"][..], &["cdi", "generate"], &["cdi", "check"], &["cdi", "list"]] {
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
    assert!(tree.path("/out/onload.dev-nic.json").exists());
    let mut command = on(Path::new("."), &["discover", "--format", "json"]);
    let found = run(command.current_dir(tree.root())).done().json();
    assert_eq!(found["nics"][0]["name"], "ens3");
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    run(program().arg("man").arg(&pages)).done();
    let names = names_in(&pages);
    for page in ["onload-ctk.1", "onload-ctk-discover.1", "onload-ctk-cdi-generate.1"] {
        assert!(names.contains(&page.to_owned()), "{names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("-man")), "{names:?}");
    let page = fs::read_to_string(pages.join("onload-ctk-cdi-generate.1")).unwrap();
    assert!(page.contains("ONLOAD_CTK_CDI_GENERATE_OUTPUT"), "{page}");
    fs::write(dir.path().join("file"), "").unwrap();
    let refusal = run(program().arg("man").arg(dir.path().join("file"))).refused();
    assert!(refusal.contains("writing manual pages to "), "{refusal}");
}

/// The manual pages: those that the program writes, by their names.
fn pages() -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    run(program().arg("man").arg(dir.path())).done();
    let read = |name: String| {
        let text = fs::read_to_string(dir.path().join(&name)).unwrap();
        (name, text)
    };
    names_in(dir.path()).into_iter().map(read).collect()
}

/// The text of a section of a page.
#[track_caller]
fn section<'p>(name: &str, page: &'p str, title: &str) -> &'p str {
    let heading = match title.contains(' ') {
        true => format!("\n.SH \"{title}\"\n"),
        false => format!("\n.SH {title}\n"),
    };
    // Pages by hand write their headings without quotes.
    let plain = format!("\n.SH {title}\n");
    let start = page
        .find(&heading)
        .or_else(|| page.find(&plain))
        .unwrap_or_else(|| panic!("{name} has no {title}:\n{page}"))
        + 1;
    let rest = &page[start..];
    let rest = &rest[rest.find('\n').unwrap()..];
    &rest[..rest.find("\n.SH ").unwrap_or(rest.len())]
}

/// The pages of ours that a generated page names: name and section.
fn named_pages(others: &str) -> Vec<(&str, &str)> {
    let pages = others.split("fB").skip(1).filter_map(|word| {
        let (name, rest) = word.split_once("fR(")?;
        Some((name, rest.split_once(')')?.0))
    });
    pages.collect()
}

#[test]
fn every_manual_page_tells_of_its_exit_status_its_files_and_other_pages() {
    let by_hand = crate::common::package().join("packaging/man");
    let mut pages = pages();
    let generated: Vec<String> = pages.keys().cloned().collect();
    for name in names_in(&by_hand) {
        let text = fs::read_to_string(by_hand.join(&name)).unwrap();
        pages.insert(name, text);
    }
    for (name, page) in &pages {
        // A page about a file has nothing that ends.
        let of_file = name.ends_with(".5");
        let titles = ["NAME", "SYNOPSIS", "DESCRIPTION", "FILES", "EXIT STATUS"];
        for title in titles.iter().take(titles.len() - usize::from(of_file)) {
            let text = section(name, page, title).trim();
            assert!(!text.is_empty(), "{name}: {title}");
        }
        let others = section(name, page, "SEE ALSO").replace('\\', "");
        assert!(!others.trim().is_empty(), "{name}");
        for other in generated.iter().map(|page| page.trim_end_matches(".1")) {
            let is_above = other != name.trim_end_matches(".1") && name.starts_with(other);
            let is_named = others.contains(&format!("{other}fR(1)"));
            assert!(is_named || !is_above || !name.ends_with(".1"), "{name}: {other}");
        }
        // What it names is there.
        for (named, section) in named_pages(&others) {
            let file = format!("{named}.{section}");
            assert!(section == "5" || pages.contains_key(&file), "{name}: {file}");
        }
    }
    assert!(pages.len() >= 15, "{:?}", pages.keys());
}

#[test]
fn the_synopsis_of_a_page_names_the_values_of_options() {
    let pages = pages();
    let synopsis = |name: &str| {
        let text = section(name, &pages[name], "SYNOPSIS");
        ["\\fB", "\\fI", "\\fR", "\\"]
            .iter()
            .fold(text.to_owned(), |text, mark| text.replace(mark, ""))
            .trim()
            .to_owned()
    };
    for (name, wanted) in [
        ("onload-ctk.1", "[--host-root DIR] [--config FILE] [-v|--verbose]"),
        ("onload-ctk.1", "[--color WHEN]"),
        ("onload-ctk.1", " [COMMAND]"),
        ("onload-ctk-cdi.1", " COMMAND"),
        (
            "onload-ctk-cdi-generate.1",
            "onload-ctk cdi generate [--output-dir DIR] [--output FILE] [--kind KIND,...]",
        ),
        ("onload-ctk-cdi-show.1", "[--spec-dir DIR,...]"),
        ("onload-ctk-cdi-show.1", " DEVICE..."),
        ("onload-ctk-cdi-validate.1", " [FILE...]"),
        ("onload-ctk-runtime-configure.1", " --runtime ENGINE "),
        ("onload-ctk-container-explain.1", " BUNDLE"),
    ] {
        let found = synopsis(name);
        assert!(found.contains(wanted), "{wanted:?} in {found}");
    }
}

/// The exit statuses that a page lists.
fn statuses(name: &str, page: &str) -> Vec<String> {
    let text = section(name, page, "EXIT STATUS");
    text.lines()
        .filter_map(|line| line.strip_prefix("\\fB"))
        .map(|line| line.trim_end_matches("\\fR").to_owned())
        .collect()
}

#[test]
fn the_exit_statuses_of_a_page_are_those_that_its_command_has() {
    let pages = pages();
    let commands = crate::common::package().join("src/commands");
    let mut answering_no = 0;
    each_command(&Cli::command(), &[], &mut |path, command| {
        if path.is_empty() || command.is_hide_set() || command.has_subcommands() {
            return;
        }
        let files = [
            format!("{}.rs", path.join("/")),
            format!("{}.rs", path[0]),
            format!("{}.rs", command.get_name()),
            format!("{}/mod.rs", command.get_name()),
            // "try" is a word of Rust.
            format!("{}/mod.rs", command.get_name().replace("try", "trial")),
            format!("{}/mod.rs", command.get_name().trim_start_matches("un")),
        ];
        let read = |file| fs::read_to_string(commands.join(file)).ok();
        let mut source = files.iter().find_map(read).unwrap();
        // A file of several commands has a function for each.
        if let Some((_, rest)) = source.split_once(&format!("pub fn {}(", command.get_name())) {
            source = rest.split("\n}\n").next().unwrap().to_owned();
        }
        let answers_no = source.contains("ExitAnswer::No");
        answering_no += usize::from(answers_no);
        let name = format!("onload-ctk-{}.1", path.join("-"));
        let wanted = match (answers_no, source.contains("ExitAnswer::NotTried")) {
            (true, true) => &["0", "1", "2", "3"][..],
            (true, false) => &["0", "1", "2"],
            (false, _) => &["0", "2"],
        };
        assert_eq!(statuses(&name, &pages[&name]), wanted, "{name}");
    });
    assert_eq!(answering_no, 12);
    let name = "onload-ctk.1";
    assert_eq!(statuses(name, &pages[name]), ["0", "1", "2", "3"]);
    for (status, meaning) in onload_ctk::exit::STATUSES {
        let help = run(program().arg("--help"))
            .done()
            .stdout
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(help.contains(&format!("{status} {meaning}")), "{help}");
    }
}

#[test]
fn roff_takes_every_manual_page_without_a_word() {
    let pages = pages();
    let dir = tempfile::tempdir().unwrap();
    let tools: [(&str, &[&str]); 2] = [
        ("groff", &["-ww", "-z", "-man", "-Tutf8"]),
        // Its warnings are about dates, which our pages have not, and about how clap_mangen spaces lists.
        ("mandoc", &["-Tlint", "-Werror"]),
    ];
    for (tool, args) in tools {
        if !crate::common::has_program(tool) {
            crate::common::skipped(&format!("{tool} is not installed"));
            continue;
        }
        for (name, page) in &pages {
            let file = dir.path().join(name);
            fs::write(&file, page).unwrap();
            let output = std::process::Command::new(tool).args(args).arg(&file).output().unwrap();
            let message = [output.stdout, output.stderr].concat();
            assert_eq!(String::from_utf8_lossy(&message), "", "{tool} {name}");
        }
    }
}

#[test]
fn the_first_command_of_the_readme_shows_devices_specifications_and_a_container() {
    let readme = fs::read_to_string(crate::common::package().join("README.md")).unwrap();
    let root = format!("tests/hosts/{}", crate::common::CAPTURED);
    let first = readme.lines().find(|line| line.starts_with("cargo run"));
    let command = ["cdi", "preview", "onload.dev/nic=all"];
    let expected = format!("cargo run -- --host-root {root} {}", command.join(" "));
    assert_eq!(first, Some(expected.as_str()));
    let done = run(&mut on(&captured(), &command)).done();
    assert_eq!(done.stderr, "");
    assert!(done.stdout.lines().count() <= 60, "{}", done.stdout);
    for part in [
        "  nic        ens1  0000:41:00.0  igb, af_xdp, up",
        "CDI specifications in /var/run/cdi\n  onload.dev-nic.json ",
        "Container with --device onload.dev/nic=all\n\ndevice nodes\n  /dev/onload ",
        "  /usr/bin/                     ro,nosuid,nodev,bind: onload onload_fuser ",
        "  LD_PRELOAD=libonload.so\n",
        "  /usr/bin/onload-hook createRuntime --expect /dev/onload=nic:onload#243:0 ",
        "run: onload-ctk cdi generate",
    ] {
        assert!(done.stdout.contains(part), "{part:?} is missing in:\n{}", done.stdout);
    }
    assert!(!captured().join("var/run").exists());
}
