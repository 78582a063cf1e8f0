//! Decisions about made-up images and hosts. Each library is a small ELF file with the symbols that matter.

use onload_sys::fs::container_root::ContainerRoot;
use onload_sys::fs::trust::TrustedOwners;
use onload_test_tree::elf::SharedLibrary;
use onload_test_tree::{MULTIARCH, Tree, case};

use super::*;

const CONFIG: &str = "/etc/libibverbs.d";
const PROGRAM: &str = "/usr/bin/ibv_devinfo";

struct Systems {
    image: Tree,
    host: Tree,
}

impl Systems {
    /// An image with libibverbs alone, and a host with a provider for it.
    fn new() -> Systems {
        let systems = Systems { image: Tree::new(), host: Tree::new() };
        for command in ["glibc GLIBC_2.34", "verbs 34 old"] {
            change(&systems.image, command);
        }
        for command in ["glibc GLIBC_2.34", "verbs 34 new", "provider rxe 34 old"] {
            change(&systems.host, command);
        }
        systems
    }

    fn host_files(&self) -> TrustedTree {
        trusted(&self.host)
    }
}

fn trusted(tree: &Tree) -> TrustedTree {
    let owner = rustix::process::geteuid().as_raw();
    TrustedTree::for_tree(tree.root(), TrustedOwners::from_users(&[owner])).unwrap()
}

fn symbols(word: &str) -> &'static [&'static str] {
    match word {
        "old" => &["ibv_cmd_create_cq"],
        "new" => &["ibv_cmd_create_cq", "ibv_cmd_create_cq_ex2"],
        _ => panic!("{word}"),
    }
}

fn plain_provider(name: &str, abi: &str, private: &str) -> SharedLibrary {
    SharedLibrary::new(&format!("lib{name}-rdmav{abi}.so"))
        .needs("libibverbs.so.1", &format!("IBVERBS_PRIVATE_{abi}"), symbols(private))
        .needs("libc.so.6", "GLIBC_2.34", &["malloc"])
}

/// A library with such settings. A relative path is below the directory of libraries.
fn place(tree: &Tree, path: &str, settings: &[&str]) {
    let mut library = SharedLibrary::new(path.rsplit('/').next().unwrap());
    for setting in settings {
        let (key, value) = setting.split_once('=').unwrap();
        let words: Vec<&str> = value.split(',').collect();
        library = match (key, &words[..]) {
            ("soname", _) => SharedLibrary { soname: value.to_owned(), ..library },
            ("provider", [name, abi, private]) => plain_provider(name, abi, private),
            ("needs", [name, version, symbols @ ..]) => library.needs(name, version, symbols),
            ("defines", [version, symbols @ ..]) => library.defines(version, symbols),
            ("says", _) => library.says(value),
            ("record", [driver, min, max]) => {
                library.record(driver, min.parse().unwrap(), max.parse().unwrap())
            }
            _ => panic!("{setting}"),
        };
    }
    let directory = if path.starts_with('/') { String::new() } else { format!("{MULTIARCH}/") };
    tree.file(&format!("{directory}{path}"), library.bytes());
}

fn change(tree: &Tree, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let driver = |name: &str| {
        tree.file(&format!("{CONFIG}/{name}.driver"), format!("driver {name}\n"));
    };
    match words[..] {
        ["glibc", version] => {
            place(tree, "libc.so.6", &[&format!("defines={version},malloc")]);
            tree.directory(CONFIG);
        }
        // libibverbs of a private ABI.
        ["verbs", abi, private] => {
            let library = SharedLibrary::new("libibverbs.so.1")
                .needs("libc.so.6", "", &["malloc"])
                .defines("IBVERBS_1.1", &["ibv_open_device"])
                .defines(&format!("IBVERBS_PRIVATE_{abi}"), symbols(private))
                .says(CONFIG)
                .says(&format!("{MULTIARCH}/libibverbs/lib%s-rdmav{abi}.so"));
            tree.file(&format!("{MULTIARCH}/libibverbs.so.1"), library.bytes());
        }
        ["provider", name, abi, private] => {
            let settings = format!("provider={name},{abi},{private}");
            place(tree, &format!("libibverbs/lib{name}-rdmav{abi}.so"), &[&settings]);
            driver(name);
        }
        // As mlx5 is: a library with a public name, and a link to it among the providers.
        ["shared-provider", abi, private, public] => {
            let provider = format!("provider=mlx5,{abi},{private}");
            let public = format!("defines={public},mlx5dv_open");
            place(tree, "libmlx5.so.1.24", &[&provider, "soname=libmlx5.so.1", &public]);
            tree.link(&format!("{MULTIARCH}/libmlx5.so.1"), "libmlx5.so.1.24");
            let name = format!("{MULTIARCH}/libibverbs/libmlx5-rdmav{abi}.so");
            tree.directory(&format!("{MULTIARCH}/libibverbs")).link(&name, "../libmlx5.so.1.24");
            driver("mlx5");
        }
        ["library", path, ref settings @ ..] => place(tree, path, settings),
        _ => drop(tree.script(command)),
    }
}

