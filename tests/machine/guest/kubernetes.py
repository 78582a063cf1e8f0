"""The daemon of a Kubernetes node: it meets the kubelet's side of the device plugin API, and containerd's CRI makes pods of what it answers.

No Debian suite has a kubelet. What stands here in its place says and does what one does (kubelet.py); containers, devices and the
daemon are real.
"""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path

import grpc

import devices
import dra
import engines
import examples
import matrix
import report
import rollout
import session
from cri import NAMESPACES, Cri, message, parse
from kubelet import DIRECTORY, Kubelet
from parts import Kept, generate
from report import Part, check, must, run

UNIT = "onload-kubernetes"
PROGRAM = Path("/usr/bin/onload-kubernetes")
SHARED = Path("/run/machine-shared")
DOMAIN = "onload.dev"
CLASSES = ["nic", "rdma", "vfio"]
NAMES = [f"{DOMAIN}/{name}" for name in CLASSES]
LISTEN = "127.0.0.1:9478"
# Where kubelet has its pods, and where the lease of a container says that it is one of theirs.
PARENT = "kubepods.slice"
OLDER = "unix:///run/containerd/containerd.sock"
NEWEST = "unix:///run/containerd2/containerd.sock"


def configure(more="", settings=""):
    """The operator allows the classes, and has a name of their own for one resource. `settings` are lines of the section itself."""
    session.configure("/usr/bin/runc")
    with open("/etc/onload-ctk/config.toml", "a", encoding="ascii") as file:
        file.write(f'\n[kubernetes]\nslots = 4\nlisten = "{LISTEN}"\n{settings}\n[kubernetes.resources]\n"example.com/onload" = {{ class = "nic", slots = 2 }}\n{more}')


def install():
    """The daemon, which the host may still compile: it comes by a directory of the host's."""
    if PROGRAM.exists():
        return
    SHARED.mkdir()
    must("mount", "-t", "9p", "-o", "trans=virtio,ro", "shared", SHARED)
    deadline = time.monotonic() + 1200
    while not (SHARED / PROGRAM.name).exists():
        assert time.monotonic() < deadline, f"the host gave no {PROGRAM.name} in 1200 s"
        time.sleep(1)
    shutil.copy(SHARED / PROGRAM.name, PROGRAM)
    PROGRAM.chmod(0o755)
    must("umount", SHARED)


def start_daemon(*arguments):
    install()
    must("systemd-run", f"--unit={UNIT}", "--collect", "--property=KillMode=process", "onload-kubernetes", "run", *arguments)


def journal():
    return run("journalctl", "-b", "--no-pager", "-o", "cat", "-n", "40", "-u", f"{UNIT}.service").out


def is_running():
    return run("systemctl", "is-active", f"{UNIT}.service").out.strip() == "active"


class Pod:
    """A pod as kubelet makes one, without a container at first."""

    def __init__(self, client, name, namespaces=NAMESPACES):
        os.makedirs(engines.LOGS, exist_ok=True)
        self.client = client
        self.sandbox = client.sandbox(name, {}, engines.LOGS, namespaces=namespaces)
        self.identity = client.call("RunPodSandbox", message((1, self.sandbox), (2, "runc")))[1].decode()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.client.remove(self.identity)

    def add(self, name, allocated):
        """A container that has what was allocated; its id. grpc.RpcError says why there is none."""
        return self.client.add(self.identity, self.sandbox, name, "localhost/debian13:1", ["sleep", "1000"], allocated.cdi, environment=allocated.environment)

    def end(self, container):
        """As kubelet ends a container of a pod that goes on."""
        self.client.stop(container)
        self.client.call("RemoveContainer", message((1, container)))

    def pid(self):
        """The first process of the pod itself, which is there before any container. 2 verbose; PodSandboxStatusResponse: 2 info."""
        info = parse(self.client.call("PodSandboxStatus", message((1, self.identity), (2, 1)))[2])
        return json.loads(info[2])["pid"]


