"""The device plugin of a Nomad client: the agent's side asks it, and docker makes containers of what it answers.

No Debian suite has a Nomad that docker's driver works with here. What stands in its place says what an agent says (nomad_agent.py), and
gives docker what Nomad's driver gives it; the plugin, containers and devices are real.
"""

import contextlib
import json
from pathlib import Path

import grpc

import engines
import matrix
import report
import session
from nomad_agent import SOCKETS, Plugin
from parts import Kept, generate
from report import Part, check, run

WORD = {"runtime": "onload", "num_nic": 2, "num_rdma": 3}
UNLIMITED = ["unlimited", "unlimited"]
DOCKER = engines.Docker()


class Task:
    """A container of docker as Nomad's driver makes one: what is reserved, a directory of the task's own, and the runtime that the job names."""

    def __init__(self, name, given, runtime="onload", network="host"):
        self.name = name
        secrets = SOCKETS / "alloc" / name / "secrets"
        secrets.mkdir(parents=True, exist_ok=True)
        options = [*given.options(), f"--volume={secrets}:/secrets", *([f"--runtime={runtime}"] if runtime else [])]
        self.started = DOCKER.run(name, "debian13", ["sleep", "1000"], engines.Request("plain", []), more=options, network=network)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        DOCKER.remove(self.name)

    def is_refused(self, words):
        return self.started.status != 0 and words in self.started.err

    def asked(self, *questions):
        done = DOCKER.execute(self.name, ["probe", *questions])
        return matrix.facts(done.out), f"{self.started}\n{done}"

    def memlock(self):
        """RLIMIT_MEMLOCK of the first process: what exec starts beside it has the engine's limits."""
        lines = DOCKER.execute(self.name, ["cat", "/proc/1/limits"]).out.splitlines()
        line = next((line for line in lines if line.startswith("Max locked memory")), "")
        return line.split()[-3:-1]

    def maps(self):
        return DOCKER.execute(self.name, ["cat", "/proc/1/maps"]).out

    def id(self):
        return run("docker", "inspect", "--format", "{{.Id}}", self.name).out.strip()

    def pid(self):
        return int(run("docker", "inspect", "--format", "{{.State.Pid}}", self.name).out.strip() or 0)


def leases(device):
    """Who holds a device, as the operator sees it."""
    done = run("onload-ctk", "lease", "list", "--format", "json")
    return [lease for lease in json.loads(done.out)["leases"] if lease["device"] == device and lease["state"] != "ended"]


def refusal(plugin, *ids):
    try:
        plugin.reserve(ids)
    except grpc.RpcError as error:
        return error.details()
    return ""


def device(name, groups):
    """Whether a device is healthy, why not, and where it is: functions of which a task may have any are one group."""
    return next((group.devices[name] for group in groups.values() if name in group.devices), (False, "it is not published", ""))


def publishes(bench, plugin):
    line = [plugin.line[0], plugin.line[1], plugin.line[2], plugin.line[4]]
    check("the first line is go-plugin's", line == ["1", "2", "unix", "grpc"], plugin.line)
    groups = plugin.groups
    functions = {name: found for group in groups.values() if group.name.startswith("onload.dev/vfio/") for name, found in group.devices.items()}
    addresses = sorted(name.removeprefix("vfio-").removesuffix("-0") for name in functions)
    check("each function is a device", addresses == sorted(address for address, _ in bench.found["vfio"]), addresses)
    places = {place for _, _, place in functions.values()}
    check("the scheduler knows where they are", places == set(addresses), places)
    # devices.accelerate: the first interface by AF_XDP, the second by a datapath of Onload's own.
    by_xdp, by_card = bench.found["interfaces"]
    names = [f"onload.dev/rdma/{bench.found['rdma']}", "onload.dev/hugepages/2Mi", f"xdp/onload/{by_xdp}", f"amd/onload/{by_card}"]
    missing = [name for name in names if name not in groups or not groups[name].healthy()]
    check("RDMA, huge pages and interfaces are healthy devices", not missing, f"{missing} of {sorted(groups)}")


def ids(bench, plugin):
    """One device of each kind, as the scheduler gives a task that has four device blocks."""
    interface = bench.found["interfaces"][0]
    groups = [f"onload.dev/rdma/{bench.found['rdma']}", "onload.dev/hugepages/2Mi", f"xdp/onload/{interface}"]
    return [[f"vfio-{bench.vfio}-0"], *([next(iter(plugin.groups[name].devices))] for name in groups)]


