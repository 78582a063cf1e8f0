"""Containers that get no interface, each with the reason."""

import engines
from parts import Kept, generate
from report import check, must, run

from .lab import WAITS, held, links_in, within


def is_refused(lab, what, kept, words):
    said = engines.said_by_hook(kept.started)
    check(f"netdev: {what} is refused by name", kept.started.status != 0 and words in said, f"{kept.started}\n{said}")
    check(f"netdev: {what}: nothing has moved", lab.first.is_home() and lab.second.is_home() and not held(), f"{lab.first}\n{lab.second}")


def parts(lab):
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
