"""A virtual function as its tenant needs it: its VLAN and its like on igb, over the wire, and as it was afterwards.

What QEMU's igb does not do of a setting that its driver takes is told in the record, and is no failure of ours.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import devices
import engines
import host_boot
import leases
from parts import Kept, generate
from report import Part, check, log, must, run

from .back import RESTORE, kill_whole
from .lab import FAR, PEER, WAITS, program_of, within

VLAN = 100
# The other end of the wire in that VLAN, and what the container gets there.
TAGGED, FAR_TAGGED, OWN_TAGGED = "tagged", "10.77.100.1", "10.77.100.10"
MAC = "02:00:00:00:77:01"
FOREIGN = "02:00:00:00:66:66"

# Says which of these addresses frames of a kind came from, until none has come for a while.
HEARS = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
s.bind((sys.argv[1], 0x88B5)); s.settimeout(8); print("hears", flush=True)
try:
    while True: print(s.recv(2048)[6:12].hex(":"), flush=True)
except TimeoutError: pass
"""
SENDS = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind((sys.argv[1], 0))
for source in sys.argv[2:]:
    for _ in range(3): s.send(b"\\xff" * 6 + bytes.fromhex(source.replace(":", "")) + b"\\x88\\xb5" + b"x" * 50)
"""


class Tenant:
    """The function with a wire, and what its physical function says of it."""

    def __init__(self, lab):
        self.lab, self.name = lab, lab.first.name
        self.physical, self.number = lab.physical[0], 1
        self.was = self.now()

    def now(self, number=None):
        told = host_boot.vf_info(self.physical)
        return next(one for one in told if one["vf"] == (self.number if number is None else number))

    def configure(self, vf, more=""):
        self.lab.configure(more=f'[netdev."{self.name}".vf]\n{vf}\n{more}')
        must("onload-ctk", "cdi", "generate")

    def start(self, engine, door="cdi", vlan=None):
        extra = {"onload.dev/vlan": f"{self.name}={vlan}"} if vlan is not None else {}
        kept = Kept(engine, "tenant", "debian13", WAITS, engines.Request(door, [f"netdev={self.name}"], extra), network=engine.bridge)
        self.lab.moves += kept.started.status == 0
        return kept

    def is_back(self, what):
        self.lab.is_back(what)
        check(f"{what}: the physical function has it as it was", self.now() == self.was, f"{self.was}\n{self.now()}")

    def reaches(self, pid, address, seconds=40):
        return within(pid, "ping", "-c", "1", "-w", str(seconds), "-I", self.name, address)


def over_the_wire(tenant, pid, what, is_tagged):
    """The network that it is to be in answers, and then the other does not."""
    within(pid, "ip", "address", "add", f"{OWN_TAGGED}/24", "dev", tenant.name)
    own, other = (FAR_TAGGED, PEER) if is_tagged else (PEER, FAR_TAGGED)
    done = tenant.reaches(pid, own)
    check(f"{what}: {'its VLAN' if is_tagged else 'the network without a tag'} answers over the wire", done.status == 0, done)
    done = tenant.reaches(pid, other, 4)
    check(f"{what}: {'the network without a tag' if is_tagged else 'the VLAN'} does not", done.status != 0, done)


def tagged_and_untagged(tenant):
    lab, docker = tenant.lab, engines.Docker()
    tenant.configure(f"vlan = {VLAN}\nspoof-check = true")
    with tenant.start(docker) as kept:
        pid = program_of(lab.first)
        if check("vf-settings: vlan: it starts", kept.started.status == 0 and pid, kept.started):
            vlan = tenant.now().get("vlan", (tenant.now().get("vlan_list") or [{}])[0].get("vlan"))
            check("vf-settings: vlan: the physical function has it", vlan == VLAN, tenant.now())
            shown = [one for one in leases.leased() if one["name"] == tenant.name]
            check("vf-settings: vlan: the lease says what was given and before", [one["vf"]["given"]["vlan"]["id"] for one in shown] == [VLAN], shown)
            over_the_wire(tenant, pid, "vf-settings: vlan", True)
            plan_is_unaffected(tenant)
    tenant.is_back("vf-settings: vlan")
    tenant.configure("spoof-check = true")
    with tenant.start(docker) as kept:
        pid = program_of(lab.first)
        if check("vf-settings: no vlan: it starts", kept.started.status == 0 and pid, kept.started):
            over_the_wire(tenant, pid, "vf-settings: no vlan", False)
    tenant.is_back("vf-settings: no vlan")


def plan_is_unaffected(tenant):
    """The operator's section says what the function was: nothing differs while a container has it otherwise."""
    config = Path("/etc/onload-ctk/config.toml")
    kept = config.read_text(encoding="ascii")
    text = f'\n[[sriov]]\npf = "{tenant.physical}"\nvfs = 2\ndriver = "kernel"\nvlan = 0\n'
    config.write_text(kept + text, encoding="ascii")
    done, applied = host_boot.plan(), host_boot.apply()
    config.write_text(kept, encoding="ascii")
    devices.to_vfio(first_function(tenant))
    check("vf-settings: host plan sees no difference", f"vf {tenant.number} " not in f"{done.out}{done.err}" or "vlan" not in f"{done.out}{done.err}", done)
    now = tenant.now()
    check("vf-settings: host apply leaves the container its VLAN", str(VLAN) in json.dumps(now), f"{applied}\n{now}")


