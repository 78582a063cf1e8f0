"""What happens to an interface while a container has it: nothing, whatever runs on the host; and containers that share a network share it."""

import time
from pathlib import Path

import cri
import engines
import leases
from parts import Kept, generate
from report import Part, check, must, run

from .lab import ANNOTATED, CONFIGURED, SPEC, WAITS, held, host_facts, links_in, program_of, works_in

SERVICE, TIMER, RESTORE = "onload-cdi.service", "onload-cdi.timer", "onload-restore.service"
# The timer waits a minute; these tests do not.
SOON = Path("/run/systemd/system/onload-cdi.timer.d/soon.conf")
IMAGE = "localhost/debian13:1"


def state(lab, pid):
    """What has to stay as it is while a container has the interface."""
    leased = {path.name: path.read_bytes() for path in leases.LEASES.glob("netdev=*#*")}
    spec = SPEC.stat()
    return {"specification": (SPEC.read_bytes(), spec.st_mtime_ns, spec.st_ino), "leases": leased, "process": leases.stat_of(pid)[19:20],
            "interface": links_in(pid).get(lab.first.name), "on the host": host_facts(lab.first.function)}


def service_runs():
    return run("systemctl", "show", "--value", "-p", "InvocationID", SERVICE).out.strip()


def wait_for_service(before, seconds=60):
    """Waits until the service has run once more, and is through."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        active = run("systemctl", "show", "--value", "-p", "ActiveState", SERVICE).out.strip()
        if service_runs() != before and active == "inactive":
            return True
        time.sleep(0.5)
    return False


def by_the_timer():
    """The timer is started as a boot does, and starts the service; whether that ended well."""
    before = service_runs()
    SOON.parent.mkdir(parents=True, exist_ok=True)
    SOON.write_text("[Timer]\nOnActiveSec=\nOnActiveSec=1s\nAccuracySec=1s\n", encoding="ascii")
    must("systemctl", "daemon-reload", timeout=120)
    try:
        must("systemctl", "start", TIMER)
        ran = wait_for_service(before)
        return ran and run("systemctl", "show", "--value", "-p", "Result", SERVICE).out.strip() == "success"
    finally:
        run("systemctl", "stop", TIMER)
        SOON.unlink()
        run("systemctl", "daemon-reload", timeout=120)


def succeeds(*command):
    return lambda: run(*command, timeout=120).status == 0


# What runs on a host while containers have interfaces; each tells whether it went well.
RUNS = [("cdi generate", succeeds("onload-ctk", "cdi", "generate")), ("cdi check", succeeds("onload-ctk", "cdi", "check")),
        ("the unit", succeeds("systemctl", "start", SERVICE)), ("the timer", by_the_timer), ("the unit that restores", succeeds("systemctl", "start", RESTORE))]


def stays_as_it_is(lab, engine):
    """No run of ours touches specification, lease or container, and a restart of the container gives it the interface again."""
    what = f"{engine.name} cdi: while an interface is held"
    lab.configure(engine.low)
    done = generate()
    free = SPEC.read_bytes()
    with lab.started(engine, "holder", "cdi", [lab.first.name]) as kept:
        pid = program_of(lab.first)
        if not check(f"{engine.name} cdi: a container has an interface, and keeps it", done.status == kept.started.status == 0 and works_in(pid, lab.first), f"{kept.started}\n{lab.first}"):
            return
        before = state(lab, pid)
        check(f"{what}: the specification is that of a host where it is free", before["specification"][0] == free, f"{free}\n{before}")
        for name, act in RUNS:
            good = act()
            after = state(lab, pid)
            same = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
            check(f"{what}: {name} leaves all as it is", good and not same, f"it went {'well' if good else 'wrong'}\nchanged: {same}")
        restarted(lab, engine, pid)
    lab.is_back(f"{what}: in the end")


def restarted(lab, engine, pid):
    what = f"{engine.name} cdi: a restart with an interface"
    container = [lease["container"] for lease in held()]
    done = engine.restart("holder", "cdi")
    lab.moves += done.status == 0
    now = program_of(lab.first)
    check(f"{what}: the container has it again, with its address", done.status == 0 and now not in (0, pid) and works_in(now, lab.first), f"{done}\n{engines.said_by_hook(done)}\n{lab.first}")
    right = [(lease["container"], lease["state"], lease["pid"]) for lease in held()] == [(name, "held", now) for name in container]
    check(f"{what}: the lease is its own, and the only one", right and len(container) == 1 and not leases.has_ended(now), f"{container}\n{held()}")
    check(f"{what}: the host does not have it", host_facts(lab.first.function) is None, lab.first)


def holders():
    """The containers that have an interface, with their first processes."""
    return {lease["container"]: lease["pid"] for lease in held() if lease["state"] == "held"}


def sees(engine, name, interface):
    """Whether a container has it in its network, asked from inside."""
    return f"{interface.name}:" in engine.execute(name, ["cat", "/proc/net/dev"]).out


class Pod:
    """A pod of containerd's CRI with a network of its own, whose first container has the interface."""

    def __init__(self, lab, engine, door, name):
        self.engine, self.client = engine, engine.connected()
        self.request = lab.request(door, [lab.first.name], [f"{lab.first.name}={ANNOTATED}"])
        self.kept = lab.start(engine, name, door, [lab.first.name], [f"{lab.first.name}={ANNOTATED}"])
        self.name, self.added = name, []

    def __enter__(self):
        self.id, self.first = self.engine.live.get(self.name, (None, None))
        return self

    def __exit__(self, *failure):
        self.kept.__exit__(*failure)
        for name in self.added:
            del self.engine.live[name]

    def add(self, name, devices=None):
        """One more container, which asks as the first one does, or for these devices."""
        sandbox = self.client.sandbox(self.name, self.request.annotations, engines.LOGS, namespaces=cri.OWN_NETWORK)
        asked = self.request.devices if devices is None else devices
        container = self.client.add(self.id, sandbox, name, IMAGE, WAITS, asked)
        self.engine.live[name] = (self.id, container)
        self.added.append(name)
        return container

    def stop(self):
        self.client.call("StopPodSandbox", cri.message((1, self.id)))


