//! Onload on a host: its modules, libraries and tools.

use crate::sample::captured;
use crate::tree::Tree;

/// The interface between the stand-in of libonload.so and the driver.
pub const CHECKSUM: &str = "94e6b7eccf68029c8c29f301197d3e9a";
/// The version that the stand-in tells.
const VERSION: &str = "ef17681d 2026-07-22 master";
/// Where Debian has libraries.
pub const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu";

impl Tree {
    /// Onload's modules, nodes and version files, with the interface of that checksum.
    pub fn driver(&self, checksum: &str) -> &Tree {
        let version =
            format!("onload_product: Onload\nonload_version: {VERSION}\nuk_intf_ver: {checksum}\n");
        self.file("/proc/driver/onload/version", version);
        self.attribute("/sys/module/onload/version", VERSION);
        self.directory("/sys/module/sfc_char").file("/sys/module/sfc_resource/afxdp/register", "");
        for (name, major) in [("onload", 243), ("onload_epoll", 242), ("sfc_char", 244)] {
            self.attribute(&format!("/sys/class/{name}/{name}/dev"), &format!("{major}:0"));
            self.node(&format!("/dev/{name}"), major, 0);
        }
        self
    }

    /// Onload's and TCPDirect's libraries in that directory, with the links between them.
    pub fn libraries(&self, directory: &str) -> &Tree {
        self.copy(&captured().join(MULTIARCH.trim_start_matches('/')), directory)
    }

    /// Their tools and profiles below that prefix, which is empty for /.
    pub fn tools(&self, prefix: &str) -> &Tree {
        self.copy(&captured().join("usr/bin"), &format!("{prefix}/usr/bin"));
        let profiles = "usr/libexec/onload/profiles";
        self.copy(&captured().join(profiles), &format!("{prefix}/{profiles}"))
    }

    /// A host with Onload and TCPDirect, and no interface.
    pub fn with_onload() -> Tree {
        let tree = Tree::new();
        tree.driver(CHECKSUM).libraries(MULTIARCH).tools("").hook();
        tree.hugepages(2048, &[(0, 64, 64)]);
        tree
    }

    pub fn hook(&self) -> &Tree {
        self.program("/usr/bin/onload-hook", "\x7fELF")
    }
}
