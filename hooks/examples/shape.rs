//! Writes a configuration of a shape to standard output: `shape NAME BYTES`. Without arguments it
//! lists the shapes.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::io::{self, Write};

#[allow(unreachable_pub, reason = "the tests use it too")]
#[path = "../tests/it/common/shapes.rs"]
mod shapes;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, bytes] = args.as_slice() else {
        shapes::SHAPES.iter().for_each(|shape| println!("{}", shape.name));
        return Ok(());
    };
    let shape = shapes::SHAPES
        .iter()
        .find(|shape| shape.name == name)
        .ok_or_else(|| io::Error::other("no such shape"))?;
    let bytes = bytes.parse().map_err(io::Error::other)?;
    io::stdout().write_all(&shape.json(bytes))
}
