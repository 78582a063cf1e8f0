"""A device that one container has at a time: wanted twice, from a pool, by each engine and door, and given back however its holder ends.

Who has a device is judged by /proc alone: which mount namespaces have its node in a /dev of their own.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import engines
import matrix
import parts as others
import session
from parts import Kept
from report import Part, check, must, run

LEASES = Path("/run/onload-ctk/@leases")
VARIABLES = "/dev/onload-ctk.env"
POOL = ["vfio=any"]
WAITS = ["sleep", "1000"]
# Which groups are there and what says so: the environment, or the file of a hook, which cannot change an environment.
TELLS = ["sh", "-c", f"for node in /dev/vfio/*; do echo given $node; done; probe env=ONLOAD_CTK_VFIO; "
                     f"test ! -e {VARIABLES} || cat {VARIABLES}; echo {matrix.END}; exec sleep 1000"]


def leased(name=None):
    """The leases that the command shows to programs, of the device of this name if there is one."""
    told = json.loads(run("onload-ctk", "lease", "list", "--format", "json").out or "{}")
    return [lease for lease in told.get("leases", []) if name in (None, lease["name"])]


def holders(group):
    """The mount namespaces that have the group's node, but for those that see the host's own /dev."""
    host = os.stat("/dev").st_dev
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.stat(process / "root/dev").st_dev != host and (process / f"root/dev/vfio/{group}").exists():
                found.add(os.readlink(process / "ns/mnt"))
    return found


def stat_of(pid):
    """The fields of /proc/PID/stat from the third on; none where the process has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def parent(pid):
    return int(stat_of(pid)[1])


def has_ended(pid, seconds=0):
    """Whether a process ends within that time. A zombie has."""
    deadline = time.monotonic() + seconds
    while stat_of(pid)[:1] not in ([], ["Z"], ["X"]):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True


def start(engine, name, door, asks, argv=WAITS, more=()):
    session.configure(engine.low)
    return Kept(engine, name, "debian13", argv, engines.Request(door, asks), more=more)


def wanted_twice(bench, first, second):
    """One engine's container has the function; another's is refused with its name, and gets it once the first is gone."""
    (engine, door), (other, other_door) = first, second
    one, two = f"{engine.name} {door}", f"{other.name} {other_door}"
    pair = f"{one}, then {two}"
    asks = [f"vfio={bench.vfio}"]
    with start(engine, "lease-one", door, asks) as kept:
        lease = (leased(bench.vfio) or [None])[0]
        held = lease is not None and lease["state"] == "held" and lease["pid"] and not has_ended(lease["pid"])
        check(f"{one}: a function is held while its container runs", kept.started.status == 0 and held, f"{pair}\n{kept.started}\n{lease}")
        with start(other, "lease-two", other_door, asks) as refused:
            said = engines.said_by_hook(refused.started)
            named = lease is not None and f"in use by container {lease['container']}" in said
            check(f"{two}: a function of another container is refused with its name", refused.started.status != 0 and named, f"{pair}\n{refused.started}\n{said}")
    check(f"{one}: a function is free when its container is removed", not leased(), f"{pair}\n{leased()}")
    with start(other, "lease-two", other_door, asks) as kept:
        check(f"{two}: a function is given once it is free", kept.started.status == 0, f"{pair}\n{kept.started}\n{engines.said_by_hook(kept.started)}")
    check(f"{two}: and is free in the end", not leased(), f"{pair}\n{leased()}")


def given(kept):
    """The groups that a container has, and the functions that it is told of."""
    text = kept.report()
    return re.findall(r"^given /dev/vfio/(\d+)$", text, re.M), re.findall(r"^(?:env )?ONLOAD_CTK_VFIO_\w+=(\S+)$", text, re.M)


def one_of_a_pool(bench, first, second):
    """Two containers of one engine get the two functions there are; a third, of another, is refused with both names."""
    (engine, door), (other, other_door) = first, second
    what, last = f"{engine.name} {door}", f"{other.name} {other_door}"
    # By annotation the hook gives a created container no variables; its nodes say which.
    right = sorted(([group], [] if door == "live" else [address]) for address, group in bench.found["vfio"])
    with start(engine, "pool-one", door, POOL, TELLS) as one, start(engine, "pool-two", door, POOL, TELLS) as two:
        found = sorted([given(one), given(two)])
        check(f"{what}: two containers get a function each of a pool, and know which", found == right, f"{found}, not {right}\n{one.text()}\n{two.text()}")
        several = {group: holders(group) for _, group in bench.found["vfio"]}
        check(f"{what}: no function of a pool is given twice", [len(each) for each in several.values()] == [1, 1], several)
        names = [lease["container"] for lease in leased()]
        with start(other, "pool-three", other_door, POOL) as refused:
            said = engines.said_by_hook(refused.started)
            told = "0 free of 2" in said and len(names) == 2 and all(f"in use by container {name}" in said for name in names)
            check(f"{last}: a pool that is used up is refused with who has it", refused.started.status != 0 and told, f"after {what}: {names}\n{refused.started}\n{said}")
    check(f"{what}: functions of a pool are free in the end", not leased(), leased())


