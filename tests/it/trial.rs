//! `try`: what it refuses before any engine is asked.

use crate::common::hosts::x2;
use crate::common::{Commands, program, run};

#[test]
fn a_captured_host_starts_no_container() {
    let message = x2().run(&["try", "nic=enp59s0f0np0"]).refused();
    assert_eq!(
        message,
        "trying nic=enp59s0f0np0: containers can be started only on the running host; omit \
         --host-root"
    );
}

#[test]
fn what_is_no_device_with_a_probe_is_refused_in_one_line() {
    for (word, why) in [
        ("ens1", "expected CLASS=NAME, for example nic=ens1"),
        ("nic=all", "choose one device"),
        ("nice=ens1", "nice"),
    ] {
        let message = run(program().args(["try", word])).refused();
        assert!(message.contains(why), "{word}: {message}");
    }
}