/// A driver's device; a kernel ABI other than 1 follows behind `=`.
fn device(word: &str) -> VerbsDevice {
    let (driver, abi) = word.split_once('=').unwrap_or((word, "1"));
    let name = format!("{driver}_0");
    VerbsDevice { name, driver: driver.to_owned(), kernel_abi: abi.parse().ok() }
}

/// Decides for devices. Other words: `read-only`, `path=` for LD_LIBRARY_PATH, `covers=` for a mount, `program` for a container
/// that starts [`PROGRAM`], `search-path=` for that one's own.
fn decide(systems: &Systems, words: &[&str]) -> String {
    let root = ContainerRoot::open(systems.image.root()).unwrap();
    let (mut read_only, mut library_path, mut search_path) = (false, None, None);
    let (mut covers, mut starts_program, mut devices) = (None, false, Vec::new());
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("read-only", _) => read_only = true,
            ("program", _) => starts_program = true,
            ("path", path) => library_path = Some(path),
            ("search-path", path) => search_path = Some(path.to_owned()),
            ("covers", path) => covers = Some(path.to_owned()),
            _ => devices.push(device(word)),
        }
    }
    let program = || {
        let path = starts_program.then(|| PathBuf::from(PROGRAM))?;
        let (file, size) = root.open_file(&path).ok()?;
        let mut summary = onload_sys::elf::summarize_file(&file, size).ok()?;
        summary.runpath.clone_from(&search_path);
        Some((path, summary))
    };
    let covered = |path: &Path| covers.as_ref().is_some_and(|own| path.starts_with(own));
    let image =
        ImageFiles { root: &root, read_only, library_path, program: &program, covered: &covered };
    describe(&decide_libraries(&image, &systems.host_files(), &devices))
}

fn describe(report: &LibraryReport) -> String {
    let mut out = match &report.decision {
        LibraryDecision::Fits => "fits\n".to_owned(),
        LibraryDecision::Unfit(reason) => format!("unfit: {reason}\n"),
        LibraryDecision::Mount { method, files, unserved } => {
            let short = |path: &Path| path.display().to_string().replace(MULTIARCH, "...");
            let mut out = format!("{method:?}\n");
            for (target, source) in files {
                let (source, target) = (short(source), short(target));
                let behind = if source == target { String::new() } else { format!(" {source}") };
                out += &format!("  {target}{behind}\n");
            }
            out.extend(unserved.iter().map(|reason| format!("unserved: {reason}\n")));
            out
        }
    };
    out.extend(report.notes.iter().map(|note| format!("note: {note}\n")));
    out
}

fn misfit(tree: &Tree, words: &[&str]) -> String {
    let devices: Vec<VerbsDevice> = words.iter().map(|word| device(word)).collect();
    let misfit = find_misfit(&trusted(tree), "it", None, &devices).unwrap();
    let devices = misfit.map(|misfit| misfit.devices.join(", "));
    devices.unwrap_or_else(|| "none".to_owned()) + "\n"
}

fn run(systems: &mut Systems, script: &str) -> String {
    let mut out = String::new();
    for command in script.lines() {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["#", ..] => {}
            ["new"] => *systems = Systems::new(),
            ["image", "empty"] => systems.image = Tree::new(),
            ["host", "empty"] => systems.host = Tree::new(),
            ["image", word, ..] => {
                if word == "glibc" {
                    systems.image = Tree::new();
                }
                change(&systems.image, &command["image ".len()..]);
            }
            ["host", word, ..] => {
                if word == "glibc" {
                    systems.host = Tree::new();
                }
                change(&systems.host, &command["host ".len()..]);
            }
            ["decide", ref words @ ..] => out += &decide(systems, words),
            ["misfit", "image", ref words @ ..] => out += &misfit(&systems.image, words),
            ["misfit", "host", ref words @ ..] => out += &misfit(&systems.host, words),
            _ => panic!("{command}"),
        }
    }
    out
}

#[test]
fn cases_of_libraries_print_what_their_files_say() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/rdma-libraries"), |_| {
        let mut systems = Systems::new();
        Some(move |script: &str| run(&mut systems, script))
    });
}

#[test]
fn a_fifo_in_place_of_a_library_is_refused_and_one_of_a_terabyte_is_read_by_its_tables() {
    let systems = Systems::new();
    let directory = format!("{MULTIARCH}/libibverbs");
    systems.image.directory(&directory);
    let provider = systems.image.path(&format!("{directory}/librxe-rdmav34.so"));
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &provider, fifo, mode, 0).unwrap();
    let refusal = decide(&systems, &["rxe"]);
    assert!(refusal.contains("is not a regular file"), "{refusal}");
    std::fs::remove_file(provider).unwrap();
    let verbs = systems.image.path(&format!("{MULTIARCH}/libibverbs.so.1"));
    std::fs::File::options().write(true).open(verbs).unwrap().set_len(1 << 40).unwrap();
    assert!(decide(&systems, &["rxe"]).starts_with("Add\n"));
}