def used_without_a_lease(bench, engine):
    """A plain --device and a process that has the group open: the kernel says EBUSY, /proc says who. A pool passes over it."""
    node = f"/dev/vfio/{bench.group}"
    argv = ["sh", "-c", f"exec 3<>{node} && echo {matrix.END}; exec sleep 1000"]
    with start(engine, "plain", "plain", [], argv, more=[f"--device={node}"]) as kept:
        kept.report()
        with start(engine, "leased", "cdi", [f"vfio={bench.vfio}"]) as refused:
            said = engines.said_by_hook(refused.started)
            named = "is in use by process" in said and "sleep" in said
            check("lease: who has the group open without one is named", refused.started.status != 0 and named, f"{kept.text()}\n{refused.started}\n{said}")
        if not has_pools():
            return
        with start(engine, "another", "wrapper", POOL, TELLS) as one:
            groups, _ = given(one)
            check("pool: a function that is used without a lease is passed over", groups == [bench.other_group], f"{groups}\n{one.text()}")
            with start(engine, "none-free", "wrapper", POOL) as refused:
                said = engines.said_by_hook(refused.started)
                told = "0 free of 2" in said and f"{bench.vfio} is in use by process" in said
                check("pool: and named where no other is free", refused.started.status != 0 and told, f"{refused.started}\n{said}")
    check("lease: nothing is held when who used it is gone", not leased(), leased())


def has_pools():
    """Whether the engines read the file of pools: podman 4.3 knows no annotations of devices, and passes over it."""
    return os.path.exists("/var/run/cdi/onload.dev-vfio-pools.json") and " 4.3" not in run("podman", "--version").out


def killed_whole(bench, engine):
    """Everything of the first container is killed at once, and nobody calls a poststop: the next one finds out."""
    asks = [f"vfio={bench.vfio}"]
    with start(engine, "killed", "cdi", asks) as kept:
        lease = (leased(bench.vfio) or [None])[0]
        check("lease: held before the kill", kept.started.status == 0 and lease is not None, f"{kept.started}\n{lease}")
        if lease is None:
            return
        for pid in (parent(lease["pid"]), lease["pid"]):
            os.kill(pid, signal.SIGKILL)
        with start(engine, "next", "cdi", asks) as following:
            now = (leased(bench.vfio) or [None])[0]
            taken = now is not None and now["container"] != lease["container"]
            check("lease: the next container takes over from one that was killed", following.started.status == 0 and taken, f"{following.started}\n{lease}\n{now}")


# The ways in which a container ends. Each takes the engine, the container's name and the number of its first process.

def kill_init(_engine, _name, init):
    os.kill(init, signal.SIGKILL)


def kill_monitor(_engine, _name, init):
    """The program between engine and container: conmon, or containerd's shim."""
    os.kill(parent(init), signal.SIGKILL)


def kill_daemon(engine, _name, _init):
    """systemd waits for the daemon and starts it again."""
    unit = engine.daemon
    pid = int(must("systemctl", "show", "--value", "-p", "MainPID", unit).out)
    os.kill(pid, signal.SIGKILL)
    check(f"{engine.name} cdi: {unit} is killed", has_ended(pid, 20))
    run("systemctl", "reset-failed", unit)
    must("systemctl", "start", unit, timeout=240)
    engine.wait_until_ready()


def stop(engine, name, _init):
    engine.stop(name)


def remove(engine, name, _init):
    engine.remove(name)


# Whether the container lives on: conmon is only the one that watches, and shims outlive containerd.
# Of a shim that is gone containerd ends the container. docker without live-restore ends what it finds when it starts.
WAYS = [("stop", stop, []), ("rm -f", remove, []), ("kill -9 of the first process", kill_init, []),
        ("kill -9 of conmon or the shim", kill_monitor, ["podman"]), ("kill -9 of the engine", kill_daemon, ["cri"])]