def has_all(bench, task, what):
    facts, text = task.asked(*bench.questions(), f"huge={matrix.HUGE}")
    check(f"{what}: the container opens its group", facts.get(f"vfio=/dev/vfio/{bench.group}") == "viable", text)
    check(f"{what}: it opens the nodes of RDMA and Onload", matrix.nodes_value(bench, facts) == "yes", text)
    check(f"{what}: it has the libraries", matrix.libs_value(facts) == "yes", text)
    check(f"{what}: it has a hugetlbfs of its own", facts.get(f"huge={matrix.HUGE}", "").startswith("yes"), text)
    check(f"{what}: it opens nothing else", matrix.closed_value(bench, facts) == "yes", text)
    check(f"{what}: it may lock memory", task.memlock() == UNLIMITED, task.memlock())
    check(f"{what}: its first process has libonload.so mapped", "libonload.so" in task.maps(), task.maps())


def is_leased(device, task, given, what):
    held = leases(device)
    right = len(held) == 1 and held[0]["container"] == task.id() and held[0]["pid"] == task.pid()
    check(f"{what}: the lease is the container's", right, held)
    tickets = [ticket[:8] for ticket in given.tickets()]
    check(f"{what}: and names its ticket", right and held[0].get("ticket") in tickets, f"{held}\n{tickets}")


def first_task(bench, plugin):
    """A task with four device blocks, from its start to its end; what it was given."""
    given = plugin.reserve(*ids(bench, plugin))
    check("each block that comes by ticket has a ticket of its own", len(given.tickets()) == 4, given)
    with Task("first", given) as task:
        if not check("the task starts", task.started.status == 0, f"{task.started}\n{given}"):
            return given
        has_all(bench, task, "a task")
        is_leased(f"vfio={bench.vfio}", task, given, "a task")
        check("its function stays healthy", device(f"vfio-{bench.vfio}-0", plugin.groups)[0], plugin.groups)
        others(bench, given)
        restarts(bench, task, given)
    check("a task that is removed gives its function back", not leases(f"vfio={bench.vfio}"), leases(f"vfio={bench.vfio}"))
    return given


def others(bench, given):
    """While the task runs, nobody else gets what it has."""
    with Task("copy", given) as copy:
        check("a copied ticket is refused while its task runs", copy.is_refused("in use by container"), copy.started)
    with Kept(DOCKER, "elsewhere", "debian13", ["sleep", "1000"], engines.Request("cdi", [f"vfio={bench.vfio}"])) as other:
        check("docker does not get the function of a task", other.started.status != 0 and "in use by container" in str(other.started), other.started)


def restarts(bench, task, given):
    done = run("docker", "restart", "-t", "0", task.name, timeout=90)
    check("a task that Nomad restarts starts with the same ticket", done.status == 0, done)
    is_leased(f"vfio={bench.vfio}", task, given, "after a restart")
    run("docker", "kill", "--signal=KILL", task.name)
    run("docker", "wait", task.name)
    done = DOCKER.again(task.name)
    check("so does one whose process was killed", done.status == 0, done)
    has_all(bench, task, "after a kill")
    is_leased(f"vfio={bench.vfio}", task, given, "after a kill")


class Guess:
    """What the author of a job or of an image writes."""

    def __init__(self, environment):
        self.environment = environment

    def options(self):
        return [f"--env={name}={value}" for name, value in self.environment.items()]


def refuses(bench, plugin, old):
    with Task("copy", old) as copy:
        check("a ticket that another task copied is refused when its own is over", copy.is_refused("valid only for the task that used it first"), copy.started)
    with Task("guess", Guess({"ONLOAD_CTK_REQUEST_00000000": "ticket:" + "0" * 32})) as guess:
        check("a guessed ticket is refused", guess.is_refused("ONLOAD_CTK_REQUEST_00000000: ticket 00000000… is unknown"), guess.started)
    group = f"/dev/vfio/{bench.group}"
    for name in ["ONLOAD_CTK_REQUEST", "ONLOAD_CTK_REQUEST_A"]:
        with Task("image", Guess({name: f"vfio={bench.vfio}"})) as image:
            facts, text = image.asked(f"node={group}")
            check(f"an image that carries {name} starts and gets nothing", image.started.status == 0 and facts.get(f"node={group}") == "absent", text)
    new = plugin.reserve(*ids(bench, plugin)[:1])
    with Task("first", old) as again:
        check("an old ticket is refused once the function is reserved again", again.is_refused("a later reservation has its devices"), again.started)
    with Task("second", new) as second:
        facts, text = second.asked(f"vfio={group}")
        check("the task of the new one has it", facts.get(f"vfio={group}") == "viable", text)
        is_leased(f"vfio={bench.vfio}", second, new, "a later task")


