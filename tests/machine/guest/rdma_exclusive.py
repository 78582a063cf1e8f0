"""RDMA's netns mode exclusive: soft-RoCE cannot move into a container, so it is not offered, and comes back with mode shared."""

import json

import devices
import engines
import session
from parts import Kept, generate, offered
from report import Part, check, must, run

REASON = "in netns mode exclusive a device moves into the container's network namespace, but a device in software, as of soft-RoCE (rxe), cannot (EOPNOTSUPP)"
WAYS = [(engines.Docker(), "cdi"), (engines.Podman("crun"), "cdi"), (engines.Docker(), "wrapper"), (engines.Podman("crun"), "precreate")]


def discovered():
    return json.loads(must("onload-ctk", "discover", "--format", "json").out)


def container(bench, engine, door):
    session.configure(engine.low)
    program = ["sh", "-c", f"probe node=/dev/infiniband/{bench.found['uverbs'][0]}; echo END-OF-REPORT; exec sleep 1000"]
    return Kept(engine, "exclusive", "debian13", program, engines.Request(door, [f"rdma={bench.found['rdma']}"]), network="none")


def not_offered(bench):
    rdma = bench.found["rdma"]
    mode = run("rdma", "system").out
    check("rdma exclusive: the kernel is in that mode", "netns exclusive" in mode, mode)
    done = run("onload-ctk", "discover", "--explain")
    explained = " ".join(done.out.split())
    check("rdma exclusive: discover --explain names soft-RoCE with its reason", done.status == 0 and rdma in explained and REASON in explained, done)
    told = discovered()
    reasons = [each["reason"] for each in told["not_offered"] if (each["kind"], each["name"]) == ("rdma", rdma)]
    check("rdma exclusive: no device is offered", told["rdma"] == [] and len(reasons) == 1 and REASON in reasons[0], told)
    done = generate()
    check("rdma exclusive: generate writes none", done.status == 0 and offered("rdma") == [], f"{done}\n{offered('rdma')}")
    for engine, door in WAYS:
        with container(bench, engine, door) as kept:
            said = engines.said_by_hook(kept.started)
            word = f"onload.dev/rdma={rdma}" if door == "cdi" else rdma
            good = kept.started.status != 0 and word in said
            check(f"rdma exclusive: {engine.name} {door}: a container that asks for it is refused by name", good, f"{kept.started}\n{said}")


def offered_again(bench):
    done = generate()
    check("rdma shared: the device is offered again", done.status == 0 and bench.found["rdma"] in offered("rdma"), f"{done}\n{offered('rdma')}")
    for engine, door in WAYS:
        with container(bench, engine, door) as kept:
            text = kept.report()
            good = kept.started.status == 0 and f"node=/dev/infiniband/{bench.found['uverbs'][0]} open" in text
            check(f"rdma shared: {engine.name} {door}: a container that asks for it opens its node", good, f"{kept.started}\n{text}")


def parts(bench, wanted):
    name = "rdma-exclusive"
    if wanted and not any(word in name for word in wanted):
        return
    with Part(name):
        session.configure("/usr/bin/runc")
        devices.load_rdma(bench.found, exclusive=True)
        try:
            not_offered(bench)
        finally:
            devices.load_rdma(bench.found, exclusive=False)
        offered_again(bench)
        session.configure("/usr/bin/runc")
