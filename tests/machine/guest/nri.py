"""Pods by annotation without a runtime class: the NRI plugin beside containerd 2.1, where NRI is on, and 1.7, where it is opt-in.

Both would listen at one socket. So the newest one comes first, while the older has NRI off, and is stopped before NRI is turned on there.
"""

import contextlib
import os
import statistics
import time

import grpc

import engines
import matrix
import report
import session
from cri import Cri, message
from parts import generate
from report import Part, check, must, run

UNIT = "onload-nri"
SOCKET = "/var/run/nri/nri.sock"
PARENT = "kubepods.slice"
OLDER = "unix:///run/containerd/containerd.sock"
NEWEST = "unix:///run/containerd2/containerd.sock"
IMAGE = "localhost/debian13:1"
STAYS = ["sleep", "1000"]
# How much longer a pod that asks for nothing may take with the plugin, in seconds: what it costs is far below what a pod varies by.
NOTICED = 0.15


def start_plugin():
    must("systemd-run", f"--unit={UNIT}", "--collect", "--property=Restart=always", "--property=RestartSec=1", "onload-nri", "--verbose")


def journal():
    return run("journalctl", "-b", "--no-pager", "-o", "cat", "-n", "60", "-u", f"{UNIT}.service").out


def registrations():
    return run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", f"{UNIT}.service").out.count("registered with containerd")


def wait(said, seconds=30):
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not said() and time.monotonic() < deadline:
        time.sleep(0.2)
    return said()


@contextlib.contextmanager
def pod(client, name, annotations, handler="runc", environment=None):
    """A pod with annotations and its container `app`, as a kubelet makes them: the container's id. grpc.RpcError says why there is none."""
    os.makedirs(engines.LOGS, exist_ok=True)
    sandbox = client.sandbox(name, annotations, engines.LOGS)
    identity = client.call("RunPodSandbox", message((1, sandbox), (2, handler)))[1].decode()
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
        held = run("onload-ctk", "lease", "list").out
        check("the vfio function is leased to it", bench.vfio in held, held)
    check("and to nobody once it is gone", wait(lambda: bench.vfio not in run("onload-ctk", "lease", "list").out), run("onload-ctk", "lease", "list"))


def preload_is_merged(client):
    # The loader ignores a library that is not there, with a line.
    with pod(client, "merged", {"onload.dev/nic": "all"}, environment={"LD_PRELOAD": "/opt/own.so", "EF_POLL_USEC": "7"}) as container:
        environment = first_environment(client, container)
        check("the container's own LD_PRELOAD is kept behind ours", environment.get("LD_PRELOAD") == "libonload.so:/opt/own.so", environment)
        check("its own settings are kept", environment.get("EF_POLL_USEC") == "7", environment)


def pools_are_reserved(bench, client):
    with pod(client, "pool-one", {"onload.dev/vfio": "any"}) as one, pod(client, "pool-two", {"onload.dev/vfio": "any"}) as two:
        given = [first_environment(client, container) for container in (one, two)]
        names = [sorted(key for key in environment if key.startswith("ONLOAD_CTK_VFIO_")) for environment in given]
        check("two pods get two functions of the pool", all(len(own) == 1 for own in names) and names[0] != names[1], f"{names}\n{journal()}")
        said = refusal(client, {"onload.dev/vfio": "any*2"})
        check("a pool that has too few is refused by name", "onload.dev/vfio" in said, said)
    free = wait(lambda: "held" not in run("onload-ctk", "lease", "list").out)
    check("nothing is held when the pods are gone", free, run("onload-ctk", "lease", "list"))


def refuses(client):
    for annotations, why in [
            ({"onload.dev/rdma": "any", "onload.dev/ipc-lock": "true"}, "cannot add a capability"),
            ({"onload.dev/nic": "none-such"}, "none-such"),
            ({"onload.dev/gpu": "all"}, "gpu"),
            ({"onload.dev/nic.app": "../../dev"}, "cannot be the name")]:
        said = refusal(client, annotations)
        check(f"{annotations} is refused by name in the pod's events", why in said and "onload-nri: annotation" in said, f"{said}\n{journal()}")


def leaves_others_alone(client):
    with pod(client, "other-container", {"onload.dev/nic.sidecar": "all"}) as container:
        facts, text = asked(client, container, "node=/dev/onload")
        check("an annotation for another container gives nothing", facts.get("node=/dev/onload") == "absent", text)
    with pod(client, "nothing", {"example.com/colour": "green"}) as container:
        facts, text = asked(client, container, "node=/dev/onload")
        check("a pod that asks for nothing has nothing", facts.get("node=/dev/onload") == "absent", text)


def seconds_of_a_pod(client, name):
    start = time.monotonic()
    with pod(client, name, {}):
        return time.monotonic() - start


