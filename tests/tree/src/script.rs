//! Hosts that are described line by line, as in `tests/cases`.

use std::fs;

use crate::elf::SharedLibrary;
use crate::sample::sources;
use crate::sysfs::Pci;
use crate::tree::Tree;
use crate::{CHECKSUM, MULTIARCH};

/// Splits a script into commands. The lines of a command's text follow it and begin with `|`.
pub fn split_commands(script: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for line in script.lines() {
        match commands.last_mut().filter(|_| line.starts_with('|')) {
            Some(command) => *command += &format!("\n{line}"),
            None => commands.push(line.to_owned()),
        }
    }
    commands
}

impl Tree {
    /// One of the hosts in `tests/cases/hosts`.
    pub fn described(name: &str) -> Tree {
        let tree = Tree::new();
        tree.script(name);
        tree
    }

    /// Applies changes: in each line a method of [`Tree`] with its arguments, or the name of a file in `tests/cases/hosts`
    /// with such lines. The lines of a file's text follow and begin with `|`.
    pub fn script(&self, script: &str) -> &Tree {
        for command in split_commands(script).iter().filter(|command| !command.starts_with('#')) {
            let (line, lines) = command.split_once('\n').unwrap_or((command, ""));
            let mut text = String::new();
            for line in lines.lines() {
                text += line.trim_start_matches('|').strip_prefix(' ').unwrap_or_default();
                text.push('\n');
            }
            if let [_, _, rest] = line.splitn(3, ' ').collect::<Vec<_>>()[..] {
                text += &rest.replace("\\n", "\n").replace("\\0", "\0").replace("\\t", "\t");
            }
            self.change(&line.split(' ').collect::<Vec<_>>(), &text);
        }
        self
    }

    fn change(&self, words: &[&str], text: &str) {
        let number = |word: &str| word.parse::<u32>().unwrap();
        match *words {
            ["acs", address, control, ref others @ ..] => self.acs(address, control, others),
            ["attribute", path, ..] => _ = self.attribute(path, text),
            ["auxiliary", function, name, driver, ref enable @ ..] => {
                self.auxiliary(function, name, driver.trim_matches('-'), enable.first().copied());
            }
            ["bind", function, driver] => _ = self.bind(function, driver),
            ["boot", id] => _ = self.boot(id),
            ["character", class, parent, name, owner, minor] => {
                self.character(class, parent, name, owner, number(minor));
            }
            ["chmod", path, mode] => _ = self.chmod(path, u32::from_str_radix(mode, 8).unwrap()),
            ["class_device", class, parent, name] => {
                self.class_device(class, parent, name, &[]);
            }
            ["directory", path] => _ = self.directory(path),
            ["driver"] => _ = self.driver(CHECKSUM),
            ["file", path, ..] => _ = self.file(path, text),
            ["group", function, group] => _ = self.group(function, number(group)),
            ["group_node", group] => _ = self.group_node(number(group)),
            ["hook"] => _ = self.hook(),
            ["hugepages", size, ref nodes @ ..] => {
                let of_node = |node: &&str| {
                    let [node, total, free] = *node.split('/').map(number).collect::<Vec<_>>()
                    else {
                        panic!("{node}")
                    };
                    (node, total.into(), free.into())
                };
                self.hugepages(
                    size.parse().unwrap(),
                    &nodes.iter().map(of_node).collect::<Vec<_>>(),
                );
            }
            ["interface", function, name] => _ = self.interface(function, name),
            ["iommufd"] => _ = self.iommufd(),
            ["libraries", directory] => _ = self.libraries(directory),
            ["link", path, target] => _ = self.link(path, target),
            ["machine"] => _ = self.machine(text),
            ["node", path, major, minor] => _ = self.node(path, number(major), number(minor)),
            ["onload"] => {
                self.driver(CHECKSUM).libraries(MULTIARCH).tools("").hook();
                self.hugepages(2048, &[(0, 64, 64)]);
            }
            ["other_checksum", path] => {
                let mut content = fs::read(self.path(path)).unwrap();
                let mut windows = content.windows(CHECKSUM.len());
                let at = windows.position(|window| window == CHECKSUM.as_bytes()).unwrap();
                content[at] ^= 1;
                self.file(path, content);
            }
            ["pci", address, id, driver, ref more @ ..] => {
                let bus = address.rsplit_once(':').unwrap().0;
                self.function_below(&format!("pci{bus}"), address, id, driver, more);
            }
            ["pci_below", above, address, id, driver, ref more @ ..] => {
                self.function_below(above, address, id, driver, more);
            }
            ["pps", parent, index, source] => _ = self.pps(parent, number(index), source),
            ["process", pid, start] => _ = self.process(number(pid), start.parse().unwrap()),
            ["program", path, ..] => _ = self.program(path, text),
            ["ptp", parent, index] => _ = self.ptp(parent, number(index)),
            ["rdma", parent, name, index] => _ = self.rdma(parent, name, number(index)),
            ["rdma_cm"] => _ = self.rdma_cm(),
            ["rdma_libraries"] => self.rdma_libraries(),
            ["rdma_port", device, port, layer] => _ = self.rdma_port(device, number(port), layer),
            ["remove", path] => _ = self.remove(path),
            ["sample", name] => self.take_sample(name),
            ["tools", ref prefix @ ..] => _ = self.tools(&prefix.concat()),
            ["vfio"] => _ = self.vfio(),
            ["vfio_device", function, index] => _ = self.vfio_device(function, number(index)),
            ["virtual_function", parent, index, child] => {
                self.virtual_function(parent, number(index), child);
            }
            ["verbs_provider", driver, min, max] => {
                let (file, abi) = (format!("lib{driver}-rdmav34.so"), [min, max].map(number));
                let provider = SharedLibrary::new(&file).record(driver, abi[0], abi[1]);
                self.file(&format!("{MULTIARCH}/libibverbs/{file}"), provider.bytes());
            }
            ["vpd", address, uuid] => _ = self.vpd(address, uuid),
            ["without_node", path] => _ = self.without_node(path),
            ["zeros", path, length] => _ = self.file(path, vec![0; length.parse().unwrap()]),
            [host] => {
                let path = sources().join("tests/cases/hosts").join(host);
                self.script(&fs::read_to_string(path).unwrap());
            }
            _ => panic!("{words:?}"),
        }
    }

