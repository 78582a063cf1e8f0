"""A stand-in for a GPU behind the same switch as an interface, and below the same PCIe root as one of two cards with virtual functions: each
engine gives a container of that GPU the one that is nearest.

The GPU is a graphics card that QEMU makes, of a vendor of GPUs, which has no driver here. A file system over /proc/driver says of it what NVIDIA's
driver would, and /dev/nvidia0 is a node of that driver's number with nothing behind it.
"""

import json
import os
import shutil
import stat
import time
from pathlib import Path

import devices
import engines
import leases
import live
import matrix
import session
from parts import Kept, generate
from report import Part, check, emit, must, run

VENDOR, DISPLAY = "0x1002", "0x03"
NODE, UUID = "/dev/nvidia0", "GPU-0badcafe-0000"
POOLS = Path("/var/run/cdi/onload.dev-vfio-pools.json")
LAST_RUN = Path("/run/onload-cdi/last-run")
NEAR = {"onload.dev/near": "gpu"}
WAYS = {"a node": f"--device={NODE}", "a number": "--env=NVIDIA_VISIBLE_DEVICES=0", "a UUID": f"--env=NVIDIA_VISIBLE_DEVICES={UUID}"}


def gpu():
    """The address of the graphics card."""
    for function in sorted(Path("/sys/bus/pci/devices").iterdir()):
        if devices.read(function / "vendor") == VENDOR and devices.read(function / "class").startswith(DISPLAY):
            return function.name
    raise RuntimeError(f"no graphics card of vendor {VENDOR}")


def interface_beside(address):
    """The interface that is below the same switch."""
    switch = (Path("/sys/bus/pci/devices") / address).resolve().parent.parent
    return sorted(path.name for path in switch.glob("*/*/net/*"))[0]


def load_stand_in(address):
    must("mount", "-t", "tmpfs", "none", "/proc/driver")
    directory = Path("/proc/driver/nvidia/gpus") / address
    directory.mkdir(parents=True)
    (directory / "information").write_text(f"Model: \t\t stand-in\nGPU UUID: \t {UUID}\nBus Location: \t {address}\nDevice Minor: \t 0\n", encoding="ascii")
    os.mknod(NODE, 0o666 | stat.S_IFCHR, os.makedev(195, 0))


def start(engine, door, way, asks=("vfio=any",), extra=None, name="near"):
    session.configure(engine.low)
    request = engines.Request(door, list(asks), NEAR if extra is None else extra)
    return Kept(engine, name, "debian13", leases.TELLS, request, more=[way] if way else [])


def groups(kept):
    """The groups whose nodes a container says that it has."""
    words = [line.split("/")[-1] for line in kept.report().splitlines() if line.startswith("given /dev/vfio/")]
    return sorted(word for word in words if word.isdigit())


def doors():
    return [(engines.Docker(), "wrapper"), (engines.Docker(), "live"), (engines.Podman("crun"), "precreate"), (engines.Podman("runc"), "wrapper"),
            (engines.Podman("crun"), "live"), (engines.Ctr(), "wrapper")]


def discovered(address, beside):
    done = run("onload-ctk", "topology")
    nearest = f"nearest NIC: {beside} (PIX)"
    check("near: topology has the interface of the same switch nearest to the GPU", done.status == 0 and nearest in done.out, f"{nearest}\n{done}")
    annotations = json.loads(POOLS.read_text(encoding="utf-8"))["devices"][0]["annotations"]
    check("near: the pool of functions says what is near the GPU", f"{address}=1:0,0:1" in annotations.get("onload.dev/pool-near", ""), annotations)


def given(bench):
    """What each engine gives by each way to a GPU, and what it gives without."""
    (_, other), (_, beside) = bench.found["vfio"]
    for engine, door in doors():
        what = f"near: {engine.name} {door}"
        with start(engine, door, "", extra={}) as kept:
            check(f"{what}: without it a container gets the first function", groups(kept) == [other], kept.text())
        for title, way in WAYS.items():
            with start(engine, door, way) as kept:
                good = kept.started.status == 0 and groups(kept) == [beside]
                check(f"{what}: by {title}, a container gets the function below the root of its GPU", good, f"{kept.text()}\n{engines.said_by_hook(kept.started)}")


def interfaces(bench, beside):
    """The interface of the same switch moves into a container of the GPU, and another one without."""
    function = Path("/sys/bus/pci/devices") / bench.found["functions"][1] / "virtfn1"
    other = sorted(path.name for path in (function / "net").iterdir())[0]
    config = Path("/etc/onload-ctk/config.toml")
    for engine, door in [(engines.Docker(), "wrapper"), (engines.Podman("crun"), "precreate")]:
        must("ip", "link", "set", beside, "up")
        session.configure(engine.low)
        text = config.read_text(encoding="ascii").replace('allow = ["nic"', 'allow = ["netdev", "nic"')
        config.write_text(f'{text}\n[discover]\noffer-netdevs = ["{beside}", "{other}"]\n', encoding="ascii")
        for title, name, extra in [("near", beside, NEAR), ("any", min(beside, other), {})]:
            done = generate()
            check("near: cdi generate with interfaces", done.status == 0, done)
            request = engines.Request(door, ["netdev=any"], extra)
            program = ["sh", "-c", "ls /sys/class/net; echo END-OF-REPORT; exec sleep 1000"]
            with Kept(engine, "interface", "debian13", program, request, network="none", more=[WAYS["a node"]]) as kept:
                found = [word for word in kept.report().split() if word in (beside, other)]
                check(f"near: {engine.name} {door}: {title} gives the interface", found == [name], f"{found}, not {name}\n{kept.text()}\n{engines.said_by_hook(kept.started)}")
            devices.wait_for(f"/sys/class/net/{name}")


