"""Runs the containers of packaging/kubernetes/examples as kubelet does: resources are allocated, the rest goes to the CRI as it stands.

What differs from a cluster is said where it is made: images are the guest's own, and nothing makes a pod's network but the host's.
"""

import contextlib
import json
import time
import typing
from pathlib import Path

import yaml

import engines
from cri import NAMESPACES, OWN_NETWORK, message
from report import check, must, run

DIRECTORY = Path("/run/machine/packaging/kubernetes/examples")


class Place(typing.NamedTuple):
    """What kubelet's managers choose for a container: a NUMA node, CPUs, where volumes are, the pod's namespaces.

    `change` are words of the example that say something else in the guest.
    """

    node: int = 0
    cpus: str = ""
    mounts: typing.Mapping[str, str] = {}
    namespaces: typing.Sequence[typing.Tuple[int, int]] = NAMESPACES
    change: typing.Mapping[str, str] = {}


def documents(name, kind):
    """What an example has of a kind."""
    return [document for document in yaml.safe_load_all((DIRECTORY / name).read_text(encoding="utf-8")) if document["kind"] == kind]


def allocate(container, resources, node, pod):
    """What the plugins give for the limits of a container: devices of a NUMA node first, as kubelet's topology manager chooses.

    Each pod of an example has its own.
    """
    cdi, environment = [], {}
    for name, amount in container["resources"].get("limits", {}).items():
        if name in resources:
            devices = resources[name].devices
            number = int(amount)
            ids = sorted(resources[name].healthy(), key=lambda one: node not in devices[one][1])
            given = resources[name].allocate(ids[pod * number:(pod + 1) * number])
            cdi += given.cdi
            environment |= given.environment
    return cdi, environment


def changed(text, change):
    for old, new in change.items():
        text = text.replace(old, new)
    return text


def configuration(container, image, allocated, place, log):
    """runtime.v1.ContainerConfig."""
    cdi, environment = allocated
    environment |= {one["name"]: one["value"] for one in container.get("env", [])}
    context = container["securityContext"]
    user = [(5, message((1, context["runAsUser"])))] if "runAsUser" in context else []
    dropped = message((2, context["capabilities"]["drop"]))
    security = message((1, dropped), (3, message(*place.namespaces)), *user, (11, int(not context["allowPrivilegeEscalation"])))
    words = [changed(word, place.change) for word in container.get("command", []) + container.get("args", [])]
    cpus = [(1, message((6, place.cpus), (7, str(place.node))))] if place.cpus else []
    mounts = [message((1, inside), (2, outside)) for outside, inside in place.mounts.items()]
    return message(
        (1, message((1, "example"))), (2, message((1, f"localhost/{image}:1"))), (3, words), (6, environment),
        (7, mounts), (11, log), (15, message(*cpus, (2, security))), (17, [message((1, device)) for device in cdi]))


@contextlib.contextmanager
def runs(client, example, image, resources, place=Place(), pod=0, claimed=()):
    """The container of an example's pod, the first if not said; its id. What it says is in a log of that name.

    `claimed` are the CDI devices of its claims.
    """
    spec = documents(example, "Pod")[pod]["spec"]
    log = log_of(example, pod)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    sandbox = client.sandbox(f"example-{pod}", {}, engines.LOGS, namespaces=place.namespaces)
    made = client.call("RunPodSandbox", message((1, sandbox), (2, "runc")))[1].decode()
    try:
        first = spec["containers"][0]
        cdi, environment = allocate(first, resources, place.node, pod)
        config = configuration(first, image, ([*cdi, *claimed], environment), place, log.name)
        container = client.call("CreateContainer", message((1, made), (2, config), (3, sandbox)))[1].decode()
        client.call("StartContainer", message((1, container)))
        yield container
    finally:
        client.remove(made)


def log_of(example, pod=0):
    return Path(engines.LOGS) / f"{example}-{pod}.log"


def output(example, pod=0):
    """A CRI log has a time, a stream and a tag before each line."""
    return "\n".join(line.split(" ", 3)[-1] for line in log_of(example, pod).read_text(errors="replace").splitlines())


