//! Builds a host with any number of virtual functions: `synthetic-host DIR COUNT`.

#[path = "../benches/support/synthetic.rs"]
mod synthetic;

use std::path::Path;

use anyhow::{Context, bail};
use onload_test_tree::Tree;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, count] = &arguments[..] else {
        bail!("usage: synthetic-host DIR COUNT");
    };
    let count = count.parse().context("reading the number of functions")?;
    synthetic::build(&Tree::at(Path::new(directory)), count);
    Ok(())
}
