"""An interface comes back however its container ends, is offered again, and the next container gets it: also while a process of the host
stays in the container's network, as Onload's onload_cp_server does for 30 seconds.
"""

import contextlib
import os
import time
from pathlib import Path

import engines
import leases
from cri import message
from report import Part, check

from . import back
from .lab import SPEC, discovered, links_in, names_in, program_of, works_in

# What starts the program that stays: the kernel, as onload_cp_server is started. It calls this when a process dumps core.
CORE = {name: Path("/proc/sys/kernel", name) for name in ("core_pattern", "core_pipe_limit")}
STAND_IN = Path("/var/lib/machine/stays")
STAYS_AS = Path("/run/machine/stays.pid")
# The dead process is there until nobody reads its core any more, so that the network is joined before that.
JOINS = f"""#!/bin/sh
exec /usr/bin/nsenter --net="/proc/$1/ns/net" /bin/sh -c 'exec </dev/null; echo $$ > {STAYS_AS}; exec sleep 1000'
"""
GRACE = 30


def is_offered(interface):
    """Whether discovery has it as an interface of the host, and the specification names it."""
    told = [one["state"] for one in discovered()["netdevs"] if one["name"] == interface.name]
    return len(told) == 1 and told[0] not in ("held", "returning") and interface.name in names_in(SPEC)


def back_and_offered(lab, what, seconds=30):
    lab.is_back(what, seconds=seconds)
    told = [one for one in discovered()["netdevs"] if one["name"] == lab.first.name]
    check(f"{what}: it is offered again", is_offered(lab.first), f"{told}\n{names_in(SPEC)}")


def next_has_it(lab, what, engine):
    with lab.start(engine, "following", "cdi", [lab.first.name]) as kept:
        works = kept.started.status == 0 and works_in(program_of(lab.first), lab.first)
        check(f"{what}: the next container has it, with its address", works, f"{kept.started}\n{engines.said_by_hook(kept.started)}\n{lab.first}")
    lab.is_back(f"{what}: after the next container")


def same_has_it_again(lab, what, engine, name):
    again = engine.again(name)
    lab.moves += again.status == 0
    works = again.status == 0 and works_in(program_of(lab.first), lab.first)
    check(f"{what}: the same container has it again", works, f"{again}\n{engines.said_by_hook(again)}\n{lab.first}")


def ends(lab, engine, way, act, lives_on):
    """One way of leases.WAYS."""
    what = f"{engine.name} cdi: an interface after {way}"
    # What is left of a pod that could not be removed keeps its name.
    name = f"netdev-by-{act.__name__.replace('_', '-')}"
    with lab.start(engine, name, "cdi", [lab.first.name]) as kept:
        pid = program_of(lab.first)
        if not check(f"{engine.name} cdi: an interface is held before {way}", kept.started.status == 0 and works_in(pid, lab.first), f"{kept.started}\n{lab.first}"):
            return
        act(engine, name, pid)
        if lives_on:
            keeps = not leases.has_ended(pid) and program_of(lab.first) == pid and works_in(pid, lab.first)
            check(f"{what}: the container lives on and keeps it", keeps, lab.first)
            engine.remove(name)
        check(f"{what}: the container has ended", leases.has_ended(pid, 90), leases.stat_of(pid))
        back_and_offered(lab, what)
        if act in (leases.stop, leases.kill_init) and hasattr(engine, "again"):
            same_has_it_again(lab, what, engine, name)
    lab.is_back(f"{what}: when nothing is left of the container")
    next_has_it(lab, what, engine)


def pod_removed(lab, engine):
    """As kubelet ends a pod, with its container still running."""
    what = "cri cdi: an interface after a pod's removal"
    with lab.start(engine, "netdev-pod-removed", "cdi", [lab.first.name]) as kept:
        pid = program_of(lab.first)
        if not check("cri cdi: an interface is held before a pod's removal", kept.started.status == 0 and works_in(pid, lab.first), f"{kept.started}\n{lab.first}"):
            return
        pod, _ = engine.live["netdev-pod-removed"]
        engine.connected().call("StopPodSandbox", message((1, pod)))
        check(f"{what}: the container has ended", leases.has_ended(pid, 20), leases.stat_of(pid))
        back_and_offered(lab, what)
    lab.is_back(f"{what}: when the pod is gone")
    next_has_it(lab, what, engine)


