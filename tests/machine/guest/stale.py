"""Device numbers that engines keep: drivers loaded anew, vfio groups in another order, and the refresh sees only the end.

docker and containerd look at a node once per loaded spec and keep its number until the file changes; podman looks each time.
"""

import json
import os
import shutil
import time
from pathlib import Path

import devices
import engines
import matrix
from parts import Kept
from report import Part, check, must, run

SERVICE = "onload-cdi.service"
ADVICE = f"systemctl start {SERVICE}"
DAEMON = Path("/etc/docker/daemon.json")
ONLOAD = ["/dev/onload", "/dev/onload_epoll"]
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task"
# Whether an engine keeps the numbers that it saw.
KEEPS = {"docker-runc": True, "cri": True, "podman-crun": False}


def install_service():
    """The package's unit, without the units and rules that would start it by themselves."""
    shutil.copy(f"/run/machine/packaging/systemd/{SERVICE}", f"/etc/systemd/system/{SERVICE}")
    must("systemctl", "daemon-reload", timeout=120)


def refresh():
    """What the advice says."""
    done = run("systemctl", "start", SERVICE, timeout=120)
    check(f"{ADVICE} ends well", done.status == 0, f"{done}\n{run('journalctl', '-b', '--no-pager', '-n', '30', '-u', SERVICE).out}")


def fresh(what):
    done = run("onload-ctk", "cdi", "check")
    check(f"{what}: after {ADVICE} cdi check says 0", done.status == 0, done)


def drifted(what, line):
    done = run("onload-ctk", "cdi", "check")
    check(f"{what}: cdi check says 1 and names what was renumbered", done.status == 1 and line in done.out and ADVICE in done.out, f"{line}\n{done}")


def opens(paths):
    """A program that says of each node whether it opens, and with which number."""
    return ["sh", "-c", f"probe {' '.join(f'node={path}' for path in paths)}; echo {matrix.END}; exec sleep 100"]


def right(kept, paths):
    """Whether each node opens with the number that the driver has now; sysfs says it."""
    answers = matrix.facts(kept.report())
    return kept.started.status == 0 and all(answers.get(f"node={path}") == f"open {matrix.number(path)}" for path in paths)


def works(what, engine, ask, paths, more=()):
    with Kept(engine, "fresh", "debian13", opens(paths), engines.Request("cdi", [ask]), more=more) as kept:
        good = kept.started.status == 0 and right(kept, paths)
        check(f"{what}: {engine.name}: a new container with {ask} has its nodes", good, kept.text() + engines.said_by_hook(kept.started))
        return where(engine, "fresh", paths[0]) if kept.started.status == 0 else "nowhere"


def refused(what, engine, ask, paths, advice, more=()):
    with Kept(engine, "stale", "debian13", opens(paths), engines.Request("cdi", [ask]), more=more) as kept:
        said = engines.said_by_hook(kept.started)
        good = kept.started.status != 0 and advice in said and ADVICE in said
        check(f"{what}: {engine.name}: a new container with {ask} is refused with what helps", good, f"{kept.text()}\n{said}")


def meets(what, engine, ask, paths):
    """A container made when the spec is older than the numbers."""
    if KEEPS[engine.name]:
        refused(what, engine, ask, paths, "devices were renumbered")
    else:
        works(what, engine, ask, paths)


def tried():
    return [engine for engine in engines.all_engines() if engine.name in KEEPS]


def reload_modules(bench, spare_majors):
    devices.unload_stand_ins()
    devices.load_stand_ins(spare_majors=spare_majors)
    devices.accelerate(bench.found["interfaces"])
    must("udevadm", "settle", "--timeout=30")
    return {path: matrix.number(path) for path in [*ONLOAD, "/dev/sfc_char"]}


# Engines keep numbers spec by spec; those that keep none are asked for one.
ASKS = {"nic=all": ONLOAD, "zf=all": ["/dev/onload", "/dev/sfc_char"]}


def meet_and_mend(what, asked):
    """What each engine makes of numbers that became others, and of the specification written anew."""
    for engine, ask, paths in asked:
        meets(what, engine, ask, paths)
    refresh()
    fresh(what)
    for engine, ask, paths in asked:
        works(f"{what}, after", engine, ask, paths)


def modules(bench):
    """The modules unloaded and loaded again under other majors."""
    what = "stale modules"
    asked = [(engine, ask, paths) for engine in tried() for ask, paths in ASKS.items() if KEEPS[engine.name] or ask == "nic=all"]
    before = reload_modules(bench, 0)
    refresh()
    for engine, ask, paths in asked:
        works(f"{what}, before", engine, ask, paths)
    after = reload_modules(bench, 2)
    check(f"{what}: every major is another one", all(before[path] != after[path] for path in before), f"{before}\n{after}")
    drifted(what, f"/dev/onload was {before['/dev/onload']} and is {after['/dev/onload']}")
    meet_and_mend(what, asked)


