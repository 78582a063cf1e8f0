"""The end of the host while containers have interfaces: after a reboot, and after one without a word to anybody, as when power fails.

Units of the package make the virtual functions and write the specifications at boot, udev's own files say what the interfaces are called
and how they are set up. podman leaves its container where it was, docker starts its own again.
"""

import json
import os
import time
from pathlib import Path

import devices
import engines
import leases
import package
import report
import session
from parts import Kept
from report import Part, check, log, must, run

from .lab import SPEC, UNITS as MOVING_UNITS, WAITS, Interface, held, host_facts, install_units, names_in, program_of, reason_for, works_in

PHASE = Path("/var/lib/machine/netdev-boot")
NETWORK = Path("/etc/systemd/network")
STOPPED, RESTARTED = "stopped", "restarted"
UNITS = ["onload-host.service", *MOVING_UNITS]
AT_BOOT = [unit for unit in UNITS if unit != "onload-restore.service"]
# Each boot ends in the next one of these ways.
BOOTS = ["installed", "a reboot", "a power cut"]


def address(at):
    return f"198.51.100.{10 + at}/24"


def wanted(functions, names):
    """The operator's file."""
    functions = "".join(f'[[sriov]]\npf = "{function}"\nvfs = {devices.VFS}\ndriver = "kernel"\n\n' for function in functions)
    return (f'[annotations]\nallow = ["netdev"]\nroot-with-onload = "allow"\n\n[runtime]\npath = "/usr/bin/runc"\n\n{functions}[discover]\noffer-netdevs = {json.dumps(names)}\n\n'
            + "".join(f'[netdev."{name}"]\naddresses = ["{address(at)}"]\n\n' for at, name in enumerate(names)))


def make_functions(physical):
    """The functions as a boot makes them; those whose interfaces the containers have."""
    for function in physical:
        devices.write(f"/sys/bus/pci/devices/{function}/sriov_numvfs", 0)
    must("systemctl", "restart", "onload-host.service", timeout=300)
    must("udevadm", "settle", "--timeout=60")
    return [(Path(f"/sys/bus/pci/devices/{function}") / "virtfn1").resolve().name for function in physical]


def set_up_by_udev(functions):
    """What the host's own configuration makes of each interface. An emulated function has another MAC each time it is made."""
    NETWORK.mkdir(parents=True, exist_ok=True)
    for at, function in enumerate(functions):
        (NETWORK / f"10-machine-{at}.link").write_text(
            f"[Match]\nPath=pci-{function}\n\n[Link]\nNamePolicy=keep kernel database onboard slot path\nAlternativeName=machine-vf{at}\n"
            f"MTUBytes={1400 + at}\nAlias=port {at} of rack 7\nMACAddress=02:00:00:00:20:0{at}\n", encoding="ascii")
    must("udevadm", "control", "--reload")


def installed():
    """The product on a host that makes its functions at boot; the functions whose interfaces the containers have."""
    must("modprobe", "-a", "igb", "igbvf")
    must("udevadm", "settle", "--timeout=60")
    session.install()
    install_units(UNITS)
    config = Path("/etc/onload-ctk/config.toml")
    config.parent.mkdir(exist_ok=True)
    physical = devices.igb_functions()
    config.write_text(wanted(physical, []), encoding="ascii")
    set_up_by_udev(make_functions(physical))
    # Those that are there already keep the names that they were given without it.
    functions = make_functions(physical)
    names = [devices.interface_of(function) for function in functions]
    config.write_text(wanted(physical, names), encoding="ascii")
    must("systemctl", "enable", "docker.service", "containerd.service", *AT_BOOT, timeout=120)
    must("systemctl", "start", "onload-cdi.service", timeout=120)
    must("docker", "network", "create", "--subnet", "10.88.9.0/24", "netdev")
    return functions


