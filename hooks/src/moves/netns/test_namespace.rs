//! Network namespaces for tests.

use std::fs::{self, File};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use onload_test_tree::network::Child;

use super::Netns;

/// A process whose first thread has ended, and that has a file open until its input ends. It needs python3.
pub(crate) fn without_first_thread(file: &Path) -> process::Child {
    let script = "import ctypes, sys, threading; held = open(sys.argv[1]); \
         threading.Thread(target=sys.stdin.read).start(); ctypes.CDLL(None).pthread_exit(None)";
    let mut command = Command::new("python3");
    let command = command.args(["-c", script]).arg(file);
    let holder = command.stdin(Stdio::piped()).spawn().unwrap();
    let stat = format!("/proc/{}/stat", holder.id());
    let until = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        assert!(Instant::now() < until, "its first thread goes on");
        thread::sleep(Duration::from_millis(5));
    }
    holder
}

pub(crate) fn netns(child: &Child) -> Netns {
    let path = child.path();
    Netns::enter(File::open(&path).unwrap(), &path).unwrap()
}
