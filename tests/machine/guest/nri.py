"""Pods by annotation without a runtime class: the NRI plugin beside containerd 2.1, where NRI is on, and 1.7, where it is opt-in.

Both would listen at one socket. So the newest one comes first, while the older has NRI off, and is stopped before NRI is turned on there.
"""

import contextlib
import json
import os
import shutil
import statistics
import time
from pathlib import Path

import grpc

import engines
import leases
import matrix
import report
import session
from cri import NAMESPACES, Cri, message
from parts import generate
from report import Part, check, must, run

UNIT = "onload-nri.service"
UNIT_FILE = Path(f"/etc/systemd/system/{UNIT}")
OPTIONS = Path("/etc/default/onload-ctk")
SOCKET = Path("/var/run/nri/nri.sock")
PLUGINS = Path("/opt/nri/plugins")
CONTAINERD = Path("/etc/containerd/config.toml")
PARENT = "kubepods.slice"
OLDER = "unix:///run/containerd/containerd.sock"
NEWEST = "unix:///run/containerd2/containerd.sock"
IMAGE = "localhost/debian13:1"
STAYS = ["sleep", "1000"]


def install():
    """The package's unit, which tells why a container is given what it is given."""
    shutil.copy(f"/run/machine/packaging/systemd/{UNIT}", UNIT_FILE)
    OPTIONS.write_text("ONLOAD_NRI_OPTIONS=--verbose\n", encoding="ascii")
    must("systemctl", "daemon-reload", timeout=120)


def start():
    """Enabled and started; waits until a runtime has taken it."""
    before = registrations()
    must("systemctl", "enable", "--now", UNIT, timeout=120)
    return wait(lambda: registrations() > before)


def stop():
    run("systemctl", "disable", "--now", UNIT, timeout=120)
    run("systemctl", "reset-failed", UNIT)


def uninstall():
    stop()
    UNIT_FILE.unlink(missing_ok=True)
    OPTIONS.unlink(missing_ok=True)
    run("systemctl", "daemon-reload", timeout=120)


def journal(lines="60"):
    return run("journalctl", "-b", "--no-pager", "-o", "cat", "-n", lines, "-u", UNIT).out


def registrations():
    return journal("all").count("registered with containerd")


def wait(said, seconds=30):
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not said() and time.monotonic() < deadline:
        time.sleep(0.2)
    return said()


@contextlib.contextmanager
def pod(client, name, annotations, environment=None):
    """A pod with annotations and its container `app`, as a kubelet makes them: the container's id. grpc.RpcError says why there is none."""
    os.makedirs(engines.LOGS, exist_ok=True)
    sandbox = client.sandbox(name, annotations, engines.LOGS)
    identity = client.call("RunPodSandbox", message((1, sandbox), (2, "runc")))[1].decode()
    try:
        yield client.add(identity, sandbox, "app", IMAGE, STAYS, environment=environment)
    finally:
        client.remove(identity)


def refusal(client, annotations):
    """What a pod's events would say; empty where the container starts."""
    try:
        with pod(client, "refused", annotations):
            return ""
    except grpc.RpcError as error:
        return error.details()


def asked(client, container, *questions):
    _, out, err = client.execute(container, ["probe", *questions])
    return matrix.facts(out), out + err


def first_environment(client, container):
    _, out, _ = client.execute(container, ["cat", "/proc/1/environ"])
    return dict(entry.partition("=")[::2] for entry in out.split("\0") if entry)


def doctor():
    """What the check of the plugin says: its verdict and its finding."""
    told = json.loads(run("onload-ctk", "doctor", "--format", "json", timeout=180).out or "{}")
    found = [item for item in told.get("checks", []) if item["name"] == "nri-plugin"]
    return [(item["verdict"], item["finding"]) for item in found]


