//! Determines whether a program has an Onload stack, and whether Onload's log keeps another descriptor of the device.

use super::facts::find_variable;
use super::process::{ContainerProcess, is_onload_descriptor};

/// Whether it has a stack, its own, one that it inherited or one that it shares. A program that created a stack without
/// a socket in it has the device open once more than for the log. `is_listed`: whether the driver lists a stack of its.
/// `variables`: what it was started with.
pub(super) fn has_stack(
    process: &ContainerProcess,
    is_listed: bool,
    variables: impl FnOnce() -> Vec<u8>,
) -> bool {
    let open = || process.open.iter().flatten();
    if open().any(|target| is_onload_descriptor(target)) {
        return true;
    }
    let devices = open().filter(|target| *target == "/dev/onload").count();
    if !is_listed || devices != 1 {
        return is_listed && devices > 1;
    }
    let variables = variables();
    !(logs_by_driver(process, &variables) && has_banner(&variables))
}

/// Whether Onload writes what it says of a program by the driver, which keeps one descriptor of the device (Onload,
/// `citp_opts_getenv` and `init_citp_log_fd`).
pub(super) fn logs_by_driver(process: &ContainerProcess, variables: &[u8]) -> bool {
    let number = find_variable(variables, "EF_LOG_VIA_IOCTL")
        .and_then(|number| std::str::from_utf8(number).ok()?.trim().parse().ok());
    match number.unwrap_or(DEFAULT_VALUE) {
        DEFAULT_VALUE => find_variable(variables, "EF_LOG_FILE").is_none() && !process.has_terminal,
        number => number != 0,
    }
}

const DEFAULT_VALUE: i32 = 3;

/// Whether it says something of each stack (Onload, `convert_string_to_bitmask`: a word may be cut).
fn has_banner(variables: &[u8]) -> bool {
    let mut settings = find_variable(variables, "EF_LOG")
        .unwrap_or_default()
        .split(|byte| *byte == b',')
        .rev()
        .filter_map(|word| {
            let rest = word.strip_prefix(b"-");
            let name = rest.unwrap_or(word);
            (!name.is_empty() && b"banner".starts_with(name)).then_some(rest.is_none())
        });
    settings.next().unwrap_or(true)
}
