//! Judgements of made-up images and hosts. Each library is a small ELF file with the symbols that matter.

use onload_sys::fs::trust::TrustedOwners;
use onload_test_tree::elf::SharedLibrary;
use onload_test_tree::{MULTIARCH, Tree};

use super::*;
use onload_sys::fs::container_root::ContainerRoot;

const CONFIG: &str = "/etc/libibverbs.d";

/// An image or a host with glibc.
fn system(glibc: &str) -> Tree {
    let tree = Tree::new();
    let libc = SharedLibrary::new("libc.so.6").defines(glibc, &["malloc"]);
    place(&tree, "libc.so.6", &libc);
    tree.directory(CONFIG);
    tree
}

fn place(tree: &Tree, name: &str, library: &SharedLibrary) {
    tree.file(&format!("{MULTIARCH}/{name}"), library.bytes());
}

/// libibverbs of a private ABI, whose private symbols are given.
fn verbs(tree: &Tree, abi: u32, private: &[&str]) {
    let library = SharedLibrary::new("libibverbs.so.1")
        .needs("libc.so.6", "", &["malloc"])
        .defines("IBVERBS_1.1", &["ibv_open_device"])
        .defines(&format!("IBVERBS_PRIVATE_{abi}"), private)
        .says(CONFIG)
        .says(&format!("{MULTIARCH}/libibverbs/lib%s-rdmav{abi}.so"));
    place(tree, "libibverbs.so.1", &library);
}

/// A provider of a private ABI, with its configuration.
fn provider(tree: &Tree, name: &str, abi: u32, private: &[&str]) {
    let library = plain_provider(name, abi, private);
    place(tree, &file(name, abi), &library);
    driver(tree, name);
}

fn plain_provider(name: &str, abi: u32, private: &[&str]) -> SharedLibrary {
    SharedLibrary::new(&format!("lib{name}-rdmav{abi}.so"))
        .needs("libibverbs.so.1", &format!("IBVERBS_PRIVATE_{abi}"), private)
        .needs("libc.so.6", "GLIBC_2.34", &["malloc"])
}

fn file(name: &str, abi: u32) -> String {
    format!("libibverbs/lib{name}-rdmav{abi}.so")
}

fn driver(tree: &Tree, name: &str) {
    tree.file(&format!("{CONFIG}/{name}.driver"), format!("driver {name}\n"));
}

/// A shared provider, as mlx5 is: a library with a public name, and a link to it among the providers.
fn shared_provider(tree: &Tree, abi: u32, private: &[&str], public: &str) {
    let library =
        SharedLibrary { soname: "libmlx5.so.1".to_owned(), ..plain_provider("mlx5", abi, private) };
    place(tree, "libmlx5.so.1.24", &library.defines(public, &["mlx5dv_open"]));
    tree.link(&format!("{MULTIARCH}/libmlx5.so.1"), "libmlx5.so.1.24");
    tree.directory(&format!("{MULTIARCH}/libibverbs"));
    tree.link(&format!("{MULTIARCH}/{}", file("mlx5", abi)), "../libmlx5.so.1.24");
    driver(tree, "mlx5");
}

fn device(driver: &str, kernel_abi: u32) -> VerbsDevice {
    VerbsDevice {
        name: format!("{driver}_0"),
        driver: driver.to_owned(),
        kernel_abi: Some(kernel_abi),
    }
}

fn judged(
    image: &Tree,
    host: &Tree,
    driver: &str,
    path: Option<&str>,
    read_only: bool,
) -> LibraryReport {
    judged_for(image, host, &[device(driver, 1)], path, read_only)
}

fn judged_for(
    image: &Tree,
    host: &Tree,
    devices: &[VerbsDevice],
    path: Option<&str>,
    read_only: bool,
) -> LibraryReport {
    let root = ContainerRoot::open(image.root()).unwrap();
    let image = ImageFiles {
        root: &root,
        read_only,
        library_path: path,
        program: &|| None,
        covered: &|_| false,
    };
    let owner = rustix::process::geteuid().as_raw();
    let host = TrustedTree::for_tree(host.root(), TrustedOwners::from_users(&[owner])).unwrap();
    decide_libraries(&image, &host, devices)
}

fn verdict_of(image: &Tree, host: &Tree, driver: &str) -> LibraryDecision {
    judged(image, host, driver, None, false).decision
}