def pod(lab, engine, door, other):
    """Two containers of a pod share the interface, and the last gives it back."""
    what = f"cri {door}: a pod with an interface"
    address = CONFIGURED if door == "cdi" else ANNOTATED
    with Pod(lab, engine, door, "shared") as shared:
        if not check(f"{what}: its first container has it", shared.id and works_in(program_of(lab.first), lab.first, address), f"{shared.kept.started}\n{lab.first}"):
            return
        second = shared.add("second")
        having = holders()
        check(f"{what}: the second one joins", set(having) == {shared.first, second} and sees(engine, "second", lab.first), held())
        check(f"{what}: with the address", works_in(having.get(second), lab.first, address), links_in(having.get(second, 0)))
        with Kept(other, "outside", "debian13", WAITS, engines.Request("cdi", [f"netdev={lab.first.name}"]), network=other.bridge) as refused:
            said = engines.said_by_hook(refused.started)
            named = any(f"in use by container {name}" in said for name in (shared.first, second))
            check(f"{what}: a container outside is refused, with who has it", refused.started.status != 0 and named, f"{refused.started}\n{said}")
        shared.client.stop(shared.first)
        stays = list(holders()) == [second] and works_in(having.get(second), lab.first, address)
        check(f"{what}: it stays when one container ends", stays, f"{held()}\n{lab.first}")
        if door == "cdi":
            shared.stop()
            lab.is_back(f"{what}: after StopPodSandbox")
        else:
            shared.client.stop(second)
            lab.is_back(f"{what}: when the last container ends, and the pod goes on")
            third = shared.add("third")
            lab.moves += 1
            check(f"{what}: the next container of the pod has it again", list(holders()) == [third] and works_in(holders()[third], lab.first, address), f"{held()}\n{lab.first}")
    lab.is_back(f"{what}: after the pod's removal")


