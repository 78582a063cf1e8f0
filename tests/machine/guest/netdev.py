"""Interfaces that move into containers: virtual functions of igb, in engines with networks of their own. netdev_back.py has hostile ends,
netdev_ends.py the ordinary ones, netdev_held.py what happens meanwhile, netdev_boot.py the end of the host.

A virtual function has no wire here: QEMU's igb raises no interrupt for the mailbox between igbvf and igb, so that igbvf says "PF still
resetting" at each reset, and its interface has no carrier. What goes over a wire is shown by the e1000e, which shares that of the first
igb: it moves, and the igb answers.
"""

import contextlib
import ctypes
import json
import os
import shutil
import struct
import time
from pathlib import Path

import devices
import engines
import leases
import session
from parts import Kept, generate
from report import Part, check, log, must, run

PARTS = ["netdev-in", "netdev-wire", "netdev-refused", "netdev-hostile", "netdev-restore", "netdev-udev", "netdev-ends", "netdev-stays",
         "netdev-held", "netdev-pod", "netdev-cluster"]
UNITS = ["onload-cdi.service", "onload-cdi.path", "onload-cdi.timer", "onload-restore.service"]
RULE = "90-onload-ctk.rules"
SPEC = Path("/var/run/cdi/onload.dev-netdev.json")
CNI = Path("/etc/cni/net.d/00-netdev.conflist")
PEER = "198.51.100.1"
OTHER = "203.0.113.10"
POOL = "fast"
PROGRAM = "/sys/fs/bpf/machine-netdev"
WAITS = ["sleep", "1000"]
# By configuration, and by an annotation that replaces it.
CONFIGURED, ANNOTATED = "198.51.100.10/24", "198.51.100.11/24"


def host_facts(function):
    """What the interface of a function is on the host; None where it is not there."""
    names = Path(f"/sys/bus/pci/devices/{function}/net")
    found = sorted(os.listdir(names)) if names.exists() else []
    if not found:
        return None
    done = run("ip", "-details", "-json", "address", "show", "dev", found[0])
    if done.status:
        return None
    link = json.loads(done.out)[0]
    return {"names": found, "mac": link["address"], "mtu": link["mtu"], "queue": link["txqlen"], "alias": link.get("ifalias", ""),
            "altnames": sorted(link.get("altnames", [])), "up": "UP" in link["flags"], "promiscuous": link.get("promiscuity", 0),
            "xdp": "xdp" in link, "master": link.get("master", ""),
            "addresses": sorted(each["local"] for each in link["addr_info"] if each["scope"] != "link")}


class Interface:
    """A virtual function's interface, with what it is on the host."""

    def __init__(self, function, was=None):
        self.function = function
        self.was = was or host_facts(function)
        self.name, = self.was["names"]

    def is_home(self):
        return host_facts(self.function) == self.was

    def __str__(self):
        return f"{self.name} was {self.was}\nis {host_facts(self.function)}\nleases {leases.leased()}"


def install_units(units=UNITS):
    packaging = Path("/run/machine/packaging")
    for unit in units:
        shutil.copy(packaging / "systemd" / unit, "/etc/systemd/system")
    shutil.copy(packaging / "udev" / RULE, "/etc/udev/rules.d")
    must("systemctl", "daemon-reload", timeout=120)
    must("udevadm", "control", "--reload")


