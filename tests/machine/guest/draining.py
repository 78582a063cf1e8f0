"""Draining: nothing new of what an operator takes out, a list of who has it, and everything again afterwards."""

import subprocess
from pathlib import Path

import engines
import leases
import session
from parts import Kept, generate, offered, starts
from report import Part, check, run

REASON = "new firmware"
STAYS = ["sh", "-c", "exec sleep 1000"]


def drained(*names):
    return run("onload-ctk", "drain", *names, "--reason", REASON)


def late(engine, door, asks):
    """A container that comes later: how it started, and what was said of it."""
    started = starts(engine, door, asks, "late")
    return started, engines.said_by_hook(started)


def a_class(engine, name):
    """A container has one function; the class is drained, waited for, and offered again."""
    before = offered("vfio")
    with Kept(engine, "holder", "debian13", STAYS, engines.Request("cdi", [f"vfio={name}"])) as kept:
        check(f"drain: {engine.name}: a container has {name}", kept.started.status == 0 and bool(leases.leased(name)), kept.text())
        done = drained("vfio")
        check("drain: vfio: who holds one is listed with its engine", done.status == 1 and "holder" in done.out and engine.name.split("-")[0] in done.out, done)
        check("drain: vfio: no specification offers one", not offered("vfio"), offered("vfio"))
        for door, words in [("cdi", "onload.dev/vfio"), ("wrapper", f"{REASON}; \"onload-ctk undrain vfio\" offers it again")]:
            started, said = late(engine, door, ["vfio=any" if door == "wrapper" else f"vfio={name}"])
            check(f"drain: {engine.name} {door}: a new container is refused with {words!r}", started.status != 0 and words in said, f"{started}\n{said}")
        waits = subprocess.Popen(["onload-ctk", "drain", "vfio", "--wait", "--timeout", "120"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            waits.wait(2)
            check("drain: vfio: --wait waits", False, waits.stdout.read())
        except subprocess.TimeoutExpired:
            pass
    said, _ = waits.communicate(timeout=130)
    check("drain: vfio: --wait ends when the container is gone, and says so", waits.returncode == 0 and "0 containers are left" in said, f"{waits.returncode}\n{said}")
    generate()
    check("drain: vfio: a new look at the host offers none", not offered("vfio"), offered("vfio"))
    undone = run("onload-ctk", "undrain", "vfio")
    check("drain: vfio: undrain offers all of them again", undone.status == 0 and offered("vfio") == before, f"{undone}\n{before}\n{offered('vfio')}")
    started, said = late(engine, "cdi", [f"vfio={name}"])
    check(f"drain: {engine.name}: a container gets one again", started.status == 0, f"{started}\n{said}")


def one_of_a_class(engine, name, other):
    """The others stay, for pools too."""
    done = drained(f"vfio={name}")
    check(f"drain: {name}: nobody holds it", done.status == 0, done)
    left = offered("vfio")
    check(f"drain: {name}: the others are offered", name not in left and other in left, left)
    with Kept(engine, "pooled", "debian13", STAYS, engines.Request("wrapper", ["vfio=any"])) as kept:
        check(f"drain: {name}: a pool gives another", kept.started.status == 0 and bool(leases.leased(other)), f"{kept.text()}\n{engines.said_by_hook(kept.started)}")
    undone = run("onload-ctk", "undrain", "--all")
    check(f"drain: {name}: undrain --all offers it again", undone.status == 0 and name in offered("vfio"), undone)
    check("drain: no file says that anything is drained", not Path("/etc/onload-ctk/drain.json").exists())


def a_shared_device(engine, name):
    """Who has one of these is known by its record alone."""
    with Kept(engine, "sharer", "debian13", STAYS, engines.Request("wrapper", [f"nic={name}"])) as kept:
        done = drained(f"nic={name}")
        check(f"drain: {engine.name}: who has {name} by annotation is listed", done.status == 1 and "sharer" in done.out, f"{done}\n{kept.text()}")
        started, said = late(engine, "wrapper", [f"nic={name}"])
        check(f"drain: {engine.name}: {name} is refused with the reason", started.status != 0 and REASON in said, f"{started}\n{said}")
    again = run("onload-ctk", "drain", f"nic={name}")
    check(f"drain: {name}: a second drain changes nothing, and nobody holds it", again.status == 0 and REASON in again.out, again)
    check(f"drain: {name}: undrain", run("onload-ctk", "undrain", f"nic={name}").status == 0 and name in offered("nic"), offered("nic"))


def parts(bench, wanted):
    if wanted and not any(word in "drain" for word in wanted):
        return
    with Part("drain"):
        docker, podman = engines.Docker(), engines.Podman("crun")
        session.configure("/usr/bin/runc")
        generate()
        (one, _), (other, _) = bench.found["vfio"]
        a_class(docker, one)
        session.configure(podman.low)
        one_of_a_class(podman, one, other)
        a_shared_device(podman, bench.found["interfaces"][0])
        check("drain: no lease is left over", not leases.leased(), leases.leased())
