"""A guest without any of the hardware: the product says so, offers nothing and is in nobody's way."""

import json
import os

import engines
import live
import session
from report import Part, check, run


def bare():
    with Part("engines"):
        engines.prepare()
    session.install()
    session.configure("/usr/bin/crun")
    done = run("onload-ctk", "discover", "--format", "json")
    try:
        inventory = json.loads(done.out)
    except ValueError:
        inventory = {}
    # Onload's user files are installed in every guest; without its driver they offer nothing.
    empty = all(not inventory.get(key) for key in ("tcpdirect", "nics", "rdma", "vfio")) and (inventory.get("onload") or {}).get("version") is None
    check("no hardware: discover answers, with nothing of nic, rdma and vfio", done.status == 0 and inventory and empty, done)
    done = run("onload-ctk", "discover", "--explain")
    check("no hardware: discover --explain says why", done.status == 0 and "onload" in done.out.lower(), done)
    done = run("onload-ctk", "cdi", "generate")
    names = os.listdir("/var/run/cdi") if os.path.isdir("/var/run/cdi") else []
    offered = [name for name in names if name in ("onload.dev-nic.json", "onload.dev-zf.json", "onload.dev-rdma.json", "onload.dev-vfio.json")]
    check("no hardware: generate ends with 0 and writes no such spec", done.status == 0 and not offered, f"{done}\n{names}")
    live.write_hook_spec()
    for engine in (engines.Docker(), engines.Podman("crun")):
        session.configure(engine.low)
        for door in engine.doors:
            request = engines.Request(door, ["nic=all"])
            started = engine.run("bare", "debian13", ["sh", "-c", "exit 0"], request)
            engine.remove("bare")
            check(f"no hardware: {engine.name} {door} refuses nic=all by name", started.status != 0 and "nic" in engines.said_by_hook(started), started)
            started = engine.run("bare", "debian13", ["sh", "-c", "exit 0"], engines.Request(door, []))
            engine.remove("bare")
            check(f"no hardware: {engine.name} {door} starts a container that asks for nothing", started.status == 0, started)