def gets_everything(bench, client):
    annotations = {"onload.dev/nic": "all", "onload.dev/rdma": bench.found["rdma"], "onload.dev/vfio": bench.vfio}
    with pod(client, "everything", annotations) as container:
        facts, text = asked(client, container, *bench.questions())
        check("a pod with annotations opens its nodes", matrix.nodes_value(bench, facts) == "yes", f"{text}\n{journal()}")
        check("it opens its vfio group", facts.get(f"vfio=/dev/vfio/{bench.group}") == "viable", text)
        check("it opens nothing else", matrix.closed_value(bench, facts) == "yes", text)
        check("it has the libraries, read-only", matrix.libs_value(facts) == "yes", text)
        _, limits, _ = client.execute(container, ["cat", "/proc/1/limits"])
        line = next((line for line in limits.splitlines() if line.startswith("Max locked memory")), "")
        check("it may lock memory", line.split()[-3:-1] == ["unlimited", "unlimited"], limits)
        _, maps, _ = client.execute(container, ["cat", "/proc/1/maps"])
        check("its first process has libonload.so mapped", "libonload.so" in maps, maps)
        check("the vfio function is leased to it", leases.leased(bench.vfio), journal())
    check("and to nobody once it is gone", wait(lambda: not leases.leased(bench.vfio)), run("onload-ctk", "lease", "list"))


def preload_is_merged(client):
    # The loader ignores a library that does not exist, with a line.
    with pod(client, "merged", {"onload.dev/nic": "all"}, environment={"LD_PRELOAD": "/opt/own.so", "EF_POLL_USEC": "7"}) as container:
        environment = first_environment(client, container)
        check("the container's own LD_PRELOAD is kept behind ours", environment.get("LD_PRELOAD") == "libonload.so:/opt/own.so", environment)
        check("its own settings are kept", environment.get("EF_POLL_USEC") == "7", environment)


def of_pools(environment):
    return sorted(key for key in environment if key.startswith("ONLOAD_CTK_VFIO_"))


def pools_are_reserved(client):
    with pod(client, "pool-one", {"onload.dev/vfio": "any"}) as one, pod(client, "pool-two", {"onload.dev/vfio": "any"}) as two:
        names = [of_pools(first_environment(client, container)) for container in (one, two)]
        check("two pods get two functions of the pool", all(len(own) == 1 for own in names) and names[0] != names[1], f"{names}\n{journal()}")
        said = refusal(client, {"onload.dev/vfio": "any"})
        check("a pool that has none left is refused by name", 'annotation "onload.dev/vfio"' in said, said)
    check("nothing is held when the pods are gone", wait(lambda: not leases.leased()), run("onload-ctk", "lease", "list"))


def refuses(client, rdma):
    for what, annotations, why in [
            ("a capability", {"onload.dev/rdma": rdma, "onload.dev/ipc-lock": "true"}, "cannot add a capability"),
            ("an unknown device", {"onload.dev/nic": "none-such"}, "none-such"),
            ("an unknown class", {"onload.dev/gpu": "all"}, "gpu"),
            ("a path instead of a name", {"onload.dev/nic.app": "../../dev"}, "cannot be the name")]:
        said = refusal(client, annotations)
        check(f"{what} is refused in the pod's events, by the annotation's name", why in said and 'onload-nri: annotation "onload.dev/' in said, f"{said}\n{journal()}")


def leaves_others_alone(client):
    with pod(client, "other-container", {"onload.dev/nic.sidecar": "all"}) as container:
        facts, text = asked(client, container, "node=/dev/onload")
        check("an annotation for another container gives nothing", facts.get("node=/dev/onload") == "absent", text)
    with pod(client, "nothing", {"example.com/colour": "green"}) as container:
        facts, text = asked(client, container, "node=/dev/onload")
        check("a pod that asks for nothing has nothing", facts.get("node=/dev/onload") == "absent", text)


