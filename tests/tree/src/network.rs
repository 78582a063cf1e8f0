//! Network namespaces of their own for tests.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const IP: &str = "/usr/sbin/ip";

pub fn can_be(why: &str) -> bool {
    onload_test_needs::root(why)
        && onload_test_needs::programs(&["unshare", "nsenter"])
        && onload_test_needs::that(Path::new(IP).exists(), "ip is not installed")
}

/// A process in a network namespace of its own.
pub struct Child(Process);

impl Child {
    pub fn of_root() -> Self {
        Child::from_command("unshare --net sleep 1000")
    }

    /// As a user without root can make it; none where the machine does not let them.
    pub fn of_user() -> Option<Self> {
        let user = "setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user --net";
        let can_be = onload_test_needs::programs(&["setpriv"]) && {
            let mut words = user.split(' ').chain(["true"]);
            let mut command = Command::new(words.next().unwrap());
            command.args(words).status().unwrap().success()
        };
        let why = "only root may make user namespaces here";
        onload_test_needs::on_this_machine(can_be, why)
            .then(|| Child::from_command(&format!("{user} sleep 1000")))
    }

    fn from_command(command: &str) -> Self {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let command = command.args(words);
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        let child = Child(process);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        while std::fs::read_link(child.path()).unwrap() == own {
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid()).into()
    }

    pub fn ip(&self, words: &str) {
        let pid = self.pid().to_string();
        let mut command = Command::new("nsenter");
        let command = command.args(["-t", &pid, "-n", IP]);
        let status = command.args(words.split(' ')).status().unwrap();
        assert!(status.success(), "ip {words}");
    }

    /// Runs something in a thread that is there.
    pub fn within(&self, act: impl FnOnce() + Send) {
        let namespace = std::fs::File::open(self.path()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), network).unwrap();
                act();
            });
        });
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