def survives(bench, plugin):
    """The plugin is killed while a task runs."""
    given = plugin.reserve(*ids(bench, plugin)[:1])
    with Task("lasting", given) as task:
        plugin.kill()
        facts, text = task.asked(f"vfio=/dev/vfio/{bench.group}")
        check("a task goes on without the plugin", facts.get(f"vfio=/dev/vfio/{bench.group}") == "viable", text)
        again = Plugin(WORD).fingerprint()
        again.wait()
        check("the next plugin knows that the function is a task's", device(f"vfio-{bench.vfio}-0", again.groups)[0], again.groups)
        done = run("docker", "restart", "-t", "0", task.name, timeout=90)
        check("and the task starts again", done.status == 0, done)
        is_leased(f"vfio={bench.vfio}", task, given, "after the plugin was killed")
    return again


def held_elsewhere(bench, plugin):
    with Kept(DOCKER, "elsewhere", "debian13", ["sleep", "1000"], engines.Request("cdi", [f"vfio={bench.vfio}"])) as other:
        check("a container of docker starts", other.started.status == 0, other.started)
        told = plugin.wait(lambda groups: not device(f"vfio-{bench.vfio}-0", groups)[0])
        check("what docker holds is unhealthy, with its holder", told and "in use by container" in device(f"vfio-{bench.vfio}-0", plugin.groups)[1], plugin.groups)
        said = refusal(plugin, *ids(bench, plugin)[0])
        check("and Reserve names the container", "in use by container" in said, said)
    check("it is healthy once docker's container is gone", plugin.wait(lambda groups: device(f"vfio-{bench.vfio}-0", groups)[0]), plugin.groups)


def writable(bench, plugin):
    """Somebody else could write specifications: the runtime gives nothing of them."""
    Path("/etc/cdi").mkdir(mode=0o755, exist_ok=True)
    mode = Path("/etc/cdi").stat().st_mode & 0o7777
    given = plugin.reserve(*ids(bench, plugin)[:1])
    Path("/etc/cdi").chmod(0o1777)
    try:
        with Task("open", given) as task:
            check("the runtime refuses specifications that others can change", task.is_refused("has mode 1777"), task.started)
        said = refusal(plugin, *ids(bench, plugin)[3])
        check("and so does Reserve", "has mode 1777" in said, said)
        generate()  # what changed is looked at
        again = Plugin(WORD).fingerprint()
        again.wait()
        check("and the devices are unhealthy", "has mode 1777" in device(f"vfio-{bench.vfio}-0", again.groups)[1], again.groups)
        again.end()
    finally:
        Path("/etc/cdi").chmod(mode)


def without_the_word(bench):
    plugin = Plugin({}).fingerprint()
    plugin.wait()
    check("without the operator's word no function is published", not any("/vfio/" in name or "/hugepages/" in name for name in plugin.groups), plugin.groups)
    given = plugin.reserve([next(iter(plugin.groups[f"onload.dev/rdma/{bench.found['rdma']}"].devices))])
    check("and a task is told what it is not given", given.environment.get("ONLOAD_CTK_NOT_GIVEN") == "memlock" and not given.tickets(), given)
    with Task("plain", given, runtime=None) as task:
        nodes = [f"/dev/infiniband/{name}" for name in ["rdma_cm", *bench.found["uverbs"]]]
        facts, text = task.asked(*(f"node={path}" for path in nodes))
        opened = [path for path in nodes if facts.get(f"node={path}") == f"open {matrix.number(path)}"]
        check("it has the nodes of one RDMA device with docker's own runtime", opened == nodes, text)
    check("Shutdown ends the plugin", plugin.end() == 0)
    check("and its socket goes", not Path(plugin.line[3]).parent.exists(), list(SOCKETS.glob("*")))


def parts(bench, wanted):
    if wanted and not any(word in "nomad" for word in wanted):
        return
    report.prefix = "nomad: "
    session.configure("/usr/bin/runc")
    generate()
    plugin = None
    try:
        with Part("nomad: devices"):
            plugin = Plugin(WORD).fingerprint()
            plugin.wait()
            publishes(bench, plugin)
        with Part("nomad: a task"):
            given = first_task(bench, plugin)
            refuses(bench, plugin, given)
        with Part("nomad: others"):
            plugin = survives(bench, plugin)
            held_elsewhere(bench, plugin)
            writable(bench, plugin)
        with Part("nomad: without the runtime"):
            plugin.end()
            without_the_word(bench)
    finally:
        report.prefix = ""
        if plugin is not None and plugin.process.poll() is None:
            with contextlib.suppress(OSError):
                plugin.kill()
