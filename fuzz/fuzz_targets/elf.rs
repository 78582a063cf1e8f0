//! Untrusted ELF files, from memory and from a file: no panic, and the same answer.

#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use onload_sys::elf::{
    block_reader, each_symbol, find_numbers_after_name, find_strings, summarize, summarize_file,
};

fuzz_target!(|bytes: &[u8]| {
    let whole = summarize(bytes);
    if let Ok(summary) = &whole {
        let _ = (summary.glibc_needed(), summary.glibc_defined());
    }
    let name = std::env::temp_dir().join(format!("onload-ctk-fuzz-elf-{}", std::process::id()));
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(name)
        .expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    // A file that is accepted in memory may be rejected when read in blocks, but is never
    // interpreted differently.
    if let Ok(summary) = summarize_file(&file, bytes.len() as u64) {
        assert_eq!(Ok(summary), whole);
    }
    let length = bytes.len() as u64;
    let (mut in_memory, mut in_file) = (0, 0);
    let whole = each_symbol(bytes, &mut |_| in_memory += 1);
    if each_symbol(&block_reader(&file, length), &mut |_| in_file += 1).is_ok() {
        assert_eq!((Ok(()), in_memory), (whole, in_file));
    }
    let _ = find_numbers_after_name(&file, length, "mlx5");
    let _ = find_strings(&block_reader(&file, length), &["/lib%s-rdmav"]);
});
