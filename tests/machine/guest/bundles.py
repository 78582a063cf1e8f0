"""Bundles: devices of several classes by one name, with the CPUs and the memory of the node that they are on.

The guest has two nodes, with a CPU and a card each. What a container really has is asked of the kernel: its control group, and /proc of
its processes.
"""

import json
import re
import time
from pathlib import Path

import engines
import leases
import matrix
import session
from parts import Kept, generate
from report import Part, check, run

CONFIG = Path("/etc/onload-ctk/config.toml")
LOG = Path("/var/log/machine-bundles.log")
# What dd keeps in memory while nobody reads its pipe.
BUFFER_MIB = 32
PAGES = BUFFER_MIB * 256
EVERYWHERE = "0-1"
NEWEST = "debian13"
# Where control groups of version 1 have their cpusets.
VERSION_1 = Path("/sys/fs/cgroup/cpuset")


class Shelf:
    """The bundles of these tests. `near` is of node 0, `wide` and `pooled` of both, and every other one of node 1."""

    def __init__(self, bench):
        self.bench = bench
        (self.near, _), (self.far, _) = bench.found["vfio"]
        self.nic = bench.found["interfaces"][1]
        far = [f"nic={self.nic}", f"vfio={self.far}", "hugepages=2Mi"]
        self.bundles = {
            "near": ([f"rdma={bench.found['rdma']}", f"vfio={self.near}", "hugepages=2Mi"], {}),
            "far": (far, {"cpus": "numa", "mems": "numa"}),
            # The CPU of one node and the memory of the other: which of them an allocation follows is seen.
            "crossed": (far, {"cpus": "0", "mems": "numa"}),
            "wide": ([f"vfio={self.near}", f"vfio={self.far}"], {"cpus": "numa", "mems": "numa"}),
            "pooled": (["vfio=any"], {"cpus": "numa", "mems": "numa"}),
            "beyond": (far, {"cpus": "0-7"}),
            "part": ([*far, "nic=none-such"], {}),
        }

    def configure(self, low, allow=("bundle",)):
        """The operator's file. Each container's log is its own."""
        sections = [f'[bundles.{name}]\ndevices = {json.dumps(names)}\n' + "".join(f'{key} = "{value}"\n' for key, value in placed.items())
                    for name, (names, placed) in self.bundles.items()]
        CONFIG.write_text(f'[annotations]\nallow = {json.dumps(allow)}\nroot-with-onload = "allow"\n\n[runtime]\npath = "{low}"\n\n'
                          f'[log]\nlevel = "info"\nfile = "{LOG}"\n\n' + "\n".join(sections), encoding="ascii")
        LOG.unlink(missing_ok=True)

    def start(self, engine, door, name, more=(), allow=("bundle",)):
        self.configure(engine.low, allow)
        asks = [f"bundle={name}"]
        return Kept(engine, f"bundle-{name}", "debian13", self.program(), engines.Request(door, asks), more=more)

    def program(self):
        """Says what it was given, and stays, with memory that it has touched."""
        nodes = " ".join(f"node={path}" for path in ["/dev/onload", "/dev/infiniband/uverbs0", *(f"/dev/vfio/{group}" for _, group in self.bench.found["vfio"])])
        return ["sh", "-c", f"probe {nodes} env=ONLOAD_CTK_ env=LD_PRELOAD huge={matrix.HUGE}; echo {matrix.END}; "
                            f"dd if=/dev/zero bs={BUFFER_MIB}M count=1 | sleep 1000"]

    def lacks(self, name, text):
        """What a container's report should have for a bundle and has not, or has and should not."""
        given, _ = self.bundles[name]
        groups = dict(self.bench.found["vfio"])
        nodes = {"nic": "/dev/onload", "rdma": f"/dev/infiniband/{self.bench.found['uverbs'][0]}"}
        wanted = {f"node={path}": "absent" for path in [*nodes.values(), *(f"/dev/vfio/{group}" for group in groups.values())]}
        lines = []
        for kind, device in (each.split("=") for each in given):
            path = f"/dev/vfio/{groups[device]}" if kind == "vfio" else nodes.get(kind)
            if path:
                wanted[f"node={path}"] = f"open {matrix.number(path)}"
            else:
                wanted[f"huge={matrix.HUGE}"] = "yes 2097152"
            lines.append(f"env ONLOAD_CTK_{kind.upper()}_{re.sub('[^A-Z0-9]', '_', device.upper())}={device}")
        if any(each.startswith("nic=") for each in given):
            lines.append("env LD_PRELOAD=libonload.so")
        answers = matrix.facts(text)
        return [f"{key}: {value}, not {answers.get(key)}" for key, value in wanted.items() if answers.get(key) != value] + \
               [line for line in lines if line not in text.splitlines()]


