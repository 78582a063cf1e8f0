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
    ///     nic ADDRESS NAME Gbit/s GT/s x LANES V3=UUID
    ///     dma ADDRESS GT/s x LANES V3=UUID
    /// ```
    ///
    /// The node is -1 where it is not known. The link may be left out, and so may the UUID, which makes a NIC a ConnectX-8. A
    /// NIC whose rate begins with `down` is. `dma` is a Data Direct function.
    pub fn machine(&self, description: &str) -> &Tree {
        let mut above: Vec<&str> = Vec::new();
        let mut node = -1;
        let mut nics = 0;
        for line in description.lines().filter(|line| !line.trim().is_empty()) {
            let depth = (line.len() - line.trim_start().len()) / 2;
            above.truncate(depth);
            let path = above.join("/");
            let mut words: Vec<&str> = line.split_whitespace().collect();
            let uuid = words.pop_if(|word| word.starts_with("V3="));
            match words[..] {
                ["bridge", address, ref link @ ..] => {
                    self.part(&path, address, ("0x060400", "1000:c030"), node, link);
                    above.push(address);
                }
                ["gpu", address, id, ref link @ ..] => {
                    self.part(&path, address, ("0x030200", id), node, link);
                }
                ["nic", address, name, rate, ref link @ ..] => {
                    let id = uuid.map_or("15b3:1021", |_| "15b3:1023");
                    let card = ("0x020700", id);
                    let function = self.part(&path, address, card, node, link);
                    let device = self.rdma(&function, name, nics);
                    nics += 1;
                    let is_down = rate.starts_with("down");
                    let state = if is_down { "1: DOWN" } else { "4: ACTIVE" };
                    let rate = format!("{} Gb/sec (4X NDR)", rate.trim_start_matches("down"));
                    let attributes = [("state", state), ("rate", &rate)];
                    self.attributes(&format!("{device}/ports/1"), &attributes);
                }
                ["dma", address, ref link @ ..] => {
                    let dma = ("0x080100", "15b3:2100");
                    let function = self.part(&path, address, dma, node, link);
                    self.link(&format!("{function}/driver"), "/sys/bus/pci/drivers/mlx5_ib");
                }
                [root, number] => {
                    node = number.parse().unwrap();
                    above.push(root);
                }
                _ => panic!("{line}"),
            }
            if let Some(uuid) = uuid {
                self.vpd(words[1], &uuid[3..]);
            }
        }
        self
    }

    /// Gives a function vital product data with that UUID, and a serial number.
    pub fn vpd(&self, address: &str, uuid: &str) -> &Tree {
        let fields = [("PN", "900-9X81E-00NB-ST0"), ("SN", "MT2513600TWY"), ("V3", uuid)].map(
            |(keyword, value)| {
                let length = [u8::try_from(value.len()).unwrap()];
                [keyword.as_bytes(), &length, value.as_bytes()].concat()
            },
        );
        let large = |tag: u8, data: &[u8]| {
            let length = u16::try_from(data.len()).unwrap().to_le_bytes();
            [&[tag], &length[..], data].concat()
        };
        let vpd = [large(0x82, b"a network card"), large(0x90, &fields.concat()), vec![0x78]];
        self.file(&format!("/sys/bus/pci/devices/{address}/vpd"), vpd.concat())
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
        let function = Pci { class, numa_node, ..Pci::network(address, id, "") };
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
