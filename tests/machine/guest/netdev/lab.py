"""The laboratory of interfaces that move: the functions, the networks and the units, and what tells where an interface is and how."""

import ctypes
import ipaddress
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
from report import check, must, run

UNITS = ["onload-cdi.service", "onload-cdi.path", "onload-cdi.timer", "onload-restore.service"]
RULE = "90-onload-ctk.rules"
SPEC = Path("/var/run/cdi/onload.dev-netdev.json")
CNI = Path("/etc/cni/net.d/00-netdev.conflist")
# What answers at the other end of the first function's wire, and the network that it is in.
PEER, FAR = "198.51.100.1", "far"
OTHER = "203.0.113.10"
POOL = "fast"
PROGRAM = "/sys/fs/bpf/machine-netdev"
WAITS = ["sleep", "1000"]
# By configuration, and by an annotation that replaces it.
CONFIGURED, ANNOTATED = "198.51.100.10/24", "198.51.100.11/24"


def host_facts(function):
    """What the interface of a function is on the host; None where it does not exist."""
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
    """A virtual function's interface, with what it is on the host. One that is wired has the peer at its other end."""

    def __init__(self, function, was=None, is_wired=False):
        self.function = function
        self.is_wired = is_wired
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
        self.first, self.second = (Interface(function, is_wired=at == 0) for at, function in enumerate(functions))
        self.both = [self.first, self.second]
        card = next(path.name for path in Path("/sys/bus/pci/drivers/e1000e").iterdir() if ":" in path.name)
        self.card = Interface(card, is_wired=True)
        self.moves = self.ends = self.lost = 0

    def __enter__(self):
        self.put_card_far()
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
        self.take_card_home()
        for at, one in enumerate(self.both):
            run("ip", "link", "property", "del", "dev", one.name, "altname", f"machine-vf{at}")
        session.configure("/usr/bin/runc")
        generate()

    def put_card_far(self):
        """The card at the other end of the wire has a network of its own, which nothing reaches but a frame over the wire."""
        must("ip", "netns", "add", FAR)
        must("ip", "link", "set", self.card.name, "netns", FAR)
        must("ip", "-n", FAR, "address", "add", f"{PEER}/24", "dev", self.card.name)
        must("ip", "-n", FAR, "link", "set", self.card.name, "up")

    def take_card_home(self):
        run("ip", "netns", "delete", FAR)
        devices.wait_for(f"/sys/bus/pci/devices/{self.card.function}/net/{self.card.name}")
        run("udevadm", "settle", "--timeout=30")

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


def reaches_peer(interface, address):
    """Whether the peer is at the other end of its wire, and in the network of its address."""
    return interface.is_wired and ipaddress.ip_address(PEER) in ipaddress.ip_interface(address).network


def answers(pid, interface):
    """The other end's answer through the interface, whose link takes seconds to come up."""
    return within(pid, "ping", "-c", "1", "-w", "40", "-I", interface.name, PEER)


def works_in(pid, interface, address=CONFIGURED):
    """Whether the interface is in that process's network, up and with its address, and reaches what is at its other end."""
    own = links_in(pid).get(interface.name, {}) if pid else {}
    is_set = bool(own.get("up")) and address in own["addresses"]
    return is_set and (not reaches_peer(interface, address) or answers(pid, interface).status == 0)


def load_program():
    """An XDP program that lets everything pass, kept as a file: bpf(2), BPF_PROG_LOAD and BPF_OBJ_PIN."""
    code = struct.pack("=BBhi", 0xB7, 0, 0, 2) + struct.pack("=BBhi", 0x95, 0, 0, 0)  # r0 = XDP_PASS; exit
    instructions, licence, path = (ctypes.create_string_buffer(data) for data in (code, b"GPL", PROGRAM.encode()))
    Path(PROGRAM).unlink(missing_ok=True)
    call = ctypes.CDLL(None, use_errno=True).syscall
    load = struct.pack("=IIQQ", 6, 2, ctypes.addressof(instructions), ctypes.addressof(licence)).ljust(128, b"\0")
    program = call(devices.BPF, 5, ctypes.create_string_buffer(load), 128)
    if program < 0:
        raise OSError(ctypes.get_errno(), "loading an XDP program")
    pin = struct.pack("=QI", ctypes.addressof(path), program).ljust(128, b"\0")
    if call(devices.BPF, 6, ctypes.create_string_buffer(pin), 128):
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


def is_in(what, pid, interface, address, beside="eth0"):
    """The network of a process has it, and the host has it no more."""
    links = links_in(pid)
    own = links.get(interface.name, {})
    check(f"{what}: it is up and has its address", own.get("up") and address in own["addresses"], links)
    if reaches_peer(interface, address):
        done = answers(pid, interface)
        check(f"{what}: the other end of the wire answers through it", done.status == 0, f"{done}\n{links_in(pid)}")
    wanted = {"lo", interface.name, beside} - {None}
    check(f"{what}: beside what the engine gives", wanted <= set(links), links)
    check(f"{what}: the host does not have it", host_facts(interface.function) is None, interface)