/// The way, and what is mounted, without the directory of libraries: `source target` or only one if they are the same.
fn mounts(verdict: LibraryDecision) -> (MountMethod, Vec<String>) {
    let (way, files, unserved) = partial_mounts(verdict);
    assert_eq!(unserved, None);
    (way, files)
}

/// The same, and why some devices have none.
fn partial_mounts(verdict: LibraryDecision) -> (MountMethod, Vec<String>, Option<String>) {
    let LibraryDecision::Mount { method, files, unserved } = verdict else {
        panic!("{verdict:?}");
    };
    let short = |path: &Path| path.display().to_string().replace(&format!("{MULTIARCH}/"), "");
    let line = |file: LibraryMount| match (short(&file.source), short(&file.target)) {
        (source, target) if source == target => source,
        (source, target) => format!("{source} {target}"),
    };
    (method, files.into_iter().map(line).collect(), unserved)
}

fn reason(verdict: LibraryDecision) -> String {
    let LibraryDecision::Unfit(reason) = verdict else {
        panic!("{verdict:?}");
    };
    reason
}

const OLD: &[&str] = &["ibv_cmd_create_cq"];
const NEW: &[&str] = &["ibv_cmd_create_cq", "ibv_cmd_create_cq_ex2"];
const DRIVER_FILE: &str = "/etc/libibverbs.d/rxe.driver";

/// An image with libibverbs alone, and a host with a provider for it.
fn without_provider() -> (Tree, Tree) {
    let (image, host) = (system("GLIBC_2.34"), system("GLIBC_2.34"));
    verbs(&image, 34, OLD);
    verbs(&host, 34, NEW);
    provider(&host, "rxe", 34, OLD);
    (image, host)
}

#[test]
fn an_image_with_its_own_provider_fits_whatever_the_host_has() {
    let (image, host) = (system("GLIBC_2.34"), Tree::new());
    verbs(&image, 34, OLD);
    provider(&image, "rxe", 34, OLD);
    assert_eq!(verdict_of(&image, &host, "rdma_rxe"), LibraryDecision::Fits);
}

#[test]
fn a_missing_provider_is_added_under_the_image_s_name() {
    let (image, host) = without_provider();
    let (way, files) = mounts(verdict_of(&image, &host, "rxe"));
    assert_eq!(way, MountMethod::Add);
    assert_eq!(files, [DRIVER_FILE, "libibverbs/librxe-rdmav34.so"]);
}

#[test]
fn a_shared_provider_gets_its_public_name_too() {
    let (image, host) = without_provider();
    shared_provider(&host, 34, OLD, "MLX5_1.24");
    let (way, files) = mounts(verdict_of(&image, &host, "mlx5_core"));
    assert_eq!(way, MountMethod::Add);
    let expected = [
        "/etc/libibverbs.d/mlx5.driver",
        "libmlx5.so.1.24 libibverbs/libmlx5-rdmav34.so",
        "libmlx5.so.1.24 libmlx5.so.1",
    ];
    assert_eq!(files, expected);
    // One that the image has is not covered alone.
    let public = SharedLibrary::new("libmlx5.so.1").defines("MLX5_1.24", &["mlx5dv_init_obj"]);
    place(&image, "libmlx5.so.1", &public);
    assert_eq!(mounts(verdict_of(&image, &host, "mlx5_core")).0, MountMethod::Replace);
}

#[test]
fn a_provider_of_the_host_that_only_its_loader_finds_is_mounted_too() {
    let (image, host) = without_provider();
    let library = plain_provider("bnxt_re", 34, OLD);
    host.file("/usr/local/lib/libbnxt_re-rdmav34.so", library.bytes());
    host.link(
        &format!("{MULTIARCH}/libbnxt_re-rdmav34.so"),
        "/usr/local/lib/libbnxt_re-rdmav34.so",
    );
    driver(&host, "bnxt_re");
    let expected = [
        "/etc/libibverbs.d/bnxt_re.driver",
        "/usr/local/lib/libbnxt_re-rdmav34.so libibverbs/libbnxt_re-rdmav34.so",
    ];
    let (way, files) = mounts(verdict_of(&image, &host, "bnxt_en"));
    assert_eq!((way, &*files), (MountMethod::Add, &expected.map(str::to_owned)[..]));
    let (way, files) = mounts(verdict_of(&system("GLIBC_2.34"), &host, "bnxt_en"));
    assert_eq!(way, MountMethod::Replace);
    assert!(files.starts_with(&expected.map(str::to_owned)), "{files:?}");
}

