//! The documentation: every command in it is run, here where a captured host is enough for it, in
//! `tests/machine` where it needs a real one, and read where there is neither. The word behind `sh`
//! says which.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Commands, Tree};
use clap::Parser;
use onload_ctk::cli::Cli;

/// Where a block is run.
const PLACES: [&str; 5] = [
    // Here, each block on a fresh copy of a captured host whose specifications are written.
    "captured",
    // In the booted guest, as root.
    "guest",
    // There, as a user.
    "guest-user",
    // By packaging/check-reproducible and the guest, which installs what comes out.
    "packages",
    // Nowhere: it needs hardware, the network, a cluster or another distribution; read only.
    "reader",
];
const HOST: &str = "x2-2port-sriov";

struct Block {
    page: PathBuf,
    line: usize,
    place: String,
    text: String,
}

impl Block {
    fn at(&self) -> String {
        format!("{}:{}", self.page.display(), self.line)
    }
}

fn pages() -> Vec<PathBuf> {
    let docs = crate::common::package().join("docs");
    let names = crate::common::names_in(&docs);
    names
        .iter()
        .filter(|name| name.ends_with(".md"))
        .map(|name| docs.join(name))
        .chain([crate::common::package().join("README.md")])
        .collect()
}

/// The blocks of shell commands of every page.
fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let mut open: Option<(usize, &str, Vec<&str>)> = None;
        for (index, line) in text.lines().enumerate() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(info)) => open = Some((index + 1, info, Vec::new())),
                (Some((_, _, lines)), None) => lines.push(line),
                (None, None) => {}
                (Some((line, info, lines)), Some(_)) => {
                    if let Some(place) = info.strip_prefix("sh") {
                        blocks.push(Block {
                            page: page.clone(),
                            line: *line,
                            place: place.trim().to_owned(),
                            text: lines.join("\n"),
                        });
                    }
                    open = None;
                }
            }
        }
        assert!(open.is_none(), "{}: a block does not end", page.display());
    }
    blocks
}

/// The README's own commands and those of the pages that other checks run: `cargo`.
fn is_of_cargo(block: &Block) -> bool {
    block.place.is_empty() && block.text.lines().all(|line| line.starts_with("cargo "))
}

#[test]
fn every_block_says_where_it_is_run_and_is_shell() {
    for block in blocks() {
        let known = PLACES.contains(&block.place.as_str());
        let measured = block.page.ends_with("performance.md") && block.place.is_empty();
        assert!(known || measured || is_of_cargo(&block), "{}: {:?}", block.at(), block.place);
        let mut shell = Command::new("bash");
        let shell = shell.args(["-n", "-c", &block.text]).output().unwrap();
        let stderr = String::from_utf8_lossy(&shell.stderr);
        assert!(shell.status.success(), "{}: {stderr}", block.at());
    }
}

#[test]
fn a_row_of_a_table_has_as_many_cells_as_its_head() {
    let mut rows = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let mut head = None;
        for (index, line) in text.lines().enumerate() {
            let row = line.trim().strip_prefix('|');
            let cells = row.map(|row| row.replace("\\|", "").matches('|').count());
            if let (Some(cells), Some(head)) = (cells, head) {
                assert_eq!(cells, head, "{}:{}: {line}", page.display(), index + 1);
                rows += 1;
            }
            head = cells.map(|cells| head.unwrap_or(cells));
        }
    }
    assert!(rows > 200, "{rows}");
}

#[test]
fn every_command_of_ours_is_one_that_there_is() {
    let mut commands = 0;
    for block in blocks() {
        let lines = block.text.lines();
        for line in lines.filter(|line| line.starts_with("onload-ctk ")) {
            let parsed = Cli::try_parse_from(line.split_whitespace());
            assert!(parsed.is_ok(), "{}: {line}: {}", block.at(), parsed.unwrap_err());
            commands += 1;
        }
    }
    assert!(commands > 20, "{commands}");
}

/// A copy of a captured host with its specifications written.
fn host() -> Tree {
    let tree = Tree::sample(HOST);
    // A capture has no engines, and they are set up where they are installed.
    for program in ["dockerd", "containerd", "crio", "podman", "nomad"] {
        tree.file(&format!("/usr/bin/{program}"), "");
    }
    tree.generate();
    tree
}

#[test]
fn what_a_captured_host_is_enough_for_works_as_written() {
    let program = Path::new(env!("CARGO_BIN_EXE_onload-ctk"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let mut run = 0;
    for block in blocks().iter().filter(|block| block.place == "captured") {
        let host = host();
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &block.text]);
        shell.env_clear().env("PATH", &path);
        shell.env("ONLOAD_CTK_HOST_ROOT", host.root());
        let output = shell.stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", block.at());
        run += 1;
    }
    assert!(run > 10, "{run}");
}

#[test]
fn every_piece_of_configuration_is_one() {
    let mut found = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for block in text.split("```toml\n").skip(1) {
            let (block, _) = block.split_once("```").unwrap();
            // Engines have files of TOML too.
            if !block.contains("[[sriov]]") {
                continue;
            }
            let read = onload_core::config::Config::parse(block);
            assert!(read.is_ok(), "{}: {}", page.display(), read.unwrap_err());
            found += 1;
        }
    }
    assert!(found >= 2, "{found}");
}

/// A quadlet NAME.container makes the unit NAME.service, which goes before a distribution's own.
#[test]
fn a_unit_that_a_page_makes_is_no_distributions() {
    let mut units = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let files = text.lines().filter_map(|line| line.strip_prefix("```ini "));
        for file in files.filter_map(|file| file.strip_suffix(".container")) {
            let name = file.rsplit('/').next().unwrap().to_owned();
            assert!(name.starts_with("onload-"), "{}: {file}", page.display());
            assert!(text.contains(&format!("systemctl start {name}\n")), "{name}");
            assert!(text.contains(&format!("systemctl stop {name}\n")), "{name}");
            units.push(name);
        }
    }
    assert_eq!(units, ["onload-redis"]);
}

/// With it on, the kernel's driver may still be probing a new function when it is unbound.
#[test]
fn the_recipe_for_virtual_functions_turns_the_kernels_drivers_off_first() {
    let block = blocks()
        .into_iter()
        .find(|block| block.page.ends_with("dpdk.md") && block.text.contains("sriov_numvfs"))
        .unwrap();
    assert_eq!(block.place, "guest");
    let steps = ["sriov_drivers_autoprobe", "sriov_numvfs", "driver_override", "drivers_probe"];
    let at = |step: &str| block.text.find(step).unwrap();
    assert!(steps.map(at).is_sorted(), "{}", block.text);
    assert!(!block.text.contains("unbind"), "{}", block.text);
}

/// Without the bound, what docker before 29 executes in a container aborts.
#[test]
fn an_exec_with_the_library_has_the_bound_of_its_table() {
    let bound =
        format!(" -e EF_FDTABLE_SIZE={} ", onload_core::config::CdiConfig::default().fdtable_size);
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for (_, after) in text
            .match_indices("-e LD_PRELOAD=libonload.so")
            .map(|(at, found)| (at, &text[at + found.len()..]))
        {
            // The list of what to write instead names the command by which others start containers.
            let is_exec = !page.ends_with("migrate.md");
            assert!(!is_exec || after.starts_with(&bound), "{}", page.display());
            count += usize::from(is_exec);
        }
    }
    assert!(count >= 2);
}
