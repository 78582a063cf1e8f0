//! The cases in `report/tests/cases/status`: what is said of the containers of made-up hosts.

use onload_sys::netlink::link::Link;
use onload_test_tree::elf::SharedLibrary;
use onload_test_tree::{MULTIARCH, case, split_commands};

use super::test_host::*;
use super::*;

const OTHER: &str = "4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a4a";

#[test]
fn cases_of_status_print_what_their_files_say() {
    case::check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/status"), |_| {
        let mut made = Made::new();
        Some(move |script: &str| run(&mut made, script))
    });
}

/// Runs the commands of a case, one a line. The first ones that [`change`] has begin another host. `status` prints verdicts and
/// remedies, `reasons` only verdicts, `reason` the worst verdict of each container, `state` its state, `containers` and
/// `others` everything else. A command that is not here is one of `Tree::script`.
fn run(made: &mut Made, script: &str) -> String {
    let script = script.replace("{ID}", ID).replace("{OTHER}", OTHER);
    let mut out = String::new();
    for command in split_commands(&script) {
        match command.as_str() {
            "status" | "reasons" | "reason" | "state" => out += &verdicts(&made.status(), &command),
            "containers" => out += &describe(&made.status().containers),
            "others" => out += &describe(&made.status().others),
            _ => change(made, &command),
        }
    }
    out.replace(ID, "{ID}").replace(OTHER, "{OTHER}")
}

fn verdicts(status: &StatusReport, command: &str) -> String {
    let mut out = String::new();
    for container in &status.containers {
        if status.containers.len() > 1 {
            out += &format!("{}:\n", container.name.as_ref().unwrap_or(&container.id));
        }
        let verdicts = &container.verdicts;
        assert_eq!(container.state(), verdicts.iter().map(|verdict| verdict.state).max().unwrap());
        let shown = if matches!(command, "reason" | "state") { &verdicts[..1] } else { verdicts };
        for Verdict { state, reason, remedy, .. } in shown {
            assert_eq!(state.is_good(), remedy.is_none(), "{container:?}");
            out += state.as_str();
            out += &if command == "state" { String::new() } else { format!(": {reason}") };
            out += "\n";
            let remedy = remedy.iter().filter(|_| command == "status");
            out.extend(remedy.map(|remedy| format!("  remedy: {remedy}\n")));
        }
    }
    match status.unseen {
        0 if out.is_empty() => "no container\n".to_owned(),
        0 => out,
        unseen => format!("{out}unseen: {unseen}\n"),
    }
}

fn describe(containers: &[ContainerStatus]) -> String {
    let mut out = String::new();
    for container in containers {
        out += &format!("{:?} {}", container.engine, container.id);
        out.extend(container.name.iter().map(|name| format!(" {name}")));
        out.extend(container.user.iter().map(|user| format!(" of user {user}")));
        let devices = &container.devices;
        let processes = container.processes.iter().map(|(pid, name)| format!("{pid} {name}"));
        for (key, values) in [
            ("processes", processes.collect()),
            ("leases", container.leases.clone()),
            ("devices", devices.iter().map(|one| format!("{} {:?}", one.device, one.by)).collect()),
            ("nodes", container.nodes.clone()),
            ("open", container.open.iter().cloned().collect()),
        ] {
            let values: Vec<String> = values;
            if !values.is_empty() {
                out += &format!("\n  {key}: {}", values.join(", "));
            }
        }
        out.extend(container.hidden.iter().map(|hidden| format!("\n  hidden: {}", hidden.reason)));
        out += "\n";
    }
    if out.is_empty() { "no container\n".to_owned() } else { out }
}

