"""What `onload-ctk status` says of containers that real engines made, in each situation that it has a verdict for.

Engines, containers, namespaces, leases and device nodes are real. Onload's driver and library are stand-ins here: nothing is accelerated,
and a program that opens /dev/onload twice by itself is what one with a stack of Onload looks like. Of a real Onload that was recorded with
AF_XDP on igb: two or more such descriptors and the driver's list with a stack, one descriptor without.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import time
import urllib.request
from pathlib import Path

import devices
import engines
import session
from cri import Cri
from report import Part, check, must, run

IMAGE = "localhost/debian13:1"
# Its shell and its sleep are static, and its probe is linked with musl.
MUSL = "localhost/musl:1"
STAYS = ["sleep", "1000"]
# Opens a node of Onload as its library does for a stack, and stays.
OPENS = ["sh", "-c", "exec 8</dev/onload 9</dev/onload; exec sleep 1000"]
# What the programs of the containers become at last.
PROGRAMS = ["sleep", "sleep-as-root", "probe-musl", "redis-server"]
NIC = ["--device=onload.dev/nic=all"]
SCRATCH = Path("/var/lib/seeing")
# Marks, in record.md, what Onload's own driver and library have not shown.
STAND_INS = " (stand-ins)"
TEXTFILE = Path("/var/lib/prometheus/node-exporter/onload-ctk.prom")
# Where kubelet has its pods.
PARENT = "kubepods.slice"
TESTER = 1000


class Told:
    """What status says of one container."""

    def __init__(self, name, whole):
        self.whole = whole
        mine = [each for each in whole["containers"] if name in (each["name"], each["id"]) or str(each["name"]).startswith(f"{name}/")]
        self.found = mine[0] if len(mine) == 1 else None

    def states(self):
        return [verdict["state"] for verdict in self.found["verdicts"]] if self.found else []

    def reason(self, state):
        reasons = [f"{each['reason']}; {each.get('remedy', '')}" for each in self.found["verdicts"] if each["state"] == state] if self.found else []
        return reasons[0] if reasons else ""

    def __str__(self):
        return json.dumps(self.found or self.whole, indent=1)


def status(*more, before=()):
    return run(*before, "onload-ctk", "status", "--format", "json", *more)


def told(name):
    done = status()
    return Told(name, json.loads(done.out) if done.status == 0 else {"containers": [], "error": str(done)})


def verdict(what, name, state, words="", engine=None, real=False):
    """The worst verdict of a container, with words of its reason or remedy. One that is not real rests on the stand-ins of Onload."""
    seen = told(name)
    good = seen.states()[:1] == [state] and words in seen.reason(state) and (engine is None or seen.found["engine"] == engine)
    check(f"status: {what}: {state}{'' if real else STAND_INS}", good, f"wanted {state!r} with {words!r}\n{seen}")
    return seen


def settled(identity):
    """Waits until the last program of a container waits by itself: shells and the loader have done their work then."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                cgroup, stat = (process / "cgroup").read_text(), (process / "stat").read_text()
            except OSError:  # it has ended
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            if identity in cgroup and name in PROGRAMS and rest.split()[0] == "S":
                return
        time.sleep(0.1)


@contextlib.contextmanager
def container(engine, name, options, argv, network="host", image=IMAGE):
    """A container of docker or podman; `engine` is the beginning of its command line."""
    started = run(*engine, "run", "-d", "--name", name, f"--network={network}", *options, image, *argv, timeout=90)
    check(f"status: the container {name} starts", started.status == 0, started)
    if started.status == 0:
        settled(started.out.strip())
    try:
        yield started
    finally:
        run(*engine, "rm", "-f", *(["-t", "0"] if "podman" in engine else []), name, timeout=90)


def pid_of(engine, name):
    return run(*engine, "inspect", "-f", "{{.State.Pid}}", name).out.strip()


DOCKER = ["docker"]
PODMAN = ["podman"]


def clis(everything):
    """The engines whose containers a situation is tried with: what it is about is the same in each."""
    return [("docker", DOCKER), ("podman", PODMAN)] if everything else [("docker", DOCKER)]