@contextlib.contextmanager
def host_process_in(engine, name):
    """A process of the host in the container's network, which the kernel has started; its number. It stays until the end."""
    STAND_IN.parent.mkdir(parents=True, exist_ok=True)
    STAND_IN.write_text(JOINS, encoding="ascii")
    STAND_IN.chmod(0o755)
    STAYS_AS.unlink(missing_ok=True)
    before = {path: path.read_text() for path in CORE.values()}
    stayer = 0
    try:
        CORE["core_pipe_limit"].write_text("1\n")
        CORE["core_pattern"].write_text(f"|{STAND_IN} %P\n")
        engine.execute(name, ["sh", "-c", "kill -SEGV $$"])
        deadline = time.monotonic() + 20
        while not stayer and time.monotonic() < deadline:
            time.sleep(0.1)
            stayer = int(engines.read(STAYS_AS).strip() or 0)
    finally:
        for path, text in before.items():
            path.write_text(text)
    try:
        yield stayer
    finally:
        if stayer:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stayer, 9)


def network_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:  # it has ended
        return ""


def is_of_the_host(stayer):
    """Not of the container: in the host's other namespaces, and in no control group of an engine."""
    return engines.read(f"/proc/{stayer}/cgroup").strip() == "0::/" and os.readlink(f"/proc/{stayer}/ns/mnt") == os.readlink("/proc/1/ns/mnt")


def stays(lab, engine, way, act, whole):
    """A process of the host keeps the network of a container that ends in this way, and the interface is back before it is gone."""
    what = f"{engine.name} cdi: a process that stays in the network after {way}"
    with lab.start(engine, "left", "cdi", [lab.first.name]) as kept:
        pid = program_of(lab.first)
        with host_process_in(engine, "left") as stayer:
            joined = kept.started.status == 0 and stayer and pid and network_of(stayer) == network_of(pid) and is_of_the_host(stayer)
            if not check(f"{engine.name} cdi: a process of the host joins the network before {way}", joined, f"{kept.started}\n{stayer}\n{lab.first}"):
                return
            act(engine, "left", pid)
            check(f"{what}: the container has ended", leases.has_ended(pid, 30), leases.stat_of(pid))
            ended = time.monotonic()
            lab.is_back(what, seconds=15)
            links = links_in(stayer)
            check(f"{what}: it is there without the interface", not leases.has_ended(stayer) and links and lab.first.name not in links, links)
            next_has_it(lab, what, engine)
            if whole:
                time.sleep(max(0, GRACE - (time.monotonic() - ended)))
            check(f"{what}: and stays", not leases.has_ended(stayer), stayer)
    lab.is_back(f"{what}: when it has gone")


def heir(lab, engine):
    """Nobody calls a poststop, and the kernel gives nothing back while that process stays: the next container brings the interface back."""
    what = f"{engine.name} cdi: a process that stays where nobody called a poststop"
    # What podman does not know the end of keeps its name.
    name = f"left-{lab.moves}"
    with lab.start(engine, name, "cdi", [lab.first.name], network="none"):
        pid = program_of(lab.first)
        with host_process_in(engine, name) as stayer:
            if not check(f"{what}: has joined", stayer and pid and network_of(stayer) == network_of(pid), lab.first):
                return
            back.kill_whole(pid)
            leases.has_ended(pid, 20)
            check(f"{what}: keeps the interface", lab.first.name in links_in(stayer) and back.state_of(lab.first) == ["returning"], f"{links_in(stayer)}\n{lab.first}")
            next_has_it(lab, what, engine)
            check(f"{what}: and stays", not leases.has_ended(stayer), stayer)


def tried(by_name, thorough):
    """The engines; a run of everything tries the ways to end with one."""
    names = ["docker-runc", "podman-crun", "cri"] if thorough else ["docker-runc"]
    return [by_name[name] for name in names]


def parts(lab, on, by_name, thorough, few):
    if on("netdev-ends"):
        for engine in tried(by_name, thorough):
            with Part(f"netdev: ways to end with {engine.name}"):
                for way, act, living in leases.WAYS:
                    if act is not leases.kill_daemon or engine.daemon:
                        ends(lab, engine, way, act, any(word in engine.name for word in living))
        with Part("netdev: a pod's removal"):
            pod_removed(lab, by_name["cri"])
    if on("netdev-stays"):
        docker, podman = by_name["docker-runc"], by_name["podman-crun"]
        with Part("netdev: a process that stays"):
            stays(lab, docker, "rm -f", leases.remove, not few)
            if not few:
                stays(lab, podman, "rm -f", leases.remove, False)
                stays(lab, docker, "kill -9 of the first process", leases.kill_init, False)
                stays(lab, podman, "kill -9 of the first process", leases.kill_init, False)
                heir(lab, podman)