/// Changes a host by a command of a case.
fn change(made: &mut Made, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let text = |words: usize| {
        let text = command.splitn(words + 1, ' ').nth(words).unwrap_or_default();
        text.replace("\\n", "\n").replace("\\0", "\0")
    };
    let number = |word: &str| word.parse::<u32>().unwrap();
    let pair = |word: &str| word.split_once(':').map(|(one, other)| (number(one), number(other)));
    let container = format!("0::/system.slice/docker-{ID}.scope\n");
    match words[..] {
        ["#", ..] => {}
        ["new"] => *made = Made::new(),
        ["preloaded"] => *made = preloaded(),
        ["lost", program] => *made = lost(loader(program), PRELOADED),
        // A stack in the driver's list, and no descriptor of it.
        ["unused-stack"] => {
            *made = preloaded();
            change(made, "host-network");
            change(made, "ports");
            made.open(3, "/dev/onload").open(4, "/dev/onload");
            made.file("/proc/driver/onload/stacks", "0: 77 0 1 2 3\n");
        }
        ["accelerated-with-helper"] => {
            *made = preloaded();
            change(made, "host-network");
            made.stack().process(78, &container, "helper", HOST_NET, "pid:[7]");
        }
        // With an RDMA device and 8 MiB to lock.
        ["limited"] => {
            *made = Made::new();
            change(made, "device /dev/infiniband/uverbs0 231:192 infiniband_verbs 231:192");
            change(made, "locked 8388608");
            made.program(GLIBC, "ONLOAD_CTK_RDMA_MLX5_0=mlx5_0\0");
        }
        ["with-rdma"] => *made = with_rdma(),
        // Made with such a configuration by a runtime of docker.
        ["made-so", runtime, ..] => {
            *made = Made::new();
            let tasks = "/run/containerd/io.containerd.runtime.v2.task/moby";
            made.file(&format!("{tasks}/{ID}/config.json"), text(2));
            change(made, r#"docker {"Name":"/redis"}"#);
            let settings = format!("/var/lib/docker/containers/{ID}/hostconfig.json");
            made.file(&settings, format!(r#"{{"Runtime":"{runtime}"}}"#));
        }
        ["host-network"] => drop(made.link("/proc/77/ns/net", HOST_NET)),
        // It listens on a socket of the kernel, and has the one descriptor that Onload leaves.
        ["on-kernel"] => drop(made.open(3, "/dev/onload").listens(77, 901)),
        ["ports"] => {
            let table = "link 5 ens1 - - - -\nlink 6 ens0 - - - -\n";
            let addresses = "address 5 192.0.2.8/24\naddress 6 192.0.2.7/24\n";
            made.file("/network.table", format!("{table}{addresses}"));
        }
        ["onload"] => drop(made.onload()),
        ["onload-has", ref names @ ..] => {
            made.attached = names.iter().map(ToString::to_string).collect();
        }
        ["stack"] => drop(made.stack()),
        ["environment", ..] => drop(made.file("/proc/77/environ", text(1))),
        ["variables", ..] => {
            made.file("/proc/77/environ", format!("{PRELOADED}{}\0", text(1)));
        }
        ["made-with", ref variables @ ..] => {
            let quoted: Vec<String> = variables.iter().map(|one| format!("{one:?}")).collect();
            made_with(made, &quoted.join(","));
        }
        ["docker", ..] => {
            made.file(&format!("/var/lib/docker/containers/{ID}/config.v2.json"), text(1));
        }
        ["log", ..] => {
            let line = format!("oo:redis[1]: netif_tcp_helper_alloc_u: {}", text(1));
            let other = "6,1,1000,-;usb 1-1: new device";
            made.file("/dev/kmsg", format!("{other}\n3,2,93274651,-;[onload] {line}\n"));
        }
        ["program", program] => change(made, &format!("program {program} 200 1000000")),
        ["program", program, at] => change(made, &format!("program {program} {at} 1000000")),
        ["program", name, at, length] => {
            let mut bytes = program(loader(name), at.parse().unwrap());
            bytes.truncate(length.parse().unwrap());
            made.file("/proc/77/exe", bytes);
        }
        ["program-of", pid, name] => {
            made.file(&format!("/proc/{pid}/exe"), program(loader(name), 200));
        }
        ["go-program"] => {
            let mut go = program(GLIBC, 200);
            go.resize(988, 0);
            go.extend(b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0id");
            made.file("/proc/77/exe", go);
        }
        ["maps", path] => drop(made.maps(path)),
        ["auxv", secure] => drop(made.file("/proc/77/auxv", auxiliary(number(secure).into()))),
        ["preload-file"] => {
            let mount = "9 1 8:1 /x /etc/ld.so.preload ro - ext4 /dev/sda rw\n";
            made.file("/proc/77/mountinfo", format!("{ROOT}{mount}"));
        }
        ["locked", bytes] => {
            let limits = format!("Max locked memory         {bytes}   {bytes}    bytes\n");
            made.file("/proc/77/limits", limits);
        }
        ["open", descriptor, target] => drop(made.open(number(descriptor), target)),
        ["long-open", descriptor] => {
            made.open(number(descriptor), &format!("/dev/shm/{}", "x".repeat(4000)));
        }
        ["listens", pid, inode] => drop(made.listens(number(pid), number(inode).into())),
        ["connects", pid, inode, local, remote] => {
            made.connects(number(pid), number(inode).into(), local, remote);
        }
        ["process", pid, "container", name, network, pids] => {
            made.process(number(pid), &container, name, network, pids);
        }
        ["process", pid, cgroup, name, network, pids] => {
            made.process(number(pid), &format!("0::{cgroup}\n"), name, network, pids);
        }
        // It has the library and a socket of the kernel, and no stack.
        ["worker", pid] => {
            made.process(number(pid), &container, "worker", HOST_NET, "pid:[7]");
            made.file(&format!("/proc/{pid}/maps"), MAPS).listens(number(pid), 900);
            made.link(&format!("/proc/{pid}/fd/3"), "/dev/onload");
        }
        ["runs", pid, state, threads] => drop(made.runs(number(pid), state, number(threads))),
        ["started", pid, time] => {
            let stat = stat_of(number(pid), number(time).into());
            made.file(&format!("/proc/{pid}/stat"), stat);
        }
        ["is-at", pid, name, capabilities] => drop(made.is_at(number(pid), name, capabilities)),
        ["no-network"] => made.network = None,
        ["own-interface", name, kind, ref settings @ ..] => {
            made.interface(link_with(link(name, kind.trim_matches('-')), settings));
        }
        ["function", address, vendor, device] => drop(made.function(address, vendor, device)),
        ["device", path, recorded, class, now] => {
            made.node(path, pair(recorded).unwrap(), class, pair(now));
        }
        ["lease", device, container, pid] => drop(made.lease(device, container, number(pid))),
        ["moved", ..] => {
            let lease = made.leases.last_mut().unwrap().lease.as_mut().unwrap();
            lease.moved = serde_json::from_str(&text(1)).unwrap();
        }
        // Onload has attached to an interface of that name and hardware address.
        ["attached", name, address] => {
            made.file("/sys/module/sfc_resource/version", "1\n");
            let directory = "/sys/kernel/debug/sfc_resource/nics/000_ens1";
            let texts = [("dev", "no dev"), ("net_dev", name), ("mac_addr", address)];
            made.tree.attributes(directory, &texts);
        }
        ["library", name] => made_library(made, name),
        _ => drop(made.tree.script(command)),
    }
}

fn loader(word: &str) -> Option<&str> {
    match word {
        "static" => STATIC,
        "musl" => MUSL,
        "glibc" => GLIBC,
        path => Some(path),
    }
}

fn link_with(mut link: Link, settings: &[&str]) -> Link {
    for setting in settings {
        let (key, value) = setting.split_once('=').unwrap();
        match key {
            "lower" => (link.lower, link.lower_namespace) = (value.parse().ok(), Some(0)),
            "lower-namespace" => link.lower_namespace = value.parse().ok(),
            "function" => link.function = value.parse().ok(),
            "index" => link.index = value.parse().unwrap(),
            "variant" => link.variant = value.parse().ok(),
            "flags" => link.flags = u32::from_str_radix(value, 16).unwrap(),
            "alias" => link.alternative_names = vec![value.into()],
            "address" => link.address = vec![2, 0, 0, 0, 0, u8::from_str_radix(value, 16).unwrap()],
            _ => panic!("{setting}"),
        }
    }
    link
}

/// A container with a device of soft-RoCE, in whose root is what a loader needs.
fn with_rdma() -> Made {
    let mut made = Made::new();
    made.node("/dev/infiniband/uverbs0", (231, 192), "infiniband_verbs", Some((231, 192)));
    made.file("/sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
    made.file("/sys/class/infiniband/rxe0/node_type", "1: CA\n");
    made_library(&made, "libc.so.6");
    made
}

fn made_library(made: &Made, name: &str) {
    let private = ["verbs_register_driver"];
    let library = SharedLibrary::new(name.rsplit('/').next().unwrap());
    let library = match name {
        "libc.so.6" => library.defines("GLIBC_2.34", &["malloc"]),
        "libibverbs.so.1" => library
            .needs("libc.so.6", "", &["malloc"])
            .defines("IBVERBS_PRIVATE_34", &private)
            .says("/etc/libibverbs.d")
            .says(&format!("{MULTIARCH}/libibverbs/lib%s-rdmav34.so")),
        "librdmacm.so.1" => library,
        _ => library.needs("libibverbs.so.1", "IBVERBS_PRIVATE_34", &private),
    };
    made.file(&format!("/proc/77/root{MULTIARCH}/{name}"), library.bytes());
}