def accelerated(everything):
    """The same in every engine, each found without asking it."""
    rootless = engines.Rootless().binary
    for name, command in [*clis(everything), ("rootless podman", rootless)]:
        engine = name.split()[-1]
        with container(command, "seen", NIC, OPENS):
            seen = verdict(f"{name}: a program with the library and a stack of Onload", "seen", "accelerated", engine=engine)
            user = seen.found and seen.found.get("user")
            check(f"status: {name}: whose engine it is", user == (TESTER if "rootless" in name else None), seen)
        if not everything:
            continue
        with container(command, "seen", NIC, STAYS):
            verdict(f"{name}: a program with the library and no socket", "seen", "ready", "no program has opened a socket yet", engine)
    if everything:
        accelerated_pod()


def accelerated_pod():
    client = Cri(parent=PARENT)
    os.makedirs(engines.LOGS, exist_ok=True)
    pod, identity = client.run("seen", IMAGE, OPENS, {}, ["onload.dev/nic=all"], "runc", engines.LOGS)
    try:
        settled(identity)
        verdict("containerd's CRI: a program with the library and a stack of Onload", "seen", "accelerated", engine="containerd")
    finally:
        client.remove(pod)


def bridge(everything):
    for name, command in clis(everything):
        with container(command, "seen", NIC, STAYS, network="bridge"):
            verdict(f"{name}: a bridge network", "seen", "no-interface", "--network host")
        with container(command, "seen", [*NIC, "-v", "/sys:/sys:ro"], STAYS, network="bridge"):
            verdict(f"{name}: a bridge network, and the host's /sys, which shows the host's interfaces", "seen", "no-interface", "onload.dev/netdev")


# A server that has the one descriptor that Onload leaves without a stack, and listens by the kernel's TCP. It writes its title over
# its variables.
BY_KERNEL = ["sh", "-c", "exec 8</dev/onload; exec redis-server --port 16379 --save ''"]


def without_stack():
    """Programs that have the library and an accelerated interface, and go on by the kernel; and why, where that can be known."""
    causes = [("no known cause", [], "the cause is unknown"), ("EF_DONT_ACCELERATE", ["-e", "EF_DONT_ACCELERATE=1"], "EF_DONT_ACCELERATE is in its environment"),
              ("an interface that Onload has not", ["-e", "EF_INTERFACE_WHITELIST=lo"], "EF_INTERFACE_WHITELIST=lo leaves no"),
              ("an interface that does not exist", ["-e", "EF_INTERFACE_WHITELIST=nosuch0"], "EF_INTERFACE_WHITELIST=nosuch0 leaves no")]
    for what, options, words in causes:
        with container(DOCKER, "seen", [*NIC, *options], BY_KERNEL, image="localhost/redis:1"):
            run("sh", "-c", "until ss -Hltn 'sport = :16379' | grep -q .; do sleep 0.2; done", timeout=30)
            if "nosuch0" in words:
                # What Onload's library writes there by the driver when it finds none of the listed interfaces.
                Path("/dev/kmsg").write_text("[onload] oo:redis-server[1]: netif_tcp_helper_alloc_u: ENODEV.\n", encoding="ascii")
            verdict(f"a program without a stack: {what}", "seen", "no-stack", words)
    with container(DOCKER, "seen", NIC, ["sh", "-c", "exec 9</dev/onload; exec sleep 1000"]):
        verdict("a program with one descriptor of Onload and no socket", "seen", "ready", "no program has opened a socket yet")


def macvlan(bench):
    """A network of docker's on an accelerated interface."""
    parent = bench.found["interfaces"][0]
    must("docker", "network", "create", "-d", "macvlan", "-o", f"parent={parent}", "--subnet=198.18.7.0/24", "seen")
    try:
        with container(DOCKER, "seen", NIC, OPENS, network="seen"):
            verdict("a macvlan on an accelerated interface", "seen", "accelerated", "processes with a stack of Onload: 1 of 1")
    finally:
        must("docker", "network", "rm", "seen")


def asks():
    """A container that asks by what its runtime does not read, and one that has what leaves no node."""
    with container(DOCKER, "seen", ["--runtime=runc", "-e", "ONLOAD_CTK_REQUEST=hugepages=2Mi"], STAYS):
        verdict("a request that the runtime does not read", "seen", "nothing-given", "its runtime is runc", real=True)
    with container(PODMAN, "seen", ["--device=onload.dev/hugepages=2Mi"], STAYS):
        seen = verdict("huge pages by --device", "seen", "ready", "it has its devices", real=True)
        wanted = [{"device": "hugepages=2Mi", "by": "configuration"}]
        check("status: what it was given is listed", seen.found and seen.found["devices"] == wanted, seen)


