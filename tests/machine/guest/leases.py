"""A device that one container has at a time: wanted twice, by each engine and door, and given back however its holder ends."""

import json
import os
import signal
from pathlib import Path

import engines
from parts import Kept
from report import Part, check, run

LEASES = Path("/run/onload-ctk/@leases")
WAITS = ["sleep", "1000"]


def leased(bench):
    """The lease of the function, as the command tells it to programs; none where there is none."""
    told = json.loads(run("onload-ctk", "lease", "list", "--format", "json").out or "{}")
    return next((lease for lease in told.get("leases", []) if lease["name"] == bench.vfio), None)


def wanted_twice(bench, first, second):
    """One engine's container has the function; another's is refused with its name, and gets it once the first is gone."""
    (engine, door), (other, other_door) = first, second
    what = f"lease: {engine.name} {door}, then {other.name} {other_door}"
    asks = [f"vfio={bench.vfio}"]
    with Kept(engine, "lease-one", "debian13", WAITS, engines.Request(door, asks)) as kept:
        lease = leased(bench)
        held = lease is not None and lease["state"] == "held" and lease["pid"] and os.path.exists(f"/proc/{lease['pid']}")
        check(f"{what}: the first holds it", kept.started.status == 0 and held, f"{kept.started}\n{lease}")
        with Kept(other, "lease-two", "debian13", WAITS, engines.Request(other_door, asks)) as refused:
            said = engines.said_by_hook(refused.started)
            named = lease is not None and f"is held by container {lease['container']}" in said
            check(f"{what}: the second is refused with the first's name", refused.started.status != 0 and named, f"{refused.started}\n{said}")
    check(f"{what}: nothing is held when the first is gone", leased(bench) is None, leased(bench))
    with Kept(other, "lease-two", "debian13", WAITS, engines.Request(other_door, asks)) as kept:
        check(f"{what}: the second starts then", kept.started.status == 0, kept.started)
    check(f"{what}: nothing is held in the end", leased(bench) is None, leased(bench))


def used_without_a_lease(bench, engine, other):
    """A plain --device and a process that has the group open: the kernel says EBUSY, /proc says who."""
    node = f"/dev/vfio/{bench.group}"
    argv = ["sh", "-c", f"exec 3<>{node} && echo END-OF-REPORT; exec sleep 1000"]
    with Kept(engine, "plain", "debian13", argv, engines.Request("plain", []), more=[f"--device={node}"]) as kept:
        kept.report()
        refused = other.run("leased", "debian13", WAITS, engines.Request("cdi", [f"vfio={bench.vfio}"]))
        said = engines.said_by_hook(refused)
        check("lease: who has the group open without one is named", refused.status != 0 and "is in use by process" in said and "sleep" in said, f"{kept.text()}\n{refused}\n{said}")
        if other.exists("leased"):
            other.remove("leased")


def killed(bench, engine, other):
    """Everything of the first container is killed at once, and nobody calls a poststop: the next one finds out."""
    asks = [f"vfio={bench.vfio}"]
    with Kept(engine, "killed", "debian13", WAITS, engines.Request("cdi", asks)) as kept:
        lease = leased(bench)
        check("lease: held before the kill", kept.started.status == 0 and lease is not None, f"{kept.started}\n{lease}")
        if lease is None:
            return
        monitor = int(Path(f"/proc/{lease['pid']}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
        for pid in (monitor, lease["pid"]):
            os.kill(pid, signal.SIGKILL)
        with Kept(other, "next", "debian13", WAITS, engines.Request("cdi", asks)) as following:
            now = leased(bench)
            taken = now is not None and now["container"] != lease["container"]
            check("lease: the next container takes over from one that was killed", following.started.status == 0 and taken, f"{following.started}\n{lease}\n{now}")


def parts(bench, full):
    """Each engine and door after the one before it, so that each is once the first and once the second."""
    tried = [(engine, door) for engine in engines.all_engines() if engine.name != "podman-rootless" for door in engine.doors if door != "live" or engine.name.startswith("podman")]
    pairs = list(zip(tried, tried[1:] + tried[:1])) if full else [(tried[0], tried[len(tried) // 2])]
    with Part("leases"):
        for first, second in pairs:
            wanted_twice(bench, first, second)
        podman = engines.Podman("runc")
        used_without_a_lease(bench, podman, podman)
        if full:
            killed(bench, podman, podman)
        check("lease: no file is left over", sorted(os.listdir(LEASES)) == [".lock"], sorted(os.listdir(LEASES)))