def comes_back(client, service):
    before = registrations()
    must("systemctl", "restart", service, timeout=120)
    check("a runtime that starts again is served again", wait(lambda: registrations() > before), journal())
    before = registrations()
    must("systemctl", "kill", "--signal=KILL", UNIT)
    check("a plugin that is killed comes back", wait(lambda: registrations() > before), journal())
    with pod(client, "after", {"onload.dev/nic": "all"}) as container:
        facts, text = asked(client, container, "node=/dev/onload")
        check("and gives devices", facts.get("node=/dev/onload", "").startswith("open"), f"{text}\n{journal()}")


def answers_late(client):
    """Stopped in the middle, it answers late: the runtime goes on, and the plugin connects again."""
    before = registrations()
    must("systemctl", "kill", "--signal=STOP", UNIT)
    with pod(client, "late", {"onload.dev/vfio": "any"}) as container:
        environment = first_environment(client, container)
        check("a container whose answer does not come starts without devices", environment and not of_pools(environment), environment)
    must("systemctl", "kill", "--signal=CONT", UNIT)
    check("the plugin connects again", wait(lambda: registrations() > before), journal())
    check("nothing is kept for the container", wait(lambda: not leases.leased()), f"{run('onload-ctk', 'lease', 'list')}\n{journal()}")


def doctor_tells(service):
    told = doctor()
    check("doctor sees that a runtime asks the plugin", [verdict for verdict, _ in told] == ["pass"], told)
    must("systemctl", "stop", UNIT, timeout=120)
    told = doctor()
    check("doctor fails where the plugin does not run", told and told[0][0] == "fail", told)
    must("systemctl", "stop", service, timeout=120)
    must("systemctl", "start", UNIT, timeout=120)
    told = doctor()
    check("doctor fails where no runtime listens", told and told[0][0] == "fail", told)
    must("systemctl", "start", service, timeout=120)
    check("a runtime that starts after the plugin has it too", wait(lambda: doctor()[0][0] == "pass"), f"{doctor()}\n{journal()}")


def whole(bench, socket, service):
    client = Cri(socket, PARENT)
    version = client.call("Version", b"")[3].decode()
    report.prefix = f"nri: containerd {version}: "
    with Part(f"nri: containerd {version}"):
        if not check("the plugin registers", start() and f"registered with containerd {version}" in journal(), journal()):
            return
        pid = run("systemctl", "show", "--property=MainPID", "--value", UNIT).out.strip()
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_RAWIO and CAP_SYS_PTRACE.
        check("the plugin has the capabilities that its unit lists", "CapEff:\t00000000000a0006\n" in status, status)
        gets_everything(bench, client)
        preload_is_merged(client)
        pools_are_reserved(client)
        refuses(client, bench.found["rdma"])
        leaves_others_alone(client)
        comes_back(client, service)
        answers_late(client)
        doctor_tells(service)
    stop()


def launched(socket, service):
    """From the runtime's own directory of plugins."""
    client = Cri(socket, PARENT)
    PLUGINS.mkdir(parents=True, exist_ok=True)
    link = PLUGINS / "50-onload"
    link.symlink_to("/usr/bin/onload-nri")
    try:
        must("systemctl", "restart", service, timeout=120)
        with pod(client, "launched", {"onload.dev/nic": "all"}) as container:
            facts, text = asked(client, container, "node=/dev/onload")
            check("a plugin that the runtime launches gives devices", facts.get("node=/dev/onload", "").startswith("open"), text)
        if service == "containerd":  # the other one has its configuration where doctor does not look
            told = doctor()
            check("doctor sees the plugin that the runtime launched", [verdict for verdict, _ in told] == ["pass"], told)
    finally:
        link.unlink()
        must("systemctl", "restart", service, timeout=120)