#[test]
fn a_provider_newer_by_one_symbol_inside_its_private_abi_is_not_added() {
    let (image, host) = without_provider();
    shared_provider(&host, 34, NEW, "MLX5_1.24");
    let (way, files) = mounts(verdict_of(&image, &host, "mlx5"));
    assert_eq!(way, MountMethod::Replace);
    assert!(files.contains(&"libibverbs.so.1".to_owned()), "{files:?}");
    // The host's libibverbs lacks a public version that the image's has.
    let verbs = SharedLibrary::new("libibverbs.so.1")
        .defines("IBVERBS_9.9", &["ibv_new"])
        .defines("IBVERBS_PRIVATE_34", OLD)
        .says(&format!("{MULTIARCH}/libibverbs/lib%s-rdmav34.so"));
    place(&image, "libibverbs.so.1", &verbs);
    let reason = reason(verdict_of(&image, &host, "mlx5"));
    assert!(reason.contains("needs ibv_cmd_create_cq_ex2@IBVERBS_PRIVATE_34"), "{reason}");
    assert!(reason.contains("does not define IBVERBS_9.9"), "{reason}");
}

#[test]
fn a_newer_private_abi_of_the_host_replaces_the_whole_set() {
    let (image, host) = (system("GLIBC_2.34"), system("GLIBC_2.34"));
    verbs(&image, 34, OLD);
    shared_provider(&image, 34, OLD, "MLX5_1.24");
    driver(&image, "rxe");
    let rdmacm = SharedLibrary::new("librdmacm.so.1").defines("RDMACM_1.0", &["rdma_listen"]);
    place(&image, "librdmacm.so.1", &rdmacm);
    verbs(&host, 57, NEW);
    provider(&host, "rxe", 57, NEW);
    let without = reason(verdict_of(&image, &host, "rxe"));
    assert!(without.contains("and the host has no librdmacm.so.1"), "{without}");
    assert!(without.contains("needs IBVERBS_PRIVATE_57 of libibverbs.so.1"), "{without}");
    assert!(without.contains("has IBVERBS_PRIVATE_34"), "{without}");
    place(&host, "librdmacm.so.1", &rdmacm.defines("RDMACM_1.1", &["rdma_new"]));
    shared_provider(&host, 57, NEW, "MLX5_1.24");
    let (way, files) = mounts(verdict_of(&image, &host, "rxe"));
    assert_eq!(way, MountMethod::Replace);
    let expected =
        ["libibverbs/librxe-rdmav57.so", "libibverbs.so.1", "libmlx5.so.1.24", "librdmacm.so.1"];
    assert_eq!(files, expected);
}

#[test]
fn an_image_without_any_rdma_package_gets_the_whole_set() {
    let (_, host) = without_provider();
    let image = system("GLIBC_2.34");
    let (way, files) = mounts(verdict_of(&image, &host, "rxe"));
    assert_eq!(way, MountMethod::Replace);
    assert_eq!(files, [DRIVER_FILE, "libibverbs/librxe-rdmav34.so", "libibverbs.so.1"]);
}

/// What an image without libibverbs is given whose container starts this program.
fn verdict_for_program(
    host: &Tree,
    program: &SharedLibrary,
    search_path: Option<&str>,
) -> LibraryDecision {
    let image = system("GLIBC_2.34");
    image.file("/usr/bin/ibv_devinfo", program.bytes());
    let root = ContainerRoot::open(image.root()).unwrap();
    let read = || {
        let path = PathBuf::from("/usr/bin/ibv_devinfo");
        let (file, size) = root.open_file(&path).ok()?;
        let mut summary = onload_sys::elf::summarize_file(&file, size).ok()?;
        summary.runpath = search_path.map(str::to_owned);
        Some((path, summary))
    };
    let image = ImageFiles {
        root: &root,
        read_only: false,
        library_path: None,
        program: &read,
        covered: &|_| false,
    };
    let owner = rustix::process::geteuid().as_raw();
    let host = TrustedTree::for_tree(host.root(), TrustedOwners::from_users(&[owner])).unwrap();
    decide_libraries(&image, &host, &[device("rxe", 1)]).decision
}