def clients():
    """A container of containerd's own client, of which people choose the id."""
    ctr, request = engines.Ctr(), engines.Request("plain", [])
    request.devices = ["/dev/onload"]
    started = ctr.run("seen", "debian13", OPENS, request)
    check("status: the container of ctr starts", started.status == 0, started)
    try:
        settled("/default/seen")
        verdict("ctr: nodes without the library", "seen", "plain", engine="containerd")
    finally:
        ctr.remove("seen")


def strangers():
    """A cgroup that a user calls as root's container, with a process that has what an accelerated one has."""
    with container(DOCKER, "seen", NIC, ["env", "-i", *STAYS]) as started:
        theirs = Path(f"/sys/fs/cgroup/user.slice/user-{TESTER}.slice/docker-{started.out.strip()}.scope")
        theirs.mkdir(parents=True)
        with open("/dev/onload", "rb") as node, subprocess.Popen(STAYS, stdin=node) as process:
            try:
                (theirs / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
                seen = verdict("root's container, whose name a user's cgroup has too", "seen", "preload-lost", "removed from its environment", "docker")
                check("status: the user's process is in a container of its own", seen.found and process.pid not in [each["pid"] for each in seen.found["processes"]], seen)
            finally:
                process.kill()
        theirs.rmdir()
    # The first process becomes sleep, which collects no children.
    with container(DOCKER, "seen", NIC, ["sh", "-c", "sleep 0.1 & exec sleep 1000"]):
        time.sleep(1)
        verdict("a container with a zombie", "seen", "ready", "1 of 1")


@contextlib.contextmanager
def unread_pipe():
    """A pipe of one page whose reader does not read: a program that prints more than that into it stays."""
    path = SCRATCH / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield ["-v", f"{path}:/pipe"]
    finally:
        os.close(reader)
        path.unlink()


# Prints more than a page.
PRINTS = ["sh", "-c", 'exec "$@" > /pipe', "sh", "probe-musl", *(["limits"] * 200)]


def set_user_id(name):
    """sleep(1), set-user-ID root, for a container's plain user. podman mounts without set-user-ID unless it is told."""
    path = SCRATCH / "sleep"
    shutil.copy("/usr/bin/sleep", path)
    os.chmod(path, 0o4755)
    how = "ro,suid" if name == "podman" else "ro"
    return ["-v", f"{path}:/usr/bin/sleep-as-root:{how}", f"--user={TESTER}"]


def capable():
    """sleep(1) with cap_net_bind_service=ep (capabilities(7), VFS_CAP_REVISION_2), for a container's plain user."""
    path = SCRATCH / "capable"
    shutil.copy("/usr/bin/sleep", path)
    os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    return ["-v", f"{path}:/usr/bin/sleep-as-root:ro", f"--user={TESTER}"]


def preload_lost(everything):
    for name, command in clis(everything):
        cases = [
            ("a static program", [], STAYS, "static", MUSL),
            ("a set-user-ID program", set_user_id(name), ["sleep-as-root", "1000"], "set-user-ID", IMAGE),
            ("a program with file capabilities", capable(), ["sleep-as-root", "1000"], "file capabilities", IMAGE),
            ("a program that clears the environment", [], ["env", "-i", *STAYS], "removed from its environment", IMAGE),
            ("LD_PRELOAD= by the user", [], ["sh", "-c", "LD_PRELOAD= exec sleep 1000"], "set to something else", IMAGE),
        ]
        for what, options, argv, words, image in cases:
            with container(command, "seen", [*NIC, *options], argv, image=image):
                verdict(f"{name}: {what}", "seen", "preload-lost", words)
        with unread_pipe() as pipe, container(command, "seen", [*NIC, *pipe], PRINTS, image=MUSL):
            verdict(f"{name}: a program of musl", "seen", "preload-lost", "musl")


def upgraded(everything):
    """The library replaced by another file, as a package does it, while a container runs."""
    library = Path(os.path.realpath(f"{devices.MULTIARCH}/libonload.so"))
    copy = SCRATCH / library.name
    shutil.copy(library, copy)
    with container(DOCKER, "seen", ["--device=onload.dev/nic-nodes=all", "-v", f"{copy}:/opt/libonload.so:ro", "-e", "LD_PRELOAD=/opt/libonload.so"], STAYS):
        verdict("a library of the image's own", "seen", "unknown", "not this host's")
    with container(DOCKER, "seen", NIC, STAYS):
        verdict("before the library is replaced", "seen", "ready")
        new = library.with_name("libonload.new")
        shutil.copy2(library, new)
        os.rename(new, library)
        verdict("the library was replaced since", "seen", "other-library", "start the container again")
    if not everything:
        return
    # A specification names the same path: a new container has the new file.
    with container(DOCKER, "seen", NIC, STAYS):
        verdict("a container after that", "seen", "ready")


def unloaded(bench):
    """The driver unloaded, and loaded with another number."""
    nodes = ["--device=onload.dev/nic-nodes=all"]
    with container(PODMAN, "seen", nodes, STAYS):
        verdict("nodes without the library", "seen", "plain")
        devices.unload_stand_ins()
        verdict("the driver is unloaded", "seen", "device-gone", "/dev/onload")
        devices.load_stand_ins(spare_majors=2)
        devices.accelerate(bench.found["interfaces"])
        verdict("the driver is loaded with another number", "seen", "device-renumbered", "systemctl start onload-cdi.service")
    devices.unload_stand_ins()
    devices.load_stand_ins()
    devices.accelerate(bench.found["interfaces"])
    must("onload-ctk", "cdi", "generate")


def memlock(bench, everything):
    node = f"/dev/infiniband/{bench.found['uverbs'][0]}"
    with container(DOCKER, "seen", [f"--device={node}", "--ulimit=memlock=1048576:1048576"], STAYS):
        verdict("RDMA with 1 MiB to lock", "seen", "memlock", "--ulimit memlock=-1", real=True)
    with container(DOCKER, "seen", [f"--device={node}", "--ulimit=memlock=1048576:1048576", "--cap-add=IPC_LOCK"], STAYS):
        verdict("RDMA with 1 MiB to lock, and the capability to lock any", "seen", "ready", "no program has opened one", real=True)
    if not everything:
        return
    with container(DOCKER, "seen", [f"--device=onload.dev/rdma={bench.found['rdma']}"], STAYS):
        verdict("RDMA with the hook's limit", "seen", "ready", "no program has opened one", real=True)


def vfio(bench, everything):
    ask = [f"--device=onload.dev/vfio={bench.vfio}"]
    with container(PODMAN, "seen", ask, STAYS):
        seen = verdict("a virtual function that nobody opens", "seen", "unused", bench.vfio, real=True)
        check("status: its lease is told", seen.found and seen.found["leases"] == [f"vfio={bench.vfio}"], seen)
        held = run("onload-ctk", "topology", "--format", "json").out
        check("topology: the function is held", f'"{bench.vfio}"' in held and '"state": "held"' in held, held)
    if not everything:
        return
    with container(PODMAN, "seen", ask, ["sh", "-c", f"exec 9<>/dev/vfio/{bench.group}; exec sleep 1000"]):
        verdict("a virtual function in use", "seen", "ready", f"use vfio {bench.vfio}", real=True)


def moved_interface(bench):
    """An interface of a virtual function in the container's network, down as the move leaves it."""
    function = Path(f"/sys/bus/pci/devices/{bench.found['functions'][1]}/virtfn1")
    name = os.listdir(function / "net")[0]
    with container(PODMAN, "seen", ["--device=onload.dev/nic-nodes=all"], STAYS, network="none"):
        pid = pid_of(PODMAN, "seen")
        must("ip", "link", "set", name, "down")
        must("ip", "link", "set", name, "netns", pid)
        seen = verdict("an interface that was moved in and is down", "seen", "interface-down", name, real=True)
        remedy = seen.reason("interface-down").partition("; run ")[2]
        done = run("sh", "-c", remedy) if remedy else None
        check("status: its remedy is a command that works", done is not None and done.status == 0, done)
        must("nsenter", f"--net=/proc/{pid}/ns/net", "ip", "link", "set", name, "netns", "1")


def rdma_namespace(bench, everything):
    node = f"/dev/infiniband/{bench.found['uverbs'][0]}"
    devices.load_rdma(bench.found, exclusive=True)
    mode = run("rdma", "system").out
    check("status: RDMA's mode is exclusive", "netns exclusive" in mode, mode)
    with container(DOCKER, "seen", [f"--device={node}", "--ulimit=memlock=-1"], STAYS, network="bridge"):
        verdict("an RDMA device of another namespace", "seen", "rdma-namespace", "netns shared", real=True)
    if everything:
        with container(DOCKER, "seen", [f"--device={node}", "--ulimit=memlock=-1"], STAYS):
            verdict("an RDMA device of the host's namespace, which the container has", "seen", "ready", real=True)
    devices.load_rdma(bench.found, exclusive=False)
    must("onload-ctk", "cdi", "generate")


def samples(text):
    """The samples of ours in a text of metrics: the name with its labels, and the value."""
    lines = re.findall(r"^(onload_ctk_\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)
    return {(name, *sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))): float(value) for name, labels, value in lines}