def says(example, words, seconds, pod=0):
    """Whether a container's output has all of these words in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(word in output(example, pod) for word in words):
        time.sleep(0.5)
    return all(word in output(example, pod) for word in words)


def check_pod(client, resources):
    with runs(client, "check.yaml", "debian13", resources):
        wanted = ["== variables", "LD_PRELOAD=", "== nodes\n/dev/onload\n", "libonload", "== memory lock\n8192", "== interfaces\n", "== RDMA devices"]
        check("check.yaml prints nodes, preload, memory lock and interfaces", says("check.yaml", wanted, 60), output("check.yaml"))


def redis(client, resources):
    with runs(client, "redis.yaml", "redis", resources) as container:
        check("redis.yaml: the server comes up", says("redis.yaml", ["Ready to accept connections"], 90), output("redis.yaml"))
        _, out, err = client.execute(container, ["redis-cli", "ping"])
        check("redis.yaml: it answers", "PONG" in out, out + err)
        pid = run("pgrep", "-o", "-x", "redis-server").out.strip()
        maps = run("cat", f"/proc/{pid}/maps").out
        check("redis.yaml: the server has libonload.so mapped", "libonload.so" in maps, maps)
        status = run("cat", f"/proc/{pid}/status").out
        check("redis.yaml: it is a plain user without capabilities", "\nUid:\t999\t" in status and "\nCapEff:\t0000000000000000" in status, status)


@contextlib.contextmanager
def volume_of_huge_pages():
    """What kubelet mounts for an emptyDir of medium HugePages-1Gi. It ends with the pod, and with it the files of pages that DPDK leaves there."""
    path = Path("/run/machine-hugepages")
    path.mkdir()
    must("mount", "-t", "hugetlbfs", "-o", "pagesize=1G", "none", path)
    try:
        yield str(path)
    finally:
        must("umount", path)
        path.rmdir()


def testpmd(client, resources):
    """The pages and the CPU are node 1's, as is the function. It has one CPU, where the example asks for four: two threads of DPDK share it."""
    example = "dpdk-testpmd.yaml"
    with volume_of_huge_pages() as volume, runs(client, example, "dpdk", resources, Place(
            node=1, cpus="1", mounts={volume: "/dev/hugepages-1Gi"}, change={'-l "$cpus"': '--lcores "0@$cpus,1@$cpus"'})):
        wanted = ["Using IOMMU type 1", "Configuring Port 0 (socket 1)", "NIC statistics for port 0"]
        check("dpdk-testpmd.yaml: testpmd drives the function with pages and a CPU of its node", says(example, wanted, 180), output(example))


class Network:
    """The pods' network is the example's, made by the reference plugin. It is the only one: nothing here plays Multus, which would add it to the cluster's."""

    def __init__(self, example, interface):
        self.config = json.loads(documents(example, "NetworkAttachmentDefinition")[0]["spec"]["config"]) | {"master": interface}
        # Before those of other engines: the first file in the order of names counts.
        self.path = Path("/etc/cni/net.d/00-example.conflist")

    def gives(self, ips):
        """The next pod gets these, as Multus hands addresses on: https://github.com/containernetworking/cni/blob/main/CONVENTIONS.md"""
        plugin = {key: value for key, value in self.config.items() if key not in ("cniVersion", "name")} | {"args": {"cni": {"ips": ips}}}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"cniVersion": self.config["cniVersion"], "name": self.config["name"], "plugins": [plugin]}))
        time.sleep(1)  # containerd hears of it by inotify

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.path.unlink(missing_ok=True)


def rdma(bench, client, resources):
    """The pods do not reach each other here: soft-RoCE receives in the host's network namespace alone (rxe_net.c, one UDP socket)."""
    example = "rdma-macvlan.yaml"
    with Network(example, bench.found["interfaces"][0]) as network, contextlib.ExitStack() as pods:
        for number, pod in enumerate(documents(example, "Pod")):
            ips = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])[0]["ips"]
            network.gives(ips)
            container = pods.enter_context(runs(client, example, "debian13", resources, Place(namespaces=OWN_NETWORK), number))
            name, address = pod["metadata"]["name"], ips[0].split("/")[0]
            _, addresses, err = client.execute(container, ["cat", "/proc/net/fib_trie"])
            check(f"rdma-macvlan.yaml: {name} has an address of its own", address in addresses, addresses + err)
            _, seen, err = client.execute(container, ["ibv_devices"])
            check(f"rdma-macvlan.yaml: {name} sees the RDMA device", bench.found["rdma"] in seen, seen + err)
            _, limits, err = client.execute(container, ["cat", "/proc/1/limits"])
            check(f"rdma-macvlan.yaml: {name} may lock memory", " ".join(limits.partition("Max locked memory")[2].split()[:2]) == "unlimited unlimited", limits + err)


def parts(bench, client, resources):
    check_pod(client, resources)
    redis(client, resources)
    testpmd(client, resources)
    rdma(bench, client, resources)