#[test]
fn a_program_that_needs_another_libibverbs_than_the_host_s_gets_nothing() {
    let (_, host) = without_provider();
    let program = |version: &str| {
        let program = SharedLibrary::new("").needs("libibverbs.so.1", version, &["ibv_cmd_x"]);
        program.needs("libc.so.6", "GLIBC_9.9", &["malloc"])
    };
    let newer = verdict_for_program(&host, &program("IBVERBS_PRIVATE_65"), None);
    let why = format!(
        "the program \"/usr/bin/ibv_devinfo\" needs IBVERBS_PRIVATE_65 of libibverbs.so.1, and \"{MULTIARCH}/libibverbs.so.1\" has IBVERBS_PRIVATE_34; use an image"
    );
    let newer = reason(newer);
    assert!(newer.contains(&why), "{newer}");
    // What it needs of other libraries is its image's own affair, and so is where it looks for its own.
    for (version, search_path) in
        [("IBVERBS_PRIVATE_34", None), ("IBVERBS_PRIVATE_65", Some("/opt/lib"))]
    {
        let verdict = verdict_for_program(&host, &program(version), search_path);
        assert_eq!(mounts(verdict).0, MountMethod::Replace);
    }
}

#[test]
fn a_program_that_needs_librdmacm_gets_nothing_where_neither_side_has_it() {
    let (_, host) = without_provider();
    let rping = SharedLibrary::new("").needs("librdmacm.so.1", "RDMACM_1.0", &["rdma_listen"]);
    let without = reason(verdict_for_program(&host, &rping, None));
    let why = "needs librdmacm.so.1, which neither the image nor the host has";
    assert!(without.contains(why), "{without}");
    let notes = |host: &Tree| judged(&system("GLIBC_2.34"), host, "rxe", None, false).notes;
    let note = "neither the image nor the host has librdmacm.so.1: programs that need it, such as \
        rping, do not start";
    assert_eq!(notes(&host), [note]);
    let rdmacm = SharedLibrary::new("librdmacm.so.1").defines("RDMACM_1.0", &["rdma_listen"]);
    place(&host, "librdmacm.so.1", &rdmacm);
    let (way, files) = mounts(verdict_for_program(&host, &rping, None));
    assert_eq!(way, MountMethod::Replace);
    assert!(files.contains(&"librdmacm.so.1".to_owned()), "{files:?}");
    assert_eq!(notes(&host), [""; 0]);
}

#[test]
fn an_older_glibc_and_musl_get_nothing() {
    let (_, host) = without_provider();
    let old = reason(verdict_of(&system("GLIBC_2.31"), &host, "rxe"));
    assert!(old.contains("needs GLIBC_2.34 of libc.so.6"), "{old}");
    assert!(old.contains("has GLIBC_2.31"), "{old}");
    let musl = Tree::new();
    musl.file("/lib/ld-musl-x86_64.so.1", SharedLibrary::new("libc.musl-x86_64.so.1").bytes());
    let musl = reason(verdict_of(&musl, &host, "rxe"));
    assert!(musl.contains("the image has no libc.so.6"), "{musl}");
}

#[test]
fn an_image_whose_provider_does_not_serve_the_kernel_s_abi_gets_the_whole_set_or_nothing() {
    let (image, host) = without_provider();
    let old = plain_provider("rxe", 34, OLD).record("rxe", 2, 2);
    place(&image, "libibverbs/librxe-rdmav34.so", &old);
    driver(&image, "rxe");
    let (way, files) = mounts(verdict_of(&image, &host, "rxe"));
    let set = ["libibverbs/librxe-rdmav34.so", "libibverbs.so.1"].map(str::to_owned);
    assert_eq!((way, files), (MountMethod::Replace, set.to_vec()));
    let rdmacm = SharedLibrary::new("librdmacm.so.1").defines("RDMACM_1.0", &["rdma_listen"]);
    place(&image, "librdmacm.so.1", &rdmacm);
    let refusal = reason(verdict_of(&image, &host, "rxe"));
    let why = format!(
        "the image's provider \"{MULTIARCH}/libibverbs/librxe-rdmav34.so\" serves kernel ABI 2 to 2, and the driver has 1; "
    );
    assert_eq!(refusal.matches(&why).count(), 1, "{refusal}");
    assert!(refusal.contains("and the host has no librdmacm.so.1; use an image"), "{refusal}");
    // Another device's provider is added all the same.
    provider(&host, "bnxt_re", 34, OLD);
    let both = [device("rxe", 1), device("bnxt_en", 6)];
    let (way, _, unserved) = partial_mounts(judged_for(&image, &host, &both, None, false).decision);
    assert_eq!(
        (way, unserved),
        (MountMethod::Add, Some(format!("rxe_0: {}", why.trim_end_matches("; "))))
    );
    let fits = plain_provider("rxe", 34, OLD).record("rxe", 1, 2);
    place(&image, "libibverbs/librxe-rdmav34.so", &fits);
    assert_eq!(verdict_of(&image, &host, "rxe"), LibraryDecision::Fits);
}