class Lab:
    """The interfaces, the networks and the units; what was changed on the host is put back at the end."""

    def __init__(self, bench):
        self.physical = bench.found["interfaces"]
        functions = [(Path(f"/sys/bus/pci/devices/{pf}") / "virtfn1").resolve().name for pf in bench.found["functions"]]
        for at, function in enumerate(functions):
            name = devices.interface_of(function)
            must("ip", "link", "set", name, "down")
            # What it is has to be told from what every interface is.
            must("ip", "link", "set", name, "mtu", 1400 + at, "txqueuelen", 900 + at, "alias", f"port {at} of rack 7")
            must("ip", "link", "property", "add", "dev", name, "altname", f"machine-vf{at}")
        self.first, self.second = (Interface(function) for function in functions)
        self.both = [self.first, self.second]
        card = next(path.name for path in Path("/sys/bus/pci/drivers/e1000e").iterdir() if ":" in path.name)
        self.wired = Interface(card)
        self.moves = self.ends = self.lost = 0

    def __enter__(self):
        must("ip", "address", "add", f"{PEER}/24", "dev", self.physical[0])
        must("docker", "network", "create", "--subnet", "10.88.9.0/24", "netdev")
        ipam = {"type": "host-local", "ranges": [[{"subnet": "10.89.7.0/24"}]]}
        CNI.parent.mkdir(parents=True, exist_ok=True)
        CNI.write_text(json.dumps({"cniVersion": "1.0.0", "name": "netdev", "plugins": [{"type": "bridge", "bridge": "cni-netdev", "ipam": ipam}]}))
        install_units()
        load_program()
        return self

    def __exit__(self, *failure):
        run("systemctl", "stop", "onload-cdi.timer", "onload-cdi.path")
        for path in [CNI, Path("/etc/udev/rules.d", RULE), Path(PROGRAM), *(Path("/etc/systemd/system", unit) for unit in UNITS)]:
            path.unlink(missing_ok=True)
        run("udevadm", "control", "--reload")
        run("systemctl", "daemon-reload", timeout=120)
        run("docker", "network", "rm", "netdev")
        run("ip", "address", "delete", f"{PEER}/24", "dev", self.physical[0])
        for at, one in enumerate(self.both):
            run("ip", "link", "property", "del", "dev", one.name, "altname", f"machine-vf{at}")
        session.configure("/usr/bin/runc")
        generate()

    def configure(self, low="/usr/bin/runc", offered=None, more=""):
        """The operator's file."""
        named = json.dumps([one.name for one in self.both] if offered is None else offered)
        Path("/etc/onload-ctk/config.toml").write_text(
            f'[annotations]\nallow = ["nic", "netdev"]\naddresses = ["198.51.100.0/24", "203.0.113.0/24"]\nroot-with-onload = "allow"\n\n'
            f'[runtime]\npath = "{low}"\n\n[discover]\noffer-netdevs = {named}\n\n'
            f'[netdev."{self.first.name}"]\naddresses = ["{CONFIGURED}"]\n\n[netdev."{self.second.name}"]\naddresses = ["{OTHER}/24"]\n\n'
            f'[pools.{POOL}]\nclass = "netdev"\nselect = {{ interfaces = {json.dumps([one.name for one in self.both])} }}\n{more}', encoding="ascii")

    def request(self, door, names, addresses=()):
        """Devices, or annotations with addresses in their order."""
        extra = {"onload.dev/address": ",".join(addresses)} if addresses and door != "cdi" else {}
        return engines.Request(door, [f"netdev={name}" for name in names], extra)

    def start(self, engine, name, door, names, addresses=(), argv=WAITS, network=None):
        self.configure(engine.low)
        return self.started(engine, name, door, names, addresses, argv, network)

    def started(self, engine, name, door, names, addresses=(), argv=WAITS, network=None):
        """By the operator's file as it is."""
        kept = Kept(engine, name, "debian13", argv, self.request(door, names, addresses), network=network or engine.bridge)
        self.moves += kept.started.status == 0
        return kept

    def is_back(self, what, wanted=None, seconds=30):
        """Every interface is on the host, as it was, and no lease is left of it."""
        self.ends += 1
        wanted = wanted or self.both
        deadline = time.monotonic() + seconds
        while not (whole := all(one.is_home() for one in wanted) and not held()) and time.monotonic() < deadline:
            time.sleep(0.3)
        self.lost += not check(f"{what}: the interface is back as it was", whole, "\n".join(map(str, wanted)))
        return whole


def held():
    """Leases of interfaces, those that are to come back included."""
    return [lease for lease in leases.leased() if lease["class"] == "netdev"]


def program_of(interface):
    """The process whose network namespace has it, as its lease says."""
    found = [lease["pid"] for lease in held() if lease["name"] == interface.name]
    return found[0] if found else 0


def within(pid, *command, **options):
    return run("nsenter", f"--net=/proc/{pid}/ns/net", *command, **options)


def links_in(pid):
    """Interfaces by name, with their addresses."""
    done = within(pid, "ip", "-json", "address", "show")
    told = json.loads(done.out or "[]")
    return {link["ifname"]: {"up": "UP" in link["flags"], "carrier": "LOWER_UP" in link["flags"], "mtu": link["mtu"], "addresses": [f"{each['local']}/{each['prefixlen']}" for each in link["addr_info"]]}
            for link in told}


def works_in(pid, interface, address=CONFIGURED):
    """Whether the interface is in that process's network, up and with its address."""
    own = links_in(pid).get(interface.name, {}) if pid else {}
    return bool(own.get("up")) and address in own["addresses"]