def kept_from_between(bench):
    """The numbers are the written ones again, and the engine looked in between: writing the spec anew changes no byte."""
    what = "stale, written right"
    before = reload_modules(bench, 0)
    refresh()
    between = reload_modules(bench, 2)
    keepers = [engine for engine in tried() if KEEPS[engine.name]]
    for path in Path("/var/run/cdi").glob("onload.dev-*.json"):  # read again, as after a restart of the engine
        copy = path.with_suffix(".new")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)
    time.sleep(2)
    for engine in keepers:
        works(f"{what}, in between", engine, "nic=all", ONLOAD)
    again = reload_modules(bench, 0)
    check(f"{what}: the majors are those of before", before == again and before != between, f"{before}\n{between}\n{again}")
    fresh(what)
    for engine in keepers:
        refused(what, engine, "nic=all", ONLOAD, "remove the onload.dev-* files in /var/run/cdi")
    for path in Path("/var/run/cdi").glob("onload.dev-*"):
        path.unlink()
    refresh()
    for engine in keepers:
        works(f"{what}, after", engine, "nic=all", ONLOAD)


def vfio_minors(bench):
    """Two functions leave vfio and come back in the other order: their groups have each other's minors."""
    what = "stale vfio"
    functions = bench.found["vfio"]
    nodes = {address: f"/dev/vfio/{group}" for address, group in functions}
    before = {address: matrix.number(node) for address, node in nodes.items()}
    refresh()
    first = functions[0][0]
    asked = [(engine, f"vfio={first}", [nodes[first]]) for engine in tried()]
    for engine, ask, paths in asked:
        works(f"{what}, before", engine, ask, paths)
    for address in nodes:
        devices.write("/sys/bus/pci/drivers/vfio-pci/unbind", address)
    for address in sorted(nodes, key=lambda address: int(before[address].partition(":")[2]), reverse=True):
        devices.to_vfio(address)
        devices.wait_for(nodes[address])
    after = {address: matrix.number(node) for address, node in nodes.items()}
    check(f"{what}: the groups have each other's numbers", sorted(before.values()) == sorted(after.values()) and before != after, f"{before}\n{after}")
    drifted(what, f"{nodes[first]} was {before[first]} and is {after[first]}")
    meet_and_mend(what, asked)


def config_of(engine, name):
    """The container's config.json as its runtime got it."""
    if engine.name == "cri":
        return Path(BUNDLES, "k8s.io", engine.live[name][1], "config.json")
    if engine.name.startswith("docker"):
        container = must("docker", "inspect", "--format", "{{.Id}}", name).out.strip()
        # A daemon with userns-remap has a namespace of its own in containerd, moby-UID.GID.
        return next(Path(BUNDLES).glob(f"moby*/{container}/config.json"))
    return Path(must(*engine.binary, "inspect", "--format", "{{.OCIConfigPath}}", name).out.strip())


def where(engine, name, node):
    """Where config.json has a node: how many entries of linux.devices, whether mounted itself or with its directory."""
    config = json.loads(config_of(engine, name).read_text(encoding="utf-8"))
    listed = [device for device in config["linux"].get("devices") or [] if device["path"] == node]
    mounts = [mount for mount in config["mounts"] if mount["destination"] in (node, "/dev") and "bind" in str(mount.get("options"))]
    numbers = {f"{device['major']}:{device['minor']}" for device in listed}
    told = [f"{len(listed)} listed"] + [f"{mount['destination']} mounted" for mount in mounts]
    return ", ".join(told) + ("" if numbers <= {matrix.number(node)} else f", as {sorted(numbers)}")