#[test]
fn a_provider_of_the_host_that_does_not_serve_the_kernel_s_abi_is_not_mounted() {
    let (image, host) = without_provider();
    let record = |least, most| {
        let library = plain_provider("rxe", 34, OLD).record("rxe", least, most);
        place(&host, "libibverbs/librxe-rdmav34.so", &library);
    };
    record(2, 3);
    for image in [&image, &system("GLIBC_2.34")] {
        let reason = reason(verdict_of(image, &host, "rxe"));
        let why = format!(
            "the host's provider \"{MULTIARCH}/libibverbs/librxe-rdmav34.so\" serves kernel ABI 2 to 3, and the driver has 1; "
        );
        assert_eq!(reason.matches(&why).count(), 1, "{reason}");
    }
    record(1, 3);
    assert_eq!(mounts(verdict_of(&image, &host, "rxe")).0, MountMethod::Add);
}

#[test]
fn of_two_vendors_devices_one_that_cannot_be_served_keeps_nothing_from_the_other() {
    let (image, host) = without_provider();
    let both = [device("rxe", 1), device("bnxt_en", 6)];
    let decide = |image: &Tree| judged_for(image, &host, &both, None, false).decision;
    let missing = format!("{MULTIARCH}/libibverbs/libbnxt_re-rdmav34.so");
    let why = format!(
        "bnxt_en_0: the image has no provider {missing:?}; the host has no provider {missing:?}; install it there"
    );
    let rxe = "libibverbs/librxe-rdmav34.so".to_owned();
    let added = (MountMethod::Add, vec![DRIVER_FILE.to_owned(), rxe.clone()], Some(why.clone()));
    assert_eq!(partial_mounts(decide(&image)), added);
    // Where the image has no libibverbs, the host's serves those that it can.
    let (way, files, unserved) = partial_mounts(decide(&system("GLIBC_2.34")));
    let set = [DRIVER_FILE, &rxe, "libibverbs.so.1"].map(str::to_owned);
    assert_eq!((way, files), (MountMethod::Replace, set.to_vec()));
    let without = format!("bnxt_en_0: the host has no provider {missing:?}; install it there");
    assert_eq!(unserved, Some(without));
    // Where the host's set serves both, both get it.
    provider(&image, "rxe", 34, OLD);
    assert_eq!(reason(decide(&image)), why);
    provider(&host, "bnxt_re", 34, NEW);
    assert_eq!(mounts(decide(&image)).0, MountMethod::Replace);
    // One that needs more than the image has is left out alone.
    let newer = plain_provider("bnxt_re", 34, OLD).needs("libc.so.6", "GLIBC_2.99", &["malloc"]);
    place(&host, &file("bnxt_re", 34), &newer);
    let reason = reason(decide(&image));
    assert!(reason.starts_with("bnxt_en_0: the image has no provider "), "{reason}");
    assert!(reason.contains("needs GLIBC_2.99 of libc.so.6"), "{reason}");
    let (way, files, _) = partial_mounts(decide(&system("GLIBC_2.34")));
    assert_eq!((way, files), (MountMethod::Replace, set.to_vec()));
}

#[test]
fn programs_are_said_to_lack_the_devices_that_are_not_served() {
    let (image, host) = without_provider();
    let owner = rustix::process::geteuid().as_raw();
    let lacking = |tree: &Tree, devices: &[VerbsDevice]| {
        let files =
            TrustedTree::for_tree(tree.root(), TrustedOwners::from_users(&[owner])).unwrap();
        let misfit = find_misfit(&files, "it", None, devices).unwrap()?;
        Some(misfit.devices)
    };
    let (rxe, bnxt) = (device("rxe", 1), device("bnxt_en", 6));
    assert_eq!(lacking(&host, slice::from_ref(&rxe)), None);
    let both = [rxe, bnxt];
    assert_eq!(lacking(&host, &both), Some(vec!["bnxt_en_0".to_owned()]));
    let all = Some(vec!["bnxt_en_0".to_owned(), "rxe_0".to_owned()]);
    assert_eq!(lacking(&image, &both), all);
    assert_eq!(lacking(&system("GLIBC_2.34"), &both), all);
}