def in_turn(bench):
    (_, other), (_, beside) = bench.found["vfio"]
    one, two, three = doors()[0], doors()[2], doors()[-1]
    way = WAYS["a node"]
    with start(*one, way, name="first") as first, start(*two, way, name="second") as second, start(*three, way, name="third") as third:
        check("near: the first of three containers gets the function below the root of the GPU", groups(first) == [beside], first.text())
        check("near: the second gets the next nearest, that on the other node", groups(second) == [other], second.text())
        check("near: the third is refused", third.started.status != 0 and "which has 0 free of 2" in engines.said_by_hook(third.started), third.text())


def refused():
    cases = [("", ["vfio=any"], NEAR, "the container has no GPU"),
             ("--env=NVIDIA_VISIBLE_DEVICES=GPU-none", ["vfio=any"], NEAR, "is no GPU of this host"),
             (WAYS["a node"], ["hugepages=2Mi"], NEAR, "it has no effect without a pool"),
             (WAYS["a node"], ["vfio=any"], {"onload.dev/near": "gpu0"}, "want gpu"),
             (WAYS["a node"], ["vfio=any"], {**NEAR, "onload.dev/numa": "0"}, "")]
    for engine, door in [(engines.Docker(), "wrapper"), (engines.Podman("crun"), "precreate"), (engines.Ctr(), "wrapper")]:
        for way, asks, extra, words in cases:
            with start(engine, door, way, asks, extra) as kept:
                said = engines.said_by_hook(kept.started)
                good = words in said and kept.started.status != 0 if words else kept.started.status == 0
                check(f"near: {engine.name} {door}: {asks[0]} with {extra} and {way or 'no GPU'}: {words or 'numa decides first'}", good, f"{kept.text()}\n{said}")


def by_variable(bench):
    """As in a compose file, or a job of Nomad."""
    session.configure("/usr/bin/runc")
    config = Path("/etc/onload-ctk/config.toml")
    config.write_text(config.read_text(encoding="ascii") + '\n[environment]\nallow = ["vfio"]\n', encoding="ascii")
    engine = engines.Docker()
    request = engines.Request("wrapper", [])
    more = ["--env=ONLOAD_CTK_REQUEST=vfio=any;near=gpu", WAYS["a number"]]
    with Kept(engine, "variable", "debian13", leases.TELLS, request, more=more) as kept:
        check("near: a request by variable gets the function below the root of the GPU", groups(kept) == [bench.found["vfio"][1][1]], kept.text())


def follows():
    """The specifications are written again when a vendor's file comes, and a run does not start the next one."""
    for unit in ("onload-cdi.service", "onload-cdi.path"):
        shutil.copy(f"/run/machine/packaging/systemd/{unit}", f"/etc/systemd/system/{unit}")
    must("systemctl", "daemon-reload", timeout=120)
    must("systemctl", "start", "onload-cdi.service", "onload-cdi.path", timeout=120)
    for path in ("/var/run/cdi/nvidia.yaml", "/etc/cdi/amd.json"):
        before = LAST_RUN.stat().st_mtime_ns
        time.sleep(2)
        check(f"near: nothing runs before {path} comes", LAST_RUN.stat().st_mtime_ns == before)
        temporary = Path(f"{path}.new")
        temporary.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "vendor.test/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}), encoding="ascii")
        temporary.rename(path)
        deadline = time.monotonic() + 60
        while LAST_RUN.stat().st_mtime_ns == before and time.monotonic() < deadline:
            time.sleep(0.5)
        check(f"near: {path} starts a run", LAST_RUN.stat().st_mtime_ns != before, run("systemctl", "status", "onload-cdi.path", "onload-cdi.service"))
        while run("systemctl", "is-active", "onload-cdi.service").out.strip() == "activating":
            time.sleep(0.5)
        after = LAST_RUN.stat().st_mtime_ns
        time.sleep(10)
        check(f"near: the run after {path} starts no other", LAST_RUN.stat().st_mtime_ns == after)
    must("systemctl", "stop", "onload-cdi.path")


def near():
    with Part("devices"):
        found = devices.bring_up()
        address = gpu()
        load_stand_in(address)
        emit("log", text=f"devices: {found}, GPU {address}")
    with Part("engines"):
        engines.prepare()
    bench = matrix.Bench(found)
    session.install()
    session.configure("/usr/bin/runc")
    done = generate()
    check("near: onload-ctk cdi generate", done.status == 0, done)
    live.write_hook_spec()
    beside = interface_beside(address)
    for name, part in [("near-discovered", lambda: discovered(address, beside)), ("near-given", lambda: given(bench)), ("near-turn", lambda: in_turn(bench)),
                       ("near-refused", refused), ("near-variable", lambda: by_variable(bench)), ("near-interfaces", lambda: interfaces(bench, beside)),
                       ("near-follows", follows)]:
        with Part(name):
            part()