def kinds_of_containers(table):
    """nic's hook is in every container by CDI, so it has to pass wherever the container is right, however the engine brings the nodes."""
    podman, runc, rootless = engines.Podman("crun"), engines.Podman("runc"), engines.Rootless()
    docker, cri = engines.Docker(), engines.CriClient()
    userns = "--uidmap=0:100000:65536"
    kinds = [("podman-crun", podman, []), ("podman-runc", runc, []), ("podman-rootless", rootless, []),
             ("podman-crun userns", podman, [userns]), ("podman-runc userns", runc, [userns]),
             ("podman-crun privileged", podman, ["--privileged"]), ("podman-runc privileged", runc, ["--privileged"]),
             ("podman-rootless privileged", rootless, ["--privileged"]),
             ("podman-crun privileged, /dev", podman, ["--privileged", "-v", "/dev:/dev"]),
             ("podman-rootless, the node too", rootless, ["--device=/dev/onload"]),
             ("docker-runc", docker, []), ("docker-runc privileged", docker, ["--privileged"]),
             ("docker-runc privileged, /dev", docker, ["--privileged", "-v", "/dev:/dev"]),
             ("docker-runc, the node too", docker, ["--device=/dev/onload"]),
             ("cri", cri, []), ("cri privileged", cri, ["privileged"])]
    for name, engine, more in kinds:
        found = works(f"stale kinds, {name}", engine, "nic=all", ONLOAD, more)
        check(f"stale kinds, {name}: config.json has the node as written down", found == table[name], f"expected {table[name]!r}, found {found!r}")


class Remapped(engines.Docker):
    """docker whose containers are in a user namespace; with that it has no host network."""

    def run(self, name, image, argv, request, read_only=False, more=()):
        options = ["--device=" + device for device in request.devices]
        return run("docker", "run", "-d", "--name", name, "--network=none", *options, *more, f"localhost/{image}:1", *argv, timeout=90)


def remapped(bench, table):
    """userns-remap: a store of its own, and nodes that are mounted, since nobody can make one there."""
    before = DAEMON.read_text(encoding="ascii")
    ids = {name: Path(name).read_text(encoding="ascii") if os.path.exists(name) else "" for name in ("/etc/subuid", "/etc/subgid")}
    must("docker", "save", "-o", "/run/machine/remapped.tar", "localhost/debian13:1", timeout=180)
    try:
        for name, text in ids.items():
            Path(name).write_text(text + "remapped:500000:65536\n", encoding="ascii")
        run("useradd", "-r", "-s", "/usr/sbin/nologin", "remapped")
        DAEMON.write_text(json.dumps({**json.loads(before), "userns-remap": "remapped"}), encoding="ascii")
        must("systemctl", "restart", "docker", timeout=120)
        must("docker", "load", "-i", "/run/machine/remapped.tar", timeout=180)
        engine = Remapped()
        found = works("stale kinds, docker-runc remapped", engine, "nic=all", ONLOAD)
        check("stale kinds, docker-runc remapped: config.json has the node as written down", found == table["docker-runc remapped"], found)
        reload_modules(bench, 2)
        refused("stale kinds, docker-runc remapped", engine, "nic=all", ONLOAD, "devices were renumbered")
        refresh()
        works("stale kinds, docker-runc remapped, after", engine, "nic=all", ONLOAD)
    finally:
        DAEMON.write_text(before, encoding="ascii")
        for name, text in ids.items():
            Path(name).write_text(text, encoding="ascii")
        must("systemctl", "restart", "docker", timeout=120)
        os.unlink("/run/machine/remapped.tar")


def privileged_and_stale(bench):
    """A privileged container may open anything, but what its /dev calls onload is still Onload's."""
    reload_modules(bench, 0)
    refresh()
    docker, podman, rootless = engines.Docker(), engines.Podman("crun"), engines.Rootless()
    works("stale privileged, before", docker, "nic=all", ONLOAD, ["--privileged"])
    reload_modules(bench, 2)
    refused("stale privileged", docker, "nic=all", ONLOAD, "devices were renumbered", ["--privileged"])
    works("stale privileged", podman, "nic=all", ONLOAD, ["--privileged"])
    works("stale rootless", rootless, "nic=all", ONLOAD)
    works("stale rootless privileged", rootless, "nic=all", ONLOAD, ["--privileged"])
    refresh()
    works("stale privileged, after", docker, "nic=all", ONLOAD, ["--privileged"])


def parts(bench, table, wanted):
    """With `--full --only stale` nothing else is run."""
    kinds = table["nodes-in-config"]
    faults = [("stale modules", lambda: modules(bench)), ("stale vfio", lambda: vfio_minors(bench)),
              ("stale written right", lambda: kept_from_between(bench)), ("stale privileged", lambda: privileged_and_stale(bench)),
              ("stale kinds", lambda: kinds_of_containers(kinds)), ("stale remapped", lambda: remapped(bench, kinds))]
    faults = [(name, fault) for name, fault in faults if not wanted or any(word in name for word in wanted)]
    if not faults:
        return
    import session
    session.configure("/usr/bin/runc")
    install_service()
    for name, fault in faults:
        with Part(name):
            try:
                fault()
            finally:
                reload_modules(bench, 0)
                run("onload-ctk", "cdi", "generate")