def is_not_slower(client):
    """The median of ten pods without the plugin, and with it."""
    run("systemctl", "stop", f"{UNIT}.service")
    without = statistics.median(seconds_of_a_pod(client, f"without-{number}") for number in range(10))
    before = registrations()
    start_plugin()
    wait(lambda: registrations() > before)
    beside = statistics.median(seconds_of_a_pod(client, f"with-{number}") for number in range(10))
    report.log(f"a pod that asks for nothing: {without:.3f} s without the plugin, {beside:.3f} s with it")
    check("a pod that asks for nothing is not slower", beside < without + NOTICED, f"{without:.3f} s, {beside:.3f} s")


def comes_back(client, service, bench):
    before = registrations()
    must("systemctl", "restart", service, timeout=120)
    check("a runtime that starts again is served again", wait(lambda: registrations() > before), journal())
    before = registrations()
    must("systemctl", "kill", "--signal=KILL", f"{UNIT}.service")
    check("a plugin that is killed comes back", wait(lambda: registrations() > before), journal())
    with pod(client, "after", {"onload.dev/nic": "all"}) as container:
        facts, text = asked(client, container, *bench.questions())
        check("and gives devices", matrix.nodes_value(bench, facts) == "yes", f"{text}\n{journal()}")


def dead_plugin(client, service):
    """Stopped in the middle, it answers late: the runtime goes on, and the plugin connects again."""
    before = registrations()
    must("systemctl", "kill", "--signal=STOP", f"{UNIT}.service")
    with pod(client, "late", {"onload.dev/nic": "all"}) as container:
        facts, text = asked(client, container, "node=/dev/onload")
        check("a container whose answer does not come starts without devices", facts.get("node=/dev/onload") == "absent", text)
    must("systemctl", "kill", "--signal=CONT", f"{UNIT}.service")
    check("the plugin connects again", wait(lambda: registrations() > before), f"{service}\n{journal()}")
    free = run("onload-ctk", "lease", "list").out
    check("nothing is kept for the container", "held" not in free, free)


def whole(bench, socket, service):
    client = Cri(socket, PARENT)
    version = client.call("Version", b"")[3].decode()
    report.prefix = f"nri: containerd {version}: "
    with Part(f"nri: containerd {version}"):
        start_plugin()
        if not check("the plugin registers", wait(lambda: f"registered with containerd {version}" in journal()), journal()):
            return
        gets_everything(bench, client)
        preload_is_merged(client)
        pools_are_reserved(bench, client)
        refuses(client)
        leaves_others_alone(client)
        is_not_slower(client)
        comes_back(client, service, bench)
        dead_plugin(client, service)
    run("systemctl", "stop", f"{UNIT}.service")
    run("systemctl", "reset-failed", f"{UNIT}.service")


def launched(bench, socket, service):
    """From the runtime's own directory of plugins."""
    client = Cri(socket, PARENT)
    os.makedirs("/opt/nri/plugins", exist_ok=True)
    link = "/opt/nri/plugins/50-onload"
    os.symlink("/usr/bin/onload-nri", link)
    try:
        must("systemctl", "restart", service, timeout=120)
        with pod(client, "launched", {"onload.dev/nic": "all"}) as container:
            facts, text = asked(client, container, *bench.questions())
            check("a plugin that the runtime launches gives devices", matrix.nodes_value(bench, facts) == "yes", text)
    finally:
        os.unlink(link)
        must("systemctl", "restart", service, timeout=120)


def parts(bench, wanted):
    if wanted and not any(word in "nri" for word in wanted):
        return
    session.configure("/usr/bin/runc")
    generate()
    try:
        must("systemctl", "start", "containerd2", timeout=120)
        whole(bench, NEWEST, "containerd2")
        launched(bench, NEWEST, "containerd2")
        must("systemctl", "stop", "containerd2", timeout=120)
        report.prefix = "nri: "
        with open("/etc/containerd/config.toml", encoding="utf-8") as file:
            before = file.read()
        with Part("nri: turned on"):
            must("onload-ctk", "runtime", "configure", "--runtime", "containerd", "--nri", "--restart", timeout=120)
            check("containerd 1.7 listens for plugins once it is told to", wait(lambda: os.path.exists(SOCKET)), run("journalctl", "-u", "containerd", "-n", "40").out)
        whole(bench, OLDER, "containerd")
        launched(bench, OLDER, "containerd")
        report.prefix = "nri: "
        with Part("nri: turned off"):
            must("onload-ctk", "runtime", "configure", "--runtime", "containerd", "--remove", "--restart", timeout=120)
            with open("/etc/containerd/config.toml", encoding="utf-8") as file:
                check("--remove gives the file back to the byte", file.read() == before, "it differs")
    finally:
        report.prefix = ""
        run("systemctl", "stop", f"{UNIT}.service", "containerd2", timeout=120)