def pings(pid, interface):
    """The peer's answer through the interface, whose link takes seconds to come up."""
    return within(pid, "ping", "-c", "1", "-w", "40", "-I", interface.name, PEER)


def load_program():
    """An XDP program that lets everything pass, kept as a file: bpf(2), BPF_PROG_LOAD and BPF_OBJ_PIN."""
    code = struct.pack("=BBhi", 0xB7, 0, 0, 2) + struct.pack("=BBhi", 0x95, 0, 0, 0)  # r0 = XDP_PASS; exit
    instructions, licence, path = (ctypes.create_string_buffer(data) for data in (code, b"GPL", PROGRAM.encode()))
    Path(PROGRAM).unlink(missing_ok=True)
    call = ctypes.CDLL(None, use_errno=True).syscall
    load = struct.pack("=IIQQ", 6, 2, ctypes.addressof(instructions), ctypes.addressof(licence)).ljust(128, b"\0")
    program = call(321, 5, ctypes.create_string_buffer(load), 128)
    if program < 0:
        raise OSError(ctypes.get_errno(), "loading an XDP program")
    pin = struct.pack("=QI", ctypes.addressof(path), program).ljust(128, b"\0")
    if call(321, 6, ctypes.create_string_buffer(pin), 128):
        raise OSError(ctypes.get_errno(), f"keeping a program as {PROGRAM}")
    os.close(program)


def discovered():
    return json.loads(must("onload-ctk", "discover", "--format", "json").out)


def reason_for(name):
    """Why an interface is not offered; empty where it is."""
    told = discovered()
    if any(one["name"] == name for one in told["netdevs"]):
        return ""
    return next((one["reason"] for one in told["not_offered"] if (one["kind"], one["name"]) == ("netdev", name)), "nothing is said of it")


def names_in(specification):
    return [device["name"] for device in json.loads(specification.read_text())["devices"]] if specification.exists() else []


def offered_by_the_unit(lab):
    """The unit sees by netlink what a shell sees, and its specifications are the same."""
    lab.configure()
    done = run("systemctl", "start", "onload-cdi.service", timeout=120)
    said = run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "onload-cdi.service").out
    names = names_in(SPEC)
    check("netdev: the unit offers what the operator names", done.status == 0 and {one.name for one in lab.both} <= set(names), f"{done}\n{names}\n{said}")
    shell = Path("/run/machine/shell-specs")
    done = run("onload-ctk", "cdi", "generate", "--output-dir", shell)
    same = SPEC.exists() and (shell / SPEC.name).exists() and (shell / SPEC.name).read_bytes() == SPEC.read_bytes()
    check("netdev: and writes what a shell writes", same, done)


def in_use(lab):
    """What the host uses is not offered, and the reason says what for."""
    name, other = lab.second.name, lab.physical[0]
    lab.configure(offered=["*"])
    check("netdev: a function's interface with functions of its own stays", "it has virtual functions" in reason_for(other), reason_for(other))
    check("netdev: an idle interface is offered", reason_for(name) == "", reason_for(name))
    tries = [("an address", "it has the address 203.0.113.77/24", [["address", "add", "203.0.113.77/24", "dev", name]], [["address", "flush", "dev", name]]),
             ("an XDP program", "an XDP program is attached", [["link", "set", "dev", name, "xdpgeneric", "pinned", PROGRAM]], [["link", "set", "dev", name, "xdpgeneric", "off"]]),
             ("a macvlan on it", "macvlan \"on-it\" is on it", [["link", "add", "on-it", "link", name, "type", "macvlan"]], [["link", "delete", "on-it"]])]
    for what, words, make, undo in tries:
        try:
            for command in make:
                must("ip", *command)
            reason = reason_for(name)
        finally:
            for command in undo:
                run("ip", *command)
        check(f"netdev: an interface with {what} stays on the host, with the reason", words in reason, reason)
    lab.configure(offered=["*"])
    check("netdev: it is offered when the host uses it no more", reason_for(name) == "" and lab.second.is_home(), f"{reason_for(name)}\n{lab.second}")


def has_it(lab, what, interface, address, kept, beside="eth0"):
    """The container has the interface beside its own, up and with its address."""
    pid = program_of(interface)
    if not check(f"{what}: the container has the interface", kept.started.status == 0 and pid, f"{kept.started}\n{engines.said_by_hook(kept.started)}\n{interface}"):
        return 0
    is_in(what, pid, interface, address, beside)
    return pid


