//! A virtual function is put back while another user has so many descriptors open that a search of /proc times out. A
//! program of its own: any other search on the machine would time out too.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(dead_code, unused_imports, reason = "the common modules serve the other tests too")]

#[path = "../it/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::IntoRawFd;
use std::process::{Child, Command, Stdio};

use common::moving;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// In the environment of a process of the crowd.
const CROWD: &str = "ONLOAD_CTK_TEST_CROWD";
const PROCESSES: usize = 100;
const DESCRIPTORS: u64 = 19_000;

const VF: &str = "0000:81:10.0";
const STAND_INS: &str = "vfio vf=/tmp/vfs";

/// Not a test of its own: the crowd's processes are this one, and do nothing else.
#[test]
fn crowd_process() {
    if std::env::var_os(CROWD).is_none() {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    for _ in 0..DESCRIPTORS {
        let _ = rustix::io::dup(rustix::stdio::stderr()).unwrap().into_raw_fd();
    }
    rustix::io::write(rustix::stdio::stdout(), b"\nready\n").unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

struct Crowd(Vec<Child>);

impl Crowd {
    fn gather() -> Self {
        let processes = (0..PROCESSES).map(|_| {
            let mut process = Command::new(std::env::current_exe().unwrap());
            process.args(["--exact", "crowd_process", "--nocapture"]).env(CROWD, "1");
            process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            process.spawn().unwrap()
        });
        let mut crowd = Crowd(processes.collect());
        for process in &mut crowd.0 {
            let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap() == "ready"));
        }
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[test]
fn a_crowd_of_descriptors_keeps_no_vlan_on_a_function() {
    if !moving::can_move() {
        return;
    }
    let lease = format!("vfio:{VF}");
    let vf = format!("{lease}=vlan=100");
    let options = ["--lease", &lease, "--vf", &vf];
    let sandbox = moving::sandbox(&[
        ("one", moving::container(None, STAND_INS, &options)),
        ("plain", moving::container(None, STAND_INS, &options[..2])),
    ]);
    let devices = format!(
        r#"
        VF={VF}
        node=/tmp/vfs/dev/vfio/devices/vfio7
        mkdir -p ${{node%/*}} /tmp/vfs/sys/bus/pci/devices/$VF/vfio-dev/vfio7
        [ -e $node ] || mknod $node c 511 7
        echo '{{"pf":"ens1f0","settings":{{"vlan":{{"id":7,"priority":2,"protocol":"802.1ad"}}}},"refuses":[]}}' > /tmp/vfs/$VF
        "#
    );
    let script = r#"
        vlan() { grep -q '"vlan":{"id":'$1'[,}]' /tmp/vfs/$VF || fail "$2: $(cat /tmp/vfs/$VF)"; }
        make one || fail "$(cat /tmp/err)"
        vlan 100 "set up"
        gone one
        vlan 7 "put back"
        grep -q '"returning":true' /run/onload-ctk/@leases/vfio=$VF#0 || fail "the lease has ended"
        make plain && fail "given although a process may have it open"
        grep -q "could not determine whether a process still has it open: the search of /proc timed out at process [0-9]* ([^ ]*crowd[^ ]*) of user [0-9]*, which has most of the descriptors that were searched, [0-9]*; run" /tmp/err || fail "$(cat /tmp/err)"
        gone plain
        said=$(restore) || fail "$said"
        [ "$said" = "vfio:$VF is back" ] || fail "not restored: $said"
        free "the longer search"
        make plain || fail "$(cat /tmp/err)"
        gone plain; free plain"#;
    let _crowd = Crowd::gather();
    moving::on_both(&sandbox, STAND_INS, &devices, script);
}