#[test]
fn an_empty_file_that_a_runtime_left_counts_as_missing() {
    let (image, host) = without_provider();
    let target = format!("{MULTIARCH}/libibverbs/librxe-rdmav34.so");
    image.file(&target, "").file(DRIVER_FILE, "");
    let (way, files) = mounts(verdict_of(&image, &host, "rxe"));
    assert_eq!((way, files.len()), (MountMethod::Add, 2));
    image.file(&format!("{MULTIARCH}/libibverbs.so.1"), "");
    assert_eq!(mounts(verdict_of(&image, &host, "rxe")).0, MountMethod::Replace);
}

#[test]
fn a_read_only_root_gets_what_it_has_a_place_for() {
    let (image, host) = without_provider();
    let reason = reason(judged(&image, &host, "rxe", None, true).decision);
    assert!(reason.contains("read-only and has no"), "{reason}");
    image.file(DRIVER_FILE, "");
    image.file(&format!("{MULTIARCH}/libibverbs/librxe-rdmav34.so"), "");
    assert_eq!(mounts(judged(&image, &host, "rxe", None, true).decision).0, MountMethod::Add);
}

/// A distribution's libibverbs and a vendor's, of which the loader takes the first.
#[test]
fn of_two_libibverbs_the_one_that_the_loader_takes_counts() {
    let (image, host) = without_provider();
    provider(&image, "rxe", 34, OLD);
    let useless = SharedLibrary::new("libibverbs.so.1").bytes();
    for directory in ["/opt/x/lib", "/usr/lib", "/usr/lib64"] {
        image.file(&format!("{directory}/libibverbs.so.1"), &useless);
    }
    assert_eq!(verdict_of(&image, &host, "rxe"), LibraryDecision::Fits);
    let verdict_with_path = |path| judged(&image, &host, "rxe", Some(path), false).decision;
    assert_eq!(verdict_with_path("/usr/lib/x86_64-linux-gnu:/opt/x/lib"), LibraryDecision::Fits);
    image.link("/opt/y", "x/lib");
    let refusal = reason(verdict_with_path("/opt/y"));
    assert!(
        refusal.contains("\"/opt/x/lib/libibverbs.so.1\" of the image does not name"),
        "{refusal}"
    );
    // The image's own loader says in which of its directories it searches first.
    let loader = |dirs: [&str; 2]| {
        let loader = SharedLibrary::new("ld-linux-x86-64.so.2").says(dirs[0]).says(dirs[1]);
        image.file("/lib64/ld-linux-x86-64.so.2", loader.bytes());
    };
    loader(["/usr/lib64/", "/usr/lib/x86_64-linux-gnu/"]);
    let refusal = reason(verdict_of(&image, &host, "rxe"));
    assert!(refusal.contains("\"/usr/lib64/libibverbs.so.1\""), "{refusal}");
    loader(["/usr/lib/x86_64-linux-gnu/", "/usr/lib64/"]);
    assert_eq!(verdict_of(&image, &host, "rxe"), LibraryDecision::Fits);
}

/// Where mounts of the container cover some paths.
fn judged_beside(
    image: &Tree,
    host: &Tree,
    devices: &[VerbsDevice],
    covered: &dyn Fn(&Path) -> bool,
) -> LibraryReport {
    let root = ContainerRoot::open(image.root()).unwrap();
    let image = ImageFiles {
        root: &root,
        read_only: false,
        library_path: None,
        program: &|| None,
        covered,
    };
    let owner = rustix::process::geteuid().as_raw();
    let host = TrustedTree::for_tree(host.root(), TrustedOwners::from_users(&[owner])).unwrap();
    decide_libraries(&image, &host, devices)
}

#[test]
fn libraries_that_the_user_mounts_are_left_alone() {
    let (image, host) = without_provider();
    let own = format!("{MULTIARCH}/libibverbs.so.1");
    let covered = |path: &Path| path == Path::new(&own);
    let devices = [device("rxe", 1), device("of_tomorrow", 1)];
    let judgement = judged_beside(&image, &host, &devices, &covered);
    assert_eq!(judgement.decision, LibraryDecision::Fits);
    assert_eq!(judgement.notes.len(), 2, "{:?}", judgement.notes);
}