def one_of_two_asks(lab, engine):
    """A container that did not ask sees what its pod has, for as long as the one that asked has it."""
    what = "cri cdi: a pod in which one container asked"
    with Pod(lab, engine, "cdi", "one-asks") as shared:
        if not check(f"{what}: it has the interface", shared.id and works_in(program_of(lab.first), lab.first), f"{shared.kept.started}\n{lab.first}"):
            return
        shared.add("beside", devices=[])
        check(f"{what}: the other one sees it", sees(engine, "beside", lab.first) and list(holders()) == [shared.first], held())
        shared.client.stop(shared.first)
        lab.is_back(f"{what}: when that one ends")
        done = engine.execute("beside", ["cat", "/proc/net/dev"])
        check(f"{what}: the other one goes on without it", done.status == 0 and "eth0:" in done.out and not sees(engine, "beside", lab.first), done)
        shared.add("again")
        lab.moves += 1
        check(f"{what}: the next one that asks has it again", sees(engine, "again", lab.first) and works_in(program_of(lab.first), lab.first), f"{held()}\n{lab.first}")
    lab.is_back(f"{what}: after the pod's removal")


def joined(lab, engine):
    """--network container:NAME; the one whose network it is ends first."""
    what = f"{engine.name} cdi: containers of one network"
    ask = engines.Request("cdi", [f"netdev={lab.first.name}"])
    with lab.start(engine, "owner", "cdi", [lab.first.name]) as owner:
        if not check(f"{what}: the first one has an interface", owner.started.status == 0 and program_of(lab.first), f"{owner.started}\n{lab.first}"):
            return
        own = set(holders())
        with Kept(engine, "guest", "debian13", WAITS, ask, network="container:owner") as guest:
            having = {name: pid for name, pid in holders().items() if name not in own}
            both = guest.started.status == 0 and len(own) == len(having) == 1
            check(f"{what}: the second one joins", both and all(works_in(pid, lab.first) for pid in having.values()), f"{guest.started}\n{engines.said_by_hook(guest.started)}\n{held()}")
            engine.stop("owner")
            check(f"{what}: it stays when the first one ends", both and holders() == having and all(works_in(pid, lab.first) for pid in having.values()), f"{held()}\n{lab.first}")
        lab.is_back(f"{what}: when the last one ends")
    lab.is_back(f"{what}: in the end")


def podman_pod(lab, engine):
    what = f"{engine.name} cdi: a pod with an interface"
    lab.configure(engine.low)
    must(*engine.binary, "pod", "create", "--name", "netdev", "--network", "bridge", "--infra-image", IMAGE, "--infra-command", "sleep 1000")
    try:
        asks = ["--pod", "netdev", "--device", f"onload.dev/netdev={lab.first.name}"]
        started = [run(*engine.binary, "run", "-d", "--name", name, *asks, IMAGE, *WAITS) for name in ("inside-one", "inside-two")]
        beside = run(*engine.binary, "run", "-d", "--name", "inside-three", "--pod", "netdev", IMAGE, *WAITS)
        good = all(done.status == 0 for done in [*started, beside])
        lab.moves += good
        check(f"{what}: two of its containers hold it", good and set(holders()) == {done.out.strip() for done in started}, "\n".join(map(str, [*started, beside, held()])))
        check(f"{what}: one that did not ask sees it", sees(engine, "inside-three", lab.first), lab.first)
        engine.remove("inside-one")
        check(f"{what}: it stays when one container is removed", list(holders()) == [started[1].out.strip()] and sees(engine, "inside-two", lab.first), held())
    finally:
        done = run(*engine.binary, "pod", "rm", "-f", "-t", "0", "netdev")
    check(f"{what}: podman pod rm", done.status == 0, done)
    lab.is_back(f"{what}: after the pod's removal")


def parts(lab, on, by_name):
    docker, podman, client = by_name["docker-runc"], by_name["podman-crun"], by_name["cri"]
    if on("netdev-held"):
        for engine in (docker, podman):
            with Part(f"netdev: held with {engine.name}"):
                stays_as_it_is(lab, engine)
    if on("netdev-pod"):
        with Part("netdev: pods"):
            for door in ("cdi", "wrapper"):
                pod(lab, client, door, docker)
            one_of_two_asks(lab, client)
        with Part("netdev: containers of one network"):
            joined(lab, docker)
            joined(lab, podman)
            podman_pod(lab, podman)