def seconds_of_a_pod(client, name):
    """A pod that asks for nothing, up to the start of its container; and of that what NRI has a part in."""
    sandbox = client.sandbox(name, {}, engines.LOGS)
    begin = time.monotonic()
    identity = client.call("RunPodSandbox", message((1, sandbox), (2, "runc")))[1].decode()
    security = message((3, message(*NAMESPACES)))
    config = message((1, message((1, "app"))), (2, message((1, IMAGE))), (3, STAYS), (11, "app.log"), (15, message((2, security))))
    middle = time.monotonic()
    container = client.call("CreateContainer", message((1, identity), (2, config), (3, sandbox)))[1].decode()
    created = time.monotonic()
    client.call("StartContainer", message((1, container)))
    end = time.monotonic()
    client.remove(identity)
    return end - begin, created - middle


def speed(socket):
    """Pods that ask for nothing, with and without the plugin in turns: medians and their ratio, for docs/performance.md."""
    client = Cri(socket, PARENT)
    os.makedirs(engines.LOGS, exist_ok=True)
    times = {False: [], True: []}
    for turn, is_there in enumerate([False, True, True, False] * 2):
        (start if is_there else stop)()
        # The first one after a change is warm-up.
        times[is_there] += [seconds_of_a_pod(client, f"speed-{turn}-{number}") for number in range(4)][1:]
    stop()
    for index, what in enumerate(["a pod that asks for nothing, up to the start of its container", "its CreateContainer"]):
        without, beside = ([sample[index] * 1000 for sample in times[is_there]] for is_there in (False, True))
        medians = statistics.median(without), statistics.median(beside)
        half = len(without) // 2
        floor = statistics.median(without[half:]) / statistics.median(without[:half])
        report.log(f"{what}: {medians[0]:.0f} ms without the plugin, {medians[1]:.0f} ms with it, ratio {medians[1] / medians[0]:.3f}; "
                   f"without it, the second half against the first: {floor:.3f}; {len(without)} and {len(beside)} pods")


def with_newest(does):
    must("systemctl", "start", "containerd2", timeout=120)
    does()
    must("systemctl", "stop", "containerd2", timeout=120)
    # What it leaves would look like the socket of the next one.
    SOCKET.unlink(missing_ok=True)


def with_older(bench):
    image = CONTAINERD.read_text(encoding="utf-8")
    # The image's file has the runtime "onload" already, which --remove takes away too.
    must("onload-ctk", "runtime", "configure", "--runtime", "containerd", "--remove", timeout=120)
    before = CONTAINERD.read_text(encoding="utf-8")
    report.prefix = "nri: "
    try:
        with Part("nri: turned on"):
            check("containerd 1.7 has NRI off unless told", not SOCKET.exists(), SOCKET)
            must("onload-ctk", "runtime", "configure", "--runtime", "containerd", "--nri", "--restart", timeout=120)
            check("runtime configure --nri makes containerd 1.7 listen for plugins", wait(SOCKET.exists), run("journalctl", "-u", "containerd", "-n", "40").out)
        whole(bench, OLDER, "containerd")
        launched(OLDER, "containerd")
        report.prefix = "nri: "
        with Part("nri: turned off"):
            must("onload-ctk", "runtime", "configure", "--runtime", "containerd", "--remove", "--restart", timeout=120)
            after = CONTAINERD.read_text(encoding="utf-8")
            check("runtime configure --remove gives the file back to the byte", after == before, f"{before}\n--\n{after}")
    finally:
        CONTAINERD.write_text(image, encoding="utf-8")
        must("systemctl", "restart", "containerd", timeout=120)


def parts(bench, wanted, is_full):
    """The newest containerd; in a full run, or if this is all that is wanted, the older one too."""
    is_wanted = not wanted or any(word in "nri" for word in wanted)
    is_measured = "nri-speed" in wanted
    if not is_wanted and not is_measured:
        return
    session.configure("/usr/bin/runc")
    generate()
    install()
    try:
        if is_wanted:
            with_newest(lambda: (whole(bench, NEWEST, "containerd2"), launched(NEWEST, "containerd2")))
            if is_full or wanted:
                with_older(bench)
        if is_measured:
            with_newest(lambda: speed(NEWEST))
    finally:
        report.prefix = ""
        uninstall()
        run("systemctl", "stop", "containerd2", timeout=120)