def chosen(tenant):
    lab = tenant.lab
    tenant.configure('vlans = "100-199"')
    for engine, door in [(engines.Docker(), "wrapper"), (engines.Podman("crun"), "precreate")]:
        what = f"vf-settings: {engine.name} {door}"
        with tenant.start(engine, door, VLAN) as kept:
            pid = program_of(lab.first)
            if check(f"{what}: it chooses its VLAN", kept.started.status == 0 and pid, kept.started):
                over_the_wire(tenant, pid, what, True)
        tenant.is_back(what)
        with tenant.start(engine, door, 300) as kept:
            said = engines.said_by_hook(kept.started)
            check(f"{what}: another VLAN is refused by name", kept.started.status != 0 and "VLAN 300 is not allowed; choose from 100-199" in said, f"{kept.started}\n{said}")
    refused(tenant, 'vlans = "100-199"', "choose a VLAN from 100-199")


def refused(tenant, vf, words):
    tenant.configure(vf)
    what = "vf-settings: " + ", ".join(vf.splitlines())
    with tenant.start(engines.Docker()) as kept:
        said = engines.said_by_hook(kept.started)
        check(f"{what} is refused by name", kept.started.status != 0 and words in said, f"{kept.started}\n{said}")
    tenant.is_back(what)


def heard(tenant, pid):
    """Whose frames reach the other end: its own, and one with a foreign address."""
    own = next(link["address"] for link in json.loads(within(pid, "ip", "-json", "link", "show").out) if link["ifname"] == tenant.name)
    ear = subprocess.Popen(["ip", "netns", "exec", FAR, sys.executable, "-c", HEARS, tenant.lab.card.name], stdout=subprocess.PIPE, text=True)
    ear.stdout.readline()
    within(pid, sys.executable, "-c", SENDS, tenant.name, own, FOREIGN)
    frames = set(ear.communicate(timeout=60)[0].split())
    return own in frames, FOREIGN in frames


def spoofed(tenant):
    found = {}
    for on in ["true", "false"]:
        tenant.configure(f"spoof-check = {on}")
        with tenant.start(engines.Docker()) as kept:
            pid = program_of(tenant.lab.first)
            if not check(f"vf-settings: spoof-check = {on}: it starts", kept.started.status == 0 and pid, kept.started):
                return
            tenant.reaches(pid, PEER)
            found[on] = heard(tenant, pid)
            check(f"vf-settings: spoof-check = {on}: the driver says so", tenant.now()["spoofchk"] == (on == "true"), tenant.now())
        tenant.is_back(f"vf-settings: spoof-check = {on}")
    log(f"vf-settings: own and foreign frames that arrived: with spoof check {found['true']}, without {found['false']}")
    check("vf-settings: its own frames arrive either way", found["true"][0] and found["false"][0], found)
    check("vf-settings: a frame with a foreign address arrives without the check", found["false"][1], found)
    # Of the register that the driver sets for it (DTXSWC) QEMU's igb reads the loopback alone.
    check("vf-settings: QEMU's igb drops it no more with the check, whose bit it does not read", found["true"][1], found)