def logged():
    return engines.read(LOG)


def first_process(name):
    """Of the container that holds a function."""
    found = [lease["pid"] for lease in leases.leased(name)]
    return found[0] if found else 0


def status(pid, key):
    found = re.search(rf"^{key}:\s*(\S+)$", engines.read(f"/proc/{pid}/status"), re.M)
    return found[1] if found else f"there is no process {pid}"


def control_group(pid):
    """Where a process's cpuset is, and the names of what is set and what holds."""
    version2, version1 = Path("/sys/fs/cgroup"), VERSION_1
    for line in engines.read(f"/proc/{pid}/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and (version2 / "cgroup.controllers").exists():
            return version2 / path.lstrip("/"), "cpuset.{}.effective"
        if controllers == "cpuset":
            return version1 / path.lstrip("/"), "cpuset.effective_{}"
    return Path("/nowhere"), "{}"


def holding(group, file):
    """What holds for a control group: where it has no cpuset of its own, that of the nearest one above."""
    return next((engines.read(each / file).strip() for each in [group, *group.parents] if (each / file).exists()), "")


def placed(pid):
    """The CPUs and the nodes of a process by its control group and by its own limits; where the two differ, both."""
    group, effective = control_group(pid)
    found = []
    for what, key in [("cpus", "Cpus_allowed_list"), ("mems", "Mems_allowed_list")]:
        holds, own = holding(group, effective.format(what)), status(pid, key)
        found.append(own if holds == own else f"{own}, and {holds} in {group}")
    return tuple(found)


def was_set(pid, what):
    """What somebody wrote into the container's control group; crun makes a group below the one that systemd has."""
    group, _ = control_group(pid)
    groups = [group, group.parent] if group.name == "container" else [group]
    return next((text for text in (engines.read(each / f"cpuset.{what}").strip() for each in groups) if text), "")


def touched(pid):
    """How many pages of no file the dd of a container has on each node."""
    children = engines.read(f"/proc/{pid}/task/{pid}/children").split()
    writer = next((child for child in children if engines.read(f"/proc/{child}/comm").strip() == "dd"), None)
    pages = {0: 0, 1: 0}
    for line in engines.read(f"/proc/{writer}/numa_maps").splitlines():
        if "file=" not in line:
            for node, number in re.findall(r" N(\d+)=(\d+)", line):
                pages[int(node)] += int(number)
    return pages


def memory(pid, seconds=30):
    """The same once dd has filled its buffer."""
    deadline = time.monotonic() + seconds
    while sum((pages := touched(pid)).values()) < PAGES and time.monotonic() < deadline:
        time.sleep(0.3)
    return pages


def has_devices(shelf, what, name, kept):
    text = kept.report()
    missing = shelf.lacks(name, text)
    said = f"{kept.started}\n{engines.said_by_hook(kept.started)}"
    return check(f"bundle: {what}: the devices of {name} are there, and no others", kept.started.status == 0 and not missing, f"{missing}\n{said}\n{text}\n{logged()}")


def by_device(shelf, engine, name):
    """CDI gives the devices alone."""
    what = f"{engine.name} cdi"
    with shelf.start(engine, "cdi", name) as kept:
        if has_devices(shelf, what, name, kept):
            found = placed(first_process(shelf.far if name == "far" else shelf.near))
            check(f"bundle: {what}: CPUs and memory are as without {name}", found == (EVERYWHERE, EVERYWHERE), found)


def by_annotation(shelf, engine, door, name):
    """The devices, their node's CPU and its memory, or what the bundle says instead of it."""
    what = f"{engine.name} {door}"
    with shelf.start(engine, door, name) as kept:
        if not has_devices(shelf, what, name, kept):
            return
        pid = first_process(shelf.far)
        wanted = ("0" if name == "crossed" else "1", "1")
        check(f"bundle: {what}: the CPU and the node of {name} are in its control group", (was_set(pid, "cpus"), was_set(pid, "mems")) == wanted, control_group(pid))
        check(f"bundle: {what}: a program of {name} may run and allocate there alone", placed(pid) == wanted, f"{placed(pid)}\n{logged()}")
        pages = memory(pid)
        check(f"bundle: {what}: the memory that a program of {name} touches is of that node", pages[1] >= PAGES and not pages[0], pages)


def engines_word(shelf, engine, door, option, wanted, words):
    """What the engine was told stays; what it was not told comes of the bundle."""
    what = f"{engine.name} {door}"
    with shelf.start(engine, door, "far", more=[option]) as kept:
        if has_devices(shelf, f"{what} {option}", "far", kept):
            found = placed(first_process(shelf.far))
            check(f"bundle: {what}: {option} wins", found == wanted, f"{found}\n{logged()}")
            check(f"bundle: {what}: that {option} wins stands in the log", logged().count(words) == 1, f"{words}\n{logged()}")


CPUS_WIN = ("--cpuset-cpus=0", ("0", "1"), 'the container keeps the CPUs "0" that its engine set, so cpus of bundle far has no effect')


def in_a_pod(shelf, engine):
    """kubelet decides about the CPUs of pods."""
    what = f"{engine.name} wrapper"
    with shelf.start(engine, "wrapper", "far") as kept:
        if has_devices(shelf, what, "far", kept):
            found = placed(first_process(shelf.far))
            check(f"bundle: {what}: a pod's CPUs and memory are left to kubelet", found == (EVERYWHERE, EVERYWHERE), found)
            words = "cpus and mems of bundle far are not set: kubelet's CPU manager"
            check(f"bundle: {what}: one line says that a pod's are left", logged().count(words) == 1, logged())


def refused(shelf, engine, door, name, words, why, **options):
    """No container, and what its user or the journal reads has these words."""
    with shelf.start(engine, door, name, **options) as kept:
        said = engines.said_by_hook(kept.started)
        good = kept.started.status != 0 and words in said
        check(f"bundle: {engine.name} {door}: {why} is refused by name", good, f"wanted {words!r}\n{kept.started}\n{said}\n{logged()}")
    check(f"bundle: {engine.name} {door}: {why} leaves no lease", not leases.leased(), leases.leased())


# Annotations that the operator does not allow, bundles that there are not, and CPUs that the host has not.
REFUSALS = [
    ("far", 'annotation "onload.dev/bundle" requests class bundle, which the operator does not allow', "a class that is not allowed", {"allow": ["vfio"]}),
    ("none-such", "bundle none-such not found", "a bundle that does not exist", {}),
    ("beyond", "bundle beyond requests the CPUs 0-7, but the container's control group", "a list with CPUs that do not exist", {}),
]


def left_out(shelf):
    """A bundle that is not whole is no device, and both commands that look say why."""
    shelf.configure("/usr/bin/runc")
    done = generate()
    told = "bundle part is not offered: nic none-such not found"
    check("bundle: generate writes the others and warns of one that is not whole", done.status == 0 and told in done.err, done)
    explained = " ".join(run("onload-ctk", "discover", "--explain").out.split())
    check("bundle: discover --explain says why", "nic none-such not found" in explained, explained)
    names = [device["name"] for device in json.loads(Path("/var/run/cdi/onload.dev-bundle.json").read_text(encoding="utf-8"))["devices"]]
    check("bundle: every other one is a device", sorted(names) == sorted(set(shelf.bundles) - {"part"}), names)


def on_two_nodes(shelf, engine, door):
    with shelf.start(engine, door, "wide") as kept:
        if has_devices(shelf, f"{engine.name} {door}", "wide", kept):
            found = placed(first_process(shelf.far))
            words = "the devices of bundle wide are on the NUMA nodes 0-1"
            check(f"bundle: {engine.name} {door}: devices on two nodes have both, and a line says so",
                  found == (EVERYWHERE, EVERYWHERE) and words in logged(), f"{found}\n{logged()}")


def of_a_pool(shelf, engine, door):
    """The CPUs are those of the member that the pool gives, whichever it is; two containers get one each."""
    with shelf.start(engine, door, "pooled") as one, \
            Kept(engine, "bundle-second", "debian13", shelf.program(), engines.Request(door, ["bundle=pooled"])) as two:
        found = [placed(first_process(name)) for name in (shelf.near, shelf.far) if leases.leased(name)]
        check(f"bundle: {engine.name} {door}: members of a pool bring the CPU and the memory of their node", found == [("0", "0"), ("1", "1")],
              f"{found}\n{one.text()}\n{two.text()}\n{engines.said_by_hook(two.started)}\n{logged()}")


def of_nobody(shelf, engine, door):
    """podman 4.3 does not tell its hooks whose container it is, and a member is leased to one."""
    with shelf.start(engine, door, "pooled") as kept:
        said = engines.said_by_hook(kept.started)
        check(f"bundle: {engine.name} {door}: a pool is refused where the engine does not say whose container it is",
              kept.started.status != 0 and "the container's id is unknown" in said, f"{kept.started}\n{said}")


def tried(guest):
    """The engines by name, and each with the entry points that know annotations before the container is there."""
    found = {engine.name: engine for engine in engines.all_engines() if engine.name not in ("podman-rootless", "ctr")}
    for engine in found.values():
        engine.name = engine.name if guest == NEWEST else f"{guest}-{engine.name}"
    early = [(engine, door) for name, engine in found.items() for door in ("wrapper", "precreate") if door in engine.doors and name != "cri"]
    return found, early


def of_each_kind(early):
    """One of an engine's wrapper, and every one of podman's hook: for what does not hang on the engine."""
    return early[:1] + [(engine, door) for engine, door in early[1:] if door == "precreate"]


def devices_alone(shelf, found, full):
    tries = [(engine, name) for engine in found.values() for name in ("near", "far")]
    for engine, name in tries if full else [(found["docker-runc"], "near"), (found["podman-crun"], "far")]:
        by_device(shelf, engine, name)


def with_cpus(shelf, found, early, full):
    quick = [("docker-runc", "wrapper", "far"), ("podman-crun", "precreate", "crossed"), ("podman-runc", "precreate", "far")]
    every = [(engine, door, name) for engine, door in early for name in ("far", "crossed")]
    for engine, door, name in every if full else [(found[name], door, bundle) for name, door, bundle in quick]:
        by_annotation(shelf, engine, door, name)
    if full:
        for engine, door in of_each_kind(early):
            on_two_nodes(shelf, engine, door)
            pooled = of_a_pool if door == "wrapper" or leases.has_pools() else of_nobody
            pooled(shelf, engine, door)


def kept_by_engines(shelf, early, full):
    for engine, door in early if full else early[:1]:
        engines_word(shelf, engine, door, *CPUS_WIN)


def refusals(shelf, found, early, full):
    for number, (name, words, why, options) in enumerate(REFUSALS):
        for engine, door in of_each_kind(early) if full else [early[number % len(early)]]:
            refused(shelf, engine, door, name, words, why, **options)
    refused(shelf, found["podman-crun"], "cdi", "part", "onload.dev/bundle=part", "a device that is not offered")


def parts(bench, wanted, full, guest):
    """The older guest has control groups of version 1, and what hangs on these is tried there."""
    shelf = Shelf(bench)
    found, early = tried(guest)
    on_cgroups = [("bundles-cpus", lambda: with_cpus(shelf, found, early, full)), ("bundles-engine", lambda: kept_by_engines(shelf, early, full))]
    others = [("bundles-devices", lambda: devices_alone(shelf, found, full)), ("bundles-pod", lambda: in_a_pod(shelf, found["cri"])),
              ("bundles-refused", lambda: refusals(shelf, found, early, full))]
    tries = on_cgroups + others if guest == NEWEST else [(f"{guest}-{name}", act) for name, act in on_cgroups]
    tries = [(name, act) for name, act in tries if not wanted or any(word in name for word in wanted)]
    if not tries:
        return
    if guest == NEWEST:
        left_out(shelf)
    else:
        shelf.configure("/usr/bin/runc")
        generated = generate()
        check(f"bundle: {guest}: generate ends well, and containers have control groups of version 1", generated.status == 0 and is_version_1(), generated)
    for name, act in tries:
        with Part(name):
            act()
    LOG.unlink(missing_ok=True)
    session.configure("/usr/bin/runc")
    where = "" if guest == NEWEST else f"{guest}: "
    check(f"bundle: {where}none is a device when none is configured", generate().status == 0 and not Path("/var/run/cdi/onload.dev-bundle.json").exists())
    check(f"bundle: {where}no lease is left over", not leases.leased(), leases.leased())


def is_version_1():
    """Whether the controller of cpusets is one of its own."""
    return (VERSION_1 / "cpuset.effective_cpus").exists() and not (Path("/sys/fs/cgroup") / "cgroup.controllers").exists()