    fn function_below(&self, above: &str, address: &str, id: &str, driver: &str, more: &[&str]) {
        let driver = driver.trim_matches('-');
        let function = Pci::network(address, id, driver);
        self.pci_below(
            above,
            match more {
                [class, node] => Pci { class, numa_node: node.parse().unwrap(), ..function },
                _ => function,
            },
        );
    }

    /// Gives a function a configuration space with this ACS control (hexadecimal), and with these other extended capabilities,
    /// which are enabled.
    fn acs(&self, address: &str, control: &str, others: &[&str]) {
        let hexadecimal = |word: &str| u16::from_str_radix(word, 16).unwrap();
        let mut config = [0; 4096];
        for (index, id) in others.iter().map(|id| hexadecimal(id)).chain([0x0d]).enumerate() {
            let at = 0x100 + index * 16;
            let next = if index < others.len() { at + 16 } else { 0 };
            let header = u32::from(id) | 1 << 16 | u32::try_from(next).unwrap() << 20;
            config[at..at + 4].copy_from_slice(&header.to_le_bytes());
            // PCI_ATS_CTRL_ENABLE
            config[at + 7] = 0x80;
        }
        let at = 0x106 + others.len() * 16;
        config[at..at + 2].copy_from_slice(&hexadecimal(control).to_le_bytes());
        self.file(&format!("/sys/bus/pci/devices/{address}/config"), config);
    }

    /// libibverbs, librdmacm, and the providers of mlx4, mlx5 and rxe.
    fn rdma_libraries(&self) {
        let library = |name: &str, library: &SharedLibrary| {
            self.file(&format!("{MULTIARCH}/{name}"), library.bytes());
        };
        let private = ["verbs_register_driver"];
        let verbs = SharedLibrary::new("libibverbs.so.1")
            .defines("IBVERBS_PRIVATE_34", &private)
            .says("/etc/libibverbs.d")
            .says(&format!("{MULTIARCH}/libibverbs/lib%s-rdmav34.so"));
        library("libibverbs.so.1", &verbs);
        library("librdmacm.so.1", &SharedLibrary::new("librdmacm.so.1"));
        for name in ["mlx4", "mlx5", "rxe"] {
            let file = format!("lib{name}-rdmav34.so");
            let provider =
                SharedLibrary::new(&file).needs("libibverbs.so.1", "IBVERBS_PRIVATE_34", &private);
            library(&format!("libibverbs/{file}"), &provider);
            self.attribute(&format!("/etc/libibverbs.d/{name}.driver"), &format!("driver {name}"));
        }
    }
}
