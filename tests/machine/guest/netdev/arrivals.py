"""An interface moves into a container, by every entry point that an engine has, and is back when the container is removed."""

import engines
import leases
from parts import generate
from report import Part, check, must

from .lab import ANNOTATED, CONFIGURED, PEER, POOL, is_in, links_in, program_of


def has_it(lab, what, interface, address, kept, beside="eth0"):
    """The container has the interface beside its own, up and with its address."""
    pid = program_of(interface)
    if check(f"{what}: the container has the interface", kept.started.status == 0 and pid, f"{kept.started}\n{engines.said_by_hook(kept.started)}\n{interface}"):
        is_in(what, pid, interface, address, beside)


def by_door(lab, engine, door):
    """From start to removal in a bridge network."""
    what = f"{engine.name} {door}"
    first = lab.first
    address = CONFIGURED if door == "cdi" else ANNOTATED
    with lab.start(engine, "moves", door, [first.name], [f"{first.name}={ANNOTATED}"]) as kept:
        has_it(lab, what, first, address, kept)
    lab.is_back(f"{what}: when the container is removed")


def card(lab, engine, door):
    """A card without functions of its own moves, and the igb at the other end answers."""
    what = f"{engine.name} {door}: a card"
    name = lab.card.name
    lab.take_card_home()
    must("ip", "address", "add", f"{PEER}/24", "dev", lab.physical[0])
    lab.configure(engine.low, [name], f'\n[netdev."{name}"]\naddresses = ["{CONFIGURED}"]\n')
    generate()
    with lab.started(engine, "card", door, [name], [f"{name}={ANNOTATED}"]) as kept:
        has_it(lab, what, lab.card, CONFIGURED if door == "cdi" else ANNOTATED, kept)
    lab.is_back(f"{what}: when the container is removed", [lab.card])
    must("ip", "address", "delete", f"{PEER}/24", "dev", lab.physical[0])
    lab.put_card_far()
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


def parts(lab, table, full, few):
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
