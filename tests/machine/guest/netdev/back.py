"""The way back of an interface: whatever the container did to it, and when nobody calls a poststop."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import engines
import leases
from report import Part, check, must, run

from .lab import POOL, PROGRAM, held, program_of, within, works_in

HOOK = Path("/usr/bin/onload-hook")
RESTORE = "onload-restore.service"


# Prints how many descriptors the receive ring of an interface has, and sets the number if there is one: `ethtool -g` and `-G`.
RING = """
import array, fcntl, socket, struct, sys
ring = array.array("I", [0x10] + [0] * 8)
request = struct.pack("16sP8x", sys.argv[1].encode(), ring.buffer_info()[0])
fcntl.ioctl(socket.socket(), 0x8946, request)
if len(sys.argv) > 2:
    ring[0], ring[5] = 0x11, int(sys.argv[2])
    fcntl.ioctl(socket.socket(), 0x8946, request)
print(ring[5])
"""


def mistreat(lab, pid):
    """What a container with CAP_NET_ADMIN can do to it: the names, the address and the size are another's, and others stand on it."""
    name = lab.first.name
    taken, other = lab.physical[0], lab.physical[1]
    commands = [["link", "set", name, "down"], ["link", "set", name, "address", "02:00:00:00:66:66"], ["link", "set", name, "mtu", "1300", "txqueuelen", "77"],
                ["link", "set", name, "alias", "mine now"], ["link", "property", "add", "dev", name, "altname", other],
                ["link", "property", "del", "dev", name, "altname", "machine-vf0"], ["link", "set", name, "promisc", "on"],
                ["link", "set", name, "name", taken], ["link", "set", taken, "up"], ["address", "add", "203.0.113.200/24", "dev", taken],
                ["link", "set", "dev", taken, "xdpgeneric", "pinned", PROGRAM], ["link", "add", "parasite", "link", taken, "type", "macvlan"], ["link", "set", "parasite", "up"]]
    return [(command, done) for command in commands if (done := within(pid, "ip", *command)).status]


def hostile(lab, engine, network):
    what = f"{engine.name} cdi: a hostile container, {'--network none' if network == 'none' else 'a bridge'}"
    rings = [must(sys.executable, "-c", RING, lab.first.name).out]
    with lab.start(engine, "hostile", "cdi", [lab.first.name], network=network) as kept:
        pid = program_of(lab.first)
        if not check(f"{what}: the interface had moved", kept.started.status == 0 and pid, kept.started):
            return
        failed = mistreat(lab, pid)
        check(f"{what}: it does all that it can", not failed, "\n".join(f"{command}: {done}" for command, done in failed))
        # No lease has this setting: only a new interface of the driver does not have it.
        done = within(pid, sys.executable, "-c", RING, lab.physical[0], "512")
        check(f"{what}: it changes the ring", done.out.strip() == "512", done)
        os.kill(pid, signal.SIGKILL)
        lab.is_back(f"{what}: after its kill")
    rings.append(must(sys.executable, "-c", RING, lab.first.name).out)
    check(f"{what}: its driver has created it again, with its own ring", rings[0] == rings[1] != "512\n", rings)
    left = [name for name in os.listdir("/sys/class/net") if name == "parasite" or name.startswith(("dev", "ctk"))]
    check(f"{what}: nothing of it is left on the host", not left, left)
    with lab.start(engine, "after", "cdi", [lab.first.name]) as kept:
        pid = program_of(lab.first)
        check(f"{what}: the next container has it, with its address", kept.started.status == 0 and works_in(pid, lab.first), f"{kept.started}\n{lab.first}")
    lab.is_back(f"{what}: after the next container")


def without_poststop(lab):
    """Engines that call no poststop, and one whose hook cannot run."""
    podman, docker = engines.Podman("crun"), engines.Docker()
    with lab.start(docker, "ended", "cdi", [lab.first.name]):
        mode = HOOK.stat().st_mode
        HOOK.chmod(0o600)
        try:
            docker.stop("ended")
            lab.is_back("netdev: udev's rule, where the hook cannot run at the end")
        finally:
            HOOK.chmod(mode)
    # crun calls no poststop for a command that does not exist.
    with lab.start(podman, "never", "cdi", [lab.first.name], argv=["/does/not/exist"], network="none") as kept:
        check("netdev: a command that does not exist starts nothing", kept.started.status != 0, kept.started)
        lab.is_back("netdev: udev's rule, where the engine calls no poststop")


def kill_whole(pid):
    """Container and monitor at once: nobody calls a poststop."""
    monitor = leases.parent(pid)
    for one in (monitor, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def state_of(interface):
    return [lease["state"] for lease in held() if lease["name"] == interface.name]


def killed_at_once(lab):
    """The namespace ends with its last process, and udev's rule puts right what the kernel gives back."""
    podman = engines.Podman("crun")
    with lab.start(podman, "ended", "cdi", [lab.first.name], network="none") as kept:
        pid = program_of(lab.first)
        mistreat(lab, pid)
        kill_whole(pid)
        lab.is_back("netdev: udev's rule, after container and monitor were killed")
        said = run("journalctl", "-b", "--no-pager", "-o", "cat", "-n", "20", "-u", RESTORE).out
        result = run("systemctl", "show", "--value", "-p", "Result", RESTORE).out.strip()
        check("netdev: the unit that udev starts ends well", kept.started.status == 0 and result == "success", f"{result}\n{said}")
    lab.is_back("netdev: udev's rule, when podman knows of the end")


def nobody_brings_it_back(lab):
    """podman keeps the network of a container whose monitor is gone: the unit or the next container brings the interface back."""
    podman = engines.Podman("crun")
    # What podman does not know the end of keeps its name.
    with lab.start(podman, f"orphan-{lab.moves}", "cdi", [lab.first.name]) as kept:
        pid = program_of(lab.first)
        if not check("netdev: before the unit the interface had moved", pid, f"{kept.started}\n{lab.first}"):
            return
        kill_whole(pid)
        leases.has_ended(pid, 20)
        check("netdev: before the unit an interface is on its way back", kept.started.status == 0 and state_of(lab.first) == ["returning"] and not lab.first.is_home(), lab.first)
        done = run("systemctl", "start", RESTORE)
        check("netdev: the unit brings it back", done.status == 0, f"{done}\n{run('journalctl', '-b', '--no-pager', '-o', 'cat', '-n', '20', '-u', RESTORE).out}")
        lab.is_back("netdev: the unit", seconds=2)
    with lab.start(podman, f"orphan-{lab.moves}", "cdi", [lab.first.name]) as kept:
        pid = program_of(lab.first)
        if not check("netdev: before an heir by wrapper the interface had moved", pid, f"{kept.started}\n{lab.first}"):
            return
        kill_whole(pid)
        leases.has_ended(pid, 20)
        what = "podman-crun wrapper: a pool after one that nobody brought back"
        with lab.start(podman, f"heir-{lab.moves}", "wrapper", [f"{POOL}*2"]) as kept:
            check(f"{what}: the next container starts", kept.started.status == 0, f"{kept.started}\n{engines.said_by_hook(kept.started)}\n{held()}")
        lab.is_back(f"{what}: in the end")


def parts(lab, on):
    if on("netdev-hostile"):
        with Part("netdev: a hostile container"):
            hostile(lab, engines.Docker(), "netdev")
    if on("netdev-restore"):
        with Part("netdev: restore"):
            killed_at_once(lab)
            nobody_brings_it_back(lab)
    if on("netdev-udev"):
        with Part("netdev: without poststop"):
            without_poststop(lab)