def metrics(bench):
    """The package's timer writes a file, and Debian's node_exporter serves what is in it."""
    for unit in ["onload-metrics.service", "onload-metrics.timer"]:
        shutil.copy(f"/run/machine/packaging/systemd/{unit}", f"/etc/systemd/system/{unit}")
    must("systemctl", "daemon-reload")
    must("systemctl", "start", "prometheus-node-exporter.service")
    with container(PODMAN, "seen", [f"--device=onload.dev/vfio={bench.vfio}"], STAYS):
        must("systemctl", "enable", "--now", "onload-metrics.timer")
        devices.wait_for(TEXTFILE, 40)
    # Nothing replaces the file while it is compared.
    must("systemctl", "disable", "--now", "onload-metrics.timer")
    with urllib.request.urlopen("http://127.0.0.1:9100/metrics", timeout=30) as answer:
        served = answer.read().decode()
    wrote, found = samples(TEXTFILE.read_text(encoding="utf-8")), samples(served)
    check("metrics: node_exporter serves every sample that the timer had written, with its value", found == wrote and len(wrote) > 20, f"{wrote}\n{found}")
    check("metrics: node_exporter has no error with the file", "\nnode_textfile_scrape_error 0\n" in served, served[-3000:])
    wanted = {("onload_ctk_devices", ("class", "vfio"), ("health", "healthy")): len(bench.found["vfio"]),
              ("onload_ctk_leases", ("class", "vfio")): 1,
              ("onload_ctk_devices_held", ("class", "vfio")): 1,
              ("onload_ctk_interface_up", ("interface", bench.found["interfaces"][0])): 1}
    for sample, value in wanted.items():
        check(f"metrics: node_exporter serves {sample[0]}", found.get(sample) == value, f"wanted {value} of {sample}\n{found}")