def is_in(what, pid, interface, address, beside="eth0"):
    """The network of a process has it, and the host has it no more."""
    links = links_in(pid)
    own = links.get(interface.name, {})
    check(f"{what}: it is up and has its address", own.get("up") and address in own["addresses"], links)
    wanted = {"lo", interface.name, beside} - {None}
    check(f"{what}: beside what the engine gives", wanted <= set(links), links)
    check(f"{what}: the host does not have it", host_facts(interface.function) is None, interface)


def by_door(lab, engine, door):
    """From start to removal in a bridge network."""
    what = f"{engine.name} {door}"
    first = lab.first
    address = CONFIGURED if door == "cdi" else ANNOTATED
    with lab.start(engine, "moves", door, [first.name], [f"{first.name}={ANNOTATED}"]) as kept:
        has_it(lab, what, first, address, kept)
    lab.is_back(f"{what}: when the container is removed")


def over_the_wire(lab, engine, door):
    """A card with a wire moves, and what is at the other end answers."""
    what = f"{engine.name} {door}: a card with a wire"
    name = lab.wired.name
    lab.configure(engine.low, [name], f'\n[netdev."{name}"]\naddresses = ["{CONFIGURED}"]\n')
    offered = generate()
    with lab.started(engine, "wired", door, [name], [f"{name}={ANNOTATED}"]) as kept:
        if pid := has_it(lab, what, lab.wired, CONFIGURED if door == "cdi" else ANNOTATED, kept):
            done = pings(pid, lab.wired)
            check(f"{what}: the other end answers", done.status == 0, f"{offered}\n{done}\n{links_in(pid)}")
    lab.is_back(f"{what}: when the container is removed", [lab.wired])
    lab.configure(engine.low)
    generate()


def without_network(lab, engine, door):
    first = lab.first
    what = f"{engine.name} {door}"
    with lab.start(engine, "alone", door, [first.name], network="none") as kept:
        has_it(lab, f"{what}: with --network none", first, CONFIGURED, kept, beside=None)
    lab.is_back(f"{what}: after --network none")


def several(lab, engine, door, names, addresses=()):
    """Two at once: by their names, or from a pool."""
    what = f"{engine.name} {door}: {' and '.join('a VF' if name in (lab.first.name, lab.second.name) else name for name in names)}"
    with lab.start(engine, "several", door, names, addresses) as kept:
        pid = program_of(lab.first)
        links = links_in(pid) if pid else {}
        there = [links.get(one.name, {}).get("up") for one in lab.both]
        check(f"{what}: both are in the container", kept.started.status == 0 and there == [True, True], f"{kept.started}\n{engines.said_by_hook(kept.started)}\n{links}")
        if addresses:
            given = sorted(address for link in links.values() for address in link["addresses"] if address.startswith(("198.51.100.", "203.0.113.")))
            check(f"{what}: each has its own address", given == sorted(each.partition("=")[2] for each in addresses), links)
    lab.is_back(f"{what}: when the container is removed")


def is_refused(lab, what, kept, words):
    said = engines.said_by_hook(kept.started)
    check(f"netdev: {what} is refused by name", kept.started.status != 0 and words in said, f"{kept.started}\n{said}")
    check(f"netdev: {what}: nothing has moved", lab.first.is_home() and lab.second.is_home() and not held(), f"{lab.first}\n{lab.second}")


def refusals(lab):
    docker, podman, first = engines.Docker(), engines.Podman("crun"), lab.first
    lab.configure()
    check("netdev: specifications before the refusals", generate().status == 0)
    with lab.start(docker, "refused", "cdi", [first.name], network="host") as kept:
        is_refused(lab, "--network host", kept, "the container has this host's own network")
    with lab.start(podman, "refused", "wrapper", [first.name], [f"{first.name}=10.1.2.3/24"]) as kept:
        is_refused(lab, "an address that the operator does not allow", kept, "10.1.2.3")
    with lab.start(engines.Rootless(), "refused", "cdi", [first.name], network="none") as kept:
        is_refused(lab, "a plain user's engine", kept, "rootless")
    with Kept(docker, "taken", "debian13", WAITS, engines.Request("plain", []), network="netdev") as owner:
        pid = must("docker", "inspect", "--format", "{{.State.Pid}}", "taken").out.strip()
        within(pid, "ip", "link", "add", "machine-vf0", "type", "dummy")
        with lab.start(docker, "refused", "cdi", [first.name], network="container:taken") as kept:
            is_refused(lab, "a name that the container has", kept, 'the container has an interface called "machine-vf0" already')
        check("netdev: the container whose name it is goes on", owner.started.status == 0 and "machine-vf0" in links_in(pid), links_in(pid))
    must("ip", "address", "add", "198.51.100.99/24", "dev", first.name)
    try:
        with lab.start(podman, "refused", "cdi", [first.name]) as kept:
            said = engines.said_by_hook(kept.started)
            words = "it has the address 198.51.100.99/24"
            check("netdev: what the host has come to use since is looked at again", kept.started.status != 0 and words in said, f"{kept.started}\n{said}")
    finally:
        must("ip", "address", "flush", "dev", first.name)
    called_eth0(lab, docker)


