"""The DRA driver of a Kubernetes node: claims, prepared by the daemon, and pods of containerd's CRI with what it answers.

No Debian suite has a kubelet or an API server. Cluster is as much of the latter as the driver asks for, and Driver is kubelet's side
of the protocol, with the numbers of k8s.io/kubelet pkg/apis/dra/v1/api.proto and pkg/apis/pluginregistration/v1/api.proto.
"""

import contextlib
import http.server
import json
import threading
import time
import urllib.parse
from pathlib import Path

import grpc

import engines
import kubernetes
import report
from cri import every, message, parse
from parts import Kept, generate
from report import check, journal, must, run

KUBELET = Path("/var/lib/kubelet")
REGISTRY = KUBELET / "plugins_registry"
SPECS = Path("/var/run/cdi")
KUBECONFIG = Path("/run/machine-kubeconfig")
NODE = "n1"
GROUP = "/apis/resource.k8s.io/v1"
CLASSES = ["nic", "rdma", "vfio"]
# Those of packaging/kubernetes/dra that are asked for here.
DEVICE_CLASSES = [*CLASSES, "netdev"]
# The attribute that has a device's PCI function.
PCI = "resource.kubernetes.io/pciBusID"
CLAIM_KIND = "onload.dev/claim"


class Cluster(http.server.BaseHTTPRequestHandler):
    """An API server whose state is the class's own: there is one."""

    protocol_version = "HTTP/1.1"
    slices = {}
    claims = {}
    ended = threading.Event()
    changed = threading.Condition()

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def absent(self, kind, name):
        self.answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                          "message": f'{kind} "{name}" not found', "details": {"group": "resource.k8s.io", "kind": kind, "name": name}})

    def list(self, items):
        self.answer(200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})

    def watch(self):
        """Nothing happens that the driver has not done itself: its own writes are no news to it."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.ended.wait()

    def do_GET(self):
        asked = urllib.parse.urlsplit(self.path)
        name = asked.path.rsplit("/", 1)[-1]
        if "watch=true" in asked.query:
            self.watch()
        elif asked.path == f"/api/v1/nodes/{NODE}":
            metadata = {"name": NODE, "uid": "uid-of-the-node"}
            if "PartialObjectMetadata" in (self.headers["Accept"] or ""):
                self.answer(200, {"kind": "PartialObjectMetadata", "metadata": metadata})
            else:
                self.answer(200, {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "status": {"nodeInfo": {"kubeletVersion": "v1.36.2"}}})
        elif asked.path == "/api/v1/pods":
            self.list([])
        elif asked.path == f"{GROUP}/deviceclasses":
            self.list([{"metadata": {"name": f"{name}.onload.dev"}, "spec": {"extendedResourceName": f"onload.dev/{name}"}} for name in DEVICE_CLASSES])
        elif asked.path == f"{GROUP}/resourceslices":
            self.list(list(self.slices.values()))
        elif asked.path == f"{GROUP}/resourceclaims":
            self.list(list(self.claims.values()))
        elif name in self.claims:
            self.answer(200, self.claims[name])
        else:
            self.absent("resourceclaims", name)

    def do_PATCH(self):
        slice_ = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        slice_["metadata"]["resourceVersion"] = "1"
        # What is told of claims is answered, and not kept.
        if "dryRun=All" not in self.path and "/resourceslices/" in self.path:
            with self.changed:
                self.slices[slice_["metadata"]["name"]] = slice_
                self.changed.notify_all()
        self.answer(200, slice_)

    def do_DELETE(self):
        self.slices.pop(urllib.parse.urlsplit(self.path).path.rsplit("/", 1)[-1], None)
        self.answer(200, {"kind": "Status", "status": "Success"})


def devices(name, attribute="name"):
    """What the slices of a class offer: devices by the name that the node has for them, or by another attribute."""
    found = [slice_ for slice_ in Cluster.slices.values() if slice_["spec"]["pool"]["name"] == f"{NODE}/{name}"]
    return {device["attributes"][attribute]["string"]: device["name"] for slice_ in found for device in slice_["spec"].get("devices") or []}


def taints(name):
    """What keeps the scheduler from the devices of a class, by the same names."""
    found = [slice_ for slice_ in Cluster.slices.values() if slice_["spec"]["pool"]["name"] == f"{NODE}/{name}"]
    told = [device for slice_ in found for device in slice_["spec"].get("devices") or []]
    return {device["attributes"]["name"]["string"]: [taint["key"] for taint in device.get("taints") or []] for device in told}


def published(wanted, seconds=30):
    with Cluster.changed:
        return Cluster.changed.wait_for(lambda: all(devices(name) for name in wanted), seconds)


def allocate(name, *given, config=()):
    """A claim as the scheduler leaves it: (class, name on the node) for each request, and what the claim says of them. Its uid."""
    results = [{"request": f"r{at}", "driver": "onload.dev", "pool": f"{NODE}/{class_}", "device": devices(class_)[device]}
               for at, (class_, device) in enumerate(given)]
    said = [{"source": "FromClaim", **one} for one in config]
    uid = f"uid-of-{name}"
    Cluster.claims[name] = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"namespace": "default", "name": name, "uid": uid},
                            "spec": {}, "status": {"allocation": {"devices": {"results": results, "config": said}}}}
    return uid


def channel(socket, authority):
    return grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", authority)])


class Driver:
    """The driver as kubelet finds it."""

    def __init__(self, seconds=30):
        deadline = time.monotonic() + seconds
        while not (found := [path for path in REGISTRY.iterdir() if path.is_socket()]) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.socket = found[0]
        # kubelet's library escapes the path but for a few characters, the @ among these.
        registration = channel(self.socket, urllib.parse.quote(str(self.socket), safe="@"))
        info = parse(registration.unary_unary("/pluginregistration.Registration/GetInfo")(b"", timeout=5))
        self.kind, self.name, self.endpoint = (info[number].decode() for number in (1, 2, 3))
        registration.unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus")(message((1, 1)), timeout=5)
        self.channel = channel(self.endpoint, "localhost")

    def call(self, method, name):
        claim = message((1, "default"), (2, f"uid-of-{name}"), (3, name))
        answer = self.channel.unary_unary(f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}")(message((1, claim)), timeout=45)
        entry = parse(every(answer, 1)[0])
        return entry.get(2, b"")

    def prepare(self, name):
        """The CDI ids of a claim by request, and why there are none."""
        answer = self.call("NodePrepareResources", name)
        given = {}
        for device in every(answer, 1):
            for request in every(device, 1):
                given.setdefault(request.decode(), []).extend(each.decode() for each in every(device, 4))
        return given, parse(answer).get(2, b"").decode()

    def unprepare(self, name):
        return parse(self.call("NodeUnprepareResources", name)).get(1, b"").decode()


class Given:
    """What kubelet makes of an answer for a container."""

    environment = {}

    def __init__(self, given):
        self.cdi = [each for ids in given.values() for each in ids]


def files_of(name):
    return sorted(path.name for path in SPECS.glob(f"claim.onload.dev-uid-of-{name}.*"))


def refused(client, name, ids):
    """Why a pod with these ids does not start; empty where it does."""
    try:
        with kubernetes.pod(client, name, Given({"r": ids})):
            return ""
    except grpc.RpcError as error:
        return error.details()


def offers(bench):
    check("dra: the slices have both functions", sorted(devices("vfio")) == sorted(address for address, _ in bench.found["vfio"]), Cluster.slices)
    check("dra: and each interface once", sorted(devices("nic")) == sorted(bench.found["interfaces"]), Cluster.slices)


def gives_functions(bench, client, driver):
    allocate("function", ("vfio", bench.vfio))
    given, why = driver.prepare("function")
    own = f"{CLAIM_KIND}=uid-of-function.vfio.{bench.vfio}"
    if not check("dra: the answer names the claim's device, and the function", given == {"r0": [own, f"onload.dev/vfio={bench.vfio}", f"{CLAIM_KIND}=uid-of-function.request.r0"]}, f"{given} {why}"):
        return
    check("dra: a claim is prepared again with the same answer", driver.prepare("function")[0] == given)
    with kubernetes.pod(client, "claimed", Given(given)) as container:
        facts, text = kubernetes.asked(client, container, f"vfio=/dev/vfio/{bench.group}", f"node=/dev/vfio/{bench.other_group}")
        check("dra: the container opens its group", facts.get(f"vfio=/dev/vfio/{bench.group}") == "viable", text)
        limits = kubernetes.memlock(client, container)
        check("dra: it may lock memory", limits == kubernetes.UNLIMITED, limits)
        check("dra: it has no other group", not facts.get(f"node=/dev/vfio/{bench.other_group}", "open").startswith("open"), text)
        said = refused(client, "beside", given["r0"])
        check("dra: a second pod of the claim starts beside it", said == "", said)
        said = refused(client, "without", [f"onload.dev/vfio={bench.vfio}"])
        check("dra: a pod without the claim does not, and is told who has it", "in use by container" in said, said)
        allocate("other", ("vfio", bench.vfio))
        given_other, why = driver.prepare("other")
        check("dra: another claim is not prepared, and its event names the holder", not given_other and "in use by container" in why, f"{given_other} {why}")
        with Kept(engines.Docker(), "elsewhere", "debian13", ["sleep", "1000"], engines.Request("cdi", [f"vfio={bench.vfio}"])) as docker:
            said = str(docker.started)
            check("dra: docker does not get the function of a claim", docker.started.status != 0 and "in use by container" in said, said)
    check("dra: Unprepare says nothing and leaves nothing", driver.unprepare("function") == "" and not files_of("function"), files_of("function"))
    given, why = driver.prepare("other")
    check("dra: the other claim is prepared once the pod has ended", bool(given), why)
    driver.unprepare("other")


def gives_shares(bench, client, driver):
    allocate("shares", ("nic", bench.found["interfaces"][0]), ("rdma", bench.found["rdma"]))
    given, why = driver.prepare("shares")
    check("dra: each request has its own device", sorted(given) == ["r0", "r1"] and not why, f"{given} {why}")
    with kubernetes.pod(client, "shares", Given(given)) as container:
        facts, text = kubernetes.asked(client, container, *bench.questions())
        check("dra: the container opens the nodes of interface and RDMA device", kubernetes.matrix.nodes_value(bench, facts) == "yes", text)
        _, maps, _ = client.execute(container, ["cat", "/proc/1/maps"])
        check("dra: its first process has libonload.so mapped", "libonload.so" in maps, maps)
    with kubernetes.pod(client, "one", Given({"r1": given["r1"]})) as container:
        facts, text = kubernetes.asked(client, container, "node=/dev/onload", f"node=/dev/infiniband/{bench.found['uverbs'][0]}")
        has = facts.get(f"node=/dev/infiniband/{bench.found['uverbs'][0]}", "").startswith("open")
        check("dra: a container of one request has that device alone", has and not facts.get("node=/dev/onload", "open").startswith("open"), text)
    check("dra: the claim of shared devices is unprepared", driver.unprepare("shares") == "" and not files_of("shares"), files_of("shares"))


def is_held_elsewhere(bench, driver):
    with Kept(engines.Docker(), "elsewhere", "debian13", ["sleep", "1000"], engines.Request("cdi", [f"vfio={bench.vfio}"])) as docker:
        check("dra: a container of docker starts", docker.started.status == 0, docker.started)
        allocate("late", ("vfio", bench.vfio))
        given, why = driver.prepare("late")
        check("dra: a claim is refused with the name of docker's container", not given and "in use by container" in why, f"{given} {why}")


def starts_again(bench, client):
    """The daemon is killed while a pod has a claim, and another takes its place."""
    driver = Driver()
    allocate("lasting", ("vfio", bench.vfio))
    given, why = driver.prepare("lasting")
    check("dra: a claim is prepared", bool(given), why)
    with kubernetes.pod(client, "lasting", Given(given)):
        must("systemctl", "kill", "--signal=KILL", f"{kubernetes.UNIT}.service")
        deadline = time.monotonic() + 20
        while kubernetes.is_running() and time.monotonic() < deadline:
            time.sleep(0.2)
        run("systemctl", "reset-failed", f"{kubernetes.UNIT}.service")
        start()
        again = wait_for_another(driver)
        check("dra: after SIGKILL kubelet finds a socket of another name", again.socket != driver.socket, again.socket)
        check("dra: the pod's claim is as it was", again.prepare("lasting")[0] == given and len(files_of("lasting")) == 2, files_of("lasting"))
    check("dra: and is unprepared by the next daemon", again.unprepare("lasting") == "" and not files_of("lasting"), files_of("lasting"))


def wait_for_another(driver, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(grpc.RpcError, IndexError, FileNotFoundError):
            again = Driver(1)
            if again.socket != driver.socket:
                return again
        time.sleep(0.3)
    return driver


def start():
    kubernetes.start_daemon("--node-name", NODE, "--kubeconfig", KUBECONFIG, "--kubelet-dir", KUBELET)


@contextlib.contextmanager
def api_server():
    """An API server that knows nothing yet, for a daemon that ends with it."""
    Cluster.slices.clear()
    Cluster.claims.clear()
    Cluster.ended.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "m", "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
              "clusters": [{"name": "m", "cluster": {"server": address}}], "users": [{"name": "m", "user": {"token": "m"}}]}
    KUBECONFIG.write_text(json.dumps(config), encoding="ascii")
    KUBECONFIG.chmod(0o600)
    REGISTRY.mkdir(parents=True, exist_ok=True)
    # A driver that was killed leaves its socket.
    for path in filter(Path.is_socket, REGISTRY.iterdir()):
        path.unlink()
    try:
        yield
    finally:
        Cluster.ended.set()
        run("systemctl", "stop", f"{kubernetes.UNIT}.service")
        server.shutdown()


def parts(bench, runtimes):
    kubernetes.configure('\n[kubernetes.offer]\nnic = "dra"\nrdma = "dra"\nvfio = "dra"\n')
    generate()
    try:
        claims(bench, runtimes)
    finally:
        kubernetes.configure()
        generate()


def claims(bench, runtimes):
    with api_server():
        start()
        driver = Driver()
        check("dra: kubelet finds the driver by its socket with an @", (driver.kind, driver.name) == ("DRAPlugin", "onload.dev") and "@" in driver.socket.name, driver.socket)
        if not check("dra: slices of each class are written", published(CLASSES), f"{Cluster.slices}\n{journal()}"):
            return
        offers(bench)
        for client in runtimes:
            version = client.call("Version", b"")[3].decode()
            report.prefix = f"kubernetes: containerd {version}: "
            gives_functions(bench, client, driver)
            gives_shares(bench, client, driver)
        report.prefix = "kubernetes: "
        is_held_elsewhere(bench, driver)
        starts_again(bench, runtimes[0])