def address(tenant):
    tenant.configure(f'mac = "{MAC}"')
    with tenant.start(engines.Docker()) as kept:
        pid = program_of(tenant.lab.first)
        if check("vf-settings: mac: it starts", kept.started.status == 0 and pid, f"{kept.started}\n{engines.said_by_hook(kept.started)}"):
            links = within(pid, "ip", "-json", "link", "show").out
            check("vf-settings: mac: the interface has it", MAC in links, links)
            check("vf-settings: mac: the physical function has it", tenant.now()["address"] == MAC, tenant.now())
            done = tenant.reaches(pid, PEER)
            check("vf-settings: mac: the other end answers", done.status == 0, done)
    tenant.is_back("vf-settings: mac")


def killed(tenant):
    """Each party of a container, by kill -9."""
    lab, podman = tenant.lab, engines.Podman("crun")
    tenant.configure(f"vlan = {VLAN}\nspoof-check = true")
    for who in ["the container", "its monitor and it"]:
        with tenant.start(podman if who.startswith("its") else engines.Docker()) as kept:
            pid = program_of(lab.first)
            if not check(f"vf-settings: before {who} is killed it has the function", kept.started.status == 0 and pid, kept.started):
                continue
            if who.startswith("its"):
                kill_whole(pid)
                leases.has_ended(pid, 20)
                run("systemctl", "start", RESTORE)
            else:
                os.kill(pid, signal.SIGKILL)
            tenant.is_back(f"vf-settings: after {who} was killed")
    tenant.is_back("vf-settings: after all were killed")


def of_vfio(tenant):
    """A function of vfio, in a pool that sets it up: its physical function has it while a container holds it."""
    function = first_function(tenant)
    driver = host_boot.driver_of(function)
    if not check("vf-settings: a function of vfio is there", driver == "vfio-pci", f"{function}: {driver}"):
        return
    before = tenant.now(0)
    pool = f'[pools.tenants]\nclass = "vfio"\nselect = {{ addresses = "{function}" }}\nvf = {{ vlan = {VLAN}, spoof-check = true }}\n'
    tenant.configure("spoof-check = true", pool)
    for ask in ["tenants", function, "any"]:
        with Kept(engines.Docker(), "tenant", "debian13", WAITS, engines.Request("cdi", [f"vfio={ask}"]), network="none") as kept:
            held = [one["name"] for one in leases.leased() if one["class"] == "vfio"]
            is_its = held == [function]
            if ask != "any" or is_its:
                now = tenant.now(0)
                check(f"vf-settings: vfio={ask}: it is set up", kept.started.status == 0 and is_its and str(VLAN) in json.dumps(now), f"{kept.started}\n{now}\n{held}")
        check(f"vf-settings: vfio={ask}: it is as it was", tenant.now(0) == before, f"{before}\n{tenant.now(0)}")


def first_function(tenant):
    """Of the same card, and of vfio."""
    return (Path(f"/sys/class/net/{tenant.physical}/device") / "virtfn0").resolve().name


def parts(lab, on):
    if not on("vf-settings"):
        return
    with Part("vf-settings"):
        tenant = Tenant(lab)
        log(f"vf-settings: {tenant.physical} says of function {tenant.number}: {tenant.was}")
        far = ["ip", "-n", FAR]
        # By default a host answers for the addresses of its other interfaces.
        must("ip", "netns", "exec", FAR, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
        must(*far, "link", "add", "link", lab.card.name, "name", TAGGED, "type", "vlan", "id", VLAN)
        must(*far, "address", "add", f"{FAR_TAGGED}/24", "dev", TAGGED)
        must(*far, "link", "set", TAGGED, "up")
        try:
            tagged_and_untagged(tenant)
            chosen(tenant)
            spoofed(tenant)
            address(tenant)
            refused(tenant, 'link-state = "enable"', "refuses link-state enable")
            refused(tenant, f'vlan = {VLAN}\nvlan-protocol = "802.1ad"', "by 802.1ad: Protocol not supported")
            killed(tenant)
            of_vfio(tenant)
        finally:
            run(*far, "link", "delete", TAGGED)
            lab.configure()
            generate()
