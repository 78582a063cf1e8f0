//! Machines with GPUs and NICs, from a description of their PCIe tree.

use crate::sysfs::Pci;
use crate::tree::Tree;

impl Tree {
    /// Puts a PCIe tree into a host: a line each, two spaces deeper than what it is below.
    ///
    /// ```text
    /// pci0000:10 NODE
    ///   bridge ADDRESS GT/s x LANES
    ///     gpu ADDRESS ID GT/s x LANES
    ///     nic ADDRESS NAME Gbit/s GT/s x LANES
    /// ```
    ///
    /// The node is -1 where it is not known, and the link may be left out. A NIC whose rate begins with `down` is.
    pub fn machine(&self, description: &str) -> &Tree {
        let mut above: Vec<&str> = Vec::new();
        let mut node = -1;
        let mut nics = 0;
        for line in description.lines().filter(|line| !line.trim().is_empty()) {
            let depth = (line.len() - line.trim_start().len()) / 2;
            above.truncate(depth);
            let path = above.join("/");
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["bridge", address, ref link @ ..] => {
                    self.part(&path, address, ("0x060400", "1000:c030"), node, link);
                    above.push(address);
                }
                ["gpu", address, id, ref link @ ..] => {
                    self.part(&path, address, ("0x030200", id), node, link);
                }
                ["nic", address, name, rate, ref link @ ..] => {
                    let card = ("0x020700", "15b3:1021");
                    let function = self.part(&path, address, card, node, link);
                    let device = self.rdma(&function, name, nics);
                    nics += 1;
                    let is_down = rate.starts_with("down");
                    let state = if is_down { "1: DOWN" } else { "4: ACTIVE" };
                    let rate = format!("{} Gb/sec (4X NDR)", rate.trim_start_matches("down"));
                    let attributes = [("state", state), ("rate", &rate)];
                    self.attributes(&format!("{device}/ports/1"), &attributes);
                }
                [root, number] => {
                    node = number.parse().unwrap();
                    above.push(root);
                }
                _ => panic!("{line}"),
            }
        }
        self
    }

    /// A function or bridge with its link; its directory.
    fn part(
        &self,
        above: &str,
        address: &str,
        (class, id): (&str, &str),
        numa_node: i32,
        link: &[&str],
    ) -> String {
        let function = Pci {
            class,
            numa_node,
            ..Pci::network(address, id, "")
        };
        let directory = self.pci_below(above, function);
        if let [speed, "x", width] = link {
            let speed = format!("{speed} GT/s PCIe");
            for which in ["current", "max"] {
                self.attribute(&format!("{directory}/{which}_link_speed"), &speed);
                self.attribute(&format!("{directory}/{which}_link_width"), width);
            }
        }
        directory
    }
}