@contextlib.contextmanager
def pod(client, name, allocated):
    """A pod on the host's network, of one container that has what was allocated: its id."""
    with Pod(client, name) as made:
        yield made.add(name, allocated)


def refusal(resource, ids):
    """Why the plugin gives nothing for these; empty where it does."""
    try:
        resource.allocate(ids)
    except grpc.RpcError as error:
        return error.details()
    return ""


def memlock(client, container):
    """RLIMIT_MEMLOCK of the container's first process: what exec starts beside it has the engine's limits."""
    _, out, err = client.execute(container, ["cat", "/proc/1/limits"])
    line = next((line for line in out.splitlines() if line.startswith("Max locked memory")), "")
    return line.split()[-3:-1] or [err]


UNLIMITED = ["unlimited", "unlimited"]


def asked(client, container, *questions):
    """What the probe finds in a container."""
    _, out, err = client.execute(container, ["probe", *questions])
    return matrix.facts(out), out + err


def tells_functions(bench, resource):
    """Exclusive functions go by their PCI addresses."""
    addresses = [address for address, _ in bench.found["vfio"]]
    check("vfio: the ids are PCI addresses", resource.healthy() == sorted(addresses), resource.devices)
    nodes = {name: on for name, (_, on) in resource.devices.items()}
    wanted = {name: [int(devices.read(f"/sys/bus/pci/devices/{name}/numa_node"))] for name in addresses}
    check("vfio: kubelet is told the NUMA node of each", nodes == wanted, f"{nodes}\n{wanted}")
    both = resource.preferred(addresses, 1, needed=[addresses[1]])
    check("vfio: a preferred allocation has what it must have", both == [addresses[1]], both)


def gives_functions(bench, client, resource):
    allocated = resource.allocate([bench.vfio])
    check("vfio: Allocate answers with the CDI name alone", allocated.cdi == [f"onload.dev/vfio={bench.vfio}"] and not allocated.mounts + allocated.nodes, allocated)
    variable = allocated.environment.get("PCIDEVICE_ONLOAD_DEV_VFIO")
    check("vfio: PCIDEVICE_ONLOAD_DEV_VFIO names the function", variable == bench.vfio, allocated)
    with pod(client, "functions", allocated) as container:
        facts, text = asked(client, container, f"vfio=/dev/vfio/{bench.group}", f"node=/dev/vfio/{bench.other_group}")
        check("vfio: the container opens its group", facts.get(f"vfio=/dev/vfio/{bench.group}") == "viable", text)
        limits = memlock(client, container)
        check("vfio: it may lock memory", limits == UNLIMITED, limits)
        check("vfio: it has no other group", not facts.get(f"node=/dev/vfio/{bench.other_group}", "open").startswith("open"), text)
        with Kept(engines.Docker(), "elsewhere", "debian13", ["sleep", "1000"], engines.Request("cdi", [f"vfio={bench.vfio}"])) as other:
            said = str(other.started)
            check("vfio: docker does not get the function of a pod", other.started.status != 0 and "in use by container" in said, said)


def gives_slots(bench, client, resources):
    """Shared devices go by numbered slots."""
    nic = resources[f"{DOMAIN}/nic"]
    own = resources["example.com/onload"]
    interfaces = [name for name in bench.found["interfaces"]]
    check("nic: each interface has four slots", len(nic.healthy()) == 4 * len(interfaces), nic.devices)
    check("nic: the operator's own name has two for each", len(own.healthy()) == 2 * len(interfaces), own.devices)
    allocated = nic.allocate(nic.healthy()[:2])
    check("nic: two slots of an interface are one CDI name", len(allocated.cdi) == len(set(allocated.cdi)) == 1, allocated)
    rdma = resources[f"{DOMAIN}/rdma"]
    more = rdma.allocate(rdma.healthy()[:1])
    allocated.cdi += more.cdi
    allocated.environment |= more.environment
    with pod(client, "slots", allocated) as container:
        facts, text = asked(client, container, *bench.questions())
        check("nic and rdma: the container opens their nodes", matrix.nodes_value(bench, facts) == "yes", text)
        _, maps, _ = client.execute(container, ["cat", "/proc/1/maps"])
        check("nic and rdma: its first process has libonload.so mapped", "libonload.so" in maps, maps)
        limits = memlock(client, container)
        check("nic and rdma: it may lock memory", limits == UNLIMITED, limits)
        check("nic and rdma: it opens nothing else", matrix.closed_value(bench, facts) == "yes", text)