def called_eth0(lab, engine):
    """Engines call their own interface so."""
    second = lab.second
    try:
        must("ip", "link", "set", second.name, "name", "eth0")
        lab.configure(offered=["eth0"])
        done = generate()
        with Kept(engine, "refused", "debian13", WAITS, engines.Request("cdi", ["netdev=eth0"]), network="none") as kept:
            said = engines.said_by_hook(kept.started)
            check("netdev: eth0 is refused by name", done.status == 0 and kept.started.status != 0 and "engines call the container's own interface so" in said, f"{done}\n{kept.started}\n{said}")
    finally:
        must("udevadm", "settle", "--timeout=30")
        run("ip", "link", "property", "del", "dev", "eth0", "altname", second.name)
        must("ip", "link", "set", "eth0", "name", second.name)
        must("udevadm", "settle", "--timeout=30")
        run("ip", "link", "property", "del", "dev", second.name, "altname", "eth0")
        lab.configure()
        generate()
    check("netdev: nothing has moved of eth0", second.is_home() and not held(), second)


def arrivals(lab, table, full, few):
    every = [(engine, door) for engine, door in leases.tried(table, "debian13") if engine.name != "ctr"]
    by_name = {engine.name: engine for engine, _ in every}
    quick = [("docker-runc", "cdi"), ("podman-crun", "live"), ("podman-runc", "precreate"), ("cri", "wrapper")][:1 if few else None]
    for engine, door in every:
        if full or (engine.name, door) in quick:
            with Part(f"netdev: {engine.name} {door}"):
                by_door(lab, engine, door)
    if few:
        return
    docker, podman = by_name["docker-runc"], by_name["podman-crun"]
    with Part("netdev: none, two and pools"):
        without_network(lab, podman, "cdi")
        several(lab, docker, "wrapper", [f"{POOL}*2"], [f"{POOL}=198.51.100.21/24", f"{POOL}#2=203.0.113.22/24"])


def parts(bench, table, wanted, full):
    """A run of everything tries one way in with --quick and few with --full: all of them take half an hour."""
    few = not full and not wanted

    def on(name):
        return any(word in name for word in wanted) if wanted else full or name in ("netdev-in", "netdev-wire")

    import netdev_back
    import netdev_cluster
    import netdev_ends
    import netdev_held
    if not any(map(on, PARTS)):
        return
    by_name = {engine.name: engine for engine in engines.all_engines()}
    with contextlib.ExitStack() as stack:
        with Part("netdev: devices"):
            lab = stack.enter_context(Lab(bench))
            log(f"interfaces {lab.first.name} and {lab.second.name}, with a wire {lab.wired.name}")
        with Part("netdev: discovery"):
            offered_by_the_unit(lab)
            if on("netdev-in"):
                in_use(lab)
        if on("netdev-in"):
            arrivals(lab, table, full and bool(wanted), few)
        if on("netdev-refused"):
            with Part("netdev: refusals"):
                refusals(lab)
        netdev_back.parts(lab, on)
        netdev_ends.parts(lab, on, by_name, bool(wanted), few)
        netdev_held.parts(lab, on, by_name)
        netdev_cluster.parts(lab, on)
        if on("netdev-wire"):
            with Part("netdev: over a wire"):
                over_the_wire(lab, engines.Docker(), "cdi")
        log(f"netdev: {lab.moves} moves and {lab.ends} ends")
        check("netdev: no interface was lost", lab.moves > 0 and lab.ends > 0 and lab.lost == 0, f"{lab.moves} moves, {lab.ends} ends, {lab.lost} lost")
