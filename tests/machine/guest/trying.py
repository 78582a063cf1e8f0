"""`onload-ctk try`: each class that has a probe by each engine, what it says of a device at fault and of an engine at fault, and what it leaves.

Onload's driver and library are stand-ins: a program has a stack where it opens /dev/onload twice, and sends by the kernel all the same.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import devices
import matrix
import session
from parts import generate
from report import Part, check, must, run

ENGINES = ["docker", "podman", "containerd"]
ABSENT = {"hugepages": "512Ki", "vfio": "ffff:ff:1f.7", "rdma": "nosuch0", "netdev": "nosuch0", "nic": "nosuch0"}
ADDRESS = "198.51.100.10/24"
STAND_INS = " (stand-ins)"
# containers.conf(5): bash reads this file before its script.
OVERRIDE, OPENS = Path("/run/machine/try.conf"), Path("/run/machine/opens")


def names(engine):
    """The containers and the images that an engine has."""
    if engine == "containerd":
        return [run("ctr", what, "list", "--quiet").out.split() for what in ("containers", "images")]
    return [sorted(run(engine, "ps", "--all", "--format", "{{.Names}}").out.split()),
            sorted(run(engine, "images", "--format", "{{.Repository}}:{{.Tag}}").out.split())]


def tried(engine, device, **options):
    done = run("onload-ctk", "try", device, "--engine", engine, timeout=200, **options)
    done.text = " ".join((done.out + done.err).split())
    return done


def answers(what, engine, device, status, words, **options):
    """One try, its answer, and that nothing stays of it."""
    before, host = names(engine), matrix.leftovers()
    done = tried(engine, device, **options)
    good = done.status == status and all(word in done.text for word in words)
    check(f"try: {engine}: {what}", good, f"wanted {status} with {words}\n{done}")
    after, now = names(engine), matrix.leftovers()
    check(f"try: {engine}: {what}: nothing stays in the engine", before == after, f"before: {before}\nafter: {after}")
    # What the runtime remembers of the configuration stays, and the directory of leases with its locks; no lease does.
    lasting = ("/run/onload-ctk/@runtimes", "/run/onload-ctk/@leases/.lock", "/run/onload-ctk/@leases/.moving-")
    for each in (host, now):
        # Docker's own, from the first container in the host's network on.
        each["mounts"] = [path for path in each["mounts"] if path != "/run/docker/netns/default"]
        each["state"] = [path for path in each["state"] if not path.startswith(lasting) and path != "/run/onload-ctk/@leases"]
    for key in ("mounts", "state", "specs", "huge"):
        check(f"try: {engine}: {what}: no {key} stay", host[key] == now[key], f"before: {host[key]}\nafter: {now[key]}")


def configure(netdev):
    session.configure("/usr/bin/runc")
    config = Path("/etc/onload-ctk/config.toml")
    text = config.read_text(encoding="ascii").replace('allow = ["nic"', 'allow = ["netdev", "nic"')
    config.write_text(f'{text}\n[discover]\noffer-netdevs = ["{netdev}"]\n\n[netdev."{netdev}"]\naddresses = ["{ADDRESS}"]\n', encoding="ascii")
    done = generate()
    check("try: cdi generate", done.status == 0, done)


def works(bench, netdev):
    """By each engine each device that the guest really has."""
    asked = {"hugepages": ("2Mi", "a page of 2Mi can be mapped and written"), "vfio": (bench.vfio, f"{bench.vfio} can be opened"),
             "rdma": (bench.found["rdma"], "100 messages went over port 1 to another queue pair and back"),
             "netdev": (netdev, f"{netdev} is in the container's network")}
    for kind, (name, words) in asked.items():
        with Part(f"try-{kind}"):
            for engine in ENGINES:
                answers(f"{kind} works", engine, f"{kind}={name}", 0, [f"{kind}={name} in a container of {engine}: works", words])
            done = tried("docker", f"{kind}={ABSENT[kind]}")
            check(f"try: {kind}: a device that does not exist is refused by name", done.status == 2 and ABSENT[kind] in done.text, done)


def nic(bench):
    """The stand-ins open nothing by themselves: so bash does, where an engine lets it."""
    interface = bench.found["interfaces"][0]
    for engine in ENGINES:
        answers("a program without a stack", engine, f"nic={interface}", 1, [f"in a container of {engine}: not accelerated"])
    OPENS.write_text("exec 8</dev/onload 9</dev/onload\n", encoding="ascii")
    OVERRIDE.write_text(f'[containers]\nenv = ["BASH_ENV=/opens"]\nvolumes = ["{OPENS}:/opens:ro"]\n', encoding="ascii")
    variables = dict(os.environ, CONTAINERS_CONF_OVERRIDE=str(OVERRIDE))
    answers(f"a program with a stack that sends by the kernel{STAND_INS}", "podman", f"nic={interface}", 1,
            ["in a container of podman: not accelerated", "on the kernel's sockets, although it has a stack of Onload"], env=variables)
    done = tried("docker", f"nic={ABSENT['nic']}")
    check("try: nic: a device that does not exist is refused by name", done.status == 2 and ABSENT["nic"] in done.text, done)


@contextlib.contextmanager
def no_free_page():
    """A file has every page of 2 MiB."""
    path = Path("/dev/hugepages/all")
    with open(path, "wb") as file:
        path.unlink()
        os.posix_fallocate(file.fileno(), 0, matrix.free_huge() * (2 << 20))
        yield


@contextlib.contextmanager
def open_group(bench):
    """The kernel gives a group to one program at a time."""
    group = os.open(f"/dev/vfio/{bench.group}", os.O_RDWR)
    try:
        yield
    finally:
        os.close(group)


@contextlib.contextmanager
def link_down(bench):
    interface = bench.found["interfaces"][0]
    must("ip", "link", "set", interface, "down")
    try:
        yield
    finally:
        must("ip", "link", "set", interface, "up")


def device_at_fault(bench):
    rdma = bench.found["rdma"]
    cases = [("no page is free", no_free_page, "hugepages=2Mi", "none is free"),
             ("the group is open elsewhere", lambda: open_group(bench), f"vfio={bench.vfio}", "in use by process"),
             ("the link is down", lambda: link_down(bench), f"rdma={rdma}", "no port is active")]
    for what, fault, device, words in cases:
        with fault():
            for engine in ENGINES:
                # crun discards what the hook says.
                is_lost = engine == "podman" and "in use" in words
                answers(what, engine, device, 1, ["does not work", "journalctl -t onload-hook" if is_lost else words])


def engine_at_fault():
    """A daemon that is stopped, and for podman, which has none, a runtime that starts nothing."""
    def refused(engine, what):
        done = tried(engine, "hugepages=2Mi")
        check(f"try: {engine}: {what}: it is the engine's fault", done.status == 3 and f"{engine} starts no container" in done.text, done)

    for engine, units in [("docker", ["docker.socket", "docker.service"]), ("containerd", ["containerd.service"])]:
        must("systemctl", "stop", *units, timeout=120)
        try:
            refused(engine, "it is stopped")
        finally:
            must("systemctl", "start", "containerd.service", "docker.socket", "docker.service", timeout=120)
    must("mount", "--bind", "/usr/bin/false", "/usr/bin/crun")
    try:
        refused("podman", "its runtime starts nothing")
    finally:
        must("umount", "/usr/bin/crun")


def killed():
    """A try that is killed leaves its image, and the next one removes it."""
    for engine in ENGINES:
        before = names(engine)
        child = subprocess.Popen(["onload-ctk", "try", "hugepages=2Mi", "--engine", engine], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while names(engine)[1] == before[1] and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        while names(engine)[0] != before[0] and time.monotonic() < deadline:
            time.sleep(0.5)
        left = set(names(engine)[1]) - set(before[1])
        check(f"try: {engine}: killed, it leaves its image", len(left) == 1, left)
        done = tried(engine, "hugepages=2Mi")
        after = names(engine)
        check(f"try: {engine}: the next one removes that image", done.status == 0 and after == before, f"before: {before}\nafter: {after}\n{done}")


def parts(bench, wanted, full):
    if not (any(word in "try" for word in wanted) if wanted else full):
        return
    function = (Path(f"/sys/bus/pci/devices/{bench.found['functions'][0]}") / "virtfn1").resolve().name
    netdev = devices.interface_of(function)
    must("ip", "link", "set", netdev, "down")
    configure(netdev)
    works(bench, netdev)
    for name, part in [("try-nic", lambda: nic(bench)), ("try-device-at-fault", lambda: device_at_fault(bench)),
                       ("try-engine-at-fault", engine_at_fault), ("try-killed", killed)]:
        with Part(name):
            part()
    session.configure("/usr/bin/runc")
    generate()