def refuses(bench, resources):
    vfio = resources[f"{DOMAIN}/vfio"]
    for ids, why in [(["0000:ff:1f.7"], "0000:ff:1f.7"), (["../../etc"], "etc"), ([], ""), ([bench.vfio, bench.vfio], bench.vfio)]:
        said = refusal(vfio, ids)
        check(f"Allocate of {ids} is refused by name", said and why in said, said)
    of_another = resources[f"{DOMAIN}/nic"].healthy()[0]
    check("an id of another resource is refused", of_another in refusal(vfio, [of_another]), refusal(vfio, [of_another]))


def held_elsewhere(bench, vfio):
    """Another engine's container has the function."""
    with Kept(engines.Docker(), "elsewhere", "debian13", ["sleep", "1000"], engines.Request("cdi", [f"vfio={bench.vfio}"])) as other:
        check("a container of docker starts", other.started.status == 0, other.started)
        told = vfio.wait(lambda now: now.get(bench.vfio, ("",))[0] == "Unhealthy")
        check("what docker holds is unhealthy", told, vfio.devices)
        said = refusal(vfio, [bench.vfio])
        check("and Allocate names the container", "in use by container" in said, said)
    check("it is healthy once docker's container is gone", vfio.wait(lambda now: now.get(bench.vfio, ("",))[0] == "Healthy"), vfio.devices)


def rebound(bench, vfio):
    """The operator gives the function back to the kernel, and to vfio again."""
    device = Path(f"/sys/bus/pci/devices/{bench.vfio}")
    devices.write(device / "driver/unbind", bench.vfio)
    generate()
    gone = vfio.wait(lambda now: now.get(bench.vfio, ("Unhealthy",))[0] == "Unhealthy")
    check("a function without a driver is not to be had", gone, vfio.devices)
    devices.write("/sys/bus/pci/drivers_probe", bench.vfio)
    devices.wait_for(f"/dev/vfio/{bench.group}")
    generate()
    check("it is back with its driver", vfio.wait(lambda now: now.get(bench.vfio, ("",))[0] == "Healthy"), vfio.devices)


def kubelet_starts_again(client, kubelet, vfio, bench):
    """The plugin registers with the new kubelet, from sockets of its own; the pod goes on."""
    with pod(client, "lasting", vfio.allocate([bench.vfio])) as container:
        kubelet.end()
        kubelet.start()
        again = kubelet.wait(NAMES)
        check("every resource is registered again", sorted(again) == NAMES, f"{sorted(again)}\n{journal()}")
        facts, text = asked(client, container, f"node=/dev/vfio/{bench.group}", "limits")
        check("the pod is as it was", f"node=/dev/vfio/{bench.group}" in facts, text)
        check("the function of a pod is no other engine's: it stays healthy", again[f"{DOMAIN}/vfio"].devices[bench.vfio][0] == "Healthy", again[f"{DOMAIN}/vfio"].devices)
    return again