def ends(bench, engine, way, act, lives_on):
    """A container ends in this way; the next one gets the device, and until then nobody else does."""
    what = f"{engine.name} cdi: after {way}"
    asks = [f"vfio={bench.vfio}"]
    # What is left of a pod that could not be removed keeps its name.
    name = f"ends-by-{act.__name__.replace('_', '-')}"
    with start(engine, name, "cdi", asks) as kept:
        lease = (leased(bench.vfio) or [None])[0]
        if not check(f"{engine.name} cdi: a function is held before {way}", kept.started.status == 0 and lease is not None, f"{kept.started}\n{lease}"):
            return
        act(engine, name, lease["pid"])
        if lives_on:
            with start(engine, "too-early", "cdi", asks) as refused:
                said = engines.said_by_hook(refused.started)
                named = f"in use by container {lease['container']}" in said
                check(f"{what} the container lives on and keeps its function", refused.started.status != 0 and named and not has_ended(lease["pid"]), f"{refused.started}\n{said}")
            engine.remove(name)
        check(f"{what} the container has ended", has_ended(lease["pid"], 90), stat_of(lease["pid"]))
        with start(engine, "after", "cdi", asks) as following:
            several = holders(bench.group)
            now = (leased(bench.vfio) or [None])[0]
            taken = now is not None and now["container"] != lease["container"]
            check(f"{what} the next start works", following.started.status == 0 and taken, f"{following.started}\n{engines.said_by_hook(following.started)}\n{now}")
            check(f"{what} the next container has the function alone", len(several) == 1, several)
        if way == "kill -9 of the first process" and hasattr(engine, "again"):
            again = engine.again(name)
            check(f"{what} the same container starts again", again.status == 0 and len(holders(bench.group)) == 1, f"{again}\n{engines.said_by_hook(again)}")
    check(f"{what} nothing is held in the end", not [lease for lease in leased() if lease["state"] != "ended"], leased())


def clients_killed(bench, engine, times=4):
    """The engine's client is killed while a container from a pool is made: once what it left is deleted, both functions can be had."""
    session.configure(engine.low)
    for number in range(times):
        request = engines.Request("wrapper", POOL)
        child = subprocess.Popen([*engine.command(request), "run", "-d", "--name", f"client-{number}", "--network=host", "--annotation=onload.dev/vfio=any",
                                  "localhost/debian13:1", *WAITS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1 + number)
        child.kill()
        child.wait()
        time.sleep(2)
        engine.remove(f"client-{number}")
    time.sleep(10)  # what goes on without its client comes to its end
    others.forgotten_by_the_engine(engine)
    with start(engine, "one", "wrapper", POOL) as one, start(engine, "two", "wrapper", POOL) as two:
        said = engines.said_by_hook(two.started)
        check("pool: both functions are free after clients were killed", one.started.status == two.started.status == 0, f"{one.started}\n{two.started}\n{said}\n{leased()}")
        check("pool: and neither is given twice", [len(holders(group)) for _, group in bench.found["vfio"]] == [1, 1], leased())


def tried(table, guest):
    """Each engine and door that starts containers and keeps leases: a plain user's podman goes without."""
    for engine in engines.all_engines():
        if guest != "debian13":
            engine.name = f"{guest}-{engine.name}"
        for door in engine.doors:
            if "rootless" not in engine.name and session.expected(table, engine.name, door)["start"] == "yes":
                yield engine, door


def parts(bench, table, wanted, full, guest):
    """Each engine and door after the one before it, so that each is once the first and once the second."""
    def on(name):
        return not wanted or any(word in name for word in wanted)

    every = list(tried(table, guest))
    pairs = list(zip(every, every[1:] + every[:1])) if full else [(every[0], every[len(every) // 2])]
    podman = next(engine for engine, _ in every if engine.name.endswith("podman-runc"))
    if on("lease-twice"):
        with Part("leases: wanted twice"):
            for first, second in pairs:
                wanted_twice(bench, first, second)
            used_without_a_lease(bench, podman)
            if full:
                killed_whole(bench, podman)
    if on("lease-pools"):
        with Part("leases: pools"):
            if has_pools():
                for first, second in pairs:
                    one_of_a_pool(bench, first, second)
                if full:
                    clients_killed(bench, podman)
            else:
                with start(podman, "no-pool", "cdi", POOL) as refused:
                    said = str(refused.started)
                    check(f"{podman.name} cdi: a pool that the engine does not know is refused by name", refused.started.status != 0 and "vfio=any" in said, said)
    if on("lease-endings") and full:
        for engine in dict.fromkeys(engine for engine, door in every if door == "cdi"):
            with Part(f"leases: ways to end with {engine.name}"):
                for way, act, living in WAYS:
                    if act is not kill_daemon or engine.daemon:
                        ends(bench, engine, way, act, any(word in engine.name for word in living))
    if any(on(name) for name in ("lease-twice", "lease-pools", "lease-endings")):
        check(f"lease: {guest}: no file is left over", sorted(os.listdir(LEASES)) == [".lock"], sorted(os.listdir(LEASES)))