#[test]
fn a_provider_that_the_user_mounts_is_left_alone_and_the_others_are_served() {
    let (image, host) = without_provider();
    let judge = |own: &str, devices: &[VerbsDevice]| {
        judged_beside(&image, &host, devices, &|path| path.starts_with(own))
    };
    // In libibverbs' own directory, where a loader searches, and at the end of the image's link.
    let own = format!("{MULTIARCH}/libibverbs/libbnxt_re-rdmav34.so");
    image.link(&own, "../libbnxt.so.1");
    for own in [
        &own,
        &format!("{MULTIARCH}/libibverbs"),
        &format!("{MULTIARCH}/libbnxt_re-rdmav34.so"),
        &format!("{MULTIARCH}/libbnxt.so.1"),
    ] {
        let judgement = judge(own, &[device("bnxt_en", 6)]);
        assert_eq!(judgement.decision, LibraryDecision::Fits, "{own}");
        let [note] = &judgement.notes[..] else {
            panic!("{:?}", judgement.notes);
        };
        assert!(note.ends_with("it brings its own libraries"), "{note}");
    }
    let both = [device("rxe", 1), device("bnxt_en", 6)];
    let (way, files) = mounts(judge(&own, &both).decision);
    assert_eq!(way, MountMethod::Add);
    assert_eq!(files, [DRIVER_FILE, "libibverbs/librxe-rdmav34.so"]);
    let other = judge(&format!("{MULTIARCH}/libother.so"), &[device("bnxt_en", 6)]);
    assert!(reason(other.decision).contains("has no provider"));
}

#[test]
fn a_hostile_image_costs_a_refusal() {
    let (image, host) = without_provider();
    let verbs = format!("{MULTIARCH}/libibverbs.so.1");
    let provider = format!("{MULTIARCH}/libibverbs/librxe-rdmav34.so");
    let refusal = || reason(verdict_of(&image, &host, "rxe"));
    let write_library = |string: &str| {
        let library = SharedLibrary::new("libibverbs.so.1").defines("IBVERBS_PRIVATE_34", OLD);
        image.file(&verbs, library.says(string).bytes());
    };
    write_library("/etc/lib%s-rdmav34.so");
    assert!(refusal().contains("does not name a directory of providers"));
    // The directory is a link out of where libraries belong: nothing is mounted there.
    write_library("/usr/share/p/lib%s-rdmav34.so");
    image.directory("/etc/init.d").directory("/usr/share");
    image.link("/usr/share/p", "/../../etc/init.d");
    let (way, files) = mounts(verdict_of(&image, &host, "rxe"));
    assert_eq!(way, MountMethod::Replace);
    assert_eq!(files, [DRIVER_FILE, "libibverbs/librxe-rdmav34.so", "libibverbs.so.1"]);
    // A cycle of links.
    image.link("/usr/share/a", "b").link("/usr/share/b", "a");
    write_library("/usr/share/a/lib%s-rdmav34.so");
    assert!(refusal().contains("examining the image"), "{}", refusal());
    // A FIFO in place of a library.
    write_library(&format!("{MULTIARCH}/libibverbs/lib%s-rdmav34.so"));
    image.directory(&format!("{MULTIARCH}/libibverbs"));
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, image.path(&provider), fifo, mode, 0).unwrap();
    assert!(refusal().contains("is not a regular file"), "{}", refusal());
    std::fs::remove_file(image.path(&provider)).unwrap();
    // A file of a terabyte whose tables are far apart, and one that is no library.
    let huge = std::fs::File::options().write(true).open(image.path(&verbs)).unwrap();
    huge.set_len(1 << 40).unwrap();
    let _ = verdict_of(&image, &host, "rxe");
    image.file(&verbs, "GROUP ( libibverbs.so.2 )");
    assert!(refusal().contains("not an ELF file"), "{}", refusal());
}

#[test]
fn libraries_of_the_host_that_others_can_write_are_not_mounted() {
    let (image, host) = without_provider();
    host.chmod(&format!("{MULTIARCH}/libibverbs/librxe-rdmav34.so"), 0o666);
    let reason = reason(verdict_of(&image, &host, "rxe"));
    assert!(reason.contains("others can change it"), "{reason}");
}