def hold(which):
    """One of podman that nobody starts again, and one that docker does: by annotation, since docker before 28.2 starts its containers
    before it knows of CDI."""
    podman, docker = engines.Podman("crun"), engines.Docker()
    names = [one.name for one in which]
    return [Kept(podman, STOPPED, "debian13", WAITS, engines.Request("cdi", [f"netdev={names[0]}"]), network=podman.bridge),
            Kept(docker, RESTARTED, "debian13", WAITS, engines.Request("wrapper", [f"netdev={names[1]}"]), network=docker.bridge, more=["--restart=always"])]


def works(which, at):
    return works_in(program_of(which[at]), which[at], address(at))


def held_when_it_ends(which, end):
    """The containers have their interfaces, and the host goes."""
    for at, kept in enumerate(hold(which)):
        check(f"before {end} a container of {kept.engine.name} has its interface", kept.started.status == 0 and works(which, at), f"{kept.started}\n{engines.said_by_hook(kept.started)}\n{which[at]}")


def go_down(end, functions, was):
    PHASE.parent.mkdir(parents=True, exist_ok=True)
    PHASE.write_text(json.dumps({"after": end, "functions": functions, "was": was}))
    log(f"going down for {end}")
    os.sync()
    if end == "a reboot":
        run("systemctl", "reboot")
    else:
        devices.write("/proc/sysrq-trigger", "b")
    time.sleep(600)


def is_home(one):
    return package.wait_until(one.is_home, 30)


def whole_again(which, end):
    """What the boot made of it, with nothing done by hand."""
    free, taken = which
    package.wait_until(lambda: run("systemctl", "is-active", "docker.service").out.strip() == "active", 120)
    journal = run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "onload-host.service", "-u", "onload-cdi.service").out
    check(f"after {end} an interface is what the host's own configuration makes of it", is_home(free), f"{free}\n{journal}")
    check(f"after {end} no lease of it is left", not [lease for lease in held() if lease["name"] == free.name], leases.leased())
    check(f"after {end} the specification names both interfaces", {one.name for one in which} <= set(names_in(SPEC)), f"{names_in(SPEC)}\n{journal}")
    check(f"after {end} it is offered", reason_for(free.name) == "", reason_for(free.name))
    package.wait_until(lambda: works(which, 1), 60)
    said = run("docker", "ps", "-a").out + run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "docker.service", "-n", "20").out
    check(f"after {end} the container that docker starts again has its interface again", works(which, 1) and len(held()) == 1, f"{taken}\n{said}")
    podman = engines.Podman("crun")
    again = podman.again(STOPPED)
    check(f"after {end} the container that podman had has its interface once it starts again", again.status == 0 and works(which, 0), f"{again}\n{engines.said_by_hook(again)}\n{free}")
    for engine, name, one in [(podman, STOPPED, free), (engines.Docker(), RESTARTED, taken)]:
        done = engine.remove(name)
        check(f"after {end} the interface of {engine.name} is back when its container is removed", is_home(one), f"{done}\n{one}")
    check(f"after {end} no lease is left in the end", not held(), leases.leased())


def start(functions, was):
    """The interfaces, with what they are on the host when nobody has them."""
    which = [Interface(function, facts) for function, facts in zip(functions, was)]
    log(f"interfaces {which[0].name} and {which[1].name}")
    return which


def netdev_boot():
    report.prefix = "interfaces over a boot: "
    found = json.loads(PHASE.read_text()) if PHASE.exists() else {"after": BOOTS[0]}
    end = found["after"]
    with Part("engines"):
        engines.prepare()
    if end == BOOTS[0]:
        with Part("installation"):
            found["functions"] = installed()
            found["was"] = [host_facts(function) for function in found["functions"]]
            right = [(facts["mtu"], facts["mac"], f"machine-vf{at}" in facts["altnames"]) for at, facts in enumerate(found["was"])]
            check("udev sets the interfaces up", right == [(1400 + at, f"02:00:00:00:20:0{at}", True) for at in range(2)], found["was"])
    which = start(found["functions"], found["was"])
    if end != BOOTS[0]:
        with Part(f"after {end}"):
            whole_again(which, end)
    if end != BOOTS[-1]:
        following = BOOTS[BOOTS.index(end) + 1]
        with Part(f"before {following}"):
            held_when_it_ends(which, following)
        go_down(following, found["functions"], found["was"])