def daemon_starts_again(kubelet, signal):
    kubelet.resources.clear()
    must("systemctl", "kill", f"--signal={signal}", f"{UNIT}.service")
    deadline = time.monotonic() + 20
    while is_running() and time.monotonic() < deadline:
        time.sleep(0.2)
    left = sorted(path.name for path in DIRECTORY.iterdir() if path.name != "kubelet.sock")
    if signal == "TERM":
        check("SIGTERM: no socket is left", not any(name.endswith(".sock") for name in left), left)
    run("systemctl", "reset-failed", f"{UNIT}.service")
    start_daemon()
    again = kubelet.wait(NAMES)
    check(f"SIG{signal}: the next daemon registers every resource", sorted(again) == NAMES, f"{sorted(again)}\n{journal()}")
    return again


def second_instance():
    done = run("onload-kubernetes", "run", "--listen", "", timeout=20)
    check("a second daemon on the node ends at once, and says why", done.status not in (0, 124) and done.err.strip(), done)


def is_observed():
    from urllib.request import Request, urlopen
    asked = Request(f"http://{LISTEN}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urlopen(asked, timeout=5) as answer:
        text = answer.read().decode()
    check("/metrics counts devices by resource", 'resource="onload.dev/vfio"' in text and text.rstrip().endswith("# EOF"), text)
    with urlopen(f"http://{LISTEN}/healthz", timeout=5) as answer:
        check("/healthz answers 200", answer.status == 200, answer.status)


def parts(bench, wanted, is_full):
    """The newest containerd; in a full run, or if this is all that is wanted, the older one too, and an upgrade."""
    if wanted and not any(word in "kubernetes" for word in wanted):
        return
    client, newest = Cri(OLDER, PARENT), Cri(NEWEST, PARENT)
    is_whole = is_full or bool(wanted)
    runtimes = [client, newest] if is_whole else [newest]
    kubelet = Kubelet()
    report.prefix = "kubernetes: "
    configure()
    generate()
    with Part("kubernetes: the daemon comes"):
        install()
    start_daemon()
    try:
        with Part("kubernetes: a kubelet that comes later"):
            time.sleep(2)
            check("the daemon waits for kubelet", is_running(), journal())
            kubelet.start()
            resources = kubelet.wait([*NAMES, "example.com/onload"])
            if not check("every resource is registered", len(resources) == len(NAMES) + 1, f"{sorted(resources)}\n{journal()}"):
                return
        with Part("kubernetes: pods"):
            tells_functions(bench, resources[f"{DOMAIN}/vfio"])
            must("systemctl", "start", "containerd2", timeout=120)
            for runtime in runtimes:
                version = runtime.call("Version", b"")[3].decode()
                report.prefix = f"kubernetes: containerd {version}: "
                gives_functions(bench, runtime, resources[f"{DOMAIN}/vfio"])
                gives_slots(bench, runtime, resources)
            report.prefix = "kubernetes: "
            must("systemctl", "stop", "containerd2", timeout=120)
            refuses(bench, resources)
            is_observed()
        with Part("kubernetes: examples"):
            examples.parts(bench, client, resources)
        with Part("kubernetes: devices come and go"):
            held_elsewhere(bench, resources[f"{DOMAIN}/vfio"])
            rebound(bench, resources[f"{DOMAIN}/vfio"])
        with Part("kubernetes: starts again"):
            second_instance()
            again = kubelet_starts_again(client, kubelet, resources[f"{DOMAIN}/vfio"], bench)
            for signal in ("TERM", "KILL"):
                again = daemon_starts_again(kubelet, signal)
            check("what there is is healthy in the end", len(again.get(f"{DOMAIN}/vfio").healthy()) == 2, again)
        if is_whole:
            with Part("kubernetes: two versions"):
                rollout.parts(bench, client, kubelet)
        with Part("kubernetes: claims"):
            run("systemctl", "stop", f"{UNIT}.service")
            must("systemctl", "start", "containerd2", timeout=120)
            dra.parts(bench, runtimes)
            report.prefix = "kubernetes: "
            must("systemctl", "stop", "containerd2", timeout=120)
    finally:
        report.prefix = ""
        run("systemctl", "stop", f"{UNIT}.service")
        if kubelet.server is not None:
            kubelet.end()