def asked():
    """One container by its name or the beginning of its id, and what a plain user sees."""
    with container(PODMAN, "seen", NIC, OPENS) as started:
        for word in ["seen", started.out.strip()[:12]]:
            done = status(word)
            one = json.loads(done.out)["containers"] if done.status == 0 else []
            check(f"status: one container by {'its name' if word == 'seen' else 'its id'}", [each["name"] for each in one] == ["seen"], done)
        done = status("nobody")
        check("status: a name that no container has", done.status == 2 and "nobody" in done.err, done)
        done = status(before=["setpriv", f"--reuid={TESTER}", f"--regid={TESTER}", "--clear-groups"])
        whole = json.loads(done.out) if done.status == 0 else {}
        good = whole.get("unseen_processes", 0) > 0 and all(each["state"] != "accelerated" for each in whole["containers"])
        check("status: a plain user is told how many processes are not theirs to see", good, done)
    with container(PODMAN, "seen", NIC, STAYS, network="none"):
        check("status: a container that does badly ends with 1", status("seen").status == 1, status("seen"))


def parts(bench, wanted, full):
    """Each situation, where it is asked for; one container each where nobody asked for more."""
    everything = full or bool(wanted)
    quick = [("accelerated", lambda: accelerated(everything)), ("bridge", lambda: bridge(everything)),
             ("without-stack", without_stack), ("macvlan", lambda: macvlan(bench)), ("asks", asks), ("ctr", clients), ("strangers", strangers),
             ("preload-lost", lambda: preload_lost(everything)), ("upgraded", lambda: upgraded(everything)),
             ("memlock", lambda: memlock(bench, everything)), ("vfio", lambda: vfio(bench, everything)),
             ("moved-interface", lambda: moved_interface(bench)), ("unloaded", lambda: unloaded(bench)),
             ("rdma-namespace", lambda: rdma_namespace(bench, everything))]
    slow = [("asked", asked), ("metrics", lambda: metrics(bench))]
    tries = [(f"seeing-{name}", situation) for name, situation in [*quick, *(slow if everything else [])]]
    tries = [(name, situation) for name, situation in tries if not wanted or any(word in name for word in wanted)]
    if tries:
        SCRATCH.mkdir(exist_ok=True)
        session.configure("/usr/bin/crun")
        must("onload-ctk", "cdi", "generate")
    for name, situation in tries:
        with Part(name):
            situation()
